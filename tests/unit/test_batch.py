"""Many small problems in one call. Oracles: the solver itself, to the last bit, and the paper's linear program."""

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.solvers.exact.batch import Ask, Pack, solve_batch


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


@pytest.mark.parametrize(("squared", "discount", "tol"), [(False, 0.95, 1e-8), (True, 0.7, 1e-10), (False, 0.99, 1e-6)])
def test_bits_and_bounds_are_those_of_the_solver(squared, discount, tol):
    made = chains()
    cells = all_pairs(made)
    found = solve_batch(Pack.of(made), cells, np.empty(0), Ask(discount, tol, squared, np.zeros(1, bool)))
    for (i, j), value, lower, upper in zip(cells, *found, strict=True):
        one = db.distance(made[i], made[j], "squared" if squared else "reward", discount, tol=tol)
        if np.isfinite(upper):
            assert (value, lower, upper) == (one.value, one.lower, one.upper), (i, j)
    assert np.isfinite(found.upper).sum() >= 0.8 * len(cells)  # the others were given back


def test_bounds_hold_the_value_of_the_linear_program():
    made = chains()[:4]
    tables = [np.add.outer(np.arange(made[i].n_states), 3.0 * np.arange(made[j].n_states)) for i, j in all_pairs(made)]
    flat = np.concatenate([table.ravel() for table in tables])
    found = solve_batch(Pack.of(made), all_pairs(made), flat, Ask(0.8, 1e-8, False, np.zeros(1, bool)))
    for (i, j), table, lower, upper in zip(all_pairs(made), tables, found.lower, found.upper, strict=True):
        program = db.distance(made[i], made[j], table, 0.8, solver="lp")
        assert lower <= program.upper
        assert program.lower <= upper


def test_what_is_not_ordinary_is_given_back():
    large = db.MarkovChain(sp.eye_array(100, format="csr"), rewards=range(100))
    made, ask = [large, *chains()[:2]], Ask(0.9, 1e-8, False, np.zeros(1, bool))
    found = solve_batch(Pack.of(made), np.array([[0, 0], [1, 2]]), np.empty(0), ask)
    assert np.isfinite(found.upper).tolist() == [False, True]
    hard = solve_batch(Pack.of(made), np.array([[2, 1]]), np.empty(0), ask._replace(tol=1e-18))  # below rounding
    assert not np.isfinite(hard.upper).any()
    matrix = db.pairwise(made, discount=0.9)
    assert matrix[0, 1] == db.distance(made[0], made[1], discount=0.9).value


def test_full_rows_that_have_a_solver_of_their_own():
    """Their bits are those of the solver, too."""
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


def test_an_interrupt_stops_a_batch():
    with pytest.raises(KeyboardInterrupt):
        solve_batch(Pack.of(chains()), np.array([[0, 1]]), np.empty(0), Ask(0.9, 1e-8, False, np.ones(1, bool)))
