"""Torch modules as policies: the gradient through autograd, and training in place."""

import numpy as np
import pytest
import torch

import diffbisim as db
from diffbisim import examples
from diffbisim.learning.imitate.environment import Sampling
from diffbisim.learning.imitate.learner import ModuleLearner, TabularLearner
from diffbisim.learning.imitate.objective import ImitationTask, PolicyObjective
from diffbisim.processes.environments import as_env

MDP = examples.imitation_chain()
EXPERT = MDP.induced_chain(examples.soft_right_policy(MDP, 0.4))


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).double()


def distance_of(module, inputs):
    policy = torch.softmax(module(inputs), dim=1).detach().numpy()
    return db.distance(EXPERT, MDP.induced_chain(policy), "indicator", 0.9, tol=1e-12).value


def evaluation(learner):
    return PolicyObjective(ImitationTask(EXPERT, MDP, 1.0 - np.eye(5), 0.9), learner).evaluate()


def test_gradient_in_the_parameters_is_the_finite_difference():
    module, inputs = network(), torch.eye(5, dtype=torch.float64)
    learner = ModuleLearner(module, MDP, np.eye(5))
    gradient, at, step = learner.cut(evaluation(learner), natural=False).gradient, learner.snapshot(), 1e-5
    for direction in np.random.default_rng(1).normal(size=(3, at.size)):
        ends = []
        for h in (step, -step):
            learner.restore(at + h * direction)
            ends.append(distance_of(module, inputs))
        assert gradient @ direction == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)


def test_table_of_logits_as_module_has_the_gradient_of_the_table():
    logits = np.random.default_rng(2).normal(size=(5, 4))
    module = torch.nn.Embedding(5, 4).double()
    module.weight.data = torch.from_numpy(logits.copy())
    policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    table, net = TabularLearner(policy), ModuleLearner(module, MDP)
    at = evaluation(table)
    np.testing.assert_allclose(net.table(), policy, atol=1e-14)
    expected = table.pull(table.cut(at, natural=False).gradient, at)
    np.testing.assert_allclose(net.cut(at, natural=False).gradient.reshape(5, 4), expected, atol=1e-12)


def embedding():
    torch.manual_seed(0)
    return torch.nn.Embedding(5, 4)


@pytest.mark.parametrize("make", [network, embedding])
def test_module_is_trained_in_place(make):
    module = make()
    features = None if isinstance(module, torch.nn.Embedding) else np.eye(5)
    found = db.imitate(MDP, EXPERT, discount=0.9, policy=module, features=features, max_iterations=150, tol=1e-3)
    assert found.distance.upper <= 1e-3
    inputs = torch.arange(5) if features is None else torch.eye(5, dtype=torch.float64)
    now = torch.softmax(module(inputs).double(), dim=1).detach().numpy()
    np.testing.assert_allclose(now, found.policy, atol=1e-6)


@pytest.mark.parametrize("make", [network, embedding])
def test_module_learns_in_an_environment_that_is_only_sampled(make):
    """The distance is to the true expert in the true MDP, which the run never saw."""
    module = make()
    features = None if isinstance(module, torch.nn.Embedding) else np.eye(5)
    data = db.Transitions.from_pairs(*EXPERT.sample_transitions(5_000, 0.9, np.random.default_rng(0)), states=5)
    found = db.imitate(
        as_env(MDP), data, discount=0.9, policy=module, features=features, max_iterations=60, tol=1e-3,
        sampling=Sampling(steps=20_000, rounds=3),
    )  # fmt: skip
    assert db.distance(EXPERT, MDP.induced_chain(found.policy), "indicator", 0.9).value <= 0.1
    inputs = torch.arange(5) if features is None else torch.eye(5, dtype=torch.float64)
    now = torch.softmax(module(inputs).double(), dim=1).detach().numpy()
    np.testing.assert_allclose(now, found.policy, atol=1e-6)


def test_wrong_modules_are_refused():
    with pytest.raises(db.InvalidArgument, match="logits of shape"):
        db.imitate(MDP, EXPERT, policy=torch.nn.Embedding(5, 3))
    with pytest.raises(db.InvalidArgument, match="nothing to learn"):
        db.imitate(MDP, EXPERT, policy=torch.nn.Identity())
    with pytest.raises(db.InvalidArgument, match="table"):
        db.imitate(MDP, EXPERT, policy=torch.nn.Embedding(5, 4), update="sampled")
