"""Abstraction of MDPs: losses against brute force, bounds against true losses, the four rooms, and bad input."""

import itertools
import re

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.processes.environments import as_env, rollouts
from diffbisim.processes.examples import four_rooms
from diffbisim.processes.planning import optimal_values, policy_values
from diffbisim.reduction.abstraction.model import Family, Ground, class_means, step_errors
from diffbisim.reduction.abstraction.partitions import (
    Scoring,
    all_partitions,
    count_neighbors,
    count_partitions,
    improved,
    neighbors,
)
from diffbisim.reduction.abstraction.search import Metric, balls, medians, pairs
from oracles import abstraction, games
from oracles.kernels import dense


def nearly_lumpable(rng, k=3, size=3, n_actions=2, noise=0.05, d=1):
    """Kernels (n_actions, n, n), features (n, n_actions, d) and classes (n,), noisily alike within classes."""
    classes = np.repeat(np.arange(k), size)
    between = rng.dirichlet(np.ones(k), (n_actions, k))[:, classes]
    P = between[:, :, classes] * rng.dirichlet(np.ones(size), (n_actions, k * size, k)).reshape(n_actions, k * size, -1)
    P = (1 - noise) * P + noise * rng.dirichlet(np.ones(k * size), (n_actions, k * size))
    features = rng.random((k, n_actions, d))[classes] + noise * rng.random((k * size, n_actions, d))
    return P, features, classes


def evaluated(P, r, actions, discount):
    """Normalized values of a deterministic policy."""
    s = np.arange(len(r))
    return np.linalg.solve(np.eye(len(r)) - discount * P[actions, s], (1 - discount) * r[s, actions])


def best(P, r, discount):
    """Optimal values and policy by trying every deterministic policy."""
    n_actions, n = P.shape[:2]
    tried = [np.array(actions) for actions in itertools.product(range(n_actions), repeat=n)]
    values = [evaluated(P, r, actions, discount) for actions in tried]
    return max(zip(values, tried, strict=True), key=lambda pair: pair[0].sum())


# --- certified values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_certified_values_hold_what_brute_force_finds(seed):
    rng = np.random.default_rng([1, seed])
    γ = (0.5, 0.9, 0.99)[seed % 3]
    P, r = games.random_mdp(rng, 4, 3, ("dense", "garnet")[seed % 2])
    v, actions = best(P, r, γ)
    for kernels in (P, [sp.csr_array(p) for p in P]):
        mdp = db.MDP(kernels, rewards=r)
        for found in (optimal_values(mdp, γ), policy_values(mdp, actions, γ)):
            assert (found.upper - found.lower <= 1e-12 / (1 - γ) ** 2).all()
            assert (np.abs((1 - γ) * found.upper - v) <= 1e-12 / (1 - γ)).all()
    mixed = rng.dirichlet(np.ones(3), 4)
    mixture = np.einsum("sa,ast->st", mixed, P)
    exact = np.linalg.solve(np.eye(4) - γ * mixture, (mixed * r).sum(axis=1))
    assert policy_values(mdp, mixed, γ).upper == pytest.approx(exact, abs=1e-12 / (1 - γ) ** 2)


# --- losses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_losses_are_those_of_brute_force(seed):
    """Class means by loops, all policies of the classes tried, the lifted one and the one with lookahead evaluated."""
    rng = np.random.default_rng([2, seed])
    γ, k, sizes = 0.9, 3, np.array([3, 1, 2])
    P, r = games.random_mdp(rng, 6, 2)
    classes = rng.permutation(np.repeat(np.arange(k), sizes))
    P_mean, r_mean = np.zeros((2, k, k)), np.zeros((k, 2))
    for s, j in enumerate(classes):
        r_mean[j] += r[s] / sizes[j]
        for a, t in itertools.product(range(2), range(6)):
            P_mean[a, j, classes[t]] += P[a, s, t] / sizes[j]
    v_star, (v_small, small) = best(P, r, γ)[0], best(P_mean, r_mean, γ)
    ahead = ((1 - γ) * r + γ * np.moveaxis(P @ v_small[classes], 0, 1)).argmax(axis=1)
    start = rng.dirichlet(np.ones(6))
    for kernels in (P, [sp.csr_array(p) for p in P]):
        found = db.abstract(db.MDP(kernels, rewards=r, initial=start), discount=γ, assignment=classes)
        number = found.assignment[[int(np.argmax(classes == j)) for j in range(k)]]  # by first appearance
        assert np.array_equal(found.assignment, number[classes])
        assert dense(found.mdp)[1][number][:, number] == pytest.approx(P_mean[1], abs=1e-15)
        assert found.mdp.rewards[number] == pytest.approx(r_mean, abs=1e-15)
        assert found.mdp.initial[number] == pytest.approx(np.bincount(classes, weights=start), abs=1e-15)
        assert np.array_equal(found.policy[number], small)
        assert np.array_equal(found.lookahead_policy, ahead)
        for losses, actions in ((found.losses, small[classes]), (found.lookahead_losses, ahead)):
            exact = v_star - evaluated(P, r, actions, γ)
            assert (exact <= losses + 1e-15).all()
            assert (losses <= exact + found.accuracy + 1e-15).all()
        assert found.loss == found.losses.max()
        assert found.start_loss == pytest.approx(start @ found.losses)
        assert found.accuracy <= 1e-11
        (row,) = found.candidates
        assert row.loss == pytest.approx(found.loss, abs=1e-11)
        assert row.lookahead_start_loss == pytest.approx(found.lookahead_start_loss, abs=1e-11)


def test_lift_and_encoder():
    P, r = games.random_mdp(np.random.default_rng(3), 5, 2)
    found = db.abstract(db.MDP(P, rewards=r, actions=("left", "right")), assignment=list("babcb"))
    assert found.assignment.tolist() == [0, 1, 0, 2, 0]
    assert found.lift([1, 0, 1]).tolist() == [1, 0, 1, 1, 1]
    soft = np.array([[0.5, 0.5], [1, 0], [0.25, 0.75]])
    assert np.array_equal(found.lift(soft), soft[found.assignment])
    assert np.array_equal(found.encoder, np.eye(3)[found.assignment])
    assert found.members(0).tolist() == [0, 2, 4]
    assert found.mdp.actions == ("left", "right")
    with pytest.raises(InvalidChain, match=re.escape("policy[2] = 2 is not an action")):
        found.lift([0, 1, 2])
    with pytest.raises(InvalidArgument, match=re.escape("k = 3 is not a class")):
        found.members(3)


# --- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_step_errors_are_the_transports_of_a_linear_program(seed):
    rng = np.random.default_rng([4, seed])
    γ = 0.9
    P, features, classes = nearly_lumpable(rng, d=2)
    mdp = db.MDP(P, rewards=features[:, :, 0])
    found = db.abstract(mdp, discount=γ, assignment=classes)
    means = class_means(classes, features)
    b = step_errors(mdp, found.mdp, classes, γ, Family(features, means))
    P_mean, cost = np.array(found.mdp.transition), np.abs(means[:, None] - means).sum(axis=-1).transpose(2, 0, 1)
    metric = games.value_iteration(P_mean, P_mean, np.stack([cost] * 2, axis=1), γ, "matched")
    pushed = P @ np.eye(3)[classes]
    for a in range(2):
        seen = np.abs(features[:, a] - means[classes, a]).sum(axis=1)
        exact = (1 - γ) * seen + γ * games.transports(pushed[a], P_mean[a][classes], metric)
        assert (b[:, a] >= exact - 1e-9).all()
        assert (b[:, a] <= exact + 2e-6 * cost.max() + 1e-9).all()  # the metric is solved to 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_for_every_reward_of_the_family(seed):
    """D1, D2 and D3 against exact losses, for random weights and for the corners of the family."""
    rng = np.random.default_rng([5, seed])
    γ, d = (0.5, 0.9, 0.98)[seed % 3], 2
    P, features, classes = nearly_lumpable(rng, noise=(0.01, 0.1, 0.5)[seed % 3], d=d)
    s = np.arange(len(classes))
    mdp = db.MDP(P, rewards=features[:, :, 0])
    found = db.abstract(mdp, discount=γ, assignment=classes, features=features[:, :, 1:])
    means = class_means(classes, features)
    cost = np.abs(features[:, None] - means[None]).sum(axis=-1).transpose(2, 0, 1)
    U = db.distance(mdp, found.mdp, cost, γ).values_upper  # D1: the metric to the abstraction, for the family
    u, P_mean = U[s, classes], np.array(found.mdp.transition)
    assert (u <= found.value_errors + 1e-7).all()  # U(s, φ(s)) ≤ e(s)
    weights = [*rng.uniform(-1, 1, (4, d)), *(np.array(w) for w in itertools.product((-1.0, 1.0), repeat=d)), [1.0, 0]]
    for w in weights:
        r = features @ w
        moved = found.transfer(r)
        lifted = moved.policy[classes]
        v_star = games.optimal_values(P, r, γ)
        lost = v_star - evaluated(P, r, lifted, γ)
        assert (np.abs(lost - moved.losses) <= 1e-9).all()
        assert (lost <= moved.bounds + 1e-10).all()  # D2
        assert moved.bound <= found.family_bound + 1e-12
        small = games.optimal_values(P_mean, means @ w, γ)
        assert (np.abs(v_star - small[classes]) <= np.minimum(u, found.value_errors) + 1e-10).all()
        at_lifted = (1 - γ) * cost[lifted, s, classes] + γ * games.transports(P[lifted, s], P_mean[lifted, classes], U)
        d1 = np.linalg.solve(np.eye(s.size) - γ * P[lifted, s], u + at_lifted)
        assert (lost <= d1 + 1e-9).all()
        assert (d1 <= 2 * u.max() / (1 - γ) + 1e-9).all()
    own = found.transfer(features[:, :, 0])
    assert own.bounds == pytest.approx(found.bounds, abs=1e-12)
    assert found.loss <= found.reward_bound + found.accuracy  # D3


# --- candidates ---------------------------------------------------------------------------------------------------


def line(n):
    """Points on a line, |x - y|."""
    return np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float)


def test_partitions_of_separated_groups():
    """Groups far apart are found by every method, whatever the seed."""
    rng = np.random.default_rng(6)
    groups = rng.permutation(np.repeat(np.arange(4), 5))
    x = 100.0 * groups + rng.random(20)
    D = np.abs(np.subtract.outer(x, x))
    for seed in range(5):
        made = [
            medians(Metric.of_table(D), np.ones(20), 4, np.random.default_rng(seed)),
            medians(Metric.of_features(x[:, None]), np.ones(20), 4, np.random.default_rng(seed)),
            balls(D, 4, np.random.default_rng(seed)),
            pairs(D, 4, np.random.default_rng(seed)),
        ]
        for assignment in made:
            assert len(set(zip(assignment, groups, strict=True))) == 4 == assignment.max() + 1


@pytest.mark.parametrize("k", [1, 2, 5, 9, 10, 30])
def test_balls_have_the_least_radius_of_which_k_are_enough(k):
    D, rng = line(10), np.random.default_rng(k)
    assignment = balls(D, k, rng)
    assert assignment.max() + 1 <= k
    order = np.random.default_rng(k).permutation(10)
    for radius in range(10):  # as Ferns does it, for every radius
        free, centers = set(range(10)), []
        for s in order:
            if s in free:
                centers.append(s)
                free -= {t for t in free if D[s, t] <= radius}
        if len(centers) <= k:
            assert assignment.max() + 1 == len(centers)
            break


def test_greedy_pairs_as_step_by_step():
    """google-research's way: put the closest two states of different classes together, k times."""
    D = np.random.default_rng(7).random((12, 12))
    D = D + D.T - np.diag(np.diag(D + D.T))
    classes = list(range(12))
    for s, t in sorted(itertools.combinations(range(12), 2), key=lambda pair: D[pair]):
        if len(set(classes)) == 4:
            break
        classes = [classes[t] if c == classes[s] else c for c in classes]
    found = pairs(D, 4, np.random.default_rng(0))
    assert len(set(zip(found, classes, strict=True))) == 4 == found.max() + 1
    assert pairs(D, 20, np.random.default_rng(0)).tolist() == list(range(12))


def test_four_rooms_are_recovered_and_lose_nothing():
    rooms = four_rooms(7, irrelevant=3)
    found = db.abstract(rooms, n_states=40)
    assert found.assignment.tolist() == np.repeat(np.arange(40), 3).tolist()
    assert found.loss <= 1e-11
    assert found.bound <= 1e-11
    assert [row.method for row in found.candidates] == ["lump"]
    noisy = db.abstract(four_rooms(7, irrelevant=3, influence=0.01), n_states=40, restarts=2)
    assert noisy.loss <= 1e-3
    assert noisy.n_states <= 40


def test_the_best_candidate_wins_and_every_method_runs():
    rooms = four_rooms(7, irrelevant=3)
    found = db.abstract(rooms, n_states=12, restarts=3)
    drawn, simple = {"q", "action", "bisimulation", "sum", "balls", "greedy"}, {"one class", "best action", "reward"}
    simple |= {"value", "value quantile", "linkage", "q linkage"}
    assert {row.method for row in found.candidates} - {"moves"} == drawn | simple
    assert len([row for row in found.candidates if row.method in drawn]) == 18
    assert sorted(row.method for row in found.candidates if row.method in simple) == sorted(simple)
    assert found.loss == pytest.approx(min(row.loss for row in found.candidates), abs=1e-11)
    for score in ("lookahead_loss", "start_loss", "lookahead_start_loss"):
        other = db.abstract(rooms, n_states=12, restarts=3, score=score)
        assert getattr(other, score) == pytest.approx(min(getattr(row, score) for row in other.candidates), abs=1e-11)
    for method in ("bisimulation", "q", "balls", "greedy"):
        one = db.abstract(rooms, n_states=12, method=method, restarts=2)
        assert {row.method for row in one.candidates} == {method}
        assert one.n_states <= 12
        assert one.loss >= found.loss - 1e-11
    for row in found.candidates:  # each can be had again from its assignment
        assert row.n_states == row.assignment.max() + 1 <= 12
        assert row.loss <= row.reward_bound + 1e-11
    again = db.abstract(rooms, assignment=found.candidates[4].assignment)
    assert again.loss == pytest.approx(found.candidates[4].loss, abs=1e-11)
    assert repr(found).startswith(f"AbstractionResult(120 states to 12 by {found.method!r}, loss ")


@pytest.mark.parametrize("seed", range(12))
def test_no_partition_is_better_where_all_are_scored(seed):
    rng = np.random.default_rng([21, seed])
    n, k, γ = int(rng.integers(4, 8)), int(rng.integers(2, 4)), (0.5, 0.9, 0.99)[seed % 3]
    P, r = games.random_mdp(rng, n, 2 + seed % 2, ("dense", "garnet", "deterministic", "dense")[seed % 4])
    start = rng.dirichlet(np.ones(n))
    mdp = db.MDP(P, rewards=r, initial=start)
    found = db.abstract(mdp, k, γ, restarts=1)
    assert found.optimality == "global"
    assert found.loss == pytest.approx(abstraction.least_loss(P, r, k, γ), abs=1e-10)
    begun = db.abstract(mdp, k, γ, restarts=1, score="start_loss")
    assert begun.start_loss == pytest.approx(abstraction.least_loss(P, r, k, γ, start), abs=1e-10)


def test_splitting_equivalent_states_is_also_tried():
    """Two copies of every state, k below the number of exact classes: brute force may separate the copies."""
    P, r = games.random_mdp(np.random.default_rng(22), 4, 2)
    P, r = np.repeat(np.repeat(P, 2, axis=1), 2, axis=2) / 2, np.repeat(r, 2, axis=0)
    found = db.abstract(db.MDP(P, rewards=r), 2, 0.9, restarts=1)
    assert found.loss == pytest.approx(abstraction.least_loss(P, r, 2, 0.9), abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_larger_searches_end_in_local_minima_below_simple_partitions(seed):
    """22 states, of which there are too many partitions; every move and swap is tried by brute force."""
    rng = np.random.default_rng([23, seed])
    n, k, γ = 22, 3, (0.9, 0.95, 0.99)[seed]
    P, r = games.random_mdp(rng, n, 4, ("garnet", "dense", "deterministic")[seed])
    found = db.abstract(db.MDP(P, rewards=r), k, γ, restarts=2)
    assert found.optimality in ("local", "global")
    v = abstraction.optimal_values(P, r, γ)
    for near in abstraction.one_step_away(found.assignment.tolist(), k) if found.optimality == "local" else ():
        assert abstraction.losses(P, r, near, γ, v).max() >= found.loss - 1e-10
    order = v.argsort()
    for assignment in (np.zeros(n, int), order.argsort() * k // n, (r.sum(axis=1).argsort().argsort() * k) // n):
        assert found.loss <= abstraction.losses(P, r, assignment, γ, v).max() + 1e-10


def test_scores_of_many_partitions_are_those_of_each():
    rng = np.random.default_rng(24)
    P, r = games.random_mdp(rng, 7, 3, "garnet")
    weight = rng.integers(1, 4, 7).astype(float)
    for kernels in (P, [sp.csr_array(p) for p in P]):
        ground = Ground.of(db.MDP(kernels, rewards=r), 0.9, weight)
        for loss in ("loss", "start_loss", "lookahead_loss", "lookahead_start_loss"):
            rows = all_partitions(7, 3)
            each = [getattr(ground.losses(row), loss) for row in rows]
            assert [score.loss for score in Scoring(ground, 3, loss).of(rows)] == pytest.approx(each, abs=1e-12)


def test_partitions_and_their_neighbors_are_listed_once():
    for n, k in itertools.product(range(1, 7), range(1, 8)):
        rows = [tuple(row) for row in all_partitions(n, k).tolist()]
        assert sorted(rows) == sorted(abstraction.partitions(n, k))
        assert count_partitions(n, k, 1_000) == len(rows)
    assert count_partitions(100, 50, 1_000) == 1_001
    assignment = np.array([0, 1, 0, 2, 1, 0])
    for k in (3, 5):
        total = count_neighbors(assignment, k)
        near = np.vstack([neighbors(assignment, k, at, min(4, total - at)) for at in range(0, total, 4)])
        assert sorted(map(tuple, near.tolist())) == sorted(abstraction.one_step_away(assignment.tolist(), k))


def test_the_work_of_moves_is_limited_and_what_is_known_is_said():
    P, r = games.random_mdp(np.random.default_rng(25), 30, 3, "garnet")
    ground = Ground.of(db.MDP(P, rewards=r), 0.95)
    start = np.arange(30) % 2
    scoring = Scoring(ground, 2, "loss")
    stopped, known = improved(scoring, start, lambda: True, most_work=1.0)
    assert known == "tried"
    assert np.array_equal(stopped, start)
    _, known = improved(scoring, start, lambda: False)
    assert known == "tried"
    ended, known = improved(scoring, start, lambda: True)
    assert known in ("local", "global")
    assert ground.losses(ended).loss < ground.losses(start).loss


def test_same_seed_same_answer_dense_as_sparse():
    rng = np.random.default_rng(8)
    P, r = games.random_mdp(rng, 14, 3, "garnet")
    sparse = db.MDP([sp.csr_array(p) for p in P], rewards=r)
    first, again, other = (
        db.abstract(mdp, n_states=5, discount=0.9, rng=seed, restarts=2)
        for mdp, seed in ((db.MDP(P, rewards=r), 0), (db.MDP(P, rewards=r), 0), (sparse, 0))
    )
    assert np.array_equal(first.assignment, again.assignment)
    assert first.loss == again.loss
    assert first.loss == pytest.approx(other.loss, abs=1e-11)


def test_progress_and_time():
    seen = []
    P, r = games.random_mdp(np.random.default_rng(9), 10, 2)
    mdp = db.MDP(P, rewards=r)
    found = db.abstract(mdp, 3, restarts=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 20) for k in range(1, 21)]  # 7 simple, 6 kinds twice, and all partitions
    assert found.complete
    hurried = db.abstract(mdp, 3, restarts=50, time_limit=0.0)
    assert len(hurried.candidates) == 1
    assert not hurried.complete
    assert hurried.optimality == "tried"
    assert repr(hurried).endswith("stopped by the time limit)")
    assert db.abstract(mdp, 1, restarts=1).n_states == 1


def test_features_tell_states_apart():
    """Without features two states merge; with them they do not, and the bound is for their rewards too."""
    stay = np.eye(4)
    mdp = db.MDP([stay, stay[[1, 0, 3, 2]]], rewards=[0.0, 1, 0, 1])
    assert db.abstract(mdp, 4).n_states == 2
    color = np.array([[0.0], [0], [1], [1]])
    found = db.abstract(mdp, 4, features=color)
    assert found.n_states == 4
    merged = db.abstract(mdp, assignment=[0, 1, 0, 1], features=color)
    assert merged.family_bound >= merged.transfer(color[:, 0]).loss
    assert merged.loss <= 1e-12


# --- data ---------------------------------------------------------------------------------------------------------


def test_abstraction_from_data_is_that_of_the_empirical_mdp():
    rng = np.random.default_rng(10)
    rooms = four_rooms(7)
    states, actions = rooms.sample(rooms.uniform_policy(), 30_000, rng)
    s, t = states[:-1], states[1:]
    data = db.Transitions.from_pairs(s, t, actions=actions, rewards=rooms.rewards[s], states=40)
    mdp = db.MDP.from_transitions(data)
    for a in range(4):
        counts = np.zeros((40, 40))
        np.add.at(counts, (s[actions == a], t[actions == a]), 1)
        assert dense(mdp)[a] == pytest.approx(counts / counts.sum(axis=1, keepdims=True), abs=1e-12)
    assert mdp.rewards == pytest.approx(np.repeat(rooms.rewards[:, None], 4, axis=1), abs=1e-12)
    found = db.abstract(data, n_states=20, restarts=2)
    assert found.loss == pytest.approx(db.abstract(mdp, n_states=20, restarts=2).loss, abs=1e-12)
    assert db.abstract(data, n_states=40, rewards=rooms.rewards).loss <= 1e-11


def test_episodes_with_actions_and_what_gymnasium_gives():
    paths, actions, rewards = [[0, 1, 2], [1, 1]], [["go", "go"], ["stay"]], [[0.0, 1.0], [0.5]]
    data = db.Transitions.from_trajectories(paths, actions=actions, rewards=rewards)
    assert (data.actions.tolist(), data.action_names) == ([0, 0, 1], ("go", "stay"))
    mdp = db.MDP.from_transitions(data, unseen="self-loop")
    assert mdp.initial.tolist() == [0.5, 0.5, 0]
    assert mdp.rewards.tolist() == [[0, 0], [1, 0.5], [0, 0]]
    rooms = four_rooms(7)
    seen = rollouts(as_env(rooms, 100), rooms.uniform_policy(), 2_000, 0)
    whole = seen.transitions(actions=True)
    assert db.MDP.from_transitions(whole, unseen="self-loop").n_states == 40
    assert np.array_equal(whole.actions, seen.actions)
    assert seen.transitions().actions is None


def test_actions_never_seen():
    data = db.Transitions.from_pairs(list("aab"), list("bac"), actions=["go", "stay", "go"], rewards=[1, -2.0, 4])
    with pytest.raises(
        InvalidData, match=re.escape("action 'stay' was never taken in state 'b' (1 such pairs in total)")
    ):
        db.MDP.from_transitions(data)
    careful = db.MDP.from_transitions(data, unseen="self-loop")
    assert careful.actions == ("go", "stay")
    assert dense(careful)[0].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert dense(careful)[1].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert careful.rewards.tolist() == [[1, -2], [4, -2], [0, 0]]  # the lowest; none where nothing was ever done
    anywhere = db.MDP.from_transitions(data, unseen="uniform")
    assert dense(anywhere)[1][1] == pytest.approx([1 / 3] * 3)
    assert dense(anywhere)[1][2].tolist() == [0, 0, 1]
    assert anywhere.rewards[1].tolist() == [4, 1]
    twice = data.take([0, 0, 1, 2])
    assert db.MDP.from_transitions(twice, unseen="self-loop").rewards.tolist() == careful.rewards.tolist()
    with pytest.raises(InvalidData, match="state 'c' has no outgoing transition"):
        db.MDP.from_transitions(db.Transitions.from_pairs(list("ab"), list("bc"), actions=["go", "go"], rewards=[1, 2]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda M: db.abstract(M), InvalidArgument, "n_states is None; it must be an integer of at least 1"),
        (lambda M: db.abstract(M, 0), InvalidArgument, "n_states is 0"),
        (lambda M: db.abstract(M, 2, method="magic"), InvalidArgument, "method is 'magic'; use one of 'best'"),
        (lambda M: db.abstract(M, 2, score="bound"), InvalidArgument, "score is 'bound'; use one of 'loss'"),
        (lambda M: db.abstract(M, 2, discount=1.0), InvalidArgument, "discount is 1.0"),
        (lambda M: db.abstract(M, 2, restarts=0), InvalidArgument, "restarts is 0"),
        (lambda M: db.abstract(M, 2, time_limit=-1), InvalidArgument, "time_limit is -1"),
        (lambda M: db.abstract(M, 2, rewards=[1, 2]), InvalidArgument, "rewards is given, but an MDP has its own"),
        (lambda M: db.abstract(M, 2, rng=-1), InvalidArgument, "rng must be a non-negative integer"),
        (
            lambda M: db.abstract(M, assignment=[0]),
            InvalidArgument,
            "assignment has shape (1,); pass one class for each of the 3",
        ),
        (
            lambda M: db.abstract(M, 1, assignment=[0, 1, 1]),
            InvalidArgument,
            "assignment has 2 classes, more than n_states = 1",
        ),
        (lambda M: db.abstract(M, assignment=[0, 1, 1], method="q"), InvalidArgument, "both given; leave one"),
        (lambda M: db.abstract(M, 2, features=np.ones((2, 1))), InvalidChain, "features has shape (2, 1)"),
        (lambda M: db.abstract(db.MDP([np.eye(3)]), 2), InvalidArgument, "the MDP has no rewards"),
        (lambda M: db.abstract(db.MarkovChain(np.eye(3)), 2), InvalidArgument, "mdp is a MarkovChain; pass an MDP"),
        (
            lambda M: db.abstract(db.Transitions.from_pairs([0], [0]), 1),
            InvalidData,
            "data has no actions",
        ),
        (
            lambda M: db.abstract(db.Transitions.from_pairs([0], [0], actions=[0]), 1),
            InvalidData,
            "data has no rewards",
        ),
        (
            lambda M: db.Transitions.from_trajectories([[0, 1], [1, 0, 1]], actions=[[0], [1]]),
            InvalidData,
            "actions[1] has 1 entries for 2 steps",
        ),
        (
            lambda M: db.Transitions.from_trajectories([[0, 1]], rewards=[[0], [1]]),
            InvalidData,
            "rewards has 2 sequences for 1 trajectories",
        ),
        (
            lambda M: db.Transitions.from_pairs([0], [0], actions=[0, 1]),
            InvalidData,
            "actions has 2 entries for 1 transitions",
        ),
        (
            lambda M: db.MDP.from_transitions(
                db.Transitions.from_pairs([0], [0], actions=[0], rewards=[1]), unseen="drop"
            ),
            InvalidArgument,
            "unseen is 'drop'",
        ),
    ],
)
def test_bad_input_is_refused_with_a_remedy(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(db.MDP([np.eye(3), np.eye(3)[[1, 2, 0]]], rewards=[0, 1, 2]))
