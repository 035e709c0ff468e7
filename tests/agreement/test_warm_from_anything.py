"""A previous result is a hint, whatever it is a result of: bounds stay true, nothing is NaN, and the run converges.

Oracle: the distance in exact rational arithmetic.
"""

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

import diffbisim as db
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact, LinearProgram, Lumped, SinkhornPolicy, SinkhornValue, Somcot
from oracles.rational import exact_distance_of

pytestmark = pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")

SOLVERS = {
    "lp": LinearProgram(),
    "policy": SinkhornPolicy(),
    "policy 1e-9": SinkhornPolicy(tol=1e-9),
    "policy sqrt": SinkhornPolicy(schedule="sqrt", max_iterations=5),
    "policy one iteration": SinkhornPolicy(max_iterations=1),
    "value": SinkhornValue(),
    "value one iteration": SinkhornValue(max_iterations=1),
    "somcot": Somcot(max_iterations=200),
    "somcot one step": Somcot(max_iterations=1),
}

DONORS = {
    "exact": Exact(),
    "reachable": Exact(reachable=True),
    "exact, one iteration": Exact(max_iterations=1),
    "lumped": Lumped(Exact()),
    "lumped, reachable": Lumped(Exact(reachable=True)),
    "lp": LinearProgram(),
    "policy": SinkhornPolicy(),
    "policy, one iteration": SinkhornPolicy(max_iterations=1),
    "policy 1e-9": SinkhornPolicy(tol=1e-9),
    "value, one iteration": SinkhornValue(max_iterations=1),
    "policy sqrt": SinkhornPolicy(schedule="sqrt", max_iterations=3),
    "somcot": Somcot(max_iterations=200),
    "somcot, one step": Somcot(max_iterations=1),
}

#: What the previous problem was: this one at another scale, flat, free, or another one of the same shape.
OTHERS = ("the same", "1e-300", "1e-12", "0.01", "100", "1e12", "1e300", "1.7e308", "flat", "free", "another")


def problem(kind):
    """Three states against two; with "islands" some pairs cannot be reached from the starts."""
    rng = np.random.default_rng(41)
    P, Q = rng.dirichlet(np.ones(3), 3), rng.dirichlet(np.ones(2), 2)
    if kind == "islands":
        P, Q = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.3, 0.3, 0.4]]), np.eye(2)
    X, Y = db.MarkovChain(P, initial=[0.25, 0.75, 0.0]), db.MarkovChain(Q, initial=1)
    c = np.array([[0.0, 0.25], [1.0, 0.75], [0.5, 0.0]])
    return Discounted.make(X, Y, c, 0.9)


def previous(now, other):
    if other == "another":
        rng = np.random.default_rng(43)
        X, Y = db.MarkovChain(rng.dirichlet(np.ones(3), 3), initial=2), db.MarkovChain(rng.dirichlet(np.ones(2), 2))
        return Discounted.make(X, Y, rng.random((3, 2)), 0.5)
    tables = {"the same": now.cost, "flat": np.ones(now.shape), "free": np.zeros(now.shape)}
    cost = tables[other] if other in tables else float(other) * now.cost
    return Discounted.make(now.x, now.y, cost, now.discount)


@cache
def donor(kind, other, name, folder=None):
    result = DONORS[name].solve(previous(problem(kind), other))
    if folder is None:
        return result
    result.save(folder / "result.npz")
    return db.load(folder / "result.npz")


def check(result, d, converges, which=""):
    assert result.lower <= result.value <= result.upper, which
    assert Fraction(result.lower) <= d <= Fraction(result.upper), which
    assert np.isfinite(result.values).all(), which
    assert np.isfinite(result.occupancy).all(), which
    if converges:
        assert result.converged, f"{which}: {result.status}"


@cache
def truth(kind):
    return exact_distance_of(problem(kind))


@pytest.mark.parametrize("kind", ["connected", "islands"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_warm_from_every_solver_and_another_problem(kind, solver):
    """A quarter of all triples, in which every two meet: solver and donor, solver and problem, donor and problem."""
    now, own = problem(kind), list(SOLVERS).index(solver)
    for (i, other), (j, name) in product(enumerate(OTHERS), enumerate(DONORS)):
        if (i + j + own) % 4 == 0:
            result = SOLVERS[solver].solve(now, warm=donor(kind, other, name))
            check(result, truth(kind), solver in ("lp", "policy", "value"), f"from {name}, {other}")


@pytest.mark.parametrize("name", ["reachable", "lumped, reachable", "lp", "policy", "somcot"])
def test_warm_from_a_file(name, tmp_path):
    warm = donor.__wrapped__("islands", "the same", name, tmp_path)
    for solver in SOLVERS:
        result = SOLVERS[solver].solve(problem("islands"), warm=warm)
        check(result, truth("islands"), solver in ("lp", "policy", "value"), solver)


def test_a_reachable_result_has_pairs_that_were_not_solved():
    """What the tests above rely on."""
    assert np.isnan(donor("islands", "the same", "reachable").values).any()


@pytest.mark.parametrize("solver", ["lp", "policy", "value", "somcot"])
def test_warm_of_another_size_or_kind_is_refused(solver):
    now = problem("connected")
    larger = Exact().solve(Discounted.make(now.x, now.x, np.zeros((3, 3)), 0.9))
    for warm, message in ((larger, "omit warm"), (0.5, "give a previous result of distance")):
        with pytest.raises(db.InvalidArgument, match=message):
            SOLVERS[solver].solve(now, warm=warm)


def test_entropic_warm_across_scales():
    """The smooth metric too: it converges to what a cold run finds."""
    now = problem("connected")
    cold = SinkhornPolicy(epsilon=0.1).solve(now)
    for other in OTHERS:
        for name in DONORS:
            result = SinkhornPolicy(epsilon=0.1).solve(now, warm=donor("connected", other, name))
            assert result.converged
            assert result.lower <= cold.upper
            assert cold.lower <= result.upper
