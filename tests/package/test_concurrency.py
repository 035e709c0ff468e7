"""Several solves at once: Python threads, forked and spawned processes, executors. Oracle: one solve at a time."""

import multiprocessing
import os
import pickle
import threading
import warnings
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.problems import Discounted
from diffbisim.solvers import Exact

FORK = "fork" in multiprocessing.get_all_start_methods()


def sparse_chain(seed, n, k):
    rng = np.random.default_rng([1, seed])
    P = np.zeros((n, n))
    for row in P:
        row[rng.choice(n, k, replace=False)] = rng.dirichlet(np.ones(k))
    return db.MarkovChain(sp.csr_array(P), rewards=rng.random(n))


@cache
def mid_size(seed):
    """Large enough for a solve to use several threads of its own."""
    return sparse_chain(seed, 100, 8), sparse_chain(seed + 10, 90, 8)


def solve(seed, threads=2):
    """Everything that runs kernels: the distance and its gradient."""
    result = db.distance(*mid_size(seed), tol=1e-6, solver=Exact(threads=threads))
    return result.value, result.iterations, float(result.gradient.transition_y.data.sum())


@cache
def expected(seed):
    return solve(seed)


@cache
def small_chains():
    """Seven chains of one to six states."""
    rng = np.random.default_rng(2)
    sizes = (1, 2, 3, 4, 5, 6, 3)
    return [db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=n - 1, rewards=rng.random(n)) for n in sizes]


@cache
def one_by_one():
    """Each pair once, the earlier chain first; the cost is symmetric."""
    chains = small_chains()
    matrix = np.zeros((len(chains), len(chains)))
    for i, j in combinations(range(len(chains)), 2):
        matrix[i, j] = matrix[j, i] = db.distance(chains[i], chains[j]).value
    return matrix


# --- threads and processes ------------------------------------------------------------------------------------


def test_two_python_threads_at_once():
    want, got = [expected(k) for k in (0, 1)], {}
    barrier = threading.Barrier(2)

    def run(k):
        barrier.wait()
        got[k] = [solve(k) for _ in range(2)]

    threads = [threading.Thread(target=run, args=(k,)) for k in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert got == {0: [want[0]] * 2, 1: [want[1]] * 2}


def test_many_python_threads_on_one_problem():
    """The chains are shared, their caches are filled by whoever comes first."""
    X, Y = sparse_chain(5, 60, 6), sparse_chain(6, 50, 6)
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda _: db.distance(X, Y, solver=Exact(threads=2)).value, range(12)))
    again = db.distance(sparse_chain(5, 60, 6), sparse_chain(6, 50, 6)).value
    assert set(got) == {again}


def test_one_result_read_by_many_threads():
    """What is computed on demand runs kernels in threads of its own; readers must not take them from each other."""
    result = db.distance(*mid_size(2), tol=1e-6, solver=Exact(threads=2))
    m, coupling = result.occupancy, result.coupling
    want = coupling.weighted_potentials(m, everywhere=False)[0].data
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(coupling.weighted_potentials, m, everywhere=False) for _ in range(200)]
        jobs += [pool.submit(coupling.occupancy) for _ in range(8)]
        got = [job.result(60) for job in jobs]
    assert all(np.array_equal(by_x.data, want) for by_x, _ in got[:200])
    assert all(np.array_equal(occupancy, m) for occupancy in got[200:])


@pytest.mark.parametrize("name", ["occupancy", "gradient", "duals"])
def test_reading_one_result_does_not_wait_for_another(monkeypatch, name):
    """What is computed on demand takes no lock that all results share (``cached_property`` has one in Python 3.11).

    With such a lock threads take turns, and a process forked while one of them computes waits for ever.
    """
    slow, quick = (db.distance(*small_chains()[k : k + 2]) for k in (2, 3))
    inside, leave = threading.Event(), threading.Event()

    def wait(*args):
        inside.set()
        leave.wait(60)
        raise RuntimeError("done")

    monkeypatch.setattr(slow.coupling, "potentials" if name == "duals" else "occupancy", wait)
    with ThreadPoolExecutor(2) as pool:
        blocked = pool.submit(getattr, slow, name)
        try:
            assert inside.wait(60)
            pool.submit(getattr, quick, name).result(timeout=30)
        finally:
            leave.set()
        assert str(blocked.exception(60)) == "done"


@pytest.mark.skipif(not FORK, reason="needs os.fork")
def test_a_forked_process_solves_too():
    want = expected(0)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, pickle.dumps(solve(0)))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert pickle.loads(answer) == want


@pytest.mark.skipif(not FORK, reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_processes_forked_while_another_thread_solves():
    """The worst moment to fork: kernels are running and thread pools are alive."""
    want, stop = expected(1), threading.Event()

    def keep_solving():
        while not stop.is_set():
            solve(0)

    busy = threading.Thread(target=keep_solving)
    busy.start()
    try:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            got = pool.map_async(solve, [1, 1]).get(timeout=300)
    finally:
        stop.set()
        busy.join()
    assert got == [want, want]


def test_a_spawned_process_solves_too(spawned):
    chains = small_chains()[2:4]
    got, here = spawned.submit(db.distance, *chains).result(timeout=600), db.distance(*chains)
    assert got.value == here.value
    assert np.array_equal(got.gradient.transition_y, here.gradient.transition_y)


def test_results_pickle_before_and_after_they_are_read():
    result = db.distance(*small_chains()[3:5])
    fresh = pickle.loads(pickle.dumps(result))
    gradient = result.gradient.transition_x
    read = pickle.loads(pickle.dumps(result))
    for copy in (fresh, read):
        assert copy.value == result.value
        assert np.array_equal(copy.gradient.transition_x, gradient)
        assert db.distance(*small_chains()[3:5], warm=copy).work["pivots"] == 0


# --- pairwise ---------------------------------------------------------------------------------------------------


def test_pairwise_with_threads_is_one_by_one():
    np.testing.assert_array_equal(db.pairwise(small_chains()), one_by_one())


def test_pairwise_with_an_executor_of_threads():
    with ThreadPoolExecutor(3) as pool:
        np.testing.assert_array_equal(db.pairwise(small_chains(), executor=pool), one_by_one())


@pytest.mark.skipif(not FORK, reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pairwise_with_an_executor_of_forked_processes():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        np.testing.assert_array_equal(db.pairwise(small_chains(), executor=pool), one_by_one())


def test_pairwise_with_an_executor_of_spawned_processes(spawned):
    np.testing.assert_array_equal(db.pairwise(small_chains(), executor=spawned), one_by_one())


class Inline:
    """The least that can be called an executor: submit, nothing else."""

    def __init__(self):
        self.jobs = 0

    def submit(self, function, *args):
        self.jobs += 1
        future = Future()
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)
        return future


def test_pairwise_with_a_minimal_executor():
    executor = Inline()
    np.testing.assert_array_equal(db.pairwise(small_chains(), executor=executor), one_by_one())
    assert executor.jobs == 21


def by_size(X, Y):
    """Not symmetric, and not zero on the diagonal."""
    return np.add.outer(np.arange(X.n_states), 2.0 * np.arange(Y.n_states)) + 1.0


def test_pairwise_with_a_cost_that_is_not_symmetric():
    chains = small_chains()
    want = np.array([[db.distance(x, y, by_size).value for y in chains] for x in chains])
    assert not np.allclose(want, want.T)
    np.testing.assert_array_equal(db.pairwise(chains, by_size), want)
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(db.pairwise(chains, by_size, executor=pool), want)


def test_pairwise_counts_its_progress():
    seen = []
    db.pairwise(small_chains(), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (21, 21)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_pairwise_says_how_many_did_not_converge():
    solver = Exact(max_iterations=1, tol=1e-13)
    with pytest.warns(db.ConvergenceWarning, match=r"of 21 distances did not reach tol"):
        matrix = db.pairwise(small_chains(), solver=solver)
    assert np.isfinite(matrix).all()


class Failing:
    """A solver that fails on the second problem."""

    name, tol, threads, samples, solves = "failing", 1e-8, 1, False, (Discounted,)

    def solve(self, problem, warm=None, callback=None):
        if problem.shape == (1, 3):
            raise RuntimeError("no")
        return Exact().solve(problem)


def test_pairwise_hands_errors_on():
    with pytest.raises(RuntimeError, match="no"):
        db.pairwise(small_chains(), solver=Failing())
    with pytest.raises(db.InvalidCost), ThreadPoolExecutor(2) as pool:
        db.pairwise(small_chains(), "indicator", executor=pool)  # sizes differ
