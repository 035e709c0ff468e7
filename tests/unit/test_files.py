"""Files: what is written comes back, foreign files are read as their manuals say, broken ones are named."""

import os
import re
import stat

import numpy as np
import pytest
import scipy.sparse as sp

from diffbisim.chain import MarkovChain
from diffbisim.data import read_chain, read_mdp, write_chain
from diffbisim.data.prism import read_prism_labels, read_prism_rewards
from diffbisim.errors import InvalidArgument, InvalidChain, InvalidData


def dense(chain):
    return chain.transition.toarray() if chain.is_sparse else chain.transition


def file(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def random_chain(seed, n=7, sparse=False, **options):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(n, 0.3), size=n)
    P[P < 0.02] = 0
    P /= P.sum(axis=1, keepdims=True)
    return MarkovChain(sp.csr_array(P) if sparse else P, **options)


def refused(path, *parts, **options):
    """The message of the refusal, which names the file and holds every part."""
    with pytest.raises(InvalidData) as caught:
        read_chain(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    for part in parts:
        assert part in message


# --- npz ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_npz_holds_everything_exactly(tmp_path, sparse, full):
    labels = ["a", 1, 1.5, None, ("x", (2, -0.5)), False, "ü"]
    options = {"initial": np.full(7, 1 / 7), "rewards": np.linspace(-1, 1, 7), "labels": labels} if full else {}
    chain = random_chain(0, sparse=sparse, **options)
    write_chain(chain, tmp_path / "chain.npz")
    back = read_chain(tmp_path / "chain.npz")
    assert back.is_sparse == sparse
    assert np.array_equal(dense(back), dense(chain))
    assert np.array_equal(back.initial, chain.initial)
    assert (back.rewards is None) if not full else np.array_equal(back.rewards, chain.rewards)
    assert back.labels == chain.labels
    assert [type(label) for label in back.labels or ()] == [type(label) for label in chain.labels or ()]


def test_npz_keeps_the_smallest_probabilities_and_odd_labels(tmp_path):
    chain = MarkovChain([[1.0, 1e-300], [0.0, 1.0]], labels=[float("inf"), 0.1])
    write_chain(chain, tmp_path / "c.npz")
    back = read_chain(tmp_path / "c.npz")
    assert back.transition[0, 1] == 1e-300
    assert back.labels == (float("inf"), 0.1)


def test_npz_overrides(tmp_path):
    write_chain(random_chain(1), tmp_path / "c.npz")
    back = read_chain(tmp_path / "c.npz", initial=3, rewards=np.arange(7))
    assert back.initial[3] == 1
    assert np.array_equal(back.rewards, np.arange(7))


def test_npz_refuses_labels_it_cannot_hold(tmp_path):
    chain = MarkovChain(np.eye(2), labels=["a", frozenset({1})])
    with pytest.raises(InvalidData, match=re.escape("label frozenset({1}) is a frozenset; .npz files hold labels of")):
        write_chain(chain, tmp_path / "c.npz")
    assert os.listdir(tmp_path) == []


def test_npz_never_unpickles(tmp_path):
    np.savez(tmp_path / "c.npz", transition=np.array([[{}]], dtype=object), initial=np.ones(1))
    refused(tmp_path / "c.npz", "is not a chain archive", "allow_pickle=False")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"transition": np.eye(2)}, "has no array 'initial'; write it with write_chain"),
        ({"initial": np.eye(2)[0]}, "has no array 'indptr'"),
        ({"transition": np.eye(2) * 0.5, "initial": np.eye(2)[0]}, "transition: row 0 sums to 0.5"),
        (
            {"data": [1.0, 1.0], "indices": [0, 9], "indptr": [0, 1, 2], "initial": [1.0, 0.0]},
            "is damaged (",
        ),
        (
            {"transition": np.eye(2), "initial": [1.0, 0.0], "labels": np.frombuffer(b"[1", np.uint8)},
            "is damaged (",
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


# --- csv ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.csv", "c.tsv"])
@pytest.mark.parametrize("labels", [None, ["a", "b,c", 'd"e', "f\tg", "h i", "jk", "ü"]])
@pytest.mark.parametrize("sparse", [False, True])
def test_edges_come_back(tmp_path, name, labels, sparse):
    chain = random_chain(2, sparse=sparse, labels=labels)
    write_chain(chain, tmp_path / name)
    back = read_chain(tmp_path / name)
    order = range(7) if labels is None else [back.index(label) for label in labels]
    assert np.array_equal(dense(back)[np.ix_(order, order)], dense(chain))
    assert back.labels == (None if labels is None else tuple(sorted(labels)))


def test_a_table_of_edges_is_what_it_says(tmp_path):
    write_chain(MarkovChain([[0.25, 0.75], [1.0, 0.0]]), tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text() == "from,to,probability\n0,0,0.25\n0,1,0.75\n1,0,1.0\n"


def test_edges_of_a_foreign_table(tmp_path):
    text = '\ufeffTo,From,Probability\r\n\r\nrain, sun ,0.333333\r\nsun,sun ,0.666667\r\nsun,"rain",1e0\r\n'
    chain = read_chain(file(tmp_path, "c.csv", text.replace(" ,", ",")), rewards={"sun": 1, "rain": 0}, initial="sun")
    assert chain.labels == ("rain", "sun")
    assert dense(chain) == pytest.approx(np.array([[0, 1], [1 / 3, 2 / 3]]), abs=1e-6)
    assert dense(chain).sum(axis=1) == pytest.approx(1, abs=1e-15)
    assert np.array_equal(chain.initial, [0, 1])
    assert np.array_equal(chain.rewards, [0, 1])


def test_transitions_with_and_without_weights(tmp_path):
    chain = read_chain(file(tmp_path, "c.csv", "state,next_state\n0,1\n0,0\n1,0\n0,1\n0,1\n"))
    assert np.array_equal(dense(chain), [[0.25, 0.75], [1, 0]])
    chain = read_chain(file(tmp_path, "w.csv", "state,next_state,weight\na,b,3\na,a,1\nb,a,0.5\n"))
    assert np.array_equal(dense(chain), [[0.25, 0.75], [1, 0]])
    assert chain.labels == ("a", "b")


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
    assert chain.labels is None


def test_names_that_look_like_numbers(tmp_path):
    # int("1_0") is 10 in Python: here it is a name
    chain = read_chain(file(tmp_path, "c.csv", "state,next_state\n1_0,2_0\n2_0,1_0\n"))
    assert chain.labels == ("1_0", "2_0")
    chain = read_chain(file(tmp_path, "n.csv", "state,next_state\n-1,0\n0,-1\n"))
    assert chain.labels == (-1, 0)


def test_unseen_states_of_a_file(tmp_path):
    path = file(tmp_path, "c.csv", "state,next_state\n0,1\n1,2\n2,0\n1,4\n")
    refused(path, "2 of 5 states have no outgoing transition: 3, 4")
    assert read_chain(path, unseen="self-loop").n_states == 5
    assert read_chain(path, unseen="drop").labels == (0, 1, 2)
    edges = file(tmp_path, "e.csv", "from,to,probability\na,b,1\n")
    refused(edges, "1 of 2 states have no outgoing transition: 'b'")
    assert np.array_equal(dense(read_chain(edges, unseen="self-loop")), [[0, 1], [0, 1]])
    with pytest.raises(InvalidChain, match=re.escape(f"{edges}: initial = 'z' is no state")):
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


@pytest.mark.parametrize("labels", [[("a",), "b"], ["1", "2"], ["a", 1], ["", "b"], [" a", "b"], [True, False]])
def test_labels_a_table_would_not_give_back_are_refused(tmp_path, labels):
    with pytest.raises(InvalidData, match=r"label .* would not come back from a table .* write .npz instead"):
        write_chain(MarkovChain(np.eye(2), labels=labels), tmp_path / "c.csv")
    assert os.listdir(tmp_path) == []


# --- PRISM --------------------------------------------------------------------------------------------------

# The die of Knuth and Yao as PRISM exports it (manual, "Explicit Model Files": header "n m", lines "i j x").
DIE = """13 20
0 1 0.5
0 2 0.5
1 3 0.5
1 4 0.5
2 5 0.5
2 6 0.5
3 1 0.5
3 7 0.5
4 8 0.5
4 9 0.5
5 10 0.5
5 11 0.5
6 2 0.5
6 12 0.5
7 7 1
8 8 1
9 9 1
10 10 1
11 11 1
12 12 1
"""


def test_the_die_of_knuth_and_yao_is_fair(tmp_path):
    path = file(tmp_path, "die.tra", DIE)
    file(tmp_path, "die.lab", '0="init" 1="deadlock" 2="done"\n0: 0\n7: 2\n8: 2\n9: 2\n10: 2\n11: 2\n12: 2\n')
    file(
        tmp_path,
        "die.srew",
        '# Reward structure "value"\n# State rewards\n13 6\n7 1\n8 2\n9 3\n10 4\n11 5\n12 6\n',
    )
    chain = read_chain(path)
    assert (chain.n_states, chain.n_transitions) == (13, 20)
    law = chain.initial @ np.linalg.matrix_power(dense(chain), 200)
    assert law[7:] == pytest.approx(np.full(6, 1 / 6), abs=1e-15)
    assert law @ chain.rewards == pytest.approx(3.5)
    labels = read_prism_labels(tmp_path / "die.lab")
    assert {name: states.tolist() for name, states in labels.items()} == {
        "init": [0],
        "deadlock": [],
        "done": [7, 8, 9, 10, 11, 12],
    }


@pytest.mark.parametrize(
    "text",
    [
        "2 3\n0 0 0.25\n0 1 0.75\n1 0 1\n",
        "# Transitions (DTMC)\n\n2 3\n1 0 1 go\n0 1 3/4\n0 0 .25\n",  # comment, action, fraction, order
        "2 2 3\n0 0 0 0.25\n0 0 1 0.75\n1 0 0 1\n",  # an MDP with one choice per state
        "2 2 3\n0 0 0.25\n0 1 0.75\n1 0 1\n",
    ],
)
def test_headers_and_lines_of_transition_files(tmp_path, text):
    chain = read_chain(file(tmp_path, "c.tra", text))
    assert np.array_equal(dense(chain), [[0.25, 0.75], [1, 0]])
    assert np.array_equal(chain.initial, [1, 0])
    assert chain.rewards is None


@pytest.mark.parametrize("suffix", [".srew", ".rews", ".rew"])
def test_neighbors_are_read_and_can_be_overridden(tmp_path, suffix):
    path = file(tmp_path, "m.tra", "3 3\n0 1 1\n1 2 1\n2 0 1\n")
    file(tmp_path, "m.lab", '0="init" 1="goal"\n1: 0 1\n2: 0\n')
    file(tmp_path, f"m{suffix}", "3 1\n2 -1.5\n")
    chain = read_chain(path)
    assert np.array_equal(chain.initial, [0, 0.5, 0.5])  # PRISM: an equiprobable choice over the initial states
    assert np.array_equal(chain.rewards, [0, 0, -1.5])
    assert np.array_equal(read_prism_rewards(tmp_path / f"m{suffix}"), [0, 0, -1.5])
    chain = read_chain(path, initial=0, rewards=[1, 2, 3])
    assert np.array_equal(chain.initial, [1, 0, 0])
    assert np.array_equal(chain.rewards, [1, 2, 3])


def test_without_an_initial_label_the_start_is_zero(tmp_path):
    path = file(tmp_path, "m.tra", "2 2\n0 1 1\n1 0 1\n")
    file(tmp_path, "m.lab", '0="goal"\n1: 0\n')
    assert np.array_equal(read_chain(path).initial, [1, 0])


def test_deadlocks_follow_unseen(tmp_path):
    path = file(tmp_path, "m.tra", "3 2\n0 1 1\n1 0 1\n")
    refused(path, "1 of 3 states have no outgoing transition: 2", 'unseen="self-loop"')
    assert np.array_equal(dense(read_chain(path, unseen="self-loop")), [[0, 1, 0], [1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["line 1: the file is empty"]),
        ("# only a comment\n", ["line 1: the file is empty"]),
        ("2\n", ["line 1: '2': the first line must hold the counts \"states transitions\" or"]),
        ("2 3 4 5\n", ["line 1", "the first line must hold the counts"]),
        ("two 1\n0 0 1\n", ["line 1: 'two 1': the first line must hold the counts"]),
        ("1 0\n", ["line 1: the file holds no transitions"]),
        (
            "2 3\n0 1 1\n1 0 1\n",
            ["line 1: '2 3': the header promises 3 lines, 2 follow; is the file complete?"],
        ),
        ("2 2\n0 1 1\n1 0\n", ["line 3: '1 0': expected source target probability, found 2 fields"]),
        (
            "2 2\n0 1 1\n1 0 1 a b\n",
            ["line 3: '1 0 1 a b': expected source target probability, found 5 fields"],
        ),
        ("2 2\n0 1 1\n1 2 1\n", ["line 3: '1 2 1': target must be a state from 0 to 1"]),
        ("2 2\n0 1 1\n-1 0 1\n", ["line 3: '-1 0 1': source must be a state from 0 to 1"]),
        ("2 2\n0 1 1\nx 0 1\n", ["line 3: 'x 0 1': source must be an integer"]),
        ("2 2\n0 1 1\n1 0 [0.1,0.2]\n", ["line 3: '1 0 [0.1,0.2]': probability must be a number"]),
        ("2 2\n0 1 1\n1 0 3.5\n", ["line 3: '1 0 3.5': the probabilities out of state 1 sum to 3.5"]),
        ("2 3\n0 1 0.5\n0 1 0.5\n1 0 1\n", ["line 3: '0 1 0.5': repeats the transition of line 2"]),
        (
            "2 3 3\n0 0 1 1\n0 1 0 1\n1 0 0 1\n",
            ["holds an MDP (states have several choices); read it with read_mdp"],
        ),
    ],
)
def test_broken_transition_files(tmp_path, text, parts):
    refused(file(tmp_path, "m.tra", text), *parts)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.lab", "init\n0: 0\n", 'm.lab, line 1: \'init\': expected a header such as 0="init" 1="deadlock"'),
        (
            "m.lab",
            '0="init"\nzero\n',
            "m.lab, line 2: 'zero': expected \"state: label numbers\", such as 3: 0 2",
        ),
        ("m.lab", '0="init"\n0: 7\n', "m.lab, line 2: '0: 7': label 7 is not in the header"),
        ("m.lab", '0="init"\n5: 0\n', "m.lab: state 5 is labeled init, but m.tra has 2 states"),
        ("m.srew", "3 1\n0 1\n", "m.srew is for 3 states, m.tra has 2; they belong apart"),
        ("m.srew", "2 1\n0 inf\n", "m.srew, line 2: '0 inf': reward must be a finite number"),
        ("m.srew", "2 1\n4 1\n", "m.srew, line 2: '4 1': state must be a state from 0 to 1"),
        ("m.srew", "2 1\n0 1 1\n", "m.srew, line 2: '0 1 1': expected state reward, found 3 fields"),
    ],
)
def test_broken_neighbors(tmp_path, name, text, message):
    path = file(tmp_path, "m.tra", "2 2\n0 1 1\n1 0 1\n")
    file(tmp_path, name, text)
    with pytest.raises(InvalidData, match=re.escape(message)):
        read_chain(path)


@pytest.mark.parametrize("sparse", [False, True])
def test_prism_files_come_back(tmp_path, sparse):
    start = np.array([0, 0.5, 0, 0, 0.5, 0, 0])
    chain = random_chain(3, sparse=sparse, initial=start, rewards=[0, 1.5, 0, -2, 0, 0, 1e-9])
    write_chain(chain, tmp_path / "m.tra")
    assert (tmp_path / "m.lab").read_text() == '0="init" 1="deadlock"\n1: 0\n4: 0\n'
    back = read_chain(tmp_path / "m.tra")
    assert np.array_equal(dense(back), dense(chain))
    assert np.array_equal(back.initial, start)
    assert np.array_equal(back.rewards, chain.rewards)


def test_prism_cannot_hold_every_start(tmp_path):
    chain = MarkovChain(np.eye(2), initial=[0.3, 0.7])
    with pytest.raises(InvalidData, match=r"PRISM starts in each initial state with the same probability; write .npz"):
        write_chain(chain, tmp_path / "m.tra")


def test_rewards_of_another_chain_are_not_adopted(tmp_path):
    write_chain(MarkovChain(np.eye(2), rewards=[1, 2]), tmp_path / "m.tra")
    with pytest.raises(InvalidData, match=r"m.srew would be read as the rewards of this chain; remove it or rename"):
        write_chain(MarkovChain(np.eye(2)), tmp_path / "m.tra")
    write_chain(MarkovChain(np.eye(2), rewards=[3, 4]), tmp_path / "m.tra")
    assert np.array_equal(read_chain(tmp_path / "m.tra").rewards, [3, 4])


# --- MDPs ---------------------------------------------------------------------------------------------------

MDP_TEXT = "2 4 5\n0 0 0 1 stay\n0 1 0 1/4 go\n0 1 1 0.75 go\n1 0 1 1 stay\n1 1 0 1 go\n"


def test_mdp_files(tmp_path):
    path = file(tmp_path, "m.tra", MDP_TEXT)
    file(tmp_path, "m.lab", '0="init"\n1: 0\n')
    file(tmp_path, "m.srew", "2 1\n1 5\n")
    mdp = read_mdp(path)
    assert (mdp.n_states, mdp.n_actions, mdp.actions) == (2, 2, ("stay", "go"))
    assert np.array_equal(mdp.transition[0].toarray(), np.eye(2))
    assert np.array_equal(mdp.transition[1].toarray(), [[0.25, 0.75], [1, 0]])
    assert np.array_equal(mdp.initial, [0, 1])
    assert np.array_equal(mdp.rewards, [0, 5])


@pytest.mark.parametrize(
    ("old", "new"),
    [(" go\n", "\n"), (" stay\n", " go\n"), ("stay\n1 1", "walk\n1 1")],
)
def test_action_names_that_do_not_fit_are_left_out(tmp_path, old, new):
    assert read_mdp(file(tmp_path, "m.tra", MDP_TEXT.replace(old, new))).actions is None


def test_missing_choices(tmp_path):
    path = file(tmp_path, "m.tra", "2 3 3\n0 0 1 1\n0 1 0 1\n1 0 0 1\n")
    message = f"{path}: state 1 has no choice 1 (1 such gaps); every action must exist in every state: pass unseen="
    with pytest.raises(InvalidData, match=re.escape(message)):
        read_mdp(path)
    assert np.array_equal(read_mdp(path, unseen="self-loop").transition[1].toarray(), np.eye(2))
    assert np.array_equal(read_mdp(path, unseen="uniform").transition[1].toarray(), [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 2\n0 1 1\n1 0 1\n", "holds a Markov chain; read it with read_chain"),
        (
            "1 1 1\n0 0 0 0.5\n",
            "line 2: '0 0 0 0.5': the probabilities out of choice 0 of state 0 sum to 0.5",
        ),
        ("1 1 1\n0 -1 0 1\n", "line 2: '0 -1 0 1': choice must be at least 0"),
        ("1 1 2\n0 0 0 1\n0 0 0 1\n", "line 3: '0 0 0 1': repeats the transition of line 2"),
    ],
)
def test_broken_mdp_files(tmp_path, text, message):
    with pytest.raises(InvalidData, match=re.escape(message)):
        read_mdp(file(tmp_path, "m.tra", text))


# --- the door -----------------------------------------------------------------------------------------------


def test_the_format_can_be_said(tmp_path):
    chain = random_chain(4)
    for kind in ("csv", "npz", "prism"):
        write_chain(chain, tmp_path / "chain.dat", format=kind)
        assert np.array_equal(dense(read_chain(tmp_path / "chain.dat", format=kind)), dense(chain))
    with pytest.raises(InvalidArgument, match=re.escape("the extension is not known; use .csv, .tsv, .npz or .tra")):
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
