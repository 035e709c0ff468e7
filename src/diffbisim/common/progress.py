"""Progress reports: a progress bar in the terminal, or any callable ``(done, total)``."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = bool | Callable[[int, int], object]


@contextmanager
def tracking(progress: Progress, total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Yield ``advance(by)``; ``progress`` is False, True for a bar on stderr, or a callable ``(done, total)``."""
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
    """Yield ``begin(name)``, to be called when each of ``total`` named steps begins; shows a bar with elapsed time.

    ``begin(None)`` hides the bar, so that something can be printed, until the next step begins.
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
    """Estimate of the time until a shrinking gap is below ``target``, for callbacks.

    Create ``left = TimeLeft(1e-6)`` and call ``left(gap)`` after every iteration. It returns seconds, assuming that
    further iterations take as long and shrink the gap by the same factor as the last one, or None if there is no
    estimate.
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
