"""Finite Markov decision processes, and the chains induced by policies.

With ``P_a`` (n, n) the kernel of action a and ``π`` (n, n_actions) a policy, whose rows sum to one, the induced chain
(`MDP.induced_chain`) is

    P_π[s, s'] = Σ_a π(a|s) P_a[s, s']          r_π(s) = Σ_a π(a|s) r(s, a).

Like chains, MDPs are validated once and read-only. Every action is available in every state; an action that should not
be available can be given the effect of another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import (
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
from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.common.names import (
    Names,
    axis_names,
    distinct_names,
    in_order,
    is_frame,
    kernel_in_order,
    ordered_names,
    positions,
)
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.counting import WeightedPairs, empirical_kernel, fill_unseen
from diffbisim.processes.explicit import ExplicitModel
from diffbisim.processes.recognize import recognize
from diffbisim.processes.stochastic import Successors, as_generator


@dataclass(frozen=True, eq=False, init=False, repr=False)
class MDP:
    """A finite Markov decision process, validated once and read-only.

    Parameters
    ----------
    transition : array of shape (n_actions, n, n), list of (n, n) matrices, or mapping from action to matrix
        The kernel of each action, dense or scipy.sparse (one sparse matrix makes all of them sparse). The names of the
        rows and columns of pandas or xarray tables become those of the states.
    initial : hashable, int, array of shape (n,), mapping or Series, default=0
        A state (name or index; names take precedence) or a distribution.
    rewards : array of shape (n,) or (n, n_actions), mapping, Series or DataFrame, default=None
        Rewards of states, or of states and actions; named input is matched by name.
    names, actions : sequences of hashables, default=None
        Distinct names of the states and of the actions.

    Examples
    --------
    >>> stay, swap = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
    >>> MDP([stay, swap], actions=["stay", "swap"])
    MDP(2 states, 2 actions, start 0)
    """

    transition: tuple[Matrix, ...]  # one kernel per action
    initial: Floats
    rewards: Floats | None  # (n,) or (n, n_actions)
    names: Names | None
    actions: Names | None

    def __init__(
        self,
        transition: Any,
        *,
        initial: Any = 0,
        rewards: Any = None,
        names: Sequence[Hashable] | None = None,
        actions: Sequence[Hashable] | None = None,
    ) -> None:
        tables, action_names = _by_action(transition, ordered_names(actions, "actions"))
        kernels, state_names = _kernels(tables, action_names, ordered_names(names, "names"))
        n = int(kernels[0].shape[0])
        states = distinct_names(state_names, n)
        known = distinct_names(action_names, len(kernels), name="actions", per="action")
        self.__dict__.update(
            transition=kernels,
            initial=start_distribution(initial, n, {name: k for k, name in enumerate(states or ())}),
            rewards=_rewards(rewards, n, len(kernels), states, known),
            names=states,
            actions=known,
        )

    @classmethod
    def from_transitions(
        cls, data: Transitions, *, initial: Any = None, rewards: Any = None, unseen: str = "error"
    ) -> MDP:
        """Estimate an MDP: the empirical kernel of each action and the mean reward of each state and action.

        Parameters
        ----------
        data : Transitions
            Transitions with actions, as from ``Transitions.from_pairs(s, s_next, actions=a, rewards=r)``.
        initial : as for :class:`MDP`, default=None
            By default the initial distribution of the data.
        rewards : array of shape (n,) or (n, n_actions), default=None
            Rewards to use instead of the observed ones.
        unseen : {"error", "self-loop", "uniform"}, default="error"
            How to treat actions that were never taken in a state. "self-loop" makes them stay in the state with the
            lowest reward in the data, so that plans avoid them; "uniform" lets them lead anywhere with the mean reward.
            With both, states without any outgoing transition are absorbing and have no reward.
        """
        i, j, w, keep = _observed(data, rewards, unseen)
        n, k = data.n_states, data.n_actions or 0
        rows = data.actions[keep] * n + i  # type: ignore[index]  # a n + s
        seen = np.bincount(rows, weights=w, minlength=n * k).reshape(k, n) > 0.0
        left = seen.any(axis=0)
        never = np.argwhere(~seen & left)
        if unseen == "error" and (never.size or not left.all()):
            raise InvalidData(_unseen_message(data, never, left))
        if rewards is None:
            rewards = _mean_rewards(data, rows, w, keep, seen, unseen)
        kernels = []
        for a in range(k):
            own = rows // n == a
            gaps = np.flatnonzero(~seen[a] & (~left | (unseen == "self-loop")))
            steps = WeightedPairs(
                np.append(i[own], gaps), np.append(j[own], gaps), np.append(w[own], np.ones(gaps.size))
            )
            kernels.append(empirical_kernel(fill_unseen(steps, n, "uniform", data.name_of), n, None))
        start = data._default_start() if initial is None else initial
        return cls(kernels, initial=start, rewards=rewards, names=data.names, actions=data.action_names)

    @classmethod
    def of(cls, value: Any, *, initial: Any = None, rewards: Any = None, unseen: str = "error") -> MDP:
        """Convert a model of stormpy or stormvogel to an MDP; see also :func:`diffbisim.as_chain`.

        Parameters
        ----------
        value : model of stormpy or stormvogel
        initial : as for :class:`MDP`, default=None
            By default that of the model.
        rewards : str or array, default=None
            The name of a reward structure or proposition of the model, or rewards as for :class:`MDP`.
        unseen : {"error", "repeat", "self-loop", "uniform"}, default="error"
            How to treat actions that a state does not have; "repeat" substitutes the state's first choice.
        """
        found = recognize(value, rewards)
        if not isinstance(found, ExplicitModel):
            raise InvalidChain(
                f"a {type(value).__name__} cannot be converted to an MDP; give a model of stormpy, or read a Gymnasium "
                "environment with diffbisim.environments.from_env(env)"
            )
        parts = found.arguments(rewards, unseen)
        if found.is_chain:
            parts["transition"] = [parts["transition"]]
        if initial is not None:
            parts["initial"] = initial
        return cls(**parts)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.transition[0].shape[0])

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.transition)

    @property
    def is_sparse(self) -> bool:
        """Whether the kernels are stored as sparse matrices."""
        return is_sparse(self.transition[0])

    @property
    def n_transitions(self) -> int:
        """Total number of positive entries of all kernels."""
        return int(self._stacked.indices.size)

    def name_of(self, i: int) -> Hashable:
        """Return the name of state i, or i itself if the MDP has no names."""
        return i if self.names is None else self.names[i]

    def with_initial(self, initial: Any) -> MDP:
        """Return the MDP with a different initial distribution; kernels are shared."""
        numbers = {name: k for k, name in enumerate(self.names or ())}
        new = object.__new__(MDP)
        new.__dict__.update(self.__getstate__(), initial=start_distribution(initial, self.n_states, numbers))
        return new

    def __repr__(self) -> str:
        support = np.flatnonzero(self.initial)
        k = int(support[0])
        start = repr(self.names[k] if self.names else k) if support.size == 1 else f"in {support.size} states"
        return f"MDP({self.n_states} states, {self.n_actions} actions, start {start})"

    def uniform_policy(self) -> Floats:
        """Return the policy that takes every action with equal probability, (n, n_actions)."""
        return np.full((self.n_states, self.n_actions), 1.0 / self.n_actions)

    def induced_chain(self, policy: Any) -> MarkovChain:
        """Return the chain under a policy: (n, n_actions) probabilities, or (n,) integers, one action per state."""
        return self._chain(self._policy(policy))

    def _chain(self, pi: Floats) -> MarkovChain:
        """Return the chain under a validated policy."""
        r = self.rewards
        rewards = freeze(np.einsum("sa,sa->s", pi, r)) if r is not None and r.ndim == 2 else r
        return MarkovChain._trusted(mixed_rows(self._mixture(pi)), self.initial, rewards, self.names)

    def sample(self, policy: Any, n_steps: int, rng: int | np.random.Generator) -> tuple[Integers, Integers]:
        """Sample a path under a policy: ``n_steps + 1`` states and the ``n_steps`` actions between them."""
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
        """All kernels stacked; row ``a * n + s`` belongs to action a in state s."""
        return Successors.of(sp.vstack([sp.csr_array(P) for P in self.transition], format="csr"))

    def _policy(self, policy: Any) -> Floats:
        return policy_table(policy, (self.n_states, self.n_actions), names=self.names, actions=self.actions)

    def _mixture(self, pi: Floats) -> Matrix:
        """Return ``Σ_a π(a|s) P_a[s, s']``, sparse if the kernels are."""
        first = self.transition[0]
        mixed: Any = np.zeros(first.shape) if isinstance(first, np.ndarray) else sp.csr_array(first.shape)
        for a, P in enumerate(self.transition):
            mixed = mixed + (pi[:, a, None] * P if isinstance(P, np.ndarray) else _scaled(P, pi[:, a]))
        return mixed  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("transition", "initial", "rewards", "names", "actions")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for part in (*state["transition"], state["initial"], state["rewards"]):
            if part is not None:
                freeze(part)
        self.__dict__.update(state)


def _by_action(transition: Any, actions: Any) -> tuple[Any, Any]:
    """Return one table per action and the action names, those given or else those of the input."""
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


def _kernels(transition: Any, actions: Any, names: Any) -> tuple[tuple[Matrix, ...], Any]:
    """Return one validated kernel per action, equal in shape and all dense or all CSR, and the names."""
    listed = hasattr(transition, "__len__") and not is_sparse(transition) and not is_frame(transition)
    if not listed or np.ndim(transition[0] if len(transition) else 0) != 2:
        raise InvalidChain("transition must contain one (n, n) matrix per action, shape (n_actions, n, n)")
    known = list(range(len(transition))) if actions is None else list(actions)
    titles = [f"transition of action {known[a] if a < len(known) else a!r}" for a in range(len(transition))]
    if names is None:  # use those of the first table that has any
        found = (kernel_in_order(P, None, name)[1] for P, name in zip(transition, titles, strict=True))
        names = next((own for own in found if own is not None), None)
    sparse = any(is_sparse(P) for P in transition)
    kernels = []
    for a, (table, name) in enumerate(zip(transition, titles, strict=True)):
        P, _ = kernel_in_order(table, names, name)
        kernels.append(stochastic_matrix(sp.csr_array(P) if sparse else P, name=name, names=names))
        if kernels[a].shape != kernels[0].shape:
            raise InvalidChain(
                f"{name} has shape {kernels[a].shape}, but the first has {kernels[0].shape}; all must be equal"
            )
    return tuple(kernels), names


def _scaled(P: sp.csr_array, factors: Floats) -> sp.csr_array:
    """Multiply each row of P by its factor."""
    return sp.csr_array((P.data * np.repeat(factors, np.diff(P.indptr)), P.indices, P.indptr), shape=P.shape)


def _rewards(rewards: Any, n: int, n_actions: int, names: Names | None, actions: Names | None) -> Floats | None:
    if rewards is not None and not isinstance(rewards, Mapping) and np.ndim(rewards) == 2:
        axes = [range(n) if names is None else names, range(n_actions) if actions is None else actions]
        rewards = in_order(rewards, axes, "rewards", of=("state", "action"))
        table = finite_numbers(rewards, (n, n_actions), name="rewards", per="state and action")
        return freeze(table)
    return state_rewards(rewards, n, names)


# --- estimation from data -----------------------------------------------------------------------------------------


def _observed(data: Any, rewards: Any, unseen: str) -> tuple[Integers, Integers, Floats, Any]:
    """Return sources, targets and weights of the transitions with positive weight, and an index that selects them."""
    if not isinstance(data, Transitions):
        raise InvalidArgument(f"data is a {type(data).__name__}; give diffbisim.Transitions with actions")
    if data.actions is None:
        raise InvalidData("data has no actions; use Transitions.from_pairs(..., actions=a)")
    if not isinstance(unseen, str) or unseen not in ("error", "self-loop", "uniform"):
        raise InvalidArgument(f'unseen is {unseen!r}; for an MDP use "error", "self-loop" or "uniform"')
    if rewards is None and data.rewards is None:
        raise InvalidData("data has no rewards; use Transitions.from_pairs(..., rewards=r), or pass rewards=")
    return *data._pairs(), slice(None) if data.weights is None else data.weights > 0.0


def _unseen_message(data: Transitions, never: Integers, left: Any) -> str:
    if never.size:
        a, s = (int(k) for k in never[0])
        action = a if data.action_names is None else data.action_names[a]
        what = f"action {action!r} was never taken in state {data.name_of(s)!r} ({len(never)} such pairs in total)"
    else:
        what = f"state {data.name_of(int(np.argmin(left)))!r} has no outgoing transition"
    return f'{what}; pass unseen="self-loop" (stay there, with the lowest reward) or "uniform"'


def _mean_rewards(data: Transitions, rows: Integers, w: Floats, keep: Any, seen: Any, unseen: str) -> Floats:
    """Return the mean reward of each state and action, (n, n_actions), with guesses for those never seen."""
    assert data.rewards is not None
    r = data.rewards[keep]
    sums, total = (np.bincount(rows, weights=part, minlength=seen.size).reshape(seen.shape) for part in (w * r, w))
    guess = float(r.min()) if unseen == "self-loop" else float(np.average(r, weights=w))
    table = np.where(seen, sums / np.where(seen, total, 1.0), guess)
    return np.asarray(np.where(seen.any(axis=0), table, 0.0).T, dtype=np.float64)
