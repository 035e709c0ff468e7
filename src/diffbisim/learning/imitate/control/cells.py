"""Imitation on cells: a tabular model of a continuous environment, in which imitation works as in a known MDP.

    cells       k-means of the states visited by learner and expert (cells.py)
    kernels     P_a(·|cell): the model's step from the center, spread over the d+1 nearest cells
    expert      its chain, counted on cells of its own
    cost        |x - f(s)| between the features of both, in standard deviations
    imitation   `diffbisim.imitate` in that MDP: one policy per cell

*Accuracy of the cells.* A policy on cells cannot distinguish states within a cell, and every step spreads over several
cells. Before anything is solved, recorded walks are therefore repeated on the cells with the same actions, and compared
after ten steps:

    blur = median of (E |S - s|²)^½ / median distance covered,     S on the cells, s in the environment

Every step spreads a little, so if cells are wider than a step, longer steps spread less: an action may be held for 2 or
4 steps of the environment, which are then one step of the table (with γ² or γ⁴, and every second or fourth state of the
expert). The longest hold of 1, 2 or 4 whose blur is within a quarter of the least is used: blurs are estimated from few
walks, and a hold that is too short does more harm than one that is too long. If the least blur exceeds `MOST_BLUR`, the
table hardly knows where the learner is, and the call is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist

from diffbisim.common.checks import Floats
from diffbisim.common.errors import InvalidArgument
from diffbisim.learning.imitate.control.dynamics import ForwardModel
from diffbisim.learning.imitate.control.learning import ControlResult, ImitationInputs, RoundOptions, TrainedAgent
from diffbisim.learning.imitate.control.tracking import Interpolation, Nodes
from diffbisim.learning.imitate.control.walks import Walk
from diffbisim.processes.cells import Cells, quantize
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP

MOST_BLUR = 0.5
STEPS, WALKS = 10, 200  # length and number of the walks compared
HOLDS = (1, 2, 4)  # numbers of steps for which an action may be held
NEARLY = 1.25  # the longest hold with a blur below this multiple of the least is used

#: Largest number of cells of the expert.
EXPERT_CELLS = 40

#: Default number of cells of the learner; the cost of solving grows with the pairs of cells.
CELLS = 250

#: Largest cost, in standard deviations; also the cost if only one of the two has ended.
FARTHEST = 2.0

Solve = Callable[[MDP, MarkovChain, Floats, float], Any]  # MDP, expert, cost, discount


def on_cells(lesson: ImitationInputs, solve: Solve, watch: RoundOptions | None = None) -> ControlResult:
    """Imitate with ``policy="markov"``; ``solve(mdp, expert, cost, discount)`` imitates a chain in an MDP."""
    nodes = Nodes.of(lesson.shown, lesson.features)

    def make(seen: Walk) -> TrainedAgent:
        model, centers = lesson.model(seen), lesson.centers(seen, lesson.options.cells or CELLS)
        tables = [table(model, centers, seen, hold) for hold in HOLDS]
        blurs = [blur(seen, each, centers / model.scale, model.scale, k) for k, each in zip(HOLDS, tables, strict=True)]
        least, best = min(blurs), longest(blurs)
        hold, mdp = HOLDS[best], tables[best]
        if least > MOST_BLUR and len(seen) == lesson.options.batches()[0]:  # raising later would waste steps
            raise InvalidArgument(
                f'policy="markov": with {len(centers)} cells the position of the learner is uncertain by {least:.2f} '
                f'of the distance it covers in {STEPS} steps (the limit is {MOST_BLUR:g}); use policy="tracking", '
                "increase sampling.cells, or train a network on diffbisim.learning.imitate.sb3.BicausalReward"
            )
        expert, where = expert_chain(nodes, hold)
        found = solve(mdp, expert, gaps(where, nodes.seen(centers)), lesson.discount**hold)
        facts = {"model_error": model.error, "blur": blurs[best], "hold": hold, "distance": found.distance.value}
        return TrainedAgent(
            CellAgent(found.policy[:-1], centers / model.scale, model.scale, hold), {**facts, "table": found}
        )

    return lesson.learn(make, watch)


def longest(blurs: Sequence[float]) -> int:
    """Return the number of the last, longest hold whose blur is nearly the least."""
    return int(np.flatnonzero(np.array(blurs) <= NEARLY * min(blurs))[-1])


def blur(seen: Walk, mdp: MDP, centers: Floats, scale: Floats, hold: int = 1) -> float:
    """Return how badly the table predicts recorded walks (see the module docstring); centers (K, d) are scaled.

    If actions are held, only walks in which they happened to be repeated count; infinite if there are none.
    """
    lengths = np.diff(np.append(np.flatnonzero(seen.first), len(seen)))
    steps = max(hold, min(STEPS, int(np.median(lengths)) // 2) // hold * hold)
    broken = np.append(seen.first[1:], True)  # steps that end an episode
    sums = np.append(0, np.cumsum(broken))
    whole = np.flatnonzero(sums[steps - 1 : -1] == sums[: len(sums) - steps])
    taken = seen.actions[whole[:, None] + np.arange(steps)].reshape(len(whole), -1, hold)
    whole = whole[(taken == taken[..., :1]).all(axis=(1, 2))]
    if not len(whole):
        return float("inf")
    start = whole[np.linspace(0, len(whole) - 1, min(WALKS, len(whole))).astype(int)]
    where, weights = Interpolation(centers, centers.shape[1] + 1)(seen.states[start] / scale)
    law = np.zeros((len(start), mdp.n_states))
    np.put_along_axis(law, where, weights, axis=1)
    for t in range(0, steps, hold):
        taken = seen.actions[start + t]
        for a, P in enumerate(mdp.transition):
            law[taken == a] = law[taken == a] @ P
    end, moved = seen.following[start + steps - 1] / scale, seen.states[start] / scale
    square = ((centers[None] - end[:, None]) ** 2).sum(axis=2)
    alive = law[:, :-1]
    missed = np.sqrt((alive * square).sum(axis=1) / np.maximum(alive.sum(axis=1), 1e-12))
    return float(np.median(missed) / max(float(np.median(np.linalg.norm(end - moved, axis=1))), 1e-12))


def table(model: ForwardModel, centers: Floats, seen: Walk, hold: int = 1) -> MDP:
    """Return the MDP on the cells, with actions held for `hold` steps; its last state is the end of an episode."""
    K, n = len(centers), len(model.actions)
    grid = Interpolation(centers / model.scale, centers.shape[1] + 1)
    end = sp.csr_array(([1.0], ([0], [K])), shape=(1, K + 1))
    kernels = []
    for a in range(n):
        states, over = centers, np.zeros(K, dtype=bool)
        for _ in range(hold):
            states, ended = model.step(states, np.full(K, a))
            over = over | ended
        where, weights = grid(states / model.scale)
        weights = np.hstack([np.where(over[:, None], 0.0, weights), over[:, None]])
        columns = np.hstack([where, np.full((K, 1), K)])
        rows = np.repeat(np.arange(K), columns.shape[1])
        P = sp.csr_array((weights.ravel(), (rows, columns.ravel())), shape=(K, K + 1))
        P.sum_duplicates()
        P.eliminate_zeros()
        kernels.append(sp.vstack([P, end], format="csr"))
    where, weights = grid(seen.states[seen.first] / model.scale)
    return MDP(kernels, initial=np.bincount(where.ravel(), weights.ravel(), K + 1) / len(where))


def expert_chain(nodes: Nodes, hold: int = 1) -> tuple[MarkovChain, Floats]:
    """Return the chain of the demonstrations on their cells, with a last state for the end, and the centers (k, d)."""
    paths = nodes.paths()
    cells = quantize(paths, None, min(EXPERT_CELLS, len(nodes) // 2), scale=None)
    ended = [bool(nodes.ended[own[-1]]) for own in nodes.numbers()]
    return chain_on(cells, paths, ended, hold), np.array(cells.centers)


def chain_on(cells: Cells, paths: Sequence[Floats], ended: Sequence[bool], hold: int = 1) -> MarkovChain:
    """Count the chain of every `hold`-th state of paths on cells, with a last state for the end.

    A cell that was never left copies the nearest cell that was, because the last state of a path need not be absorbing.
    """
    k = cells.n_states
    codes = [cells.encode(path, outside="nearest") for path in paths]
    codes = [np.append(c[:-1], np.full(hold, k)) if over else c for c, over in zip(codes, ended, strict=True)]
    counts = np.zeros((k + 1, k + 1))
    np.add.at(counts, (np.concatenate([c[:-hold] for c in codes]), np.concatenate([c[hold:] for c in codes])), 1.0)
    left = counts[:-1].sum(axis=1) > 0
    like = np.flatnonzero(left)[cdist(cells.centers, cells.centers[left]).argmin(axis=1)]
    counts[:-1] = counts[like]
    counts[-1, -1] = 1.0
    start = np.bincount([code[0] for code in codes], minlength=k + 1) / len(codes)
    return MarkovChain(counts / counts.sum(axis=1, keepdims=True), initial=start)


def gaps(expert: Floats, learner: Floats) -> Floats:
    """Return the cost between cells from features (m, k) and (n, k) at their centers, with a last state for the end."""
    cost = np.full((len(expert) + 1, len(learner) + 1), FARTHEST)
    cost[:-1, :-1] = np.minimum(cdist(expert, learner), FARTHEST)
    cost[-1, -1] = 0.0
    return cost


class CellAgent:
    """A policy per cell, interpolated between the cells around a state; each action is held for `hold` steps."""

    def __init__(self, policy: Floats, centers: Floats, scale: Floats, hold: int = 1) -> None:
        self.policy, self.scale, self.hold, self.time, self.last = policy, scale, hold, 0, 0
        self.grid = Interpolation(centers, centers.shape[1] + 1)

    def reset(self, observation: Floats) -> None:
        self.time = 0

    def act(self, observation: Floats) -> int:
        if self.time % self.hold == 0:
            where, weights = self.grid(observation[None] / self.scale)
            self.last = int((weights[0] @ self.policy[where[0]]).argmax())
        self.time += 1
        return self.last
