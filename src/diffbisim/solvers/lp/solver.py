"""The paper's linear program, solved by HiGHS: slow, but independent of the other solvers and certified.

Over couplings μ(x,y,x',y') of two consecutive steps, and the encoder λ_X(y|x) and decoder λ_Y(x|y),

    d  =  min <μ, c>   subject to, with ρ the discounted occupancies and m_0 a coupling of the starts,

    Σ_x'y' μ(x,y,x',y') = γ Σ μ(·,·,x,y) + (1-γ) m_0(x,y)          flow        dual V(x,y)
    Σ_y' μ(x,y,x',y')   = P_X(x'|x) m_X(x,y)                       causal-X    dual a(x,x',y)
    Σ_x' μ(x,y,x',y')   = P_Y(y'|y) m_Y(x,y)                       causal-Y    dual b(x,y,y')
    Σ_y m_X = ρ_X,   Σ_x m_Y = ρ_Y                                 λ in Δ      duals h_X, h_Y
    Σ_y m_0 = ν_X,   Σ_x m_0 = ν_Y                                 starts      duals φ, ψ

Here m_X(x,y) = ρ_X(x) λ_X(y|x), so that ν_X(x,x') λ_X(y|x) = P_X(x'|x) m_X(x,y). This is the paper's program with its
λ-columns scaled, which keeps the tolerances of HiGHS meaningful in states that are rarely visited. μ is defined on the
supports only, with one variable for each transition of X and each of Y (the edge form of program.py). The objective is
scaled by a power of two near max c.

*From the duals to a lower bound.* The rows "λ in Δ" are redundant, so V is determined only up to shaping
V(x,y) + w_X(x) + w_Y(y). Dual feasibility of the columns μ, m_X, m_Y means V + h_X + h_Y ≤ c + γ OT_V. With
w_X = h_X + γ P_X w_X, and w_Y likewise, the shaped Ṽ = V + w_X + w_Y satisfies Ṽ ≤ c + γ OT_Ṽ, which certify.py needs,
with potentials f_xy(x') = a(x,x',y)/γ + w_X(x').

*From μ to an upper bound.* The plans μ/m, rounded to their marginals, are a coupling of the two chains. Its value
solves a linear system, whose residual is accounted for, as is the remaining error of the marginals (:func:`_upper`).
``value`` is the value of that coupling.

Both bounds are valid for any answer of HiGHS, which is used only as a guess of plans and potentials.

*All pairs.* Where there is no mass the program above does not determine V. The metric between all pairs of states comes
from a second program, solved on demand, in which every pair is a start:

    min <m, c>   s.t.   m = (1-γ) + γ Σ μ(·,·,x,y),   Σ_y' μ = P_X m,   Σ_x' μ = P_Y m.

Its plans are used where the first program has no mass. ``values`` is the value of the combined policy, and potentials
are made c-transforms of each other for these values, so that they are feasible to the last digit.

Cost: (transitions of X)·(transitions of Y) variables; 10^4 take seconds, 4·10^4 about ten ("highs-ipm" less). For
larger problems use the exact solver.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.arrays import Array, lazy
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidData, warn
from diffbisim.io.arrays import numbers
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import DistanceResult, HistoryRow, Status, check_warm
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.solvers.base import MARGINALS, Callback, deadline_of
from diffbisim.solvers.certify import lower_table
from diffbisim.solvers.lp.program import (
    Answer,
    Grid,
    LinearProgramArrays,
    all_pairs_program,
    at_targets,
    conditional,
    conjugate,
    dual_values,
    evaluate,
    highs,
    marginal_error,
    n_variables,
    occupancy,
    over_x,
    over_y,
    paper_program,
    plan_costs,
    reachable,
    round_plans,
    rounding,
    shaping,
)

if TYPE_CHECKING:
    from diffbisim.solvers.lp import LinearProgram

#: Multipliers are clipped to this, for costs scaled to one: beyond it their rounding alone would exceed tol.
LARGEST = 1e6

#: The plans μ/m of the paper's program are kept for pairs with at least this occupancy: dividing by less would magnify
#: rounding errors, and the second program covers all pairs.
VISITED = 1e-6


@dataclass(frozen=True, eq=False)
class Solution:
    """The solution of the paper's program, in units of U and shaped."""

    mass: Array  # (E_X, E_Y): μ
    start: Array  # m_0 on the supports of the starts
    subsolution: Array  # (n_X, n_Y): (1-γ) Ṽ, up to HiGHS's tolerance a subsolution
    f: Array  # (E_X, n_Y): potentials of X for all pairs
    f_start: Array  # (k_X, 1): potential of the start of X
    iterations: int
    limit: bool  # stopped at a limit of time or iterations


def solve(
    problem: ChainProblem,
    options: "LinearProgram",
    warm: DistanceResult | None = None,
    callback: Callback | None = None,
) -> DistanceResult:
    """Solve the paper's program and certify the result."""
    if warm is not None:
        check_warm(warm, problem.shape)
    size = n_variables(problem)
    if size > options.max_variables:
        raise InvalidArgument(
            f"the linear program would have {size:,} variables, more than max_variables = "
            f"{options.max_variables:,}; use solver='exact', which gives the same distance"
        )
    deadline = deadline_of(options.time_limit)
    grid = Grid.of(problem)
    solution = solve_paper(grid, options, deadline)
    value, upper = _upper(grid, solution)
    lower = max(grid.unscaled(_lower(grid, solution), -np.inf), float(problem.cost.min()))  # d averages costs
    upper = min(grid.unscaled(upper, np.inf), problem.scale)
    value = min(max(float(np.ldexp(value, grid.exponent)), lower), upper)
    row = HistoryRow({"value": value, "lower": lower, "upper": upper})
    if callback is not None:
        callback(row)  # its return value does not matter, because the run is over
    return DistanceResult(
        problem, value, lower, upper, _status(upper - lower, problem.scale, solution, options), solution.iterations,
        options.name, LinearProgramCoupling(problem, grid, solution, options), (row,),
        {"variables": size, "iterations": solution.iterations},
    )  # fmt: skip


def _status(gap: float, scale: float, solution: Solution, options: "LinearProgram") -> Status:
    if gap <= options.tol * scale:
        return Status.CONVERGED
    if solution.limit:
        out_of_iterations = options.max_iterations is not None and solution.iterations >= options.max_iterations
        return Status.ITERATIONS if out_of_iterations else Status.TIME
    return Status.ROUNDING if gap <= 1e-6 * scale else Status.FAILED


def solve_program(program: LinearProgramArrays, options: "LinearProgram", deadline: float) -> Answer:
    """Solve with HiGHS and the options of the solver."""
    return highs(program, options.method, options.max_iterations, deadline)


def solve_paper(grid: Grid, options: "LinearProgram", deadline: float) -> Solution:
    """Solve the paper's program; if HiGHS has no answer, use zeros, which certify wide bounds."""
    program = paper_program(grid)
    answer = solve_program(program, options, deadline)
    mass, _, _, start = program.split_columns(answer.z)
    V, a, _, h_x, h_y, φ, _ = program.split_rows(answer.duals)
    γ, ex, ey, n_y = grid.discount, grid.ex, grid.ey, grid.cost.shape[1]
    w_x, w_y = shaping(ex, h_x, γ), shaping(ey, h_y, γ)
    return Solution(
        mass=mass.reshape(grid.plan_shape),
        start=start.reshape(grid.start_shape),
        subsolution=(1 - γ) * (V.reshape(-1, n_y) + w_x[:, None] + w_y),
        f=(1 - γ) * (a.reshape(-1, n_y) / γ + w_x[ex.indices, None]),
        f_start=φ[:, None] + (1 - γ) * w_x[grid.sx.indices, None],
        iterations=answer.iterations,
        limit=answer.limit,
    )


# --- bounds -------------------------------------------------------------------------------------------------------


def _lower(grid: Grid, solution: Solution) -> float:
    """Return a certified lower bound from the multipliers, valid for any table and potentials."""
    ex, ey, γ = grid.ex, grid.ey, grid.discount
    W, f, f_start = (
        np.clip(np.nan_to_num(table), -LARGEST, LARGEST)
        for table in (solution.subsolution, solution.f, solution.f_start)
    )
    f, g = conjugate(f, at_targets(W, ex, ey), ex, ey)
    TW = (1 - γ) * grid.cost + γ * dual_values(f, g, ex, ey)
    return lower_distance(lower_table(W, TW, γ, rounding(ex, ey, W, f, g, grid.cost)), f_start, grid.sx, grid.sy)


def lower_distance(lower: Array, f: Array, sx: Successors, sy: Successors) -> float:
    """Return a lower bound on d, given U ≥ `lower` and any potential `f` (k_X, 1) of the start of X."""
    cost = at_targets(lower, sx, sy)
    f, g = conjugate(f, cost, sx, sy)
    return float(dual_values(f, g, sx, sy)[0, 0]) - rounding(sx, sy, cost, f, g)


def _upper(grid: Grid, solution: Solution) -> tuple[float, float]:
    """The value of the coupling μ/m, and a certified upper bound.

    *Plans with nearly correct marginals.* After rounding, the marginals of the plan A of a pair have a total error δ, a
    few last digits of *one*: a successor of probability 1e-16 may be missing altogether, and with it every pair that
    only it leads to. There is a coupling π that exceeds A by a mass of at most δ (scale down rows of A that are too
    heavy, then columns, and fill up). Let M = max c, which bounds U everywhere, R the pairs that the plans lead to, and
    0 ≤ W ≤ M a table on R. For k ≥ 0 let h = min(W + k, M) on R and M elsewhere. On R

        T h  ≤  (1-γ) c + γ <π, h>  ≤  (1-γ) c + γ (<A, W> + k + δ M),

    because the part of π below A has mass at most one and leads to R, and the rest costs at most M. This is at most
    W + k if k = (max_R (TW - W)⁺ + γ δ M)/(1-γ), and T h ≤ M as well; so T h ≤ h and U ≤ h. The start is one more plan.

    *Rounding errors*, in units u = 2^-53 = ε/2 of M, with K = k_X + k_Y for the longest rows: K + 5 for TW - W; K for
    the sums in δ; K + 16 for both chains, whose row sums may differ from one by up to 8 each after validation, computed
    with an error of K; 6 for the last additions. The total 3 K + 27 < 4 (K + 8) is half of what :func:`rounding`
    returns, which does not include δ.
    """
    ex, ey, sx, sy, γ, M = grid.ex, grid.ey, grid.sx, grid.sy, grid.discount, float(grid.cost.max())
    A = round_plans(conditional(solution.mass, ex, ey), ex, ey)
    start = round_plans(solution.start, sx, sy)
    reach = reachable(A, start, grid)
    W = np.clip(np.nan_to_num(evaluate(A, grid, reach), nan=M), 0.0, M)
    TW = (1 - γ) * grid.cost + γ * (plan_costs(A, at_targets(W, ex, ey), ex, ey) + M * marginal_error(A, ex, ey))
    step = np.max(TW - W, where=reach.reshape(W.shape), initial=0.0)
    value = float(plan_costs(start, at_targets(W, sx, sy), sx, sy)[0, 0])
    k = (float(step) + rounding(ex, ey, grid.cost) / 2) / (1 - γ)
    return value, value + k + M * float(marginal_error(start, sx, sy)[0, 0]) + rounding(sx, sy, grid.cost) / 2


# --- the coupling -------------------------------------------------------------------------------------------------


class AllPairs(NamedTuple):
    """Scaled plans, values and potentials of all pairs."""

    plans: Array  # (E_X, E_Y)
    table: Array  # (n_X, n_Y): the value of the plans
    potentials: Array  # (E_X, n_Y): f


class LinearProgramCoupling(Coupling):
    """Plans, potentials and values of all pairs, from the second program where the first has no mass."""

    def __init__(self, problem: ChainProblem, grid: Grid, solution: Solution, options: "LinearProgram | None") -> None:
        self.problem, self.grid, self.solution, self.options = problem, grid, solution, options

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {f.name: np.asarray(getattr(self.solution, f.name)) for f in fields(Solution)}
        return {**arrays, "values": self.values, **self._pairs._asdict()}

    @classmethod
    def restore(cls, problem: ChainProblem, arrays: dict[str, NDArray[Any]]) -> "LinearProgramCoupling":
        """Rebuild from the arrays of :meth:`state`, without solving again."""
        check_lp(problem, arrays)
        parts: dict[str, Any] = {f.name: arrays[f.name] for f in fields(Solution)}
        parts |= {"iterations": int(parts["iterations"]), "limit": bool(parts["limit"])}
        coupling = cls(problem, Grid.of(problem), Solution(**parts), None)
        coupling.__dict__["_pairs"] = AllPairs(arrays["plans"], arrays["table"], arrays["potentials"])
        return coupling

    @lazy
    def _pairs(self) -> AllPairs:
        grid, mass, options = self.grid, self.solution.mass, self.options
        assert options is not None, "a restored coupling already has all pairs"
        ex, ey, γ = grid.ex, grid.ey, grid.discount
        deadline = deadline_of(options.time_limit)
        program = all_pairs_program(grid)
        answer = solve_program(program, options, deadline)
        μ = program.split_columns(answer.z)[0].reshape(grid.plan_shape)
        f = ((1 - γ) / γ * program.split_rows(answer.duals)[1]).reshape(-1, grid.cost.shape[1])
        visited = over_y(over_x(mass, ex), ey) > VISITED
        A = round_plans(conditional(np.where(visited[ex.sources][:, ey.sources], mass, μ), ex, ey), ex, ey)
        U = evaluate(A, grid, np.full(grid.cost.size, True))
        f, g = conjugate(f, at_targets(U, ex, ey), ex, ey)
        gap = float(np.max(U - (1 - γ) * grid.cost - γ * dual_values(f, g, ex, ey))) / (1 - γ)
        if gap > options.tol * grid.cost.max():
            warn(
                f"the values of all pairs are certified only to {np.ldexp(gap, grid.exponent):.1e}, which exceeds tol; "
                "use solver='exact'",
                ConvergenceWarning,
                stacklevel=3,
            )
        return AllPairs(A, U, f)

    @lazy
    def values(self) -> Array:
        return np.ldexp(self._pairs.table, self.grid.exponent)

    @lazy
    def start(self) -> StartCoupling:
        grid = self.grid
        plan = round_plans(self.solution.start, grid.sx, grid.sy)
        f = np.ldexp(self.solution.f_start[:, 0], grid.exponent)
        f, g = self._extended(f, grid.sx.indices, grid.sy.indices)
        return StartCoupling(_sparse_plan(plan, grid.sx.indices, grid.sy.indices, self.problem.shape), f, g)

    def plan(self, x: int, y: int) -> sparse.coo_array:
        rows, columns = self._block(x, y)
        targets = self.grid.ex.indices[rows], self.grid.ey.indices[columns]
        return _sparse_plan(self._pairs.plans[rows, columns], *targets, self.problem.shape)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        rows, columns = self._block(x, y)
        f = np.ldexp(self._pairs.potentials[rows, y], self.grid.exponent)
        return self._extended(f, self.grid.ex.indices[rows], self.grid.ey.indices[columns])

    def occupancy(self) -> Array:
        """Solve m = (1-γ) m_0 + γ Π^T m on the pairs that the start can reach."""
        start = round_plans(self.solution.start, self.grid.sx, self.grid.sy)
        return occupancy(self._pairs.plans, start, self.grid)

    def _block(self, x: int, y: int) -> tuple[slice, slice]:
        return slice(*self.grid.ex.indptr[x : x + 2]), slice(*self.grid.ey.indptr[y : y + 2])

    def _extended(self, f: Array, support_x: Any, support_y: Any) -> tuple[Array, Array]:
        """Extend f from the support of X to c-transforms of each other for every x' and y'."""
        U = self.values
        g = np.min(U[np.ix_(support_x, support_y)] - f[:, None], axis=0)
        f = np.min(U[:, support_y] - g, axis=1)
        return f, np.min(U[support_x] - f[support_x, None], axis=0)


def _sparse_plan(plan: Array, rows: Any, columns: Any, shape: tuple[int, int]) -> sparse.coo_array:
    i, j = np.nonzero(plan)
    return sparse.coo_array((plan[i, j], (rows[i], columns[j])), shape=shape)


def check_lp(problem: ChainProblem, arrays: dict[str, NDArray[Any]]) -> None:
    """Check the arrays of a file: solutions of the paper's program, and plans, values and potentials of all pairs."""
    ex, ey = problem.x.successors, problem.y.successors
    n_y, plans = problem.shape[1], (ex.indices.size, ey.indices.size)
    starts = int(np.count_nonzero(problem.x.initial)), int(np.count_nonzero(problem.y.initial))
    numbers(arrays, "mass", plans, least=0.0)
    numbers(arrays, "start", starts, least=0.0)
    numbers(arrays, "subsolution", problem.shape)
    numbers(arrays, "f", (plans[0], n_y))
    numbers(arrays, "f_start", (starts[0], 1))
    numbers(arrays, "iterations", (), np.int64, least=0)
    numbers(arrays, "limit", (), np.bool_)
    table = numbers(arrays, "table", problem.shape)
    numbers(arrays, "potentials", (plans[0], n_y))
    A = numbers(arrays, "plans", plans, least=0.0)
    off = np.abs(over_y(A, ey) - ex.probabilities[:, None]).max(), np.abs(over_x(A, ex) - ey.probabilities).max()
    if not max(off) <= MARGINALS:
        raise InvalidData(f"array 'plans' misses the marginals by {max(off):.1e}; the file is damaged")
    values = numbers(arrays, "values", problem.shape)
    if not np.allclose(values, np.ldexp(table, int(np.frexp(problem.scale)[1])), rtol=1e-12, atol=0.0):
        raise InvalidData("arrays 'values' and 'table' are not the same table; the file is damaged")
