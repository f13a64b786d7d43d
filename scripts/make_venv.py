"""Makes .venv from the interpreter that runs this, with pip inside, and lets it see that interpreter's PyTorch.

Needs the standard library alone. Debian and Ubuntu keep `ensurepip`, and so pip, in a package of its own, which may be
missing; then pip comes from that package (python3.X-venv), from another pip, or from the package of its wheel.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from debian import apt_install, apt_line

VENV = Path(".venv")
OLDEST_TORCH = (2, 11)  # as pyproject.toml asks


def main() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    print(f"Making .venv from {sys.executable} (Python {version})", flush=True)
    if sys.version_info >= (3, 13):
        print("DMControl has no wheels for this Python and is left out; 3.11 and 3.12 have everything.", flush=True)
    if find_spec("ensurepip") or apt_install(f"python{version}-venv"):
        succeeded = runs(sys.executable, "-m", "venv", "--clear", VENV)
    else:
        succeeded = runs(sys.executable, "-m", "venv", "--clear", "--without-pip", VENV) and add_pip()
    if not succeeded:
        shutil.rmtree(VENV, ignore_errors=True)
        remedy = apt_line(f"python{version}-venv")
        sys.exit(f"This Python cannot make virtual environments with pip. Run this first: {remedy}")
    adopt_torch()


def runs(*command: object) -> bool:
    return subprocess.run([str(word) for word in command]).returncode == 0


def add_pip() -> bool:
    """Put pip into a .venv that has none, with a pip from elsewhere."""
    if find_spec("pip") and runs(sys.executable, "-m", "pip", "--python", VENV / "bin/python", "install", "-q", "pip"):
        return True
    if shutil.which("apt-get") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        # Fetching and unpacking a package needs no rights, unlike installing it.
        subprocess.run(["apt-get", "-qq", "download", "python3-pip-whl"], cwd=folder, capture_output=True)
        for package in Path(folder).glob("*.deb"):
            runs("dpkg", "-x", package, folder)
        wheels = [str(wheel) for wheel in Path(folder).rglob("pip-*.whl")]
        return bool(wheels) and runs(VENV / "bin/python", f"{wheels[0]}/pip", "install", "-q", "--no-index", wheels[0])


def adopt_torch() -> None:
    """Show .venv the packages beside this interpreter's PyTorch, if that fits: it is the build for this machine."""
    try:
        torch = distribution("torch")
    except PackageNotFoundError:
        return
    # A preview such as 2.13.0a0 does not count: pip would refuse it.
    release = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*(\+.*)?", torch.version)
    if release is None or (int(release[1]), int(release[2])) < OLDEST_TORCH:
        return
    packages = str(torch.locate_file(""))
    print(f"Using its PyTorch {torch.version} in {packages}", flush=True)
    site_packages = next(VENV.glob("lib*/python3*/site-packages"))
    (site_packages / "adopted.pth").write_text(f"import site; site.addsitedir({packages!r})\n")


if __name__ == "__main__":
    main()
