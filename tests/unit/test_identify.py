"""Identification: intervals that hold the truth, and replicates that are what a bootstrap says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import diffbisim as db
from diffbisim.learning.fit.identification import resample

WALK = db.examples.drift_walk(1.0, 6)
KNOWN = {"discount": 0.9, "initial": 3, "rewards": np.arange(6)}


def sample(n, seed):
    s, s_next = WALK.sample_transitions(n, 0.9, rng=seed)
    return db.Transitions.from_pairs(s, s_next, states=6)


def identify(data, **options):
    how = {"replicates": 10, "tol": 1e-3, **KNOWN, **options}
    return db.identify(data, db.kernels.DriftWalk(0.0, 6), **how)


def test_intervals_hold_the_truth_for_most_seeds_and_shrink_with_data():
    """Ten replicates cover about 85 %: of 4 intervals at least 2, up to a chance of 1 %. Widths go like 1/√n."""
    few, many = ([identify(sample(n, seed), rng=seed).intervals["drift"] for seed in range(2)] for n in (1_000, 9_000))
    assert sum(low <= 1.0 <= high for low, high in few + many) >= 2
    ratio = np.mean(np.ptp(few, axis=1)) / np.mean(np.ptp(many, axis=1))
    assert 2.0 <= ratio <= 4.5


def test_same_seed_same_answer_on_any_executor():
    data = sample(500, 0)
    how = {"replicates": 4, "max_iterations": 5}
    with ThreadPoolExecutor(2) as threads:
        one, two, other = (
            identify(data, rng=seed, executor=executor, **how).replicates["drift"]
            for seed, executor in ((1, None), (1, threads), (2, None))
        )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_default_kernel_is_the_empirical_chain():
    data = sample(2_000, 0)
    found = db.identify(data, replicates=0, **KNOWN)
    assert found.value <= 1e-7
    assert np.allclose(found.chain.transition, data.chain(initial=3).transition, atol=1e-6)
    assert found.intervals == {}


def test_a_replicate_draws_transitions_with_replacement():
    data = sample(300, 0)
    drawn = resample(data, np.random.default_rng(0))
    pairs = set(zip(data.states.tolist(), data.next_states.tolist(), strict=True))
    assert len(drawn) >= len(data)
    assert set(zip(drawn.states.tolist(), drawn.next_states.tolist(), strict=True)) <= pairs
    assert set(drawn.states) == set(data.states)


def test_a_lost_state_keeps_its_transitions():
    data = db.Transitions.from_pairs([0] * 99 + [1], [0] * 98 + [1, 0])
    seeds = (np.random.default_rng(k) for k in range(20))
    kernels = [resample(data, rng).chain().transition for rng in seeds]
    assert all(P[1, 0] == 1.0 for P in kernels)


@pytest.mark.parametrize(
    ("options", "message"), [({"confidence": 1.0}, "confidence"), ({"data": WALK}, "pass Transitions")]
)
def test_errors_name_the_argument_and_the_remedy(options, message):
    with pytest.raises(db.InvalidArgument, match=message):
        db.identify(**{"data": sample(50, 0), **KNOWN, **options})


def test_a_checkpoint_is_of_the_fit_to_the_data_and_not_of_the_replicates(tmp_path):
    """Replicates that went on from the file of the fit would all be the fit itself, and the intervals points."""
    s, s_next = db.examples.drift_walk(1.5, 5).sample_transitions(300, 0.9, rng=0)
    data = db.Transitions.from_pairs(s, s_next, states=5)
    how = {"discount": 0.9, "initial": 2, "rewards": range(5), "replicates": 4, "max_iterations": 20}
    plain = db.identify(data, db.kernels.DriftWalk(0.0, 5), **how)
    kept = db.identify(data, db.kernels.DriftWalk(0.0, 5), checkpoint=tmp_path / "run.npz", **how)
    assert np.array_equal(kept.replicates["drift"], plain.replicates["drift"])
    assert np.ptp(kept.replicates["drift"]) > 0


def test_identification_draws_clusters_and_does_not_shrink_to_one_trajectory():
    """Six sessions with the same steps say no more than one; a single trajectory is not certain either."""
    walks = [db.examples.drift_walk(0.8, 5).sample(15, rng=k) for k in range(12)]
    how = {"rewards": range(5), "discount": 0.9, "replicates": 12, "tol": 1e-2}

    def width(paths, **clusters):
        data = db.Transitions.from_trajectories(paths, states=5, **clusters)
        low, high = db.identify(data, db.kernels.DriftWalk(0.5, 5), **how).intervals["drift"]
        return float(high - low)

    once, often = width(walks), [walk for walk in walks for _ in range(6)]
    assert width(often, clusters=np.repeat(np.arange(12), 6)) == pytest.approx(once, rel=1e-6)
    assert width(often) < 0.8 * once  # as if all sessions were independent
    assert width([np.concatenate(walks)]) > 0.1
