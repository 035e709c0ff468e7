"""PRISM's explicit files, of chains and MDPs, read as its manual says; broken ones are named."""

import re

import numpy as np
import pytest

from chain_files import file, random_chain, refused
from diffbisim.common.errors import InvalidData
from diffbisim.io.chains import read_chain, read_mdp, write_chain
from diffbisim.io.prism import read_prism_labels, read_prism_rewards
from diffbisim.processes.chain import MarkovChain
from oracles.kernels import dense

# --- chains -------------------------------------------------------------------------------------------------


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
        ("2\n", ["line 1: '2': the first line must contain the counts \"states transitions\" or"]),
        ("2 3 4 5\n", ["line 1", "the first line must contain the counts"]),
        ("two 1\n0 0 1\n", ["line 1: 'two 1': the first line must contain the counts"]),
        ("1 0\n", ["line 1: the file contains no transitions"]),
        (
            "2 3\n0 1 1\n1 0 1\n",
            ["line 1: '2 3': the header announces 3 lines, but 2 follow; is the file complete?"],
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
        ("m.srew", "3 1\n0 1\n", "m.srew is for 3 states, but m.tra has 2; they do not belong together"),
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
    with pytest.raises(
        InvalidData, match=r"PRISM needs a uniform initial distribution, but this one is not; write .npz"
    ):
        write_chain(chain, tmp_path / "m.tra")


def test_rewards_of_another_chain_are_not_adopted(tmp_path):
    write_chain(MarkovChain(np.eye(2), rewards=[1, 2]), tmp_path / "m.tra")
    with pytest.raises(InvalidData, match=r"m.srew would be read as rewards of this chain; remove it, or rename"):
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
    message = f"{path}: state 1 has no choice 1 (missing choices: 1), but in an MDP every action is available in every"
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
        ("1 1 1\n0 -1 0 1\n", "line 2: '0 -1 0 1': choice must be non-negative"),
        ("1 1 2\n0 0 0 1\n0 0 0 1\n", "line 3: '0 0 0 1': repeats the transition of line 2"),
    ],
)
def test_broken_mdp_files(tmp_path, text, message):
    with pytest.raises(InvalidData, match=re.escape(message)):
        read_mdp(file(tmp_path, "m.tra", text))


# --- neighbors: everything beside a .tra file is used, or named ---------------------------------------------------

WALK = "3 4\n0 1 0.75\n0 2 0.25\n1 0 1\n2 2 1\n"
WALK_P = np.array([[0, 0.75, 0.25], [1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("suffix", [".trew", ".rewt"])
def test_rewards_of_transitions_count_as_expected(tmp_path, suffix):
    path = file(tmp_path, "m.tra", WALK)
    file(tmp_path, f"m{suffix}", '# Reward structure "steps"\n# Transition rewards\n3 3\n0 1 4\n0 2 8\n1 0 1\n')
    R = np.array([[0, 4, 8], [1, 0, 0], [0, 0, 0.0]])
    assert np.allclose(read_chain(path).rewards, (WALK_P * R).sum(axis=1), rtol=1e-15)
    file(tmp_path, "m.srew", "3 2\n0 10\n2 20\n")
    assert np.allclose(read_chain(path).rewards, (WALK_P * R).sum(axis=1) + np.array([10, 0, 20]), rtol=1e-15)
    assert np.array_equal(read_chain(path, rewards=[1, 2, 3]).rewards, [1, 2, 3])


def test_rewards_of_choices(tmp_path):
    path = file(tmp_path, "m.tra", MDP_TEXT)
    file(tmp_path, "m.srew", "2 1\n1 5\n")
    file(tmp_path, "m.trew", "2 4 3\n0 1 0 8\n0 1 1 4\n1 1 0 2\n")
    assert np.array_equal(read_mdp(path).rewards, [[0, 8 / 4 + 4 * 3 / 4], [5, 5 + 2]])
    single = file(tmp_path, "s.tra", "2 2 3\n0 0 0 0.25\n0 0 1 0.75\n1 0 0 1\n")  # an MDP that is a chain
    file(tmp_path, "s.trew", "2 2 1\n0 0 1 4\n")
    assert np.array_equal(read_chain(single).rewards, [3, 0])


def test_one_of_several_reward_structures_is_chosen(tmp_path):
    path = file(tmp_path, "m.tra", WALK)
    file(tmp_path, "m1.srew", '# Reward structure "time"\n# State rewards\n3 1\n0 1\n')
    assert np.array_equal(read_chain(path).rewards, [1, 0, 0])  # the only one
    file(tmp_path, "m2.srew", "3 1\n1 2\n")
    file(tmp_path, "m2.trew", "3 1\n1 0 3\n")
    file(tmp_path, "m.lab", '0="init" 1="deadlock" 2="target"\n0: 0\n2: 2\n1: 2\n')
    with pytest.raises(InvalidData) as caught:
        read_chain(path)
    assert str(caught.value) == (
        f'{path}: it has 2 reward structures; choose by name or number, such as rewards="time", from '
        '1 "time" (m1.srew); 2 (m2.srew, m2.trew); or a proposition: init, deadlock, target'
    )
    for chosen, r in (("time", [1, 0, 0]), (1, [1, 0, 0]), ("1", [1, 0, 0]), (2, [0, 5, 0]), ("target", [0, 1, 1])):
        assert np.array_equal(read_chain(path, rewards=chosen).rewards, r)
    with pytest.raises(InvalidData, match=re.escape("it has no rewards called 'fuel'; choose by name or number")):
        read_chain(path, rewards="fuel")
    file(tmp_path, "m2.tra", WALK)  # now m2.srew belongs to this one
    assert np.array_equal(read_chain(path).rewards, [1, 0, 0])
    assert np.array_equal(read_chain(tmp_path / "m2.tra").rewards, [0, 5, 0])


def test_variables_are_names(tmp_path):
    path = file(tmp_path, "m.tra", WALK)
    file(tmp_path, "m.sta", "(x,up)\n0:(0,true)\n1:(0,false)\n2:(-1,true)\n")
    file(tmp_path, "m.lab", '0="init" 1="a" 2="b" 3="c"\n1: 0 1\n0: 2\n2: 3\n')
    chain = read_chain(path)
    assert chain.names == ((0, True), (0, False), (-1, True))
    assert np.array_equal(chain.initial, [0, 1, 0])
    assert np.array_equal(read_chain(path, initial=(-1, True)).initial, [0, 0, 1])
    (tmp_path / "m.sta").unlink()
    assert read_chain(path).names == ("b", "a", "c")  # one proposition for each state
    assert np.array_equal(read_chain(path).initial, [0, 1, 0])
    file(tmp_path, "m.lab", '0="init" 1="a" 2="b"\n1: 0 1\n0: 2\n2: 2\n')
    assert read_chain(path).names is None  # two states have b


def test_mdps_have_names_too(tmp_path):
    path = file(tmp_path, "m.tra", MDP_TEXT)
    file(tmp_path, "m.sta", "(s)\n0:(7)\n1:(3)\n")
    assert read_mdp(path, initial=(3,)).names == ((7,), (3,))
    assert np.array_equal(read_mdp(path, initial=(3,)).initial, [0, 1])


def test_dropped_states_take_their_names_with_them(tmp_path):
    path = file(tmp_path, "m.tra", "3 3\n0 0 0.5\n0 1 0.5\n2 0 1\n")
    file(tmp_path, "m.sta", "(s)\n0:(7)\n1:(3)\n2:(5)\n")
    chain = read_chain(path, unseen="drop")
    assert chain.names == ((7,), (5,))
    assert np.array_equal(dense(chain), [[1, 0], [1, 0]])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.sta", "x,y\n0:(0,1)\n", "m.sta, line 1: 'x,y': expected the names of the variables, such as (x,y)"),
        ("m.sta", "(x)\n0:(0,1)\n", "m.sta, line 2: '0:(0,1)': expected a state and its 1 values"),
        (
            "m.sta",
            "(x)\n0:(0)\n2:(1)\n",
            "m.sta, line 3: '2:(1)': expected state 1; states must be listed in order",
        ),
        ("m.sta", "(x)\n0:(0)\n", "m.sta is for 1 states, but m.tra has 3; they do not belong together"),
        ("m.sta", "(x)\n0:(0)\n1:(0)\n2:(1)\n", "m.sta, line 3: '1:(0)': repeats the values of state 0"),
        ("m.trew", "3 1\n1 2 5\n", "m.trew, line 2: '1 2 5': m.tra has no such transition"),
        ("m.trew", "3 2\n0 1 5\n0 1 6\n", "m.trew, line 3: '0 1 6': already has a reward; remove one"),
        ("m.trew", "4 1\n0 1 5\n", "m.trew is for 4 states, but m.tra has 3; they do not belong together"),
        ("m.srew", "3 2\n0 5\n0 6\n", "m.srew, line 3: '0 6': already has a reward; remove one"),
        ("m.lab", '0="init" goal\n0: 0\n', "m.lab, line 1: '0=\"init\" goal': expected a header such as"),
        ("m.lab", '0="goal"\n5: 0\n', "m.lab: state 5 is labeled goal, but m.tra has 3 states"),
    ],
)
def test_neighbors_that_do_not_fit(tmp_path, name, text, message):
    path = file(tmp_path, "m.tra", WALK)
    file(tmp_path, name, text)
    with pytest.raises(InvalidData, match=re.escape(message)):
        read_chain(path)


def test_two_files_with_the_same_rewards(tmp_path):
    path = file(tmp_path, "m.tra", WALK)
    file(tmp_path, "m.srew", "3 1\n0 1\n")
    file(tmp_path, "m.rews", "3 1\n0 2\n")
    with pytest.raises(InvalidData, match=r"m.rews and m.srew both contain state rewards of m.tra; remove one"):
        read_chain(path)


@pytest.mark.parametrize(("name", "what"), [("m.sta", "states"), ("m1.srew", "rewards"), ("m.trew", "rewards")])
def test_files_of_another_model_are_not_adopted(tmp_path, name, what):
    file(tmp_path, name, "")
    with pytest.raises(InvalidData, match=f"{name} would be read as {what} of this chain; remove it, or rename"):
        write_chain(MarkovChain(np.eye(2), rewards=[1, 2]), tmp_path / "m.tra")


# --- Storm's dialect ------------------------------------------------------------------------------------------------

STORM = {
    "m.tra": "dtmc\n0 1 0.75\n0 2 0.25\n1 0 1\n2 2 1\n",
    "m.lab": "#DECLARATION\ninit goal deadlock\n#END\n1 init goal\n2 goal\n",
    "m.state.rew": "0 1.5\n2 3\n",
    "m.trans.rew": "0 1 4\n1 0 2\n",
}


def test_storms_dialect_by_hand(tmp_path):
    path, *_ = [file(tmp_path, name, text) for name, text in STORM.items()]
    chain = read_chain(path)
    assert np.array_equal(dense(chain), WALK_P)
    assert np.array_equal(chain.initial, [0, 1, 0])
    assert np.array_equal(chain.rewards, [1.5 + 0.75 * 4, 2, 3])
    assert read_prism_labels(tmp_path / "m.lab")["goal"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.tra", "ctmc\n0 0 1\n", "m.tra, line 1: 'ctmc': only dtmc and mdp are supported"),
        ("m.tra", "dtmc\n0 0 0 1\n", "m.tra, line 2: '0 0 0 1': expected source target probability, found 4 fields"),
        ("m.tra", "dtmc\n0 99999999 1\n", "m.tra: 100,000,000 states in 1 lines are more than 1,000,001"),
        ("m.tra", "dtmc\n", "m.tra, line 1: the file contains no transitions"),
        ("m.lab", "#DECLARATION\ninit\n#END\n0 goal\n", "m.lab, line 4: '0 goal': goal is not declared between"),
        ("m.lab", "#DECLARATION\ninit\n#END\ninit 0\n", "m.lab, line 4: 'init 0': expected \"state names\""),
        ("m.state.rew", "0\n", "m.state.rew, line 1: '0': expected state reward, found 1 fields"),
        ("m.state.rew", "3 1\n0 1\n", "m.state.rew, line 1: '3 1': state must be a state from 0 to 2"),
    ],
)
def test_broken_files_of_storm(tmp_path, name, text, message):
    for other, good in STORM.items():
        file(tmp_path, other, good)
    file(tmp_path, name, text)
    with pytest.raises(InvalidData, match=re.escape(message)):
        read_chain(tmp_path / "m.tra")


def test_an_example_is_a_name(tmp_path):
    """A single reward structure has neither a name nor a number, so a proposition is the example."""
    file(tmp_path, "m.tra", "1 1\n0 0 1\n")
    file(tmp_path, "m.lab", '0="init"\n0: 0\n')
    file(tmp_path, "m.srew", "1 1\n0 1\n")
    with pytest.raises(InvalidData, match=r'no rewards called 2; .* such as rewards="init"'):
        read_chain(tmp_path / "m.tra", rewards=2)
