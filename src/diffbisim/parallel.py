"""Independent pieces of work on threads, processes or machines: handed out at once, collected as they come.

*Where.* :func:`tasks` takes an ``executor``:

    None                          threads of this process
    a concurrent.futures one      threads, processes, MPI, ...: whatever has ``submit``
    a Dask Client, its address    ``"tcp://host:8786"``: the workers of a cluster
    "joblib"                      the backend of ``joblib.parallel_config``: loky, dask, ray, ...

What all tasks share is sent once, not with every task: workers of a cluster get it by Dask's broadcast, processes read
it from a file (where they cannot, on another machine, it comes with the task after all), threads have it. Results
stand in the order of the tasks, whoever finishes first: the same bits on one thread and on a hundred machines.

*Deaths.* A worker that dies costs what it was doing. Dask gives that to another; a pool of processes is broken for
good, and what it left undone is done by a fresh pool like it. Work that kills its worker again and again is given up
with an error (three times in a row; Dask has ``distributed.scheduler.allowed-failures``).

*Interrupts.* Python lets a signal act when the main thread comes back to the interpreter. So the main thread never
stays in compiled code for long: it works in small pieces, or waits for others to do a large one. When it is
interrupted, what has not begun is dropped, a flag tells compiled code that is under way to give up, and all threads are
joined before the exception goes on: nobody writes to an array afterwards. Factorizations and linear programs of other
libraries look at no flag; they are left behind (:func:`left_behind`).
"""

import os
import pickle
import tempfile
import threading
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

from diffbisim.errors import DiffbisimError, InvalidArgument, MissingExtra, warn
from diffbisim.problem import available_threads
from diffbisim.progress import Progress, tracking

#: Times in a row that workers may die without having done anything.
DEATHS = 3

#: Seconds between two looks at whether a cluster still has what its tasks need.
WATCH = 3.0

Work = Callable[[Any, Any], Any]  # (shared, item) -> result
Done = Generator[tuple[int, Any], None, None]  # number of an item, and its result
Executor = Any  # None, "joblib", the address of a Dask scheduler, its Client, or a concurrent.futures.Executor


def tasks(
    work: Work,
    items: Sequence[Any],
    shared: Any = None,
    executor: Executor = None,
    progress: Progress = False,
    what: str = "tasks",
) -> list[Any]:
    """``[work(shared, item) for item in items]``, wherever the ``executor`` does it; an error or interrupt ends all.

    ``work`` is a function of a module, for workers to find. Progress counts the lengths of items that are batches.
    """
    results: list[Any] = [None] * len(items)
    sizes = [len(item) if isinstance(item, (list, range, np.ndarray)) else 1 for item in items]
    with tracking(progress, sum(sizes), what) as advance, closing(as_done(work, items, shared, executor)) as done:
        for k, result in done:
            results[k] = result
            advance(sizes[k])
    return results


def as_done(work: Work, items: Sequence[Any], shared: Any = None, executor: Executor = None) -> Done:
    """``(k, work(shared, items[k]))`` as each is done; closing the iterator drops what has not begun."""
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
                    f"workers died {DEATHS} times over the same {len(left)} tasks: give them more memory, or leave "
                    "executor out to see what happens"
                )


@contextmanager
def _workers(executor: Executor, shared: Any) -> Iterator[Callable[[Work, Mapping[int, Any]], Done]]:
    """What takes ``(work, items by number)`` and yields ``(number, result)``, but for those lost with a worker.

    Called again with what is left, it finds other workers for that.
    """
    if executor is None:
        stop = stop_flag()
        with ThreadPoolExecutor(available_threads(), initializer=_obey, initargs=(stop,)) as threads:
            try:
                yield partial(_submitted, threads, Here(shared))
            except BaseException:
                stop[0] = True
                raise
    elif isinstance(executor, ThreadPoolExecutor):
        yield partial(_submitted, executor, Here(shared))
    elif isinstance(executor, str) and executor != "joblib":
        with dask_client(executor) as client, _workers(client, shared) as hire:
            yield hire
    elif hasattr(executor, "get_executor"):  # a Dask Client, which is no Executor itself

        def hire(work: Work, left: Mapping[int, Any]) -> Done:
            sent = broadcast(executor, [Here(shared)])  # anew: the dead may have had the last copy
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
    """A Dask Client: itself, or one of this address that is closed at the end."""
    if hasattr(cluster, "get_executor"):
        yield cluster
        return
    if not isinstance(cluster, str) or "://" not in cluster:
        raise InvalidArgument(f"{cluster!r} is no cluster: give a Dask Client, or an address such as tcp://host:8786")
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra(f"{cluster} is the address of a Dask cluster: pip install 'diffbisim[cluster]'") from error
    connect: Any = Client
    try:
        client = connect(cluster, timeout="10s", set_as_default=False)
    except OSError as error:
        raise InvalidArgument(f"no Dask scheduler answers at {cluster}: start one with 'dask scheduler'") from error
    with client:
        yield client


def broadcast(client: Any, what: list[Any]) -> Any:
    """Each of them to all workers of a Dask cluster, once there are any."""
    client.wait_for_workers(1)
    return client.scatter(what, broadcast=True, hash=False)


def is_lost(client: Any, sent: Any) -> bool:
    """Whether the last copy of something went with its worker. Tasks that need it would wait for ever."""
    try:
        return not all(client.who_has(sent).values())
    except CancelledError:  # the client knows already
        return True


def _submitted(
    executor: Any, shared: Any, work: Work, left: Mapping[int, Any], lost: Callable[[], bool] | None = None
) -> Done:
    """What an executor makes of the items; ``lost()`` says, when nothing happens, whether nothing will."""
    futures: dict[Any, int] = {}
    try:
        with suppress(BrokenExecutor):  # while they are handed out
            for k, item in left.items():
                futures[executor.submit(partial(_call, work, item), shared)] = k
        yield from _collected(futures, lost)
    finally:
        for future in futures:
            future.cancel()


def _collected(futures: dict[Any, int], lost: Callable[[], bool] | None) -> Done:
    """Those that are done are taken out."""
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
        except (BrokenExecutor, CancelledError, Unseen):
            continue
        yield k, result


def _call(work: Work, item: Any, shared: Any) -> Any:
    """Runs in the worker."""
    return work(shared.fetch(), item)


# --- what all tasks share --------------------------------------------------------------------------------------


class Unseen(Exception):
    """A worker cannot read the file with what all tasks share."""


@dataclass(frozen=True, eq=False)
class Here:
    """Something that is where it is used."""

    what: Any

    def fetch(self) -> Any:
        return self.what


@dataclass(frozen=True, eq=False)
class Posted:
    """Something in a file that a process reads once; or sent along, for workers that do not see the file."""

    path: str
    pickled: bytes | None = None

    def fetch(self) -> Any:
        global _read
        path, what = _read
        if path != self.path:
            try:
                what = pickle.loads(Path(self.path).read_bytes() if self.pickled is None else self.pickled)
            except OSError as error:
                raise Unseen(self.path) from error
            _read = self.path, what
        return what


_read: tuple[str, Any] = "", None  # the last one: a process mostly works for one caller at a time


class _Pool:
    """Processes, of an executor or of joblib: those that are broken are replaced by others like them."""

    def __init__(self, executor: Any, shared: Any) -> None:
        self.executor, self.used, self.own = executor, False, ExitStack()
        self.shared: Here | Posted = Here(shared)

    def __enter__(self) -> "_Pool":
        with suppress(Exception):  # what pickle cannot write goes along with every task, as the executor can
            self.pickled = pickle.dumps(self.shared.fetch(), pickle.HIGHEST_PROTOCOL)
            file, path = tempfile.mkstemp(prefix="diffbisim-", suffix=".pickle")
            self.own.callback(os.unlink, path)
            with open(file, "wb") as opened:
                opened.write(self.pickled)
            self.shared = Posted(path)
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
        """After a loss: fresh processes if the old ones are broken; else the workers did not see the file."""
        if self.executor != "joblib":  # which replaces them itself
            try:
                self.executor.submit(int)
            except BrokenExecutor:
                old, start = self.executor, get_context("spawn")
                self.executor = self.own.enter_context(ProcessPoolExecutor(
                    getattr(old, "_max_workers", None), getattr(old, "_mp_context", start),
                    getattr(old, "_initializer", None), getattr(old, "_initargs", ()),
                ))  # fmt: skip
                warn(f"a process of the executor died; fresh ones take over the {lost} tasks left", RuntimeWarning, 6)
                return
        if isinstance(self.shared, Posted):
            self.shared = Posted(self.shared.path, self.pickled)


def _by_joblib(shared: Any, work: Work, left: Mapping[int, Any]) -> Done:
    """By the backend, and on as many workers, as ``joblib.parallel_config`` says."""
    try:
        from joblib import Parallel, delayed, parallel
    except ImportError as error:
        raise MissingExtra("executor='joblib' needs joblib: pip install joblib") from error
    streams = parallel.get_active_backend()[0].supports_return_generator
    run = Parallel(return_as="generator_unordered" if streams else "list")
    with suppress(BrokenExecutor, Unseen):
        yield from run(delayed(_numbered)(k, work, item, shared) for k, item in left.items())


def _numbered(k: int, work: Work, item: Any, shared: Any) -> tuple[int, Any]:
    return k, _call(work, item, shared)


# --- threads of this process -----------------------------------------------------------------------------------

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


def batches(items: Any, most: int = 32) -> list[Any]:
    """A list or an array in parts: a slow one does not hold up the rest, and each is worth sending."""
    size = max(1, min(most, len(items) // 64))
    return [items[k : k + size] for k in range(0, len(items), size)]


def executor_map(
    work: Callable[[Any], Any], pieces: Sequence[Any], executor: Executor, progress: Progress, what: str
) -> list[Any]:
    """``[work(piece) for piece in pieces]`` by :func:`tasks`."""
    return tasks(_first, pieces, work, executor, progress, what)


def _first(work: Callable[[Any], Any], piece: Any) -> Any:
    return work(piece)
