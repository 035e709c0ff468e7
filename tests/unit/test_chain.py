"""MarkovChain: successors, occupancy, sampling, and chains made from a chain."""

import copy
import pickle
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from diffbisim.common.errors import InvalidArgument, InvalidChain
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import Successors, as_generator
from oracles.kernels import dense, power_series

P2 = [[0.9, 0.1], [0.5, 0.5]]


# --- members ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_successors_are_the_positive_entries_by_row(make):
    P = [[0.0, 1.0, 0.0], [0.25, 0.0, 0.75], [1e-300, 0.0, 1.0]]
    successors = MarkovChain(make(P)).successors
    assert isinstance(successors, Successors)
    assert np.array_equal(successors.indptr, [0, 1, 3, 5])
    assert np.array_equal(successors.indices, [1, 0, 2, 0, 2])
    assert np.array_equal(successors.probabilities, [1.0, 0.25, 0.75, 1e-300, 1.0])
    assert successors.indptr.dtype == successors.indices.dtype == np.int64


def test_successors_are_built_once_and_by_any_thread():
    chain = MarkovChain(np.full((50, 50), 1 / 50))
    found = []
    threads = [threading.Thread(target=lambda: found.append(chain.successors)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(np.array_equal(s.indices, found[0].indices) for s in found)
    assert chain.successors is chain.successors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "MarkovChain(2 states, 4 transitions, start 0)"),
        ({"initial": 1, "rewards": [0, 1]}, "MarkovChain(2 states, 4 transitions, start 1, rewards)"),
        ({"names": "ab"}, "MarkovChain(2 states, 4 transitions, start 'a', names)"),
        ({"initial": [0.5, 0.5]}, "MarkovChain(2 states, 4 transitions, start in 2 states)"),
    ],
)
def test_repr(options, text):
    assert repr(MarkovChain(P2, **options)) == text
    assert repr(MarkovChain([[1.0]])) == "MarkovChain(1 state, 1 transition, start 0)"


@pytest.mark.parametrize("discount", [0.5, 0.9, 0.99])
def test_occupancy_of_two_states_in_closed_form(discount):
    # ρ(1) solves ρ1 = γ (0.1 (1 - ρ1) + 0.5 ρ1)
    rho = MarkovChain(P2).occupancy(discount)
    second = 0.1 * discount / (1 - 0.4 * discount)
    assert rho == pytest.approx([1 - second, second], abs=1e-14)


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_occupancy_is_its_power_series(make, discount):
    rng = np.random.default_rng(1)
    P, start = rng.dirichlet(np.ones(6), size=6), rng.dirichlet(np.ones(6))
    chain = MarkovChain(make(P), initial=start)
    rho = power_series(P, start, discount)
    assert chain.occupancy(discount) == pytest.approx(rho, abs=1e-13)
    nu = chain.transition_occupancy(discount)
    assert sp.issparse(nu) == chain.is_sparse
    nu = nu.toarray() if chain.is_sparse else nu
    assert nu == pytest.approx(rho[:, None] * P, abs=1e-13)
    # flow: what enters a state, with the start, is what leaves it
    assert (1 - discount) * start + discount * nu.sum(axis=0) == pytest.approx(nu.sum(axis=1), abs=1e-13)


@pytest.mark.parametrize("discount", [0.9, 0.999])
def test_large_sparse_occupancy_agrees_with_a_direct_solve(discount):
    from scipy.sparse.linalg import spsolve

    n = 1500  # a walk on a ring with a long jump: LU stays sparse, so it can judge
    i = np.arange(n)
    P = sp.csr_array((np.repeat([0.6, 0.3, 0.1], n), (np.tile(i, 3), np.r_[(i + 1) % n, (i - 1) % n, i * 0])))
    chain = MarkovChain(P, initial=7)
    direct = spsolve((sp.eye_array(n) - discount * P.T).tocsc(), (1 - discount) * chain.initial)
    assert chain.occupancy(discount) == pytest.approx(direct, abs=1e-13)


@pytest.mark.parametrize("copies", [1, 300])
def test_unreachable_states_have_exactly_no_occupancy(copies):
    block = np.array([[0.2, 0.8, 0.0, 0.0], [0.7, 0.3, 0.0, 0.0], [0.3, 0.3, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]])
    P = sp.block_diag([block] * copies, format="csr")
    rho = MarkovChain(P if copies > 1 else block).occupancy(0.95)
    assert np.array_equal(np.flatnonzero(rho), [0, 1])
    assert rho.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("discount", [0, 1, -0.5, 1.5, float("nan")])
def test_occupancy_refuses_a_discount_outside_the_unit_interval(discount):
    with pytest.raises(InvalidArgument, match=r"discount is .*; it must lie strictly between 0 and 1"):
        MarkovChain(P2).occupancy(discount)


# --- sampling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_a_path_follows_the_kernel(make):
    P = np.array([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    path = MarkovChain(make(P), initial=2).sample(200_000, 0)
    assert len(path) == 200_001
    assert path[0] == 2
    counts = np.zeros((3, 3))
    np.add.at(counts, (path[:-1], path[1:]), 1)
    assert not counts[P == 0].any()
    # each row is a multinomial: five standard deviations of a share are below 0.01 here
    assert counts / counts.sum(axis=1, keepdims=True) == pytest.approx(P, abs=0.01)


def test_a_deterministic_path_is_known():
    assert np.array_equal(MarkovChain([[0, 1, 0], [0, 0, 1], [1, 0, 0]]).sample(4, 5), [0, 1, 2, 0, 1])
    assert np.array_equal(MarkovChain(P2, initial=1).sample(0, 0), [1])


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_sampled_transitions_have_the_transition_occupancy(make):
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.full(5, 0.3), size=5)
    P[P < 0.05] = 0
    P /= P.sum(axis=1, keepdims=True)
    chain = MarkovChain(make(P), initial=[0.5, 0, 0, 0.5, 0])
    n = 400_000
    s, s_next = chain.sample_transitions(n, 0.8, rng=4)
    share = np.bincount(s * 5 + s_next, minlength=25).reshape(5, 5) / n
    nu = power_series(P, chain.initial, 0.8)[:, None] * P
    assert not share[nu == 0].any()
    # five standard deviations of a binomial share
    assert (np.abs(share - nu) <= 5 * np.sqrt(nu * (1 - nu) / n) + 1e-12).all()


def test_draws_invert_the_cumulative_sums():
    P = np.array([[0.25, 0.0, 0.75, 0.0], [0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]])
    rows, u = np.divmod(np.arange(400), 100)
    u = (u + 0.5) / 100
    expected = [int(np.searchsorted(np.cumsum(P[row]), v, side="right")) for row, v in zip(rows, u, strict=True)]
    successors = MarkovChain(P).successors
    assert np.array_equal(successors.draw(rows, u), expected)
    step = successors.step()
    assert [step(int(row), float(v)) for row, v in zip(rows, u, strict=True)] == expected
    almost_one = np.full(4, np.nextafter(1.0, 0.0))
    assert np.array_equal(successors.draw(np.arange(4), almost_one), [2, 1, 3, 3])


def test_cumulative_sums_stay_accurate_over_many_rows():
    rng = np.random.default_rng(5)
    P = sp.csr_array(rng.dirichlet(np.ones(4), size=25_000).reshape(-1, 100_000))
    probabilities = P.data.reshape(-1, 4)
    successors = Successors(np.arange(0, 100_001, 4), np.tile(np.arange(4), 25_000), P.data)
    assert successors.cumulative.reshape(-1, 4) == pytest.approx(np.cumsum(probabilities, axis=1), abs=1e-14)


def test_same_seed_same_answer():
    chain = MarkovChain(P2)
    assert np.array_equal(chain.sample(50, 7), chain.sample(50, np.random.default_rng(7)))
    first, second = chain.sample_transitions(50, 0.9, 7), chain.sample_transitions(50, 0.9, 7)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    generator = np.random.default_rng(7)
    assert as_generator(generator) is generator


@pytest.mark.parametrize("rng", [None, -1, True, 1.5, "seed"])
def test_rng_must_be_an_integer_or_a_generator(rng):
    with pytest.raises(InvalidArgument, match="rng must be a non-negative integer or a numpy Generator, not"):
        MarkovChain(P2).sample(3, rng)


@pytest.mark.parametrize("n", [-1, 2.5, True])
def test_counts_must_be_non_negative_integers(n):
    with pytest.raises(InvalidArgument, match=r"n_steps is .*; it must be a non-negative integer"):
        MarkovChain(P2).sample(n, 0)
    with pytest.raises(InvalidArgument, match=r"n is .*; it must be a non-negative integer"):
        MarkovChain(P2).sample_transitions(n, 0.9, 0)


# --- relatives ----------------------------------------------------------------------------------------------


def test_with_initial_shares_the_kernel():
    chain = MarkovChain(P2, names="ab", rewards=[0, 1])
    other = chain.with_initial("b")
    assert np.array_equal(other.initial, [0, 1])
    assert np.array_equal(chain.initial, [1, 0])
    assert other.transition is chain.transition
    assert other.names == chain.names
    with pytest.raises(InvalidChain, match="initial = 'c' is not a state"):
        chain.with_initial("c")


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_permuted_moves_everything_along(make):
    rng = np.random.default_rng(6)
    P, order = rng.dirichlet(np.full(5, 0.5), size=5), [3, 0, 4, 1, 2]
    chain = MarkovChain(make(P), initial=rng.dirichlet(np.ones(5)), rewards=rng.random(5), names="abcde")
    moved = chain.permuted(order)
    assert np.array_equal(dense(moved), dense(chain)[np.ix_(order, order)])
    assert np.array_equal(moved.rewards, chain.rewards[order])
    assert moved.names == tuple("daebc")
    assert np.array_equal(moved.occupancy(0.9), moved.occupancy(0.9))
    assert moved.occupancy(0.9) == pytest.approx(chain.occupancy(0.9)[order], abs=1e-14)
    back = moved.permuted(np.argsort(order))
    assert np.array_equal(dense(back), dense(chain))
    if chain.is_sparse:
        assert moved.transition.has_canonical_format


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], [-1, 0], [0.5, 1]])
def test_permuted_refuses_what_is_no_permutation(order):
    with pytest.raises(InvalidArgument, match="order must contain each of 0 … 1 once"):
        MarkovChain(P2).permuted(order)


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
@pytest.mark.parametrize("clone", [lambda c: pickle.loads(pickle.dumps(c)), copy.copy, copy.deepcopy])
def test_copies_are_equal_and_read_only(make, clone):
    chain = MarkovChain(make(P2), initial=[0.5, 0.5], rewards=[1, 2], names=["a", ("b", 1)])
    chain.successors  # noqa: B018  (a filled cache must not hurt)
    other = clone(chain)
    assert np.array_equal(dense(other), dense(chain))
    assert np.array_equal(other.initial, chain.initial)
    assert np.array_equal(other.rewards, chain.rewards)
    assert other.names == chain.names
    assert other.index("a") == 0
    assert not other.initial.flags.writeable
    assert not (other.transition.data if other.is_sparse else other.transition).flags.writeable


def test_chains_are_compared_by_identity():
    a, b = MarkovChain(P2), MarkovChain(P2)
    assert a != b
    assert len({a, b, a}) == 2


# --- laws ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), discount=st.floats(0.01, 0.99))
def test_dense_and_sparse_chains_agree(seed, n, discount):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(n, 0.4), size=n)
    P[rng.random((n, n)) < 0.5] = 0
    P[np.arange(n), rng.integers(0, n, n)] += 0.1
    P /= P.sum(axis=1, keepdims=True)
    a = MarkovChain(P, initial=int(rng.integers(n)))
    b = MarkovChain(sp.coo_array(P), initial=a.initial)
    assert np.array_equal(a.successors.indices, b.successors.indices)
    assert a.successors.probabilities == pytest.approx(b.successors.probabilities, rel=1e-15)
    assert a.occupancy(discount) == pytest.approx(b.occupancy(discount), abs=1e-14)
    assert a.occupancy(discount).sum() == pytest.approx(1, abs=1e-14)
    assert np.array_equal(a.sample(20, seed), b.sample(20, seed))
