"""A Dask cluster of one and of two worker processes on this machine: one large problem, and many small ones.

    python benchmarks/cluster.py                 10⁶ pairs, and pairwise of 300 chains
    python benchmarks/cluster.py --pairs 1e7     as docs/cluster.md has it
    python benchmarks/cluster.py --small         many small problems on one thread: µs per problem, and in the kernel

Two workers against one, in the same run, the same bounds. Bytes that go over the wire are counted from the sweeps.
"""

import argparse
import time
from itertools import combinations

import numpy as np
import scipy.sparse as sp
from distributed import Client, LocalCluster

import diffbisim as db
from diffbisim.solvers import Exact


def sparse_chain(n, k, seed):
    """n states with k random successors each."""
    rng = np.random.default_rng(seed)
    indices = np.concatenate([np.sort(rng.choice(n, k, replace=False)) for _ in range(n)])
    P = sp.csr_array((rng.dirichlet(np.ones(k), n).ravel(), indices, np.arange(n + 1) * k), shape=(n, n))
    return db.MarkovChain(P, rewards=rng.random(n))


def small_chains(m, seed):
    """Dense chains of 5 to 10 states."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 11, m)
    return [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n)) for n in sizes]


def timed(run):
    began = time.perf_counter()
    return run(), time.perf_counter() - began


def on_workers(n, run):
    """Seconds of the second run: in the first one the workers load their kernels."""
    how = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(n, **how) as cluster, Client(cluster, direct_to_workers=True) as client:
        run(client, True)
        return timed(lambda: run(client, False))


def one_problem(pairs):
    n = round(pairs**0.5)
    X, Y = sparse_chain(n, 4, 0), sparse_chain(n, 4, 1)
    few = sparse_chain(50, 4, 2), sparse_chain(50, 4, 3)

    def run(client, warm_up):
        return db.distance(*(few if warm_up else (X, Y)), discount=0.95, solver=Exact(tol=1e-6, cluster=client))

    here, alone = timed(lambda: db.distance(X, Y, discount=0.95, solver=Exact(tol=1e-6, threads=1)))
    seconds = {}
    for n_workers in (1, 2):
        found, seconds[n_workers] = on_workers(n_workers, run)
        assert max(found.lower, here.lower) <= min(found.upper, here.upper)
    sweeps = found.work["improvements"] + found.work["sweeps"]
    print(f"one problem, {X.n_states * Y.n_states:.1e} pairs, gap {found.gap:.1e}")
    print(f"  here, one thread {alone:.1f} s; one worker {seconds[1]:.1f} s; two {seconds[2]:.1f} s")
    print(f"  two workers against one: {seconds[1] / seconds[2]:.2f}")
    print(f"  {sweeps} sweeps, {8 * found.work['pairs'] / 1e6:.0f} MB to each worker and as many back in each")


def many_problems(m):
    chains = small_chains(m, 4)

    def run(client, warm_up):
        return db.pairwise(chains[:4] if warm_up else chains, executor=client)

    (one, first), (two, second) = (on_workers(n, run) for n in (1, 2))
    assert np.array_equal(one, two)
    print(f"pairwise of {m} chains, {m * (m - 1) // 2} distances: one worker {first:.1f} s, two {second:.1f} s")
    print(f"  two workers against one: {first / second:.2f}")


def overhead(m):
    """Processor time per problem: of pairwise, of its kernel alone, and of one distance after the other."""
    from diffbisim.solvers.exact.batch import Ask, Pack, solve_batch

    chains, few = small_chains(m, 5), small_chains(20, 6)
    cells = np.array(list(combinations(range(m), 2)))
    ask, pack = Ask(0.95, 1e-8, False, np.zeros(1, bool)), Pack.of(chains)
    db.pairwise(few)
    began = time.process_time()
    matrix = db.pairwise(chains)
    whole = time.process_time() - began
    began = time.process_time()
    found = solve_batch(pack, cells, np.empty(0), ask)
    kernel = time.process_time() - began
    given_back = int(np.isinf(found.upper).sum())
    assert given_back or np.array_equal(matrix[tuple(cells.T)], found.value)
    some = list(combinations(few, 2))
    db.distance(*some[0])
    began = time.process_time()
    for X, Y in some:
        db.distance(X, Y)
    single = (time.process_time() - began) / len(some)
    print(f"{len(cells)} problems of 5 to 10 states; given back to the solver: {given_back}")
    print(f"  µs per problem: pairwise {1e6 * whole / len(cells):.0f}, its kernel {1e6 * kernel / len(cells):.0f}, ")
    print(f"  so overhead {1e6 * (whole - kernel) / len(cells):.1f}; one distance after the other {1e6 * single:.0f}")
    print(f"  pairwise against distances one by one: {single * len(cells) / whole:.1f}")


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
