"""The result of an imitation: the policy, its certified distance to the expert, the history, and the implicit reward.

    r(s, s') = Σ_x λ_Y(x|s) α_Y(x, s, s'),        E_π[r | s] = 0,        to be maximized

More generally r(s,s') = -∂d/∂P_Y(s'|s) / ρ(s), where ρ(s) are the visits to s in the gradient: the stationary
distribution for the average cost (expected visits for transient states), and expected visits for the total cost and
finite horizons.

At the policy for which it was computed, r is the advantage of a transition: positive if the transition brings the
learner's future closer to the expert's. It changes with the policy, so a reinforcement learner that maximizes it should
take small steps and then recompute it; see docs/imitation.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.arrays import lazy
from diffbisim.common.checks import Floats, dense, policy_table
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.common.names import Names
from diffbisim.io.arrays import part, prefixed
from diffbisim.io.npz import chain_arrays, chain_from_arrays, name_array, names_from_array
from diffbisim.problems import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP
from diffbisim.results.base import DistanceResult, HasStatus, Status
from diffbisim.results.horizon import HorizonResult
from diffbisim.results.saving import outcome_of, read_built, write_built

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class ImitationResult(HasStatus):
    """The best policy found by :func:`diffbisim.imitate`.

    Attributes
    ----------
    policy : array of shape (n_states, n_actions)
        Probabilities of the actions in every state.
    distance : DistanceResult
        The certified distance between the expert and the learner.
    history : tuple of dict
        One row per outer iteration: ``value``, ``lower``, ``upper``, ``level`` and ``step``. The distance of the result
        is below all values if a simple policy was closer than every iterate (simple.py).
    mdp : MDP
        The MDP; for a sampled environment, the model estimated from all its transitions.
    outcome : Status
        Why the run ended; ``status`` is the sentence that explains it.
    """

    policy: Floats
    distance: DistanceResult
    history: tuple[Mapping[str, float], ...]
    mdp: MDP
    outcome: Status

    @property
    def iterations(self) -> int:
        """Number of outer iterations, that is, of policies evaluated."""
        return len(self.history)

    @lazy
    def reward(self) -> ImplicitReward:
        """The implicit reward at this policy, to be maximized."""
        return ImplicitReward(reward_and_visits(self.distance)[0], self.mdp.names)

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle) for :func:`diffbisim.load`."""
        meta = {"outcome": self.outcome.name, "history": [dict(row) for row in self.history]}
        arrays: dict[str, Any] = {"policy": self.policy}
        for a, P in enumerate(self.mdp.transition):
            chain = MarkovChain(P, initial=self.mdp.initial, names=self.mdp.names)
            arrays |= prefixed(f"action{a}.", chain_arrays(chain))
        if self.mdp.rewards is not None:
            arrays["rewards"] = self.mdp.rewards
        if self.mdp.actions is not None:
            arrays["actions"] = name_array(self.mdp.actions)
        write_built(path, "imitation", meta, self.distance, arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], verify: bool = False) -> ImitationResult:
        """Rebuild a saved result from the arrays of its file; see `diffbisim.load` for `verify`."""
        meta, distance = read_built(arrays, "imitation", verify)
        outcome = outcome_of(meta, distance)
        table = arrays.get("policy", np.empty(0))
        if table.ndim != 2 or table.dtype != np.float64:
            raise InvalidData(f"array 'policy' has shape {table.shape}; expected (n_states, n_actions) probabilities")
        chains = [chain_from_arrays(part(arrays, f"action{a}.")) for a in range(table.shape[1])]
        if not chains:
            raise InvalidData("array 'policy' has no columns; the file is damaged")
        mdp = MDP(
            [chain.transition for chain in chains],
            initial=chains[0].initial,
            rewards=arrays.get("rewards"),
            names=chains[0].names,
            actions=names_from_array(arrays, "actions"),
        )
        policy_table(table, (mdp.n_states, mdp.n_actions))
        if distance.problem.y.n_states != mdp.n_states:
            raise InvalidData(
                f"the MDP has {mdp.n_states} states, the learner {distance.problem.y.n_states}; the file is damaged"
            )
        return cls(table, distance, tuple(meta["history"]), mdp, outcome)

    def __repr__(self) -> str:
        n, k = self.policy.shape
        d: Any = self.distance
        return (
            f"ImitationResult({n} states, {k} actions, distance {d.value:.3g} in [{d.lower:.3g}, {d.upper:.3g}], "
            f"{self.iterations} iterations, {self.outcome.name.lower()})"
        )


def reward_and_visits(distance: DistanceResult, everywhere: bool = True) -> tuple[Floats, Floats]:
    """Return r(s,s') of shape (n, n) and ρ(s) of shape (n,) for the second chain of a distance.

    If not `everywhere`, and for distances other than the discounted one, only possible transitions get a reward; r is
    zero elsewhere, and for states that are never visited.
    """
    if isinstance(distance.problem, Discounted) and everywhere:
        return distance.implicit_reward(), distance.occupancy.sum(axis=0)
    if isinstance(distance, HorizonResult):
        visits = sum(distance.occupancy_at(t).sum(axis=0) for t in range(distance.n_steps))
    else:
        visits = distance.coupling.potential_weights(distance.occupancy).sum(axis=0)
    G: Any = distance.gradient.transition_y
    per_visit = np.divide(-1.0, visits, out=np.zeros_like(visits), where=visits > 0)
    return per_visit[:, None] * dense(G), visits


@dataclass(frozen=True, eq=False)
class ImplicitReward:
    """The implicit reward r(s, s'), to be maximized; callable with state numbers or arrays of them.

    Attributes
    ----------
    table : array of shape (n_states, n_states)
        The rewards.
    names : sequence or None
        Names of the states.
    """

    table: Floats  # (n_states, n_states)
    names: Names | None = None

    def __call__(self, state: Any, next_state: Any) -> Any:
        """Return the reward of the transition ``state -> next_state``."""
        value = self.table[state, next_state]
        return value if isinstance(value, np.ndarray) else float(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.array(self.table, dtype=dtype, copy=copy)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the table on `ax` or on a new figure; blue is positive, red is negative."""
        from diffbisim.plot import implicit_reward

        return implicit_reward(self, ax=ax)

    def wrap(self, env: Any, scale: float = 1.0) -> Any:
        """Wrap a Gymnasium environment so that it pays this reward.

        Parameters
        ----------
        env : gymnasium.Env
            Environment with Discrete observations.
        scale : float, default=1.0
            Factor of the reward, for learners that expect rewards of order one.

        Returns
        -------
        gymnasium.Wrapper
            The environment's own reward is in ``info["environment_reward"]``.
        """
        from diffbisim.processes.environments import import_gymnasium, sizes

        n, _ = sizes(env)
        if n != len(self.table):
            raise InvalidArgument(
                f"env has {n} states but the reward has {len(self.table)}; pass the environment that was imitated in"
            )
        return _wrapper(import_gymnasium())(env, scale * self.table)


def _wrapper(gymnasium: Any) -> Any:
    """Return the wrapper class, created on demand because its base class is in an optional package."""

    class ImplicitRewardWrapper(gymnasium.Wrapper):  # type: ignore[misc]
        """Pays the implicit reward instead of the environment's own."""

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
