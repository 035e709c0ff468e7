"""Where two processes differ, and what that does to their distance.

*Where the cost is paid.* With m the occupancy of the optimal coupling d = <m, c>: the pair (x, y) costs m(x,y)
c(x,y), and sums over pairs say in which states of X, and of Y, the distance arises. That holds for any two processes.
It is a symptom: a transition that is taken more often in one process is paid for in the states that it leads to, and
in all that follow.

*What causes it* can be said where both have the same states: rows of the kernels that differ, and the starts
(solvers/causes.py). ``size`` is what a row adds to the distance at first order. Large rows need not be the certain
ones: between two sets of data (evidence.py) ``z`` is how far a row is out of the ordinary, in standard deviations of
chance, and ``p_value`` how often chance makes the largest z of all rows as large.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffbisim.checks import Floats, freeze
from diffbisim.errors import InvalidArgument
from diffbisim.problem import lazy

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.chain import MarkovChain
    from diffbisim.results import DistanceResult

#: How the start is called among the rows.
START = "(start)"

Record = dict[str, Any]


class Solve(NamedTuple):
    """What needs a solver again (solvers/causes.py)."""

    first_order: Callable[..., Any]
    integrated_gradient: Callable[..., Any]
    pseudometric: Callable[..., bool]


#: How to get it; entered by diffbisim.solvers, without which there is no result.
solve: list[Callable[[], Solve]] = []


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of two kernels and their starts, side by side; R of them."""

    names: tuple[Hashable, ...]  # of the states; the start is called START
    apart: Floats  # (R,) W_x, how far the two rows are apart
    size: Floats  # (R,) what this adds to the distance at first order
    z: Floats | None = None  # (R,) between data: how far out of the ordinary, in deviations of chance
    p_values: Floats | None = None  # (R,) how often the largest z of all rows is as large by chance


@dataclass(frozen=True, eq=False, repr=False)
class Contributions:
    """Where the cost of a distance is paid and what causes it; make it with ``result.contributions()``.

    ``str()`` is a table for people, :meth:`records` one for programs, ``db.plot.contributions`` a picture.
    """

    distance: DistanceResult
    given: Rows | None = None
    nodes: int = 8

    @lazy
    def paid(self) -> Floats:
        """m(x,y) c(x,y), shape ``(n_X, n_Y)``; sums to the distance."""
        table = self.distance.occupancy * self.distance.problem.cost
        total = float(table.sum())
        return freeze(table * (self.distance.value / total) if total > 0 else table)

    @property
    def by_x(self) -> Floats:
        """What is paid in each state of X, ``(n_X,)``; sums to the distance."""
        return np.asarray(self.paid.sum(axis=1))

    @property
    def by_y(self) -> Floats:
        """What is paid in each state of Y, ``(n_Y,)``; sums to the distance."""
        return np.asarray(self.paid.sum(axis=0))

    @property
    def reason(self) -> str | None:
        """Why nothing is known of causes; None if it is."""
        problem = self.distance.problem
        if problem.criterion != "discounted":
            return f"rows are compared for the discounted criterion, not for {problem.criterion!r}"
        if problem.x.labels != problem.y.labels or problem.x.n_states != problem.y.n_states:
            return "the two do not have the same states in the same order, so that their rows cannot be compared"
        if not solve[0]().pseudometric(problem.cost):
            return "the cost is no metric between the states: symmetric, zero between equal ones, and triangular"
        return None

    @lazy
    def rows(self) -> Rows:
        """Which rows and starts cause the distance; those that do not differ are left out."""
        if self.given is not None:
            return self.given
        self._need_causes()
        found, X = solve[0]().first_order(self.distance.problem), self.distance.problem.x
        return Rows(row_names(X, found.states), freeze(found.apart), freeze(found.size))

    @lazy
    def path(self) -> Any:
        """Single transitions and starts by the integrated gradient: ``transitions``, ``starts``, and its ``error``."""
        self._need_causes()
        return solve[0]().integrated_gradient(self.distance.problem, self.distance.value, self.nodes)

    def _need_causes(self) -> None:
        if self.reason is not None:
            raise InvalidArgument(f"{self.reason}; where the cost is paid is in paid, by_x and by_y")

    def records(self, what: str = "rows", most: int | None = None) -> list[Record]:
        """A list of mappings, the largest first, for DataFrames and JSON.

        Parameters
        ----------
        what : "rows" (what causes the distance; by evidence where there is some, else by size), "pairs", "x" or "y"
            (where it is paid), or "transitions" (single ones, by the integrated gradient)
        most : at most so many
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
        return kinds[what]()[:most]

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
            "x": [X.label(int(k)) for k in at[0]],
            "y": [Y.label(int(k)) for k in at[1]],
            "paid": self.paid[at],
            "share": self.paid[at] / (d.value or 1.0),
            "occupancy": d.occupancy[at],
            "cost": d.problem.cost[at],
        }
        return _sorted(columns, self.paid[at])

    def _state_records(self, side: str) -> list[Record]:
        chain, paid = (self.distance.problem.x, self.by_x) if side == "x" else (self.distance.problem.y, self.by_y)
        names = [chain.label(k) for k in range(chain.n_states)]
        return _sorted({"state": names, "paid": paid, "share": paid / (self.distance.value or 1.0)}, paid)

    def _transition_records(self) -> list[Record]:
        from scipy import sparse

        X, Y = self.distance.problem.x, self.distance.problem.y
        parts = sparse.coo_array(self.path.transitions)
        (i, j), amount = parts.coords, parts.data
        starts = np.flatnonzero(self.path.starts)
        columns: dict[str, Any] = {
            "state": [X.label(int(k)) for k in i] + [START] * starts.size,
            "next_state": [X.label(int(k)) for k in (*j, *starts)],
            "amount": np.append(amount, self.path.starts[starts]),
            "x": np.append(X.successors.matrix[i, j], X.initial[starts]),
            "y": np.append(Y.successors.matrix[i, j], Y.initial[starts]),
        }
        return _sorted(columns, np.abs(columns["amount"]))

    def tables(self, most: int = 8) -> list[Table]:
        """For people (rich): the rows that cause it, if they can be told, and where it is paid."""
        tables = [_table(self.records("x", most), "where it is paid, by states of X"),
                  _table(self.records("pairs", most), "where it is paid, by pairs of states")]  # fmt: skip
        if self.given is not None or self.reason is None:
            tables.insert(0, _table(self.records("rows", most), "which rows cause it"))
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
    """The labels of rows; that of state n is the start."""
    return tuple(START if k == chain.n_states else chain.label(int(k)) for k in states)


def _sorted(columns: dict[str, Any], key: Any) -> list[Record]:
    """Rows of a table of columns, the largest key first; numbers are Python's own."""
    plain = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    return [{name: column[k] for name, column in plain.items()} for k in np.argsort(-np.asarray(key), kind="stable")]


def _table(records: Sequence[Record], title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in records[0] if records else ("nothing",):
        table.add_column(name.replace("_", " "))
    for record in records:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in record.values()))
    return table
