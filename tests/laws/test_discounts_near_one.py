"""Discounts near one, where solvers break first: values, occupancies and certificates.

Oracles: closed forms; linear systems (if one chain is deterministic there is just one coupling); the paper's LP.
"""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each
from diffbisim.results.base import Status
from oracles.bounds import TOL, agrees_with_lp
from oracles.kernels import apart, cycle, only_coupling, random_sparse, walk


# How many digits the linear program has here depends on the version of HiGHS; its bounds are valid all the same.
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
@pytest.mark.parametrize("γ", [0.99, 0.999, 0.9999])
@pytest.mark.parametrize("absorbing", [False, True])
def test_drift_walks(γ, absorbing):
    """The paper's drift walk (up with σ(1.5) and σ(-2)), reflecting and absorbing, by the LP."""
    X, Y = (db.MarkovChain(walk(16, 1 / (1 + np.exp(-f)), absorbing), initial=8) for f in (1.5, -2.0))
    result, lp = (db.distance(X, Y, apart(16, 16), γ, solver=s) for s in ("exact", "lp"))
    assert result.converged
    agrees_with_lp(result, lp)


@pytest.mark.parametrize("γ", [0.999, 0.9999])
@each(seed=range(4))
def test_random_chains_near_one(γ, seed):
    rng = np.random.default_rng([1, seed])
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=rng.dirichlet(np.ones(n))) for n in (5, 4))
    c = rng.random((5, 4))
    agrees_with_lp(db.distance(X, Y, c, γ), db.distance(X, Y, c, γ, solver="lp"))


@pytest.mark.parametrize("γ", [0.99, 0.9999])
def test_long_cycles(γ):
    """50 x 47 states, one orbit of length 2350: a geometric sum."""
    c, t = np.random.default_rng(2).random((50, 47)), np.arange(2350)
    weights = (1 - γ) * γ**t / -np.expm1(2350 * np.log(γ))
    X, Y = db.MarkovChain(sp.csr_array(cycle(50))), db.MarkovChain(sp.csr_array(cycle(47)))
    result = db.distance(X, Y, c, γ)
    assert result.value == pytest.approx(weights @ c[t % 50, t % 47], rel=0, abs=TOL)
    expected = np.zeros((50, 47))
    expected[t % 50, t % 47] = weights
    np.testing.assert_allclose(result.occupancy, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("γ", [0.99, 0.9999])
@pytest.mark.parametrize("kind", ["random", "walk", "absorbing walk"])
def test_against_a_deterministic_chain_there_is_one_coupling(γ, kind):
    rng = np.random.default_rng(3)
    P = {"random": random_sparse(rng, 40, 5).toarray(), "walk": walk(40, 0.55), "absorbing walk": walk(40, 0.5, True)}[
        kind
    ]
    Q, c = np.eye(30)[rng.integers(0, 30, 30)], rng.random((40, 30))
    X, Y = db.MarkovChain(sp.csr_array(P), initial=20), db.MarkovChain(sp.csr_array(Q), initial=7)
    result = db.distance(X, Y, c, γ)
    np.testing.assert_allclose(result.values, only_coupling(P, Q, c, γ), rtol=0, atol=TOL)
    occupied = result.occupancy
    np.testing.assert_allclose(occupied.sum(axis=1), X.occupancy(γ), rtol=0, atol=1e-9)
    np.testing.assert_allclose(occupied.sum(axis=0), Y.occupancy(γ), rtol=0, atol=1e-9)


@pytest.mark.parametrize("γ", [0.9, 0.99])
def test_occupancy_of_a_large_periodic_grid(γ):
    """145 x 139 states, more than are ever factorized. One coupling, so that the loosest tolerance has it."""
    n, k, t = 145, 139, np.arange(145 * 139)
    X, Y = db.MarkovChain(sp.csr_array(cycle(n))), db.MarkovChain(sp.csr_array(cycle(k)))
    result = db.distance(X, Y, np.random.default_rng(4).random((n, k)), γ, tol=1e9)
    expected = np.zeros((n, k))
    expected[t % n, t % k] = (1 - γ) * γ**t / -np.expm1(t.size * np.log(γ))
    np.testing.assert_allclose(result.occupancy, expected, rtol=0, atol=1e-8)  # asked for: 1e-9 of the source


@pytest.mark.parametrize("γ", [0.99, 0.999])
def test_occupancy_of_large_absorbing_walks(γ):
    """150 x 150 states; whatever the plans, the marginals are the occupancies of the chains."""
    X, Y = (
        db.MarkovChain(sp.csr_array(walk(150, p, True)), initial=75, rewards=np.arange(150) / 150) for p in (0.5, 0.52)
    )
    result = db.distance(X, Y, discount=γ, tol=1e9)
    np.testing.assert_allclose(result.occupancy.sum(axis=1), X.occupancy(γ), rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.occupancy.sum(axis=0), Y.occupancy(γ), rtol=0, atol=1e-6)


def test_an_occupancy_that_is_not_accurate_says_so(monkeypatch):
    """The way of very large grids (nothing is factorized), on a small one: right, or a warning, but not silence."""
    from diffbisim.solvers.exact import evaluation

    monkeypatch.setattr(evaluation, "FACTORIZE", 0)
    γ, X, Y = 0.9999, *(db.MarkovChain(sp.csr_array(walk(60, p, True)), initial=30) for p in (0.5, 0.52))
    result = db.distance(X, Y, apart(60, 60), γ, tol=1e9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = np.abs(result.occupancy.sum(axis=1) - X.occupancy(γ)).max()
    assert error <= 1e-6 or any(issubclass(w.category, db.ConvergenceWarning) for w in caught)


def test_more_than_double_precision_has_ends_with_the_right_sentence():
    rng = np.random.default_rng(5)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(4), 4)) for _ in range(2))
    c = rng.random((4, 4))
    with pytest.warns(db.ConvergenceWarning, match="double precision"):
        result = db.distance(X, Y, c, 0.95, tol=1e-300)
    assert result.outcome is Status.ROUNDING
    assert result.iterations < 50
    assert result.gap <= 1e-11
    agrees_with_lp(result, db.distance(X, Y, c, 0.95, solver="lp"))


@pytest.mark.parametrize("γ", [1e-300, 1e-17, 1 - 1e-12, np.nextafter(1.0, 0.0)])
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_discounts_at_the_ends_of_the_interval(γ):
    """Constant cost: d is that constant, whatever the discount; the bounds may be as wide as rounding makes them."""
    rng = np.random.default_rng(6)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(3), 3)) for _ in range(2))
    result = db.distance(X, Y, np.full((3, 3), 0.7), γ)
    assert result.lower <= 0.7 <= result.upper
    assert result.lower <= result.value <= result.upper
