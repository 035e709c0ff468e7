"""Total cost until absorption against the linear program over couplings, closed forms and value iteration."""

import pickle
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidChain, InvalidData
from diffbisim.solvers import Exact
from oracles.games import all_transports
from oracles.undiscounted import least_total


def total(X, Y, cost="reward", **options):
    return db.distance(X, Y, cost, criterion="total", **options)


def absorbing(rng, n):
    """State 0 absorbs."""
    P = rng.dirichlet(np.ones(n), size=n)
    P[0] = np.eye(n)[0]
    return P


def walk(n, stay=0.5):
    """Lazy, reflecting."""
    P = np.zeros((n, n))
    for k in range(n):
        P[k, k] += stay
        P[k, max(k - 1, 0)] += (1 - stay) / 2
        P[k, min(k + 1, n - 1)] += (1 - stay) / 2
    return P


def absorbed_case(rng):
    cost = rng.random((6, 5))
    cost[0, 0] = 0.0
    cost[3, 2] = 0.0
    return absorbing(rng, 6), absorbing(rng, 5), cost, None


def meeting_case(rng):
    P = rng.dirichlet(np.ones(5), size=5)
    return P, P.copy(), 0.1 + rng.random((5, 5)), np.eye(5, dtype=bool)


def mixed_case(rng):
    """Transient states without cost, which lead to a class where terminal pairs have to be met."""
    kernels = []
    for n in (6, 5):
        P = np.zeros((n, n))
        P[:3, :3] = rng.dirichlet(np.ones(3), size=3)
        P[3:] = rng.dirichlet(np.ones(n), size=n - 3)
        kernels.append(P)
    cost = rng.random((6, 5)) + 0.05
    cost[3:] *= rng.random((3, 5)) < 0.5
    terminal = np.zeros((6, 5), bool)
    terminal[0, 1] = terminal[2, 2] = terminal[4, 4] = True
    return *kernels, cost, terminal


CASES = {"absorbed": absorbed_case, "meeting": meeting_case, "mixed": mixed_case}


def posed(kind, seed=0):
    rng = np.random.default_rng([seed, *map(ord, kind)])
    P, Q, cost, terminal = CASES[kind](rng)
    nu_x, nu_y = rng.dirichlet(np.ones(len(P))), rng.dirichlet(np.ones(len(Q)))
    return db.MarkovChain(P, initial=nu_x), db.MarkovChain(Q, initial=nu_y), cost, terminal


@each(seed=range(3))
@pytest.mark.parametrize("kind", CASES)
def test_value_is_that_of_the_linear_program(kind, seed):
    X, Y, cost, terminal = posed(kind, seed)
    found = total(X, Y, cost, terminal=terminal)
    ends = found.problem.terminal
    exact = least_total(X.transition, Y.transition, X.initial, Y.initial, cost, ends)
    assert found.converged
    assert found.gap <= 1e-8 * max(cost.max(), found.value)
    assert found.lower - 1e-7 <= exact <= found.upper + 1e-7
    assert np.sum(found.occupancy * cost) == pytest.approx(found.value, abs=found.gap + 1e-10)
    assert (found.values[ends] == 0).all()


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.8])
def test_meeting_time_of_flipping_coins(p):
    P = [[1 - p, p], [p, 1 - p]]
    found = total(
        db.MarkovChain(P, initial=0), db.MarkovChain(P, initial=1), "indicator", terminal=np.eye(2, dtype=bool)
    )
    assert found.value == pytest.approx(1 / (2 * min(p, 1 - p)), rel=2e-8)


def test_meeting_time_of_lazy_reflecting_walks():
    X, Y = (db.MarkovChain(walk(8), initial=k) for k in (0, 7))
    found = total(X, Y, "indicator", terminal=[(k, k) for k in range(8)], tol=1e-11)
    assert found.value == pytest.approx(32.0, rel=2e-11)
    assert found.occupancy.sum() == pytest.approx(32.0, rel=1e-9)


def test_absorption_alone_is_the_expected_time():
    rng = np.random.default_rng(1)
    P = absorbing(rng, 5)
    X, Y = db.MarkovChain(P, initial=3), db.MarkovChain([[1.0]])
    cost = np.ones((5, 1))
    cost[0] = 0.0
    time = np.linalg.solve(np.eye(4) - P[1:, 1:], np.ones(4))
    found = total(X, Y, cost, tol=1e-12)
    assert found.values[1:, 0] == pytest.approx(time, rel=1e-10)


@pytest.mark.parametrize("length", [1, 5, 40])
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_bounds_hold_exactly_along_a_line(length):
    """Two deterministic walks to state 0, which they reach together or one after the other."""
    rng = np.random.default_rng(length)
    P = np.eye(length + 1)[np.maximum(np.arange(length + 1) - 1, 0)]
    X, Y = db.MarkovChain(P, initial=length), db.MarkovChain(P, initial=length // 2)
    cost = rng.random((length + 1,) * 2)
    cost[0, 0] = 0.0
    path = [(length - t, max(length // 2 - t, 0)) for t in range(length)]
    exact = sum(Fraction(cost[z]) for z in path)
    for iterations in (1, 2, 100):
        found = total(X, Y, cost, solver=Exact(max_iterations=iterations, tol=1e-16))
        assert Fraction(found.lower) <= exact <= Fraction(found.upper)
    assert found.gap <= 1e-12 * length**2


def test_slow_absorption_has_true_bounds():
    for slow in (1e-3, 1e-6, 1e-9):
        P = [[1.0, 0.0], [slow, 1 - slow]]
        X, Y = db.MarkovChain(P, initial=1), db.MarkovChain([[1.0]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = total(X, Y, [[0.0], [1.0]])
        exact = 1 / (1 - P[1][1])
        assert found.lower <= exact * (1 + 1e-15)
        assert found.upper >= exact * (1 - 1e-15)
        assert found.gap <= (1e-8 + 1e-13 / slow) * exact  # rounding of a table of this size, that many times


@pytest.mark.parametrize("stop", [{"max_iterations": 1}, {"max_iterations": 2}, {"time_limit": 0.0}])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_bounds_are_true_however_it_ends(kind, stop):
    X, Y, cost, terminal = posed(kind)
    exact = total(X, Y, cost, terminal=terminal)
    others = db.distance(X, Y, cost, 0.9), db.distance(X, Y, cost, 0.999), db.distance(X, Y, cost, criterion="average")
    for warm in (None, exact, *others):
        found = total(X, Y, cost, terminal=terminal, solver=Exact(**stop), warm=warm)
        assert found.lower <= exact.upper
        assert found.upper >= exact.lower
        assert 0 <= found.lower <= found.value <= found.upper
        assert found.upper < np.inf or stop == {"time_limit": 0.0}  # no plan may have been found in time


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_gradient_against_central_differences(kind, make):
    X, Y, cost, terminal = posed(kind)
    rng = np.random.default_rng(2)
    ends = total(X, Y, cost, terminal=terminal).problem.terminal

    def value(P, Q, nu_x, nu_y, cost):
        chains = db.MarkovChain(make(P), initial=nu_x), db.MarkovChain(make(Q), initial=nu_y)
        return total(*chains, cost, terminal=ends, solver=Exact(tol=1e-14, max_iterations=30))

    def direction(rows):
        change = rng.normal(size=rows.shape)
        return (change - (rows * change).sum(axis=-1, keepdims=True)) * rows

    given = [X.transition, Y.transition, X.initial, Y.initial, cost]
    gradient = value(*given).gradient
    parts = gradient.transition_x, gradient.transition_y, gradient.initial_x, gradient.initial_y, gradient.cost
    for k, part in enumerate(parts):
        step = 1e-5
        change = np.where(cost > 0, rng.normal(size=cost.shape), 0.0) if k == 4 else direction(given[k])
        sides = [value(*(g + s * change if i == k else g for i, g in enumerate(given))) for s in (step, -step)]
        slope = (sides[0].value - sides[1].value) / (2 * step)
        dense_part = part.toarray() if sp.issparse(part) else part
        assert np.sum(dense_part * change) == pytest.approx(slope, abs=1e-6 * max(1.0, abs(slope)))


@pytest.mark.parametrize("kind", CASES)
def test_files_pickles_and_warm_starts_go_on(kind, tmp_path):
    X, Y, cost, terminal = posed(kind)
    found = total(X, Y, cost, terminal=terminal)
    found.save(tmp_path / "a.npz")
    for again in (db.load(tmp_path / "a.npz"), pickle.loads(pickle.dumps(found))):
        assert (again.value, again.lower, again.upper) == (found.value, found.lower, found.upper)
        assert np.array_equal(again.problem.terminal, found.problem.terminal)
        assert np.array_equal(again.values, found.values)
        assert again.occupancy == pytest.approx(found.occupancy, abs=1e-10)
        assert not again.problem.terminal.flags.writeable
        warm = total(X, Y, cost, terminal=terminal, warm=again)
        assert warm.iterations == 1


def test_damaged_files_are_refused(tmp_path):
    X, Y, cost, terminal = posed("meeting")
    total(X, Y, cost, terminal=terminal).save(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    changes = {"state.U": -1.0, "state.pair": 1, "state.parent": 1, "terminal": True}
    for name, change in changes.items():
        np.savez(tmp_path / "b.npz", **{**arrays, name: arrays[name] + arrays[name].dtype.type(change)})
        with pytest.raises(InvalidData, match=r"b\.npz"):
            db.load(tmp_path / "b.npz")


def test_reachable_pairs_only():
    P = np.zeros((5, 5))
    P[:2, :2], P[2:, 2:] = [[1, 0], [0.5, 0.5]], np.eye(3)
    X, Y = db.MarkovChain(P, initial=1), db.MarkovChain([[1.0]])
    cost = np.array([[0.0], [1], [1], [1], [1]])
    with pytest.raises(InvalidArgument, match="infinite"):
        total(X, Y, cost)
    found = total(X, Y, cost, solver=Exact(reachable=True))
    assert found.value == pytest.approx(2.0, abs=1e-7)
    assert np.isnan(found.values[2:]).all()


def test_start_at_the_end():
    P = walk(4)
    X = db.MarkovChain(P, initial=2)
    for reachable in (False, True):
        found = total(X, X, "indicator", terminal=np.eye(4, dtype=bool), solver=Exact(reachable=reachable))
        assert found.value == found.lower == 0.0
        assert found.occupancy.sum() == 0.0


def test_lumping_preserves_total_cost(tmp_path):
    rng = np.random.default_rng(3)
    small, assignment = absorbing(rng, 4), np.array([0, 1, 2, 3, 1, 2])
    P = small[np.ix_(assignment, assignment)] / np.bincount(assignment)[assignment]
    rewards = np.array([0.0, 0.3, 0.7, 1.0])
    X, Y = (
        db.MarkovChain(P, initial=4, rewards=rewards[assignment]),
        db.MarkovChain(absorbing(rng, 3), rewards=[0, 0.2, 1]),
    )
    full, lumped = total(X, Y.with_initial(1)), total(X, Y.with_initial(1), lump=True)
    assert lumped.work["pairs"] < full.work["pairs"]
    assert max(full.lower, lumped.lower) <= min(full.upper, lumped.upper)
    assert lumped.values == pytest.approx(full.values, abs=1e-7)
    assert np.sum(lumped.occupancy * full.problem.cost) == pytest.approx(full.value, abs=1e-7)
    lumped.save(tmp_path / "a.npz")
    assert np.array_equal(db.load(tmp_path / "a.npz").values, lumped.values)


def test_infinite_and_ambiguous_totals_are_refused():
    rng = np.random.default_rng(4)
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(3), size=3), rewards=rng.random(3)) for _ in range(2))
    with pytest.raises(InvalidArgument, match="needs terminal pairs"):
        total(X, Y)
    ends = db.MarkovChain([[1.0, 0], [0, 1]], initial=[0.5, 0.5], rewards=[0, 1])
    with pytest.raises(InvalidArgument, match="infinite"):
        total(ends, ends)
    cost = np.ones((3, 3))
    cost[1, 2] = 0.0
    with pytest.raises(InvalidArgument, match=r"pair \(1, 2\) .* not unique"):
        total(X, Y, cost, terminal=[(0, 0)])


def test_terminal_pairs_that_are_none_are_refused():
    X = db.MarkovChain(walk(3), names=["a", "b", "c"])
    cases = {
        "shape": np.ones((2, 3), bool),
        "no pair": np.zeros((3, 3), bool),
        "all pairs": np.ones((3, 3), bool),
        r"terminal\[1\]": [("a", "a"), 7],
        "booleans": np.ones((3, 3)),
    }
    for message, terminal in cases.items():
        with pytest.raises(InvalidArgument, match=message):
            total(X, X, "indicator", terminal=terminal)
    with pytest.raises(InvalidChain, match="not a state"):
        total(X, X, "indicator", terminal=[("a", "z")])
    named = total(X, X.with_initial(2), "indicator", terminal=[("a", "a"), ("b", "b"), ("c", "c")])
    assert named.value == pytest.approx(
        total(X, X.with_initial(2), "indicator", terminal=np.eye(3, dtype=bool)).value, abs=1e-7
    )
    with pytest.raises(InvalidArgument, match="is terminal"):
        named.plan(0, 0)
    with pytest.raises(InvalidArgument, match="terminal is for"):
        db.distance(X, X, "indicator", terminal=np.eye(3, dtype=bool))


def test_value_iteration_from_zero_comes_up_to_it():
    P = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    X, Y, cost, terminal = db.MarkovChain(P), db.MarkovChain(P), 1.0 - np.eye(3), np.eye(3, dtype=bool)
    V = np.zeros(cost.shape)
    for _ in range(12):
        V = np.where(terminal, 0.0, cost + all_transports(X.transition, Y.transition, V))
    found = total(X, Y, cost, terminal=terminal)
    assert (found.values + 1e-7 >= V).all()
    assert pytest.approx(found.values, rel=0.05) == V
