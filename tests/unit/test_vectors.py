"""Vectors seen of a state: one concept for cost, lumping, compression, models and files."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.io.tables import read_rewards
from diffbisim.processes.explicit import ExplicitModel


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
    assert found.assignment.tolist() == [0, 1, 0, 1]
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
    assert (np.diff(found.assignment.reshape(4, 2)) == 0).all()
    again = db.aggregate(X, np.repeat(range(4), 2))
    assert again.distance.upper <= 1e-6
    assert np.allclose(again.chain.rewards, small.rewards)


def _on_a_line(seed):
    """A random chain with numbers, and the same numbers on a line in the plane."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 12))
    P, initial, r = rng.dirichlet(np.full(n, 0.3), n), rng.dirichlet(np.ones(n)), rng.exponential(size=n) ** 2
    return [db.MarkovChain(P, initial=initial, rewards=x) for x in (r, r[:, None], np.outer(r, [0.6, 0.8]))]


@pytest.mark.filterwarnings("ignore:The (small chain|slowest)")
@pytest.mark.parametrize("model", ["nearest", "aggregate"])
@pytest.mark.parametrize("seed", range(3))
def test_compression_on_a_line_is_that_of_numbers(seed, model):
    """Euclidean distances on a line are those of the numbers, and a small vector off the line is farther from all."""
    numbers, column, line = _on_a_line(seed)
    known, same, near = (db.compress(X, 3, restarts=2, model=model) for X in (numbers, column, line))
    assert same.distance.value == known.distance.value
    assert np.array_equal(same.chain.rewards, known.chain.rewards[:, None])
    assert near.distance.value <= 1.01 * known.distance.value
    assert db.distance(line, near.chain).value == pytest.approx(near.distance.value, abs=1e-6)


@pytest.mark.filterwarnings("ignore:The (small chain|slowest)")
def test_compression_is_no_farther_than_its_starts():
    """Oracle: the distance of the start, with vectors of its own. They are kept, or moved if that is nearer."""
    X = chains()[0]
    start = db.compress(X, 2, restarts=6, rng=1).chain
    limit = db.distance(X, start).value + 1e-7
    for options in ({"max_iterations": 0}, {}, {"model": "aggregate"}):
        assert db.compress(X, 2, restarts=1, starts=[start], **options).distance.value <= limit


@pytest.mark.parametrize("d", [1, 2, 3])
def test_geometric_medians_minimize(d):
    """Oracle: a minimizer of scipy, from the best of the vectors; half of the cases have the median at a vector."""
    from scipy.optimize import minimize

    from diffbisim.reduction.compression.starts import geometric_median

    rng = np.random.default_rng(d)
    for n in (1, 2, 3, 5, 8, 20):
        v, w = rng.normal(size=(n, d)), rng.exponential(size=n) ** 2

        def cost(y, v=v, w=w):
            return w @ np.linalg.norm(v - y, axis=1)

        first = min(v, key=cost)
        known = min(cost(first), minimize(cost, v.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-10}).fun)
        assert cost(geometric_median(v, w)) <= known * (1 + 1e-9)


def test_aggregation_weights_its_vectors():
    """Weights decide which of two vectors represents a class; means ignored them."""
    X = db.MarkovChain(np.eye(3), rewards=[[0, 0], [2, 4], [5, 5]])
    for weights, known in (([3, 1, 1], [0, 0]), ([1, 3, 1], [2, 4])):
        assert db.aggregate(X, [0, 0, 1], weights=weights).chain.rewards.tolist() == [known, [5, 5]]


def test_vectors_have_no_even_spread():
    with pytest.raises(db.InvalidArgument, match="rewards is 'spread', but the rewards are vectors"):
        db.compress(chains()[0], 2, rewards="spread")


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
    classes = np.eye(2)[found.assignment]
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
