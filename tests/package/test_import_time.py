"""Start-up is quick: what is loaded when in a fresh process, and that what was compiled once is not compiled again.

No seconds, which depend on the machine: an import is slow for what it imports, a first call for what it compiles.
"""

import subprocess
import sys
from functools import cache

import diffbisim as db

#: Steps in one process, and what may be loaded from each step on; the rest not at all.
STEPS = {
    "import diffbisim as db": set(),
    "X, Y = db.examples.random_chain(8, 0), db.examples.random_chain(8, 1)": {"numpy", "scipy", "scipy.sparse"},
    "import diffbisim.mdp, diffbisim.cost, diffbisim.data, diffbisim.lumping; db.plot": set(),
    "db.distance(X, Y).gradient": {"numba", "scipy.optimize", "scipy.spatial"},
    "db.plot.elbow([1], [0.0])": {"matplotlib"},  # and not pyplot: no window opens
}
HEAVY = (
    "numpy", "scipy", "scipy.sparse", "scipy.optimize", "scipy.spatial", "scipy.stats", "numba", "torch", "jax",
    "matplotlib", "matplotlib.pyplot", "rich", "typer", "gymnasium", "cvxpy", "pandas", "polars", "xarray",
)  # fmt: skip


def fresh(code):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: Each dispatcher counts what it found on disk and what it had to compile.
COUNT = """
import gc
from numba.core.dispatcher import Dispatcher
kernels = [d for d in gc.get_objects() if isinstance(d, Dispatcher)]
stats = [d.stats for d in kernels if d.py_func.__module__.startswith("diffbisim")]
print(sum(sum(s.cache_hits.values()) for s in stats), sum(sum(s.cache_misses.values()) for s in stats))
"""


@cache
def told():
    """What one process says: what is loaded after every step, and the counts of its kernels."""
    _ = db.distance(db.examples.random_chain(8, 0), db.examples.random_chain(8, 1)).gradient  # compiles, if nobody has
    tell = f"print(*(name for name in {HEAVY} if name in sys.modules))"
    *loaded, counts = fresh("import sys\n" + "\n".join(f"{step}\n{tell}" for step in STEPS) + COUNT).splitlines()
    return loaded, counts


def test_nothing_is_loaded_before_it_is_used():
    allowed = set()
    for (step, more), line in zip(STEPS.items(), told()[0], strict=True):
        allowed |= more
        assert set(line.split()) <= allowed, step


def test_help_loads_neither_kernels_nor_figures():
    calls = "".join(
        f"\ntry:\n    app({arguments!r})\nexcept SystemExit:\n    pass"
        for arguments in (["--version"], ["--help"], ["distance", "--help"])
    )
    seen = fresh(
        f"import sys\nfrom diffbisim.cli import app{calls}"
        "\nprint(*(name for name in ('numba', 'matplotlib', 'scipy') if name in sys.modules), end='.')"
    )
    assert seen.splitlines()[-1] == "."


def test_kernels_once_compiled_are_not_compiled_again():
    hits, misses = map(int, told()[1].split())
    assert hits > 0
    assert misses == 0
