"""No argument is ignored: every argument of the searches and tables, in every mode, at a value that is not its default.

The entries of a mode are explained in tests/arguments.py. A parameter that is added to a signature without an entry
here fails the test.
"""

import functools

import numpy as np
import pytest

import diffbisim as db
from arguments import Log, Mode, Pool, changes, faults, honored, refused, unused
from later import Later

torch, jax = Later("diffbisim.torch"), Later("diffbisim.jax")
rng = np.random.default_rng(20261118)
P = rng.dirichlet(np.ones(6), 6) * 0.3 + 0.7 * np.eye(6)
CHAIN = db.MarkovChain(P / P.sum(axis=1, keepdims=True), rewards=np.arange(6.0) ** 1.5)
OTHER = db.MarkovChain(np.roll(CHAIN.transition, 1, axis=(0, 1)), rewards=np.arange(6.0))
SMALL = db.MarkovChain([[0.9, 0.1], [0.2, 0.8]], rewards=[1.0, 6.0])
STEPS = db.Transitions.from_trajectories([rng.integers(0, 6, 40) for _ in range(8)])
ENDING = db.Transitions.from_trajectories([[0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 1, 5]])
MODEL = db.MDP(rng.dirichlet(np.ones(7), (2, 7)), rewards=rng.random((7, 2)))
LARGE = db.MDP(rng.dirichlet(np.full(30, 0.2), (2, 30)), rewards=rng.random((30, 2)))
MANY = db.Transitions.from_pairs(
    *rng.integers(0, 20, (2, 900)), actions=rng.integers(0, 2, 900), rewards=rng.random(900)
)
RARE = db.Transitions.from_pairs([0, 1, 2, 0, 1], [1, 2, 0, 2, 0], actions=[0, 0, 0, 1, 1], rewards=[1, 0, 3, 0, 2])
TIMED = db.TimedChain([CHAIN.transition] * 3, rewards=CHAIN.rewards)


def compressed(found):
    return (
        found.chain.transition,
        found.chain.rewards,
        found.distance.gap,
        found.distance.value,
        found.assignment,
        len(found.history),
    )


def abstracted(found):
    return found.assignment, found.loss, found.bound, len(found.candidates), found.method, found.complete


def swept(found):
    return [part for one in found.results for part in compressed(one)]


def table(found):
    return (found,)


def solved(found):
    value, result = found
    return float(value), result.value, result.iterations


def in_torch():
    """Return torch's function, which takes ``TABLE`` as a tensor."""

    @functools.wraps(torch.distance_and_result)
    def call(**given):
        return torch.distance_and_result(
            **{name: torch_of().tensor(part) if part is TABLE else part for name, part in given.items()}
        )

    return call


def chain(found):
    return found.transition, found.initial, found.rewards, found.names, found.is_sparse


def estimated(found):
    return found.value, found.discount


def metric(found):
    return (found.values,)


def torch_of():
    import torch as module

    return module


@functools.wraps(db.fit)
def fresh_fit(**given):
    """Fit a new module, because a fit trains its module in place."""
    kernels = db.kernels
    made = {
        "logits": lambda: kernels.Softmax(6),
        "small": lambda: kernels.Softmax(3),
    }
    return db.fit(**given | {"kernel": made[given["kernel"]]()})


def fitted(found):
    return (*found.parameters.values(), found.value, len(found.history), *found.work.values())


def walk(parameters, noise, starts):
    """x' = a x + noise, from given first states."""
    paths = [starts]
    for _ in range(12):
        paths.append(parameters[0] * paths[-1] + 0.4 * noise.standard_normal(starts.shape))
    return np.stack(paths, axis=1)


def simulated(found):
    return found.parameters, found.lower, found.upper, found.distance.value


GAPS = db.Transitions.from_pairs([0, 0, 1, 1], [1, 2, 0, 2], states=3)  # state 2 was never left
PATHS = list(walk([0.7], np.random.default_rng(0), np.random.default_rng(1).normal(size=(24, 1))))
SEARCH = {  # of compress, in every mode that searches
    "n_states": changes(3),
    "discount": changes(0.5),
    "lag": changes(3),
    "rewards": changes([0.0, 9.0]),
    "cost": changes(rng.random((6, 2))),
    "rng": changes(5, restarts=6),
    "restarts": changes(1),
    "starts": changes([SMALL], restarts=1),
    "tol": changes(0.3),
    "criterion": refused("average"),
    "executor": honored(lambda path: Pool(), lambda pool: pool.tasks > 0),
    "progress": honored(lambda path: Log(), len),
    "callback": honored(lambda path: Log(), len),
    "checkpoint": honored(lambda path: path / "run.npz", lambda file: file.exists()),
    "time_limit": changes(1e-3),
    "max_iterations": changes(0),
}
ABSTRACT = {  # of abstract, where there is a search
    "discount": changes(0.3),
    "method": changes("balls"),
    "assignment": changes(np.arange(20) % 4),
    "features": changes(rng.random((20, 2))),
    "restarts": changes(2, method="bisimulation"),
    "score": changes("lookahead_start_loss"),
    "rng": changes(5, method="bisimulation", restarts=1),
    "time_limit": changes(1e-9, method="bisimulation"),
    "progress": honored(lambda path: Log(), len),
}
TABLE = np.array(OTHER.transition)
TENSORS = {
    "cost": changes("indicator"),
    "discount": changes(0.5),
    "initial": changes(3),
    "initial_x": changes(3, X=TABLE, cost="indicator"),
    "rewards": changes(rng.random(6)),
    "solver": changes("sinkhorn-value"),
    "tol": changes(0.3),
    "warm": changes(db.distance(CHAIN, OTHER)),
    "criterion": changes("average"),
    "horizon": changes(3),
    "weights": changes([1.0, 2.0]),
    "actions": refused("lax"),
}
ALL_PAIRS = {
    "discount": changes(0.5),
    "solver": changes(db.solvers.Exact(max_iterations=1)),
    "tol": changes(0.3),
    "criterion": changes("average"),
    "horizon": changes(3),
    "weights": changes([1.0, 0.0, 2.0, 1.0]),
    "executor": honored(lambda path: Pool(), lambda pool: pool.tasks > 0),
    "progress": honored(lambda path: Log(), len),
}
ALWAYS, MIXED = np.zeros(7, int), np.arange(7) % 2
SOMCOT = db.solvers.Somcot(max_iterations=50, rng=1)
SIMILAR = {
    "other": changes(db.MDP(rng.dirichlet(np.ones(7), (2, 7)), rewards=rng.random((7, 2))), policy_y=MIXED),
    "policy_x": changes(ALWAYS, policy_y=MIXED),
    "policy_y": changes(ALWAYS),
    "discount": changes(0.5),
    "cost": changes(rng.random((7, 7))),
}
SOLVED = {
    "tol": changes(0.3),
    "solver": changes("sinkhorn-value"),
    "callback": honored(lambda path: Log(), len),
}
MODES = {
    "compress": (
        db.compress,
        {"target": CHAIN, "n_states": 2},
        compressed,
        SEARCH
        | {
            "model": changes("aggregate"),
            "target_rewards": changes(np.arange(6.0) % 2),
            "unseen": refused("uniform"),
        },
    ),
    "compress, transitions": (
        db.compress,
        {"target": STEPS, "n_states": 2, "target_rewards": np.arange(6.0)},
        compressed,
        SEARCH
        | {
            "model": changes("aggregate"),
            "unseen": changes("uniform", target=ENDING, usual="self-loop"),
        },
    ),
    "compress, kinetic": (
        db.compress,
        {"target": CHAIN, "n_states": 2, "model": "kinetic"},
        compressed,
        {
            "discount": changes(0.5),
            "lag": changes(3),
            "rewards": changes([0.0, 9.0]),
            "cost": changes(rng.random((6, 2))),
            "target_rewards": changes(np.arange(6.0) % 2),
            "unseen": refused("uniform"),
            "tol": changes(0.3),
            "criterion": refused("average"),
            "rng": unused(1),
            "progress": unused(True),
            "restarts": refused(2),
            "max_iterations": refused(3),
            "starts": refused([SMALL]),
            "time_limit": refused(9.0),
            "executor": refused(Pool()),
            "callback": refused(print),
            "checkpoint": refused("run.npz"),
        },
    ),
    "aggregate": (
        db.aggregate,
        {"chain": CHAIN, "assignment": [0, 0, 0, 1, 1, 1]},
        compressed,
        {
            "method": changes("kinetic"),
            "discount": changes(0.5),
            "cost": changes("classes"),
            "weights": changes("stationary"),
            "lag": changes(3),
            "tol": changes(0.3),
        },
    ),
    "aggregate, kinetic": (
        db.aggregate,
        {"chain": CHAIN, "assignment": [0, 0, 0, 1, 1, 1], "method": "kinetic"},
        compressed,
        {
            "discount": changes(0.5),
            "cost": changes("classes"),
            "weights": changes(np.arange(6.0)),
            "lag": changes(3),
            "tol": changes(0.3),
        },
    ),
    "abstract": (
        db.abstract,
        {"mdp": LARGE, "n_states": 4},
        abstracted,
        ABSTRACT
        | {
            "assignment": changes(np.arange(30) % 4),
            "features": changes(rng.random((30, 2))),
            "rewards": refused(rng.random((30, 2))),
            "unseen": refused("uniform"),
        },
    ),
    "abstract, transitions": (
        db.abstract,
        {"mdp": MANY, "n_states": 4},
        abstracted,
        ABSTRACT
        | {
            "discount": changes(0.3),
            "rewards": changes(rng.random((20, 2))),
            "unseen": changes("uniform", mdp=RARE, n_states=2, usual="self-loop"),
        },
    ),
    "abstract, assignment": (
        db.abstract,
        {"mdp": MODEL, "assignment": [0, 0, 1, 1, 2, 2, 2]},
        abstracted,
        {
            "n_states": refused(2),
            "discount": changes(0.3),
            "method": refused("balls"),
            "features": changes(rng.random((7, 2))),
            "rewards": refused(rng.random((7, 2))),
            "restarts": refused(2),
            "score": refused("start_loss"),
            "unseen": refused("uniform"),
            "rng": unused(1),
            "time_limit": refused(9.0),
            "progress": unused(True),
        },
    ),
    "compress_sweep": (
        db.compress_sweep,
        {"target": CHAIN, "sizes": (1, 2)},
        swept,
        {
            "sizes": changes((1, 3)),
            "discount": changes(0.5),
            "rewards": changes("spread"),
            "time_limit": changes(1e-3),
            "checkpoint": honored(lambda path: path / "sweep.npz", lambda file: any(file.parent.glob("sweep*"))),
            "model": changes("aggregate"),
            "lag": changes(3),
            "restarts": changes(1),
            "tol": changes(0.3),
        },
    ),
    "pairwise": (db.pairwise, {"chains": [CHAIN, OTHER, SMALL]}, table, ALL_PAIRS | {"cost": changes("squared")}),
    "pairwise, timed": (
        db.pairwise,
        {"chains": [TIMED, db.TimedChain.repeat(OTHER, 3)]},
        table,
        ALL_PAIRS
        | {
            "cost": changes("squared"),
            "criterion": refused("average"),
            "horizon": changes(2),
            "solver": refused("lp"),
            "tol": refused(-1.0),
        },
    ),
    "streams": (
        db.distance,
        {"X": STEPS, "Y": OTHER, "cost": np.ones((6, 6)) - np.eye(6), "solver": SOMCOT},
        estimated,
        {
            "cost": changes(rng.random((6, 6))),
            "discount": changes(0.5),
            "solver": changes(db.solvers.Somcot(max_iterations=50, rng=2)),
            "tol": refused(0.1),
            "criterion": refused("average"),
            "horizon": refused(3),
            "weights": refused([1.0, 1.0]),
            "terminal": refused(np.eye(6, dtype=bool)),
            "actions": refused("lax"),
            "lump": refused(True),
            "warm": changes(db.distance(CHAIN, OTHER, solver=SOMCOT)),
            "callback": honored(lambda path: Log(), len),
        },
    ),
    "pairwise, average": (
        db.pairwise,
        {"chains": [CHAIN, OTHER], "criterion": "average"},
        table,
        ALL_PAIRS
        | {"criterion": changes("discounted"), "cost": changes("squared"), "discount": refused(0.5)}
        | {"horizon": refused(3), "weights": refused([1.0])},
    ),
    "torch.distance, average": (
        lambda: in_torch(),
        {"X": CHAIN, "Y": TABLE, "criterion": "average"},
        solved,
        TENSORS
        | {"criterion": changes("discounted"), "horizon": refused(3), "weights": refused([1.0])}
        | {"solver": refused("sinkhorn-value"), "warm": changes(db.distance(CHAIN, OTHER, criterion="average"))}
        | {
            "discount": refused(0.5),
            "initial": unused(3),  # irreducible
            "initial_x": refused(3),  # X is a chain
        },
    ),
    "torch.distance": (lambda: in_torch(), {"X": CHAIN, "Y": TABLE}, solved, TENSORS),
    "jax.distance": (lambda: jax.distance, {"X": CHAIN, "Y": TABLE}, table, TENSORS | {"warm": refused(CHAIN)}),
    "from_transitions": (
        db.MarkovChain.from_transitions,
        {"s": [1, 2, 1, 2, 0], "s_next": [2, 1, 1, 1, 2]},
        chain,
        {
            "weights": changes([1, 2, 3, 4, 5]),
            "initial": changes(2),
            "rewards": changes([0.0, 1.0, 2.0]),
            "states": changes([2, 1, 0]),
            "unseen": changes("uniform", s_next=[2, 1, 3, 1, 2], usual="self-loop"),
            "sparse": changes(True),
        },
    ),
    "MDP.from_transitions": (
        db.MDP.from_transitions,
        {"data": MANY},
        lambda found: (*found.transition, found.rewards, found.initial),
        {
            "initial": changes(1),
            "rewards": changes(rng.random(20)),
            "unseen": changes("uniform", data=RARE, usual="self-loop"),
        },
    ),
    "feature_cost": (
        db.feature_cost,
        {"features_x": rng.random((3, 2)), "features_y": rng.random((4, 2))},
        table,
        {"metric": changes("cityblock")},
    ),
    "policy_similarity": (db.policy_similarity, {"mdp": MODEL, "policy_x": MIXED}, metric, SIMILAR | SOLVED),
    "mico": (
        db.mico,
        {"mdp": MODEL, "policy_x": MIXED},
        table,
        SIMILAR,
    ),
}
MODES |= {
    "fit": (
        fresh_fit,
        {"target": CHAIN, "kernel": "logits", "max_iterations": 8},
        fitted,
        {
            "cost": changes("indicator"),
            "discount": changes(0.5),
            "initial": changes(3),
            "rewards": changes(rng.random(6)),
            "solver": changes("sinkhorn-policy", tol=0.01),
            "tol": changes(0.3),
            "attainable": changes(True, kernel="small", rewards=np.arange(3.0), max_iterations=60),
            "optimizer": changes(lambda p: torch_of().optim.SGD(p, 0.1)),
            "scheduler": refused(print),
            "loop": changes("single"),
            "warm": changes(False),
            "inner_gap": changes(0.0),
            "restarts": changes(0, kernel="small", rewards=np.arange(3.0), max_iterations=60),
            "unseen": changes("uniform", target=GAPS, usual="self-loop", rewards=np.arange(3.0), kernel="small"),
            "criterion": changes("average"),
            "horizon": changes(4),
            "weights": changes([1.0, 0.5]),
            "callback": honored(lambda path: Log(), len),
            "progress": honored(lambda path: Log(), len),
            "checkpoint": honored(lambda path: path / "fit.npz", lambda file: file.exists()),
            "every": refused(0),  # only how often a file is written
        },
    ),
    "fit_simulator": (
        db.fit_simulator,
        {"target": PATHS, "simulate": walk, "start": [0.5], "splits": 2, "n_states": 8, "tol": 0.02},
        simulated,
        {
            "step": refused(lambda x, parameters, noise: x),
            "cost": changes("euclidean"),
            "discount": changes(0.5),
            "bounds": changes([(0.4, 0.6)]),
            "confidence": changes(0.5),
            "time_limit": changes(0.0),
            "progress": honored(lambda path: Log(), len),
            "rng": changes(1),
        },
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_every_argument_counts(mode, tmp_path):
    function, *rest = MODES[mode]
    function = function() if function.__name__ == "<lambda>" else function  # loads torch or jax
    assert not faults(Mode(function, *rest), tmp_path)
