"""What all tests share: a rule on skips, sources of processes, and kernels that only one worker compiles.

Where everything that the tests need is there, none may be skipped: with DIFFBISIM_NO_SKIPS set a skip is a failure.
``.ci/run`` sets it. Without it, only the page in a browser (no Chromium), forked processes (no fork) and interrupts
(where this is not Linux) are skipped.
"""

import gc
import multiprocessing
import os
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from nursery import Nursery

try:
    import fcntl
except ImportError:  # Windows: both workers compile
    fcntl = None


def strict(report):
    if report.skipped and os.environ.get("DIFFBISIM_NO_SKIPS"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{report.nodeid}: nothing may be skipped here. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return strict((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return strict((yield))


@pytest.fixture(scope="session")
def nursery():
    """Where processes come from that are to be killed or interrupted."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def spawned():
    """A pool of one process that has begun from nothing: it takes seconds to load what it needs, once."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


# Python looks for garbage after every 700 new objects, which takes 5 % of all time: seldom is enough here.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish():
    """What was loaded stays: Python need not look through all packages again and again for what can be freed."""
    gc.collect()
    gc.freeze()


# --- kernels: two workers that need the same one do not both compile it ---------------------------------------------


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        compile_by_turns()


def compile_by_turns():
    """What is not in numba's cache is compiled under a lock, a byte of the file for each kernel, and looked up again.

    All signatures of a kernel have one lock, because numba keeps them in one index, in which two writers lose entries.
    """
    if not fcntl or "NUMBA_CACHE_DIR" not in os.environ:
        return
    from diffbisim._compile import _KernelCache

    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / "compiling", os.O_RDWR | os.O_CREAT)
    load, save, held = _KernelCache.load_overload, _KernelCache.save_overload, set()

    def place(self):
        return zlib.crc32(repr((self._py_func.__module__, self._py_func.__qualname__)).encode())

    def load_or_wait(self, signature, target):
        found, at = load(self, signature, target), place(self)
        if found is None and at not in held:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, at)
            held.add(at)
            found = load(self, signature, target)
            if found is not None:
                release(at)
        return found

    def save_and_release(self, signature, data):
        save(self, signature, data)
        release(place(self))

    def release(at):
        if at in held:
            held.discard(at)
            fcntl.lockf(file, fcntl.LOCK_UN, 1, at)

    _KernelCache.load_overload, _KernelCache.save_overload = load_or_wait, save_and_release
