"""The oracles of higher precision themselves: against closed forms in fractions, and one step of Bellman's equation."""

from fractions import Fraction

import numpy as np
import pytest

from cases import each
from oracles.bellman import bellman
from oracles.enclosure import truth
from oracles.entropic import entropic_truth
from oracles.instances import instance
from oracles.literal_sinkhorn import entropic_metric


@pytest.mark.parametrize("discount", [0.01, 0.9, 0.9999])
@pytest.mark.parametrize("p", [0.5, 1e-15, 1e-300])
def test_one_state_against_two_is_known_in_fractions(p, discount):
    """From 0 to 1 with probability p/(q + p), where it stays: U(0) = γ p U(1) / (1 - γ (1 - p)), U(1) = c."""
    P, c = np.array([[1 - p, p], [0.0, 1.0]]), 0.7
    γ = Fraction(discount)
    move = Fraction(p) / (Fraction(float(1 - p)) + Fraction(p))
    expected = γ * move * Fraction(c) / (1 - γ * (1 - move))
    found = truth(np.ones((1, 1)), P, np.ones(1), np.array([1.0, 0.0]), np.array([[0.0, c]]), discount)
    assert found.lower <= expected <= found.upper
    assert found.upper - found.lower <= Fraction(1, 10**34)


def test_the_small_probabilities_that_double_precision_loses():
    P = np.array([[1, 8.78e-16], [5.5e-16, 1]])
    found = truth(np.ones((1, 1)), P, np.ones(1), np.array([1.0, 0.0]), np.array([[0.0, 1.0]]), 0.9)
    assert found.value == pytest.approx(7.902e-15, rel=1e-9)  # 0.9/(1 - 0.9) 8.78e-16, to first order


@each(seed=range(30))
def test_it_agrees_with_the_literal_bellman_equation(seed):
    case = instance(seed)
    found, literal = truth(*case, gradient=True), bellman(*case)
    assert found.value == pytest.approx(literal.value, rel=0, abs=1e-9 * max(1.0, case.cost.max()))
    np.testing.assert_allclose(found.table, (1 - case.discount) * literal.V, rtol=0, atol=1e-9)
    assert (found.occupancy * case.cost).sum() == pytest.approx(found.value, rel=0, abs=1e-10)


@each(seed=range(12))
def test_the_entropic_one_agrees_with_the_literal_one(seed):
    case = instance(seed, discounts=(0.1, 0.5, 0.9), largest=3)
    epsilon = 0.5 * (case.cost.max() or 1.0)
    found = entropic_truth(*case, epsilon)
    value, V = entropic_metric(*case, epsilon, tol=1e-10)
    assert found.value == pytest.approx(value, rel=0, abs=1e-8)
    np.testing.assert_allclose(found.table, (1 - case.discount) * V, rtol=0, atol=1e-8)
    assert found.upper - found.lower <= Fraction(1, 10**25)


@pytest.mark.parametrize("field", ["transition_x", "transition_y", "cost", "initial_x", "initial_y"])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_gradients_are_differences_of_the_enclosed_values(field, epsilon):
    """Central differences of exact values: only the third derivative remains."""
    rng = np.random.default_rng(5)
    data = {
        "transition_x": rng.dirichlet(np.ones(3), 3),
        "transition_y": rng.dirichlet(np.ones(2), 2),
        "initial_x": rng.dirichlet(np.ones(3)),
        "initial_y": rng.dirichlet(np.ones(2)),
        "cost": rng.random((3, 2)),
    }
    z = data[field] * rng.uniform(-1, 1, data[field].shape)
    direction = z if field == "cost" else z - data[field] * z.sum(axis=-1, keepdims=True)

    def solved(step):
        moved = {**data, field: data[field] + step * direction}
        return entropic_truth(*moved.values(), 0.8, epsilon) if epsilon else truth(*moved.values(), 0.8, gradient=True)

    slope = (solved(1e-5).value - solved(-1e-5).value) / 2e-5
    assert np.sum(solved(0.0).gradient[field] * direction) == pytest.approx(slope, rel=1e-6, abs=1e-10)
