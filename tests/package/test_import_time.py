"""Start-up: what is loaded, and how much processor time it takes in a fresh process.

Processor time, not wall time, and the median of several: a busy machine must not fail these.
"""

import subprocess
import sys
from statistics import median

import pytest

HEAVY = ("numba", "torch", "jax", "matplotlib", "scipy.optimize", "rich", "typer")

TWO_CHAINS = """
import diffbisim as db
X, Y = db.examples.random_chain(8, 0), db.examples.random_chain(8, 1)
"""


def fresh(code):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_after(code, names=HEAVY):
    return fresh(f"{code}\nimport sys\nprint(*(m for m in {names!r} if m in sys.modules))").split()


def processor_seconds(before, code, repeats=5):
    timed = f"{before}\nimport time\nt = time.process_time()\n{code}\nprint(time.process_time() - t)"
    return median(float(fresh(timed)) for _ in range(repeats))


def test_import_loads_nothing_heavy():
    assert loaded_after("import diffbisim") == []


def test_making_a_chain_loads_nothing_heavy():
    assert loaded_after(TWO_CHAINS) == []


def test_exact_distance_loads_no_figures_and_no_command_line():
    code = f"{TWO_CHAINS}\ndb.distance(X, Y)"
    assert set(loaded_after(code)) <= {"numba", "scipy.optimize"}


@pytest.mark.parametrize("arguments", [["--help"], ["distance", "--help"], ["--version"]])
def test_help_loads_neither_kernels_nor_figures(arguments):
    code = f"from diffbisim.cli import app\ntry:\n    app({arguments!r})\nexcept SystemExit:\n    print()"
    seen = fresh(
        f"{code}\nimport sys\nprint('numba' in sys.modules, 'matplotlib' in sys.modules, 'scipy' in sys.modules)"
    )
    assert seen.splitlines()[-1] == "False False False"


def test_import_takes_at_most_0_3_s_beyond_numpy():
    assert processor_seconds("import numpy", "import diffbisim") <= 0.3


def test_chain_is_ready_0_3_s_after_scipy_sparse():
    """The names are lazy: this is what the import would cost if it were not."""
    assert processor_seconds("import numpy, scipy.sparse", TWO_CHAINS) <= 0.3


def test_first_call_takes_at_most_1_s_with_compiled_kernels_cached():
    libraries = "import numba, numpy, scipy.optimize, scipy.sparse.linalg"
    fresh(f"{TWO_CHAINS}\ndb.distance(X, Y)")  # compiles, if nobody has
    assert processor_seconds(f"{libraries}\n{TWO_CHAINS}", "db.distance(X, Y)", repeats=3) <= 1.0
