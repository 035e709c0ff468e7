"""Chains of classes: averaged rows, kinetic models, metastable sets, lags and timescales."""

import warnings

import numpy as np
import pytest
import scipy.linalg

import diffbisim as db
from cases import each
from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.reduction.compression import search as compression
from diffbisim.reduction.compression.kinetics import implied_timescales, kinetic_model, metastable_sets


def same_partition(a, b):
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


def literal(X, assignment):
    """Z of the classes, and their law, by the definition."""
    P, A = np.asarray(X.transition), np.eye(assignment.max() + 1)[assignment]
    pi = np.linalg.matrix_power(P, 2**20)[0]
    law = A.T @ pi
    return A.T @ (pi[:, None] * np.linalg.inv(np.eye(len(P)) - P + pi) @ A) / law[:, None], law


def rates_of(P, law):
    return np.linalg.inv(np.eye(len(P)) - P + law)


@each(seed=range(10))
def test_the_kinetic_model_has_the_fundamental_matrix_of_the_classes(seed):
    """Rare moves between quick blocks: the kernel wanted is a kernel, so nothing is missed."""
    rng = np.random.default_rng(seed)
    assignment = np.repeat(np.arange(3), 5)
    P = np.where(assignment[:, None] == assignment, 1.0, 0.02) * rng.random((15, 15))
    X = db.MarkovChain(P / P.sum(axis=1, keepdims=True))
    found = kinetic_model(X, assignment)
    Z, law = literal(X, assignment)
    assert found.residual == 0.0
    assert np.allclose(found.law, law, atol=1e-12)
    assert np.allclose(rates_of(found.transition, law), Z, rtol=1e-9, atol=1e-9)


@each(seed=range(10))
def test_the_law_is_kept_whatever_the_classes_are_and_no_mixture_fits_better(seed):
    """Random classes of a drifting ring: entries would be negative. The fit is convex, so mixtures tell the best."""
    rng = np.random.default_rng(seed)
    X = db.MarkovChain(0.9 * np.roll(np.eye(12), 1, axis=1) + 0.1 * rng.dirichlet(np.ones(12), size=12))
    assignment = np.append(rng.integers(0, 3, size=9), [0, 1, 2])
    found = kinetic_model(X, assignment)
    Z, law = literal(X, assignment)
    s = np.sqrt(law)
    values, vectors = np.linalg.eig(s[:, None] * Z / s)

    def power(p):
        return (vectors * values**p @ np.linalg.inv(vectors)).real

    def missed(P):
        whole = s[:, None] * (np.eye(3) - P + law) / s
        return np.linalg.norm(power(0.75) @ whole @ power(0.75) - power(0.5)) / np.linalg.norm(power(0.5))

    P = found.transition
    assert P.min() >= 0
    assert np.allclose(P.sum(axis=1), 1, atol=1e-12)
    assert np.allclose(law @ P, law, atol=1e-8)
    assert found.residual == pytest.approx(missed(P), abs=1e-6)
    for other in (np.tile(law, (3, 1)), np.eye(3), np.diag(1 / law) @ P.T @ np.diag(law)):
        for share in (1e-3, 0.1, 1.0):
            assert missed((1 - share) * P + share * other) >= found.residual - 1e-6


def test_a_drifting_ring_has_rates_that_three_states_cannot_have():
    X = db.MarkovChain(0.2 * np.eye(9) + 0.8 * np.roll(np.eye(9), 1, axis=1), rewards=np.repeat([0.0, 1.0, 2.0], 3))
    found = db.aggregate(X, np.repeat([0, 1, 2], 3), "kinetic")
    assert found.residual > 0.01
    assert found.distance.lower > 0


def test_exact_classes_give_the_quotient_by_either_method():
    X = db.examples.block_chain(4, 3)
    for method in ("mean", "kinetic"):
        found = db.aggregate(X, np.repeat(np.arange(4), 3), method)
        assert np.allclose(found.chain.transition, db.examples.block_quotient(4).transition, atol=1e-9)
        assert found.distance.upper <= 1e-6


@pytest.mark.parametrize("name", ["prinz_well", "quadruple_well"])
def test_four_wells_stay_as_slow_as_they_are(name):
    X = getattr(db.examples, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to remark on
        small = db.compress(X, 4, model="kinetic")
    large, times = small.implied_timescales
    S = np.sqrt(X.initial)[:, None] * X.transition / np.sqrt(X.initial)  # symmetric, by detailed balance
    assert np.allclose(large, -1 / np.log(np.linalg.eigvalsh((S + S.T) / 2)[-2:-5:-1]), rtol=1e-6)
    assert abs(times[0] / large[0] - 1) <= 0.05
    assert np.abs(times / large - 1).max() <= 0.10
    law = np.bincount(small.assignment, weights=X.initial)
    assert np.abs(small.chain.stationary_distribution - law).max() <= 1e-8
    assert small.timescales == pytest.approx((large[0], times[0]))
    assert "slowest timescales" in repr(small)
    with pytest.warns(UserWarning, match='model="kinetic", or a longer lag='):  # averages leave the wells too fast
        mean = db.aggregate(X, small.assignment)
    assert small.distance.upper <= mean.distance.lower


def test_the_four_wells_are_the_metastable_sets():
    X = db.examples.quadruple_well()
    axis = np.linspace(-1.5, 1.5, 14) > 0
    assert same_partition(metastable_sets(X, 4), (2 * axis[:, None] + axis).ravel())


def test_transient_states_go_where_they_lead_and_one_recurrent_class_is_needed():
    P = np.zeros((7, 7))
    P[:2, :2] = P[2:4, 2:4] = [[0.5, 0.49], [0.49, 0.5]]
    P[1, 2] = P[2, 1] = P[0, 3] = P[3, 0] = 0.01
    P[4, [0, 2]], P[5, [4, 3]], P[6, [0, 5]] = [0.3, 0.7], [0.1, 0.9], [0.8, 0.2]
    assignment = metastable_sets(db.MarkovChain(P, initial=6), 2)
    assert same_partition(assignment, np.array([0, 0, 1, 1, 1, 1, 0]))
    parts = db.MarkovChain(np.kron(np.eye(2), [[0.5, 0.5], [0.5, 0.5]]), rewards=[0, 1, 2, 3])
    with pytest.raises(InvalidChain, match="2 recurrent classes"):
        db.compress(parts, 2, model="kinetic")
    with pytest.raises(InvalidArgument, match="class 1 has only transient states"):
        db.aggregate(db.MarkovChain(P), [0, 0, 0, 0, 0, 0, 1], "kinetic")


def test_a_lagged_chain_is_returned_as_such():
    X = db.examples.prinz_well(30, 0.25)
    small = db.compress(X, 4, model="kinetic", lag=5)
    assert np.allclose(small.distance.problem.x.transition, np.linalg.matrix_power(X.transition, 5))
    assert small.lag == 5
    assert small.implied_timescales[0] == pytest.approx(implied_timescales(X, 3))  # in steps of the target
    again = db.aggregate(X, small.assignment, "kinetic", lag=5)
    assert np.array_equal(again.chain.transition, small.chain.transition)


def test_timescales_of_a_lazy_walk_around_a_ring():
    """Its eigenvalues are (1 + cos(2πk/n))/2, twice each."""
    shift = np.roll(np.eye(24), 1, axis=1)
    X = db.MarkovChain(0.5 * np.eye(24) + 0.25 * (shift + shift.T))
    known = -1 / np.log((1 + np.cos(2 * np.pi * np.array([1, 1, 2, 2]) / 24)) / 2)
    assert implied_timescales(X, 4) == pytest.approx(known)
    assert implied_timescales(db.MarkovChain(np.full((2, 2), 0.5)), 3).max() < 0.04  # λ is 1e-12 at most, by rounding
    three = db.MarkovChain(np.eye(3), initial=np.full(3, 1 / 3))
    assert implied_timescales(three, 3).tolist() == [np.inf, np.inf, 0.0]


# --- averages --------------------------------------------------------------------------------------------------


def test_a_mode_that_oscillates_forever_has_no_timescale():
    six = db.MarkovChain(np.roll(np.eye(6), 1, axis=1))  # eigenvalues: the sixth roots of unity
    assert implied_timescales(six, 5).tolist() == [np.inf, np.inf, 0.0, 0.0, 0.0]
    four = db.MarkovChain(np.roll(np.eye(4), 1, axis=1))  # 1, ±i, -1: none is slow
    assert implied_timescales(four, 3).tolist() == [0.0, 0.0, 0.0]


def test_fewer_metastable_sets_than_asked_for_are_told():
    X = db.MarkovChain([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]], rewards=[0, 1, 2])
    with pytest.warns(UserWarning, match="n_states is 2, but .* form only 1 metastable set; the model has 1"):
        assert db.compress(X, 2, model="kinetic").chain.n_states == 1


def test_classes_by_name_and_without_rewards():
    P = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])
    found = db.aggregate(db.MarkovChain(P), ["in", "in", "out"])
    assert found.chain.names == ("in", "out")
    assert np.allclose(found.chain.transition, [[0.7, 0.3], [0.8, 0.2]])
    assert found.distance.upper <= 1e-8  # costs are 1 where the class is another
    assert found.assignment.tolist() == [0, 0, 1]
    given = db.aggregate(db.MarkovChain(P), [0, 1, 1], weights=[1, 3, 1]).chain.transition
    assert np.allclose(given, [[0.5, 0.5], [0.75 * 0.1 + 0.25 * 0.4, 0.75 * 0.9 + 0.25 * 0.6]])


def test_the_nearest_average_is_an_average_over_its_classes():
    X = db.examples.random_chain(12, 4)
    found = db.compress(X, 3, model="aggregate", restarts=4)
    again = db.aggregate(X, found.assignment)
    assert found.model == "aggregate"
    assert np.allclose(found.chain.transition, again.chain.transition, atol=1e-9)
    assert found.distance.value == pytest.approx(again.distance.value, abs=1e-7)
    assert db.compress(X, 3, restarts=4).distance.lower <= found.distance.upper


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"assignment": [0, 1]}, r"assignment has shape \(2,\); give one class for each of the 3 states"),
        ({"assignment": [0, 2, 2]}, "class 1 has no states"),
        ({"assignment": [0, -1, 1]}, "there is a class -1"),
        ({"assignment": [0.0, 1.0, 1.0]}, "whole numbers from 0, or names"),
        ({"method": "median"}, '"mean" or "kinetic"'),
        ({"lag": 0}, "lag is 0"),
        ({"cost": "reward"}, "chain has no rewards"),
        ({"weights": "equal"}, '"occupancy", "stationary" or 3 numbers'),
        ({"weights": [1, -1, 0]}, "the least is -1"),
        ({"assignment": [0, 1, 2**62]}, "class 2 has no states"),
        ({"assignment": np.array([0, 0, 2**63], dtype=np.uint64)}, "class 1 has no states"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    X = db.MarkovChain(np.full((3, 3), 1 / 3))
    with pytest.raises(InvalidArgument, match=message):
        db.aggregate(X, **{"assignment": [0, 1, 1], **arguments})
    with pytest.raises(InvalidArgument, match="nearest"):
        db.compress(db.examples.random_chain(4, 0), 2, model="mean")


def test_a_saved_kinetic_model_comes_back(tmp_path):
    small = db.compress(db.examples.prinz_well(30, 0.25), 4, model="kinetic", lag=2)
    small.save(tmp_path / "small.npz")
    back = db.load(tmp_path / "small.npz")
    assert (back.model, back.lag, back.residual, repr(back)) == ("kinetic", 2, small.residual, repr(small))
    assert np.array_equal(back.assignment, small.assignment)
    arrays = dict(np.load(tmp_path / "small.npz"))
    arrays["classes"] = arrays["classes"] + 1
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InvalidData, match="classes"):
        db.load(tmp_path / "bad.npz")


# --- sweeps ----------------------------------------------------------------------------------------------------


def test_a_sweep_finds_its_landmarks_once_and_never_rises(monkeypatch):
    calls, real = [], compression.landmark_distances
    monkeypatch.setattr(compression, "landmark_distances", lambda *given: calls.append(1) or real(*given))
    sweep = db.compress_sweep(db.examples.random_chain(14, 2), (2, 3, 5), restarts=2, max_iterations=5)
    assert len(calls) == 1
    assert (np.diff(sweep.values) <= 1e-8).all()


def test_a_sweep_of_kinetic_models():
    sweep = db.compress_sweep(db.examples.prinz_well(30, 0.25), (2, 4), model="kinetic")
    assert [r.model for r in sweep.results] == ["kinetic", "kinetic"]
    assert [r.chain.n_states for r in sweep.results] == [2, 4]


def test_modes_are_found_where_the_selection_of_lapack_finds_none(monkeypatch):
    """As for matrices with entries near the smallest number. Oracle: the sets found with the selection."""
    X = db.examples.prinz_well(40, 0.3)
    expected, eigh = metastable_sets(X, 4), scipy.linalg.eigh

    def without_selection(S, **how):
        return (np.empty(0), np.empty((len(S), 0))) if "subset_by_index" in how else eigh(S, **how)

    monkeypatch.setattr(scipy.linalg, "eigh", without_selection)
    assert same_partition(metastable_sets(X, 4), expected)
