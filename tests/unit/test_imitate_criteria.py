"""Imitation under other distances than the discounted one: average and total cost, finite horizons."""

import warnings

import gymnasium
import numpy as np
import pytest

import diffbisim as db
from diffbisim import examples
from diffbisim.learning.imitate.learner import TabularLearner
from diffbisim.learning.imitate.objective import ImitationTask, PolicyObjective
from diffbisim.problems import criterion_of
from diffbisim.solvers import Exact

STILL = db.MarkovChain([[1.0]])  # an expert that always does the same: the distance is the cost of the learner alone

ASKED = {
    "average": {"criterion": "average"},
    "horizon": {"horizon": 12, "discount": 1.0},
    "weights": {"weights": [0.0, 1.0, 2.0, 4.0]},
}


def going(*targets):
    """The kernel of an action that leads from state s to targets[s]."""
    return np.eye(len(targets))[list(targets)]


@pytest.mark.parametrize("name", list(ASKED))
def test_an_expert_that_is_a_policy_of_the_mdp_is_reproduced(name):
    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon=0.4))
    found = db.imitate(mdp, expert, tol=1e-5, **ASKED[name])
    assert found.distance.upper <= 1e-5 * found.distance.problem.scale
    again = db.distance(expert, mdp.induced_chain(found.policy), "indicator", **ASKED[name])
    assert max(again.lower, found.distance.lower) <= min(again.upper, found.distance.upper)
    reached = found.distance.problem.y.transition
    if name == "average":  # every state is visited for ever, so that the kernels are equal
        np.testing.assert_allclose(reached, expert.transition, rtol=0, atol=1e-3)


def test_an_expert_until_the_end_is_reproduced():
    """Steps to a goal, state 0: left is sure, right stays with probability one half. Costs end when both are there."""
    left, right = going(0, 0, 1, 2), 0.5 * going(0, 2, 3, 3) + 0.5 * going(0, 0, 1, 2)
    mdp = db.MDP([left, right], initial=3)
    expert = mdp.induced_chain([[1, 0], [0.5, 0.5], [1, 0], [0.3, 0.7]])
    found = db.imitate(mdp, expert, criterion="total", tol=1e-5)
    assert found.distance.upper <= 1e-5
    np.testing.assert_allclose(found.policy[1:], [[0.5, 0.5], [1, 0], [0.3, 0.7]], rtol=0, atol=1e-3)


# --- closed forms: what the learner pays alone ------------------------------------------------------------------


def test_the_long_run_takes_another_cycle_than_the_near_future():
    """From state 0 around 0, 2, 3 at costs 0, 0, 0.9, or around 0, 1 at costs 0, 0.4.

    On average that is 0.3 or 0.2 a step; discounted by 0.4, (1-γ) γ² 0.9 / (1-γ³) = 0.0923 or γ 0.4 / (1+γ) = 0.114.
    """
    mdp, cost = db.MDP([going(2, 0, 3, 0), going(1, 0, 3, 0)]), np.array([[0.0, 0.4, 0.0, 0.9]])
    average = db.imitate(mdp, STILL, cost, criterion="average", max_iterations=60)
    assert average.distance.value == pytest.approx(0.2, abs=1e-4)
    assert average.policy[0, 1] > 0.999
    discounted = db.imitate(mdp, STILL, cost, discount=0.4, max_iterations=60)
    assert discounted.distance.value == pytest.approx(0.6 * 0.16 * 0.9 / (1 - 0.064), abs=1e-4)
    assert discounted.policy[0, 0] > 0.999


def test_the_long_run_forgets_the_way_there():
    """At once to cost 0.5 for ever, or by way of cost 1 to 0.2 for ever: there are two ends."""
    mdp, cost = db.MDP([going(1, 1, 3, 3), going(2, 1, 3, 3)]), np.array([[0.0, 0.5, 1.0, 0.2]])
    average = db.imitate(mdp, STILL, cost, criterion="average", max_iterations=60)
    assert average.distance.value == pytest.approx(0.2, abs=1e-4)
    assert average.policy[0, 1] > 0.999
    discounted = db.imitate(mdp, STILL, cost, discount=0.5, max_iterations=60)
    assert discounted.distance.value == pytest.approx(0.25, abs=1e-4)


# --- the gradient ---------------------------------------------------------------------------------------------------


def one_class(rng):
    return rng.dirichlet(np.ones(4), (3, 4)), rng.dirichlet(np.ones(3), 3)


def several_classes(rng):
    """State 0 is transient, {1, 2} and {3} are closed; the expert has a transient state too."""
    kernels = rng.dirichlet(np.ones(4), (3, 4))
    kernels[:, 1:3] = 0.0
    kernels[:, 1:3, 1:3] = rng.dirichlet(np.ones(2), (3, 2))
    kernels[:, 3] = going(3, 3, 3, 3)[3]
    return kernels, np.vstack([rng.dirichlet(np.ones(3)), going(1, 1, 2)[1:]])


def with_an_end(rng):
    kernels, expert = one_class(rng)
    kernels[:, 3], expert[2] = np.eye(4)[3], np.eye(3)[2]
    return kernels, expert


CASES = {
    "average": (one_class, {"criterion": "average"}),
    "average of classes": (several_classes, {"criterion": "average"}),
    "total": (with_an_end, {"criterion": "total"}),
    "horizon": (one_class, {"horizon": 4}),
    "weights": (several_classes, {"weights": [0.0, 1.0, 0.0, 2.0]}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_gradient_in_the_policy_is_that_of_central_differences(name):
    make, asked = CASES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    kernels, expert = make(rng)
    mdp, x, cost = db.MDP(kernels), db.MarkovChain(expert), 0.1 + rng.random((3, 4))
    cost[2, 3] = 0.0
    policy = rng.dirichlet(3 * np.ones(3), 4)
    task = ImitationTask(x, mdp, cost, 0.9, criterion_of(**asked))
    objective = PolicyObjective(task, TabularLearner(policy), Exact(tol=1e-12))
    at = objective.evaluate()
    np.testing.assert_allclose((at.policy * at.advantage).sum(axis=1), 0.0, atol=1e-12)
    for _ in range(3):
        way = rng.standard_normal(policy.shape) * 0.05
        way -= way.mean(axis=1, keepdims=True)
        up, down = (Exact(tol=1e-12).solve(task.problem(policy + h * way)).value for h in (1e-4, -1e-4))
        slope = np.sum(-at.occupancy[:, None] * at.advantage * way)
        assert slope == pytest.approx((up - down) / 2e-4, rel=0, abs=1e-6)


# --- what is kept, refused and said --------------------------------------------------------------------------------


def test_runs_on_disk(tmp_path):
    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon=0.4))
    whole = db.imitate(mdp, expert, criterion="average", max_iterations=12)
    path = tmp_path / "run.npz"
    for steps in (5, 12):
        parts = db.imitate(mdp, expert, criterion="average", max_iterations=steps, checkpoint=path, every=2)
    assert np.array_equal(whole.policy, parts.policy)
    with pytest.raises(db.InvalidData, match="criterion"):
        db.imitate(mdp, expert, max_iterations=12, checkpoint=path)
    whole.save(tmp_path / "found.npz")
    again = db.load(tmp_path / "found.npz")
    assert again.distance.problem.criterion == "average"
    assert np.array_equal(again.reward.table, whole.reward.table)


def test_the_simplest_policy_that_the_data_allow():
    """A deterministic expert; sampling noise alone speaks for a mixture."""
    mdp = examples.imitation_chain()
    right = mdp.induced_chain(examples.soft_right_policy(mdp))
    seen = db.Transitions.from_pairs(*right.sample_transitions(2_000, 0.9, rng=0), states=5)
    found = db.imitate(mdp, seen, criterion="average", simplest=True, max_iterations=60)
    assert ((found.policy == 0) | (found.policy == 1)).all()
    assert db.distance(right, mdp.induced_chain(found.policy), "indicator", criterion="average").value <= 1e-9


MDP = examples.imitation_chain()


@pytest.mark.parametrize(
    ("mdp", "how", "match"),
    [
        (MDP, {"criterion": "average", "update": "sampled"}, 'update "sampled" supports only the discounted distance'),
        (
            MDP,
            {"horizon": 3, "update": "best-response"},
            'update "best-response" supports only the discounted distance',
        ),
        (MDP, {"criterion": "long-run"}, "criterion 'long-run' is unknown"),
        (MDP, {"criterion": "average", "horizon": 3}, "has an infinite horizon"),
        (MDP, {"criterion": "total"}, "criterion='total' needs terminal pairs"),
        (MDP, {"horizon": 0}, "horizon is 0; it must be at least one step"),
        (MDP, {"criterion": "total", "simplest": True}, "simplest=True is not available for the total"),
        (MDP, {"criterion": "average", "solver": "lp"}, "solver 'lp' does not support 'average' problems"),
        (gymnasium.make("FrozenLake-v1"), {"criterion": "average"}, "mdp is an environment.* pass its MDP"),
    ],
)
def test_what_is_refused(mdp, how, match):
    with pytest.raises(db.InvalidArgument, match=match):
        db.imitate(mdp, [[0, 1, 2]], **how)


def test_only_what_is_done_for_ever_is_missed_in_the_long_run():
    """The expert begins elsewhere, with a step that no action can make, and then stays: none of it counts."""
    mdp = db.MDP([going(0, 1, 1), going(1, 1, 2)], initial=0)
    expert = db.MarkovChain(going(0, 1, 1), initial=2)  # 2 -> 1 is possible, but the start is not
    jump = db.MarkovChain(going(2, 1, 1), initial=0)  # 0 -> 2 is not
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for chain in (expert, jump):
            assert db.imitate(mdp, chain, criterion="average", tol=1e-4).distance.upper <= 1e-4
    never = db.MarkovChain(going(2, 1, 0), initial=0)
    with pytest.warns(UserWarning, match="cannot be made by any action"):
        db.imitate(mdp, never, criterion="average", max_iterations=1)
