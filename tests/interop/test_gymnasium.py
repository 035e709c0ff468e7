"""Gymnasium: tables, walks, the reward as a wrapper, and imitation in environments that are only sampled."""

import gymnasium
import numpy as np
import pytest

import diffbisim as db
from diffbisim import examples
from diffbisim.learning.imitate.environment import Sampling, TransitionCounts
from diffbisim.processes.environments import as_env, first_states, from_env, rollouts, sizes
from diffbisim.processes.planning import expected_return, optimal_policy


@pytest.fixture(scope="module")
def cliff():
    return gymnasium.make("CliffWalking-v1", max_episode_steps=200)


# --- tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "terminal"), [("CliffWalking-v1", [47]), ("Taxi-v4", [0, 85, 410, 475])])
def test_terminal_states_are_absorbing_where_the_table_is_not(name, terminal):
    env = gymnasium.make(name)
    table, mdp = env.unwrapped.P, from_env(env)
    assert any(table[t][0][0][1] != t or table[t][0][0][2] != 0 for t in terminal)
    for P in mdp.transition:
        dense = P.toarray() if mdp.is_sparse else P
        np.testing.assert_array_equal(dense[terminal], np.eye(mdp.n_states)[terminal])
    assert not mdp.rewards[terminal].any()


def test_table_entry_by_entry():
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    mdp = from_env(env)
    for s, a in ((0, 0), (6, 2), (14, 1)):
        expected, reward = np.zeros(16), 0.0
        for p, t, r, _ in env.unwrapped.P[s][a]:
            expected[t] += p
            reward += p * r
        np.testing.assert_allclose(mdp.transition[a][s], expected, atol=1e-15)
        assert mdp.rewards[s, a] == pytest.approx(reward)
    np.testing.assert_array_equal(mdp.initial, env.unwrapped.initial_state_distrib)


def test_known_optimal_returns():
    """CliffWalking: 13 steps along the edge, -1 each. Taxi: 7.93 on average over its 300 starts."""
    for name, value in (("CliffWalking-v1", -13.0), ("Taxi-v4", 7.93)):
        mdp = from_env(gymnasium.make(name))
        assert expected_return(mdp, optimal_policy(mdp, 0.99), 200) == pytest.approx(value, abs=1e-9)


def test_the_wrapper_that_is_recommended_fits_the_space():
    with pytest.raises(
        db.InvalidArgument, match=r"observation_space of Pendulum-v1 .*TransformObservation\(env, number"
    ):
        from_env(gymnasium.make("Pendulum-v1"))
    env = gymnasium.make("Pendulum-v1")
    seen = gymnasium.wrappers.TransformObservation(env, lambda o: int(o[0] > 0), gymnasium.spaces.Discrete(2))
    with pytest.raises(
        db.InvalidArgument, match=r"action_space of Pendulum-v1 .*TransformAction\(env, action_of"
    ) as error:
        sizes(seen)
    assert "TransformObservation" not in str(error.value)
    pushed = gymnasium.wrappers.TransformAction(seen, lambda a: [2.0 * a - 2.0], gymnasium.spaces.Discrete(3))
    assert sizes(pushed) == (2, 3)  # what is recommended works
    assert len(rollouts(pushed, np.full((2, 3), 1 / 3), 20, 0)) == 20


def test_not_discrete_points_to_discretization():
    with pytest.raises(db.InvalidArgument, match="discretize"):
        from_env(gymnasium.make("CartPole-v1"))
    with pytest.raises(db.InvalidData, match="expert shows 1 numbers at a time, features of the environment have 4"):
        db.imitate(gymnasium.make("CartPole-v1"), [[0, 1]])


def test_without_a_table_points_to_rollouts():
    env = as_env(examples.imitation_chain())
    with pytest.raises(db.InvalidArgument, match="rollouts"):
        from_env(env)


# --- walks ---------------------------------------------------------------------------------------------


def test_rollouts_are_seeded_and_follow_the_table(cliff):
    mdp = from_env(cliff)
    walks = [rollouts(cliff, mdp.uniform_policy(), 300, seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(walks[0].next_states, walks[1].next_states)
    assert not np.array_equal(walks[0].actions, walks[2].actions)
    for s, a, t in zip(walks[0].states, walks[0].actions, walks[0].next_states, strict=True):
        assert mdp.transition[a][s, t] > 0
    new = ~walks[0].first[1:]
    np.testing.assert_array_equal(walks[0].states[1:][new], walks[0].next_states[:-1][new])


def test_rollouts_of_the_expert_have_its_return(cliff):
    mdp = from_env(cliff)
    walk = rollouts(cliff, optimal_policy(mdp, 0.99), 130, 0)
    np.testing.assert_array_equal(walk.returns, -13.0)
    data = walk.transitions()
    assert data.n_episodes == 10
    assert data.chain(unseen="self-loop").transition[47, 47] == 1.0


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_vector_environments_make_the_same_kind_of_walk(mode):
    mode = gymnasium.vector.AutoresetMode[mode]
    make = lambda: gymnasium.make("CliffWalking-v1", max_episode_steps=50)  # noqa: E731
    env = gymnasium.vector.SyncVectorEnv([make] * 3, autoreset_mode=mode)
    mdp = from_env(make())
    walk = rollouts(env, 0.5 * mdp._policy(optimal_policy(mdp, 0.99)) + 0.125, 400, 0)
    assert len(walk) == 400
    for s, a, t in zip(walk.states, walk.actions, walk.next_states, strict=True):
        assert mdp.transition[a][s, t] > 0
    assert (walk.starts == 36).all()
    assert (walk.next_states[walk.terminated] == 47).all()
    new = ~walk.first[1:]
    np.testing.assert_array_equal(walk.states[1:][new], walk.next_states[:-1][new])


def test_environment_of_an_mdp_has_its_law():
    mdp = examples.imitation_chain()
    policy = mdp.uniform_policy()
    walk = rollouts(as_env(mdp), policy, 20_000, 0)
    counts = np.zeros((5, 5))
    np.add.at(counts, (walk.states, walk.next_states), 1.0)
    np.testing.assert_allclose(
        counts / counts.sum(axis=1, keepdims=True), mdp.induced_chain(policy).transition, atol=0.03
    )


# --- imitation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1"])
def test_known_table_reaches_the_return_of_the_expert(name):
    """The return was never shown. Taxi-v4, which takes minutes: benchmarks/imitation.py."""
    mdp = from_env(gymnasium.make(name))
    expert = optimal_policy(mdp, 0.99)
    found = db.imitate(mdp, mdp.induced_chain(expert), discount=0.95, tol=1e-4, max_iterations=60)
    best, own = (expected_return(mdp, policy, 200) for policy in (expert, found.policy))
    assert own >= best - 0.01 * abs(best)


def test_sampled_environment_reaches_the_return_of_the_expert(cliff):
    mdp = from_env(cliff)
    expert = optimal_policy(mdp, 0.99)
    data = rollouts(cliff, expert, 200, 0).transitions()
    found = db.imitate(cliff, data, discount=0.95, rng=0, sampling=Sampling(steps=8_000, rounds=4), tol=1e-3)
    assert expected_return(mdp, found.policy, 200) >= -13.0 * 1.05
    assert found.mdp.n_states == 48


def test_model_is_the_empirical_mdp():
    mdp = examples.imitation_chain()
    walk, model = rollouts(as_env(mdp), mdp.uniform_policy(), 50, 3), TransitionCounts(5, 4)
    model.add(walk)
    seen, hopeful = model.mdp(), model.optimistic_mdp(enough=3)
    assert hopeful.n_states == 6
    for s in range(5):
        for a in range(4):
            here = walk.next_states[(walk.states == s) & (walk.actions == a)]
            expected = np.bincount(here, minlength=5) / here.size if here.size else np.eye(5)[s]
            np.testing.assert_allclose(seen.transition[a][s], expected, atol=1e-15)
            doubt = 1 / (1 + here.size) if here.size < 3 else 0.0
            assert hopeful.transition[a][s, 5] == pytest.approx(doubt)
            if here.size:
                np.testing.assert_allclose(hopeful.transition[a][s, :5], (1 - doubt) * expected, atol=1e-15)


def test_a_sampled_run_begins_with_the_policy_that_is_given(cliff):
    """The first policy of the last round is the one that is given."""
    begin = np.random.default_rng(0).dirichlet(np.ones(4), 5)
    mdp, few = examples.imitation_chain(), Sampling(steps=30, rounds=0)
    found = db.imitate(as_env(mdp), [[0, 1, 2, 3, 4, 4]], policy=begin, max_iterations=1, sampling=few)
    expert = found.distance.problem.x
    first = db.distance(expert, found.mdp.induced_chain(begin), "indicator", found.distance.discount)
    assert first.lower <= found.history[0]["value"] <= first.upper
    assert found.distance.value < first.lower
    with pytest.raises(db.InvalidChain, match="policy"):  # refused before the first step is taken
        db.imitate(cliff, [[36, 24]], policy=np.full((47, 4), 0.25))


def test_first_states_are_those_of_the_start_distribution():
    mdp = db.MDP([np.eye(4)], initial=[0.5, 0.25, 0.25, 0.0])
    counts = np.bincount(first_states(as_env(mdp), 4_000, 0), minlength=4)
    assert counts.sum() == 4_000
    assert counts[3] == 0
    np.testing.assert_allclose(counts / 4_000, mdp.initial, atol=0.04)  # five standard errors
    many = gymnasium.make_vec("FrozenLake-v1", num_envs=3)
    assert first_states(many, 7, 0).tolist() == [0] * 7
    many.close()


@pytest.mark.parametrize("options", [{"steps": -1}, {"explore": 2.0}, {"enough": np.nan}], ids=str)
def test_impossible_sampling_is_refused(options):
    with pytest.raises(db.InvalidArgument, match=next(iter(options))):
        Sampling(**options)


# --- the reward ----------------------------------------------------------------------------------------


def test_wrapper_pays_the_implicit_reward(cliff):
    mdp = from_env(cliff)
    found = db.imitate(mdp, mdp.induced_chain(optimal_policy(mdp, 0.99)), max_iterations=2)
    env = found.reward.wrap(cliff, scale=2.0)
    state, _ = env.reset(seed=0)
    for action in (0, 1, 1, 2):
        following, reward, _, _, info = env.step(action)
        assert reward == 2.0 * found.reward(state, following) == 2.0 * found.reward.table[state, following]
        assert info["environment_reward"] in (-1.0, -100.0)
        state = following
    with pytest.raises(db.InvalidArgument, match="states"):
        found.reward.wrap(gymnasium.make("FrozenLake-v1"))


def test_reward_as_array_and_picture():
    mdp = examples.imitation_chain()
    found = db.imitate(mdp, mdp.induced_chain(examples.soft_right_policy(mdp)), max_iterations=1)
    np.testing.assert_array_equal(np.asarray(found.reward), found.distance.implicit_reward())
    np.testing.assert_array_equal(found.reward([0, 1], [1, 2]), found.reward.table[[0, 1], [1, 2]])
    ax = found.reward.plot()
    np.testing.assert_array_equal(ax.images[0].get_array(), found.reward.table)
    assert found.reward.plot(ax) is ax
