"""Operations of compiled solvers on the successors of two states: gather costs, transform potentials, round plans.

Rows of a chain come as :class:`diffbisim.processes.stochastic.Successors`, three arrays that kernels take directly. For one row
of X with a successors ``rows`` and law p, and one row of Y with b successors ``cols`` and law q:

    C (a, b)               costs of the pair, from a flat table W (n_X*n_Y,) with ``n_y`` columns      gather
    f_i = min_j C_ij - g_j the c-transform, the best f for g; two in a row make any g feasible         c_transform
    K (a, b)               a plan, rounded to the marginals p and q                                    round_plan

*Rounding* (Altschuler, Weed, Rigollet 2017): scale down rows that are too heavy, then columns, and add the missing mass
as a rank-one term. The marginals are then exact, and at most twice the mass of their error is moved. (The linear
program has its own rounding in numpy, because an oracle must not share code with what it checks.)
"""

import numpy as np

from diffbisim._compile import njit

LAST_DIGITS = 4 * 2.0**-52  # marginal errors below this, relative, are ignored, so that zero entries stay zero

LOG2E, MAGIC = 1.4426950408889634, 6755399441055744.0  # adding 1.5 · 2^52 rounds to an integer
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10

#: Compiler options: sums in order (STRICT), or reordered so that they vectorize, where no NaN can occur (LOOSE).
STRICT = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
LOOSE = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "nnan"}}


# --- exponentials without branches, so that loops over them vectorize -------------------------------------------


@njit(inline="always", **STRICT)
def exp(t):
    """Return e^t for -700 < t ≤ 709, accurate to the last digit or two.

    t = k ln 2 + r, with a polynomial in r, and k written into the exponent. Must not be compiled with "reassoc".
    """
    s = t * LOG2E + MAGIC
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
    return e * np.int64((np.float64(s).view(np.int64) + 1023) << 52).view(np.float64)


@njit(inline="always", **STRICT)
def exp_or_zero(t, least):
    """Return e^t for t ≤ 709, and 0 for t ≤ `least` (which must be at least -700)."""
    e = exp(max(t, least))
    return e if t > least else 0.0


# --- one pair ---------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, forceinline=True)
def longest(successors):
    """Return the largest number of successors of a row."""
    return np.max(successors.indptr[1:] - successors.indptr[:-1])


@njit(cache=True, nogil=True, inline="always")
def gather(W, n_y, rows, cols, C):
    """Write the table on the successors of a pair into C (a*b,), by rows."""
    b = cols.size
    for i in range(rows.size):
        line, into = W[rows[i] * n_y : (rows[i] + 1) * n_y], C[i * b : (i + 1) * b]
        for j in range(b):
            into[j] = line[cols[j]]


@njit(**LOOSE)
def c_transform(C, g, f):
    """f_i = min_j (C_ij - g_j)."""
    for i in range(f.size):
        least = np.inf
        for j in range(g.size):
            least = min(least, C[i, j] - g[j])
        f[i] = least


@njit(**LOOSE)
def c_transform_back(C, f, g):
    """g_j = min_i (C_ij - f_i), by rows."""
    for j in range(g.size):
        g[j] = np.inf
    for i in range(f.size):
        for j in range(g.size):
            g[j] = min(g[j], C[i, j] - f[i])


@njit(cache=True, nogil=True)
def c_transform_at(W, at, stride, others, potential):
    """Return min_k W[at + others_k · stride] - potential_k, the c-transform at a single state."""
    least = np.inf
    for k in range(others.size):
        least = min(least, W[at + others[k] * stride] - potential[k])
    return least


@njit(**LOOSE)
def _column_sums(K, col):
    for j in range(col.size):
        col[j] = 0.0
    for i in range(K.shape[0]):
        for j in range(K.shape[1]):
            col[j] += K[i, j]


@njit(**LOOSE)
def round_plan(K, p, q, row, col):
    """Round K in place to a plan with marginals p and q (to the last digits); `row` (a,) and `col` (b,) are scratch."""
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
