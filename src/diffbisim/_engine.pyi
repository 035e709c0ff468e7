from typing import Any

import numpy as np
from numpy.typing import NDArray

level: str

class Run:
    """How a call computes: its number of threads, a flag ``(1,)`` that stops it, and the seconds that it may take.

    A call that is stopped raises KeyboardInterrupt; one that takes longer, TimeoutError. ``share`` is the least work
    that a thread gets, in table cells or edges; no result depends on it.
    """

    def __init__(self, threads: int, stop: NDArray[np.bool_], time_left: float = ..., share: float = ...) -> None: ...

class Transports:
    """A list of transports: tuples ``Items`` and ``Trees`` of arrays (solvers/exact/transports.py), which are kept."""

    def __init__(self, items: Any, trees: Any, dense_from: tuple[int, int]) -> None: ...
    @property
    def dense(self) -> bool:
        """Whether all rows are full, with as many states as ``dense_from``: they are solved as in engine/dense.hpp."""
    def solve(
        self, W: NDArray[np.float64], values: NDArray[np.float64], effort: Any, plans: Any, run: Run
    ) -> tuple[int, int, float]:
        """Solve all items for the table W, with an ``Effort``; narrow trees keep ``SinglePlans``.

        Returns the number of pivots, the number of items that were not solved, and the largest mass that was moved to
        keep a plan nonnegative.
        """
    def targets(self, numbers: NDArray[np.int64], targets: NDArray[np.int32] | NDArray[np.int64], run: Run) -> None:
        """Write the pair of states that every edge leads to, or the number of that."""
    def plans(self, targets: NDArray[np.int32] | NDArray[np.int64], flow: NDArray[np.float64], run: Run) -> None:
        """Write the flows of all narrow trees and, unless that array is empty, the pairs that the edges lead to."""
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

def solve_one(
    C: NDArray[np.float64],
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    tree: Any,
    price: float,
    pot: NDArray[np.float64],
    run: Run,
) -> tuple[float, bool, float, float]:
    """Solve one transport for costs ``C (a, b)``, starting from its ``Tree``; writes the potentials ``pot (a + b,)``.

    Returns the value, whether it was solved, how far the least reduced cost is below zero, and the mass that was moved
    to keep the plan nonnegative.
    """

def northwest_corner(
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    rows: NDArray[np.int64],
    cols: NDArray[np.int64],
    tree: Any,
) -> None:
    """Write the northwest corner's basis along these orders to a ``Tree``."""

def greedy(C: NDArray[np.float64], p: NDArray[np.float64], q: NDArray[np.float64], tree: Any) -> None:
    """Write the basis in which every row takes its cheapest open columns to a ``Tree``."""

def simplex(
    C: NDArray[np.float64], tree: Any, price: float, max_pivots: int, pot: NDArray[np.float64]
) -> tuple[int, bool]:
    """Pivot from a ``Tree`` with nonnegative flows; writes its potentials.

    Returns the number of pivots, and whether the tree is optimal.
    """

def tree_flows(p: NDArray[np.float64], q: NDArray[np.float64], tree: Any) -> float:
    """Write the flows of a ``Tree`` for these marginals; returns the sum of the negative ones."""

def repair(C: NDArray[np.float64], tree: Any) -> tuple[int, bool]:
    """Make the flows of a ``Tree`` nonnegative by dual pivots; returns their number, and whether it succeeded."""

def profiles(y: Any, W: NDArray[np.float64], run: Run) -> NDArray[np.float64]:
    """Return Pr[W(x, y) < s], y ~ q, for each full row q of ``y`` and 128 pairs (x, s); flat, row by row."""

def nearest_first(Z: NDArray[np.float64], run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order points so that each is near an earlier one, or their mean (-1); return the order and what each is near."""

def sort_keys(cost: NDArray[np.float64], n_y: int, run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return one number per state, such that states matched in sorted order are at low cost."""

def reachable(successors: Any, seen: NDArray[np.bool_], first: NDArray[np.int64], run: Run) -> NDArray[np.int64]:
    """Return the pairs that can be reached from ``first`` (``PairSuccessors``), in no order; marks them as seen."""

def extremes(listed: NDArray[np.int64], TU: NDArray[np.float64], U: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the least and the largest TU - U over the pairs, and the size of both tables; NaN if any difference is."""

def transport_rounding(errors: tuple[int, float, float, bool]) -> float:
    """Return the largest effect of rounding on the value of a transport, for tables of size one (``PlanErrors``)."""

def band(
    change: tuple[float, float, float], errors: tuple[int, float, float, bool], discount: float, price: float
) -> tuple[float, float, float]:
    """Return (shift, half, rounding) of the band that a sweep proves; ``change`` is that of :func:`extremes`."""

def solve_start(
    starts: Any, U: NDArray[np.float64], n_y: int, price: float, run: Run
) -> tuple[float, bool, float, float]:
    """Solve the transport of the starts (``StartArrays``) for a table; its tree and potentials become optimal.

    Returns the value, whether it was solved, how far the least reduced cost is below zero, and the effect of rounding.
    """

def bounds(
    start: tuple[float, bool, float, float], half_gap: float, least: float, largest: float
) -> tuple[float, float, float, float]:
    """Return value, lower and upper bound and gap for a table known up to ``half_gap``, in the units of the costs."""

def start_interval(start: tuple[float, bool, float, float]) -> tuple[float, float]:
    """Return bounds on the transport of the starts."""

def separable_minimum(
    delta: NDArray[np.float64], rho_x: NDArray[np.float64], rho_y: NDArray[np.float64], discount: float
) -> float:
    """Return a certified <ρ_X, a> + <ρ_Y, b> with a(x) + b(y) ≤ delta(x,y)."""

def separable_bounds(
    U: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    slack: float,
    start: tuple[float, float],
    rho_x: NDArray[np.float64],
    rho_y: NDArray[np.float64],
    discount: float,
    least: float,
    largest: float,
) -> tuple[float, float]:
    """Return bounds on the distance by separable corrections, in the units of the costs."""

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

class PairChain:
    """The Markov chain of ``size`` pairs that ``Plans`` (solvers/exact/evaluation.py) define; these are kept.

    Systems are (I - γ Π) u = b, or with the transpose, for ``discount`` γ.
    """

    products: int

    def __init__(self, plans: Any, size: int) -> None: ...
    def multiply(self, v: NDArray[np.float64], out: NDArray[np.float64], run: Run) -> None:
        """Write Π v for the first pairs, as many as ``out`` has."""
    def apply(
        self, discount: float, transposed: bool, v: NDArray[np.float64], out: NDArray[np.float64], run: Run
    ) -> None:
        """Write (I - γ Π) v."""
    def solve(
        self, discount: float, transposed: bool, source: NDArray[np.float64], u: NDArray[np.float64], target: float,
        max_iterations: int, run: Run,
    ) -> float:  # fmt: skip
        """Improve u by BiCGStab to a largest residual of ``target``; return it, infinite if it diverged."""
    def sweep(
        self, discount: float, transposed: bool, source: NDArray[np.float64], u: NDArray[np.float64], times: int,
        run: Run,
    ) -> None:  # fmt: skip
        """Apply u ← source + γ Π u so many times."""
    def relax(
        self, discount: float, source: NDArray[np.float64], U: NDArray[np.float64], spare: NDArray[np.float64],
        target: float, run: Run,
    ) -> bool:  # fmt: skip
        """Sweep while that is worthwhile, and add the constant that is missing; return whether ``target`` was reached.

        Plans must be stochastic; overwrites ``spare``.
        """
    def mark_visited(self, source: NDArray[np.float64], visited: NDArray[np.bool_], run: Run) -> None:
        """Write which pairs the plans lead to from those with a source."""
    def occupancy(
        self, discount: float, source: NDArray[np.float64], visited: NDArray[np.bool_], m: NDArray[np.float64],
        target: float, run: Run,
    ) -> float:  # fmt: skip
        """Improve m toward m = source + γ Πᵀ m at visited pairs, and set it to zero elsewhere; return the residual."""

def correct_plans(
    plans: Any, discount: float, r: NDArray[np.float32], one: NDArray[np.float32], two: NDArray[np.float32],
    target: float, run: Run,
) -> tuple[bool, int, float, int]:  # fmt: skip
    """Solve (I - γ Π) δ = r for ``Plans`` in single precision; overwrites two arrays.

    Returns whether ``target`` was reached, in which of the two arrays δ is, the constant that it lacks if Π is
    stochastic, and the number of products.
    """

def sweep_plans(
    plans: Any, discount: float, r: NDArray[np.float32], delta: NDArray[np.float32], spare: NDArray[np.float32],
    times: int, run: Run,
) -> None:  # fmt: skip
    """Apply δ ← r + γ Π δ so many times, rounded up to an even number."""

def correct_trees(
    transports: Transports, plans: Any, discount: float, r: NDArray[np.float32], one: NDArray[np.float32],
    two: NDArray[np.float32], target: float, run: Run,
) -> tuple[bool, int, float, int]:  # fmt: skip
    """The same as :func:`correct_plans` for narrow trees and their ``SinglePlans``."""

def sweep_trees(
    transports: Transports, plans: Any, discount: float, r: NDArray[np.float32], delta: NDArray[np.float32],
    spare: NDArray[np.float32], times: int, run: Run,
) -> None:  # fmt: skip
    """The same as :func:`sweep_plans` for narrow trees."""

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

    def solve(
        self, discount: float, transposed: bool, b: NDArray[np.float64], u: NDArray[np.float64], target: float,
        max_iterations: int, run: Run,
    ) -> tuple[float, int]:  # fmt: skip
        """Improve u toward (I - γ Π) u = b by BiCGStab; return the largest residual and the number of products."""

    def sweep(
        self, discount: float, transposed: bool, b: NDArray[np.float64], u: NDArray[np.float64], times: int, run: Run
    ) -> None:
        """Apply u ← b + γ Π u so many times."""

def solve_independent(
    x: Any, y: Any, listed: NDArray[np.int64], discount: float, b: NDArray[np.float64], u: NDArray[np.float64],
    target: float, max_iterations: int, run: Run,
) -> tuple[float, int]:  # fmt: skip
    """Improve u toward the value u = b + γ Π u of the independent coupling at listed pairs (all, if none are listed).

    ``x`` and ``y`` are ``Successors``. Returns the largest residual and the number of products.
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
    """Run policy iteration on a :class:`diffbisim.problems.Discounted` with few states.

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

def barycenters(
    rows: Any,
    costs: NDArray[np.float64],
    first: NDArray[np.int64],
    states: NDArray[np.int64],
    weights: NDArray[np.float64],
    starts: NDArray[np.float64],
    tolerance: float,
    run: Run,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute Wasserstein barycenters of rows (``Successors``): number b is of ``states[first[b]:first[b + 1]]``.

    ``costs`` and ``starts`` are flat tables with k columns, and so are the rows returned, which come with their gaps.
    """

def solve_dense(matrix: NDArray[np.float64], sides: NDArray[np.float64], run: Run) -> bool:
    """Solve ``matrix (n, n)`` X = ``sides (n, m)``; overwrites both, the sides by X. False if singular."""

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
