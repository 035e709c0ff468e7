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

def somcot_iterate(
    problem: Any, iterates: Any, draws_x: Any, draws_y: Any, progress: Any, most_listed: int, run: Run
) -> None:
    """Run one iteration of SOMCOT per minibatch, in place, on the named tuples of solvers/somcot/state.py.

    At most ``most_listed`` entries of the coupling are listed. An iteration that is stopped has changed nothing.
    """

def somcot_enter_x(problem: Any, iterates: Any, fresh: NDArray[np.int64], occupancy: float, run: Run) -> None:
    """Initialize the multipliers of these new edges of X, whose joint occupancy is ``occupancy`` times λ_X."""

def somcot_enter_y(problem: Any, iterates: Any, fresh: NDArray[np.int64], occupancy: float, run: Run) -> None:
    """The same for edges of Y."""
