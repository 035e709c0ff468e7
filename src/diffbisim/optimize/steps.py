"""Step rules: how far to go along a direction when the objective is sharp.

Polyak's step, with a level that is learned (:class:`PolyakLevel`).

The distance d(θ) to an attainable target looks like a norm at its minimum, not like a square: constant steps rattle,
decaying ones crawl. Polyak's step goes as far as the linear model needs to reach a level ℓ,

    θ ← θ - η n,        η = (d(θ) - ℓ) / <g, n>,

g the gradient, n any direction with <g, n> > 0 (g itself, or a natural one), and converges linearly when ℓ is the
minimum. If the target can be reached, ℓ = 0. If not, the minimum is unknown and ℓ is a guess below the best value b,

    ℓ = max(floor, b - δ),

with δ doubled as soon as the best value has fallen by δ/2, and halved after `patience` steps in which it has not
(Brännlund; Goffin and Kiwiel; Nedić and Bertsekas). So δ is also an estimate of what is left to gain.
A step is cut to `cap` in the largest entry of the parameters, because logits that run off do not come back.

Where values are estimates there is no telling what is best: steps fall to zero by themselves (:class:`Annealed`).

The step to a level by several cuts (:class:`Bundle`).
At every point z_i that was evaluated the distance has a linear model, a *cut*: d_i + <g_i, z - z_i>. Polyak's step is
the shortest one that brings the last cut down to the level ℓ. Where the distance has kinks, and it has them all along
the way to a stochastic expert, the next cut then points back, and the iterates zigzag. The shortest step that brings
the last few cuts down to the level *together* does not:

    min |u|   such that   cut_i(z) + <∂cut_i, u> ≤ ℓ   for the last few points i,

a least-distance problem of Lawson and Hanson, solved by non-negative least squares. (With as many cuts as parameters
such steps converge superlinearly at a sharp minimum: Charisopoulos and Davis 2022. Here few suffice, and old cuts of a
function that is not convex mislead.) A cut that lies above the distance at the current point contradicts it and is
mirrored below; if the cuts have no common point the oldest is left out, down to Polyak's own step.

|u| is measured in weights: for a policy ρ(s) π(a|s), which makes one cut the natural (mirror) step along A(s,·).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from diffbisim.errors import InvalidArgument
from diffbisim.optimize.checkpoint import stored

Array = NDArray[np.float64]

#: A value so many times the best means that a step left the region where the gradient says anything.
FAR = 3.0

TINY = 1e-300  # weights below this are zero


class StepRule(ABC):
    """How far to go. A rule that cannot tell good from bad never retreats, and is never exhausted."""

    improved: bool = False  # whether the last value was the best so far

    @property
    def level(self) -> float:
        """What the next step aims at."""
        return 0.0

    @abstractmethod
    def length(self, value: float, slope: float, size: float = 0.0) -> float:
        """The step length η ≥ 0 for a direction n with slope <g, n> and this size."""

    def retreats(self, value: float, length: float) -> bool:
        """Whether to go back to the best point instead; asked once after every length."""
        return False

    def exhausted(self, tolerance: float) -> bool:
        """Whether it expects to gain no more than this."""
        return False


@stored
@dataclass
class PolyakLevel(StepRule):
    """Polyak's length for a level that is learned.

    Attributes:
        attainable: whether the floor can be reached: True fixes the level there, False or None has it learned.
        cap: largest change of any parameter in one step; halved by every retreat, and back to `widest` with success.
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
    widest: float = 0.0

    def __post_init__(self) -> None:
        self.widest = self.widest or self.cap
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

    def retreats(self, value: float, length: float) -> bool:
        """Where a step went too far, the model is another: back, and shorter steps."""
        if length == 0.0 or value > FAR * self.best:
            self.cap /= 2
            return True
        if self.improved:
            self.cap = min(self.widest, 1.2 * self.cap)
        return False

    def exhausted(self, tolerance: float) -> bool:
        """Whether the level has come up to the best value."""
        return not self.attainable and self.delta <= tolerance


@stored
@dataclass
class Annealed(StepRule):
    """Steps of a length that falls to zero like a cosine, whatever the values are: for values that are estimates.

    Two models are never farther apart than π in the Fisher metric of their transitions (the angle between the roots of
    two distributions, twice), so ``total`` steps of together that length reach any of them.

    Attributes:
        total: number of steps.
        done: steps so far.
    """

    total: int
    done: int = 0

    def length(self, value: float, slope: float, size: float = 0.0) -> float:
        """The next η, for a direction of this size."""
        share = min(self.done / self.total, 1.0)
        self.done += 1
        return np.pi / self.total * (1.0 + np.cos(np.pi * share)) / size if size > 0.0 else 0.0


@stored
@dataclass(frozen=True, eq=False)
class Cut:
    """The linear model of the distance at one point."""

    value: float
    point: Array
    gradient: Array
    weights: Array  # of the coordinates, broadcast against the gradient


@stored
@dataclass
class Bundle:
    """The last few cuts, newest first."""

    cuts: list[Cut] = field(default_factory=list)

    def add(self, cut: Cut, size: int) -> None:
        """Keep ``size`` of them."""
        self.cuts = [cut, *self.cuts[: size - 1]]

    def step(self, level: float, pull: Callable[[Array], Array], spread: Array | float) -> Array:
        """The displacement, in the coordinates that are stepped in.

        ``pull`` turns a derivative with respect to the point into one with respect to these coordinates, here and
        now; ``spread`` are their present weights, apart from those of the cuts. Zero where the weights are.
        """
        here = self.cuts[0]
        heights = [cut.value + float(np.sum(cut.gradient * (here.point - cut.point))) for cut in self.cuts]
        excess = here.value - np.abs(here.value - np.array(heights)) - level
        weights = np.max([cut.weights for cut in self.cuts], axis=0) * spread + np.zeros_like(here.gradient)
        scale = np.where(weights > TINY, 1.0 / np.sqrt(np.maximum(weights, TINY)), 0.0)
        slopes = np.array([(pull(cut.gradient) * scale).ravel() for cut in self.cuts])
        for count in range(len(self.cuts), 0, -1):
            used = np.flatnonzero(excess[:count] > 0)
            u = least_distance(-slopes[used], excess[used]) if used.size else None
            if u is not None:
                return u.reshape(scale.shape) * scale
        return np.zeros_like(here.gradient)


def least_distance(G: Array, h: Array) -> Array | None:
    """The shortest u with ``G u >= h``, h > 0; None if there is none (Lawson and Hanson 1974, chapter 23)."""
    size, height = float(np.sqrt((G * G).sum(axis=1).max())), float(h.max())
    if not size > 0.0:
        return None
    system, last = np.vstack([G.T / size, h / height]), np.zeros(G.shape[1] + 1)
    last[-1] = 1.0
    try:
        y, _ = nnls(system, last)
    except RuntimeError:  # it cycles on some nearly dependent cuts: fewer will do
        return None
    residual = last - system @ y
    if residual[-1] <= 1e-10:
        return None
    return np.asarray(-residual[:-1] / residual[-1] * (height / size))
