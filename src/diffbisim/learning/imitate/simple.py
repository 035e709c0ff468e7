"""Simple policies: those that anybody can write down, with which the result of a natural run is compared.

    uniform         every action with the same probability
    constant        the same action in every state
    likely          the policy that makes the expert's transitions most likely, by an inverse model (see below)
    most likely     in every state the most likely action of that policy
    deterministic   all deterministic policies, if there are at most `MOST_DETERMINISTIC`

The initial policy is the first iterate of every run. No result of ``update="natural"`` with a table as policy is
farther from the expert than any of these: a run that has settled continues from a simple policy that is closer, and
the closest one is returned unless the callback stopped the run.

*Inverse model.* If expert and learner have equally many states, the likelihood Σ_s' P_X(s'|s) log P_π(s'|s) of every
state s is a concave function of π(·|s), which is maximized to rounding (baselines/likelihood.py). Where some policy
makes the expert's transitions, this is one of them. Transitions that no action can make are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats
from diffbisim.learning.imitate.baselines.likelihood import proportions
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP

#: Number of deterministic policies up to which all of them are tried, and of constant ones otherwise.
MOST_DETERMINISTIC = 64


def simple_policies(expert: MarkovChain, mdp: MDP) -> Iterator[Floats]:
    """Yield the simple policies, (n, n_actions) each."""
    n, k = mdp.n_states, mdp.n_actions
    yield mdp.uniform_policy()
    if k == 1:
        return
    if expert.n_states == n:
        likely = likely_policy(expert, mdp)
        yield likely
        yield np.eye(k)[likely.argmax(axis=1)]
    if n * np.log(k) <= np.log(MOST_DETERMINISTIC) + 1e-9:
        yield from (np.eye(k)[list(actions)] for actions in product(range(k), repeat=n))
    else:
        yield from (np.tile(action, (n, 1)) for action in np.eye(k)[:MOST_DETERMINISTIC])


def likely_policy(expert: MarkovChain, mdp: MDP) -> Floats:
    """Return the policy under which the transitions of the expert are most likely, (n, n_actions)."""
    s = expert.successors
    at, policy = (s.sources, s.indices), mdp.uniform_policy()
    P = np.stack([np.asarray(sp.csr_array(kernel)[at], dtype=np.float64).ravel() for kernel in mdp.transition], axis=1)
    possible = P.any(axis=1) & (s.probabilities > 0.0)
    for state, (low, high) in enumerate(zip(s.indptr[:-1], s.indptr[1:], strict=True)):
        seen = low + np.flatnonzero(possible[low:high])
        if seen.size:
            q = s.probabilities[seen]
            policy[state] = proportions(P[seen], q / q.sum())[0]
    return policy
