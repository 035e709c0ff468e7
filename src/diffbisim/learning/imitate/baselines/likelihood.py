"""Maximum likelihood of the observed (s, s') under given dynamics, state by state.

In every state s with expert frequencies q(s') = ν_E(s,s') / ρ_E(s),

    maximize  Σ_s' q(s') log Σ_a π(a) T(s'|s,a)      over the simplex:      mixture proportions, concave.

With Lagrange multiplier 1 the simplex may be replaced by π ≥ 0 in  f(π) = -Σ q log(Lπ) + Σ_a π(a), L[s',a] = T(s'|s,a):
f is minimal where Σ π = 1. Each step minimizes the second-order model of f over π ≥ 0 (a nonnegative least-squares
problem) and halves the step until f decreases (mixSQP: Kim, Carbonetto, Stephens, Anitescu 2020). EM would take
thousands of steps: with slips all actions reach the same successors, and its rate at the boundary of the simplex is
1/k.

Near the solution the support is known and Newton's method converges to rounding on it (`_polish`), so the answer does
not depend on where the first phase stopped.

*Certificate.* With g(a) = Σ_s' q(s') T(s'|s,a) / (Lπ)(s'), the likelihood is within max_a g(a) - 1 of its maximum.
"Solved" is stronger: g ≤ 1, and g = 1 wherever π > 0, up to ACCURATE. The likelihood is flat near its maximum, so
knowing it to ε determines the policy only to √ε; g = 1 determines it to ACCURATE times the condition number of the
actions' effects.

With known dynamics (an MDP as `offline`) and enough data this solves imitation from observations, provided that some
policy of the MDP can make the expert's transitions. States in which the expert was never observed get the uniform
policy. Actions with equal effects share their probability equally. O(n) problems of n_actions variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, freeze
from diffbisim.common.errors import ConvergenceWarning, warn
from diffbisim.learning.imitate.baselines.data import BaselineResult, checked
from diffbisim.results.base import Status

ACCURATE = 1e-12  # of the optimality conditions; the certificate, in nats, is no larger
ROUNDING = 1e-15
STEPS = 100


def maximum_likelihood(offline: Any, expert: Any, discount: float) -> BaselineResult:
    """Compute the maximum likelihood policy.

    Expert transitions that no action can make have no likelihood; they are omitted with a warning.

    Parameters
    ----------
    offline : OfflineData or MDP
        Offline data, whose estimated dynamics are used, or an MDP for known dynamics.
    expert : MarkovChain, tuple (s, s_next), Transitions or array of shape (n, n)
        The expert; an array is an occupancy table.
    discount : float
        Discount γ. It weights the expert's states, but does not change the policy.

    Returns
    -------
    BaselineResult
        Its objective is the mean of -log P_π(s'|s) over the expert's pairs.
    """
    data, nu = checked(offline, expert, discount)
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
    status = Status.SOLVED if gap <= ACCURATE else Status.INACCURATE
    if status is Status.INACCURATE:
        warn(status.value, ConvergenceWarning, stacklevel=2)
    return BaselineResult(freeze(policy), loss, status, tolerance=gap)


def proportions(L: Floats, q: Floats) -> tuple[Floats, float]:
    """Return proportions (m,) that maximize Σ q log(L π), and their violation of the optimality conditions.

    L (k, m) is nonnegative without a zero row; q (k,) is positive and sums to one.
    """
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
    return _polish(L, q, pi / pi.sum())


def _polish(L: Floats, q: Floats, pi: Floats) -> tuple[Floats, float]:
    """Take Newton steps on the support, dropping what reaches zero and adding what the conditions require."""
    support, patience = pi > 0.0, 3 + pi.size
    best, least = pi, _miss(L, q, pi)
    while patience:
        d = _newton(L, q, pi, support)
        room = np.divide(pi, -d, where=d < 0.0, out=np.full(pi.size, np.inf))  # largest feasible step of each
        length = min(room.min(), 1.0)
        support &= room > length
        pi = np.where(support, np.maximum(pi + length * d, 0.0), 0.0)
        pi /= pi.sum()
        if not np.isfinite(miss := _miss(L, q, pi)):
            break
        patience -= miss >= 0.5 * least
        if miss <= max(least, ROUNDING):
            best, least = pi, miss
        if length < 1.0:
            continue  # add an action only at the optimum of the current face
        outside = np.where(support, 0.0, _excess(L, q, pi))
        if outside.max() > ROUNDING:
            support[outside.argmax()] = True
        elif np.abs(d).max() <= ROUNDING:
            break
    return best, least


def _newton(L: Floats, q: Floats, pi: Floats, support: Any) -> Floats:
    """Return the shortest minimizer of the quadratic model of -Σ q log(Lπ) over steps on the support that sum to zero.

    With A = diag(√q / Lπ) L, an orthonormal basis N of those steps and A N = U S V', the step is N V S⁻² V'N'(A'√q).
    Since the columns of L sum to 1 - lost, A'√q may be replaced by A'(q - Lπ)/√q - lost, which is small at a solution
    that explains q and avoids one division by S. Directions without effect (equal actions) are left unchanged.
    """
    step, k = np.zeros(pi.size), int(support.sum())
    if k < 2:
        return step
    mixture, root = L @ pi, np.sqrt(q)
    N = np.linalg.qr(np.column_stack([np.ones(k), np.eye(k)[:, 1:]]))[0][:, 1:]
    U, S, Vt = np.linalg.svd((root / mixture)[:, None] * (L[:, support] @ N), full_matrices=False)
    effect = S / max(S[0], 1e-300) > 1e-10
    U, S, Vt = U[:, effect], S[effect], Vt[effect]
    lost = Vt @ (N.T @ _lost(L)[support])
    step[support] = N @ (Vt.T @ ((U.T @ ((q - mixture) / root)) / S - lost / S**2))
    return step


def _excess(L: Floats, q: Floats, pi: Floats) -> Floats:
    """Return g(a) - 1, (m,), without cancellation if the mixture is close to q."""
    mixture = L @ pi
    return np.asarray((q - mixture) / mixture @ L - _lost(L))


def _lost(L: Floats) -> Floats:
    """Return one minus the column sums of L, (m,): the mass of successors never observed, with rounding removed."""
    lost = 1.0 - L.sum(axis=0)
    return np.where(np.abs(lost) > L.shape[0] * ROUNDING, lost, 0.0)


def _miss(L: Floats, q: Floats, pi: Floats) -> float:
    """Return the violation of g ≤ 1, and g = 1 where π > 0; infinite if the likelihood is zero."""
    if (L @ pi).min() <= 0.0:
        return np.inf
    excess = _excess(L, q, pi)
    return float(np.where(pi > 0.0, np.abs(excess), np.maximum(excess, 0.0)).max())


def _f(L: Floats, q: Floats, pi: Floats) -> float:
    mixture = L @ pi
    return float(pi.sum() - q @ np.log(mixture)) if mixture.min() > 0.0 else np.inf


def _model_minimum(L: Floats, q: Floats, pi: Floats) -> Floats:
    """Minimize g·(z-π) + ½ (z-π)'(H + δI)(z-π) over z ≥ 0 by nonnegative least squares."""
    from scipy.optimize import nnls

    mixture = L @ pi
    A = (np.sqrt(q) / mixture)[:, None] * L  # H = A'A
    g = 1.0 - A.T @ np.sqrt(q)
    H = A.T @ A
    ridge = 1e-10 * max(float(np.trace(H)), 1e-300)
    R = np.linalg.cholesky(H + ridge * np.eye(pi.size)).T
    b = R @ pi - np.linalg.solve(R.T, g)
    try:
        return np.asarray(nnls(R, b)[0], dtype=np.float64)
    except RuntimeError:  # nnls can cycle at the level of rounding; a step of EM never increases f
        return pi * (1.0 - g)
