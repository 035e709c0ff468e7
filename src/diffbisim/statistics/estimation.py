"""Estimation of the distance between two processes from data, with a confidence interval and a test.

The *plug-in* estimate d̂ is the exact distance between the empirical chains. Sampling noise makes chains look different,
so d̂ is biased upward, most visibly if the true distance is near zero. Two kinds of resampled data correct for this:

*Bootstrap*, d*: episodes (or clusters of them) are drawn with replacement and the chains estimated again. The
distribution of d* around d̂ approximates that of d̂ around the true distance; ``bias`` is mean(d*) - d̂. A group with
fewer than 4 episodes has too few to draw from. Then the steps that leave each state are drawn with replacement, which
assumes a Markov chain.

*Null*, d₀: episodes are randomly reassigned to the two groups (permutation.py), so that these differ by chance only.
Near zero, where d has a kink, the bootstrap fails, but the null distribution does not.

*The value.* Since noise and true differences add approximately in squares, value = √max(d̂² - mean(d₀)², 0),
and at least ``lower``.

*The interval.* To first order d is a sum over rows, Σ_x w_x W_x (solvers/causes.py). Noise W₀ and a difference add in
squares only *within* a row, so noise adds b_x = W_x - sign(W_x² - E W₀²) √|W_x² - E W₀²| to row x. That is all of W_x
on average if the row does not differ, and little if it differs by much. The rows that do not differ, often rare ones,
add their noise in full, however large the distance is. The bootstrap does not see all of it, since its replicates start
from rows that already differ. So the noise in d̂ is estimated as

    B = mean(d₀) · min(Σ_x w_x b_x, Σ_x w_x E W₀) / Σ_x w_x mean(W₀)

where E W₀ refers to the numbers of visits in the data, and mean(W₀) to those of the draws. With q the quantiles of d*,

    upper = d̂ - bias + κ max(mean(d*) - q_lo, q_hi - mean(d*))
    lower = min(d̂ - max(B, bias) - κ (q_hi - mean(d*)), √max(d̂² - q₀², 0)),         q₀ the upper quantile of d₀.

With n episodes in the smaller group, κ = √(n/(n-1)) t/z corrects that a bootstrap of few episodes varies too little
(t and z are the quantiles of Student's distribution and of the normal one). The upper end takes the larger side of d*:
if rare events were seen less often than expected, d̂ is small, and so is the lower side.

*Bounds.* For a cost that is a pseudometric, f(x) = c(x, k) satisfies |f(x) - f(y)| ≤ c(x, y) for every state k. With ρ
the discounted occupancies (or those of the horizon or of the long run), every coupling therefore costs at least

    max_k |Σ_x ρ_X(x) c(x, k) - Σ_y ρ_Y(y) c(y, k)| ≤ d

For the difference of rewards this contains the difference of expected rewards, and for the indicator that of the time
spent in a state. These means have no kink, so their simultaneous bootstrap interval is valid near zero. Both ends of
the interval of d are at least its lower end, and at most the largest cost.

*The test* decides whether zero is in the interval: lower = 0 if p > 1 - confidence, unless there are so few draws that
no p-value could be smaller. Then, and if the test rejects although lower = 0, ``remark`` is a sentence that says why.

``p_value`` is that of the test in permutation.py, which is sensitive to more than the distance, for example to a
difference in a rare state. A large p-value means that these data are no evidence of a difference, not that the
processes are equal.

If the groups have no common states, or equal states have a positive cost, episodes cannot be exchanged between them.
Then ``value`` is d̂ - ``bias``, and the test compares d̂ with ``noise``: by the triangle inequality
|d̂ - d| ≤ d(X̂, X) + d(Ŷ, Y), with the cost max_y |c(x,y) - c(x',y)| within X (likewise within Y), where the right-hand
side is estimated by the bootstrap. This test is conservative.

*Initial distributions* are part of the comparison, but a few episodes say little about them; see ``initial`` in
:func:`estimate`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtrc, ndtri, stdtrit

from diffbisim.common.arrays import Array, lazy
from diffbisim.common.checks import check_count, check_probability, start_distribution
from diffbisim.common.errors import InvalidArgument, warn, warn_of_input
from diffbisim.common.names import find_state, is_frame
from diffbisim.common.parallel import Executor, batches, executor_map
from diffbisim.common.progress import Progress
from diffbisim.distances.chains import check_discount_is_used, distance, make_solver_for_resampling, used_discount
from diffbisim.problems import Criterion, FiniteHorizon, criterion_of
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.cells import is_paths
from diffbisim.processes.chain import MarkovChain, Transitions, Unseen, cluster_codes, unused, warn_of_unused
from diffbisim.processes.convert import as_process
from diffbisim.processes.events import END, CodeBook, coded, is_episode
from diffbisim.processes.stochastic import as_generator
from diffbisim.results.base import DistanceResult
from diffbisim.results.contributions import START, Contributions
from diffbisim.solvers.causes import within
from diffbisim.statistics.paths import FEW_STARTS, estimate_paths
from diffbisim.statistics.permutation import MIN_EPISODES, Design, Evidence, compare_two, count_for_test, null_counts

#: A warning about ends needs a p-value below this.
SURE = 1e-3

#: A generator is kept for each replicate of the bootstrap, about a kilobyte.
MOST_REPLICATES = 10**6


@dataclass(frozen=True, eq=False)
class Estimate:
    """The estimated distance between two datasets, with a confidence interval and a test."""

    value: float  # the estimate: the plug-in distance corrected for sampling noise, at least zero
    lower: float  # lower end of the confidence interval
    upper: float  # upper end of the confidence interval
    confidence: float  # nominal coverage of the interval
    plug_in: float  # distance between the empirical chains
    bias: float  # bias of the plug-in distance, estimated by the bootstrap
    standard_error: float  # standard error of the plug-in distance, by the bootstrap
    distance: DistanceResult = field(repr=False)  # result for the empirical chains: plans, encoder, gradient
    replicates: Array = field(repr=False)  # (n,) distances of the bootstrap replicates
    null: Array | None = field(repr=False)  # (n,) distances under the null; None if episodes cannot be exchanged
    evidence: Evidence | None = field(repr=False)  # the test; None if episodes cannot be exchanged
    _noise: Any = field(repr=False)
    assumed: tuple[str, ...] = field(default=(), repr=False)  # what was assumed about the data, as sentences
    remark: str = ""  # why test and interval seem to contradict each other, as a sentence; empty if they do not

    @lazy
    def noise(self) -> Array:
        """Distances of the bootstrap replicates from the data, summed over both sides, (n,); computed on demand."""
        return np.asarray(self._noise())

    @property
    def p_value(self) -> float:
        """The probability of a difference at least this large if both processes are equal."""
        if self.evidence is not None:
            return self.evidence.p_value
        return _p_of_noise(self.plug_in, self.noise)

    @property
    def conclusion(self) -> str:
        """The conclusion from the p-value at this confidence, as a sentence."""
        differ = self.p_value <= 1 - self.confidence + 1e-12
        return "evidence that they differ" if differ else "no evidence of a difference at this sample size"

    @property
    def method(self) -> str:
        """How the p-value was computed, as a sentence."""
        if self.evidence is None:
            return f"bound on the noise by {self.replicates.size} bootstrap replicates (no common states)"
        what = "permutations of whole episodes" if self.evidence.permuted else "draws of single steps (a Markov chain)"
        if self.evidence.clusters is not None:
            what = f"permutations of {self.evidence.clusters} clusters of episodes"
        return f"{self.evidence.draws} {what}"

    @property
    def corrected(self) -> float:
        """The same as ``value``."""
        return self.value

    def contributions(self, nodes: int = 8) -> Contributions:
        """Decompose the distance into contributions of states and rows, with ``z`` and ``p_value`` for each row."""
        return Contributions(self.distance, None if self.evidence is None else self.evidence.rows, nodes)


def estimate(
    X: Transitions | MarkovChain,
    Y: Transitions | MarkovChain,
    cost: Any = "reward",
    discount: float = 0.95,
    solver: Any = "exact",
    *,
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    rewards: Any = None,
    initial: Any = None,
    unseen: Unseen = "self-loop",
    terminal: Any = None,
    strata: Any = None,
    cluster: Any = None,
    paired: bool | None = None,
    confidence: float = 0.95,
    permutations: int = 999,
    replicates: int = 200,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Estimate:
    """Estimate the distance between two datasets (or a dataset and a known chain), with an interval and a test.

    Parameters
    ----------
    X, Y : Transitions, MarkovChain or list of arrays of shape (T, d)
        Observed transitions. A MarkovChain is taken as known and not resampled. Lists of (T, d) arrays are
        trajectories with continuous states (see docs/continuous and ``diffbisim.statistics.paths.estimate_paths``).
    cost, discount : as for :func:`diffbisim.distance`
    solver : as for :func:`diffbisim.distance`
        "somcot" is not available, since hundreds of distances are computed, each of them accurately.
    criterion, horizon, weights : as for :func:`diffbisim.distance`
        ``criterion="total"`` is not available, since the total cost may be infinite in a replicate. The test always
        uses the discounted metric.
    rewards : as for :class:`MarkovChain`, or tuple (for X, for Y), default=None
        Rewards of the chains that are estimated from data.
    initial : str, state, distribution, or tuple (for X, for Y), default=None
        Initial distribution of the chains that are estimated from data: "first" is that of the episodes (without
        episodes, the first state observed, with a warning if the two sides differ), "pooled" that of all episodes of
        both sides, "empirical" the frequencies of all states, and "stationary" the long-run distribution of each
        chain. The default is "first", or "pooled" if a side has fewer than 20 episodes or clusters of them (with a
        warning if the sides start differently), so that distances between long trajectories do not depend on a few
        first states; ``assumed`` says which was used. With a known chain, "pooled" is its initial distribution. For
        continuous states a distribution is an array of points.
    unseen : {"self-loop", "uniform", "error"}, default="self-loop"
        How to treat states without outgoing transitions, which also occur in replicates.
    terminal : state, sequence of states or callable, default=None
        States that end an episode: they are absorbing regardless of ``unseen``, and transitions out of them (such as
        into the next episode of a stream) are ignored. For continuous states, a function from points (n, d) to (n,)
        booleans.
    strata : pair of sequences, default=None
        A stratum for each episode of X and of Y; the test compares and permutes episodes within strata only. The
        estimated distance does not use them. By default those of the data, if they have any.
    cluster : pair of sequences or "episode", default=None
        A cluster for each episode of X and of Y, such as the person: episodes of one cluster are not independent, so
        that whole clusters are permuted and resampled. Clusters that occur in both are refused. By default those of the
        data (the ids of an event table); "episode" treats all episodes as independent.
    paired : bool, default=None
        For continuous states, whether trajectories come in pairs; see ``diffbisim.statistics.paths.estimate_paths``.
    confidence : float, default=0.95
        Nominal coverage of the interval.
    permutations : int, default=999
        Number of permutations; the p-value is at least 1 / (permutations + 1).
    replicates : int, default=200
        Number of bootstrap replicates, and of draws under the null.
    rng : int or Generator, default=0
        The result does not depend on the number of workers.
    executor, progress : as for :func:`diffbisim.pairwise`

    Returns
    -------
    estimate : Estimate
        A :class:`~diffbisim.statistics.paths.PathEstimate` for continuous states.

    Examples
    --------
    >>> from diffbisim import MarkovChain, Transitions, examples
    >>> walks = [[examples.drift_walk(f, 6).sample(30, rng=k) for k in range(40)] for f in (0.0, 1.0)]
    >>> A, B = (Transitions.from_trajectories(w, states=range(6)) for w in walks)
    >>> e = estimate(A, B, rewards=range(6), discount=0.9, rng=0)
    >>> e.lower < e.value < e.upper, e.conclusion
    (True, 'evidence that they differ')
    """
    asked = criterion_of(criterion, horizon, weights)
    check_discount_is_used(discount, asked)
    if is_paths(X) and is_paths(Y):
        usual = estimate.__kwdefaults__ or {}
        given = {"unseen": unseen, "permutations": permutations}
        _check_unused(
            rewards=rewards, strata=strata, cluster=cluster, executor=executor,
            **{name: value for name, value in given.items() if value != usual[name]},
        )  # fmt: skip
        named = "euclidean" if isinstance(cost, str) and cost == "reward" else cost
        options: Any = {
            "criterion": criterion, "horizon": horizon, "weights": weights, "terminal": terminal,
            "initial": initial, "paired": paired, "confidence": confidence, "replicates": replicates, "rng": rng,
            "progress": progress,
        }  # fmt: skip
        return estimate_paths(X, Y, named, discount, solver, **options)  # type: ignore[return-value]
    if paired is not None:
        raise InvalidArgument(
            "paired is for trajectories in R^d; for finitely many states pass the pairs as strata= and "
            'cluster="episode"'
        )
    _check(asked, confidence, permutations, replicates, unseen)
    data, strata = grouped({"X": as_process(X), "Y": as_process(Y)}, cluster, strata)
    check_same_ends(data)
    check_ends(data, initial, asked)
    sources = make_sources(data, rewards, initial, unseen, terminal)
    warn_of_ends(data)
    if all(source.known for source in sources):
        raise InvalidArgument("X and Y are both chains, so there are no data to resample; use diffbisim.distance")
    how: Any = {"criterion": criterion, "horizon": horizon, "weights": weights}
    chosen = make_solver_for_resampling(solver)
    one, other = chains_of(sources)
    base = distance(one, other, cost, used_discount(discount, asked), chosen, **how)
    generator = as_generator(rng)
    seeds = generator.spawn(replicates)
    for_test, for_null = generator.spawn(2)
    space = shared_space(sources, base.problem, cost)
    work = Resampler(sources, base.problem, chosen, references(space, cost))
    kept = deepcopy(seeds)  # drawing changes the state of a generator
    drawn = np.concatenate(executor_map(work.bootstrap, batches(seeds, 8), executor, progress, "replicates"))
    draws = Draws(drawn[:, 0], drawn[:, 1:], work.means(one, other))
    evidence = null = None
    noise: Any = partial(work.noise, kept)
    design = make_design(sources, space, discount, strata)
    if design is not None:
        warn_of_few(sources, design)
        evidence = compare_two(design, permutations, for_test)
        without = batches(null_counts(design, replicates, for_null), 8)
        null = np.concatenate(executor_map(partial(work.null, design), without, executor, progress, "null"))
    elif strata is not None:
        raise InvalidArgument(f"strata needs exchangeable episodes, but {NOT_EXCHANGEABLE}")
    else:
        noise = partial(np.asarray, noise())
    outcome = Outcome.of(sources, base, draws, null, evidence or noise(), float(confidence))
    return Estimate(
        outcome.value, outcome.lower, outcome.upper, float(confidence), base.value, draws.bias(base.value),
        float(draws.values.std(ddof=1)), base, draws.values, null, evidence, noise,
        assumptions(data, rewards, sources), outcome.remark,
    )  # fmt: skip


NOT_EXCHANGEABLE = (
    "these cannot be exchanged between groups: both need the same states, and the cost must be zero between equal "
    "states"
)


def _check(criterion: Criterion, confidence: float, permutations: int, replicates: int, unseen: str) -> None:
    refuse_infinite(criterion)
    check_probability(confidence, "confidence")
    if not 20 <= check_count(replicates, "replicates") <= MOST_REPLICATES:
        raise InvalidArgument(
            f"replicates is {replicates!r}; a bootstrap interval needs at least 20, and at most {MOST_REPLICATES:,} "
            "are drawn"
        )
    check_draws(permutations)
    check_unseen(unseen)


def check_draws(permutations: int) -> None:
    if check_count(permutations, "permutations") < 19:
        raise InvalidArgument(f"permutations is {permutations!r}; a test at the 5% level needs at least 19")


def check_unseen(unseen: str) -> None:
    if not isinstance(unseen, str) or unseen not in ("self-loop", "uniform", "error"):
        raise InvalidArgument(
            f'unseen is {unseen!r}; use "self-loop", "uniform" or "error" (states cannot be dropped here)'
        )


def _check_unused(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(f"{name} is for finitely many states; omit it for trajectories in R^d")


# --- one side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One side of a comparison: a dataset and how to estimate its chain, or a known chain."""

    data: Any
    rewards: Any
    start: Any  # None (that of the episodes), "pooled", "empirical", "stationary", or a distribution
    unseen: Unseen
    terminal: tuple[Any, ...] = ()  # names of absorbing states
    default: str = ""  # how the default of ``initial`` was chosen, as a sentence

    @property
    def known(self) -> bool:
        return isinstance(self.data, MarkovChain)

    def chain(self, data: Any, pool: dict[Any, float] | None) -> MarkovChain:
        """Estimate the chain from these data (a known chain is returned); ``pool`` is the pooled initial law."""
        if isinstance(data, MarkovChain):
            return data
        start = self.start
        if isinstance(start, str) and start == "pooled":
            start = start_distribution(pool, data.n_states, {name: k for k, name in enumerate(data.names or ())})
        ends = _numbers_of(self.terminal, data.n_states, data.names)
        return chain_from(data, self.rewards, start, self.unseen, ends)


def chains_of(sources: Sequence[Source], rng: np.random.Generator | None = None) -> list[MarkovChain]:
    """Return the empirical chains, or those of a bootstrap replicate if a generator is given.

    Pooled initial distributions are those of the replicate, so that their noise counts.
    """
    data = [s.data if s.known or rng is None else bootstrap_sample(s.data, rng) for s in sources]
    pooled = any(isinstance(s.start, str) and s.start == "pooled" for s in sources)
    pool = _pooled_start(data) if pooled else None
    return [source.chain(one, pool) for source, one in zip(sources, data, strict=True)]


def bootstrap_sample(data: Transitions, rng: np.random.Generator) -> Transitions:
    """Draw a bootstrap replicate: whole episodes (clusters of them), or steps by state if these are too few."""
    if data.starts is None or data.n_clusters >= MIN_EPISODES:
        return data.take_clusters(rng.integers(data.n_clusters, size=data.n_clusters))
    visits = np.bincount(data.states, minlength=data.n_states)
    number = -(-visits // data.lag)  # steps with a lag overlap: roughly this many are independent
    by_state = np.argsort(data.states, kind="stable")
    first = np.repeat(np.cumsum(visits) - visits, number)
    drawn = by_state[first + rng.integers(np.repeat(visits, number))]
    return data._steps(drawn, episodes=None)


def chain_from(
    data: Transitions, rewards: Any, start: Any, unseen: Unseen, terminal: Sequence[int] = ()
) -> MarkovChain:
    """Estimate a chain with the given initial distribution and absorbing terminal states."""
    law = visited(data) if isinstance(start, str) else start
    if len(terminal):
        weights = None if data.weights is None else np.append(data.weights, np.ones(len(terminal)))
        states, following = (np.append(part, terminal) for part in (data.states, data.next_states))
        data = replace(data, states=states, next_states=following, weights=weights)
    chain: MarkovChain = data._chain(rewards=rewards, initial=law, unseen=unseen)
    return chain.with_initial(long_run(chain)) if isinstance(start, str) and start == "stationary" else chain


def _numbers_of(states: Sequence[Any], n: int, names: Any) -> Any:
    """Return the indices of the named states that exist."""
    numbers = {name: k for k, name in enumerate(names or ())}
    found = (find_state(state, n, numbers) for state in states)
    return np.array([k for k in found if k is not None], dtype=np.int64)


def _names_of_ends(terminal: Any, data: Sequence[Any]) -> tuple[Any, ...]:
    """Return the names of one or several terminal states, each of which must occur in some dataset."""

    def known(name: Any) -> bool:
        return any(len(_numbers_of([name], one.n_states, one.names)) for one in data)

    if terminal is None:
        return ()
    if callable(terminal):
        raise InvalidArgument("terminal is a function, which is for trajectories in R^d; give the terminal states")
    one = isinstance(terminal, str) or not isinstance(terminal, Iterable) or known(terminal)
    names = (terminal,) if one else tuple(terminal)
    for name in names:
        if not known(name):
            raise InvalidArgument(f"terminal: {name!r} is not a state of the data; give states by name or index")
    return names


def _without_exits(data: Any, terminal: Sequence[Any]) -> Any:
    """Remove the transitions out of terminal states."""
    if not terminal or not isinstance(data, Transitions):
        return data
    going = ~np.isin(data.states, _numbers_of(terminal, data.n_states, data.names))
    if not going.any():
        raise InvalidArgument("terminal: every transition starts in a terminal state; name fewer states")
    return data._steps(going)


def visited(data: Transitions) -> Array:
    """Return the frequencies of the source states, (n,)."""
    visits = np.bincount(data.states, data.weights, minlength=data.n_states)
    return np.asarray(visits / visits.sum())


def first_states(data: Transitions) -> Array:
    """Return the distribution of the episodes' first states, (n,); without episodes, that of all source states."""
    if data.starts is None:
        return visited(data)
    begun = np.bincount(data.starts, data.start_weights, minlength=data.n_states)
    return np.asarray(begun / begun.sum())


def long_run(chain: MarkovChain) -> Array:
    """Return the long-run distribution of a chain, (n,): a mixture of the stationary ones of its recurrent classes."""
    laws: Array = chain.stationary_distributions
    if len(laws) == 1:
        return np.asarray(laws[0])
    late = chain.occupancy(1 - 1e-9)
    return np.asarray(np.array([late[states].sum() for states in chain.recurrent_classes]) @ laws)


def make_sources(
    data: dict[str, Any], rewards: Any, initial: Any, unseen: Unseen, terminal: Any = None
) -> list[Source]:
    """Prepare the groups and their initial distributions, with warnings about guesses."""
    for name, one in data.items():
        if not isinstance(one, (Transitions, MarkovChain)):
            other = ""
            if isinstance(one, Mapping) or is_frame(one):
                other = ", such as Transitions.from_frame(table, id=..., time=..., state=...) of a table of events"
                other += "; for a mapping of groups use diffbisim.compare(groups)" * isinstance(one, Mapping)
            raise InvalidArgument(f"{name} is a {type(one).__name__}; give Transitions or a MarkovChain{other}")
    if isinstance(rewards, tuple) and len(rewards) != len(data):
        raise InvalidArgument(
            f"rewards is a tuple of {len(rewards)} entries for {len(data)} groups; give one for each group, or a list "
            "with one number per state"
        )
    ends = _names_of_ends(terminal, list(data.values()))
    data = {name: _without_exits(one, ends) for name, one in data.items()}
    starts = list(initial) if isinstance(initial, tuple) else [initial] * len(data)
    if len(starts) != len(data):
        raise InvalidArgument(f"initial has {len(starts)} entries for {len(data)} groups; give one for each, or one")
    default = ""
    if all(start is None for start in starts):
        rule, default = _default_start(data)
        starts = [rule] * len(data)
    pool = _pooled_start(list(data.values()))
    sources = []
    for k, (one, start) in enumerate(zip(data.values(), starts, strict=True)):
        own = rewards[k] if isinstance(rewards, tuple) else rewards
        if isinstance(one, MarkovChain):
            law = long_run(one) if start in ("stationary", "empirical") else None
            sources.append(Source(one if law is None else one.with_initial(law), None, None, unseen, (), default))
        else:
            sources.append(Source(one, own, _start(one, start, pool), unseen, ends, default))
    _warn_of_guesses(data, starts, sources)
    warn_of_unused(data, rewards)
    return sources


def _default_start(data: dict[str, Any]) -> tuple[str | None, str]:
    """Return the default of ``initial``, "first" or "pooled", and why; with a warning if pooling changes something."""
    observed = {name: one for name, one in data.items() if isinstance(one, Transitions)}
    if not observed or any(one.starts is None for one in observed.values()):
        return None, ""
    least = min(observed, key=lambda name: observed[name].n_clusters)
    number = observed[least].n_clusters
    what = "episodes" if observed[least].clusters is None else "clusters of episodes"
    if number >= FEW_STARTS:
        return None, 'each group starts as its own episodes do (initial="first")'
    pool = _pooled_start(list(data.values()))
    missing = [
        (state, name) for name, one in observed.items() for state in pool
        if find_state(state, one.n_states, {known: k for k, known in enumerate(one.names or ())}) is None
    ]  # fmt: skip
    if missing:
        state, name = missing[0]
        warn(
            f"{least} has only {number} {what}, so that its initial distribution is uncertain, but that of all "
            f"episodes cannot be used for every group because {name} does not have the state {state!r}; create all "
            "groups with the same states=, or pass initial=",
            category=UserWarning, stacklevel=4,
        )  # fmt: skip
        return None, f'each group starts as its own episodes do (initial="first"), although {least} has only {number}'
    laws = [_named(one, one.initial if isinstance(one, MarkovChain) else first_states(one)) for one in data.values()]
    known = len(observed) < len(data)
    of = "of the known chain" if known else "of all episodes"
    if any(law != laws[0] for law in laws):
        warn(
            f"with fewer than {FEW_STARTS} {what} the initial distributions are uncertain, so that {of} "
            'is used for every group; pass initial="pooled" to confirm, or initial="first" to use that of each group',
            category=UserWarning, stacklevel=4,
        )  # fmt: skip
    return "pooled", f'every group has the initial distribution {of} (initial="pooled"): {least} has {number} {what}'


def _start(data: Transitions, start: Any, pool: dict[Any, float]) -> Any:
    """Return None, a rule or a distribution; names of states take precedence over the names of rules."""
    numbers = {name: k for k, name in enumerate(data.names or ())}
    if start is None or (isinstance(start, str) and start not in numbers):
        if start in (None, "first"):
            return None
        if start in ("empirical", "stationary"):
            return start
        if start == "pooled":
            missing = [name for name in pool if find_state(name, data.n_states, numbers) is None]
            if missing:
                raise InvalidArgument(
                    f'initial="pooled": state {missing[0]!r} is missing from a group; pass states= when creating '
                    "Transitions"
                )
            return start
    if isinstance(start, str) and start not in numbers:
        raise InvalidArgument(
            f'initial is {start!r}, which is not a state; use "first", "pooled", "empirical", "stationary", a state or '
            "a distribution"
        )
    return start_distribution(start, data.n_states, numbers)


def _named(data: Any, law: Array) -> dict[Any, float]:
    """Return a distribution as a dict from the names of the states in its support to probabilities."""
    return {data.name_of(k): float(law[k]) for k in np.flatnonzero(law).tolist()}


def _pooled_start(data: Sequence[Any]) -> dict[Any, float]:
    """Return the distribution of all episodes' first states by name; with a known chain, its initial distribution."""
    pool: dict[Any, float] = {}
    known = [one for one in data if isinstance(one, MarkovChain)]
    if known:
        return _named(known[0], known[0].initial)
    total = sum(one.n_episodes for one in data)
    for one in data:
        for name, share in _named(one, first_states(one)).items():
            pool[name] = pool.get(name, 0.0) + share * one.n_episodes / total
    return pool


def _warn_of_guesses(data: dict[str, Any], starts: Sequence[Any], sources: Sequence[Source]) -> None:
    """Warn if an initial state is guessed from the first transition and the groups start differently."""
    guessed = any(
        isinstance(one, Transitions) and one.starts is None and start in (None, "first")
        for one, start in zip(data.values(), starts, strict=True)
    )
    if not guessed:
        return
    laws = [_named(chain, chain.initial) for chain in chains_of(sources)]
    k = next((k for k, law in enumerate(laws) if law != laws[0]), None)
    if k is not None:
        x, y = ("{" + ", ".join(map(repr, list(law)[:3])) + "}" for law in (laws[0], laws[k]))
        names = list(data)
        warn(
            f"pairs do not contain initial states, so the first states observed are used: {names[0]} starts in {x} and "
            f"{names[k]} in {y}, which affects the distance; pass initial=",
            category=UserWarning, stacklevel=4,
        )  # fmt: skip


def warn_of_few(sources: Sequence[Source], design: Design) -> None:
    """Warn if there are too few episodes to permute."""
    data = [source.data for source in sources if not source.known]
    if not design.permute and design.known is None and all(one.starts is not None for one in data):
        what = "episodes" if all(one.clusters is None for one in data) else "clusters of episodes"
        warn(
            f"{' and '.join(str(one.n_clusters) for one in data)} {what} are too few to permute, so single steps "
            "are permuted instead. The p-value and the interval then assume that each group is one Markov chain. If "
            "episodes differ, the p-value is too small and the interval too short; collect at least 4 per group",
            category=UserWarning, stacklevel=3,
        )  # fmt: skip


# --- episodes: ends, clusters, times ------------------------------------------------------------------------------


def grouped(data: dict[Any, Any], cluster: Any, strata: Any) -> tuple[dict[Any, Any], Any]:
    """Return the groups with the given clusters, and the strata: those given, else those of the data.

    ``cluster`` and ``strata`` are None or have one sequence per group.
    """
    observed = {name: one for name, one in data.items() if isinstance(one, Transitions)}
    _report_shared_ids(observed)
    if strata is None and any(one.strata is not None for one in observed.values()):
        for name, one in observed.items():
            if one.strata is None:
                raise InvalidArgument(
                    f"{name} has no strata, and another group does; create all groups with strata=, or none of them"
                )
        strata = [one.strata for one in observed.values()]
    if cluster is None:
        return data, strata
    if is_episode(cluster):
        return data | {name: replace(one, clusters=None) for name, one in observed.items()}, strata
    if isinstance(cluster, str) or not isinstance(cluster, Sequence) or len(cluster) != len(observed):
        raise InvalidArgument(
            f'cluster must have one sequence of names for each group with data ({len(observed)}), or be "episode"'
        )
    owner: dict[Any, Any] = {}
    for (name, one), clusters in zip(observed.items(), cluster, strict=True):
        if one.starts is None:
            raise InvalidArgument(f"cluster: {name} has single transitions, not episodes; give trajectories or events")
        codes = cluster_codes(clusters, one.n_episodes, f"cluster of {name}")
        shared = [known for known in dict.fromkeys(list(clusters)) if owner.setdefault(known, name) != name]
        if shared:
            raise InvalidArgument(
                f"cluster: {len(shared)} names occur in several groups, such as {shared[0]!r} in {owner[shared[0]]} "
                f"and {name}, so that whole clusters cannot be exchanged. If they are different clusters, give them "
                'different names; if groups were assigned within clusters, pass strata= the clusters and "episode"'
            )
        data = data | {name: replace(one, clusters=codes)}
    return data, strata


def _report_shared_ids(observed: dict[Any, Transitions]) -> None:
    """Warn if tables of different groups have ids in common, which the test takes for different ones."""
    owner, shared = dict[Hashable, Any](), dict[Hashable, Any]()
    for name, one in observed.items():
        shared |= {known: name for known in one.ids if owner.setdefault(known, name) != name}
    if shared:
        known, name = next(iter(shared.items()))
        warn_of_input(
            f"{len(shared):,} ids or clusters occur in several groups, such as {known!r} in {owner[known]} and "
            f"{name}. They are taken for different ids. If they are the same, the groups are not independent, which "
            "makes p-values too large if the groups are alike: leave out these ids, or, if groups were assigned to "
            'sequences at random within each id, pass strata= the ids and cluster="episode"'
        )


def check_same_ends(data: dict[Any, Any]) -> None:
    """Raise if the ends of sequences are recorded in some groups only, or under different names.

    The groups would then differ in what was recorded, whether or not the processes do.
    """
    ends = {name: end for name, one in data.items() if (end := _end_of(one)) is not None}
    if not ends:
        return
    first, end = next(iter(ends.items()))
    for name, one in data.items():
        if ends.get(name) != end and not _reaches(one, end):
            other = f"{name} ends in {ends[name]!r}" if name in ends else f"{name} has no such state"
            raise InvalidArgument(
                f"{first} ends in the absorbing state {end!r}, and {other}: how the ends were recorded would count as "
                f"a difference. Create both with the same end, such as end={end!r}, or with end=None"
            )


def _end_of(one: Any) -> Any:
    """Return the name of the state in which the sequences of a group end; in a known chain it is "■", if absorbing."""
    if not isinstance(one, MarkovChain):
        return getattr(one, "end", None)
    return END if END in (one.names or ()) and one.index(END) in one.absorbing_states else None


def _reaches(one: Any, state: Any) -> bool:
    """Return whether a group contains a state: whether observed steps lead to it, or a known chain has it."""
    if not isinstance(one, Transitions):
        return state in (getattr(one, "names", None) or ())
    return state in (one.names or ()) and bool((one.next_states == (one.names or ()).index(state)).any())


def refuse_infinite(criterion: Criterion) -> None:
    """Raise if the value may be infinite, which it would be in some replicates."""
    if criterion.kind.may_be_infinite:
        raise InvalidArgument(
            f"criterion is {criterion.kind.criterion!r}; estimate supports 'discounted' and 'average'"
        )


def check_ends(data: dict[Any, Any], initial: Any, criterion: Criterion) -> None:
    """Raise if all that counts is the long run, which is the end state for all groups."""
    ended = next((one.end for one in data.values() if isinstance(one, Transitions) and one.end is not None), None)
    asked = initial if isinstance(initial, tuple) else (initial,)
    rule = any(isinstance(start, str) and start == "stationary" for start in asked)
    if ended is not None and (criterion.kind.forgets_start or rule):
        what = 'criterion="average"' if criterion.kind.forgets_start else 'initial="stationary"'
        raise InvalidArgument(
            f"{what} compares the long run, but all sequences end in the absorbing state {ended!r}, so that there is "
            "nothing to compare; create the data with end=None"
        )


def assumptions(data: dict[Any, Any], rewards: Any, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return sentences on what was assumed about ends, clusters and initial distributions of the observed groups."""
    found = []
    for name, one in data.items():
        if not isinstance(one, Transitions):
            continue
        if one.end is not None:
            worth = rewards is not None and one._with_end_reward(rewards) is not rewards
            found.append(f"{name}: sequences end in the absorbing state {one.end!r}{', with reward 0' * worth}")
        elif one.starts is not None:
            found.append(f"{name}: the ends of sequences do not count, as if they were cut at arbitrary times")
        if parts := unused(one, rewards):
            found.append(f"{name}: the recorded {' and '.join(parts)} of steps are not used")
        if one.clusters is not None:
            found.append(f"{name}: {one.n_clusters:,} independent clusters of {one.n_episodes:,} episodes")
    return (*found, *([sources[0].default] if sources[0].default else []))


class Ending(NamedTuple):
    """How often the sequences of a group end in each state, by the names of the states."""

    ends: dict[Any, float]
    visits: dict[Any, float]
    varied: bool  # whether the sequences have different lengths

    @classmethod
    def of(cls, data: Transitions) -> "Ending":
        assert data.starts is not None
        last, length = data.starts.copy(), np.zeros(data.n_episodes, dtype=np.int64)
        if data.episodes is not None:
            last[data.episodes] = data.next_states
            length = np.bincount(data.episodes, minlength=data.n_episodes)
        ends = np.bincount(last, minlength=data.n_states)
        visits = ends + np.bincount(data.states, minlength=data.n_states)
        seen = np.flatnonzero(visits).tolist()
        return cls(
            {data.name_of(k): float(ends[k]) for k in seen}, {data.name_of(k): float(visits[k]) for k in seen},
            bool(length.min() < length.max()),
        )  # fmt: skip


def warn_of_ends(data: dict[Any, Any]) -> None:
    """Warn if the groups end in different places without an end state, or if their steps take different times."""
    observed = {name: one for name, one in data.items() if isinstance(one, Transitions)}
    _warn_of_times(observed)
    ending = {
        k: Ending.of(one) for k, one in observed.items() if one.end is None and one.starts is not None and one.lag == 1
    }
    if len(ending) == len(observed) > 1 and any(one.varied for one in ending.values()):
        total, free, most = 0.0, 0, (0.0, None)
        for state in dict.fromkeys(name for one in ending.values() for name in one.visits):
            e, v = (
                np.array([part.get(state, 0.0) for part in column])
                for column in zip(*[one[:2] for one in ending.values()], strict=True)
            )
            p = e.sum() / v.sum()
            if not 0 < p < 1 or (v > 0).sum() < 2:
                continue
            square = float((np.square(e - v * p)[v > 0] / (v[v > 0] * p * (1 - p))).sum())
            total, free = total + square, free + int((v > 0).sum()) - 1
            most = max(most, (square, state), key=lambda pair: pair[0])
        if free and chdtrc(free, total) < SURE:
            shares = ", ".join(
                f"{one.ends.get(most[1], 0.0):.0f} of {one.visits.get(most[1], 0.0):.0f} in {name}"
                for name, one in ending.items()
            )
            warn_of_input(
                f"the sequences of the groups end in different places (after {most[1]!r}: {shares} visits), which does "
                'not count because there is no end state; pass end="■" when creating Transitions if the ends mean '
                "something, such as leaving"
            )


def _warn_of_times(data: dict[Any, Transitions]) -> None:
    """Warn if the steps of the groups take different times."""
    found = {}
    for name, one in data.items():
        steps = None if one.durations is None else np.sort(one.durations[~np.isnan(one.durations)])
        if steps is not None and steps.size:
            found[name] = steps
    if len(found) < 2:
        return
    (first, a), *others = found.items()
    for name, b in others:
        both = np.concatenate([a, b]) * (1 + 1e-9)
        apart = np.abs(np.searchsorted(a, both, "right") / a.size - np.searchsorted(b, both, "right") / b.size).max()
        constant = all(steps[-1] <= steps[0] * (1 + 1e-9) for steps in (a, b))
        if apart > (0 if constant else max(0.1, 1.95 * np.sqrt(1 / a.size + 1 / b.size))):
            warn_of_input(
                f"a step takes {np.median(a):.3g} in {first} and {np.median(b):.3g} in {name} (medians), but the "
                "chains contain no times: speed is invisible, and a difference in how often states were "
                "recorded looks like one of the process. Create the data with the same every= for all groups, or with "
                'every="event" if only the order of the events matters'
            )
            return


# --- common state space -------------------------------------------------------------------------------------------


def shared_space(sources: Sequence[Source], problem: ChainProblem, cost: Any) -> "Space | None":
    """Return the common states if the problem has one cost, and episodes can be exchanged; else None."""
    return None if len(_tables(problem)) > 1 else common_space(problem, cost, [source.known for source in sources])


def make_design(sources: Sequence[Source], space: "Space | None", discount: float, strata: Any) -> Design | None:
    """Return the design of the permutation test; None if episodes cannot be exchanged."""
    if space is None:
        return None
    data = [
        recoded(source.data, space, code) for source, code in zip(sources, space.codes, strict=True) if not source.known
    ]
    known = next((source.data for source in sources if source.known), None)
    counted, permute = count_for_test(data, None if strata is None else stratum_numbers(strata, data), known)
    γ = discount if discount < 1 else 0.95  # with a horizon the discount may be 1
    return Design(counted, space.cost, γ, permute, known, space.names)


class Space(NamedTuple):
    """The union of the states of both chains."""

    names: Any  # of the n states, or None
    codes: list[Any]  # (n_X,) and (n_Y,): index of each state in the union
    cost: Array  # (n, n)


def common_space(problem: ChainProblem, cost: Any, known: Sequence[bool]) -> Space | None:
    """Return the union of the states if its costs are known and zero between equal states, else None."""
    X, Y = problem.x, problem.y
    if (X.names is None) != (Y.names is None):
        return None
    names = [list(range(C.n_states) if C.names is None else C.names) for C in (X, Y)]
    union = list(dict.fromkeys(names[known.index(True)] if any(known) else names[0] + names[1]))
    number = {name: k for k, name in enumerate(union)}
    if any(name not in number for name in names[0] + names[1]):
        return None  # the known chain does not have all states
    codes = [np.array([number[name] for name in own]) for own in names]
    table = _common_cost(problem, cost, union, codes)
    if table is None or np.diag(table).any():
        return None
    return Space(None if X.names is None else tuple(union), codes, table)


def _common_cost(problem: ChainProblem, cost: Any, union: list[Any], codes: list[Any]) -> Array | None:
    n = len(union)
    if isinstance(cost, str) and cost == "indicator":
        return 1.0 - np.eye(n)
    if all(np.array_equal(code, np.arange(n)) for code in codes):
        return problem.cost
    rewards = np.full((2, n), np.nan)
    if not isinstance(cost, str) or problem.x.rewards is None or problem.y.rewards is None:
        return None
    if max(np.ndim(problem.x.rewards), np.ndim(problem.y.rewards)) > 1:
        return None
    rewards[0, codes[0]], rewards[1, codes[1]] = problem.x.rewards, problem.y.rewards
    r = np.where(np.isnan(rewards[0]), rewards[1], rewards[0])
    if np.isnan(r).any() or (~np.isnan(rewards[1]) & (rewards[1] != r)).any():
        return None
    gap: Array = np.abs(np.subtract.outer(r, r))
    return np.square(gap) if cost == "squared" else gap


def recoded(data: Transitions, space: Space, code: Any) -> Transitions:
    """Return the same episodes on the common states."""
    return replace(
        data,
        states=code[data.states],
        next_states=code[data.next_states],
        n_states=len(space.cost),
        names=space.names,
        starts=None if data.starts is None else code[data.starts],
        first=None if data.first is None else int(code[data.first]),
    )


def stratum_numbers(strata: Any, data: Sequence[Transitions]) -> list[Any]:
    """Encode the strata of the episodes of each group as integers."""
    sizes = [one.n_episodes for one in data]
    try:
        given = [coded(list(one)) for one in strata]
        found = [one.codes.size for one in given]
    except TypeError:  # not sequences, or entries that cannot be names
        found = [-1]
    if found != sizes:
        raise InvalidArgument(
            "strata must have one sequence per group, with a name (a string, a number or a tuple) for each of its "
            f"{' and '.join(map(str, sizes))} episodes{'' if -1 in found else f'; found {found}'}"
        )
    numbers = CodeBook()
    for g, one in enumerate(given):
        if (one.codes < 0).any():
            raise InvalidArgument(
                f"strata[{g}][{int((one.codes < 0).argmax())}] is missing; name the stratum, or leave out the episode"
            )
    return [np.array([numbers[name] for name in one.names])[one.codes] for one in given]


# --- the interval -------------------------------------------------------------------------------------------------


class Draws(NamedTuple):
    """The distances of bootstrap replicates, and K means per replicate whose differences bound them from below."""

    values: Array  # (n,)
    means: Array  # (n, K) differences of means between the two sides
    plug_in: Array  # (K,) the same for the data

    def bias(self, value: float) -> float:
        """Return the bias of the plug-in distance as estimated by the bootstrap."""
        return float(self.values.mean() - value)

    def floor(self, tail: float, κ: float) -> float:
        """Return a lower confidence bound on the distance, from the means alone."""
        if not self.plug_in.size:
            return 0.0
        error = np.abs(self.means - self.plug_in).max(axis=1)
        margin = κ * float(np.quantile(error, 1 - tail, method="weibull"))
        return max(0.0, float(np.abs(self.plug_in).max()) - margin)

    def interval(self, value: float, added: float, q: float, tail: float, κ: float) -> tuple[float, float]:
        """Return the interval before the test; ``added`` is B and ``q`` is q₀ in the head of this module."""
        low, high = np.quantile(self.values, [tail, 1 - tail], method="weibull")  # unbiased also for few replicates
        mean, bias, floor = float(self.values.mean()), self.bias(value), self.floor(tail, κ)
        lower = min(value - max(added, bias) - κ * (high - mean), np.sqrt(max(0.0, value**2 - q**2)))
        return max(float(lower), floor), max(float(value - bias + κ * max(mean - low, high - mean)), floor)


class Outcome(NamedTuple):
    """The corrected value, the interval around it, and a remark."""

    value: float
    lower: float
    upper: float
    remark: str

    @classmethod
    def of(
        cls, sources: Sequence[Source], base: DistanceResult, draws: Draws, null: Array | None, test: Any,
        confidence: float,
    ) -> "Outcome":  # fmt: skip
        """Combine the draws; ``test`` is the evidence, or the noise (n,) if episodes cannot be exchanged."""
        plug_in, tail, alpha = base.value, (1 - confidence) / 2, 1 - confidence
        starts = any(source.start is None and not source.known for source in sources)
        κ = expansion([source.data for source in sources if not source.known], tail)
        if null is None:
            value, p, number = max(0.0, plug_in - draws.bias(plug_in)), _p_of_noise(plug_in, test), test.size
            lower, upper = draws.interval(plug_in, 0.0, 0.0, tail, κ)
        else:
            value, p, number = _corrected(plug_in, null), test.p_value, test.draws
            added, q = float(null.mean()) * test.excess(starts), np.quantile(null, 1 - tail, method="weibull")
            lower, upper = draws.interval(plug_in, added, float(q), tail, κ)
        rejected = p <= alpha + 1e-12
        if not rejected and 1 / (1 + number) <= alpha + 1e-12:
            lower = 0.0
        value = max(value, lower)
        remark = _remark(rejected, lower, None if null is None else test, starts)
        return cls(value, lower, min(max(value, upper), max(plug_in, float(base.problem.scale))), remark)


def _p_of_noise(value: float, noise: Array) -> float:
    return float((1 + (noise >= value).sum()) / (1 + noise.size))


def expansion(data: Sequence[Transitions], tail: float) -> float:
    """Return κ, by which the spread of the bootstrap is too small for few episodes."""
    units = [len(x) if x.starts is None or x.n_clusters < MIN_EPISODES else x.n_clusters for x in data]
    least, free = max(2, min(units)), max(1, sum(units) - len(units))
    return float(np.sqrt(least / (least - 1)) * stdtrit(free, 1 - tail) / ndtri(1 - tail))


def references(space: Space | None, cost: Any) -> tuple[Array, Array] | None:
    """Return the costs to the K reference states, (n_X, K) and (n_Y, K); None if the cost is not a pseudometric."""
    if space is None:
        return None
    named = isinstance(cost, str) and cost != "squared"
    if not named and not np.allclose(within(space.cost), space.cost, rtol=1e-9, atol=1e-12 * space.cost.max()):
        return None
    return space.cost[space.codes[0]], space.cost[space.codes[1]]


def _spent(problem: Any, chain: MarkovChain) -> Array:
    """Return the weight of the cost of each state: the occupancy of the criterion, (n,)."""
    if not isinstance(problem, FiniteHorizon):
        return long_run(chain) if problem.forgets_start else chain.occupancy(problem.discount)
    law, total = chain.initial, np.zeros(chain.n_states)
    for weight in problem.weights:
        total += weight * law
        law = law @ chain.transition
    return total


def _remark(rejected: bool, lower: float, evidence: Evidence | None, starts: bool) -> str:
    """Explain a test and an interval that seem to contradict each other; else return an empty string."""
    if rejected == (lower > 0):
        return ""
    if not rejected:
        return (
            "the interval excludes 0 although the p-value is large: so few permutations or replicates cannot give a "
            "smaller one; use more of them"
        )
    begin = "the interval starts at 0 although the test finds a difference: "
    if evidence is None:
        return begin + "the distance is hardly larger than its noise"
    most = evidence.most
    if most == START and not starts:
        return (
            f"{begin}it is most evident in the initial distributions of the episodes, which are not part of the "
            'distance because of initial=; initial="first" includes them'
        )
    where = "the initial distributions" if most == START else f"the row of {most!r}"
    return (
        f"{begin}it is most evident in {where}, but what the differing rows add to the distance cannot be told from "
        "the noise of all rows"
    )


def _corrected(value: float, null: Array) -> float:
    return float(np.sqrt(max(0.0, value**2 - null.mean() ** 2)))


# --- resampling in workers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resampler:
    """Distances of resampled data; its methods run in workers, on batches."""

    sources: list[Source]
    problem: ChainProblem
    solver: Any
    references: tuple[Array, Array] | None = None  # costs to reference states, for lower bounds by means

    def __post_init__(self) -> None:
        if self.solver.threads is None:  # the replicates are computed in parallel already
            self.__dict__["solver"] = replace(self.solver, threads=1)

    def bootstrap(self, seeds: Sequence[np.random.Generator]) -> Array:
        """Return the distances of bootstrap replicates, each followed by its K differences of means."""
        pairs = (chains_of(self.sources, seed) for seed in seeds)
        return np.array([[self._distance(one, other), *self.means(one, other)] for one, other in pairs])

    def means(self, one: MarkovChain, other: MarkovChain) -> Array:
        """Return the difference of the mean costs to each reference state, (K,)."""
        if self.references is None:
            return np.empty(0)
        of_one, of_other = self.references
        return np.asarray(_spent(self.problem, one) @ of_one - _spent(self.problem, other) @ of_other)

    def noise(self, seeds: Sequence[np.random.Generator]) -> Array:
        """Return the distances of these replicates from the data, summed over both sides."""
        base, tables = self.problem, _tables(self.problem)
        costs = [within(table) for table in tables], [within(table.T) for table in tables]
        out = np.zeros(len(seeds))
        for k, seed in enumerate(deepcopy(list(seeds))):
            new = chains_of(self.sources, seed)
            for source, drawn, old, cost in zip(self.sources, new, (base.x, base.y), costs, strict=True):
                if not source.known:
                    out[k] += self.solver.solve(_between(base, drawn, old, cost)).value
        return out

    def null(self, design: Design, draws: Sequence[Array]) -> Array:
        """Return the distances of datasets drawn under the null, each given as counts (2, K)."""
        chains = (self._from_counts(design, counts) for counts in draws)
        return np.array([self._distance(X, Y, design.cost) for X, Y in chains])

    def _distance(self, X: MarkovChain, Y: MarkovChain, cost: Array | None = None) -> float:
        found = replace(self.problem, x=X, y=Y) if cost is None else _between(self.problem, X, Y, [cost])
        return float(self.solver.solve(found).value)

    def _from_counts(self, design: Design, counts: Array) -> list[MarkovChain]:
        """Return the chains on the common states, with initial distributions as for the data."""
        cells, n = design.counted.cells, design.counted.n_states
        sources, chains = cells.states[cells.rows], []
        rows = iter(counts)
        for source, own in zip(self.sources, (self.problem.x, self.problem.y), strict=True):
            if source.known:
                chains.append(own)
                continue
            row = next(rows)
            step, begin = (sources < n) & (row > 0), (sources == n) & (row > 0)
            data = Transitions(sources[step], cells.targets[step], n, weights=row[step])
            start = source.start
            if start is None and begin.any():
                start = np.bincount(cells.targets[begin], row[begin] / row[begin].sum(), minlength=n)
            elif not isinstance(start, str) or start == "pooled":
                start = np.zeros(n)
                numbers = {name: k for k, name in enumerate(design.names or range(n))}
                for name, share in _named(own, own.initial).items():
                    start[numbers[name]] += share
            unseen: Unseen = "uniform" if source.unseen == "uniform" else "self-loop"
            absorbing = (*source.terminal, *([] if source.data.end is None else [source.data.end]))
            chains.append(chain_from(data, None, start, unseen, _numbers_of(absorbing, n, design.names)))
        return chains


def _tables(problem: Any) -> tuple[Array, ...]:
    """Return the costs of a problem: one, or one per time."""
    timed = isinstance(problem, FiniteHorizon) and not problem.one_cost
    return problem.costs if timed else (problem.cost,)


def _between(problem: Any, x: MarkovChain, y: MarkovChain, cost: Sequence[Array]) -> Any:
    """Return the same problem for two other chains and costs."""
    if isinstance(problem, FiniteHorizon):
        times = len(problem.costs)
        return replace(problem, x=x, y=y, costs=tuple(cost) if len(cost) == times else (cost[0],) * times)
    return replace(problem, x=x, y=y, cost=cost[0])
