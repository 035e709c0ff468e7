"""Nothing that a result hands out can break it, and nothing that a caller owns is kept.

Laws: an array is either read-only or a copy (writing to it changes no second reading); a result reads the same after
its arguments have been overwritten.
"""

import copy
import pickle
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact, Lumped, SinkhornPolicy, Somcot
from diffbisim.solvers.exact.tracking import TrackingSolver as Follow

pytestmark = pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")

SOLVERS = {
    "exact": Exact(),
    "reachable": Exact(reachable=True),
    "lumped": Lumped(Exact()),
    "lumped reachable": Lumped(Exact(reachable=True)),
    "followed": Follow(Exact()),
    "lp": db.solvers.LinearProgram(),
    "sinkhorn": SinkhornPolicy(tol=0.1),
    "entropic": SinkhornPolicy(epsilon=0.3, tol=0.1),
    "somcot": Somcot(max_iterations=200, rng=0),
}


def kernels():
    rng = np.random.default_rng(41)
    P = np.zeros((4, 4))
    P[:3, :3] = rng.dirichlet(np.ones(3), 3)
    P[3] = [0.3, 0.3, 0.0, 0.4]  # never reached
    return P, rng.dirichlet(np.ones(3), 3)


def solved(solver, form):
    P, Q = kernels()
    rewards = np.array([0.0, 1.0, 0.3, 2.0]), np.array([0.2, 0.9, 0.1])
    X, Y = db.MarkovChain(form(P), rewards=rewards[0]), db.MarkovChain(form(Q), rewards=rewards[1])
    return SOLVERS[solver].solve(Discounted.make(X, Y, "reward", 0.8))


# --- everything that can be asked of a result ---------------------------------------------------------------------


def handed_out(result):
    """Every array, by name, of every answer of the public interface; sparse ones by their buffers."""
    answers = {name: read(result, name) for name in dir(result) if not name.startswith("_") and name not in CALLS}
    answers |= {name: read(result, name, *arguments) for name, arguments in CALLS.items()}
    return dict(arrays_in(answers, "result"))


CALLS = {"plan": (0, 0), "potentials": (0, 0), "implicit_reward": (), "arrays": ()}


def read(result, name, *arguments):
    if name == "save":
        return None
    try:
        value = getattr(result, name)
        return value(*arguments) if name in CALLS else value
    except db.InvalidArgument:  # refused where pairs were not solved
        return None


def arrays_in(value, name):
    if isinstance(value, np.ndarray):
        yield name, value
    elif sp.issparse(value):
        for buffer in ("data", "indices", "indptr") if value.format == "csr" else ("data", "row", "col"):
            yield f"{name}.{buffer}", getattr(value, buffer)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from arrays_in(part, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for k, part in enumerate(value):
            yield from arrays_in(part, f"{name}[{k}]")
    elif isinstance(value, (db.DistanceResult, Problem, db.MarkovChain)) or is_dataclass(value):
        for field in fields(value):
            yield from arrays_in(getattr(value, field.name), f"{name}.{field.name}")


def overwrite(array):
    """Write to an array if that is possible."""
    if array.flags.writeable:
        array[...] = True if array.dtype == bool else 0 if array.dtype.kind in "iu" else 123.0


WAYS = {
    "made": lambda result: result,
    "pickled": lambda result: pickle.loads(pickle.dumps(result)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_writing_to_what_a_result_hands_out_changes_nothing(solver, form, way):
    result = solved(solver, form)
    handed_out(result)  # what is computed once is there before it is copied
    result = WAYS[way](result)
    before = {name: array.copy() for name, array in handed_out(result).items()}
    assert {"result.values", "result.occupancy", "result.problem.cost", "result.gradient.cost"} <= set(before)
    for array in handed_out(result).values():
        overwrite(array)
    after = handed_out(result)
    assert set(after) == set(before)
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert result.lower <= result.value <= result.upper


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_computed_once_is_read_only(solver, way):
    result = solved(solver, np.asarray)
    handed_out(result)
    result = WAYS[way](result)
    kept = {name: array for name, array in handed_out(result).items() if not name.startswith(FRESH)}
    assert not [name for name, array in kept.items() if array.flags.writeable]


#: Made anew by every call.
FRESH = tuple(f"result.{name}" for name in (*CALLS, "assignment", "unvisited", "coupling"))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_sparse_gradient_that_is_given_other_buffers_stays_with_the_caller(solver):
    """Read-only buffers are not enough: a matrix can be resized, or handed others."""
    result = solved(solver, sp.csr_array)
    before = result.gradient.transition_x.toarray()
    result.gradient.transition_x.resize(1, 4)
    changed = result.gradient.transition_x
    changed.data = np.zeros_like(changed.data)
    with pytest.raises(ValueError, match="read-only"):
        result.gradient.transition_x[0, 3] = 5.0
    np.testing.assert_array_equal(result.gradient.transition_x.toarray(), before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_of_history_and_counts_are_read_only_mappings(solver, way):
    result = WAYS[way](solved(solver, np.asarray))
    for row in (*result.history, result.work):
        for change in (
            lambda row: row.__setitem__("lower", 0.0),
            lambda row: row.update(lower=0.0),
            lambda row: row.setdefault("new", 0.0),
            lambda row: row.pop("lower", None),
            lambda row: row.clear(),
        ):
            with pytest.raises(TypeError, match="read-only"):
                change(row)
        assert dict(row) == row


def test_a_callback_cannot_change_the_bounds():
    P, Q = kernels()
    X, Y = db.MarkovChain(P), db.MarkovChain(Q)
    cost = np.random.default_rng(42).random((4, 3))
    with pytest.raises(TypeError, match="read-only"):
        db.distance(X, Y, cost, callback=lambda row: row.update(lower=1.0, upper=0.0))


# --- what the caller owns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.coo_array], ids=["dense", "csr", "coo"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_arguments_can_be_overwritten_afterwards(solver, form):
    (P, Q), rng = kernels(), np.random.default_rng(43)
    P, Q = form(P), form(Q)
    starts, rewards = [rng.dirichlet(np.ones(n)) for n in (4, 3)], [rng.random(n) for n in (4, 3)]
    cost = rng.random((4, 3))
    X, Y = (
        db.MarkovChain(matrix, initial=start, rewards=reward)
        for matrix, start, reward in zip((P, Q), starts, rewards, strict=True)
    )
    results = [SOLVERS[solver].solve(Discounted.make(X, Y, given, 0.8)) for given in (cost, lambda X, Y: cost)]
    results.append(SOLVERS[solver].solve(Discounted(X, Y, cost, 0.8)))
    before = [{name: array.copy() for name, array in handed_out(result).items()} for result in results]
    for part in (*starts, *rewards, cost):
        part[...] = 7.0
    for matrix in (P, Q):
        for _, buffer in arrays_in(matrix, ""):
            overwrite(buffer)
    for result, kept in zip(results, before, strict=True):
        for name, array in handed_out(result).items():
            np.testing.assert_array_equal(array, kept[name], err_msg=name)


def test_the_chain_of_a_policy_does_not_keep_the_arrays_of_its_mdp():
    rng = np.random.default_rng(44)
    transition, rewards, policy = rng.dirichlet(np.ones(3), (2, 3)), rng.random(3), rng.dirichlet(np.ones(2), 3)
    mdp = db.MDP(transition, rewards=rewards)
    chain = mdp.induced_chain(policy)
    before = chain.transition.copy(), chain.rewards.copy()
    for array in (transition, rewards, policy):
        array[...] = 9.0
    np.testing.assert_array_equal(chain.transition, before[0])
    np.testing.assert_array_equal(chain.rewards, before[1])


@pytest.mark.parametrize("passed", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_of_successors_stay_read_only(passed):
    s = db.MarkovChain(kernels()[0]).successors
    for mine, theirs in zip(s, passed(s), strict=True):
        assert np.array_equal(mine, theirs)
        assert not theirs.flags.writeable


# --- states that were left out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lump", [False, True])
def test_derivatives_of_reachable_pairs_are_those_of_the_full_solve_or_missing(lump):
    P = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.3, 0.3, 0.4]])
    X, Y = (db.MarkovChain(P, rewards=rewards) for rewards in ([0.0, 1.0, 2.0], [0.0, 0.5, 2.0]))
    full, part = db.distance(X, Y), db.distance(X, Y, lump=lump, solver=Exact(reachable=True))
    assert not part.coupling.complete
    for name in ("transition_x", "transition_y"):
        G = getattr(part.gradient, name).tocoo()
        assert sorted(zip(*G.coords, strict=True)) == sorted(zip(*np.nonzero(P), strict=True))
        np.testing.assert_allclose(G.data, getattr(full.gradient, name)[G.coords], rtol=0, atol=1e-6)
    for name in ("initial_x", "initial_y"):
        np.testing.assert_array_equal(np.isnan(getattr(part.gradient, name)), [False, True, True])
    np.testing.assert_allclose(part.occupancy, full.occupancy, rtol=0, atol=1e-7)
    f, g = part.potentials(0, 0)
    for mine, theirs in zip((f, g), full.potentials(0, 0), strict=True):
        assert np.isnan(mine[2])
        np.testing.assert_allclose(np.diff(mine[:2]), np.diff(theirs[:2]), rtol=0, atol=1e-6)
    for ask in (lambda: part.implicit_reward(), lambda: part.duals, lambda: part.plan(2, 2)):
        with pytest.raises(db.InvalidArgument, match="reachable"):
            ask()
    with pytest.raises(db.InvalidArgument, match="reachable"):
        part.coupling.weighted_potentials(part.occupancy, everywhere=True)


@pytest.mark.parametrize("lump", [False, True])
def test_encoder_of_states_that_were_left_out_goes_by_the_cost(lump):
    """State 2 of X and state 1 of Y are out of reach: their distances are not known, their costs are."""
    P = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    X, Y = db.MarkovChain(P, rewards=[0.0, 1.0, 2.0]), db.MarkovChain(np.eye(2), rewards=[0.0, 2.0])
    full, part = db.distance(X, Y), db.distance(X, Y, lump=lump, solver=Exact(reachable=True))
    assert [side.tolist() for side in part.unvisited] == [[2], [1]]
    assert part.encoder.tolist() == [[1, 0], [1, 0], [0, 1]]  # |2 - 2| = 0
    assert part.assignment.tolist() == full.assignment.tolist() == [0, 0, 1]
    assert part.decoder[1].tolist() == [0, 0, 1]
    np.testing.assert_allclose(part.decoder[0], full.decoder[0], rtol=0, atol=1e-7)


def test_an_unvisited_state_whose_pairs_were_all_solved_still_gets_its_nearest():
    """One state of X: from y = 0 the pair (0, 1) is out of reach, from y = 1 both are solved."""
    X = db.MarkovChain(np.eye(1), rewards=[0.0])
    Y = db.MarkovChain([[1.0, 0.0], [1.0, 0.0]], rewards=[0.0, 1.0], initial=[1.0, 0.0])
    part = db.distance(X, Y, solver=Exact(reachable=True))
    assert np.isnan(part.values[0, 1])
    assert part.decoder.tolist() == [[1.0], [1.0]]
    again = db.distance(X, Y.with_initial(1), solver=Exact(reachable=True))
    assert again.decoder.tolist() == [[1.0], [1.0]]


def test_reachable_results_can_be_drawn():
    import matplotlib as mpl

    mpl.use("Agg")
    P = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    X, Y = db.MarkovChain(P, rewards=[0.0, 1.0, 2.0]), db.MarkovChain(np.eye(2), rewards=[0.0, 2.0])
    part = db.distance(X, Y, lump=True, solver=Exact(reachable=True))
    for draw in (db.plot.encoder, db.plot.decoder, db.plot.coupling, db.plot.history):
        ax = draw(part)
        ax.figure.canvas.draw()
        for image in ax.images:
            shown = image.get_array()
            assert np.nanmax(shown) <= 1.0 + 1e-12


@pytest.mark.parametrize("lump", [False, True])
def test_a_reachable_result_comes_back_whole(lump, tmp_path):
    P, Q = kernels()
    X, Y = db.MarkovChain(P, rewards=[0.0, 1.0, 1.0, 2.0]), db.MarkovChain(Q, rewards=[0.0, 1.0, 1.0])
    part = db.distance(X, Y, lump=lump, solver=Exact(reachable=True))
    part.save(tmp_path / "result.npz")
    again = db.load(tmp_path / "result.npz")
    assert again.coupling.complete == part.coupling.complete
    assert type(again.coupling) is type(part.coupling)
    np.testing.assert_array_equal(again.values, part.values)
    np.testing.assert_array_equal(again.encoder, part.encoder)
    for name in ("initial_x", "initial_y"):
        np.testing.assert_array_equal(getattr(again.gradient, name), getattr(part.gradient, name))
