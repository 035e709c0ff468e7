"""Fitting with SOMCOT inside: the target is known by samples only."""

import itertools

import numpy as np
import pytest
import torch

import diffbisim as db
from diffbisim.learning.optimize.steps import Annealed
from diffbisim.results.base import Status
from diffbisim.solvers import Somcot

K = db.kernels
WALK = db.examples.drift_walk(1.5)
SMALL = db.examples.drift_walk(1.0, 6)


def endless(chain, seed, discount=0.95):
    """Minibatches of one transition each, drawn for ever."""
    rng = np.random.default_rng(seed)
    while True:
        yield from zip(*(v.tolist() for v in chain.sample_transitions(500, discount, rng)), strict=True)


def stream(chain, seed, length=None):
    return db.Stream(
        itertools.islice(endless(chain, seed), length), chain.n_states, initial=chain.initial, rewards=chain.rewards
    )


def test_drift_is_found_from_a_stream():
    result = db.fit(stream(WALK, 0), K.DriftWalk(-2.0), loop="single", solver=Somcot(4000, certify=False))
    assert abs(result.parameters["drift"] - 1.5) <= 0.1
    assert result.outcome is Status.ESTIMATED
    assert result.distance.upper == 15  # nothing is certified
    assert result.work["transitions"] >= result.work["iterations"]  # in whole chunks, each read once
    often = WALK.occupancy(0.95) > 0.02  # a thousand visits each
    np.testing.assert_allclose(result.distance.problem.x.transition[often], WALK.transition[often], atol=0.06)
    assert result.chain.rewards is not None


def test_single_loop_does_as_well_with_a_quarter_of_the_iterations():
    found = {}
    for loop, inner in (("double", 2000), ("single", 1000)):
        result = db.fit(SMALL, K.DriftWalk(-1.0, 6), solver=Somcot(inner), loop=loop, discount=0.9)
        found[loop] = abs(result.parameters["drift"] - 1.0), result.work["iterations"]
    assert found["double"][0] <= 0.1
    assert found["single"][0] <= 0.1
    assert 4 * found["single"][1] <= found["double"][1]


def test_a_coupling_that_is_carried_on_is_nearer_than_a_new_one():
    """After a short run for a learner that has hardly moved; the oracle is the exact distance."""
    first, second = (db.Stream(db.examples.drift_walk(f, 6), sampled=False) for f in (0.0, 0.05))
    X, exact = db.Stream(SMALL, sampled=False), db.distance(SMALL, second.source, discount=0.9).value
    before = Somcot(20_000, certify=False).estimate(X, first, "reward", 0.9)
    error = {}
    for carry in (False, True):
        after = Somcot(200, certify=False, carry=carry).estimate(X, second, "reward", 0.9, warm=before)
        error[carry] = abs(after.value - exact)
    assert 3 * error[True] <= error[False]


def test_from_data_and_certified_at_the_end():
    """With both kernels known, the last estimate has bounds, and the exact distance lies between them."""
    result = db.fit(SMALL, K.DriftWalk(0.0, 6), solver=Somcot(1000), max_iterations=10, discount=0.9)
    exact = db.distance(SMALL, result.chain, discount=0.9).value
    assert result.distance.lower <= exact <= result.distance.upper < 5
    s, t = SMALL.sample_transitions(5_000, 0.9, rng=0)
    data = db.Transitions.from_pairs(s, t, states=6)
    how = {"initial": SMALL.initial, "rewards": SMALL.rewards, "discount": 0.9}
    result = db.fit(data, K.DriftWalk(-1.0, 6), solver=Somcot(1000), **how)
    best = db.fit(data, K.DriftWalk(-1.0, 6), unseen="self-loop", tol=1e-4, **how)
    assert abs(result.parameters["drift"] - best.parameters["drift"]) <= 0.2


def test_a_stream_that_ends_is_drawn_from_again():
    ended = stream(SMALL, 1, 3_000)
    result = db.fit(ended, K.DriftWalk(-1.0, 6), solver=Somcot(1000), discount=0.9)
    assert ended.ended
    assert result.iterations == 40
    assert abs(result.parameters["drift"] - 1.0) <= 0.2


ADAM = {
    "optimizer": lambda p: torch.optim.Adam(p, 0.3),
    "scheduler": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
}


@pytest.mark.parametrize("outer", [{}, ADAM], ids=["rule", "adam"])
@pytest.mark.parametrize("loop", ["double", "single"])
def test_interrupted_and_resumed_is_the_same_bit_for_bit(loop, outer, tmp_path):
    how = {"solver": Somcot(300, rng=3), "max_iterations": 8, "loop": loop, "discount": 0.9, **outer}
    straight = db.fit(SMALL, K.DriftWalk(-1.0, 6), **how)

    class Interrupt(Exception):
        pass

    for stop in (1, 4, 6):

        def interrupt(row, stop=stop):
            if row["step"] == stop:
                raise Interrupt

        path = tmp_path / f"{stop}.npz"
        with pytest.raises(Interrupt):
            db.fit(SMALL, K.DriftWalk(-1.0, 6), checkpoint=path, every=2, callback=interrupt, **how)
        resumed = db.fit(SMALL, K.DriftWalk(-1.0, 6), checkpoint=path, every=2, **how)
        assert np.array_equal(straight.parameters["drift"], resumed.parameters["drift"]), stop
        assert np.array_equal(straight.curve(), resumed.curve()), stop
        assert (straight.value, straight.work) == (resumed.value, resumed.work), stop


def test_a_step_of_a_new_learner_keeps_what_was_seen_of_the_target():
    """Counts of the target, the unused rest of the last chunk included, outlive the learner."""
    X = stream(SMALL, 2)
    first, second = (db.Stream(db.examples.drift_walk(f, 6), sampled=False) for f in (0.0, 0.1))
    solver = Somcot(100, certify=False)
    before = solver.estimate(X, first, "reward", 0.9)
    after = solver.estimate(X, second, "reward", 0.9, warm=before)
    assert X.n_read == 256
    assert after.work["transitions_x"] == 256
    assert after.coupling.run.x.counts.sum() == 128 + 100
    np.testing.assert_allclose(after.problem.y.transition, second.source.transition)


def test_a_known_kernel_is_not_sampled():
    walk = db.examples.drift_walk(0.3, 5)
    at, s, after, w = db.Stream(walk, sampled=False).draw(64, 1, 0.9, np.random.default_rng(0))
    table = np.zeros((5, 5))
    table[s, after] = w / 64
    np.testing.assert_allclose(table, walk.transition_occupancy(0.9), atol=1e-12)
    assert at.tolist() == [0] + [s.size] * 64
    with pytest.raises(db.InvalidArgument, match="sampled=False needs a MarkovChain"):
        db.Stream([(0, 1)], 2, sampled=False)
    with pytest.raises(db.InvalidArgument, match="must be sampled"):
        Somcot(10, memory=False).estimate(walk, db.Stream(walk, sampled=False), "reward", 0.9)


def test_annealed_steps_span_the_space_of_models_and_end():
    rule = Annealed(40)
    lengths = [rule.length(1.0, 4.0, 2.0) for _ in range(41)]
    assert sum(lengths) * 2.0 == pytest.approx(np.pi, rel=0.05)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0
    assert rule.length(1.0, 0.0, 0.0) == 0


def test_a_stream_needs_a_stochastic_solver():
    with pytest.raises(db.InvalidArgument, match=r'stream, which needs.*solver="somcot"'):
        db.fit(stream(SMALL, 0), K.DriftWalk(0.0, 6), solver="exact")
