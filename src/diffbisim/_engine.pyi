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

#: The largest number of states of two chains together that :func:`solve_small` takes.
MAX_STATES_OF_SMALL: int

class SmallSolution:
    """A solved problem. Arrays are read-only views of its memory; tables are scaled by the largest cost.

    ``ended`` is 0 (converged), 1 (limited by rounding), 2 (max_iterations), 3 (time) or 4: the linear solver stagnated,
    and the problem needs the general solver. ``history`` has a tuple (value, lower, upper, pivots, improvements,
    products) for every iteration.
    """

    value: float
    lower: float
    upper: float
    gap: float
    ended: int
    iterations: int
    history: list[tuple[float, float, float, int, int, int]]
    clipped: float
    U: NDArray[np.float64]
    listed: NDArray[np.int64]
    order_x: NDArray[np.int64]
    order_y: NDArray[np.int64]
    at: NDArray[np.int64]
    child: NDArray[np.int8]
    parent: NDArray[np.int8]
    flow: NDArray[np.float64]
    start_child: NDArray[np.int32]
    start_parent: NDArray[np.int32]
    start_flow: NDArray[np.float64]
    start_pot: NDArray[np.float64]

def solve_small(
    problem: Any,
    values: NDArray[np.float64] | None,
    known: tuple[Any, ...] | None,
    reachable: bool,
    tol: float,
    max_iterations: float,
    seconds: float,
    run: Run,
) -> SmallSolution:
    """Run policy iteration on a :class:`diffbisim.problem.Problem` with few states.

    ``values (n_X*n_Y,)`` is a table to start from, in the units of the costs, NaN where it is not known. ``known`` are
    trees ``(x, y, listed, child, parent)`` of a problem with successors x and y; they are used if those are the same.
    """

def solve_many(
    pack: Any,
    pairs: NDArray[np.int64],
    tables: NDArray[np.float64],
    discount: float,
    tol: float,
    max_iterations: float,
    squared: bool,
    run: Run,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Solve the problems of pairs (2 B,) of chains (solvers/exact/small.py); returns (value, lower, upper), (B,) each.

    Bounds are infinite where a problem is not small or did not converge.
    """
