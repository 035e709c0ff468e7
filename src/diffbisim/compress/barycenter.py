"""Wasserstein barycenters of rows of a large kernel, by an interior-point method (numba, without the GIL).

For states x with weights w_x and a table of costs U, the row q of k probabilities nearest to the rows P(·|x) solves

    min Σ_x w_x <U, Π_x>     over Π_x ≥ 0 and q ≥ 0     s.t.  Π_x 1 = P(·|x)  and  Π_xᵀ 1 = q  for every x.

Mehrotra's predictor-corrector method takes ten to thirty iterations for this linear program, whatever its size. Its
Newton system decomposes into one small system per state; they are coupled only by the k entries of q:

    1. The duals f of the equations Π_x 1 = P(·|x) are eliminated, since their block is diagonal.
    2. The remaining system of a state is the Laplacian of a graph on its k columns, grounded at the last one. It is
       a sum of positive terms, so there is no cancellation, and it is inverted.
    3. The sum of these inverses, plus the barrier of q on the diagonal, is a k x k system for the step of q.

An iteration takes time proportional to k² for every edge (a successor of one of the states) and k³ for every state. The
first point is feasible (Π = P(·|x) q'), and so are all others up to rounding. If rounding errors become too large, the
iteration ends at the last good row. A row comes with its duality gap relative to the cost: it is at most the tolerance
if the iteration converged, and infinite if no row other than the first is known to be good. If the gap is larger than
ACCEPTED, a program of moderate size is solved by HiGHS instead. Nothing is certified here: the distance of the chain
made of these rows is computed later.

*Negligible edges.* The diagonal of the Newton system is plan / slack. It is of the order of the squared mass of an
edge, since reduced costs are of order 1 / mass at first, and underflows for masses below 1e-154. Edges with less than
the fraction NEGLIGIBLE of their row's mass are therefore dropped, and the row is normalized. Moving a mass δ changes a
transport by at most δ times the range of the costs, whatever the row q is. The mass of a dropped edge is less than the
rounding error of the sum of its row, so the optimum changes by less than rounding does. Costs are divided by the
largest one.

Notation: s states, e edges, k columns. The last of the equations Π_xᵀ 1 = q follows from the others and is omitted.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import njit
from diffbisim.problem import Array
from diffbisim.stochastic import Successors

FAST = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}

#: Maximum number of iterations, and length of a step as a fraction of the distance to the boundary.
ITERATIONS, SHARE = 40, 0.99

#: Largest average error of the column sums of the plans; a larger one means that rounding errors have taken over.
FEASIBLE = 1e-7

#: A pivot below this counts as zero, and its column does not move.
NO_PIVOT = 1e-200

#: Edges with at most this fraction of the mass of their row are dropped: less than the rounding error of its sum.
NEGLIGIBLE = 1e-16

#: A cost below this fraction of the largest possible one counts as zero when the gap is compared with it.
ZERO_COST = 1e-8

#: Rows with a larger gap, relative to the cost, are computed by HiGHS if the program has at most LITERAL variables.
ACCEPTED, LITERAL = 1e-4, 20_000


class Row(NamedTuple):
    """A row and its duality gap relative to the cost; the gap is infinite if it is just the row to start from."""

    row: Array  # (k,)
    gap: float


class Plans(NamedTuple):
    """The plans of all states, their duals, and the workspace of an iteration."""

    first: NDArray[np.int64]  # (s + 1,) state x has the edges first[x] … first[x + 1] - 1
    cost: Array  # (e, k) w U, minus the least entry of every row
    plan: Array  # (e, k) Π
    slack: Array  # (e, k) reduced costs w U - f - g
    inverse: Array  # (e, k) 1 / slack
    d_plan: Array  # (e, k) step of the plans
    d_slack: Array  # (e, k) step of the slacks
    scale: Array  # (e,) 1 / Σ_j plan / slack
    lacking: Array  # (e,) residual of the equation of an edge
    systems: Array  # (s, k - 1, k - 1) inverse of the Laplacian of every state
    d_g: Array  # (s, k - 1) step of the duals of the columns for fixed q


def barycenter(rows: Successors, U: Array, states: NDArray[np.int64], w: Array, start: Array, tol: float) -> Row:
    """Return the Wasserstein barycenter of some rows of a kernel.

    Parameters
    ----------
    rows : Successors
        The rows P(·|x) of the large kernel.
    U : array, shape (n, k)
        Transport costs.
    states : array of int, shape (s,)
        The states whose rows are averaged.
    w : array, shape (s,)
        Their weights.
    start : array, shape (k,)
        A positive row to start from.
    tol : float
        Relative duality gap at which the iteration stops.

    Returns
    -------
    Row
        The row (k,), and the gap that was reached.
    """
    edges = _edges(rows, U, states, w)
    top, k = float(edges.cost.max()), start.size
    if k == 1 or not top > 0:  # every row is optimal
        return Row(start, 0.0)
    first, mass, cost = edges._replace(cost=edges.cost / top)
    plan = mass[:, None] * start
    (e, k), s = cost.shape, states.size
    centering = float((plan * cost).sum()) / (e * k + k)
    slack = cost + (centering * k / mass)[:, None]
    plans = Plans(
        first, cost, plan, slack, np.empty((e, k)), np.zeros((e, k)), np.zeros((e, k)), np.empty(e), np.empty(e),
        np.empty((s, k - 1, k - 1)), np.empty((s, k - 1)),
    )  # fmt: skip
    found = Row(*_interior_point(plans, start.copy(), np.full(k, centering * k), tol))
    if not found.gap <= max(tol, ACCEPTED) and (e + 1) * k <= LITERAL:
        return _literal(Edges(first, mass, cost), tol) or found
    return found


class Edges(NamedTuple):
    """The successors of some states, without negligible ones."""

    first: NDArray[np.int64]  # (s + 1,) state x has the edges first[x] … first[x + 1] - 1
    mass: Array  # (e,) probabilities, which sum to one for every state
    cost: Array  # (e, k) w U, minus the least entry of every row


def _edges(rows: Successors, U: Array, states: NDArray[np.int64], w: Array) -> Edges:
    """Return the edges of the states that carry mass."""
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
    return Edges(first, mass / np.bincount(source, mass)[source], cost)


def _literal(edges: Edges, tol: float) -> Row | None:
    """Solve the linear program as it stands above, by HiGHS; return None if that fails."""
    from scipy import sparse
    from scipy.optimize import linprog

    (e, k), s = edges.cost.shape, edges.first.size - 1
    of = sparse.csr_array((np.ones(e), np.arange(e), edges.first), shape=(s, e))
    out = sparse.kron(sparse.eye_array(e), np.ones((1, k)))
    into, row = sparse.kron(of, sparse.eye_array(k)), sparse.kron(np.ones((s, 1)), sparse.eye_array(k))
    equations: Any = sparse.block_array([[out, None], [into, -row]], format="csr")
    found: Any = linprog(
        np.concatenate([edges.cost.ravel(), np.zeros(k)]),
        A_eq=equations,
        b_eq=np.concatenate([edges.mass, np.zeros(s * k)]),
        method="highs",
    )
    if found.x is None or not found.x[-k:].sum() > 0:
        return None
    q = np.maximum(found.x[-k:], 0.0)
    return Row(q / q.sum(), tol)


@njit(**FAST)
def _interior_point(plans: Plans, q: Array, z: Array, tol: float) -> tuple[Array, float]:
    """Iterate from ``q (k,)`` with reduced costs ``z (k,)`` until the duality gap is below ``tol`` times the cost.

    Returns the last good row and its relative gap, which is infinite if that is the first one.
    """
    k = q.size
    dq, dz, v, M = np.zeros(k), np.zeros(k), np.zeros(k), np.empty((k, k))
    best, reached = q.copy(), np.inf
    gap, cost = _move(plans, 0.0, 0.0)
    gap += (q * z).sum()
    for iteration in range(ITERATIONS):
        if not _factor(plans, q, M) <= FEASIBLE:  # rounding errors have spoiled the last step
            break
        best[:] = q
        if iteration > 0:
            reached = gap / (cost + ZERO_COST)
        if reached <= tol:
            break
        for j in range(k):
            M[j, j] += z[j] / q[j]
        _invert(M)
        ones = M.sum(axis=1)  # the direction that corrects the sum of q
        centering, primal, dual = 0.0, 1.0, 1.0
        for corrected in (False, True):
            _right_side(plans, corrected, centering, v)
            r = centering - q * z
            if corrected:
                r -= dq * dz
            dq = M @ (r / q - v)
            dq -= dq.sum() / ones.sum() * ones
            dz = (r - z * dq) / q
            primal, dual = _direction(plans, dq, _farthest(q, dq), _farthest(z, dz))
            if not corrected:
                primal, dual = min(primal, 1.0), min(dual, 1.0)
                after = _gap(plans, primal, dual) + ((q + primal * dq) * (z + dual * dz)).sum()
                centering = (after / gap) ** 3 * gap / (plans.plan.size + k)
        q += SHARE * primal * dq
        z += SHARE * dual * dz
        gap, cost = _move(plans, SHARE * primal, SHARE * dual)
        gap += (q * z).sum()
    return best, reached


@njit(**FAST)
def _farthest(a: Array, d: Array) -> float:
    """Return the longest step, up to 1 / SHARE, for which a + step d stays positive."""
    step = 1 / SHARE
    for j in range(a.size):
        if a[j] + step * d[j] < 0:
            step = -a[j] / d[j]
    return step


@njit(**FAST)
def _invert(A: Array) -> None:
    """Replace a symmetric positive definite matrix by its inverse (Gauss-Jordan elimination)."""
    n = len(A)
    for p in range(n):
        d = 1 / A[p, p] if A[p, p] > NO_PIVOT else 0.0
        A[p, p] = 1.0
        for j in range(n):
            A[p, j] *= d
        for i in range(n):
            if i != p:
                f = A[i, p]
                A[i, p] = 0.0
                for j in range(n):
                    A[i, j] -= f * A[p, j]


@njit(**FAST)
def _factor(plans: Plans, q: Array, M: Array) -> float:
    """Invert the system of every state, and write the sum of the inverses to the leading part of ``M (k, k)``.

    Returns the average absolute error of the column sums of the plans, which should be ``q (k,)``.
    """
    s, last = plans.d_g.shape
    θ, into, off = np.empty(last + 1), np.empty(last + 1), 0.0
    M[:] = 0.0
    for x in range(s):
        A = plans.systems[x]
        A[:] = 0.0
        into[:] = 0.0
        for e in range(plans.first[x], plans.first[x + 1]):
            total = 0.0
            for j in range(last + 1):
                into[j] += plans.plan[e, j]
                θ[j] = plans.plan[e, j] * plans.inverse[e, j]
                total += θ[j]
            plans.scale[e] = 1 / total
            for j in range(last):
                share = θ[j] * plans.scale[e]
                A[j, j] += share * θ[last]
                for i in range(j):
                    A[j, i] += share * θ[i]
        for j in range(last):
            for i in range(j):
                between = A[j, i]
                A[j, j] += between
                A[i, i] += between
                A[j, i] = A[i, j] = -between
        _invert(A)
        for j in range(last):
            for i in range(last):
                M[j, i] += A[j, i]
        for j in range(last + 1):
            off += abs(into[j] - q[j])
    return float(off / s)


@njit(**FAST)
def _right_side(plans: Plans, corrected: bool, centering: float, v: Array) -> None:
    """Reduce the complementarity equations to the duals of the columns; ``v (k,)`` is their sum over all states.

    The predictor aims at zero, the corrector at ``centering`` minus the second-order term of the predictor's step.
    """
    s, last = plans.d_g.shape
    t = np.empty(last)
    v[:] = 0.0
    for x in range(s):
        t[:] = 0.0
        for e in range(plans.first[x], plans.first[x + 1]):
            lacking = 0.0
            for j in range(last + 1):
                h = -plans.plan[e, j]
                if corrected:
                    h += (centering - plans.d_plan[e, j] * plans.d_slack[e, j]) * plans.inverse[e, j]
                plans.d_plan[e, j] = h
                lacking -= h
            plans.lacking[e] = lacking
            lacking *= plans.scale[e]
            for j in range(last):
                t[j] -= plans.d_plan[e, j] + plans.plan[e, j] * plans.inverse[e, j] * lacking
        for j in range(last):
            d = 0.0
            for i in range(last):
                d += plans.systems[x, j, i] * t[i]
            plans.d_g[x, j] = d
            v[j] += d


@njit(**FAST)
def _direction(plans: Plans, dq: Array, primal: float, dual: float) -> tuple[float, float]:
    """Compute the steps of plans and slacks for ``dq (k,)``; return the longest ones that keep them positive."""
    s, last = plans.d_g.shape
    g = np.zeros(last + 1)
    for x in range(s):
        for j in range(last):
            d = plans.d_g[x, j]
            for i in range(last):
                d += plans.systems[x, j, i] * dq[i]
            g[j] = d
        for e in range(plans.first[x], plans.first[x + 1]):
            f = plans.lacking[e]
            for j in range(last):
                f -= plans.plan[e, j] * plans.inverse[e, j] * g[j]
            f *= plans.scale[e]
            for j in range(last + 1):
                d = plans.d_plan[e, j] + plans.plan[e, j] * plans.inverse[e, j] * (f + g[j])
                plans.d_plan[e, j] = d
                plans.d_slack[e, j] = -(f + g[j])
                if plans.plan[e, j] + primal * d < 0:
                    primal = -plans.plan[e, j] / d
                if plans.slack[e, j] < dual * (f + g[j]):
                    dual = plans.slack[e, j] / (f + g[j])
    return primal, dual


@njit(**FAST)
def _gap(plans: Plans, primal: float, dual: float) -> float:
    """Return the duality gap of the plans after steps of these lengths."""
    plan, slack, d_plan, d_slack = _flat(plans)
    gap = 0.0
    for c in range(plan.size):
        gap += (plan[c] + primal * d_plan[c]) * (slack[c] + dual * d_slack[c])
    return gap


@njit(**FAST)
def _move(plans: Plans, primal: float, dual: float) -> tuple[float, float]:
    """Take steps of these lengths; return the duality gap of the plans and their cost."""
    plan, slack, d_plan, d_slack = _flat(plans)
    inverse, price = plans.inverse.reshape(-1), plans.cost.reshape(-1)
    gap, cost = 0.0, 0.0
    for c in range(plan.size):
        plan[c] += primal * d_plan[c]
        slack[c] += dual * d_slack[c]
        inverse[c] = 1 / slack[c]
        gap += plan[c] * slack[c]
        cost += plan[c] * price[c]
    return gap, cost


@njit(**FAST)
def _flat(plans: Plans) -> tuple[Array, Array, Array, Array]:
    """Return plans, slacks and their steps as flat vectors, which are the fastest to loop over."""
    return (
        plans.plan.reshape(-1), plans.slack.reshape(-1), plans.d_plan.reshape(-1), plans.d_slack.reshape(-1)
    )  # fmt: skip
