"""Does the test of two sets of episodes keep its word? False alarms, power against the usual tests, and what is named.

    python benchmarks/long/two_sample.py [level] [groups] [power] [few] [--datasets 600] [--permutations 199]

level   how often it rejects at 5 % where there is no difference: short, long and unequal groups, episodes that differ
        among themselves, episodes of other lengths in the two groups; chains of 5, 20 and 50 states
groups  the same for ten groups at once: how often any pair is said to differ
few     the same for groups of one, two or three episodes, where single steps are dealt
power   on chains that were not looked at when the test was made: how often a planted difference is seen, against χ² and
        the likelihood ratio of all transitions and starts (both by the same permutations, so that all keep their
        level), and how often the planted row is the first by z (all rows change with "drift")

Chains are random, or ordered (near states are likely successors, rewards are positions); what is planted is another
law that is mixed in, or a tilt toward high or low rewards. All tests of one dataset see the same permutations. A
standard error of a share p of n datasets is √(p(1-p)/n).
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np

import diffbisim as db
from diffbisim.compare import simulate
from diffbisim.evidence import Design, compare_pairs, compare_two, count_episodes, dealt, tail_shares

DISCOUNT, LEVEL = 0.95, 0.05
FRESH = 1_000_000  # seeds of chains; those below were used while the test was made


class Scene(NamedTuple):
    """Two groups: numbers of episodes, and the shortest and longest in each."""

    episodes: tuple[int, int]
    steps: tuple[tuple[int, int], tuple[int, int]]
    mixed: bool = False  # every episode has a chain of its own


SCENES = {
    "short": Scene((40, 40), ((5, 20), (5, 20))),
    "long": Scene((10, 10), ((500, 500), (500, 500))),
    "unequal": Scene((15, 80), ((5, 20), (5, 20))),
    "heterogeneous": Scene((40, 40), ((5, 20), (5, 20)), mixed=True),
    "lengths": Scene((40, 40), ((5, 5), (40, 40))),
}
FEW = {
    "1 + 1 of 2000": Scene((1, 1), ((2000, 2000), (2000, 2000))),
    "2 + 2 of 500": Scene((2, 2), ((500, 500), (500, 500))),
    "3 + 3 of 30": Scene((3, 3), ((30, 30), (30, 30))),
    "2 + 2 of 500, mixed": Scene((2, 2), ((500, 500), (500, 500)), mixed=True),
}


def random_chain(n, rng):
    """Rows with a few likely successors each, one state that is rare, and rewards without ties."""
    P = rng.dirichlet(np.full(n, 5.0 / n), n)
    P = 0.9 * P + 0.1 / n
    P[:, -1] *= 0.25
    P /= P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=rng.dirichlet(np.ones(n)), rewards=rng.permutation(n) + rng.random(n))


def changed(chain, where, amount, rng):
    """A part of some rows, or of the start, replaced by another law."""
    n, P, start = chain.n_states, chain.transition.copy(), chain.initial
    for x in where:
        if x == n:
            start = (1 - amount) * start + amount * rng.dirichlet(np.ones(n))
        else:
            P[x] = (1 - amount) * P[x] + amount * rng.dirichlet(np.full(n, 5.0 / n))
    return db.MarkovChain(P, initial=start, rewards=chain.rewards)


def ordered_chain(n, rng):
    """Steps to near states are likely; the last state is rare; rewards are positions."""
    k = np.arange(n)
    P = np.exp(-np.abs(np.subtract.outer(k, k))) * rng.gamma(2.0, size=(n, n))
    P[:, -1] *= 0.3
    P /= P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=rng.dirichlet(np.ones(n)), rewards=k)


def tilted(chain, where, amount, rng):
    """Some rows, or the start, tilted toward high or low rewards."""
    n, laws = chain.n_states, np.vstack([chain.transition, chain.initial])
    r = (chain.rewards - chain.rewards.mean()) / chain.rewards.std()
    by = np.exp(rng.choice([-1, 1]) * 1.2 * amount * r)
    for x in where:
        laws[x] = laws[x] * by / (laws[x] @ by)
    return db.MarkovChain(laws[:n], initial=laws[n], rewards=chain.rewards)


def group(chain, episodes, steps, mixed, rng):
    lengths = rng.integers(steps[0], steps[1] + 1, size=episodes)
    if not mixed:
        return simulate(chain, lengths, rng)
    return [simulate(changed(chain, range(chain.n_states), 0.5, rng), [k], rng)[0] for k in lengths]


def data_of(chains, scene, rng):
    parts = zip(chains, scene.episodes, scene.steps, strict=True)
    paths = [group(chain, episodes, steps, scene.mixed, rng) for chain, episodes, steps in parts]
    return [db.Transitions.from_trajectories(p, states=chains[0].n_states) for p in paths]


def cost_of(chain):
    return np.abs(np.subtract.outer(chain.rewards, chain.rewards))


# --- one dataset, in a worker -------------------------------------------------------------------------------------


def false_alarm(job):
    scene, n, seed, permutations, permute = job
    rng = np.random.default_rng([seed, n])
    chain = random_chain(n, np.random.default_rng([FRESH + seed % 20, n]))
    design = Design(count_episodes(data_of([chain, chain], scene, rng)), cost_of(chain), DISCOUNT, permute)
    return compare_two(design, permutations, rng).p_value <= LEVEL + 1e-12


def any_pair(job):
    different, seed, permutations = job
    rng = np.random.default_rng([seed, 10])
    chain = random_chain(5, np.random.default_rng([FRESH + seed % 20, 5]))
    chains = [chain] * 9 + [changed(chain, range(5), 0.5, rng) if different else chain]
    scene = Scene((20,) * 10, ((5, 20),) * 10)
    design = Design(count_episodes(data_of(chains, scene, rng)), cost_of(chain), DISCOUNT, True)
    found = compare_pairs(design, permutations, rng)
    alike = [p for p, (_, k) in zip(found.p_values, found.pairs, strict=True) if not different or k < 9]
    return min(alike) <= LEVEL + 1e-12


#: What is planted: which rows, and how much of each is replaced, in short and in long episodes.
PLANTED = {
    "one": lambda n, busy: ([busy], {"short": 0.6, "long": 0.25}),
    "rare": lambda n, busy: ([n - 1], {"short": 1.0, "long": 0.6}),
    "drift": lambda n, busy: (list(range(n)), {"short": 0.25, "long": 0.09}),
    "starts": lambda n, busy: ([n], {"short": 0.8, "long": 1.0}),
}


def classical(design, permutations, rng):
    """p-values of χ² and of the likelihood ratio over all transitions and starts, by permutation."""
    cells = design.counted.cells
    parts = []
    for counts in dealt(design.counted, permutations + 1, rng):
        one, two = counts[0]
        N, M = (np.add.reduceat(part, cells.first, axis=1)[:, cells.rows] for part in (one, two))
        total = one + two
        expected = total * N / (N + M), total * M / (N + M)
        both = list(zip((one, two), expected, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = sum(np.where(e > 0, (o - e) ** 2 / e, 0).sum(axis=1) for o, e in both)
            ratio = sum(np.where(o > 0, o * np.log(o / e), 0).sum(axis=1) for o, e in both)
        parts.append((squares, ratio))
    return [float(tail_shares(np.concatenate(column))[0]) for column in zip(*parts, strict=True)]


CHAINS = {"random": random_chain, "ordered": ordered_chain}
CHANGES = {"mixed": changed, "tilted": tilted}


def seen(job):
    kind, size, (chains, change), n, seed, permutations = job
    rng = np.random.default_rng([seed, n, list(PLANTED).index(kind)])
    chain = CHAINS[chains](n, np.random.default_rng([FRESH + seed % 50, n, 1]))
    where, amounts = PLANTED[kind](n, int(chain.stationary_distribution.argmax()))
    other = CHANGES[change](chain, where, amounts[size], rng)
    design = Design(count_episodes(data_of([chain, other], SCENES[size], rng)), cost_of(chain), DISCOUNT, True)
    found = compare_two(design, permutations, rng)
    ours = found.p_value, found.p_distance, found.p_largest, found.p_total
    p = np.array([*ours, *classical(design, permutations, rng)])
    return [*(p <= LEVEL + 1e-12), design.counted.cells.states[int(np.argmax(found.rows.z))] == where[0]]


# --- tables -------------------------------------------------------------------------------------------------------


def share(results):
    p = np.mean(results)
    return f"{p:7.3f} ±{np.sqrt(p * (1 - p) / len(results)):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["level", "groups", "few", "power"])
    parser.add_argument("--datasets", type=int, default=600)
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--states", type=int, nargs="*", default=[5, 20, 50])
    parser.add_argument("--workers", type=int, default=2)
    s = parser.parse_args()
    seeds = range(s.datasets)
    print(f"{s.datasets} datasets a cell, {s.permutations} permutations, level {LEVEL}")
    with ProcessPoolExecutor(s.workers) as pool:
        for title, scenes, permute in (("level", SCENES, True), ("few", FEW, False)):
            if title in s.what:
                print(f"\nfalse alarms ({'whole episodes' if permute else 'single steps'})")
                for name, scene in scenes.items():
                    for n in s.states:
                        jobs = [(scene, n, k, s.permutations, permute) for k in seeds]
                        found = list(pool.map(false_alarm, jobs, chunksize=8))
                        print(f"  {name:20s} {n:3d} states {share(found)}", flush=True)
        if "groups" in s.what:
            print("\nany of the pairs of ten groups that do not differ is said to differ")
            for different in (False, True):
                jobs = [(different, k, s.permutations) for k in seeds]
                name = "one group differs" if different else "all alike"
                print(f"  {name:20s} {share(list(pool.map(any_pair, jobs, chunksize=4)))}", flush=True)
        if "power" in s.what:
            print(
                "\npower: our test; its T1, T2, T3 alone; chi-squared, likelihood ratio; "
                "planted row first by z, of all datasets and of those that our test rejects"
            )
            means = []
            for n, chains, change, size in product(s.states, CHAINS, CHANGES, ("short", "long")):
                for kind in PLANTED if size == "short" else ("one", "rare", "drift"):
                    jobs = [(kind, size, (chains, change), n, k, s.permutations) for k in seeds]
                    found = np.array(list(pool.map(seen, jobs, chunksize=4)))
                    means.append(found[:, :6].mean(axis=0))
                    first = found[:, 6].mean(), found[found[:, 0], 6].mean() if found[:, 0].any() else np.nan
                    shares = " ".join(f"{share:6.3f}" for share in (*means[-1], *(() if kind == "drift" else first)))
                    print(f"  {n:3d} {chains:8s} {change:7s} {size:6s} {kind:7s} {shares}", flush=True)
            print(f"{'  mean':37s}", " ".join(f"{share:6.3f}" for share in np.mean(means, axis=0)))


if __name__ == "__main__":
    main()
