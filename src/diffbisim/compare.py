"""Several groups of episodes at once, and how many episodes it takes to see a difference.

``compare`` solves the distances of all pairs of groups and asks of each whether it is more than chance, in one
permutation test that is corrected for the number of pairs (standardized max-T, evidence.py).

``power`` answers before the data are there: from two chains that differ as much as matters (or from a pilot study,
whose episodes are drawn with replacement) datasets of several sizes are made, each is tested, and counted is how
often the difference is seen. With n datasets a share p of them is known to about √(p(1-p)/n).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions, Unseen
from diffbisim.checks import as_number, check_count, freeze
from diffbisim.cost import ground_cost
from diffbisim.distance import make_solver, solve
from diffbisim.errors import InvalidArgument
from diffbisim.estimate import NOT_EXCHANGEABLE, check_draws, check_unseen, make_sources, stratum_numbers, warn_of_few
from diffbisim.evidence import Design, PairEvidence, compare_pairs, compare_two, count_episodes, count_for_test
from diffbisim.pairwise import pairwise
from diffbisim.parallel import Executor, batches, executor_map
from diffbisim.problem import Array
from diffbisim.process import as_process
from diffbisim.progress import Progress
from diffbisim.questions import Question
from diffbisim.stochastic import as_generator

#: Sizes that ``power`` tries.
EPISODES = (10, 20, 40, 80, 160, 320)


# --- several groups -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Comparison:
    """Distances between groups and the evidence for each; ``str()`` is a table, ``records()`` one for programs."""

    groups: tuple[Any, ...]
    values: Array = field(repr=False)  # (G, G) distances of the empirical chains
    p_values: Array = field(repr=False)  # (G, G) corrected for the number of pairs; one on the diagonal
    p_value: float  # that all groups are alike
    confidence: float
    evidence: PairEvidence = field(repr=False)
    rows: tuple[Any, ...] = field(repr=False)  # the names of the rows of ``evidence.z``

    @property
    def conclusion(self) -> str:
        """What the p-values say, in words; that there is no evidence does not make groups equal."""
        seen = sum(record["differ"] for record in self.records())
        if not seen:
            return "no evidence of a difference between any two groups at this sample size"
        return f"evidence that they differ for {seen} of {len(self.evidence.pairs)} pairs of groups"

    def records(self) -> list[dict[str, Any]]:
        """One mapping for each pair of groups, the smallest p-value first."""
        found = [
            {
                "a": self.groups[g],
                "b": self.groups[k],
                "value": float(self.values[g, k]),
                "p_value": float(self.evidence.p_values[i]),
                "p_single": float(self.evidence.p_single[i]),
                "differ": bool(self.evidence.p_values[i] <= 1 - self.confidence + 1e-12),
                "most": self.rows[int(self.evidence.z[i].argmax())],
            }
            for i, (g, k) in enumerate(self.evidence.pairs)
        ]
        return sorted(found, key=lambda record: (record["p_value"], record["p_single"]))

    def __str__(self) -> str:
        lines = [("a", "b", "distance", "p (all pairs)", "p (this pair)", "differ?", "most in")]
        for r in self.records():
            numbers = f"{r['value']:.4g}", f"{r['p_value']:.3g}", f"{r['p_single']:.3g}"
            differ = "evidence" if r["differ"] else "no evidence"
            lines.append((str(r["a"]), str(r["b"]), *numbers, differ, str(r["most"])))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = "\n".join("  ".join(f"{w:{n}}" for w, n in zip(line, widths, strict=True)).rstrip() for line in lines)
        return f"{table}\n{self.conclusion}"


def compare(
    groups: Mapping[Any, Transitions | Sequence[Any]],
    cost: Any = "reward",
    discount: float = 0.95,
    solver: Any = "exact",
    *,
    rewards: Any = None,
    initial: Any = None,
    unseen: Unseen = "self-loop",
    strata: Mapping[Any, Any] | None = None,
    confidence: float = 0.95,
    permutations: int = 999,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Comparison:
    """Which of several groups of episodes differ: distances of all pairs, with p-values corrected for their number.

    Parameters
    ----------
    groups : name -> :class:`Transitions`, or a list of trajectories; all on the same states
    cost, discount, solver : as for :func:`diffbisim.distance`
    rewards, initial, unseen : as for :func:`diffbisim.estimate`, one for all groups
    strata : name -> for each episode of the group what it shares with others (an age, a device): episodes are compared
        and permuted within strata only. The values are those of the groups as they are
    confidence : one minus the probability to find any difference where there is none
    permutations, rng : of the test
    executor, progress : as for :func:`diffbisim.pairwise`

    Examples
    --------
    >>> from diffbisim import examples
    >>> walks = {f: [examples.drift_walk(f, 5).sample(20, rng=k) for k in range(30)] for f in (0.0, 0.1, 1.5)}
    >>> found = compare(walks, rewards=range(5), discount=0.9)
    >>> [(pair["a"], pair["b"]) for pair in found.records() if pair["differ"]]
    [(0.0, 1.5), (0.1, 1.5)]
    """
    if not isinstance(groups, Mapping) or len(groups) < 2:
        raise InvalidArgument('groups must be a mapping of at least two groups, such as {"A": data, "B": data}')
    if not 0 < as_number(confidence) < 1:
        raise InvalidArgument(f"confidence is {confidence!r}; give a probability such as 0.95")
    check_draws(permutations)
    check_unseen(unseen)
    data = same_states(groups)
    sources = make_sources(data, rewards, initial, unseen)
    chains = [source.chain() for source in sources]
    table = ground_cost(cost, chains[0], chains[0])
    if np.diag(table).any():
        raise InvalidArgument(f"groups are compared by exchanging episodes, and {NOT_EXCHANGEABLE}")
    if strata is not None and (not isinstance(strata, Mapping) or set(strata) != set(data)):
        raise InvalidArgument("strata must have the names of the groups, each with one entry per episode")
    numbers = None if strata is None else stratum_numbers([strata[name] for name in data], list(data.values()))
    counted, permute = count_for_test(list(data.values()), numbers)
    design = Design(counted, table, discount, permute, labels=chains[0].labels)
    warn_of_few(sources, design)
    evidence = compare_pairs(design, permutations, as_generator(rng))
    values = pairwise(
        chains, cost if isinstance(cost, str) else table, discount, solver, executor=executor, progress=progress
    )
    p_values = np.ones_like(values)
    for (g, k), p in zip(evidence.pairs, evidence.p_values, strict=True):
        p_values[g, k] = p_values[k, g] = p
    return Comparison(
        tuple(data), freeze(values), freeze(p_values), evidence.p_value, float(confidence), evidence, design.names()
    )


def same_states(groups: Mapping[Any, Any]) -> dict[Any, Transitions]:
    """Groups as Transitions on one state space; lists of trajectories are numbered together."""
    lists = {name: list(one) for name, one in groups.items() if not isinstance(one, Transitions)}
    data = {name: one for name, one in groups.items() if isinstance(one, Transitions)}
    if lists and data:
        states: Any = next(iter(data.values()))
        given: Any = states.n_states if states.labels is None else list(states.labels)
        data |= {name: Transitions.from_trajectories(paths, states=given) for name, paths in lists.items()}
    elif lists:
        joint = Transitions.from_trajectories([path for paths in lists.values() for path in paths])
        ends = np.cumsum([len(paths) for paths in lists.values()])
        for name, end, paths in zip(lists, ends.tolist(), lists.values(), strict=True):
            data[name] = joint.take(np.arange(end - len(paths), end))
    first = next(iter(data.values()))
    for name, one in data.items():
        if (one.labels, one.n_states) != (first.labels, first.n_states):
            raise InvalidArgument(
                f"groups[{name!r}] has other states than the first group; give states= when making Transitions, or "
                "lists of trajectories"
            )
    return {name: data[name] for name in groups}


# --- how many episodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Power:
    """How often a difference is seen, by the number of episodes in each group."""

    episodes: tuple[int, ...]
    power: Array  # share of datasets in which it was seen
    target: float
    level: float
    datasets: int
    value: float  # the distance that is to be seen

    @property
    def standard_error(self) -> Array:
        """Of the shares, by the number of datasets."""
        return np.sqrt(self.power * (1 - self.power) / self.datasets)

    @property
    def needed(self) -> int | None:
        """Episodes in each group for the target, interpolated between those tried; None: more than all of them."""
        above = np.flatnonzero(self.power >= self.target)
        if not above.size:
            return None
        k = int(above[0])
        if k == 0:
            return self.episodes[0]
        n, p = np.log(self.episodes[k - 1 : k + 1]), self.power[k - 1 : k + 1]
        return int(np.ceil(np.exp(n[0] + (self.target - p[0]) / (p[1] - p[0]) * (n[1] - n[0])) - 1e-9))

    def records(self) -> list[dict[str, Any]]:
        """One mapping for each number of episodes."""
        columns = zip(self.episodes, self.power.tolist(), self.standard_error.tolist(), strict=True)
        return [{"episodes": n, "power": p, "standard_error": s} for n, p, s in columns]

    def __str__(self) -> str:
        lines = [f"{r['episodes']:8d}  {r['power']:.3f} ± {r['standard_error']:.3f}" for r in self.records()]
        number = f"about {self.needed}" if self.needed else f"more than {self.episodes[-1]}"
        end = f"a power of {self.target:g} takes {number} episodes in each group"
        return "\n".join(["episodes  power", *lines, end])


def power(
    X: MarkovChain | Transitions,
    Y: MarkovChain | Transitions,
    cost: Any = "reward",
    discount: float = 0.95,
    *,
    episodes: Sequence[int] = EPISODES,
    length: int | Sequence[int] | None = None,
    rewards: Any = None,
    target: float = 0.8,
    level: float = 0.05,
    datasets: int = 200,
    permutations: int = 199,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Power:
    """How many episodes it takes to see a difference of this size, by simulation.

    Parameters
    ----------
    X, Y : two chains on the same states that differ as much as matters; or data of a pilot study, whose episodes are
        drawn with replacement (few of them make the difference look larger than it is, and the power with it)
    cost, discount : as for :func:`diffbisim.distance`
    episodes : numbers of episodes in each group to try
    length : steps of an episode, or a sequence of lengths to draw from; for chains
    rewards : for data, as for :func:`diffbisim.estimate`
    target : the power that is wanted
    level : how often a difference may be seen where there is none
    datasets : simulated datasets for each number of episodes
    permutations : of each test
    rng, executor, progress : as for :func:`diffbisim.estimate`

    Examples
    --------
    >>> from diffbisim import examples
    >>> X, Y = examples.drift_walk(0.0, 5), examples.drift_walk(1.0, 5)
    >>> found = power(X, Y, episodes=(5, 20), length=15, datasets=40)
    >>> bool(found.power[1] > 0.9)
    True
    """
    sizes = tuple(sorted(check_count(n, "episodes") for n in episodes))
    if not sizes or sizes[0] < 4:
        raise InvalidArgument(
            f"episodes is {episodes!r}; give numbers of at least 4, which is the fewest that can be permuted"
        )
    for name, share in (("target", target), ("level", level)):
        if not 0 < as_number(share) < 1:
            raise InvalidArgument(f"{name} is {share!r}; give a probability")
    check_draws(permutations)
    if check_count(datasets, "datasets") < 1:
        raise InvalidArgument("datasets is 0; give at least one, better 200")
    X, Y = as_process(X), as_process(Y)
    lengths = _lengths(length, (X, Y))
    chains = [source.chain() for source in make_sources({"X": X, "Y": Y}, rewards, "first", "self-loop")]
    if chains[0].labels != chains[1].labels or chains[0].n_states != chains[1].n_states:
        raise InvalidArgument(
            "X and Y have other states than each other; give both the same states= or labels, in one order"
        )
    table = ground_cost(cost, chains[0], chains[1])
    if np.diag(table).any():
        raise InvalidArgument(f"X and Y are compared by exchanging episodes, and {NOT_EXCHANGEABLE}")
    value = solve(Question().problem(chains[0], chains[1], table, discount), make_solver("exact")).value
    work = partial(_seen, (X, Y), table, discount, lengths, (permutations, level))
    jobs = [(n, seed) for n in sizes for seed in as_generator(rng).spawn(datasets)]
    seen = np.concatenate(executor_map(work, batches(jobs, 8), executor, progress, "datasets"))
    shares = seen.reshape(len(sizes), datasets).mean(axis=1)
    return Power(sizes, freeze(shares), float(target), float(level), datasets, value)


def _lengths(length: Any, sides: Sequence[Any]) -> Any:
    if length is None:
        if any(isinstance(side, MarkovChain) for side in sides):
            raise InvalidArgument("length is missing: how many steps does an episode of a chain have?")
        return None
    lengths = np.atleast_1d(np.asarray(length))
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer) or not lengths.size or lengths.min() < 1:
        raise InvalidArgument(f"length is {length!r}; give a number of steps, or several to draw from")
    return lengths


def _seen(
    sides: Sequence[Any], cost: Array, discount: float, lengths: Any, how: tuple[int, float], jobs: Sequence[Any]
) -> Array:
    """Whether the difference is seen in some simulated datasets; runs in a worker."""
    permutations, level = how
    out = []
    for n, seed in jobs:
        data = [_simulated(side, n, lengths, seed) for side in sides]
        design = Design(count_episodes(data), cost, discount, permute=True)
        out.append(compare_two(design, permutations, seed).p_value <= level + 1e-12)
    return np.array(out, dtype=np.float64)


def _simulated(side: Any, n: int, lengths: Any, rng: np.random.Generator) -> Transitions:
    if isinstance(side, Transitions):
        return side.take(rng.integers(side.n_episodes, size=n))
    return Transitions.from_trajectories(simulate(side, rng.choice(lengths, size=n), rng), states=side.n_states)


def simulate(chain: MarkovChain, lengths: Any, rng: np.random.Generator) -> list[Any]:
    """Paths of so many steps; number t of each is drawn by row t of one table of uniforms."""
    starts = rng.choice(chain.n_states, size=len(lengths), p=chain.initial).tolist()
    uniforms = rng.random((int(max(lengths)), len(lengths))).T.tolist()
    step, paths = chain.successors.step(), []
    for s, numbers, length in zip(starts, uniforms, lengths, strict=True):
        path = [s]
        for u in numbers[:length]:
            path.append(step(path[-1], u))
        paths.append(np.array(path, dtype=np.int64))
    return paths
