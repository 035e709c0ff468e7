"""SOMCOT, and its options.

    solver.py    draw, iterate, report; what is known at the end
    state.py     all that a run needs to go on: supports, iterates, averages
    kernels.py   the iteration on the factors of the coupling

numba is loaded when a solver runs, not before.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers.base import Callback

__all__ = ["Somcot"]


@dataclass(frozen=True, slots=True)
class Somcot:
    """Stochastic primal-dual iterations on sample streams (``solver="somcot"``).

    Attributes:
        steps: iterations in all, those of a resumed run included.
        rng: seed or generator for drawing from chains and datasets; a run with ``warm`` goes on with the old ones.
        batch: transitions per iteration from each stream (minibatches of an iterable are taken as they come).
        eta: step η of μ, λ_X and λ_Y, for costs whose largest is one (others are scaled).
        beta: step β of α_X, α_Y and V, likewise.
        decay: steps fall like (1 + k/decay_from)^-decay; 0 for constant steps.
        decay_from: see ``decay``.
        memory: use all transitions seen so far in every iteration; False for the last minibatch alone.
        anticipation: how far ahead primal steps see the multipliers; 2 extrapolates, 0 is literal.
        full: give every conceivable transition room from the start, as the paper's dense coupling does.
        carry: let the coupling go on as well when ``warm`` is of other streams, as single loops do.
        certify: with known kernels, certify bounds by an exact Bellman sweep at the end.
        time_limit: seconds after which no further chunk of iterations starts.
    """

    steps: int = 300_000
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
    criteria: ClassVar[tuple[str, ...]] = ("discounted",)
    tol: ClassVar[None] = None
    threads: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "eta", "beta", "decay_from", "time_limit"):
            option = getattr(self, name)
            if option is not None and not 0 < as_number(option) < float("inf"):
                raise InvalidArgument(f"{name} is {option!r}; it must be positive and finite")
        for name in ("steps", "batch"):
            if getattr(self, name) != int(getattr(self, name)):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be a whole number")
        for name in ("decay", "anticipation"):
            if not 0 <= as_number(getattr(self, name)) < float("inf"):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be at least 0")

    def solve(
        self, problem: Problem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Sample from the two chains of a problem."""
        from diffbisim.solvers.somcot.solver import Task, solve

        return solve(Task.of_problem(problem), self, warm, callback)

    def estimate(
        self, X: Any, Y: Any, cost: Any, discount: float, warm: DistanceResult | None = None,
        callback: Callback | None = None,
    ) -> DistanceResult:  # fmt: skip
        """From two streams: chains, :class:`Transitions` or :class:`Stream` objects, in any mixture."""
        from diffbisim.solvers.somcot.solver import Task, solve

        return solve(Task.of_streams(X, Y, cost, discount, self.memory), self, warm, callback)
