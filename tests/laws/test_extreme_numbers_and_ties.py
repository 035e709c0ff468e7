"""Vanishing probabilities, costs of any size, and massive ties.

Oracles: closed forms; assignments and linear systems (if one chain is deterministic there is just one coupling).
"""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

import diffbisim as db
from cases import each
from oracles.bellman import transport
from oracles.bounds import TOL
from oracles.kernels import cycle, only_coupling

# --- probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1e-12, 1e-16, 1e-17, 1e-100, 1e-300, 5e-324])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_vanishing_probabilities_change_nothing(p, form):
    """d moves by γ/(1-γ) p at most when rows move by p in total variation, four entries at most."""
    kernels = [([[1, p, 0], [0.2, 0.3, 0.5], [0.5, 0.5, p]], [[0.5, 0.5, p], [1, p, p], [p, 0.5, 0.5]])]
    kernels.append(tuple(np.where(np.array(P) == p, 0.0, P) for P in kernels[0]))
    with_p, without = (
        db.distance(*(db.MarkovChain(form(np.array(P)), rewards=[0.0, 1.0, 2.0]) for P in pair), tol=1e-11)
        for pair in kernels
    )
    atol = 2 * (1e-11 + 19 * 4 * p)
    np.testing.assert_allclose(with_p.values, without.values, rtol=0, atol=atol)
    for table in (with_p.encoder, with_p.decoder):
        np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    for part in (with_p.gradient.cost, with_p.gradient.initial_x, with_p.implicit_reward(), *with_p.potentials(2, 1)):
        assert np.isfinite(part).all()


def test_vanishing_starts():
    X = db.MarkovChain([[0.5, 0.5], [0.0, 1.0]], initial=[1.0, 1e-300], rewards=[0.0, 1.0])
    Y = db.MarkovChain([[1.0, 0.0], [0.5, 0.5]], initial=[1e-300, 1.0], rewards=[0.0, 1.0])
    expected = db.distance(X.with_initial(0), Y.with_initial(1)).value
    assert db.distance(X, Y).value == pytest.approx(expected, rel=0, abs=2 * TOL)


# --- costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1e-300, 1e-150, 1e-12, 1e12, 1e150, 1e300])
def test_costs_of_any_size_without_a_floating_point_warning(k):
    rng = np.random.default_rng(7)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(4), 4)) for _ in range(2))
    c = rng.random((4, 4))
    c /= c.max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = db.distance(X, Y, k * c)
        reward = result.implicit_reward()
    unit = db.distance(X, Y, c)
    assert result.value / k == pytest.approx(unit.value, rel=0, abs=2 * TOL)
    np.testing.assert_allclose(reward / k, unit.implicit_reward(), rtol=0, atol=1e-6)


def test_a_cost_of_zero():
    rng = np.random.default_rng(8)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(4), 4), initial=rng.dirichlet(np.ones(4))) for _ in range(2))
    result = db.distance(X, Y, np.zeros((4, 4)))
    assert result.value == result.lower == result.upper == 0
    assert not result.values.any()
    assert not result.gradient.transition_x.any()
    assert not result.implicit_reward().any()
    np.testing.assert_allclose(result.occupancy.sum(axis=0), Y.occupancy(0.95), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_one_huge_cost_among_ones(dense):
    """The same chain twice, all costs one but c(0,1) = 1e12, which the diagonal coupling avoids: d = 1.

    tol is relative to the largest cost, so only the bounds can be held to account, and they must be of use.
    """
    P = np.random.default_rng(9).dirichlet(np.ones(3), 3) if dense else cycle(3)
    c = np.ones((3, 3))
    c[0, 1] = 1e12
    result = db.distance(db.MarkovChain(P), db.MarkovChain(P), c, 0.9)
    assert result.lower <= 1.0 <= result.upper
    assert result.gap <= TOL * 1e12
    assert result.occupancy[0, 1] == 0


@pytest.mark.parametrize("offset", [1.0, 1e6])
def test_no_bound_is_beyond_the_extreme_costs(offset):
    """d is an average of costs: neither the value nor a bound lies outside their range."""
    rng = np.random.default_rng(10)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(3), 3)) for _ in range(2))
    c = offset + np.array([[0.0, 1.0, 1e10], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    result = db.distance(X, Y, c, 0.9, tol=1.0)
    assert result.lower >= c.min()
    assert result.upper <= c.max()


def test_bounds_where_the_distance_is_the_smallest_or_the_largest_cost():
    """Absorbing states: d = c(0,0), whatever the others cost. No tolerance: the bounds include rounding."""
    rng, M, wrong = np.random.default_rng(23), db.MarkovChain(np.eye(2)), []
    for corner, others in rng.random((200, 2)):
        c = np.array([[corner, others], [others, others]])
        result = db.distance(M, M, c, 0.5)
        if not result.lower <= corner <= result.upper:
            wrong.append((corner, others))
    assert not wrong


# --- ties ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["integers", "indicator", "line"])
@pytest.mark.parametrize("γ", [0.5, 0.95, 0.9999])
def test_uniform_rows_everywhere(kind, γ):
    """Independent uniform states: U = (1-γ) c + γ · (cheapest assignment) / n. 20 x 20, all trees degenerate."""
    n = 20
    costs = {"integers": np.random.default_rng(11).integers(0, 3, (n, n)).astype(float), "indicator": 1.0 - np.eye(n)}
    c = costs.get(kind, np.abs(np.subtract.outer(np.arange(n), np.arange(n)[::-1] + 3.0)))
    M = db.MarkovChain(np.full((n, n), 1 / n))
    result = db.distance(M, M, c, γ)
    expected = (1 - γ) * c + γ * c[linear_sum_assignment(c)].mean()
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=TOL * c.max())
    np.testing.assert_allclose(result.occupancy.sum(axis=1), M.occupancy(γ), rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(9, 7), (2, 30), (64, 64), (64, 65)])
def test_identical_rows(shape):
    """Independent draws from p and q: U = (1-γ) c + γ OT_c(p, q). 64 + 64 nodes are the last that int8 can number."""
    (n, k), rng, γ = shape, np.random.default_rng([12, *shape]), 0.9
    p, q, c = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(k)), rng.random(shape)
    X, Y = db.MarkovChain(np.tile(p, (n, 1))), db.MarkovChain(np.tile(q, (k, 1)))
    plan, _, _ = transport(c, p, q)
    np.testing.assert_allclose(db.distance(X, Y, c, γ).values, (1 - γ) * c + γ * np.sum(plan * c), rtol=0, atol=TOL)


@pytest.mark.parametrize("γ", [0.5, 0.9999])
@pytest.mark.parametrize("swap", [False, True])
def test_one_state_against_forty(γ, swap):
    """No choice: d = <ρ, c>, the gradient in the kernel is ρ(x) times a value function."""
    rng = np.random.default_rng(13)
    many, one, c = db.MarkovChain(rng.dirichlet(np.ones(40), 40), initial=3), db.MarkovChain([[1.0]]), rng.random(40)
    V = np.linalg.solve(np.eye(40) - γ * many.transition, c)
    expected = γ * many.occupancy(γ)[:, None] * (V - (many.transition @ V)[:, None])
    pair = (one, many, c[None]) if swap else (many, one, c[:, None])
    result = db.distance(*pair, γ)
    assert result.value == pytest.approx(many.occupancy(γ) @ c, rel=0, abs=TOL)
    gradient = result.gradient.transition_y if swap else result.gradient.transition_x
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("ties", [False, True])
def test_uniform_starts_are_assigned_optimally(ties):
    """Deterministic chains have one coupling after the start, and uniform starts are an assignment."""
    rng, n, γ = np.random.default_rng(21), 60, 0.9
    P, Q = (np.eye(n)[rng.integers(0, n, n)] for _ in range(2))
    c = rng.integers(0, 3, (n, n)).astype(float) if ties else rng.random((n, n))
    uniform = np.full(n, 1 / n)
    result = db.distance(db.MarkovChain(P, initial=uniform), db.MarkovChain(Q, initial=uniform), c, γ)
    U = only_coupling(P, Q, c, γ)
    assert result.value == pytest.approx(U[linear_sum_assignment(U)].mean(), rel=0, abs=TOL * c.max())


@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")  # what is merged widens the gap, and it says so
@pytest.mark.parametrize("noise", [1e-14, 1e-13, 9e-13, 1e-11])
@each(seed=range(4))
def test_lumping_states_that_are_nearly_equivalent_keeps_the_bounds_true(noise, seed):
    """Rows equal up to noise, about the tolerance of lump: merged or not, both intervals hold the same number."""
    rng, γ, blocks = np.random.default_rng([22, seed]), (0.9, 0.9999)[seed % 2], np.array([0, 0, 0, 1, 1, 2])
    size = np.bincount(blocks)
    P = rng.dirichlet(np.ones(3), 3)[blocks][:, blocks] / size[blocks]
    P *= 1 + noise * rng.uniform(-1, 1, P.shape)
    X = db.MarkovChain(P / P.sum(axis=1, keepdims=True), initial=rng.dirichlet(np.ones(6)), rewards=blocks)
    Y = db.MarkovChain(rng.dirichlet(np.ones(4), 4), rewards=2 * rng.random(4))
    plain, lumped = (db.distance(X, Y, discount=γ, tol=1e-9, lump=lump) for lump in (False, True))
    assert plain.lower <= lumped.upper
    assert lumped.lower <= plain.upper
