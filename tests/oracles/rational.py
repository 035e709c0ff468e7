"""The distance in exact rational arithmetic, for tiny chains: no rounding anywhere.

Rows and starts are the stored doubles divided by their exact sums. A transport has its minimum at a vertex: a vertex is
a spanning tree of the complete bipartite graph of the two supports whose flows are not negative: all of them are
listed once for every pair (K_{3,3} has 81 trees, K_{3,4} has 432). Howard's policy iteration ends after finitely many
steps, because every step makes a table smaller and there are finitely many policies.
"""

from fractions import Fraction
from functools import cache
from itertools import combinations


@cache
def trees(a, b):
    """Spanning trees of K_{a,b} as tuples of cells (i, j)."""
    cells = [(i, j) for i in range(a) for j in range(b)]
    return tuple(t for t in combinations(cells, a + b - 1) if _spans(t, a, b))


def _spans(cells, a, b):
    root = list(range(a + b))

    def find(k):
        while root[k] != k:
            k = root[k]
        return k

    for i, j in cells:
        one, two = find(i), find(a + j)
        if one == two:
            return False
        root[one] = two
    return True


def vertices(p, q):
    """Every vertex of the couplings of two distributions {state: Fraction}, as {(x', y'): mass}."""
    xs, ys = list(p), list(q)
    found = {}
    for tree in trees(len(xs), len(ys)):
        left = [p[x] for x in xs] + [q[y] for y in ys]
        open_cells, plan = [(i, len(xs) + j) for i, j in tree], {}
        while open_cells:  # a leaf sends all it has along its only edge
            degree = [0] * len(left)
            for u, v in open_cells:
                degree[u] += 1
                degree[v] += 1
            u, v = cell = next(c for c in open_cells if degree[c[0]] == 1 or degree[c[1]] == 1)
            mass = left[u] if degree[u] == 1 else left[v]
            left[u] -= mass
            left[v] -= mass
            if mass < 0:
                break
            if mass > 0:
                plan[xs[u], ys[v - len(xs)]] = mass
            open_cells.remove(cell)
        else:
            found[tuple(sorted(plan.items()))] = plan
    return list(found.values())


def distribution(row):
    """The positive entries as fractions that sum to one."""
    total = sum(map(Fraction, row.tolist()), Fraction(0))
    return {k: Fraction(v) / total for k, v in enumerate(row.tolist()) if v > 0}


def expectation(plan, table):
    return sum((mass * table[pair] for pair, mass in plan.items()), Fraction(0))


def _evaluated(policy, cost, γ):
    """U = (1-γ) c + γ Π U, by Gauss' elimination."""
    pairs = list(policy)
    at = {pair: k for k, pair in enumerate(pairs)}
    n = len(pairs)
    rows = []
    for pair in pairs:
        row = [Fraction(0)] * n + [(1 - γ) * cost[pair]]
        row[at[pair]] += 1
        for after, mass in policy[pair].items():
            row[at[after]] -= γ * mass
        rows.append(row)
    for k in range(n):  # diagonally dominant: no pivot is zero
        for i in range(n):
            if i != k and rows[i][k] != 0:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [u - factor * v for u, v in zip(rows[i], rows[k], strict=True)]
    return {pair: rows[k][n] / rows[k][k] for pair, k in at.items()}


def exact_table(P_x, P_y, cost, discount):
    """U as {(x, y): Fraction}."""
    γ = Fraction(discount)
    X, Y = [distribution(row) for row in P_x], [distribution(row) for row in P_y]
    c = {(x, y): Fraction(float(cost[x, y])) for x in range(len(X)) for y in range(len(Y))}
    choices = {(x, y): vertices(X[x], Y[y]) for x, y in c}
    policy = {pair: plans[0] for pair, plans in choices.items()}
    while True:
        U = _evaluated(policy, c, γ)
        better = {pair: min(plans, key=lambda plan: expectation(plan, U)) for pair, plans in choices.items()}
        moved = [pair for pair in policy if expectation(better[pair], U) < expectation(policy[pair], U)]
        if not moved:
            return U
        policy |= {pair: better[pair] for pair in moved}


def exact_distance(P_x, P_y, nu_x, nu_y, cost, discount):
    """d as a Fraction."""
    U = exact_table(P_x, P_y, cost, discount)
    return min(expectation(plan, U) for plan in vertices(distribution(nu_x), distribution(nu_y)))


def independent_distance_of(problem):
    """The value of the independent coupling, as a Fraction."""
    X, Y = ([distribution(row) for row in _dense(chain.transition)] for chain in (problem.x, problem.y))
    c = {(x, y): Fraction(float(problem.cost[x, y])) for x in range(len(X)) for y in range(len(Y))}
    U = _evaluated({(x, y): _product(X[x], Y[y]) for x, y in c}, c, Fraction(problem.discount))
    return expectation(_product(distribution(problem.x.initial), distribution(problem.y.initial)), U)


def _product(p, q):
    return {(x, y): a * b for x, a in p.items() for y, b in q.items()}


def _dense(P):
    return P if hasattr(P, "tolist") else P.toarray()


def exact_distance_of(problem):
    """d of a :class:`diffbisim.problems.Discounted`, as a Fraction."""
    kernels = [_dense(chain.transition) for chain in (problem.x, problem.y)]
    return exact_distance(*kernels, problem.x.initial, problem.y.initial, problem.cost, problem.discount)
