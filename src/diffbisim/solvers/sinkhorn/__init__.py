"""Sinkhorn value and policy iteration, and their options.

    solver.py     the algorithm: improve, check, evaluate; the annealing schedule
    plans.py      the plans of all pairs in Gibbs form, and as one matrix
    coupling.py   the coupling, and the entropic metric

Sinkhorn's and Newton's iterations, rounding and transforms are in engine/sinkhorn.hpp.
"""

from dataclasses import dataclass
from typing import ClassVar

from diffbisim.common.checks import as_number, check_choice
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.base import ChainProblem, Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.results.base import DistanceResult
from diffbisim.solvers.base import Callback, check_options

__all__ = ["SinkhornPolicy", "SinkhornValue"]

SCHEDULES = ("anneal", "sqrt", "constant")


@dataclass(frozen=True, slots=True)
class SinkhornPolicy:
    """Sinkhorn policy iteration (``solver="sinkhorn-policy"``).

    Parameters
    ----------
    tol : float, default=None
        Certified gap to reach, relative to the largest ground cost. None means 1e-3, or 1e-10 with `epsilon`.
    epsilon : float, default=0.0
        Temperature of the entropic metric, in the units of the cost; 0 for the distance itself.
    schedule : {"anneal", "sqrt", "constant"}, default="anneal"
        Annealing, or the paper's schedules η/√k and η.
    eta : float, default=5.0
        η of the paper's schedules, for costs scaled to a maximum of one.
    sweeps : int, default=None
        Evaluation sweeps per iteration. None means a linear solve for policy iteration and one sweep for value
        iteration.
    max_iterations : int, default=1000
        Maximum number of improvements; beyond it the solver warns, and the bounds remain valid.
    time_limit : float, default=None
        Seconds after which no further iteration starts; one that takes a tenth longer is abandoned. None for no limit.
    threads : int, default=None
        Number of threads; None for all processors if the work is large enough.
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
    solves: ClassVar[tuple[type[Problem], ...]] = (Discounted,)
    policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= as_number(self.epsilon) < float("inf"):
            raise InvalidArgument(f"epsilon is {self.epsilon!r}; pass a temperature in the units of the cost, or 0")
        if self.tol is None:
            object.__setattr__(self, "tol", 1e-10 if self.epsilon else 1e-3)
        check_choice(self.schedule, "schedule", SCHEDULES)
        check_options(self, "tol", "eta", "sweeps", "max_iterations", "time_limit", "threads")
        if self.epsilon and self.schedule != "anneal":
            raise InvalidArgument(
                f"epsilon needs schedule='anneal', because {self.schedule!r} does not end at a given temperature"
            )

    def solve(
        self, problem: ChainProblem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Solve to the certified gap, starting from a previous result if given; stops if ``callback(row)`` is true."""
        from diffbisim.solvers.sinkhorn.solver import solve

        return solve(problem, self, warm, callback)


@dataclass(frozen=True, slots=True)
class SinkhornValue(SinkhornPolicy):
    """Sinkhorn value iteration (``solver="sinkhorn-value"``): no linear solves between the half-steps.

    Parameters are those of :class:`SinkhornPolicy`.
    """

    name: ClassVar[str] = "sinkhorn-value"
    policy: ClassVar[bool] = False
