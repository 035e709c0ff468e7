"""Transports between distributions on the same states: what both have in common stays.

If the table W is a metric, some optimal plan leaves the mass min(p, q) in place (the triangle inequality), and what is
left goes from *sources*, the states with p > q, to *sinks*, those with q > p:

    OT_W(p, q) = OT_W((p - q)⁺, (q - p)⁺)

With full rows that has half of the nodes and a quarter of the cells. Tables of an iteration are metrics only in the
limit, so this is a way to good trees and no more: a tree of what is left, with an edge (s, s) for every state s of both
sides, is a tree of the whole transport (it is *staying*), and the simplex goes on from there over all cells.

A state with as much mass on both sides is no source and no sink. Its row hangs under the column that suits it best, by
an edge without flow, so that the tree is strongly feasible (simplex.py).
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim._compile import njit
from diffbisim.solvers.exact.simplex import (
    NONE,
    Costs,
    Tree,
    cell,
    greedy,
    optimize,
    tree_potentials,
    true_flows,
)
from diffbisim.solvers.successors import gather

#: What is left is solved by itself where it has at most this share of the nodes, of transports with so many cells.
SHARE, CELLS = 0.75, 64


class Rest(NamedTuple):
    """What is left of a transport with a rows and b columns at most; sources and sinks are numbered one by one."""

    rows: Any  # (a + 1,) the states of the sources, and of the sinks (b + 1,)
    cols: Any
    p: Any  # (a + 1,) what they have too much, and lack (b + 1,)
    q: Any
    node_p: Any  # (a + 1,) their nodes in the whole tree
    node_q: Any
    source: Any  # (a + 1,) the number of every row; NONE if it is no source
    sink: Any  # (b + 1,) the number of every column
    costs: Any  # (a*b,)
    tree: Tree


class Whole(NamedTuple):
    """A transport as it is: supports, ascending, marginals and tree."""

    rows: Any
    cols: Any
    p: Any
    q: Any
    tree: Tree


@njit(cache=True, nogil=True)
def make_rest(a, b, trees):
    """Scratch for transports of up to a rows and b columns."""
    n, m = a + 1, b + 1
    tree = Tree(np.empty(a + b, trees.child.dtype), np.empty(a + b, trees.child.dtype), np.empty(a + b))
    return Rest(
        np.empty(n, np.int64), np.empty(m, np.int64), np.empty(n), np.empty(m), np.empty(n, np.int64),
        np.empty(m, np.int64), np.empty(n, np.int64), np.empty(m, np.int64), np.empty(a * b), tree,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _split_mass(whole, rest):
    """Fills in sources and sinks; returns how many there are, and how many states have as much on both sides."""
    rows, cols, p, q, _ = whole
    a, b = rows.size, cols.size
    i = j = m = n = ties = 0
    while i < a or j < b:
        no_col = j == b or (i < a and rows[i] < cols[j])
        no_row = i == a or (j < b and cols[j] < rows[i])
        state = cols[j] if no_row else rows[i]
        more = p[i] if no_col else (-q[j] if no_row else p[i] - q[j])
        rest.rows[m], rest.p[m], rest.node_p[m], rest.source[i] = state, more, i, m if more > 0.0 else NONE
        rest.cols[n], rest.q[n], rest.node_q[n], rest.sink[j] = state, -more, a + j, n if more < 0.0 else NONE
        m, n, ties = m + (more > 0.0), n + (more < 0.0), ties + (more == 0.0)
        i, j = i + (not no_row), j + (not no_col)
    return m, n, ties


@njit(cache=True, nogil=True)
def _expand(whole, m, n, rest):
    """The whole tree from that of what is left; of states with as much on both sides, only that they stay.

    Returns how many edges there are so far.
    """
    rows, cols, p, q, (child, parent, flow) = whole
    a, b, k = rows.size, cols.size, m + n - 1
    for e in range(k):
        u, v = rest.tree.child[e], rest.tree.parent[e]
        child[e] = rest.node_p[u] if u < m else rest.node_q[u - m]
        parent[e] = rest.node_p[v] if v < m else rest.node_q[v - m]
        flow[e] = rest.tree.flow[e]
    i = j = 0
    while i < a and j < b:
        if rows[i] == cols[j]:
            if p[i] != q[j]:
                up = p[i] > q[j]
                child[k], parent[k], flow[k] = a + j if up else i, i if up else a + j, min(p[i], q[j])
                k += 1
            i, j = i + 1, j + 1
        elif rows[i] < cols[j]:
            i += 1
        else:
            j += 1
    return k


@njit(cache=True, nogil=True)
def _hang_ties(whole, m, n, k, W, n_y, rest, work):
    """The states with as much on both sides, by edges from the k-th on, under the columns that suit them best."""
    rows, cols, _, q, (child, parent, flow) = whole
    a, b = rows.size, cols.size
    pot, i, j = work.pot, 0, 0
    tree_potentials(_small(m, n, rest), Costs(rest.costs, n, m, n), pot)
    while i < a and j < b:
        if rows[i] == cols[j]:
            if rest.source[i] == NONE and rest.sink[j] == NONE:
                at, least = 0, np.inf
                for t in range(n):
                    cost = W[rows[i] * n_y + rest.cols[t]] - pot[m + t]
                    if cost < least:
                        at, least = t, cost
                child[k], parent[k], flow[k] = i, rest.node_q[at], 0.0
                child[k + 1], parent[k + 1], flow[k + 1] = a + j, i, q[j]
                k += 2
            i, j = i + 1, j + 1
        elif rows[i] < cols[j]:
            i += 1
        else:
            j += 1


@njit(cache=True, nogil=True)
def _small(m, n, rest):
    """The tree of what is left."""
    edges = m + n - 1
    return Tree(rest.tree.child[:edges], rest.tree.parent[:edges], rest.tree.flow[:edges])


@njit(cache=True, nogil=True)
def staying_basis(whole, W, n_y, rest, work):
    """First basis: common mass stays, the rest goes row by row to the nearest; whether there is one.

    There is none where nothing is left, or only what rounding has left.
    """
    m, n, ties = _split_mass(whole, rest)
    if m == 0 or n == 0:
        return _stay(whole, ties)
    gather(W, n_y, rest.rows[:m], rest.cols[:n], rest.costs)
    greedy(Costs(rest.costs, n, m, n), rest.p[:m], rest.q[:n], _small(m, n, rest), work)
    k = _expand(whole, m, n, rest)
    if ties > 0:
        _hang_ties(whole, m, n, k, W, n_y, rest, work)
    return True


@njit(cache=True, nogil=True, forceinline=True)
def staying_full(whole, W, nearest, work):
    """:func:`staying_basis` of full rows, with the states by their distance from each, ``nearest (n*n,)``.

    Returns its value; infinite if none was made, because some state has as much mass on both sides.
    """
    _, _, p, q, (child, parent, flow) = whole
    n, left, root, n_open = p.size, work.net, NONE, 0
    for i in range(n):
        more, k = p[i] - q[i], n - 1 + i
        if more == 0.0:
            return np.inf
        child[k], parent[k], flow[k] = n + i if more > 0.0 else i, i if more > 0.0 else n + i, min(p[i], q[i])
        root, n_open, left[i] = i if more > 0.0 else root, n_open + (more < 0.0), max(-more, 0.0) - (more > 0.0)
    if root == NONE or n_open == 0:
        return np.inf
    k, value = n - 2, 0.0
    for i in range(root):
        mass = p[i] - q[i]
        for e in range(i * n, (i + 1) * n if mass > 0.0 else 0):
            j = nearest[e]
            if left[j] < 0.0:
                continue
            last = mass < left[j] or n_open == 1
            moved = mass if last else left[j]
            child[k], parent[k], flow[k] = i if last else n + j, n + j if last else i, moved
            k, value = k - 1, value + moved * W[i * n + j]
            if last:
                left[j] = max(left[j] - mass, 0.0)
                break
            mass, left[j], n_open = mass - moved, -1.0, n_open - 1
    k = 0
    for j in range(n):
        if left[j] >= 0.0:
            moved = left[j] if n_open > 1 else p[root] - q[root]  # the same but for rounding, and not zero
            child[k], parent[k], flow[k] = n + j, root, moved
            k, value = k + 1, value + moved * W[root * n + j]
    return value


@njit(cache=True, nogil=True)
def _stay(whole, ties):
    """The basis between two equal distributions: all stays; whether they are."""
    rows, cols, _, q, (child, parent, flow) = whole
    a, b = rows.size, cols.size
    if not ties == a == b:
        return False
    child[0], parent[0], flow[0] = a, 0, q[0]
    for i in range(1, a):
        k = 2 * i - 1
        child[k], parent[k], flow[k] = i, a, 0.0
        child[k + 1], parent[k + 1], flow[k + 1] = a + i, i, q[i]
    return True


@njit(cache=True, nogil=True)
def _contract(whole, m, n, rest):
    """The tree of what is left from that of the whole; whether it is staying."""
    rows, cols, _, _, (child, parent, flow) = whole
    a, k, tree = rows.size, 0, rest.tree
    for e in range(child.size):
        u, v = child[e], parent[e]
        i, j = cell(u, v, a)
        if rows[i] == cols[j]:
            continue
        s, t = rest.source[i], rest.sink[j]
        if s == NONE or t == NONE:
            return False
        up = u < v
        tree.child[k], tree.parent[k], tree.flow[k] = s if up else m + t, m + t if up else s, flow[e]
        k += 1
    return k == m + n - 1


@njit(cache=True, nogil=True)
def solve_rest(whole, W, n_y, rest, work, price):
    """Improve a staying tree by that of what is left, where this is shorter.

    Returns (pivots, mass by which the plan was changed so that it is not negative).
    """
    rows, cols, p, q, tree = whole
    m, n, ties = _split_mass(whole, rest)
    if ties > 0 or min(m, n) < 2 or m + n > SHARE * (rows.size + cols.size) or not _contract(whole, m, n, rest):
        return 0, 0.0
    gather(W, n_y, rest.rows[:m], rest.cols[:n], rest.costs)
    pivots, _ = optimize(Costs(rest.costs, n, m, n), _small(m, n, rest), work, price)
    _expand(whole, m, n, rest)
    return pivots, true_flows(tree, p, q, work.net)
