"""Streams: what they give, and what they say when they cannot."""

import itertools

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidData
from diffbisim.processes.streams import Stream
from diffbisim.results.base import Status
from diffbisim.solvers import Somcot

RNG = np.random.default_rng


def drawn(stream, n=4, batch=1, discount=0.9, seed=0):
    at, s, after, w = stream.draw(n, batch, discount, RNG(seed))
    return at.tolist(), s.tolist(), after.tolist(), w.tolist()


def test_a_chain_is_drawn_from_its_discounted_occupancy():
    chain = db.examples.drift_walk(0.4, 5)
    _, s, after, _ = Stream(chain).draw(200_000, 1, 0.9, RNG(0))
    counts = np.zeros((5, 5))
    np.add.at(counts, (s, after), 1 / s.size)
    np.testing.assert_allclose(counts, chain.transition_occupancy(0.9), atol=5 * np.sqrt(0.25 / s.size))


def test_a_dataset_is_drawn_by_its_weights():
    data = db.Transitions.from_pairs([0, 1], [1, 0], weights=[3.0, 1.0])
    _, s, _, _ = Stream(data).draw(40_000, 1, 0.9, RNG(1))
    assert (s == 0).mean() == pytest.approx(0.75, abs=5 * np.sqrt(0.1875 / s.size))


def test_an_iterable_comes_in_its_own_order():
    stream = Stream(iter([(0, 1), (1, 2, 0.5), (2, 0), (0, 0)]), n_states=3)
    assert drawn(stream, 2) == ([0, 1, 2], [0, 1], [1, 2], [1.0, 0.5])
    assert drawn(stream, 5) == ([0, 1, 2], [2, 0], [0, 0], [1.0, 1.0])
    assert drawn(stream, 5) == ([0], [], [], [])


def test_single_transitions_are_bundled_and_minibatches_kept():
    stream = Stream([(0, 1)] * 5, n_states=2)
    assert drawn(stream, 9, batch=2)[0] == [0, 2, 4]  # the fifth does not make a minibatch
    stream = Stream([([0, 1, 0], [1, 0, 0]), ([1], [1])], n_states=2)
    assert drawn(stream, 9, batch=7) == ([0, 3, 4], [0, 1, 0, 1], [1, 0, 0, 1], [1.0] * 4)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((0, 3), r"item 2 .*s_next = 3 is not a state.*0 to 2"),
        ((-1, 0), r"item 2 .*s = -1 is not a state"),
        ((0.5, 1), r"item 2 .*states are indices"),
        ((np.nan, 1), r"item 2 .*states are indices"),
        (("a", "b"), r"item 2 .*states are indices"),
        ((0, 1, np.nan), r"item 2 .*weight nan"),
        ((0, 1, 0.0), r"item 2 .*weight 0"),
        ((0, 1, -1.0), r"item 2 .*weight -1"),
        (([], []), r"item 2 .*empty minibatch"),
        (([0, 1], [1]), r"item 2 .*must be equal"),
        (7, r"item 2 .*expected \(s, s_next\)"),
        (None, r"item 2 .*expected \(s, s_next\)"),
    ],
)
def test_bad_items_are_named_and_the_good_ones_kept(item, message):
    stream = Stream([(0, 1), (1, 2), item, (2, 0)], n_states=3)
    assert drawn(stream, 9)[1] == [0, 1]
    with pytest.raises(InvalidData, match=message):
        stream.draw(9, 1, 0.9, RNG(0))
    assert drawn(stream, 9)[1] == [2]


def test_bad_sources_are_named():
    for source in (3, "abc", None):
        with pytest.raises(InvalidArgument, match="source is a"):
            Stream(source, n_states=2)
    with pytest.raises(InvalidArgument, match="n_states is None"):
        Stream([(0, 1)])
    with pytest.raises(InvalidArgument, match="n_states is 3, but the source has 5"):
        Stream(db.examples.drift_walk(0.0, 5), 3)
    with pytest.raises(InvalidArgument, match=r"X is a list.*diffbisim.Stream"):
        db.distance([(0, 1)], db.examples.drift_walk(0.0, 5), solver="somcot")


# --- streams in the solver -------------------------------------------------------------------------------------


def endless(chain, discount, seed):
    rng = RNG(seed)
    while True:
        yield from zip(*(v.tolist() for v in chain.sample_transitions(500, discount, rng)), strict=True)


def pair():
    return db.examples.drift_walk(1.0, 5), db.examples.drift_walk(-0.5, 5)


def as_stream(chain, seed, discount=0.9):
    return db.Stream(endless(chain, discount, seed), chain.n_states, initial=2, rewards=chain.rewards)


def test_endless_iterators_give_the_distance():
    X, Y = pair()
    result = db.distance(as_stream(X, 0), as_stream(Y, 1), discount=0.9, solver=Somcot(20_000))
    assert result.outcome is Status.ESTIMATE
    assert result.value == pytest.approx(db.distance(X, Y, discount=0.9).value, rel=0.03)
    assert result.lower == 0
    assert result.upper == 4  # nothing is certified without the kernels
    np.testing.assert_allclose(result.problem.x.transition, X.transition, atol=0.05)
    assert result.work == {"transitions_x": 20_480, "transitions_y": 20_480}  # in whole chunks


def test_any_exploration_will_do():
    """Long walks are not drawn from the discounted occupancy; with memory that does not matter."""
    X, Y = pair()
    streams = [
        db.Stream(
            db.Transitions.from_trajectories([c.sample(20_000, s)], states=range(5)), initial=2, rewards=c.rewards
        )
        for s, c in enumerate((X, Y))
    ]
    result = db.distance(*streams, discount=0.9, solver=Somcot(20_000))
    seen = result.problem  # what was drawn, so that only the iterations are to blame
    assert result.value == pytest.approx(db.distance(seen.x, seen.y, discount=0.9).value, rel=0.02)
    assert result.value == pytest.approx(db.distance(X, Y, discount=0.9).value, rel=0.1)


def test_datasets_and_chains_mix():
    X, Y = pair()
    data = db.Transitions.from_trajectories([Y.sample(30, s) for s in range(50)], states=range(5))
    result = db.distance(X, data, np.abs(np.subtract.outer(X.rewards, Y.rewards)), 0.9, solver=Somcot(3_000))
    assert result.problem.x is X
    assert 0 < result.value < 4


def test_a_stream_that_ends_gives_what_it_has_and_can_go_on():
    X, Y = pair()
    short = db.Stream(itertools.islice(endless(X, 0.9, 0), 3000), 5, initial=2, rewards=X.rewards)
    with pytest.warns(ConvergenceWarning, match="stream ended early"):
        part = db.distance(short, as_stream(Y, 1), discount=0.9, solver=Somcot(10_000))
    assert part.iterations == 3000
    more = db.distance(as_stream(X, 5), as_stream(Y, 6), discount=0.9, solver=Somcot(6_000), warm=part)
    assert more.iterations == 6000
    assert more.work["transitions_x"] >= 6000


def test_a_resumed_iterator_repeats_every_bit():
    X, Y = pair()
    whole = db.distance(as_stream(X, 0), as_stream(Y, 1), discount=0.9, solver=Somcot(5_000))
    streams = as_stream(X, 0), as_stream(Y, 1)
    part = db.distance(*streams, discount=0.9, solver=Somcot(1_234))
    rest = db.distance(*streams, discount=0.9, solver=Somcot(5_000), warm=part)
    assert rest.value == whole.value
    np.testing.assert_array_equal(rest.gradient.transition_y, whole.gradient.transition_y)


def test_an_empty_stream_is_refused():
    with pytest.raises(InvalidData, match="ended before its first transition"):
        db.distance(db.Stream([], 2), db.Stream([(0, 1)], 2), np.ones((2, 2)), solver="somcot")


def test_a_bad_item_keeps_what_was_reached():
    X, Y = pair()
    bad = itertools.chain(itertools.islice(endless(X, 0.9, 0), 2000), [(0, 17)])
    with pytest.raises(InvalidData, match=r"item 2000 .*17 is not a state") as caught:
        db.distance(
            db.Stream(bad, 5, initial=2, rewards=X.rewards), as_stream(Y, 1), discount=0.9, solver=Somcot(9_999)
        )
    part = caught.value.result
    assert part.iterations == 2000
    assert part.outcome is Status.INTERRUPTED


def test_a_repeating_stream_is_a_deterministic_process():
    cycle = db.Stream(itertools.cycle([(0, 1), (1, 2), (2, 0)]), 3, rewards=[0.0, 1.0, 2.0])
    still = db.Stream(itertools.repeat((0, 0)), 1, rewards=[0.0])
    γ = 0.5
    result = db.distance(cycle, still, discount=γ, solver=Somcot(4_000))
    assert result.value == pytest.approx((γ + 2 * γ**2) * (1 - γ) / (1 - γ**3), rel=0.01)


def test_callback_stops_and_history_tells():
    X, Y = pair()
    rows = []
    with pytest.warns(ConvergenceWarning, match="Interrupted"):
        part = db.distance(
            X, Y, discount=0.9, solver=Somcot(50_000), callback=lambda row: rows.append(row) or row["iteration"] >= 4096
        )
    assert part.iterations == 4096
    assert [row["iteration"] for row in part.history] == sorted({row["iteration"] for row in rows})
    assert {"value", "last", "lower", "upper", "transitions_x"} <= set(part.history[-1])


def test_other_chains_begin_from_the_old_iterates():
    """As in fitting: the learner has moved a little, and fewer steps do."""
    X, Y = pair()
    old = db.distance(X, Y, discount=0.9, solver=Somcot(20_000))
    new = db.examples.drift_walk(-0.4, 5)
    exact = db.distance(X, new, discount=0.9).value
    warm = db.distance(X, new, discount=0.9, solver=Somcot(2_000, rng=5), warm=old)
    cold = db.distance(X, new, discount=0.9, solver=Somcot(2_000, rng=5))
    assert warm.iterations == 2000
    assert abs(warm.value - exact) < abs(cold.value - exact)


def test_results_of_other_solvers_are_taken_as_a_start():
    X, Y = pair()
    exact = db.distance(X, Y, discount=0.9)
    warm = db.distance(X, Y, discount=0.9, solver=Somcot(2_000), warm=exact)
    assert warm.value == pytest.approx(exact.value, rel=0.2)
    with pytest.raises(InvalidArgument, match="warm is a result for"):
        db.distance(
            X,
            X.permuted(range(5)),
            discount=0.9,
            solver=Somcot(10),
            warm=db.distance(X, db.examples.drift_walk(0.0, 4), discount=0.9),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"max_iterations": 2.5}, "whole number"),
        ({"batch": 0}, "batch is 0"),
        ({"eta": -1}, "eta is -1"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"decay": -0.5}, "decay is -0.5"),
        ({"time_limit": 0}, "time_limit is 0"),
    ],
)
def test_impossible_steps_are_refused(options, message):
    with pytest.raises(InvalidArgument, match=message):
        Somcot(**options)


def test_tol_is_not_for_it():
    X, Y = pair()
    with pytest.raises(InvalidArgument, match="no tol"):
        db.distance(X, Y, solver="somcot", tol=1e-3)


def test_time_limit():
    X, Y = pair()
    with pytest.warns(ConvergenceWarning, match="time_limit"):
        result = db.distance(X, Y, discount=0.9, solver=Somcot(10**9, time_limit=0.2))
    assert 0 < result.iterations < 10**8


def test_memory_grows_with_what_was_seen():
    """A thousand states, of which the walk sees ten."""
    walk = itertools.cycle([(i, (i + 1) % 10) for i in range(10)])
    result = db.distance(
        db.Stream(walk, 1000), db.Stream(itertools.repeat((0, 0)), 2), np.ones((1000, 2)), 0.9, solver=Somcot(300)
    )
    assert result.value == pytest.approx(1)
    assert result.coupling.run.it.U.size == 2 * 10
    assert result.coupling.run.it.W.size == 1000
