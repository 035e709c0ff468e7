"""Distances between many chains at once, on several cores or machines."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import check_discount
from diffbisim.distance import make_solver, solve
from diffbisim.errors import ConvergenceWarning, InvalidArgument, warn
from diffbisim.parallel import batches, executor_map
from diffbisim.problem import Array
from diffbisim.process import taken
from diffbisim.progress import Progress
from diffbisim.questions import Question
from diffbisim.timed import TimedChain

#: With these costs d(X,Y) = d(Y,X) and d(X,X) = 0, so that half of the matrix is enough.
SYMMETRIC = ("reward", "squared", "indicator")


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
    executor: Executor | None = None,
    progress: Progress = False,
) -> Array:
    """Matrix of distances between all chains, shape ``(len(chains), len(chains))``.

    Parameters
    ----------
    chains : chains of any sizes
    cost : as for :func:`diffbisim.distance`; "reward", "squared" and "indicator" are symmetric and computed once per
        pair
    discount, solver, tol, criterion, horizon, weights : as for :func:`diffbisim.distance`
    executor : any ``concurrent.futures``-like executor (processes, Dask, MPI, ...); None for threads of this process
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
    chains, chosen = list(map(taken, chains)), make_solver(solver, tol)
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
    cells = [(i, j) for i in range(n) for j in range(i + 1 if symmetric else 0, n)]
    work = partial(_distances, chains, question, cost, discount, chosen)
    parts = batches(cells)
    matrix, unfinished = np.zeros((n, n)), 0
    for part, results in zip(parts, executor_map(work, parts, executor, progress, "distances"), strict=True):
        for (i, j), (value, converged) in zip(part, results, strict=True):
            matrix[i, j] = value
            if symmetric:
                matrix[j, i] = value
            unfinished += not converged
    if unfinished:
        warn(
            f"{unfinished} of {len(cells)} distances did not reach tol; raise max_iterations or tol of the solver",
            ConvergenceWarning,
            stacklevel=2,
        )
    return matrix


def _distances(
    chains: list[Any], question: Question, cost: Any, discount: float, solver: Any, cells: Sequence[tuple[int, int]]
) -> list[tuple[float, bool]]:
    """Runs in the worker."""
    results = [solve(question.problem(chains[i], chains[j], cost, discount), solver) for i, j in cells]
    return [(r.value, r.converged) for r in results]
