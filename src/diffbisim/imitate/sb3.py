"""Tracking as a reward, for reinforcement learners with networks: PPO, SAC or DQN of Stable-Baselines3, or any other.

The coupling of tracking.py under a given policy costs Σ γ^t c(x_t, s_t), with x_t the node of a demonstration that the
learner carries. Its negative is a return like any other, of an environment whose state is (s, x):

    observation     s, what the expert shows at the next node, and how far along its path that is
    reward          -c(x', s') at every step

**The end of an episode must not be a way out.** When the learner ends at s', the coupling goes on: the expert walks on,
and is compared with s' for ever. All of that is charged at once, r = -Σ_h γ^h c(x'_h, s'), which is zero if the expert
ends there and then. (Learners bootstrap nothing after a termination; at a truncation they do, and nothing is charged.)
Without it −1 per step alone solves Acrobot and MountainCar, whatever the expert does; so set a constant reward,
``gymnasium.wrappers.TransformReward(env, lambda r: -1.0)``, beside every claim.

The clock is the demonstration's own, or shifts by up to ``shift`` steps to the nearest node in sight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffbisim.checks import Floats, check_discount
from diffbisim.data.gymnasium import import_gymnasium
from diffbisim.imitate.control.learning import observed
from diffbisim.imitate.control.tracking import Nodes, shifted
from diffbisim.imitate.control.walks import demonstrations, feature_map


class BicausalReward:
    """What a demonstration is worth as a reward.

    Parameters
    ----------
    demos : list of (T, k) arrays, a model of Stable-Baselines3, or a function from observation to action
    features : what of an observation the expert shows: columns, or a function from (n, d) to (n, k); None: everything
    discount : γ of the learner, for what is charged at the end of an episode
    shift : how many steps the clock may shift at a time
    count : demonstrations that are watched, of an expert that acts

    Examples
    --------
    ``PPO("MlpPolicy", BicausalReward(demos, features=[0]).wrap(env)).learn(30_000)``
    """

    def __init__(
        self, demos: Any, features: Any = None, discount: float = 0.99, *, shift: int = 0, count: int = 5, rng: Any = 0
    ) -> None:
        self.demos, self.features, self.discount = demos, features, check_discount(discount)
        self.shift, self.count, self.rng = shift, count, rng

    def wrap(self, env: Any) -> Any:
        """The environment with this reward in place of its own, which stays in ``info["environment_reward"]``."""
        seen = feature_map(self.features, observed(env))
        nodes = Nodes.of(demonstrations(self.demos, env, seen, self.count, self.rng), seen)
        return _wrapper(import_gymnasium())(env, nodes, self.discount, self.shift)


def ending(nodes: Nodes, node: int, seen: Floats, discount: float) -> float:
    """Σ_h γ^h c(x_h, s) for a learner that has ended where ``seen (k,)`` is what is seen, from a node on."""
    last = int(np.flatnonzero(nodes.path == nodes.path[node])[-1])
    ahead = np.arange(node, last + 1)
    weights = discount ** np.arange(len(ahead))
    weights[-1] /= 1.0 - discount
    return float(nodes.cost(ahead, seen[None], True) @ weights)


def _wrapper(gymnasium: Any) -> Any:
    """The wrapper class; made when asked for, because its base is in an optional package."""

    class BicausalRewardWrapper(gymnasium.Wrapper):  # type: ignore[misc]
        def __init__(self, env: Any, nodes: Nodes, discount: float, shift: int) -> None:
            super().__init__(env)
            self.nodes, self.discount, self.shift, self.node = nodes, discount, shift, 0
            more = nodes.points.shape[1] + 1
            low, high = (np.append(edge.ravel(), np.full(more, sign * np.inf)) for edge, sign in _edges(env))
            self.observation_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
            self.first = np.append(0, np.flatnonzero(np.diff(nodes.path)) + 1)

        def reset(self, **options: Any) -> Any:
            state, info = self.env.reset(**options)
            self.node = int(self.first[self.nodes.cost(self.first, self._seen(state), False).argmin()])
            return self._observed(state), info

        def step(self, action: Any) -> Any:
            state, reward, ended, cut, info = self.env.step(action)
            seen, clock = self._seen(state), int(self.nodes.after[self.node])
            near = self.nodes.near(clock, self.shift)
            costs = self.nodes.cost(near, seen, bool(ended))
            self.node = int(near[shifted(costs, near - clock).argmin()])
            own = ending(self.nodes, self.node, seen[0], self.discount) if ended else float(costs[near == self.node][0])
            return self._observed(state), -own, ended, cut, {**info, "environment_reward": float(reward)}

        def _seen(self, state: Any) -> Floats:
            return self.nodes.seen(np.asarray(state, dtype=np.float64).reshape(1, -1))

        def _observed(self, state: Any) -> Any:
            following = int(self.nodes.after[self.node])
            own = np.flatnonzero(self.nodes.path == self.nodes.path[following])
            along = (following - own[0]) / len(own)
            return np.concatenate([np.ravel(state), self.nodes.points[following], [along]]).astype(np.float32)

    return BicausalRewardWrapper


def _edges(env: Any) -> tuple[tuple[Any, float], tuple[Any, float]]:
    return (env.observation_space.low, -1.0), (env.observation_space.high, 1.0)
