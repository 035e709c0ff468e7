"""The bicausal Bellman equation, literally: a linprog with the transports of all pairs of states, then a dense solve.

    V(x,y) = c(x,y) + γ OT_V(P_X(·|x), P_Y(·|y)),        d = (1-γ) OT_V(ν_X, ν_Y)

Policy iteration: from the product coupling, evaluate the plans, improve every plan, until nothing improves.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
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
    return tuple(part[0] for part in transports(cost, [p], [q]))


def transports(cost, sources, targets):
    """Optimal plans and potentials of several transport problems with one cost, side by side in one program."""
    (n, k), m = cost.shape, len(sources)
    rows = [np.kron(np.eye(n)[i], np.ones(k)) for i in range(n)]
    columns = [np.kron(np.ones(n), np.eye(k)[j]) for j in range(k)]
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "presolve": False}
    A = np.array(rows + columns[:-1])  # one constraint of each problem is redundant: its multiplier is zero
    answer = linprog(
        np.tile(cost.ravel(), m),
        A_eq=A if m == 1 else sp.kron(sp.eye_array(m), A),
        b_eq=np.concatenate([np.append(p, q[:-1]) for p, q in zip(sources, targets, strict=True)]),
        method="highs-ds",
        options=tight,
    )
    assert answer.status == 0, answer.message
    duals = answer.eqlin.marginals.reshape(m, n + k - 1)
    return answer.x.reshape(m, n, k), duals[:, :n], np.append(duals[:, n:], np.zeros((m, 1)), axis=1)


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
    V = evaluate(cost, plans, discount)
    for _ in range(100):
        of_pairs = transports(V, np.repeat(P_x, n_y, axis=0), np.tile(P_y, (n_x, 1)))
        plans, f, g = (part.reshape(n_x, n_y, *part.shape[1:]) for part in of_pairs)
        before, V = V, evaluate(cost, plans, discount)
        if np.max(before - V) <= tol:
            break
    dual = cost + discount * (np.einsum("ai,abi->ab", P_x, f) + np.einsum("bj,abj->ab", P_y, g))
    assert np.abs(dual - V).max() <= 20 * tol / (1 - discount)
    start = transport(V, nu_x, nu_y)[0]
    return Bellman((1 - discount) * scale * np.sum(start * V), scale * V, plans, scale * f, scale * g, start)
