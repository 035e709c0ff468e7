"""Maximum likelihood of the observed (s, s') under the given dynamics, state by state.

In every state s with expert shares q(s') = ν_E(s,s') / ρ_E(s),

    maximize  Σ_s' q(s') log Σ_a π(a) T(s'|s,a)      over the simplex:      mixture proportions, concave.

With Lagrange multiplier 1 the simplex may be replaced by π ≥ 0 in  f(π) = -Σ q log(Lπ) + Σ_a π(a), L[s',a] = T(s'|s,a):
f is minimal where Σ π = 1. Each step minimizes the second-order model of f over π ≥ 0 (a non-negative least-squares
problem) and halves the step until f falls (mixSQP: Kim, Carbonetto, Stephens, Anitescu 2020). EM would take thousands
of steps here: with slips all actions reach the same successors, and its rate at the boundary of the simplex is 1/k.

Near the solution the support is known, and f has nothing that slows Newton's method down: plain steps on the support
end at rounding (`_polish`), so the answer does not depend on where the first phase stopped.

Certified: with g(a) = Σ_s' q(s') T(s'|s,a) / (Lπ)(s'), the likelihood is within max_a g(a) - 1 of its maximum.
"Solved" says more: g ≤ 1 and g = 1 wherever π > 0, up to ACCURATE. Near its maximum the likelihood is flat: to know it
to ε gives the policy only to √ε. But g = 1 gives the policy to ACCURATE, times the condition of the actions' effects.

With known dynamics (an MDP as ``offline``) and enough data this solves imitation from observations outright, whenever
some policy of the MDP can make the expert's transitions. States where the expert was never seen get the uniform policy.
Actions with equal effects share their probability as the start (uniform) has it. O(n) problems of n_actions variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.checks import Floats, freeze
from diffbisim.errors import ConvergenceWarning, warn
from diffbisim.imitate.baselines.data import BaselineResult, checked
from diffbisim.results import Status

ACCURATE = 1e-12  # of the optimality conditions; the certificate, in nats, is no larger
ROUNDING = 1e-15
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
    """Proportions (m,) that maximize ``Σ q log(L π)`` and by how much they miss the optimality conditions.

    L (k, m) is non-negative without a zero row; q (k,) is positive and sums to one.
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
    """Newton steps on the support, which loses what reaches zero and wins what the conditions ask for."""
    support, patience = pi > 0.0, 3 + pi.size
    best, least = pi, _miss(L, q, pi)
    while patience:
        d = _newton(L, q, pi, support)
        room = np.divide(pi, -d, where=d < 0.0, out=np.full(pi.size, np.inf))  # how far each may go
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
            continue  # who comes in is asked at the best point of a face only
        outside = np.where(support, 0.0, _excess(L, q, pi))
        if outside.max() > ROUNDING:
            support[outside.argmax()] = True
        elif np.abs(d).max() <= ROUNDING:
            break
    return best, least


def _newton(L: Floats, q: Floats, pi: Floats, support: Any) -> Floats:
    """Minimum of the second-order model of -Σ q log(Lπ) over steps on the support that sum to zero, the shortest one.

    With A = diag(√q / Lπ) L, an orthonormal basis N of those steps and A N = U S V', the step is N V S⁻² V'N'(A'√q).
    Since the columns of L sum to 1 - lost, A'√q may be replaced by A'(q - Lπ)/√q - lost: what is small at a solution
    that explains q then enters small, and S only once. Directions without effect (equal actions) are left alone.
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
    """``g(a) - 1`` (m,), without cancellation where the mixture is near q."""
    mixture = L @ pi
    return np.asarray((q - mixture) / mixture @ L - _lost(L))


def _lost(L: Floats) -> Floats:
    """What the columns of L lack of one (m,): successors that the expert was never seen to reach; not mere rounding."""
    lost = 1.0 - L.sum(axis=0)
    return np.where(np.abs(lost) > L.shape[0] * ROUNDING, lost, 0.0)


def _miss(L: Floats, q: Floats, pi: Floats) -> float:
    """How far g ≤ 1, and g = 1 where π > 0, are from being true; infinite where the likelihood is zero."""
    if (L @ pi).min() <= 0.0:
        return np.inf
    excess = _excess(L, q, pi)
    return float(np.where(pi > 0.0, np.abs(excess), np.maximum(excess, 0.0)).max())


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
    try:
        return np.asarray(nnls(R, b)[0], dtype=np.float64)
    except RuntimeError:  # it may cycle where steps are lost in rounding: one step of EM leads on, and never up
        return pi * (1.0 - g)
