"""Explicit-state models in the format of model checkers, and their conversion to chains and MDPs.

Each state has one or more choices, each with a distribution over successors, an optional action name, and rewards.
States may have different choices. With C choices and m transitions:

    owner                (C,)   state of each choice, ascending
    row                  (m,)   choice of each transition
    target, probability  (m,)   successor and probability of each transition

*Actions.* If every choice is named and no state uses a name twice, actions are identified by name; otherwise action k
is the k-th choice of each state.

*Missing choices.* In an `MDP` every action is available in every state. ``unseen`` says what an action does in a state
that does not have it:

    "error"       raise an error that names one (the default)
    "repeat"      the same as the state's first choice. This leaves the set of available choices, and hence optimal
                  values and the "lax" and "directed" distances, unchanged; "matched" distances, which pair actions by
                  name, depend on it
    "self-loop"   stay in the state
    "uniform"     move to any state with equal probability

*Rewards.* The reward of a choice is the sum of its state's reward, its own reward and the mean reward of its
transitions. A model may have several reward structures, and propositions that hold in some of its states: ``rewards``
selects one by name or, for a chain, several, which become the components of a reward vector. If nothing is selected,
the only reward structure is used, and an `InputWarning` names propositions that are not used, and rewards that are
constant and so cannot tell any states apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Integers
from diffbisim.common.errors import InvalidData, warn_of_input
from diffbisim.common.names import few
from diffbisim.io import limits
from diffbisim.processes.counting import MOST_FILLED

MISSING = ("error", "repeat", "self-loop", "uniform")
OWN_PROPOSITIONS = ("init", "deadlock")  # present in every model of PRISM and Storm


@dataclass(frozen=True, eq=False)
class ExplicitModel:
    """A model given by its choices, transitions, rewards and propositions; see the module docstring."""

    name: str  # file or object, for messages
    n_states: int
    owner: Integers  # (C,)
    row: Integers  # (m,)
    target: Integers  # (m,)
    probability: Floats  # (m,)
    actions: Sequence[str] = ()  # (C,) action names, "" for none
    rewards: Mapping[str, Floats] | None = None  # name -> (C,)
    propositions: Mapping[str, Integers] | None = None  # name -> states
    names: Sequence[Hashable] | None = None

    @property
    def is_chain(self) -> bool:
        """Whether every state has at most one choice."""
        return bool((np.diff(self.owner) > 0).all())

    def arguments(self, rewards: Any = None, unseen: str = "error") -> dict[str, Any]:
        """Return the constructor arguments of a `MarkovChain` (if ``is_chain``) or an `MDP`."""
        if unseen not in MISSING:
            raise InvalidData(f"{self.name}: unseen is {unseen!r}; use one of {', '.join(map(repr, MISSING))}")
        place, names = self._places(unseen)
        if not self.is_chain and names is None and any(self.actions):
            remark_on_actions(self.name, self.actions)
        P = sp.csr_array((self.probability, (self.row, self.target)), shape=(self.owner.size, self.n_states))
        kernels = [self._kernel(P, choices, unseen) for choices in place]
        found = {
            "initial": self._initial(),
            "rewards": rewards if not _is_name(rewards) else self._rewards(rewards, place),
            "names": self.names,
        }
        if self.is_chain:
            return found | {"transition": kernels[0]}
        return found | {"transition": kernels, "actions": names}

    def _places(self, unseen: str) -> tuple[Integers, list[str] | None]:
        """Return the choice of each action in each state, (A, n), -1 if there is none, and the action names."""
        action, names = self._actions
        n, n_actions = self.n_states, 1 + int(action.max(initial=0))
        gaps = n_actions * n - self.owner.size
        if n_actions > limits.CHOICES or gaps > limits.UNSEEN + self.owner.size:
            raise InvalidData(
                f"{self.name}: {n_actions:,} actions in each of {n:,} states for {self.owner.size:,} choices exceed "
                "the limits; raise CHOICES and UNSEEN in diffbisim.io.limits"
            )
        place = np.full((n_actions, n), -1, dtype=np.int64)
        place[action, self.owner] = np.arange(self.owner.size)
        if unseen == "repeat":
            states, first = np.unique(self.owner, return_index=True)
            instead = np.full(n, -1, dtype=np.int64)
            instead[states] = first
            place = np.where(place < 0, instead, place)
        if unseen in ("error", "repeat") and (place < 0).any():
            raise InvalidData(f"{self.name}: {self._gap(place, names)}")
        return place, names

    @cached_property
    def _actions(self) -> tuple[Integers, list[str] | None]:
        """The action of each choice, (C,), and the action names, if actions are identified by name."""
        if self.is_chain:
            return np.zeros(self.owner.size, dtype=np.int64), None
        if len(self.actions) and "" not in self.actions:
            numbers = {name: k for k, name in enumerate(dict.fromkeys(self.actions))}
            action = np.array([numbers[name] for name in self.actions], dtype=np.int64)
            if np.unique(self.owner * len(numbers) + action).size == action.size:
                return action, list(numbers)
        return np.arange(self.owner.size) - np.searchsorted(self.owner, self.owner), None

    def _gap(self, place: Integers, names: list[str] | None) -> str:
        a, s = (int(k) for k in np.argwhere(place < 0)[0])
        if (place[:, s] < 0).all():
            return f'state {s} has no transition (a deadlock); pass unseen="self-loop" if it is absorbing'
        what = f"choice {a}" if names is None else f"action {names[a]!r}"
        return (
            f"state {s} has no {what} (missing choices: {int((place < 0).sum()):,}), but in an MDP every action is "
            'available in every state; pass unseen="repeat" (use the state\'s first choice), "self-loop" or "uniform"'
        )

    def _kernel(self, P: sp.csr_array, choices: Integers, unseen: str) -> sp.csr_array:
        """Return the kernel (n, n) of an action from the rows of its choices, with missing rows filled in."""
        n, there = self.n_states, choices >= 0
        if there.all():
            return P[choices]
        gaps = np.flatnonzero(~there)
        width = n if unseen == "uniform" else 1
        if gaps.size * width > MOST_FILLED:
            raise InvalidData(f'{self.name}: unseen="uniform" would add {gaps.size * n:,} transitions; use "self-loop"')
        columns = np.tile(np.arange(n), gaps.size) if width > 1 else gaps
        filled = sp.csr_array(
            (np.full(gaps.size * width, 1.0 / width), (np.repeat(gaps, width), columns)), shape=(n, n)
        )
        own = np.flatnonzero(there)
        pick = sp.csr_array((np.ones(own.size), (own, choices[own])), shape=(n, P.shape[0]))
        return sp.csr_array(pick @ P + filled)

    def _initial(self) -> Any:
        """Return the uniform distribution on the states labeled "init", or state 0 if there are none."""
        states = (self.propositions or {}).get("init", np.zeros(0, dtype=np.int64))
        start = np.zeros(self.n_states)
        start[states] = 1.0 / max(1, len(states))
        return start if len(states) else 0

    def _rewards(self, chosen: Any, place: Integers) -> Floats | None:
        """Return the chosen rewards of states, (n,), or of states and actions, (n, A)."""
        known, propositions = self.rewards or {}, self.propositions or {}
        if isinstance(chosen, (list, tuple)):
            if not self.is_chain:
                raise InvalidData(f"{self.name} holds an MDP, whose rewards are numbers; name one reward structure")
            return np.stack([np.asarray(self._rewards(name, place)) for name in chosen], axis=1)
        if chosen is None:
            if len(known) > 1:
                raise InvalidData(f"{self.name} has {len(known)} reward structures; {self._listed()}")
            paid = self._of_structure(next(iter(known.values())), place) if known else None
            remark_on_rewards(self.name, next(iter(known), None), paid, propositions)
            return paid
        if chosen in known:
            return self._of_structure(known[chosen], place)
        if chosen in propositions:
            return np.bincount(propositions[chosen], minlength=self.n_states).astype(np.float64)
        raise InvalidData(f"{self.name} has no reward structure or proposition {chosen!r}; {self._listed()}")

    def _of_structure(self, paid: Floats, place: Integers) -> Floats:
        each = np.where(place < 0, 0.0, paid[place]).T
        return each[:, 0].copy() if (each == each[:, :1]).all() else each

    def _listed(self) -> str:
        parts = (("reward structures", self.rewards), ("propositions", self.propositions))
        listed = "; ".join(f"{what} {', '.join(map(repr, found))}" for what, found in parts if found)
        return f"choose one by name, rewards=..., from its {listed}" if listed else "it has no rewards or propositions"


def remark_on_rewards(model: str, chosen: str | None, paid: Floats | None, propositions: Mapping[str, Any]) -> None:
    """Warn if the rewards that are used by default leave out propositions, or are the same everywhere."""
    unused = [name for name, states in propositions.items() if name not in OWN_PROPOSITIONS and len(states)]
    constant = paid is not None and paid.size > 1 and bool((paid == paid.flat[0]).all())
    if not unused and not constant:
        return
    parts = ["it has no rewards" if chosen is None else f"its rewards are {chosen or 'default'!r}, the only ones"]
    if constant and paid is not None:
        parts[0] += f", which are {paid.flat[0]:g} in every state and do not tell any states apart"
    if unused:
        parts += [
            f"its propositions {few(unused)} are not used",
            f"choose what to compare, such as rewards={unused[0]!r}",
        ]
    else:
        parts += ["give others with rewards="]
    warn_of_input(f"{model}: {'; '.join(parts)}")


def remark_on_actions(model: str, names: Sequence[str]) -> None:
    """Warn that action names are not used."""
    known = list(dict.fromkeys(name for name in names if name))
    warn_of_input(
        f"{model}: its action names ({few(known)}) do not identify the choices of every state, so action k is "
        "choice k, by number"
    )


def _is_name(rewards: Any) -> bool:
    """Return whether rewards are selected by name rather than given; None selects the only structure."""
    several = isinstance(rewards, (list, tuple)) and bool(rewards) and all(isinstance(name, str) for name in rewards)
    return rewards is None or isinstance(rewards, str) or several


def variables(texts: Sequence[str]) -> list[Hashable] | None:
    """Parse Storm's state valuations into names: "[x=3 & !up]" becomes (3, False). None if they are not distinct."""
    names = [tuple(map(_value, text.strip("[] \t").split("&"))) for text in texts]
    return list(names) if len(set(names)) == len(names) else None


def _value(text: str) -> Any:
    name, equals, value = text.strip().partition("=")
    if not equals:
        return not name.startswith("!")
    try:
        return int(value)
    except ValueError:
        return value
