"""Sinkhorn value and policy iteration, and their options.

    solver.py     the algorithm: improve, check, evaluate; how the temperature falls
    plans.py      the plans of all pairs in Gibbs form, and as one matrix
    kernels.py    Sinkhorn and Newton on one pair, rounding, transforms
    coupling.py   what is known at the end; the entropic metric

numba is loaded when a solver runs, not before.
"""

from dataclasses import dataclass
from typing import ClassVar

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers.base import Callback, check_options

__all__ = ["SinkhornPolicy", "SinkhornValue"]

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
    tracks: ClassVar[bool] = False
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
        from diffbisim.solvers.sinkhorn.solver import solve

        return solve(problem, self, warm, callback)


@dataclass(frozen=True, slots=True)
class SinkhornValue(SinkhornPolicy):
    """Sinkhorn value iteration (``solver="sinkhorn-value"``): no linear solves between the half-steps.

    Options as :class:`SinkhornPolicy`.
    """

    name: ClassVar[str] = "sinkhorn-value"
    policy: ClassVar[bool] = False
