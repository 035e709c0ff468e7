"""Finite horizons against backward induction by linprog, a program over all couplings of paths, and closed forms."""

import itertools
import pickle
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.problems.horizon import FiniteHorizon
from diffbisim.results.gradient import kernel_gradients
from diffbisim.solvers import Exact
from diffbisim.solvers.exact import horizon
from levels import at_every_level
from oracles.adversarial import hostile
from oracles.horizon import exact_distance_of, induction, over_paths
from problems import problem_of


def rows(rng, n, m, zeros=0.0):
    P = rng.dirichlet(np.ones(m), size=n) * (rng.random((n, m)) >= zeros)
    P[np.arange(n), rng.integers(m, size=n)] += 0.1
    return P / P.sum(axis=1, keepdims=True)


def timed_pair(rng, sizes_x, sizes_y, zeros=0.0, matrix=np.asarray):
    """Two timed chains, costs and weights, and the arguments of the oracles."""
    Ps = [rows(rng, n, m, zeros) for n, m in itertools.pairwise(sizes_x)]
    Qs = [rows(rng, n, m, zeros) for n, m in itertools.pairwise(sizes_y)]
    nu_x, nu_y = rng.dirichlet(np.ones(sizes_x[0])), rng.dirichlet(np.ones(sizes_y[0]))
    costs = [rng.random((n, m)) for n, m in zip(sizes_x, sizes_y, strict=True)]
    w = rng.random(len(costs)) * (rng.random(len(costs)) > 0.2) + 0.01
    X = db.TimedChain([matrix(P) for P in Ps], initial=nu_x)
    Y = db.TimedChain([matrix(Q) for Q in Qs], initial=nu_y)
    return X, Y, costs, w, (Ps, Qs, nu_x, nu_y, costs, w)


@pytest.mark.parametrize("matrix", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("seed", range(4))
def test_against_linprog_at_every_step(seed, matrix):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=(2, 5))
    X, Y, costs, w, parts = timed_pair(rng, sizes[0], sizes[1], zeros=0.4, matrix=matrix)
    d, tables = induction(*parts)
    r = db.distance(X, Y, cost=costs, weights=w)
    assert r.lower <= r.value <= r.upper
    assert r.value == pytest.approx(d, abs=1e-9)  # the program's own tolerance
    for t, table in enumerate(tables):
        np.testing.assert_allclose(r.values_at(t), table, rtol=0, atol=1e-9)
    part = db.distance(X, Y, cost=costs, weights=w, solver=Exact(reachable=True))
    assert part.value == pytest.approx(r.value, abs=r.gap + part.gap)


@pytest.mark.parametrize("seed", range(30))
def test_bounds_in_rational_arithmetic(seed):
    """No tolerance: the bounds include rounding, the oracle has none; crumbs of 1e-308, costs from 1e-18 to 1."""
    problem = problem_of(hostile(seed), sparse=seed % 2 == 1)
    rng = np.random.default_rng(seed)
    scale, weights = 10.0 ** rng.integers(-150, 150), 10.0 ** rng.integers(-20, 20, size=4) * (rng.random(4) > 0.2)
    weights[-1] += 1e-3
    timed = FiniteHorizon.make(problem.x, problem.y, scale * problem.cost, 1.0, weights=weights)
    d = exact_distance_of(timed)
    stops = (None, lambda row: row["time"] == 1)
    for solver, stop in product((Exact(), Exact(reachable=True)), stops):
        r = solver.solve(timed, callback=stop)
        assert r.lower <= r.value <= r.upper < np.inf
        assert Fraction(r.lower) <= d <= Fraction(r.upper)
        assert stop is not None or r.converged


@pytest.mark.parametrize("seed", range(3))
def test_no_bicausal_coupling_of_paths_is_cheaper(seed):
    rng = np.random.default_rng(seed)
    X, Y, costs, w, parts = timed_pair(rng, (2, 2, 2), (1, 3, 2))
    assert db.distance(X, Y, cost=costs, weights=w).value == pytest.approx(over_paths(*parts), abs=1e-8)


def test_chains_that_stay_the_same_and_mixtures_of_both_kinds():
    X, Y = db.examples.random_chain(4, 0), db.examples.random_chain(3, 1)
    T, γ = 5, 0.8
    weights = γ ** np.arange(T + 1) / (γ ** np.arange(T + 1)).sum()
    c = np.abs(np.subtract.outer(X.rewards, Y.rewards))
    d, tables = induction([X.transition] * T, [Y.transition] * T, X.initial, Y.initial, [c] * (T + 1), weights)
    both = [X, db.TimedChain.repeat(X, T), db.TimedChain([X.transition] * T, rewards=X.rewards)]
    for first in both:
        r = db.distance(first, Y, horizon=T, discount=γ)
        assert r.value == pytest.approx(d, abs=1e-9)
        np.testing.assert_allclose(r.values, tables[0], rtol=0, atol=1e-9)
    assert db.distance(both[1], Y, discount=γ).value == r.value  # its own number of steps
    assert db.distance(Y, X, horizon=T, discount=γ).value == pytest.approx(r.value, abs=r.gap)
    assert db.distance(X, X, horizon=T, discount=1).value == 0.0


@pytest.mark.parametrize("γ", [0.5, 0.9])
def test_long_horizons_tend_to_the_discounted_distance(γ):
    X, Y = db.examples.random_chain(5, 0), db.examples.random_sparse_chain(6, 2, 1)
    limit = db.distance(X, Y, discount=γ, tol=1e-11)
    scale = np.abs(np.subtract.outer(X.rewards, Y.rewards)).max()
    for T in (1, 5, 20):
        w = (1 - γ) * γ ** np.arange(T + 1)
        r = db.distance(X, Y, weights=w)
        assert -1e-10 <= limit.value - r.value <= γ ** (T + 1) * scale + 1e-10
        normalized = db.distance(X, Y, horizon=T, discount=γ)
        assert normalized.value == pytest.approx(r.value / w.sum(), rel=1e-12)


def test_depth_k_compares_the_marginals_through_all_steps():
    """All weight at the end: for deterministic chains the cost of the last pair; in general at least OT of the laws."""
    a, b = db.examples.cycle(5), db.examples.cycle(3)
    for k in range(1, 8):
        assert db.distance(a, b, weights=[0] * k + [1]).value == abs(k % 5 - k % 3)
    X, Y = db.examples.random_chain(4, 0), db.examples.random_chain(4, 1)
    laws = [db.TimedChain.repeat(chain, 3).marginals()[-1] for chain in (X, Y)]
    at_once = db.distance(X.with_initial(laws[0]), Y.with_initial(laws[1]), weights=[1, 0]).value
    assert db.distance(X, Y, weights=[0, 0, 0, 1]).value >= at_once - 1e-12


@pytest.mark.parametrize(
    ("a", "b", "noise", "exact", "sizes", "error"),
    [(0.8, 0.5, (1.0, 0.7), 1.580150, (31, 61), 1e-3), (0.9, -0.6, (1.0, 1.0), 8.048025, (21, 41), 5e-3)],
)
def test_gaussian_paths_by_richardson(a, b, noise, exact, sizes, error):
    """Errors are of order n^-2 on a grid of n points; what is left after Richardson's step is of order n^-4."""
    e, T, found = db.examples, 4, []
    covariances = [e.autoregression_covariance(c, σ, T) for c, σ in zip((a, b), noise, strict=True)]
    assert e.gaussian_distance(*covariances) == pytest.approx(exact, abs=1e-6)
    for n in sizes:
        X, Y = (e.autoregression(c, σ, T, n) for c, σ in zip((a, b), noise, strict=True))
        found.append(db.distance(X, Y, cost="squared", weights=np.ones(T + 1)).value)
    assert found[0] > found[1] > exact
    assert (4 * found[1] - found[0]) / 3 == pytest.approx(exact, abs=error)


def test_the_closed_form_with_antithetic_steps_and_in_two_dimensions():
    e = db.examples
    A, B = e.autoregression_covariance(-1.5, 0.5, 3), e.autoregression_covariance(1.4, 0.5, 3)
    assert e.gaussian_distance(A, B) == pytest.approx(3.126, abs=5e-4)
    assert e.gaussian_distance(A, A) == pytest.approx(0.0, abs=1e-12)
    two = e.gaussian_distance(np.kron(A, np.eye(2)), np.kron(B, np.eye(2)), dimension=2)
    assert two == pytest.approx(2 * e.gaussian_distance(A, B))  # two independent coordinates
    assert e.gaussian_distance([[4.0]], [[1.0]], [1.0], [0.0]) == pytest.approx(2.0)  # (2 - 1)² + 1²
    with pytest.raises(db.InvalidArgument, match="positive definite"):
        e.gaussian_distance([[0.0]], [[1.0]])


# --- what the result knows -----------------------------------------------------------------------------------------


def test_plans_potentials_and_laws():
    rng = np.random.default_rng(3)
    X, Y, costs, w, _ = timed_pair(rng, (3, 4, 2), (2, 3, 3))
    r = db.distance(X, Y, cost=costs, weights=w)
    for t in range(2):
        V, m = r.values_at(t + 1), np.zeros(r.values_at(t + 1).shape)
        for x in range(X.n_states[t]):
            for y in range(Y.n_states[t]):
                plan, (f, g) = r.plan(x, y, time=t), r.potentials(x, y, time=t)
                np.testing.assert_allclose(plan.sum(axis=1), X.transitions[t][x], atol=1e-14)
                np.testing.assert_allclose(plan.sum(axis=0), Y.transitions[t][y], atol=1e-14)
                assert (f[:, None] + g <= V + 1e-12).all()
                value = X.transitions[t][x] @ f + Y.transitions[t][y] @ g
                assert value == pytest.approx(np.sum(plan * V), abs=1e-12)
                m += r.occupancy_at(t)[x, y] * plan
        np.testing.assert_allclose(r.occupancy_at(t + 1), m, atol=1e-14)
        np.testing.assert_allclose(r.occupancy_at(t).sum(axis=1), X.marginals()[t], atol=1e-14)
    mean = sum(a * np.sum(r.occupancy_at(t) * c) for t, (a, c) in enumerate(zip(w, costs, strict=True)))
    assert r.value == pytest.approx(mean, abs=1e-12)
    with pytest.raises(db.InvalidArgument, match="occupancy_at"):
        r.occupancy  # noqa: B018
    with pytest.raises(db.InvalidArgument, match="time is 2, after the last step"):
        r.plan(0, 0, time=2)


def slope(value, point, direction, step=1e-6):
    """Central difference of a function along a direction."""
    return (value(point + step * direction) - value(point - step * direction)) / (2 * step)


def inside(rng, P):
    """A direction along which rows keep their sums, on their support."""
    D = (P > 0) * rng.standard_normal(P.shape)
    return D - (P > 0) * (D.sum(axis=-1, keepdims=True) / (P > 0).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("matrix", [np.asarray, sp.csr_array])
def test_gradients_of_timed_chains(matrix):
    rng = np.random.default_rng(5)
    X, Y, costs, w, parts = timed_pair(rng, (3, 4, 2, 3), (2, 3, 4, 2), zeros=0.2, matrix=matrix)
    g = db.distance(X, Y, cost=costs, weights=w).gradient

    def with_part(k, t):
        """The distance as a function of one part: the kernel or cost of time t, or a start."""

        def value(new):
            Ps, Qs, nu_x, nu_y, costs, _ = (list(part) for part in parts)
            (Ps, Qs, nu_x, nu_y, costs)[k][slice(None) if t is None else t] = new
            X, Y = db.TimedChain(Ps, initial=nu_x), db.TimedChain(Qs, initial=nu_y)
            return db.distance(X, Y, cost=costs, weights=w).value

        return value

    for t in range(3):
        for k, derivative in ((0, g.transition_x[t]), (1, g.transition_y[t])):
            D = inside(rng, parts[k][t])
            assert slope(with_part(k, t), parts[k][t], D) == pytest.approx((derivative * D).sum(), abs=1e-6)
        D = rng.standard_normal(costs[t].shape)
        assert slope(with_part(4, t), costs[t], D) == pytest.approx((g.cost[t] * D).sum(), abs=1e-6)
    for k, derivative in ((2, g.initial_x), (3, g.initial_y)):
        D = inside(rng, parts[k])
        assert slope(with_part(k, None), parts[k], D) == pytest.approx(derivative @ D, abs=1e-6)


def test_gradients_of_chains_are_added_up_over_time():
    rng = np.random.default_rng(7)
    X, Y, c = db.examples.random_chain(4, rng), db.examples.random_chain(3, rng), rng.random((4, 3))
    P, Q = X.transition, Y.transition
    r = db.distance(X, Y, cost=c, horizon=6, discount=0.9)

    def value(P=P, Q=Q, c=c):
        return db.distance(db.MarkovChain(P), db.MarkovChain(Q), cost=c, horizon=6, discount=0.9).value

    D, E, F = inside(rng, P), inside(rng, Q), rng.standard_normal(c.shape)
    assert slope(value, P, D) == pytest.approx((r.gradient.transition_x * D).sum(), abs=1e-6)
    assert slope(lambda Q: value(Q=Q), Q, E) == pytest.approx((r.gradient.transition_y * E).sum(), abs=1e-6)
    assert slope(lambda c: value(c=c), c, F) == pytest.approx((r.gradient.cost * F).sum(), abs=1e-6)
    np.testing.assert_allclose(r.gradient.cost, r.occupancy, atol=1e-14)  # weights sum to one
    assert r.encoder.shape == (4, 3)
    for side, everywhere in product("xy", (True, False)):  # what the bridges ask for
        rows = kernel_gradients(r.coupling, r.occupancy, everywhere)["xy".index(side)]
        rows = rows if everywhere else rows.toarray()
        np.testing.assert_allclose(rows, getattr(r.gradient, f"transition_{side}"), atol=1e-13)
    timed = db.distance(db.TimedChain.repeat(X, 6), Y, cost=c, discount=0.9)
    np.testing.assert_allclose(sum(timed.gradient.transition_x), r.gradient.transition_x, atol=1e-13)


def test_trees_that_are_not_kept_are_found_again(monkeypatch):
    X, Y, c = db.examples.random_chain(5, 0), db.examples.random_chain(4, 1), np.random.default_rng(2).random((5, 4))
    kept = db.distance(X, Y, cost=c, horizon=5, discount=0.9)
    monkeypatch.setattr(horizon, "KEPT", 0)
    again = db.distance(X, Y, cost=c, horizon=5, discount=0.9)
    assert again.value == pytest.approx(kept.value, abs=kept.gap)
    assert not any(again.coupling.steps)
    np.testing.assert_allclose(again.plan(1, 2, time=3), kept.plan(1, 2, time=3), atol=1e-14)
    np.testing.assert_allclose(again.gradient.transition_x, kept.gradient.transition_x, atol=1e-12)


# --- runs ----------------------------------------------------------------------------------------------------------


def test_bounds_are_true_when_stopped_and_a_warm_run_goes_on():
    X, Y = db.examples.random_chain(5, 0), db.examples.random_chain(4, 1)
    full = db.distance(X, Y, horizon=8, discount=0.9)
    assert full.iterations == 8
    for row in full.history:
        assert row["lower"] <= full.lower + full.gap
        assert full.upper - full.gap <= row["upper"]
    widths = [row["upper"] - row["lower"] for row in full.history]
    assert widths == sorted(widths, reverse=True)
    with pytest.warns(db.ConvergenceWarning):
        part = db.distance(X, Y, horizon=8, discount=0.9, callback=lambda row: row["time"] == 3)
    assert part.lower <= full.value <= part.upper
    assert not part.converged
    assert part.iterations == 5
    assert np.isnan(part.values).all()
    np.testing.assert_array_equal(part.values_at(3), full.values_at(3))
    with pytest.raises(db.InvalidArgument, match="stopped at time 3"):
        part.gradient  # noqa: B018
    rest = db.distance(X, Y, horizon=8, discount=0.9, warm=part)
    assert rest.value == full.value
    assert rest.iterations == 3
    with pytest.warns(db.ConvergenceWarning):
        late = db.distance(X, Y, horizon=8, discount=0.9, solver=Exact(time_limit=0))
    assert late.iterations == 0
    assert late.lower <= full.value <= late.upper


def test_warm_starts_from_other_problems_change_nothing():
    X, Y = db.examples.random_chain(5, 0), db.examples.random_chain(4, 1)
    other = db.distance(db.examples.random_chain(5, 2), Y, horizon=4, discount=0.7)
    cold = db.distance(X, Y, horizon=6, discount=0.9)
    for warm in (other, cold, db.distance(X, Y)):
        again = db.distance(X, Y, horizon=6, discount=0.9, warm=warm)
        assert again.value == pytest.approx(cold.value, abs=cold.gap + again.gap)
    threads = db.distance(X, Y, horizon=6, discount=0.9, solver=Exact(threads=3))
    assert threads.value == cold.value


@pytest.mark.parametrize("kind", ["chains", "timed", "stopped", "reachable", "tables"])
def test_saved_and_pickled_results_are_the_same(kind, tmp_path, monkeypatch):
    if kind == "tables":
        monkeypatch.setattr(horizon, "KEPT", 0)
    X = db.examples.random_chain(4, 0)
    Y = db.TimedChain.from_paths(np.random.default_rng(0).normal(size=(40, 4)), n_states=4)
    X = db.TimedChain([X.transition, sp.csr_array(X.transition), X.transition], rewards=X.rewards, names="abcd")
    if kind == "chains":
        X, Y = db.examples.random_chain(4, 0), db.examples.random_sparse_chain(5, 2, 1)
    stop = (lambda row: row["time"] == 1) if kind == "stopped" else None
    question = {"horizon": 3, "solver": Exact(reachable=kind == "reachable"), "callback": stop}
    if kind == "stopped":
        with pytest.warns(db.ConvergenceWarning):
            r = db.distance(X, Y, **question)
    else:
        r = db.distance(X, Y, **question)
    r.save(tmp_path / "r.npz")
    for again in (db.load(tmp_path / "r.npz"), pickle.loads(pickle.dumps(r))):
        assert (again.value, again.lower, again.upper, again.status) == (r.value, r.lower, r.upper, r.status)
        assert [dict(row) for row in again.history] == [dict(row) for row in r.history]
        for t in range(4):
            np.testing.assert_array_equal(again.values_at(t), r.values_at(t))
        if kind != "stopped":
            np.testing.assert_array_equal(again.occupancy_at(3), r.occupancy_at(3))
            assert repr(again.gradient.initial_x) == repr(r.gradient.initial_x)
        with pytest.raises(ValueError, match="read-only"):
            again.values_at(2)[0, 0] = 1.0


def test_nothing_in_a_result_can_be_written_to():
    X, Y = db.examples.random_chain(3, 0), db.examples.random_chain(3, 1)
    c, w = np.ones((3, 3)), np.ones(4)
    r = db.distance(db.TimedChain.repeat(X, 3), Y, cost=c, weights=w)
    c[:], w[:] = 5.0, 5.0
    assert r.value == pytest.approx(4.0)
    for array in (r.values, r.occupancy, r.weights, r.gradient.cost, r.gradient.transition_x[0], r.problem.costs[0]):
        with pytest.raises(ValueError, match="read-only"):
            array.flat[0] = 1.0


def test_quotients_have_the_same_distances_at_every_time():
    X, Y, small = db.examples.block_chain(3, 4), db.examples.birth_death(5, 0.5, 0.3), db.examples.block_quotient(3)
    plain, lumped = (db.distance(X, Y, horizon=6, discount=0.9, lump=lump) for lump in (False, True))
    assert lumped.work["pairs"] < plain.work["pairs"] / 3
    assert abs(lumped.value - plain.value) <= lumped.gap + plain.gap
    for t in range(7):
        np.testing.assert_allclose(lumped.values_at(t), plain.values_at(t), rtol=0, atol=1e-13)
    assert lumped.value == pytest.approx(np.sum(lumped.occupancy * lumped.problem.cost), abs=1e-13)
    np.testing.assert_allclose(lumped.plan(0, 0).sum(axis=1), X.transition[0], atol=1e-14)
    assert db.distance(X, small, horizon=6, lump=True).value == pytest.approx(0.0, abs=1e-14)
    with pytest.raises(db.InvalidArgument, match="leave lump out for a TimedChain"):
        db.distance(db.TimedChain.repeat(X, 2), Y, lump=True)
    with pytest.warns(db.ConvergenceWarning):
        part = db.distance(X, Y, horizon=6, discount=0.9, lump=True, callback=lambda row: row["time"] == 2)
    assert part.lower <= plain.value <= part.upper


def test_pairwise_asks_the_same_question():
    chains = [db.examples.random_chain(n, n) for n in (2, 3, 4)]
    chains.append(db.TimedChain.repeat(db.examples.random_chain(3, 9), 5))
    matrix = db.pairwise(chains, horizon=4, discount=1)
    for i, j in product(range(4), repeat=2):
        assert matrix[i, j] == pytest.approx(db.distance(chains[i], chains[j], horizon=4, discount=1).value, abs=1e-12)
    weighted = db.pairwise(chains, cost="squared", weights=[0, 0, 1])
    assert weighted[0, 1] == db.distance(chains[0], chains[1], cost="squared", weights=[0, 0, 1]).value


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": -1}, "horizon is -1"),
        ({"horizon": 2.5}, "horizon is 2.5"),
        ({"horizon": 3, "discount": 0}, "discount is 0"),
        ({"horizon": 3, "discount": 1.5}, "discount is 1.5"),
        ({"weights": [0.0, 0.0]}, "positive weight"),
        ({"weights": [1.0, -1.0]}, r"weights\[1\] is -1"),
        ({"weights": [1.0, np.inf]}, r"weights\[1\] is inf"),
        ({"weights": [1.0]}, "weights has shape"),
        ({"weights": [[1.0, 2.0]]}, "weights has shape"),
        ({"weights": ["a", "b"]}, "not a list of numbers"),
        ({"weights": [1, 2, 3], "horizon": 4}, "omit one of them"),
        ({"weights": [1e308, 1e308]}, "out of range for double precision"),
        ({"horizon": 2, "criterion": "average"}, "has an infinite horizon"),
        ({"horizon": 2, "solver": "lp"}, "does not support"),
        ({"horizon": 2, "warm": 3}, "warm is a int"),
    ],
)
def test_bad_questions(question, words):
    X, Y = db.examples.random_chain(3, 0), db.examples.random_chain(3, 1)
    with pytest.raises(db.InvalidArgument, match=words):
        db.distance(X, Y, cost=np.full((3, 3), 10.0), **question)


def test_processes_and_costs_that_do_not_fit():
    X = db.TimedChain([[[0.5, 0.5]], [[1, 0], [0, 1]]], rewards=[[0], [0, 1], [0, 1]])
    Y, three = db.examples.random_chain(2, 0), db.TimedChain.repeat(db.examples.random_chain(2, 0), 3)
    with pytest.raises(db.InvalidArgument, match="X has 2 steps, fewer than 5"):
        db.distance(X, Y, horizon=5)
    with pytest.raises(db.InvalidArgument, match="pass horizon=2"):
        db.distance(X, three)
    assert db.distance(X, three, horizon=1).n_steps == 1
    with pytest.raises(db.InvalidCost, match="give a list of 3 tables"):
        db.distance(X, Y, cost=np.ones((1, 2)))
    with pytest.raises(db.InvalidCost, match="cost has 2 tables"):
        db.distance(X, Y, cost=[np.ones((1, 2))] * 2)
    with pytest.raises(db.InvalidCost, match="at time 1: cost has shape"):
        db.distance(X, Y, cost=[np.ones((1, 2))] * 3)
    with pytest.raises(db.InvalidCost, match="at time 0: "):
        db.distance(X, Y, cost="indicator")
    with pytest.raises(db.InvalidCost, match="not an array of numbers"):
        db.distance(Y, Y, cost=[[1.0, 2.0], [3.0]], horizon=2)
    with pytest.raises(db.InvalidArgument, match="has an infinite horizon"):
        db.distance(X, Y, criterion="average")
    with pytest.raises(db.InvalidArgument, match="X is a list"):
        db.distance([[1.0]], Y, horizon=2)
    r = db.distance(X, Y, cost=lambda x, y: [np.full((n, 2), 0.5) for n in x.n_states])
    assert r.value == pytest.approx(0.5)
    for wrong in (-1, 3, 0.5):
        with pytest.raises(db.InvalidArgument, match="times run from 0 to 2"):
            r.values_at(wrong)
    with pytest.raises(db.InvalidArgument, match="y = 2 is not a state at time 1"):
        r.potentials(0, 2, time=1)
    for unknown in ("duals", "implicit_reward"):
        with pytest.raises(db.InvalidArgument, match="criterion='discounted'"):
            getattr(r, unknown)() if unknown == "implicit_reward" else getattr(r, unknown)


def test_files_that_were_tampered_with(tmp_path):
    X, Y = db.examples.random_chain(3, 0), db.TimedChain.repeat(db.examples.random_chain(4, 1), 2)
    r = db.distance(X, Y, discount=0.9)
    arrays = {name: np.array(value) for name, value in r.arrays().items()}
    for name, index, value in (
        ("state.tables", 0, 0.9), ("state.flow", 3, 0.5), ("state.child", 2, 7), ("state.parent", 0, -1),
        ("state.start.child", 0, 3), ("y.indices", 1, 9), ("y.sizes", 1, 5), ("weights", 0, -1.0), ("costs", 0, np.nan),
    ):  # fmt: skip
        broken = {key: part.copy() for key, part in arrays.items()}
        broken[name].flat[index] = value
        np.savez(tmp_path / "bad.npz", **broken)
        with pytest.raises(db.InvalidData):
            db.load(tmp_path / "bad.npz")


@pytest.mark.parametrize("sparse", [False, True])
def test_levels_and_threads_give_the_same_bits(monkeypatch, sparse):
    if sparse:
        X, Y = (db.examples.random_sparse_chain(120 + k, 3, k) for k in range(2))
    else:
        X, Y = (db.examples.random_chain(22 + k, k) for k in range(2))
    found = []
    for threads in at_every_level(monkeypatch):
        result = db.distance(X, Y, horizon=4, discount=0.9, solver=Exact(threads=threads))
        tables = [table(t) for t in range(5) for table in (result.values_at, result.occupancy_at)]
        gradient = np.asarray(sp.coo_array(result.gradient.transition_x).data)
        found.append([result.lower, result.upper, result.work, *(table.tobytes() for table in (*tables, gradient))])
    assert all(other == found[0] for other in found[1:])
