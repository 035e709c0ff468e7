"""The experiments: small versions, checked against what is known, and the files they leave."""

import csv
import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from diffbisim.cli import app
from diffbisim.experiments import (
    EXPERIMENTS,
    agreement,
    blocks,
    compression,
    drift,
    imitation_chain,
    imitation_marginals,
    inner_iterations,
    inner_solvers,
    landscape,
    learning_rate,
    noisy_blocks,
    warm_start,
)
from diffbisim.experiments.report import finish


def test_landscape_against_closed_form_and_differences():
    outcome = landscape.run(landscape.Settings(points=9, n_states=7))
    found = landscape.summary(outcome)
    assert found["largest_error_of_distance"] <= 1e-10
    assert found["largest_error_of_derivative"] <= 1e-6
    assert found["slope_left_of_kink"] == pytest.approx(-found["slope_right_of_kink"], abs=1e-3)
    kink = outcome.derivative[outcome.drift == 1.5]
    assert found["slope_left_of_kink"] - 1e-3 <= kink[0] <= found["slope_right_of_kink"] + 1e-3


def test_blocks_are_found():
    outcome = blocks.run(blocks.Settings(n_blocks=3, block_size=2))
    assert outcome.lower == 0
    assert outcome.upper <= 1e-8
    assert outcome.classes.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.allclose(outcome.encoder, np.repeat(np.eye(3), 2, axis=0), atol=1e-9)


def test_solvers_agree():
    outcome = agreement.run(agreement.Settings(sizes=((2, 3), (3, 3)), repeats=1))
    found = agreement.summary(outcome)
    assert found["largest_difference"] <= 1e-8
    assert max(found["largest_gap_exact"], found["largest_gap_lp"]) <= 1e-9
    assert "all certified intervals overlap" in agreement.findings(outcome)[0]


def test_drift_is_found_from_kernel_and_samples():
    outcome = drift.run(drift.Settings(starts=(-2.0,), n_samples=2_000, seeds=1, replicates=4))
    found = drift.summary(outcome)
    assert found["error"]["from -2"] <= 1e-6
    assert found["error"]["constant steps"] > 1e-6
    assert outcome.intervals.shape == (1, 2)


def test_the_step_rule_needs_no_rate():
    outcome = learning_rate.run(learning_rate.Settings(rates=(0.1,), steps=60))
    assert outcome.curves["step rule"][-1] <= 1e-7 < outcome.curves["Adam 0.1"][-1]


def test_the_gradient_becomes_exact_with_the_inner_solve():
    outcome = inner_iterations.run(inner_iterations.Settings(inner=(1, 12), n_states=6))
    assert outcome.bias[-1] <= 1e-9 < outcome.bias[0]


def test_warm_starts_and_a_single_loop_save_work():
    outcome = warm_start.run(warm_start.Settings(steps=60, n_states=6, n_abstract=3))
    work = warm_start.summary(outcome)["inner_work"]
    assert work["single loop"] < work["double loop, warm"] < work["double loop, cold"]


def test_drift_is_found_by_either_inner_solver():
    settings = inner_solvers.Settings(true_drift=1.0, start=-1.0, n_states=6, double=2000, single=2000, seeds=1)
    found = inner_solvers.summary(inner_solvers.run(settings))
    assert found["median_error"]["exact"] <= 1e-6
    assert max(found["largest_error"].values()) <= 0.1
    assert 2 * found["iterations"]["SOMCOT, single loop"] <= found["iterations"]["SOMCOT, double loop"]


def test_marginals_cannot_tell_but_the_distance_can():
    outcome = imitation_marginals.run(imitation_marginals.Settings(points=5))
    found = imitation_marginals.summary(outcome)
    assert found["largest_difference_of_marginals"] <= 1e-14
    assert found["largest_error_of_distance"] <= 1e-10
    assert found["distance_all_backward"] == pytest.approx(1 - 0.1 / (1 - 0.9**5), abs=1e-10)
    assert all(apart <= 1e-4 for apart in found["states_apart_of_methods"].values())
    foils = [found["distance_of_methods"][name] for name in ("state matching (OT)", "PW-DICE", "SMODICE")]
    assert min(foils) >= 0.5
    assert found["distance_of_methods"]["maximum likelihood"] <= 1e-10


def test_likelihood_leads_on_the_chain_and_errors_shrink_with_the_data():
    """Known dynamics: the error falls with the square root of the data, so 64 times as many leave well under half."""
    few, many = (
        imitation_chain.run(imitation_chain.Settings(epsilons=(0.4,), seeds=3, expert_transitions=n))
        for n in (500, 32_000)
    )
    key = (0.4, "known", "maximum likelihood")
    assert np.median(many.scores[key], axis=0)[:2] == pytest.approx([0, 0], abs=0.03)
    assert np.median(many.scores[key][:, 0]) <= 0.5 * np.median(few.scores[key][:, 0])
    assert np.median(many.scores[0.4, "known", "PW-DICE"][:, 0]) >= 0.2  # marginals are not enough, at any number


def test_without_cvxpy_the_other_methods_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    outcome = imitation_marginals.run(imitation_marginals.Settings(points=3))
    assert "PW-DICE" not in outcome.scores
    assert "maximum likelihood" in outcome.scores
    assert imitation_marginals.findings(outcome)[-1].startswith("not run: PW-DICE, SMODICE, LobsDICE")


def test_compression_stops_at_the_blocks():
    outcome = compression.run(compression.Settings(sizes=(2, 3, 4), n_blocks=3, block_size=2, restarts=1, seeds=2))
    found = compression.summary(outcome)
    assert found["recommended"] == 3
    assert max(found["learned"]["3"], found["given"]["4"]) <= 1e-6 < found["given"]["2"]
    assert found["random_chains_recovered"] == {"learned": 2, "given": 2}


def test_noisy_blocks_are_found_and_nearer_than_any_average():
    settings = noisy_blocks.Settings(noise=(0.05,), seeds=(0,), n_blocks=3, block_size=3, restarts=1)
    found = noisy_blocks.summary(noisy_blocks.run(settings))
    assert found["worst_ratio_to_a_competitor"] <= 1
    assert found["runs_with_blocks_recovered"] == 1


SMALL = {
    "drift": (drift, drift.Settings(starts=(1.0,), n_samples=500, seeds=1, replicates=2, constant_steps=3)),
    "learning_rate": (learning_rate, learning_rate.Settings(rates=(0.1,), steps=3)),
    "inner_iterations": (inner_iterations, inner_iterations.Settings(inner=(1, 2), n_states=4)),
    "warm_start": (warm_start, warm_start.Settings(steps=3, n_states=4, n_abstract=2)),
    "inner_solvers": (inner_solvers, inner_solvers.Settings(n_states=4, steps=3, double=100, single=200, seeds=2)),
    "landscape": (landscape, landscape.Settings(points=5, n_states=5)),
    "blocks": (blocks, blocks.Settings(n_blocks=2, block_size=2)),
    "agreement": (agreement, agreement.Settings(sizes=((2, 2), (2, 3)), repeats=1)),
    "imitation_marginals": (imitation_marginals, imitation_marginals.Settings(n_states=3, points=3)),
    "imitation_chain": (imitation_chain, imitation_chain.Settings(seeds=1, expert_transitions=50)),
    "compression": (
        compression,
        compression.Settings(sizes=(1, 2), n_blocks=2, block_size=2, restarts=1, seeds=1),
    ),
    "noisy_blocks": (
        noisy_blocks,
        noisy_blocks.Settings(noise=(0.05,), seeds=(0,), n_blocks=2, block_size=2, restarts=1),
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_leaves_its_files(name, tmp_path):
    module, settings = SMALL[name]
    outcome = module.run(settings)
    finished = finish(module, name, outcome, tmp_path)
    figure, rows, numbers = finished.files
    assert figure.read_bytes().startswith(b"\x89PNG")
    with rows.open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(module.records(outcome))
    assert set(json.loads(numbers.read_text(encoding="utf-8"))) == {"settings", "summary", "version"}
    assert all(len(row) == len(finished.header) for row in finished.rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in finished.files)


def test_reproduce_prints_tables_and_places(tmp_path, monkeypatch):
    monkeypatch.setattr("diffbisim.experiments.EXPERIMENTS", ("blocks",))
    done = CliRunner().invoke(app, ["reproduce", "--output", str(tmp_path / "new" / "folder")])
    assert done.exit_code == 0, done.output
    assert "25 states that behave like 5" in done.stdout
    assert "blocks.png" in done.stdout
    assert (tmp_path / "new" / "folder" / "blocks.csv").exists()
