"""The engine's Sinkhorn against numpy and the linear program's, and its ways of working against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp

import diffbisim as db
from cases import each
from diffbisim import _engine
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.stochastic import Successors
from diffbisim.solvers import SinkhornPolicy, SinkhornValue
from diffbisim.solvers.certify import separable_minimum
from diffbisim.solvers.exact.transports import Transport
from diffbisim.solvers.lp.program import round_plans
from diffbisim.solvers.sinkhorn.plans import GibbsPlans, PlanOperator
from levels import LEVELS, at_every_level


def random_problem(n_x=6, n_y=5, seed=0, discount=0.9):
    rng = np.random.default_rng(seed)
    return Discounted.make(db.examples.random_chain(n_x, rng), db.examples.random_chain(n_y, rng), "reward", discount)


def plans_of(problem, beta, *, shared=True, seed=0):
    plans = GibbsPlans(problem.x.successors, problem.y.successors, problem.shape, threads=1, share=shared)
    plans.set_kernel(np.random.default_rng(seed).random(problem.shape), beta)
    return plans


# --- functions -------------------------------------------------------------------------------------------


def errors(found, function, arguments):
    """Errors in units in the last place."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(106):
        exact = [function(mpmath.mpf(t)) for t in arguments.tolist()]
        return [abs(float((e - mpmath.mpf(v)) / math.ulp(v))) for e, v in zip(exact, found.tolist(), strict=True)]


def test_exp_and_log_are_accurate_to_two_units_in_the_last_place():
    mpmath, rng = pytest.importorskip("mpmath"), np.random.default_rng(0)
    t = np.concatenate([rng.uniform(-699, 709, 3000), rng.uniform(-1, 1, 1000), [0.0, -0.0, 1e-300, -1e-17, 709, -699]])
    v = np.concatenate([
        10.0 ** rng.uniform(-323, 308, 3000), rng.uniform(0.5, 2, 3000), 1 + 10.0 ** rng.uniform(-16, -1, 1000),
        np.sqrt(0.5) * (1 + 1e-16 * np.arange(-5, 6)), [5e-324, 1e-310, 2.0**-1022, 1.7976931348623157e308, 2.0, 0.5],
    ])  # fmt: skip
    for engine in LEVELS:
        assert max(errors(engine.exponentials(t), mpmath.exp, t)) <= 2
        assert max(errors(engine.logarithms(v), mpmath.log, v)) <= 1


def test_functions_at_the_ends():
    special = np.array([0.0, -0.0, 1.0, np.nan])
    for engine in LEVELS:
        np.testing.assert_array_equal(engine.exponentials(np.array([0.0])), [1.0])
        np.testing.assert_array_equal(engine.logarithms(special), [-np.inf, -np.inf, 0.0, np.nan])


@pytest.mark.parametrize("noise", [0.0, 1e-12, 0.1, 10.0])
def test_rounding_is_that_of_the_linear_program(noise):
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(4))
    K = np.outer(p, q) * (1 + noise * rng.standard_normal((5, 4)) ** 2)
    expected = round_plans(K, Successors.of(p[None, :]), Successors.of(q[None, :]))
    _engine.round_plan(K.reshape(-1), p, q)
    np.testing.assert_allclose(K, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("beta", [1e-12, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("tiny", [0.1, 1e-300, 5e-324])
@pytest.mark.parametrize("columns", [False, True])
def test_soft_minima_at_any_temperature(beta, tiny, columns):
    rng = np.random.default_rng(0)
    q, one = np.append(rng.dirichlet(np.ones(6)), tiny)[None, :], np.ones((1, 1))
    sides = [Successors.of(side) for side in ((q, one) if columns else (one, q))]
    plans = GibbsPlans(*sides, (7, 1) if columns else (1, 7), threads=1, share=False)
    W, g = rng.random(7), rng.random(7)
    plans.set_kernel(W, beta)
    (plans.F if columns else plans.G)[:] = g
    plans.half_step(columns, out := np.empty(1))
    terms = np.log(q[0]) + beta * (g - W)
    assert out[0] == pytest.approx(-logsumexp(terms) / beta, rel=1e-12, abs=1e-13 / beta + 1e-15)


# --- the two ways of working -----------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.1, 30.0, 400.0])
def test_shared_kernel_is_pair_by_pair(beta):
    problem = random_problem(7, 6)
    one, two = plans_of(problem, beta), plans_of(problem, beta, shared=False)
    assert one.shared
    assert not two.shared
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
    assert plans.shared
    for x in (plans, other):
        x.G[::4] += 3.0  # e^{2700}
        x.scale(30, 0.0)
    np.testing.assert_array_equal(plans.F, other.F)
    np.testing.assert_array_equal(plans.G, other.G)


def test_shared_kernel_is_refused_when_it_would_underflow():
    assert not plans_of(random_problem(4, 4), 1e5).shared


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
        P, Q = plans.x.probabilities.reshape(8, 8), plans.y.probabilities.reshape(7, 7)
        np.testing.assert_allclose(plan, np.outer(P[k // 7], Q[k % 7]) * density, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rounded", [True, False])
def test_operators_agree(rounded):
    problem = random_problem(6, 5)
    plans = plans_of(problem, 60.0)
    plans.scale(3, 0.0)
    rng = np.random.default_rng(4)
    V, m = rng.random(30), rng.random(30)
    kinds = [PlanOperator(plans, rounded, form) for form in ("factored", "stored", "recomputed")]
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


# --- the same bits ---------------------------------------------------------------------------------------


def sparse_problem():
    X, Y = (db.examples.random_sparse_chain(n, 5, rng=n) for n in (40, 37))
    return Discounted.make(X, Y, "reward", 0.9)


CASES = {
    "dense": (lambda: random_problem(17, 14), SinkhornPolicy()),
    "sparse": (sparse_problem, SinkhornPolicy(tol=1e-2)),
    "value": (lambda: random_problem(9, 14), SinkhornValue()),
    "entropic": (lambda: random_problem(9, 8), SinkhornPolicy(epsilon=0.01)),
    "paper": (lambda: random_problem(9, 8), SinkhornPolicy(schedule="sqrt", max_iterations=20, tol=1e-9, sweeps=1)),
}


def bits_of(result):
    gradient = result.gradient
    arrays = [result.values, result.plan(1, 2), *result.potentials(1, 2), result.occupancy, gradient.transition_x]
    dense = [array.toarray() if hasattr(array, "toarray") else np.asarray(array) for array in arrays]
    return result.value, result.lower, result.upper, *(array.tobytes() for array in dense)


@pytest.mark.parametrize("case", CASES)
def test_levels_and_threads_give_the_same_bits(case, monkeypatch):
    make, solver = CASES[case]
    problem, found = make(), []
    for threads in at_every_level(monkeypatch):
        found.append(bits_of(replace(solver, threads=threads).solve(problem)))
    assert all(bits == found[0] for bits in found)


def run_of(engine, threads):
    return engine.Run(threads, np.zeros(1, bool))


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
