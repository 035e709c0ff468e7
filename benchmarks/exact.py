"""Speed of the exact solver relative to the obvious alternatives, all measured in one run.

    python benchmarks/exact.py               every table (about ten minutes on two cores)
    python benchmarks/exact.py --quick       the dense ratios up to 32 states and the sparse growth up to 1 000 states

The peers are policy iteration and value iteration with one call of POT's ``ot.emd`` per pair, on the same chains and to
the same gap. Policy iteration uses the same evaluation (BiCGStab to the same residual) and the same stopping rule as
ours. Value iteration stops by the textbook rule, γ/(1-γ) ‖TU - U‖ ≤ gap. All its sweeps cost the same, so its time is
computed as the number of sweeps (counted with our kernel) times the time of a POT sweep in this run, which saves an
hour.

Sparse chains have no peer. For them, the growth with the number of pairs, the memory per pair and the gain from a
second thread are reported. Each size runs in a separate process, because the peak memory of a process never decreases.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import sparse

import diffbisim as db
from diffbisim.common.arrays import Array
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact

DISCOUNT, GAP = 0.95, 1e-8


def best_time(run: Callable[[], object], repeats: int) -> float:
    """Return the shortest of several wall-clock times, which is the least disturbed one."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def pot_sweep(problem: Problem, U: Array) -> tuple[Array, sparse.csr_array]:
    """Return T U and the plans, with one ``ot.emd`` per pair."""
    import ot

    (n_x, n_y), γ = problem.shape, problem.discount
    P_x, P_y, table = problem.x.transition, problem.y.transition, U.reshape(problem.shape)
    data, cols, ptr = [], [], [0]
    for x in range(n_x):
        for y in range(n_y):
            plan = ot.emd(P_x[x], P_y[y], table)
            i, j = np.nonzero(plan)
            data.append(plan[i, j])
            cols.append(i * n_y + j)
            ptr.append(ptr[-1] + i.size)
    plans = sparse.csr_array((np.concatenate(data), np.concatenate(cols), ptr), shape=(n_x * n_y,) * 2)
    return (1 - γ) * problem.cost.ravel() + γ * (plans @ U), plans


def value_iteration_sweeps(problem: Problem) -> int:
    """Return the number of sweeps U <- T U after which γ/(1-γ) ‖TU - U‖ is below GAP."""
    from diffbisim.solvers.exact.pairs import begin, bellman

    transports, sweeps = begin(problem, reachable=False, threads=None, known=None), 0
    U, γ = np.zeros(problem.cost.size), problem.discount
    while True:
        TU, _ = bellman(problem, transports, U, 1e-14)
        sweeps += 1
        change, U = TU - U, TU
        if γ / (1 - γ) * float(np.abs(change).max()) <= GAP:
            return sweeps


def pot_policy_iteration(problem: Problem) -> tuple[float, float]:
    """Improve with POT and evaluate with our BiCGStab; return the value and the time of one sweep."""
    from diffbisim.solvers.exact.evaluation import PairChain, Plans

    γ, U, b = problem.discount, problem.cost.ravel().copy(), (1 - problem.discount) * problem.cost.ravel()
    times = []
    while True:
        began = time.perf_counter()
        TU, plans = pot_sweep(problem, U)
        times.append(time.perf_counter() - began)
        low, high = (TU - U).min(), (TU - U).max()
        U = TU
        if γ / (1 - γ) * (high - low) <= GAP * problem.scale:
            return float(U[0] + γ / (1 - γ) * (low + high) / 2), min(times)

        rows = Plans(plans.indptr.astype(np.int64), plans.indices, plans.data, np.empty(0, np.int64))
        target = max(0.03 * (high - low), 0.1 * GAP * problem.scale * (1 - γ))
        PairChain(rows, U.size, γ).solve(b, U, target, 150)


def dense(sizes: tuple[int, ...]) -> None:
    """Report ratios to POT for random dense chains."""
    print(f"\nDense random chains, discount {DISCOUNT}, certified gap {GAP:g} (ratios: peer / ours, same run)")
    print("states  cost      PI with POT  VI with POT   gradient/distance   pivots per pair   |difference|")
    import ot  # noqa: F401  (the import takes seconds that should not be counted)

    rng = np.random.default_rng(0)
    for n in sizes:
        X, Y = db.examples.random_chain(n, rng), db.examples.random_chain(n, rng)
        for name, cost in (("reward", "reward"), ("random", rng.random((n, n)))):
            problem = Discounted.make(X, Y, cost, DISCOUNT)
            result = Exact(tol=GAP).solve(problem)
            ours = best_time(lambda p=problem: Exact(tol=GAP).solve(p), 5)
            slope = min(_gradient_time(problem) for _ in range(3))
            began = time.perf_counter()
            value, sweep = pot_policy_iteration(problem)
            by_policy = time.perf_counter() - began
            by_value = sweep * value_iteration_sweeps(problem)
            print(
                f"{n:6d}  {name:8s} {by_policy / ours:10.1f}x {by_value / ours:11.0f}x {slope / ours:17.2f}"
                f" {result.work['pivots'] / n**2:19.1f} {abs(value - result.value):16.1e}",
                flush=True,
            )


def _gradient_time(problem: Problem) -> float:
    result = Exact(tol=GAP).solve(problem)  # a new result each time, because the gradient is cached
    began = time.perf_counter()
    _ = result.gradient
    return time.perf_counter() - began


def sparse_growth(sizes: tuple[int, ...]) -> None:
    """Report growth, memory and threads for random sparse chains."""
    print(f"\nSparse random chains, 4 successors, discount {DISCOUNT}, certified gap 1e-6")
    print("   states       pairs  bytes/pair  2 threads/1  gradient/distance  sweeps  pivots/pair  exponent")
    last: dict[str, float] = {}
    for n in sizes:
        row = json.loads(
            subprocess.run(
                [sys.executable, __file__, "--one", str(n)], check=True, capture_output=True, text=True
            ).stdout
        )
        exponent = math.log(row["time"] / last["time"]) / math.log(row["pairs"] / last["pairs"]) if last else math.nan
        print(
            f"{n:9d} {row['pairs']:11.0f} {row['bytes']:11.0f} {row['one'] / row['time']:11.2f}x"
            f" {row['gradient'] / row['time']:18.2f} {row['sweeps']:7.0f} {row['pivots']:12.2f} {exponent:9.2f}",
            flush=True,
        )
        first = last if last else row
        last = row
        if n == sizes[0]:
            start = first
    total = math.log(last["time"] / start["time"]) / math.log(last["pairs"] / start["pairs"])
    print(f"time grows like pairs^{total:.2f} from {sizes[0]}² to {sizes[-1]}²")


def memory(kind: str, forget_peak: bool = False) -> float:
    """Return the bytes of this process (Linux): VmRSS now, VmHWM at the peak; writing 5 to clear_refs resets it."""
    if forget_peak:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(kind))
    return 1024.0 * int(line.split()[1])


def one_sparse(n: int) -> dict[str, float]:
    """Measure one size in a separate process; memory first, before anything else has been allocated."""
    solver = Exact(tol=1e-6)
    for size in (20, 300):  # compiles, or loads, the kernels for one thread and for several
        small = db.examples.random_sparse_chain(size, 4, rng=0)
        _ = db.distance(small, small, solver=solver).gradient
    X, Y = db.examples.random_sparse_chain(n, 4, rng=1), db.examples.random_sparse_chain(n, 4, rng=2)
    before = memory("VmRSS", forget_peak=True)
    began = time.perf_counter()
    result = db.distance(X, Y, discount=DISCOUNT, solver=solver)
    elapsed = time.perf_counter() - began
    peak = memory("VmHWM")
    began = time.perf_counter()
    _ = result.gradient
    gradient = time.perf_counter() - began
    work = result.work
    del result
    began = time.perf_counter()
    db.distance(X, Y, discount=DISCOUNT, solver=Exact(tol=1e-6, threads=1))
    one = time.perf_counter() - began
    return {
        "pairs": n * n, "time": elapsed, "one": one, "gradient": gradient, "bytes": (peak - before) / n**2,
        "sweeps": work["sweeps"], "pivots": work["pivots"] / n**2,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_sparse(options.one)))
        return
    dense((16, 32) if options.quick else (16, 32, 64))
    sparse_growth((300, 1000) if options.quick else (300, 1000, 3000))


if __name__ == "__main__":
    main()
