"""Generative adversarial imitation from observation (Torabi, Warnell and Stone 2018) as a reward.

A network D distinguishes steps (s, s') of the expert from the learner's own, and the reward is -log(1 - D(s, s')). It
is retrained every thousand steps on the learner's latest steps (scikit-learn, 64 units). The reward is positive, so as
published it rewards survival, whatever the expert does. Here, as in later work (Kostrikov et al. 2019), the end of an
episode is an absorbing state, for the expert too, and a learner that terminates is paid γ/(1 - γ) times the reward of
staying there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.learning.imitate.baselines.bco import classifier
from diffbisim.learning.imitate.control.rewards import EVERY, NOTHING, Episodes
from diffbisim.learning.imitate.control.tracking import Nodes


class Adversary:
    """The reward of a discriminator between expert and learner."""

    extra = 0

    def __init__(self, nodes: Nodes, discount: float, every: int = EVERY) -> None:
        self.discount, self.every, self.seen = discount, every, Episodes()
        shown = nodes.paths()
        self.longest = max(map(len, shown))
        self.expert = self._steps(shown, [bool(nodes.ended[own[-1]]) for own in nodes.numbers()])
        self.network: Any = None
        self.end = np.append(np.zeros(nodes.points.shape[1]), 1.0)
        self.last, self.staying = self.end, 0.0

    def reset(self, seen: Floats) -> Floats:
        if self.seen.steps >= self.every:
            self.train(self._steps(*self.seen.taken()))
        self.seen.begin(seen)
        self.last = np.append(seen, 0.0)
        return NOTHING

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        self.seen.add(seen, ended)
        before, self.last = self.last, self.end if ended else np.append(seen, 0.0)
        own = self.reward(before, self.last) + ended * self.discount / (1.0 - self.discount) * self.staying
        return own, NOTHING

    def train(self, own: Floats) -> None:
        """Train on the learner's steps (m, 2 k + 2) and equally many of the expert's."""
        few = self.expert[np.arange(len(own)) * len(self.expert) // len(own)]
        self.network = classifier(np.vstack([few, own]), np.repeat([1, 0], len(own)))
        self.staying = self.reward(self.end, self.end)

    def reward(self, before: Floats, after: Floats) -> float:
        """Return -log(1 - D) of a step, zero before the first training."""
        if self.network is None:
            return 0.0
        return -float(np.log(max(self.network.predict_proba([np.append(before, after)])[0, 0], 1e-3)))

    def _steps(self, paths: list[Floats], ended: list[bool]) -> Floats:
        """Return all steps; paths that terminated stay at the end, up to the length of the longest demonstration."""
        rows = []
        for path, over in zip(paths, ended, strict=True):
            states = np.hstack([path, np.zeros((len(path), 1))])
            if over:
                end = np.append(np.zeros(path.shape[1]), 1.0)
                states = np.vstack([states[:-1], np.tile(end, (max(self.longest - len(path), 1) + 1, 1))])
            rows.append(np.hstack([states[:-1], states[1:]]))
        return np.concatenate(rows)
