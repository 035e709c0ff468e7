"""The least long-run average cost of two chains, to a certified gap.

    g*(x,y) = min limsup 1/n E Σ_{t<n} c(x_t, y_t)    over bicausal couplings from (x,y),    d = OT_{g*}(ν_X, ν_Y)

*Closed classes of pairs* (undiscounted.py). On each of them g* is constant: couplings cannot leave the class, and the
independent one connects it. With a table W, the *bias*, the optimality equation is W + g = T W, T W = c + OT_W, and for
any W

    min_C (T W - W) ≤ g*_C ≤ max_C (T W - W).

(Sum T W - W along a path: this gives the costs and a difference of W that vanishes when divided by the number of steps.
The best plans for W give the upper bound, and no coupling does better than OT_W.) Newton's steps close the gap.

*Pairs with a transient state* are left almost surely under every coupling, and g* = OT_{g*} there, with the values of
the classes as boundary: the least expected value of where the coupling ends up. The certificate is that of total.py
with zero costs: if |OT_u - u| ≤ δ k at the transient pairs, then |u - g*| ≤ δ w. Since w is separable, this adds δ
(<ν_X, w_X> + <ν_Y, w_Y>) to the bounds on d. An error of g* on the classes adds no more than itself.

*Gradient.* Let m be the long-run law of the best coupling from the start, n its expected visits to transient pairs, f^W
the potentials for the table W and f^g those for g*. Then

    ∂d/∂P_X(x'|x) = Σ_y m(x,y) f^W_xy(x') + Σ_y n(x,y) f^g_xy(x'),        ∂d/∂c = m,        ∂d/∂ν_X = f_0

for changes that preserve the possible transitions; new ones may join classes, where g* jumps. If two recurrent classes
of the best coupling tie, m is not unique, and this is one of several generalized gradients.

*Rounding.* As in solver.py, the computed T W - W is at most η = η₀ + 12 u S too small and at most η + p too large,
where S is the size of W, which starts at zero on every class; there is no division by 1 - γ. The steps of
undiscounted.py affect how tight the bounds are, not whether they hold.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from diffbisim.common.arrays import Array, frozen, lazy
from diffbisim.common.errors import InvalidArgument
from diffbisim.io.arrays import numbers
from diffbisim.problems.average import Average
from diffbisim.results.base import DistanceResult, check_warm
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.solvers.base import Callback, Check, SolverRun, finish
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import PRICE, ExactCoupling, StartTransport, enclosing, hide_others, restore_trees
from diffbisim.solvers.exact.pairs import ALL, begin_with, pair_chain, pair_items
from diffbisim.solvers.exact.transports import Items, Transports, Tree
from diffbisim.solvers.exact.undiscounted import (
    LOOSE,
    Equation,
    Integers,
    Leaving,
    Mask,
    Recurrence,
    first_bias,
    known_by,
    leaving_chain,
    pair_classes,
    scaled_cost,
    settled,
)

#: Occupancies up to this, relative, are set to zero at pairs that the plans leave for good.
LEFT = 1e-10


def solve(
    problem: Average, options: Exact, warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult:
    """Take Newton's steps to the certified gap, starting from a previous result if given."""
    run = AverageCost(problem, options, warm)
    return finish(DistanceResult, run, problem, options, callback)


class Split(NamedTuple):
    """The closed and transient pairs of a problem."""

    closed: Integers  # (K,) flat pairs of recurrent states; empty for all pairs
    class_of: Integers  # (K,) their classes
    n_classes: int
    transient: Integers  # (L,) the others
    recurrent: tuple[Mask, Mask]  # states of X and of Y

    @classmethod
    def of(cls, problem: Average, reachable: bool) -> "Split":
        """Split all pairs, or those that the starts can reach."""
        x, y = Recurrence.of(problem.x), Recurrence.of(problem.y)
        class_of = pair_classes(x, y)
        pairs = pair_items(problem, True).listed if reachable else np.arange(class_of.size)
        closed, transient = pairs[class_of[pairs] >= 0], pairs[class_of[pairs] < 0]
        classes, number = np.unique(class_of[closed], return_inverse=True)
        everything = closed.size == class_of.size
        recurrent = x.recurrent, y.recurrent
        return cls(ALL if everything else closed, number.reshape(-1), classes.size, transient, recurrent)

    def items(self, problem: Average) -> tuple[Items, Items | None]:
        """Return the transports of closed classes, and of transient pairs if there are any."""
        items = pair_items(problem, False)
        others = items._replace(listed=self.transient) if self.transient.size else None
        return items._replace(listed=self.closed), others


class AverageCost(SolverRun):
    """One solve: the bias W on closed classes, their gains, and the table g of gains over all pairs.

    `low` and `high` (classes,) are certified bounds on the gains, in units of the largest cost.
    """

    def __init__(self, problem: Average, options: Exact, warm: DistanceResult | None = None) -> None:
        self.problem = problem
        if warm is not None:
            check_warm(warm, problem.shape)
        self.split = split = Split.of(problem, options.reachable)
        self.order = np.argsort(split.class_of, kind="stable") if split.n_classes > 1 else None
        self.starts = np.searchsorted(split.class_of, np.arange(split.n_classes), sorter=self.order)
        (items, others), (trees, other_trees) = split.items(problem), _known(warm)
        cost, W = scaled_cost(problem), first_bias(warm, problem)
        cost_of_closed = cost[split.closed] if split.closed.size else cost
        self.closed = Equation(begin_with(items, options.threads, trees), cost_of_closed, W, False, problem.blur)
        self._gauge()
        self.g, self.start = np.zeros(cost.size), StartTransport(problem)
        self.transient: Equation | None = None
        if others is not None:
            self._begin_transient(begin_with(others, options.threads, other_trees), warm)

    def _begin_transient(self, transports: Transports, warm: DistanceResult | None) -> None:
        """Set up the equation of the transient pairs."""
        problem, pairs = self.problem, self.split.transient
        self.transient = Equation(transports, np.zeros(pairs.size), self.g, True, problem.blur)
        self.leaving = Leaving.of(problem, self.split.recurrent, pairs)
        if warm is not None and isinstance(warm.problem, Average):
            table = warm.values.ravel()[pairs] / (problem.scale or 1.0)
            self.g[pairs] = np.where(np.isfinite(table), table, 0.0)

    @property
    def work(self) -> dict[str, int]:
        """Counts of the work so far, for both kinds of pairs."""
        closed = self.closed.work
        return closed if self.transient is None else {k: v + self.transient.work[k] for k, v in closed.items()}

    def _by_class(self, reduce: np.ufunc, values: Array) -> Array:
        """Reduce values over every class, (classes,)."""
        if self.order is None:
            return np.array([reduce.reduce(values)])
        return np.asarray(reduce.reduceat(values[self.order], self.starts))

    def _gauge(self) -> None:
        """Shift W so that its minimum is zero on every class."""
        W = self.closed.W[self.closed.pairs]
        self.closed.W[self.closed.pairs] = W - self._by_class(np.minimum, W)[self.split.class_of]

    def improve(self, iteration: int) -> None:
        """Compute optimal plans for W and bounds on the gains, then the same for the transient pairs."""
        closed = self.closed
        closed.improve()
        self.low = self._by_class(np.minimum, closed.change) - closed.below
        self.high = self._by_class(np.maximum, closed.change) + closed.error
        self.gain = np.clip((self.low + self.high) / 2, 0.0, 1.0)
        self.half = float((self.high - self.low).max()) / 2 if closed.solved else np.inf
        self.half += self.problem.blur  # error of the initial distributions; gains are at most one
        self.extra = 0.0  # additional error at pairs other than the starts
        self.floor = 2 * closed.error + PRICE * closed.size
        self.g[closed.pairs] = self.gain[self.split.class_of]
        if self.transient is not None:
            self._improve_transient(self.transient)

    def _improve_transient(self, part: Equation) -> None:
        """Compute optimal plans and error bounds at the transient pairs."""
        self.g[part.pairs] = np.clip(self.g[part.pairs], self.gain.min(), self.gain.max())
        part.improve()
        off = np.maximum(part.change + part.error, part.below - part.change)
        fall, _, time, longest = self.leaving
        with np.errstate(all="ignore"):
            worst = float(np.where(fall > 0, off / fall, np.inf).max()) if part.solved else np.inf
        self.worst = worst
        self.half += worst * time
        self.extra = worst * max(longest - time, 0.0) if worst < np.inf else 0.0
        slowest = float(fall.min())
        self.floor += 4 * part.error * longest / slowest if slowest > 0 else np.inf

    def check(self, iteration: int) -> Check:
        """Compute the distance for the table of gains and its bounds; the gap is that of the whole table."""
        bounds = self.start.solve(self.g, self.half)
        floor = self.floor + 4 * self.start.rounding
        return Check(bounds.row(self.work), bounds.gap + 2 * self.extra, floor)

    def evaluate(self) -> None:
        """Compute the next tables."""
        change = float((self.high - self.low).max())
        price = max(PRICE * self.closed.size, LOOSE * change)
        self.closed.newton(self.gain[self.split.class_of], change, price)
        self._gauge()
        if self.transient is not None:
            change = float(np.abs(self.transient.change).max())
            self.transient.newton(0.0, change, max(PRICE, LOOSE * change))

    def table_bounds(self) -> tuple[Array, Array]:
        """Return bounds on the gains of all pairs, flat."""
        low, high = self.g.copy(), self.g.copy()
        low[self.closed.pairs], high[self.closed.pairs] = self.low[self.split.class_of], self.high[self.split.class_of]
        if not self.closed.solved:
            low[self.closed.pairs], high[self.closed.pairs] = 0.0, 1.0
        if self.transient is not None:
            half = float((self.high - self.low).max()) / 2 if self.closed.solved else np.inf
            off = half + self.worst * self.leaving.times
            low[self.transient.pairs] -= off
            high[self.transient.pairs] += off
        return low, high

    def hurry(self) -> None:
        for equation in (self.closed, self.transient):
            if equation is not None:
                equation.price = np.inf

    def coupling(self) -> "AverageCoupling":
        """Return the coupling at the end."""
        solved = SolvedClasses(self.closed.transports, None if self.transient is None else self.transient.transports)
        return AverageCoupling(self.problem, self.split, solved, self.closed.W, self.g, self.start)


def _known(warm: DistanceResult | None) -> tuple[Transports | None, Transports | None]:
    """Return the trees of a previous result, for closed classes and for transient pairs."""
    coupling = None if warm is None else warm.coupling
    if isinstance(coupling, AverageCoupling):
        return coupling.solved
    return (coupling.transports, coupling.transports) if isinstance(coupling, ExactCoupling) else (None, None)


class SolvedClasses(NamedTuple):
    """The trees of closed classes, and of transient pairs if there are any."""

    closed: Transports
    transient: Transports | None


class AverageCoupling(Coupling):
    """Plans and potentials from optimal trees: on closed classes for the bias W, elsewhere for the gains g.

    Both tables are flat and scaled by the largest cost. Potentials off the supports are known only if there is a single
    closed class and no transient pair; otherwise mass that enters there could change the classes.
    """

    problem: Average

    def __init__(
        self, problem: Average, split: Split, solved: SolvedClasses, W: Array, g: Array, start: StartTransport
    ) -> None:
        self.problem, self.split, self.solved, self.W, self.g, self._start = problem, split, solved, W, g, start
        self.everything = split.closed.size + split.transient.size in (0, problem.cost.size)
        self.complete = split.n_classes == 1 and not split.closed.size
        self._closed = ExactCoupling(problem, solved.closed, W, start, 0.0)
        self._closed.complete = self.complete
        self._transient = None
        if solved.transient is not None:
            self._transient = ExactCoupling(problem, solved.transient, g, start, 0.0)

    @classmethod
    def of_tables(cls, problem: Average, W: Array, values: Array) -> Self:
        """Return the optimal trees for given tables of bias and gains (one sweep); NaN marks unreachable pairs."""
        split = Split.of(problem, bool(np.isnan(values).any()))
        items, transient = split.items(problem)
        solved = SolvedClasses(Transports(items), None if transient is None else Transports(transient))
        scale, start = problem.scale or 1.0, StartTransport(problem)
        W, g = (np.nan_to_num(table.ravel() / scale) for table in (W, values))
        for transports, table in zip(solved, (W, g), strict=True):
            if transports is not None:
                transports.solve(table, np.empty(transports.size), PRICE * max(1.0, float(np.abs(table).max())))
        start.solve(g, 0.0)
        return cls(problem, split, solved, W, g, start)

    # --- tables ------------------------------------------------------------------------------------------------

    @lazy
    def values(self) -> Array:
        """g*, of shape (n_X, n_Y)."""
        problem = self.problem
        table = np.clip(problem.scale * np.minimum(self.g, 1.0), float(problem.cost.min()), problem.scale)
        if not self.everything:
            hide_others(table, self.split.closed, self.split.transient)
        return frozen(table.reshape(problem.shape))

    @lazy
    def table_bounds(self) -> tuple[Array, Array]:
        """Bounds from one sweep over both tables."""
        problem, options = self.problem, Exact(reachable=not self.everything, threads=self.solved.closed.threads)
        run = AverageCost(problem, options, known_by(self))
        run.improve(1)
        low, high = (problem.scale * table for table in run.table_bounds())
        return enclosing(self.values, low, high, (float(problem.cost.min()), problem.scale))

    @property
    def bias(self) -> Array:
        """The bias W in the units of the cost, (n_X, n_Y), with minimum zero on every class; NaN elsewhere."""
        table = self.problem.scale * self.W
        if self.split.closed.size:
            hide_others(table, self.split.closed)
        return table.reshape(self.problem.shape)

    @property
    def start(self) -> StartCoupling:
        return self._start.solution(self.g, self.everything)

    def _part(self, x: int, y: int) -> ExactCoupling:
        z, transient = x * self.problem.shape[1] + y, self.split.transient
        k = int(np.searchsorted(transient, z))
        inside = self._transient is not None and k < transient.size and transient[k] == z
        return self._transient if inside else self._closed  # type: ignore[return-value]

    def plan(self, x: int, y: int) -> sparse.coo_array:
        return self._part(x, y).plan(x, y)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        return self._part(x, y).potentials(x, y)

    # --- laws --------------------------------------------------------------------------------------------------

    @lazy
    def _law(self) -> tuple[Array, Array]:
        """The long-run law of the best coupling, and its expected visits to transient pairs; both (n_X*n_Y,)."""
        entered, visits = self._start.law(), np.zeros(self.g.size)
        transports, pairs = self.solved.transient, self.split.transient
        if transports is not None:
            source = np.append(entered[pairs], 0.0)
            visits[pairs] = settled(leaving_chain(transports, entered.size, 1.0), source, source)[:-1]
            trees = transports.trees
            flow = trees.flow * np.repeat(visits[pairs], np.diff(trees.at))
            entered += np.bincount(transports.targets(), weights=flow, minlength=entered.size)
            entered[pairs] = 0.0
        return self._long_run(entered), visits

    def _long_run(self, entered: Array) -> Array:
        """Return the long-run law of the plans from a law on closed classes."""
        class_of, n = self.split.class_of, self.split.n_classes
        pairs: Any = self.split.closed if self.split.closed.size else slice(None)
        first = entered[pairs]
        share = np.bincount(class_of, weights=first / first.sum(), minlength=n)

        def normalize(m: Array) -> None:
            mass = np.bincount(class_of, weights=m, minlength=n)
            m *= np.divide(share, mass, out=np.zeros(n), where=mass > 0)[class_of]

        normalize(first)
        chain = pair_chain(self.solved.closed, 1.0)
        m = settled(chain, np.zeros(first.size), first, normalize)
        graph = chain.matrix()
        graph.eliminate_zeros()
        n_parts, part = connected_components(graph, directed=True, connection="strong")
        rows = np.repeat(part, np.diff(graph.indptr))
        left = np.zeros(n_parts, bool)
        left[rows[rows != part[graph.indices]]] = True
        m[left[part] & (m <= LEFT * m.max())] = 0.0
        normalize(m)
        law = np.zeros(entered.size)
        law[pairs] = m
        return law

    def occupancy(self) -> Array:
        """Return the long-run law m: it sums to one, <m, c> = d, and it is exactly zero where plans never stay."""
        return self._law[0].reshape(self.problem.shape).copy()

    def potential_weights(self, m: Array) -> Array:
        return m + self._law[1].reshape(self.problem.shape)

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        if everywhere and not self.complete:
            raise InvalidArgument(
                "potentials off the supports need all pairs in one closed class; use irreducible, aperiodic chains and "
                "Exact(reachable=False)"
            )
        weights, (n_x, n_y) = np.array(m, dtype=np.float64).ravel(), self.problem.shape
        by_x, by_y = self.solved.closed.weighted_potentials(
            self.W,
            weights[self.split.closed] if self.split.closed.size else weights,
            ((n_x, n_x), (n_y, n_y)) if everywhere else None,
        )
        if self.solved.transient is not None:
            more = self.solved.transient.weighted_potentials(self.g, weights[self.split.transient], None)
            by_x, by_y = by_x + more[0], by_y + more[1]
        return self._by_transition(self.problem.scale * by_x, self.problem.scale * by_y, everywhere)

    # --- files -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {"W": self.W, "g": self.g, "reachable": np.array(not self.everything), **self._start.state()}
        for prefix, transports in zip(("", "transient."), self.solved, strict=True):
            if transports is not None:
                arrays |= {f"{prefix}{name}": getattr(transports.trees, name) for name in Tree._fields}
        return arrays

    @classmethod
    def restore(cls, problem: Average, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild from the arrays of :meth:`state`; the list of pairs follows from the problem."""
        numbers(arrays, "W", (problem.cost.size,), most=1e300)
        numbers(arrays, "g", (problem.cost.size,), least=0.0, most=1.0)
        split = Split.of(problem, bool(numbers(arrays, "reachable", (), np.bool_)))
        items, transient = split.items(problem)
        n_y, start = problem.shape[1], StartTransport.restore(problem, arrays)
        others = None if transient is None else restore_trees(Transports(transient), arrays, n_y, "transient.")
        solved = SolvedClasses(restore_trees(Transports(items), arrays, n_y), others)
        start.solve(arrays["g"], 0.0)
        return cls(problem, split, solved, np.array(arrays["W"]), np.array(arrays["g"]), start)
