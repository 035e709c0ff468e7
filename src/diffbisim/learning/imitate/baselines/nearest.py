"""Ablations of tracking: the same model and planner, with a cost that ignores time.

`nearest` uses the distance to the nearest state of the expert, min_x c(x, s); if it does as well as tracking, the model
explains the result. `constant` uses a cost of one per step, or of having ended, and nothing of the expert except
whether its demonstrations end; if it does as well, the end of the episode explains the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.learning.imitate.control.learning import ControlResult, ImitationInputs, planned
from diffbisim.learning.imitate.control.tracking import ENDED, Nodes


@dataclass(frozen=True, eq=False)
class NearestNode(Nodes):
    """A single node that stays, with the cost of the cheapest of all nodes."""

    @cached_property
    def _trees(self) -> dict[bool, Any]:
        from scipy.spatial import cKDTree

        return {end: cKDTree(self.points[self.ended == end]) for end in (False, True) if (self.ended == end).any()}

    def cost(self, nodes: Any, seen: Floats, ended: Any) -> Floats:
        shape = np.broadcast_shapes(np.shape(nodes), seen.shape[:-1])
        gaps = {end: tree.query(seen)[0] for end, tree in self._trees.items()}
        best = np.min([gap + ENDED * (ended != end) for end, gap in gaps.items()], axis=0)
        return np.broadcast_to(best, shape)


class Survival(NearestNode):
    """Costs one until the end if the expert's episodes end, else one after it."""

    def cost(self, nodes: Any, seen: Floats, ended: Any) -> Floats:
        shape = np.broadcast_shapes(np.shape(nodes), seen.shape[:-1])
        return np.broadcast_to(np.where(ended, 0.0, 1.0) if self.ended.any() else np.where(ended, 1.0, 0.0), shape)


def nearest(lesson: ImitationInputs) -> ControlResult:
    """Plan to stay near states of the expert, in a learned model."""
    return _without_time(lesson, NearestNode)


def constant(lesson: ImitationInputs) -> ControlResult:
    """Plan to reach the end of the episode, or to avoid it, in a learned model."""
    return _without_time(lesson, Survival)


def _without_time(lesson: ImitationInputs, kind: type[Nodes]) -> ControlResult:
    nodes = Nodes.of(lesson.shown, lesson.features)
    one = np.zeros(1, dtype=np.int64)
    still = kind(nodes.points, one, one, nodes.ended, nodes.scale, nodes.features)
    return lesson.learn(lambda seen: planned(lesson, still, seen))
