"""The test of groups of episodes, against its definition: every regrouping, every transport by a linear program."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, multivariate_hypergeom

import diffbisim as db
from diffbisim.solvers.causes import RowCells, row_distances
from diffbisim.statistics import permutation as evidence
from diffbisim.statistics.estimation import stratum_numbers
from diffbisim.statistics.permutation import (
    Design,
    RowScale,
    compare_two,
    count_episodes,
    harmonic,
    null_counts,
    permuted_counts,
    row_statistics,
    sampled_counts,
    summed,
    tail_probabilities,
)
from oracles.bellman import bellman
from oracles.games import transports

REWARDS = np.array([0.0, 1.0, 3.0])
COST = np.abs(np.subtract.outer(REWARDS, REWARDS))


def chain(seed, n=3):
    rng = np.random.default_rng(seed)
    return db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=rng.dirichlet(np.ones(n)), rewards=np.arange(n) ** 1.5)


def paths(X, episodes, seed, lengths=(3, 9)):
    rng = np.random.default_rng(seed)
    return [X.sample(int(rng.integers(*lengths)), rng) for _ in range(episodes)]


def transitions(*groups, n=3):
    return [db.Transitions.from_trajectories(group, states=n) for group in groups]


def counts(episodes, n):
    """Transitions (n, n) and starts (n,) of some episodes, counted one by one."""
    N, first = np.zeros((n, n)), np.zeros(n)
    for path in episodes:
        first[path[0]] += 1
        np.add.at(N, (path[:-1], path[1:]), 1)
    return N, first


def statistics(one, two, cost, discount):
    """The noise √(v/h), W, √(h/v) W and χ² of every row by their definitions, the start last, and the occupancy."""
    n = len(cost)
    N, first = counts([*one, *two], n)
    P = np.where(N.sum(axis=1, keepdims=True) > 0, N / np.maximum(N.sum(axis=1, keepdims=True), 1), np.eye(n))
    start = first / first.sum()
    U = bellman(P, P, start, start, cost, discount).V * (1 - discount)
    occupancy = np.linalg.solve(np.eye(n) - discount * P.T, (1 - discount) * start)
    rows = [np.vstack(counts(group, n)) for group in (one, two)]
    W, squares, noise = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    both = np.flatnonzero(np.minimum(*(group.sum(axis=1) for group in rows)))
    W[both] = transports(*(group[both] / group[both].sum(axis=1, keepdims=True) for group in rows), U)
    for x, law in enumerate([*P, start]):
        visits = [group[x].sum() for group in rows]
        if min(visits) == 0:
            continue
        p, q = (group[x] / visit for group, visit in zip(rows, visits, strict=True))
        noise[x] = np.sqrt(law @ U**2 @ law * (1 / visits[0] + 1 / visits[1]))
        h = visits[0] * visits[1] / sum(visits)
        squares[x] = h * ((p - q) ** 2 / (law + 0.25 / h)).sum()
        if (law > 0).sum() > 1:  # without the floor it is the usual one
            usual = chi2_contingency([group[x][law > 0] for group in rows], correction=False).statistic
            assert usual == pytest.approx(h * ((p - q)[law > 0] ** 2 / law[law > 0]).sum())
    shift = np.divide(W, noise, out=np.zeros(n + 1), where=noise > 0)
    return noise, W, shift, squares, occupancy


@pytest.fixture(scope="module")
def tiny():
    return paths(chain(1), 4, 10), paths(chain(2), 4, 20)


@pytest.fixture(scope="module")
def every_regrouping(tiny):
    """All 70 ways to deal eight episodes, the truth first, as ``statistics``."""
    episodes = [*tiny[0], *tiny[1]]
    found = []
    for chosen in combinations(range(8), 4):
        one, two = ([episodes[k] for k in range(8) if (k in chosen) == inside] for inside in (True, False))
        found.append(statistics(one, two, COST, 0.9))
    return [np.array(column) for column in zip(*found, strict=True)]


def dealt(design):
    """The statistics of all 70 ways to deal the eight episodes."""
    cells, by_episode = design.counted.cells, design.counted.counts.toarray()
    inside = np.array([np.isin(np.arange(8), chosen) for chosen in combinations(range(8), 4)], float)
    return row_statistics(cells, design.metric, (inside @ by_episode)[None], ((1 - inside) @ by_episode)[None])


def test_statistics_are_those_of_the_definition(tiny, every_regrouping):
    design = Design(count_episodes(transitions(*tiny)), COST, 0.9, permute=True)
    cells, found = design.counted.cells, dealt(design)
    noise, W, shift, squares, occupancy = every_regrouping
    np.testing.assert_allclose(found.apart, W[:, cells.states], atol=1e-9)
    np.testing.assert_allclose(found.squares, squares[:, cells.states], atol=1e-9)
    np.testing.assert_allclose(found.shift, shift[:, cells.states], atol=1e-7)
    mean, deviation = np.array([0.5, 0.6, 0.7, 0.8]), np.array([0.4, 0.3, 0.2, 0.1])  # the same for all h
    moments = np.stack([mean, deviation, 2 * mean, 2 * deviation])[:, None, cells.states].repeat(2, axis=1)
    T = summed(found, design.metric, cells, RowScale(np.log([[1.0], [9.0]]).repeat(4, axis=1), moments))
    seen = (noise > 0)[:, :3]
    one = (occupancy * (W[:, :3] - seen * noise[:, :3] * mean[:3])).sum(axis=1)
    np.testing.assert_allclose(
        T[0], one / np.sqrt(np.square(occupancy * noise[:, :3] * deviation[:3]).sum(axis=1)), atol=1e-6
    )
    three = (squares - 2 * mean).sum(axis=1) / np.sqrt(np.square(2 * deviation).sum())
    np.testing.assert_allclose(T[1], three, atol=1e-6)


def test_scale_is_that_of_all_divisions(tiny, monkeypatch):
    """The moments of √(h/v) W and χ² over all ways to divide the steps of a row, by the hypergeometric law."""
    monkeypatch.setattr(evidence, "DIVISIONS", 4000)
    design = Design(count_episodes(transitions(*tiny)), COST, 0.9, permute=True)
    cells, metric, U = design.counted.cells, design.metric, design.metric.table
    scale = RowScale.of(design, dealt(design).h, np.random.default_rng(0))
    total = design.counted.totals.sum(axis=0)
    for r, x in enumerate(cells.states):
        at = cells.states[cells.rows] == x
        steps, targets = total[at].astype(int), cells.targets[at]
        for h, moments in zip(np.exp(scale.at[:, r]), scale.moments[:, :, r].T, strict=True):
            size = int(np.rint(steps.sum() * (1 - np.sqrt(max(0.0, 1 - 4 * h / steps.sum()))) / 2))
            assert h == pytest.approx(size * (steps.sum() - size) / steps.sum())
            parts = [p for p in np.ndindex(*(steps + 1)) if sum(p) == size]
            law = multivariate_hypergeom(steps, size).pmf(parts)
            p, q = np.array(parts) / size, (steps - parts) / (steps.sum() - size)
            C = np.ascontiguousarray(U[np.ix_(targets, targets)])
            W = transports(p, q, C)
            pooled = steps / steps.sum()
            values = np.sqrt(h / metric.spread[r]) * W, h * ((p - q) ** 2 / (pooled + 0.25 / h)).sum(axis=1)
            for found, S in zip(moments.reshape(2, 2), values, strict=True):
                mean = law @ S
                variance, fourth = law @ (S - mean) ** 2, law @ (S - mean) ** 4
                assert abs(found[0] - mean) <= 5 * np.sqrt(variance / 4000) + 1e-7
                assert abs(found[1] ** 2 - variance) <= 5 * np.sqrt(fourth / 4000) + 25 * variance / 4000 + 1e-7


def test_p_value_is_that_of_all_regroupings(tiny, every_regrouping, monkeypatch):
    monkeypatch.setattr(evidence, "DIVISIONS", 2000)
    _, _, shift, squares, _ = every_regrouping
    both = [(S - S.mean(axis=0)) / np.where(S.std(axis=0) > 0, S.std(axis=0), 1.0) for S in (shift, squares)]
    z = np.maximum(*both)
    design = Design(count_episodes(transitions(*tiny)), COST, 0.9, permute=True)
    every = dealt(design)
    T, total = summed(
        every, design.metric, design.counted.cells, RowScale.of(design, every.h, np.random.default_rng(1))
    )
    each = np.array([[np.mean(s - 1e-7 <= S) for s in S] for S in (T, z.max(axis=1), total)])
    mean = (1 / each).sum(axis=0)
    exact = np.mean(mean[0] - 1e-9 <= mean)
    assert harmonic(T, z.max(axis=1) - z.max(axis=1).min(), total) == (exact, each[:, 0].tolist())
    found = compare_two(design, 4999, np.random.default_rng(0))
    for estimated, true in zip((found.p_distance, found.p_largest, found.p_total), each[:, 0], strict=True):
        # the scale is simulated, which may exchange neighbors among the 70
        assert abs(estimated - true) <= 5 * np.sqrt(true * (1 - true) / 5000) + 1 / 70 + 0.01
    assert abs(found.p_value - exact) <= 0.05  # a rank of ranks: all but the deviation of those above
    np.testing.assert_allclose(found.rows.z, z[0][design.counted.cells.states], atol=0.1)


def test_lengths_of_episodes_are_no_evidence():
    """Episodes of 5 and of 40 steps of one chain: the p-values of both sums are centered, not all near one."""
    rng, p = np.random.default_rng(5), []
    X = db.MarkovChain(0.8 * rng.dirichlet(np.full(12, 0.4), 12) + 0.2 / 12)
    cost = np.abs(np.subtract.outer(np.arange(12.0), np.arange(12.0)))
    for seed in range(60):
        data = transitions(paths(X, 20, 2 * seed, (6, 7)), paths(X, 20, 2 * seed + 1, (41, 42)), n=12)
        found = compare_two(Design(count_episodes(data), cost, 0.9, permute=True), 39, np.random.default_rng(seed))
        p.append((found.p_distance, found.p_total))
    assert np.abs(np.mean(p, axis=0) - 0.5).max() <= 5 * np.sqrt(1 / 12 / 60)


def test_what_the_metric_cannot_tell_apart_is_no_evidence():
    """States 1 and 2 look and go on alike; one group goes to the first of them, the other to the second."""
    A, B = transitions([[0, 1, 0, 1, 0, 0]] * 6, [[0, 2, 0, 2, 0, 0]] * 6)
    cost = np.abs(np.subtract.outer([0.0, 1.0, 1.0], [0.0, 1.0, 1.0]))
    found = compare_two(Design(count_episodes([A, B]), cost, 0.9, permute=True), 99, np.random.default_rng(0))
    assert found.p_value == 1.0
    assert np.abs(found.rows.apart).max() <= 1e-9


def test_dealing_keeps_episodes_and_strata():
    groups = transitions(paths(chain(1), 5, 1), paths(chain(2), 7, 2))
    strata = [np.array([0, 0, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1])]
    counted = count_episodes(groups, strata)
    C = counted.counts.toarray()
    where = np.concatenate(strata)
    (found,) = permuted_counts(counted, 50, np.random.default_rng(0))
    starts = counted.cells.states[counted.cells.rows] == 3
    for s in (0, 1):
        total = C[where == s].sum(axis=0)
        assert (found[s].sum(axis=0) == total).all()
        for g, size in enumerate([(strata[g] == s).sum() for g in (0, 1)]):
            assert (found[s, g][:, starts].sum(axis=1) == size).all()
            np.testing.assert_array_equal(found[s, g, 0], C[(where == s) & (counted.groups == g)].sum(axis=0))
    assert len({found[0, 0, k].tobytes() for k in range(50)}) > 5


def test_single_steps_are_dealt_within_their_state():
    groups = transitions(paths(chain(1), 2, 1), paths(chain(2), 3, 2))
    counted = count_episodes(groups)
    design = Design(counted, COST, 0.9, permute=False)
    (found,) = sampled_counts(counted, design.metric, 4000, np.random.default_rng(0), known=False)
    cells, totals = counted.cells, counted.totals
    assert (found[0].sum(axis=0) == totals.sum(axis=0)).all()
    visits = np.add.reduceat(totals, cells.first, axis=1)
    assert (np.add.reduceat(found[0], cells.first, axis=2) == visits[:, None, :]).all()
    np.testing.assert_array_equal(found[0, :, 0], totals)
    share = visits / visits.sum(axis=0)
    mean = share[:, cells.rows] * totals.sum(axis=0)  # of the hypergeometric law
    assert np.abs(found[0].mean(axis=1) - mean).max() <= 5 * found[0].std(axis=1).max() / np.sqrt(4000)


def test_strata_are_standardized():
    """Two strata with other dynamics, in other proportions: without strata a difference, within them none."""
    slow, fast = chain(3), chain(4)
    first, second = ([*paths(slow, 40, seed, (10, 20)), *paths(fast, 40, seed + 1, (10, 20))] for seed in (11, 13))
    A, B = transitions([*first[:40], *first[40:50]], [*second[:10], *second[40:]])
    strata = [np.repeat(["slow", "fast"], (40, 10)), np.repeat(["slow", "fast"], (10, 40))]
    how = {"rewards": REWARDS, "discount": 0.9, "replicates": 20, "permutations": 199, "initial": "pooled"}
    assert db.estimate(A, B, **how).p_value <= 0.01
    assert db.estimate(A, B, strata=strata, **how).p_value > 0.05
    for bad, message in (
        ([strata[0], strata[1][:5]], r"for each of its 50 and 50 episodes; found \[50, 5\]"),
        (1, "strata must have one sequence per group"),
        ([[[1]] * 50] * 2, "strata must have one sequence per group"),
        ([["slow", None] * 25, strata[1]], r"strata\[0\]\[1\] is missing"),
    ):
        with pytest.raises(db.InvalidArgument, match=message):
            db.estimate(A, B, strata=bad, **how)


def test_strata_of_another_type_are_other_strata():
    """1 and "1" name two strata, so that no episode can be exchanged."""
    numbers = stratum_numbers([[1, 2], ["1", 2]], [db.Transitions.from_trajectories([[0, 1], [1, 0]])] * 2)
    assert numbers[0][1] == numbers[1][1]
    assert len(set(np.concatenate(numbers).tolist())) == 3


def test_rejects_as_often_as_it_says():
    """200 datasets without a difference, 39 permutations each: 5 % within five deviations; p-values are uniform.

    benchmarks/long/two_sample.py (level) has 600 of every kind.
    """
    X, p = chain(7), []
    for seed in range(200):
        data = transitions(paths(X, 8, 2 * seed), paths(X, 12, 2 * seed + 1))
        p.append(
            compare_two(Design(count_episodes(data), COST, 0.9, permute=True), 39, np.random.default_rng(seed)).p_value
        )
    assert abs(np.mean(np.array(p) <= 0.05) - 0.05) <= 5 * np.sqrt(0.05 * 0.95 / 200)
    assert abs(np.mean(p) - 0.5) <= 5 * np.sqrt(1 / 12 / 200) + 1 / 40


def test_null_datasets_have_the_sizes_of_the_groups():
    counted = count_episodes(transitions(paths(chain(1), 5, 1), paths(chain(2), 7, 2)))
    found = null_counts(Design(counted, COST, 0.9, permute=True), 30, np.random.default_rng(0))
    starts = counted.cells.states[counted.cells.rows] == 3
    assert len(found) == 30
    assert {tuple(draw[:, starts].sum(axis=1)) for draw in found} == {(5.0, 7.0)}
    assert all((draw.sum(axis=0) == counted.totals.sum(axis=0)).all() for draw in found)


def test_tail_shares_take_rounding_for_equal():
    T = np.array([1.0, 1.0 + 1e-15, 0.5, 2.0, np.inf])
    assert tail_probabilities(T).tolist() == [0.8, 0.8, 1.0, 0.4, 0.2]
    assert tail_probabilities(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_clicks_that_are_bought_more_often_are_found():
    """Cart to Checkout .40 against .55, 800 sessions each: the p-value, the row, and by both costs."""
    states = ["Home", "Search", "Product", "Cart", "Checkout", "Exit"]

    def shop(bought):
        P = np.array([
            [0.05, 0.45, 0.30, 0.00, 0.00, 0.20],
            [0.10, 0.20, 0.50, 0.00, 0.00, 0.20],
            [0.10, 0.20, 0.20, 0.25, 0.00, 0.25],
            [0.05, 0.00, 0.25, 0.00, bought, 0.70 - bought],
            [0.00, 0.00, 0.00, 0.00, 0.00, 1.00],
            [0.00, 0.00, 0.00, 0.00, 0.00, 1.00],
        ])  # fmt: skip
        return db.MarkovChain(P, names=states)

    def sessions(shop, seed):
        rng = np.random.default_rng(seed)
        walks = (shop.sample(60, rng) for _ in range(800))
        return db.Transitions.from_trajectories(
            [[states[s] for s in walk[: walk.tolist().index(5) + 1]] for walk in walks], states=states
        )

    A, B = sessions(shop(0.40), 1), sessions(shop(0.55), 2)
    for cost, rewards in (("indicator", None), ("reward", [0, 0, 0, 0, 1, 0])):
        found = db.estimate(A, B, cost, rewards=rewards, replicates=20)
        assert found.p_value <= 0.05
        assert found.conclusion == "evidence that they differ"
        top = found.contributions().records("rows")[0]
        assert top["state"] == "Cart"
        assert top["p_value"] <= 0.05


def test_memory_grows_with_the_draws_not_with_their_square():
    """6,000 rows against their own counterparts, not 36 million pairs of them."""
    table, cells = np.array([[0.0, 1.0], [1.0, 0.0]]), RowCells.of(np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3))
    moved = np.random.default_rng(0).random((2000, 3, 1))
    difference = np.concatenate([moved, -moved], axis=2).reshape(2000, 6)
    tracemalloc.start()
    W = row_distances(table, cells, difference)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pytest.approx(moved[..., 0]) == W
    assert peak < 20e6
