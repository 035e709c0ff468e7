"""Planning in known MDPs: optimal policies, and the values of given policies.

With rewards r(s,a) and kernels P_a, a policy π has the values

    v_π = r_π + γ P_π v_π,        q(s,a) = r(s,a) + γ Σ_s' P_a(s,s') v_π(s').

Howard's policy iteration switches every state to its best action under q until no action is better by more than
rounding. It terminates because every iteration improves the policy and there are finitely many deterministic policies.
Ties keep the current action, initially the one with the lowest index.

*Certified bounds.* Let T be the Bellman operator (of a policy, or of the optimal values), v any table and
Δ = Tv - v. Since T is monotone and T(v + k) = Tv + γk, the fixed point lies in
[Tv + γ/(1-γ) min Δ, Tv + γ/(1-γ) max Δ]. One extra sweep therefore bounds the error of the solution; the bounds account
for the rounding of that sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Integers, Matrix, check_count, check_discount, finite_numbers
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.names import entries_and_names, in_order
from diffbisim.processes.mdp import MDP

__all__ = ["Values", "expected_return", "optimal_policy", "optimal_values", "policy_values"]


def action_values(mdp: MDP, v: Floats) -> Floats:
    """Return ``Σ_s' P_a(s,s') v(s')``, (n, n_actions); ``v`` is (n,), or (n, n) with a value per transition (s,s')."""
    if v.ndim == 1:
        return np.stack([P @ v for P in mdp.transition], axis=1)
    return np.stack([_row_products(P, v) for P in mdp.transition], axis=1)


def optimal_policy(mdp: MDP, discount: float, rewards: Any = None) -> Integers:
    """Return the best action of every state, (n,), by policy iteration.

    ``rewards`` (default: those of the MDP) are (n,) per state, (n, n_actions) per state and action, or (n, n) per
    transition. If there are as many actions as states, a table is per state and action.
    """
    return improve(mdp.transition, action_rewards(mdp, rewards), check_discount(discount)).actions


class Plan(NamedTuple):
    """A deterministic policy and its values, up to rounding."""

    actions: Integers  # (n,)
    values: Floats  # (n,)


class Values(NamedTuple):
    """Certified bounds on the values of all states, (n,) each, including rounding errors."""

    lower: Floats
    upper: Floats


def improve(kernels: Sequence[Any], r: Floats, discount: float) -> Plan:
    """Run policy iteration with one kernel (n, n) per action and rewards (n, n_actions)."""
    γ, actions, everyone = discount, r.argmax(axis=1), np.arange(len(r))
    scale = float(np.abs(r).max()) / (1.0 - γ)
    while True:
        v = solved_values(chosen_rows(kernels, actions), r[everyone, actions], γ)
        q = r + γ * np.stack([P @ v for P in kernels], axis=1)
        better = q.max(axis=1) > q[everyone, actions] + 1e-12 * scale
        if not better.any():
            return Plan(np.asarray(actions, dtype=np.int64), v)
        actions = np.where(better, q.argmax(axis=1), actions)


def chosen_rows(kernels: Sequence[Any], actions: Integers) -> Matrix:
    """Return the kernel of a deterministic policy, (n, n), whose row s is that of action ``actions[s]``."""
    n = len(actions)
    if isinstance(kernels[0], np.ndarray):
        return np.stack([kernels[a][s] for s, a in enumerate(actions.tolist())])
    return sp.csr_array(sp.vstack(kernels, format="csr")[actions * n + np.arange(n)])


def optimal_values(mdp: MDP, discount: float, rewards: Any = None) -> Values:
    """Return certified bounds on the optimal values ``v* = max_a [r_a + γ P_a v*]`` of all states."""
    γ, r = check_discount(discount), action_rewards(mdp, rewards)
    v = improve(mdp.transition, r, γ).values
    return _bracket(mdp, (r + γ * action_values(mdp, v)).max(axis=1), v, r, γ)


def policy_values(mdp: MDP, policy: Any, discount: float, rewards: Any = None) -> Values:
    """Return certified bounds on the values of a policy, given as (n, n_actions) probabilities or (n,) actions."""
    γ, r, pi = check_discount(discount), action_rewards(mdp, rewards), mdp._policy(policy)
    source = (pi * r).sum(axis=1)
    deterministic = bool((pi.max(axis=1) == 1.0).all())
    P = chosen_rows(mdp.transition, pi.argmax(axis=1)) if deterministic else mdp._mixture(pi)
    v = solved_values(P, source, γ)
    return _bracket(mdp, (pi * (r + γ * action_values(mdp, v))).sum(axis=1), v, r, γ)


def _bracket(mdp: MDP, after: Floats, v: Floats, r: Floats, discount: float) -> Values:
    """Return bounds on the fixed point from a table v and its image ``after`` = Tv (see the module docstring).

    Each entry of Tv is a sum of at most n products and a few more terms, so its rounding error is at most (n + 8) ε
    times the magnitude of the tables; this also covers kernels whose rows sum to one only up to rounding.
    """
    γ, change = discount, after - v
    longest = mdp.n_states if not mdp.is_sparse else int(np.diff(mdp._stacked.indptr).max())
    size = float(np.abs(r).max()) + float(np.abs(v).max())
    slack = (longest + mdp.n_actions + 8) * float(np.finfo(float).eps) * size / (1.0 - γ)
    low, high = (γ / (1.0 - γ) * float(f(change)) for f in (np.min, np.max))
    return Values(after + low - slack, after + high + slack)


def expected_return(mdp: MDP, policy: Any, horizon: int, discount: float = 1.0, rewards: Any = None) -> float:
    """Return the expected sum of the (discounted) rewards of the first ``horizon`` steps, the mean episode return.

    For a Gymnasium environment the horizon is its time limit; rewards in absorbing states after the end are zero.
    """
    if not 0.0 < discount <= 1.0:
        raise InvalidArgument(f"discount is {discount!r}; it must be positive and at most 1")
    pi = mdp._policy(policy)
    r = (pi * action_rewards(mdp, rewards)).sum(axis=1)
    P, v = mdp.induced_chain(pi).transition, np.zeros(mdp.n_states)
    for _ in range(check_count(horizon, "horizon")):
        v = r + discount * (P @ v)
    return float(mdp.initial @ v)


def action_rewards(mdp: MDP, rewards: Any = None) -> Floats:
    """Return the rewards of every state and action, (n, n_actions), from any shape that `optimal_policy` accepts."""
    n, k = mdp.n_states, mdp.n_actions
    given = mdp.rewards if rewards is None else _bare_rewards(mdp, rewards)
    if given is None:
        raise InvalidArgument("the MDP has no rewards; create it with MDP(..., rewards=r), or pass rewards=")
    if given.shape == (n, k):
        return finite_numbers(given, (n, k), name="rewards", per="state and action")
    if given.shape == (n, n):
        return action_values(mdp, finite_numbers(given, (n, n), name="rewards", per="transition"))
    return np.repeat(finite_numbers(given, (n,), name="rewards", per="state")[:, None], k, axis=1)


def _bare_rewards(mdp: MDP, rewards: Any) -> Any:
    """Return named rewards (a mapping, Series or DataFrame) in the order of the MDP's states and actions."""
    n, k = mdp.n_states, mdp.n_actions
    states, actions = mdp.names or range(n), mdp.actions or range(k)
    by_state = np.shape(rewards) == (n, n) and n != k
    axes = [states] if len(entries_and_names(rewards)[1]) == 1 else [states, states if by_state else actions]
    return np.asarray(in_order(rewards, axes, "rewards", of=("state", "state" if by_state else "action")))


def solved_values(P: Matrix, r: Floats, discount: float) -> Floats:
    """Solve ``v = r + γ P v``, (n,)."""
    if isinstance(P, np.ndarray):
        return np.asarray(np.linalg.solve(np.eye(len(r)) - discount * P, r), dtype=np.float64)
    from scipy.sparse.linalg import spsolve

    return np.asarray(spsolve(sp.csc_array(sp.eye_array(len(r)) - discount * P), r))


def _row_products(P: Matrix, v: Floats) -> Floats:
    """Return ``Σ_s' P(s,s') v(s,s')``, (n,)."""
    if isinstance(P, np.ndarray):
        return np.asarray(np.einsum("st,st->s", P, v), dtype=np.float64)
    source = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    sums = np.bincount(source, weights=P.data * v[source, P.indices], minlength=P.shape[0])
    return np.asarray(sums, dtype=np.float64)
