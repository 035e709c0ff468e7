"""Pairwise distances between many chains, on several cores or machines."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim.chain import MarkovChain
from diffbisim.checks import Integers, check_discount
from diffbisim.cost import ground_cost
from diffbisim.distance import check_discount_is_used, make_solver, solve
from diffbisim.errors import ConvergenceWarning, InvalidArgument, warn
from diffbisim.parallel import Executor, batches, stop_flag, tasks
from diffbisim.problem import Array
from diffbisim.process import as_processes
from diffbisim.progress import Progress
from diffbisim.questions import Question
from diffbisim.timed import TimedChain

#: With these costs d(X,Y) = d(Y,X) and d(X,X) = 0, so half of the matrix suffices.
SYMMETRIC = ("reward", "euclidean", "squared", "indicator")


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
    question = Question(criterion, horizon, weights)
    check_discount_is_used(discount, question)
    plain = criterion == "discounted" and horizon is None and weights is None
    if plain and all(isinstance(chain, MarkovChain) for chain in chains):
        check_discount(discount)
    if chosen.threads is None:
        chosen = replace(chosen, threads=1)  # the pairs are the parallel part
    symmetric = isinstance(cost, str) and cost in SYMMETRIC
    n = len(chains)
    cells = np.argwhere(np.triu(np.ones((n, n), bool), 1) if symmetric else np.ones((n, n), bool))
    shared = Shared.of(chains, question, cost, discount, chosen)
    found = tasks(_distances, batches(cells, 256), shared, executor, progress, "distances")
    value, converged = np.concatenate(found, axis=1) if found else np.empty((2, 0))
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


class Shared(NamedTuple):
    """The data that all tasks share."""

    chains: list[Any]
    pack: Any  # the packed chains if small problems are solved in batches, else None
    question: Question
    cost: Any
    discount: float
    solver: Any

    @classmethod
    def of(cls, chains: list[Any], question: Question, cost: Any, discount: float, solver: Any) -> "Shared":
        from diffbisim.solvers.exact.batch import Pack, is_ordinary  # imported here because it loads numba

        small = is_ordinary(solver, question) and solver.cluster is None
        small = small and all(isinstance(chain, MarkovChain) for chain in chains)
        return cls(chains, Pack.of(chains) if small else None, question, cost, discount, solver)


def _distances(shared: Shared, cells: Integers) -> Array:
    """Compute B distances and whether each is within tol, (2, B); runs in a worker."""
    value, converged = np.full(len(cells), np.nan), np.zeros(len(cells), bool)
    if shared.pack is not None:
        value[:], converged[:] = _batch(shared, cells)
    for k in np.flatnonzero(~converged):
        x, y = (shared.chains[c] for c in cells[k])
        result = solve(shared.question.problem(x, y, shared.cost, shared.discount), shared.solver)
        value[k], converged[k] = result.value, result.converged
    return np.stack([value, converged])


def _batch(shared: Shared, cells: Integers) -> tuple[Array, NDArray[np.bool_]]:
    """Solve small problems in one call; returns values, and which of them were solved."""
    from diffbisim.solvers.exact.batch import Ask, solve_batch

    chains, cost = shared.chains, shared.cost
    by_reward = isinstance(cost, str) and cost in ("reward", "euclidean", "squared")
    tables = [] if by_reward else [ground_cost(cost, chains[i], chains[j]).ravel() for i, j in cells]
    ask = Ask(shared.discount, shared.solver.tol, by_reward and cost == "squared", stop_flag())
    found = solve_batch(shared.pack, np.ascontiguousarray(cells), np.concatenate([np.empty(0), *tables]), ask)
    return found.value, np.isfinite(found.upper)
