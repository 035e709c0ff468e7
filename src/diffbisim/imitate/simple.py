"""Simple policies: those that anybody can write down, with which the result of a natural run is compared.

    uniform         every action with the same probability
    likely          the policy that makes the expert's transitions most likely, by an inverse model (see below)
    most likely     in every state the most likely action of that policy
    deterministic   all deterministic policies, if there are at most `MOST_DETERMINISTIC`

The initial policy is the first iterate of every run. No result of ``update="natural"`` with a table as policy is
farther from the expert than any of these: a run that has settled continues from a simple policy that is closer, and
the closest one is returned unless the callback stopped the run.

*Inverse model.* If expert and learner have equally many states, the expert's action in a transition s -> s' is a hidden
variable with P(a|s,s') = π(a|s) P(s'|s,a) / P_π(s'|s), and expectation maximization (Dempster et al. 1977) increases
the likelihood Σ_s' P_X(s'|s) log P_π(s'|s) of every state by π(a|s) <- Σ_s' P_X(s'|s) P(a|s,s'). Transitions that no
action can make are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.mdp import MDP

#: Number of deterministic policies up to which all of them are tried.
MOST_DETERMINISTIC = 64

#: Largest number of rounds of expectation maximization, and of their operations altogether.
ROUNDS, WORK = 5_000, 1e8

#: Expectation maximization ends if no probability changes by more than this in a round.
STILL = 1e-10


def simple_policies(expert: MarkovChain, mdp: MDP) -> Iterator[Floats]:
    """Yield the simple policies, (n, n_actions) each."""
    n, k = mdp.n_states, mdp.n_actions
    yield mdp.uniform_policy()
    if expert.n_states == n:
        likely = likely_policy(expert, mdp)
        yield likely
        yield np.eye(k)[likely.argmax(axis=1)]
    if k > 1 and n * np.log(k) <= np.log(MOST_DETERMINISTIC) + 1e-9:
        yield from (np.eye(k)[list(actions)] for actions in product(range(k), repeat=n))


def likely_policy(expert: MarkovChain, mdp: MDP) -> Floats:
    """Return the policy under which the transitions of the expert are most likely, (n, n_actions)."""
    s = expert.successors
    at, n, k = (s.sources, s.indices), mdp.n_states, mdp.n_actions
    P = np.stack([np.asarray(sp.csr_array(kernel)[at], dtype=np.float64).ravel() for kernel in mdp.transition])
    policy = np.full((k, n), 1.0 / k)
    for _ in range(min(ROUNDS, max(50, int(WORK / P.size)))):
        made = policy[:, at[0]] * P  # (n_actions, transitions)
        total = made.sum(axis=0)
        share = made * np.divide(s.probabilities, total, out=np.zeros_like(total), where=total > 0)
        mass = np.stack([np.bincount(at[0], weights=row, minlength=n) for row in share])
        whole = mass.sum(axis=0)
        before, policy = policy, np.where(whole > 0, mass / np.where(whole > 0, whole, 1.0), policy)
        if np.abs(policy - before).max() <= STILL:
            break
    return np.asarray(policy.T)
