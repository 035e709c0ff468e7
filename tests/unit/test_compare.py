"""Several groups, starts, few data, and how many episodes it takes."""

import warnings

import numpy as np
import pytest

import diffbisim as db
from diffbisim.statistics.estimation import bootstrap_sample
from diffbisim.statistics.permutation import count_for_test

REWARDS = np.arange(5.0)


def walks(drift, seed, episodes=24, length=15, n=5):
    rng = np.random.default_rng(seed)
    return [db.examples.drift_walk(drift, n).sample(length, rng) for _ in range(episodes)]


def data(drift, seed, **how):
    return db.Transitions.from_trajectories(walks(drift, seed, **how), states=5)


def test_the_group_that_differs_is_found():
    groups = {"a": data(0.0, 1), "b": data(0.0, 2), "c": data(1.5, 3)}
    found = db.compare(groups, rewards=REWARDS, discount=0.9, permutations=199)
    assert {(r["a"], r["b"]) for r in found.records() if r["differ"]} == {("a", "c"), ("b", "c")}
    assert found.p_value <= 0.01
    assert (found.p_values == found.p_values.T).all()
    X, Y = (groups[name].chain(rewards=REWARDS, unseen="self-loop") for name in "ac")
    assert found.values[0, 2] == pytest.approx(db.distance(X, Y, discount=0.9).value, abs=1e-8)
    assert "evidence that they differ for 2 of 3 pairs" in str(found)
    lists = db.compare({k: walks(f, s) for k, f, s in (("a", 0.0, 1), ("b", 0.0, 2), ("c", 1.5, 3))}, rewards=REWARDS,
                       discount=0.9, permutations=199)  # fmt: skip
    np.testing.assert_array_equal(lists.p_values, found.p_values)


def test_max_t_is_no_smaller_than_each_pair():
    groups = {k: data(0.2, k) for k in range(4)}
    found = db.compare(groups, "indicator", permutations=99)
    assert (found.evidence.p_values >= found.evidence.p_single - 1e-12).all()
    assert found.conclusion == "no evidence of a difference between any two groups at this sample size"


def test_strata_of_several_groups():
    groups = {"a": data(0.0, 1), "b": data(0.0, 2)}
    strata = {name: np.arange(24) % 2 for name in groups}
    assert db.compare(groups, rewards=REWARDS, strata=strata, permutations=99).p_value > 0.05
    with pytest.raises(db.InvalidArgument, match="strata must be a mapping with the names"):
        db.compare(groups, rewards=REWARDS, strata={"a": strata["a"]})


@pytest.mark.parametrize(("groups", "how", "message"), [
    ({"a": walks(0, 1)}, {}, "at least two groups"),
    ([1, 2], {}, "groups must be a mapping"),
    ({"a": walks(0, 1), "b": None}, {}, r"groups\['b'\] is a NoneType; give Transitions"),
    ({"a": walks(0, 1), "b": db.examples.drift_walk(0.0, 5)}, {}, r"groups\['b'\] is a MarkovChain; give Transitions"),
    ({"a": data(0, 1), "b": db.Transitions.from_trajectories([[0, 1]] * 5)}, {}, "have different states"),
    ({"a": walks(0, 1), "b": walks(0, 2)}, {"permutations": 5}, "permutations is 5"),
    ({"a": walks(0, 1), "b": walks(0, 2)}, {"alpha": 3}, "alpha is 3"),
    ({"a": walks(0, 1), "b": walks(0, 2)}, {"cost": np.ones((5, 5))}, "zero between equal states"),
])  # fmt: skip
def test_what_cannot_be_compared_is_named(groups, how, message):
    with pytest.raises(db.InvalidArgument, match=message):
        db.compare(groups, **{"cost": "indicator"} | how)


# --- starts -------------------------------------------------------------------------------------------------------


def test_starts():
    """Two copies of a chain of two states that start apart: each rule of the start, by its definition."""
    A = db.Transitions.from_trajectories([[0, 0, 1, 1, 0, 1, 0, 0]] * 25, states=2)
    B = db.Transitions.from_trajectories([[1, 0, 0, 1, 1, 0, 1, 0]] * 75, states=2)
    how = {"cost": "indicator", "discount": 0.9, "replicates": 20, "permutations": 19}

    def starts(**given):
        problem = db.estimate(A, B, **how, **given).distance.problem
        return [*problem.x.initial, *problem.y.initial]

    assert starts() == pytest.approx([1, 0, 0, 1])
    assert starts(initial="first") == pytest.approx([1, 0, 0, 1])
    assert starts(initial="pooled") == pytest.approx([0.25, 0.75] * 2)
    assert starts(initial=1) == pytest.approx([0, 1] * 2)
    assert starts(initial=([0.5, 0.5], "first")) == pytest.approx([0.5, 0.5, 0, 1])
    assert starts(initial="empirical") == pytest.approx([4 / 7, 3 / 7, 3 / 7, 4 / 7])
    laws = [d.chain(unseen="self-loop").stationary_distribution for d in (A, B)]
    assert starts(initial="stationary") == pytest.approx([*laws[0], *laws[1]])
    with pytest.raises(db.InvalidArgument, match="initial is 'last', which is not a state"):
        starts(initial="last")


def test_long_trajectories_do_not_hang_on_few_first_states():
    rng = np.random.default_rng(0)
    X = db.examples.random_chain(4, 1)
    A, B = (
        db.Transitions.from_trajectories([X.with_initial(k).sample(400, rng) for _ in range(5)], states=4)
        for k in (0, 3)
    )
    how = {"rewards": X.rewards, "replicates": 20, "permutations": 99}
    with pytest.warns(UserWarning, match="fewer than 20 episodes the initial distributions are uncertain"):
        found = db.estimate(A, B, **how)
    assert found.distance.problem.x.initial.tolist() == [0.5, 0, 0, 0.5] == found.distance.problem.y.initial.tolist()
    assert found.plug_in < db.estimate(A, B, initial="first", **how).plug_in


def test_default_of_few_starts_is_told():
    """Below 20 episodes or clusters pooled, if possible, for both forms of the default; otherwise as they are."""
    path = [0, 0, 1, 1, 0, 1, 0, 0]
    few = db.Transitions.from_trajectories([path] * 6, states=2)
    many = db.Transitions.from_trajectories([path[2:] + path[:2]] * 24, states=2)
    how = {"cost": "indicator", "replicates": 20, "permutations": 19}
    with pytest.warns(UserWarning, match="with fewer than 20 episodes.*of all episodes is used"):
        found = db.estimate(few, many, initial=(None, None), **how)
    assert found.distance.problem.x.initial.tolist() == [0.2, 0.8]  # 6 and 24 episodes start in 0 and 1
    assert found.assumed[-1].endswith('of all episodes (initial="pooled"): X has 6 episodes')
    found = db.estimate(many, many, **how)
    assert found.assumed[-1] == 'each group starts as its own episodes do (initial="first")'
    assert db.estimate(many, many, initial="first", **how).assumed == found.assumed[:-1]
    found = db.estimate(many, many, cluster=[[f"{side}{k // 2}" for k in range(24)] for side in "ab"], **how)
    assert found.assumed[-1].endswith("X has 12 clusters of episodes")
    chain = db.MarkovChain([[0.5, 0.5], [0.5, 0.5]], initial=[0.5, 0.5])
    with pytest.warns(UserWarning, match="of the known chain is used"):
        found = db.estimate(chain, few, **how)
    assert found.distance.problem.y.initial.tolist() == [0.5, 0.5]
    with pytest.raises(db.InvalidArgument, match="initial has 3 entries for 2 groups"):
        db.estimate(few, many, initial=(None, "first", 0), **how)
    A, B = (db.Transitions.from_trajectories([text] * 6) for text in (list("abab"), list("cbcb")))
    with pytest.warns(UserWarning, match="because X does not have the state 'c'"):
        found = db.estimate(A, B, **how)
    assert found.distance.problem.y.initial == pytest.approx([float(name == "c") for name in B.names])
    assert 'initial="first"), although X has only 6' in found.assumed[-1]
    with pytest.warns(UserWarning, match="with fewer than 20 episodes"):
        compared = db.compare({"a": many, "b": many, "c": few}, "indicator", permutations=19)
    assert compared.assumed[-1].endswith('(initial="pooled"): c has 6 episodes')


def test_pooled_starts_are_drawn_again():
    """With a kernel that stays where it starts, the distance of a replicate depends only on its first states."""
    stay = [[0, 0], [1, 1]]
    A, B = (db.Transitions.from_trajectories([stay[k % 2] for k in range(24)], states=2) for _ in range(2))
    moving = db.MarkovChain([[0.0, 1.0], [0.0, 1.0]], initial=[0.5, 0.5])
    rng = np.random.default_rng(0)
    C = db.Transitions.from_trajectories([moving.sample(1, rng) for _ in range(24)], states=2)
    how = {"cost": "indicator", "discount": 0.5, "initial": "pooled", "permutations": 19, "replicates": 60}
    assert db.estimate(A, B, **how).replicates.max() < 1e-7
    found = db.estimate(A, C, **how)  # pairs that start in 0 cost γ, those that start in 1 cost nothing
    share = found.distance.problem.x.initial[0]
    assert found.plug_in == pytest.approx(0.5 * share)
    exact = 0.5 * np.sqrt(share * (1 - share) / 48)  # binomial, of 48 first states
    assert found.standard_error == pytest.approx(exact, rel=4 / np.sqrt(2 * 60))


def test_long_run_of_several_classes():
    from diffbisim.statistics.estimation import long_run

    X = db.MarkovChain([[0.0, 0.3, 0.7], [0, 1, 0], [0, 0, 1]])
    assert long_run(X) == pytest.approx([0, 0.3, 0.7], abs=1e-6)


# --- few data -----------------------------------------------------------------------------------------------------


def test_few_episodes_are_told():
    few = {"rewards": REWARDS, "initial": 2, "replicates": 20, "permutations": 99}
    with pytest.warns(UserWarning, match="2 and 24 episodes are too few to permute"):
        found = db.estimate(data(0.0, 1, episodes=2, length=200), data(1.5, 2), **few)
    assert not found.evidence.permuted
    assert "single steps" in found.method
    assert found.p_value <= 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert db.estimate(data(0.0, 1), data(0.0, 2), **few).method == "99 permutations of whole episodes"


@pytest.mark.parametrize("lag", [1, 7])
def test_steps_of_few_episodes_are_drawn_as_a_markov_chain_draws_them(lag):
    """The binomial variance p (1 - p) / N of every entry, with N the visits that do not overlap."""
    path = db.examples.drift_walk(0.3, 5).sample(700, rng=4)
    few = db.Transitions.from_trajectories([path], states=5, lag=lag)
    rng = np.random.default_rng(0)
    drawn = np.array([bootstrap_sample(few, rng).chain().transition for _ in range(1500)])
    P, visits = few.chain().transition, np.bincount(few.states, minlength=5)[:, None]
    variance = P * (1 - P) / np.ceil(visits / lag)
    assert np.abs(drawn.mean(axis=0) - P).max() <= 5 * np.sqrt(variance.max() / 1500)
    assert np.allclose(drawn.var(axis=0)[P > 0.02], variance[P > 0.02], rtol=0.2)


def test_one_trajectory_in_each_group_has_an_honest_standard_error():
    """The bootstrap of one episode would find none at all; the truth is how new data scatter."""
    how = {"rewards": REWARDS, "initial": 2, "discount": 0.9, "replicates": 20, "permutations": 19}

    def one(seed):
        sides = [data(drift, [seed, k], episodes=1, length=400) for k, drift in enumerate((0.0, 1.5))]
        with pytest.warns(UserWarning, match="the interval too short"):
            return db.estimate(*sides, rng=seed, **how)

    found = [one(seed) for seed in range(20)]
    scatter = np.std([e.plug_in for e in found], ddof=1)
    assert 0.6 <= np.mean([e.standard_error for e in found]) / scatter <= 1.7


def test_steps_that_overlap_count_once():
    """Of single trajectories the test takes the steps between every lag-th state; of whole episodes all of them."""
    paths = walks(0.5, 3, episodes=6, length=93)
    groups = paths[:1], paths[1:2]
    lagged = count_for_test([db.Transitions.from_trajectories(group, states=5, lag=10) for group in groups])
    each = [[path[::10] for path in group] for group in groups]
    apart = count_for_test([db.Transitions.from_trajectories(group, states=5) for group in each])
    assert not lagged[1]
    assert not apart[1]
    assert np.array_equal(lagged[0].totals, apart[0].totals)
    whole, permuted = count_for_test([db.Transitions.from_trajectories(paths, states=5, lag=10)] * 2)
    assert permuted
    assert whole.totals.sum() == 2 * 6 * (1 + 84)  # starts, and steps from each of the first 84 of 94 states


def test_a_lag_does_not_raise_false_alarms():
    """Of 30 pairs of single trajectories of one chain, a test at 5 % rejects more than 6 with probability 0.0006."""
    how = {"rewards": REWARDS, "initial": 2, "replicates": 20, "permutations": 99}

    def one(seed):
        paths = [walks(0.0, [seed, k], episodes=1, length=1000) for k in (0, 1)]
        sides = (db.Transitions.from_trajectories(path, states=5, lag=10) for path in paths)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return db.estimate(*sides, rng=seed, **how).p_value

    assert sum(one(seed) <= 0.05 for seed in range(30)) <= 6


def test_a_known_chain_is_tested():
    known = db.examples.drift_walk(0.0, 5)
    how = {"rewards": (None, REWARDS), "discount": 0.9, "replicates": 20, "permutations": 199}
    assert db.estimate(known, data(0.0, 5), **how).p_value > 0.05
    assert db.estimate(known, data(1.0, 5), **how).p_value <= 0.01
    swapped = db.estimate(data(1.0, 5), known, **how | {"rewards": (REWARDS, None)})
    assert swapped.p_value <= 0.01


def test_names_of_one_group_may_be_missing_in_the_other():
    A = db.Transitions.from_trajectories([["a", "b", "a", "b"]] * 6)
    B = db.Transitions.from_trajectories([["a", "c", "a", "b"]] * 6)
    found = db.estimate(A, B, "indicator", replicates=20, permutations=199)
    assert found.p_value <= 0.05
    assert found.contributions().records("rows")[0]["state"] in ("a", "c")


def test_without_common_states_the_noise_decides():
    found = db.estimate(data(0.0, 1), data(0.0, 2), rewards=(REWARDS, REWARDS + 1), replicates=20)
    assert found.evidence is None
    assert found.p_value == pytest.approx((1 + (found.noise >= found.plug_in).sum()) / 21)
    with pytest.raises(db.InvalidArgument, match="strata needs exchangeable episodes"):
        db.estimate(data(0.0, 1), data(0.0, 2), rewards=(REWARDS, REWARDS + 1), strata=[[0] * 24] * 2, replicates=20)


# --- power --------------------------------------------------------------------------------------------------------


def test_power_is_the_level_without_a_difference_and_one_with_a_large_one():
    X, Y = db.examples.drift_walk(0.0, 5), db.examples.drift_walk(2.0, 5)
    none = db.power(X, X, episodes=[8], length=8, datasets=100, permutations=19)
    assert none.power[0] <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / 100)
    assert none.needed is None
    assert none.value == pytest.approx(0.0, abs=1e-7)
    much = db.power(X, Y, episodes=[40, 5], length=[10, 20], datasets=20, permutations=19)
    assert much.episodes == (5, 40)
    assert much.power[1] == 1.0
    pilot = db.power(data(0.0, 1), data(2.0, 2), rewards=REWARDS, episodes=[40], datasets=10, permutations=19)
    assert pilot.power[0] == 1.0
    assert "40" in str(pilot)


def test_needed_is_interpolated():
    from diffbisim.statistics.groups import Power

    found = Power((10, 40), np.array([0.6, 1.0]), 0.8, 0.05, 100, 0.1)
    assert found.needed == 20  # half way in the logarithm
    assert found.standard_error[0] == pytest.approx(np.sqrt(0.24 / 100))
    assert Power((10, 40), np.array([0.9, 1.0]), 0.8, 0.05, 100, 0.1).needed == 10


@pytest.mark.parametrize(("how", "message"), [
    ({}, "length is missing"),
    ({"length": 0}, "length is 0"),
    ({"length": 5, "episodes": [2]}, "at least 4"),
    ({"length": 5, "target": 2}, "target is 2"),
    ({"length": 5, "episodes": 3}, "at least 4"),
])  # fmt: skip
def test_power_names_what_is_wrong(how, message):
    X = db.examples.drift_walk(0.0, 5)
    with pytest.raises(db.InvalidArgument, match=message):
        db.power(X, X, **how)
