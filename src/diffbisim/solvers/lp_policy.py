"""Values and occupancies of a coupling policy: two sparse linear systems over the pairs it can reach.

A policy is the plans of all pairs in edge form (certify.py), ``A (E_X, E_Y)``. As a matrix over flat pairs
``i = x n_Y + y`` it is a Markov kernel Π, and with m_0 a coupling of the starts

    U = (1-γ) c + γ Π U         value of the policy in every pair
    m = (1-γ) m_0 + γ Π^T m     its occupancy

both solved by a sparse LU factorization, restricted to a set of pairs that Π does not leave.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import spsolve

from diffbisim.solvers.certify import Edges
from diffbisim.solvers.lp_assembly import Grid

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Occupancies up to this are rounding: a rounded plan may put a last digit where the program put nothing.
NOISE = 1e-14


def evaluate(A: Array, grid: Grid, where: Mask) -> Array:
    """``U = (1-γ) c + γ Π U`` on a set of pairs that the plans do not leave; zero elsewhere."""
    U = np.zeros(grid.cost.size)
    U[where] = spsolve(_system(A, grid, where), (1 - grid.discount) * grid.cost.ravel()[where])
    return U.reshape(grid.cost.shape)


def occupancy(A: Array, start: Array, grid: Grid) -> Array:
    """``m = (1-γ) m_0 + γ Π^T m``, ``start`` = m_0 on the supports of the starts; no entry below NOISE."""
    where = reachable(A, start, grid)
    source = np.zeros(grid.cost.shape)
    source[np.ix_(grid.sx.target, grid.sy.target)] = (1 - grid.discount) * start
    m = np.zeros(source.size)
    m[where] = spsolve(_system(A, grid, where).T.tocsc(), source.ravel()[where])
    m[m <= NOISE] = 0.0
    return m.reshape(source.shape)


def reachable(A: Array, start: Array, grid: Grid) -> Mask:
    """The pairs that the plans lead to from the coupling of the starts, flat."""
    n, (i, j) = grid.cost.size, np.nonzero(start)
    first = grid.sx.target[i] * grid.cost.shape[1] + grid.sy.target[j]
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
    rows = grid.ex.source[e] * n_y + grid.ey.source[k]
    columns = grid.ex.target[e] * n_y + grid.ey.target[k]
    return sparse.csr_array((A[e, k], (rows, columns)), shape=(grid.cost.size, grid.cost.size))


def _system(A: Array, grid: Grid, where: Mask) -> sparse.csc_array:
    """``I - γ Π`` on a closed set of pairs."""
    system = sparse.eye_array(grid.cost.size) - grid.discount * _kernel(A, grid)
    return sparse.csc_array(system.tocsr()[where][:, where])


def shaping(edges: Edges, h: Array, discount: float) -> Array:
    """``w = h + γ P w``: what turns the multipliers of "λ in Δ" into a shift of V."""
    n = h.size
    P = sparse.csr_array((edges.probability, (edges.source, edges.target)), shape=(n, n))
    return np.asarray(spsolve((sparse.eye_array(n) - discount * P).tocsc(), h)).reshape(n)
