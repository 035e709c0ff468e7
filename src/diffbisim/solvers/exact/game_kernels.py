"""Kernels of the games on pairs of states (games.py): optimal plans where they matter, and better moves for both sides.

Letters: N pairs p, C choices c at each of them; choice c of pair p stands at place k = p C + c of every list of choices
and is item k of the transports. Kernels work on the pairs lo…hi-1 and only write what belongs to them.
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim._compile import borrowed, njit
from diffbisim.solvers.exact.simplex import Costs, make_work, northwest_corner, tree_value
from diffbisim.solvers.exact.transports import Effort, _edges, _rows_of, _solve_items
from diffbisim.solvers.successors import gather, longest


class Game(NamedTuple):
    """What is played at every pair, for compiled code: C choices, δ of choice c at pair p at place p C + c."""

    base: Any  # (N*C,) (1-γ) times the cost
    lines: Any  # (L + 1,) where the choices of a line begin
    members: Any  # the choices of the lines, one after the other
    discount: float
    same: bool  # whether the states of both sides are the same, and at no cost


class Moves(NamedTuple):
    """Where the game stands."""

    delta: Any  # (N*C,) δ of every choice, or a bound on it
    line: Any  # (N,) the adversary's line
    chosen: Any  # (N + 1,) the plan that a pair uses, p C + c; last the empty plan


@njit(cache=True, nogil=True, inline="always")
def _least(game, delta, first, line):
    """The least δ of a line at the pair whose choices begin at ``first``, and its place."""
    at = first + game.members[game.lines[line]]
    for e in range(game.lines[line] + 1, game.lines[line + 1]):
        k = first + game.members[e]
        if delta[k] < delta[at]:
            at = k
    return delta[at], at


@njit(cache=True, nogil=True)
def staying_basis(costs, p, q, rows, cols, tree, work):
    """First basis for a metric: what two distributions have in common stays, the rest goes row by row to the nearest.

    As :func:`diffbisim.solvers.exact.simplex.greedy`, which continues here after the common mass: of the two nodes of a
    state the one with less mass hangs under the other. The last row is the root and waits, and so does the last column,
    so that no column is left with an empty edge.
    """
    C, stride, a, b = costs
    child, parent, flow = tree
    left, open_cols, mass_of = work.net[:b], work.block, work.net[b : b + a]
    left[:], mass_of[:] = q, p
    k, n_open, j = a + b - 2, b, 0
    for i in range(a - 1):
        while j < b and cols[j] < rows[i]:
            j += 1
        if j == b or cols[j] != rows[i]:
            continue
        if p[i] < q[j]:
            child[k], parent[k], flow[k] = i, a + j, p[i]
            left[j], mass_of[i] = q[j] - p[i], -1.0
            k -= 1
        elif n_open > 1:
            child[k], parent[k], flow[k] = a + j, i, q[j]
            left[j], mass_of[i] = -1.0, p[i] - q[j]
            k, n_open = k - 1, n_open - 1
    n_open = 0
    for j in range(b):
        if left[j] >= 0.0:
            open_cols[n_open] = j
            n_open += 1
    for i in range(a - 1):
        mass, base = mass_of[i], i * stride
        while mass >= 0.0:
            at, least = 0, np.inf
            for o in range(n_open):
                if C[base + open_cols[o]] < least:
                    at, least = o, C[base + open_cols[o]]
            j = open_cols[at]
            if mass < left[j] or n_open == 1:
                child[k], parent[k], flow[k] = i, a + j, mass
                left[j] = max(left[j] - mass, 0.0)
                mass = -1.0
            else:
                child[k], parent[k], flow[k] = a + j, i, left[j]
                mass -= left[j]
                n_open -= 1
                open_cols[at] = open_cols[n_open]
            k -= 1
    for o in range(n_open):
        j = open_cols[o]
        child[o], parent[o], flow[o] = a + j, a - 1, left[j]
    if n_open == 1:
        flow[0] = p[a - 1]  # the same but for rounding, and not zero


@njit(cache=True, nogil=True)
def _first_basis(k, items, trees, W, work, scratch):
    """The better of two first bases of item k, where both sides have the same states."""
    x, y = items.x, items.y
    i, j = _rows_of(items, k)
    px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
    rows, cols, p, q = x.indices[px], y.indices[py], x.probabilities[px], y.probabilities[py]
    tree, costs = _edges(items, trees, k, rows.size + cols.size, trees.flow), Costs(W, items.n_y, rows.size, cols.size)
    if rows.size < items.n_y or cols.size < items.n_y:
        gather(W, items.n_y, rows, cols, scratch)
        costs = Costs(scratch, cols.size, rows.size, cols.size)
    northwest_corner(p, q, items.order_x[px], items.order_y[py], tree)
    value = tree_value(tree, costs)
    staying_basis(costs, p, q, rows, cols, tree, work)
    if value <= tree_value(tree, costs):
        northwest_corner(p, q, items.order_x[px], items.order_y[py], tree)


@njit(cache=True, nogil=True)
def improve_pairs(lo, hi, items, trees, W, effort, game, moves, TU):
    """T U at the pairs lo…hi-1, with optimal plans of all lines that can be the worst, and the moves that attain it.

    Returns (pivots, transports left unsolved, most mass by which a plan was changed, transports solved).
    """
    a, b = longest(items.x), longest(items.y)
    work, scratch = make_work(a + b, effort.stop), np.empty(2 * (a * b + a + b))
    n_lines, n_choices = game.lines.size - 1, moves.delta.size // TU.size
    solved, closed = np.empty(n_choices, np.bool_), np.empty(n_lines, np.bool_)
    return _improve_pairs(lo, hi, items, trees, W, effort, game, moves, TU, work, scratch, solved, closed)


@njit(cache=True, nogil=True)
def _improve_pairs(lo, hi, items, trees, W, effort, game, moves, TU, work, scratch, solved, closed):
    """The loop; apart, because what is borrowed has to be held by the caller."""
    game, moves, TU = borrowed(game), borrowed(moves), borrowed(TU)
    solved, closed = borrowed(solved), borrowed(closed)
    delta, C = moves.delta, solved.size
    fresh, ready = effort.basis == 0 and game.same, Effort(2, effort.price, effort.slack, effort.stop)
    pivots, failed, clipped, count = 0, 0, 0.0, 0
    for p in range(lo, hi):
        first = p * C
        lazy = effort.basis == 2  # else there are no plans that would bound anything
        for c in range(C):
            solved[c] = False
            if not lazy:
                delta[first + c] = np.inf
        closed[:] = False
        best, line, at = -np.inf, -1, -1
        while True:
            top, candidate = -np.inf, -1
            for n in range(closed.size):
                if not closed[n]:
                    bound, _ = _least(game, delta, first, n)
                    if bound > top:
                        top, candidate = bound, n
            if candidate < 0 or top <= best:
                break
            for e in range(game.lines[candidate], game.lines[candidate + 1]):
                c = game.members[e]
                if not solved[c]:
                    k = first + c
                    if fresh:
                        _first_basis(k, items, trees, W, work, scratch)
                    more, left, cut = _solve_items(
                        k, k + 1, items, trees, W, ready if fresh else effort, delta, work, scratch
                    )
                    delta[k] = game.base[k] + game.discount * delta[k]
                    solved[c] = True
                    pivots, failed, clipped, count = pivots + more, failed + left, max(clipped, cut), count + 1
            closed[candidate] = True
            value, k = _least(game, delta, first, candidate)
            if value > best:
                best, line, at = value, candidate, k
        TU[p], moves.line[p], moves.chosen[p] = best, line, at
    return pivots, failed, clipped, count


@njit(cache=True, nogil=True, inline="always")
def _delta(k, game, plans, u):
    """δ of one choice with its present plan."""
    total = 0.0
    for e in range(plans.indptr[k], plans.indptr[k + 1]):
        total += plans.flow[e] * u[plans.target[e]]
    return game.base[k] + game.discount * total


@njit(cache=True, nogil=True)
def improve_lines(lo, hi, game, plans, u, moves, tie):
    """The best moves of both sides for the table u and the present plans; those that are as good but for ``tie`` stay.

    Returns the smallest and the largest entry of L u - u. Leaves δ of every choice in ``moves``.
    """
    game, moves, plans, u = borrowed(game), borrowed(moves), borrowed(plans), borrowed(u)
    delta, C = moves.delta, moves.delta.size // moves.line.size
    low, high = np.inf, -np.inf
    for p in range(lo, hi):
        first = p * C
        for k in range(first, first + C):
            delta[k] = _delta(k, game, plans, u)
        present, at = _least(game, delta, first, moves.line[p])
        if delta[moves.chosen[p]] > present + tie:
            moves.chosen[p] = at
        best, line = present, moves.line[p]
        for n in range(game.lines.size - 1):
            value, k = _least(game, delta, first, n)
            if value > best:
                best, line, at = value, n, k
        if best > present + tie:
            moves.line[p], moves.chosen[p] = line, at
        low, high = min(low, best - u[p]), max(high, best - u[p])
    return low, high


@njit(cache=True, nogil=True)
def improve_choices(lo, hi, game, plans, u, moves, tie):
    """The best choices within the present lines for the table u; returns how much the best of them gains."""
    game, moves, plans, u = borrowed(game), borrowed(moves), borrowed(plans), borrowed(u)
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
        if present > least + tie:
            moves.chosen[p] = at
            most = max(most, present - least)
    return most
