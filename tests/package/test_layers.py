"""Imports run one way: every import of every module, also those inside functions, goes down the list or stays level.

What stays level runs one way, too: there are no cycles.
"""

import ast
from pathlib import Path

import pytest

import diffbisim

ROOT = Path(diffbisim.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# From the ground up. A name stands for the module and, if it is a package, for all in it that has no place of its own.
LAYERS = (
    ("errors", "_compile", "io.limits"),
    ("names",),
    ("checks",),
    ("stochastic", "counting", "ordering", "events", "explicit", "recognize"),
    ("chain", "mdp", "timed", "process", "cost", "planning", "gaussian", "quantize"),
    ("io.files", "io.arrays", "io.npz", "io.tables", "io.logs", "io.prism", "io.storm", "io.chains", "data"),
    ("problem", "horizon", "actions", "questions", "gradient", "contributions", "results", "explore"),
    ("progress", "parallel"),
    ("_refine", "lumping"),
    ("solvers",),
    ("distance", "metrics", "pairwise", "continuous", "evidence", "estimate", "compare", "io.results"),
    ("plot",),
    ("_bridge", "torch", "jax"),
    ("optimize",),
    ("fit", "compress", "imitate", "abstract"),
    ("io",),  # load, whatever was saved
    ("experiments",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def level_of(name):
    """The row of a module: its own, else that of the package it is in; None if it has none."""
    while name and name not in LEVEL:
        name = name.rpartition(".")[0]
    return LEVEL.get(name)


def name_of(path):
    """The dotted name below ``diffbisim``; empty for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def for_annotations(tree):
    """What stands under ``if TYPE_CHECKING:`` and is never imported by a program that runs."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {inner for block in blocks for line in block.body for inner in ast.walk(line)}


def imported(path, annotations=True):
    """(line, dotted name below diffbisim) of every import of our own in a file, wherever it stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set() if annotations else for_annotations(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
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
    own = name_of(path)
    if not own:
        return  # the package itself names everything and imports nothing until it is asked for
    level = level_of(own)
    assert level is not None, f"{own} has no place among the layers: add it to LAYERS, and to CONTRIBUTING.md"
    wrong = [
        f"line {line}: {own} imports {target}" for line, target in imported(path) if target and level_of(target) > level
    ]
    assert not wrong


def cycles(graph):
    """The sets of modules that reach each other, of a mapping from each to what it imports."""

    def reached(start):
        seen, todo = set(), [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    reach = {name: reached(name) for name in graph}
    return sorted({tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph} - {()})


def test_no_module_imports_itself_by_a_detour():
    """Within a row, too, and also by imports inside functions; those for annotations alone do not count."""
    names = {name_of(path): path for path in MODULES if name_of(path)}

    def module(name):
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name

    graph = {own: {module(target) for _, target in imported(path, False)} - {"", own} for own, path in names.items()}
    assert not cycles(graph)


def test_the_walk_sees_cycles():
    """The test tests: two that import each other are found, what they both import is not."""
    assert cycles({"a": {"b"}, "b": {"a", "c"}, "c": set(), "d": {"a"}}) == [("a", "b")]


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
    assert list(imported(path)) == list(imported(path, False)) == [(2, "cli.main"), (3, "solvers.exact")]
    path.write_text("if TYPE_CHECKING:\n    from diffbisim.cli import main\n", encoding="utf-8")
    assert list(imported(path)) == [(2, "cli.main")]
    assert not list(imported(path, False))
    assert home("lump") == "lumping"
