"""SOMCOT's iteration on the factors of the coupling (numba, without the GIL).

Edges e = (x → x') and k = (y → y') are the transitions seen so far, sorted by source. The coupling is never stored:

    log μ(x,y,x',y') = S[x,y] + U[x,y,e] + W[x,y,k] + L[x',y']

    at (n+1,), to (E,)     the edges of state s are at[s] … at[s+1]-1, and edge e leads to to[e]; one ``Side`` per chain
    U, A, MA (n_Y E_X,)    flat; those of pair (x,y) begin at n_Y at[x] + y (edges of x):  share of log μ, α_X, Σ_y' μ
    W, B, MB (n_X E_Y,)    flat; those of pair (x,y) begin at x E_Y + at[y]:               share of log μ, α_Y, Σ_x' μ
    L, S, V, m, N          (n_X, n_Y);  m = Σ_x'y' μ and N = Σ_xy μ
    q (E,), rho (n,)       the transition occupancy that μ is to have, and its state marginal

The marginals come from somcot_marginals.py; here are the steps, and the entry of transitions seen for the first time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import njit
from diffbisim.solvers.somcot_marginals import NONE, by_entries, by_products, peak, softmax

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Supports with at least this share of all entries begin with matrix products.
DENSE = 1 / 16
#: Entries count as zero relative to a mass of about one; outside of these bounds μ is normalized first.
LEAST = 1e-6
#: Scaled dual steps divide by occupancies, but not by less than this share of the uniform one.
FLOOR = 0.1


class Side(NamedTuple):
    """One chain as seen so far."""

    at: Index
    to: Index
    source: Index  # (E,)
    counts: Array  # (E,) weights seen
    q: Array
    rho: Array
    initial: Array  # (n,)


class Iterates(NamedTuple):
    """What the iteration moves."""

    U: Array
    W: Array
    L: Array
    S: Array
    A: Array
    B: Array
    V: Array
    logit_x: Array  # (n_X, n_Y): log λ_X, up to a constant in each row
    logit_y: Array  # (n_Y, n_X)
    start: Array  # (n_X, n_Y): coupling of the starts, and its logarithm up to scalings of rows and columns
    log_start: Array
    sums: Array  # (4, n_X, n_Y): Σ η m, Σ η start, Σ η λ_X, Σ η λ_Yᵀ
    cold: Index  # (1,): zero while matrix products are safe


class Rules(NamedTuple):
    """Options of the solver, for costs scaled to at most one."""

    discount: float
    eta: float
    beta: float
    decay: float  # steps fall like (1 + k / decay_from)^-decay
    decay_from: float
    anticipation: float  # primal steps see α + anticipation (α⁺ - α): 0 literal, 2 extrapolated
    memory: bool  # all transitions seen so far instead of the last minibatch
    bound: float  # the duals are clipped to ± this


# --- the steps --------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def balance(side, discount):
    """One sweep ρ ← (1-γ) ν + γ ρ P̂ with P̂ from the counts, and q = ρ P̂; a state without successors keeps its mass."""
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
    side.rho[:] = after


@njit(cache=True, nogil=True, error_model="numpy")
def _observe(side, draws, t, rules):
    """Count the minibatch of iteration t, and set the occupancy that μ is to have."""
    at, edges, weights = draws
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


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _ascend(alpha, log_share, M, at, n, step, q, lo, lam, scale, eta, a, bound, then):
    """α += step (M - q λ), clipped, for the n edges of one pair; their share of log μ; Σ q α̂ and min (α̂ + then)."""
    tilt, low = 0.0, 1e300
    for i in range(n):
        k, e = np.uintp(at + i), np.uintp(lo + i)
        old = alpha[k]
        new = min(max(old + step[e] * (M[k] * scale - q[e] * lam), -bound), bound)
        ahead = old + a * (new - old)
        alpha[k] = new
        log_share[k] -= eta * ahead
        tilt += q[e] * ahead
        low = min(low, ahead + then[e])
    return tilt, low


@njit(cache=True, nogil=True, error_model="numpy")
def _ascend_alpha(xs, ys, it, rise, low_v, MA, MB, lam_x, lam_y, scale, eta, beta, rules):
    """α_X and α_Y, their shares of log μ, the most that they and γ V raise it, and the logits of λ_X and λ_Y."""
    (n_x, n_y), a, D = it.V.shape, rules.anticipation, rules.bound
    step_x, step_y = np.full(xs.q.size, beta), np.full(ys.q.size, beta)
    if rules.memory:
        step_x /= np.maximum(xs.q, FLOOR / xs.q.size)
        step_y /= np.maximum(ys.q, FLOOR / ys.q.size)
    then_x, then_y = rules.discount * low_v[xs.to], np.zeros(ys.q.size)
    for x in range(n_x):
        lo, n = xs.at[x], xs.at[x + 1] - xs.at[x]
        for y in range(n_y):
            k, b = ys.at[y], ys.at[y + 1] - ys.at[y]
            at = n_y * lo + y * n
            tilt, low_x = _ascend(it.A, it.U, MA, at, n, step_x, xs.q, lo, lam_x[x, y], scale, eta, a, D, then_x)
            it.logit_x[x, y] += eta * tilt
            at = x * ys.q.size + k
            tilt, low_y = _ascend(it.B, it.W, MB, at, b, step_y, ys.q, k, lam_y[y, x], scale, eta, a, D, then_y)
            it.logit_y[y, x] += eta * tilt
            rise[x, y] -= eta * (low_x + low_y)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _ascend_v(xs, ys, it, rise, c, m, N, log_mass, eta, beta, rules):
    """V, its share of log μ, and the normalization of μ; how much they raise it, and min V̂ over the y' of every x'."""
    γ, a, D = rules.discount, rules.anticipation, rules.bound
    n_x, n_y = c.shape
    step, low = np.full(n_y, beta), np.full(n_x, 1e300)
    for x in range(n_x):
        if rules.memory:
            for y in range(n_y):
                step[y] = beta / max(xs.rho[x] * ys.rho[y], FLOOR / (n_x * n_y))
        for y in range(n_y):
            old = it.V[x, y]
            new = old + step[y] * (γ * N[x, y] + (1 - γ) * it.start[x, y] - m[x, y])
            new = min(max(new, -D), D)
            ahead = old + a * (new - old)
            it.V[x, y] = new
            it.L[x, y] -= eta * γ * ahead
            it.S[x, y] += eta * (ahead - c[x, y]) - log_mass
            it.log_start[x, y] -= eta * (1 - γ) * ahead
            rise[x, y] += eta * (ahead - c[x, y]) - log_mass
            low[x] = min(low[x], ahead)
    return low


@njit(cache=True, nogil=True, error_model="numpy")
def _scale_rows(logarithms, p, q):
    """Shift row i so that its exponentials sum to p[i], over the columns with q > 0."""
    for i in range(p.size):
        if p[i] > 0.0:
            top, total = -1e300, 0.0
            for j in range(q.size):
                if q[j] > 0.0:
                    top = max(top, logarithms[i, j])
            for j in range(q.size):
                if q[j] > 0.0:
                    total += np.exp(logarithms[i, j] - top)
            shift = np.log(p[i]) - np.log(total) - top  # the quotient of the smallest doubles may vanish
            for j in range(q.size):
                logarithms[i, j] += shift


@njit(cache=True, nogil=True, error_model="numpy")
def couple_starts(it, p, q):
    """One round of Sinkhorn's scaling of the start coupling; its columns are exact, its rows soon."""
    _scale_rows(it.log_start, p, q)
    _scale_rows(it.log_start.T, q, p)
    for x in range(p.size):
        for y in range(q.size):
            if p[x] > 0.0 and q[y] > 0.0:
                it.start[x, y] = np.exp(it.log_start[x, y])


@njit(cache=True, nogil=True, error_model="numpy")
def iterate(done, weight, x_draws, y_draws, c, xs, ys, it, live, rules, MA, MB):
    """One iteration per minibatch; draws are (at (n+1,), edges, weights) for either side.

    ``done`` counts the iterations and ``weight`` sums their steps η. Returns <m, c> of the last iterate.
    """
    n_x, n_y = c.shape
    N, m, lam_x, lam_y = np.empty((n_x, n_y)), np.empty((n_x, n_y)), np.empty((n_x, n_y)), np.empty((n_y, n_x))
    if float(xs.to.size) * ys.to.size < DENSE * float(n_x * n_y) ** 2:
        it.cold[0] = 1
    for t in range(x_draws[0].size - 1):
        fade = (1.0 + done[0] / rules.decay_from) ** -rules.decay if rules.decay > 0.0 else 1.0
        eta, beta = rules.eta * fade, rules.beta * fade
        _observe(xs, x_draws, t, rules)
        _observe(ys, y_draws, t, rules)
        softmax(it.logit_x, lam_x)
        softmax(it.logit_y, lam_y)
        couple_starts(it, xs.initial, ys.initial)
        if it.cold[0] == 0 and not by_products(xs, ys, it, MA, MB, N, m):
            it.cold[0] = 1
        if it.cold[0] != 0:
            by_entries(xs, ys, it, live, MA, MB, N, m)
        mass = m.sum()
        if not LEAST < mass < 1 / LEAST:  # a step too large for the normalization of the last one
            it.S[:] = it.S - peak(xs, ys, it)
            live.listed[:] = NONE
            by_entries(xs, ys, it, live, MA, MB, N, m)
            mass = m.sum()
        m /= mass
        N /= mass
        it.sums[0] += eta * m
        it.sums[1] += eta * it.start
        it.sums[2] += eta * lam_x
        it.sums[3] += eta * lam_y.T
        low_v = _ascend_v(xs, ys, it, live.rise, c, m, N, np.log(mass), eta, beta, rules)
        _ascend_alpha(xs, ys, it, live.rise, low_v, MA, MB, lam_x, lam_y, 1.0 / mass, eta, beta, rules)
        weight[0] += eta
        done[0] += 1
    return (m * c).sum()


# --- transitions seen for the first time --------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def enter_x(new, sources, xs, ys, it, c, discount, occupancy):
    """First values of α_X and U for the edges ``new`` of X, in all pairs (x,y) whose y has been left before.

    α_X is the c-transform of the other duals (the least slack δ of the edge is zero), and U gives the edge the marginal
    Σ_y' μ = ``occupancy`` · λ_X(y|x).
    """
    n_x, n_y = c.shape
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


@njit(cache=True, nogil=True, error_model="numpy")
def enter_y(new, sources, xs, ys, it, c, discount, occupancy):
    """First values of α_Y and W for the edges ``new`` of Y, as :func:`enter_x`."""
    n_x, n_y = c.shape
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
