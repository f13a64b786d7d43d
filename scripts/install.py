"""Installs into .venv, whose Python runs this, whatever is missing there: PyTorch, the package, its tools, OpenGL.

What is there already is left alone, and pip is not even asked, so that a second run is quick and needs no network.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from debian import apt_install, apt_line

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(sys.prefix)
PINS = VENV / "constraints.txt"
GL_WORKS = VENV / "gl-works"  # the Makefile asks for it
GL_TRIED = VENV / "gl-tried"
GL_PACKAGES = ("libegl1", "libgl1")
EXTRAS_TESTED = ("report",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="the requirement, and pip's options if any")
    parser.add_argument("--force-torch", action="store_true", help="install it even where another fitting one is")
    parser.add_argument("--dev", action="store_true", help="also what tests, checks and documentation need")
    arguments = parser.parse_args()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = list(project["project"]["dependencies"])
    if arguments.dev:
        requirements += project["dependency-groups"]["dev"]
        for extra in EXTRAS_TESTED:
            requirements += project["project"]["optional-dependencies"][extra]

    wanted, *options = shlex.split(arguments.torch)
    oldest = next(line for line in requirements if line.startswith("torch"))
    if missing([wanted if arguments.force_torch else oldest]):
        pip_install(f"{wanted} (docs/install.md tells how to choose a build)", wanted, *options)

    pins = (ROOT / "constraints.txt").read_text() + f"torch=={version('torch')}\n"
    wanting = missing(requirements, pins)
    if wanting or not is_this_project(project["project"]["version"]):
        PINS.write_text(pins)
        names = [re.split(r"[^\w.-]", line)[0] for line in wanting]
        pip_install(" ".join(["curl-rl", *names]), "-q", "-c", PINS, "-e", ROOT, *requirements)
    ensure_gl()


def missing(requirements: list[str], pins: str = "") -> list[str]:
    """The requirements that are not installed, or not as pinned."""
    from pip._vendor.packaging.requirements import Requirement  # pip's copy is there before anything is installed
    from pip._vendor.packaging.utils import canonicalize_name

    invalidate_caches()
    lines = [line for line in pins.splitlines() if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): pin.specifier for pin in map(Requirement, lines)}

    def is_met(requirement: Requirement) -> bool:
        if requirement.marker and not requirement.marker.evaluate():
            return True
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            return False
        pin = pinned.get(canonicalize_name(requirement.name), requirement.specifier)
        return (requirement.specifier & pin).contains(installed, prereleases=True)

    return [line for line in requirements if not is_met(Requirement(line))]


def is_this_project(wanted: str) -> bool:
    """Whether the package is installed from this folder, which may have been moved, as the version that it now is."""
    try:
        installed = distribution("curl-rl")
    except PackageNotFoundError:
        return False
    return installed.version == wanted and f'"{ROOT.as_uri()}"' in (installed.read_text("direct_url.json") or "")


def pip_install(what: str, *arguments: object) -> None:
    print(f"Installing {what}", flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *map(str, arguments)]
    if subprocess.run(command, cwd=ROOT).returncode:
        sys.exit("pip failed, see above. What is installed stays; to try again, give the same command.")


def ensure_gl() -> None:
    """See to it that DMControl can draw, as far as this may be done here, and note whether it can."""
    if GL_WORKS.exists() or sys.version_info >= (3, 13):
        return
    works = gl_works()
    if not works and not GL_TRIED.exists():
        GL_TRIED.touch()
        works = apt_install(*GL_PACKAGES) and gl_works()
    if works:
        GL_WORKS.touch()
    else:
        print(f"DMControl cannot draw here for want of OpenGL. Mend it with: {apt_line(*GL_PACKAGES)}", flush=True)


def gl_works() -> bool:
    program = "from curl_rl.envs import gl; gl.choose()"
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
