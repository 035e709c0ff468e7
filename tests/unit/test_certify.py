"""Bounds from any plans and any potentials: oracles are the definitions and the Bellman equation."""

import numpy as np
import pytest

from cases import each
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import Successors
from diffbisim.solvers.certify import lower_table
from diffbisim.solvers.lp.program import (
    at_targets,
    conditional,
    conjugate,
    dual_values,
    marginal_error,
    over_x,
    over_y,
    plan_costs,
    round_plans,
    rounding,
)
from diffbisim.solvers.lp.solver import lower_distance
from oracles.bellman import bellman
from oracles.instances import instance


def edges(seed):
    case = instance(seed, largest=6)
    return MarkovChain(case.P_x).successors, MarkovChain(case.P_y).successors


def block(e, s):
    return np.flatnonzero(e.sources == s)


def each_pair(ex, ey):
    for x in range(ex.indptr.size - 1):
        for y in range(ey.indptr.size - 1):
            yield (
                np.ix_(block(ex, x), block(ey, y)),
                ex.probabilities[block(ex, x)],
                ey.probabilities[block(ey, y)],
            )


@each(seed=range(25))
def test_edges_are_the_positive_entries(seed):
    case = instance(seed, largest=6)
    ex, _ = edges(seed)
    P = np.zeros_like(case.P_x)
    P[ex.sources, ex.indices] = ex.probabilities
    np.testing.assert_allclose(P, case.P_x, rtol=1e-15, atol=0)
    assert np.all(ex.probabilities > 0)
    assert ex.longest == (case.P_x > 0).sum(axis=1).max()
    for s, first in enumerate(ex.indptr[:-1]):
        assert first == block(ex, s)[0]


@pytest.mark.parametrize("noise", [0.0, 1e-16, 1e-12, 1e-6, 0.1, 1.0, 1e3])
@each(seed=range(10))
def test_rounding_gives_exact_marginals_and_moves_little(seed, noise):
    ex, ey = edges(seed)
    rng = np.random.default_rng(seed)
    plans = np.outer(ex.probabilities, ey.probabilities) + noise * rng.random((ex.indices.size, ey.indices.size))
    rounded = round_plans(plans, ex, ey)
    assert np.all(rounded >= 0)
    for cells, p, q in each_pair(ex, ey):
        before, after = plans[cells], rounded[cells]
        np.testing.assert_allclose(after.sum(axis=1), p, rtol=0, atol=1e-15)
        np.testing.assert_allclose(after.sum(axis=0), q, rtol=0, atol=1e-15)
        wrong = np.abs(before.sum(axis=1) - p).sum() + np.abs(before.sum(axis=0) - q).sum()
        assert np.abs(after - before).sum() <= 2 * wrong + 1e-15


def test_rounding_keeps_a_plan_and_its_zeros():
    e = Successors.of(np.array([0.25, 0.0, 0.75])[None, :])
    plan = np.diag([0.25, 0.75])
    np.testing.assert_array_equal(round_plans(plan, e, e), plan)


def test_rounding_nothing_gives_the_product():
    ex, ey = edges(3)
    product = round_plans(np.zeros((ex.indices.size, ey.indices.size)), ex, ey)
    np.testing.assert_allclose(product, np.outer(ex.probabilities, ey.probabilities), rtol=1e-15)


@pytest.mark.parametrize("tiny", [1e-300, 5e-324])
def test_rounding_survives_tiny_masses(tiny):
    p = Successors.of(np.array([0.5, 0.5])[None, :])
    for plan in (np.full((2, 2), tiny), np.diag([tiny, 0.5])):
        rounded = round_plans(conditional(plan, p, p), p, p)
        np.testing.assert_allclose(rounded.sum(axis=0), 0.5, rtol=0, atol=1e-15)
        np.testing.assert_allclose(rounded.sum(axis=1), 0.5, rtol=0, atol=1e-15)


@each(seed=range(10))
def test_conditional_blocks_sum_to_one_or_zero(seed):
    ex, ey = edges(seed)
    rng = np.random.default_rng(seed)
    mass = rng.random((ex.indices.size, ey.indices.size)) * 1e-5
    mass[block(ex, 0)] = 0.0
    total = over_y(over_x(conditional(mass, ex, ey), ex), ey)
    np.testing.assert_allclose(total, np.where(np.arange(total.shape[0]) == 0, 0, 1)[:, None] + 0 * total)


@each(seed=range(10))
def test_conjugates_are_feasible_and_tight(seed):
    ex, ey = edges(seed)
    rng = np.random.default_rng(seed)
    W = at_targets(rng.random((ex.indices.max() + 1, ey.indices.max() + 1)), ex, ey)
    f, g = conjugate(rng.normal(size=(ex.indices.size, ey.indptr.size - 1)), W, ex, ey)
    slack = W - f[:, ey.sources] - g[ex.sources]
    assert slack.min() >= -1e-15
    for cells, _, _ in each_pair(ex, ey):
        np.testing.assert_allclose(slack[cells].min(axis=0), 0, atol=1e-15)
        np.testing.assert_allclose(slack[cells].min(axis=1), 0, atol=1e-15)
    # weak duality: worth at most what the product coupling costs
    product = np.outer(ex.probabilities, ey.probabilities)
    assert np.all(dual_values(f, g, ex, ey) <= plan_costs(product, W, ex, ey) + 1e-15)


@each(seed=range(20))
def test_any_table_any_plans_any_potentials_bound_the_value(seed):
    """The bounds hold for random tables with random plans and potentials, and for the true table."""
    case = instance(seed, largest=3)
    oracle, γ, rng = bellman(*case), case.discount, np.random.default_rng(seed)
    X, Y = MarkovChain(case.P_x, initial=case.nu_x), MarkovChain(case.P_y, initial=case.nu_y)
    ex, ey = X.successors, Y.successors
    sx, sy = Successors.of(X.initial[None, :]), Successors.of(Y.initial[None, :])
    U = (1 - γ) * oracle.V
    for W in (U, U + 1e-6 * rng.random(U.shape), rng.random(U.shape), 10 - 20 * rng.random(U.shape)):
        at = at_targets(W, ex, ey)
        plans = round_plans(rng.random(at.shape), ex, ey)
        f, g = conjugate(rng.normal(size=(ex.indices.size, ey.indptr.size - 1)), at, ex, ey)
        c = (1 - γ) * case.cost
        slack = rounding(ex, ey, W, f, g, case.cost)
        lower = lower_table(W, c + γ * dual_values(f, g, ex, ey), γ, slack)
        assert np.max(lower - U) <= 1e-13
        TW = c + γ * plan_costs(plans, at, ex, ey)
        assert np.min(TW + (γ * np.max(TW - W) + slack) / (1 - γ) - U) >= -1e-13
        assert lower_distance(lower, rng.random((sx.indices.size, 1)), sx, sy) <= oracle.value + 1e-13


@each(seed=range(10))
def test_optimal_plans_and_potentials_close_the_gap(seed):
    case = instance(seed, largest=3)
    oracle, γ = bellman(*case), case.discount
    ex, ey = MarkovChain(case.P_x).successors, MarkovChain(case.P_y).successors
    U = (1 - γ) * oracle.V
    at = at_targets(U, ex, ey)
    plans = oracle.plans[ex.sources[:, None], ey.sources, ex.indices[:, None], ey.indices]
    f = (1 - γ) * oracle.f[ex.sources[:, None], np.arange(U.shape[1]), ex.indices[:, None]]
    f, g = conjugate(f, at, ex, ey)
    slack, c = rounding(ex, ey, U, f, g), (1 - γ) * case.cost
    upper = c + γ * plan_costs(round_plans(plans, ex, ey), at, ex, ey)
    lower = lower_table(U, c + γ * dual_values(f, g, ex, ey), γ, slack)
    assert np.max(upper - lower) <= (2 * slack + 1e-12) / (1 - γ)


@each(seed=range(25))
def test_marginal_error_is_the_definition(seed):
    ex, ey = edges(seed)
    plans = np.random.default_rng(seed).random((ex.indices.size, ey.indices.size))
    found = marginal_error(plans, ex, ey)
    expected = [
        np.abs(plans[cells].sum(axis=1) - p).sum() + np.abs(plans[cells].sum(axis=0) - q).sum()
        for cells, p, q in each_pair(ex, ey)
    ]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-13)
    assert marginal_error(round_plans(plans, ex, ey), ex, ey).max() <= 1e-14
