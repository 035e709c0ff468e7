"""Descent on the distance d(X, Y) over the chains Y with k states.

With the optimal coupling at hand (table U, joint occupancy m) every part of Y has a best answer:

    start      ν_Y sends every x to its nearest y, argmin_y U(x,y): optimal for any ν_Y
    rewards    r_Y(y) = weighted median of r_X with weights m(·,y): optimal for the coupling, so d cannot rise
    kernel     P_Y(·|y) = barycenter of P_X(·|x) with weights m(·,y) (barycenter.py): downhill, with a line search

These three in turn, each kept only if the distance falls, are :func:`descend`. Two moves go between local minima:
:func:`lloyd` replaces Y by the chain averaged over the nearest-state classes, and a state of Y that nobody visits,
which costs nothing, is placed where the coupling pays most (:func:`reseed`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from diffbisim.fit.barycenter import NEGLIGIBLE, barycenters
from diffbisim.fit.partition import aggregate
from diffbisim.fit.target import Model, Target, weighted_median
from diffbisim.results import DistanceResult, Status

#: Largest and least radius of a step of the kernel (above one: beyond the barycenter, where it is approximate).
FARTHEST, NEAREST = 4.0, 1e-4

#: Seconds that the first distance of a run may take although its time is over.
MOMENT = 0.1

#: Iterations that a sweep without trees to begin with takes the time of, at a table that is almost right.
FRESH = 3

#: Cells that a sweep goes through in a second, before anything was measured.
CELLS_PER_SECOND = 2e8


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
    step: float = 1.0
    pace: float = field(init=False)
    values: list[float] = field(default_factory=list)
    result: DistanceResult = field(init=False)

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

    def solve(self, model: Model, warm: DistanceResult | None = None) -> DistanceResult:
        """The distance to a model, as exact as the time allows."""
        began, slowest, done = time.monotonic(), self.pace / 2, 0

        def stop(row: Mapping[str, float]) -> bool:
            nonlocal done
            done, spent = done + 1, time.monotonic() - began
            self.pace = max(slowest, spent / done)
            return time.monotonic() + self.pace > self.end and (bool(self.values) or spent > MOMENT)

        return self.target.solve(model, warm, stop)

    def consider(self, model: Model, least: float = 0.0, cold: bool = False) -> bool:
        """Take a model if it is nearer by more than ``least``; one whose distance was not finished, if that is sure."""
        result = self.solve(model, None if cold else self.result)
        if not (result.upper if result.outcome is Status.INTERRUPTED else result.value) < self.value - least:
            return False
        self.model, self.result = model, result
        return True

    def report(self) -> None:
        self.values.append(self.value)


def descend(search: Search, small: float = 1e-4, patience: int = 3) -> None:
    """Start, rewards and kernel in turn until ``patience`` steps in a row gain less than the share ``small``."""
    idle = 0
    while idle < patience and not search.over:
        before = search.value
        for improve in (_start_and_rewards, _kernel, reseed):
            if not search.late:
                improve(search)
        search.report()
        idle = idle + 1 if before - search.value <= small * before else 0


def _start_and_rewards(search: Search) -> None:
    U, m, model = search.result.values, search.result.occupancy, search.model
    nearest = np.bincount(U.argmin(axis=1), weights=search.target.chain.initial, minlength=U.shape[1])
    moved = replace(model, initial=nearest / nearest.sum())
    r = None if search.hold else search.target.rewards
    if r is not None and model.rewards is not None:
        taken = m.sum(axis=0) > NEGLIGIBLE
        medians = [weighted_median(r, m[:, y]) if taken[y] else model.rewards[y] for y in range(m.shape[1])]
        moved = replace(moved, rewards=np.array(medians))
    if not _same(moved, model):
        search.consider(moved)


def _same(a: Model, b: Model) -> bool:
    if not np.array_equal(a.initial, b.initial):
        return False
    return a.rewards is None or b.rewards is None or np.array_equal(a.rewards, b.rewards)


def _kernel(search: Search) -> None:
    """The best kernel within a radius, which grows with success and shrinks with failure."""
    chain, U, m, P = search.target.chain, search.result.values, search.result.occupancy, search.model.transition
    radius = search.step
    while radius >= NEAREST:
        Q = barycenters(chain, U, m, P, radius, search.end - FRESH * search.pace)
        if search.late:
            return
        if search.consider(replace(search.model, transition=Q)):
            search.step = min(2 * radius, FARTHEST)
            return
        radius /= 3
    search.step = 10 * NEAREST


def reseed(search: Search) -> None:
    """Put every unvisited state of Y where the coupling pays most: free, since nothing leads there yet."""
    target, m, U = search.target, search.result.occupancy, search.result.values
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
        hard = aggregate(search.target, labels, len(search.model.initial))
        if search.over or not search.consider(hard, least=search.floor, cold=True):
            break
        gained = True
        search.report()
    return gained
