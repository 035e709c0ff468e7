"""Many optimal transports over one cost table; the optimal basis of each is kept from sweep to sweep.

An *item* is a pair (row i of X, row j of Y), and its transport

    OT_W(P_X(·|i), P_Y(·|j)) = min over couplings π of <π, W>

takes its costs from a table W over pairs of states that all items share. For two chains the rows are the states and
the items are the pairs of states (all of them, or those that can be reached from the starts). The code does not depend
on this: rows can also be state-action pairs or the steps of a horizon.

The transports themselves are compiled (engine/transports.hpp, engine/simplex.hpp, and engine/dense.hpp for hundreds of
states with full rows). Here are the lists of items, the
memory of their trees, and what a run keeps from sweep to sweep. Trees have a + b - 1 edges for a and b successors; when
there are very many items, their flows are not stored (*narrow* trees).
"""

import tempfile
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, available_threads, lazy
from diffbisim.common.parallel import CHUNK
from diffbisim.common.stopping import engine_run
from diffbisim.processes.stochastic import Successors
from diffbisim.solvers.certify import PlanErrors, transport_rounding

Integers = NDArray[np.int64]

EPS = float(np.finfo(float).eps)
NOTHING: Array = np.empty(0)

#: Trees are narrow from MANY edges on, provided that no two rows have more than FEW successors together.
MANY, FEW = 2 * CHUNK, 64

#: From how many states on, in total and of each chain, full rows have a solver of their own. With fewer, the general
#: one is as fast.
DENSE_FROM = (65, 8)

#: Up to this many edges the plans of narrow trees also store their targets (0.5 GB); beyond, targets are computed from
#: the trees.
TARGETS = 2**27

NO_NUMBERS: Integers = np.empty(0, np.int64)


class Items(NamedTuple):
    """The list of transports."""

    listed: Any  # (K,) flat row pairs in ascending order; empty for all of them
    x: Successors  # the rows of X, and of Y
    y: Successors
    n_y: int  # columns of the tables
    order_x: Any  # (E_X,) the order in which a first basis takes the entries of each row: positions within the row
    order_y: Any  # (E_Y,)

    @classmethod
    def of(cls, x: Successors, y: Successors, n_y: int, keys: tuple[Array, Array]) -> "Items":
        """All pairs of rows; first bases take the entries of a row by the ``keys (n_X,), (n_Y,)`` of their states."""
        return cls(NO_NUMBERS, x, y, n_y, _order(x, keys[0]), _order(y, keys[1]))


def _order(s: Successors, key: Array) -> Integers:
    """The positions of the entries of each row, sorted by the key of their state."""
    if s.indices.size < CHUNK:
        sources = s.sources
        return np.asarray(np.lexsort((key[s.indices], sources)) - s.indptr[sources])
    # Sorting row by row is five times as fast for large inputs, and this step cannot be interrupted.
    rank = np.empty(key.size, np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(key.size)
    positions = np.arange(s.indices.size) - s.indptr[s.sources]
    rows = sparse.csr_array((positions, rank[s.indices], s.indptr), shape=(s.indptr.size - 1, key.size))
    rows.sort_indices()
    return np.asarray(rows.data)


class PairSuccessors(NamedTuple):
    """The rows that lead on from a pair (s, t) of states: rows (a n_X + s, b n_Y + t) for the choices (a, b)."""

    x: Successors
    y: Successors
    shape: tuple[int, int]  # (n_X, n_Y)
    choices: Any  # (C, 2); the single choice (0, 0) for chains


class Tree(NamedTuple):
    """The edge list of a basis, parents first; each array (a + b - 1,)."""

    child: Any
    parent: Any
    flow: Any


class Trees(NamedTuple):
    """The edge lists of all items, one after another. Narrow trees leave ``at`` and ``flow`` empty."""

    at: Any  # (K + 1,) the first edge of each item
    child: Any
    parent: Any
    flow: Any


class SinglePlans(NamedTuple):
    """The plans of narrow trees in single precision, edge by edge, for evaluation.py; empty if not requested."""

    target: Any  # (E,) flat pairs of states, or empty
    flow: Any  # (E,)


NO_SINGLE_PLANS = SinglePlans(np.empty(0, np.int32), np.empty(0, np.float32))


class Basis(IntEnum):
    """What a sweep can start from."""

    NONE = 0  # nothing: first bases are built
    OTHER = 1  # trees for other marginals: they are repaired, or rebuilt where repair would take longer
    FEASIBLE = 2  # trees that are feasible as they are


class Effort(NamedTuple):
    """How accurately a sweep solves its transports."""

    basis: int
    price: float  # reduced costs above minus this count as zero
    slack: Any  # (K,) how much negative flow an old tree may have and still be kept (tracking.py); empty for none


# --- the list of items -------------------------------------------------------------------------------------


class Transports:
    """The trees of a list of items and the sweeps over them.

    ``basis`` says what the next :meth:`solve` can start from. ``clipped`` is the largest mass that was moved in a plan
    because its flows were slightly negative.
    """

    def __init__(
        self, items: Items, threads: int | None = None, trees: Trees | None = None, index: Any = None,
        narrow: bool = False, store: Any = None,
    ) -> None:  # fmt: skip
        self.items, self.threads, self.store = items, threads or available_threads(), store
        m_x, m_y = items.x.indptr.size - 1, items.y.indptr.size - 1
        self.size = items.listed.size or m_x * m_y
        a, b = np.diff(items.x.indptr), np.diff(items.y.indptr)
        self.nodes = int(a.max() + b.max())
        if trees is None:
            trees = self._narrow_trees() if narrow and self.may_be_narrow(items) else self._new_trees(a, b, index)
        self.trees, self.single = trees, NO_SINGLE_PLANS
        self.cells = float(self.edges) ** 2 / self.size  # estimate of all cells, to divide the work
        self.basis, self.clipped = Basis.NONE, 0.0
        self._core: _engine.Transports | None = None
        self.pivots = self.sweeps = 0

    @staticmethod
    def may_be_narrow(items: Items) -> bool:
        """Whether there are many items of few successors, and all pairs of rows are items."""
        a, b = np.diff(items.x.indptr), np.diff(items.y.indptr)
        many = b.size * float(a.sum() - a.size) + a.size * float(b.sum()) >= MANY
        return many and not items.listed.size and int(a.max() + b.max()) <= FEW

    def _narrow_trees(self) -> Trees:
        x, y = self.items.x, self.items.y
        m_x, m_y = x.indptr.size - 1, y.indptr.size - 1
        edges = m_y * (x.indices.size - m_x) + m_x * y.indices.size
        return Trees(NO_NUMBERS, self._array(edges, np.int8), self._array(edges, np.int8), NOTHING)

    def _array(self, size: int, dtype: Any) -> NDArray[Any]:
        """A new array, in memory or in a temporary file in the folder ``store``."""
        if self.store is None:
            return np.empty(size, dtype)
        with tempfile.TemporaryFile(dir=self.store) as file:
            return np.memmap(file, dtype, "w+", shape=(size,)).view(np.ndarray)

    @property
    def narrow(self) -> bool:
        """Whether only the edges of the trees are stored."""
        return not self.trees.at.size

    def keep_single_plans(self) -> None:
        """From the next :meth:`solve` on, keep the plans of narrow trees in single precision (``single``)."""
        target = np.empty(self.edges if self.edges <= TARGETS else 0, np.int32)
        self.single = SinglePlans(target, self._array(self.edges, np.float32))

    @property
    def at(self) -> Integers:
        """(K + 1,) the first edge of each item."""
        if not self.narrow:
            return np.asarray(self.trees.at)
        return self._offsets(np.diff(self.items.x.indptr), np.diff(self.items.y.indptr))

    @property
    def flow(self) -> Array:
        """(E,) the flows of all trees."""
        if not self.narrow:
            return np.asarray(self.trees.flow)
        flow = np.empty(self.edges)
        self.core.plans(NO_NUMBERS, flow, engine_run(self.threads))
        return flow

    @property
    def core(self) -> _engine.Transports:
        """The compiled list; made when it is first used, and again after pickling."""
        if self._core is None:
            self._core = _engine.Transports(self.items, self.trees, DENSE_FROM)
        return self._core

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_core": None}

    def tree(self, k: int) -> Tree:
        """The tree of item k, in memory of its own."""
        edges = slice(*self.core.edges_of(k))
        flow = self.core.item_flows(k) if self.narrow else np.array(self.trees.flow[edges])
        return Tree(np.array(self.trees.child[edges]), np.array(self.trees.parent[edges]), flow)

    def potentials(self, k: int, W: Array) -> tuple[Array, Array]:
        """``f (n_X,)`` and ``g (n_Y,)`` of item k for the table W, extended off the supports by c-transforms."""
        return self.core.potentials(k, W)

    def _offsets(self, a: Integers, b: Integers) -> Integers:
        listed, at = self.items.listed, np.zeros(self.size + 1, np.int64)
        if listed.size:
            at[1:] = a[listed // b.size] + b[listed % b.size] - 1
        else:
            np.add.outer(a, b - 1, out=at[1:].reshape(a.size, b.size))
        return np.cumsum(at, out=at)

    def _new_trees(self, a: Integers, b: Integers, index: Any) -> Trees:
        at = self._offsets(a, b)
        narrowest = np.int8 if self.nodes <= 128 else np.int16 if self.nodes <= 2**15 else np.int32
        index, edges = index or narrowest, int(at[-1])
        return Trees(at, np.empty(edges, index), np.empty(edges, index), np.empty(edges))

    @property
    def edges(self) -> int:
        """Edges of all trees together."""
        return int(self.trees.child.size)

    @lazy
    def unbalanced(self) -> float:
        """The largest total amount by which the masses of two matched rows differ from one."""
        sides = self.items.x, self.items.y
        return sum(float(np.abs(np.add.reduceat(s.probabilities, s.indptr[:-1]) - 1.0).max()) for s in sides)

    def solve(self, W: Array, values: Array, price: float, slack: Array = NOTHING) -> bool:
        """``values (K,)`` = all transports for the table W; returns whether all were solved to ``price`` and slack."""
        basis, self.basis = self.basis, Basis.NONE  # an interrupted sweep leaves trees of mixed age
        effort = Effort(int(basis), price, slack)
        pivots, failed, clipped = self.core.solve(W, values, effort, self.single, engine_run(self.threads))
        self.basis = Basis.FEASIBLE
        self.pivots += pivots
        self.sweeps += 1
        self.clipped = max(self.clipped if basis == Basis.FEASIBLE else 0.0, clipped)
        return not failed

    def targets(self, numbers: Integers = NO_NUMBERS) -> NDArray[Any]:
        """The pair of states that every edge leads to: its flat index or, if ``numbers`` are given, its number."""
        targets = self._new_targets(numbers)
        self.core.targets(numbers, targets, engine_run(self.threads))
        return targets

    def _new_targets(self, numbers: Integers) -> NDArray[Any]:
        most = int(numbers.max()) if numbers.size else (int(self.items.x.indices.max()) + 1) * self.items.n_y
        return np.empty(self.edges, np.int32 if most < 2**31 else np.int64)

    def plans(self, numbers: Integers = NO_NUMBERS) -> tuple[NDArray[Any], Array]:
        """:meth:`targets` and ``flow``."""
        if not self.narrow:
            return self.targets(numbers), self.flow
        targets, flow = self._new_targets(NO_NUMBERS), np.empty(self.edges)
        self.core.plans(targets, flow, engine_run(self.threads))
        return targets, flow

    def weighted_potentials(self, W: Array, m: Array, shapes: tuple[Any, Any] | None) -> tuple[Array, Array]:
        """``Σ m_k f_k`` by rows of X and ``Σ m_k g_k`` by rows of Y for the table W.

        The results are dense arrays with these ``shapes`` (rows, states), or None: only the stored entries of the rows.
        """
        x, y = self.items.x, self.items.y
        sums = [np.zeros(shape) for shape in shapes or (x.indices.shape, y.indices.shape)]
        by_x, by_y = (table.ravel() for table in sums)
        self.core.sum_potentials(W, m, by_x, by_y, shapes is None, engine_run(self.threads))
        return sums[0], sums[1]


# --- one transport -----------------------------------------------------------------------------------------


class Transport:
    """min <π, C> over couplings of ``p (a,)`` and ``q (b,)``, both positive; keeps its tree between solves.

    ``solved`` says whether the last solve finished, ``price`` is how far the least reduced cost is below zero, and
    ``slack`` bounds the effect of rounding for costs of at most one (engine/certificates.hpp): the minimum is in
    [value - price - slack, value + slack].
    """

    def __init__(self, p: Array, q: Array) -> None:
        self.p, self.q = np.ascontiguousarray(p), np.ascontiguousarray(q)
        self._unbalanced = abs(float(self.p.sum()) - 1.0) + abs(float(self.q.sum()) - 1.0)
        self.solved, self.price, self.slack = False, np.inf, np.inf
        edges = p.size + q.size - 1
        self.tree = Tree(np.empty(edges, np.int32), np.empty(edges, np.int32), np.empty(edges))
        self.pot = np.empty(edges + 1)
        _engine.northwest_corner(self.p, self.q, np.arange(p.size), np.arange(q.size), self.tree)

    def solve(self, C: Array, price: float) -> float:
        """The value for the cost ``C (a, b)``; plan and potentials can be read afterwards."""
        found = _engine.solve_one(np.ascontiguousarray(C), self.p, self.q, self.tree, price, self.pot, engine_run())
        value, self.solved, self.price, clipped = found
        self.slack = transport_rounding(PlanErrors(self.pot.size, self._unbalanced, clipped))
        return value

    def cells(self) -> tuple[Integers, Integers, Array]:
        """Row, column and mass of the plan's cells."""
        u, v = self.tree.child.astype(np.int64), self.tree.parent.astype(np.int64)
        return np.minimum(u, v), np.maximum(u, v) - self.p.size, self.tree.flow

    def potentials(self) -> tuple[Array, Array]:
        """``f (a,)`` and ``g (b,)`` with f + g ≤ C."""
        return self.pot[: self.p.size], self.pot[self.p.size :]
