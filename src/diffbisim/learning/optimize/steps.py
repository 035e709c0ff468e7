"""Step rules: how far to go along a direction when the objective is sharp at its minimum.

*Polyak's step with a learned level* (:class:`PolyakLevel`). Near an attainable minimum the distance d(θ) behaves like a
norm, not like a square: constant steps oscillate and decaying steps converge slowly. Polyak's step goes as far as the
linear model needs to reach a level ℓ,

    θ ← θ - η n,        η = (d(θ) - ℓ) / <g, n>,

with gradient g and any direction n such that <g, n> > 0 (g itself, or the natural direction). It converges linearly if
ℓ is the minimum. If distance zero is attainable, ℓ = 0. Otherwise the minimum is unknown, and ℓ is a guess below the
best value b,

    ℓ = max(floor, b - δ),

where δ is doubled as soon as the best value has decreased by δ/2 and halved (`shrink`) after `patience` steps without
such a decrease (Brännlund; Goffin and Kiwiel; Nedić and Bertsekas). So δ also estimates how much is left to gain. A
step changes no parameter by more than `cap`, because logits that have diverged do not recover.

*Annealed steps* (:class:`Annealed`). If values are estimates, the best one is unknown; step lengths then decrease to
zero on a fixed schedule.

*Bundle steps* (:class:`Bundle`). Every evaluated point z_i provides a linear model of the distance, a *cut*
d_i + <g_i, z - z_i>. Polyak's step is the shortest step that brings the latest cut down to the level ℓ. The distance
has kinks along the way to a stochastic expert; there the next cut points back and the iterates zigzag. The shortest
step that brings the last few cuts down to the level *together* avoids this:

    min |u|   such that   cut_i(z) + <∂cut_i, u> ≤ ℓ   for the last few points i.

This is a least-distance problem (Lawson and Hanson), solved by nonnegative least squares. With as many cuts as
parameters, such steps converge superlinearly to a sharp minimum (Charisopoulos and Davis 2022). A few cuts suffice
here, and old cuts of a nonconvex function are misleading. A cut that lies above the distance at the current point
contradicts it and is reflected below; if the constraints are infeasible, the oldest cut is dropped, down to Polyak's
own step.

The norm |u| is weighted; for a policy the weights are ρ(s) π(a|s), so that a single cut gives the natural (mirror) step
along A(s,·).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from diffbisim.common.errors import InvalidArgument
from diffbisim.learning.optimize.checkpoint import stored

Array = NDArray[np.float64]

#: A value above this multiple of the best means that the step left the region where the linear model holds.
MAX_RATIO_TO_BEST = 3.0

MIN_WEIGHT = 1e-300  # weights below this count as zero


class StepRule(ABC):
    """A rule for step lengths. By default a rule never retreats and is never exhausted."""

    improved: bool = False  # whether the last value was the best so far

    @property
    def level(self) -> float:
        """The value that the next step aims at."""
        return 0.0

    @abstractmethod
    def length(self, value: float, slope: float, size: float = 0.0) -> float:
        """Return the step length η ≥ 0 for a direction n with slope <g, n> and the given size."""

    def retreats(self, value: float, length: float) -> bool:
        """Return whether to go back to the best point instead; called once after every length."""
        return False

    def exhausted(self, tolerance: float) -> bool:
        """Return whether the rule expects to gain no more than `tolerance`."""
        return False


@stored
@dataclass
class PolyakLevel(StepRule):
    """Polyak's step length with a learned level.

    Attributes
    ----------
    attainable : bool or None
        Whether the floor can be reached. True fixes the level at the floor; False and None learn it.
    cap : float
        Largest change of any parameter in one step; halved by every retreat, and raised again, up to `widest`, by
        success.
    floor : float
        Lower bound of the objective.
    patience : int
        Number of steps without sufficient decrease after which the level is raised.
    best : float
        Lowest value so far.
    delta : float
        Distance of the level below the best value.
    improved : bool
        Whether the last value was the best so far.
    record : float
        Best value when `delta` last changed.
    waited : int
        Number of steps since then.
    widest : float
        Initial cap.
    shrink : float
        What `delta` is multiplied by when the level is raised.
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
    shrink: float = 0.5

    def __post_init__(self) -> None:
        self.widest = self.widest or self.cap
        if not self.cap > 0:
            raise InvalidArgument(f"cap is {self.cap!r}; it must be positive, e.g. cap=2.0")
        if self.patience < 1:
            raise InvalidArgument(f"patience is {self.patience!r}; it must be at least 1")
        if not 0 < self.shrink < 1:
            raise InvalidArgument(f"shrink is {self.shrink!r}; it must be between 0 and 1, e.g. shrink=0.5")

    @property
    def level(self) -> float:
        """The value that the next step aims at."""
        return self.floor if self.attainable else max(self.floor, self.best - self.delta)

    def length(self, value: float, slope: float, size: float = 0.0) -> float:
        """Return the step length η ≥ 0 at a point with this value; zero if the slope is zero.

        `slope` is <g, n> and `size` the largest absolute entry of n.
        """
        value, slope, size = float(value), float(slope), float(size)
        self.improved = value < self.best
        self.best = min(self.best, value)
        self._adapt(value)
        gain = max(value - self.level, 0.0)
        if not (slope > 0.0 and gain > 0.0):
            return 0.0
        limit = self.cap / size if size > 0.0 else float("inf")
        return gain / slope if gain < limit * slope else limit  # avoids overflow if the slope is tiny

    def _adapt(self, value: float) -> None:
        """Lower the level after sufficient decrease, and raise it after `patience` steps without."""
        if not np.isfinite(self.delta):
            self.record, self.delta = value, max(value - self.floor, 0.0)
        elif self.best <= self.record - self.delta / 2:
            self.record, self.delta, self.waited = self.best, 2 * self.delta, 0
        else:
            self.waited += 1
            if self.waited >= self.patience:
                self.record, self.delta, self.waited = self.best, self.delta * self.shrink, 0
        self.delta = min(self.delta, max(self.best - self.floor, 0.0))

    def retreats(self, value: float, length: float) -> bool:
        """Return to the best point, with shorter steps, if the last step went too far."""
        if length == 0.0 or value > MAX_RATIO_TO_BEST * self.best:
            self.cap /= 2
            return True
        if self.improved:
            self.cap = min(self.widest, 1.2 * self.cap)
        return False

    def exhausted(self, tolerance: float) -> bool:
        """Return whether the level is within `tolerance` of the best value."""
        return not self.attainable and self.delta <= tolerance


@stored
@dataclass
class Annealed(StepRule):
    """Step lengths that decrease to zero like a cosine, regardless of the values; for values that are estimates.

    Two models are at most π apart in the Fisher metric of their transitions (twice the angle between the square roots
    of two distributions), so `total` steps with that combined length can reach any model.

    Attributes
    ----------
    total : int
        Number of steps.
    done : int
        Number of steps so far.
    """

    total: int
    done: int = 0

    def length(self, value: float, slope: float, size: float = 0.0) -> float:
        """Return the next η for a direction of this size."""
        fraction = min(self.done / self.total, 1.0)
        self.done += 1
        return np.pi / self.total * (1.0 + np.cos(np.pi * fraction)) / size if size > 0.0 else 0.0


@stored
@dataclass(frozen=True, eq=False)
class Cut:
    """A linear model of the distance at one point."""

    value: float
    point: Array
    gradient: Array
    weights: Array  # of the coordinates; broadcasts with the gradient


@stored
@dataclass
class Bundle:
    """The last few cuts, newest first."""

    cuts: list[Cut] = field(default_factory=list)

    def add(self, cut: Cut, size: int) -> None:
        """Add a cut and keep the newest `size` cuts."""
        self.cuts = [cut, *self.cuts[: size - 1]]

    def step(self, level: float, pull: Callable[[Array], Array], spread: Array | float) -> Array:
        """Return the displacement u, in the coordinates of the step; zero where the weights are zero.

        `pull` turns a derivative with respect to the point into one with respect to these coordinates, at the current
        point; `spread` holds the current weights of the coordinates, which multiply those of the cuts.
        """
        here = self.cuts[0]
        heights = [cut.value + float(np.sum(cut.gradient * (here.point - cut.point))) for cut in self.cuts]
        excess = here.value - np.abs(here.value - np.array(heights)) - level
        weights = np.max([cut.weights for cut in self.cuts], axis=0) * spread + np.zeros_like(here.gradient)
        scale = np.where(weights > MIN_WEIGHT, 1.0 / np.sqrt(np.maximum(weights, MIN_WEIGHT)), 0.0)
        slopes = np.array([(pull(cut.gradient) * scale).ravel() for cut in self.cuts])
        for count in range(len(self.cuts), 0, -1):
            used = np.flatnonzero(excess[:count] > 0)
            u = least_distance(-slopes[used], excess[used]) if used.size else None
            if u is not None:
                return u.reshape(scale.shape) * scale
        return np.zeros_like(here.gradient)


def least_distance(G: Array, h: Array) -> Array | None:
    """Return the shortest u with G u ≥ h, where h > 0, or None if infeasible (Lawson and Hanson 1974, chapter 23)."""
    size, height = float(np.sqrt((G * G).sum(axis=1).max())), float(h.max())
    if not size > 0.0:
        return None
    system, last = np.vstack([G.T / size, h / height]), np.zeros(G.shape[1] + 1)
    last[-1] = 1.0
    try:
        y, _ = nnls(system, last)
    except RuntimeError:  # nnls can cycle if cuts are nearly dependent; the caller then tries fewer
        return None
    residual = last - system @ y
    if residual[-1] <= 1e-10:
        return None
    return np.asarray(-residual[:-1] / residual[-1] * (height / size))
