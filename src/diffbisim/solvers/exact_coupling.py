"""What the exact solver knows at the end: one optimal tree per pair, read out when asked.

``U`` is kept flat and scaled by the largest ground cost; everything that leaves this module is in the user's units.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.errors import ConvergenceWarning, InvalidArgument, warn
from diffbisim.problem import Array, Coupling, Problem, Start, frozen, lazy, on_support
from diffbisim.solvers import kernels
from diffbisim.solvers.exact import EPS, PRICE, sweep
from diffbisim.solvers.krylov import Compiled, Operator, apply, bicgstab
from diffbisim.solvers.pairs import CHUNK, STRETCH, PairGrid
from diffbisim.solvers.restoring import check_exact
from diffbisim.solvers.start import Transport

#: What is kept of the transport between the starts.
START = ("child", "parent", "flow")


class ExactCoupling(Coupling):
    """Plans, potentials and occupancies from the trees of a :class:`PairGrid` and its table ``U`` (flat, scaled)."""

    #: Whether no flow is negative: the trees are plans.
    feasible = True

    def __init__(self, grid: PairGrid, U: Array) -> None:
        self.grid, self.U, self.problem = grid, U, grid.problem
        self._rows, self._cols = (
            np.flatnonzero(self.problem.x.initial),
            np.flatnonzero(self.problem.y.initial),
        )
        self._cells = self._rows[:, None] * grid.n_y + self._cols
        self._least = float(self.problem.cost.min())
        self.complete, self.gap = not grid.pair.size, 0.0
        self._start = Transport(self.problem.x.initial[self._rows], self.problem.y.initial[self._cols])

    @classmethod
    def of_table(cls, problem: Problem, values: Array) -> "ExactCoupling":
        """The optimal trees for a given table (one sweep); NaN marks pairs out of reach."""
        grid = PairGrid(problem, reachable=bool(np.isnan(values).any()))
        table = values.ravel() / grid.scale
        coupling = cls(grid, np.where(np.isnan(table), grid.c, table))
        grid.improve(coupling.U, np.empty_like(coupling.U), PRICE)
        coupling.report(0.0)
        return coupling

    @classmethod
    def restore(cls, problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse of :meth:`state`. Which pairs are listed follows from the problem; the file must say the same."""
        check_exact(problem, arrays, cls.feasible)
        grid = PairGrid(problem, reachable=arrays["pair"].size > 0)
        grid.child, grid.parent, grid.flow, grid.fresh = arrays["child"], arrays["parent"], arrays["flow"], 0
        coupling = cls(grid, arrays["U"])
        for name in START:
            getattr(coupling._start, name)[:] = arrays[f"start.{name}"]
        coupling.report(0.0)
        return coupling

    def report(self, half_gap: float) -> dict[str, float]:
        """A row of history: the distance for the current table (known up to ``half_gap``) and its bounds."""
        table, scale = self.U[self._cells], self.problem.scale
        value = self._start.solve(table, PRICE)
        slack = self._start.slack * (max(float(table.max()), 0.0) + 2 * max(-float(table.min()), 0.0))
        self.gap = (
            2 * (half_gap + slack) + self._start.price + 4 * EPS
        )  # of the scaled bounds, roundings of their ends included
        lower, upper = self._least, scale  # d is an average of costs
        if half_gap < np.inf:
            upper = min(_outward(scale * (value + half_gap + slack), np.inf), upper)
            if self._start.solved:
                lower = max(_outward(scale * (value - self._start.price - half_gap - slack), -np.inf), lower)
        work = {k: float(v) for k, v in self.grid.work.items()}
        return {"value": min(max(scale * value, lower), upper) + 0.0, "lower": lower, "upper": upper, **work}

    @lazy
    def values(self) -> Array:
        scale = self.problem.scale
        table = np.clip(scale * np.minimum(self.U, 1.0), self._least, scale)
        if self.grid.pair.size:
            outside = np.ones(table.size, bool)
            outside[self.grid.pair] = False
            table[outside] = np.nan
        return frozen(table.reshape(self.problem.shape))

    @property
    def start(self) -> Start:
        i, j, mass = self._start.cells()
        plan = sparse.coo_array((mass.copy(), (self._rows[i], self._cols[j])), shape=self.problem.shape)
        f, g = self._start.potentials()
        table, scale = self.U.reshape(self.problem.shape), self.problem.scale
        full_f, full_g = np.full(table.shape[0], np.nan), np.full(table.shape[1], np.nan)
        if self.complete:  # off the supports: c-transforms
            full_f[:] = (table[:, self._cols] - g).min(axis=1)
            full_g[:] = (table[self._rows] - f[:, None]).min(axis=0)
        full_f[self._rows], full_g[self._cols] = f, g
        return Start(plan, scale * full_f, scale * full_g)

    def _edges(self, x: int, y: int) -> slice:
        """Where the tree of a pair lies."""
        k, pair = x * self.grid.n_y + y, self.grid.pair
        if pair.size:
            z, k = k, int(np.searchsorted(pair, k))
            if k == pair.size or pair[k] != z:
                raise InvalidArgument(
                    f"pair ({x}, {y}) cannot be reached from the starts and was not solved; use Exact(reachable=False)"
                )
        return slice(int(self.grid.at[k]), int(self.grid.at[k + 1]))

    def _successors(self, x: int, y: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        (x_ptr, x_idx), (y_ptr, y_idx) = self.grid.xs[:2], self.grid.ys[:2]
        return x_idx[x_ptr[x] : x_ptr[x + 1]], y_idx[y_ptr[y] : y_ptr[y + 1]]

    def plan(self, x: int, y: int) -> sparse.coo_array:
        grid, edges, (rows, cols) = self.grid, self._edges(x, y), self._successors(x, y)
        u, v = grid.child[edges].astype(np.int64), grid.parent[edges].astype(np.int64)
        i, j = np.minimum(u, v), np.maximum(u, v) - rows.size
        return sparse.coo_array((grid.flow[edges].copy(), (rows[i], cols[j])), shape=self.problem.shape)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        grid, edges = self.grid, self._edges(x, y)
        f, g = np.empty(grid.n_x), np.empty(grid.n_y)
        kernels.potentials(x, y, grid.n_y, grid.xs, grid.ys, grid.child[edges], grid.parent[edges], self.U, f, g)
        if not self.complete:  # off the supports a c-transform would need pairs that were not solved
            rows, cols = self._successors(x, y)
            f[~np.isin(np.arange(f.size), rows)] = np.nan
            g[~np.isin(np.arange(g.size), cols)] = np.nan
        return self.problem.scale * f, self.problem.scale * g

    def occupancy(self) -> Array:
        """m = (1-γ) m_0 + γ Πᵀ m, by the same Krylov method; exactly zero where the optimal coupling never goes."""
        grid, γ = self.grid, self.grid.discount
        i, j, mass = self._start.cells()
        source = np.zeros(self.U.size)
        source[self._cells[i, j]] = (1 - γ) * mass
        visited = self._visited(source > 0)
        accuracy = min(max(1e-3 * self.gap, 1e-13), 1e-9)  # three digits beyond the table's are enough,
        accuracy = accuracy if grid.size > 20_000 else 1e-13  # but on small grids full precision costs nothing
        m, target = source.copy(), max(accuracy * float(source.max()), 4 * EPS)  # m may have entries near one
        system = grid.system(transposed=True)
        if bicgstab(system, source, m, target, max_iterations=200) > 1e3 * target and not grid.preconditioned_solve(
            source, m, target, transposed=True
        ):
            np.copyto(m, source)
            sweep(system, source, m, min(5_000, int(np.log(accuracy) / np.log(γ))))
            self._warn_if_inaccurate(system, source, m)
        m[~visited] = 0.0
        np.maximum(m, 0.0, out=m)
        return np.asarray(m / m.sum()).reshape(self.problem.shape)

    def _visited(self, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The pairs ``(n_X*n_Y,)`` that the plans lead to from the first ones."""
        seen, queue, (places,) = first.copy(), np.empty(first.size, np.int64), np.nonzero(first)
        queue[: places.size] = places
        head, tail = 0, places.size
        while head < tail:
            head, tail = kernels.visited(*self.grid.tree, seen, queue, head, tail, STRETCH)
        return seen

    def _warn_if_inaccurate(self, system: Operator | Compiled, source: Array, m: Array) -> None:
        """The error in total is at most that of the equation over 1 - γ."""
        error = np.empty_like(m)
        apply(system, m, error)
        total = float(np.abs(error - source).sum()) / (1 - self.grid.discount)
        if total > 1e-6:
            warn(
                f"the occupancy of {self.grid.size} pairs is only accurate to {total:.1e} in total; "
                "use a smaller discount, lump=True or reachable=True",
                ConvergenceWarning,
                stacklevel=4,
            )

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        if everywhere and not self.complete:
            raise InvalidArgument("potentials off the supports need all pairs: use Exact(reachable=False)")
        grid, flat = self.grid, np.array(m, dtype=np.float64, order="C").ravel()
        kernel = kernels.sum_potentials if everywhere else kernels.sum_potentials_on_supports
        shapes = ((grid.n_x,) * 2, (grid.n_y,) * 2) if everywhere else (grid.xs[1].shape, grid.ys[1].shape)

        tree = grid.pair, grid.n_y, grid.xs, grid.ys, grid.at, grid.child, grid.parent

        def run(piece: int, lo: int, hi: int, stop: NDArray[np.bool_]) -> tuple[Array, Array]:
            parts = np.zeros(shapes[0]), np.zeros(shapes[1])
            for first, last in grid.stretches(lo, hi, grid.cells, stop):
                kernel(first, last, *tree, self.U, flat, *parts)
            return parts

        (by_x, by_y), *others = grid.split(run, grid.cells, pieces=min(grid.threads, 1 + int(grid.cells // CHUNK)))
        for x, y in others:
            by_x += x
            by_y += y
        by_x *= self.problem.scale
        by_y *= self.problem.scale
        if everywhere:
            return by_x, by_y
        return on_support(by_x, self.problem.x), on_support(by_y, self.problem.y)

    def state(self) -> dict[str, NDArray[Any]]:
        grid = self.grid
        trees = {"U": self.U, "child": grid.child, "parent": grid.parent, "flow": grid.flow, "pair": grid.pair}
        return trees | {f"start.{name}": getattr(self._start, name) for name in START}


def _outward(bound: float, to: float) -> float:
    """The next number on the way to plus or minus infinity: at least as far out as the bound without its rounding."""
    return float(np.nextafter(bound, to))
