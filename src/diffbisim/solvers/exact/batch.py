"""Many small problems in one call: policy iteration (solver.py), compiled from end to end.

For chains of ten states, the Python code around the kernels takes several times as long as the kernels. Here a whole
run is one compiled function: improve, check, evaluate, with the same kernels, certificate and stopping rule. Unusual
cases (a Krylov solve that stagnates, a gap that rounding keeps above the tolerance) are returned with infinite bounds
and fall back to the full solver.

    pack            all chains, one after another, packed once
    pairs (B, 2)    the numbers of the two chains of every problem
    tables          their ground costs, flat, one after another; empty for |r_X - r_Y|, which is computed when needed
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import njit
from diffbisim.chain import MarkovChain
from diffbisim.problem import Array
from diffbisim.questions import Question
from diffbisim.solvers import krylov
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import PRICE
from diffbisim.solvers.exact.evaluation import Plans, System
from diffbisim.solvers.exact.pairs import EPS, extremes, small_keys
from diffbisim.solvers.exact.simplex import Tree, northwest_corner
from diffbisim.solvers.exact.solver import FIRST, LOOSE, ROUGH
from diffbisim.solvers.exact.transports import Effort, Items, Sweep, Trees, edge_targets, solve_items, solve_one
from diffbisim.stochastic import Successors

#: The largest number of states of the two chains together. Beyond it, Python code takes a small part of the time, and
#: full rows have a solver of their own (dense.py).
NODES = 64

#: Problems that need more iterations than this fall back to the full solver.
ITERATIONS = 40


class Pack(NamedTuple):
    """m chains, one after another, with N states and E transitions in all."""

    at: Any  # (m + 1,) the first state of each chain
    first: Any  # (m + 1,) its first transition
    rows: Successors  # of all chains: indptr (N + m,), from 0 in each, indices (E,), states of the chain, probabilities
    initial: Any  # (N,)
    rewards: Any  # (N,), NaN without
    off_rows: Any  # (m,) how far the mass of a row is from one, at most
    off_start: Any  # (m,) how far the mass of the start is from one

    @classmethod
    def of(cls, chains: Sequence[MarkovChain]) -> "Pack":
        parts = [chain.successors for chain in chains]
        off_rows = [np.abs(np.add.reduceat(s.probabilities, s.indptr[:-1]) - 1.0).max() for s in parts]
        off_start = [abs(float(c.initial[c.initial > 0].sum()) - 1.0) for c in chains]
        flat = [
            np.full(c.n_states, np.nan) if c.rewards is None or np.ndim(c.rewards) > 1 else np.asarray(c.rewards)
            for c in chains
        ]
        return cls(
            np.cumsum([0, *(chain.n_states for chain in chains)]), np.cumsum([0, *(s.indices.size for s in parts)]),
            Successors.frozen(*map(np.concatenate, zip(*parts, strict=True))),  # read-only, as other kernels expect
            np.concatenate([chain.initial for chain in chains]), np.concatenate(flat).astype(np.float64),
            np.array(off_rows), np.array(off_start),
        )  # fmt: skip


class Ask(NamedTuple):
    """The question that is asked of every problem of a batch."""

    discount: float
    tol: float
    squared: bool  # the cost is |r_X - r_Y|²
    stop: Any  # (1,) set to abandon the batch
    price: float = PRICE  # constants of other files are passed to kernels, whose cache does not track those files
    first: float = FIRST
    loose: float = LOOSE
    rough: float = ROUGH


class Found(NamedTuple):
    """The results of all problems, (B,); bounds are infinite where a problem needs the full solver."""

    value: Any
    lower: Any
    upper: Any


def is_ordinary(solver: Any, question: Question) -> bool:
    """Whether a batch gives the same answers as the solver."""
    plain = type(solver) is Exact and not solver.reachable and solver.time_limit is None
    return plain and solver.max_iterations >= ITERATIONS and question.is_usual


def solve_batch(pack: Pack, pairs: NDArray[np.int64], tables: Array, ask: Ask) -> Found:
    """Distances with certified bounds, in the order of the pairs."""
    found = Found(*(np.full(len(pairs), fill) for fill in (np.nan, -np.inf, np.inf)))
    _solve_batch(pack, pairs, tables, ask, found)
    if ask.stop[0]:
        raise KeyboardInterrupt
    return found


@njit(cache=True, nogil=True)
def _solve_batch(pack, pairs, tables, ask, found):
    first = 0
    for k in range(len(pairs)):
        if ask.stop[0]:
            return
        i, j = pairs[k]
        at_x, at_y = pack.at[i], pack.at[j]
        n_x, n_y = pack.at[i + 1] - at_x, pack.at[j + 1] - at_y
        if tables.size:
            cost = tables[first : first + n_x * n_y].copy()
            first += n_x * n_y
        else:
            cost = _reward_cost(pack.rewards[at_x : at_x + n_x], pack.rewards[at_y : at_y + n_y], ask.squared)
        if n_x + n_y <= NODES and cost.max() < np.inf:
            found.value[k], found.lower[k], found.upper[k] = _run(pack, i, j, cost, ask)


@njit(cache=True, nogil=True)
def _reward_cost(r_x, r_y, squared):
    cost = np.empty(r_x.size * r_y.size)
    for x in range(r_x.size):
        for y in range(r_y.size):
            c = abs(r_x[x] - r_y[y])
            cost[x * r_y.size + y] = c * c if squared else c
    return cost


@njit(cache=True, nogil=True)
def _successors(pack, c):
    """The successors of chain c."""
    begin, end, lo, hi = pack.at[c] + c, pack.at[c + 1] + c + 1, pack.first[c], pack.first[c + 1]
    return Successors(pack.rows.indptr[begin:end], pack.rows.indices[lo:hi], pack.rows.probabilities[lo:hi])


@njit(cache=True, nogil=True)
def _order(s, key):
    """The positions of the entries of every row, sorted stably by the key of their state (transports.Items)."""
    order = np.empty(s.indices.size, np.int64)
    for i in range(s.indptr.size - 1):
        first = s.indptr[i]
        for k in range(s.indptr[i + 1] - first):
            at, here = k, key[s.indices[first + k]]
            while at > 0 and key[s.indices[first + order[first + at - 1]]] > here:
                order[first + at] = order[first + at - 1]
                at -= 1
            order[first + at] = k
    return order


@njit(cache=True, nogil=True)
def _new_trees(x, y):
    at, k = np.zeros((x.indptr.size - 1) * (y.indptr.size - 1) + 1, np.int64), 0
    for i in range(x.indptr.size - 1):
        for j in range(y.indptr.size - 1):
            at[k + 1] = at[k] + x.indptr[i + 1] - x.indptr[i] + y.indptr[j + 1] - y.indptr[j] - 1
            k += 1
    return Trees(at, np.empty(at[k], np.int8), np.empty(at[k], np.int8), np.empty(at[k]))


@njit(cache=True, nogil=True)
def _start(pack, i, j):
    """The transport of the starts: its rows and columns in the table, its two distributions and its first tree."""
    nu_x, nu_y = pack.initial[pack.at[i] : pack.at[i + 1]], pack.initial[pack.at[j] : pack.at[j + 1]]
    rows, cols = np.flatnonzero(nu_x), np.flatnonzero(nu_y)
    a, b = rows.size, cols.size
    tree = Tree(np.empty(a + b - 1, np.int32), np.empty(a + b - 1, np.int32), np.empty(a + b - 1))
    northwest_corner(nu_x[rows], nu_y[cols], np.arange(a), np.arange(b), tree)
    return rows, cols, nu_x[rows], nu_y[cols], tree


@njit(cache=True, nogil=True, inline="always")
def _run(pack, i, j, cost, ask):
    """Policy iteration as in solver.py, step by step; (nan, -inf, inf) if the problem needs the full solver."""
    gamma, tol, stop, nothing = ask.discount, ask.tol, ask.stop, np.empty(0, np.int64)
    x, y = _successors(pack, i), _successors(pack, j)
    n_x, n_y = x.indptr.size - 1, y.indptr.size - 1
    least, scale = cost.min(), cost.max()
    unit = scale if scale > 0.0 else 1.0
    scaled = cost / unit
    base = (1 - gamma) * scaled
    U = base.copy()
    key_x, key_y = small_keys(scaled.reshape((n_x, n_y)))
    items = Items(nothing, x, y, n_y, _order(x, key_x), _order(y, key_y))
    trees = _new_trees(x, y)
    start = _start(pack, i, j)
    nodes = np.max(x.indptr[1:] - x.indptr[:-1]) + np.max(y.indptr[1:] - y.indptr[:-1])
    off_rows, off_start = pack.off_rows[i] + pack.off_rows[j], pack.off_start[i] + pack.off_start[j]
    TU, target = np.empty(U.size), np.empty(trees.flow.size, np.int32)
    begin = nothing.size  # zero; for a literal 0 numba would compile the callees once more
    price, clipped, basis, count = max(ask.price, ask.first * (1 - gamma)), 0.0, 0, np.zeros(1, np.int64)
    for _ in range(ITERATIONS):
        sweep = Sweep(items, trees, U, Effort(basis, price, np.empty(0), stop))
        _, failed, cut = solve_items(begin, U.size, sweep, TU)
        clipped, basis = max(clipped, cut), 2
        if failed:
            break
        TU *= gamma
        TU += base
        low, high, size = extremes(nothing, TU, U)
        U[:] = TU
        U += gamma / (1 - gamma) * (high + low - price) / 2
        eta = (1.5 * nodes + 2) * EPS + off_rows + 2 * clipped + 6 * EPS
        gap = gamma * (high - low + price) / (1 - gamma) + 2 * (eta * size / (1 - gamma))
        value, lower, upper, gap = _bounds(U, n_y, start, gap / 2, off_start, (least, scale), ask)
        if gap <= tol:
            return value, lower, upper
        aim = max(ask.rough * (high - low), 0.1 * tol * (1 - gamma), 4 * EPS)
        price = max(ask.price, ask.loose * (high - low))
        edge_targets(begin, U.size, items, trees, nothing, target)
        system = System(Plans(trees.at, target, trees.flow, nothing), gamma, False, count)
        if not krylov._compiled(system, base, U, aim, 150) <= 2 * aim:
            break
    return np.nan, -np.inf, np.inf


@njit(cache=True, nogil=True)
def _bounds(U, n_y, start, half_gap, off_start, costs, ask):
    """The same as StartTransport.solve in coupling.py."""
    (rows, cols, p, q, tree), (least, scale) = start, costs
    C = np.empty((rows.size, cols.size))
    for s in range(rows.size):
        for t in range(cols.size):
            C[s, t] = U[rows[s] * n_y + cols[t]]
    value, solved, price, clipped = solve_one(C, p, q, tree, np.empty(p.size + q.size), ask.price, ask.stop)
    slack = (1.5 * (p.size + q.size) + 2) * EPS + off_start + 2 * clipped
    slack *= max(C.max(), 0.0) + 2 * max(-C.min(), 0.0)
    lower, upper = least, min(np.nextafter(scale * (value + half_gap + slack), np.inf), scale)
    if solved:
        lower = max(np.nextafter(scale * (value - price - half_gap - slack), -np.inf), least)
    gap = 2 * (half_gap + slack) + price + 4 * EPS
    value = min(max(scale * value, lower), upper) + 0.0
    return value, lower, upper, max(gap, (upper - lower) / (scale if scale > 0.0 else 1.0))
