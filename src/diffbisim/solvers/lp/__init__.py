"""The paper's linear program as a solver, and its options.

    solver.py     solves and certifies; the coupling
    program.py    the programs: plans of all pairs as one matrix, constraints, HiGHS

This package shares no code with the compiled solvers, because it is their oracle.
"""

from dataclasses import dataclass
from typing import ClassVar

from diffbisim.common.checks import check_choice
from diffbisim.problems.base import ChainProblem, Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.results.base import DistanceResult
from diffbisim.solvers.base import Callback, check_options

__all__ = ["LinearProgram"]

METHODS = ("highs", "highs-ds", "highs-ipm")


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """The paper's linear program, solved by HiGHS (``solver="lp"``): the reference for small chains.

    Parameters
    ----------
    tol : float, default=1e-8
        Certified gap to reach, relative to the largest cost.
    method : {"highs", "highs-ds", "highs-ipm"}, default="highs"
        Dual simplex ("highs-ds"), interior point ("highs-ipm"), or the choice of HiGHS ("highs").
    max_iterations : int, default=None
        Maximum number of simplex or interior-point iterations.
    time_limit : float, default=None
        Seconds for each of the two programs, with their assembly. The certificate, which needs a linear system with one
        equation per pair that the plans reach, comes on top.
    max_variables : int, default=2_000_000
        Larger programs are refused.
    """

    tol: float = 1e-8
    method: str = "highs"
    max_iterations: int | None = None
    time_limit: float | None = None
    max_variables: int = 2_000_000

    name: ClassVar[str] = "lp"
    samples: ClassVar[bool] = False
    tracks: ClassVar[bool] = False
    solves: ClassVar[tuple[type[Problem], ...]] = (Discounted,)
    threads: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_choice(self.method, "method", METHODS)
        check_options(self, "tol", "max_iterations", "time_limit", "max_variables")

    def solve(
        self, problem: ChainProblem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Solve and certify. `warm` is checked but not used, because HiGHS in scipy has no warm start."""
        from diffbisim.solvers.lp.solver import solve

        return solve(problem, self, warm, callback)
