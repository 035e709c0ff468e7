"""The experiments: small versions, checked against what is known, and the files they leave."""

import csv
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from diffbisim.cli import app
from diffbisim.experiments import (
    EXPERIMENTS,
    agreement,
    blocks,
    chosen,
    imitation_chain,
    imitation_marginals,
    landscape,
)  # fmt: skip
from diffbisim.experiments.page import SIGN
from diffbisim.experiments.report import finish, stored
from diffbisim.progress import steps


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


SMALL = {
    "landscape": (landscape, landscape.Settings(points=5, n_states=5)),
    "blocks": (blocks, blocks.Settings(n_blocks=2, block_size=2)),
    "agreement": (agreement, agreement.Settings(sizes=((2, 2), (2, 3)), repeats=1)),
    "imitation_marginals": (imitation_marginals, imitation_marginals.Settings(n_states=3, points=3)),
    "imitation_chain": (imitation_chain, imitation_chain.Settings(seeds=1, expert_transitions=50)),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_leaves_its_files(name, tmp_path):
    module, settings = SMALL[name]
    outcome = module.run(settings)
    finished = finish(module, name, settings, tmp_path)
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


def reproduce(*arguments, code=0):
    done = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
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
    assert done.stderr.startswith("diffbisim: magic is no experiment; choose from landscape, blocks")


def test_interrupted_and_started_again_it_goes_on(tmp_path, monkeypatch):
    """The second experiment is interrupted; the next run takes the first from its files and runs only the second."""
    began = []

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
    monkeypatch.setattr(agreement, "run", lambda settings: began.append("agreement") or SMALL_AGREEMENT)
    report = json.loads(reproduce("blocks", "agreement", "--output", tmp_path, "--json").stdout)
    assert began == ["blocks", "agreement", "agreement"]
    assert [entry["new"] for entry in report["experiments"].values()] == [False, True]
    assert "linear program" in (tmp_path / "report.html").read_text(encoding="utf-8")
    reproduce("blocks", "--output", tmp_path, "--fresh")
    assert began[-1] == "blocks"


SMALL_AGREEMENT = agreement.run(agreement.Settings(sizes=((2, 2), (2, 3)), repeats=1))


def test_results_of_other_settings_or_other_code_are_not_taken(tmp_path, monkeypatch):
    settings = SMALL["blocks"][1]
    finish(blocks, "blocks", settings, tmp_path)
    assert stored(tmp_path, "blocks", blocks.Settings()) is None
    assert stored(tmp_path, "blocks") is not None
    (tmp_path / "blocks.png").rename(tmp_path / "gone.png")
    assert stored(tmp_path, "blocks", settings) is None
    (tmp_path / "gone.png").rename(tmp_path / "blocks.png")
    monkeypatch.setattr("diffbisim.experiments.report.code_of_package", lambda: "other")
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
