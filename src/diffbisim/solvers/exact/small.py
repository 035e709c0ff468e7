"""Small problems: the whole run is one call of the engine (engine/small.hpp), which repeats the steps of solver.py.

Runs with a callback, a checkpoint, a cluster or a store, and the rare systems on which the engine's linear solver
stagnates, take the general solver.

    chains          all chains, one after another
    pairs (B, 2)    the numbers of the two chains of every problem
    tables          their ground costs, flat, one after another; empty for |r_X - r_Y|, which the engine computes
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim import _engine
from diffbisim.common.arrays import Array
from diffbisim.common.stopping import engine_run
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import DistanceResult, HistoryRow, Status, check_warm
from diffbisim.solvers.base import Callback
from diffbisim.solvers.exact.coupling import ExactCoupling
from diffbisim.solvers.exact.transports import Basis

if TYPE_CHECKING:
    from diffbisim.solvers.exact import Exact

#: The largest number of states of two chains together.
MAX_STATES: int = _engine.MAX_STATES_OF_SMALL

#: How the engine's runs end; the last one, without a status here, needs the general solver.
STATUS = (Status.CONVERGED, Status.ROUNDING, Status.ITERATIONS, Status.TIME)

INF = float("inf")


def is_small(problem: ChainProblem) -> bool:
    """Return whether the engine solves this problem in one call."""
    return problem.x.n_states + problem.y.n_states <= MAX_STATES


def solve(
    problem: ChainProblem, options: "Exact", warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult | None:
    """Solve a small problem from a previous result, if given; None if it needs the general solver.

    A ``callback`` gets the rows of the history when all are known, which takes microseconds. If it ends the run, that
    is repeated up to this iteration.
    """
    values = trees = None
    if warm is not None:
        check_warm(warm, problem.shape)
        values, trees = np.ascontiguousarray(warm.values, dtype=np.float64).ravel(), _known_trees(warm)
    limit = INF if options.time_limit is None else options.time_limit

    def run(max_iterations: float) -> Any:
        tol = options.tol or 0.0
        return _engine.solve_small(problem, values, trees, options.reachable, tol, max_iterations, limit, engine_run())

    found = run(options.max_iterations)
    if found.ended == len(STATUS):
        return None
    status, pairs = STATUS[found.ended], len(found.listed) if options.reachable else problem.cost.size
    history = _history(found, pairs)
    if callback is not None:
        last = next((k for k, row in enumerate(history, 1) if callback(row)), 0)
        if last and (last < len(history) or status is not Status.CONVERGED):
            found, status = run(last), Status.INTERRUPTED
            history = _history(found, pairs)
    row = history[-1]
    return DistanceResult(
        problem, row["value"], row["lower"], row["upper"], status, len(history), options.name,
        ExactCoupling.of_small(problem, found, options), history,
        HistoryRow({name: row[name] for name in ("pairs", "pivots", "improvements", "sweeps")}),
    )  # fmt: skip


def _history(found: Any, pairs: int) -> tuple[HistoryRow, ...]:
    """Return the rows of a run of the engine."""
    return tuple([
        HistoryRow(
            value=value, lower=low, upper=up, pairs=pairs, pivots=pivots, improvements=improvements, sweeps=products
        )
        for value, low, up, pivots, improvements, products in found.history
    ])  # fmt: skip


def _known_trees(warm: DistanceResult) -> tuple[Any, ...] | None:
    """Return trees of a previous result, and what tells whether they fit: rows of both sides, and list of pairs."""
    coupling = warm.coupling
    if not isinstance(coupling, ExactCoupling):
        return None
    if coupling.small is not None:
        old, trees = coupling.problem, coupling.small
        return old.x.successors, old.y.successors, trees.listed, trees.child, trees.parent
    t = coupling.transports
    if t.basis == Basis.NONE or t.narrow or t.trees.child.dtype != np.int8:
        return None
    return t.items.x, t.items.y, t.items.listed, t.trees.child, t.trees.parent


# --- many problems -----------------------------------------------------------------------------------------------


class ChainList(NamedTuple):
    """m chains, one after another, with N states and E transitions in all."""

    at: Any  # (m + 1,) the first state of each chain
    first: Any  # (m + 1,) its first transition
    rows: Successors  # of all chains: indptr (N + m,), from 0 in each, indices (E,), states of the chain, probabilities
    initial: Any  # (N,)
    rewards: Any  # (N,), NaN without

    @classmethod
    def of(cls, chains: Sequence[MarkovChain]) -> "ChainList":
        parts = [chain.successors for chain in chains]
        flat = [
            np.full(c.n_states, np.nan) if c.rewards is None or np.ndim(c.rewards) > 1 else np.asarray(c.rewards)
            for c in chains
        ]
        return cls(
            np.cumsum([0, *(chain.n_states for chain in chains)]), np.cumsum([0, *(s.indices.size for s in parts)]),
            Successors.frozen(*map(np.concatenate, zip(*parts, strict=True))),
            np.concatenate([chain.initial for chain in chains]), np.concatenate(flat).astype(np.float64),
        )  # fmt: skip


class SmallResults(NamedTuple):
    """The results of all problems, (B,); bounds are infinite where a problem needs the general solver."""

    value: Array
    lower: Array
    upper: Array


def is_ordinary(solver: Any) -> bool:
    """Return whether :func:`solve_many` gives the same answers as the solver."""
    from diffbisim.solvers.exact import Exact

    given = (solver.cluster, solver.checkpoint, solver.store) if type(solver) is Exact else (solver,)
    return all(option is None for option in given) and not solver.reachable and solver.time_limit is None


def solve_many(
    chains: ChainList, pairs: NDArray[np.int64], tables: Array, discount: float, options: "Exact",
    squared: bool = False, threads: int = 1,
) -> SmallResults:  # fmt: skip
    """Return distances with certified bounds, in the order of the pairs."""
    return SmallResults(*_engine.solve_many(
        chains, np.ascontiguousarray(pairs).ravel(), tables, discount, options.tol, options.max_iterations, squared,
        engine_run(threads),
    ))  # fmt: skip
