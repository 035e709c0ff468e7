"""The exact solver, and its options.

    solver.py       policy iteration over pairs of states: the algorithm and its certificates
    transports.py   many transports over one table, with optimal bases kept from sweep to sweep
    evaluation.py   the value of a coupling: linear systems over pairs
    coupling.py     plans, potentials and occupancies of a solution
    small.py        small problems in one call of the engine
    cluster.py      one problem on many machines
    games.py        strategy iteration for MDPs with actions
    tracking.py     one step at a time along a changing chain (single loops)
    undiscounted.py recurrence, and Newton's steps without a discount
    average.py      the least average cost, by closed classes of pairs
    total.py        the least total cost until a terminal pair
    horizon.py      finite horizons: backward induction

The transports, the linear systems and the certificates themselves are compiled (``engine/``).
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast

from diffbisim.common.checks import check_flag, check_seconds
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems import Average, Discounted, FiniteHorizon, Game, Problem, Total
from diffbisim.results.base import DistanceResult
from diffbisim.solvers.base import Callback, check_options

__all__ = ["Exact"]

#: The module that solves each problem; it has ``solve(problem, options, warm, callback)``.
METHODS: dict[type[Problem], str] = {
    Discounted: "solver",
    Average: "average",
    Total: "total",
    FiniteHorizon: "horizon",
    Game: "games",
}


@dataclass(frozen=True, slots=True)
class Exact:
    """Policy iteration with exact transports (``solver="exact"``).

    Parameters
    ----------
    tol : float, default=1e-8
        Certified gap to reach, relative to the largest ground cost.
    max_iterations : int, default=200
        Maximum number of improvements; beyond it the solver warns, and the bounds remain valid.
    time_limit : float, default=None
        Seconds after which no further iteration starts; one that takes a tenth longer is abandoned, and the answer is
        that of the last one. If there was none, the bounds are those of all problems with these costs. None for no
        limit.
    reachable : bool, default=False
        Solve only the pairs that some coupling can reach from the starts; values of the others are NaN.
    threads : int, default=None
        Number of threads; None for all processors if a sweep is large enough.
    cluster : dask.distributed.Client or str, default=None
        A Dask client, or the address of its scheduler. The trees of all pairs stay on its workers, each of which uses
        `threads`, or as many threads as it was started with (docs/cluster). Discounted criterion only.
    checkpoint : str or Path, default=None
        A file with the table after every iteration, from which a killed run of the same problem resumes to the same
        certified gap. Discounted criterion only.
    store : str or Path, default=None
        A folder for the trees of very many pairs (docs/exact), if memory holds only the tables. Discounted criterion
        only.
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
    solves: ClassVar[tuple[type[Problem], ...]] = tuple(METHODS)

    def __post_init__(self) -> None:
        check_options(self, "tol", "max_iterations", "threads")
        check_flag(self.reachable, "reachable")
        check_seconds(self.time_limit)

    def solve(
        self, problem: Any, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Solve to the certified gap, starting from a previous result if given; stops if ``callback(row)`` is true."""
        discounted = isinstance(problem, Discounted)
        for option in ("cluster", "checkpoint", "store"):
            if getattr(self, option) is not None and not discounted:
                raise InvalidArgument(
                    f"{option} is for the discounted criterion, not for {problem.criterion!r}; leave it out"
                )
        if discounted and self._is_plain():
            small = import_module(f"{__name__}.small")
            if small.is_small(problem) and (found := small.solve(problem, self, warm, callback)) is not None:
                return cast(DistanceResult, found)
        name = METHODS[type(problem)] if self.cluster is None else "cluster"
        result: DistanceResult = import_module(f"{__name__}.{name}").solve(problem, self, warm, callback)
        return result

    def _is_plain(self) -> bool:
        """Whether the problem is solved in memory, in one go."""
        return self.cluster is None and self.checkpoint is None and self.store is None
