"""Tables: edges, transitions and trajectories come back; broken lines are named."""

import os
import re

import numpy as np
import pytest

from chain_files import file, random_chain, refused
from diffbisim.common.errors import InvalidChain, InvalidData
from diffbisim.io.chains import read_chain, write_chain
from diffbisim.processes.chain import MarkovChain
from oracles.kernels import dense


@pytest.mark.parametrize("name", ["c.csv", "c.tsv"])
@pytest.mark.parametrize("names", [None, ["a", "b,c", 'd"e', "f\tg", "h i", "jk", "ü"]])
@pytest.mark.parametrize("sparse", [False, True])
def test_edges_come_back(tmp_path, name, names, sparse):
    chain = random_chain(2, sparse=sparse, names=names)
    write_chain(chain, tmp_path / name)
    back = read_chain(tmp_path / name)
    order = range(7) if names is None else [back.index(name) for name in names]
    assert np.array_equal(dense(back)[np.ix_(order, order)], dense(chain))
    assert back.names == (None if names is None else tuple(sorted(names)))


def test_a_table_of_edges_is_what_it_says(tmp_path):
    write_chain(MarkovChain([[0.25, 0.75], [1.0, 0.0]]), tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text() == "from,to,probability\n0,0,0.25\n0,1,0.75\n1,0,1.0\n"


def test_edges_of_a_foreign_table(tmp_path):
    text = '\ufeffTo,From,Probability\r\n\r\nrain, sun ,0.333333\r\nsun,sun ,0.666667\r\nsun,"rain",1e0\r\n'
    chain = read_chain(file(tmp_path, "c.csv", text.replace(" ,", ",")), rewards={"sun": 1, "rain": 0}, initial="sun")
    assert chain.names == ("rain", "sun")
    assert dense(chain) == pytest.approx(np.array([[0, 1], [1 / 3, 2 / 3]]), abs=1e-6)
    assert dense(chain).sum(axis=1) == pytest.approx(1, abs=1e-15)
    assert np.array_equal(chain.initial, [0, 1])
    assert np.array_equal(chain.rewards, [0, 1])


def test_transitions_with_and_without_weights(tmp_path):
    chain = read_chain(file(tmp_path, "c.csv", "state,next_state\n0,1\n0,0\n1,0\n0,1\n0,1\n"))
    assert np.array_equal(dense(chain), [[0.25, 0.75], [1, 0]])
    chain = read_chain(file(tmp_path, "w.csv", "state,next_state,weight\na,b,3\na,a,1\nb,a,0.5\n"))
    assert np.array_equal(dense(chain), [[0.25, 0.75], [1, 0]])
    assert chain.names == ("a", "b")


def test_trajectories_in_any_order(tmp_path):
    rows = ["e1,0,a", "e2,5,b", "e1,2,a", "e2,6,a", "e1,1,b", "e3,0,b"]
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 0, 4, 1, 5, 3]):
        text = "episode,t,state\n" + "\n".join(rows[k] for k in order)
        chain = read_chain(file(tmp_path, "c.csv", text))  # e1: a b a; e2: b a; e3: b
        assert np.array_equal(dense(chain), [[0, 1], [1, 0]])
        assert chain.initial == pytest.approx([1 / 3, 2 / 3])
    chain = read_chain(file(tmp_path, "n.csv", "t\tstate\tepisode\n1\t0\tx\n0\t1\tx\n2\t1\tx\n"))
    assert np.array_equal(dense(chain), [[0, 1], [1, 0]])
    assert np.array_equal(chain.initial, [0, 1])
    assert chain.names is None


def test_names_that_look_like_numbers(tmp_path):
    # int("1_0") is 10 in Python: here it is a name
    chain = read_chain(file(tmp_path, "c.csv", "state,next_state\n1_0,2_0\n2_0,1_0\n"))
    assert chain.names == ("1_0", "2_0")
    chain = read_chain(file(tmp_path, "n.csv", "state,next_state\n-1,0\n0,-1\n"))
    assert chain.names == (-1, 0)


def test_unseen_states_of_a_file(tmp_path):
    path = file(tmp_path, "c.csv", "state,next_state\n0,1\n1,2\n2,0\n1,4\n")
    refused(path, "2 of 5 states have no outgoing transition: 3, 4")
    assert read_chain(path, unseen="self-loop").n_states == 5
    assert read_chain(path, unseen="drop").names == (0, 1, 2)
    edges = file(tmp_path, "e.csv", "from,to,probability\na,b,1\n")
    refused(edges, "1 of 2 states have no outgoing transition: 'b'")
    assert np.array_equal(dense(read_chain(edges, unseen="self-loop")), [[0, 1], [0, 1]])
    with pytest.raises(InvalidChain, match=re.escape(f"{edges}: initial = 'z' is not a state")):
        read_chain(edges, unseen="self-loop", initial="z")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["line 1: the file is empty; it needs a header line"]),
        ("from,to,probability\n", ["line 1: 'from,to,probability': no rows follow the header"]),
        (
            "a,b\n1,2\n",
            ["line 1: 'a,b': the header must be from,to,probability or state,next_state[,weight] or"],
        ),
        ("from,to,probability,color\n0,0,1,red\n", ["line 1", "the header must be"]),
        ("state,state\n0,0\n", ["line 1: 'state,state': two columns have the same name"]),
        (
            "from,to,probability\n0,0,1\n\n0,1\n",
            ["line 4: '0,1': expected 3 fields (from, to, probability), found 2"],
        ),
        ("from,to,probability\n0,0,half\n", ["line 2: '0,0,half': probability must be a number"]),
        ("from,to,probability\n0,0,1/0\n", ["line 2: '0,0,1/0': probability must be a number"]),
        (
            "from,to,probability\n0,0,1.5\n0,1,-0.5\n",
            ["line 3: '0,1,-0.5': probability must be a finite number, at"],
        ),
        ("from,to,probability\n0,0,nan\n", ["line 2: '0,0,nan': probability must be a finite number"]),
        ("from,to,probability\na,,1\n", ["line 2: 'a,,1': to is empty; name the state"]),
        ("from,to,probability\n0,0,0.5\n0,0,0.5\n", ["line 3: '0,0,0.5': repeats the transition of line 2"]),
        (
            "from,to,probability\na,a,1\nb,a,0.5\nb,b,0.4\n",
            ["line 3: 'b,a,0.5': the probabilities out of state 'b' sum to 0.9; they must sum to one"],
        ),
        (
            "state,next_state,weight\n0,0,-1\n",
            ["line 2: '0,0,-1': weight must be a finite number, at least 0"],
        ),
        ("state,next_state,weight\n0,0,0\n", ["every transition out of state 0 has weight 0"]),
        ("episode,t,state\na,0,x\na,1.5,x\n", ["line 3: 'a,1.5,x': t must be an integer"]),
        (
            "episode,t,state\na,0,x\na,1,x\na,3,x\n",
            ["line 4: 'a,3,x': t = 3 leaves a gap after t = 1 of line 3; t must be consecutive"],
        ),
        ("episode,t,state\na,0,x\nb,0,x\na,0,y\n", ["line 4: 'a,0,y': t = 0 repeats t = 0 of line 2"]),
        ('from,to,probability\n"a\nb",c,1\nc,c\n', ["line 4: 'c,c': expected 3 fields"]),
    ],
)
def test_broken_tables_are_named_by_line(tmp_path, text, parts):
    refused(file(tmp_path, "c.csv", text), *parts)


def test_fractions_are_understood(tmp_path):
    chain = read_chain(file(tmp_path, "c.csv", "from,to,probability\n0,0,1/3\n0,1,2/3\n1,0,1\n"))
    assert dense(chain) == pytest.approx(np.array([[1 / 3, 2 / 3], [1, 0]]), abs=1e-15)


def test_a_table_must_be_text(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes(b"from,to,probability\n\xff\xfe,0,1\n")
    refused(path, "is not UTF-8 text", "save it as UTF-8")


@pytest.mark.parametrize("names", [[("a",), "b"], ["1", "2"], ["a", 1], ["", "b"], [" a", "b"], [True, False]])
def test_names_a_table_would_not_give_back_are_refused(tmp_path, names):
    with pytest.raises(InvalidData, match=r"name .* cannot be stored in a table .* write .npz instead"):
        write_chain(MarkovChain(np.eye(2), names=names), tmp_path / "c.csv")
    assert os.listdir(tmp_path) == []
