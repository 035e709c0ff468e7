"""The command line: what it prints, in which stream, and with which exit code."""

import inspect
import io
import json
import os
import runpy
import subprocess
import sys

import numpy as np
import pytest

import diffbisim as db
from command_line import invoke
from diffbisim import cli
from diffbisim.cli.common import options_of

EDGES = "from,to,probability\n"
WEATHER = EDGES + "sunny,sunny,0.8\nsunny,rainy,0.2\nrainy,sunny,0.4\nrainy,rainy,0.6\n"


def run(*arguments, code=0):
    """Standard output and standard error of a command that ends with this code."""
    done = invoke(*arguments)
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
    "iterations": int, "solver": str, "cost": str, "criterion": str, "discount": float, "chains": list,
    "work": dict, "seconds": float, "version": str, "property_bound": float, "meaning": str,
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


def test_average_cost_of_two_walks_is_the_difference_of_their_means(folder):
    report = json.loads(run("distance", "a.npz", "b.npz", "--criterion", "average", "--json")[0])
    walks = db.examples.drift_walk(1.5), db.examples.drift_walk(-0.5)
    means = [walk.stationary_distribution @ walk.rewards for walk in walks]
    assert report["criterion"] == "average"
    assert report["lower"] - 1e-9 <= abs(means[0] - means[1]) <= report["upper"] + 1e-9
    assert "average" in run("distance", "a.npz", "b.npz", "--criterion", "average")[0]


def test_finite_horizons(folder):
    X, Y = db.read_chain("a.npz"), db.read_chain("b.npz")
    np.save("w.npy", [0.0, 0.0, 1.0])
    (folder / "w.csv").write_text("0,0,1\n", encoding="utf-8")
    asked = {
        ("--horizon", "3", "--discount", "1"): {"horizon": 3, "discount": 1},
        ("--horizon", "3"): {"horizon": 3},
        ("--weights", "0, 0,1"): {"weights": [0, 0, 1]},
        ("--weights", "[0,0,1]", "--lump"): {"weights": [0, 0, 1]},
        ("--weights", "w.npy"): {"weights": [0, 0, 1]},
        ("--weights", "w.csv", "--horizon", "2"): {"weights": [0, 0, 1]},
    }
    for options, same in asked.items():
        known = db.distance(X, Y, **same)
        report = json.loads(run("distance", "a.npz", "b.npz", "--json", *options)[0])
        assert report["value"] == pytest.approx(known.value, abs=1e-12)
        assert report["criterion"] == "horizon"
        assert report["horizon"] == known.n_steps
        assert report["weights"] == known.weights.tolist()
    out, _ = run("distance", "a.npz", "b.npz", "--weights", "1,0.5,0.25", "--output", "r.npz")
    assert "reward, 2; weights 1, 0.5, 0.25" in out
    assert db.load("r.npz").weights.tolist() == [1, 0.5, 0.25]


def test_timed_chains_in_files(folder):
    kernels = [[[0.25, 0.75]], [[0.5, 0.5], [0.0, 1.0]]]
    X = db.TimedChain(kernels, rewards=[[0], [1, 2], [3, 4]], names=[["now"], ["a", "b"], ["c", "d"]])
    Y = db.TimedChain([np.eye(2)] * 2, initial=1, rewards=[0.0, 1.0])
    for name, chain in (("x.npz", X), ("y.npz", Y)):
        db.write_chain(chain, name)
    report = json.loads(run("distance", "x.npz", "y.npz", "--discount", 1, "--initial-b", 0, "--json")[0])
    assert report["value"] == pytest.approx(db.distance(X, Y.with_initial(0), discount=1).value, abs=1e-12)
    assert [side["n_states"] for side in report["chains"]] == [[1, 2, 2], [2, 2, 2]]
    out, _ = run("distance", "x.npz", "y.npz", "--discount", 1)
    assert "2 steps, 1 to 2 states" in out
    assert "start now" in out
    assert "contains a TimedChain" in refused("distance", "x.npz", "y.npz", "--rewards-a", "rewards.csv")
    assert "MarkovChain" in refused("lump", "x.npz")


@pytest.fixture
def games(folder):
    """Two MDPs in PRISM's format, of two and of three choices; states 1 and 2 of the first are alike."""
    rng, made = np.random.default_rng(0), []
    for name, n_actions in (("m", 2), ("n", 3)):
        P, r = rng.dirichlet(np.ones(3), (n_actions, 3)), rng.random(3)
        if name == "m":
            P[:, 2], r[2] = P[:, 1], r[1]
        lines = [f"{s} {a} {t} {P[a, s, t]:.17g}" for s in range(3) for a in range(n_actions) for t in range(3)]
        (folder / f"{name}.tra").write_text(f"3 {3 * n_actions} {len(lines)}\n" + "\n".join(lines), encoding="utf-8")
        states = "\n".join(f"{s} {r[s]:.17g}" for s in range(3))
        (folder / f"{name}.srew").write_text(f"3 3\n{states}", encoding="utf-8")
        made.append(db.read_mdp(f"{name}.tra"))
    return made


def test_mdps_are_compared(games):
    M, N = games
    for options, actions in (((), "matched"), (("--actions", "lax"), "lax"), (("--actions", "directed"), "directed")):
        known = db.distance(M, M.with_initial(1), discount=0.8, actions=actions)
        out, _ = run("distance", "m.tra", "m.tra", "--initial-b", "1", "--discount", "0.8", "--json", *options)
        report = json.loads(out)
        assert report["value"] == pytest.approx(known.value, abs=2e-8)
        assert (report["criterion"], report["actions"], report["discount"]) == ("actions", actions, 0.8)
        assert [side["n_actions"] for side in report["chains"]] == [2, 2]
    out, _ = run("distance", "m.tra", "n.tra", "--actions", "lax", "--output", "r.npz")
    assert "reward, lax, discount 0.95" in out
    assert "n.tra: 3 states, 3 actions, 27 transitions, start 0" in out
    assert db.load("r.npz").values == pytest.approx(db.distance(M, N, actions="lax").values, abs=2e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m.tra", "n.tra"), "A has 2 actions and B has 3, so they cannot be matched"),
        (("m.tra", "n.tra", "--actions", "strict"), "--actions 'strict' is unknown; choose one of 'matched', 'lax'"),
        (
            ("m.tra", "a.npz", "--cost", "indicator"),
            "B is a MarkovChain, but the other process is an MDP; give two MDPs",
        ),
        (("a.npz", "b.npz", "--actions", "lax"), "--actions is for two MDPs, but A and B are chains"),
        (("m.tra", "m.tra", "--criterion", "average"), "MDPs can only be compared with --criterion"),
        (("m.tra", "m.tra", "--horizon", "3"), "MDPs can only be compared with --criterion"),
        (("m.tra", "m.tra", "--solver", "lp"), "--solver 'lp' does not support 'actions' problems"),
        (("m.tra", "m.tra", "--initial-a", "7"), "m.tra: --initial-a 7 is not a state"),
        (("a.npz", "b.npz", "--horizon", "0"), "--horizon is 0; it must be at least one step, e.g. --horizon 10"),
        (("a.npz", "b.npz", "--horizon", "3", "--weights", "1,1"), "--weights has 2 entries, but --horizon 3 needs 4"),
        (("a.npz", "b.npz", "--weights", "1,-1"), "--weights[1] is -1"),
        (("a.npz", "b.npz", "--weights", "0,0"), "all 0"),
        (("a.npz", "b.npz", "--weights", "1"), "--weights has shape (1,)"),
        (("a.npz", "b.npz", "--weights", "one"), "--weights one: give one number for each time, such as 1,0.5,0.25"),
        (("a.npz", "b.npz", "--weights", "no.csv"), "no.csv: No such file"),
        (("a.npz", "b.npz", "--horizon", "3", "--criterion", "average"), "has an infinite horizon"),
        (("a.npz", "b.npz", "--horizon", "3", "--discount", "2"), "--discount is 2.0; with a horizon it must lie in"),
        (("a.npz", "b.npz", "--criterion", "total"), "list the terminal pairs in terminal= in Python"),
    ],
)
def test_what_does_not_go_together_is_refused(games, arguments, message):
    assert message in refused("distance", *arguments)


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

    monkeypatch.setattr(db, "distance", interrupted)
    assert "after 1 iterations: 0.25 <= d <= 0.75" in refused("distance", "a.npz", "b.npz", code=130)


def test_lack_of_memory_is_a_line(folder, monkeypatch):
    def too_large(*arguments, **options):
        raise MemoryError("Unable to allocate 75 GiB")

    monkeypatch.setattr(db, "distance", too_large)
    assert "not enough memory: Unable to allocate 75 GiB" in refused("distance", "a.npz", "b.npz")


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("distance", "a.npz", "nowhere.csv"), ("nowhere.csv", "No such file")),
        (("distance", "a.npz", "b.xyz"), ("b.xyz", "extension")),
        (("distance", "weather.csv", "b.npz"), ("weather.csv has no rewards", "--rewards-a")),
        (
            ("distance", "a.npz", "b.npz", "--discount", "1"),
            ("--discount is 1.0", "between 0 and 1, e.g. --discount 0.95"),
        ),
        (("distance", "a.npz", "b.npz", "--solver", "magic"), ("--solver 'magic' is unknown", "'exact', 'lp'")),
        (("distance", "a.npz", "b.npz", "--tol", "-1"), ("--tol is -1.0", "e.g. --tol 1e-8")),
        (("distance", "a.npz", "b.npz", "--cost", "distance"), ("--cost distance", "indicator")),
        (("distance", "a.npz", "b.npz", "--initial-a", "99"), ("a.npz: --initial-a 99 is not a state",)),
        (("distance", "a.npz", "b.npz", "--output", "r.xlsx"), ("r.xlsx", ".npz, .json")),
        (("distance", "a.npz", "b.npz", "--output", "no/r.npz"), ("no/r.npz", "does not exist")),
        (
            ("distance", "a.npz", "weather.csv", "--cost", "indicator"),
            ('--cost "indicator": B has names and A has none; name the states',),
        ),
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
    assert "--unseen is 'guess'" in refused("info", "seen.csv", "--unseen", "guess")


# --- the command line speaks its own language ---------------------------------------------------------------------

ENDS = "state,next_state\na,b\nb,c\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("info", "ends.csv"),
            "ends.csv: 1 of 3 states have no outgoing transition: 'c'; pass --unseen self-loop (they are absorbing), "
            '"uniform" (anything can follow) or "drop" (leave them out), or states=[...] in Python if the numbers are '
            "names",
        ),
        (
            ("info", "ends.csv", "--unseen", "drop"),
            "ends.csv: --unseen drop leaves no state: every path in the data ends; use --unseen self-loop if the last "
            "states are absorbing",
        ),
        (
            ("info", "gap.csv"),
            "gap.csv, line 3: '0,2,b': t = 2 leaves a gap after t = 0 of line 2; t must be consecutive",
        ),
        (("info", "blank.csv"), "blank.csv, line 2: 'a,': next_state is empty; name the state"),
        (("info", "unseen=x.csv"), "unseen=x.csv, line 1: the file is empty; it needs a header line"),
        (
            ("info", "a.npz", "--rewards", "rewards.csv"),
            "a.npz: --rewards names 'sunny', which is not a known state (there are no names); correct the name, or "
            "pass a .npy vector to match by position",
        ),
        (
            ("distance", "weather.csv", "weather.csv", "--rewards-a", "rewards.csv", "--rewards-b", "half.csv"),
            "weather.csv: --rewards-b has no entry for state 'rainy'; add one",
        ),
        (
            ("distance", "a.npz", "b.npz", "--initial-b", "99"),
            "b.npz: --initial-b 99 is not a state; give an index from 0 to 15, or a distribution",
        ),
        (
            ("distance", "a.npz", "b.npz", "--cost", "cost.csv"),
            "--cost has shape (1, 2), expected (n_A, n_B) = (16, 16)",
        ),
        (
            ("distance", "a.npz", "b.npz", "--solver", "somcot", "--max-iterations", "0"),
            "--max-iterations is 0; it must be positive and finite",
        ),
        (
            ("distance", "a.npz", "b.npz", "--solver", "somcot", "--seed", "-1"),
            "--seed must be a non-negative integer or a numpy Generator, not -1",
        ),
        (("compress", "a.npz", "--states", "0"), "--states is 0; it must be at least 1"),
        (("fit", "a.npz", "--cost", "cost.csv"), "--cost cost.csv: use reward or indicator"),
        (
            ("convert", "mdp.tra", "m.npz"),
            "mdp.tra holds an MDP (states have several choices); diffbisim distance, lump and imitate --mdp read it",
        ),
        (("info", "x.foo"), "x.foo: the extension is unknown; use .csv, .tsv, .npz or .tra"),
        (
            ("estimate", "walk.csv", "walk.csv", "--rewards-a", "rewards.csv"),
            "walk.csv: --rewards-a names 'sunny', which is not a known state (the names are 'a', 'b'); correct the "
            "name, or pass a .npy vector to match by position",
        ),
        (
            ("estimate", "walk.csv", "walk.csv", "--cost", "indicator", "--initial-b", "z"),
            "walk.csv: --initial-b 'z' is not a state; give a name, an index from 0 to 1, or a distribution",
        ),
    ],
)
def test_messages_name_files_once_and_options_as_typed(folder, arguments, message):
    for name, text in {
        "ends.csv": ENDS,
        "gap.csv": "episode,t,state\n0,0,a\n0,2,b\n",
        "blank.csv": "state,next_state\na,\n",
        "unseen=x.csv": "",
        "half.csv": "state,reward\nsunny,1\n",
        "cost.csv": "0,1\n",
        "mdp.tra": "1 2 2\n0 0 0 1\n0 1 0 1\n",
        "walk.csv": "episode,t,state\n0,0,a\n0,1,b\n0,2,a\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert refused(*arguments) == f"diffbisim: {message}\n"


def test_every_option_is_known_by_the_argument_it_sets():
    commands = {cli.compress.compress: db.compress, cli.fit.fit: db.fit, cli.imitate.imitate: db.imitate}
    for command, library in commands.items():
        own = {"plot", "as_json", "output", "rewards", "unseen", "initial", "kernel", "env", "mdp", "expert", "rng",
               "constants"}  # fmt: skip
        assert set(options_of(command)) - own <= set(inspect.signature(library).parameters)
    assert options_of(cli.compress.compress)["n_states"] == "--states"
    assert options_of(cli.compress.compress)["rng"] == "--seed"


# --- where a chain starts -------------------------------------------------------------------------------------------


def test_a_table_starts_in_its_first_row_and_info_says_so(folder):
    report = json.loads(run("info", "weather.csv", "--json")[0])
    assert report["start"] == {"n_states": 1, "states": ["sunny"], "from": "the first row; set another with --initial"}
    assert "sunny (the first row; set another with --initial)" in run("info", "weather.csv")[0]
    assert "rainy (--initial)" in run("info", "weather.csv", "--initial", "rainy")[0]
    (folder / "walk.csv").write_text("episode,t,state\n0,0,b\n0,1,a\n0,2,b\n", encoding="utf-8")
    assert "b (starts of episodes)" in run("info", "walk.csv")[0]


def test_a_guess_that_matters_is_a_note(folder):
    turned = EDGES + "rainy,sunny,0.4\nrainy,rainy,0.6\nsunny,sunny,0.8\nsunny,rainy,0.2\n"
    (folder / "turned.csv").write_text(turned, encoding="utf-8")
    arguments = ("distance", "weather.csv", "turned.csv", "--cost", "indicator", "--json")
    out, err = run(*arguments)
    assert err.startswith("diffbisim: note: no initial state is given in weather.csv and turned.csv")
    assert [chain["start"] for chain in json.loads(out)["chains"]] == [["sunny"], ["rainy"]]
    out, err = run(*arguments, "--initial-b", "sunny")
    assert (json.loads(out)["value"], err) == (0, "")
    assert "that of its first row, sunny, is used" in run("convert", "weather.csv", "w.npz")[1]
    for name in ("p.csv", "q.csv"):
        rows = ["a,b", "b,a"] if name == "p.csv" else ["b,a", "a,b"]
        (folder / name).write_text("state,next_state\n" + "\n".join(rows) + "\n", encoding="utf-8")
    arguments = ("estimate", "p.csv", "q.csv", "--cost", "indicator", "--replicates", "20", "--json")
    assert "pass --initial-a and --initial-b" in run(*arguments)[1]
    out, err = run(*arguments, "--initial-a", "a", "--initial-b", "a")
    assert json.loads(out)["value"] == pytest.approx(0, abs=1e-12)
    assert err == ""


# --- what stands beside a .tra file -----------------------------------------------------------------------------------


def test_info_tells_what_stands_beside_a_model(folder):
    (folder / "m.tra").write_text("2 2\n0 1 1\n1 0 1\n", encoding="utf-8")
    (folder / "m.lab").write_text('0="init" 1="deadlock" 2="target"\n1: 0 2\n', encoding="utf-8")
    (folder / "m.sta").write_text("(x,up)\n0:(0,true)\n1:(3,false)\n", encoding="utf-8")
    (folder / "m1.srew").write_text('# Reward structure "time"\n2 1\n0 5\n', encoding="utf-8")
    report = json.loads(run("info", "m.tra", "--json")[0])
    assert report["propositions"] == {"init": 1, "deadlock": 0, "target": 1}
    assert report["variables"] == ["x", "up"]
    assert report["names"] == ["(0, True)", "(3, False)"]
    assert report["reward_structures"] == ['1 "time" (m1.srew)']
    assert report["start"] == {"n_states": 1, "states": ["(3, False)"], "from": "init in m.lab"}
    out, _ = run("info", "m.tra", "--initial", "(0, True)")
    for part in ("init (1), deadlock (0), target (1) states", "x, up", '1 "time" (m1.srew)', "0 to 5", "(0, True)"):
        assert part in out
    (folder / "m2.srew").write_text("2 1\n1 7\n", encoding="utf-8")
    out, _ = run("info", "m.tra")
    for part in ('1 "time" (m1.srew), 2 (m2.srew)', "0 to 5, 2 distinct (time; choose others with --rewards)"):
        assert part in out
    message = refused("lump", "m.tra")
    assert 'choose by name or number, such as --rewards time, from 1 "time" (m1.srew); 2 (m2.srew)' in message
    for chosen, most in (("time", 5), ("2", 7), ("target", 1)):
        assert json.loads(run("info", "m.tra", "--rewards", chosen, "--json")[0])["rewards"]["most"] == most


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
    assert report["start"] == {"n_states": 1, "states": [0], "from": "stored in the file"}
    assert report["names"] is None
    out, _ = run("info", "blocks.npz")
    assert "5 of 25 states" in out
    assert "0 to 4, 5 distinct" in out


def test_lags_that_differ_are_refused_or_converted(folder):
    """Powers of one kernel are one process: at distance zero at the same lag."""
    P = np.array([[0.9, 0.1], [0.3, 0.7]])
    for lag in (2, 6):
        chain = db.MarkovChain(np.linalg.matrix_power(P, lag), rewards=[0, 1], lag=lag)
        db.write_chain(chain, f"every-{lag}.npz")
    message = refused("distance", "every-2.npz", "every-6.npz")
    assert "A has lag 2 and B has lag 6" in message
    assert "compare powers, --lag 6" in message
    report = json.loads(run("distance", "every-2.npz", "every-6.npz", "--lag", "6", "--json")[0])
    assert report["value"] < 1e-8
    assert "--lag is 4.0; it must be a multiple of 6" in refused("distance", "every-2.npz", "every-6.npz", "--lag", "4")
    assert json.loads(run("info", "every-6.npz", "--json")[0])["lag"] == 6
    _, note = run("convert", "every-6.npz", "every-6.csv")
    assert "cannot store the rewards and the lag" in note


def test_constants_are_for_programs(folder):
    db.write_chain(db.MarkovChain(np.eye(2)), "c.npz")
    assert "c.npz: --const is for programs" in refused("info", "c.npz", "--const", "N=2")


def test_info_prints_names_as_they_are(folder):
    (folder / "odd.csv").write_text(EDGES + "[red]x,:smile:,1\n:smile:,[red]x,1\n", encoding="utf-8")
    out, _ = run("info", "odd.csv")
    assert "[red]x" in out
    assert ":smile:" in out
    assert "of period 2" in out


def test_lump_finds_and_writes_the_quotient(folder):
    db.write_chain(db.examples.block_chain(), "blocks.npz")
    report = json.loads(run("lump", "blocks.npz", "--json", "--output", "quotient.npz")[0])
    assert report["n_classes"] == 5
    assert report["assignment"] == np.repeat(np.arange(5), 5).tolist()
    assert db.distance(db.read_chain("blocks.npz"), db.read_chain("quotient.npz")).value <= 1e-8
    out, _ = run("lump", "blocks.npz")
    assert "25 states in 5 classes" in out
    assert "20, 21, 22, 23, 24" in out


def test_lump_of_an_mdp(games):
    report = json.loads(run("lump", "m.tra", "--json")[0])
    assert report["assignment"] == [0, 1, 1]
    assert "3 states in 2 classes" in run("lump", "m.tra")[0]
    assert "m.tra holds an MDP, whose quotient cannot be written" in refused("lump", "m.tra", "-o", "q.npz")


def test_lump_without_rewards_says_so(folder):
    _, err = run("lump", "weather.csv")
    assert err.startswith("diffbisim: note: weather.csv has no rewards")


def test_convert_keeps_the_kernel_and_tells_what_is_lost(folder):
    options = ("--rewards", "rewards.csv", "--initial", "sunny")
    assert run("convert", "weather.csv", "w.npz", *options) == ("", "")
    chain = db.read_chain("w.npz")
    assert chain.names == ("rainy", "sunny")
    assert chain.rewards.tolist() == [0, 1]
    assert chain.initial.tolist() == [0, 1]
    _, err = run("convert", "w.npz", "w.csv")
    assert "cannot store the rewards and the start" in err
    assert np.array_equal(db.read_chain("w.csv").transition, chain.transition)
    _, err = run("convert", "w.npz", "w.tra")
    assert "cannot store the names" in err
    assert np.array_equal(db.read_chain("w.tra").rewards, chain.rewards)


# --- the whole of it ----------------------------------------------------------------------------------------


def test_version(monkeypatch, capsys):
    assert run("--version")[0] == f"diffbisim {db.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["diffbisim", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("diffbisim", run_name="__main__")
    assert capsys.readouterr().out == f"diffbisim {db.__version__}\n"


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


# --- encodings and interrupts ---------------------------------------------------------------------------------


COMMANDS = (
    ("--help",), ("distance", "--help"), ("--version",), ("info", "named.npz"), ("info", "named.npz", "--json"),
    ("distance", "named.npz", "named.npz", "--cost", "indicator"), ("lump", "named.npz"),
    ("distance", "named.npz", "named.npz", "--cost", "indicator", "--json"), ("convert", "named.npz", "c.csv"),
    ("compress", "named.npz", "--states", "1"), ("distance", "named.npz", "näme≤.npz"),
    ("distance", "named.npz", "named.npz", "--initial-a", "wörd→"),
)  # fmt: skip


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_commands_print_in_any_encoding(folder, monkeypatch, encoding):
    chain = db.MarkovChain([[0.9, 0.1], [0.5, 0.5]], rewards=[0.0, 1.0], names=["größe", "日本 ≤"])
    db.write_chain(chain, "named.npz")
    for command in COMMANDS:
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
        with monkeypatch.context() as patch:
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            patch.setattr(sys, "argv", ["diffbisim", *command])
            with pytest.raises(SystemExit) as end:
                cli.main()
        texts = {}
        for name, stream in streams.items():
            stream.flush()
            texts[name] = stream.buffer.getvalue().decode(encoding)
        assert end.value.code == (2 if "näme≤.npz" in command or "--initial-a" in command else 0), (command, texts)
        assert "Traceback" not in texts["stderr"]
        if "--json" in command:
            json.loads(texts["stdout"])
        if command == COMMANDS[3]:
            shown = "日本 ≤" if encoding == "utf-8" else r"\u65e5\u672c <="
            assert shown in texts["stdout"]


def test_the_encoding_of_the_environment(folder):
    done = subprocess.run(
        [sys.executable, "-m", "diffbisim", "distance", "a.npz", "b.npz"], capture_output=True, check=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "LANG": "C"},
    )  # fmt: skip
    assert b"<= d <=" in done.stdout


def test_an_interrupted_somcot_ends_with_130_without_certifying(folder, monkeypatch):
    from diffbisim.solvers.somcot import solver

    def interrupt(state, *_):
        if state.iterations > 100:
            raise KeyboardInterrupt
        return run_chunk(state, *_)

    run_chunk = solver.State.run
    monkeypatch.setattr(solver.State, "run", interrupt)
    monkeypatch.setattr(solver.SomcotCoupling, "bounds", lambda *_: pytest.fail("takes long"))
    err = refused("distance", "a.npz", "b.npz", "--solver", "somcot", code=130)
    assert "interrupted" in err
    X, Y = db.read_chain("a.npz"), db.read_chain("b.npz")
    with pytest.raises(KeyboardInterrupt) as fault:
        db.distance(X, Y, solver="somcot")
    kept = fault.value.result  # nothing is lost
    assert kept.iterations > 100
    assert kept.outcome is db.Status.INTERRUPTED
    assert kept.lower <= walk_distance(0.95) <= kept.upper
