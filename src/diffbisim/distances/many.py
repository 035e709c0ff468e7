"""Pairwise distances between many chains, on several cores or machines."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.arrays import Array, available_threads
from diffbisim.common.checks import Integers, check_discount
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, warn
from diffbisim.common.parallel import Executor, as_done, batches
from diffbisim.common.progress import Progress, tracking
from diffbisim.distances.chains import check_discount_is_used, make_solver, solve
from diffbisim.problems import Criterion, criterion_of
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.convert import as_processes
from diffbisim.processes.cost import ground_cost
from diffbisim.processes.timed import TimedChain

#: With these costs d(X,Y) = d(Y,X) and d(X,X) = 0, so half of the matrix suffices.
SYMMETRIC = ("reward", "euclidean", "squared", "indicator")

#: How many small problems the engine solves between two reports of progress.
AT_ONCE = 8192


def pairwise(
    chains: Sequence[MarkovChain | TimedChain],
    cost: Any = "reward",
    discount: float = 0.95,
    solver: Any = "exact",
    tol: float | None = None,
    *,
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    executor: Executor = None,
    progress: Progress = False,
) -> Array:
    """Compute the matrix of distances between all pairs of chains.

    Parameters
    ----------
    chains : sequence of MarkovChain or TimedChain
        The chains; their sizes may differ.
    cost : as for :func:`diffbisim.distance`, default="reward"
        Symmetric costs ("reward", "euclidean", "squared", "indicator") need only one solve per pair.
    discount, solver, tol, criterion, horizon, weights : as for :func:`diffbisim.distance`
    executor : executor, Dask Client, str or None, default=None
        Where to run: any ``concurrent.futures`` executor (threads, processes, MPI, …), a Dask ``Client`` or the address
        of its scheduler, "joblib" for the backend of ``joblib.parallel_config`` (Ray, …), or None for threads of this
        process. The result is bitwise the same; lost workers are tolerated (docs/cluster).
    progress : bool or callable, default=False
        True shows a progress bar; a callable is called with ``(done, total)``.

    Returns
    -------
    matrix : array of shape (n_chains, n_chains)

    Examples
    --------
    >>> chains = [MarkovChain([[1.0]], rewards=[r]) for r in (0.0, 1.0, 3.0)]
    >>> pairwise(chains)
    array([[0., 1., 3.],
           [1., 0., 2.],
           [3., 2., 0.]])
    """
    if not isinstance(chains, Iterable):
        raise InvalidArgument(f"chains is a {type(chains).__name__}; give a list of MarkovChains")
    chains, chosen = as_processes(chains), make_solver(solver, tol)
    if not chains:
        raise InvalidArgument("chains is empty; give at least one MarkovChain")
    for k, chain in enumerate(chains):
        if not isinstance(chain, (MarkovChain, TimedChain)):
            raise InvalidArgument(f"chains[{k}] is a {type(chain).__name__}, not a MarkovChain")
    asked = criterion_of(criterion, horizon, weights)
    check_discount_is_used(discount, asked)
    plain = asked.is_default
    if plain and all(isinstance(chain, MarkovChain) for chain in chains):
        check_discount(discount)
    if chosen.threads is None:
        chosen = replace(chosen, threads=1)  # the pairs are the parallel part
    symmetric = isinstance(cost, str) and cost in SYMMETRIC
    n = len(chains)
    cells = np.argwhere(np.triu(np.ones((n, n), bool), 1) if symmetric else np.ones((n, n), bool))
    shared = SharedProblems.of(chains, asked, cost, discount, chosen)
    value, converged = _all_distances(shared, cells, executor, progress)
    matrix = np.zeros((n, n))
    matrix[tuple(cells.T)] = value
    if symmetric:
        matrix += matrix.T
    if not converged.all():
        warn(
            f"{int((converged == 0).sum())} of {len(cells)} distances did not reach tol; raise max_iterations or tol "
            "of the solver",
            ConvergenceWarning,
            stacklevel=2,
        )
    return matrix


class SharedProblems(NamedTuple):
    """The data that all tasks share."""

    chains: list[Any]
    joined: Any  # the chains as one list for the engine if small problems are solved in one call, else None
    criterion: Criterion
    cost: Any
    discount: float
    solver: Any

    @classmethod
    def of(cls, chains: list[Any], criterion: Criterion, cost: Any, discount: float, solver: Any) -> "SharedProblems":
        from diffbisim.solvers.exact.small import ChainList, is_ordinary

        small = criterion.is_default and is_ordinary(solver) and all(isinstance(chain, MarkovChain) for chain in chains)
        return cls(chains, ChainList.of(chains) if small else None, criterion, cost, discount, solver)


def _all_distances(shared: SharedProblems, cells: Integers, executor: Executor, progress: Progress) -> Array:
    """Return B distances and whether each is within tol, (2, B)."""
    found: Array = np.zeros((2, len(cells)))
    with tracking(progress, len(cells), "distances") as advance:
        left = np.arange(len(cells))
        if executor is None and shared.joined is not None:
            left = _solve_small(shared, cells, found, advance)
            shared = shared._replace(joined=None)
        parts = batches(left, 256)
        with closing(as_done(_distances, [cells[part] for part in parts], shared, executor)) as done:
            for k, result in done:
                found[:, parts[k]] = result
                advance(len(parts[k]))
    return found


def _solve_small(shared: SharedProblems, cells: Integers, found: Array, advance: Callable[[int], None]) -> Integers:
    """Solve small problems with all threads; returns the numbers of those that are left."""
    left = []
    for lo in range(0, len(cells), AT_ONCE):
        value, solved = _many(shared, cells[lo : lo + AT_ONCE], available_threads())
        found[:, lo : lo + AT_ONCE] = value, solved
        advance(int(solved.sum()))
        left.append(lo + np.flatnonzero(~solved))
    return np.concatenate([np.empty(0, np.int64), *left])


def _distances(shared: SharedProblems, cells: Integers) -> Array:
    """Compute B distances and whether each is within tol, (2, B); runs in a worker."""
    value, converged = np.full(len(cells), np.nan), np.zeros(len(cells), bool)
    if shared.joined is not None:
        value[:], converged[:] = _many(shared, cells, 1)
    for k in np.flatnonzero(~converged):
        x, y = (shared.chains[c] for c in cells[k])
        result = solve(shared.criterion.problem(x, y, shared.cost, shared.discount), shared.solver)
        value[k], converged[k] = result.value, result.converged
    return np.stack([value, converged])


def _many(shared: SharedProblems, cells: Integers, threads: int) -> tuple[Array, NDArray[np.bool_]]:
    """Solve small problems in one call of the engine; returns values, and which of them were solved."""
    from diffbisim.solvers.exact.small import solve_many

    chains, cost = shared.chains, shared.cost
    by_reward = isinstance(cost, str) and cost in ("reward", "euclidean", "squared")
    tables = [] if by_reward else [ground_cost(cost, chains[i], chains[j]).ravel() for i, j in cells]
    flat, squared = np.concatenate([np.empty(0), *tables]), by_reward and cost == "squared"
    found = solve_many(shared.joined, cells, flat, shared.discount, shared.solver, squared, threads)
    return found.value, np.isfinite(found.upper)
