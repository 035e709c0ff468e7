"""Compression: random restarts, larger chains, rates. ``python benchmarks/compression.py enough small rooms models``.

enough  the block chain, which has five classes, to 6 … 10 states: the distance must be zero
small   the block chain to 2, 3 and 4 states: `compress` compared with the best of 200 descents from random kernels
rooms   four rooms (104 states) with a policy that walks to the goal, to 20 states
sparse  a random sparse chain of 1,000 states to 20 states
models  walks in potentials to 4 states: distances, timescales and agreement with PCCA+ (deeptime) of all models
wells   20 random potentials with as many wells as states: errors of the timescales, kinetic and averaged
scale   chains of 200 and 1,000 states of several kinds: processor time and distance; with the sources of another
        version (``--before ../old/src``), both versions, chain by chain; ``--seeds 301,302`` chooses other chains, and
        ``--kinds "grid 200,blocks 200"`` some kinds only
large   a random sparse chain of 100,000 states to 20: time and memory
"""

import argparse
import itertools
import os
import resource
import sys
import time
import warnings
from concurrent.futures import Future
from subprocess import PIPE, Popen

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

import diffbisim as db

# Internal modules are imported where they are used, because ``scale`` also runs other versions.


def enough():
    for k in range(6, 11):
        found = db.compress(db.examples.block_chain(), k).distance
        print(f"{k} states: {found.lower:.1e} <= d <= {found.upper:.1e}", flush=True)


def small(starts=200):
    from diffbisim.reduction.compression.descent import DescentRun, descend
    from diffbisim.reduction.compression.starts import Target, random_model

    chain = db.lump(db.examples.block_chain()).chain
    for k in (2, 3, 4):
        given = np.abs(chain.rewards[:, None] - np.linspace(0, 4, k))
        for name, target, rewards in (
            ("learned", Target(chain, 0.95, rewards=chain.rewards), "learn"),
            ("given", Target(chain, 0.95, cost=given), "spread"),
        ):
            best = np.inf
            for seed in range(starts):
                search = DescentRun(target, random_model(target, k, np.random.default_rng(seed)), 200, np.inf)
                search.begin()
                descend(search)
                best = min(best, search.value)
            found = db.compress(db.examples.block_chain(), k, rewards=rewards).distance.value
            print(f"{k} states, {name} rewards: compress {found:.6f}, best of {starts} random {best:.6f}", flush=True)


def large(chain, name, restarts):
    from diffbisim.reduction.compression.starts import (
        Target,
        averaged,
        by_appearance,
        landmark_distances,
        medoid_partition,
    )

    target = Target(chain, 0.95, rewards=chain.rewards)
    rewards_only = target.solve(by_appearance(target, 20))
    assignment = medoid_partition(landmark_distances(target), target.weight, 20, np.random.default_rng(0))
    lumped = target.solve(averaged(target, assignment, 20))
    began = time.perf_counter()
    found = db.compress(chain, 20, restarts=restarts)
    seconds = time.perf_counter() - began
    print(f"{name}: {chain.n_states} states to 20 in {seconds:.0f} s")
    for what, r in (("by rewards", rewards_only), ("by k-medoids", lumped), ("compress", found.distance)):
        print(f"  {what:14s} {r.lower:.8f} <= d <= {r.upper:.8f}", flush=True)


def rooms():
    mdp = db.examples.four_rooms(slip=0.1)
    values = np.zeros(mdp.n_states)
    for _ in range(500):
        scores = np.array([mdp.rewards + 0.95 * (T @ values) for T in mdp.transition])
        values = scores.max(axis=0)
    policy = 0.9 * np.eye(4)[scores.argmax(axis=0)] + 0.025
    return mdp.induced_chain(policy)


def off(times, of):
    """Return the factors by which the slowest and the worst timescale are off."""
    factor = np.maximum(times / of, of / times)
    return float(factor[0]), float(factor.max())


def models(k=4, discount=0.95):
    """Compare all models of two walks; models of classes are also made from the classes of PCCA+ and k-means."""
    import deeptime.markov
    from scipy.cluster.vq import kmeans2

    warnings.simplefilter("ignore")
    db.compress(db.examples.prinz_well(20, 0.3), 2, model="kinetic")  # loads compiled code
    for name, X in (("prinz_well", db.examples.prinz_well()), ("quadruple_well", db.examples.quadruple_well())):
        pcca = deeptime.markov.pcca(np.asarray(X.transition), k).assignments
        means = kmeans2(X.rewards[:, None], np.linspace(X.rewards.min(), X.rewards.max(), k)[:, None])[1]
        means = np.unique(means, return_inverse=True)[1]
        print(f"{name}: {X.n_states} states to {k}")
        for what, make in (
            ("nearest", lambda X=X: db.compress(X, k, discount)),
            ("aggregate", lambda X=X: db.compress(X, k, discount, model="aggregate")),
            ("kinetic", lambda X=X: db.compress(X, k, discount, model="kinetic")),
            ("PCCA+, mean", lambda X=X, a=pcca: db.aggregate(X, a, discount=discount)),
            ("PCCA+, kinetic", lambda X=X, a=pcca: db.aggregate(X, a, "kinetic", discount=discount)),
            ("k-means, mean", lambda X=X, a=means: db.aggregate(X, a, discount=discount)),
            ("k-means, kinetic", lambda X=X, a=means: db.aggregate(X, a, "kinetic", discount=discount)),
        ):
            began = time.process_time()
            found = make()
            seconds = time.process_time() - began
            alike = np.zeros((k, k))
            np.add.at(alike, (found.assignment, pcca), X.initial)
            same = alike[linear_sum_assignment(-alike)].sum()
            of, times = found.implied_timescales
            slow = f"timescales {times.round(1)} for {of.round(1)}"
            row = f"  {what:17s} d = {found.distance.value:.4f}  {slow}  {seconds:.2f} s  as PCCA+ {same:.1%}"
            print(row, flush=True)


def random_wells(seed, n=150):
    """Return a walk on random points of a square in a potential with 3 to 5 random wells, and the number of wells."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(3, 6))
    side = int(n**0.5) + 1
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, side)]), axis=-1).reshape(-1, 2)
    points = grid + rng.uniform(-0.6, 0.6, grid.shape) / side
    centers = points[rng.choice(len(points), k, replace=False)]
    V = -np.log(np.exp(-((points[:, None] - centers) ** 2).sum(axis=2) / 0.03).sum(axis=1) + 0.01)
    near = np.linalg.norm(points[:, None] - points, axis=2) <= 3.2 / side
    P = near * np.exp(np.minimum(np.subtract.outer(V, V), 0)) / near.sum(axis=1).max()
    np.fill_diagonal(P, 0)
    np.fill_diagonal(P, 1 - P.sum(axis=1))
    law = np.exp(-V) / np.exp(-V).sum()
    return db.MarkovChain(P, initial=law, rewards=points @ [1.0, 2.0]), k


def wells(seeds=range(1000, 1020)):
    warnings.simplefilter("ignore")
    rows = []
    for seed in seeds:
        X, k = random_wells(seed)
        kinetic = db.compress(X, k, model="kinetic")
        mean = db.aggregate(X, kinetic.assignment)
        of = kinetic.implied_timescales[0]
        rows.append([*off(kinetic.implied_timescales[1], of), *off(mean.implied_timescales[1], of), kinetic.residual,
                     kinetic.distance.value / mean.distance.value])  # fmt: skip
    worst, median = np.max(rows, axis=0), np.median(rows, axis=0)
    print("factor by which timescales are off, over 20 random potentials: slowest and worst of k - 1")
    for what, r in (("median", median), ("worst", worst)):
        print(f"  {what:7s} kinetic {r[0]:.3f} {r[1]:.3f}   averaged {r[2]:.2f} {r[3]:.2f}   residual {r[4]:.3f}   "
              f"distance, kinetic to averaged {r[5]:.3f}", flush=True)  # fmt: skip


class Inline:
    """An executor that runs tasks immediately, so that processor time can be attributed to the call."""

    def submit(self, work, *given):
        done = Future()
        done.set_result(work(*given))
        return done


def blocks(seed, n, k=5, leave=0.02):
    """Return a dense chain of metastable blocks of random sizes."""
    rng = np.random.default_rng(seed)
    block = rng.integers(k, size=n)
    W = rng.gamma(0.5, size=(n, n)) * np.where(block[:, None] == block, 1.0, leave)
    rewards = rng.normal(size=k)[block] + 0.3 * rng.normal(size=n)
    return db.MarkovChain(W / W.sum(axis=1, keepdims=True), initial=np.full(n, 1 / n), rewards=rewards)


def line(seed, n):
    """Return a birth-death chain with random rates, whose rewards are a random walk along it."""
    rng = np.random.default_rng(seed)
    up, down = rng.uniform(0.1, 0.5, (2, n))
    up[-1] = down[0] = 0.0
    P = sparse.diags_array([down[1:], 1 - up - down, up[:-1]], offsets=[-1, 0, 1])
    rewards = np.cumsum(rng.normal(size=n)) / n**0.5
    return db.MarkovChain(sparse.csr_array(P), initial=np.full(n, 1 / n), rewards=rewards)


def grid(seed, n):
    """Return a walk on a square grid with random probabilities in every cell and smooth rewards."""
    rng, side = np.random.default_rng(seed), round(n**0.5)
    i, j = np.divmod(np.arange(side**2), side)
    P = sparse.csr_array((side**2, side**2))
    for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        to = np.clip(i + a, 0, side - 1) * side + np.clip(j + b, 0, side - 1)
        P += sparse.csr_array((rng.gamma(2.0, size=side**2), (np.arange(side**2), to)), shape=P.shape)
    x, f = np.stack([i, j], axis=1) / (side - 1), 3 * rng.normal(size=2)
    rewards = np.sin(2 * x @ f) + np.cos(3 * x[:, 0] * f[1])
    P = sparse.csr_array(sparse.diags_array(1 / P.sum(axis=1)) @ P)
    return db.MarkovChain(P, initial=np.full(side**2, side**-2.0), rewards=rewards)


SCALE = {
    "sparse 200": (lambda seed: db.examples.random_sparse_chain(200, 8, seed), 4),
    "wells 200": (lambda seed: random_wells(seed, 190)[0], 4),
    "grid 200": (lambda seed: grid(seed, 200), 4),
    "line 200": (lambda seed: line(seed, 200), 4),
    "sparse 1000": (lambda seed: db.examples.random_sparse_chain(1000, 4, seed), 10),
    "grid 1000": (lambda seed: grid(seed, 1000), 10),
    "blocks 200": (lambda seed: blocks(seed, 200), 4),
}


def work():
    """Compress the chains named on standard input, one per line; :func:`scale` runs this for every version."""
    warnings.simplefilter("ignore")
    db.compress(db.examples.random_chain(6, 0), 2, restarts=2)
    for given in sys.stdin:
        name, seed = given.rsplit(maxsplit=1)
        make, k = SCALE[name]
        X = make(int(seed))
        began = time.process_time()
        found = db.compress(X, k, executor=Inline()).distance.value
        print(time.process_time() - began, found, flush=True)


def scale(before=None, seeds=(201, 202), kinds=tuple(SCALE)):
    versions = [None] if before is None else [before, None]
    command = [sys.executable, __file__, "work"]
    workers = []
    for path in versions:
        paths = {} if path is None else {"PYTHONPATH": path}
        workers.append(Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=os.environ | paths))
    for name, seed in itertools.product(kinds, seeds):
        row = []
        for worker in workers:
            print(name, seed, file=worker.stdin, flush=True)
            row.append([float(number) for number in worker.stdout.readline().split()])
        (s, d), (t, e) = row[0], row[-1]
        print(f"{name:12} seed {seed}: {t:6.2f} s, d = {e:.5f}"
              + f"   before {s:6.2f} s, d = {d:.5f}   ratios {s / t:5.1f} {e / d:.4f}" * (len(row) > 1),
              flush=True)  # fmt: skip
    for worker in workers:
        worker.stdin.close()
        worker.wait()


def huge(n=100_000, k=20, restarts=2):
    X = db.examples.random_sparse_chain(n, 4, 101)
    began = time.process_time()
    found = db.compress(X, k, restarts=restarts, max_iterations=3, tol=1e-4)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{n} states to {k}: {time.process_time() - began:.0f} s of processor time, {peak:.1f} GB, "
          f"{found.distance.lower:.5f} <= d <= {found.distance.upper:.5f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["enough", "small", "rooms", "sparse", "models", "wells"])
    parser.add_argument("--before", help="sources of another version, for scale")
    parser.add_argument("--seeds", default="201,202", help="of the chains of scale")
    parser.add_argument("--kinds", default=",".join(SCALE), help="kinds of chains of scale")
    options = parser.parse_args()
    seeds, kinds = [int(seed) for seed in options.seeds.split(",")], options.kinds.split(",")
    parts = {
        "enough": enough,
        "small": small,
        "rooms": lambda: large(rooms(), "four rooms", restarts=4),
        "sparse": lambda: large(db.examples.random_sparse_chain(1000), "sparse", restarts=4),
        "models": models,
        "wells": wells,
        "scale": lambda: scale(options.before, seeds, kinds),
        "large": huge,
        "work": work,
    }
    for part in options.parts:
        parts[part]()
