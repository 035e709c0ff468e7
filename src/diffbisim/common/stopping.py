"""What ends a computation: Ctrl-C, a stop by another thread, or a deadline.

Every call of the engine gets a :func:`engine_run`, which holds all three. They belong to the calling thread: a pool
of threads passes on the stop of its caller, and :func:`until` sets a deadline for a block.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Least work of a thread of the engine, in table cells or edges (about 1 ns each); no result depends on it.
SHARE = 200_000.0


class StopConditions(NamedTuple):
    """What ends the work of a thread."""

    stop: NDArray[np.bool_]  # (1,) set by another thread
    deadline: float  # of time.monotonic


_here = threading.local()


def current_ends() -> StopConditions:
    """Return what ends the work of this thread."""
    ends: StopConditions | None = getattr(_here, "ends", None)
    return StopConditions(np.zeros(1, np.bool_), float("inf")) if ends is None else ends


@contextmanager
def ending_by(ends: StopConditions) -> Iterator[None]:
    """Let the work of this thread in the block end by this."""
    before = getattr(_here, "ends", None)
    _here.ends = ends
    try:
        yield
    finally:
        _here.ends = before


def stop_flag() -> NDArray[np.bool_]:
    """Return the flag, shape (1,), that tells compiled code in this thread to stop."""
    return current_ends().stop


def engine_run(threads: int = 1, deadline: float = float("inf")) -> Any:
    """Return how the engine computes a call from this thread: with so many threads, until Ctrl-C, a stop or a deadline.

    The deadline, a time of the monotonic clock, is the given one or that of :func:`until`, whichever is first. Work
    that would begin after it, or after a stop, does not begin.
    """
    from diffbisim import _engine

    stop, outer = current_ends()
    left = min(deadline, outer) - time.monotonic()
    if stop[0]:
        raise KeyboardInterrupt
    if left <= 0.0:
        raise TimeoutError
    return _engine.Run(threads, stop, left, SHARE)


class TimeUp(Exception):
    """Work was cut short at a deadline; see :func:`until`."""


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Stop the sweeps in the block at a time of the monotonic clock, as an interrupt would, and raise :class:`TimeUp`.

    What the block has written is then incomplete. An interrupt of the user, or of a pool that this thread works for,
    is passed on.
    """
    if deadline == float("inf"):
        yield
        return
    outer, outer_deadline = current_ends()
    stop, ended, late = np.zeros(1, np.bool_), threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(min(max(deadline - time.monotonic(), 0.0), 0.05)):
            if time.monotonic() >= deadline:
                late.set()
            if late.is_set() or outer[0]:
                stop[0] = True
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with ending_by(StopConditions(stop, min(deadline, outer_deadline))):
            yield
    except TimeoutError:  # the engine's deadline
        raise TimeUp from None
    except KeyboardInterrupt:
        if late.is_set() and not outer[0]:
            raise TimeUp from None
        raise
    finally:
        ended.set()
        watcher.join()
    if late.is_set():
        raise TimeUp
