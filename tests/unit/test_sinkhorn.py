"""The Sinkhorn solvers as a user meets them: extreme data, how runs end, options, what is returned, the front door."""

import itertools
import pickle

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.base import Status
from diffbisim.solvers import Exact, SinkhornPolicy, SinkhornValue

BOTH = pytest.mark.parametrize("solver", [SinkhornPolicy, SinkhornValue])
FIELDS = ("transition_x", "transition_y", "initial_x", "initial_y", "cost")


def random_problem(n_x=6, n_y=5, seed=0, discount=0.9):
    rng = np.random.default_rng(seed)
    return Discounted.make(db.examples.random_chain(n_x, rng), db.examples.random_chain(n_y, rng), "reward", discount)


# --- extreme data ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("factor", [1e-300, 1e-12, 1e12, 1e300])
def test_costs_of_any_size(solver, factor):
    problem = random_problem()
    scaled = Discounted.make(problem.x, problem.y, factor * problem.cost, 0.9)
    one, other = solver(tol=1e-4).solve(problem), solver(tol=1e-4).solve(scaled)
    assert other.converged
    assert other.value / factor == pytest.approx(one.value, rel=1e-9)


@BOTH
@pytest.mark.parametrize("tiny", [1e-12, 1e-300, 5e-324])
def test_tiny_probabilities(solver, tiny):
    P = np.array([[1.0, tiny, tiny], [0.5, 0.5, tiny], [tiny, 0.25, 0.75]])
    X = MarkovChain(P, rewards=[0, 1, 3])
    Y = MarkovChain(P[:, ::-1], rewards=[2, 1, 0])
    problem = Discounted.make(X, Y, "reward", 0.9)
    exact, result = Exact(tol=1e-11).solve(problem), solver(tol=1e-4).solve(problem)
    assert result.converged
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper
    soft = solver(epsilon=0.5).solve(problem)
    assert soft.converged
    assert np.isfinite(soft.gradient.transition_x).all()


@BOTH
@pytest.mark.parametrize("eta", [1e-9, 1.0, 1e6, 1e12])
def test_any_eta(solver, eta):
    problem = random_problem()
    result = solver(schedule="sqrt", eta=eta, sweeps=1, max_iterations=20, tol=1e-9).solve(problem)
    exact = Exact(tol=1e-11).solve(problem).value
    assert np.isfinite(result.values).all()
    assert result.lower <= exact <= result.upper


@BOTH
def test_wide_range_of_costs_within_one_table(solver):
    rng = np.random.default_rng(8)
    problem = random_problem()
    problem = Discounted.make(problem.x, problem.y, 10.0 ** rng.uniform(-12, 12, problem.shape), 0.9)
    exact, result = Exact(tol=1e-10).solve(problem), solver(tol=1e-3).solve(problem)
    assert result.converged
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper


@BOTH
@pytest.mark.parametrize("cost", [0.0, 2.5])
def test_constant_costs_are_the_distance(solver, cost):
    problem = random_problem()
    problem = Discounted.make(problem.x, problem.y, np.full(problem.shape, cost), 0.9)
    result = solver().solve(problem)
    assert result.converged
    assert result.value == result.lower == result.upper == cost


@BOTH
def test_one_state_each(solver):
    X, Y = MarkovChain([[1.0]], rewards=[1.0]), MarkovChain([[1.0]], rewards=[4.0])
    for epsilon in (0.0, 0.3):
        result = solver(epsilon=epsilon).solve(Discounted.make(X, Y, "reward", 0.95))
        assert result.value == 3.0
        np.testing.assert_array_equal(result.occupancy, [[1.0]])


@BOTH
def test_deterministic_chains_have_one_coupling(solver):
    problem = Discounted.make(db.examples.cycle(3), db.examples.cycle(4), "reward", 0.9)
    result = solver(tol=1e-9).solve(problem)
    assert result.converged
    assert result.value == pytest.approx(Exact(tol=1e-12).solve(problem).value, abs=1e-8)


def test_discount_near_one():
    problem = random_problem(discount=0.999)
    result = SinkhornPolicy(tol=1e-3).solve(problem)
    assert result.converged
    assert result.lower <= Exact(tol=1e-9).solve(problem).value <= result.upper


# --- how a run ends --------------------------------------------------------------------------------------


@BOTH
def test_callback_sees_every_row_and_can_stop(solver):
    rows = []
    result = solver(tol=1e-9).solve(random_problem(), callback=rows.append)
    assert tuple(rows) == result.history
    assert {"iteration", "value", "lower", "upper", "temperature", "error", "half_steps"} <= set(rows[0])
    stopped = solver(tol=1e-9).solve(random_problem(), callback=lambda row: len(rows) > 0)
    assert stopped.outcome is Status.INTERRUPTED
    assert len(stopped.history) == 1


@BOTH
def test_bounds_of_the_history_only_tighten(solver):
    history = solver(tol=1e-6).solve(random_problem(9, 8)).history
    assert all(b["lower"] >= a["lower"] for a, b in itertools.pairwise(history))
    assert all(b["upper"] <= a["upper"] for a, b in itertools.pairwise(history))


@BOTH
def test_limits(solver):
    problem = random_problem(9, 8)
    result = solver(tol=1e-12, max_iterations=3).solve(problem)
    assert (result.outcome, result.iterations) == (Status.ITERATIONS, 3)
    result = solver(tol=1e-12, time_limit=1e-9).solve(problem)
    assert (result.outcome, result.iterations) == (Status.TIME, 1)


def test_rounding_is_said():
    result = SinkhornPolicy(epsilon=0.1, tol=1e-16).solve(random_problem())
    assert result.outcome is Status.ROUNDING
    assert result.gap <= 1e-11


@pytest.mark.parametrize(
    "options",
    [
        {"tol": 0.0}, {"tol": float("nan")}, {"eta": -1.0}, {"sweeps": 0}, {"max_iterations": 0}, {"time_limit": 0.0},
        {"threads": 0}, {"schedule": "linear"}, {"epsilon": -0.1}, {"epsilon": float("inf")}, {"epsilon": float("nan")},
        {"epsilon": 0.1, "schedule": "sqrt"},
    ],
)  # fmt: skip
@BOTH
def test_bad_options_are_refused_by_name(solver, options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        solver(**options)


def test_default_tolerances():
    assert SinkhornPolicy().tol == SinkhornValue().tol == 1e-3
    assert SinkhornPolicy(epsilon=0.1).tol == 1e-10


def test_warm_start_of_another_size_is_refused():
    result = SinkhornPolicy().solve(random_problem(5, 4))
    with pytest.raises(InvalidArgument, match="warm"):
        SinkhornPolicy().solve(random_problem(4, 5), warm=result)


@BOTH
def test_warm_start_from_any_solver(solver):
    problem = random_problem(9, 8)
    cold = solver(tol=1e-4).solve(problem)
    for earlier in (cold, Exact().solve(problem), SinkhornPolicy(tol=1e-2).solve(problem)):
        warm = solver(tol=1e-4).solve(problem, warm=earlier)
        assert warm.converged
        assert warm.lower <= cold.upper
        assert cold.lower <= warm.upper


@BOTH
def test_warm_start_saves_work(solver):
    """Half-steps and Newton's steps, counted: nothing to do for the same chains, little for neighbors."""
    problem = random_problem(12, 10)
    near = MarkovChain(0.999 * problem.y.transition + 0.001 / 10, rewards=problem.y.rewards)
    cold = solver(tol=1e-4).solve(problem)
    again = solver(tol=1e-4).solve(problem, warm=cold)
    assert again.iterations == 1
    fresh, warm = (
        solver(tol=1e-4).solve(Discounted.make(problem.x, near, "reward", 0.9), warm=w) for w in (None, cold)
    )
    assert warm.work["half_steps"] <= fresh.work["half_steps"] / 2
    assert warm.work["newton"] <= fresh.work["newton"]


# --- what is returned ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_plans_potentials_and_values_fit_together(epsilon):
    problem = random_problem(6, 5)
    result = SinkhornPolicy(epsilon=epsilon).solve(problem)
    V = result.values / 0.1
    for x in range(6):
        for y in range(5):
            plan, (f, g) = result.plan(x, y), result.potentials(x, y)
            np.testing.assert_allclose(plan.sum(axis=1), problem.x.transition[x], rtol=0, atol=1e-15)
            np.testing.assert_allclose(plan.sum(axis=0), problem.y.transition[y], rtol=0, atol=1e-15)
            if not epsilon:
                assert np.all(f[:, None] + g <= V + 1e-13)
    np.testing.assert_allclose(result.occupancy.sum(axis=1), problem.x.occupancy(0.9), rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.occupancy.sum(axis=0), problem.y.occupancy(0.9), rtol=0, atol=1e-12)
    start = result.coupling.start
    expected = np.sum(start.plan.toarray() * result.values)
    assert expected == pytest.approx(result.value, abs=1e-12 if not epsilon else 1e-9)  # Dirac starts: no information


def test_gradient_comes_near_that_of_the_exact_solver():
    problem = random_problem(8, 7, seed=3)
    ours, exact = SinkhornPolicy(tol=1e-5).solve(problem).gradient, Exact().solve(problem).gradient
    for name in ("transition_x", "transition_y", "cost"):
        a, b = getattr(ours, name).ravel(), getattr(exact, name).ravel()
        assert a @ b >= 0.999 * np.linalg.norm(a) * np.linalg.norm(b), name


def test_results_pickle():
    result = SinkhornPolicy().solve(random_problem())
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.occupancy, result.occupancy)


def test_sparse_results_come_on_the_supports():
    X, Y = db.examples.random_sparse_chain(30, 3, rng=0), db.examples.random_sparse_chain(25, 3, rng=1)
    result = SinkhornPolicy(tol=1e-2).solve(Discounted.make(X, Y, "reward", 0.9))
    assert result.gradient.transition_x.nnz == X.n_transitions
    np.testing.assert_allclose(result.gradient.transition_x.multiply(X.transition).sum(axis=1), 0.0, atol=1e-12)
    assert result.plan(0, 0).nnz <= 9


# --- the front door --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sinkhorn-policy", "sinkhorn-value"])
def test_by_name(name):
    problem = random_problem()
    result = db.distance(problem.x, problem.y, discount=0.9, solver=name, tol=1e-4)
    assert (result.solver, result.converged) == (name, True)
    assert result.gap <= 1e-4 * problem.scale
    assert result.lower <= Exact(tol=1e-11).solve(problem).value <= result.upper


@BOTH
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_saved_and_loaded(solver, epsilon, tmp_path):
    problem = random_problem()
    solver = solver(epsilon=epsilon)
    result = solver.solve(problem)
    result.save(tmp_path / "result.npz")
    again = db.load(tmp_path / "result.npz")
    assert repr(again) == repr(result)
    assert again.history == result.history
    np.testing.assert_array_equal(again.values, result.values)
    np.testing.assert_array_equal(again.plan(2, 3), result.plan(2, 3))
    np.testing.assert_array_equal(again.potentials(2, 3)[0], result.potentials(2, 3)[0])
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(again.gradient, field), getattr(result.gradient, field))
    assert solver.solve(problem, warm=again).iterations == 1


@BOTH
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_quotients_have_the_same_answer(solver, epsilon, tmp_path):
    X, Y = db.examples.block_chain(), db.examples.drift_walk(1.0, 6)
    solver = solver(epsilon=epsilon)
    lumped, full = (db.distance(X, Y, solver=solver, lump=lump) for lump in (True, False))
    assert lumped.converged
    assert max(lumped.lower, full.lower) <= min(lumped.upper, full.upper)
    if epsilon:  # unique plans and potentials, so all derivatives are equal
        lumped.save(tmp_path / "lumped.npz")
        for result in (lumped, db.load(tmp_path / "lumped.npz")):
            for field in FIELDS:
                ours, theirs = getattr(result.gradient, field), getattr(full.gradient, field)
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


@BOTH
def test_stopping_warns_and_the_bounds_are_true(solver):
    problem = random_problem()
    with pytest.warns(ConvergenceWarning, match="Interrupted"):
        result = db.distance(problem.x, problem.y, discount=0.9, solver=solver(tol=1e-9), callback=lambda row: True)
    assert result.lower <= Exact(tol=1e-11).solve(problem).value <= result.upper


def test_pairwise_takes_it():
    chains = [db.examples.random_chain(n, rng=n) for n in (4, 5, 6)]
    ours, exact = (db.pairwise(chains, solver=name, tol=1e-4) for name in ("sinkhorn-policy", "exact"))
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2e-4)
