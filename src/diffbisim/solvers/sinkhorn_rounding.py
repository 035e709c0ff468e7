"""What is read off plans in Gibbs form, pair by pair: half-steps, rounded plans, bounds (numba, without the GIL).

Letters as in sinkhorn_kernels.py. *Rounding* (Altschuler, Weed, Rigollet 2017): scale down the rows that are too heavy,
then the columns, and fill what is missing by a rank-one term; that makes the marginals exact and moves at most twice
the mass by which they were wrong. *Bounds*: for a table U and a temperature ε ≥ 0,

    upper   <π, U> + ε KL(π ‖ p⊗q)      of the rounded plan π
    lower   <p, f> + <q, g>             with f the transform of g (and g again that of f when ε = 0)

where the transform is min_j (U_ij - g_j), or for ε > 0 its soft version -ε log Σ_j q_j exp((g_j - U_ij)/ε), which makes
the plan of (f, g) have mass one, so that the entropic dual has no further term.
"""

import numpy as np
from numba import njit

from diffbisim.solvers.sinkhorn_kernels import exact, fill, gather, locate, longest, loose, put, scratch, soft_row

LAST_DIGITS = 4 * 2.0**-52  # what a marginal may lack, or every entry would get some mass


@njit(**exact)
def gather_transposed(W, n_y, rows, cols, room):
    """The costs of a pair, (b, a)."""
    T = room[: rows.size * cols.size].reshape((cols.size, rows.size))
    for i in range(rows.size):
        for j in range(cols.size):
            T[j, i] = W[rows[i] * n_y + cols[j]]
    return T


@njit(**exact)
def half_step(lo, hi, xs, ys, n_y, W, beta, F, G, columns, out):
    """``out``, shaped like F, = softmin (W - G); with ``columns``, shaped like G, = softmin (W - F)."""
    work = scratch(xs, ys, 1)
    for k in range(lo, hi):
        _, _, px, py, pf, pg = locate(k, xs, ys)
        if columns:
            C = gather_transposed(W, n_y, xs[1][px], ys[1][py], work[0])
            target, weight, other = out[pg], xs[3][px], F[pf]
        else:
            C = gather(W, n_y, xs[1][px], ys[1][py], work[0])
            target, weight, other = out[pf], ys[3][py], G[pg]
        terms = np.empty(other.size)
        for i in range(target.size):
            target[i] = soft_row(C[i], weight, other, beta, terms)


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


@njit(**loose)
def transform(C, g, f):
    """f_i = min_j (C_ij - g_j)."""
    for i in range(f.size):
        least = np.inf
        for j in range(g.size):
            least = min(least, C[i, j] - g[j])
        f[i] = least


@njit(**loose)
def transform_back(C, f, g):
    """g_j = min_i (C_ij - f_i)."""
    put(np.inf, g)
    for i in range(f.size):
        for j in range(g.size):
            g[j] = min(g[j], C[i, j] - f[i])


@njit(**exact)
def _dual(C, p, q, log_q, g, epsilon, f, h, terms):
    """Value of the potentials f, h made from g, and the largest number in them."""
    if epsilon > 0.0:
        for i in range(p.size):
            f[i] = soft_row(C[i], log_q, g, 1 / epsilon, terms)
        for j in range(q.size):
            h[j] = g[j]
    else:
        transform(C, g, f)
        transform_back(C, f, h)
    value, largest = 0.0, 0.0
    for i in range(p.size):
        value += p[i] * f[i]
        largest = max(largest, abs(f[i]))
    for j in range(q.size):
        value += q[j] * h[j]
        largest = max(largest, abs(h[j]))
    return value, largest


@njit(**exact)
def dual_bounds(lo, hi, xs, ys, n_y, U, epsilon, G, out):
    """out[k] ≤ the transport of pair k for the table U; returns the largest number in the potentials."""
    work = scratch(xs, ys, 1)
    a, b = longest(xs), longest(ys)
    f, h, terms = np.empty(a), np.empty(b), np.empty(b)
    largest = 0.0
    for k in range(lo, hi):
        _, _, px, py, _, pg = locate(k, xs, ys)
        p, q = xs[2][px], ys[2][py]
        C = gather(U, n_y, xs[1][px], ys[1][py], work[0])
        out[k], size = _dual(C, p, q, ys[3][py], G[pg], epsilon, f[: p.size], h[: q.size], terms[: q.size])
        largest = max(largest, size)
    return largest


@njit(**exact)
def means(lo, hi, xs, ys, columns, potential, out):
    """out[k] = <p, f> for potentials shaped like F; with ``columns`` <q, g> for potentials shaped like G."""
    for k in range(lo, hi):
        _, _, px, py, pf, pg = locate(k, xs, ys)
        weight, values, total = ys[2][py] if columns else xs[2][px], potential[pg if columns else pf], 0.0
        for i in range(weight.size):
            total += weight[i] * values[i]
        out[k] = total
