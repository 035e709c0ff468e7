"""Progress of long work: a bar in the terminal, or any callable ``(done, total)``."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = bool | Callable[[int, int], object]


@contextmanager
def tracking(progress: Progress, total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Yields ``advance(by)``. ``progress``: False for silence, True for a bar on stderr, or your own callable."""
    done = 0

    def count(by: int) -> None:
        nonlocal done
        done += by
        if callable(progress):
            progress(done, total)

    if progress is not True:
        yield count
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(by: int) -> None:
            count(by)
            bar.update(task, completed=done)

        yield advance


@contextmanager
def steps(shown: bool, total: int) -> Iterator[Callable[[str | None], None]]:
    """Yields ``begin(name)``, to be called as each of ``total`` named steps begins; a bar with the time so far.

    ``begin(None)`` takes the bar away, so that something can be printed; the next step brings it back.
    """
    if not shown:
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn("line"), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    quiet: dict[str, Any] = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
    bar, begun = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), **quiet), 0
    task = bar.add_task("", total=total)

    def begin(name: str | None) -> None:
        nonlocal begun
        if name is None:
            bar.stop()
            return
        bar.update(task, description=name, completed=begun)
        begun += 1
        bar.start()

    try:
        yield begin
    finally:
        bar.stop()


class TimeLeft:
    """How long a run that shrinks a gap will take until it is below ``target``, for callbacks.

    ``left = TimeLeft(1e-6)``, and after every iteration ``left(gap)``: seconds, if iterations go on to take as long as
    the last one and to shrink the gap as much; None where that says nothing.
    """

    def __init__(self, target: float) -> None:
        self.target, self.gap, self.before = target, math.inf, time.perf_counter()

    def __call__(self, gap: float) -> float | None:
        now, gap_before, before = time.perf_counter(), self.gap, self.before
        self.gap, self.before = gap, now
        if gap <= self.target:
            return 0.0
        if not gap < gap_before < math.inf:
            return None
        return (now - before) * math.ceil(math.log(gap / self.target) / math.log(gap_before / gap) - 1e-9)
