"""Independent pieces of work on threads, processes or machines: handed out at once, collected as they come."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from typing import Any

from diffbisim.problem import available_threads
from diffbisim.progress import Progress, tracking


def scattered(
    work: Callable[[Any], Any], pieces: Sequence[Any], executor: Executor | None, progress: Progress, what: str
) -> list[Any]:
    """``[work(piece) for piece in pieces]``, in the order of the pieces whoever finishes first.

    ``executor`` is any of the kind of ``concurrent.futures`` (processes, Dask, MPI, ...); None for threads of this
    process. Progress counts the lengths of the pieces. An error or an interrupt cancels what has not begun.
    """
    if executor is None:
        with ThreadPoolExecutor(available_threads()) as threads:
            return scattered(work, pieces, threads, progress, what)
    results: list[Any] = [None] * len(pieces)
    with tracking(progress, sum(map(len, pieces)), what) as advance:
        futures = {executor.submit(work, piece): k for k, piece in enumerate(pieces)}
        try:
            for future in as_completed(futures):
                k = futures[future]
                results[k] = future.result()
                advance(len(pieces[k]))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return results


def taken(work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], threads: int) -> list[Any]:
    """``[work(*piece) for piece in pieces]``: the calling thread and ``threads - 1`` others each take the next one."""
    todo, results = deque(enumerate(pieces)), [None] * len(pieces)

    def take() -> None:
        while True:
            try:
                k, piece = todo.popleft()  # atomic
            except IndexError:
                return
            results[k] = work(*piece)

    if threads == 1 or len(pieces) == 1:
        take()
        return results
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(take) for _ in range(threads - 1)]
        take()
    for other in others:
        other.result()
    return results


def batches(items: Sequence[Any], most: int = 32) -> list[Sequence[Any]]:
    """Small enough that a slow one does not hold up the rest, large enough to be worth sending."""
    size = max(1, min(most, len(items) // 64))
    return [items[k : k + size] for k in range(0, len(items), size)]
