"""Sinkhorn's kernels against numpy and certify.py, the ways of working against each other, options, scales, storage."""

import itertools
import pickle

import numpy as np
import pytest
from numba import njit
from scipy.special import logsumexp

import diffbisim as db
from diffbisim.chain import MarkovChain
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import Status
from diffbisim.solvers import Exact
from diffbisim.solvers import sinkhorn_kernels as kernels
from diffbisim.solvers import sinkhorn_operator as operators
from diffbisim.solvers.certify import Edges, round_plans
from diffbisim.solvers.sinkhorn import SinkhornPolicy, SinkhornValue
from diffbisim.solvers.sinkhorn_coupling import SinkhornCoupling
from diffbisim.solvers.sinkhorn_plans import GibbsPlans, rows_of_chain
from diffbisim.solvers.sinkhorn_rounding import round_plan
from diffbisim.solvers.sinkhorn_run import separable_minimum
from diffbisim.solvers.start import Transport

BOTH = pytest.mark.parametrize("solver", [SinkhornPolicy, SinkhornValue])


def random_problem(n_x=6, n_y=5, seed=0, discount=0.9):
    rng = np.random.default_rng(seed)
    return Problem.make(db.examples.random_chain(n_x, rng), db.examples.random_chain(n_y, rng), "reward", discount)


def plans_of(problem, beta, *, shared=True, seed=0):
    plans = GibbsPlans(rows_of_chain(problem.x), rows_of_chain(problem.y), problem.shape, threads=1)
    plans.full = plans.full and shared
    plans.kernel = None
    plans.heat(np.random.default_rng(seed).random(problem.shape), beta)
    return plans


# --- kernels ---------------------------------------------------------------------------------------------


@njit(**kernels.exact)
def exps(t, out):
    for i in range(t.size):
        out[i] = kernels.exp(t[i])


def test_exp_is_exp():
    t = np.concatenate([np.linspace(-599, 709, 100_001), [0.0, -0.0, 1e-300, -1e-17]])
    exps(t, out := np.empty_like(t))
    np.testing.assert_allclose(out, np.exp(t), rtol=1e-15)
    below = np.array([-600.0, -601.0, -1e3, -1e308, -np.inf])
    exps(below, out := np.ones_like(below))
    assert np.all(out == 0.0)


@pytest.mark.parametrize("beta", [1e-12, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("tiny", [0.1, 1e-300, 5e-324])
def test_soft_row_is_a_softmin(beta, tiny):
    rng = np.random.default_rng(0)
    c, g, q = rng.random(7), rng.random(7), np.append(rng.dirichlet(np.ones(6)), tiny)
    value = kernels.soft_row(c, np.log(q), g, beta, out := np.empty(7))
    terms = np.log(q) + beta * (g - c)
    assert value == pytest.approx(-logsumexp(terms) / beta, rel=1e-12, abs=1e-13 / beta + 1e-15)
    np.testing.assert_allclose(out, np.exp(terms - logsumexp(terms)), rtol=1e-9, atol=1e-200)


def test_relaxed_is_a_power_near_one():
    for omega in (1.0, 1.3, 1.75):
        t = 1 + 1e-3 * np.array([-1.0, 1.0])
        np.testing.assert_allclose([kernels.relaxed(s, omega) for s in t], t**omega, rtol=1e-8)
    assert kernels.relaxed(1e-7, 1.0) == 1e-7
    assert kernels.relaxed(1e7, 1.0) == 1e7


@pytest.mark.parametrize("noise", [0.0, 1e-12, 0.1, 10.0])
def test_rounding_is_that_of_certify(noise):
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(4))
    K = np.outer(p, q) * (1 + noise * rng.standard_normal((5, 4)) ** 2)
    expected = round_plans(K, Edges.of_distribution(p), Edges.of_distribution(q))
    round_plan(K, p, q, np.empty(5), np.empty(4))
    np.testing.assert_allclose(K, expected, rtol=1e-12, atol=1e-16)


# --- the two ways of working -----------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.1, 30.0, 400.0])
def test_shared_kernel_is_pair_by_pair(beta):
    problem = random_problem(7, 6)
    one, two = plans_of(problem, beta), plans_of(problem, beta, shared=False)
    assert one.kernel is not None
    assert two.kernel is None
    for _ in range(3):
        for plans in (one, two):
            plans.scale(15, 0.0)
    # the gauge of a pair is free
    for x in (one, two):
        x.F, x.G = x.F.reshape(x.size, -1), x.G.reshape(x.size, -1)
    np.testing.assert_allclose(one.F + one.G[:, :1], two.F + two.G[:, :1], rtol=0, atol=1e-11)
    np.testing.assert_allclose(one.error, two.error, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("columns", [False, True])
def test_half_steps_are_softmins(columns):
    problem = random_problem(5, 4)
    rng = np.random.default_rng(2)
    for shared in (True, False):
        plans = plans_of(problem, 50.0, shared=shared)
        plans.F[:], plans.G[:] = rng.random(plans.F.size), rng.random(plans.G.size)
        out = np.empty_like(plans.G if columns else plans.F)
        plans.half_step(columns, out)
        W, F, G = plans.W.reshape(5, 4), plans.F.reshape(20, 5), plans.G.reshape(20, 4)
        for k in range(20):
            p, q = problem.x.transition[k // 4], problem.y.transition[k % 4]
            terms = 50 * (F[k][:, None] - W) + np.log(p)[:, None] if columns else 50 * (G[k] - W) + np.log(q)
            expected = -logsumexp(terms, axis=0 if columns else 1) / 50
            np.testing.assert_allclose(out.reshape(20, -1)[k], expected, rtol=0, atol=1e-12)


def test_a_block_without_room_falls_back():
    """Potentials too far apart for one kernel: the block goes pair by pair, with the same result."""
    problem = random_problem(4, 4)
    plans, other = plans_of(problem, 900.0), plans_of(problem, 900.0, shared=False)
    assert plans.kernel is not None
    for x in (plans, other):
        x.G[::4] += 3.0  # e^{2700}
        x.scale(30, 0.0)
    np.testing.assert_array_equal(plans.F, other.F)
    np.testing.assert_array_equal(plans.G, other.G)


def test_shared_kernel_is_refused_when_it_would_underflow():
    assert plans_of(random_problem(4, 4), 1e5).kernel is None


@pytest.mark.parametrize("beta", [20.0, 2e3, 2e5])
def test_newton_makes_the_marginals_right(beta):
    plans = plans_of(random_problem(8, 7), 20.0)
    W = plans.W
    plans.settle(W, beta, 1e-12)
    assert plans.error.max() <= 1e-12 + 1e-16 * beta  # exponents β (f + g - W) carry their rounding
    for k in (0, 13, 55):
        plan = plans.plan(k).toarray()
        f, g = plans.F.reshape(56, 8)[k], plans.G.reshape(56, 7)[k]
        density = np.exp(beta * (f[:, None] + g - W.reshape(8, 7)))
        P, Q = plans.xs[2].reshape(8, 8), plans.ys[2].reshape(7, 7)
        np.testing.assert_allclose(plan, np.outer(P[k // 7], Q[k % 7]) * density, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rounded", [True, False])
def test_operators_agree(rounded):
    problem = random_problem(6, 5)
    plans = plans_of(problem, 60.0)
    plans.scale(3, 0.0)
    rng = np.random.default_rng(4)
    V, m = rng.random(30), rng.random(30)
    kinds = [
        operators.Factored(plans, plans.kernel, rounded),
        operators.Stored(plans, rounded),
        operators.Recomputed(plans, rounded),
    ]
    images, masses = [], []
    for operator in kinds:
        operator.apply(V, image := np.empty(30))
        operator.push(m, mass := np.empty(30))
        images.append(image)
        masses.append(mass)
        assert image @ m == pytest.approx(V @ mass, rel=1e-12)
        assert mass.sum() == pytest.approx(m.sum(), rel=1e-12)
    for other in range(1, 3):
        np.testing.assert_allclose(images[other], images[0], rtol=1e-12)
        np.testing.assert_allclose(masses[other], masses[0], rtol=1e-12, atol=1e-15)


def test_threads_give_the_same_bits():
    problem = random_problem(24, 24)
    one, two = (SinkhornPolicy(threads=t).solve(problem) for t in (1, 2))
    assert one.value == two.value
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_allclose(one.gradient.transition_x, two.gradient.transition_x, rtol=1e-12, atol=1e-14)


# --- bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_separable_minimum_is_below_the_transport_and_above_the_minimum(seed):
    rng = np.random.default_rng(seed)
    delta, p, q = rng.standard_normal((6, 5)), rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(5))
    value = separable_minimum(delta, p, q, 0.9)
    assert delta.min() <= value <= Transport(p, q).solve(delta, 1e-14) + 1e-12


def test_separable_minimum_is_exact_for_sums():
    rng = np.random.default_rng(0)
    a, b, p, q = rng.random(6), rng.random(5), rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(5))
    assert separable_minimum(np.add.outer(a, b), p, q, 0.9) == pytest.approx(p @ a + q @ b, abs=1e-9)


# --- extreme data ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("factor", [1e-300, 1e-12, 1e12, 1e300])
def test_costs_of_any_size(solver, factor):
    problem = random_problem()
    scaled = Problem.make(problem.x, problem.y, factor * problem.cost, 0.9)
    one, other = solver(tol=1e-4).solve(problem), solver(tol=1e-4).solve(scaled)
    assert other.converged
    assert other.value / factor == pytest.approx(one.value, rel=1e-9)


@BOTH
@pytest.mark.parametrize("tiny", [1e-12, 1e-300, 5e-324])
def test_tiny_probabilities(solver, tiny):
    P = np.array([[1.0, tiny, tiny], [0.5, 0.5, tiny], [tiny, 0.25, 0.75]])
    X = MarkovChain(P, rewards=[0, 1, 3])
    Y = MarkovChain(P[:, ::-1], rewards=[2, 1, 0])
    problem = Problem.make(X, Y, "reward", 0.9)
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
    problem = Problem.make(problem.x, problem.y, 10.0 ** rng.uniform(-12, 12, problem.shape), 0.9)
    exact, result = Exact(tol=1e-10).solve(problem), solver(tol=1e-3).solve(problem)
    assert result.converged
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper


@BOTH
@pytest.mark.parametrize("cost", [0.0, 2.5])
def test_constant_costs_are_the_distance(solver, cost):
    problem = random_problem()
    problem = Problem.make(problem.x, problem.y, np.full(problem.shape, cost), 0.9)
    result = solver().solve(problem)
    assert result.converged
    assert result.value == result.lower == result.upper == cost


@BOTH
def test_one_state_each(solver):
    X, Y = MarkovChain([[1.0]], rewards=[1.0]), MarkovChain([[1.0]], rewards=[4.0])
    for epsilon in (0.0, 0.3):
        result = solver(epsilon=epsilon).solve(Problem.make(X, Y, "reward", 0.95))
        assert result.value == 3.0
        np.testing.assert_array_equal(result.occupancy, [[1.0]])


@BOTH
def test_deterministic_chains_have_one_coupling(solver):
    problem = Problem.make(db.examples.cycle(3), db.examples.cycle(4), "reward", 0.9)
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
    assert solver(tol=1e-4).solve(problem, warm=cold).iterations <= cold.iterations


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


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_state_brings_everything_back(epsilon):
    problem = random_problem(6, 5)
    result = SinkhornPolicy(epsilon=epsilon).solve(problem)
    state = {name: np.array(array) for name, array in result.coupling.state().items()}
    assert all(array.dtype != object for array in state.values())
    again = SinkhornCoupling.restore(problem, state)
    np.testing.assert_array_equal(again.values, result.values)
    np.testing.assert_array_equal(again.plan(2, 3).toarray(), result.plan(2, 3))
    np.testing.assert_array_equal(again.potentials(2, 3)[0], result.coupling.potentials(2, 3)[0])
    np.testing.assert_array_equal(again.occupancy(), result.occupancy)


def test_results_pickle():
    result = SinkhornPolicy().solve(random_problem())
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.occupancy, result.occupancy)


def test_sparse_results_come_on_the_supports():
    X, Y = db.examples.random_sparse_chain(30, 3, rng=0), db.examples.random_sparse_chain(25, 3, rng=1)
    result = SinkhornPolicy(tol=1e-2).solve(Problem.make(X, Y, "reward", 0.9))
    assert result.gradient.transition_x.nnz == X.n_transitions
    np.testing.assert_allclose(result.gradient.transition_x.multiply(X.transition).sum(axis=1), 0.0, atol=1e-12)
    assert result.plan(0, 0).nnz <= 9
