"""The paper's linear program, solved by HiGHS: slow, independent, and certified.

Over couplings μ(x,y,x',y') of two consecutive steps, and the encoder λ_X(y|x) and decoder λ_Y(x|y),

    d  =  min <μ, c>   subject to, with ρ the discounted occupancies and m_0 a coupling of the starts,

    Σ_x'y' μ(x,y,x',y') = γ Σ μ(·,·,x,y) + (1-γ) m_0(x,y)          flow        dual V(x,y)
    Σ_y' μ(x,y,x',y')   = P_X(x'|x) m_X(x,y)                       causal-X    dual a(x,x',y)
    Σ_x' μ(x,y,x',y')   = P_Y(y'|y) m_Y(x,y)                       causal-Y    dual b(x,y,y')
    Σ_y m_X = ρ_X,   Σ_x m_Y = ρ_Y                                 λ in Δ      duals h_X, h_Y
    Σ_y m_0 = ν_X,   Σ_x m_0 = ν_Y                                 starts      duals φ, ψ

Here m_X(x,y) = ρ_X(x) λ_X(y|x), so that ν_X(x,x') λ_X(y|x) = P_X(x'|x) m_X(x,y): the paper's program with its
λ-columns scaled, which keeps the tolerances of HiGHS meaningful in states that are hardly ever visited. μ
lives on the supports only, one variable for each transition of X and each of Y: the edge form of certify.py.
The objective is scaled by a power of two near max c.

*From the duals to a lower bound.* The rows "λ in Δ" follow from the others, so V is only fixed up to shaping
V(x,y) + w_X(x) + w_Y(y). Feasibility of the columns μ, m_X, m_Y says V + h_X + h_Y ≤ c + γ OT_V; with
w_X = h_X + γ P_X w_X (w_Y alike) the shaped Ṽ = V + w_X + w_Y satisfies Ṽ ≤ c + γ OT_Ṽ, which is what
certify.py needs, with potentials f_xy(x') = a(x,x',y)/γ + w_X(x').

*From μ to an upper bound.* The plans μ/m, rounded to their marginals, are a coupling of the two chains; its
value solves a linear system, whose residual is accounted for, and so is what its marginals still lack (:func:`_upper`).
``value`` is the value of that coupling.

Neither bound believes HiGHS: whatever it returns is only a guess of plans and potentials.

*All pairs.* Where no mass goes the program above says nothing about V. The metric between all pairs of states
comes from a second program, solved when it is asked for, in which every pair is a start:

    min <m, c>   s.t.   m = (1-γ) + γ Σ μ(·,·,x,y),   Σ_y' μ = P_X m,   Σ_x' μ = P_Y m.

Cost: (transitions of X)·(transitions of Y) variables; 10^4 take seconds, 4·10^4 some ten ("highs-ipm" less).
For anything larger: solvers/exact.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult, Status, check_warm
from diffbisim.solvers.certify import (
    at_targets,
    conditional,
    conjugate,
    dual_values,
    lower_distance,
    lower_table,
    marginal_error,
    plan_costs,
    round_plans,
    rounding,
)
from diffbisim.solvers.lp_assembly import Grid, Program, all_pairs_program, n_variables, paper_program
from diffbisim.solvers.lp_coupling import LinearProgramCoupling, Solution
from diffbisim.solvers.lp_policy import evaluate, reachable, shaping

Array = NDArray[np.float64]

__all__ = ["LinearProgram", "LinearProgramCoupling"]

METHODS = ("highs", "highs-ds", "highs-ipm")

#: Multipliers beyond this, of costs scaled to one, are of no use: their rounding alone would be larger than tol.
LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """The paper's linear program by HiGHS (``solver="lp"``): the reference for small chains."""

    tol: float = 1e-8  # certified gap to reach, relative to the largest cost
    method: str = "highs"  # or "highs-ds" (dual simplex), "highs-ipm" (interior point); "highs": it chooses
    max_iterations: int | None = None  # simplex or interior-point iterations
    time_limit: float | None = None  # seconds, for each of the two programs
    max_variables: int = 2_000_000  # refuse larger programs

    name: ClassVar[str] = "lp"
    samples: ClassVar[bool] = False
    criteria: ClassVar[tuple[str, ...]] = ("discounted",)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidArgument(f"method is {self.method!r}; choose one of {', '.join(METHODS)}")
        for name in ("tol", "max_iterations", "time_limit", "max_variables"):
            option = getattr(self, name)
            if option is not None and not as_number(option) > 0:
                raise InvalidArgument(f"{name} is {option!r}; it must be positive")

    def solve(
        self,
        problem: Problem,
        warm: DistanceResult | None = None,
        callback: Callable[[Mapping[str, float]], object] | None = None,
    ) -> DistanceResult:
        """Solve and certify. ``warm`` is checked but not used: HiGHS by way of scipy starts afresh."""
        if warm is not None:
            check_warm(warm, problem.shape)
        size = self._checked_size(problem)
        grid = Grid.of(problem)
        solution = self._solve_paper(grid)
        value, upper = _upper(grid, solution)
        lower = max(grid.unscaled(_lower(grid, solution), -np.inf), float(problem.cost.min()))  # d averages costs
        upper = min(grid.unscaled(upper, np.inf), problem.scale)
        value = min(max(float(np.ldexp(value, grid.exponent)), lower), upper)
        bounds = {"lower": lower, "upper": upper}
        if callback is not None:
            callback(bounds)
        return DistanceResult(
            problem=problem,
            value=value,
            lower=lower,
            upper=upper,
            outcome=self._outcome(upper - lower, problem.scale, solution),
            iterations=solution.iterations,
            solver=self.name,
            coupling=LinearProgramCoupling(problem, grid, solution, self),
            history=(bounds,),
            work={"variables": size, "iterations": solution.iterations},
        )

    def _outcome(self, gap: float, scale: float, solution: Solution) -> Status:
        if gap <= self.tol * scale:
            return Status.CONVERGED
        if solution.limit:
            out_of_iterations = self.max_iterations is not None and solution.iterations >= self.max_iterations
            return Status.ITERATIONS if out_of_iterations else Status.TIME
        return Status.ROUNDING if gap <= 1e-6 * scale else Status.FAILED

    def _checked_size(self, problem: Problem) -> int:
        size = n_variables(problem)
        if size > self.max_variables:
            raise InvalidArgument(
                f"the linear program would have {size:,} variables (more than max_variables = "
                f"{self.max_variables:,}): use solver='exact', which gives the same distance"
            )
        return size

    def _solve_paper(self, grid: Grid) -> Solution:
        """The paper's program; if HiGHS has no answer the zero solution, which certifies wide bounds."""
        program = paper_program(grid)
        z, duals, iterations, limit = self._highs(program)
        mass, _, _, start = program.split_columns(z)
        V, a, _, h_x, h_y, φ, _ = program.split_rows(duals)
        γ, ex, ey, n_y = grid.discount, grid.ex, grid.ey, grid.cost.shape[1]
        w_x, w_y = shaping(ex, h_x, γ), shaping(ey, h_y, γ)
        return Solution(
            mass=mass.reshape(grid.plan_shape),
            start=start.reshape(grid.start_shape),
            subsolution=(1 - γ) * (V.reshape(-1, n_y) + w_x[:, None] + w_y),
            f=(1 - γ) * (a.reshape(-1, n_y) / γ + w_x[ex.target, None]),
            f_start=φ[:, None] + (1 - γ) * w_x[grid.sx.target, None],
            iterations=iterations,
            limit=limit,
        )

    def solve_all_pairs(self, grid: Grid) -> tuple[Array, Array]:
        """The second program: μ (E_X, E_Y) and potentials f (E_X, n_Y) of all pairs, in units of U."""
        program = all_pairs_program(grid)
        z, duals, _, _ = self._highs(program)
        mass, a = program.split_columns(z)[0], program.split_rows(duals)[1]
        f = (1 - grid.discount) / grid.discount * a
        return mass.reshape(grid.plan_shape), f.reshape(-1, grid.cost.shape[1])

    def _highs(self, program: Program) -> tuple[Array, Array, int, bool]:
        """Solution, multipliers, iterations, whether a limit was hit; zeros if HiGHS has no answer.

        Tightest tolerances. After numerical trouble: without presolve, then interior point.
        """
        highs: Any = linprog  # its stubs know no method or options that are variables
        options: dict[str, Any] = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        options |= {} if self.max_iterations is None else {"maxiter": self.max_iterations}
        options |= {} if self.time_limit is None else {"time_limit": self.time_limit}
        for method, presolve in ((self.method, True), (self.method, False), ("highs-ipm", True)):
            now = {**options, "presolve": presolve}
            answer = highs(program.cost, A_eq=program.matrix, b_eq=program.rhs, method=method, options=now)
            if answer.status in (0, 1):
                break
        iterations, limit = int(answer.nit or 0), answer.status == 1
        found = answer.x is not None and answer.eqlin.marginals is not None
        if not (found and np.isfinite(answer.x).all() and np.isfinite(answer.eqlin.marginals).all()):
            return np.zeros(program.cost.size), np.zeros(program.rhs.size), iterations, limit
        return np.maximum(answer.x, 0.0), answer.eqlin.marginals, iterations, limit


def _lower(grid: Grid, solution: Solution) -> float:
    """A certified lower bound from the multipliers: true for any table and any potentials that are numbers."""
    ex, ey, γ = grid.ex, grid.ey, grid.discount
    W, f, f_start = (
        np.clip(np.nan_to_num(table), -LARGEST, LARGEST)
        for table in (solution.subsolution, solution.f, solution.f_start)
    )
    f, g = conjugate(f, at_targets(W, ex, ey), ex, ey)
    TW = (1 - γ) * grid.cost + γ * dual_values(f, g, ex, ey)
    lower = lower_table(W, TW, γ, rounding(ex, ey, W, f, g, grid.cost))
    return lower_distance(lower, f_start, grid.sx, grid.sy)


def _upper(grid: Grid, solution: Solution) -> tuple[float, float]:
    """The value of the coupling μ/m, and a certified upper bound.

    *Plans whose marginals are nearly right.* Rounding leaves the plan A of a pair with marginals that are off by δ in
    all, a few last digits of *one*: a successor of probability 1e-16 may be missing altogether, and with it every pair
    that only it leads to. There is a coupling π that exceeds A by a mass of δ at most (scale down the rows of A that
    are too heavy, then the columns, and fill up). Let M = max c, which bounds U everywhere, R the pairs that the plans
    lead to, and 0 ≤ W ≤ M a table on R. For k ≥ 0 put h = min(W + k, M) on R and M elsewhere. On R

        T h  ≤  (1-γ) c + γ <π, h>  ≤  (1-γ) c + γ (<A, W> + k + δ M),

    because the part of π below A has mass one at most and leads to R, and the rest is at most M. That is at most W + k
    if k = (max_R (TW - W)⁺ + γ δ M)/(1-γ), and T h ≤ M as well; so T h ≤ h and U ≤ h. The start is one more such plan.

    *Rounding*, in units u = 2^-53 = ε/2 of M, with K = k_X + k_Y the longest rows: TW - W carries K + 5; the sums in δ
    carry K; the rows of either chain miss one by up to 8 that the door lets pass, and their sums there carried K, which
    is K + 16 together; the last additions carry 6. That is 3 K + 27 < 4 (K + 8): half of what :func:`rounding` allows,
    which does not know δ.
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
