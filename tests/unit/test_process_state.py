"""What belongs to the whole process is left alone: warning filters, torch's threads, numpy's errors and generator.

Oracle: how things stood before.
"""

import threading
import warnings

import numpy as np
import pytest
import torch

import diffbisim as db
from diffbisim.common.errors import ConvergenceWarning, quietly, warn
from diffbisim.learning.fit import kernels as K

X = db.examples.random_chain(4, 0)


def in_a_new_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def three_threads():
    db.fit(X, K.Softmax(4), max_iterations=1)  # torch imports sympy when first used, which sets filters of its own
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def two_at_once(first, second):
    """``first(wait)`` and ``second(wait)`` overlap: A enters, B enters, A leaves, B leaves."""
    entered, left = threading.Event(), threading.Event()
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    a = threading.Thread(target=run, args=(lambda: first(lambda: entered.wait(60)),))
    b = threading.Thread(target=run, args=(lambda: second(lambda: (entered.set(), left.wait(60))),))
    a.start()
    b.start()
    a.join()
    left.set()
    b.join()
    assert not errors


def state():
    return torch.get_num_threads(), in_a_new_thread(torch.get_num_threads), list(warnings.filters), np.geterr()


def test_two_fits_in_two_threads_leave_nothing_behind(three_threads):
    before, seen = state(), []
    ready = threading.Barrier(2)  # a thread has the number of the moment when it first asks: before either fit

    def fit(wait):
        def callback(row):
            if row["step"] == 0:
                wait()
            seen.append((torch.get_num_threads(), in_a_new_thread(torch.get_num_threads)))

        assert torch.get_num_threads() == 3
        ready.wait(60)
        db.fit(X, K.Softmax(4), max_iterations=3, callback=callback)
        assert torch.get_num_threads() == 3

    two_at_once(fit, fit)
    assert state() == before
    assert set(seen) == {(1, 3)}  # the fit's own thread has one, threads that begin meanwhile have what they would have


def test_a_fit_never_sets_the_threads_of_others(three_threads, monkeypatch):
    """Not even for a moment: a thread that first uses torch just then would keep that number."""
    monkeypatch.setattr(torch, "set_num_threads", lambda n: pytest.fail("of all threads to come"))
    counts = []
    db.fit(X, K.Softmax(4), max_iterations=2, callback=lambda row: counts.append(torch.get_num_threads()))
    assert set(counts) == {1}
    assert torch.get_num_threads() == 3
    monkeypatch.undo()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_fit_leaves_nothing_behind(error, three_threads):
    before = state()

    def callback(row):
        raise error

    with pytest.raises(error):
        db.fit(X, K.Softmax(4), max_iterations=3, callback=callback)
    assert state() == before


def test_warnings_are_silenced_in_one_thread_only():
    before, heard = list(warnings.filters), []

    def block(wait):
        with quietly():
            wait()
            warn("silent", stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        two_at_once(block, block)
        assert warnings.filters == filters
        assert not caught
        with quietly():
            in_a_new_thread(lambda: warn("another thread", stacklevel=1))
        warn("afterwards", stacklevel=1)
        heard = [(str(w.message), w.category, w.filename) for w in caught]
    assert heard == [(text, ConvergenceWarning, __file__) for text in ("another thread", "afterwards")]
    assert list(warnings.filters) == before


def test_baselines_in_two_threads_leave_the_filters_alone():
    """cvxpy warns of inaccurate solutions; silencing that must not be done by the process's filters."""
    from diffbisim.learning.imitate.baselines import pw_dice

    before = list(warnings.filters)
    mdp = db.examples.imitation_chain()
    expert = mdp.induced_chain(mdp.uniform_policy())
    expected = pw_dice(mdp, expert, 0.9).policy
    seen = []

    def run(wait):
        found = pw_dice(mdp, expert, 0.9).policy
        wait()
        seen.append((np.array_equal(found, expected), list(warnings.filters) == before))

    two_at_once(run, run)
    assert seen == [(True, True)] * 2
    assert list(warnings.filters) == before


def test_the_global_generators_are_not_drawn_from():
    mdp = db.examples.imitation_chain()
    expert = mdp.induced_chain(mdp.uniform_policy())
    before = np.random.get_state()[1].copy(), torch.get_rng_state().clone()  # noqa: NPY002
    db.fit(X, K.Softmax(4), max_iterations=2)
    db.imitate(mdp, expert, update="sampled", max_iterations=3, rng=0)
    assert np.array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])
