"""SOMCOT, a stochastic solver for sample streams, and its options.

solver.py    the run, and the coupling that it returns
state.py     the state of a run: supports, iterates, averages
engine/somcot.hpp          the iteration on the factors of the coupling
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from diffbisim.common.checks import as_number
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.base import ChainProblem, Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.results.base import DistanceResult
from diffbisim.solvers.base import Callback

__all__ = ["Somcot"]


@dataclass(frozen=True, slots=True)
class Somcot:
    """Stochastic primal-dual iterations on sample streams (``solver="somcot"``).

    Parameters
    ----------
    max_iterations : int, default=300_000
        Total number of iterations, including those of a run that is resumed.
    rng : int or Generator, default=0
        Seed or generator for drawing from chains and datasets. A run with `warm` continues with its old generators.
    batch : int, default=1
        Transitions per iteration from each stream. Iterables of minibatches determine their own sizes.
    eta : float, default=0.2
        Step η of μ, λ_X and λ_Y, for costs scaled to a maximum of one.
    beta : float, default=0.01
        Step β of α_X, α_Y and V, for costs scaled to a maximum of one.
    decay : float, default=0.0
        Steps decrease like (1 + k/decay_from)^-decay; 0 means constant steps.
    decay_from : float, default=10_000.0
        See `decay`.
    memory : bool, default=True
        Whether every iteration uses all transitions seen so far. False uses only the last minibatch.
    anticipation : float, default=2.0
        How far primal steps extrapolate the multipliers: 0 uses the old ones (literal), 1 the new ones, 2 extrapolates.
    full : bool, default=False
        Whether to allocate all possible transitions at the start, as in the paper's dense coupling.
    carry : bool, default=False
        Whether a run with `warm` also keeps the coupling if its streams are different, as single loops do.
    certify : bool, default=True
        Whether to certify bounds by an exact Bellman sweep at the end, if the kernels are known.
    time_limit : float, default=None
        Seconds after which the run ends. If bounds take more than half a second longer, those of the costs are used.
    """

    max_iterations: int = 300_000
    rng: int | np.random.Generator = 0
    batch: int = 1
    eta: float = 0.2
    beta: float = 0.01
    decay: float = 0.0
    decay_from: float = 10_000.0
    memory: bool = True
    anticipation: float = 2.0
    full: bool = False
    carry: bool = False
    certify: bool = True
    time_limit: float | None = None

    name: ClassVar[str] = "somcot"
    samples: ClassVar[bool] = True
    tracks: ClassVar[bool] = True
    solves: ClassVar[tuple[type[Problem], ...]] = (Discounted,)
    tol: ClassVar[None] = None
    threads: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("max_iterations", "batch", "eta", "beta", "decay_from", "time_limit"):
            option = getattr(self, name)
            if option is not None and not 0 < as_number(option) < float("inf"):
                raise InvalidArgument(f"{name} is {option!r}; it must be positive and finite")
        for name in ("max_iterations", "batch"):
            if getattr(self, name) != int(getattr(self, name)):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be a whole number")
        for name in ("decay", "anticipation"):
            if not 0 <= as_number(getattr(self, name)) < float("inf"):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be at least 0")

    def solve(
        self, problem: ChainProblem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Estimate the distance of a problem from samples of its two chains."""
        from diffbisim.solvers.somcot.solver import EstimationTask, solve

        return solve(EstimationTask.of_problem(problem), self, warm, callback)

    def estimate(
        self, X: Any, Y: Any, cost: Any, discount: float, warm: DistanceResult | None = None,
        callback: Callback | None = None,
    ) -> DistanceResult:  # fmt: skip
        """Estimate the distance of two streams: chains, :class:`Transitions` or :class:`Stream` objects, also mixed."""
        from diffbisim.solvers.somcot.solver import EstimationTask, solve

        return solve(EstimationTask.of_streams(X, Y, cost, discount, self.memory), self, warm, callback)
