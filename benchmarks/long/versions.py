"""Speed of this version compared with another one, measured in one run by processor time.

    git worktree add ../before <commit>
    python benchmarks/long/versions.py ../before/src              every line (some minutes on two cores)
    python benchmarks/long/versions.py ../before/src --only dense
    python benchmarks/long/versions.py ../before/src --python-before ../before/.venv/bin/python

Each version runs in a separate process that stays alive, so that nothing is loaded during a case. The versions take
turns, case by case and round by round, and the fastest round of each counts. A ratio above one means that this version
is faster. Beside it stand the certified gaps of the last answers, because a faster answer may not be a worse one. The
exit code is 1 if a line is below ``--least``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Case = Callable[[], Callable[[], object]]


def dense(n: int, seed: int = 0, **options: Any) -> Any:
    import diffbisim as db

    rng = np.random.default_rng([n, seed])
    return db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n), **options)


def sparse(n: int, successors: int, seed: int = 0) -> Any:
    import scipy.sparse as sp

    import diffbisim as db

    rng = np.random.default_rng([n, seed])
    columns = np.array([rng.choice(n, successors, replace=False) for _ in range(n)])
    indptr = np.arange(0, n * successors + 1, successors)
    P = sp.csr_array((rng.dirichlet(np.ones(successors), n).ravel(), columns.ravel(), indptr), shape=(n, n))
    return db.MarkovChain(P, rewards=rng.random(n))


def cold(X: Any, Y: Any, times: int = 1, **how: Any) -> Callable[[], object]:
    import diffbisim as db

    return lambda: [db.distance(X, Y, **how) for _ in range(times)]


def warm(n: int, times: int) -> Callable[[], object]:
    """Solve after a small change of the kernel, as in a step of a fit."""
    import diffbisim as db

    X, Y, other = dense(n), dense(n, 1), dense(n, 2)
    moved = db.MarkovChain(0.99 * Y.transition + 0.01 * other.transition, rewards=Y.rewards)
    before = db.distance(X, Y)
    return lambda: [db.distance(X, moved, warm=before) for _ in range(times)]


def gradient(n: int, times: int) -> Callable[[], object]:
    import diffbisim as db

    X, Y = dense(n), dense(n, 1)
    return lambda: [db.distance(X, Y, tol=1e-3).gradient for _ in range(times)]


def sparse_gradient(n: int) -> Callable[[], object]:
    """Compute gradients of solved distances: what they cost beside the distance."""
    import diffbisim as db

    result = db.distance(sparse(n, 4), sparse(n, 4, 1), tol=1e-6)

    def run() -> object:
        result.__dict__.pop("gradient", None)
        result.__dict__.pop("occupancy", None)
        return result.gradient

    return run


def model(n: int, actions: int = 3, seed: int = 0) -> Any:
    import diffbisim as db

    rng = np.random.default_rng([n, actions, seed])
    return db.MDP(rng.dirichlet(np.ones(n), (actions, n)), rewards=rng.random((n, actions)))


def games(n: int, actions: str, **how: Any) -> Callable[[], object]:
    import diffbisim as db

    M, N = model(n), model(n, seed=1)
    return lambda: [db.distance(M, N, discount=0.9, actions=actions, **how)]


def bisimulation(n: int) -> Callable[[], object]:
    import diffbisim as db

    M = model(n)
    return lambda: [db.bisimulation(M, discount=0.9)]


def pairwise(chains: int) -> Callable[[], object]:
    import diffbisim as db

    known = [dense(5, seed) for seed in range(chains)]
    return lambda: db.pairwise(known)


def lumping(n: int) -> Callable[[], object]:
    import diffbisim as db

    X = db.MarkovChain(sparse(n, 4).transition, rewards=np.arange(n) % 2)
    return lambda: db.lump(X)


def entropic(n: int) -> Callable[[], object]:
    from diffbisim.solvers import SinkhornPolicy

    return cold(dense(n), dense(n, 1), solver=SinkhornPolicy(epsilon=0.1))


def somcot(n: int, steps: int) -> Callable[[], object]:
    from diffbisim.solvers import Somcot

    return cold(dense(n), dense(n, 1), solver=Somcot(steps, certify=False))


def sinkhorn(n: int, name: str, tol: float) -> Callable[[], object]:
    return cold(dense(n), dense(n, 1), solver=name, tol=tol)


CASES: dict[str, Case] = {
    "2 x 3": lambda: cold(dense(2), dense(3), 500),
    "dense 8, cold": lambda: cold(dense(8), dense(8, 1), 100),
    "dense 16, cold": lambda: cold(dense(16), dense(16, 1), 20),
    "dense 32, cold": lambda: cold(dense(32), dense(32, 1), 3),
    "dense 64, cold": lambda: cold(dense(64), dense(64, 1)),
    "dense 128, cold": lambda: cold(dense(128), dense(128, 1)),
    "dense 16, warm": lambda: warm(16, 40),
    "dense 64, warm": lambda: warm(64, 3),
    "dense 16, gradient": lambda: gradient(16, 20),
    "dense 64, gradient": lambda: gradient(64, 1),
    "sparse 300, 4 successors": lambda: cold(sparse(300, 4), sparse(300, 4, 1), tol=1e-6),
    "sparse 1000, 4 successors": lambda: cold(sparse(1000, 4), sparse(1000, 4, 1), tol=1e-6),
    "sparse 300, gradient": lambda: sparse_gradient(300),
    "sparse 1000, gradient": lambda: sparse_gradient(1000),
    "average 20": lambda: cold(dense(20), dense(20, 1), criterion="average"),
    "average, sparse 100": lambda: cold(sparse(100, 4), sparse(100, 4, 1), criterion="average"),
    "horizon 20, 20 steps": lambda: cold(dense(20), dense(20, 1), horizon=20),
    "games 15, matched": lambda: games(15, "matched"),
    "games 15, lax": lambda: games(15, "lax"),
    "games 15, directed": lambda: games(15, "directed"),
    "bisimulation 25": lambda: bisimulation(25),
    "pairwise, 150 chains of 5 states": lambda: pairwise(150),
    "lumping 20,000": lambda: lumping(20_000),
    "linear program 10": lambda: cold(dense(10), dense(10, 1), 3, solver="lp"),
    "sinkhorn-policy 32, 1e-2": lambda: sinkhorn(32, "sinkhorn-policy", 1e-2),
    "sinkhorn-policy 32, 1e-3": lambda: sinkhorn(32, "sinkhorn-policy", 1e-3),
    "sinkhorn-value 32, 1e-2": lambda: sinkhorn(32, "sinkhorn-value", 1e-2),
    "entropic 32": lambda: entropic(32),
    "somcot 16, first 20,000 steps": lambda: somcot(16, 20_000),
    "somcot 32, first 5,000 steps": lambda: somcot(32, 5_000),
    "somcot 16, 200,000 steps": lambda: somcot(16, 200_000),
}


def serve() -> None:
    """Run cases of one version: read their names from standard input, and print their seconds."""
    made: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        name = json.loads(line)
        if name not in made:
            made[name] = CASES[name]()
            made[name]()  # compiles
        began = time.process_time()
        answer = made[name]()
        seconds = time.process_time() - began
        last = answer[-1] if isinstance(answer, list) else answer
        print(json.dumps([seconds, float(getattr(last, "gap", np.nan))]), flush=True)


class Version:
    """The process that runs one version."""

    def __init__(self, source: Path, python: str = sys.executable) -> None:
        paths = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [python, __file__, "--serve", str(source)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def run(self, case: str) -> tuple[float, float]:
        """Return the seconds of processor time of a case, and the certified gap of its last answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        seconds, gap = json.loads(self.process.stdout.readline())
        return seconds, gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the src folder of the other version")
    parser.add_argument("--python-before", default=sys.executable, help="its Python, if that is another one")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.95)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    before = Version(given.before.resolve(), given.python_before)
    now = Version(Path(__file__).resolve().parents[2] / "src")
    slower = []
    print(f"{'case':34}{'before':>12}{'now':>12}{'ratio':>8}{'gap before':>12}{'now':>9}")
    for case in (name for name in CASES if given.only in name):
        runs = [(before.run(case), now.run(case)) for _ in range(given.rounds)]
        (old, gap_before), (new, gap) = (min(of_version) for of_version in zip(*runs, strict=True))
        print(
            f"{case:34}{1e3 * old:9.1f} ms{1e3 * new:9.1f} ms{old / new:8.2f}{gap_before:12.1e}{gap:9.1e}", flush=True
        )
        if old / new < given.least:
            slower.append(case)
    if slower:
        sys.exit(f"below {given.least}: {', '.join(slower)}")


if __name__ == "__main__":
    main()
