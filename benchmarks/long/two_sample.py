"""Evaluation of the two-sample test for episodes: level, power compared with the usual tests, and localization.

    python benchmarks/long/two_sample.py [level] [groups] [few] [sessions] [power] [located]
                                         [--datasets 600]
                                         [--permutations 199] [--states 5 20 50] [--kept two_sample.jsonl]

level   how often the test rejects at 5 % although there is no difference: short, long and unequal groups, episodes
        that differ among themselves, groups with different lengths of episodes; chains of 5, 20 and 50 states
groups  the same for ten groups at once: how often any pair is declared different
few     the same for groups of one, two or three episodes, for which single steps are permuted
sessions the same for event tables with 12 sessions for each of 30 users in each group, who have chains of their own:
        whole users are permuted, and for comparison single sessions; with an end state, which the users reach at rates
        of their own; with clinics of five users as clusters; and with two strata of users who differ
times   groups of 40 paths of a generator, visited every 0.25 and every 1.0, with a step per event and with every=1;
        and with hazards three times as large in one group, observed exactly (a difference, not a false alarm)
power   on chains that were not used in the design of the test: how often a planted difference is detected, compared
        with χ² and the likelihood ratio of all transitions and starts (with the same permutations); and how often the
        planted row has the largest z (with "drift" all rows change), among all datasets and among those that are
        rejected. An oracle gives an upper bound: it knows the distribution of every row before the change and the kind
        of change, but not the result, and takes the row with the largest Bayes factor. If all rows are equally likely
        to be planted, no score of the data finds more. If lengths differ, permutations do not keep the level of the
        usual tests (see "level"), so these scenes are excluded from the means
located how often the planted row has the largest z if the change is barely detectable: on 5 states, one row or a rare
        row, with the change scaled separately for each of four chains until max_x √(h_x/v_x) W_x alone has a given
        power. The last columns also show the row with the largest √(h_x/v_x) W_x, and the power of that test

Chains are random, or ordered (nearby states are likely successors, and rewards are positions). A planted change mixes
in another distribution, or tilts toward high or low rewards. All tests of one dataset use the same permutations. The
standard error of a fraction p of n datasets is √(p(1-p)/n).

Every cell of the tables gets its datasets in rounds of 50, with seeds 0, 1, … (or from ``--first`` on); after each
round, a row is printed with all datasets so far. With ``--kept``, p-values are added to a file, and a run that was
stopped resumes from it.
"""

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import diffbisim as db
from diffbisim.statistics.estimation import grouped, stratum_numbers
from diffbisim.statistics.groups import simulate
from diffbisim.statistics.permutation import (
    Design,
    compare_pairs,
    compare_two,
    count_episodes,
    count_for_test,
    permuted_counts,
    row_statistics,
    tail_probabilities,
)

DISCOUNT, ALPHA, ROUND = 0.95, 0.05, 50
FRESH = 1_000_000  # seeds of chains; those below were used in the design of the test
TESTS = "ours", "T1", "T2", "T3", "chi2", "LR"
TABLES = "level", "groups", "few", "sessions", "times", "power", "located"


class Scene(NamedTuple):
    """Two groups: numbers of episodes, and the shortest and longest episode in each."""

    episodes: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    mixed: bool = False  # every episode has its own chain


SCENES = {
    "short": Scene((40, 40), ((5, 20), (5, 20))),
    "long": Scene((10, 10), ((500, 500), (500, 500))),
    "unequal": Scene((15, 80), ((5, 20), (5, 20))),
    "heterogeneous": Scene((40, 40), ((5, 20), (5, 20)), mixed=True),
    "lengths": Scene((40, 40), ((5, 5), (40, 40))),
}
FEW = {
    "1+1 of 2000": Scene((1, 1), ((2000, 2000), (2000, 2000))),
    "2+2 of 500": Scene((2, 2), ((500, 500), (500, 500))),
    "3+3 of 30": Scene((3, 3), ((30, 30), (30, 30))),
    "2+2 of 500, mixed": Scene((2, 2), ((500, 500), (500, 500)), mixed=True),
}
SESSIONS = "users", "users, sessions permuted", "users, with ends", "clinics", "users in strata"
TIMES = "visits, by event", "visits, every=1", "tripled, by event", "tripled, every=0.5"
TEN = Scene((20,) * 10, ((5, 20),) * 10)


class Cell(NamedTuple):
    """A row of a table."""

    table: str
    states: int
    scene: str
    planted: str = ""
    chains: str = ""
    change: str = ""

    @property
    def name(self) -> str:
        return " ".join(f"{part:>2}" for part in self if part)


# --- chains and data ----------------------------------------------------------------------------------------------


def random_chain(n, rng):
    """Return a chain with a few likely successors per state, one rare state, and rewards without ties."""
    P = rng.dirichlet(np.full(n, 5.0 / n), n)
    P = 0.9 * P + 0.1 / n
    P[:, -1] *= 0.25
    P /= P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=rng.dirichlet(np.ones(n)), rewards=rng.permutation(n) + rng.random(n))


def changed(chain, where, amount, rng):
    """Replace a part of some rows, or of the start, by another distribution."""
    n, P, start = chain.n_states, chain.transition.copy(), chain.initial
    for x in where:
        if x == n:
            start = (1 - amount) * start + amount * rng.dirichlet(np.ones(n))
        else:
            P[x] = (1 - amount) * P[x] + amount * rng.dirichlet(np.full(n, 5.0 / n))
    return db.MarkovChain(P, initial=start, rewards=chain.rewards)


def ordered_chain(n, rng):
    """Return a chain in which steps to nearby states are likely, the last state is rare, and rewards are positions."""
    k = np.arange(n)
    P = np.exp(-np.abs(np.subtract.outer(k, k))) * rng.gamma(2.0, size=(n, n))
    P[:, -1] *= 0.3
    P /= P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=rng.dirichlet(np.ones(n)), rewards=k)


def standard(rewards):
    return (rewards - rewards.mean()) / rewards.std()


def tilted(chain, where, amount, rng):
    """Tilt some rows, or the start, toward high or low rewards."""
    n, laws = chain.n_states, np.vstack([chain.transition, chain.initial])
    by = np.exp(rng.choice([-1, 1]) * 1.2 * amount * standard(chain.rewards))
    for x in where:
        laws[x] = laws[x] * by / (laws[x] @ by)
    return db.MarkovChain(laws[:n], initial=laws[n], rewards=chain.rewards)


CHAINS = {"random": random_chain, "ordered": ordered_chain}
CHANGES = {"mixed": changed, "tilted": tilted}

#: Planted changes: which rows, and how much of each is replaced, in short and in long episodes.
PLANTED = {
    "one": lambda n, busy: ([busy], {"short": 0.6, "long": 0.25}),
    "rare": lambda n, busy: ([n - 1], {"short": 1.0, "long": 0.6}),
    "drift": lambda n, busy: (list(range(n)), {"short": 0.25, "long": 0.09}),
    "starts": lambda n, busy: ([n], {"short": 0.8, "long": 1.0}),
}


#: Power of max_x √(h_x/v_x) W_x at which rows are located, for short and long episodes.
BARELY = {("short", "one"): 0.68, ("long", "one"): 0.66, ("short", "rare"): 0.61, ("long", "rare"): 0.47}
CHAINS_LOCATED, SIMULATED = 4, 50


def group(chain, episodes, steps, mixed, rng):
    lengths = rng.integers(steps[0], steps[1] + 1, size=episodes)
    if not mixed:
        return simulate(chain, lengths, rng)
    return [simulate(changed(chain, range(chain.n_states), 0.5, rng), [k], rng)[0] for k in lengths]


def design_of(chains, scene, permute, rng):
    """Return the data of a scene, prepared for the comparison."""
    parts = zip(chains, scene.episodes, scene.steps, strict=True)
    paths = [group(chain, episodes, steps, scene.mixed, rng) for chain, episodes, steps in parts]
    data = [db.Transitions.from_trajectories(p, states=chains[0].n_states) for p in paths]
    cost = np.abs(np.subtract.outer(chains[0].rewards, chains[0].rewards))
    return Design(count_episodes(data), cost, DISCOUNT, permute)


# --- one dataset, in a worker -------------------------------------------------------------------------------------


def classical(design, permutations, rng):
    """Return permutation p-values of χ² and of the likelihood ratio over all transitions and starts."""
    cells, parts = design.counted.cells, []
    for counts in permuted_counts(design.counted, permutations + 1, rng):
        one, two = counts[0]
        N, M = (np.add.reduceat(part, cells.first, axis=1)[:, cells.rows] for part in (one, two))
        total = one + two
        expected = total * N / (N + M), total * M / (N + M)
        both = list(zip((one, two), expected, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = sum(np.where(e > 0, (o - e) ** 2 / e, 0).sum(axis=1) for o, e in both)
            ratio = sum(np.where(o > 0, o * np.log(o / e), 0).sum(axis=1) for o, e in both)
        parts.append((squares, ratio))
    return [float(tail_probabilities(np.concatenate(column))[0]) for column in zip(*parts, strict=True)]


def two_groups(design, permutations, rng):
    """Return the p-values of all tests and the row with the largest z."""
    found = compare_two(design, permutations, rng)
    p = [found.p_value, found.p_distance, found.p_largest, found.p_total]
    usual = classical(design, permutations, rng) if design.permute else []
    return [*p, *usual], int(design.counted.cells.states[int(np.argmax(found.rows.z))])


def false_alarm(cell, seed, permutations):
    rng, n = np.random.default_rng([seed, cell.states]), cell.states
    chain = random_chain(n, np.random.default_rng([FRESH + seed % 20, n]))
    permute = cell.table == "level"
    return two_groups(design_of([chain] * 2, (SCENES | FEW)[cell.scene], permute, rng), permutations, rng)[0]


def sessions(cell, seed, permutations):
    """Return the p-value for event tables of users with several sessions each, read with a gap."""
    rng, n = np.random.default_rng([4 * FRESH + seed, SESSIONS.index(cell.scene)]), cell.states
    chain, rows = random_chain(n, np.random.default_rng([4 * FRESH + seed % 20, n])), []
    other = changed(chain, range(n), 0.8, rng)
    clinic = [changed(chain, range(n), 0.8, rng) for _ in range(12)]
    for user in range(60):
        stratum = 1 if rng.random() < (0.3, 0.7)[user % 2] else 0
        base = clinic[user // 2 % 6 + 6 * (user % 2)] if cell.scene == "clinics" else chain
        base = other if cell.scene == "users in strata" and stratum else base
        own, stay = changed(base, range(n + 1), 0.5, rng), rng.uniform(0.5, 0.95)
        lengths = rng.geometric(1 - stay, 12) if cell.scene == "users, with ends" else rng.integers(3, 9, 12)
        for k, path in enumerate(simulate(own, lengths, rng)):
            rows += [(user, 1000 * k + t, int(s), user % 2, user // 2 % 6 + 6 * (user % 2), stratum)
                     for t, s in enumerate(path)]  # fmt: skip
    names = "user", "at", "state", "arm", "clinic", "stratum"
    table = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    arms = db.Transitions.from_frame(
        table, id="user", time="at", group="arm", gap=500, every="event", states=n,
        end="■" if cell.scene == "users, with ends" else None,
        cluster="clinic" if cell.scene == "clinics" else None,
        strata="stratum" if cell.scene == "users in strata" else None,
    )  # fmt: skip
    one = "episode" if cell.scene == "users, sessions permuted" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data, strata = grouped(arms, one, None)
    numbers = None if strata is None else stratum_numbers(strata, list(data.values()))
    counted, permute = count_for_test(list(data.values()), numbers)
    k = counted.n_states
    rewards = np.append(chain.rewards, 0.0)[:k]
    design = Design(counted, np.abs(np.subtract.outer(rewards, rewards)), DISCOUNT, permute)
    found = compare_two(design, permutations, rng)
    return [found.p_value, found.p_distance, found.p_largest, found.p_total]


def jumps(Q, until, rng):
    """Return times and states of a path of the generator Q, up to ``until``, where its state is seen once more."""
    t, state, seen = 0.0, 0, []
    while t < until:
        seen.append((t, state))
        t += rng.exponential(-1 / Q[state, state])
        state = int(rng.choice(len(Q), p=np.where(np.arange(len(Q)) == state, 0.0, Q[state]) / -Q[state, state]))
    return [*seen, (until, seen[-1][1])]


def times(cell, seed, permutations):
    """Return the p-value for event tables of generators."""
    rng, n = np.random.default_rng([5 * FRESH + seed, TIMES.index(cell.scene)]), cell.states
    Q, rows = rng.gamma(1.0, 0.5 / n, (n, n)), []
    np.fill_diagonal(Q, 0.0)
    np.fill_diagonal(Q, -Q.sum(axis=1))
    for user in range(80):
        path = jumps(Q * (3 if user % 2 and cell.scene.startswith("tripled") else 1), 12.0, rng)
        if cell.scene.startswith("visits"):
            at, (when, states) = np.arange(0.0, 12.1, (0.25, 1.0)[user % 2]), map(np.array, zip(*path, strict=True))
            path = list(zip(at.tolist(), states[np.searchsorted(when, at, "right") - 1].tolist(), strict=True))
        rows += [(user, t, s, user % 2) for t, s in path]
    table = {name: np.array(column) for name, column in zip(("user", "at", "state", "arm"), zip(*rows, strict=True),
                                                           strict=True)}  # fmt: skip
    every = cell.scene.partition("every=")[2]
    arms = db.Transitions.from_frame(
        table, id="user", time="at", group="arm", every=float(every) if every else "event", states=n, end=None
    )
    return [compare_two(Design(count_episodes(list(arms.values())), 1.0 - np.eye(n), DISCOUNT, True), permutations, rng)
            .p_value]  # fmt: skip


def any_pair(cell, seed, permutations):
    """Return the smallest p-value of the pairs that do not differ."""
    different, rng = cell.scene == "one differs", np.random.default_rng([seed, 10])
    chain = random_chain(5, np.random.default_rng([FRESH + seed % 20, 5]))
    chains = [chain] * 9 + [changed(chain, range(5), 0.5, rng) if different else chain]
    found = compare_pairs(design_of(chains, TEN, True, rng), permutations, rng)
    return [min(p for p, (_, k) in zip(found.p_values, found.pairs, strict=True) if not different or k < 9)]


def oracle(design, chain, change, amount, rng, draws=1000):
    """Return the row with the largest Bayes factor in the second group, of changed over unchanged distributions."""
    cells, seen, n = design.counted.cells, design.counted.totals[1], chain.n_states
    laws, r = np.vstack([chain.transition, chain.initial]), standard(chain.rewards)
    drawn = {kind: rng.dirichlet(np.full(n, kind), draws) for kind in (5.0 / n, 1.0)}
    gains = []
    for x, first, last in zip(cells.states, cells.first, [*cells.first[1:], seen.size], strict=True):
        if change == "mixed":
            other = (1 - amount) * laws[x] + amount * drawn[1.0 if x == n else 5.0 / n]
        else:
            other = laws[x] * np.exp(np.outer([-1.2 * amount, 1.2 * amount], r))
            other /= other.sum(axis=1, keepdims=True)
        at, times = cells.targets[first:last], seen[first:last]
        likely = np.log(np.maximum(other[:, at], 1e-300)) @ times - np.log(laws[x][at]) @ times
        gains.append(np.logaddexp.reduce(likely) - np.log(len(other)))
    return int(cells.states[np.argmax(gains)])


def planted(cell, seed, permutations):
    """Return the p-values of all tests; 1 if the planted row comes first, and 1 if the oracle finds it."""
    n = cell.states
    rng = np.random.default_rng([seed, n, list(PLANTED).index(cell.planted)])
    chain = CHAINS[cell.chains](n, np.random.default_rng([FRESH + seed % 50, n, 1]))
    where, amounts = PLANTED[cell.planted](n, int(chain.stationary_distribution.argmax()))
    amount = amounts["long" if cell.scene == "long" else "short"]
    other = CHANGES[cell.change](chain, where, amount, rng)
    design = design_of([chain, other], SCENES[cell.scene], True, rng)
    p, first = two_groups(design, permutations, rng)
    best = oracle(design, chain, cell.change, amount, rng)
    return [*p, float(first == where[0]), float(best == where[0])]


def shifts(design, permutations, rng):
    """Return √(h_x/v_x) W_x of all rows (B, R), for the data and for permutations of them."""
    cells, metric = design.counted.cells, design.metric
    parts = design.draws(permutations, rng)
    return np.concatenate([row_statistics(cells, metric, one[:, 0], one[:, 1]).shift for one in parts])


def largest_shift(chain, other, scene, seed):
    """Return the p-value of max_x √(h_x/v_x) W_x for one dataset."""
    rng = np.random.default_rng([FRESH, seed])
    found = shifts(design_of([chain, other], SCENES[scene], True, rng), 99, rng)
    return float(tail_probabilities(found.max(axis=1))[0])


@cache
def barely(cell, k):
    """Return a chain, the planted row, and the amount and the chain of a change of the given power."""
    rng = np.random.default_rng([2 * FRESH, k, *map(ord, cell.name)])
    chain, target = CHAINS[cell.chains](cell.states, rng), BARELY[cell.scene, cell.planted]
    (where,), _ = PLANTED[cell.planted](cell.states, int(chain.stationary_distribution.argmax()))

    def power(law, amount):
        P = chain.transition.copy()
        P[where] = (1 - amount) * P[where] + amount * law
        other = db.MarkovChain(P, initial=chain.initial, rewards=chain.rewards)
        return other, share([largest_shift(chain, other, cell.scene, s) for s in range(SIMULATED)])

    law = rng.dirichlet(np.ones(cell.states))
    while power(law, 1.0)[1] < target:
        law = rng.dirichlet(np.ones(cell.states))
    low, high = 0.0, 1.0
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (middle, high) if power(law, middle)[1] < target else (low, middle)
    return chain, where, high, power(law, high)[0]


def located(cell, seed, permutations):
    """Return what ``planted`` returns; 1 if √(h/v) W finds the row, and the p-value of its maximum."""
    chain, where, amount, other = barely(cell, seed % CHAINS_LOCATED)
    rng = np.random.default_rng([3 * FRESH + seed, *map(ord, cell.name)])
    design = design_of([chain, other], SCENES[cell.scene], True, rng)
    p, first = two_groups(design, permutations, rng)
    best = oracle(design, chain, "mixed", amount, rng)
    plain = shifts(design, permutations, rng)
    named = int(design.counted.cells.states[plain[0].argmax()])
    rank = [float(row == where) for row in (first, best, named)]
    return [*p, *rank, tail_probabilities(plain.max(axis=1))[0]]


WORK = {
    "level": false_alarm,
    "few": false_alarm,
    "sessions": sessions,
    "times": times,
    "groups": any_pair,
    "power": planted,
    "located": located,
}


def work(job):
    cell, seed, permutations = job
    return [round(float(value), 6) for value in WORK[cell.table](cell, seed, permutations)]


# --- tables -------------------------------------------------------------------------------------------------------


def cells_of(tables, states):
    """Return the rows of these tables, cheap ones first."""
    for n in states:
        parts = {
            "level": [Cell("level", n, scene) for scene in SCENES],
            "sessions": [Cell("sessions", n, scene) for scene in SESSIONS],
            "times": [Cell("times", n, scene) for scene in TIMES],
            "few": [Cell("few", n, scene) for scene in FEW],
            "groups": [Cell("groups", n, scene) for scene in ("alike", "one differs")] if n == 5 else [],
            "power": [
                Cell("power", n, scene, kind, chains, change)
                for chains, change, scene in product(CHAINS, CHANGES, ("short", "long", "lengths"))
                for kind in PLANTED if kind != "starts" or scene == "short"
            ],
            "located": [Cell("located", n, *one, chains) for one in BARELY for chains in CHAINS] if n == 5 else [],
        }  # fmt: skip
        for table in tables:
            yield from parts[table]


def share(p):
    return float(np.mean(np.asarray(p) <= ALPHA + 1e-12))


def row(cell, found):
    """Format the fractions of datasets that are rejected, and whose planted row comes first (all, rejected, oracle)."""
    table = np.array(found)
    shares = [share(column) for column in table.T[: len(TESTS)]]
    if cell.table in ("power", "located") and cell.planted != "drift":
        rejected = table[:, 0] <= ALPHA + 1e-12
        first, best = table.T[len(TESTS) : len(TESTS) + 2]
        shares += [first.mean(), first[rejected].mean() if rejected.any() else np.nan, best.mean()]
    if cell.table == "located":
        shares += [table[:, -2].mean(), share(table[:, -1])]
    return shares


def show(cell, found):
    print(f"{cell.name:38s}{len(found):5d} ", " ".join(f"{value:6.3f}" for value in row(cell, found)), flush=True)


def means(kept, states):
    """Return the mean power over the scenes in which all tests keep their level."""
    for sizes in [[n] for n in states] + [states] * (len(states) > 1):
        rows = [row(c, p)[: len(TESTS)] for c, p in kept.items()
                if c.table == "power" and c.scene != "lengths" and c.states in sizes and p]  # fmt: skip
        if rows:
            name = f"mean power, {'/'.join(map(str, sizes))} states"
            print(f"{name:38s}{len(rows):5d} ", " ".join(f"{value:6.3f}" for value in np.mean(rows, axis=0)))


class Kept:
    """The p-values of all cells, in a file that is appended to; a line has a cell, its first seed and p-values."""

    def __init__(self, path: Path | None, permutations: int) -> None:
        self.path, self.permutations = path, permutations
        self.found: dict[Cell, list[Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                if entry["permutations"] == permutations:
                    self._add(Cell(*entry["cell"]), entry["first"], entry["p"])

    def _add(self, cell, first, p):
        known = self.found.setdefault(cell, [])
        assert len(known) == first, f"{cell.name}: seeds from {first} on, and {len(known)} are known"
        known += p

    def add(self, cell, p):
        entry = {"cell": cell, "permutations": self.permutations, "first": len(self.found.get(cell, [])), "p": p}
        self._add(cell, entry["first"], p)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=TABLES, metavar="table", help=", ".join(TABLES))
    parser.add_argument("--datasets", type=int, default=600)
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--states", type=int, nargs="*", default=[5, 20, 50])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kept", type=Path, help="a file that p-values are added to, and read from")
    s = parser.parse_args()
    cells, kept = list(cells_of(s.tables, s.states)), Kept(s.kept, s.permutations)
    print(f"{s.permutations} permutations, alpha {ALPHA}; datasets, and shares rejected by {', '.join(TESTS)};")
    print("planted row first by z: of all, of those that our test rejects, and of all by the oracle;")
    print("located: of all by √(h/v) W, and share rejected by its maximum")
    with ProcessPoolExecutor(s.workers) as pool:
        for end in range(min(ROUND, s.datasets), s.datasets + ROUND, ROUND):
            for cell in cells:
                seeds = range(len(kept.found.get(cell, [])), min(end, s.datasets))
                if seeds:
                    kept.add(
                        cell, list(pool.map(work, [(cell, s.first + k, s.permutations) for k in seeds], chunksize=5))
                    )
                    show(cell, kept.found[cell])
    print("\nall of it")
    for cell in cells:
        show(cell, kept.found[cell])
    means({cell: kept.found[cell] for cell in cells}, s.states)


if __name__ == "__main__":
    main()
