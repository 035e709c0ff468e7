"""pandas, polars and xarray at the door: names decide, then positions, and names that do not match are refused.

The oracle is the same chain from bare arrays in the order that the names ask for.
"""

import itertools
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidChain, InvalidCost, InvalidData
from diffbisim.processes.planning import optimal_policy
from later import Later

xr = Later("xarray")

P = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]])
NAMES = ["a", "b", "c"]
ORDERS = list(itertools.permutations(range(3)))


def frame(table=P, rows=NAMES, columns=NAMES):
    return pd.DataFrame(table, index=rows, columns=columns)


def shuffled(order, names=NAMES):
    return [names[k] for k in order]


# --- kernels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ORDERS)
@pytest.mark.parametrize("columns", ORDERS)
@pytest.mark.parametrize("library", ["pandas", "xarray"])
def test_rows_and_columns_go_by_name(rows, columns, library):
    table = frame().loc[shuffled(rows), shuffled(columns)]
    if library == "xarray":
        table = xr.DataArray(table, dims=("now", "next"))
    chain = db.MarkovChain(table)
    assert chain.names == tuple(shuffled(rows))
    assert np.array_equal(chain.transition, P[np.ix_(rows, rows)])
    same = db.MarkovChain(table, names=NAMES)  # names that are given decide on the order
    assert same.names == tuple(NAMES)
    assert np.array_equal(same.transition, P)


def test_columns_in_another_order_do_not_change_the_distance():
    other = frame([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    X = db.MarkovChain(frame(), rewards=[0, 1, 2])
    known = db.distance(X, db.MarkovChain(other, rewards=[0, 1, 2]))
    found = db.distance(X, db.MarkovChain(other[["c", "a", "b"]], rewards=[0, 1, 2]))
    assert found.lower <= known.upper
    assert known.lower <= found.upper


def test_a_default_index_is_no_names():
    assert db.MarkovChain(pd.DataFrame(P)).names is None
    assert db.MarkovChain(pl.DataFrame(P)).names is None
    assert db.MarkovChain(xr.DataArray(P)).names is None
    turned = pd.DataFrame(P)[[2, 0, 1]]  # but numbers that were moved are
    assert np.array_equal(db.MarkovChain(turned).transition, P)
    assert db.MarkovChain(turned).names is None
    below = db.MarkovChain(pd.DataFrame(P).loc[[2, 0, 1]])
    assert below.names == (2, 0, 1)
    assert np.array_equal(below.transition, P[np.ix_([2, 0, 1], [2, 0, 1])])
    assert np.array_equal(db.MarkovChain(pd.DataFrame(P), names=NAMES).transition, P)


def test_names_of_several_levels_are_tuples():
    index = pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)])
    chain = db.MarkovChain(frame(P, index, index)[[("y", 1), ("x", 1), ("x", 2)]], initial=("x", 2))
    assert chain.names == (("x", 1), ("x", 2), ("y", 1))
    assert np.array_equal(chain.transition, P)
    assert np.array_equal(chain.initial, [0, 1, 0])


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            frame(columns=["a", "b", "d"]),
            {},
            "transition has a row 'c' but no column 'c'; both must name the states",
        ),
        (frame(rows=["a", "b", "b"]), {}, "the row index of transition names 'b' twice"),
        (frame(rows=["a", "b", None], columns=["a", "b", None]), {}, "a missing value"),
        (
            frame(),
            {"names": ["a", "b", "z"]},
            "the row index of transition names 'c', which is not a known state (the names are 'a',",
        ),
        (frame(rows=None), {}, "transition names its columns ('a', 'b', 'c') but not its rows; pass names=[...]"),
        (frame(columns=None), {}, "transition names its rows ('a', 'b', 'c') but not its columns"),
        (pl.DataFrame(P, schema=NAMES), {}, "transition names its columns ('a', 'b', 'c') but not its rows"),
        (frame().iloc[:2], {}, "transition has shape (2, 3); it must be square"),
        (
            [frame().loc["a"], frame().loc["b"], frame().loc["c"]],
            {},
            "transition is a list of named rows; combine them",
        ),
    ],
)
def test_names_that_do_not_match(table, options, message):
    with pytest.raises(InvalidChain, match=re.escape(message)):
        db.MarkovChain(table, **options)


def test_names_are_given_to_the_side_without_names():
    columns = ["c", "a", "b"]
    chain = db.MarkovChain(pl.DataFrame(P[:, [2, 0, 1]], schema=columns, orient="row"), names=NAMES)
    assert np.array_equal(chain.transition, P)
    assert chain.names == tuple(NAMES)


# --- rewards, starts, costs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_vectors_go_by_name(order):
    r, start = np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.25, 0.25])
    names = shuffled(order)
    as_series = {"rewards": pd.Series(r, NAMES)[names], "initial": pd.Series(start, NAMES)[names]}
    as_array = {name: xr.DataArray(value, dims="state") for name, value in as_series.items()}
    as_mapping = {name: value.to_dict() for name, value in as_series.items()}
    for options in (as_series, as_array, as_mapping):
        chain = db.MarkovChain(P, names=NAMES, **options)
        assert np.array_equal(chain.rewards, r)
        assert np.array_equal(chain.initial, start)
        assert np.array_equal(chain.with_initial(options["initial"]).initial, start)
    numbered = db.MarkovChain(P, rewards=pd.Series(r)[list(order)])
    assert np.array_equal(numbered.rewards, r)


def test_without_an_index_of_its_own_a_series_goes_by_position():
    assert np.array_equal(db.MarkovChain(P, rewards=pd.Series([1, 2, 4]), names=NAMES).rewards, [1, 2, 4])
    assert np.array_equal(db.MarkovChain(P, rewards=pl.Series([1, 2, 4]), names=NAMES).rewards, [1, 2, 4])
    assert np.array_equal(db.MarkovChain(P, rewards=pd.Series([1, 2, 4]), names=[2, 0, 1]).rewards, [4, 1, 2])


def test_a_start_may_leave_out_states_and_rewards_may_not():
    assert np.array_equal(db.MarkovChain(frame(), initial=pd.Series({"c": 0.75, "a": 0.25})).initial, [0.25, 0, 0.75])
    with pytest.raises(InvalidChain, match="rewards has no entry for state 'b'"):
        db.MarkovChain(frame(), rewards=pd.Series({"c": 1, "a": 2}))
    with pytest.raises(InvalidChain, match="rewards names 'z', which is not a known state"):
        db.MarkovChain(frame(), rewards=pd.Series([1, 2, 3, 4], [*NAMES, "z"]))
    with pytest.raises(
        InvalidChain, match=re.escape("rewards names 'a', which is not a known state (there are no names)")
    ):
        db.MarkovChain(P, rewards=pd.Series([1, 2, 3], NAMES))
    with pytest.raises(InvalidChain, match="rewards names 'a' twice"):
        db.MarkovChain(frame(), rewards=pd.Series([1, 2, 3, 4], [*NAMES, "a"]))
    with pytest.raises(InvalidChain, match=re.escape("rewards[1] is nan")):
        db.MarkovChain(frame(), rewards=pd.Series([1, None, 3], NAMES))


def test_costs_go_by_name():
    X, Y = db.MarkovChain(frame()), db.MarkovChain(frame([[0, 1], [1, 0]], ["u", "v"], ["u", "v"]))
    table = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 6.0]])
    named = frame(table, NAMES, ["u", "v"]).loc[["c", "a", "b"], ["v", "u"]]
    for cost in (named, xr.DataArray(named), lambda X, Y: named):
        assert np.array_equal(db.distance(X, Y, cost).problem.cost, table)
    for wrong, message in (
        (named.T, "the row index of cost names 'v', which is not a known state of X (the names are 'a', 'b', 'c')"),
        (named.loc[["c", "a"]], "the row index of cost has no entry for state of X 'b'"),
        (named.rename(columns={"v": "w"}), "the column index of cost names 'w', which is not a known state of Y"),
    ):
        with pytest.raises(InvalidCost, match=re.escape(message)):
            db.distance(X, Y, wrong)
    bare = db.MarkovChain(P)
    with pytest.raises(InvalidCost, match=re.escape("which is not a known state of X (there are no names)")):
        db.distance(bare, Y, named)


# --- MDPs -------------------------------------------------------------------------------------------------------


def test_mdps_go_by_name():
    stay, move = np.eye(3), P
    r = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    pi = np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])
    known = db.MDP([stay, move], rewards=r, names=NAMES, actions=["stay", "move"], initial=[0, 0.5, 0.5])
    turned = ["c", "a", "b"]
    kernels = [frame(stay), frame(move).loc[turned, ["b", "a", "c"]]]
    table = xr.DataArray(np.stack([move, stay]), [("action", ["move", "stay"]), ("now", NAMES), ("next", NAMES)])
    rewards = frame(r, NAMES, ["stay", "move"]).loc[turned, ["move", "stay"]]
    start = pd.Series({"c": 0.5, "b": 0.5})
    for mdp in (
        db.MDP(kernels, rewards=rewards, actions=["stay", "move"], initial=start),
        db.MDP({"stay": kernels[0], "move": kernels[1]}, rewards=rewards, initial=start),
        db.MDP({"move": move, "stay": stay}, rewards=rewards, names=NAMES, actions=["stay", "move"], initial=start),
        db.MDP(table, rewards=rewards, actions=["stay", "move"], initial=start),
    ):
        assert (mdp.names, mdp.actions) == (tuple(NAMES), ("stay", "move"))
        assert np.array_equal(mdp.rewards, r)
        assert np.array_equal(mdp.initial, known.initial)
        for a in range(2):
            assert np.array_equal(mdp.transition[a], known.transition[a])
        policy = frame(pi, NAMES, ["stay", "move"]).loc[turned, ["move", "stay"]]
        assert np.array_equal(mdp.induced_chain(policy).transition, known.induced_chain(pi).transition)
        chosen = pd.Series([0, 1, 1], NAMES)[turned]
        assert np.array_equal(mdp.induced_chain(chosen).transition, known.induced_chain([0, 1, 1]).transition)
    for options, message in (
        (
            {"rewards": rewards.rename(columns={"move": "run"})},
            "the column index of rewards names 'run', which is not a known act",
        ),
        ({"rewards": rewards.drop("b")}, "the row index of rewards has no entry for state 'b'"),
    ):
        with pytest.raises(InvalidChain, match=re.escape(message)):
            db.MDP(kernels, actions=["stay", "move"], **options)
    with pytest.raises(InvalidChain, match="transition names 'move', which is not a known action"):
        db.MDP({"move": move, "stay": stay}, actions=["stay", "walk"])
    with pytest.raises(InvalidChain, match="matrix per action"):
        db.MDP(frame())


# --- observations -----------------------------------------------------------------------------------------------


SEEN = pd.DataFrame(
    {"state": ["b", "a", "b", "c"], "next_state": ["a", "b", "c", "b"], "weight": [1.0, 2.0, 3.0, 4.0]},
    index=[10, 20, 30, 40],
)


def test_pairs_with_one_index_go_by_it():
    turned = SEEN.loc[[30, 10, 40, 20]]
    known = db.MarkovChain.from_transitions(*SEEN[["state", "next_state"]].to_numpy().T, weights=[1, 2, 3, 4])
    chain = db.MarkovChain.from_transitions(SEEN.state, turned.next_state, weights=turned.weight)
    assert np.array_equal(chain.transition, known.transition)
    assert chain.initial[chain.index("b")] == 1
    bare = db.MarkovChain.from_transitions(SEEN.state, SEEN.next_state, weights=pd.Series([1, 2, 3, 4]))
    assert np.array_equal(bare.transition, known.transition)
    with pytest.raises(
        InvalidData, match="weights and s have different indices; give weights that of s, or a bare array"
    ):
        db.MarkovChain.from_transitions(SEEN.state, SEEN.next_state, weights=SEEN.weight.rename(lambda k: k + 1))


def test_a_walk_against_itself_goes_by_position():
    walk = pd.Series(["a", "b", "b", "a", "a"])
    chain = db.MarkovChain.from_transitions(walk[:-1], walk[1:])
    assert np.array_equal(chain.transition, db.MarkovChain.from_trajectories([walk.tolist()]).transition)
    assert np.array_equal(chain.transition, db.MarkovChain.from_trajectories([walk]).transition)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
@pytest.mark.parametrize("make", [list, pd.Series, lambda x: np.array(x, dtype=object), lambda x: pd.array(x)])
def test_missing_values_are_no_states(missing, make):
    values = make([missing, pd.Timestamp("2024-01-01")] if missing is pd.NaT else ["a", missing])
    for call in (
        lambda: db.MarkovChain.from_transitions(values, values),
        lambda: db.MarkovChain.from_trajectories([values, values]),
    ):
        with pytest.raises(InvalidData, match="a missing value; drop the entry"):
            call()


@pytest.mark.parametrize("library", [pd, pl])
def test_integers_with_gaps_are_not_floats(library):
    whole = library.Series([0, 1, 1])
    assert db.MarkovChain.from_transitions(whole, whole).names is None
    with pytest.raises(InvalidData, match="a missing value"):
        db.MarkovChain.from_transitions(library.Series([0, None, 1]), whole)


def test_dates_stay_dates():
    days = pd.Series(pd.to_datetime(["2024-01-02", "2024-01-01"]))
    chain = db.MarkovChain.from_transitions(days, days[::-1].reset_index(drop=True))
    assert chain.names == (days[1], days[0])
    assert chain.index(pd.Timestamp("2024-01-02")) == 1
    assert db.MarkovChain.from_transitions(xr.DataArray(days), xr.DataArray(days)).n_states == 2


@pytest.mark.parametrize("table", [SEEN, pl.DataFrame({"state": ["a", "b"]})])
def test_a_table_is_no_list_of_trajectories(table):
    with pytest.raises(InvalidData, match="trajectories is a DataFrame; pass a list with one sequence of states"):
        db.MarkovChain.from_trajectories(table)


def test_planning_and_identification_go_by_name():
    mdp = db.MDP([np.eye(3), P], names=NAMES, actions=["stay", "move"])
    r = np.array([0.0, 1.0, 4.0])
    turned = pd.Series(r, NAMES)[["c", "a", "b"]]
    assert np.array_equal(optimal_policy(mdp, 0.9, turned), optimal_policy(mdp, 0.9, r))
    table = frame(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), NAMES, ["stay", "move"])
    found = optimal_policy(mdp, 0.1, table.loc[["b", "c", "a"], ["move", "stay"]])
    assert np.array_equal(found, [1, 0, 1])
    data = db.Transitions.from_trajectories([["a", "b", "c", "b", "a", "b"]])
    options = {"replicates": 0, "max_iterations": 3}
    fits = [db.identify(data, rewards=rewards, **options).fit.distance.value for rewards in (r, turned)]
    assert fits[0] == fits[1]
