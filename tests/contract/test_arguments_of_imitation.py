"""No argument is ignored by ``imitate``: known MDPs, totals, modules, environments, and Box observations.

The entries of a mode are explained in tests/arguments.py.
"""

import gymnasium
import numpy as np
import pytest

import diffbisim as db
from arguments import Log, Made, Mode, changes, faults, honored, refused
from diffbisim.learning.imitate.control import Control
from diffbisim.learning.imitate.environment import Sampling
from diffbisim.processes.environments import as_env

rng = np.random.default_rng(20261118)
KERNELS = rng.dirichlet(np.ones(4), (2, 4))
MDP = db.MDP(KERNELS, rewards=[0.0, 1.0, 3.0, 2.0], initial=[0.5, 0.5, 0, 0])
EXPERT = db.MarkovChain(
    MDP.induced_chain(rng.dirichlet(np.ones(2), 4)).transition, initial=MDP.initial, rewards=MDP.rewards
)
PATHS = [EXPERT.sample(30, rng=k) for k in range(4)]
ENDING = 0.8 * KERNELS
ENDING[:, :, 3] += 0.2
ENDING[:, 3] = np.eye(4)[3]
ENDS = db.MDP(ENDING, initial=[0.5, 0.5, 0, 0])
LEAVES = ENDS.induced_chain(rng.dirichlet(np.ones(2), 4))
UP = np.linspace(0.0, 1.0, 11)[:, None]


class Line(gymnasium.Env):
    """s' = s + a on a line; a second coordinate is the state before."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,))
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.s = 0, np.array([self.np_random.uniform(-0.1, 0.1), 0.0])
        return self.s.copy(), {}

    def step(self, action):
        self.t += 1
        self.s = np.array([self.s[0] + 0.1 * (action - 1), self.s[0]])
        return self.s.copy(), 1.0, False, self.t >= 12, {}


def module():
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(2, 2)


def found(result):
    d = result.distance
    return result.policy, d.value, result.outcome.name, len(result.history), result.history[-1]["value"]


def acted(result):
    walked = result.walk(Line(), 2, rng=0)
    rows = [(row["steps"], row["model_error"], row.get("distance", 0.0)) for row in result.history]
    return rows, walked.states, walked.actions


def backward(states):
    """The first coordinate, with the opposite sign."""
    return -states[:, :1]


WATCHED = {
    "callback": honored(lambda path: Log(), len),
    "progress": honored(lambda path: Log(), len),
    "checkpoint": honored(lambda path: path / "run.npz", lambda file: file.exists()),
}
TABLE = np.full((4, 2), [0.3, 0.7])
KNOWN = WATCHED | {
    "cost": changes("reward"),
    "discount": changes(0.5),
    "criterion": changes("average"),
    "horizon": changes(3),
    "weights": changes([1.0, 0.0, 2.0]),
    "terminal": refused(np.eye(4, dtype=bool)),
    "rng": changes(5, update="sampled"),
    "policy": changes(TABLE),
    "features": refused(np.ones((4, 2))),
    "update": changes("gradient"),
    "attainable": changes(True, max_iterations=25),
    "max_iterations": changes(2),
    "tol": changes(0.9),
    "solver": changes(db.solvers.Exact(max_iterations=1)),
    "simplest": changes(True, expert=PATHS),
    "sampling": refused(Sampling()),
}
SHORT = {"max_iterations": 5, "attainable": False}
FEW = Sampling(steps=60, rounds=2, iterations=1, resets=5)
BOX = {
    "cost": "reward", "criterion": "average", "horizon": 5, "weights": [1.0], "terminal": [1.0], "update": "gradient",
    "attainable": True, "max_iterations": 7, "tol": 1e-3, "solver": "exact", "simplest": True, "every": 3,
}  # fmt: skip
EVERY = ("every",)  # test_checkpoints_are_written_as_often_as_asked
MODES = {
    "known": Mode(db.imitate, {"mdp": MDP, "expert": EXPERT, **SHORT}, found, KNOWN, EVERY),
    "total": Mode(
        db.imitate,
        {"mdp": ENDS, "expert": LEAVES, "criterion": "total", **SHORT},
        found,
        {
            "discount": refused(0.5),
            "horizon": refused(3),
            "weights": refused([1.0]),
            "terminal": changes([(3, 3), (2, 2)]),
            "simplest": refused(True),
            "update": refused("sampled"),
            "policy": changes(TABLE),
            "cost": changes(1.5 - np.eye(4) * 1.5),
        },
        (*KNOWN, *EVERY),
    ),
    "module": Mode(
        db.imitate,
        {"mdp": MDP, "expert": EXPERT, "policy": Made(module), "features": rng.random((4, 2)), **SHORT},
        found,
        {"features": changes(rng.random((4, 2))), "simplest": refused(True, expert=PATHS), "tol": changes(0.9)},
        (*KNOWN, *EVERY),
    ),
    "average": Mode(
        db.imitate,
        {"mdp": MDP, "expert": EXPERT, "criterion": "average", **SHORT},
        found,
        {"discount": refused(0.5), "horizon": refused(3), "weights": refused([1.0])},
        (*KNOWN, *EVERY),
    ),
    "weights": Mode(
        db.imitate,
        {"mdp": MDP, "expert": EXPERT, "weights": [1.0, 2.0], **SHORT},
        found,
        {"discount": refused(0.5), "horizon": refused(3), "criterion": refused("total")},
        (*KNOWN, *EVERY),
    ),
    "environment": Mode(
        db.imitate,
        {"mdp": Made(lambda: as_env(MDP, 30)), "expert": PATHS, "sampling": FEW, **SHORT},
        found,
        KNOWN
        | {
            "cost": changes(rng.random((4, 4))),
            "criterion": refused("average"),
            "horizon": refused(3),
            "weights": refused([1.0, 1.0]),
            "rng": changes(5),
            "simplest": changes(True, expert=[[0, 1, 3], [1, 2, 0]]),
            "sampling": changes(Sampling(steps=90, rounds=3, iterations=1, resets=5)),
        },
        EVERY,
    ),
    "Box": Mode(
        db.imitate,
        {"mdp": Made(Line), "expert": [UP], "features": [0], "sampling": Control(steps=90, rounds=3, cells=20)},
        acted,
        {name: refused(value) for name, value in BOX.items()}
        | WATCHED
        | {
            "discount": changes(0.2),
            "rng": changes(5),
            "policy": changes("markov"),
            "features": changes(backward),
            "sampling": changes(Control(steps=90, rounds=2, cells=20)),
        },
    ),
    "Box, on cells": Mode(
        db.imitate,
        {
            "mdp": Made(Line), "expert": [UP], "features": [0], "policy": "markov",
            "sampling": Control(steps=90, rounds=3, cells=20),
        },
        acted,
        {"discount": changes(0.05), "rng": changes(5), "features": changes(backward)},
        (*BOX, *WATCHED),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_every_argument_counts(mode, tmp_path):
    assert not faults(MODES[mode], tmp_path)


@pytest.mark.parametrize("every", [1, 3])
def test_checkpoints_are_written_as_often_as_asked(every, tmp_path):
    file, written = tmp_path / "run.npz", []
    db.imitate(MDP, EXPERT, checkpoint=file, every=every, callback=lambda row: written.append(file.exists()), **SHORT)
    assert written == [k >= every for k in range(5)]
