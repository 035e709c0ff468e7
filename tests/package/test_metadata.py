"""The project's own papers: one version, typed, licensed, pinned."""

import re
import subprocess
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import diffbisim

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_has_one_place(project):
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/diffbisim/__init__.py"
    places = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"^__version__\s*=", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert places == ["src/diffbisim/__init__.py"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|(a|b|rc)\d+)?", diffbisim.__version__)


def test_command_leads_to_the_command_line(project):
    assert project["project"]["scripts"] == {"diffbisim": "diffbisim.cli:main"}
    (script,) = entry_points(group="console_scripts", name="diffbisim")
    assert script.value == "diffbisim.cli:main"


def test_package_is_typed():
    assert (Path(diffbisim.__file__).parent / "py.typed").exists()


def pinned(name):
    """Version of every distribution in a file of constraints."""
    pins = (line.split("==") for line in text(name).splitlines() if line and not line.startswith("#"))
    return {package.lower().replace("_", "-"): version for package, version in pins}


def test_every_dependency_is_pinned(project):
    pins = pinned("constraints.txt")
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert names - {"diffbisim"} <= pins.keys()  # an extra may name the others


def test_gymnasium_comes_alone(project):
    """Stable-Baselines3, which brings torch, is an extra of its own."""
    extras = project["project"]["optional-dependencies"]
    assert [re.match(r"[\w-]+", name)[0] for name in extras["gym"]] == ["gymnasium"]
    assert [re.match(r"[\w-]+", name)[0] for name in extras["rl"]] == ["stable-baselines3"]


def test_the_oldest_versions_are_those_that_are_allowed(project):
    """What make test-oldest installs is the floor of every requirement of the package and its tests, but torch's."""
    parts = project["project"]
    extras = parts["optional-dependencies"]
    wanted = [
        *parts["dependencies"],
        *(
            name
            for extra in ("torch", "jax", "gym", "rl", "baselines", "cluster", "data", "explore", "test")
            for name in extras[extra]
        ),
    ]
    wanted += [name.partition(";")[0] for name in extras["storm"]]
    floors = dict(name.lower().split(">=") for name in wanted if not name.startswith("diffbisim["))
    oldest = pinned("constraints-oldest.txt")
    assert floors.keys() == oldest.keys() - {"jaxlib"}
    for name in floors.keys() - {"torch"}:
        assert re.fullmatch(rf"{re.escape(floors[name])}(\.0)*", oldest[name]), name


def test_source_distribution_has_all_that_make_needs(project):
    included = project["tool"]["scikit-build"]["sdist"]["include"]
    for name in ("engine", "src", "tests", "docs", "*.md", "LICENSE", "CITATION.cff", "Makefile", "constraints*.txt"):
        assert name in included
        assert list(ROOT.glob(name))


def test_papers_are_in_order():
    assert text("LICENSE").startswith("MIT License")
    assert "The diffbisim developers" in text("LICENSE")
    assert "Differentiating Bisimulation Metrics" in text("CITATION.cff")
    release = diffbisim.__version__.partition(".dev")[0]
    assert f"## [{release}]" in text("CHANGELOG.md")


@pytest.mark.parametrize("target", ["demo", "test", "test-portable", "lint", "docs", "bench"])
def test_make_sets_itself_up(target, tmp_path):
    """A fresh machine has Python and make: what a target does begins with an environment and the pinned packages."""
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={tmp_path / 'venv'}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line for line in planned.splitlines() if "pip install" in line]
    assert "-m venv" in planned.partition("pip install")[0]
    assert all("-c constraints.txt" in line for line in installs)
    assert installs[-1] != planned.splitlines()[-1]  # and then it does something
