"""The outer loop that fit and imitate share: parameters θ move until Y_θ is as close to the target X as they can get.

    repeat    evaluate   d(X, Y_θ) at the present θ, from the last solution; what is best is kept      (objective)
              step       θ ← θ - η n, along a direction n, as far as a step rule says                  (update)
    until     the certified distance is within tol of zero, the update sees nothing left to gain, the callback says so,
              or the steps are over

An *objective* knows what is compared and how it is solved: exactly, tracked from step to step, or from samples. An
*update* knows where to go from there: the natural direction, the gradient by a torch optimizer, a best response. Each
is a small object that can say all of its state, so a run can be stored between any two steps and goes on to the same
bits. The objectives and updates of fit are in fit/objectives.py and fit/updates.py, those of imitate in
imitate/objective.py and imitate/updates.py; step rules in steps.py, files in checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from diffbisim.checks import check_count
from diffbisim.errors import InvalidArgument
from diffbisim.optimize.checkpoint import Session
from diffbisim.progress import Progress, tracking
from diffbisim.results import Status

Callback = Callable[[Mapping[str, float]], object]


class Objective(Protocol):
    """What is minimized, at parameters that an update moves.

    Its evaluations have a ``result``, and whatever else it shares with the update.
    """

    #: What it means that all steps are made.
    at_limit: Status

    def evaluate(self, level: float) -> Any:
        """The distance at the present parameters, for a step that aims at this level; what is best is kept."""

    def account(self, at: Any) -> dict[str, float]:
        """Count the work of this evaluation, after the step; returns what else a row of history says."""

    def best(self) -> Any:
        """The best parameters so far, as the model holds them."""

    def state(self) -> dict[str, Any]: ...

    def resume(self, state: Mapping[str, Any]) -> None: ...


class Update(Protocol):
    """What moves the parameters."""

    #: What a row of history calls the number that :meth:`step` returns.
    column: ClassVar[str]

    @property
    def level(self) -> float:
        """What the next step aims at."""

    def step(self, at: Any) -> float:
        """Move, and say how far."""

    def settled(self, goal: float) -> bool:
        """Whether nothing is left to gain, for a run that would be content with the distance ``goal``."""

    @property
    def retrying(self) -> bool:
        """Whether it had settled, began again, and has gained nothing since."""

    def state(self) -> dict[str, Any]: ...

    def resume(self, state: Mapping[str, Any]) -> None: ...


class Run:
    """One run of the loop; ``status`` is None until it has ended by itself."""

    def __init__(self, objective: Objective, update: Update, tol: float) -> None:
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
        """Steps until the run ends, ``report(row)`` is true, or ``limit`` are made; ``save()`` between steps."""
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
        """All of it, as a checkpoint can hold it."""
        return {
            "objective": self.objective.state(), "update": self.update.state(), "history": self.history,
            "status": self.status and self.status.name,
        }  # fmt: skip

    def resume(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.objective.resume(state["objective"])
        self.update.resume(state["update"])
        self.history = state["history"]
        self.status = None if state["status"] is None else Status[state["status"]]


@dataclass(frozen=True, eq=False)
class Watch:
    """What a caller wants of a run: how many steps, whom to tell, and where to write it."""

    limit: int
    callback: Callback | None = None
    progress: Progress = False
    checkpoint: str | Path | None = None
    every: int = 10

    def __post_init__(self) -> None:
        if check_count(self.every, "every") == 0:
            raise InvalidArgument("every is 0; a checkpoint is written every so many steps: give at least 1")

    def run(
        self, run: Run, session: Session, state: Mapping[str, Any] | None, beside: Mapping[str, Any] | None = None
    ) -> Status:
        """From a stored state if there is one, to an end; what stands ``beside`` the run is written with it."""

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
