"""Bounds that hold whatever a run of the exact solver begins with and wherever it stops.

Oracles: exact rational arithmetic for small chains, closed forms, and the same solve from a cold start.
"""

import copy
import pickle
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import diffbisim as db
from cases import each
from diffbisim.problems.discounted import Discounted
from diffbisim.results.base import Status
from diffbisim.results.coupling import Coupling
from diffbisim.solvers import Exact, Lumped, SinkhornPolicy
from diffbisim.solvers.exact import solver as general
from diffbisim.solvers.exact.tracking import TrackingSolver as Follow
from diffbisim.solvers.exact.transports import Transport, Transports
from oracles import enclosure, rational
from oracles.adversarial import hostile
from oracles.bounds import TOL
from oracles.instances import instance
from problems import problem_of

pytestmark = pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")  # runs that are stopped say so


class Table(Coupling):
    """A coupling that knows nothing but a table."""

    start = None

    def __init__(self, values):
        self.table = values

    @property
    def values(self):
        return self.table

    def plan(self, x, y):
        raise NotImplementedError

    def potentials(self, x, y):
        raise NotImplementedError


def result_with(problem, values):
    return replace(Exact().solve(problem), coupling=Table(np.broadcast_to(values, problem.shape).astype(float)))


def truth_of(problem):
    x, y = problem.x, problem.y
    return rational.exact_distance(x.transition, y.transition, x.initial, y.initial, problem.cost, problem.discount)


def holds(result, truth):
    """Compared exactly, without a tolerance."""
    return (
        np.isfinite(result.value)
        and result.lower <= result.value <= result.upper
        and (result.lower <= truth <= result.upper)
    )


# --- any table to begin with, stopped anywhere --------------------------------------------------------------------

RUNS = {
    "first iteration": Exact(max_iterations=1),
    "no time": Exact(time_limit=0),
    "second iteration": Exact(max_iterations=2),
    "to rounding": Exact(tol=1e-15),
}


def strange_tables(rng, shape):
    yield from (k * rng.uniform(-0.2, 1.0, shape) for k in (1.0, 1e8, 1e18, 1e-18, 1e300))
    yield from (np.nan, np.inf, -np.inf, 1e17, 1.7e308)
    table = rng.random(shape)
    table.flat[0] = np.nan
    yield table


@pytest.mark.parametrize("run", RUNS)
@each(seed=range(40))
def test_bounds_hold_in_rational_arithmetic_from_any_table(run, seed):
    case = instance(seed, discounts=(0.1, 0.5, 0.9, 0.99, 0.9999), largest=3 if seed % 3 == 0 else 2)
    problem, rng = problem_of(case), np.random.default_rng([31, seed])
    truth, solver = truth_of(problem), RUNS[run]
    assert holds(solver.solve(problem), truth)
    assert holds(Lumped(solver).solve(problem), truth)
    for table in strange_tables(rng, problem.shape):
        assert holds(solver.solve(problem, warm=result_with(problem, table)), truth)


@pytest.mark.parametrize("solver", [Exact(max_iterations=1), Exact(time_limit=0), Exact()])
@pytest.mark.parametrize("size", [1e18, 1e300, 1e-300])
def test_a_first_iteration_after_a_cost_of_another_size(solver, size):
    """Both chains go to state 1 and stay: d = (1-γ) c00 + γ c11, or c11 from there."""
    X, c = db.MarkovChain([[0.0, 1.0], [0.0, 1.0]]), np.array([[0.1, 0.1], [0.1, 0.7]])
    for chain, truth in ((X, 0.4), (X.with_initial(1), 0.7)):
        before = db.distance(chain, chain, np.full((2, 2), size), 0.5)
        result = db.distance(chain, chain, c, 0.5, solver=solver, warm=before)
        assert result.lower <= truth <= result.upper


def test_transports_that_are_not_solved_leave_the_range_of_the_costs(monkeypatch):
    X = db.MarkovChain([[0.5, 0.5], [0.2, 0.8]])
    real = Transports.solve
    monkeypatch.setattr(Transports, "solve", lambda *args: real(*args) and False)
    for cost in (np.zeros((2, 2)), np.array([[0.25, 0.5], [0.5, 2.0]])):
        problem = Discounted.make(X, X, cost, 0.5)
        for warm in (None, result_with(problem, 1e18)):
            result = general.solve(problem, Exact(max_iterations=1), warm)
            assert (result.lower, result.upper) == (cost.min(), cost.max())
            assert cost.min() <= result.value <= cost.max()


def test_a_start_that_is_not_solved_has_no_lower_bound(monkeypatch):
    """Any plan of the starts bounds the distance from above, none from below."""
    problem = problem_of(instance(7, largest=3))
    real = Transport.solve

    def unsolved(self, C, tol):
        value = real(self, C, tol)
        self.solved = False
        return value

    monkeypatch.setattr(Transport, "solve", unsolved)
    result = general.solve(problem, Exact())
    assert result.lower == problem.cost.min()
    assert truth_of(problem) <= result.upper


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-300, 1e300, 1.7e308])
def test_costs_at_the_ends_of_the_doubles(scale):
    """Absorbing states: d = c00."""
    X = db.MarkovChain(np.eye(2))
    for share in (0.3, 0.7, 1.0):
        c = np.array([[share * scale, scale], [scale, scale]])
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            result = db.distance(X, X, c, 0.9)
            assert np.isfinite(result.values).all()
        assert result.lower <= c[0, 0] <= result.upper


def test_an_estimate_has_the_bounds_of_any_distance():
    """A followed step certifies nothing, whatever its table says."""
    X, cost = db.MarkovChain(np.eye(2)), np.array([[0.25, 1.0], [1.0, 1.0]])
    problem = Discounted.make(X, X, cost, 0.99)
    step = Follow(Exact()).solve(problem, warm=db.distance(X, X, 1e6 * cost, 0.99))
    assert (step.lower, step.upper) == (0.25, 1.0)


# --- what a warm start may trust ----------------------------------------------------------------------------------


def loaded(result, path):
    result.save(path / "result.npz")
    return db.load(path / "result.npz")


WAYS = {
    "memory": lambda result, path: result,
    "loaded": loaded,
    "loaded twice": lambda result, path: loaded(loaded(result, path), path),
    "pickled": lambda result, path: pickle.loads(pickle.dumps(result)),
    "copied": lambda result, path: copy.deepcopy(result),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_reachable_result_does_not_pass_for_a_full_one(way, tmp_path):
    """Absorbing states: d is the difference of the rewards of the starts."""
    X, Y = (db.MarkovChain(np.eye(2), rewards=rewards) for rewards in ([0.0, 1.0], [0.0, 0.25]))
    warm = WAYS[way](db.distance(X, Y, solver=Exact(reachable=True)), tmp_path)
    result = db.distance(X.with_initial(1), Y.with_initial(1), warm=warm)
    assert result.value == pytest.approx(0.75, abs=TOL)
    assert result.lower <= 0.75 <= result.upper


def variants(rng):
    """Problems of one shape that differ in starts, supports, kernels, cost or discount."""
    kernels = [np.array([[0.5, 0.5, 0], [0, 0, 1.0], [0, 0, 1]]), np.array([[0, 1.0, 0], [0.5, 0, 0.5], [0, 1, 0]])]
    kernels.append(0.5 * kernels[0] + 0.5 * rng.dirichlet(np.ones(3), 3) * (kernels[0] > 0))
    kernels[2] /= kernels[2].sum(axis=1, keepdims=True)
    cost = rng.random((3, 3))
    for k, (P, Q) in enumerate(zip(kernels, (kernels[1], kernels[0], kernels[2]), strict=True)):
        for initial in (0, 2, [0.5, 0, 0.5]):
            X, Y = db.MarkovChain(P, initial=initial), db.MarkovChain(Q, initial=initial)
            yield Discounted.make(X, Y, cost if k else 1e6 * cost, (0.9, 0.5, 0.9)[k])


@pytest.mark.parametrize("way", WAYS)
def test_every_warm_start_ends_where_the_cold_one_does(way, tmp_path):
    """Full, reachable, lumped and followed results, for this problem or another, start a full or a reachable solve."""
    problems = list(variants(np.random.default_rng(32)))
    truths = [truth_of(problem) for problem in problems]
    kinds = Exact(), Exact(reachable=True), Lumped(Exact()), Lumped(Exact(reachable=True)), Follow(Exact())
    for source in problems[::2]:
        for kind in kinds:
            warm = WAYS[way](kind.solve(source), tmp_path)
            for problem, truth in zip(problems, truths, strict=True):
                for solver in (Exact(), Exact(reachable=True), Exact(max_iterations=1)):
                    assert holds(solver.solve(problem, warm=warm), truth)


def test_a_file_that_lists_other_pairs_is_refused(tmp_path):
    X = db.MarkovChain(np.eye(3), rewards=[0.0, 1.0, 2.0])
    db.distance(X, X, solver=Exact(reachable=True)).save(tmp_path / "result.npz")
    with np.load(tmp_path / "result.npz") as archive:
        arrays = {**archive, "state.pair": np.array([4])}
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(db.InvalidData, match="does not list the pairs that the starts can reach"):
        db.load(tmp_path / "other.npz")


# --- one buffer, many costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda buffer: lambda X, Y: buffer, lambda buffer: buffer])
def test_a_cost_whose_buffer_is_used_again(make):
    rng = np.random.default_rng(33)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(3), 3)) for _ in range(2))
    buffer = rng.random((3, 3))
    cost = make(buffer)
    before = db.distance(X, Y, cost)
    value, lower, upper = before.value, before.lower, before.upper
    buffer[:] = 4 - 3 * buffer
    after, cold = db.distance(X, Y, cost, warm=before), db.distance(X, Y, buffer.copy())
    assert after.value == pytest.approx(cold.value, abs=2 * TOL * buffer.max())
    assert np.sum(before.occupancy * before.problem.cost) == pytest.approx(value, abs=1e-6)
    assert lower <= before.value <= upper
    np.testing.assert_allclose(after.values, cold.values, rtol=0, atol=2 * TOL * buffer.max())


def test_a_problem_made_by_hand_does_not_keep_its_cost_by_reference():
    X, cost = db.MarkovChain(np.eye(2)), np.array([[0.25, 1.0], [1.0, 0.5]])
    problem = Discounted(X, X, cost, 0.9)
    result = Exact().solve(problem)
    cost *= 2
    assert problem.cost[0, 0] == 0.25
    assert Exact().solve(Discounted(X, X, cost, 0.9), warm=result).value == pytest.approx(0.5, abs=TOL)


def test_what_is_called_converged_is_so_where_digits_end():
    """Costs of a few times the smallest number: bounds are rounded outward by more than tol of them."""
    P = np.array([[0.5, 0.5], [0.25, 0.75]])
    X, Y = db.MarkovChain(P), db.MarkovChain(P[::-1])
    with pytest.warns(db.ConvergenceWarning):
        result = db.distance(X, Y, np.array([[0.0, 1e-316], [2e-316, 0.0]]), 0.9)
    assert result.outcome is Status.ROUNDING
    assert 0 < result.gap <= 4 * 5e-324


SWEEPS = {
    "to the end": lambda problem: Exact().solve(problem),
    "first iteration": lambda problem: Exact(max_iterations=1).solve(problem),
    "reachable": lambda problem: Exact(reachable=True).solve(problem),
    "of quotients": lambda problem: Lumped(Exact()).solve(problem),
    "followed": lambda problem: Follow(Exact()).solve(problem),
    "from any table": lambda problem: Exact(max_iterations=1).solve(problem, warm=result_with(problem, 3.0)),
}


@each(seed=range(12))
@pytest.mark.parametrize("how", SWEEPS)
def test_every_entry_of_the_table_is_within_its_bounds(how, seed):
    """Against enclosures by integers, without a tolerance; half of the chains have probabilities down to 1e-308."""
    case = instance(seed) if seed % 2 else hostile(seed)
    result, exact = SWEEPS[how](problem_of(case)), enclosure.truth(*case)
    bounds = result.values_lower.ravel(), result.values_upper.ravel(), exact.table_lower, exact.table_upper
    for low, high, least, most in zip(*bounds, strict=True):
        assert np.isnan(low) == np.isnan(high) == (np.isnan(low) and how == "reachable")
        assert np.isnan(low) or (Fraction(low) <= most and least <= Fraction(high))
    known = ~np.isnan(result.values)
    assert (result.values_lower <= result.values)[known].all()
    assert (result.values <= result.values_upper)[known].all()


def test_solvers_that_certify_the_distance_alone_say_so():
    X = db.examples.random_chain(3, 0)
    for solver in ("lp", "sinkhorn-policy", SinkhornPolicy(epsilon=0.1)):
        result = db.distance(X, X.with_initial(1), solver=solver)
        with pytest.raises(db.InvalidArgument, match="not every entry of the table"):
            _ = result.values_lower
