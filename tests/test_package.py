"""The package as a whole: what importing it costs, its metadata, and what must not stand in its files."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import curl_rl

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text()
SIMULATORS = {"mujoco", "dm_control", "ale_py"}
HEAVY = {*SIMULATORS, "torch", "gymnasium", "cv2", "ray", "tensorboard", "matplotlib"}


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_loads_nothing_heavy():
    loaded = modules_after("import curl_rl")
    assert "curl_rl" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_environments_load_without_torch_and_simulators():
    """What a worker process imports: hundreds of them must fit beside each other."""
    assert modules_after("import curl_rl.envs").isdisjoint({*SIMULATORS, "torch", "tensorboard"})


@pytest.mark.parametrize("name", curl_rl.__all__)
def test_public_names_resolve(name):
    assert getattr(curl_rl, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = curl_rl.no_such_name


def test_version_is_the_same_everywhere():
    assert curl_rl.__version__ == version("curl-rl") == tomllib.loads(PYPROJECT)["project"]["version"]
    assert f"## [{curl_rl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_package_is_typed():
    assert (Path(curl_rl.__file__).parent / "py.typed").is_file()


def test_every_dependency_has_a_reason():
    project = tomllib.loads(PYPROJECT)
    groups = [
        project["project"]["dependencies"],
        *project["project"].get("optional-dependencies", {}).values(),
        *project["dependency-groups"].values(),
    ]
    for requirement in [requirement for group in groups for requirement in group]:
        line = next(line for line in PYPROJECT.splitlines() if f'"{requirement}"' in line)
        assert re.search(r'"[^"]*",?\s*\]?\s*#\s*\w+', line), f"pyproject.toml gives no reason for {requirement}"


def files_of_the_project() -> list[Path]:
    """Every file that belongs to the project: what git tracks, or would track."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in found if name and (ROOT / name).is_file()]


# Written in halves, so that this file does not find itself.
FORBIDDEN = {
    "a path of one machine": r"/wor" r"k/|/hom" r"e/\w|/Use" r"rs/\w|/opt/whe" r"els",
    "the host of a registry": r"(pypi|pythonhosted|npmjs|deb\.debian|download\.pytorch)\." r"org",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what):
    """A path of one machine is wrong on every other; which registry is asked is the reader's choice, told to pip."""
    found = []
    for path in files_of_the_project():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in re.finditer(FORBIDDEN[what], text)]
    assert not found


def test_every_page_of_the_documentation_can_be_reached():
    docs = ROOT / "docs"
    reached: set[str] = set()
    waiting = ["index"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for body in re.findall(r"```\{toctree\}\n(.*?)```", (docs / f"{name}.md").read_text(), re.DOTALL):
            entries = [line.strip() for line in body.splitlines() if line.strip() and not line.startswith(":")]
            waiting += [re.sub(r".*<(.*)>", r"\1", entry).removesuffix(".md") for entry in entries]
    pages = {str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.md") if "_build" not in page.parts}
    assert reached == pages
