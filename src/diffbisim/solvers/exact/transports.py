"""Many optimal transports over one cost table; the optimal basis of each is kept from sweep to sweep.

An *item* is a pair (row i of X, row j of Y), and its transport

    OT_W(P_X(·|i), P_Y(·|j)) = min over couplings π of <π, W>

takes its costs from a table W over pairs of states that all items share. For two chains the rows are the states and
the items are the pairs of states (all of them, or those that can be reached from the starts). The code does not depend
on this: rows can also be state-action pairs or the steps of a horizon.

For each item we keep its spanning tree (simplex.py), which has a + b - 1 edges for a and b successors. When there are
very many items, only the edges are stored (*narrow* trees): the flows follow from the marginals, and the position of a
tree in the list follows from the numbers of successors.

The sweeps are compiled (engine/transports.hpp). Here are the lists of items, the memory of their trees, and what a run
keeps from sweep to sweep.

*Kernels that are not replaced yet.* They are used by games, batches of small problems and evaluation.

Threads are plain Python threads that run numba code without the GIL. They are started for one sweep and joined at its
end, which is safe when several Python threads use the same object and in forked processes; numba's own thread pools are
not. A sweep that is too small to benefit from a second thread runs in the caller. Sums over threads are taken in a
fixed order, so the same call gives the same bits. Pieces are small, so an interrupt takes effect at once.

The kernels work on the items k = lo…hi-1 and write only to the entries of these items. Notation:

    z = i m_Y + j         flat row pair of an item, m_Y rows of Y
    p (a,), q (b,)        the two distributions, on their supports ``rows`` and ``cols``
    W, v (n_X*n_Y,)       tables over pairs of states, flat; n_Y their number of columns
"""

import tempfile
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim._compile import keep_alive, njit, uncounted
from diffbisim.parallel import CHUNK, Stop, split
from diffbisim.problem import Array, available_threads, lazy
from diffbisim.solvers.exact.dense import Dense, solve_rows
from diffbisim.solvers.exact.simplex import (
    PRICED,
    STALE,
    Costs,
    Tree,
    Work,
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
from diffbisim.stopping import engine_run

Integers = NDArray[np.int64]

EPS = float(np.finfo(float).eps)
NOTHING: Array = np.empty(0)

#: A transport with more cells than this, or a block with several times as many, runs in another thread, so that an
#: interrupt takes effect at once.
LARGE = 1_000_000

#: Trees are narrow from MANY edges on, provided that no two rows have more than FEW successors together.
MANY, FEW = 2 * CHUNK, 64

#: How many narrow trees are checked for optimality before those that failed are solved.
STALE_AT_ONCE = 1024

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
    stop: Any  # (1,) set to abandon the sweep


class Sweep(NamedTuple):
    """One pass over the items: solve their transports for the table W, starting from their trees."""

    items: Items
    trees: Trees
    W: Any  # (n_X*n_Y,)
    effort: Effort


class Scratch(NamedTuple):
    """Working memory of one thread for transports of up to a rows and b columns."""

    work: Work  # of the simplex
    costs: Any  # (2 (a b + a + b),): costs, flows of narrow trees, transposed costs


class Marginals(NamedTuple):
    """The two distributions of an item, and the order in which a first basis takes their entries."""

    p: Any
    q: Any
    order_p: Any
    order_q: Any


# --- kernels -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _rows_of(items, k):
    """The two rows of item k."""
    m_y = items.y.indptr.size - 1
    z = items.listed[k] if items.listed.size else k
    return z // m_y, z % m_y


@njit(cache=True, nogil=True, inline="always")
def first_edge(items, trees, k):
    """The first edge of item k. Narrow trees compute it: Σ (a + b - 1) over all pairs of rows before this one."""
    if trees.at.size:
        return trees.at[k]
    x, y = items.x.indptr, items.y.indptr
    i, j = k // (y.size - 1), k % (y.size - 1)
    return (y.size - 1) * (x[i] - i) + i * items.y.indices.size + j * (x[i + 1] - x[i] - 1) + y[j]


@njit(cache=True, nogil=True, inline="always")
def _edges(items, trees, k, n, spare):
    """The tree of item k, which has n nodes; a narrow tree uses ``spare`` for its flows."""
    first = first_edge(items, trees, k)
    edges = slice(first, first + n - 1)
    return Tree(trees.child[edges], trees.parent[edges], trees.flow[edges] if trees.flow.size else spare[: n - 1])


@njit(cache=True, nogil=True, forceinline=True)
def _first_basis(costs, marginals, tree, work, price):
    """The better of two bases that are cheap to build; the first one if it is optimal."""
    p, q, order_p, order_q = marginals
    northwest_corner(p, q, order_p, order_q, tree)
    if is_priced_out(costs, tree, work.pot, price):
        return
    value = tree_value(tree, costs)
    greedy(costs, p, q, tree, work)
    if value <= tree_value(tree, costs):
        northwest_corner(p, q, order_p, order_q, tree)


@njit(cache=True, nogil=True)
def make_scratch(sweep):
    """Working memory for the items of a sweep."""
    a, b = longest(sweep.items.x), longest(sweep.items.y)
    return Scratch(make_work(a + b, sweep.effort.stop), np.empty(2 * (a * b + a + b)))


@njit(cache=True, nogil=True)
def solve_items(lo, hi, sweep, values):
    """values[k] = OT_W of every item; its tree becomes optimal.

    Returns (pivots, number of unsolved items, largest mass that was moved to keep a plan nonnegative).
    """
    scratch = make_scratch(sweep)
    done = _solve_items(lo, hi, sweep, values, scratch)
    keep_alive(scratch)
    return done


@njit(cache=True, nogil=True)
def _transpose(costs, columns):
    """``columns`` = the transpose of the costs."""
    for i in range(costs.a):
        for j in range(costs.b):
            columns.entries[j * costs.a + i] = costs.entries[i * costs.stride + j]


@njit(cache=True, nogil=True, inline="always")  # inlined, so that it is not compiled separately as well
def _solve_items(lo, hi, sweep, values, scratch):
    """The loop of :func:`solve_items`, separate because the caller must keep uncounted arrays alive."""
    sweep, values, scratch = uncounted(sweep), uncounted(values), uncounted(scratch)
    (items, trees, W, effort), (work, memory) = sweep, scratch
    half = memory.size // 2
    spare, transposed = memory[half - work.pot.size : half], memory[half:]
    x, y, n_y = items.x, items.y, items.n_y
    n_x = W.size // n_y
    total, failed, clipped = 0, 0, 0.0
    current = False  # whether ``transposed`` holds the transpose of the present costs
    for k in range(lo, hi):
        if not trees.at.size and not np.isnan(values[k]):
            continue  # a narrow tree that is known to be optimal
        i, j = _rows_of(items, k)
        px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
        rows, cols, p, q = x.indices[px], y.indices[py], x.probabilities[px], y.probabilities[py]
        a, b = rows.size, cols.size
        full = a == n_x and b == n_y
        tree = _edges(items, trees, k, a + b, spare)
        costs, columns = Costs(W, n_y, a, b), Costs(transposed, a, b, a)
        if not full:
            gather(W, n_y, rows, cols, memory)
            costs = Costs(memory, b, a, b)
        feasible, moved, current = effort.basis == 2, False, current and full
        missing = effort.slack[k] if effort.slack.size else 0.0
        price = max(effort.price, PRICED * missing)
        if feasible and not trees.flow.size:
            true_flows(tree, p, q, work.net)
        if effort.basis == 1:
            below, cut = tree_flows(tree, p, q, work.net)
            feasible = below == 0.0
            if feasible:
                clipped = max(clipped, cut)
            elif -below <= missing and is_priced_out(costs, tree, work.pot, price):
                values[k] = tree_value(tree, costs)
                continue
            elif -below <= STALE:
                if not current:
                    _transpose(costs, columns)
                current = full
                pivots, feasible = repair(costs, columns, tree, work)
                total += pivots
                moved = feasible
        if not feasible:
            _first_basis(costs, Marginals(p, q, items.order_x[px], items.order_y[py]), tree, work, price)
        pivots, optimal = optimize(costs, tree, work, price)
        if pivots > 0 or moved:
            clipped = max(clipped, true_flows(tree, p, q, work.net))
        total += pivots
        failed += not optimal
        values[k] = tree_value(tree, costs)
    return total, failed, clipped


# --- narrow trees ------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def solve_narrow(lo, hi, sweep, plans, values):
    """:func:`solve_items` for narrow trees: skips those that are still optimal, and updates the plans of the others."""
    scratch = make_scratch(sweep)
    stale, (total, failed, clipped) = np.empty(STALE_AT_ONCE, np.bool_), (0, 0, 0.0)
    for first in range(lo, hi, stale.size):
        last = min(first + stale.size, hi)
        if sweep.effort.basis == 2:
            _check_trees(first, last, sweep, values)
        else:
            values[first:last] = np.nan
        for k in range(first, last):
            stale[k - first] = np.isnan(values[k])
        pivots, left, cut = _solve_items(first, last, sweep, values, scratch)
        total, failed, clipped = total + pivots, failed + left, max(clipped, cut)
        if plans.flow.size:
            read_plans(first, last, sweep.items, sweep.trees, stale, plans.target, plans.flow)
    keep_alive(scratch)
    return total, failed, clipped


@njit(cache=True, nogil=True)
def _check_trees(lo, hi, sweep, values):
    """values[k] = OT_W, from the potentials of its tree, where the tree is still optimal; NaN elsewhere.

    Most sweeps change few trees and do little more than this, so the loop goes by rows of pairs and makes no slices.
    Every node has a ``place`` in the table such that the cell of a row and a column is at the sum of their places.
    """
    sweep, values = uncounted(sweep), uncounted(values)
    (items, trees, W, _), price = sweep, sweep.effort.price
    x, y, m_y = items.x, items.y, items.y.indptr.size - 1
    nodes = longest(x) + longest(y)
    place, mass, pot = np.empty(nodes, np.uintp), np.empty(nodes), np.empty(nodes)
    k = lo
    while k < hi:
        i, e = k // m_y, np.uintp(first_edge(items, trees, k))
        a = _place_row(place, mass, 0, x, i, items.n_y)
        for j in range(k - i * m_y, min(m_y, hi - i * m_y)):
            b = _place_row(place, mass, a, y, j, 1)
            value, worst = 0.0, 0
            pot[np.uintp(trees.parent[e])] = 0.0
            for _ in range(a + b - 1):
                c, p = np.uintp(trees.child[e]), np.uintp(trees.parent[e])
                pot[c] = W[place[c] + place[p]] - pot[p]
                value += mass[c] * pot[c]
                e += np.uintp(1)
            for s in range(np.uintp(a)):
                for t in range(np.uintp(a), np.uintp(a + b)):
                    worst += W[place[s] + place[t]] - pot[t] < pot[s] - price
            values[np.uintp(k)] = value if worst == 0 else np.nan
            k += 1


@njit(cache=True, nogil=True, inline="always")
def _place_row(place, mass, first, side, i, stride):
    """Enter row i of one side as the nodes from ``first`` on; returns how many there are."""
    start = side.indptr[i]
    n = side.indptr[i + 1] - start
    for s in range(n):
        place[np.uintp(first + s)] = side.indices[np.uintp(start + s)] * stride
        mass[np.uintp(first + s)] = side.probabilities[np.uintp(start + s)]
    return n


@njit(cache=True, nogil=True)
def read_plans(lo, hi, items, trees, stale, target, flow):
    """The plans of narrow trees, all or the ``stale`` ones: the flow and, unless empty, the target of every edge."""
    items, trees, target, flow = uncounted(items), uncounted(trees), uncounted(target), uncounted(flow)
    x, y, m_y = items.x, items.y, items.y.indptr.size - 1
    nodes = longest(x) + longest(y)
    place, left = np.empty(nodes, np.uintp), np.empty(nodes)
    for k in range(lo, hi):
        if stale.size and not stale[k - lo]:
            continue
        i, j, first = k // m_y, k % m_y, first_edge(items, trees, k)
        a = _place_row(place, left, 0, x, i, items.n_y)
        b = _place_row(place, left, a, y, j, 1)
        for back in range(2, a + b + 1):
            e = np.uintp(first + a + b - back)
            c, p = np.uintp(trees.child[e]), np.uintp(trees.parent[e])
            left[p] -= left[c]
            flow[e] = max(left[c], 0.0)
            if target.size:
                target[e] = place[c] + place[p]


# --- reading trees -----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def reach(successors, seen, queue, head, tail, cells):
    """Pairs of states that some coupling can reach from those in ``queue[head:tail]`` (already marked in ``seen``).

    Stops after about ``cells`` cells and returns the new head and tail. The pairs found are queue[:tail].
    """
    x, y, (n_x, n_y), choices = successors
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
    """The pair of states that every edge leads to: its flat index or, if ``numbers`` are given, its number."""
    items, trees, numbers, out = uncounted(items), uncounted(trees), uncounted(numbers), uncounted(out)
    x, y = items.x, items.y
    for k in range(lo, hi):
        i, j = _rows_of(items, k)
        first_x, first_y, a = x.indptr[i], y.indptr[j], x.indptr[i + 1] - x.indptr[i]
        first = first_edge(items, trees, k)
        for e in range(first, first + a + y.indptr[j + 1] - first_y - 1):
            s, t = cell(trees.child[e], trees.parent[e], a)
            z = x.indices[first_x + s] * items.n_y + y.indices[first_y + t]
            out[e] = numbers[z] if numbers.size else z


class Strides(NamedTuple):
    """A flat table seen from one side: steps between its own states, and between those of the other side."""

    entries: Any
    own: Any
    other: Any


@njit(cache=True, nogil=True)
def _extend(support, pot, others, other_pot, table, f):
    """f = pot on the support; elsewhere the c-transform, min over the other side's support of W - other potential."""
    if support.size < f.size:
        for s in range(f.size):
            f[s] = c_transform_at(table.entries, s * table.own, table.other, others, other_pot)
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
    tree_potentials(_edges(items, trees, k, a + b, pot), Costs(C, b, a, b), pot)
    _extend(rows, pot[:a], cols, pot[a:], Strides(W, n_y, np.int64(1)), f)  # a literal 1 would be another type
    _extend(cols, pot[a:], rows, pot[:a], Strides(W, np.int64(1), n_y), g)


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
    """:func:`sum_potentials` on the stored entries (row, successor) only; threads need tables of their own."""
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
        tree_potentials(_edges(items, trees, k, a + b, pot), Costs(C, b, a, b), pot)
        for s in range(a):
            by_x[px.start + s] += m[k] * pot[s]
        for t in range(b):
            by_y[py.start + t] += m[k] * pot[a + t]


@njit(cache=True, nogil=True)
def solve_one(C, p, q, tree, pot, price, stop):
    """Solve one transport with costs C (a, b), starting from the tree; writes the optimal tree and its potentials.

    Returns (value, solved?, how far the least reduced cost is below zero, mass that was moved to keep the plan
    nonnegative).
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
    """The first invalid item and what is wrong with it: edges (1) or flows (2); (0, 0) if all are valid.

    For trees from a file, with a ``trees.at`` that is known to be right: nothing is used as an index before it was
    checked.
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
        self.core.flows(flow, engine_run(self.threads))
        return flow

    @property
    def core(self) -> _engine.Transports:
        """The compiled list; made when it is first used, and again after pickling."""
        if self._core is None:
            self._core = _engine.Transports(self.items, self.trees)
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

    @lazy
    def dense(self) -> Dense | None:
        """For full rows: the solver that reuses the trees of similar items."""
        shape = int(self.items.x.indices.max()) + 1, self.items.n_y
        return Dense(self.items.y, *shape, self.trees.child.dtype) if Dense.fits(self.items, shape) else None

    def solve(self, W: Array, values: Array, price: float, slack: Array = NOTHING) -> bool:
        """``values (K,)`` = all transports for the table W; returns whether all were solved to ``price`` and slack."""
        basis, self.basis = self.basis, Basis.NONE  # an interrupted sweep leaves trees of mixed age
        effort = Effort(int(basis), price, slack, None)
        if self.dense is None:
            pivots, failed, clipped = self.core.solve(W, values, effort, self.single, engine_run(self.threads))
        else:
            pivots, failed, clipped = self._solve_rows(self.dense.common(W), effort, values)
        self.basis = Basis.FEASIBLE
        self.pivots += pivots
        self.sweeps += 1
        self.clipped = max(self.clipped if basis == Basis.FEASIBLE else 0.0, clipped)
        return not failed

    def _solve_rows(self, common: Any, effort: Effort, values: Array) -> tuple[int, int, float]:
        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return solve_rows(lo, hi, self.items, self.trees, common, effort._replace(stop=stop), values)

        rows = self.items.x.indptr.size - 1
        pivots, failed, clipped = zip(*split(run, rows, self.cells, self.threads), strict=True)
        return sum(pivots), sum(failed), max(clipped)

    def targets(self, numbers: Integers = NO_NUMBERS) -> NDArray[Any]:
        """The pair of states that every edge leads to: its flat index or, if ``numbers`` are given, its number."""
        most = int(numbers.max()) if numbers.size else (int(self.items.x.indices.max()) + 1) * self.items.n_y
        targets: NDArray[Any] = np.empty(self.edges, np.int32 if most < 2**31 else np.int64)
        self.core.targets(numbers, targets, engine_run(self.threads))
        return targets

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


def transport_rounding(nodes: int, unbalanced: float, clipped: float, by_potentials: bool = False) -> float:
    """η₀ of solver.py for tables of size one: the largest effect of rounding on the value of a transport.

    ``unbalanced`` and ``clipped`` are the masses s and κ.
    """
    more = by_potentials * (0.5 * nodes * EPS + 2 * clipped)
    return (1.5 * nodes + 2) * EPS + unbalanced + 2 * clipped + more


class Transport:
    """min <π, C> over couplings of ``p (a,)`` and ``q (b,)``, both positive; keeps its tree between solves.

    ``solved`` says whether the last solve finished, ``price`` is how far the least reduced cost is below zero, and
    ``slack`` bounds the effect of rounding for costs of at most one (derived in solver.py): the minimum is in
    [value - price - slack, value + slack].
    """

    def __init__(self, p: Array, q: Array) -> None:
        self.p, self.q = np.ascontiguousarray(p), np.ascontiguousarray(q)
        self._unbalanced = abs(float(self.p.sum()) - 1.0) + abs(float(self.q.sum()) - 1.0)
        self.solved, self.price, self.slack = False, np.inf, np.inf
        edges = p.size + q.size - 1
        self.tree = Tree(np.empty(edges, np.int32), np.empty(edges, np.int32), np.empty(edges))
        self.pot = np.empty(edges + 1)
        _engine.first_tree(self.p, self.q, self.tree)

    def solve(self, C: Array, price: float) -> float:
        """The value for the cost ``C (a, b)``; plan and potentials can be read afterwards."""
        found = _engine.solve_one(C.ravel(), self.p, self.q, self.tree, price, self.pot, engine_run())
        value, self.solved, self.price, clipped = found
        self.slack = transport_rounding(self.pot.size, self._unbalanced, clipped)
        return value

    def cells(self) -> tuple[Integers, Integers, Array]:
        """Row, column and mass of the plan's cells."""
        u, v = self.tree.child.astype(np.int64), self.tree.parent.astype(np.int64)
        return np.minimum(u, v), np.maximum(u, v) - self.p.size, self.tree.flow

    def potentials(self) -> tuple[Array, Array]:
        """``f (a,)`` and ``g (b,)`` with f + g ≤ C."""
        return self.pot[: self.p.size], self.pot[self.p.size :]
