"""Kernels of the games on pairs of states (games.py): optimal plans where they matter, and better moves for both sides.

Notation: there are N pairs p with C choices c each. Choice c of pair p has index k = p C + c in every list of choices,
and is item k of the transports. Kernels work on the pairs lo…hi-1 and write only to the entries of these pairs.

*Mass in place*, for one MDP with itself. If the table W is a metric, some optimal plan leaves the mass min(p, q) in
place (by the triangle inequality). Only the remaining mass moves, from *sources*, the states with p > q, to *sinks*,
the states with q > p:

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

from diffbisim._compile import keep_alive, njit, uncounted
from diffbisim.solvers.exact.evaluation import Plans
from diffbisim.solvers.exact.simplex import (
    NONE,
    Costs,
    Tree,
    cell,
    greedy,
    is_priced_out,
    northwest_corner,
    optimize,
    tree_potentials,
    tree_value,
    true_flows,
)
from diffbisim.solvers.exact.transports import (
    EPS,
    Effort,
    Scratch,
    Sweep,
    _edges,
    _rows_of,
    _solve_items,
    edge_targets,
    make_scratch,
)
from diffbisim.solvers.successors import gather, longest

#: The reduced transport is solved first if it has at most this share of the nodes and the original one has at least so
#: many cells.
SHARE, CELLS = 0.75, 64


# --- mass that both distributions have in common stays in place ------------------------------------------------------


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


# --- the game ---------------------------------------------------------------------------------------------------------


class Game(NamedTuple):
    """The game that is played at every pair, for compiled code."""

    base: Any  # (N*C,) (1-γ) times the cost of every choice
    lines: Any  # (L + 1,) the first member of each line
    members: Any  # the choices of all lines, one line after another
    discount: float
    same: bool  # whether both sides have the same states, and equal states are at distance zero
    full: bool  # whether all rows have all states as successors
    nearest: Any  # (n*n,) if both: the states sorted by their distance from each, for first bases; else empty


class Moves(NamedTuple):
    """The state of the game."""

    delta: Any  # (N*C,) δ of every choice, or an upper bound on it
    line: Any  # (N,) the adversary's line
    chosen: Any  # (N + 1,) the plan that a pair uses, p C + c; the last entry is an empty plan
    value: Any  # (N,) T U, as computed by the last improvement


class Targets(NamedTuple):
    """The pairs that the edges of all trees lead to, updated by every improvement; empty for small problems."""

    numbers: Any  # (n_X*n_Y,) the number of every pair of states
    target: Any  # (E,) the number of the pair that each edge leads to


class Selected(NamedTuple):
    """A contiguous copy of the plans in use, in single precision, and their residuals; empty for small problems.

    The row of a pair has space for the longest of its plans; unused entries have no flow.
    """

    plans: Plans  # one row per pair; a last empty one if the problem is folded
    residual: Any  # (N,), or (N + 1,) if folded: L u - u, up to a constant unless folded


class Position(NamedTuple):
    """A game with the plans of all choices and the moves of both sides."""

    game: Game
    plans: Plans  # one row per choice
    moves: Moves
    selected: Selected


class GameScratch(NamedTuple):
    """Working memory of one thread."""

    basic: Scratch
    reduced: Reduced
    solved: Any  # (C,) which choices of the present pair are solved
    closed: Any  # (L,) which of its lines are solved


@njit(cache=True, nogil=True, inline="always")
def _least(game, delta, first, line):
    """The least δ of a line, and its index, at the pair whose choices begin at ``first``."""
    at = first + game.members[game.lines[line]]
    for e in range(game.lines[line] + 1, game.lines[line + 1]):
        k = first + game.members[e]
        if delta[k] < delta[at]:
            at = k
    return delta[at], at


@njit(cache=True, nogil=True, inline="always")
def _original(k, items, trees):
    """The transport of item k."""
    x, y = items.x, items.y
    i, j = _rows_of(items, k)
    px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
    rows, cols = x.indices[px], y.indices[py]
    tree = _edges(items, trees, k, rows.size + cols.size, trees.flow)
    return Original(rows, cols, x.probabilities[px], y.probabilities[py], tree)


@njit(cache=True, nogil=True, inline="always")
def _costs(original, W, n_y, memory):
    """The costs of a transport: the table itself if both rows are full, else a copy in ``memory``."""
    a, b = original.rows.size, original.cols.size
    if b == n_y and a * n_y == W.size:
        return Costs(W, n_y, a, b)
    gather(W, n_y, original.rows, original.cols, memory)
    return Costs(memory, b, a, b)


@njit(cache=True, nogil=True, forceinline=True)
def _first_basis(k, sweep, game, scratch):
    """Build a first basis of item k, or the better of two; returns its value."""
    items, trees, W, _ = sweep
    original, (work, memory) = _original(k, items, trees), scratch.basic
    if game.nearest.size:
        value = staying_full(original, W, game.nearest, work)
        if value < np.inf:
            return value
    costs, (i, j) = _costs(original, W, items.n_y, memory), _rows_of(items, k)
    order_x = items.order_x[items.x.indptr[i] : items.x.indptr[i + 1]]
    order_y = items.order_y[items.y.indptr[j] : items.y.indptr[j + 1]]
    northwest_corner(original.p, original.q, order_x, order_y, original.tree)
    value = tree_value(original.tree, costs)
    if game.same:
        built = staying_basis(original, W, items.n_y, scratch.reduced, work)
    else:
        built = True
        greedy(costs, original.p, original.q, original.tree, work)
    other = tree_value(original.tree, costs) if built else np.inf
    if value <= other:
        northwest_corner(original.p, original.q, order_x, order_y, original.tree)
    return min(value, other)


@njit(cache=True, nogil=True, forceinline=True)
def _solve_choice(k, sweep, game, delta, scratch):
    """δ of choice k with an optimal plan; returns the same as ``solve_items``."""
    items, trees, W, effort = sweep
    (work, memory), pivots, cut = scratch.basic, 0, 0.0
    if game.same and effort.basis == 2:
        original = _original(k, items, trees)
        if original.p.size * original.q.size >= CELLS:
            costs = _costs(original, W, items.n_y, memory)
            if is_priced_out(costs, original.tree, work.pot, effort.price):
                delta[k] = game.base[k] + game.discount * tree_value(original.tree, costs)
                return 0, 0, 0.0
            pivots, cut = solve_reduced(original, W, items.n_y, scratch.reduced, work, effort.price)
    more, left, clipped = _solve_items(k, k + 1, sweep, delta, scratch.basic)
    delta[k] = game.base[k] + game.discount * delta[k]
    return pivots + more, left, max(cut, clipped)


@njit(cache=True, nogil=True, forceinline=True)
def _at_least(k, items, game, pot, price):
    """A lower bound on δ of choice k between full rows, from the potentials of any other choice."""
    i, j = _rows_of(items, k)
    a, b = items.x.indptr[i + 1] - items.x.indptr[i], items.n_y
    p, q, total, size = items.x.probabilities, items.y.probabilities, 0.0, 0.0
    for s in range(a):
        part = p[np.uintp(i * a + s)] * pot[np.uintp(s)]
        total, size = total + part, size + abs(part)
    for t in range(b):
        part = q[np.uintp(j * b + t)] * pot[np.uintp(a + t)]
        total, size = total + part, size + abs(part)
    return game.base[k] + game.discount * (total - price - (a + b) * EPS * size)


@njit(cache=True, nogil=True)
def improve_pairs(lo, hi, sweep, game, moves, targets):
    """T U at the pairs lo…hi-1, with optimal plans for all lines that can be the worst, and the moves that attain it.

    Returns (pivots, unsolved transports, largest mass that was moved to keep a plan nonnegative, solved transports).
    """
    a, b = longest(sweep.items.x), longest(sweep.items.y)
    solved = np.empty(moves.delta.size // moves.value.size, np.bool_)
    closed = np.empty(game.lines.size - 1, np.bool_)
    scratch = GameScratch(make_scratch(sweep), make_reduced(a, b, sweep.trees), solved, closed)
    done = _improve_pairs(lo, hi, sweep, game, moves, targets, scratch)
    keep_alive(scratch)
    return done


@njit(cache=True, nogil=True, forceinline=True)
def _first_bases(first, last, sweep, game, delta, targets, scratch):
    """First bases of the choices first…last-1, and their δ."""
    for k in range(first, last):
        delta[k] = game.base[k] + game.discount * _first_basis(k, sweep, game, scratch)
        if targets.target.size:
            edge_targets(k, k + 1, sweep.items, sweep.trees, targets.numbers, targets.target)


@njit(cache=True, nogil=True, forceinline=True)
def _worst_line(first, game, delta, closed):
    """The open line with the largest bound, its bound and the index of its least choice; -1 if all are closed."""
    top, worst, nearest = -np.inf, -1, -1
    for n in range(closed.size):
        if not closed[n]:
            bound, k = _least(game, delta, first, n)
            if bound > top:
                top, worst, nearest = bound, n, k
    return worst, top, nearest


@njit(cache=True, nogil=True)
def _improve_pairs(lo, hi, sweep, game, moves, targets, scratch):
    """The loop of :func:`improve_pairs`, separate because the caller must keep uncounted arrays alive."""
    sweep, game, moves, targets = uncounted(sweep), uncounted(game), uncounted(moves), uncounted(targets)
    scratch, (items, trees, W, effort), delta = uncounted(scratch), sweep, moves.delta
    solved, closed, C = scratch.solved, scratch.closed, scratch.solved.size
    known = effort.basis != 1  # whether the present plans bound anything
    warm = Sweep(items, trees, W, Effort(2 if known else effort.basis, effort.price, effort.slack, effort.stop))
    pivots, failed, clipped, count = 0, 0, 0.0, 0
    for p in range(lo, hi):
        first = p * C
        if effort.basis == 0:
            _first_bases(first, first + C, sweep, game, delta, targets, scratch)
        elif not known:
            delta[first : first + C] = np.inf
        solved[:], closed[:] = effort.price == np.inf, False
        best, line, at = -np.inf, -1, -1
        while True:
            worst, top, nearest = _worst_line(first, game, delta, closed)
            if worst < 0 or top <= best:
                break
            least = np.inf
            for e in range(game.lines[worst] - 1, game.lines[worst + 1]):  # the choice with the least bound comes first
                k = first + game.members[e] if e >= game.lines[worst] else nearest
                if solved[k - first] or (
                    least < np.inf and _at_least(k, items, game, scratch.basic.work.pot, effort.price) >= least
                ):
                    continue
                more, left, cut = _solve_choice(k, warm, game, delta, scratch)
                solved[k - first], least = True, min(least, delta[k]) if game.full and known else np.inf
                if targets.target.size and (more > 0 or not known):
                    edge_targets(k, k + 1, items, trees, targets.numbers, targets.target)
                pivots, failed, clipped, count = pivots + more, failed + left, max(clipped, cut), count + 1
            closed[worst] = True
            value, k = _least(game, delta, first, worst)
            if value > best:
                best, line, at = value, worst, k
        moves.value[p], moves.line[p], moves.chosen[p] = best, line, at
    return pivots, failed, clipped, count


@njit(cache=True, nogil=True, inline="always")
def _delta(k, game, plans, u):
    """δ of choice k with its present plan."""
    total = 0.0
    for e in range(plans.indptr[k], plans.indptr[k + 1]):
        total += plans.flow[e] * u[plans.target[e]]
    return game.base[k] + game.discount * total


@njit(cache=True, nogil=True, inline="always")
def _select(p, plans, chosen, selected):
    """Copy the plan that pair p uses."""
    rows, first = selected.plans, plans.indptr[chosen[p]]
    n = plans.indptr[chosen[p] + 1] - first
    for e in range(rows.indptr[p], rows.indptr[p + 1]):
        at = e - rows.indptr[p]
        rows.target[e] = plans.target[first + at] if at < n else p
        rows.flow[e] = plans.flow[first + at] if at < n else 0.0


@njit(cache=True, nogil=True)
def select_plans(lo, hi, position):
    """Copy the plans that the pairs lo…hi-1 use."""
    position = uncounted(position)
    for p in range(lo, hi):
        _select(p, position.plans, position.moves.chosen, position.selected)


@njit(cache=True, nogil=True)
def improve_lines(lo, hi, position, u, tie):
    """The best moves of both sides for the table u and the present plans; present moves stay unless ``tie`` worse.

    Returns the smallest and the largest entry of L u - u. Writes δ of every choice to the moves; updates ``selected``
    unless that is empty.
    """
    position, u = uncounted(position), uncounted(u)
    game, plans, moves, selected = position
    delta, C = moves.delta, moves.delta.size // moves.line.size
    low, high = np.inf, -np.inf
    for p in range(lo, hi):
        first, before = p * C, moves.chosen[p]
        for k in range(first, first + C):
            delta[k] = _delta(k, game, plans, u)
        present, at = _least(game, delta, first, moves.line[p])
        if delta[before] > present + tie:
            moves.chosen[p] = at
        best, line = present, moves.line[p]
        for n in range(game.lines.size - 1):
            value, k = _least(game, delta, first, n)
            if value > best:
                best, line, at = value, n, k
        if best > present + tie:
            moves.line[p], moves.chosen[p] = line, at
        low, high = min(low, best - u[p]), max(high, best - u[p])
        if selected.residual.size:
            selected.residual[p] = delta[moves.chosen[p]] - u[p]
            if moves.chosen[p] != before:
                _select(p, plans, moves.chosen, selected)
    return low, high


@njit(cache=True, nogil=True)
def improve_choices(lo, hi, position, u, tie):
    """The best choices within the present lines for the table u; returns how much the best of them gains.

    Updates ``selected`` as :func:`improve_lines` does.
    """
    position, u = uncounted(position), uncounted(u)
    game, plans, moves, selected = position
    C, most = moves.delta.size // moves.line.size, 0.0
    for p in range(lo, hi):
        n, present, least, at = moves.line[p], np.inf, np.inf, moves.chosen[p]
        for e in range(game.lines[n], game.lines[n + 1]):
            k = p * C + game.members[e]
            value = _delta(k, game, plans, u)
            if k == moves.chosen[p]:
                present = value
            if value < least:
                least, at = value, k
        better = present > least + tie
        if better:
            moves.chosen[p] = at
            most = max(most, present - least)
        if selected.residual.size:
            selected.residual[p] = (least if better else present) - u[p]
            if better:
                _select(p, plans, moves.chosen, selected)
    return most
