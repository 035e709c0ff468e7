"""Imitation in an environment with continuous observations: act, learn a model, plan against the expert, act again.

The first round is random, the others follow the agent so far, with a share of random actions; after each the model and
the agent are made anew from all that was seen. Every step in the environment is counted, and there are no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from diffbisim.checks import Floats, check_count
from diffbisim.data.gymnasium import import_gymnasium
from diffbisim.errors import InvalidArgument
from diffbisim.imitate.control.dynamics import ForwardModel
from diffbisim.imitate.control.tracking import Nodes, PlanTracker, TableTracker
from diffbisim.imitate.control.walks import (
    GRID,
    Actions,
    Agent,
    Demonstrations,
    Features,
    RandomAgent,
    Sometimes,
    Walk,
    demonstrations,
    episodes,
    feature_map,
    walk,
)
from diffbisim.quantize import quantize

#: Tables of cells beyond so many dimensions of what is observed have gaps; plans are made instead.
TABLE_DIMENSIONS = 3


#: Cells of the learner, unless told, of which a table per node is made.
CELLS = 1_500


@dataclass(frozen=True, slots=True)
class Control:
    """How to imitate where observations are continuous.

    ``steps`` in the environment in all, in so many ``rounds``; ``explore`` is the share of random actions in all but
    the first, which is random. ``demonstrations``: how many are watched of an expert that acts; arrays are all taken.
    ``cells`` of the learner's states (None: 1,500 for "tracking", 150 for "markov"), ``shift`` of the clock, ``grid``
    of values per dimension of a Box of actions. ``planner``: "table" (dynamic programming on cells), "plans"
    (model-predictive control over ``horizon`` steps, experimental), or "auto", the table up to three dimensions.
    """

    steps: int = 6_000
    rounds: int = 6
    explore: float = 0.2
    demonstrations: int = 5
    cells: int | None = None
    shift: int = 3
    grid: int = GRID
    planner: Literal["auto", "table", "plans"] = "auto"
    horizon: int = 25

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("steps", "rounds", "demonstrations", "grid", "horizon")}
        for name, count in counts.items() | {"cells": self.cells or CELLS}.items():
            if check_count(count, f"sampling.{name}") < 1:
                raise InvalidArgument(f"sampling.{name} is 0; give at least 1")
        if not 0 <= self.explore <= 1 or self.shift < 0:
            raise InvalidArgument(f"sampling.explore is {self.explore!r}, .shift {self.shift!r}; give a share, a count")
        if self.planner not in ("auto", "table", "plans"):
            raise InvalidArgument(f'sampling.planner is {self.planner!r}; use "auto", "table" or "plans"')

    def batches(self) -> list[int]:
        """Steps of each round, ``steps`` together."""
        each = self.steps // self.rounds
        return [self.steps - each * (self.rounds - 1)] + [each] * (self.rounds - 1)


class Made(NamedTuple):
    """An agent, and what is to be said of how it was made."""

    agent: Agent
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Lesson:
    """All that an imitator is given, but for what it sees by itself."""

    env: Any
    actions: Actions
    shown: Demonstrations
    features: Features
    whole: bool  # whether the expert shows whole observations
    options: Control
    discount: float
    rng: np.random.Generator

    @classmethod
    def of(cls, env: Any, expert: Any, features: Any, options: Control, discount: float, rng: Any) -> Lesson:
        dimension = observed(env)
        seen = feature_map(features, dimension)
        shown = demonstrations(expert, env, seen, options.demonstrations, rng)
        return cls(env, Actions.of(env, options.grid), shown, seen, features is None, options, discount, rng)

    def model(self, seen: Walk) -> ForwardModel:
        ends = [
            path[-1:] for path, ended in zip(self.shown.paths, self.shown.ended, strict=True) if ended and self.whole
        ]
        return ForwardModel(seen, self.actions, np.concatenate([np.zeros((0, seen.states.shape[1])), *ends]), self.rng)

    def centers(self, seen: Walk, n_states: int) -> Floats:
        """Cells of the learner's states, with half of the weight on the expert's if these are whole."""
        cells = quantize(seen.paths(), list(self.shown.paths) if self.whole else None, n_states, rng=0)
        return np.array(cells.centers)

    def learn(self, make: Callable[[Walk], Made]) -> ControlResult:
        """Rounds of acting and making an agent of all that was seen."""
        agent: Agent = RandomAgent(len(self.actions), self.rng)
        walks, history = [], []
        for k, steps in enumerate(self.options.batches()):
            acting = Sometimes(agent, len(self.actions), self.options.explore, self.rng) if k else agent
            walks.append(walk(self.env, acting, self.actions, steps, self.rng))
            agent, facts = make(Walk.joined(walks))
            history.append({"steps": sum(map(len, walks)), "episode_return": _mean_return(walks[-1]), **facts})
        return ControlResult(agent, self.actions, tuple(history))


@dataclass(frozen=True, eq=False)
class ControlResult:
    """An agent that imitates, and how it was made.

    Attributes:
        agent: ``reset(observation)`` at the start of an episode, ``act(observation)`` for the number of an action.
        actions: what these numbers mean to the environment.
        history: per round ``steps`` so far, ``episode_return`` (the environment's, never learned from), and of methods
            with a model ``model_error`` on steps held out: 0 perfect, 1 knows nothing.
    """

    agent: Agent
    actions: Actions
    history: tuple[Mapping[str, Any], ...]

    @property
    def steps(self) -> int:
        """Steps that were made in the environment."""
        return int(self.history[-1]["steps"])

    @property
    def model_error(self) -> float:
        return float(self.history[-1]["model_error"])

    def __repr__(self) -> str:
        return f"ControlResult({self.steps} steps in the environment, {len(self.history)} rounds)"

    def reset(self, observation: Any) -> None:
        """To be called with the first observation of an episode."""
        self.agent.reset(np.asarray(observation, dtype=np.float64).ravel())

    def act(self, observation: Any) -> Any:
        """The action for an observation, as the environment takes it."""
        return self.actions.raw[self.agent.act(np.asarray(observation, dtype=np.float64).ravel())]

    def walk(self, env: Any, count: int = 10, rng: int | np.random.Generator = 0) -> Walk:
        """Whole episodes in an environment; ``.returns`` has what each earned."""
        return episodes(env, self.agent, self.actions, count, rng)


def track(lesson: Lesson) -> ControlResult:
    """Imitation with ``policy="tracking"``."""
    return lesson.learn(lambda seen: planned(lesson, Nodes.of(lesson.shown, lesson.features), seen))


def planned(lesson: Lesson, nodes: Nodes, seen: Walk) -> Made:
    """The agent that follows nodes, in the model of what was seen."""
    model, options = lesson.model(seen), lesson.options
    table = options.planner == "table" or (options.planner == "auto" and seen.states.shape[1] <= TABLE_DIMENSIONS)
    if table:
        centers, starts = lesson.centers(seen, options.cells or CELLS), seen.states[seen.first]
        agent: Agent = TableTracker(nodes, model, centers, lesson.discount, options.shift, starts)
    else:
        agent = PlanTracker(nodes, model, options.horizon, lesson.discount, options.shift, lesson.rng)
    return Made(agent, {"model_error": model.error})


def observed(env: Any) -> int:
    """The dimension of what is observed."""
    space = env.observation_space
    if not isinstance(space, import_gymnasium().spaces.Box):
        raise InvalidArgument(f"observations of env are {space}; tracking and cells need a Box of numbers")
    return int(np.prod(space.shape))


def _mean_return(seen: Walk) -> float:
    """Of the episodes that were finished; the last one hardly ever is."""
    finished = seen.returns[:-1] if len(seen.returns) > 1 else seen.returns
    return float(finished.mean())
