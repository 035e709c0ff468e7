"""The exact solver on very many pairs: narrow trees, evaluation in single precision, checkpoints, limits.

What is for many pairs is asked of few here, so that everything else can be asked too: the linear program, the trees
that the solver keeps for few.
"""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.common.progress import TimeLeft
from diffbisim.results.base import HistoryRow
from diffbisim.solvers import Exact
from diffbisim.solvers.base import Check, Limits, iterate
from diffbisim.solvers.exact import evaluation, small, transports


def uneven_chain(n, seed, most=5):
    """One to ``most`` successors per state."""
    rng = np.random.default_rng([n, seed])
    P = np.zeros((n, n))
    for row in P:
        k = rng.integers(1, most + 1)
        row[rng.choice(n, k, replace=False)] = rng.dirichlet(np.ones(k))
    return db.MarkovChain(sp.csr_array(P), rewards=rng.random(n))


@pytest.fixture
def narrow(monkeypatch):
    """Trees are narrow, however few, and evaluated as those of many are."""
    monkeypatch.setattr(transports, "MANY", 0)
    monkeypatch.setattr(small, "MAX_STATES", 0)


@pytest.fixture(scope="module")
def chains():
    return uneven_chain(13, 1), uneven_chain(11, 2)


@pytest.fixture(scope="module")
def wide(chains):
    return db.distance(*chains, discount=0.9, tol=1e-12)


def same_answer(found, known):
    assert found.converged
    assert found.coupling.transports.narrow
    assert max(found.lower, known.lower) <= min(found.upper, known.upper)
    assert (found.values_lower <= known.values_upper).all()
    assert (known.values_lower <= found.values_upper).all()
    np.testing.assert_allclose(found.values, known.values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("targets", [2**27, 0])
def test_narrow_trees_say_the_same(narrow, chains, wide, monkeypatch, tmp_path, targets):
    monkeypatch.setattr(transports, "TARGETS", targets)
    found = db.distance(*chains, discount=0.9, tol=1e-10)
    same_answer(found, wide)
    assert found.coupling.transports.single.flow.size == 0  # not needed any more
    program = db.distance(*chains, discount=0.9, solver="lp")
    assert program.lower <= found.upper
    assert found.lower <= program.upper
    assert abs((found.occupancy * found.problem.cost).sum() - wide.value) <= 1e-8
    plan = found.coupling.plan(3, 4).toarray()
    np.testing.assert_allclose(plan.sum(axis=1), chains[0].transition.toarray()[3], atol=1e-15)
    np.testing.assert_allclose(plan.sum(axis=0), chains[1].transition.toarray()[4], atol=1e-15)
    found.save(tmp_path / "narrow.npz")
    again = db.load(tmp_path / "narrow.npz")
    np.testing.assert_array_equal(again.values, found.values)
    np.testing.assert_array_equal(again.coupling.plan(3, 4).toarray(), plan)
    np.testing.assert_array_equal(again.occupancy, found.occupancy)


def test_flows_at_once_are_those_of_each_pair(narrow, chains):
    trees = db.distance(*chains, discount=0.9).coupling.transports
    at, flow = trees.at, trees.flow
    assert at[-1] == trees.edges
    for k in range(trees.size):
        np.testing.assert_array_equal(flow[at[k] : at[k + 1]], trees.tree(k).flow)


def test_warm_starts_between_both_kinds(chains, monkeypatch):
    moved = db.MarkovChain(chains[1].transition, rewards=chains[1].rewards * 0.99)
    expected = db.distance(chains[0], moved, discount=0.9, tol=1e-11)
    monkeypatch.setattr(small, "MAX_STATES", 0)
    wide = db.distance(*chains, discount=0.9, tol=1e-12)
    monkeypatch.setattr(transports, "MANY", 0)
    narrow = db.distance(*chains, discount=0.9, tol=1e-10)
    for before in (wide, narrow):
        same_answer(db.distance(chains[0], moved, discount=0.9, warm=before, tol=1e-10), expected)
    monkeypatch.setattr(transports, "MANY", 10**9)
    found = db.distance(chains[0], moved, discount=0.9, warm=narrow)
    assert not found.coupling.transports.narrow
    assert max(found.lower, expected.lower) <= min(found.upper, expected.upper)
    average = db.distance(*chains, criterion="average", warm=narrow)
    assert average.converged


def test_the_number_of_threads_and_a_store_change_no_bit(tmp_path):
    """10⁵ pairs or so: enough for narrow trees and for several threads without asking for it."""
    X, Y = uneven_chain(310, 3, most=6), uneven_chain(290, 4, most=6)
    one, two, stored = (
        db.distance(X, Y, discount=0.9, solver=replace(Exact(tol=1e-7), **how))
        for how in ({"threads": 1}, {"threads": 2}, {"threads": 3, "store": tmp_path})
    )
    assert one.coupling.transports.narrow
    assert one.converged
    for other in (two, stored):
        assert (other.lower, other.upper, other.work) == (one.lower, one.upper, one.work)
        np.testing.assert_array_equal(other.values, one.values)
        np.testing.assert_array_equal(other.coupling.transports.trees.child, one.coupling.transports.trees.child)
    assert not list(tmp_path.iterdir())


def cycle(n, rewards):
    return db.MarkovChain(sp.csr_array(np.roll(np.eye(n), 1, axis=1)), rewards=rewards)


@pytest.mark.parametrize(("factorize", "γ"), [(evaluation.FACTORIZE, 0.99), (0, 0.99), (0, 0.9999)])
def test_chains_that_do_not_mix(narrow, monkeypatch, factorize, γ):
    """Two cycles: sweeps stagnate. The answer is a sum over the common period."""
    monkeypatch.setattr(evaluation, "FACTORIZE", factorize)
    r, s = np.arange(7.0), np.cos(np.arange(5.0))
    found = db.distance(cycle(7, r), cycle(5, s), discount=γ, tol=1e-9)
    costs = np.abs(r[np.arange(35) % 7] - s[np.arange(35) % 5])
    exact = (1 - γ) * (γ ** np.arange(35) * costs).sum() / (1 - γ**35)
    assert found.converged
    assert found.lower <= exact * (1 + 1e-11)
    assert exact * (1 - 1e-11) <= found.upper


@pytest.mark.parametrize("many", [0, transports.MANY])
def test_a_checkpoint_goes_on(chains, wide, monkeypatch, tmp_path, many):
    monkeypatch.setattr(transports, "MANY", many)
    solver = Exact(tol=1e-10, checkpoint=tmp_path / "run.npz")
    with pytest.warns(db.ConvergenceWarning):
        cut = db.distance(*chains, discount=0.9, solver=solver, callback=lambda row: row["improvements"] == 3)
    found = db.distance(*chains, discount=0.9, solver=solver)
    assert found.converged
    assert max(found.lower, wide.lower) <= min(found.upper, wide.upper)
    assert found.history[0]["upper"] - found.history[0]["lower"] < cut.history[0]["upper"] - cut.history[0]["lower"]
    with pytest.raises(db.InvalidArgument, match="another problem"):
        db.distance(*chains, discount=0.8, solver=solver)
    for option in ("checkpoint", "store"):
        with pytest.raises(db.InvalidArgument, match=f"{option} is for the discounted"):
            db.distance(*chains, criterion="average", solver=replace(Exact(), **{option: tmp_path}))


class Slow:
    """A run of iterations that take as long as told."""

    work = {}  # noqa: RUF012

    def __init__(self, seconds):
        self.seconds = seconds

    def improve(self, iteration):
        time.sleep(self.seconds)

    def is_due(self, iteration):
        return True

    def check(self, iteration):
        return Check(HistoryRow({"value": 0.0, "lower": 0.0, "upper": 1.0}), 1.0, 0.0)

    def evaluate(self):
        pass

    def coupling(self):
        return SimpleNamespace()


def test_iterations_that_end_too_late_are_abandoned():
    assert iterate(Slow(0.2), Limits(0.0, 10, 0.45)).iterations == 2  # the third would end at 0.6 or a little later
    assert iterate(Slow(0.01), Limits(0.0, 3, 60.0)).iterations == 3


def test_the_time_left_goes_by_how_the_gap_shrinks(monkeypatch):
    now = iter([0.0, 2.0, 4.0, 6.0, 8.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    left = TimeLeft(1e-6)
    assert left(1.0) is None
    assert left(0.1) == pytest.approx(2.0 * 5)
    assert left(0.2) is None  # it does not shrink
    assert left(1e-6) == 0.0
