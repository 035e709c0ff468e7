"""The distance between two chains of two states each, exactly, in rationals.

The plans between two distributions on two points form a segment; its ends put as much or as little mass as
possible on (0, 0). An optimal policy takes an end in each of the 4 pairs: enumerate all 16, solve each 4 x 4
system in ``fractions.Fraction``, and take the least value; the starts have two extreme plans as well.
"""

from fractions import Fraction
from itertools import product


def two_states(P_x, P_y, nu_x, nu_y, cost, discount):
    """d as a Fraction; every float is taken at its exact binary value (rows must sum to one exactly)."""
    γ = Fraction(discount)
    c = [Fraction(cost[x][y]) for x in (0, 1) for y in (0, 1)]
    ends = [extremes(P_x[x], P_y[y]) for x in (0, 1) for y in (0, 1)]
    values = []
    for policy in product(*ends):
        matrix = [[(i == j) - γ * policy[i][j] for j in range(4)] for i in range(4)]
        V = solve(matrix, c)
        values += [sum(m * v for m, v in zip(start, V, strict=True)) for start in extremes(nu_x, nu_y)]
    return (1 - γ) * min(values)


def extremes(p, q):
    """The two extreme plans as flat lists (00, 01, 10, 11)."""
    p, q = [Fraction(v) for v in p], [Fraction(v) for v in q]
    assert sum(p) == sum(q) == 1
    corners = (max(p[0] + q[0] - 1, Fraction(0)), min(p[0], q[0]))
    return [[m, p[0] - m, q[0] - m, 1 - p[0] - q[0] + m] for m in corners]


def solve(A, b):
    """Gauss-Jordan elimination in rationals."""
    rows = [[*row, v] for row, v in zip(A, b, strict=True)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [v / rows[k][k] for v in rows[k]]
        for i in range(len(rows)):
            if i != k:
                rows[i] = [v - rows[i][k] * w for v, w in zip(rows[i], rows[k], strict=True)]
    return [row[-1] for row in rows]
