"""The implicit reward as an object: a table, a picture, and a reward function for any reinforcement learner.

    r(s, s') = Σ_x λ_Y(x|s) α_Y(x, s, s'),        E_π[r | s] = 0,        maximize it

At the policy for which it was computed, r is the advantage of a transition: positive for those that bring the
learner's future closer to the expert's. It changes with the policy, so a reinforcement learner that maximizes it
should take small steps and ask for a new one; see docs/imitation.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.checks import Floats
from diffbisim.errors import InvalidArgument
from diffbisim.names import Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class ImplicitReward:
    """r(s, s'), to be maximized; call it with states (numbers, or arrays of them)."""

    table: Floats  # (n_states, n_states)
    labels: Labels | None = None

    def __call__(self, state: Any, next_state: Any) -> Any:
        """The reward of the transition ``state -> next_state``."""
        value = self.table[state, next_state]
        return value if isinstance(value, np.ndarray) else float(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.array(self.table, dtype=dtype, copy=copy)

    def plot(self, ax: Axes | None = None) -> Axes:
        """The table as a picture, on ``ax`` or on a figure of its own: blue is good, red is bad."""
        from diffbisim.plot import implicit_reward

        return implicit_reward(self, ax=ax)

    def wrap(self, env: Any, scale: float = 1.0) -> Any:
        """The environment with this reward in place of its own (which stays in ``info["environment_reward"]``).

        A ``gymnasium.Wrapper`` for environments with Discrete observations; any library for reinforcement learning
        can train on it. ``scale`` multiplies the reward, for learners that want it of order one.
        """
        from diffbisim.data.gymnasium import import_gymnasium, sizes

        n, _ = sizes(env)
        if n != len(self.table):
            raise InvalidArgument(f"env has {n} states and the reward is for {len(self.table)}")
        return _wrapper(import_gymnasium())(env, scale * self.table)


def _wrapper(gymnasium: Any) -> Any:
    """The wrapper class; made when asked for, because its base is in an optional package."""

    class ImplicitRewardWrapper(gymnasium.Wrapper):  # type: ignore[misc]
        def __init__(self, env: Any, table: Floats) -> None:
            super().__init__(env)
            self.table, self.state = table, 0

        def reset(self, **options: Any) -> Any:
            state, info = self.env.reset(**options)
            self.state = int(state)
            return state, info

        def step(self, action: Any) -> Any:
            state, reward, terminated, truncated, info = self.env.step(action)
            own = float(self.table[self.state, int(state)])
            self.state = int(state)
            return state, own, terminated, truncated, {**info, "environment_reward": float(reward)}

    return ImplicitRewardWrapper
