"""Ground costs against their definitions, entry by entry."""

import re
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.common.errors import InvalidCost
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import feature_cost, ground_cost, indicator_cost, reward_cost


def chain(n, rewards=None, names=None):
    return MarkovChain(np.eye(n), rewards=rewards, names=names)


def test_reward_cost_is_the_difference_of_rewards():
    X, Y = chain(3, [0.0, 2.0, -1.5]), chain(2, [1.0, -3.0])
    expected = [[abs(a - b) for b in (1.0, -3.0)] for a in (0.0, 2.0, -1.5)]
    c = ground_cost("reward", X, Y)
    assert np.array_equal(c, expected)
    assert np.array_equal(reward_cost([0.0, 2.0, -1.5], [1.0, -3.0]), expected)
    assert c.dtype == np.float64
    assert c.flags.c_contiguous


@pytest.mark.parametrize("missing", ["X", "Y"])
def test_reward_cost_names_the_chain_without_rewards(missing):
    X, Y = (chain(2, None if missing == name else [0, 1]) for name in "XY")
    message = f'cost "reward": chain {missing} has no rewards; create it with MarkovChain(..., rewards=r)'
    with pytest.raises(InvalidCost, match=re.escape(message)):
        ground_cost("reward", X, Y)


def test_indicator_cost_by_index_and_by_name():
    assert np.array_equal(ground_cost("indicator", chain(3), chain(3)), 1 - np.eye(3))
    X, Y = chain(3, names=["a", "b", "c"]), chain(4, names=["c", "x", "a", 1])
    expected = [[float(x != y) for y in Y.names] for x in X.names]
    assert np.array_equal(indicator_cost(X, Y), expected)
    assert np.array_equal(ground_cost("indicator", X, Y), expected)


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        (chain(2), chain(3), "X has 2 states and Y has 3; give both chains names"),
        (chain(2, names="ab"), chain(2), "X has names and Y has none; name the states of both or neither"),
        (chain(2), chain(2, names="ab"), "Y has names and X has none; name the states of both or neither"),
    ],
)
def test_indicator_cost_refuses_what_cannot_be_matched(X, Y, message):
    with pytest.raises(InvalidCost, match=re.escape(f'cost "indicator": {message}')):
        ground_cost("indicator", X, Y)


def test_an_array_is_copied_as_contiguous_floats():
    given = np.asfortranarray([[1, 2, 3], [4, 5, 6]])
    c = ground_cost(given, chain(2), chain(3))
    assert np.array_equal(c, given)
    assert c.flags.c_contiguous
    assert c.dtype == np.float64
    table = np.ones((2, 3))
    assert not np.shares_memory(ground_cost(table, chain(2), chain(3)), table)


def test_a_function_is_called_with_both_chains():
    X, Y = chain(2, [1, 2]), chain(3, [0, 1, 2])
    c = ground_cost(lambda x, y: np.add.outer(x.rewards, y.rewards), X, Y)
    assert np.array_equal(c, [[1, 2, 3], [2, 3, 4]])


@pytest.mark.parametrize("wrap", [lambda table: table, lambda table: lambda X, Y: table])
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.ones((2, 2)), "cost has shape (2, 2), expected (n_X, n_Y) = (2, 3)"),
        (np.ones((3, 2)), "expected (n_X, n_Y) = (2, 3); it looks transposed: pass cost.T"),
        (np.ones(3), "cost has shape (3,)"),
        ([[0, 1, 2], [0, -0.5, -1]], "cost[1, 1] is -0.5, negative; costs must be finite and non-negative"),
        ([[0, 1, 2], [0, np.nan, 1]], "cost[1, 1] is nan, not finite"),
        ([[0, 1, np.inf], [0, 0, 1]], "cost[0, 2] is inf, not finite"),
        ([[0, 1, -np.inf], [0, 0, 1]], "cost[0, 2] is -inf, not finite"),
        ([["a", 1, 2], [0, 0, 1]], "cost is not an array of numbers"),
        (np.ones((2, 3)) * 1j, "cost is not an array of numbers (its entries are complex)"),
        (sp.csr_array(np.ones((2, 3))), "cost is not an array of numbers"),
        (None, "cost has shape (), expected"),
    ],
)
def test_refused_tables(table, message, wrap):
    with pytest.raises(InvalidCost, match=re.escape(message)):
        ground_cost(wrap(table), chain(2), chain(3))


def test_an_unknown_name_lists_the_known_ones():
    message = 'use "reward", "euclidean", "squared", "indicator", an array or a function of (X, Y)'
    with pytest.raises(InvalidCost, match="cost 'rewards' is unknown; " + re.escape(message)):
        ground_cost("rewards", chain(2), chain(2))


def test_feature_cost_is_the_distance_of_features():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    euclidean = [[np.sqrt(((u - v) ** 2).sum()) for v in b] for u in a]
    assert feature_cost(a, b) == pytest.approx(np.array(euclidean), rel=1e-14)
    cityblock = np.abs(a[:, None] - b[None]).sum(axis=2)
    assert feature_cost(a, b, metric="cityblock") == pytest.approx(cityblock, rel=1e-14)


@pytest.mark.parametrize(
    ("a", "b", "metric", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 2)), "euclidean", "features_x has 3 columns and features_y has 2"),
        (np.ones(3), np.ones((2, 3)), "euclidean", "features_x must be a table (n_states, n_features)"),
        (
            np.ones((2, 1)),
            [[np.nan]],
            "euclidean",
            "features_y must be a table (n_states, n_features) of finite",
        ),
        (np.ones((2, 1)), np.ones((2, 1)), "no-such", "metric 'no-such': Unknown Distance Metric"),
    ],
)
def test_feature_cost_refusals(a, b, metric, message):
    with pytest.raises(InvalidCost, match=re.escape(message)):
        feature_cost(a, b, metric=metric)


def test_rewards_whose_difference_is_no_number_are_refused():
    """±1e308 differ by 2e308, and the largest double is 1.8e308. Half of it is fine."""
    message = re.escape('cost "reward": |r_x[0] - r_y[1]| = |1e+308 - -1e+308| overflows')
    X, Y = chain(2, [1e308, 0.0]), chain(2, [0.0, -1e308])
    for call in (lambda: ground_cost("reward", X, Y), lambda: reward_cost(X.rewards, Y.rewards)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(InvalidCost, match=message):
                call()
    with pytest.raises(InvalidCost, match="overflows"):
        db.distance(X, Y, solver="lp")
    assert reward_cost([8e307], [-8e307])[0, 0] == 1.6e308


def test_reward_cost_refuses_what_is_no_vector():
    with pytest.raises(InvalidCost, match="r_x must be a vector of finite numbers"):
        reward_cost([[1.0]], [1.0])
    with pytest.raises(InvalidCost, match="r_y must be a vector of finite numbers"):
        reward_cost([1.0], [np.nan])


@pytest.mark.parametrize("cost", ["reward", "indicator", "array"])
def test_no_more_than_one_temporary(cost):
    n = 600
    X = MarkovChain(sp.eye_array(n, format="csr"), rewards=np.arange(n))
    given = np.ones((n, n)) if cost == "array" else cost
    size = n * n * 8
    tracemalloc.start()
    ground_cost(given, X, X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.2 * size
