"""Pictures: what is drawn is the data, on the axes given, and nothing global is touched."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

import diffbisim as db
from diffbisim import plot
from diffbisim.plot.matrix import _classical_scaling
from diffbisim.plot.style import new_figure, shades


@pytest.fixture(scope="module")
def result():
    return db.distance(db.examples.random_chain(4, 0), db.examples.random_chain(3, 1))


@pytest.fixture
def ax():
    return new_figure(4, 3).subplots()


def image(ax):
    (shown,) = ax.images
    return np.asarray(shown.get_array())


def parts(ax):
    """Parts of one; zeros are masked, and white."""
    shown = ax.images[0].get_array()
    assert (np.ma.filled(shown, 1.0) > 0).all()
    return np.ma.filled(shown, 0.0)


def line(ax, label):
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def test_history_is_the_rows(result, ax):
    assert plot.history(result, ax) is ax
    value = line(ax, "distance $d$")
    assert value.get_ydata().tolist() == [row["value"] for row in result.history]
    assert value.get_xdata().tolist() == list(range(1, result.iterations + 1))
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].max() == max(row["upper"] for row in result.history)
    assert corners[:, 1].min() == min(row["lower"] for row in result.history)


def test_history_without_values_takes_the_middle_and_log_scale_where_it_is_wide(ax):
    rows = [{"lower": 0.0, "upper": 2.0}, {"lower": 0.0, "upper": 0.002}]
    plot.history(rows, ax)
    assert ax.get_yscale() == "log"
    assert line(ax, "distance $d$").get_ydata() == pytest.approx([1.0, 0.001])
    with pytest.raises(db.InvalidArgument, match="empty history"):
        plot.history([])


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_heat_maps_are_the_matrices(result, name, ax):
    assert getattr(plot, name)(result, ax, sort=False) is ax
    assert np.array_equal(parts(ax), getattr(result, name))
    ax = getattr(plot, name)(result)
    order = [int(text.get_text()) for text in ax.get_yticklabels()]
    assert sorted(order) == list(range(len(order)))
    assert np.array_equal(parts(ax), getattr(result, name)[order])
    mean = parts(ax) @ np.arange(parts(ax).shape[1])
    assert (np.diff(mean) >= 0).all()  # the mass goes to the right from row to row
    assert ax.get_xlabel().startswith("state $y$" if name == "encoder" else "state $x$")


def test_coupling_is_the_occupancy_or_a_plan(result, ax):
    plot.coupling(result, ax=ax)
    shown, m = np.ma.filled(image(ax), np.nan), result.occupancy
    assert np.allclose(shown[m >= 1e-6 * m.max()], m[m >= 1e-6 * m.max()])
    assert np.array_equal(parts(plot.coupling(result, (1, 2))), result.plan(1, 2))


def test_coupling_of_sparse_chains():
    X = db.examples.random_sparse_chain(6, 2, rng=0)
    r = db.distance(X, X)
    assert np.array_equal(parts(plot.coupling(r, (1, 2))), r.plan(1, 2).toarray())


def test_states_are_given_by_name_or_index():
    X = db.MarkovChain([[0.5, 0.5], [0.2, 0.8]], rewards=[0, 1], names=["dry", "wet"])
    r = db.distance(X, db.examples.random_chain(3, 0))
    assert np.array_equal(r.plan("wet", 2), r.plan(1, 2))
    assert [f.tolist() for f in r.potentials("wet", 2)] == [f.tolist() for f in r.potentials(1, 2)]
    timed = db.distance(X, X, horizon=2)
    assert np.array_equal(timed.plan("wet", "dry", time=1), timed.plan(1, 0, time=1))
    assert plot.coupling(r, ("wet", 2)).get_title() == "from $x$ = wet, $y$ = 2"
    by_name, by_index = (plot.chain(X, layout=place) for place in ({"wet": (1, 0), "dry": (0, 1)}, [(0, 1), (1, 0)]))
    disks = [[patch.center for patch in ax.patches if isinstance(patch, Circle)] for ax in (by_name, by_index)]
    assert disks[0] == disks[1]


def test_the_smallest_probability_is_not_white():
    white, least = np.ones(4), np.array(shades()(1e-9))
    assert (white - least)[:3].min() > 0.05


def test_implicit_reward_from_all_that_have_one(result):
    mdp = db.examples.imitation_chain()
    found = db.imitate(mdp, mdp.induced_chain(db.examples.soft_right_policy(mdp)), discount=0.9, max_iterations=3)
    assert np.array_equal(image(plot.implicit_reward(found)), found.reward.table)
    assert np.array_equal(image(found.reward.plot()), found.reward.table)
    drawn = plot.implicit_reward(result)
    assert np.array_equal(image(drawn), result.implicit_reward())
    low, high = drawn.images[0].get_clim()
    assert -low == high == np.abs(result.implicit_reward()).max()  # white is zero


def test_results_that_carry_a_distance_are_taken(result, ax):
    class Carrier:
        distance = result

    assert np.array_equal(parts(plot.encoder(Carrier(), ax, sort=False)), result.encoder)
    with pytest.raises(db.InvalidArgument, match="result is a str"):
        plot.encoder("nothing")


@pytest.mark.parametrize("layout", ["circle", "line", "spring", np.random.default_rng(0).random((5, 2))])
def test_graph_has_a_disk_per_state_and_an_arrow_per_transition(layout, ax):
    chain = db.examples.birth_death(5, 0.6, 0.3)
    plot.chain(chain, ax, layout=layout)
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == chain.n_transitions
    disks = [patch for patch in ax.patches if isinstance(patch, Circle)]
    assert len(disks) == 5 + 1  # one more around the start
    centers = np.array([disk.center for disk in disks])
    assert len(np.unique(centers.round(9), axis=0)) == 5
    assert {"0", "1", "2", "3", "4"} <= {text.get_text() for text in ax.texts}


def test_graph_says_what_it_leaves_out_and_refuses_crowds(ax):
    rare = db.MarkovChain([[0.995, 0.005], [0.5, 0.5]])
    arrows = [patch for patch in plot.chain(rare).patches if isinstance(patch, FancyArrowPatch)]
    assert sorted(arrow.get_linestyle() for arrow in arrows) == ["-", "-", "-", ":"]  # also the rare one
    plot.chain(rare, ax, least=0.01)
    assert ax.get_title() == "1 transitions below 0.01 not drawn"
    with pytest.raises(db.InvalidArgument, match="61 states"):
        plot.chain(db.examples.cycle(61))
    with pytest.raises(db.InvalidArgument, match="layout is 'tree'"):
        plot.chain(db.examples.cycle(3), layout="tree")
    with pytest.raises(db.InvalidArgument, match=r"\(3, 2\)"):
        plot.chain(db.examples.cycle(3), layout=np.zeros((2, 2)))


def test_spring_puts_neighbors_nearer():
    """A ring: states that lead to each other are nearer than the others."""
    ax = plot.chain(db.examples.cycle(12), layout="spring")
    place = np.array([patch.center for patch in ax.patches if isinstance(patch, Circle)])
    place = place[np.sort(np.unique(place, axis=0, return_index=True)[1])]
    apart = np.linalg.norm(place[:, None] - place[None], axis=2)
    step = np.array([apart[i, (i + 1) % 12] for i in range(12)])
    others = np.array([apart[i, j] for i in range(12) for j in range(12) if (i - j) % 12 not in (0, 1, 11)])
    assert step.max() < others.min()


def test_elbow_takes_arrays_or_a_sweep(ax):
    class Sweep:
        sizes, values, recommended = (2, 3, 4), np.array([0.5, 0.1, 0.0]), 4

    plot.elbow(Sweep(), ax=ax)
    assert line(ax, "best found").get_ydata().tolist() == [0.5, 0.1, 0.0]
    assert line(ax, "recommended: 4").get_xydata().tolist() == [[4, 0.0]]
    plain = plot.elbow([2, 3], [1.0, 0.5])
    assert line(plain, "best found").get_xdata().tolist() == [2, 3]
    with pytest.raises(db.InvalidArgument, match="one distance per size"):
        plot.elbow([2, 3], [1.0])


def test_matrix_is_sorted_by_its_tree():
    D = np.abs(np.subtract.outer([0.0, 10.0, 1.0, 11.0], [0.0, 10.0, 1.0, 11.0]))
    ax = plot.distances(D, names="abcd")
    order = [text.get_text() for text in ax.get_yticklabels()]
    assert "".join(order) in ("acbd", "dbca")  # the order on the line, from either end
    where = ["abcd".index(name) for name in order]
    assert np.array_equal(image(ax), D[np.ix_(where, where)])
    assert np.array_equal(image(plot.distances(D, tree=False)), D)


def test_embedding_recovers_points_of_the_plane():
    points = np.random.default_rng(1).random((7, 2))
    D = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = _classical_scaling(D)
    assert np.allclose(np.linalg.norm(found[:, None] - found[None], axis=2), D)
    ax = plot.embedding(D)
    assert np.allclose(ax.lines[0].get_xydata(), found)
    assert ax.get_title().endswith("1.000")


@pytest.mark.parametrize("draw", [plot.distances, plot.embedding])
def test_matrices_are_checked(draw):
    with pytest.raises(db.InvalidArgument, match="square"):
        draw(np.zeros((2, 3)))
    with pytest.raises(db.InvalidArgument, match="symmetric"):
        draw(np.array([[0.0, 1.0], [2.0, 0.0]]))


def test_smoke_every_picture_is_drawn(result, tmp_path):
    D = db.pairwise([db.examples.drift_walk(f, 5) for f in (-1, 0, 1)])
    chain = db.examples.four_rooms_walk(7)
    drawn = [
        plot.history(result), plot.encoder(result), plot.coupling(result), plot.chain(chain, layout="spring"),
        plot.elbow([1, 2], [1, 0], recommended=2), plot.distances(D), plot.embedding(D), plot.embedding([[0.0]]),
    ]  # fmt: skip
    for k, ax in enumerate(drawn):
        assert isinstance(ax.figure, Figure)
        ax.figure.savefig(tmp_path / f"{k}.png")
