"""Imitation in an environment with continuous observations: act, learn a model, plan against the expert, act again.

The first round takes random actions; later rounds follow the current agent with a fraction of random actions. After
each round the model and the agent are rebuilt from all observed steps. Every step in the environment is counted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from diffbisim.common.checks import Floats, check_count
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.progress import Progress, tracking
from diffbisim.learning.imitate.control.dynamics import ForwardModel
from diffbisim.learning.imitate.control.tracking import Nodes, PlanTracker, TableTracker
from diffbisim.learning.imitate.control.walks import (
    GRID,
    Actions,
    Agent,
    Demonstrations,
    ExploringAgent,
    Features,
    RandomAgent,
    Walk,
    demonstrations,
    episodes,
    feature_map,
    walk,
)
from diffbisim.learning.optimize.checkpoint import RunCheckpoint
from diffbisim.processes.cells import quantize
from diffbisim.processes.environments import import_gymnasium

#: Largest dimension of observations for tables on cells, which have gaps beyond; plans are used instead.
TABLE_DIMENSIONS = 3

#: Default number of cells of the learner; each node of the demonstrations has a table on them.
CELLS = 1_500


@dataclass(frozen=True, slots=True)
class Control:
    """Options of imitation with continuous observations.

    Parameters
    ----------
    steps : int, default=6_000
        Total number of steps in the environment.
    rounds : int, default=6
        Number of rounds; the first takes random actions.
    explore : float, default=0.2
        Fraction of random actions in the later rounds.
    demonstrations : int, default=5
        Number of demonstrations recorded from an expert that acts; given arrays are all used.
    cells : int, default=None
        Number of cells of the learner's states. None means 1,500 for "tracking" and 250 for "markov".
    shift : int, default=3
        How many steps the node may shift at a time.
    grid : int, default=5
        Number of values per dimension of Box actions.
    planner : {"auto", "table", "plans"}, default="auto"
        "table" is dynamic programming on cells, "plans" model-predictive control over `horizon` steps (experimental),
        and "auto" the table for up to three dimensions.
    horizon : int, default=25
        Planning horizon of "plans".
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
            check_count(count, f"sampling.{name}", 1)
        if not 0 <= self.explore <= 1 or self.shift < 0:
            raise InvalidArgument(
                f"sampling.explore is {self.explore!r} and sampling.shift is {self.shift!r}; explore must be between 0 "
                "and 1 and shift at least 0"
            )
        if self.planner not in ("auto", "table", "plans"):
            raise InvalidArgument(f'sampling.planner is {self.planner!r}; use "auto", "table" or "plans"')

    def batches(self) -> list[int]:
        """Return the number of steps of each round."""
        each = self.steps // self.rounds
        return [self.steps - each * (self.rounds - 1)] + [each] * (self.rounds - 1)


class RoundOptions(NamedTuple):
    """The caller's options for the rounds of a run."""

    callback: Callable[[Mapping[str, Any]], object] | None = None
    progress: Progress = False
    file: RunCheckpoint | None = None

    def read(self) -> list[Any]:
        """Return the rounds in the checkpoint, if there is one."""
        kept = None if self.file is None else self.file.read()
        return [] if kept is None else list(kept["rounds"])

    def write(self, rounds: list[Any]) -> None:
        """Write the rounds so far to the checkpoint, if there is one."""
        if self.file is not None:
            self.file.write({"rounds": rounds})


class TrainedAgent(NamedTuple):
    """An agent, with further entries for the history."""

    agent: Agent
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ImitationInputs:
    """Everything that an imitator is given, apart from its own experience."""

    env: Any
    actions: Actions
    shown: Demonstrations
    features: Features
    whole: bool  # whether the expert shows whole observations
    options: Control
    discount: float
    rng: np.random.Generator

    @classmethod
    def of(cls, env: Any, expert: Any, features: Any, options: Control, discount: float, rng: Any) -> ImitationInputs:
        """Record or convert the demonstrations, and enumerate the actions."""
        dimension = observed(env)
        seen = feature_map(features, dimension)
        shown = demonstrations(expert, env, seen, options.demonstrations, rng)
        return cls(env, Actions.of(env, options.grid), shown, seen, features is None, options, discount, rng)

    def model(self, seen: Walk) -> ForwardModel:
        """Return the forward model learned from the observed steps."""
        ends = [
            path[-1:] for path, ended in zip(self.shown.paths, self.shown.ended, strict=True) if ended and self.whole
        ]
        return ForwardModel(seen, self.actions, np.concatenate([np.zeros((0, seen.states.shape[1])), *ends]), self.rng)

    def centers(self, seen: Walk, n_states: int) -> Floats:
        """Return cells of the learner's states; whole observations of the expert get half of the weight."""
        cells = quantize(seen.paths(), list(self.shown.paths) if self.whole else None, n_states, rng=0)
        return np.array(cells.centers)

    def learn(self, make: Callable[[Walk], TrainedAgent], watch: RoundOptions | None = None) -> ControlResult:
        """Alternate acting and making an agent from all observed steps.

        A checkpoint holds the steps of every round and the generator after them. A run that resumes makes no step of
        the environment twice: it makes the agents of these rounds again, with the same generator.
        """
        watch = watch or RoundOptions()
        agent: Agent = RandomAgent(len(self.actions), self.rng)
        walks: list[Walk] = []
        history: list[dict[str, Any]] = []
        batches, kept = self.options.batches(), watch.read()
        with tracking(watch.progress, len(batches), "rounds") as advance:
            for k, steps in enumerate(batches):
                if k < len(kept):
                    walks.append(Walk(**kept[k]["walk"]))
                    self.rng.bit_generator.state = kept[k]["rng"].bit_generator.state
                else:
                    acting = ExploringAgent(agent, len(self.actions), self.options.explore, self.rng) if k else agent
                    walks.append(walk(self.env, acting, self.actions, steps, self.rng))
                    kept = [*kept, {"walk": vars(walks[-1]), "rng": copy.deepcopy(self.rng)}]
                    watch.write(kept)
                agent, facts = make(Walk.joined(walks))
                history.append({"steps": sum(map(len, walks)), "episode_return": _mean_return(walks[-1]), **facts})
                advance(1)
                if watch.callback is not None and watch.callback(history[-1]):
                    break
        return ControlResult(agent, self.actions, tuple(history))


@dataclass(frozen=True, eq=False)
class ControlResult:
    """An agent that imitates, and how it was trained.

    Attributes
    ----------
    agent : Agent
        ``reset(observation)`` at the start of an episode, ``act(observation)`` for the number of an action.
    actions : Actions
        The actions with these numbers.
    history : tuple of dict
        Per round: ``steps`` so far, ``episode_return`` (of the environment, never used for learning) and, for methods
        with a model, ``model_error`` on held-out steps (0 is perfect, 1 is uninformative).
    """

    agent: Agent
    actions: Actions
    history: tuple[Mapping[str, Any], ...]

    @property
    def steps(self) -> int:
        """Number of steps made in the environment."""
        return int(self.history[-1]["steps"])

    @property
    def model_error(self) -> float:
        """Error of the forward model on held-out steps, relative to the standard deviation."""
        return float(self.history[-1]["model_error"])

    def __repr__(self) -> str:
        return f"ControlResult({self.steps} steps in the environment, {len(self.history)} rounds)"

    def reset(self, observation: Any) -> None:
        """Start an episode with its first observation."""
        self.agent.reset(np.asarray(observation, dtype=np.float64).ravel())

    def act(self, observation: Any) -> Any:
        """Return the action for an observation, as the environment expects it."""
        return self.actions.raw[self.agent.act(np.asarray(observation, dtype=np.float64).ravel())]

    def walk(self, env: Any, count: int = 10, rng: int | np.random.Generator = 0) -> Walk:
        """Run `count` whole episodes in an environment; ``.returns`` of the result has their returns."""
        return episodes(env, self.agent, self.actions, count, rng)


def track(lesson: ImitationInputs, watch: RoundOptions | None = None) -> ControlResult:
    """Imitate with ``policy="tracking"``."""
    return lesson.learn(lambda seen: planned(lesson, Nodes.of(lesson.shown, lesson.features), seen), watch)


def planned(lesson: ImitationInputs, nodes: Nodes, seen: Walk) -> TrainedAgent:
    """Return the agent that follows the nodes in the model of the observed steps."""
    model, options = lesson.model(seen), lesson.options
    table = options.planner == "table" or (options.planner == "auto" and seen.states.shape[1] <= TABLE_DIMENSIONS)
    if table:
        centers, starts = lesson.centers(seen, options.cells or CELLS), seen.states[seen.first]
        agent: Agent = TableTracker(nodes, model, centers, lesson.discount, options.shift, starts)
    else:
        agent = PlanTracker(nodes, model, options.horizon, lesson.discount, options.shift, lesson.rng)
    return TrainedAgent(agent, {"model_error": model.error})


def observed(env: Any) -> int:
    """Return the dimension of the observations."""
    space = env.observation_space
    if not isinstance(space, import_gymnasium().spaces.Box):
        raise InvalidArgument(f"observation_space of env is {space}; tracking and cells need a Box")
    return int(np.prod(space.shape))


def _mean_return(seen: Walk) -> float:
    """Return the mean return of the finished episodes (the last one is usually unfinished)."""
    finished = seen.returns[:-1] if len(seen.returns) > 1 else seen.returns
    return float(finished.mean())
