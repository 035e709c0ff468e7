"""PW-DICE (Yan, Schwing, Wang 2024): primal Wasserstein distance between state occupancies, as a convex program.

    minimize  <Π, c> + ε1 KL(Π ‖ U) + ε2 KL(ρ ‖ ρ_I)                       over Π(s,s') ≥ 0, ρ(s,a) ≥ 0
    s.t.      Σ_s' Π(s,s') = Σ_a ρ(s,a),     Σ_s Π(s,s') = ρ_E(s'),     Bellman flow of ρ (see `program`)

with U(s,s') = ρ_I(s) ρ_E(s'), c = 1{s ≠ s'} unless given, and π = ρ(s,a)/ρ(s). The coupling matches *where* the two
are, not where they go next: policies with equal state occupancies cost the same, and ε2 decides between them in favor
of the behavior policy. As ε1, ε2 → 0 it becomes `state_matching` on the support of the data.

Size: one exponential cone per pair of (states in the data) × (expert's states), and one per (s, a) in the data;
64 states (4 096 cones) take a second or two, 104 about 15 s, several hundred are too many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.imitate.baselines.frame import BaselineResult, at_the_door, check_positive
from diffbisim.imitate.baselines.program import Divergence, Program
from diffbisim.imitate.baselines.state_matching import state_cost


def pw_dice(
    offline: Any,
    expert: Any,
    discount: float,
    *,
    cost: Any = "indicator",
    coupling_regularization: float = 0.01,
    regularization: float = 0.01,
) -> BaselineResult:
    """PW-DICE's policy; its objective is the regularized transport cost.

    Parameters
    ----------
    offline : OfflineData, or an MDP for known dynamics and infinitely many transitions
    expert : a chain, (s, s_next), Transitions or an (n, n) occupancy table
    discount : γ
    cost : "indicator" or an (n, n) array c(s, s')
    coupling_regularization, regularization : ε1 and ε2; zero is allowed
    """
    data, nu = at_the_door(offline, expert, discount)
    c = state_cost(cost, data.n_states)
    e1 = check_positive(coupling_regularization, "coupling_regularization", zero=True)
    e2 = check_positive(regularization, "regularization", zero=True)
    program, target = Program.make(data, discount), nu.sum(axis=1)
    rows, columns = np.unique(program.states), np.flatnonzero(target)
    product = np.outer(program.behavior.sum(axis=1)[rows], target[columns])  # U
    n, m = product.shape
    plan = sp.eye_array(n * m, format="csr")  # after ρ, row by row
    other = np.arange(m) != target[columns].argmax()  # one column follows from the rest: both laws sum to one
    over_rows, over_columns = sp.kron(sp.eye_array(n), np.ones((1, m))), sp.kron(np.ones((1, n)), np.eye(m)[other])
    marginals = sp.block_array([[-program.state_occupancy[rows], over_rows], [None, over_columns]], format="csr")
    none = sp.csr_array((n * m, program.states.size))
    return program.solve(
        e2,
        Divergence(e1, sp.hstack([none, plan], format="csr"), product.ravel()),
        cost=c[np.ix_(rows, columns)].ravel(),
        equal=(marginals, np.concatenate([np.zeros(n), target[columns[other]]])),
    )
