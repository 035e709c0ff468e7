"""State-occupancy matching by plain optimal transport: the foil that sees marginals only. A linear program.

    minimize  <Π, c>      over Π(s,s') ≥ 0, ρ(s,a) ≥ 0
    s.t.      Σ_s' Π(s,s') = Σ_a ρ(s,a),     Σ_s Π(s,s') = ρ_E(s'),
              Σ_a ρ(s,a) = (1-γ) p0(s) + γ Σ_{s̄,ā} T(s|s̄,ā) ρ(s̄,ā)

The minimum is zero for every policy whose state occupancy is the expert's, however it moves between the states: which
of them comes out is the solver's choice. For c = 1{s ≠ s'} the transport cost is the total variation, and the plan is
replaced by the mass that stays, t ≤ ρ(s), t ≤ ρ_E(s), minimize 1 - Σ t: that is n more variables instead of n².

Solved by HiGHS (scipy), without cvxpy, to TOLERANCE in every constraint: the transport cost is known to that times the
sum of the prices, 1e-10 · (n + 1) max c / (1-γ) at most; the policy need not be unique. Size: 500 states and 6 actions
with the indicator cost take seconds; with a general cost the plan has (states) × (expert's states) entries, fine up to
about 100 states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.checks import Floats
from diffbisim.errors import InvalidCost, InvalidData
from diffbisim.imitate.baselines.frame import BaselineResult, OfflineData, Outcome, at_the_door, policy_of

TOLERANCE = 1e-10


def state_matching(offline: Any, expert: Any, discount: float, *, cost: Any = "indicator") -> BaselineResult:
    """A policy whose state occupancy is as close to the expert's as can be; its objective is the transport cost.

    Parameters
    ----------
    offline : OfflineData, or an MDP for known dynamics (π_I and ρ_I play no part)
    expert : a chain, (s, s_next), Transitions or an (n, n) occupancy table
    discount : γ
    cost : "indicator" or an (n, n) array c(s, s')
    """
    data, nu = at_the_door(offline, expert, discount)
    target = nu.sum(axis=1)
    if isinstance(cost, str) and cost == "indicator":
        return _stay(data, discount, target)
    return _move(data, discount, target, state_cost(cost, data.n_states))


def state_cost(cost: Any, n: int) -> Floats:
    """The (n, n) cost between states of one space."""
    if isinstance(cost, str):
        if cost != "indicator":
            raise InvalidCost(f'cost {cost!r} is unknown here; use "indicator" or an ({n}, {n}) array')
        return 1.0 - np.eye(n)
    table = np.asarray(cost, dtype=np.float64)
    if table.shape != (n, n) or not np.isfinite(table).all() or table.min() < 0.0:
        raise InvalidCost(f"cost has shape {table.shape}; expected ({n}, {n}), finite and at least 0")
    return table


def _stay(data: OfflineData, discount: float, target: Floats) -> BaselineResult:
    """Variables t (n,) and ρ (n · n_actions,): t ≤ ρ(s), t ≤ ρ_E."""
    n = data.n_states
    leaving, flow, start = _flow(data, discount)
    A_ub = sp.hstack([sp.eye_array(n), -leaving], format="csc")
    A_eq = sp.hstack([sp.csr_array((n, n)), flow], format="csc")
    high = np.concatenate([target, np.full(flow.shape[1], np.inf)])
    return _minimize(data, -np.ones(n), 1.0, A_ub=A_ub, b_ub=np.zeros(n), A_eq=A_eq, b_eq=start, high=high)


def _move(data: OfflineData, discount: float, target: Floats, c: Floats) -> BaselineResult:
    """Variables Π (all states × the expert's) and ρ: rows of Π sum to ρ(s), columns to ρ_E."""
    n, columns = data.n_states, np.flatnonzero(target)
    m = columns.size
    leaving, flow, start = _flow(data, discount)
    rows = sp.kron(sp.eye_array(n), np.ones((1, m)), format="csr")
    sums = sp.kron(np.ones((1, n)), sp.eye_array(m), format="csr")
    A_eq = sp.block_array([[None, flow], [rows, -leaving], [sums, None]], format="csc")
    b_eq = np.concatenate([start, np.zeros(n), target[columns]])
    return _minimize(data, c[:, columns].ravel(), 0.0, A_eq=A_eq, b_eq=b_eq, high=np.inf)


def _flow(data: OfflineData, discount: float) -> tuple[sp.csr_array, sp.csr_array, Floats]:
    """(n, n · n_actions): Σ_a, and the two sides of the Bellman flow for ρ in the order (s, a)."""
    n, m = data.n_states, data.n_actions
    leaving = sp.kron(sp.eye_array(n), np.ones((1, m)), format="csr")
    arriving = sp.csr_array(data.dynamics.transpose(1, 0, 2).reshape(n * m, n).T)
    return leaving, leaving - discount * arriving, (1.0 - discount) * data.mdp.initial


def _minimize(data: OfflineData, weights: Floats, constant: float, *, high: Any, **program: Any) -> BaselineResult:
    from scipy.optimize import linprog

    n, m = data.n_states, data.n_actions
    objective = np.concatenate([weights, np.zeros(n * m)])
    bounds = np.stack([np.zeros(objective.size), np.broadcast_to(high, objective.size)], axis=1)
    tight = {"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE}
    done = linprog(objective, bounds=bounds, method="highs", options=tight, **program)  # type: ignore[call-overload]
    if done.x is None:
        raise InvalidData(f"HiGHS gave up on the program ({done.message}); check the expert and the offline data")
    rho = np.maximum(done.x[weights.size :].reshape(n, m), 0.0)
    status = Outcome.SOLVED if done.status == 0 else Outcome.INACCURATE
    return BaselineResult(policy_of(rho), max(float(done.fun) + constant, 0.0), status, rho, TOLERANCE)
