"""Lump first: merge equivalent states of each chain, solve for the quotients, and lift the result.

States x, x' of X with equal cost rows c(x,·) = c(x',·) and equal probabilities into every class have U(x,·) = U(x',·),
because both sides of the Bellman equation depend only on the classes. So the quotient chains X/~ and Y/~ have the same
distance, and U(x,y) = U([x],[y]). Plans, occupancies and gradients of the full problem come from one sweep over the
lifted table when they are requested, with exact transports, or entropic ones for the entropic metric.

In floating point the classes agree up to a residual δ (total variation, see lumping.py). This moves U by at most
γ/(1-γ) δ max c, which is added to the bounds. It counts twice, because the rows of the quotient are then divided by
their sums; the rounding errors of those sums and of the initial distributions are added.

Average and total cost also depend only on the classes, but which states are recurrent must not depend on a probability
that the tolerance treats as zero. The quotient must therefore have the same possible transitions as the chain
(otherwise only exactly equal rows are merged), and δ is a *blur* of the rows that the solver adds to its rounding. For
a finite horizon T the same holds at every time, for time-homogeneous chains, and the residual moves V_t by at most (T -
t) δ times the largest distance (:func:`over_steps`).

If the quotients were solved only on their reachable pairs, the lifted table contains NaN, and plans and potentials
exist only for the reachable pairs of the full problem, as for ``Exact(reachable=True)``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.arrays import Array, frozen, lazy
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.io.arrays import numbers
from diffbisim.problems import Average, Discounted, FiniteHorizon, Problem, Total
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.lumping import Lumping, lump
from diffbisim.results.base import DistanceResult, HistoryRow, Status
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.solvers.base import Arrays, Callback

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True)
class Lumped:
    """Lump both chains, solve for the quotients, and lift the result.

    Parameters
    ----------
    solver : solver
        The solver for the quotients.
    """

    solver: Any

    name: ClassVar[str] = "lumped"
    samples: ClassVar[bool] = False
    tracks: ClassVar[bool] = False
    tol: ClassVar[None] = None  # that of the inner solver applies
    threads: ClassVar[int] = 1
    solves: ClassVar[tuple[type[Problem], ...]] = (Discounted, Average, Total, FiniteHorizon)

    def solve(
        self, problem: Any, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Solve for the distance by way of the quotients."""
        if warm is not None:
            raise InvalidArgument(
                "warm and lump cannot be combined, because the quotient has other states; leave one out"
            )
        if isinstance(problem, FiniteHorizon):
            return over_steps(problem, self.solver, callback)
        if isinstance(problem, (Average, Total)):
            return self._undiscounted(problem, callback)
        by_x, by_y = lump(problem.x, key=_equal_rows(problem.cost)), lump(problem.y, key=_equal_rows(problem.cost.T))
        quotient = replace(problem, x=by_x.chain, y=by_y.chain, cost=_of_classes(problem.cost, by_x, by_y))
        γ = problem.discount
        shift = _moved(problem, by_x, by_y) / (1 - γ) * problem.scale
        least = float(problem.cost.min())

        def widened(row: Mapping[str, float]) -> HistoryRow:
            return HistoryRow(
                row, lower=max(row["lower"] - shift, least), upper=min(row["upper"] + shift, problem.scale)
            )

        solver, tol = self.solver, self.solver.tol
        if tol is not None and problem.scale > 0:  # leave room in the tolerance for the shift
            solver = replace(solver, tol=max(tol - 2.01 * shift / problem.scale, tol / 2))
        watch = None if callback is None else (lambda row: callback(widened(row)))
        result: DistanceResult = solver.solve(quotient, callback=watch)
        last, outcome = widened({"lower": result.lower, "upper": result.upper}), result.outcome
        if result.converged and tol is not None and last["upper"] - last["lower"] > tol * problem.scale:
            outcome = Status.ROUNDING
        return replace(
            result, problem=problem, outcome=outcome, solver=f"{result.solver} of quotients", **last,
            coupling=LumpedCoupling(problem, result.coupling.values, result.coupling.epsilon, by_x, by_y),
            history=tuple(map(widened, result.history)),
        )  # fmt: skip

    def _undiscounted(self, problem: Average | Total, callback: Any) -> DistanceResult:
        """Solve average and total cost problems."""
        seen, changes = problem.cost, dict[str, Any]()
        if isinstance(problem, Total):
            seen = np.where(problem.terminal, -1.0, seen)
        by_x, by_y = _lump_supports(problem.x, seen), _lump_supports(problem.y, seen.T)
        if isinstance(problem, Total):
            changes["terminal"] = _of_classes(problem.terminal, by_x, by_y)
        changes |= {"cost": _of_classes(problem.cost, by_x, by_y), "blur": _moved(problem, by_x, by_y)}
        quotient = replace(problem, x=by_x.chain, y=by_y.chain, **changes)
        result: DistanceResult = self.solver.solve(quotient, callback=callback)
        bias = getattr(result.coupling, "bias", None)
        coupling = LumpedCoupling(problem, result.coupling.values, 0.0, by_x, by_y, bias)
        return replace(result, problem=problem, solver=f"{result.solver} of quotients", coupling=coupling)


def _of_classes(table: NDArray[Any], by_x: Lumping, by_y: Lumping) -> NDArray[Any]:
    """Restrict a table of pairs of states to pairs of classes."""
    first = [np.unique(side.assignment, return_index=True)[1] for side in (by_x, by_y)]
    return np.ascontiguousarray(table[np.ix_(*first)])


def _moved(problem: Any, by_x: Lumping, by_y: Lumping) -> float:
    """Bound the difference between the rows of the quotients and the chains, for both together, times the discount."""
    sides = (problem.x, by_x), (problem.y, by_y)
    rounding = sum(int(np.diff(chain.successors.indptr).max()) + 4 + chain.n_states for chain, _ in sides) * EPS
    return float(2 * problem.discount * (by_x.residual + by_y.residual) + rounding)


def _lump_supports(chain: MarkovChain, cost: Array) -> Lumping:
    """Return the coarsest lumping whose classes have equal possible transitions between classes."""
    key = _equal_rows(cost)
    found = lump(chain, key=key)
    s, into = chain.successors, found.assignment
    steps = np.ones(s.indices.size), into[s.indices], s.indptr.copy()
    possible = sparse.csr_array(steps, shape=(into.size, found.n_states))
    possible.sum_duplicates()
    of_class = found.chain.successors.matrix[into]
    of_class.sort_indices()
    same = np.array_equal(possible.indptr, of_class.indptr) and np.array_equal(possible.indices, of_class.indices)
    return found if same else lump(chain, key=key, tol=0.0)


def over_steps(problem: FiniteHorizon, solver: Any, callback: Any) -> DistanceResult:
    """Solve a finite-horizon problem by way of the quotients of both chains."""
    if not (isinstance(problem.x, MarkovChain) and isinstance(problem.y, MarkovChain)):
        raise InvalidArgument("lump needs time-homogeneous chains; leave lump out for a TimedChain")
    from diffbisim.solvers.exact.horizon import HorizonCoupling, Level

    tables = problem.costs[:1] if problem.one_cost else problem.costs
    by_x = lump(problem.x, key=_equal_rows(np.concatenate(tables, axis=1)))
    by_y = lump(problem.y, key=_equal_rows(np.concatenate(tables, axis=0).T))
    first = np.ix_(*(np.unique(side.assignment, return_index=True)[1] for side in (by_x, by_y)))
    costs = {id(c): np.ascontiguousarray(c[first]) for c in tables}
    quotient = FiniteHorizon(by_x.chain, by_y.chain, tuple(costs[id(c)] for c in problem.costs), problem.weights)
    shift = problem.n_steps * _moved(problem, by_x, by_y) + sum(problem.shape) * EPS

    def widened(row: Mapping[str, float]) -> HistoryRow:
        apart = shift * problem.scale
        lower, upper = problem.bounded(row["lower"] - apart, row["upper"] + apart)
        return HistoryRow(row, lower=lower, upper=upper)

    result = solver.solve(quotient, callback=None if callback is None else lambda row: callback(widened(row)))
    coupling = HorizonCoupling(problem, result.coupling.reachable)
    for t, level in enumerate(result.coupling.levels):
        if level is not None:
            table = by_x.lift(by_y.lift(level.table.reshape(quotient.shape), axis=1)).ravel()
            coupling.levels[t] = Level(table, level.short + shift, level.excess + shift)
    last, outcome = widened({name: getattr(result, name) for name in ("value", "lower", "upper")}), result.outcome
    if coupling.first == 0:
        last = HistoryRow(zip(("value", "lower", "upper"), coupling.finish(), strict=True))
        fine = last["upper"] - last["lower"] <= solver.tol * problem.scale
        outcome = Status.CONVERGED if fine else Status.ROUNDING
    lifted: DistanceResult = replace(
        result, problem=problem, outcome=outcome, solver=f"{result.solver} of quotients", coupling=coupling,
        history=tuple(map(widened, result.history)), **last,
    )  # fmt: skip
    return lifted


def _equal_rows(cost: Array) -> list[bytes]:
    """Return a key per row that is equal for equal rows."""
    return [blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest() for row in cost + 0.0]


class LumpedCoupling(Coupling):
    """The lifted table of the quotients; everything else comes from one sweep over it."""

    def __init__(
        self, problem: ChainProblem, table: Array, epsilon: float, by_x: Lumping | None = None,
        by_y: Lumping | None = None, bias: Array | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.table, self.epsilon, self.by_x, self.by_y = problem, table, epsilon, by_x, by_y
        self._bias = bias

    @property
    def complete(self) -> bool:  # type: ignore[override]
        return not np.isnan(self.table).any() if self._bias is None else self.full.complete

    @property
    def values(self) -> Array:
        return self._lifted(self.table)

    @property
    def table_bounds(self) -> tuple[Array, Array]:
        return super().table_bounds if self.epsilon else self.full.table_bounds

    def _lifted(self, table: Array) -> Array:
        if self.by_x is None or self.by_y is None:
            return table
        return np.asarray(self.by_x.lift(self.by_y.lift(table, axis=1)))

    @property
    def bias(self) -> Array | None:
        """For average cost, the table for which plans and potentials are optimal on closed classes."""
        return None if self._bias is None else self._lifted(self._bias)

    @lazy
    def full(self) -> Coupling:
        """Plans and potentials of the full problem for the lifted table."""
        return _coupling_of(self.problem, self.values, self.epsilon, self.bias)

    @property
    def start(self) -> StartCoupling:
        return self.full.start

    def plan(self, x: int, y: int) -> sparse.coo_array:
        return self.full.plan(x, y)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        return self.full.potentials(x, y)

    def occupancy(self) -> Array:
        return self.full.occupancy()

    def potential_weights(self, m: Array) -> Array:
        return self.full.potential_weights(m)

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        return self.full.weighted_potentials(m, everywhere)

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {"values": self.values, "epsilon": np.array(self.epsilon)}
        return arrays if self.bias is None else {**arrays, "bias": self.bias}

    @classmethod
    def restore(cls, problem: ChainProblem, arrays: Mapping[str, NDArray[Any]]) -> "LumpedCoupling":
        """Rebuild from the lifted table; the quotients are no longer needed."""
        check_lumped(problem, arrays)
        bias = numbers(arrays, "bias", problem.shape, nan=True) if isinstance(problem, Average) else None
        return cls(problem, frozen(arrays["values"]), float(arrays.get("epsilon", 0.0)), bias=bias)


def _coupling_of(problem: ChainProblem, table: Array, epsilon: float, bias: Array | None) -> Coupling:
    """Return the coupling for a solved table."""
    if isinstance(problem, Average) and bias is not None:
        from diffbisim.solvers.exact.average import AverageCoupling

        return AverageCoupling.of_tables(problem, bias, table)
    if isinstance(problem, Total):
        from diffbisim.solvers.exact.total import TotalCoupling

        return TotalCoupling.of_table(problem, table)
    if epsilon:
        from diffbisim.solvers.sinkhorn.coupling import SinkhornCoupling

        return SinkhornCoupling.of_table(problem, table, epsilon)
    from diffbisim.solvers.exact.coupling import ExactCoupling

    return ExactCoupling.of_table(problem, table)


def check_lumped(problem: ChainProblem, arrays: Arrays) -> None:
    """Check that a file has a table of all pairs, or of the reachable ones (at least) with NaN elsewhere."""
    from diffbisim.solvers.exact.pairs import begin

    table = numbers(arrays, "values", problem.shape, nan=True)
    missing = np.isnan(table).ravel()
    if missing.any() and missing[begin(problem, True, 1, None).items.listed].any():
        raise InvalidData("array 'values' is NaN at pairs that the starts can reach; the file is damaged")
    if "epsilon" in arrays:
        numbers(arrays, "epsilon", (), least=0.0)
    with np.errstate(over="ignore"):
        if np.isinf(table / (problem.scale or 1.0)).any():
            raise InvalidData("array 'values' has entries that are too large for the cost; the file is damaged")
