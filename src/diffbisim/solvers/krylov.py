"""Linear systems (I - γ Π) u = b with Π stochastic (or the transpose): policy evaluation and occupancies.

Plain sweeps u ← b + γ Π u contract by γ, hundreds of passes at γ = 0.95. BiCGStab (van der Vorst 1992) needs about ten
on chains that mix; its residual is checked, never trusted: whatever it returns is only a better table for the next
certified sweep. The vector updates are fused, because on large grids memory traffic is what costs, and inner products
are our own, because a BLAS keeps its threads spinning after each one, in the way of ours.

The iteration is written once and runs in two ways: as Python around a function (v, out), which may share its work
among threads, and compiled as a whole around the arrays of a small grid, where Python itself would be what costs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable

from diffbisim._compile import njit
from diffbisim.problem import Array
from diffbisim.solvers import kernels

Operator = Callable[[Array, Array], None]  # (v, out): out = (I - γ Π) v
Compiled = tuple[Any, ...]  # the same as arguments of kernels.system, but the last two


def apply(system: Operator | Compiled, v: Array, out: Array) -> None:
    """``out = (I - γ Π) v``."""
    if isinstance(system, tuple):
        kernels.system(*system, v, out)
    else:
        system(v, out)


@overload(apply)
def _apply_compiled(system, v, out):  # type: ignore[no-untyped-def]
    return lambda system, v, out: kernels.system(*system, v, out)


def bicgstab(system: Operator | Compiled, b: Array, u: Array, target: float, max_iterations: int) -> float:
    """Improve ``u`` in place until the largest entry of b - (I - γ Π) u is below ``target``; returns that entry.

    The shadow vector is the first residual; on a breakdown the method restarts where it is. Memory: five vectors.
    """
    iterate = _compiled if isinstance(system, tuple) else _iterate
    return float(iterate(system, b, u, float(target), max_iterations))


def _iterate(system: Any, b: Array, u: Array, target: float, max_iterations: int) -> Any:
    r, q, t = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    worst = _residual(system, b, u, r)
    shadow, p = r.copy(), r.copy()
    rho = kernels.dot(shadow, r)
    for _ in range(max_iterations):
        if worst <= target:
            worst = _residual(system, b, u, r)  # the recurrence drifts: look again
            if worst <= 2 * target:
                return worst
        apply(system, p, q)
        alpha = _ratio(rho, kernels.dot(shadow, q))
        kernels.half_step(alpha, p, q, u, r)
        apply(system, r, t)
        tr, tt = kernels.two_dots(t, r)
        omega, old = _ratio(tr, tt), rho
        rho, worst = kernels.full_step(omega, t, shadow, u, r)
        beta = _ratio(rho, old) * _ratio(alpha, omega)
        if beta == 0.0:
            worst = _residual(system, b, u, r)
            shadow[:], p[:] = r, r
            rho = kernels.dot(shadow, r)
        else:
            kernels.direction(beta, omega, q, r, p)
    return _residual(system, b, u, r)


@register_jitable
def _residual(system: Any, b: Array, u: Array, out: Array) -> Any:
    apply(system, u, out)
    np.subtract(b, out, out)
    return max(out.max(), -out.min())


@register_jitable
def _ratio(a: float, b: float) -> float:
    """a / b, and 0 where that says nothing."""
    value = a / b if b != 0.0 else 0.0
    return value if np.isfinite(value) else 0.0


_compiled = njit(cache=True, nogil=True)(_iterate)
