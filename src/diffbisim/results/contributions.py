"""Decomposition of a distance: in which states the cost is paid, and which rows of the kernels cause it.

*Where the cost is paid.* With m the occupancy of the optimal coupling, d = <m, c>: the pair (x, y) contributes
m(x,y) c(x,y), and sums over pairs give the contributions of the states of X and of Y. This works for any two processes,
but shows symptoms rather than causes: a transition that is more frequent in one process is paid for in the states that
it leads to, and in all later ones.

*What causes it.* If both processes have the same states, the causes are the rows of the kernels that differ, and the
initial distributions (solvers/causes.py). ``size`` is the first-order contribution of a row to the distance. Large
contributions need not be significant: between two datasets (permutation.py), ``z`` is the deviation of a row in
standard errors, and ``p_value`` the probability that the largest z over all rows is this large by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffbisim.common.arrays import lazy
from diffbisim.common.checks import Floats, check_count, freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.discounted import Discounted

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.processes.chain import MarkovChain
    from diffbisim.results.base import DistanceResult

#: Name of the initial distribution in the list of rows.
START = "(start)"

Record = dict[str, Any]


class Solve(NamedTuple):
    """The functions of solvers/causes.py, which this module may not import."""

    first_order: Callable[..., Any]
    integrated_gradient: Callable[..., Any]
    pseudometric: Callable[..., bool]


#: Registered by diffbisim.solvers; a list so that it can be set later.
solve: list[Callable[[], Solve]] = []


@dataclass(frozen=True, eq=False)
class Rows:
    """Comparison of the R rows (and initial distributions) in which two kernels differ."""

    names: tuple[Hashable, ...]  # states; START for the initial distribution
    apart: Floats  # (R,) W_x, the distance between the two rows
    size: Floats  # (R,) first-order contribution to the distance
    z: Floats | None = None  # (R,) between datasets: deviation in standard errors
    p_values: Floats | None = None  # (R,) probability that the largest z over all rows is this large by chance


@dataclass(frozen=True, eq=False, repr=False)
class Contributions:
    """Where the cost of a distance is paid and what causes it; created by ``result.contributions()``.

    ``str()`` gives a readable table, :meth:`records` a list of dicts, and ``db.plot.contributions`` a plot.
    """

    distance: DistanceResult
    given: Rows | None = None
    nodes: int = 8

    @lazy
    def paid(self) -> Floats:
        """Contribution m(x,y) c(x,y) of each pair, shape ``(n_X, n_Y)``; sums to the distance."""
        table = self.distance.occupancy * self.distance.problem.cost
        total = float(table.sum())
        return freeze(table * (self.distance.value / total) if total > 0 else table)

    @property
    def by_x(self) -> Floats:
        """Contribution of each state of X, ``(n_X,)``; sums to the distance."""
        return np.asarray(self.paid.sum(axis=1))

    @property
    def by_y(self) -> Floats:
        """Contribution of each state of Y, ``(n_Y,)``; sums to the distance."""
        return np.asarray(self.paid.sum(axis=0))

    @property
    def reason(self) -> str | None:
        """Why the causes cannot be determined; None if they can."""
        problem = self.distance.problem
        if not isinstance(problem, Discounted):
            return f"rows can only be compared for criterion='discounted', not for {problem.criterion!r}"
        if problem.x.names != problem.y.names or problem.x.n_states != problem.y.n_states:
            return "X and Y do not have the same states in the same order, so their rows cannot be compared"
        if not solve[0]().pseudometric(problem.cost):
            return "the cost is not a metric on the states (symmetric, zero on the diagonal, triangle inequality)"
        return None

    @lazy
    def rows(self) -> Rows:
        """The rows and initial distributions that cause the distance; equal ones are left out."""
        if self.given is not None:
            return self.given
        self._need_causes()
        found, X = solve[0]().first_order(self.distance.problem), self.distance.problem.x
        return Rows(row_names(X, found.states), freeze(found.apart), freeze(found.size))

    @lazy
    def path(self) -> Any:
        """``transitions``, ``starts`` and ``error``, contributions of single transitions by integrated gradients."""
        self._need_causes()
        return solve[0]().integrated_gradient(self.distance.problem, self.distance.value, self.nodes)

    def _need_causes(self) -> None:
        if self.reason is not None:
            raise InvalidArgument(f"{self.reason}; paid, by_x and by_y show where the cost is paid")

    def records(self, what: str = "rows", most: int | None = None) -> list[Record]:
        """Return the contributions as a list of dicts, largest first, for DataFrames and JSON.

        Parameters
        ----------
        what : {"rows", "pairs", "x", "y", "transitions"}, default="rows"
            "rows" are the rows that cause the distance, sorted by ``z`` if there is one, else by ``size``; "pairs", "x"
            and "y" show where it is paid; "transitions" are single transitions, by integrated gradients.
        most : int, default=None
            Maximum number of records.
        """
        kinds: dict[str, Callable[[], list[Record]]] = {
            "rows": self._row_records,
            "pairs": self._pair_records,
            "x": partial(self._state_records, "x"),
            "y": partial(self._state_records, "y"),
            "transitions": self._transition_records,
        }
        if what not in kinds:
            raise InvalidArgument(f"what is {what!r}; choose one of {', '.join(map(repr, kinds))}")
        return kinds[what]()[: None if most is None else check_count(most, "most")]

    def _row_records(self) -> list[Record]:
        rows = self.rows
        total = float(rows.size.sum()) or 1.0
        columns: dict[str, Any] = {
            "state": rows.names,
            "size": rows.size,
            "share": rows.size / total,
            "apart": rows.apart,
        }
        if rows.z is not None and rows.p_values is not None:
            columns |= {"z": rows.z, "p_value": rows.p_values}
        return _sorted(columns, rows.size if rows.z is None else rows.z)

    def _pair_records(self) -> list[Record]:
        d, X, Y = self.distance, self.distance.problem.x, self.distance.problem.y
        at = np.nonzero(self.paid)
        columns = {
            "x": [X.name_of(int(k)) for k in at[0]],
            "y": [Y.name_of(int(k)) for k in at[1]],
            "paid": self.paid[at],
            "share": self.paid[at] / (d.value or 1.0),
            "occupancy": d.occupancy[at],
            "cost": d.problem.cost[at],
        }
        return _sorted(columns, self.paid[at])

    def _state_records(self, side: str) -> list[Record]:
        chain, paid = (self.distance.problem.x, self.by_x) if side == "x" else (self.distance.problem.y, self.by_y)
        names = [chain.name_of(k) for k in range(chain.n_states)]
        return _sorted({"state": names, "paid": paid, "share": paid / (self.distance.value or 1.0)}, paid)

    def _transition_records(self) -> list[Record]:
        from scipy import sparse

        X, Y = self.distance.problem.x, self.distance.problem.y
        parts = sparse.coo_array(self.path.transitions)
        (i, j), amount = parts.coords, parts.data
        starts = np.flatnonzero(self.path.starts)
        columns: dict[str, Any] = {
            "state": [X.name_of(int(k)) for k in i] + [START] * starts.size,
            "next_state": [X.name_of(int(k)) for k in (*j, *starts)],
            "amount": np.append(amount, self.path.starts[starts]),
            "x": np.append(X.successors.matrix[i, j], X.initial[starts]),
            "y": np.append(Y.successors.matrix[i, j], Y.initial[starts]),
        }
        return _sorted(columns, np.abs(columns["amount"]))

    def tables(self, most: int = 8) -> list[Table]:
        """Return rich tables of the rows that cause the distance, if known, and of where it is paid."""
        tables = [_table(self.records("x", most), "where the cost is paid, by state of X"),
                  _table(self.records("pairs", most), "where the cost is paid, by pair of states")]  # fmt: skip
        if self.given is not None or self.reason is None:
            tables.insert(0, _table(self.records("rows", most), "which rows cause the distance"))
        return tables

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, markup=False, emoji=False, highlight=False, color_system=None)
        with console.capture() as text:
            console.print(*self.tables())
        return text.get().rstrip()

    def __repr__(self) -> str:
        return f"Contributions(of {self.distance!r})"


def row_names(chain: MarkovChain, states: Any) -> tuple[Hashable, ...]:
    """Return the names of rows; state n stands for the initial distribution."""
    return tuple(START if k == chain.n_states else chain.name_of(int(k)) for k in states)


def _sorted(columns: dict[str, Any], key: Any) -> list[Record]:
    """Return a dict of columns as a list of rows, sorted by descending key, with Python scalars."""
    plain = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    return [{name: column[k] for name, column in plain.items()} for k in np.argsort(-np.asarray(key), kind="stable")]


def _table(records: Sequence[Record], title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    whole = Text(title, style="table.title", no_wrap=True, overflow="ignore")  # also above a narrow table
    table = Table(title=whole, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in records[0] if records else ("(empty)",):
        table.add_column(name.replace("_", " "))
    for record in records:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in record.values()))
    return table
