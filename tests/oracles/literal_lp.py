"""The paper's linear program as printed: dense, over all (x, y, x', y'), by plain loops.

min <μ, c>   s.t.   Σ_x'y' μ(x,y,x',y') = γ Σ μ(·,·,x,y) + (1-γ) m_0(x,y)           flow
                    Σ_y' μ(x,y,x',y')   = ν_X(x,x') λ_X(y|x)                         causal-X
                    Σ_x' μ(x,y,x',y')   = ν_Y(y,y') λ_Y(x|y)                         causal-Y
                    Σ_y λ_X(y|x) = 1,  Σ_x λ_Y(x|y) = 1,  m_0 couples the starts
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog


class LiteralLP(NamedTuple):
    value: float
    mu: np.ndarray  # (n_X, n_Y, n_X, n_Y)
    encoder: np.ndarray  # λ_X, (n_X, n_Y)
    decoder: np.ndarray  # λ_Y as (n_X, n_Y): column y sums to one
    start: np.ndarray  # (n_X, n_Y)


def occupancy(P, nu, discount):
    """``ν(x,x') = ρ(x) P(x'|x)``."""
    rho = np.linalg.solve(np.eye(len(nu)) - discount * P.T, (1 - discount) * nu)
    return rho[:, None] * P


def literal_lp(P_x, P_y, nu_x, nu_y, cost, discount):
    n_x, n_y = cost.shape
    scale = cost.max() if cost.max() > 0 else 1.0
    X, Y = range(n_x), range(n_y)
    occ_x, occ_y = occupancy(P_x, nu_x, discount), occupancy(P_y, nu_y, discount)
    names = [("mu", *k) for k in product(X, Y, X, Y)]
    names += [(kind, x, y) for kind in ("encoder", "decoder", "start") for x in X for y in Y]
    column = {name: i for i, name in enumerate(names)}
    rows, rhs = [], []

    def constraint(terms, b):
        row = np.zeros(len(names))
        for name, weight in terms:
            row[column[name]] += weight
        rows.append(row)
        rhs.append(b)

    for x, y in product(X, Y):
        out = [(("mu", x, y, i, j), 1.0) for i in X for j in Y]
        into = [(("mu", i, j, x, y), -discount) for i in X for j in Y]
        constraint([*out, *into, (("start", x, y), -(1 - discount))], 0.0)
    for x, y, i in product(X, Y, X):
        constraint([*((("mu", x, y, i, j), 1.0) for j in Y), (("encoder", x, y), -occ_x[x, i])], 0.0)
    for x, y, j in product(X, Y, Y):
        constraint([*((("mu", x, y, i, j), 1.0) for i in X), (("decoder", x, y), -occ_y[y, j])], 0.0)
    for x in X:
        constraint([(("encoder", x, y), 1.0) for y in Y], 1.0)
        constraint([(("start", x, y), 1.0) for y in Y], nu_x[x])
    for y in Y:
        constraint([(("decoder", x, y), 1.0) for x in X], 1.0)
        constraint([(("start", x, y), 1.0) for x in X], nu_y[y])
    objective = np.array([cost[name[1], name[2]] / scale if name[0] == "mu" else 0.0 for name in names])
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    answer = linprog(objective, A_eq=np.array(rows), b_eq=np.array(rhs), method="highs", options=tight)
    assert answer.status == 0, answer.message
    pieces = np.split(answer.x, np.cumsum([(n_x * n_y) ** 2, n_x * n_y, n_x * n_y]))
    tables = [piece.reshape(n_x, n_y) for piece in pieces[1:]]
    return LiteralLP(scale * answer.fun, pieces[0].reshape(n_x, n_y, n_x, n_y), *tables)
