"""SMODICE (Ma, Shen, Jayaraman, Bastani 2022): KL between state occupancies.

    minimize  KL(ρ(s) ‖ ρ_E(s)) + α KL(ρ(s,a) ‖ ρ_I(s,a))      over ρ(s,a) ≥ 0 with Bellman flow (see `program`)

The published objective is its upper bound E_ρ[log ρ_I(s)/ρ_E(s)] + KL(ρ(s,a) ‖ ρ_I(s,a)), made for samples; here the
program is solved as it stands, with the regularizer of `lobs_dice` and `pw_dice`. Only state marginals of the expert
enter. The KL is infinite where the learner must go and the expert was never seen, so ρ_E is mixed with a share δ of
ρ_I first.

Size: one exponential cone per (s, a) in the data and one per state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.imitate.baselines.frame import BaselineResult, at_the_door, check_positive
from diffbisim.imitate.baselines.program import Divergence, Program, check_share, smoothed


def smodice(
    offline: Any, expert: Any, discount: float, *, regularization: float = 0.01, smoothing: float = 1e-3
) -> BaselineResult:
    """SMODICE's policy; its objective is the sum above.

    Parameters
    ----------
    offline : OfflineData, or an MDP for known dynamics and infinitely many transitions
    expert : a chain, (s, s_next), Transitions or an (n, n) occupancy table
    discount : γ
    regularization : α
    smoothing : δ, the share of ρ_I in the expert's law; zero is allowed if the expert visits every state of the data
    """
    data, nu = at_the_door(offline, expert, discount)
    alpha, delta = check_positive(regularization, "regularization", zero=True), check_share(smoothing)
    program = Program.make(data, discount)
    target = smoothed(nu.sum(axis=1), program.behavior.sum(axis=1), delta)
    inside = np.unique(program.states)
    return program.solve(alpha, Divergence(1.0, program.state_occupancy[inside], target[inside]))
