"""Checkpoints: what is written comes back bit for bit, and only to the run that wrote it.

Oracle throughout: the same call without an interruption.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import diffbisim as db
from diffbisim.io.files import remove_abandoned, replacing
from diffbisim.learning.fit import kernels as K
from diffbisim.learning.imitate.environment import Sampling
from diffbisim.learning.optimize import checkpoint as module
from diffbisim.learning.optimize.checkpoint import RunCheckpoint, digest
from diffbisim.solvers import Exact, SinkhornPolicy, Somcot

X = db.examples.random_chain(5, 0)


class Interrupt(Exception):
    pass


def stop_at(k, error=True):
    """A callback that raises in call k (or returns True)."""
    seen = []

    def callback(row):
        seen.append(row)
        if len(seen) == k:
            if error:
                raise Interrupt
            return True
        return False

    return callback


# --- values ------------------------------------------------------------------------------------------------


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (np.ndarray, np.generic)):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def test_any_nested_state_comes_back_bit_for_bit(tmp_path):
    state = {
        "plain": [None, True, 3, -0.0, 1e-323, float("inf"), float("nan"), "ü", 2**200],
        "nested": ({"a.b": np.arange(3.0), "a": {"b": np.float32(0.1)}}, [], (), {}),
        "keys": {1: "int", "1": "text", (2, "x"): "tuple", None: 0},
        "counter": Counter({3: 2}),
        "arrays": [np.zeros((0, 3)), np.array(1.5), np.array([1, 2], np.int8), np.array([True, False])],
        "tensors": [torch.randn(3), torch.tensor(2), torch.randn(2, 2).to(torch.bfloat16), torch.zeros(0)],
    }
    file = RunCheckpoint(tmp_path / "run.npz", "test", {})
    file.write(state)
    assert same(file.read(), state)


@pytest.mark.parametrize("kind", list(module.BIT_GENERATORS))
def test_generators_come_back_with_what_they_draw_and_spawn(kind, tmp_path):
    made = np.random.Generator(getattr(np.random, kind)(np.random.SeedSequence(7)))
    made.spawn(2)
    made.random(5)
    made.integers(10, size=3, dtype=np.int32)
    file = RunCheckpoint(tmp_path / "run.npz", "test", {})
    file.write(made)
    back = file.read()
    assert np.array_equal(back.random(9), made.random(9))
    assert np.array_equal(back.spawn(1)[0].random(4), made.spawn(1)[0].random(4))


def test_a_generator_in_a_file_is_one_of_a_table(tmp_path, monkeypatch):
    """No name from a file reaches into numpy."""
    called = []
    monkeypatch.setattr(np.random, "seed", lambda *a: called.append(a))
    path = tmp_path / "run.npz"
    file = RunCheckpoint(path, "test", {})
    file.write(np.random.default_rng(0))
    with np.load(path) as held:
        arrays = dict(held)
    text = bytes(arrays["checkpoint"]).decode().replace('"PCG64"', '"seed"')
    arrays["checkpoint"] = np.frombuffer(text.encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(db.InvalidData, match="seed"):
        file.read()
    assert not called


def test_what_cannot_be_held_is_named(tmp_path):
    with pytest.raises(db.InvalidData, match=r"state\.a\.1, a object"):
        RunCheckpoint(tmp_path / "run.npz", "test", {}).write({"a": [1, object()]})


P = np.array([[0.5, 0.5], [0.25, 0.75]])
DIFFERENT = [
    None, 0, 0.0, False, "0", b"0", (0,), [0], {}, {0: 0}, np.zeros(1), np.zeros((1, 1)), np.zeros(1, np.float32), P,
    sp.csr_array(P), torch.zeros(1), torch.zeros(1, dtype=torch.float64), db.MarkovChain(P), db.MarkovChain(P[::-1]),
    db.MarkovChain(sp.csr_array(P)), db.MarkovChain(P, initial=1), db.MarkovChain(P, rewards=[0, 1]),
    db.MarkovChain(P, rewards=[0, 2]), db.MarkovChain(P, names="ab"), db.MDP([P, P]), db.MDP([P, P[::-1]]),
    db.MDP([P, P], initial=1), db.Transitions.from_pairs([0, 1], [1, 0]), db.Transitions.from_pairs([0, 1], [1, 1]),
    db.Stream(db.MarkovChain(P)), db.Stream(db.MarkovChain(P[::-1])), db.Stream(iter(()), n_states=2), Exact(),
    Exact(tol=1e-3), Somcot(10), Somcot(10, rng=1), np.random.default_rng(0), np.random.default_rng(1),
    K.Softmax(2), K.Softmax(3), K.DriftWalk(0.0, 2), K.Mixture([P]), len, max,
    torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.nn.Sequential(torch.nn.Linear(2, 2)),
    torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LeakyReLU(0.1)),
    torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LeakyReLU(0.2)),
]  # fmt: skip


def test_digests_tell_values_apart_by_content():
    codes = [digest(value) for value in DIFFERENT]
    assert len(set(codes)) == len(codes)
    assert digest(P) == digest(P.copy(order="F"))
    assert digest(db.MarkovChain(P)) == digest(db.MarkovChain(P.tolist()))
    assert digest(np.random.default_rng(3)) == digest(np.random.default_rng(3))
    assert digest(Exact(threads=1)) == digest(Exact(threads=2))


def test_digests_are_the_same_in_another_process():
    code = (
        "import numpy as np, diffbisim as db; from diffbisim.learning.optimize.checkpoint import digest; "
        "print(digest([db.examples.random_chain(5, 0), {'a', }, 'é', len, db.solvers.Exact(), 1.5, np.eye(2)]))"
    )
    code = code.replace("{'a', }", "{'a': 1}")
    other = {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}  # sets have another order
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, **other}, capture_output=True, text=True)
    from diffbisim import solvers

    assert run.stdout == digest([X, {"a": 1}, "é", len, solvers.Exact(), 1.5, np.eye(2)]) + "\n"


# --- the file of another run -------------------------------------------------------------------------------

ADAM = {"optimizer": lambda p: torch.optim.Adam(p, 0.1)}
BASE = {"kernel": lambda: K.Softmax(5, rng=1), "discount": 0.9, "max_iterations": 4}
OTHERS = {
    "target": {"target": db.examples.random_chain(5, 1)},
    "target, its rewards": {"target": db.MarkovChain(X.transition, initial=X.initial, rewards=np.arange(5.0))},
    "cost": {"cost": np.ones((5, 5))},
    "cost, by name": {"cost": "indicator"},
    "discount": {"discount": 0.8},
    "initial": {"initial": 3},
    "rewards": {"rewards": np.arange(5.0)},
    "solver": {"solver": Exact(max_iterations=77)},
    "loop": {"loop": "single"},
    "attainable": {"attainable": True},
    "tol": {"tol": 1e-3},
    "inner_gap": {"inner_gap": 0.0},
    "warm": {"warm": False},
    "optimizer": ADAM,
    "kernel": {"kernel": lambda: K.MaskedSoftmax(np.ones((5, 5)), rng=1)},
    "initial parameters of": {"kernel": lambda: K.Softmax(5, rng=2)},
}


def run_fit(path, **changes):
    how = {"target": X, **BASE, **changes}
    return db.fit(how.pop("target"), how.pop("kernel")(), checkpoint=path, **how)


@pytest.mark.parametrize("name", list(OTHERS))
def test_the_checkpoint_of_another_fit_is_refused_by_name(name, tmp_path):
    path = tmp_path / "run.npz"
    run_fit(path)
    before = path.read_bytes()
    with pytest.raises(db.InvalidData, match=rf"another run; differences: .*{name.split(',')[0]}.*delete this one"):
        run_fit(path, **OTHERS[name])
    assert path.read_bytes() == before


def test_another_optimizer_scheduler_or_cost_table_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    run_fit(path, cost=np.eye(5), **ADAM)
    for other in (
        {"cost": np.eye(5), "optimizer": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)},
        {"cost": np.eye(5), "optimizer": lambda p: torch.optim.Adam(p, 0.2)},
        {"cost": np.eye(5), **ADAM, "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 2)},
        {"cost": 2 * np.eye(5), **ADAM},
    ):
        with pytest.raises(db.InvalidData, match="differences"):
            run_fit(path, **other)


def test_what_does_not_change_the_answer_may_change(tmp_path):
    path = tmp_path / "run.npz"
    run_fit(path, solver=Exact(threads=1))
    longer = run_fit(path, solver=Exact(threads=2), max_iterations=9, every=2, progress=lambda done, total: None)
    straight = run_fit(tmp_path / "straight.npz", max_iterations=9)
    assert longer.iterations == 9
    assert np.array_equal(longer.parameters["logits"], straight.parameters["logits"])


def test_annealed_steps_depend_on_their_number(tmp_path):
    """With a cosine over ``max_iterations`` a longer run is another run from its first step on."""
    path = tmp_path / "run.npz"
    run_fit(path, loop="single")
    with pytest.raises(db.InvalidData, match="differences: scheduler"):
        run_fit(path, loop="single", max_iterations=8)
    path.unlink()
    run_fit(path, solver=Somcot(50))
    with pytest.raises(db.InvalidData, match=r"differences: max_iterations \(4 there, 5 here\)"):
        run_fit(path, solver=Somcot(50), max_iterations=5)
    with pytest.raises(db.InvalidData, match="differences: solver"):
        run_fit(path, solver=Somcot(50, rng=1))


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    for held in ({"checkpoint": np.arange(3)}, {"other": np.arange(3)}, {"checkpoint": np.frombuffer(b"[]", np.uint8)}):
        np.savez(path, **held)
        with pytest.raises(db.InvalidData, match="checkpoint"):
            run_fit(path)
    old = {"parameters": {"list": []}, "discount": 0.9}
    np.savez(path, checkpoint=np.frombuffer(str(old).replace("'", '"').encode(), np.uint8))
    with pytest.raises(db.InvalidData, match="another version"):
        run_fit(path)
    mdp = db.examples.imitation_chain()
    db.imitate(mdp, mdp.induced_chain(mdp.uniform_policy()), checkpoint=(other := tmp_path / "other.npz"))
    with pytest.raises(db.InvalidData, match="belongs to imitate, not to fit"):
        run_fit(other)


# --- resuming a fit ----------------------------------------------------------------------------------------

OPTIMIZERS = {
    "Adadelta": {}, "Adagrad": {"lr": 0.1}, "Adam": {"amsgrad": True}, "AdamW": {}, "Adamax": {}, "ASGD": {},
    "NAdam": {}, "RAdam": {}, "RMSprop": {"momentum": 0.9, "centered": True}, "Rprop": {},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "Adafactor": {},
}  # fmt: skip

schedulers = torch.optim.lr_scheduler
SCHEDULERS = {
    "StepLR": lambda o: schedulers.StepLR(o, 3),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4, 4, 9]),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, total_iters=6),
    "LinearLR": lambda o: schedulers.LinearLR(o, total_iters=9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 12),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda k: 0.9**k),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda k: 0.9),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 12),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=20),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, total_iters=4), schedulers.ExponentialLR(o, 0.8)], [4]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(o, 0.9), schedulers.StepLR(o, 2)]
    ),
}


def check_resumed(path, how, stop=5, every=2, kernel=lambda: K.Softmax(5, rng=1)):
    def run(**more):
        return db.fit(X, kernel(), **(how() if callable(how) else how), **more)

    straight = run()
    with pytest.raises(Interrupt):
        run(checkpoint=path, every=every, callback=stop_at(stop))
    assert_same_fit(run(checkpoint=path, every=every), straight)
    assert_same_fit(run(checkpoint=path, every=every), straight)  # nothing is left to do


def assert_same_fit(a, b):
    assert a.parameters.keys() == b.parameters.keys()
    assert all(np.array_equal(a.parameters[k], b.parameters[k]) for k in a.parameters)
    assert np.array_equal(a.curve(), b.curve())
    assert (a.value, a.outcome, a.work, a.iterations) == (b.value, b.outcome, b.work, b.iterations)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_resumes_bit_for_bit(name, tmp_path):
    how = {"optimizer": lambda p: getattr(torch.optim, name)(p, **OPTIMIZERS[name]), "max_iterations": 9, "tol": 1e-4}
    check_resumed(tmp_path / "run.npz", how)


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_every_scheduler_resumes_bit_for_bit(name, tmp_path):
    how = {
        "optimizer": lambda p: torch.optim.SGD(p, 0.1, momentum=0.5),
        "scheduler": SCHEDULERS[name],
        "max_iterations": 12,
    }
    check_resumed(tmp_path / "run.npz", {**how, "tol": 1e-4})


def test_an_optimizer_that_wants_a_closure_is_refused_at_once():
    with pytest.raises(db.InvalidArgument, match="LBFGS"):
        db.fit(X, K.Softmax(5), optimizer=lambda p: torch.optim.LBFGS(p))


def test_learned_starts_rewards_and_costs_resume_bit_for_bit(tmp_path):
    def learned():
        return {"initial": K.Start(5), "rewards": K.Rewards(np.arange(5.0)), "max_iterations": 8}

    check_resumed(tmp_path / "a.npz", learned)


def test_what_a_module_keeps_beside_its_parameters_resumes(tmp_path):
    class Drifting(torch.nn.Module):
        """Its temperature falls with every call."""

        def __init__(self):
            super().__init__()
            self.inner = K.Softmax(5, rng=1)
            self.register_buffer("warmth", torch.tensor(2.0, dtype=torch.float64))

        def forward(self):
            self.warmth *= 0.99
            return torch.softmax(self.inner.logits / self.warmth.clone(), dim=1)

    check_resumed(tmp_path / "run.npz", {"max_iterations": 9, **ADAM}, kernel=Drifting)


def test_a_module_that_was_interrupted_goes_on_where_it_is(tmp_path):
    """The same call in the same session, with the same module: trained in place, and no other run for that."""
    path, kernel = tmp_path / "run.npz", K.Softmax(5, rng=1)
    straight = db.fit(X, K.Softmax(5, rng=1), max_iterations=9)
    for stop in (1, 4, 2):
        with pytest.raises(Interrupt):
            db.fit(X, kernel, max_iterations=9, checkpoint=path, every=2, callback=stop_at(stop))
    db.fit(X, kernel, max_iterations=9, checkpoint=path, every=2, callback=stop_at(2, error=False))
    assert_same_fit(db.fit(X, kernel, max_iterations=9, checkpoint=path, every=2), straight)


def test_the_status_is_that_of_the_end(tmp_path):
    path, walk = tmp_path / "run.npz", db.examples.drift_walk(1.5, 6)
    straight = db.fit(walk, K.DriftWalk(-1.0, 6))
    stopped = db.fit(walk, K.DriftWalk(-1.0, 6), checkpoint=path, callback=stop_at(2, error=False))
    assert stopped.outcome.name == "INTERRUPTED"
    again = db.fit(walk, K.DriftWalk(-1.0, 6), checkpoint=path, max_iterations=4)
    assert again.outcome.name == "ITERATIONS_OF_FIT"
    ended = db.fit(walk, K.DriftWalk(-1.0, 6), checkpoint=path)
    assert ended.outcome.name == "REACHED"
    assert_same_fit(ended, straight)
    last = straight.iterations
    late = db.fit(walk, K.DriftWalk(-1.0, 6), callback=stop_at(last, error=False))
    assert late.outcome.name == "REACHED"  # it was over when the callback wanted to stop
    short = db.fit(
        X, K.Softmax(5), solver=Somcot(50), max_iterations=3, checkpoint=tmp_path / "b.npz", callback=stop_at(3, False)
    )
    assert short.outcome.name == "INTERRUPTED"
    ended = db.fit(X, K.Softmax(5), solver=Somcot(50), max_iterations=3, checkpoint=tmp_path / "b.npz")
    assert ended.outcome.name == "ESTIMATED"


@pytest.mark.parametrize("items", [100_000, 700])
def test_an_iterable_goes_on_after_what_was_read(items, tmp_path):
    """Also where it ends on the way, and draws from what it has shown take its place."""
    walk = db.examples.drift_walk(1.5, 5)
    s, t = walk.sample_transitions(items, 0.9, rng=0)

    def stream():
        return db.Stream(iter(zip(s.tolist(), t.tolist(), strict=True)), 5, initial=walk.initial, rewards=walk.rewards)

    how = {"solver": Somcot(200), "max_iterations": 6, "discount": 0.9}
    straight = db.fit(stream(), K.DriftWalk(-1.0, 5), **how)
    for stop in (2, 4):
        path = tmp_path / f"{stop}.npz"
        with pytest.raises(Interrupt):
            db.fit(stream(), K.DriftWalk(-1.0, 5), checkpoint=path, every=1, callback=stop_at(stop), **how)
        assert_same_fit(db.fit(stream(), K.DriftWalk(-1.0, 5), checkpoint=path, every=1, **how), straight)


# --- temporaries -------------------------------------------------------------------------------------------


def test_what_a_kill_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "run[1].npz"
    left = tmp_path / ".run[1].npz.0123abcd"
    others = [
        tmp_path / name
        for name in (".run1.npz.0123abcd", ".other.npz.0123abcd", ".run[1].npz.0123abcz", ".run[1].npz", "notes")
    ]
    for file in (left, *others):
        file.write_bytes(b"x")
    with replacing(path, binary=True) as live:
        live.write(b"half")
        remove_abandoned(path)  # what is being written stays
        live.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert not left.exists()
    assert all(file.exists() for file in others)


def test_writers_and_sweepers_at_once(tmp_path):
    """No write is lost to somebody who cleans up: the file is always one of those written."""
    path = tmp_path / "run.npz"

    def write(k):
        for _ in range(60):
            with replacing(path, binary=True) as file:
                file.write(bytes([k]) * 1000)

    def sweep(_):
        for _ in range(200):
            remove_abandoned(path)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(write, 1), pool.submit(write, 2), pool.submit(sweep, 0), pool.submit(sweep, 0)]
        for job in jobs:
            job.result()
    assert path.read_bytes() in (b"\1" * 1000, b"\2" * 1000)
    assert os.listdir(tmp_path) == ["run.npz"]


# --- imitation ---------------------------------------------------------------------------------------------


def random_task(seed, n=6, k=3):
    rng = np.random.default_rng(seed)
    mdp = db.MDP(rng.dirichlet(np.full(n, 0.3), (k, n)))
    return mdp, mdp.induced_chain(rng.dirichlet(np.ones(k), n))


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Embedding(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def assert_same_imitation(a, b):
    assert np.array_equal(a.policy, b.policy)
    assert a.history == b.history
    assert a.outcome == b.outcome
    assert (a.distance.value, a.distance.lower, a.distance.upper) == (
        b.distance.value,
        b.distance.lower,
        b.distance.upper,
    )
    assert np.array_equal(a.reward.table, b.reward.table)


WAYS = {
    "natural": {},
    "gradient": {"update": "gradient"},
    "sampled": {"update": "sampled", "rng": 3},
    "best-response": {"update": "best-response"},
    "module": {"policy": net},
    "module-gradient": {"policy": net, "update": "gradient"},
    "attainable": {"attainable": True},
    "sinkhorn": {"solver": SinkhornPolicy(tol=0.05), "tol": 0.05},
}


def follow(way, seed=0, **more):
    how = dict(WAYS[way])
    if "policy" in how:
        how["policy"] = how["policy"]()
    return db.imitate(*random_task(seed), discount=0.9, max_iterations=more.pop("max_iterations", 14), **how, **more)


@pytest.mark.parametrize("way", list(WAYS))
def test_imitation_resumes_bit_for_bit(way, tmp_path):
    straight = follow(way)
    for stop in (1, 4, 9):
        path = tmp_path / f"{stop}.npz"
        with pytest.raises(Interrupt):
            follow(way, checkpoint=path, every=3, callback=stop_at(stop))
        assert_same_imitation(follow(way, checkpoint=path, every=3), straight)
        assert_same_imitation(follow(way, checkpoint=path), straight)  # nothing is left to do


def test_imitation_goes_on_after_a_stop_and_with_more_iterations(tmp_path):
    path = tmp_path / "run.npz"
    stopped = follow("natural", checkpoint=path, callback=stop_at(3, error=False))
    assert stopped.outcome.name == "INTERRUPTED"
    assert follow("natural", checkpoint=path, max_iterations=6).iterations == 6
    assert_same_imitation(follow("natural", checkpoint=path, max_iterations=200), follow("natural", max_iterations=200))


def test_a_policy_module_goes_on_where_it_is(tmp_path):
    path, policy, task = tmp_path / "run.npz", net(), random_task(0)
    how = {"discount": 0.9, "max_iterations": 12}
    straight = db.imitate(*task, policy=net(), **how)
    for stop in (1, 4, 2):
        with pytest.raises(Interrupt):
            db.imitate(*task, policy=policy, checkpoint=path, every=2, callback=stop_at(stop), **how)
    db.imitate(*task, policy=policy, checkpoint=path, callback=stop_at(2, error=False), **how)
    assert_same_imitation(db.imitate(*task, policy=policy, checkpoint=path, **how), straight)
    with pytest.raises(db.InvalidData, match="initial parameters of policy"):
        db.imitate(*task, policy=net(1), checkpoint=path, **how)


def test_the_checkpoint_of_another_imitation_is_refused_by_name(tmp_path):
    path = tmp_path / "run.npz"
    mdp, expert = random_task(0)
    how = {"mdp": mdp, "expert": expert, "discount": 0.9, "max_iterations": 3, "checkpoint": path}
    db.imitate(**how)
    others = {
        "mdp": random_task(1)[0], "expert": random_task(1)[1], "cost": 2 - np.eye(6), "discount": 0.8,
        "policy": np.eye(3)[[0] * 6], "update": "gradient", "attainable": True, "tol": 1e-3, "solver": "lp", "rng": 1,
    }  # fmt: skip
    for name, value in others.items():
        with pytest.raises(db.InvalidData, match=f"differences: .*{name}"):
            db.imitate(**{**how, name: value})
    db.imitate(**how)


def lake():
    return gymnasium.make("FrozenLake-v1", map_name="4x4")


def sampled(way="table", env=lake, steps=1500, **more):
    shown = [[0, 4, 8, 9, 13, 14, 15], [0, 4, 8, 9, 10, 14, 15]] * 5
    policy = None
    if way == "module":
        torch.manual_seed(0)
        policy = torch.nn.Sequential(torch.nn.Embedding(16, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4))
    how = Sampling(steps=steps, rounds=3, iterations=3, resets=20)
    return db.imitate(env(), shown, sampling=how, discount=0.9, policy=policy, max_iterations=6, rng=1, **more)


@pytest.mark.parametrize("way", ["table", "module"])
def test_imitation_in_an_environment_resumes_bit_for_bit(way, tmp_path):
    straight = sampled(way)

    class Mortal(gymnasium.Wrapper):
        """Dies in step ``life``."""

        life = 0

        def step(self, action):
            Mortal.life -= 1
            if Mortal.life == 0:
                raise Interrupt
            return self.env.step(action)

    path = tmp_path / "run.npz"
    for life in (200, 900, 1200, 450):
        Mortal.life = life
        with suppress(Interrupt):
            sampled(way, env=lambda: Mortal(lake()), checkpoint=path, every=1)
    with suppress(Interrupt):
        sampled(way, checkpoint=path, every=1, callback=stop_at(2))
    assert_same_imitation(sampled(way, checkpoint=path, every=1), straight)
    with pytest.raises(db.InvalidData, match=r"differences: .*sampling"):
        sampled(way, steps=1600, checkpoint=path)
    with pytest.raises(db.InvalidData, match="differences: environment"):
        sampled(way, env=lambda: gymnasium.make("FrozenLake-v1", is_slippery=False), checkpoint=path)


# --- kill -9 -----------------------------------------------------------------------------------------------

LOADED = """
import os, signal, tempfile
import numpy as np, test_checkpoint as here
with tempfile.TemporaryDirectory() as where:
    for name, job in here.JOBS.items():
        job(where + "/" + name + ".npz", None)
"""

KILLED = """
count = 0

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def callback(row):
    global count
    count += 1
    if count == {step}:
        die()

if {writing}:
    savez, writes = np.savez, 0
    def half(file, **arrays):
        global writes
        writes += 1
        savez(file, **arrays)
        file.flush()
        if writes == {writing}:
            die()
    np.savez = half
here.JOBS[{job!r}]({path!r}, callback)
"""


def fit_job(path, callback):
    return db.fit(X, K.Softmax(5, rng=1), max_iterations=12, checkpoint=path, every=2, callback=callback, **ADAM)


JOBS = {
    "fit": fit_job,
    "imitate": lambda path, callback: follow("natural", checkpoint=path, every=2, callback=callback),
    "module": lambda path, callback: follow("module", checkpoint=path, every=2, callback=callback),
    "sampled": lambda path, callback: sampled(checkpoint=path, every=1, callback=callback),
}


@pytest.mark.parametrize(
    ("job", "kills"),
    [
        ("fit", [(3, 0), (0, 2), (4, 0)]),
        ("imitate", [(3, 0), (0, 2), (5, 0)]),
        ("module", [(3, 0), (5, 0)]),
        ("sampled", [(0, 2), (2, 0)]),
    ],
)
def test_kill_minus_nine_and_the_same_call_again(job, kills, tmp_path, nursery):
    """Killed in steps, and in the middle of writing the file: what comes out in the end has the same bits."""
    path, left = tmp_path / "run.npz", 0
    nursery.load(LOADED)
    for step, writing in kills:
        nursery.fork(KILLED.format(step=step or 10**9, writing=writing, job=job, path=str(path)))
        assert nursery.line() == f"ended {-signal.SIGKILL}"
        left += len(list(tmp_path.glob(".run.npz.*")))
    assert left == any(writing for _, writing in kills)
    found, straight = JOBS[job](path, None), JOBS[job](tmp_path / "straight.npz", None)
    (assert_same_fit if job == "fit" else assert_same_imitation)(found, straight)
    assert sorted(os.listdir(tmp_path)) == ["run.npz", "straight.npz"]
