"""One solve by Sinkhorn iterations: the table, the plans, their evaluation, and the certificate.

Inside, costs are divided by the largest one, tables are flat, and temperatures are those of U = (1-γ)V.
"""

import numpy as np

from diffbisim.errors import InvalidArgument
from diffbisim.problem import Array, Problem
from diffbisim.results import DistanceResult, Row, check_warm, previous_table
from diffbisim.solvers.certify import distance_bounds
from diffbisim.solvers.krylov import Operator, bicgstab
from diffbisim.solvers.sinkhorn_coupling import SharpStart, SoftStart
from diffbisim.solvers.sinkhorn_operator import PlanOperator, plan_operator
from diffbisim.solvers.sinkhorn_plans import GibbsPlans, rows_of_chain

EPS = float(np.finfo(float).eps)

#: How many times farther off than the distance the table of the entropic metric may be: near ε = 0 its plans have
#: errors that the distance does not see.
TABLE = 50.0

#: Temperatures, in units of the largest cost, from this to its inverse: beyond, 1/ε is no number.
COLDEST = 1e-300


class Run:
    """State of one solve; ``epsilon`` in the user's units, zero for the distance itself."""

    operator: PlanOperator  # the rounded plans of the last check, if it needed them

    def __init__(self, problem: Problem, epsilon: float, warm: DistanceResult | None, threads: int | None) -> None:
        self.problem, self.discount, self.scale = problem, problem.discount, problem.scale or 1.0
        self.c = (1 - self.discount) * (problem.cost.ravel() / self.scale)
        self.epsilon = _temperature(epsilon, self.scale, self.discount)
        self.plans = GibbsPlans(rows_of_chain(problem.x), rows_of_chain(problem.y), problem.shape, threads)
        self.start = SoftStart(problem, self.epsilon) if epsilon else SharpStart(problem)
        self.rho = problem.x.occupancy(self.discount), problem.y.occupancy(self.discount)
        self.U = independent_value(problem, self.c) if warm is None else self._take_over(warm)
        self.lower, self.upper, self.value, self.slack = -np.inf, np.inf, np.nan, 0.0  # the first three for the user
        self.spare = 0.0  # how far the entropic table may be off
        self.work = {"pairs": self.plans.size, "half_steps": 0, "newton": 0, "sweeps": 0}

    def _take_over(self, warm: DistanceResult) -> Array:
        """Table of a previous result, and its potentials if they belong to the same transitions."""
        check_warm(warm, self.problem.shape)

        def first() -> Array:
            return independent_value(self.problem, self.c).reshape(self.problem.shape)

        table = previous_table(warm, self.scale, first)
        if table is None:
            return first().ravel()
        other, mine = getattr(warm.coupling, "plans", None), self.plans
        if isinstance(other, GibbsPlans) and _same_supports(mine, other):
            ratio = (warm.problem.scale or 1.0) / self.scale
            np.multiply(other.F, ratio, out=mine.F)
            np.multiply(other.G, ratio, out=mine.G)
            mine.coldest = other.beta / ratio
        return table.ravel()

    @property
    def gap(self) -> float:
        """Certified so far, relative to the largest cost: of the distance and, if entropic, of the table."""
        return max((self.upper - self.lower) / self.scale, self.spare / TABLE)

    @property
    def spread(self) -> float:
        """max U - min U: what 1/β is to be compared with."""
        return max(float(np.ptp(self.U)), 1e-12 * float(np.abs(self.U).max()), 1e-300)

    # --- evaluation ----------------------------------------------------------------------------------------

    def sweep(self, operator: PlanOperator, sweeps: int) -> None:
        """U ← (1-γ) c + γ Π U, a few times."""
        image = np.empty_like(self.U)
        for _ in range(sweeps):
            operator.apply(self.U, image)
            np.add(self.c, self.discount * image, out=self.U)
        self.work["sweeps"] += sweeps

    def evaluate(self, operator: PlanOperator, goal: Array | None = None, accuracy: float = 0.03) -> None:
        """U + δ with (I - γΠ) δ = goal - U: the value of the plans, if ``goal`` is (1-γ) c + γ Π U (the default).

        For the soft goal it is Newton's step for the entropic metric. The system is solved to ``accuracy`` times the
        residual; a poor solution costs iterations, never correctness.
        """

        def system(v: Array, out: Array) -> None:
            operator.apply(v, out)
            out *= -self.discount
            out += v
            self.work["sweeps"] += 1

        residual = np.empty_like(self.U)
        if goal is None:
            system(self.U, residual)
            np.subtract(self.c, residual, out=residual)
        else:
            np.subtract(goal, self.U, out=residual)
        self.U = self.U + solve(system, residual, accuracy)

    def soft_goal(self) -> Array:
        """(1-γ) c + γ (<p, f> + <q, g>)."""
        return np.asarray(self.c + self.discount * self.plans.soft_values())

    # --- certificate ---------------------------------------------------------------------------------------

    def check(self, iteration: int) -> Row:
        """Bounds from the rounded plans and the transformed potentials, at the table U; a row of history."""
        γ, plans, cost, scale = self.discount, self.plans, self.problem.cost, self.scale
        upper, lower, size = self._transports()
        longest = int(np.diff(plans.xs[0]).max() + np.diff(plans.ys[0]).max())
        largest = max(size, float(np.abs(self.U).max()), float(self.c.max())) + plans.largest_information(self.epsilon)
        slack = 4 * (longest + 8) * EPS * largest
        self.slack = slack / (1 - γ)
        U, TU_high, TU_low = (t.reshape(plans.shape) for t in (self.U, self.c + γ * upper, self.c + γ * lower))
        low, high = distance_bounds(U, TU_high, TU_low, self.start.bounds(self.U), self.rho, γ, slack)
        low, high = np.nextafter([low * scale, high * scale], [-np.inf, np.inf]).tolist()  # digits end near 1e-308
        self.lower = max(self.lower, low, float(cost.min()))  # at least an average of costs; at most that
        self.upper = max(min(self.upper, high, float(cost.max())), self.lower)  # of independent plans
        self.value = self.lower + (self.upper - self.lower) / 2  # their sum may be too large for a number
        if self.epsilon:  # plans, potentials and gradient belong to the table, not to the distance alone
            self.spare = (float((TU_high - U).max()) - float((TU_low - U).min())) / (1 - γ)
        self.work["half_steps"] = int(plans.half_steps)
        return Row({
            "iteration": float(iteration), "value": self.value, "lower": self.lower, "upper": self.upper,
            "temperature": scale / (plans.beta * (1 - γ)), "error": float(plans.error.mean()),
            "half_steps": plans.half_steps,
        })  # fmt: skip

    def _transports(self) -> tuple[Array, Array, float]:
        """Upper and lower bounds on every transport for the table U, and the largest number that entered."""
        if self.epsilon:
            upper = self.plans.soft_costs(self.U, self.epsilon)
        else:
            self.operator = plan_operator(self.plans)
            self.operator.apply(self.U, upper := np.empty_like(self.U))
        return upper, *self.plans.dual_bounds(self.U, self.epsilon)


def _temperature(epsilon: float, scale: float, discount: float) -> float:
    """``epsilon`` for costs divided by ``scale``, of U."""
    scaled = (1 - discount) * (epsilon / scale)
    if epsilon and not COLDEST <= scaled <= 1 / COLDEST:
        raise InvalidArgument(
            f"epsilon is {epsilon!r} where the largest cost is {scale:g}: the ratio is too far from one for a double; "
            "choose a temperature nearer to the costs, or 0 for the distance itself"
        )
    return scaled


def _same_supports(one: GibbsPlans, other: GibbsPlans) -> bool:
    pairs = zip((*one.xs[:2], *one.ys[:2]), (*other.xs[:2], *other.ys[:2]), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def solve(system: Operator, b: Array, accuracy: float) -> Array:
    """(I - γΠ)⁻¹ b to ``accuracy`` times the size of b: BiCGStab, or sweeps where that stagnates."""
    x, target = np.zeros_like(b), accuracy * float(np.abs(b).max())
    if bicgstab(system, b, x, target, max_iterations=60) <= 2 * target:
        return x
    x, image = b.copy(), np.empty_like(b)
    for _ in range(100):
        system(x, image)
        x += b - image
    return x


def independent_value(problem: Problem, c: Array) -> Array:
    """U of the independent coupling, flat and scaled: the table to begin with, (I - γ P_X ⊗ P_Y) U = (1-γ) c."""
    P, Q, γ, shape = problem.x.transition, problem.y.transition, problem.discount, problem.shape

    def system(v: Array, out: Array) -> None:
        image = (Q @ (P @ v.reshape(shape)).T).T
        np.subtract(v, γ * np.asarray(image).ravel(), out=out)

    U = c / (1 - γ)
    low, high = float(U.min()), float(U.max())
    bicgstab(system, c, U, 1e-13 * float(c.max()), max_iterations=100)
    return np.clip(U, low, high)
