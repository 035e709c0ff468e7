"""Small problems in one call of the engine. Oracles: the general solver, and the paper's linear program."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim import _engine
from diffbisim.common.stopping import engine_run
from diffbisim.problems.discounted import Discounted
from diffbisim.results.base import Status
from diffbisim.solvers import Exact
from diffbisim.solvers.exact import solver as general
from diffbisim.solvers.exact.small import ChainList, solve_many
from levels import LEVELS


def chains():
    """Dense, sparse, deterministic, of one state, with equal rewards, with a start of two states."""
    rng = np.random.default_rng(4)
    made = [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n)) for n in (1, 5, 8)]
    made.append(db.MarkovChain(np.roll(np.eye(6), 1, axis=1), rewards=np.arange(6) % 2))
    P = np.where(rng.random((7, 7)) < 0.5, rng.random((7, 7)), 0.0) + 0.1 * np.eye(7)
    P /= P.sum(axis=1, keepdims=True)
    made.append(db.MarkovChain(sp.csr_array(P), rewards=rng.integers(0, 2, 7)))
    made.append(db.MarkovChain(P, initial=[0.25, 0, 0.75, 0, 0, 0, 0], rewards=rng.integers(0, 2, 7)))
    return made


def all_pairs(made):
    return np.array([(i, j) for i in range(len(made)) for j in range(len(made))])


def moved(chain, seed=0):
    """A chain with the same supports."""
    weights = 1 + 0.1 * np.random.default_rng(seed).random((chain.n_states, chain.n_states))
    P = np.asarray(chain.transition.toarray() if chain.is_sparse else chain.transition) * weights
    return db.MarkovChain(P / P.sum(axis=1, keepdims=True), rewards=chain.rewards, initial=chain.initial)


def assert_same(one, other):
    """The same end, after no more steps (tables by elimination save some), and values within each other's bounds."""
    assert one.outcome is other.outcome
    assert one.iterations <= other.iterations + 1
    assert max(one.lower, other.lower) <= min(one.upper, other.upper)
    assert abs(one.value - other.value) <= one.gap + other.gap
    assert one.history[0].keys() == other.history[0].keys()
    assert one.work.keys() == other.work.keys()
    assert one.work["pairs"] == other.work["pairs"]


# --- one problem --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reachable", [False, True])
@pytest.mark.parametrize(("discount", "tol"), [(0.95, 1e-8), (0.7, 1e-10), (0.99, 1e-6)])
def test_the_steps_are_those_of_the_general_solver(discount, tol, reachable):
    made, options = chains(), Exact(tol=tol, reachable=reachable)
    for i, j in all_pairs(made):
        one = db.distance(made[i], made[j], discount=discount, solver=options)
        other = general.solve(one.problem, options)
        assert_same(one, other)
        np.testing.assert_allclose(one.values, other.values, rtol=0, atol=1e-9 + 100 * tol)
        np.testing.assert_allclose(one.occupancy.sum(), 1.0)
        assert one.values_lower.shape == one.values.shape
        warm = db.distance(made[i], moved(made[j]), discount=discount, solver=options, warm=one)
        assert_same(warm, general.solve(warm.problem, options, warm=other))


def test_a_warm_start_from_itself_takes_one_iteration():
    X, Y = chains()[1:3]
    once = db.distance(X, Y)
    for before in (once, general.solve(once.problem, Exact()), pickle.loads(pickle.dumps(once)), copy.deepcopy(once)):
        again = db.distance(X, Y, warm=before)
        assert again.iterations <= 2
        assert again.work["pivots"] <= 2
        assert again.lower <= once.upper
        assert once.lower <= again.upper


def test_ends():
    X, Y = chains()[1:3]
    with pytest.warns(db.ConvergenceWarning):
        assert db.distance(X, Y, solver=Exact(max_iterations=1)).outcome is Status.ITERATIONS
    with pytest.warns(db.ConvergenceWarning):
        assert db.distance(X, Y, solver=Exact(time_limit=0.0)).outcome is Status.TIME
    with pytest.warns(db.ConvergenceWarning):
        assert db.distance(X, Y, tol=1e-18).outcome is Status.ROUNDING
    assert db.distance(X, Y, solver=Exact(time_limit=10.0)).converged


def test_a_stop_of_another_thread_ends_it():
    stop = np.ones(1, bool)
    X, Y = chains()[1:3]
    problem = db.distance(X, Y).problem
    run = _engine.Run(1, stop)
    _engine.solve_small(problem, None, None, False, 1e-8, 200, 1e9, run)  # too short to be stopped
    joined, pairs = ChainList.of([X, Y]), np.tile([0, 1], 100_000)
    with pytest.raises(KeyboardInterrupt):
        _engine.solve_many(joined, pairs, np.empty(0), 0.9, 1e-8, 200, False, run)


def test_results_survive_pickle_copy_and_files(tmp_path):
    X, Y = chains()[4:6]
    result = db.distance(X, Y)
    result.save(tmp_path / "result.npz")
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), db.load(tmp_path / "result.npz")):
        assert (other.value, other.lower, other.upper) == (result.value, result.lower, result.upper)
        np.testing.assert_array_equal(other.values, result.values)
        np.testing.assert_array_equal(other.occupancy, result.occupancy)
        np.testing.assert_array_equal(other.gradient.transition_y.toarray(), result.gradient.transition_y.toarray())


def test_every_level_gives_the_same_bits():
    made = chains()
    for i, j in all_pairs(made):
        problem = db.distance(made[i], made[j]).problem
        found = [e.solve_small(problem, None, None, False, 1e-8, 200, 1e9, e.Run(1, np.zeros(1, bool))) for e in LEVELS]
        for other in found[1:]:
            assert other.history == found[0].history
            for name in ("U", "at", "child", "parent", "flow", "start_flow", "start_pot"):
                assert getattr(other, name).tobytes() == getattr(found[0], name).tobytes(), name


def test_what_is_not_small_or_does_not_fit_is_refused():
    X, Y = chains()[1:3]
    problem, large = db.distance(X, Y).problem, db.MarkovChain(np.eye(60), rewards=np.arange(60.0))
    how = {"reachable": False, "tol": 1e-8, "max_iterations": 9, "seconds": 1.0, "run": engine_run()}
    with pytest.raises(ValueError, match="not small"):
        _engine.solve_small(Discounted.make(large, X, "reward", 0.9), None, None, **how)
    with pytest.raises(ValueError, match="a table needs one number"):
        _engine.solve_small(problem, np.zeros(3), None, **how)
    with pytest.raises(ValueError, match="pairs must be numbers of chains"):
        _engine.solve_many(ChainList.of([X]), np.array([0, 1]), np.empty(0), 0.9, 1e-8, 9, False, engine_run())
    with pytest.raises(ValueError, match="tables need one number"):
        _engine.solve_many(ChainList.of([X]), np.array([0, 0]), np.ones(3), 0.9, 1e-8, 9, False, engine_run())


# --- many problems ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("squared", "discount", "tol"), [(False, 0.95, 1e-8), (True, 0.7, 1e-10), (False, 0.99, 1e-6)])
def test_bits_and_bounds_are_those_of_single_problems(squared, discount, tol):
    made = chains()
    cells = all_pairs(made)
    found = solve_many(ChainList.of(made), cells, np.empty(0), discount, Exact(tol=tol), squared)
    for (i, j), value, lower, upper in zip(cells, *found, strict=True):
        one = db.distance(made[i], made[j], "squared" if squared else "reward", discount, tol=tol)
        if np.isfinite(upper):
            assert (value, lower, upper) == (one.value, one.lower, one.upper), (i, j)
    assert np.isfinite(found.upper).sum() >= 0.8 * len(cells)  # the others were left to the general solver


def test_bounds_hold_the_value_of_the_linear_program():
    made = chains()[:4]
    tables = [np.add.outer(np.arange(made[i].n_states), 3.0 * np.arange(made[j].n_states)) for i, j in all_pairs(made)]
    flat = np.concatenate([table.ravel() for table in tables])
    found = solve_many(ChainList.of(made), all_pairs(made), flat, 0.8, Exact())
    for (i, j), table, lower, upper in zip(all_pairs(made), tables, found.lower, found.upper, strict=True):
        program = db.distance(made[i], made[j], table, 0.8, solver="lp")
        assert lower <= program.upper
        assert program.lower <= upper


def test_threads_do_not_change_the_bits():
    rng = np.random.default_rng(0)
    made = [db.MarkovChain(rng.dirichlet(np.ones(5), 5), rewards=rng.random(5)) for _ in range(20)]
    joined, cells = ChainList.of(made), all_pairs(made)
    one, two = (solve_many(joined, cells, np.empty(0), 0.9, Exact(), threads=k) for k in (1, 2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True))


def test_what_is_not_small_is_left_to_the_general_solver():
    large = db.MarkovChain(sp.eye_array(100, format="csr"), rewards=range(100))
    made = [large, *chains()[:2]]
    joined = ChainList.of(made)
    found = solve_many(joined, np.array([[0, 0], [1, 2]]), np.empty(0), 0.9, Exact())
    assert np.isfinite(found.upper).tolist() == [False, True]
    hard = solve_many(joined, np.array([[2, 1]]), np.empty(0), 0.9, Exact(tol=1e-18))  # below rounding
    assert not np.isfinite(hard.upper).any()
    matrix = db.pairwise(made, discount=0.9)
    assert matrix[0, 1] == db.distance(made[0], made[1], discount=0.9).value


def test_full_rows_that_have_a_solver_of_their_own():
    rng = np.random.default_rng(6)
    made = [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n)) for n in (32, 33, 40)]
    matrix = db.pairwise(made)
    assert all(matrix[i, j] == db.distance(made[i], made[j]).value for i in range(3) for j in range(i + 1, 3))


@pytest.mark.parametrize("cost", ["reward", "squared", lambda X, Y: np.ones((X.n_states, Y.n_states))])
def test_pairwise_is_the_loop(cost):
    made = chains()
    want = np.array([[db.distance(x, y, cost).value for y in made] for x in made])
    if isinstance(cost, str):
        want = np.triu(want, 1) + np.triu(want, 1).T  # each pair once
    np.testing.assert_array_equal(db.pairwise(made, cost), want)
