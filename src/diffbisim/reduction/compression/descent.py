"""Descent on the distance d(X, Y) over the chains Y with k states.

Given the optimal coupling (table U, joint occupancy m), each part of Y has a best update:

    start      ν_Y sends every x to its nearest y, argmin_y U(x,y); this is optimal
    rewards    r_Y(y) = weighted median of r_X with weights m(·,y), the geometric median for vectors; optimal for the
               coupling, so d cannot increase
    kernel     P_Y(·|y) = barycenter of P_X(·|x) with weights m(·,y), see below; a descent direction with a line search

:func:`descend` makes these updates in turn and keeps each one only if the distance decreases. Two moves escape local
minima: :func:`lloyd` replaces Y by the chain averaged over the classes of the nearest state, and :func:`reseed` moves
states of Y that are never visited, which costs nothing, to where the coupling is most expensive.

*Barycenters.* For a given table, the best rows of the small kernel are Wasserstein barycenters of rows of the large
one. Keep the table U and the joint occupancy m of an optimal coupling fixed. To first order, replacing P_Y by a kernel
Q changes the distance by γ times the change of

    Σ_y Σ_x m(x,y) OT_U(P_X(·|x), Q(·|y)),

which is convex in Q and separates over y: row y is the barycenter, for the cost U, of the rows P_X(·|x) with weights
m(x,y). Unlike a gradient, this model includes the kinks of every transport, so long steps from P_Y toward Q decrease
the distance.

*Steps along the gradient* of the distance itself (gradient.py) are tried where the descent ends, by
:func:`along_gradient`. They do not depend on the model above, so the result is stationary even if that model misleads.

Each barycenter is a linear program, solved by an interior-point method (barycenter.py) over the pairs (x,y) that carry
most of the occupancy. Encoders are almost deterministic, so these are few. If the rows of the large chain are long,
successors x' with similar rows U(x',·) are merged: the transport costs hardly tell them apart.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import Successors
from diffbisim.reduction.compression.starts import SmallModel, Target, averaged, median
from diffbisim.results.base import DistanceResult, Status
from diffbisim.results.gradient import kernel_gradients

#: Largest and smallest radius of a step of the kernel. Above one, a step goes beyond an approximate barycenter.
FARTHEST, NEAREST = 4.0, 1e-4

#: Seconds that the first distance of a run may take even if there is no time left.
MOMENT = 0.1

#: Time of a sweep without previous trees, for an almost correct table, in units of a warm iteration.
FRESH = 3

#: Assumed number of cells that a sweep processes per second, until it is measured.
CELLS_PER_SECOND = 2e8

#: Weights below this are negligible: such states count as unvisited, or do not affect a barycenter.
NEGLIGIBLE = 1e-9


class BarycenterAccuracy(NamedTuple):
    """Accuracy of barycenters."""

    share: float  # fraction of the occupancy of a row to cover, states of largest weight first
    pairs: float  # maximum number of pairs in all rows together, per state of the large chain
    tol: float  # relative accuracy of the cost
    successors: float  # maximum average number of successors of a state; beyond it, similar ones are merged


#: Accuracy for distances with a certified gap of at least MIN_COARSE_GAP, and for smaller gaps.
MIN_COARSE_GAP = 3e-4
COARSELY, FINELY = BarycenterAccuracy(0.95, 2.0, 1e-2, 64), BarycenterAccuracy(0.99, 4.0, 1e-3, 64)

#: For chains of up to MAX_EXACT_STATES states, barycenters use all pairs and are exact.
MAX_EXACT_STATES, EXACTLY = 100, BarycenterAccuracy(1.0 - NEGLIGIBLE, np.inf, 1e-8, np.inf)

#: Maximum work of an iteration, k² for every successor of a state, in all rows together: barycenters should not take
#: much longer than a distance. States of least weight are left out, and the weights of the others are scaled up.
MOST_WORK = 3e7

#: Lengths of the steps along the gradient, which are tried for chains of up to this number of states.
LENGTHS, MOST_STATES = (0.2, 0.05, 0.01), 2_000

#: Number of moves to other classes that are tried per state.
TRIES_PER_STATE = 1.0

#: Weight of the present row in the starting point of a barycenter. The rest is uniform, to make all entries positive.
PRESENT = 0.5


@dataclass(eq=False)
class DescentRun:
    """One run: the best model so far, its distance, and the remaining budget.

    ``pace`` is the measured number of seconds per iteration of the solver. Before the ``deadline`` (of
    ``time.monotonic``) there must be time for the final sweep that certifies the result, which takes ``reserve`` times
    as long as a sweep of the search.
    """

    target: Target
    model: SmallModel
    max_iterations: int
    deadline: float
    hold: bool = False  # whether the rewards are kept fixed
    reserve: float = 0.0
    tol: float = 0.0  # certified gap of distances, if larger than that of the target
    step: float = 1.0
    pace: float = field(init=False)
    values: list[float] = field(default_factory=list)
    result: DistanceResult = field(init=False)
    _visits: tuple[DistanceResult, Array] | None = None

    def __post_init__(self) -> None:
        self.pace = self.target.chain.n_transitions * self.model.transition.size / CELLS_PER_SECOND

    def begin(self, exactly: bool = False) -> None:
        """Compute the distance of the starting model, to the target's tolerance if ``exactly``."""
        self.result = self.solve(self.model, tol=0.0 if exactly else self.tol)
        self.values.append(self.result.value)

    @property
    def value(self) -> float:
        """Distance of the best model so far."""
        return self.result.value

    @property
    def over(self) -> bool:
        """Whether the budget is used up or the distance is zero."""
        return len(self.values) > self.max_iterations or self.late or self.value <= self.floor

    @property
    def late(self) -> bool:
        """Whether another solve would end too late, even if it took only one sweep."""
        return time.monotonic() + FRESH * self.pace > self.end

    @property
    def end(self) -> float:
        """When the run must end, so that its result can still be certified."""
        return self.deadline - FRESH * self.reserve * self.pace

    @property
    def floor(self) -> float:
        """Distances below this cannot be distinguished from zero."""
        return self.target.tol * self.result.problem.scale

    def solve(
        self, model: SmallModel, warm: DistanceResult | None = None, least: float = np.inf, tol: float | None = None
    ) -> DistanceResult:
        """Compute the distance to a model; stop early if time is short or it is certainly at least ``least``."""
        began, slowest, done = time.monotonic(), self.pace / 2, 0

        def stop(row: Mapping[str, float]) -> bool:
            nonlocal done
            done, spent = done + 1, time.monotonic() - began
            self.pace = max(slowest, spent / done)
            late = time.monotonic() + self.pace > self.end and (bool(self.values) or spent > MOMENT)
            return late or row["lower"] >= least

        return self.target.solve(model, warm, stop, self.tol if tol is None else tol)

    def consider(self, model: SmallModel, least: float = 0.0, cold: bool = False) -> bool:
        """Accept a model if it is nearer by more than ``least``; return whether it was.

        If the computation of its distance was stopped early, the upper bound decides.
        """
        result = self.solve(model, None if cold else self.result, self.value - least)
        if not (result.upper if result.outcome is Status.INTERRUPTED else result.value) < self.value - least:
            return False
        self.model, self.result = model, result
        return True

    @property
    def occupancy(self) -> Array:
        """The joint occupancy ``(n, k)`` of the present coupling, only as accurate as steps require."""
        if self._visits is None or self._visits[0] is not self.result:
            self._visits = self.result, visits(self.result, max(1e-3 * self.tol, 1e-13))
        return self._visits[1]

    @property
    def care(self) -> BarycenterAccuracy:
        """Accuracy of barycenters that matches the accuracy of distances."""
        if self.target.chain.n_states <= MAX_EXACT_STATES:
            return EXACTLY
        return COARSELY if self.tol >= MIN_COARSE_GAP else FINELY

    def report(self) -> None:
        """Add the present distance to the history."""
        self.values.append(self.value)


def visits(result: DistanceResult, accuracy: float) -> Array:
    """Return the joint occupancy ``(n, k)`` of an exact coupling, to an accuracy relative to its largest entries."""
    from diffbisim.solvers.exact.pairs import pair_chain

    coupling: Any = result.coupling
    start = coupling.start.plan.toarray().ravel()
    m, _ = pair_chain(coupling.transports, result.discount).occupancy(start, accuracy)
    return m.reshape(result.problem.shape)


def descend(search: DescentRun, small: float = 1e-4, patience: int = 3) -> None:
    """Update start, rewards and kernel in turn.

    The descent ends when ``patience`` consecutive steps gain less than the fraction ``small`` of the distance. After
    each such step the radius is reset to at least one.
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


def _all_at_once(search: DescentRun) -> None:
    """Try start, rewards and kernel together, because a solve is expensive; if that fails, without the kernel."""
    moved = _with_start_and_rewards(search)
    if not _kernel(search, moved) and not search.late and not _same(moved, search.model):
        search.consider(moved)


def _start_and_rewards(search: DescentRun) -> None:
    """Try the best start and rewards for the present coupling."""
    moved = _with_start_and_rewards(search)
    if not _same(moved, search.model):
        search.consider(moved)


def _with_start_and_rewards(search: DescentRun) -> SmallModel:
    """Return the model with the start and rewards that are best for its coupling."""
    U, m, model = search.result.values, search.occupancy, search.model
    nearest = np.bincount(U.argmin(axis=1), weights=search.target.chain.initial, minlength=U.shape[1])
    moved = replace(model, initial=nearest / nearest.sum())
    r = None if search.hold else search.target.rewards
    if r is not None and model.rewards is not None:
        visited = m.sum(axis=0) > NEGLIGIBLE
        medians = [median(r, m[:, y]) if visited[y] else model.rewards[y] for y in range(m.shape[1])]
        moved = replace(moved, rewards=np.array(medians))
    return moved


def _same(a: SmallModel, b: SmallModel) -> bool:
    """Return whether two models have the same start and rewards."""
    if not np.array_equal(a.initial, b.initial):
        return False
    return a.rewards is None or b.rewards is None or np.array_equal(a.rewards, b.rewards)


def _kernel(search: DescentRun, moved: SmallModel | None = None) -> bool:
    """Try the best kernel within a radius; return whether it is nearer.

    The radius grows with success and shrinks with failure. ``moved`` is the model whose kernel is replaced; by default,
    the present one.
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


def along_gradient(search: DescentRun) -> float:
    """Try steps of the kernel along the gradient of the distance; return by how much the distance decreased.

    Three kinds of steps are tried, each of several lengths: probabilities times the exponential of the gradient, a step
    in the plane of stochastic matrices, and mass from everywhere to the successor that decreases the distance most.
    """
    coupling: Any = search.result.coupling
    if search.over or search.target.chain.n_states > MOST_STATES or not coupling.complete:
        return 0.0
    P, before = search.model.transition, search.value
    G = np.asarray(kernel_gradients(coupling, search.occupancy, everywhere=True)[1])
    scale = float(np.abs(G).max())
    if not scale > 0:
        return 0.0
    direction, best = -G / scale, np.eye(len(P))[G.argmin(axis=1)]
    centered = direction - direction.mean(axis=1, keepdims=True)
    for t in LENGTHS:
        for Q in ((1 - t) * P + t * best, P * np.exp(10 * t * direction), np.maximum(P + t * centered, 0.0)):
            if search.late:
                break
            search.consider(replace(search.model, transition=Q / Q.sum(axis=1, keepdims=True)))
    if search.value < before:
        search.report()
    return before - search.value


def reseed(search: DescentRun) -> None:
    """Move every unvisited state of Y to where the coupling is most expensive; this costs nothing."""
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
    if np.array_equal(P, search.model.transition):  # they are in the right place already
        return
    moved = replace(search.model, transition=P, rewards=rewards)
    result = search.solve(moved, search.result)
    if result.outcome is not Status.INTERRUPTED and result.value <= search.value + search.floor:
        search.model, search.result = moved, result


def lloyd(search: DescentRun, rounds: int) -> bool:
    """Average over the classes of the nearest state while the distance decreases; return whether it did at all."""
    gained = False
    for _ in range(rounds):
        assignment = search.result.values.argmin(axis=1)
        hard = averaged(search.target, assignment, len(search.model.initial))
        if search.over or not search.consider(hard, least=search.floor, cold=True):
            break
        gained = True
        search.report()
    return gained


def exchange(search: DescentRun) -> None:
    """Move single states to other classes while the averaged chain becomes nearer.

    The moves that promise most (:func:`prospects`) are tried first, at most TRIES_PER_STATE per state before one
    succeeds.
    """
    start = search.model.assignment
    if start is None:
        return
    assignment, k, gained = start.copy(), len(search.model.initial), True
    while gained and not search.over:
        gained, change = False, prospects(search, assignment)
        for move in np.argsort(change, axis=None, kind="stable")[: math.ceil(TRIES_PER_STATE * len(assignment))]:
            x, y = divmod(int(move), k)
            if not change[x, y] < np.inf or search.late:
                break
            moved = np.where(np.arange(len(assignment)) == x, y, assignment)
            if search.consider(averaged(search.target, moved, k), least=search.floor):
                assignment, gained = moved, True
                break
    search.report()


def prospects(search: DescentRun, assignment: Integers) -> Array:
    """Return about how much the distance changes if state x moves to class y, ``(n, k)``; infinite if it is there.

    To first order, a change of the averaged kernel P costs its product with the gradient, and a change of the start
    the difference of the table U. Rewards are regarded as fixed. With flows F = P·mass between classes, the move adds
    the transitions out of x to row y and those into x to column y, and removes them from its present class.
    """
    target, coupling, k = search.target, search.result.coupling, len(search.model.initial)
    n, kernel, w = len(assignment), target.chain.successors.matrix, target.weight + target.weight.max() * 1e-12
    into = sparse.csr_array((np.ones(n), assignment, np.arange(n + 1)), shape=(n, k))
    out = np.asarray((sparse.diags_array(w) @ kernel @ into).toarray())  # (n, k) flows from states to classes
    back = np.asarray((into.T @ sparse.diags_array(w) @ kernel).toarray()).T  # (n, k) flows from classes to states
    stay, mass = w * kernel.diagonal(), into.T @ w
    G = np.asarray(kernel_gradients(coupling, search.occupancy, everywhere=True)[1])
    U, one = search.result.values, np.eye(k)
    change = np.full((n, k), np.inf)
    for x in range(n):
        a, rest = assignment[x], np.delete(np.arange(k), assignment[x])
        shift = one[rest] - one[a]  # (k-1, k)
        F = (into.T @ out)[None] + shift[:, :, None] * out[x]
        F = F + (back[x] + stay[x] * shift)[:, :, None] * shift[:, None, :]
        total = np.maximum(mass + w[x] * shift, 0.0)
        kept = total > 1e-9 * w[x]
        P = np.where(kept[:, :, None], F / np.where(kept, total, 1.0)[:, :, None], search.model.transition)
        moved = (G * (P - search.model.transition)).sum(axis=(1, 2))
        change[x, rest] = moved + target.chain.initial[x] * (U[x, rest] - U[x, a])
    return change


# --- barycenters -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Barycenters:
    """The best rows for a table ``U (n, k)`` and an occupancy ``m (n, k)``, starting from those of ``P (k, k)``.

    Rows without mass do not change, nor do rows whose barycenter was not found, and those not computed by the
    ``deadline`` (of ``time.monotonic``).
    """

    chain: MarkovChain
    U: Array
    m: Array
    P: Array
    care: BarycenterAccuracy = EXACTLY
    deadline: float = np.inf

    def within(self, radius: float = 1.0) -> Array:
        """Return P + radius (barycenters - P), made stochastic; a radius above one goes beyond the barycenters."""
        Q = np.maximum(self.P + radius * (self.best - self.P), 0.0)
        return np.asarray(Q / Q.sum(axis=1, keepdims=True))

    @cached_property
    def best(self) -> Array:
        """The barycenters ``(k, k)``."""
        from diffbisim.reduction.compression.barycenter import Average, barycenters

        Q, k = self.P.copy(), len(self.P)
        visited = np.flatnonzero(self.m.sum(axis=0) > NEGLIGIBLE)
        pairs = len(self.m) * min(self.care.pairs, MOST_WORK / (k**2 * self.chain.n_transitions))
        most = int(min(pairs / max(visited.size, 1), len(self.m))) + 1
        rows, costs = self._successors
        averages = []
        for y in visited:
            w = self.m[:, y]
            states = _carrying(w, self.care.share, most)
            averages.append(Average(states, w[states] / w[states].sum(), PRESENT * self.P[y] + (1 - PRESENT) / k))
        at_once = 1 if np.isfinite(self.deadline) else max(len(averages), 1)
        for first in range(0, len(averages), at_once):
            if time.monotonic() > self.deadline:
                break
            found = barycenters(rows, costs, averages[first : first + at_once], self.care.tol)
            for y, (row, gap) in zip(visited[first:], found, strict=False):
                if np.isfinite(gap):
                    Q[y] = row
        return Q

    @property
    def _successors(self) -> tuple[Successors, Array]:
        """The rows of the chain and their transport costs; if rows are long, similar successors are merged."""
        n, groups = len(self.U), self.care.successors
        if self.chain.n_transitions <= groups * n:
            return self.chain.successors, self.U
        V = self.U - self.U.min(axis=1, keepdims=True)
        assignment = _alike(V, int(groups))
        into = sparse.csr_array((np.ones(n), assignment, np.arange(n + 1)))
        weight = self.m.sum(axis=1) + NEGLIGIBLE
        costs = np.ascontiguousarray(into.T @ (weight[:, None] * V) / (into.T @ weight)[:, None])
        rows = sparse.csr_array(self.chain.successors.matrix @ into)
        rows.sort_indices()
        return Successors.of(rows), costs


def _alike(vectors: Array, groups: int) -> Integers:
    """Return groups of vectors that are near each other in the sup norm: those nearest to one of several far apart."""
    assignment, nearest, last = np.zeros(len(vectors), np.int64), np.full(len(vectors), np.inf), 0
    for group in range(groups):
        away = np.abs(vectors - vectors[last]).max(axis=1)
        assignment[away < nearest] = group
        nearest = np.minimum(nearest, away)
        last = int(nearest.argmax())
        if not nearest[last] > 0:
            break
    return assignment


def _carrying(w: Array, share: float, most: int) -> Integers:
    """Return, in ascending order, the at most ``most`` states of largest weight that carry this share of the total."""
    order = np.argsort(-w, kind="stable")
    enough = int(np.searchsorted(np.cumsum(w[order]), share * w.sum())) + 1
    return np.sort(order[: min(enough, most)])
