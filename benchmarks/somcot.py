"""Speed and memory of SOMCOT's factorized iterations compared with a literal dense implementation, in one run.

    python benchmarks/somcot.py

The peer is the literal NumPy implementation of the tests, which stores the coupling as one array over x, y, x', y'.
Times are processor times of one thread. There are two phases. *Early*, the marginals are products with the
shared kernel. *Late*, from the iterates of a longer run, only the entries that matter are visited
(engine/somcot_marginals.hpp). The coupling concentrates with time, so later iterations are faster; those of the dense
peer always cost the same. Memory is the peak of a separate process; a dense coupling has n^4 numbers.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a second BLAS thread would mostly wait

import numpy as np

import diffbisim as db
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Somcot

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.dense_somcot import DenseSomcot

DISCOUNT = 0.9


def chains(n: int) -> Problem:
    rng = np.random.default_rng(n)
    X, Y = (db.examples.random_chain(n, rng) for _ in "xy")
    cost = rng.random((n, n))
    return Discounted.make(X, Y, cost / cost.max(), DISCOUNT)


def seconds_per_step(problem: Problem, solver: type[Somcot], options: dict, steps: int, warm=None) -> float:
    """Return the median time of three continuations, by ``steps`` each."""
    done, times = 0 if warm is None else warm.iterations, []
    for _ in range(3):
        began = time.process_time()
        solver(done + steps, certify=False, **options).solve(problem, warm=warm)
        times.append(time.process_time() - began)
    return float(np.median(times)) / steps


def dense_seconds_per_step(problem: Problem, steps: int) -> float:
    peer = DenseSomcot(problem.cost, DISCOUNT, (0, 0), 0.5, 0.02)
    rng = np.random.default_rng(0)
    times = []
    for _ in range(steps):
        x, y = (np.stack(c.sample_transitions(1, DISCOUNT, rng), axis=1) for c in (problem.x, problem.y))
        began = time.process_time()
        peer.step(x, y)
        times.append(time.process_time() - began)
    return float(np.median(times))


def speed() -> None:
    literal = {"memory": False, "anticipation": 0.0, "full": True, "eta": 0.5, "beta": 0.02}
    print(f"{'n':>4s} {'dense':>12s} {'early':>22s}   late, after so many iterations")
    for n, steps, marks in (
        (16, 1000, (5_000, 20_000)),
        (32, 200, (1_000, 2_000, 5_000, 20_000)),
        (64, 20, (1_200, 5_000)),
    ):
        problem = chains(n)
        Somcot(64, certify=False, **literal).solve(problem)  # compile
        dense = dense_seconds_per_step(problem, max(3, 2000 // n))
        early = seconds_per_step(problem, Somcot, literal, steps)
        line, run, total = f"{n:4d} {dense * 1e6:9.0f} µs {early * 1e6:9.0f} µs {dense / early:8.1f}x", None, 0.0
        for mark in marks:
            began = time.process_time()
            run = Somcot(mark, certify=False).solve(problem, warm=run)
            total += time.process_time() - began
            late = seconds_per_step(problem, Somcot, {}, max(steps // 2, 10), run)
            phase = "" if run.coupling.run.it.cold[0] else " (still matrix products)"
            line += f"   {mark}: {late * 1e6:.0f} µs {dense / late:.1f}x{phase}"
        print(f"{line}   mean of all: {dense * marks[-1] / total:.1f}x", flush=True)


def memory(n: int) -> None:
    out = subprocess.run([sys.executable, __file__, "--one", str(n)], capture_output=True, text=True, check=True)
    peak, steps, transitions = json.loads(out.stdout)
    print(f"{n} x {n}: {steps} iterations, {transitions} transitions of X: peak {peak / 1e6:.0f} MB "
          f"(a dense coupling: {n**4 * 8 / 1e9:.1f} GB)")  # fmt: skip


def one(n: int) -> None:
    steps = 200
    options = {"memory": False, "anticipation": 0.0, "full": True} if n <= 200 else {}
    result = Somcot(steps, certify=False, **options).solve(chains(n))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([peak, steps, result.coupling.run.x.to.size]))


if __name__ == "__main__":
    if "--one" in sys.argv:
        one(int(sys.argv[-1]))
    else:
        speed()
        memory(200)
