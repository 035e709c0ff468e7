"""Kernels of the games on pairs of states (games.py): optimal plans where they matter, and better moves for both sides.

Letters: N pairs p, C choices c at each of them; choice c of pair p stands at place k = p C + c of every list of choices
and is item k of the transports. Kernels work on the pairs lo…hi-1 and only write what belongs to them.
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim._compile import borrowed, njit
from diffbisim.solvers.exact.evaluation import Plans
from diffbisim.solvers.exact.game_staying import CELLS, Whole, make_rest, solve_rest, staying_basis, staying_full
from diffbisim.solvers.exact.simplex import Costs, greedy, is_priced_out, make_work, northwest_corner, tree_value
from diffbisim.solvers.exact.transports import Effort, _edges, _rows_of, _solve_items, edge_targets
from diffbisim.solvers.successors import gather, longest

EPS = float(np.finfo(float).eps)


class Game(NamedTuple):
    """What is played at every pair, for compiled code: C choices, δ of choice c at pair p at place p C + c."""

    base: Any  # (N*C,) (1-γ) times the cost
    lines: Any  # (L + 1,) where the choices of a line begin
    members: Any  # the choices of the lines, one after the other
    discount: float
    same: bool  # whether the states of both sides are the same, and at no cost
    full: bool  # whether all rows have all states
    nearest: Any  # (n*n,) if both: the states by their distance from each, for first bases; else empty


class Moves(NamedTuple):
    """The state of the game."""

    delta: Any  # (N*C,) δ of every choice, or an upper bound on it
    line: Any  # (N,) the adversary's line
    chosen: Any  # (N + 1,) the plan that a pair uses, p C + c; last the empty plan
    value: Any  # (N,) T U, as the last improvement found it


class Targets(NamedTuple):
    """Where the edges of all trees lead, kept up to date by every improvement; empty where nobody needs that."""

    numbers: Any  # (n_X*n_Y,) the number of every pair of states
    target: Any  # (E,) the number of the pair that each edge leads to


class Selected(NamedTuple):
    """Of many pairs, the plans in use, in single precision and in one piece, and what they lack; else empty.

    The row of a pair has space for the longest of its plans, and no flow in what is left of it.
    """

    plans: Plans  # one row per pair; a last empty one if the problem is folded
    residual: Any  # (N,), or (N + 1,) if folded: L u - u, less any constant if it is not folded


class Position(NamedTuple):
    """A game with the plans of all choices and the moves of both sides."""

    game: Game
    plans: Plans  # one row per choice
    moves: Moves
    selected: Selected


@njit(cache=True, nogil=True, inline="always")
def _least(game, delta, first, line):
    """The least δ of a line at the pair whose choices begin at ``first``, and its place."""
    at = first + game.members[game.lines[line]]
    for e in range(game.lines[line] + 1, game.lines[line + 1]):
        k = first + game.members[e]
        if delta[k] < delta[at]:
            at = k
    return delta[at], at


@njit(cache=True, nogil=True, inline="always")
def _whole(k, items, trees):
    """The transport of item k."""
    x, y = items.x, items.y
    i, j = _rows_of(items, k)
    px, py = slice(x.indptr[i], x.indptr[i + 1]), slice(y.indptr[j], y.indptr[j + 1])
    rows, cols = x.indices[px], y.indices[py]
    tree = _edges(items, trees, k, rows.size + cols.size, trees.flow)
    return Whole(rows, cols, x.probabilities[px], y.probabilities[py], tree)


@njit(cache=True, nogil=True, inline="always")
def _costs(whole, W, n_y, scratch):
    """Its costs, where they are if both rows are full."""
    a, b = whole.rows.size, whole.cols.size
    if b == n_y and a * n_y == W.size:
        return Costs(W, n_y, a, b)
    gather(W, n_y, whole.rows, whole.cols, scratch)
    return Costs(scratch, b, a, b)


@njit(cache=True, nogil=True, forceinline=True)
def _first_basis(k, items, trees, W, game, tools):
    """A first basis of item k, or the better of two; returns its value."""
    whole, work = _whole(k, items, trees), tools.work
    if game.nearest.size:
        value = staying_full(whole, W, game.nearest, work)
        if value < np.inf:
            return value
    costs, (i, j) = _costs(whole, W, items.n_y, tools.scratch), _rows_of(items, k)
    order_x = items.order_x[items.x.indptr[i] : items.x.indptr[i + 1]]
    order_y = items.order_y[items.y.indptr[j] : items.y.indptr[j + 1]]
    northwest_corner(whole.p, whole.q, order_x, order_y, whole.tree)
    value = tree_value(whole.tree, costs)
    if game.same:
        made = staying_basis(whole, W, items.n_y, tools.rest, work)
    else:
        made = True
        greedy(costs, whole.p, whole.q, whole.tree, work)
    other = tree_value(whole.tree, costs) if made else np.inf
    if value <= other:
        northwest_corner(whole.p, whole.q, order_x, order_y, whole.tree)
    return min(value, other)


class Tools(NamedTuple):
    """Scratch of one thread."""

    work: Any  # of the simplex
    scratch: Any  # for costs
    rest: Any  # for what is left of a transport
    solved: Any  # (C,) which choices of a pair are solved
    closed: Any  # (L,) which lines


@njit(cache=True, nogil=True)
def improve_pairs(lo, hi, items, trees, W, effort, game, moves, targets):
    """T U at the pairs lo…hi-1, with optimal plans of all lines that can be the worst, and the moves that attain it.

    Returns (pivots, transports left unsolved, most mass by which a plan was changed, transports solved).
    """
    a, b = longest(items.x), longest(items.y)
    work, scratch = make_work(a + b, effort.stop), np.empty(2 * (a * b + a + b))
    n_lines, n_choices = game.lines.size - 1, moves.delta.size // moves.value.size
    solved, closed = np.empty(n_choices, np.bool_), np.empty(n_lines, np.bool_)
    tools = Tools(work, scratch, make_rest(a, b, trees), solved, closed)
    return _improve_pairs(lo, hi, items, trees, W, effort, game, moves, targets, tools)


@njit(cache=True, nogil=True, forceinline=True)
def _solve_choice(k, items, trees, W, effort, game, delta, tools):
    """δ of choice k with an optimal plan; returns as ``_solve_items``."""
    work, pivots, cut = tools.work, 0, 0.0
    if game.same and effort.basis == 2:
        whole = _whole(k, items, trees)
        if whole.p.size * whole.q.size >= CELLS:
            costs = _costs(whole, W, items.n_y, tools.scratch)
            if is_priced_out(costs, whole.tree, work.pot, effort.price):
                delta[k] = game.base[k] + game.discount * tree_value(whole.tree, costs)
                return 0, 0, 0.0
            pivots, cut = solve_rest(whole, W, items.n_y, tools.rest, work, effort.price)
    more, left, clipped = _solve_items(k, k + 1, items, trees, W, effort, delta, work, tools.scratch)
    delta[k] = game.base[k] + game.discount * delta[k]
    return pivots + more, left, max(cut, clipped)


@njit(cache=True, nogil=True, forceinline=True)
def _at_least(k, items, game, pot, price):
    """A lower bound on δ of choice k between full rows, by the potentials of any other."""
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
def _improve_pairs(lo, hi, items, trees, W, effort, game, moves, targets, tools):
    """The loop; apart, because what is borrowed has to be held by the caller."""
    items, trees, W, game, moves, targets = (
        borrowed(items), borrowed(trees), borrowed(W), borrowed(game), borrowed(moves), borrowed(targets)
    )  # fmt: skip
    tools, effort, delta = borrowed(tools), borrowed(effort), moves.delta
    solved, closed, C = tools.solved, tools.closed, tools.solved.size
    fresh, known = effort.basis == 0, effort.basis != 1
    how = Effort(2 if known else effort.basis, effort.price, effort.slack, effort.stop)
    pivots, failed, clipped, count = 0, 0, 0.0, 0
    for p in range(lo, hi):
        first = p * C
        for k in range(first, first + C):
            if fresh:
                value = _first_basis(k, items, trees, W, game, tools)
                delta[k] = game.base[k] + game.discount * value
                if targets.target.size:
                    edge_targets(k, k + 1, items, trees, targets.numbers, targets.target)
            elif not known:
                delta[k] = np.inf  # there are no plans that would bound anything
        solved[:], closed[:] = effort.price == np.inf, False
        best, line, at = -np.inf, -1, -1
        while True:
            top, candidate, nearest = -np.inf, -1, -1
            for n in range(closed.size):
                if not closed[n]:
                    bound, k = _least(game, delta, first, n)
                    if bound > top:
                        top, candidate, nearest = bound, n, k
            if candidate < 0 or top <= best:
                break
            least = np.inf
            for e in range(game.lines[candidate] - 1, game.lines[candidate + 1]):  # the one with the least bound first
                k = first + game.members[e] if e >= game.lines[candidate] else nearest
                if solved[k - first] or (
                    least < np.inf and _at_least(k, items, game, tools.work.pot, effort.price) >= least
                ):
                    continue
                more, left, cut = _solve_choice(k, items, trees, W, how, game, delta, tools)
                solved[k - first], least = True, min(least, delta[k]) if game.full and known else np.inf
                if targets.target.size and (more > 0 or not known):
                    edge_targets(k, k + 1, items, trees, targets.numbers, targets.target)
                pivots, failed, clipped, count = pivots + more, failed + left, max(clipped, cut), count + 1
            closed[candidate] = True
            value, k = _least(game, delta, first, candidate)
            if value > best:
                best, line, at = value, candidate, k
        moves.value[p], moves.line[p], moves.chosen[p] = best, line, at
    return pivots, failed, clipped, count


@njit(cache=True, nogil=True, inline="always")
def _delta(k, game, plans, u):
    """δ of one choice with its present plan."""
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
    position = borrowed(position)
    for p in range(lo, hi):
        _select(p, position.plans, position.moves.chosen, position.selected)


@njit(cache=True, nogil=True)
def improve_lines(lo, hi, position, u, tie):
    """The best moves of both sides for the table u and the present plans; those that are as good but for ``tie`` stay.

    Returns the smallest and the largest entry of L u - u. Leaves δ of every choice in the moves, and plans that came
    into use with all residuals in ``selected``, if that is not empty.
    """
    position, u = borrowed(position), borrowed(u)
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
    position, u = borrowed(position), borrowed(u)
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
