"""What all tests share, and one rule.

Where everything that the tests need is there, none may be skipped: with DIFFBISIM_NO_SKIPS set a skip is a failure.

``.ci/run`` sets it. Without it, only the page in a browser (no Chromium) and forked processes (no fork) are skipped.
"""

import os

import pytest

from nursery import Nursery


@pytest.fixture(scope="session")
def nursery():
    """Where processes come from that are to be killed or interrupted."""
    made = Nursery()
    yield made
    made.close()


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
