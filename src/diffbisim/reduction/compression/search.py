"""Compression: the nearest chain with few states (the paper's D-BOT-Repr).

    minimize  d(X, Y)   over the chains Y with k states:  P_Y, ν_Y, and r_Y unless the rewards are given.

The optimal coupling of X and Y is then a soft aggregation: the encoder λ_X(y|x) tells which small state represents a
large one. The problem is not convex, and finding the best Y is NP-hard in general (Bacci et al. 2017). This is
therefore a search with a certificate: the distance of the chain found is exact, but it need not be the smallest
possible. One case has a definite answer: if X has at most k classes of exactly equivalent states, the result is the
quotient, with d = 0.

    1. Merge the exactly equivalent states of X (lumping.py). The search works on the quotient, with the same distances.
    2. Find starting points: partitions into k classes of states that are close in the bisimulation metric (starts.py),
       and the nearest of the chains that anybody can write down (candidates.py). If that is an average over classes
       of a small chain, single states are moved between the classes first.
    3. From each of them, in parallel, run a block descent with exact distances (descent.py). Then try the chain
       averaged over the classes of the hard encoder, and keep it if it is nearer. All starts are run coarsely, and the
       best quarter to convergence. For larger chains, distances are coarser and three in eight are run to convergence.
       Above 400 states, coarse descents begin only from the nearest quarter of the starts, and the best of these are
       run to convergence. If the discount is close to one, the finalists run twice, the second time via smaller
       discounts.
    4. Return the nearest chain, with its certified distance to X itself.

*Time limits* apply to all parts: there are fewer landmarks and fewer starts, solves end early, and no step is made that
would end too late at the measured pace. Time is reserved for the final sweep that certifies the result.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.arrays import Array
from diffbisim.common.checks import (
    check_callback,
    check_choice,
    check_count,
    check_discount,
    check_path,
    check_seconds,
    check_tol,
    dense,
    finite_numbers,
    refuse_given,
)
from diffbisim.common.errors import InvalidArgument, InvalidChain, quietly, warn
from diffbisim.common.parallel import Executor, as_done
from diffbisim.common.progress import Progress, tracking
from diffbisim.learning.optimize.checkpoint import RunCheckpoint, stored
from diffbisim.problems.base import ChainProblem
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain, Transitions, Unseen
from diffbisim.processes.convert import as_process, check_lags
from diffbisim.processes.cost import feature_cost, ground_cost, reward_cost
from diffbisim.processes.lumping import lump
from diffbisim.processes.stochastic import as_generator
from diffbisim.reduction.compression.aggregation import How, kinetic
from diffbisim.reduction.compression.candidates import (
    metric_averages,
    nearest_first,
    simple_aggregates,
    simple_candidates,
)
from diffbisim.reduction.compression.descent import MOMENT, DescentRun, along_gradient, descend, exchange, lloyd
from diffbisim.reduction.compression.kinetics import lagged, metastable_sets
from diffbisim.reduction.compression.result import MODELS, CompressResult, SweepResult
from diffbisim.reduction.compression.starts import (
    SmallModel,
    Target,
    averaged,
    by_appearance,
    by_reward,
    landmark_distances,
    matched_to_costs,
    numbers,
    other_partition,
    quantiles,
    random_model,
    split_classes,
    spread,
)
from diffbisim.reduction.compression.vectors import vector_aggregates, vector_candidates
from diffbisim.results.base import DistanceResult, Status
from diffbisim.solvers import Exact

#: A restart ends when its steps gain less than this fraction of the distance: in the coarse and in the final round.
COARSE_GAIN, FINE_GAIN = 1e-2, 1e-4

#: For chains up to this size, random kernels are used as starts, and single states are moved between classes.
MAX_STATES_FOR_RANDOM_STARTS = 50

#: For chains up to this size, there is a descent from every start, and slow modes are computed.
MAX_STATES_FOR_ALL_STARTS = 400

#: Above the discount NEARER, finalists also run via shorter horizons, each FARTHER times as long as the previous one.
NEARER, FARTHER = 0.95, 4.0

#: Starts whose distances are computed exactly.
EXACTLY = ("given", "simple")

#: Maximum number of rounds of averaging over classes before the descent.
ROUNDS = 10

#: A distance below this fraction of the largest cost counts as zero.
ZERO = 1e-6

#: Fractions of a time limit by which landmarks and our own starts must be found, and that simple candidates may take.
LANDMARKS, STARTS, SIMPLE = 0.15, 0.3, 0.05


@stored
class StartingModel(NamedTuple):
    """A model to start from, and what to do before the descent.

    ``before`` is "average" (average over classes), "hold" (keep the rewards fixed at first), "nearer" (run via shorter
    horizons), or empty. The distances of "given" starts (of the user) and "simple" ones (candidates.py) are computed
    exactly, and the result is no farther than they are.
    """

    model: SmallModel
    before: str = ""


def compress(
    target: MarkovChain | Transitions,
    n_states: int,
    discount: float = 0.95,
    *,
    model: str = "nearest",
    lag: int = 1,
    rewards: Any = "learn",
    cost: Any = "reward",
    target_rewards: Any = None,
    unseen: Unseen = "error",
    rng: int | np.random.Generator = 0,
    restarts: int = 8,
    max_iterations: int = 200,
    time_limit: float | None = None,
    starts: Sequence[MarkovChain] = (),
    tol: float = 1e-8,
    criterion: str = "discounted",
    executor: Executor = None,
    progress: Progress = False,
    callback: Callable[[Mapping[str, float]], object] | None = None,
    checkpoint: str | Path | None = None,
) -> CompressResult:
    """Find a nearby chain with ``n_states`` states: its kernel, start and rewards, and the encoder.

    Parameters
    ----------
    target : MarkovChain or Transitions
        The chain to compress. Transitions are replaced by their empirical chain; see :meth:`Transitions.chain`.
    n_states : int
        Number of states of the small chain. States that are not needed remain unused.
    discount : float, default=0.95
        Discount γ per step of the small chain, strictly between 0 and 1.
    model : {"nearest", "aggregate", "kinetic"}, default="nearest"
        "nearest" searches all chains of this size, "aggregate" only those whose rows are averages over classes.
        "kinetic" is the chain of metastable sets that preserves their stationary distribution and slow rates (Hummer
        and Szabo, see :func:`diffbisim.aggregate`); it involves no search and needs no rewards, but one recurrent
        class. Arguments of the search are then refused, and nothing depends on `rng`.
    lag : int, default=1
        Number of steps of the target that correspond to one step of the small chain. No root of the kernel is taken.
    rewards : {"learn", "spread"} or array of shape (n_states,) or (n_states, d), default="learn"
        Rewards of the small chain: learned, evenly spaced over the range of the target's (not for vectors), or given.
    cost : "reward" or array of shape (n_X, n_states), default="reward"
        Ground cost: |r(x) - r(y)|, or a table, which determines how the small states appear.
    target_rewards : array of shape (n_X,), default=None
        Rewards of the target's states, instead of the target's own.
    unseen : default="error"
        For Transitions, how to treat states without an observed successor; see :meth:`MarkovChain.from_transitions`.
    rng : int or Generator, default=0
        Seed or generator. The same seed gives the same result for any number of workers.
    restarts : int, default=8
        Number of descents from different partitions, besides those from simple candidates; the best one is kept.
    max_iterations : int, default=200
        Maximum number of iterations of each descent.
    time_limit : float, default=None
        Seconds after which the best chain so far is returned; the result then depends on the machine. Merging, one
        start and two sweeps of the solver are always completed.
    starts : sequence of MarkovChain, default=()
        Chains of `n_states` states to start from in addition; the result is no farther than any of them.
    tol : float, default=1e-8
        Certified gap of the distance, relative to the largest cost.
    criterion : str, default="discounted"
        Only "discounted" is supported.
    executor : default=None
        Where the restarts run, as in :func:`diffbisim.pairwise`; None for threads of this process.
    progress : bool or callable, default=False
        True for a progress bar over the restarts, or a callable ``(done, total)``.
    callback : callable, default=None
        Called with a row of history when a restart ends; returning True skips the remaining ones.
    checkpoint : str or Path, default=None
        File to write when a restart ends. If it exists, the run resumes from it and gives bitwise the same result.

    Returns
    -------
    CompressResult
        ``chain``, ``encoder``, ``decoder``, ``assignment``, the certified ``distance``, ``history`` and ``status``.

    Warns
    -----
    UserWarning
        If the small chain is frozen, slower or faster than the target, or has fewer behaviors than states; see
        :attr:`CompressResult.remark`. Use another `model` or `lag` if that matters.

    Notes
    -----
    Without a time limit, a "nearest" result is no farther than the chain that never moves with the best rewards,
    averages over simple classes of states, and the kinetic model; and an "aggregate" no farther than these averages.

    Examples
    --------
    >>> from diffbisim.processes.examples import block_chain
    >>> small = compress(block_chain(), n_states=5)
    >>> small.distance.upper <= 1e-6
    True
    >>> small.assignment.reshape(5, 5).std(axis=1).max()
    0.0
    """
    began = time.monotonic()
    options = Options(
        rewards, cost, model, check_count(lag, "lag", 1), rng, restarts, max_iterations, time_limit, starts, tol,
        executor, progress, callback, checkpoint, criterion,
    )  # fmt: skip
    shared = SharedTarget(_chain(target, target_rewards, unseen), options.lag)
    return _compress(shared, n_states, discount, options, began)


class Options(NamedTuple):
    """The options of :func:`compress`, apart from the target, the size and the discount."""

    rewards: Any = "learn"
    cost: Any = "reward"
    model: str = "nearest"
    lag: int = 1
    rng: int | np.random.Generator = 0
    restarts: int = 8
    max_iterations: int = 200
    time_limit: float | None = None
    starts: Sequence[MarkovChain] = ()
    tol: float = 1e-8
    executor: Executor | None = None
    progress: Progress = False
    callback: Callable[[Mapping[str, float]], object] | None = None
    checkpoint: str | Path | None = None
    criterion: str = "discounted"


#: Options of the search, which model="kinetic" does not have.
SEARCHED = ("restarts", "max_iterations", "time_limit", "starts", "executor", "callback", "checkpoint")


def _compress(shared: "SharedTarget", n_states: int, discount: float, options: Options, began: float) -> CompressResult:
    """Compress to one size, using what is shared with other sizes."""
    if options.criterion != "discounted":
        raise InvalidArgument(
            f"criterion is {options.criterion!r}; compress supports only 'discounted'; compress with a discount near "
            "1, e.g. 0.99, and compute distance(X, small.chain, criterion=...) afterwards"
        )
    X, k, (rewards, cost) = shared.chain, check_count(n_states, "n_states", 1), _given(shared.chain, n_states, options)
    if k > X.n_states and rewards is None and cost is None:
        raise InvalidArgument(
            f"n_states is {k}, but the chain has {X.n_states} states and is itself the nearest chain; give at most "
            f"n_states={X.n_states}"
        )
    check_discount(discount)
    check_choice(options.model, "model", MODELS)
    check_callback(options.callback)
    check_tol(options.tol)
    checkpoint = check_path(options.checkpoint, "checkpoint")
    restarts, max_iterations = (
        check_count(options.restarts, "restarts", 1),
        check_count(options.max_iterations, "max_iterations"),
    )
    clock = Clock(began, check_seconds(options.time_limit))
    if options.model == "kinetic":
        given = {name: getattr(options, name) for name in SEARCHED}
        refuse_given('model="kinetic" involves no search', Options._field_defaults, **given)
        return kinetic(X, k, How(discount, cost, rewards, None, options.lag, options.tol))
    if not isinstance(options.starts, Sequence):
        raise InvalidArgument(f"starts is a {type(options.starts).__name__}; give a list of MarkovChain")
    begun = [_started(Y, k, n, cost is None, X) for n, Y in enumerate(options.starts)]
    file = None
    if checkpoint is not None:
        file = RunCheckpoint(checkpoint, "compress", {
            "target": X, "n_states": k, "discount": float(discount), "rewards": rewards, "cost": cost,
            "rng": options.rng, "restarts": restarts, "max_iterations": max_iterations, "starts": list(options.starts),
            "tol": float(options.tol), "model": options.model,
        })  # fmt: skip
    target, assignment = shared.merged(discount, cost, options.tol)
    heats = _heats(target, options.model)
    notes = SearchCheckpoint.of(file, clock.limited, len(heats))
    whole = Target(X, discount, numbers(X.rewards) if cost is None else None, cost, options.tol)
    if not notes.starts:
        maker = StartingPoints(target, whole, k, options.model, shared, clock)
        notes.starts = maker.all(begun, restarts, as_generator(options.rng))
        notes.write()
    reserve = X.n_transitions / target.chain.n_transitions  # the final sweep is over X itself
    race = RestartSearch(target, max_iterations, clock, reserve, options.executor, notes, options.callback, heats)
    best, history = race.run(options.progress)
    small, learned, paid = best.model, cost is None, rewards
    if small.rewards is not None and X.rewards is not None:
        paid = small.rewards.reshape(k, *X.rewards.shape[1:])
    Y = MarkovChain(small.transition, initial=small.initial, rewards=paid, lag=X.lag)
    problem = Discounted.make(X, Y, "reward" if learned else cost, discount)
    classes = None if options.model == "nearest" or small.assignment is None else small.assignment[assignment]
    certified = _certified(problem, best.table[assignment], options.tol, clock)
    found = CompressResult(Y, certified, history, options.model, options.lag, classes)
    if found.remark:
        warn(found.remark, UserWarning)
    return found


class SharedTarget:
    """Data shared by compressions of one chain to several sizes."""

    def __init__(self, chain: MarkovChain, lag: int = 1) -> None:
        self.chain = lagged(chain, lag)
        self.features: Array | None = None  # (n, n_landmarks) of the merged chain, once computed
        self.before: NDArray[np.int64] | None = None  # (n,) classes of the merged chain at the next smaller size
        self._merged: tuple[Target, NDArray[np.int64]] | None = None

    def merged(self, discount: float, cost: Array | None, tol: float) -> tuple[Target, NDArray[np.int64]]:
        """Return the quotient by exact equivalence as a target, and the class of every state, ``(n,)``."""
        if cost is not None:
            self.features = self.before = None
            return _merged(self.chain, discount, cost, tol)
        self._merged = self._merged or _merged(self.chain, discount, None, tol)
        return self._merged


@dataclass(frozen=True)
class Clock:
    """The time at which a run began (``time.monotonic``), and the seconds that it may take."""

    began: float
    seconds: float

    @property
    def limited(self) -> bool:
        return self.seconds < np.inf

    def end(self, share: float = 1.0) -> float:
        """Return the time at which this share of the seconds will be over."""
        return self.began + share * self.seconds

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until then, at least zero."""
        return max(0.0, self.end(share) - time.monotonic())


def _certified(problem: ChainProblem, table: Array, tol: float, clock: Clock) -> DistanceResult:
    """Certify the distance, starting from the final table of the search; one sweep suffices if that was exact."""
    from diffbisim.solvers.exact.solver import solve

    began, done = time.monotonic(), 0

    def stop(row: Mapping[str, float]) -> bool:
        nonlocal done
        done, spent = done + 1, time.monotonic() - began
        return spent > MOMENT and time.monotonic() + spent / done > clock.end()

    found = solve(problem, Exact(tol=tol), callback=stop, values=table)
    return replace(found, outcome=Status.TIME) if found.outcome is Status.INTERRUPTED else found


def _chain(target: Any, rewards: Any, unseen: Unseen) -> MarkovChain:
    """Return the target as a chain."""
    target = as_process(target)
    if isinstance(target, Transitions):
        return target.chain(rewards=rewards, unseen=unseen)
    if not isinstance(target, MarkovChain):
        raise InvalidArgument(
            f"target is a {type(target).__name__}; give a MarkovChain or diffbisim.Transitions of observed steps"
        )
    refuse_given("the target is a chain, whose rows are all known", {"unseen": "error"}, unseen=unseen)
    if rewards is None:
        return target
    return MarkovChain.of(target, rewards=rewards)


def _given(X: MarkovChain, k: int, options: Options) -> tuple[Array | None, Array | None]:
    """Return the fixed rewards and costs of the small chain; (None, None) if rewards are learned."""
    rewards, cost = options.rewards, options.cost
    if not (isinstance(cost, str) and cost == "reward"):
        if not (isinstance(rewards, str) and rewards == "learn"):
            raise InvalidArgument(
                "rewards and cost are both given; leave one out, since a table of costs determines the small states"
            )
        if isinstance(cost, str):
            raise InvalidArgument(f'cost {cost!r}: give "reward" or a table of shape ({X.n_states}, {k})')
        return None, ground_cost(cost, X, MarkovChain(np.eye(k)))
    if X.rewards is None:
        if options.model == "kinetic":
            return None, None
        raise InvalidArgument(
            "the target has no rewards; make it with MarkovChain(..., rewards=r), pass target_rewards=r, or give a "
            f"table cost of shape ({X.n_states}, {k})"
        )
    if isinstance(rewards, str) and rewards == "learn":
        return None, None
    if X.rewards.ndim > 1:
        if isinstance(rewards, str):
            raise InvalidArgument(f'rewards is {rewards!r}, but the rewards are vectors; use "learn" or {k} vectors')
        r = finite_numbers(rewards, (k, X.rewards.shape[1]), name="rewards", per="small state and number seen of it")
        return r, feature_cost(X.rewards, r)
    if isinstance(rewards, str):
        if rewards != "spread":
            raise InvalidArgument(f'rewards is {rewards!r}; use "learn", "spread" or {k} numbers')
        rewards = spread(X.rewards, k)
    r = finite_numbers(rewards, (k,), name="rewards", per="small state")
    return r, reward_cost(X.rewards, r)


def _merged(X: MarkovChain, discount: float, cost: Array | None, tol: float) -> tuple[Target, NDArray[np.int64]]:
    """Return the quotient by exact equivalence as a target, and the class of every state, ``(n,)``."""
    classes = lump(X) if cost is None else lump(X, key=[row.tobytes() for row in cost + 0.0])
    chain = X if classes.n_states == X.n_states else classes.chain
    if cost is None:
        return Target(chain, discount, rewards=numbers(chain.rewards), tol=tol), classes.assignment
    first = np.unique(classes.assignment, return_index=True)[1]
    return Target(chain, discount, cost=np.ascontiguousarray(cost[first]), tol=tol), classes.assignment


def _started(Y: MarkovChain, k: int, number: int, learned: bool, X: MarkovChain) -> SmallModel:
    """Check a start of the user and return it as a model."""
    if not isinstance(Y, MarkovChain) or Y.n_states != k or (learned and Y.rewards is None):
        raise InvalidArgument(f"starts[{number}] must be a MarkovChain of {k} states{' with rewards' * learned}")
    check_lags([Y, X], [f"starts[{number}]", "the small chain"])
    P, seen, own = dense(Y.transition), numbers(X.rewards), numbers(Y.rewards)
    if not learned or own is None or seen is None:
        return SmallModel(np.array(P), np.array(Y.initial), None)
    if own.shape[1:] != seen.shape[1:]:
        raise InvalidArgument(f"starts[{number}] has rewards of shape {own.shape}; give shape {(k, *seen.shape[1:])}")
    return SmallModel(np.array(P), np.array(Y.initial), np.array(own))


@dataclass(frozen=True, eq=False)
class StartingPoints:
    """Makes the starting points of the restarts."""

    target: Target
    whole: Target  # of which the target is the quotient
    k: int
    kind: str  # kind of model
    shared: SharedTarget
    clock: Clock

    def all(self, given: list[SmallModel], restarts: int, rng: np.random.Generator) -> list[StartingModel]:
        """Return the user's starts and our own; only the quotient if its distance is zero."""
        models, merged = [StartingModel(model, "given") for model in given], self.target.chain.n_states
        if merged <= self.k:
            quotient = self._aligned(np.arange(merged))
            models.insert(0, StartingModel(quotient))
            exact = self.target.solve(quotient, callback=lambda row: time.monotonic() > self.clock.end())
            if exact.upper <= 2 * self.target.tol * exact.problem.scale:
                return models[:1]
        own = self._own(restarts, rng)
        return [*models, *self._simple(), *own]

    def _simple(self) -> list[StartingModel]:
        """Return the nearest of the simple candidates, and the nearest of other kinds if they are not much farther."""
        if self.target.rewards is not None and self.target.rewards.ndim > 1:
            return self._vectors()
        target, seconds = self.target, SIMPLE * self.clock.seconds
        until = time.monotonic() + seconds
        if self.kind == "aggregate":
            aggregates = simple_aggregates(target, self.k, seconds)
            return [StartingModel(model, "average") for model in nearest_first(target, aggregates, until)[:1]]
        whole = self.whole if self.whole.chain.n_states > target.chain.n_states else target
        found = simple_candidates(target, whole, self.k, seconds)
        if found and self.shared.features is not None and target.chain.n_states <= MAX_STATES_FOR_RANDOM_STARTS:
            found += metric_averages(target, self.shared.features, self.k)
        return [StartingModel(model, "simple") for model in nearest_first(target, found, until)]

    def _vectors(self) -> list[StartingModel]:
        """Return the nearest of the simple candidates for vectors, and the frozen chain if it is not much farther."""
        target, seconds = self.target, SIMPLE * self.clock.seconds
        until = time.monotonic() + seconds
        if self.kind == "aggregate":
            aggregates = vector_aggregates(target, self.k, seconds)
            return [StartingModel(model, "average") for model in nearest_first(target, aggregates, until)[:1]]
        candidates = vector_candidates(target, self.whole, self.k, seconds)
        return [StartingModel(model, "simple") for model in nearest_first(target, candidates, until)]

    def _own(self, restarts: int, rng: np.random.Generator) -> list[StartingModel]:
        """Return one start per restart, each with its own seed.

        Small chains alternate between a partition by k-medoids in the metric with averaging, a random kernel, and such
        a partition without averaging. For large chains random kernels are a waste of time: they use the first kind,
        one partition into metastable sets and one into quantiles of the rewards. In addition, one start uses only the
        appearance of the states: the classes of the nearest of k evenly spaced rewards, which are kept fixed until the
        kernel has converged, or the classes of least given cost. In a sweep, one start is the partition of the next
        smaller size with one class split. If time is short, there are fewer starts.
        """
        target, k, clock = self.target, self.k, self.clock
        features = self.shared.features
        if features is None:
            features = self.shared.features = landmark_distances(target, clock.left(LANDMARKS))
        kinds = ("average",) if self.large or self.kind == "aggregate" else ("average", "random", "")
        found: list[StartingModel] = []
        known: list[NDArray[np.int64]] = []  # partitions by k-medoids
        for n, child in enumerate(rng.spawn(restarts)):
            kind = kinds[n % len(kinds)]
            if found and time.monotonic() > clock.end(STARTS):
                break
            if n == 0 and self.shared.before is not None:
                split = split_classes(features, target.weight, self.shared.before, k, child)
                found.append(StartingModel(self._aligned(split), "average"))
            elif n == 1:
                found.append(self._seen())
            elif n == 2 and self.large and (slow := self._slow()) is not None:
                found.append(StartingModel(self._aligned(slow), kind))
            elif n == 3 and self.large and target.rewards is not None:
                found.append(StartingModel(averaged(target, quantiles(target.appearance, target.weight, k), k), kind))
            elif kind == "random":
                found.append(StartingModel(random_model(target, k, child)))
            else:
                known.append(other_partition(features, target.weight, k, child, known, clock.end(STARTS)))
                found.append(StartingModel(self._aligned(known[-1]), kind))
        return found

    @property
    def large(self) -> bool:
        """Whether the chain is too large for random kernels."""
        return self.target.chain.n_states > MAX_STATES_FOR_RANDOM_STARTS

    def _seen(self) -> StartingModel:
        """Return a start that uses only the appearance of the states."""
        if self.kind == "aggregate" and self.target.rewards is not None:
            return StartingModel(averaged(self.target, by_reward(self.target, self.k), self.k), "average")
        return StartingModel(by_appearance(self.target, self.k), "hold")

    def _slow(self) -> NDArray[np.int64] | None:
        """Return the metastable sets, if the chain has slow modes and they are found quickly."""
        try:
            few = self.target.chain.n_states <= MAX_STATES_FOR_ALL_STARTS
            return metastable_sets(self.target.chain, self.k) if few else None
        except InvalidChain:
            return None

    def _aligned(self, assignment: NDArray[np.int64]) -> SmallModel:
        """Return the averaged model of these classes, numbered to match given costs."""
        return averaged(self.target, matched_to_costs(self.target, assignment, self.k), self.k)


class SearchRound(NamedTuple):
    """One round of the search: which starts take part, and how far they are run."""

    share: float  # fraction of the starts that take part, the best ones so far
    small: float | None  # fraction of the distance that a step must gain; None for no descent
    tol: float = 0.0  # certified gap of distances, if larger than that of the target
    patience: int = 3  # consecutive steps that gain less before the descent ends
    rounds: int = ROUNDS  # rounds of averaging before the descent, for starts that are averaged
    moves: bool = False  # whether single states are moved between classes instead of a descent


def _heats(target: Target, kind: str) -> tuple[SearchRound, ...]:
    """Return the rounds: all starts coarsely, then the best ones; for large chains only the nearest even coarsely."""
    if kind == "aggregate":
        few = target.chain.n_states <= MAX_STATES_FOR_RANDOM_STARTS
        return (SearchRound(1.0, None), SearchRound(0.25, None, moves=True)) if few else (SearchRound(1.0, None),)
    if target.chain.n_states <= MAX_STATES_FOR_RANDOM_STARTS:
        return SearchRound(1.0, COARSE_GAIN, patience=2), SearchRound(0.25, FINE_GAIN)
    if target.chain.n_states <= MAX_STATES_FOR_ALL_STARTS:
        first = SearchRound(1.0, COARSE_GAIN / 2, 1e-3, patience=1, rounds=0)
        return first, SearchRound(0.375, FINE_GAIN, 1e-5, patience=2)
    return (
        SearchRound(1.0, None, 1e-3, rounds=0),
        SearchRound(0.25, COARSE_GAIN, 1e-3, patience=1),
        SearchRound(0.125, 3 * FINE_GAIN, 1e-4, patience=2),
    )


@stored
@dataclass(frozen=True, eq=False)
class DescentOutcome:
    """The outcome of a descent: its last model, all values, the table ``(n, k)`` and the certified upper bound."""

    model: SmallModel
    values: list[float]
    table: Array
    upper: float
    complete: bool  # whether it was not cut short by the time limit


@dataclass(eq=False)
class SearchCheckpoint:
    """The content of a checkpoint: the starts, and the outcome of each in every round."""

    file: RunCheckpoint | None
    limited: bool
    starts: list[StartingModel]
    heats: tuple[dict[int, DescentOutcome], ...]

    @classmethod
    def of(cls, file: RunCheckpoint | None, limited: bool, heats: int) -> "SearchCheckpoint":
        """Read the file, if there is one. Starts chosen under a time limit are not used by a run without one."""
        state = None if file is None else file.read()
        if state is None or (state["limited"] and not limited):
            return cls(file, limited, [], tuple({} for _ in range(heats)))
        return cls(file, **state)

    def write(self) -> None:
        """Write the file, if there is one, without runs that were cut short by the time limit."""
        if self.file is not None:
            heats = tuple({n: ran for n, ran in sorted(heat.items()) if ran.complete} for heat in self.heats)
            self.file.write({"limited": self.limited, "starts": self.starts, "heats": heats})


@dataclass(frozen=True, eq=False)
class RestartSearch:
    """Runs all restarts round by round, each with fewer of the starts.

    Ties are resolved in favor of the first start, so that the order of completion does not matter. The run ends when
    the callback returns True.
    """

    target: Target
    max_iterations: int
    clock: Clock
    reserve: float
    executor: Executor
    notes: SearchCheckpoint
    callback: Callable[[Mapping[str, float]], object] | None
    heats: tuple[SearchRound, ...]

    def run(self, progress: Progress) -> tuple[DescentOutcome, tuple[Mapping[str, float], ...]]:
        """Return the nearest model, and one row of history for every step."""
        starts, done = self.notes.starts, self.notes.heats
        own = sum(start.before != "simple" for start in starts)
        sizes = [len(starts), *(math.ceil(heat.share * own) for heat in self.heats[1:])]
        twice = self.target.discount > NEARER and self.heats[-1].small is not None and len(sizes) > 1
        runs = dict(enumerate(starts))
        with tracking(progress, sum(sizes) + twice * sizes[-1], "restarts") as advance:
            for n, (heat, size) in enumerate(zip(self.heats, sizes, strict=True)):
                if n:
                    so_far = _latest(done[:n])
                    best = sorted(so_far, key=lambda k: (so_far[k].upper, k))[:size]
                    runs = {k: StartingModel(so_far[k].model) for k in best}
                if n and twice and heat is self.heats[-1]:
                    runs |= {len(starts) + k: StartingModel(start.model, "nearer") for k, start in runs.items()}
                if not self._heat(runs, done[n], heat, advance):
                    break
        found = [(ran.upper, k, -n, ran) for n, heat in enumerate(done) for k, ran in heat.items()]
        return min(found, key=lambda row: row[:3])[3], _history(*done)

    def _heat(
        self,
        runs: dict[int, StartingModel],
        done: dict[int, DescentOutcome],
        heat: SearchRound,
        advance: Callable[[int], None],
    ) -> bool:
        """Run the starts that are not done; return whether to continue with the next round."""
        if done:
            advance(len(done))
        must = min(runs) if not self.notes.heats[0] else -1  # this one is run however short the time is
        left = self.clock.left()
        jobs = {
            n: Job(n, start, heat, self.max_iterations, self.reserve, left, time.time() + left, n == must)
            for n, start in runs.items()
            if n not in done
        }
        numbers = list(jobs)
        with closing(as_done(_run, list(jobs.values()), self.target, self.executor)) as ended:
            for k, ran in ended:
                if ran is None:  # there was no time for this run
                    continue
                done[numbers[k]] = ran
                self.notes.write()
                advance(1)
                if self.callback is not None and self.callback({"restart": numbers[k], "value": ran.values[-1]}):
                    return False
        return not self.clock.limited or self.clock.left() > 0


def _latest(heats: Sequence[dict[int, DescentOutcome]]) -> dict[int, DescentOutcome]:
    """Return the latest outcome of every start."""
    return {n: ran for heat in heats for n, ran in heat.items()}


def _history(*heats: dict[int, DescentOutcome]) -> tuple[Mapping[str, float], ...]:
    """Return one row per step of every run."""
    rows: list[Mapping[str, float]] = []
    step: dict[int, int] = {}
    for heat in heats:
        for n in sorted(heat):
            values, before = heat[n].values, step.get(n, 0)
            rows += [{"restart": n, "step": before + k, "value": value} for k, value in enumerate(values)]
            step[n] = before + len(values)
    return tuple(rows)


class Job(NamedTuple):
    """One restart, as it is sent to a worker."""

    number: int
    start: StartingModel
    heat: SearchRound
    max_iterations: int
    reserve: float  # time of the sweep that certifies the result, in sweeps of the search
    seconds: float  # remaining time
    until: float  # the end in terms of ``time.time``, the clock that workers share
    must: bool  # whether to run it however late it is


def _run(target: Target, job: Job) -> DescentOutcome | None:
    """Run one restart: average, descend, and try the hard encoder at the end; return None if it is too late.

    The remaining time is computed here, because the job may have waited in a queue.
    """
    (model, before), heat = job.start, job.heat
    end = time.monotonic() + min(job.seconds, job.until - time.time())
    with quietly():  # inaccurate occupancies of intermediate models only cost steps
        for discount in _horizons(target.discount) if before == "nearer" else ():
            nearer = DescentRun(
                replace(target, discount=discount), model, job.max_iterations, end, False, job.reserve, heat.tol
            )
            if nearer.late:
                break
            nearer.begin()
            descend(nearer, COARSE_GAIN)
            model = nearer.model
        search = DescentRun(target, model, job.max_iterations, end, before == "hold", job.reserve, heat.tol)
        if search.late and not job.must:
            return None
        search.begin(exactly=before in EXACTLY)
        first = DescentOutcome(model, search.values[:1], search.result.values, search.result.upper, True)
        averaging = before == "average" or (before == "simple" and model.assignment is not None)
        lloyd(search, heat.rounds if averaging else 0)
        if heat.moves or (before == "simple" and target.chain.n_states <= MAX_STATES_FOR_RANDOM_STARTS):
            exchange(search)
        if heat.small is not None:
            _to_the_end(search, heat.small, heat.patience)
    r = search.result
    if before in EXACTLY and r.upper > first.upper:  # by the rounding of less exact distances
        return replace(first, complete=not search.late)
    return DescentOutcome(search.model, search.values, r.values, r.upper, not search.late)


def _to_the_end(search: DescentRun, small: float, patience: int) -> None:
    """Descend, first with fixed rewards if they are held, and try the hard encoder while the distance decreases.

    Where a fine descent ends, steps along the gradient are tried; it continues as long as they gain enough.
    """
    descend(search, small, patience)
    if search.hold:
        search.hold = False
        descend(search, small, patience)
    while lloyd(search, 1) and not search.over:
        descend(search, small, patience)
    while small < COARSE_GAIN / 2 and along_gradient(search) > small * search.value:
        descend(search, small, patience)


def _horizons(discount: float) -> list[float]:
    """Return smaller discounts that lead up to this one, ascending."""
    found, ahead = [], 1 / (1 - NEARER)
    while ahead < 0.99 / (1 - discount):
        found.append(1 - 1 / ahead)
        ahead *= FARTHER
    return found


# --- several sizes -----------------------------------------------------------------------------------------


def compress_sweep(
    target: MarkovChain | Transitions,
    sizes: Iterable[int] = range(2, 11),
    discount: float = 0.95,
    *,
    rewards: Any = "learn",
    time_limit: float | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> SweepResult:
    """Compress to every size in ``sizes`` and recommend one.

    Parameters
    ----------
    target : MarkovChain or Transitions
        The chain to compress, as in :func:`diffbisim.compress`.
    sizes : iterable of int, default=range(2, 11)
        Numbers of states.
    discount : float, default=0.95
        Discount γ.
    rewards : {"learn", "spread"}, array or callable, default="learn"
        Rewards as in :func:`diffbisim.compress`, or a function that returns them for a given size.
    time_limit : float, default=None
        Seconds for all sizes together, divided in proportion to the sizes.
    checkpoint : str or Path, default=None
        File to write. Each size has its own: for five states, ``run-5.npz`` instead of ``run.npz``.
    **options
        Other options of :func:`diffbisim.compress`, the same for all sizes.

    Returns
    -------
    SweepResult
        The results for all sizes, and the recommended size.

    Notes
    -----
    With learned rewards the sizes share work. Landmarks are computed once. Each search also starts from the next
    smaller chain with a state added, so that the curve never increases, and from its classes with one of them split. In
    return, it makes half as many starts of its own.

    Examples
    --------
    >>> from diffbisim.processes.examples import block_chain
    >>> compress_sweep(block_chain(3, 2), sizes=(2, 3, 4), restarts=2).recommended
    3
    """
    ordered = sorted(set(sizes)) if isinstance(sizes, Iterable) else []
    if not ordered:
        raise InvalidArgument(f"sizes is {sizes!r}; give numbers of states, e.g. sizes=range(2, 11)")
    chain = _chain(target, options.pop("target_rewards", None), options.pop("unseen", "error"))
    for name in options.keys() - set(Options._fields):
        known = ", ".join(sorted({*Options._fields, "target_rewards", "unseen"}))
        raise InvalidArgument(f"compress_sweep has no option {name!r}; it has: {known}")
    same = Options(rewards=rewards, **options)
    shared = SharedTarget(chain, check_count(same.lag, "lag", 1))
    learned = isinstance(rewards, str) and rewards == "learn" and isinstance(same.cost, str)
    results: list[CompressResult] = []
    began = time.monotonic()
    for n, k in enumerate(ordered):
        more: dict[str, Any] = {"rewards": rewards(k) if callable(rewards) else rewards}
        if learned and results and same.model != "kinetic":
            more["starts"] = [_padded(results[-1].chain, k), *same.starts]
            more["restarts"] = (check_count(same.restarts, "restarts", 1) + 1) // 2
            shared.before = _coarser(shared, results[-1])
        if time_limit is not None:
            left = max(0.0, time_limit - (time.monotonic() - began))
            more["time_limit"] = left * k / sum(ordered[n:])
        if checkpoint is not None:
            path = Path(str(check_path(checkpoint, "checkpoint")))
            more["checkpoint"] = path.with_name(f"{path.stem}-{k}{path.suffix}")
        results.append(_compress(shared, k, discount, same._replace(**more), time.monotonic()))
    scale = max(r.distance.problem.scale for r in results)
    values = [r.distance.value for r in results]
    return SweepResult(tuple(ordered), tuple(results), _elbow(ordered, values, ZERO * scale))


def _coarser(shared: SharedTarget, found: CompressResult) -> NDArray[np.int64]:
    """Return the classes of a result for the states of the merged chain."""
    target, assignment = shared.merged(found.distance.discount, None, 0.0)
    first = np.unique(assignment, return_index=True)[1]
    return (
        np.asarray(found.assignment)[first] if target.chain.n_states < assignment.size else np.asarray(found.assignment)
    )


def _padded(chain: MarkovChain, k: int) -> MarkovChain:
    """Return the chain with k states, where the added ones are unreachable copies of the first."""
    n, rewards = chain.n_states, np.asarray(chain.rewards)
    P = np.zeros((k, k))
    P[:n, :n] = chain.transition  # type: ignore[assignment]  # dense: compress made it
    P[n:] = P[0]
    initial = np.concatenate([chain.initial, np.zeros(k - n)])
    paid = np.concatenate([rewards, np.repeat(rewards[:1], k - n, axis=0)])
    return MarkovChain(P, initial=initial, rewards=paid, lag=chain.lag)


def _elbow(sizes: list[int], values: list[float], zero: float) -> int:
    """Return the first size with a value of zero, or else the size farthest below the line between the ends."""
    for k, value in zip(sizes, values, strict=True):
        if value <= zero:
            return k
    if len(sizes) < 3:
        return sizes[int(np.argmin(values))]
    across = (np.array(sizes) - sizes[0]) / (sizes[-1] - sizes[0])
    below = values[0] + across * (values[-1] - values[0]) - np.array(values)
    return sizes[int(below.argmax())]
