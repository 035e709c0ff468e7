"""What the linear programs know beyond the number: plans, potentials, values and occupancies of all pairs.

The paper's program says nothing about pairs without occupancy, so the first question beyond the distance
solves the second program (linear_program.py). Its plans fill in where the first has no mass; the value of the
combined policy is ``values``; the potentials are made c-transforms of each other for those values, so that
they are feasible to the last digit.
"""

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.errors import ConvergenceWarning, warn
from diffbisim.problem import Coupling, Problem, Start, lazy
from diffbisim.solvers.certify import (
    at_targets,
    conditional,
    conjugate,
    dual_values,
    over_x,
    over_y,
    round_plans,
)
from diffbisim.solvers.lp_assembly import Grid
from diffbisim.solvers.lp_policy import evaluate, occupancy

Array = NDArray[np.float64]

#: The plans μ/m of the paper's program are kept where a pair has at least this occupancy: dividing by less
#: would magnify rounding, and the second program has all pairs.
VISITED = 1e-6


class AllPairs(Protocol):
    """What the coupling needs of the solver."""

    @property
    def tol(self) -> float: ...

    def solve_all_pairs(self, grid: Grid) -> tuple[Array, Array]: ...


@dataclass(frozen=True, eq=False)
class Solution:
    """What HiGHS found for the paper's program, in units of U and shaped."""

    mass: Array  # (E_X, E_Y): μ
    start: Array  # m_0 on the supports of the starts
    subsolution: Array  # (n_X, n_Y): (1-γ) Ṽ, up to HiGHS's tolerance a subsolution
    f: Array  # (E_X, n_Y): potentials of X for all pairs
    f_start: Array  # (k_X, 1): potential of the start of X
    iterations: int
    limit: bool  # stopped at a limit of time or iterations


class LinearProgramCoupling(Coupling):
    """Plans, potentials and values of all pairs: from the second program where the first has no mass."""

    def __init__(self, problem: Problem, grid: Grid, solution: Solution, solver: AllPairs) -> None:
        self.problem, self.grid, self.solution, self.solver = problem, grid, solution, solver

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {f.name: np.asarray(getattr(self.solution, f.name)) for f in fields(Solution)}
        plans, table, potentials = self._pairs
        return {**arrays, "values": self.values, "plans": plans, "table": table, "potentials": potentials}

    @classmethod
    def restore(cls, problem: Problem, state: dict[str, NDArray[Any]]) -> "LinearProgramCoupling":
        """From :meth:`state`: nothing is solved again."""
        from diffbisim.solvers.linear_program import LinearProgram

        arrays: dict[str, Any] = {f.name: state[f.name] for f in fields(Solution)}
        arrays |= {"iterations": int(arrays["iterations"]), "limit": bool(arrays["limit"])}
        coupling = cls(problem, Grid.of(problem), Solution(**arrays), LinearProgram())
        coupling.__dict__["_pairs"] = (state["plans"], state["table"], state["potentials"])
        return coupling

    @lazy
    def _pairs(self) -> tuple[Array, Array, Array]:
        """Plans ``A (E_X, E_Y)`` of all pairs, their value ``U (n_X, n_Y)``, ``f (E_X, n_Y)``; scaled."""
        grid, mass = self.grid, self.solution.mass
        ex, ey, γ = grid.ex, grid.ey, grid.discount
        μ, f = self.solver.solve_all_pairs(grid)
        visited = over_y(over_x(mass, ex), ey) > VISITED
        A = round_plans(conditional(np.where(visited[ex.source][:, ey.source], mass, μ), ex, ey), ex, ey)
        U = evaluate(A, grid, np.full(grid.cost.size, True))
        W = at_targets(U, ex, ey)
        f, g = conjugate(f, W, ex, ey)
        gap = float(np.max(U - (1 - γ) * grid.cost - γ * dual_values(f, g, ex, ey))) / (1 - γ)
        if gap > self.solver.tol * grid.cost.max():
            warn(
                f"the values of all pairs are certified to {np.ldexp(gap, grid.exponent):.1e}, more than "
                "tol: use solver='exact'",
                ConvergenceWarning,
                stacklevel=3,
            )
        return A, U, f

    @lazy
    def values(self) -> Array:
        return np.ldexp(self._pairs[1], self.grid.exponent)

    @lazy
    def start(self) -> Start:
        grid = self.grid
        plan = round_plans(self.solution.start, grid.sx, grid.sy)
        f = np.ldexp(self.solution.f_start[:, 0], grid.exponent)
        f, g = self._extended(f, grid.sx.target, grid.sy.target)
        return Start(_sparse_plan(plan, grid.sx.target, grid.sy.target, self.problem.shape), f, g)

    def plan(self, x: int, y: int) -> sparse.coo_array:
        rows, columns = self._block(x, y)
        targets = self.grid.ex.target[rows], self.grid.ey.target[columns]
        return _sparse_plan(self._pairs[0][rows, columns], *targets, self.problem.shape)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        rows, columns = self._block(x, y)
        f = np.ldexp(self._pairs[2][rows, y], self.grid.exponent)
        return self._extended(f, self.grid.ex.target[rows], self.grid.ey.target[columns])

    def occupancy(self) -> Array:
        """``m = (1-γ) m_0 + γ Π^T m`` on the pairs that the start can reach."""
        start = round_plans(self.solution.start, self.grid.sx, self.grid.sy)
        return occupancy(self._pairs[0], start, self.grid)

    def _block(self, x: int, y: int) -> tuple[slice, slice]:
        starts_x, starts_y = self.problem.x.successors.indptr, self.problem.y.successors.indptr
        return slice(starts_x[x], starts_x[x + 1]), slice(starts_y[y], starts_y[y + 1])

    def _extended(self, f: Array, support_x: Any, support_y: Any) -> tuple[Array, Array]:
        """From f on the support of X: c-transforms of each other, for every x' and every y'."""
        U = self.values
        g = np.min(U[np.ix_(support_x, support_y)] - f[:, None], axis=0)
        f = np.min(U[:, support_y] - g, axis=1)
        return f, np.min(U[support_x] - f[support_x, None], axis=0)


def _sparse_plan(plan: Array, rows: Any, columns: Any, shape: tuple[int, int]) -> sparse.coo_array:
    i, j = np.nonzero(plan)
    return sparse.coo_array((plan[i, j], (rows[i], columns[j])), shape=shape)
