"""Certified bounds: feasible plans give upper bounds, feasible potentials give lower bounds.

Let T be the Bellman operator in units of U = (1-γ)V,

    (TW)(x,y) = (1-γ) c(x,y) + γ OT_W(P_X(·|x), P_Y(·|y)).

It is monotone, and TW shifts by γk when W shifts by k; hence for *any* table W (MacQueen 1966)

    TW + γ/(1-γ) min(TW - W)  ≤  U  ≤  TW + γ/(1-γ) max(TW - W).

The transports need not be solved exactly. A plan with the right marginals costs at least OT_W, so the right inequality
remains true with its cost in place of OT_W. Potentials with f(x') + g(y') ≤ W(x',y') have a value of at most OT_W, so
the left inequality remains true with their value. Both are cheap to obtain: plans are rounded to their marginals, and
potentials are replaced by c-transforms of each other (engine/certificates.hpp; for the linear program lp/program.py).

*Rounding* of TW and U is covered by a `slack` from the caller; it is divided by 1-γ, because the shift multiplies it.

All bounds of iterative solvers are computed by the engine, which also derives them with all rounding errors
(engine/certificates.hpp); this module names its results. Three computations have rounding errors of their own: the
linear program, whose tables come from another solver (lp/program.py); horizons, whose errors add up from step to step
(exact/horizon.py); and criteria without a discount, in which nothing contracts (exact/average.py, exact/total.py).
"""

from typing import NamedTuple

import numpy as np

from diffbisim import _engine
from diffbisim.problem import Array


class PlanErrors(NamedTuple):
    """What is known about the plans of a list of transports."""

    nodes: int  # N, of the largest transport
    unbalanced: float  # s: how far the masses of two rows differ from one, at most
    clipped: float  # κ: the largest mass of negative flows that were set to zero
    by_potentials: bool = False  # whether values may come from the potentials of narrow trees


class Band(NamedTuple):
    """Where the fixed point is: within half + rounding of T U + shift."""

    shift: float
    half: float
    rounding: float

    @property
    def gap(self) -> float:
        """The width of the band."""
        return 2 * self.half + 2 * self.rounding


class StartValue(NamedTuple):
    """The transport of the starts: the minimum is in [value - price - slack, value + slack]."""

    value: float
    solved: bool
    price: float  # how far the least reduced cost is below zero
    slack: float  # largest effect of rounding

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds on the minimum; the lower one is minus infinity if it was not solved."""
        return _engine.start_interval(self)


class SeparableTables(NamedTuple):
    """A table U and what plans and potentials prove about it: T_l U ≤ T U ≤ T_u U, all flat and scaled."""

    U: Array
    lower: Array
    upper: Array
    slack: float  # largest effect of rounding on lower - U and upper - U


def transport_rounding(errors: PlanErrors) -> float:
    """Return η₀, the largest effect of rounding on the value of a transport, for tables of size one."""
    return _engine.transport_rounding(errors)


def band(change: tuple[float, float, float], errors: PlanErrors, discount: float, price: float) -> Band:
    """Return the band that a sweep proves; ``change`` has the extremes of T U - U and the size of both tables."""
    return Band(*_engine.band(change, errors, discount, price))


def lower_table(W: Array, TW: Array, discount: float, slack: float) -> Array:
    """Return a lower bound on U, given TW from potentials."""
    return TW + (discount * np.min(TW - W) - slack) / (1 - discount)


def separable_minimum(delta: Array, rho_x: Array, rho_y: Array, discount: float) -> float:
    """Return a certified <ρ_X, a> + <ρ_Y, b> with a(x) + b(y) ≤ delta(x,y), the best of three such pairs."""
    return _engine.separable_minimum(np.ascontiguousarray(delta).ravel(), rho_x, rho_y, discount)


def separable_bounds(
    tables: SeparableTables, start: tuple[float, float], rho: tuple[Array, Array], discount: float, cost: Array
) -> tuple[float, float]:
    """Return lower ≤ d ≤ upper in the units of the cost, from bounds ``start`` on OT_U(ν_X, ν_Y)."""
    U, lower, upper, slack = tables
    return _engine.separable_bounds(U, lower, upper, slack, start, *rho, discount, float(cost.min()), float(cost.max()))
