"""What imitation returns: the policy, its certified distance to the expert, and how it got there."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.data.archive import chain_arrays, chain_from_arrays
from diffbisim.data.tables import replacing
from diffbisim.errors import InvalidData
from diffbisim.imitate.reward import ImplicitReward
from diffbisim.mdp import MDP
from diffbisim.problem import lazy
from diffbisim.results import DistanceResult
from diffbisim.saving import part, result_from_arrays


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
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle); read it with :meth:`load`."""
        meta = {
            "diffbisim-imitation": 1, "outcome": self.outcome.name, "history": [dict(row) for row in self.history],
        }  # fmt: skip
        arrays = {f"distance.{name}": value for name, value in self.distance.arrays().items()}
        for a, P in enumerate(self.mdp.transition):
            chain = MarkovChain(P, initial=self.mdp.initial, labels=self.mdp.labels)
            arrays |= {f"action{a}.{name}": value for name, value in chain_arrays(chain).items()}
        if self.mdp.rewards is not None:
            arrays["rewards"] = self.mdp.rewards
        arrays["imitation"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        with replacing(Path(path), binary=True) as file:
            np.savez(file, policy=self.policy, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> ImitationResult:
        """What :meth:`save` wrote; names of actions are not kept."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            meta = json.loads(bytes(arrays["imitation"]).decode())
            n_actions = arrays["policy"].shape[1]
            chains = [chain_from_arrays(part(arrays, f"action{a}.")) for a in range(n_actions)]
            distance = result_from_arrays(part(arrays, "distance."))
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidData(f"{path} is no saved imitation ({error}); write one with result.save(path)") from None
        mdp = MDP(
            [chain.transition for chain in chains],
            initial=chains[0].initial,
            rewards=arrays.get("rewards"),
            labels=chains[0].labels,
        )
        return cls(arrays["policy"], distance, tuple(meta["history"]), mdp, Ending[meta["outcome"]])

    def __repr__(self) -> str:
        n, k = self.policy.shape
        d: Any = self.distance
        return (
            f"ImitationResult({n} states, {k} actions, distance {d.value:.3g} in [{d.lower:.3g}, {d.upper:.3g}], "
            f"{self.iterations} iterations, {self.outcome.name.lower()})"
        )
