"""What a solver is, and the one loop that drives those that go from table to table.

A solver is a small frozen object with options and ``solve(problem, warm, callback) -> DistanceResult``. What a caller
may want to know of it before it runs stands on it (:class:`Solver`), so that nobody has to ask what kind it is.

The exact solver and both Sinkhorn solvers iterate: *improve* the plans for the present table, *check* what that
certifies, *evaluate* the plans to get the next table. When to stop is the same for all (:func:`iterate`): the certified
gap is small enough, the caller or the clock says so, or rounding leaves nothing to gain.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult, Row, Status

Callback = Callable[[Mapping[str, float]], object]
R = TypeVar("R", bound=DistanceResult)

Arrays = Mapping[str, Any]  # what was read from a file, by name

#: How far the marginals of a plan from a file may be off: many times the rounding of the longest rows.
MARGINALS = 1e-9

#: Checks in a row that do not halve the gap, near what rounding allows, after which a run has stalled.
PATIENCE, NEAR = 4, 100.0

#: An iteration that would end later than this many times the time limit, if it took as long as the last, is not begun.
OVERRUN = 1.2


class Solver(Protocol):
    """What :func:`diffbisim.distance` and all that is built on it need of a solver: options or constants of its class.

    A new solver is this, and its line in the registry of ``solvers/__init__.py``.
    """

    #: What ``solver=`` calls it, and results say.
    name: str

    #: Certified gap to reach, relative to the largest cost; None if it has none of its own.
    tol: float | None

    #: How many threads to use; None for all processors where that pays. One where it has no choice.
    threads: int | None

    #: Whether it can work from samples alone, by an ``estimate`` method that takes streams in place of the chains.
    samples: bool

    #: Whether it can follow a chain that moves, a little work for every step (``loop="single"`` of a fit).
    tracks: bool

    #: The kinds of problems that it can solve (:attr:`diffbisim.problem.Problem.criterion`).
    criteria: tuple[str, ...]

    def solve(
        self, problem: Problem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """The distance, from a previous result if given; ``callback(row of history)`` true stops the run."""


def check_options(solver: Any, *positive: str) -> None:
    """Refuse options that must be positive numbers, or None, and are not."""
    for name in positive:
        option = getattr(solver, name)
        if option is not None and not as_number(option) > 0:
            example = ", e.g. tol=1e-8" if name == "tol" else ""
            raise InvalidArgument(f"{name} is {option!r}; it must be positive{example}")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run has to end."""

    tol: float  # certified gap, relative to the largest cost
    max_iterations: float = float("inf")
    time_limit: float | None = None  # seconds


class Check(NamedTuple):
    """What an iteration certifies."""

    row: Row  # of history: value, lower, upper, and what the solver counts
    gap: float  # upper - lower, relative to the largest cost
    floor: float  # the least gap that rounding allows


class Run(Protocol):
    """One solve in progress."""

    def improve(self, iteration: int) -> None:
        """Better plans for the present table."""

    def is_due(self, iteration: int) -> bool:
        """Whether a check is worth its cost now; the last iteration is always checked."""
        return True

    def check(self, iteration: int) -> Check:
        """Bounds from the present plans."""

    def evaluate(self) -> None:
        """The next table."""

    def coupling(self) -> Any:
        """What is known at the end."""

    @property
    def work(self) -> Mapping[str, int]:
        """Counts of what was done so far."""


class Ended(NamedTuple):
    """How a run ended."""

    status: Status
    iterations: int
    history: tuple[Row, ...]


def deadline_of(time_limit: float | None) -> float:
    """When so many seconds are over, by ``time.monotonic``; never for None."""
    return time.monotonic() + (float("inf") if time_limit is None else time_limit)


def iterate(run: Run, limits: Limits, callback: Callback | None = None) -> Ended:
    """Improve, check and evaluate until one of the limits is met."""
    history: list[Row] = []
    deadline, before = deadline_of(limits.time_limit), time.monotonic()
    latest = deadline_of(None if limits.time_limit is None else OVERRUN * limits.time_limit)
    stalled, best = 0, float("inf")
    for iteration in count(1):
        run.improve(iteration)
        now = time.monotonic()
        next_ends = 2 * now - before if iteration > 1 else now  # the first may have compiled
        late, spent = now > deadline or next_ends > latest, iteration >= limits.max_iterations
        before = now
        if late or spent or run.is_due(iteration):
            row, gap, floor = run.check(iteration)
            history.append(row)
            stalled, best = (0, gap) if gap < best / 2 else (stalled + 1, best)
            stop = callback is not None and callback(row)
            status = (
                Status.CONVERGED if gap <= limits.tol
                else Status.INTERRUPTED if stop
                else Status.ROUNDING if stalled >= PATIENCE and gap <= NEAR * floor
                else Status.ITERATIONS if spent
                else Status.TIME if late
                else None
            )  # fmt: skip
            if status is not None:
                return Ended(status, iteration, tuple(history))
        run.evaluate()
    raise AssertionError("count never ends")


def finish(kind: type[R], run: Run, problem: Any, options: Any, callback: Callback | None) -> R:
    """Iterate until one of the limits in the options is met: the result, of this kind."""
    ended = iterate(run, Limits(options.tol or 0.0, options.max_iterations, options.time_limit), callback)
    last = ended.history[-1]
    return kind(
        problem, last["value"], last["lower"], last["upper"], ended.status, ended.iterations, options.name,
        run.coupling(), ended.history, run.work,
    )  # fmt: skip
