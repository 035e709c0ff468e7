"""Segment matching: the reward is minus the distance of the last ten steps to the nearest ten steps of the expert.

    r = -min_t (1/L Σ_i |s_{T-i} - x_{t-i}|²)^½,        L = 10;  with L = 1, the nearest state

Before the start of a path its first state is repeated. Whether an episode has ended is a coordinate of its states. A
learner that terminates pays for the remaining time, r / (1 - γ), so that ending does not avoid costs.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from diffbisim.common.checks import Floats
from diffbisim.learning.imitate.control.rewards import NOTHING
from diffbisim.learning.imitate.control.tracking import ENDED, Nodes


class Segments:
    """The distance to the nearest segment of a demonstration."""

    extra = 0

    def __init__(self, nodes: Nodes, discount: float, length: int = 10) -> None:
        from scipy.spatial import cKDTree

        self.discount, self.length = discount, length
        self.tree = cKDTree(np.concatenate([self._segments(path) for path in flagged(nodes)]))
        self.recent = np.zeros((length, nodes.points.shape[1] + 1))

    def reset(self, seen: Floats) -> Floats:
        self.recent[:] = np.append(seen, 0.0)
        return NOTHING

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        self.recent = np.vstack([self.recent[1:], np.append(seen, ENDED * ended)])
        own = -float(self.tree.query(self.recent.ravel())[0]) / np.sqrt(self.length)
        return own / (1.0 - self.discount) if ended else own, NOTHING

    def _segments(self, path: Floats) -> Floats:
        """Return the last `length` states at every time, (T, length (k + 1))."""
        whole = np.vstack([np.repeat(path[:1], self.length - 1, axis=0), path])
        return sliding_window_view(whole, self.length, axis=0).transpose(0, 2, 1).reshape(len(path), -1)


def flagged(nodes: Nodes) -> list[Floats]:
    """Return the demonstrations (T, k + 1), with a last coordinate for whether they have ended."""
    return [np.hstack([nodes.points[own], ENDED * nodes.ended[own, None]]) for own in nodes.numbers()]
