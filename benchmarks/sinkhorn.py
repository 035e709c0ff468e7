"""Speed and memory of the Sinkhorn solvers, compared with the same algorithm using POT's Sinkhorn, in one run.

    python benchmarks/sinkhorn.py               every table (about five minutes on two cores)
    python benchmarks/sinkhorn.py --quick       32 states only, no memory

The peer calls ``ot.sinkhorn`` for every pair, warm-started from its last potentials, with a batch of iterations at
every temperature. Temperatures, evaluation and certificate are the same as ours. The comparison favors the peer:

- only the calls of ``ot.sinkhorn`` count; evaluation and certificate are free;
- in every iteration it is timed with the fastest of POT's methods that returns finite plans ("sinkhorn",
  "sinkhorn_stabilized", "sinkhorn_log"), and with the best of three batch sizes;
- POT stops a pair early when its marginals are correct (in the 2-norm; ours is the 1-norm), but is credited with the
  progress of all iterations.

A full run would take too long, so the peer's iterations are *counted*: our kernels make the same plain iterations,
without over-relaxation and Newton steps, and at every temperature POT is timed on SAMPLE pairs with the same table and
potentials. Its time is the mean over the sample times the number of pairs. A peer that is MAX_SLOWDOWN times slower
than our slowest solver is stopped, and the row says "at least".

Memory is the peak of a separate process, everything included.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from itertools import count
from pathlib import Path

import numpy as np

import diffbisim as db
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact, SinkhornPolicy, SinkhornValue
from diffbisim.solvers.sinkhorn.solver import Annealing

DISCOUNT, SAMPLE, BATCHES, MAX_SLOWDOWN = 0.95, 8, (20, 40, 100), 200
METHODS = ("sinkhorn", "sinkhorn_stabilized", "sinkhorn_log")


def best_time(solver: SinkhornPolicy, problem: Problem, repeats: int = 3) -> float:
    """Return the shortest of several wall-clock times, which is the least disturbed one."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        solver.solve(problem)
        times.append(time.perf_counter() - began)
    return min(times)


class PotAnnealing(Annealing):
    """Our annealing with plain iterations; ``seconds`` is the time that POT would have taken for them."""

    seconds, batch = 0.0, 40

    def improve(self, iteration: int) -> None:
        target = 0.1 / (self.beta * self.spread)
        self.plans.set_kernel(self.U, self.beta)
        self.seconds += self.pot_seconds(np.random.default_rng(iteration), target)
        for _ in range(self.batch // 5):  # too few at a time for over-relaxation to start
            self.plans.scale(5, target)

    def pot_seconds(self, rng: np.random.Generator, target: float) -> float:
        """Estimate the time of ``ot.sinkhorn`` for all pairs from a sample, with its fastest method that works here."""
        return min(self.method_seconds(name, rng.choice(self.plans.size, SAMPLE), target) for name in METHODS)

    def method_seconds(self, method: str, sample: np.ndarray, target: float) -> float:
        import ot

        plans, problem = self.plans, self.problem
        (n_x, n_y), W = plans.shape, plans.W.reshape(plans.shape)
        F, G = plans.F.reshape(-1, n_x), plans.G.reshape(-1, n_y)
        middle, elapsed = (W.max() + W.min()) / 2, 0.0  # subtracted, so that "sinkhorn" works at half the temperature
        for k in sample:
            p, q = problem.x.transition[k // n_y], problem.y.transition[k % n_y]
            # POT's scalings contain the marginals; they are balanced so that neither overflows
            u, w = np.log(p) + self.beta * (F[k] - F[k].mean()), np.log(q) + self.beta * (G[k] + F[k].mean() - middle)
            began = time.perf_counter()
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                plan = ot.sinkhorn(p, q, W - middle, 1 / self.beta, method, self.batch, target, warmstart=(u, w))
            elapsed += time.perf_counter() - began
            if not (np.isfinite(plan).all() and abs(plan.sum() - 1) < 0.5):
                return np.inf
        return elapsed / sample.size * plans.size


def peer(problem: Problem, gap: float, batch: int, limit: float) -> tuple[float, int, bool]:
    """Return seconds and outer iterations of the peer, and whether it reached the gap before the limit."""
    run = PotAnnealing(problem, SinkhornPolicy(tol=gap))
    run.batch = batch
    for iteration in count(1):
        run.improve(iteration)
        reached = run.check(iteration).gap
        if reached <= gap or run.seconds > limit:
            return run.seconds, iteration, reached <= gap
        run.evaluate()
    raise AssertionError("count never ends")


def ratios(sizes: tuple[int, ...]) -> None:
    """Report the ratio of the peer's time to ours for dense random chains, at equal certified gap."""
    import ot  # noqa: F401  (the import takes seconds that should not be counted)

    print(f"\nDense random chains, discount {DISCOUNT}; ratios: POT in the loop / ours, at equal certified gap")
    print(
        "states  cost     gap     policy 1 thread    value    exact   POT: batch  iterations  seconds",
        flush=True,
    )
    rng = np.random.default_rng(0)
    for n in sizes:
        X, Y = db.examples.random_chain(n, rng), db.examples.random_chain(n, rng)
        for name, cost in (("reward", "reward"), ("random", rng.random((n, n)))):
            problem = Discounted.make(X, Y, cost, DISCOUNT)
            for gap in (1e-2, 1e-3):
                row(n, name, problem, gap)


def row(n: int, name: str, problem: Problem, gap: float) -> None:
    solvers = (SinkhornPolicy(tol=gap), SinkhornPolicy(tol=gap, threads=1), SinkhornValue(tol=gap), Exact(tol=gap))
    times = [best_time(solver, problem) for solver in solvers]
    seconds, iterations, batch, done = MAX_SLOWDOWN * max(times), 0, 0, False
    for size in BATCHES:
        peer_seconds, outer, came = peer(problem, gap, size, seconds)
        if came and peer_seconds < seconds:
            seconds, iterations, batch, done = peer_seconds, outer, size, True
    numbers = "".join(f"{seconds / t:8.0f}x" for t in times)
    note = f"{batch:12d} {iterations:11d} {seconds:8.1f}" if done else f"  at least: not there after {seconds:.0f} s"
    print(f"{n:6d}  {name:8s} {gap:.0e} {numbers} {note}", flush=True)


def memory(n: int) -> None:
    """Return the peak memory of a process that solves a dense n x n problem."""
    print(f"\n{n} x {n} dense, discount {DISCOUNT}, certified gap 1e-2: peak of the whole process", flush=True)
    for name in ("policy", "value"):
        command = [sys.executable, __file__, "--one", str(n), "--solver", name]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{name:8s} {result['peak'] / 1e6:6.0f} MB, {result['base'] / 1e6:.0f} MB before the solve; all plans"
            f" would take {8 * n**4 / 1e9:.1f} GB; gap {result['gap']:.1e}, {result['seconds']:.0f} s",
            flush=True,
        )


def one(n: int, name: str) -> dict[str, float]:
    """Run in a separate process; memory as reported by Linux."""
    solver = {"policy": SinkhornPolicy, "value": SinkhornValue}[name](tol=1e-2)
    small = db.examples.random_chain(8, rng=0)
    db.distance(small, small, solver=solver)  # compile
    X, Y = db.examples.random_chain(n, rng=1), db.examples.random_chain(n, rng=2)
    base, began = _status("VmRSS"), time.perf_counter()
    result = db.distance(X, Y, discount=DISCOUNT, solver=solver)
    seconds = time.perf_counter() - began
    return {"base": base, "peak": _status("VmHWM"), "gap": result.gap / result.problem.scale, "seconds": seconds}


def _status(kind: str) -> float:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(kind))
    return 1024.0 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--solver", default="policy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.solver)))
        return
    ratios((32,) if options.quick else (32, 64))
    if not options.quick:
        memory(200)


if __name__ == "__main__":
    main()
