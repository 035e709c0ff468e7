"""What a run begins with: the table of a previous result, and the coupling of the two start distributions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from diffbisim.parallel import stop_flag, taken
from diffbisim.problem import Array
from diffbisim.results import DistanceResult
from diffbisim.solvers.exact import transport_rounding
from diffbisim.solvers.kernels import solve_one
from diffbisim.solvers.transport import northwest_corner

#: A transport with more cells is left to another thread, so that an interrupt acts at once.
LARGE = 1_000_000

#: A result for costs that are so many times larger or smaller says nothing about a table.
FAR = 1e3


def previous_table(warm: DistanceResult, scale: float, unknown: Callable[[], Array]) -> Array | None:
    """U of a previous result in units of ``scale``, within [0, 1]; None if its costs were of another order.

    Pairs that it did not solve (NaN, from ``reachable=True``) are taken from the table that ``unknown`` makes.
    """
    if not scale / FAR <= warm.problem.scale <= scale * FAR:
        return None
    with np.errstate(over="ignore"):
        table = warm.values / scale
    open_pairs = np.isnan(table)
    if open_pairs.any():
        table = np.where(open_pairs, unknown(), table)
    return np.clip(table, 0.0, 1.0)


class Transport:
    """min <π, C> over couplings of ``p (a,)`` and ``q (b,)``, both positive; keeps its tree between solves.

    ``solved`` says whether the last solve came to its end, ``price`` how far the least reduced cost is below zero, and
    ``slack`` by how much rounding may put the value off for costs of at most one (exact.py, where it is derived): the
    minimum is in [value - price - slack, value + slack].
    """

    def __init__(self, p: Array, q: Array) -> None:
        self.p, self.q = np.ascontiguousarray(p), np.ascontiguousarray(q)
        self._unbalanced = abs(float(self.p.sum()) - 1.0) + abs(float(self.q.sum()) - 1.0)
        self.solved, self.price, self.slack = False, np.inf, np.inf
        edges = p.size + q.size - 1
        self.child, self.parent = np.empty(edges, np.int32), np.empty(edges, np.int32)
        self.flow, self.pot = np.empty(edges), np.empty(edges + 1)
        northwest_corner(self.p, self.q, np.arange(p.size), np.arange(q.size), self.child, self.parent, self.flow)

    def solve(self, C: Array, tol: float) -> float:
        """Value for the cost ``C (a, b)``; plan and potentials can be read afterwards."""
        stop, costs = stop_flag(), np.ascontiguousarray(C)
        given = costs, self.p, self.q, self.child, self.parent, self.flow, self.pot, tol, stop
        (found,) = taken(solve_one, [given], 1, stop, wait=costs.size > LARGE)
        value, self.solved, self.price, clipped = found
        self.slack = transport_rounding(self.pot.size, self._unbalanced, clipped)
        return float(value)

    def cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
        """Row, column and mass of the plan's cells."""
        u, v = self.child.astype(np.int64), self.parent.astype(np.int64)
        return np.minimum(u, v), np.maximum(u, v) - self.p.size, self.flow

    def potentials(self) -> tuple[Array, Array]:
        """``f (a,)`` and ``g (b,)`` with f + g ≤ C."""
        return self.pot[: self.p.size], self.pot[self.p.size :]
