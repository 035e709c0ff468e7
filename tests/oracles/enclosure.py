"""The distance with a proof and far beyond double precision: integers only, nothing rounded but divisions, outward.

Doubles are rationals. Rows are taken as integers over their exact sum, so they are distributions to the last bit, and
the transport of every pair is solved by the simplex method on integers: a basis is optimal when no reduced cost is
negative, and there is no tolerance in that. Tables W (n_X*n_Y numbers) are integers in units of 2^-BITS times a power
of two above the largest cost, so that only one thing is rounded:

    (TW)(x,y) = (1-γ) c(x,y) + γ OT_W(P_X(·|x), P_Y(·|y))           down to the next unit

For *any* table, MacQueen's bounds enclose the fixed point U. A good table comes from Newton's method, which is policy
iteration: W + (I - γΠ)⁻¹ (TW - W). The correction is solved in doubles, and because TW - W is not, every step gains
twelve digits or so. What comes back is an enclosure some 10^-40 of the largest cost wide.
"""

from fractions import Fraction
from math import frexp, gcd
from typing import NamedTuple

import numpy as np

BITS = 256

#: Enclosures no wider than this (in units of about the largest cost) will do.
WIDTH = 2.0**-130

#: The optimum counts as unique when no relevant flow and no relevant reduced cost is below this.
CLEAR = 1e-6


class Truth(NamedTuple):
    """``lower <= d <= upper`` and the same for all pairs, exactly; the rest to the accuracy of doubles."""

    lower: Fraction
    upper: Fraction
    table_lower: list  # (n_X*n_Y) Fractions
    table_upper: list
    table: np.ndarray  # (n_X, n_Y), rounded
    occupancy: np.ndarray  # (n_X, n_Y) of one optimal coupling
    unique: bool  # whether that coupling and its potentials are the only ones
    gradient: dict | None  # transition_x, transition_y, cost, initial_x, initial_y; None unless it is unique

    @property
    def value(self):
        return float((self.lower + self.upper) / 2)


class Transport:
    """min <π, W> over couplings of two rows of integers, exactly; the basis is kept from table to table.

    Rows are divided by their sums: supplies ``a_i ΣB`` and demands ``b_j ΣA`` have the same total, ``mass``.
    """

    def __init__(self, row, column, n_y):
        self.rows, a = row
        self.cols, b = column
        self.n, self.k = len(a), len(b)
        A, B = sum(a), sum(b)
        self.mass = A * B
        self.p, self.q = [v / A for v in a], [v / B for v in b]
        self.at = [[x * n_y + y for y in self.cols] for x in self.rows]  # flat index of every cell
        self._northwest_corner([v * B for v in a], [v * A for v in b])

    def _northwest_corner(self, supply, demand):
        self.cells, self.flow = [], []
        i = j = 0
        while True:
            t = min(supply[i], demand[j])
            self.cells.append((i, j))
            self.flow.append(t)
            supply[i] -= t
            demand[j] -= t
            if i == self.n - 1 and j == self.k - 1:
                break
            if supply[i] == 0 and i < self.n - 1:
                i += 1
            else:
                j += 1
        self._hang()

    def _hang(self):
        """The tree from row 0 down: ``order`` of (node, its parent, edge); columns are nodes n, n+1, …"""
        touching = [[] for _ in range(self.n + self.k)]
        for e, (i, j) in enumerate(self.cells):
            touching[i].append((self.n + j, e))
            touching[self.n + j].append((i, e))
        self.up = [None] * (self.n + self.k)  # (parent, edge)
        self.depth = [0] * (self.n + self.k)
        self.order, queue, seen = [], [0], {0}
        for node in queue:
            for other, e in touching[node]:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
                    self.up[other], self.depth[other] = (node, e), self.depth[node] + 1
                    self.order.append((other, node, e))

    def potentials(self, W):
        """f, then g, with f_i + g_j = W_ij on the basis and f_0 = 0."""
        pot = [0] * (self.n + self.k)
        for node, parent, e in self.order:
            i, j = self.cells[e]
            pot[node] = W[self.at[i][j]] - pot[parent]
        return pot

    def solve(self, W):
        """Σ flow · W of an optimal basis: OT_W is this over ``mass``."""
        if self.n == 1 or self.k == 1:  # only one plan
            return sum(t * W[self.at[i][j]] for t, (i, j) in zip(self.flow, self.cells, strict=True))
        for pivot in range(10_000):
            pot = self.potentials(W)
            g = pot[self.n :]
            worst, enter = 0, None
            for i, row in enumerate(self.at):
                f = pot[i]
                for j, cell in enumerate(row):
                    r = W[cell] - f - g[j]
                    if r < worst:
                        worst, enter = r, (i, j)
                        if pivot > 20:  # Bland's rule: it cannot cycle
                            break
                if pivot > 20 and enter:
                    break
            if enter is None:
                return sum(t * W[self.at[i][j]] for t, (i, j) in zip(self.flow, self.cells, strict=True))
            self._pivot(*enter)
        raise AssertionError("the simplex method did not end")

    def _pivot(self, i, j):
        """Send as much as possible around the cycle that the cell closes."""
        left, right = [], []  # edges up from row i, and up from column j, to where they meet
        a, b = i, self.n + j
        while a != b:
            if self.depth[a] >= self.depth[b]:
                a, e = self.up[a]
                left.append(e)
            else:
                b, e = self.up[b]
                right.append(e)
        cycle = left + right[::-1]  # from row i to column j: its edges lose and gain by turns
        losing = cycle[::2]
        t = min(self.flow[e] for e in losing)
        leave = min((e for e in losing if self.flow[e] == t), key=lambda e: self.cells[e])
        for k, e in enumerate(cycle):
            self.flow[e] += t if k % 2 else -t
        self.cells[leave], self.flow[leave] = (i, j), t
        self._hang()

    def plan(self):
        """Flat cells and their probabilities."""
        return [self.at[i][j] for i, j in self.cells], [t / self.mass for t in self.flow]

    def clear(self, W, unit):
        """Whether plan and potentials are the only optimal ones, by a margin."""
        if self.n == 1 or self.k == 1:
            return True
        pot, basis = self.potentials(W), set(self.cells)
        return min(self.flow) / self.mass > CLEAR and all(
            (W[self.at[i][j]] - pot[i] - pot[self.n + j]) / unit > CLEAR
            for i in range(self.n)
            for j in range(self.k)
            if (i, j) not in basis
        )

    def everywhere(self, table):
        """f (n_X,), g (n_Y,) for a float table: of the basis on the supports, c-transforms off them."""
        pot = [0.0] * (self.n + self.k)
        for node, parent, e in self.order:
            i, j = self.cells[e]
            pot[node] = table[self.rows[i], self.cols[j]] - pot[parent]
        f, g = np.array(pot[: self.n]), np.array(pot[self.n :])
        return (table[:, self.cols] - g).min(axis=1), (table[self.rows] - f[:, None]).min(axis=0)


def integers(row):
    """The support of a distribution, and its probabilities as integers in proportion."""
    support = [k for k, p in enumerate(row) if p > 0]
    ratios = [float(row[k]).as_integer_ratio() for k in support]
    common = max(d for _, d in ratios)
    return support, _reduced([n * (common // d) for n, d in ratios])


def _reduced(numbers):
    common = gcd(*numbers)
    return [n // common for n in numbers]


def truth(P_x, P_y, nu_x, nu_y, cost, discount, gradient=False):
    """The enclosure of d and of all values; with ``gradient`` also the derivatives, where they are unique."""
    n_y = cost.shape[1]
    exponent = frexp(float(cost.max()))[1] if cost.max() > 0 else 0
    unit = Fraction(2) ** (exponent - BITS)
    c = [_floor(Fraction(float(v)) / unit) for v in cost.ravel()]  # down by less than a unit: see `spare`
    G, D = float(discount).as_integer_ratio()
    row_x, row_y = [integers(p) for p in P_x], [integers(p) for p in P_y]
    pairs = [Transport(x, y, n_y) for x in row_x for y in row_y]
    W, spare = list(c), 2  # units by which (TW) may be too low: the cost's and its own
    for _ in range(200):
        solved = [pair.solve(W) for pair in pairs]
        T = [
            ((D - G) * c[k] * pair.mass + G * value) // (D * pair.mass)
            for k, (pair, value) in enumerate(zip(pairs, solved, strict=True))
        ]
        step = [t - w for t, w in zip(T, W, strict=True)]
        low, high = min(step), max(step) + spare
        if G * (high - low) <= (D - G) * int(WIDTH * 2.0**BITS):
            break
        W = [w + s for w, s in zip(W, _newton(pairs, step, discount), strict=True)]
    else:
        raise AssertionError("no enclosure after 200 steps")
    lower = [t + G * low // (D - G) for t in T]
    upper = [t + spare - (-G * high // (D - G)) for t in T]
    start = Transport(integers(nu_x), integers(nu_y), n_y)
    least, most = Fraction(float(cost.min())), Fraction(float(cost.max()))  # all values are averages of costs
    d_lower = max(start.solve(lower) // start.mass * unit, least)
    d_upper = min(-(-start.solve(upper) // start.mass) * unit, most)
    table = np.array([float(v * unit) for v in T]).reshape(cost.shape)
    m, unique, slopes = None, False, None
    if gradient:
        m = _occupancy(pairs, start, discount)
        visited = np.flatnonzero(m > 0)
        unique = start.clear(T, 2**BITS) and all(pairs[k].clear(T, 2**BITS) for k in visited)
        if unique:
            slopes = _gradient(pairs, start, table, m, P_x, P_y, nu_x, nu_y, discount)
        m = m.reshape(cost.shape)
    return Truth(
        d_lower, d_upper, [max(v * unit, least) for v in lower], [min(v * unit, most) for v in upper],
        table, m, unique, slopes,
    )  # fmt: skip


def _floor(fraction):
    return fraction.numerator // fraction.denominator


def _matrix(pairs):
    Π = np.zeros((len(pairs), len(pairs)))
    for k, pair in enumerate(pairs):
        cells, shares = pair.plan()
        Π[k, cells] = shares
    return Π


def _newton(pairs, step, discount):
    """(I - γΠ)⁻¹ step, as integers: right to the accuracy of doubles, relative to its size."""
    size = max(map(abs, step)) or 1
    scaled = np.linalg.solve(np.eye(len(pairs)) - discount * _matrix(pairs), [s / size for s in step])
    return [int(v * 2.0**60) * size >> 60 for v in scaled]


def _occupancy(pairs, start, discount):
    """Flat m = (1-γ) m_0 + γ Πᵀ m; on the pairs that it reaches, so that zeros are zeros."""
    Π, source = _matrix(pairs), np.zeros(len(pairs))
    cells, shares = start.plan()
    source[cells] = shares
    seen = source > 0
    while (more := seen | (Π[seen] > 0).any(axis=0)).sum() > seen.sum():
        seen = more
    m, on = np.zeros(len(pairs)), np.flatnonzero(seen)
    m[on] = np.linalg.solve(np.eye(on.size) - discount * Π[np.ix_(on, on)].T, (1 - discount) * source[on])
    return m


def _gradient(pairs, start, table, m, P_x, P_y, nu_x, nu_y, γ):
    n_x, n_y = table.shape
    by_x, by_y = np.zeros((n_x, n_x)), np.zeros((n_y, n_y))
    for k in np.flatnonzero(m):
        f, g = pairs[k].everywhere(table)
        by_x[k // n_y] += m[k] * f
        by_y[k % n_y] += m[k] * g
    f, g = start.everywhere(table)
    return {
        "transition_x": centered(γ / (1 - γ) * by_x, P_x),
        "transition_y": centered(γ / (1 - γ) * by_y, P_y),
        "cost": m.reshape(table.shape),
        "initial_x": centered(f, nu_x),
        "initial_y": centered(g, nu_y),
    }


def centered(rows, p):
    """Minus the mean under the row's own distribution."""
    return rows - np.sum(p * rows, axis=-1, keepdims=True)
