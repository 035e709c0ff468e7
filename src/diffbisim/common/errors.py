"""Exceptions and warnings.

Every message names the argument, the place (row, line, state) and the remedy. Errors about input also derive from
``ValueError``, so generic code can catch them.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


class DiffbisimError(Exception):
    """Base class of all exceptions that diffbisim raises deliberately."""


class InvalidArgument(DiffbisimError, ValueError):
    """An option is invalid: a discount outside (0, 1), an unknown solver, an impossible size."""


class InvalidChain(DiffbisimError, ValueError):
    """The transition matrix, initial distribution, rewards or names do not define a Markov chain (or an MDP)."""


class InvalidCost(DiffbisimError, ValueError):
    """A ground cost has the wrong shape, is negative or not finite, or is not defined for these two chains."""


class InvalidData(DiffbisimError, ValueError):
    """Transitions, trajectories or files cannot be read; for text files ``file`` and ``line`` give the place."""

    file: Path | None = None
    line: int | None = None


class MissingExtra(DiffbisimError, ImportError):
    """An optional dependency is not installed; the message contains the command that installs it."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before the certified gap reached ``tol``; the bounds it returned are still valid."""


class InputWarning(UserWarning):
    """A part of the input was not used, or something was assumed about it; the message says what, and the remedy."""


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def warn(message: str, category: type[Warning] = ConvergenceWarning, stacklevel: int = 2) -> None:
    """Issue a warning unless inside :func:`quietly`; ``stacklevel`` counts from the caller."""
    if not _quiet.get():
        warnings.warn(message, category, stacklevel + 1)


def warn_of_input(message: str) -> None:
    """Issue an :class:`InputWarning` for the line outside this package that called it, unless in :func:`quietly`."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warn(message, InputWarning, stacklevel=level)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress diffbisim's own warnings inside the block, in the current thread only.

    ``warnings.catch_warnings`` is not thread-safe: it changes the filters of the whole process, and threads that exit
    it in a different order than they entered it leave the wrong filters behind.
    """
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)
