"""The bicausal Bellman equation, literally: one linprog per pair of states, then a dense solve.

    V(x,y) = c(x,y) + γ OT_V(P_X(·|x), P_Y(·|y)),        d = (1-γ) OT_V(ν_X, ν_Y)

Policy iteration: from the product coupling, evaluate the plans, improve every plan, until nothing improves.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog


class Bellman(NamedTuple):
    value: float  # d
    V: np.ndarray  # (n_X, n_Y)
    plans: np.ndarray  # (n_X, n_Y, n_X, n_Y)
    f: np.ndarray  # (n_X, n_Y, n_X) potentials for the cost V
    g: np.ndarray  # (n_X, n_Y, n_Y)
    start: np.ndarray  # (n_X, n_Y) plan of the starts


def transport(cost, p, q):
    """Optimal plan and potentials of one transport problem, on all cells: ``plan, f, g``."""
    n, k = cost.shape
    rows = [np.kron(np.eye(n)[i], np.ones(k)) for i in range(n)]
    columns = [np.kron(np.ones(n), np.eye(k)[j]) for j in range(k)]
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "presolve": False}
    # one constraint is redundant: its multiplier is zero
    answer = linprog(
        cost.ravel(),
        A_eq=np.array(rows + columns[:-1]),
        b_eq=np.concatenate([p, q[:-1]]),
        method="highs-ds",
        options=tight,
    )
    assert answer.status == 0, answer.message
    duals = answer.eqlin.marginals
    return answer.x.reshape(n, k), duals[:n], np.append(duals[n:], 0.0)


def evaluate(cost, plans, discount):
    """``V = c + γ Π V``."""
    n = cost.size
    return np.linalg.solve(np.eye(n) - discount * plans.reshape(n, n), cost.ravel()).reshape(cost.shape)


def bellman(P_x, P_y, nu_x, nu_y, cost, discount, *, tol=1e-12):
    """The exact answer for tiny chains, Bellman residual below ``tol`` of the largest value (asserted)."""
    n_x, n_y = cost.shape
    scale = cost.max() if cost.max() > 0 else 1.0
    cost = cost / scale
    plans = np.einsum("ai,bj->abij", P_x, P_y)
    f, g = np.zeros((n_x, n_y, n_x)), np.zeros((n_x, n_y, n_y))
    V = evaluate(cost, plans, discount)
    for _ in range(100):
        plans = np.empty_like(plans)
        for x in range(n_x):
            for y in range(n_y):
                plans[x, y], f[x, y], g[x, y] = transport(V, P_x[x], P_y[y])
        before, V = V, evaluate(cost, plans, discount)
        if np.max(before - V) <= tol:
            break
    dual = cost + discount * (np.einsum("ai,abi->ab", P_x, f) + np.einsum("bj,abj->ab", P_y, g))
    assert np.abs(dual - V).max() <= 20 * tol / (1 - discount)
    start = transport(V, nu_x, nu_y)[0]
    return Bellman((1 - discount) * scale * np.sum(start * V), scale * V, plans, scale * f, scale * g, start)
