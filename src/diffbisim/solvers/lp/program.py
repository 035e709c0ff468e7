"""The two linear programs (solver.py) as sparse matrices, in edge form, and HiGHS.

*Edge form.* Write e = (x → x') for the transitions of X, sorted by x, and k = (y → y') for those of Y. One matrix
``A[e, k]``, shape (E_X, E_Y), holds the plans of *all* pairs: the plan of (x,y) is the block of rows that leave x and
columns that leave y. Tables over (x',y') enter as ``W[target_X][:, target_Y]``, sums and minima over blocks are
``reduceat``, and a coupling of the starts is the case of one row on each side. Any A and f can be made feasible:

    round_plans   nonnegative matrices → plans with exact marginals, moving at most twice the mass of the marginal
                  error (Altschuler, Weed, Rigollet 2017, algorithm 2, lemma 7)
    conjugate     f → g(y') = min_x' W(x',y') - f(x'), then f likewise: feasible, and the value never decreases

*The constraints.* Every sum in them is a Kronecker product of incidence matrices: S_X[x, e] = 1 if e leaves x,
T_X[x, e] = 1 if e leads to x,

    Σ_x'y' μ(x,y,x',y') = (S_X ⊗ S_Y) μ        Σ_y' μ = (I ⊗ S_Y) μ      over (e, y)
    Σ μ(·,·,x,y)        = (T_X ⊗ T_Y) μ        Σ_x' μ = (S_X ⊗ I) μ      over (x, k)

so no loop over pairs or cells is needed.

*A policy*, the plans A of all pairs, is a Markov kernel Π over flat pairs ``i = x n_Y + y``. With a coupling m_0 of the
starts,

    U = (1-γ) c + γ Π U         is its value in every pair
    m = (1-γ) m_0 + γ Π^T m     is its occupancy

both solved by a sparse LU factorization, restricted to a set of pairs that Π does not leave.

*Rounding.* With ε = 2^-52, the longest rows k_X and k_Y, and the largest number M that enters, an entry of TW has a
rounding error below (k_X + k_Y + 8) ε M (sums by rows, then by columns; marginals included). :func:`rounding` is four
times that. M must bound U wherever a plan *should* lead, not only where it does: a successor of probability 1e-16 can
get lost in the rounding of its plan, and it may lead to the only pairs with a positive cost.
"""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import spsolve

from diffbisim.common.arrays import Array
from diffbisim.common.parallel import run_abandonable
from diffbisim.common.stopping import TimeUp
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors

Mask = NDArray[np.bool_]

#: Seconds that HiGHS may take beyond the deadline, to return what it has.
GRACE = 0.3

EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)

#: Occupancies up to this count as zero: rounding of a plan may add a last digit where the program has no mass.
NOISE = 1e-14


# --- plans of all pairs as one matrix -----------------------------------------------------------------------------


def at_targets(table: Array, ex: Successors, ey: Successors) -> Array:
    """Return `table` (n_X, n_Y) at the pairs that the edges lead to, (E_X, E_Y)."""
    return table[np.ix_(ex.indices, ey.indices)]


def over_x(values: Array, ex: Successors, reduce: np.ufunc = np.add) -> Array:
    """Sum (or take the minimum of) the rows that leave each x: (E_X, ·) → (n_X, ·)."""
    return np.asarray(reduce.reduceat(values, ex.indptr[:-1], axis=0))


def over_y(values: Array, ey: Successors, reduce: np.ufunc = np.add) -> Array:
    """Sum (or take the minimum of) the columns that leave each y: (·, E_Y) → (·, n_Y)."""
    return np.asarray(reduce.reduceat(values, ey.indptr[:-1], axis=1))


def conditional(mass: Array, ex: Successors, ey: Successors) -> Array:
    """Divide each block by its sum; blocks without mass stay zero."""
    return mass * _inverse(over_y(over_x(mass, ex), ey))[ex.sources][:, ey.sources]


def round_plans(plans: Array, ex: Successors, ey: Successors) -> Array:
    """Round nonnegative blocks (E_X, E_Y) to plans with exact marginals; a zero block becomes the product.

    Rows that are too heavy are scaled down, then columns, and the missing mass is added as a rank-one term. The result
    is exact up to a few last digits of one *in total*: a successor of probability 1e-16 may get no mass, and bounds
    must allow for that (:func:`marginal_error`).
    """
    p, q, x, y = ex.probabilities[:, None], ey.probabilities[None, :], ex.sources, ey.sources
    A = plans * _shrink(p, over_y(plans, ey))[:, y]
    A *= _shrink(q, over_x(A, ex))[x]
    lack_p, lack_q = _lack(p, over_y(A, ey)), _lack(q, over_x(A, ex))  # (E_X, n_Y), (n_X, E_Y)
    lack_p *= _inverse(over_x(lack_p, ex))[x]
    A += lack_p[:, y] * lack_q[x]
    return A


def _inverse(total: Array) -> Array:
    """Return 1 / total, and zero where the total is zero."""
    return np.divide(1.0, total, out=np.zeros_like(total), where=total > TINY)


def _shrink(wanted: Array, have: Array) -> Array:
    """Return min(wanted / have, 1)."""
    return np.divide(wanted, have, out=np.ones_like(have), where=have > wanted)


def _lack(wanted: Array, have: Array) -> Array:
    """Return max(wanted - have, 0), ignoring the last digit so that zero entries stay zero."""
    lack = wanted - have
    lack[lack <= 4 * EPS * wanted] = 0.0
    return lack


def marginal_error(plans: Array, ex: Successors, ey: Successors) -> Array:
    """Return the marginal error of every block, Σ |row sums - p| + Σ |column sums - q|."""
    rows = np.abs(over_y(plans, ey) - ex.probabilities[:, None])  # (E_X, n_Y)
    columns = np.abs(over_x(plans, ex) - ey.probabilities)  # (n_X, E_Y)
    return over_x(rows, ex) + over_y(columns, ey)


def conjugate(f: Array, W: Array, ex: Successors, ey: Successors) -> tuple[Array, Array]:
    """Return f (E_X, n_Y) and g (n_X, E_Y), c-transforms of each other with f + g ≤ W, starting from f.

    `W` is in edge form (:func:`at_targets`). Each f is centered first, so that neither becomes large.
    """
    f = f - over_x(ex.probabilities[:, None] * f, ex)[ex.sources]
    g = over_x(W - f[:, ey.sources], ex, np.minimum)
    return over_y(W - g[ex.sources], ey, np.minimum), g


def plan_costs(plans: Array, W: Array, ex: Successors, ey: Successors) -> Array:
    """Return <Π_xy, W> for every pair of rows; `W` is in edge form."""
    return over_y(over_x(plans * W, ex), ey)


def dual_values(f: Array, g: Array, ex: Successors, ey: Successors) -> Array:
    """Return E_{P_X(·|x)} f_xy + E_{P_Y(·|y)} g_xy for every pair of rows."""
    return over_x(ex.probabilities[:, None] * f, ex) + over_y(ey.probabilities * g, ey)


def rounding(ex: Successors, ey: Successors, *tables: Array) -> float:
    """Return four times the bound on the rounding error of one transport value computed from these tables."""
    magnitude = max(float(np.abs(table).max(initial=0.0)) for table in tables)
    return 4 * (ex.longest + ey.longest + 8) * EPS * magnitude


# --- the problem --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Grid:
    """A problem in edge form, with its cost divided by ``2**exponent`` so that the largest is in [1/2, 1)."""

    ex: Successors  # transitions of X
    ey: Successors
    sx: Successors  # the start of X, as one row
    sy: Successors
    rho_x: Array  # (n_X,) discounted occupancy
    rho_y: Array
    cost: Array  # (n_X, n_Y)
    exponent: int
    discount: float

    @classmethod
    def of(cls, problem: ChainProblem) -> "Grid":
        """Build from a problem; scaling by a power of two is exact."""
        x, y, γ = problem.x, problem.y, problem.discount
        exponent = int(np.frexp(problem.scale)[1])
        return cls(
            ex=x.successors,
            ey=y.successors,
            sx=Successors.of(x.initial[None, :]),
            sy=Successors.of(y.initial[None, :]),
            rho_x=x.occupancy(γ),
            rho_y=y.occupancy(γ),
            cost=np.ldexp(problem.cost, -exponent),
            exponent=exponent,
            discount=γ,
        )

    def unscaled(self, bound: float, outward: float) -> float:
        """Return a bound in the units of the cost, rounded outward if scaling is inexact (underflow)."""
        value = np.ldexp(bound, self.exponent)
        if np.ldexp(value, -self.exponent) != bound:
            value = np.nextafter(value, outward)
        return float(value)

    @property
    def plan_shape(self) -> tuple[int, int]:
        """(E_X, E_Y)."""
        return self.ex.indices.size, self.ey.indices.size

    @property
    def start_shape(self) -> tuple[int, int]:
        """Sizes of the supports of the two starts."""
        return self.sx.indices.size, self.sy.indices.size


def n_variables(problem: ChainProblem) -> int:
    """Count the variables of the paper's program, μ, m_X, m_Y and m_0, without building it."""
    x, y = problem.x, problem.y
    starts = np.count_nonzero(x.initial) * np.count_nonzero(y.initial)
    return int(x.n_transitions * y.n_transitions + 2 * x.n_states * y.n_states + starts)


# --- the programs -------------------------------------------------------------------------------------------------


class SparseEntries(NamedTuple):
    """The entries of a sparse matrix; entries at the same place add up.

    Matrices are put together from these and converted once: for small chains, sums and products of scipy's matrices
    would take longer than HiGHS does.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Array
    shape: tuple[int, int]

    def times(self, factor: float) -> "SparseEntries":
        """Multiply all entries by a number."""
        return self._replace(values=factor * self.values)

    @classmethod
    def joined(cls, parts: "list[SparseEntries]", shape: tuple[int, int]) -> "SparseEntries":
        """Return the sum of matrices, which may be smaller than `shape`."""
        rows, columns, values = (np.concatenate(arrays) for arrays in zip(*(part[:3] for part in parts), strict=True))
        return cls(rows, columns, values, shape)

    def moved(self, down: int, right: int) -> "SparseEntries":
        """Move all entries, as a block of a larger matrix."""
        return self._replace(rows=self.rows + down, columns=self.columns + right)

    @property
    def csc(self) -> sparse.csc_array:
        """The matrix by columns, with its entries in order."""
        return sparse.csc_array((self.values, (self.rows, self.columns)), shape=self.shape)


@dataclass(frozen=True, eq=False)
class LinearProgramArrays:
    """``min <cost, z>`` subject to ``matrix @ z = rhs``, ``z ≥ 0``, with variables and constraints in groups."""

    cost: Array
    matrix: sparse.csc_array
    rhs: Array
    columns: tuple[int, ...]  # sizes of the groups of variables
    rows: tuple[int, ...]  # sizes of the groups of constraints

    @classmethod
    def of_groups(
        cls, costs: list[Array], blocks: dict[tuple[int, int], list[SparseEntries]], rhs: list[Array]
    ) -> "LinearProgramArrays":
        """Assemble the groups; ``blocks[i, j]``, a sum, acts on group j of the variables in group i of the rows."""
        columns, rows = tuple(c.size for c in costs), tuple(b.size for b in rhs)
        down, right = np.cumsum((0, *rows)).tolist(), np.cumsum((0, *columns)).tolist()
        parts = [part.moved(down[i], right[j]) for (i, j), block in blocks.items() for part in block]
        matrix = SparseEntries.joined(parts, (down[-1], right[-1])).csc
        return cls(np.concatenate(costs), matrix, np.concatenate(rhs), columns, rows)

    def split_columns(self, z: Array) -> list[Array]:
        """Split a solution into groups of variables."""
        return np.split(z, np.cumsum(self.columns)[:-1])

    def split_rows(self, duals: Array) -> list[Array]:
        """Split multipliers into groups of constraints."""
        return np.split(duals, np.cumsum(self.rows)[:-1])


def paper_program(grid: Grid) -> LinearProgramArrays:
    """Return the paper's program.

    Variables are μ, m_X, m_Y and m_0; constraints are flow, causal-X, causal-Y, λ_X and λ_Y in Δ, and the starts of X
    and Y.
    """
    ex, ey, sx, sy, γ = grid.ex, grid.ey, grid.sx, grid.sy, grid.discount
    (n_x, n_y), (k_x, k_y), (e_x, e_y) = grid.cost.shape, grid.start_shape, grid.plan_shape
    one_x, one_y, S_x, S_y = _eye(n_x), _eye(n_y), _leaves(ex, n_x), _leaves(ey, n_y)
    μ, m_X, m_Y, m_0 = range(4)
    flow, causal_x, causal_y, λ_X, λ_Y, start_x, start_y = range(7)
    blocks = {
        (flow, μ): [_kron(S_x, S_y), _kron(_leads(ex, n_x), _leads(ey, n_y)).times(-γ)],
        (flow, m_0): [_kron(_leads(sx, n_x), _leads(sy, n_y)).times(γ - 1)],
        (causal_x, μ): [_kron(_eye(e_x), S_y)],
        (causal_x, m_X): [_kron(_weighted(ex, n_x), one_y)],
        (causal_y, μ): [_kron(S_x, _eye(e_y))],
        (causal_y, m_Y): [_kron(one_x, _weighted(ey, n_y))],
        (λ_X, m_X): [_kron(one_x, _row(n_y))],
        (λ_Y, m_Y): [_kron(_row(n_x), one_y)],
        (start_x, m_0): [_kron(_eye(k_x), _row(k_y))],
        (start_y, m_0): [_kron(_row(k_x), _eye(k_y))],
    }
    zero = np.zeros(n_x * n_y)
    rhs = [zero, np.zeros(e_x * n_y), np.zeros(n_x * e_y), grid.rho_x, grid.rho_y, sx.probabilities, sy.probabilities]
    μ_cost = grid.cost[ex.sources][:, ey.sources].ravel()
    return LinearProgramArrays.of_groups([μ_cost, zero, zero, np.zeros(k_x * k_y)], blocks, rhs)


def all_pairs_program(grid: Grid) -> LinearProgramArrays:
    """Return the program with every pair as a start: variables μ and m; constraints flow, causal-X and causal-Y."""
    ex, ey, γ = grid.ex, grid.ey, grid.discount
    (n_x, n_y), (e_x, e_y) = grid.cost.shape, grid.plan_shape
    μ, m = range(2)
    flow, causal_x, causal_y = range(3)
    blocks = {
        (flow, μ): [_kron(_leads(ex, n_x), _leads(ey, n_y)).times(-γ)],
        (flow, m): [_eye(n_x * n_y)],
        (causal_x, μ): [_kron(_eye(e_x), _leaves(ey, n_y))],
        (causal_x, m): [_kron(_weighted(ex, n_x), _eye(n_y))],
        (causal_y, μ): [_kron(_leaves(ex, n_x), _eye(e_y))],
        (causal_y, m): [_kron(_eye(n_x), _weighted(ey, n_y))],
    }
    rhs = [np.full(n_x * n_y, 1 - γ), np.zeros(e_x * n_y), np.zeros(n_x * e_y)]
    return LinearProgramArrays.of_groups([np.zeros(e_x * e_y), grid.cost.ravel()], blocks, rhs)


def _kron(a: SparseEntries, b: SparseEntries) -> SparseEntries:
    (m, n), (k, j) = a.shape, b.shape
    return SparseEntries(
        np.add.outer(a.rows * k, b.rows).ravel(),
        np.add.outer(a.columns * j, b.columns).ravel(),
        np.multiply.outer(a.values, b.values).ravel(),
        (m * k, n * j),
    )


def _eye(n: int) -> SparseEntries:
    return SparseEntries(np.arange(n), np.arange(n), np.ones(n), (n, n))


def _row(n: int) -> SparseEntries:
    return SparseEntries(np.zeros(n, dtype=np.int64), np.arange(n), np.ones(n), (1, n))


def _leaves(edges: Successors, n: int) -> SparseEntries:
    """Return S (n, E): the state that an edge leaves."""
    size = edges.indices.size
    return SparseEntries(edges.sources, np.arange(size), np.ones(size), (n, size))


def _leads(edges: Successors, n: int) -> SparseEntries:
    """Return T (n, E): the state that an edge leads to."""
    size = edges.indices.size
    return SparseEntries(edges.indices, np.arange(size), np.ones(size), (n, size))


def _weighted(edges: Successors, n: int) -> SparseEntries:
    """Return -S^T (E, n), weighted with the probability of each edge."""
    size = edges.indices.size
    return SparseEntries(np.arange(size), edges.sources, -edges.probabilities, (size, n))


# --- HiGHS --------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """The answer of HiGHS; zeros if it has none."""

    z: Array  # solution
    duals: Array
    iterations: int
    limit: bool  # stopped at a limit of time or iterations


def highs(program: LinearProgramArrays, method: str, max_iterations: int | None, deadline: float) -> Answer:
    """Solve with the tightest tolerances; after numerical trouble retry without presolve, then with interior point.

    HiGHS looks at its clock rarely. If it is not back shortly after the deadline, it is left behind without an answer.
    """
    options: dict[str, Any] = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    options |= {} if max_iterations is None else {"maxiter": min(int(max_iterations), 2**31 - 1)}
    nothing = Answer(np.zeros(program.cost.size), np.zeros(program.rhs.size), 0, True)
    for way, presolve in ((method, True), (method, False), ("highs-ipm", True)):
        if (left := deadline - time.monotonic()) <= 0:
            return nothing
        now = {**options, "presolve": presolve} | ({"time_limit": left} if left < np.inf else {})
        given = {"A_eq": program.matrix, "b_eq": program.rhs, "method": way, "options": now}
        try:
            found = run_abandonable(linprog, program.cost, deadline=deadline + GRACE, **given)
        except TimeUp:
            return nothing
        if found.status in (0, 1):
            break
    iterations, limit = int(found.nit or 0), found.status == 1
    some = found.x is not None and found.eqlin.marginals is not None
    if not (some and np.isfinite(found.x).all() and np.isfinite(found.eqlin.marginals).all()):
        return nothing._replace(iterations=iterations, limit=limit)
    return Answer(np.maximum(found.x, 0.0), found.eqlin.marginals, iterations, limit)


# --- what a policy is worth ---------------------------------------------------------------------------------------


def evaluate(A: Array, grid: Grid, where: Mask) -> Array:
    """Solve U = (1-γ) c + γ Π U on a set of pairs that the plans do not leave; zero elsewhere."""
    U = np.zeros(grid.cost.size)
    U[where] = spsolve(_system(A, grid, where), (1 - grid.discount) * grid.cost.ravel()[where])
    return U.reshape(grid.cost.shape)


def occupancy(A: Array, start: Array, grid: Grid) -> Array:
    """Solve m = (1-γ) m_0 + γ Π^T m, with `start` = m_0 on the supports; entries up to NOISE become zero."""
    where = reachable(A, start, grid)
    source = np.zeros(grid.cost.shape)
    source[np.ix_(grid.sx.indices, grid.sy.indices)] = (1 - grid.discount) * start
    m = np.zeros(source.size)
    m[where] = spsolve(_system(A, grid, where).T.tocsc(), source.ravel()[where])
    m[m <= NOISE] = 0.0
    return m.reshape(source.shape)


def reachable(A: Array, start: Array, grid: Grid) -> Mask:
    """Return which flat pairs the plans reach from the coupling of the starts."""
    n, (i, j) = grid.cost.size, np.nonzero(start)
    first = grid.sx.indices[i] * grid.cost.shape[1] + grid.sy.indices[j]
    root = SparseEntries(np.full(first.size, n), first, np.ones(first.size), (n + 1, n + 1))
    graph = SparseEntries.joined([_kernel(A, grid), root], root.shape).csc.tocsr()
    found = np.zeros(n + 1, dtype=np.bool_)
    found[breadth_first_order(graph, n, directed=True, return_predecessors=False)] = True
    return found[:n]


def _kernel(A: Array, grid: Grid) -> SparseEntries:
    """Return Π as a matrix over flat pairs."""
    n_y, (e, k) = grid.cost.shape[1], np.nonzero(A)
    rows = grid.ex.sources[e] * n_y + grid.ey.sources[k]
    columns = grid.ex.indices[e] * n_y + grid.ey.indices[k]
    return SparseEntries(rows, columns, A[e, k], (grid.cost.size, grid.cost.size))


def _system(A: Array, grid: Grid, where: Mask) -> sparse.csc_array:
    """Return I - γ Π on a closed set of pairs."""
    system = _minus(_kernel(A, grid).times(grid.discount))
    return system if where.all() else sparse.csc_array(system[:, where][where])


def _minus(kernel: SparseEntries) -> sparse.csc_array:
    """Return I minus a square matrix."""
    return SparseEntries.joined([_eye(kernel.shape[0]), kernel.times(-1.0)], kernel.shape).csc


def shaping(edges: Successors, h: Array, discount: float) -> Array:
    """Solve w = h + γ P w, which turns the multipliers of "λ in Δ" into a shift of V."""
    n = h.size
    P = SparseEntries(edges.sources, edges.indices, edges.probabilities, (n, n))
    return np.asarray(spsolve(_minus(P.times(discount)), h)).reshape(n)
