"""A forward model of an environment, learned from steps: (s, a) → s' - s, and whether s' is terminal.

Ridge regression on random Fourier features (Rahimi and Recht 2007): z = (s, a) with coordinates divided by their
standard deviations, φ(z) = [cos(Wz + b), z, 1] with W normal with length scale 3,

    s' - s ≈ B φ(z),        B = argmin Σ |s' - s - B φ(z)|² + λ |B|²

This is one linear system: 5,000 steps take a tenth of a second, while three networks of 64 x 64 units took three
seconds and were not better on Gymnasium's five classic control tasks. Far from the data the cosines cancel, which
leaves a linear model.

*Noise.* Observations such as (cos θ, sin θ) lie on a surface, and data on it do not say what happens beside it: errors
of the model may then grow in every simulated step (on Acrobot, for a third of the draws of W). Every step is therefore
used twice, the second time from s + ε to the same s', with ε 2 % of the standard deviation of s' - s. This teaches the
model to return to the surface, and changes its error on held-out steps by less than a tenth.

Differences are also divided by their standard deviations, so that slow coordinates are modeled as well as fast ones.
A tenth of the steps is held out, and the error on them is part of every result:

    error = root mean square of (predicted - true s') / standard deviation of (s' - s),     0 perfect, 1 uninformative

Terminal states are learned by logistic regression on the same kind of features of s', from the states in which episodes
terminated. Least squares would not do: a classifier that is pulled by states far from the boundary puts it in the wrong
place, and a planner finds the mistakes (on Acrobot, most simulated states that it called terminal were not).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.learning.imitate.control.walks import Actions, Walk

FEATURES, FEATURES_PER_INPUT = 300, 60  # at least 300, more for many inputs
LENGTH = 3.0
RIDGE = 1e-7
LOGISTIC_RIDGE, NEWTON_STEPS = 1e-5, 12
HELD_OUT = 10  # one in this many steps is held out

#: Residuals above this multiple of the median are down-weighted.
OUTLIER_FACTOR = 5.0

#: Size of the noise added to states, in standard deviations of s' - s.
NOISE = 0.02

#: Number of terminal states needed to learn where they are.
FEW_ENDS = 3

#: Predicted states are clipped to the bounding box of the data, enlarged by this fraction of its sides.
MARGIN = 0.25


class Step(NamedTuple):
    """Predicted next states."""

    states: Floats  # (n, d)
    ended: Any  # (n,) bool


class ForwardModel:
    """A learned model; ``step`` maps states (n, d) and action numbers (n,) to the next states."""

    def __init__(self, walk: Walk, actions: Actions, ends: Floats, rng: int | np.random.Generator = 0) -> None:
        """Fit the model; `ends` (m, d) are further terminal states, shown by an expert with whole observations."""
        self.actions = actions
        seen = np.vstack([walk.states, walk.following, ends])
        self.center, self.scale = seen.mean(axis=0), _spread(seen)
        slack = MARGIN * np.ptp(seen, axis=0)
        self.low, self.high = seen.min(axis=0) - slack, seen.max(axis=0) + slack
        change = walk.following - walk.states
        size = _spread(change)
        held = np.arange(len(walk)) % HELD_OUT == HELD_OUT - 1
        inputs, generator = self._inputs(walk.states, walk.actions), np.random.default_rng(rng)
        noise = NOISE * size * generator.normal(size=change.shape)
        noisy, back = self._inputs(walk.states + noise, walk.actions), (change - noise) / size
        self.change = robust(
            np.vstack([inputs[~held], noisy[~held]]), np.vstack([(change / size)[~held], back[~held]]), generator
        )
        self.error = float(np.sqrt(np.mean((self.change(inputs[held]) - (change / size)[held]) ** 2)))
        self.change.weights *= size.astype(np.float32)
        self.judge = _judge(self._scaled(np.vstack([walk.following, ends])), np.append(walk.ended, np.ones(len(ends))))

    def step(self, states: Floats, actions: Integers) -> Step:
        """Return the predicted next states and whether they are terminal."""
        following = self.move(states, actions)
        return Step(following, self.terminal(following))

    def move(self, states: Floats, actions: Integers) -> Floats:
        """Return the predicted next states alone."""
        return np.clip(states + self.change(self._inputs(states, actions)), self.low, self.high)

    def terminal(self, states: Floats) -> Any:
        """Return whether states (n, d) are terminal, (n,) bool."""
        if self.judge is None:
            return np.zeros(len(states), dtype=bool)
        return self.judge(self._scaled(states)) > 0.0

    def _scaled(self, states: Floats) -> Floats:
        return np.asarray((states - self.center) / self.scale)

    def _inputs(self, states: Floats, actions: Integers) -> Floats:
        return np.hstack([self._scaled(states), self.actions.codes[actions]])


class Fourier:
    """Random Fourier features φ of inputs (n, i), in single precision: cosines dominate the time of planning."""

    def __init__(self, n_inputs: int, rng: int | np.random.Generator) -> None:
        generator = np.random.default_rng(rng)
        self.count = max(FEATURES, FEATURES_PER_INPUT * n_inputs)
        self.W = (generator.normal(size=(n_inputs, self.count)) / LENGTH).astype(np.float32)
        self.b = generator.uniform(0.0, 2.0 * np.pi, self.count).astype(np.float32)

    def __call__(self, inputs: Floats) -> Any:
        φ = np.ones((len(inputs), self.count + inputs.shape[1] + 1), dtype=np.float32)
        φ[:, self.count : -1] = inputs
        phase = φ[:, self.count : -1] @ self.W
        phase += self.b
        np.cos(phase, out=φ[:, : self.count])
        return φ


class Ridge:
    """Ridge regression on random Fourier features, from inputs (n, i) to outputs (n, o)."""

    def __init__(self, inputs: Floats, targets: Floats, rng: int | np.random.Generator, mass: Any = 1.0) -> None:
        """Fit with row weights `mass` (n, 1)."""
        self.features = Fourier(inputs.shape[1], rng)
        φ = self.features(inputs).astype(np.float64)
        square = φ.T @ (φ * mass) + RIDGE * len(φ) * np.eye(φ.shape[1])
        self.weights = np.linalg.solve(square, φ.T @ (targets * mass)).astype(np.float32)

    def __call__(self, inputs: Floats) -> Floats:
        return np.asarray(self.features(inputs) @ self.weights, dtype=np.float64)


class Logistic:
    """Logistic regression on random Fourier features: log-odds (n,) of a class, from inputs (n, i).

    Newton's method on Σ log(1 + exp(-y φ·w)) / n + λ |w|² / 2, with y = ±1; steps are halved until they descend.
    """

    def __init__(self, inputs: Floats, member: Any, rng: int | np.random.Generator) -> None:
        """Fit to the class `member` (n,) bool."""
        self.features = Fourier(inputs.shape[1], rng)
        φ, y = self.features(inputs).astype(np.float64), np.where(member, 1.0, -1.0)

        def loss(w: Floats) -> float:
            return float(np.logaddexp(0.0, -y * (φ @ w)).mean() + LOGISTIC_RIDGE * (w @ w) / 2.0)

        w, λ = np.zeros(φ.shape[1]), LOGISTIC_RIDGE
        for _ in range(NEWTON_STEPS):
            p = 1.0 / (1.0 + np.exp(np.clip(y * (φ @ w), -500.0, 500.0)))  # probability of the other class
            slope = λ * w - φ.T @ (y * p) / len(y)
            curvature = φ.T @ (φ * (p * (1.0 - p))[:, None]) / len(y) + λ * np.eye(len(w))
            step, now = np.linalg.solve(curvature, slope), loss(w)
            while loss(w - step) > now and slope @ step > 1e-9:
                step /= 2.0
            w -= step
        self.weights = w.astype(np.float32)

    def __call__(self, inputs: Floats) -> Floats:
        return np.asarray(self.features(inputs) @ self.weights)


def robust(inputs: Floats, targets: Floats, rng: int | np.random.Generator) -> Ridge:
    """Fit twice, down-weighting residuals of the first fit above five times their median (Huber).

    A car that hits a wall loses all its speed in one step, many standard deviations; a few such steps must not distort
    the model elsewhere.
    """
    generator = np.random.default_rng(rng)
    seed = int(generator.integers(2**31))
    missed = np.linalg.norm(Ridge(inputs, targets, seed)(inputs) - targets, axis=1)
    mass = np.minimum(1.0, OUTLIER_FACTOR * np.median(missed) / np.maximum(missed, 1e-12))
    return Ridge(inputs, targets, seed, mass[:, None])


def _spread(points: Floats) -> Floats:
    spread = points.std(axis=0)
    return np.where(spread > 1e-8, spread, 1.0)


def _judge(points: Floats, ended: Any) -> Logistic | None:
    """Return a classifier that is positive at terminal states, or None if too few are known."""
    ended = ended > 0
    return None if ended.sum() < FEW_ENDS or ended.all() else Logistic(points, ended, 0)
