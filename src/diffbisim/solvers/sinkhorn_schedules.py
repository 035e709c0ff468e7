"""How the temperature falls: two ways to run Sinkhorn value and policy iteration (see sinkhorn.py).

A schedule improves the plans for the present table, says when a certificate is worth its cost, and evaluates.
"""

from abc import ABC, abstractmethod

import numpy as np

from diffbisim.problem import Array
from diffbisim.solvers.base import Check
from diffbisim.solvers.sinkhorn_operator import plan_operator
from diffbisim.solvers.sinkhorn_run import Run

#: Annealing: first β·spread, growth of β, Sinkhorn iterations at a time, and the marginal error, times β·spread, below
#: which a lower temperature pays more than better marginals. Chosen by trial; they cost time, never correctness.
FIRST, GROWTH, ITERATIONS, READY = 80.0, 2.0, 40, 0.5

#: Batches without success after which, from then on, Newton helps the pairs that lag behind.
PATIENCE = 2

#: A temperature that a previous result had is too low if the first evaluation moves the table by so many times as much.
STRANGE = 1e4

#: Value iteration: Sinkhorn iterations between two updates of the table, updates between two certificates, batches.
FEW, CADENCE, MORE_PATIENCE = 10, 5, 10


class Schedule(ABC):
    """A run that base.py can drive; the certificate is the same for both schedules."""

    run: Run

    @abstractmethod
    def improve(self, iteration: int) -> None:
        """Better plans for the present table."""

    @abstractmethod
    def is_due(self, iteration: int) -> bool:
        """Whether a certificate is worth its cost now."""

    @abstractmethod
    def evaluate(self) -> None:
        """The next table."""

    def check(self, iteration: int) -> Check:
        """Bounds from the rounded plans."""
        return Check(self.run.check(iteration), self.run.gap, self.run.slack)


class Annealing(Schedule):
    """The kernel is exp(-βU) of the *present* table, and β doubles whenever the marginals are right enough.

    With a temperature ε of the entropic metric, β ends at 1/ε, and from there on both levels are Newton's method.
    """

    def __init__(self, run: Run, policy: bool, sweeps: int | None, tol: float) -> None:
        self.run, self.policy, self.sweeps, self.tol = run, policy, sweeps, tol
        self.most = 1 / run.epsilon if run.epsilon else np.inf
        # The table to begin with may be another problem's and flat. That of the independent coupling never spreads less
        # than half as far as (1-γ) c, so the temperature need not be lower than for that.
        spread = max(run.spread, float(np.ptp(run.c)) / 2)
        self.beta = min(max(FIRST / spread, run.plans.coldest), self.most)
        self.stuck, self.lagging, self.change = 0, False, run.spread
        self.borrowed = self.beta > FIRST / spread  # from a previous result

    def improve(self, iteration: int) -> None:
        run, plans, final = self.run, self.run.plans, self.beta == self.most
        self.lagging = self.lagging or self.stuck >= (PATIENCE if self.policy else MORE_PATIENCE)
        target = self._accuracy() if final else 0.1 / (self.beta * run.spread)
        plans.heat(run.U, self.beta)
        plans.scale(ITERATIONS if self.policy or final else FEW, target)
        if final or self.lagging:
            run.work["newton"] += plans.polish(target)

    def _accuracy(self) -> float:
        """Marginal error that d_ε needs: a share of what the table still moves, down to what ``tol`` asks for."""
        run = self.run
        least = 0.1 * self.tol * (1 - run.discount) / max(run.spread, run.epsilon)
        return max(1e-3 * min(self.change / run.spread, 1.0), min(least, 1e-3), 2e-15)

    def is_due(self, iteration: int) -> bool:
        return (self.policy or iteration % CADENCE == 1) and (not self.run.epsilon or self.beta == self.most)

    def evaluate(self) -> None:
        run, before = self.run, self.run.U
        if not self.policy:
            run.U = _extrapolated(run)
        elif run.epsilon:
            run.evaluate(plan_operator(run.plans), run.soft_goal())
        elif self.sweeps is None:
            run.evaluate(run.operator)
        else:
            run.U = before.copy()
            run.sweep(run.operator, self.sweeps)
        self.change = float(np.ptp(run.U - before))
        if self.borrowed and not run.epsilon and self.beta * self.change > STRANGE:
            self.beta = max(FIRST / run.spread, FIRST / self.change)  # the previous result was of another problem
            run.plans.F[:], run.plans.G[:] = 0.0, 0.0
        self.borrowed = False
        self._cool()

    def _cool(self) -> None:
        plans, spread = self.run.plans, self.run.spread
        right = float(plans.error.mean()) * self.beta * spread <= READY
        settled = self.policy or self.change * self.beta <= READY
        self.stuck = 0 if right else self.stuck + 1
        if right and settled:
            self.beta = min(GROWTH * self.beta, self.most)


def _extrapolated(run: Run) -> Array:
    """The soft Bellman update, and the constant that it would still add in the end (MacQueen's shift)."""
    goal = run.soft_goal()
    change = goal - run.U
    return np.asarray(goal + run.discount / (1 - run.discount) * (change.max() + change.min()) / 2)


class Descent(Schedule):
    """The paper's mirror descent: the *last plans* times exp(-η_k Q_k), one marginal made right per iteration.

    All factors accumulate in the kernel, log K = -Σ_k η_k γ V_k = -β W, so the plans stay in Gibbs form.
    """

    def __init__(self, run: Run, policy: bool, sweeps: int | None, eta: float, constant: bool) -> None:
        self.run, self.policy, self.sweeps, self.eta, self.constant = run, policy, sweeps, eta, constant
        self.beta, self.W, self.next = 0.0, np.zeros_like(run.U), 1
        run.plans.F[:], run.plans.G[:] = 0.0, 0.0  # the independent coupling

    def improve(self, iteration: int) -> None:
        run, plans, columns = self.run, self.run.plans, iteration % 2 == 0
        eta = self.eta if self.constant else self.eta / np.sqrt(iteration)
        step = eta * run.discount / (1 - run.discount)  # η γ V = step · U
        if not self.policy:
            self._soft_sweeps(step, columns)
        self.W = (self.beta * self.W + step * run.U) / (self.beta + step)
        self.beta += step
        plans.heat(self.W, self.beta, keep=True)
        plans.half_step(columns, plans.G if columns else plans.F)

    def _soft_sweeps(self, step: float, columns: bool) -> None:
        """U ← (1-γ) c + γ (least of <π, U> + KL(π ‖ last plan)/step with one marginal right): Bellman-Sinkhorn."""
        run, plans = self.run, self.run.plans
        potential = plans.G if columns else plans.F
        out, beta = np.empty_like(potential), self.beta + step
        for _ in range(self.sweeps or 1):
            plans.heat((self.beta * self.W + step * run.U) / beta, beta, keep=True)
            plans.half_step(columns, out)
            rise = plans.means(columns, out) - plans.means(columns, potential)
            run.U = run.c + run.discount * beta / step * rise

    def is_due(self, iteration: int) -> bool:
        if iteration < self.next:
            return False
        self.next = iteration + max(10, iteration // 5)
        return True

    def evaluate(self) -> None:
        if self.policy:
            operator = plan_operator(self.run.plans, rounded=False)
            if self.sweeps is None:
                self.run.evaluate(operator, accuracy=1e-12)
            else:
                self.run.U = self.run.U.copy()
                self.run.sweep(operator, self.sweeps)
