"""Values and occupancies of couplings: the same bits at every level and for any number of threads; refused arrays."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim import _engine
from diffbisim.common import stopping
from diffbisim.common.stopping import engine_run
from diffbisim.processes.examples import random_chain, random_sparse_chain
from diffbisim.solvers import Exact, SinkhornPolicy
from diffbisim.solvers.exact import small, transports
from diffbisim.solvers.exact.evaluation import PairChain, Plans
from levels import at_every_level

NONE = np.empty(0, np.int64)


def bits(result):
    gradient = result.gradient
    parts = (gradient.transition_x, gradient.transition_y)
    arrays = [sp.coo_array(part).data for part in parts] + [gradient.cost, gradient.initial_x, gradient.initial_y]
    arrays += [result.values, result.occupancy]
    if result.solver == "exact":
        arrays += [result.values_lower, result.values_upper]
    return [result.value, result.lower, result.upper, result.work, *(np.asarray(array).tobytes() for array in arrays)]


def absorbed(n, seed):
    """A sparse chain that ends in its last state."""
    P = 0.9 * random_sparse_chain(n, 3, rng=seed).transition.toarray()
    P[:, -1] += 0.1
    P[-1] = np.eye(n)[-1]
    return db.MarkovChain(sp.csr_array(P), rewards=np.append(np.random.default_rng(seed).random(n - 1), 0.0))


def solved(kind, threads):
    X, Y = random_sparse_chain(70, 3, rng=1), random_sparse_chain(66, 4, rng=2)
    solver = Exact(tol=1e-7, threads=threads)
    if kind == "dense":
        return db.distance(random_chain(24, 1), random_chain(22, 2), solver=solver)
    if kind == "reachable":
        return db.distance(X, Y, solver=replace(solver, reachable=True))
    if kind == "total":
        X, Y = absorbed(24, 1), absorbed(22, 2)
        terminal = np.zeros((24, 22), bool)
        terminal[-1, -1] = True
        return db.distance(X, Y, criterion="total", terminal=terminal, solver=replace(solver, tol=1e-6))
    if kind == "average":
        return db.distance(X, Y, criterion="average", solver=solver)
    if kind == "sinkhorn":
        return db.distance(random_chain(12, 1), random_chain(11, 2), solver=SinkhornPolicy(tol=1e-2, threads=threads))
    return db.distance(X, Y, discount=0.95, solver=solver)


@pytest.mark.parametrize("kind", ["double", "single", "trees", "dense", "reachable", "average", "total", "sinkhorn"])
def test_levels_and_threads_give_the_same_bits(monkeypatch, kind):
    monkeypatch.setattr(small, "MAX_STATES", 0)
    monkeypatch.setattr(stopping, "SHARE", 1.0)
    monkeypatch.setattr(transports, "MANY", 0 if kind in ("single", "trees") else 10**9)
    if kind == "trees":
        monkeypatch.setattr(transports, "TARGETS", 0)
    found = [bits(solved(kind, threads)) for threads in at_every_level(monkeypatch)]
    assert all(other == found[0] for other in found[1:])


def random_plans(n, seed, entries=4):
    """Stochastic plans, in blocks of targets more than one."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, n, n * entries).astype(np.int32)
    return Plans(np.arange(0, n * entries + 1, entries), target, rng.dirichlet(np.ones(entries), n).ravel(), NONE)


def test_systems_of_many_pairs_and_their_transposes(monkeypatch):
    n, γ, found = 30_000, 0.9, []
    plans, rng = random_plans(n, 1), np.random.default_rng(2)
    b, start = rng.random(n), np.zeros(n)
    start[:3] = 1 / 3
    monkeypatch.setattr(stopping, "SHARE", 1.0)
    for threads in at_every_level(monkeypatch):
        chain = PairChain(plans, n, γ, threads)
        Π = chain.matrix()
        U, out = np.zeros(n), np.empty(n)
        chain.evaluate(b, U, 1e-10, np.empty(n))
        assert np.abs(b - U + γ * (Π @ U)).max() <= 1e-9
        chain.apply(b, out, transposed=True)
        np.testing.assert_allclose(out, b - γ * (Π.T @ b), rtol=0, atol=1e-14)
        m, error = chain.occupancy(start, 1e-12)
        assert error == 0.0
        assert np.abs((1 - γ) * start - m + γ * (Π.T @ m)).sum() <= 1e-9
        again, _ = chain.occupancy(start, 1e-12, np.full(n, 1 / n))  # from another law
        np.testing.assert_allclose(again, m, rtol=0, atol=1e-11)
        chain.sweep(b, U, 3, transposed=True)
        found.append([part.tobytes() for part in (U, out, m, again)])
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("target", np.array([0, 3, 1], np.int32), "numbers of pairs"),
        ("target", np.array([0, -1, 1], np.int32), "numbers of pairs"),
        ("target", np.array([0, 1], np.int32), "same size"),
        ("target", np.array([0.0, 1.0, 2.0]), "int32 or int64"),
        ("flow", np.ones(3, np.float32), "flow is not"),
        ("indptr", np.array([0, 2, 1, 3]), "ascend"),
        ("indptr", np.array([0, 1, 2, 4]), "number of entries"),
        ("chosen", np.array([0, 1, 3]), "numbers of rows"),
    ],
)
def test_plans_that_would_be_read_out_of_bounds_are_refused(name, value, error):
    plans = Plans(np.arange(4), np.array([0, 1, 2], np.int32), np.ones(3), NONE)
    assert _engine.PairChain(plans, 3).products == 0
    with pytest.raises((ValueError, TypeError), match=error):
        _engine.PairChain(plans._replace(**{name: value}), 3)


def test_arrays_of_other_sizes_are_refused():
    chain = _engine.PairChain(Plans(np.arange(4), np.array([0, 1, 2]), np.ones(3), NONE), 3)
    with pytest.raises(ValueError, match="one number for every pair"):
        chain.apply(0.9, False, np.ones(3), np.ones(2), engine_run())
    few = _engine.PairChain(Plans(np.arange(3), np.array([0, 1], np.int32), np.ones(2), NONE), 3)
    few.multiply(np.ones(3), np.ones(2), engine_run())
    with pytest.raises(ValueError, match="every pair needs a plan"):
        few.apply(0.9, False, np.ones(3), np.ones(3), engine_run())


def test_an_evaluation_ends_at_a_deadline():
    n = 30_000
    chain = _engine.PairChain(random_plans(n, 3), n)
    with pytest.raises(TimeoutError):
        chain.sweep(0.9, False, np.ones(n), np.ones(n), 10**7, _engine.Run(2, np.zeros(1, bool), 0.05))
