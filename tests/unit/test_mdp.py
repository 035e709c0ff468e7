"""MDP: the chain that a policy induces, against sums written out."""

import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp

from diffbisim.common.errors import InvalidChain
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP
from oracles.kernels import dense

STAY, SWAP = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


def random_mdp(seed, n=5, n_actions=3, **options):
    rng = np.random.default_rng(seed)
    T = rng.dirichlet(np.full(n, 0.5), size=(n_actions, n))
    return T, MDP(T, **options), rng


def forms(T):
    return {
        "array": T,
        "list": list(T),
        "sparse": [sp.coo_array(P) for P in T],
        "mixed": [sp.csr_array(T[0]), *T[1:]],
    }


@pytest.mark.parametrize("form", ["array", "list", "sparse", "mixed"])
def test_every_form_holds_the_same_kernels(form):
    T, _, _ = random_mdp(0)
    mdp = MDP(forms(T)[form])
    assert (mdp.n_states, mdp.n_actions) == (5, 3)
    assert mdp.is_sparse == (form in ("sparse", "mixed"))
    for P, given in zip(mdp.transition, T, strict=True):
        assert sp.issparse(P) == mdp.is_sparse
        assert dense(P) == pytest.approx(given, abs=1e-15)


@pytest.mark.parametrize("form", ["array", "sparse"])
def test_induced_chain_by_definition(form):
    T, _, rng = random_mdp(1)
    r, pi = rng.random((5, 3)), rng.dirichlet(np.ones(3), size=5)
    start = rng.dirichlet(np.ones(5))
    chain = MDP(forms(T)[form], initial=start, rewards=r, names="abcde").induced_chain(pi)
    P = [[sum(pi[s, a] * T[a, s, t] for a in range(3)) for t in range(5)] for s in range(5)]
    assert isinstance(chain, MarkovChain)
    assert chain.is_sparse == (form == "sparse")
    assert dense(chain.transition) == pytest.approx(np.array(P), abs=1e-15)
    assert chain.rewards == pytest.approx([sum(pi[s, a] * r[s, a] for a in range(3)) for s in range(5)])
    assert chain.names == tuple("abcde")
    assert np.array_equal(chain.initial, start / start.sum())


@pytest.mark.parametrize("form", ["array", "sparse"])
def test_a_deterministic_policy_picks_rows(form):
    T, _, _ = random_mdp(2)
    actions = [2, 0, 1, 1, 0]
    chain = MDP(forms(T)[form], rewards=np.arange(15.0).reshape(5, 3)).induced_chain(actions)
    expected = np.array([T[a, s] for s, a in enumerate(actions)])
    assert dense(chain.transition) == pytest.approx(expected, abs=1e-15)
    assert np.array_equal(chain.rewards, [2, 3, 7, 10, 12])


def test_state_rewards_do_not_depend_on_the_policy():
    _, mdp, _ = random_mdp(3, rewards=[1, 2, 3, 4, 5])
    assert np.array_equal(mdp.induced_chain(mdp.uniform_policy()).rewards, [1, 2, 3, 4, 5])
    assert np.array_equal(MDP([STAY, SWAP], rewards={"a": 1, "b": 2}, names="ab").rewards, [1, 2])


def test_sparse_chains_stay_sparse_without_zeros():
    mdp = MDP([sp.csr_array(STAY), sp.csr_array(SWAP)])
    assert mdp.induced_chain([0, 0]).transition.nnz == 2
    assert mdp.induced_chain(mdp.uniform_policy()).transition.nnz == 4


def test_uniform_policy():
    _, mdp, _ = random_mdp(4)
    assert np.array_equal(mdp.uniform_policy(), np.full((5, 3), 1 / 3))


@pytest.mark.parametrize("form", ["array", "sparse"])
def test_a_walk_follows_policy_and_kernels(form):
    T, _, _ = random_mdp(5, n=3, n_actions=2)
    pi = np.array([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
    states, actions = MDP(forms(T)[form], initial=2).sample(pi, 100_000, 0)
    assert (states.shape, actions.shape, states[0]) == ((100_001,), (100_000,), 2)
    counts = np.zeros((3, 2, 3))
    np.add.at(counts, (states[:-1], actions, states[1:]), 1)
    visits = counts.sum(axis=(1, 2))
    assert counts.sum(axis=2) / visits[:, None] == pytest.approx(pi, abs=0.02)
    assert counts[1, 1].sum() == 0
    for a, s in ((0, 0), (1, 0), (0, 1), (0, 2), (1, 2)):
        assert counts[s, a] / counts[s, a].sum() == pytest.approx(T[a, s], abs=0.02)


def test_a_walk_repeats_with_its_seed():
    _, mdp, _ = random_mdp(6)
    first, second = mdp.sample(mdp.uniform_policy(), 30, 1), mdp.sample(mdp.uniform_policy(), 30, 1)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    states, actions = MDP([STAY, SWAP]).sample([1, 1], 3, 0)
    assert np.array_equal(states, [0, 1, 0, 1])
    assert np.array_equal(actions, [1, 1, 1])


@pytest.mark.parametrize(
    ("transition", "options", "message"),
    [
        ([STAY, [[0.5, 0.4], [1, 0]]], {}, "transition of action 1: row 0 sums to 0.9, 0.1 below one"),
        (
            [STAY, [[0.0, 1.0], [0.5, 0.4]]],
            {"actions": ["stay", "go"], "names": "ab"},
            "transition of action 'go': row 1 (state 'b') sums to 0.9",
        ),
        ([STAY, [[-1, 2], [0, 1]]], {}, "transition of action 1: entry (0, 0) is -1, negative"),
        ([STAY, [[1.0]]], {}, "transition of action 1 has shape (1, 1), but the first has (2, 2); all must be equal"),
        (STAY, {}, "transition must contain one (n, n) matrix per action"),
        (sp.csr_array(STAY), {}, "transition must contain one (n, n) matrix per action"),
        ([], {}, "transition must contain one (n, n) matrix per action"),
        ([STAY], {"initial": 5}, "initial = 5 is not a state"),
        ([STAY], {"actions": ["a", "b"]}, "actions has 2 entries for 1 actions; give one per action"),
        ([STAY, SWAP], {"actions": ["a", "a"]}, "actions[1] = 'a' repeats actions[0]"),
        ([STAY, SWAP], {"names": ["a"]}, "names has 1 entries for 2 states"),
        ([STAY, SWAP], {"rewards": np.ones((2, 3))}, "rewards has shape (2, 3); expected (2, 2)"),
        (
            [STAY, SWAP],
            {"rewards": [[1, 2], [3, np.nan]]},
            "rewards[1, 1] is nan; every state and action needs",
        ),
        ([STAY, SWAP], {"rewards": [1, 2, 3]}, "rewards has shape (3,); expected (2,)"),
    ],
)
def test_refused_mdps(transition, options, message):
    with pytest.raises(InvalidChain, match=re.escape(message)):
        MDP(transition, **options)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.4]], "policy: row 1 (state 'b') sums to 0.9, 0.1 below one"),
        ([[1.5, -0.5], [1, 0]], "policy: entry (0, 1) (state 'a') is -0.5, negative"),
        ([[1.0, 0.0]], "policy has shape (1, 2); expected a dense array of shape (2, 2)"),
        ([0, 2], "policy[1] = 2 is not an action; actions run from 0 to 1"),
        ([0, -1], "policy[1] = -1 is not an action"),
        ([0.5, 0.5], "policy has shape (2,) and type float64; expected (2, 2) probabilities, or 2 integers"),
        ([0, 1, 0], "policy has shape (3,)"),
    ],
)
def test_refused_policies(policy, message):
    with pytest.raises(InvalidChain, match=re.escape(message)):
        MDP([STAY, SWAP], names="ab").induced_chain(policy)


def test_mdps_are_read_only_and_pickle():
    for T in ([STAY, SWAP], [sp.csr_array(STAY), sp.csr_array(SWAP)]):
        mdp = pickle.loads(pickle.dumps(MDP(T, rewards=[1, 2], names="ab", actions=("stay", "swap"))))
        assert np.array_equal(dense(mdp.transition[1]), SWAP)
        assert mdp.actions == ("stay", "swap")
        P = mdp.transition[0]
        assert not (P.data if sp.issparse(P) else P).flags.writeable
        assert not mdp.rewards.flags.writeable


def test_repr():
    assert repr(MDP([STAY, SWAP])) == "MDP(2 states, 2 actions, start 0)"
    assert repr(MDP([STAY, SWAP], initial="b", names="ab")) == "MDP(2 states, 2 actions, start 'b')"
    assert repr(MDP([STAY], initial=[0.5, 0.5])) == "MDP(2 states, 1 actions, start in 2 states)"
