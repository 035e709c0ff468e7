"""The paper's LP against the literal LP, the Bellman equation and closed forms; scales, limits, options."""

import ast
import pickle
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim
from cases import each
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.base import Status
from diffbisim.solvers import LinearProgram
from diffbisim.solvers.lp.program import paper_program
from diffbisim.solvers.lp.solver import LinearProgramCoupling
from oracles.bellman import bellman
from oracles.instances import Instance, instance
from oracles.kernels import cycle
from oracles.literal_lp import literal_lp
from oracles.two_states import two_states
from problems import problem_of

SEEDS = range(75)


@cache
def solved(seed):
    case = instance(seed)
    return case, LinearProgram().solve(problem_of(case)), bellman(*case)


# --- the number and its bounds ---------------------------------------------------------------------------


@each(seed=SEEDS)
def test_value_agrees_with_both_oracles(seed):
    case, result, exact = solved(seed)
    scale = max(case.cost.max(), 1.0)
    assert abs(result.value - exact.value) <= 1e-13 * scale
    assert abs(result.value - literal_lp(*case).value) <= 1e-12 * scale


@each(seed=SEEDS)
def test_bounds_contain_the_value_tightly(seed):
    case, result, exact = solved(seed)
    assert result.lower <= result.value <= result.upper
    assert result.lower - 1e-14 <= exact.value <= result.upper + 1e-14
    assert result.gap <= 1e-13 / (1 - case.discount) * max(case.cost.max(), 1.0)
    assert result.outcome is Status.CONVERGED


@each(seed=range(40))
def test_bounds_are_true_in_rational_arithmetic(seed):
    """No tolerance at all: the exact rational distance of two-state chains lies between the two floats."""
    rng = np.random.default_rng([11, seed])
    rows = rng.integers(0, 65, size=6) / 64
    P_x, P_y, (nu_x, nu_y) = (np.column_stack([rows[i : i + 2], 1 - rows[i : i + 2]]) for i in (0, 2, 4))
    case = Instance(P_x, P_y, nu_x, nu_y, rng.random((2, 2)), (0.1, 0.6, 0.95, 0.999)[seed % 4])
    result, exact = LinearProgram().solve(problem_of(case)), two_states(*case)
    assert Fraction(result.lower) <= exact <= Fraction(result.upper)
    assert abs(result.value - float(exact)) <= 2**-52 / (1 - case.discount) + 1e-15


@each(seed=SEEDS)
def test_values_of_all_pairs_agree_with_bellman(seed):
    case, result, exact = solved(seed)
    np.testing.assert_allclose(result.values, (1 - case.discount) * exact.V, rtol=0, atol=2e-12)


# --- closed forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [0.1, 0.9, 0.99])
def test_one_state_each(discount):
    one = MarkovChain([[1.0]])
    result = LinearProgram().solve(Discounted.make(one, one, [[0.3]], discount))
    assert result.value == result.lower == result.upper == 0.3
    assert result.values[0, 0] == pytest.approx(0.3, rel=1e-15)
    assert result.occupancy[0, 0] == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("discount", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("n", "k"), [(2, 2), (2, 3), (3, 4), (5, 2)])
def test_two_deterministic_cycles(n, k, discount):
    """No choice to make: ``d = (1-γ) Σ_t γ^t c(t mod n, t mod k)``, geometric over one common period."""
    cost = np.random.default_rng(n * k).random((n, k))
    t = np.arange(n * k)
    series = (1 - discount) * np.sum(discount**t * cost[t % n, t % k]) / (1 - discount ** (n * k))
    X, Y = MarkovChain(cycle(n)), MarkovChain(cycle(k))
    result = LinearProgram().solve(Discounted.make(X, Y, cost, discount))
    assert result.value == pytest.approx(series, rel=1e-14)
    assert result.lower <= series * (1 + 1e-15)
    assert series * (1 - 1e-15) <= result.upper


def test_one_step_transport():
    """One random step into absorbing states: ``d = (1-γ) c_00 + γ W_c(p, q)``, W_c = Σ |CDF - CDF|."""
    p, q, γ = np.array([0, 0.2, 0.5, 0.3]), np.array([0, 0.6, 0.1, 0.3]), 0.7
    P, Q = np.eye(4), np.eye(4)
    P[0], Q[0] = p, q
    cost = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    result = LinearProgram().solve(Discounted.make(MarkovChain(P), MarkovChain(Q), cost, γ))
    assert result.value == pytest.approx(γ * np.abs(np.cumsum(p - q)).sum(), rel=1e-14)


@each(seed=range(10))
def test_a_chain_is_at_distance_zero_from_itself(seed):
    case = instance(seed)
    X = MarkovChain(case.P_x, initial=case.nu_x)
    result = LinearProgram().solve(Discounted.make(X, X, "indicator", case.discount))
    assert result.lower == 0.0
    assert result.upper <= 1e-12 / (1 - case.discount)


# --- scales, sparsity, limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
@each(seed=[1, 2, 7, 33])
def test_costs_of_any_size(seed, scale):
    case, result, _ = solved(seed)
    other = LinearProgram().solve(problem_of(case._replace(cost=case.cost * scale)))
    assert other.value == pytest.approx(scale * result.value, rel=1e-12)
    assert other.lower <= other.value <= other.upper
    assert other.gap <= 1e-13 / (1 - case.discount) * other.problem.scale
    np.testing.assert_allclose(other.values, scale * result.values, rtol=1e-11)


@each(seed=range(5))
def test_zero_cost(seed):
    case = instance(seed)
    result = LinearProgram().solve(problem_of(case._replace(cost=np.zeros_like(case.cost))))
    assert (result.lower, result.value, result.upper) == (0.0, 0.0, 0.0)
    assert result.converged
    assert not result.values.any()
    assert result.occupancy.sum() == pytest.approx(1.0, rel=1e-12)


@each(seed=range(1, 75, 9))
def test_sparse_chains_give_the_same(seed):
    case, dense, _ = solved(seed)
    result = LinearProgram().solve(problem_of(case, sparse=True))
    assert result.value == dense.value
    np.testing.assert_array_equal(result.values, dense.values)
    assert sp.issparse(result.plan(0, 0))


@pytest.mark.parametrize("method", ["highs-ds", "highs-ipm"])
@each(seed=range(2, 75, 15))
def test_every_method_certifies(seed, method):
    case, _, exact = solved(seed)
    result = LinearProgram(method=method).solve(problem_of(case))
    assert result.lower - 1e-14 <= exact.value <= result.upper + 1e-14
    assert result.gap <= 1e-8 * case.cost.max()


def test_states_that_are_hardly_ever_visited():
    """Occupancies down to 1e-18 and states never reached: the gap stays at HiGHS's tolerance, 1e-10 of 16."""
    n, γ = 12, 0.9
    drift = np.diag([0.99] * (n - 1), -1) + np.diag([0.01] * (n - 1), 1)
    drift[0, 0], drift[-1, -1] = 0.99, 0.01
    P = np.eye(n + 2)
    P[:n, :n] = drift
    X, Y = MarkovChain(P), MarkovChain(drift.T / drift.T.sum(axis=1, keepdims=True), initial=3)
    assert 0 < X.occupancy(γ)[n - 1] < 1e-18
    cost = np.abs(np.subtract.outer(np.arange(n + 2.0), np.arange(n)))
    result = LinearProgram().solve(Discounted.make(X, Y, cost, γ))
    assert result.gap <= 1e-10 * 16
    U, (x, y) = result.values, (n + 1, 5)  # absorbing x: U(x, ·) solves a linear system
    exact = (1 - γ) * np.linalg.solve(np.eye(n) - γ * Y.transition, cost[x])
    assert U[x, y] == pytest.approx(exact[y], rel=1e-12)


def test_a_limit_leaves_true_bounds():
    rng = np.random.default_rng(0)
    start = np.full(4, 0.25)
    case = Instance(rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4), 4), start, start, rng.random((4, 4)), 0.9)
    exact = bellman(*case)
    for options, status in (({"max_iterations": 2}, Status.ITERATIONS), ({"time_limit": 1e-9}, Status.TIME)):
        result = LinearProgram(**options).solve(problem_of(case))
        assert result.outcome is status
        assert result.lower <= exact.value <= result.upper
        assert result.lower <= result.value <= result.upper
        assert result.gap > 0.01
        with pytest.warns(ConvergenceWarning, match="all pairs"):
            assert np.all(result.values >= (1 - case.discount) * exact.V - 1e-13)


def test_a_tolerance_below_rounding_is_reported():
    case, _, _ = solved(7)
    assert LinearProgram(tol=1e-30).solve(problem_of(case)).outcome is Status.ROUNDING


def test_size_guard_names_the_variables_and_the_way_out():
    big = MarkovChain(np.full((40, 40), 1 / 40))
    with pytest.raises(InvalidArgument, match=r"2,563,201 variables.*solver='exact'"):
        LinearProgram().solve(Discounted.make(big, big, "indicator", 0.9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "simplex"}, "'simplex'"),
        ({"tol": 0.0}, "tol is 0.0"),
        ({"time_limit": -1}, "time_limit is -1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        LinearProgram(**options)


def test_callback_history_and_pickle():
    case, result, _ = solved(8)
    seen = []
    LinearProgram().solve(problem_of(case), callback=seen.append)
    assert seen == [{"value": result.value, "lower": result.lower, "upper": result.upper}]
    assert result.history == tuple(seen)
    assert result.work["variables"] == paper_program(result.coupling.grid).cost.size
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.values, result.values)


@each(seed=[3, 8, 22, 57])
def test_state_brings_everything_back_without_solving(seed):
    _, result, _ = solved(seed)
    again = LinearProgramCoupling.restore(result.problem, result.coupling.state())
    np.testing.assert_array_equal(again.values, result.values)
    np.testing.assert_array_equal(again.occupancy(), result.occupancy)
    np.testing.assert_array_equal(again.plan(0, 0).toarray(), result.coupling.plan(0, 0).toarray())
    np.testing.assert_array_equal(again.start.f, result.coupling.start.f)
    for mine, theirs in zip(again.potentials(0, 0), result.coupling.potentials(0, 0), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def file_of(module):
    """Where a module below diffbisim is."""
    path = Path(diffbisim.__file__).parent.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported_by(module):
    """Names of the diffbisim modules that a module's source imports, itself and transitively."""
    found, queue = set(), [module]
    while queue:
        name = queue.pop()
        found.add(name)
        for node in ast.walk(ast.parse(file_of(name).read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                inside = [f"{node.module}.{a.name}" for a in node.names]
                names += [n if file_of(n).exists() else node.module for n in inside]
            queue += [n for n in names if n.startswith("diffbisim.") and n not in found]
            found |= {n for n in names if n == "numba"}
    return found


def test_the_oracle_shares_nothing_with_the_compiled_solvers():
    shared = imported_by("diffbisim.solvers.lp")
    assert "diffbisim.solvers.certify" in shared
    mine = {"base", "certify", "lp", "lp.program", "lp.solver"}
    assert {n.removeprefix("diffbisim.solvers.") for n in shared if ".solvers." in n} == mine
    assert "numba" not in shared
