"""Independent pieces of work on threads, processes or machines: handed out at once, collected as they come.

*Interrupts.* Python lets a signal act when the main thread comes back to the interpreter. So the main thread never
stays in compiled code for long: it works in small pieces, or waits for others to do a large one. When it is
interrupted, what has not begun is dropped, a flag tells compiled code that is under way to give up, and all threads are
joined before the exception goes on: nobody writes to an array afterwards. Factorizations and linear programs of other
libraries look at no flag; they are left behind (:func:`left_behind`).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.problem import available_threads
from diffbisim.progress import Progress, tracking


def executor_map(
    work: Callable[[Any], Any], pieces: Sequence[Any], executor: Executor | None, progress: Progress, what: str
) -> list[Any]:
    """``[work(piece) for piece in pieces]``, in the order of the pieces whoever finishes first.

    ``executor`` is any of the kind of ``concurrent.futures`` (processes, Dask, MPI, ...); None for threads of this
    process. Progress counts the lengths of the pieces. An error or an interrupt cancels what has not begun; threads of
    this process also give up what they have begun.
    """
    if executor is None:
        stop = stop_flag()
        with ThreadPoolExecutor(available_threads(), initializer=_obey, initargs=(stop,)) as threads:
            try:
                return executor_map(work, pieces, threads, progress, what)
            except BaseException:
                stop[0] = True
                raise
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


_here = threading.local()


def stop_flag() -> NDArray[np.bool_]:
    """Where compiled code looks whether to give up, shape (1,): that of the work which this thread does a piece of."""
    flag: NDArray[np.bool_] | None = getattr(_here, "stop", None)
    return np.zeros(1, np.bool_) if flag is None else flag


def _obey(stop: NDArray[np.bool_]) -> None:
    _here.stop = stop


def thread_map(
    work: Callable[..., Any],
    pieces: Sequence[tuple[Any, ...]],
    threads: int,
    stop: NDArray[np.bool_] | None = None,
    wait: bool = False,
) -> list[Any]:
    """``[work(*piece) for piece in pieces]``: the calling thread and ``threads - 1`` others each take the next one.

    With ``wait`` the calling thread leaves the work to ``threads`` others, since a piece may take long; ``stop`` (from
    :func:`stop_flag`) is what the work looks at. If it is set, there are no results: KeyboardInterrupt.
    """
    stop = stop_flag() if stop is None else stop
    todo, results, errors = deque(enumerate(pieces)), [None] * len(pieces), deque[BaseException]()

    def take() -> None:
        while not stop[0]:
            try:
                k, piece = todo.popleft()  # atomic
            except IndexError:
                return
            results[k] = work(*piece)

    def take_in_thread(ended: threading.Event) -> None:
        try:
            take()
        except BaseException as error:
            errors.append(error)
            todo.clear()
        finally:
            ended.set()

    ends = [threading.Event() for _ in range(min(threads, len(pieces)) - (not wait))]
    others = [threading.Thread(target=take_in_thread, args=(ended,), daemon=True) for ended in ends]
    try:
        for other in others:
            other.start()
        if not wait:
            take()
        _await(ends)
    except BaseException:
        todo.clear()
        stop[0] = True
        begun = [ended for other, ended in zip(others, ends, strict=True) if other.ident is not None]
        while not all(ended.is_set() for ended in begun):
            try:
                _await(begun)
            except KeyboardInterrupt:  # impatience does not make it faster: they are about to end
                continue
        raise
    finally:
        for other, ended in zip(others, ends, strict=True):
            if ended.is_set():
                other.join()
    if errors:
        raise errors[0]
    if stop[0]:
        raise KeyboardInterrupt
    return results


def left_behind(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """``work(*args, **options)`` in a thread of its own, for code of other libraries that cannot be told to give up.

    An interrupt acts at once and leaves the thread to end by itself: work must write nothing that anybody reads.
    """
    results, errors, ended = [], list[BaseException](), threading.Event()

    def run() -> None:
        try:
            results.append(work(*args, **options))
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    _await([ended])
    if errors:
        raise errors[0]
    return results[0]


def _await(ends: Sequence[threading.Event]) -> None:
    """Wait for all, and wake up for signals on every platform.

    Not by ``Thread.join``: one that is interrupted takes a thread that goes on for one that has ended (Python 3.11).
    """
    for ended in ends:
        while not ended.wait(0.1):
            pass


#: Cells or edges (a nanosecond or so each) below which handing work to another thread costs more than it saves.
CHUNK = 200_000

#: As many between two looks at whether the run is interrupted: 0.1 s at most.
STRETCH = 25 * CHUNK

Stop = NDArray[np.bool_]


def split(
    run: Callable[[int, int, int, Stop], Any], size: int, work: float, threads: int, pieces: int | None = None,
    wait: bool = False,
) -> list[Any]:  # fmt: skip
    """``run(piece, lo, hi, stop)`` over 0 … size-1, in as many pieces as the work is worth; results in their order.

    A given number of pieces may make them long: then ``run`` goes in :func:`stretches` that look at ``stop``. ``wait``:
    as for :func:`thread_map`.
    """
    stop = stop_flag()
    if pieces is None:
        worth = 1.0 if threads == 1 else min(8.0 * threads, work // CHUNK)
        pieces = int(min(max(worth, work // STRETCH, 1.0), size))
    if pieces == 1 and not wait and not stop[0]:
        return [run(0, 0, size, stop)]
    cuts = np.linspace(0, size, pieces + 1).astype(np.int64).tolist()
    return thread_map(run, [(k, cuts[k], cuts[k + 1], stop) for k in range(pieces)], threads, stop, wait)


def stretch(size: int, work: float) -> int:
    """How many of ``size`` pieces of ``work`` in all are a stretch."""
    return max(1, int(size * min(1.0, STRETCH / work)))


def stretches(lo: int, hi: int, step: int, stop: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """``lo … hi`` in parts of at most ``step``, until told to stop."""
    for first in range(lo, hi, step):
        if stop[0]:
            return
        yield first, min(first + step, hi)


def batches(items: Sequence[Any], most: int = 32) -> list[Sequence[Any]]:
    """Small enough that a slow one does not hold up the rest, large enough to be worth sending."""
    size = max(1, min(most, len(items) // 64))
    return [items[k : k + size] for k in range(0, len(items), size)]
