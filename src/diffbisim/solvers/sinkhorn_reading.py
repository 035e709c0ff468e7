"""Plans in Gibbs form as an operator on tables, and potentials at all states (numba, without the GIL).

Letters as in sinkhorn_kernels.py. Plans that are *stored* stand pair after pair, each (a, b) by rows.
"""

import numpy as np
from numba import njit

from diffbisim.solvers.sinkhorn_kernels import exact, gather, locate, longest, loose, scratch, soft_row
from diffbisim.solvers.sinkhorn_rounding import gather_transposed, inner, pair_plan


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


@njit(**exact)
def _transformed(c, log_q, g, epsilon, terms):
    """min_j (c_j - g_j), or its soft version."""
    if epsilon > 0.0:
        return soft_row(c, log_q, g, 1 / epsilon, terms)
    least = np.inf
    for j in range(g.size):
        least = min(least, c[j] - g[j])
    return least


@njit(**exact)
def own_potentials(k, xs, ys, n_y, U, epsilon, G, work):
    """Potentials of pair k on its successors, f (a,) and h (b,), each the transform of the other."""
    _, _, px, py, _, pg = locate(k, xs, ys)
    rows, cols, log_p, log_q, g = xs[1][px], ys[1][py], xs[3][px], ys[3][py], G[pg]
    f, h, terms_p, terms_q = np.empty(rows.size), np.empty(cols.size), np.empty(rows.size), np.empty(cols.size)
    C = gather(U, n_y, rows, cols, work[0])
    for i in range(f.size):
        f[i] = _transformed(C[i], log_q, g, epsilon, terms_q)
    T = gather_transposed(U, n_y, rows, cols, work[0])
    for j in range(h.size):
        h[j] = _transformed(T[j], log_p, f, epsilon, terms_p)
    return f, h


@njit(**exact)
def potentials(k, xs, ys, n_y, U, epsilon, G, work, f, g):
    """Potentials of pair k for the table U at all states, f (n_X,) and g (n_Y,): transforms off the successors too."""
    _, _, px, py, _, _ = locate(k, xs, ys)
    rows, cols = xs[1][px], ys[1][py]
    own, other = own_potentials(k, xs, ys, n_y, U, epsilon, G, work)
    line_p, terms_p, line_q, terms_q = (
        np.empty_like(own),
        np.empty_like(own),
        np.empty_like(other),
        np.empty_like(other),
    )
    for x in range(f.size):
        for j in range(cols.size):
            line_q[j] = U[x * n_y + cols[j]]
        f[x] = _transformed(line_q, ys[3][py], other, epsilon, terms_q)
    for y in range(g.size):
        for i in range(rows.size):
            line_p[i] = U[rows[i] * n_y + y]
        g[y] = _transformed(line_p, xs[3][px], own, epsilon, terms_p)


@njit(**exact)
def _add(weight, values, out):
    for j in range(out.size):
        out[j] += weight * values[j]


@njit(**exact)
def sum_potentials(lo, hi, xs, ys, n_y, U, epsilon, G, m, by_x, by_y):
    """by_x[x] += m(x,y) f_xy and by_y[y] += m(x,y) g_xy, dense; every piece needs tables of its own."""
    work, f, g = scratch(xs, ys, 1), np.empty(U.size // n_y), np.empty(n_y)
    for k in range(lo, hi):
        if m[k] > 0.0:
            x, y, _, _, _, _ = locate(k, xs, ys)
            potentials(k, xs, ys, n_y, U, epsilon, G, work, f, g)
            _add(m[k], f, by_x[x])
            _add(m[k], g, by_y[y])


@njit(**exact)
def sum_own_potentials(lo, hi, xs, ys, n_y, U, epsilon, G, m, by_x, by_y):
    """The same on the successors only, aligned with xs[1] and ys[1]."""
    work = scratch(xs, ys, 1)
    for k in range(lo, hi):
        if m[k] > 0.0:
            _, _, px, py, _, _ = locate(k, xs, ys)
            f, h = own_potentials(k, xs, ys, n_y, U, epsilon, G, work)
            _add(m[k], f, by_x[px])
            _add(m[k], h, by_y[py])
