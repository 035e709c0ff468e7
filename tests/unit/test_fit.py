"""Fitting: known answers, work counted, runs resumed to the bit."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import diffbisim as db
from diffbisim.learning.fit.fitting import annealed, inner_solver
from diffbisim.results.base import Status
from diffbisim.solvers import Exact, Somcot

K = db.kernels
WALK = db.examples.drift_walk(1.5)


def adam(rate=0.1):
    return lambda parameters: torch.optim.Adam(parameters, rate)


def inner_work(result):
    return result.work["pivots"] + result.work["sweeps"]


@pytest.mark.parametrize("start", [-2.0, 6.0, -6.0])
def test_drift_is_found(start):
    result = db.fit(WALK, K.DriftWalk(start))
    assert result.outcome is Status.REACHED
    assert abs(result.parameters["drift"] - 1.5) <= 1e-6
    assert result.iterations <= 20
    assert result.distance.upper <= 2e-8 * 15


def test_drift_is_found_in_a_mixture():
    """The same walk in another parametrization: weights σ(f), 1 - σ(f)."""
    up, down = (db.examples.birth_death(16, *p) for p in ((1.0, 0.0), (0.0, 1.0)))
    result = db.fit(WALK, K.Mixture([up, down]), attainable=True)
    assert np.diff(result.parameters["logits"])[0] == pytest.approx(-1.5, abs=1e-6)


def test_drift_from_samples_is_the_minimizer_of_the_empirical_distance():
    """Not attainable: against a search over a fine grid."""
    s, t = WALK.sample_transitions(3_000, 0.95, rng=0)
    data = db.Transitions.from_pairs(s, t, states=16)
    result = db.fit(data, K.DriftWalk(0.0), initial=8, rewards=np.arange(16), unseen="self-loop", tol=1e-7)
    assert result.outcome is Status.STALLED
    empirical = data.chain(initial=8, rewards=np.arange(16), unseen="self-loop")
    grid = np.linspace(1.3, 1.7, 201)
    values = [db.distance(empirical, db.examples.drift_walk(f)).value for f in grid]
    assert result.value <= min(values) + 1e-5
    assert abs(result.parameters["drift"] - grid[np.argmin(values)]) <= 4e-3


def test_policy_of_an_mdp_is_recovered_as_a_chain():
    mdp = db.examples.imitation_chain()
    expert = mdp.induced_chain(db.examples.soft_right_policy(mdp, 0.4))
    result = db.fit(
        expert, K.PolicyKernel(mdp), cost=1.0 - np.eye(5), discount=0.9, attainable=True, max_iterations=150
    )
    assert result.value <= 5e-3
    assert result.curve()[0] >= 0.3


def test_start_and_rewards_are_learned():
    """A chain of two states in disguise: rewards and start are the only unknowns, distance zero is attainable."""
    P = np.array([[0.6, 0.4], [0.3, 0.7]])
    X = db.MarkovChain(P, initial=[0.3, 0.7], rewards=[0.0, 1.0])
    kernel = K.Mixture([P])
    start, rewards = K.Start(2), K.Rewards([0.2, 0.5])
    result = db.fit(X, kernel, initial=start, rewards=rewards, attainable=True, max_iterations=300, tol=1e-6)
    assert result.value <= 1e-3
    assert np.allclose(result.chain.rewards, [0.0, 1.0], atol=5e-2)
    assert np.allclose(result.chain.initial, [0.3, 0.7], atol=5e-2)
    assert set(result.parameters) == {"logits", "initial.logits", "rewards.values"}


def test_a_learned_cost_goes_down():
    class Features(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.y = torch.nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))

        def forward(self):
            return torch.abs(torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None] - self.y[None, :])

    X = db.MarkovChain([[0.5, 0.5], [0.2, 0.8]])
    result = db.fit(X, K.Mixture([X]), cost=Features(), attainable=True)
    assert result.value <= 1e-6
    assert np.allclose(result.parameters["cost.y"], [0.0, 1.0], atol=1e-4)


def test_sparse_support_is_fitted_and_kept():
    X = db.examples.random_sparse_chain(12, 3, rng=0)
    result = db.fit(X, K.MaskedSoftmax(X), attainable=True, max_iterations=150)
    assert result.chain.is_sparse
    assert np.array_equal(result.chain.transition.indices, X.transition.indices)
    assert result.value <= 0.1 * result.curve()[0]


def test_the_best_iterate_is_kept_and_certified():
    result = db.fit(WALK, K.DriftWalk(-2.0), optimizer=lambda p: torch.optim.SGD(p, 1.0), max_iterations=40)
    assert result.value <= result.curve().min() + 1e-3 * 15
    again = db.distance(WALK, result.chain).value
    assert again == pytest.approx(result.value, abs=1e-7)
    assert np.allclose(result.model().detach().numpy(), result.chain.transition)


def test_adam_and_a_scheduler_fit_too():
    optimizer, scheduler = annealed(200, 0.1)
    result = db.fit(WALK, K.DriftWalk(-2.0), optimizer=optimizer, scheduler=scheduler, max_iterations=200)
    assert abs(result.parameters["drift"] - 1.5) <= 1e-2


def test_warm_starts_cut_the_inner_work_of_200_steps_to_a_third():
    X = db.examples.random_chain(8, 0)
    warm, cold = (db.fit(X, K.Softmax(8), max_iterations=200, warm=warm) for warm in (True, False))
    assert 3 * inner_work(warm) <= inner_work(cold)
    assert warm.iterations == cold.iterations == 200


@pytest.mark.parametrize(("n", "k", "seed"), [(20, 5, 0), (24, 4, 3), (20, 5, 4)])
def test_single_loop_reaches_the_same_with_a_third_of_the_work(n, k, seed):
    """Against inner solves as the default has them, certification included; the model cannot reach distance zero."""
    X, rewards = db.examples.random_chain(n, seed), np.linspace(0, 1, k)
    optimizer, scheduler = annealed(200)
    how = {"rewards": rewards, "optimizer": optimizer, "scheduler": scheduler, "max_iterations": 200}
    double = db.fit(X, K.Softmax(k), **how)
    single = db.fit(X, K.Softmax(k), loop="single", **how)
    assert single.value <= 1.01 * double.value
    assert single.distance.gap <= 1e-8
    assert 3 * inner_work(single) <= inner_work(double)
    assert 3 * single.work["gradient_sweeps"] <= double.work["gradient_sweeps"]


ADAM = {"optimizer": adam(), "scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)}
PLATEAU = {
    "optimizer": lambda p: torch.optim.SGD(p, 0.5, momentum=0.9),
    "scheduler": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"loop": "single"},
        ADAM,
        {**ADAM, "loop": "single"},
        PLATEAU,
    ],
    ids=["rule", "single", "adam", "single-adam", "plateau"],
)
def test_interrupted_and_resumed_is_the_same_bit_for_bit(how, tmp_path):
    check_resumed(tmp_path, 5, 20, (1, 7, 12), how)


@pytest.mark.parametrize(
    "how",
    [{"solver": "sinkhorn-policy", "tol": 0.02, "restarts": 0}, {**ADAM, "solver": "sinkhorn-value", "tol": 0.05}],
    ids=["policy", "value-adam"],
)
def test_interrupted_and_resumed_with_sinkhorn_inside(how, tmp_path):
    check_resumed(tmp_path, 4, 12, (1, 7), how)


def check_resumed(folder, n, steps, stops, how):
    X = db.examples.random_chain(n, 0)
    straight = db.fit(X, K.Softmax(n), max_iterations=steps, **how)

    class Interrupt(Exception):
        pass

    for stop in stops:

        def interrupt(row, stop=stop):
            if row["step"] == stop:
                raise Interrupt

        path = folder / f"{stop}.npz"
        with pytest.raises(Interrupt):
            db.fit(X, K.Softmax(n), max_iterations=steps, checkpoint=path, every=3, callback=interrupt, **how)
        resumed = db.fit(X, K.Softmax(n), max_iterations=steps, checkpoint=path, every=3, **how)
        assert np.array_equal(straight.parameters["logits"], resumed.parameters["logits"]), stop
        assert np.array_equal(straight.curve(), resumed.curve()), stop
        assert (straight.value, straight.work) == (resumed.value, resumed.work), stop


def test_checkpoint_of_another_model_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    db.fit(WALK, K.DriftWalk(0.0), max_iterations=2, checkpoint=path)
    with pytest.raises(db.InvalidData, match="another run; differences: kernel"):
        db.fit(WALK, K.Softmax(16), max_iterations=2, checkpoint=path)
    path.write_bytes(b"no archive")
    with pytest.raises(db.InvalidData, match="not a checkpoint"):
        db.fit(WALK, K.DriftWalk(0.0), max_iterations=2, checkpoint=path)


def test_a_saved_fit_comes_back_bit_for_bit_but_for_the_module(tmp_path):
    found = db.fit(db.examples.drift_walk(1.5, 6), K.DriftWalk(-1.0, 6), max_iterations=4)
    found.save(tmp_path / "fit.npz")
    back = db.load(tmp_path / "fit.npz")
    assert isinstance(back, db.FitResult)
    assert back.model is None
    assert (repr(back), back.history, back.work, back.status) == (repr(found), found.history, found.work, found.status)
    assert back.parameters.keys() == found.parameters.keys()
    assert all(np.array_equal(back.parameters[name], value) for name, value in found.parameters.items())
    for name in ("transition", "initial", "rewards"):
        assert np.array_equal(getattr(back.chain, name), getattr(found.chain, name))
    assert np.array_equal(back.distance.values, found.distance.values)
    assert np.array_equal(back.distance.encoder, found.distance.encoder)


def test_callback_stops_and_progress_counts():
    seen = []
    result = db.fit(
        WALK, K.DriftWalk(-2.0), callback=lambda row: row["step"] == 2, progress=lambda done, total: seen.append(done)
    )
    assert result.outcome is Status.STOPPED
    assert result.iterations == 3
    assert seen[-1] == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"loop": "triple"}, "loop is"),
        ({"scheduler": lambda o: o}, "scheduler needs an optimizer"),
        ({"target": iter([(0, 1)])}, "stream"),
        ({"target": 3}, "target is a int"),
        ({"kernel": np.eye(16)}, "kernel is a ndarray"),
        ({"loop": "single", "solver": "lp"}, "needs solver=.exact"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(how, message):
    arguments = {"target": WALK, "kernel": K.DriftWalk(0.0), **how}
    with pytest.raises(db.InvalidArgument, match=message):
        db.fit(**arguments)


def test_restarts_are_tried_only_after_a_failure():
    """A drift is found directly; a mixture that is saturated on the wrong side is found from elsewhere."""
    direct = [db.fit(WALK, K.DriftWalk(-2.0), restarts=restarts).curve() for restarts in (0, 4)]
    assert np.array_equal(*direct)
    rng = np.random.default_rng([28, 1])
    kernels = rng.dirichlet(np.ones(3), (3, 3))
    target = db.MarkovChain(np.einsum("k,kij", [0.2, 0.3, 0.5], kernels), rewards=rng.random(3))
    found = db.fit(target, K.Mixture(kernels, logits=[0.85, 8.6, 0.0]))
    assert found.outcome is Status.REACHED
    for how in ({"loop": "single"}, {"optimizer": adam()}):
        with pytest.raises(db.InvalidArgument, match="restarts is 2"):
            db.fit(WALK, K.DriftWalk(0.0), restarts=2, **how)


def test_a_start_outside_the_domain_of_the_module_is_left_out():
    """1/θ is not finite at zero, and the logarithm of a negative θ is not a number."""

    class Rate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = torch.nn.Parameter(torch.tensor(30.0, dtype=torch.float64))

        def forward(self):
            p = torch.exp(-1 / self.rate - torch.log(self.rate) ** 2)
            return torch.stack([torch.stack([p, 1 - p]), torch.stack([1 - p, p])])

    P = [[0.5, 0.5], [0.1, 0.9]]
    found = db.fit(db.MarkovChain(P, rewards=[0, 1]), Rate(), max_iterations=60)
    grid = np.exp(-1 / (rates := np.linspace(0.3, 5, 400)) - np.log(rates) ** 2)
    chains = [db.MarkovChain([[p, 1 - p], [1 - p, p]], rewards=[0, 1]) for p in grid]
    assert found.value <= 1.01 * min(db.distance(db.MarkovChain(P, rewards=[0, 1]), Y).value for Y in chains)


def test_module_without_parameters_is_refused():
    class Constant(torch.nn.Module):
        def forward(self):
            return torch.eye(16, dtype=torch.float64)

    with pytest.raises(db.InvalidArgument, match="nothing to fit"):
        db.fit(WALK, Constant())


def test_torch_threads_are_given_back():
    before = torch.get_num_threads()
    db.fit(WALK, K.DriftWalk(0.0), max_iterations=1)
    assert torch.get_num_threads() == before


def test_example_of_a_neural_kernel_runs_and_fits():
    path = Path(__file__).parents[2] / "examples" / "plot_fit_neural_kernel.py"
    result = runpy.run_path(str(path))["result"]
    assert result.value <= 0.1 * result.curve()[0]
    assert result.chain.n_states == 50


def test_a_name_of_a_solver_is_its_object_and_the_default_may_be_another():
    stream = db.Stream(WALK)
    assert inner_solver("somcot", WALK, 1e-8, "double") == inner_solver("somcot", stream, 1e-8, "single") == Somcot()
    assert inner_solver("exact", WALK, 1e-6, "double") == inner_solver(None, WALK, 1e-6, "double") == Exact()
    assert inner_solver(None, WALK, 1e-9, "double") == Exact(tol=5e-10)
    assert inner_solver(None, stream, 1e-8, "double") == Somcot(4000)


def test_a_fit_that_was_saved_with_the_older_name_of_its_end_is_read(tmp_path):
    found = db.fit(db.examples.drift_walk(1.5, 6), K.DriftWalk(-1.0, 6), max_iterations=1)
    replace(found, outcome=Status.SETTLED).save(path := tmp_path / "fit.npz")
    with np.load(path) as held:
        arrays = dict(held)
    arrays["fit"] = np.frombuffer(bytes(arrays["fit"]).replace(b'"SETTLED"', b'"STALLED"'), np.uint8)
    np.savez(path, **arrays)
    assert db.load(path).outcome is Status.SETTLED


def test_two_parameters_settle_where_no_step_along_the_gradient_gains():
    """The target is out of reach; runs ended as stopped. Oracle: the exact distance on both sides of the gradient."""
    rng = np.random.default_rng(3)
    target = db.MarkovChain(rng.dirichlet(np.ones(4), 4), rewards=rng.random(4))
    base, one, two = torch.tensor(rng.normal(size=(3, 3, 3)))

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def forward(self):
            return torch.softmax(base + self.theta[0] * one + self.theta[1] * two, 1)

    rewards = [0.0, 0.5, 1.0]
    found = db.fit(target, Logits(), discount=0.9, initial=0, rewards=rewards)
    assert found.outcome.name == "SETTLED"
    model = found.model
    theta = torch.tensor(found.parameters["theta"])
    (g,) = torch.autograd.grad(
        (model() * torch.tensor(np.array(found.distance.gradient.transition_y))).sum(), model.theta
    )
    for length in (1e-4, 1e-2, 1.0):
        with torch.no_grad():
            model.theta.copy_(theta - length * g / g.abs().max())
        moved = db.MarkovChain(model().detach().numpy(), rewards=rewards)
        assert db.distance(target, moved, discount=0.9).value > found.value * (1 - 1e-6)
