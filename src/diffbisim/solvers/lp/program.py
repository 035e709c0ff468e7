"""The two linear programs (solver.py) as sparse matrices, in edge form, and HiGHS.

*Edge form.* Write e = (x → x') for the transitions of X, sorted by x, and k = (y → y') for those of Y. One matrix
``A[e, k]``, shape (E_X, E_Y), holds the plans of *all* pairs: the plan of (x,y) is its block of rows that leave x and
columns that leave y. Tables over (x',y') enter as ``W[target_X][:, target_Y]``, sums and minima over blocks are
``reduceat``, and a coupling of the starts is the case of one row on each side. Any A can be repaired:

    round_plans   any non-negative matrices → plans with exact marginals, moving at most twice the mass by
                  which the marginals were wrong (Altschuler, Weed, Rigollet 2017, algorithm 2, lemma 7)
    conjugate     any f → g(y') = min_x' W(x',y') - f(x'), then f likewise: feasible, never worth less

*The constraints.* Every sum in them is a Kronecker product of incidence matrices: S_X[x, e] = 1 if e leaves x,
T_X[x, e] = 1 if e leads to x,

    Σ_x'y' μ(x,y,x',y') = (S_X ⊗ S_Y) μ        Σ_y' μ = (I ⊗ S_Y) μ      over (e, y)
    Σ μ(·,·,x,y)        = (T_X ⊗ T_Y) μ        Σ_x' μ = (S_X ⊗ I) μ      over (x, k)

so no loop over pairs or cells is needed.

*A policy*, the plans A of all pairs, is as a matrix over flat pairs ``i = x n_Y + y`` a Markov kernel Π, and with m_0 a
coupling of the starts

    U = (1-γ) c + γ Π U         value of the policy in every pair
    m = (1-γ) m_0 + γ Π^T m     its occupancy

both solved by a sparse LU factorization, restricted to a set of pairs that Π does not leave.

*Rounding.* With ε = 2^-52, k_X and k_Y the longest rows and M the largest number that enters, an entry of TW carries a
rounding error below (k_X + k_Y + 8) ε M (sums by rows, then by columns; marginals included). :func:`rounding` is four
times that. M has to bound U itself wherever a plan *should* lead, not only where it does: a successor of probability
1e-16 can get lost in the rounding of its plan, and what it leads to may be the only costs there are.
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

from diffbisim.parallel import left_behind
from diffbisim.problem import Array, Problem
from diffbisim.solvers.base import deadline_of
from diffbisim.stochastic import Successors

Mask = NDArray[np.bool_]

EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)

#: Occupancies up to this are rounding: a rounded plan may put a last digit where the program put nothing.
NOISE = 1e-14


# --- plans of all pairs as one matrix -----------------------------------------------------------------------------


def at_targets(table: Array, ex: Successors, ey: Successors) -> Array:
    """``table (n_X, n_Y)`` at the pairs that the edges lead to, shape ``(E_X, E_Y)``."""
    return table[np.ix_(ex.indices, ey.indices)]


def over_x(values: Array, ex: Successors, reduce: np.ufunc = np.add) -> Array:
    """Sum (or ``np.minimum``) of the rows that leave each x: ``(E_X, ·) → (n_X, ·)``."""
    return np.asarray(reduce.reduceat(values, ex.indptr[:-1], axis=0))


def over_y(values: Array, ey: Successors, reduce: np.ufunc = np.add) -> Array:
    """Sum (or ``np.minimum``) of the columns that leave each y: ``(·, E_Y) → (·, n_Y)``."""
    return np.asarray(reduce.reduceat(values, ey.indptr[:-1], axis=1))


def conditional(mass: Array, ex: Successors, ey: Successors) -> Array:
    """Each block divided by its sum; blocks without mass stay zero."""
    return mass * _inverse(over_y(over_x(mass, ex), ey))[ex.sources][:, ey.sources]


def round_plans(plans: Array, ex: Successors, ey: Successors) -> Array:
    """Non-negative blocks ``(E_X, E_Y)`` → plans with exact marginals; zero block → product.

    Scale the rows that are too heavy, then the columns, and fill what is missing by a rank-one term. Exact up to a few
    last digits of one *in all*: a successor of probability 1e-16 may be left without mass, and bounds have to allow for
    that (:func:`marginal_error`).
    """
    p, q, x, y = ex.probabilities[:, None], ey.probabilities[None, :], ex.sources, ey.sources
    A = plans * _shrink(p, over_y(plans, ey))[:, y]
    A *= _shrink(q, over_x(A, ex))[x]
    lack_p, lack_q = _lack(p, over_y(A, ey)), _lack(q, over_x(A, ex))  # (E_X, n_Y), (n_X, E_Y)
    lack_p *= _inverse(over_x(lack_p, ex))[x]
    A += lack_p[:, y] * lack_q[x]
    return A


def _inverse(total: Array) -> Array:
    """``1 / total``, zero where there is nothing."""
    return np.divide(1.0, total, out=np.zeros_like(total), where=total > TINY)


def _shrink(wanted: Array, have: Array) -> Array:
    """``min(wanted / have, 1)``, one where there is nothing."""
    return np.divide(wanted, have, out=np.ones_like(have), where=have > wanted)


def _lack(wanted: Array, have: Array) -> Array:
    """``max(wanted - have, 0)``; the last digit does not count, or every entry would get some mass."""
    lack = wanted - have
    lack[lack <= 4 * EPS * wanted] = 0.0
    return lack


def marginal_error(plans: Array, ex: Successors, ey: Successors) -> Array:
    """By how much the marginals of every block are wrong: Σ |row sums - p| + Σ |column sums - q|."""
    rows = np.abs(over_y(plans, ey) - ex.probabilities[:, None])  # (E_X, n_Y)
    columns = np.abs(over_x(plans, ex) - ey.probabilities)  # (n_X, E_Y)
    return over_x(rows, ex) + over_y(columns, ey)


def conjugate(f: Array, W: Array, ex: Successors, ey: Successors) -> tuple[Array, Array]:
    """``f (E_X, n_Y)`` → ``f (E_X, n_Y), g (n_X, E_Y)``, c-transforms of each other with f + g ≤ W.

    ``W`` is in edge form (:func:`at_targets`). Each f is centered first, so that neither grows large.
    """
    f = f - over_x(ex.probabilities[:, None] * f, ex)[ex.sources]
    g = over_x(W - f[:, ey.sources], ex, np.minimum)
    return over_y(W - g[ex.sources], ey, np.minimum), g


def plan_costs(plans: Array, W: Array, ex: Successors, ey: Successors) -> Array:
    """``<Π_xy, W>`` for every pair of rows; ``W`` in edge form."""
    return over_y(over_x(plans * W, ex), ey)


def dual_values(f: Array, g: Array, ex: Successors, ey: Successors) -> Array:
    """``E_{P_X(·|x)} f_xy + E_{P_Y(·|y)} g_xy`` for every pair of rows."""
    return over_x(ex.probabilities[:, None] * f, ex) + over_y(ey.probabilities * g, ey)


def rounding(ex: Successors, ey: Successors, *tables: Array) -> float:
    """Four times the bound on the rounding error of one transport value that is made of these tables."""
    magnitude = max(float(np.abs(table).max(initial=0.0)) for table in tables)
    return 4 * (ex.longest + ey.longest + 8) * EPS * magnitude


# --- the problem --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Grid:
    """A problem in edge form, its cost divided by ``2**exponent`` so that the largest is in [1/2, 1)."""

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
    def of(cls, problem: Problem) -> "Grid":
        """The exact powers of two leave the digits of the cost alone."""
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
        """A bound in the units of the cost; where these are too small for all its digits, the next number outward."""
        value = np.ldexp(bound, self.exponent)
        if np.ldexp(value, -self.exponent) != bound:
            value = np.nextafter(value, outward)
        return float(value)

    @property
    def plan_shape(self) -> tuple[int, int]:
        """``(E_X, E_Y)``."""
        return self.ex.indices.size, self.ey.indices.size

    @property
    def start_shape(self) -> tuple[int, int]:
        """Sizes of the supports of the two starts."""
        return self.sx.indices.size, self.sy.indices.size


def n_variables(problem: Problem) -> int:
    """Variables of the paper's program: μ, m_X, m_Y and m_0; counted before anything is built."""
    x, y = problem.x, problem.y
    starts = np.count_nonzero(x.initial) * np.count_nonzero(y.initial)
    return x.n_transitions * y.n_transitions + 2 * x.n_states * y.n_states + int(starts)


# --- the programs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Program:
    """``min <cost, z>`` subject to ``matrix @ z = rhs``, ``z ≥ 0``; both sides come in named groups."""

    cost: Array
    matrix: sparse.csc_array
    rhs: Array
    columns: tuple[int, ...]  # sizes of the groups of variables
    rows: tuple[int, ...]  # sizes of the groups of constraints

    @classmethod
    def of_groups(cls, costs: list[Array], blocks: list[list[sparse.sparray | None]], rhs: list[Array]) -> "Program":
        """Glue the groups together: ``blocks[i][j]`` acts on group j of the variables."""
        matrix = sparse.csc_array(sparse.block_array(blocks, format="csc"))
        columns, rows = tuple(c.size for c in costs), tuple(b.size for b in rhs)
        return cls(np.concatenate(costs), matrix, np.concatenate(rhs), columns, rows)

    def split_columns(self, z: Array) -> list[Array]:
        """A solution by groups of variables."""
        return np.split(z, np.cumsum(self.columns)[:-1])

    def split_rows(self, duals: Array) -> list[Array]:
        """Multipliers by groups of constraints."""
        return np.split(duals, np.cumsum(self.rows)[:-1])


def paper_program(grid: Grid) -> Program:
    """Variables μ, m_X, m_Y, m_0; rows flow, causal-X, causal-Y, λ_X, λ_Y in Δ, start of X, start of Y."""
    ex, ey, sx, sy, γ = grid.ex, grid.ey, grid.sx, grid.sy, grid.discount
    (n_x, n_y), (k_x, k_y), (e_x, e_y) = grid.cost.shape, grid.start_shape, grid.plan_shape
    one_x, one_y, S_x, S_y = _eye(n_x), _eye(n_y), _leaves(ex, n_x), _leaves(ey, n_y)
    flow = _kron(S_x, S_y) - γ * _kron(_leads(ex, n_x), _leads(ey, n_y))
    start = -(1 - γ) * _kron(_leads(sx, n_x), _leads(sy, n_y))
    blocks: list[list[sparse.sparray | None]] = [
        [flow, None, None, start],
        [_kron(_eye(e_x), S_y), -_kron(_weighted(ex, S_x), one_y), None, None],
        [_kron(S_x, _eye(e_y)), None, -_kron(one_x, _weighted(ey, S_y)), None],
        [None, _kron(one_x, _row(n_y)), None, None],
        [None, None, _kron(_row(n_x), one_y), None],
        [None, None, None, _kron(_eye(k_x), _row(k_y))],
        [None, None, None, _kron(_row(k_x), _eye(k_y))],
    ]
    zero = np.zeros(n_x * n_y)
    rhs = [zero, np.zeros(e_x * n_y), np.zeros(n_x * e_y), grid.rho_x, grid.rho_y, sx.probabilities, sy.probabilities]
    μ_cost = grid.cost[ex.sources][:, ey.sources].ravel()
    return Program.of_groups([μ_cost, zero, zero, np.zeros(k_x * k_y)], blocks, rhs)


def all_pairs_program(grid: Grid) -> Program:
    """Variables μ, m; constraints flow with every pair a start, causal-X, causal-Y."""
    ex, ey, γ = grid.ex, grid.ey, grid.discount
    (n_x, n_y), (e_x, e_y) = grid.cost.shape, grid.plan_shape
    S_x, S_y = _leaves(ex, n_x), _leaves(ey, n_y)
    blocks: list[list[sparse.sparray | None]] = [
        [-γ * _kron(_leads(ex, n_x), _leads(ey, n_y)), _eye(n_x * n_y)],
        [_kron(_eye(e_x), S_y), -_kron(_weighted(ex, S_x), _eye(n_y))],
        [_kron(S_x, _eye(e_y)), -_kron(_eye(n_x), _weighted(ey, S_y))],
    ]
    rhs = [np.full(n_x * n_y, 1 - γ), np.zeros(e_x * n_y), np.zeros(n_x * e_y)]
    return Program.of_groups([np.zeros(e_x * e_y), grid.cost.ravel()], blocks, rhs)


def _kron(a: sparse.csr_array, b: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array(sparse.kron(a, b, format="csr"))


def _eye(n: int) -> sparse.csr_array:
    return sparse.csr_array(sparse.eye_array(n, format="csr"))


def _row(n: int) -> sparse.csr_array:
    return sparse.csr_array(np.ones((1, n)))


def _leaves(edges: Successors, n: int) -> sparse.csr_array:
    """S (n, E): which state an edge leaves."""
    size = edges.indices.size
    return sparse.csr_array((np.ones(size), (edges.sources, np.arange(size))), shape=(n, size))


def _leads(edges: Successors, n: int) -> sparse.csr_array:
    """T (n, E): which state an edge leads to."""
    size = edges.indices.size
    return sparse.csr_array((np.ones(size), (edges.indices, np.arange(size))), shape=(n, size))


def _weighted(edges: Successors, leaves: sparse.csr_array) -> sparse.csr_array:
    """(E, n): the transposed incidence with the probability of each edge."""
    return sparse.csr_array(sparse.diags_array(edges.probabilities) @ leaves.T)


# --- HiGHS --------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What HiGHS found; zeros if it has no answer."""

    z: Array  # solution
    duals: Array
    iterations: int
    limit: bool  # stopped at a limit of time or iterations


def highs(program: Program, method: str, max_iterations: int | None, time_limit: float | None) -> Answer:
    """Tightest tolerances. After numerical trouble: without presolve, then interior point."""
    options: dict[str, Any] = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    options |= {} if max_iterations is None else {"maxiter": max_iterations}
    deadline = deadline_of(time_limit)
    for way, presolve in ((method, True), (method, False), ("highs-ipm", True)):
        left = {} if time_limit is None else {"time_limit": max(deadline - time.monotonic(), 0.0)}
        now = {**options, **left, "presolve": presolve}
        found = left_behind(linprog, program.cost, A_eq=program.matrix, b_eq=program.rhs, method=way, options=now)
        if found.status in (0, 1):
            break
    iterations, limit = int(found.nit or 0), found.status == 1
    some = found.x is not None and found.eqlin.marginals is not None
    if not (some and np.isfinite(found.x).all() and np.isfinite(found.eqlin.marginals).all()):
        return Answer(np.zeros(program.cost.size), np.zeros(program.rhs.size), iterations, limit)
    return Answer(np.maximum(found.x, 0.0), found.eqlin.marginals, iterations, limit)


# --- what a policy is worth ---------------------------------------------------------------------------------------


def evaluate(A: Array, grid: Grid, where: Mask) -> Array:
    """``U = (1-γ) c + γ Π U`` on a set of pairs that the plans do not leave; zero elsewhere."""
    U = np.zeros(grid.cost.size)
    U[where] = spsolve(_system(A, grid, where), (1 - grid.discount) * grid.cost.ravel()[where])
    return U.reshape(grid.cost.shape)


def occupancy(A: Array, start: Array, grid: Grid) -> Array:
    """``m = (1-γ) m_0 + γ Π^T m``, ``start`` = m_0 on the supports of the starts; no entry below NOISE."""
    where = reachable(A, start, grid)
    source = np.zeros(grid.cost.shape)
    source[np.ix_(grid.sx.indices, grid.sy.indices)] = (1 - grid.discount) * start
    m = np.zeros(source.size)
    m[where] = spsolve(_system(A, grid, where).T.tocsc(), source.ravel()[where])
    m[m <= NOISE] = 0.0
    return m.reshape(source.shape)


def reachable(A: Array, start: Array, grid: Grid) -> Mask:
    """The pairs that the plans lead to from the coupling of the starts, flat."""
    n, (i, j) = grid.cost.size, np.nonzero(start)
    first = grid.sx.indices[i] * grid.cost.shape[1] + grid.sy.indices[j]
    root = sparse.csr_array((np.ones(first.size), (np.zeros_like(first), first)), shape=(1, n))
    graph: sparse.csr_array = sparse.block_array(
        [[_kernel(A, grid), None], [root, sparse.csr_array((1, 1))]], format="csr"
    )
    found = np.zeros(n + 1, dtype=np.bool_)
    found[breadth_first_order(graph, n, directed=True, return_predecessors=False)] = True
    return found[:n]


def _kernel(A: Array, grid: Grid) -> sparse.csr_array:
    """Π as a matrix over flat pairs."""
    n_y, (e, k) = grid.cost.shape[1], np.nonzero(A)
    rows = grid.ex.sources[e] * n_y + grid.ey.sources[k]
    columns = grid.ex.indices[e] * n_y + grid.ey.indices[k]
    return sparse.csr_array((A[e, k], (rows, columns)), shape=(grid.cost.size, grid.cost.size))


def _system(A: Array, grid: Grid, where: Mask) -> sparse.csc_array:
    """``I - γ Π`` on a closed set of pairs."""
    system = sparse.eye_array(grid.cost.size) - grid.discount * _kernel(A, grid)
    return sparse.csc_array(system.tocsr()[where][:, where])


def shaping(edges: Successors, h: Array, discount: float) -> Array:
    """``w = h + γ P w``: what turns the multipliers of "λ in Δ" into a shift of V."""
    system = (sparse.eye_array(h.size) - discount * edges.matrix).tocsc()
    return np.asarray(spsolve(system, h)).reshape(h.size)
