"""Optimal policies and the returns of policies, for MDPs with known tables.

With r(s,a) the reward of an action and P_a the kernels, a policy π is worth

    v_π = r_π + γ P_π v_π,        q(s,a) = r(s,a) + γ Σ_s' P_a(s,s') v_π(s'),

and Howard's policy iteration takes the best action of every state under q until none is better by more than rounding;
it ends, because every round is an improvement and there are finitely many deterministic policies. Of actions that are
equally good the current one stays, at first the one with the lowest number.

*What is certified.* For any table v, with Δ = Tv - v the change by one Bellman sweep (of a policy, or with the best
actions), the fixed point lies in [Tv + γ/(1-γ) min Δ, Tv + γ/(1-γ) max Δ]: T is monotone and T(v + k) = Tv + γk. So the
accuracy of what was solved for is known from one more sweep, whose rounding is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    return improve(mdp.transition, action_rewards(mdp, rewards), check_discount(discount)).actions


class Plan(NamedTuple):
    """A deterministic policy, and what it is worth up to rounding."""

    actions: Integers  # (n,)
    values: Floats  # (n,)


class Values(NamedTuple):
    """Certified bounds on the values of all states, (n,) each; rounding included."""

    lower: Floats
    upper: Floats


def improve(kernels: Sequence[Any], r: Floats, discount: float) -> Plan:
    """Policy iteration on bare tables: one kernel (n, n) per action, and rewards (n, n_actions)."""
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
    """The kernel under a deterministic policy: row s is that of its action, (n, n)."""
    n = len(actions)
    if isinstance(kernels[0], np.ndarray):
        return np.stack([kernels[a][s] for s, a in enumerate(actions.tolist())])
    return sp.csr_array(sp.vstack(kernels, format="csr")[actions * n + np.arange(n)])


def optimal_values(mdp: MDP, discount: float, rewards: Any = None) -> Values:
    """Certified bounds on the optimal values ``v* = max_a [r_a + γ P_a v*]`` of all states."""
    γ, r = check_discount(discount), action_rewards(mdp, rewards)
    v = improve(mdp.transition, r, γ).values
    return _bracket(mdp, (r + γ * action_values(mdp, v)).max(axis=1), v, r, γ)


def policy_values(mdp: MDP, policy: Any, discount: float, rewards: Any = None) -> Values:
    """Certified bounds on the values of a policy, (n, n_actions) probabilities or (n,) actions, in all states."""
    γ, r, pi = check_discount(discount), action_rewards(mdp, rewards), mdp._policy(policy)
    source = (pi * r).sum(axis=1)
    deterministic = bool((pi.max(axis=1) == 1.0).all())
    P = chosen_rows(mdp.transition, pi.argmax(axis=1)) if deterministic else mdp._mixture(pi)
    v = solved_values(P, source, γ)
    return _bracket(mdp, (pi * (r + γ * action_values(mdp, v))).sum(axis=1), v, r, γ)


def _bracket(mdp: MDP, after: Floats, v: Floats, r: Floats, discount: float) -> Values:
    """Bounds on the fixed point from a table and its sweep (see the module's head).

    A sweep adds up at most n products and a few terms more per entry, so its rounding is at most (n + 8) ε times the
    size of the tables; kernels whose rows miss one by rounding are within the same.
    """
    γ, change = discount, after - v
    longest = mdp.n_states if not mdp.is_sparse else int(np.diff(mdp._stacked.indptr).max())
    size = float(np.abs(r).max()) + float(np.abs(v).max())
    slack = (longest + mdp.n_actions + 8) * float(np.finfo(float).eps) * size / (1.0 - γ)
    low, high = (γ / (1.0 - γ) * float(f(change)) for f in (np.min, np.max))
    return Values(after + low - slack, after + high + slack)


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


def solved_values(P: Matrix, r: Floats, discount: float) -> Floats:
    """``v = r + γ P v``, (n,)."""
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
