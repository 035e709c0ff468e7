"""Storm's own models: files and programs are read as Storm reads them; bounds hold against its model checker."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import stormpy
import stormpy.examples.files
from stormpy.io import export_to_drn

import diffbisim as db
from chain_files import file
from diffbisim.common.errors import InvalidData
from diffbisim.io.chains import read_model
from diffbisim.io.storm import read_storm
from oracles.kernels import dense

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "long"))

import storm_bounds

FILES = Path(stormpy.examples.files.testfile_dir)
PROGRAMS = [
    ("dtmc/die.pm", None),
    ("dtmc/brp.pm", "N=3,MAX=2"),
    ("mdp/two_dice.nm", None),
    ("mdp/tiny_rewards.nm", None),
]


def built(name, constants):
    program = stormpy.parse_prism_program(FILES / name)
    if constants:
        program, _ = stormpy.instantiate_constants(program, constants)
    return stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))


@pytest.mark.parametrize(("name", "constants"), PROGRAMS)
def test_programs_objects_and_files_are_the_same_model(tmp_path, name, constants):
    model = built(name, constants)
    export_to_drn(model, tmp_path / "m.drn")
    ways = [read_storm(FILES / name, constants), read_storm(tmp_path / "m.drn")]
    held = [db.as_chain(model, unseen="repeat", rewards="init")]
    for found in ways:
        assert (found.n_states, found.owner.size) == (model.nr_states, model.nr_choices)
        kernel = np.zeros((model.nr_choices, model.nr_states))
        kernel[found.row, found.target] = found.probability
        for c in range(model.nr_choices):
            row = {entry.column: entry.value for entry in model.transition_matrix.get_row(c)}
            assert kernel[c].nonzero()[0].tolist() == sorted(row)
            assert np.allclose(kernel[c][sorted(row)], [row[t] for t in sorted(row)], rtol=1e-9)
        assert {k: set(v.tolist()) for k, v in found.propositions.items() if v.size} == {
            k: set(model.labeling.get_states(k))
            for k in model.labeling.get_labels()
            if set(model.labeling.get_states(k))
        }
        for own, paid in zip(model.reward_models.values(), found.rewards.values(), strict=True):
            assert np.allclose(paid, own.state_action_rewards if own.has_state_action_rewards else own.state_rewards)
        held.append(db.as_chain(found, unseen="repeat", rewards="init"))
    assert len({repr(process) for process in held}) == 1
    assert len({process.names for process in held}) == 1


def test_choices_that_a_state_lacks_are_not_invented():
    """The least and the greatest discounted reward of the MDP with repeated choices are Storm's of the MDP as it is."""
    model = read_storm(FILES / "mdp/two_dice.nm")
    with pytest.raises(InvalidData, match=re.escape("has no choice 1 (missing choices: 84)")):
        db.as_chain(model)
    mdp = db.as_chain(model, unseen="repeat")
    checked = storm_bounds.written(model, storm_bounds.paid(model, "coinflips"))
    for sign, formula in ((1, "Rmax=? [Cdiscount=0.9]"), (-1, "Rmin=? [Cdiscount=0.9]")):
        signed = db.MDP(mdp.transition, rewards=sign * mdp.rewards)
        assert sign * best(signed, 0.9) == pytest.approx(storm_bounds.checked(checked, formula), rel=1e-5)


def best(mdp, γ):
    """The greatest discounted reward from state 0, by value iteration."""
    r = mdp.rewards if mdp.rewards.ndim == 2 else np.repeat(mdp.rewards[:, None], mdp.n_actions, axis=1)
    V = np.zeros(mdp.n_states)
    for _ in range(300):
        V = np.max([r[:, a] + γ * (P @ V) for a, P in enumerate(mdp.transition)], axis=0)
    return V[0]


@pytest.mark.parametrize(("name", "constants"), [PROGRAMS[0], PROGRAMS[2]])
def test_property_bounds_hold_against_storm(name, constants):
    rows = list(storm_bounds.compare(name, constants, seed=1))
    assert rows
    for what, certified, found in rows:
        assert found <= certified + 1e-6 * max(1.0, certified), what


DRN = """// Exported by storm
@type: MDP
@parameters

@reward_models
steps heads
@nr_states
2
@nr_choices
3
@model
state 0 [1, 0] init
\taction go [0, 0.5]
\t\t0 : 1/4
\t\t1 : 0.75
\taction stay
\t\t0 : 1
state 1 [0, 0] goal "far away"
\taction stay
\t\t1 : 1
"""


def test_what_a_drn_file_says(tmp_path):
    path = file(tmp_path, "m.drn", DRN.replace('"far away"', "far"))
    mdp = db.read_mdp(path, rewards="heads", unseen="repeat")
    assert mdp.actions == ("go", "stay")
    assert [dense(db.MarkovChain(P)).tolist() for P in mdp.transition] == [[[0.25, 0.75], [0, 1]], [[1, 0], [0, 1]]]
    assert mdp.rewards.tolist() == [[0.5, 0], [0, 0]]
    assert read_model(path, rewards="steps", unseen="self-loop").rewards.tolist() == [1, 0]
    assert read_model(path, rewards="goal", unseen="uniform").rewards.tolist() == [0, 1]
    with pytest.raises(InvalidData, match=re.escape("state 1 has no action 'go' (missing choices: 1)")):
        db.read_mdp(path, rewards="goal")
    with pytest.raises(InvalidData, match="has 2 reward structures; choose one by name"):
        db.read_mdp(path, unseen="repeat")
    with pytest.raises(InvalidData, match=r"holds an MDP .*; read it with read_mdp"):
        db.read_chain(path, rewards="goal")


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("@type: MDP", "@type: CTMC", 2, "only DTMC and MDP"),
        ("@type: MDP", "@type: DTMC", 16, "state 0 has a second choice, but the header says DTMC"),
        ("@parameters\n", "@parameters\np", 4, "the model has parameters"),
        ("1/4", "0.3", 13, "sum to 1.05"),
        ("1/4", "p", 14, "'p' is not a number"),
        ("1/4", "[0.1, 0.2]", 14, 'expected "state"'),
        ("\t\t1 : 0.75", "\t\t7 : 0.75", 15, "a state from 0 to 1"),
        ("state 1", "state 2", 18, "expected state 1 of 2"),
        ("@nr_states\n2", "@nr_states\n3", 20, "announces 3 states, but 2 follow"),
        ("[1, 0]", "[1, 0, 2]", 12, "3 rewards for 2 reward structures"),
        ("@model", "@moddel", 20, "there is no @model"),
    ],
)
def test_lines_of_drn_files_are_named(tmp_path, old, new, line, why):
    with pytest.raises(InvalidData, match=re.escape(why)) as caught:
        read_storm(file(tmp_path, "m.drn", DRN.replace(old, new, 1)))
    assert caught.value.line == line


def test_programs_that_storm_cannot_build(tmp_path):
    with pytest.raises(InvalidData, match=r'Storm cannot build it \(.*pass constants as constants="N=16"'):
        db.read_chain(FILES / "dtmc/brp.pm")
    with pytest.raises(FileNotFoundError):
        db.read_chain(tmp_path / "no.pm")


def test_the_command_line_says_which_parts_of_a_model_are_not_used(tmp_path):
    """Storm tells two versions of the coin protocol apart by a proposition; their constant rewards do not."""
    from command_line import invoke

    text = (FILES / "mdp/coin2-2.nm").read_text(encoding="utf-8")
    fair, bent = (
        file(tmp_path, name, text.replace("0.5 : (coin1'=0)", f"{p} : (coin1'=0)").replace("+ 0.5 :", f"+ {1 - p} :"))
        for name, p in (("fair.nm", 0.5), ("bent.nm", 0.45))
    )
    formula = 'Pmax=? [F "finished" & "all_coins_equal_1"]'
    likely = []
    for path in (fair, bent):
        program = stormpy.parse_prism_program(path)
        model = stormpy.build_model(program, stormpy.parse_properties(formula, program))
        found = stormpy.model_checking(model, stormpy.parse_properties(formula, program)[0])
        likely.append(found.get_value(model.initial_states[0]))
    assert abs(likely[0] - likely[1]) > 0.1
    said = invoke("distance", fair, bent, "--unseen", "repeat", "--json")
    report = json.loads(said.stdout)
    assert report["upper"] == 0
    assert "--cost reward is 0 for every pair of states, since all rewards of A and of B are equal" in report["note"]
    for side, path in (("a", fair), ("b", bent)):
        note = f"{path}: its rewards are 'steps', the only ones, which are 1 in every state"
        assert note in said.stderr
        assert (
            "its propositions 'agree', 'all_coins_equal_0', 'all_coins_equal_1', 'finished' are not used" in said.stderr
        )
        assert f"choose what to compare, such as --rewards-{side} agree" in said.stderr
    info = invoke("info", fair, "--unseen", "repeat")
    for part in ("1 in every state", "finished (8)", "agree (154)", "reward structures  steps", "actions            2"):
        assert part in info.stdout
    by_name = [db.read_mdp(path, rewards="all_coins_equal_1", unseen="repeat") for path in (fair, bent)]
    assert db.distance(*by_name, tol=1e-3).lower > 0
