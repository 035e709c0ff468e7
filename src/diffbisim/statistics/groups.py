"""Comparison of several groups of episodes, and power analysis.

``compare`` computes the distances between all pairs of groups and tests each of them in one permutation test, corrected
for the number of pairs (standardized max-T, permutation.py).

``power`` helps to plan a study: it simulates datasets of several sizes from two chains with the difference of interest
(or from a pilot study, by drawing episodes with replacement), tests each, and counts how often the difference is
detected. With n datasets the standard error of an estimated power p is √(p(1-p)/n).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from diffbisim.common.arrays import Array
from diffbisim.common.checks import check_count, check_discount, check_probability, freeze
from diffbisim.common.errors import InvalidArgument, quietly, warn_of_input
from diffbisim.common.parallel import Executor, batches, executor_map
from diffbisim.common.progress import Progress
from diffbisim.distances.chains import make_solver, solve
from diffbisim.distances.many import pairwise
from diffbisim.problems import Criterion, Discounted
from diffbisim.processes.chain import MarkovChain, Transitions, Unseen
from diffbisim.processes.convert import as_processes, check_lags
from diffbisim.processes.cost import ground_cost
from diffbisim.processes.stochastic import as_generator
from diffbisim.statistics.estimation import (
    NOT_EXCHANGEABLE,
    assumptions,
    chains_of,
    check_draws,
    check_ends,
    check_same_ends,
    check_unseen,
    grouped,
    make_sources,
    stratum_numbers,
    warn_of_ends,
    warn_of_few,
)
from diffbisim.statistics.permutation import (
    Design,
    PairEvidence,
    compare_pairs,
    compare_two,
    count_episodes,
    count_for_test,
)

#: Default numbers of episodes for ``power``.
EPISODES = (10, 20, 40, 80, 160, 320)


# --- several groups -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Comparison:
    """Distances between groups with p-values; ``str()`` gives a table and ``records()`` a list of dicts."""

    groups: tuple[Any, ...]  # their G names
    values: Array = field(repr=False)  # (G, G) distances between the empirical chains
    p_values: Array = field(repr=False)  # (G, G) corrected for the number of pairs; one on the diagonal
    p_value: float  # for the hypothesis that all groups are equal
    alpha: float  # level of the test: the probability of finding any difference if there is none
    evidence: PairEvidence = field(repr=False)  # statistics of all pairs and rows
    rows: tuple[Any, ...] = field(repr=False)  # names of the rows of ``evidence.z``
    assumed: tuple[str, ...] = field(default=(), repr=False)  # what was assumed about the data, as sentences

    @property
    def conclusion(self) -> str:
        """The conclusion from the p-values, as a sentence."""
        seen = sum(record["differ"] for record in self.records())
        if not seen:
            return "no evidence of a difference between any two groups at this sample size"
        return f"evidence that they differ for {seen} of {len(self.evidence.pairs)} pairs of groups"

    def records(self) -> list[dict[str, Any]]:
        """Return one dict per pair of groups, smallest p-value first."""
        found = [
            {
                "a": self.groups[g],
                "b": self.groups[k],
                "value": float(self.values[g, k]),
                "p_value": float(self.evidence.p_values[i]),
                "p_single": float(self.evidence.p_single[i]),
                "differ": bool(self.evidence.p_values[i] <= self.alpha + 1e-12),
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
    cluster: Any = None,
    alpha: float = 0.05,
    permutations: int = 999,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Comparison:
    """Test which of several groups of episodes differ, with p-values corrected for the number of pairs.

    Parameters
    ----------
    groups : mapping from names to Transitions or lists of trajectories
        The groups, all on the same states.
    cost, discount, solver : as for :func:`diffbisim.distance`
    rewards, initial, unseen : as for :func:`diffbisim.estimate`
        The same for all groups.
    strata : mapping from names to sequences, default=None
        A stratum (such as an age or a device) for each episode of each group; the test compares and permutes episodes
        within strata only. The distances do not use them. By default those of the data, if they have any.
    cluster : mapping from names to sequences, or "episode", default=None
        A cluster (such as a person) for each episode of each group; whole clusters are permuted. By default those of
        the data; "episode" treats all episodes as independent.
    alpha : float, default=0.05
        Level of the test: the probability of finding any difference if there is none.
    permutations : int, default=999
    rng : int or Generator, default=0
    executor, progress : as for :func:`diffbisim.pairwise`

    Returns
    -------
    comparison : Comparison

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
    discount = check_discount(discount)
    check_probability(alpha, "alpha")
    check_draws(permutations)
    check_unseen(unseen)
    data = same_states(groups)
    parts = [_by_group(one, name, data) for one, name in ((cluster, "cluster"), (strata, "strata"))]
    data, layers = grouped(data, *parts)
    check_ends(data, initial, Criterion())
    sources = make_sources(data, rewards, initial, unseen)
    warn_of_ends(data)
    chains = chains_of(sources)
    table = ground_cost(cost, chains[0], chains[0])
    if np.diag(table).any():
        raise InvalidArgument(f"groups are compared by exchanging episodes, but {NOT_EXCHANGEABLE}")
    numbers = None if layers is None else stratum_numbers(layers, list(data.values()))
    counted, permute = count_for_test(list(data.values()), numbers)
    design = Design(counted, table, discount, permute, names=chains[0].names)
    warn_of_few(sources, design)
    evidence = compare_pairs(design, permutations, as_generator(rng))
    values = pairwise(
        chains, cost if isinstance(cost, str) else table, discount, solver, executor=executor, progress=progress
    )
    p_values = np.ones_like(values)
    for (g, k), p in zip(evidence.pairs, evidence.p_values, strict=True):
        p_values[g, k] = p_values[k, g] = p
    return Comparison(
        tuple(data), freeze(values), freeze(p_values), evidence.p_value, float(alpha), evidence,
        design.row_names(), assumptions(data, rewards, sources),
    )  # fmt: skip


def _by_group(given: Any, name: str, data: Mapping[Any, Any]) -> Any:
    """Return the entries of a mapping in the order of the groups; None and "episode" are returned unchanged."""
    if given is None or (name == "cluster" and isinstance(given, str)):
        return given
    if not isinstance(given, Mapping) or set(given) != set(data):
        raise InvalidArgument(f"{name} must be a mapping with the names of the groups and one entry per episode")
    return [given[group] for group in data]


def same_states(groups: Mapping[Any, Any]) -> dict[Any, Transitions]:
    """Return the groups as Transitions on one state space; lists of trajectories are encoded together."""
    for name, one in groups.items():
        if isinstance(one, (str, bytes)) or not isinstance(one, (Transitions, Iterable)):
            raise InvalidArgument(
                f"groups[{name!r}] is a {type(one).__name__}; give Transitions or a list of trajectories"
            )
    lists = {name: list(one) for name, one in groups.items() if not isinstance(one, Transitions)}
    data = {name: one for name, one in groups.items() if isinstance(one, Transitions)}
    if lists and data:
        states: Any = next(iter(data.values()))
        given: Any = states.n_states if states.names is None else list(states.names)
        data |= {name: Transitions.from_trajectories(paths, states=given) for name, paths in lists.items()}
    elif lists:
        joint = Transitions.from_trajectories([path for paths in lists.values() for path in paths])
        ends = np.cumsum([len(paths) for paths in lists.values()])
        for name, end, paths in zip(lists, ends.tolist(), lists.values(), strict=True):
            data[name] = joint.take(np.arange(end - len(paths), end))
    check_same_ends(data)
    first = next(iter(data.values()))
    for name, one in data.items():
        if (one.names, one.n_states) != (first.names, first.n_states):
            raise InvalidArgument(
                f"groups[{name!r}] and the first group have different states; pass states= when creating Transitions, "
                "or give lists of trajectories"
            )
    check_lags([data[name] for name in groups], [f"groups[{name!r}]" for name in groups])
    return {name: data[name] for name in groups}


# --- power analysis -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Power:
    """The power of the test by the number of episodes per group."""

    episodes: tuple[int, ...]  # the numbers that were tried
    power: Array  # fraction of datasets in which the difference was detected
    target: float  # the power asked for
    alpha: float  # level of the test
    datasets: int  # number of simulated datasets for each number of episodes
    value: float  # the distance to be detected
    unit: str = "episodes"  # what was counted: "episodes", or "clusters" of them

    @property
    def standard_error(self) -> Array:
        """Standard errors of the estimated powers."""
        return np.sqrt(self.power * (1 - self.power) / self.datasets)

    @property
    def needed(self) -> int | None:
        """Episodes per group needed for the target power, interpolated; None if more than the largest number tried."""
        above = np.flatnonzero(self.power >= self.target)
        if not above.size:
            return None
        k = int(above[0])
        if k == 0:
            return self.episodes[0]
        n, p = np.log(self.episodes[k - 1 : k + 1]), self.power[k - 1 : k + 1]
        return int(np.ceil(np.exp(n[0] + (self.target - p[0]) / (p[1] - p[0]) * (n[1] - n[0])) - 1e-9))

    def records(self) -> list[dict[str, Any]]:
        """Return one dict per number of episodes."""
        columns = zip(self.episodes, self.power.tolist(), self.standard_error.tolist(), strict=True)
        return [{"episodes": n, "power": p, "standard_error": s} for n, p, s in columns]

    def __str__(self) -> str:
        lines = [f"{r['episodes']:8d}  {r['power']:.3f} ± {r['standard_error']:.3f}" for r in self.records()]
        number = f"about {self.needed}" if self.needed else f"more than {self.episodes[-1]}"
        end = f"a power of {self.target:g} takes {number} {self.unit} in each group"
        return "\n".join([f"{self.unit:8s}  power", *lines, end])


def _warn_of_pilot(X: Any, Y: Any, about: tuple[Any, float, Any], test: tuple[int, float]) -> None:
    """Warn if a pilot study shows no evidence of the difference that is to be detected."""
    (cost, discount, rewards), (permutations, alpha) = about, test
    if not (isinstance(X, Transitions) and isinstance(Y, Transitions)) or min(X.n_clusters, Y.n_clusters) < 4:
        return
    with quietly():
        found = compare({"X": X, "Y": Y}, cost, discount, rewards=rewards, permutations=permutations)
    if found.p_value > alpha:
        warn_of_input(
            f"the pilot data show no evidence of a difference (p = {found.p_value:.2g}). power draws from them as they "
            "are, so that it takes their noise for a difference and overestimates the power; pass two chains with the "
            "difference that you want to detect"
        )


def power(
    X: MarkovChain | Transitions,
    Y: MarkovChain | Transitions,
    cost: Any = "reward",
    discount: float = 0.95,
    *,
    episodes: Sequence[int] = EPISODES,
    length: int | Sequence[int] | None = None,
    rewards: Any = None,
    cluster: Any = None,
    target: float = 0.8,
    alpha: float = 0.05,
    datasets: int = 200,
    permutations: int = 199,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Power:
    """Estimate by simulation how many episodes are needed to detect a difference.

    Parameters
    ----------
    X, Y : MarkovChain or Transitions
        Two chains on the same states with the difference of interest, or the data of a pilot study, whose episodes are
        drawn with replacement. A pilot study overestimates the difference and the power, the more the smaller it is;
        if it shows no evidence of a difference, a warning says so.
    cost, discount : as for :func:`diffbisim.distance`
    episodes : sequence of int, default=(10, 20, 40, 80, 160, 320)
        Numbers of episodes per group to try; for data with clusters, numbers of clusters.
    length : int or sequence of int, default=None
        Number of steps of an episode, or lengths to draw from; required for chains.
    rewards : as for :func:`diffbisim.estimate`, default=None
        For data.
    cluster : as for :func:`diffbisim.estimate`, default=None
        Clusters of the episodes of a pilot study, which are drawn as a whole. By default those of the data.
    target : float, default=0.8
        Desired power.
    alpha : float, default=0.05
        Level of the test: the probability of a false positive.
    datasets : int, default=200
        Number of simulated datasets for each number of episodes.
    permutations : int, default=199
        Number of permutations in each test.
    rng, executor, progress : as for :func:`diffbisim.estimate`

    Returns
    -------
    power : Power

    Examples
    --------
    >>> from diffbisim import examples
    >>> X, Y = examples.drift_walk(0.0, 5), examples.drift_walk(1.0, 5)
    >>> found = power(X, Y, episodes=(5, 20), length=15, datasets=40)
    >>> bool(found.power[1] > 0.9)
    True
    """
    numbers: Any = [episodes] if isinstance(episodes, (int, np.integer)) else episodes
    sizes = tuple(sorted(check_count(n, "episodes") for n in numbers))
    if not sizes or sizes[0] < 4:
        raise InvalidArgument(
            f"episodes is {episodes!r}; give numbers of at least 4, the minimum for a permutation test"
        )
    discount = check_discount(discount)
    check_probability(target, "target")
    check_probability(alpha, "alpha")
    check_draws(permutations)
    check_count(datasets, "datasets", 1)
    X, Y = as_processes((X, Y))
    lengths = _lengths(length, (X, Y))
    (X, Y), unit = _pilot(X, Y, cluster, rewards)
    chains = chains_of(make_sources({"X": X, "Y": Y}, rewards, "first", "self-loop"))
    if chains[0].names != chains[1].names or chains[0].n_states != chains[1].n_states:
        raise InvalidArgument("X and Y have different states; give both the same states= or names, in the same order")
    table = ground_cost(cost, chains[0], chains[1])
    if np.diag(table).any():
        raise InvalidArgument(f"X and Y are compared by exchanging episodes, but {NOT_EXCHANGEABLE}")
    _warn_of_pilot(X, Y, (cost, discount, rewards), (permutations, alpha))
    value = solve(Discounted.make(chains[0], chains[1], table, discount), make_solver("exact")).value
    work = partial(_detected, (X, Y), table, discount, lengths, (permutations, alpha))
    jobs = [(n, seed) for n in sizes for seed in as_generator(rng).spawn(datasets)]
    seen = np.concatenate(executor_map(work, batches(jobs, 8), executor, progress, "datasets"))
    shares = seen.reshape(len(sizes), datasets).mean(axis=1)
    return Power(sizes, freeze(shares), float(target), float(alpha), datasets, value, unit)


def _pilot(X: Any, Y: Any, cluster: Any, rewards: Any) -> tuple[list[Any], str]:
    """Return both sides with their clusters, and what is drawn from them: "episodes" or "clusters"."""
    data, strata = grouped({"X": X, "Y": Y}, cluster, None)
    check_same_ends(data)
    observed = [side for side in data.values() if isinstance(side, Transitions)]
    if strata is not None:
        raise InvalidArgument("the data have strata, which power does not support; create them without strata")
    for name, given in (("rewards", rewards), ("cluster", cluster)):
        if given is not None and not observed:
            raise InvalidArgument(f"{name} is for data, but X and Y are chains; omit it")
    clustered = [side.clusters is not None for side in observed]
    if any(clustered) and not (all(clustered) and len(observed) == 2):
        raise InvalidArgument('only one side has clusters; give both clusters, or pass cluster="episode"')
    return list(data.values()), "clusters" if any(clustered) else "episodes"


def _lengths(length: Any, sides: Sequence[Any]) -> Any:
    if length is None:
        if any(isinstance(side, MarkovChain) for side in sides):
            raise InvalidArgument("length is missing; give the number of steps of an episode")
        return None
    if not any(isinstance(side, MarkovChain) for side in sides):
        raise InvalidArgument(
            "length is for chains, but X and Y are data, whose episodes are drawn as they are; omit it"
        )
    lengths = np.atleast_1d(np.asarray(length))
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer) or not lengths.size or lengths.min() < 1:
        raise InvalidArgument(f"length is {length!r}; give a positive number of steps, or several to draw from")
    return lengths


def _detected(
    sides: Sequence[Any], cost: Array, discount: float, lengths: Any, how: tuple[int, float], jobs: Sequence[Any]
) -> Array:
    """Return whether the difference is detected in each simulated dataset; runs in a worker."""
    permutations, alpha = how
    out = []
    for n, seed in jobs:
        data = [_simulated(side, n, lengths, seed) for side in sides]
        design = Design(count_episodes(data), cost, discount, permute=True)
        out.append(compare_two(design, permutations, seed).p_value <= alpha + 1e-12)
    return np.array(out, dtype=np.float64)


def _simulated(side: Any, n: int, lengths: Any, rng: np.random.Generator) -> Transitions:
    if isinstance(side, Transitions):
        return side.take_clusters(rng.integers(side.n_clusters, size=n))
    return Transitions.from_trajectories(simulate(side, rng.choice(lengths, size=n), rng), states=side.n_states)


def simulate(chain: MarkovChain, lengths: Any, rng: np.random.Generator) -> list[Any]:
    """Sample paths with the given numbers of steps; step t of all paths uses row t of one table of uniforms."""
    starts = rng.choice(chain.n_states, size=len(lengths), p=chain.initial).tolist()
    uniforms = rng.random((int(max(lengths)), len(lengths))).T.tolist()
    step, paths = chain.successors.step(), []
    for s, numbers, length in zip(starts, uniforms, lengths, strict=True):
        path = [s]
        for u in numbers[:length]:
            path.append(step(path[-1], u))
        paths.append(np.array(path, dtype=np.int64))
    return paths
