"""Lumping against brute force in exact rationals, against all partitions, and against its own promises."""

import numpy as np
import pytest
import scipy.sparse as sp

from cases import each
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.lumping import lump
from diffbisim.solvers import LinearProgram
from oracles.bisimilarity import (
    blown_up,
    coarsest_bisimulation,
    floats,
    is_bisimulation,
    partitions,
    unstructured,
)


def check_promises(chain, result, tol):
    """No gap above tol inside a class, and a residual within the documented bound."""
    P = chain.transition.toarray() if chain.is_sparse else chain.transition
    into = np.eye(result.n_states)[result.assignment]
    rows, bound = P @ into, 0.0
    for k in range(result.n_states):
        mine = np.sort(rows[result.members(k)], axis=0)
        assert np.all(np.diff(mine, axis=0) <= tol + 1e-15)
        bound = max(bound, np.count_nonzero(mine.max(axis=0)) * (len(mine) - 1) * tol / 2)
    assert result.residual <= bound + 1e-15


@each(seed=range(150))
def test_lumpable_chains_as_brute_force(seed):
    rng = np.random.default_rng([1, seed])
    P, key = blown_up(rng, int(rng.integers(1, 7)), zeros=(0.0, 0.4, 0.8)[seed % 3])
    expected = coarsest_bisimulation(P, key)
    chain = MarkovChain(floats(P), rewards=key)
    result = lump(chain)
    assert result.assignment.tolist() == expected
    assert is_bisimulation(P, expected, key)
    assert result.residual <= 1e-15
    assert result.reward_residual == 0.0
    check_promises(chain, result, 1e-12)


@each(seed=range(100))
def test_unstructured_chains_as_brute_force(seed):
    rng = np.random.default_rng([2, seed])
    P, key = unstructured(rng, int(rng.integers(1, 10)), zeros=(0.0, 0.5, 0.85)[seed % 3])
    result = lump(MarkovChain(floats(P)), key=key)
    assert result.assignment.tolist() == coarsest_bisimulation(P, key)


@each(seed=range(40))
def test_no_bisimulation_is_coarser(seed):
    """Among *all* partitions of five states, every bisimulation refines the result."""
    rng = np.random.default_rng([3, seed])
    P, key = unstructured(rng, 5, zeros=0.7)
    found = lump(MarkovChain(floats(P)), key=key).assignment
    assert is_bisimulation(P, found.tolist(), key)
    for other in partitions(5):
        if is_bisimulation(P, other, key):
            assert len(set(zip(other, found, strict=True))) == len(set(other))


@each(seed=range(20))
def test_quotient_is_the_aggregated_chain(seed):
    rng = np.random.default_rng([4, seed])
    P, key = blown_up(rng, 5, zeros=0.3)
    start = rng.dirichlet(np.ones(len(P)))
    result = lump(MarkovChain(floats(P), initial=start, rewards=key))
    for k in range(result.n_states):
        members = result.members(k)
        assert np.array_equal(members, np.flatnonzero(result.assignment == k))
        for other in range(result.n_states):
            exact = sum(P[members[0]][t] for t in result.members(other))
            assert abs(result.chain.transition[k, other] - float(exact)) <= 1e-15
        assert abs(result.chain.initial[k] - start[members].sum()) <= 1e-15
        assert result.chain.rewards[k] == key[members[0]]


@each(seed=range(20))
def test_idempotent_permuted_sparse_and_noisy(seed):
    rng = np.random.default_rng([5, seed])
    P, key = blown_up(rng, 6, zeros=0.5)
    P, key = floats(P), np.array(key, dtype=float)
    dense = lump(MarkovChain(P, rewards=key))
    again = lump(dense.chain)
    assert again.assignment.tolist() == list(range(dense.n_states))
    sparse = lump(MarkovChain(sp.csr_array(P), rewards=key))
    assert sparse.chain.is_sparse
    assert not dense.chain.is_sparse
    assert np.array_equal(sparse.assignment, dense.assignment)
    np.testing.assert_array_equal(sparse.chain.transition.toarray(), dense.chain.transition)
    order = rng.permutation(len(P))
    moved = lump(MarkovChain(P, rewards=key).permuted(order)).assignment
    assert len(set(zip(moved, dense.assignment[order], strict=True))) == dense.n_states == moved.max() + 1
    noisy = P * (1 + 1e-14 * rng.uniform(-1, 1, P.shape))
    noisy_chain = MarkovChain(noisy / noisy.sum(axis=1, keepdims=True), rewards=key * (1 + 1e-14))
    assert np.array_equal(lump(noisy_chain).assignment, dense.assignment)
    assert lump(noisy_chain).residual <= 1e-13


@each(seed=range(6))
def test_classes_are_the_pairs_at_distance_zero(seed):
    """Two independent algorithms, one notion: the metric of the LP vanishes exactly within classes."""
    rng = np.random.default_rng([6, seed])
    P, key = blown_up(rng, 3, zeros=0.3)
    chain = MarkovChain(floats(P), rewards=key)
    result = lump(chain)
    values = LinearProgram().solve(Discounted.make(chain, chain, "reward", 0.8)).values
    same = result.assignment[:, None] == result.assignment
    assert values[same].max() <= 1e-12
    assert np.all(values[~same] > 1e-6)
    quotient = LinearProgram().solve(Discounted.make(chain, result.chain, "reward", 0.8))
    assert quotient.upper <= 1e-9


@pytest.mark.parametrize("tol", [1e-3, 0.03, 0.2])
@each(seed=range(15))
def test_promises_hold_for_coarse_tolerances(seed, tol):
    """Fixed point on rows that are not lumpable at all, where gaps chain and passes repeat."""
    rng = np.random.default_rng([7, seed])
    n = 40
    P = rng.dirichlet(np.full(n, 0.2), 8)[rng.integers(0, 8, n)] + 0.5 * tol * rng.random((n, n)) / n
    chain = MarkovChain(P / P.sum(axis=1, keepdims=True), rewards=rng.integers(0, 2, n))
    check_promises(chain, lump(chain, tol=tol), tol)


@each(seed=range(15))
def test_what_is_within_tol_stays_together(seed):
    """Promise 1: rows of one class that differ by up to tol in total variation are not separated."""
    rng = np.random.default_rng([8, seed])
    P, key = blown_up(rng, 4, zeros=0.0)
    exact, P, tol = coarsest_bisimulation(P, key), floats(P), 1e-4
    step, away = tol * (1 - 1e-9), np.eye(len(P))[rng.integers(0, len(P), len(P))]
    found = lump(MarkovChain((1 - step) * P + step * away, rewards=key), tol=tol).assignment
    assert len(set(zip(exact, found, strict=True))) == max(exact) + 1


def test_gaps_chain():
    """Weights 0, 0.9, 1.8 and 2.7 tol form one class although the ends differ by more: as documented."""
    tol = 1e-3
    P = np.zeros((6, 6))
    P[4, 4] = P[5, 5] = 1.0
    P[:4, 4] = 0.3 + 0.9 * tol * np.arange(4)
    P[:4, 5] = 1 - P[:4, 4]
    key = [0, 0, 0, 0, 1, 2]
    result = lump(MarkovChain(P), tol=tol, key=key)
    assert result.assignment.tolist() == key
    assert abs(result.residual - 1.35 * tol) <= 1e-15
    assert lump(MarkovChain(P), tol=0.8 * tol, key=key).n_states == 6


def test_without_rewards_or_key_everything_is_one_class():
    chain = MarkovChain(np.eye(3), names=("a", "b", "c"))
    result = lump(chain)
    assert result.n_states == 1
    assert result.reward_residual is None
    assert result.chain.transition[0, 0] == 1.0
    assert result.chain.names == ("a",)


def test_rewards_separate_relative_to_the_largest():
    same = np.full((4, 4), 0.25)
    assert lump(MarkovChain(same, rewards=[1e-15, 2e-15, 1e-15, 2e-15])).assignment.tolist() == [0, 1, 0, 1]
    assert lump(MarkovChain(same, rewards=[1e9, 1e9 + 1e-6, 0, 0])).assignment.tolist() == [0, 0, 1, 1]
    with_key = lump(MarkovChain(same, rewards=[1.0, 3.0, 5.0, 5.0]), key=["a", "a", "b", "b"])
    assert with_key.assignment.tolist() == [0, 0, 1, 1]
    assert with_key.chain.rewards.tolist() == [2.0, 5.0]
    assert with_key.reward_residual == 1.0


@pytest.mark.parametrize(
    "key",
    [
        np.array([1, 0, 1]),
        np.array([[0.5, 1], [0.5, 2], [0.5, 1]]),
        np.array(["b", "a", "b"]),
        ["b", None, "b"],
        [("x", 1), ("x", 2), ("x", 1)],
        [[0, 1], [1, 0], [0, 1]],
        np.array([{1}, {2}, {1}], dtype=object).astype(str).astype(object),
    ],
)
def test_keys_of_every_kind(key):
    assert lump(MarkovChain(np.full((3, 3), 1 / 3)), key=key).assignment.tolist() == [0, 1, 0]


def test_absorbing_disconnected_and_deterministic():
    # two copies of a cycle of 3, one of them seen in reverse numbering, and an absorbing state
    P = np.zeros((7, 7))
    for s, t in [(0, 1), (1, 2), (2, 0), (3, 5), (5, 4), (4, 3), (6, 6)]:
        P[s, t] = 1.0
    result = lump(MarkovChain(P, rewards=[0, 1, 2, 0, 2, 1, 0]))
    assert result.assignment.tolist() == [0, 1, 2, 0, 2, 1, 3]
    assert lump(MarkovChain(np.eye(4), rewards=[1, 1, 0, 1])).assignment.tolist() == [0, 0, 1, 0]
    assert lump(MarkovChain([[1.0]], rewards=[3.0])).assignment.tolist() == [0]


def test_a_line_is_told_apart_by_its_end():
    """Deterministic walk to the end: all n states differ, yet each edge is seen twice only."""
    n = 500
    P = sp.csr_array((np.ones(n), (np.arange(n), np.minimum(np.arange(n) + 1, n - 1))), shape=(n, n))
    result = lump(MarkovChain(P, rewards=np.arange(n) == n - 1))
    assert result.n_states == n
    assert result.edges_scanned == 2 * n


def test_paper_block_chain_collapses_to_its_blocks():
    move = np.diag([0.2] * 5) + np.diag([0.6] * 4, 1) + np.diag([0.2] * 4, -1)
    move[0, 0], move[4, 4] = 0.4, 0.8
    chain = MarkovChain(np.kron(move, np.full((5, 5), 0.2)), rewards=np.repeat(np.arange(5), 5))
    result = lump(chain)
    assert result.assignment.tolist() == np.repeat(np.arange(5), 5).tolist()
    np.testing.assert_allclose(result.chain.transition, move, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(result.chain.rewards, np.arange(5))
    assert repr(result).startswith("Lumping(25 states in 5 classes, residual ")


def test_lift_and_members():
    result = lump(MarkovChain(np.full((3, 3), 1 / 3), rewards=[7, 8, 7]))
    assert result.lift([10.0, 20.0]).tolist() == [10.0, 20.0, 10.0]
    assert result.lift(np.arange(4).reshape(2, 2), axis=1).tolist() == [[0, 1, 0], [2, 3, 2]]
    with pytest.raises(InvalidArgument, match="2 classes"):
        result.lift([1.0, 2.0, 3.0])
    with pytest.raises(InvalidArgument, match="k = 2"):
        result.members(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": -1.0}, "tol is -1.0"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"key": [0]}, "1 entries for 2 states"),
        ({"key": np.zeros((3, 2))}, "3 entries for 2 states"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        lump(MarkovChain(np.eye(2)), **options)


def test_a_matrix_is_a_chain_and_a_name_is_not():
    assert lump(np.eye(2)).chain.n_states == lump(MarkovChain(np.eye(2))).chain.n_states
    with pytest.raises(InvalidArgument, match="str"):
        lump("chain.npz")


@pytest.mark.parametrize("n_classes", [2_000, 100_000])
def test_a_hundred_thousand_states_in_linear_ish_work(n_classes):
    """Edges looked at stay below m (2 + log2 n), the theorem's count; blown-up classes are found again."""
    rng, n, k = np.random.default_rng(9), 100_000, 4
    cls = rng.permutation(np.arange(n) % n_classes)
    members = np.argsort(cls, kind="stable").reshape(n_classes, -1)
    targets, weights = rng.integers(0, n_classes, (n_classes, k)), rng.dirichlet(np.ones(k), n_classes)
    to = members[targets[cls], rng.integers(0, n // n_classes, (n, k))]
    P = sp.csr_array((weights[cls].ravel(), (np.repeat(np.arange(n), k), to.ravel())), shape=(n, n))
    result = lump(MarkovChain(P, rewards=cls % 2))
    assert result.n_states == n_classes
    assert len(np.unique(result.assignment * n_classes + cls)) == n_classes
    assert result.residual <= 1e-14
    assert result.edges_scanned <= P.nnz * (2 + np.log2(n))
