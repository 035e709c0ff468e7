"""The expert as a chain: from a chain, observed transitions or trajectories, on the learner's states or on its own.

Whose states they are. With the cost "indicator" a state of the expert *is* a state of the learner, so labels and
numbers are looked up among those of the MDP, and one that is not there is an error. With any other cost the expert
keeps its own state space, and the cost says how the two belong together.

What data do not say. States that were never left (the last of an episode, or never seen) become absorbing, which is
right for terminal states; for other choices make the chain yourself: ``data.chain(unseen=...)``.

Starts. Where an episode starts is chance, not behavior: on the learner's states the expert starts as the learner does,
as far as its data show such starts; what is left of the mass follows the starts in the data. (Two empirical
laws over the 300 starts of Taxi-v4 differ by 0.22 in total variation after 1540 and 2500 episodes, by 0.46 after 385
and 500: so many episodes would be paired with others.) Single transitions tell no starts:
there every state that was left counts as one.

What data cannot tell apart. The chain of an expert is counted from the n_x steps that were seen out of each state x. A
policy that is fitted to the counts also follows their noise: where the expert always takes one action, a mixture comes
a little closer to what was seen, and is farther from the expert. How far the noise moves the distance is known to first
order, because a row of counts is multinomial and G = ∂d/∂P_X, centered in every row, is known exactly:

    se² = Σ_x (1/n_x) Σ_x' P_X(x'|x) G(x,x')²

Breiman et al. (CART, 1984) take the simplest model whose error is within one standard error of the best; here it is
1.96 of them, the usual 95 %. The simplest is the deterministic policy of the most likely action in every state: it is
taken if its distance, solved and certified like all others, is at most d + 1.96 se. On the five-state chain with 2 000
transitions that are 11 of 12 samples of a deterministic expert, and none of one that turns aside with probability 0.05.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import Floats
from diffbisim.errors import InvalidData, warn
from diffbisim.imitate.result import ImitationResult
from diffbisim.mdp import MDP
from diffbisim.questions import Question
from diffbisim.results import DistanceResult
from diffbisim.solvers import Exact

HINT = "give a MarkovChain, Transitions, a pair (s, s_next) of arrays, or a list of trajectories such as [[0, 1, 2]]"
#: Standard errors that the data are said not to tell apart: 95 % of a normal law.
CONFIDENCE = 1.96

ELSEWHERE = "if the expert lives in another state space, pass cost= an array (expert states, MDP states)"


def expert_chain(expert: Any, mdp: MDP, shared: bool) -> MarkovChain:
    """The expert's chain; ``shared`` if its states are those of the MDP."""
    if isinstance(expert, MarkovChain):
        return _on_states_of(mdp, expert) if shared else expert
    data = observations(expert)
    if len(data) == 0:
        raise InvalidData("expert holds no transition, only starts; give trajectories of two states or more")
    if not shared:
        return data.chain(unseen="self-loop")
    return observed_chain(_renumbered(data, mdp), mdp)


def observed_chain(data: Transitions, mdp: MDP) -> MarkovChain:
    """The chain of observations on the states of the MDP: absorbing where never left, starting as the learner does."""
    return data.chain(unseen="self-loop", initial=_start(data, mdp))


def warn_if_elsewhere(expert: MarkovChain, mdp: MDP, question: Question) -> None:
    """Say so if the expert starts where the MDP does not (both on the same states), unless the long run forgets it."""
    foreign = (expert.initial > 0) & (mdp.initial == 0)
    if foreign.any() and question.criterion != "average":
        warn(
            f"expert: it starts in state {expert.label(int(foreign.argmax()))!r}, where the MDP does not start; the "
            "distance stays positive: correct the data, or make the MDP with initial= that state",
            UserWarning,
            stacklevel=4,
        )


def warn_if_impossible(expert: MarkovChain, mdp: MDP, question: Question, known: Any = None) -> None:
    """Say so if the expert makes transitions that no action of the MDP can make (both on the same states).

    In the long run only those count that it makes for ever; a total or a horizon may end before they are made.
    Where the MDP was estimated, ``known`` (n,) are the states in which every action was tried often enough to judge.
    """
    possible: Any = sum(sp.csr_array(P) for P in mdp.transition)
    s = expert.successors
    source = s.sources
    visited = np.zeros(expert.n_states, dtype=bool)
    if question.is_usual or question.criterion == "average":
        visited[expert.reachable_states] = True
    if question.criterion == "average":
        visited &= np.isin(np.arange(expert.n_states), np.concatenate(expert.recurrent_classes))
    impossible = (visited if known is None else visited & known)[source]
    impossible &= _entries(possible, source, s.indices) <= 0
    if impossible.any():
        k = int(impossible.argmax())
        a, b = expert.label(int(source[k])), expert.label(int(s.indices[k]))
        warn(
            f"expert: {int(impossible.sum())} of its transitions, the first {a!r} -> {b!r}, "
            + ("cannot be made by any action of the MDP" if known is None else "were made by no action that was tried")
            + ("; the distance stays positive" if known is None else "; the distance to the model stays positive"),
            UserWarning,
            stacklevel=4,
        )


def _entries(matrix: sp.csr_array, rows: Any, columns: Any) -> Floats:
    """``matrix[rows, columns]``, (m,), whether stored or not."""
    found: Any = matrix[rows, columns]
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found, dtype=np.float64).ravel()


def steps_seen(data: Transitions, mdp: MDP, shared: bool) -> Floats:
    """How often each state of the expert was left."""
    data = _renumbered(data, mdp) if shared else data
    return np.bincount(data.states, weights=data.weights, minlength=data.n_states).astype(np.float64)


def observations(expert: Any) -> Transitions:
    """Transitions as they are, or those of trajectories."""
    if isinstance(expert, Transitions):
        return expert
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
    raise InvalidData(f"expert is empty: there is nothing to imitate; {HINT}")


def _on_states_of(mdp: MDP, chain: MarkovChain) -> MarkovChain:
    """The chain, if its states are the MDP's: with the same labels, or as many, and then it takes over the labels."""
    if chain.labels is not None and mdp.labels is not None:
        outside = ~np.isin(np.arange(chain.n_states), [chain.index(k) for k in set(mdp.labels) & set(chain.labels)])
        if (visited := outside & (chain.occupancy(0.5) > 0)).any():
            raise InvalidData(
                f"expert: state {chain.label(int(visited.argmax()))!r} is not a state of the MDP (its labels); correct "
                f"the chain, or {ELSEWHERE}"
            )
        return chain
    if chain.labels is not None:
        raise InvalidData("expert has labels and the MDP has none; label both or neither")
    if chain.n_states != mdp.n_states:
        raise InvalidData(
            f"expert has {chain.n_states} states, the MDP {mdp.n_states}; correct the chain, or give both labels that "
            f"say which states are the same, or {ELSEWHERE}"
        )
    return MarkovChain._trusted(chain.transition, chain.initial, chain.rewards, mdp.labels) if mdp.labels else chain


def _renumbered(data: Transitions, mdp: MDP) -> Transitions:
    """The same data with the state numbers and labels of the MDP."""
    numbers = {label: k for k, label in enumerate(mdp.labels or range(mdp.n_states))}
    by_label = data.labels is not None
    names = data.labels if data.labels is not None else range(data.n_states)
    codes = np.array([numbers.get(name, -1) if by_label else k for k, name in enumerate(names)])
    if not by_label:
        codes[codes >= mdp.n_states] = -1
    seen = np.zeros(data.n_states, dtype=bool)
    for part in (data.states, data.next_states, data.starts, data.first):
        if part is not None:
            seen[part] = True
    if (outside := seen & (codes < 0)).any():
        known = "its labels" if mdp.labels is not None else f"0 … {mdp.n_states - 1}"
        raise InvalidData(
            f"expert: state {data.name(int(outside.argmax()))!r} is not a state of the MDP ({known}); correct the "
            f"data, or {ELSEWHERE}"
        )
    starts = None if data.starts is None else codes[data.starts]
    return Transitions(
        codes[data.states], codes[data.next_states], mdp.n_states, mdp.labels, data.weights, data.episodes,
        starts, data.start_weights, None if data.first is None else int(codes[data.first]),
    )  # fmt: skip


def _start(data: Transitions, mdp: MDP) -> Floats:
    """The learner's start where the data show it; the rest, and starts the learner does not have, as in the data."""
    n, own = mdp.n_states, data.starts is not None
    at, weights = (data.starts, data.start_weights) if own else (data.states, data.weights)
    seen = np.bincount(np.asarray(at), weights=weights, minlength=n) + 0.0
    seen /= seen.sum()
    foreign = float(seen[mdp.initial == 0].sum()) if own else 0.0  # starts of the expert alone
    common = np.where(seen > 0, mdp.initial, 0.0)
    if not common.any():
        return np.asarray(seen)
    among = np.where(mdp.initial > 0, seen, 0.0)
    missing = 1.0 - common.sum()
    rest = among / among.sum() if own else common / common.sum()
    start = (1.0 - foreign) * (common + missing * rest) + np.where(mdp.initial == 0, seen, 0.0) * own
    return np.asarray(start / start.sum(), dtype=np.float64)


def standard_error(result: DistanceResult, counts: Floats) -> float:
    """Of the distance, when the first chain was counted from ``counts (n_X,)`` steps out of each of its states."""
    chain, G = result.problem.x, result.gradient.transition_x
    s = chain.successors
    source = s.sources
    entries = G[source, s.indices] if isinstance(G, np.ndarray) else G.data
    variance = np.bincount(source, weights=s.probabilities * entries**2, minlength=chain.n_states)
    seen = counts > 0  # states that were never left are absorbing by assumption
    return float(np.sqrt(np.sum(variance[seen] / counts[seen])))


def simplest_policy(found: ImitationResult, counts: Floats) -> ImitationResult:
    """The deterministic policy nearest to the one that was found, if the data cannot tell the two apart."""
    best, actions = found.distance, found.policy.argmax(axis=1)
    policy = np.asarray(np.eye(found.policy.shape[1])[actions], dtype=np.float64)
    distance = Exact().solve(replace(best.problem, y=found.mdp.induced_chain(policy)))
    if distance.upper > best.value + CONFIDENCE * standard_error(best, counts):
        return found
    return replace(found, policy=policy, distance=distance)
