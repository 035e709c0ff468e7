"""Methods based on counts: no dynamics are estimated, and nothing is optimized over policies.

*Behavioral cloning from observation* (Torabi, Warnell and Stone 2018), tabular, without further interaction: BCO(0).

    inverse dynamics   I(a|s,s') = weights(s,a,s') / Σ_a weights(s,a,s')        by counts in the offline data
    cloning            π(a|s)    ∝ Σ_s' ν_E(s,s') I(a|s,s')

I is the posterior of the action under the *behavior* policy, ∝ π_I(a|s) T(s'|s,a). If a successor determines its
action, this recovers the expert; if actions overlap (slips), it is biased toward π_I for any amount of data. Expert
pairs (s, s') that the offline data do not contain are omitted; a state without other pairs gets the uniform policy.

The objective is the mean entropy H(a | s, s') of the inferred actions over the expert's pairs, which is zero if every
action is determined. Closed form, O(n² n_actions).

*IOSTOM-style*: soft Q-learning on state transitions, after Pham et al. 2025 (a reconstruction, not their code).

On the transitions (s, s') of the offline data, with frequencies ν_I and p_I(s'|s) = ν_I(s,s') / ν_I(s):

    reward      r(s,s') = (1/κ) (ν_E - ν_I) / (ν_E + ν_I)          the least-squares fit to +1/κ on expert pairs
                                                                    and -1/κ on offline pairs (LSIQ)
    Bellman     Q(s,s') = r(s,s') + γ clip(V(s'), ±1/(κ(1-γ)))
                V(s)    = τ log Σ_s' p_I(s'|s) exp(Q(s,s')/τ)        V = 0 in states that the data never leave
    policy      π(a|s)  ∝ Σ_s' weights(s,a,s') min(exp(β (Q(s,s') - V(s))), 100)      advantage-weighted

The fixed point is that of a γ-contraction, iterated to rounding. The policy is read off the offline actions, so a slip
is credited to whatever action was taken. The objective is the last change of V (zero if solved).
O(pairs · log(1/accuracy) / (1-γ)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from diffbisim.common.checks import Floats, Integers
from diffbisim.learning.imitate.baselines.data import BaselineResult, check_positive, checked, normalized
from diffbisim.results.base import Status

LARGEST_WEIGHT = 100.0


def behavioral_cloning(offline: Any, expert: Any, discount: float) -> BaselineResult:
    """Clone inferred actions.

    Parameters
    ----------
    offline : OfflineData or MDP
        Offline data; an MDP stands for infinitely many transitions of a uniformly random policy.
    expert : MarkovChain, tuple (s, s_next), Transitions or array of shape (n, n)
        The expert; an array is an occupancy table.
    discount : float
        Discount γ. It weights the expert's states, but does not change the policy.

    Returns
    -------
    BaselineResult
        Its objective is the ambiguity of the inferred actions, in nats.
    """
    data, nu = checked(offline, expert, discount)
    total = data.weights.sum(axis=0)  # (n, n)
    inverse = data.weights / np.where(total > 0.0, total, 1.0)  # I, (n_actions, n, n); zero where unseen
    policy = normalized(np.einsum("st,ast->sa", nu, inverse))
    ambiguity = -float(np.sum(nu * xlogy(inverse, inverse).sum(axis=0)))
    return BaselineResult(policy, ambiguity, Status.SOLVED)


def iostom_style(
    offline: Any,
    expert: Any,
    discount: float,
    *,
    kappa: float = 0.5,
    temperature: float = 1.0,
    sharpness: float = 3.0,
) -> BaselineResult:
    """Compute the advantage-weighted policy of soft Q-learning on state transitions.

    Parameters
    ----------
    offline, expert, discount
        As in :func:`behavioral_cloning`.
    kappa : float, default=0.5
        Inverse scale κ of the rewards.
    temperature : float, default=1.0
        Temperature τ of the soft maximum.
    sharpness : float, default=3.0
        Factor β of the advantage weights.

    Returns
    -------
    BaselineResult
        Its objective is the residual of the fixed point.
    """
    data, nu = checked(offline, expert, discount)
    k, tau, beta = (
        check_positive(value, name)
        for value, name in ((kappa, "kappa"), (temperature, "temperature"), (sharpness, "sharpness"))
    )
    offline_pairs = data.weights.sum(axis=0)
    s, s_next = np.nonzero(offline_pairs)
    pairs = ObservedPairs(s, s_next, nu[s, s_next], offline_pairs[s, s_next])
    advantage, residual = _fixed_point(pairs, data.n_states, discount, k, tau)
    weight = np.exp(np.minimum(beta * advantage, np.log(LARGEST_WEIGHT)))
    table = np.zeros((data.n_states, data.n_actions))
    np.add.at(table, s, (data.weights[:, s, s_next] * weight).T)
    status = Status.SOLVED if residual <= 1e-9 else Status.INACCURATE
    return BaselineResult(normalized(table), residual, status, tolerance=residual)


class ObservedPairs(NamedTuple):
    """The transitions (s, s') of the offline data, sorted by s; all of shape (k,)."""

    s: Integers
    s_next: Integers
    nu: Floats  # ν_E
    nu_i: Floats  # ν_I


def _fixed_point(pairs: ObservedPairs, n: int, discount: float, kappa: float, tau: float) -> tuple[Floats, float]:
    """Return Q(s,s') - V(s) of the pairs, (k,), and the last change of V."""
    s, s_next, nu, nu_i = pairs
    reward = (nu - nu_i) / (nu + nu_i) / kappa
    states, first, count = np.unique(s, return_index=True, return_counts=True)
    logp = np.log(nu_i) - np.repeat(np.log(np.add.reduceat(nu_i, first)), count)
    limit = 1.0 / (kappa * (1.0 - discount))
    V, change = np.zeros(n), np.inf
    for _ in range(int(np.ceil(np.log(1e-16) / np.log(discount))) + 1):
        Q = reward + discount * np.clip(V[s_next], -limit, limit)
        x = Q / tau + logp
        top = np.maximum.reduceat(x, first)
        new = tau * (top + np.log(np.add.reduceat(np.exp(x - np.repeat(top, count)), first)))
        change = float(np.abs(new - V[states]).max())
        V[states] = new
        if change <= 1e-13 * limit:
            break
    return Q - V[s], change
