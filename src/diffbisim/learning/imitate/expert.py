"""The expert as a chain: from a chain, observed transitions or trajectories, on the learner's states or on its own.

*State spaces.* With the cost "indicator" a state of the expert *is* a state of the learner. Names and numbers are
looked up among those of the MDP, and unknown ones are an error. With any other cost the expert keeps its own state
space, and the cost relates the two.

*Unobserved successors.* States that were never left (the last of an episode, or unvisited ones) become absorbing, which
is right for terminal states. For other choices build the chain yourself with ``data.chain(unseen=...)``.

*Initial distribution.* The start of an episode is random, not part of the behavior. On the learner's states the expert
therefore starts like the learner, as far as its data contain those starts; the remaining mass follows the starts in
the data. (On Taxi-v4, with 300 initial states, two empirical initial distributions differ by 0.22 in total variation
after 1540 and 2500 episodes, and by 0.46 after 385 and 500; that fraction of episodes would be coupled with a different
start.) Single transitions contain no starts; then every state that was left counts as one.

*Sampling error.* The expert's chain is estimated from the n_x steps observed from each state x. A policy fitted to the
counts also follows their noise: if the expert always takes one action, a mixture can be slightly closer to the data and
farther from the expert. The effect of the noise on the distance is known to first order, because a row of counts is
multinomial and G = ∂d/∂P_X, centered in every row, is known exactly:

    se² = Σ_x (1/n_x) Σ_x' P_X(x'|x) G(x,x')²

Breiman et al. (CART, 1984) choose the simplest model whose error is within one standard error of the best; here the
limit is 1.96 standard errors, the usual 95 %. The simplest policy is the deterministic policy with the most likely
action in every state. It is chosen if its certified distance is at most d + 1.96 se. On the five-state chain with 2,000
transitions this happens for 11 of 12 samples of a deterministic expert, and for none of an expert that deviates with
probability 0.05.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats
from diffbisim.common.errors import InvalidData, warn
from diffbisim.common.names import is_frame
from diffbisim.learning.imitate.result import ImitationResult
from diffbisim.problems import Criterion
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.cost import HIDDEN
from diffbisim.processes.mdp import MDP
from diffbisim.results.base import DistanceResult
from diffbisim.solvers import Exact

#: Number of standard errors within which two policies cannot be distinguished: 95 % of a normal distribution.
CONFIDENCE = 1.96

HINT = "pass a MarkovChain, Transitions, a pair (s, s_next) of arrays, or a list of trajectories such as [[0, 1, 2]]"
OTHER_SPACE = "if the expert has another state space, pass cost= an array (expert states, MDP states)"


def expert_chain(expert: Any, mdp: MDP, shared: bool) -> MarkovChain:
    """Return the expert's chain; `shared` if its states are those of the MDP."""
    if isinstance(expert, MarkovChain):
        return _on_states_of(mdp, expert) if shared else expert
    data = observations(expert)
    if len(data) == 0:
        raise InvalidData("expert has no transitions; pass trajectories of at least two states")
    if not shared:
        return data._chain(unseen="self-loop")
    return observed_chain(_renumbered(data, mdp), mdp)


def observed_chain(data: Transitions, mdp: MDP) -> MarkovChain:
    """Return the chain of the observations on the states of the MDP, with unobserved successors absorbing."""
    return data._chain(unseen="self-loop", initial=_start(data, mdp))


def warn_if_elsewhere(expert: MarkovChain, mdp: MDP, criterion: Criterion) -> None:
    """Warn if the expert starts where the MDP does not, unless the criterion is the average cost."""
    foreign = (expert.initial > 0) & (mdp.initial == 0)
    if foreign.any() and not criterion.kind.forgets_start:
        warn(
            f"expert: it starts in state {expert.name_of(int(foreign.argmax()))!r}, where the MDP does not start, so "
            "the distance stays positive; correct the data, or include that state in initial= of the MDP",
            UserWarning,
            stacklevel=4,
        )


def warn_if_impossible(expert: MarkovChain, mdp: MDP, criterion: Criterion, known: Any = None) -> None:
    """Warn if the expert makes transitions that no action of the MDP can make (both on the same states).

    For the average cost only recurrent transitions count. Totals and horizons may end before a transition is made, so
    they give no warning. If the MDP was estimated, `known` (n,) marks the states in which every action was tried often
    enough.
    """
    possible: Any = sum(sp.csr_array(P) for P in mdp.transition)
    s = expert.successors
    source = s.sources
    visited = np.zeros(expert.n_states, dtype=bool)
    if criterion.is_default or criterion.kind.forgets_start:
        visited[expert.reachable_states] = True
    if criterion.kind.forgets_start:
        visited &= np.isin(np.arange(expert.n_states), np.concatenate(expert.recurrent_classes))
    impossible = (visited if known is None else visited & known)[source]
    impossible &= _entries(possible, source, s.indices) <= 0
    if impossible.any():
        k = int(impossible.argmax())
        a, b = expert.name_of(int(source[k])), expert.name_of(int(s.indices[k]))
        warn(
            f"expert: {int(impossible.sum())} of its transitions, the first {a!r} -> {b!r}, "
            + ("cannot be made by any action of the MDP" if known is None else "were made by no action that was tried")
            + f", so the distance {'' if known is None else 'to the model '}stays positive",
            UserWarning,
            stacklevel=4,
        )


def _entries(matrix: sp.csr_array, rows: Any, columns: Any) -> Floats:
    """Return ``matrix[rows, columns]`` of shape (m,), including entries that are not stored."""
    found: Any = matrix[rows, columns]
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found, dtype=np.float64).ravel()


def steps_seen(data: Transitions, mdp: MDP, shared: bool) -> Floats:
    """Return how often each state of the expert was left."""
    data = _renumbered(data, mdp) if shared else data
    return np.bincount(data.states, weights=data.weights, minlength=data.n_states).astype(np.float64)


def observations(expert: Any) -> Transitions:
    """Return the observed transitions of the expert."""
    if isinstance(expert, Transitions):
        return expert
    if is_frame(expert) or isinstance(expert, Mapping):
        raise InvalidData(
            f"expert is a {type(expert).__name__}; pass diffbisim.Transitions.from_frame(table, id=..., time=..., "
            "state=..., end=None) of a table of events, diffbisim.read_transitions(path) of a file, or a list of "
            "trajectories such as list(trajectories.values())"
        )
    if expert is None or isinstance(expert, (str, bytes, MDP, MarkovChain)) or not isinstance(expert, Iterable):
        raise InvalidData(f"expert is {type(expert).__name__}; {HINT}")
    try:
        if isinstance(expert, tuple) and len(expert) == 2:
            return Transitions.from_pairs(*expert)
        paths = list(expert)
        if paths:
            return Transitions.from_trajectories(paths)
    except InvalidData as error:
        raise InvalidData(f"expert: {error}") from None
    raise InvalidData(f"expert is empty; {HINT}")


def _on_states_of(mdp: MDP, chain: MarkovChain) -> MarkovChain:
    """Return the chain, with the names of the MDP, if its states match by name or by number."""
    if chain.hidden:
        raise InvalidData(f"expert has hidden states, {HIDDEN}")
    if chain.names is not None and mdp.names is not None:
        outside = ~np.isin(np.arange(chain.n_states), [chain.index(k) for k in set(mdp.names) & set(chain.names)])
        if (visited := outside & (chain.occupancy(0.5) > 0)).any():
            raise InvalidData(
                f"expert: state {chain.name_of(int(visited.argmax()))!r} is not a state of the MDP (its names); "
                f"correct the chain, or {OTHER_SPACE}"
            )
        return chain
    if chain.names is not None:
        raise InvalidData("expert has names and the MDP has none; name the states of both or of neither")
    if chain.n_states != mdp.n_states:
        raise InvalidData(
            f"expert has {chain.n_states} states, the MDP {mdp.n_states}; correct the chain, or name the states of "
            f"both, or {OTHER_SPACE}"
        )
    if mdp.names is None:
        return chain
    return MarkovChain._trusted(chain.transition, chain.initial, chain.rewards, mdp.names, like=chain)


def _renumbered(data: Transitions, mdp: MDP) -> Transitions:
    """Return the data with the state numbers and names of the MDP."""
    numbers = {name: k for k, name in enumerate(mdp.names or range(mdp.n_states))}
    by_name = data.names is not None
    names = data.names if data.names is not None else range(data.n_states)
    codes = np.array([numbers.get(name, -1) if by_name else k for k, name in enumerate(names)])
    if not by_name:
        codes[codes >= mdp.n_states] = -1
    seen = np.zeros(data.n_states, dtype=bool)
    for part in (data.states, data.next_states, data.starts, data.first):
        if part is not None:
            seen[part] = True
    if (outside := seen & (codes < 0)).any():
        known = "its names" if mdp.names is not None else f"0 … {mdp.n_states - 1}"
        k = int(outside.argmax())
        remedy = "correct the data"
        if k == data.end_state:
            remedy = "it stands for the ends of sequences: create the data with end=None, or end= a state of the MDP"
        raise InvalidData(
            f"expert: state {data.name_of(k)!r} is not a state of the MDP ({known}); {remedy}, or {OTHER_SPACE}"
        )
    starts = None if data.starts is None else codes[data.starts]
    return Transitions(
        codes[data.states], codes[data.next_states], mdp.n_states, mdp.names, data.weights, data.episodes,
        starts, data.start_weights, None if data.first is None else int(codes[data.first]),
    )  # fmt: skip


def _start(data: Transitions, mdp: MDP) -> Floats:
    """Return the learner's initial distribution where the data contain it; the remaining mass follows the data."""
    n, own = mdp.n_states, data.starts is not None
    at, weights = (data.starts, data.start_weights) if own else (data.states, data.weights)
    seen = np.bincount(np.asarray(at), weights=weights, minlength=n) + 0.0
    seen /= seen.sum()
    foreign = float(seen[mdp.initial == 0].sum()) if own else 0.0  # mass of starts that only the expert has
    common = np.where(seen > 0, mdp.initial, 0.0)
    if not common.any():
        return np.asarray(seen)
    among = np.where(mdp.initial > 0, seen, 0.0)
    missing = 1.0 - common.sum()
    rest = among / among.sum() if own else common / common.sum()
    start = (1.0 - foreign) * (common + missing * rest) + np.where(mdp.initial == 0, seen, 0.0) * own
    return np.asarray(start / start.sum(), dtype=np.float64)


def standard_error(result: DistanceResult, counts: Floats) -> float:
    """Return the standard error of the distance if the first chain was counted from `counts` (n_X,) steps per state."""
    chain, G = result.problem.x, result.gradient.transition_x
    s = chain.successors
    source = s.sources
    entries = G[source, s.indices] if isinstance(G, np.ndarray) else G.data
    variance = np.bincount(source, weights=s.probabilities * entries**2, minlength=chain.n_states)
    seen = counts > 0  # states that were never left are absorbing by assumption, without sampling error
    return float(np.sqrt(np.sum(variance[seen] / counts[seen])))


def simplest_policy(found: ImitationResult, counts: Floats) -> ImitationResult:
    """Return the nearest deterministic policy if the data cannot distinguish it from the one found."""
    best, actions = found.distance, found.policy.argmax(axis=1)
    policy = np.asarray(np.eye(found.policy.shape[1])[actions], dtype=np.float64)
    distance = Exact().solve(replace(best.problem, y=found.mdp.induced_chain(policy)))
    if distance.upper > best.value + CONFIDENCE * standard_error(best, counts):
        return found
    return replace(found, policy=policy, distance=distance)
