"""Rewards for reinforcement learning from the coupling with an expert.

An `EpisodeReward` observes an episode through its features f(s), in standard deviations, and pays for every step. There
are two forms of the coupling.

`TrackingReward`. Under a given policy the coupling of tracking.py costs Σ γ^t c(x_t, s_t), where x_t is the
demonstration node that the learner carries. Its negative is the return of an environment with state (s, x):

    observation     s, the expert's features at the next node, and how far along its path that node is
    reward          -c(x', s') at every step, with distances of at most `FARTHEST` standard deviations

The bound is that of the coupling below. An expert that balances hardly moves, so a learner that is about to fall is
hundreds of its standard deviations away, and without a bound falling would cost little more than being about to fall.

`CouplingReward`. Expert and learner are chains on shared cells, estimated from what was observed. Every thousand steps
their distance is solved again, and its implicit reward r(y, y') (gradient.py) is paid for transitions between cells
until the next time. It is the advantage of a transition at the previous policy, so its discounted sum is the gain of
the next policy. Rows that were never left copy the nearest row that was, so that the end of a truncated demonstration
is not absorbing.

*Ending an episode must not avoid costs.* When the learner terminates at s', the coupling continues: the expert moves
on and is compared with s' forever. Tracking charges all of this at once, r = -Σ_h γ^h c(x'_h, s'), which is zero if the
expert ends there at the same time. r(y, y') already contains it, because the end is a state of the chains. (Learners do
not bootstrap after a termination; after a truncation they do, and nothing is charged.)
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.learning.imitate.control.cells import FARTHEST, chain_on, gaps
from diffbisim.learning.imitate.control.tracking import ENDED, Nodes, shifted
from diffbisim.processes.cells import Cells, quantize

#: Number of steps after which the coupling is solved again.
EVERY = 1_000

#: Number of cells shared by expert and learner.
CELLS = 80

NOTHING = np.zeros(0)


class EpisodeReward(Protocol):
    """Pays for the steps of an episode; `seen` (k,) are the features of a state, scaled like the nodes."""

    extra: int  # how many numbers are appended to the observation

    def reset(self, seen: Floats) -> Floats:
        """Start an episode and return what is appended to the observation."""
        ...

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        """Return the reward for reaching a state, and what is appended to its observation."""
        ...


class TrackingReward:
    """The cost of the coupling with a demonstration, whose node the learner carries."""

    def __init__(self, nodes: Nodes, discount: float, shift: int = 0) -> None:
        self.nodes, self.discount, self.shift, self.node = nodes, discount, shift, 0
        self.extra = nodes.points.shape[1] + 1
        self.first = np.append(0, np.flatnonzero(np.diff(nodes.path)) + 1)

    def reset(self, seen: Floats) -> Floats:
        self.node = int(self.first[self.nodes.cost(self.first, seen[None], False).argmin()])
        return self._ahead()

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        clock = int(self.nodes.after[self.node])
        near = self.nodes.near(clock, self.shift)
        costs = self.nodes.cost(near, seen[None], ended)
        self.node = int(near[shifted(costs, near - clock).argmin()])
        if ended:
            return -ending(self.nodes, self.node, seen, self.discount), self._ahead()
        return -float(bounded(self.nodes, self.node, seen, False)), self._ahead()

    def _ahead(self) -> Floats:
        following = int(self.nodes.after[self.node])
        own = np.flatnonzero(self.nodes.path == self.nodes.path[following])
        return np.append(self.nodes.points[following], (following - own[0]) / len(own))


def bounded(nodes: Nodes, which: Any, seen: Floats, ended: bool) -> Floats:
    """Return c(x, s) with a bounded distance, for one or several nodes and the features `seen` (k,) of a state."""
    return np.asarray(np.minimum(nodes.gap(which, seen), FARTHEST) + ENDED * (nodes.ended[which] != ended))


def ending(nodes: Nodes, node: int, seen: Floats, discount: float) -> float:
    """Return Σ_h γ^h c(x_h, s), from a node on, for a learner that has ended with features `seen` (k,)."""
    last = int(np.flatnonzero(nodes.path == nodes.path[node])[-1])
    ahead = np.arange(node, last + 1)
    weights = discount ** np.arange(len(ahead))
    weights[-1] /= 1.0 - discount
    return float(bounded(nodes, ahead, seen, True) @ weights)


class Episodes:
    """The episodes since the last call of `taken`: paths (T, k), and whether they terminated."""

    def __init__(self) -> None:
        self.paths: list[list[Floats]] = []
        self.ended: list[bool] = []

    def begin(self, seen: Floats) -> None:
        """Start an episode."""
        self.paths.append([seen])
        self.ended.append(False)

    def add(self, seen: Floats, ended: bool) -> None:
        """Add a step to the current episode."""
        self.paths[-1].append(seen)
        self.ended[-1] = ended

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(map(len, self.paths)) - len(self.paths)

    def taken(self) -> tuple[list[Floats], list[bool]]:
        """Return and forget the episodes with at least one step."""
        kept = [k for k, path in enumerate(self.paths) if len(path) > 1]
        found = [np.stack(self.paths[k]) for k in kept], [self.ended[k] for k in kept]
        self.paths, self.ended = [], []
        return found


class CouplingReward:
    """The implicit reward of the coupling between the chains of expert and learner, with unit root mean square."""

    extra = 0

    def __init__(self, nodes: Nodes, discount: float, every: int = EVERY, n_cells: int = CELLS) -> None:
        self.nodes, self.discount, self.every, self.n_cells = nodes, discount, every, n_cells
        self.seen, self.cell, self.value = Episodes(), 0, float("nan")
        self.cells: Cells | None = None
        self.table = np.zeros((1, 1))

    def reset(self, seen: Floats) -> Floats:
        if self.seen.steps >= self.every:
            self.solve(*self.seen.taken())
        self.seen.begin(seen)
        self.cell = self._cell(seen, False)
        return NOTHING

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        self.seen.add(seen, ended)
        before, self.cell = self.cell, self._cell(seen, ended)
        return float(self.table[before, self.cell]), NOTHING

    def solve(self, paths: list[Floats], ended: list[bool]) -> None:
        """Recompute cells, chains and reward from the learner's episodes."""
        shown = self.nodes.paths()
        self.cells = quantize(shown, paths, self.n_cells, scale=None)
        expert = chain_on(self.cells, shown, [bool(self.nodes.ended[own[-1]]) for own in self.nodes.numbers()])
        learner = chain_on(self.cells, paths, ended)
        found = distance(expert, learner, gaps(self.cells.centers, self.cells.centers), self.discount, tol=1e-3)
        table = found.implicit_reward()
        flow = learner.occupancy(self.discount)[:, None] * np.asarray(learner.transition)
        self.value = found.value
        self.table = table / max(float(np.sqrt((flow * table**2).sum())), 1e-9)

    def _cell(self, seen: Floats, ended: bool) -> int:
        if self.cells is None:
            return 0
        return self.cells.n_states if ended else int(self.cells.encode(seen[None], outside="nearest")[0])
