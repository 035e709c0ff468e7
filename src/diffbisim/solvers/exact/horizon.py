"""Backward induction: the distance over finitely many steps, exact in T sweeps.

    V_T = w_T c_T,        V_t = w_t c_t + OT_{V_{t+1}}(P_t, Q_t),        d = OT_{V_0}(ν_X, ν_Y)

No iteration is needed, and the bounds account only for rounding. A sweep starts with the trees of the previous one if
the kernels have the same supports (always the case for time-homogeneous chains), or with those of a previous result.

*Rounding.* Tables are scaled so that no distance exceeds one. In the letters of solver.py let S_t be the largest entry
of V_t; no entry is negative. A transport over the computed V_{t+1} gives OT - η₀ ≤ value ≤ OT + p + η₀ with
η₀ = ((3 N + 4) u + s + 2 κ) S_{t+1}; the cost w_t c_t / scale has two roundings and its sum with the value one more,
3 u S_t in total. OT changes by at most as much as its table. So V_t is too small by at most Σ_{s≥t} (η₀ + 3 u S_s) and
too large by at most as much plus (T - t) p, and the transport of the starts adds its own error. Using 4 u instead of
3 u everywhere covers second-order terms.

*Early stopping.* If the run stops at time t, the costs before t are only known to lie between their extremes, and so is
the pair at t: Σ_{s<t} w_s min c_s + min V_t ≤ d ≤ Σ_{s<t} w_s max c_s + max V_t. A step that is not complete at the
time limit is discarded.

*Memory.* The tables need 8 bytes per pair and time. The trees, for plans and gradient, need about 10 (a + b) bytes per
pair and step with a, b successors. If they would exceed `KEPT` bytes in total, none are kept, and those of a step are
recomputed (one sweep) on demand.
"""

import time
from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.arrays import Array, available_threads, frozen, lazy
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.common.stopping import TimeUp, until
from diffbisim.io.arrays import numbers
from diffbisim.problems.horizon import FiniteHorizon
from diffbisim.results.base import DistanceResult, HistoryRow, Status
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.results.horizon import HorizonResult
from diffbisim.solvers.base import Callback, deadline_of
from diffbisim.solvers.certify import transport_rounding
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import (
    PRICE,
    StartTransport,
    enclosing,
    fill_trees,
    hide_others,
    plan_of,
    potentials_of,
    unfit,
)
from diffbisim.solvers.exact.pairs import ALL, equal, plan_errors, same_items, sort_keys
from diffbisim.solvers.exact.transports import (
    EPS,
    Basis,
    Items,
    Transports,
    Trees,
)

Integers = NDArray[np.int64]

#: Largest size in bytes of the trees of all steps.
KEPT = 2**30


class Level(NamedTuple):
    """The table of a solved time."""

    table: Array  # (n_X*n_Y,) V_t, flat and scaled
    short: float  # bound on how much it is too small
    excess: float  # bound on how much it is too large


def solve(
    problem: FiniteHorizon, options: Exact, warm: DistanceResult | None = None, callback: Callback | None = None
) -> HorizonResult:
    """Run backward induction from the last time; stops after a step if ``callback(row)`` is true."""
    deadline, status = deadline_of(options.time_limit), None
    run = BackwardInduction(problem, options, warm)
    history = [run.row()]
    while run.time > 0 and status is None:
        try:
            with until(deadline):
                run.step()
        except TimeUp:
            status = Status.TIME
            break
        history.append(run.row())
        stop, late = callback is not None and callback(history[-1]), time.monotonic() > deadline
        if run.time > 0:
            status = Status.INTERRUPTED if stop else Status.TIME if late else None
    last = history[-1]
    if status is None:
        status = Status.CONVERGED if last["upper"] - last["lower"] <= options.tol * problem.scale else Status.ROUNDING
    return HorizonResult(
        problem, last["value"], last["lower"], last["upper"], status, len(history) - 1, options.name, run.coupling,
        tuple(history), run.work,
    )  # fmt: skip


class BackwardInduction:
    """One solve; `time` is the earliest solved time."""

    def __init__(self, problem: FiniteHorizon, options: Exact, warm: DistanceResult | None) -> None:
        if warm is not None and not isinstance(warm, DistanceResult):
            raise InvalidArgument(f"warm is a {type(warm).__name__}; pass the result of a previous distance")
        T, self.problem, self.threads = problem.n_steps, problem, options.threads
        self.coupling = HorizonCoupling(problem, options.reachable)
        self.keep = tree_bytes(problem) <= KEPT
        self.transports: Transports | None = None
        self.known = warm.coupling if warm is not None and isinstance(warm.coupling, HorizonCoupling) else None
        self.pairs, self.pivots, self.time = 0, 0, T
        if self.known is not None and self.known.goes_on(problem, options.reachable):
            self.coupling.levels, self.coupling.steps = list(self.known.levels), list(self.known.steps)
            self.time = self.coupling.first
        else:
            base = self.coupling.base(T)
            self.coupling.levels[T] = Level(base, 2 * EPS * self._top(base, T), 2 * EPS * self._top(base, T))

    @property
    def work(self) -> dict[str, int]:
        """Counts of the work so far."""
        return {"pairs": self.pairs, "pivots": self.pivots}

    def step(self) -> None:
        """Compute V_{t-1} from V_t."""
        t, coupling = self.time - 1, self.coupling
        after = coupling.levels[t + 1]
        transports = self._begin(t, after.table)
        before, values = transports.pivots, np.empty(transports.size)
        solved = transports.solve(after.table, values, PRICE)
        self.pairs, self.pivots = self.pairs + transports.size, self.pivots + transports.pivots - before
        table, listed = coupling.base(t), transports.items.listed
        table[listed if listed.size else slice(None)] += values
        η = transport_rounding(plan_errors(transports)) * self._top(after.table, t + 1)
        η = η + 2 * EPS * self._top(table, t) if solved else np.inf
        coupling.levels[t] = Level(table, after.short + η, after.excess + η + PRICE)
        if self.keep:
            coupling.steps[t] = transports
        self.transports, self.time = transports, t

    def _begin(self, t: int, W: Array) -> Transports:
        """Return the transports of step t, with the trees of a previous result or of the following step."""
        old = self.known.steps[t] if self.known is not None and len(self.known.steps) > t else None
        for trees in (old, self.transports):
            if trees is not None and (found := self._from(trees, t)) is not None:
                return found
        return self.coupling.fresh(t, W, self.threads)

    def _from(self, old: Transports, t: int) -> Transports | None:
        """Return the transports of step t with copies of given trees, or None if these do not fit."""
        (x, y), items = self.problem.rows(t), old.items
        listed, n_y = self.coupling.listed[t], self.problem.shape_at(t + 1)[1]
        wanted = items._replace(listed=listed, x=x, y=y)
        if items.n_y != n_y or not same_items(items, wanted):
            return None
        same = all(equal(old.probabilities, new.probabilities) for old, new in ((items.x, x), (items.y, y)))
        if same and not self.keep and old is self.transports:
            return old  # no one else holds these trees
        trees = Trees(old.trees.at, *(np.array(part) for part in old.trees[1:]))
        if same:
            new = copy(old)  # with all that follows from the kernels
            new.trees, new.threads = trees, self.threads or available_threads()
            return new
        new = Transports(wanted, self.threads, trees)
        new.basis, new.clipped = min(old.basis, Basis.OTHER), old.clipped
        return new

    def _top(self, table: Array, t: int) -> float:
        """Return S_t over the solved pairs."""
        listed = self.coupling.listed[t]
        return float(table[listed].max() if listed.size else table.max())

    def row(self) -> HistoryRow:
        """Return a row of the history, with the bounds from the solved times."""
        if self.time == 0:
            value, lower, upper = self.coupling.finish()
        else:
            lower, upper = self._meanwhile()
            value = lower + (upper - lower) / 2
        return HistoryRow({"time": self.time, "value": value, "lower": lower, "upper": upper, **self.work})

    def _meanwhile(self) -> tuple[float, float]:
        """Return bounds from the cost-to-go at the current time and the extremes of the costs before it."""
        t, problem = self.time, self.problem
        table, short, excess = self.coupling.levels[t]
        pairs = self.coupling.listed[t]
        solved = table[pairs] if pairs.size else table
        low = float(problem.least[t]) + problem.scale * (float(solved.min()) - excess)
        high = float(problem.most[t]) + problem.scale * (float(solved.max()) + short)
        return problem.bounded(low - problem.slack, high + problem.slack)


def tree_bytes(problem: FiniteHorizon) -> int:
    """Return the approximate size of the trees of all steps."""
    total = 0
    for t in range(problem.n_steps):
        (n_x, n_y), (x, y) = problem.shape_at(t), problem.rows(t)
        total += 12 * (n_y * x.indices.size + n_x * y.indices.size)
    return total


def reachable_pairs(problem: FiniteHorizon) -> list[Integers]:
    """Return, for each time, the flat pairs that some bicausal coupling can reach.

    The independent coupling reaches every pair of states that the two processes can reach by themselves.
    """
    seen = [problem.x.initial > 0, problem.y.initial > 0]
    listed = [np.flatnonzero(np.outer(*seen))]
    for t in range(problem.n_steps):
        for side, rows in enumerate(problem.rows(t)):
            after = np.zeros(problem.shape_at(t + 1)[side], dtype=np.bool_)
            after[rows.indices[seen[side][rows.sources]]] = True
            seen[side] = after
        listed.append(np.flatnonzero(np.outer(*seen)))
    return listed


class HorizonCoupling(Coupling):
    """Plans, potentials and laws from the tables of all times and, if kept, the trees of all steps."""

    problem: Any

    def __init__(self, problem: FiniteHorizon, reachable: bool) -> None:
        self.problem, self.reachable, self.complete = problem, reachable, not reachable
        self.listed = reachable_pairs(problem) if reachable else [ALL] * (problem.n_steps + 1)
        self.levels: list[Any] = [None] * (problem.n_steps + 1)
        self.steps: list[Transports | None] = [None] * problem.n_steps
        self._start = StartTransport(problem)  # type: ignore[arg-type]

    @property
    def first(self) -> int:
        """The earliest solved time."""
        return next(t for t, level in enumerate(self.levels) if level is not None)

    def goes_on(self, problem: FiniteHorizon, reachable: bool) -> bool:
        """Return whether these levels belong to an interrupted run of the same problem."""
        trusted = all(level is None or level.short < np.inf for level in self.levels)
        return self.first > 0 and trusted and reachable == self.reachable and self.problem.same_as(problem)

    def base(self, t: int) -> Array:
        """Return the scaled cost w_t c_t, flat."""
        return np.asarray((self.problem.weights[t] * self.problem.costs[t].ravel()) / (self.problem.scale or 1.0))

    def finish(self) -> tuple[float, float, float]:
        """Return the distance for V_0 and its bounds, (value, lower, upper)."""
        problem, start = self.problem, self._start
        level, scale = self.levels[0], problem.scale
        value, solved, price, slack = start.value(level.table)
        below = level.excess + price + slack if solved else np.inf
        lower, upper = problem.bounded(scale * (value - below), scale * (value + level.short + slack))
        return min(max(scale * value, lower), upper) + 0.0, lower, upper

    # --- trees -----------------------------------------------------------------------------------------------------

    def fresh(self, t: int, W: Array, threads: int | None = None, listed: Integers | None = None) -> Transports:
        """Return the unsolved transports of step t, for the `listed` pairs only if given."""
        x, y = self.problem.rows(t)
        n_y = self.problem.shape_at(t + 1)[1]
        items = Items.of(x, y, n_y, sort_keys(W.reshape(-1, n_y)))
        return Transports(items._replace(listed=self.listed[t] if listed is None else listed), threads)

    def transports(self, t: int) -> Transports:
        """Return the solved transports of step t."""
        self._check(t)
        kept = self.steps[t]
        return self._solved(t, None) if kept is None else kept

    def _solved(self, t: int, listed: Integers | None) -> Transports:
        W = self.levels[t + 1].table
        transports = self.fresh(t, W, listed=listed)
        transports.solve(W, np.empty(transports.size), PRICE)
        return transports

    def _item(self, x: int, y: int, t: int) -> tuple[Transports, int]:
        """Return the solved transport of a pair: the list that contains it, and its index there."""
        self._check(t)
        z, listed = x * self.problem.shape_at(t)[1] + y, self.listed[t]
        k = int(np.searchsorted(listed, z)) if listed.size else z
        if listed.size and (k == listed.size or listed[k] != z):
            raise InvalidArgument(
                f"pair ({x}, {y}) cannot be reached at time {t} and was not solved; use Exact(reachable=False)"
            )
        kept = self.steps[t]
        return (self._solved(t, np.array([z])), 0) if kept is None else (kept, k)

    def _check(self, t: int) -> None:
        """Raise if time t is not solved."""
        if t < self.first:
            raise InvalidArgument(
                f"time {t} is not solved, because the run stopped at time {self.first}; continue it with warm=result"
            )

    # --- values, plans, potentials and laws ------------------------------------------------------------------------

    def values_at(self, t: int) -> Array:
        """Return V_t in the units of the cost; NaN where it is not solved."""
        level, shape, listed = self.levels[t], self.problem.shape_at(t), self.listed[t]
        if level is None:
            return frozen(np.full(shape, np.nan))
        table = self.problem.scale * level.table
        if listed.size:
            hide_others(table, listed)
        return frozen(table.reshape(shape))

    @property
    def values(self) -> Array:
        return self.values_at(0)

    @lazy
    def table_bounds(self) -> tuple[Array, Array]:
        """Bounds on V_0, within rounding; a table from a file is solved again."""
        level, problem = self.levels[0], self.problem
        if level is None:
            return self.values, self.values
        if not level.short < np.inf:
            level = solve(problem, Exact(reachable=self.reachable)).coupling.levels[0]
        low, high = problem.scale * (level.table - level.excess), problem.scale * (level.table + level.short)
        return enclosing(self.values, low, high, problem.bounded(-np.inf, np.inf))

    @property
    def start(self) -> StartCoupling:
        self._check(0)
        return self._start.solution(self.levels[0].table, self.complete)

    def plan(self, x: int, y: int, time: int = 0) -> sparse.coo_array:
        transports, k = self._item(x, y, time)
        return plan_of(transports, k, self.problem.shape_at(time + 1))

    def potentials(self, x: int, y: int, time: int = 0) -> tuple[Array, Array]:
        (transports, k), table = self._item(x, y, time), self.levels[time + 1].table
        f, g = potentials_of(transports, k, table, self.problem.shape_at(time + 1), self.complete)
        return self.problem.scale * f, self.problem.scale * g

    @lazy
    def laws(self) -> list[Array]:
        """The law of the pair at each time under the optimal coupling: m_0 of the starts, m_{t+1} = Π_tᵀ m_t."""
        self._check(0)
        m = self._start.law()
        laws = [frozen(m.reshape(self.problem.shape))]
        for t in range(self.problem.n_steps):
            transports, shape = self.transports(t), self.problem.shape_at(t + 1)
            listed, trees = transports.items.listed, transports.trees
            mass = np.repeat(m[listed] if listed.size else m, np.diff(trees.at)) * trees.flow
            m = np.asarray(np.bincount(transports.targets(), weights=mass, minlength=shape[0] * shape[1]))
            m = m / m.sum()
            laws.append(frozen(m.reshape(shape)))
        return laws

    def occupancy(self) -> Array:
        raise InvalidArgument("a finite horizon has a law of pairs for every time; use occupancy_at(time)")

    def step_potentials(self, t: int, everywhere: bool) -> tuple[Array, Array]:
        """Return Σ_y m_t(x,y) f_xy and Σ_x m_t(x,y) g_xy of step t, by row and state or by stored entry."""
        transports, listed, m = self.transports(t), self.listed[t], self.laws[t].ravel()
        now, after = self.problem.shape_at(t), self.problem.shape_at(t + 1)
        shapes = ((now[0], after[0]), (now[1], after[1])) if everywhere else None
        by_x, by_y = transports.weighted_potentials(
            self.levels[t + 1].table, m[listed] if listed.size else m.copy(), shapes
        )
        return self.problem.scale * by_x, self.problem.scale * by_y

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        """Return the sums over all steps for time-homogeneous chains, weighted by the law at each time instead of m."""
        if everywhere and not self.complete:
            raise InvalidArgument("potentials off the supports need all pairs; use Exact(reachable=False)")
        parts = [self.step_potentials(t, everywhere) for t in range(self.problem.n_steps)]
        by_x, by_y = (sum(side[1:], start=side[0]) for side in zip(*parts, strict=True))
        return self._by_transition(by_x, by_y, everywhere)

    # --- on disk ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        first = self.first
        steps = [step for step in self.steps[first:] if step is not None]
        kept = len(steps) == len(self.steps) - first
        state = {
            "reachable": np.array(self.reachable), "first": np.array(first), "kept": np.array(kept),
            "tables": np.concatenate([level.table for level in self.levels[first:]]),
            **self._start.state(),
        }  # fmt: skip
        if kept and steps:
            parts = zip(*(step.trees[1:] for step in steps), strict=True)
            child, parent, flow = (np.concatenate(part) for part in parts)
            state |= {"child": child.astype(np.int32), "parent": parent.astype(np.int32), "flow": flow}
        return state

    @classmethod
    def restore(cls, problem: FiniteHorizon, arrays: Mapping[str, NDArray[Any]]) -> "HorizonCoupling":
        """Rebuild from the arrays of :meth:`state`, which are fully checked."""
        T = problem.n_steps
        coupling = cls(problem, bool(numbers(arrays, "reachable", (), np.bool_)))
        first = int(numbers(arrays, "first", (), np.int64, least=0, most=T))
        sizes = [int(np.prod(problem.shape_at(t))) for t in range(first, T + 1)]
        tables = np.split(numbers(arrays, "tables", (sum(sizes),), least=0.0, most=1.1), np.cumsum(sizes)[:-1])
        for t, table in enumerate(tables, first):
            coupling.levels[t] = Level(table.copy(), np.inf, np.inf)  # bounds from a file are not trusted
        if first < T and numbers(arrays, "kept", (), np.bool_):
            coupling._restore_trees(arrays)
        if first == 0:
            start = coupling._start = StartTransport.restore(problem, arrays)
            start.value(coupling.levels[0].table)
        return coupling

    def _restore_trees(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the trees of all steps from their concatenation."""
        steps = {t: self.fresh(t, self.levels[t + 1].table) for t in range(self.first, self.problem.n_steps)}
        total, at = sum(step.edges for step in steps.values()), 0
        child, parent = (numbers(arrays, name, (total,), np.int32, least=0) for name in ("child", "parent"))
        flow = numbers(arrays, "flow", (total,), least=0.0)
        for t, step in steps.items():
            mine, index = slice(at, at + step.edges), step.trees.child.dtype
            parts = {"child": child[mine].astype(index), "parent": parent[mine].astype(index), "flow": flow[mine]}
            if max(child[mine].max(), parent[mine].max()) >= step.nodes:
                raise InvalidData(f"the edges of time {t} are no spanning tree; the file is damaged")
            k, what = unfit(step, parts, "", True)
            if what:
                raise InvalidData(f"the {what.split()[0]} of item {k} of time {t} {what.partition(' ')[2]}")
            self.steps[t], at = fill_trees(step, parts), at + step.edges

    def check_bounds(self, result: DistanceResult, cells: float) -> DistanceResult | None:
        """Solve again and return that result; raise if bounds and tables are wrong.

        If all sweeps together visit more than `cells` cells, None is returned.
        """
        problem = self.problem
        if result.upper > problem.bounded(0.0, np.inf)[1]:
            raise InvalidData(f"upper is {result.upper!r}, above all costs")
        rows = [problem.rows(t) for t in range(problem.n_steps)]
        if sum(x.indices.size * y.indices.size for x, y in rows) > cells:
            return None
        again: Any = solve(problem, Exact(reachable=self.reachable, threads=1))
        if result.lower > again.upper or result.upper < again.lower:
            raise InvalidData(
                f"the distance is from {again.lower:.17g} to {again.upper:.17g}, not from lower = {result.lower!r} to "
                f"upper = {result.upper!r}"
            )
        for t in range(self.first, problem.n_steps + 1):
            if not np.allclose(self.levels[t].table, again.coupling.levels[t].table, rtol=0.0, atol=1e-9):
                raise InvalidData(f"the table of time {t} is not that of these processes; the file is damaged")
        return again  # type: ignore[no-any-return]
