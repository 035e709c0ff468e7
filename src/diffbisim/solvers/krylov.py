"""Linear systems (I - γ Π) u = b with stochastic Π, or its transpose: policy evaluation and occupancies.

Plain sweeps u ← b + γ Π u contract by γ and need hundreds of passes at γ = 0.95. BiCGStab (van der Vorst 1992) needs
about ten for chains that mix. Its residual is always checked, and its result is only a better table for the next
certified sweep. Vector updates are fused, because memory traffic dominates on large grids. Inner products do not use
BLAS, because its threads keep spinning after each call and slow ours down.

The iteration is written once and runs in two ways: in Python, with a function (v, out) that may use threads, or
compiled as a whole, with a tuple of arrays, if Python's overhead would dominate. A module with such tuples defines
their product with ``@overload(product)``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from diffbisim._compile import njit
from diffbisim.common.arrays import Array

Operator = Callable[[Array, Array], None]  # (v, out): out = (I - γ Π) v
Compiled = tuple[Any, ...]  # a NamedTuple that compiled code can multiply with


def product(system: Operator | Compiled, v: Array, out: Array) -> None:
    """Compute ``out = (I - γ Π) v``."""
    if isinstance(system, tuple):
        _compiled_product(system, v, out)
    else:
        system(v, out)


@njit(cache=True, nogil=True)
def _compiled_product(system, v, out):  # type: ignore[no-untyped-def]
    product(system, v, out)


def sweep(system: Operator | Compiled, source: Array, u: Array, times: int) -> None:
    """Apply u ← source + γ Π u the given number of times."""
    change = np.empty_like(u)
    for _ in range(times):
        product(system, u, change)
        u += source
        u -= change


def bicgstab(system: Operator | Compiled, b: Array, u: Array, target: float, max_iterations: int) -> float:
    """Improve `u` in place until the largest entry of b - (I - γ Π) u is below `target`; return that entry.

    The shadow vector is the first residual; after a breakdown the method restarts from the current u. It needs five
    vectors of memory. Returns infinity if the iteration diverges until numbers overflow; u is then of no use.
    """
    iterate = _compiled if isinstance(system, tuple) else _iterate
    worst = float(iterate(system, b, u, float(target), max_iterations))
    return worst if np.isfinite(worst) else np.inf


def _iterate(system: Any, b: Array, u: Array, target: float, max_iterations: int) -> Any:
    r, q, t = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    worst = _residual(system, b, u, r)
    shadow, p = r.copy(), r.copy()
    rho = _dot(shadow, r)
    for _ in range(max_iterations):
        if not np.isfinite(worst):
            break
        if worst <= target:
            worst = _residual(system, b, u, r)  # the recurrence drifts, so recompute the residual
            if worst <= 2 * target:
                return worst
        product(system, p, q)
        alpha = _ratio(rho, _dot(shadow, q))
        _half_step(alpha, p, q, u, r)
        product(system, r, t)
        tr, tt = _two_dots(t, r)
        omega, old = _ratio(tr, tt), rho
        rho, worst = _full_step(omega, t, shadow, u, r)
        beta = _ratio(rho, old) * _ratio(alpha, omega)
        if beta == 0.0:
            worst = _residual(system, b, u, r)
            shadow[:], p[:] = r, r
            rho = _dot(shadow, r)
        else:
            _turn(beta, omega, q, r, p)
    return _residual(system, b, u, r)


@register_jitable
def _residual(system: Any, b: Array, u: Array, out: Array) -> Any:
    product(system, u, out)
    np.subtract(b, out, out)
    return max(out.max(), -out.min())


@register_jitable
def _ratio(a: float, b: float) -> float:
    """Return a / b, or 0 if that is not a finite number."""
    value = a / b if b != 0.0 else 0.0
    return value if np.isfinite(value) else 0.0


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dot(u: Array, v: Array) -> float:
    """Return <u, v>; sums may be reordered, which allows LLVM to vectorize them."""
    total = 0.0
    for k in range(u.size):
        total += u[k] * v[k]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _two_dots(t: Array, r: Array) -> tuple[float, float]:
    """Return <t, r> and <t, t>."""
    first, second = 0.0, 0.0
    for k in range(t.size):
        first += t[k] * r[k]
        second += t[k] * t[k]
    return first, second


@njit(cache=True, nogil=True)
def _half_step(alpha: float, p: Array, q: Array, u: Array, r: Array) -> None:
    """u += α p, r -= α q."""
    for k in range(u.size):
        u[k] += alpha * p[k]
        r[k] -= alpha * q[k]


@njit(cache=True, nogil=True)
def _full_step(omega: float, t: Array, shadow: Array, u: Array, r: Array) -> tuple[float, float]:
    """Apply the stabilizing step to u and r; return <shadow, r> and the largest |r|."""
    dot, worst = 0.0, 0.0
    for k in range(u.size):
        u[k] += omega * r[k]
        r[k] -= omega * t[k]
        dot += shadow[k] * r[k]
        worst = max(worst, abs(r[k]))
    return dot, worst


@njit(cache=True, nogil=True)
def _turn(beta: float, omega: float, q: Array, r: Array, p: Array) -> None:
    """p = r + β (p - ω q)."""
    for k in range(p.size):
        p[k] = r[k] + beta * (p[k] - omega * q[k])


_compiled = njit(cache=True, nogil=True)(_iterate)
