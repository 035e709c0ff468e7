"""Quotients of MDPs against brute force in exact rationals, against all partitions, and against the metric."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.examples import four_rooms
from diffbisim.processes.planning import optimal_values, policy_values
from oracles.bisimilarity import (
    blown_up,
    blown_up_mdp,
    coarsest_mdp_bisimulation,
    floats,
    is_bisimulation,
    partitions,
    unstructured,
)


def random_mdp(rng, n_classes, n_actions, zeros):
    """Rational kernels in which classes move alike, and rewards (n, n_actions) of two values, by class."""
    kernels, classes = blown_up_mdp(rng, n_classes, n_actions, zeros)
    return kernels, rng.integers(0, 2, (n_classes, n_actions))[classes]


@pytest.mark.parametrize("seed", range(40))
def test_lumpable_mdps_as_brute_force(seed):
    rng = np.random.default_rng([1, seed])
    kernels, r = random_mdp(rng, int(rng.integers(2, 6)), int(rng.integers(1, 4)), zeros=(0.0, 0.4, 0.8)[seed % 3])
    expected = coarsest_mdp_bisimulation(kernels, [tuple(row) for row in r])
    for wrap in (np.array, sp.csr_array):
        mdp = db.MDP([wrap(floats(P)) for P in kernels], rewards=r)
        found = db.lump(mdp)
        assert found.assignment.tolist() == expected
        assert found.mdp.is_sparse == mdp.is_sparse
        assert found.residual <= 1e-15
        assert found.reward_residual == 0.0
    for P in kernels:
        assert is_bisimulation(P, expected)
    assert db.lump(found.mdp).assignment.tolist() == list(range(found.n_states))  # idempotent


@pytest.mark.parametrize("seed", range(20))
def test_no_bisimulation_is_coarser(seed):
    """Among all partitions of five states, every bisimulation of both actions refines the result."""
    rng = np.random.default_rng([2, seed])
    (P, key), (Q, _) = (unstructured(rng, 5, zeros=0.8) for _ in range(2))
    found = db.lump(db.MDP([floats(P), floats(Q)]), key=key).assignment
    assert found.tolist() == coarsest_mdp_bisimulation([P, Q], key)
    for other in partitions(5):
        if is_bisimulation(P, other, key) and is_bisimulation(Q, other, key):
            assert len(set(zip(other, found, strict=True))) == len(set(other))


@pytest.mark.parametrize("seed", range(3))
def test_classes_are_the_pairs_at_distance_zero(seed):
    """Two independent algorithms, one notion: Ferns' metric vanishes exactly within classes."""
    rng = np.random.default_rng([3, seed])
    kernels, r = random_mdp(rng, 4, 2, zeros=0.3)
    mdp = db.MDP([floats(P) for P in kernels], rewards=r)
    found, U = db.lump(mdp), db.bisimulation(mdp, 0.8)
    same = found.assignment[:, None] == found.assignment
    assert U.values_upper[same].max() <= 2e-8
    assert (U.values_lower[~same] > 1e-6).all()
    assert db.distance(mdp, found.mdp, discount=0.8).upper <= 2e-8


def test_policies_of_the_quotient_have_the_values_of_their_lifts():
    rng = np.random.default_rng(4)
    kernels, r = random_mdp(rng, 5, 3, zeros=0.3)
    mdp = db.MDP([floats(P) for P in kernels], rewards=r, initial=rng.dirichlet(np.ones(len(r))))
    found = db.lump(mdp)
    policy = rng.dirichlet(np.ones(3), found.n_states)
    small, large = policy_values(found.mdp, policy, 0.9), policy_values(mdp, found.lift(policy), 0.9)
    assert np.abs(small.upper[found.assignment] - large.upper).max() <= 1e-12
    small, large = optimal_values(found.mdp, 0.9), optimal_values(mdp, 0.9)
    assert np.abs(small.upper[found.assignment] - large.upper).max() <= 1e-12
    assert found.mdp.initial == pytest.approx(np.bincount(found.assignment, weights=mdp.initial), abs=1e-15)


def test_one_action_is_a_chain_and_actions_tell_apart():
    rng = np.random.default_rng(5)
    P, key = blown_up(rng, 5, zeros=0.4)
    chain = db.lump(db.MarkovChain(floats(P), rewards=key))
    mdp = db.lump(db.MDP([floats(P)], rewards=key))
    assert np.array_equal(chain.assignment, mdp.assignment)
    assert np.array_equal(chain.chain.transition, mdp.mdp.transition[0])
    assert chain.edges_scanned == mdp.edges_scanned
    assert repr(mdp) == repr(chain).replace("Lumping", "MDPLumping")
    stay, swap = np.eye(4), np.eye(4)[[1, 0, 3, 2]]
    alike = db.MDP([stay, swap], rewards=[0, 1, 0, 1], actions=["stay", "swap"], names="abcd")
    assert db.lump(alike).assignment.tolist() == [0, 1, 0, 1]
    assert db.lump(alike).mdp.names == ("a", "b")
    assert db.lump(alike).mdp.actions == ("stay", "swap")
    turned = np.eye(4)[[1, 0, 2, 3]]  # the other pair does not swap
    assert db.lump(db.MDP([stay, turned], rewards=[0, 1, 0, 1])).assignment.tolist() == [0, 1, 2, 3]


def test_rewards_are_compared_action_by_action():
    """Gaps above tol under any action separate; a chain of small gaps that another action cuts is cut too."""
    same = [np.full((4, 4), 0.25)] * 2
    r = np.array([[0.0, 0], [0, 1], [0, 0], [1, 0]])
    assert db.lump(db.MDP(same, rewards=r)).assignment.tolist() == [0, 1, 0, 2]
    step = 0.9e-3
    chained = np.array([[0.0, 0], [step, 1], [2 * step, 0], [3 * step, 1]])
    assert db.lump(db.MDP(same, rewards=chained), tol=1e-3).assignment.tolist() == [0, 1, 2, 3]
    assert db.lump(db.MDP(same, rewards=chained[:, 0]), tol=1e-3 / step / 3).n_states == 1


def test_the_irrelevant_variable_is_found():
    rooms, plain = four_rooms(7, irrelevant=3), four_rooms(7)
    found = db.lump(rooms)
    assert found.assignment.tolist() == np.repeat(np.arange(40), 3).tolist()
    for P, Q in zip(found.mdp.transition, plain.transition, strict=True):
        assert abs(P - Q).max() <= 1e-15
    assert db.lump(plain).n_states == 40
    assert db.lump(four_rooms(7, irrelevant=3, influence=0.01)).n_states == 120


def test_bad_input():
    with pytest.raises(InvalidArgument, match=re.escape("chain is a list; give a MarkovChain or an MDP")):
        db.lump([np.eye(2)])
    with pytest.raises(InvalidArgument, match="1 entries for 2 states"):
        db.lump(db.MDP([np.eye(2)]), key=[0])
