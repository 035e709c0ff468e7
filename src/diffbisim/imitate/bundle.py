"""The step to a level by several cuts: Polyak's step with a short memory.

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

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]

TINY = 1e-300  # weights below this are zero


@dataclass(frozen=True, eq=False)
class Cut:
    """The linear model of the distance at one point."""

    value: float
    point: Array
    gradient: Array
    weights: Array  # of the coordinates, broadcast against the gradient


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
