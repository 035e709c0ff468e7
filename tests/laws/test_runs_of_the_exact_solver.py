"""How a run of the exact solver may go: on reachable pairs only, stopped early, started warm, with several threads.

Oracles: the run on all pairs, to the end, from a cold start, in one thread; the paper's LP.
"""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each
from diffbisim.results.base import Status
from diffbisim.solvers import Exact
from oracles.bounds import TOL, agrees_with_lp
from oracles.kernels import cycle, random_sparse

# --- only what can be reached ---------------------------------------------------------------------------------------


@each(seed=range(6))
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_reachable_pairs_have_the_values_of_the_full_grid(seed, form):
    rng = np.random.default_rng([14, seed])
    P, Q = random_sparse(rng, 12, 2).toarray(), random_sparse(rng, 10, 2).toarray()
    X, Y, c = db.MarkovChain(form(P), initial=0), db.MarkovChain(form(Q), initial=1), rng.random((12, 10))
    full, part = db.distance(X, Y, c), db.distance(X, Y, c, solver=Exact(reachable=True))
    seen = reached(P, Q, 0, 1)
    assert part.work["pairs"] == seen.sum()
    assert np.array_equal(~np.isnan(part.values), seen)
    assert abs(part.value - full.value) <= 2 * TOL
    np.testing.assert_allclose(part.values[seen], full.values[seen], rtol=0, atol=2 * TOL)
    np.testing.assert_allclose(part.occupancy.sum(axis=1), X.occupancy(0.95), rtol=0, atol=1e-10)
    assert not part.occupancy[~seen].any()
    x, y = np.argwhere(seen)[-1]
    np.testing.assert_allclose(np.asarray(part.coupling.plan(x, y).sum(axis=1)).ravel(), P[x], rtol=0, atol=1e-12)


def reached(P, Q, x, y):
    """Pairs that some coupling reaches: closure under all pairs of successors."""
    seen, todo = np.zeros((len(P), len(Q)), bool), [(x, y)]
    while todo:
        x, y = todo.pop()
        if not seen[x, y]:
            seen[x, y] = True
            todo += [(i, j) for i in np.flatnonzero(P[x]) for j in np.flatnonzero(Q[y])]
    return seen


def test_a_pair_that_was_not_solved_says_so():
    X = db.MarkovChain([[1.0, 0.0], [0.5, 0.5]], rewards=[0.0, 1.0])
    result = db.distance(X, X, solver=Exact(reachable=True))
    with pytest.raises(db.InvalidArgument, match="reachable=False"):
        result.plan(1, 1)


# --- stopped early ------------------------------------------------------------------------------------------------


@cache
def mid_size():
    """A 30 x 28 problem that needs several iterations, and its distance."""
    rng = np.random.default_rng(15)
    X, Y = (db.MarkovChain(rng.dirichlet(np.full(n, 0.3), n), initial=rng.dirichlet(np.ones(n))) for n in (30, 28))
    c = rng.random((30, 28))
    return X, Y, c, db.distance(X, Y, c, 0.99, tol=1e-10).value


@pytest.mark.parametrize("limit", [1, 2, 3])
@each(seed=range(5))
def test_iteration_limit(limit, seed):
    rng = np.random.default_rng([16, seed])
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=rng.dirichlet(np.ones(n))) for n in (5, 4))
    c = rng.random((5, 4))
    with pytest.warns(db.ConvergenceWarning, match="raise max_iterations or tol"):
        result = db.distance(X, Y, c, 0.95, solver=Exact(max_iterations=limit, tol=1e-13))
    assert result.outcome is Status.ITERATIONS
    assert result.iterations == limit == len(result.history)
    lp = db.distance(X, Y, c, 0.95, solver="lp")
    assert result.lower <= lp.value + 1e-12
    assert lp.value - 1e-12 <= result.upper
    for row in result.history:
        assert row["lower"] <= lp.value + 1e-12
        assert lp.value - 1e-12 <= row["upper"]


def test_time_limit():
    X, Y, c, truth = mid_size()
    with pytest.warns(db.ConvergenceWarning, match="raise time_limit"):
        result = db.distance(X, Y, c, 0.99, solver=Exact(time_limit=1e-9))
    assert result.outcome is Status.TIME
    assert result.iterations == 1
    assert result.lower <= truth <= result.upper


def test_callback_that_stops():
    X, Y, c, truth = mid_size()
    rows = []
    with pytest.warns(db.ConvergenceWarning, match="warm=result"):
        result = db.distance(X, Y, c, 0.99, callback=lambda row: rows.append(row) or len(rows) == 2)
    assert result.outcome is Status.INTERRUPTED
    assert "Interrupted" in result.status
    assert len(rows) == result.iterations == 2
    assert result.lower <= truth <= result.upper
    assert (rows[-1]["lower"], rows[-1]["upper"]) == (result.lower, result.upper)


def test_callback_that_does_not_stop_sees_every_row():
    X, Y, c, _ = mid_size()
    rows = []
    result = db.distance(X, Y, c, 0.99, callback=rows.append)
    assert result.converged
    assert [dict(r) for r in rows] == [dict(r) for r in result.history]


def test_an_interrupted_run_can_be_continued():
    X, Y, c, truth = mid_size()
    with pytest.warns(db.ConvergenceWarning):
        part = db.distance(X, Y, c, 0.99, solver=Exact(max_iterations=3))
    rest, cold = db.distance(X, Y, c, 0.99, warm=part), db.distance(X, Y, c, 0.99)
    assert abs(rest.value - truth) <= TOL
    assert rest.work["pivots"] < cold.work["pivots"]


# --- warm starts --------------------------------------------------------------------------------------------------


def test_warm_start_of_the_same_problem_has_nothing_to_do():
    X, Y, c, truth = mid_size()
    cold = db.distance(X, Y, c, 0.99)
    warm = db.distance(X, Y, c, 0.99, warm=cold)
    assert warm.work["pivots"] <= cold.work["pivots"] // 100
    assert warm.iterations <= 2
    assert abs(warm.value - truth) <= TOL


@pytest.mark.parametrize("what", ["kernels", "cost", "discount", "starts"])
def test_warm_start_of_a_nearby_problem(what):
    X, Y, c, _ = mid_size()
    rng, γ, before = np.random.default_rng(17), 0.99, db.distance(X, Y, c, 0.99)
    kept = before.values.copy()
    if what == "kernels":
        X, Y = (
            db.MarkovChain(0.999 * M.transition + 0.001 * rng.dirichlet(np.ones(n), n), initial=M.initial)
            for M, n in ((X, 30), (Y, 28))
        )
    elif what == "cost":
        c = c + 0.001 * rng.random(c.shape)
    elif what == "discount":
        γ = 0.985
    else:
        X = X.with_initial(rng.dirichlet(np.ones(30)))
    cold, warm = db.distance(X, Y, c, γ), db.distance(X, Y, c, γ, warm=before)
    assert abs(warm.value - cold.value) <= 2 * TOL * c.max()
    np.testing.assert_allclose(warm.values, cold.values, rtol=0, atol=2 * TOL * c.max())
    assert warm.work["pivots"] < cold.work["pivots"] / 2
    for x, y in ((0, 0), (17, 3)):
        np.testing.assert_allclose(warm.plan(x, y).sum(axis=1), X.transition[x], rtol=0, atol=1e-12)
        np.testing.assert_allclose(warm.plan(x, y).sum(axis=0), Y.transition[y], rtol=0, atol=1e-12)
    assert np.array_equal(before.values, kept)  # the old result is not written to


@each(seed=range(5))
def test_warm_start_with_other_supports(seed):
    rng = np.random.default_rng([18, seed])
    c = rng.random((8, 7))
    first, second = ([db.MarkovChain(random_sparse(rng, n, 3)) for n in (8, 7)] for _ in range(2))
    before = db.distance(*first, c)
    warm, cold = db.distance(*second, c, warm=before), db.distance(*second, c)
    assert abs(warm.value - cold.value) <= 2 * TOL
    for other in (
        db.distance(*first, c, lump=True),
        db.distance(*first, c, solver="lp"),
        db.distance(*first, c, solver=Exact(reachable=True)),
    ):
        assert abs(db.distance(*second, c, warm=other).value - cold.value) <= 2 * TOL
        assert abs(db.distance(*first, c, warm=other).value - before.value) <= 2 * TOL


@pytest.mark.parametrize("k", [1e-20, 1e6, 1e12, 1e17, 1e20])
@pytest.mark.parametrize("deterministic", [False, True])
def test_warm_start_from_a_cost_of_another_size(k, deterministic):
    """The old table may be so large that the new cost vanishes beside it: still no false certificate."""
    rng = np.random.default_rng(19)
    P, Q = (cycle(3), cycle(3)) if deterministic else rng.dirichlet(np.ones(3), (2, 3))
    X, Y, c = db.MarkovChain(P), db.MarkovChain(Q), rng.random((3, 3))
    lp = db.distance(X, Y, c, 0.5, solver="lp")
    for old in (np.full((3, 3), k), k * rng.random((3, 3))):
        agrees_with_lp(db.distance(X, Y, c, 0.5, warm=db.distance(X, Y, old, 0.5)), lp)


def test_warm_start_of_another_shape_is_refused():
    one, two = db.MarkovChain([[1.0]], rewards=[0.0]), db.MarkovChain(np.eye(2), rewards=[0.0, 1.0])
    with pytest.raises(db.InvalidArgument, match="warm"):
        db.distance(two, two, warm=db.distance(one, two))
    with pytest.raises(db.InvalidArgument, match="warm"):
        db.distance(two, one, warm=db.distance(one, two))


# --- threads, determinism -------------------------------------------------------------------------------------------


@cache
def large(threads, copy=0, tol=1e-6):
    """A sparse 200 x 200 problem, large enough for several threads; ``copy`` numbers repeated calls."""
    rng = np.random.default_rng(20)
    X, Y = (db.MarkovChain(random_sparse(rng, 200, 8)) for _ in range(2))
    return db.distance(X, Y, rng.random((200, 200)), solver=Exact(threads=threads, tol=tol))


def test_threads_do_not_change_the_distance():
    one, two = large(1), large(2)
    assert (one.value, one.lower, one.upper, one.iterations) == (two.value, two.lower, two.upper, two.iterations)
    assert np.array_equal(one.values, two.values)
    assert one.work == two.work
    for x, y in ((0, 0), (199, 17)):
        assert np.array_equal(one.plan(x, y).toarray(), two.plan(x, y).toarray())


def test_threads_change_the_gradient_by_rounding_only():
    """Sums over pairs are split between threads."""
    one, two = large(1), large(2)
    np.testing.assert_allclose(one.occupancy, two.occupancy, rtol=0, atol=1e-12)
    for field in ("transition_x", "transition_y"):
        mine, theirs = getattr(one.gradient, field), getattr(two.gradient, field)
        np.testing.assert_allclose(mine.data, theirs.data, rtol=0, atol=1e-11)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_same_call_twice_gives_the_same_bits(threads):
    one, two = large(threads, 1, tol=1e9), large(threads, 2, tol=1e9)  # one iteration
    assert one.value == two.value
    assert np.array_equal(one.values, two.values)
    assert np.array_equal(one.occupancy, two.occupancy)
    m = one.occupancy
    first = one.coupling.weighted_potentials(m, everywhere=False)
    for _ in range(6):  # a race shows now and then
        again = two.coupling.weighted_potentials(m, everywhere=False)
        assert all(np.array_equal(mine.data, theirs.data) for mine, theirs in zip(first, again, strict=True))
