"""The certified bounds of every approximate solver against the distance in exact rational arithmetic.

No tolerance anywhere: the bounds include rounding, and the oracle has none. The instances have probabilities from 1e-15
down to the smallest double, rows that are one state and crumbs, and costs from 1e-18 to 1 side by side.
"""

import warnings
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import diffbisim as db
from cases import each
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import LinearProgram, SinkhornPolicy, SinkhornValue, Somcot
from diffbisim.solvers.lp.program import Answer
from oracles.adversarial import hostile
from oracles.bellman import bellman
from oracles.instances import instance
from oracles.rational import exact_distance_of, independent_distance_of
from problems import problem_of

SEEDS = 120  # benchmarks/long/bounds.py has the other hundred thousand

# runs that were stopped early say so when they are asked for all pairs
pytestmark = pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")


@cache
def solved(seed, scale=1.0):
    """A problem and its distance."""
    case = hostile(seed)
    problem = problem_of(case._replace(cost=case.cost * scale), sparse=seed % 2 == 1)
    return problem, exact_distance_of(problem)


def wrong(result, d):
    """Whether a certificate does not hold, to the last digit."""
    ordered = result.lower <= result.value <= result.upper  # false for NaN
    return not (ordered and np.isfinite(result.upper) and Fraction(result.lower) <= d <= Fraction(result.upper))


@each(seed=range(20))
def test_the_oracle_is_the_bellman_equation(seed):
    case = instance(seed, largest=3)
    assert float(exact_distance_of(problem_of(case))) == pytest.approx(bellman(*case).value, abs=1e-11)


def test_a_successor_of_probability_1e16_that_has_all_the_cost():
    """d = γ p/(1-γ) to first order; the program loses the successor, and the bound must not."""
    X, Y = db.MarkovChain([[1.0]]), db.MarkovChain([[1.0, 8.78e-16], [5.5e-16, 1.0]])
    problem = Discounted.make(X, Y, np.array([[0.0, 1.0]]), 0.9)
    d = exact_distance_of(problem)
    assert float(d) == pytest.approx(7.9e-15, rel=0.01)
    assert not wrong(LinearProgram().solve(problem), d)


EVERY = {
    "lp": LinearProgram(),
    "lp interior point": LinearProgram(method="highs-ipm"),
    "lp one iteration": LinearProgram(max_iterations=1),
    "lp no time": LinearProgram(time_limit=1e-9),
    "policy": SinkhornPolicy(),
    "policy 1e-9": SinkhornPolicy(tol=1e-9, max_iterations=60),
    "policy one iteration": SinkhornPolicy(max_iterations=1),
    "policy sqrt": SinkhornPolicy(schedule="sqrt", max_iterations=20),
    "value": SinkhornValue(),
    "value one iteration": SinkhornValue(max_iterations=1),
    "value constant": SinkhornValue(schedule="constant", max_iterations=20),
    "somcot": Somcot(max_iterations=100),
    "somcot one step": Somcot(max_iterations=1),
}


#: These take every problem; the other ways to run them take a third each, by turns.
MAIN = ("lp", "policy", "value", "somcot")


@pytest.mark.parametrize("solver", EVERY)
def test_bounds_hold_to_the_last_digit(solver):
    seeds = range(SEEDS) if solver in MAIN else range(list(EVERY).index(solver) % 3, SEEDS, 3)
    assert not [seed for seed in seeds if wrong(EVERY[solver].solve(solved(seed)[0]), solved(seed)[1])]


def test_somcot_from_a_start_of_the_smallest_double():
    """Its share of a row vanished in a quotient, and with it a logarithm."""
    X = db.MarkovChain([[0.5, 0.5], [1.0, 0.0]], initial=[1.0, 5e-324])
    problem = Discounted.make(X, X, np.array([[0.5, 0.6], [0.7, 0.8]]), 0.5)
    result = Somcot(max_iterations=100).solve(problem)
    assert np.isfinite(result.occupancy).all()
    assert not wrong(result, exact_distance_of(problem))


SCALES = (5e-324, 1e-310, 1e-300, 1e-150, 1e150, 1e300, 1.7e308)


@pytest.mark.parametrize("solver", EVERY)
def test_bounds_hold_at_every_scale_of_cost(solver):
    """Also where digits end, and where a sum of two costs is too large for a double.

    Problems take turns: of solver, scale and problem, every two meet.
    """
    for k, scale in enumerate(SCALES, list(EVERY).index(solver)):
        for seed in range(0, 40, 3)[k % 4 :: 4]:
            problem, d = solved(seed, scale)
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                result = EVERY[solver].solve(problem)
            assert not wrong(result, d), (scale, seed)
            assert np.isfinite(result.values).all(), (scale, seed)


@pytest.mark.parametrize("kind", ["noise", "huge", "zero", "one column", "infinite", "nan"])
@each(seed=range(0, 60, 3))
def test_bounds_hold_whatever_highs_returns(seed, kind, monkeypatch):
    """Plans and multipliers are guesses; nothing that is believed may come from HiGHS."""
    rng, (problem, d) = np.random.default_rng([9, seed]), solved(seed)

    def highs(program, options, deadline):
        z, duals = rng.random(program.cost.size), rng.normal(size=program.rhs.size)
        if kind == "huge":
            z, duals = z * 10.0 ** rng.uniform(-320, 300, z.size), duals * 10.0 ** rng.uniform(-300, 300, duals.size)
        elif kind == "zero":
            z, duals = 0 * z, 0 * duals
        elif kind == "one column":
            z = 1.0 * (np.arange(z.size) == rng.integers(z.size))
        elif kind in ("infinite", "nan"):
            duals[rng.integers(duals.size)] = {"infinite": np.inf, "nan": np.nan}[kind]
        return Answer(z, duals, 0, False)

    monkeypatch.setattr("diffbisim.solvers.lp.solver.solve_program", highs)
    assert not wrong(LinearProgram().solve(problem), d)


@pytest.mark.parametrize("epsilon", [1.0, 1e3, 1e6, 1e10, 1e16, 1e20, 1e100, 1e200])
@each(seed=range(0, 30, 2))
def test_bounds_of_the_entropic_metric_at_high_temperatures(seed, epsilon):
    """d_ε is below the value of the independent coupling, by osc(V)²/(8ε) at most (Hoeffding), osc(V) ≤ max c/(1-γ)."""
    case = instance(seed, largest=3)
    problem = problem_of(case)
    result = SinkhornPolicy(epsilon=epsilon, max_iterations=50).solve(problem)
    independent, most = independent_distance_of(problem), Fraction(problem.scale) / (1 - Fraction(case.discount))
    assert Fraction(result.lower) <= independent
    assert Fraction(result.upper) >= independent - most**2 / (8 * Fraction(epsilon))
    assert result.lower <= result.value <= result.upper


@pytest.mark.parametrize("epsilon", [1e-6, 1e-10, 1e-14, 1e-20, 1e-100, 1e-200])
@each(seed=range(0, 30, 5))
def test_bounds_of_the_entropic_metric_at_low_temperatures(seed, epsilon):
    """d ≤ d_ε ≤ d + ε log n, n the most successors."""
    problem = problem_of(instance(seed, largest=3))
    result, d = SinkhornPolicy(epsilon=epsilon, max_iterations=50).solve(problem), exact_distance_of(problem)
    assert Fraction(result.lower) <= d + Fraction(epsilon * 1.1)
    assert Fraction(result.upper) >= d


@pytest.mark.parametrize(("epsilon", "scale"), [(0.1, 1e300), (1e300, 1e-300), (5e-324, 1.0)])
def test_temperatures_that_have_nothing_to_do_with_the_costs_are_refused(epsilon, scale):
    problem = Discounted.make(
        db.examples.cycle(2), db.examples.cycle(3), scale * np.array([[0, 0.5, 1], [1, 0, 0.5]]), 0.9
    )
    with pytest.raises(db.InvalidArgument, match="choose a temperature closer to the costs"):
        SinkhornPolicy(epsilon=epsilon).solve(problem)
