"""The distance over finitely many steps, literally: backward induction by linprog, and one program over paths.

    V_T = w_T c_T,        V_t = w_t c_t + OT_{V_{t+1}}(P_t, Q_t),        d = OT_{V_0}(ν_X, ν_Y)

The program over paths knows nothing of this equation: its variables are the masses of all pairs of paths, its
constraints say that neither process learns anything from the other about its own next step.
"""

from fractions import Fraction
from itertools import product

import numpy as np
from scipy.optimize import linprog

from oracles.games import all_transports
from oracles.rational import distribution, expectation, vertices


def induction(Ps, Qs, nu_x, nu_y, costs, weights):
    """``d`` and the tables V_0 … V_T."""
    tables = [weights[-1] * costs[-1]]
    for P, Q, c, w in zip(Ps[::-1], Qs[::-1], costs[-2::-1], weights[-2::-1], strict=True):
        tables.insert(0, w * c + all_transports(P, Q, tables[0]))
    return all_transports(nu_x[None], nu_y[None], tables[0])[0, 0], tables


def over_paths(Ps, Qs, nu_x, nu_y, costs, weights):
    """``d`` as the least mean cost over all bicausal couplings of the two laws of paths."""
    xs = list(product(*(range(n) for n in (len(nu_x), *(P.shape[1] for P in Ps)))))
    ys = list(product(*(range(n) for n in (len(nu_y), *(Q.shape[1] for Q in Qs)))))
    pairs = list(product(xs, ys))
    cost = [sum(w * c[i, j] for w, c, i, j in zip(weights, costs, x, y, strict=True)) for x, y in pairs]
    rows, sides = [], []

    def demand(row, side):
        rows.append(row)
        sides.append(side)

    for i, p in enumerate(nu_x):
        demand([float(x[0] == i) for x, _ in pairs], p)
    for j, q in enumerate(nu_y):
        demand([float(y[0] == j) for _, y in pairs], q)
    for t, (P, Q) in enumerate(zip(Ps, Qs, strict=True)):
        for x, y in {(x[: t + 1], y[: t + 1]) for x, y in pairs}:
            here = [a[: t + 1] == x and b[: t + 1] == y for a, b in pairs]
            for i in range(P.shape[1]):
                demand([h * ((a[t + 1] == i) - P[x[t], i]) for h, (a, _) in zip(here, pairs, strict=True)], 0.0)
            for j in range(Q.shape[1]):
                demand([h * ((b[t + 1] == j) - Q[y[t], j]) for h, (_, b) in zip(here, pairs, strict=True)], 0.0)
    answer = linprog(cost, A_eq=np.array(rows), b_eq=np.array(sides), method="highs")
    assert answer.status == 0, answer.message
    return answer.fun


def exact_distance_of(problem):
    """``d`` of a FiniteHorizon between two MarkovChains in rational arithmetic: rows divided by their exact sums."""
    rows_x, rows_y = ([distribution(row) for row in dense(chain)] for chain in (problem.x, problem.y))
    plans = {(x, y): vertices(p, q) for x, p in enumerate(rows_x) for y, q in enumerate(rows_y)}
    costs = [
        {pair: Fraction(w) * Fraction(float(c[pair])) for pair in plans}
        for w, c in zip(problem.weights.tolist(), problem.costs, strict=True)
    ]
    V = costs[-1]
    for base in costs[-2::-1]:
        V = {pair: base[pair] + min(expectation(plan, V) for plan in plans[pair]) for pair in plans}
    starts = vertices(distribution(problem.x.initial), distribution(problem.y.initial))
    return min(expectation(plan, V) for plan in starts)


def dense(chain):
    return chain.transition.toarray() if chain.is_sparse else chain.transition
