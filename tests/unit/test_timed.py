"""Timed chains: what they are made of, what they refuse, and chains from sample paths."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import diffbisim as db

P = np.array([[0.25, 0.75]])
Q = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])


def test_what_it_is():
    chain = db.TimedChain([P, sp.csr_array(Q)], rewards=[[0.0], [1.0, 2.0], [1.0, 2.0, 3.0]])
    assert (chain.n_steps, chain.n_states, chain.n_transitions, chain.is_sparse) == (2, (1, 2, 3), 6, True)
    assert repr(chain) == "TimedChain(2 steps, 1 to 3 states, start 0, rewards)"
    for law, expected in zip(chain.marginals(), ([1], [0.25, 0.75], [0.125, 0.275, 0.6]), strict=True):
        np.testing.assert_allclose(law, expected, rtol=0, atol=1e-15)
    assert chain.until(1).n_states == (1, 2)
    assert chain.until(2) is chain
    again = pickle.loads(pickle.dumps(chain))
    for mine, its in zip(chain.successors, again.successors, strict=True):
        np.testing.assert_array_equal(mine.probabilities, its.probabilities)
    for part in (chain.transitions[0], again.transitions[0], again.rewards[1], again.initial):
        with pytest.raises(ValueError, match="read-only"):
            part.flat[0] = 2.0


def test_paths_have_the_marginals():
    chain = db.TimedChain([P, Q])
    paths = chain.sample(20_000, 0)
    np.testing.assert_array_equal(paths, chain.sample(20_000, 0))
    for t, law in enumerate(chain.marginals()):
        shares = np.bincount(paths[:, t], minlength=law.size) / 20_000
        np.testing.assert_allclose(shares, law, atol=5 * np.sqrt(0.25 / 20_000))  # five standard deviations
    pairs = np.bincount(3 * paths[:, 1] + paths[:, 2], minlength=6)
    assert pairs[[2, 3]].tolist() == [0, 0]


def test_a_chain_that_stays_the_same():
    X = db.examples.random_chain(3, 0)
    chain = db.TimedChain.repeat(X, 4)
    assert chain.transitions[3] is X.transition
    np.testing.assert_allclose(chain.marginals()[4], X.initial @ np.linalg.matrix_power(X.transition, 4), atol=1e-15)
    assert chain.with_initial(2).initial.tolist() == [0, 0, 1]


def test_names_decide_then_positions():
    first = pd.DataFrame([[0.25, 0.75]], index=["start"], columns=["up", "down"])
    second = pd.DataFrame(Q[::-1], index=["down", "up"], columns=list("abc"))
    chain = db.TimedChain([first, second], initial="start", rewards=[[0], {"up": 1, "down": 2}, [1, 2, 3]])
    assert chain.names == (("start",), ("down", "up"), ("a", "b", "c"))
    np.testing.assert_array_equal(chain.transitions[0], [[0.75, 0.25]])
    np.testing.assert_array_equal(chain.rewards[1], [2, 1])
    assert chain.index("up", 1) == 1
    square = db.TimedChain([np.eye(2)] * 2, names=["a", "b"], initial="b", rewards=[3, 4])
    assert square.names == (("a", "b"),) * 3
    assert square.initial.tolist() == [0, 1]
    assert db.distance(square, db.MarkovChain(np.eye(2), names=["b", "a"]), cost="indicator").value == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"transitions": Q}, "transitions is a single table"),
        ({"transitions": sp.csr_array(Q)}, "transitions is a single table"),
        ({"transitions": 3}, "transitions is a int"),
        ({"transitions": []}, "transitions is empty"),
        ({"transitions": [Q, P]}, r"transitions\[0\] has 3 columns and transitions\[1\] has 1 rows"),
        ({"transitions": [P, Q * 2]}, r"transitions\[1\]: row 0 sums to 2"),
        ({"transitions": [P, -Q]}, r"transitions\[1\]: entry"),
        ({"transitions": [[0.5, 0.5]]}, r"transitions\[0\] has shape \(2,\)"),
        ({"transitions": [P, Q], "initial": 1}, "initial = 1 is not a state"),
        ({"transitions": [P, Q], "rewards": [1, 2]}, "one list of rewards for each of the 3 times"),
        ({"transitions": [P, Q], "rewards": [[1], [1, 2], [1, 2]]}, r"rewards\[2\] has shape \(2,\)"),
        ({"transitions": [P, Q], "names": [["a"], ["b", "c"], ["d", "d", "e"]]}, r"names\[2\]\[1\]"),
    ],
)
def test_what_is_refused(arguments, words):
    with pytest.raises(db.InvalidChain, match=words):
        db.TimedChain(**arguments)


# --- sample paths --------------------------------------------------------------------------------------------------


def test_few_values_are_the_states_and_shares_the_kernels():
    paths = [[0, 1, 1], [0, 1, 2], [0, 3, 2], [0, 3, 2]]
    chain = db.TimedChain.from_paths(paths)
    assert chain.n_states == (1, 2, 2)
    np.testing.assert_array_equal(chain.transitions[0], [[0.5, 0.5]])
    np.testing.assert_array_equal(chain.transitions[1], [[0.5, 0.5], [0, 1]])
    assert [r.tolist() for r in chain.rewards] == [[0], [1, 3], [1, 2]]


def test_memory_keeps_apart_what_a_cell_forgets():
    """A process that ends where it began: with one step of memory the end is a coin, with all of it it is known."""
    paths = np.array([[a, 0, a] for a in (0, 1)] * 5)
    markov, full = (db.TimedChain.from_paths(paths, memory=memory) for memory in (1, None))
    np.testing.assert_array_equal(markov.transitions[1], [[0.5, 0.5]])
    np.testing.assert_array_equal(full.transitions[1], np.eye(2))
    assert [r.tolist() for r in full.rewards] == [[0, 1], [0, 0], [0, 1]]
    assert db.TimedChain.from_paths(paths, memory=2).n_states == (2, 2, 2)


@pytest.mark.parametrize("d", [1, 2])
def test_cells_and_their_centers(d):
    rng = np.random.default_rng(0)
    paths = rng.normal(size=(500, 3, d))
    for n_states in (1, 2, 7, [1, 5, 20]):
        chain = db.TimedChain.from_paths(paths, n_states=n_states)
        assert (np.array(chain.n_states) <= n_states).all()
        for law, centers, values in zip(chain.marginals(), chain.rewards, paths.swapaxes(0, 1), strict=True):
            np.testing.assert_allclose(law @ centers.reshape(len(law), -1), values.mean(axis=0), atol=1e-14)
    wide = db.TimedChain.from_paths(paths, width=0.5)
    for centers, values in zip(wide.rewards, paths.swapaxes(0, 1), strict=True):
        nearest = np.abs(centers.reshape(-1, 1, d) - values).max(axis=2).min(axis=0)
        assert nearest.max() <= 0.5
    same = db.TimedChain.from_paths(paths, n_states=7, rng=0)
    for mine, its in zip(same.transitions, db.TimedChain.from_paths(paths, n_states=7).transitions, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_many_paths_come_near_the_distance_of_their_laws():
    """The demonstration of pnot 1.0, whose answer is 3: two Gaussian walks of three steps."""
    rng = np.random.default_rng(0)
    L, M = np.tril(np.ones((3, 3))), np.array([[1, 0, 0], [2, 1, 0], [2, 1, 2]])
    exact = db.examples.gaussian_distance(L @ L.T, M @ M.T)
    assert exact == pytest.approx(3.0)
    values = []
    for n in (300, 20_000):
        X, Y = (np.insert(rng.normal(size=(n, 3)) @ A.T, 0, 0.0, axis=1) for A in (L, M))
        chains = [db.TimedChain.from_paths(paths, width=0.25) for paths in (X, Y)]
        values.append(db.distance(*chains, cost="squared", weights=np.ones(4)).value)
    assert abs(values[1] - exact) < 0.15 < abs(values[0] - exact)


@pytest.mark.parametrize(
    ("paths", "options", "words"),
    [
        ([[0.0, 1.0], [0.0]], {}, "same length"),
        ([0.0, 1.0], {}, "paths has shape"),
        ([[0.0], [1.0]], {}, "at least one step"),
        ([[0.0, 1.0], [0.0, np.nan]], {}, "path 1 is .* at time 1"),
        ([[0.0, 1.0]], {"n_states": 0}, "n_states is 0"),
        ([[0.0, 1.0]], {"n_states": [1, 2, 3]}, "one for each of the 2 times"),
        ([[0.0, 1.0]], {"width": -1}, "width is -1"),
        ([[0.0, 1.0]], {"width": 1, "n_states": 2}, "omit n_states"),
        ([[0.0, 1.0]], {"memory": 0}, "memory is 0"),
    ],
)
def test_paths_that_are_refused(paths, options, words):
    with pytest.raises(db.DiffbisimError, match=words):
        db.TimedChain.from_paths(paths, **options)


def test_cells_that_64_bits_cannot_number():
    """A width below the spacing of the values keeps all of them apart; without the check all would share one cell."""
    paths = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    fine = db.TimedChain.from_paths(paths, width=1e-300)
    assert [len(law) for law in fine.marginals()] == [3, 3]
    with pytest.raises(db.InvalidArgument, match=r"width is 1e-300, too small for values as large as 5e\+10"):
        db.TimedChain.from_paths(paths * 1e10, width=1e-300)
