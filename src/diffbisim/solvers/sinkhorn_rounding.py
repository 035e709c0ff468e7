"""Plans in Gibbs form made exact, and what they do to tables, pair by pair (numba, without the GIL).

Letters as in sinkhorn_kernels.py. *Rounding* (Altschuler, Weed, Rigollet 2017): scale down the rows that are too heavy,
then the columns, and fill what is missing by a rank-one term; that makes the marginals exact and moves at most twice
the mass by which they were wrong. A rounded plan π costs at least as much as the transport, for a table U and a
temperature ε ≥ 0:

    min over couplings of <·, U> + ε KL(· ‖ p⊗q)  ≤  <π, U> + ε KL(π ‖ p⊗q)

Plans that are *stored* stand pair after pair, each (a, b) by rows.
"""

import numpy as np

from diffbisim._compile import njit
from diffbisim.solvers.sinkhorn_kernels import exact, fill, gather, locate, longest, loose, put, scratch

LAST_DIGITS = 4 * 2.0**-52  # what a marginal may lack, or every entry would get some mass


@njit(**loose)
def _column_sums(K, col):
    put(0.0, col)
    for i in range(K.shape[0]):
        for j in range(K.shape[1]):
            col[j] += K[i, j]


@njit(**loose)
def round_plan(K, p, q, row, col):
    """K → a plan with marginals p and q (to the last digits), in place; ``row`` and ``col`` are scratch."""
    a, b = K.shape
    for i in range(a):
        total = 0.0
        for j in range(b):
            total += K[i, j]
        if total > p[i]:
            for j in range(b):
                K[i, j] *= p[i] / total
    _column_sums(K, col)
    for j in range(b):
        col[j] = q[j] / col[j] if col[j] > q[j] else 1.0
    lack = 0.0
    for i in range(a):
        total = 0.0
        for j in range(b):
            K[i, j] *= col[j]
            total += K[i, j]
        row[i] = p[i] - total if p[i] - total > LAST_DIGITS * p[i] else 0.0
        lack += row[i]
    if lack > 1e-300:
        _column_sums(K, col)
        for j in range(b):
            col[j] = q[j] - col[j] if q[j] - col[j] > LAST_DIGITS * q[j] else 0.0
        for i in range(a):
            for j in range(b):
                K[i, j] += row[i] / lack * col[j]


@njit(**exact)
def pair_plan(k, xs, ys, n_y, W, beta, F, G, rounded, work, row, col):
    """The plan of pair k, (a, b), in scratch."""
    _, _, px, py, pf, pg = locate(k, xs, ys)
    p, q = xs[2][px], ys[2][py]
    C = gather(W, n_y, xs[1][px], ys[1][py], work[0])
    K = work[1][: C.size].reshape(C.shape)
    fill(C, p, ys[3][py], F[pf], G[pg], beta, K)
    if rounded:
        round_plan(K, p, q, row[: p.size], col[: q.size])
    return K


@njit(**loose)
def inner(K, C):
    """<K, C>."""
    total = 0.0
    for i in range(K.shape[0]):
        for j in range(K.shape[1]):
            total += K[i, j] * C[i, j]
    return total


@njit(**exact)
def divergence(K, log_p, log_q):
    """KL(K ‖ p⊗q) of a plan: probabilities may be so small that their product vanishes."""
    total = 0.0
    for i in range(log_p.size):
        for j in range(log_q.size):
            if K[i, j] > 0.0:
                total += K[i, j] * (np.log(K[i, j]) - log_p[i] - log_q[j])
    return max(total, 0.0)


@njit(**exact)
def soft_costs(lo, hi, xs, ys, n_y, W, beta, F, G, U, epsilon, out):
    """out[k] = <π, U> + ε KL(π ‖ p⊗q) of the rounded plan of every pair."""
    work = scratch(xs, ys, 3)
    row, col = np.empty(longest(xs)), np.empty(longest(ys))
    for k in range(lo, hi):
        _, _, px, py, _, _ = locate(k, xs, ys)
        K = pair_plan(k, xs, ys, n_y, W, beta, F, G, True, work, row, col)
        information = divergence(K, xs[3][px], ys[3][py])
        out[k] = inner(K, gather(U, n_y, xs[1][px], ys[1][py], work[2])) + epsilon * information


@njit(**exact)
def apply(lo, hi, xs, ys, n_y, W, beta, F, G, rounded, V, out):
    """out[k] = <π_k, V>."""
    work = scratch(xs, ys, 3)
    row, col = np.empty(longest(xs)), np.empty(longest(ys))
    for k in range(lo, hi):
        _, _, px, py, _, _ = locate(k, xs, ys)
        K = pair_plan(k, xs, ys, n_y, W, beta, F, G, rounded, work, row, col)
        out[k] = inner(K, gather(V, n_y, xs[1][px], ys[1][py], work[2]))


@njit(**exact)
def _spread(rows, cols, n_y, amount, K, out):
    for i in range(rows.size):
        line = out[rows[i] * n_y : (rows[i] + 1) * n_y]
        for j in range(cols.size):
            line[cols[j]] += amount * K[i, j]


@njit(**exact)
def push(lo, hi, xs, ys, n_y, W, beta, F, G, rounded, m, out):
    """out += Σ_k m_k π_k; every piece needs an ``out`` of its own."""
    work = scratch(xs, ys, 2)
    row, col = np.empty(longest(xs)), np.empty(longest(ys))
    for k in range(lo, hi):
        if m[k] != 0.0:
            _, _, px, py, _, _ = locate(k, xs, ys)
            K = pair_plan(k, xs, ys, n_y, W, beta, F, G, rounded, work, row, col)
            _spread(xs[1][px], ys[1][py], n_y, m[k], K, out)


@njit(inline="always", **exact)
def _stored(k, xs, ys, plans):
    x, y, px, py, _, _ = locate(k, xs, ys)
    a, b = px.stop - px.start, py.stop - py.start
    at = xs[0][x] * ys[1].size + a * ys[0][y]
    return xs[1][px], ys[1][py], plans[at : at + a * b].reshape((a, b))


@njit(**exact)
def store(lo, hi, xs, ys, n_y, W, beta, F, G, rounded, plans):
    """Write the plans."""
    work = scratch(xs, ys, 2)
    row, col = np.empty(longest(xs)), np.empty(longest(ys))
    for k in range(lo, hi):
        K = pair_plan(k, xs, ys, n_y, W, beta, F, G, rounded, work, row, col)
        stored = _stored(k, xs, ys, plans)[2]
        for i in range(K.shape[0]):
            for j in range(K.shape[1]):
                stored[i, j] = K[i, j]


@njit(**loose)
def apply_stored(lo, hi, xs, ys, n_y, plans, V, out):
    """:func:`apply` for plans that were stored."""
    for k in range(lo, hi):
        rows, cols, K = _stored(k, xs, ys, plans)
        total = 0.0
        for i in range(rows.size):
            line = V[rows[i] * n_y : (rows[i] + 1) * n_y]
            for j in range(cols.size):
                total += K[i, j] * line[cols[j]]
        out[k] = total


@njit(**exact)
def push_stored(lo, hi, xs, ys, n_y, plans, m, out):
    """:func:`push` for plans that were stored."""
    for k in range(lo, hi):
        if m[k] != 0.0:
            rows, cols, K = _stored(k, xs, ys, plans)
            _spread(rows, cols, n_y, m[k], K, out)
