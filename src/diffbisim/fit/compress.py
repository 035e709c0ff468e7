"""Compression: the nearest chain with few states (the paper's D-BOT-Repr).

    minimize  d(X, Y)   over the chains Y with k states:  P_Y, ν_Y, and r_Y unless the rewards are given.

The optimal coupling of X and Y is then a soft aggregation: the encoder λ_X(y|x) says which small state stands for a
large one. The problem is not convex, and finding the best Y is NP-hard in general (Bacci et al. 2017), so this is a
search with a certificate: the distance of the chain found is exact, that it is the least possible is not claimed. One
case is decided outright: where X has at most k classes of exactly equivalent states the answer is its quotient, d = 0.

    1. merge the exactly equivalent states of X (lumping.py): the rest works on the quotient, at the same distances
    2. starts: partitions into k classes of states that are near in the bisimulation metric (partition.py)
    3. from each, in parallel: block descent with exact distances (descent.py), then the chain averaged over the
       classes of the hard encoder, kept if it is nearer; coarsely for all, then to the end for the best quarter
    4. the nearest of all, with its certified distance to X itself
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.chain import MarkovChain, Unseen
from diffbisim.checks import as_number, check_count, check_discount, finite_numbers
from diffbisim.cost import ground_cost, reward_cost
from diffbisim.data.archive import chain_arrays
from diffbisim.data.transitions import Transitions
from diffbisim.distance import distance
from diffbisim.errors import ConvergenceWarning, InvalidArgument
from diffbisim.fit.descent import Search, descend, lloyd
from diffbisim.fit.partition import (
    aggregate,
    by_look,
    landmark_distances,
    medoid_partition,
    named,
    random_model,
    spread,
)
from diffbisim.fit.target import Model, Target
from diffbisim.lumping import lump
from diffbisim.problem import Array, available_threads
from diffbisim.progress import Progress, tracking
from diffbisim.results import DistanceResult
from diffbisim.saving import fitting_chain, read_built, write_built
from diffbisim.stochastic import as_generator

#: A model to start from, and what comes before the descent: "average" over classes, "hold" the rewards, or nothing.
Start = tuple[Model, str]

#: A restart rests when its steps gain less than these shares of the distance: in the first round, and in the last.
COARSE, FINE = 1e-2, 1e-4

#: Chains up to this size are worth a random kernel to start from.
SMALL = 50

#: Rounds of averaging over classes before the descent.
ROUNDS = 10


@dataclass(frozen=True, eq=False, repr=False)
class CompressResult:
    """A small chain, and how it stands for the large one.

    Attributes:
        chain: the small chain, with its rewards unless a table of costs was given.
        distance: its certified distance to the target, with plans, gradient and all.
        history: a row per step of every restart: ``restart``, ``step``, ``value``.
    """

    chain: MarkovChain
    distance: DistanceResult
    history: tuple[Mapping[str, float], ...]

    @property
    def encoder(self) -> Array:
        """``λ_X(y|x)``, shape ``(n_X, n_states)``: which small state stands for x, in the optimal coupling."""
        return self.distance.encoder

    @property
    def decoder(self) -> Array:
        """``λ_Y(x|y)``, shape ``(n_states, n_X)``."""
        return self.distance.decoder

    @property
    def labels(self) -> NDArray[np.intp]:
        """Hard encoder, shape ``(n_X,)``."""
        return self.distance.labels

    @property
    def unused(self) -> NDArray[np.intp]:
        """Small states that are never visited: fewer states would have done as well."""
        return self.distance.unvisited[1]

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle); read it with :func:`diffbisim.load`."""
        meta = {"history": [dict(row) for row in self.history]}
        chain = {f"chain.{name}": value for name, value in chain_arrays(self.chain).items()}
        write_built(path, "compression", meta, self.distance, chain)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> "CompressResult":
        """The inverse of :meth:`save`, from the arrays of the file."""
        meta, found = read_built(arrays, "compression")
        return cls(fitting_chain(arrays, found), found, tuple(meta["history"]))

    def __repr__(self) -> str:
        d, used = self.distance, self.chain.n_states - self.unused.size
        return (
            f"CompressResult({d.problem.x.n_states} states to {self.chain.n_states} ({used} used), "
            f"distance {d.value:.6g} in [{d.lower:.6g}, {d.upper:.6g}])"
        )


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
    executor: Executor | None = None,
    progress: Progress = False,
    callback: Callable[[Mapping[str, float]], object] | None = None,
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
    time_limit : seconds after which the best so far is returned (then the answer depends on the machine)
    starts : chains of ``n_states`` states to start from as well
    tol : certified gap of the distance, relative to the largest cost
    executor : where the restarts run; None for threads of this process
    progress : True for a bar over the restarts, or a callable ``(done, total)``
    callback : called with a row of history as each restart ends; returning True leaves the others out

    Returns
    -------
    CompressResult : ``chain``, ``encoder``, ``decoder``, ``labels``, ``distance`` (certified), ``history``

    Examples
    --------
    >>> from diffbisim.data.examples import block_chain
    >>> small = compress(block_chain(), n_states=5)
    >>> small.distance.upper <= 1e-6
    True
    >>> small.labels.reshape(5, 5).std(axis=1).max()
    0.0
    """
    X, k = _chain(target, target_rewards, unseen), _positive(n_states, "n_states")
    check_discount(discount)
    restarts, max_steps = _positive(restarts, "restarts"), check_count(max_steps, "max_steps")
    generator = as_generator(rng)
    given = _given(X, k, rewards, cost)  # (rewards, cost), both None if the rewards are learned
    if time_limit is not None and not as_number(time_limit) >= 0:
        raise InvalidArgument(f"time_limit is {time_limit!r}; give seconds, or None for no limit")
    deadline = np.inf if time_limit is None else time.monotonic() + time_limit
    target_, merged = _merged(X, discount, given[1], tol)
    models = [(_started(Y, k, n, given[1] is None), "") for n, Y in enumerate(starts)]
    if merged <= k:
        quotient = _aligned(target_, np.arange(merged), k)
        models.insert(0, (quotient, ""))
        if (exact := target_.solve(quotient)).value <= tol * exact.problem.scale:
            models, restarts = models[:1], 0
    models += _starting_models(target_, k, restarts, generator)
    with nullcontext(executor) if executor else ThreadPoolExecutor(available_threads()) as workers:
        best, history = _race(target_, models, max_steps, deadline, workers, progress, callback)
    Y = MarkovChain(best.transition, initial=best.initial, rewards=best.rewards if given[1] is None else given[0])
    found = distance(X, Y, "reward" if given[1] is None else given[1], discount, tol=tol)
    return CompressResult(Y, found, history)


def _chain(target: Any, rewards: Any, unseen: Unseen) -> MarkovChain:
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


def _merged(X: MarkovChain, discount: float, cost: Array | None, tol: float) -> tuple[Target, int]:
    """The quotient by exact equivalence as the target of the search, and its size."""
    if cost is None:
        quotient = lump(X).chain
        return Target(quotient, discount, rewards=quotient.rewards, tol=tol), quotient.n_states
    classes = lump(X, key=[row.tobytes() for row in cost + 0.0])
    first = np.unique(classes.labels, return_index=True)[1]
    return Target(classes.chain, discount, cost=np.ascontiguousarray(cost[first]), tol=tol), classes.n_states


def _aligned(target: Target, labels: NDArray[np.int64], k: int) -> Model:
    return aggregate(target, named(target, labels, k), k)


def _started(Y: MarkovChain, k: int, number: int, learned: bool) -> Model:
    if not isinstance(Y, MarkovChain) or Y.n_states != k or (learned and Y.rewards is None):
        raise InvalidArgument(f"starts[{number}] must be a MarkovChain of {k} states{' with rewards' * learned}")
    P = Y.transition if isinstance(Y.transition, np.ndarray) else Y.transition.toarray()
    return Model(np.array(P), np.array(Y.initial), np.array(Y.rewards) if learned else None)


def _starting_models(target: Target, k: int, restarts: int, rng: np.random.Generator) -> list[Start]:
    """One start per restart, each with a seed of its own, and what comes before its descent.

    In turn a partition by k-medoids in the metric with averaging, a random kernel, and such a partition without
    averaging; for large chains, where a random kernel is a waste of time, only the first. Besides, one start that
    knows only what is seen of the states: classes of nearest reward for evenly spread ones, which are held until the
    kernel has settled, or classes of least given cost.
    """
    if restarts == 0:
        return []
    features = landmark_distances(target)
    kinds = ("average", "random", "") if target.chain.n_states <= SMALL else ("average",)
    found: list[Start] = []
    for n, child in enumerate(rng.spawn(restarts)):
        kind = kinds[n % len(kinds)]
        if n == 1:
            found.append((by_look(target, k), "hold"))
        elif kind == "random":
            found.append((random_model(target, k, child), ""))
        else:
            labels = medoid_partition(features, target.weight, k, child)
            found.append((_aligned(target, labels, k), kind))
    return found


def _race(
    target: Target, starts: list[Start], max_steps: int, deadline: float, executor: Executor,
    progress: Progress, callback: Callable[[Mapping[str, float]], object] | None,
) -> tuple[Model, tuple[Mapping[str, float], ...]]:  # fmt: skip
    """All restarts coarsely, then the best quarter to the end.

    Ties go to the first, so that the order of finishing does not matter. A callback that returned True ends it.
    """
    history: list[Mapping[str, float]] = []
    runs, coarse, step = dict(enumerate(starts)), COARSE, dict.fromkeys(range(len(starts)), 0)
    finalists = math.ceil(len(starts) / 4)
    with tracking(progress, len(starts) + finalists, "restarts") as advance:
        while True:
            done, stopped = _heat(target, runs, coarse, max_steps, deadline, executor, advance, callback)
            for n in sorted(done):
                values = done[n][1]
                history += [{"restart": n, "step": step[n] + k, "value": value} for k, value in enumerate(values)]
                step[n] += len(values)
            order = sorted(done, key=lambda n: (done[n][1][-1], n))
            if stopped or coarse == FINE:
                return done[order[0]][0], tuple(history)
            runs, coarse = {n: (done[n][0], "") for n in order[:finalists]}, FINE


def _heat(
    target: Target, runs: dict[int, Start], small: float, max_steps: int, deadline: float, executor: Executor,
    advance: Callable[[int], None], callback: Callable[[Mapping[str, float]], object] | None,
) -> tuple[dict[int, tuple[Model, list[float]]], bool]:  # fmt: skip
    """Run every start; what came out of those that ended, and whether the callback wanted no more."""
    left = deadline - time.monotonic()
    futures = {executor.submit(_run, target, *start, small, max_steps, left): n for n, start in runs.items()}
    done: dict[int, tuple[Model, list[float]]] = {}
    try:
        for future in as_completed(futures):
            n = futures[future]
            done[n] = future.result()
            advance(1)
            if callback is not None and callback({"restart": n, "value": done[n][1][-1]}):
                return done, True
    finally:
        for future in futures:
            future.cancel()
    return done, False


def _run(
    target: Target, model: Model, first: str, small: float, max_steps: int, seconds: float
) -> tuple[Model, list[float]]:
    """One restart, in a worker: average, descend, and try the hard encoder at the end."""
    search = Search(target, model, max_steps, time.monotonic() + seconds, hold=first == "hold")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        lloyd(search, ROUNDS if first == "average" else 0)
        descend(search, small)
        if search.hold:
            search.hold = False
            descend(search, small)
        while lloyd(search, 1) and not search.over:
            descend(search, small)
    return search.model, search.values
