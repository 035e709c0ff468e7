"""Section 5 of the paper, with the sign corrected: the gradient, the reward, and Algorithm 3 on known MDPs."""

import numpy as np
import pytest

import diffbisim as db
from cases import each
from diffbisim import examples
from diffbisim.learning.imitate.updates import BestResponse, Natural


def softmax(theta):
    weights = np.exp(theta - theta.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def random_case(seed, n=4, actions=3):
    """An MDP without structure, an expert chain that no policy reproduces, and logits of a policy."""
    rng = np.random.default_rng([51, seed])
    mdp = db.MDP(rng.dirichlet(np.ones(n), (actions, n)), initial=rng.dirichlet(np.ones(n)))
    expert = db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=rng.dirichlet(np.ones(n)))
    return mdp, expert, rng.random((n, n)), rng.normal(size=(n, actions))


def advantage(mdp, reward):
    return np.einsum("ast,st->sa", np.array(mdp.transition), reward)


@each(seed=range(4))
def test_gradient_in_the_logits_is_that_of_the_linear_program(seed):
    mdp, expert, cost, theta = random_case(seed)
    gamma, step = (0.5, 0.9)[seed % 2], 1e-4
    chain = mdp.induced_chain(softmax(theta))
    result = db.distance(expert, chain, cost, gamma, tol=1e-12)
    rho, pi = chain.occupancy(gamma), softmax(theta)
    gradient = -rho[:, None] * pi * advantage(mdp, result.implicit_reward())

    def value(logits):
        return db.distance(expert, mdp.induced_chain(softmax(logits)), cost, gamma, solver="lp").value

    for direction in np.random.default_rng(seed).normal(size=(3, *theta.shape)):
        difference = (value(theta + step * direction) - value(theta - step * direction)) / (2 * step)
        assert np.sum(gradient * direction) == pytest.approx(difference, rel=1e-5, abs=1e-8)


@each(seed=range(10))
def test_reward_has_mean_zero_in_every_state(seed):
    mdp, expert, cost, theta = random_case(seed, n=6)
    pi = softmax(theta)
    reward = db.distance(expert, mdp.induced_chain(pi), cost, 0.95).implicit_reward()
    assert np.abs(np.sum(pi * advantage(mdp, reward), axis=1)).max() <= 1e-10


@each(seed=range(50))
def test_maximizing_the_reward_lowers_the_distance(seed):
    """A small step along the advantage; with the sign as printed, the same step raises it."""
    mdp, expert, cost, theta = random_case(seed)
    pi = softmax(theta)
    before = db.distance(expert, mdp.induced_chain(pi), cost, 0.9, tol=1e-12)
    A = advantage(mdp, before.implicit_reward())
    after, printed = (
        db.distance(expert, mdp.induced_chain(softmax(theta + h * A)), cost, 0.9, tol=1e-12) for h in (1e-4, -1e-4)
    )
    assert after.upper < before.lower
    assert printed.lower > before.upper


@pytest.mark.parametrize(("epsilon", "most", "target"), [(0.0, 30, 1e-6), (0.4, 300, 1e-3)])
@each(seed=range(4))
def test_five_state_chain(seed, epsilon, most, target):
    """The paper's chain from random starts; all twenty: benchmarks/imitation.py."""
    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon))
    start = np.random.default_rng(seed).dirichlet(np.ones(4), 5)
    found = db.imitate(mdp, expert, discount=0.9, policy=start, max_iterations=most, tol=target)
    check = db.distance(expert, mdp.induced_chain(found.policy), "indicator", 0.9, solver="lp")
    assert check.upper <= 1.01 * target
    assert found.distance.lower - 1e-9 <= check.value <= found.distance.upper + 1e-9
    assert found.iterations <= most


@each(seed=range(5))
def test_random_stochastic_experts_are_reproduced(seed):
    rng = np.random.default_rng(seed)
    mdp = db.MDP(rng.dirichlet(np.ones(7), (3, 7)))
    expert = mdp.induced_chain(rng.dirichlet(np.ones(3), 7))
    found = db.imitate(mdp, expert, discount=0.9, max_iterations=200, tol=1e-3)
    assert found.distance.upper <= 1e-3


def test_no_policy_beats_the_one_that_is_found():
    """The expert slips more than the learner can: compared with a fine grid over one free probability."""
    kernels = [[[0.9, 0.1], [0.1, 0.9]], [[0.6, 0.4], [0.1, 0.9]]]
    mdp, expert = db.MDP(kernels), db.MarkovChain([[0.3, 0.7], [0.4, 0.6]])
    found = db.imitate(mdp, expert, discount=0.9)
    grid = [
        db.distance(expert, mdp.induced_chain([[1 - p, p], [1.0, 0.0]]), "indicator", 0.9).value
        for p in np.linspace(0, 1, 101)
    ]
    assert found.distance.value <= min(grid) + 1e-4 * min(grid)
    assert found.converged
    assert found.distance.value > 0.01


def test_a_best_response_is_the_best_of_all_deterministic_policies():
    """With as many actions as states too, where a table of transitions has the shape of one of actions."""
    mdp, expert, cost, _ = random_case(0, n=3, actions=3)
    start = db.distance(expert, mdp.induced_chain(mdp.uniform_policy()), cost, 0.9, tol=1e-12)
    A = advantage(mdp, start.implicit_reward())

    def gain(actions):
        return mdp.induced_chain(actions).occupancy(0.9) @ A[np.arange(3), actions]

    best = max((np.array(actions) for actions in np.ndindex(3, 3, 3)), key=gain)
    run = db.imitate(mdp, expert, cost, 0.9, update="best-response", max_iterations=2)
    expected = db.distance(expert, mdp.induced_chain(best), cost, 0.9).value
    assert run.history[1]["value"] == pytest.approx(expected, abs=1e-7)


def test_best_response_cycles_where_steps_converge():
    """The paper's literal Algorithm 3: every policy is deterministic, so a stochastic expert is never reached."""
    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, 0.4))
    literal = db.imitate(mdp, expert, discount=0.9, update="best-response", max_iterations=12)
    values = [row["value"] for row in literal.history[2:]]
    assert min(values) > 0.1
    assert len(set(np.round(values, 6))) < len(values)  # it comes back to where it was
    assert db.imitate(mdp, expert, discount=0.9, tol=1e-3).distance.upper <= 1e-3


def test_the_printed_sign_leads_away():
    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, 0.0))
    wrong = db.imitate(mdp, expert, discount=0.9, update=BestResponse(printed_sign=True), max_iterations=5)
    right = db.imitate(mdp, expert, discount=0.9, update="best-response", max_iterations=5)
    assert wrong.history[-1]["value"] >= wrong.history[0]["value"]
    assert right.distance.value < 0.1 * right.history[0]["value"]


@pytest.mark.parametrize("update", ["gradient", "sampled", Natural(memory=1)])
def test_other_updates_come_closer_too(update):
    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, 0.4))
    found = db.imitate(mdp, expert, discount=0.9, update=update, max_iterations=60, rng=3)
    assert found.distance.value <= 0.1 * found.history[0]["value"]
