"""What imitation returns: the policy, its certified distance to the expert, and how it got there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.checks import Floats
from diffbisim.data.tables import replacing
from diffbisim.imitate.reward import ImplicitReward
from diffbisim.mdp import MDP
from diffbisim.problem import lazy
from diffbisim.results import DistanceResult


class Ending(Enum):
    """How a run ended; the value is a sentence, with the remedy where one is needed."""

    REACHED = "Reached: the distance to the expert is within tol of zero."
    SETTLED = (
        "Settled: the level says that next to nothing is left to gain from here; the expert can probably not be "
        "reproduced. Other starts (policy=) may settle lower."
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
        """Policy, learned distance and history in one ``.npz`` file (arrays and JSON, no pickle)."""
        meta = {
            "diffbisim-imitation": 1, "outcome": self.outcome.name, "history": [dict(row) for row in self.history],
            "value": self.distance.value, "lower": self.distance.lower, "upper": self.distance.upper,
        }  # fmt: skip
        with replacing(Path(path), binary=True) as file:
            np.savez(
                file,
                policy=self.policy,
                reward=self.reward.table,
                meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
            )

    def __repr__(self) -> str:
        n, k = self.policy.shape
        d: Any = self.distance
        return (
            f"ImitationResult({n} states, {k} actions, distance {d.value:.3g} in [{d.lower:.3g}, {d.upper:.3g}], "
            f"{self.iterations} iterations, {self.outcome.name.lower()})"
        )
