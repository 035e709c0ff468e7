"""Imitation on cells: a table of a continuous environment, in which imitation is as in a known MDP.

    cells       k-means of what learner and expert visited (quantize.py)
    kernels     P_a(·|cell): the model's step from the center, spread over the d+1 nearest cells
    expert      its chain, counted on the nearest states of its own cells
    cost        |x - f(s)| between the features of both, in standard deviations
    imitation   `diffbisim.imitate` in that MDP: a policy per cell

**What cells must be.** A policy on cells cannot tell states within one apart. Where a cell is much wider than a step,
the chain stays in place most of the time, and all that imitation sees is by how much the cells blur. So the ratio

    median radius of a cell / median length of a step,     both in standard deviations

is measured after the first, random round; beyond `WIDEST` the call is refused, with numbers. In four dimensions no
table that can be solved is fine enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.errors import InvalidArgument
from diffbisim.imitate.control.dynamics import ForwardModel
from diffbisim.imitate.control.learning import ControlResult, Lesson, Made
from diffbisim.imitate.control.tracking import ENDED, Interpolation, Nodes
from diffbisim.imitate.control.walks import Walk
from diffbisim.mdp import MDP
from diffbisim.quantize import quantize

#: Cells may be this much wider than a step: MountainCar and Pendulum are below, CartPole above (docs/control.md).
WIDEST = 3.0

#: Cells of the expert at most.
EXPERT_CELLS = 40

#: A table of the learner is solved against that of the expert, pair by pair: these are as many as minutes allow.
MOST_CELLS = 150

Solve = Callable[[MDP, MarkovChain, Floats], Any]


def on_cells(lesson: Lesson, solve: Solve) -> ControlResult:
    """Imitation with ``policy="markov"``; ``solve`` imitates a chain in an MDP, with a cost."""
    nodes = Nodes.of(lesson.shown, lesson.features)

    def make(seen: Walk) -> Made:
        model, centers = lesson.model(seen), lesson.centers(seen, min(lesson.options.cells, MOST_CELLS))
        ratio = width(seen, centers, model.scale)
        if ratio > WIDEST:
            raise InvalidArgument(
                f'policy="markov": {len(centers)} cells are {ratio:.1f} times as wide as a step, more than {WIDEST:g}; '
                'pass policy="tracking", or learn a deep policy on diffbisim.imitate.sb3.BicausalReward'
            )
        expert, where = expert_chain(nodes)
        mdp = table(model, centers, seen)
        alive = np.append(np.zeros(len(centers), dtype=bool), True)
        spots = np.vstack([nodes.seen(centers), nodes.points.mean(axis=0)])
        gaps = np.sqrt(((where[:, None] - spots) ** 2).sum(axis=2))
        cost = np.where(alive, ENDED * 2.0, np.minimum(gaps, 2.0))
        last = np.append(np.zeros(expert.n_states - 1, dtype=bool), nodes.ended.any())
        cost[last] = np.where(alive, 0.0, ENDED * 2.0)
        found = solve(mdp, expert, cost)
        return Made(CellAgent(found.policy[:-1], centers / model.scale, model.scale, lesson.rng), {
            "model_error": model.error, "width": ratio, "distance": found.distance.value, "table": found,
        })  # fmt: skip

    return lesson.learn(make)


def width(seen: Walk, centers: Floats, scale: Floats) -> float:
    """How many steps a cell is wide."""
    from scipy.spatial import cKDTree

    radius = np.median(cKDTree(centers / scale).query(seen.states / scale)[0])
    return float(radius / np.median(np.linalg.norm((seen.following - seen.states) / scale, axis=1)))


def table(model: ForwardModel, centers: Floats, seen: Walk) -> MDP:
    """The MDP on the cells, and one state more, the last, in which everything has ended."""
    K, n = len(centers), len(model.actions)
    grid = Interpolation(centers / model.scale, centers.shape[1] + 1)
    end = sp.csr_array(([1.0], ([0], [K])), shape=(1, K + 1))
    kernels = []
    for a in range(n):
        step = model.step(centers, np.full(K, a))
        where, weights = grid(step.states / model.scale)
        weights = np.hstack([np.where(step.ended[:, None], 0.0, weights), step.ended[:, None]])
        columns = np.hstack([where, np.full((K, 1), K)])
        rows = np.repeat(np.arange(K), columns.shape[1])
        P = sp.csr_array((weights.ravel(), (rows, columns.ravel())), shape=(K, K + 1))
        P.sum_duplicates()
        P.eliminate_zeros()
        kernels.append(sp.vstack([P, end], format="csr"))
    where, weights = grid(seen.states[seen.first] / model.scale)
    return MDP(kernels, initial=np.bincount(where.ravel(), weights.ravel(), K + 1) / len(where))


def expert_chain(nodes: Nodes) -> tuple[MarkovChain, Floats]:
    """The chain of the demonstrations on cells of what is seen, and where its states are; the last has ended."""
    lengths = np.bincount(nodes.path)
    paths = np.split(nodes.points, np.cumsum(lengths)[:-1])
    cells = quantize(paths, None, min(EXPERT_CELLS, len(nodes.points) // 2), scale=None)
    code, k = cells.encode(nodes.points), cells.n_states
    code[nodes.ended] = k
    moves = nodes.after != np.arange(len(nodes))  # the last of a path is not known to stay, unless it has ended
    counts = sp.csr_array(
        (np.ones(moves.sum()), (code[moves], code[nodes.after[moves]])), shape=(k + 1, k + 1)
    ).toarray()
    still = counts.sum(axis=1) == 0
    counts[still, still] = 1.0
    first = np.append(0, np.cumsum(lengths)[:-1])
    start = np.bincount(code[first], minlength=k + 1) / len(first)
    chain = MarkovChain(counts / counts.sum(axis=1, keepdims=True), initial=start)
    return chain, np.vstack([cells.centers, nodes.points.mean(axis=0)])


class CellAgent:
    """A policy per cell, mixed over the cells around a state."""

    def __init__(self, policy: Floats, centers: Floats, scale: Floats, rng: np.random.Generator) -> None:
        self.policy, self.scale, self.rng = policy, scale, rng
        self.grid = Interpolation(centers, centers.shape[1] + 1)

    def reset(self, observation: Floats) -> None:
        """Nothing is carried along."""

    def act(self, observation: Floats) -> int:
        where, weights = self.grid(observation[None] / self.scale)
        return int((weights[0] @ self.policy[where[0]]).argmax())
