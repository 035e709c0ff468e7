"""Wasserstein barycenters of rows of a large kernel; see ``engine/barycenters.hpp`` for the method.

    min Σ_x w_x <U, Π_x>     over Π_x ≥ 0 and q ≥ 0     s.t.  Π_x 1 = P(·|x)  and  Π_xᵀ 1 = q  for every x.

The engine solves this linear program by an interior-point method. A row comes with its duality gap relative to the
cost. If the gap is larger than ACCEPTED, a program of moderate size is solved by HiGHS instead. Nothing is certified
here: the distance of the chain made of these rows is computed later.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers
from diffbisim.common.stopping import engine_run
from diffbisim.processes.stochastic import Successors

#: Edges with at most this fraction of the mass of their row are dropped: less than the rounding error of its sum.
NEGLIGIBLE = 1e-16

#: Rows with a larger gap, relative to the cost, are computed by HiGHS if the program has at most LITERAL variables.
ACCEPTED, LITERAL = 1e-4, 20_000


class Average(NamedTuple):
    """Rows to average, and where to start."""

    states: Integers  # (s,) whose rows are averaged
    w: Array  # (s,) their weights
    start: Array  # (k,) a positive row


class BarycenterRow(NamedTuple):
    """A row and its duality gap relative to the cost; the gap is infinite if it is just the row to start from."""

    row: Array  # (k,)
    gap: float


def barycenters(rows: Successors, U: Array, averages: Sequence[Average], tol: float) -> list[BarycenterRow]:
    """Return the Wasserstein barycenters of some rows ``P(·|x)`` of a kernel.

    Parameters
    ----------
    rows : Successors
        The rows of the large kernel.
    U : array, shape (n, k)
        Transport costs.
    averages : sequence of Average
        The rows of each barycenter, with their weights.
    tol : float
        Relative duality gap at which the iteration stops.

    Returns
    -------
    list of Row
        The rows (k,), and the gaps that were reached.
    """
    from diffbisim import _engine

    if not averages:
        return []
    states, weights, starts = (np.concatenate(arrays) for arrays in zip(*averages, strict=True))
    first = np.cumsum([0, *(average.states.size for average in averages)])
    flat, gaps = _engine.barycenters(rows, U.ravel(), first, states, weights, starts, tol, engine_run())
    found = list(map(BarycenterRow, flat.reshape(len(averages), -1), gaps.tolist()))
    for b, average in enumerate(averages):
        if not found[b].gap <= max(tol, ACCEPTED):
            found[b] = _literal(rows, U, average, tol) or found[b]
    return found


def _literal(rows: Successors, U: Array, average: Average, tol: float) -> BarycenterRow | None:
    """Solve the linear program as it stands above, by HiGHS; return None if it is too large, or if that fails."""
    from scipy import sparse
    from scipy.optimize import linprog

    first, mass, cost = _edges(rows, U, average)
    (e, k), s = cost.shape, first.size - 1
    if (e + 1) * k > LITERAL:
        return None
    of = sparse.csr_array((np.ones(e), np.arange(e), first), shape=(s, e))
    out = sparse.kron(sparse.eye_array(e), np.ones((1, k)))
    into, row = sparse.kron(of, sparse.eye_array(k)), sparse.kron(np.ones((s, 1)), sparse.eye_array(k))
    equations: Any = sparse.block_array([[out, None], [into, -row]], format="csr")
    found: Any = linprog(
        np.concatenate([cost.ravel(), np.zeros(k)]),
        A_eq=equations,
        b_eq=np.concatenate([mass, np.zeros(s * k)]),
        method="highs",
    )
    if found.x is None or not found.x[-k:].sum() > 0:
        return None
    q = np.maximum(found.x[-k:], 0.0)
    return BarycenterRow(q / q.sum(), tol)


class _Edges(NamedTuple):
    """The successors of some states, without negligible ones."""

    first: Integers  # (s + 1,) state x has the edges first[x] … first[x + 1] - 1
    mass: Array  # (e,) probabilities, which sum to one for every state
    cost: Array  # (e, k) w U, minus the least entry of every row, divided by the largest one


def _edges(rows: Successors, U: Array, average: Average) -> _Edges:
    """Return the edges of the states that carry mass."""
    states, w, _ = average
    degree = rows.indptr[states + 1] - rows.indptr[states]
    begin = np.concatenate([[0], np.cumsum(degree)])[:-1]
    edges = np.arange(degree.sum()) + np.repeat(rows.indptr[states] - begin, degree)
    source = np.repeat(np.arange(states.size), degree)
    mass = rows.probabilities[edges]
    carrying = mass > NEGLIGIBLE * np.bincount(source, mass)[source]
    edges, source, mass = edges[carrying], source[carrying], mass[carrying]
    cost = U[rows.indices[edges]]
    cost = w[source, None] * (cost - cost.min(axis=1, keepdims=True))
    first = np.searchsorted(source, np.arange(states.size + 1)).astype(np.int64)
    return _Edges(first, mass / np.bincount(source, mass)[source], cost / cost.max())
