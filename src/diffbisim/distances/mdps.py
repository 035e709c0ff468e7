"""State metrics from reinforcement learning, as special cases of :func:`diffbisim.distance`.

``bisimulation``         U = max_a [(1-γ)|r_a - r_a'| + γ OT_U(P_a, P_a')]   Ferns et al. 2004; lax: Taylor et al. 2008
``bisimulation(policy)`` U = (1-γ)|r_π - r_π'| + γ OT_U(P_π, P_π')           Castro 2020
``policy_similarity``    U = (1-γ) DIST(π, π̂) + γ OT_U(P_π, Q_π̂)             PSM, Agarwal et al. 2021
``mico``                 U = (1-γ)|r_π - r_π'| + γ E_{P_π ⊗ P_π'} U          MICo, Castro et al. 2021

All are normalized to the scale of their costs; most papers use V = U/(1-γ).
"""

from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, check_discount, dense
from diffbisim.common.errors import InvalidArgument
from diffbisim.distances.chains import distance
from diffbisim.processes.convert import as_process
from diffbisim.processes.cost import ground_cost
from diffbisim.processes.mdp import MDP
from diffbisim.results.base import DistanceResult


def bisimulation(
    mdp: MDP,
    discount: float = 0.95,
    actions: str = "matched",
    *,
    policy: Any = None,
    cost: Any = "reward",
    **options: Any,
) -> DistanceResult:
    """Compute the bisimulation metric between the states of an MDP.

    Parameters
    ----------
    mdp : MDP
        With rewards of states, or of states and actions.
    discount : float, default=0.95
        The discount factor γ, strictly between 0 and 1.
    actions : {"matched", "lax", "directed"}, default="matched"
        How actions are compared; "matched" is Ferns' metric.
    policy : array of shape (n, n_actions) or (n,), default=None
        Action probabilities, or one action per state, for the π-bisimulation metric of the induced chain.
    cost : as for :func:`diffbisim.distance`, default="reward"
    **options
        Further arguments of :func:`diffbisim.distance` (``tol``, ``solver``, ``warm``, ``callback``, …).

    Returns
    -------
    result : MDPResult, or DistanceResult if there is a policy
        ``values`` (n, n) is the metric, with certified ``values_lower`` and ``values_upper``. The metric of most papers
        is ``values / (1 - discount)``.

    Examples
    --------
    >>> stay, swap = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
    >>> M = MDP([stay, swap], rewards=[[0.0, 0.0], [1.0, 0.0]])
    >>> bisimulation(M, discount=0.5).values
    array([[0., 1.],
           [1., 0.]])
    """
    _check_options(options, "bisimulation")
    mdp = _as_mdp(mdp, "mdp")
    if policy is None:
        return distance(mdp, mdp, cost, discount, actions=actions, **options)
    if not isinstance(actions, str) or actions != "matched":
        raise InvalidArgument(
            f"actions={actions!r} has no meaning if a policy chooses the actions; omit one of the two"
        )
    chain = mdp.induced_chain(policy)
    return distance(chain, chain, cost, discount, **options)


def policy_similarity(
    mdp: MDP, other: MDP | None = None, *, policy_x: Any, policy_y: Any = None, discount: float = 0.95,
    cost: Any = None, **options: Any,
) -> DistanceResult:  # fmt: skip
    """Compute the policy similarity metric (PSM) between the states of one or two MDPs.

    Two states are similar if the policies act similarly there and in the states that follow.

    Parameters
    ----------
    mdp : MDP
    other : MDP, default=None
        The second MDP; by default the first.
    policy_x, policy_y : arrays of shape (n, n_actions) or (n,)
        The policies of the two MDPs; ``policy_y`` defaults to ``policy_x`` if there is one MDP.
    discount : float, default=0.95
    cost : array of shape (n, n'), default=None
        By default the total variation ``½ Σ_a |π(a|s) - π̂(a|t)|``.
    **options
        Further arguments of :func:`diffbisim.distance`.

    Returns
    -------
    result : DistanceResult
        The paper's metric is ``values / (1 - discount)``.
    """
    _check_options(options, "policy_similarity")
    mdp, other = _both_mdps(mdp, other, policy_y)
    pi_x, pi_y = mdp._policy(policy_x), other._policy(policy_x if policy_y is None else policy_y)
    if cost is None:
        if mdp.n_actions != other.n_actions:
            raise InvalidArgument(
                f"the MDPs have {mdp.n_actions} and {other.n_actions} actions, which cannot be matched; pass cost, a "
                "table of how different the two policies are at every pair of states"
            )
        cost = sum(np.abs(np.subtract.outer(pi_x[:, a], pi_y[:, a])) for a in range(mdp.n_actions)) / 2
    return distance(mdp._chain(pi_x), other._chain(pi_y), cost, discount, **options)


def mico(
    mdp: MDP, other: MDP | None = None, *, policy_x: Any, policy_y: Any = None, discount: float = 0.95,
    cost: Any = "reward",
) -> Floats:  # fmt: skip
    """Compute the MICo distance: the π-bisimulation metric with independent instead of optimal couplings.

    It is an upper bound on that metric, and positive between a state and itself if its future is random. The linear
    system ``U = (1-γ) c + γ P U Qᵀ`` is solved by doubling the number of terms of ``U = (1-γ) Σ_k γ^k P^k c (Q^k)ᵀ``.
    Parameters are those of :func:`policy_similarity`, with ``cost`` as for :func:`diffbisim.distance`.

    Returns
    -------
    values : array of shape (n, n')
        The paper's distance is ``values / (1 - discount)``.
    """
    mdp, other = _both_mdps(mdp, other, policy_y)
    X, Y = mdp.induced_chain(policy_x), other.induced_chain(policy_x if policy_y is None else policy_y)
    γ = check_discount(discount)
    P, Q = dense(X.transition), dense(Y.transition)
    U, weight = (1 - γ) * ground_cost(cost, X, Y), γ
    while weight > 1e-18:
        U = U + weight * (P @ U @ Q.T)
        P, Q, weight = P @ P, Q @ Q, weight * weight
    return np.asarray(U)


def _check_options(options: dict[str, Any], name: str) -> None:
    """Refuse a further argument that is none of :func:`diffbisim.distance` either, by the name of the function."""
    known = {"solver", "tol", *(distance.__kwdefaults__ or {})}
    if unknown := [option for option in options if option not in known]:
        raise InvalidArgument(f"{unknown[0]} is not an argument of {name}; use one of {', '.join(sorted(known))}")


def _as_mdp(mdp: Any, name: str) -> MDP:
    mdp = as_process(mdp)
    if not isinstance(mdp, MDP):
        raise InvalidArgument(f"{name} is a {type(mdp).__name__}, not an MDP; create one with diffbisim.MDP(kernels)")
    return mdp


def _both_mdps(mdp: Any, other: Any, policy_y: Any) -> tuple[MDP, MDP]:
    first = _as_mdp(mdp, "mdp")
    second = first if other is None or other is mdp else _as_mdp(other, "other")
    if policy_y is None and second is not first:
        raise InvalidArgument("policy_y is missing; the other MDP needs its own policy")
    return first, second
