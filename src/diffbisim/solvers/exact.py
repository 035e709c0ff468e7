"""Policy iteration on the pair grid: the distance to a certified gap. The default solver.

The table U is the fixed point of the bicausal Bellman operator (the paper's Eq. 1, normalized)

    (T U)(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),          d = OT_U(ν_X, ν_Y)

and a coupling of the successors of every pair is a *policy* on the grid. Howard's policy iteration:

    improve    solve every transport for the current table, each from its last basis (transport.py): gives T U, and
    check      bounds for the fixed point from Δ = T U - U:  T U + γ/(1-γ) min Δ ≤ U* ≤ T U + γ/(1-γ) max Δ
    evaluate   the table of that policy, (I - γ Π) U = (1-γ) c, by a Krylov solve as exact as the last Δ deserves

It ends after a handful of iterations, most of them with next to no pivots. The certificate is that of the last
*improve*, whatever came before, so it holds for runs that were stopped early; it includes rounding.

*Rounding.* Costs are scaled to at most one. Let u = ε/2 = 2^-53, and S the size of U and T U: at least one, and no
entry, no difference of entries and no potential of a transport that is zero at some node is larger (kernels.extremes).
All is to first order in u, and holds for any U: a table with entries of 1e18 has S = 1e18.

1. *A plan* has marginals that are slightly wrong. Its flows on a tree of N = a + b nodes take N additions of numbers up
   to one, each wrong by u at one node and at the root; flows κ in all were cut off below zero, each seen by two nodes;
   and rows that miss one by s (both together, known up to N u) are normalized in the distance that is certified. With
   potentials that vanish at the root, what is wrong there costs nothing. So its cost differs from that of the best plan
   with the right marginals by at most (2 N u + s + 2 κ) S on account of this.
2. *Its value*, Σ π C over N - 1 edges: N u S.
3. *Its optimality.* Potentials carry one rounding on an edge of the tree, the test of a reduced cost three. So

       OT - η₀ ≤ value ≤ OT + p + η₀,     η₀ = ((3 N + 4) u + s + 2 κ) S               (transport_rounding)

   where p is the price up to which reduced costs count as zero.
4. *T U* = (1-γ) c + γ value has four more roundings (1 - γ, two products, the sum), and c = cost/scale one; subtracting
   U one more: together 5 u S at most, since those of the first term are of size (1-γ).
5. *The middle* of the band: γ/(1-γ) (max Δ + min Δ - p)/2 has five roundings of at most S/(1-γ), adding T U one.

MacQueen's bounds for the true T U, which is between T U - γ p - η₀ - … and T U + η₀ + …, then put U* within

    γ (max Δ - min Δ + p) / (2 (1-γ)) + η / (1-γ),     η = η₀ + 12 u S                         (_rounding)

of the middle. The distance is OT_U(ν_X, ν_Y) for U* instead of the middle: no further from it, and step 3 once more for
the transport of the starts. Multiplying by the scale is one rounding, taken outward. Whatever comes out, d is an
average of costs: bounds never leave their range, and a transport that was not solved leaves just that range.

Cost of a sweep: Σ_xy (successors of x) × (successors of y). Memory: about 10 (a + b) + 90 bytes per pair with a, b
successors.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Array, Problem
from diffbisim.results import DistanceResult, Row, Status

if TYPE_CHECKING:
    from diffbisim.solvers.exact_coupling import ExactCoupling
    from diffbisim.solvers.krylov import Compiled, Operator
    from diffbisim.solvers.pairs import PairGrid

EPS = float(np.finfo(float).eps)

#: Reduced costs above minus this count as zero (tables are scaled to at most one).
PRICE = 1e-14

#: While the table still moves by Δ, pivots that gain less than this share of it are not worth making.
LOOSE = 0.01

Callback = Callable[[Mapping[str, float]], object]


@dataclass(frozen=True, slots=True)
class Exact:
    """Options of the exact solver.

    Attributes:
        tol: certified gap to reach, relative to the largest ground cost.
        max_iterations: improvements before it gives up (it warns, and the bounds stay true).
        time_limit: seconds after which no further iteration starts; None for no limit.
        reachable: solve only the pairs that some coupling can reach from the starts; the others are NaN.
        threads: how many to use; None for all processors, where the sweep is large enough to pay.
    """

    tol: float = 1e-8
    max_iterations: int = 200
    time_limit: float | None = None
    reachable: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        if not as_number(self.tol) > 0:
            raise InvalidArgument(f"tol is {self.tol!r}; it must be positive, e.g. tol=1e-8")
        if not as_number(self.max_iterations) >= 1:
            raise InvalidArgument(f"max_iterations is {self.max_iterations!r}; at least one iteration is needed")
        if self.threads is not None and not as_number(self.threads) >= 1:
            raise InvalidArgument(f"threads is {self.threads!r}; give a positive number, or None for all processors")

    def solve(
        self, problem: Problem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Run to the certified gap, from a previous result if given; ``callback(row of history)`` true stops."""
        from diffbisim.solvers.exact_coupling import ExactCoupling
        from diffbisim.solvers.pairs import begin

        grid, table = begin(problem, warm, self.reachable, self.threads)
        coupling = ExactCoupling(grid, table)
        outcome, history = self._iterate(grid, coupling, callback)
        last = history[-1]
        return DistanceResult(
            problem, last["value"], last["lower"], last["upper"], outcome, len(history), "exact", coupling,
            tuple(history), grid.work,
        )  # fmt: skip

    def _iterate(
        self, grid: "PairGrid", coupling: "ExactCoupling", callback: Callback | None
    ) -> tuple[Status, list[Row]]:
        γ, U, TU = grid.discount, coupling.U, np.zeros_like(coupling.U)
        history: list[Row] = []
        deadline = time.monotonic() + (np.inf if self.time_limit is None else self.time_limit)
        price, stalled, best = PRICE, 0, np.inf
        while True:
            solved = grid.improve(U, TU, price)
            low, high, size = grid.extremes(TU, U)
            grid.shifted(TU, γ / (1 - γ) * (high + low - price) / 2, U)  # the middle of the certified band
            floor = 2 * _rounding(grid, size)
            gap = γ * (high - low + price) / (1 - γ) + floor if solved else np.inf
            history.append(Row(coupling.report(gap / 2)))
            stalled, best = (0, gap) if gap < best / 2 else (stalled + 1, best)
            stop = callback is not None and callback(history[-1])
            if coupling.gap <= self.tol:
                return Status.CONVERGED, history
            if stop:
                return Status.INTERRUPTED, history
            if stalled >= 4 and gap <= 100 * (floor + PRICE / (1 - γ)):
                return Status.ROUNDING, history
            if len(history) >= self.max_iterations:
                return Status.ITERATIONS, history
            if time.monotonic() > deadline:
                return Status.TIME, history
            price = max(PRICE, LOOSE * (high - low))
            evaluate(grid, U, TU, max(0.03 * (high - low), 0.1 * self.tol * (1 - γ), 4 * EPS))


def transport_rounding(nodes: int, unbalanced: float, clipped: float) -> float:
    """η₀ for tables of size one: how far rounding may put the value of a transport off; s and κ are the masses."""
    return (1.5 * nodes + 2) * EPS + unbalanced + 2 * clipped


def _rounding(grid: "PairGrid", size: float) -> float:
    """η / (1-γ): how far rounding may put the middle of the band off; twice that is the least gap there is."""
    return (transport_rounding(grid.nodes, grid.unbalanced, grid.clipped) + 6 * EPS) * size / (1 - grid.discount)


def evaluate(grid: "PairGrid", U: Array, source: Array, target: float) -> None:
    """Bring ``U`` to the table of the current policy: residual of (I - γ Π) U = (1-γ) c below ``target``.

    BiCGStab first; where it stagnates (periodic chains, slow walks, γ near one) with a preconditioner; where that is
    too large by plain sweeps. A poor evaluation costs iterations, never correctness. ``source`` is scratch.
    """
    from diffbisim.solvers.krylov import bicgstab

    np.multiply(grid.c, 1 - grid.discount, out=source)
    system = grid.system()
    if bicgstab(system, source, U, target, max_iterations=150) <= 2 * target:
        return
    if grid.preconditioned_solve(source, U, target):
        return
    if not float(np.abs(U).max()) <= 2.0:  # it ran away: begin from the cost, at most one, which bounds the table
        np.copyto(U, grid.c)
    sweep(system, source, U, 100)


def sweep(system: "Operator | Compiled", source: Array, u: Array, times: int) -> None:
    """u ← source + γ Π u, so many times."""
    from diffbisim.solvers.krylov import apply

    change = np.empty_like(u)
    for _ in range(times):
        apply(system, u, change)
        u += source
        u -= change
