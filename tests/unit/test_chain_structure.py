"""Classes, periods and stationary laws of a chain, against closed forms and against powers of the kernel."""

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each
from diffbisim.common.errors import InvalidChain
from diffbisim.processes import stochastic


def random_graph(seed):
    """A kernel with few transitions, so that classes, periods and absorbing states of all kinds turn up."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    P = (rng.random((n, n)) < 0.2) * rng.random((n, n))
    P[np.arange(n), rng.integers(0, n, n)] = 1.0
    return P / P.sum(axis=1, keepdims=True)


def reach(P):
    """Which states can reach which, in any number of steps: (I + P)^n."""
    return np.linalg.matrix_power(np.eye(len(P)) + (P > 0), len(P)) > 0


def period(P, x):
    """The gcd of the lengths up to 2 n² at which x can return."""
    step, power, lengths = P > 0, np.eye(len(P), dtype=bool), []
    for k in range(1, 2 * len(P) ** 2 + 1):
        power = power @ step
        if power[x, x]:
            lengths.append(k)
    return int(np.gcd.reduce(lengths))


def as_lists(classes):
    return [states.tolist() for states in classes]


@each(seed=range(30))
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_against_powers_of_the_kernel(seed, form):
    P = random_graph(seed)
    n, R = len(P), reach(P)
    chain = db.MarkovChain(form(P), initial=n - 1)
    mutual = R & R.T
    classes = sorted({tuple(np.flatnonzero(row)) for row in mutual})
    recurrent = [c for c in classes if set(np.flatnonzero(R[c[0]])) == set(c)]
    assert as_lists(chain.communicating_classes) == [list(c) for c in classes]
    assert as_lists(chain.recurrent_classes) == [list(c) for c in recurrent]
    assert chain.is_irreducible == bool(R.all())
    assert chain.periods == tuple(period(P, c[0]) for c in recurrent)
    assert chain.period == np.lcm.reduce(chain.periods)
    assert chain.is_aperiodic == all(k == 1 for k in chain.periods)
    assert chain.absorbing_states.tolist() == [x for x in range(n) if P[x, x] == 1.0]
    assert chain.reachable_states.tolist() == np.flatnonzero(R[n - 1]).tolist()


@each(seed=range(30))
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_stationary_laws_are_stationary_and_live_on_one_class(seed, form):
    """π = π P, sums to one, zero off its class: these define it."""
    P = random_graph(seed)
    chain = db.MarkovChain(form(P))
    laws = chain.stationary_distributions
    assert laws.shape == (len(chain.recurrent_classes), len(P))
    for law, states in zip(laws, chain.recurrent_classes, strict=True):
        assert np.flatnonzero(law).tolist() == states.tolist()
        assert law.sum() == pytest.approx(1, abs=1e-15 * len(P))
        np.testing.assert_allclose(law @ P, law, atol=1e-15 * len(P))


def test_stationary_law_of_a_birth_death_chain():
    """Detailed balance: π(i) is proportional to (up/down)^i, every entry to rounding even where it is 1e-60."""
    chain = db.examples.birth_death(101, 0.2, 0.8)
    known = 0.25 ** np.arange(101.0)
    np.testing.assert_allclose(chain.stationary_distribution, known / known.sum(), rtol=1e-13)


@pytest.mark.parametrize("p", [1e-160, 1e-300, 1e-318])
def test_stationary_law_with_probabilities_at_the_end_of_the_range(p):
    """A state that is entered with probability 1/2 and left with p, in the middle of three: its law is 1/(1 + 3 p)."""
    P = np.array([[0.5, 0.5, 0.0], [p / 2, 1 - p, p / 2], [0.0, 0.25, 0.75]])
    law = db.MarkovChain(P).stationary_distribution
    np.testing.assert_allclose(law, [p, 1, 2 * p], rtol=1e-4)
    np.testing.assert_allclose(db.MarkovChain(P[::-1, ::-1]).stationary_distribution, law[::-1], rtol=1e-4)


def test_stationary_law_where_others_lose_all_digits():
    """Two pairs of states that meet once in 10^13 steps: the law is known exactly, and no entry is off by more."""
    e = 1e-13
    P = [[0.5, 0.5 - e, e, 0], [0.5, 0.5, 0, 0], [2 * e, 0, 0.5 - 2 * e, 0.5], [0, 0, 0.5, 0.5]]
    chain = db.MarkovChain(P)
    flow = chain.transition[0, 2] / chain.transition[2, 0]  # π(2) / π(0), by balance between the pairs
    pair = [chain.transition[k, k + 1] / chain.transition[k + 1, k] for k in (0, 2)]
    known = np.array([1, pair[0], flow, flow * pair[1]])
    np.testing.assert_allclose(chain.stationary_distribution, known / known.sum(), rtol=1e-14)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_large_kernels_have_the_same_law(monkeypatch, form):
    chain = db.MarkovChain(form(db.examples.random_chain(60, 3).transition))
    exact = chain.stationary_distribution
    monkeypatch.setattr(stochastic, "MAX_STATES_FOR_DENSE_SOLVE", 10)
    again = db.MarkovChain(chain.transition).stationary_distribution
    np.testing.assert_allclose(again, exact, rtol=1e-12)


def test_time_averages_converge_to_the_law_of_the_class_that_is_reached():
    """The discounted occupancy tends to a mixture of the stationary laws as γ → 1, at the rate 1-γ."""
    P = np.zeros((5, 5))
    P[0, [1, 3]] = 0.25, 0.75
    P[1, 2] = P[2, 1] = 1.0
    P[3, [3, 4]], P[4, [3, 4]] = (0.9, 0.1), (0.4, 0.6)
    chain = db.MarkovChain(P)
    assert chain.periods == (2, 1)
    assert chain.period == 2
    assert not chain.is_aperiodic
    limit = np.array([0.25, 0.75]) @ chain.stationary_distributions
    np.testing.assert_allclose(limit, [0, 0.125, 0.125, 0.6, 0.15], atol=1e-15)
    np.testing.assert_allclose(chain.occupancy(1 - 1e-6), limit, atol=1e-5)


def test_a_cycle():
    chain = db.examples.cycle(6)
    assert (chain.is_irreducible, chain.period, chain.is_aperiodic) == (True, 6, False)
    np.testing.assert_allclose(chain.stationary_distribution, np.full(6, 1 / 6), rtol=1e-15)
    assert chain.absorbing_states.size == 0


def test_several_laws_are_not_one():
    chain = db.MarkovChain(np.eye(3))
    with pytest.raises(InvalidChain, match="3 recurrent classes, so its stationary distribution is not unique"):
        _ = chain.stationary_distribution
    assert np.array_equal(chain.stationary_distributions, np.eye(3))


def test_what_is_found_is_kept_and_read_only():
    chain = db.examples.cycle(3)
    assert chain.stationary_distributions is chain.stationary_distributions
    assert not chain.stationary_distribution.flags.writeable
    assert not chain.recurrent_classes[0].flags.writeable


def test_another_start_reaches_other_states():
    chain = db.MarkovChain([[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]])
    assert chain.reachable_states.tolist() == [0, 1]
    assert chain.with_initial(2).reachable_states.tolist() == [2]
