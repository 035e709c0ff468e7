"""A Markov decision process, and the chain that a policy makes of it.

Letters: ``P_a`` (n, n) is the kernel under action a, ``π`` (n, n_actions) a policy, rows summing to one.

    P_π[s, s'] = Σ_a π(a|s) P_a[s, s']          r_π(s) = Σ_a π(a|s) r(s, a)

Fixing a policy leaves a Markov chain, which is what the distances compare: `MDP.induced_chain`. Like chains,
MDPs are checked once and read-only. Every action is available in every state; where it should not be, give it
the effect of one that is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import (
    Floats,
    Integers,
    Matrix,
    check_count,
    finite_numbers,
    freeze,
    is_sparse,
    mixed_rows,
    policy_table,
    start_distribution,
    state_rewards,
    stochastic_matrix,
)
from diffbisim.counting import Pairs, empirical_kernel, fill_unseen
from diffbisim.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.explicit import ExplicitModel
from diffbisim.names import (
    Labels,
    axis_names,
    distinct_labels,
    in_order,
    is_frame,
    kernel_in_order,
    ordered_names,
    positions,
)
from diffbisim.recognize import recognized
from diffbisim.stochastic import Successors, as_generator


@dataclass(frozen=True, eq=False, init=False, repr=False)
class MDP:
    """A finite Markov decision process, validated once and read-only.

    Parameters
    ----------
    transition : (n_actions, n, n) array, or a list of (n, n) matrices, dense or scipy.sparse (one sparse
        matrix makes all of them sparse), or a mapping from action to matrix. Matrices that name their rows and
        columns (pandas, xarray) are read by these names, which become the labels
    initial : a state (label first, then index) or an (n,) distribution
    rewards : (n,) of a state, or (n, n_actions) of a state and action; a mapping, Series or DataFrame goes by name
    labels, actions : distinct names of the states and of the actions

    Examples
    --------
    >>> stay, swap = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
    >>> MDP([stay, swap], actions=["stay", "swap"])
    MDP(2 states, 2 actions, start 0)
    """

    transition: tuple[Matrix, ...]  # one kernel per action
    initial: Floats
    rewards: Floats | None  # (n,) or (n, n_actions)
    labels: Labels | None
    actions: Labels | None

    def __init__(
        self,
        transition: Any,
        *,
        initial: Any = 0,
        rewards: Any = None,
        labels: Sequence[Hashable] | None = None,
        actions: Sequence[Hashable] | None = None,
    ) -> None:
        tables, action_names = _by_action(transition, ordered_names(actions, "actions"))
        kernels, state_names = _kernels(tables, action_names, ordered_names(labels, "labels"))
        n = int(kernels[0].shape[0])
        names = distinct_labels(state_names, n)
        known = distinct_labels(action_names, len(kernels), name="actions", per="action")
        self.__dict__.update(
            transition=kernels,
            initial=start_distribution(initial, n, {name: k for k, name in enumerate(names or ())}),
            rewards=_rewards(rewards, n, len(kernels), names, known),
            labels=names,
            actions=known,
        )

    @classmethod
    def from_transitions(
        cls, data: Transitions, *, initial: Any = None, rewards: Any = None, unseen: str = "error"
    ) -> MDP:
        """The empirical MDP: the empirical chain of each action, and the mean reward seen of each state and action.

        Parameters
        ----------
        data : transitions with actions, ``Transitions.from_pairs(s, s_next, actions=a, rewards=r)``
        initial : as for the class; default: the start of the data
        rewards : (n,) or (n, n_actions), in place of those seen
        unseen : about actions that were never taken in a state that was left: "error" refuses, "self-loop" lets them
            stay, with the lowest reward seen, so that no plan relies on them, "uniform" lets them lead anywhere, with
            the mean reward. States that were never left are absorbing under both, without reward
        """
        i, j, w, keep = _observed(data, rewards, unseen)
        n, k = data.n_states, data.n_actions or 0
        rows = data.actions[keep] * n + i  # type: ignore[index]  # a n + s
        seen = np.bincount(rows, weights=w, minlength=n * k).reshape(k, n) > 0.0
        left = seen.any(axis=0)
        never = np.argwhere(~seen & left)
        if unseen == "error" and (never.size or not left.all()):
            raise InvalidData(_never(data, never, left))
        if rewards is None:
            rewards = _mean_rewards(data, rows, w, keep, seen, unseen)
        kernels = []
        for a in range(k):
            own = rows // n == a
            gaps = np.flatnonzero(~seen[a] & (~left | (unseen == "self-loop")))
            steps = Pairs(np.append(i[own], gaps), np.append(j[own], gaps), np.append(w[own], np.ones(gaps.size)))
            kernels.append(empirical_kernel(fill_unseen(steps, n, "uniform", data.name), n, None))
        start = data._default_start() if initial is None else initial
        return cls(kernels, initial=start, rewards=rewards, labels=data.labels, actions=data.action_labels)

    @classmethod
    def of(cls, value: Any, *, initial: Any = None, rewards: Any = None, unseen: str = "error") -> MDP:
        """The MDP that a model of stormpy or stormvogel is; see :func:`diffbisim.as_chain`.

        ``rewards`` names one of its reward structures or propositions, or gives others. ``unseen`` is about choices
        that a state does not have: "error", "repeat" (its first one stands in), "self-loop" or "uniform".
        """
        found = recognized(value, rewards)
        if not isinstance(found, ExplicitModel):
            raise InvalidChain(f"a {type(value).__name__} is not known to hold an MDP; give a model of stormpy")
        parts = found.arguments(rewards, unseen)
        if found.is_chain:
            parts["transition"] = [parts["transition"]]
        if initial is not None:
            parts["initial"] = initial
        return cls(**parts)

    @property
    def n_states(self) -> int:
        return int(self.transition[0].shape[0])

    @property
    def n_actions(self) -> int:
        return len(self.transition)

    @property
    def is_sparse(self) -> bool:
        return is_sparse(self.transition[0])

    @property
    def n_transitions(self) -> int:
        """Number of positive entries of all kernels together."""
        return int(self._stacked.indices.size)

    def label(self, i: int) -> Hashable:
        """The label of state i; i itself when the MDP has no labels."""
        return i if self.labels is None else self.labels[i]

    def with_initial(self, initial: Any) -> MDP:
        """The same MDP with another start; kernels are shared."""
        numbers = {name: k for k, name in enumerate(self.labels or ())}
        new = object.__new__(MDP)
        new.__dict__.update(self.__getstate__(), initial=start_distribution(initial, self.n_states, numbers))
        return new

    def __repr__(self) -> str:
        support = np.flatnonzero(self.initial)
        k = int(support[0])
        start = repr(self.labels[k] if self.labels else k) if support.size == 1 else f"in {support.size} states"
        return f"MDP({self.n_states} states, {self.n_actions} actions, start {start})"

    def uniform_policy(self) -> Floats:
        """Every action with the same probability, (n, n_actions)."""
        return np.full((self.n_states, self.n_actions), 1.0 / self.n_actions)

    def induced_chain(self, policy: Any) -> MarkovChain:
        """The chain under a policy: (n, n_actions) probabilities, or (n,) integers, one action per state."""
        return self._chain(self._policy(policy))

    def _chain(self, pi: Floats) -> MarkovChain:
        """The chain under a table that is known to be a policy."""
        r = self.rewards
        rewards = freeze(np.einsum("sa,sa->s", pi, r)) if r is not None and r.ndim == 2 else r
        return MarkovChain._trusted(mixed_rows(self._mixture(pi)), self.initial, rewards, self.labels)

    def sample(self, policy: Any, n_steps: int, rng: int | np.random.Generator) -> tuple[Integers, Integers]:
        """A walk under a policy: ``n_steps + 1`` states and the ``n_steps`` actions between them."""
        act, move = Successors.of(self._policy(policy)).step(), self._stacked.step()
        generator = as_generator(rng)
        uniforms = generator.random((check_count(n_steps, "n_steps"), 2)).tolist()
        states, actions = np.empty(n_steps + 1, dtype=np.int64), np.empty(n_steps, dtype=np.int64)
        states[0] = s = int(generator.choice(self.n_states, p=self.initial))
        for t, (u, v) in enumerate(uniforms):
            actions[t] = a = act(s, u)
            states[t + 1] = s = move(a * self.n_states + s, v)
        return states, actions

    @cached_property
    def _stacked(self) -> Successors:
        """All kernels in one, row ``a * n + s``."""
        return Successors.of(sp.vstack([sp.csr_array(P) for P in self.transition], format="csr"))

    def _policy(self, policy: Any) -> Floats:
        return policy_table(policy, (self.n_states, self.n_actions), labels=self.labels, actions=self.actions)

    def _mixture(self, pi: Floats) -> Matrix:
        """``Σ_a π(a|s) P_a[s, s']``, sparse if the kernels are."""
        first = self.transition[0]
        mixed: Any = np.zeros(first.shape) if isinstance(first, np.ndarray) else sp.csr_array(first.shape)
        for a, P in enumerate(self.transition):
            mixed = mixed + (pi[:, a, None] * P if isinstance(P, np.ndarray) else _scaled(P, pi[:, a]))
        return mixed  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("transition", "initial", "rewards", "labels", "actions")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for part in (*state["transition"], state["initial"], state["rewards"]):
            if part is not None:
                freeze(part)
        self.__dict__.update(state)


def _by_action(transition: Any, actions: Any) -> tuple[Any, Any]:
    """One table per action, in their order, and the names of the actions: those given, else those of the tables."""
    if isinstance(transition, Mapping):
        keys = list(transition)
        names = keys if actions is None else actions
        order = positions(keys, names, "transition", of="action")
        return [transition[keys[k]] for k in order or ()], names
    names = axis_names(transition)[0] if len(axis_names(transition)) == 3 else None
    if names is None:
        return transition, actions
    order = positions(names, names if actions is None else actions, "the first axis of transition", of="action")
    return [transition[k] for k in order or ()], names if actions is None else actions


def _kernels(transition: Any, actions: Any, labels: Any) -> tuple[tuple[Matrix, ...], Any]:
    """One checked kernel per action, all of one shape and all dense or all CSR; and the labels."""
    listed = hasattr(transition, "__len__") and not is_sparse(transition) and not is_frame(transition)
    if not listed or np.ndim(transition[0] if len(transition) else 0) != 2:
        raise InvalidChain("transition must hold one (n_states, n_states) matrix per action, (n_actions, n, n)")
    names = list(range(len(transition))) if actions is None else list(actions)
    titles = [f"transition of action {names[a] if a < len(names) else a!r}" for a in range(len(transition))]
    if labels is None:  # those of the first table that has any
        found = (kernel_in_order(P, None, name)[1] for P, name in zip(transition, titles, strict=True))
        labels = next((own for own in found if own is not None), None)
    sparse = any(is_sparse(P) for P in transition)
    kernels = []
    for a, (table, name) in enumerate(zip(transition, titles, strict=True)):
        P, _ = kernel_in_order(table, labels, name)
        kernels.append(stochastic_matrix(sp.csr_array(P) if sparse else P, name=name, labels=labels))
        if kernels[a].shape != kernels[0].shape:
            raise InvalidChain(f"{name} has shape {kernels[a].shape}, the first {kernels[0].shape}; make them equal")
    return tuple(kernels), labels


def _scaled(P: sp.csr_array, factors: Floats) -> sp.csr_array:
    """Each row of P times its factor."""
    return sp.csr_array((P.data * np.repeat(factors, np.diff(P.indptr)), P.indices, P.indptr), shape=P.shape)


def _rewards(rewards: Any, n: int, n_actions: int, labels: Labels | None, actions: Labels | None) -> Floats | None:
    if rewards is not None and not isinstance(rewards, Mapping) and np.ndim(rewards) == 2:
        axes = [range(n) if labels is None else labels, range(n_actions) if actions is None else actions]
        rewards = in_order(rewards, axes, "rewards", of=("state", "action"))
        table = finite_numbers(rewards, (n, n_actions), name="rewards", per="state and action")
        return freeze(table)
    return state_rewards(rewards, n, labels)


# --- from data ----------------------------------------------------------------------------------------------------


def _observed(data: Any, rewards: Any, unseen: str) -> tuple[Integers, Integers, Floats, Any]:
    """Sources, targets and weights of transitions with actions, and which of the data these are."""
    if not isinstance(data, Transitions):
        raise InvalidArgument(f"data is a {type(data).__name__}; give diffbisim.Transitions with actions")
    if data.actions is None:
        raise InvalidData("these transitions have no actions; give Transitions.from_pairs(..., actions=a)")
    if unseen not in ("error", "self-loop", "uniform"):
        raise InvalidArgument(f'unseen is {unseen!r}; for an MDP use "error", "self-loop" or "uniform"')
    if rewards is None and data.rewards is None:
        raise InvalidData("nothing is known of rewards; give from_pairs(..., rewards=r), or rewards= of the states")
    return *data._pairs(), slice(None) if data.weights is None else data.weights > 0.0


def _never(data: Transitions, never: Integers, left: Any) -> str:
    if never.size:
        a, s = (int(k) for k in never[0])
        action = a if data.action_labels is None else data.action_labels[a]
        what = f"action {action!r} was never taken in state {data.name(s)!r} (of {len(never)} such pairs)"
    else:
        what = f"state {data.name(int(np.argmin(left)))!r} was never left"
    return f'{what}; pass unseen="self-loop" (it stays there, no plan relies on it) or "uniform"'


def _mean_rewards(data: Transitions, rows: Integers, w: Floats, keep: Any, seen: Any, unseen: str) -> Floats:
    """Of each state and action, (n, n_actions); see :meth:`MDP.from_transitions` for those never seen."""
    assert data.rewards is not None
    r = data.rewards[keep]
    sums, total = (np.bincount(rows, weights=part, minlength=seen.size).reshape(seen.shape) for part in (w * r, w))
    guess = float(r.min()) if unseen == "self-loop" else float(np.average(r, weights=w))
    table = np.where(seen, sums / np.where(seen, total, 1.0), guess)
    return np.asarray(np.where(seen.any(axis=0), table, 0.0).T, dtype=np.float64)
