"""Machine code on disk is never stale: each case edits a copy of the package and asks another process.

That process is forked from one that has imported numba and nothing else, with the environment it is told.

The copies are made small: two kernels in two files, with this package's own ``_compile.py``.
"""

import ast
import os
import shutil
from pathlib import Path

import pytest

import diffbisim
from diffbisim import _compile
from nursery import Nursery

ROOT = Path(diffbisim.__file__).parent

INNER = """from diffbisim._compile import njit

SCALE = 10.0


@njit(cache=True, nogil=True)
def add(x):
    return x + 1.0
"""
OUTER = """from diffbisim._compile import njit

from diffbisim.inner import SCALE, add


@njit(cache=True, nogil=True)
def both(x):
    return SCALE * add(x)
"""
ASK = "from diffbisim.outer import both; print(both(1.0), sum(both.stats.cache_hits.values()))"

#: What a new process would find in its environment, before it imports numba.
BEGIN = """
for name in [name for name in os.environ if name.startswith("NUMBA_")]:
    del os.environ[name]
os.environ.update({settings!r})
numba.core.config.reload_config()
sys.path.insert(0, {path!r})
sys.dont_write_bytecode = True
"""


class Copy:
    """A package of two files that compile, with a cache of its own."""

    def __init__(self, folder, processes):
        self.processes = processes
        self.root, self.cache = folder / "diffbisim", folder / "cache"
        self.root.mkdir(parents=True)
        (self.root / "__init__.py").write_text('__version__ = "1"\n')
        shutil.copy(ROOT / "_compile.py", self.root)
        (self.root / "inner.py").write_text(INNER)
        (self.root / "outer.py").write_text(OUTER)
        self.normalize()

    def normalize(self):
        """All times as some installers set them: numba sees no file change."""
        for path in self.root.glob("*.py"):
            os.utime(path, (315532800, 315532800))

    def replace(self, file, old, new):
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        self.normalize()

    def ask(self, code=ASK, **environment):
        """[value, cache hits] in another process."""
        settings = {"NUMBA_CACHE_DIR": str(self.cache)} | environment
        self.processes.fork(BEGIN.format(settings=settings, path=str(self.root.parent)) + code)
        answer = self.processes.line()
        assert self.processes.line() == "ended 0", answer
        return [float(word) for word in answer.split()]

    def folders(self):
        return sorted(self.cache.rglob("diffbisim-*"))


@pytest.fixture(scope="module")
def processes():
    made = Nursery()
    made.load("import os, sys\nimport numba, numba.core.config\nnumba.njit(lambda x: x + 1.0)(1.0)")
    yield made
    made.close()


@pytest.fixture
def copy(tmp_path, processes):
    return Copy(tmp_path, processes)


def test_an_unchanged_package_is_compiled_once(copy):
    assert copy.ask() == [20, 0]
    assert copy.ask() == [20, 1]
    assert len(copy.folders()) == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "value"),
    [
        ("inner.py", "x + 1.0", "x + 2.0", 30),  # a function that is called from another file
        ("inner.py", "SCALE = 10.0", "SCALE = 20.0", 40),  # a constant that is taken from another file
        ("outer.py", "SCALE * add(x)", "SCALE - add(x)", 8),  # the function itself, same size, same time
    ],
)
def test_a_change_shows_though_times_and_sizes_do_not(copy, file, old, new, value):
    assert copy.ask() == [20, 0]
    sizes = {path: path.stat().st_size for path in copy.root.glob("*.py")}
    copy.replace(file, old, new)
    assert {path: path.stat().st_size for path in copy.root.glob("*.py")} == sizes
    assert copy.ask() == [value, 0]
    copy.replace(file, new, old)
    assert copy.ask() == [20, 1]  # who goes back to the other branch finds its code again


def test_another_version_of_the_package_compiles_anew(copy):
    assert copy.ask() == [20, 0]
    copy.replace("__init__.py", '"1"', '"2"')
    assert copy.ask() == [20, 0]


def test_a_change_in_a_file_without_kernels_costs_nothing(copy):
    (copy.root / "words.py").write_text("greeting = 'numba'\n")
    copy.ask()
    (copy.root / "words.py").write_text("greeting = 'hello'\n")
    assert copy.ask() == [20, 1]


def test_old_folders_do_not_pile_up(copy):
    copy.ask()
    (folder,) = copy.folders()
    for k in range(3 * _compile.KEPT):
        other = folder.parent / f"diffbisim-{k:016x}"
        other.mkdir()
        (other / "x.nbc").write_bytes(b"old")
        os.utime(other, (k, k))
    copy.replace("inner.py", "x + 1.0", "x + 2.0")
    assert copy.ask() == [30, 0]
    assert len(copy.folders()) == _compile.KEPT
    assert folder in copy.folders()
    assert copy.ask() == [30, 1]


def test_a_damaged_cache_is_compiled_over(copy):
    copy.ask()
    for path in copy.cache.rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[:7])
    assert copy.ask() == [20, 0]
    assert copy.ask() == [20, 1]


def test_where_nothing_can_be_written_everything_is_compiled(copy):
    """No cache folder, no __pycache__ and no home: files stand where folders would have to be made."""
    (copy.root / "__pycache__").write_text("")
    (blocked := copy.root.parent / "blocked").write_text("")
    nowhere = {"NUMBA_CACHE_DIR": str(blocked), "XDG_CACHE_HOME": str(blocked), "HOME": str(blocked)}
    for _ in range(2):
        assert copy.ask(**nowhere) == [20, 0]


def test_without_a_cache_folder_the_code_lies_beside_the_sources(copy):
    assert copy.ask(NUMBA_CACHE_DIR="") == [20, 0]
    assert copy.ask(NUMBA_CACHE_DIR="") == [20, 1]
    (folder,) = (copy.root / "__pycache__").glob("diffbisim-*")
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == {"inner.add", "outer.both"}


@pytest.mark.parametrize("change", ["del c.CompileResultCacheImpl", "del c.FunctionCache", "c.CacheImpl.__init__ = 0"])
def test_another_numba_means_no_cache_and_no_error(copy, change):
    assert copy.ask(f"import numba.core.ccallback, numba.core.caching as c; {change}\n{ASK}") == [20, 0]
    assert copy.folders() == []


def test_without_compilation_kernels_are_python(copy):
    assert copy.ask("from diffbisim.outer import both; print(both(1.0))", NUMBA_DISABLE_JIT="1") == [20]


# --- what the digest has to know -----------------------------------------------------------------------------


def test_two_processes_that_compile_at_once_do_not_take_each_other_for_themselves(tmp_path, monkeypatch):
    """Both have read the index before either writes it, and one writes its code while the other is at it."""
    one, other, reader = (_compile._KernelFiles(str(tmp_path), "kernel", "stamp") for _ in range(3))
    for files in (one, other):
        monkeypatch.setattr(files, "_load_index", dict)
    write = one._save_data

    def interrupted(name, data):
        other.save("its types", "its code")
        write(name, data)

    monkeypatch.setattr(one, "_save_data", interrupted)
    one.save("my types", "my code")
    assert reader.load("my types") == "my code"
    assert reader.load("its types") in (None, "its code")


def test_kernels_are_compiled_through_this_door_only():
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "numba" in text else ():
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            module = getattr(node, "module", None) or ""
            if path.name != "_compile.py" and (module.startswith("numba") or any(n.startswith("numba") for n in names)):
                assert not {"njit", "jit", "vectorize", "guvectorize", "numba"} & set(names), path
                assert path in _compile.kernel_files(), path


def compiled_functions(tree):
    """Functions of a module that numba compiles: those with a decorator, and those given to njit(…)(f) by name."""
    given = {
        call.args[0].id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Call) and isinstance(call.args[0], ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {name.id for part in node.decorator_list for name in ast.walk(part) if isinstance(name, ast.Name)}
            if names - {"property", "lazy", "classmethod", "staticmethod"} or node.name in given:
                yield node


@pytest.mark.parametrize("path", _compile.kernel_files(), ids=lambda path: path.stem)
def test_what_kernels_use_is_in_the_digest(path):
    """A name taken from elsewhere in the package comes from a file that compiles something, or has its tuples."""
    files = [*_compile.kernel_files(), *(ROOT / name for name in _compile.LAYOUTS)]
    known = {".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in files}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    foreign = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("diffbisim") and node.module not in known:
            for alias in node.names:
                if f"{node.module}.{alias.name}" not in known:
                    foreign[alias.asname or alias.name] = node.module
    for function in compiled_functions(tree):
        inside = {node.id for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)}
        assert not inside & set(foreign), f"{function.name} uses {inside & set(foreign)} of {foreign}"
