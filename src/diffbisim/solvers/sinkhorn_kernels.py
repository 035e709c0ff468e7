"""Sinkhorn's algorithm on pairs of states, for plans in Gibbs form (numba, without the GIL).

The plan of pair k = (x,y) is π(i,j) = p_i q_j exp(β (f_i + g_j - W_ij)) on the successors i of x and j of y. The costs
of a pair are gathered from the table into a scratch matrix that stays in the cache; nothing of size n_X² n_Y² exists.

No exponential here can overflow, whatever β, costs and probabilities are: the rows of a fresh matrix are normalized
by their largest term first (*absorption*), so that the scalings u, w of the iteration start at one; where they drift
beyond LARGE they are absorbed into f and g and the matrix is made anew. Letters:

    xs, ys              (ptr, idx, prob, log prob): successors of every source of X and of Y (CSR)
    k = x m_Y + y       pairs of sources, m_Y sources of Y (the starts are the case of one pair)
    W, U, V             tables (n_X*n_Y,), flat; n_y their number of columns
    F, G                potentials, pair after pair: see :func:`locate`
    C, K (a, b)         scratch: costs and plan of one pair
"""

import numpy as np

from diffbisim._compile import njit

LOG2E, MAGIC = 1.4426950408889634, 6755399441055744.0  # 1.5 · 2^52: adding it rounds to an integer
LN2_HIGH, LN2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6
LARGE = 1e80  # scalings beyond it are absorbed
TINY = 1e-150  # columns lighter than this share of what they should be are filled from their largest term
PATIENCE, FIRM, LOOK = 6, 1.75, 10  # iterations before over-relaxation, its strength, iterations between two looks

exact = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
loose = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "nnan"}}


@njit(inline="always", **exact)
def exp(t):
    """e^t for t ≤ 709, to the last digit or two, and 0 below -600: without branches, so that loops vectorize.

    t = k ln 2 + r, a polynomial in r, and k written into the exponent. Must not be compiled with "reassoc".
    """
    s = max(t, -700.0) * LOG2E + MAGIC
    k = s - MAGIC
    r = (t - k * LN2_HIGH) - k * LN2_LOW
    e = 1 / 479001600 * r + 1 / 39916800
    e = e * r + 1 / 3628800
    e = e * r + 1 / 362880
    e = e * r + 1 / 40320
    e = e * r + 1 / 5040
    e = e * r + 1 / 720
    e = e * r + 1 / 120
    e = e * r + 1 / 24
    e = e * r + 1 / 6
    e = e * r + 0.5
    e = e * r + 1.0
    e = e * r + 1.0
    e *= np.int64((np.float64(s).view(np.int64) + 1023) << 52).view(np.float64)
    return e if t > -600.0 else 0.0


@njit(inline="always", **exact)
def locate(k, xs, ys):
    """x, y, the slices of their successors, and those of their potentials in F and in G."""
    m_y = ys[0].size - 1
    x, y = k // m_y, k % m_y
    i, j = xs[0][x], ys[0][y]
    a, b = xs[0][x + 1] - i, ys[0][y + 1] - j
    at_f, at_g = m_y * i + y * a, x * ys[1].size + j
    return x, y, slice(i, i + a), slice(j, j + b), slice(at_f, at_f + a), slice(at_g, at_g + b)


@njit(**exact)
def gather(W, n_y, rows, cols, room):
    """The costs of a pair, (a, b)."""
    C = room[: rows.size * cols.size].reshape((rows.size, cols.size))
    for i in range(rows.size):
        row = W[rows[i] * n_y : (rows[i] + 1) * n_y]
        for j in range(cols.size):
            C[i, j] = row[cols[j]]
    return C


@njit(**exact)
def longest(rows):
    """Most successors of one source."""
    ptr, most = rows[0], 0
    for s in range(ptr.size - 1):
        most = max(most, ptr[s + 1] - ptr[s])
    return most


@njit(**exact)
def scratch(xs, ys, copies):
    """Room for ``copies`` matrices of the largest pair."""
    return np.empty((copies, longest(xs) * longest(ys)))


@njit(**exact)
def put(value, out):
    """Every entry of a vector."""
    for j in range(out.size):
        out[j] = value


@njit(**loose)
def _sum(v):
    s = 0.0
    for j in range(v.size):
        s += v[j]
    return s


@njit(**loose)
def _largest(v):
    m = -np.inf
    for j in range(v.size):
        m = max(m, v[j])
    return m


@njit(**exact)
def _exponents(log_q, g, c, beta, out):
    for j in range(out.size):
        out[j] = log_q[j] + beta * (g[j] - c[j])


@njit(**exact)
def _exponentials(shift, out):
    for j in range(out.size):
        out[j] = exp(out[j] - shift)


@njit(**exact)
def soft_row(c, log_q, g, beta, out):
    """softmin: -1/β log Σ_j q_j exp(β (g_j - c_j)), from the largest term; ``out`` gets the terms, summing to one."""
    _exponents(log_q, g, c, beta, out)
    m = _largest(out)
    _exponentials(m, out)
    s = _sum(out)
    for j in range(out.size):
        out[j] /= s
    return -(m + np.log(s)) / beta


@njit(**exact)
def absorb(C, p, log_p, q, log_q, f, g, beta, K):
    """f = softmin (C - g), K = the plan, whose rows are then right; columns that are empty get a step of their own."""
    a, b = C.shape
    for _ in range(3):
        for i in range(a):
            f[i] = soft_row(C[i], log_q, g, beta, K[i])
            for j in range(b):
                K[i, j] *= p[i]
        empty = 0
        for j in range(b):
            total = 0.0
            for i in range(a):
                total += K[i, j]
            if total < TINY * q[j]:
                g[j] = soft_row(C[:, j].copy(), log_p, f, beta, np.empty(a))
                empty += 1
        if empty == 0:
            break


@njit(**exact)
def fill(C, p, log_q, f, g, beta, K):
    """K = the plan for the potentials as they are (one side is normalized, so no entry is much above one)."""
    for i in range(p.size):
        for j in range(log_q.size):
            K[i, j] = p[i] * exp(min(log_q[j] + beta * (f[i] + g[j] - C[i, j]), 700.0))


@njit(inline="always", **loose)
def relaxed(t, omega):
    """About t^ω, to second order in t - 1 (and growing like t outside [1/2, 2]); exactly t for ω = 1."""
    c = min(max(t, 0.5), 2.0)
    return t / c * (1 + 0.5 * (omega + 1) * (c - 1)) / (1 - 0.5 * (omega - 1) * (c - 1))


@njit(**exact)
def relaxation(done, omega, error, before):
    """ω after ``done`` iterations: 1 for a pair that converges at once, then FIRM, and 1 again if that was too much.

    Sinkhorn is block Gauss-Seidel on the dual: near the solution SOR converges for ω < 2 and its best ω is near 2 when
    Sinkhorn is slow (Young 1954); far from it ω = 1.9 diverges at low temperatures, and 1.75 was never seen to.
    """
    if done % LOOK == 0 and error > 1.5 * before:
        return 1.0
    return max(omega, FIRM) if done == PATIENCE else omega


@njit(**loose)
def _columns(K, q, u, w, omega, t):
    """The columns' half-step; returns by how much their sums were wrong."""
    put(0.0, t)
    for i in range(K.shape[0]):
        for j in range(q.size):
            t[j] += u[i] * K[i, j]
    error = 0.0
    for j in range(q.size):
        have = w[j] * t[j]
        error += abs(have - q[j])
        w[j] *= relaxed(min(q[j] / have, 1 / TINY), omega)
    return error


@njit(**loose)
def _rows(K, p, u, w, omega):
    """The rows' half-step; returns the largest of u and 1/u."""
    far = 0.0
    for i in range(p.size):
        s = 0.0
        for j in range(K.shape[1]):
            s += K[i, j] * w[j]
        u[i] *= relaxed(min(p[i] / (u[i] * s), 1 / TINY), omega)
        far = max(far, max(u[i], 1 / u[i]))
    return far


@njit(**exact)
def _farthest(w):
    far = 0.0
    for j in range(w.size):
        far = max(far, max(w[j], 1 / w[j]))
    return far


@njit(**exact)
def _scale_one(C, p, log_p, q, log_q, f, g, beta, most, target, omega, K, u, w, t):
    """Sinkhorn on one pair until its columns are wrong by ``target``; returns iterations, that error and ω."""
    done, error, before = 0, np.inf, np.inf
    while True:
        absorb(C, p, log_p, q, log_q, f, g, beta, K)
        put(1.0, u)
        put(1.0, w)
        far = 1.0
        while far < LARGE:
            error = _columns(K, q, u, w, omega if done < most else 1.0, t)
            if error <= target or done == most:
                break
            done += 1
            far = max(_rows(K, p, u, w, omega), _farthest(w))
            omega = relaxation(done, omega, error, before)
            if done % LOOK == 0:
                before = error
        _rows(K, p, u, w, 1.0)
        for i in range(p.size):
            f[i] += np.log(u[i]) / beta
        for j in range(q.size):
            g[j] += np.log(w[j]) / beta
        if error <= target or done == most:
            return done, error, omega


@njit(**exact)
def scale(lo, hi, xs, ys, n_y, W, beta, F, G, most, target, omega, error):
    """Sinkhorn on every pair from its last potentials; ``omega`` and ``error`` (pairs,) are updated; iterations."""
    work = scratch(xs, ys, 2)
    u, w, t = np.empty(longest(xs)), np.empty(longest(ys)), np.empty(longest(ys))
    total = 0
    for k in range(lo, hi):
        _, _, px, py, pf, pg = locate(k, xs, ys)
        p, q, f, g = xs[2][px], ys[2][py], F[pf], G[pg]
        C = gather(W, n_y, xs[1][px], ys[1][py], work[0])
        K = work[1][: C.size].reshape(C.shape)
        done, error[k], omega[k] = _scale_one(
            C, p, xs[3][px], q, ys[3][py], f, g, beta, most, target, omega[k], K, u[: p.size], w[: q.size], t[: q.size]
        )
        total += done
    return total
