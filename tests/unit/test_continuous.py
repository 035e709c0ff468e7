"""Estimates from trajectories in R^d: against closed forms, and against their own definition."""

from functools import cache

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import diffbisim as db
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.processes.cells import is_paths
from diffbisim.processes.gaussian import linear_gaussian_distance
from diffbisim.statistics.paths import estimate_paths, on_cells

FAR = db.LinearGaussian(0.8, 0.6, spread=0.5), db.LinearGaussian(0.5, 0.4, spread=0.5)


@cache
def far(cost="euclidean"):
    X, Y = FAR[0].sample(100, 20, 0), FAR[1].sample(100, 20, 1)
    return db.estimate(X, Y, cost, discount=0.9, replicates=40)


def short(seed, process=FAR[0]):
    return list(process.sample(20, 10, seed))


@pytest.mark.parametrize("cost", ["euclidean", "sqeuclidean"])
def test_the_interval_covers_the_closed_form(cost):
    exact = linear_gaussian_distance(*FAR, 0.9, cost)
    e = far(cost)
    assert e.lower <= exact <= e.upper
    assert e.lower <= e.value <= e.upper
    assert abs(e.value - exact) < 4 * e.standard_error
    assert e.conclusion == "evidence that they differ"


def test_the_plug_in_is_the_distance_of_the_chains_on_cells():
    e = far()
    X, Y = (e.cells.chain(p.sample(100, 20, s), prune=0.001) for s, p in enumerate(FAR))
    expected = db.distance(X, Y, discount=0.9)
    assert e.plug_in == pytest.approx(expected.value, abs=1e-5 * e.cells.cost().max())
    assert e.distance.value == e.plug_in


def test_value_and_standard_error_are_those_of_the_halves():
    e = far("sqeuclidean")
    u, halves = e.calibrated**2, e.halves * np.abs(e.halves)
    assert e.value == pytest.approx(np.sqrt(2 * u - halves.mean()))
    deviation = np.sqrt((((halves[:, 0] - halves[:, 1]) / 2) ** 2).mean())
    assert e.standard_error == pytest.approx(deviation / (2 * e.value))
    assert e.lower <= np.sqrt(max(0, u - (e.null * np.abs(e.null)).mean(axis=0).max())) + 1e-12


def test_calibration_is_exact_for_the_process_on_its_own_cells():
    """What the cells get wrong of linear-Gaussian processes is found by solving them there: the same, once more."""
    e = far("sqeuclidean")
    fitted = []
    for s, process in enumerate(FAR):
        X = process.sample(100, 20, s)
        fitted.append(db.LinearGaussian.fit(X[:, :-1].reshape(-1, 1), X[:, 1:].reshape(-1, 1), X[:, 0]))
    chains = [on_cells(process, e.cells, 0.001) for process in fitted]
    on_them = db.distance(*chains, e.cells.cost("sqeuclidean"), discount=0.9).value
    exact = linear_gaussian_distance(*fitted, 0.9)
    assert e.calibrated - e.plug_in == pytest.approx(exact - on_them, abs=1e-5 * e.cells.cost("sqeuclidean").max())


def test_a_gaussian_law_on_cells_has_its_moments():
    process = db.LinearGaussian([[0.7, 0.2], [-0.3, 0.6]], 0.5, start=[0.3, 0.0], spread=0.6)
    q = db.quantize(process.sample(50, 20, 0), n_states=60)
    chain = on_cells(process, q)
    reach = q.radius.max() * q.scale.max()  # a point is moved to its center, no farther than this on average
    assert np.abs(chain.initial @ q.centers - process.start).max() < reach / 2
    inner = np.linalg.norm(q.centers, axis=1) < 1
    assert np.abs(chain.transition @ q.centers - q.centers @ process.slope.T)[inner].max() < reach / 2


def test_equal_processes_are_not_told_apart():
    e = db.estimate(short(0), short(1), discount=0.8, replicates=24)
    assert e.lower == 0.0
    assert e.value < e.plug_in
    assert e.conclusion == "no evidence of a difference at this sample size"


def test_a_function_of_points_is_a_cost():
    named = db.estimate(short(0), short(1, FAR[1]), "cityblock", discount=0.8, replicates=24)
    given = db.estimate(short(0), short(1, FAR[1]), lambda a, b: cdist(a, b), discount=0.8, replicates=24)
    assert given.plug_in == pytest.approx(named.plug_in)  # on the line these are one
    assert given.calibrated == given.plug_in  # there is no closed form


def test_finite_horizons_pool_the_steps_of_all_times():
    w = np.ones(6)
    X, Y = (process.sample(150, 5, s) for s, process in enumerate(FAR))
    e = estimate_paths(X, Y, "sqeuclidean", weights=w, replicates=40)
    exact = linear_gaussian_distance(*FAR, weights=w)
    assert e.lower <= exact <= e.upper
    assert abs(e.value - exact) < 4 * e.standard_error
    mean = db.estimate(X, Y, "sqeuclidean", discount=1.0, horizon=5, replicates=40)  # weights that add up to one
    assert (mean.value, mean.upper) == pytest.approx((e.value / 6, e.upper / 6), rel=1e-3)


def test_pruning_is_in_the_budget():
    """What it has changed is found by leaving it out; the interval is wider by that."""
    X, Y = FAR[0].sample(30, 10, 0), FAR[1].sample(30, 10, 1)
    pruned, full = (estimate_paths(X, Y, discount=0.8, replicates=24, prune=p) for p in (0.2, 0.0))
    assert full.budget.pruned == 0.0
    assert pruned.budget.pruned == pytest.approx(abs(pruned.calibrated - full.calibrated), abs=1e-4)
    assert pruned.budget.pruned > 1e-3
    assert pruned.upper > pruned.value + pruned.budget.pruned / 2


def test_terminal_states_are_never_left():
    """One walk is always ahead of the other, so what is paid while one has ended is d = |E γ^τ - E γ^σ|."""

    def walks(seed, speed, after):
        rng = np.random.default_rng(seed)
        paths = []
        for _ in range(60):
            path = [0.001 * rng.random()]
            while path[-1] < 1:
                path.append(path[-1] + speed * rng.random())
            paths.append(np.array([*path, *[0.3] * after])[:, None])  # whatever follows
        return paths

    def ended(s):
        return s[:, 0] >= 1

    def one_has(a, b):
        return np.not_equal.outer(ended(a), ended(b)).astype(float)

    how = {"cost": one_has, "terminal": ended, "discount": 0.8, "replicates": 24}
    X, Y = walks(0, 1.0, 0), walks(1, 0.5, 0)
    e = db.estimate(X, Y, **how)
    assert e.cells.n_terminal > 0
    assert e.calibrated == e.plug_in  # no closed form knows of ends
    times = [np.mean([0.8 ** (len(path) - 1) for path in paths]) for paths in (X, Y)]
    assert e.lower <= abs(times[0] - times[1]) <= e.upper
    again = db.estimate(walks(0, 1.0, 3), walks(1, 0.5, 3), **how)
    assert (again.value, again.plug_in) == (e.value, e.plug_in)  # what follows does not count


@pytest.mark.parametrize("given", [{"rewards": [0, 1]}, {"cluster": [[0], [0]]}, {"strata": [[0], [0]]}], ids=str)
def test_options_for_finite_states_are_refused(given):
    with pytest.raises(InvalidArgument, match=f"{next(iter(given))} is for finitely many states"):
        db.estimate(short(0), short(1), **given)


def test_one_long_trajectory_is_cut_into_pieces():
    x, y = FAR[0].sample(1, 150, 0)[0], FAR[1].sample(1, 150, 1)[0]
    e = db.estimate([x], [y], replicates=24, criterion="average")
    assert 0 <= e.lower <= e.value <= e.upper
    assert np.ptp(e.halves) > 0


def test_the_same_seed_gives_the_same_estimate():
    one, two = (db.estimate(short(0), short(1, FAR[1]), discount=0.8, replicates=24, rng=5) for _ in range(2))
    np.testing.assert_array_equal(one.halves, two.halves)
    assert (one.value, one.lower, one.upper) == (two.value, two.lower, two.upper)


def test_what_are_trajectories():
    assert is_paths([np.zeros((3, 2))])
    assert is_paths([np.zeros(3)])
    assert is_paths(np.zeros((4, 3, 2)))
    for other in ([], [[0, 1, 2]], [np.array([0, 1])], np.zeros((3, 2)), db.MarkovChain([[1.0]]), None):
        assert not is_paths(other)


def test_bounds_of_the_euclidean_distance_agree_with_closed_forms():
    """A shift decays, a scale of the noise multiplies a mean norm; on the line the general closed form lies between."""
    from diffbisim.processes.gaussian import euclidean_bounds, mean_norm

    def process(slope, noise, start, spread):
        return db.LinearGaussian(slope * np.eye(3), noise * np.eye(3), start=start, spread=spread * np.eye(3))

    shift = euclidean_bounds(process(0.9, 0.3, [2, 1, 2], 0.5), process(0.9, 0.3, 0, 0.5), 0.8)
    assert shift == pytest.approx((0.2 * 3 / (1 - 0.72),) * 2, rel=1e-6)
    t = np.arange(400)
    norm = np.sqrt((1 - 0.81**t) / 0.19) * np.sqrt(8 / np.pi)  # E|z| = √(8/π) for standard normal z in space
    scale = euclidean_bounds(process(0.9, 0.3, 0, 0), process(0.9, 0.5, 0, 0), 0.8)
    assert scale == pytest.approx((0.2 * 0.2 * 0.8**t @ norm,) * 2, rel=1e-6)
    lower, upper = euclidean_bounds(*FAR, 0.9)
    assert lower < linear_gaussian_distance(*FAR, 0.9, "euclidean") <= upper + 1e-6
    rng = np.random.default_rng(0)
    root, mean = rng.normal(size=(3, 3)), rng.normal(size=3)
    norms = np.linalg.norm(mean + rng.normal(size=(200_000, 3)) @ root.T, axis=1)
    assert abs(mean_norm(mean[None], (root @ root.T)[None])[0] - norms.mean()) < 4 * norms.std() / np.sqrt(norms.size)


@pytest.mark.parametrize("cost", ["euclidean", "sqeuclidean", "cityblock", "chebyshev"])
def test_the_marginal_bound_is_unbiased_for_what_the_distance_exceeds(cost):
    """At one time, all couplings cost at least the transport between the samples, and equal laws nothing."""
    from diffbisim.statistics.marginals import marginal_bound

    rng, n = np.random.default_rng(3), 60
    units = (np.arange(n), np.arange(n))
    values, errors, raised = [], [], 0
    for _ in range(200):
        X, Y = rng.normal(size=(n, 1, 2)), rng.normal(size=(n, 1, 2))
        null = marginal_bound(X, Y, units, np.ones(1), cost=cost, confidence=0.95, rng=rng)
        raised += null.lower > 0
        far = marginal_bound(
            X * np.array([1.0, 2.0]), Y + np.array([3.0, 0.0]), units, np.ones(1), cost=cost, confidence=0.95, rng=rng
        )
        values.append(far.value)
        errors.append(far.standard_error)
    assert raised <= 12  # 2.5 % of 200 are 5; more than 12 have probability 0.003
    assert np.std(values) == pytest.approx(np.mean(errors), rel=0.3)
    cloud = rng.normal(size=(2, 400, 2))
    table = cdist(cloud[0] * [1, 2], cloud[1] + [3, 0], cost)
    from scipy.optimize import linear_sum_assignment

    most = table[linear_sum_assignment(table)].mean()  # at least the transport between the laws, up to noise
    assert np.mean(values) <= 1.1 * most
    assert np.mean(values) > 0.95 * (9 if cost == "sqeuclidean" else 3)  # the means alone


def test_paths_that_end_stay_where_they_ended():
    from diffbisim.statistics.marginals import aligned

    ended = [np.array([[0.0], [1.0]]), np.array([[0.0], [0.2], [0.4], [0.5]])]
    np.testing.assert_array_equal(aligned(ended, lambda s: s[:, 0] >= 1)[..., 0], [[0, 1, 1, 1], [0, 0.2, 0.4, 0.5]])
    np.testing.assert_array_equal(aligned(ended, None)[..., 0], [[0, 1], [0, 0.2]])


def test_when_the_marginal_laws_contradict_the_cells_there_is_no_upper_end():
    """Cells that were given, and that are far too few, cannot see the noise of Y."""
    from diffbisim.statistics.marginals import MarginalBound
    from diffbisim.statistics.paths import IntervalBasis, _raised

    bound = MarginalBound(1.0, 0.1, 0.8, 1.2, 5)
    assert _raised(0.2, (0.1, 0.5), bound) == (1.0, (0.8, np.inf), IntervalBasis.CONTRADICTED)
    assert _raised(0.2, (0.1, 0.9), bound) == (1.0, (0.8, 1.2), IntervalBasis.RAISED)
    assert _raised(1.5, (0.9, 2.0), bound) == (1.5, (0.9, 2.0), IntervalBasis.CELLS)
    assert _raised(1.5, (0.9, 2.0), None) == (1.5, (0.9, 2.0), IntervalBasis.UNCHECKED)
    noise = MarginalBound(0.3, 0.2, -0.1, 0.7, 5)
    assert _raised(0.2, (0.0, 0.5), noise) == (0.2, (0.0, 0.5), IntervalBasis.CELLS)


def test_pairs_stay_together():
    """Halves of both sides have the same starts, in whatever order they are given."""
    from diffbisim.processes.cells import TrajectorySteps
    from diffbisim.statistics.paths import Units

    rng = np.random.default_rng(0)
    starts = rng.normal(size=(12, 1))
    X = [np.vstack([s, rng.normal(size=(5, 1))]) for s in starts]
    Y = [np.vstack([s, rng.normal(size=(5, 1))]) for s in starts[rng.permutation(12)]]
    whole = TrajectorySteps.of(X), TrajectorySteps.of(Y)
    units = Units.of(whole, None)
    assert units.shared
    for _ in range(5):
        x1, x2, y1, y2 = units.halves(whole, rng)
        assert set(x1.starts.ravel()) == set(y1.starts.ravel())
        assert set(x2.starts.ravel()) == set(y2.starts.ravel())
    for paired in (False, None):
        assert not Units.of((whole[0], TrajectorySteps.of(Y[:-1])), paired).paired
    by_number = Units.of((whole[0], TrajectorySteps.of([path + 1 for path in Y])), True)
    assert by_number.paired
    assert not by_number.shared
    with pytest.raises(InvalidArgument, match="X has 12 trajectories and Y has 11"):
        Units.of((whole[0], TrajectorySteps.of(Y[:-1])), True)


@pytest.mark.parametrize("initial", ["pooled", "empirical", "stationary", np.array([1.0, -1.0])], ids=str)
def test_initial_distributions_are_those_asked_for(initial):
    """The chain starts there, and the interval covers the closed form of processes that do."""
    pair = db.LinearGaussian(0.8, 0.6, start=2.0, spread=0.1), db.LinearGaussian(0.5, 0.4, start=-2.0, spread=0.1)
    X, Y = (process.sample(60, 20, s) for s, process in enumerate(pair))
    e = db.estimate(X, Y, discount=0.9, replicates=40, initial=initial)
    long = [process.sample(400, 60, 5 + s)[:, -1] for s, process in enumerate(pair)]
    points = {
        "pooled": [np.concatenate([X[:, 0], Y[:, 0]])] * 2,
        "empirical": [part[:, :-1].reshape(-1, 1) for part in (X, Y)],
        "stationary": long,
    }.get(initial if isinstance(initial, str) else "", [np.array([[1.0], [-1.0]])] * 2)
    for chain, expected in zip((e.distance.problem.x, e.distance.problem.y), points, strict=True):
        assert chain.initial @ e.cells.centers[:, 0] == pytest.approx(expected.mean(), abs=0.2)
    (m, n), t = [np.mean(part) for part in points], np.arange(200)
    decay = 0.1 * 0.9**t @ np.abs(m * 0.8**t - n * 0.5**t)  # the difference of the means is a lower bound
    assert e.upper >= decay
    assert "no bound from marginal laws" in e.assumed[-1]
    assert e.marginal is None


def test_pairs_of_finite_states_are_strata():
    data = db.Transitions.from_trajectories([[0, 1], [1, 0]])
    with pytest.raises(InvalidArgument, match=r"paired is for trajectories in R\^d; .* strata= and cluster="):
        db.estimate(data, data, paired=True)


def test_initial_distributions_are_checked():
    for initial, message in (("nonsense", "initial is 'nonsense'"), (np.array([99.0]), "far outside the range")):
        with pytest.raises((InvalidArgument, InvalidData), match=message):
            db.estimate(short(0), short(1), initial=initial)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 8}, "replicates is 8"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"criterion": "total"}, "criterion is 'total'"),
        ({"cost": np.ones((2, 2))}, "cost is a ndarray"),
        ({"solver": "somcot"}, "hundreds of accurate ones; use solver='exact'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        db.estimate(short(0), short(1), **options)


def test_different_dimensions_are_refused():
    with pytest.raises(InvalidData, match=r"Y\[0\] has 2 coordinates, but X has 1"):
        db.estimate(short(0), [np.zeros((5, 2))])
