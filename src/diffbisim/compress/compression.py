"""Compression: the nearest chain with few states (the paper's D-BOT-Repr).

    minimize  d(X, Y)   over the chains Y with k states:  P_Y, ν_Y, and r_Y unless the rewards are given.

The optimal coupling of X and Y is then a soft aggregation: the encoder λ_X(y|x) says which small state stands for a
large one. The problem is not convex, and finding the best Y is NP-hard in general (Bacci et al. 2017), so this is a
search with a certificate: the distance of the chain found is exact, that it is the least possible is not claimed. One
case is decided outright: where X has at most k classes of exactly equivalent states the answer is its quotient, d = 0.

    1. merge the exactly equivalent states of X (lumping.py): the rest works on the quotient, at the same distances
    2. starts: partitions into k classes of states that are near in the bisimulation metric (starts.py)
    3. from each, in parallel: block descent with exact distances (descent.py), then the chain averaged over the
       classes of the hard encoder, kept if it is nearer; coarsely for all, then to the end for the best quarter
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
from diffbisim.compress.descent import MOMENT, Search, descend, lloyd
from diffbisim.compress.result import CompressResult, SweepResult
from diffbisim.compress.starts import (
    Model,
    Target,
    aggregate,
    by_appearance,
    landmark_distances,
    matched_to_costs,
    medoid_partition,
    random_model,
    spread,
)
from diffbisim.cost import ground_cost, reward_cost
from diffbisim.errors import InvalidArgument, quietly, warn
from diffbisim.lumping import lump
from diffbisim.optimize.checkpoint import Checkpoint, stored
from diffbisim.parallel import Executor, as_done
from diffbisim.problem import Array, Problem
from diffbisim.process import taken
from diffbisim.progress import Progress, tracking
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers import Exact
from diffbisim.stochastic import as_generator

#: A restart rests when its steps gain less than these shares of the distance: in the first round, and in the last.
COARSE, FINE = 1e-2, 1e-4

#: Chains up to this size are worth a random kernel to start from.
SMALL = 50

#: Rounds of averaging over classes before the descent.
ROUNDS = 10

#: A distance below this share of the largest cost is as good as zero.
ZERO = 1e-6

#: Shares of a time limit by which the landmarks, and the starts, have to be found.
LANDMARKS, STARTS = 0.15, 0.3


@stored
class Start(NamedTuple):
    """A model to start from, and what comes before the descent: "average" over classes, "hold" the rewards, or ""."""

    model: Model
    before: str = ""


def compress(
    target: MarkovChain | Transitions,
    n_states: int,
    discount: float = 0.95,
    *,
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
    discount : weight γ of the next step, strictly between 0 and 1
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
    UserWarning : the small chain is frozen while the target moves on (:attr:`CompressResult.frozen`)

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
    if criterion != "discounted":
        raise InvalidArgument(
            f"criterion is {criterion!r}; compress merges and searches by tables that contract with the discount: "
            "compress with a discount near 1, e.g. 0.99, and ask distance(X, small.chain, criterion=...) afterwards"
        )
    X, k = _chain(target, target_rewards, unseen), _positive(n_states, "n_states")
    check_discount(discount)
    restarts, max_steps = _positive(restarts, "restarts"), check_count(max_steps, "max_steps")
    given = _given(X, k, rewards, cost)  # (rewards, cost), both None if the rewards are learned
    if time_limit is not None and not as_number(time_limit) >= 0:
        raise InvalidArgument(f"time_limit is {time_limit!r}; give seconds, or None for no limit")
    clock = Clock(began, np.inf if time_limit is None else float(time_limit))
    begun = [_started(Y, k, n, given[1] is None) for n, Y in enumerate(starts)]
    file = None
    if checkpoint is not None:
        file = Checkpoint(checkpoint, "compress", {
            "target": X, "n_states": k, "discount": float(discount), "rewards": given[0], "cost": given[1],
            "rng": rng, "restarts": restarts, "max_steps": max_steps, "starts": list(starts), "tol": float(tol),
        })  # fmt: skip
    target_, labels = _merged(X, discount, given[1], tol)
    notes = Notes.of(file, limited=clock.limited)
    if not notes.starts:
        notes.starts = _all_starts(target_, k, begun, restarts, as_generator(rng), clock)
        notes.write()
    reserve = X.n_transitions / target_.chain.n_transitions  # the last sweep is over X itself
    best, history = Race(target_, max_steps, clock, reserve, executor, notes, callback).run(progress)
    model, learned = best.model, given[1] is None
    Y = MarkovChain(model.transition, initial=model.initial, rewards=model.rewards if learned else given[0])
    problem = Problem.make(X, Y, "reward" if learned else given[1], discount)
    found = CompressResult(Y, _certified(problem, best.table[labels], tol, clock), history)
    if found.frozen:
        warn(found._remark, UserWarning)
    return found


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
    target = taken(target)
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


def _given(X: MarkovChain, k: int, rewards: Any, cost: Any) -> tuple[Array | None, Array | None]:
    """Rewards and table of costs of the small chain where they are fixed; (None, None) where rewards are learned."""
    if not (isinstance(cost, str) and cost == "reward"):
        if not (isinstance(rewards, str) and rewards == "learn"):
            raise InvalidArgument("rewards and cost are both given: a table of costs says what the small states are")
        if isinstance(cost, str):
            raise InvalidArgument(f'cost {cost!r}: give "reward" or a table of shape ({X.n_states}, {k})')
        return None, ground_cost(cost, X, MarkovChain(np.eye(k)))
    if X.rewards is None:
        raise InvalidArgument(
            "the target has no rewards; make it with MarkovChain(..., rewards=r), pass target_rewards=r, or give a "
            f"table cost of shape ({X.n_states}, {k})"
        )
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


def _aligned(target: Target, labels: NDArray[np.int64], k: int) -> Model:
    return aggregate(target, matched_to_costs(target, labels, k), k)


def _started(Y: MarkovChain, k: int, number: int, learned: bool) -> Model:
    if not isinstance(Y, MarkovChain) or Y.n_states != k or (learned and Y.rewards is None):
        raise InvalidArgument(f"starts[{number}] must be a MarkovChain of {k} states{' with rewards' * learned}")
    P = Y.transition if isinstance(Y.transition, np.ndarray) else Y.transition.toarray()
    return Model(np.array(P), np.array(Y.initial), np.array(Y.rewards) if learned else None)


def _all_starts(
    target: Target, k: int, given: list[Model], restarts: int, rng: np.random.Generator, clock: Clock
) -> list[Start]:
    """The user's, and our own; only the quotient where that is at distance zero."""
    models, merged = [Start(model) for model in given], target.chain.n_states
    if merged <= k:
        quotient = _aligned(target, np.arange(merged), k)
        models.insert(0, Start(quotient))
        exact = target.solve(quotient, callback=lambda row: time.monotonic() > clock.end())
        if exact.upper <= 2 * target.tol * exact.problem.scale:
            return models[:1]
    return models + _starting_models(target, k, restarts, rng, clock)


def _starting_models(target: Target, k: int, restarts: int, rng: np.random.Generator, clock: Clock) -> list[Start]:
    """One start per restart, each with a seed of its own, and what comes before its descent.

    In turn a partition by k-medoids in the metric with averaging, a random kernel, and such a partition without
    averaging; for large chains, where a random kernel is a waste of time, only the first. Besides, one start that
    knows only what is seen of the states: classes of nearest reward for evenly spread ones, which are held until the
    kernel has settled, or classes of least given cost. Fewer than asked for where time is short.
    """
    features = landmark_distances(target, clock.left(LANDMARKS))
    kinds = ("average", "random", "") if target.chain.n_states <= SMALL else ("average",)
    found: list[Start] = []
    for n, child in enumerate(rng.spawn(restarts)):
        kind = kinds[n % len(kinds)]
        if found and time.monotonic() > clock.end(STARTS):
            break
        if n == 1:
            found.append(Start(by_appearance(target, k), "hold"))
        elif kind == "random":
            found.append(Start(random_model(target, k, child)))
        else:
            labels = medoid_partition(features, target.weight, k, child, clock.end(STARTS))
            found.append(Start(_aligned(target, labels, k), kind))
    return found


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
    """What a checkpoint holds: the starts, and what came out of each, coarsely and to the end."""

    file: Checkpoint | None
    limited: bool
    starts: list[Start]
    heats: tuple[dict[int, Ran], dict[int, Ran]]

    @classmethod
    def of(cls, file: Checkpoint | None, limited: bool) -> "Notes":
        """From the file, if there is one. Starts that were chosen in a hurry do not serve a run that has time."""
        state = None if file is None else file.read()
        if state is None or (state["limited"] and not limited):
            return cls(file, limited, [], ({}, {}))
        return cls(file, **state)

    def write(self) -> None:
        """All of it, if there is a file; what was cut short by the clock is not worth keeping."""
        if self.file is not None:
            heats = tuple({n: ran for n, ran in sorted(heat.items()) if ran.complete} for heat in self.heats)
            self.file.write({"limited": self.limited, "starts": self.starts, "heats": heats})


@dataclass(frozen=True, eq=False)
class Race:
    """All restarts coarsely, then the best quarter to the end.

    Ties go to the first, so that the order of finishing does not matter. A callback that returned True ends it.
    """

    target: Target
    max_steps: int
    clock: Clock
    reserve: float
    executor: Executor
    notes: Notes
    callback: Callable[[Mapping[str, float]], object] | None

    def run(self, progress: Progress) -> tuple[Ran, tuple[Mapping[str, float], ...]]:
        """The nearest of all, and a row of history for every step."""
        runs, (first, last) = dict(enumerate(self.notes.starts)), self.notes.heats
        finalists = math.ceil(len(runs) / 4)
        with tracking(progress, len(runs) + finalists, "restarts") as advance:
            more = self._heat(runs, first, COARSE, advance)
            if more:
                best = sorted(first, key=lambda n: (first[n].upper, n))[:finalists]
                self._heat({n: Start(first[n].model) for n in best}, last, FINE, advance)
        found = {**first, **last}
        order = sorted(found, key=lambda n: (found[n].upper, n))
        return found[order[0]], _history(first, last)

    def _heat(self, runs: dict[int, Start], done: dict[int, Ran], small: float, advance: Callable[[int], None]) -> bool:
        """Run every start that is not done; returns whether there is to be more."""
        if done:
            advance(len(done))
        must = min(runs) if not self.notes.heats[0] else -1  # however short the time is
        left = self.clock.left()
        jobs = {
            n: Job(start, small, self.max_steps, self.reserve, left, time.time() + left, n == must)
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

    start: Start
    small: float  # the share of the distance that a step has to gain
    max_steps: int
    reserve: float  # size of the sweep that certifies the result, in sweeps of the search
    seconds: float  # that are left
    until: float  # the end by ``time.time``, the clock that workers share
    must: bool  # however late it is


def _run(target: Target, job: Job) -> Ran | None:
    """One restart: average, descend, and try the hard encoder at the end; None if it is too late.

    It may have waited for its turn, so the time that is left is asked for here.
    """
    (model, before), small = job.start, job.small
    end = time.monotonic() + min(job.seconds, job.until - time.time())
    search = Search(target, model, job.max_steps, end, before == "hold", job.reserve)
    if search.late and not job.must:
        return None
    with quietly():  # an occupancy of a model on the way may be inaccurate, which only costs steps
        search.begin()
        lloyd(search, ROUNDS if before == "average" else 0)
        descend(search, small)
        if search.hold:
            search.hold = False
            descend(search, small)
        while lloyd(search, 1) and not search.over:
            descend(search, small)
    r = search.result
    return Ran(search.model, search.values, r.values, r.upper, not search.late)


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

    With learned rewards each search also starts from the next smaller chain with a state added, so that the curve
    never rises.

    Examples
    --------
    >>> from diffbisim.data.examples import block_chain
    >>> compress_sweep(block_chain(3, 2), sizes=(2, 3, 4), restarts=2).recommended
    3
    """
    ordered = sorted(set(sizes)) if isinstance(sizes, Iterable) else []
    if not ordered:
        raise InvalidArgument(f"sizes is {sizes!r}; give numbers of states, e.g. sizes=range(2, 11)")
    learned = isinstance(rewards, str) and rewards == "learn" and isinstance(options.get("cost", "reward"), str)
    results: list[CompressResult] = []
    began = time.monotonic()
    for n, k in enumerate(ordered):
        more = dict(options)
        if learned and results:
            more["starts"] = [_padded(results[-1].chain, k), *options.get("starts", ())]
        if time_limit is not None:
            left = max(0.0, time_limit - (time.monotonic() - began))
            more["time_limit"] = left * k / sum(ordered[n:])
        if checkpoint is not None:
            path = Path(checkpoint)
            more["checkpoint"] = path.with_name(f"{path.stem}-{k}{path.suffix}")
        given = rewards(k) if callable(rewards) else rewards
        results.append(compress(target, k, discount, rewards=given, **more))
    scale = max(r.distance.problem.scale for r in results)
    values = [r.distance.value for r in results]
    return SweepResult(tuple(ordered), tuple(results), _elbow(ordered, values, ZERO * scale))


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
