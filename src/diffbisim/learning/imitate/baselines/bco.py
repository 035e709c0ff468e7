"""Behavioral cloning from observation (Torabi, Warnell and Stone 2018) for continuous observations.

An inverse model of the learner's own steps, (f(s), f(s')) → a, infers the actions of the expert, and a classifier from
features to these actions is the policy; both are refitted after every round of acting (their α > 0). Both are networks
with 64 units (scikit-learn). With ``frames=2`` both also see the previous features, which gives a velocity if only
positions are observed; the published method does not have this.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.common.errors import MissingExtra
from diffbisim.learning.imitate.control.learning import ControlResult, ImitationInputs, TrainedAgent
from diffbisim.learning.imitate.control.walks import Features, Walk


def bco(lesson: ImitationInputs, frames: int = 1) -> ControlResult:
    """Clone inferred actions; `frames` is 1 or 2."""

    def make(seen: Walk) -> TrainedAgent:
        scale = lesson.features(seen.states).std(axis=0) + 1e-8
        size = (lesson.features(seen.following) - lesson.features(seen.states)).std(axis=0) + 1e-8
        inputs_of = Inputs(lesson.features, scale, size, frames)
        before, change = inputs_of.steps([lesson.features(path) for path in seen.paths()])
        inverse = classifier(np.hstack([before, change]), seen.actions)
        inputs, steps = inputs_of.steps(lesson.shown.paths)
        return TrainedAgent(Clone(classifier(inputs, inverse.predict(np.hstack([inputs, steps]))), inputs_of), {})

    return lesson.learn(make)


class Inputs(NamedTuple):
    """The inputs of both networks: scaled features and, with two frames, their last change."""

    features: Features
    scale: Floats
    size: Floats
    frames: int

    def steps(self, paths: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Return the inputs before every step of paths (T, k), and the scaled steps."""
        before = np.concatenate([self.stacked(path)[:-1] for path in paths])
        return before, np.concatenate([np.diff(path, axis=0) for path in paths]) / self.size

    def stacked(self, path: Floats) -> Floats:
        """Return each row with the change that led to it, which is zero at the start."""
        rows = path / self.scale
        return rows if self.frames == 1 else np.hstack([rows, np.diff(path, axis=0, prepend=path[:1]) / self.size])


class Clone:
    """The policy: the most likely action given the features."""

    def __init__(self, network: Any, inputs_of: Inputs) -> None:
        self.network, self.inputs_of = network, inputs_of
        self.last: Floats | None = None

    def reset(self, observation: Floats) -> None:
        self.last = None

    def act(self, observation: Floats) -> int:
        now = self.inputs_of.features(observation[None])
        path = now if self.last is None else np.vstack([self.last, now])
        self.last = now
        return int(self.network.predict(self.inputs_of.stacked(path)[-1:])[0])


def classifier(inputs: Floats, targets: Any) -> Any:
    """Fit a network for fifty epochs."""
    try:
        from sklearn.neural_network import MLPClassifier
    except ImportError as error:
        raise MissingExtra("BCO needs scikit-learn: pip install 'diffbisim[data]'") from error
    network = MLPClassifier(
        hidden_layer_sizes=(64,), batch_size=min(128, len(inputs)), learning_rate_init=3e-3, max_iter=50, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns that it stops after max_iter epochs, as intended
        return network.fit(inputs, targets)
