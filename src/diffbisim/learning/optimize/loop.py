"""The outer loop shared by fit and imitate: move parameters θ until Y_θ is as close to the target X as possible.

    repeat    evaluate   d(X, Y_θ) at the current θ, starting from the last solution; keep the best     (objective)
              step       θ ← θ - η n along a direction n, with η from a step rule                       (update)
    until     the certified distance is within tol of zero, the update finds nothing left to gain, the callback
              returns True, or the maximum number of iterations is reached

An *objective* defines what is compared and how it is solved: exactly, tracked from step to step, or from samples. An
*update* decides where to go: along the natural direction, with a torch optimizer, or to a best response. Both are
small objects that expose their complete state, so a run can be saved between any two steps and resumed bit for bit.
The objectives and updates of fit are in fit/objectives.py and fit/updates.py, those of imitate in
imitate/objective.py and imitate/updates.py. Step rules are in steps.py, files in checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from diffbisim.common.checks import check_count
from diffbisim.common.progress import Progress, tracking
from diffbisim.learning.optimize.checkpoint import Session
from diffbisim.results.base import Status

Callback = Callable[[Mapping[str, float]], object]


class Objective(Protocol):
    """What is minimized; an evaluation has a ``result`` and whatever else the update needs."""

    #: Status of a run that reaches the maximum number of iterations.
    at_limit: Status

    def evaluate(self, level: float) -> Any:
        """Return the distance at the current parameters, for a step that aims at this level, and keep the best."""

    def account(self, at: Any) -> dict[str, float]:
        """Count the work of this evaluation, after the step, and return further entries of the history row."""

    def best(self) -> Any:
        """Return the best parameters so far, as the model stores them."""

    def state(self) -> dict[str, Any]: ...

    def resume(self, state: Mapping[str, Any]) -> None: ...


class ParameterUpdate(Protocol):
    """What moves the parameters."""

    #: Name of the number that :meth:`step` returns in a row of the history.
    column: ClassVar[str]

    @property
    def level(self) -> float:
        """The value that the next step aims at."""

    def step(self, at: Any) -> float:
        """Move the parameters and return the length of the step."""

    def settled(self, goal: float) -> bool:
        """Return whether nothing is left to gain for a run that accepts the distance `goal`."""

    @property
    def retrying(self) -> bool:
        """Whether the update settled, restarted, and has not improved since."""

    def state(self) -> dict[str, Any]: ...

    def resume(self, state: Mapping[str, Any]) -> None: ...


class LoopRun:
    """One run of the loop; ``status`` is None until the run has ended on its own."""

    def __init__(self, objective: Objective, update: ParameterUpdate, tol: float) -> None:
        self.objective, self.update, self.tol = objective, update, tol
        self.history: list[dict[str, float]] = []
        self.status: Status | None = None

    def advance(self) -> None:
        """Evaluate, and step unless the goal is reached."""
        at = self.objective.evaluate(self.update.level)
        result = at.result
        goal = self.tol * (result.problem.scale or 1.0)
        reached = result.upper <= goal
        moved = 0.0 if reached else self.update.step(at)
        row = {"value": result.value, "lower": result.lower, "upper": result.upper, "level": self.update.level}
        self.history.append({**row, self.update.column: moved, **self.objective.account(at)})
        if reached:
            self.status = Status.REACHED
        elif self.update.settled(goal):
            self.status = Status.SETTLED

    def until_done(
        self, limit: int, report: Callback | None = None, save: Callable[[], object] | None = None, every: int = 1
    ) -> Status:
        """Step until the run ends, ``report(row)`` returns True, or `max_iterations` are done, saving in between."""
        while self.status is None:
            if len(self.history) >= limit:
                return Status.SETTLED if self.update.retrying else self.objective.at_limit
            self.advance()
            if report is not None and report(self.history[-1]) and self.status is None:
                return Status.INTERRUPTED
            if save is not None and len(self.history) % every == 0:
                save()
        return self.status

    def state(self) -> dict[str, Any]:
        """Return the complete state, for a checkpoint."""
        return {
            "objective": self.objective.state(), "update": self.update.state(), "history": self.history,
            "status": self.status and self.status.name,
        }  # fmt: skip

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state`."""
        self.objective.resume(state["objective"])
        self.update.resume(state["update"])
        self.history = state["history"]
        self.status = None if state["status"] is None else Status[state["status"]]


@dataclass(frozen=True, eq=False)
class LoopOptions:
    """The caller's options for a run: number of iterations, callback, progress and checkpoint."""

    limit: int
    callback: Callback | None = None
    progress: Progress = False
    checkpoint: str | Path | None = None
    every: int = 10

    def __post_init__(self) -> None:
        check_count(self.every, "every", 1)

    def run(
        self, run: LoopRun, session: Session, state: Mapping[str, Any] | None, beside: Mapping[str, Any] | None = None
    ) -> Status:
        """Resume from `state` if there is one, run to the end, and save; `beside` is written together with the run."""

        def save() -> None:
            session.write(lambda: {**(beside or {}), "run": run.state()}, run.objective.best)

        with tracking(self.progress, self.limit, session.kind) as advance:
            if state is not None:
                run.resume(state)
                advance(len(run.history))

            def report(row: Mapping[str, float]) -> bool:
                advance(1)
                return self.callback is not None and bool(self.callback(row))

            status = run.until_done(self.limit, report, save, self.every)
        save()
        return status
