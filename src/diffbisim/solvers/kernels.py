"""Loops over pairs of states: improve, apply, adjoin, differentiate (numba, without the GIL).

Each function works on the pairs k = lo…hi-1 of a list, so that several Python threads can share a sweep; a thread
only writes to its own pairs. Letters:

    pair (K,)             flat index x*n_Y + y of every listed pair; empty for the full grid (then pair[k] = k)
    ptr, idx, prob        successors of every state (CSR of the positive entries), of X and of Y
    order                 aligned with idx: local positions of a row's successors in the order of the first basis
    at (K+1,)             where the edge list of pair k begins in child, parent, flow
    U, c (n_X*n_Y,)       table and scaled cost, flat
"""

import numpy as np

from diffbisim._compile import njit
from diffbisim.solvers.transport import (
    NODE,
    PATIENCE,
    cell,
    greedy,
    northwest_corner,
    priced_out,
    repair,
    simplex,
    tree_flows,
    tree_potentials,
    tree_value,
    true_flows,
)

#: What flow that is missing costs, at most typically: tables have entries up to one, the transports differ by less.
PRICED = 0.1

#: A tree whose negative flows are more than this in all is dropped: a first basis is nearer.
STALE = 0.05


@njit(cache=True, nogil=True, inline="always")
def _pair(pair, k, n_y):
    z = pair[k] if pair.size else k
    return z, z // n_y, z % n_y


@njit(cache=True, nogil=True, inline="always")
def _gather(U, n_y, rows, cols, C):
    """C = the table on the successors of the pair."""
    b = cols.size
    for i in range(rows.size):
        base = rows[i] * n_y
        for j in range(b):
            C[i * b + j] = U[base + cols[j]]


@njit(cache=True, nogil=True)
def improve(lo, hi, pair, n_y, xs, ys, at, child, parent, flow, U, c, discount, fresh, tol, slack, out, stop):
    """(T U)(x,y) = (1-γ) c + γ OT_U for every pair, and the optimal bases.

    Returns (pivots, pairs left unsolved, most mass by which a plan was changed so that it is not negative).
    ``fresh``: 2 builds first bases, 1 takes the old trees for new marginals (repairing them), 0 goes on as it is.
    ``slack (n_X*n_Y,)``, or empty: how much flow an old tree may lack at each pair and be left alone (follow.py).
    """
    x_ptr, x_idx, x_prob, x_order = xs
    y_ptr, y_idx, y_prob, y_order = ys
    nodes = np.max(x_ptr[1:] - x_ptr[:-1]) + np.max(y_ptr[1:] - y_ptr[:-1])
    t, pot, net = np.empty(nodes, NODE), np.empty(nodes), np.empty(nodes)
    order, block = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    left, open_cols = np.empty(nodes), np.empty(nodes, np.int32)
    scratch = np.empty(np.max(x_ptr[1:] - x_ptr[:-1]) * np.max(y_ptr[1:] - y_ptr[:-1]))
    n_x = x_ptr.size - 1
    total, failed, most = 0, 0, 0.0
    for k in range(lo, hi):
        z, x, y = _pair(pair, k, n_y)
        px, py = slice(x_ptr[x], x_ptr[x + 1]), slice(y_ptr[y], y_ptr[y + 1])
        rows, cols, p, q = x_idx[px], y_idx[py], x_prob[px], y_prob[py]
        a, b = rows.size, cols.size
        edges = slice(at[k], at[k + 1])
        ch, pa, fl = child[edges], parent[edges], flow[edges]
        C, ld = U, n_y  # a full table needs no copy
        if a < n_x or b < n_y:
            C, ld = scratch, b
            _gather(U, n_y, rows, cols, C)
        warm = fresh == 0
        missing = slack[z] if slack.size else 0.0
        price = max(tol, PRICED * missing)
        changed = False
        if fresh == 1:
            below, clipped = tree_flows(ch, pa, fl, p, q, net)
            lacks = -below
            warm = lacks == 0.0
            if warm:
                most = max(most, clipped)
            if 0.0 < lacks <= missing and priced_out(C, ld, a, b, ch, pa, pot, price):
                out[z] = (1 - discount) * c[z] + discount * tree_value(ch, pa, fl, C, ld, a)
                continue
            if 0.0 < lacks <= STALE:
                pivots, warm = repair(C, ld, a, b, ch, pa, fl, t, order, block, pot, stop)
                total += pivots
                changed = warm
        if not warm:
            northwest_corner(p, q, x_order[px], y_order[py], ch, pa, fl)
            value = tree_value(ch, pa, fl, C, ld, a)
            greedy(C, ld, p, q, ch, pa, fl, left, open_cols)
            if value <= tree_value(ch, pa, fl, C, ld, a):  # the better of two cheap bases
                northwest_corner(p, q, x_order[px], y_order[py], ch, pa, fl)
        pivots, optimal = 0, False
        while not optimal and pivots < 50 * (a + b) ** 2 and not stop[0]:
            more, optimal = simplex(C, ld, a, b, ch, pa, fl, t, order, block, pot, price, PATIENCE // (a + b) + 1)
            pivots += more
        if pivots > 0 or changed:
            most = max(most, true_flows(ch, pa, fl, p, q, net))
        total += pivots
        failed += not optimal
        out[z] = (1 - discount) * c[z] + discount * tree_value(ch, pa, fl, C, ld, a)
    return total, failed, most


@njit(cache=True, nogil=True)
def apply_system(lo, hi, pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, flow, discount, v, out):
    """out = (I - γ Π) v, that is v(x,y) - γ Σ Π_xy(x',y') v(x',y')."""
    for k in range(lo, hi):
        z, x, y = _pair(pair, k, n_y)
        rows, cols, a = x_ptr[x], y_ptr[y], x_ptr[x + 1] - x_ptr[x]
        total = 0.0
        for e in range(at[k], at[k + 1]):
            i, j = cell(child[e], parent[e], a)
            total += flow[e] * v[x_idx[rows + i] * n_y + y_idx[cols + j]]
        out[z] = v[z] - discount * total


@njit(cache=True, nogil=True)
def push_system(lo, hi, pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, flow, discount, v, out):
    """out += (I - γ Π)ᵀ v restricted to the listed pairs; every thread needs an ``out`` of its own."""
    for k in range(lo, hi):
        z, x, y = _pair(pair, k, n_y)
        if v[z] == 0.0:
            continue
        rows, cols, a = x_ptr[x], y_ptr[y], x_ptr[x + 1] - x_ptr[x]
        out[z] += v[z]
        amount = discount * v[z]
        for e in range(at[k], at[k + 1]):
            i, j = cell(child[e], parent[e], a)
            out[x_idx[rows + i] * n_y + y_idx[cols + j]] -= flow[e] * amount


@njit(cache=True, nogil=True)
def system(pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, flow, discount, transposed, count, v, out):
    """out = (I - γ Π) v or, ``transposed``, (I - γ Π)ᵀ v over all listed pairs; adds one to ``count`` (1,)."""
    count[0] += 1
    if transposed:
        out[:] = 0.0
        push_system(0, at.size - 1, pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, flow, discount, v, out)
    else:
        apply_system(0, at.size - 1, pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, flow, discount, v, out)


@njit(cache=True, nogil=True)
def extremes(pair, TU, U):
    """Smallest and largest TU - U over the listed pairs, and the size of both tables; all NaN if a difference is.

    The size is the largest entry, at least one, plus twice what the smallest is below zero: no entry, no difference of
    two entries and (in a good gauge) no potential of a transport between such entries is larger.
    """
    low, high, least, largest = np.inf, -np.inf, 0.0, 1.0
    for k in range(pair.size if pair.size else U.size):
        z = pair[k] if pair.size else k
        change = TU[z] - U[z]
        if np.isnan(change):
            return np.nan, np.nan, np.nan
        low, high = min(low, change), max(high, change)
        least, largest = min(least, TU[z], U[z]), max(largest, TU[z], U[z])
    return low, high, largest - 2.0 * least


@njit(cache=True, nogil=True)
def reachable(x_ptr, x_idx, y_ptr, y_idx, n_y, seen, queue, head, tail, cells):
    """Pairs that some coupling can reach from those in ``queue[head:tail]`` (already marked in ``seen``).

    Looks at about so many ``cells``; returns where head and tail are then. The pairs are queue[:tail].
    """
    while head < tail and cells > 0:
        x, y = queue[head] // n_y, queue[head] % n_y
        head += 1
        cells -= (x_ptr[x + 1] - x_ptr[x]) * (y_ptr[y + 1] - y_ptr[y])
        for i in range(x_ptr[x], x_ptr[x + 1]):
            for j in range(y_ptr[y], y_ptr[y + 1]):
                z = x_idx[i] * n_y + y_idx[j]
                if not seen[z]:
                    seen[z] = True
                    queue[tail] = z
                    tail += 1
    return head, tail


@njit(cache=True, nogil=True)
def visited(pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, flow, seen, queue, head, tail, edges):
    """Mark the pairs that the plans lead to from those in ``queue[head:tail]``, which are marked already.

    Looks at about so many ``edges``; returns where head and tail are then.
    """
    while head < tail and edges > 0:
        z = queue[head]
        head += 1
        k, x, y = np.searchsorted(pair, z) if pair.size else z, z // n_y, z % n_y
        edges -= at[k + 1] - at[k]
        a = x_ptr[x + 1] - x_ptr[x]
        for e in range(at[k], at[k + 1]):
            if flow[e] > 0.0:
                i, j = cell(child[e], parent[e], a)
                to = x_idx[x_ptr[x] + i] * n_y + y_idx[y_ptr[y] + j]
                if not seen[to]:
                    seen[to] = True
                    queue[tail] = to
                    tail += 1
    return head, tail


@njit(cache=True, nogil=True)
def edge_targets(pair, n_y, x_ptr, x_idx, y_ptr, y_idx, at, child, parent, out):
    """Flat index of the successor pair that every edge leads to."""
    for k in range(at.size - 1):
        _, x, y = _pair(pair, k, n_y)
        a = x_ptr[x + 1] - x_ptr[x]
        for e in range(at[k], at[k + 1]):
            i, j = cell(child[e], parent[e], a)
            out[e] = x_idx[x_ptr[x] + i] * n_y + y_idx[y_ptr[y] + j]


@njit(cache=True, nogil=True)
def _extend(support, pot, others, other_pot, U, stride, other_stride, f):
    """f = pot on the support; elsewhere the c-transform, min over the other side's support of U - other potential."""
    if support.size < f.size:
        for s in range(f.size):
            f[s] = np.inf
            for k in range(others.size):
                f[s] = min(f[s], U[s * stride + others[k] * other_stride] - other_pot[k])
    for k in range(support.size):
        f[support[k]] = pot[k]


@njit(cache=True, nogil=True)
def potentials(x, y, n_y, xs, ys, child, parent, U, f, g):
    """Potentials f (n_X,), g (n_Y,) of one pair for the table U, extended off the supports."""
    rows, cols = xs[1][xs[0][x] : xs[0][x + 1]], ys[1][ys[0][y] : ys[0][y + 1]]
    a, b = rows.size, cols.size
    pot, C = np.empty(a + b), np.empty(a * b)
    _gather(U, n_y, rows, cols, C)
    tree_potentials(child, parent, C, b, a, pot)
    _extend(rows, pot[:a], cols, pot[a:], U, n_y, 1, f)
    _extend(cols, pot[a:], rows, pot[:a], U, 1, n_y, g)


@njit(cache=True, nogil=True)
def sum_potentials(lo, hi, pair, n_y, xs, ys, at, child, parent, U, m, by_x, by_y):
    """by_x[x] += m(x,y) f_xy, by_y[y] += m(x,y) g_xy, dense; threads need tables of their own."""
    f, g = np.empty(by_x.shape[0]), np.empty(by_y.shape[0])
    for k in range(lo, hi):
        z, x, y = _pair(pair, k, n_y)
        if m[z] > 0.0:
            edges = slice(at[k], at[k + 1])
            potentials(x, y, n_y, xs, ys, child[edges], parent[edges], U, f, g)
            by_x[x] += m[z] * f
            by_y[y] += m[z] * g


@njit(cache=True, nogil=True)
def sum_potentials_on_supports(lo, hi, pair, n_y, xs, ys, at, child, parent, U, m, by_x, by_y):
    """by_x[e] += m(x,y) f_xy(x') on the stored transitions e = (x,x'), by_y alike; threads need tables of their own."""
    nodes = np.max(np.diff(xs[0])) + np.max(np.diff(ys[0]))
    pot, C = np.empty(nodes), np.empty(np.max(np.diff(xs[0])) * np.max(np.diff(ys[0])))
    for k in range(lo, hi):
        z, x, y = _pair(pair, k, n_y)
        if m[z] == 0.0:
            continue
        px, py = slice(xs[0][x], xs[0][x + 1]), slice(ys[0][y], ys[0][y + 1])
        rows, cols = xs[1][px], ys[1][py]
        a, b = rows.size, cols.size
        _gather(U, n_y, rows, cols, C)
        tree_potentials(child[at[k] : at[k + 1]], parent[at[k] : at[k + 1]], C, b, a, pot)
        for i in range(a):
            by_x[xs[0][x] + i] += m[z] * pot[i]
        for j in range(b):
            by_y[ys[0][y] + j] += m[z] * pot[a + j]


@njit(cache=True, nogil=True)
def solve_one(C, p, q, child, parent, flow, pot, tol, stop):
    """One transport with costs C (a, b) from the tree in the edge list, where it leaves the optimal one.

    Returns (value, solved?, how far the least reduced cost is below zero, mass by which the plan was changed so that it
    is not negative).
    """
    a, b = C.shape
    costs = C.ravel()
    t, order, block = np.empty(a + b, NODE), np.empty(a + b, np.int32), np.empty(a + b, np.int32)
    pivots, optimal = 0, False
    while not optimal and pivots < 50 * (a + b) ** 2 and not stop[0]:
        more, optimal = simplex(costs, b, a, b, child, parent, flow, t, order, block, pot, tol, PATIENCE // (a + b) + 1)
        pivots += more
    clipped = true_flows(child, parent, flow, p, q, np.empty(a + b))
    least = 0.0
    for i in range(a):
        for j in range(b):
            least = min(least, C[i, j] - pot[a + j] - pot[i])
    return tree_value(child, parent, flow, costs, b, a), optimal, -least, clipped


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def dot(u, v):
    """<u, v>; sums may be reordered, which is what lets LLVM vectorize them."""
    total = 0.0
    for k in range(u.size):
        total += u[k] * v[k]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def two_dots(t, r):
    """<t, r> and <t, t>."""
    first, second = 0.0, 0.0
    for k in range(t.size):
        first += t[k] * r[k]
        second += t[k] * t[k]
    return first, second


@njit(cache=True, nogil=True)
def half_step(alpha, p, q, u, r):
    """u += α p, r -= α q (BiCGStab, krylov.py)."""
    for k in range(u.size):
        u[k] += alpha * p[k]
        r[k] -= alpha * q[k]


@njit(cache=True, nogil=True)
def full_step(omega, t, shadow, u, r):
    """u and r after the stabilizing step; returns <shadow, r> and the largest |r|."""
    dot, worst = 0.0, 0.0
    for k in range(u.size):
        u[k] += omega * r[k]
        r[k] -= omega * t[k]
        dot += shadow[k] * r[k]
        worst = max(worst, abs(r[k]))
    return dot, worst


@njit(cache=True, nogil=True)
def direction(beta, omega, q, r, p):
    """p = r + β (p - ω q)."""
    for k in range(p.size):
        p[k] = r[k] + beta * (p[k] - omega * q[k])


@njit(cache=True, nogil=True)
def first_unfit(pair, n_y, x_ptr, x_prob, y_ptr, y_prob, at, child, parent, flow, tolerance, nodes):
    """The first pair whose edges (1) or flows (2) are wrong, and which; (0, 0) if there is none. ``at`` fits."""
    seen, left = np.empty(nodes, np.int64), np.empty(nodes)
    seen[:] = -1
    for k in range(at.size - 1):
        z = pair[k] if pair.size else k
        x, y = z // n_y, z % n_y
        a, b = x_ptr[x + 1] - x_ptr[x], y_ptr[y + 1] - y_ptr[y]
        root = parent[at[k]]
        if not 0 <= root < a + b:
            return k, 1
        seen[root] = k
        left[:a] = x_prob[x_ptr[x] : x_ptr[x + 1]]
        left[a : a + b] = y_prob[y_ptr[y] : y_ptr[y + 1]]
        for e in range(at[k], at[k + 1]):
            u, v = np.int64(child[e]), np.int64(parent[e])
            if not (0 <= u < a + b and 0 <= v < a + b) or (u < a) == (v < a):
                return k, 1
            if seen[v] != k or seen[u] == k:  # parents come first, and every other node once
                return k, 1
            seen[u] = k
            left[u] -= flow[e]
            left[v] -= flow[e]
        for node in range(a + b):
            if not abs(left[node]) <= tolerance:
                return k, 2
    return 0, 0
