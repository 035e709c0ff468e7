"""The entropic metric: value against the literal fixed point, gradient against finite differences, limits in ε."""

import numpy as np
import pytest

import diffbisim as db
from cases import each
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.base import Status
from diffbisim.solvers import Exact
from diffbisim.solvers.sinkhorn import SinkhornPolicy, SinkhornValue
from oracles.instances import Instance, instance, kernel
from oracles.literal_sinkhorn import entropic_metric, entropic_transport
from problems import problem_of

STEP = 1e-4
FIELDS = ("transition_x", "transition_y", "initial_x", "initial_y", "cost")


def solve(case, epsilon, sparse=False):
    """As far as double precision goes; the status then is CONVERGED or ROUNDING."""
    result = SinkhornPolicy(epsilon=epsilon, tol=1e-13).solve(problem_of(case, sparse))
    assert result.outcome in (Status.CONVERGED, Status.ROUNDING)
    assert result.gap <= 1e-9 * max(1.0, case.cost.max())
    return result


def value(case, epsilon):
    return solve(case, epsilon).value


def moved(case, field, t, direction):
    return case._replace(**{field: getattr(case, field) + t * direction})


def central(case, field, direction, epsilon):
    """Fourth order, so that a step large against rounding has no error of its own."""
    v = [value(moved(case, field, k * STEP, direction), epsilon) for k in (-2, -1, 1, 2)]
    return (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * STEP)


def inward(case, field, direction, epsilon):
    """Third order from one side, for mass that enters where there is none."""
    v = [value(moved(case, field, k * STEP, direction), epsilon) for k in range(4)]
    return (-11 * v[0] + 18 * v[1] - 9 * v[2] + 2 * v[3]) / (6 * STEP)


def tangent(rng, p):
    """A direction that keeps the rows stochastic, on their supports, as large as the step allows."""
    on = p > 0
    d = np.where(on, rng.standard_normal(p.shape), 0.0)
    d -= np.where(on, d.sum(axis=-1, keepdims=True) / on.sum(axis=-1, keepdims=True), 0.0)
    return d * min(1.0, p[on].min() / (4 * STEP * max(np.abs(d).max(), 1e-300)))


def check_all_fields(case, epsilon, seed=0):
    rng = np.random.default_rng(seed)
    gradient = solve(case, epsilon).gradient
    for name, field in zip(FIELDS, ("P_x", "P_y", "nu_x", "nu_y"), strict=False):
        direction = tangent(rng, getattr(case, field))
        expected = central(case, field, direction, epsilon)
        assert np.sum(getattr(gradient, name) * direction) == pytest.approx(expected, abs=1e-6), name
    direction = rng.standard_normal(case.cost.shape)
    inside = case._replace(cost=case.cost + 4 * STEP * np.abs(direction).max())  # costs stay non-negative
    expected = central(inside, "cost", direction, epsilon)
    assert np.sum(solve(inside, epsilon).gradient.cost * direction) == pytest.approx(expected, abs=1e-6)


# --- value -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [SinkhornPolicy, SinkhornValue])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@each(seed=range(12))
def test_value_is_the_literal_fixed_point(seed, epsilon, solver):
    case = instance(seed, discounts=(0.5, 0.8), largest=3)
    d, V = entropic_metric(*case, epsilon)
    result = solver(epsilon=epsilon).solve(problem_of(case, sparse=seed % 2 == 1))
    assert result.converged
    assert result.lower - 1e-10 <= d <= result.upper + 1e-10
    np.testing.assert_allclose(result.values, (1 - case.discount) * V, rtol=0, atol=1e-9)


@each(seed=[0, 3, 7])
def test_plans_and_potentials_are_the_literal_ones(seed):
    case, epsilon = instance(seed, discounts=(0.6,), largest=4), 0.3
    result = solve(case, epsilon)
    V = result.values / (1 - case.discount)
    for x, p in enumerate(case.P_x):
        for y, q in enumerate(case.P_y):
            _, plan, f, g = entropic_transport(V, p, q, epsilon)
            np.testing.assert_allclose(result.plan(x, y), plan, rtol=0, atol=1e-10)
            ours = result.potentials(x, y)
            np.testing.assert_allclose(ours[0] - ours[0][0], f - f[0], rtol=0, atol=1e-9)
            np.testing.assert_allclose(ours[1] - ours[1][0], g - g[0], rtol=0, atol=1e-9)


# --- gradient --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
@each(seed=range(25))
def test_gradient_is_that_of_the_entropic_value(seed, epsilon):
    check_all_fields(instance(seed, discounts=(0.5, 0.9), largest=4), epsilon, seed)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_gradient_at_distance_zero(epsilon):
    """A chain against itself: the distance has a kink there, the entropic value has none.

    The kink is rounded at the scale exp(-V/ε), V the smallest positive cost-to-go: above the step, to be seen by it.
    """
    P = kernel(np.random.default_rng(1), 4, "dense")
    nu = np.array([0.4, 0.3, 0.2, 0.1])
    case = Instance(P, P.copy(), nu, nu.copy(), np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0))), 0.9)
    assert Exact().solve(problem_of(case)).value <= 1e-8
    check_all_fields(case, epsilon)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_gradient_at_ties(epsilon):
    """Uniform rows, indicator cost: every transport is degenerate."""
    P = np.full((4, 4), 0.25)
    case = Instance(P, np.roll(P, 1, axis=1), np.full(4, 0.25), np.eye(4)[0], 1.0 - np.eye(4), 0.8)
    check_all_fields(case, epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@each(seed=[1, 2, 6, 8, 11])
def test_gradient_for_mass_that_enters(seed, epsilon):
    """Off the supports the derivative is one-sided; a mixture with the uniform law puts mass everywhere."""
    case = instance(seed, discounts=(0.5, 0.9), largest=4)
    gradient = solve(case, epsilon).gradient
    for name, field in zip(FIELDS, ("P_x", "P_y", "nu_x", "nu_y"), strict=False):
        p = getattr(case, field)
        direction = 1 / p.shape[-1] - p
        expected = inward(case, field, direction, epsilon)
        assert np.sum(getattr(gradient, name) * direction) == pytest.approx(expected, abs=1e-6), name


@each(seed=range(5))
def test_gradient_of_sparse_chains_is_the_dense_one_on_the_supports(seed):
    case = instance(seed, discounts=(0.9,), largest=5)
    dense, sparse = solve(case, 0.1).gradient, solve(case, 0.1, sparse=True).gradient
    for name, P in (("transition_x", case.P_x), ("transition_y", case.P_y)):
        ours = getattr(sparse, name).toarray()
        np.testing.assert_allclose(ours, np.where(P > 0, getattr(dense, name), 0.0), rtol=0, atol=1e-9)
    for name in ("cost", "initial_x", "initial_y"):
        np.testing.assert_allclose(getattr(sparse, name), getattr(dense, name), rtol=0, atol=1e-9)


@each(seed=range(5))
def test_occupancy_has_the_marginals_of_the_chains(seed):
    case = instance(seed, discounts=(0.9,), largest=5)
    problem, result = problem_of(case), solve(case, 0.1)
    np.testing.assert_allclose(result.occupancy.sum(axis=1), problem.x.occupancy(0.9), rtol=0, atol=1e-11)
    np.testing.assert_allclose(result.occupancy.sum(axis=0), problem.y.occupancy(0.9), rtol=0, atol=1e-11)


# --- the temperature -------------------------------------------------------------------------------------


@each(seed=range(20))
def test_value_grows_with_the_temperature_between_the_distance_and_the_independent_coupling(seed):
    case = instance(seed, discounts=(0.5, 0.9, 0.95), largest=5)
    problem = problem_of(case)
    scale = max(case.cost.max(), 1.0)
    results = [SinkhornPolicy(epsilon=e * scale).solve(problem) for e in (1e-3, 1e-2, 0.1, 1.0, 10.0)]
    values = np.array([result.value for result in results])
    assert np.all(np.diff(values) >= -1e-9 * scale)
    exact = Exact(tol=1e-11).solve(problem).value
    n = case.cost.size
    P = np.kron(case.P_x, case.P_y)
    V = np.linalg.solve(np.eye(n) - case.discount * P, case.cost.ravel())
    independent = (1 - case.discount) * np.kron(case.nu_x, case.nu_y) @ V
    assert exact - 1e-9 * scale <= values[0]
    assert values[-1] <= independent + 1e-9 * scale
    information = np.log(max(case.cost.shape))  # a step's plan tells at most log n
    assert values[0] - exact <= 1e-3 * scale * information + 1e-9 * scale


def test_units_are_those_of_the_cost():
    case = instance(4, discounts=(0.9,))
    one = solve(case, 0.1)
    for factor in (1e-12, 1e-3, 1e12):
        other = SinkhornPolicy(epsilon=0.1 * factor).solve(problem_of(case._replace(cost=factor * case.cost)))
        assert other.value / factor == pytest.approx(one.value, rel=1e-9)
        np.testing.assert_allclose(other.gradient.cost, one.gradient.cost, rtol=0, atol=1e-8)


def test_a_low_temperature_is_reached_by_way_of_higher_ones():
    problem = Discounted.make(db.examples.drift_walk(1.0, 8), db.examples.drift_walk(-1.0, 8), "reward", 0.95)
    result = SinkhornPolicy(epsilon=1e-6).solve(problem)
    assert result.converged
    assert abs(result.value - Exact(tol=1e-11).solve(problem).value) <= 1e-5


def test_warm_start_of_a_neighbor_is_shorter():
    rng = np.random.default_rng(2)
    X, Y = db.examples.random_chain(8, rng), db.examples.random_chain(8, rng)
    cold = SinkhornPolicy(epsilon=0.02).solve(Discounted.make(X, Y, "reward", 0.95))
    near = MarkovChain(0.999 * Y.transition + 0.001 / 8, rewards=Y.rewards)
    problem = Discounted.make(X, near, "reward", 0.95)
    fresh, warm = SinkhornPolicy(epsilon=0.02).solve(problem), SinkhornPolicy(epsilon=0.02).solve(problem, warm=cold)
    assert warm.value == pytest.approx(fresh.value, abs=1e-9)
    assert warm.iterations < fresh.iterations
