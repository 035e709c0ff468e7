"""The distance in exact rational arithmetic, for chains of at most three states: no rounding anywhere.

Policy iteration over fractions. A transport is solved by looking at every basis (a spanning tree of rows and columns,
at most 81 of them), an evaluation by elimination. Numbers are taken as the doubles that they are; rows and starts,
which doubles cannot make sum to one exactly, are divided by their exact sums.
"""

from fractions import Fraction
from functools import cache
from itertools import combinations, product

import numpy as np


def distance(P_x, P_y, nu_x, nu_y, cost, discount):
    """``d`` as a Fraction."""
    γ, (n_x, n_y) = Fraction(discount), np.shape(cost)
    c = [[Fraction(float(v)) for v in row] for row in cost]
    rows_x, rows_y = [normalized(row) for row in P_x], [normalized(row) for row in P_y]
    pairs = list(product(range(n_x), range(n_y)))
    U = {z: c[z[0]][z[1]] for z in pairs}
    while True:
        plans = {(x, y): transport(U, rows_x[x], rows_y[y])[1] for x, y in pairs}
        before, U = U, evaluated(c, plans, pairs, γ)
        if before == U:
            return transport(U, normalized(nu_x), normalized(nu_y))[0]


def normalized(row):
    """The positive entries by place, summing to one."""
    entries = {k: Fraction(float(p)) for k, p in enumerate(row) if p > 0}
    total = sum(entries.values())
    return {k: p / total for k, p in entries.items()}


def transport(U, p, q):
    """Least cost and a plan {(x', y'): mass}."""
    rows, cols = list(p), list(q)
    best = None
    for tree in trees(len(rows), len(cols)):
        flows = tree_flows(tree, [p[i] for i in rows], [q[j] for j in cols])
        if min(flows) >= 0:
            plan = {(rows[i], cols[j]): mass for (i, j), mass in zip(tree, flows, strict=True)}
            value = sum(mass * U[z] for z, mass in plan.items())
            if best is None or value < best[0]:
                best = value, plan
    return best


@cache
def trees(a, b):
    """The spanning trees of a rows and b columns, as tuples of cells."""
    return [t for t in combinations(list(product(range(a), range(b))), a + b - 1) if spans(t, a, b)]


def spans(cells, a, b):
    part = list(range(a + b))
    for i, j in cells:
        one, other = part[i], part[a + j]
        if one == other:
            return False
        part = [one if k == other else k for k in part]
    return True


def tree_flows(tree, p, q):
    """Mass on every cell of a tree, leaves first."""
    need, open_cells, flow = {("row", i): v for i, v in enumerate(p)}, set(tree), {}
    need |= {("column", j): v for j, v in enumerate(q)}
    while open_cells:
        for i, j in sorted(open_cells):
            alone = [
                end
                for end, k in ((("row", i), 0), (("column", j), 1))
                if sum(cell[k] == (i, j)[k] for cell in open_cells) == 1
            ]
            if alone:
                mass = flow[i, j] = need[alone[0]]
                need["row", i] -= mass
                need["column", j] -= mass
                open_cells.remove((i, j))
                break
    return [flow[cell] for cell in tree]


def evaluated(c, plans, pairs, γ):
    """U = (1-γ) c + γ Π U by Gauss-Jordan elimination."""
    number = {z: k for k, z in enumerate(pairs)}
    A = [[Fraction(int(i == j)) for j in range(len(pairs))] + [(1 - γ) * c[x][y]] for i, (x, y) in enumerate(pairs)]
    for z, plan in plans.items():
        for to, mass in plan.items():
            A[number[z]][number[to]] -= γ * mass
    for k, _ in enumerate(A):  # diagonally dominant: no pivoting needed
        A[k] = [v / A[k][k] for v in A[k]]
        for i, row in enumerate(A):
            if i != k and row[k]:
                A[i] = [v - row[k] * w for v, w in zip(row, A[k], strict=True)]
    return {z: A[k][-1] for z, k in number.items()}
