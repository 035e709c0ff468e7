"""Wheel and source distribution, installed where nothing but the core dependencies is: no extras, no sources."""

import os
import platform
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import diffbisim

ROOT = Path(__file__).parents[2]
BUILD = "import sys; sys.path.insert(0, 'engine'); from backend import build_{0} as build; print(build(sys.argv[1]))"


LEVELS = {"_engine_baseline"} | ({"_engine_v3"} if platform.machine() in ("x86_64", "AMD64") else set())


def build(kind, source, target):
    """Build without optimization, which takes a fraction of the time; ``make test-wheel`` tests what is published."""
    code, quickly = BUILD.format(kind), {**os.environ, "SKBUILD_CMAKE_BUILD_TYPE": "Debug"}
    command = [sys.executable, "-c", code, str(target)]
    done = subprocess.run(command, cwd=source, env=quickly, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


def needed(name, seen):
    """The distributions that a plain ``pip install`` brings, without extras."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return  # for another system or another Python
    seen[key] = found
    for requirement in found.requires or ():
        if "extra ==" not in requirement:
            needed(re.match(r"[\w.-]+", requirement)[0], seen)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The Python of an environment with the wheel unpacked in it and links to the core dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (unpacked,) = site.glob("diffbisim-*.dist-info")
    seen = {}
    for line in (unpacked / "METADATA").read_text(encoding="utf-8").splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            needed(re.match(r"[\w.-]+", line.removeprefix("Requires-Dist: "))[0], seen)
    assert {"numpy", "scipy", "typer", "matplotlib"} <= seen.keys()
    assert "torch" not in seen
    for found in seen.values():
        for top in {Path(file).parts[0] for file in found.files or () if Path(file).parts[0] != ".."}:
            link = site / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(found.locate_file(top))
    return folder / "bin" / "python"


def fresh(python, code, tmp_path, expected=0):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == expected, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def test_wheel_holds_what_it_should(wheel):
    assert f"-{diffbisim.__version__}-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    modules.discard("diffbisim/_rebuild.py")  # of an editable install
    assert modules | {"diffbisim/py.typed"} <= names
    assert "diffbisim/_rebuild.py" not in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "benchmarks", "docs", "engine")) for name in names)
    assert {Path(name).name.partition(".")[0] for name in names if name.endswith((".so", ".pyd"))} == LEVELS


def test_bare_install_is_this_version_and_light(bare, tmp_path):
    code = """
import sys
import diffbisim
heavy = [name for name in ("numpy", "matplotlib", "scipy", "torch") if name in sys.modules]
print(diffbisim.__version__, diffbisim.__file__.startswith(sys.prefix), *heavy)
"""
    out, _ = fresh(bare, code, tmp_path)
    assert out.split() == [diffbisim.__version__, "True"]


def test_bare_install_solves_and_draws(bare, tmp_path):
    code = """
import diffbisim as db
X = db.MarkovChain([[0.5, 0.5], [0.0, 1.0]], rewards=[1.0, 0.0])
Y = db.MarkovChain([[0.5, 0.5], [0.0, 1.0]], rewards=[1.0, 0.5])
r = db.distance(X, Y, discount=0.5)
print(round(r.value, 6))
db.plot.encoder(r).figure.savefig("encoder.png")
print(db.lump(db.MarkovChain([[0.5, 0.5], [0.5, 0.5]])).n_states)
from diffbisim import _engine
print(_engine._loaded.__file__.startswith(db.__path__[0]))
"""
    out, _ = fresh(bare, code, tmp_path)
    assert out.split() == ["0.166667", "1", "True"]
    assert (tmp_path / "encoder.png").exists()


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import diffbisim.torch", "torch"),
        ("import diffbisim.jax", "jax"),
        ("from diffbisim.processes.environments import import_gymnasium; import_gymnasium()", "gym"),
    ],
)
def test_missing_extra_is_named_with_its_remedy(bare, tmp_path, code, extra):
    _, err = fresh(bare, code, tmp_path, expected=1)
    assert err.splitlines()[-1].startswith("diffbisim.common.errors.MissingExtra: ")
    assert f"pip install 'diffbisim[{extra}]'" in err


def test_command_of_a_bare_install(bare, tmp_path):
    begin = "import sys; from diffbisim.cli import main; sys.argv = ['diffbisim', {}]; main()"
    out, _ = fresh(bare, begin.format("'--version'"), tmp_path)
    assert out == f"diffbisim {diffbisim.__version__}"
    _, err = fresh(bare, begin.format("'imitate', '--env', 'FrozenLake-v1'"), tmp_path, expected=2)
    assert err == "diffbisim: this needs Gymnasium: pip install 'diffbisim[gym]'"


def test_source_distribution_has_all_that_a_wheel_is_built_from(wheel, tmp_path):
    source = build("sdist", ROOT, tmp_path)
    assert source.name == f"diffbisim-{diffbisim.__version__}.tar.gz"
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("Makefile", "constraints.txt", "docs/conf.py", "examples/plot_01_own_table.py", "tests/package"):
        assert (unpacked / name).exists(), name
    sources = [*(ROOT / "engine").glob("*.*"), *map(ROOT.joinpath, ("pyproject.toml", "README.md", "LICENSE"))]
    sources += [
        ROOT / "src" / name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".py", ".pyi", ".typed"))
    ]
    assert len(sources) > 200
    for path in sources:
        assert (unpacked / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path
