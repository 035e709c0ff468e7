"""The engine's games: the same bits at every level and with all threads, and arrays that it cannot use are refused."""

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim import _engine
from diffbisim.problems.game import Game
from diffbisim.solvers import Exact
from diffbisim.solvers.exact import games
from levels import at_every_level
from oracles.games import random_mdp


def mdp(seed, n, sparse):
    rng = np.random.default_rng([29, seed])
    P, r = random_mdp(rng, n, 2, "garnet" if sparse else "dense")
    return db.MDP([sp.csr_array(K) for K in P] if sparse else P, rewards=r)


def begun(n_x, n_y):
    problem = Game.make(mdp(0, n_x, False), mdp(1, n_y, False), "reward", 0.9, "matched")
    return games.StrategyIteration(problem, Exact())


def bits(result):
    state = result.coupling.state()
    tables = result.values, result.values_lower, result.values_upper, result.occupancy
    return [result.lower, result.upper, result.work, *(array.tobytes() for array in (*tables, *state.values()))]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("actions", ["matched", "lax"])
def test_levels_and_threads_give_the_same_bits(monkeypatch, actions, sparse, one, many):
    if many:
        monkeypatch.setattr(games, "MANY", 0)
    M = mdp(0, 24, sparse)
    N = M if one else mdp(1, 22, sparse)
    found = []
    for threads in at_every_level(monkeypatch):
        found.append(bits(db.distance(M, N, discount=0.9, actions=actions, solver=Exact(threads=threads))))
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("one", [False, True])
def test_trees_of_other_kernels_are_adapted(one):
    """Kernels with the same supports: a run from the trees of the first ones takes fewer pivots, to the same answer."""
    rng = np.random.default_rng(3)
    P, Q = rng.dirichlet(np.ones(12), (2, 3, 12)), rng.dirichlet(np.ones(12), (2, 3, 12))
    r = rng.random((2, 12, 3))
    for step in (1e-4, 1e-2, 0.5):
        (M, N), (V, W) = (
            [db.MDP((1 - share) * P[k] + share * Q[k], rewards=r[k]) for k in range(2)] for share in (0.0, step)
        )
        N, W = (M, V) if one else (N, W)
        for actions in ("matched", "lax"):
            before = db.distance(M, N, discount=0.9, actions=actions)
            cold = db.distance(V, W, discount=0.9, actions=actions)
            warm = db.distance(V, W, discount=0.9, actions=actions, warm=before)
            assert warm.converged
            assert np.abs(warm.values - cold.values).max() <= 2e-8
            assert step > 0.01 or warm.work["pivots"] < cold.work["pivots"]


def test_a_run_is_stopped_by_another_thread():
    run = begun(30, 30)
    stop = np.ones(1, bool)
    with pytest.raises(KeyboardInterrupt):
        run.game.improve_pairs(run.U, 0, 0.0, _engine.Run(1, stop))
    with pytest.raises(TimeoutError):
        run.game.improve_pairs(run.U, 0, 0.0, _engine.Run(2, np.zeros(1, bool), 0.0))


@pytest.mark.parametrize(
    ("which", "change", "error"),
    [
        ("rules", {"members": np.array([0, 2])}, "members must be numbers of choices"),
        ("rules", {"lines": np.array([0, 0, 2])}, "every line needs a member"),
        ("rules", {"lines": np.array([0, 1])}, "lines must go from 0"),
        ("rules", {"base": np.zeros(3)}, "every choice needs a cost"),
        ("moves", {"line": np.full(12, 2)}, "line must be numbers of lines"),
        ("moves", {"chosen": np.zeros(13, np.int64)}, "chosen must be choices"),
        ("moves", {"value": np.zeros(11)}, "moves need one entry"),
        ("moves", {"delta": np.zeros(24, np.float32)}, "delta is not a contiguous array"),
        ("targets", {"numbers": np.full(12, 13)}, "numbers must be those of pairs"),
        ("targets", {"numbers": np.zeros(3, np.int64)}, "the states of X must be rows"),
        ("targets", {"target": np.zeros(5, np.int32)}, "one entry for every edge"),
        ("selected", {"residual": np.zeros(12, np.float32)}, "one row for every pair"),
    ],
)
def test_arrays_that_would_be_read_out_of_bounds_are_refused(which, change, error):
    run = begun(4, 3)
    transports = run.transports.core
    given = {"rules": run.rules, "moves": run.moves, "targets": run.targets, "selected": run.selected}
    game = _engine.Game(transports, **given)
    with pytest.raises((ValueError, TypeError), match=error):
        _engine.Game(transports, **given | {which: given[which]._replace(**change)})
    options = _engine.Run(1, np.zeros(1, bool))
    with pytest.raises(ValueError, match="one entry for every pair of states"):
        game.improve_pairs(np.zeros(11), 0, 0.0, options)
    with pytest.raises(ValueError, match="u needs one entry for every pair"):
        game.improve_lines(np.zeros(12), 0.0, options)
    with pytest.raises(ValueError, match="no memory for selected plans"):
        game.select_plans(options)
