"""Timed chains and abstractions on disk: they come back whole, and what an enemy wrote is refused by name."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.io import limits

KERNELS = [np.array([[0.25, 0.75]]), sp.csr_array([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]), np.full((3, 2), 0.5)]
NAMES = [["a"], ["b", ("c", 1.5)], [1, 2, "d"], ["e", "f"]]

TIMED = {
    "bare": db.TimedChain(KERNELS),
    "rewards and names": db.TimedChain(KERNELS, rewards=[[0], [1, 2], [3, 4, 5], [6, 7]], names=NAMES),
    "features": db.TimedChain(KERNELS, rewards=[np.arange(2.0 * n).reshape(n, 2) for n in (1, 2, 3, 2)]),
    "a start": db.TimedChain([np.eye(2)] * 3, initial=[0.25, 0.75], rewards=[0.5, 1.0]),
    "one step": db.TimedChain([np.eye(2)]),
}


@pytest.mark.parametrize("name", list(TIMED))
def test_a_timed_chain_comes_back_whole(name, tmp_path):
    chain, path = TIMED[name], tmp_path / "chain.npz"
    db.write_chain(chain, path)
    again = db.load(path)
    assert repr(again) == repr(chain)
    assert again.names == chain.names
    assert np.array_equal(again.initial, chain.initial)
    for P, Q in zip(chain.transitions, again.transitions, strict=True):
        assert type(P) is type(Q)
        assert np.array_equal(sp.csr_array(P).toarray(), sp.csr_array(Q).toarray())
    for one, other in zip(chain.rewards or (), again.rewards or (), strict=True):
        assert np.array_equal(one, other)


def test_where_a_timed_chain_does_not_belong(tmp_path):
    chain = TIMED["bare"]
    with pytest.raises(db.InvalidArgument, match=r"only be written as \.npz"):
        db.write_chain(chain, tmp_path / "chain.csv")
    db.write_chain(chain, tmp_path / "chain.npz")
    with pytest.raises(db.InvalidData, match=r"contains a TimedChain.*diffbisim\.load"):
        db.read_chain(tmp_path / "chain.npz")


def other(**arrays):
    return lambda held: held.update({name: np.array(value) for name, value in arrays.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other(sizes=[1, 2, 3]), "array 'counts' is int64"),
        (other(sizes=[1.0, 2.0, 3.0, 2.0]), "expected int64"),
        (other(sizes=[1, 2, 3, -2]), "not between 1 and"),
        (other(sizes=[1, 2, 3, limits.STATES + 1]), "not between 1 and"),
        (other(counts=[2, 2, 1, 2, 2, 1]), "expected int64 of shape"),
        (other(counts=[2, 2, 1, 2, 3, 1]), "sums to"),
        (other(indices=[0, 1, 0, 2, 1, 0, 1, 0, 1, 0, 9]), "refers to a state that does not exist at time 3"),
        (other(data=np.full(11, np.nan)), "nan"),
        (other(data=np.full(11, 0.7)), "sums to"),
        (other(sparse=[False, True]), "expected bool of shape"),
        (other(initial=[0.5, 0.5]), "initial"),
        (other(rewards=[1.0, 2.0]), "rewards"),
        (other(names=np.frombuffer(b'["a"]', np.uint8)), "names has 1 entries for 8 states"),
        (other(diffbisim=9), "newer diffbisim"),
        (lambda held: held.pop("initial"), "no array 'initial'"),
        (lambda held: held.pop("counts"), "no array 'counts'"),
    ],
)
def test_a_timed_chain_that_lies(change, message, tmp_path):
    path = tmp_path / "chain.npz"
    db.write_chain(TIMED["bare"], path)
    with np.load(path) as file:
        arrays = {name: np.array(part) for name, part in file.items()}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(db.InvalidData, match=f"{path.name}.*({message})"):
        db.load(path)


def test_few_bytes_do_not_become_a_dense_kernel_of_gigabytes(tmp_path):
    """One state that leads to one of many, and these to one state each."""
    n, path = 10**5, tmp_path / "chain.npz"
    ones = np.ones(n + 1, dtype=np.int64)
    np.savez(
        path, sizes=np.array([1, n, n]), sparse=np.array([False, False]), counts=ones, indices=np.zeros_like(ones),
        data=ones.astype(float), initial=np.ones(1),
    )  # fmt: skip
    with pytest.raises(db.InvalidData, match="far larger than the file"):
        db.load(path)


# --- abstractions ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    mdp = db.MDP(rng.dirichlet(np.full(10, 0.3), (2, 10)), rewards=rng.random((10, 2)), actions=["left", "right"])
    return db.abstract(mdp, n_states=4, discount=0.9, restarts=2, features=rng.random((10, 2)))


def test_an_abstraction_comes_back_whole(found, tmp_path):
    found.save(tmp_path / "a.npz")
    again = db.load(tmp_path / "a.npz")
    assert repr(again) == repr(found)
    assert np.array_equal(again.assignment, found.assignment)
    assert again.summary == found.summary
    assert again.family_bound == found.family_bound
    assert np.array_equal(again.lookahead_policy, found.lookahead_policy)
    assert [row[:-1] for row in again.candidates] == [row[:-1] for row in found.candidates]
    assert all(
        np.array_equal(a.assignment, b.assignment) for a, b in zip(again.candidates, found.candidates, strict=True)
    )
    assert pickle.loads(pickle.dumps(again)).loss == found.loss


def renamed(path, **names):
    """Write the archive again, with other names of its arrays."""
    with np.load(path) as held:
        arrays = {names.get(name, name): np.array(part) for name, part in held.items()}
    np.savez(path, **arrays)


def test_an_older_timed_chain_is_read(tmp_path):
    path = tmp_path / "chain.npz"
    db.write_chain(TIMED["rewards and names"], path)
    renamed(path, names="labels")
    assert db.load(path).names == TIMED["rewards and names"].names


def test_an_older_abstraction_is_read(tmp_path):
    mdp = db.MDP([np.eye(2), [[0, 1], [1, 0]]], rewards=[0, 1], names="ab")
    found, path = db.abstract(mdp, assignment=["u", "u"]), tmp_path / "a.npz"
    found.save(path)
    with np.load(path) as held:
        meta = json.loads(bytes(held["abstraction"]))
        arrays = {name: np.array(part) for name, part in held.items()}
    meta["method"] = meta["candidates"][0]["method"] = "labels"
    arrays["abstraction"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(path, **arrays)
    renamed(path, assignment="labels", **{"ground.names": "ground.labels"})
    again = db.load(path)
    assert (again.method, again.candidates[0].method, again.ground.names) == ("assignment", "assignment", ("a", "b"))
    assert np.array_equal(again.assignment, found.assignment)


def told(**entries):
    """Other JSON."""

    def change(held):
        meta = json.loads(bytes(held["abstraction"])) | entries
        held["abstraction"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (told(discount=1.0), "discount"),
        (told(method=7), "method is 7"),
        (told(complete="yes"), "complete is 'yes'"),
        (told(candidates=[{}]), "expected int64 of shape"),
        (told(candidates="none"), "candidates is 'none'"),
        (told(**{"diffbisim-abstraction": 2}), "newer diffbisim"),
        (lambda held: held["assignment"].__setitem__(0, 3), "first appearance"),
        (lambda held: held["assignment"].__setitem__(0, 10**9), "not between 0 and"),
        (lambda held: held["features"].__imul__(2.0), "the first feature is not the reward"),
        (lambda held: held["features"].__setitem__((0, 0, 1), np.inf), "inf"),
        (lambda held: held["candidates"].__setitem__((0, 0), -1), "not between 0 and"),
        (lambda held: held.pop("ground.rewards"), "rewards"),
        (lambda held: held.pop("features"), "features"),
        (lambda held: held["ground.transition"].__imul__(2.0), "sums to 2"),
    ],
)
def test_an_abstraction_that_lies(found, change, message, tmp_path):
    path = tmp_path / "a.npz"
    found.save(path)
    with np.load(path) as file:
        arrays = {name: np.array(part) for name, part in file.items()}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(db.InvalidData, match=f"(?s){path.name}.*{message}"):
        db.load(path)
