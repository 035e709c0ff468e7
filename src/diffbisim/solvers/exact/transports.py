"""Many transports over one table: the optimal basis of each, kept from sweep to sweep.

An *item* is a pair (row i of X, row j of Y), and its transport

    OT_W(P_X(·|i), P_Y(·|j)) = min over couplings π of <π, W>

takes its costs from a table W over pairs of states that all items share. For two chains the rows are the states and
the items are the pairs of states (all of them, or those that the starts can reach). Nothing here needs that: rows may
as well be state-action pairs or the steps of a horizon.

What is kept of an item is its spanning tree (simplex.py), a + b - 1 edges for a and b successors. Threads are plain
Python threads running numba code without the GIL, made for one sweep and joined at its end: that is safe when several
Python threads use the same object at once and in forked processes, which numba's own thread pools are not. A sweep that
is too small to pay for a second thread runs in the caller. Sums over threads are taken in a fixed order, so that the
same call gives the same bits. Pieces are small, so that an interrupt acts at once.

Letters of the kernels, which work on the items k = lo…hi-1 and only write what belongs to them:

    z = i m_Y + j         flat row pair of an item, m_Y rows of Y
    p (a,), q (b,)        the two distributions, on their supports ``rows`` and ``cols``
    W, v (n_X*n_Y,)       tables over pairs of states, flat; n_Y their number of columns
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import borrowed, njit
from diffbisim.parallel import CHUNK, Stop, split, stop_flag, stretch, stretches, thread_map
from diffbisim.problem import Array, available_threads, lazy
from diffbisim.solvers.exact.simplex import (
    Costs,
    Tree,
    cell,
    greedy,
    is_priced_out,
    make_work,
    northwest_corner,
    optimize,
    repair,
    tree_flows,
    tree_potentials,
    tree_value,
    true_flows,
)
from diffbisim.solvers.successors import c_transform_at, gather, longest
from diffbisim.stochastic import Successors

#: What flow that is missing costs, at most typically: tables have entries up to one, the transports differ by less.
PRICED = 0.1

#: A tree whose negative flows are more than this in all is dropped: a first basis is nearer.
STALE = 0.05

Integers = NDArray[np.int64]

EPS = float(np.finfo(float).eps)
NOTHING: Array = np.empty(0)

#: A transport with more cells is left to another thread, so that an interrupt acts at once.
LARGE = 1_000_000

NO_NUMBERS: Integers = np.empty(0, np.int64)


class Items(NamedTuple):
    """Which transports there are."""

    listed: Any  # (K,) flat row pairs in ascending order; empty for all of them
    x: Successors  # the rows of X, and of Y
    y: Successors
    n_y: int  # columns of the tables
    order_x: Any  # (E_X,) in what order a first basis takes the entries of each row: positions 0 … row length - 1
    order_y: Any  # (E_Y,)

    @classmethod
    def of(cls, x: Successors, y: Successors, n_y: int, keys: tuple[Array, Array]) -> "Items":
        """All pairs of rows; first bases take entries in the order of the ``keys (n_X,), (n_Y,)`` of their states."""
        return cls(NO_NUMBERS, x, y, n_y, _order(x, keys[0]), _order(y, keys[1]))


def _order(s: Successors, key: Array) -> Integers:
    source = s.sources
    return np.asarray(np.lexsort((key[s.indices], source)) - s.indptr[source])


class Ways(NamedTuple):
    """By which rows a pair (s, t) of states may go on: rows (a n_X + s, b n_Y + t) for the choices (a, b)."""

    x: Successors
    y: Successors
    shape: tuple[int, int]  # (n_X, n_Y)
    choices: Any  # (C, 2); one, (0, 0), for chains


class Trees(NamedTuple):
    """The edge lists of all items, one after the other."""

    at: Any  # (K + 1,) where the edges of item k begin
    child: Any
    parent: Any
    flow: Any


class Basis(IntEnum):
    """What a sweep may build on."""

    NONE = 0  # nothing: first bases are made
    OTHER = 1  # trees of other marginals: they are repaired, or made anew where that takes longer
    FEASIBLE = 2  # the trees as they are


class Effort(NamedTuple):
    """How far a sweep goes."""

    basis: int
    price: float  # reduced costs above minus this count as zero
    slack: Any  # (K,) flow that an old tree may lack and be left alone (tracking.py); empty for none
    stop: Any  # (1,) whether to give up


# --- kernels -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _rows_of(items, k):
    """The two rows of item k."""
    m_y = items.y.indptr.size - 1
    z = items.listed[k] if items.listed.size else k
    return z // m_y, z % m_y


@njit(cache=True, nogil=True, inline="always")
def _edges(trees, k):
    edges = slice(trees.at[k], trees.at[k + 1])
    return Tree(trees.child[edges], trees.parent[edges], trees.flow[edges])


@njit(cache=True, nogil=True, forceinline=True)
def _first_basis(costs, p, q, order_p, order_q, tree, work):
    """The better of two cheap bases."""
    northwest_corner(p, q, order_p, order_q, tree)
    value = tree_value(tree, costs)
    greedy(costs, p, q, tree, work)
    if value <= tree_value(tree, costs):
        northwest_corner(p, q, order_p, order_q, tree)


@njit(cache=True, nogil=True)
def solve_items(lo, hi, items, trees, W, effort, values):
    """values[k] = OT_W and the optimal basis of every item.

    Returns (pivots, items left unsolved, most mass by which a plan was changed so that it is not negative).
    """
    a, b = longest(items.x), longest(items.y)
    work, scratch = make_work(a + b, effort.stop), np.empty(a * b)
    return _solve_items(lo, hi, items, trees, W, effort, values, work, scratch)


@njit(cache=True, nogil=True)
def _solve_items(lo, hi, items, trees, W, effort, values, work, scratch):
    """The loop; apart, because what is borrowed has to be held by the caller."""
    items, trees, work, effort = borrowed(items), borrowed(trees), borrowed(work), borrowed(effort)
    W, values, scratch = borrowed(W), borrowed(values), borrowed(scratch)
    x, y, n_y = items.x, items.y, items.n_y
    n_x = W.size // n_y
    total, failed, clipped = 0, 0, 0.0
    for k in range(lo, hi):
        i, j = _rows_of(items, k)
        px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
        rows, cols, p, q = x.indices[px], y.indices[py], x.probabilities[px], y.probabilities[py]
        a, b = rows.size, cols.size
        tree = _edges(trees, k)
        costs = Costs(W, n_y, a, b)  # a full table needs no copy
        if a < n_x or b < n_y:
            gather(W, n_y, rows, cols, scratch)
            costs = Costs(scratch, b, a, b)
        feasible, moved = effort.basis == 2, False
        missing = effort.slack[k] if effort.slack.size else 0.0
        price = max(effort.price, PRICED * missing)
        if effort.basis == 1:
            below, cut = tree_flows(tree, p, q, work.net)
            feasible = below == 0.0
            if feasible:
                clipped = max(clipped, cut)
            elif -below <= missing and is_priced_out(costs, tree, work.pot, price):
                values[k] = tree_value(tree, costs)
                continue
            elif -below <= STALE:
                pivots, feasible = repair(costs, tree, work)
                total += pivots
                moved = feasible
        if not feasible:
            _first_basis(costs, p, q, items.order_x[px], items.order_y[py], tree, work)
        pivots, optimal = optimize(costs, tree, work, price)
        if pivots > 0 or moved:
            clipped = max(clipped, true_flows(tree, p, q, work.net))
        total += pivots
        failed += not optimal
        values[k] = tree_value(tree, costs)
    return total, failed, clipped


@njit(cache=True, nogil=True)
def reach(ways, seen, queue, head, tail, cells):
    """Pairs of states that some coupling can reach from those in ``queue[head:tail]`` (already marked in ``seen``).

    Looks at about so many ``cells``; returns where head and tail are then. The pairs are queue[:tail].
    """
    x, y, (n_x, n_y), choices = ways
    while head < tail and cells > 0:
        s, t = queue[head] // n_y, queue[head] % n_y
        head += 1
        for c in range(choices.shape[0]):
            i, j = choices[c, 0] * n_x + s, choices[c, 1] * n_y + t
            cells -= (x.indptr[i + 1] - x.indptr[i]) * (y.indptr[j + 1] - y.indptr[j])
            for e in range(x.indptr[i], x.indptr[i + 1]):
                for h in range(y.indptr[j], y.indptr[j + 1]):
                    z = x.indices[e] * n_y + y.indices[h]
                    if not seen[z]:
                        seen[z] = True
                        queue[tail] = z
                        tail += 1
    return head, tail


@njit(cache=True, nogil=True)
def edge_targets(lo, hi, items, trees, numbers, out):
    """The pair of states that every edge leads to: its flat index or, if there are ``numbers``, its number."""
    items, trees, numbers, out = borrowed(items), borrowed(trees), borrowed(numbers), borrowed(out)
    x, y = items.x, items.y
    for k in range(lo, hi):
        i, j = _rows_of(items, k)
        first_x, first_y, a = x.indptr[i], y.indptr[j], x.indptr[i + 1] - x.indptr[i]
        for e in range(trees.at[k], trees.at[k + 1]):
            s, t = cell(trees.child[e], trees.parent[e], a)
            z = x.indices[first_x + s] * items.n_y + y.indices[first_y + t]
            out[e] = numbers[z] if numbers.size else z


@njit(cache=True, nogil=True)
def _extend(support, pot, others, other_pot, W, stride, other_stride, f):
    """f = pot on the support; elsewhere the c-transform, min over the other side's support of W - other potential."""
    if support.size < f.size:
        for s in range(f.size):
            f[s] = c_transform_at(W, s * stride, other_stride, others, other_pot)
    for k in range(support.size):
        f[support[k]] = pot[k]


@njit(cache=True, nogil=True)
def item_potentials(k, items, trees, W, f, g):
    """Potentials f (n_X,), g (n_Y,) of one item for the table W, extended off the supports by c-transforms."""
    x, y, n_y = items.x, items.y, items.n_y
    i, j = _rows_of(items, k)
    rows, cols = x.indices[x.indptr[i] : x.indptr[i + 1]], y.indices[y.indptr[j] : y.indptr[j + 1]]
    a, b = rows.size, cols.size
    pot, C = np.empty(a + b), np.empty(a * b)
    gather(W, n_y, rows, cols, C)
    tree_potentials(_edges(trees, k), Costs(C, b, a, b), pot)
    _extend(rows, pot[:a], cols, pot[a:], W, n_y, 1, f)
    _extend(cols, pot[a:], rows, pot[:a], W, 1, n_y, g)


@njit(cache=True, nogil=True)
def sum_potentials(lo, hi, items, trees, W, m, sums):
    """sums[0][i] += m_k f_k, sums[1][j] += m_k g_k, dense over states; threads need tables of their own."""
    by_x, by_y = sums
    f, g = np.empty(by_x.shape[1]), np.empty(by_y.shape[1])
    for k in range(lo, hi):
        if m[k] > 0.0:
            i, j = _rows_of(items, k)
            item_potentials(k, items, trees, W, f, g)
            by_x[i] += m[k] * f
            by_y[j] += m[k] * g


@njit(cache=True, nogil=True)
def sum_potentials_on_supports(lo, hi, items, trees, W, m, sums):
    """The same on the stored entries (row, successor) only; threads need tables of their own."""
    by_x, by_y = sums
    x, y = items.x, items.y
    pot, C = np.empty(longest(x) + longest(y)), np.empty(longest(x) * longest(y))
    for k in range(lo, hi):
        if m[k] == 0.0:
            continue
        i, j = _rows_of(items, k)
        px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
        rows, cols = x.indices[px], y.indices[py]
        a, b = rows.size, cols.size
        gather(W, items.n_y, rows, cols, C)
        tree_potentials(_edges(trees, k), Costs(C, b, a, b), pot)
        for s in range(a):
            by_x[px.start + s] += m[k] * pot[s]
        for t in range(b):
            by_y[py.start + t] += m[k] * pot[a + t]


@njit(cache=True, nogil=True)
def solve_one(C, p, q, tree, pot, price, stop):
    """One transport with costs C (a, b) from the tree, where it leaves the optimal one, and its potentials.

    Returns (value, solved?, how far the least reduced cost is below zero, mass by which the plan was changed so that it
    is not negative).
    """
    a, b = C.shape
    costs, work = Costs(C.ravel(), b, a, b), make_work(a + b, stop)
    _, optimal = optimize(costs, tree, work, price)
    clipped = true_flows(tree, p, q, work.net)
    pot[:] = work.pot
    least = 0.0
    for i in range(a):
        for j in range(b):
            least = min(least, C[i, j] - pot[a + j] - pot[i])
    return tree_value(tree, costs), optimal, -least, clipped


@njit(cache=True, nogil=True)
def first_unfit(items, trees, tolerance):
    """The first item whose edges (1) or flows (2) are wrong, and which; (0, 0) if there is none. ``trees.at`` fits.

    For trees from a file: nothing is indexed by what was read before it was looked at.
    """
    x, y = items.x, items.y
    nodes = longest(x) + longest(y)
    seen, left = np.full(nodes, -1, np.int64), np.empty(nodes)
    for k in range(trees.at.size - 1):
        i, j = _rows_of(items, k)
        px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
        a, b = px.stop - px.start, py.stop - py.start
        root = trees.parent[trees.at[k]]
        if not 0 <= root < a + b:
            return k, 1
        seen[root] = k
        left[:a] = x.probabilities[px]
        left[a : a + b] = y.probabilities[py]
        for e in range(trees.at[k], trees.at[k + 1]):
            u, v = np.int64(trees.child[e]), np.int64(trees.parent[e])
            if not (0 <= u < a + b and 0 <= v < a + b) or (u < a) == (v < a):
                return k, 1
            if seen[v] != k or seen[u] == k:  # parents come first, and every other node once
                return k, 1
            seen[u] = k
            left[u] -= trees.flow[e]
            left[v] -= trees.flow[e]
        for node in range(a + b):
            if not abs(left[node]) <= tolerance:
                return k, 2
    return 0, 0


# --- the list ----------------------------------------------------------------------------------------------


class Transports:
    """The trees of a list of items and the sweeps over them.

    ``basis`` says what the next :meth:`solve` may build on, ``clipped`` is the most mass by which the plan of an item
    was changed because its flows were slightly negative.
    """

    def __init__(self, items: Items, threads: int | None = None, trees: Trees | None = None, index: Any = None) -> None:
        self.items, self.threads = items, threads or available_threads()
        m_x, m_y = items.x.indptr.size - 1, items.y.indptr.size - 1
        self.size = items.listed.size or m_x * m_y
        a, b = np.diff(items.x.indptr), np.diff(items.y.indptr)
        self.nodes = int(a.max() + b.max())
        self.trees = self._new_trees(a, b, index) if trees is None else trees
        self.cells = float(self.edges) ** 2 / self.size  # about the cells of all transports, for sharing out work
        self.basis, self.clipped = Basis.NONE, 0.0
        self.pivots = self.sweeps = 0

    def _new_trees(self, a: Integers, b: Integers, index: Any) -> Trees:
        listed, at = self.items.listed, np.zeros(self.size + 1, np.int64)
        if listed.size:
            at[1:] = a[listed // b.size] + b[listed % b.size] - 1
        else:
            np.add.outer(a, b - 1, out=at[1:].reshape(a.size, b.size))
        np.cumsum(at, out=at)
        narrowest = np.int8 if self.nodes <= 128 else np.int16 if self.nodes <= 2**15 else np.int32
        index, edges = index or narrowest, int(at[-1])
        return Trees(at, np.empty(edges, index), np.empty(edges, index), np.empty(edges))

    @property
    def edges(self) -> int:
        """Edges of all trees together."""
        return int(self.trees.at[-1])

    @lazy
    def unbalanced(self) -> float:
        """How far the masses of two rows that are matched may be from one, in total."""
        sides = self.items.x, self.items.y
        return sum(float(np.abs(np.add.reduceat(s.probabilities, s.indptr[:-1]) - 1.0).max()) for s in sides)

    def solve(self, W: Array, values: Array, price: float, slack: Array = NOTHING) -> bool:
        """``values (K,)`` = all transports for the table W; returns whether each was solved to ``price`` and slack."""
        basis, self.basis = self.basis, Basis.NONE  # an interrupted sweep leaves trees of mixed age

        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return solve_items(lo, hi, self.items, self.trees, W, Effort(int(basis), price, slack, stop), values)

        done = split(run, self.size, self.cells, self.threads, wait=self.nodes**2 > 4 * LARGE)
        self.basis = Basis.FEASIBLE
        self.pivots += sum(pivots for pivots, _, _ in done)
        self.sweeps += 1
        before = self.clipped if basis == Basis.FEASIBLE else 0.0
        self.clipped = max(before, *(clipped for _, _, clipped in done))
        return not any(failed for _, failed, _ in done)

    def targets(self, numbers: Integers = NO_NUMBERS) -> NDArray[Any]:
        """The pair of states that every edge of the trees leads to: flat or, by ``numbers``, the pair's number."""
        most = int(numbers.max()) if numbers.size else (int(self.items.x.indices.max()) + 1) * self.items.n_y
        out = np.empty(self.edges, np.int32 if most < 2**31 else np.int64)

        def run(piece: int, lo: int, hi: int, stop: Stop) -> None:
            edge_targets(lo, hi, self.items, self.trees, numbers, out)

        split(run, self.size, float(self.edges), self.threads)
        return out

    def weighted_potentials(self, W: Array, m: Array, shapes: tuple[Any, Any] | None) -> tuple[Array, Array]:
        """``Σ m_k f_k`` by rows of X and ``Σ m_k g_k`` by rows of Y for the table W.

        Dense arrays of these ``shapes`` (rows, states); None for the stored entries of the rows only.
        """
        x, y = self.items.x, self.items.y
        kernel = sum_potentials_on_supports if shapes is None else sum_potentials
        sizes = (x.indices.shape, y.indices.shape) if shapes is None else shapes

        def run(piece: int, lo: int, hi: int, stop: Stop) -> tuple[Array, Array]:
            sums = np.zeros(sizes[0]), np.zeros(sizes[1])
            for first, last in stretches(lo, hi, stretch(self.size, self.cells), stop):
                kernel(first, last, self.items, self.trees, W, m, sums)
            return sums

        pieces = min(self.threads, 1 + int(self.cells // CHUNK))
        (by_x, by_y), *others = split(run, self.size, self.cells, self.threads, pieces)
        for more_x, more_y in others:
            by_x += more_x
            by_y += more_y
        return by_x, by_y


# --- one transport -----------------------------------------------------------------------------------------


def transport_rounding(nodes: int, unbalanced: float, clipped: float) -> float:
    """η₀ for tables of size one (solver.py): how far rounding may put the value of a transport off.

    ``unbalanced`` and ``clipped`` are the masses s and κ.
    """
    return (1.5 * nodes + 2) * EPS + unbalanced + 2 * clipped


class Transport:
    """min <π, C> over couplings of ``p (a,)`` and ``q (b,)``, both positive; keeps its tree between solves.

    ``solved`` says whether the last solve came to its end, ``price`` how far the least reduced cost is below zero, and
    ``slack`` by how much rounding may put the value off for costs of at most one (solver.py, where it is derived): the
    minimum is in [value - price - slack, value + slack].
    """

    def __init__(self, p: Array, q: Array) -> None:
        self.p, self.q = np.ascontiguousarray(p), np.ascontiguousarray(q)
        self._unbalanced = abs(float(self.p.sum()) - 1.0) + abs(float(self.q.sum()) - 1.0)
        self.solved, self.price, self.slack = False, np.inf, np.inf
        edges = p.size + q.size - 1
        self.tree = Tree(np.empty(edges, np.int32), np.empty(edges, np.int32), np.empty(edges))
        self.pot = np.empty(edges + 1)
        northwest_corner(self.p, self.q, np.arange(p.size), np.arange(q.size), self.tree)

    def solve(self, C: Array, price: float) -> float:
        """Value for the cost ``C (a, b)``; plan and potentials can be read afterwards."""
        stop, costs = stop_flag(), np.ascontiguousarray(C)
        given = costs, self.p, self.q, self.tree, self.pot, price, stop
        (found,) = thread_map(solve_one, [given], 1, stop, wait=costs.size > LARGE)
        value, self.solved, self.price, clipped = found
        self.slack = transport_rounding(self.pot.size, self._unbalanced, clipped)
        return float(value)

    def cells(self) -> tuple[Integers, Integers, Array]:
        """Row, column and mass of the plan's cells."""
        u, v = self.tree.child.astype(np.int64), self.tree.parent.astype(np.int64)
        return np.minimum(u, v), np.maximum(u, v) - self.p.size, self.tree.flow

    def potentials(self) -> tuple[Array, Array]:
        """``f (a,)`` and ``g (b,)`` with f + g ≤ C."""
        return self.pot[: self.p.size], self.pot[self.p.size :]
