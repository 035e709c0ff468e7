"""The hot kernel: one small exact optimal transport, warm-started, with potentials (network simplex).

    min Σ_ij π_ij C_ij    s.t.  Σ_j π_ij = p_i,  Σ_i π_ij = q_j,  π ≥ 0                    (a × b cells, p, q > 0)

A basis is a spanning tree on N = a + b nodes: rows are nodes 0…a-1, columns are nodes a…N-1. Every node but the root
keeps its parent and the flow on the edge to it; the potentials satisfy pot[i] + pot[a+j] = C_ij on tree edges. A
pivot brings in a cell of negative reduced cost, pushes flow around the cycle it closes, and drops an edge that runs
empty. Edges with zero flow always point to the root (the tree is *strongly feasible*, Cunningham 1976; the leaving
edge is the last blocking one seen from the apex along the cycle), so degenerate pivots cannot cycle.

While pivoting, the nodes stand in preorder, so that a subtree is a contiguous block: whether a node lies below another
is one comparison, its potentials change in one short loop, and hanging it elsewhere moves a block of memory.

Between two solves of the same transport only the *edge list* is kept (:class:`Tree`): child[k], parent[k], flow[k] for
k = 0…N-2, every node after its parent, so that the root is parent[0]. In that form potentials take one pass forward,
flows for new marginals one pass backward, and the plan has just N - 1 cells, which is what makes policy evaluation
cheap.
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim._compile import njit

NONE = -1

#: Rows priced per pivot: fewer find worse cells, more take longer than a pivot.
BLOCK_ROWS = 8

#: Pivots times nodes between two looks at whether to stop: 0.1 s at most, while most transports take fewer at all.
PATIENCE = 1_000_000

#: Flows this little below zero are rounding, not infeasibility.
TINY = 1e-15

#: A node: parent, place in preorder, size of its subtree, flow on the edge to the parent. One record per node, not
#: one array per field, because a pivot touches all fields of few nodes.
NODE = np.dtype([("par", "i4"), ("pos", "i4"), ("size", "i4"), ("flow", "f8")], align=True)


class Costs(NamedTuple):
    """The costs of one transport inside a larger table, which needs no copy: C_ij = entries[i*stride + j]."""

    entries: Any
    stride: int
    a: int
    b: int


class Tree(NamedTuple):
    """The edge list of a basis, parents first; each array (a + b - 1,)."""

    child: Any
    parent: Any
    flow: Any


class Work(NamedTuple):
    """Scratch of one thread for transports of up to N nodes; each array but the last (N,)."""

    t: Any  # the tree's nodes
    order: Any  # nodes in preorder
    block: Any  # nodes of a subtree that moves
    pot: Any  # potentials
    net: Any  # what is left of the marginals
    stop: Any  # (1,) whether to give up


@njit(cache=True, nogil=True, forceinline=True)
def make_work(nodes, stop):
    """Scratch for transports of up to ``nodes`` rows and columns together."""
    t, order, block = np.empty(nodes, NODE), np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    return Work(t, order, block, np.empty(nodes), np.empty(nodes), stop)


# --- first bases -------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, forceinline=True)
def northwest_corner(p, q, rows, cols, tree):
    """First basis: fill the table corner by corner along the orders ``rows`` (a,) and ``cols`` (b,).

    Comonotone in the two orders, hence optimal at once when the cost is a convex function of the difference of two
    sorted keys. On a tie the next *row* is attached, so that an empty edge points to the root.
    """
    child, parent, flow = tree
    a, b = rows.size, cols.size
    i = j = 0
    left, right = p[rows[0]], q[cols[0]]
    child[0], parent[0] = a + cols[0], rows[0]
    for k in range(a + b - 1):
        last_row, last_col = i == a - 1, j == b - 1
        if last_row and last_col:
            flow[k] = left if child[k] < a else right  # equal but for rounding; the child's own mass is not zero
        else:
            flow[k] = left if last_col else (right if last_row else min(left, right))
        flow[k] = max(flow[k], 0.0)
        if k == a + b - 2:
            break
        if last_col or (not last_row and left <= right):
            right -= left
            i += 1
            left = p[rows[i]]
            child[k + 1], parent[k + 1] = rows[i], a + cols[j]
        else:
            left -= right
            j += 1
            right = q[cols[j]]
            child[k + 1], parent[k + 1] = a + cols[j], rows[i]


@njit(cache=True, nogil=True, forceinline=True)
def greedy(costs, p, q, tree, work):
    """First basis: row by row into the cheapest open columns.

    A row hangs under the last column it fills, a column under the row that exhausts it, the last row is the root;
    on a tie the column closes and the row takes one more, so that an empty edge points to the root. Written backward,
    because parents come later.
    """
    C, stride, a, b = costs
    child, parent, flow = tree
    left, open_cols = work.net, work.block
    k, n_open = a + b - 2, b
    for j in range(b):
        left[j], open_cols[j] = q[j], j
    for i in range(a - 1):
        mass, base = p[i], i * stride
        while True:
            at, least = 0, np.inf
            for o in range(n_open):
                j = open_cols[o]
                if C[base + j] < least:
                    at, least = o, C[base + j]
            j = open_cols[at]
            if mass < left[j] or n_open == 1:
                child[k], parent[k], flow[k] = i, a + j, mass
                left[j] = max(left[j] - mass, 0.0)
                k -= 1
                break
            child[k], parent[k], flow[k] = a + j, i, left[j]
            mass -= left[j]
            k -= 1
            n_open -= 1
            open_cols[at] = open_cols[n_open]
    for o in range(n_open):
        j = open_cols[o]
        child[o], parent[o], flow[o] = a + j, a - 1, left[j]
    if n_open == 1:
        flow[0] = p[a - 1]  # the same but for rounding, and not zero


# --- the edge list -----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def cell(u, v, a):
    """Row and column of the edge between nodes ``u`` and ``v`` (columns are the larger numbers; no branch)."""
    return min(u, v), max(u, v) - a


@njit(cache=True, nogil=True, forceinline=True)
def tree_potentials(tree, costs, pot):
    """pot[i] + pot[a+j] = C_ij along the edge list, zero at the root."""
    child, parent, _ = tree
    C, stride, a, _ = costs
    pot[parent[0]] = 0.0
    for k in range(child.size):
        i, j = cell(child[k], parent[k], a)
        pot[child[k]] = C[i * stride + j] - pot[parent[k]]


@njit(cache=True, nogil=True, forceinline=True)
def tree_value(tree, costs):
    """Σ π_ij C_ij over the tree."""
    child, parent, flow = tree
    C, stride, a, _ = costs
    total = 0.0
    for k in range(child.size):
        i, j = cell(child[k], parent[k], a)
        total += flow[k] * C[i * stride + j]
    return total


@njit(cache=True, nogil=True, forceinline=True)
def tree_flows(tree, p, q, net):
    """Flows of the tree for (new) marginals, leaves first.

    Returns the sum of the negative ones, and of those so little below zero that they are set to zero.
    """
    child, parent, flow = tree
    a, below, clipped = p.size, 0.0, 0.0
    net[:a] = p
    net[a : a + q.size] = -q
    for k in range(child.size - 1, -1, -1):
        v = child[k]
        net[parent[k]] += net[v]
        amount = net[v] if v < a else -net[v]
        flow[k] = amount
        if -TINY < amount < 0.0:
            flow[k] = 0.0
            clipped -= amount
        below += min(flow[k], 0.0)
    return below, clipped


@njit(cache=True, nogil=True, forceinline=True)
def true_flows(tree, p, q, net):
    """Flows of the tree computed afresh, so that the rounding of many pivots is removed.

    What is left of it never makes a plan negative. Returns the mass by which the plan was changed for that.
    """
    below, clipped = tree_flows(tree, p, q, net)
    if below < 0.0:
        for e in range(tree.flow.size):
            tree.flow[e] = max(tree.flow[e], 0.0)
    return clipped - below


@njit(cache=True, nogil=True, forceinline=True)
def _unpack(tree, work):
    """Edge list (parents first) -> tree in preorder; ``order`` serves as scratch for the next free place of a node."""
    child, parent, flow = tree
    t, order = work.t, work.order
    edges, root = child.size, parent[0]
    for v in range(edges + 1):
        t[v].size = 1
    for k in range(edges - 1, -1, -1):
        t[parent[k]].size += t[child[k]].size
    t[root].par, t[root].pos, t[root].flow = NONE, 0, 0.0
    order[root] = 1
    for k in range(edges):
        v, u = child[k], parent[k]
        t[v].par, t[v].flow, t[v].pos = u, flow[k], order[u]
        order[u] += t[v].size
        order[v] = t[v].pos + 1
    for v in range(edges + 1):
        order[t[v].pos] = v


@njit(cache=True, nogil=True, forceinline=True)
def _pack(tree, work):
    """Tree -> edge list in preorder."""
    child, parent, flow = tree
    t, order = work.t, work.order
    for k in range(child.size):
        v = order[k + 1]
        child[k], parent[k], flow[k] = v, t[v].par, t[v].flow


# --- pricing -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _violations(C, base, pot, a, b, threshold):
    """How many j have C[base+j] - pot[a+j] < threshold: a count, because LLVM vectorizes a count but not a minimum.

    Unsigned indices spare numba's test for negative ones, and no slices are made, because each counts references.
    """
    n = 0
    for j in range(b):
        n += C[np.uintp(base + j)] - pot[np.uintp(a + j)] < threshold
    return n


@njit(cache=True, nogil=True, inline="always")
def _entering_cell(costs, pot, start, tol):
    """A cell of reduced cost below -tol: the best of some rows from ``start`` on, and where to look next.

    Returns (row, column, next row); row -1 if there is none in the whole table.
    """
    C, stride, a, b = costs
    least, row, col, i = -tol, NONE, NONE, start
    for seen in range(a):
        base = i * stride
        if _violations(C, base, pot, a, b, pot[i] + least) > 0:
            for j in range(b):
                reduced = C[np.uintp(base + j)] - pot[np.uintp(a + j)] - pot[i]
                if reduced < least:
                    least, row, col = reduced, i, j
        i = i + 1 if i + 1 < a else 0
        if row != NONE and seen >= BLOCK_ROWS - 1:
            break
    return row, col, i


@njit(cache=True, nogil=True, forceinline=True)
def is_priced_out(costs, tree, pot, tol):
    """Whether the potentials of a tree are feasible: no reduced cost is below -tol. Leaves them in ``pot``."""
    tree_potentials(tree, costs, pot)
    return _entering_cell(costs, pot, 0, tol)[0] == NONE


# --- pivots ------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _below(v, u, t):
    """Whether ``v`` is in the subtree of ``u``."""
    return t[u].pos <= t[v].pos < t[u].pos + t[u].size


@njit(cache=True, nogil=True, inline="always")
def _leaving_edge(i, j, a, t):
    """The edge that empties first when flow goes from row node ``i`` to column node ``j``.

    On the side of i the edges above rows lose flow, on the side of j those above columns. Ties: the last blocking
    edge on the way from the apex down to i, over to j, and back up. Returns (its lower node, on i's side?, apex).
    """
    low_i = low_j = np.inf
    out_i = out_j = NONE
    u = i
    while not _below(j, u, t):
        if u < a and t[u].flow < low_i:
            low_i, out_i = t[u].flow, u
        u = t[u].par
    v = j
    while v != u:
        if v >= a and t[v].flow <= low_j:
            low_j, out_j = t[v].flow, v
        v = t[v].par
    if low_i < low_j:
        return out_i, True, u
    return out_j, False, u


@njit(cache=True, nogil=True, inline="always")
def _shift_flow(node, apex, amount, t):
    """Flows from ``node`` up to ``apex``: the first edge loses, the next gains, and so on."""
    while node != apex:
        t[node].flow -= amount
        amount = -amount
        node = t[node].par


@njit(cache=True, nogil=True, inline="always")
def _make_room(start, size, target, t, order):
    """Close the gap of ``size`` places at ``start`` and open one before ``target``; returns where it is then."""
    if start < target:
        for k in range(start + size, target):
            order[k - size] = order[k]
            t[order[k]].pos = k - size
        return target - size
    for k in range(start - 1, target - 1, -1):
        order[k + size] = order[k]
        t[order[k]].pos = k + size
    return target


@njit(cache=True, nogil=True, inline="always")
def _rehang(top, bottom, new_parent, apex, new_flow, work):
    """Cut the subtree of ``top`` off and hang it, turned around, by its node ``bottom`` under ``new_parent``.

    Preorder of the turned subtree: the block of bottom, then for each node on the way up to top the rest of its own
    block. Its nodes are left in ``work.block``, to be put back from the place on that is returned.
    """
    t, order, block = work.t, work.order, work.block
    size, start = t[top].size, t[top].pos
    v = t[top].par
    while v != apex:
        t[v].size -= size
        v = t[v].par
    v = new_parent
    while v != apex:
        t[v].size += size
        v = t[v].par
    n, node, parent, flow = 0, bottom, new_parent, new_flow
    lo = hi = t[bottom].pos
    while True:
        first, last = t[node].pos, t[node].pos + t[node].size
        t[node].size = size - n
        for k in range(first, lo):
            block[n] = order[k]
            n += 1
        for k in range(hi, last):
            block[n] = order[k]
            n += 1
        lo, hi = first, last
        old_parent, old_flow = t[node].par, t[node].flow
        t[node].par, t[node].flow = parent, flow
        if node == top:
            break
        parent, flow, node = node, old_flow, old_parent
    return _make_room(start, size, t[new_parent].pos + 1, t, order)


@njit(cache=True, nogil=True, inline="always")
def _pivot(i, j, out, on_i, apex, amount, costs, work):
    """Cell (i,j) enters with ``amount``, the edge above ``out`` leaves; ``on_i``: it is on i's side of the apex.

    Potentials in the subtree that moves change by the reduced cost of the cell, up on the side (rows or columns) of
    the node it hangs by, down on the other.
    """
    t, pot, a = work.t, work.pot, costs.a
    reduced = costs.entries[i * costs.stride + j] - pot[i] - pot[a + j]
    if amount != 0.0:
        _shift_flow(i, apex, amount, t)
        _shift_flow(a + j, apex, amount, t)
    size = t[out].size
    bottom, new_parent = (i, a + j) if on_i else (a + j, i)
    place = _rehang(out, bottom, new_parent, apex, amount, work)
    for k in range(size):
        v = work.block[k]
        work.order[place + k] = v
        t[v].pos = place + k
        pot[v] += reduced if (v < a) == on_i else -reduced


@njit(cache=True, nogil=True, forceinline=True)
def simplex(costs, tree, work, tol, max_pivots):
    """Primal network simplex from the basis in the edge list, which it replaces by an optimal one.

    Returns (pivots, optimal): optimal means that no reduced cost is below -tol, for potentials computed afresh; they
    are left in ``work.pot``.
    """
    a, t, pot = costs.a, work.t, work.pot
    tree_potentials(tree, costs, pot)
    if a == 1 or costs.b == 1:
        return 0, True
    pivots, at, fresh = 0, 0, True
    while True:
        i, j, at = _entering_cell(costs, pot, at, tol)
        if i == NONE:
            if pivots > 0:
                _pack(tree, work)
            if fresh:
                return pivots, True
            tree_potentials(tree, costs, pot)  # the rounding of many updates is removed, then checked
            fresh = True
            continue
        if pivots == 0:
            _unpack(tree, work)
        if pivots == max_pivots:
            break
        out, on_i, apex = _leaving_edge(i, a + j, a, t)
        _pivot(i, j, out, on_i, apex, t[out].flow, costs, work)
        pivots, fresh = pivots + 1, False
    _pack(tree, work)
    tree_potentials(tree, costs, pot)
    return pivots, False


@njit(cache=True, nogil=True, forceinline=True)
def optimize(costs, tree, work, tol):
    """:func:`simplex` to the end, or until ``work.stop`` is set; returns (pivots, optimal)."""
    nodes = costs.a + costs.b
    pivots, optimal = 0, False
    while not optimal and pivots < 50 * nodes**2 and not work.stop[0]:
        more, optimal = simplex(costs, tree, work, tol, PATIENCE // nodes + 1)
        pivots += more
    return pivots, optimal


# --- other marginals ---------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _crossing_cell(costs, pot, t, out):
    """Cell of least reduced cost that relieves the negative edge above ``out``: into its subtree if out is a row."""
    C, stride, a, b = costs
    row, col, least, inward = NONE, NONE, np.inf, out < a
    for i in range(a):
        if _below(i, out, t) != inward:
            for j in range(b):
                reduced = C[i * stride + j] - pot[i] - pot[a + j]
                if reduced < least and _below(a + j, out, t) == inward:
                    row, col, least = i, j, reduced
    return row, col


@njit(cache=True, nogil=True, forceinline=True)
def repair(costs, tree, work):
    """Dual simplex: make a tree with negative flows feasible, keeping its potentials near optimal.

    The worst edge leaves; of the cells that carry flow the other way between the two halves of the tree, the one of
    least reduced cost enters. When only the marginals changed, the old tree is dual feasible and few pivots do.
    Returns (pivots, feasible); gives up when it takes longer than a fresh start would, or when ``work.stop`` is set.
    """
    a, b, t, flow = costs.a, costs.b, work.t, tree.flow
    tree_potentials(tree, costs, work.pot)
    _unpack(tree, work)
    for pivots in range(2 * (a + b)):
        out, worst = NONE, -TINY
        for v in range(a + b):
            if t[v].flow < worst:
                out, worst = v, t[v].flow
        if out == NONE:
            _pack(tree, work)
            for k in range(flow.size):
                flow[k] = max(flow[k], 0.0)
            return pivots, True
        i, j = _crossing_cell(costs, work.pot, t, out)
        if i == NONE or work.stop[0]:
            break
        apex = i
        while not _below(a + j, apex, t):
            apex = t[apex].par
        _pivot(i, j, out, out >= a, apex, -worst, costs, work)
    return 2 * (a + b), False
