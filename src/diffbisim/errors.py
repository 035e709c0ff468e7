"""What can go wrong, by name.

Every message names the argument, the place (row, line, state) and the remedy. The errors about input are
``ValueError`` too, so that code which knows nothing of diffbisim can catch them.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


class DiffbisimError(Exception):
    """Base of every error that diffbisim raises on purpose."""


class InvalidArgument(DiffbisimError, ValueError):
    """An option is out of its range: a discount outside (0, 1), an unknown solver, an impossible size."""


class InvalidChain(DiffbisimError, ValueError):
    """A transition matrix, start, reward or label list that does not make a Markov chain (or an MDP)."""


class InvalidCost(DiffbisimError, ValueError):
    """A ground cost of the wrong shape, negative, not finite, or not defined for these two chains."""


class InvalidData(DiffbisimError, ValueError):
    """Transitions, trajectories or files that cannot be read; of a text, ``file`` and ``line`` say where."""

    file: Path | None = None
    line: int | None = None


class MissingExtra(DiffbisimError, ImportError):
    """An optional dependency is not installed; the message has the one line that installs it."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before the certified gap reached ``tol``; bounds and value are still true."""


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def warn(message: str, category: type[Warning] = ConvergenceWarning, stacklevel: int = 2) -> None:
    """``warnings.warn``, unless the caller asked for silence; ``stacklevel`` counts from the caller."""
    if not _quiet.get():
        warnings.warn(message, category, stacklevel + 1)


@contextmanager
def quietly() -> Iterator[None]:
    """No warning of diffbisim from the block, in this thread only.

    ``warnings.catch_warnings`` changes the filters of the whole process: two threads that leave it in another order
    than they entered it leave the wrong ones behind for good.
    """
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)
