"""Parametrized kernels: stochastic rows, gradients by finite differences, and what each is by definition."""

import numpy as np
import pytest
import torch

import diffbisim as db
from cases import each
from diffbisim.learning.fit import kernels as k
from diffbisim.learning.fit.updates import fisher_weights, natural_direction

MDP = db.examples.imitation_chain(4)
SPARSE = db.examples.random_sparse_chain(6, 2, rng=0)
MASK = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
LOGITS = np.random.default_rng(1).normal(size=(4, 4))

MODULES = {
    "softmax": lambda: k.Softmax(4, LOGITS),
    "masked": lambda: k.MaskedSoftmax(MASK, rng=1),
    "masked sparse": lambda: k.MaskedSoftmax(SPARSE, rng=1),
    "sparsemax": lambda: k.Sparsemax(4, LOGITS),
    "drift": lambda: k.DriftWalk(0.3, 5),
    "low rank": lambda: k.LowRank(5, 2, rng=0),
    "mixture": lambda: k.Mixture([np.eye(3), np.full((3, 3), 1 / 3), db.examples.cycle(3)], [0.0, 1.0, 2.0]),
    "policy": lambda: k.PolicyKernel(MDP, np.random.default_rng(0).normal(size=(4, 4))),
}


def dense(matrix):
    return matrix if matrix.layout == torch.strided else matrix.to_dense()


@pytest.mark.parametrize("name", MODULES)
def test_rows_are_stochastic_and_double(name):
    P = dense(MODULES[name]()())
    assert P.dtype == torch.float64
    assert (P >= 0).all()
    assert torch.allclose(P.sum(dim=1), torch.ones(P.shape[0], dtype=P.dtype), atol=1e-14)


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_finite_differences(name):
    module = MODULES[name]()
    names, values = zip(*module.named_parameters(), strict=True)
    weights = torch.tensor(np.random.default_rng(2).normal(size=dense(module()).shape))

    def scalar(*tensors):
        made = torch.func.functional_call(module, dict(zip(names, tensors, strict=True)), ())
        return (weights * dense(made)).sum()

    assert torch.autograd.gradcheck(scalar, values)


def test_each_is_what_it_says():
    assert np.allclose(MODULES["softmax"]().forward().detach(), np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True))
    assert np.array_equal(MODULES["masked"]().forward().detach() > 0, MASK > 0)
    sparse = MODULES["masked sparse"]().forward()
    assert np.array_equal(sparse.detach().to_dense() > 0, SPARSE.transition.toarray() > 0)
    assert np.allclose(k.DriftWalk(1.5)().detach(), db.examples.drift_walk(1.5).transition)
    assert np.linalg.matrix_rank(MODULES["low rank"]().forward().detach().numpy()) == 2
    policy = MODULES["policy"]()
    assert np.allclose(policy().detach(), MDP.induced_chain(policy.policy.detach().numpy()).transition)
    w = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    known = w[0] * np.eye(3) + w[1] / 3 + w[2] * db.examples.cycle(3).transition
    assert np.allclose(MODULES["mixture"]().forward().detach(), known)


@each(seed=range(5))
def test_sparsemax_is_the_nearest_point_of_the_simplex(seed):
    """Optimality of the projection: z - p is the same on the support and not larger off it."""
    z = 3 * np.random.default_rng(seed).normal(size=7)
    p = k.sparsemax(torch.tensor(z)).numpy()
    residual, support = z - p, p > 0
    assert p.sum() == pytest.approx(1.0)
    assert np.ptp(residual[support]) <= 1e-12
    assert residual[~support].max(initial=-np.inf) <= residual[support].min() + 1e-12


def test_natural_direction_of_a_softmax_is_the_closed_form():
    """n(y,·) = (G(y,·) - E G)/ρ(y), up to a constant per row that a softmax cannot see."""
    rng = np.random.default_rng(0)
    module, G, rho = k.Softmax(4, LOGITS), rng.normal(size=(4, 4)), rng.dirichlet(np.ones(4))
    P = module()
    g = list(torch.autograd.grad(P, [module.logits], torch.tensor(G), retain_graph=True))
    weights = [fisher_weights(P, torch.tensor(rho)[:, None])]
    found = natural_direction([P], weights, [module.logits], g)[0].numpy()
    p = P.detach().numpy()
    known = (G - (p * G).sum(1, keepdims=True)) / rho[:, None]
    centered = found - (p * found).sum(1, keepdims=True)
    assert np.allclose(centered, known, atol=1e-2 * np.abs(known).max())


@pytest.mark.parametrize(
    "make", [lambda: k.MaskedSoftmax([[1, 0], [0, 0]]), lambda: k.LowRank(3, 4), lambda: k.Mixture([])]
)
def test_bad_arguments_are_refused(make):
    with pytest.raises(db.InvalidArgument):
        make()
