"""Descent on the distance d(X, Y) over the chains Y with k states.

With the optimal coupling at hand (table U, joint occupancy m) every part of Y has a best answer:

    start      ν_Y sends every x to its nearest y, argmin_y U(x,y): optimal for any ν_Y
    rewards    r_Y(y) = weighted median of r_X with weights m(·,y): optimal for the coupling, so d cannot rise
    kernel     P_Y(·|y) = barycenter of P_X(·|x) with weights m(·,y), see below: downhill, with a line search

These three in turn, each kept only if the distance falls, are :func:`descend`. Two moves go between local minima:
:func:`lloyd` replaces Y by the chain averaged over the nearest-state classes, and a state of Y that nobody visits,
which costs nothing, is placed where the coupling pays most (:func:`reseed`).

Barycenters: the best rows of a small kernel for a given table are Wasserstein barycenters of the rows of the large one.

Hold the table U and the joint occupancy m of an optimal coupling fixed. To first order the distance to a chain with
kernel Q instead of P_Y changes by γ times the change of

    Σ_y Σ_x m(x,y) OT_U(P_X(·|x), Q(·|y)),

which is convex in Q and separates over y: row y is the barycenter, for the cost U, of the rows P_X(·|x) with weights
m(x,y). Unlike a gradient it sees the kinks of every transport, so the way from P_Y to Q is long and still downhill.

This is a linear program, solved by an interior-point method (barycenter.py) over the pairs (x,y) that carry most of the
occupancy: encoders are almost deterministic, so these are few.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Integers
from diffbisim.compress.starts import Model, Target, averaged, weighted_median
from diffbisim.problem import Array
from diffbisim.results import DistanceResult, Status

#: Largest and least radius of a step of the kernel (above one: beyond the barycenter, where it is approximate).
FARTHEST, NEAREST = 4.0, 1e-4

#: Seconds that the first distance of a run may take although its time is over.
MOMENT = 0.1

#: Iterations that a sweep without trees to begin with takes the time of, at a table that is almost right.
FRESH = 3

#: Cells that a sweep goes through in a second, before anything was measured.
CELLS_PER_SECOND = 2e8


#: Weights below this share of a row's total do not move its barycenter.
NEGLIGIBLE = 1e-9


class Care(NamedTuple):
    """How carefully barycenters are found."""

    share: float  # of the occupancy of a row that counts, those of largest weight first
    pairs: float  # per state of the large chain, at most, in all rows together
    tol: float  # of the cost


#: For distances with a certified gap of at least ROUGH, and for smaller ones.
ROUGH = 3e-4
COARSELY, FINELY = Care(0.95, 2.0, 1e-2), Care(0.99, 4.0, 1e-3)

#: Chains of up to so many states have all their pairs taken, and exactly.
SMALL, EXACTLY = 100, Care(1.0 - NEGLIGIBLE, np.inf, 1e-8)

#: Work of an iteration at most, k² for every successor of a state, in all rows together: barycenters should not take
#: much longer than a distance does. The states that are left out are those of least weight; the others stand for them.
MOST_WORK = 3e7

#: The share of the present row in the positive row that the search for a barycenter begins with.
PRESENT = 0.5


@dataclass(eq=False)
class Search:
    """One run: the best model so far, its distance, and what is left of the budget.

    ``pace`` is how many seconds an iteration of the solver takes, by the last ones. Before ``deadline`` (of
    ``time.monotonic``) there must be time for the sweep that certifies the result in the end, which is ``reserve``
    times as large as one of the search.
    """

    target: Target
    model: Model
    max_steps: int
    deadline: float
    hold: bool = False  # whether the rewards stay as they are
    reserve: float = 0.0
    tol: float = 0.0  # certified gap of its distances, if larger than that of the target
    step: float = 1.0
    pace: float = field(init=False)
    values: list[float] = field(default_factory=list)
    result: DistanceResult = field(init=False)
    _visits: tuple[DistanceResult, Array] | None = None

    def __post_init__(self) -> None:
        self.pace = self.target.chain.n_transitions * self.model.transition.size / CELLS_PER_SECOND

    def begin(self) -> None:
        """The distance of the start."""
        self.result = self.solve(self.model)
        self.values.append(self.result.value)

    @property
    def value(self) -> float:
        return self.result.value

    @property
    def over(self) -> bool:
        return len(self.values) > self.max_steps or self.late or self.value <= self.floor

    @property
    def late(self) -> bool:
        """Whether another solve would end too late, even if it took one sweep only."""
        return time.monotonic() + FRESH * self.pace > self.end

    @property
    def end(self) -> float:
        """When the run has to end, so that its result can still be certified."""
        return self.deadline - FRESH * self.reserve * self.pace

    @property
    def floor(self) -> float:
        """Below this a distance is zero as far as anybody can tell."""
        return self.target.tol * self.result.problem.scale

    def solve(self, model: Model, warm: DistanceResult | None = None, least: float = np.inf) -> DistanceResult:
        """The distance to a model, as exact as the time allows; not to the end where it is surely ``least`` or more."""
        began, slowest, done = time.monotonic(), self.pace / 2, 0

        def stop(row: Mapping[str, float]) -> bool:
            nonlocal done
            done, spent = done + 1, time.monotonic() - began
            self.pace = max(slowest, spent / done)
            late = time.monotonic() + self.pace > self.end and (bool(self.values) or spent > MOMENT)
            return late or row["lower"] >= least

        return self.target.solve(model, warm, stop, self.tol)

    def consider(self, model: Model, least: float = 0.0, cold: bool = False) -> bool:
        """Take a model if it is nearer by more than ``least``; one whose distance was not finished, if that is sure."""
        result = self.solve(model, None if cold else self.result, self.value - least)
        if not (result.upper if result.outcome is Status.INTERRUPTED else result.value) < self.value - least:
            return False
        self.model, self.result = model, result
        return True

    @property
    def occupancy(self) -> Array:
        """The joint occupancy ``(n, k)`` of the present coupling, no more exact than steps need it."""
        if self._visits is None or self._visits[0] is not self.result:
            self._visits = self.result, visits(self.result, max(1e-3 * self.tol, 1e-13))
        return self._visits[1]

    @property
    def care(self) -> Care:
        """How carefully barycenters are found for distances that are so exact."""
        if self.target.chain.n_states <= SMALL:
            return EXACTLY
        return COARSELY if self.tol >= ROUGH else FINELY

    def report(self) -> None:
        self.values.append(self.value)


def visits(result: DistanceResult, accuracy: float) -> Array:
    """The joint occupancy ``(n, k)`` of an exact coupling, to an accuracy relative to its largest entries."""
    from diffbisim.solvers.exact.pairs import pair_chain  # numba is loaded where something is solved

    coupling: Any = result.coupling
    start = coupling.start.plan.toarray().ravel()
    m, _ = pair_chain(coupling.transports, result.discount).occupancy(start, accuracy)
    return m.reshape(result.problem.shape)


def descend(search: Search, small: float = 1e-4, patience: int = 3) -> None:
    """Start, rewards and kernel in turn until ``patience`` steps in a row gain less than the share ``small``.

    After each of these the radius is large again.
    """
    idle = 0
    while idle < patience and not search.over:
        before = search.value
        for improve in (_all_at_once, reseed) if search.tol else (_start_and_rewards, _kernel, reseed):
            if not search.late:
                improve(search)
        search.report()
        idle = idle + 1 if before - search.value <= small * before else 0
        if idle:
            search.step = max(search.step, 1.0)


def _all_at_once(search: Search) -> None:
    """Start, rewards and kernel in one trial, where a solve is expensive; without the kernel if that is not nearer."""
    moved = _with_start_and_rewards(search)
    if not _kernel(search, moved) and not search.late and not _same(moved, search.model):
        search.consider(moved)


def _start_and_rewards(search: Search) -> None:
    moved = _with_start_and_rewards(search)
    if not _same(moved, search.model):
        search.consider(moved)


def _with_start_and_rewards(search: Search) -> Model:
    """The model with the start and the rewards that are best for its coupling."""
    U, m, model = search.result.values, search.occupancy, search.model
    nearest = np.bincount(U.argmin(axis=1), weights=search.target.chain.initial, minlength=U.shape[1])
    moved = replace(model, initial=nearest / nearest.sum())
    r = None if search.hold else search.target.rewards
    if r is not None and model.rewards is not None:
        visited = m.sum(axis=0) > NEGLIGIBLE
        medians = [weighted_median(r, m[:, y]) if visited[y] else model.rewards[y] for y in range(m.shape[1])]
        moved = replace(moved, rewards=np.array(medians))
    return moved


def _same(a: Model, b: Model) -> bool:
    if not np.array_equal(a.initial, b.initial):
        return False
    return a.rewards is None or b.rewards is None or np.array_equal(a.rewards, b.rewards)


def _kernel(search: Search, moved: Model | None = None) -> bool:
    """The best kernel within a radius, which grows with success and shrinks with failure; whether it is nearer.

    ``moved`` is the model whose kernel is replaced, the present one by default.
    """
    at, radius = search.result, search.step
    best = Barycenters(
        search.target.chain, at.values, search.occupancy, search.model.transition, search.care,
        search.end - FRESH * search.pace,
    )  # fmt: skip
    nearest = max(NEAREST, 100 * search.tol)
    while radius >= nearest:
        Q = best.within(radius)
        if search.late:
            return False
        if search.consider(replace(moved or search.model, transition=Q)):
            search.step = min(2 * radius, FARTHEST)
            return True
        radius /= 3
    search.step = 10 * nearest
    return False


def reseed(search: Search) -> None:
    """Put every unvisited state of Y where the coupling pays most: free, since nothing leads there yet."""
    target, m, U = search.target, search.occupancy, search.result.values
    unused = np.flatnonzero(m.sum(axis=0) <= NEGLIGIBLE)
    if unused.size == 0:
        return
    P, rewards = search.model.transition.copy(), search.model.rewards
    rewards = None if rewards is None else rewards.copy()
    paid = (m * U).sum(axis=1)
    nearest = U.argmin(axis=1)
    kernel = target.chain.successors.matrix
    for y in unused:
        gain = paid if target.cost is None else paid - m.sum(axis=1) * target.cost[:, y]
        x = int(gain.argmax())
        if not gain[x] > 0:
            continue
        row = kernel[[x]]
        P[y] = np.bincount(nearest[row.indices], weights=row.data, minlength=len(P))
        P[y] /= P[y].sum()
        if rewards is not None and target.rewards is not None:
            rewards[y] = target.rewards[x]
        paid[x] = 0.0
    if np.array_equal(P, search.model.transition):  # they are there already
        return
    moved = replace(search.model, transition=P, rewards=rewards)
    result = search.solve(moved, search.result)
    if result.outcome is not Status.INTERRUPTED and result.value <= search.value + search.floor:
        search.model, search.result = moved, result


def lloyd(search: Search, rounds: int) -> bool:
    """Average over the classes of the nearest state while that brings the chain nearer; whether it did at all."""
    gained = False
    for _ in range(rounds):
        labels = search.result.values.argmin(axis=1)
        hard = averaged(search.target, labels, len(search.model.initial))
        if search.over or not search.consider(hard, least=search.floor, cold=True):
            break
        gained = True
        search.report()
    return gained


# --- barycenters -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Barycenters:
    """The best rows for a table ``U (n, k)`` and an occupancy ``m (n, k)``, near those of ``P (k, k)``.

    Rows without mass stay, and those that are not reached by ``deadline`` (of ``time.monotonic``).
    """

    chain: MarkovChain
    U: Array
    m: Array
    P: Array
    care: Care = EXACTLY
    deadline: float = np.inf

    def within(self, radius: float = 1.0) -> Array:
        """The kernel so far on the way from P to the barycenters; above one, beyond them."""
        Q = np.maximum(self.P + radius * (self.best - self.P), 0.0)
        return np.asarray(Q / Q.sum(axis=1, keepdims=True))

    @cached_property
    def best(self) -> Array:
        """The barycenters ``(k, k)``."""
        from diffbisim.compress.barycenter import barycenter  # numba is loaded where something is solved

        Q, k = self.P.copy(), len(self.P)
        visited = np.flatnonzero(self.m.sum(axis=0) > NEGLIGIBLE)
        pairs = len(self.m) * min(self.care.pairs, MOST_WORK / (k**2 * self.chain.n_transitions))
        most = int(min(pairs / max(visited.size, 1), len(self.m))) + 1
        for y in visited:
            if time.monotonic() > self.deadline:
                break
            w = self.m[:, y]
            states = _carrying(w, self.care.share, most)
            start = PRESENT * self.P[y] + (1 - PRESENT) / k
            w = w[states] / w[states].sum()
            Q[y] = barycenter(self.chain.successors, self.U, states, w, start, self.care.tol)
        return Q


def _carrying(w: Array, share: float, most: int) -> Integers:
    """The states of largest weight that carry this share of it, but no more than so many, ascending."""
    order = np.argsort(-w, kind="stable")
    enough = int(np.searchsorted(np.cumsum(w[order]), share * w.sum())) + 1
    return np.sort(order[: min(enough, most)])
