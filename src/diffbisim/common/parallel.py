"""Parallel execution of independent tasks on threads, processes or machines.

*Executors.* :func:`tasks` accepts as ``executor``

    None                             threads of this process
    a concurrent.futures executor    threads, processes, MPI, …: any object with ``submit``
    a Dask Client or its address     the workers of a cluster, such as ``"tcp://host:8786"``
    "joblib"                         the backend of ``joblib.parallel_config``: loky, dask, ray, …

Data shared by all tasks are sent once: cluster workers get them by Dask's broadcast, processes read them from a file
(or, if they run on another machine, receive them with the task), and threads use them directly. Results are in the
order of the tasks, so they are bitwise the same on one thread and on a hundred machines.

*Lost workers.* The unfinished tasks of a lost worker are repeated: Dask assigns them to another worker, and a broken
process pool is replaced by a new one. After three failures in a row without progress an error is raised (Dask has
``distributed.scheduler.allowed-failures``).

*Interrupts.* Python handles signals only when the main thread returns to the interpreter. The main thread therefore
never stays in compiled code for long: it works in small pieces, or waits while other threads do a large one. On an
interrupt, pending tasks are dropped, a flag tells running compiled code to stop, and all threads are joined before the
exception propagates, so that no array is written to afterwards. Factorizations and linear programs of other libraries
cannot be stopped; they run in a thread that is abandoned (:func:`run_abandonable`).
"""

import os
import pickle
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.arrays import available_threads
from diffbisim.common.errors import DiffbisimError, InvalidArgument, MissingExtra, warn
from diffbisim.common.progress import Progress, tracking
from diffbisim.common.stopping import StopConditions, TimeUp, current_ends, ending_by, stop_flag
from diffbisim.common.stopping import engine_run as engine_run
from diffbisim.common.stopping import until as until

#: Number of consecutive failures of workers without progress before giving up.
DEATHS = 3

#: Seconds between two checks that a cluster still has the shared data.
WATCH = 3.0

Work = Callable[[Any, Any], Any]  # (shared, item) -> result
Done = Generator[tuple[int, Any], None, None]  # index of an item, and its result
Executor = Any  # None, "joblib", the address of a Dask scheduler, its Client, or a concurrent.futures.Executor


def tasks(
    work: Work,
    items: Sequence[Any],
    shared: Any = None,
    executor: Executor = None,
    progress: Progress = False,
    what: str = "tasks",
) -> list[Any]:
    """Return ``[work(shared, item) for item in items]``, computed by the ``executor``.

    ``work`` must be importable by workers (a module-level function). An error or interrupt cancels all tasks. Progress
    counts batches by their lengths.
    """
    results: list[Any] = [None] * len(items)
    sizes = [len(item) if isinstance(item, (list, range, np.ndarray)) else 1 for item in items]
    with tracking(progress, sum(sizes), what) as advance, closing(as_done(work, items, shared, executor)) as done:
        for k, result in done:
            results[k] = result
            advance(sizes[k])
    return results


def as_done(work: Work, items: Sequence[Any], shared: Any = None, executor: Executor = None) -> Done:
    """Yield ``(k, work(shared, items[k]))`` as tasks finish; closing the iterator drops pending tasks."""
    left, deaths = dict(enumerate(items)), 0
    with _workers(executor, shared) as hire:
        while left:
            before = len(left)
            with closing(hire(work, dict(left))) as done:
                for k, result in done:
                    del left[k]
                    yield k, result
            deaths = 0 if len(left) < before else deaths + 1
            if deaths == DEATHS:
                raise DiffbisimError(
                    f"workers died {DEATHS} times during the same {len(left)} tasks; give them more memory, or omit "
                    "executor to see the error"
                )


@contextmanager
def _workers(executor: Executor, shared: Any) -> Iterator[Callable[[Work, Mapping[int, Any]], Done]]:
    """Yield a function that maps ``(work, items by index)`` to an iterator of ``(index, result)``.

    Results lost with a worker are missing; calling the function again with the remaining items uses other workers.
    """
    if executor is None:
        with ThreadPoolExecutor(available_threads()) as threads, _workers(threads, shared) as hire:
            yield hire
    elif isinstance(executor, ThreadPoolExecutor):
        ends = StopConditions(np.zeros(1, np.bool_), current_ends().deadline)
        try:
            yield partial(_submitted, executor, InMemory(shared, ends))
        except BaseException:
            ends.stop[0] = True  # tasks that have begun end, too
            raise
    elif isinstance(executor, str) and executor != "joblib":
        with dask_client(executor) as client, _workers(client, shared) as hire:
            yield hire
    elif hasattr(executor, "get_executor"):  # a Dask Client, which is not an Executor itself

        def hire(work: Work, left: Mapping[int, Any]) -> Done:
            sent = broadcast(executor, [InMemory(shared)])  # again, since lost workers may have had the last copy
            return _submitted(executor.get_executor(pure=False), sent[0], work, left, partial(is_lost, executor, sent))

        yield hire
    elif isinstance(executor, str) or hasattr(executor, "submit"):
        with _Pool(executor, shared) as pool:
            yield pool.hire
    else:
        raise InvalidArgument(
            f"executor is a {type(executor).__name__}; give a concurrent.futures.Executor, a Dask Client or its "
            'address ("tcp://host:8786"), "joblib", or None for threads of this process'
        )


@contextmanager
def dask_client(cluster: Any) -> Iterator[Any]:
    """Yield a Dask Client: the given one, or a new one for an address, which is closed at the end."""
    if hasattr(cluster, "get_executor"):
        yield cluster
        return
    if not isinstance(cluster, str) or "://" not in cluster:
        raise InvalidArgument(f"{cluster!r} is not a cluster; give a Dask Client, or an address like tcp://host:8786")
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra(f"the Dask cluster {cluster} needs Dask: pip install 'diffbisim[cluster]'") from error
    connect: Any = Client
    try:
        client = connect(cluster, timeout="10s", set_as_default=False)
    except OSError as error:
        raise InvalidArgument(f"no Dask scheduler responds at {cluster}; start one with 'dask scheduler'") from error
    with client:
        yield client


def broadcast(client: Any, what: list[Any]) -> Any:
    """Send each object to all workers of a Dask cluster, waiting for at least one."""
    client.wait_for_workers(1)
    return client.scatter(what, broadcast=True, hash=False)


def is_lost(client: Any, sent: Any) -> bool:
    """Return whether the last copy of some data was lost with its worker; tasks that need it would wait forever."""
    try:
        return not all(client.who_has(sent).values())
    except CancelledError:  # the client has noticed the loss itself
        return True


def _submitted(
    executor: Any, shared: Any, work: Work, left: Mapping[int, Any], lost: Callable[[], bool] | None = None
) -> Done:
    """Submit the items and yield results; ``lost()`` tells during long waits whether the shared data are lost."""
    futures: dict[Any, int] = {}
    try:
        with suppress(BrokenExecutor):  # the pool may break during submission
            for k, item in left.items():
                futures[executor.submit(partial(_call, work, item), shared)] = k
        yield from _collected(futures, lost)
    finally:
        for future in futures:
            future.cancel()


def _collected(futures: dict[Any, int], lost: Callable[[], bool] | None) -> Done:
    """Yield results of futures as they complete, removing them from ``futures``."""
    done = as_completed(list(futures), None if lost is None else WATCH)
    while futures:
        try:
            future = next(done)
        except TimeoutError:
            if lost is not None and lost():
                return
            done = as_completed(list(futures), WATCH)
            continue
        k = futures.pop(future)
        try:
            result = future.result()
        except (BrokenExecutor, CancelledError, SharedFileMissing):
            continue
        yield k, result


def _call(work: Work, item: Any, shared: Any) -> Any:
    """Run one task in a worker; in a thread of this process, until its caller tells it to stop."""
    if getattr(shared, "ends", None) is None:
        return work(shared.fetch(), item)
    with ending_by(shared.ends):
        return work(shared.fetch(), item)


# --- shared data -----------------------------------------------------------------------------------------------


class SharedFileMissing(Exception):
    """A worker cannot read the file with the shared data."""


@dataclass(frozen=True, eq=False)
class InMemory:
    """Shared data that are passed as they are; to threads of this process together with what ends their work."""

    what: Any
    ends: "StopConditions | None" = None

    def fetch(self) -> Any:
        return self.what


@dataclass(frozen=True, eq=False)
class InSharedFile:
    """Shared data in a file that each process reads once, or as bytes for workers without access to the file."""

    path: str
    pickled: bytes | None = None

    def fetch(self) -> Any:
        global _read
        path, what = _read
        if path != self.path:
            try:
                what = pickle.loads(Path(self.path).read_bytes() if self.pickled is None else self.pickled)
            except OSError as error:
                raise SharedFileMissing(self.path) from error
            _read = self.path, what
        return what


_read: tuple[str, Any] = "", None  # cache of the last file; a process mostly works for one caller at a time


class _Pool:
    """A process pool of an executor or of joblib that is replaced when it breaks."""

    def __init__(self, executor: Any, shared: Any) -> None:
        self.executor, self.used, self.own = executor, False, ExitStack()
        self.shared: InMemory | InSharedFile = InMemory(shared)

    def __enter__(self) -> "_Pool":
        with suppress(Exception):  # data that cannot be pickled are sent with every task by the executor
            self.pickled = pickle.dumps(self.shared.fetch(), pickle.HIGHEST_PROTOCOL)
            file, path = tempfile.mkstemp(prefix="diffbisim-", suffix=".pickle")
            self.own.callback(os.unlink, path)
            with open(file, "wb") as opened:
                opened.write(self.pickled)
            self.shared = InSharedFile(path)
        return self

    def __exit__(self, *error: object) -> None:
        self.own.close()

    def hire(self, work: Work, left: Mapping[int, Any]) -> Done:
        if self.used:
            self._replace(len(left))
        self.used = True
        return (_by_joblib if self.executor == "joblib" else partial(_submitted, self.executor))(
            self.shared, work, left
        )

    def _replace(self, lost: int) -> None:
        """After a loss, start new processes if the pool is broken; otherwise send the data instead of the file."""
        if self.executor != "joblib":  # joblib replaces its processes itself
            try:
                self.executor.submit(int)
            except BrokenExecutor:
                old, start = self.executor, get_context("spawn")
                self.executor = self.own.enter_context(ProcessPoolExecutor(
                    getattr(old, "_max_workers", None), getattr(old, "_mp_context", start),
                    getattr(old, "_initializer", None), getattr(old, "_initargs", ()),
                ))  # fmt: skip
                warn(f"a process of the executor died; new ones take over the {lost} tasks left", RuntimeWarning, 6)
                return
        if isinstance(self.shared, InSharedFile):
            self.shared = InSharedFile(self.shared.path, self.pickled)


def _by_joblib(shared: Any, work: Work, left: Mapping[int, Any]) -> Done:
    """Run tasks with the backend and number of workers of ``joblib.parallel_config``."""
    try:
        from joblib import Parallel, delayed, parallel
    except ImportError as error:
        raise MissingExtra("executor='joblib' needs joblib: pip install joblib") from error
    streams = parallel.get_active_backend()[0].supports_return_generator
    run = Parallel(return_as="generator_unordered" if streams else "list")
    with suppress(BrokenExecutor, SharedFileMissing):
        yield from run(delayed(_numbered)(k, work, item, shared) for k, item in left.items())


def _numbered(k: int, work: Work, item: Any, shared: Any) -> tuple[int, Any]:
    return k, _call(work, item, shared)


# --- threads of this process -----------------------------------------------------------------------------------


def thread_map(
    work: Callable[..., Any],
    pieces: Sequence[tuple[Any, ...]],
    threads: int,
    stop: NDArray[np.bool_] | None = None,
    wait: bool = False,
) -> list[Any]:
    """Return ``[work(*piece) for piece in pieces]``, computed by the calling thread and ``threads - 1`` others.

    With ``wait=True`` the calling thread only waits for ``threads`` others, since a piece may take long. ``stop`` (from
    :func:`stop_flag`) is the flag that the work checks; if it is set, KeyboardInterrupt is raised.
    """
    ends = current_ends()
    ends = ends if stop is None else ends._replace(stop=stop)
    stop = ends.stop
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
            with ending_by(ends):
                take()
        except BaseException as error:
            errors.append(error)
            todo.clear()
        finally:
            ended.set()

    all_ended = [threading.Event() for _ in range(min(threads, len(pieces)) - (not wait))]
    others = [threading.Thread(target=take_in_thread, args=(ended,), daemon=True) for ended in all_ended]
    try:
        for other in others:
            other.start()
        if not wait:
            take()
        _await(all_ended)
    except BaseException:
        todo.clear()
        stop[0] = True
        begun = [ended for other, ended in zip(others, all_ended, strict=True) if other.ident is not None]
        while not all(ended.is_set() for ended in begun):
            try:
                _await(begun)
            except KeyboardInterrupt:  # the threads are about to end anyway
                continue
        raise
    finally:
        for other, ended in zip(others, all_ended, strict=True):
            if ended.is_set():
                other.join()
    if errors:
        raise errors[0]
    if stop[0]:
        raise KeyboardInterrupt
    return results


def run_abandonable(work: Callable[..., Any], *args: Any, deadline: float = float("inf"), **options: Any) -> Any:
    """Run ``work(*args, **options)`` in its own thread, for code of other libraries that cannot be interrupted.

    An interrupt takes effect immediately and abandons the thread, so ``work`` must not write to shared data. The same
    holds for the ``deadline``, a time of the monotonic clock, at which :class:`TimeUp` is raised.
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
    while not ended.wait(min(max(deadline - time.monotonic(), 0.0), 0.1)):
        if time.monotonic() >= deadline:
            raise TimeUp
    if errors:
        raise errors[0]
    return results[0]


def _await(ends: Sequence[threading.Event]) -> None:
    """Wait for all events, handling signals on every platform.

    ``Thread.join`` is not used because in Python 3.11 an interrupted join marks a running thread as finished.
    """
    for ended in ends:
        while not ended.wait(0.1):
            pass


#: Amount of work, in table cells or edges (about 1 ns each), below which another thread costs more than it saves.
CHUNK = 200_000

#: Amount of work between two checks for an interrupt: at most 0.1 s.
WORK_BETWEEN_CHECKS = 25 * CHUNK

Stop = NDArray[np.bool_]


def split(
    run: Callable[[int, int, int, Stop], Any], size: int, work: float, threads: int, pieces: int | None = None,
    wait: bool = False,
) -> list[Any]:  # fmt: skip
    """Call ``run(piece, lo, hi, stop)`` on consecutive pieces of 0 … size-1 and return the results in order.

    The number of pieces depends on the amount of ``work``. If it is given, pieces may be long, and ``run`` should use
    :func:`interruptible_parts` to check ``stop``. ``wait`` is as for :func:`thread_map`.
    """
    stop = stop_flag()
    if pieces is None:
        worth = 1.0 if threads == 1 else min(8.0 * threads, work // CHUNK)
        pieces = int(min(max(worth, work // WORK_BETWEEN_CHECKS, 1.0), size))
    if pieces == 1 and not wait and not stop[0]:
        return [run(0, 0, size, stop)]
    cuts = np.linspace(0, size, pieces + 1).astype(np.int64).tolist()
    return thread_map(run, [(k, cuts[k], cuts[k + 1], stop) for k in range(pieces)], threads, stop, wait)


def part_size(size: int, work: float) -> int:
    """Return how many of ``size`` items with a total of ``work`` to process between two checks for an interrupt."""
    return max(1, int(size * min(1.0, WORK_BETWEEN_CHECKS / work)))


def interruptible_parts(lo: int, hi: int, step: int, stop: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield consecutive parts of ``lo … hi`` of at most ``step`` items, until ``stop`` is set."""
    for first in range(lo, hi, step):
        if stop[0]:
            return
        yield first, min(first + step, hi)


def batches(items: Any, most: int = 32) -> list[Any]:
    """Split a list or an array into batches, small enough to balance the load and large enough to be worth sending."""
    size = max(1, min(most, len(items) // 64))
    return [items[k : k + size] for k in range(0, len(items), size)]


def executor_map(
    work: Callable[[Any], Any], pieces: Sequence[Any], executor: Executor, progress: Progress, what: str
) -> list[Any]:
    """Return ``[work(piece) for piece in pieces]``, computed by :func:`tasks`."""
    return tasks(_first, pieces, work, executor, progress, what)


def _first(work: Callable[[Any], Any], piece: Any) -> Any:
    return work(piece)
