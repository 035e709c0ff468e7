"""How far to go along a direction when the objective is sharp: Polyak's step, with a level that is learned.

The distance d(θ) to an attainable target looks like a norm at its minimum, not like a square: constant steps rattle,
decaying ones crawl. Polyak's step goes as far as the linear model needs to reach a level ℓ,

    θ ← θ - η n,        η = (d(θ) - ℓ) / <g, n>,

g the gradient, n any direction with <g, n> > 0 (g itself, or a natural one), and converges linearly when ℓ is the
minimum. If the target can be reached, ℓ = 0. If not, the minimum is unknown and ℓ is a guess below the best value b,

    ℓ = max(floor, b - δ),

with δ doubled as soon as the best value has fallen by δ/2, and halved after `patience` steps in which it has not
(Brännlund; Goffin and Kiwiel; Nedić and Bertsekas). So δ is also an estimate of what is left to gain.
A step is cut to `cap` in the largest entry of the parameters, because logits that run off do not come back.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.errors import InvalidArgument

Array = NDArray[np.float64]


@dataclass
class PolyakLevel:
    """Step lengths from values and slopes; a few plain numbers, so that a run can be stored and resumed.

    Attributes:
        attainable: whether the floor can be reached: True fixes the level there, False or None has it learned.
        cap: largest change of any parameter in one step.
        floor: a number that the objective cannot go below.
        patience: steps without sufficient progress after which the level moves up.
        best: the lowest value seen.
        delta: how far below the best value the level is.
        improved: whether the last value was the best so far.
    """

    attainable: bool | None = None
    cap: float = 2.0
    floor: float = 0.0
    patience: int = 8
    best: float = float("inf")
    delta: float = float("inf")
    improved: bool = False
    record: float = float("inf")
    waited: int = 0

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise InvalidArgument(f"cap is {self.cap!r}; it must be positive, e.g. cap=2.0")
        if self.patience < 1:
            raise InvalidArgument(f"patience is {self.patience!r}; it must be at least 1")

    @property
    def level(self) -> float:
        """What the next step aims at."""
        return self.floor if self.attainable else max(self.floor, self.best - self.delta)

    def length(self, value: float, slope: float, size: float = 0.0) -> float:
        """The step length η ≥ 0 at a point with this value.

        ``slope`` is <g, n>, ``size`` the largest entry of n in absolute value. Zero where the slope is.
        """
        value, slope, size = float(value), float(slope), float(size)
        self.improved = value < self.best
        self.best = min(self.best, value)
        self._adapt(value)
        gain = max(value - self.level, 0.0)
        if not (slope > 0.0 and gain > 0.0):
            return 0.0
        limit = self.cap / size if size > 0.0 else float("inf")
        return gain / slope if gain < limit * slope else limit  # no overflow where the slope is tiny

    def _adapt(self, value: float) -> None:
        """Move the level: down after sufficient progress, up after none for too long."""
        if not np.isfinite(self.delta):
            self.record, self.delta = value, max(value - self.floor, 0.0)
        elif self.best <= self.record - self.delta / 2:
            self.record, self.delta, self.waited = self.best, 2 * self.delta, 0
        else:
            self.waited += 1
            if self.waited >= self.patience:
                self.record, self.delta, self.waited = self.best, self.delta / 2, 0
        self.delta = min(self.delta, max(self.best - self.floor, 0.0))

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can hold it exactly."""
        return {k: None if v == float("inf") else v for k, v in asdict(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "PolyakLevel":
        """The inverse of :meth:`state`."""
        values = {field.name: state[field.name] for field in fields(cls)}
        values.update({k: float("inf") for k in ("best", "delta", "record") if values[k] is None})
        return cls(**values)


@dataclass
class Annealed:
    """Steps of a length that falls to zero like a cosine, whatever the values are: for values that are estimates.

    Two models are never farther apart than π in the Fisher metric of their transitions (the angle between the roots of
    two distributions, twice), so ``total`` steps of together that length reach any of them.

    Attributes:
        total: number of steps.
        taken: steps so far.
        improved, level: there is no telling, as :class:`PolyakLevel` does.
    """

    total: int
    taken: int = 0
    improved: bool = False
    level: float = 0.0

    def length(self, value: float, slope: float, size: float) -> float:
        """The next η, for a direction of this size."""
        share = min(self.taken / self.total, 1.0)
        self.taken += 1
        return np.pi / self.total * (1.0 + np.cos(np.pi * share)) / size if size > 0.0 else 0.0

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can hold it exactly."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Annealed":
        """The inverse of :meth:`state`."""
        return cls(**state)


def natural_direction(P: Array, G: Array, weights: Array) -> tuple[Array, float, float]:
    """The natural (mirror) direction for the logits of stochastic rows: ``n``, its slope ``<g, n>`` and its size.

    ``P (n, k)`` are the rows (a kernel, a policy, or one start as (1, k)), ``G (n, k)`` the derivative with respect
    to their entries, ``weights (n,)`` how much each row counts (its occupancy). The Fisher metric of row s is
    ``ρ(s) (diag P - P Pᵀ)``, so

        n(s,·) = (G(s,·) - E_P G) / ρ(s),        <g, n> = Σ_s ρ(s) Var_{P(s)} n(s,·).

    A row that counts for nothing stays where it is.
    """
    centered = G - (P * G).sum(axis=1, keepdims=True)
    rho = np.asarray(weights, dtype=np.float64)[:, None]
    n = np.where(rho > 0.0, centered / np.where(rho > 0.0, rho, 1.0), 0.0)
    return n, float((P * centered * n).sum()), float(np.abs(n).max(initial=0.0))
