"""The simplest policy that the data cannot tell from the best.

The chain of an expert is counted from the n_x steps that were seen out of each state x. A policy that is fitted to the
counts also follows their noise: where the expert always takes one action, a mixture comes a little closer to what
was seen, and is farther from the expert. How far the noise moves the distance is known to first order, because a row of
counts is multinomial and G = ∂d/∂P_X, centered in every row, is known exactly:

    se² = Σ_x (1/n_x) Σ_x' P_X(x'|x) G(x,x')²

Breiman et al. (CART, 1984) take the simplest model whose error is within one standard error of the best; here it is
1.96 of them, the usual 95 %. The simplest is the deterministic policy of the most likely action in every state: it is
taken if its distance, solved and certified like all others, is at most d + 1.96 se. On the five-state chain with 2 000
transitions that are 11 of 12 samples of a deterministic expert, and none of one that turns aside with probability 0.05.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from diffbisim.checks import Floats
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers import Exact

if TYPE_CHECKING:
    from diffbisim.imitate.result import ImitationResult


#: Standard errors that the data are said not to tell apart: 95 % of a normal law.
CONFIDENCE = 1.96


def standard_error(result: DistanceResult, counts: Floats) -> float:
    """Of the distance, when the first chain was counted from ``counts (n_X,)`` steps out of each of its states."""
    chain, G = result.problem.x, result.gradient.transition_x
    s = chain.successors
    source = s.sources
    entries = G[source, s.indices] if isinstance(G, np.ndarray) else G.data
    variance = np.bincount(source, weights=s.probabilities * entries**2, minlength=chain.n_states)
    seen = counts > 0  # states that were never left are absorbing by assumption
    return float(np.sqrt(np.sum(variance[seen] / counts[seen])))


def simplest(found: ImitationResult, counts: Floats) -> ImitationResult:
    """The deterministic policy nearest to the one that was found, if the data cannot tell the two apart."""
    best, actions = found.distance, found.policy.argmax(axis=1)
    policy = np.asarray(np.eye(found.policy.shape[1])[actions], dtype=np.float64)
    p = best.problem
    distance = Exact().solve(Problem(p.x, found.mdp.induced_chain(policy), p.cost, p.discount))
    if distance.upper > best.value + CONFIDENCE * standard_error(best, counts):
        return found
    return replace(found, policy=policy, distance=distance)
