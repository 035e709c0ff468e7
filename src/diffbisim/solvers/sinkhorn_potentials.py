"""Potentials of plans in Gibbs form: half-steps, lower bounds, sums for the gradient (numba, without the GIL).

Letters as in sinkhorn_kernels.py. The *transform* of g is f_i = min_j (U_ij - g_j), or at a temperature ε > 0 its soft
version -ε log Σ_j q_j exp((g_j - U_ij)/ε). Two in a row, g → f → g, make potentials feasible (ε = 0), or give their
plan mass one (ε > 0), so that the entropic dual has no further term. Either way

    <p, f> + <q, g>  ≤  min over couplings π of <π, U> + ε KL(π ‖ p⊗q).
"""

import numpy as np

from diffbisim._compile import njit
from diffbisim.solvers.sinkhorn_kernels import exact, gather, locate, loose, put, scratch, soft_row


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


@njit(**exact)
def means(lo, hi, xs, ys, columns, potential, out):
    """out[k] = <p, f> for potentials shaped like F; with ``columns`` <q, g> for potentials shaped like G."""
    for k in range(lo, hi):
        _, _, px, py, pf, pg = locate(k, xs, ys)
        weight, values, total = ys[2][py] if columns else xs[2][px], potential[pg if columns else pf], 0.0
        for i in range(weight.size):
            total += weight[i] * values[i]
        out[k] = total


@njit(**loose)
def _transform(C, g, f):
    """f_i = min_j (C_ij - g_j)."""
    for i in range(f.size):
        least = np.inf
        for j in range(g.size):
            least = min(least, C[i, j] - g[j])
        f[i] = least


@njit(**loose)
def _transform_back(C, f, g):
    """g_j = min_i (C_ij - f_i)."""
    put(np.inf, g)
    for i in range(f.size):
        for j in range(g.size):
            g[j] = min(g[j], C[i, j] - f[i])


@njit(**exact)
def own_potentials(k, xs, ys, n_y, U, epsilon, G, work):
    """Potentials of pair k on its successors, f (a,) and g (b,): two transforms, from the g that is in G."""
    _, _, px, py, _, pg = locate(k, xs, ys)
    rows, cols, log_p, log_q = xs[1][px], ys[1][py], xs[3][px], ys[3][py]
    f, g, C = np.empty(rows.size), G[pg].copy(), gather(U, n_y, rows, cols, work[0])
    if epsilon == 0.0:
        _transform(C, g, f)
        _transform_back(C, f, g)
        return f, g
    terms_p, terms_q = np.empty(rows.size), np.empty(cols.size)
    for i in range(f.size):
        f[i] = soft_row(C[i], log_q, g, 1 / epsilon, terms_q)
    T = gather_transposed(U, n_y, rows, cols, work[0])
    for j in range(g.size):
        g[j] = soft_row(T[j], log_p, f, 1 / epsilon, terms_p)
    return f, g


@njit(**exact)
def dual_bounds(lo, hi, xs, ys, n_y, U, epsilon, G, out):
    """out[k] ≤ the transport of pair k for the table U; returns the largest number in the potentials."""
    work, largest = scratch(xs, ys, 1), 0.0
    for k in range(lo, hi):
        _, _, px, py, _, _ = locate(k, xs, ys)
        p, q = xs[2][px], ys[2][py]
        f, g = own_potentials(k, xs, ys, n_y, U, epsilon, G, work)
        value = 0.0
        for i in range(p.size):
            value += p[i] * f[i]
            largest = max(largest, abs(f[i]))
        for j in range(q.size):
            value += q[j] * g[j]
            largest = max(largest, abs(g[j]))
        out[k] = value
    return largest


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
def potentials(k, xs, ys, n_y, U, epsilon, G, work, f, g):
    """Potentials of pair k for the table U at all states, f (n_X,) and g (n_Y,): transforms off the successors too."""
    _, _, px, py, _, _ = locate(k, xs, ys)
    rows, cols = xs[1][px], ys[1][py]
    own_f, own_g = own_potentials(k, xs, ys, n_y, U, epsilon, G, work)
    line, terms = np.empty(cols.size), np.empty(cols.size)
    for x in range(f.size):
        for j in range(cols.size):
            line[j] = U[x * n_y + cols[j]]
        f[x] = _transformed(line, ys[3][py], own_g, epsilon, terms)
    line, terms = np.empty(rows.size), np.empty(rows.size)
    for y in range(g.size):
        for i in range(rows.size):
            line[i] = U[rows[i] * n_y + y]
        g[y] = _transformed(line, xs[3][px], own_f, epsilon, terms)


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
