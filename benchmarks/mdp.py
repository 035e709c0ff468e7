"""Speed of the metrics of MDPs with actions relative to the obvious alternative, all measured in one run.

    python benchmarks/mdp.py                          every table (about two minutes on two cores)
    python benchmarks/mdp.py --states 300             the large MDP with fewer states
    python benchmarks/mdp.py --only-large --seed 5    only a large MDP, with another seed

The peer is the method of google-research's ``rl_metrics_aaai2021``: value iteration from zero with one ``ot.emd2`` per
pair of states and action, for both orders of a pair. To reach the same certified gap, it stops when
γ/(1-γ) ‖TU - U‖ ≤ gap. All its sweeps cost the same, so its time is the number of sweeps (counted with our kernel)
times the time of one (from a sample of its calls in this run); running it in full would take hours. Ours starts from
scratch with default options.

The large MDP has no peer. Its time is compared with that of a chain with as many states and successors, and its memory
is given per pair of states and action. Each runs in its own process, because peak memory never falls. A smaller problem
is solved first, so that no compilation is timed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import diffbisim as db
from diffbisim.problems.game import Game
from diffbisim.solvers import Exact

GAP = 1e-6
SAMPLE = 300  # calls of the peer that are timed
WARM_UP = 260  # states of a first problem: enough for the kernels that only large problems use

Array = Any


def garnet(n: int, n_actions: int, successors: int, seed: int = 0) -> db.MDP:
    """Return a random MDP with a given number of successors per action, as sparse matrices."""
    rng = np.random.default_rng([seed, n])
    kernels = []
    for _ in range(n_actions):
        targets = np.concatenate([rng.choice(n, successors, replace=False) for _ in range(n)])
        rows, masses = np.repeat(np.arange(n), successors), rng.dirichlet(np.ones(successors), n).ravel()
        kernels.append(sparse.csr_array((masses, (rows, targets)), shape=(n, n)))
    return db.MDP(kernels, rewards=rng.random((n, n_actions)))


def dense(n: int, n_actions: int, seed: int = 0) -> db.MDP:
    rng = np.random.default_rng([seed, n])
    return db.MDP(rng.dirichlet(np.ones(n), (n_actions, n)), rewards=rng.random((n, n_actions)))


def grid(side: int, slip: float) -> db.MDP:
    """Return a grid world with four moves, which slip to a random one, and a reward in the last cell."""
    cells = [(i, j) for i in range(side) for j in range(side)]
    effects = np.zeros((4, side**2, side**2))
    for a, (di, dj) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
        for s, (i, j) in enumerate(cells):
            to = (i + di, j + dj)
            effects[a, s, cells.index(to) if to in cells else s] = 1.0
    kernels = (1 - slip) * effects + slip * effects.mean(axis=0)
    return db.MDP(kernels, rewards=np.eye(side**2)[-1])


def best_time(run: Callable[[], object], repeats: int = 9) -> float:
    """Return the shortest of several wall-clock times, which is the least disturbed one."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def value_iteration_sweeps(problem: Game) -> int:
    """Return the number of sweeps U <- T U from zero after which γ/(1-γ) ‖TU - U‖ is below the gap."""
    from diffbisim.solvers.exact.games import StrategyIteration
    from diffbisim.solvers.exact.transports import Basis

    run, discount, sweeps = StrategyIteration(problem, Exact()), problem.discount, 0
    run.u[:], run.price = 0.0, 1e-12
    while True:
        run.U = run.u[run.pairs.numbers]
        run._sweep()
        run.transports.basis = Basis.OTHER  # solve all transports every time
        sweeps += 1
        change = float(np.abs(run.TU - run.u[:-1]).max())
        run.u[:-1] = run.TU
        if discount / (1 - discount) * change <= GAP:
            return sweeps


def peer_sweep(problem: Game, U: Array) -> float:
    """Estimate the time of one sweep of the peer from a sample of its calls."""
    import ot

    rng = np.random.default_rng(0)
    P, Q = (
        np.array([k.toarray() if sparse.issparse(k) else k for k in mdp.transition]) for mdp in (problem.x, problem.y)
    )
    drawn = [(rng.integers(U.shape[0]), rng.integers(U.shape[1]), *rng.choice(problem.choices)) for _ in range(SAMPLE)]

    def sample() -> None:
        for s, t, a, b in drawn:
            ot.emd2(P[a, s], Q[b, t], U)

    return best_time(sample, 3) / SAMPLE * problem.cost.size


def against_the_peer() -> None:
    print(f"Value iteration with ot.emd2 / ours, certified gap {GAP:g} of the largest cost")
    print("MDP                      discount  metric    ratio   its sweeps  ours: rounds, transports in full sweeps")
    import ot  # noqa: F401  (the import takes seconds that should not be counted)

    solver, big = Exact(tol=GAP), garnet(60, 4, 4)
    cases = [
        ("dense, 30 states × 4", dense(30, 4), dense(30, 4)),
        ("two of these", dense(30, 4), dense(30, 4, seed=1)),
        ("garnet, 60 × 4, 4 succ.", big, big),
    ]
    for name, M, N in cases:
        for discount in (0.9, 0.99):
            for actions in ("matched", "lax"):
                problem = Game.make(M, N, "reward", discount, actions)
                result = solver.solve(problem)
                ours = best_time(lambda p=problem: solver.solve(p))
                sweeps = value_iteration_sweeps(problem)
                peer = sweeps * peer_sweep(problem, np.ascontiguousarray(result.values))
                work = result.work
                full = work["transports"] / (work["pairs"] * work["choices"])
                print(
                    f"{name:24s} {discount:8.2f}  {actions:8s} {peer / ours:7.0f}x {sweeps:9d} {result.iterations:13d} "
                    f"{full:8.2f}",
                    flush=True,
                )


def lazy_maximum() -> None:
    print("\nTransports solved, in full sweeps over pairs and actions (gap 1e-8)")
    print("MDP                        discount  matched    lax")
    cases = {
        "dense, 20 states × 8": dense(20, 8),
        "garnet, 40 × 8, 3 succ.": garnet(40, 8, 3),
        "grid 6 × 6, slip 0.1": grid(6, 0.1),
        "grid 6 × 6, no slip": grid(6, 0.0),
    }
    for name, mdp in cases.items():
        for discount in (0.9, 0.99):
            row = []
            for actions in ("matched", "lax"):
                work = db.bisimulation(mdp, discount, actions).work
                row.append(work["transports"] / (work["pairs"] * work["choices"]))
            print(f"{name:26s} {discount:8.2f} {row[0]:8.2f} {row[1]:8.2f}", flush=True)


def memory(field: str) -> float:
    """Return the bytes of this process (Linux): "VmRSS" now, "VmHWM" at its peak (``getrusage`` includes a parent)."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(field))
    return 1024.0 * int(line.split()[1])


def alone(kind: str, n: int, seed: int, n_actions: int = 4, successors: int = 4) -> None:
    """Run one large solve; print seconds of one thread and peak memory as JSON."""
    solver = Exact(tol=GAP, threads=1)
    for size in (min(WARM_UP, n), n):  # the first solve compiles the kernels, or loads them
        mdp = garnet(size, n_actions, successors, seed)
        X = db.MarkovChain(mdp.transition[0], rewards=mdp.rewards[:, 0])
        before, began = memory("VmRSS"), time.process_time()
        if kind == "chain":
            result = db.distance(X, X, discount=0.95, solver=solver)
        else:
            other = mdp if kind == "one" else garnet(size, n_actions, successors, seed + 1)
            result = db.distance(mdp, other, discount=0.95, solver=solver)
        seconds = time.process_time() - began
    peak = memory("VmHWM") - before
    print(json.dumps({"seconds": seconds, "bytes": peak, "gap": result.gap / result.problem.scale}))


def large(n: int, seed: int, n_actions: int = 4, successors: int = 4) -> None:
    print(f"\n{n} states × {n_actions} actions × {successors} successors, discount 0.95, gap {GAP:g}, one thread")
    found = {}
    for kind in ("chain", "one", "two"):
        command = [sys.executable, __file__, "--alone", kind, "--states", str(n), "--seed", str(seed)]
        done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[kind] = json.loads(done)
    for kind, title in (("one", "one MDP with itself"), ("two", "two MDPs")):
        time_ratio = found[kind]["seconds"] / found["chain"]["seconds"]
        print(
            f"{title:20s} {time_ratio / n_actions:5.2f} × actions × the chain's time, "
            f"{found[kind]['bytes'] / n**2 / n_actions:5.0f} B per pair and action, gap {found[kind]['gap']:.1e}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=1000, help="of the large MDP")
    parser.add_argument("--seed", type=int, default=0, help="of the large MDP")
    parser.add_argument("--only-large", action="store_true", help="skip the comparison with value iteration")
    parser.add_argument("--alone", choices=["chain", "one", "two"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        alone(given.alone, given.states, given.seed)
    else:
        if not given.only_large:
            against_the_peer()
            lazy_maximum()
        large(given.states, given.seed)
