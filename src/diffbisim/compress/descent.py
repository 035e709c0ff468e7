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

Two methods. Small chains: the linear program over the plans Π_x and the row q,

    min Σ_x w_x <U, Π_x>     s.t.  Π_x 1 = P_X(·|x),   Π_xᵀ 1 = q   for every x.

Large ones: iterative Bregman projections (Benamou et al. 2015) with the Gibbs kernel exp(-U/ε), which all x share, for
all rows at once and only over the pairs (x,y) that carry most of the occupancy: encoders are almost deterministic, so
these are few.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.checks import Integers
from diffbisim.compress.starts import Model, Target, averaged, weighted_median
from diffbisim.parallel import left_behind
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


#: Largest linear program, in cells of the plans of one row, for chains of up to so many states; larger ones are always
#: projected. The states of largest weight are taken as far as that goes; if they have less than this share of the
#: weight, the projections are used.
LARGEST_PROGRAM, SMALL = 3_000, 100
ENOUGH = 0.9

#: Weights below this share of a row's total do not move its barycenter.
NEGLIGIBLE = 1e-9

#: Widths of the Gibbs kernel, relative to the spread of the table. None is best for all chains: a step that gained
#: little is followed by one with the next.
SMOOTHING = (0.05, 0.005, 0.016)

#: Projections at most, and the change of a row (in total) at which they end.
PROJECTIONS, SETTLED = 40, 1e-3

#: Of a larger chain the states of least weight are left out of a row: this share of its weight, and what is beyond so
#: many pairs per state in all rows together.
LEFT_OUT, PAIRS = 0.05, 2.0
TINY = 1e-300

#: Kernels with at least this share of their entries positive are multiplied as dense matrices.
DENSE = 0.25


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
    turn: int = 0  # of the widths of the Gibbs kernel
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

    After each of these the Gibbs kernel has another width, which often finds a way on.
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
            search.turn, search.step = search.turn + 1, max(search.step, 1.0)


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
        search.target.chain, at.values, search.occupancy, search.model.transition,
        SMOOTHING[search.turn % len(SMOOTHING)], search.end - FRESH * search.pace,
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
    smoothing: float = SMOOTHING[0]
    deadline: float = np.inf

    def within(self, radius: float = 1.0) -> Array:
        """The kernel with entries within ``radius`` of P's; projected rows go so far on the way to the barycenter."""
        Q, projected = self.P.copy(), self.projected
        for y in self.visited:
            if time.monotonic() > self.deadline:
                break
            active, q = self.programs.get(y), None
            if active is not None:
                q = _program(self.chain, self.U, self.m[:, y] / self.m[:, y].sum(), active, self.P[y], radius)
            elif y in projected:
                q = self.P[y] + radius * (projected[y] - self.P[y])
            if q is not None and np.isfinite(q).all() and q.sum() > 0:
                Q[y] = np.maximum(q, 0.0) / np.maximum(q, 0.0).sum()
        return Q

    @cached_property
    def visited(self) -> list[int]:
        """The rows with mass."""
        return np.flatnonzero(self.m.sum(axis=0) > NEGLIGIBLE).tolist()

    @cached_property
    def programs(self) -> dict[int, Integers]:
        """The rows whose linear program is small enough, with the states that it is made of."""
        if len(self.m) > SMALL:
            return {}
        cells, w = np.diff(self.chain.successors.indptr) * len(self.P), self.m / np.maximum(self.m.sum(axis=0), TINY)
        active = {y: _heaviest(w[:, y], cells, LARGEST_PROGRAM) for y in self.visited}
        return {y: states for y, states in active.items() if w[states, y].sum() >= ENOUGH}

    @cached_property
    def projected(self) -> dict[int, Array]:
        """The other rows, by alternating projections on both families of constraints, for all of them at once."""
        rows = [y for y in self.visited if y not in self.programs]
        return dict(zip(rows, self._projected(rows), strict=True)) if rows else {}

    def _projected(self, rows: list[int]) -> Array:
        """Barycenters ``q (rows, k)``. Of the large chain only the heavy pairs (x, y) matter, those of row y together.

        Letters: x, y, w of every pair; v its scaling ``(pairs, k)``. At the deadline q is what it is then.
        """
        U, m, k = self.U, self.m, len(self.P)
        share, most = (NEGLIGIBLE, len(m)) if len(m) <= SMALL else (LEFT_OUT, int(PAIRS * len(m) / len(rows)) + 1)
        heavy = [_carrying(m[:, y], 1.0 - share, most) for y in rows]
        x, sizes = np.concatenate(heavy), np.array([states.size for states in heavy])
        y, first = np.repeat(np.arange(len(rows)), sizes), np.cumsum(sizes) - sizes
        w = m[x, np.array(rows)[y]]
        w /= np.add.reduceat(w, first)[y]
        ε = self.smoothing * float(U.std()) or 1.0
        K = np.exp(-np.minimum((U - U.min(axis=1, keepdims=True)) / ε, 600.0))
        P = self.chain.successors.matrix[x]
        apply = _dense_projection(P.toarray(), K) if P.nnz >= DENSE * x.size * len(U) else _sparse_projection(P, K)
        v, q = np.ones((x.size, k)), np.full((len(rows), k), 1 / k)
        for _ in range(PROJECTIONS):
            back = apply(v)
            before, q = q, np.exp(np.add.reduceat(w[:, None] * np.log(np.maximum(v * back, TINY)), first))
            q /= q.sum(axis=1, keepdims=True)
            v = q[y] / np.maximum(back, TINY)
            if np.abs(q - before).sum(axis=1).max() <= SETTLED or time.monotonic() > self.deadline:
                break
        return np.asarray(q)


def _heaviest(w: Array, cells: Integers, most: int) -> Integers:
    """The states of largest weight whose plans have so many cells in all, ascending."""
    order = np.argsort(-w, kind="stable")
    order = order[w[order] > NEGLIGIBLE]
    return np.sort(order[np.cumsum(cells[order]) <= most])


def _carrying(w: Array, share: float, most: int) -> Integers:
    """The states of largest weight that carry this share of it, but no more than so many, ascending."""
    order = np.argsort(-w, kind="stable")
    enough = int(np.searchsorted(np.cumsum(w[order]), share * w.sum())) + 1
    return np.sort(order[: min(enough, most)])


def _program(chain: MarkovChain, U: Array, w: Array, active: Integers, center: Array, radius: float) -> Array | None:
    """The row by HiGHS; None if it gives up.

    Variables: a cell (successor of an active x, y') for every plan, then q. Equations: one per successor, then k per x.
    """
    from scipy.optimize import linprog

    s, k = chain.successors, U.shape[1]
    degree = np.diff(s.indptr)[active]
    edges = np.concatenate([np.arange(s.indptr[x], s.indptr[x + 1]) for x in active])
    owner = np.repeat(np.arange(active.size), degree)
    n_edges, n_plans = edges.size, active.size
    cells = np.arange(n_edges * k)
    column = np.tile(np.arange(k), n_edges)
    rows = np.concatenate([cells // k, n_edges + np.repeat(owner, k) * k + column, n_edges + np.arange(n_plans * k)])
    cols = np.concatenate([cells, cells, n_edges * k + np.tile(np.arange(k), n_plans)])
    data = np.concatenate([np.ones(2 * cells.size), -np.ones(n_plans * k)])
    found = left_behind(
        linprog,
        np.concatenate([(w[active][owner][:, None] * U[s.indices[edges]]).ravel(), np.zeros(k)]),
        A_eq=sparse.csr_array((data, (rows, cols)), shape=(n_edges + n_plans * k, n_edges * k + k)),
        b_eq=np.concatenate([s.probabilities[edges], np.zeros(n_plans * k)]),
        bounds=np.concatenate([np.tile([0.0, 1.0], (n_edges * k, 1)), _around(center, radius)]),
        method="highs",
    )
    return None if found.x is None else np.asarray(found.x[n_edges * k :])


def _around(center: Array, radius: float) -> Array:
    return np.stack([np.maximum(center - radius, 0.0), np.minimum(center + radius, 1.0)], axis=1)


def _dense_projection(P: Array, K: Array) -> Callable[[Array], Array]:
    """``v (a, k) ↦ Kᵀ u`` with ``u = P / (K v)`` for every row of ``P (a, n)``: two products of matrices."""
    return lambda v: (P / np.maximum(v @ K.T, TINY)) @ K


def _sparse_projection(P: sparse.csr_array, K: Array) -> Callable[[Array], Array]:
    """The same along the transitions."""
    degree, at = np.diff(P.indptr), K[P.indices]

    def apply(v: Array) -> Array:
        u = P.data / np.maximum(np.einsum("ej,ej->e", at, np.repeat(v, degree, axis=0)), TINY)
        return np.asarray(sparse.csr_array((u, P.indices, P.indptr), shape=P.shape) @ K)

    return apply
