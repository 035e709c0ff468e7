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
    def solve(
        self, W: NDArray[np.float64], values: NDArray[np.float64], effort: Any, plans: Any, run: Run
    ) -> tuple[int, int, float]:
        """Solve all items for the table W, with an ``Effort``; narrow trees keep ``SinglePlans``.

        Returns the number of pivots, the number of items that were not solved, and the largest mass that was moved to
        keep a plan nonnegative.
        """
    def targets(self, numbers: NDArray[np.int64], targets: NDArray[np.int32] | NDArray[np.int64], run: Run) -> None:
        """Write the pair of states that every edge leads to, or the number of that."""
    def flows(self, flow: NDArray[np.float64], run: Run) -> None:
        """Write the flows of all narrow trees."""
    def edges_of(self, k: int) -> tuple[int, int]:
        """Return the first edge of item k, and the end."""
    def item_flows(self, k: int) -> NDArray[np.float64]:
        """Return the flows of narrow item k."""
    def potentials(self, k: int, W: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return potentials ``(n_X,)`` and ``(n_Y,)`` of item k, extended off the supports by c-transforms."""
    def sum_potentials(
        self,
        W: NDArray[np.float64],
        m: NDArray[np.float64],
        by_x: NDArray[np.float64],
        by_y: NDArray[np.float64],
        on_supports: bool,
        run: Run,
    ) -> None:
        """Add the potentials with weights m, by row and state, or on the entries (row, successor) only."""

def first_unfit(items: Any, trees: Any, tolerance: float, run: Run) -> tuple[int, int]:
    """Return the first item whose tree is invalid, and what is: edges (1) or flows (2); (0, 0) if all are valid."""

def first_tree(p: NDArray[np.float64], q: NDArray[np.float64], tree: Any) -> None:
    """Write the northwest corner's basis of one transport to a ``Tree``."""

def solve_one(
    costs: NDArray[np.float64],
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    tree: Any,
    price: float,
    pot: NDArray[np.float64],
    run: Run,
) -> tuple[float, bool, float, float]:
    """Solve one transport, starting from its ``Tree``; writes the potentials ``pot (a + b,)``.

    Returns the value, whether it was solved, how far the least reduced cost is below zero, and the mass that was moved
    to keep the plan nonnegative.
    """

def sort_keys(cost: NDArray[np.float64], n_y: int, run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return one number per state, such that states matched in sorted order are at low cost."""

def reachable(successors: Any, seen: NDArray[np.bool_], first: NDArray[np.int64], run: Run) -> NDArray[np.int64]:
    """Return the pairs that can be reached from ``first`` (``PairSuccessors``), in no order; marks them as seen."""

def extremes(listed: NDArray[np.int64], TU: NDArray[np.float64], U: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the least and the largest TU - U over the pairs, and the size of both tables; NaN if any difference is."""

def settle(
    cost: NDArray[np.float64],
    scale: float,
    discount: float,
    U: NDArray[np.float64],
    TU: NDArray[np.float64],
    run: Run,
) -> tuple[float, float, float]:
    """Compute TU = (1-γ) c + γ TU at all pairs; returns the same as :func:`extremes`."""

def exchange(
    middle: float,
    shift: float,
    U: NDArray[np.float64],
    TU: NDArray[np.float64],
    residual: NDArray[np.float32],
    run: Run,
) -> None:
    """Compute residual = TU - U - middle and U = TU + shift at all pairs."""

def add_difference(fresh: NDArray[np.float32], old: NDArray[np.float32], U: NDArray[np.float64], run: Run) -> None:
    """Compute U += fresh - old at all pairs."""

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
