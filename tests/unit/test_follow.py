"""The exact solver along a moving chain: what it carries along comes to the exact solution when the chain rests."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.problems.discounted import Discounted
from diffbisim.results.saving import result_from_arrays
from diffbisim.solvers import Exact
from diffbisim.solvers.exact.tracking import TrackingSolver as Follow

N_X, N_Y, DISCOUNT = 8, 4, 0.9
COST = np.random.default_rng(7).random((N_X, N_Y))


def problem(share, dense=True):
    """A target, and a chain on the way between two others."""
    X = db.examples.random_chain(N_X, 0)
    ends = [db.examples.random_chain(N_Y, seed).transition for seed in (1, 2)]
    if not dense:
        ends = [np.where(np.eye(N_Y) + np.eye(N_Y, k=1) + np.eye(N_Y, k=1 - N_Y) > 0, P, 0.0) for P in ends]
        ends = [P / P.sum(axis=1, keepdims=True) for P in ends]
    return Discounted.make(X, db.MarkovChain((1 - share) * ends[0] + share * ends[1], initial=0), COST, DISCOUNT)


def followed(shares, **how):
    result = None
    for share in shares:
        result = Follow(Exact(**how)).solve(problem(share), warm=result)
    return result


@pytest.mark.parametrize("how", [{}, {"reachable": True}, {"threads": 2}])
def test_a_chain_that_comes_to_rest_is_solved(how):
    """Values, occupancy and gradient after as many sweeps as the discount needs."""
    result = followed(np.concatenate([np.linspace(0, 1, 20), np.ones(200)]), **how)
    exact = Exact(tol=1e-12, **how).solve(problem(1.0))
    assert result.value == pytest.approx(exact.value, abs=1e-9)
    assert np.allclose(result.occupancy, exact.occupancy, atol=1e-8)
    assert np.allclose(result.values, exact.values, atol=1e-8, equal_nan=True)
    assert abs(result.gradient.transition_y - exact.gradient.transition_y).max() <= 1e-7


def test_on_the_way_the_value_is_near_and_the_bounds_hold():
    result = None
    for share in np.linspace(0, 1, 100):
        result = Follow(Exact()).solve(problem(share), warm=result)
        exact = Exact().solve(problem(share)).value
        assert result.lower <= exact <= result.upper
        assert result.value == pytest.approx(exact, rel=0.05) or share < 0.2


def test_stale_trees_are_a_valid_warm_start_of_an_exact_solve():
    result = followed(np.linspace(0, 0.9, 10))
    again = Exact().solve(problem(1.0), warm=result)
    assert again.converged
    assert again.value == pytest.approx(Exact().solve(problem(1.0)).value, abs=1e-7)


def test_other_supports_begin_with_new_trees():
    result = followed([0.0, 0.1])
    for _ in range(200):
        result = Follow(Exact()).solve(problem(0.1, dense=False), warm=result)
    assert result.value == pytest.approx(Exact().solve(problem(0.1, dense=False)).value, abs=1e-8)


def test_written_and_read_goes_on_to_the_same_bits():
    result = followed(np.linspace(0, 0.5, 10))
    other = result_from_arrays({k: np.array(v) for k, v in result.arrays().items()})
    one, two = (Follow(Exact()).solve(problem(0.6), warm=warm) for warm in (result, other))
    assert one.value == two.value
    assert np.array_equal(one.occupancy, two.occupancy)
    assert np.array_equal(one.values, two.values)
