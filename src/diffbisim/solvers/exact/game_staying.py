"""Transports between distributions on the same states: mass that both have in common stays in place.

If the table W is a metric, some optimal plan leaves the mass min(p, q) in place (by the triangle inequality). Only the
remaining mass moves, from *sources*, the states with p > q, to *sinks*, the states with q > p:

    OT_W(p, q) = OT_W((p - q)⁺, (q - p)⁺)

For full rows, this *reduced* transport has half of the nodes and a quarter of the cells. The tables of an iteration are
metrics only in the limit, so it only serves to find good trees: a tree of the reduced transport, plus an edge (s, s)
for every state s of both sides, is a tree of the original one (we call it *staying*), and the simplex continues from
there over all cells.

A state with equal mass on both sides (a *tie*) is neither a source nor a sink. Its row is attached to the column of
least reduced cost by an edge without flow, so that the tree is strongly feasible (simplex.py).
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

#: The reduced transport is solved first if it has at most this share of the nodes and the original one has at least so
#: many cells.
SHARE, CELLS = 0.75, 64


class Reduced(NamedTuple):
    """The reduced transport, with space for a sources and b sinks, which are numbered consecutively."""

    rows: Any  # (a + 1,) the states of the sources
    cols: Any  # (b + 1,) the states of the sinks
    p: Any  # (a + 1,) the mass that leaves each source
    q: Any  # (b + 1,) the mass that each sink receives
    node_p: Any  # (a + 1,) their nodes in the original tree
    node_q: Any
    source: Any  # (a + 1,) the number of every row among the sources; NONE if it is not one
    sink: Any  # (b + 1,) the number of every column among the sinks
    costs: Any  # (a*b,)
    tree: Tree


class Original(NamedTuple):
    """A transport before reduction: supports in ascending order, marginals and tree."""

    rows: Any
    cols: Any
    p: Any
    q: Any
    tree: Tree


@njit(cache=True, nogil=True)
def make_reduced(a, b, trees):
    """Working memory for transports of up to a rows and b columns."""
    n, m = a + 1, b + 1
    tree = Tree(np.empty(a + b, trees.child.dtype), np.empty(a + b, trees.child.dtype), np.empty(a + b))
    return Reduced(
        np.empty(n, np.int64), np.empty(m, np.int64), np.empty(n), np.empty(m), np.empty(n, np.int64),
        np.empty(m, np.int64), np.empty(n, np.int64), np.empty(m, np.int64), np.empty(a * b), tree,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _split_mass(original, reduced):
    """Find the sources and sinks; returns their numbers and the number of ties."""
    rows, cols, p, q, _ = original
    a, b = rows.size, cols.size
    i = j = m = n = ties = 0
    while i < a or j < b:
        no_col = j == b or (i < a and rows[i] < cols[j])
        no_row = i == a or (j < b and cols[j] < rows[i])
        state = cols[j] if no_row else rows[i]
        more = p[i] if no_col else (-q[j] if no_row else p[i] - q[j])
        reduced.rows[m], reduced.p[m], reduced.node_p[m] = state, more, i
        reduced.cols[n], reduced.q[n], reduced.node_q[n] = state, -more, a + j
        reduced.source[i], reduced.sink[j] = m if more > 0.0 else NONE, n if more < 0.0 else NONE
        m, n, ties = m + (more > 0.0), n + (more < 0.0), ties + (more == 0.0)
        i, j = i + (not no_row), j + (not no_col)
    return m, n, ties


@njit(cache=True, nogil=True)
def _expand(original, m, n, reduced):
    """The original tree from the reduced one, with the edges (s, s) but without ties; returns its number of edges."""
    rows, cols, p, q, (child, parent, flow) = original
    a, b, k = rows.size, cols.size, m + n - 1
    for e in range(k):
        u, v = reduced.tree.child[e], reduced.tree.parent[e]
        child[e] = reduced.node_p[u] if u < m else reduced.node_q[u - m]
        parent[e] = reduced.node_p[v] if v < m else reduced.node_q[v - m]
        flow[e] = reduced.tree.flow[e]
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
def _attach_ties(original, costs, k, W, n_y, reduced, work):
    """Attach ties to the columns of least reduced cost, by edges from the k-th on; ``costs`` are the reduced ones."""
    rows, cols, _, q, (child, parent, flow) = original
    a, b = rows.size, cols.size
    pot, i, j, m, n = work.pot, 0, 0, costs.a, costs.b
    tree_potentials(_reduced_tree(m, n, reduced), costs, pot)
    while i < a and j < b:
        if rows[i] == cols[j]:
            if reduced.source[i] == NONE and reduced.sink[j] == NONE:
                at, least = 0, np.inf
                for t in range(n):
                    cost = W[rows[i] * n_y + reduced.cols[t]] - pot[m + t]
                    if cost < least:
                        at, least = t, cost
                child[k], parent[k], flow[k] = i, reduced.node_q[at], 0.0
                child[k + 1], parent[k + 1], flow[k + 1] = a + j, i, q[j]
                k += 2
            i, j = i + 1, j + 1
        elif rows[i] < cols[j]:
            i += 1
        else:
            j += 1


@njit(cache=True, nogil=True)
def _reduced_tree(m, n, reduced):
    """The tree of the reduced transport, for m sources and n sinks."""
    edges = m + n - 1
    return Tree(reduced.tree.child[:edges], reduced.tree.parent[:edges], reduced.tree.flow[:edges])


@njit(cache=True, nogil=True)
def staying_basis(original, W, n_y, reduced, work):
    """First basis: common mass stays, the remaining mass goes row by row to the nearest sinks.

    Returns whether a basis was built: not if nothing remains, or only rounding errors.
    """
    m, n, ties = _split_mass(original, reduced)
    if m == 0 or n == 0:
        return _stay(original, ties)
    gather(W, n_y, reduced.rows[:m], reduced.cols[:n], reduced.costs)
    costs = Costs(reduced.costs, n, m, n)
    greedy(costs, reduced.p[:m], reduced.q[:n], _reduced_tree(m, n, reduced), work)
    k = _expand(original, m, n, reduced)
    if ties > 0:
        _attach_ties(original, costs, k, W, n_y, reduced, work)
    return True


@njit(cache=True, nogil=True, forceinline=True)
def staying_full(original, W, nearest, work):
    """:func:`staying_basis` for full rows, given the states sorted by their distance from each, ``nearest (n*n,)``.

    Returns the value of the basis; infinite if none was built because of a tie.
    """
    _, _, p, q, (child, parent, flow) = original
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
def _stay(original, ties):
    """The basis between two equal distributions, which moves nothing; returns whether they are equal."""
    rows, cols, _, q, (child, parent, flow) = original
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
def _contract(original, m, n, reduced):
    """The reduced tree from the original one; returns whether the latter is staying."""
    rows, cols, _, _, (child, parent, flow) = original
    a, k, tree = rows.size, 0, reduced.tree
    for e in range(child.size):
        u, v = child[e], parent[e]
        i, j = cell(u, v, a)
        if rows[i] == cols[j]:
            continue
        s, t = reduced.source[i], reduced.sink[j]
        if s == NONE or t == NONE:
            return False
        up = u < v
        tree.child[k], tree.parent[k], tree.flow[k] = s if up else m + t, m + t if up else s, flow[e]
        k += 1
    return k == m + n - 1


@njit(cache=True, nogil=True)
def solve_reduced(original, W, n_y, reduced, work, price):
    """Improve a staying tree by solving the reduced transport, where that is much smaller.

    Returns (pivots, mass that was moved to keep the plan nonnegative).
    """
    rows, cols, p, q, tree = original
    m, n, ties = _split_mass(original, reduced)
    if ties > 0 or min(m, n) < 2 or m + n > SHARE * (rows.size + cols.size) or not _contract(original, m, n, reduced):
        return 0, 0.0
    gather(W, n_y, reduced.rows[:m], reduced.cols[:n], reduced.costs)
    pivots, _ = optimize(Costs(reduced.costs, n, m, n), _reduced_tree(m, n, reduced), work, price)
    _expand(original, m, n, reduced)
    return pivots, true_flows(tree, p, q, work.net)
