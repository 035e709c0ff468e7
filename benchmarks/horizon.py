"""Finite horizons compared with pnot 1.0 (nested optimal transport, C++) and with a closed form, in one run.

    python -m venv other && other/bin/pip install pnot==1.0.0
    python benchmarks/horizon.py --pnot other/bin/python      without --pnot: only the parts without a peer

The problem is pnot's own demonstration (notebooks/demo.ipynb): two Gaussian walks of three steps, 20,000 paths each,
with seed 5, grid 0.1 and ``markovian=True``. The distance of the two distributions is 3, so errors are known. Both get
the paths and one thread and are timed until they return the distance; the shorter of two times counts. Lines:

    same cells      TimedChain.from_paths(width=0.1), with the midpoint of a cell instead of its mean: the adapted
                    empirical measure that pnot solves. The two distances must agree up to rounding, and the ratio
                    compares the solvers
    default cells   TimedChain.from_paths(paths); its rule was chosen on these distributions, with the answer known
    pnot, grid 0.3  the grid with the least error among 0.2, 0.3, 0.4 and 0.5: the peer at its best, also chosen with
                    the answer known

Richardson: AR(1) paths of four steps on grids of 31 and 61 points, compared with the closed form of Gunasingam & Wong.
"""

import argparse
import json
import subprocess
import time

import numpy as np

import diffbisim as db
from diffbisim.solvers import Exact

L = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
M = np.array([[1, 0, 0], [2, 1, 0], [2, 1, 2]])
N_PATHS, REPEATS = 20_000, 2
WEIGHTS = np.ones(4)

PEER = """
import json, sys, time
import numpy as np
from pnot import nested_ot
from pnot.utils import matrixL2paths

found = []
for seed, grid in json.loads(sys.argv[1]):
    X, _ = matrixL2paths(np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]]), 20_000, seed=seed)
    Y, _ = matrixL2paths(np.array([[1, 0, 0], [2, 1, 0], [2, 1, 2]]), 20_000, seed=seed)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        value = nested_ot(X, Y, grid, markovian=True, num_threads=1)
        times.append(time.perf_counter() - began)
    found.append((value, min(times)))
print(json.dumps(found))
"""


def demo_paths(matrix: np.ndarray, seed: int) -> np.ndarray:
    """Return the paths of pnot's demonstration, (20,000, 4), from numpy's legacy generator."""
    noise = np.random.RandomState(seed).normal(size=[3, N_PATHS])
    return np.insert(matrix @ noise, 0, 0.0, axis=0).T


def ours(seed: int, width: float | None) -> tuple[float, float]:
    """Return the distance and the shortest of several times, from paths to distance, on one thread."""
    X, Y = demo_paths(L, seed), demo_paths(M, seed)
    times, value = [], 0.0
    for _ in range(REPEATS):
        began = time.perf_counter()
        chains = [db.TimedChain.from_paths(paths, width=width) for paths in (X, Y)]
        cost = "squared" if width is None else middles(*chains, width)
        value = db.distance(*chains, cost=cost, weights=WEIGHTS, solver=Exact(threads=1)).value
        times.append(time.perf_counter() - began)
    return value, min(times)


def middles(X: db.TimedChain, Y: db.TimedChain, width: float) -> list[np.ndarray]:
    """Return squared differences of the midpoints of the cells that contain the centers."""
    x, y = ([np.floor(r / width + 0.5) * width for r in chain.rewards] for chain in (X, Y))
    return [np.subtract.outer(a, b) ** 2 for a, b in zip(x, y, strict=True)]


def against_pnot(python: str, seeds: tuple[int, ...]) -> None:
    """Run the demonstration; its original seed is 5."""
    exact = db.examples.gaussian_distance(L @ L.T, M @ M.T)
    questions = [(seed, grid) for seed in seeds for grid in (0.1, 0.3)]
    output = subprocess.run([python, "-c", PEER, json.dumps(questions)], capture_output=True, text=True, check=True)
    peer = dict(zip(questions, json.loads(output.stdout), strict=True))
    print(f"\npnot's demonstration, 3 steps, {N_PATHS:,} paths, one thread; the laws are {exact:g} apart")
    print("seed  who                    value     error   its time / pnot's   |difference to pnot|")
    for seed in seeds:
        value, base = peer[seed, 0.1]
        best, seconds = peer[seed, 0.3]
        lines = [("pnot, grid 0.1 (demo)", value, base), ("pnot, grid 0.3", best, seconds)]
        lines += [("same cells", *ours(seed, 0.1)), ("default cells", *ours(seed, None))]
        for who, number, spent in lines:
            apart = f"{abs(number - value):.0e}" if who == "same cells" else ""
            print(f"{seed:4d}  {who:21s} {number:8.5f} {abs(number - exact):9.5f} {spent / base:14.4f} {apart:>22s}")


def richardson() -> None:
    """Compare AR(1) paths on grids with the closed form."""
    e, T = db.examples, 4
    exact = e.gaussian_distance(e.autoregression_covariance(0.8, 1.0, T), e.autoregression_covariance(0.5, 0.7, T))
    found = []
    for n in (31, 61):
        X, Y = e.autoregression(0.8, 1.0, T, n), e.autoregression(0.5, 0.7, T, n)
        found.append(db.distance(X, Y, cost="squared", weights=np.ones(T + 1)).value)
    value = (4 * found[1] - found[0]) / 3
    print(f"\nAR(1), T = {T}: closed form {exact:.5f}; grids of 31 and 61 points {found[0]:.5f}, {found[1]:.5f}")
    print(f"Richardson {value:.5f}, off by {abs(value - exact):.1e} (asked for: 1e-3)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pnot", help="a Python that has pnot 1.0.0 installed")
    arguments = parser.parse_args()
    richardson()
    if arguments.pnot:
        against_pnot(arguments.pnot, (5, 0))
