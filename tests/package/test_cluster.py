"""A Dask cluster of two worker processes: the same work as here. Oracle: one machine, whose bounds are proofs.

Workers are killed (kill -9) in the middle of a sweep, and join late. One scheduler, in this process, serves all tests.
"""

import json
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
import fatal
from command_line import invoke
from diffbisim.common.parallel import broadcast, is_lost, tasks
from diffbisim.solvers import Exact
from diffbisim.solvers.exact import cluster as on_cluster


@pytest.fixture(scope="module")
def client():
    """Two worker processes, which are replaced when they are killed: forks of one that has loaded what they need."""
    import dask
    from distributed import Client, LocalCluster
    from distributed.utils import get_mp_context

    how = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0", "silence_logs": 50}
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(["distributed", "diffbisim.solvers.exact.cluster"])
        with LocalCluster(n_workers=2, **how) as cluster, Client(cluster) as client:
            yield client


def sparse_chain(seed, n, k=4):
    rng = np.random.default_rng([5, seed])
    P = np.zeros((n, n))
    for row in P:
        row[rng.choice(n, k, replace=False)] = rng.dirichlet(np.ones(k))
    return db.MarkovChain(sp.csr_array(P), rewards=rng.random(n))


@pytest.fixture(scope="module")
def chains():
    return sparse_chain(0, 60), sparse_chain(1, 50)


@pytest.fixture(scope="module")
def alone(chains):
    return db.distance(*chains, discount=0.5)


def agree(found, alone):
    """Both are certified to 1e-8 of the largest cost, which is below one."""
    assert found.converged
    assert max(found.lower, alone.lower) <= min(found.upper, alone.upper)
    assert np.abs(found.values - alone.values).max() <= 2e-8


def test_pairwise_has_the_same_bits(client):
    rng = np.random.default_rng(0)
    many = [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n)) for n in (3, 4, 5, 6, 7)]
    here = db.pairwise(many)
    np.testing.assert_array_equal(db.pairwise(many, executor=client), here)
    np.testing.assert_array_equal(db.pairwise(many, executor=client.scheduler.address), here)


def test_one_problem_on_two_workers(client, chains, alone, tmp_path):
    found = db.distance(*chains, discount=0.5, solver=Exact(cluster=client))
    agree(found, alone)
    assert found.work["pairs"] == 3000
    assert found.work["improvements"] == found.iterations
    # what follows from the trees is made here
    assert abs((found.occupancy * found.problem.cost).sum() - alone.value) <= 1e-8
    found.save(tmp_path / "result.npz")
    again = db.load(tmp_path / "result.npz")
    assert (again.lower, again.upper) == (found.lower, found.upper)
    np.testing.assert_array_equal(again.values, found.values)


def test_a_checkpoint_goes_on(client, chains, alone, tmp_path):
    path = tmp_path / "run.npz"
    solver = Exact(cluster=client, checkpoint=path)
    with pytest.warns(db.ConvergenceWarning):
        db.distance(*chains, discount=0.5, solver=solver, callback=lambda row: row["improvements"] == 3)
    found = db.distance(*chains, discount=0.5, solver=solver)
    agree(found, alone)
    assert found.iterations < alone.iterations
    with pytest.raises(db.InvalidArgument, match="another problem"):
        db.distance(*chains, discount=0.8, solver=solver)
    path.write_bytes(b"nothing")
    with pytest.raises(db.InvalidData, match="cannot be read"):
        db.distance(*chains, discount=0.5, solver=solver)


def test_the_command_line_takes_an_address(client, tmp_path):
    rng = np.random.default_rng(3)
    files = [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]
    for file in files:
        db.write_chain(db.MarkovChain(rng.dirichlet(np.ones(4), 4), rewards=rng.random(4)), file)
    runs = [
        invoke("distance", *files, "--json", *more)
        for more in ([], ["--cluster", client.scheduler.address], ["--cluster", "tcp://x:1", "--solver", "lp"])
    ]
    assert [run.exit_code for run in runs] == [0, 0, 2]
    here, there = (json.loads(run.stdout) for run in runs[:2])
    assert max(here["lower"], there["lower"]) <= min(here["upper"], there["upper"])


def test_what_a_cluster_does_not_do_is_refused(client, chains):
    for solver, how, words in (
        (Exact(cluster=client, reachable=True), {}, "all pairs"),
        (Exact(cluster=client), {"criterion": "average"}, "discounted"),
        (Exact(cluster="host"), {}, "not a cluster"),
    ):
        with pytest.raises(db.InvalidArgument, match=words):
            db.distance(*chains, solver=solver, **how)


def test_a_worker_that_joins_late_is_used(client, chains, alone):
    """From the next improvement on it has blocks, and the others have fewer."""
    held = []

    def callback(row):
        if not held:
            client.cluster.scale(3)
            client.wait_for_workers(3)
        held.append(sorted(client.run(fatal.blocks_held).values()))

    agree(db.distance(*chains, discount=0.5, solver=Exact(cluster=client), callback=callback), alone)
    assert held[0] == [0, 8, 8]
    assert held[2] == [4, 6, 6]  # what has moved is forgotten where it was
    assert set(client.run(fatal.blocks_held).values()) == {0}  # and everything at the end


@pytest.mark.parametrize("what", ["improve", "product"])
def test_a_worker_killed_in_mid_sweep_costs_its_blocks_only(client, chains, alone, monkeypatch, tmp_path, what):
    monkeypatch.setattr(on_cluster, f"_{what}", partial(getattr(fatal, what), str(tmp_path / "killed")))
    found = db.distance(*chains, discount=0.5, solver=Exact(cluster=client))
    agree(found, alone)
    assert (tmp_path / "killed").exists()


def test_what_the_client_has_given_up_is_lost(client):
    sent = broadcast(client, ["a table", "another"])
    assert not is_lost(client, sent)
    sent[1].cancel()
    assert is_lost(client, sent)


def test_tasks_survive_a_kill(client, tmp_path):
    assert tasks(fatal.square, range(20), str(tmp_path / "killed"), client) == [k * k for k in range(20)]
    assert (tmp_path / "killed").exists()
