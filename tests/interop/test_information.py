"""No information is dropped: inputs that differ in one piece of information differ, are refused, or are remarked on.

Each row holds two inputs that differ in nothing else. The chains that they become must differ; or the second input is
refused, or an ``InputWarning`` names what is not used.
"""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

import diffbisim as db
from chain_files import file
from diffbisim.common.errors import DiffbisimError
from later import Later

deeptime, hmmlearn, nx = Later("deeptime.markov"), Later("hmmlearn.hmm"), Later("networkx")

P = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.0, 0.25, 0.75]])
NAMES = ["low", "middle", "high"]


def became(make):
    """Everything that a chain or MDP holds, or the refusal, and the remarks on it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = make()
        except DiffbisimError as error:
            return ("refused", str(error)), ""
    remarks = " ".join(str(one.message) for one in said if issubclass(one.category, db.InputWarning))
    return parts(found), remarks


def parts(found):
    if isinstance(found, float):
        return found
    if isinstance(found, db.Transitions):
        kept = ("weights", "names", "lag", "end", "episodes", "clusters", "strata", "durations")
        own = [getattr(found, name) for name in kept]
        lists = [one.tolist() if isinstance(one, np.ndarray) else one for one in own]
        return repr((found.states.tolist(), found.next_states.tolist(), *lists))  # NaN equals itself in text
    if isinstance(found, dict):
        return [(name, parts(one)) for name, one in found.items()]
    kernels = [found.transition] if isinstance(found, db.MarkovChain) else found.transition
    dense = [np.asarray(kernel.todense() if hasattr(kernel, "todense") else kernel).tolist() for kernel in kernels]
    rewards = None if found.rewards is None else found.rewards.tolist()
    own = found.__getstate__()
    return dense, found.initial.tolist(), rewards, *(own.get(name) for name in ("names", "lag", "hidden", "actions"))


# --- objects ------------------------------------------------------------------------------------------------------


def graph(edge=None, node=None, weights=(2.0, 1.0, 1.0), kind="DiGraph", twice=False):
    made = getattr(nx, kind)()
    for (a, b), weight in zip((("a", "b"), ("a", "c"), ("b", "a")), weights, strict=True):
        made.add_edge(a, b, **({} if weight is None else {"weight": weight}), **(edge or {}))
    made.add_edge("c", "a", weight=1.0, **(edge or {}))
    if twice:
        made.add_edge("a", "b", weight=2.0)
    for name in made:
        made.nodes[name].update(node or {})
    return db.as_chain(made)


def gaussian(mean, **options):
    model = hmmlearn.GaussianHMM(n_components=3, covariance_type="spherical")
    model.startprob_, model.transmat_, model.covars_ = np.full(3, 1 / 3), P, np.ones(3)
    model.means_ = np.array([[0.0], [1.0], [mean]])
    return db.as_chain(model, **({"rewards": model.means_.ravel()} if options.pop("means", False) else options))


def hidden_of_deeptime(emissions):
    return db.as_chain(deeptime.hmm.HiddenMarkovModel(P, np.array(emissions), initial_distribution=np.full(3, 1 / 3)))


class Pomegranate:
    """What is read of a dense HMM of pomegranate."""

    __module__ = "pomegranate.hmm"
    k = None

    def __init__(self, ends):
        with np.errstate(divide="ignore"):
            self.edges, self.starts, self.ends = np.log(P), np.log(np.full(3, 1 / 3)), np.log(np.array(ends))


def posterior(n_samples):
    counts = deeptime.TransitionCountEstimator(lagtime=1, count_mode="effective").fit_fetch(
        db.MarkovChain(P).sample(500, rng=0)
    )
    return deeptime.msm.BayesianMSM(n_samples=n_samples).fit_fetch(counts)


def submodel(states):
    counts = deeptime.TransitionCountModel(np.round(P * 20) + 1, lagtime=1, state_histogram=np.ones(3))
    return counts.submodel(states)


def crosstab(margins):
    s, t = pd.Series(["a", "a", "b", "c"]), pd.Series(["b", "c", "a", "a"])
    return db.as_chain(pd.crosstab(s, t, margins=margins))


OBJECTS = {
    "weights of edges": (graph, lambda: graph(weights=(1.0, 2.0, 1.0)), "differ"),
    "weights of some edges only": (graph, lambda: graph(weights=(2.0, 1.0, None)), "1 of 4 edges have no 'weight'"),
    "weights under another name": (
        lambda: graph(weights=(None, None, None)), lambda: graph({"p": 0.3}, weights=(None, None, None)),
        "the edges have 'p', and only 'weight' is used",
    ),
    "times of edges": (graph, lambda: graph({"minutes": 3}), "the edges have 'minutes'"),
    "parallel edges": (
        lambda: graph(kind="MultiDiGraph"), lambda: graph(kind="MultiDiGraph", twice=True), "differ",
    ),
    "numbers at nodes": (graph, lambda: graph(node={"height": 2.0}), "nodes have 'height', which rewards='height'"),
    "weights of a mapping": (
        lambda: db.as_chain({("a", "b"): 1, ("a", "a"): 1, ("b", "a"): 1}),
        lambda: db.as_chain({("a", "b"): 2, ("a", "a"): 1, ("b", "a"): 1}), "differ",
    ),
    "ends of cases": (
        lambda: db.as_chain(({("a", "b"): 1, ("b", "a"): 1}, {"a": 1}, {"b": 1})),
        lambda: db.as_chain(({("a", "b"): 1, ("b", "a"): 1}, {"a": 1}, {"b": 9})), "differ",
    ),
    "order of names": (
        lambda: db.as_chain(pd.DataFrame(P, NAMES, NAMES)),
        lambda: db.as_chain(pd.DataFrame(P, NAMES[::-1], NAMES)), "differ",
    ),
    "names": (lambda: db.as_chain(P), lambda: db.as_chain(pd.DataFrame(P, NAMES, NAMES)), "differ"),
    "margins of a crosstab": (lambda: crosstab(False), lambda: crosstab(True), "'All' of the table are the sums"),
    "emissions (hmmlearn)": (lambda: gaussian(2.0), lambda: gaussian(-300.0), "emissions are not part of the chain"),
    "emissions, as rewards": (lambda: gaussian(2.0, means=True), lambda: gaussian(-300.0, means=True), "differ"),
    "emissions (deeptime)": (
        lambda: hidden_of_deeptime(np.eye(3)), lambda: hidden_of_deeptime(np.eye(3)[::-1]), "emissions are not part",
    ),
    "emissions (pomegranate)": (
        lambda: db.as_chain(Pomegranate([0, 0, 0])), lambda: db.as_chain(Pomegranate([0, 0, 0])), "emissions are not",
    ),
    "probabilities of ending": (
        lambda: db.as_chain(Pomegranate([0, 0, 0]), rewards=[0, 1, 2]),
        lambda: db.as_chain(Pomegranate([0.1, 0.1, 0.2]), rewards=[0, 1, 2]), "probabilities of ending, up to 0.2",
    ),
    "samples of a posterior": (
        lambda: db.as_chain(posterior(2).prior), lambda: db.as_chain(posterior(2)), "not its 2 samples",
    ),
    "lag of an MSM": (
        lambda: db.as_chain(deeptime.msm.MarkovStateModel(P)),
        lambda: db.as_chain(deeptime.msm.MarkovStateModel(P, lagtime=20)), "differ",
    ),
    "lag of a count model": (
        lambda: db.as_chain(deeptime.TransitionCountModel(P * 10, lagtime=1, state_histogram=np.ones(3))),
        lambda: db.as_chain(deeptime.TransitionCountModel(P * 10, lagtime=7, state_histogram=np.ones(3))), "differ",
    ),
    "lag of trajectories": (
        lambda: db.as_chain([[0, 1] * 5], lag=2), lambda: db.as_chain([[0, 1] * 5], lag=4), "differ",
    ),
    "wrappers of an environment": (
        lambda: environment(False), lambda: environment(True), "without its wrappers TransformReward",
    ),
    "weights that are no numbers": (
        lambda: db.as_chain({("a", "b"): 1, ("b", "a"): 1}), lambda: db.as_chain({("a", "b"): "x", ("b", "a"): 1}),
        "an edge has the weight 'x'",
    ),
    "symbols of a submodel": (
        lambda: db.as_chain(submodel([0, 1])), lambda: db.as_chain(submodel([1, 2])), "differ",
    ),
    "type of a tensor": (
        lambda: db.as_chain(Later("torch").tensor(P)), lambda: db.as_chain(Later("torch").tensor(P + 1e-4)), "sums to",
    ),
    "weights of transitions": (
        lambda: db.MarkovChain.from_transitions([0, 0, 1], [1, 0, 0], weights=[1, 1, 1]),
        lambda: db.MarkovChain.from_transitions([0, 0, 1], [1, 0, 0], weights=[2, 1, 1]), "differ",
    ),
}  # fmt: skip


EVENTS = {"id": list("xxxxyyy"), "t": [0, 1, 2, 3, 0, 1, 2], "s": list("abcaabc"), "g": list("AAAAAAA"), "c": [1] * 7}


def events(names=(), **columns):
    """Events with other columns, read with the names of more of them."""
    table = {**EVENTS, **{name: list(column) for name, column in columns.items() if name in EVENTS}}
    options = {name: value for name, value in columns.items() if name not in EVENTS} | dict(names)
    return lambda: db.Transitions.from_frame(table, id="id", time="t", state="s", **options)


def steps(**recorded):
    return db.Transitions.from_trajectories([[0, 1, 0]] * 4, states=2, **recorded)


def acted(own=None, **recorded):
    return steps(**recorded).chain(rewards=own)


OBSERVED = {
    "ids": (events(), events(id="xxxyyyy"), "differ"),
    "order of times": (events(), events(t=[1, 0, 2, 3, 0, 1, 2]), "differ"),
    "lengths of intervals": (events(), events(t=[0, 1, 2, 90, 0, 1, 2]), "the times between events vary"),
    "pauses": (events(gap=5), events(gap=5, t=[0, 1, 20, 21, 0, 1, 2]), "differ"),
    "ends": (events(), events(end=None), "differ"),
    "a change of group": (events(group="g"), events(group="g", g="AABBAAA"), "1 of 2 ids occur in several groups"),
    "groups": (events(group="g"), events(group="g", g="AAAABBB"), "differ"),
    "repeated rows": (events(), events(t=[0, 1, 1, 2, 0, 1, 2], s="abbaabc"), "1 of 7 rows repeat the id, time and st"),
    "missing states": (
        events(missing="drop"), events(missing="drop", s=["a", None, *"caabc"]), "missing values: 1 of state",
    ),
    "spelling": (events(), events(s="abcAabc"), "'a' (2) and 'A' (1) differ only in spelling"),
    "clusters": (events(), events(cluster="c"), "differ"),
    "strata": (events(strata="c"), events(strata="c", c=[1, 1, 1, 1, 2, 2, 2]), "differ"),
    "actions": (lambda: acted(), lambda: acted(actions=[[0, 1]] * 4), "data: the recorded actions of steps are not"),
    "actions, as_chain": (
        lambda: db.as_chain(steps()), lambda: db.as_chain(steps(actions=[[0, 1]] * 4)), "use MDP.from_transitions",
    ),
    "rewards of steps": (lambda: acted(), lambda: acted(rewards=[[0, 1]] * 4), "for rewards, pass rewards= one number"),
    "rewards of steps and states": (
        lambda: acted(own=[0, 1]), lambda: acted(own=[0, 2], rewards=[[0, 1]] * 4), "differ",
    ),
    "visits between two steps": (events(every=1), events(every=2), "visits to a state begin and end between two"),
}  # fmt: skip


@pytest.mark.parametrize("piece", OBSERVED)
def test_events(piece):
    check(*OBSERVED[piece])


def environment(wrapped):
    import gymnasium

    from diffbisim.processes.environments import from_env

    env = gymnasium.make("FrozenLake-v1")
    return from_env(gymnasium.wrappers.TransformReward(env, lambda r: 2 * r) if wrapped else env)


def check(before, after, expected):
    (one, _), (two, remarks) = became(before), became(after)
    if expected == "differ":
        assert one != two
        assert "refused" not in (one[0], two[0])
    elif two[0] == "refused":
        assert one[0] != "refused"
        assert expected in two[1]
    else:
        assert expected in remarks


@pytest.mark.parametrize("piece", OBJECTS)
def test_objects(piece):
    check(*OBJECTS[piece])


def test_what_differs_in_the_lag_is_not_compared():
    """Everywhere where two processes are compared; data of one process are at distance zero at the same lag."""
    X, Y = (db.MarkovChain(P, rewards=[0, 1, 2], lag=lag) for lag in (1, 6))
    data = [db.Transitions.from_trajectories([X.sample(60, rng=k) for k in range(8)], states=3, lag=g) for g in (1, 2)]
    calls = [
        lambda: db.distance(X, Y), lambda: db.pairwise([X, X, Y]), lambda: db.estimate(data[0], Y, replicates=20),
        lambda: db.estimate(*data, rewards=[0, 1, 2], replicates=20), lambda: db.power(X, Y, episodes=4, length=3),
        lambda: db.distance(data[0], Y, solver="somcot"), lambda: db.distance(X, db.Stream(Y), solver="somcot"),
        lambda: db.compare({"a": data[0], "b": data[1]}, "indicator"), lambda: db.distance(X, Y, criterion="average"),
        lambda: db.distance(X, Y, horizon=3),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(db.InvalidArgument, match=r"has lag 1 and .* has lag [26].*at_lag\([26]\)"):
            call()
    assert db.distance(X.at_lag(6), db.MarkovChain(np.linalg.matrix_power(P, 6), rewards=[0, 1, 2], lag=6)).value < 1e-8
    with pytest.raises(db.InvalidArgument, match=r"as_chain\(X\).at_lag\(12\) and as_chain\(Y\).at_lag\(12\)"):
        db.distance(X.at_lag(4), Y)
    with pytest.raises(db.InvalidArgument, match="lag is 7; it must be a multiple of 6"):
        Y.at_lag(7)
    with pytest.warns(db.InputWarning, match="X has lag 6, and Y does not say how long its steps take"):
        db.distance(Y, db.MarkovChain(P, rewards=[0, 1, 2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db.distance(X, db.MarkovChain(P, rewards=[0, 1, 2]))  # the usual case: one step each


def test_one_call_says_once_that_actions_are_not_used():
    A, B = (steps(actions=[acts] * 4) for acts in ([0, 1], [1, 0]))
    mdp = db.MDP([np.eye(2), np.eye(2)[::-1]], rewards=[0.0, 1.0])
    calls = [
        lambda: db.compare({"a": A, "b": B}, "indicator", permutations=19), lambda: db.as_chain(A),
        lambda: db.compress(A, 1, target_rewards=[0, 1]), lambda: db.distance(A, B, "indicator", solver="somcot"),
        lambda: db.power(A, B, "indicator", episodes=4, datasets=1, permutations=19),
        lambda: db.estimate(A, mdp.induced_chain([1, 1]), "indicator", replicates=20, permutations=19),
    ]  # fmt: skip
    for call in calls:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call()
        assert sum("recorded actions of steps are not used" in str(one.message) for one in said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", db.InputWarning)
        db.MDP.from_transitions(A, rewards=[0, 1], unseen="uniform")
        db.imitate(mdp, A)  # imitation is from observations of states


def timed_copies(chain, folder):
    db.write_chain(chain, folder / "timed.npz")
    return chain, chain.until(2), chain.with_initial(1), copy.deepcopy(chain), db.load(folder / "timed.npz")


def test_lag_and_hidden_states_are_kept(tmp_path):
    chain = db.MarkovChain(P, rewards=[0, 1, 1], lag=4, hidden=True)
    assert repr(chain) == "MarkovChain(3 hidden states, 7 transitions, start 0, rewards, lag 4)"
    db.write_chain(chain, tmp_path / "c.npz")
    kept = [
        chain.with_initial(1), chain.permuted([2, 0, 1]), pickle.loads(pickle.dumps(chain)), copy.deepcopy(chain),
        db.read_chain(tmp_path / "c.npz"), db.lump(chain).chain, db.as_chain(chain, rewards=[0, 1, 2]),
        db.as_chain(chain, initial=2), db.Stream(chain).frame, *timed_copies(db.TimedChain.repeat(chain, 3), tmp_path),
    ]  # fmt: skip
    for k, one in enumerate(kept):
        assert (one.lag, one.hidden) == (4, True), k
    assert db.as_chain(chain, names=NAMES).hidden is False  # the caller says which states are which
    assert chain.at_lag(8).lag == 8
    small = db.compress(chain, 2, restarts=1, lag=2)
    assert (small.chain.lag, small.lag, small.averaged.lag) == (8, 2, 8)
    small.save(tmp_path / "small.npz")
    again = db.load(tmp_path / "small.npz")
    assert again.chain.lag == 8
    assert again.timescales == pytest.approx(small.timescales)
    assert db.aggregate(chain, [0, 1, 1]).chain.lag == 4


def test_timescales_have_the_unit_of_the_lag():
    """Of deeptime's own: -τ / log |λ|."""
    msm = deeptime.msm.MarkovStateModel(P, lagtime=10)
    for lag in (1, 3):
        found = db.compress(msm, 3, model="kinetic", cost=1 - np.eye(3), lag=lag)
        assert found.implied_timescales[0] == pytest.approx(msm.timescales(), rel=1e-9)
        assert found.timescales[0] == pytest.approx(msm.timescales()[0], rel=1e-9)


def test_hidden_states_are_compared_nowhere_by_number(tmp_path):
    chain = db.MarkovChain(P, hidden=True)
    mdp = db.MDP([P, P])
    data = db.Transitions.from_trajectories([db.MarkovChain(P).sample(30, rng=k) for k in range(8)], states=3)
    calls = [
        lambda: db.distance(chain, chain, "indicator"), lambda: db.distance(P, chain, "indicator", horizon=2),
        lambda: db.pairwise([P, chain], "indicator"), lambda: db.estimate(data, chain, "indicator", replicates=20),
        lambda: db.power(P, chain, "indicator", episodes=4, length=3), lambda: db.imitate(mdp, chain),
        lambda: db.distance(chain, P, "indicator", solver="somcot"),
        lambda: db.fit(chain, db.kernels.Softmax(3), cost="indicator", max_iterations=1),
        lambda: db.distance(chain, chain),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((db.InvalidCost, db.InvalidArgument, db.InvalidData), match="hidden states, whose numbers"):
            call()
    named = db.MarkovChain(P, names=NAMES)
    assert db.distance(db.as_chain(chain, names=NAMES), named, "indicator").value < 1e-8
    table = np.abs(np.subtract.outer([0, 1, 2], [0, 1, 5]))
    assert db.distance(chain, chain, table).value > 0  # a cost between emissions


# --- files --------------------------------------------------------------------------------------------------------

TRA = "3 4\n0 1 0.5\n0 2 0.5\n1 0 1\n2 2 1\n"
LAB = '0="init" 1="deadlock"\n0: 0\n'
GOAL = '0="init" 1="deadlock" 2="goal"\n0: 0\n2: 2\n'
SREW = "3 2\n0 1\n2 4\n"
DRN = "@type: MDP\n@reward_models\nsteps\n@nr_states\n2\n@model\nstate 0 [1] init\n action {}\n  0 : 0.5\n  1 : 0.5\n" \
      " action {}\n  1 : 1\nstate 1 [2] {}\n action {}\n  1 : 1\n action {}\n  0 : 1\n"  # fmt: skip
EDGES = "from,to,probability\na,b,1\nb,a,{}\n{}"
SEEN = "state,next_state,weight\n0,1,{}\n0,0,3\n1,0,{}\n"


def tra(**companions):
    """A model with these companions."""

    def make(folder):
        path = file(folder, "m.tra", companions.pop("tra", TRA))
        for kind, text in companions.items():
            file(folder, f"m.{kind}", text)
        return db.read_chain(path)

    return make


def drn(*words):
    return lambda folder: db.read_mdp(file(folder, "m.drn", DRN.format(*words)))


def csv(text):
    return lambda folder: db.read_chain(file(folder, "m.csv", text), unseen="self-loop")


def npz(**arrays):
    def make(folder):
        np.savez(folder / "m.npz", transition=P, initial=np.eye(3)[0], **arrays)
        return db.read_chain(folder / "m.npz")

    return make


def xes(*traces, key="concept:name"):
    """A log of traces of activities, each with a phase."""
    made = "".join(
        "<trace>" + "".join(f'<event><string key="{key}" value="{a}"/><string key="lifecycle:transition" '
                            f'value="{phase}"/></event>' for a, phase in trace) + "</trace>" for trace in traces
    )  # fmt: skip
    return lambda folder: db.read_transitions(file(folder, "m.xes", f"<log>{made}</log>"))


DONE = [("a", "complete"), ("b", "complete")]
FILES = {
    "order of the events of a log": (xes(DONE), xes(DONE[::-1]), "differ"),
    "phases of the activities of a log": (
        xes(DONE), xes([("a", "start"), *DONE]), "events differ in 'lifecycle:transition' ('complete', 'start')",
    ),
    "activities under another name": (xes(DONE), xes(DONE, key="Activity"), "missing values: 2 of state"),
    "propositions": (tra(lab=LAB, srew=SREW), tra(lab=GOAL, srew=SREW), "its propositions 'goal' are not used"),
    "propositions without rewards": (tra(lab=LAB), tra(lab=GOAL), "it has no rewards; its propositions 'goal'"),
    "state rewards": (tra(), tra(srew=SREW), "differ"),
    "constant rewards": (tra(), tra(srew="3 3\n0 1\n1 1\n2 1\n"), "which are 1 in every state"),
    "transition rewards": (tra(), tra(trew="3 1\n0 1 8\n"), "differ"),
    "a second reward structure": (tra(srew=SREW), tra(srew=SREW, trew="3 1\n0 1 8\n"), "differ"),
    "variables": (tra(), tra(sta="(x)\n0:(5)\n1:(6)\n2:(7)\n"), "differ"),
    "initial states": (tra(), tra(lab=LAB.replace("0: 0", "1: 0")), "differ"),
    "propositions of a .drn": (
        drn("go", "stay", "", "stay", "go"), drn("go", "stay", "goal", "stay", "go"), "propositions 'goal' are not",
    ),
    "action names": (drn("go", "stay", "", "stay", "go"), drn("stay", "go", "", "stay", "go"), "differ"),
    "action names of some choices": (
        drn("go", "stay", "", "stay", "go"), drn("go", "__NOLABEL__", "", "stay", "go"), "its action names ('go'",
    ),
    "a repeated edge": (csv(EDGES.format(1, "")), csv(EDGES.format(1, "b,a,1\n")), "repeats the transition of line 3"),
    "another column": (
        csv(EDGES.format(1, "")), csv("from,to,probability,reward\na,b,1,2\nb,a,1,3\n"), "the header must be",
    ),
    "weights of rows": (csv(SEEN.format(1, 1)), csv(SEEN.format(2, 1)), "differ"),
    "times in a table": (
        csv("episode,t,state\n1,0,a\n1,1,b\n"), csv("episode,t,state\n1,0,a\n1,2,b\n"), "leaves a gap after t = 0",
    ),
    "rewards in an archive": (npz(), npz(rewards=np.arange(3.0)), "differ"),
    "an array with another name": (npz(), npz(reward=np.arange(3.0)), "its arrays 'reward' are not part of a chain"),
    "lag in an archive": (npz(), npz(lag=20), "differ"),
    "hidden states in an archive": (npz(), npz(hidden=True), "differ"),
}  # fmt: skip


@pytest.mark.parametrize("piece", FILES)
def test_files(tmp_path, piece):
    before, after, expected = FILES[piece]
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        folder.mkdir()
    check(lambda: before(folders[0]), lambda: after(folders[1]), expected)


def test_selecting_rewards_is_nothing_to_remark_on(tmp_path):
    file(tmp_path, "m.lab", GOAL)
    file(tmp_path, "m.srew", SREW)
    path = file(tmp_path, "m.tra", TRA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert db.read_chain(path, rewards="goal").rewards.tolist() == [0, 0, 1]
        assert db.read_chain(path, rewards=[1, 2, 3]).rewards.tolist() == [1, 2, 3]


def test_formats_that_cannot_store_everything(tmp_path):
    chain = db.MarkovChain(P, rewards=[0, 1, 2], names=NAMES, lag=3, initial="high")
    with pytest.warns(db.InputWarning, match="cannot store the names and the lag; write .npz"):
        db.write_chain(chain, tmp_path / "m.tra")
    with pytest.warns(db.InputWarning, match="cannot store the rewards and the lag and the start; write .npz"):
        db.write_chain(chain, tmp_path / "m.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db.write_chain(chain, tmp_path / "m.npz")
        db.write_chain(db.MarkovChain(P), tmp_path / "bare.csv")


@pytest.mark.parametrize(
    ("X", "Y", "cost", "reason"),
    [
        ({"rewards": [2, 2, 2]}, {"rewards": [2, 2, 2]}, "reward", "all rewards of X and of Y are equal"),
        ({"rewards": [2, 2, 2]}, {"rewards": [0, 0, 0]}, "squared", "4 for every pair .*those of Y"),
        ({"names": "abc"}, {"names": "xyz"}, "indicator", "no state of X is a state of Y"),
    ],
)
def test_a_cost_that_sees_no_states(X, Y, cost, reason):
    """The distance is the cost, whatever the kernels are."""
    X = {name: list(part) for name, part in X.items()}
    Y = {name: list(part) for name, part in Y.items()}
    for options in ({}, {"horizon": 2}, {"criterion": "average"}):
        with pytest.warns(db.InputWarning, match=reason):
            db.distance(db.MarkovChain(P, **X), db.MarkovChain(P[::-1, ::-1], **Y), cost, **options)
    if "rewards" in X and cost == "reward":
        with pytest.warns(db.InputWarning, match=reason):
            db.distance(db.MDP([P, P], **X), db.MDP([P[::-1, ::-1], P], **Y), cost)
