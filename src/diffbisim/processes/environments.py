"""Gymnasium environments with finitely many states: conversion to MDPs, and rollouts.

    mdp = from_env(env)                       # toy-text environments have a transition table, env.unwrapped.P
    walk = rollouts(env, policy, 10_000, 0)   # any environment with Discrete observations and actions
    walk.transitions()                        # only the states

**Terminal states are absorbing.** A table row (probability, next state, reward, terminated) with ``terminated`` ends
the episode, so the next state is made absorbing with reward zero, even if the table has transitions out of it, as those
of CliffWalking-v1 and Taxi-v4 do.

Spaces that are not ``Discrete`` must be discretized first with a wrapper:
``gymnasium.wrappers.TransformObservation(env, number_of_observation, gymnasium.spaces.Discrete(n))`` for observations,
``gymnasium.wrappers.TransformAction(env, action_of_number, gymnasium.spaces.Discrete(n))`` for actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Integers, check_count, policy_table
from diffbisim.common.errors import InvalidArgument, MissingExtra, warn_of_input
from diffbisim.processes.chain import Transitions
from diffbisim.processes.mdp import MDP
from diffbisim.processes.stochastic import Successors, as_generator

__all__ = ["Rollouts", "as_env", "from_env", "rollouts"]

#: The spaces that must be discrete, and the start of a call that discretizes them.
SPACES = {
    "observation_space": "TransformObservation(env, number_of_observation",
    "action_space": "TransformAction(env, action_of_number",
}
SPARSE = 64  # kernels with more states are sparse


def from_env(env: Any) -> MDP:
    """Convert the transition table of an environment to an MDP, with expected rewards (n, n_actions).

    Time limits are not part of an MDP. Other wrappers are not used, which a warning reports.
    """
    sizes(env)
    inner = env.unwrapped
    if wrappers := _wrappers(env):
        warn_of_input(
            f"{_name(env)}: the transition table is that of the environment without its wrappers "
            f"{', '.join(wrappers)}, which may change observations, actions or rewards"
        )
    if not hasattr(inner, "P"):
        raise InvalidArgument(
            f"{_name(env)} has no transition table (env.unwrapped.P); pass the environment itself to "
            "diffbisim.imitate, which then learns from rollouts"
        )
    n, k = len(inner.P), len(inner.P[0])
    rows = [
        (a, s, int(t), float(p), float(r), bool(end))
        for s in range(n)
        for a in range(k)
        for p, t, r, end in inner.P[s][a]
    ]
    a, s, t, p, r, end = (np.array(part) for part in zip(*rows, strict=True))
    terminal = np.zeros(n, dtype=bool)
    terminal[t[end]] = True
    alive = ~terminal[s]
    rewards = np.zeros((n, k))
    np.add.at(rewards, (s[alive], a[alive]), (p * r)[alive])
    dead = np.flatnonzero(terminal)
    kernels = []
    for action in range(k):
        own = alive & (a == action)
        i, j, w = np.append(s[own], dead), np.append(t[own], dead), np.append(p[own], np.ones(dead.size))
        P = sp.csr_array((w, (i, j)), shape=(n, n))
        kernels.append(P if n > SPARSE else P.toarray())
    initial = getattr(inner, "initial_state_distrib", 0)
    return MDP(kernels, initial=initial if isinstance(initial, int) else np.asarray(initial), rewards=rewards)


def _wrappers(env: Any) -> list[str]:
    """Return the names of the wrappers of an environment, except for those that ``gymnasium.make`` adds."""
    found = []
    while env is not env.unwrapped:
        found.append(type(env).__name__)
        env = env.env
    return [name for name in found if name not in ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker")]


@dataclass(frozen=True, eq=False)
class Rollouts:
    """m consecutive steps of an environment; an episode begins at each k with ``first[k]``."""

    states: Integers  # (m,)
    actions: Integers  # (m,)
    next_states: Integers  # (m,)
    rewards: Floats  # (m,)
    terminated: Any  # (m,) bool, whether the next state is terminal
    first: Any  # (m,) bool, whether an episode begins here
    n_states: int
    n_actions: int

    def __len__(self) -> int:
        return len(self.states)

    @property
    def starts(self) -> Integers:
        """The first states of the episodes."""
        return np.asarray(self.states[self.first], dtype=np.int64)

    @property
    def returns(self) -> Floats:
        """The undiscounted sum of rewards of each episode; the last one may be incomplete."""
        sums = np.bincount(np.cumsum(self.first) - 1, weights=self.rewards)
        return np.asarray(sums, dtype=np.float64)

    def transitions(self, actions: bool = False) -> Transitions:
        """Return the transitions between states, with actions and rewards if ``actions`` is True."""
        seen = Transitions(
            self.states, self.next_states, self.n_states, episodes=np.cumsum(self.first) - 1, starts=self.starts
        )
        if not actions:
            return seen
        return replace(seen, actions=self.actions, n_actions=self.n_actions, rewards=self.rewards)


def rollouts(env: Any, policy: Any, n_steps: int, rng: int | np.random.Generator) -> Rollouts:
    """Run a policy, given as (n_states, n_actions) probabilities or (n_states,) actions, for ``n_steps`` steps.

    The copies of a vector environment advance together, and their steps are concatenated. The environment is first
    reset with a seed from ``rng``.
    """
    n, k = sizes(env)
    act = Successors.of(policy_table(policy, (n, k)))
    generator = as_generator(rng)
    seed = int(generator.integers(2**31))
    if getattr(env, "num_envs", None) is not None and hasattr(env, "single_observation_space"):
        return _vector_rollouts(env, act, check_count(n_steps, "n_steps"), generator, seed)
    step = act.step()
    rows: list[tuple[int, int, int, float, bool, bool]] = []
    fresh, state = True, int(env.reset(seed=seed)[0])
    for u in generator.random(check_count(n_steps, "n_steps")).tolist():
        action = step(state, u)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((state, action, int(following), float(reward), bool(terminated), fresh))
        fresh, state = bool(terminated or truncated), int(following)
        if fresh:
            state = int(env.reset()[0])
    return _pack(rows, n, k)


def first_states(env: Any, count: int, rng: int | np.random.Generator) -> Integers:
    """Return the first states of ``count`` episodes, by resetting the environment, first with a seed from ``rng``."""
    sizes(env)
    first = np.atleast_1d(env.reset(seed=int(as_generator(rng).integers(2**31)))[0])
    more = [np.atleast_1d(env.reset()[0]) for _ in range((count - 1) // first.size)]
    return np.concatenate([first, *more])[: max(count, 1)].astype(np.int64)


def _vector_rollouts(env: Any, act: Successors, n_steps: int, generator: np.random.Generator, seed: int) -> Rollouts:
    """Run a vector environment; with ``NEXT_STEP`` autoreset, the call after the end of an episode only resets."""
    m = env.num_envs
    walks: list[list[tuple[int, int, int, float, bool, bool]]] = [[] for _ in range(m)]
    states, over, fresh = np.asarray(env.reset(seed=seed)[0]), np.zeros(m, bool), np.ones(m, bool)
    left = n_steps
    while left > 0:
        actions = act.draw(states.astype(np.int64), generator.random(m))
        following, rewards, terminated, truncated, info = env.step(actions)
        reached = _final(following, info)
        for k in range(m):
            if not over[k] and left > 0:
                row = (states[k], actions[k], reached[k], rewards[k], terminated[k], fresh[k])
                walks[k].append(tuple(v.item() for v in map(np.asarray, row)))
                left -= 1
        ended = terminated | truncated
        same_step = "final_obs" in info or "final_observation" in info
        fresh = ended if same_step else over
        over = np.zeros(m, bool) if same_step else ended & ~over
        states = np.asarray(following)
    n, k_actions = sizes(env)
    return _pack([row for walk in walks for row in walk], n, k_actions)


def _final(following: Any, info: dict[str, Any]) -> Any:
    """Return the next state of each copy; with same-step autoreset it is in ``info``."""
    last = info.get("final_obs", info.get("final_observation"))
    if last is None:
        return following
    return np.array([f if o is None else o for f, o in zip(following, last, strict=True)])


def _pack(rows: list[tuple[int, int, int, float, bool, bool]], n: int, k: int) -> Rollouts:
    s, a, t, r, end, first = zip(*rows, strict=True) if rows else ((),) * 6
    states, actions, following = (np.array(part, dtype=np.int64) for part in (s, a, t))
    return Rollouts(
        states, actions, following, np.array(r, dtype=float), np.array(end, bool), np.array(first, bool), n, k
    )


def is_env(value: Any) -> bool:
    """Return whether this looks like a Gymnasium environment, single or vector, without importing Gymnasium."""
    return all(hasattr(value, name) for name in ("reset", "step", "observation_space", "action_space"))


def has_numbers(env: Any) -> bool:
    """Return whether the observation space of an environment is a Box."""
    return isinstance(env.observation_space, import_gymnasium().spaces.Box) and not hasattr(env, "num_envs")


def sizes(env: Any) -> tuple[int, int]:
    """Return the numbers of states and actions; raise an error for spaces that are not discrete."""
    gymnasium = import_gymnasium()
    if not is_env(env):
        raise InvalidArgument(f"env is a {type(env).__name__}, not a Gymnasium environment; use gymnasium.make(...)")
    counts = []
    for what, wrapper in SPACES.items():
        space = getattr(env, f"single_{what}", getattr(env, what))
        if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
            raise InvalidArgument(
                f"{what} of {_name(env)} is {space}; it must be Discrete(n), starting at 0: discretize it first, e.g. "
                f"gymnasium.wrappers.{wrapper}, gymnasium.spaces.Discrete(n))"
            )
        counts.append(int(space.n))
    return counts[0], counts[1]


def import_gymnasium() -> Any:
    """Import Gymnasium, or raise an error with the command that installs it."""
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("this needs Gymnasium: pip install 'diffbisim[gym]'") from error
    return gymnasium


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(getattr(spec, "id", None) or type(env).__name__)


def as_env(mdp: MDP, max_steps: int = 200) -> Any:
    """Wrap an MDP as a Gymnasium environment with episodes of ``max_steps`` steps."""
    return _mdp_env(import_gymnasium())(mdp, check_count(max_steps, "max_steps"))


def _mdp_env(gymnasium: Any) -> Any:
    """Return the environment class, which is defined on demand because its base class is in an optional package."""

    class MDPEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self, mdp: MDP, max_steps: int) -> None:
            self.mdp, self.max_steps, self.move = mdp, max_steps, mdp._stacked.step()
            self.observation_space = gymnasium.spaces.Discrete(mdp.n_states)
            self.action_space = gymnasium.spaces.Discrete(mdp.n_actions)
            self.state, self.time = 0, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.state, self.time = int(self.np_random.choice(self.mdp.n_states, p=self.mdp.initial)), 0
            return self.state, {}

        def step(self, action: Any) -> Any:
            r, s, a = self.mdp.rewards, self.state, int(action)
            reward = 0.0 if r is None else float(r[s, a] if r.ndim == 2 else r[s])
            self.state, self.time = self.move(a * self.mdp.n_states + s, self.np_random.random()), self.time + 1
            return self.state, reward, False, self.time >= self.max_steps, {}

    return MDPEnv
