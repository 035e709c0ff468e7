"""Chains from data: counting against dictionaries, the state rule, and the dataset."""

import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffbisim.common.errors import InvalidChain, InvalidData
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.streams import Stream
from oracles.kernels import counted, dense

pairs = MarkovChain.from_transitions
paths = MarkovChain.from_trajectories


def test_repr_is_short():
    data = Transitions.from_trajectories([[0, 1, 2, 0]] * 100, states=3)
    assert repr(data) == "Transitions(300 transitions, 100 episodes, 3 states)"
    data = Transitions.from_trajectories([["a", "b", "a"]], weights=[2.0], lag=2)
    assert repr(data) == "Transitions(1 transition, 1 episode, 2 states, lag 2, names, weights)"


# --- counting -----------------------------------------------------------------------------------------------


def test_shares_counted_by_hand():
    chain = pairs([0, 0, 0, 1, 1], [0, 1, 1, 0, 0])
    assert dense(chain) == pytest.approx(np.array([[1 / 3, 2 / 3], [1, 0]]), abs=1e-16)
    assert np.array_equal(chain.initial, [1, 0])
    assert chain.names is None
    assert not chain.is_sparse


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0.1, 10)), min_size=1, max_size=40),
    kind=st.sampled_from(["numbers", "strings", "tuples", "array"]),
)
def test_any_names_any_weights_as_counted_in_dictionaries(data, kind):
    s, s_next, w = map(list, zip(*(data + [(k, (k + 1) % 5, 1.0) for k in range(5)]), strict=True))
    name = {"strings": lambda k: f"s{k}", "tuples": lambda k: (k // 2, k % 2)}.get(kind, lambda k: k)
    a, b = [name(k) for k in s], [name(k) for k in s_next]
    chain = pairs(np.array(a) if kind == "array" else a, b, weights=w)
    assert dense(chain) == pytest.approx(counted(s, s_next, w, range(5)), abs=1e-14)
    assert chain.names == (None if kind in ("numbers", "array") else tuple(name(k) for k in range(5)))


def test_trajectories_are_their_transitions():
    data = [[0, 1, 2, 0], (2, 2, 1), np.array([1, 0])]
    chain = paths(data)
    s, s_next = [0, 1, 2, 2, 2, 1], [1, 2, 0, 2, 1, 0]
    assert np.array_equal(dense(chain), dense(pairs(s, s_next)))
    assert chain.initial == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_trajectories_as_one_array():
    chain = paths(np.array([[0, 1, 0, 1], [1, 1, 0, 0]]))
    assert np.array_equal(dense(chain), dense(paths([[0, 1, 0, 1], [1, 1, 0, 0]])))


def test_trajectory_weights_count_transitions_and_starts():
    chain = paths([["a", "b", "a"], ["b", "b", "a"]], weights=[3, 1])
    assert chain.initial == pytest.approx([0.75, 0.25])
    assert dense(chain) == pytest.approx(np.array([[0, 1], [4 / 5, 1 / 5]]))


def test_a_trajectory_of_one_state_says_only_where_it_starts():
    chain = paths([[0, 1, 0], [1], [1], [1]])
    assert chain.initial == pytest.approx([0.25, 0.75])
    assert np.array_equal(dense(chain), [[0, 1], [1, 0]])
    only_starts = paths([[0], [1]], unseen="self-loop")
    assert np.array_equal(dense(only_starts), np.eye(2))


def test_given_start_and_rewards():
    chain = pairs(["a", "b"], ["b", "a"], initial="b", rewards={"a": 1.0, "b": 2.0})
    assert np.array_equal(chain.initial, [0, 1])
    assert np.array_equal(chain.rewards, [1, 2])
    assert np.array_equal(paths([[0, 1, 0]], initial=[0.5, 0.5]).initial, [0.5, 0.5])


def test_weights_may_be_tiny_or_huge():
    chain = pairs([0, 0, 1], [0, 1, 0], weights=[1e-200, 1.0, 1.0])
    assert dense(chain)[0, 0] == pytest.approx(1e-200, rel=1e-12)
    chain = pairs([0, 0, 1], [0, 1, 0], weights=[1e308, 1e308, 1e308])
    assert np.array_equal(dense(chain), [[0.5, 0.5], [1, 0]])
    assert paths([[0, 1, 0], [1, 0]], weights=[1e308, 1e308]).initial == pytest.approx([0.5, 0.5])


def test_transitions_of_weight_zero_are_as_if_absent():
    chain = pairs([0, 0, 1], [0, 1, 0], weights=[0.0, 2.0, 1.0])
    assert np.array_equal(dense(chain), [[0, 1], [1, 0]])


@pytest.mark.parametrize(("n", "edges", "sparse"), [(64, 1, False), (65, 1, True), (65, 16, True), (65, 17, False)])
def test_large_and_thin_kernels_are_sparse(n, edges, sparse):
    # density edges/n: 16/65 is below a quarter, 17/65 above
    s = np.repeat(np.arange(n), edges)
    s_next = (s + np.tile(np.arange(edges), n)) % n
    chain = pairs(s, s_next)
    assert chain.is_sparse == sparse
    forced = pairs(s, s_next, sparse=not sparse)
    assert forced.is_sparse == (not sparse)
    assert np.array_equal(dense(forced), dense(chain))


def test_a_million_transitions_are_counted_without_a_loop_over_them():
    """What makes it quick on any machine: as many lines of Python are run as for a thousand."""
    rng, lines = np.random.default_rng(0), []
    s, s_next = rng.integers(0, 1000, 10**6), rng.integers(0, 1000, 10**6)

    def count(frame, event, what):
        lines[-1] += 1
        return count

    for n in (1000, 10**6):
        lines.append(0)
        sys.settrace(count)
        try:
            chain = pairs(s[:n], s_next[:n], states=1000, unseen="self-loop")
        finally:
            sys.settrace(None)
    assert lines[1] <= lines[0] + 1000
    row = np.bincount(s_next[s == 17], minlength=1000)
    assert dense(chain)[17] == pytest.approx(row / row.sum(), abs=1e-15)


# --- the state rule -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "s_next", "names"),
    [
        (["b", "a"], ["a", "b"], ("a", "b")),
        ([-1, 0], [0, -1], (-1, 0)),
        ([1.5, 0.5], [0.5, 1.5], (0.5, 1.5)),
        ([True, False], [False, True], (False, True)),
        ([(1, 0), (0, 1)], [(0, 1), (1, 0)], ((0, 1), (1, 0))),
        (["z", 1, "a"], [1, "a", "z"], ("z", 1, "a")),  # not sortable: order of appearance
        (np.array(["b", "a"]), np.array(["a", "b"]), ("a", "b")),
        (np.array(["b", "a"], dtype=object), ["a", "b"], ("a", "b")),
        (np.ma.array([1, 0], mask=[False, False]), [0, 1], None),
        ([2**70, 0], [0, 2**70], (0, 2**70)),
        ([0, 1], np.array([1, 0], dtype=np.uint8), None),
        ([np.int64(0), 1], [1, 0], None),
    ],
)
def test_what_is_a_number_and_what_a_name(s, s_next, names):
    chain = pairs(s, s_next)
    assert chain.names == names
    for a, b in zip(s, s_next, strict=True):
        assert dense(chain)[chain.index(a), chain.index(b)] == 1.0


def test_states_fix_the_space_and_its_order():
    chain = pairs(["a", "b"], ["b", "a"], states=["b", "a"])
    assert chain.names == ("b", "a")
    assert np.array_equal(chain.initial, [0, 1])  # a: the first state seen, whatever the order
    chain = pairs([10, 30], [30, 10], states=[30, 10])  # numbers that are names
    assert chain.names == (30, 10)
    assert np.array_equal(dense(chain), [[0, 1], [1, 0]])
    assert pairs([0, 1], [1, 0], states=4, unseen="self-loop").n_states == 4


@pytest.mark.parametrize(
    ("s", "s_next", "options", "message"),
    [
        ([], [], {}, "s is empty; there must be at least one transition"),
        ([0, 1], [1], {}, "s has 2 entries and s_next has 1; they must have the same length"),
        ("ab", "ba", {}, "s is the string 'ab'; pass a sequence of states"),
        (3, [1], {}, "s = 3 is not a sequence of states"),
        (np.zeros((2, 2)), [0, 1], {}, "s has shape (2, 2); it must be one-dimensional"),
        ([0, 1], [[1], [0]], {}, "s_next[0] = [1] is not hashable; use numbers, strings or tuples"),
        ([0.5, 1.5], [1.5, np.nan], {}, "s_next[1] is nan, a missing value; drop the entry"),
        (
            [None, "x"],
            ["x", "x"],
            {},
            "s[0] is None, a missing value; drop the entry (pandas: dropna) or name the state",
        ),
        ([0, 1], [1, None], {}, "s_next[1] is None, a missing value"),
        (["x", ("y", None)], ["x", "x"], {}, "s[1] is ('y', None), a missing value"),
        (["a", "b"], ["b", None], {"states": ["a", "b"]}, "s_next[1] is None, a missing value"),
        (["a", "b"], ["b", float("nan")], {"states": ["a", "b"]}, "s_next[1] is nan, a missing value"),
        (np.array(["2020", "NaT"], dtype="M8[D]"), ["a", "b"], {}, "s[1] is np.datetime64('NaT'"),
        (np.ma.array([0, 1], mask=[False, True]), [1, 0], {}, "s[1] is None, a missing value"),
        ({0, 1}, [0, 1], {}, "s is a set; pass a list of states, in the order in which they were seen"),
        ({0: 1, 1: 0}, [0, 1], {}, "s is a mapping; pass a list of states"),
        ([0, 1], [1, 0], {"weights": np.ma.array([1, 2], mask=[0, 1])}, "weights[1] is masked, that is, missing"),
        (["a", "b"], ["b", "c"], {"states": ["a", "b"]}, "s_next[1] = 'c' is not in states; add it there"),
        ([0, 5], [5, 0], {"states": 3}, "s_next[0] = 5 is out of range; with states = 3 numbers run from 0 to 2"),
        ([0, -5], [0, 0], {"states": 3}, "s[1] = -5 is out of range"),
        (
            ["a", "b"],
            ["b", "a"],
            {"states": 2},
            "s[0] = 'a' is not a state number; with states = 2 they run from 0 to 1",
        ),
        ([0], [0], {"states": 0}, "states = 0; there must be at least one state"),
        ([0], [0], {"states": []}, "states is empty; list at least one state"),
        ([0, 1], [1, 0], {"weights": [1.0]}, "weights has shape (1,); expected (2,), one number per transition"),
        ([0, 1], [1, 0], {"weights": [1.0, -2.0]}, "weights[1] is -2; weights must be non-negative"),
        ([0, 1], [1, 0], {"weights": [np.nan, 1.0]}, "weights[0] is nan; every transition needs a finite number"),
        ([0, 1], [1, 0], {"weights": [np.inf, 1.0]}, "weights[0] is inf; every transition needs a finite number"),
        ([0, 1], [1, 0], {"weights": ["x", 1.0]}, "weights is not an array of numbers"),
        (["a", "b"], ["b", "a"], {"weights": [1, 0]}, "every transition out of state 'b' has weight 0"),
    ],
)
def test_refused_transitions(s, s_next, options, message):
    with pytest.raises(InvalidData, match=re.escape(message)):
        pairs(s, s_next, **options)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "trajectories is empty; there must be at least one"),
        (
            [0, 1, 2],
            {},
            "trajectories[0] = 0 is not a sequence of states; pass a list of trajectories, such as",
        ),
        (["ab", "ba"], {}, "trajectories[0] = 'ab' is not a sequence of states"),
        ([[0, 1], {0, 1}], {}, "trajectories[1] = {0, 1} is not a sequence of states"),
        ([[0, 1], []], {}, "trajectories[1] is empty; remove it"),
        ([[0, 1], [1, [0]]], {}, "trajectories[1][1] = [0] is not hashable"),
        ([[0, 1], [1, 0, 7]], {"states": 2}, "trajectories[1][2] = 7 is out of range"),
        ([["a", "b"], ["b", "c"]], {"states": ["a", "b"]}, "trajectories[1][1] = 'c' is not in states"),
        ([[0, 1, 0]], {"weights": [1, 2]}, "weights has shape (2,); expected (1,), one number per trajectory"),
        ([[0, 1, 0]], {"weights": [0.0]}, "every transition out of state 0 has weight 0"),
    ],
)
def test_refused_trajectories(data, options, message):
    with pytest.raises(InvalidData, match=re.escape(message)):
        paths(data, **options)


@pytest.mark.parametrize(("states", "kind"), [({"a", "b"}, "set"), ({"a": 0, "b": 1}, "mapping")])
def test_a_state_space_has_an_order(states, kind):
    with pytest.raises(InvalidChain, match=f"states is a {kind}; give a list, in the order of the states"):
        pairs(["a", "b"], ["b", "a"], states=states)


@pytest.mark.parametrize("data", [{("a", "b"): ["a", "b"]}, {("a", "b")}])
def test_trajectories_are_not_the_keys_of_a_mapping(data):
    with pytest.raises(InvalidData, match=f"trajectories is a {type(data).__name__}; pass a list"):
        paths(data)


def test_dates_are_names_not_numbers():
    days = np.array(["2024-01-02", "2024-01-01"], dtype="M8[ns]")
    chain = pairs(days, days[::-1])
    assert chain.names == (days[1], days[0])
    assert chain.index(days[0]) == 1
    assert paths([days, days[::-1]]).names == chain.names


# --- the start: where the episodes begin, else the first state seen -------------------------------------------


def test_pairs_start_in_the_first_state_seen():
    assert np.array_equal(pairs(["b", "a"], ["a", "b"]).initial, [0, 1])
    assert np.array_equal(pairs([2, 0, 1], [0, 1, 2]).initial, [0, 0, 1])
    assert np.array_equal(pairs(["b", "a"], ["a", "b"], initial="a").initial, [1, 0])
    weighted = pairs(["b", "a", "b"], ["a", "b", "b"], weights=[0, 1, 2])
    assert np.array_equal(weighted.initial, [1, 0])  # what has weight zero was not seen


def test_what_is_dropped_is_no_start():
    chain = pairs(["z", "b", "a"], ["end", "a", "b"], unseen="drop")
    assert chain.names == ("a", "b")
    assert np.array_equal(chain.initial, [0, 1])


def test_the_start_is_not_resampled():
    data = Transitions.from_pairs(["b", "a", "a"], ["a", "b", "a"])
    again = data.take([2, 1]).take([0, 1])
    assert np.array_equal(again.chain(unseen="self-loop").initial, [0, 1])
    assert np.array_equal(data.take([2, 1]).chain(unseen="drop").initial, [1])  # b is not among these at all


def test_a_stream_of_pairs_starts_as_their_chain():
    data = Transitions.from_pairs(["b", "a"], ["a", "b"])
    assert np.array_equal(Stream(data).frame.initial, data.chain().initial)


def test_repeated_states_are_refused():
    with pytest.raises(InvalidChain, match=re.escape("states[1] = 'a' repeats states[0]")):
        pairs(["a"], ["a"], states=["a", "a"])


# --- the dataset --------------------------------------------------------------------------------------------


def test_a_dataset_keeps_episodes_and_starts():
    data = Transitions.from_trajectories([[0, 1, 2], [2], [1, 0]])
    assert len(data) == 3
    assert data.n_episodes == 3
    assert np.array_equal(data.states, [0, 1, 1])
    assert np.array_equal(data.next_states, [1, 2, 0])
    assert np.array_equal(data.episodes, [0, 0, 2])
    assert np.array_equal(data.starts, [0, 2, 1])


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    weighted=st.booleans(),
)
def test_taking_episodes_is_building_from_them(lengths, seed, weighted):
    rng = np.random.default_rng(seed)
    episodes = [rng.integers(0, 4, length).tolist() for length in lengths]
    weights = rng.random(len(episodes)) if weighted else None
    chosen = rng.integers(0, len(episodes), 5)
    taken = Transitions.from_trajectories(episodes, weights=weights, states=4).take(chosen)
    direct = Transitions.from_trajectories(
        [episodes[k] for k in chosen], weights=None if weights is None else weights[chosen], states=4
    )
    for name in ("states", "next_states", "episodes", "starts", "weights", "start_weights"):
        a, b = getattr(taken, name), getattr(direct, name)
        assert (a is None and b is None) or np.array_equal(a, b)
    assert taken.n_episodes == 5
    again = taken.take([4, 0])
    assert np.array_equal(again.starts, taken.starts[[4, 0]])


def test_pairs_are_episodes_of_one_step():
    data = Transitions.from_pairs(["a", "b", "a"], ["b", "a", "a"], weights=[1, 2, 3])
    assert data.n_episodes == 3
    taken = data.take([2, 2, 1])
    assert np.array_equal(taken.weights, [3, 3, 2])
    assert np.array_equal(dense(taken.chain()), [[1, 0], [1, 0]])
    assert taken.chain().names == ("a", "b")


@pytest.mark.parametrize("episodes", [[3], [-1], [], [[0]]])
def test_taking_what_is_not_there(episodes):
    data = Transitions.from_pairs([0, 1, 0], [1, 0, 0])
    with pytest.raises(InvalidData, match="episodes must be a non-empty list of indices from 0 to 2"):
        data.take(episodes)


def test_a_chain_is_recovered_from_its_own_samples():
    P = np.array([[0.1, 0.9, 0.0], [0.4, 0.3, 0.3], [0.5, 0.0, 0.5]])
    chain = MarkovChain(P)
    found = pairs(*chain.sample_transitions(200_000, 0.9, 0))
    assert dense(found) == pytest.approx(P, abs=0.01)  # about five standard deviations
    found = paths([chain.sample(100_000, 1)])
    assert dense(found) == pytest.approx(P, abs=0.01)
