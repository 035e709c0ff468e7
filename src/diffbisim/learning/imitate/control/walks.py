"""Walks in environments with continuous observations, with every step counted, and demonstrations of an expert.

Actions are a finite, numbered list: those of a Discrete space, or a grid in a Box. An `Agent` is reset at the start of
an episode and returns the number of an action at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from diffbisim.common.checks import Floats, Integers, check_count
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.processes.cells import paths_of
from diffbisim.processes.environments import import_gymnasium
from diffbisim.processes.stochastic import as_generator

#: Default number of values per dimension of Box actions.
GRID = 5

#: Largest number of actions of a grid, because planning enumerates them.
MOST_ACTIONS = 125

#: Probability that a random action is repeated, because actions that change at every step average out.
HELD = 0.8

Features = Callable[[Floats], Floats]


class Agent(Protocol):
    """Chooses actions by number."""

    def reset(self, observation: Floats) -> None: ...

    def act(self, observation: Floats) -> int: ...


@dataclass(frozen=True, eq=False)
class Actions:
    """The available actions, by number."""

    raw: tuple[Any, ...]  # what the environment is given
    codes: Floats  # (n, k) what a model sees of them: unit vectors, or coordinates scaled to [-1, 1]

    @classmethod
    def of(cls, env: Any, grid: int = GRID) -> Actions:
        """Enumerate the actions of an environment, with `grid` values per dimension of a Box."""
        spaces, space = import_gymnasium().spaces, env.action_space
        if isinstance(space, spaces.Discrete):
            return cls(tuple(range(int(space.start), int(space.start + space.n))), np.eye(int(space.n)))
        if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
            raise InvalidArgument(f"action_space of env is {space}; it must be Discrete, or a bounded Box of one axis")
        if (n := grid ** space.shape[0]) > MOST_ACTIONS:
            raise InvalidArgument(
                f"a grid of {grid} values per dimension has {n} actions, more than {MOST_ACTIONS}; reduce sampling.grid"
            )
        codes = np.array(list(product(np.linspace(-1, 1, grid), repeat=space.shape[0])))
        values = space.low + (codes + 1) / 2 * (space.high - space.low)
        return cls(tuple(values.astype(space.dtype)), codes)

    def __len__(self) -> int:
        return len(self.raw)


@dataclass(frozen=True, eq=False)
class Walk:
    """m consecutive steps of one episode after the other; the last episode may be unfinished."""

    states: Floats  # (m, d)
    actions: Integers  # (m,) numbers of actions
    following: Floats  # (m, d)
    ended: Any  # (m,) bool: the following state is terminal
    first: Any  # (m,) bool: an episode begins here
    rewards: Floats  # (m,) the environment's own, reported but never used for learning

    def __len__(self) -> int:
        return len(self.states)

    @classmethod
    def joined(cls, walks: Sequence[Walk]) -> Walk:
        """Concatenate walks."""
        names = ("states", "actions", "following", "ended", "first", "rewards")
        return cls(*(np.concatenate([getattr(walk, name) for walk in walks]) for name in names))

    def paths(self) -> list[Floats]:
        """Return the episodes, each of shape (T + 1, d)."""
        cuts = np.flatnonzero(self.first)[1:]
        parts = zip(np.split(self.states, cuts), np.split(self.following, cuts), strict=True)
        return [np.vstack([now, after[-1:]]) for now, after in parts]

    @property
    def returns(self) -> Floats:
        """Return of each episode."""
        return np.bincount(np.cumsum(self.first) - 1, weights=self.rewards).astype(np.float64)


def steps_of(env: Any, agent: Agent, actions: Actions, seeds: Iterator[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the steps of an agent without end, as rows of a `Walk`; every episode is reset with the next seed."""
    for seed in seeds:
        state, fresh, over = _flat(env.reset(seed=seed)[0]), True, False
        agent.reset(state)
        while not over:
            a = agent.act(state)
            seen, reward, ended, cut, _ = env.step(actions.raw[a])
            over = bool(ended or cut)
            yield state, a, _flat(seen), bool(ended), fresh, float(reward), over
            state, fresh = _flat(seen), False


def walk(env: Any, agent: Agent, actions: Actions, n_steps: int, rng: int | np.random.Generator) -> Walk:
    """Return a walk of exactly `n_steps` steps."""
    steps = steps_of(env, agent, actions, _seeds(rng))
    return _packed([row[:6] for _, row in zip(range(check_count(n_steps, "n_steps")), steps, strict=False)])


def episodes(env: Any, agent: Agent, actions: Actions, count: int, rng: int | np.random.Generator) -> Walk:
    """Return a walk of `count` whole episodes, which the environment must terminate or truncate."""
    rows, left = [], check_count(count, "count")
    for row in steps_of(env, agent, actions, _seeds(rng)):
        rows.append(row[:6])
        left -= row[6]
        if not left:
            return _packed(rows)
    raise AssertionError("steps_of has no end")


class RandomAgent:
    """Uniformly random actions, each repeated for a random time."""

    def __init__(self, n_actions: int, rng: int | np.random.Generator, held: float = HELD) -> None:
        self.n, self.rng, self.held, self.last = n_actions, as_generator(rng), held, 0

    def reset(self, observation: Floats) -> None:
        self.last = int(self.rng.integers(self.n))

    def act(self, observation: Floats) -> int:
        if self.rng.random() > self.held:
            self.last = int(self.rng.integers(self.n))
        return self.last


class ExploringAgent:
    """An agent that occasionally takes random actions for a while, to explore around its path."""

    def __init__(self, agent: Agent, n_actions: int, share: float, rng: np.random.Generator) -> None:
        self.agent, self.share, self.rng, self.other = agent, share, rng, RandomAgent(n_actions, rng)
        self.exploring = False

    def reset(self, observation: Floats) -> None:
        self.agent.reset(observation)
        self.other.reset(observation)

    def act(self, observation: Floats) -> int:
        own = self.agent.act(observation)  # called even if its action is not used, to keep its node up to date
        if self.rng.random() > HELD:
            self.exploring = bool(self.rng.random() < self.share)
        return self.other.act(observation) if self.exploring else own


# --- the expert ----------------------------------------------------------------------------------------------------


class Demonstrations(NamedTuple):
    """Demonstrations of an expert."""

    paths: tuple[Floats, ...]  # each (T, k)
    ended: tuple[bool, ...]  # whether the last state is terminal

    @property
    def points(self) -> Floats:
        """All observed features, one demonstration after the other."""
        return np.concatenate(self.paths)


def feature_map(features: Any, dimension: int) -> Features:
    """Return the map from observations (n, d) to compared features (n, k): all, some columns, or a function."""
    if features is None:
        return lambda points: points
    if callable(features):
        return lambda points: np.asarray(features(points), dtype=np.float64).reshape(len(points), -1)
    columns = np.atleast_1d(np.asarray(features))
    if columns.dtype.kind not in "iu" or columns.ndim != 1 or not (np.abs(columns + 0.5) <= dimension).all():
        raise InvalidArgument(
            f"features is {features!r}; pass columns of 0 … {dimension - 1}, or a function from (n, d) to (n, k)"
        )
    return lambda points: points[:, columns]


def demonstrations(
    expert: Any, env: Any, features: Features, count: int = 5, rng: int | np.random.Generator = 0
) -> Demonstrations:
    """Return demonstrations from a list of (T, k) arrays, or record them from an expert that acts.

    An expert that acts is a Stable-Baselines3 model or a function from observation to action. Arrays that are as wide
    as an observation are passed through `features` first, if features are narrower. Paths shorter than the time limit
    of the environment count as terminated.
    """
    act = getattr(expert, "predict", None)
    if act is not None:
        return _watched(env, lambda state: act(state, deterministic=True)[0], features, count, rng)
    if callable(expert):
        return _watched(env, expert, features, count, rng)
    paths = paths_of(expert, "expert")
    d = int(np.prod(env.observation_space.shape))
    width = features(np.zeros((1, d))).shape[1]
    if paths[0].shape[1] == d != width:
        paths = [features(path) for path in paths]
    if (found := paths[0].shape[1]) != width:
        raise InvalidData(
            f"expert shows {found} numbers at a time, features of the environment have {width}; they must be equal"
        )
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    return Demonstrations(tuple(paths), tuple(limit is not None and len(path) <= limit for path in paths))


def _watched(
    env: Any, act: Callable[[Floats], Any], features: Features, count: int, rng: int | np.random.Generator
) -> Demonstrations:
    """Record demonstrations of an expert that acts."""
    paths, ends, seeds = [], [], _seeds(rng)
    for _ in range(check_count(count, "demonstrations")):
        seen, over = [env.reset(seed=next(seeds))[0]], False
        while not over:
            state, _, ended, cut, _ = env.step(act(seen[-1]))
            seen.append(state)
            over = bool(ended or cut)
        paths.append(features(np.stack([_flat(state) for state in seen])))
        ends.append(bool(ended))
    return Demonstrations(tuple(paths), tuple(ends))


def _seeds(rng: int | np.random.Generator) -> Iterator[int]:
    generator = as_generator(rng)
    while True:
        yield int(generator.integers(2**31))


def _flat(observation: Any) -> Floats:
    return np.asarray(observation, dtype=np.float64).ravel()


def _packed(rows: Sequence[tuple[Any, ...]]) -> Walk:
    state, action, following, ended, first, reward = zip(*rows, strict=True)
    return Walk(
        np.stack(state), np.array(action), np.stack(following), np.array(ended, dtype=bool),
        np.array(first, dtype=bool), np.array(reward, dtype=np.float64),
    )  # fmt: skip
