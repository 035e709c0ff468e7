"""The exact solver, and its options.

    solver.py       policy iteration over pairs of states: the algorithm, and what it certifies
    transports.py   many transports over one table, their optimal bases kept from sweep to sweep
    simplex.py      one transport: the network simplex
    evaluation.py   what a coupling is worth: linear systems over pairs
    coupling.py     what is known at the end: plans, potentials, occupancies
    batch.py        many small problems in one call
    cluster.py      one problem on many machines
    checkpoint.py   the file that a killed run goes on from
    games.py        strategy iteration for MDPs with actions; game_kernels.py, game_staying.py, game_coupling.py
    tracking.py     one step at a time along a chain that moves (single loops)
    undiscounted.py what recurs, and Newton's steps without a discount
    average.py      the least average cost, by closed classes of pairs
    total.py        the least total cost until terminal pairs

numba is loaded when a solver runs, not before.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers.base import Callback, check_options

__all__ = ["Exact"]

#: Which file answers which question; each has ``solve(problem, options, warm, callback)``.
HOMES = {
    "discounted": "solver",
    "average": "average",
    "total": "total",
    "horizon": "horizon",
    "actions": "games",
}


@dataclass(frozen=True, slots=True)
class Exact:
    """Policy iteration with exact transports (``solver="exact"``).

    Attributes:
        tol: certified gap to reach, relative to the largest ground cost.
        max_iterations: improvements before it gives up (it warns, and the bounds stay true).
        time_limit: seconds after which no further iteration starts; None for no limit.
        reachable: solve only the pairs that some coupling can reach from the starts; the others are NaN.
        threads: how many to use; None for all processors, where the sweep is large enough to pay.
        cluster: a Dask ``Client``, or the address of its scheduler: the trees of all pairs stay on its workers, of
            which each uses ``threads``, or as many as it was started with (docs/cluster). For the discounted criterion.
        checkpoint: a file with the table after every iteration, which a run of the same problem that was killed goes
            on from, to the same certified gap. For the discounted criterion.
        store: a folder for the trees of very many pairs (docs/exact), where memory has room for the tables only.
    """

    tol: float = 1e-8
    max_iterations: int = 200
    time_limit: float | None = None
    reachable: bool = False
    threads: int | None = None
    cluster: Any = None
    checkpoint: str | Path | None = None
    store: str | Path | None = None

    name: ClassVar[str] = "exact"
    samples: ClassVar[bool] = False
    tracks: ClassVar[bool] = True
    criteria: ClassVar[tuple[str, ...]] = tuple(HOMES)

    def __post_init__(self) -> None:
        check_options(self, "tol", "max_iterations", "threads")
        if self.time_limit is not None and not as_number(self.time_limit) >= 0:
            raise InvalidArgument(f"time_limit is {self.time_limit!r}; give seconds, or None for no limit")

    def solve(
        self, problem: Problem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Run to the certified gap, from a previous result if given; ``callback(row of history)`` true stops."""
        where = HOMES[problem.criterion]
        for option in ("cluster", "checkpoint", "store"):
            if getattr(self, option) is not None and problem.criterion != "discounted":
                raise InvalidArgument(f"{option} is for the discounted criterion, not for {problem.criterion!r}")
        if self.cluster is not None:
            where = "cluster"
        home = import_module(f"diffbisim.solvers.exact.{where}")
        result: DistanceResult = home.solve(problem, self, warm, callback)
        return result
