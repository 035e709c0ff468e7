"""Compile the kernels that the tests need, once, in two processes: the last step of ``make setup``.

numba compiles a kernel when it is first called, for the types of that call, and keeps it on disk. Here every kind of
problem is solved at its smallest, and tests that call kernels by themselves are run. Two processes take the calls in
order; what one of them is compiling the other waits for, as the tests do (conftest.py). What is forgotten here costs
the first test that needs it its time, nothing else.
"""

import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from conftest import compile_by_turns
from diffbisim.data.examples import imitation_chain, random_chain, random_sparse_chain
from diffbisim.solvers import Exact, SinkhornPolicy, SinkhornValue, Somcot


def dense(n):
    return random_chain(n, n)


def sparse(n):
    return random_sparse_chain(n, 2, rng=n)


def star(n):
    """A state with n successors, each of which stays."""
    P = sp.lil_array((n + 1, n + 1))
    P[0, 1:] = 1 / n
    P.setdiag(np.r_[0.0, np.ones(n)])
    return db.MarkovChain(sp.csr_array(P), rewards=np.arange(n + 1.0))


def all_of(X, Y, solver="exact", **how):
    """The distance, from nothing and from itself, all that follows from it, and what a file has of it."""
    result = db.distance(X, Y, solver=solver, **how)
    result = db.distance(X, Y, solver=solver, warm=result, **how)
    _ = result.occupancy, result.gradient
    x, y = np.argwhere(result.occupancy > 0)[0].tolist()
    _ = result.plan(x, y), result.potentials(x, y)
    with tempfile.TemporaryDirectory() as folder:
        result.save(f"{folder}/result.npz")
        return db.load(f"{folder}/result.npz")


def many_pairs():
    """As the exact solver treats millions of them: narrow trees, shared out to threads."""
    from diffbisim import parallel
    from diffbisim.solvers.exact import transports

    parallel.CHUNK = transports.CHUNK = 1
    for transports.MANY, transports.TARGETS in ((10**9, 0), (0, 0), (0, 2**27)):
        all_of(sparse(6), sparse(5), Exact(threads=2), discount=0.99)


def games():
    for actions in ("matched", "lax", "directed"):
        _ = db.distance(imitation_chain(3), imitation_chain(4), np.ones((3, 4)), actions=actions).gradient
    one = imitation_chain(3)
    for how in ({}, {"solver": Exact(reachable=True)}):
        db.distance(one, one, 1 - np.eye(3), **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffbisim.solvers.exact.games.MANY", 0)
        _ = db.distance(one, imitation_chain(4), np.ones((3, 4))).gradient


#: They call kernels with types of their own.
BY_THEMSELVES = ("agreement/test_transport.py",)


def by_themselves(test):
    pytest.main(["--quiet", "--no-header", "--no-summary", str(Path(__file__).parent / test)])


CALLS = [
    lambda: all_of(dense(3), dense(2)),
    lambda: all_of(dense(3), dense(2), SinkhornPolicy()),
    lambda: all_of(dense(40), dense(41)),
    lambda: all_of(dense(3), dense(2), Somcot(50)),
    lambda: all_of(star(130), star(2)),
    lambda: all_of(sparse(4), sparse(3), SinkhornValue(epsilon=0.5)),
    *(partial(by_themselves, test) for test in BY_THEMSELVES),
    lambda: all_of(sparse(4), sparse(3), SinkhornPolicy(schedule="sqrt")),
    lambda: all_of(sparse(4), sparse(3), Somcot(50)),
    lambda: [db.distance(*pair, solver=Somcot(2000)) for pair in ((dense(6), sparse(5)), (sparse(5), dense(6)))],
    many_pairs,
    games,
    lambda: db.pairwise([dense(3), dense(2)]),
    lambda: all_of(dense(70), dense(71)),
    lambda: all_of(sparse(4), sparse(3), Exact(reachable=True)),
    lambda: all_of(dense(3), dense(3), criterion="average"),
    lambda: all_of(dense(3), dense(2), horizon=2),
    lambda: db.distance(dense(3), dense(2), lump=True),
    lambda: [db.compress(X, 2, restarts=1, max_steps=2) for X in (dense(6), sparse(6))],
]


def begin():
    compile_by_turns()
    warnings.simplefilter("ignore")


def call(k):
    CALLS[k]()


if __name__ == "__main__":
    with ProcessPoolExecutor(2, initializer=begin) as pool:
        list(pool.map(call, range(len(CALLS))))
