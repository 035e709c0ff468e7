"""Sinkhorn value and policy iteration: approximate distances for large dense chains, and the smooth entropic metric.

All pairs (x,y) share the cost table of their transports, so they share the Gibbs kernel exp(-βU): one half-step of
Sinkhorn's algorithm for *all* pairs is one matrix product (dense) or one pass over the supports (sparse). Calo,
Jonsson, Neu, Schwartz and Segovia-Aguas (2024) interleave such half-steps with the evaluation of the plans they make:

    improve     π_xy ← π_xy exp(-η γ V), then make the X marginal right, the next time the Y marginal
    evaluate    SPI: V = c + γ Π V, by ``sweeps`` sweeps or a linear solve
                SVI: V = c + γ min_π <π, V> + KL(π ‖ last plan)/(γη), one marginal right: a by-product of the half-step

*Schedules.* ``"sqrt"`` (η/√k) and ``"constant"`` are theirs: the exponents accumulate, log K = -Σ η_k γ V_k. The
default, ``"anneal"``, takes the kernel exp(-βU) of the present table afresh, runs a batch of over-relaxed Sinkhorn
iterations from the last potentials, and doubles β when the marginals are right enough, with Newton's method for the
pairs that lag behind at low temperatures; SPI evaluates by a Krylov solve, SVI takes the soft value.

*What is certified.* Plans are rounded to exact marginals and potentials made feasible by c-transforms, which gives true
bounds for every transport (sinkhorn_rounding.py, sinkhorn_potentials.py) and from them for the distance
(sinkhorn_run.py), rounding included, however the run ended. ``value`` is the middle of the bounds.

*Entropic mode* (``epsilon > 0``): value, bounds, plans, potentials and gradient are those of the regularized metric d_ε
(sinkhorn_coupling.py), solved to ``tol`` by Newton's method on both levels.

Cost of a half-step: n_X n_Y a b for a and b successors. Memory: 8 (a + b) bytes per pair for the potentials, and
16 (a + b) more while plans with a shared kernel are evaluated; the plans themselves are never stored for dense chains.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers.base import Callback, Limits, check_options, iterate

if TYPE_CHECKING:
    from diffbisim.solvers.sinkhorn_run import Run
    from diffbisim.solvers.sinkhorn_schedules import Schedule

SCHEDULES = ("anneal", "sqrt", "constant")


@dataclass(frozen=True, slots=True)
class SinkhornPolicy:
    """Sinkhorn policy iteration (``solver="sinkhorn-policy"``).

    Attributes:
        tol: certified gap to reach, relative to the largest ground cost; default 1e-3, with ``epsilon`` 1e-10.
        epsilon: temperature of the entropic metric, in the units of the cost; 0 for the distance itself.
        schedule: "anneal", or the paper's "sqrt" (η/√k) and "constant".
        eta: η of the paper's schedules, for costs whose largest is one (others are scaled).
        sweeps: sweeps of evaluation in every iteration; None for a linear solve (SPI) or one (SVI).
        max_iterations: improvements before it gives up (it warns, and the bounds stay true).
        time_limit: seconds after which no further iteration starts; None for no limit.
        threads: how many to use; None for all processors, where the work is large enough to pay.
    """

    tol: float | None = None
    epsilon: float = 0.0
    schedule: str = "anneal"
    eta: float = 5.0
    sweeps: int | None = None
    max_iterations: int = 1000
    time_limit: float | None = None
    threads: int | None = None

    name: ClassVar[str] = "sinkhorn-policy"
    samples: ClassVar[bool] = False
    criteria: ClassVar[tuple[str, ...]] = ("discounted",)
    policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.epsilon) < float("inf"):
            raise InvalidArgument(f"epsilon is {self.epsilon!r}; give a temperature in the units of the cost, or 0")
        if self.tol is None:
            object.__setattr__(self, "tol", 1e-10 if self.epsilon else 1e-3)
        if self.schedule not in SCHEDULES:
            raise InvalidArgument(f"schedule is {self.schedule!r}; choose one of {', '.join(map(repr, SCHEDULES))}")
        check_options(self, "tol", "eta", "sweeps", "max_iterations", "time_limit", "threads")
        if self.epsilon and self.schedule != "anneal":
            raise InvalidArgument(f"epsilon needs schedule='anneal': {self.schedule!r} never stops cooling")

    def solve(
        self, problem: Problem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Run to the certified gap, from a previous result if given; ``callback(row of history)`` true stops."""
        from diffbisim.solvers.sinkhorn_coupling import SinkhornCoupling
        from diffbisim.solvers.sinkhorn_run import Run

        run = Run(problem, self.epsilon, warm, self.threads)
        ended = iterate(self._schedule(run), Limits(self.tol or 0.0, self.max_iterations, self.time_limit), callback)
        return DistanceResult(
            problem, run.value, run.lower, run.upper, ended.status, ended.iterations, self.name,
            SinkhornCoupling.of_run(run), ended.history, dict(run.work),
        )  # fmt: skip

    def _schedule(self, run: "Run") -> "Schedule":
        from diffbisim.solvers.sinkhorn_schedules import Annealing, Descent

        if self.schedule == "anneal":
            return Annealing(run, self.policy, self.sweeps, self.tol or 0.0)
        return Descent(run, self.policy, self.sweeps, self.eta, self.schedule == "constant")


@dataclass(frozen=True, slots=True)
class SinkhornValue(SinkhornPolicy):
    """Sinkhorn value iteration (``solver="sinkhorn-value"``): no linear solves between the half-steps.

    Options as :class:`SinkhornPolicy`.
    """

    name: ClassVar[str] = "sinkhorn-value"
    policy: ClassVar[bool] = False
