"""Transports between full rows: hundreds of states, each a successor of every other.

All items share one table W, and every row has all states as successors. So an optimal tree of one item is dual feasible
for any other, whatever its marginals. Starting from the tree of a *similar* item, the dual simplex needs far fewer
pivots than the primal simplex needs from a first basis. The items of one row p of X are solved one after the other,
each starting from

    the tree of the earlier item whose row q of Y is nearest, or of the *hub* if that is nearer,

where the hub is p with the mean row of Y. The order of the rows of Y is that of a minimum spanning tree grown from the
mean (:func:`nearest_first`). An item that has a tree from the last sweep starts from that tree, and abandons it only if
it turns out to be far from optimal.

*Near rows.* Pivots depend less on how much mass differs between two rows than on how far it has to move. Every state x
of X maps the states y of Y to numbers, their costs W(x, y), and so a row to a distribution on a line. The distance of
two rows is the mean over x of the Wasserstein distances on these lines,

    d(q, q') = mean over x of ∫ |Pr[W(x, y) < s] - Pr[W(x, y') < s]| ds,    y ~ q, y' ~ q',

estimated from some pairs (x, s) (:func:`profiles`). For the cost 1[x ≠ y] it is proportional to the total variation. If
neither rows nor costs have any structure, all rows are about equally far apart, and nearer to their mean by a factor of
√2.

*The dual pivot.* An edge with negative flow leaves and cuts the tree in two. Among the cells that carry flow back
across the cut, the one with the least reduced cost enters. Only the lines (rows or columns) of the smaller side are
scanned. Memory limits the speed of the scan, so reduced costs are stored as 16-bit integers. They are relative to the
potentials of one common tree (the *center*), which makes them small. A wrong choice costs a primal pivot, never
correctness: flows are in double precision, and the primal simplex that follows prices every cell with the table itself.

*The primal pivot.* The cell with the least reduced cost of every row goes on a list. Cells on the list enter, best
first, until those left are not worth a pivot; then the list is made again. A transport is solved when a list that can
have missed no cell, made from freshly computed potentials, is empty.

So that compiled loops run over whole vectors, the length of a line is a multiple of LANES cells. Nodes are numbered
accordingly: rows from 0, columns from A = a rounded up. The nodes in between have no flow; their cells cost FORBIDDEN.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import njit, uncounted
from diffbisim.common.checks import freeze
from diffbisim.common.parallel import CHUNK, thread_map
from diffbisim.common.stopping import stop_flag
from diffbisim.processes.stochastic import Successors
from diffbisim.solvers.exact.simplex import (
    NODE,
    PRICED,
    STALE,
    TINY,
    Costs,
    Tree,
    _any_below,
    _cycle,
    _end_with,
    _join,
    _pack,
    _pivot,
    _shift_flow,
    _turn,
    _unpack,
    is_priced_out,
    make_work,
    northwest_corner,
    optimize,
    tree_flows,
    tree_potentials,
    tree_value,
    true_flows,
)

LANES = 16
CACHE_LINE = 64  # bytes

#: A reduced cost larger than that of any cell.
FORBIDDEN = np.float32(1e30)

#: Numbers that are compared as integers store their position in these low bits.
PLACE = 0xFFFF

#: How many cells of a cut can be scanned before the scan takes longer than the rest of a dual pivot. Edges with larger
#: cuts leave later than their steepness suggests: this takes a few more pivots, but faster ones.
QUICK = 5000

#: The smallest unit of 16-bit costs, for constant tables.
SMALL = 1e-30

#: The largest reduced cost in 16 bits, in units; potentials get half as much, so that no difference overflows.
SHORT = 16000

#: An item that takes more primal pivots per node than this is far from its old tree. The later items of the row are
#: then assumed to be far from theirs, too.
FAR = 1

#: A listed cell is worth a pivot while its reduced cost is at least this fraction of that of the first one.
WORTH = 0.05

#: Bounds the rounding errors of a reduced cost in single precision, relative to the numbers that it is computed from:
#: these are rounded once and added twice, which gives at most four errors of 2⁻²⁴.
SINGLE = 2.0**-21

#: Tolerance for the center: any nearly optimal tree will do.
ROUGH = 1e-9

#: The number of pairs (x, s) from which distances of rows are estimated.
PROFILE = 128

#: Multiples of the golden ratio modulo one fill the unit interval evenly.
GOLDEN = 0.6180339887498949

#: With fewer states than LEAST in total or THIN in one chain, the general kernels of transports.py are as fast.
LEAST, THIN = 65, 8


class Common(NamedTuple):
    """Data shared by all items of a sweep."""

    table: Any  # (a*b,) a copy of W, flat
    by_rows: Any  # (a*B,) reduced costs with respect to the center's potentials, in single precision
    by_columns: Any  # (b*A,) their transpose
    short_rows: Any  # by_rows as 16-bit integers, in units
    short_columns: Any  # by_columns likewise
    unit: Any  # (1,) chosen so that the largest reduced cost is at most SHORT units
    base: Any  # (a + b,) potentials of the center
    center: Tree  # an optimal tree for W
    mean: Any  # (b,) the mean row of Y
    order: Any  # (m_Y,) the rows of Y, each after the row that it starts from
    near: Any  # (m_Y,) the row that each row starts from; -1 for the mean


class Dual(NamedTuple):
    """Working memory of the dual simplex; arrays over nodes (A + B,), except for the last two."""

    t: Any  # the threaded tree (simplex.py)
    size: Any  # number of nodes in the subtree
    flow: Any  # on the edge to the parent
    score: Any  # of that edge: the one with the largest score leaves (_rate)
    pot: Any  # potentials relative to the base, in single precision
    free: Any  # the same, but -FORBIDDEN for nodes on the scanned side of the cut
    side: Any  # the nodes of that side
    lines: Any  # those of them whose lines are scanned
    best: Any  # (max(A, B),) the least reduced cost at each node across the cut, in units
    weight: Any  # (a + b + 1,) of an edge, by the size of the subtree below it (_rate)


class Cells(NamedTuple):
    """Working memory of the primal simplex: a list of cells that may enter, at most one of each row."""

    row: Any  # (a,) node of the row
    column: Any  # (a,) node of the column
    cost: Any  # (a,) entry of the table
    pot: Any  # (a + b,) potentials relative to the base, in single precision
    best: Any  # (A,) the least reduced cost of each row, up to its potential


class Tools(NamedTuple):
    """Working memory of one thread."""

    work: Any  # Work of simplex.py
    cells: Cells
    dual: Dual
    hub: Tree  # for the present row of X and the mean row of Y


class Ends(NamedTuple):
    """The marginals of a transport, and the orders in which a first basis takes their states."""

    p: Any
    q: Any
    order_p: Any
    order_q: Any


@njit(cache=True, nogil=True)
def profiles(Q, W, stop):
    """Return Pr[W(x, y) < s], y ~ q, for each row q of Y and PROFILE pairs (x, s), spread over all states and costs."""
    m, b = Q.shape
    a, Z = W.size // b, np.zeros((m, PROFILE))
    for k in range(PROFILE):
        x = k * a // PROFILE
        costs = W[x * b : (x + 1) * b]
        s = costs.min() + (k + 1) * GOLDEN % 1.0 * (costs.max() - costs.min())
        for j in range(m):
            for y in range(b):
                Z[j, k] += Q[j, y] if costs[y] < s else 0.0
        if stop[0]:
            break
    return Z


@njit(cache=True, nogil=True)
def nearest_first(Z, stop):
    """Order points so that each is near an earlier one or their mean: a minimum spanning tree (Prim).

    Returns the order and, for each point, the point that it is near, or -1 for the mean. Gives up when ``stop`` is set.
    """
    m, width = Z.shape
    order, near, distance = np.arange(m), np.full(m, -1), np.empty(m)
    mean = np.array([Z[:, k].mean() for k in range(width)])
    for i in range(m):
        distance[i] = np.abs(Z[i] - mean).sum()
    for k in range(m):
        if stop[0]:
            break
        order[k] = j = distance.argmin()
        distance[j] = np.inf
        for i in range(m):
            if distance[i] < np.inf:
                other = 0.0
                for s in range(width):
                    other += abs(Z[i, s] - Z[j, s])
                if other < distance[i]:
                    distance[i], near[i] = other, j
    return order, near


@njit(cache=True, nogil=True)
def _padded(n):
    """Round n up to a multiple of LANES."""
    return -(-n // LANES) * LANES


@njit(cache=True, nogil=True)
def make_dual(a, b):
    """Allocate working memory for transports with a rows and b columns."""
    nodes, A, B = a + b, _padded(a), _padded(b)
    weight = np.empty(nodes + 1)
    for n in range(nodes + 1):
        least = max(min(n, nodes - n), 1)
        weight[n] = 1.0 / (least * np.sqrt(1.0 + least * max(a, b) / QUICK))
    t, size, flow, score = np.zeros(A + B, NODE), np.zeros(A + B, np.int32), np.zeros(A + B), np.zeros(A + B, np.int32)
    pot, free = np.zeros(A + B, np.float32), np.full(A + B, -FORBIDDEN)
    side, lines = np.zeros(A + B, np.uint32), np.zeros(A + B + 3, np.uint32)
    return Dual(t, size, flow, score, pot, free, side, lines, np.empty(max(A, B), np.int16), weight)


@njit(cache=True, nogil=True)
def make_tools(common, stop):
    """Allocate working memory for the transports of a sweep."""
    nodes, b, center = common.base.size, common.mean.size, common.center
    hub = Tree(np.empty_like(center.child), np.empty_like(center.parent), np.empty_like(center.flow))
    a = nodes - b
    nodes_of_cells, cost = np.empty((2, a), np.uint32), np.empty(a)
    near, best = np.empty(nodes, np.float32), np.empty(_padded(a), np.float32)
    cells = Cells(nodes_of_cells[0], nodes_of_cells[1], cost, near, best)
    return Tools(make_work(nodes, stop), cells, make_dual(a, b), hub)


@njit(cache=True, nogil=True)
def reduced_costs(costs, common):
    """Compute the costs minus the base potentials, by rows and by columns, in single precision and in 16 bits."""
    C, stride, a, b = costs
    A, B, base, most = _padded(a), _padded(b), common.base, 0.0
    common.by_rows[:], common.by_columns[:] = FORBIDDEN, FORBIDDEN
    for i in range(a):
        for j in range(b):
            value = C[i * stride + j] - base[i] - base[a + j]
            most = max(most, abs(value))
            common.by_rows[i * B + j], common.by_columns[j * A + i] = np.float32(value), np.float32(value)
    common.unit[0] = max(most / SHORT, SMALL)
    for lines, short in ((common.by_rows, common.short_rows), (common.by_columns, common.short_columns)):
        for k in range(lines.size):
            short[k] = np.int16(min(max(lines[k] / common.unit[0], -SHORT // 2), SHORT))


# --- the dual simplex --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, forceinline=True)
def _rate(v, w):
    """Update the score of the edge above node v, (negative flow)² / (n √(1 + cells / QUICK)); the largest one leaves.

    The smaller side of the cut has n nodes, and their lines have these cells; flow² / n is largest for the steepest
    edge. Nonnegative floating-point numbers have the same order as their bits read as integers. The lowest bits store
    the node, so that one pass finds the largest score and where it is.
    """
    short = min(w.flow[v] + TINY, 0.0)
    score = np.float32(short * short * w.weight[np.uintp(w.size[v])])
    w.score[v] = np.int32((score.view(np.int32) & ~PLACE) | np.int32(v))


@njit(cache=True, nogil=True)
def _load(tree, p, q, pot, base, w):
    """Convert an edge list to a threaded tree with the flows of p and q, which may be negative; return the root."""
    child, parent, _ = tree
    a, nodes = p.size, p.size + q.size
    A = _padded(a)
    gap = A - a
    t, size, flow, order = w.t, w.size, w.flow, w.side
    size[:], flow[:] = 1, 0.0
    flow[:a], flow[A : A + q.size] = p, -q
    order[0] = parent[0] + (gap if parent[0] >= a else 0)
    for k in range(nodes - 1):
        order[k + 1] = child[k] + (gap if child[k] >= a else 0)
    for k in range(nodes - 2, -1, -1):
        u, v = parent[k] + (gap if parent[k] >= a else 0), order[k + 1]
        t[v].par = u
        size[u] += size[v]
        flow[u] += flow[v]
    for v in range(A, A + q.size):
        flow[v] = -flow[v]
    root, before = order[0], order[nodes - 1]
    flow[root], t[root].par = 0.0, root
    for k in range(nodes):
        v = order[k]
        t[before].next, t[v].prev, t[v].last = v, before, order[k + size[v] - 1]
        before = v
        _rate(v, w)
    for v in range(nodes):
        at = v + (gap if v >= a else 0)
        w.pot[at] = w.free[at] = np.float32(pot[v] - base[v])
    return root


@njit(cache=True, nogil=True)
def _unload(tree, a, root, w):
    """Convert the threaded tree to an edge list in preorder."""
    gap, v = _padded(a) - a, root
    for k in range(tree.child.size):
        v = w.t[v].next
        u = w.t[v].par
        tree.child[k], tree.parent[k] = v - (gap if v >= a else 0), u - (gap if u >= a else 0)
        tree.flow[k] = max(w.flow[v], 0.0)


@njit(cache=True, nogil=True, forceinline=True)
def _leaving(w):
    """Return the node below the edge that leaves, or -1 if no flow is negative."""
    score, most = w.score, np.int32(0)
    for v in range(score.size):
        most = max(most, score[np.uintp(v)])
    return most & PLACE if most > PLACE else -1


@njit(cache=True, nogil=True, forceinline=True)
def _least_of_four(C, first, pot, best, width):
    """Set best = min(best, C - pot) cell by cell, over the four lines starting at ``first``; all of one type."""
    (i, j, k, m), (f, g, h, e), kind = first, pot, best.dtype.type
    for c in range(np.uintp(width)):
        one, other = min(kind(C[i + c] - f), kind(C[j + c] - g)), min(kind(C[k + c] - h), kind(C[m + c] - e))
        best[c] = min(best[c], min(one, other))


@njit(cache=True, nogil=True, forceinline=True)
def _in_units(value, per_unit):
    """Return a potential as a 16-bit integer, clipped so that differences cannot overflow."""
    return np.int16(min(max(value * per_unit, np.float32(-SHORT // 2)), np.float32(SHORT // 2)))


@njit(cache=True, nogil=True, forceinline=True)
def _place_of_least(best, per_unit, free, first, width):
    """Return the position with the least best - free, in units; the lowest bits of a cost store its position.

    Rounding to units may make a cost negative by less than two units, so two units are added.
    """
    low = np.int32(LANES - 1)
    while low < width:
        low = np.int32(2 * low + 1)
    at, least, zero, two = np.uintp(first), np.int32(0x7FFFFFFF), np.float32(0.0), np.float32(2.0)
    high = np.int32(~low)
    for c in range(np.uintp(width)):
        cost = np.float32(max(np.float32(best[c]) - free[at + c] * per_unit + two, zero))
        least = min(least, np.int32((cost.view(np.int32) & high) | np.int32(c)))
    return least & low


@njit(cache=True, nogil=True, forceinline=True)
def _side(out, A, nodes, w):
    """List the nodes on the smaller side of the cut above ``out``, and those whose lines can carry flow back across it.

    Within the subtree of ``out`` these are rows if ``out`` is a column and columns otherwise; on the other side it is
    the reverse. Returns (number of nodes, number of lines, whether the lines are rows).
    """
    t, side, lines, free = w.t, w.side, w.lines, w.free
    n, v, u, rows = w.size[out], out, t[out].last, out >= A
    if 2 * n > nodes:
        n, v, u, rows = nodes - n, t[u].next, t[out].prev, not rows
    m, top = 0, lines.size - 1
    end = top
    # Each node is known only once the one before it is loaded, so going from both ends halves the wait. The lines found
    # from the far end are collected at the end of the list.
    for k in range(np.uintp(n // 2)):
        side[np.uintp(2) * k] = lines[np.uintp(m)] = v
        side[np.uintp(2) * k + np.uintp(1)] = lines[np.uintp(end)] = u
        m += (v < A) == rows
        end -= (u < A) == rows
        free[v] = free[u] = -FORBIDDEN
        v, u = t[v].next, t[u].prev
    if n % 2:
        side[n - 1] = lines[m] = v
        m += (v < A) == rows
        free[v] = -FORBIDDEN
    for k in range(np.uintp(top - end)):
        lines[np.uintp(m) + k] = lines[np.uintp(end + 1) + k]
    return n, m + top - end, rows


@njit(cache=True, nogil=True, forceinline=True)
def _entering(m, rows, common, A, B, w):
    """Find the cell of least reduced cost between m lines and the other side of the cut.

    Returns (node of the line, node at the other end, reduced cost). The other end is found with 16-bit costs, so the
    cell may not be exactly the least one; the line and the reduced cost are then computed in single precision.
    """
    C, width, first, across = (common.by_columns, B, 0, A) if rows else (common.by_rows, A, A, 0)
    short = common.short_rows if rows else common.short_columns
    lines, pot, best, unit = w.lines, w.pot, w.best, np.float32(common.unit[0])
    per = np.float32(1.0) / unit
    lines[m : m + 3] = lines[m - 1]  # pad to a multiple of four
    best[:width] = np.int16(2 * SHORT)
    for k in range(np.uintp(0), np.uintp(m), np.uintp(4)):
        i, j, h, e = lines[k], lines[k + np.uintp(1)], lines[k + np.uintp(2)], lines[k + np.uintp(3)]
        at = (
            np.uintp((i - first) * width), np.uintp((j - first) * width), np.uintp((h - first) * width),
            np.uintp((e - first) * width),
        )  # fmt: skip
        shift = _in_units(pot[i], per), _in_units(pot[j], per), _in_units(pot[h], per), _in_units(pot[e], per)
        _least_of_four(short, at, shift, best, width)
    place = np.uintp(_place_of_least(best, per, w.free, across, width))
    line, least, end = lines[0], FORBIDDEN, np.uint32(place + np.uintp(across))
    column = place * np.uintp(A if rows else B) - np.uintp(first)
    for k in range(np.uintp(m)):
        value = C[column + lines[k]] - pot[lines[k]]
        line = lines[k] if value < least else line
        least = min(value, least)
    return line, end, least - w.free[end]


@njit(cache=True, nogil=True, forceinline=True)
def _move(out, bottom, new_parent, A, w):
    """Remove the edge above ``out`` and attach its subtree by the node ``bottom`` to a new parent.

    Like ``_pivot`` of simplex.py, but flows and sizes above both parents are updated in one walk. It uses selections
    instead of branches, which would be unpredictable.
    """
    t, flow, size, n, amount = w.t, w.flow, w.size, w.size[out], -w.flow[out]
    before, last, rows_lose = t[out].prev, t[out].last, out >= A
    u, v = t[out].par, new_parent
    _shift_flow(bottom, u, amount, w)
    _join(before, t[last].next, t)
    _end_with(u, last, before, t)
    while u != v:
        old = size[u] < size[v]
        node = u if old else v
        flow[node] += -amount if ((node < A) == rows_lose) == old else amount
        size[node] += -n if old else n
        _rate(node, w)
        up = t[node].par
        u, v = up if old else u, v if old else up
    last = _turn(out, bottom, new_parent, amount, w)
    node = out
    while node != new_parent:
        _rate(node, w)
        node = t[node].par
    _join(last, t[new_parent].next, t)
    _join(new_parent, bottom, t)
    _end_with(new_parent, new_parent, last, t)


@njit(cache=True, nogil=True)
def repair_dense(tree, p, q, costs, common, tools):
    """Make a tree feasible for p and q by the dual simplex, keeping its potentials nearly optimal.

    Returns (pivots, feasible). It gives up when a fresh start would be faster, or when ``stop`` is set.
    """
    common, w, work = uncounted(common), uncounted(tools.dual), uncounted(tools.work)
    a, nodes, A, B = p.size, p.size + q.size, _padded(p.size), _padded(q.size)
    tree_potentials(tree, costs, work.pot)
    root = _load(tree, p, q, work.pot, common.base, w)
    for pivots in range(3 * nodes):
        lacking = _leaving(w)
        if lacking < 0:
            _unload(tree, a, root, w)
            return pivots, True
        out = np.uint32(lacking)
        n, m, rows = _side(out, A, nodes, w)
        if m == 0 or work.stop[0]:
            break
        line, end, least = _entering(m, rows, common, A, B, w)
        if not least < FORBIDDEN / 2:
            break
        for k in range(np.uintp(n)):
            v = w.side[k]
            w.pot[v] += least if (v < A) == rows else -least
            w.free[v] = w.pot[v]
        bottom, new_parent = (line, end) if rows == (out >= A) else (end, line)
        _move(out, bottom, new_parent, A, w)
    return 3 * nodes, False


# --- the primal simplex ------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, forceinline=True)
def _list_row(i, at, costs, pot, tol, cells):
    """Put the cell of least reduced cost in row i on the list, at position ``at``; returns the position after it.

    If no reduced cost of the row is below -tol, nothing is listed and ``at`` is returned.
    """
    C, stride, a, b = costs
    first, level, most = i * stride, pot[i] - tol, np.int64(0)
    for j in range(b):
        excess = np.float64(max(level - (C[np.uintp(first + j)] - pot[np.uintp(a + j)]), 0.0))
        most = max(most, (excess.view(np.int64) & ~np.int64(PLACE)) | np.int64(j))
    if most <= PLACE:
        return at
    column = most & PLACE
    cells.row[at], cells.column[at], cells.cost[at] = i, a + column, C[first + column]
    return at + 1


@njit(cache=True, nogil=True, forceinline=True)
def _list_all(costs, pot, tol, cells):
    """List the best cell of every row that has a reduced cost below -tol; returns how many there are."""
    C, stride, a, b = costs
    listed = 0
    for i in range(a):
        if _any_below(C, i * stride, pot, a, b, pot[i] - tol):
            listed = _list_row(i, listed, costs, pot, tol, cells)
    return listed


@njit(cache=True, nogil=True, forceinline=True)
def _list_fast(costs, common, pot, tol, sure, cells):
    """Do the same in half the time: rows are selected in single precision.

    If ``sure``, rows within the rounding errors are looked at, too, so that none is missed. Where these errors are not
    small compared with ``tol``, this would be all rows, and :func:`_list_all` is used.
    """
    C, base, near, best = common.by_columns, common.base, cells.pot, cells.best
    a, b, width, listed, largest = costs.a, costs.b, cells.best.size, 0, 0.0
    for v in range(a + b):
        near[v] = np.float32(pot[v] - base[v])
        largest = max(largest, abs(pot[v] - base[v]))
    error = SINGLE * (SHORT * common.unit[0] + largest + tol) if sure else 0.0
    if error > tol / 2:
        return _list_all(costs, pot, tol, cells)
    best[:] = FORBIDDEN
    for j in range(0, b, 4):
        k, m, n = min(j + 1, b - 1), min(j + 2, b - 1), min(j + 3, b - 1)
        at = np.uintp(j * width), np.uintp(k * width), np.uintp(m * width), np.uintp(n * width)
        _least_of_four(C, at, (near[a + j], near[a + k], near[a + m], near[a + n]), best, width)
    for i in range(a):
        if best[i] < near[i] - np.float32(tol - error):
            listed = _list_row(i, listed, costs, pot, tol, cells)
    return listed


@njit(cache=True, nogil=True, forceinline=True)
def _best_listed(listed, pot, tol, cells):
    """Return the position of the listed cell of least reduced cost and how far it is below -tol; (-1, 0) if none is."""
    row, column, cost, most = cells.row, cells.column, cells.cost, np.int64(0)
    for k in range(np.uintp(listed)):
        excess = np.float64(max((pot[row[k]] - tol) - (cost[k] - pot[column[k]]), 0.0))
        most = max(most, (excess.view(np.int64) & ~np.int64(PLACE)) | np.int64(k))
    if most <= PLACE:
        return -1, 0.0
    at = most & PLACE
    return at, (pot[row[at]] - tol) - (cost[at] - pot[column[at]])


@njit(cache=True, nogil=True, forceinline=True)
def _use_list(listed, costs, tol, most, tools):
    """Pivot on listed cells, best first, while they are worth it; return the number of pivots.

    After a pivot the row of the cell gets a new entry. The function returns when the best remaining cell gains much
    less than the first one did, because cells that are not listed may now be better.
    """
    work, cells, pot = tools.work, tools.cells, tools.work.pot
    pivots, enough = 0, 0.0
    while listed > 0 and pivots < most and not work.stop[0]:
        k, excess = _best_listed(listed, pot, tol, cells)
        if k < 0 or excess < enough:
            break
        enough = max(enough, WORTH * excess)
        row = cells.row[k]
        cycle = _cycle(row, cells.column[k], costs.a, work)
        _pivot(cycle, work.flow[cycle.out], costs, work)
        pivots += 1
        if _list_row(np.int64(row), k, costs, pot, tol, cells) == k:
            listed -= 1
            cells.row[k], cells.column[k], cells.cost[k] = cells.row[listed], cells.column[listed], cells.cost[listed]
    return pivots


@njit(cache=True, nogil=True)
def optimize_dense(costs, tree, common, tools, tol, most):
    """Run the primal simplex from a feasible tree, with at most about ``most`` pivots; return (pivots, optimal).

    Like ``simplex`` of simplex.py, but with better entering cells: the best cell of each row is listed, and the list is
    used up before it is made again. Optimality is checked with freshly computed potentials, which are left in
    ``tools.work.pot``.
    """
    costs, common, tools, tree = uncounted(costs), uncounted(common), uncounted(tools), uncounted(tree)
    work, cells = tools.work, tools.cells
    tree_potentials(tree, costs, work.pot)
    pivots, root = 0, np.uint32(0)
    listed = _list_fast(costs, common, work.pot, tol, True, cells)
    if listed == 0:
        return 0, True
    root = _unpack(tree, work)
    while pivots < most and not work.stop[0]:
        pivots += _use_list(listed, costs, tol, most - pivots, tools)
        listed = _list_fast(costs, common, work.pot, tol, False, cells)
        if listed == 0:
            _pack(tree, work, root)
            tree_potentials(tree, costs, work.pot)  # removes the rounding errors of many updates
            listed = _list_fast(costs, common, work.pot, tol, True, cells)
            if listed == 0:
                return pivots, True
    _pack(tree, work, root)
    tree_potentials(tree, costs, work.pot)
    return pivots, False


# --- items -------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _tree_at(trees, k, edges):
    """Return the tree of item k, as views."""
    at = slice(k * edges, (k + 1) * edges)
    return Tree(trees.child[at], trees.parent[at], trees.flow[at])


@njit(cache=True, nogil=True)
def solve_rows(lo, hi, items, trees, common, effort, values):
    """Set values = OT_W and the trees to optimal ones, for all items of the rows lo … hi-1 of X.

    Returns (pivots, number of unsolved items, largest mass that was moved to keep a plan nonnegative).
    """
    tools, (total, failed, clipped) = make_tools(common, effort.stop), (0, 0, 0.0)
    for i in range(lo, hi):
        pivots, left, cut = _solve_row(i, items, trees, common, effort, values, tools)
        total, failed, clipped = total + pivots, failed + left, max(clipped, cut)
    return total, failed, clipped


# The caller keeps the uncounted arrays alive, since it needs the tools for the next row, too.
@njit(cache=True, nogil=True, inline="always")
def _solve_row(i, items, trees, common, effort, values, tools):
    """Solve one row of X with all rows of Y. An item far from its own tree starts from that of a similar item."""
    items, trees, effort, common = uncounted(items), uncounted(trees), uncounted(effort), uncounted(common)
    values, work, hub = uncounted(values), uncounted(tools.work), uncounted(tools.hub)
    b, m_y, nodes = items.n_y, items.y.indptr.size - 1, common.base.size
    a = nodes - b
    px, costs, known, far = slice(i * a, (i + 1) * a), Costs(common.table, b, a, b), False, False
    p, (total, failed, clipped) = items.x.probabilities[px], (0, 0, 0.0)
    for j in common.order:
        k, py = i * m_y + j, slice(j * b, (j + 1) * b)
        q, tree = items.y.probabilities[py], _tree_at(trees, k, nodes - 1)
        missing = effort.slack[k] if effort.slack.size else 0.0
        price, moved, optimal = max(effort.price, PRICED * missing), False, False
        own = effort.basis == 2 and not far
        if effort.basis == 1:
            below, cut = tree_flows(tree, p, q, work.net)
            own = below == 0.0
            if own:
                clipped = max(clipped, cut)
            elif -below <= missing and is_priced_out(costs, tree, work.pot, price):
                values[k] = tree_value(tree, costs)
                continue
            elif -below <= STALE:
                pivots, own = repair_dense(tree, p, q, costs, common, tools)
                total, moved = total + pivots, own
        elif effort.basis == 0 and not far:
            northwest_corner(p, q, items.order_x[px], items.order_y[py], tree)
            own = True
        if own:
            pivots, optimal = optimize_dense(costs, tree, common, tools, price, FAR * nodes)
            total, moved = total + pivots, moved or pivots > 0
        if not optimal:
            to_mean = Ends(p, common.mean, items.order_x[px], items.order_y[py])
            if not known:
                total += _solve_from(common.center, hub, to_mean, costs, common, tools, price)[0]
            near, known, far, moved = common.near[j], True, True, True
            source = _tree_at(trees, i * m_y + near, nodes - 1) if near >= 0 else hub
            ends = Ends(p, q, to_mean.order_p, to_mean.order_q)
            pivots, optimal = _solve_from(source, tree, ends, costs, common, tools, price)
            total += pivots
        if moved:
            clipped = max(clipped, true_flows(tree, p, q, work.net))
        failed += not optimal
        values[k] = tree_value(tree, costs)
    return total, failed, clipped


@njit(cache=True, nogil=True)
def _solve_from(source, tree, ends, costs, common, tools, price):
    """Find the optimal tree between two ``ends``, starting from ``source`` if possible; return (pivots, optimal)."""
    p, q, order_p, order_q = ends
    tree.child[:], tree.parent[:] = source.child, source.parent
    pivots, feasible = repair_dense(tree, p, q, costs, common, tools)
    if not feasible:
        northwest_corner(p, q, order_p, order_q, tree)
    more, optimal = optimize_dense(costs, tree, common, tools, price, 50 * tools.work.pot.size**2)
    return pivots + more, optimal


# --- shared data -------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def prepare(common, p, fresh, stop):
    """Compute the center for the table, starting from the last one unless ``fresh``, and the reduced costs."""
    a, b, nodes = p.size, common.mean.size, common.base.size
    costs, work = Costs(common.table, b, a, b), make_work(nodes, stop)
    if fresh:
        northwest_corner(p, common.mean, np.arange(a), np.arange(b), common.center)
    optimize(costs, common.center, work, ROUGH)
    common.base[:] = work.pot
    reduced_costs(costs, common)


def _aligned(size: int, dtype: Any) -> NDArray[Any]:
    """Return an empty array that starts at a cache line: reading one that does not takes a fifth longer."""
    data = np.empty(size * np.dtype(dtype).itemsize + CACHE_LINE, np.uint8)
    start = -data.ctypes.data % CACHE_LINE
    return data[start : start + size * np.dtype(dtype).itemsize].view(dtype)


def _interruptible(kernel: Any, cells: int, *given: Any) -> Any:
    """Run ``kernel(*given, stop)`` in a thread that can be stopped; it takes seconds for thousands of states."""
    stop = stop_flag()
    return thread_map(kernel, [(*given, stop)], 1, stop, wait=cells > CHUNK)[0]


class Dense:
    """Data shared by the transports between full rows, kept from sweep to sweep.

    Parameters
    ----------
    y : Successors
        The rows of Y, each with all b states.
    a, b : int
        Numbers of states of X and Y.
    index : dtype
        Integer type of the nodes in trees.
    """

    def __init__(self, y: Successors, a: int, b: int, index: Any) -> None:
        Q, edges = y.probabilities.reshape(-1, b), a + b - 1
        mean = freeze(Q.mean(axis=0))  # read-only like the rows, so that kernels see one type
        A, B = _padded(a), _padded(b)
        center = Tree(np.empty(edges, index), np.empty(edges, index), np.empty(edges))
        single = _aligned(a * B, np.float32), _aligned(b * A, np.float32)
        short = _aligned(a * B, np.int16), _aligned(b * A, np.int16)
        order, near = np.arange(len(Q)), np.full(len(Q), -1)
        unit, base = np.empty(1), np.empty(a + b)
        self._common = Common(_aligned(a * b, np.float64), *single, *short, unit, base, center, mean, order, near)
        self._Q, self._uniform, self._fresh = Q, freeze(np.full(a, 1.0 / a)), True

    @staticmethod
    def fits(items: Any, shape: tuple[int, int]) -> bool:
        """Return whether all rows are full and the items are all pairs of rows, in order, for tables of this shape."""
        x, y = items.x, items.y
        rows = (x.indptr.size - 1) * (y.indptr.size - 1)
        full = x.indices.size == (x.indptr.size - 1) * shape[0] and y.indices.size == (y.indptr.size - 1) * shape[1]
        every = items.listed.size == rows and np.array_equal(items.listed, np.arange(rows))
        in_order = every or not items.listed.size
        return full and in_order and min(shape) >= THIN and LEAST <= sum(shape) < PLACE - 2 * LANES

    def common(self, W: NDArray[np.float64]) -> Common:
        """Return the shared data for a sweep with the table W."""
        common = self._common
        common.table[:] = W[: common.table.size]  # states of X beyond are no successors
        _interruptible(prepare, W.size, common, self._uniform, self._fresh)
        Z = _interruptible(profiles, W.size, self._Q, common.table)
        common.order[:], common.near[:] = _interruptible(nearest_first, W.size, Z)
        self._fresh = False
        return common
