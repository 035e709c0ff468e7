"""Distances between MDPs: what may be given, what is refused, what a result offers, files."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import diffbisim as db
from diffbisim.solvers import Exact
from oracles import games

REACHABLE = Exact(reachable=True)


def mdp(seed=0, n=3, n_actions=2, transition=None, **options):
    P, r = games.random_mdp(np.random.default_rng([5, seed]), n, n_actions)
    kernels = P if transition is None else [transition] * n_actions
    return db.MDP(kernels, **{"rewards": r, **options})


def same(a, b):
    return np.abs(a.values - b.values).max() <= 2e-8


# --- costs and actions ----------------------------------------------------------------------------------------------


def test_costs_of_every_form_are_the_same():
    M, N = mdp(0), mdp(1, n=4)
    table = games.reward_cost(M.rewards, N.rewards)
    matched = db.distance(M, N, discount=0.8)
    assert same(matched, db.distance(M, N, np.array([table[0, 0], table[1, 1]]), 0.8))
    assert same(matched, db.distance(M, N, lambda M, N: np.array([table[0, 0], table[1, 1]]), 0.8))
    lax = db.distance(M, N, discount=0.8, actions="lax")
    assert same(lax, db.distance(M, N, table, 0.8, actions="lax"))
    directed = games.reward_cost(M.rewards, N.rewards, directed=True)
    assert same(
        db.distance(M, N, discount=0.8, actions="directed"), db.distance(M, N, directed, 0.8, actions="directed")
    )


def test_rewards_of_states_count_for_every_action():
    P, _ = games.random_mdp(np.random.default_rng(0), 3, 2)
    r = np.array([0.0, 0.3, 1.0])
    by_state, by_action = (db.bisimulation(db.MDP(P, rewards=x), 0.8) for x in (r, np.repeat(r[:, None], 2, axis=1)))
    assert same(by_state, by_action)
    assert same(by_state, db.distance(db.MDP(P), db.MDP(P), np.abs(np.subtract.outer(r, r)), 0.8))
    assert by_state.gradient_at(0, 1).rewards_x == pytest.approx(by_action.gradient_at(0, 1).rewards_x.sum(axis=1))


def test_indicator_goes_by_names():
    P, _ = games.random_mdp(np.random.default_rng(0), 3, 2)
    M = db.MDP(P, names=["a", "b", "c"])
    order = [2, 0, 1]
    N = db.MDP(P[:, order][:, :, order], names=["c", "a", "b"])
    result = db.distance(M, N, "indicator", 0.8)
    assert result.values[[0, 1, 2], [1, 2, 0]] == pytest.approx(0.0, abs=1e-8)
    frame = pd.DataFrame(1 - np.eye(3), index=["b", "a", "c"], columns=["b", "a", "c"])
    assert same(result, db.distance(M, N, frame, 0.8))


def test_one_action_is_a_chain():
    M, N = mdp(0, n_actions=1), mdp(1, n=4, n_actions=1)
    X, Y = (m.induced_chain(m.uniform_policy()) for m in (M, N))
    chain = db.distance(X, Y, discount=0.9)
    for actions in ("matched", "lax"):
        result = db.distance(M, N, discount=0.9, actions=actions)
        assert same(result, chain)
        assert result.value == pytest.approx(chain.value, abs=2e-8)
        assert result.gradient.transition_x[0] == pytest.approx(chain.gradient.transition_x, abs=1e-5)


def test_actions_are_matched_by_name():
    P, r = games.random_mdp(np.random.default_rng(0), 3, 2)
    M = db.MDP(P, rewards=r, actions=["left", "right"])
    N = db.MDP(P[::-1], rewards=r[:, ::-1], actions=["right", "left"])
    result = db.distance(M, N, discount=0.8)
    assert result.values == pytest.approx(db.bisimulation(M, 0.8).values, abs=2e-8)
    assert result.plan(0, 1, "right").sum(axis=1) == pytest.approx(P[1, 0])
    swapped = db.distance(M, db.MDP(P[::-1], rewards=r[:, ::-1]), discount=0.8)  # by position
    assert not same(result, swapped)
    assert db.distance(M, N, discount=0.8, actions="lax").value == pytest.approx(0.0, abs=1e-8)


def test_single_states():
    one, three = db.MDP([[[1.0]]] * 2, rewards=[[0.0, 1.0]]), mdp()
    assert db.bisimulation(one).values.tolist() == [[0.0]]
    assert db.distance(one, three, discount=0.5).values.shape == (1, 3)
    assert db.bisimulation(db.MDP([np.eye(2)] * 2, rewards=np.zeros((2, 2)))).values.max() == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: db.distance(mdp(), mdp(n_actions=3)), "X has 2 actions and Y has 3"),
        (lambda: db.distance(mdp(actions="ab"), mdp(actions="ac")), "action 'b' of X is not an action of Y"),
        (lambda: db.distance(mdp(), mdp(), actions="strict"), "'strict' is unknown"),
        (lambda: db.distance(mdp(), db.MarkovChain(np.eye(2))), "give two MDPs"),
        (lambda: db.distance(db.MarkovChain(np.eye(2)), mdp()), "X is a MarkovChain"),
        (lambda: db.distance(mdp(rewards=None), mdp()), "MDP X has no rewards"),
        (lambda: db.distance(mdp(), mdp(), np.ones((3, 2))), r"cost has shape \(3, 2\)"),
        (lambda: db.distance(mdp(), mdp(), np.ones((3, 3, 3))), r"expected \(n_actions, n_X, n_Y\) = \(2, 3, 3\)"),
        (lambda: db.distance(mdp(), mdp(), np.ones((2, 3, 3)), actions="lax"), r"\(n_A, n_B, n_X, n_Y\)"),
        (lambda: db.distance(mdp(), mdp(), -np.ones((2, 3, 3))), r"cost\[0, 0, 0\] is -1"),
        (lambda: db.distance(mdp(), mdp(), "color"), "'color' is unknown"),
        (lambda: db.distance(mdp(), mdp(), discount=1.0), "discount"),
        (lambda: db.distance(mdp(), mdp(), criterion="average"), "induced_chain"),
        (lambda: db.distance(mdp(), mdp(), horizon=3), "induced_chain"),
        (lambda: db.distance(mdp(), mdp(), solver="lp"), "does not support 'actions' problems"),
        (lambda: db.distance(mdp(), mdp(), lump=True), "does not support 'actions' problems"),
        (lambda: db.distance(mdp(), mdp(), warm=db.bisimulation(mdp(n=2))), "warm is a result for"),
        (lambda: db.bisimulation(np.eye(2)), "not an MDP"),
        (lambda: db.bisimulation(mdp(rewards=[[1, 2, 3]])), "rewards has shape"),
        (lambda: db.bisimulation(mdp(), actions="lax", policy=[0, 0, 0]), "omit one of the two"),
        (lambda: db.bisimulation(mdp()).plan(0, 3), "y = 3 is not a state"),
        (lambda: db.bisimulation(mdp(names="abc")).plan("a", "d"), "y = 'd' is not a state: give a name"),
        (lambda: db.bisimulation(mdp()).plan(0, 1, 2), "action = 2 is not an action"),
        (lambda: db.bisimulation(mdp(), actions="lax").plan(0, 1, 1), "give a pair"),
        (lambda: db.bisimulation(mdp()).duals, "potentials"),
        (lambda: db.bisimulation(mdp()).implicit_reward(), "induced_chain"),
        (lambda: db.bisimulation(mdp(rewards=None), cost="indicator").value_bound(0, 1), "needs rewards"),
        (lambda: db.bisimulation(mdp(), cost=np.zeros((3, 3))).value_bound(0, 1), "at least"),
        (lambda: db.bisimulation(mdp(), actions="directed").value_bound(0, 1), "bounds .* from above only"),
        (lambda: db.bisimulation(mdp(transition=np.eye(3)), solver=REACHABLE).value_bound(0, 2), "was not solved"),
        (lambda: db.policy_similarity(mdp(), mdp(1), policy_x=[0, 0, 0]), "policy_y is missing"),
        (lambda: db.mico(mdp(), mdp(1), policy_x=[0, 0, 0]), "policy_y is missing"),
        (lambda: db.policy_similarity(mdp(), mdp(n_actions=3), policy_x=[0] * 3, policy_y=[2] * 3), "pass cost"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(call, message):
    with pytest.raises(db.DiffbisimError, match=message):
        call()


# --- results --------------------------------------------------------------------------------------------------------


def test_names_are_accepted_where_indices_are():
    M = mdp(names=["a", "b", "c"], actions=["left", "right"])
    result = db.bisimulation(M, 0.8)
    assert result.action("a", "b") == result.action(0, 1)
    assert np.array_equal(result.plan("a", "b", "left"), result.plan(0, 1, 0))
    assert result.value_bound("a", "c") == result.values_upper[0, 2]
    lax = db.bisimulation(M, 0.8, actions="lax")
    assert np.array_equal(lax.plan("a", "b", ("left", "right")), lax.plan(0, 1, (0, 1)))


def test_what_a_result_hands_out_cannot_be_written_to():
    result = db.distance(mdp(), mdp(1), discount=0.8)
    gradient = result.gradient
    for array in (
        result.values, result.values_lower, result.values_upper, result.occupancy, result.encoder, result.problem.cost,
        gradient.transition_x, gradient.cost, gradient.rewards_x, gradient.initial_y,
    ):  # fmt: skip
        assert not array.flags.writeable
    before = result.values.copy()
    result.plan(0, 1)[:] = 7
    result.potentials(0, 1)[0][:] = 7
    assert np.array_equal(result.values, before)
    for twin in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert not twin.values.flags.writeable
        assert not twin.problem.cost.flags.writeable
        assert np.array_equal(twin.values, result.values)
        assert np.array_equal(twin.gradient.transition_x, gradient.transition_x)


def test_encoder_and_decoder_are_conditionals_of_the_occupancy():
    result = db.distance(mdp(0, n=4), mdp(1), discount=0.8)
    m = result.occupancy
    assert result.encoder == pytest.approx(m / m.sum(axis=1, keepdims=True))
    assert result.decoder == pytest.approx((m / m.sum(axis=0)).T)
    assert result.assignment.shape == (4,)
    assert "MDPResult" in repr(result)


@pytest.mark.parametrize("actions", ["matched", "lax", "directed"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("one", [False, True])
def test_saved_results_come_back_as_they_were(tmp_path, actions, sparse, one):
    from scipy.sparse import csr_array

    M = mdp(names=["a", 2, ("c", 1.5)], actions=["left", "right"])
    M = (
        db.MDP([csr_array(P) for P in M.transition], rewards=M.rewards, names=M.names, actions=M.actions)
        if sparse
        else M
    )
    N = M if one else mdp(1, n=4, actions=["right", "left"])
    result = db.distance(M, N, discount=0.8, actions=actions)
    result.save(tmp_path / "result.npz")
    loaded = db.load(tmp_path / "result.npz")
    assert repr(loaded) == repr(result)
    for name in ("values", "values_lower", "values_upper", "occupancy"):
        assert np.array_equal(getattr(loaded, name), getattr(result, name))
    assert loaded.action(0, 1) == result.action(0, 1)
    assert loaded.problem.x.names == M.names
    directed = actions == "directed"
    assert loaded.value_bound(0, 1, directed) == result.value_bound(0, 1, directed)
    again = db.distance(M, N, discount=0.8, actions=actions, warm=loaded)
    assert again.iterations == 1


def test_saved_tables_and_reachable_pairs(tmp_path):
    P = np.zeros((2, 4, 4))
    P[:, :2, :2], P[:, 2:, 2:] = 0.5, 0.5
    M = db.MDP(P)
    cost = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    result = db.distance(M, M, cost, 0.8, solver=db.solvers.Exact(reachable=True))
    result.save(tmp_path / "result.npz")
    loaded = db.load(tmp_path / "result.npz")
    assert np.array_equal(loaded.values, result.values, equal_nan=True)
    assert np.isnan(loaded.values).sum() == 10  # the diagonal is known


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.U", lambda a: a + 0.5),
        ("state.half", lambda a: np.array(-1.0)),
        ("state.line", lambda a: a + 7),
        ("state.chosen", lambda a: a + 1),
        ("state.flow", lambda a: a * 2),
        ("state.child", lambda a: a * 0),
        ("state.pair", lambda a: a[:-1]),
        ("state.start.flow", lambda a: a * 2),
        ("x.transition", lambda a: a[0]),
        ("x.actions", lambda a: a[:3]),
    ],
)
def test_files_that_were_tampered_with_are_refused(tmp_path, name, change):
    path = tmp_path / "result.npz"
    db.distance(mdp(actions="ab"), mdp(1, actions="ab"), discount=0.8, actions="lax").save(path)
    arrays = dict(np.load(path))
    arrays[name] = change(arrays[name])
    np.savez(path, **arrays)
    with pytest.raises(db.InvalidData):
        db.load(path)


# --- value bounds and metrics by name -------------------------------------------------------------------------------


def test_value_bounds():
    M, N = mdp(0, n=4), mdp(1)
    v, w = (games.optimal_values(np.array(m.transition), m.rewards, 0.9) for m in (M, N))
    for actions in ("matched", "lax"):
        result = db.distance(M, N, discount=0.9, actions=actions)
        bound = np.array([[result.value_bound(s, t) for t in range(3)] for s in range(4)])
        half = np.array([[result.value_bound(s, t, directed=True) for t in range(3)] for s in range(4)])
        assert (np.abs(np.subtract.outer(v, w)) <= bound).all()
        assert (np.subtract.outer(v, w) <= half).all()
        assert (half <= bound + 1e-7).all()


def test_metric_of_a_policy_is_that_of_its_chain():
    M, π = mdp(0, n=4), np.random.default_rng(0).dirichlet(np.ones(2), 4)
    chain = M.induced_chain(π)
    result = db.bisimulation(M, 0.9, policy=π)
    assert same(result, db.distance(chain, chain, discount=0.9))
    v = np.linalg.solve(np.eye(4) - 0.9 * chain.transition, 0.1 * chain.rewards)
    assert (np.abs(np.subtract.outer(v, v)) <= result.values + 1e-8).all()


def test_policy_similarity():
    """PSM by value iteration in the paper's units: d = DIST + γ W(d)."""
    M, N = mdp(0, n=3), mdp(1, n=4)
    rng = np.random.default_rng(1)
    π, ρ = rng.dirichlet(np.ones(2), 3), rng.dirichlet(np.ones(2), 4)
    P, Q = M.induced_chain(π).transition, N.induced_chain(ρ).transition
    cost = np.abs(π[:, None] - ρ).sum(axis=2) / 2
    result = db.policy_similarity(M, N, policy_x=π, policy_y=ρ, discount=0.7)
    assert games.error(result.values, P[None], Q[None], cost[None, None], 0.7, "matched") <= 1e-7
    one = db.policy_similarity(M, policy_x=[0, 1, 1], discount=0.7)
    assert one.values[1, 2] >= 0
    assert one.values[0, 1] >= 0.3  # different actions cost one, once


def test_mico_is_the_independent_coupling():
    M, N = mdp(0, n=3), mdp(1, n=4)
    rng = np.random.default_rng(1)
    π, ρ = rng.dirichlet(np.ones(2), 3), rng.dirichlet(np.ones(2), 4)
    X, Y = M.induced_chain(π), N.induced_chain(ρ)
    cost = np.abs(np.subtract.outer(X.rewards, Y.rewards))
    direct = np.linalg.solve(np.eye(12) - 0.95 * np.kron(X.transition, Y.transition), 0.05 * cost.ravel())
    U = db.mico(M, N, policy_x=π, policy_y=ρ, discount=0.95)
    assert pytest.approx(direct.reshape(3, 4), abs=1e-13) == U
    assert (db.distance(X, Y, discount=0.95).values <= U + 1e-8).all()
    assert db.mico(M, policy_x=π).shape == (3, 3)
