"""No argument is ignored: every parameter of a public function, in every mode, changes the result or is refused.

``TABLE`` holds functions by mode: a call with options, and for every parameter a value other than its default with what
is expected of it. A parameter of the signature that is missing from the table fails. To add a function, add its modes.

    CHANGES          the result, or the work it took, differs from that of the call without the argument
    refuses(words)   the call is refused with a message that has these words
    CHECKED          the argument has no effect in this mode, as documented; a value that is never allowed is refused
    CALLED           a callback is called
"""

import inspect
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from chain_files import file
from diffbisim.common.errors import DiffbisimError
from diffbisim.io.storm import read_storm
from diffbisim.statistics.paths import PathEstimate, estimate_paths

CHANGES, CHECKED, CALLED = "changes", "checked", "called"
OBJECTS = ("X", "Y", "value", "path", "chain", "mdp")  # the subjects of the calls, not options


def refuses(words):
    return ("refused", words)


# --- subjects -----------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X, Y = (db.MarkovChain(RNG.dirichlet(np.ones(5), size=5), rewards=RNG.random(5)) for _ in range(2))
ENDS = [
    db.MarkovChain([[1 - p, p, 0], [0.1, 0.5, 0.4], [0, 0, 1]], rewards=[1, 2, 0]) for p in (0.3, 0.6)
]  # absorbed in a state without reward
M, N = (db.MDP(RNG.dirichlet(np.ones(4), size=(2, 4)), rewards=RNG.random((4, 2))) for _ in range(2))
TIMED = [db.TimedChain.repeat(chain, 3) for chain in (X, Y)]
STEPS = [db.Transitions.from_trajectories([chain.sample(30, rng=k) for k in range(4)], states=5) for chain in (X, Y)]
SAMPLED = db.solvers.Somcot(max_iterations=20, rng=0)
HALVES = np.array([[0.5, 0.5], [0.25, 0.75]])
GAP = np.array([[1, 3], [0, 0]])  # counts; state 1 was never left

DRN_CHAIN = (
    "@type: DTMC\n@reward_models\nsteps\n@nr_states\n2\n@model\nstate 0 [1] init\n action a\n  0 : 0.5\n  1 : 0.5\n"
)
DRN_MDP = (
    DRN_CHAIN.replace("DTMC", "MDP").replace(" action a", " action a\n  1 : 1\n action b")
    + "state 1 [2] goal\n action a\n  1 : 1\n"
)
XES = (
    '<log xmlns="http://www.xes-standard.org/"><trace><event><string key="concept:name" value="a"/></event>'
    '<event><string key="concept:name" value="b"/></event></trace></log>'
)
TEXTS = {
    "csv": ("m.csv", "from,to,probability\na,a,0.5\na,b,0.5\n"),
    "prism": ("m.tra", "2 2\n0 0 0.5\n0 1 0.5\n"),
    "storm": ("m.drn", DRN_CHAIN + "state 1 [2] goal\n"),
    "mdp": ("m.drn", DRN_MDP),
    "choices": ("m.tra", "2 3 4\n0 0 1 1\n0 1 0 0.5\n0 1 1 0.5\n1 0 0 1\n"),
    "log": ("m.xes", XES),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def path_of(folder, kind):
    if kind == "npz":
        np.savez(folder / "m.npz", transition=HALVES, initial=np.eye(2)[0])
        return folder / "m.npz"
    return file(folder, *TEXTS[kind])


def model_of(folder, kind):
    return read_storm(path_of(folder, kind))


def written(chain, path, **options):
    db.write_chain(chain, path, **options)
    return path.read_bytes()


# --- the table ----------------------------------------------------------------------------------------------------

#: Arguments of `distance` that mean the same in every mode with known chains.
USUAL = {
    "cost": (RNG.random((5, 5)), CHANGES), "solver": (db.solvers.Exact(max_iterations=1), CHANGES),
    "tol": (0.9, CHANGES), "callback": (None, CALLED), "warm": (db.distance(X, Y), CHANGES),
}  # fmt: skip
NOT_TOTAL = (np.eye(5, dtype=bool), refuses("terminal is for criterion='total'"))
NO_ACTIONS = ("lax", refuses("actions is for two MDPs"))
INFINITE = "has an infinite horizon; omit"
DISTANCE = {
    "chains": (lambda _, **o: db.distance(X, Y, **o), USUAL | {
        "discount": (0.5, CHANGES), "criterion": ("average", CHANGES), "horizon": (2, CHANGES),
        "weights": ([1, 0, 2], CHANGES), "terminal": NOT_TOTAL, "actions": NO_ACTIONS, "lump": (True, CHANGES),
    }),
    "horizon": (lambda _, **o: db.distance(X, Y, **{"horizon": 3, **o}), USUAL | {
        "discount": (0.5, CHANGES), "criterion": ("average", refuses(INFINITE)), "horizon": (2, CHANGES),
        "weights": ([1, 0, 2, 1], CHANGES), "terminal": NOT_TOTAL, "actions": NO_ACTIONS,
        "lump": (True, CHANGES), "tol": (0.9, CHECKED),
        "warm": (db.distance(X, Y, horizon=3), CHANGES), "solver": ("lp", refuses("does not support 'horizon'")),
    }),
    "weights": (lambda _, **o: db.distance(X, Y, **{"weights": [1, 1, 1], **o}), USUAL | {
        "discount": (0.5, refuses("weights replace its powers; omit one")), "criterion": ("total", refuses(INFINITE)),
        "horizon": (5, refuses("horizon")), "weights": ([1, 0, 2], CHANGES), "terminal": NOT_TOTAL,
        "actions": NO_ACTIONS, "lump": (True, CHANGES), "tol": (0.9, CHECKED),
        "warm": (db.distance(X, Y, horizon=2), CHANGES), "solver": ("lp", refuses("does not support 'horizon'")),
    }),
    "average": (lambda _, **o: db.distance(X, Y, **{"criterion": "average", **o}), USUAL | {
        "discount": (0.5, refuses("criterion='average' has none; omit discount")), "criterion": ("discounted", CHANGES),
        "horizon": (2, refuses(INFINITE)), "weights": ([1, 1], refuses(INFINITE)), "terminal": NOT_TOTAL,
        "actions": NO_ACTIONS, "lump": (True, CHANGES),
    }),
    "total": (lambda _, **o: db.distance(*ENDS, **{"criterion": "total", **o}), USUAL | {
        "cost": (np.ones((3, 3)) - np.diag([0, 0, 1]), CHANGES),
        "discount": (0.5, refuses("criterion='total' has none; omit discount")), "criterion": ("discounted", CHANGES),
        "horizon": (2, refuses(INFINITE)), "weights": ([1, 1], refuses(INFINITE)),
        "terminal": ([(2, 2), (1, 1)], CHANGES), "actions": NO_ACTIONS, "lump": (True, CHANGES),
        "warm": (db.distance(*ENDS, criterion="total"), CHANGES),
    }),
    "MDPs": (lambda _, **o: db.distance(M, N, **o), USUAL | {
        "cost": (RNG.random((4, 4)), CHANGES), "discount": (0.5, CHANGES),
        "criterion": ("average", refuses("MDPs can only be compared with criterion='discounted'")),
        "horizon": (2, refuses("without a horizon")), "weights": ([1], refuses("without a horizon")),
        "terminal": (np.eye(4, dtype=bool), refuses("terminal is for criterion='total'")), "actions": ("lax", CHANGES),
        "lump": (True, refuses("lump=True does not support 'actions'")), "warm": (db.distance(M, N), CHANGES),
    }),
    "timed chains": (lambda _, **o: db.distance(*TIMED, **o), USUAL | {
        "discount": (0.5, CHANGES), "criterion": ("average", refuses("TimedChain is finite")), "horizon": (2, CHANGES),
        "weights": ([1, 0, 2, 1], CHANGES), "terminal": NOT_TOTAL, "actions": NO_ACTIONS, "tol": (0.9, CHECKED),
        "lump": (True, refuses("lump")), "warm": (db.distance(*TIMED), CHANGES),
        "solver": ("lp", refuses("does not support 'horizon'")),
    }),
    "samples": (lambda _, **o: db.distance(*STEPS, **{"cost": "indicator", "solver": SAMPLED, **o}), {
        "cost": (RNG.random((5, 5)), CHANGES), "discount": (0.5, CHANGES),
        "solver": (db.solvers.Somcot(max_iterations=30, rng=0), CHANGES), "tol": (0.1, refuses("has no tol")),
        "criterion": ("average", refuses("from samples only the discounted distance")),
        "horizon": (2, refuses("horizon is for known chains")), "weights": ([1], refuses("weights is for known")),
        "terminal": (np.eye(5), refuses("terminal is for known")), "actions": ("lax", refuses("actions is for known")),
        "lump": (True, refuses("without lump")), "callback": (None, CALLED),
        "warm": (db.distance(*STEPS, cost="indicator", solver=db.solvers.Somcot(max_iterations=20, rng=1)), CHANGES),
    }),
}  # fmt: skip

PARTS = {"initial": (1, CHANGES), "rewards": ([3, 4], CHANGES), "names": (["u", "v"], CHANGES)}
NOT_PATHS = (2, refuses("lag is 2, which is for trajectories"))
NO_GAPS = ("self-loop", CHECKED)
FILLED = ("uniform", CHANGES)
CONVERSIONS = {
    "table": (lambda f, **o: f(HALVES, **o), PARTS | {"unseen": NO_GAPS, "lag": NOT_PATHS}),
    "counts": (lambda f, **o: f(GAP, **{"unseen": "self-loop", **o}), PARTS | {
        "unseen": FILLED, "lag": (1, CHANGES),  # with a lag, rows are trajectories
    }),
    "mapping": (lambda f, **o: f({("a", "b"): 1, ("a", "a"): 1}, **{"unseen": "self-loop", **o}), PARTS | {
        "unseen": FILLED, "lag": NOT_PATHS,
    }),
    "chain": (lambda f, **o: f(db.MarkovChain(HALVES), **o), PARTS | {"unseen": NO_GAPS, "lag": NOT_PATHS}),
    "transitions": (
        lambda f, **o: f(db.Transitions.from_trajectories([[0, 1, 0, 0], [1, 1]]), **o), PARTS | {
        "names": (["u", "v"], refuses("names is for objects that do not name")), "unseen": NO_GAPS,
        "lag": (2, refuses("these transitions have lag 1; omit lag")),
    }),
    "trajectories": (lambda f, **o: f([[0, 1, 0, 0, 1, 1, 0]], **{"lag": 1, **o}), PARTS | {
        "names": (["u", "v"], refuses("names is for objects that do not name")), "unseen": NO_GAPS,
        "lag": (2, CHANGES),
    }),
}  # fmt: skip
MODELS = {
    "model": (lambda f, **o: f(model_of(o.pop("folder"), "storm"), **{"unseen": "self-loop", **o}), PARTS | {
        "rewards": ("goal", CHANGES), "unseen": FILLED, "lag": NOT_PATHS,
    }),
}  # fmt: skip
MDPS = {
    "MDP": (lambda f, **o: f(db.MDP([HALVES, np.eye(2)]), **o), PARTS | {"unseen": NO_GAPS, "lag": NOT_PATHS}),
    "model with choices": (lambda f, **o: f(model_of(o.pop("folder"), "mdp"), **{"unseen": "repeat", **o}), PARTS | {
        "rewards": ("goal", CHANGES), "unseen": FILLED, "lag": NOT_PATHS,
    }),
}  # fmt: skip

NO_NAMES = {  # MDP.of takes no names and no lag
    mode: (call, {name: row for name, row in rows.items() if name not in ("names", "lag")})
    for mode, (call, rows) in MDPS.items()
    if mode == "model with choices"
}

READ = PARTS | {"constants": ("N=1", refuses("constants"))}
del READ["names"]
FILES = {
    kind: (lambda f, kind=kind, **o: f(path_of(o.pop("folder"), kind), **{"unseen": "self-loop", **o}), READ | {
        "format": ("npz" if kind != "npz" else "csv", refuses("")), "unseen": ("uniform", CHANGES), **extra,
    })
    for kind, extra in {
        "csv": {}, "npz": {"unseen": NO_GAPS}, "prism": {}, "storm": {"rewards": ("goal", CHANGES)},
        "log": {"unseen": NO_GAPS},  # its sequences end in a state of their own
    }.items()
}  # fmt: skip
MDP_FILES = {
    kind: (lambda f, kind=kind, **o: f(path_of(o.pop("folder"), kind), **{"unseen": "repeat", **o}), READ | {
        "unseen": ("self-loop", CHANGES), "constants": ("N=1", refuses("constants")),
    })
    for kind in ("mdp", "choices")
}  # fmt: skip
WRITTEN = {
    "csv": (lambda _, **o: written(X, o.pop("folder") / "w.csv", **o), {"format": ("npz", CHANGES)}),
    "npz": (lambda _, **o: written(X, o.pop("folder") / "w.npz", **o), {"format": ("csv", CHANGES)}),
    "tra": (lambda _, **o: written(X, o.pop("folder") / "w.tra", **o), {"format": ("csv", CHANGES)}),
    "timed chain": (
        lambda _, **o: written(TIMED[0], o.pop("folder") / "w.npz", **o),
        {"format": ("csv", refuses("can only be written as .npz"))},
    ),
}  # fmt: skip
NEARLY = [[0.5, 0, 0.5], [0.501, 0, 0.499], [0, 0, 1]]  # the first two states behave alike, up to 0.001
LUMPED = {"tol": (0.1, CHANGES), "key": ([0, 0, 0], CHANGES)}
LUMPS = {
    "chain": (lambda f, **o: f(db.MarkovChain(NEARLY, rewards=[1, 1, 2]), **o), LUMPED),
    "MDP": (lambda f, **o: f(db.MDP([NEARLY, np.eye(3)], rewards=[1, 1, 2]), **o), LUMPED),
}
METRIC = {"discount": (0.5, CHANGES), "cost": ("indicator", CHANGES), "options": ({"tol": 0.9}, CHANGES)}
METRICS = {
    "actions": (lambda f, **o: f(M, **o), METRIC | {"actions": ("lax", CHANGES), "policy": ([0, 1, 0, 1], CHANGES)}),
    "policy": (lambda f, **o: f(M, **{"policy": [0, 0, 0, 0], **o}), METRIC | {
        "actions": ("lax", refuses("has no meaning if a policy")), "policy": ([0, 1, 0, 1], CHANGES),
    }),
}  # fmt: skip

WALKS = [db.LinearGaussian([[a, 0.2], [-0.2, 0.7]], 0.5, spread=0.5).sample(22, 8, k) for k, a in enumerate((0.8, 0.5))]
PATHS = {
    "trajectories": (lambda f, **o: f(*WALKS, **{"replicates": 24, "discount": 0.8, **o}), {
        "cost": ("cityblock", CHANGES), "discount": (0.5, CHANGES), "solver": ("somcot", refuses("use solver='exact'")),
        "criterion": ("average", CHANGES), "horizon": (3, CHANGES), "weights": ([1, 0, 2], CHANGES),
        "initial": ("pooled", CHANGES), "paired": (True, CHANGES), "n_states": (14, CHANGES),
        "scale": ([1.0, 10.0], CHANGES), "terminal": (lambda points: points[:, 0] > 1, CHANGES),
        "prune": (0.2, CHANGES), "confidence": (0.5, CHANGES), "replicates": (32, CHANGES), "rng": (1, CHANGES),
        "progress": (None, CALLED),
    }),
}  # fmt: skip

TABLE = [
    (estimate_paths, PATHS),
    (db.distance, DISTANCE),
    (db.as_chain, CONVERSIONS | MODELS | MDPS),
    (db.MarkovChain.of, CONVERSIONS | MODELS),
    (db.MDP.of, NO_NAMES),
    (db.read_chain, FILES),
    (db.read_mdp, MDP_FILES),
    (db.write_chain, WRITTEN),
    (db.lump, LUMPS),
    (db.bisimulation, METRICS),
]
ROWS = [
    pytest.param(function, call, argument, *row, id=f"{function.__qualname__}-{mode}-{argument}")
    for function, modes in TABLE
    for mode, (call, rows) in modes.items()
    for argument, row in rows.items()
]


# --- the checks ---------------------------------------------------------------------------------------------------


def plain(value):
    """What a result holds, as something that can be compared."""
    if isinstance(value, db.DistanceResult):
        rows = tuple((row.get("lower"), row.get("upper")) for row in value.history)
        facts = ("value", "lower", "upper", "solver", "outcome", "iterations", "work")
        return rows, plain([getattr(value, name) for name in facts])
    if isinstance(value, PathEstimate):
        return plain([value.value, value.lower, value.upper, value.halves])
    if isinstance(value, (db.MarkovChain, db.MDP)):
        return plain(value.__getstate__())
    if hasattr(value, "reward_residual"):
        return plain([value.assignment, value.residual])
    if isinstance(value, dict):
        return tuple((name, plain(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if sp.issparse(value):
        return plain(value.toarray())
    return repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value)


@pytest.mark.parametrize("function", [function for function, _ in TABLE], ids=lambda function: function.__qualname__)
def test_every_parameter_is_in_the_table(function):
    names = {name for name in inspect.signature(function).parameters if name not in OBJECTS or name == "cls"}
    for mode, (_, rows) in dict(TABLE)[function].items():
        assert set(rows) == names, mode


@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
@pytest.mark.parametrize(("function", "call", "argument", "value", "expected"), ROWS)
def test_no_argument_is_ignored(folder, function, call, argument, value, expected):
    here = {"folder": folder} if "folder" in call.__code__.co_consts else {}
    given = value if argument == "options" else {argument: value}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if expected == CHANGES:
            assert plain(call(function, **here, **given)) != plain(call(function, **here))
        elif expected == CHECKED:
            call(function, **here, **given)
            with pytest.raises(DiffbisimError, match=f"{argument} is 'nonsense'"):
                call(function, **here, **{argument: "nonsense"})
        elif expected == CALLED:
            rows = []
            call(function, **here, **{argument: lambda *row: rows.append(row)})
            assert rows
        else:
            with pytest.raises(DiffbisimError, match=expected[1]):
                call(function, **here, **given)
