"""Compression: random restarts, larger chains. ``python benchmarks/compression.py enough small rooms sparse``.

enough  the block chain, of five classes, to 6 … 10 states: distance zero
small   the block chain to 2, 3 and 4 states: `compress` against the best of 200 descents from random kernels
rooms   four rooms (104 states), walking to the goal, to 20 states
sparse  a random sparse chain of 1 000 states to 20 states
"""

import sys
import time

import numpy as np

import diffbisim as db
from diffbisim.compress.descent import Search, descend
from diffbisim.compress.starts import (
    Target,
    aggregate,
    by_appearance,
    landmark_distances,
    medoid_partition,
    random_model,
)


def enough():
    for k in range(6, 11):
        found = db.compress(db.examples.block_chain(), k).distance
        print(f"{k} states: {found.lower:.1e} <= d <= {found.upper:.1e}", flush=True)


def small(starts=200):
    chain = db.lump(db.examples.block_chain()).chain
    for k in (2, 3, 4):
        given = np.abs(chain.rewards[:, None] - np.linspace(0, 4, k))
        for name, target, rewards in (
            ("learned", Target(chain, 0.95, rewards=chain.rewards), "learn"),
            ("given", Target(chain, 0.95, cost=given), "spread"),
        ):
            best = np.inf
            for seed in range(starts):
                search = Search(target, random_model(target, k, np.random.default_rng(seed)), 200, np.inf)
                search.begin()
                descend(search)
                best = min(best, search.value)
            found = db.compress(db.examples.block_chain(), k, rewards=rewards).distance.value
            print(f"{k} states, {name} rewards: compress {found:.6f}, best of {starts} random {best:.6f}", flush=True)


def large(chain, name, restarts):
    target = Target(chain, 0.95, rewards=chain.rewards)
    rewards_only = target.solve(by_appearance(target, 20))
    labels = medoid_partition(landmark_distances(target), target.weight, 20, np.random.default_rng(0))
    lumped = target.solve(aggregate(target, labels, 20))
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


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["enough", "small", "rooms", "sparse"]
    if "enough" in wanted:
        enough()
    if "small" in wanted:
        small()
    if "rooms" in wanted:
        large(rooms(), "four rooms", restarts=4)
    if "sparse" in wanted:
        large(db.examples.random_sparse_chain(1000), "sparse", restarts=4)
