"""What all tests share: a rule on skips, and sources of processes.

Where everything that the tests need is there, none may be skipped: with DIFFBISIM_NO_SKIPS set a skip is a failure.
``.ci/run`` sets it. Without it, only the page in a browser (no Chromium), forked processes (no fork) and interrupts
(where this is not Linux) are skipped.
"""

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from nursery import Nursery


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
