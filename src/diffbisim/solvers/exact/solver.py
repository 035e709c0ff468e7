"""Policy iteration on the pair grid: the distance to a certified gap. The default solver.

The table U is the fixed point of the bicausal Bellman operator (the paper's Eq. 1, normalized)

    (T U)(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),          d = OT_U(ν_X, ν_Y)

and a coupling of the successors of every pair is a *policy* on the grid. Howard's policy iteration:

    improve    solve every transport for the current table, each from its last basis (simplex.py): gives T U, and
    check      bounds for the fixed point from Δ = T U - U:  T U + γ/(1-γ) min Δ ≤ U* ≤ T U + γ/(1-γ) max Δ
    evaluate   the table of that policy, (I - γ Π) U = (1-γ) c, as exact as the last Δ deserves (evaluation.py)

It ends after a handful of iterations, most of them with next to no pivots. The certificate is that of the last
*improve*, whatever came before, so it holds for runs that were stopped early; it includes rounding.

*Rounding.* Costs are scaled to at most one. Let u = ε/2 = 2^-53, and S the size of U and T U: at least one, and no
entry, no difference of entries and no potential of a transport that is zero at some node is larger (`extremes`).
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

   Narrow trees (transports.py) that are still optimal have their value by potentials f, g: Σ p f + Σ q g, which as a
   sum is off by 2 N u S. It is above OT by p, 3 u S and s S at most. The flows of the tree, as they were when it was
   made, are a plan for marginals that are N u + 2 κ off; its cost is that sum, and the cost of the best plan for the
   right ones differs by twice as much at most, 2 N u + 4 κ. So for these η₀ = ((4 N + 4) u + s + 4 κ) S.
4. *T U* = (1-γ) c + γ value has four more roundings (1 - γ, two products, the sum), and c = cost/scale one; subtracting
   U one more: together 5 u S at most, since those of the first term are of size (1-γ).
5. *The middle* of the band: γ/(1-γ) (max Δ + min Δ - p)/2 has five roundings of at most S/(1-γ), adding T U one.

MacQueen's bounds for the true T U, which is between T U - γ p - η₀ - … and T U + η₀ + …, then put U* within

    γ (max Δ - min Δ + p) / (2 (1-γ)) + η / (1-γ),     η = η₀ + 12 u S                         (rounding)

of the middle. The distance is OT_U(ν_X, ν_Y) for U* instead of the middle: no further from it, and step 3 once more for
the transport of the starts. Multiplying by the scale is one rounding, taken outward. Whatever comes out, d is an
average of costs: bounds never leave their range, and a transport that was not solved leaves just that range.

Cost of a sweep: Σ_xy (successors of x) × (successors of y). Memory: about 10 (a + b) + 90 bytes per pair with a, b
successors; where pairs are very many and successors few about 10 (a + b) + 20, or 6 (a + b) + 25 from 2·10⁷ pairs on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.parallel import split
from diffbisim.problem import Array, Problem, lazy
from diffbisim.results import DistanceResult, Row, check_warm
from diffbisim.solvers.base import Callback, Check, Run, finish
from diffbisim.solvers.exact.checkpoint import Checkpoint
from diffbisim.solvers.exact.coupling import PRICE, ExactCoupling, StartTransport
from diffbisim.solvers.exact.evaluation import PairChain, TreeCorrection
from diffbisim.solvers.exact.pairs import (
    add_difference,
    begin,
    exchange,
    extremes,
    first_table,
    pair_chain,
    rounding,
    settle,
)
from diffbisim.solvers.exact.transports import EPS, NO_SINGLE_PLANS

if TYPE_CHECKING:
    from diffbisim.solvers.exact import Exact

#: The smallest number: costs of its order have bounds with few digits.
SMALLEST = 5e-324

#: While the table still moves by Δ, pivots that gain less than this share of it are not worth making, nor is an
#: evaluation to less than the other; and the same for narrow trees, where both are cheap.
LOOSE, ROUGH = 0.01, 0.03
NARROW_LOOSE, NARROW_ROUGH = 0.001, 0.01


def solve(
    problem: Problem, options: "Exact", warm: DistanceResult | None = None, callback: Callback | None = None,
    values: Array | None = None,
) -> DistanceResult:  # fmt: skip
    """Policy iteration to the certified gap, from a previous result, or from a table of ``values (n_X, n_Y)`` alone."""
    file = None if options.checkpoint is None else Checkpoint(Path(options.checkpoint), problem)
    run = PolicyIteration(problem, options, warm, values, file)
    return finish(DistanceResult, run, problem, options, callback)


class Discounted(Run):
    """A run whose last sweep has put the fixed point within ``gap``/2 of the table ``U``, both scaled."""

    problem: Any
    discount: float
    start: StartTransport
    U: Array
    gap: float
    floor: float  # of the gap, by rounding

    def check(self, iteration: int) -> Check:
        """The distance for the table, and its bounds."""
        bounds = self.start.solve(self.U, self.gap / 2)
        self.accuracy = bounds.gap
        row = Row({"value": bounds.value, "lower": bounds.lower, "upper": bounds.upper, **self.work})
        floor = self.floor + PRICE / (1 - self.discount) + 4 * SMALLEST / (self.problem.scale or 1.0)
        return Check(row, bounds.gap, floor)


class PolicyIteration(Discounted):
    """One solve: the table, the trees of all transports, and the coupling of the starts.

    ``pairs (K,)`` are those that are solved, flat, or a slice for all of them. ``U (n_X*n_Y,)`` is scaled by the
    largest cost; where pairs are listed, the others keep their cost, which nothing reads.
    """

    def __init__(
        self, problem: Problem, options: "Exact", warm: DistanceResult | None = None, values: Array | None = None,
        file: Checkpoint | None = None,
    ) -> None:  # fmt: skip
        self.file = file
        if file is not None and (known := file.read()) is not None:
            warm, values = None, known
        self.problem, self.discount, self.tol = problem, problem.discount, options.tol
        if warm is not None:
            check_warm(warm, problem.shape)
        coupling = warm.coupling if warm is not None and isinstance(warm.coupling, ExactCoupling) else None
        self.transports = self.begin(options, coupling)
        self.U = first_table(problem, values if warm is None else warm.values)
        self.pairs: NDArray[np.int64] | slice = self.transports.items.listed if self.listed else slice(None)
        self.TU = np.empty(self.transports.size)
        if self.transports.narrow:
            self.transports.keep_single_plans()
            self.residual = np.empty(self.transports.size, np.float32)
        self.start = StartTransport(problem)
        self.products, self.price = 0, PRICE

    def begin(self, options: "Exact", known: Any) -> Any:
        """The transports, here (on the workers of a cluster: cluster.py)."""
        return begin(self.problem, options.reachable, options.threads, known, store=options.store)

    @lazy
    def base(self) -> Array:
        """(K,) what the costs add to the table."""
        return np.asarray((1 - self.discount) * (self.problem.cost.ravel()[self.pairs] / (self.problem.scale or 1.0)))

    def chain(self) -> PairChain:
        """The chain of pairs that the present plans make."""
        return pair_chain(self.transports, self.discount)

    @property
    def listed(self) -> bool:
        """Whether only some pairs are solved."""
        return bool(self.transports.items.listed.size)

    @property
    def work(self) -> dict[str, int]:
        """What was done so far."""
        t = self.transports
        return {"pairs": t.size, "pivots": t.pivots, "improvements": t.sweeps, "sweeps": self.products}

    def improve(self, iteration: int) -> None:
        """T U with optimal plans; U becomes the middle of the band that this certifies."""
        γ = self.discount
        solved = self.transports.solve(self.U, self.TU, self.price)
        if self.transports.narrow:
            low, high, size = self._settle_narrow()
        else:
            self.TU *= γ
            self.TU += self.base
            low, high, size = extremes(self.transports.items.listed, self.TU, self.U)
            self.U[self.pairs] = self.TU
            self.U[self.pairs] += γ / (1 - γ) * (high + low - self.price) / 2
        self.change = high - low
        self.floor = 2 * rounding(self.transports, size, γ)
        self.gap = γ * (self.change + self.price) / (1 - γ) + self.floor if solved else np.inf

    def _settle_narrow(self) -> tuple[float, float, float]:
        """The same by all threads; keeps the residual (:class:`TreeCorrection`) before U is overwritten."""
        γ, cost, scale = self.discount, self.problem.cost.ravel(), self.problem.scale or 1.0
        ends = np.array(self._by_all(settle, cost, scale, γ, self.U, self.TU))
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        shift = γ / (1 - γ) * (high + low - self.price) / 2
        self._by_all(exchange, (low + high) / 2, shift, self.U, self.TU, self.residual)
        return low, high, float(ends[:, 3].max() - 2.0 * ends[:, 2].min())

    def _by_all(self, kernel: Any, *given: Any) -> list[Any]:
        """``kernel(lo, hi, *given)`` over all pairs by all threads."""
        size, threads = self.transports.size, self.transports.threads
        return split(lambda piece, lo, hi, stop: kernel(lo, hi, *given), size, float(size), threads)

    def _correct(self, target: float) -> None:
        """The table of the plans, up to a constant, which changes nothing: U + δ for the old table U."""
        correction = TreeCorrection(self.transports, self.discount, self.TU.view(np.float32).reshape(2, -1))
        δ = correction.solve(self.residual, target)
        self._by_all(add_difference, δ, self.residual, self.U)
        self.products += correction.products

    def evaluate(self) -> None:
        """The table of the plans, as exact as the last change deserves; pivots that gain little are left out."""
        narrow = self.transports.narrow
        rough, loose = (NARROW_ROUGH, NARROW_LOOSE) if narrow else (ROUGH, LOOSE)
        target = max(rough * self.change, 0.1 * self.tol * (1 - self.discount), 4 * EPS)
        self.price = max(PRICE, loose * self.change)
        if narrow:
            self._correct(target)
        else:
            self._evaluate(target)
        if self.file is not None:
            self.file.write(self.U)

    def _evaluate(self, target: float) -> None:
        """The same where flows are stored, in double precision."""
        chain = self.chain()
        u = self.U[self.pairs]  # a view, or a copy where pairs are listed
        if not chain.relax(self.base, u, self.TU, target):
            chain.evaluate(self.base, u, target)
        if self.listed:
            self.U[self.pairs] = u
        self.products += chain.products

    def coupling(self) -> ExactCoupling:
        """What is known at the end."""
        self.transports.single = NO_SINGLE_PLANS
        return ExactCoupling(self.problem, self.transports, self.U, self.start, self.accuracy)
