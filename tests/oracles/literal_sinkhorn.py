"""Sinkhorn value and policy iteration and the entropic metric, literally: one pair at a time, in logarithms.

    SPI   V = c + γ <π, V> (swept or solved),   π ← π exp(-η γ V), then one marginal made right, X's and Y's by turns
    SVI   V = c - 1/η Σ_x' P_X(x'|x) log Σ_y' π(x'y'|xy)/P_X(x'|x) exp(-η γ V(x'y')), or with Y; then π as above

Both begin with the independent coupling and its value; costs are scaled so that the largest is one.
"""

import numpy as np


def log(p):
    with np.errstate(divide="ignore"):
        return np.log(p)


def logsumexp(a, axis):
    """log Σ exp(a), -inf where all terms are: scipy's checks its arguments for longer than it computes."""
    most = a.max(axis=axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    return log(np.exp(a - most).sum(axis=axis)) + most.squeeze(axis)


def project(log_plan, log_p, log_q, columns):
    """Make one marginal of one plan right; entries outside the supports are -inf and stay so."""
    if columns:
        have = logsumexp(log_plan, axis=0)
        return log_plan + np.where(np.isfinite(have), log_q - np.where(np.isfinite(have), have, 0), 0)
    have = logsumexp(log_plan, axis=1)
    return log_plan + np.where(np.isfinite(have), log_p - np.where(np.isfinite(have), have, 0), 0)[:, None]


def iterate(P_x, P_y, cost, discount, *, policy, eta, constant, sweeps, iterations):
    """``V (n_X, n_Y)`` for costs of at most one, and the plans (n_X, n_Y, n_X, n_Y) of the last iteration."""
    n_x, n_y = cost.shape
    c = cost / cost.max()
    log_x, log_y = log(P_x), log(P_y)
    plans = log_x[:, None, :, None] + log_y[None, :, None, :]
    V = value_of(np.exp(plans), c, discount)
    for k in range(1, iterations + 1):
        step, columns = eta if constant else eta / np.sqrt(k), k % 2 == 0
        if policy and k > 1:
            if sweeps is None:
                V = value_of(np.exp(plans), c, discount)
            else:
                for _ in range(sweeps):
                    V = c + discount * np.einsum("abij,ij->ab", np.exp(plans), V)
        if not policy:
            for _ in range(sweeps or 1):
                V = bellman_sinkhorn(plans, log_x, log_y, c, discount, V, step, columns)
        for x in range(n_x):
            for y in range(n_y):
                plans[x, y] = project(plans[x, y] - step * discount * V, log_x[x], log_y[y], columns)
    return V, np.exp(plans)


def value_of(plans, c, discount):
    n = c.size
    return np.linalg.solve(np.eye(n) - discount * plans.reshape(n, n), c.ravel()).reshape(c.shape)


def bellman_sinkhorn(plans, log_x, log_y, c, discount, V, step, columns):
    new = np.empty_like(c)
    for x in range(c.shape[0]):
        for y in range(c.shape[1]):
            weight = log_y[y] if columns else log_x[x]
            inner = logsumexp(plans[x, y] - step * discount * V, axis=0 if columns else 1)
            on = np.isfinite(weight)
            new[x, y] = c[x, y] - np.sum(np.exp(weight[on]) * (inner[on] - weight[on])) / step
    return new


def entropic_transport(cost, p, q, epsilon, tol=1e-13, most=200_000):
    """Value <π, C> + ε KL(π ‖ p⊗q), plan and potentials f, g at all points, by plain Sinkhorn in logarithms."""
    log_p, log_q = log(p), log(q)
    g = np.zeros(q.size)
    for _ in range(most):
        f = -epsilon * logsumexp((g - cost) / epsilon + log_q, axis=1)
        g = -epsilon * logsumexp((f[:, None] - cost) / epsilon + log_p[:, None], axis=0)
        plan = np.exp(log_p[:, None] + log_q + (f[:, None] + g - cost) / epsilon)
        if np.abs(plan.sum(axis=1) - p).sum() <= tol:
            break
    return p @ f + q @ g, plan, f, g


def entropic_metric(P_x, P_y, nu_x, nu_y, cost, discount, epsilon, tol=1e-14):
    """d_ε and V_ε by value iteration with MacQueen's shift."""
    V = np.zeros_like(cost)
    while True:
        new = np.array(
            [[entropic_transport(V, p, q, epsilon)[0] for q in P_y] for p in P_x],
        )
        change = cost + discount * new - V
        V = V + change + discount / (1 - discount) * (change.max() + change.min()) / 2
        if np.ptp(change) <= tol * max(1.0, V.max()):
            return (1 - discount) * entropic_transport(V, nu_x, nu_y, epsilon)[0], V
