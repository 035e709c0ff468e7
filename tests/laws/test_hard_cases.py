"""Where solvers break: discounts near one, vanishing probabilities, extreme costs, massive ties, early stops.

Oracles: closed forms; linear systems (if one chain is deterministic there is just one coupling); the paper's LP.
"""

import time
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment
from scipy.sparse.linalg import spsolve

import diffbisim as db
from diffbisim.results import Status
from diffbisim.solvers import Exact
from oracles.bellman import transport

TOL = 1e-8  # the default, relative to the largest cost


def walk(n, p, absorbing=False):
    """Up with p, down with 1-p; at the ends it stays, or never leaves them again."""
    P = p * np.eye(n, k=1) + (1 - p) * np.eye(n, k=-1)
    P[0, 0], P[-1, -1] = 1 - p, p
    if absorbing:
        P[0], P[-1] = np.eye(n)[0], np.eye(n)[-1]
    return P


def cycle(n):
    return np.roll(np.eye(n), 1, axis=1)


def random_sparse(rng, n, k):
    """k random successors for every state, CSR."""
    P = np.zeros((n, n))
    for row in P:
        row[rng.choice(n, k, replace=False)] = rng.dirichlet(np.ones(k))
    return sp.csr_array(P)


def apart(n, k):
    return np.abs(np.subtract.outer(np.arange(n), np.arange(k))).astype(float)


def only_coupling(P_x, P_y, c, γ):
    """All values when one chain is deterministic: (I - γ P_X ⊗ P_Y) U = (1-γ) c."""
    system = sp.eye_array(c.size) - γ * sp.kron(sp.csr_array(P_x), sp.csr_array(P_y))
    return spsolve(system.tocsc(), (1 - γ) * c.ravel()).reshape(c.shape)


def agrees_with_lp(result, lp):
    scale = max(result.problem.scale, 1e-300)
    assert result.lower <= lp.upper
    assert lp.lower <= result.upper
    assert abs(result.value - lp.value) <= TOL * scale + lp.gap


# --- discounts near one --------------------------------------------------------------------------------------


@pytest.mark.parametrize("γ", [0.99, 0.999, 0.9999])
@pytest.mark.parametrize("absorbing", [False, True])
def test_drift_walks(γ, absorbing):
    """The paper's drift walk (up with σ(1.5) and σ(-2)), reflecting and absorbing, by the LP."""
    X, Y = (db.MarkovChain(walk(16, 1 / (1 + np.exp(-f)), absorbing), initial=8) for f in (1.5, -2.0))
    result, lp = (db.distance(X, Y, apart(16, 16), γ, solver=s) for s in ("exact", "lp"))
    assert result.converged
    agrees_with_lp(result, lp)


@pytest.mark.parametrize("γ", [0.999, 0.9999])
@pytest.mark.parametrize("seed", range(4))
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
    from diffbisim.solvers import pairs

    monkeypatch.setattr(pairs, "FACTORIZE", 0)
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
@pytest.mark.parametrize("seed", range(4))
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


# --- only what can be reached ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_reachable_pairs_have_the_values_of_the_full_grid(seed, form):
    rng = np.random.default_rng([14, seed])
    P, Q = random_sparse(rng, 12, 2).toarray(), random_sparse(rng, 10, 2).toarray()
    X, Y, c = db.MarkovChain(form(P), initial=0), db.MarkovChain(form(Q), initial=1), rng.random((12, 10))
    full, part = db.distance(X, Y, c), db.distance(X, Y, c, solver=Exact(reachable=True))
    seen = reached(P, Q, 0, 1)
    assert part.work["pairs"] == seen.sum()
    assert np.array_equal(~np.isnan(part.values), seen)
    assert abs(part.value - full.value) <= 2 * TOL
    np.testing.assert_allclose(part.values[seen], full.values[seen], rtol=0, atol=2 * TOL)
    np.testing.assert_allclose(part.occupancy.sum(axis=1), X.occupancy(0.95), rtol=0, atol=1e-10)
    assert not part.occupancy[~seen].any()
    x, y = np.argwhere(seen)[-1]
    np.testing.assert_allclose(np.asarray(part.coupling.plan(x, y).sum(axis=1)).ravel(), P[x], rtol=0, atol=1e-12)


def reached(P, Q, x, y):
    """Pairs that some coupling reaches: closure under all pairs of successors."""
    seen, todo = np.zeros((len(P), len(Q)), bool), [(x, y)]
    while todo:
        x, y = todo.pop()
        if not seen[x, y]:
            seen[x, y] = True
            todo += [(i, j) for i in np.flatnonzero(P[x]) for j in np.flatnonzero(Q[y])]
    return seen


def test_a_pair_that_was_not_solved_says_so():
    X = db.MarkovChain([[1.0, 0.0], [0.5, 0.5]], rewards=[0.0, 1.0])
    result = db.distance(X, X, solver=Exact(reachable=True))
    with pytest.raises(db.InvalidArgument, match="reachable=False"):
        result.plan(1, 1)


# --- stopped early ------------------------------------------------------------------------------------------------


@cache
def mid_size():
    """A 30 x 28 problem that needs several iterations, and its distance."""
    rng = np.random.default_rng(15)
    X, Y = (db.MarkovChain(rng.dirichlet(np.full(n, 0.3), n), initial=rng.dirichlet(np.ones(n))) for n in (30, 28))
    c = rng.random((30, 28))
    return X, Y, c, db.distance(X, Y, c, 0.99, tol=1e-10).value


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_iteration_limit(limit, seed):
    rng = np.random.default_rng([16, seed])
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=rng.dirichlet(np.ones(n))) for n in (5, 4))
    c = rng.random((5, 4))
    with pytest.warns(db.ConvergenceWarning, match="raise max_iterations or tol"):
        result = db.distance(X, Y, c, 0.95, solver=Exact(max_iterations=limit, tol=1e-13))
    assert result.outcome is Status.ITERATIONS
    assert result.iterations == limit == len(result.history)
    lp = db.distance(X, Y, c, 0.95, solver="lp")
    assert result.lower <= lp.value + 1e-12
    assert lp.value - 1e-12 <= result.upper
    for row in result.history:
        assert row["lower"] <= lp.value + 1e-12
        assert lp.value - 1e-12 <= row["upper"]


def test_time_limit():
    X, Y, c, truth = mid_size()
    began = time.monotonic()
    with pytest.warns(db.ConvergenceWarning, match="raise time_limit"):
        result = db.distance(X, Y, c, 0.99, solver=Exact(time_limit=1e-9))
    assert time.monotonic() - began < 10
    assert result.outcome is Status.TIME
    assert result.iterations == 1
    assert result.lower <= truth <= result.upper


def test_callback_that_stops():
    X, Y, c, truth = mid_size()
    rows = []
    with pytest.warns(db.ConvergenceWarning, match="warm=result"):
        result = db.distance(X, Y, c, 0.99, callback=lambda row: rows.append(row) or len(rows) == 2)
    assert result.outcome is Status.INTERRUPTED
    assert "Interrupted" in result.status
    assert len(rows) == result.iterations == 2
    assert result.lower <= truth <= result.upper
    assert (rows[-1]["lower"], rows[-1]["upper"]) == (result.lower, result.upper)


def test_callback_that_does_not_stop_sees_every_row():
    X, Y, c, _ = mid_size()
    rows = []
    result = db.distance(X, Y, c, 0.99, callback=rows.append)
    assert result.converged
    assert [dict(r) for r in rows] == [dict(r) for r in result.history]


def test_an_interrupted_run_can_be_continued():
    X, Y, c, truth = mid_size()
    with pytest.warns(db.ConvergenceWarning):
        part = db.distance(X, Y, c, 0.99, solver=Exact(max_iterations=3))
    rest, cold = db.distance(X, Y, c, 0.99, warm=part), db.distance(X, Y, c, 0.99)
    assert abs(rest.value - truth) <= TOL
    assert rest.work["pivots"] < cold.work["pivots"]


# --- warm starts --------------------------------------------------------------------------------------------------


def test_warm_start_of_the_same_problem_has_nothing_to_do():
    X, Y, c, truth = mid_size()
    cold = db.distance(X, Y, c, 0.99)
    warm = db.distance(X, Y, c, 0.99, warm=cold)
    assert warm.work["pivots"] <= cold.work["pivots"] // 100
    assert warm.iterations <= 2
    assert abs(warm.value - truth) <= TOL


@pytest.mark.parametrize("what", ["kernels", "cost", "discount", "starts"])
def test_warm_start_of_a_nearby_problem(what):
    X, Y, c, _ = mid_size()
    rng, γ, before = np.random.default_rng(17), 0.99, db.distance(X, Y, c, 0.99)
    kept = before.values.copy()
    if what == "kernels":
        X, Y = (
            db.MarkovChain(0.999 * M.transition + 0.001 * rng.dirichlet(np.ones(n), n), initial=M.initial)
            for M, n in ((X, 30), (Y, 28))
        )
    elif what == "cost":
        c = c + 0.001 * rng.random(c.shape)
    elif what == "discount":
        γ = 0.985
    else:
        X = X.with_initial(rng.dirichlet(np.ones(30)))
    cold, warm = db.distance(X, Y, c, γ), db.distance(X, Y, c, γ, warm=before)
    assert abs(warm.value - cold.value) <= 2 * TOL * c.max()
    np.testing.assert_allclose(warm.values, cold.values, rtol=0, atol=2 * TOL * c.max())
    assert warm.work["pivots"] < cold.work["pivots"] / 2
    for x, y in ((0, 0), (17, 3)):
        np.testing.assert_allclose(warm.plan(x, y).sum(axis=1), X.transition[x], rtol=0, atol=1e-12)
        np.testing.assert_allclose(warm.plan(x, y).sum(axis=0), Y.transition[y], rtol=0, atol=1e-12)
    assert np.array_equal(before.values, kept)  # the old result is not written to


@pytest.mark.parametrize("seed", range(5))
def test_warm_start_with_other_supports(seed):
    rng = np.random.default_rng([18, seed])
    c = rng.random((8, 7))
    first, second = ([db.MarkovChain(random_sparse(rng, n, 3)) for n in (8, 7)] for _ in range(2))
    before = db.distance(*first, c)
    warm, cold = db.distance(*second, c, warm=before), db.distance(*second, c)
    assert abs(warm.value - cold.value) <= 2 * TOL
    for other in (
        db.distance(*first, c, lump=True),
        db.distance(*first, c, solver="lp"),
        db.distance(*first, c, solver=Exact(reachable=True)),
    ):
        assert abs(db.distance(*second, c, warm=other).value - cold.value) <= 2 * TOL
        assert abs(db.distance(*first, c, warm=other).value - before.value) <= 2 * TOL


@pytest.mark.parametrize("k", [1e-20, 1e6, 1e12, 1e17, 1e20])
@pytest.mark.parametrize("deterministic", [False, True])
def test_warm_start_from_a_cost_of_another_size(k, deterministic):
    """The old table may be so large that the new cost vanishes beside it: still no false certificate."""
    rng = np.random.default_rng(19)
    P, Q = (cycle(3), cycle(3)) if deterministic else rng.dirichlet(np.ones(3), (2, 3))
    X, Y, c = db.MarkovChain(P), db.MarkovChain(Q), rng.random((3, 3))
    lp = db.distance(X, Y, c, 0.5, solver="lp")
    for old in (np.full((3, 3), k), k * rng.random((3, 3))):
        agrees_with_lp(db.distance(X, Y, c, 0.5, warm=db.distance(X, Y, old, 0.5)), lp)


def test_warm_start_of_another_shape_is_refused():
    one, two = db.MarkovChain([[1.0]], rewards=[0.0]), db.MarkovChain(np.eye(2), rewards=[0.0, 1.0])
    with pytest.raises(db.InvalidArgument, match="warm"):
        db.distance(two, two, warm=db.distance(one, two))
    with pytest.raises(db.InvalidArgument, match="warm"):
        db.distance(two, one, warm=db.distance(one, two))


# --- threads, determinism -------------------------------------------------------------------------------------------


@cache
def large(threads, copy=0, tol=1e-6):
    """A sparse 200 x 200 problem, large enough for several threads; ``copy`` numbers repeated calls."""
    rng = np.random.default_rng(20)
    X, Y = (db.MarkovChain(random_sparse(rng, 200, 8)) for _ in range(2))
    return db.distance(X, Y, rng.random((200, 200)), solver=Exact(threads=threads, tol=tol))


def test_threads_do_not_change_the_distance():
    one, two = large(1), large(2)
    assert (one.value, one.lower, one.upper, one.iterations) == (two.value, two.lower, two.upper, two.iterations)
    assert np.array_equal(one.values, two.values)
    assert one.work == two.work
    for x, y in ((0, 0), (199, 17)):
        assert np.array_equal(one.plan(x, y).toarray(), two.plan(x, y).toarray())


def test_threads_change_the_gradient_by_rounding_only():
    """Sums over pairs are split between threads."""
    one, two = large(1), large(2)
    np.testing.assert_allclose(one.occupancy, two.occupancy, rtol=0, atol=1e-12)
    for field in ("transition_x", "transition_y"):
        mine, theirs = getattr(one.gradient, field), getattr(two.gradient, field)
        np.testing.assert_allclose(mine.data, theirs.data, rtol=0, atol=1e-11)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_same_call_twice_gives_the_same_bits(threads):
    one, two = large(threads, 1, tol=1e9), large(threads, 2, tol=1e9)  # one iteration
    assert one.value == two.value
    assert np.array_equal(one.values, two.values)
    assert np.array_equal(one.occupancy, two.occupancy)
    m = one.occupancy
    first = one.coupling.weighted_potentials(m, everywhere=False)
    for _ in range(6):  # a race shows now and then
        again = two.coupling.weighted_potentials(m, everywhere=False)
        assert all(np.array_equal(mine.data, theirs.data) for mine, theirs in zip(first, again, strict=True))
