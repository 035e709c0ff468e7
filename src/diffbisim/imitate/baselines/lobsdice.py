"""LobsDICE (Kim et al. 2022): KL between state-transition occupancies.

    minimize  KL(ν(s,s') ‖ ν_E(s,s')) + α KL(ρ(s,a) ‖ ρ_I(s,a)),      ν(s,s') = Σ_a ρ(s,a) T(s'|s,a)
    over      ρ(s,a) ≥ 0 with Bellman flow (see `program`)

The published algorithm solves the dual from samples; here the program is solved as it stands. It compares
pairs (s, s'): unlike `smodice`, `pw_dice` and `state_matching` it does see how the expert moves. The KL is infinite
where the learner must go and the expert was never seen, so ν_E is mixed with a share δ of ν_I first.

Size: one exponential cone per (s, a) in the data and one per transition (s, s') that they allow. Pairs (s, a) never
seen have uniform successors in the estimated MDP, which is where large programs come from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.imitate.baselines.frame import BaselineResult, at_the_door, check_positive
from diffbisim.imitate.baselines.program import Divergence, Program, check_share, smoothed


def lobs_dice(
    offline: Any, expert: Any, discount: float, *, regularization: float = 0.01, smoothing: float = 1e-3
) -> BaselineResult:
    """LobsDICE's policy; its objective is the sum above.

    Parameters
    ----------
    offline : OfflineData, or an MDP for known dynamics and infinitely many transitions
    expert : a chain, (s, s_next), Transitions or an (n, n) occupancy table
    discount : γ
    regularization : α
    smoothing : δ, the share of ν_I in the expert's law; zero if the expert makes every transition of the data
    """
    data, nu = at_the_door(offline, expert, discount)
    alpha, delta = check_positive(regularization, "regularization", zero=True), check_share(smoothing)
    program = Program.make(data, discount)
    law, s, s_next = program.transition_occupancy()
    behavior = np.einsum("sa,ast->st", program.behavior, data.dynamics)  # ν_I
    return program.solve(alpha, Divergence(1.0, law, smoothed(nu, behavior, delta)[s, s_next]))
