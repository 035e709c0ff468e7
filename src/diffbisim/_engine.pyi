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

def exponentials(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^t for -700 < t ≤ 709, within two units in the last place."""

def logarithms(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln v, within one unit in the last place."""

def round_plan(plan: NDArray[np.float64], p: NDArray[np.float64], q: NDArray[np.float64]) -> None:
    """Round a plan ``(p.size * q.size,)`` in place to the marginals p and q."""

class GibbsPlans:
    """The plans of all pairs of rows of two chains, in Gibbs form (solvers/sinkhorn/plans.py).

    ``x`` and ``y`` are ``Successors``; ``F`` and ``G`` are written to.
    """

    def __init__(
        self, x: Any, y: Any, shape: tuple[int, int], F: NDArray[np.float64], G: NDArray[np.float64]
    ) -> None: ...
    def set_kernel(self, W: NDArray[np.float64], beta: float, share: bool) -> bool:
        """Set table and inverse temperature; return whether all pairs share a kernel, which ``share`` allows."""

    def scale(
        self, iterations: int, target: float, omega: NDArray[np.float64], error: NDArray[np.float64], run: Run
    ) -> int:
        """Run Sinkhorn on every pair until its error is at most ``target``; return the number of all iterations."""

    def polish(self, target: float, error: NDArray[np.float64], run: Run) -> int:
        """Run Newton's method on pairs whose error exceeds ``target``; return their number."""

    def half_step(self, columns: bool, out: NDArray[np.float64], run: Run) -> None:
        """Write softmin(W - G) to ``out`` (like F), or, with ``columns``, softmin(W - F) (like G)."""

    def means(self, columns: bool, potential: NDArray[np.float64], out: NDArray[np.float64], run: Run) -> None:
        """Write <p, f> of every pair for an array like F, or, with ``columns``, <q, g> for one like G."""

    def plan_costs(
        self, U: NDArray[np.float64], epsilon: float, rounded: bool, out: NDArray[np.float64], run: Run
    ) -> None:
        """Write <π, U> + ε KL(π ‖ p⊗q) of every plan."""

    def dual_bounds(self, U: NDArray[np.float64], epsilon: float, out: NDArray[np.float64], run: Run) -> float:
        """Write lower bounds on the transports of all pairs; return the largest potential."""

    def plan(self, k: int, rounded: bool) -> NDArray[np.float64]:
        """Return the plan of pair k on its successors, flat."""

    def potentials(
        self, k: int, U: NDArray[np.float64], epsilon: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the potentials of pair k at all states."""

    def weighted_potentials(
        self, U: NDArray[np.float64], epsilon: float, m: NDArray[np.float64], by_x: NDArray[np.float64],
        by_y: NDArray[np.float64], run: Run,
    ) -> None:  # fmt: skip
        """Write Σ m_k f_k by rows of X and Σ m_k g_k by rows of Y: at all states or aligned with the successors."""

    def independent_means(self, V: NDArray[np.float64], out: NDArray[np.float64], run: Run) -> None:
        """Write the mean of a table under the independent coupling of every pair."""

    def operator(self, rounded: bool, form: str, run: Run) -> PlanOperator | None:
        """Return the plans as a matrix: ``"factored"`` (None if impossible), ``"stored"`` or ``"recomputed"``."""

class PlanOperator:
    """The matrix Π of the plans, and its transpose."""

    def apply(self, V: NDArray[np.float64], out: NDArray[np.float64], run: Run) -> None:
        """Write <π_k, V> of all pairs."""

    def push(self, m: NDArray[np.float64], out: NDArray[np.float64], run: Run) -> None:
        """Write Σ_k m_k π_k."""
