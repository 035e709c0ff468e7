"""Distances between many chains at once, on several cores or machines."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim.chain import MarkovChain
from diffbisim.checks import Integers, check_discount
from diffbisim.cost import ground_cost
from diffbisim.distance import make_solver, solve
from diffbisim.errors import ConvergenceWarning, InvalidArgument, warn
from diffbisim.parallel import Executor, batches, stop_flag, tasks
from diffbisim.problem import Array
from diffbisim.process import as_processes
from diffbisim.progress import Progress
from diffbisim.questions import Question
from diffbisim.timed import TimedChain

#: With these costs d(X,Y) = d(Y,X) and d(X,X) = 0, so that half of the matrix is enough.
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
    """Matrix of distances between all chains, shape ``(len(chains), len(chains))``.

    Parameters
    ----------
    chains : chains of any sizes
    cost : as for :func:`diffbisim.distance`; "reward", "squared" and "indicator" are symmetric and computed once per
        pair
    discount, solver, tol, criterion, horizon, weights : as for :func:`diffbisim.distance`
    executor : where the work is done: any ``concurrent.futures`` executor (threads, processes, MPI, ...), a Dask
        ``Client`` or the address of its scheduler, "joblib" for the backend of ``joblib.parallel_config`` (Ray, ...);
        None for threads of this process. The same bits everywhere; workers may die (docs/cluster)
    progress : True for a bar, or a callable ``(done, total)``

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
    plain = criterion == "discounted" and horizon is None and weights is None
    if plain and all(isinstance(chain, MarkovChain) for chain in chains):
        check_discount(discount)
    if chosen.threads is None:
        chosen = replace(chosen, threads=1)  # the pairs are the parallel part
    symmetric = isinstance(cost, str) and cost in SYMMETRIC
    n = len(chains)
    cells = np.argwhere(np.triu(np.ones((n, n), bool), 1) if symmetric else np.ones((n, n), bool))
    asked = Asked.of(chains, question, cost, discount, chosen)
    found = tasks(_distances, batches(cells, 256), asked, executor, progress, "distances")
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


class Asked(NamedTuple):
    """What all distances share."""

    chains: list[Any]
    pack: Any  # of the chains, where a batch of problems is solved in one call; else None
    question: Question
    cost: Any
    discount: float
    solver: Any

    @classmethod
    def of(cls, chains: list[Any], question: Question, cost: Any, discount: float, solver: Any) -> "Asked":
        from diffbisim.solvers.exact.batch import Pack, is_ordinary  # numba is loaded where something is solved

        small = is_ordinary(solver, question) and solver.cluster is None
        small = small and all(isinstance(chain, MarkovChain) for chain in chains)
        return cls(chains, Pack.of(chains) if small else None, question, cost, discount, solver)


def _distances(asked: Asked, cells: Integers) -> Array:
    """Values, and whether each is within tol, (2, B); runs in the worker."""
    value, converged = np.full(len(cells), np.nan), np.zeros(len(cells), bool)
    if asked.pack is not None:
        value[:], converged[:] = _batch(asked, cells)
    for k in np.flatnonzero(~converged):
        x, y = (asked.chains[c] for c in cells[k])
        result = solve(asked.question.problem(x, y, asked.cost, asked.discount), asked.solver)
        value[k], converged[k] = result.value, result.converged
    return np.stack([value, converged])


def _batch(asked: Asked, cells: Integers) -> tuple[Array, NDArray[np.bool_]]:
    """The same for small problems, in one call."""
    from diffbisim.solvers.exact.batch import Ask, solve_batch

    chains, cost = asked.chains, asked.cost
    by_reward = isinstance(cost, str) and cost in ("reward", "euclidean", "squared")
    tables = [] if by_reward else [ground_cost(cost, chains[i], chains[j]).ravel() for i, j in cells]
    ask = Ask(asked.discount, asked.solver.tol, by_reward and cost == "squared", stop_flag())
    found = solve_batch(asked.pack, np.ascontiguousarray(cells), np.concatenate([np.empty(0), *tables]), ask)
    return found.value, np.isfinite(found.upper)
