"""Newton's method where Sinkhorn is too slow: high accuracy at low temperature (numba).

With f eliminated by an exact half-step, the dual of one pair is concave in g alone,

    φ(g) = <p, softmin(C - g)> + <q, g>,     ∇φ = q - t,     ∇²φ = -β (diag(t) - Kᵀ diag(1/p) K),

where K is the plan and t its column sums. Sinkhorn is the fixed step g += log(q/t)/β; when mass hardly moves between
two groups of states (a nearly degenerate transport) its rate is one minus that mass. Newton does not mind: the matrix,
made symmetric as I - N with N = t^{-1/2} Kᵀ p^{-1} K t^{-1/2}, is a graph Laplacian, singular only in the constants
that g cannot see. Steps are limited to REACH in the exponent, or twice the last step, and shortened until φ does not
fall.

Cost of a step: a b² + b³/3 for (a, b) successors, about as much as b/2 iterations of Sinkhorn.
"""

import numpy as np

from diffbisim._compile import njit
from diffbisim.solvers.sinkhorn_kernels import absorb, exact, gather, locate, longest, loose, put, scratch

REACH, RIDGE, STEPS = 4.0, 1e-14, 60


@njit(**loose)
def _hessian(K, p, root, H):
    """Lower triangle of I - N + RIDGE, root = sqrt(t)."""
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


@njit(**loose)
def _cholesky_solve(H, v):
    """v = H⁻¹ v with the lower triangle of H, which is used up; pivots are kept positive."""
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


@njit(**exact)
def _look(C, p, log_p, q, log_q, f, g, beta, K, t):
    """Plan, column sums and error for g; f is made from it. Returns φ and the error."""
    absorb(C, p, log_p, q, log_q, f, g, beta, K)
    put(0.0, t)
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


@njit(**exact)
def _direction(K, p, q, t, H, v):
    """v = Newton's step for β g, without its mean, which does nothing; returns its length. Uses up t."""
    for j in range(q.size):
        t[j] = np.sqrt(t[j])
        v[j] = (q[j] - t[j] * t[j]) / t[j]
    _hessian(K, p, t, H)
    _cholesky_solve(H, v)
    mean, size = 0.0, 0.0
    for j in range(q.size):
        v[j] /= t[j]
        mean += q[j] * v[j]
    for j in range(q.size):
        v[j] -= mean
        size = max(size, abs(v[j]))
    return size


@njit(**exact)
def _newton_one(C, p, log_p, q, log_q, f, g, beta, target, K, H, t, v, old):
    """Newton on one pair; returns the error that is left. φ never falls by more than its rounding."""
    reach, best, idle, size, length, before = REACH, np.inf, 0, 0.0, 0.0, -np.inf
    for step in range(STEPS + 1):
        value, error = _look(C, p, log_p, q, log_q, f, g, beta, K, t)
        if step == STEPS:
            break
        noise = 1e-15 * (abs(value) + 1 / beta)
        if value >= before - noise:
            reach = max(REACH, 2 * length * size)  # where φ is straight, ever longer steps
            idle = 0 if error < 0.9 * best or value > before + 10 * noise else idle + 1
            best = min(best, error)
            if error <= target or idle == 3:
                break
            before, size = value, _direction(K, p, q, t, H, v)
            length = min(1.0, reach / size)
            for j in range(q.size):
                old[j] = g[j]
        elif length * size > 1e-12:
            length *= 0.25
        else:  # no way up, or not a number: back to where it was, and no further
            length, before, idle = 0.0, -np.inf, 2
        for j in range(q.size):
            g[j] = old[j] + length * v[j] / beta if length > 0.0 else old[j]
    return error


@njit(**exact)
def newton(lo, hi, xs, ys, n_y, W, beta, F, G, target, error):
    """Newton on every pair whose columns are wrong by more than ``target``; returns how many there were."""
    work = scratch(xs, ys, 2)
    b = longest(ys)
    H, t, v, old = np.empty((b, b)), np.empty(b), np.empty(b), np.empty(b)
    count = 0
    for k in range(lo, hi):
        if error[k] > target:
            _, _, px, py, pf, pg = locate(k, xs, ys)
            p, q = xs[2][px], ys[2][py]
            n = q.size
            C = gather(W, n_y, xs[1][px], ys[1][py], work[0])
            K = work[1][: C.size].reshape(C.shape)
            error[k] = _newton_one(
                C, p, xs[3][px], q, ys[3][py], F[pf], G[pg], beta, target, K, H[:n, :n], t[:n], v[:n], old[:n]
            )
            count += 1
    return count
