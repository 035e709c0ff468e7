"""Tracking: imitation of the expert's own paths by an agent that keeps track of its position on them.

A node x is one state of one demonstration; its successor is the next state, and the last node stays. The coupling of
that chain with the learner has the value

    V(x, s) = c(x, s) + γ min_a E V(x', s'),        c(x, s) = |x - f(s)| + 1{exactly one of the two has ended}

where f(s) are the compared features of a state (a position only, for example) in standard deviations. The learner knows
its own state s and its node x, so the observed features of the expert need not be Markov: time is part of the node.

*Shifting the node.* A learner that is late or early would always be compared with the wrong node. After every step the
node may therefore shift: among the nodes up to `shift` before and after x', the one with the least V(·, s') is chosen.

*Coupling the starts.* Every demonstration is followed from about the same share of the learner's starts. Otherwise, if
one of five demonstrations were slow and easiest to follow, the learner would always be slow. Demonstrations therefore
have prices φ, the potentials of the transport between starts and demonstrations, and an episode begins at the node with
the least V - φ. The shares need not be equal: a demonstration that cannot be followed from any start, because the
learner's engine is weaker, should not be followed from a fifth of them. Unequal shares cost ρ KL(shares | equal), with
ρ = 0.2 / (1 - γ): a fifth of a standard deviation at every step.

There are two ways to compute V, both in the learned model (dynamics.py):

    TableTracker    dynamic programming backward along each path, on cells of the learner's states: 2-3 dimensions
    PlanTracker     model-predictive control with random action sequences, refined by the cross-entropy method, over
                    `horizon` steps: 4 and more dimensions. Experimental: costs beyond the horizon are estimated

*Plans beyond the horizon.* Let H be the horizon and ℓ(x) the discounted number of steps until the demonstration of x
ends, 1/(1-γ) if it was truncated. Then

    V(x, s) ≈ Σ_{t<H} γ^t c_t + γ^H ℓ(x_H) c̄

where c̄ is the mean of c_t over the horizon, or the last c_t if the learner has ended by then. A learner that ends early
therefore pays for the rest of the demonstration. Once both have ended, the cost is zero.

*Finding the way back.* A planner that has lost its path may not return to it within the horizon. If its last plan
would cost less than 60 % of V at any other node of any demonstration, it continues from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Integers
from diffbisim.learning.imitate.control.dynamics import ForwardModel
from diffbisim.learning.imitate.control.walks import Demonstrations, Features
from diffbisim.processes.stochastic import as_generator

#: Penalty of a shift by one step, relative to the value and in standard deviations. Without it the learner would wait,
#: because at an earlier node all future costs are discounted by another factor γ.
TOLL = 0.05

#: Cost if exactly one of the two has ended, in standard deviations of the features.
ENDED = 1.0

#: Numbers of steps for which an action is simulated before the table is used. One step changes less than a cell: with
#: a single step the table of MountainCar cannot distinguish the actions.
LOOKS = (1, 2, 4, 8)

#: Price of unequal shares of the demonstrations, in standard deviations per step.
EQUALITY = 0.2

#: Maximum number of sweeps for the last node of a path, which stays.
SWEEPS = 300

#: Action sequences per round of planning, number of rounds, and number of best sequences that define the next round.
SEQUENCES, ROUNDS, ELITE = 64, 2, 8

#: A planner leaves its path if its value elsewhere is below this fraction.
LOST = 0.6


@dataclass(frozen=True, eq=False)
class Nodes:
    """All states of all demonstrations, one after the other."""

    points: Floats  # (N, k) scaled
    after: Integers  # (N,) the next node; the last of a path is followed by itself
    path: Integers  # (N,) the number of the demonstration
    ended: Any  # (N,) bool: terminal
    scale: Floats  # (k,)
    features: Features

    @classmethod
    def of(cls, shown: Demonstrations, features: Features) -> Nodes:
        """Build the nodes of demonstrations, scaled by their standard deviations."""
        lengths = [len(path) for path in shown.paths]
        points, last = shown.points, np.cumsum(lengths) - 1
        after, ended = np.arange(1, len(points) + 1), np.zeros(len(points), dtype=bool)
        after[last], ended[last] = last, shown.ended
        scale = np.where(points.std(axis=0) > 1e-8, points.std(axis=0), 1.0)
        return cls(points / scale, after, np.repeat(np.arange(len(lengths)), lengths), ended, scale, features)

    def __len__(self) -> int:
        return len(self.after)

    def numbers(self) -> list[Integers]:
        """Return the node numbers of each demonstration."""
        return [np.flatnonzero(self.path == k) for k in range(self.path[-1] + 1)]

    def paths(self) -> list[Floats]:
        """Return the scaled demonstrations, each of shape (T, k)."""
        return [self.points[own] for own in self.numbers()]

    def seen(self, states: Floats) -> Floats:
        """Return the scaled features (…, k) of states (…, d)."""
        flat = self.features(states.reshape(-1, states.shape[-1])) / self.scale
        return flat.reshape(*states.shape[:-1], -1)

    def cost(self, nodes: Any, seen: Floats, ended: Any) -> Floats:
        """Return c(x, s) for nodes and states that broadcast with each other."""
        return np.asarray(self.gap(nodes, seen) + ENDED * (self.ended[nodes] != ended))

    def gap(self, nodes: Any, seen: Floats) -> Floats:
        """Return the distance |x - f(s)| of nodes and states that broadcast with each other."""
        return np.asarray(np.sqrt(((self.points[nodes] - seen) ** 2).sum(axis=-1)))

    def near(self, node: int, shift: int) -> Integers:
        """Return the nodes of the same path that are at most `shift` steps away."""
        window = np.arange(max(node - shift, 0), min(node + shift + 1, len(self)))
        return np.asarray(window[self.path[window] == self.path[node]])

    def ahead(self, nodes: Integers, horizon: int) -> Integers:
        """Return the following nodes, (m, horizon), starting with the next one."""
        rows = [nodes]
        for _ in range(horizon):
            rows.append(self.after[rows[-1]])
        return np.stack(rows[1:], axis=1)

    def left(self, discount: float) -> Floats:
        """Return the discounted number of steps (N,) until the demonstration ends."""
        steps = np.full(len(self), np.inf)
        for own in self.numbers():
            if self.ended[own[-1]]:
                steps[own] = own[-1] - own
        return np.asarray((1.0 - discount**steps) / (1.0 - discount))


def shifted(values: Floats, by: Integers) -> Floats:
    """Add the penalty for shifting by `by` steps to values (…, m) of nodes."""
    return np.asarray(values + TOLL * np.abs(by) * (1.0 + values))


class TableTracker:
    """V as a table of nodes and cells, from one backward sweep along each path."""

    def __init__(
        self, nodes: Nodes, model: ForwardModel, centers: Floats, discount: float, shift: int = 3, starts: Any = None
    ) -> None:
        """Solve for V; `starts` (m, d) are observed initial states."""
        self.nodes, self.model, self.discount, self.shift = nodes, model, discount, shift
        self.cells = Interpolation(centers / model.scale)
        self.table = self._solve(centers)
        self.node: int | None = None
        self.prices = np.zeros(len(nodes))
        if starts is not None:
            first = [np.array([self._everywhere(s)[own].min() for own in nodes.numbers()]) for s in starts]
            self.prices = prices(np.stack(first), EQUALITY / (1.0 - discount))[nodes.path]

    def _solve(self, centers: Floats) -> Floats:
        """Return V of shape (N, K); row a K + k of P (n_actions K, K) spreads the step of cell k under action a."""
        γ, N, K, n = self.discount, len(self.nodes), len(centers), len(self.model.actions)
        step = self.model.step(np.tile(centers, (n, 1)), np.repeat(np.arange(n), K))
        where, weights = self.cells(step.states / self.model.scale)
        rows = np.repeat(np.arange(n * K), where.shape[1])
        P = sp.csr_array((weights.ravel(), (rows, where.ravel())), shape=(n * K, K))
        seen, final = self.nodes.seen(centers), self.nodes.seen(step.states)
        V, stay = np.zeros((N, K)), np.zeros(n * K)  # stay: cost, from x' on, of having ended where the step leads

        def sweep(x: int, following: Floats) -> Floats:
            future = np.where(step.ended, stay, np.asarray(P @ following))
            return np.asarray(self.nodes.cost([x], seen, False) + γ * future.reshape(n, K).min(axis=0))

        for x in range(N - 1, -1, -1):
            own = self.nodes.cost([x], final, True)
            if self.nodes.after[x] == x:
                stay, V[x] = own / (1 - γ), self.nodes.cost([x], seen, False) / (1 - γ)
                for _ in range(SWEEPS):
                    V[x], old = sweep(x, V[x]), V[x].copy()
                    if np.abs(V[x] - old).max() < 1e-3:
                        break
            else:
                V[x] = sweep(x, V[x + 1])
                stay = own + γ * stay
        return V

    def reset(self, observation: Floats) -> None:
        self.node = None

    def act(self, observation: Floats) -> int:
        following = int(self.nodes.after[self._match(observation)])
        self.node = following
        return int(self._values(following, observation).argmin())

    def _values(self, x: int, observation: Floats) -> Floats:
        """Return the cost (n,) of each action from node x on, held for the best number of `LOOKS` steps."""
        n, weight = len(self.model.actions), 1.0
        best = np.full(n, np.inf)
        states, over, values = np.repeat(observation[None], n, axis=0), np.zeros(n, dtype=bool), np.zeros(n)
        for t in range(1, LOOKS[-1] + 1):
            states, ended = self.model.step(states, np.arange(n))
            if (ended & ~over).any():
                values += np.where(ended & ~over, weight * self._stay(x, states), 0.0)
            over = over | ended
            if t in LOOKS:
                where, weights = self.cells(states / self.model.scale)
                left = weight * (self.table[x][where] * weights).sum(axis=1)
                best = np.minimum(best, values + np.where(over, 0.0, left))
            values += np.where(over, 0.0, weight * self.nodes.cost([x], self.nodes.seen(states), False))
            x, weight = int(self.nodes.after[x]), weight * self.discount
        return best

    def _match(self, observation: Floats) -> int:
        """Return the node to continue from: near the current one, or any node at the start."""
        everywhere = self._everywhere(observation)
        if self.node is None:
            return int((everywhere - self.prices).argmin())
        near = self.nodes.near(self.node, self.shift)
        return int(near[shifted(everywhere[near], near - self.node).argmin()])

    def _everywhere(self, observation: Floats) -> Floats:
        """Return V of a state at all nodes."""
        where, weights = self.cells(observation[None] / self.model.scale)
        return np.asarray(self.table[:, where[0]] @ weights[0])

    def _stay(self, node: int, states: Floats) -> Floats:
        """Return the cost, from a node on, of having ended in states (m, d)."""
        horizon = int(np.ceil(np.log(1e-3) / np.log(self.discount)))
        nodes = np.append(node, self.nodes.ahead(np.array([node]), horizon)[0])
        weights = self.discount ** np.arange(len(nodes))
        return np.asarray(self.nodes.cost(nodes[None], self.nodes.seen(states)[:, None], True) @ weights)


def prices(costs: Floats, ρ: float = np.inf) -> Floats:
    """Return prices (n,) at which each demonstration is the cheapest for about the same share of starts; costs (m, n).

    These are the potentials of the transport between starts and demonstrations, from Sinkhorn scaling. Unequal shares
    cost ρ KL(shares | 1/n), as in unbalanced transport; shares are equal for an infinite ρ.
    """
    n = costs.shape[1]
    φ, blur = np.zeros(n), max(0.05 * float(costs.std()), 1e-9)
    for _ in range(500):
        wanted = np.exp((φ - costs - (φ - costs).max(axis=1, keepdims=True)) / blur)
        share = (wanted / wanted.sum(axis=1, keepdims=True)).mean(axis=0)
        φ = (φ - blur * np.log(np.maximum(n * share, 1e-12))) / (1.0 + blur / ρ)
    return φ


class Interpolation:
    """Interpolation between the nearest centers, with weights that reproduce the point.

    w = argmin |p - Σ w_i c_i|² + 0.01 Σ w_i² |p - c_i|² with Σ w = 1, over the `count` nearest centers (2d + 2 by
    default); negative weights are set to zero.
    """

    def __init__(self, centers: Floats, count: int | None = None) -> None:
        from scipy.spatial import cKDTree

        self.centers, self.tree = centers, cKDTree(centers)
        self.count = min(count or 2 * centers.shape[1] + 2, len(centers))

    def __call__(self, points: Floats) -> tuple[Integers, Floats]:
        """Return the numbers of the centers and their weights, both of shape (m, count)."""
        where = np.asarray(self.tree.query(points, k=self.count)[1], dtype=np.int64).reshape(len(points), self.count)
        gaps = self.centers[where] - points[:, None]
        gram = gaps @ gaps.transpose(0, 2, 1)
        square = np.einsum("mii->mi", gram)
        square *= 1.01
        square += 1e-6 * square.mean(axis=1, keepdims=True) + 1e-12
        w = np.maximum(np.linalg.solve(gram, np.ones((len(points), self.count, 1)))[..., 0], 0.0)
        return where, w / w.sum(axis=1, keepdims=True)


class PlanTracker:
    """V by model-predictive control: the best of several action sequences over the next `horizon` steps."""

    def __init__(
        self, nodes: Nodes, model: ForwardModel, horizon: int, discount: float, shift: int = 3, rng: Any = 0
    ) -> None:
        self.nodes, self.model, self.horizon, self.shift = nodes, model, horizon, shift
        self.weights = discount ** np.arange(horizon)
        self.ahead = nodes.ahead(np.arange(len(nodes)), horizon)
        self.left = discount**horizon * nodes.left(discount)[self.ahead[:, -1]]
        self.rng, self.n = as_generator(rng), len(model.actions)
        self.reset(np.zeros(0))

    def reset(self, observation: Floats) -> None:
        self.node: int | None = None
        self.plan = np.zeros((0, self.horizon), dtype=np.int64)  # the rest of the last plan, one row or none
        self.chances = np.full((self.horizon, self.n), 1.0 / self.n)  # action probabilities at each step of a plan

    def act(self, observation: Floats) -> int:
        for k in range(ROUNDS):
            plans = np.vstack([self.plan, self._draw(SEQUENCES)])
            seen, ended = self._imagine(observation, plans)
            if k == 0:
                node = self._match(seen, ended)
                near = self.nodes.near(node, self.shift)
            values = shifted(self._values(near, seen, ended), near - node)
            order = values.min(axis=1).argsort()[:ELITE]
            share = (plans[order][:, :, None] == np.arange(self.n)).mean(axis=0)
            self.chances = 0.1 / self.n + 0.9 * share
            self.plan = plans[order[:1]]
        self.node = int(self.nodes.after[near[values[order[0]].argmin()]])
        action = int(self.plan[0, 0])
        self.plan = np.append(self.plan[:, 1:], self.plan[:, -1:], axis=1)
        self.chances = np.vstack([self.chances[1:], np.full((1, self.n), 1.0 / self.n)])
        return action

    def _match(self, seen: Floats, ended: Any) -> int:
        """Return the current node; another one at the start, by several sequences, or if the last plan is lost."""
        few = ELITE if self.node is None else 1
        everywhere = self._values(np.arange(len(self.nodes)), seen[:few], ended[:few]).min(axis=0)
        best = int(everywhere.argmin())
        if self.node is None or everywhere[best] < LOST * everywhere[self.node]:
            return best
        return self.node

    def _draw(self, count: int) -> Integers:
        """Draw action sequences (count, horizon); while there is no preference, actions are held for a while."""
        below = np.cumsum(self.chances, axis=1)
        plans = (self.rng.random((count, self.horizon, 1)) > below[None, :, :-1]).sum(axis=2)
        plain = self.chances.max(axis=1) < 1.5 / self.n
        for t in np.flatnonzero(plain[1:]) + 1:
            held = self.rng.random(count) < 0.7
            plans[held, t] = plans[held, t - 1]
        return np.asarray(plans, dtype=np.int64)

    def _imagine(self, observation: Floats, plans: Integers) -> tuple[Floats, Any]:
        """Return the features (m, horizon, k) along simulated action sequences, and whether they have ended by then."""
        m, states, rows = len(plans), np.repeat(observation[None], len(plans), axis=0), []
        for t in range(self.horizon):
            states = self.model.move(states, plans[:, t])
            rows.append(states)
        path = np.stack(rows, axis=1)
        ended = np.logical_or.accumulate(self.model.terminal(path.reshape(-1, path.shape[2])).reshape(m, -1), axis=1)
        last = np.where(ended[:, -1], ended.argmax(axis=1), self.horizon - 1)  # where those that have ended stay
        stay = np.minimum(np.arange(self.horizon), last[:, None])
        return self.nodes.seen(np.take_along_axis(path, stay[:, :, None], axis=1)), ended

    def _values(self, nodes: Integers, seen: Floats, ended: Any) -> Floats:
        """Return the cost of each sequence from each node on, (m, nodes)."""
        ahead = self.ahead[nodes]
        costs = self.nodes.cost(ahead[None], seen[:, None], ended[:, None])
        costs = np.where(self.nodes.ended[ahead] & ended[:, None], 0.0, costs)
        values = costs @ self.weights
        later = np.where(ended[:, None, -1], costs[..., -1], values / self.weights.sum())
        return np.asarray(values + self.left[nodes] * later)
