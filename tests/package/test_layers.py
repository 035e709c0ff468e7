"""Imports run one way: every import of every module, also those inside functions, goes down the list or stays level."""

import ast
from pathlib import Path

import pytest

import diffbisim

ROOT = Path(diffbisim.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# From the ground up. A name stands for the module and, if it is a package, for all that is in it.
LAYERS = (
    ("errors", "_compile"),
    ("checks",),
    ("stochastic",),
    ("chain", "mdp", "cost", "planning", "data"),
    ("problem", "timed", "actions", "questions", "gradient", "results", "progress", "parallel", "steps"),
    ("_refine", "lumping"),
    ("solvers",),
    ("distance", "metrics", "pairwise", "saving", "estimate"),
    ("plot",),
    ("_bridge", "torch", "jax"),
    ("fit", "imitate", "abstract"),
    ("loading",),
    ("experiments",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def name_of(path):
    """The dotted name below ``diffbisim``; empty for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """(line, dotted name below diffbisim) of every import of our own in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("diffbisim."):
                yield node.lineno, home(name.removeprefix("diffbisim."))


def home(name):
    """Where a name taken from the package itself lives: ``from diffbisim import lump`` is lumping."""
    first = name.partition(".")[0]
    if (ROOT / first).is_dir() or (ROOT / f"{first}.py").exists():
        return name
    return diffbisim._HOME.get(first, {"examples": "data"}.get(first, ""))  # "": __version__


@pytest.mark.parametrize("path", MODULES, ids=lambda path: name_of(path) or "diffbisim")
def test_imports_run_one_way(path):
    own = name_of(path).partition(".")[0]
    if not own:
        return  # the package itself names everything and imports nothing until it is asked for
    assert own in LEVEL, f"{own} has no place among the layers: add it to LAYERS, and to CONTRIBUTING.md"
    wrong = [
        f"line {line}: {own} imports {target}"
        for line, target in imported(path)
        if target and LEVEL[target.partition(".")[0]] > LEVEL[own]
    ]
    assert not wrong


def test_package_itself_imports_nothing_of_its_own():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in top if getattr(node, "module", None) == "diffbisim"]


def test_the_walk_sees_lazy_imports(tmp_path):
    """The test tests: an upward import inside a function is found."""
    path = tmp_path / "sample.py"
    path.write_text(
        "def f():\n    from diffbisim.cli import main\n    import diffbisim.solvers.exact\n", encoding="utf-8"
    )
    assert list(imported(path)) == [(2, "cli.main"), (3, "solvers.exact")]
    assert home("lump") == "lumping"
