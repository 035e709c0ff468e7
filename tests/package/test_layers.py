"""Imports run one way: every import of every module, also those inside functions, goes down the list or stays level.

What stays level runs one way, too: there are no cycles. And no function is too long to read, or takes too much.
"""

import ast
from functools import cache
from pathlib import Path

import diffbisim
from cases import each

ROOT = Path(diffbisim.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "_rebuild.py")  # of an editable install

# From the ground up. A name stands for the module and, if it is a package, for all in it that has no place of its own.
LAYERS = (
    ("common.errors", "_engine", "common.stopping", "io.limits"),
    ("common.names",),
    ("common.checks", "common.progress"),
    ("common.arrays",),
    ("processes.stochastic", "processes.counting", "processes.events", "processes.explicit", "processes.recognize"),
    ("processes",),
    ("io.files", "io.arrays", "io.npz", "io.tables", "io.logs", "io.prism", "io.storm", "io.chains"),
    ("problems", "results"),
    ("common",),
    ("solvers",),
    ("distances", "statistics", "results.saving"),
    ("plot",),
    ("autodiff", "torch", "jax"),
    ("reduction", "learning"),
    ("io",),  # load, whatever was saved
    ("cli", "__main__"),
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


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def named(node):
    return node.id if isinstance(node, ast.Name) else None


def for_annotations(tree):
    """What stands under ``if TYPE_CHECKING:`` and is never imported by a program that runs."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and named(node.test) == "TYPE_CHECKING"]
    return {inner for block in blocks for line in block.body for inner in ast.walk(line)}


def imported(path, annotations=True):
    """(line, dotted name below diffbisim) of every import of our own in a file, wherever it stands."""
    tree = parsed(path)
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


@cache
def home(name):
    """Where a name taken from the package itself lives: ``from diffbisim import lump`` is processes.lumping."""
    first = name.partition(".")[0]
    if (ROOT / first).is_dir() or (ROOT / f"{first}.py").exists():
        return name
    return (diffbisim._NAMES | diffbisim._MODULES).get(first, "")  # "": __version__


@each(path=MODULES)
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
    path = tmp_path / "another.py"  # files are read once
    path.write_text("if TYPE_CHECKING:\n    from diffbisim.cli import main\n", encoding="utf-8")
    assert list(imported(path)) == [(2, "cli.main")]
    assert not list(imported(path, False))
    assert home("lump") == "processes.lumping"


# --- the size of functions --------------------------------------------------------------------------------------------

LINES, PARAMETERS = 60, 7


def too_large(tree, parameters=PARAMETERS):
    """What a module says of its functions that are too long (without the docstring), or take too much by position.

    Options that are given by name do not count, nor does what a method belongs to.
    """
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        body = node.body[ast.get_docstring(node) is not None :]
        lines = node.end_lineno - body[0].lineno + 1 if body else 0
        if lines > LINES:
            yield f"{node.name} has {lines} lines; at most {LINES} can be taken in at once"
        taken = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        taken = taken[taken[:1] in (["self"], ["cls"]) :]
        if len(taken) > parameters:
            yield f"{node.name} takes {len(taken)} arguments by position; hand over together what belongs together"


def test_functions_can_be_taken_in_at_once():
    """In commands of the command line, the parameters are its options."""
    found = {
        name_of(path): list(too_large(parsed(path), 99 if "cli" in path.parts else PARAMETERS)) for path in MODULES
    }
    assert not {name: told for name, told in found.items() if told}


def test_what_is_too_large_is_told():
    """The test tests: one line and one parameter too many, and neither for a docstring, an option or self."""
    many, few = (", ".join(f"a{k}" for k in range(n)) for n in (PARAMETERS + 1, PARAMETERS))
    long = "    x = 1\n" * LINES
    fine = f'def f({few}, *, b):\n    """A\n    B"""\n{long}\nclass C:\n    def g(self, {few}): pass\n'
    assert not list(too_large(ast.parse(fine)))
    told = list(too_large(ast.parse(f"def f({many}):\n{long}    x = 1\n")))
    assert [" ".join(line.split()[:3]) for line in told] == [f"f has {LINES + 1}", f"f takes {PARAMETERS + 1}"]
