"""Behavioral cloning from observation (Torabi, Warnell, Stone 2018), tabular, without further interaction: BCO(0).

    inverse dynamics   I(a|s,s') = weights(s,a,s') / Σ_a weights(s,a,s')        by counts in the offline data
    cloning            π(a|s)    ∝ Σ_s' ν_E(s,s') I(a|s,s')

I is the posterior of the action under the *behavior* policy, ∝ π_I(a|s) T(s'|s,a). Where a successor betrays its action
this recovers the expert; where actions overlap (slips) it leans towards π_I however many data there are. Expert
pairs (s, s') that the offline data do not contain are left out; a state with no other pairs gets the uniform policy.

The objective is the mean entropy H(a | s, s') of the inferred actions over the expert's pairs: zero if every action
was betrayed. Closed form, O(n² n_actions).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import xlogy

from diffbisim.imitate.baselines.frame import BaselineResult, Outcome, at_the_door, normalized


def behavioral_cloning(offline: Any, expert: Any, discount: float) -> BaselineResult:
    """The cloned policy; its objective is the ambiguity of the inferred actions, in nats.

    Parameters
    ----------
    offline : OfflineData, or an MDP for infinitely many transitions of a uniformly random policy
    expert : a chain, (s, s_next), Transitions or an (n, n) occupancy table
    discount : γ (only weights the expert's states; it does not change the policy)
    """
    data, nu = at_the_door(offline, expert, discount)
    total = data.weights.sum(axis=0)  # (n, n)
    inverse = data.weights / np.where(total > 0.0, total, 1.0)  # I, (n_actions, n, n); zero where unseen
    policy = normalized(np.einsum("st,ast->sa", nu, inverse))
    ambiguity = -float(np.sum(nu * xlogy(inverse, inverse).sum(axis=0)))
    return BaselineResult(policy, ambiguity, Outcome.SOLVED)
