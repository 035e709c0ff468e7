"""The solver protocol, and the loop shared by iterative solvers.

A solver is a small frozen object with options and ``solve(problem, warm, callback) -> DistanceResult``. Its
capabilities are attributes (:class:`Solver`), so that callers never need to check its type.

The exact solver and both Sinkhorn solvers iterate: *improve* the plans for the current table, *check* the bounds that
they certify, and *evaluate* the plans to get the next table. All stop by the same rules (:func:`iterate`): the
certified gap is small enough, the callback or a limit ends the run, or rounding prevents further progress.
"""

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from diffbisim.common.checks import as_number
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.stopping import TimeUp, until
from diffbisim.problems.base import ChainProblem, Problem
from diffbisim.results.base import DistanceResult, HistoryRow, Status

Callback = Callable[[Mapping[str, float]], object]
R = TypeVar("R", bound=DistanceResult)

Arrays = Mapping[str, Any]  # arrays of a file, by name

#: Largest error of the marginals of a plan from a file: many times the rounding error of the longest rows.
MARGINALS = 1e-9

#: A run has stalled if this many checks in a row do not halve the gap ...
PATIENCE = 4

#: ... while it is within this factor of the smallest gap that rounding allows.
MAX_RATIO_TO_ROUNDING = 100.0

#: A step that is still under way this share of the time limit after it, and these seconds at least, is abandoned.
GRACE, LEAST_GRACE = 0.1, 0.05


class Solver(Protocol):
    """What :func:`diffbisim.distance` and its callers need of a solver, as options or class attributes.

    A new solver implements this and is entered in the registry of ``solvers/__init__.py``.
    """

    #: Its name, for ``solver=`` and in results.
    name: str

    #: Certified gap to reach, relative to the largest cost; None if it has no tolerance.
    tol: float | None

    #: Number of threads; None for all processors if the work is large enough, 1 if there is no choice.
    threads: int | None

    #: Whether it can work from samples, with a method ``estimate`` that takes streams instead of chains.
    samples: bool

    #: Whether it can track a changing chain with little work per step (``loop="single"`` of a fit).
    tracks: bool

    #: The classes of the problems that it can solve (problems/).
    solves: tuple[type[Problem], ...]

    def solve(
        self, problem: ChainProblem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Solve for the distance, starting from a previous result if given; stops if ``callback(row)`` is true."""


def check_options(solver: Any, *positive: str) -> None:
    """Raise if an option that must be a positive number, or None, is not."""
    for name in positive:
        option = getattr(solver, name)
        if option is not None and not as_number(option) > 0:
            example = ", e.g. tol=1e-8" if name == "tol" else ""
            raise InvalidArgument(f"{name} is {option!r}; it must be positive{example}")
        if option is not None and name == "threads" and not float(option).is_integer():
            raise InvalidArgument(f"threads is {option!r}; it must be a whole number")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run must end."""

    tol: float  # certified gap, relative to the largest cost
    max_iterations: float = float("inf")
    time_limit: float | None = None  # seconds


class Check(NamedTuple):
    """The bounds certified by an iteration."""

    row: HistoryRow  # row of the history: value, lower, upper, and counts of the solver
    gap: float  # upper - lower, relative to the largest cost
    floor: float  # the smallest gap that rounding allows


class SolverRun(Protocol):
    """A solve in progress."""

    def improve(self, iteration: int) -> None:
        """Improve the plans for the current table."""

    def is_due(self, iteration: int) -> bool:
        """Return whether a check is worth its cost now; the last iteration is always checked."""
        return True

    def check(self, iteration: int) -> Check:
        """Compute bounds from the current plans."""

    def evaluate(self) -> None:
        """Compute the next table."""

    def hurry(self) -> None:
        """Let the next improvement find any plans at once, which prove nothing: the time is over."""
        return None  # noqa: RET501

    def coupling(self) -> Any:
        """Return the coupling of the last check."""

    def end(self) -> None:
        """Release what is only needed during the run."""
        return None  # noqa: RET501

    @property
    def work(self) -> Mapping[str, int]:
        """Counts of the work so far."""


class Ended(NamedTuple):
    """How a run ended."""

    status: Status
    iterations: int
    history: tuple[HistoryRow, ...]
    coupling: Any


def deadline_of(time_limit: float | None) -> float:
    """Return the time, by ``time.monotonic``, when `time_limit` seconds are over; infinity for None."""
    return time.monotonic() + (float("inf") if time_limit is None else time_limit)


def iterate(run: SolverRun, limits: Limits, callback: Callback | None = None) -> Ended:
    """Improve, check and evaluate until a limit is reached.

    A step that does not end in time is abandoned, and the run ends as the last check has left it. If there was none, it
    ends with any plans, and with the bounds of all problems with these costs.
    """
    history: list[HistoryRow] = []
    timed = limits.time_limit is not None
    deadline, kept = deadline_of(limits.time_limit), None
    last_moment = deadline + max(GRACE * (limits.time_limit or 0.0), LEAST_GRACE)
    stalled, best = 0, float("inf")
    for iteration in count(1):
        try:
            with until(last_moment):
                if iteration > 1:
                    run.evaluate()
                run.improve(iteration)
        except TimeUp:
            if kept is not None:
                return Ended(Status.TIME, iteration - 1, tuple(history), kept)
            run.hurry()
            run.improve(iteration)
        late, spent = time.monotonic() > deadline, iteration >= limits.max_iterations
        if late or spent or run.is_due(iteration):
            row, gap, floor = run.check(iteration)
            history.append(row)
            stalled, best = (0, gap) if gap < best / 2 else (stalled + 1, best)
            stop = callback is not None and callback(row)
            status = (
                Status.CONVERGED if gap <= limits.tol
                else Status.INTERRUPTED if stop
                else Status.ROUNDING if stalled >= PATIENCE and gap <= MAX_RATIO_TO_ROUNDING * floor
                else Status.ITERATIONS if spent
                else Status.TIME if late
                else None
            )  # fmt: skip
            if status is not None:
                return Ended(status, iteration, tuple(history), run.coupling())
            if timed:
                kept = _detached(run.coupling())
    raise AssertionError("count never ends")


def _detached(coupling: Any) -> Any:
    """Return a coupling whose tables the run does not change any more."""
    kept = copy(coupling)
    for name, part in vars(kept).items():
        if isinstance(part, np.ndarray):
            setattr(kept, name, part.copy())
    return kept


def finish(kind: type[R], run: SolverRun, problem: Any, options: Any, callback: Callback | None) -> R:
    """Iterate until a limit in the options is reached, and return the result."""
    ended = iterate(run, Limits(options.tol or 0.0, options.max_iterations, options.time_limit), callback)
    run.end()
    last = ended.history[-1]
    return kind(
        problem, last["value"], last["lower"], last["upper"], ended.status, ended.iterations, options.name,
        ended.coupling, ended.history, run.work,
    )  # fmt: skip
