"""Optimal policies and the returns of policies, for MDPs with known tables.

With r(s,a) the reward of an action and P_a the kernels, a policy π is worth

    v_π = r_π + γ P_π v_π,        q(s,a) = r(s,a) + γ Σ_s' P_a(s,s') v_π(s'),

and Howard's policy iteration takes the best action of every state under q until none is better by more than rounding;
it ends, because every round is an improvement and there are finitely many deterministic policies. Of actions that are
equally good the current one stays, at first the one with the lowest number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve

from diffbisim.checks import Floats, Integers, Matrix, check_count, check_discount, finite_numbers
from diffbisim.errors import InvalidArgument
from diffbisim.mdp import MDP
from diffbisim.names import entries_and_names, in_order


def action_values(mdp: MDP, v: Floats) -> Floats:
    """``Σ_s' P_a(s,s') v(s')``, (n, n_actions); ``v`` is (n,), or (n, n) and then a value of the transition (s,s')."""
    if v.ndim == 1:
        return np.stack([P @ v for P in mdp.transition], axis=1)
    return np.stack([_row_products(P, v) for P in mdp.transition], axis=1)


def optimal_policy(mdp: MDP, discount: float, rewards: Any = None) -> Integers:
    """The best action of every state, (n,), by policy iteration.

    ``rewards`` are (n,) of a state, (n, n_actions) of a state and action, or (n, n) of a transition (default: those
    of the MDP). Where there are as many actions as states, a table is of states and actions.
    """
    γ, r = check_discount(discount), action_rewards(mdp, rewards)
    actions = r.argmax(axis=1)
    everyone = np.arange(mdp.n_states)
    scale = float(np.abs(r).max()) / (1.0 - γ)
    while True:
        v = _values(mdp.induced_chain(actions).transition, r[everyone, actions], γ)
        q = r + γ * action_values(mdp, v)
        better = q.max(axis=1) > q[everyone, actions] + 1e-12 * scale
        if not better.any():
            return np.asarray(actions, dtype=np.int64)
        actions = np.where(better, q.argmax(axis=1), actions)


def expected_return(mdp: MDP, policy: Any, horizon: int, discount: float = 1.0, rewards: Any = None) -> float:
    """Expected sum of the (discounted) rewards of the first ``horizon`` steps: the mean return of an episode.

    Gymnasium's time limit is the horizon; after the end of an episode, in an absorbing state, rewards are zero.
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
    """Rewards of every state and action, (n, n_actions), from any of the shapes of :func:`optimal_policy`."""
    n, k = mdp.n_states, mdp.n_actions
    given = mdp.rewards if rewards is None else _bare_rewards(mdp, rewards)
    if given is None:
        raise InvalidArgument("the MDP has no rewards: make it with MDP(..., rewards=r), or pass rewards=")
    if given.shape == (n, k):
        return finite_numbers(given, (n, k), name="rewards", per="state and action")
    if given.shape == (n, n):
        return action_values(mdp, finite_numbers(given, (n, n), name="rewards", per="transition"))
    return np.repeat(finite_numbers(given, (n,), name="rewards", per="state")[:, None], k, axis=1)


def _bare_rewards(mdp: MDP, rewards: Any) -> Any:
    """Rewards that name states and actions (a mapping, Series or DataFrame) in the order of the MDP's."""
    n, k = mdp.n_states, mdp.n_actions
    states, actions = mdp.labels or range(n), mdp.actions or range(k)
    by_state = np.shape(rewards) == (n, n) and n != k
    axes = [states] if len(entries_and_names(rewards)[1]) == 1 else [states, states if by_state else actions]
    return np.asarray(in_order(rewards, axes, "rewards", of=("state", "state" if by_state else "action")))


def _values(P: Matrix, r: Floats, discount: float) -> Floats:
    """``v = r + γ P v``."""
    if isinstance(P, np.ndarray):
        return np.asarray(np.linalg.solve(np.eye(len(r)) - discount * P, r), dtype=np.float64)
    return np.asarray(spsolve(sp.csc_array(sp.eye_array(len(r)) - discount * P), r))


def _row_products(P: Matrix, v: Floats) -> Floats:
    """``Σ_s' P(s,s') v(s,s')``, (n,)."""
    if isinstance(P, np.ndarray):
        return np.asarray(np.einsum("st,st->s", P, v), dtype=np.float64)
    source = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    sums = np.bincount(source, weights=P.data * v[source, P.indices], minlength=P.shape[0])
    return np.asarray(sums, dtype=np.float64)
