"""Metrics of MDPs against linear programs, central differences, and the examples on which other algorithms cycle."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from oracles import games

KINDS = ("dense", "garnet", "deterministic")
MODES = ("matched", "lax", "directed")


def pair(seed, actions, kind, sizes=(4, 3)):
    """Two random MDPs; lax ones with different numbers of actions."""
    rng = np.random.default_rng([13, seed])
    (P, r), (Q, r_hat) = (
        games.random_mdp(rng, n, k, kind)
        for n, k in zip(sizes, (2, 2) if actions == "matched" else (2, 3), strict=True)
    )
    return P, r, Q, r_hat


def measured(P, r, Q, r_hat, discount, actions, **options):
    M, N = db.MDP(P, rewards=r), db.MDP(Q, rewards=r_hat)
    cost = games.reward_cost(r, r_hat, actions == "directed")
    return db.distance(M, N, discount=discount, actions=actions, **options), (P, Q, cost, discount, actions)


@pytest.fixture(params=["few pairs", "many pairs"])
def either_way(request, monkeypatch):
    """Plans are evaluated in double precision, and as those of many pairs are."""
    if request.param == "many pairs":
        monkeypatch.setattr("diffbisim.solvers.exact.games.MANY", 0)


def assert_enclosed(result, U, slack):
    """The true table is within the certified ones, up to what the oracle does not know."""
    assert (result.values_lower <= U + slack).all()
    assert (result.values_upper >= U - slack).all()
    assert (result.values_lower <= result.values).all()
    assert (result.values <= result.values_upper).all()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("actions", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "discount"), [(0, 0.5), (1, 0.9), (2, 0.95)])
def test_two_mdps_of_different_sizes(seed, discount, kind, actions):
    result, question = measured(*pair(seed, actions, kind), discount, actions)
    assert result.converged
    assert games.error(result.values, *question) <= 1e-7
    assert result.values_upper.max() - result.values_lower.max() <= 1e-7


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("actions", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_mdp_by_half_of_its_pairs(kind, actions):
    rng = np.random.default_rng(21)
    P, r = games.random_mdp(rng, 5, 3, kind)
    M = db.MDP(P, rewards=r)
    result = db.bisimulation(M, discount=0.9, actions=actions)
    cost = games.reward_cost(r, r, actions == "directed")
    assert games.error(result.values, P, P, cost, 0.9, actions) <= 1e-7
    assert result.work["pairs"] == (25 if actions == "directed" else 10)
    if actions != "directed":
        assert np.array_equal(result.values, result.values.T)
        assert not result.values.diagonal().any()


@pytest.mark.parametrize("actions", MODES)
def test_agrees_with_value_iteration(actions):
    result, (P, Q, cost, discount, _) = measured(*pair(5, actions, "garnet", (3, 3)), 0.7, actions)
    U = games.value_iteration(P, Q, cost, discount, actions, tol=1e-9)
    assert np.abs(result.values - U).max() <= 1e-7
    assert_enclosed(result, U, 2e-9)


def test_dense_and_sparse_are_the_same():
    P, r, Q, r_hat = pair(3, "matched", "garnet", (6, 5))
    dense, _ = measured(P, r, Q, r_hat, 0.9, "matched")
    sparse, _ = measured([sp.csr_array(p) for p in P], r, Q, r_hat, 0.9, "matched")
    assert np.abs(dense.values - sparse.values).max() <= 1e-7
    for a in range(2):
        G = sparse.gradient.transition_x[a].toarray()
        assert np.abs((dense.gradient.transition_x[a] - G)[P[a] > 0]).max() <= 1e-6


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("discount", [0.95, 0.99])
@pytest.mark.parametrize("slip", [0.1, 0.2, 0.4])
def test_taxi_on_which_improving_both_players_cycles(slip, discount):
    """Three cells in a row, 12 states: gaps 0.86 and 83.4 for ever, if plans and actions are improved at once."""
    P, r = games.taxi(1, 3, slip)
    M = db.MDP(P, rewards=r)
    result = db.bisimulation(M, discount=discount, tol=1e-10)  # the oracle's bound is up to 200 times the true error
    assert result.converged
    assert result.iterations <= 40  # of 200: how many depends on roundings, a cycle would take all
    assert result.work["transports"] <= 5 * result.work["pairs"] * 6
    assert games.error(result.values, P, P, games.reward_cost(r, r), discount, "matched") <= 1e-7


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_lax_example_on_which_improving_both_players_cycles(discount):
    swap, stay, to_1 = [[0, 1], [1, 0]], [[1, 0], [0, 1]], [[0, 1], [0, 1]]
    r, r_hat = np.array([[0.57, 0.07], [0.29, 0.16]]), np.array([[0.75, 0.68], [0.30, 0.88]])
    result, question = measured(np.array([swap, stay], float), r, np.array([stay, to_1], float), r_hat, discount, "lax")
    assert result.converged
    assert games.error(result.values, *question) <= 1e-7
    if discount == 0.9:  # the fixed point to six digits
        assert result.values == pytest.approx(np.array([[0.459368, 0.442632], [0.463632, 0.457368]]), abs=6e-7)


def test_states_that_google_researchs_discrete_metric_takes_for_equal():
    """Its check sums transitions into the states' own class only (google-research, pull request 1509)."""
    s1, s2, t1, t2, end = range(5)
    a0, a1 = np.zeros((5, 5)), np.zeros((5, 5))
    for here, there in ((s1, s2), (s2, end), (t1, t2), (t2, end), (end, end)):
        a0[here, there] = 1.0
        a1[here, end] = 1.0
    rewards = np.zeros((5, 2))
    rewards[[s1, t1, s2, t2], 0] = 0.2, 0.2, 0.5, 1.0
    M = db.MDP([a0, a1], rewards=rewards)
    for actions in ("matched", "lax"):
        result = db.bisimulation(M, discount=0.9, actions=actions)
        assert result.values[s2, t2] == pytest.approx(0.1 * 0.5, abs=1e-8)
        assert result.values[s1, t1] == pytest.approx(0.9 * 0.1 * 0.5, abs=1e-8)  # not zero


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("actions", MODES)
def test_bounds_hold_however_the_run_ends(actions):
    rng = np.random.default_rng(4)
    P, r, Q, r_hat = pair(7, actions, "dense", (5, 4))
    final, question = measured(P, r, Q, r_hat, 0.9, actions, tol=1e-10)
    slack = games.error(final.values, *question)
    other, _ = measured(rng.permutation(P, axis=1), 3 * r, Q, r_hat, 0.5, actions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", db.ConvergenceWarning)
        early = [
            measured(P, r, Q, r_hat, 0.9, actions, solver=db.solvers.Exact(max_iterations=1))[0],
            measured(P, r, Q, r_hat, 0.9, actions, solver=db.solvers.Exact(max_iterations=2))[0],
            measured(P, r, Q, r_hat, 0.9, actions, callback=lambda row: True)[0],
            measured(P, r, Q, r_hat, 0.9, actions, solver=db.solvers.Exact(time_limit=0.0))[0],
            measured(P, r, Q, r_hat, 0.9, actions, warm=other, solver=db.solvers.Exact(max_iterations=1))[0],
            measured(P, r, Q, r_hat, 0.9, actions, warm=other)[0],
        ]
    for result in early:
        assert_enclosed(result, final.values, slack + 1e-10)
        assert result.lower <= final.upper
        assert result.upper >= final.lower
    assert not early[0].converged
    assert early[-1].converged


@pytest.mark.usefixtures("either_way")
def test_warm_start_from_itself_solves_one_sweep():
    P, r, Q, r_hat = pair(8, "matched", "dense", (6, 6))
    first, _ = measured(P, r, Q, r_hat, 0.9, "matched")
    again, _ = measured(P, r, Q, r_hat, 0.9, "matched", warm=first)
    assert again.iterations == 1
    assert 6 * 6 <= again.work["transports"] <= 6 * 6 * 2


def test_threads_change_no_bit():
    rng = np.random.default_rng(2)
    P, r = games.random_mdp(rng, 40, 2, "dense")
    M = db.MDP(P, rewards=r)
    one, two = (db.bisimulation(M, discount=0.9, solver=db.solvers.Exact(threads=k)) for k in (1, 2))
    assert np.array_equal(one.values, two.values)


@pytest.mark.parametrize("actions", MODES)
@pytest.mark.parametrize("one", [False, True])
def test_reachable_pairs_alone_are_solved(actions, one):
    """Two copies of an MDP that do not reach each other: pairs across are left out."""
    rng = np.random.default_rng(6)
    P, r = games.random_mdp(rng, 3, 2, "dense")
    both = np.zeros((2, 6, 6))
    both[:, :3, :3], both[:, 3:, 3:] = P, games.random_mdp(rng, 3, 2, "dense")[0]
    rewards = np.vstack([r, rng.random((3, 2))])
    M = db.MDP(both, rewards=rewards, initial=1)
    N = M if one else db.MDP(games.random_mdp(rng, 3, 2, "dense")[0], rewards=r, initial=2)
    full = db.distance(M, N, discount=0.9, actions=actions)
    part = db.distance(M, N, discount=0.9, actions=actions, solver=db.solvers.Exact(reachable=True))
    inside = ~np.isnan(part.values)
    expected = np.zeros(inside.shape, bool)
    expected[:3, :3] = True
    assert np.array_equal(inside[:3, :3], expected[:3, :3])
    assert not inside[3:, :3].any()
    assert np.abs(part.values - full.values)[:3, :3].max() <= 1e-7
    assert part.occupancy.sum() == pytest.approx(1.0, abs=1e-12)
    assert not part.occupancy[~expected].any()
    if not one:  # there every action is the worst one, between a state and itself
        assert part.occupancy == pytest.approx(full.occupancy, abs=1e-6)
    with pytest.raises(db.InvalidArgument, match="cannot be reached"):
        part.plan(4, 1)


# --- plans and potentials -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", MODES)
@pytest.mark.parametrize("one", [False, True])
def test_plans_and_potentials_of_every_choice(actions, one):
    P, r, Q, r_hat = pair(9, actions, "dense", (4, 3))
    if one:
        Q, r_hat = P, r
    result, (*_, cost, γ, _) = measured(P, r, Q, r_hat, 0.8, actions, tol=1e-10)
    V = result.values / (1 - γ)
    for s, t in np.ndindex(*result.values.shape):
        for a in range(len(P)):
            for b in range(len(Q)):
                if actions == "matched" and a != b:
                    continue
                choice = a if actions == "matched" else (a, b)
                plan, (f, g) = result.plan(s, t, choice), result.potentials(s, t, choice)
                assert plan.min() >= 0
                assert np.allclose(plan.sum(axis=1), P[a, s], rtol=0, atol=1e-14)
                assert np.allclose(plan.sum(axis=0), Q[b, t], rtol=0, atol=1e-14)
                assert (f[:, None] + g <= V + 1e-8).all()
                assert np.sum(plan * V) == pytest.approx(P[a, s] @ f + Q[b, t] @ g, abs=1e-8)
        worst = result.action(s, t)
        if actions == "matched":
            a = b = worst
        else:
            a, b = (worst.action, worst.reply) if worst.side == "x" else (worst.reply, worst.action)
        choice = a if actions == "matched" else (a, b)
        value = (1 - γ) * cost[a, b, s, t] + γ * np.sum(result.plan(s, t, choice) * result.values)
        assert value == pytest.approx(result.values[s, t], abs=1e-9)
        assert np.allclose(result.plan(s, t).sum(axis=1), P[a, s], rtol=0, atol=1e-14)


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", MODES)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_by_central_differences(actions, seed):
    """A dense random MDP has no ties; the value is known to 1e-12, so steps of 1e-5 leave 1e-7."""
    rng = np.random.default_rng([17, seed])
    P, r, Q, r_hat = pair(20 + seed, actions, "dense", (4, 3))
    parts = [P, r, rng.dirichlet(np.ones(4)), Q, r_hat, rng.dirichlet(np.ones(3))]
    h = 1e-5

    def solved(parts):
        M, N = (db.MDP(parts[k], rewards=parts[k + 1], initial=parts[k + 2]) for k in (0, 3))
        return db.distance(M, N, discount=0.8, actions=actions, tol=1e-12)

    result = solved(parts)
    d = result.gradient
    assert np.sum(d.cost) == pytest.approx(1.0, abs=1e-12)
    assert result.value == pytest.approx(
        np.sum(d.cost.reshape(result.problem.cost.shape) * result.problem.cost), abs=1e-9
    )
    for k, slope in enumerate((d.transition_x, d.rewards_x, d.initial_x, d.transition_y, d.rewards_y, d.initial_y)):
        way = rng.standard_normal(parts[k].shape)
        if k not in (1, 4):
            way -= way.mean(axis=-1, keepdims=True)
            way *= 0.1 * parts[k].min() / np.abs(way).max() / h * 1e-3
        up, down = ([part + sign * h * way if j == k else part for j, part in enumerate(parts)] for sign in (1, -1))
        change = (solved(up).value - solved(down).value) / (2 * h)
        assert np.sum(slope * way) == pytest.approx(change, abs=1e-6)


@pytest.mark.parametrize("actions", MODES)
def test_gradient_of_an_entry_of_one_mdp(actions):
    rng = np.random.default_rng(31)
    P, r = games.random_mdp(rng, 4, 2, "dense")
    way = rng.standard_normal(P.shape)
    way -= way.mean(axis=-1, keepdims=True)
    way *= P.min() / np.abs(way).max()

    def table(h):
        return db.bisimulation(db.MDP(P + h * way, rewards=r), discount=0.8, actions=actions, tol=1e-12)

    d = table(0.0).gradient_at(0, 2)
    h = 1e-4
    change = (table(h).values[0, 2] - table(-h).values[0, 2]) / (2 * h)
    assert np.sum((d.transition_x + d.transition_y) * way) == pytest.approx(change, abs=1e-6)
    moved = r + 1e-5 * way[0][:, :2]
    change = (
        db.bisimulation(db.MDP(P, rewards=moved), discount=0.8, actions=actions, tol=1e-12).values[0, 2]
        - db.bisimulation(db.MDP(P, rewards=2 * r - moved), discount=0.8, actions=actions, tol=1e-12).values[0, 2]
    ) / 2e-5
    assert np.sum((d.rewards_x + d.rewards_y) * way[0][:, :2]) == pytest.approx(change, abs=1e-6)
