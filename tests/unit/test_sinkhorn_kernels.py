"""Sinkhorn's kernels against numpy and the linear program's, and the ways of working against each other."""

import numpy as np
import pytest
from numba import njit
from scipy.special import logsumexp

import diffbisim as db
from cases import each
from diffbisim.problem import Problem
from diffbisim.solvers import SinkhornPolicy
from diffbisim.solvers.certify import separable_minimum
from diffbisim.solvers.exact.transports import Transport
from diffbisim.solvers.lp.program import round_plans
from diffbisim.solvers.sinkhorn import kernels
from diffbisim.solvers.sinkhorn import plans as operators
from diffbisim.solvers.sinkhorn.plans import GibbsPlans
from diffbisim.solvers.successors import STRICT, exp_or_zero, round_plan
from diffbisim.stochastic import Successors


def random_problem(n_x=6, n_y=5, seed=0, discount=0.9):
    rng = np.random.default_rng(seed)
    return Problem.make(db.examples.random_chain(n_x, rng), db.examples.random_chain(n_y, rng), "reward", discount)


def plans_of(problem, beta, *, shared=True, seed=0):
    plans = GibbsPlans(problem.x.successors, problem.y.successors, problem.shape, threads=1)
    plans.full = plans.full and shared
    plans.kernel = None
    plans.set_kernel(np.random.default_rng(seed).random(problem.shape), beta)
    return plans


# --- kernels ---------------------------------------------------------------------------------------------


@njit(**STRICT)
def exps(t, out):
    for i in range(t.size):
        out[i] = exp_or_zero(t[i], kernels.VANISHES)


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
def test_rounding_is_that_of_the_linear_program(noise):
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(4))
    K = np.outer(p, q) * (1 + noise * rng.standard_normal((5, 4)) ** 2)
    expected = round_plans(K, Successors.of(p[None, :]), Successors.of(q[None, :]))
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
        P, Q = plans.pairs.x.probabilities.reshape(8, 8), plans.pairs.y.probabilities.reshape(7, 7)
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


@each(seed=range(10))
def test_separable_minimum_is_below_the_transport_and_above_the_minimum(seed):
    rng = np.random.default_rng(seed)
    delta, p, q = rng.standard_normal((6, 5)), rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(5))
    value = separable_minimum(delta, p, q, 0.9)
    assert delta.min() <= value <= Transport(p, q).solve(delta, 1e-14) + 1e-12


def test_separable_minimum_is_exact_for_sums():
    rng = np.random.default_rng(0)
    a, b, p, q = rng.random(6), rng.random(5), rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(5))
    assert separable_minimum(np.add.outer(a, b), p, q, 0.9) == pytest.approx(p @ a + q @ b, abs=1e-9)
