"""What people hand over by mistake, at every public door: the message names the argument and the remedy."""

import re
import sys

import numpy as np
import pytest

import diffbisim as db
from later import Later

X = db.MarkovChain([[0.9, 0.1], [0.5, 0.5]], rewards=[0, 1])
Y = db.MarkovChain([[0.8, 0.2, 0.0], [0.3, 0.3, 0.4], [0.0, 0.6, 0.4]], rewards=[0, 1, 1])
SEEN = db.Transitions.from_trajectories([[0, 1, 0, 0, 1], [1, 0, 1, 1]], states=2)
MDP = db.examples.imitation_chain()
ROOMS = db.MDP([np.eye(3)] * 2, rewards=[0, 1, 2])
ACTED = db.Transitions.from_pairs([0, 1], [1, 0], actions=[0, 1])


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: db.distance(X, Y, discount="0.9"), "discount is '0.9'; it must lie strictly between 0 and 1"),
        (lambda: db.distance(X, Y, discount=None), "discount is None"),
        (lambda: db.distance(X, Y, discount=np.array([0.9, 0.8])), "discount is array"),
        (lambda: db.distance(X, Y, tol="small"), "tol is 'small'; it must be positive"),
        (lambda: db.distance(SEEN, Y), "X is a Transitions, which provides samples only"),
        (lambda: db.distance(X, SEEN, solver="somcot", lump=True), "Y is a Transitions.*without lump"),
        (lambda: db.distance(X, Y, solver=db.solvers.Exact), "solver is the class Exact; give a name"),
        (lambda: db.distance(X, Y, warm=0.3), "warm is a float; give a previous result of distance"),
        (lambda: db.distance(MDP, MDP, "indicator", lump=True), "lump=True does not support 'actions'.*; omit it"),
        (lambda: db.distance(X, Y, callback=3), "callback is a int; give a function"),
        (lambda: db.compress(X, 1, callback=3), "callback is a int; give a function"),
        (lambda: db.distance(X, Y).plan("home", 0), "x = 'home' is not a state: give an index"),
        (lambda: db.solvers.Exact(threads="all"), "threads is 'all'"),
        (lambda: db.solvers.Exact(threads=1.5), "threads is 1.5; it must be a whole number"),
        (lambda: db.solvers.Exact(threads=float("inf")), "threads is inf; it must be a whole number"),
        (lambda: db.solvers.Exact(reachable="no"), "reachable is 'no'; it must be True or False"),
        (lambda: db.distance(X, Y, lump="no"), "lump is 'no'; it must be True or False"),
        (lambda: db.distance(X, Y, horizon=10**15), "horizon is 1000000000000000, whose .* GB of this machine"),
        (lambda: db.compress(X, 1, starts=None), "starts is a NoneType; give a list"),
        (lambda: db.solvers.SinkhornPolicy(epsilon="warm"), "epsilon is 'warm'"),
        (lambda: db.solvers.Somcot("many"), "max_iterations is 'many'"),
        (lambda: db.solvers.LinearProgram(time_limit="long"), "time_limit is 'long'"),
        (lambda: db.pairwise(X), "chains is a MarkovChain; give a list"),
        (lambda: db.lump(X, tol="exact"), "tol is 'exact'"),
        (lambda: db.lump(X, key=5), "key is 5 .*; give 2 hashables, one per state"),
        (lambda: db.lump(X, key=[{0}, {1}]), "key is .*unhashable type"),
        (lambda: db.bisimulation(MDP, options=1), "options is not an argument of bisimulation"),
        (
            lambda: db.policy_similarity(MDP, policy_x=MDP.uniform_policy(), options=1),
            "options is not an argument of policy_similarity",
        ),
        (
            lambda: db.estimate(SEEN, SEEN, "indicator", replicates=2**40),
            "replicates is 1099511627776.*at most 1,000,0",
        ),
        (lambda: db.estimate(SEEN, SEEN, "indicator", terminal=np.timedelta64(1, "s")), "terminal: .*is not a state"),
        (lambda: db.compress(X, np.timedelta64(1, "s")), "it must be an integer of at least 1"),
        (lambda: db.compare({"a": SEEN, "b": SEEN}, rewards=(1,)), "rewards is a tuple of 1 entries for 2 groups"),
        (lambda: db.estimate({"a": SEEN}, SEEN), r"X is a dict.*use diffbisim.compare\(groups\)"),
        (
            lambda: db.estimate(Later("pandas").DataFrame({"s": [0, 1]}), SEEN),
            "X is a DataFrame.*Transitions.from_frame",
        ),
        (lambda: db.estimate(SEEN, SEEN, rewards=[0, 1], replicates="many"), "replicates is 'many'"),
        (lambda: db.estimate(SEEN, SEEN, rewards=[0, 1], confidence="high"), "confidence is 'high'"),
        (lambda: db.compress(X, 1, time_limit="long"), "time_limit is 'long'; give seconds"),
        (lambda: db.compress_sweep(X, 5), "sizes is 5; give numbers of states"),
        (lambda: db.compress_sweep(X, [1], restart=2), "compress_sweep has no option 'restart'; it has: .* restarts"),
        (lambda: db.fit(X, db.kernels.Softmax(2), max_iterations=-1), "max_iterations is -1"),
        (lambda: db.fit(X, db.kernels.Softmax(2), every=0), "every is 0"),
        (lambda: db.fit(X, db.kernels.Softmax(2), inner_gap=-1), "inner_gap is -1"),
        (lambda: db.kernels.Softmax(2, logits=np.zeros((2, 3))), r"shape \(2, 3\); this kernel needs shape \(2, 2\)"),
        (
            lambda: db.kernels.MaskedSoftmax(np.eye(2), logits=[0, 0, 0]),
            r"shape \(3,\); this kernel needs shape \(2,\)",
        ),
        (lambda: db.kernels.Mixture([X, Y]), "they must be equal"),
        (lambda: db.imitate(MDP, X, tol="small"), "tol is 'small'"),
        (lambda: db.plot.distances(np.zeros((3, 3)), names=["a"]), "names has 1 entries for 3 rows"),
        (lambda: db.plot.embedding(np.zeros((3, 3)), names=["a"]), "names has 1 entries for 3 rows"),
        (lambda: db.write_chain(MDP, "mdp.npz"), "chain is a MDP, not a MarkovChain"),
    ],
)
def test_arguments_are_refused_by_name(call, part):
    with pytest.raises(db.InvalidArgument, match=part):
        call()


@pytest.mark.parametrize(
    ("error", "call", "part"),
    [
        (db.InvalidChain, lambda: db.as_chain(np.eye(2), names=5), "names is 5; give a list of names"),
        (
            db.InvalidChain,
            lambda: db.Transitions.from_trajectories([[0, 1]], states=1.5),
            "states is 1.5; give a list of names",
        ),
        (
            db.InvalidChain,
            lambda: db.Transitions.from_frame({"state": [0, 1]}, states=1.5),
            "states is 1.5; give a list of names",
        ),
        (db.InvalidChain, lambda: SEEN.chain(initial=np.timedelta64(1, "s")), "is not a state; give an index"),
        (
            db.InvalidData,
            lambda: db.Transitions.from_trajectories([[0, 1]], actions=5),
            "actions is 5; give one sequence per traj",
        ),
        (
            db.InvalidData,
            lambda: db.Transitions.from_trajectories([[0, 1]], rewards=5),
            "rewards is 5; give one sequence per traj",
        ),
        (
            db.InvalidData,
            lambda: db.imitate(MDP, Later("pandas").DataFrame({"episode": [1], "state": [0]})),
            r"expert is a DataFrame; pass diffbisim.Transitions.from_frame\(table, .*end=None\)",
        ),
        (
            db.InvalidData,
            lambda: db.imitate(MDP, db.Transitions.from_frame({"state": [0, 1, 2]})),
            "state '■' is not a state of the MDP.*create the data with end=None",
        ),
        (db.InvalidChain, lambda: db.MDP(None), "one .* matrix per action"),
        (db.InvalidChain, lambda: X.name_of("home"), "'home' is not a state"),
        (db.InvalidChain, lambda: db.MarkovChain(np.eye(2), rewards=np.ones((2, 0))), r"rewards has shape \(2, 0\)"),
        (db.InvalidCost, lambda: db.feature_cost([["a"]], [["b"]]), "features_x is not an array of numbers"),
        (db.InvalidCost, lambda: db.feature_cost([[1.0]], [[2.0]], metric=3), "metric 3"),
        (db.InvalidData, lambda: db.Transitions.from_trajectories(None), "trajectories is None; pass a list"),
    ],
)
def test_data_are_refused_by_name(error, call, part):
    with pytest.raises(error, match=part):
        call()


@pytest.mark.parametrize("where", ["", "missing/result.npz"])
def test_a_place_that_cannot_be_written_is_named_and_not_a_temporary_file(tmp_path, where):
    path = tmp_path / where
    with pytest.raises(OSError, match=re.escape(str(path)) + "'$") as fault:
        db.distance(X, Y).save(path)
    assert ("does not exist; create it first" in str(fault.value)) == bool(where)
    assert list(tmp_path.iterdir()) == []


def test_an_array_file_is_no_result(tmp_path):
    np.save(tmp_path / "array.npy", np.eye(2))
    with pytest.raises(db.InvalidData, match=r"array\.npy is not a saved result"):
        db.load(tmp_path / "array.npy")


def test_compress_takes_data_with_states_never_left():
    data = db.Transitions.from_pairs([0, 0, 1], [1, 2, 0])
    with pytest.raises(db.InvalidData, match="unseen="):
        db.compress(data, 3, target_rewards=[0, 1, 2])
    small = db.compress(data, 3, target_rewards=[0, 1, 2], unseen="self-loop")
    assert small.distance.upper <= 1e-6  # as many states as the data have: the chain itself


HUGE = 10**400


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: db.MarkovChain([[HUGE, 0], [0, 1]]), "transition is not a rectangular table"),
        (lambda: db.MarkovChain(np.eye(2), rewards=[HUGE, 0]), "rewards is not an array of numbers"),
        (lambda: db.MarkovChain(np.eye(2), initial=[HUGE, 0]), "initial is not an array of numbers"),
        (lambda: db.MDP([np.eye(2)], rewards=[HUGE, 0]), "rewards is not an array of numbers"),
        (lambda: db.distance(X, X, [[HUGE, 0], [0, 0]]), "cost is not an array of numbers"),
        (lambda: db.distance(X, X, weights=[HUGE, 0]), "weights is not a list of numbers"),
        (lambda: db.feature_cost([[HUGE]], [[1]]), "features_x is not an array of numbers"),
        (lambda: db.distance(X, X, horizon=HUGE), "horizon is an integer of 1329 bits; give one below"),
        (lambda: db.compress(X, HUGE), "n_states is an integer of 1329 bits"),
        (lambda: db.compress(X, 1, restarts=HUGE), "restarts is an integer of 1329 bits"),
        (lambda: db.compress(X, 1, restarts=10**5000), "restarts is an integer of 16610 bits"),
        (lambda: db.compress(X, 20_000), "n_states is 20000, but the chain has 2 states .* at most n_states=2"),
        (lambda: db.compress_sweep(X, [20_000]), "n_states is 20000, but the chain has 2 states"),
        (lambda: db.MarkovChain(np.eye(2), names=["a", "\ud800"]), r"names\[1\] = '.ud800' .* surrogate"),
        (lambda: db.MarkovChain(np.eye(2), names=["a", (1, "\udc80")]), r"names\[1\] = .* surrogate"),
        (lambda: db.MDP([np.eye(2)], actions=["\ud800"]), r"actions\[0\] = '.ud800' .* surrogate"),
        (lambda: db.fit_simulator([np.zeros((5, 1))], lambda *_: None), "start is missing; give the initial"),
        (
            lambda: db.as_chain({("a", "b"): HUGE, ("b", "a"): 1}),
            "an edge has the weight 1000.*; weights must be",
        ),
        (lambda: db.as_chain({("a", "b"): np.timedelta64(1, "s")}), r"an edge has the weight np.timedelta64\(1,'s'\)"),
        (lambda: db.as_chain([[HUGE, 1], [1, 1]]), "transition is not a rectangular table"),
        (lambda: db.Transitions.from_trajectories([[0, 1]], states=HUGE), "states is an integer of 1329 bits"),
        (lambda: db.quantize([[[HUGE]]], [[[1]]], n_states=1), r"X\[0\] is not an array of numbers"),
        (lambda: db.quantize([np.zeros((3, 1), "M8[D]")], [np.ones((3, 1))], n_states=1), "its entries are dates"),
    ],
)
def test_numbers_names_and_sizes_out_of_range_are_refused_by_name(call, part):
    with pytest.raises(db.DiffbisimError, match=part):
        call()


def test_a_linear_program_takes_any_number_of_iterations():
    solver = db.solvers.LinearProgram(max_iterations=10**15)
    assert db.distance(X, X, solver=solver).upper <= 1e-9


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_rows_may_be_off_by_the_rounding_of_their_type(kind):
    import torch

    exact = np.random.default_rng(0).dirichlet(np.ones(30), 30)
    rounded = torch.tensor(exact).to(getattr(torch, kind))
    chain = db.MarkovChain(rounded, initial=rounded[0], rewards=rounded[0])
    np.testing.assert_allclose(chain.transition.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(chain.transition, exact, rtol=4 * torch.finfo(rounded.dtype).eps)
    for same in (rounded, rounded.to_sparse()):
        np.testing.assert_allclose(db.as_chain(same).transition.sum(axis=1), 1.0, rtol=1e-14)
    assert db.MDP([exact, exact]).induced_chain(rounded[:, :2] / rounded[:, :2].sum(1, keepdim=True)).n_states == 30
    if kind != "float32":
        with pytest.raises(db.InvalidChain, match="sums to"):
            db.MarkovChain(rounded.double())


def test_nan_of_a_model_is_called_nan():
    import torch

    import diffbisim.torch

    P = torch.tensor([[0.5, 0.5], [float("nan"), 1.0]])
    with pytest.raises(db.InvalidChain, match="row 1 of X contains NaN"):
        diffbisim.torch.distance(P, torch.eye(2), torch.eye(2), 0.9)


@pytest.mark.parametrize("sparse", [False, True])
def test_powers_of_a_kernel_stay_stochastic(sparse):
    """P = 1 π + λ (I - 1 π) has the powers 1 π + λ^k (I - 1 π)."""
    from scipy.sparse import csr_array

    π, λ = np.array([0.4, 0.6]), 0.95
    P = λ * np.eye(2) + (1 - λ) * π
    chain = db.MarkovChain(csr_array(P) if sparse else P)
    for k in (2, 7, 10**10, 10**300):
        exact = λ**k * np.eye(2) + (1 - λ**k) * π
        power = chain.at_lag(k).transition
        np.testing.assert_allclose(power.toarray() if sparse else power, exact, rtol=1e-13)


@pytest.mark.parametrize(
    "discount",
    [
        1.0,
        0,
        True,
        None,
        "x",
        [],
        pytest.param(10**400, id="huge"),
        np.array([]),
        np.datetime64(1, "s"),
        np.ma.masked,
        1.5,
        np.nan,
    ],
)
def test_groups_are_compared_only_with_a_discount(discount, monkeypatch):
    """It is checked before any permutation."""
    monkeypatch.setattr(sys.modules["diffbisim.statistics.groups"], "compare_pairs", pytest.fail)
    with pytest.raises(db.InvalidArgument, match=r"discount is .*; it must lie strictly between 0 and 1"):
        db.compare({"a": SEEN, "b": SEEN}, "indicator", discount)


NOTHING = np.array([])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: db.distance(X, Y, criterion=NOTHING), "criterion"),
        (lambda: db.estimate(SEEN, SEEN, "indicator", criterion=NOTHING), "criterion"),
        (lambda: db.bisimulation(MDP, actions=NOTHING), "actions"),
        (lambda: db.bisimulation(MDP, actions=NOTHING, policy=MDP.uniform_policy()), "actions"),
        (lambda: db.distance(MDP, MDP, "indicator", actions=NOTHING), "actions"),
        (lambda: db.compress(X, 1, model=NOTHING), "model"),
        (lambda: db.abstract(ROOMS, 2, method=NOTHING), "method"),
        (lambda: db.abstract(ROOMS, 2, score=NOTHING), "score"),
        (lambda: db.Transitions.from_frame({"state": [0, 1]}, missing=NOTHING), "missing"),
        (lambda: db.Transitions.from_frame({"state": [0, 1]}, duplicates=NOTHING), "duplicates"),
        (lambda: SEEN.chain(unseen=NOTHING), "unseen"),
        (lambda: db.as_chain(X, unseen=NOTHING), "unseen"),
        (lambda: db.compare({"a": SEEN, "b": SEEN}, "indicator", unseen=NOTHING), "unseen"),
        (lambda: db.MDP.from_transitions(ACTED, rewards=[0, 1], unseen=NOTHING), "unseen"),
    ],
)
def test_an_empty_array_is_no_choice(call, name):
    with pytest.raises(db.InvalidArgument, match=rf"^{name}[ =]"):
        call()
