"""The result of the exact solver: one optimal tree per pair, from which plans and potentials are read on request.

``U`` is kept flat and scaled by the largest ground cost. Everything that leaves this module is in the user's units and
a copy, so changing it does not change the result.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, frozen, lazy
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidData, warn
from diffbisim.common.stopping import engine_run
from diffbisim.io.arrays import numbers
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import HistoryRow
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.solvers.base import MARGINALS, Arrays
from diffbisim.solvers.certify import StartValue
from diffbisim.solvers.exact.pairs import begin, bellman, first_table, independent_occupancy, pair_chain, sweep_band
from diffbisim.solvers.exact.transports import (
    Basis,
    Items,
    Transport,
    Transports,
    Tree,
    Trees,
)

#: Reduced costs above minus this count as zero (tables are scaled to at most one).
PRICE = 1e-14

Integers = NDArray[np.int64]


class Bounds(NamedTuple):
    """The distance for a table, in the user's units, and its certified bounds."""

    value: float
    lower: float
    upper: float
    gap: float  # relative to the largest cost, including the rounding of both bounds

    def row(self, work: Mapping[str, int]) -> HistoryRow:
        """A row of the history."""
        return HistoryRow({"value": self.value, "lower": self.lower, "upper": self.upper, **work})


class StartArrays(NamedTuple):
    """The transport of the starts, for the engine."""

    rows: Integers  # the states where the two processes can start
    cols: Integers
    p: Array  # with these probabilities
    q: Array
    tree: Tree
    pot: Array  # (a + b,) potentials


class StartTransport:
    """The transport between the two start distributions, solved again for every table."""

    def __init__(self, problem: ChainProblem) -> None:
        self.problem = problem
        self.rows, self.cols = np.flatnonzero(problem.x.initial), np.flatnonzero(problem.y.initial)
        self.transport = Transport(problem.x.initial[self.rows], problem.y.initial[self.cols])
        self.rounding = 0.0  # largest effect on the last value

    def state(self) -> dict[str, NDArray[Any]]:
        """The tree, by its names in files."""
        return {f"start.{name}": part for name, part in self.transport.tree._asdict().items()}

    @classmethod
    def restore(cls, problem: Any, arrays: Arrays) -> Self:
        """The inverse of :meth:`state`, checked."""
        rows = [Successors.of(law[None, :]) for law in (problem.x.initial, problem.y.initial)]
        items = Items.of(rows[0], rows[1], problem.shape[1], (problem.x.initial, problem.y.initial))
        _, what = unfit(Transports(items, 1, index=np.int32), arrays, "start.", True)
        if what:
            raise InvalidData(f"the {what.split()[0]} of the starts {what.partition(' ')[2]}")
        start = cls(problem)
        for part, name in zip(start.transport.tree, Tree._fields, strict=True):
            part[:] = arrays[f"start.{name}"]
        return start

    def solve(self, U: Array, half_gap: float) -> Bounds:
        """The distance for a table U that is known up to ``half_gap``; if infinite, bounds for any distance."""
        return Bounds(*_engine.bounds(self.value(U), half_gap, float(self.problem.cost.min()), self.problem.scale))

    def value(self, U: Array, price: float = PRICE) -> StartValue:
        """The minimum for a table U, and how accurate it is; plan and potentials can be read afterwards."""
        p, q, tree, pot = self.transport.p, self.transport.q, self.transport.tree, self.transport.pot
        starts = StartArrays(self.rows, self.cols, p, q, tree, pot)
        found = StartValue(*_engine.solve_start(starts, U, self.problem.shape[1], price, engine_run()))
        self.rounding = found.slack
        return found

    def plan(self) -> sparse.coo_array:
        """The optimal coupling of the starts, (n_X, n_Y)."""
        i, j, mass = self.transport.cells()
        return sparse.coo_array((mass.copy(), (self.rows[i], self.cols[j])), shape=self.problem.shape)

    def law(self) -> Array:
        """The same as a law of pairs, (n_X*n_Y,)."""
        return np.asarray(self.plan().toarray()).ravel()

    def potentials(self, table: Array | None) -> tuple[Array, Array]:
        """f (n_X,) and g (n_Y,); off the supports, c-transforms of a ``table (n_X, n_Y)``, or NaN without one."""
        f, g = self.transport.potentials()
        n_x, n_y = self.problem.shape
        full_f, full_g = np.full(n_x, np.nan), np.full(n_y, np.nan)
        if table is not None:
            full_f[:] = (table[:, self.cols] - g).min(axis=1)
            full_g[:] = (table[self.rows] - f[:, None]).min(axis=0)
        full_f[self.rows], full_g[self.cols] = f, g
        return full_f, full_g

    def solution(self, U: Array, complete: bool) -> StartCoupling:
        """Plan and potentials in the user's units; ``complete`` if all entries of the flat table U are known."""
        f, g = self.potentials(U.reshape(self.problem.shape) if complete else None)
        return StartCoupling(self.plan(), self.problem.scale * f, self.problem.scale * g)


class ExactCoupling(Coupling):
    """Plans, potentials and occupancies from optimal trees and the table ``U`` (flat, scaled).

    ``gap`` is the accuracy of the table; ``sweeps`` counts the products that the occupancy needed.
    """

    #: Whether all flows are nonnegative, so that trees are plans.
    feasible = True

    #: The engine's solution of a small problem, from which table and trees are read when they are needed.
    small: Any = None

    def __init__(
        self, problem: ChainProblem, transports: Transports, U: Array, start: StartTransport, gap: float
    ) -> None:
        self.problem, self.transports, self.U, self._start, self.gap = problem, transports, U, start, gap
        self.complete, self.sweeps = not transports.items.listed.size, 0

    @classmethod
    def of_small(cls, problem: ChainProblem, small: Any, options: Any) -> Self:
        """The coupling of a small problem that the engine has solved (small.py)."""
        coupling = cls.__new__(cls)
        coupling.__dict__.update(
            problem=problem,
            small=small,
            threads=options.threads,
            gap=small.gap,
            complete=not options.reachable,
            sweeps=0,
        )
        return coupling

    @lazy
    def U(self) -> Array:
        """The table, (n_X*n_Y,), scaled by the largest cost."""
        return np.array(self.small.U)

    @lazy
    def transports(self) -> Transports:
        """The optimal trees of all pairs."""
        small, problem = self.small, self.problem
        order = np.array(small.order_x), np.array(small.order_y)
        items = Items(np.array(small.listed), problem.x.successors, problem.y.successors, problem.shape[1], *order)
        trees = Trees(*map(np.array, (small.at, small.child, small.parent, small.flow)))
        transports = Transports(items, self.__dict__["threads"], trees)
        transports.basis, transports.clipped = Basis.FEASIBLE, small.clipped
        _, _, _, transports.pivots, transports.sweeps, _ = small.history[-1]
        return transports

    @lazy
    def _start(self) -> StartTransport:
        """The transport of the starts."""
        start, small = StartTransport(self.problem), self.small
        for part, known in zip(
            start.transport.tree, (small.start_child, small.start_parent, small.start_flow), strict=True
        ):
            part[:] = known
        start.transport.pot[:] = small.start_pot
        return start

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and copies keep: arrays instead of the engine's object."""
        if self.small is None:
            return self.__dict__
        kept = {"U": self.U, "transports": self.transports, "_start": self._start}
        return {**self.__dict__, **kept, "small": None}

    @classmethod
    def of_table(cls, problem: ChainProblem, values: Array) -> Self:
        """The optimal trees for a given table (one sweep); NaN marks unreachable pairs."""
        transports = begin(problem, bool(np.isnan(values).any()), None, None)
        U, start = first_table(problem, values), StartTransport(problem)
        transports.solve(U, np.empty(transports.size), PRICE)
        start.solve(U, 0.0)
        return cls(problem, transports, U, start, 0.0)

    def state(self) -> dict[str, NDArray[Any]]:
        trees, pairs = self.transports.trees, self.transports.items.listed
        return {
            "U": self.U, "pair": pairs, "child": trees.child, "parent": trees.parent, "flow": self.transports.flow,
            **self._start.state(),
        }  # fmt: skip

    @classmethod
    def restore(cls, problem: ChainProblem, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse of :meth:`state`. The list of pairs follows from the problem, and the file must agree with it."""
        n_x, n_y = problem.shape
        numbers(arrays, "U", (n_x * n_y,))
        transports = begin(problem, listed_pairs(arrays).size > 0, None, None, narrow=cls.feasible)
        if not np.array_equal(arrays["pair"], transports.items.listed):
            raise InvalidData("array 'pair' does not list the pairs that the starts can reach")
        restore_trees(transports, arrays, n_y, feasible=cls.feasible)
        start = StartTransport.restore(problem, arrays)
        start.solve(arrays["U"], 0.0)
        return cls(problem, transports, arrays["U"], start, 0.0)

    @lazy
    def values(self) -> Array:
        problem = self.problem
        table = np.clip(problem.scale * np.minimum(self.U, 1.0), float(problem.cost.min()), problem.scale)
        if not self.complete:
            hide_others(table, self.transports.items.listed)
        return frozen(table.reshape(problem.shape))

    @lazy
    def table_bounds(self) -> tuple[Array, Array]:
        """MacQueen's bounds from one sweep over the table, including rounding (solver.py); valid for any table."""
        problem, U, γ = self.problem, self.U, self.problem.discount
        transports = begin(problem, not self.complete, self.transports.threads, self)
        TU, solved = bellman(problem, transports, U, PRICE)
        listed = transports.items.listed
        band = sweep_band(transports, _engine.extremes(listed, TU, U), γ, PRICE)
        off = band.gap / 2 if solved else np.inf
        table, pairs = U.copy(), listed if listed.size else slice(None)
        table[pairs] = TU
        low, high = table + (band.shift - off), table + (band.shift + off)
        within = float(problem.cost.min()), problem.scale
        return enclosing(self.values, problem.scale * low, problem.scale * high, within)

    @property
    def start(self) -> StartCoupling:
        return self._start.solution(self.U, self.complete)

    def _item(self, x: int, y: int) -> int:
        """The number of a pair's transport."""
        z, listed = x * self.problem.shape[1] + y, self.transports.items.listed
        if not listed.size:
            return z
        k = int(np.searchsorted(listed, z))
        if k == listed.size or listed[k] != z:
            raise InvalidArgument(
                f"pair ({x}, {y}) cannot be reached from the starts and was not solved; use Exact(reachable=False)"
            )
        return k

    def plan(self, x: int, y: int) -> sparse.coo_array:
        return plan_of(self.transports, self._item(x, y), self.problem.shape)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        f, g = potentials_of(self.transports, self._item(x, y), self.U, self.problem.shape, self.complete)
        return self.problem.scale * f, self.problem.scale * g

    def occupancy(self) -> Array:
        """m = (1-γ) m_0 + γ Πᵀ m; exactly zero where the optimal coupling never goes."""
        listed, start = self.transports.items.listed, self._start.law()
        accuracy = min(max(1e-3 * self.gap, 1e-13), 1e-9)  # three digits beyond the table's are enough,
        accuracy = accuracy if self.transports.size > 20_000 else 1e-13  # but on small grids full precision is cheap
        chain = pair_chain(self.transports, self.problem.discount)
        first = independent_occupancy(self.problem, listed) if self.transports.size > 20_000 else None
        m, error = chain.occupancy(start[listed] if listed.size else start, accuracy, first)
        self.sweeps += chain.products
        if error > 1e-6:
            warn(
                f"the occupancy of {self.transports.size} pairs is only accurate to {error:.1e} in total; "
                "use a smaller discount, lump=True or reachable=True",
                ConvergenceWarning,
                stacklevel=3,
            )
        if listed.size:
            start[:] = 0.0
            start[listed] = m
            m = start
        return m.reshape(self.problem.shape)

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        if everywhere and not self.complete:
            raise InvalidArgument("potentials off the supports need all pairs: use Exact(reachable=False)")
        listed, (n_x, n_y) = self.transports.items.listed, self.problem.shape
        weights = np.array(m, dtype=np.float64, order="C").ravel()
        by_x, by_y = self.transports.weighted_potentials(
            self.U, weights[listed] if listed.size else weights, ((n_x, n_x), (n_y, n_y)) if everywhere else None
        )
        by_x *= self.problem.scale
        by_y *= self.problem.scale
        return self._by_transition(by_x, by_y, everywhere)


# --- items ------------------------------------------------------------------------------------------------------------


def _supports(items: Items, k: int) -> tuple[Integers, Integers]:
    """The successors of the two rows of item k."""
    x, y = items.x, items.y
    i, j = divmod(int(items.listed[k]) if items.listed.size else k, y.indptr.size - 1)
    return x.indices[x.indptr[i] : x.indptr[i + 1]], y.indices[y.indptr[j] : y.indptr[j + 1]]


def plan_of(transports: Transports, k: int, shape: tuple[int, int]) -> sparse.coo_array:
    """The plan of item k, between distributions on all states."""
    tree, (rows, cols) = transports.tree(k), _supports(transports.items, k)
    u, v = tree.child.astype(np.int64), tree.parent.astype(np.int64)
    i, j = np.minimum(u, v), np.maximum(u, v) - rows.size
    return sparse.coo_array((tree.flow, (rows[i], cols[j])), shape=shape)


def potentials_of(
    transports: Transports, k: int, U: Array, shape: tuple[int, int], complete: bool
) -> tuple[Array, Array]:
    """The potentials of item k for the table U; NaN off the supports unless the table is ``complete``."""
    f, g = transports.potentials(k, U)
    if not complete:  # off the supports a c-transform would need pairs that were not solved
        for potential, support in zip((f, g), _supports(transports.items, k), strict=True):
            hide_others(potential, support)
    return f, g


def hide_others(table: Array, *known: Integers) -> None:
    """Set the entries of a flat table to NaN where they are not known."""
    hidden = np.ones(table.size, bool)
    for part in known:
        hidden[part] = False
    table[hidden] = np.nan


def enclosing(values: Array, low: Array, high: Array, within: tuple[float, float]) -> tuple[Array, Array]:
    """Bounds rounded outward, clipped to the possible range, and widened to contain the values."""
    lower = np.maximum(np.nextafter(low, -np.inf), within[0]).reshape(values.shape)
    upper = np.minimum(np.nextafter(high, np.inf), within[1]).reshape(values.shape)
    return frozen(np.minimum(lower, values)), frozen(np.maximum(upper, values))  # NaN where the values are


# --- checks of files ----------------------------------------------------------------------------------------------


def listed_pairs(arrays: Arrays) -> Integers:
    """The array ``pair`` of a file, a list of integers."""
    pair = arrays.get("pair")
    if pair is None or pair.dtype != np.int64 or pair.ndim != 1:
        raise InvalidData("array 'pair' must be a list of integers")
    return np.asarray(pair)


def restore_trees(
    transports: Transports, arrays: Arrays, n_y: int, prefix: str = "", feasible: bool = True
) -> Transports:
    """Read the trees of a list of pairs, checked; flows may be negative unless ``feasible``."""
    k, what = unfit(transports, arrays, prefix, feasible)
    if what:
        z = int(transports.items.listed[k]) if transports.items.listed.size else k
        raise InvalidData(f"the {what.split()[0]} of pair ({z // n_y}, {z % n_y}) {what.partition(' ')[2]}")
    return fill_trees(transports, arrays, prefix)


def fill_trees(transports: Transports, arrays: Arrays, prefix: str = "") -> Transports:
    """Copy trees that have been checked."""
    for part, name in zip(transports.trees[1:], Tree._fields, strict=True):
        if part.size:  # narrow trees have no flows
            part[:] = arrays[prefix + name]
    transports.basis = Basis.FEASIBLE
    return transports


def unfit(transports: Transports, arrays: Arrays, prefix: str, feasible: bool) -> tuple[int, str]:
    """The first item whose tree in the arrays is invalid, and what is wrong with it; "" if all are valid."""
    size, index = (transports.edges,), transports.trees.child.dtype
    child, parent = (numbers(arrays, f"{prefix}{name}", size, index, least=0) for name in ("child", "parent"))
    flow = numbers(arrays, f"{prefix}flow", size, least=0.0 if feasible else -np.inf)
    k, why = _engine.first_unfit(transports.items, Trees(transports.at, child, parent, flow), MARGINALS, engine_run())
    return k, ("", "edges are no spanning tree", "flows do not meet the marginals")[why]


def one_sweep(coupling: ExactCoupling) -> tuple[float, float]:
    """Bounds on the distance from one sweep over the table, tightened by the largest effect of rounding."""
    problem, γ, U = coupling.problem, coupling.problem.discount, coupling.U
    transports = begin(problem, not coupling.complete, 1, coupling)
    TU, _ = bellman(problem, transports, U, PRICE)
    listed, table = transports.items.listed, U.copy()
    table[listed if listed.size else slice(None)] = TU
    band = sweep_band(transports, _engine.extremes(listed, TU, U), γ, 0.0)
    start = StartTransport(problem).value(table)
    scale, least, slack = problem.scale, float(problem.cost.min()), band.rounding + start.slack
    low = start.value + band.shift - band.half + slack
    high = start.value + band.shift + band.half - slack - start.price
    return min(max(scale * low, least), scale), max(min(scale * high, scale), least)
