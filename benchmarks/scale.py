"""Scaling of the exact solver to hundreds of dense states and millions of sparse pairs. Ratios, measured in one run.

    python benchmarks/scale.py                       this version (some minutes; POT takes most of them)
    python benchmarks/scale.py ../before/src         compared with another version, given by its source folder
    python benchmarks/scale.py --dense 64 128 --sparse 300 1000

*Dense*: random chains, discount 0.95, gap 1e-8. The peer is policy iteration with POT's ``ot.emd``, one call per pair.
Its time is computed, not measured: the mean time of a sample of pairs, on the ground cost for the first sweep and on
the final table for the others, times the number of pairs and of sweeps. The sweeps are those of policy iteration with
optimal plans, from the cost as the first table, counted with our kernels; with more than 256 states, where counting
takes minutes, as many as ours. A call takes milliseconds and may be interrupted, so the least of three times counts.

*Sparse*: four successors, gap 1e-6. Reported are the time of an evaluation sweep relative to one copy of the bytes that
it reads and writes, the bytes per pair, and the gain from a second thread.

Times are processor times of all threads, which other programs affect least, and in brackets wall-clock times. Each case
of each version runs in a separate process, after a small case that compiles the kernels.
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

DISCOUNT = 0.95
SAMPLE = {512: 40}  # number of pairs that POT is timed on, if not 200


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, the processor time and the wall-clock time of a call."""
    clock, processor = time.perf_counter(), time.process_time()
    result = run()
    return result, time.process_time() - processor, time.perf_counter() - clock


def memory(kind: str) -> float:
    """Return the bytes of this process (Linux): VmRSS now, VmHWM at the peak."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(kind))
    return 1024.0 * int(line.split()[1])


def sweeps_of_policy_iteration(problem: Any) -> int:
    """Return the number of sweeps with optimal plans until the gap is 1e-8, starting from the cost."""
    from diffbisim.solvers.exact.pairs import begin, bellman, pair_chain

    transports, sweeps, γ = begin(problem, False, None, None), 0, problem.discount
    U = problem.cost.ravel() / problem.scale
    base = (1 - γ) * U
    while True:
        TU, _ = bellman(problem, transports, U, 1e-14)
        change, U, sweeps = np.ptp(TU - U), TU, sweeps + 1
        if γ / (1 - γ) * change <= 1e-8:
            return sweeps
        pair_chain(transports, γ).evaluate(base, U, max(0.03 * change, 1e-9 * (1 - γ)))


def dense_case(n: int, cost: str, seed: int) -> dict[str, float]:
    """Measure our time for one problem, and POT's time for a sample of its transports."""
    import ot

    import diffbisim as db
    from diffbisim.problems.base import Problem
    from diffbisim.problems.discounted import Discounted
    from diffbisim.solvers import Exact

    def problem(n: int) -> Problem:
        rng = np.random.default_rng([n, seed])
        X, Y = db.examples.random_chain(n, rng), db.examples.random_chain(n, rng)
        return Discounted.make(X, Y, "reward" if cost == "reward" else rng.random((n, n)), DISCOUNT)

    Exact().solve(problem(min(n, 66)))  # compiles; the width of indices changes at 64 states
    asked = problem(n)
    result, processor, clock = timed(lambda: Exact(tol=1e-8).solve(asked))
    P, Q, m = np.asarray(asked.x.transition), np.asarray(asked.y.transition), SAMPLE.get(n, 200)

    def sample(table: Any) -> float:
        table = np.ascontiguousarray(table)
        runs = [[timed(lambda k=k: ot.emd(P[k % n], Q[7 * k % n], table))[1] for k in range(m)] for _ in range(3)]
        return float(np.min(runs, axis=0).mean())

    sweeps = sweeps_of_policy_iteration(asked) if n <= 256 else result.work["improvements"]
    pot = n * n * (sample(asked.cost) + (sweeps - 1) * sample(result.values))
    return {
        "processor": processor, "clock": clock, "pot": pot, "pivots": result.work["pivots"] / n**2,
        "sweeps": result.work["improvements"], "peer": sweeps, "gap": (result.upper - result.lower) / asked.scale,
    }  # fmt: skip


def evaluation_sweep(coupling: Any, pairs: int) -> tuple[Callable[[], Any], int]:
    """Return one sweep of the evaluation, as this version does it, and the bytes that it reads and writes."""
    from diffbisim.solvers.exact import evaluation
    from diffbisim.solvers.exact import pairs as listing

    transports: Any = coupling.transports
    if getattr(transports, "narrow", False):
        transports.keep_single_plans()
        transports.basis = 0
        transports.solve(coupling.U, np.empty(pairs), 1e-14)
        spare, r = np.empty((2, pairs), np.float32), np.ones(pairs, np.float32)
        correction: Any = evaluation.TreeCorrection(transports, DISCOUNT, spare)
        plans = transports.single if transports.single.target.size else (*transports.trees[1:3], transports.single.flow)
        moved = sum(part.nbytes for part in plans) + 3 * r.nbytes
        if hasattr(correction, "_swept"):  # a version before the engine
            return lambda: correction._swept(DISCOUNT, r, spare[0], spare[1]), moved
        return lambda: correction._corrected(r, 1.0), moved  # constant residuals: one sweep suffices
    chain: Any = listing.pair_chain(transports, DISCOUNT)
    v, out, moved = np.ones(pairs), np.empty(pairs), sum(part.nbytes for part in chain.plans) + 16 * pairs
    if hasattr(chain, "apply"):
        return lambda: chain.apply(v, out), moved
    from diffbisim.solvers.krylov import product  # type: ignore[import-not-found,unused-ignore]

    system = chain.system()
    return lambda: product(system, v, out), moved


def sparse_case(n: int, threads: int) -> dict[str, float]:
    """Measure our time, memory, and the time of an evaluation sweep relative to a copy of its bytes."""
    import diffbisim as db
    from diffbisim.solvers import Exact

    solver = Exact(tol=1e-6, threads=threads)
    for size in (20, 300):  # with one thread and with several
        small = db.examples.random_sparse_chain(size, 4, rng=0)
        db.distance(small, small, solver=solver)
    X, Y = db.examples.random_sparse_chain(n, 4, rng=1), db.examples.random_sparse_chain(n, 4, rng=2)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    result, processor, clock = timed(lambda: db.distance(X, Y, discount=DISCOUNT, solver=solver))
    peak = memory("VmHWM")
    swept, moved = evaluation_sweep(result.coupling, n * n)
    source, target = np.ones(moved // 16), np.empty(moved // 16)
    np.copyto(target, source)
    swept()
    sweep = min(timed(swept)[1] for _ in range(5))
    copy = min(timed(lambda: np.copyto(target, source))[1] for _ in range(5))
    return {
        "processor": processor, "clock": clock, "bytes": (peak - before) / n**2, "products": result.work["sweeps"],
        "sweeps": result.work["improvements"], "pivots": result.work["pivots"] / n**2, "sweep": sweep, "copy": copy,
    }  # fmt: skip


def measured(source: Path, case: list[Any]) -> dict[str, float]:
    """Run one case with the version in a source folder, in a separate process."""
    paths = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)], env=environment, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def show_dense(sizes: list[int], seed: int, versions: dict[str, Path]) -> None:
    print(f"\nDense random chains, discount {DISCOUNT}, certified gap 1e-8, seed {seed}; POT by a sample of pairs")
    print("states  cost    version    seconds (clock)    POT/ours (clock)   pivots/pair  sweeps  POT's  its sample")
    for n in sizes:
        for cost in ("reward", "random"):
            for name, source in versions.items():
                row = measured(source, ["dense", n, cost, seed])
                print(
                    f"{n:6d}  {cost:7} {name:7} {row['processor']:10.2f} ({row['clock']:6.2f})"
                    f" {row['pot'] / row['processor']:10.1f}x ({row['pot'] / row['clock']:.1f}x)"
                    f" {row['pivots']:12.1f} {row['sweeps']:7.0f} {row['peer']:6.0f} {SAMPLE.get(n, 200):5d} pairs",
                    flush=True,
                )


def show_sparse(sizes: list[int], versions: dict[str, Path]) -> None:
    print(f"\nSparse random chains, 4 successors, discount {DISCOUNT}, certified gap 1e-6")
    print("   pairs  version  threads   µs/pair (clock)   bytes/pair  products  improvements  pivots/pair  sweep/copy")
    for n in sizes:
        for name, source in versions.items():
            rows = {threads: measured(source, ["sparse", n, threads]) for threads in (1, 2)}
            for threads, row in rows.items():
                print(
                    f"{n * n:8d}  {name:7} {threads:8d} {1e6 * row['processor'] / n**2:8.2f}"
                    f" ({1e6 * row['clock'] / n**2:5.2f}) {row['bytes']:12.0f} {row['products']:9.0f}"
                    f" {row['sweeps']:13.0f} {row['pivots']:12.2f} {row['sweep'] / row['copy']:11.1f}",
                    flush=True,
                )
            print(f"{'':10}{name:7} two threads: {rows[1]['clock'] / rows[2]['clock']:.2f}x one, by the clock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="the src folder of the other version")
    parser.add_argument("--dense", type=int, nargs="*", default=[64, 128, 256], help="numbers of states")
    parser.add_argument("--sparse", type=int, nargs="*", default=[300, 1000], help="numbers of states")
    parser.add_argument("--seed", type=int, default=7, help="of the dense chains")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        kind, *how = json.loads(given.case)
        print(json.dumps((dense_case if kind == "dense" else sparse_case)(*how)))
        return
    versions = {"before": given.before.resolve()} if given.before else {}
    versions["now"] = Path(__file__).resolve().parents[1] / "src"
    show_dense(given.dense, given.seed, versions)
    show_sparse(given.sparse, versions)


if __name__ == "__main__":
    main()
