"""The first call of every kind in a new process, with nothing on the disk to help it: no compilation, no cache.

python tests/first_calls.py      prints the seconds of every call beyond importing numpy and scipy
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHAINS = """
X = db.MarkovChain([[0.9, 0.1], [0.5, 0.5]], rewards=[0, 1])
Y = db.MarkovChain([[0.8, 0.2, 0.0], [0.3, 0.3, 0.4], [0.0, 0.6, 0.4]], rewards=[0, 1, 1])
"""
MODELS = """
M = db.MDP([[[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.1, 0.9]]], rewards=[[0, 1], [1, 0]])
"""

#: What is called first, by name.
CALLS = {
    "distance": CHAINS + "r = db.distance(X, Y); r.gradient, r.encoder, r.plan(0, 0)",
    "mdp": MODELS + "db.bisimulation(M)",
    "horizon": CHAINS + "db.distance(X, Y, horizon=5)",
    "average": CHAINS + "db.distance(X, Y, criterion='average')",
    "lump": CHAINS + "db.lump(Y)",
    "pairwise": CHAINS + "db.pairwise([X, Y, Y])",
    "sinkhorn": CHAINS + "db.distance(X, Y, solver='sinkhorn-policy', tol=1e-3)",
    "somcot": CHAINS + "from diffbisim.solvers import Somcot\ndb.distance(X, Y, solver=Somcot(1000, certify=False))",
    "compress": CHAINS + "db.compress(Y, n_states=2, discount=0.9, rng=0)",
}

LIBRARIES = "import numpy, scipy, scipy.sparse\n"

#: Prints the processor time of the process so far.
REPORT = "\nimport time\nprint(time.process_time())"


def seconds(python: str, code: str, home: Path) -> float:
    """Run code in a new process with an empty home; return the processor time that it took in all, start included."""
    environment = {key: value for key, value in os.environ.items() if "DIFFBISIM" not in key and "NUMBA" not in key}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", code + REPORT], capture_output=True, text=True, check=False, cwd=home, env=environment
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return float(done.stdout.splitlines()[-1])


def beyond_libraries(python: str, name: str) -> float:
    """Return the seconds of the first call of a kind beyond importing numpy and scipy; nothing may be left on disk."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        call = min(seconds(python, LIBRARIES + "import diffbisim as db\n" + CALLS[name], home) for _ in range(2))
        rest = min(seconds(python, LIBRARIES, home) for _ in range(2))
        assert not list(home.iterdir()), f"{name} has written {list(home.iterdir())}"
        return call - rest


if __name__ == "__main__":
    for kind in CALLS:
        print(f"{kind:10s} {beyond_libraries(sys.executable, kind):.2f} s")
