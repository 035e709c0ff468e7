"""Start-up is quick: what is loaded when in a fresh process.

No seconds, which depend on the machine: an import is slow for what it imports.
"""

import subprocess
import sys
from functools import cache

#: Steps in one process, and what may be loaded from each step on; the rest not at all.
STEPS = {
    "import diffbisim as db": set(),
    "X, Y = db.examples.random_chain(8, 0), db.examples.random_chain(8, 1)": {"numpy", "scipy", "scipy.sparse"},
    "import diffbisim.mdp, diffbisim.cost, diffbisim.data, diffbisim.lumping; db.plot": set(),
    "db.distance(X, Y).gradient": set(),
    "db.plot.elbow([1], [0.0])": {"matplotlib"},  # and not pyplot: no window opens
}
HEAVY = (
    "numpy", "scipy", "scipy.sparse", "scipy.optimize", "scipy.spatial", "scipy.stats", "torch", "jax",
    "matplotlib", "matplotlib.pyplot", "rich", "typer", "gymnasium", "cvxpy", "pandas", "polars", "xarray",
)  # fmt: skip


def fresh(code):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def told():
    """What one process says is loaded after every step."""
    tell = f"print(*(name for name in {HEAVY} if name in sys.modules))"
    return fresh("import sys\n" + "\n".join(f"{step}\n{tell}" for step in STEPS)).splitlines()


def test_nothing_is_loaded_before_it_is_used():
    allowed = set()
    for (step, more), line in zip(STEPS.items(), told(), strict=True):
        allowed |= more
        assert set(line.split()) <= allowed, step


def test_help_loads_neither_numbers_nor_figures():
    calls = "".join(
        f"\ntry:\n    app({arguments!r})\nexcept SystemExit:\n    pass"
        for arguments in (["--version"], ["--help"], ["distance", "--help"])
    )
    seen = fresh(
        f"import sys\nfrom diffbisim.cli import app{calls}"
        "\nprint(*(name for name in ('numpy', 'matplotlib', 'scipy') if name in sys.modules), end='.')"
    )
    assert seen.splitlines()[-1] == "."
