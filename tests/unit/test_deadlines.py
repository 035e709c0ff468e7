"""What ends a computation of the engine: a deadline, or a stop by another thread, wherever the call is made from."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim import _engine
from diffbisim.common.parallel import tasks, thread_map
from diffbisim.common.stopping import TimeUp, engine_run, stop_flag, until
from diffbisim.solvers import Exact

#: Seconds of processor time from a deadline or a stop to the end of a call.
LATENCY = 0.2


@cache
def long_problem():
    """A chain whose partition refinement takes seconds: a path, the states of which part one by one."""
    n, k = 200_000, 40
    first, rng = np.arange(0, n * k + 1, k), np.random.default_rng(0)
    return first, rng.integers(0, n, n * k), rng.dirichlet(np.ones(k), n).ravel(), rng.integers(0, 2, n)


def work(*_):
    _engine.refine(*long_problem(), 0.0, engine_run())
    raise AssertionError("the problem is too small")


def seconds_until(error, call):
    """Processor time until the call ends with the error."""
    long_problem()
    before = time.process_time()
    with pytest.raises(error):
        call()
    return time.process_time() - before


def within(seconds, call):
    with until(time.monotonic() + seconds):
        call()


CALLERS = {
    "here": work,
    "thread_map": lambda: thread_map(work, [()], 1, wait=True),
    "tasks": lambda: tasks(work, range(1)),
    "an executor": lambda: tasks(work, range(1), None, POOL),
    "a longer limit inside": lambda: within(60.0, work),
    "a shorter limit outside a shorter one that has passed": lambda: within(60.0, lambda: within(30.0, work)),
}
POOL = ThreadPoolExecutor(1)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_deadline_ends_the_call(caller):
    assert seconds_until(TimeUp, lambda: within(0.1, CALLERS[caller])) < 0.1 + LATENCY


@pytest.mark.parametrize("executor", [None, POOL])
def test_an_error_of_one_task_stops_the_others(executor):
    begun = threading.Event()

    def task(_, k):
        if k == 0:
            begun.set()
            work()
        begun.wait()
        time.sleep(0.05)
        raise ZeroDivisionError

    pool = executor and ThreadPoolExecutor(2)
    assert seconds_until(ZeroDivisionError, lambda: tasks(task, range(2), None, pool)) < 0.05 + LATENCY
    if pool:
        before = time.process_time()
        pool.shutdown()
        assert time.process_time() - before < LATENCY


def test_nothing_begins_after_a_deadline_or_a_stop():
    with pytest.raises(TimeUp), until(time.monotonic()):
        engine_run()

    def stopped(_, k):
        stop_flag()[0] = True
        engine_run()

    with pytest.raises(KeyboardInterrupt):
        tasks(stopped, [1])
    engine_run()


def test_what_ends_in_time_is_complete():
    with until(time.monotonic() + 60.0):
        classes, _ = _engine.refine(np.array([0, 1]), np.array([0]), np.array([1.0]), np.array([0]), 0.0, engine_run())
    assert classes.tolist() == [0]


@pytest.mark.parametrize(("n", "successors"), [(250, 250), (2000, 4)], ids=["dense", "sparse"])
def test_a_horizon_meets_its_time_limit_within_a_fifth(n, successors):
    """Processor time with one thread, which is at most the time that has passed."""
    rng, limit = np.random.default_rng(0), 0.5
    rows, states = (
        np.repeat(np.arange(n), successors),
        rng.permuted(np.tile(np.arange(n), (n, 1)), axis=1)[:, :successors],
    )
    P = sp.csr_array((rng.dirichlet(np.ones(successors), n).ravel(), (rows, states.ravel())), shape=(n, n))
    X, Y = (db.MarkovChain(P, rewards=rng.random(n)) for _ in range(2))
    db.distance(*[db.examples.random_chain(3, 0)] * 2, horizon=2)  # loads what a first call loads
    before = time.process_time()
    with pytest.warns(db.ConvergenceWarning):
        result = db.distance(X, Y, horizon=100, solver=Exact(threads=1, time_limit=limit))
    assert time.process_time() - before < 1.2 * limit
    assert result.status.startswith("Stopped at time_limit")
    assert result.iterations < 100
