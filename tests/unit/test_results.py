"""The result object: its names, its lazy parts, its errors, and that a saved one is the same."""

import numpy as np
import pytest
from scipy import sparse

import diffbisim as db
from diffbisim.solvers import Exact


def chains():
    rng = np.random.default_rng(3)
    return db.examples.random_chain(6, rng), db.examples.random_sparse_chain(8, 3, rng)


def dense_pair():
    rng = np.random.default_rng(4)
    return db.examples.random_chain(5, rng), db.examples.random_chain(4, rng)


VARIANTS = {
    "exact": {},
    "reachable": {"solver": Exact(reachable=True)},
    "lumped": {"lump": True},
    "lp": {"solver": "lp"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_saved_result_comes_back_whole(options, tmp_path):
    result = db.distance(*chains(), **options)
    result.save(tmp_path / "result.npz")
    again = db.load(tmp_path / "result.npz")
    assert repr(again) == repr(result)
    assert (again.history, dict(again.work), again.status) == (result.history, dict(result.work), result.status)
    np.testing.assert_array_equal(again.values, result.values)
    np.testing.assert_array_equal(again.problem.cost, result.problem.cost)
    np.testing.assert_allclose(again.occupancy, result.occupancy, atol=1e-14)
    np.testing.assert_allclose(again.plan(0, 0).toarray(), result.plan(0, 0).toarray(), atol=1e-14)
    for name in ("transition_x", "transition_y"):
        one, other = getattr(result.gradient, name), getattr(again.gradient, name)
        np.testing.assert_allclose(one.toarray(), other.toarray(), atol=1e-12)


def test_a_loaded_result_warms_a_new_solve(tmp_path):
    X, Y = chains()
    db.distance(X, Y).save(tmp_path / "result.npz")
    again = db.distance(X, Y, warm=db.load(tmp_path / "result.npz"))
    assert (again.iterations, again.work["pivots"], again.work["sweeps"]) == (1, 0, 0)


def test_names_of_many_types_survive_saving(tmp_path):
    names = ("a", 1, 2.5, (0, "b"), False)
    X = db.MarkovChain(np.eye(5), initial="a", rewards=np.arange(5.0), names=names)
    db.distance(X, X).save(tmp_path / "r.npz")
    assert db.load(tmp_path / "r.npz").problem.x.names == names


def test_what_is_no_result_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    db.write_chain(db.examples.cycle(3), tmp_path / "chain.npz")
    for name in ("text.npz", "chain.npz"):
        with pytest.raises(db.InvalidData, match=rf"{name} is not a saved result.*result\.save"):
            db.load(tmp_path / name)


def test_the_names_of_the_contract():
    X, Y = dense_pair()
    r = db.distance(X, Y, cost="reward", discount=0.95, solver="exact", tol=1e-8)
    assert r.lower <= r.value <= r.upper
    assert r.gap == r.upper - r.lower <= 1e-8 * r.problem.scale
    assert r.converged
    assert r.status.startswith("Converged")
    assert r.iterations == len(r.history)
    assert r.values.shape == r.occupancy.shape == r.encoder.shape == r.gradient.cost.shape == (5, 4)
    assert r.decoder.shape == (4, 5)
    assert r.plan(1, 2).shape == (5, 4)
    assert [p.shape for p in r.potentials(1, 2)] == [(5,), (4,)]
    assert r.duals.alpha_x.shape == (5, 5, 4)
    assert r.duals.alpha_y.shape == (5, 4, 4)
    assert r.gradient.transition_x.shape == (5, 5)
    assert r.gradient.transition_y.shape == r.implicit_reward().shape == (4, 4)
    assert r.gradient.initial_x.shape == (5,)
    assert r.gradient.initial_y.shape == (4,)
    assert float(r) == r.value
    assert "\n" not in repr(r)


def test_sparse_in_sparse_out():
    X, Y = chains()
    r = db.distance(X, Y)
    assert sparse.issparse(r.plan(0, 0))
    for side, chain in ((r.gradient.transition_x, X), (r.gradient.transition_y, Y)):
        assert sparse.issparse(side)
        np.testing.assert_array_equal(side.indices, chain.successors.indices)


def test_states_never_visited_are_named_and_get_their_nearest_partner():
    P = [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]  # state 2 is never reached
    X = db.MarkovChain(P, rewards=[0.0, 1.0, 5.0])
    Y = db.MarkovChain([[1.0]], rewards=[0.0])
    r = db.distance(X, Y)
    assert [side.tolist() for side in r.unvisited] == [[2], []]
    np.testing.assert_allclose(r.encoder, np.ones((3, 1)))
    assert np.isfinite(r.decoder).all()
    back = db.distance(Y, X)
    assert back.decoder[2].tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"solver": "simplex"}, "solver 'simplex' is unknown; choose one of 'exact', 'lp'"),
        ({"solver": 3}, "solver is a int; give a name"),
        ({"discount": 1.0}, "discount is 1.0; it must lie strictly between 0 and 1"),
        ({"discount": -0.5}, "discount is -0.5"),
        ({"discount": float("nan")}, "discount is nan"),
        ({"tol": 0.0}, "tol is 0.0; it must be positive"),
        ({"solver": Exact(), "tol": -1.0}, "tol is -1.0"),
    ],
)
def test_impossible_options_are_named_with_their_remedy(arguments, message):
    X, Y = dense_pair()
    with pytest.raises(db.InvalidArgument, match=message):
        db.distance(X, Y, **arguments)


def test_lists_must_be_wrapped_square_arrays_need_not():
    with pytest.raises(db.InvalidArgument, match=r"Y is a list, not a MarkovChain: wrap the matrix"):
        db.distance(dense_pair()[0], np.eye(2).tolist())
    assert db.distance(np.eye(2), db.MarkovChain(np.eye(2), initial=1), "indicator").value == pytest.approx(1)


def test_pairs_that_do_not_exist():
    r = db.distance(*dense_pair())
    with pytest.raises(db.InvalidArgument, match="y = 4 is not a state: give an index from 0 to 3"):
        r.plan(0, 4)
    with pytest.raises(db.InvalidArgument, match="x = -1 is not a state"):
        r.potentials(-1, 0)


def test_pairs_that_were_not_solved_say_so():
    X = db.MarkovChain(np.eye(3), rewards=[0.0, 1.0, 2.0])
    r = db.distance(X, X, solver=Exact(reachable=True))
    assert np.isnan(r.values).sum() == 8
    with pytest.raises(db.InvalidArgument, match=r"pair \(1, 1\) cannot be reached from the starts"):
        r.plan(1, 1)
    with pytest.raises(db.InvalidArgument, match="use reachable=False"):
        r.implicit_reward()


def test_duals_too_large_for_memory_are_refused():
    n = 2000
    X = db.MarkovChain(sparse.eye_array(n), rewards=np.arange(n) % 2)
    r = db.distance(X, X, solver=Exact(reachable=True))
    with pytest.raises(db.InvalidArgument, match=r"would take 64 GB; use result\.potentials"):
        _ = r.duals


def test_warm_and_lump_do_not_go_together():
    X, Y = dense_pair()
    with pytest.raises(db.InvalidArgument, match="warm and lump cannot be combined"):
        db.distance(X, Y, lump=True, warm=db.distance(X, Y))


@pytest.mark.parametrize("chains", [[], [db.examples.cycle(3), 4]])
def test_pairwise_needs_chains(chains):
    with pytest.raises(db.InvalidArgument, match=r"chains is empty|chains\[1\] is a int"):
        db.pairwise(chains)


def test_pairwise_reports_progress_and_equals_single_distances():
    rng = np.random.default_rng(0)
    many = [db.examples.random_chain(n, rng) for n in (1, 2, 3, 5)]
    seen = []
    D = db.pairwise(many, discount=0.8, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (6, 6)
    expected = [[db.distance(a, b, discount=0.8).value for b in many] for a in many]
    np.testing.assert_allclose(D, expected, atol=2e-8)  # each is certified to 1e-8


def test_pairwise_with_an_asymmetric_cost_fills_both_halves():
    many = [db.MarkovChain([[1.0]], rewards=[r]) for r in (0.0, 1.0, 3.0)]

    def overshoot(X, Y):
        return np.maximum(np.subtract.outer(X.rewards, Y.rewards), 0.0)

    np.testing.assert_allclose(db.pairwise(many, overshoot), [[0, 0, 0], [1, 0, 0], [3, 2, 0]], atol=1e-12)
