"""States that the data never leave: the four answers of ``unseen``."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.processes.chain import MarkovChain
from oracles.kernels import counted, dense

pairs = MarkovChain.from_transitions
paths = MarkovChain.from_trajectories


def test_unseen_states_are_named_with_remedies():
    with pytest.raises(InvalidData) as caught:
        pairs([0, 1, 6], [1, 0, 3])
    assert str(caught.value) == (
        "4 of 7 states have no outgoing transition: 2, 3, 4, 5; "
        'pass unseen="self-loop" (they are absorbing), "uniform" (anything can follow) or "drop" (leave them '
        "out), or states=[...] if the numbers are names"
    )
    with pytest.raises(InvalidData, match=re.escape("1 of 3 states have no outgoing transition: 'end';")):
        pairs(["a", "b"], ["b", "end"])
    with pytest.raises(InvalidData, match=re.escape("8 of 9 states have no outgoing transition: 0, 1, 2, 3, 4, …;")):
        pairs([8], [8])


def test_self_loop_and_uniform():
    s, s_next = [0, 1, 1], [1, 3, 0]
    loop = [[0, 1, 0, 0], [0.5, 0, 0, 0.5], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert np.array_equal(dense(pairs(s, s_next, unseen="self-loop")), loop)
    uniform = [[0, 1, 0, 0], [0.5, 0, 0, 0.5], [0.25] * 4, [0.25] * 4]
    assert np.array_equal(dense(pairs(s, s_next, unseen="uniform")), uniform)


def test_drop_peels_until_closed_and_renormalizes():
    #  0 -> 1 (twice), 0 -> 2;  1 -> 0;  2 -> 3;  3 -> 4, which ends: 4, 3, 2 go
    chain = pairs([0, 0, 0, 1, 2, 3], [1, 1, 2, 0, 3, 4], unseen="drop")
    assert chain.names == (0, 1)
    assert np.array_equal(dense(chain), [[0, 1], [1, 0]])
    # a state before the cycle stays, gaps in the numbers close, and the numbers stay known
    chain = pairs([2, 7, 9], [7, 9, 7], unseen="drop", rewards=np.arange(10.0), initial=7)
    assert chain.names == (2, 7, 9)
    assert np.array_equal(dense(chain), [[0, 1, 0], [0, 0, 1], [0, 1, 0]])
    assert np.array_equal(chain.rewards, [2, 7, 9])
    assert np.array_equal(chain.initial, [0, 1, 0])


def peeled(s, s_next):
    """What is left after removing, again and again, the states without a successor."""
    edges = set(zip(s, s_next, strict=True))
    while True:
        sources = {a for a, _ in edges}
        closed = {(a, b) for a, b in edges if b in sources}
        if closed == edges:
            return sorted(sources)
        edges = closed


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=25))
def test_drop_keeps_what_peeling_keeps(edges):
    s, s_next = map(list, zip(*edges, strict=True))
    kept = peeled(s, s_next)
    if not kept:
        with pytest.raises(InvalidData, match=re.escape('unseen="drop" leaves no state: every path in the data ends')):
            pairs(s, s_next, unseen="drop")
        return
    chain = pairs(s, s_next, unseen="drop")
    assert chain.names == tuple(kept)
    inside = [(a, b) for a, b in edges if a in kept and b in kept]
    a, b = zip(*inside, strict=True)
    assert dense(chain) == pytest.approx(counted(a, b, np.ones(len(a)), kept), abs=1e-15)


def test_drop_is_fast_on_a_long_path():
    # peeling one state per round would take 200 000 rounds
    chain = paths([[*range(200_000), 199_998]], unseen="drop")
    assert chain.n_states == 200_000
    with pytest.raises(InvalidData, match="leaves no state"):
        paths([range(200_000)], unseen="drop")


def test_drop_restricts_starts_and_rewards():
    data = [["a", "b", "a"], ["c", "end"], ["b", "a"]]
    chain = paths(data, unseen="drop", rewards={"a": 1, "b": 2, "c": 3, "end": 4})
    assert chain.names == ("a", "b")
    assert np.array_equal(chain.initial, [0.5, 0.5])
    assert np.array_equal(chain.rewards, [1, 2])
    chain = paths(data, unseen="drop", initial=[0.25, 0.75, 0, 0])
    assert np.array_equal(chain.initial, [0.25, 0.75])
    for initial in ("c", [0.5, 0, 0.5, 0], 2):
        with pytest.raises(
            InvalidData, match=re.escape("initial: state 'c' was dropped because it has no infinite path")
        ):
            paths(data, unseen="drop", initial=initial)
    with pytest.raises(InvalidChain, match=re.escape("initial = 'z' is not a state")):
        paths(data, unseen="drop", initial="z")
    with pytest.raises(InvalidChain, match=re.escape("rewards has shape (2,); expected (4,)")):
        paths(data, unseen="drop", rewards=[1, 2])


def test_starts_of_weight_zero_say_nothing():
    with pytest.raises(
        InvalidData, match="weights are all zero, so the initial distribution is unknown; pass initial="
    ):
        paths([[0], [1]], weights=[0, 0], unseen="self-loop")


def test_drop_always_names_by_number():
    assert pairs([0, 1], [1, 0], unseen="drop").names == (0, 1)


def test_absurd_numbers_are_refused_and_not_allocated():
    far = 10**12
    with pytest.raises(InvalidData, match="999999999999 of 1000000000001 states have no outgoing transition: 1, 2, 3"):
        pairs([0, far], [far, 0])
    for unseen in ("self-loop", "uniform"):
        with pytest.raises(InvalidData, match="the largest state number is 1000000000000, which would need"):
            pairs([0, far], [far, 0], unseen=unseen)
    with pytest.raises(InvalidData, match=r'unseen="uniform" would fill 99999 rows with 100000 entries each'):
        pairs([0], [99_999], unseen="uniform")
    chain = pairs([0, far], [far, 0], unseen="drop")
    assert chain.names == (0, far)
    assert pairs([0, far], [far, 0], states=[0, far]).n_states == 2


def test_unknown_unseen():
    with pytest.raises(InvalidArgument, match="unseen is 'ignore'; use one of 'error', 'self-loop'"):
        pairs([0], [0], unseen="ignore")
