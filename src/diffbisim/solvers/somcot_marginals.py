"""Marginals of SOMCOT's coupling from its factors, without the coupling (numba, without the GIL).

Letters and layout as in somcot_kernels.py: log μ(x,y,x',y') = S[x,y] + U[x,y,e] + W[x,y,k] + L[x',y'].

*Scales.* After k iterations the four logarithms are of order η k V and cancel down to log μ ≤ 0: at k = 10^6 their
exponentials range over e^±1000000 and cannot be taken one by one. But no entry of a row (all y' of one x, y, x')
exceeds e^base, base = S + U + max W + max L. Hence two ways:

    products   while every base is below SAFE: factors below e^FLUSH count as zero, which loses less than
               e^(SAFE + FLUSH) of μ, and all else are matrix products with the shared kernel exp(L);
    entries    later: those above e^DROP alone, which are few. To find them is what costs, so they are listed with some
               SLACK, and the list of a pair holds while no log μ outside of it can have risen by as much.

Which way depends on the iterates alone, and which list does not matter: sums have a fixed order and what is below
e^DROP adds zero. So a resumed run repeats every bit. The rounding of
the logarithms, 1e-16 η k V per iteration, acts like a perturbation of the cost by 1e-16 k V.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from diffbisim._compile import njit

#: Entries of μ below e^DROP = 4e-18 count as zero.
DROP = -40.0
#: Matrix products are used while no base exceeds SAFE; factors below e^FLUSH count as zero (subnormals are slow).
SAFE, FLUSH = 270.0, -320.0
#: Pairs per matrix product: enough to keep it busy, few enough to stay in the cache.
ROWS = 256
#: Entries are listed down to e^(DROP - SLACK), and anew before what was left out could have risen by SLACK.
SLACK = 20.0
#: Entries on all lists together, of eight bytes each; beyond, all entries are looked at.
ROOM = 1 << 24
#: Entries that are looked at together.
BLOCK = 32
#: No list.
NONE = -1


# --- exponentials that the compiler can vectorize -------------------------------------------------------------


@intrinsic
def _bits(context: Any, x: Any) -> Any:
    return types.int64(types.float64), lambda c, builder, s, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def _real(context: Any, n: Any) -> Any:
    return types.float64(types.int64), lambda c, builder, s, args: builder.bitcast(args[0], ir.DoubleType())


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy", inline="always")
def exp(x):
    """e^x to 2e-16 relative for |x| < 700: 2^n times a Taylor polynomial on |r| ≤ log(2)/2."""
    t = x * 1.4426950408889634 + 6755399441055744.0  # adding 1.5 · 2^52 rounds to an integer, kept in the low bits
    n = t - 6755399441055744.0
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _real((_bits(t) << 52) + 4607182418800017408)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _exponentials(v, low):
    """v ← e^v, zero below ``low``."""
    for i in range(v.size):
        z = exp(max(v[i], low))
        v[i] = z if v[i] > low else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def softmax(logits, out):
    """Rows of ``out`` ∝ e^logits."""
    for i in range(logits.shape[0]):
        top = logits[i].max()
        total = 0.0
        for j in range(logits.shape[1]):
            out[i, j] = exp(max(logits[i, j] - top, FLUSH))
            total += out[i, j]
        for j in range(logits.shape[1]):
            out[i, j] /= total


# --- marginals of μ ---------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nnan"}, error_model="numpy")
def _factors(first, last, xs, ys, it, top, su, w):
    """Logarithms of s u (with max_y' K in it) and w of the pairs (first … last-1, ·); returns the largest base.

    Where a transition does not exist, something as good as zero.
    """
    (n_x, n_y), worst = it.S.shape, -1e300
    for x in range(first, last):
        a, lo = xs.at[x + 1] - xs.at[x], xs.at[x]
        for y in range(n_y):
            r, b, ko = (x - first) * n_y + y, ys.at[y + 1] - ys.at[y], ys.at[y]
            at_w, at_u = x * ys.to.size + ko, n_y * lo + y * a
            top_w = -1e300
            for k in range(b):
                top_w = max(top_w, it.W[np.uintp(at_w + k)])
            shift = it.S[x, y] + top_w
            if b == n_y:
                for k in range(b):
                    w[r, k] = it.W[np.uintp(at_w + k)] - top_w
            else:
                w[r, :] = 2 * FLUSH
                for k in range(b):
                    w[r, ys.to[ko + k]] = it.W[at_w + k] - top_w
            if a == n_x and b > 0:
                for i in range(a):
                    base = it.U[np.uintp(at_u + i)] + shift + top[i]
                    su[r, i] = base
                    worst = max(worst, base)
            else:
                su[r, :] = 2 * FLUSH
                for i in range(a if b > 0 else 0):
                    base = it.U[at_u + i] + shift + top[xs.to[lo + i]]
                    su[r, xs.to[lo + i]] = base
                    worst = max(worst, base)
    return worst


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _collect(first, last, xs, ys, su, wK, w, suK, MA, MB, m):
    """The marginals s u ∘ (w Kᵀ) and w ∘ (s u K) of the same pairs, where transitions exist."""
    n_x, n_y = m.shape
    for x in range(first, last):
        a, lo = xs.at[x + 1] - xs.at[x], xs.at[x]
        for y in range(n_y):
            r, b, ko = (x - first) * n_y + y, ys.at[y + 1] - ys.at[y], ys.at[y]
            at_w, at_u, total = x * ys.to.size + ko, n_y * lo + y * a, 0.0
            if a == n_x:
                for i in range(a):
                    z = su[r, i] * wK[r, i]
                    MA[np.uintp(at_u + i)] = z
                    total += z
            else:
                for i in range(a):
                    z = su[r, xs.to[lo + i]] * wK[r, xs.to[lo + i]]
                    MA[at_u + i] = z
                    total += z
            m[x, y] = total
            if b == n_y:
                for k in range(b):
                    MB[np.uintp(at_w + k)] = w[r, k] * suK[r, k]
            else:
                for k in range(b):
                    MB[at_w + k] = w[r, ys.to[ko + k]] * suK[r, ys.to[ko + k]]


@njit(cache=True, nogil=True, error_model="numpy")
def by_products(xs, ys, it, MA, MB, N, m):
    """All marginals of μ by matrix products; False if a base is not safe, and then they are undefined.

    Σ_y' μ = s u ∘ (w Kᵀ), Σ_x' μ = w ∘ (s u K), Σ_xy μ = K ∘ ((s u)ᵀ w), with (x,y) as one index.
    """
    n_x, n_y = m.shape
    K, top, group = it.L.copy(), np.empty(n_x), max(1, ROWS // n_y)
    for i in range(n_x):
        top[i] = K[i].max()
        K[i] -= top[i]
    _exponentials(K.ravel(), FLUSH)
    su_all, w_all = np.empty((group * n_y, n_x)), np.empty((group * n_y, n_y))
    wK_all, suK_all = np.empty_like(su_all), np.empty_like(w_all)
    N[:] = 0.0
    for first in range(0, n_x, group):
        last = min(first + group, n_x)
        rows = (last - first) * n_y
        su, w, wK, suK = su_all[:rows], w_all[:rows], wK_all[:rows], suK_all[:rows]
        if _factors(first, last, xs, ys, it, top, su, w) > SAFE:
            return False
        _exponentials(su.ravel(), DROP)
        _exponentials(w.ravel(), FLUSH)
        N += K * np.dot(su.T, w)
        np.dot(w, K.T, wK)
        np.dot(su, K, suK)
        _collect(first, last, xs, ys, su, wK, w, suK, MA, MB, m)
    return True


class Live(NamedTuple):
    """Which entries of μ may matter, for every x; a list holds until what it leaves out may have risen above e^DROP."""

    u: NDArray[np.int32]  # (n_X, room): entries of x by their places in the shares of x in U …
    k: NDArray[np.int32]  # (n_X, room): … and in W, in the order of y, x', y'
    listed: NDArray[np.int64]  # (n_X,): how many; NONE if there is no list
    rise: NDArray[np.float64]  # (n_X, n_Y): no log μ of the pair has gained more since x was listed

    @classmethod
    def empty(cls, x_at: NDArray[np.int64], y_at: NDArray[np.int64]) -> "Live":
        """No lists yet, and room for a few times the support of an optimal coupling (untouched room costs nothing)."""
        n_x, n_y, a, b = x_at.size - 1, y_at.size - 1, int(np.diff(x_at).max()), int(np.diff(y_at).max())
        room = min(n_y * min(a * b, 4 * (a + b)), ROOM // n_x)
        u, k = np.empty((n_x, room), np.int32), np.empty((n_x, room), np.int32)
        return cls(u, k, np.full(n_x, NONE), np.zeros((n_x, n_y)))


@njit(cache=True, nogil=True, error_model="numpy")
def _logarithms(SU, at, W, w, L, to, n_y, out):
    """log μ of one pair, ``out`` (a b,): su + (W + L), added in this order everywhere."""
    a, b = SU.size, to.size
    for i in range(a):
        su, l0, o = SU[i], at[i], i * b
        if b == n_y:
            for j in range(b):
                out[np.uintp(o + j)] = su + (W[np.uintp(w + j)] + L[np.uintp(l0 + j)])
        else:
            for j in range(b):
                out[np.uintp(o + j)] = su + (W[np.uintp(w + j)] + L[np.uintp(l0 + to[np.uintp(j)])])


@njit(cache=True, nogil=True, error_model="numpy")
def _find(v, low, found):
    """Places of the entries above ``low``, by blocks, most of which have none; without branches inside a block."""
    n = 0
    for first in range(0, v.size, BLOCK):
        last, hits = min(first + BLOCK, v.size), 0
        for j in range(first, last):
            hits += v[np.uintp(j)] > low
        if hits > 0:
            for j in range(first, last):
                found[np.uintp(n)] = j
                n += v[np.uintp(j)] > low
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def _list(SU, at, W, w0, L, y_at, to, u, k, log_mu, found):
    """The entries of one x above e^(DROP - SLACK): their number, or NONE if there is no room for them."""
    n_y, n = y_at.size - 1, 0
    a = SU.size // n_y
    for y in range(n_y):
        first, last = y_at[y], y_at[y + 1]
        b = last - first
        _logarithms(SU[y * a : (y + 1) * a], at, W, w0 + first, L, to[first:last], n_y, log_mu)
        hits = _find(log_mu[: a * b], DROP - SLACK, found)
        if n + hits > u.size:
            return NONE
        i, end = 0, b
        for j in range(hits):
            while found[j] >= end:
                i, end = i + 1, end + b
            u[np.uintp(n)] = y * a + i
            k[np.uintp(n)] = first + found[j] - (end - b)
            n += 1
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def _add_listed(SU, at, W, w0, L, to, u, k, z, target, MA, u0, MB, N):
    """Add the listed entries of one x to the marginals."""
    for j in range(u.size):
        e, f = np.uintp(u[j]), np.uintp(k[j])
        target[j] = at[e] + to[f]
        z[j] = SU[e] + (W[np.uintp(w0) + f] + L[np.uintp(target[j])])
    _exponentials(z, DROP)
    for j in range(u.size):
        MA[np.uintp(u0 + u[j])] += z[j]
        MB[np.uintp(w0 + k[j])] += z[j]
        N[np.uintp(target[j])] += z[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _add_all(SU, at, W, w0, L, y_at, to, z, MA, u0, MB, N):
    """Add all entries of one x, in the order of the lists."""
    n_y = y_at.size - 1
    a = SU.size // n_y
    for y in range(n_y):
        first, last = y_at[y], y_at[y + 1]
        b = last - first
        _logarithms(SU[y * a : (y + 1) * a], at, W, w0 + first, L, to[first:last], n_y, z)
        _exponentials(z[: a * b], DROP)
        for i in range(a):
            total = 0.0
            for j in range(b):
                mass = z[np.uintp(i * b + j)]
                MB[np.uintp(w0 + first + j)] += mass
                N[np.uintp(at[i] + to[np.uintp(first + j)])] += mass
                total += mass
            MA[u0 + y * a + i] = total


@njit(cache=True, nogil=True, error_model="numpy")
def by_entries(xs, ys, it, live, MA, MB, N, m):
    """All marginals of μ from the entries that matter."""
    (n_x, n_y), E, room = m.shape, ys.to.size, live.u.shape[1]
    z, target = np.empty(room), np.empty(room, np.int64)
    largest = np.diff(xs.at).max() * np.diff(ys.at).max()
    log_mu, found = np.empty(largest), np.empty(largest + 1, np.int64)
    L, N_flat = it.L.ravel(), N.ravel()
    MA[:] = 0.0
    MB[:] = 0.0
    N[:] = 0.0
    for x in range(n_x):
        a, lo = xs.at[x + 1] - xs.at[x], xs.at[x]
        u0, w0 = n_y * lo, x * E
        SU, at = np.empty(n_y * a), np.empty(n_y * a, np.int64)  # log s u, and where the row of x' begins in L
        for y in range(n_y):
            for i in range(a):
                SU[np.uintp(y * a + i)] = it.S[x, y] + it.U[np.uintp(u0 + y * a + i)]
                at[np.uintp(y * a + i)] = n_y * xs.to[np.uintp(lo + i)]
        if live.listed[x] == NONE or live.rise[x].max() > SLACK - 1.0:
            live.listed[x] = _list(SU, at, it.W, w0, L, ys.at, ys.to, live.u[x], live.k[x], log_mu, found)
            live.rise[x] = 0.0
        n = live.listed[x]
        if n == NONE:
            _add_all(SU, at, it.W, w0, L, ys.at, ys.to, log_mu, MA, u0, MB, N_flat)
        else:
            u, k = live.u[x, :n], live.k[x, :n]
            _add_listed(SU, at, it.W, w0, L, ys.to, u, k, z[:n], target, MA, u0, MB, N_flat)
        for y in range(n_y):
            total = 0.0
            for i in range(a):
                total += MA[np.uintp(u0 + y * a + i)]
            m[x, y] = total


@njit(cache=True, nogil=True, error_model="numpy")
def peak(xs, ys, it):
    """The largest log μ."""
    n_y, E, top = ys.rho.size, ys.to.size, -np.inf
    for x in range(xs.rho.size):
        a = xs.at[x + 1] - xs.at[x]
        for i in range(a):
            for k in range(E):
                su = it.S[x, ys.source[k]] + it.U[n_y * xs.at[x] + ys.source[k] * a + i]
                top = max(top, su + (it.W[x * E + k] + it.L[xs.to[xs.at[x] + i], ys.to[k]]))
    return top
