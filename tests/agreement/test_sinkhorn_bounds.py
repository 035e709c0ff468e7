"""Sinkhorn's bounds against the exact solver and the Bellman equation, its iterates against the literal algorithms."""

import itertools
from functools import cache

import numpy as np
import pytest

import diffbisim as db
from cases import each
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact
from diffbisim.solvers.exact.evaluation import PairChain, Plans
from diffbisim.solvers.exact.transports import NO_NUMBERS
from diffbisim.solvers.sinkhorn import SinkhornPolicy, SinkhornValue
from oracles.bellman import bellman
from oracles.instances import KINDS, instance
from oracles.literal_sinkhorn import iterate
from problems import problem_of

BOTH = pytest.mark.parametrize("solver", [SinkhornPolicy, SinkhornValue])


@cache
def solved(seed):
    problem = problem_of(instance(seed, largest=6), sparse=seed % 2 == 1)
    return problem, Exact(tol=1e-12).solve(problem)


def raw_plan(result, x, y):
    """The plan before rounding, (n_X, n_Y)."""
    plans = result.coupling.plans
    return plans.plan(x * plans.m_y + y, rounded=False).toarray()


# --- bounds ----------------------------------------------------------------------------------------------


@BOTH
@each(seed=range(225))
def test_bounds_contain_the_exact_value(seed, solver):
    """Dense, sparse, deterministic, ties, absorbing; Dirac and other starts; 1 to 6 states; γ from 0.1 to 0.99."""
    problem, exact = solved(seed)
    result = solver(tol=1e-3).solve(problem)
    assert result.converged, result.status
    assert result.gap <= 1e-3 * problem.scale
    assert result.lower <= result.value <= result.upper
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper


@each(seed=range(75))
@pytest.mark.parametrize(
    "solver",
    [
        SinkhornPolicy(max_iterations=1, tol=1e-12),
        SinkhornValue(max_iterations=3, tol=1e-12),
        SinkhornPolicy(schedule="sqrt", sweeps=1, max_iterations=4, tol=1e-12),
        SinkhornValue(schedule="constant", eta=50.0, max_iterations=5, tol=1e-12),
        SinkhornPolicy(schedule="constant", max_iterations=2, tol=1e-12),
    ],
    ids=["policy", "value", "policy-sqrt", "value-constant", "policy-constant"],
)
def test_bounds_of_runs_that_were_stopped_early(seed, solver):
    problem, exact = solved(seed)
    result = solver.solve(problem)
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper


@each(seed=range(15))
def test_bounds_contain_the_bellman_value(seed):
    case = instance(seed)
    result, exact = SinkhornPolicy(tol=1e-5).solve(problem_of(case)), bellman(*case).value
    assert result.lower - 1e-12 <= exact <= result.upper + 1e-12


@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
@BOTH
def test_tables_are_finite_where_the_linear_solver_diverges(solver):
    """Frozen states against a cycle at a discount of 0.9999: BiCGStab overflows on the independent coupling."""
    X = db.MarkovChain(np.eye(3), initial=[0.0, 0.25, 0.75])
    Y = db.MarkovChain(np.roll(np.eye(6), -1, axis=1), initial=np.array([0.0, 0.09, 0.01, 0.15, 0.11, 0.64]))
    cost = 6e7 * np.array([[0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
    exact = db.distance(X, Y, cost, discount=0.9999)
    result = db.distance(X, Y, cost, discount=0.9999, solver=solver(max_iterations=30))
    assert np.isfinite(result.values).all()
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper


def test_a_linear_solver_that_diverges_says_so():
    """Infinity, so that every comparison with a target fails; NaN would pass `residual > target`."""

    target, flow = np.array([0, 2, 1, 0, 2, 1], np.int32), np.tile([1e200, -1e200], 3)  # v - 1e200 v_z + 1e200 v_(z-1)
    chain = PairChain(Plans(np.arange(0, 7, 2), target, flow, NO_NUMBERS), 3, 1.0)
    assert chain.solve(np.array([1.0, -1e200, 3.0]), np.zeros(3), 1e-9, 50) == np.inf


def test_all_kinds_occur():
    """Not a test of the solver: the seeds above cover every kind of kernel, single states and both kinds of starts."""
    cases = [instance(seed, largest=6) for seed in range(225)]
    assert {(seed % 5, (seed // 5) % 5) for seed in range(225)} == {(i, j) for i in range(5) for j in range(len(KINDS))}
    assert any(case.cost.shape == (1, 1) for case in cases)
    assert {bool(case.nu_x.max() == 1.0) for case in cases} == {True, False}


# --- convergence -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_converges_to_the_exact_value(solver, tol):
    rng = np.random.default_rng(3)
    problem = Discounted.make(db.examples.random_chain(9, rng), db.examples.random_chain(7, rng), "reward", 0.95)
    result = solver(tol=tol).solve(problem)
    assert result.converged
    assert abs(result.value - Exact(tol=1e-11).solve(problem).value) <= tol * problem.scale / 2


@BOTH
@pytest.mark.parametrize("chains", ["walk", "blocks", "cycles", "rooms"])
def test_structured_chains(solver, chains):
    ex = db.examples
    X, Y = {
        "walk": (ex.drift_walk(1.5), ex.drift_walk(-2.0)),
        "blocks": (ex.block_chain(), ex.block_quotient()),
        "cycles": (ex.cycle(5), ex.cycle(7)),
        "rooms": (ex.four_rooms_walk(7), ex.four_rooms_walk(7).with_initial(3)),
    }[chains]
    problem = Discounted.make(X, Y, "reward", 0.95)
    exact, result = Exact(tol=1e-10).solve(problem), solver(tol=1e-3).solve(problem)
    assert result.converged
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper


@pytest.mark.parametrize(("schedule", "eta"), [("sqrt", 5.0), ("constant", 0.1)])
@BOTH
def test_the_papers_schedules_close_in(solver, schedule, eta):
    rng = np.random.default_rng(5)
    problem = Discounted.make(db.examples.random_chain(6, rng), db.examples.random_chain(5, rng), "reward", 0.9)
    result = solver(schedule=schedule, eta=eta, sweeps=1, max_iterations=400, tol=1e-9).solve(problem)
    gaps = [row["upper"] - row["lower"] for row in result.history]
    assert gaps[-1] <= 0.02 * problem.scale
    assert all(late <= early for early, late in itertools.pairwise(gaps))
    exact = Exact(tol=1e-10).solve(problem).value
    assert result.lower <= exact <= result.upper


# --- the literal algorithms ------------------------------------------------------------------------------


@each(seed=range(20))
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("policy", "sweeps"), [(True, 1), (True, 3), (True, None), (False, None), (False, 2)])
def test_iterates_are_the_papers(seed, constant, policy, sweeps):
    case = instance(seed, discounts=(0.5, 0.9), largest=5)
    if not case.cost.max() > 0:
        return
    options = {"eta": 3.0, "sweeps": sweeps, "max_iterations": 12, "tol": 1e-15}
    solver = (SinkhornPolicy if policy else SinkhornValue)(schedule="constant" if constant else "sqrt", **options)
    result = solver.solve(problem_of(case, sparse=seed % 2 == 1))
    if result.iterations < 12:  # bounds met at once: one state, or only one coupling
        return
    V, plans = iterate(
        case.P_x, case.P_y, case.cost, case.discount,
        policy=policy, eta=3.0, constant=constant, sweeps=sweeps, iterations=12,
    )  # fmt: skip
    U = result.coupling.U.reshape(case.cost.shape)
    shift = U - (1 - case.discount) * V  # the table is shifted to the middle of the bounds
    np.testing.assert_allclose(shift, shift[0, 0], rtol=0, atol=1e-10)
    for x in range(case.cost.shape[0]):
        for y in range(case.cost.shape[1]):
            np.testing.assert_allclose(raw_plan(result, x, y), plans[x, y], rtol=0, atol=1e-10)


# --- one problem, two storages ---------------------------------------------------------------------------


@BOTH
@each(seed=range(30))
def test_sparse_is_dense(seed, solver):
    case = instance(seed, largest=6)
    dense, sparse = (solver(tol=1e-4).solve(problem_of(case, sparse=s)) for s in (False, True))
    assert dense.value == pytest.approx(sparse.value, abs=1e-12 * max(1.0, case.cost.max()))
    np.testing.assert_allclose(dense.occupancy, sparse.occupancy, rtol=0, atol=1e-10)
    np.testing.assert_allclose(dense.gradient.cost, sparse.gradient.cost, rtol=0, atol=1e-10)
