"""The metrics of reinforcement learning by their names, each one line on :func:`diffbisim.distance`.

``bisimulation``         U = max_a [(1-γ)|r_a - r_a'| + γ OT_U(P_a, P_a')]   Ferns et al. 2004; lax: Taylor et al. 2008
``bisimulation(policy)`` U = (1-γ)|r_π - r_π'| + γ OT_U(P_π, P_π')           Castro 2020
``policy_similarity``    U = (1-γ) DIST(π, π̂) + γ OT_U(P_π, Q_π̂)             PSM, Agarwal et al. 2021
``mico``                 U = (1-γ)|r_π - r_π'| + γ E_{P_π ⊗ P_π'} U          MICo, Castro et al. 2021

All are normalized: a table has the scale of its costs. Papers mostly use V = U/(1-γ).
"""

from typing import Any

import numpy as np
from scipy import sparse

from diffbisim.checks import Floats, check_discount
from diffbisim.cost import ground_cost
from diffbisim.distance import distance
from diffbisim.errors import InvalidArgument
from diffbisim.mdp import MDP
from diffbisim.process import as_process
from diffbisim.results import DistanceResult


def bisimulation(
    mdp: MDP,
    discount: float = 0.95,
    actions: str = "matched",
    *,
    policy: Any = None,
    cost: Any = "reward",
    **options: Any,
) -> DistanceResult:
    """The bisimulation metric between the states of one MDP.

    Parameters
    ----------
    mdp : with rewards of states, or of states and actions
    discount : weight γ of the next step, strictly between 0 and 1
    actions : "matched" (Ferns' metric), "lax" or "directed"
    policy : (n, n_actions) probabilities or (n,) actions, for the π-bisimulation metric of its chain
    cost, options : as for :func:`diffbisim.distance` (``tol``, ``solver``, ``warm``, ``callback``, …)

    Returns
    -------
    MDPResult : ``values (n, n)`` is the metric, with certified ``values_lower`` and ``values_upper``; with a policy the
        DistanceResult of its chain with itself. The metric of most papers is ``values / (1 - discount)``.

    Examples
    --------
    >>> stay, swap = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
    >>> M = MDP([stay, swap], rewards=[[0.0, 0.0], [1.0, 0.0]])
    >>> bisimulation(M, discount=0.5).values
    array([[0., 1.],
           [1., 0.]])
    """
    _check_mdp(mdp, "mdp")
    if policy is None:
        return distance(mdp, mdp, cost, discount, actions=actions, **options)
    chain = mdp.induced_chain(policy)
    return distance(chain, chain, cost, discount, **options)


def policy_similarity(
    mdp: MDP, other: MDP | None = None, *, policy_x: Any, policy_y: Any = None, discount: float = 0.95,
    cost: Any = None, **options: Any,
) -> DistanceResult:  # fmt: skip
    """The policy similarity metric (PSM) between the states of two MDPs, or of one, under a policy of each.

    States are alike if the policies do alike there, and go on to do alike: the cost of a pair is the total variation
    ``½ Σ_a |π(a|s) - π̂(a|t)|``, or ``cost``, an (n, n') table. ``other`` and ``policy_y`` default to the first ones.
    The paper's metric is ``values / (1 - discount)``.
    """
    _check_mdp(mdp, "mdp")
    _check_mdp(other := mdp if other is None else other, "other")
    if policy_y is None and other is not mdp:
        raise InvalidArgument("policy_y is missing: the other MDP needs a policy of its own")
    pi_x, pi_y = mdp._policy(policy_x), other._policy(policy_x if policy_y is None else policy_y)
    if cost is None:
        if mdp.n_actions != other.n_actions:
            raise InvalidArgument(
                f"the MDPs have {mdp.n_actions} and {other.n_actions} actions, which cannot be compared one by one; "
                "give cost, a table of how different the two policies are at every pair of states"
            )
        cost = sum(np.abs(np.subtract.outer(pi_x[:, a], pi_y[:, a])) for a in range(mdp.n_actions)) / 2
    return distance(mdp._chain(pi_x), other._chain(pi_y), cost, discount, **options)


def mico(
    mdp: MDP, other: MDP | None = None, *, policy_x: Any, policy_y: Any = None, discount: float = 0.95,
    cost: Any = "reward",
) -> Floats:  # fmt: skip
    """The MICo distance, (n, n'): the π-bisimulation metric with independent instead of optimal couplings.

    Never below that metric, and positive between a state and itself where its future is random. One linear system,
    ``U = (1-γ) c + γ P U Qᵀ``, by doubling: U = Σ_k γ^k P^k c (Q^k)ᵀ, twice as many terms in every step. The paper's
    distance is ``mico(...) / (1 - discount)``.
    """
    _check_mdp(mdp, "mdp")
    _check_mdp(other := mdp if other is None else other, "other")
    if policy_y is None and other is not mdp:
        raise InvalidArgument("policy_y is missing: the other MDP needs a policy of its own")
    X, Y = mdp.induced_chain(policy_x), other.induced_chain(policy_x if policy_y is None else policy_y)
    γ = check_discount(discount)
    P, Q = (chain.transition.toarray() if sparse.issparse(chain.transition) else chain.transition for chain in (X, Y))
    U, weight = (1 - γ) * ground_cost(cost, X, Y), γ
    while weight > 1e-18:
        U = U + weight * (P @ U @ Q.T)
        P, Q, weight = P @ P, Q @ Q, weight * weight
    return np.asarray(U)


def _check_mdp(mdp: Any, name: str) -> None:
    mdp = as_process(mdp)
    if not isinstance(mdp, MDP):
        raise InvalidArgument(f"{name} is a {type(mdp).__name__}, not an MDP: make one with diffbisim.MDP(kernels)")
