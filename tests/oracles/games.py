"""Metrics of MDPs, literally: all transports of a sweep as one linear program, value iteration, optimal values.

    δ_ab(s,t) = (1-γ) c_ab(s,t) + γ OT_U(P_a(s), Q_b(t)),   matched: max_a δ_aa;   lax: max(max_a min_b, max_b min_a)

T is a γ-contraction, so a table U is within |T U - U| / (1-γ) of the metric: one sweep is a proof.
"""

import numpy as np
from scipy import sparse
from scipy.optimize import linprog


def transports(P, Q, U):
    """``OT_U(P[k], Q[k])`` for lists of distributions (K, n) and (K, m); a single point has only one coupling."""
    found = np.einsum("ki,ij,kj->k", P, U, Q) / Q.sum(axis=1)
    several = np.minimum((P > 0).sum(axis=1), (Q > 0).sum(axis=1)) > 1
    if several.any():
        found[several] = by_program(P[several], Q[several], U)
    return found


def by_program(P, Q, U):
    """The same for any distributions, by one linear program on their supports."""
    cells = [np.nonzero(np.outer(p > 0, q > 0)) for p, q in zip(P, Q, strict=True)]
    item = np.repeat(np.arange(len(P)), [i.size for i, _ in cells])
    i, j = (np.concatenate([part[side] for part in cells]) for side in (0, 1))
    n, m, count = P.shape[1], Q.shape[1], np.arange(item.size)
    ones = np.ones(item.size)
    rows = sparse.csr_array((ones, (item * n + i, count)), shape=(P.size, item.size))
    cols = sparse.csr_array((ones, (item * m + j, count)), shape=(Q.size, item.size))
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    q = Q * (P.sum(axis=1) / Q.sum(axis=1))[:, None]  # rounding must not make it infeasible
    keep = np.flatnonzero(np.concatenate([P.ravel(), q.ravel()]) > 0)
    A, b = sparse.vstack([rows, cols]).tocsr()[keep], np.concatenate([P.ravel(), q.ravel()])[keep]
    answer = linprog(U[i, j], A_eq=A, b_eq=b, method="highs-ds", options=tight)
    assert answer.status == 0, answer.message
    return np.bincount(item, weights=answer.x * U[i, j], minlength=len(P))


def all_transports(P, Q, U):
    """``OT_U(p, q)`` of every row of P with every row of Q, (len(P), len(Q))."""
    return transports(np.repeat(P, len(Q), axis=0), np.tile(Q, (len(P), 1)), U).reshape(len(P), len(Q))


def reward_cost(r, r_hat, directed=False):
    """``|r(s,a) - r̂(t,b)|``, shape (n_A, n_B, n_X, n_Y), from tables (n, n_actions)."""
    difference = r.T[:, None, :, None] - r_hat.T[None, :, None, :]
    return np.maximum(difference, 0.0) if directed else np.abs(difference)


def operator(P, Q, cost, U, discount, actions):
    """T U for kernels (n_A, n_X, n_X), (n_B, n_Y, n_Y) and costs of all pairs of actions."""
    n_a, _, n_x, n_y = cost.shape
    a, b, s, t = (part.ravel() for part in np.indices(cost.shape))
    if actions == "matched":
        used = a == b
        a, b, s, t = a[used], b[used], s[used], t[used]
    value = (1 - discount) * cost[a, b, s, t] + discount * transports(P[a, s], Q[b, t], U)
    if actions == "matched":
        return value.reshape(n_a, n_x, n_y).max(axis=0)
    delta = value.reshape(cost.shape)
    rows, columns = delta.min(axis=1).max(axis=0), delta.min(axis=0).max(axis=0)
    return rows if actions == "directed" else np.maximum(rows, columns)


def value_iteration(P, Q, cost, discount, actions, tol=1e-9):
    """The metric to within ``tol`` in every entry."""
    U = np.zeros(cost.shape[2:])
    while True:
        before, U = U, operator(P, Q, cost, U, discount, actions)
        if discount / (1 - discount) * np.abs(U - before).max() <= tol:
            return U


def error(U, P, Q, cost, discount, actions):
    """A bound on how far U is from the metric, by one sweep."""
    return np.abs(operator(P, Q, cost, U, discount, actions) - U).max() / (1 - discount)


def optimal_values(P, r, discount, tol=1e-12):
    """Normalized optimal values (1-γ) V*, (n,); leading axes of P (..., n_A, n, n) and r (..., n, n_A) are batches."""
    v = np.zeros(r.shape[:-1])
    while True:
        q = (1 - discount) * r + discount * np.moveaxis((P @ v[..., None, :, None])[..., 0], -2, -1)
        before, v = v, q.max(axis=-1)
        if discount / (1 - discount) * np.abs(v - before).max() <= tol:
            return v


def random_mdp(rng, n, n_actions, kind="dense"):
    """Kernels (n_actions, n, n) and rewards (n, n_actions)."""
    if kind == "dense":
        P = rng.dirichlet(np.ones(n), (n_actions, n))
    elif kind == "deterministic":
        P = np.eye(n)[rng.integers(0, n, (n_actions, n))]
    else:  # a garnet: three successors, probabilities with ties
        P = np.zeros((n_actions, n, n))
        for a in range(n_actions):
            for s in range(n):
                P[a, s, rng.choice(n, min(3, n), replace=False)] += rng.integers(1, 4, min(3, n))
        P /= P.sum(axis=-1, keepdims=True)
    rewards = rng.integers(0, 3, (n, n_actions)) / 2 if kind == "garnet" else rng.random((n, n_actions))
    return P, rewards


def taxi(height, width, slip):
    """States (cell, passenger at corner 0, 1, 2 or in the taxi), six actions: improving both players at once cycles.

    Corners are top left, top right and bottom left, the destination is bottom right. Moves slip to a uniform move and
    every action costs 0.1; a pick-up in the wrong cell costs 1, a drop-off at the destination earns 2 and brings the
    next passenger, uniform over the corners; any other drop-off costs 1 and does nothing.
    """
    cells = [(i, j) for i in range(height) for j in range(width)]
    corners = [cells.index(c) for c in ((0, 0), (0, width - 1), (height - 1, 0))]
    destination, n = cells.index((height - 1, width - 1)), 4 * len(cells)
    P, r = np.zeros((6, n, n)), np.zeros((n, 6))
    steps = [(-1, 0), (1, 0), (0, -1), (0, 1)]

    def moved(cell, step):
        i, j = cells[cell][0] + step[0], cells[cell][1] + step[1]
        return cells.index((i, j)) if 0 <= i < height and 0 <= j < width else cell

    for cell in range(len(cells)):
        for passenger in range(4):
            s = 4 * cell + passenger
            for a, step in enumerate(steps):
                r[s, a] = -0.1
                P[a, s, 4 * moved(cell, step) + passenger] += 1 - slip
                for other in steps:
                    P[a, s, 4 * moved(cell, other) + passenger] += slip / 4
            found = passenger < 3 and cell == corners[passenger]
            P[4, s, 4 * cell + 3 if found else s] = 1.0
            r[s, 4] = -0.1 if found else -1.0
            if passenger == 3 and cell == destination:
                r[s, 5] = 2.0
                P[5, s, 4 * cell : 4 * cell + 3] = 1 / 3
            else:
                r[s, 5], P[5, s, s] = -1.0, 1.0
    return P, r
