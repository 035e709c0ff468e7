"""Cells for continuous states, against what is known of the points that were put in."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.processes.cells import TrajectorySteps, _nearest_steps, local_laws


def cloud(n, T, d, seed, width=1.0):
    return list(width * np.random.default_rng(seed).normal(size=(n, T, d)))


def test_every_point_is_in_the_nearest_cell():
    X, Y = cloud(10, 30, 3, 0), cloud(5, 20, 3, 1)
    q = db.quantize(X, Y, n_states=12)
    points = np.concatenate([*X, *Y])
    gaps = np.linalg.norm((points[:, None] - q.centers) / q.scale, axis=2)
    np.testing.assert_array_equal(q.encode(points), gaps.argmin(axis=1))
    assert q.n_states == 12
    np.testing.assert_allclose(
        q.scale, np.sqrt((np.var(np.concatenate(X), 0) + np.var(np.concatenate(Y), 0)) / 2), rtol=0.05
    )


def test_radius_is_the_spread_of_a_cell():
    X = cloud(4, 50, 2, 2)
    q = db.quantize(X, n_states=5, scale=None)
    points = np.concatenate(X)
    at = q.encode(points)
    expected = [np.sqrt(((points[at == k] - q.centers[k]) ** 2).sum(1).mean()) for k in range(5)]
    np.testing.assert_allclose(q.radius, expected)


def test_a_narrow_tube_does_not_starve():
    """A hundredth of the points, and a hundredth of the width: still a good share of the cells is in the tube."""
    wide = cloud(100, 50, 2, 3)
    tube = [np.array([5.0, 0.0]) + 0.3 * path for path in cloud(1, 50, 2, 4)]
    q = db.quantize(wide, tube, n_states=20)
    assert len(set(q.encode(np.concatenate(tube)))) >= 4


def test_few_distinct_points_are_the_states():
    q = db.quantize([[0.0, 1.0, 0.0]], [[0.0, 4.0]], n_states=10)
    np.testing.assert_array_equal(q.centers[:, 0], [0, 1, 4])
    chain = q.chain([[0.0, 1.0, 0.0, 1.0], [0.0, 4.0]], smoothing=None)
    np.testing.assert_allclose(chain.transition, [[0, 2 / 3, 1 / 3], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(chain.rewards, [0, 1, 4])


def test_transitions_are_those_of_the_cells():
    X = cloud(3, 20, 2, 5)
    q = db.quantize(X, n_states=6)
    seen = q.transitions(X)
    np.testing.assert_array_equal(seen.states[:19], q.encode(X[0])[:-1])
    np.testing.assert_array_equal(seen.next_states[:19], q.encode(X[0])[1:])
    assert seen.n_episodes == 3


def test_local_laws_of_a_linear_map_are_exact():
    """Without noise every moved successor is the image of the center, far from the data too."""
    rng = np.random.default_rng(6)
    A, b = rng.normal(size=(2, 2)), rng.normal(size=2)
    now = rng.normal(size=(200, 2))
    steps = TrajectorySteps(now, now @ A.T + b, now[:1], np.zeros(200, dtype=np.int64))
    centers = 2 * rng.normal(size=(7, 2))
    laws = local_laws(centers, np.array([1.0, 3.0]), steps, lambda points: np.zeros(len(points), dtype=bool))
    expected = np.broadcast_to((centers @ A.T + b)[:, None], laws.points.shape)
    np.testing.assert_allclose(laws.points, expected, atol=1e-4)  # the ridge is 1e-6 of the spread
    np.testing.assert_allclose(laws.weights.sum(axis=1), 1.0)


def test_the_nearest_steps_on_the_line_are_those_of_a_search():
    rng = np.random.default_rng(7)
    points, centers = rng.normal(size=(60, 1)), np.append(3 * rng.normal(size=8), rng.normal())[:, None]
    steps = TrajectorySteps(points, 2 * points, points[:1], np.zeros(60, dtype=np.int64))
    for m in (1, 15, 60):
        now, after = _nearest_steps(steps, np.ones(1), centers, m)
        expected = np.sort((points - centers[:, 0]) ** 2, axis=0)[:m].T
        np.testing.assert_allclose(np.sort((now[..., 0] - centers) ** 2), expected)
        np.testing.assert_array_equal(after, 2 * now)


def test_local_rows_have_the_means_of_the_process():
    process = db.LinearGaussian([[0.7, 0.2], [-0.3, 0.6]], 0.4, spread=0.5)
    X = process.sample(200, 20, 0)
    q = db.quantize(X, n_states=60)
    means = q.chain(X).transition @ q.centers
    inner = np.linalg.norm(q.centers, axis=1) < 0.8
    np.testing.assert_allclose(
        means[inner], (q.centers @ process.slope.T)[inner], atol=0.12
    )  # 4 standard errors, cells


def test_terminal_states_have_cells_of_their_own_and_stay():
    rng = np.random.default_rng(7)
    X = [np.append(rng.uniform(0, 0.9, 8), 1 + 0.1 * rng.random())[:, None] for _ in range(30)]
    q = db.quantize(X, n_states=16, terminal=lambda s: s[:, 0] >= 1)
    assert q.n_terminal == 2
    ends = q.encode(np.array([path[-1] for path in X]))
    assert ends.min() >= 14
    assert q.encode(np.concatenate([path[:-1] for path in X])).max() < 14
    chain = q.chain(X)
    np.testing.assert_array_equal(chain.absorbing_states, [14, 15])


def test_pruning_moves_no_more_than_it_may():
    X = cloud(20, 30, 2, 8)
    q = db.quantize(X, n_states=20)
    full, pruned = q.chain(X).transition, q.chain(X, prune=0.05).transition
    assert np.count_nonzero(pruned) < np.count_nonzero(full)
    assert np.abs(full - pruned).sum(axis=1).max() / 2 <= 0.05 + 1e-12


def test_centers_can_be_given():
    q = db.quantize(cloud(3, 20, 1, 9), centers=[-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(q.encode([-0.8, 0.2, 0.9, 1.2]), [0, 1, 2, 2])
    np.testing.assert_allclose(q.cost("sqeuclidean"), [[0, 1, 4], [1, 0, 1], [4, 1, 0]])


def test_the_same_seed_gives_the_same_cells():
    X = cloud(10, 30, 2, 10)
    np.testing.assert_array_equal(db.quantize(X, n_states=9, rng=4).centers, db.quantize(X, n_states=9, rng=4).centers)


@pytest.mark.parametrize(
    ("X", "Y", "options", "message"),
    [
        (np.zeros((5, 2)), None, {}, r"X is an array of shape \(5, 2\).*\[X\]"),
        ([], None, {}, "X is empty"),
        ([[[0.0, 1.0], [np.nan, 2.0]]], None, {}, r"X\[0\]\[1, 0\] is nan"),
        ([[[0.0, 1.0], [1.0, 1.0]]], None, {}, "coordinate 1 is 1 at every point"),
        ([np.zeros((3, 2))], [np.zeros((3, 1))], {}, r"Y\[0\] has 1 coordinates, but X has 2"),
        ([np.zeros((3, 2)), np.zeros((3, 3))], None, {}, r"X\[1\] has 3 coordinates, but X\[0\] has 2"),
        ([[0.0, "a"]], None, {}, r"X\[0\] is not an array of numbers"),
        ([[0.0, 1.0]], None, {"n_states": 0}, "n_states is 0"),
        ([[0.0, 1.0]], None, {"n_states": "many"}, "n_states is 'many'"),
        ([[0.0, 1.0]], None, {"scale": "range"}, "scale is 'range'"),
        ([[0.0, 1.0]], None, {"scale": [0.0]}, "one per coordinate"),
        ([[0.0, 1.0]], None, {"terminal": lambda s: s}, "terminal returned float64"),
    ],
)
def test_bad_input_is_named(X, Y, options, message):
    with pytest.raises((InvalidData, InvalidArgument), match=message):
        db.quantize(X, Y, **options)


def test_points_far_from_the_data_are_refused():
    q = db.quantize([[0.0, 1.0, 0.5, 0.2]], n_states=2)
    with pytest.raises(InvalidData, match=r"point 1 has coordinate 0 = 7, far outside"):
        q.encode([0.3, 7.0])
    with pytest.raises(InvalidData, match="far outside"):
        q.chain([[0.3, 7.0]])
    assert q.encode([7.0], outside="nearest") == [1]
