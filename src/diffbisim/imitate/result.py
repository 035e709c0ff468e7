"""What imitation returns: the policy, its certified distance to the expert, and how it got there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, policy_table
from diffbisim.errors import InvalidData
from diffbisim.imitate.reward import ImplicitReward
from diffbisim.io.arrays import entry
from diffbisim.io.npz import chain_arrays, chain_from_arrays, label_array, labels_from_array
from diffbisim.io.results import part, read_built, write_built
from diffbisim.mdp import MDP
from diffbisim.problem import lazy
from diffbisim.results import DistanceResult


class Ending(Enum):
    """How a run ended; the value is a sentence, with the remedy where one is needed."""

    REACHED = "Reached: the certified distance to the expert is within tol of zero."
    SETTLED = (
        "Settled: no closer policy was found, which does not prove that there is none: other starts (policy=) may "
        "settle lower."
    )
    ITERATIONS = "Stopped after max_iterations; the best policy is returned: raise max_iterations to go on."
    INTERRUPTED = "Interrupted by the callback; the best policy so far is returned."


@dataclass(frozen=True, eq=False, repr=False)
class ImitationResult:
    """The best policy that was found.

    Attributes:
        policy: probabilities of the actions in every state, shape (n_states, n_actions).
        distance: the certified :class:`~diffbisim.DistanceResult` between the expert and the learner.
        history: one mapping per outer iteration: ``value``, ``lower``, ``upper``, ``level``, ``step``.
        mdp: the MDP that was acted in; for a sampled environment, the model estimated from all its transitions.
        outcome: how the run ended.
    """

    policy: Floats
    distance: DistanceResult
    history: tuple[Mapping[str, float], ...]
    mdp: MDP
    outcome: Ending

    @property
    def status(self) -> str:
        """How the run ended, as a sentence."""
        return self.outcome.value

    @property
    def converged(self) -> bool:
        """Whether the run ended by itself."""
        return self.outcome in (Ending.REACHED, Ending.SETTLED)

    @property
    def iterations(self) -> int:
        """Outer iterations: policies that were evaluated."""
        return len(self.history)

    @lazy
    def reward(self) -> ImplicitReward:
        """The implicit reward at this policy, to be maximized."""
        return ImplicitReward(self.distance.implicit_reward(), self.mdp.labels)

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle); read it with :func:`diffbisim.load`."""
        meta = {"outcome": self.outcome.name, "history": [dict(row) for row in self.history]}
        arrays: dict[str, Any] = {"policy": self.policy}
        for a, P in enumerate(self.mdp.transition):
            chain = MarkovChain(P, initial=self.mdp.initial, labels=self.mdp.labels)
            arrays |= {f"action{a}.{name}": value for name, value in chain_arrays(chain).items()}
        if self.mdp.rewards is not None:
            arrays["rewards"] = self.mdp.rewards
        if self.mdp.actions is not None:
            arrays["actions"] = label_array(self.mdp.actions)
        write_built(path, "imitation", meta, self.distance, arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> ImitationResult:
        """The inverse of :meth:`save`, from the arrays of the file."""
        meta, distance = read_built(arrays, "imitation")
        ending = entry(meta, "outcome", lambda name: name in Ending.__members__, "how a run can end")
        table = arrays.get("policy", np.empty(0))
        if table.ndim != 2 or table.dtype != np.float64:
            raise InvalidData(f"array 'policy' has shape {table.shape}; expected (n_states, n_actions) probabilities")
        chains = [chain_from_arrays(part(arrays, f"action{a}.")) for a in range(table.shape[1])]
        if not chains:
            raise InvalidData("array 'policy' has no actions")
        mdp = MDP(
            [chain.transition for chain in chains],
            initial=chains[0].initial,
            rewards=arrays.get("rewards"),
            labels=chains[0].labels,
            actions=labels_from_array(arrays, "actions"),
        )
        policy_table(table, (mdp.n_states, mdp.n_actions))
        if distance.problem.y.n_states != mdp.n_states:
            raise InvalidData(f"the MDP has {mdp.n_states} states, the learner {distance.problem.y.n_states}")
        return cls(table, distance, tuple(meta["history"]), mdp, Ending[ending])

    def __repr__(self) -> str:
        n, k = self.policy.shape
        d: Any = self.distance
        return (
            f"ImitationResult({n} states, {k} actions, distance {d.value:.3g} in [{d.lower:.3g}, {d.upper:.3g}], "
            f"{self.iterations} iterations, {self.outcome.name.lower()})"
        )
