"""Compression: exact where lumping is exact, never farther than its starts, the same whoever computes it."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.cluster.vq import kmeans2
from scipy.optimize import linprog

import diffbisim as db
from cases import each
from diffbisim.common.errors import InvalidArgument
from diffbisim.reduction.compression import candidates, descent
from diffbisim.reduction.compression.barycenter import Average, barycenters
from diffbisim.reduction.compression.descent import Barycenters
from diffbisim.reduction.compression.starts import (
    Target,
    averaged,
    landmark_distances,
    medoid_partition,
    other_partition,
    weighted_median,
)
from oracles.games import all_transports


def random_blocks(seed, n_blocks=5, size=5):
    """A permuted chain of blocks with random dynamics between and random shares within, and the true blocks."""
    rng = np.random.default_rng(seed)
    Q = rng.dirichlet(np.ones(n_blocks), size=n_blocks)
    share = rng.dirichlet(np.ones(size), size=(n_blocks * size, n_blocks))  # how each row spreads over a block
    P = (np.repeat(Q, size, axis=0)[:, :, None] * share).reshape(n_blocks * size, -1)
    blocks = np.repeat(np.arange(n_blocks), size)
    order = rng.permutation(len(P))
    rewards = rng.permutation(n_blocks).astype(float)
    return db.MarkovChain(P, rewards=rewards[blocks]).permuted(order), blocks[order], rewards


def same_partition(a, b):
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


@each(seed=range(20))
@pytest.mark.parametrize("how", ["learn", "given"])
def test_random_blocks_are_found_exactly(seed, how):
    X, blocks, rewards = random_blocks(seed)
    given = "learn" if how == "learn" else np.random.default_rng(seed).permutation(rewards)
    found = db.compress(X, n_states=5, rewards=given, rng=seed)
    assert found.distance.upper <= 1e-6
    assert same_partition(found.assignment, blocks)
    if how == "given":
        assert np.array_equal(found.chain.rewards, given)


@pytest.mark.parametrize("n", range(6, 11))
@pytest.mark.parametrize("rewards", ["learn", "given"])
def test_superfluous_states_stay_unused(n, rewards):
    found = db.compress(db.examples.block_chain(), n, rewards="learn" if rewards == "learn" else np.arange(n))
    assert found.distance.upper <= 1e-6
    assert found.chain.n_states == n
    assert found.unused.size == n - 5
    assert same_partition(found.assignment, np.repeat(np.arange(5), 5))


@pytest.mark.parametrize(("n", "known"), [(2, 0.805), (3, 0.4843), (4, 0.1903)])
def test_too_few_states_against_the_best_of_200_random_starts(n, known):
    """``known``: benchmarks/compression.py."""
    found = db.compress(db.examples.block_chain(), n, restarts=3)
    assert found.distance.value <= 1.02 * known


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noisy_blocks_are_nearer_than_the_average_over_the_true_ones(noise):
    X = db.examples.block_chain(4, 3)
    rng = np.random.default_rng(1)
    noisy = db.MarkovChain((1 - noise) * X.transition + noise * rng.dirichlet(np.ones(12), size=12), rewards=X.rewards)
    assert db.lump(noisy).n_states == 12
    blocks = np.repeat(np.arange(4), 3)
    target = Target(noisy, 0.95, rewards=noisy.rewards)
    average = averaged(target, blocks, 4)
    Y = db.MarkovChain(average.transition, initial=average.initial, rewards=average.rewards)
    found = db.compress(noisy, 4, restarts=1)
    assert found.distance.upper <= db.distance(noisy, Y).lower
    assert same_partition(found.assignment, blocks)


def test_one_state_is_the_median_reward():
    """With one state Y is a constant, and d = E|r(x) - r| under the occupancy: least at the median."""
    X = db.examples.random_chain(12, 3)
    found = db.compress(X, 1, restarts=1)
    rho = X.occupancy(0.95)
    best = min(float(rho @ np.abs(X.rewards - r)) for r in X.rewards)
    assert found.distance.value == pytest.approx(best, abs=1e-7)


def test_best_two_state_chain_against_a_grid():
    """All two-state chains with given rewards and start have two parameters: search them all."""
    X = db.examples.random_chain(5, 8)
    given = np.array([X.rewards.min(), X.rewards.max()])
    found = db.compress(X, 2, discount=0.8, rewards=given, restarts=6)
    grid = np.linspace(0, 1, 21)
    values = [
        db.distance(X, db.MarkovChain([[1 - p, p], [q, 1 - q]], initial=s, rewards=given), discount=0.8).value
        for p in grid
        for q in grid
        for s in (0, 1)
    ]
    assert found.distance.value <= min(values) + 1e-9


def test_history_falls_and_result_is_its_least():
    X = db.examples.random_chain(15, 0)
    found = db.compress(X, 3, restarts=3)
    for restart in range(3):
        values = [row["value"] for row in found.history if row["restart"] == restart]
        assert all(b <= a + 1e-8 for a, b in pairwise(values))
    assert found.distance.value == pytest.approx(min(row["value"] for row in found.history), abs=1e-7)
    assert found.encoder.shape == (15, 3)
    assert found.decoder.shape == (3, 15)
    assert np.allclose(found.encoder.sum(axis=1), 1)


def test_same_answer_with_any_number_of_workers():
    X = db.examples.random_chain(8, 5)
    how = {"restarts": 4, "rng": 7, "max_iterations": 6}
    alone = db.compress(X, 3, **how)
    for workers in (1, 4):
        with ThreadPoolExecutor(workers) as executor:
            other = db.compress(X, 3, **how, executor=executor)
        assert np.array_equal(alone.chain.transition, other.chain.transition)
        assert alone.history == other.history


def test_fixed_table_of_costs():
    """Two observations given as a table; the chain of blocks 0-1 and 2 is lumpable for it."""
    X = db.MarkovChain([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])
    found = db.compress(X, 2, cost=[[0, 1], [0, 1], [1, 0]])
    assert found.distance.upper <= 1e-8
    assert found.assignment.tolist() == [0, 0, 1]
    assert np.allclose(found.chain.transition, [[0.7, 0.3], [0.8, 0.2]])
    assert found.chain.rewards is None


def test_from_transitions_compresses_the_empirical_chain():
    X = db.examples.block_chain(3, 2)
    path = X.sample(4_000, rng=0)
    data = db.Transitions.from_trajectories([path], states=6)
    found = db.compress(data, 3, target_rewards=X.rewards, restarts=1)
    again = db.compress(data.chain(rewards=X.rewards), 3, restarts=1)
    assert np.array_equal(found.chain.transition, again.chain.transition)
    assert same_partition(found.assignment, np.repeat(np.arange(3), 2))


def test_sweep_never_rises_and_stops_at_the_blocks():
    sweep = db.compress_sweep(db.examples.block_chain(4, 2), sizes=(2, 3, 4, 5), restarts=2)
    assert (np.diff(sweep.values) <= 1e-8).all()
    assert sweep.recommended == 4
    assert sweep.best.distance.upper <= 1e-6
    drawn, mark = sweep.plot().lines
    np.testing.assert_array_equal(drawn.get_xydata(), np.column_stack([sweep.sizes, sweep.values]))
    np.testing.assert_array_equal(mark.get_xydata(), [[4, sweep.best.distance.value]])


@pytest.mark.parametrize("table", [False, True])
def test_a_saved_compression_comes_back_bit_for_bit(table, tmp_path):
    plain = random_blocks(3)[0]
    X = db.MarkovChain(plain.transition, rewards=plain.rewards, names=[f"s{k}" for k in range(25)])
    cost = np.abs(np.subtract.outer(X.rewards, [0.0, 1.5, 4.0])) if table else "reward"
    small = db.compress(X, 3, cost=cost, restarts=2, max_iterations=5)
    small.save(tmp_path / "small.npz")
    back = db.load(tmp_path / "small.npz")
    assert type(back) is type(small)
    assert (repr(back), back.history) == (repr(small), small.history)
    for name in ("transition", "initial", "rewards"):
        assert np.array_equal(getattr(back.chain, name), getattr(small.chain, name))
    for name in ("encoder", "decoder", "assignment", "unused"):
        assert np.array_equal(getattr(back, name), getattr(small, name))
    assert np.array_equal(back.distance.values, small.distance.values)
    assert np.array_equal(back.distance.plan(7, 1), small.distance.plan(7, 1))
    assert back.distance.problem.x.names == X.names


def test_starts_are_never_made_worse():
    X, Y = db.examples.random_chain(10, 0), db.examples.random_chain(3, 1)
    found = db.compress(X, 3, restarts=1, starts=[Y])
    assert found.distance.value <= db.distance(X, Y).value


def test_callback_and_progress():
    X, seen, rows = db.examples.random_chain(8, 0), [], []
    db.compress(X, 2, restarts=2, progress=lambda done, total: seen.append((done, total)), callback=rows.append)
    starts = len({row["restart"] for row in rows})  # two of its own, and one to three simple candidates
    assert starts in (3, 4, 5)
    assert seen == [(n + 1, starts + 1) for n in range(starts + 1)]  # all coarsely, then the best one to the end
    assert sorted(row["restart"] for row in rows[:starts]) == list(range(starts))


def test_time_limit_returns_the_start_at_worst():
    X = db.examples.random_chain(30, 0)
    found = db.compress(X, 4, restarts=2, time_limit=0.0)
    assert found.distance.converged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_states": 0}, "n_states is 0"),
        ({"n_states": 2, "rewards": "spred"}, '"learn", "spread"'),
        ({"n_states": 2, "cost": "indicator"}, "table of shape"),
        ({"n_states": 2, "rewards": [0, 1], "cost": np.zeros((4, 2))}, "both given"),
        ({"n_states": 2, "discount": 1.0}, "discount"),
        ({"n_states": 2, "criterion": "average"}, "criterion is 'average'; .* compress with a discount near 1"),
        ({"n_states": 2, "restarts": 0}, "restarts is 0"),
        ({"n_states": 2, "starts": [db.MarkovChain(np.eye(3))]}, r"starts\[0\]"),
        (
            {"n_states": 2, "lag": 5, "starts": [db.MarkovChain(np.eye(2), rewards=[0, 1], lag=3)]},
            r"starts\[0\] has lag 3 and the small chain has lag 5",
        ),
        (
            {"n_states": 2, "starts": [db.MarkovChain(np.eye(2), rewards=np.eye(2))]},
            r"starts\[0\] has rewards of shape",
        ),
        ({"n_states": 2, "tol": float("nan")}, "tol is nan"),
        ({"n_states": 2, "tol": -1}, "tol is -1"),
        ({"n_states": 2, "tol": "x"}, "tol is 'x'"),
        ({"n_states": 2, "tol": None}, "tol is None"),
        ({"n_states": 2, "checkpoint": 1}, "checkpoint is 1"),
        ({"n_states": 2, "checkpoint": "\ud800"}, "checkpoint is "),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        db.compress(db.examples.random_chain(4, 0), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tol": None}, "tol is None"), ({"tol": np.nan}, "tol is nan"), ({"method": []}, "method is")],
)
def test_wrong_arguments_of_aggregate_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        db.aggregate(db.examples.random_chain(4, 0), [0, 0, 1, 1], **options)


def test_wrong_files_of_a_sweep_are_named():
    with pytest.raises(InvalidArgument, match="checkpoint is 1"):
        db.compress_sweep(db.examples.random_chain(4, 0), [2], checkpoint=1)


def test_without_rewards_it_says_what_to_do():
    with pytest.raises(InvalidArgument, match="target_rewards"):
        db.compress(db.MarkovChain(np.eye(2)), 1)
    with pytest.raises(InvalidArgument, match="target is a str"):
        db.compress("chain.npz", 1)


# --- no search is worse than the obvious ----------------------------------------------------------------------


@each(seed=range(6))
def test_the_frozen_chain_has_the_best_rewards(seed):
    """Brute force over all sets of rewards, in closed form; the library's distance of the chain is the same."""
    rng, k, discount = np.random.default_rng([28, seed]), 2 + seed % 3, (0.5, 0.95)[seed % 2]
    X = db.examples.random_sparse_chain(12, 3, seed).with_initial(rng.dirichlet(np.full(12, 0.3)))
    P, r = X.transition.toarray(), X.rewards
    h = (1 - discount) * np.linalg.solve(np.eye(12) - discount * P, np.abs(np.subtract.outer(r, r)))
    best = min(float(X.initial @ h[:, some].min(axis=1)) for some in map(list, itertools.combinations(range(12), k)))
    target = Target(X, discount, rewards=r)
    frozen = candidates.simple_candidates(target, target, k)[0]
    Y = db.MarkovChain(frozen.transition, initial=frozen.initial, rewards=frozen.rewards)
    assert db.distance(X, Y, discount=discount).value == pytest.approx(best, abs=1e-7)


def test_profiles_of_large_chains_are_sums_over_steps(monkeypatch):
    """They end when a thousandth of the weight is left; values between 0 and 1 are off by no more than that."""
    X = db.examples.random_sparse_chain(30, 3, 0)
    target = Target(X, 0.9, rewards=X.rewards)
    exact = 0.1 * np.linalg.solve(np.eye(30) - 0.9 * X.transition.toarray(), np.eye(30))
    monkeypatch.setattr(candidates, "MAX_DIRECT_STATES", 10)
    found = candidates.discounted(target, np.eye(30))
    assert ((found <= exact + 1e-12) & (found >= exact - candidates.MAX_WEIGHT_LEFT)).all()
    numbers, profiles = candidates.reward_profiles(target)
    assert profiles.shape == (30, numbers.size)
    assert set(numbers) <= set(X.rewards)
    assert db.compress(X, 3, 0.9, restarts=1, max_iterations=2).distance.converged


@each(seed=range(4))
@pytest.mark.filterwarnings("ignore:The s")
def test_given_costs_and_rewards_are_no_farther_than_the_frozen_chain(seed):
    """With fixed appearances the frozen chain sends every state to the least discounted cost."""
    X, rng = db.examples.random_chain(9, seed), np.random.default_rng(seed)
    sticky = db.MarkovChain(0.97 * np.eye(9) + 0.03 * X.transition, initial=X.initial, rewards=X.rewards)
    cost = rng.random((9, 3))
    for given in ({"cost": cost}, {"rewards": [0.2, 0.5, 0.8]}, {"cost": lambda x, y, cost=cost: cost}):
        c = np.abs(np.subtract.outer(X.rewards, given["rewards"])) if "rewards" in given else cost
        profiles = 0.1 * np.linalg.solve(np.eye(9) - 0.9 * sticky.transition, c)
        found = db.compress(sticky, 3, 0.9, restarts=1, max_iterations=0, **given)
        assert found.distance.value <= sticky.initial @ profiles.min(axis=1) + 1e-7


@each(seed=range(6))
@pytest.mark.filterwarnings("ignore:The s")
def test_the_best_aggregate_of_a_small_chain(seed):
    """Oracle: all partitions of six states into at most two classes."""
    X = db.examples.random_chain(6, 40 + seed)
    found = db.compress(X, 2, 0.9, model="aggregate", restarts=2)
    every = [np.array([0, *rest]) for rest in itertools.product((0, 1), repeat=5) if any(rest)]
    best = min(db.aggregate(X, assignment, discount=0.9).distance.value for assignment in every)
    assert found.distance.value <= 1.001 * best + 1e-8


def test_a_kinetic_model_out_of_the_range_of_numbers_is_refused():
    P = np.eye(4)
    for x, leave in enumerate((1e-318, 1e-2, 1e-160, 1e-1)):
        P[x, (x + 1) % 4] = leave
        P[x, x] -= leave
    X = db.MarkovChain(P, rewards=np.arange(4.0))
    with pytest.raises(db.InvalidChain, match="floating-point numbers"):
        db.compress(X, 2, model="kinetic")
    assert db.compress(X, 2, restarts=1).distance.converged


# --- the parts -----------------------------------------------------------------------------------------------


def spent(X, U, m, Q):
    return np.sum(m * all_transports(X.transition, Q, U))


def test_barycenter_is_no_worse_than_any_other_row():
    X, rng = db.examples.random_chain(6, 2), np.random.default_rng(0)
    U, m = rng.random((6, 3)), rng.dirichlet(np.ones(18)).reshape(6, 3)
    P = rng.dirichlet(np.ones(3), size=3)
    best = spent(X, U, m, Barycenters(X, U, m, P).within())
    others = [spent(X, U, m, rng.dirichlet(np.ones(3), size=3)) for _ in range(15)]
    assert best <= min(others) + 1e-9
    near = Barycenters(X, U, m, P).within(0.05)
    assert np.abs(near - P).max() <= 0.05 + 1e-9
    assert best - 1e-9 <= spent(X, U, m, near) <= spent(X, U, m, P) + 1e-9


@pytest.mark.parametrize(("n", "degree", "k"), [(6, 6, 3), (30, 4, 5), (12, 1, 4), (8, 3, 2)])
def test_barycenter_against_the_literal_program(n, degree, k):
    """All plans and the row in one linear program, by HiGHS; weights over many orders of magnitude."""
    X, rng = db.examples.random_sparse_chain(n, degree, 3), np.random.default_rng(1)
    P = X.transition.toarray()
    U, w, start = rng.random((n, k)), rng.dirichlet(np.full(n, 0.2)), np.full(k, 1 / k)
    # plans (x, x', y'), then the row: sums over y' are P(x'|x), sums over x' are the row
    out = sp.kron(sp.eye_array(n * n), np.ones((1, k)))
    into = sp.kron(sp.eye_array(n), sp.kron(np.ones((1, n)), sp.eye_array(k)))
    A = sp.block_array([[out, None], [into, -sp.kron(np.ones((n, 1)), sp.eye_array(k))]])
    cost = np.concatenate([(w[:, None, None] * U).ravel(), np.zeros(k)])
    literal = linprog(cost, A_eq=A, b_eq=np.concatenate([P.ravel(), np.zeros(n * k)]))
    ((q, gap),) = barycenters(X.successors, U, [Average(np.arange(n), w, start)], 1e-9)
    assert gap <= 1e-4
    assert q.sum() == pytest.approx(1, abs=1e-9)
    assert q.min() >= 0
    assert w @ all_transports(P, q[None] / q.sum(), U)[:, 0] == pytest.approx(literal.fun, abs=1e-7)


def test_barycenter_of_rows_at_no_cost_is_where_it_began():
    X, start = db.examples.random_chain(5, 0), np.array([0.2, 0.3, 0.5])
    for row in (start, np.ones(1)):
        found = barycenters(X.successors, np.ones((5, row.size)), [Average(np.arange(5), np.ones(5), row)], 1e-9)
        assert np.array_equal(found[0].row, row)
        assert found[0].gap == 0


def test_barycenters_of_the_heavy_pairs_come_near_those_of_all():
    X, rng = db.examples.random_chain(6, 2), np.random.default_rng(0)
    U, m, P = rng.random((6, 3)), rng.dirichlet(np.ones(18)).reshape(6, 3), np.full((3, 3), 1 / 3)
    exact = spent(X, U, m, Barycenters(X, U, m, P).within())
    for care in (descent.COARSELY, descent.FINELY):
        assert exact - 1e-9 <= spent(X, U, m, Barycenters(X, U, m, P, care).within()) <= 1.05 * exact


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_barycenters_merge_successors_of_similar_cost(noise):
    """Costs within ``noise`` of those of four classes: every entry moves by at most 4 noise, an optimum by 8 noise."""
    X, rng = db.examples.random_chain(12, 2), np.random.default_rng(0)
    U = rng.random((4, 3))[np.arange(12) % 4] + rng.uniform(-noise, noise, (12, 3))
    m, P = rng.dirichlet(np.ones(36)).reshape(12, 3), np.full((3, 3), 1 / 3)
    merged = Barycenters(X, U, m, P, descent.EXACTLY._replace(successors=4))
    rows, costs = merged._successors
    assert (rows.longest, costs.shape) == (4, (4, 3))
    exact = spent(X, U, m, Barycenters(X, U, m, P).within())
    assert exact - 1e-7 <= spent(X, U, m, merged.within()) <= exact + 8 * noise + 1e-7


def test_weighted_median_minimizes():
    rng = np.random.default_rng(0)
    for _ in range(50):
        v, w = rng.random(7), rng.random(7)
        spent_at = [float(w @ np.abs(v - r)) for r in v]
        assert float(w @ np.abs(v - weighted_median(v, w))) <= min(spent_at) + 1e-12


def test_landmarks_of_a_small_chain_are_the_metric_itself():
    X = db.examples.random_chain(7, 0)
    features = landmark_distances(Target(X, 0.9, rewards=X.rewards))
    metric = db.distance(X, X, discount=0.9).values
    apart = np.abs(features[:, None] - features[None]).max(axis=2)
    assert np.abs(apart - metric).max() <= 1e-5


def test_medoids_find_the_blocks():
    X, blocks, _ = random_blocks(3)
    target = Target(X, 0.95, rewards=X.rewards)
    assignment = medoid_partition(landmark_distances(target), target.weight, 5, np.random.default_rng(0))
    assert same_partition(assignment, blocks)


def test_starts_differ_from_each_other():
    """Points on a line in three loose clusters: k-medoids finds the same ones from most centers."""
    rng = np.random.default_rng(0)
    points, weight = np.concatenate([c + rng.normal(size=30) for c in (0, 4, 8)])[:, None], np.full(90, 1 / 90)
    plain = [medoid_partition(points, weight, 3, np.random.default_rng(seed)) for seed in range(6)]
    others = []
    for seed in range(6):
        others.append(other_partition(points, weight, 3, np.random.default_rng(seed), others, np.inf))
    assert (distinct(plain), distinct(others)) == (1, 6)


def distinct(partitions):
    """The number of partitions that are unlike all earlier ones."""
    return sum(all(agreement(a, b) <= 0.95 for b in partitions[:k]) for k, a in enumerate(partitions))


def agreement(a, b):
    """The fraction of points in the same class, over all ways to match the classes of two partitions."""
    return max(np.mean(np.array(order)[a] == b) for order in itertools.permutations(range(3)))


def test_averaging_over_classes_is_the_textbook_formula():
    X = db.examples.random_chain(6, 1)
    target, assignment = Target(X, 0.9, rewards=X.rewards), np.array([0, 1, 0, 2, 1, 0])
    rho = X.occupancy(0.9)
    literal = [
        [
            sum(rho[x] * X.transition[x, assignment == b].sum() for x in np.flatnonzero(assignment == a))
            for b in range(3)
        ]
        for a in range(3)
    ]
    literal = np.array(literal) / np.array([[rho[assignment == a].sum()] for a in range(3)])
    assert np.allclose(averaged(target, assignment, 3).transition, literal, atol=1e-9)


def test_no_average_over_clusters_of_rewards_and_values_is_nearer():
    """Groups of states that are seldom left; k-means by SciPy from twenty seeds, and certified distances."""
    rng = np.random.default_rng([45, 304, 35])
    n, k = 24, int(rng.integers([12, 2], [49, 9])[1])
    noise, group = rng.normal(size=n), np.sort(rng.integers(0, 5, n))
    P = rng.gamma(0.5, size=(n, n)) * np.where(group[:, None] == group, 1.0, 10 ** -rng.uniform(1, 4))
    P /= P.sum(axis=1, keepdims=True)
    X = db.MarkovChain(P, rewards=rng.normal(size=5)[group] + 0.2 * noise).with_initial(np.full(n, 1 / n))
    value = np.linalg.solve(np.eye(n) - 0.95 * P, X.rewards)
    points = np.stack([X.rewards / np.ptp(X.rewards), value / np.ptp(value)], axis=1)
    tried = [kmeans2(points, k, minit="++", rng=np.random.default_rng([7, seed]))[1] for seed in range(20)]
    best = min(db.aggregate(X, np.unique(assignment, return_inverse=True)[1]).distance.value for assignment in tried)
    for model in ("nearest", "aggregate"):
        assert db.compress(X, k, model=model, restarts=1, max_iterations=5).distance.value <= 1.001 * best


def test_prospects_of_moves_are_first_order_changes():
    """The gradient times the change of the averaged kernel, computed by averaging over the new classes."""
    X, assignment = db.examples.random_sparse_chain(9, 3, 1), np.arange(9) % 3
    target = Target(X, 0.8, rewards=X.rewards)
    search = descent.DescentRun(target, averaged(target, assignment, 3), 10, np.inf)
    search.begin()
    found, U = descent.prospects(search, assignment), search.result.values
    G = search.result.gradient.transition_y
    for x, y in itertools.product(range(9), range(3)):
        moved = averaged(target, np.where(np.arange(9) == x, y, assignment), 3)
        change = (G * (moved.transition - search.model.transition)).sum() + X.initial[x] * (
            U[x, y] - U[x, assignment[x]]
        )
        assert found[x, y] == (np.inf if y == assignment[x] else pytest.approx(change, abs=1e-9))


def test_no_average_over_a_partition_is_nearer_than_the_nearest_chain():
    """Sticky rank-one kernels with a long tail of rewards, two restarts: all partitions of eight states, by hand."""
    rng = np.random.default_rng(29)
    n, k, discount = 8, 2, 0.999
    π = rng.dirichlet(np.ones(n))
    P = 0.95 * np.eye(n) + 0.05 * π
    rng.normal(size=n)
    X = db.MarkovChain(
        P / P.sum(axis=1, keepdims=True), rewards=(rng.exponential(size=n) ** 4).round(3),
        initial=rng.dirichlet(np.full(n, 0.5)),
    )  # fmt: skip
    best = min(
        db.aggregate(X, [0, *(number >> s & 1 for s in range(n - 1))], discount=discount).distance.value
        for number in range(1, 2 ** (n - 1))
    )
    for seed in range(3):
        assert db.compress(X, k, discount=discount, restarts=2, rng=seed).distance.value <= best * (1 + 1e-6)
