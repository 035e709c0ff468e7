"""Linear systems (I - γ Π) u = b with Π stochastic (or the transpose): policy evaluation and occupancies.

Plain sweeps u ← b + γ Π u contract by γ, hundreds of passes at γ = 0.95. BiCGStab (van der Vorst 1992) needs about ten
on chains that mix; its residual is checked, never trusted: whatever it returns is only a better table for the next
certified sweep. The vector updates are fused, because on large grids memory traffic is what costs, and inner products
are our own, because a BLAS keeps its threads spinning after each one, in the way of ours.
"""

from collections.abc import Callable

import numpy as np

from diffbisim.problem import Array
from diffbisim.solvers import kernels

Operator = Callable[[Array, Array], None]  # (v, out): out = (I - γ Π) v


def bicgstab(system: Operator, b: Array, u: Array, target: float, max_iterations: int) -> float:
    """Improve ``u`` in place until the largest entry of b - (I - γ Π) u is below ``target``; returns that entry.

    The shadow vector is the first residual; on a breakdown the method restarts where it is. Memory: five vectors.
    """
    r, q, t = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    worst = _residual(system, b, u, r)
    shadow, p = r.copy(), r.copy()
    rho = kernels.dot(shadow, r)
    for _ in range(max_iterations):
        if worst <= target:
            worst = _residual(system, b, u, r)  # the recurrence drifts: look again
            if worst <= 2 * target:
                return worst
        system(p, q)
        alpha = _ratio(rho, kernels.dot(shadow, q))
        kernels.half_step(alpha, p, q, u, r)
        system(r, t)
        omega = _ratio(*kernels.two_dots(t, r))
        old, (rho, worst) = rho, kernels.full_step(omega, t, shadow, u, r)
        beta = _ratio(rho, old) * _ratio(alpha, omega)
        if beta == 0.0:
            worst = _residual(system, b, u, r)
            shadow[:], p[:] = r, r
            rho = kernels.dot(shadow, r)
        else:
            kernels.direction(beta, omega, q, r, p)
    return _residual(system, b, u, r)


def _residual(system: Operator, b: Array, u: Array, out: Array) -> float:
    system(u, out)
    np.subtract(b, out, out=out)
    return max(float(out.max()), -float(out.min()))


def _ratio(a: float, b: float) -> float:
    """a / b, and 0 where that says nothing."""
    value = a / b if b != 0.0 else 0.0
    return value if np.isfinite(value) else 0.0
