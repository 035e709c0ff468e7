"""Which rows and initial distributions make two chains on the same states differ, to first order and along a path.

*First order.* The distance between a chain and itself is zero, and it has a kink there. Let U₀ be the table of the mean
chain P̄ against itself and ρ its occupancy. For two chains close to it,

    d ≈ L = OT_{U₀}(ν_X, ν_Y) + γ/(1-γ) Σ_x ρ_x W_x,        W_x = OT_{U₀}(P_X(x), P_Y(x)),

so row x contributes γ/(1-γ) ρ_x W_x; the initial distribution counts as one more row. If the cost is a pseudometric, so
is U₀: mass that both rows have in common then stays in place, and only their difference is transported.

*Integrated gradient.* Along X_t = (1-t) X + t Y the distance to Y decreases from d to zero, and

    d = ∫₀¹ Σ_xx' (P_X - P_Y)(x'|x) ∂d(X_t, Y)/∂P_X(x'|x) dt + the same for the initial distributions

attributes a part to every single transition. The integral is computed by Gauss–Legendre quadrature. The distance has
kinks along the path, so the sum differs from d by the reported ``error`` and is then scaled to d. Rows of the gradient
are centered under X_t, which affects single entries but not the sums over rows.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.problem import Array, Problem
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.pairs import sort_keys
from diffbisim.solvers.exact.transports import Items, Transports
from diffbisim.stochastic import Successors

#: Entries of two rows that differ by less count as equal.
EQUAL = 1e-14

#: Reduced costs above minus this count as zero, for tables scaled to one.
PRICE = 1e-12

Integers = NDArray[np.int64]


class Cells(NamedTuple):
    """K transitions in R rows; row r belongs to ``states[r]``, which is n for the initial distribution."""

    states: Integers  # (R,)
    first: Integers  # (R,) the first cell of the row
    targets: Integers  # (K,)

    @classmethod
    def of(cls, sources: Integers, targets: Integers) -> "Cells":
        """Return the cells with these sources, in ascending order, and targets."""
        states, first = np.unique(sources, return_index=True)
        return cls(states, first, targets)

    @property
    def rows(self) -> Integers:
        """The row of every cell, (K,)."""
        return np.repeat(np.arange(self.first.size), np.diff(self.first, append=self.targets.size))


class Causes(NamedTuple):
    """First-order contribution of each row to the distance; the initial distribution is the row of state n."""

    states: Integers  # (R,)
    apart: Array  # (R,) W_x
    size: Array  # (R,) γ/(1-γ) ρ_x W_x; W itself for the initial distribution


class Path(NamedTuple):
    """Contributions of single transitions and initial probabilities, integrated along the path from X to Y."""

    transitions: Array | sparse.csr_array  # (n, n)
    starts: Array  # (n,)
    error: float  # difference between the sum and the distance before scaling


def row_distances(table: Array, cells: Cells, difference: Array) -> Array:
    """Return W (B, R), the transport costs between differing rows under the pseudometric `table` (n, n).

    `difference` (B, K) holds B versions of P_X - P_Y on the cells; entries at the level of rounding are set to zero in
    place.
    """
    shape = len(difference), cells.first.size
    difference[np.abs(difference) < EQUAL] = 0.0
    scale = float(table.max(initial=0.0))
    out = np.zeros(shape)
    if not scale > 0:
        return out
    has_mass = [np.logical_or.reduceat(side > 0.0, cells.first, axis=1) for side in (difference, -difference)]
    rows = np.flatnonzero(has_mass[0] & has_mass[1])
    if not rows.size:
        return out
    W = np.ascontiguousarray(table / scale)
    x, y = (_entries(cells, rows, side) for side in (difference, -difference))
    items = Items.of(x, y, len(table), sort_keys(W))._replace(listed=np.arange(rows.size) * (rows.size + 1))
    values = np.empty(rows.size)
    Transports(items).solve(W.ravel(), values, PRICE)
    out.ravel()[rows] = scale * values
    return out


def _entries(cells: Cells, rows: Integers, side: Array) -> Successors:
    """Return the positive entries of these rows, which are numbered through all B versions."""
    at = np.flatnonzero(side > 0.0)
    version, cell = np.divmod(at, cells.targets.size)
    row = version * cells.first.size + cells.rows[cell]
    number = np.searchsorted(rows, row)
    kept = rows[np.minimum(number, rows.size - 1)] == row
    indptr = np.concatenate([[0], np.cumsum(np.bincount(number[kept], minlength=rows.size))])
    return Successors.frozen(indptr, cells.targets[cell[kept]], side.ravel()[at[kept]])


def first_order(problem: Problem) -> Causes:
    """Return the first-order contributions for chains with the same states and a pseudometric cost."""
    X, Y, γ = problem.x, problem.y, problem.discount
    apart = sparse.csr_array(X.transition) - sparse.csr_array(Y.transition)
    middle = MarkovChain(
        sparse.csr_array((sparse.csr_array(X.transition) + sparse.csr_array(Y.transition)) / 2)
        if problem.is_sparse else (X.transition + Y.transition) / 2,
        initial=(X.initial + Y.initial) / 2,
    )  # fmt: skip
    start = np.flatnonzero(X.initial != Y.initial)
    moves = apart.tocoo()
    order = np.argsort(moves.coords[0], kind="stable")
    n = X.n_states
    cells = Cells.of(
        np.append(moves.coords[0][order], np.full(start.size, n)), np.append(moves.coords[1][order], start)
    )
    if not cells.targets.size:
        return Causes(cells.states, np.empty(0), np.empty(0))
    U = Exact().solve(replace(problem, x=middle, y=middle)).values
    W = row_distances(U, cells, np.append(moves.data[order], (X.initial - Y.initial)[start])[None, :])[0]
    weights = np.append(γ / (1 - γ) * middle.occupancy(γ), 1.0)
    return Causes(cells.states, W, weights[cells.states] * W)


def integrated_gradient(problem: Problem, value: float, nodes: int) -> Path:
    """Return the integrated gradient for chains with the same states and zero cost between equal states."""
    X, Y = problem.x, problem.y
    P, Q = X.transition, Y.transition
    if problem.is_sparse:
        P, Q = sparse.csr_array(P), sparse.csr_array(Q)
    moved, started = P - Q, X.initial - Y.initial
    transitions: Any = 0.0 * moved
    starts, solver, last = np.zeros(X.n_states), Exact(), None
    at, weights = np.polynomial.legendre.leggauss(nodes)
    for t, w in zip((1 + at) / 2, weights / 2, strict=True):
        between = MarkovChain((1 - t) * P + t * Q, initial=(1 - t) * X.initial + t * Y.initial)
        last = solver.solve(replace(problem, x=between), warm=last)
        slope = last.gradient
        transitions = transitions + w * (moved * slope.transition_x)
        starts += w * np.where(started == 0.0, 0.0, started * slope.initial_x)
    total = float(transitions.sum() + starts.sum())
    scale = value / total if total > 0 else 1.0
    return Path(scale * transitions, scale * starts, abs(total - value))


def pseudometric(cost: Array) -> bool:
    """Return whether a cost is symmetric, zero on the diagonal, and satisfies the triangle inequality."""
    return cost.shape[0] == cost.shape[1] and bool(np.abs(within(cost) - cost).max() <= 1e-9 * cost.max(initial=0.0))


def within(cost: Array) -> Array:
    """Return max_y |c(x,y) - c(x',y)|, the smallest cost on X compatible with c; for a pseudometric, c itself."""
    gap = np.zeros((len(cost), len(cost)))
    for column in cost.T:
        np.maximum(gap, np.abs(np.subtract.outer(column, column)), out=gap)
    return gap
