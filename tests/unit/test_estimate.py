"""Estimates: the plug-in is the exact distance of the empirical chains, the interval a seeded bootstrap."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidArgument


def walks(drift, seed, episodes=30, length=25, n=6):
    rng = np.random.default_rng(seed)
    paths = [db.examples.drift_walk(drift, n).sample(length, rng) for _ in range(episodes)]
    return db.Transitions.from_trajectories(paths, states=range(n))


REWARDS = np.arange(6.0)


@pytest.fixture(scope="module")
def far():
    return db.estimate(walks(0.0, 1), walks(1.5, 2), rewards=REWARDS, discount=0.9, rng=3, replicates=60)


def test_the_plug_in_is_the_distance_of_the_empirical_chains(far):
    X, Y = (walks(f, s).chain(rewards=REWARDS, unseen="self-loop") for f, s in ((0.0, 1), (1.5, 2)))
    assert far.plug_in == pytest.approx(db.distance(X, Y, discount=0.9).value, abs=1e-9)
    assert far.distance.value == far.plug_in


def means(chain, discount=0.9):
    """Discounted means of the costs |r - r_k| to every state k, from the linear system of the occupancy."""
    P, n = np.asarray(chain.transition), chain.n_states
    occupancy = (1 - discount) * np.linalg.solve((np.eye(n) - discount * P).T, chain.initial)
    return occupancy @ np.abs(np.subtract.outer(REWARDS, REWARDS))


def test_interval_is_that_of_the_definition(far):
    """The formulas of the module, with quantiles of scipy and replicates that are drawn again."""
    from scipy import stats

    low, high = np.quantile(far.replicates, [0.025, 0.975], method="weibull")
    mean, κ = far.replicates.mean(), np.sqrt(30 / 29) * stats.t.ppf(0.975, 58) / stats.norm.ppf(0.975)
    assert far.upper == pytest.approx(far.plug_in - far.bias + κ * max(mean - low, high - mean))
    W, w, (one, square, drawn) = far.evidence.rows.apart, far.evidence.weights, far.evidence.chance
    added = W - np.sign(W**2 - square) * np.sqrt(np.abs(W**2 - square))
    B = far.null.mean() * min(w @ added, w @ one) / (w @ drawn)
    rule = far.plug_in - max(B, far.bias) - κ * (high - mean)
    data, errors = (walks(0.0, 1), walks(1.5, 2)), []
    apart = np.subtract(*(means(d.chain(rewards=REWARDS, unseen="self-loop")) for d in data))
    for generator in np.random.default_rng(3).spawn(60):
        drawn = [d.take(generator.integers(d.n_episodes, size=d.n_episodes)) for d in data]
        new = np.subtract(*(means(d.chain(rewards=REWARDS, unseen="self-loop")) for d in drawn))
        errors.append(np.abs(new - apart).max())
    floor = np.abs(apart).max() - κ * np.quantile(errors, 0.975, method="weibull")
    assert far.lower == pytest.approx(max(rule, floor))
    assert rule < far.plug_in
    assert 0 < floor < np.abs(apart).max() <= far.plug_in + 5 * 1e-8  # tolerance 1e-8 of the cost
    assert far.bias == pytest.approx(far.replicates.mean() - far.plug_in)
    assert far.value == pytest.approx(np.sqrt(far.plug_in**2 - far.null.mean() ** 2))
    assert far.corrected == far.value
    assert far.p_value == pytest.approx(1 / 1000)
    assert far.conclusion == "evidence that they differ"


def test_replicates_are_distances_of_resampled_episodes(far):
    data = walks(0.0, 1), walks(1.5, 2)
    generator = np.random.default_rng(3).spawn(60)[7]
    chains = [
        d.take(generator.integers(d.n_episodes, size=d.n_episodes)).chain(rewards=REWARDS, unseen="self-loop")
        for d in data
    ]
    assert far.replicates[7] == pytest.approx(db.distance(*chains, discount=0.9).value, abs=1e-8)
    old = [d.chain(rewards=REWARDS, unseen="self-loop") for d in data]
    noise = sum(db.distance(a, b, discount=0.9).value for a, b in zip(chains, old, strict=True))
    assert far.noise[7] == pytest.approx(noise, abs=1e-8)


def test_equal_processes_are_not_told_apart():
    e = db.estimate(walks(0.5, 4), walks(0.5, 5), rewards=REWARDS, discount=0.9, replicates=60)
    assert e.lower == 0.0
    assert 0 <= e.value < e.plug_in
    assert e.p_value > 0.05
    assert e.conclusion == "no evidence of a difference at this sample size"


def test_noise_bounds_the_error():
    """|d(X*,Y*) - d(X̂,Ŷ)| ≤ d(X*,X̂) + d(Y*,Ŷ) for every replicate, also with a cost that is no metric."""
    cost = np.random.default_rng(0).random((6, 6))
    e = db.estimate(walks(0.0, 1), walks(0.3, 2), cost, discount=0.9, replicates=40)
    assert (np.abs(e.replicates - e.plug_in) <= e.noise + 1e-7).all()
    assert e.value == pytest.approx(e.plug_in - e.bias)  # there is no null


@pytest.mark.parametrize(
    "asked",
    [{"criterion": "average"}, {"horizon": 5, "discount": 1.0}, {"weights": [0.0, 1.0, 3.0]}, {"discount": 0.8}],
    ids=str,
)
@pytest.mark.parametrize("cost", ["reward", "indicator"])
def test_means_bound_every_distance_from_below(asked, cost):
    """max_k of the differences of means of c(x, k), which the interval uses, against the exact distance."""
    from diffbisim.solvers import Exact
    from diffbisim.statistics.estimation import Resampler, make_sources, references, shared_space

    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, Y = (
            db.MarkovChain(rng.dirichlet(np.ones(4), 4), initial=rng.dirichlet(np.ones(4)), rewards=REWARDS[:4] ** 2)
            for _ in range(2)
        )
        base = db.distance(X, Y, cost, **asked)
        sources = make_sources({"X": X, "Y": Y}, None, None, "self-loop")
        given = references(shared_space(sources, base.problem, cost), cost)
        found = np.abs(Resampler(sources, base.problem, Exact(), given).means(X, Y)).max()
        assert 0 < found <= base.value + 1e-7


@pytest.mark.parametrize(
    "asked", [{"criterion": "average"}, {"horizon": 5, "discount": 1.0}, {"weights": [0.0, 1.0, 3.0]}], ids=str
)
def test_other_distances(asked):
    """The plug-in value is that of `distance`, and the noise bounds the error of every replicate."""
    data = walks(0.0, 1), walks(1.5, 2)
    costs = np.random.default_rng(0).random((3, 6, 6))
    cost = list(costs) if "weights" in asked else costs[0]
    e = db.estimate(*data, cost, replicates=20, **asked)
    X, Y = (d.chain(unseen="self-loop") for d in data)
    assert e.plug_in == pytest.approx(db.distance(X, Y, cost, **asked).value, abs=1e-7)
    assert (np.abs(e.replicates - e.plug_in) <= e.noise + 1e-7).all()


def test_workers_do_not_change_the_answer(far, spawned):
    """Another process, and threads that end in any order."""
    how = {"rewards": REWARDS, "discount": 0.9, "rng": 3, "replicates": 60}
    with ThreadPoolExecutor(3) as threads:
        for executor in (spawned, threads):
            again = db.estimate(walks(0.0, 1), walks(1.5, 2), executor=executor, **how)
            np.testing.assert_array_equal(again.replicates, far.replicates)


def test_a_known_chain_is_not_resampled():
    known = db.examples.drift_walk(0.0, 6)
    e = db.estimate(known, walks(1.0, 2), rewards=(None, REWARDS), discount=0.9, replicates=40)
    assert e.distance.problem.x is known
    tighter = e.standard_error
    both = db.estimate(walks(0.0, 9), walks(1.0, 2), rewards=REWARDS, discount=0.9, replicates=40)
    assert tighter < both.standard_error


def test_pairs_without_episodes_are_drawn_one_by_one():
    a, b = walks(0.0, 1), walks(1.0, 2)
    pairs = [db.Transitions.from_pairs(t.states, t.next_states, states=range(6)) for t in (a, b)]
    e = db.estimate(*pairs, rewards=REWARDS, initial=3, discount=0.9, replicates=40)
    assert 0 < e.lower < e.upper
    assert e.distance.problem.x.initial[3] == 1


def test_more_data_narrow_the_interval():
    small = db.estimate(walks(0.0, 1, 10), walks(1.0, 2, 10), rewards=REWARDS, discount=0.9, replicates=60)
    large = db.estimate(walks(0.0, 1, 160), walks(1.0, 2, 160), rewards=REWARDS, discount=0.9, replicates=60)
    ratio = (small.upper - small.lower) / (large.upper - large.lower)
    assert 2 < ratio < 8  # sixteen times the data: four


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"replicates": 5}, "replicates is 5"),
        ({"unseen": "drop"}, "unseen is 'drop'"),
        ({"rng": -1}, "rng"),
        ({"criterion": "total"}, "criterion is 'total'"),
        ({"horizon": 0}, "horizon is 0"),
        ({"criterion": "average", "horizon": 3}, "has an infinite horizon"),
        ({"solver": "somcot"}, "hundreds of accurate ones; use solver='exact'"),
        ({"solver": db.solvers.Somcot(100)}, "solver is 'somcot'"),
    ],
)
def test_bad_options_are_named(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        db.estimate(walks(0.0, 1), walks(0.0, 2), rewards=REWARDS, **arguments)


def test_bad_sources_are_named():
    chain = db.examples.drift_walk(0.0, 6)
    with pytest.raises(InvalidArgument, match=r"both chains.*diffbisim.distance"):
        db.estimate(chain, chain)
    with pytest.raises(InvalidArgument, match="Y is a list"):
        db.estimate(chain, [(0, 1)])
    with pytest.raises(InvalidArgument, match=r"which provides samples only.*diffbisim\.estimate"):
        db.distance(walks(0.0, 1), chain)


def test_a_guessed_start_that_matters_is_told():
    a, b = (db.Transitions.from_pairs(s, n) for s, n in (("ab", "ba"), ("ba", "ab")) for s, n in [(list(s), list(n))])
    how = {"cost": "indicator", "discount": 0.5, "replicates": 20}
    with pytest.warns(UserWarning, match=r"X starts in \{'a'\} and Y in \{'b'\}"):
        apart = db.estimate(a, b, **how)
    assert apart.plug_in == pytest.approx(1.0)  # a b a b … against b a b a …
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert db.estimate(a, b, initial="a", **how).plug_in == pytest.approx(0.0, abs=1e-12)
        assert db.estimate(a, a, **how).plug_in == pytest.approx(0.0, abs=1e-12)


# --- states that end an episode -----------------------------------------------------------------------------------


def streams(leave, seed, sessions=40):
    """Sessions of visits to "shop" that end in "bought" or "gone", one after the other in four streams."""
    rng = np.random.default_rng(seed)
    paths = [[] for _ in range(4)]
    for k in range(sessions):
        paths[k % 4] += ["shop"] * int(rng.geometric(leave)) + [("bought", "gone")[int(rng.random() < 0.5)]]
    return paths


@pytest.mark.parametrize("unseen", ["self-loop", "uniform", "error"])
def test_terminal_states_stay_whatever_follows_them(unseen):
    """The same as if the sessions had been cut by hand."""
    ends, states = ("bought", "gone"), ("shop", "bought", "gone")
    joined, cut = [], []
    for leave, seed in ((0.3, 1), (0.6, 2)):
        paths = streams(leave, seed)
        joined.append(db.Transitions.from_trajectories(paths, states=states))
        steps = [(a, b) for path in paths for a, b in pairwise(path) if a not in ends]
        cut.append(db.Transitions.from_pairs(*zip(*steps, strict=True), states=states).chain(unseen="self-loop"))
    how = {"cost": "indicator", "initial": "shop", "replicates": 20, "permutations": 19}
    e = db.estimate(*joined, unseen=unseen, terminal=ends, **how)
    assert e.plug_in == pytest.approx(db.distance(*cut, "indicator").value, abs=1e-8)
    for side in (e.distance.problem.x, e.distance.problem.y):
        np.testing.assert_array_equal(side.absorbing_states, [1, 2])
    assert db.estimate(*joined, **how).plug_in != pytest.approx(e.plug_in, abs=1e-3)  # without, they go on


@pytest.mark.parametrize(
    ("terminal", "message"),
    [("sold", "'sold' is not a state"), (["gone", 7], "7 is not a state"), (lambda s: s, "give the terminal states"),
     (7, "7 is not a state"), (["shop", "gone", "bought"], "every transition starts in a terminal state")],
)  # fmt: skip
def test_bad_terminal_states_are_named(terminal, message):
    data = [db.Transitions.from_trajectories(streams(0.3, k), states=("shop", "bought", "gone")) for k in (1, 2)]
    with pytest.raises(InvalidArgument, match=message):
        db.estimate(*data, "indicator", terminal=terminal)
