"""The distance between two processes known by data only: its value, an interval, and whether it is more than chance.

The *plug-in* estimate d̂ is the exact distance between the empirical chains. Noise makes chains look different, so d̂
is too large on average, most visibly where the true distance is near zero. Two kinds of new data say how much:

*The bootstrap*, d*: episodes are drawn with replacement, as many as there are, the chains counted anew. Around d̂
these lie as d̂ lies around the truth, which gives the *basic* interval [2 d̂ - q_hi, 2 d̂ - q_lo], q the quantiles of
d*; ``bias`` is mean(d*) - d̂. A group of fewer than 4 episodes has too few to draw from (one alone would come back
unchanged): then the steps out of each state are drawn with replacement, which assumes a Markov chain.

*The null*, d₀: episodes are dealt anew to the two groups (evidence.py), so that there is no difference but by chance.
Near zero, where d has a kink, the quantiles of d* know nothing of it, and these do. Errors of chance and true
differences add up like squares, so

    value = √max(d̂² - mean(d₀)², 0),       lower = min(basic, √max(d̂² - q², 0)),   q the upper quantile of d₀.

``p_value`` is that of the test in evidence.py, which sees more than the distance: also a difference in a rare state.
A large one says that there is no evidence at this size of data, never that the processes are the same.

Without common states, or where equal states cost something, episodes of one group could not be those of the other.
Then ``value`` is d̂ - ``bias``, and d̂ is held against ``noise``: by the triangle inequality |d̂ - d| ≤ d(X̂, X) +
d(Ŷ, Y), with the cost max_y |c(x,y) - c(x',y)| within X (Y alike), and the bootstrap says how large that is. This test
is conservative.

*The start* (``initial``) is part of what is compared, and a few first states say little of it: see :func:`estimate`.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diffbisim.chain import MarkovChain, Transitions, Unseen
from diffbisim.checks import as_number, check_count, start_distribution
from diffbisim.continuous import estimate_paths
from diffbisim.contributions import Contributions
from diffbisim.distance import distance, make_solver
from diffbisim.errors import InvalidArgument, warn
from diffbisim.evidence import FEW, Design, Evidence, compare_two, count_for_test, null_counts
from diffbisim.horizon import TimedProblem
from diffbisim.names import find_state
from diffbisim.parallel import Executor, batches, executor_map
from diffbisim.problem import Array, Problem, lazy
from diffbisim.process import as_process
from diffbisim.progress import Progress
from diffbisim.quantize import is_paths
from diffbisim.results import DistanceResult
from diffbisim.solvers.causes import within
from diffbisim.stochastic import as_generator

#: Starts that are known from fewer episodes than this are pooled, unless ``initial`` says otherwise.
FEW_STARTS = 20


@dataclass(frozen=True, eq=False)
class Estimate:
    """The distance between two datasets, its interval, and the evidence that it is more than chance."""

    value: float  # the best estimate: the plug-in without what chance adds to it, at least zero
    lower: float
    upper: float
    confidence: float
    plug_in: float  # of the empirical chains
    bias: float  # estimated by the bootstrap; the plug-in value is too large by about this
    standard_error: float
    distance: DistanceResult = field(repr=False)  # of the empirical chains: plans, encoder, gradient
    replicates: Array = field(repr=False)  # (n,) distances of the bootstrap replicates
    null: Array | None = field(repr=False)  # (n,) distances of data without a difference; None if they cannot be made
    evidence: Evidence | None = field(repr=False)  # the test; None if episodes cannot be exchanged
    _noise: Any = field(repr=False)

    @lazy
    def noise(self) -> Array:
        """(n,) how far the bootstrap replicates are from the data, both sides added; solved when first asked for."""
        return np.asarray(self._noise())

    @property
    def p_value(self) -> float:
        """How often chance alone does as much: if small, they differ; if not, there is no evidence of it."""
        if self.evidence is not None:
            return self.evidence.p_value
        return float((1 + (self.noise >= self.plug_in).sum()) / (1 + self.noise.size))

    @property
    def conclusion(self) -> str:
        """What the p-value says at this confidence, in words; that there is no evidence does not make them equal."""
        differ = self.p_value <= 1 - self.confidence + 1e-12
        return "evidence that they differ" if differ else "no evidence of a difference at this sample size"

    @property
    def method(self) -> str:
        """What the p-value comes from, in words."""
        if self.evidence is None:
            return f"bound on the noise by {self.replicates.size} bootstrap replicates (no common states)"
        what = "permutations of whole episodes" if self.evidence.permuted else "draws of single steps (a Markov chain)"
        return f"{self.evidence.draws} {what}"

    @property
    def corrected(self) -> float:
        """The same as ``value``."""
        return self.value

    def contributions(self, nodes: int = 8) -> Contributions:
        """Where the cost is paid and which rows and starts cause it, by size and by evidence (``z``, ``p_value``)."""
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
    confidence: float = 0.95,
    permutations: int = 999,
    replicates: int = 200,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Estimate:
    """Distance between two datasets (or a dataset and a known chain), with an interval and a test.

    Parameters
    ----------
    X, Y : observed :class:`Transitions`; a MarkovChain is taken as known and not resampled. Lists of (T, d) arrays are
        trajectories with continuous states (see docs/continuous and ``diffbisim.continuous.estimate_paths``)
    cost, discount, solver : as for :func:`diffbisim.distance`
    criterion, horizon, weights : as for :func:`diffbisim.distance`, but for the total cost, which may be infinite in a
        replicate, and is refused. The test takes the discounted metric, whatever is asked
    rewards : for chains made from data; one for both, or a tuple ``(for X, for Y)``
    initial : where chains made from data start; one for both, or a tuple. "first": as the episodes do (transitions
        without episodes: in the first state seen, which is a guess; if the two sides then start differently, a warning
        says so); "pooled": both as all episodes of both; "empirical": anywhere, as often as each was seen;
        "stationary": in the long-run law of each; or a state, or a distribution. Default: "first", and "pooled" if a
        side has fewer than 20 episodes (a warning says so, if it matters): the distance of long trajectories is not to
        hang on a few first states
    unseen : what follows a state that was never left ("self-loop", "uniform" or "error"); replicates lose states too
    terminal : states that end an episode: they are absorbing, whatever ``unseen`` says, and steps out of them (into
        the next episode of a stream, say) do not count. For trajectories a function of points (n, d) that says which
        of them end one, (n,) booleans
    strata : for each episode of X and of Y what it shares with others, two sequences: episodes are compared and
        permuted within strata only. The value itself is that of the groups as they are
    confidence : nominal probability that the interval covers the true distance
    permutations : draws of the test; its p-value is at least 1 / (permutations + 1)
    replicates : bootstrap samples, and as many of the null; 200 for an interval, 1 000 for a fine one
    rng : seed or generator; the answer does not depend on the number of workers
    executor, progress : as for :func:`diffbisim.pairwise`

    Examples
    --------
    >>> from diffbisim import MarkovChain, Transitions, examples
    >>> walks = [[examples.drift_walk(f, 6).sample(30, rng=k) for k in range(40)] for f in (0.0, 1.0)]
    >>> A, B = (Transitions.from_trajectories(w, states=range(6)) for w in walks)
    >>> e = estimate(A, B, rewards=range(6), discount=0.9, rng=0)
    >>> e.lower < e.value < e.upper, e.conclusion
    (True, 'evidence that they differ')
    """
    if is_paths(X) and is_paths(Y):
        _refuse_for_paths(rewards=rewards, initial=initial, strata=strata, executor=executor)
        named = "euclidean" if isinstance(cost, str) and cost == "reward" else cost
        how: Any = {
            "criterion": criterion, "horizon": horizon, "weights": weights, "terminal": terminal,
            "confidence": confidence, "replicates": replicates, "rng": rng,
        }  # fmt: skip
        return estimate_paths(X, Y, named, discount, solver, **how)  # type: ignore[return-value]
    _check(criterion, confidence, permutations, replicates, unseen)
    sources = make_sources({"X": as_process(X), "Y": as_process(Y)}, rewards, initial, unseen, terminal)
    if all(source.known for source in sources):
        raise InvalidArgument("X and Y are both chains, so there is nothing to resample: use diffbisim.distance")
    question: Any = {"criterion": criterion, "horizon": horizon, "weights": weights}
    base = distance(sources[0].chain(), sources[1].chain(), cost, discount, solver, **question)
    generator = as_generator(rng)
    seeds = generator.spawn(replicates)
    for_test, for_null = generator.spawn(2)
    work = Work(sources, base.problem, make_solver(solver))
    kept = deepcopy(seeds)  # drawing from them changes them
    stars = np.concatenate(executor_map(work.bootstrap, batches(seeds, 8), executor, progress, "replicates"))
    evidence = null = None
    design = make_design(sources, base.problem, cost, discount, strata)
    if design is not None:
        warn_of_few(sources, design)
        evidence = compare_two(design, permutations, for_test)
        without = batches(null_counts(design, replicates, for_null), 8)
        null = np.concatenate(executor_map(partial(work.null, design), without, executor, progress, "null"))
    elif strata is not None:
        raise InvalidArgument(f"strata is for episodes that could be of either group, and {NOT_EXCHANGEABLE}")
    bias = float(stars.mean() - base.value)
    value = max(0.0, base.value - bias) if null is None else _corrected(base.value, null)
    lower, upper = _interval(base.value, stars, null, partial(work.noise, kept), float(confidence))
    return Estimate(
        value, lower, max(value, upper), float(confidence), base.value, bias, float(stars.std(ddof=1)), base, stars,
        null, evidence, partial(work.noise, kept),
    )  # fmt: skip


NOT_EXCHANGEABLE = "these are not: they need the same states, and a cost that is zero between equal ones"


def _check(criterion: str, confidence: float, permutations: int, replicates: int, unseen: str) -> None:
    if criterion not in ("discounted", "average"):
        raise InvalidArgument(f"criterion is {criterion!r}; an estimate has 'discounted' or 'average'")
    if not 0 < as_number(confidence) < 1:
        raise InvalidArgument(f"confidence is {confidence!r}; give a probability such as 0.95")
    if check_count(replicates, "replicates") < 20:
        raise InvalidArgument(f"replicates is {replicates!r}; a bootstrap interval needs at least 20")
    check_draws(permutations)
    check_unseen(unseen)


def check_draws(permutations: int) -> None:
    if check_count(permutations, "permutations") < 19:
        raise InvalidArgument(f"permutations is {permutations!r}; a test at 5 % needs at least 19, better 999")


def check_unseen(unseen: str) -> None:
    if unseen not in ("self-loop", "uniform", "error"):
        raise InvalidArgument(
            f'unseen is {unseen!r}; use "self-loop", "uniform" or "error": states must keep their place'
        )


def _refuse_for_paths(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(f"{name} is for finitely many states; leave it out for trajectories in R^d")


def _interval(value: float, stars: Array, null: Array | None, noise: Any, confidence: float) -> tuple[float, float]:
    """The basic bootstrap interval, its lower end held against the null, or against the noise where there is none."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(stars, [tail, 1 - tail], method="weibull")  # unbiased for few replicates
    lower = max(0.0, float(2 * value - high))
    if null is not None:
        q = float(np.quantile(null, 1 - tail, method="weibull"))
        lower = min(lower, float(np.sqrt(max(0.0, value**2 - q**2))))
    elif value <= np.quantile(noise(), confidence, method="weibull"):
        lower = 0.0
    return lower, max(lower, float(2 * value - low))


def _corrected(value: float, null: Array) -> float:
    return float(np.sqrt(max(0.0, value**2 - null.mean() ** 2)))


# --- one side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One side: data and what is needed to make a chain of them."""

    data: Any
    rewards: Any
    start: Any  # None: as the episodes do; "empirical", "stationary"; or a distribution
    unseen: Unseen
    terminal: tuple[Any, ...] = ()  # names of states that are never left

    @property
    def known(self) -> bool:
        return isinstance(self.data, MarkovChain)

    def chain(self, rng: np.random.Generator | None = None) -> MarkovChain:
        """The empirical chain, of a bootstrap replicate if a generator is given."""
        if isinstance(self.data, MarkovChain):
            return self.data
        data = self.data if rng is None else _resampled(self.data, rng)
        ends = _numbers_of(self.terminal, data.n_states, data.labels)
        return chain_from(data, self.rewards, self.start, self.unseen, ends)


def _resampled(data: Transitions, rng: np.random.Generator) -> Transitions:
    """A bootstrap replicate: episodes drawn with replacement or, of too few, the steps out of each state."""
    if data.starts is None or data.n_episodes >= FEW:
        return data.take(rng.integers(data.n_episodes, size=data.n_episodes))
    visits = np.bincount(data.states, minlength=data.n_states)
    number = -(-visits // data.lag)  # steps of a lag overlap: so many are independent
    by_state = np.argsort(data.states, kind="stable")
    first = np.repeat(np.cumsum(visits) - visits, number)
    drawn = by_state[first + rng.integers(np.repeat(visits, number))]
    columns = ("states", "next_states", "weights", "actions", "rewards")
    kept = {name: part[drawn] for name in columns if (part := getattr(data, name)) is not None}
    return replace(data, episodes=None, **kept)


def chain_from(
    data: Transitions, rewards: Any, start: Any, unseen: Unseen, terminal: Sequence[int] = ()
) -> MarkovChain:
    """The empirical chain with a start by name, by distribution, or as the episodes do; terminal states stay."""
    law = visited(data) if isinstance(start, str) else start
    if len(terminal):
        weights = None if data.weights is None else np.append(data.weights, np.ones(len(terminal)))
        states, following = (np.append(part, terminal) for part in (data.states, data.next_states))
        data = replace(data, states=states, next_states=following, weights=weights)
    chain: MarkovChain = data.chain(rewards=rewards, initial=law, unseen=unseen)
    return chain.with_initial(long_run(chain)) if isinstance(start, str) and start == "stationary" else chain


def _numbers_of(names: Sequence[Any], n: int, labels: Any) -> Any:
    """Those of the named states that are among these, by number."""
    numbers = {label: k for k, label in enumerate(labels or ())}
    found = (find_state(name, n, numbers) for name in names)
    return np.array([k for k in found if k is not None], dtype=np.int64)


def _names_of_ends(terminal: Any, data: Sequence[Any]) -> tuple[Any, ...]:
    """A state, or several, that some of the data have."""

    def known(name: Any) -> bool:
        return any(len(_numbers_of([name], one.n_states, one.labels)) for one in data)

    if terminal is None:
        return ()
    if callable(terminal):
        raise InvalidArgument("terminal is a function, which is for trajectories in R^d; name the states that end")
    names = (terminal,) if known(terminal) or isinstance(terminal, str) else tuple(terminal)
    for name in names:
        if not known(name):
            raise InvalidArgument(f"terminal: {name!r} is no state of the data; name states by label or number")
    return names


def _without_exits(data: Any, terminal: Sequence[Any]) -> Any:
    """The same episodes without the steps out of terminal states."""
    if not terminal or not isinstance(data, Transitions):
        return data
    going = ~np.isin(data.states, _numbers_of(terminal, data.n_states, data.labels))
    if not going.any():
        raise InvalidArgument("terminal: no step is left; it must leave some states that episodes go on from")
    columns = ("states", "next_states", "weights", "episodes", "actions", "rewards")
    kept = {name: part[going] for name in columns if (part := getattr(data, name)) is not None}
    first = data.first if data.first is not None or data.starts is not None else int(data.states[0])
    return replace(data, first=first, **kept)


def visited(data: Transitions) -> Array:
    """The law of the states from which steps were seen, (n,)."""
    visits = np.bincount(data.states, data.weights, minlength=data.n_states)
    return np.asarray(visits / visits.sum())


def first_states(data: Transitions) -> Array:
    """The law of the first states of the episodes, (n,); of all visits where there are no episodes."""
    if data.starts is None:
        return visited(data)
    begun = np.bincount(data.starts, data.start_weights, minlength=data.n_states)
    return np.asarray(begun / begun.sum())


def long_run(chain: MarkovChain) -> Array:
    """The long-run law from the start of a chain, (n,): stationary laws, by how likely each class is reached."""
    laws: Array = chain.stationary_distributions
    if len(laws) == 1:
        return np.asarray(laws[0])
    late = chain.occupancy(1 - 1e-9)
    return np.asarray(np.array([late[states].sum() for states in chain.recurrent_classes]) @ laws)


def make_sources(
    data: dict[str, Any], rewards: Any, initial: Any, unseen: Unseen, terminal: Any = None
) -> list[Source]:
    """Groups by name, with their starts resolved; what is guessed or decided of these is told."""
    for name, one in data.items():
        if not isinstance(one, (Transitions, MarkovChain)):
            raise InvalidArgument(f"{name} is a {type(one).__name__}; give Transitions or a MarkovChain")
    ends = _names_of_ends(terminal, list(data.values()))
    data = {name: _without_exits(one, ends) for name, one in data.items()}
    starts = [initial[k] if isinstance(initial, tuple) else initial for k in range(len(data))]
    few = [one for one in data.values() if isinstance(one, Transitions) and one.starts is not None]
    laws = [_named(one, first_states(one)) for one in few]
    if (
        initial is None and len(few) == len(data) and min(one.n_episodes for one in few) < FEW_STARTS
        and any(law != laws[0] for law in laws) and all(one.labels == few[0].labels for one in few)
    ):  # fmt: skip
        warn(
            f"fewer than {FEW_STARTS} episodes say little of where a process starts, so all groups start as all "
            'episodes together: pass initial="pooled" to say so, or initial="first" for each as its own',
            category=UserWarning, stacklevel=3,
        )  # fmt: skip
        starts = ["pooled"] * len(data)
    pool = _pooled_start(list(data.values()))
    sources = []
    for k, (one, start) in enumerate(zip(data.values(), starts, strict=True)):
        own = rewards[k] if isinstance(rewards, tuple) else rewards
        if isinstance(one, MarkovChain):
            law = long_run(one) if start in ("stationary", "empirical") else None
            sources.append(Source(one if law is None else one.with_initial(law), None, None, unseen))
        else:
            sources.append(Source(one, own, _start(one, start, pool), unseen, ends))
    _warn_of_guesses(data, starts, sources)
    return sources


def _start(data: Transitions, start: Any, pool: dict[Any, float]) -> Any:
    """None, "empirical", "stationary" or a distribution; a state that has the name of a rule is that state."""
    numbers = {label: k for k, label in enumerate(data.labels or ())}
    if start is None or (isinstance(start, str) and start not in numbers):
        if start in (None, "first"):
            return None
        if start in ("empirical", "stationary"):
            return start
        if start == "pooled":
            missing = [name for name in pool if find_state(name, data.n_states, numbers) is None]
            if missing:
                raise InvalidArgument(
                    f'initial="pooled": {missing[0]!r} is no state of every group; give states= when making Transitions'
                )
            start = pool
    if isinstance(start, str) and start not in numbers:
        raise InvalidArgument(
            f'initial is {start!r}, no state; use "first", "pooled", "empirical", "stationary", a state, a distribution'
        )
    return start_distribution(start, data.n_states, numbers)


def _named(data: Any, law: Array) -> dict[Any, float]:
    """A law by the names of the states that have some of it."""
    name = data.label if isinstance(data, MarkovChain) else data.name
    return {name(k): float(law[k]) for k in np.flatnonzero(law).tolist()}


def _pooled_start(data: Sequence[Any]) -> dict[Any, float]:
    """The law of the first states of all episodes, by name; that of a chain which is known counts alone."""
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
    """Tell where the start of one is only that of its first transition, and those of others differ from it."""
    guessed = any(
        isinstance(one, Transitions) and one.starts is None and start in (None, "first")
        for one, start in zip(data.values(), starts, strict=True)
    )
    if not guessed:
        return
    laws = [_named(chain, chain.initial) for chain in (source.chain() for source in sources)]
    k = next((k for k, law in enumerate(laws) if law != laws[0]), None)
    if k is not None:
        x, y = ("{" + ", ".join(map(repr, list(law)[:3])) + "}" for law in (laws[0], laws[k]))
        names = list(data)
        warn(
            f"pairs do not say where a process starts; {names[0]} starts in {x} and {names[k]} in {y}, by the first "
            "states seen, and the distance counts the difference: pass initial= to say where they start",
            category=UserWarning, stacklevel=4,
        )  # fmt: skip


def warn_of_few(sources: Sequence[Source], design: Design) -> None:
    """Tell where there are too few episodes to permute."""
    data = [source.data for source in sources if not source.known]
    if not design.permute and design.known is None and all(one.starts is not None for one in data):
        warn(
            f"{' and '.join(str(one.n_episodes) for one in data)} episodes are too few to permute, so single steps "
            "are. The test and the interval assume that each group is one Markov chain; if its episodes differ, the "
            "p-value is too small and the interval too short. Collect at least 4 episodes in each group",
            category=UserWarning, stacklevel=3,
        )  # fmt: skip


# --- one state space ----------------------------------------------------------------------------------------------


def make_design(sources: Sequence[Source], problem: Problem, cost: Any, discount: float, strata: Any) -> Design | None:
    """How two groups can be compared by exchanging their episodes; None if they cannot."""
    if len(_tables(problem)) > 1:
        return None
    space = common_space(problem, cost, [source.known for source in sources])
    if space is None:
        return None
    data = [
        recoded(source.data, space, code) for source, code in zip(sources, space.codes, strict=True) if not source.known
    ]
    known = next((source.data for source in sources if source.known), None)
    counted, permute = count_for_test(data, None if strata is None else stratum_numbers(strata, data), known)
    γ = discount if discount < 1 else 0.95  # a horizon may do without
    return Design(counted, space.cost, γ, permute, known, space.labels)


class Space(NamedTuple):
    """The states of both chains together."""

    labels: Any  # of the n states, or None
    codes: list[Any]  # (n_X,) and (n_Y,): which of them each state is
    cost: Array  # (n, n)


def common_space(problem: Problem, cost: Any, known: Sequence[bool]) -> Space | None:
    """The states of both chains together, if equal ones cost nothing and it is known what others cost."""
    X, Y = problem.x, problem.y
    if (X.labels is None) != (Y.labels is None):
        return None
    names = [list(range(C.n_states) if C.labels is None else C.labels) for C in (X, Y)]
    union = list(dict.fromkeys(names[known.index(True)] if any(known) else names[0] + names[1]))
    number = {name: k for k, name in enumerate(union)}
    if any(name not in number for name in names[0] + names[1]):
        return None  # the known chain does not have them
    codes = [np.array([number[name] for name in own]) for own in names]
    table = _common_cost(problem, cost, union, codes)
    if table is None or np.diag(table).any():
        return None
    return Space(None if X.labels is None else tuple(union), codes, table)


def _common_cost(problem: Problem, cost: Any, union: list[Any], codes: list[Any]) -> Array | None:
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
    """The same episodes on the common states."""
    return replace(
        data,
        states=code[data.states],
        next_states=code[data.next_states],
        n_states=len(space.cost),
        labels=space.labels,
        starts=None if data.starts is None else code[data.starts],
        first=None if data.first is None else int(code[data.first]),
    )


def stratum_numbers(strata: Any, data: Sequence[Transitions]) -> list[Any]:
    """One number for each episode of each group."""
    given = [np.asarray(one) for one in strata]
    sizes = [one.n_episodes for one in data]
    if [one.shape for one in given] != [(size,) for size in sizes]:
        raise InvalidArgument(
            f"strata has entries of shapes {[one.shape for one in given]}; give one sequence per group, with an entry "
            f"for each of its {' and '.join(map(str, sizes))} episodes"
        )
    _, numbers = np.unique(np.concatenate(given), return_inverse=True)
    return np.split(numbers.ravel(), np.cumsum(sizes)[:-1])


# --- in workers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Distances of new data; its methods run in workers, on batches."""

    sources: list[Source]
    problem: Problem
    solver: Any

    def __post_init__(self) -> None:
        if self.solver.threads is None:  # the replicates are the parallel part
            self.__dict__["solver"] = replace(self.solver, threads=1)

    def bootstrap(self, seeds: Sequence[np.random.Generator]) -> Array:
        """Distances of bootstrap replicates."""
        first, second = self.sources
        return np.array([self._distance(first.chain(seed), second.chain(seed)) for seed in seeds])

    def noise(self, seeds: Sequence[np.random.Generator]) -> Array:
        """How far these replicates are from the data, both sides added."""
        base, tables = self.problem, _tables(self.problem)
        costs = [within(table) for table in tables], [within(table.T) for table in tables]
        out = np.zeros(len(seeds))
        for k, seed in enumerate(deepcopy(list(seeds))):
            for source, old, cost in zip(self.sources, (base.x, base.y), costs, strict=True):
                if not source.known:
                    out[k] += self.solver.solve(_between(base, source.chain(seed), old, cost)).value
        return out

    def null(self, design: Design, draws: Sequence[Array]) -> Array:
        """Distances of datasets without a difference, each as counts (2, K)."""
        chains = (self._from_counts(design, counts) for counts in draws)
        return np.array([self._distance(X, Y, design.cost) for X, Y in chains])

    def _distance(self, X: MarkovChain, Y: MarkovChain, cost: Array | None = None) -> float:
        found = replace(self.problem, x=X, y=Y) if cost is None else _between(self.problem, X, Y, [cost])
        return float(self.solver.solve(found).value)

    def _from_counts(self, design: Design, counts: Array) -> list[MarkovChain]:
        """Chains on the common states; starts as those of the data are made."""
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
            elif not isinstance(start, str):
                start = np.zeros(n)
                numbers = {name: k for k, name in enumerate(design.labels or range(n))}
                for name, share in _named(own, own.initial).items():
                    start[numbers[name]] += share
            unseen: Unseen = "uniform" if source.unseen == "uniform" else "self-loop"
            chains.append(chain_from(data, None, start, unseen, _numbers_of(source.terminal, n, design.labels)))
        return chains


def _tables(problem: Any) -> tuple[Array, ...]:
    """The different costs of a problem: one, or one for every time."""
    timed = isinstance(problem, TimedProblem) and not problem.one_cost
    return problem.costs if timed else (problem.cost,)


def _between(problem: Any, x: MarkovChain, y: MarkovChain, cost: Sequence[Array]) -> Any:
    """The same question about two other chains, with other costs."""
    if isinstance(problem, TimedProblem):
        times = len(problem.costs)
        return replace(problem, x=x, y=y, costs=tuple(cost) if len(cost) == times else (cost[0],) * times)
    return replace(problem, x=x, y=y, cost=cost[0])
