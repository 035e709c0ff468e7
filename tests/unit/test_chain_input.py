"""MarkovChain at the door: what it accepts, what it refuses and how it says so, and how a state is named."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from diffbisim.common.errors import DiffbisimError, InvalidChain
from diffbisim.processes.chain import MarkovChain
from oracles.kernels import dense

P2 = [[0.9, 0.1], [0.5, 0.5]]
SPARSE_FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]


# --- input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [list, np.array, np.asfortranarray, sp.csr_matrix, sp.csr_array])
def test_every_form_of_the_same_kernel_is_the_same_chain(make):
    chain = MarkovChain(make(P2) if make is not list else P2)
    assert np.array_equal(dense(chain), P2)
    assert chain.is_sparse == (make in (sp.csr_matrix, sp.csr_array))
    assert chain.n_states == 2
    assert chain.n_transitions == 4


@pytest.mark.parametrize("form", SPARSE_FORMATS)
def test_every_sparse_format_becomes_canonical_csr(form):
    P = [[0.0, 1.0, 0.0], [0.25, 0.0, 0.75], [0.0, 0.0, 1.0]]
    chain = MarkovChain(sp.csr_array(P).asformat(form))
    assert isinstance(chain.transition, sp.csr_array)
    assert chain.transition.has_canonical_format
    assert chain.transition.nnz == 4
    assert np.array_equal(dense(chain), P)


def test_sparse_duplicates_are_added_and_zeros_removed():
    P = sp.coo_array(([0.5, 0.5, 0.0, 1.0], ([0, 0, 0, 1], [1, 1, 0, 0])), shape=(2, 2))
    chain = MarkovChain(P)
    assert chain.transition.nnz == 2
    assert np.array_equal(dense(chain), [[0, 1], [1, 0]])


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_the_chain_is_a_read_only_copy(make):
    source = make(P2)
    chain = MarkovChain(source, rewards=[0.0, 1.0])
    (source.data if sp.issparse(source) else source)[:] = 0
    assert np.array_equal(dense(chain), P2)
    buffer = chain.transition.data if chain.is_sparse else chain.transition
    for array in (buffer, chain.initial, chain.rewards, chain.successors.probabilities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        chain.initial = chain.initial


def test_dense_kernels_are_float64_and_contiguous():
    chain = MarkovChain(np.asfortranarray([[0, 1], [1, 0]], dtype=np.int8))
    assert chain.transition.dtype == np.float64
    assert chain.transition.flags.c_contiguous


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_tiny_probabilities_survive_and_tiny_negatives_become_zero(make):
    chain = MarkovChain(make([[1.0 - 1e-300, 1e-300, 0.0], [1.0, -1e-13, 1e-13], [0.0, 0.0, 1.0]]))
    P = dense(chain)
    assert P[0, 1] == 1e-300
    assert P[1, 1] == 0.0
    assert chain.n_transitions == 5
    assert chain.successors.probabilities[1] == 1e-300


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_rows_within_tolerance_are_normalized(make):
    P = np.array([[0.3, 0.7 + 5e-9], [0.2, 0.8 - 5e-9]])
    assert np.abs(dense(MarkovChain(make(P))).sum(axis=1) - 1).max() <= 3e-16
    with pytest.raises(InvalidChain):
        MarkovChain(make(P + 5e-8))
    single = np.array([[1 / 3, 2 / 3], [0.1, 0.9]], dtype=np.float32)
    single[0, 0] += np.float32(4e-6)
    rounded = dense(MarkovChain(make(single)))
    assert rounded.dtype == np.float64
    assert np.abs(rounded.sum(axis=1) - 1).max() <= 3e-16


def test_normalizing_twice_changes_nothing():
    rng = np.random.default_rng(0)
    once = MarkovChain(rng.dirichlet(np.ones(40), size=40) * (1 + 3e-9))
    assert np.array_equal(MarkovChain(once.transition).transition, once.transition)


# --- refusals: each message names argument, row, value, distance and remedy ---------------------------------


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        ([[0.9, 0.2], [0.5, 0.5]], "transition: row 0 sums to 1.1, 0.1 above one; divide the row by its sum"),
        ([[0.9, 0.1], [0.5, 0.25]], "transition: row 1 sums to 0.75, 0.25 below one"),
        ([[0.5, 0.2], [0.5, 0.8]], "the columns sum to one: pass the transpose"),
        ([[1.0, 0.0], [0.0, 0.0]], "row 1 sums to 0, 1 below one; give the state successors, or a self-loop"),
        ([[0.9, np.nan], [0.5, 0.5]], "transition: entry (0, 1) is nan, not a finite number"),
        ([[0.9, 0.1], [np.inf, 0.5]], "transition: entry (1, 0) is inf, not a finite number"),
        ([[0.9, 0.1], [-np.inf, 0.5]], "transition: entry (1, 0) is -inf, not a finite number"),
        ([[1.3, -0.3], [0.5, 0.5]], "transition: entry (0, 1) is -0.3, negative; probabilities lie between"),
        ([[0.5, 0.5]], "transition has shape (1, 2); it must be square"),
        ([0.5, 0.5], "transition has shape (2,); it must be square"),
        ([], "transition is empty; a chain needs at least one state"),
        ([[]], "transition is empty"),
        ([[1.0, 0.0], [1.0]], "transition is not a rectangular table of real numbers"),
        (
            [["0.5", "0.5"], ["1", "0"]],
            "transition is not a rectangular table of real numbers (entries of type",
        ),
        ([[1j, 1 - 1j], [0, 1]], "transition is not a rectangular table of real numbers (entries of type"),
    ],
)
def test_refused_kernels(transition, message):
    with pytest.raises(InvalidChain, match=re.escape(message)) as caught:
        MarkovChain(transition)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DiffbisimError)


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        ([[0.9, 0.2], [0.5, 0.5]], "row 0 (state 'a') sums to 1.1"),
        ([[0.0, 1.0], [-1.0, 2.0]], "entry (1, 0) (state 'b') is -1, negative"),
        ([[0.0, 1.0], [0.0, np.nan]], "entry (1, 1) (state 'b') is nan"),
        ([[0.0, 1.0], [0.0, 0.0]], "row 1 (state 'b') sums to 0"),
    ],
)
@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_refusals_name_the_name_dense_and_sparse(transition, message, make):
    with pytest.raises(InvalidChain, match=re.escape(message)):
        MarkovChain(make(transition), names=["a", "b"])


def test_an_empty_sparse_kernel_is_refused():
    with pytest.raises(InvalidChain, match="transition is empty"):
        MarkovChain(sp.csr_array((0, 0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": 2}, "initial = 2 is not a state; give an index from 0 to 1, or a distribution"),
        ({"initial": -1}, "initial = -1 is not a state"),
        ({"initial": True}, "initial = True is not a state"),
        ({"initial": 0.0}, "initial = 0.0 is not a state"),
        ({"initial": "c", "names": "ab"}, "initial = 'c' is not a state; give a name, an index from 0 to 1"),
        ({"initial": ("x", "y", 1)}, "initial = ('x', 'y', 1) is not a state"),
        ({"initial": [0.5, 0.4]}, "initial sums to 0.9, 0.1 below one; divide it by its sum"),
        ({"initial": [1.5, -0.5]}, "initial[1] = -0.5 is negative"),
        ({"initial": [0.5, np.nan]}, "initial[1] is nan; every state needs a finite number"),
        ({"initial": [1.0]}, "initial has shape (1,); expected (2,), one number per state"),
        ({"initial": [[1.0, 0.0]]}, "initial has shape (1, 2); expected (2,)"),
        ({"rewards": [0.0]}, "rewards has shape (1,); expected (2,), one number per state"),
        ({"rewards": [0.0, np.nan]}, "rewards[1] is nan; every state needs a finite number"),
        ({"rewards": [0.0, -np.inf]}, "rewards[1] is -inf"),
        ({"rewards": ["x", 0.0]}, "rewards is not an array of numbers"),
        ({"rewards": np.array([1j, 0])}, "rewards is not an array of numbers (its entries are complex)"),
        ({"rewards": {0: 1.0}}, "rewards has no entry for state 1; add one"),
        ({"rewards": {"a": 1.0, "b": 2.0, "c": 0.0}, "names": "ab"}, "rewards names 'c', which is not a known state"),
        ({"names": ["a"]}, "names has 1 entries for 2 states; give one per state"),
        ({"names": ["a", "a"]}, "names[1] = 'a' repeats names[0]; they must be distinct"),
        ({"names": ["a", ["b"]]}, "names[1] = ['b'] is not hashable; use strings, numbers or tuples"),
        ({"names": ["a", None]}, "names[1] is None, a missing value; give the state a name, such as 'none'"),
        ({"names": [float("nan"), "b"]}, "names[0] is nan, a missing value"),
        ({"names": ["a", (1, float("nan"))]}, "names[1] is (1, nan), a missing value"),
        ({"names": {"a", "b"}}, "names is a set; give a list, in the order of the states"),
        ({"names": {0: "a", 1: "b"}}, "names is a mapping; give a list, in the order of the states"),
        ({"rewards": np.ma.array([1, 2], mask=[False, True])}, "rewards[1] is masked, that is, missing; fill it in"),
        (
            {"initial": {"a": 0.5, "c": 0.5}, "names": "ab"},
            "initial names 'c', which is not a known state (the names are 'a', 'b')",
        ),
        ({"initial": {"a": 0.5}, "names": "ab"}, "initial sums to 0.5"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(InvalidChain, match=re.escape(message)):
        MarkovChain(P2, **options)


# --- the rule for naming a state ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "initial", "index"),
    [
        (None, 1, 1),
        (None, np.int64(1), 1),
        (("b", "a"), "a", 1),
        (("b", "a"), 1, 1),  # no such name: an index
        ((7, 0), 0, 1),  # a name first
        ((7, 0), 7, 0),
        (((0, 1), (1, 0)), (1, 0), 1),  # a tuple that is a name is no distribution
        (np.array(["b", "a"]), np.str_("a"), 1),
    ],
)
def test_names_come_before_indices(names, initial, index):
    chain = MarkovChain(P2, initial=initial, names=names)
    assert np.array_equal(chain.initial, np.eye(2)[index])
    assert chain.index(initial) == index


def test_index_and_name_are_inverse():
    chain = MarkovChain(np.eye(3), names=["x", ("y", 1), 2.5])
    assert [chain.index(chain.name_of(i)) for i in range(3)] == [0, 1, 2]
    assert MarkovChain(np.eye(3)).name_of(2) == 2
    with pytest.raises(InvalidChain, match=re.escape("'z' is not a state: give a name or an index from 0 to 2")):
        chain.index("z")
    with pytest.raises(InvalidChain, match=re.escape("3 is not a state: indices run from 0 to 2")):
        chain.name_of(3)


def test_a_start_distribution_is_normalized():
    chain = MarkovChain(P2, initial=np.array([0.25, 0.75], dtype=np.float32))
    assert np.array_equal(chain.initial, [0.25, 0.75])
    assert np.array_equal(MarkovChain(P2, initial=(0.5, 0.5)).initial, [0.5, 0.5])


def test_a_start_by_name_may_leave_out_states():
    assert np.array_equal(MarkovChain(P2, initial={"b": 1}, names="ab").initial, [0, 1])
    assert np.array_equal(MarkovChain(P2, initial={1: 0.25, 0: 0.75}).initial, [0.75, 0.25])


def test_a_masked_kernel_is_refused():
    with pytest.raises(InvalidChain, match=re.escape("transition[0, 1] is masked, that is, missing; fill it in")):
        MarkovChain(np.ma.array(P2, mask=[[False, True], [False, False]]))
    assert np.array_equal(MarkovChain(np.ma.array(P2)).transition, P2)


def test_rewards_by_name_and_by_index():
    assert np.array_equal(MarkovChain(P2, rewards={"b": 2, "a": 1}, names="ab").rewards, [1.0, 2.0])
    assert np.array_equal(MarkovChain(P2, rewards={1: 5.0, 0: 4.0}).rewards, [4.0, 5.0])


def test_numpy_names_become_python_ones():
    assert MarkovChain(P2, names=np.array([3, 5])).names == (3, 5)
    assert type(MarkovChain(P2, names=[np.int64(3), np.str_("a")]).names[0]) is int
