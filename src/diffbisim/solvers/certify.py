"""True bounds from whatever a solver has: any plans give an upper bound, any potentials a lower one.

Let T be the Bellman operator in units of U = (1-γ)V,

    (TW)(x,y) = (1-γ) c(x,y) + γ OT_W(P_X(·|x), P_Y(·|y)).

It is monotone, and TW shifts by γk when W shifts by k; hence for *any* table W (MacQueen 1966)

    TW + γ/(1-γ) min(TW - W)  ≤  U  ≤  TW + γ/(1-γ) max(TW - W).

The transport need not be solved for this. A plan with the right marginals costs at least OT_W: put its cost
for OT_W and the right inequality stays true. Potentials with f(x') + g(y') ≤ W(x',y') are worth at most OT_W:
put their value and the left one stays true. Both repairs are cheap:

    round_plans   any non-negative matrices → plans with exact marginals, moving at most twice the mass by
                  which the marginals were wrong (Altschuler, Weed, Rigollet 2017, algorithm 2, lemma 7)
    conjugate     any f → g(y') = min_x' W(x',y') - f(x'), then f likewise: feasible, never worth less

*From transports to the distance.* Let T_l U ≤ TU ≤ T_u U be what potentials and plans give for a table U. MacQueen's
bounds take the worst pair: d ≥ OT_U(ν_X, ν_Y) + min(T_l U - U)/(1-γ). But a coupling cannot stay at the
worst pair, since its two marginals are given. *Separable corrections*: if a(x) + b(y) ≤ (T_l U - U)(x,y) for all pairs,
put α = (I - γP_X)⁻¹ a and β = (I - γP_Y)⁻¹ b. Every plan of (x,y) has marginals P_X(·|x) and P_Y(·|y), so adding
α(x') + β(y') to a table adds (P_X α)(x) + (P_Y β)(y) to all transports, and h = U + α + β satisfies

    T h = T U + γ P_X α + γ P_Y β ≥ U + a + b + (α - a) + (β - b) = h,        hence h ≤ U*, and

    d ≥ OT_h(ν_X, ν_Y) = OT_U(ν_X, ν_Y) + (<ρ_X, a> + <ρ_Y, b>)/(1-γ)

with ρ the discounted occupancies. The best a, b are the potentials of a transport between ρ_X and ρ_Y; a pair of
c-transforms from the averages comes close. The upper bound is the same with U - T_u U. The argument needs monotonicity
and the marginals only, so it holds for the entropic operator too.

*Edge form.* Write e = (x → x') for the transitions of X, sorted by x, and k = (y → y') for those of Y. One
matrix ``A[e, k]``, shape (E_X, E_Y), holds the plans of *all* pairs: the plan of (x,y) is its block of rows
that leave x and columns that leave y. Tables over (x',y') enter as ``W[target_X][:, target_Y]``, sums and
minima over blocks are ``reduceat``, and a coupling of the starts is the case of one source on each side.
For chains too large for an (E_X, E_Y) array take a few sources of X at a time (:meth:`Edges.part`).

*Rounding.* With ε = 2^-52, k_X and k_Y the longest rows and M the largest number that enters, an entry of TW
carries a rounding error below (k_X + k_Y + 8) ε M (sums by rows, then by columns; marginals included). The
bounds are widened by four times that, over 1-γ because the shift multiplies it. M has to bound U itself wherever a plan
*should* lead, not only where it does: a successor of probability 1e-16 can get lost in the rounding of its plan, and
what it leads to may be the only costs there are. For plans that do not cover all pairs see linear_program.py.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffbisim.chain import MarkovChain

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

EPSILON = float(np.finfo(np.float64).eps)

#: Accuracy of the occupancies (stochastic.py), generously; over 1-γ, as for sparse chains.
OCCUPANCY = 1e-12


@dataclass(frozen=True, eq=False)
class Edges:
    """The positive entries of a kernel, or of one distribution, sorted by the state they leave."""

    starts: Index  # (n,) first edge of each source
    source: Index  # (E,)
    target: Index  # (E,)
    probability: Array  # (E,)

    @classmethod
    def of_kernel(cls, chain: MarkovChain) -> "Edges":
        """The transitions of a chain."""
        s = chain.successors
        return cls(s.indptr[:-1], s.sources, s.indices, s.probabilities)

    @classmethod
    def of_distribution(cls, p: Array) -> "Edges":
        """The support of a distribution, as edges that leave one source."""
        support = np.flatnonzero(p > 0)
        return cls(np.zeros(1, dtype=np.int64), np.zeros_like(support), support, p[support])

    def part(self, first: int, last: int) -> "Edges":
        """The edges of sources ``first`` to ``last - 1``, renumbered from zero."""
        bounds = np.append(self.starts, self.source.size)
        take = slice(bounds[first], bounds[last])
        starts, source = self.starts[first:last] - bounds[first], self.source[take] - first
        return Edges(starts, source, self.target[take], self.probability[take])

    @property
    def longest(self) -> int:
        """Most edges that leave one source."""
        return int(np.diff(self.starts, append=self.source.size).max())


def at_targets(table: Array, ex: Edges, ey: Edges) -> Array:
    """``table (n_X, n_Y)`` at the pairs that the edges lead to, shape ``(E_X, E_Y)``."""
    return table[np.ix_(ex.target, ey.target)]


def over_x(values: Array, ex: Edges, reduce: np.ufunc = np.add) -> Array:
    """Sum (or ``np.minimum``) of the rows that leave each x: ``(E_X, ·) → (n_X, ·)``."""
    return np.asarray(reduce.reduceat(values, ex.starts, axis=0))


def over_y(values: Array, ey: Edges, reduce: np.ufunc = np.add) -> Array:
    """Sum (or ``np.minimum``) of the columns that leave each y: ``(·, E_Y) → (·, n_Y)``."""
    return np.asarray(reduce.reduceat(values, ey.starts, axis=1))


def conditional(mass: Array, ex: Edges, ey: Edges) -> Array:
    """Each block divided by its sum; blocks without mass stay zero."""
    total = over_y(over_x(mass, ex), ey)
    scale = np.divide(1.0, total, out=np.zeros_like(total), where=total > np.finfo(np.float64).tiny)
    return mass * scale[ex.source][:, ey.source]


def round_plans(plans: Array, ex: Edges, ey: Edges) -> Array:
    """Non-negative blocks ``(E_X, E_Y)`` → plans with exact marginals; zero block → product.

    Scale the rows that are too heavy, then the columns, and fill what is missing by a rank-one term. Exact up to a few
    last digits of one *in all*: a successor of probability 1e-16 may be left without mass, and bounds have to allow for
    that (:func:`marginal_error`).
    """
    p, q = ex.probability[:, None], ey.probability[None, :]
    A = plans * _shrink(p, over_y(plans, ey))[:, ey.source]
    A *= _shrink(q, over_x(A, ex))[ex.source]
    lack_p, lack_q = _lack(p, over_y(A, ey)), _lack(q, over_x(A, ex))  # (E_X, n_Y), (n_X, E_Y)
    total = over_x(lack_p, ex)
    lack_p *= np.divide(1.0, total, out=np.zeros_like(total), where=total > np.finfo(np.float64).tiny)[ex.source]
    A += lack_p[:, ey.source] * lack_q[ex.source]
    return A


def _shrink(wanted: Array, have: Array) -> Array:
    """``min(wanted / have, 1)``, one where there is nothing."""
    return np.divide(wanted, have, out=np.ones_like(have), where=have > wanted)


def _lack(wanted: Array, have: Array) -> Array:
    """``max(wanted - have, 0)``; the last digit does not count, or every entry would get some mass."""
    lack = wanted - have
    lack[lack <= 4 * EPSILON * wanted] = 0.0
    return lack


def marginal_error(plans: Array, ex: Edges, ey: Edges) -> Array:
    """By how much the marginals of every block are wrong: Σ |row sums - p| + Σ |column sums - q|."""
    rows = np.abs(over_y(plans, ey) - ex.probability[:, None])  # (E_X, n_Y)
    columns = np.abs(over_x(plans, ex) - ey.probability)  # (n_X, E_Y)
    return over_x(rows, ex) + over_y(columns, ey)


def conjugate(f: Array, W: Array, ex: Edges, ey: Edges) -> tuple[Array, Array]:
    """``f (E_X, n_Y)`` → ``f (E_X, n_Y), g (n_X, E_Y)``, c-transforms of each other with f + g ≤ W.

    ``W`` is in edge form (:func:`at_targets`). Each f is centered first, so that neither grows large.
    """
    f = f - over_x(ex.probability[:, None] * f, ex)[ex.source]
    g = over_x(W - f[:, ey.source], ex, np.minimum)
    return over_y(W - g[ex.source], ey, np.minimum), g


def plan_costs(plans: Array, W: Array, ex: Edges, ey: Edges) -> Array:
    """``<Π_xy, W>`` for every pair of sources; ``W`` in edge form."""
    return over_y(over_x(plans * W, ex), ey)


def dual_values(f: Array, g: Array, ex: Edges, ey: Edges) -> Array:
    """``E_{P_X(·|x)} f_xy + E_{P_Y(·|y)} g_xy`` for every pair of sources."""
    return over_x(ex.probability[:, None] * f, ex) + over_y(ey.probability * g, ey)


def rounding(ex: Edges, ey: Edges, *tables: Array) -> float:
    """Four times the bound on the rounding error of one transport value that is made of these tables."""
    magnitude = max(float(np.abs(table).max(initial=0.0)) for table in tables)
    return 4 * (ex.longest + ey.longest + 8) * EPSILON * magnitude


def lower_table(W: Array, TW: Array, discount: float, slack: float) -> Array:
    """``U ≥`` this, given ``TW`` from potentials."""
    return TW + (discount * np.min(TW - W) - slack) / (1 - discount)


def lower_distance(lower: Array, f: Array, sx: Edges, sy: Edges) -> float:
    """``d ≥`` this, from a table with ``U ≥ lower`` and any potential ``f (k_X, 1)`` of the start of X."""
    cost = at_targets(lower, sx, sy)
    f, g = conjugate(f, cost, sx, sy)
    return float(dual_values(f, g, sx, sy)[0, 0]) - rounding(sx, sy, cost, f, g)


def separable_minimum(delta: Array, rho_x: Array, rho_y: Array, discount: float) -> float:
    """Certified <ρ_X, a> + <ρ_Y, b> with a(x) + b(y) ≤ delta(x,y): the best of three such pairs."""
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
    """``lower ≤ d ≤ upper`` from tables T_l U, T_u U and bounds ``start`` on OT_U(ν_X, ν_Y); ``slack``: rounding."""
    low = separable_minimum(lower - U, *rho, discount)
    high = -separable_minimum(U - upper, *rho, discount)
    return start[0] + (low - slack) / (1 - discount), start[1] + (high + slack) / (1 - discount)
