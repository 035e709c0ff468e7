"""The compiled engine: the same bits at every level of instructions, and arrays that it cannot use are refused."""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from diffbisim import _engine, _engine_baseline
from diffbisim.common.stopping import engine_run
from diffbisim.processes.examples import random_sparse_chain
from oracles.bisimilarity import coarsest_mdp_bisimulation

LEVELS = [_engine_baseline] + ([importlib.import_module("diffbisim._engine_v3")] if _engine.level == "v3" else [])


def columns(kernels):
    """The incoming edges of all states, action by action."""
    incoming = sp.hstack([sp.csr_array(P) for P in kernels], format="csr").tocsc()
    return incoming.indptr.astype(np.int64), incoming.indices.astype(np.int64), incoming.data


def first_appearance(classes):
    number = {}
    return [number.setdefault(c, len(number)) for c in np.asarray(classes).tolist()]


def test_every_level_refines_to_the_coarsest_bisimulation():
    """Masses are whole 16ths, so that sums are exact and so is the oracle."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, actions = int(rng.integers(2, 30)), int(rng.integers(1, 4))
        kernels = rng.multinomial(16, rng.dirichlet(np.full(n, 0.2), (actions, n))) / 16
        start = rng.integers(0, 2, n)
        found = [engine.refine(*columns(kernels), start, 1e-12, engine.Run(1, np.zeros(1, bool))) for engine in LEVELS]
        wanted = coarsest_mdp_bisimulation(kernels.tolist(), start.tolist())
        assert first_appearance(found[0][0]) == first_appearance(wanted), seed
        assert all(classes.tobytes() == found[0][0].tobytes() and edges == found[0][1] for classes, edges in found)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("sources", np.array([0, 1, 2]), "sources must be numbers of states"),
        ("sources", np.array([0, -1, 1]), "sources must be numbers of states"),
        ("sources", np.array([0, 1]), "ascend from 0 to the number of edges"),
        ("first", np.array([0, 2, 1]), "first must ascend"),
        ("first", np.array([0, 3]), "one entry for each column"),
        ("classes", np.array([0, 2]), "classes must be numbers from 0"),
        ("probabilities", np.array([0.5, 0.5]), "must have the same size"),
        ("probabilities", np.array([0.5, 0.5, 1.0], dtype=np.float32), "incompatible function arguments"),
        ("probabilities", np.ones(6)[::2], "incompatible function arguments"),
    ],
)
def test_arrays_that_would_be_read_out_of_bounds_are_refused(name, value, error):
    given = {"first": np.array([0, 1, 3]), "sources": np.array([0, 0, 1]), "probabilities": np.array([0.5, 0.5, 1.0])}
    given |= {"classes": np.array([0, 0])}
    assert _engine.refine(**given, tolerance=0.0, run=engine_run())[0].tolist() == [0, 0]
    with pytest.raises((ValueError, TypeError), match=error):
        _engine.refine(**given | {name: value}, tolerance=0.0, run=engine_run())


def test_the_level_can_be_chosen():
    def level(name):
        code = "from diffbisim import _engine; print(_engine.level)"
        command, environment = [sys.executable, "-c", code], os.environ | {"DIFFBISIM_ENGINE": name}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    assert level("baseline") == "baseline"
    assert level("") == _engine_baseline.best_level()
    assert "DIFFBISIM_ENGINE is 'v9'; use 'baseline' or 'v3'" in level("v9")


# --- barycenters -----------------------------------------------------------------------------------------------------


def averages(k=5, n=60, count=12):
    """Rows, costs, and averages over states of random weight, with starts."""
    rng = np.random.default_rng(5)
    rows = random_sparse_chain(n, 7, 3).successors
    states = [np.flatnonzero(rng.random(n) < 0.5) for _ in range(count)]
    weights = [rng.dirichlet(np.full(chosen.size, 0.2)) for chosen in states]
    first = np.cumsum([0, *map(len, states)])
    return [rows, rng.random(n * k), first, np.concatenate(states), np.concatenate(weights), np.full(count * k, 1 / k)]


def test_barycenters_are_the_same_at_every_level_and_for_any_number_of_threads():
    found = [
        engine.barycenters(*averages(), 1e-8, engine.Run(threads, np.zeros(1, bool)))
        for engine in LEVELS
        for threads in (1, 2)
    ]
    assert (found[0][1] <= 1e-4).all()
    assert all(np.array_equal(one, other) for more in found[1:] for one, other in zip(found[0], more, strict=True))


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (1, np.ones(299), "as many columns as starts"),
        (1, np.ones(50), "must be rows of the costs"),
        (2, np.array([0, 3]), "first must go from 0"),
        (3, np.full(10**6, 60), "first must go from 0"),
        (4, np.ones(3), "weights and states"),
        (5, np.ones(13), "one row for each average"),
    ],
)
def test_averages_that_would_be_read_out_of_bounds_are_refused(place, value, error):
    given = averages()
    given[place] = value
    with pytest.raises(ValueError, match=error):
        _engine.barycenters(*given, 1e-8, engine_run())


def test_barycenters_end_at_a_deadline():
    with pytest.raises(TimeoutError):
        _engine.barycenters(*averages(k=30, n=300, count=40), 0.0, _engine.Run(1, np.zeros(1, bool), 0.05))
