"""The Sinkhorn trajectory reward (Dadashi et al. 2021; Cohen et al. 2022): steps pay their transport cost.

An episode s_1 … s_T and the demonstration with the nearest start are point clouds with uniform weights. With the
entropic plan π between them (Sinkhorn scaling, the distance as cost c, regularization ε times its mean)

    r_t = -T Σ_j π_tj c(s_t, x_j).

The rewards are therefore known only when the episode is over, or when the learner updates: `settle`. Time plays no role
in π. Paths that terminated stay in place, up to the length of the longest demonstration; the cost of this is paid at
the end.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from diffbisim.common.checks import Floats
from diffbisim.learning.imitate.baselines.segments import flagged
from diffbisim.learning.imitate.control.rewards import NOTHING
from diffbisim.learning.imitate.control.tracking import ENDED, Nodes

BLUR, ROUNDS = 0.05, 50


class Sinkhorn:
    """Pays nothing during a step; ``settle`` returns the rewards of all steps since its last call."""

    extra = 0

    def __init__(self, nodes: Nodes, discount: float) -> None:
        self.discount = discount
        paths = flagged(nodes)
        self.longest = max(map(len, paths))
        self.shown = [_stayed(path, self.longest) if path[-1, -1] else path for path in paths]
        self.open: list[list[Floats]] = []
        self.paid = 0  # number of steps of the first open path already paid

    def reset(self, seen: Floats) -> Floats:
        self.open.append([np.append(seen, 0.0)])
        return NOTHING

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        self.open[-1].append(np.append(seen, ENDED * ended))
        return 0.0, NOTHING

    def settle(self) -> Floats:
        """Return the rewards of all steps since the last call."""
        rewards = [self.rewards(np.stack(path)) if len(path) > 1 else np.zeros(0) for path in self.open]
        found = np.concatenate(rewards)[self.paid :]
        self.open, self.paid = self.open[-1:], len(rewards[-1])
        return found

    def rewards(self, path: Floats) -> Floats:
        """Return the reward (T,) of every step of a path (T + 1, k + 1)."""
        shown = self.shown[int(np.argmin([np.linalg.norm(other[0] - path[0]) for other in self.shown]))]
        T, over = len(path) - 1, path[-1, -1] > 0
        own = _stayed(path[1:], self.longest) if over else path[1:]
        C = cdist(own, shown)
        each = -len(own) * (plan(C) * C).sum(axis=1)
        each[T - 1] = each[T - 1 :] @ self.discount ** np.arange(len(own) - T + 1)
        return np.asarray(each[:T])


def plan(C: Floats, blur: float = BLUR, rounds: int = ROUNDS) -> Floats:
    """Return the entropic plan between uniform weights for a cost C (T, N), with exact columns and approximate rows."""
    K = np.exp(-(C - C.min(axis=1, keepdims=True)) / max(blur * float(C.mean()), 1e-12))
    K += 1e-30
    v = np.ones(C.shape[1])
    for _ in range(rounds):
        u = 1.0 / (len(C) * (K @ v))
        v = 1.0 / (C.shape[1] * (u @ K))
    return np.asarray(u[:, None] * K * v)


def _stayed(path: Floats, length: int) -> Floats:
    return np.vstack([path, np.repeat(path[-1:], max(length - len(path), 0), axis=0)])
