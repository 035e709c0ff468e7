"""A Dask cluster of one and of two worker processes on this machine: one large problem, and many small ones.

    python benchmarks/cluster.py                 10⁶ pairs, and pairwise of 300 chains
    python benchmarks/cluster.py --pairs 1e7     the figures of docs/cluster.md
    python benchmarks/cluster.py --small         many small problems on one thread: µs per problem, and in the kernel

Compares two workers with one, in the same run and with the same bounds. The bytes sent are computed from the number of
sweeps.
"""

import argparse
import time
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from distributed import Client, LocalCluster

import diffbisim as db
from diffbisim.solvers import Exact


def sparse_chain(n, k, seed):
    """Return a chain of n states with k random successors each."""
    rng = np.random.default_rng(seed)
    indices = np.concatenate([np.sort(rng.choice(n, k, replace=False)) for _ in range(n)])
    P = sp.csr_array((rng.dirichlet(np.ones(k), n).ravel(), indices, np.arange(n + 1) * k), shape=(n, n))
    return db.MarkovChain(P, rewards=rng.random(n))


def small_chains(m, seed):
    """Return dense chains of 5 to 10 states."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 11, m)
    return [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n)) for n in sizes]


class Spent(NamedTuple):
    """Return seconds of wall-clock time, of this process (including the scheduler), and of all workers together."""

    clock: float
    here: float
    workers: float


def on_workers(n, run):
    """Return the result and the time of the second run; in the first one the workers load their kernels."""
    how = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}

    def clocks():
        return np.array([time.perf_counter(), time.process_time(), sum(client.run(time.process_time).values())])

    with LocalCluster(n_workers=n, **how) as cluster, Client(cluster, direct_to_workers=True) as client:
        run(client, True)
        began = clocks()
        found = run(client, False)
        return found, Spent(*(clocks() - began))


def one_problem(pairs):
    n = round(pairs**0.5)
    X, Y = sparse_chain(n, 4, 0), sparse_chain(n, 4, 1)
    few = sparse_chain(50, 4, 2), sparse_chain(50, 4, 3)

    def run(client, warm_up):
        return db.distance(*(few if warm_up else (X, Y)), discount=0.95, solver=Exact(tol=1e-6, cluster=client))

    began = time.process_time()
    alone = db.distance(X, Y, discount=0.95, solver=Exact(tol=1e-6, threads=1))
    began = time.process_time() - began
    (one, first), (two, second) = (on_workers(n_workers, run) for n_workers in (1, 2))
    assert max(one.lower, two.lower, alone.lower) <= min(one.upper, two.upper, alone.upper)
    size = X.n_states * Y.n_states
    sweeps = one.work["improvements"] + one.work["sweeps"]
    each = 1e9 / size / sweeps
    print(f"one problem, {size:.1e} pairs, gap {one.gap:.1e}, {sweeps} sweeps of {8e-6 * size:.0f} MB out and in")
    print(f"  two workers against one, by the clock: {first.clock / second.clock:.2f}")
    print(
        f"  processor ns per pair and sweep: workers {each * first.workers:.0f}, here {each * first.here:.0f}; without"
    )
    print(f"  a cluster {each * began:.0f}. With processors of their own two workers are at most")
    print(f"  {(first.here + first.workers) / (first.here + first.workers / 2):.2f} times as fast as one")


def many_problems(m):
    chains = small_chains(m, 4)

    def run(client, warm_up):
        return db.pairwise(chains[:4] if warm_up else chains, executor=client)

    (one, first), (two, second) = (on_workers(n, run) for n in (1, 2))
    assert np.array_equal(one, two)
    print(f"pairwise of {m} chains, {m * (m - 1) // 2} distances")
    print(f"  two workers against one, by the clock: {first.clock / second.clock:.2f}")
    print(f"  processor seconds: workers {first.workers:.1f}, here {first.here:.1f}")


def overhead(m):
    """Measure processor time per problem of pairwise, of the engine alone, and of separate distances; best of 3."""
    from diffbisim.solvers import Exact
    from diffbisim.solvers.exact.small import ChainList, solve_many

    chains = small_chains(m, 5)
    cells = np.array(list(combinations(range(m), 2)))
    joined = ChainList.of(chains)
    some = cells[:: max(1, len(cells) // 200)]
    runs = {
        "pairwise": (lambda: db.pairwise(chains), len(cells)),
        "engine": (lambda: solve_many(joined, cells, np.empty(0), 0.95, Exact()), len(cells)),
        "one by one": (lambda: [db.distance(chains[i], chains[j]).value for i, j in some], len(some)),
    }
    micros, found = dict.fromkeys(runs, np.inf), {}
    for _ in range(3):
        for name, (run, n) in runs.items():
            began = time.process_time()
            found[name] = run()
            micros[name] = min(micros[name], 1e6 * (time.process_time() - began) / n)
    given_back = int(np.isinf(found["engine"].upper).sum())
    assert given_back or np.array_equal(found["pairwise"][tuple(cells.T)], found["engine"].value)
    assert np.array_equal(found["pairwise"][tuple(some.T)], found["one by one"])
    print(f"{len(cells)} problems of 5 to 10 states; given back to the solver: {given_back}; the same bits")
    print("  µs per problem: " + ", ".join(f"{name} {value:.0f}" for name, value in micros.items()))
    print(f"  overhead of pairwise: {micros['pairwise'] - micros['engine']:.0f} µs")
    print(f"  pairwise against distances one by one: {micros['one by one'] / micros['pairwise']:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=float, default=1e6)
    parser.add_argument("--chains", type=int, default=300)
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    if asked.small:
        overhead(asked.chains)
    else:
        one_problem(asked.pairs)
        many_problems(asked.chains)
