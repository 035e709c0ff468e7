"""Sinkhorn's algorithm on pairs of states, for plans in Gibbs form (numba, without the GIL).

The plan of pair k = (x,y) is π(i,j) = p_i q_j exp(β (f_i + g_j - W_ij)) on the successors i of x and j of y. The costs
of a pair are gathered from the table into a scratch matrix that stays in the cache; no array of size n_X² n_Y² exists.

No exponential here can overflow, for any β, costs and probabilities: the rows of a new matrix are first normalized by
their largest term (*absorption*), so that the scalings u, w of the iteration start at one. If they grow beyond LARGE,
they are absorbed into f and g and the matrix is recomputed.

    scale       over-relaxed Sinkhorn until the marginals are accurate
    newton      the same by Newton's method, where Sinkhorn is too slow
    plans       rounded to exact marginals; their costs, and their action on tables
    potentials  transforms: half-steps, lower bounds, sums for the gradient

A rounded plan costs at least as much as the transport, and the value after two transforms, g → f → g, is at most that:

    <p, f> + <q, g>  ≤  min over couplings of <·, U> + ε KL(· ‖ p⊗q)  ≤  <π, U> + ε KL(π ‖ p⊗q)

for a table U and a temperature ε ≥ 0. The transform is f_i = min_j (U_ij - g_j), or its soft version
-ε log Σ_j q_j exp((g_j - U_ij)/ε), whose plan has mass one, so that the entropic dual has no further term. Letters:

    k = x m_Y + y       pairs of rows, m_Y rows of Y (the starts are the case of a single pair)
    W, U, V             flat tables (n_X*n_Y,) with n_y columns
    F, G                potentials, one pair after the other: see :func:`place`
    C, K (a, b)         scratch: costs and plan of one pair
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim._compile import njit, uncounted
from diffbisim.solvers.successors import (
    LAST_DIGITS,
    LOOSE,
    STRICT,
    c_transform,
    c_transform_at,
    c_transform_back,
    exp,
    exp_or_zero,
    gather,
    longest,
    round_plan,
)
from diffbisim.stochastic import Successors

LARGE = 1e80  # scalings beyond this are absorbed
TINY = 1e-150  # columns lighter than this fraction of their target get a half-step of their own
VANISHES = -600.0  # exponentials of smaller numbers are set to zero
PATIENCE, OMEGA, EVERY = 6, 1.75, 10  # iterations before over-relaxation, its ω, iterations between reviews of ω
REACH, RIDGE, STEPS = 4.0, 1e-14, 60  # Newton: longest first step, lower limit of pivots, maximum number of steps


class Pairs(NamedTuple):
    """All pairs of a row of X and a row of Y."""

    x: Successors
    y: Successors
    log_p: Any  # (E_X,) logarithms of the probabilities
    log_q: Any  # (E_Y,)
    n_y: int  # columns of the tables


class Gibbs(NamedTuple):
    """The plans of all pairs."""

    pairs: Pairs
    W: Any  # (n_X*n_Y,)
    beta: float
    F: Any  # (m_Y E_X,)
    G: Any  # (m_X E_Y,)


class Potentials(NamedTuple):
    """The potentials of all pairs for a table U at the temperature ε, by transforms of G."""

    pairs: Pairs
    U: Any  # (n_X*n_Y,)
    epsilon: float  # 0: hard transforms
    G: Any  # (m_X E_Y,)


class Stop(NamedTuple):
    """When Sinkhorn's iteration stops."""

    most: int  # iterations
    target: float  # marginal error


class Place(NamedTuple):
    """Where the data of one pair are."""

    x: int
    y: int
    rows: Any  # slice of its successors in X's arrays
    cols: Any
    f: Any  # slice of its potentials in F
    g: Any


class Pair(NamedTuple):
    """The two laws of a pair and its potentials."""

    p: Any  # (a,)
    q: Any  # (b,)
    log_p: Any
    log_q: Any
    f: Any  # (a,)
    g: Any  # (b,)


class Scratch(NamedTuple):
    """Scratch arrays for the largest pair."""

    matrices: Any  # (copies, a*b)
    row: Any  # (a,)
    col: Any  # (b,)
    col2: Any  # (b,)


@njit(inline="always", **STRICT)
def place(k, pairs):
    """Return the place of pair k; the potentials of one x are ordered by y, those of one y by x."""
    x_at, y_at = pairs.x.indptr, pairs.y.indptr
    m_y = y_at.size - 1
    x, y = k // m_y, k % m_y
    i, j = x_at[x], y_at[y]
    a, b = x_at[x + 1] - i, y_at[y + 1] - j
    at_f, at_g = m_y * i + y * a, x * pairs.y.indices.size + j
    return Place(x, y, slice(i, i + a), slice(j, j + b), slice(at_f, at_f + a), slice(at_g, at_g + b))


@njit(inline="always", **STRICT)
def pair_at(at, pairs, F, G):
    """Return the laws and potentials of the pair at a place."""
    p, q = pairs.x.probabilities[at.rows], pairs.y.probabilities[at.cols]
    return Pair(p, q, pairs.log_p[at.rows], pairs.log_q[at.cols], F[at.f], G[at.g])


@njit(inline="always", **STRICT)
def costs(at, pairs, W, scratch):
    """Return the costs of a pair, (a, b)."""
    rows, cols = pairs.x.indices[at.rows], pairs.y.indices[at.cols]
    gather(W, pairs.n_y, rows, cols, scratch)
    return scratch[: rows.size * cols.size].reshape((rows.size, cols.size))


@njit(**STRICT)
def _transposed_costs(at, pairs, W, scratch):
    """Return the costs of a pair, (b, a)."""
    rows, cols = pairs.x.indices[at.rows], pairs.y.indices[at.cols]
    T = scratch[: rows.size * cols.size].reshape((cols.size, rows.size))
    for i in range(rows.size):
        for j in range(cols.size):
            T[j, i] = W[rows[i] * pairs.n_y + cols[j]]
    return T


@njit(inline="always", **STRICT)
def make_scratch(pairs, copies):
    """Allocate `copies` matrices and three vectors for the largest pair."""
    a, b = longest(pairs.x), longest(pairs.y)
    return Scratch(np.empty((copies, a * b)), np.empty(a), np.empty(b), np.empty(b))


@njit(**STRICT)
def _put(value, out):
    for j in range(out.size):
        out[j] = value


# --- softmin ------------------------------------------------------------------------------------------------------


@njit(**LOOSE)
def _sum(v):
    s = 0.0
    for j in range(v.size):
        s += v[j]
    return s


@njit(**LOOSE)
def _largest(v):
    m = -np.inf
    for j in range(v.size):
        m = max(m, v[j])
    return m


@njit(**STRICT)
def _exponents(log_q, g, c, beta, out):
    for j in range(out.size):
        out[j] = log_q[j] + beta * (g[j] - c[j])


@njit(**STRICT)
def _exponentials(shift, out):
    for j in range(out.size):
        out[j] = exp_or_zero(out[j] - shift, VANISHES)


@njit(**STRICT)
def soft_row(c, log_q, g, beta, out):
    """Return softmin -1/β log Σ_j q_j exp(β (g_j - c_j)); `out` gets the terms, normalized to sum to one."""
    _exponents(log_q, g, c, beta, out)
    m = _largest(out)
    _exponentials(m, out)
    s = _sum(out)
    for j in range(out.size):
        out[j] /= s
    return -(m + np.log(s)) / beta


@njit(**STRICT)
def _absorb(C, pair, beta, K):
    """Set f = softmin (C - g) and K to the plan, with exact rows; empty columns get a half-step of their own."""
    (a, b), (p, q, log_p, log_q, f, g) = C.shape, pair
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


# --- Sinkhorn -----------------------------------------------------------------------------------------------------


@njit(inline="always", **LOOSE)
def relaxed(t, omega):
    """Return about t^ω, to second order in t - 1 (growing like t outside [1/2, 2]); exactly t for ω = 1."""
    c = min(max(t, 0.5), 2.0)
    return t / c * (1 + 0.5 * (omega + 1) * (c - 1)) / (1 - 0.5 * (omega - 1) * (c - 1))


@njit(**STRICT)
def relaxation(done, omega, error, before):
    """Return ω after `done` iterations: 1 at first, then OMEGA for slow pairs, and 1 again if the error grew.

    Sinkhorn is block Gauss-Seidel on the dual. Near the solution SOR converges for ω < 2, and its best ω is near 2 if
    Sinkhorn is slow (Young 1954). Far from the solution ω = 1.9 diverges at low temperatures, while 1.75 never did.
    """
    if done % EVERY == 0 and error > 1.5 * before:
        return 1.0
    return max(omega, OMEGA) if done == PATIENCE else omega


@njit(**LOOSE)
def _columns(K, q, u, w, omega, t):
    """Apply the columns' half-step and return the error of their sums before it."""
    _put(0.0, t)
    for i in range(K.shape[0]):
        for j in range(q.size):
            t[j] += u[i] * K[i, j]
    error = 0.0
    for j in range(q.size):
        have = w[j] * t[j]
        error += abs(have - q[j])
        w[j] *= relaxed(min(q[j] / have, 1 / TINY), omega)
    return error


@njit(**LOOSE)
def _rows(K, p, u, w, omega):
    """Apply the rows' half-step and return the largest of u and 1/u."""
    far = 0.0
    for i in range(p.size):
        s = 0.0
        for j in range(K.shape[1]):
            s += K[i, j] * w[j]
        u[i] *= relaxed(min(p[i] / (u[i] * s), 1 / TINY), omega)
        far = max(far, max(u[i], 1 / u[i]))
    return far


@njit(**STRICT)
def _farthest(w):
    far = 0.0
    for j in range(w.size):
        far = max(far, max(w[j], 1 / w[j]))
    return far


@njit(inline="always", **STRICT)
def _scale_one(C, K, pair, beta, stop, omega, scratch):
    """Run Sinkhorn on one pair; return the number of iterations, the error of the columns, and ω."""
    p, q, f, g = pair.p, pair.q, pair.f, pair.g
    most, target = stop
    u, w, t = scratch.row[: p.size], scratch.col[: q.size], scratch.col2[: q.size]
    done, error, before = 0, np.inf, np.inf
    while True:
        _absorb(C, pair, beta, K)
        _put(1.0, u)
        _put(1.0, w)
        far = 1.0
        while far < LARGE:
            error = _columns(K, q, u, w, omega if done < most else 1.0, t)
            if error <= target or done == most:
                break
            done += 1
            far = max(_rows(K, p, u, w, omega), _farthest(w))
            omega = relaxation(done, omega, error, before)
            if done % EVERY == 0:
                before = error
        _rows(K, p, u, w, 1.0)
        for i in range(p.size):
            f[i] += np.log(u[i]) / beta
        for j in range(q.size):
            g[j] += np.log(w[j]) / beta
        if error <= target or done == most:
            return done, error, omega


@njit(**STRICT)
def scale(lo, hi, gibbs, stop, omega, error):
    """Run Sinkhorn on every pair from its last potentials, updating `omega` and `error` (pairs,); return iterations."""
    gibbs, pairs, omega, error = uncounted(gibbs), uncounted(gibbs.pairs), uncounted(omega), uncounted(error)
    scratch, total = make_scratch(pairs, 2), 0
    for k in range(lo, hi):
        at = place(k, pairs)
        C = costs(at, pairs, gibbs.W, scratch.matrices[0])
        K = scratch.matrices[1][: C.size].reshape(C.shape)
        pair = pair_at(at, pairs, gibbs.F, gibbs.G)
        done, error[k], omega[k] = _scale_one(C, K, pair, gibbs.beta, stop, omega[k], scratch)
        total += done
    return total


# --- Newton -------------------------------------------------------------------------------------------------------
#
# For high accuracy at low temperature, where Sinkhorn is too slow. With f eliminated by an exact half-step, the dual of
# one pair is a concave function of g alone,
#
#     φ(g) = <p, softmin(C - g)> + <q, g>,     ∇φ = q - t,     ∇²φ = -β (diag(t) - Kᵀ diag(1/p) K),
#
# where K is the plan and t its column sums. Sinkhorn is the fixed step g += log(q/t)/β; if little mass moves between
# two groups of states (a nearly degenerate transport), its rate is one minus that mass. Newton's method is not
# affected: the matrix, in the symmetric form I - N with N = t^{-1/2} Kᵀ p^{-1} K t^{-1/2}, is a graph Laplacian,
# singular only for constants, which do not matter for g. Steps are limited to REACH in the exponent, or twice the last
# step, and shortened until φ does not decrease. A step costs a b² + b³/3 for (a, b) successors, about as much as b/2
# Sinkhorn iterations.


class NewtonScratch(NamedTuple):
    """Scratch arrays of Newton's method for b columns."""

    H: Any  # (b, b)
    t: Any  # (b,) column sums
    v: Any  # (b,) direction
    old: Any  # (b,) g before the step


@njit(**LOOSE)
def _hessian(K, p, root, H):
    """Write the lower triangle of I - N + RIDGE, with root = sqrt(t)."""
    a, b = K.shape
    for j in range(b):
        for m in range(j + 1):
            H[j, m] = 0.0
    for i in range(a):
        for j in range(b):
            weight = K[i, j] / (p[i] * root[j])
            if weight != 0.0:
                for m in range(j + 1):
                    H[j, m] -= weight * K[i, m]
    for j in range(b):
        for m in range(j + 1):
            H[j, m] /= root[m]
        H[j, j] += 1.0 + RIDGE


@njit(**LOOSE)
def _cholesky_solve(H, v):
    """Solve v = H⁻¹ v with the lower triangle of H, which is overwritten; pivots are kept positive."""
    b = v.size
    for j in range(b):
        for m in range(j + 1):
            total = H[j, m]
            for k in range(m):
                total -= H[j, k] * H[m, k]
            H[j, m] = np.sqrt(max(total, RIDGE)) if j == m else total / H[m, m]
    for j in range(b):
        for k in range(j):
            v[j] -= H[j, k] * v[k]
        v[j] /= H[j, j]
    for j in range(b - 1, -1, -1):
        v[j] /= H[j, j]
        for k in range(j):
            v[k] -= H[j, k] * v[j]


@njit(inline="always", **STRICT)
def _dual_value(C, K, pair, beta, t):
    """Compute f, the plan and its column sums t from g; return φ and the error."""
    _absorb(C, pair, beta, K)
    p, q, f, g = pair.p, pair.q, pair.f, pair.g
    _put(0.0, t)
    for i in range(p.size):
        for j in range(q.size):
            t[j] += K[i, j]
    value, error = 0.0, 0.0
    for i in range(p.size):
        value += p[i] * f[i]
    for j in range(q.size):
        value += q[j] * g[j]
        error += abs(t[j] - q[j])
    return value, error


@njit(inline="always", **STRICT)
def _direction(K, p, q, scratch):
    """Write Newton's step for β g, with zero mean, to v and return its length; overwrites t."""
    t, v = scratch.t, scratch.v
    for j in range(q.size):
        t[j] = np.sqrt(t[j])
        v[j] = (q[j] - t[j] * t[j]) / t[j]
    _hessian(K, p, t, scratch.H)
    _cholesky_solve(scratch.H, v)
    mean, size = 0.0, 0.0
    for j in range(q.size):
        v[j] /= t[j]
        mean += q[j] * v[j]
    for j in range(q.size):
        v[j] -= mean
        size = max(size, abs(v[j]))
    return size


@njit(inline="always", **STRICT)
def _newton_one(C, K, pair, beta, target, scratch):
    """Run Newton's method on one pair and return the remaining error; φ decreases at most by rounding."""
    g, v, old = pair.g, scratch.v, scratch.old
    reach, best, idle, size, length, before = REACH, np.inf, 0, 0.0, 0.0, -np.inf
    for step in range(STEPS + 1):
        value, error = _dual_value(C, K, pair, beta, scratch.t)
        if step == STEPS:
            break
        noise = 1e-15 * (abs(value) + 1 / beta)
        if value >= before - noise:
            reach = max(REACH, 2 * length * size)  # longer and longer steps where φ is nearly linear
            idle = 0 if error < 0.9 * best or value > before + 10 * noise else idle + 1
            best = min(best, error)
            if error <= target or idle == 3:
                break
            before, size = value, _direction(K, pair.p, pair.q, scratch)
            length = min(1.0, reach / size)
            for j in range(g.size):
                old[j] = g[j]
        elif length * size > 1e-12:
            length *= 0.25
        else:  # no ascent, or not a number: go back and stop
            length, before, idle = 0.0, -np.inf, 2
        for j in range(g.size):
            g[j] = old[j] + length * v[j] / beta if length > 0.0 else old[j]
    return error


@njit(**STRICT)
def newton(lo, hi, gibbs, target, error):
    """Run Newton's method on every pair whose error exceeds `target`, and return their number."""
    gibbs, pairs, error = uncounted(gibbs), uncounted(gibbs.pairs), uncounted(error)
    b, count = longest(pairs.y), 0
    matrices, H, t, v, old = make_scratch(pairs, 2).matrices, np.empty((b, b)), np.empty(b), np.empty(b), np.empty(b)
    for k in range(lo, hi):
        if error[k] > target:
            at = place(k, pairs)
            C = costs(at, pairs, gibbs.W, matrices[0])
            K = matrices[1][: C.size].reshape(C.shape)
            n = C.shape[1]
            scratch = NewtonScratch(H[:n, :n], t[:n], v[:n], old[:n])
            error[k] = _newton_one(C, K, pair_at(at, pairs, gibbs.F, gibbs.G), gibbs.beta, target, scratch)
            count += 1
    return count


# --- plans --------------------------------------------------------------------------------------------------------
#
# *Stored* plans are one pair after the other, each (a, b) by rows.


@njit(inline="always", **STRICT)
def pair_plan(at, gibbs, rounded, scratch):
    """Compute the plan (a, b) of the pair at a place in scratch, from its current potentials, rounded or not."""
    C = costs(at, gibbs.pairs, gibbs.W, scratch.matrices[0])
    K = scratch.matrices[1][: C.size].reshape(C.shape)
    pair, beta = pair_at(at, gibbs.pairs, gibbs.F, gibbs.G), gibbs.beta
    p, log_q, f, g = pair.p, pair.log_q, pair.f, pair.g
    for i in range(p.size):
        for j in range(log_q.size):  # one marginal is normalized, so no entry is much larger than one
            K[i, j] = p[i] * exp_or_zero(min(log_q[j] + beta * (f[i] + g[j] - C[i, j]), 700.0), VANISHES)
    if rounded:
        round_plan(K, p, pair.q, scratch.row[: p.size], scratch.col[: log_q.size])
    return K


@njit(**STRICT)
def one_plan(k, gibbs, rounded):
    """Return the plan of pair k."""
    return pair_plan(place(k, gibbs.pairs), gibbs, rounded, make_scratch(gibbs.pairs, 2))


@njit(**LOOSE)
def _inner(K, C):
    """Return <K, C>."""
    total = 0.0
    for i in range(K.shape[0]):
        for j in range(K.shape[1]):
            total += K[i, j] * C[i, j]
    return total


@njit(**STRICT)
def _divergence(K, log_p, log_q):
    """Return KL(K ‖ p⊗q) of a plan, with logarithms, because products of small probabilities may underflow."""
    total = 0.0
    for i in range(log_p.size):
        for j in range(log_q.size):
            if K[i, j] > 0.0:
                total += K[i, j] * (np.log(K[i, j]) - log_p[i] - log_q[j])
    return max(total, 0.0)


@njit(**STRICT)
def plan_costs(lo, hi, gibbs, rounded, V, epsilon, out):
    """Compute out[k] = <π, V> + ε KL(π ‖ p⊗q) for the plan of every pair."""
    gibbs, pairs, V, out = uncounted(gibbs), uncounted(gibbs.pairs), uncounted(V), uncounted(out)
    scratch = make_scratch(pairs, 3)
    for k in range(lo, hi):
        at = place(k, pairs)
        K = pair_plan(at, gibbs, rounded, scratch)
        out[k] = _inner(K, costs(at, pairs, V, scratch.matrices[2]))
        if epsilon > 0.0:
            out[k] += epsilon * _divergence(K, pairs.log_p[at.rows], pairs.log_q[at.cols])


@njit(**STRICT)
def _spread(rows, cols, n_y, amount, K, out):
    for i in range(rows.size):
        line = out[rows[i] * n_y : (rows[i] + 1) * n_y]
        for j in range(cols.size):
            line[cols[j]] += amount * K[i, j]


@njit(**STRICT)
def push(lo, hi, gibbs, rounded, m, out):
    """Add Σ_k m_k π_k to `out`; each piece needs its own `out`."""
    gibbs, pairs, m, out = uncounted(gibbs), uncounted(gibbs.pairs), uncounted(m), uncounted(out)
    scratch = make_scratch(pairs, 2)
    for k in range(lo, hi):
        if m[k] != 0.0:
            at = place(k, pairs)
            rows, cols = pairs.x.indices[at.rows], pairs.y.indices[at.cols]
            _spread(rows, cols, pairs.n_y, m[k], pair_plan(at, gibbs, rounded, scratch), out)


@njit(inline="always", **STRICT)
def _stored(at, pairs, plans):
    a, b = at.rows.stop - at.rows.start, at.cols.stop - at.cols.start
    first = at.rows.start * pairs.y.indices.size + a * at.cols.start
    return plans[first : first + a * b].reshape((a, b))


@njit(**STRICT)
def store(lo, hi, gibbs, rounded, plans):
    """Write the plans to `plans`."""
    gibbs, pairs, plans = uncounted(gibbs), uncounted(gibbs.pairs), uncounted(plans)
    scratch = make_scratch(pairs, 2)
    for k in range(lo, hi):
        at = place(k, pairs)
        K, stored = pair_plan(at, gibbs, rounded, scratch), _stored(at, pairs, plans)
        for i in range(K.shape[0]):
            for j in range(K.shape[1]):
                stored[i, j] = K[i, j]


@njit(**LOOSE)
def apply_stored(lo, hi, pairs, plans, V, out):
    """Compute out[k] = <π_k, V> for stored plans."""
    pairs, plans, V, out = uncounted(pairs), uncounted(plans), uncounted(V), uncounted(out)
    for k in range(lo, hi):
        at = place(k, pairs)
        rows, cols, K = pairs.x.indices[at.rows], pairs.y.indices[at.cols], _stored(at, pairs, plans)
        total = 0.0
        for i in range(rows.size):
            line = V[rows[i] * pairs.n_y : (rows[i] + 1) * pairs.n_y]
            for j in range(cols.size):
                total += K[i, j] * line[cols[j]]
        out[k] = total


@njit(**STRICT)
def push_stored(lo, hi, pairs, plans, m, out):
    """Do the same as :func:`push` for stored plans."""
    pairs, plans, m, out = uncounted(pairs), uncounted(plans), uncounted(m), uncounted(out)
    for k in range(lo, hi):
        if m[k] != 0.0:
            at = place(k, pairs)
            rows, cols = pairs.x.indices[at.rows], pairs.y.indices[at.cols]
            _spread(rows, cols, pairs.n_y, m[k], _stored(at, pairs, plans), out)


# --- potentials ---------------------------------------------------------------------------------------------------


@njit(**STRICT)
def half_step(lo, hi, gibbs, columns, out):
    """Write softmin (W - G) to `out` (like F), or, with `columns`, softmin (W - F) (like G)."""
    pairs = gibbs.pairs
    matrix = make_scratch(pairs, 1).matrices[0]
    for k in range(lo, hi):
        at = place(k, pairs)
        pair = pair_at(at, pairs, gibbs.F, gibbs.G)
        if columns:
            C = _transposed_costs(at, pairs, gibbs.W, matrix)
            target, weight, other = out[at.g], pair.log_p, pair.f
        else:
            C = costs(at, pairs, gibbs.W, matrix)
            target, weight, other = out[at.f], pair.log_q, pair.g
        terms = np.empty(other.size)
        for i in range(target.size):
            target[i] = soft_row(C[i], weight, other, gibbs.beta, terms)


@njit(**STRICT)
def means(lo, hi, pairs, columns, potential, out):
    """Compute out[k] = <p, f> for potentials like F, or, with `columns`, <q, g> for potentials like G."""
    pairs, potential, out = uncounted(pairs), uncounted(potential), uncounted(out)
    for k in range(lo, hi):
        at, total = place(k, pairs), 0.0
        weight = pairs.y.probabilities[at.cols] if columns else pairs.x.probabilities[at.rows]
        values = potential[at.g if columns else at.f]
        for i in range(weight.size):
            total += weight[i] * values[i]
        out[k] = total


@njit(inline="always", **STRICT)
def _own_potentials(at, dual, scratch):
    """Return potentials f (a,) and g (b,) of a pair on its successors, by two transforms of its g in G."""
    pairs, U, epsilon = dual.pairs, dual.U, dual.epsilon
    f, g, C = np.empty(at.rows.stop - at.rows.start), dual.G[at.g].copy(), costs(at, pairs, U, scratch)
    if epsilon == 0.0:
        c_transform(C, g, f)
        c_transform_back(C, f, g)
        return f, g
    log_p, log_q = pairs.log_p[at.rows], pairs.log_q[at.cols]
    terms_p, terms_q = np.empty(f.size), np.empty(g.size)
    for i in range(f.size):
        f[i] = soft_row(C[i], log_q, g, 1 / epsilon, terms_q)
    T = _transposed_costs(at, pairs, U, scratch)
    for j in range(g.size):
        g[j] = soft_row(T[j], log_p, f, 1 / epsilon, terms_p)
    return f, g


@njit(**STRICT)
def dual_bounds(lo, hi, dual, out):
    """Write lower bounds on the transport of every pair for the table U; return the largest potential."""
    pairs, dual, out = uncounted(dual.pairs), uncounted(dual), uncounted(out)
    scratch, largest = make_scratch(pairs, 1).matrices[0], 0.0
    for k in range(lo, hi):
        at, value = place(k, pairs), 0.0
        p, q = pairs.x.probabilities[at.rows], pairs.y.probabilities[at.cols]
        f, g = _own_potentials(at, dual, scratch)
        for i in range(p.size):
            value += p[i] * f[i]
            largest = max(largest, abs(f[i]))
        for j in range(q.size):
            value += q[j] * g[j]
            largest = max(largest, abs(g[j]))
        out[k] = value
    return largest


@njit(**STRICT)
def _soft_transform_at(W, at, stride, others, log_q, g, epsilon):
    """Return the soft version of :func:`c_transform_at`."""
    line = np.empty(others.size)
    for j in range(others.size):
        line[j] = W[at + others[j] * stride]
    return soft_row(line, log_q, g, 1 / epsilon, np.empty(others.size))


@njit(**STRICT)
def potentials(k, dual, scratch, f, g):
    """Write the potentials of pair k at all states, f (n_X,) and g (n_Y,), by transforms off the successors."""
    pairs, U, epsilon = dual.pairs, dual.U, dual.epsilon
    at, n_y = place(k, pairs), pairs.n_y
    rows, cols = pairs.x.indices[at.rows], pairs.y.indices[at.cols]
    log_p, log_q = pairs.log_p[at.rows], pairs.log_q[at.cols]
    own_f, own_g = _own_potentials(at, dual, scratch)
    for x in range(f.size):
        if epsilon > 0.0:
            f[x] = _soft_transform_at(U, x * n_y, 1, cols, log_q, own_g, epsilon)
        else:
            f[x] = c_transform_at(U, x * n_y, 1, cols, own_g)
    for y in range(g.size):
        if epsilon > 0.0:
            g[y] = _soft_transform_at(U, y, n_y, rows, log_p, own_f, epsilon)
        else:
            g[y] = c_transform_at(U, y, n_y, rows, own_f)


@njit(**STRICT)
def _add(weight, values, out):
    for j in range(out.size):
        out[j] += weight * values[j]


@njit(**STRICT)
def sum_potentials(lo, hi, dual, m, sums):
    """sums[0][x] += m(x,y) f_xy and sums[1][y] += m(x,y) g_xy, dense; each piece needs its own tables."""
    dual, (by_x, by_y) = uncounted(dual), sums
    scratch, f, g = make_scratch(dual.pairs, 1).matrices[0], np.empty(by_x.shape[1]), np.empty(by_y.shape[1])
    for k in range(lo, hi):
        if m[k] > 0.0:
            at = place(k, dual.pairs)
            potentials(k, dual, scratch, f, g)
            _add(m[k], f, by_x[at.x])
            _add(m[k], g, by_y[at.y])


@njit(**STRICT)
def sum_potentials_on_supports(lo, hi, dual, m, sums):
    """The same on the successors only, aligned with their arrays."""
    dual, (by_x, by_y) = uncounted(dual), sums
    scratch = make_scratch(dual.pairs, 1).matrices[0]
    for k in range(lo, hi):
        if m[k] > 0.0:
            at = place(k, dual.pairs)
            f, g = _own_potentials(at, dual, scratch)
            _add(m[k], f, by_x[at.rows])
            _add(m[k], g, by_y[at.cols])


# --- one kernel for a block of pairs ------------------------------------------------------------------------------
#
# For plans.py, if every transition is possible. prob (rows, n) is the kernel of a chain. Pair k = first + r uses row
# k // m_Y of X or, with `columns`, row k % m_Y of Y. scaling, weighted = prob · scaling, and sums are (pairs, n).


class Block(NamedTuple):
    """A block of pairs, and one of its two sides."""

    first: int
    m_y: int
    columns: bool
    prob: Any  # (rows, n)


@njit(inline="always", **STRICT)
def _law(block, r):
    k = block.first + r
    return block.prob[k % block.m_y if block.columns else k // block.m_y]


@njit(**LOOSE)
def relax_block(block, scaling, sums, weighted, omega, error):
    """Apply a half-step and write its previous error; `sums` is the kernel times the other side's weighted scalings."""
    for r in range(scaling.shape[0]):
        p, total = _law(block, r), 0.0
        for j in range(p.size):
            have = scaling[r, j] * sums[r, j]
            total += p[j] * abs(have - 1.0)
            scaling[r, j] *= relaxed(1.0 / have, omega[r])
            weighted[r, j] = p[j] * scaling[r, j]
        error[r] = total


@njit(**STRICT)
def review_relaxation(done, omega, error, before):
    """Apply :func:`relaxation` to every pair; after a review, `before` becomes the current error."""
    for r in range(omega.size):
        omega[r] = relaxation(done, omega[r], error[r], before[r])
        if done % EVERY == 0:
            before[r] = error[r]


@njit(**STRICT)
def weigh_block(block, logs, out):
    """Compute out = prob · exp(logs)."""
    for r in range(logs.shape[0]):
        p = _law(block, r)
        for j in range(p.size):
            out[r, j] = p[j] * exp(logs[r, j])


@njit(**LOOSE)
def shrink_block(block, weighted, sums):
    """Scale down entries that are too heavy: weighted *= min(1, prob / (weighted · sums))."""
    for r in range(weighted.shape[0]):
        p = _law(block, r)
        for j in range(p.size):
            have = weighted[r, j] * sums[r, j]
            if have > p[j]:
                weighted[r, j] *= p[j] / have


@njit(**LOOSE)
def missing_in_block(block, weighted, sums, out):
    """Write the missing mass prob - weighted · sums (rows: normalized) to `out`; return the largest total."""
    largest = 0.0
    for r in range(weighted.shape[0]):
        p, total = _law(block, r), 0.0
        for j in range(p.size):
            missing = p[j] - weighted[r, j] * sums[r, j]
            out[r, j] = missing if missing > LAST_DIGITS * p[j] else 0.0
            total += out[r, j]
        largest = max(largest, total)
        if not block.columns and total > 1e-300:
            for j in range(p.size):
                out[r, j] /= total
    return largest
