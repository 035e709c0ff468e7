"""Storm reads its explicit files as we do: the same kernels, starts, propositions and rewards."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import stormpy

from chain_files import file
from diffbisim.common.errors import InvalidData
from diffbisim.io.chains import read_chain, read_mdp
from diffbisim.io.prism import read_prism_labels
from diffbisim.processes.lumping import lump
from diffbisim.processes.mdp import MDP
from oracles.bisimilarity import blown_up_mdp, floats
from oracles.kernels import dense

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "long"))

import storm_lumping

FILES = {
    "m.tra": "dtmc\n0 1 0.75\n0 2 0.25\n1 0 1\n2 2 1\n",
    "m.lab": "#DECLARATION\ninit goal deadlock\n#END\n1 init goal\n2 goal\n",
    "m.state.rew": "0 1.5\n2 3\n",
    "m.trans.rew": "0 1 4\n1 0 2\n",
}


def test_storm_reads_the_same_model(tmp_path):
    path, *_ = [file(tmp_path, name, text) for name, text in FILES.items()]
    chain = read_chain(path)
    model = stormpy.build_model_from_explicit(
        path,
        tmp_path / "m.lab",
        state_rewards=str(tmp_path / "m.state.rew"),
        transition_rewards=str(tmp_path / "m.trans.rew"),
    )
    P, R = np.zeros((3, 3)), np.zeros((3, 3))
    rewards = next(iter(model.reward_models.values()))
    for table, matrix in ((P, model.transition_matrix), (R, rewards.transition_rewards)):
        for i in range(3):
            for entry in matrix.get_row(i):
                table[i, entry.column] = entry.value
    assert np.array_equal(dense(chain), P)
    assert np.array_equal(np.flatnonzero(chain.initial), model.initial_states)
    assert np.allclose(chain.rewards, list(rewards.state_rewards) + (P * R).sum(axis=1), rtol=1e-15)
    held = read_prism_labels(tmp_path / "m.lab")
    assert {name: set(states.tolist()) for name, states in held.items()} == {
        name: set(model.labeling.get_states(name)) for name in model.labeling.get_labels()
    }


def test_mdps_of_storm(tmp_path):
    path = file(tmp_path, "m.tra", "MDP\n0 0 0 1\n0 1 0 0.25\n0 1 1 0.75\n1 0 1 1\n1 1 0 1\n")
    file(tmp_path, "m.lab", "#DECLARATION\ninit\n#END\n1 init\n")
    file(tmp_path, "m.pick.trans.rew", "0 1 1 4\n")
    file(tmp_path, "m.time.state.rew", "0 1\n")
    with pytest.raises(InvalidData, match=re.escape("from pick (m.pick.trans.rew); time (m.time.state.rew)")):
        read_mdp(path)
    mdp = read_mdp(path, rewards="pick")
    model = stormpy.build_model_from_explicit(path, tmp_path / "m.lab")
    for state in range(2):
        for choice in range(2):
            row = {e.column: e.value for e in model.transition_matrix.get_row(2 * state + choice)}
            assert mdp.transition[choice].toarray()[state].tolist() == [row.get(j, 0.0) for j in range(2)]
    assert np.array_equal(mdp.initial, [0, 1])
    assert np.array_equal(mdp.rewards, [[0, 3], [0, 0]])
    assert np.array_equal(read_mdp(path, rewards="time").rewards, [1, 0])


@pytest.mark.parametrize("seed", range(8))
def test_storm_finds_as_many_classes_of_an_mdp(tmp_path, seed):
    rng = np.random.default_rng([7, seed])
    kernels, classes = blown_up_mdp(rng, 5, 1 + seed % 3, zeros=0.4)
    rewards = rng.integers(0, 2, (5, len(kernels)))[classes]
    P = [floats(kernel) for kernel in kernels]
    looks = np.unique(rewards, axis=0, return_inverse=True)[1]
    assert storm_lumping.storm_classes(tmp_path, P, looks) == lump(MDP(P, rewards=rewards)).n_states
