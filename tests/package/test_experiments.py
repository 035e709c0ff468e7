"""The experiments: small versions, checked against what is known, and the files they leave."""

import csv
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import gymnasium
import numpy as np
import pytest
from matplotlib.figure import Figure

from command_line import invoke
from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.common.progress import steps
from diffbisim.learning.imitate.control import Control
from experiments import (
    EXPERIMENTS,
    adapted_paths,
    agreement,
    average_cost,
    blocks,
    chosen,
    compression,
    control,
    drift,
    imitation_chain,
    imitation_data,
    imitation_gymnasium,
    imitation_literal,
    imitation_marginals,
    imitation_needs_metric,
    inner_iterations,
    inner_solvers,
    landscape,
    learning_rate,
    mdp_abstraction,
    mdp_metrics,
    mdp_values,
    noisy_blocks,
    run_all,
    warm_start,
)
from experiments.imitators import standing
from experiments.page import SIGN
from experiments.report import DIFFERS, finish, stored


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Without pyotc, installed or not: it takes longer than all else here."""
    monkeypatch.setattr(average_cost, "_peer", lambda: None)


@cache
def ran(module, settings):
    """What an experiment finds: computed once, also for the files that it leaves."""
    return module.run(settings)


def test_landscape_against_closed_form_and_differences():
    outcome = ran(*SMALL["landscape"])
    found = landscape.summary(outcome)
    assert found["largest_error_of_distance"] <= 1e-10
    assert found["largest_error_of_derivative"] <= 1e-6
    assert found["slope_left_of_kink"] == pytest.approx(-found["slope_right_of_kink"], abs=1e-3)
    kink = outcome.derivative[outcome.drift == 1.5]
    assert found["slope_left_of_kink"] - 1e-3 <= kink[0] <= found["slope_right_of_kink"] + 1e-3


def test_adapted_distances_meet_the_closed_form():
    outcome = ran(*SMALL["adapted_paths"])
    found = adapted_paths.summary(outcome)
    assert found["known"] == pytest.approx(1.58015, abs=1e-5)
    assert found["error_of_richardson"] <= 0.02 < found["error_of_finest_grid"]  # order n^-4 and n^-2
    assert found["error_of_most_paths"] < np.abs(outcome.from_paths[0] - outcome.known).mean() / 2
    assert [row["from"] for row in adapted_paths.table(outcome)][1::2] == ["grid of 21", "3,000 paths"]


def test_average_cost_lies_between_its_bounds():
    outcome = ran(*SMALL["average_cost"])
    coupled, by_node, independent = np.moveaxis(outcome.costs, -1, 0)
    assert (by_node <= coupled * (1 + 1e-9)).all()
    assert (coupled <= independent).all()
    assert (outcome.together <= 1 + 1e-12).all()
    assert average_cost.summary(outcome)["largest_relative_gap"] <= 1e-8
    assert outcome.law.sum() == pytest.approx(1.0)
    assert len(average_cost.findings(outcome)) == 3


def test_average_cost_beside_pyotc(monkeypatch):
    """pyotc's answers have columns of their own; here a stand-in that gives up on the larger graph."""

    def peer(P, Q, cost, **options):
        return (None if len(P) > 10 else 100.0), None, None

    monkeypatch.setattr(average_cost, "_peer", lambda: peer)
    outcome = average_cost.run(average_cost.Settings(nodes=(10, 12, 14), seeds=1, peer=12))
    assert np.isnan(outcome.pyotc).tolist() == [[False], [True], [True]]
    rows = average_cost.table(outcome)
    assert [row["time of pyotc (solved)"][-3:] for row in rows] == ["(1)", "(0)", "-"]
    assert "times our time" in average_cost.findings(outcome)[2]
    assert average_cost.plot(outcome).axes[2].get_legend().get_texts()[1].get_text() == "pyotc"


def test_blocks_are_found():
    outcome = ran(*SMALL["blocks"])
    assert outcome.lower == 0
    assert outcome.upper <= 1e-8
    assert outcome.classes.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.allclose(outcome.encoder, np.repeat(np.eye(3), 2, axis=0), atol=1e-9)


def test_solvers_agree():
    outcome = ran(*SMALL["agreement"])
    found = agreement.summary(outcome)
    assert found["largest_difference"] <= 1e-8
    assert max(found["largest_gap_exact"], found["largest_gap_lp"]) <= 1e-9
    assert "all certified intervals overlap" in agreement.findings(outcome)[0]


def test_drift_is_found_from_kernel_and_samples():
    outcome = ran(*SMALL["drift"])
    found = drift.summary(outcome)
    assert found["error"]["from -2"] <= 1e-6
    assert found["error"]["constant steps"] > 1e-6
    assert outcome.intervals.shape == (1, 2)


def test_control_says_who_is_ahead_in_every_seed():
    settings = control.Settings(("MountainCar, position only", "Acrobot"), (control.OURS, control.NEAREST), 3)
    shares = {control.OURS: [(0.9, 0.8, 1.0), (0.5, 0.6, 0.7)], control.NEAREST: [(0.1, 0.7, 0.0), (0.6, 0.1, 0.9)]}
    path = [[-0.5, 0.0], [-0.4, 0.01]]
    runs = {
        (scene, method): [
            {"share": s, "shown": 0.9, "seconds": 1.0, "steps": 6_000, "model_error": 0.1, "curve": [[6_000, s]]}
            | {"path": path}
            for s in shares[method][k]
        ]
        for k, scene in enumerate(settings.scenes)
        for method in settings.methods
    }
    assert control.cases(settings) == list(runs)
    outcome = control.Outcome(settings, runs)
    assert [row["share of the expert's return"] for row in control.table(outcome)] == ["0.90", "0.10", "0.60", "0.60"]
    _, car, acrobot = control.findings(outcome)
    assert "tracking 0.90; behind it in every seed: nearest state" in car
    assert "tracking 0.60; neither: nearest state" in acrobot
    assert len(control.records(outcome)) == 12
    assert len(control.plot(outcome).axes) == 4


def test_control_scores_the_episodes_that_a_lesson_shows():
    scene = control.SCENES["MountainCar"]
    shown, scored = scene.lesson(7).shown.paths, control.expert_walk(scene.env, 5, 7)
    assert all(np.array_equal(a, b) for a, b in zip(shown, scored.paths(), strict=True))
    assert scored.returns.tolist() == [1 - len(path) for path in shown]  # -1 per step


def test_the_world_of_a_learner_can_be_another():
    scene = replace(control.SCENES["CartPole"], changes=(("length", 1.0), ("masspole", 0.3)))
    given = scene.lesson(0, Control(60, 1, demonstrations=1))
    world = given.env.unwrapped
    assert (world.length, world.total_mass, world.polemass_length) == (1.0, 1.3, 0.3)
    assert len(given.shown.paths[0]) == 501  # the expert in its own world
    assert not given.shown.ended[0]
    with pytest.raises(InvalidArgument, match="no number 'weight'"):
        control.changed(given.env, (("weight", 1.0),))


def test_the_learner_can_have_another_environment():
    scene = control.OTHER_WORLDS["MountainCarContinuous, shown by MountainCar"]
    given = scene.lesson(0, Control(60, 1, demonstrations=2))
    shown = control.expert_walk("MountainCar-v0", 2, 0).paths()
    assert all(np.array_equal(own, path[:, :1]) for own, path in zip(given.shown.paths, shown, strict=True))
    assert given.shown.ended == (True, True)
    assert given.env.spec.id == "MountainCarContinuous-v0"
    assert len(given.actions) == 5  # a grid of forces
    assert control.references(scene.world)[1] > 80  # the expert of the learner's own environment


def test_changes_of_other_worlds_take_effect():
    for scene in control.OTHER_WORLDS.values():
        usual = gymnasium.make(scene.env).unwrapped
        own = scene.lesson(0, Control(60, 1, demonstrations=1)).env.unwrapped
        assert all(getattr(own, name) == value != getattr(usual, name) for name, value in scene.changes)


def test_scenes_differ_in_the_number_of_demonstrations():
    for name, scene in control.SCENES.items():
        counts = [control.NUMBERS[f"{name}, {word}"].options for word in ("one demonstration", "twenty demonstrations")]
        assert [replace(own, demonstrations=5) for own in counts] == [scene.options] * 2
    one = control.NUMBERS["MountainCar, one demonstration"].lesson(7).shown.paths
    assert [len(path) for path in one] == [len(control.expert_walk("MountainCar-v0", 1, 7).paths()[0])]
    assert set(control.FULL.scenes) == set(control.ALL_SCENES) - set(control.MUJOCO)


def test_formulas_of_experts_solve_their_tasks():
    low, high = control.references("CartPole-v1")
    assert (low < 40, high) == (True, 500.0)
    assert control.references("MountainCar-v0")[0] == -200.0  # no random walk arrives
    assert control.references("MountainCar-v0")[1] > -125


class Upright(gymnasium.Env):
    """A stand-in for InvertedPendulum-v5 without MuJoCo: its observations, actions, reward, end and time step."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        self.action_space = gymnasium.spaces.Box(-3.0, 3.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.01, 0.01, 4)  # position, angle, and their velocities
        return self.state.copy(), {}

    def step(self, action):
        cart, pole, half, gravity = 10.5, 5.0, 0.3, 9.81
        x, angle, speed, turn = self.state
        push = (100.0 * action[0] + pole * half * turn**2 * np.sin(angle)) / (cart + pole)
        bend = gravity * np.sin(angle) - np.cos(angle) * push
        bend /= half * (4 / 3 - pole * np.cos(angle) ** 2 / (cart + pole))
        speed += 0.04 * (push - pole * half * bend * np.cos(angle) / (cart + pole))
        turn += 0.04 * bend
        self.state = np.array([x + 0.04 * speed, angle + 0.04 * turn, speed, turn])
        fallen = bool(abs(self.state[1]) > 0.2)
        return self.state.copy(), float(not fallen), fallen, False, {}


def test_the_scene_of_mujoco_is_wired(monkeypatch):
    """From the expert to PPO, on a stand-in, since MuJoCo is not among the extras."""
    usual = gymnasium.make

    def make(name):
        return gymnasium.wrappers.TimeLimit(Upright(), 200) if name == "InvertedPendulum-v5" else usual(name)

    monkeypatch.setattr(gymnasium, "make", make)
    for kept in (control.references, control.expert_walk):
        monkeypatch.setattr(control, kept.__name__, cache(kept.__wrapped__))
    low, high = control.references("InvertedPendulum-v5")
    assert (low < 20, high) == (True, 200.0)  # the expert never falls
    settings = control.Settings(("InvertedPendulum",), ("PPO, tracking",), options=Control(60, demonstrations=2))
    found = control.imitation("InvertedPendulum", "PPO, tracking", 0, settings)
    assert (found["steps"], found["shown"]) == (60, 1.0)
    assert found["share"] < 0.5  # it has learned nothing yet


def test_the_step_rule_needs_no_rate():
    outcome = ran(*SMALL["learning_rate"])
    assert outcome.curves["step rule"][-1] <= 1e-7 < outcome.curves["Adam 0.1"][-1]


def test_the_gradient_becomes_exact_with_the_inner_solve():
    outcome = ran(*SMALL["inner_iterations"])
    assert outcome.bias[-1] <= 1e-9 < outcome.bias[0]


def test_warm_starts_and_a_single_loop_save_work():
    outcome = ran(*SMALL["warm_start"])
    work = warm_start.summary(outcome)["inner_work"]
    assert work["single loop"] < work["double loop, warm"] < work["double loop, cold"]


def test_drift_is_found_by_either_inner_solver():
    found = inner_solvers.summary(ran(*SMALL["inner_solvers"]))
    assert found["median_error"]["exact"] <= 1e-6
    assert max(found["largest_error"].values()) <= 0.1
    assert 2 * found["iterations"]["SOMCOT, single loop"] <= found["iterations"]["SOMCOT, double loop"]


def test_marginals_cannot_tell_but_the_distance_can():
    outcome = ran(*SMALL["imitation_marginals"])
    found = imitation_marginals.summary(outcome)
    assert found["largest_difference_of_marginals"] <= 1e-14
    assert found["largest_error_of_distance"] <= 1e-10
    assert found["distance_all_backward"] == pytest.approx(1 - 0.1 / (1 - 0.9**5), abs=1e-10)
    assert all(apart <= 1e-4 for apart in found["states_apart_of_methods"].values())
    foils = [found["distance_of_methods"][name] for name in ("state matching (OT)", "PW-DICE", "SMODICE")]
    assert min(foils) >= 0.5
    assert found["distance_of_methods"]["maximum likelihood"] <= 1e-10
    assert found["distance_of_methods"]["D-BOT"] <= 1e-4


def test_likelihood_leads_on_the_chain_and_errors_shrink_with_the_data():
    """Known dynamics: the error falls with the square root of the data, so 64 times as many leave well under half."""
    few, many = (
        imitation_chain.run(
            imitation_chain.Settings(epsilons=(0.4,), seeds=3, expert_transitions=n, iterations=(1, 100))
        )
        for n in (500, 32_000)
    )
    for key in ((0.4, "known", "maximum likelihood"), (0.4, "known", "D-BOT")):
        assert np.median(many.scores[key], axis=0)[:3] == pytest.approx([0, 0, 0], abs=0.03)
        assert np.median(many.scores[key][:, 0]) <= 0.5 * np.median(few.scores[key][:, 0])
    assert np.median(many.scores[0.4, "known", "PW-DICE"][:, 0]) >= 0.2  # marginals are not enough, at any number
    for outcome in (few, many):
        ours = {
            dynamics: np.median(outcome.scores[0.4, dynamics, "D-BOT"], axis=0) for dynamics in ("known", "estimated")
        }
        for (_, dynamics, name), scores in outcome.scores.items():
            assert np.abs(scores[:, 0] - scores[:, 1]).max() <= 1e-3  # the certified gap of Sinkhorn policy iteration
            if name in ("PW-DICE", "IOSTOM-style"):
                assert (ours[dynamics][[0, 2]] < np.median(scores, axis=0)[[0, 2]]).all()


def test_the_metric_is_ahead_where_likelihood_is_not_enough():
    """Known: in the abstract chain a mixture of the actions reproduces the expert, in the rest no policy does."""
    outcome = ran(*SMALL["imitation_needs_metric"])
    found = imitation_needs_metric.summary(outcome)
    assert len(found) == 6
    assert found["abstract chain"]["D-BOT"]["distance"] <= 1e-3
    assert found["abstract chain"]["D-BOT"]["share"] == pytest.approx(1, abs=1e-3)
    for scene, scores in found.items():
        ours = scores.pop("D-BOT")["distance"]
        assert ours <= 1.001 * min(score["distance"] for score in scores.values()), scene
        assert ours < scores["maximum likelihood"]["distance"], scene
    assert all(len(names) == 7 for names in outcome.refused.values())
    assert set(outcome.refused) == {"other grid", "abstract chain"}


def test_best_responses_cycle_above_the_floor_and_steps_arrive():
    settings = imitation_literal.Settings(epsilons=(0.4,), n_states=4, starts=2, iterations=60)
    outcome = imitation_literal.run(settings)
    printed, literal, steps = (outcome.values[0.4, name] for name in imitation_literal.RULES)
    assert literal[:, 1:].min() >= outcome.floor[0.4] - 1e-6  # no deterministic policy is closer
    assert outcome.floor[0.4] > 0.1
    assert min(imitation_literal.period(run) for run in literal) > 1
    assert (printed[:, -1] > printed[:, 0]).all()  # the wrong way
    assert steps.min(axis=1).max() <= 1e-6


def test_period():
    assert imitation_literal.period(np.tile([0.1, 0.2, 0.3], 8)) == 3
    assert imitation_literal.period(np.linspace(0, 1, 24)) == 0
    assert imitation_literal.period(np.ones(24)) == 1


def test_error_falls_with_the_root_of_the_data_unless_biased():
    outcome = ran(*SMALL["imitation_data"])
    ours, biased = (imitation_data.medians(outcome, name) for name in ("D-BOT", "PW-DICE"))
    assert ours[1] == pytest.approx(0.1 * ours[0], rel=0.6)  # chance: three seeds
    assert biased[1] >= 0.9 * biased[0]


def test_gymnasium_returns_come_close():
    """Known: CliffWalking's best return is -13, its expert deterministic: every state that matters is seen."""
    outcome = ran(*SMALL["imitation_gymnasium"])
    found = imitation_gymnasium.summary(outcome)
    assert outcome.expert_return["CliffWalking-v1"] == pytest.approx(-13)
    for name in outcome.expert_return:
        assert found[f"{name}, D-BOT"]["share_of_return"] >= 0.99
        assert found[f"{name}, D-BOT"]["distance"] <= 0.01
        assert found[f"{name}, D-BOT, simplest"]["distance"] <= 1e-3  # the expert is deterministic
    assert found["CliffWalking-v1, maximum likelihood"]["distance"] <= 1e-6


def test_a_missing_extra_stops_only_what_was_named(tmp_path, monkeypatch, plain):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setattr("experiments.EXPERIMENTS", ("imitation_gymnasium", "blocks"))
    passed, done = (finished for _, finished in run_all(tmp_path) if finished is not None)
    assert passed.verdict == "not run"
    assert passed.why.startswith("this needs Gymnasium")
    assert len(done.files) == 3
    with pytest.raises(MissingExtra):
        list(run_all(tmp_path, ["imitation_gymnasium"]))


def test_without_cvxpy_the_other_methods_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    outcome = imitation_marginals.run(imitation_marginals.Settings(points=3))
    assert "PW-DICE" not in outcome.scores
    assert "maximum likelihood" in outcome.scores
    assert imitation_marginals.findings(outcome)[-1].startswith("not run: PW-DICE, SMODICE, LobsDICE")


def test_compression_stops_at_the_blocks():
    outcome = ran(*SMALL["compression"])
    found = compression.summary(outcome)
    assert found["recommended"] == 3
    assert max(found["learned"]["3"], found["given"]["4"]) <= 1e-6 < found["given"]["2"]
    assert found["random_chains_recovered"] == {"learned": 2, "given": 2}


def test_noisy_blocks_are_found_and_nearer_than_the_averages_tried():
    outcome = ran(*SMALL["noisy_blocks"])
    found = noisy_blocks.summary(outcome)
    assert found["worst_ratio_to_a_competitor"] <= 1
    assert found["runs_with_blocks_recovered"] == 1
    why = noisy_blocks.verdict(outcome)[1]
    assert why.startswith("On one random chain compress is at most at")  # no more than was measured
    assert f"the others that were tried ({', '.join(outcome.methods[1:])})" in why


def test_metrics_of_worlds_are_in_order_and_bound_values():
    outcome = ran(*SMALL["mdp_metrics"])
    for found in mdp_metrics.summary(outcome).values():
        assert found["lax_above_matched"] <= 1e-5
        assert max(found["largest_share"][name] for name in ("Ferns (matched)", "lax")) <= 1 + 1e-3
    assert (
        mdp_metrics.summary(outcome)["FrozenLake 8x8"]["classes"] == 54
    )  # 10 holes and the goal are one, for instance


def test_value_bounds_are_never_violated():
    found = mdp_values.summary(ran(*SMALL["mdp_values"]))
    assert found["violations"] == 0
    assert found["pairs"] == 3 * 3 * 4 * 20


def test_the_best_of_many_candidates_loses_least():
    outcome = ran(*SMALL["mdp_abstraction"])
    loss = mdp_abstraction.summary(outcome)["loss"]
    for size in ("10", "40"):
        assert loss["abstract"][size] <= min(own[size] for own in loss.values())
    assert max(own["40"] for own in loss.values()) <= 1e-9
    (row,) = outcome.bounds
    assert row["loss"] <= row["reward_bound"]
    assert row["loss"] <= row["bound"] <= row["family_bound"]


def test_learning_rates_are_judged_by_their_best_moment():
    """A curve that was at 1e-9 and left again has been as close as the rule."""
    settings = learning_rate.Settings(rates=(0.1,), max_iterations=3)
    curves = {"step rule": [1.0, 1e-9], "Adam 0.1": [1.0, 1e-9, 0.5], "Adam 0.1, annealed": [1.0, 0.1, 0.2]}
    outcome = learning_rate.Outcome(settings, {name: np.array(curve) for name, curve in curves.items()})
    assert learning_rate.verdict(outcome)[0] == DIFFERS
    assert "1e-09 with a constant one and 1e-01 with an annealed one" in learning_rate.findings(outcome)[0]


def test_ties_are_called_ties():
    """Within one percent; within the noise of the seeds (a t interval); everything else is ahead or behind."""
    others = {"tie": np.array([0.2404]), "ahead": np.array([0.2]), "behind": np.array([0.3])}
    assert standing(np.array([0.2401]), others) == (["ahead"], ["tie"])
    ours = np.array([0.1, 0.2, 0.3, 0.4])
    noisy, better = ours + np.array([0.05, -0.04, 0.06, -0.03]), ours - np.array([0.049, 0.05, 0.051, 0.05])
    assert standing(ours, {"noisy": noisy, "better": better}) == (["better"], ["noisy"])
    assert standing(np.array([1e-12]), {"zero too": np.array([3e-9])}) == ([], ["zero too"])


#: Small versions: mostly those that the tests above look into.
SMALL = {
    "drift": (drift, drift.Settings(starts=(-2.0,), n_samples=2_000, seeds=1, replicates=4)),
    "learning_rate": (learning_rate, learning_rate.Settings(rates=(0.1,), max_iterations=60)),
    "inner_iterations": (inner_iterations, inner_iterations.Settings(inner=(1, 12), n_states=6)),
    "warm_start": (warm_start, warm_start.Settings(max_iterations=60, sizes=((12, 6),))),
    "inner_solvers": (
        inner_solvers,
        inner_solvers.Settings(true_drift=1.0, start=-1.0, n_states=6, double=2000, single=2000, seeds=1),
    ),
    "landscape": (landscape, landscape.Settings(points=9, n_states=7)),
    "blocks": (blocks, blocks.Settings(n_blocks=3, block_size=2)),
    "agreement": (agreement, agreement.Settings(sizes=((2, 3), (3, 3)), repeats=1)),
    "imitation_marginals": (imitation_marginals, imitation_marginals.Settings(points=5)),
    "adapted_paths": (adapted_paths, adapted_paths.Settings(grids=(11, 21), paths=(100, 3_000), seeds=2)),
    "average_cost": (average_cost, average_cost.Settings(nodes=(12, 16), seeds=2)),
    "compression": (compression, compression.Settings(sizes=(2, 3, 4), n_blocks=3, block_size=2, restarts=1, seeds=2)),
    "noisy_blocks": (
        noisy_blocks,
        noisy_blocks.Settings(noise=(0.05,), seeds=(0,), n_blocks=3, block_size=3, restarts=1),
    ),
    "imitation_chain": (
        imitation_chain,
        imitation_chain.Settings(seeds=1, expert_transitions=50, iterations=(1, 5)),
    ),
    "imitation_data": (imitation_data, imitation_data.Settings(numbers=(500, 50_000), seeds=3)),
    "imitation_literal": (
        imitation_literal,
        imitation_literal.Settings(n_states=3, starts=2, iterations=12),
    ),
    "imitation_gymnasium": (
        imitation_gymnasium,
        imitation_gymnasium.Settings(("CliffWalking-v1", "FrozenLake-v1"), iterations=30),
    ),
    "control": (
        control,
        control.Settings(methods=(control.OURS,), options=Control(300, 2, demonstrations=1, cells=50)),
    ),
    "mdp_metrics": (mdp_metrics, mdp_metrics.Settings(worlds=("four rooms", "FrozenLake 8x8"))),
    "mdp_values": (mdp_values, mdp_values.Settings(n_states=5, mdps=4, rooms=False)),
    "mdp_abstraction": (mdp_abstraction, mdp_abstraction.Settings(sizes=(10, 40), restarts=4, influences=(1e-2,))),
    "imitation_needs_metric": (imitation_needs_metric, imitation_needs_metric.Settings(size=5, seeds=2, iterations=60)),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_leaves_its_files(name, tmp_path, monkeypatch):
    module, settings = SMALL[name]
    outcome, asked = ran(module, settings), []
    monkeypatch.setattr(module, "run", lambda given: asked.append(given) or outcome)
    finished = finish(module, name, settings, tmp_path)
    assert asked == [settings]
    figure, rows, numbers = finished.files
    assert figure.read_bytes().startswith(b"\x89PNG")
    with rows.open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(module.records(outcome))
    report = json.loads(numbers.read_text(encoding="utf-8"))
    assert {"title", "claim", "verdict", "settings", "summary", "rows", "version", "code"} <= set(report)
    assert finished.claim.endswith(".")
    assert finished.why.endswith(".")
    assert finished.verdict in SIGN
    assert stored(tmp_path, name, settings) == replace(finished, new=False)
    assert all(len(row) == len(finished.header) for row in finished.rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in finished.files)


@pytest.fixture
def plain(monkeypatch):
    """Blocks as a picture without anything on it, which takes a second to draw; it is drawn above."""
    monkeypatch.setattr(blocks, "plot", lambda outcome: Figure())


def reproduce(*arguments, code=0):
    done = invoke("reproduce", *arguments)
    assert done.exit_code == code, done.output
    return done


def test_reproduce_prints_tables_and_places(tmp_path):
    done = reproduce("blocks", "--output", tmp_path / "new" / "folder")
    assert "25 states that behave like 5" in done.stdout
    assert "blocks.png" in done.stdout
    assert "verdict: agrees." in done.stdout
    assert done.stdout.splitlines()[-1].endswith("report.html")
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "blocks.csv", "blocks.json", "blocks.png", "report.html",
    ]  # fmt: skip


def test_all_are_run_in_their_order_and_unknown_names_refused(tmp_path, monkeypatch):
    assert chosen([]) == EXPERIMENTS
    assert chosen(["imitation-chain", "blocks"]) == ("blocks", "imitation_chain")
    done = reproduce("magic", "--output", tmp_path, code=2)
    assert done.stderr.startswith("diffbisim: magic is not an experiment; choose from landscape, blocks")


def test_interrupted_and_started_again_it_goes_on(tmp_path, monkeypatch, plain):
    """The second experiment is interrupted; the next run takes the first from its files and runs only the second."""
    began, small = [], ran(*SMALL["agreement"])

    def watched(settings, run=blocks.run):
        began.append("blocks")
        return run(settings)

    def interrupted(settings):
        began.append("agreement")
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "run", watched)
    monkeypatch.setattr(agreement, "run", interrupted)
    reproduce("blocks", "agreement", "--output", tmp_path, code=130)
    assert not (tmp_path / "agreement.json").exists()
    assert "behave like 5" in (tmp_path / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(agreement, "run", lambda settings: began.append("agreement") or small)
    report = json.loads(reproduce("blocks", "agreement", "--output", tmp_path, "--json").stdout)
    assert began == ["blocks", "agreement", "agreement"]
    assert [entry["new"] for entry in report["experiments"].values()] == [False, True]
    assert "linear program" in (tmp_path / "report.html").read_text(encoding="utf-8")
    reproduce("blocks", "--output", tmp_path, "--fresh")
    assert began[-1] == "blocks"


def test_results_of_other_settings_or_other_code_are_not_taken(tmp_path, monkeypatch, plain):
    settings = SMALL["blocks"][1]
    finish(blocks, "blocks", settings, tmp_path)
    assert stored(tmp_path, "blocks", blocks.Settings()) is None
    assert stored(tmp_path, "blocks") is not None
    (tmp_path / "blocks.png").rename(tmp_path / "gone.png")
    assert stored(tmp_path, "blocks", settings) is None
    (tmp_path / "gone.png").rename(tmp_path / "blocks.png")
    monkeypatch.setattr("experiments.report.code_of_package", lambda: "other")
    assert stored(tmp_path, "blocks", settings) is None
    (tmp_path / "blocks.json").write_text("{broken", encoding="utf-8")
    assert stored(tmp_path, "blocks", settings) is None


def test_full_settings_are_larger():
    assert imitation_chain.FULL.seeds > imitation_chain.Settings().seeds


def test_the_bar_leaves_standard_output_alone(capsys):
    before = sys.stdout
    with steps(True, 2) as begin:
        begin("first")
        assert sys.stdout is before
        begin(None)
        print("a table")
        begin("second")
    assert capsys.readouterr().out == "a table\n"


def test_an_executor_makes_the_same_files(tmp_path, plain):
    with ThreadPoolExecutor(1) as worker:
        for new in (True, False):  # the second time it is there
            (_, begun), (name, made) = run_all(tmp_path / "there", ["blocks"], executor=worker)
            assert (begun, name, made.new) == (None, "blocks", new)
    (_, _), (_, here) = run_all(tmp_path / "here", ["blocks"])
    assert made.rows == here.rows
    assert all(path.exists() for path in (*made.files, tmp_path / "there" / "report.html"))
