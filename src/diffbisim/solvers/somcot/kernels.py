"""SOMCOT's iteration on the factors of the coupling (numba, without the GIL).

Edges e = (x → x') and k = (y → y') are the transitions seen so far, sorted by source. The coupling is never stored:

    log μ(x,y,x',y') = S[x,y] + U[x,y,e] + W[x,y,k] + L[x',y']

    at (n+1,), to (E,)     state s has the edges at[s] … at[s+1]-1, and edge e leads to to[e]; one ``Seen`` per chain
    U, A, MA (n_Y E_X,)    flat; those of pair (x,y) begin at n_Y at[x] + y (edges of x):  part of log μ, α_X, Σ_y' μ
    W, B, MB (n_X E_Y,)    flat; those of pair (x,y) begin at x E_Y + at[y]:               part of log μ, α_Y, Σ_x' μ
    L, S, V, m, N          (n_X, n_Y);  m = Σ_x'y' μ and N = Σ_xy μ
    q (E,), rho (n,)       the transition occupancy that μ should have, and its state marginal

*Marginals of μ.* After k iterations the four logarithms are of order η k V and cancel down to log μ ≤ 0. At k = 10^6
their exponentials range over e^±1000000, so they cannot be computed separately. But no entry of a row (all y' of one
x, y, x') exceeds e^base, where base = S + U + max W + max L. This gives two methods:

    products   while every base is below SAFE: factors below e^FLUSH count as zero, which loses less than
               e^(SAFE + FLUSH) of μ, and everything else is a matrix product with the shared kernel exp(L);
    entries    later: only the few entries above e^DROP. Finding them is the expensive part, so the entries of every x
               are listed down to e^(DROP - FAR), and of this list those down to e^(DROP - NEAR). A list is valid until
               a log μ outside of it could have risen by FAR or NEAR. Every iteration visits the short list; the long
               one, from which it is renewed, saves searching all entries.

The method depends only on the iterates, and the lists do not affect the result: sums have a fixed order, and entries
below e^DROP add zero. A resumed run therefore reproduces every bit. The rounding error of the logarithms, 1e-16 η k V
per iteration, acts like a perturbation of the cost by 1e-16 k V.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import njit
from diffbisim.solvers.successors import exp, exp_or_zero

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Entries of μ below e^DROP = 4e-18 count as zero.
DROP = -40.0
#: Matrix products are used while no base exceeds SAFE. Factors below e^FLUSH count as zero, since subnormal numbers
#: are slow.
SAFE, FLUSH = 270.0, -320.0
#: Number of pairs per matrix product: large enough to be efficient, small enough for the cache.
ROWS = 256
#: Entries are listed down to e^(DROP - FAR) and e^(DROP - NEAR), and a list is renewed before any other entry could
#: rise by that much, up to MARGIN, which is far more than the rounding errors.
FAR, NEAR, MARGIN = 20.0, 4.0, 0.1
#: Largest number of entries (20 bytes each, on both lists) in all; beyond it, every entry is visited.
ROOM = 1 << 23
#: Whole rows of L are compared if at least one in WHOLE of its entries belongs to a transition.
WHOLE = 4
#: Marks a state without a list.
NONE = -1
#: Matrix products are used at first if the supports have at least this fraction of all entries.
DENSE = 1 / 16
#: Entries count as zero relative to a mass of about one; if the mass is not in (LEAST, 1/LEAST), μ is normalized first.
LEAST = 1e-6
#: Dual steps are divided by occupancies, but never by less than this fraction of the uniform one.
FLOOR = 0.1

PLAIN = {"cache": True, "nogil": True, "error_model": "numpy"}


class Seen(NamedTuple):
    """The transitions of one chain seen so far: a growing CSR matrix of counts."""

    at: Index
    to: Index
    source: Index  # (E,)
    counts: Array  # (E,) total weights
    q: Array
    rho: Array
    initial: Array  # (n,)


class Iterates(NamedTuple):
    """The variables of the iteration."""

    U: Array
    W: Array
    L: Array
    S: Array
    A: Array
    B: Array
    V: Array
    logit_x: Array  # (n_X, n_Y): log λ_X, up to a constant in each row
    logit_y: Array  # (n_Y, n_X)
    start: Array  # (n_X, n_Y): coupling of the starts; its logarithm is up to scalings of rows and columns
    log_start: Array
    sums: Array  # (4, n_X, n_Y): Σ η m, Σ η start, Σ η λ_X, Σ η λ_Yᵀ
    cold: Index  # (1,): 0 while matrix products are safe, then 1


class Rules(NamedTuple):
    """Options of the solver, for costs scaled to at most one."""

    discount: float
    eta: float
    beta: float
    decay: float  # steps decrease like (1 + k / decay_from)^-decay
    decay_from: float
    anticipation: float  # primal steps use α + anticipation (α⁺ - α): 0 literal, 2 extrapolated
    memory: bool  # use all transitions seen so far, not only the last minibatch
    bound: float  # multipliers are clipped to ± this


class Batches(NamedTuple):
    """Minibatches of one chain, one per iteration."""

    at: Index  # (n+1,) position of each minibatch
    edges: Index
    weights: Array


class Both(NamedTuple):
    """A pair of like objects, one for X and one for Y."""

    x: Any
    y: Any


class Progress(NamedTuple):
    """How far a run has come."""

    done: Index  # (1,) iterations
    weight: Array  # (1,) sum of the steps η


class Marginals(NamedTuple):
    """Marginals of μ, overwritten in every iteration."""

    MA: Array
    MB: Array
    N: Array
    m: Array

    @classmethod
    def empty(cls, it: Iterates) -> "Marginals":
        """Allocate marginals for the iterates."""
        return cls(np.empty_like(it.U), np.empty_like(it.W), np.empty_like(it.V), np.empty_like(it.V))


class Lists(NamedTuple):
    """For every x, a list of the entries of μ above some level."""

    u: NDArray[np.int32]  # (n_X, room): positions of the entries within the part of U that belongs to x …
    k: NDArray[np.int32]  # (n_X, room): … and within that of W, ordered by y, x', y'
    size: Index  # (n_X,): number of entries; NONE if there is no list
    since: Array  # (n_X, n_Y): ``rise`` when x was listed


class Live(NamedTuple):
    """Lists of the entries of μ that may exceed e^DROP, and what tells how long they are valid."""

    far: Lists
    near: Lists
    target: NDArray[np.int32]  # (n_X, room): positions of the entries of ``near`` in L
    rise: Array  # (n_X, n_Y): bound on the increase of log μ so far

    @classmethod
    def empty(cls, x_at: Index, y_at: Index) -> "Live":
        """Allocate lists for a few times the support of an optimal coupling (untouched memory costs nothing)."""
        n_x, n_y, a, b = x_at.size - 1, y_at.size - 1, int(np.diff(x_at).max()), int(np.diff(y_at).max())
        shape = n_x, min(n_y * min(a * b, 4 * (a + b)) + 1, ROOM // n_x)  # one more: see _list
        far, near = (
            Lists(np.empty(shape, np.int32), np.empty(shape, np.int32), np.full(n_x, NONE), np.zeros((n_x, n_y)))
            for _ in range(2)
        )
        return cls(far, near, np.empty(shape, np.int32), np.zeros((n_x, n_y)))


class Buffers(NamedTuple):
    """Memory that a run of iterations reuses."""

    live: Live
    marginals: Marginals


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _exponentials(v, low):
    """Replace v by e^v, or by zero where v is below ``low``."""
    for i in range(v.size):
        v[i] = exp_or_zero(v[i], low)


@njit(**PLAIN)
def softmax(logits, out):
    """Set each row of ``out`` to the softmax of the same row of ``logits``."""
    for i in range(logits.shape[0]):
        top = logits[i].max()
        total = 0.0
        for j in range(logits.shape[1]):
            out[i, j] = exp(max(logits[i, j] - top, FLUSH))
        for j in range(logits.shape[1]):
            total += out[i, j]
        for j in range(logits.shape[1]):
            out[i, j] /= total


# --- marginals by matrix products ---------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nnan"}, error_model="numpy")
def _factors(first, last, seen, it, top, su, w):
    """Compute log (s u), including max_y' K, and log w of the pairs (first … last-1, ·); return the largest base.

    Transitions that do not exist get a logarithm so low that their factor is zero.
    """
    (xs, ys), (n_x, n_y), worst = seen, it.S.shape, -1e300
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
def _collect(first, last, xs, ys, factors, marginals):
    """Store the marginals s u ∘ (w Kᵀ) and w ∘ (s u K) of the same pairs for the transitions that exist."""
    (su, w, wK, suK), (MA, MB, _, m) = factors, marginals
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


@njit(**PLAIN)
def by_products(xs, ys, it, marginals):
    """Compute all marginals of μ by matrix products; return False, with undefined marginals, if a base exceeds SAFE.

    Σ_y' μ = s u ∘ (w Kᵀ), Σ_x' μ = w ∘ (s u K), Σ_xy μ = K ∘ ((s u)ᵀ w), where (x,y) is one index.
    """
    N, (n_x, n_y) = marginals.N, marginals.N.shape
    K, top, group = it.L.copy(), np.empty(n_x), max(1, ROWS // n_y)
    for i in range(n_x):
        top[i] = K[i].max()
        for j in range(n_y):
            K[i, j] -= top[i]
    _exponentials(K.ravel(), FLUSH)
    su_all, w_all = np.empty((group * n_y, n_x)), np.empty((group * n_y, n_y))
    wK_all, suK_all = np.empty_like(su_all), np.empty_like(w_all)
    N[:] = 0.0
    for first in range(0, n_x, group):
        last = min(first + group, n_x)
        rows = (last - first) * n_y
        su, w, wK, suK = su_all[:rows], w_all[:rows], wK_all[:rows], suK_all[:rows]
        if _factors(first, last, Both(xs, ys), it, top, su, w) > SAFE:
            return False
        _exponentials(su.ravel(), DROP)
        _exponentials(w.ravel(), FLUSH)
        N += K * np.dot(su.T, w)
        np.dot(w, K.T, wK)
        np.dot(su, K, suK)
        _collect(first, last, xs, ys, (su, w, wK, suK), marginals)
    return True


# --- marginals by entries -----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """The factors of the entries of μ at one x."""

    SU: Any  # (n_Y a,) log s u
    at: Any  # (n_Y a,) position of the row of x' in L
    u0: int  # position of the part of x in U
    w0: int  # and in W
    W: Any
    L: Any  # flat
    y_at: Any
    to: Any  # (E_Y,) targets of the edges of Y


@njit(**PLAIN)
def _logarithms(row, y, out):
    """Set ``out`` (a b,) to log μ of pair (x, y), su + (W + L), always added in this order."""
    W, L, n_y = row.W, row.L, row.y_at.size - 1
    a, first = row.SU.size // n_y, row.y_at[y]
    w, to = row.w0 + first, row.to[first : row.y_at[y + 1]]
    b = to.size
    for i in range(a):
        su, l0, o = row.SU[y * a + i], row.at[y * a + i], i * b
        if b == n_y:
            for j in range(b):
                out[np.uintp(o + j)] = su + (W[np.uintp(w + j)] + L[np.uintp(l0 + j)])
        else:
            for j in range(b):
                out[np.uintp(o + j)] = su + (W[np.uintp(w + j)] + L[np.uintp(l0 + to[np.uintp(j)])])


@njit(**PLAIN)
def _list(row, u, k):
    """List the entries of one x above e^(DROP - FAR); return their number, or NONE if they do not fit.

    Most rows contain none, and there are no branches inside a row, so that one place after the last entry is written
    to. Rows of L are compared as a whole, unless y has few successors.
    """
    SU, at, W, L, to, n_y, n = row.SU, row.at, row.W, row.L, row.to, row.y_at.size - 1, 0
    w, edge, v, a = np.empty(n_y), np.empty(n_y, np.int64), np.empty(n_y), SU.size // n_y
    for y in range(n_y):
        first, last = row.y_at[y], row.y_at[y + 1]
        whole = WHOLE * (last - first) >= n_y
        size = n_y if whole else last - first
        for j in range(size):
            w[j] = -1e300
        for f in range(first, last):
            j = to[f] if whole else f - first
            w[j], edge[j] = W[row.w0 + f], f
        for e in range(y * a, (y + 1) * a):
            low, l0, hits = DROP - FAR - SU[e], at[e], 0
            if whole:
                for j in range(size):
                    v[j] = w[j] + L[np.uintp(l0 + j)]
            else:
                for j in range(size):
                    v[j] = w[j] + L[np.uintp(l0 + to[np.uintp(first + j)])]
            for j in range(size):
                hits += v[j] > low
            if n + hits >= u.size:
                return NONE
            for j in range(size if hits > 0 else 0):
                u[np.uintp(n)], k[np.uintp(n)] = e, edge[j]
                n += v[j] > low
    return n


@njit(**PLAIN)
def _select(row, far, near, z):
    """Copy the entries (u, k) of one x above e^(DROP - NEAR) from ``far`` to ``near`` and return their number."""
    (u, k), (near_u, near_k, near_t), n = far, near, 0
    SU, at, W, L, to, w0 = row.SU, row.at, row.W, row.L, row.to, row.w0
    for j in range(u.size):
        e, f = np.uintp(u[j]), np.uintp(k[j])
        z[j] = SU[e] + (W[np.uintp(w0) + f] + L[np.uintp(at[e] + to[f])])
    for j in range(u.size):  # without branches
        near_u[np.uintp(n)], near_k[np.uintp(n)] = u[j], k[j]
        n += z[j] > DROP - NEAR
    for j in range(n):
        near_t[j] = at[np.uintp(near_u[j])] + to[np.uintp(near_k[j])]
    return n


@njit(**PLAIN)
def _expired(lists, x, rise, slack):
    """Whether a log μ outside of the list of x may have risen by ``slack``; if so, a new list is valid from now on."""
    largest = -np.inf if lists.size[x] != NONE else np.inf
    for y in range(rise.shape[1]):
        largest = max(largest, rise[x, y] - lists.since[x, y])
    if largest <= slack - MARGIN:
        return False
    for y in range(rise.shape[1]):
        lists.since[x, y] = rise[x, y]
    return True


@njit(**PLAIN)
def _renew(x, row, live, z):
    """Renew the lists of x if they have expired; return the number of entries to visit, or NONE for all."""
    far, near, rise = live.far, live.near, live.rise
    if _expired(far, x, rise, FAR):
        far.size[x] = _list(row, far.u[x], far.k[x])
        near.size[x] = NONE
    n = far.size[x]
    if n == NONE:
        return n
    if _expired(near, x, rise, NEAR):
        near.size[x] = _select(row, (far.u[x, :n], far.k[x, :n]), (near.u[x], near.k[x], live.target[x]), z)
    return near.size[x]


@njit(**PLAIN)
def _add_listed(row, entries, z, sums):
    """Add the listed entries (u, k, target) of one x to the marginals ``sums`` = (MA, MB, N)."""
    (u, k, t), (MA, MB, N), SU, W, L, u0, w0 = entries, sums, row.SU, row.W, row.L, row.u0, row.w0
    for j in range(u.size):
        z[j] = SU[np.uintp(u[j])] + (W[np.uintp(w0 + k[j])] + L[np.uintp(t[j])])
    _exponentials(z[: u.size], DROP)
    for j in range(u.size):
        MA[np.uintp(u0 + u[j])] += z[j]
        MB[np.uintp(w0 + k[j])] += z[j]
        N[np.uintp(t[j])] += z[j]


@njit(**PLAIN)
def _add_all(row, z, sums):
    """Add all entries of one x to the marginals ``sums`` = (MA, MB, N), in the order of the lists."""
    n_y, at, to, w0, (MA, MB, N) = row.y_at.size - 1, row.at, row.to, row.w0, sums
    a = row.SU.size // n_y
    for y in range(n_y):
        first, b = row.y_at[y], row.y_at[y + 1] - row.y_at[y]
        _logarithms(row, y, z)
        _exponentials(z[: a * b], DROP)
        for i in range(a):
            total = 0.0
            for j in range(b):
                mass = z[np.uintp(i * b + j)]
                MB[np.uintp(w0 + first + j)] += mass
                N[np.uintp(at[i] + to[np.uintp(first + j)])] += mass
                total += mass
            MA[row.u0 + y * a + i] = total


@njit(**PLAIN)
def by_entries(xs, ys, it, live, marginals):
    """Compute all marginals of μ from the entries above e^DROP."""
    MA, MB, N, m = marginals
    (n_x, n_y), E, near = m.shape, ys.to.size, live.near
    z = np.empty(max(near.u.shape[1], np.diff(xs.at).max() * np.diff(ys.at).max()))
    L, N_flat = it.L.ravel(), N.ravel()
    MA[:] = 0.0
    MB[:] = 0.0
    N[:] = 0.0
    for x in range(n_x):
        a, lo = xs.at[x + 1] - xs.at[x], xs.at[x]
        u0 = n_y * lo
        SU, at = np.empty(n_y * a), np.empty(n_y * a, np.int64)
        for y in range(n_y):
            for i in range(a):
                SU[np.uintp(y * a + i)] = it.S[x, y] + it.U[np.uintp(u0 + y * a + i)]
                at[np.uintp(y * a + i)] = n_y * xs.to[np.uintp(lo + i)]
        row = Row(SU, at, u0, x * E, it.W, L, ys.at, ys.to)
        n = _renew(x, row, live, z)
        if n == NONE:
            _add_all(row, z, (MA, MB, N_flat))
        else:
            _add_listed(row, (near.u[x, :n], near.k[x, :n], live.target[x, :n]), z, (MA, MB, N_flat))
        for y in range(n_y):
            total = 0.0
            for i in range(a):
                total += MA[np.uintp(u0 + y * a + i)]
            m[x, y] = total


@njit(**PLAIN)
def peak(xs, ys, it):
    """Return the largest log μ."""
    n_y, E, top = ys.rho.size, ys.to.size, -np.inf
    for x in range(xs.rho.size):
        a = xs.at[x + 1] - xs.at[x]
        for i in range(a):
            for k in range(E):
                su = it.S[x, ys.source[k]] + it.U[n_y * xs.at[x] + ys.source[k] * a + i]
                top = max(top, su + (it.W[x * E + k] + it.L[xs.to[xs.at[x] + i], ys.to[k]]))
    return top


# --- the steps ----------------------------------------------------------------------------------------------------


@njit(**PLAIN)
def balance(side, discount):
    """Set q = ρ P̂ and then ρ ← (1-γ) ν + γ ρ P̂, with P̂ from the counts; states without successors keep their mass."""
    n = side.rho.size
    after = (1 - discount) * side.initial
    for s in range(n):
        total = 0.0
        for e in range(side.at[s], side.at[s + 1]):
            total += side.counts[e]
        if total > 0.0:
            for e in range(side.at[s], side.at[s + 1]):
                side.q[e] = side.rho[s] * side.counts[e] / total
                after[side.to[e]] += discount * side.q[e]
        else:
            after[s] += discount * side.rho[s]
    for s in range(n):
        side.rho[s] = after[s]


@njit(**PLAIN)
def _observe(side, draws, t, rules):
    """Count the minibatch of iteration t and update the occupancy that μ should have."""
    at, edges, weights = draws.at, draws.edges, draws.weights
    total = 0.0
    for i in range(at[t], at[t + 1]):
        side.counts[edges[i]] += weights[i]
        total += weights[i]
    if rules.memory:
        balance(side, rules.discount)
    else:
        side.q[:] = 0.0
        for i in range(at[t], at[t + 1]):
            side.q[edges[i]] += weights[i] / total


class Step(NamedTuple):
    """Step sizes and normalization of one iteration."""

    eta: float
    beta: float
    scale: float  # one over the mass of μ
    log_mass: float


class Duals(NamedTuple):
    """The multipliers α of one chain, and what their steps depend on."""

    alpha: Any
    log_share: Any  # their part of log μ: U or W
    M: Any  # the marginal of μ
    step: Any  # (E,) step sizes
    q: Any  # (E,)
    then: Any  # (E,) γ times the part of a lower bound on V that belongs to the edge (see _ascend_v)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _ascend(duals, at, first, n, lam, step, rules):
    """Step α += step (M - q λ), clipped, for the n edges of one pair, and update their part of log μ.

    Returns Σ q α̂ and min (α̂ + then), where α̂ are the extrapolated multipliers.
    """
    alpha, log_share, M, q, then = duals.alpha, duals.log_share, duals.M, duals.q, duals.then
    scale, eta, a, bound = step.scale, step.eta, rules.anticipation, rules.bound
    tilt, low = 0.0, 1e300
    for i in range(n):
        k, e = np.uintp(at + i), np.uintp(first + i)
        old = alpha[k]
        new = min(max(old + duals.step[e] * (M[k] * scale - q[e] * lam), -bound), bound)
        ahead = old + a * (new - old)
        alpha[k] = new
        log_share[k] -= eta * ahead
        tilt += q[e] * ahead
        low = min(low, ahead + then[e])
    return tilt, low


@njit(**PLAIN)
def _ascend_alpha(seen, it, least, buffers, lam, step, rules):
    """Step α_X and α_Y; update log μ, the bound on its increase (γ V included) and the logits of λ_X and λ_Y."""
    (xs, ys), (live, marginals), (n_x, n_y) = seen, buffers, it.V.shape
    step_x, step_y = np.full(xs.q.size, step.beta), np.full(ys.q.size, step.beta)
    if rules.memory:
        step_x /= np.maximum(xs.q, FLOOR / xs.q.size)
        step_y /= np.maximum(ys.q, FLOOR / ys.q.size)
    of_x = Duals(it.A, it.U, marginals.MA, step_x, xs.q, rules.discount * least.x[xs.to])
    of_y = Duals(it.B, it.W, marginals.MB, step_y, ys.q, rules.discount * least.y[ys.to])
    for x in range(n_x):
        e, a = xs.at[x], xs.at[x + 1] - xs.at[x]
        for y in range(n_y):
            k, b = ys.at[y], ys.at[y + 1] - ys.at[y]
            tilt, low_x = _ascend(of_x, n_y * e + y * a, e, a, lam.x[x, y], step, rules)
            it.logit_x[x, y] += step.eta * tilt
            tilt, low_y = _ascend(of_y, x * ys.q.size + k, k, b, lam.y[y, x], step, rules)
            it.logit_y[y, x] += step.eta * tilt
            if a > 0 and b > 0:
                live.rise[x, y] -= step.eta * (low_x + low_y)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _ascend_v(seen, it, c, buffers, step, rules):
    """Step V, update log μ and the bound on its increase, and normalize μ.

    Returns two vectors with V̂(x',y') ≥ x(x') + y(y'). Any y would do; with the mean of V over x' the bound is good.
    """
    (xs, ys), (live, marginals) = seen, buffers
    γ, a, D, eta, log_mass = rules.discount, rules.anticipation, rules.bound, step.eta, step.log_mass
    (n_x, n_y), m, N, rise = c.shape, marginals.m, marginals.N, live.rise
    size, least = np.full(n_y, step.beta), Both(np.full(n_x, 1e300), np.zeros(n_y))
    for x in range(n_x):
        for y in range(n_y):
            least.y[y] += it.V[x, y] / n_x
    for x in range(n_x):
        if rules.memory:
            for y in range(n_y):
                size[y] = step.beta / max(xs.rho[x] * ys.rho[y], FLOOR / (n_x * n_y))
        for y in range(n_y):
            old = it.V[x, y]
            new = old + size[y] * (γ * N[x, y] + (1 - γ) * it.start[x, y] - m[x, y])
            new = min(max(new, -D), D)
            ahead = old + a * (new - old)
            it.V[x, y] = new
            it.L[x, y] -= eta * γ * ahead
            it.S[x, y] += eta * (ahead - c[x, y]) - log_mass
            it.log_start[x, y] -= eta * (1 - γ) * ahead
            rise[x, y] += eta * (ahead - c[x, y]) - log_mass
            least.x[x] = min(least.x[x], ahead - least.y[y])
    return least


@njit(**PLAIN)
def _scale_rows(logarithms, p, q):
    """Shift every row i so that its exponentials over the columns with q > 0 sum to p[i]."""
    for i in range(p.size):
        if p[i] > 0.0:
            top, total = -1e300, 0.0
            for j in range(q.size):
                if q[j] > 0.0:
                    top = max(top, logarithms[i, j])
            for j in range(q.size):
                if q[j] > 0.0:
                    total += np.exp(logarithms[i, j] - top)
            shift = np.log(p[i]) - np.log(total) - top  # a quotient could underflow
            for j in range(q.size):
                logarithms[i, j] += shift


@njit(**PLAIN)
def couple_starts(it, p, q):
    """Scale the coupling of the starts once (Sinkhorn); its columns become exact, its rows converge."""
    _scale_rows(it.log_start, p, q)
    _scale_rows(it.log_start.T, q, p)
    for x in range(p.size):
        for y in range(q.size):
            if p[x] > 0.0 and q[y] > 0.0:
                it.start[x, y] = np.exp(it.log_start[x, y])


@njit(**PLAIN)
def _add_up(it, m, lam, eta):
    """Add this iterate to the running sums. (Numba takes seconds to compile assignments of whole rows, hence loops.)"""
    for x in range(m.shape[0]):
        for y in range(m.shape[1]):
            it.sums[0, x, y] += eta * m[x, y]
            it.sums[1, x, y] += eta * it.start[x, y]
            it.sums[2, x, y] += eta * lam.x[x, y]
            it.sums[3, x, y] += eta * lam.y[y, x]


@njit(**PLAIN)
def iterate(progress, draws, c, seen, it, buffers, rules):
    """Run one iteration per minibatch of ``draws`` and return <m, c> of the last iterate.

    ``draws`` is a ``Both`` of ``Batches``, and ``seen`` a ``Both`` of ``Seen``.
    """
    (xs, ys), (live, marginals), (n_x, n_y) = seen, buffers, c.shape
    N, m = marginals.N, marginals.m
    lam = Both(np.empty((n_x, n_y)), np.empty((n_y, n_x)))
    if float(xs.to.size) * ys.to.size < DENSE * float(n_x * n_y) ** 2:
        it.cold[0] = 1
    for t in range(draws.x.at.size - 1):
        fade = (1.0 + progress.done[0] / rules.decay_from) ** -rules.decay if rules.decay > 0.0 else 1.0
        eta = rules.eta * fade
        _observe(xs, draws.x, t, rules)
        _observe(ys, draws.y, t, rules)
        softmax(it.logit_x, lam.x)
        softmax(it.logit_y, lam.y)
        couple_starts(it, xs.initial, ys.initial)
        if it.cold[0] == 0 and not by_products(xs, ys, it, marginals):
            it.cold[0] = 1
        if it.cold[0] != 0:
            by_entries(xs, ys, it, live, marginals)
        mass = m.sum()
        if not LEAST < mass < 1 / LEAST:  # after a large step, the last normalization is off
            top = peak(xs, ys, it)
            for x in range(n_x):
                for y in range(n_y):
                    it.S[x, y] -= top
            live.far.size[:] = NONE
            by_entries(xs, ys, it, live, marginals)
            mass = m.sum()
        m /= mass
        N /= mass
        _add_up(it, m, lam, eta)
        step = Step(eta, rules.beta * fade, 1.0 / mass, np.log(mass))
        least = _ascend_v(seen, it, c, buffers, step, rules)
        _ascend_alpha(seen, it, least, buffers, lam, step, rules)
        progress.weight[0] += eta
        progress.done[0] += 1
    return (m * c).sum()


# --- transitions seen for the first time --------------------------------------------------------------------------


@njit(**PLAIN)
def enter_x(new, sources, seen, it, c, discount, occupancy):
    """Initialize α_X and U for the ``new`` edges of X, in all pairs (x,y) where y has known successors.

    α_X is the c-transform of the other multipliers, so that the least slack δ of the edge is zero. U gives the edge the
    marginal Σ_y' μ = ``occupancy`` · λ_X(y|x).
    """
    (xs, ys), (n_x, n_y) = seen, c.shape
    lam = np.empty((n_x, n_y))
    softmax(it.logit_x, lam)
    for i in range(new.size):
        e, x = new[i], sources[i]
        x1, a = xs.to[e], xs.at[x + 1] - xs.at[x]
        for y in range(n_y):
            at, low, top = n_y * xs.at[x] + y * a + e - xs.at[x], 1e300, -1e300
            for k in range(ys.at[y], ys.at[y + 1]):
                w, y1 = x * ys.to.size + k, ys.to[k]
                low = min(low, c[x, y] + it.B[w] + discount * it.V[x1, y1] - it.V[x, y])
                top = max(top, it.W[w] + it.L[x1, y1])
            if ys.at[y] < ys.at[y + 1]:
                total = 0.0
                for k in range(ys.at[y], ys.at[y + 1]):
                    total += np.exp(it.W[x * ys.to.size + k] + it.L[x1, ys.to[k]] - top)
                it.A[at] = -low
                it.U[at] = np.log(occupancy * lam[x, y] / total) - top - it.S[x, y]


@njit(**PLAIN)
def enter_y(new, sources, seen, it, c, discount, occupancy):
    """Initialize α_Y and W for the ``new`` edges of Y, as :func:`enter_x` does for X."""
    (xs, ys), (n_x, n_y) = seen, c.shape
    lam = np.empty((n_y, n_x))
    softmax(it.logit_y, lam)
    for j in range(new.size):
        k, y = new[j], sources[j]
        y1 = ys.to[k]
        for x in range(n_x):
            lo, a, low, top = xs.at[x], xs.at[x + 1] - xs.at[x], 1e300, -1e300
            for i in range(a):
                at, x1 = n_y * lo + y * a + i, xs.to[lo + i]
                low = min(low, c[x, y] + it.A[at] + discount * it.V[x1, y1] - it.V[x, y])
                top = max(top, it.U[at] + it.L[x1, y1])
            if a > 0:
                total = 0.0
                for i in range(a):
                    total += np.exp(it.U[n_y * lo + y * a + i] + it.L[xs.to[lo + i], y1] - top)
                at = x * ys.to.size + k
                it.B[at] = -low
                it.W[at] = np.log(occupancy * lam[y, x] / total) - top - it.S[x, y]
