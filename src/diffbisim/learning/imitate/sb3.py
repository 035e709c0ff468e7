"""Rewards for reinforcement learners with neural networks: PPO, SAC or DQN of Stable-Baselines3, or any other library.

The rewards are defined in control/rewards.py: tracking, or the implicit reward of the coupling. Compare every result
with a constant reward, ``gymnasium.wrappers.TransformReward(env, lambda r: -1.0)``: if episodes end at the goal, −1 per
step alone solves Acrobot and MountainCarContinuous, whatever the expert does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from diffbisim.common.checks import Floats, check_discount
from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.learning.imitate.control.learning import ControlResult, ImitationInputs, observed
from diffbisim.learning.imitate.control.rewards import NOTHING, CouplingReward, EpisodeReward, TrackingReward
from diffbisim.learning.imitate.control.tracking import Nodes
from diffbisim.learning.imitate.control.walks import demonstrations, feature_map
from diffbisim.processes.environments import import_gymnasium

#: Steps of PPO between updates of its network.
ROLLOUT = 1_000

#: Rows of the history of a run.
ROWS = 6


class BicausalReward:
    """A reward computed from demonstrations.

    Parameters
    ----------
    demos : list of arrays of shape (T, k), Stable-Baselines3 model or callable
        Demonstrations, or an expert that acts (a function from observation to action).
    features : sequence of int or callable, default=None
        Observed features of the expert: columns, or a function from (n, d) to (n, k). None means whole observations.
    discount : float, default=0.99
        Discount γ of the learner, used for the charge at the end of an episode.
    reward : {"tracking", "coupling"}, default="tracking"
        "tracking" is the cost of the coupling with a demonstration, whose current node is appended to the observation.
        "coupling" is the implicit reward of the coupling of both as chains on cells, recomputed every thousand steps.
    shift : int, default=0
        How many steps the node may shift at a time ("tracking").
    count : int, default=5
        Number of demonstrations recorded from an expert that acts.
    rng : int or numpy.random.Generator, default=0
        Seed of these demonstrations.

    Examples
    --------
    ``PPO("MlpPolicy", BicausalReward(demos, features=[0]).wrap(env)).learn(30_000)``
    """

    def __init__(
        self,
        demos: Any,
        features: Any = None,
        discount: float = 0.99,
        *,
        reward: Literal["tracking", "coupling"] = "tracking",
        shift: int = 0,
        count: int = 5,
        rng: Any = 0,
    ) -> None:
        if reward not in ("tracking", "coupling"):
            raise InvalidArgument(f'reward is {reward!r}; use "tracking" or "coupling"')
        self.demos, self.features, self.discount, self.reward = demos, features, check_discount(discount), reward
        self.shift, self.count, self.rng = shift, count, rng

    def wrap(self, env: Any) -> Any:
        """Return the environment with this reward; its own reward is in ``info["environment_reward"]``."""
        seen = feature_map(self.features, observed(env))
        nodes = Nodes.of(demonstrations(self.demos, env, seen, self.count, self.rng), seen)
        own = (
            TrackingReward(nodes, self.discount, self.shift)
            if self.reward == "tracking"
            else CouplingReward(nodes, self.discount)
        )
        return rewarded(env, nodes, own)


def rewarded(env: Any, nodes: Nodes, score: EpisodeReward) -> Any:
    """Return the environment with the reward of a score in place of its own."""
    return _wrapper(import_gymnasium())(env, nodes, score)


def _wrapper(gymnasium: Any) -> Any:
    """Return the wrapper class, created on demand because its base class is in an optional package."""

    class BicausalRewardWrapper(gymnasium.Wrapper):  # type: ignore[misc]
        """Pays the reward of a score instead of the environment's own, and appends its numbers to observations."""

        def __init__(self, env: Any, nodes: Nodes, score: EpisodeReward) -> None:
            super().__init__(env)
            self.nodes, self.score = nodes, score
            self.returns: list[tuple[int, float]] = []  # length and return of each episode
            edges = ((env.observation_space.low, -np.inf), (env.observation_space.high, np.inf))
            low, high = (np.append(edge.ravel(), np.full(score.extra, far)).astype(np.float32) for edge, far in edges)
            self.observation_space = gymnasium.spaces.Box(low, high)

        def reset(self, **options: Any) -> Any:
            state, info = self.env.reset(**options)
            self.returns.append((0, 0.0))
            return _joined(state, self.score.reset(self._seen(state))), info

        def step(self, action: Any) -> Any:
            state, reward, ended, cut, info = self.env.step(action)
            steps, paid = self.returns[-1]
            self.returns[-1] = (steps + 1, paid + float(reward))
            own, added = self.score.step(self._seen(state), bool(ended))
            return _joined(state, added), own, ended, cut, {**info, "environment_reward": float(reward)}

        def _seen(self, state: Any) -> Floats:
            return self.nodes.seen(np.asarray(state, dtype=np.float64).reshape(-1))

    return BicausalRewardWrapper


def _joined(state: Any, added: Floats) -> Any:
    return np.append(np.ravel(state), added).astype(np.float32)


# --- PPO -----------------------------------------------------------------------------------------------------------


class UnitSize:
    """Divides rewards by the running standard deviation of their discounted sum G ← r + γ G.

    PPO needs values of size one, and rewards differ by orders of magnitude. An expert that balances hardly moves, so a
    fall costs hundreds of its standard deviations.
    """

    def __init__(self, discount: float) -> None:
        self.discount, self.total = discount, 0.0
        self.count, self.mean, self.square = 1.0, 0.0, 1.0  # as if a sum of size one had been seen

    def __call__(self, reward: float, over: bool) -> float:
        """Return the scaled reward; an episode that is over starts a new sum."""
        self.total = reward + self.discount * self.total
        self.count += 1.0
        gap = self.total - self.mean
        self.mean += gap / self.count
        self.square += gap * (self.total - self.mean)  # Welford's update of the sum of squares
        self.total *= not over
        return float(reward / np.sqrt(self.square / self.count))


def _sized(gymnasium: Any, env: Any, unit: UnitSize) -> Any:
    """Return the environment with rewards of unit size."""

    class Sized(gymnasium.Wrapper):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            state, reward, ended, cut, info = self.env.step(action)
            return state, unit(reward, ended or cut), ended, cut, info

    return Sized(env)


def ppo(lesson: ImitationInputs, score_of: Callable[[Nodes, float], EpisodeReward]) -> ControlResult:
    """Train PPO on a reward of unit size, with the number of steps and the actions of a lesson."""
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.buffers import RolloutBuffer
    except ImportError as error:
        raise MissingExtra("PPO needs Stable-Baselines3: pip install 'diffbisim[rl]'") from error
    gymnasium, options = import_gymnasium(), lesson.options
    nodes = Nodes.of(lesson.shown, lesson.features)
    score = score_of(nodes, lesson.discount)
    numbered = gymnasium.wrappers.TransformAction(
        lesson.env, lambda a: lesson.actions.raw[int(a)], gymnasium.spaces.Discrete(len(lesson.actions))
    )
    env, unit = rewarded(numbered, nodes, score), UnitSize(lesson.discount)

    class Buffer(RolloutBuffer):
        """Adds rewards that are known only at the end of an episode before the network learns."""

        def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
            if hasattr(score, "settle"):
                over = np.append(self.episode_starts[1:, 0], dones) > 0
                late = [unit(*step) for step in zip(score.settle(), over, strict=True)]
                self.rewards[:, 0] += late  # added to the bootstrapped value of truncated episodes
            super().compute_returns_and_advantage(last_values, dones)

    rollout = ROLLOUT if options.steps % ROLLOUT == 0 else options.steps
    training = env if hasattr(score, "settle") else _sized(gymnasium, env, unit)
    model = PPO(
        "MlpPolicy", training, n_steps=rollout, batch_size=min(100, rollout), learning_rate=1e-3, gamma=lesson.discount,
        rollout_buffer_class=Buffer, seed=int(lesson.rng.integers(2**31)), device="cpu",
    )  # fmt: skip
    model.learn(options.steps)
    return ControlResult(NetworkAgent(model, nodes, score), lesson.actions, tuple(_history(env.returns, options.steps)))


def _history(returns: list[tuple[int, float]], steps: int) -> list[dict[str, float]]:
    """Return mean returns of the episodes that finished in each sixth of the steps."""
    ends, paid = np.cumsum([n for n, _ in returns]), np.array([r for _, r in returns])
    rows, low = [], 0
    for high in np.linspace(steps / ROWS, steps, ROWS).astype(int):
        own = (ends > low) & (ends <= high)
        mean = float(paid[own].mean()) if own.any() else float("nan")
        rows.append({"steps": int(high), "episode_return": mean})
        low = high
    return rows


class NetworkAgent:
    """A Stable-Baselines3 policy as an agent; appends to observations what its reward appends."""

    def __init__(self, model: Any, nodes: Nodes, score: EpisodeReward) -> None:
        self.model, self.nodes, self.score = model, nodes, score
        self.added, self.fresh = NOTHING, True

    def reset(self, observation: Floats) -> None:
        if self.score.extra:
            self.added = self.score.reset(self.nodes.seen(observation))
        self.fresh = True

    def act(self, observation: Floats) -> int:
        if self.score.extra and not self.fresh:
            self.added = self.score.step(self.nodes.seen(observation), False)[1]
        self.fresh = False
        return int(self.model.predict(_joined(observation, self.added), deterministic=True)[0])
