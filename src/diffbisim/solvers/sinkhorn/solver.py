"""Sinkhorn value and policy iteration: approximate distances for large dense chains, and the smooth entropic metric.

All pairs (x,y) share the cost table of their transports, so they share the Gibbs kernel exp(-βU): one half-step of
Sinkhorn's algorithm for *all* pairs is one matrix product (dense) or one pass over the supports (sparse). Calo,
Jonsson, Neu, Schwartz and Segovia-Aguas (2024) alternate such half-steps with the evaluation of the resulting plans:

    improve     π_xy ← π_xy exp(-η γ V), then correct the X marginal, and the Y marginal in the next iteration
    evaluate    SPI: V = c + γ Π V, by `sweeps` sweeps or a linear solve
                SVI: V = c + γ min_π <π, V> + KL(π ‖ last plan)/(γη) with one marginal fixed: a by-product of the
                half-step

*Schedules.* "sqrt" (η/√k) and "constant" are theirs: the exponents accumulate, log K = -Σ η_k γ V_k. The default,
"anneal", recomputes the kernel exp(-βU) from the current table, runs a batch of over-relaxed Sinkhorn iterations from
the last potentials, and doubles β when the marginals are accurate enough; Newton's method helps pairs that converge
slowly at low temperatures. SPI evaluates with a Krylov solve, SVI uses the soft value.

*Certificates.* Plans are rounded to exact marginals and potentials are made feasible by c-transforms, which gives valid
bounds for every transport (engine/sinkhorn.hpp) and hence for the distance (certify.py), including rounding, however
the run ended. ``value`` is the midpoint of the bounds.

*Entropic mode* (``epsilon > 0``). Value, bounds, plans, potentials and gradient are those of the regularized metric d_ε
(coupling.py), solved to `tol` by Newton's method on both levels.

Internally, costs are divided by the largest one, tables are flat, and temperatures are those of U = (1-γ)V. A half-step
costs n_X n_Y a b operations for a and b successors. Memory: 8 (a + b) bytes per pair for the potentials, and 16 (a + b)
more while plans with a shared kernel are evaluated; plans of dense chains are never stored.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from diffbisim import _engine
from diffbisim.common.arrays import Array
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.base import ChainProblem
from diffbisim.results.base import DistanceResult, HistoryRow, check_warm, previous_table
from diffbisim.solvers.base import Callback, Check, Limits, iterate
from diffbisim.solvers.certify import SeparableTables, separable_bounds
from diffbisim.solvers.exact.transports import NO_NUMBERS
from diffbisim.solvers.sinkhorn.coupling import SinkhornCoupling, start_of
from diffbisim.solvers.sinkhorn.plans import GibbsPlans, PlanOperator

if TYPE_CHECKING:
    from diffbisim.solvers.sinkhorn import SinkhornPolicy

EPS = float(np.finfo(float).eps)

#: Tolerance of the table of the entropic metric, as a multiple of that of the distance: near ε = 0 its plans have
#: errors that do not affect the distance.
TABLE = 50.0

#: Smallest temperature in units of the largest cost, and inverse of the largest; beyond it 1/ε overflows.
COLDEST = 1e-300

#: Annealing: initial β·spread, growth of β, Sinkhorn iterations per batch, and the marginal error, times β·spread,
#: below which β grows. Chosen by experiment; they affect time, not correctness.
FIRST_BETA, GROWTH, ITERATIONS, READY = 80.0, 2.0, 40, 0.5

#: Number of unsuccessful batches after which Newton's method is used for pairs that converge slowly.
PATIENCE = 2

#: The temperature of a previous result is discarded if the first evaluation changes the table by this multiple of it.
FOREIGN = 1e4

#: Value iteration: Sinkhorn iterations per update of the table, updates per check, and patience in batches.
ITERATIONS_PER_UPDATE, CADENCE, MORE_PATIENCE = 10, 5, 10


def solve(
    problem: ChainProblem,
    options: "SinkhornPolicy",
    warm: DistanceResult | None = None,
    callback: Callback | None = None,
) -> DistanceResult:
    """Solve to the certified gap, starting from a previous result if given."""
    run = (Annealing if options.schedule == "anneal" else MirrorDescent)(problem, options, warm)
    ended = iterate(run, Limits(run.tol, options.max_iterations, options.time_limit), callback)
    last = ended.history[-1]
    return DistanceResult(
        problem, last["value"], last["lower"], last["upper"], ended.status, ended.iterations, options.name,
        ended.coupling, ended.history, dict(run.work),
    )  # fmt: skip


class SinkhornRun(ABC):
    """One solve: the table, the plans, their evaluation and certificate; subclasses define the schedules."""

    operator: PlanOperator  # the rounded plans of the last check, if it needed them

    def __init__(self, problem: ChainProblem, options: "SinkhornPolicy", warm: DistanceResult | None = None) -> None:
        self.problem, self.discount, self.scale = problem, problem.discount, problem.scale or 1.0
        self.policy, self.sweeps, self.tol = options.policy, options.sweeps, options.tol or 0.0
        self.c = (1 - self.discount) * (problem.cost.ravel() / self.scale)
        self.epsilon = _temperature(options.epsilon, self.scale, self.discount)
        self.plans = GibbsPlans(problem.x.successors, problem.y.successors, problem.shape, options.threads)
        self.start = start_of(problem, self.epsilon)
        self.rho = problem.x.occupancy(self.discount), problem.y.occupancy(self.discount)
        self.U = independent_value(self.plans, self.c, self.discount) if warm is None else self._warm_start(warm)
        self.lower, self.upper, self.value = -np.inf, np.inf, np.nan  # in the units of the cost
        self.table_gap = 0.0  # bound on the error of the entropic table
        self.work = {"pairs": self.plans.size, "half_steps": 0, "newton": 0, "sweeps": 0}

    def _warm_start(self, warm: DistanceResult) -> Array:
        """Return the table of a previous result, and use its potentials if they belong to the same transitions."""
        check_warm(warm, self.problem.shape)

        def first() -> Array:
            return independent_value(self.plans, self.c, self.discount).reshape(self.problem.shape)

        table = previous_table(warm, self.scale, first)
        if table is None:
            return first().ravel()
        known = warm.coupling
        if isinstance(known, SinkhornCoupling) and self.plans.has_supports_of(known.plans):
            ratio = (warm.problem.scale or 1.0) / self.scale
            np.multiply(known.plans.F, ratio, out=self.plans.F)
            np.multiply(known.plans.G, ratio, out=self.plans.G)
            self.plans.coldest = known.plans.beta / ratio
        return table.ravel()

    def hurry(self) -> None:
        """Leave the plans as they are: any potentials prove bounds."""
        self.improve = lambda iteration: None  # type: ignore[method-assign]

    def end(self) -> None:
        """Release nothing."""
        return None  # noqa: RET501

    @abstractmethod
    def improve(self, iteration: int) -> None:
        """Improve the plans for the current table."""

    @abstractmethod
    def is_due(self, iteration: int) -> bool:
        """Return whether a check is worth its cost now."""

    @abstractmethod
    def evaluate(self) -> None:
        """Compute the next table."""

    @property
    def spread(self) -> float:
        """max U - min U, the scale to compare 1/β with."""
        return max(float(np.ptp(self.U)), 1e-12 * float(np.abs(self.U).max()), 1e-300)

    def coupling(self) -> SinkhornCoupling:
        """Return the coupling, with the table shifted to the midpoint of the bounds."""
        low, high = self.start.bounds(self.U)
        U = self.U + (self.value / self.scale - (low + high) / 2)
        return SinkhornCoupling(self.problem, self.plans, U, self.epsilon)

    # --- evaluation ----------------------------------------------------------------------------------------

    def evaluate_plans(self, operator: PlanOperator, accuracy: float = 0.03) -> None:
        """Evaluate the plans, U = (1-γ) c + γ Π U, by a few sweeps or a linear solve."""
        if self.sweeps is None:
            operator.apply(self.U, image := np.empty_like(self.U))
            self.work["sweeps"] += 1
            self.move_to(np.asarray(self.c + self.discount * image), operator, accuracy)
            return
        self.U, image = self.U.copy(), np.empty_like(self.U)
        for _ in range(self.sweeps):
            operator.apply(self.U, image)
            np.add(self.c, self.discount * image, out=self.U)
        self.work["sweeps"] += self.sweeps

    def move_to(self, goal: Array, operator: PlanOperator, accuracy: float = 0.03) -> None:
        """Set U to U + δ with (I - γΠ) δ = goal - U, solved to `accuracy` relative to the right-hand side.

        This is the value of the plans if `goal` is (1-γ) c + γ Π U, and Newton's step for the entropic metric if it is
        the soft goal. Uses BiCGStab, or sweeps if it stagnates; a poor solution costs iterations, not correctness.
        """
        residual = goal - self.U
        δ, target = np.zeros_like(residual), accuracy * float(np.abs(residual).max())
        worst, products = operator.solve(self.discount, residual, δ, target, 60)
        if worst > 2 * target:
            δ = residual.copy()
            operator.sweep(self.discount, residual, δ, 100)
            products += 100
        self.work["sweeps"] += products
        self.U = self.U + δ

    def soft_goal(self) -> Array:
        """Return (1-γ) c + γ (<p, f> + <q, g>)."""
        return np.asarray(self.c + self.discount * self.plans.soft_values())

    # --- certificate ---------------------------------------------------------------------------------------

    def check(self, iteration: int) -> Check:
        """Compute bounds from the rounded plans and the transformed potentials, at the table U."""
        γ, plans, cost, scale = self.discount, self.plans, self.problem.cost, self.scale
        upper, (lower, size) = self._plan_costs(), plans.dual_bounds(self.U, self.epsilon)
        longest = plans.x.longest + plans.y.longest
        largest = max(size, float(np.abs(self.U).max()), float(self.c.max())) + plans.largest_information(self.epsilon)
        slack = 4 * (longest + 8) * EPS * largest
        tables = SeparableTables(self.U, self.c + γ * lower, self.c + γ * upper, slack)
        low, high = separable_bounds(tables, self.start.bounds(self.U), self.rho, γ, cost)
        self.lower = max(self.lower, low)
        self.upper = max(min(self.upper, high), self.lower)
        self.value = self.lower + (self.upper - self.lower) / 2  # lower + upper could overflow
        if self.epsilon:  # plans, potentials and gradient depend on the whole table
            self.table_gap = float((tables.upper - self.U).max() - (tables.lower - self.U).min()) / (1 - γ)
        self.work["half_steps"] = int(plans.half_steps)
        row = HistoryRow({
            "iteration": float(iteration), "value": self.value, "lower": self.lower, "upper": self.upper,
            "temperature": scale / (plans.beta * (1 - γ)), "error": float(plans.error.mean()),
            "half_steps": plans.half_steps,
        })  # fmt: skip
        return Check(row, max((self.upper - self.lower) / scale, self.table_gap / TABLE), slack / (1 - γ))

    def _plan_costs(self) -> Array:
        """Return the costs of the rounded plans for the table U, upper bounds on every transport."""
        if self.epsilon:
            return self.plans.soft_costs(self.U, self.epsilon)
        self.operator = PlanOperator(self.plans)
        self.operator.apply(self.U, upper := np.empty_like(self.U))
        return upper


class Annealing(SinkhornRun):
    """The kernel is exp(-βU) of the *current* table, and β doubles whenever the marginals are accurate enough.

    For the entropic metric at temperature ε, β ends at 1/ε, and from there both levels use Newton's method.
    """

    def __init__(self, problem: ChainProblem, options: "SinkhornPolicy", warm: DistanceResult | None = None) -> None:
        super().__init__(problem, options, warm)
        self.most = 1 / self.epsilon if self.epsilon else np.inf
        # A warm-start table may come from another problem and be flat. The spread of the independent coupling's table
        # is at least half that of (1-γ) c, so the initial temperature need not be lower than for that.
        spread = max(self.spread, float(np.ptp(self.c)) / 2)
        self.beta = min(max(FIRST_BETA / spread, self.plans.coldest), self.most)
        self.stuck, self.lagging, self.change = 0, False, self.spread
        self.from_warm = self.beta > FIRST_BETA / spread  # whether the temperature is that of a previous result

    def improve(self, iteration: int) -> None:
        final = self.beta == self.most
        self.lagging = self.lagging or self.stuck >= (PATIENCE if self.policy else MORE_PATIENCE)
        target = self._accuracy() if final else 0.1 / (self.beta * self.spread)
        self.plans.set_kernel(self.U, self.beta)
        self.plans.scale(ITERATIONS if self.policy or final else ITERATIONS_PER_UPDATE, target)
        if final or self.lagging:
            self.work["newton"] += self.plans.polish(target)

    def _accuracy(self) -> float:
        """Return the marginal error to reach for d_ε: a fraction of the last change of the table, limited by `tol`."""
        least = 0.1 * self.tol * (1 - self.discount) / max(self.spread, self.epsilon)
        return max(1e-3 * min(self.change / self.spread, 1.0), min(least, 1e-3), 2e-15)

    def is_due(self, iteration: int) -> bool:
        return (self.policy or iteration % CADENCE == 1) and (not self.epsilon or self.beta == self.most)

    def evaluate(self) -> None:
        before = self.U
        if not self.policy:
            self.U = self._extrapolated()
        elif self.epsilon:
            self.move_to(self.soft_goal(), PlanOperator(self.plans))
        else:
            self.evaluate_plans(self.operator)
        self.change = float(np.ptp(self.U - before))
        if self.from_warm and not self.epsilon and self.beta * self.change > FOREIGN:
            # the warm start came from another problem
            self.beta = max(FIRST_BETA / self.spread, FIRST_BETA / self.change)
            self.plans.F[:], self.plans.G[:] = 0.0, 0.0
        self.from_warm = False
        self._cool()

    def _extrapolated(self) -> Array:
        """Return the soft Bellman update plus the constant that further updates would add (MacQueen's shift)."""
        goal = self.soft_goal()
        change = goal - self.U
        return np.asarray(goal + self.discount / (1 - self.discount) * (change.max() + change.min()) / 2)

    def _cool(self) -> None:
        """Increase β if the marginals are accurate enough."""
        right = float(self.plans.error.mean()) * self.beta * self.spread <= READY
        settled = self.policy or self.change * self.beta <= READY
        self.stuck = 0 if right else self.stuck + 1
        if right and settled:
            self.beta = min(GROWTH * self.beta, self.most)


class MirrorDescent(SinkhornRun):
    """The paper's mirror descent: the *last plans* times exp(-η_k Q_k), correcting one marginal per iteration.

    All factors accumulate in the kernel, log K = -Σ_k η_k γ V_k = -β W, so the plans stay in Gibbs form.
    """

    def __init__(self, problem: ChainProblem, options: "SinkhornPolicy", warm: DistanceResult | None = None) -> None:
        super().__init__(problem, options, warm)
        self.eta, self.constant = options.eta, options.schedule == "constant"
        self.beta, self.W, self.next = 0.0, np.zeros_like(self.U), 1
        self.plans.F[:], self.plans.G[:] = 0.0, 0.0  # the independent coupling

    def improve(self, iteration: int) -> None:
        plans, columns = self.plans, iteration % 2 == 0
        eta = self.eta if self.constant else self.eta / np.sqrt(iteration)
        step = eta * self.discount / (1 - self.discount)  # η γ V = step · U
        if not self.policy:
            self._soft_sweeps(step, columns)
        self.W = (self.beta * self.W + step * self.U) / (self.beta + step)
        self.beta += step
        plans.set_kernel(self.W, self.beta, keep=True)
        plans.half_step(columns, plans.G if columns else plans.F)

    def _soft_sweeps(self, step: float, columns: bool) -> None:
        """Apply U ← (1-γ) c + γ min_π (<π, U> + KL(π ‖ last plan)/step) with one marginal fixed (Bellman–Sinkhorn)."""
        plans, beta = self.plans, self.beta + step
        potential = plans.G if columns else plans.F
        out = np.empty_like(potential)
        for _ in range(self.sweeps or 1):
            plans.set_kernel((self.beta * self.W + step * self.U) / beta, beta, keep=True)
            plans.half_step(columns, out)
            rise = plans.means(columns, out) - plans.means(columns, potential)
            self.U = self.c + self.discount * beta / step * rise

    def is_due(self, iteration: int) -> bool:
        if iteration < self.next:
            return False
        self.next = iteration + max(10, iteration // 5)
        return True

    def evaluate(self) -> None:
        if self.policy:
            self.evaluate_plans(PlanOperator(self.plans, rounded=False), accuracy=1e-12)


def _temperature(epsilon: float, scale: float, discount: float) -> float:
    """Return the temperature of U for `epsilon` in the units of the cost."""
    scaled = (1 - discount) * (epsilon / scale)
    if epsilon and not COLDEST <= scaled <= 1 / COLDEST:
        raise InvalidArgument(
            f"epsilon is {epsilon!r} but the largest cost is {scale:g}; their ratio is too far from one for double "
            "precision, so choose a temperature closer to the costs, or 0 for the distance itself"
        )
    return scaled


def independent_value(plans: GibbsPlans, c: Array, discount: float) -> Array:
    """Return U of the independent coupling, flat and scaled, the initial table: (I - γ P_X ⊗ P_Y) U = (1-γ) c.

    If BiCGStab diverges, which can happen for periodic chains at a discount near one, the costs are the initial table.
    """
    costs = c / (1 - discount)
    U, largest = costs.copy(), float(c.max())
    target, run = 1e-13 * largest, plans.run()
    residual, _ = _engine.solve_independent(plans.x, plans.y, NO_NUMBERS, discount, c, U, target, 100, run)
    return np.clip(U, costs.min(), costs.max()) if residual <= largest else costs
