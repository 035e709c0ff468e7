"""The two linear programs of linear_program.py as sparse matrices.

In edge form (certify.py) μ is a matrix over e = (x → x') and k = (y → y'), and every sum in the constraints
is a Kronecker product of incidence matrices: S_X[x, e] = 1 if e leaves x, T_X[x, e] = 1 if e leads to x,

    Σ_x'y' μ(x,y,x',y') = (S_X ⊗ S_Y) μ        Σ_y' μ = (I ⊗ S_Y) μ      over (e, y)
    Σ μ(·,·,x,y)        = (T_X ⊗ T_Y) μ        Σ_x' μ = (S_X ⊗ I) μ      over (x, k)

so no loop over pairs or cells is needed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.problem import Problem
from diffbisim.solvers.certify import Edges

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grid:
    """A problem in edge form, its cost divided by ``2**exponent`` so that the largest is in [1/2, 1)."""

    ex: Edges  # transitions of X
    ey: Edges
    sx: Edges  # support of the start of X
    sy: Edges
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
            ex=Edges.of_kernel(x),
            ey=Edges.of_kernel(y),
            sx=Edges.of_distribution(x.initial),
            sy=Edges.of_distribution(y.initial),
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
        return self.ex.source.size, self.ey.source.size

    @property
    def start_shape(self) -> tuple[int, int]:
        """Sizes of the supports of the two starts."""
        return self.sx.source.size, self.sy.source.size


def n_variables(problem: Problem) -> int:
    """Variables of the paper's program: μ, m_X, m_Y and m_0; counted before anything is built."""
    x, y = problem.x, problem.y
    starts = np.count_nonzero(x.initial) * np.count_nonzero(y.initial)
    return x.n_transitions * y.n_transitions + 2 * x.n_states * y.n_states + int(starts)


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
    (n_x, n_y), (k_x, k_y) = grid.cost.shape, grid.start_shape
    one_x, one_y, S_x, S_y = _eye(n_x), _eye(n_y), _leaves(ex, n_x), _leaves(ey, n_y)
    flow = _kron(S_x, S_y) - γ * _kron(_leads(ex, n_x), _leads(ey, n_y))
    start = -(1 - γ) * _kron(_leads(sx, n_x), _leads(sy, n_y))
    blocks: list[list[sparse.sparray | None]] = [
        [flow, None, None, start],
        [_kron(_eye(ex.source.size), S_y), -_kron(_weighted(ex, S_x), one_y), None, None],
        [_kron(S_x, _eye(ey.source.size)), None, -_kron(one_x, _weighted(ey, S_y)), None],
        [None, _kron(one_x, _row(n_y)), None, None],
        [None, None, _kron(_row(n_x), one_y), None],
        [None, None, None, _kron(_eye(k_x), _row(k_y))],
        [None, None, None, _kron(_row(k_x), _eye(k_y))],
    ]
    zero = np.zeros(n_x * n_y)
    causal = [np.zeros(ex.source.size * n_y), np.zeros(n_x * ey.source.size)]
    rhs = [zero, *causal, grid.rho_x, grid.rho_y, sx.probability, sy.probability]
    μ_cost = grid.cost[ex.source][:, ey.source].ravel()
    return Program.of_groups([μ_cost, zero, zero, np.zeros(k_x * k_y)], blocks, rhs)


def all_pairs_program(grid: Grid) -> Program:
    """Variables μ, m; constraints flow with every pair a start, causal-X, causal-Y."""
    ex, ey, γ = grid.ex, grid.ey, grid.discount
    n_x, n_y = grid.cost.shape
    S_x, S_y = _leaves(ex, n_x), _leaves(ey, n_y)
    blocks: list[list[sparse.sparray | None]] = [
        [-γ * _kron(_leads(ex, n_x), _leads(ey, n_y)), _eye(n_x * n_y)],
        [_kron(_eye(ex.source.size), S_y), -_kron(_weighted(ex, S_x), _eye(n_y))],
        [_kron(S_x, _eye(ey.source.size)), -_kron(_eye(n_x), _weighted(ey, S_y))],
    ]
    causal = [np.zeros(ex.source.size * n_y), np.zeros(n_x * ey.source.size)]
    costs = [np.zeros(int(np.prod(grid.plan_shape))), grid.cost.ravel()]
    return Program.of_groups(costs, blocks, [np.full(n_x * n_y, 1 - γ), *causal])


def _kron(a: sparse.csr_array, b: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array(sparse.kron(a, b, format="csr"))


def _eye(n: int) -> sparse.csr_array:
    return sparse.csr_array(sparse.eye_array(n, format="csr"))


def _row(n: int) -> sparse.csr_array:
    return sparse.csr_array(np.ones((1, n)))


def _leaves(edges: Edges, n: int) -> sparse.csr_array:
    """S (n, E): which state an edge leaves."""
    size = edges.source.size
    return sparse.csr_array((np.ones(size), (edges.source, np.arange(size))), shape=(n, size))


def _leads(edges: Edges, n: int) -> sparse.csr_array:
    """T (n, E): which state an edge leads to."""
    size = edges.source.size
    return sparse.csr_array((np.ones(size), (edges.target, np.arange(size))), shape=(n, size))


def _weighted(edges: Edges, leaves: sparse.csr_array) -> sparse.csr_array:
    """(E, n): the transposed incidence with the probability of each edge."""
    return sparse.csr_array(sparse.diags_array(edges.probability) @ leaves.T)
