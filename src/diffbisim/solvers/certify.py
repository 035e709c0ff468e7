"""Certified bounds: feasible plans give upper bounds, feasible potentials give lower bounds.

Let T be the Bellman operator in units of U = (1-γ)V,

    (TW)(x,y) = (1-γ) c(x,y) + γ OT_W(P_X(·|x), P_Y(·|y)).

It is monotone, and TW shifts by γk when W shifts by k; hence for *any* table W (MacQueen 1966)

    TW + γ/(1-γ) min(TW - W)  ≤  U  ≤  TW + γ/(1-γ) max(TW - W).

The transports need not be solved exactly. A plan with the right marginals costs at least OT_W, so the right inequality
remains true with its cost in place of OT_W. Potentials with f(x') + g(y') ≤ W(x',y') have a value of at most OT_W, so
the left inequality remains true with their value. Both are cheap to obtain: plans are rounded to their marginals, and
potentials are replaced by c-transforms of each other (engine/certificates.hpp; for the linear program lp/program.py).

*From transports to the distance.* Let T_l U ≤ TU ≤ T_u U be the values of potentials and plans for a table U.
MacQueen's bounds use the worst pair: d ≥ OT_U(ν_X, ν_Y) + min(T_l U - U)/(1-γ). But a coupling cannot stay at the worst
pair, because its marginals are given. *Separable corrections* use this: if a(x) + b(y) ≤ (T_l U - U)(x,y) for all
pairs, let α = (I - γP_X)⁻¹ a and β = (I - γP_Y)⁻¹ b. Every plan of (x,y) has marginals P_X(·|x) and P_Y(·|y), so adding
α(x') + β(y') to a table adds (P_X α)(x) + (P_Y β)(y) to all transports, and h = U + α + β satisfies

    T h = T U + γ P_X α + γ P_Y β ≥ U + a + b + (α - a) + (β - b) = h,        hence h ≤ U*, and

    d ≥ OT_h(ν_X, ν_Y) = OT_U(ν_X, ν_Y) + (<ρ_X, a> + <ρ_Y, b>)/(1-γ)

with the discounted occupancies ρ. The best a and b are the potentials of a transport between ρ_X and ρ_Y; a pair of
c-transforms of the averages comes close. The upper bound uses U - T_u U in the same way. The argument needs only
monotonicity and the marginals, so it also holds for the entropic operator.

*Rounding* of TW and U is covered by a `slack` from the caller; it is divided by 1-γ, because the shift multiplies it.
"""

import numpy as np

from diffbisim.common.arrays import Array

#: A generous bound on the error of the occupancies (stochastic.py); divided by 1-γ, as for sparse chains.
OCCUPANCY = 1e-12


def lower_table(W: Array, TW: Array, discount: float, slack: float) -> Array:
    """Return a lower bound on U, given TW from potentials."""
    return TW + (discount * np.min(TW - W) - slack) / (1 - discount)


def separable_minimum(delta: Array, rho_x: Array, rho_y: Array, discount: float) -> float:
    """Return a certified <ρ_X, a> + <ρ_Y, b> with a(x) + b(y) ≤ delta(x,y), the best of three such pairs."""
    best = float(delta.min())
    for turned in (False, True):
        table, p, q = (delta.T, rho_y, rho_x) if turned else (delta, rho_x, rho_y)
        b = p @ table
        a = (table - b).min(axis=1)
        b = (table - a[:, None]).min(axis=0)
        error = OCCUPANCY / (1 - discount) * (np.ptp(a) + np.ptp(b)) + 1e-15 * (np.abs(a).max() + np.abs(b).max())
        best = max(best, float(p @ a + q @ b - error))
    return best


def distance_bounds(
    U: Array, upper: Array, lower: Array, start: tuple[float, float], rho: tuple[Array, Array], discount: float,
    slack: float,
) -> tuple[float, float]:  # fmt: skip
    """Return lower ≤ d ≤ upper from tables T_l U and T_u U and bounds `start` on OT_U(ν_X, ν_Y).

    `slack` bounds the rounding error of the tables.
    """
    low = separable_minimum(lower - U, *rho, discount)
    high = -separable_minimum(U - upper, *rho, discount)
    return start[0] + (low - slack) / (1 - discount), start[1] + (high + slack) / (1 - discount)
