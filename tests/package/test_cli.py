"""The command line: what it prints, in which stream, and with which exit code."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import diffbisim as db
from diffbisim.cli import app, showing
from diffbisim.cli.structure import structure

EDGES = "from,to,probability\n"
WEATHER = EDGES + "sunny,sunny,0.8\nsunny,rainy,0.2\nrainy,sunny,0.4\nrainy,rainy,0.6\n"


def run(*arguments, code=0):
    """Standard output and standard error of a command that ends with this code."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout, done.stderr


def refused(*arguments, code=2):
    """The one line on standard error; nothing is on standard output."""
    out, err = run(*arguments, code=code)
    assert out == ""
    assert err.startswith("diffbisim: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two walks with a known distance, a weather chain in a table, its rewards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    db.write_chain(db.examples.drift_walk(1.5), "a.npz")
    db.write_chain(db.examples.drift_walk(-0.5), "b.npz")
    (tmp_path / "weather.csv").write_text(WEATHER, encoding="utf-8")
    (tmp_path / "rewards.csv").write_text("state,reward\nsunny,1\nrainy,0\n", encoding="utf-8")
    return tmp_path


def walk_distance(discount):
    """Known: the difference of the mean positions."""
    means = [
        walk.occupancy(discount) @ walk.rewards for walk in (db.examples.drift_walk(1.5), db.examples.drift_walk(-0.5))
    ]
    return abs(means[0] - means[1])


# --- distance -----------------------------------------------------------------------------------------------


SCHEMA = {
    "value": float, "lower": float, "upper": float, "gap": float, "converged": bool, "outcome": str, "status": str,
    "iterations": int, "solver": str, "cost": str, "discount": float, "chains": list, "work": dict, "seconds": float,
    "version": str,
}  # fmt: skip


@pytest.mark.parametrize(
    "options", [(), ("--discount", "0.9"), ("--discount", "0.9999"), ("--lump",), ("--tol", "1e-6")]
)
def test_json_is_all_there_is_and_it_is_right(folder, options):
    out, err = run("distance", "a.npz", "b.npz", "--json", *options)
    report = json.loads(out)
    assert err == ""
    assert {key: type(value) for key, value in report.items()} == SCHEMA
    known = walk_distance(report["discount"])
    assert report["lower"] - 1e-10 <= known <= report["upper"] + 1e-10  # the closed form rounds too
    assert report["lower"] <= report["value"] <= report["upper"]
    assert report["gap"] == report["upper"] - report["lower"]
    assert report["converged"] is True
    assert report["outcome"] == "converged"
    assert report["version"] == db.__version__
    assert [chain["n_states"] for chain in report["chains"]] == [16, 16]


def test_both_solvers_say_the_same(folder):
    starts = ("--initial-a", "rainy", "--initial-b", "sunny")
    arguments = ("distance", "weather.csv", "weather.csv", "--cost", "indicator", *starts, "--json")
    out = [run(*arguments, "--solver", solver)[0] for solver in ("exact", "lp")]
    exact, program = map(json.loads, out)
    # From different starts the coupling may meet: 0.6 of the mass differs again, so d = (1-γ) / (1 - γ · 0.4).
    assert exact["value"] == pytest.approx(0.05 / (1 - 0.95 * 0.4), abs=1e-8)
    assert program["value"] == pytest.approx(exact["value"], abs=1e-8)


def test_people_get_a_table(folder):
    out, err = run("distance", "a.npz", "b.npz")
    assert str(walk_distance(0.95))[:8] in out
    assert "≤ d ≤" in out
    assert "Converged" in out
    assert "a.npz: 16 states, 32 transitions" in out
    assert err == ""


def test_rewards_and_starts_can_be_given(folder):
    arguments = ("weather.csv", "weather.csv", "--rewards-a", "rewards.csv", "--rewards-b", "rewards.csv", "--json")
    assert json.loads(run("distance", *arguments)[0])["value"] == 0
    both = json.loads(run("distance", *arguments, "--initial-a", "sunny", "--initial-b", "[0.5, 0.5]")[0])
    # Half of the mass starts in the same state, the other half apart: half of the distance above.
    assert both["value"] == pytest.approx(0.5 * 0.05 / (1 - 0.95 * 0.4), abs=1e-8)


@pytest.mark.parametrize("suffix", ["npy", "csv", "tsv"])
def test_cost_from_a_file(folder, suffix):
    cost = np.array([[0.0, 3.0], [3.0, 0.0]])
    if suffix == "npy":
        np.save("cost.npy", cost)
    else:
        np.savetxt(f"cost.{suffix}", cost, delimiter="," if suffix == "csv" else "\t")
    starts = ("--initial-a", "rainy", "--initial-b", "sunny", "--json")
    out, _ = run("distance", "weather.csv", "weather.csv", "--cost", f"cost.{suffix}", *starts)
    assert json.loads(out)["value"] == pytest.approx(3 * 0.05 / (1 - 0.95 * 0.4), abs=1e-7)


def test_result_is_saved(folder):
    out, _ = run("distance", "a.npz", "b.npz", "--json", "--output", "r.npz")
    saved = db.load("r.npz")
    assert saved.value == json.loads(out)["value"]
    assert saved.values.shape == (16, 16)
    out, _ = run("distance", "a.npz", "b.npz", "--json", "-o", "r.json")
    assert json.loads((folder / "r.json").read_text(encoding="utf-8")) == json.loads(out)


@pytest.mark.parametrize(
    ("option", "outcome"), [(("--tol", "1e-17"), "rounding"), (("--max-iterations", "1"), "iterations")]
)
@pytest.mark.parametrize("as_json", [True, False])
def test_not_converged_has_its_own_code_and_true_bounds(folder, option, outcome, as_json):
    out, err = run("distance", "a.npz", "b.npz", *option, *["--json"] * as_json, code=3)
    assert err.startswith("diffbisim: not converged. Stopped")
    assert err.count("\n") == 1
    if as_json:
        report = json.loads(out)
        assert report["converged"] is False
        assert report["outcome"] == outcome
        assert report["lower"] <= walk_distance(0.95) <= report["upper"]
    else:
        assert "≤ d ≤" in out


def test_interrupt_tells_what_is_known(folder, monkeypatch):
    def interrupted(*arguments, callback, **options):
        callback({"lower": 0.25, "upper": 0.75})
        raise KeyboardInterrupt

    monkeypatch.setattr(showing, "distance", interrupted)
    assert "after 1 iterations: 0.25 <= d <= 0.75" in refused("distance", "a.npz", "b.npz", code=130)


def test_lack_of_memory_is_a_line(folder, monkeypatch):
    def too_large(*arguments, **options):
        raise MemoryError("Unable to allocate 75 GiB")

    monkeypatch.setattr(showing, "distance", too_large)
    assert "not enough memory: Unable to allocate 75 GiB" in refused("distance", "a.npz", "b.npz")


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("distance", "a.npz", "nowhere.csv"), ("nowhere.csv", "No such file")),
        (("distance", "a.npz", "b.xyz"), ("b.xyz", "extension")),
        (("distance", "weather.csv", "b.npz"), ("weather.csv has no rewards", "--rewards-a")),
        (("distance", "a.npz", "b.npz", "--discount", "1"), ("discount is 1.0", "between 0 and 1")),
        (("distance", "a.npz", "b.npz", "--solver", "magic"), ("'magic' is not known", "'exact', 'lp'")),
        (("distance", "a.npz", "b.npz", "--tol", "-1"), ("tol is -1.0",)),
        (("distance", "a.npz", "b.npz", "--cost", "distance"), ("--cost distance", "indicator")),
        (("distance", "a.npz", "b.npz", "--initial-a", "99"), ("initial = 99 is no state",)),
        (("distance", "a.npz", "b.npz", "--output", "r.xlsx"), ("r.xlsx", ".npz, .json")),
        (("distance", "a.npz", "b.npz", "--output", "no/r.npz"), ("no/r.npz", "no folder")),
        (("distance", "a.npz", "weather.csv", "--cost", "indicator"), ("has labels", "label both")),
        (("info", "."), ("extension",)),
        (("info", "weather.csv", "--rewards", "weather.csv"), ("weather.csv, line 1", "state,reward")),
        (("lump", "a.npz", "--tol", "2"), ("tol is 2.0",)),
        (("convert", "a.npz", "a.docx"), ("a.docx", ".tra")),
    ],
)
def test_error_is_one_line_with_code_2(folder, arguments, parts):
    message = refused(*arguments)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("rows", "line", "part"),
    [
        ("a,b,1\nb,a,0.5\n", 3, "out of state 'b' sum to 0.5"),
        ("a,b,1\nb,a,much\n", 3, "probability must be a number"),
        ("a,b,1\nb,a\n", 3, "expected 3 fields"),
        ("a,b,1\n\nb,a,1\nb,a,1\n", 5, "repeats the transition of line 4"),
    ],
)
def test_broken_file_is_named_with_its_line(folder, rows, line, part):
    (folder / "broken.csv").write_text(EDGES + rows, encoding="utf-8")
    for command in (("info",), ("lump",), ("distance", "a.npz")):
        message = refused(*command, "broken.csv")
        assert f"broken.csv, line {line}: " in message
        assert part in message


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [("0,1\n1,x\n", 2, "numbers only"), ("0,1\n\n1\n", 3, "expected 2 numbers"), ("\n", 1, "empty")],
)
def test_broken_cost_is_named_with_its_line(folder, text, line, part):
    (folder / "cost.csv").write_text(text, encoding="utf-8")
    message = refused("distance", "a.npz", "b.npz", "--cost", "cost.csv")
    assert f"cost.csv, line {line}" in message
    assert part in message


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [("state,reward\nsunny,1\nsunny,2\n", 3, "already has a reward"), ("state,reward\nsunny,x\n", 2, "number")],
)
def test_broken_rewards_are_named_with_their_line(folder, text, line, part):
    (folder / "r.csv").write_text(text, encoding="utf-8")
    message = refused("info", "weather.csv", "--rewards", "r.csv")
    assert f"r.csv, line {line}" in message
    assert part in message


def test_wrong_array_is_named(folder):
    (folder / "cost.npy").write_text("not an array", encoding="utf-8")
    assert "cost.npy" in refused("distance", "a.npz", "b.npz", "--cost", "cost.npy")


def test_unseen_states_are_decided_on(folder):
    (folder / "seen.csv").write_text("state,next_state\n0,1\n1,2\n2,1\n2,3\n", encoding="utf-8")
    assert "seen.csv" in refused("info", "seen.csv")
    assert "self-loop" in refused("info", "seen.csv")
    report = json.loads(run("info", "seen.csv", "--unseen", "self-loop", "--json")[0])
    assert (report["n_states"], report["absorbing"]) == (4, {"n_states": 1, "states": [3]})
    assert json.loads(run("info", "seen.csv", "--unseen", "drop", "--json")[0])["n_states"] == 3
    assert "unseen is 'guess'" in refused("info", "seen.csv", "--unseen", "guess")


# --- info, lump, convert ------------------------------------------------------------------------------------


def test_info_of_a_known_chain(folder):
    chain = db.examples.block_chain()
    db.write_chain(chain, "blocks.npz")
    report = json.loads(run("info", "blocks.npz", "--json")[0])
    assert (report["n_states"], report["n_transitions"]) == (25, chain.n_transitions)
    assert report["rewards"] == {"least": 0, "most": 4, "distinct": 5}
    assert report["communicating_classes"] == {"total": 1, "closed": 1, "periods": [1]}
    assert report["lumps_to"]["n_classes"] == 5
    assert report["lumps_to"]["residual"] < 1e-12
    assert report["start"] == {"n_states": 1, "states": [0]}
    assert report["labels"] is None
    out, _ = run("info", "blocks.npz")
    assert "5 of 25 states" in out
    assert "0 to 4, 5 distinct" in out


def test_info_prints_labels_as_they_are(folder):
    (folder / "odd.csv").write_text(EDGES + "[red]x,:smile:,1\n:smile:,[red]x,1\n", encoding="utf-8")
    out, _ = run("info", "odd.csv")
    assert "[red]x" in out
    assert ":smile:" in out
    assert "of period 2" in out


def periods_by_powers(P):
    """Period of each closed class, from the lengths k up to n² at which a state can return."""
    n = len(P)
    step, reach, power = P > 0, np.eye(n, dtype=bool) | (P > 0), np.eye(n, dtype=bool)
    for _ in range(n):
        reach = reach | (reach @ reach)
    returns = [[] for _ in range(n)]
    for k in range(1, 2 * n * n + 1):
        power = power @ step
        for x in range(n):
            if power[x, x]:
                returns[x].append(k)
    closed = [x for x in range(n) if all(reach[y, x] for y in np.flatnonzero(reach[x]))]
    first = [x for x in closed if not any(reach[x, y] and y < x for y in closed)]
    return sorted(int(np.gcd.reduce(returns[x])) for x in first), int(reach[0].sum())


@pytest.mark.parametrize("seed", range(12))
def test_structure_against_powers_of_the_kernel(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    P = (rng.random((n, n)) < 0.2).astype(float)
    P[np.arange(n), rng.integers(0, n, n)] = 1.0
    found = structure(db.MarkovChain(P / P.sum(axis=1, keepdims=True)))
    assert (sorted(found.periods.tolist()), found.reachable) == periods_by_powers(P)
    assert found.absorbing.tolist() == [x for x in range(n) if P[x, x] and P[x].sum() == 1]


def test_structure_of_a_cycle():
    found = structure(db.examples.cycle(6))
    assert (found.n_classes, found.periods.tolist(), found.absorbing.size) == (1, [6], 0)


def test_lump_finds_and_writes_the_quotient(folder):
    db.write_chain(db.examples.block_chain(), "blocks.npz")
    report = json.loads(run("lump", "blocks.npz", "--json", "--output", "quotient.npz")[0])
    assert report["n_classes"] == 5
    assert report["labels"] == np.repeat(np.arange(5), 5).tolist()
    assert db.distance(db.read_chain("blocks.npz"), db.read_chain("quotient.npz")).value <= 1e-8
    out, _ = run("lump", "blocks.npz")
    assert "25 states in 5 classes" in out
    assert "20, 21, 22, 23, 24" in out


def test_lump_without_rewards_says_so(folder):
    _, err = run("lump", "weather.csv")
    assert err.startswith("diffbisim: note: weather.csv has no rewards")


def test_convert_keeps_the_kernel_and_tells_what_is_lost(folder):
    options = ("--rewards", "rewards.csv", "--initial", "sunny")
    assert run("convert", "weather.csv", "w.npz", *options) == ("", "")
    chain = db.read_chain("w.npz")
    assert chain.labels == ("rainy", "sunny")
    assert chain.rewards.tolist() == [0, 1]
    assert chain.initial.tolist() == [0, 1]
    _, err = run("convert", "w.npz", "w.csv")
    assert "cannot hold the rewards and the start" in err
    assert np.array_equal(db.read_chain("w.csv").transition, chain.transition)
    _, err = run("convert", "w.npz", "w.tra")
    assert "cannot hold the labels" in err
    assert np.array_equal(db.read_chain("w.tra").rewards, chain.rewards)


# --- the whole of it ----------------------------------------------------------------------------------------


def test_version():
    assert run("--version")[0] == f"diffbisim {db.__version__}\n"


@pytest.mark.parametrize("command", ["distance", "info", "lump", "convert", "reproduce"])
def test_help_has_an_example(command):
    assert f"Example: diffbisim {command} " in " ".join(run(command, "--help")[0].split())


def test_as_a_process(folder):
    """Streams and exit codes as a shell sees them."""

    def process(*arguments):
        code = "from diffbisim.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)

    good = process("distance", "a.npz", "b.npz", "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["value"] == pytest.approx(walk_distance(0.95), abs=1e-6)
    bad = process("distance", "a.npz", "nowhere.npz")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "diffbisim: nowhere.npz: No such file or directory\n"
