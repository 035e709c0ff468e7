"""The LP by its optimality conditions: feasibility, dual feasibility, complementarity, and the gradient."""

from functools import cache

import numpy as np
import pytest

from cases import each
from diffbisim.solvers import LinearProgram
from diffbisim.solvers.lp.program import over_x, over_y
from oracles.bellman import bellman
from oracles.instances import Instance, instance
from problems import problem_of

SEEDS = range(75)


@cache
def solved(seed):
    case = instance(seed)
    return case, LinearProgram().solve(problem_of(case))


@each(seed=SEEDS)
def test_plans_and_potentials_are_feasible_and_complementary(seed):
    """Every pair: marginals, dual feasibility (off the supports too), complementary slackness, Bellman."""
    case, result = solved(seed)
    γ, U = case.discount, result.values
    for x in range(U.shape[0]):
        for y in range(U.shape[1]):
            plan, (f, g) = result.coupling.plan(x, y).toarray(), result.coupling.potentials(x, y)
            p, q = case.P_x[x], case.P_y[y]
            assert plan.min() >= 0
            np.testing.assert_allclose(plan.sum(axis=1), p, rtol=0, atol=2e-15)
            np.testing.assert_allclose(plan.sum(axis=0), q, rtol=0, atol=2e-15)
            slack = U - f[:, None] - g
            assert slack[p > 0].min() >= -1e-15
            assert slack[:, q > 0].min() >= -1e-15
            assert np.sum(plan * slack) <= 2e-12
            bellman_error = (1 - γ) * case.cost[x, y] + γ * (p @ f + q @ g) - U[x, y]
            assert abs(bellman_error) <= 2e-12


@each(seed=SEEDS)
def test_potentials_off_the_supports_are_c_transforms(seed):
    case, result = solved(seed)
    U = result.values
    x, y = U.shape[0] - 1, 0
    f, g = result.coupling.potentials(x, y)
    p, q = case.P_x[x] > 0, case.P_y[y] > 0
    np.testing.assert_allclose(f, (U[:, q] - g[q]).min(axis=1), rtol=0, atol=1e-15)
    np.testing.assert_allclose(g, (U[p] - f[p, None]).min(axis=0), rtol=0, atol=1e-15)


@each(seed=SEEDS)
def test_start_couples_the_starts_optimally(seed):
    case, result = solved(seed)
    start, U = result.coupling.start, result.values
    plan = start.plan.toarray()
    np.testing.assert_allclose(plan.sum(axis=1), case.nu_x, rtol=0, atol=1e-15)
    np.testing.assert_allclose(plan.sum(axis=0), case.nu_y, rtol=0, atol=1e-15)
    slack = U - start.f[:, None] - start.g
    assert min(slack[case.nu_x > 0].min(), slack[:, case.nu_y > 0].min()) >= -1e-15
    assert np.sum(plan * U) == pytest.approx(result.value, rel=0, abs=2e-12)
    assert case.nu_x @ start.f + case.nu_y @ start.g == pytest.approx(result.value, rel=0, abs=2e-12)


@each(seed=SEEDS)
def test_occupancy_flows_through_the_plans(seed):
    """``m = (1-γ) m_0 + γ Π^T m`` with the plans returned, marginals ρ_X and ρ_Y, and ``d = <m, c>``."""
    case, result = solved(seed)
    m, γ, coupling = result.occupancy, case.discount, result.coupling
    flow = (1 - γ) * coupling.start.plan.toarray()
    for x, y in zip(*np.nonzero(m), strict=True):
        flow += γ * m[x, y] * coupling.plan(x, y).toarray()
    np.testing.assert_allclose(m, flow, rtol=0, atol=1e-12)
    np.testing.assert_allclose(m.sum(axis=1), coupling.problem.x.occupancy(γ), rtol=0, atol=1e-12)
    np.testing.assert_allclose(m.sum(axis=0), coupling.problem.y.occupancy(γ), rtol=0, atol=1e-12)
    assert np.sum(m * case.cost) == pytest.approx(result.value, rel=0, abs=1e-12)


@each(seed=SEEDS)
def test_occupancy_is_that_of_the_paper_program(seed):
    """Where optima are not unique, the one HiGHS found for the paper's μ is the one returned."""
    _, result = solved(seed)
    coupling = result.coupling
    mass = over_y(over_x(coupling.solution.mass, coupling.grid.ex), coupling.grid.ey)
    np.testing.assert_allclose(result.occupancy, mass, rtol=0, atol=1e-12)


@each(seed=range(0, 75, 3))
def test_occupancy_is_feasible_in_the_literal_program(seed):
    """The occupancy coupling μ = m Π satisfies every printed constraint."""
    case, result = solved(seed)
    m, γ = result.occupancy, case.discount
    shape = m.shape
    μ = np.array([[m[x, y] * result.coupling.plan(x, y).toarray() for y in range(shape[1])] for x in range(shape[0])])
    start = result.coupling.start.plan.toarray()
    close = {"rtol": 0, "atol": 1e-12}
    np.testing.assert_allclose(μ.sum(axis=(2, 3)), γ * μ.sum(axis=(0, 1)) + (1 - γ) * start, **close)
    encoder, decoder = result.encoder, result.decoder.T  # λ_X (x, y), λ_Y (x, y)
    ν_x = coupling_occupancy(case.P_x, case.nu_x, γ)
    ν_y = coupling_occupancy(case.P_y, case.nu_y, γ)
    np.testing.assert_allclose(μ.sum(axis=3), ν_x[:, None, :] * encoder[:, :, None], **close)
    np.testing.assert_allclose(μ.sum(axis=2), ν_y[None] * decoder[:, :, None], **close)


def coupling_occupancy(P, nu, γ):
    ρ = np.linalg.solve(np.eye(len(nu)) - γ * P.T, (1 - γ) * nu)
    return ρ[:, None] * P


@each(seed=range(0, 75, 6))
def test_occupancy_is_a_supergradient_in_the_cost(seed):
    """d is a minimum of linear functions of c: <m, direction> lies between its one-sided slopes."""
    case, result = solved(seed)
    direction, h = np.random.default_rng(seed).random(case.cost.shape), 1e-4
    after = bellman(*case._replace(cost=case.cost + h * direction)).value
    before = bellman(*case._replace(cost=np.maximum(case.cost - h * direction, 0))).value
    forward = np.sum(result.gradient.cost * direction) * h
    backward = np.sum(result.gradient.cost * np.minimum(case.cost, h * direction))
    assert after - result.value <= forward + 1e-12
    assert result.value - before >= backward - 1e-12


@pytest.mark.parametrize("side", ["x", "y"])
@each(seed=range(4))
def test_kernel_gradient_is_the_finite_difference(seed, side):
    """Dense random chains have one optimal plan per pair, so the distance is smooth there."""
    rng = np.random.default_rng([10, seed])
    P_x, P_y = rng.dirichlet(np.ones(3), 3), rng.dirichlet(np.ones(4), 4)
    case = Instance(P_x, P_y, np.eye(3)[0], rng.dirichlet(np.ones(4)), rng.random((3, 4)), 0.8)
    gradient = LinearProgram().solve(problem_of(case)).gradient
    P, slope = {"x": (P_x, gradient.transition_x), "y": (P_y, gradient.transition_y)}[side]
    direction, h = rng.dirichlet(np.ones(len(P)), len(P)) - P, 1e-5
    ends = [bellman(*case._replace(**{f"P_{side}": P + s * h * direction})).value for s in (-1, 1)]
    assert (ends[1] - ends[0]) / (2 * h) == pytest.approx(np.sum(slope * direction), rel=0, abs=1e-8)
