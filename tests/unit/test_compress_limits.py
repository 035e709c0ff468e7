"""Compression in limited time, from checkpoints, and what it says of its result."""

import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidData
from diffbisim.reduction.compression.result import CompressResult, slowest_timescale

# --- time ----------------------------------------------------------------------------------------------------


@pytest.fixture
def work(monkeypatch):
    """Clocks that count the work of this process, so that a busy machine does not matter; and one worker."""
    db.compress(db.examples.random_chain(6, 0), 2, restarts=2)  # compiled code is loaded before
    for name in ("monotonic", "time"):
        monkeypatch.setattr(time, name, time.process_time)
    with ThreadPoolExecutor(1) as worker:
        yield worker


def true_bounds(X, found):
    """Whether the certified interval meets that of a solve which knows nothing of the search."""
    alone = db.distance(X, found.chain)
    return max(alone.lower, found.distance.lower) <= min(alone.upper, found.distance.upper)


@pytest.mark.parametrize(("n", "k", "limit"), [(40, 5, 0.3), (200, 20, 0.6), (500, 5, 1.0)])
def test_time_limits_hold_within_a_fifth(n, k, limit, work):
    X = db.examples.random_chain(n, 0)
    db.compress(X, k, restarts=1, max_iterations=1)  # compiled code, which depends on the sizes, is loaded before
    began = time.process_time()
    found = db.compress(X, k, time_limit=limit, executor=work)
    assert time.process_time() - began <= 1.2 * limit + 0.2
    assert true_bounds(X, found)


def test_a_sweep_shares_its_time_among_the_sizes(work):
    X = db.examples.random_chain(40, 0)
    began = time.process_time()
    sweep = db.compress_sweep(X, (2, 3, 5, 8), time_limit=1.0, executor=work)
    assert time.process_time() - began <= 1.2 * 1.0 + 0.2
    assert (np.diff(sweep.values) <= 1e-8).all()


def test_no_time_at_all_is_a_start_with_true_bounds(work):
    X = db.examples.random_chain(40, 0)
    found = db.compress(X, 5, time_limit=0, executor=work)
    assert true_bounds(X, found)
    assert len(found.history) == 1


# --- what is said of the result ------------------------------------------------------------------------------


def test_used_counts_different_behaviors():
    """Six states of three blocks: three behaviors; two more that are never visited: the same three."""
    X, Y = db.examples.random_chain(5, 0), db.examples.block_chain(3, 2)
    Y = db.MarkovChain(Y.transition, initial=np.full(6, 1 / 6), rewards=Y.rewards)
    small = CompressResult(Y, db.distance(X, Y), ())
    assert small.unused.size == 0
    assert small.used == db.lump(Y).n_states == 3
    assert "(3 used)" in repr(small)
    P = np.zeros((8, 8))
    P[:6, :6], P[6:, 0] = Y.transition, 1.0
    wide = db.MarkovChain(P, initial=np.append(Y.initial, [0, 0]), rewards=np.append(Y.rewards, [5.0, 6.0]))
    assert CompressResult(wide, db.distance(X, wide), ()).used == 3


def test_used_goes_by_the_table_of_costs():
    """Without rewards, states are told apart by what an observer sees of them: their columns of the cost."""
    Y = db.MarkovChain([[0.2, 0.3, 0.5]] * 3, initial=np.full(3, 1 / 3))
    X, cost = db.MarkovChain(np.eye(2)), np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert CompressResult(Y, db.distance(X, Y, cost), ()).used == 2


def double_well(n=20, height=4.0):
    """Metropolis walk in V = h (x² - 1)²: reversible, so its law is exp(-V), and its timescales are real."""
    x = np.linspace(-1.5, 1.5, n)
    V = height * (x**2 - 1) ** 2
    P = np.zeros((n, n))
    for i in range(n):
        for j in (i - 1, i + 1):
            if 0 <= j < n:
                P[i, j] = 0.5 * min(1.0, np.exp(V[i] - V[j]))
        P[i, i] = 1 - P[i].sum()
    law = np.exp(-V) / np.exp(-V).sum()
    return db.MarkovChain(P, initial=law, rewards=x), law


def test_timescale_is_that_of_the_second_eigenvalue():
    X, law = double_well()
    S = np.sqrt(law)[:, None] * X.transition / np.sqrt(law)  # symmetric
    second = np.linalg.eigvalsh((S + S.T) / 2)[-2]
    assert slowest_timescale(X) == pytest.approx(-1 / np.log(second), rel=1e-9)
    a, b = 0.3, 0.2
    two = db.MarkovChain([[1 - a, a], [b, 1 - b]])
    assert slowest_timescale(two) == pytest.approx(-1 / np.log(1 - a - b), rel=1e-12)


@pytest.mark.parametrize("n", [30, 300])
def test_timescale_of_a_ring_and_of_chains_with_parts(n):
    """A lazy walk around a ring has the eigenvalues (1 + cos(2πk/n))/2."""
    shift = np.roll(np.eye(n), 1, axis=1)
    ring = 0.5 * np.eye(n) + 0.25 * (shift + shift.T)
    second = (1 + np.cos(2 * np.pi / n)) / 2
    assert slowest_timescale(db.MarkovChain(ring)) == pytest.approx(-1 / np.log(second), rel=1e-6)
    parts = np.kron(np.eye(2), ring)
    both = np.full(2 * n, 1 / (2 * n))
    assert slowest_timescale(db.MarkovChain(parts, initial=both)) == np.inf
    assert slowest_timescale(db.MarkovChain(parts)) == pytest.approx(-1 / np.log(second), rel=1e-6)  # one is reached
    assert slowest_timescale(db.MarkovChain([[0.0, 1.0], [1.0, 0.0]])) == 0.0  # back and forth is not slow


@pytest.mark.parametrize("k", [2, 4])
def test_a_frozen_chain_is_called_so(k):
    X, _ = double_well()
    with pytest.warns(UserWarning, match="small chain is frozen") as caught:
        found = db.compress(X, k, restarts=2)
    large, small = found.timescales
    assert found.frozen
    assert small >= 10 * large
    assert large == pytest.approx(slowest_timescale(X))
    message = str(caught[0].message)
    assert f"{large:.3g} steps" in message
    assert message in found.status
    rate = slowest_timescale(found.averaged)  # the remedy that it names
    assert f"result.averaged (slowest timescale {rate:.3g} steps)" in message
    assert large / 10 < rate < 10 * large
    assert db.distance(X, found.averaged).upper >= found.distance.lower


def test_a_chain_that_stays_in_one_state_is_called_frozen():
    X, _ = double_well()
    seen = db.MarkovChain(X.transition, initial=0, rewards=(X.rewards > 0).astype(float))
    with pytest.warns(UserWarning, match="it stays in one state"):
        assert db.compress(seen, 2, restarts=2).frozen


def test_chains_that_move_are_not_called_frozen():
    frozen = db.MarkovChain(np.eye(3), initial=np.full(3, 1 / 3), rewards=[0.0, 1.0, 5.0])  # as the target is
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for X, k in ((db.examples.random_chain(12, 0), 3), (db.examples.block_chain(), 5), (frozen, 2)):
            found = db.compress(X, k, restarts=2)
            assert not found.frozen
            assert "frozen" not in found.status
        assert not db.compress(double_well()[0], 1, restarts=1).frozen  # one state was asked for


# --- checkpoints ---------------------------------------------------------------------------------------------

LOADED = """
import os, signal
import diffbisim as db
db.compress(db.examples.random_chain(8, 3), 3, max_iterations=2)
"""

RUN = """
X, ended = db.examples.random_chain(8, 3), 0
def stop(row):
    global ended
    ended += 1
    if ended == {when}:
        os.kill(os.getpid(), signal.SIGKILL)
db.{how}, callback=stop, checkpoint={path!r}, restarts=5, rng=4, max_iterations=4)
"""


def same(a, b):
    assert np.array_equal(a.chain.transition, b.chain.transition)
    assert np.array_equal(a.chain.rewards, b.chain.rewards)
    assert np.array_equal(a.chain.initial, b.chain.initial)
    assert np.array_equal(a.distance.values, b.distance.values)
    assert np.array_equal(a.encoder, b.encoder)
    assert (a.distance.value, a.distance.lower, a.distance.upper) == (
        b.distance.value,
        b.distance.lower,
        b.distance.upper,
    )
    assert a.history == b.history


@pytest.fixture
def killed(nursery):
    """Run in another process and kill it when so many restarts have ended."""

    def run(path, when, how):
        nursery.load(
            "import os, signal; import diffbisim as db; "
            "db.compress(db.examples.random_chain(8, 3), 3, max_iterations=2)"
        )
        nursery.fork(RUN.format(path=str(path), when=when, how=how))
        assert nursery.line() == f"ended {-signal.SIGKILL}"

    return run


@cache
def uninterrupted():
    return db.compress(db.examples.random_chain(8, 3), 3, restarts=5, rng=4, max_iterations=4)


@pytest.mark.parametrize("when", [1, 3, 6, 7])
def test_after_a_kill_it_goes_on_to_the_same_bits(when, tmp_path, killed):
    X, path = db.examples.random_chain(8, 3), tmp_path / "run.npz"
    killed(path, when, "compress(X, 3")
    rest = []
    found = db.compress(X, 3, restarts=5, rng=4, max_iterations=4, checkpoint=path, callback=rest.append)
    assert len(rest) <= 7 - when + 1  # the others had ended
    same(found, uninterrupted())
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


def test_a_killed_sweep_goes_on_to_the_same_bits(tmp_path, killed):
    X, path = db.examples.random_chain(8, 3), tmp_path / "run.npz"
    killed(path, 9, "compress_sweep(X, (2, 3)")
    options = {"restarts": 5, "rng": 4, "max_iterations": 4}
    again, fresh = (db.compress_sweep(X, (2, 3), **options, **more) for more in ({"checkpoint": path}, {}))
    for a, b in zip(again.results, fresh.results, strict=True):
        same(a, b)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"n_states": 4}, "n_states"),
        ({"discount": 0.9}, "discount"),
        ({"rng": 5}, "rng"),
        ({"restarts": 3}, "restarts"),
        ({"rewards": [0.0, 0.5, 1.0]}, "rewards"),
        ({"target": db.examples.random_chain(14, 4)}, "target"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(change, what, tmp_path):
    run = {"target": db.examples.random_chain(14, 3), "n_states": 3, "restarts": 2, "max_iterations": 2}
    run["checkpoint"] = tmp_path / "run.npz"
    db.compress(**run)
    with pytest.raises(InvalidData, match=f"another run; differences: .*{what}"):
        db.compress(**{**run, **change})


def test_time_limits_and_checkpoints_go_together(tmp_path):
    """What was cut short by the clock is done again; a run that has time takes no starts that were made in a hurry."""
    X, path = db.examples.random_chain(14, 3), tmp_path / "run.npz"
    options = {"restarts": 3, "max_iterations": 10}
    db.compress(X, 3, **options, time_limit=0, checkpoint=path)
    same(db.compress(X, 3, **options, checkpoint=path), db.compress(X, 3, **options))
