from typing import Any

import numpy as np
from numpy.typing import NDArray

level: str

class Run:
    """How a call computes: its number of threads, a flag ``(1,)`` that stops it, and the seconds that it may take.

    A call that is stopped raises KeyboardInterrupt; one that takes longer, TimeoutError.
    """

    def __init__(self, threads: int, stop: NDArray[np.bool_], time_left: float = ...) -> None: ...

class Transports:
    """A list of transports: tuples ``Items`` and ``Trees`` of arrays (solvers/exact/transports.py), which are kept."""

    def __init__(self, items: Any, trees: Any) -> None: ...

class Game:
    """A game on pairs of states: tuples of arrays (solvers/exact/games.py), which are kept and updated."""

    def __init__(self, transports: Transports, rules: Any, moves: Any, targets: Any, selected: Any) -> None: ...
    def improve_pairs(self, W: NDArray[np.float64], basis: int, price: float, run: Run) -> tuple[int, int, float, int]:
        """Improve plans and moves for the table W; reduced costs above -``price`` count as zero.

        Returns the number of pivots, of transports that failed, the largest mass that was moved to keep a plan
        nonnegative, and the number of transports that were solved.
        """

    def select_plans(self, run: Run) -> None:
        """Copy the plans in use."""

    def improve_lines(self, u: NDArray[np.float64], tie: float, run: Run) -> tuple[float, float]:
        """Improve the moves of both sides for the values u of the pairs, where they gain more than ``tie``.

        Returns the least and the largest change of a value.
        """

    def improve_choices(self, u: NDArray[np.float64], tie: float, run: Run) -> float:
        """Improve the choices within the present lines; returns the largest gain."""

def refine(
    first: NDArray[np.int64],
    sources: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    classes: NDArray[np.int64],
    tolerance: float,
    run: Run,
) -> tuple[NDArray[np.int64], int]:
    """Refine a partition; ``first``, ``sources`` and ``probabilities`` are the columns of the kernels.

    Returns the class of every state and the number of transitions visited.
    """
