"""Linear systems (I - γ Π) u = b with Π stochastic (or its transpose): policy evaluation and occupancies.

Plain sweeps u ← b + γ Π u contract by γ, hundreds of passes at γ = 0.95. BiCGStab needs about ten on chains that mix;
its residual is checked, never trusted: whatever it returns is only a better table for the next certified sweep.
"""

from collections.abc import Callable

import numpy as np

from diffbisim.problem import Array

Operator = Callable[[Array, Array], Array]  # (v, out) -> out = Π v


def bicgstab(
    plans: Operator, discount: float, residual: Operator, u: Array, work: Array, target: float, max_iterations: int
) -> float:
    """Improve ``u`` in place until its largest residual is below ``target``; returns the residual reached.

    ``plans(v, out)`` is Π v, ``residual(u, out)`` is b - (I - γ Π) u, ``work`` is scratch. Van der Vorst's method with
    the first residual as shadow vector; on a breakdown it restarts where it is. Memory: five vectors.
    """

    def system(v: Array, out: Array) -> Array:
        plans(v, out)
        out *= -discount
        out += v
        return out

    r, q, t = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    residual(u, r)
    shadow, p = r.copy(), r.copy()
    rho = float(shadow @ r)
    for _ in range(max_iterations):
        if _largest(r) <= target and _largest(residual(u, r)) <= 2 * target:  # the recurrence drifts: look again
            return _largest(r) / 2
        system(p, q)
        alpha = _ratio(rho, float(shadow @ q))
        r -= np.multiply(q, alpha, out=work)
        u += np.multiply(p, alpha, out=work)
        system(r, t)
        omega = _ratio(float(t @ r), float(t @ t))
        u += np.multiply(r, omega, out=work)
        r -= np.multiply(t, omega, out=work)
        old, rho = rho, float(shadow @ r)
        beta = _ratio(rho, old) * _ratio(alpha, omega)
        if beta == 0.0:
            residual(u, r)
            shadow[:], p[:] = r, r
            rho = float(shadow @ r)
            continue
        p -= np.multiply(q, omega, out=work)
        p *= beta
        p += r
    return _largest(residual(u, r))


def _largest(r: Array) -> float:
    return max(float(r.max()), -float(r.min()))


def _ratio(a: float, b: float) -> float:
    """a / b, and 0 where that says nothing."""
    value = a / b if b != 0.0 else 0.0
    return value if np.isfinite(value) else 0.0
