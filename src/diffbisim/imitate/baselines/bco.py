"""Behavioral cloning from observation (Torabi, Warnell and Stone 2018) where observations are continuous.

An inverse model of the learner's own steps, (f(s), f(s')) → a, names the actions of the expert, and a classifier from
what is seen to these actions is the policy; again after every round of acting (their α > 0). Both are networks of 64
units (scikit-learn). With ``frames=2`` both also see what was seen a step before: a velocity where only positions are
shown, which the method as published does not have.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diffbisim.checks import Floats
from diffbisim.errors import MissingExtra
from diffbisim.imitate.control.learning import ControlResult, Lesson, Made
from diffbisim.imitate.control.walks import Features, Walk


def bco(lesson: Lesson, frames: int = 1) -> ControlResult:
    """Cloning of inferred actions."""

    def make(seen: Walk) -> Made:
        scale = lesson.features(seen.states).std(axis=0) + 1e-8
        size = (lesson.features(seen.following) - lesson.features(seen.states)).std(axis=0) + 1e-8
        sight = Sight(lesson.features, scale, size, frames)
        before, change = sight.steps([lesson.features(path) for path in seen.paths()])
        inverse = classifier(np.hstack([before, change]), seen.actions)
        inputs, steps = sight.steps(lesson.shown.paths)
        return Made(Clone(classifier(inputs, inverse.predict(np.hstack([inputs, steps]))), sight), {})

    return lesson.learn(make)


class Sight(NamedTuple):
    """What is seen of states and of their changes, each in its own scale; of the past, if there are two frames."""

    features: Features
    scale: Floats
    size: Floats
    frames: int

    def steps(self, paths: Sequence[Floats]) -> tuple[Floats, Floats]:
        """What precedes every step of paths (T, k), and the step."""
        before = np.concatenate([self.stacked(path)[:-1] for path in paths])
        return before, np.concatenate([np.diff(path, axis=0) for path in paths]) / self.size

    def stacked(self, path: Floats) -> Floats:
        """Each row with the change that led to it, which is zero at the start."""
        rows = path / self.scale
        return rows if self.frames == 1 else np.hstack([rows, np.diff(path, axis=0, prepend=path[:1]) / self.size])


class Clone:
    """The policy: the most likely action for what is seen."""

    def __init__(self, network: Any, sight: Sight) -> None:
        self.network, self.sight = network, sight
        self.last: Floats | None = None

    def reset(self, observation: Floats) -> None:
        self.last = None

    def act(self, observation: Floats) -> int:
        now = self.sight.features(observation[None])
        path = now if self.last is None else np.vstack([self.last, now])
        self.last = now
        return int(self.network.predict(self.sight.stacked(path)[-1:])[0])


def classifier(inputs: Floats, targets: Any) -> Any:
    """A network that has seen the data fifty times."""
    try:
        from sklearn.neural_network import MLPClassifier
    except ImportError as error:
        raise MissingExtra("BCO needs scikit-learn: pip install 'diffbisim[data]'") from error
    network = MLPClassifier(
        hidden_layer_sizes=(64,), batch_size=min(128, len(inputs)), learning_rate_init=3e-3, max_iter=50, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stops after so many epochs is what was asked for
        return network.fit(inputs, targets)
