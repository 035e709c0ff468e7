"""Maximum likelihood of the observed (s, s') under the given dynamics, state by state.

In every state s with expert shares q(s') = ν_E(s,s') / ρ_E(s),

    maximize  Σ_s' q(s') log Σ_a π(a) T(s'|s,a)      over the simplex:      mixture proportions, concave.

With Lagrange multiplier 1 the simplex may be replaced by π ≥ 0 in  f(π) = -Σ q log(Lπ) + Σ_a π(a), L[s',a] = T(s'|s,a):
f is minimal where Σ π = 1. Each step minimizes the second-order model of f over π ≥ 0 (a non-negative least-squares
problem) and halves the step until f falls (mixSQP: Kim, Carbonetto, Stephens, Anitescu 2020). EM would take thousands
of steps here: with slips all actions reach the same successors, and its rate at the boundary of the simplex is 1/k.

Certified: with g(a) = Σ_s' q(s') T(s'|s,a) / (Lπ)(s'), the likelihood is within max_a g(a) - 1 of its maximum.

With known dynamics (an MDP as ``offline``) and enough data this solves imitation from observations outright, whenever
some policy of the MDP can make the expert's transitions. States where the expert was never seen get the uniform policy.
Actions with equal effects share their probability as the start (uniform) has it. O(n) problems of n_actions variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.checks import Floats, freeze
from diffbisim.errors import ConvergenceWarning, warn
from diffbisim.imitate.baselines.frame import BaselineResult, Outcome, at_the_door

ACCURATE = 1e-9  # of the certificate, in nats
STEPS = 100


def maximum_likelihood(offline: Any, expert: Any, discount: float) -> BaselineResult:
    """The policy of maximal likelihood; its objective is the mean of -log P_π(s'|s) over the expert's pairs.

    Parameters
    ----------
    offline : OfflineData (its estimated dynamics are used), or an MDP for known dynamics
    expert : a chain, (s, s_next), Transitions or an (n, n) occupancy table
    discount : γ (only weights the expert's states; it does not change the policy)

    Expert transitions that no action makes have no likelihood: they are left out, with a warning.
    """
    data, nu = at_the_door(offline, expert, discount)
    T = data.dynamics
    possible = T.sum(axis=0) > 0.0
    if (lost := nu[~possible].sum()) > 0.0:
        first = np.argwhere((nu > 0.0) & ~possible)[0]
        warn(
            f"{lost:.2g} of the expert's transitions cannot be made by any action "
            f"(the first: {first[0]} -> {first[1]}); they are left out",
            UserWarning,
            stacklevel=2,
        )
    policy = data.mdp.uniform_policy()
    loss, gap = 0.0, 0.0
    for s in np.flatnonzero((nu * possible).sum(axis=1)):
        seen = np.flatnonzero((nu[s] > 0.0) & possible[s])
        L, q = T[:, s, seen].T, nu[s, seen] / nu[s, seen].sum()
        policy[s], state_gap = proportions(L, q)
        loss -= float(nu[s, seen] @ np.log(L @ policy[s]))
        gap = max(gap, state_gap)
    status = Outcome.SOLVED if gap <= ACCURATE else Outcome.INACCURATE
    if status is Outcome.INACCURATE:
        warn(status.value, ConvergenceWarning, stacklevel=2)
    return BaselineResult(freeze(policy), loss, status)


def proportions(L: Floats, q: Floats) -> tuple[Floats, float]:
    """Proportions (m,) that maximize ``Σ q log(L π)`` and the certified gap; L (k, m) non-negative, no row zero."""
    m = L.shape[1]
    pi = np.full(m, 1.0 / m)
    value = _f(L, q, pi)
    for _ in range(STEPS):
        target = _model_minimum(L, q, pi)
        step = 1.0
        while step > 1e-10 and not (new := _f(L, q, pi + step * (target - pi))) <= value + 4e-16 * (1.0 + abs(value)):
            step *= 0.5
        change = step * (target - pi)
        if step <= 1e-10 or np.abs(change).max() <= 1e-16:
            break
        pi, value = pi + change, new
    pi = np.maximum(pi, 0.0)
    pi /= pi.sum()
    return pi, max(float((q / (L @ pi) @ L).max()) - 1.0, 0.0)


def _f(L: Floats, q: Floats, pi: Floats) -> float:
    mixture = L @ pi
    return float(pi.sum() - q @ np.log(mixture)) if mixture.min() > 0.0 else np.inf


def _model_minimum(L: Floats, q: Floats, pi: Floats) -> Floats:
    """Minimum over z ≥ 0 of g·(z-π) + ½ (z-π)'(H + δI)(z-π), as non-negative least squares."""
    from scipy.optimize import nnls

    mixture = L @ pi
    A = (np.sqrt(q) / mixture)[:, None] * L  # H = A'A
    g = 1.0 - A.T @ np.sqrt(q)
    H = A.T @ A
    ridge = 1e-10 * max(float(np.trace(H)), 1e-300)
    R = np.linalg.cholesky(H + ridge * np.eye(pi.size)).T
    b = R @ pi - np.linalg.solve(R.T, g)
    return np.asarray(nnls(R, b)[0], dtype=np.float64)
