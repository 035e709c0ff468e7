"""Fits of other distances than the discounted one: what was put in comes out, with the certificate of `distance`."""

import numpy as np
import pytest
import torch

import diffbisim as db
from diffbisim.learning.fit import kernels as K
from diffbisim.solvers import Somcot

ASKED = {
    "average": {"criterion": "average"},
    "horizon": {"horizon": 12, "discount": 1.0},
    "weights": {"weights": [0.0, 1.0, 2.0, 4.0]},
}


@pytest.mark.parametrize("name", list(ASKED))
def test_the_drift_of_a_walk_is_found(name):
    """One parameter, and distance zero only where it is right."""
    target = db.examples.drift_walk(1.5, 5)
    found = db.fit(target, K.DriftWalk(-0.5, 5), **ASKED[name])
    assert found.converged
    assert float(found.parameters["drift"]) == pytest.approx(1.5, abs=1e-4)
    again = db.distance(target, found.chain, **ASKED[name])
    assert max(again.lower, found.distance.lower) <= min(again.upper, found.distance.upper)


def test_the_best_step_is_by_the_average_cost():
    """A model that cannot reach the target: the least average cost over a grid of its one parameter is not below."""
    target = db.MarkovChain([[0.2, 0.8, 0.0], [0.1, 0.3, 0.6], [0.5, 0.0, 0.5]], rewards=[0.0, 0.4, 1.0])

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logit = torch.nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

        def forward(self):
            p = torch.sigmoid(self.logit)
            return torch.stack([torch.stack([1 - p, p]), torch.stack([p, 1 - p])])

    how = {"criterion": "average"}
    found = db.fit(target, Two(), rewards=np.array([0.1, 0.8]), initial=0, **how)
    grid = [
        db.distance(target, db.MarkovChain([[1 - p, p], [p, 1 - p]], rewards=[0.1, 0.8]), **how).value
        for p in np.linspace(0.02, 0.98, 97)
    ]
    assert found.distance.value <= min(grid) + 1e-4


@pytest.mark.parametrize("how", [{"loop": "single"}, {"solver": Somcot(50)}])
def test_what_follows_or_samples_is_discounted(how):
    walk = db.examples.drift_walk(1.5, 5)
    with pytest.raises(db.InvalidArgument, match="loop="):
        db.fit(walk, K.DriftWalk(-0.5, 5), criterion="average", **how)


def test_a_checkpoint_of_another_criterion_is_refused(tmp_path):
    walk, path = db.examples.drift_walk(1.5, 5), tmp_path / "run.npz"
    db.fit(walk, K.DriftWalk(-0.5, 5), max_iterations=2, checkpoint=path)
    with pytest.raises(db.InvalidData, match="criterion"):
        db.fit(walk, K.DriftWalk(-0.5, 5), max_iterations=2, checkpoint=path, criterion="average")
