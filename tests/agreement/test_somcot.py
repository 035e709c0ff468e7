"""SOMCOT against a literal dense implementation, the exact solver, and itself after a pause."""

import importlib
import time
from itertools import pairwise

import numpy as np
import pytest

import diffbisim as db
from cases import each
from diffbisim import _engine, _engine_baseline
from diffbisim.common.errors import ConvergenceWarning
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.streams import Stream
from diffbisim.results.base import Status
from diffbisim.solvers import Exact, Somcot
from diffbisim.solvers.somcot import state
from oracles.dense_somcot import DenseSomcot

LEVELS = [_engine_baseline] + ([importlib.import_module("diffbisim._engine_v3")] if _engine.level == "v3" else [])

#: Entries below e^DROP count as zero, and are listed down to e^(DROP - FAR); see engine/somcot_marginals.hpp.
DROP, FAR = -40.0, 20.0


class Recorded(Stream):
    """Remembers what it gave."""

    def __init__(self, source):
        super().__init__(source)
        self.batches = []

    def draw(self, *arguments):
        at, s, after, w = super().draw(*arguments)
        self.batches += [np.stack([s, after], axis=1)[i:j] for i, j in pairwise(at)]
        return at, s, after, w


def literal(steps, batch=1, **options):
    return Somcot(steps, batch=batch, memory=False, anticipation=0, full=True, certify=False, **options)


def both(n_x, n_y, steps, batch, seed, discount=0.9, eta=0.5, beta=0.02):
    """The factorized and the dense iterates after the same minibatches."""
    rng = np.random.default_rng(seed)
    X, Y = (Recorded(db.examples.random_chain(n, rng)) for n in (n_x, n_y))
    cost = rng.random((n_x, n_y))
    cost /= cost.max()
    result = literal(steps, batch, eta=eta, beta=beta, rng=seed).estimate(X, Y, cost, discount)
    dense = DenseSomcot(cost, discount, (0, 0), eta, beta)
    halves = []
    for k in range(steps):
        if 2 * k >= steps:
            halves.append((dense.mu.sum(axis=(2, 3)), dense.V, dense.alpha_y, dense.lambda_x))
        dense.step(X.batches[k], Y.batches[k])
    return result, dense, [np.mean(part, axis=0) for part in zip(*halves, strict=True)]


@pytest.mark.parametrize(
    ("n_x", "n_y", "batch"), [(5, 5, 1), (7, 3, 4), (3, 6, 1), (2, 9, 3), (8, 8, 2)], ids=lambda v: str(v)
)
def test_iterates_equal_the_dense_ones(n_x, n_y, batch):
    result, dense, _ = both(n_x, n_y, 2000, batch, seed=n_x)
    it = result.coupling.run.it
    np.testing.assert_allclose(it.A.reshape(n_x, n_y, n_x).transpose(0, 2, 1), dense.alpha_x, atol=1e-10)
    np.testing.assert_allclose(it.B.reshape(n_x, n_y, n_y), dense.alpha_y, atol=1e-10)
    np.testing.assert_allclose(it.V, dense.V, atol=1e-10)
    np.testing.assert_allclose(np.exp(it.logit_x) / np.exp(it.logit_x).sum(1)[:, None], dense.lambda_x, atol=1e-10)
    np.testing.assert_allclose(np.exp(it.logit_y) / np.exp(it.logit_y).sum(1)[:, None], dense.lambda_y, atol=1e-10)
    U, W = it.U.reshape(n_x, n_y, n_x), it.W.reshape(n_x, n_y, n_y)
    log_mu = it.S[:, :, None, None] + U[:, :, :, None] + W[:, :, None, :] + it.L
    mu = np.exp(log_mu - log_mu.max())
    np.testing.assert_allclose(mu / mu.sum(), dense.mu, atol=1e-10)


def test_averages_are_those_of_the_last_half():
    result, _, (m, V, alpha_y, lambda_x) = both(4, 5, 2048, 1, seed=1)
    mean = result.coupling.run.averages(0.9)
    np.testing.assert_allclose(mean.m, m, atol=1e-12)
    np.testing.assert_allclose(mean.V, V, atol=1e-10)
    np.testing.assert_allclose(mean.alpha_y.reshape(4, 5, 5), alpha_y, atol=1e-10)
    np.testing.assert_allclose(mean.lambda_x, lambda_x, atol=1e-12)
    assert result.value == pytest.approx((m * result.problem.cost).sum(), abs=1e-12)


def test_products_and_entries_agree():
    """The two ways to the marginals, in one iteration from iterates for which both are safe."""
    rng = np.random.default_rng(5)
    X, Y = db.examples.random_chain(9, rng), db.examples.random_sparse_chain(7, 3, rng=rng)
    begun, cost = literal(300), rng.random((9, 7))
    result = db.distance(X, Y, cost, 0.9, begun)
    assert not result.coupling.run.it.cold[0]
    ways = []
    for cold in (0, 1):
        result.coupling.run.it.cold[0] = cold
        ways.append(db.distance(X, Y, cost, 0.9, literal(301), warm=result).coupling.run.it)
    assert (ways[0].cold[0], ways[1].cold[0]) == (0, 1)
    for name in ("A", "B", "V", "sums"):  # their steps are the marginals
        one, other = getattr(ways[0], name), getattr(ways[1], name)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=63**2 * np.exp(DROP))  # entries that count as zero
        assert not np.array_equal(one, getattr(result.coupling.run.it, name))


@pytest.mark.parametrize(
    "options", [{}, {"eta": 1.0}, {"memory": False, "anticipation": 0, "eta": 1.0, "beta": 0.1}], ids=str
)
@pytest.mark.parametrize("degree", [3, 12])
def test_lists_of_entries_change_no_bit(monkeypatch, options, degree):
    """A run that looks at every entry of the coupling is the oracle of one that lists those that matter."""
    rng = np.random.default_rng(degree)
    X, Y = (db.examples.random_sparse_chain(12, degree, rng=rng) for _ in "xy")
    solver = Somcot(3 * 1024 + 100, certify=False, **options)
    listed = db.distance(X, Y, rng.random((12, 12)), 0.9, solver).coupling
    assert listed.run.it.cold[0]  # matrix products are no longer safe
    assert (_entries(listed.run) < DROP - FAR).mean() > 0.5  # lists leave much out
    monkeypatch.setattr(state, "MAX_LISTED", 0)
    rng = np.random.default_rng(degree)
    X, Y = (db.examples.random_sparse_chain(12, degree, rng=rng) for _ in "xy")
    every = db.distance(X, Y, rng.random((12, 12)), 0.9, solver).coupling
    for name, array in every.state().items():
        np.testing.assert_array_equal(listed.state()[name], array, err_msg=name)


def _entries(run):
    """log μ of all entries."""
    it, n, E = run.it, run.y.rho.size, run.y.to.size
    parts = []
    for x in range(run.x.rho.size):
        lo, hi = run.x.at[x], run.x.at[x + 1]
        U = it.U[n * lo : n * hi].reshape(n, hi - lo)[run.y.source]
        W = it.W[x * E : (x + 1) * E, None]
        parts.append(it.S[x, run.y.source][:, None] + U + W + it.L[run.x.to[lo:hi]][:, run.y.to].T)
    return np.concatenate([part.ravel() for part in parts])


def chains(kind):
    rng = np.random.default_rng(3)
    if kind == "sparse":
        return db.examples.random_sparse_chain(9, 3, rng=rng), db.examples.random_sparse_chain(7, 2, rng=rng)
    return db.examples.random_chain(5, rng), db.examples.random_chain(4, rng)


@pytest.mark.parametrize("options", [{}, {"memory": False, "anticipation": 0, "batch": 3}, {"decay": 0.5}], ids=str)
@pytest.mark.parametrize("pause", [1, 63, 64, 700, 1500, 2048])
def test_a_resumed_run_repeats_every_bit(tmp_path, options, pause):
    X, Y = chains("sparse")
    whole = db.distance(X, Y, discount=0.9, solver=Somcot(3000, certify=False, rng=4, **options))
    part = db.distance(X, Y, discount=0.9, solver=Somcot(pause, certify=False, rng=4, **options))
    part.save(tmp_path / "part.npz")
    rest = Somcot(3000, certify=False, rng=99, **options)  # the saved generators count, not this seed
    resumed = db.distance(X, Y, discount=0.9, solver=rest, warm=db.load(tmp_path / "part.npz"))
    assert resumed.value == whole.value
    assert resumed.iterations == whole.iterations == 3000
    for name, array in whole.coupling.state().items():
        np.testing.assert_array_equal(resumed.coupling.state()[name], array, err_msg=name)


def test_the_result_before_a_pause_stays_as_it_was():
    X, Y = chains("dense")
    part = db.distance(X, Y, discount=0.9, solver=Somcot(500, certify=False))
    before = {k: v.copy() for k, v in part.coupling.state().items()}
    db.distance(X, Y, discount=0.9, solver=Somcot(900, certify=False), warm=part)
    for name, array in part.coupling.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_save_and_load_keep_everything(tmp_path):
    X, Y = chains("sparse")
    result = db.distance(X, Y, discount=0.9, solver=Somcot(4000))
    result.save(tmp_path / "r.npz")
    again = db.load(tmp_path / "r.npz")
    assert (again.value, again.lower, again.upper, again.status) == (
        result.value,
        result.lower,
        result.upper,
        result.status,
    )
    np.testing.assert_array_equal(again.values, result.values)
    np.testing.assert_array_equal(again.occupancy, result.occupancy)
    np.testing.assert_array_equal(again.plan(1, 2).toarray(), result.plan(1, 2).toarray())
    np.testing.assert_array_equal(again.gradient.transition_y.data, result.gradient.transition_y.data)


@pytest.fixture(scope="module")
def solved():
    rng = np.random.default_rng(11)
    X, Y = db.examples.random_chain(5, rng), db.examples.random_chain(5, rng)
    exact = Exact(tol=1e-11).solve(Discounted.make(X, Y, "reward", 0.9))
    return exact, db.distance(X, Y, discount=0.9, solver=Somcot(60_000, rng=1))


def test_estimate_approaches_the_distance(solved):
    exact, estimate = solved
    assert estimate.outcome is Status.ESTIMATE
    assert estimate.value == pytest.approx(exact.value, rel=0.02)
    assert estimate.lower <= exact.value <= estimate.upper
    assert estimate.gap < 0.1 * exact.value


def test_gradient_points_the_same_way(solved):
    exact, estimate = solved
    for name in ("transition_x", "transition_y", "cost"):
        a, b = getattr(exact.gradient, name).ravel(), getattr(estimate.gradient, name).ravel()
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.97, name


def test_encoder_decoder_values_and_reward_come_close(solved):
    exact, estimate = solved
    visited = exact.occupancy > 0.02
    np.testing.assert_allclose(estimate.values[visited], exact.values[visited], atol=0.05 * exact.values.max())
    np.testing.assert_allclose(estimate.occupancy.sum(), 1)
    np.testing.assert_allclose(estimate.encoder.sum(axis=1), 1)
    np.testing.assert_allclose(estimate.decoder.sum(axis=1), 1)
    np.testing.assert_allclose(estimate.occupancy, exact.occupancy, atol=0.03)
    a, b = exact.implicit_reward().ravel(), estimate.implicit_reward().ravel()
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.95


def test_plans_have_the_marginals_of_the_chains(solved):
    _, estimate = solved
    X, Y = estimate.problem.x, estimate.problem.y
    for x, y in ((0, 0), (3, 1)):
        plan = estimate.plan(x, y)
        np.testing.assert_allclose(plan.sum(axis=1), X.transition[x], atol=1e-12)
        np.testing.assert_allclose(plan.sum(axis=0), Y.transition[y], atol=1e-12)


def test_equal_chains_are_close():
    X = db.examples.drift_walk(0.5, 6)
    result = db.distance(X, X, discount=0.9, solver=Somcot(30_000))
    assert result.lower == 0
    assert result.value < 0.05 * result.problem.scale


def test_starts_are_coupled_optimally():
    """Uniform starts of equal chains: the product coupling would cost a third of the largest cost."""
    X = db.MarkovChain(np.eye(4), initial=np.full(4, 0.25), rewards=np.arange(4.0))
    result = db.distance(X, X, discount=0.8, solver=Somcot(20_000))
    assert result.value < 0.05
    Y = db.MarkovChain(np.eye(4), initial=[0.5, 0, 0, 0.5], rewards=np.arange(4.0))
    exact = db.distance(X, Y, discount=0.8).value
    assert db.distance(X, Y, discount=0.8, solver=Somcot(20_000)).value == pytest.approx(exact, rel=0.05)
    np.testing.assert_allclose(result.coupling.start.plan.toarray().sum(axis=1), 0.25)


@each(seed=range(40))
def test_bounds_contain_the_distance(seed):
    """However early it is stopped."""
    rng = np.random.default_rng(seed)
    n, k = rng.integers(2, 8, 2)
    X = db.examples.random_sparse_chain(n, min(n, 3), rng=rng) if seed % 2 else db.examples.random_chain(n, rng)
    Y, cost, γ = (
        db.examples.random_chain(k, rng),
        10.0 ** rng.integers(-3, 4) * rng.random((n, k)),
        rng.uniform(0.3, 0.97),
    )
    exact = db.distance(X, Y, cost, γ)
    result = db.distance(X, Y, cost, γ, solver=Somcot(int(rng.integers(1, 400)), rng=seed))
    assert result.lower <= exact.upper
    assert result.upper >= exact.lower
    assert result.lower <= result.value <= result.upper


@pytest.mark.parametrize("eta", [2.0, 50.0, 1e4])
def test_steps_far_too_large_stay_finite(eta):
    """The coupling may lose all its mass at once; it is normalized again, and the bounds stay true."""
    rng = np.random.default_rng(2)
    X, Y = db.examples.random_chain(8, rng), db.examples.random_chain(8, rng)
    exact = db.distance(X, Y, discount=0.95)
    result = db.distance(X, Y, discount=0.95, solver=Somcot(3000, eta=eta))
    assert result.lower <= exact.upper
    assert result.upper >= exact.lower
    for name, array in result.coupling.state().items():
        assert np.isfinite(array).all(), name
    assert np.isfinite(result.gradient.transition_y).all()


@pytest.mark.parametrize("options", [{}, {"memory": False, "anticipation": 0, "full": True, "decay": 0.5}], ids=str)
def test_every_level_gives_the_same_bits(monkeypatch, options):
    """Through products, lists and new transitions; the numbers of states are no multiples of a register's length."""
    found = []
    for engine in LEVELS:
        for module in (db, state):
            monkeypatch.setattr(module, "_engine", engine)
        rng = np.random.default_rng(3)
        X, Y = db.examples.random_chain(11, rng), db.examples.random_sparse_chain(9, 4, rng=rng)
        initial = rng.dirichlet(np.ones(11))
        X = db.MarkovChain(X.transition, initial=initial, rewards=X.rewards)
        result = db.distance(X, Y, discount=0.9, solver=Somcot(3000, certify=False, **options))
        found.append({name: array.tobytes() for name, array in result.coupling.state().items()})
    assert all(other == found[0] for other in found)


def seconds_to_end(run, expected):
    before = time.process_time()
    with pytest.warns(ConvergenceWarning, match=expected):
        result = run()
    return result, time.process_time() - before


def test_time_limit_ends_the_first_iteration():
    """It would take seconds; nothing has been iterated then, and the result is what the run begins from."""
    rng = np.random.default_rng(0)
    X, Y = (db.examples.random_chain(150, rng) for _ in "xy")
    solver = Somcot(10, full=True, memory=False, certify=False, time_limit=0.1)
    result, seconds = seconds_to_end(lambda: db.distance(X, Y, discount=0.9, solver=solver), "time_limit")
    assert seconds < 0.5
    assert result.iterations == 0
    assert result.lower == result.problem.cost.min()
    assert result.value == result.problem.cost[0, 0]
    np.testing.assert_allclose(result.plan(1, 2).sum(axis=1), X.transition[1], atol=1e-12)
    more = db.distance(X, Y, discount=0.9, solver=Somcot(1, full=True, memory=False, certify=False), warm=result)
    assert more.iterations == 1


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.4])
def test_a_run_that_was_stopped_anywhere_repeats_every_bit(seconds):
    X, Y = chains("sparse")
    solver = Somcot(10**9, certify=False, rng=4, time_limit=seconds)
    part, _ = seconds_to_end(lambda: db.distance(X, Y, discount=0.9, solver=solver), "time_limit")
    steps = part.iterations + 700
    rest = db.distance(X, Y, discount=0.9, solver=Somcot(steps, certify=False), warm=part)
    whole = db.distance(X, Y, discount=0.9, solver=Somcot(steps, certify=False, rng=4))
    for name, array in whole.coupling.state().items():
        np.testing.assert_array_equal(rest.coupling.state()[name], array, err_msg=name)
