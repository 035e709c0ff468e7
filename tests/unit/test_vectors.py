"""Vectors seen of a state: one concept for cost, lumping, compression, models and files."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.explicit import ExplicitModel
from diffbisim.io.tables import read_rewards


def chains():
    rng = np.random.default_rng(0)
    return [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random((n, 2))) for n in (5, 4)]


def test_the_cost_is_euclidean_by_either_name():
    X, Y = chains()
    table = np.linalg.norm(X.rewards[:, None] - Y.rewards, axis=2)
    known = db.distance(X, Y, table).value
    for cost in ("reward", "euclidean"):
        assert db.distance(X, Y, cost).value == pytest.approx(known, abs=1e-9)
    assert db.pairwise([X, Y], "euclidean")[0, 1] == pytest.approx(known, abs=1e-9)
    squared = db.distance(X, Y, table**2).value
    assert db.distance(X, Y, "squared").value == pytest.approx(squared, abs=1e-9)


def test_one_column_is_the_same_as_numbers():
    X, Y = (db.examples.random_chain(4, seed) for seed in (0, 1))
    column = [db.MarkovChain(c.transition, rewards=c.rewards[:, None]) for c in (X, Y)]
    assert db.distance(*column).value == pytest.approx(db.distance(X, Y).value, abs=1e-9)


def test_lumping_keeps_apart_what_one_number_would_merge():
    """A cycle of four that shows (0,0), (0,1), (0,0), (0,1): two classes; by its first number alone one."""
    P, seen = np.roll(np.eye(4), 1, axis=1), [[0, 0], [0, 1], [0, 0], [0, 1]]
    found = db.lump(db.MarkovChain(P, rewards=seen))
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.chain.rewards.tolist() == [[0, 0], [0, 1]]
    assert db.lump(db.MarkovChain(P, rewards=np.array(seen)[:, 0])).n_states == 1


@pytest.mark.parametrize("model", ["nearest", "aggregate"])
def test_compression_finds_the_states_that_look_and_move_alike(model):
    """Two copies of each state of a small chain: the small chain is the nearest, at distance zero."""
    small = chains()[1]
    P = np.kron(small.transition, np.full((2, 2), 0.5))
    X = db.MarkovChain(P, rewards=np.repeat(small.rewards, 2, axis=0))
    found = db.compress(X, n_states=4, rng=0, restarts=2, model=model)
    assert found.distance.upper <= 1e-6
    assert (np.diff(found.labels.reshape(4, 2)) == 0).all()
    again = db.aggregate(X, np.repeat(range(4), 2))
    assert again.distance.upper <= 1e-6
    assert np.allclose(again.chain.rewards, small.rewards)


def test_sizes_of_a_sweep_start_from_smaller_ones():
    """Two copies of each of four states: four small states are enough, and no fewer."""
    small = chains()[1]
    X = db.MarkovChain(np.kron(small.transition, np.full((2, 2), 0.5)), rewards=np.repeat(small.rewards, 2, axis=0))
    found = db.compress_sweep(X, [2, 3, 4], rng=0, restarts=1)
    assert [result.distance.upper <= 1e-6 for result in found.results] == [False, False, True]


@pytest.mark.parametrize("d", [1, 2, 3])
def test_compression_to_other_rates_tells_so(d):
    """Four states in a row, two small ones: the remark on the rates averages rows over classes, by occupancy."""
    P = np.array([[0.97, 0.03, 0, 0], [0.03, 0.95, 0.02, 0], [0, 0.02, 0.95, 0.03], [0, 0, 0.03, 0.97]])
    X = db.MarkovChain(P, initial=[0.25] * 4, rewards=np.outer(range(4), np.ones(d)))
    with pytest.warns(UserWarning, match="The slowest timescale of the small chain"):
        found = db.compress(X, n_states=2, rng=0, restarts=1)
    classes = np.eye(2)[found.labels]
    share = classes * X.occupancy(0.95)[:, None]
    assert np.allclose(found.averaged.transition, (share.T @ P @ classes) / share.sum(axis=0)[:, None], atol=1e-9)
    assert np.array_equal(found.averaged.rewards, found.chain.rewards)
    assert db.distance(X, found.chain).value == pytest.approx(found.distance.value, abs=1e-6)


def test_files_hold_them(tmp_path):
    X, _ = chains()
    db.write_chain(X, tmp_path / "x.npz")
    assert np.array_equal(db.read_chain(tmp_path / "x.npz").rewards, X.rewards)
    rows = "\n".join(f"{i},{a!r},{b!r}" for i, (a, b) in enumerate(X.rewards.tolist()))
    (tmp_path / "seen.csv").write_text(f"state,x,y\n{rows}\n")
    again = db.MarkovChain(X.transition, rewards=read_rewards(tmp_path / "seen.csv"))
    assert np.array_equal(again.rewards, X.rewards)
    with pytest.raises(db.InvalidData, match=r"write \.npz instead"):
        db.write_chain(X, tmp_path / "x.tra")


def test_propositions_and_rewards_of_a_model_by_their_names():
    owner = np.arange(3)
    model = ExplicitModel(
        "model", 3, owner, owner, np.array([1, 2, 2]), np.ones(3), rewards={"steps": np.array([1.0, 1, 0])},
        propositions={"init": np.array([0]), "done": np.array([2])}, actions=["go", "go", "stay"],  # names of no choice
    )  # fmt: skip
    chain = db.as_chain(model, rewards=["done", "steps"])
    assert chain.rewards.tolist() == [[0, 1], [0, 1], [1, 0]]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(db.InvalidChain, match=r"rewards has shape \(3, 2\); expected \(2, 2\)"):
        db.MarkovChain(np.eye(2), rewards=np.zeros((3, 2)))
    with pytest.raises(db.InvalidChain, match="rewards"):
        db.MarkovChain(np.eye(2), rewards=[[1, 2], [3]])
