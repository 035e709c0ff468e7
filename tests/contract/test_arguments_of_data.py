"""No argument is ignored where data come in: conversion, cells, files, tests of two and more groups, and fits.

The entries of a mode are explained in tests/arguments.py.
"""

import numpy as np
import pytest
from scipy.signal import lfilter

import diffbisim as db
from arguments import Log, Made, Mode, Pool, changes, faults, honored, refused, unused

rng = np.random.default_rng(20261118)
P = rng.dirichlet(np.ones(3), 3)
ONE = db.MarkovChain(P, rewards=[0.0, 1.0, 3.0])
TWO = db.MarkovChain(np.roll(P, 1, axis=(0, 1)), rewards=[0.0, 1.0, 3.0])


def walks(chain, count, length=12):
    return [chain.sample(length, rng=k) for k in range(count)]


CLUSTERS = np.arange(12) // 3
A, B = (db.Transitions.from_trajectories(walks(chain, 12), states=3) for chain in (ONE, TWO))
GAPS = db.Transitions.from_trajectories([[0, 1, 2], [0, 1, 0, 1]], states=3)  # state 2 is never left
PATHS = [[lfilter([1], [1, -0.6], rng.normal(size=12))[:, None] * scale for _ in range(14)] for scale in (1.0, 1.5)]
POINTS = db.quantize(*PATHS, n_states=6)
LINES = [
    "user,at,page,arm,shop",
    *("1,0,a,x,n", "1,1,b,x,n", "1,9,a,x,n", "2,0,a,x,s", "2,1,b,x,s", "2,1,b,x,s", "3,0,b,y,n", "3,2,a,y,n"),
    *("4,0,a,y,s", "4,1,,y,s", "4,3,b,y,s"),
]
COLUMNS = dict(
    zip(LINES[0].split(","), map(list, zip(*(line.split(",") for line in LINES[1:]), strict=True)), strict=True)
)
COLUMNS["at"] = list(map(float, COLUMNS["at"]))
COLUMNS["page"] = [page or None for page in COLUMNS["page"]]
CLEAN = {name: [values[k] for k in range(len(values)) if k not in (5, 9)] for name, values in COLUMNS.items()}
NAMES = {"id": "user", "time": "at", "state": "page"}


def held(data):
    """What observed transitions are, by group if there are any."""
    if isinstance(data, dict):
        return {name: held(part) for name, part in data.items()}
    names = ("states", "next_states", "n_states", "names", "weights", "episodes", "actions", "rewards", "lag", "end")
    return [repr(getattr(data, name)) for name in (*names, "clusters", "strata", "starts", "durations")]


def chain(found):
    return [repr(part) for part in (found.transition, found.initial, found.rewards, found.names, found.is_sparse)]


def timed(found):
    return [repr(part) for part in (*found.transitions, found.initial, found.rewards, found.names)]


def cells(found):
    return found.centers, found.scale, found.n_terminal


def interval(found):
    return found.value, found.lower, found.upper, getattr(found, "p_value", 0.0), repr(found)


def powers(found):
    return [repr(found)]


EVENTS = {
    "gap": changes(3.0),
    "group": changes("arm"),
    "missing": changes("drop", table=COLUMNS, duplicates="drop", usual="split"),
    "states": changes(["b", "a", "■"]),
    "end": changes(None),
    "every": changes(1.0),
    "cluster": changes("shop"),
    "strata": changes("shop"),
    "duplicates": changes("drop", table=COLUMNS, missing="drop", usual="keep"),
}
RESAMPLED = {
    "progress": honored(lambda path: Log(), len),
    "executor": honored(lambda path: Pool(), lambda pool: pool.tasks > 0),
}
SHORT = {"permutations": 29, "replicates": 24}
ESTIMATE = RESAMPLED | {
    "cost": changes("indicator"),
    "discount": changes(0.5),
    "solver": changes(db.solvers.Exact(tol=0.3)),
    "criterion": changes("average"),
    "horizon": changes(3),
    "weights": changes([1.0, 2.0]),
    "rewards": changes([5.0, 0.0, 1.0]),
    "initial": changes([0.0, 0.0, 1.0]),
    "unseen": changes("uniform", X=GAPS),
    "terminal": refused(np.eye(3, dtype=bool)),
    "strata": changes([np.arange(12) % 2] * 2),
    "cluster": changes([CLUSTERS, CLUSTERS + 4]),
    "paired": refused(True),
    "confidence": changes(0.6),
    "permutations": changes(39),
    "replicates": changes(30),
    "rng": changes(5),
}
PATH_ESTIMATE = {
    "cost": changes("sqeuclidean"),
    "discount": changes(0.5),
    "criterion": changes("average"),
    "horizon": changes(3),
    "weights": changes([1.0, 2.0]),
    "rewards": refused([1.0]),
    "initial": changes("empirical"),
    "terminal": refused(np.eye(2)),
    "strata": refused([np.arange(14) % 2] * 2),
    "cluster": refused([np.arange(14) // 2, np.arange(14) // 2 + 9]),
    "unseen": refused("uniform"),
    "permutations": refused(99),
    "executor": refused(2),
    "paired": changes(True),
    "confidence": changes(0.6),
    "solver": changes("sinkhorn-value"),
    "replicates": changes(40),
    "progress": honored(lambda path: Log(), len),
    "rng": changes(5),
}
ALIKE = [db.Transitions.from_trajectories([ONE.sample(12, rng=k) for k in range(20 * j, 20 * j + 12)], states=3)
         for j in range(3)]  # fmt: skip
GROUPS = dict(zip("abc", ALIKE, strict=True))
COMPARE = RESAMPLED | {
    "cost": changes("indicator"),
    "discount": changes(0.5),
    "solver": changes(db.solvers.Exact(tol=0.3)),
    "rewards": changes([5.0, 0.0, 1.0]),
    "initial": changes([0.0, 0.0, 1.0]),
    "unseen": changes("uniform", groups={"a": GAPS, "b": B}),
    "strata": changes({"a": np.arange(12) % 2, "b": np.arange(12) % 2, "c": np.arange(12) // 6}),
    "cluster": changes({"a": CLUSTERS, "b": CLUSTERS + 4, "c": CLUSTERS + 8}),
    "alpha": changes(0.4),
    "permutations": changes(39),
    "rng": changes(5),
}
POWER = RESAMPLED | {
    "cost": changes("indicator"),
    "discount": changes(0.5),
    "episodes": changes([6, 10]),
    "length": changes(5),
    "rewards": refused([5.0, 0.0, 1.0]),
    "cluster": refused([CLUSTERS, CLUSTERS + 4]),
    "target": changes(0.5),
    "alpha": changes(0.3),
    "datasets": changes(13),
    "permutations": changes(29),
    "rng": changes(5),
}


def drift():
    return db.kernels.DriftWalk(0.0, 3)


def fitted(found):
    return [repr(found.parameters), found.distance.value, len(found.history), found.outcome.name, repr(found.work)]


#: Parameters of ``fit`` whose entries are those of its first mode.
OF_FIT = (
    "cost", "discount", "initial", "rewards", "solver", "tol", "attainable", "optimizer", "scheduler", "loop", "warm",
    "inner_gap", "restarts", "callback", "progress", "checkpoint", "every",
)  # fmt: skip


def torch():
    import torch as module

    return module


def one_step(x, parameters, noise):
    return parameters[0] * x + noise


def half_step(x, parameters, noise):
    return parameters[0] * x + 0.5 * noise


def identified(found):
    return [repr(found.parameters), repr(found.intervals)]


def simulated(parameters, generator, starts=None):
    return db.LinearGaussian(np.exp(-0.2 * parameters[0]), 0.4, start=1.0).sample(30, 10, generator)


MODES = {
    "quantize": Mode(
        db.quantize, {"X": PATHS[0]}, cells,
        {
            "Y": changes(PATHS[1]), "n_states": changes(5), "scale": changes(None), "rng": changes(5, n_states=5),
            "centers": changes([[0.0], [1.0]]), "terminal": changes(lambda points: points[:, 0] > 1),
        },
    ),
    "from_pairs": Mode(
        db.Transitions.from_pairs, {"s": [0, 1, 0], "s_next": [1, 0, 2]}, held,
        {
            "weights": changes([1.0, 2.0, 3.0]), "states": changes([2, 1, 0]), "actions": changes([0, 1, 0]),
            "rewards": changes([1.0, 0.0, 2.0]),
        },
    ),
    "from_trajectories": Mode(
        db.Transitions.from_trajectories, {"trajectories": [[0, 1, 2, 0], [1, 1, 0]]}, held,
        {
            "weights": changes([1.0, 2.0]), "states": changes([2, 1, 0]), "actions": changes([[0, 1, 0], [1, 1]]),
            "rewards": changes([[1.0, 0.0, 2.0], [1.0, 1.0]]), "lag": changes(2), "end": changes("■"),
            "clusters": changes([0, 0]),
        },
    ),
    "from_frame": Mode(db.Transitions.from_frame, {"table": CLEAN, **NAMES}, held, EVENTS),
    "Transitions.chain": Mode(
        A.chain, {}, chain,
        {
            "initial": changes(2), "rewards": changes([5.0, 0.0, 1.0]), "sparse": changes(True),
            "unseen": unused("uniform"),  # every state was left; GAPS below
        },
    ),
    "Transitions.chain, gaps": Mode(GAPS.chain, {"unseen": "self-loop"}, chain, {"unseen": changes("uniform")},
        ("initial", "rewards", "sparse")),
    "MarkovChain.from_trajectories": Mode(
        db.MarkovChain.from_trajectories, {"trajectories": [[0, 1, 2, 0], [1, 1, 0]]}, chain,
        {
            "weights": changes([1.0, 2.0]), "initial": changes(2), "rewards": changes([1.0, 2.0, 3.0]),
            "states": changes([2, 1, 0]), "sparse": changes(True),
            "unseen": changes("uniform", trajectories=[[0, 1, 2], [1, 1, 0]], usual="self-loop"),
        },
    ),
    "TimedChain.from_paths": Mode(
        db.TimedChain.from_paths, {"paths": rng.normal(size=(40, 3, 2)), "n_states": None}, timed,
        {"n_states": changes(4), "width": changes(0.5), "memory": changes(2), "rng": changes(5, n_states=4)},
    ),
    "TimedChain.repeat": Mode(db.TimedChain.repeat, {"chain": ONE}, timed, {"n_steps": changes(4, usual=3)}),
    "Cells.chain": Mode(
        POINTS.chain, {"X": PATHS[0]}, chain, {"smoothing": changes(None), "prune": changes(0.05)},
    ),
    "Cells.encode": Mode(
        POINTS.encode, {"x": [[0.0], [1.0]]}, lambda found: found,
        {"outside": honored(lambda path: "nearest", lambda value: POINTS.encode([[1e6]], outside=value).size == 1)},
    ),
    "Cells.cost": Mode(POINTS.cost, {}, lambda found: found, {"metric": changes("sqeuclidean")}),
    "estimate": Mode(
        db.estimate, {"X": A, "Y": B, "rewards": [0.0, 1.0, 3.0], **SHORT}, interval, ESTIMATE, ),
    "estimate, paths": Mode(
        db.estimate, {"X": PATHS[0], "Y": PATHS[1], "cost": "euclidean", "replicates": 24}, interval, PATH_ESTIMATE,
    ),
    "compare": Mode(
        db.compare, {"groups": GROUPS, "rewards": [0.0, 1.0, 3.0], "permutations": 29},
        lambda found: [repr(found), found.values, found.p_values], COMPARE,
    ),
    "power": Mode(
        db.power, {"X": ONE, "Y": TWO, "episodes": [5, 8], "length": 8, "datasets": 10, "permutations": 19}, powers,
        POWER,
    ),
    "fit": Mode(
        db.fit, {"target": ONE, "kernel": Made(drift), "rewards": [0.0, 1.0, 3.0], "max_iterations": 4}, fitted,
        {
            "cost": changes("indicator"), "discount": changes(0.5), "initial": changes(2),
            "rewards": changes([5.0, 0.0, 1.0]), "solver": changes(db.solvers.Exact(max_iterations=1)),
            "max_iterations": changes(2), "tol": changes(0.9),
            "unseen": changes("uniform", target=GAPS, usual="self-loop"),
            "criterion": changes("average"),
            "horizon": changes(3), "weights": changes([1.0, 2.0]),
            "callback": honored(lambda path: Log(), len), "progress": honored(lambda path: Log(), len),
            "checkpoint": honored(lambda path: path / "fit.npz", lambda file: file.exists()),
            "attainable": changes(True, max_iterations=60),
            "optimizer": changes(lambda parameters: torch().optim.SGD(parameters, 0.1)),
            "scheduler": changes(
                lambda optimizer: torch().optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
                optimizer=lambda parameters: torch().optim.SGD(parameters, 0.1),
            ),
            "loop": changes("single"), "warm": changes(False), "inner_gap": changes(0.0),
            "restarts": changes(0, max_iterations=60), "every": refused(0),  # only how often a checkpoint is written
        },
    ),
    "fit, average": Mode(
        db.fit, {"target": ONE, "kernel": Made(drift), "criterion": "average", "max_iterations": 2}, fitted,
        {
            "discount": refused(0.5), "horizon": refused(3), "weights": refused([1.0]), "loop": refused("single"),
            "unseen": refused("uniform"), "solver": refused("sinkhorn-value"),
        },
        OF_FIT,
    ),
    "fit, weights": Mode(
        db.fit, {"target": ONE, "kernel": Made(drift), "weights": [1.0, 2.0], "max_iterations": 2}, fitted,
        {
            "discount": refused(0.5), "criterion": refused("average"), "loop": refused("single"),
            "unseen": refused("uniform"),
        },
        (*OF_FIT, "horizon", "solver"),
    ),
    "fit, samples": Mode(
        db.fit, {"target": A, "kernel": Made(drift), "rewards": [0.0, 1.0, 3.0], "max_iterations": 3,
                 "solver": db.solvers.Somcot(40)}, fitted,
        {
            "unseen": refused("uniform"), "horizon": refused(3), "weights": refused([1.0]),
            "criterion": refused("average"), "restarts": refused(2), "loop": changes("single"),
            "discount": changes(0.5),
        },
        OF_FIT,
    ),
    "fit_simulator": Mode(
        db.fit_simulator,
        {"target": simulated([1.5], np.random.default_rng(1)), "simulate": simulated, "start": 1.2, "splits": 2,
         "n_states": 8, "tol": 0.05},
        lambda found: (found.parameters, found.lower, found.upper),
        {
            "start": changes(0.8), "cost": changes("euclidean"), "discount": changes(0.5), "n_states": changes(5),
            "tol": changes(0.5), "splits": changes(3), "confidence": changes(0.6), "rng": changes(5),
            "bounds": changes([(1.0, 1.3)]), "progress": honored(lambda path: Log(), len), "time_limit": changes(0.0),
            "step": refused(one_step),
        },
    ),
    "fit_simulator, step": Mode(
        db.fit_simulator,
        {"target": PATHS[0], "step": one_step, "start": 0.9, "splits": 2, "n_states": 8, "tol": 0.05},
        lambda found: (found.parameters, found.lower, found.upper),
        {"step": changes(one_step, usual=half_step), "simulate": refused(simulated)},
        ("start", "cost", "discount", "bounds", "confidence", "time_limit", "progress", "rng"),
    ),
    "identify": Mode(
        db.identify, {"data": A, "kernel": Made(drift), "rewards": [0.0, 1.0, 3.0], "replicates": 2, "tol": 1e-3},
        identified,
        RESAMPLED | {
            "cost": changes("indicator"), "discount": changes(0.5), "initial": changes(2),
            "rewards": changes([5.0, 0.0, 1.0]), "replicates": changes(8),
            "confidence": changes(0.5), "rng": changes(5),
            "unseen": changes("uniform", data=GAPS, usual="self-loop"),
        },
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_every_argument_counts(mode, tmp_path):
    assert not faults(MODES[mode], tmp_path)
