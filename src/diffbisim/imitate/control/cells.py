"""Imitation on cells: a table of a continuous environment, in which imitation is as in a known MDP.

    cells       k-means of what learner and expert visited (quantize.py)
    kernels     P_a(·|cell): the model's step from the center, spread over the d+1 nearest cells
    expert      its chain, counted on the nearest states of its own cells
    cost        |x - f(s)| between the features of both, in standard deviations
    imitation   `diffbisim.imitate` in that MDP: a policy per cell

**What cells must be.** A policy on cells cannot tell states within one apart, and every step spreads over several. So
before anything is solved, walks that were made are made again on the cells, with the same actions, and compared after
ten steps:

    blur = median of (E |S - s|²)^½ / median distance that was covered,     S on the cells, s in the environment

Beyond `MOST_BLUR` the table knows little more of where the learner is than that it has moved, and the call is refused,
with the number. On Gymnasium's tasks with 150 cells: Pendulum 0.4, MountainCar 0.7, CartPole 0.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.errors import InvalidArgument
from diffbisim.imitate.control.dynamics import ForwardModel
from diffbisim.imitate.control.learning import ControlResult, Lesson, Made
from diffbisim.imitate.control.tracking import Interpolation, Nodes
from diffbisim.imitate.control.walks import Walk
from diffbisim.mdp import MDP
from diffbisim.quantize import quantize

MOST_BLUR = 0.6
STEPS, WALKS = 10, 200  # compared

#: Cells of the expert at most.
EXPERT_CELLS = 40

#: Cells of the learner, unless told: a table is solved against that of the expert, pair by pair.
CELLS = 150

#: What it costs at most to be elsewhere, in standard deviations; and always where one has ended and the other not.
FARTHEST = 2.0

Solve = Callable[[MDP, MarkovChain, Floats], Any]


def on_cells(lesson: Lesson, solve: Solve) -> ControlResult:
    """Imitation with ``policy="markov"``; ``solve`` imitates a chain in an MDP, with a cost."""
    nodes = Nodes.of(lesson.shown, lesson.features)

    def make(seen: Walk) -> Made:
        model, centers = lesson.model(seen), lesson.centers(seen, lesson.options.cells or CELLS)
        mdp = table(model, centers, seen)
        unsure = blur(seen, mdp, centers / model.scale, model.scale)
        if unsure > MOST_BLUR and len(seen) == lesson.options.batches()[0]:  # later on, steps would be lost
            raise InvalidArgument(
                f'policy="markov": on {len(centers)} cells the learner is known to {unsure:.2f} of the way it goes '
                f'in {STEPS} steps, sensible is {MOST_BLUR:g}; pass policy="tracking", more sampling.cells, or learn a '
                "deep policy on diffbisim.imitate.sb3.BicausalReward"
            )
        expert, where = expert_chain(nodes)
        cost = np.full((expert.n_states, mdp.n_states), FARTHEST)  # one has ended and the other not
        cost[:-1, :-1] = np.minimum(cdist(where, nodes.seen(centers)), FARTHEST)
        cost[-1, -1] = 0.0
        found = solve(mdp, expert, cost)
        facts = {"model_error": model.error, "blur": unsure, "distance": found.distance.value, "table": found}
        return Made(CellAgent(found.policy[:-1], centers / model.scale, model.scale), facts)

    return lesson.learn(make)


def blur(seen: Walk, mdp: MDP, centers: Floats, scale: Floats) -> float:
    """How badly the table foretells walks that were made (see the head); centers (K, d) are scaled."""
    lengths = np.diff(np.append(np.flatnonzero(seen.first), len(seen)))
    steps = min(STEPS, max(1, int(np.median(lengths)) // 2))
    broken = np.append(seen.first[1:], True)  # after which steps another episode begins
    sums = np.append(0, np.cumsum(broken))
    whole = np.flatnonzero(sums[steps - 1 : -1] == sums[: len(sums) - steps])
    start = whole[np.linspace(0, len(whole) - 1, min(WALKS, len(whole))).astype(int)]
    where, weights = Interpolation(centers, centers.shape[1] + 1)(seen.states[start] / scale)
    law = np.zeros((len(start), mdp.n_states))
    np.put_along_axis(law, where, weights, axis=1)
    for t in range(steps):
        taken = seen.actions[start + t]
        for a, P in enumerate(mdp.transition):
            law[taken == a] = law[taken == a] @ P
    end, moved = seen.following[start + steps - 1] / scale, seen.states[start] / scale
    square = ((centers[None] - end[:, None]) ** 2).sum(axis=2)
    alive = law[:, :-1]
    missed = np.sqrt((alive * square).sum(axis=1) / np.maximum(alive.sum(axis=1), 1e-12))
    return float(np.median(missed) / max(float(np.median(np.linalg.norm(end - moved, axis=1))), 1e-12))


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
    """The chain of the demonstrations on cells of what is seen, (k, d), and one state more, which has ended."""
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
    return chain, np.array(cells.centers)


class CellAgent:
    """A policy per cell, mixed over the cells around a state."""

    def __init__(self, policy: Floats, centers: Floats, scale: Floats) -> None:
        self.policy, self.scale = policy, scale
        self.grid = Interpolation(centers, centers.shape[1] + 1)

    def reset(self, observation: Floats) -> None:
        """Nothing is carried along."""

    def act(self, observation: Floats) -> int:
        where, weights = self.grid(observation[None] / self.scale)
        return int((weights[0] @ self.policy[where[0]]).argmax())
