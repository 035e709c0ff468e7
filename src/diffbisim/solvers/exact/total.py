"""The least total cost of two chains until a terminal pair is reached, to a certified gap.

    V = T V := c + OT_V  outside the terminal pairs Z,        V = 0 on Z,        d = OT_V(ν_X, ν_Y)

*Conditions.* Let R be the pairs of two recurrent states (undiscounted.py) that are not terminal; all other pairs
outside Z are left almost surely under any coupling. V is finite and the unique solution if

    Z can be reached from every pair by possible transitions (the independent coupling then gets there), and c > 0 on R

(staying in R forever has infinite cost). If both chains are absorbed and Z contains all pairs where they may end, R is
empty; if Z is the diagonal and c = 1 elsewhere, V is the least expected meeting time. All other problems are refused:
if Z cannot be reached, the total is infinite, and if c = 0 somewhere on R, a coupling may stay there at no cost and
never end.

*Certificate.* Let w be the separable function of undiscounted.py, with Π w = w - k for all plans; k > 0 outside R. For
any table W ≥ 0 that is zero on Z, with Δ = T W - W, and numbers λ > 0 and δ, the table h = λ W + δ w satisfies

    T h - h = λ T W + (1-λ) c + δ (w - k) - h = λ Δ + (1-λ) c - δ k        (on Z it has the sign of δ)

with "≤" if plans are chosen for T W, because OT_h = λ OT_W + δ (w - k). So

    T h ≤ h    for  λ = 1/(1-ρ), ρ = max_R Δ/c < 1,    δ = max (λΔ - (λ-1)c)/k    (at least 0, outside R):    V ≤ h
    T h ≥ h    for  λ = 1/(1+ρ), ρ = max_R -Δ/c,      -δ = max (-λΔ - (1-λ)c)/k                               V ≥ h

The first holds because its plans cost at most h and therefore end; the second because a coupling that ends costs at
least h, and one that does not has infinite cost. Since w is separable,
OT_h(ν_X, ν_Y) = λ OT_W(ν_X, ν_Y) + δ w(ν_X, ν_Y).

*Policy iteration* uses the steps of undiscounted.py. If R is not empty, it starts with the cost of the independent
coupling, so that T W ≤ W: plans that improve on a policy that ends also end, and the upper bound is finite from the
first sweep on.

*Gradient.* With m the expected visits of the best coupling, d = <m, c> and ∂d/∂P_X(x'|x) = Σ_y m(x,y) f_xy(x').

*Rounding.* As in average.py, Δ is known up to η, and up to η + p from below, and both enter wherever Δ does.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, frozen, lazy
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.common.stopping import engine_run
from diffbisim.io.arrays import numbers
from diffbisim.problems.total import Total
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import DistanceResult, HistoryRow, check_warm
from diffbisim.solvers.base import Callback, Check, SolverRun, finish
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import PRICE, ExactCoupling, StartTransport, enclosing, hide_others, restore_trees
from diffbisim.solvers.exact.pairs import begin_with, first_pairs, pair_items, pair_successors, reached
from diffbisim.solvers.exact.transports import EPS, Transports
from diffbisim.solvers.exact.undiscounted import (
    LOOSE,
    Equation,
    Integers,
    Leaving,
    Mask,
    Recurrence,
    first_bias,
    known_by,
    leaving_chain,
    scaled_cost,
    settled,
)

#: Sufficient residual of the independent coupling's cost, relative to the least cost of a step.
SUFFICIENT_RESIDUAL = 0.05


def solve(
    problem: Total, options: Exact, warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult:
    """Run policy iteration to the certified gap, relative to the largest cost or total, whichever is larger."""
    run = TotalCost(problem, options, warm)
    return finish(DistanceResult, run, problem, options, callback)


# --- the pairs -------------------------------------------------------------------------------------------------------


def costly_pairs(problem: Total, reachable: bool) -> Integers:
    """Return the flat pairs that are not terminal, or, if `reachable`, those that the starts reach before they end.

    If both chains start at a terminal pair, all nonterminal pairs are returned.
    """
    terminal = problem.terminal.ravel()
    if reachable:
        seen = terminal.copy()
        first = first_pairs(problem)
        first = first[~terminal[first]]
        found = reached(pair_successors(problem.x.successors, problem.y.successors), seen, first)
        if found.size:
            return found
    return np.flatnonzero(~terminal)


def check_finite(problem: Total, pairs: Integers, recurring: Mask) -> None:
    """Raise if the total is infinite or not unique; `recurring` (K,) marks the pairs of R."""
    n_y = problem.shape[1]
    if not recurring.any():
        return
    free = pairs[recurring & (problem.cost.ravel()[pairs] == 0)]
    if free.size:
        raise InvalidArgument(
            f"pair {divmod(int(free[0]), n_y)} is recurrent, costs nothing and is not terminal ({free.size} such "
            "pairs), so the total cost is not unique; add these pairs to terminal=, or give them a cost"
        )
    backward = [Successors.of(sparse.csr_array(chain.successors.matrix.T)) for chain in (problem.x, problem.y)]
    seen = np.zeros(problem.cost.size, bool)
    reached(pair_successors(backward[0], backward[1]), seen, np.flatnonzero(problem.terminal.ravel()))
    stuck = pairs[~seen[pairs]]
    if stuck.size:
        raise InvalidArgument(
            f"from pair {divmod(int(stuck[0]), n_y)} no terminal pair can be reached ({stuck.size} such pairs), so the "
            "total cost is infinite; add terminal pairs with terminal=, use Exact(reachable=True) if the starts do not "
            "lead there, or use criterion='average'"
        )


# --- the run ---------------------------------------------------------------------------------------------------------


class Band(NamedTuple):
    """The bounds λ_l W + δ_l w ≤ V ≤ λ_u W + δ_u w."""

    lower: tuple[float, float]
    upper: tuple[float, float]


class TotalCost(SolverRun):
    """One solve: the table V of pairs that are not terminal."""

    def __init__(self, problem: Total, options: Exact, warm: DistanceResult | None = None) -> None:
        self.problem = problem
        if warm is not None:
            check_warm(warm, problem.shape)
        pairs = costly_pairs(problem, options.reachable)
        x, y = (Recurrence.of(chain).recurrent for chain in (problem.x, problem.y))
        self.recurring = np.logical_and.outer(x, y).ravel()[pairs]
        check_finite(problem, pairs, self.recurring)
        self.leaving = Leaving.of(problem, (x, y), pairs)
        items = pair_items(problem, False)._replace(listed=pairs)
        known = warm.coupling.transports if warm is not None and isinstance(warm.coupling, ExactCoupling) else None
        cost, V = scaled_cost(problem)[pairs], np.zeros(problem.cost.size)
        self.equation = Equation(begin_with(items, options.threads, known), cost, V, True, problem.blur)
        self.least = float(cost[self.recurring].min()) if self.recurring.any() else np.inf
        self.start, self.best = StartTransport(problem), (0.0, np.inf)
        if warm is not None:
            V[pairs] = np.maximum(first_bias(warm, problem)[pairs], cost)
        else:
            self._begin()

    def _begin(self) -> None:
        """Start with the cost of the independent coupling if a coupling might not end, else with that of one step."""
        equation, cost = self.equation, self.equation.cost
        first = independent_cost(self.problem, equation, self.least) if self.recurring.any() else cost
        equation.W[equation.pairs] = np.maximum(first, cost)

    @property
    def work(self) -> dict[str, int]:
        """Counts of the work so far."""
        return self.equation.work

    def improve(self, iteration: int) -> None:
        """Compute optimal plans for V, and bounds on the fixed point."""
        self.equation.improve()
        self.band = self._band()
        if iteration == 1 and self.band.upper[0] == np.inf:  # the warm start gives no upper bound
            self._begin()
            self.equation.improve()
            self.band = self._band()

    def _band(self) -> Band:
        """Return λ and δ of both bounds, or (0, 0) and (∞, 0) if nothing is known."""
        e, nothing = self.equation, Band((0.0, 0.0), (np.inf, 0.0))
        if not e.solved:
            return nothing
        inside, cost, fall = self.recurring, e.cost, self.leaving.fall
        high, low = e.change + e.error, e.below - e.change
        with np.errstate(all="ignore"):
            above = max(0.0, float((high[inside] / cost[inside]).max(initial=0.0)) * (1 + 4 * EPS))
            under = max(0.0, float((low[inside] / cost[inside]).max(initial=0.0)) * (1 + 4 * EPS))
            up = (1 + 4 * EPS) / (1 - above) if above < 1 and inside.any() else np.inf if inside.any() else 1.0
            down = (1 - 4 * EPS) / (1 + under) if inside.any() else 1.0
            out = ~inside
            rise = _most(up * high[out] - (up - 1) * cost[out], fall[out])
            drop = _most(down * low[out] - (1 - down) * cost[out], fall[out])
        return Band((down, -drop), (up, rise)) if np.isfinite(up) else nothing._replace(lower=(down, -drop))

    def check(self, iteration: int) -> Check:
        """Compute the distance for the table, and the best bounds so far."""
        start, scale, size, time = self.start, self.problem.scale, self.equation.size, self.leaving.time
        table = self.equation.W.reshape(self.problem.shape)[np.ix_(start.rows, start.cols)]
        value, solved, price, rounding = start.value(self.equation.W, PRICE * size)
        slack = rounding + self.problem.blur * max(float(table.max()), 0.0)
        with np.errstate(all="ignore"):
            low = self.band.lower[0] * (value - price - slack) + self.band.lower[1] * time
            high = self.band.upper[0] * (value + slack) + self.band.upper[1] * time
        low = low if solved and np.isfinite(low) else 0.0
        high = high if np.isfinite(high) else np.inf
        lower, upper = np.nextafter(scale * low, -np.inf), np.nextafter(scale * high, np.inf)
        lower, upper = max(float(lower), self.best[0]), min(float(upper) if scale else 0.0, self.best[1])
        self.best = lower, upper
        value = min(max(scale * value, lower), upper) + 0.0
        row = HistoryRow({"value": value, "lower": lower, "upper": upper, **self.work})
        gap = (upper - lower) / (max(scale, value) or 1.0)
        return Check(row, max(gap, self._table_gap()), self._floor())

    def _table_gap(self) -> float:
        """Return the largest width of the band, relative to the largest total or cost."""
        (down, drop), (up, rise) = self.band
        largest = max(1.0, float(self.equation.W.max()))
        return (up - down) + (rise - drop) * self.leaving.longest / largest

    def _floor(self) -> float:
        """Return the smallest such width that rounding allows."""
        e, (fall, _, _, longest) = self.equation, self.leaving
        slowest, largest = float(fall[~self.recurring].min(initial=np.inf)), max(1.0, float(e.W.max()))
        return 4 * EPS + 4 * e.error * (1 / self.least + longest / largest / slowest) if slowest > 0 else np.inf

    def evaluate(self) -> None:
        """Compute the next table, which is at least the cost of one step."""
        e = self.equation
        change = float(np.abs(e.change).max())
        price = min(max(PRICE * e.size, LOOSE * change), 0.01 * self.least)
        e.newton(0.0, change, price)
        e.W[e.pairs] = np.maximum(e.W[e.pairs], e.cost)

    def table_bounds(self) -> tuple[Array, Array]:
        """Return bounds on the values of all pairs, flat: zero at terminal pairs, the band elsewhere."""
        low, high = np.zeros(self.equation.W.size), np.zeros(self.equation.W.size)
        V, pairs, times = self.equation.W[self.equation.pairs], self.equation.pairs, self.leaving.times
        with np.errstate(all="ignore"):
            low[pairs] = (1 - 8 * EPS) * self.band.lower[0] * V + (1 + 8 * EPS) * self.band.lower[1] * times
            high[pairs] = (1 + 8 * EPS) * (self.band.upper[0] * V + self.band.upper[1] * times)
        return np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=np.inf, posinf=np.inf)

    def hurry(self) -> None:
        self.equation.price = np.inf

    def coupling(self) -> "TotalCoupling":
        """Return the coupling at the end."""
        return TotalCoupling(self.problem, self.equation.transports, self.equation.W, self.start, 0.0)


def _most(off: Array, fall: Array) -> float:
    """Return max(off / fall), at least zero."""
    return float(np.where(off <= 0, 0.0, np.where(fall > 0, off / fall, np.inf)).max(initial=0.0)) * (1 + 4 * EPS)


def independent_cost(problem: Total, equation: Equation, least: float) -> Array:
    """Return the cost of moving independently until the end, (K,): V = c + P_X V P_Yᵀ at the listed pairs."""
    x, y, V = problem.x.successors, problem.y.successors, equation.cost.copy()
    run, listed = engine_run(equation.transports.threads), equation.transports.items.listed
    residual, products = _engine.solve_independent(
        x, y, listed, 1.0, equation.cost, V, SUFFICIENT_RESIDUAL * least, 500, run
    )
    equation.products += products
    return V if residual <= 0.5 * least else equation.cost


class TotalCoupling(ExactCoupling):
    """Plans, potentials and visits from optimal trees and the table V (flat, scaled, zero at terminal pairs)."""

    problem: Total

    def __init__(self, problem: Total, transports: Transports, U: Array, start: StartTransport, gap: float) -> None:
        super().__init__(problem, transports, U, start, gap)
        self.complete = transports.size == np.count_nonzero(~problem.terminal)

    @classmethod
    def of_table(cls, problem: Total, values: Array) -> Self:  # type: ignore[override]
        """Return the optimal trees for a given table (one sweep); NaN marks unreachable pairs."""
        pairs = costly_pairs(problem, bool(np.isnan(values).any()))
        transports = Transports(pair_items(problem, False)._replace(listed=pairs))
        V, start = np.nan_to_num(values.ravel() / (problem.scale or 1.0)), StartTransport(problem)
        price = PRICE * max(1.0, float(V.max()))
        transports.solve(V, np.empty(transports.size), price)
        start.value(V, price)
        return cls(problem, transports, V, start, 0.0)

    @classmethod
    def restore(cls, problem: Total, arrays: Mapping[str, NDArray[Any]]) -> Self:  # type: ignore[override]
        """Rebuild from the arrays of :meth:`state`; its pairs are all nonterminal ones, or the reachable ones."""
        V = numbers(arrays, "U", (problem.cost.size,), least=0.0)
        pairs = arrays.get("pair")
        if pairs is None or not any(np.array_equal(pairs, costly_pairs(problem, within)) for within in (False, True)):
            raise InvalidData("array 'pair' does not list the pairs that are not terminal; the file is damaged")
        items = pair_items(problem, False)._replace(listed=np.array(pairs, np.int64))
        transports = restore_trees(Transports(items), arrays, problem.shape[1])
        start = StartTransport.restore(problem, arrays)
        start.value(V, PRICE * max(1.0, float(V.max())))
        return cls(problem, transports, np.array(V), start, 0.0)

    @lazy
    def values(self) -> Array:
        """V, of shape (n_X, n_Y)."""
        table = self.problem.scale * self.U
        if not self.complete:
            hide_others(table, np.flatnonzero(self.problem.terminal), self.transports.items.listed)
        return frozen(table.reshape(self.problem.shape))

    @lazy
    def table_bounds(self) -> tuple[Array, Array]:
        """Bounds from one sweep over the table."""
        problem, options = self.problem, Exact(reachable=not self.complete, threads=self.transports.threads)
        run = TotalCost(problem, options, known_by(self))
        run.improve(1)
        low, high = (problem.scale * table for table in run.table_bounds())
        return enclosing(self.values, low, high, (0.0, np.inf))

    def _item(self, x: int, y: int) -> int:
        if self.problem.terminal[x, y]:
            raise InvalidArgument(f"pair ({x}, {y}) is terminal, so it has no plan; choose another pair")
        return super()._item(x, y)

    def occupancy(self) -> Array:
        """Return the expected visits m = m_0 + Πᵀ m of nonterminal pairs; <m, c> = d."""
        listed, m = self.transports.items.listed, self._start.law()
        source = np.append(m[listed], 0.0)
        m[:] = 0.0
        m[listed] = settled(leaving_chain(self.transports, m.size, 1.0), source, source)[:-1]
        return m.reshape(self.problem.shape)
