"""Solve the quotients instead: merge equivalent states of each chain first, then lift the answer back.

States x, x' of X with equal cost rows c(x,·) = c(x',·) and equal probability into every class have U(x,·) = U(x',·):
both sides of the Bellman equation only see the classes. So the quotient chains X/~ and Y/~ have the same distance, and
U(x,y) = U([x],[y]). Plans, occupancies and gradients of the full problem come from one sweep over the lifted table,
when they are asked for: exact transports, or the entropic ones if the table is that of the entropic metric.

Floating point makes the classes agree up to a residual δ (total variation, see lumping.py) instead of exactly; that
moves U by at most γ/(1-γ) δ max c, which is added to the bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.errors import InvalidArgument
from diffbisim.lumping import Lumping, lump
from diffbisim.problem import Array, Coupling, Problem, Start, lazy
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers.restoring import check_lumped

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True)
class Lumped:
    """Quotient both chains, solve with ``solver``, lift the result."""

    solver: Any

    def solve(self, problem: Problem, warm: DistanceResult | None = None, callback: Any = None) -> DistanceResult:
        """The distance by way of the quotients."""
        if warm is not None:
            raise InvalidArgument("warm and lump do not go together: the quotient has other states; leave one out")
        by_x = lump(problem.x, key=_equal_rows(problem.cost))
        by_y = lump(problem.y, key=_equal_rows(problem.cost.T))
        first_x, first_y = (np.unique(side.labels, return_index=True)[1] for side in (by_x, by_y))
        quotient = Problem(
            by_x.chain,
            by_y.chain,
            np.ascontiguousarray(problem.cost[np.ix_(first_x, first_y)]),
            problem.discount,
        )
        result: DistanceResult = self.solver.solve(quotient, callback=callback)
        γ = problem.discount
        rounding = (np.diff(problem.x.successors.indptr).max() + np.diff(problem.y.successors.indptr).max()) * EPS
        shift = (γ * (by_x.residual + by_y.residual) + rounding) / (1 - γ) * problem.scale
        lower, upper = max(result.lower - shift, 0.0), min(result.upper + shift, problem.scale)
        outcome = result.outcome
        if result.converged and upper - lower > 2 * self.solver.tol * problem.scale:
            outcome = Status.ROUNDING
        return replace(
            result, problem=problem, lower=lower, upper=upper, outcome=outcome, solver=f"{result.solver} of quotients",
            coupling=LumpedCoupling(problem, result.coupling, by_x, by_y),
        )  # fmt: skip


def _equal_rows(cost: Array) -> list[bytes]:
    """A key per row that is equal for equal rows."""
    return [blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest() for row in cost + 0.0]


class LumpedCoupling(Coupling):
    """The table of the quotients, lifted; everything else by one sweep over it."""

    def __init__(self, problem: Problem, quotient: Coupling, by_x: Lumping, by_y: Lumping) -> None:
        self.problem, self.table, self.by_x, self.by_y = problem, quotient.values, by_x, by_y
        self.epsilon = float(getattr(quotient, "epsilon", 0.0))

    @property
    def values(self) -> Array:
        return np.asarray(self.by_x.lift(self.by_y.lift(self.table, axis=1)))

    @lazy
    def full(self) -> Coupling:
        """Plans and potentials of the full problem for the lifted table."""
        return _coupling_of(self.problem, self.values, self.epsilon)

    @property
    def start(self) -> Start:
        return self.full.start

    def plan(self, x: int, y: int) -> sparse.coo_array:
        return self.full.plan(x, y)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        return self.full.potentials(x, y)

    def occupancy(self) -> Array:
        return self.full.occupancy()

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        return self.full.weighted_potentials(m, everywhere)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values, "epsilon": np.array(self.epsilon)}

    @classmethod
    def restore(cls, problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> Coupling:
        """From the lifted table: the quotients are not needed any more."""
        check_lumped(problem, arrays)
        return _coupling_of(problem, arrays["values"], float(arrays.get("epsilon", 0.0)))


def _coupling_of(problem: Problem, table: Array, epsilon: float) -> Coupling:
    """The coupling that belongs to a solved table."""
    if epsilon:
        from diffbisim.solvers.sinkhorn_coupling import SinkhornCoupling

        return SinkhornCoupling.of_table(problem, table, epsilon)
    from diffbisim.solvers.exact_coupling import ExactCoupling

    return ExactCoupling.of_table(problem, table)
