"""Files of every format: how the format is chosen, how they are written; and archives, which hold everything."""

import os
import re
import stat

import numpy as np
import pytest

from chain_files import file, random_chain, refused
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.io.chains import read_chain, write_chain
from diffbisim.processes.chain import MarkovChain
from oracles.kernels import dense

# --- the door -----------------------------------------------------------------------------------------------


def test_the_format_can_be_said(tmp_path):
    chain = random_chain(4)
    for kind in ("csv", "npz", "prism"):
        write_chain(chain, tmp_path / "chain.dat", format=kind)
        assert np.array_equal(dense(read_chain(tmp_path / "chain.dat", format=kind)), dense(chain))
    with pytest.raises(InvalidArgument, match=re.escape("the extension is unknown; use .csv, .tsv, .npz or .tra")):
        read_chain(tmp_path / "chain.dat")
    with pytest.raises(InvalidArgument, match=r"format is 'xml'; use .csv, .tsv, .npz or .tra, or format="):
        write_chain(chain, tmp_path / "c.npz", format="xml")
    with pytest.raises(FileNotFoundError):
        read_chain(tmp_path / "missing.csv")
    assert read_chain(str(tmp_path / "chain.dat"), format="prism").n_states == 7


@pytest.mark.parametrize("name", ["c.csv", "c.npz", "c.tra"])
def test_a_failed_write_leaves_the_old_file(tmp_path, name, monkeypatch):
    write_chain(random_chain(5), tmp_path / name)
    before, names = (tmp_path / name).read_bytes(), sorted(os.listdir(tmp_path))

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_chain(random_chain(6), tmp_path / name)
    assert (tmp_path / name).read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == names


def test_written_files_have_ordinary_permissions(tmp_path):
    (tmp_path / "plain").touch()
    write_chain(random_chain(7), tmp_path / "c.npz")
    mode = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "c.npz").stat().st_mode) == mode


# --- npz ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_npz_holds_everything_exactly(tmp_path, sparse, full):
    names = ["a", 1, 1.5, "None", ("x", (2, -0.5)), False, "ü"]
    options = {"initial": np.full(7, 1 / 7), "rewards": np.linspace(-1, 1, 7), "names": names} if full else {}
    chain = random_chain(0, sparse=sparse, **options)
    write_chain(chain, tmp_path / "chain.npz")
    back = read_chain(tmp_path / "chain.npz")
    assert back.is_sparse == sparse
    assert np.array_equal(dense(back), dense(chain))
    assert np.array_equal(back.initial, chain.initial)
    assert (back.rewards is None) if not full else np.array_equal(back.rewards, chain.rewards)
    assert back.names == chain.names
    assert [type(name) for name in back.names or ()] == [type(name) for name in chain.names or ()]


def test_npz_keeps_the_smallest_probabilities_and_odd_names(tmp_path):
    chain = MarkovChain([[1.0, 1e-300], [0.0, 1.0]], names=[float("inf"), 0.1])
    write_chain(chain, tmp_path / "c.npz")
    back = read_chain(tmp_path / "c.npz")
    assert back.transition[0, 1] == 1e-300
    assert back.names == (float("inf"), 0.1)


def test_archives_with_the_older_word_for_names_are_read(tmp_path):
    chain = MarkovChain(np.eye(2), names=["a", ("b", 1.5)])
    write_chain(chain, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as held:
        arrays = {"labels" if name == "names" else name: np.array(part) for name, part in held.items()}
    np.savez(tmp_path / "older.npz", **arrays)
    assert read_chain(tmp_path / "older.npz").names == chain.names


def test_npz_overrides(tmp_path):
    write_chain(random_chain(1), tmp_path / "c.npz")
    back = read_chain(tmp_path / "c.npz", initial=3, rewards=np.arange(7))
    assert back.initial[3] == 1
    assert np.array_equal(back.rewards, np.arange(7))


def test_npz_refuses_names_it_cannot_hold(tmp_path):
    chain = MarkovChain(np.eye(2), names=["a", frozenset({1})])
    with pytest.raises(
        InvalidData, match=re.escape("name frozenset({1}) is a frozenset; .npz files support names of type")
    ):
        write_chain(chain, tmp_path / "c.npz")
    assert os.listdir(tmp_path) == []


def test_npz_never_unpickles(tmp_path):
    np.savez(tmp_path / "c.npz", transition=np.array([[{}]], dtype=object), initial=np.ones(1))
    refused(tmp_path / "c.npz", "is not a chain archive", "allow_pickle=False")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"transition": np.eye(2)}, "has no array 'initial'; is this the right file?"),
        ({"initial": np.eye(2)[0]}, "has no array 'transition'"),
        ({"transition": np.eye(2) * 0.5, "initial": np.eye(2)[0]}, "transition: row 0 sums to 0.5"),
        (
            {"data": [1.0, 1.0], "indices": [0, 9], "indptr": [0, 1, 2], "initial": [1.0, 0.0]},
            "data, indices and indptr are not a CSR matrix",
        ),
        (
            {"transition": np.eye(2), "initial": [1.0, 0.0], "names": np.frombuffer(b"[1", np.uint8)},
            "the JSON in 'names' is damaged (",
        ),
        ({"diffbisim": 99}, "was written by a newer diffbisim; update diffbisim"),
    ],
)
def test_broken_archives(tmp_path, parts, message):
    np.savez(tmp_path / "c.npz", **parts)
    refused(tmp_path / "c.npz", message)


def test_files_that_are_no_archives(tmp_path):
    refused(file(tmp_path, "text.npz", "hello"), "is not a chain archive", "write it with write_chain")
    np.save(tmp_path / "array.npy", np.eye(2))
    os.rename(tmp_path / "array.npy", tmp_path / "array.npz")
    refused(tmp_path / "array.npz", "is not a chain archive")
