"""Compression: the nearest chain with few states (the paper's D-BOT-Repr).

    minimize  d(X, Y)   over the chains Y with k states:  P_Y, ν_Y, and r_Y unless the rewards are given.

The optimal coupling of X and Y is then a soft aggregation: the encoder λ_X(y|x) says which small state stands for a
large one. The problem is not convex, and finding the best Y is NP-hard in general (Bacci et al. 2017), so this is a
search with a certificate: the distance of the chain found is exact, that it is the least possible is not claimed. One
case is decided outright: where X has at most k classes of exactly equivalent states the answer is its quotient, d = 0.

    1. merge the exactly equivalent states of X (lumping.py): the rest works on the quotient, at the same distances
    2. starts: partitions into k classes of states that are near in the bisimulation metric (starts.py)
    3. from each, in parallel: block descent with exact distances (descent.py), then the chain averaged over the
       classes of the hard encoder, kept if it is nearer; coarsely for all, then to the end for the best quarter. Larger
       chains: by coarser distances, three in eight to the end; above 400 states coarse descents from the quarter of the
       starts that is nearest, the best of these to the end. Where the discount is near one, finalists go twice, the
       second time by way of smaller discounts
    4. the nearest of all, with its certified distance to X itself

Time. A limit is passed down to everything: fewer landmarks and fewer starts, solves that end early, and no step that
would end too late by the pace of the last one. What is kept for the end is the sweep that certifies the result.
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

from diffbisim.chain import MarkovChain, Transitions, Unseen
from diffbisim.checks import as_number, check_count, check_discount, finite_numbers
from diffbisim.compress.aggregation import How, check_lag, kinetic
from diffbisim.compress.descent import MOMENT, Search, descend, lloyd
from diffbisim.compress.kinetics import lagged, metastable_sets
from diffbisim.compress.result import MODELS, CompressResult, SweepResult
from diffbisim.compress.starts import (
    Model,
    Target,
    averaged,
    by_appearance,
    by_reward,
    centers,
    landmark_distances,
    matched_to_costs,
    medoid_partition,
    quantiles,
    random_model,
    split_classes,
    spread,
)
from diffbisim.cost import feature_cost, ground_cost, reward_cost
from diffbisim.errors import InvalidArgument, InvalidChain, quietly, warn
from diffbisim.lumping import lump
from diffbisim.optimize.checkpoint import Checkpoint, stored
from diffbisim.parallel import Executor, as_done
from diffbisim.problem import Array, Problem
from diffbisim.process import as_process
from diffbisim.progress import Progress, tracking
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers import Exact
from diffbisim.stochastic import as_generator

#: A restart rests when its steps gain less than these shares of the distance: on the way, and in the end.
COARSE, FINE = 1e-2, 1e-4

#: Chains up to this size are worth a random kernel to start from.
SMALL = 50

#: Chains up to this size are worth a descent from every start, and a look at their slow modes.
MEDIUM = 400

#: Above this discount finalists also go by way of nearer horizons, each this many times as far as the one before.
NEARER, FARTHER = 0.95, 4.0

#: Rounds of averaging over classes before the descent.
ROUNDS = 10

#: A distance below this share of the largest cost is as good as zero.
ZERO = 1e-6

#: Shares of a time limit by which the landmarks, and the starts, have to be found.
LANDMARKS, STARTS = 0.15, 0.3


@stored
class Start(NamedTuple):
    """A model to start from, and what comes before the descent.

    "average" over classes; "hold" the rewards first; go by way of "nearer" horizons; or nothing, as for what is
    "given", whose distance is found to the end, so that the result is no farther.
    """

    model: Model
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
    max_steps: int = 200,
    time_limit: float | None = None,
    starts: Sequence[MarkovChain] = (),
    tol: float = 1e-8,
    criterion: str = "discounted",
    executor: Executor = None,
    progress: Progress = False,
    callback: Callable[[Mapping[str, float]], object] | None = None,
    checkpoint: str | Path | None = None,
) -> CompressResult:
    """The nearest chain with ``n_states`` states: kernel, start and rewards, and the encoder.

    Parameters
    ----------
    target : the chain, or transitions (their empirical chain is compressed; see :meth:`Transitions.chain`)
    n_states : size of the small chain; states it has no need for stay unused
    discount : weight γ of the next step (of the small chain), strictly between 0 and 1
    model : "nearest", of all chains of this size; "aggregate", the nearest whose rows are averages over classes; or
        "kinetic", the chain of the metastable sets that keeps their stationary law and slow rates (Hummer and Szabo,
        see :func:`diffbisim.aggregate`; no search, one recurrent class, no rewards needed)
    lag : steps of the target that one step of the small chain stands for; it is returned so, no root is taken
    rewards : of the small chain: "learn", "spread" (evenly over the range of the target's) or ``n_states`` numbers
    cost : "reward" (|r(x) - r(y)|), or a table ``(n_X, n_states)``: what an observer sees of the small states is given
    target_rewards : rewards of the target's states, where the target is a set of transitions
    unseen : for Transitions, what follows a state that was never left; see :meth:`MarkovChain.from_transitions`
    rng : seed or generator; the same seed gives the same answer, whatever the number of workers
    restarts : descents from different partitions; the best is kept
    max_steps : of each descent
    time_limit : seconds after which the best so far is returned (then the answer depends on the machine); merging, one
        start and two sweeps of the solver are made however short it is
    starts : chains of ``n_states`` states to start from as well
    tol : certified gap of the distance, relative to the largest cost
    criterion : "discounted"; others are refused
    executor : where the restarts run, as for :func:`diffbisim.pairwise`; None for threads of this process
    progress : True for a bar over the restarts, or a callable ``(done, total)``
    callback : called with a row of history as each restart ends; returning True leaves the others out
    checkpoint : a file that is written as each restart ends; if it exists, the run goes on from there, to the same bits

    Returns
    -------
    CompressResult : ``chain``, ``encoder``, ``decoder``, ``labels``, ``distance`` (certified), ``history``, ``status``

    Warns
    -----
    UserWarning : the small chain is frozen, or otherwise slower or faster than the target, or has fewer behaviors
        (:attr:`CompressResult.remark`); use another ``model`` or ``lag`` if that matters

    Examples
    --------
    >>> from diffbisim.data.examples import block_chain
    >>> small = compress(block_chain(), n_states=5)
    >>> small.distance.upper <= 1e-6
    True
    >>> small.labels.reshape(5, 5).std(axis=1).max()
    0.0
    """
    began = time.monotonic()
    options = Options(
        rewards, cost, model, check_lag(lag), rng, restarts, max_steps, time_limit, starts, tol, executor, progress,
        callback, checkpoint, criterion,
    )  # fmt: skip
    shared = Shared(_chain(target, target_rewards, unseen), options.lag)
    return _compress(shared, n_states, discount, options, began)


class Options(NamedTuple):
    """The arguments of :func:`compress` that say how, and not what."""

    rewards: Any = "learn"
    cost: Any = "reward"
    model: str = "nearest"
    lag: int = 1
    rng: int | np.random.Generator = 0
    restarts: int = 8
    max_steps: int = 200
    time_limit: float | None = None
    starts: Sequence[MarkovChain] = ()
    tol: float = 1e-8
    executor: Executor | None = None
    progress: Progress = False
    callback: Callable[[Mapping[str, float]], object] | None = None
    checkpoint: str | Path | None = None
    criterion: str = "discounted"


def _compress(shared: "Shared", n_states: int, discount: float, options: Options, began: float) -> CompressResult:
    """One size, of a chain of which something may be known from others."""
    if options.criterion != "discounted":
        raise InvalidArgument(
            f"criterion is {options.criterion!r}; compress merges and searches by tables that contract with the "
            "discount: compress with a discount near 1, e.g. 0.99, and ask distance(X, small.chain, criterion=...) "
            "afterwards"
        )
    X, k, (rewards, cost) = shared.chain, _positive(n_states, "n_states"), _given(shared.chain, n_states, options)
    check_discount(discount)
    if options.model not in MODELS:
        raise InvalidArgument(f"model is {options.model!r}; use one of {', '.join(map(repr, MODELS))}")
    restarts, max_steps = _positive(options.restarts, "restarts"), check_count(options.max_steps, "max_steps")
    if options.time_limit is not None and not as_number(options.time_limit) >= 0:
        raise InvalidArgument(f"time_limit is {options.time_limit!r}; give seconds, or None for no limit")
    if options.model == "kinetic":
        return kinetic(X, k, How(discount, cost, rewards, None, options.lag, options.tol))
    clock = Clock(began, np.inf if options.time_limit is None else float(options.time_limit))
    begun = [_started(Y, k, n, cost is None) for n, Y in enumerate(options.starts)]
    file = None
    if options.checkpoint is not None:
        file = Checkpoint(options.checkpoint, "compress", {
            "target": X, "n_states": k, "discount": float(discount), "rewards": rewards, "cost": cost,
            "rng": options.rng, "restarts": restarts, "max_steps": max_steps, "starts": list(options.starts),
            "tol": float(options.tol), "model": options.model,
        })  # fmt: skip
    target, labels = shared.merged(discount, cost, options.tol)
    heats = _heats(target, options.model)
    notes = Notes.of(file, clock.limited, len(heats))
    if not notes.starts:
        maker = Beginnings(target, k, options.model, shared, clock)
        notes.starts = maker.all(begun, restarts, as_generator(options.rng))
        notes.write()
    reserve = X.n_transitions / target.chain.n_transitions  # the last sweep is over X itself
    race = Race(target, max_steps, clock, reserve, options.executor, notes, options.callback, heats)
    best, history = race.run(options.progress)
    small, learned = best.model, cost is None
    Y = MarkovChain(small.transition, initial=small.initial, rewards=small.rewards if learned else rewards)
    problem = Problem.make(X, Y, "reward" if learned else cost, discount)
    classes = None if options.model == "nearest" or small.labels is None else small.labels[labels]
    certified = _certified(problem, best.table[labels], options.tol, clock)
    found = CompressResult(Y, certified, history, options.model, options.lag, classes)
    if found.remark:
        warn(found.remark, UserWarning)
    return found


class Shared:
    """What compressions of one chain to several sizes have in common."""

    def __init__(self, chain: MarkovChain, lag: int = 1) -> None:
        self.chain = lagged(chain, lag)
        self.features: Array | None = None  # (n, n_landmarks) of the merged chain, once they are known
        self.before: NDArray[np.int64] | None = None  # (n,) classes of the merged chain at the next smaller size
        self._merged: tuple[Target, NDArray[np.int64]] | None = None

    def merged(self, discount: float, cost: Array | None, tol: float) -> tuple[Target, NDArray[np.int64]]:
        """The quotient by exact equivalence as the target of the search, and the class of every state, ``(n,)``."""
        if cost is not None:
            self.features = self.before = None
            return _merged(self.chain, discount, cost, tol)
        self._merged = self._merged or _merged(self.chain, discount, None, tol)
        return self._merged


@dataclass(frozen=True)
class Clock:
    """When a run began (by ``time.monotonic``), and how many seconds it may take."""

    began: float
    seconds: float

    @property
    def limited(self) -> bool:
        return self.seconds < np.inf

    def end(self, share: float = 1.0) -> float:
        """When so much of the time will be over."""
        return self.began + share * self.seconds

    def left(self, share: float = 1.0) -> float:
        """Seconds until then, at least zero."""
        return max(0.0, self.end(share) - time.monotonic())


def _certified(problem: Problem, table: Array, tol: float, clock: Clock) -> DistanceResult:
    """The distance, from the table that the search ended with: one sweep, if that was exact."""
    from diffbisim.solvers.exact.solver import solve  # numba is loaded where something is solved

    began, done = time.monotonic(), 0

    def stop(row: Mapping[str, float]) -> bool:
        nonlocal done
        done, spent = done + 1, time.monotonic() - began
        return spent > MOMENT and time.monotonic() + spent / done > clock.end()

    found = solve(problem, Exact(tol=tol), callback=stop, values=table)
    return replace(found, outcome=Status.TIME) if found.outcome is Status.INTERRUPTED else found


def _chain(target: Any, rewards: Any, unseen: Unseen) -> MarkovChain:
    target = as_process(target)
    if isinstance(target, Transitions):
        return target.chain(rewards=rewards, unseen=unseen)
    if not isinstance(target, MarkovChain):
        raise InvalidArgument(
            f"target is a {type(target).__name__}; give a MarkovChain or diffbisim.Transitions of observed steps"
        )
    if rewards is None:
        return target
    return MarkovChain(target.transition, initial=target.initial, rewards=rewards, labels=target.labels)


def _positive(value: Any, name: str) -> int:
    if check_count(value, name) == 0:
        raise InvalidArgument(f"{name} is 0; it must be at least 1")
    return int(value)


def _given(X: MarkovChain, k: int, options: Options) -> tuple[Array | None, Array | None]:
    """Rewards and table of costs of the small chain where they are fixed; (None, None) where rewards are learned."""
    rewards, cost = options.rewards, options.cost
    if not (isinstance(cost, str) and cost == "reward"):
        if not (isinstance(rewards, str) and rewards == "learn"):
            raise InvalidArgument("rewards and cost are both given: a table of costs says what the small states are")
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
    if X.rewards.ndim > 1:
        r = centers(X.rewards, k) if isinstance(rewards, str) else rewards
        r = finite_numbers(r, (k, X.rewards.shape[1]), name="rewards", per="small state and number seen of it")
        return r, feature_cost(X.rewards, r)
    if isinstance(rewards, str):
        if rewards == "learn":
            return None, None
        if rewards != "spread":
            raise InvalidArgument(f'rewards is {rewards!r}; use "learn", "spread" or {k} numbers')
        rewards = spread(X.rewards, k)
    r = finite_numbers(rewards, (k,), name="rewards", per="small state")
    return r, reward_cost(X.rewards, r)


def _merged(X: MarkovChain, discount: float, cost: Array | None, tol: float) -> tuple[Target, NDArray[np.int64]]:
    """The quotient by exact equivalence as the target of the search, and the class of every state, ``(n,)``."""
    classes = lump(X) if cost is None else lump(X, key=[row.tobytes() for row in cost + 0.0])
    chain = X if classes.n_states == X.n_states else classes.chain
    if cost is None:
        return Target(chain, discount, rewards=chain.rewards, tol=tol), classes.labels
    first = np.unique(classes.labels, return_index=True)[1]
    return Target(chain, discount, cost=np.ascontiguousarray(cost[first]), tol=tol), classes.labels


def _started(Y: MarkovChain, k: int, number: int, learned: bool) -> Model:
    if not isinstance(Y, MarkovChain) or Y.n_states != k or (learned and Y.rewards is None):
        raise InvalidArgument(f"starts[{number}] must be a MarkovChain of {k} states{' with rewards' * learned}")
    P = Y.transition if isinstance(Y.transition, np.ndarray) else Y.transition.toarray()
    return Model(np.array(P), np.array(Y.initial), np.array(Y.rewards) if learned else None)


@dataclass(frozen=True, eq=False)
class Beginnings:
    """Where the restarts begin."""

    target: Target
    k: int
    kind: str  # of model
    shared: Shared
    clock: Clock

    def all(self, given: list[Model], restarts: int, rng: np.random.Generator) -> list[Start]:
        """The user's, and our own; only the quotient where that is at distance zero."""
        models, merged = [Start(model, "given") for model in given], self.target.chain.n_states
        if merged <= self.k:
            quotient = self._aligned(np.arange(merged))
            models.insert(0, Start(quotient))
            exact = self.target.solve(quotient, callback=lambda row: time.monotonic() > self.clock.end())
            if exact.upper <= 2 * self.target.tol * exact.problem.scale:
                return models[:1]
        return models + self._own(restarts, rng)

    def _own(self, restarts: int, rng: np.random.Generator) -> list[Start]:
        """One start per restart, each with a seed of its own, and what comes before its descent.

        In turn a partition by k-medoids in the metric with averaging, a random kernel, and such a partition without
        averaging; for large chains, where a random kernel is a waste of time, only the first, one of metastable sets
        and one of quantiles of the rewards. Besides, one that knows only what is seen of the states: classes of nearest
        reward for evenly spread ones, which are held until the kernel has settled, or classes of least given cost; and
        in a sweep the classes of the next smaller size, one of them split. Fewer than asked for where time is short.
        """
        target, k, clock = self.target, self.k, self.clock
        features = self.shared.features
        if features is None:
            features = self.shared.features = landmark_distances(target, clock.left(LANDMARKS))
        kinds = ("average",) if self.large or self.kind == "aggregate" else ("average", "random", "")
        found: list[Start] = []
        for n, child in enumerate(rng.spawn(restarts)):
            kind = kinds[n % len(kinds)]
            if found and time.monotonic() > clock.end(STARTS):
                break
            if n == 0 and self.shared.before is not None:
                split = split_classes(features, target.weight, self.shared.before, k, child)
                found.append(Start(self._aligned(split), "average"))
            elif n == 1:
                found.append(self._seen())
            elif n == 2 and self.large and (slow := self._slow()) is not None:
                found.append(Start(self._aligned(slow), kind))
            elif n == 3 and self.large and target.rewards is not None:
                found.append(Start(averaged(target, quantiles(target.appearance, target.weight, k), k), kind))
            elif kind == "random":
                found.append(Start(random_model(target, k, child)))
            else:
                labels = medoid_partition(features, target.weight, k, child, clock.end(STARTS))
                found.append(Start(self._aligned(labels), kind))
        return found

    @property
    def large(self) -> bool:
        """Whether a random kernel would be a waste of time."""
        return self.target.chain.n_states > SMALL

    def _seen(self) -> Start:
        """A start that knows only what is seen of the states."""
        if self.kind == "aggregate" and self.target.rewards is not None:
            return Start(averaged(self.target, by_reward(self.target, self.k), self.k), "average")
        return Start(by_appearance(self.target, self.k), "hold")

    def _slow(self) -> NDArray[np.int64] | None:
        """The sets that the chain stays in for long, if it has slow modes and they are quickly found."""
        try:
            return metastable_sets(self.target.chain, self.k) if self.target.chain.n_states <= MEDIUM else None
        except InvalidChain:
            return None

    def _aligned(self, labels: NDArray[np.int64]) -> Model:
        return averaged(self.target, matched_to_costs(self.target, labels, self.k), self.k)


class Heat(NamedTuple):
    """One round of a race: who takes part, and how far they go."""

    share: float  # of the starts, the best so far
    small: float | None  # the share of the distance that steps have to gain; None for averages over classes, no steps
    tol: float = 0.0  # of distances, if larger than that of the target
    patience: int = 3  # steps in a row that gain less, before it rests
    rounds: int = ROUNDS  # of averaging over classes before the descent, from starts that are to be averaged


def _heats(target: Target, kind: str) -> tuple[Heat, ...]:
    """Everybody coarsely, the best to the end; of large chains only the starts that are nearest, even coarsely."""
    if kind == "aggregate":
        return (Heat(1.0, None),)
    if target.chain.n_states <= SMALL:
        return Heat(1.0, COARSE), Heat(0.25, FINE)
    if target.chain.n_states <= MEDIUM:
        return Heat(1.0, COARSE / 2, 1e-3, patience=1, rounds=0), Heat(0.375, FINE, 1e-5, patience=2)
    return (
        Heat(1.0, None, 1e-3, rounds=0),
        Heat(0.25, COARSE, 1e-3, patience=1),
        Heat(0.125, 3 * FINE, 1e-4, patience=2),
    )


@stored
@dataclass(frozen=True, eq=False)
class Ran:
    """What came out of a descent: its last model, all values, the table ``(n, k)`` and the certified distance."""

    model: Model
    values: list[float]
    table: Array
    upper: float
    complete: bool  # whether it came to its end by itself


@dataclass(eq=False)
class Notes:
    """What a checkpoint holds: the starts, and what came out of each, in every heat."""

    file: Checkpoint | None
    limited: bool
    starts: list[Start]
    heats: tuple[dict[int, Ran], ...]

    @classmethod
    def of(cls, file: Checkpoint | None, limited: bool, heats: int) -> "Notes":
        """From the file, if there is one. Starts that were chosen in a hurry do not serve a run that has time."""
        state = None if file is None else file.read()
        if state is None or (state["limited"] and not limited):
            return cls(file, limited, [], tuple({} for _ in range(heats)))
        return cls(file, **state)

    def write(self) -> None:
        """All of it, if there is a file; what was cut short by the clock is not worth keeping."""
        if self.file is not None:
            heats = tuple({n: ran for n, ran in sorted(heat.items()) if ran.complete} for heat in self.heats)
            self.file.write({"limited": self.limited, "starts": self.starts, "heats": heats})


@dataclass(frozen=True, eq=False)
class Race:
    """All restarts, coarsely or by averages alone, then the best quarter to the end.

    Ties go to the first, so that the order of finishing does not matter. A callback that returned True ends it.
    """

    target: Target
    max_steps: int
    clock: Clock
    reserve: float
    executor: Executor
    notes: Notes
    callback: Callable[[Mapping[str, float]], object] | None
    heats: tuple[Heat, ...]

    def run(self, progress: Progress) -> tuple[Ran, tuple[Mapping[str, float], ...]]:
        """The nearest of all, and a row of history for every step."""
        starts, done = self.notes.starts, self.notes.heats
        sizes = [math.ceil(heat.share * len(starts)) for heat in self.heats]
        twice = self.target.discount > NEARER and len(sizes) > 1  # finalists also go by way of nearer horizons
        runs = dict(enumerate(starts))
        with tracking(progress, sum(sizes) + twice * sizes[-1], "restarts") as advance:
            for n, (heat, size) in enumerate(zip(self.heats, sizes, strict=True)):
                if n:
                    so_far = _latest(done[:n])
                    best = sorted(so_far, key=lambda k: (so_far[k].upper, k))[:size]
                    runs = {k: Start(so_far[k].model) for k in best}
                if n and twice and heat is self.heats[-1]:
                    runs |= {len(starts) + k: Start(start.model, "nearer") for k, start in runs.items()}
                if not self._heat(runs, done[n], heat, advance):
                    break
        found = [(ran.upper, k, -n, ran) for n, heat in enumerate(done) for k, ran in heat.items()]
        return min(found, key=lambda row: row[:3])[3], _history(*done)

    def _heat(self, runs: dict[int, Start], done: dict[int, Ran], heat: Heat, advance: Callable[[int], None]) -> bool:
        """Run every start that is not done; returns whether there is to be more."""
        if done:
            advance(len(done))
        must = min(runs) if not self.notes.heats[0] else -1  # however short the time is
        left = self.clock.left()
        jobs = {
            n: Job(n, start, heat, self.max_steps, self.reserve, left, time.time() + left, n == must)
            for n, start in runs.items()
            if n not in done
        }
        numbers = list(jobs)
        with closing(as_done(_run, list(jobs.values()), self.target, self.executor)) as ended:
            for k, ran in ended:
                if ran is None:  # there was no time for it
                    continue
                done[numbers[k]] = ran
                self.notes.write()
                advance(1)
                if self.callback is not None and self.callback({"restart": numbers[k], "value": ran.values[-1]}):
                    return False
        return not self.clock.limited or self.clock.left() > 0


def _latest(heats: Sequence[dict[int, Ran]]) -> dict[int, Ran]:
    """What came out last of every start."""
    return {n: ran for heat in heats for n, ran in heat.items()}


def _history(*heats: dict[int, Ran]) -> tuple[Mapping[str, float], ...]:
    rows: list[Mapping[str, float]] = []
    step: dict[int, int] = {}
    for heat in heats:
        for n in sorted(heat):
            values, before = heat[n].values, step.get(n, 0)
            rows += [{"restart": n, "step": before + k, "value": value} for k, value in enumerate(values)]
            step[n] = before + len(values)
    return tuple(rows)


class Job(NamedTuple):
    """One restart, as a worker gets it."""

    number: int
    start: Start
    heat: Heat
    max_steps: int
    reserve: float  # size of the sweep that certifies the result, in sweeps of the search
    seconds: float  # that are left
    until: float  # the end by ``time.time``, the clock that workers share
    must: bool  # however late it is


def _run(target: Target, job: Job) -> Ran | None:
    """One restart: average, descend, and try the hard encoder at the end; None if it is too late.

    It may have waited for its turn, so the time that is left is asked for here.
    """
    (model, before), heat = job.start, job.heat
    tol = 0.0 if before == "given" else heat.tol
    end = time.monotonic() + min(job.seconds, job.until - time.time())
    with quietly():  # an occupancy of a model on the way may be inaccurate, which only costs steps
        for discount in _horizons(target.discount) if before == "nearer" else ():
            nearer = Search(replace(target, discount=discount), model, job.max_steps, end, False, job.reserve, heat.tol)
            if nearer.late:
                break
            nearer.begin()
            descend(nearer, COARSE)
            model = nearer.model
        search = Search(target, model, job.max_steps, end, before == "hold", job.reserve, tol)
        if search.late and not job.must:
            return None
        search.begin()
        lloyd(search, heat.rounds if before == "average" else 0)
        if heat.small is not None:
            _to_the_end(search, heat.small, heat.patience)
    r = search.result
    return Ran(search.model, search.values, r.values, r.upper, not search.late)


def _to_the_end(search: Search, small: float, patience: int) -> None:
    """Descend, with given rewards first if they are held, and try the hard encoder until that is no nearer."""
    descend(search, small, patience)
    if search.hold:
        search.hold = False
        descend(search, small, patience)
    while lloyd(search, 1) and not search.over:
        descend(search, small, patience)


def _horizons(discount: float) -> list[float]:
    """Smaller discounts on the way to this one, ascending."""
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
    target, discount : as for :func:`diffbisim.compress`
    sizes : numbers of states
    rewards : as for :func:`diffbisim.compress`, or a function of the size that gives them
    time_limit : seconds for all sizes together, shared out in proportion to them
    checkpoint : a file, of which each size has its own: ``run-5.npz`` for ``run.npz`` and five states; see
        :func:`diffbisim.compress`
    options : everything else that :func:`diffbisim.compress` takes, for every size alike

    With learned rewards the sizes share their work: landmarks are found once, and each search also starts from the next
    smaller chain with a state added, so that the curve never rises, and from its classes with one of them split; in
    return it makes half as many starts of its own.

    Examples
    --------
    >>> from diffbisim.data.examples import block_chain
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
    shared = Shared(chain, check_lag(same.lag))
    learned = isinstance(rewards, str) and rewards == "learn" and isinstance(same.cost, str)
    results: list[CompressResult] = []
    began = time.monotonic()
    for n, k in enumerate(ordered):
        more: dict[str, Any] = {"rewards": rewards(k) if callable(rewards) else rewards}
        if learned and results and same.model != "kinetic":
            more["starts"] = [_padded(results[-1].chain, k), *same.starts]
            more["restarts"] = (_positive(same.restarts, "restarts") + 1) // 2
            shared.before = _coarser(shared, results[-1])
        if time_limit is not None:
            left = max(0.0, time_limit - (time.monotonic() - began))
            more["time_limit"] = left * k / sum(ordered[n:])
        if checkpoint is not None:
            path = Path(checkpoint)
            more["checkpoint"] = path.with_name(f"{path.stem}-{k}{path.suffix}")
        results.append(_compress(shared, k, discount, same._replace(**more), time.monotonic()))
    scale = max(r.distance.problem.scale for r in results)
    values = [r.distance.value for r in results]
    return SweepResult(tuple(ordered), tuple(results), _elbow(ordered, values, ZERO * scale))


def _coarser(shared: Shared, found: CompressResult) -> NDArray[np.int64]:
    """The classes of a result, of the states of the merged chain."""
    target, labels = shared.merged(found.distance.discount, None, 0.0)
    first = np.unique(labels, return_index=True)[1]
    return np.asarray(found.labels)[first] if target.chain.n_states < labels.size else np.asarray(found.labels)


def _padded(chain: MarkovChain, k: int) -> MarkovChain:
    """The same chain with copies of its first state that nothing leads to."""
    n, rewards = chain.n_states, np.asarray(chain.rewards)
    P = np.zeros((k, k))
    P[:n, :n] = chain.transition  # type: ignore[assignment]  # dense: compress made it
    P[n:] = P[0]
    initial = np.concatenate([chain.initial, np.zeros(k - n)])
    return MarkovChain(P, initial=initial, rewards=np.concatenate([rewards, np.full(k - n, rewards[0])]))


def _elbow(sizes: list[int], values: list[float], zero: float) -> int:
    for k, value in zip(sizes, values, strict=True):
        if value <= zero:
            return k
    if len(sizes) < 3:
        return sizes[int(np.argmin(values))]
    across = (np.array(sizes) - sizes[0]) / (sizes[-1] - sizes[0])
    below = values[0] + across * (values[-1] - values[0]) - np.array(values)
    return sizes[int(below.argmax())]
