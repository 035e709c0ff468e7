"""The best rows of a small kernel for a given table: Wasserstein barycenters of the rows of a large one.

Hold the table U and the joint occupancy m of an optimal coupling fixed. To first order the distance to a chain with
kernel Q instead of P_Y changes by γ times the change of

    Σ_y Σ_x m(x,y) OT_U(P_X(·|x), Q(·|y)),

which is convex in Q and separates over y: row y is the barycenter, for the cost U, of the rows P_X(·|x) with weights
m(x,y). Unlike a gradient it sees the kinks of every transport, so the way from P_Y to Q is long and still downhill.

Two methods. Small problems: the linear program over the plans Π_x and the row q,

    min Σ_x w_x <U, Π_x>     s.t.  Π_x 1 = P_X(·|x),   Π_xᵀ 1 = q   for every x.

Large ones: iterative Bregman projections (Benamou et al. 2015) with the Gibbs kernel exp(-U/ε), which all x share.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.checks import Integers
from diffbisim.problem import Array

#: Largest linear program, in cells of the plans of one row. The states of largest weight are taken as far as that
#: goes; if they have less than this share of the weight, the projections are used.
LARGEST_PROGRAM = 3_000
ENOUGH = 0.9

#: Weights below this share of a row's total do not move its barycenter.
NEGLIGIBLE = 1e-9

#: Width of the Gibbs kernel, relative to the spread of the table; less for short steps, which need to be exact.
SMOOTHING = 0.05

PROJECTIONS = 30
TINY = 1e-300

#: Kernels with at least this share of their entries positive are multiplied as dense matrices.
DENSE = 0.25


def barycenters(
    chain: MarkovChain, U: Array, m: Array, P: Array, radius: float = 1.0, deadline: float = np.inf
) -> Array:
    """The best kernel with entries within ``radius`` of ``P (k, k)``; rows stay where ``m (n, k)`` has no mass.

    Rows that are not reached by ``deadline`` (of ``time.monotonic``) stay too.
    """
    Q = P.copy()
    gibbs: Gibbs | None = None
    degree = np.diff(chain.successors.indptr)
    for y in range(U.shape[1]):
        total = float(m[:, y].sum())
        if total <= NEGLIGIBLE:
            continue
        if time.monotonic() > deadline:
            break
        w = m[:, y] / total
        active = _heaviest(w, degree * U.shape[1])
        if w[active].sum() >= ENOUGH:
            q = _program(chain, U, w, active, P[y], radius)
        else:
            gibbs = gibbs or Gibbs.of(chain, U, SMOOTHING * max(min(radius, 1.0), 0.01) ** 0.5)
            q = P[y] + radius * (gibbs.barycenter(w, deadline) - P[y])
        if q is not None and np.isfinite(q).all() and q.sum() > 0:
            Q[y] = np.maximum(q, 0.0) / np.maximum(q, 0.0).sum()
    return Q


def _heaviest(w: Array, cells: Integers) -> Integers:
    """The states of largest weight whose plans fit into one program, ascending."""
    order = np.argsort(-w, kind="stable")
    order = order[w[order] > NEGLIGIBLE]
    return np.sort(order[np.cumsum(cells[order]) <= LARGEST_PROGRAM])


def _program(chain: MarkovChain, U: Array, w: Array, active: Integers, center: Array, radius: float) -> Array | None:
    """The row by HiGHS; None if it gives up.

    Variables: a cell (successor of an active x, y') for every plan, then q. Equations: one per successor, then k per x.
    """
    from scipy.optimize import linprog

    s, k = chain.successors, U.shape[1]
    degree = np.diff(s.indptr)[active]
    edges = np.concatenate([np.arange(s.indptr[x], s.indptr[x + 1]) for x in active])
    owner = np.repeat(np.arange(active.size), degree)
    n_edges, n_plans = edges.size, active.size
    cells = np.arange(n_edges * k)
    column = np.tile(np.arange(k), n_edges)
    rows = np.concatenate([cells // k, n_edges + np.repeat(owner, k) * k + column, n_edges + np.arange(n_plans * k)])
    cols = np.concatenate([cells, cells, n_edges * k + np.tile(np.arange(k), n_plans)])
    data = np.concatenate([np.ones(2 * cells.size), -np.ones(n_plans * k)])
    found = linprog(  # type: ignore[call-overload]
        np.concatenate([(w[active][owner][:, None] * U[s.indices[edges]]).ravel(), np.zeros(k)]),
        A_eq=sparse.csr_array((data, (rows, cols)), shape=(n_edges + n_plans * k, n_edges * k + k)),
        b_eq=np.concatenate([s.probabilities[edges], np.zeros(n_plans * k)]),
        bounds=np.concatenate([np.tile([0.0, 1.0], (n_edges * k, 1)), _around(center, radius)]),
        method="highs",
    )
    return None if found.x is None else np.asarray(found.x[n_edges * k :])


def _around(center: Array, radius: float) -> Array:
    return np.stack([np.maximum(center - radius, 0.0), np.minimum(center + radius, 1.0)], axis=1)


@dataclass(frozen=True, eq=False)
class Gibbs:
    """What all rows share: the large chain and the Gibbs kernel of the table."""

    chain: MarkovChain
    kernel: Array  # (n, k)

    @classmethod
    def of(cls, chain: MarkovChain, U: Array, smoothing: float = SMOOTHING) -> "Gibbs":
        ε = smoothing * float(U.std()) or 1.0
        return cls(chain, np.exp(-np.minimum((U - U.min(axis=1, keepdims=True)) / ε, 600.0)))

    def barycenter(self, w: Array, deadline: float = np.inf) -> Array:
        """The row for the weights ``w (n,)``, by alternating projections on both families of constraints.

        Of the large chain only the rows with weight matter. At the deadline it is what the projections so far gave.
        """
        taken = np.flatnonzero(w > NEGLIGIBLE)
        w, K, rows = w[taken], self.kernel, self.chain.successors.matrix[taken]  # (a,), (n, k), (a, n)
        dense = rows.nnz >= DENSE * taken.size * K.shape[0]
        apply = _dense_projection(rows.toarray(), K) if dense else _sparse_projection(rows, K)
        v = np.ones((taken.size, K.shape[1]))
        q: Array = v[0] / v[0].sum()
        for _ in range(PROJECTIONS):
            back = apply(v)
            q = np.exp(w @ np.log(np.maximum(v * back, TINY)))
            q /= q.sum()
            v = q / np.maximum(back, TINY)
            if time.monotonic() > deadline:
                break
        return np.asarray(q)


def _dense_projection(P: Array, K: Array) -> Callable[[Array], Array]:
    """``v (a, k) ↦ Kᵀ u`` with ``u = P / (K v)`` for every row of ``P (a, n)``: two products of matrices."""
    return lambda v: (P / np.maximum(v @ K.T, TINY)) @ K


def _sparse_projection(P: sparse.csr_array, K: Array) -> Callable[[Array], Array]:
    """The same along the transitions."""
    first, source, at = P.indptr[:-1], np.repeat(np.arange(P.shape[0]), np.diff(P.indptr)), K[P.indices]

    def apply(v: Array) -> Array:
        u = P.data / np.maximum(np.einsum("ej,ej->e", at, v[source]), TINY)
        return np.asarray(np.add.reduceat(u[:, None] * at, first))

    return apply
