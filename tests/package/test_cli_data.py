"""Commands for people with data, and the manners that all commands share."""

import gzip
import json
import re
import shlex

import gymnasium
import numpy as np
import pytest
from typer.main import get_command

import diffbisim as db
from command_line import invoke
from diffbisim.cli import app
from diffbisim.cli.common import interval_note, with_option_names
from diffbisim.processes.environments import from_env, rollouts
from diffbisim.processes.planning import optimal_policy

COMMANDS = get_command(app).commands


def run(*arguments, code=0):
    done = invoke(*arguments)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout, done.stderr


def table_of(walks):
    rows = [f"{k},{t},{s}\n" for k, walk in enumerate(walks) for t, s in enumerate(walk)]
    return "episode,t,state\n" + "".join(rows)


@pytest.fixture(scope="module")
def walks():
    """Thirty walks of two chains, and what an expert was seen to do on the lake."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    seen = rollouts(env, optimal_policy(from_env(env), 0.99), 60, 0)
    episodes = np.split(np.arange(60), np.flatnonzero(seen.first)[1:])
    lake = [[*seen.states[e].tolist(), int(seen.next_states[e[-1]])] for e in episodes]
    before, after = ([db.examples.drift_walk(f, 5).sample(20, rng=k) for k in range(30)] for f in (0.0, 0.8))
    return {"before": before, "after": after, "walks": lake}


@pytest.fixture
def folder(tmp_path, monkeypatch, walks):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, paths in walks.items():
        (tmp_path / f"{name}.csv").write_text(table_of(paths), encoding="utf-8")
    (tmp_path / "rewards.csv").write_text("state,reward\n0,0\n1,1\n2,2\n3,3\n4,4\n", encoding="utf-8")
    (tmp_path / "observed.csv").write_text("state,next_state\n0,1\n1,0\n1,2\n", encoding="utf-8")
    chain = db.examples.block_chain(3, 2)
    for name in ("a.npz", "chain.npz", "chain.tra"):
        db.write_chain(chain, name)
    db.write_chain(db.examples.birth_death(4, 0.5, 0.2), "b.npz")
    return tmp_path


# --- manners -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_example_of_the_help_does_what_it_says(folder, name):
    (line,) = re.findall(r"Example: (diffbisim .*)", COMMANDS[name].epilog)
    words = shlex.split(line)
    assert words[:2] == ["diffbisim", name]
    before = set(folder.iterdir())
    run(*words[1:])
    if "--output" in words:
        assert (folder / words[words.index("--output") + 1]).exists()
        assert set(folder.iterdir()) - before


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_options_that_mean_the_same_are_called_the_same(name):
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options
    assert "--output" in options or name == "convert"  # it has a target
    random = ("distance", "estimate", "compare", "compress", "fit", "imitate", "explore")
    assert ("--seed" in options) == (name in random)


def test_extensions_in_upper_case_mean_the_same(folder):
    """Nothing is written as something else, left out, or refused after the work."""
    run("distance", "a.npz", "b.npz", "--output", "R.NPZ")
    assert db.load("R.NPZ").value == db.distance(db.read_chain("a.npz"), db.read_chain("b.npz")).value
    run("compress", "b.npz", "--states", 4, "--output", "S.JSON")
    assert json.loads((folder / "S.JSON").read_text())["small_states"] == 4
    run("imitate", "--env", "FrozenLake-v1", "--output", "P.CSV")
    assert np.allclose(np.loadtxt("P.CSV", delimiter=",", skiprows=1)[:, 1:].sum(axis=1), 1.0)


def test_completion_is_offered():
    out, _ = run("--help")
    assert "--install-completion" in out


# --- distance by all solvers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["exact", "lp", "sinkhorn-policy", "sinkhorn-value", "somcot"])
def test_bounds_of_every_solver_hold_the_exact_value(folder, solver):
    exact = db.distance(db.read_chain("a.npz"), db.read_chain("b.npz")).value
    few = ("--max-iterations", 2000) if solver == "somcot" else ()  # its bounds are true after any number of steps
    out, err = run("distance", "a.npz", "b.npz", "--solver", solver, "--seed", 3, "--json", *few)
    report = json.loads(out)
    assert err == ""
    assert report["lower"] - 1e-8 <= exact <= report["upper"] + 1e-8
    assert report["outcome"] == ("estimate" if solver == "somcot" else "converged")


def test_seed_and_steps_reach_the_sampling_solver(folder):
    arguments = ("distance", "a.npz", "b.npz", "--solver", "somcot", "--max-iterations", 2000, "--json")
    one, same, other = (json.loads(run(*arguments, "--seed", seed)[0]) for seed in (1, 1, 2))
    assert one["iterations"] == 2000
    assert one["value"] == same["value"] != other["value"]


# --- estimate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--cost", "indicator"), ("--rewards-a", "rewards.csv")])
def test_estimate_is_that_of_the_library(folder, walks, options):
    out, err = run("estimate", "before.csv", "after.csv", *options, "--replicates", 40, "--seed", 5, "--json")
    report = json.loads(out)
    assert err == ""
    data = [db.Transitions.from_trajectories(walks[name], states=5) for name in ("before", "after")]
    cost = "indicator" if "indicator" in options else "reward"
    known = db.estimate(*data, cost, rewards=np.arange(5.0), replicates=40, rng=5)
    for name in ("value", "lower", "upper", "bias", "p_value", "plug_in"):
        assert report[name] == pytest.approx(getattr(known, name), abs=1e-12)
    assert report["lower"] <= report["upper"]


def test_estimate_over_a_horizon(folder):
    options = ("--cost", "indicator", "--replicates", 40, "--permutations", 19)
    out, _ = run("estimate", "before.csv", "after.csv", *options, "--horizon", 2, "--json")
    report = json.loads(out)
    data = [db.read_transitions(f"{name}.csv") for name in ("before", "after")]
    known = db.estimate(*data, "indicator", horizon=2, replicates=40, permutations=19, rng=0)
    assert (report["criterion"], report["horizon"]) == ("horizon", 2)
    assert report["value"] == pytest.approx(known.value, abs=1e-12)
    assert "indicator, 2; weights" in run("estimate", "before.csv", "after.csv", *options, "--horizon", 2)[0]


def test_estimate_for_people_and_to_a_file(folder):
    out, _ = run("estimate", "before.csv", "after.csv", "--cost", "indicator", "--replicates", 40, "-o", "e.json")
    assert "they differ" in out
    assert json.loads((folder / "e.json").read_text(encoding="utf-8"))["confidence"] == 0.95
    out, _ = run("estimate", "before.csv", "before.csv", "--cost", "indicator", "--replicates", 40)
    assert "no evidence of a difference at this sample size" in out


def test_estimate_on_names_joins_the_states(folder):
    (folder / "x.csv").write_text("state,next_state\na,b\nb,a\n", encoding="utf-8")
    (folder / "y.csv").write_text("state,next_state\na,c\nc,a\n", encoding="utf-8")
    out, _ = run("estimate", "x.csv", "y.csv", "--cost", "indicator", "--discount", 0.5, "--replicates", 20, "--json")
    # a b a b … against a c a c …: every second step differs, (1-γ) (γ + γ³ + …) = γ/(1+γ)
    assert json.loads(out)["plug_in"] == pytest.approx(0.5 / 1.5, abs=1e-8)


PROGRAM = """dtmc
const double p;
module blink
  s : [0..1] init 0;
  [] s=0 -> p : (s'=1) + 1-p : (s'=0);
  [] s=1 -> (s'=0);
endmodule
label "on" = s=1;
"""


@pytest.mark.parametrize("command", ["estimate", "compare"])
def test_a_program_with_constants_is_a_known_chain(folder, command):
    (folder / "blink.pm").write_text(PROGRAM, encoding="utf-8")
    (folder / "seen.csv").write_text("state,next_state\n0,1\n1,0\n", encoding="utf-8")
    np.save(folder / "on.npy", [0.0, 1.0])
    rewards = ("--rewards-a", "on.npy", "--rewards-b", "on") if command == "estimate" else ("--rewards", "on.npy")
    options = (*rewards, "--const", "p=0.25", "--discount", 0.5, "--replicates", 20, "--permutations", 19)
    value = json.loads(run(command, "seen.csv", "blink.pm", *options, "--json")[0])["plug_in"]
    seen, program = (db.MarkovChain([[1 - p, p], [1, 0]], rewards=[0, 1]) for p in (1, 0.25))
    assert value == pytest.approx(db.distance(seen, program, discount=0.5).value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("before.csv", "after.csv"), "before.csv has no rewards; give --rewards-a"),
        (("a.npz", "b.npz"), "both chains, not data"),
        (("before.csv", "after.csv", "--cost", "indicator", "--confidence", "2"), "confidence is 2.0"),
        (("before.csv", "after.csv", "--cost", "indicator", "--unseen", "drop"), "unseen is 'drop'"),
        (("before.csv", "after.csv", "--cost", "indicator", "-o", "e.npz"), "use .json"),
        (("before.csv", "rewards.csv"), "rewards.csv, line 1"),
    ],
)
def test_estimate_refuses_in_one_line(folder, arguments, part):
    out, err = run("estimate", *arguments, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_a_group_that_is_given_twice_is_refused(folder):
    """Groups are called by their files: the second would replace the first without a word."""
    _, err = run("compare", "before.csv", "after.csv", "before.csv", "--cost", "indicator", code=2)
    assert err == "diffbisim: before.csv is given twice; give every group once\n"


@pytest.mark.parametrize(
    ("there", "here"),
    [("use criterion='average'", "use --criterion average"), ('use criterion="average"', "use --criterion average")],
)
def test_quotes_of_an_argument_are_left_out(there, here):
    assert with_option_names(there, {"criterion": "--criterion"}) == here


def test_read_transitions(folder, walks):
    data = db.read_transitions("before.csv")
    assert (data.n_episodes, data.n_states) == (30, 5)
    assert data.states[:20].tolist() == walks["before"][0][:20].tolist()
    with pytest.raises(db.InvalidData, match=r"rewards.csv, line 1.*state,next_state"):
        db.read_transitions("rewards.csv")


# --- imitate ---------------------------------------------------------------------------------------------------


def test_imitate_from_what_was_seen_is_that_of_the_library(folder, walks):
    out, _ = run("imitate", "--env", "FrozenLake-v1", "--expert", "walks.csv", "--json", "--discount", 0.9)
    mdp = from_env(gymnasium.make("FrozenLake-v1"))
    known = db.imitate(mdp, walks["walks"], "indicator", 0.9, rng=0)
    assert json.loads(out)["distance"] == known.distance.value
    run("imitate", "--env", "FrozenLake-v1", "--expert", "walks.csv", "--discount", 0.9, "--output", "policy.csv")
    assert np.array_equal(np.loadtxt("policy.csv", delimiter=",", skiprows=1)[:, 1:], known.policy)
    short = "imitate", "--env", "FrozenLake-v1", "--expert", "walks.csv", "--max-iterations", 3, "--json"
    for option, value in (("criterion", "average"), ("horizon", 5)):
        out, _ = run(*short, f"--{option}", value, code=3)
        known = db.imitate(mdp, walks["walks"], max_iterations=3, **{option: value})
        assert json.loads(out)["distance"] == known.distance.value


def test_imitate_an_optimal_policy(folder):
    out, err = run("imitate", "--env", "CliffWalking-v1", "--json", "--output", "r.npz")
    report = json.loads(out)
    assert err == ""
    assert report["converged"] is True
    assert report["upper"] <= 1e-6
    assert db.load("r.npz").distance.value == report["distance"]


def test_imitate_in_an_mdp_of_prism(folder):
    (folder / "m.tra").write_text("2 4 4\n0 0 0 1\n0 1 1 1\n1 0 1 1\n1 1 0 1\n", encoding="utf-8")
    (folder / "seen.csv").write_text("episode,t,state\n0,0,0\n0,1,1\n0,2,1\n0,3,1\n", encoding="utf-8")
    out, _ = run("imitate", "--mdp", "m.tra", "--expert", "seen.csv", "--json", "--output", "p.csv")
    assert json.loads(out)["upper"] <= 1e-6
    policy = np.loadtxt("p.csv", delimiter=",", skiprows=1)[:, 1:]
    assert policy == pytest.approx(np.array([[0, 1], [1, 0]]), abs=1e-5)  # go to 1, stay there
    (folder / "gap.tra").write_text("2 3 3\n0 0 0 1\n0 1 1 1\n1 0 1 1\n", encoding="utf-8")
    _, err = run("imitate", "--mdp", "gap.tra", "--expert", "seen.csv", code=2)
    assert "state 1 has no choice 1" in err
    out, _ = run("imitate", "--mdp", "gap.tra", "--expert", "seen.csv", "--unseen", "self-loop", "--json")
    assert json.loads(out)["upper"] <= 1e-6


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "either --env NAME"),
        (("--env", "Nowhere-v0"), "--env Nowhere-v0"),
        (("--env", "CartPole-v1"), "must be Discrete"),
        (("--env", "FrozenLake-v1", "--expert", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--env", "FrozenLake-v1", "--output", "p.txt"), "use .npz, .csv, .json"),
    ],
)
def test_imitate_refuses_in_one_line(folder, arguments, part):
    out, err = run("imitate", *arguments, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_imitate_not_converged_has_its_own_code(folder):
    """Nobody on the lake can jump from the first state to the last, so no policy reproduces this expert."""
    (folder / "jumps.csv").write_text(table_of([[0, 15, 15], [0, 4, 8]]), encoding="utf-8")
    jumps = ("--env", "FrozenLake-v1", "--expert", "jumps.csv")
    out, err = run("imitate", *jumps, "--max-iterations", 2, "--json", code=3)
    assert json.loads(out)["converged"] is False
    assert err.startswith("diffbisim: not converged. Stopped after --max-iterations")


# --- compress, fit ---------------------------------------------------------------------------------------------


def test_compress_finds_the_blocks_and_draws_them(folder):
    out, err = run("compress", "chain.npz", "--states", 3, "--plot", "--json", "--output", "small.npz")
    report = json.loads(out)
    assert report["upper"] <= 1e-6
    assignment = report["assignment"]
    assert [len(set(assignment[k : k + 2])) for k in (0, 2, 4)] == [1, 1, 1]
    assert db.read_chain("small.npz").n_states == 3
    assert err == "diffbisim: note: plot written to chain-3-states.png\n"
    assert (folder / "chain-3-states.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("kernel", "tol"), [("full", 1e-2), ("masked", 1e-3)])
def test_fit_finds_the_chain(folder, kernel, tol):
    """A softmax has no zeros, and takes long to come near them."""
    out, _ = run("fit", "b.npz", "--kernel", kernel, "--tol", tol, "--json", "--output", "fitted.npz")
    report = json.loads(out)
    fitted = db.distance(db.read_chain("b.npz"), db.read_chain("fitted.npz"))
    assert fitted.value == pytest.approx(report["distance"], abs=1e-6)
    assert report["upper"] <= 3 * tol + 1e-9  # tol times the largest cost
    if kernel == "full":  # what the library finds, to the last digit
        chain = db.read_chain("b.npz")
        same = db.fit(chain, db.kernels.Softmax(chain.n_states, rng=0), tol=tol, max_iterations=200)
        assert report["upper"] == pytest.approx(same.distance.upper, abs=1e-12)


def test_fit_not_converged_has_its_own_code(folder):
    out, err = run("fit", "b.npz", "--max-iterations", 2, "--json", "--output", "fitted.npz", code=3)
    assert json.loads(out)["converged"] is False
    assert err.startswith("diffbisim: not converged. Stopped after --max-iterations: raise --max-iterations, or")
    assert db.read_chain("fitted.npz").n_states == 4  # what was reached is there


def test_lump_takes_another_start(folder):
    run("lump", "a.npz", "--initial", 4, "--output", "quotient.npz")
    assert db.read_chain("quotient.npz").initial.tolist() == [0, 0, 1]


# --- time limits and checkpoints ---------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_checkpoint(folder):
    """In pieces the same numbers as at once; the file of another run is refused by name."""

    def report(*arguments, code=0):
        told = json.loads(run(*arguments, "--json", code=code)[0])
        return {name: told[name] for name in ("distance", "lower", "upper", "iterations")}

    fit = ("fit", "b.npz", "--kernel", "masked", "--tol", 1e-2)
    report(*fit, "--max-iterations", 2, "--checkpoint", "f.npz", code=3)
    assert report(*fit, "--checkpoint", "f.npz") == report(*fit)
    imitate = ("imitate", "--env", "FrozenLake-v1", "--expert", "walks.csv")
    report(*imitate, "--max-iterations", 2, "--checkpoint", "i.npz", code=3)
    assert report(*imitate, "--checkpoint", "i.npz") == report(*imitate)
    compress = ("compress", "chain.npz", "--states", 2, "--restarts", 2)
    assert report(*compress, "--checkpoint", "c.npz") == report(*compress)
    assert report(*compress, "--checkpoint", "c.npz") == report(*compress)
    _, err = run("compress", "chain.npz", "--states", 3, "--restarts", 2, "--checkpoint", "c.npz", code=2)
    assert "c.npz" in err
    assert "use .npz" in run(*compress, "--checkpoint", "c.txt", code=2)[1]


def test_a_time_limit_ends_in_true_bounds(folder):
    out, _ = run("compress", "chain.npz", "--states", 3, "--time-limit", 0, "--json")
    report = json.loads(out)
    assert report["lower"] <= report["distance"] <= report["upper"]
    assert "--time-limit is -1.0" in run("compress", "chain.npz", "--time-limit", -1, code=2)[1]


# --- events ---------------------------------------------------------------------------------------------------------


def events_of(groups, delimiter=","):
    """A shuffled table of events with dates, half an hour between the walks of a user."""
    rows = []
    for arm, walks in groups.items():
        for k, walk in enumerate(walks):
            begin = np.datetime64("2026-11-16T00:00") + np.timedelta64(31 * (k % 3) + 20 * (k % 3), "m")
            user = f"{arm}{k // 3}"
            rows += [(str(begin + np.timedelta64(t, "m")), f"s{s}", user, arm) for t, s in enumerate(walk)]
    order = np.random.default_rng(0).permutation(len(rows))
    return "\n".join(delimiter.join(row) for row in [("When", "What", "Who", "arm"), *(rows[k] for k in order)]) + "\n"


def test_events_give_what_trajectories_give(folder, walks, monkeypatch):
    """The same walks as a table of trajectories and of events, in one file or two, packed, or piped."""
    named = {name: [[f"s{s}" for s in walk] for walk in walks[name]] for name in ("before", "after")}
    for name, paths in named.items():
        (folder / f"{name}.csv").write_text(table_of(paths), encoding="utf-8")
    both = events_of({name: walks[name] for name in ("before", "after")}, ";")
    (folder / "events.csv").write_text(both, encoding="utf-8")
    (folder / "after.csv.gz").write_bytes(gzip.compress(events_of({"after": walks["after"]}).encode()))
    columns = ["--id", "who", "--time", "when", "--state", "what", "--session-gap", "30min"]
    asked = ["--cost", "indicator", "--replicates", 20, "--json"]
    cut = [
        json.loads(run("estimate", *files, *asked, "--end", "none")[0])["plug_in"]
        for files in (("before.csv", "after.csv"), ("events.csv", "--group", "arm", *columns))
    ]
    assert cut[0] == pytest.approx(cut[1], abs=1e-8)
    oracle = json.loads(run("estimate", "before.csv", "after.csv", *asked, "--end", "■")[0])
    found = json.loads(run("estimate", "events.csv", "--group", "arm", *columns, *asked)[0])
    assert found["plug_in"] == pytest.approx(oracle["plug_in"], abs=1e-8)
    assert abs(found["plug_in"] - cut[0]) > 1e-3
    assert found["assumed"][0] == "A: sequences end in the absorbing state '■'"
    for option, value in (("--every", "1d"), ("--cluster", "who"), ("--duplicates", "drop")):
        _, said = run("estimate", "before.csv", "after.csv", *asked, option, value, code=2)
        assert f"{option} is for tables of events" in said
    assert sorted(side["file"] for side in found["chains"]) == ["events.csv, arm = after", "events.csv, arm = before"]
    piped = invoke("estimate", "-", "after.csv.gz", *columns, *asked, input=events_of({"before": walks["before"]}))
    assert json.loads(piped.stdout)["plug_in"] == pytest.approx(oracle["plug_in"], abs=1e-8)


def test_groups_and_columns_that_are_not_there(folder, walks):
    (folder / "events.csv").write_text(events_of({"before": walks["before"]}), encoding="utf-8")
    columns = ["--id", "who", "--state", "what"]
    _, said = run("estimate", "events.csv", *columns, code=2)
    assert "only events.csv is given; give a second file, or --group COLUMN" in said
    _, said = run("estimate", "events.csv", *columns, "--group", "arm", code=2)
    assert "events.csv: arm has one group, before; it must have two or more" in said
    _, said = run("estimate", "events.csv", "events.csv", "--id", "nobody", "--state", "what", code=2)
    assert "there is no column 'nobody'" in said


# --- compare ---------------------------------------------------------------------------------------------------


def test_compare_of_two_says_what_the_library_says(folder, walks):
    arguments = ("compare", "before.csv", "after.csv", "--cost", "indicator", "--replicates", 20, "--seed", 5)
    report = json.loads(run(*arguments, "--json")[0])
    data = [db.Transitions.from_trajectories(walks[name], states=5) for name in ("before", "after")]
    known = db.estimate(*data, "indicator", replicates=20, rng=5)
    for name in ("value", "lower", "upper", "p_value", "plug_in"):
        assert report[name] == pytest.approx(getattr(known, name), abs=1e-12)
    rows = known.contributions().records("rows", 8)
    assert [row["state"] for row in report["rows"]] == [row["state"] for row in rows]
    out, _ = run(*arguments)
    assert "which rows cause the distance" in out
    assert known.conclusion in out


def test_compare_of_several(folder):
    (folder / "third.csv").write_text((folder / "before.csv").read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ("compare", "before.csv", "after.csv", "third.csv", "--cost", "indicator", "--permutations", 99)
    report = json.loads(run(*arguments, "--json")[0])
    differ = {(pair["a"], pair["b"]): pair["differ"] for pair in report["pairs"]}
    assert differ == {("before", "after"): True, ("after", "third"): True, ("before", "third"): False}
    assert "evidence that they differ for 2 of 3 pairs" in run(*arguments)[0]
    assert "is given; give a second file" in run("compare", "before.csv", code=2)[1]
    assert "give --rewards" in run("compare", "before.csv", "after.csv", "third.csv", code=2)[1]
    said = run("compare", "before.csv", "after.csv", "a.npz", "--cost", "indicator", code=2)[1]
    assert "a.npz contains a chain" in said


def test_compare_of_several_groups_of_events(folder, walks):
    """In one file or in three, it is what the library says of the same walks."""
    groups = {"a": walks["before"], "b": walks["after"], "c": walks["before"][:20]}
    named = {name: [[f"s{s}" for s in walk] for walk in paths] for name, paths in groups.items()}
    known = db.compare(named, "indicator", permutations=99, rng=3)
    (folder / "all.csv").write_text(events_of(groups, ";"), encoding="utf-8")
    for name, paths in groups.items():
        (folder / f"{name}.csv").write_text(events_of({name: paths}), encoding="utf-8")
    columns = ["--id", "who", "--time", "when", "--state", "what", "--session-gap", "30min"]
    asked = ["--cost", "indicator", "--permutations", 99, "--seed", 3, "--end", "none", "--json"]
    for files in (["all.csv", "--group", "arm"], ["a.csv", "b.csv", "c.csv"]):
        report = json.loads(run("compare", *files, *columns, *asked)[0])
        found = {frozenset((pair["a"], pair["b"])): pair for pair in report["pairs"]}
        assert sorted(report["groups"]) == ["a", "b", "c"]
        for pair in known.records():
            same = found[frozenset((pair["a"], pair["b"]))]
            assert same["value"] == pytest.approx(pair["value"], abs=1e-8)
            assert same["differ"] == pair["differ"]
    said = run("estimate", "all.csv", "--group", "arm", *columns, *asked[:2], code=2)[1]
    assert "arm has 3 groups" in said
    assert "use diffbisim compare" in said
    said = run("compare", "a.csv", "b.csv", "c.csv", "--group", "arm", *columns, code=2)[1]
    assert "--group compares the groups of one file; omit b.csv and c.csv" in said
    assert "name the columns: --state, --id, --time" in run("compare", "a.csv", "b.csv", *asked[:2], code=2)[1]


def test_evidence_beside_an_interval_from_zero_is_explained():
    assert interval_note({"remark": "the interval starts at 0"}) == {"note": "the interval starts at 0"}
    assert not interval_note({"remark": ""})


def test_a_page_about_tables_of_events(folder, walks):
    """The distance on the page is that between the chains of the walks, from one file or from two."""
    groups = {name: walks[name] for name in ("before", "after")}
    chains = [
        db.MarkovChain.from_trajectories([[f"s{s}" for s in walk] for walk in paths], unseen="self-loop")
        for paths in groups.values()
    ]
    known = db.distance(*chains, "indicator").value
    (folder / "both.csv").write_text(events_of(groups, ";"), encoding="utf-8")
    for name, paths in groups.items():
        (folder / f"{name}.csv").write_text(events_of({name: paths}), encoding="utf-8")
    columns = ["--id", "who", "--time", "when", "--state", "what", "--session-gap", "30min"]
    asked = ["--cost", "indicator", "--unseen", "self-loop", "--end", "none", "--output", "page.html", "--json"]
    for files in (["both.csv", "--group", "arm"], ["before.csv", "after.csv"]):
        report = json.loads(run("explore", *files, *columns, *asked)[0])
        assert report["distances"] == pytest.approx([known], abs=1e-7)
        assert sorted(report["names"]) == ["after", "before"]
        assert "s4" in (folder / "page.html").read_text(encoding="utf-8")
    assert "state is not given" in run("explore", "both.csv", "--group", "arm", *asked, code=2)[1]


def test_notes_and_assumptions_are_in_the_words_of_the_command_line(folder):
    """A and B, as in the table, and options; three groups have the line about their ends, too."""
    rows = {"A": "abb" * 38 + "ab" * 2, "B": "abb" * 2 + "ab" * 38, "C": "abb" * 20 + "ab" * 20}
    for name, walk in rows.items():
        paths = [f"a{rest}" for rest in walk.split("a")[1:]]
        (folder / f"{name}.csv").write_text(table_of(paths), encoding="utf-8")
        traces = ("".join(f'<event><string key="concept:name" value="{s}"/></event>' for s in path) for path in paths)
        log = f"<log>{''.join(f'<trace>{trace}</trace>' for trace in traces)}</log>"
        (folder / f"{name}.xes").write_text(log, encoding="utf-8")
    asked = ["--cost", "indicator", "--permutations", 19]
    _, said = run("estimate", "A.csv", "B.csv", *asked, "--replicates", 20)
    assert re.search(r"after 'b': \d+ of \d+ in A, \d+ of \d+ in B visits\).* pass --end ■ if the ends mean", said)
    table, _ = run("compare", "A.xes", "B.xes", "C.xes", *asked)
    assert "C: sequences end in the absorbing state '■'" in " ".join(table.split())
    for command, files in (("estimate", ("A.xes", "B.csv")), ("compare", ("A.xes", "B.csv", "C.csv"))):
        _, said = run(command, *files, *asked, code=2)
        assert "A ends in the absorbing state '■', and B has no such state" in said
        assert "same end, such as --end ■, or with --end None" in said
    (folder / "events.csv").write_text("t,s,g\n0,a,A\n1,b,B\n", encoding="utf-8")
    columns = ["--time", "t", "--state", "s", "--group", "g"]
    _, said = run("estimate", "events.csv", *columns, *asked, "--every", "1.2.3", code=2)
    assert "--every is '1.2.3'; the times are numbers, so give a non-negative number" in said


@pytest.mark.parametrize("command", [("distance",), ("explore", "--output", "page.html")])
def test_a_lag_that_only_one_chain_has_is_noted(folder, command):
    for name, lag in (("long", 5), ("bare", None)):
        db.write_chain(db.MarkovChain(np.eye(2), rewards=[0, 1], lag=lag), folder / f"{name}.npz")
    _, said = run(*command, "long.npz", "bare.npz")
    assert "note: A has lag 5, and B does not say how long its steps take" in said
