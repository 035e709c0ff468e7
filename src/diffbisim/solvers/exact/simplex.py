"""Network simplex for one small optimal transport problem, with warm starts and potentials: the innermost kernel.

    min Σ_ij π_ij C_ij    s.t.  Σ_j π_ij = p_i,  Σ_i π_ij = q_j,  π ≥ 0                    (a × b cells, p, q > 0)

A basis is a spanning tree on N = a + b nodes: rows are nodes 0…a-1, columns are nodes a…N-1. Every node except the root
stores its parent and the flow on the edge to it. The potentials satisfy pot[i] + pot[a+j] = C_ij on tree edges. A pivot
adds a cell with negative reduced cost, pushes flow around the cycle that it closes, and removes an edge whose flow has
become zero. Edges with zero flow always point to the root (the tree is *strongly feasible*, Cunningham 1976; the
leaving edge is the last blocking one seen from the apex along the cycle), so degenerate pivots cannot cycle.

During pivots the nodes are threaded in preorder (Glover, Klingman and Barr; as in LEMON): every node knows the next and
the previous node, the last node of its subtree and the subtree's size. Moving a subtree changes the nodes between its
old and its new top, and the cycle. Potentials are updated on the smaller side of the cut only.

Between two solves of the same transport only the *edge list* is kept (:class:`Tree`): child[k], parent[k], flow[k] for
k = 0…N-2, with every node after its parent, so that the root is parent[0]. In this form, potentials take one forward
pass and flows for new marginals one backward pass, and the plan has only N - 1 cells, which makes policy evaluation
cheap.
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim._compile import njit

NONE = -1

#: Number of rows priced per pivot: with fewer the cells are worse, with more pricing takes longer than the pivot.
BLOCK_ROWS = 4

#: Pivots times nodes between two checks of the stop flag: at most 0.1 s. Most transports need fewer in total.
PATIENCE = 1_000_000

#: Negative flows smaller than this are rounding errors, not infeasibility.
TINY = 1e-15

#: Typical upper bound on the cost of a unit of missing flow: entries are at most one, and transports differ by less.
PRICED = 0.1

#: A tree whose negative flows sum to more than this is discarded, because a first basis is closer to the optimum.
STALE = 0.05

#: A node: its parent (the root is its own parent), its neighbors in cyclic preorder, and the last node of its subtree.
#: One record per node is faster than one array per field, because a pivot uses all fields of few nodes. Unsigned types
#: avoid numba's check for negative indices.
NODE = np.dtype([("par", "u4"), ("next", "u4"), ("prev", "u4"), ("last", "u4")])

#: A potential lower than that of any node, for nodes that must not be chosen.
NOWHERE = -1e300


class Costs(NamedTuple):
    """The costs of one transport as part of a larger table, without a copy: C_ij = entries[i*stride + j]."""

    entries: Any
    stride: int
    a: int
    b: int


class Tree(NamedTuple):
    """The edge list of a basis, parents first; each array (a + b - 1,)."""

    child: Any
    parent: Any
    flow: Any


class Cycle(NamedTuple):
    """A pivot: the cell of nodes (i, j) enters, and an edge of the cycle that it closes leaves."""

    i: Any  # node of the row
    j: Any  # node of the column
    apex: Any  # lowest common ancestor of i and j
    out: Any  # lower node of the leaving edge
    on_i: Any  # whether that edge is between i and the apex


class Work(NamedTuple):
    """Working memory of one thread for transports with up to N nodes; all arrays but the last have shape (N,)."""

    t: Any  # the nodes of the tree
    size: Any  # sizes of their subtrees
    flow: Any  # on the edges to their parents
    order: Any  # a list of nodes
    block: Any  # another list of nodes
    pot: Any  # potentials
    net: Any  # remaining marginals, or masked potentials
    stop: Any  # (1,) flag that tells kernels to stop


@njit(cache=True, nogil=True, forceinline=True)
def make_work(nodes, stop):
    """Allocate working memory for transports with up to ``nodes`` rows and columns in total."""
    t, size, flow = np.empty(nodes, NODE), np.empty(nodes, np.int32), np.empty(nodes)
    order, block = np.empty(nodes, np.uint32), np.empty(nodes, np.int32)
    return Work(t, size, flow, order, block, np.empty(nodes), np.empty(nodes), stop)


# --- first bases -------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, forceinline=True)
def northwest_corner(p, q, rows, cols, tree):
    """Find a first basis by the northwest corner rule along the orders ``rows`` (a,) and ``cols`` (b,).

    The plan is comonotone in the two orders. It is optimal if the cost is a convex function of the difference of two
    keys and both orders sort them. On a tie the next *row* is attached, so that an empty edge points to the root.
    """
    child, parent, flow = tree
    a, b = rows.size, cols.size
    i = j = 0
    left, right = p[rows[0]], q[cols[0]]
    child[0], parent[0] = a + cols[0], rows[0]
    for k in range(a + b - 1):
        last_row, last_col = i == a - 1, j == b - 1
        if last_row and last_col:
            flow[k] = left if child[k] < a else right  # equal up to rounding; the child's own mass is positive
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
    """Find a first basis by assigning each row to its cheapest open columns.

    The parent of a row is the last column that it uses, the parent of a column is the row that fills it, and the last
    row is the root. On a tie the column closes and the row takes one more, so that an empty edge points to the root.
    The edge list is written backward, because parents are found later.
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
        flow[0] = p[a - 1]  # equal up to rounding, and positive


# --- the edge list -----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def cell(u, v, a):
    """Return row and column of the edge between nodes ``u`` and ``v`` (columns have larger numbers; no branch)."""
    return min(u, v), max(u, v) - a


@njit(cache=True, nogil=True, forceinline=True)
def tree_potentials(tree, costs, pot):
    """Compute the potentials, pot[i] + pot[a+j] = C_ij on all edges, with zero at the root."""
    child, parent, _ = tree
    C, stride, a, _ = costs
    pot[parent[0]] = 0.0
    for k in range(child.size):
        i, j = cell(child[k], parent[k], a)
        pot[child[k]] = C[i * stride + j] - pot[parent[k]]


@njit(cache=True, nogil=True, forceinline=True)
def tree_value(tree, costs):
    """Return Σ π_ij C_ij over the edges of the tree."""
    child, parent, flow = tree
    C, stride, a, _ = costs
    total = 0.0
    for k in range(child.size):
        i, j = cell(child[k], parent[k], a)
        total += flow[k] * C[i * stride + j]
    return total


@njit(cache=True, nogil=True, forceinline=True)
def tree_flows(tree, p, q, net):
    """Compute the flows of the tree for (new) marginals, leaves first.

    Returns the sum of the negative flows, and the absolute sum of those above -TINY, which are set to zero.
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
    """Recompute the flows of the tree, which removes the rounding errors of many pivots.

    Remaining negative flows are set to zero. Returns the total mass by which this changes the plan.
    """
    below, clipped = tree_flows(tree, p, q, net)
    if below < 0.0:
        for e in range(tree.flow.size):
            tree.flow[e] = max(tree.flow[e], 0.0)
    return clipped - below


@njit(cache=True, nogil=True, forceinline=True)
def _unpack(tree, work):
    """Convert an edge list (parents first) to a threaded tree; return its root.

    ``block`` holds the next free position in preorder within each subtree.
    """
    child, parent, flow = tree
    t, size, order, place = work.t, work.size, work.order, work.block
    edges, root = child.size, np.uint32(parent[0])
    size[: edges + 1] = 1
    for k in range(edges - 1, -1, -1):
        size[parent[k]] += size[child[k]]
    t[root].par, t[root].last, work.flow[root] = root, edges, 0.0
    order[0], place[root] = root, 1
    for k in range(edges):
        v, u = np.uint32(child[k]), np.uint32(parent[k])
        at = place[u]
        t[v].par, t[v].last, work.flow[v] = u, at + size[v] - 1, flow[k]
        order[at] = v
        place[u], place[v] = at + size[v], at + 1
    before = order[edges]
    for k in range(edges + 1):
        v = order[k]
        t[before].next, t[v].prev, t[v].last = v, before, order[t[v].last]
        before = v
    return root


@njit(cache=True, nogil=True, forceinline=True)
def _pack(tree, work, root):
    """Convert the threaded tree to an edge list in preorder."""
    child, parent, flow = tree
    v = root
    for k in range(child.size):
        v = work.t[v].next
        child[k], parent[k], flow[k] = v, work.t[v].par, work.flow[v]


# --- pricing -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _any_below(C, base, pot, first, n, threshold):
    """Return whether C[base+j] - pot[first+j] < threshold for some j < n.

    Counting takes a third of the time of a minimum. Unsigned indices avoid numba's check for negative ones, and slices
    are avoided because each updates a reference count.
    """
    found = 0
    for j in range(n):
        found += C[np.uintp(base + j)] - pot[np.uintp(first + j)] < threshold
    return found > 0


@njit(cache=True, nogil=True, forceinline=True, fastmath={"nnan", "nsz", "reassoc"})
def _least(C, base, pot, first, n):
    """Return min_j C[base+j] - pot[first+j] over n cells, in any order, so that LLVM can vectorize it."""
    least = np.inf
    for j in range(n):
        least = min(least, C[np.uintp(base + j)] - pot[np.uintp(first + j)])
    return least


@njit(cache=True, nogil=True, inline="always")
def _where(C, base, pot, first, n, value):
    """Return the first j where C[base+j] - pot[first+j] is the least ``value``; NONE if there is none (NaN)."""
    for j in range(n):
        if C[np.uintp(base + j)] - pot[np.uintp(first + j)] <= value:
            return j
    return NONE


@njit(cache=True, nogil=True, inline="always")
def _entering_cell(costs, pot, start, tol):
    """Find a cell with reduced cost below -tol: the best one of a few rows from ``start`` on.

    Returns (row, column, row to continue from); the row is NONE if the whole table has no such cell.
    """
    C, stride, a, b = costs
    least, best, row, i = -tol, 0.0, NONE, start
    for seen in range(a):
        if _any_below(C, i * stride, pot, a, b, pot[i] + least):
            found = _least(C, i * stride, pot, a, b)
            if found - pot[i] < least:
                least, best, row = found - pot[i], found, i
        i = i + 1 if i + 1 < a else 0
        if row != NONE and seen >= BLOCK_ROWS - 1:
            break
    col = _where(C, row * stride, pot, a, b, best) if row != NONE else NONE
    return row if col != NONE else NONE, col, i


@njit(cache=True, nogil=True, forceinline=True)
def is_priced_out(costs, tree, pot, tol):
    """Return whether no reduced cost is below -tol for the potentials of a tree, which are left in ``pot``."""
    tree_potentials(tree, costs, pot)
    return _entering_cell(costs, pot, 0, tol)[0] == NONE


# --- pivots ------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _apex(u, v, work):
    """Return the lowest common ancestor of two nodes. Selections take the place of an unpredictable branch."""
    t, size = work.t, work.size
    while u != v:
        first = size[u] < size[v]
        up = t[u if first else v].par
        u, v = up if first else u, v if first else up
    return u


@njit(cache=True, nogil=True, inline="always")
def _cycle(i, j, a, work):
    """Find the cycle for flow from row node ``i`` to column node ``j``, and the edge that becomes empty first.

    On the side of i the edges above rows lose flow, on the side of j those above columns. A tie is resolved in favor of
    the last blocking edge on the path from the apex down to i, across to j, and back up.
    """
    t, size, flow = work.t, work.size, work.flow
    low_i = low_j = np.inf
    out_i, out_j, u, v = i, j, i, j
    while u != v:  # the smaller subtree is not an ancestor of the other node
        on_i = size[u] < size[v]
        node = u if on_i else v
        left = flow[node] if (node < a) == on_i else np.inf
        less_i, less_j = on_i and left < low_i, not on_i and left <= low_j
        low_i, out_i = left if less_i else low_i, node if less_i else out_i
        low_j, out_j = left if less_j else low_j, node if less_j else out_j
        up = t[node].par
        u, v = up if on_i else u, v if on_i else up
    on_i = low_i < low_j
    return Cycle(i, j, u, out_i if on_i else out_j, on_i)


@njit(cache=True, nogil=True, inline="always")
def _shift_flow(node, apex, amount, work):
    """Update the flows from ``node`` up to ``apex``: the first edge loses ``amount``, the next gains it, and so on."""
    while node != apex:
        work.flow[node] -= amount
        amount = -amount
        node = work.t[node].par


@njit(cache=True, nogil=True, inline="always")
def _join(u, v, t):
    """Make v the node after u in preorder."""
    t[u].next, t[v].prev = v, u


@njit(cache=True, nogil=True, inline="always")
def _carry(node, apex, amount, by, a, work):
    """Update flows and sizes from ``node`` up to ``apex``.

    Edges above nodes of the same kind (row or column) as ``node`` lose ``amount``, the others gain it. All subtrees
    grow by ``by`` nodes.
    """
    row = node < a
    while node != apex:
        work.flow[node] += -amount if (node < a) == row else amount
        work.size[node] += by
        node = work.t[node].par


@njit(cache=True, nogil=True, inline="always")
def _end_with(node, old, new, t):
    """Set the last node to ``new`` for the subtrees, from ``node`` upward, whose last node is ``old``."""
    while t[node].last == old:
        t[node].last = new
        if t[node].par == node:
            break
        node = t[node].par


@njit(cache=True, nogil=True, inline="always")
def _turn(top, bottom, new_parent, new_flow, work):
    """Reroot the detached subtree of ``top`` at ``bottom``, whose parent becomes ``new_parent``; return its last node.

    The new preorder is that of the subtree of bottom, followed, for each node on the path up to top, by the rest of its
    own subtree. So for a node and its parent ``up``, the parts of the subtree of ``up`` before and after that of the
    node are joined and appended to the tail.
    """
    t, size, flow, total = work.t, work.size, work.flow, work.size[top]
    node, parent, carried, inner = bottom, new_parent, new_flow, 0
    before, last, tail = t[bottom].prev, t[bottom].last, t[bottom].last
    after = t[last].next
    while True:
        up = t[node].par
        flow[node], carried = carried, flow[node]
        size[node], inner = total - inner, size[node]
        t[node].par = parent
        if node == top:
            break
        before_up, end, after_up = t[up].prev, t[up].last, after
        if end == last:
            end = before  # the node's subtree came last
        else:
            after_up = t[end].next
            _join(before, after, t)
        last = t[up].last
        _join(tail, up, t)
        node, parent, tail, before, after = up, node, end, before_up, after_up
    while node != bottom:
        t[node].last = tail
        node = t[node].par
    t[bottom].last = tail
    return tail


@njit(cache=True, nogil=True, inline="always")
def _pivot(cycle, amount, costs, work):
    """Let the cell of a cycle enter with the flow ``amount``, and the edge above its node ``out`` leave.

    In the subtree that moves, the potentials of the nodes of the same kind (row or column) as its new root increase by
    the reduced cost of the cell, and those of the other kind decrease by it. If the subtree has more than half of the
    nodes, the opposite change is made to all other nodes instead.
    """
    i, j, apex, out, on_i = cycle
    t, pot, a, n = work.t, work.pot, costs.a, work.size[out]
    reduced = costs.entries[i * costs.stride + (j - a)] - pot[i] - pot[j]
    bottom, new_parent = (i, j) if on_i else (j, i)
    before, last, old_parent = t[out].prev, t[out].last, t[out].par
    _shift_flow(bottom, old_parent, amount, work)
    _carry(old_parent, apex, amount if (old_parent < a) == (bottom < a) else -amount, -n, a, work)
    _carry(new_parent, apex, amount, n, a, work)
    _join(before, t[last].next, t)
    _end_with(old_parent, last, before, t)
    last = _turn(out, bottom, new_parent, amount, work)
    _join(last, t[new_parent].next, t)
    _join(new_parent, bottom, t)
    _end_with(new_parent, new_parent, last, t)
    v, u, up = bottom, last, reduced if on_i else -reduced
    if 2 * n > a + costs.b:
        v, u, up, n = t[last].next, new_parent, -up, a + costs.b - n
    for _ in range(n // 2):  # from both ends, because each node is known only once the one before it is loaded
        pot[v] += up if v < a else -up
        pot[u] += up if u < a else -up
        v, u = t[v].next, t[u].prev
    if n % 2:
        pot[v] += up if v < a else -up


@njit(cache=True, nogil=True, forceinline=True)
def simplex(costs, tree, work, tol, max_pivots):
    """Run the primal network simplex from the basis in the edge list, which is replaced by an optimal one.

    Returns (pivots, optimal), where optimal means that no reduced cost is below -tol for freshly computed potentials,
    which are left in ``work.pot``.
    """
    a, pot = costs.a, work.pot
    tree_potentials(tree, costs, pot)
    if a == 1 or costs.b == 1:
        return 0, True
    pivots, at, fresh, root = 0, 0, True, np.uint32(0)
    while True:
        row, col, at = _entering_cell(costs, pot, at, tol)
        if row == NONE:
            if pivots > 0:
                _pack(tree, work, root)
            if fresh:
                return pivots, True
            tree_potentials(tree, costs, pot)  # removes the rounding errors of many updates before the final check
            fresh = True
            continue
        if pivots == 0:
            root = _unpack(tree, work)
        if pivots == max_pivots:
            break
        cycle = _cycle(np.uint32(row), np.uint32(a + col), a, work)
        _pivot(cycle, work.flow[cycle.out], costs, work)
        pivots, fresh = pivots + 1, False
    _pack(tree, work, root)
    tree_potentials(tree, costs, pot)
    return pivots, False


@njit(cache=True, nogil=True, forceinline=True)
def optimize(costs, tree, work, tol):
    """Run :func:`simplex` to optimality or until ``work.stop`` is set; return (pivots, optimal)."""
    nodes = costs.a + costs.b
    pivots, optimal = 0, False
    while not optimal and pivots < 50 * nodes**2 and not work.stop[0]:
        more, optimal = simplex(costs, tree, work, tol, PATIENCE // nodes + 1)
        pivots += more
    return pivots, optimal


# --- new marginals -----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _lack(flow, size, nodes):
    """Return the squared missing flow divided by the size of the smaller side of the cut (dual steepest edge)."""
    short = min(flow + TINY, 0.0)
    return short * short / max(min(size, nodes - size), 1)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})
def _most_lack(flow, size, nodes):
    """Return the largest :func:`_lack` of all edges."""
    most = 0.0
    for v in range(nodes):
        most = max(most, _lack(flow[np.uintp(v)], size[np.uintp(v)], nodes))
    return most


@njit(cache=True, nogil=True, error_model="numpy")
def _lacking_edge(work, nodes):
    """Return the lower node of the edge that leaves; NONE if no flow is negative."""
    most = _most_lack(work.flow, work.size, nodes)
    if most > 0.0:
        for v in range(nodes):
            if work.flow[v] < -TINY and _lack(work.flow[v], work.size[v], nodes) >= most:
                return v
    return NONE


@njit(cache=True, nogil=True)
def _crossing_cell(out, costs, columns, work):
    """Find the cell (i,j) of least reduced cost that can replace the flow of the edge above ``out``.

    Only the lines (rows or columns) of the smaller side of the cut are scanned, and the nodes of that side are masked.
    Returns (i, j, whether there is one).
    """
    t, pot, masked, side, a = work.t, work.pot, work.net, work.order, costs.a
    nodes, n, v, rows = a + costs.b, work.size[out], out, out >= a
    if 2 * n > nodes:
        n, v, rows = nodes - n, t[t[out].last].next, not rows
    for u in range(nodes):
        masked[u] = pot[u]
    for k in range(n):
        side[k], masked[v], v = v, NOWHERE, t[v].next
    if rows:
        lines, lo, hi, first = costs, 0, a, a
    else:
        lines, lo, hi, first = columns, a, nodes, 0
    C, stride, _, width = lines
    least, value, at = -NOWHERE / 2, 0.0, out
    for k in range(n):
        u = side[k]
        if lo <= u < hi and _any_below(C, (u - lo) * stride, masked, first, width, pot[u] + least):
            found = _least(C, (u - lo) * stride, masked, first, width)
            if found - pot[u] < least:
                least, value, at = found - pot[u], found, u
    other = _where(C, (at - lo) * stride, masked, first, width, value) if least < -NOWHERE / 2 else NONE
    end = np.uint32(max(other, 0) + first)
    return at if rows else end, end if rows else at, other != NONE


@njit(cache=True, nogil=True)
def repair(costs, columns, tree, work):
    """Make a tree with negative flows feasible by the dual simplex, keeping its potentials nearly optimal.

    The edge that lacks the most flow leaves. Among the cells that carry flow in the other direction between the two
    parts of the tree, the one with the least reduced cost enters. If only the marginals have changed, the old tree is
    dual feasible, and few pivots are needed. ``columns`` are the same costs by columns.

    Returns (pivots, feasible). It gives up when a fresh start would be faster, or when ``work.stop`` is set.
    """
    a, nodes = costs.a, costs.a + costs.b
    tree_potentials(tree, costs, work.pot)
    root = _unpack(tree, work)
    for pivots in range(3 * nodes):
        lacking = _lacking_edge(work, nodes)
        if lacking == NONE:
            _pack(tree, work, root)
            for k in range(tree.flow.size):
                tree.flow[k] = max(tree.flow[k], 0.0)
            return pivots, True
        out = np.uint32(lacking)
        i, j, found = _crossing_cell(out, costs, columns, work)
        if not found or work.stop[0]:
            break
        _pivot(Cycle(i, j, _apex(i, j, work), out, out >= a), -work.flow[out], costs, work)
    return 3 * nodes, False
