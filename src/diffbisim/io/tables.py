"""Text tables with line numbers, so that a broken file is reported where it is broken.

A `Table` holds the columns of a file as strings, and the line each row came from. Its methods turn a column
into numbers or states and, when they cannot, raise `InvalidData` with file, line, text and remedy.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import Floats, Integers, distinct_labels
from diffbisim.errors import InvalidData
from diffbisim.io import limits
from diffbisim.io.files import broken, naming, open_text

ROUNDED_TEXT = 1e-5  # how far the printed probabilities of a row may be from one (PRISM's own tolerance)
CHUNK = 256  # rows parsed at a time: few enough not to wake the garbage collector
DIGITS = frozenset("-0123456789")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of text by name, each of m strings; ``line(k)`` is the line of row k."""

    path: Path
    columns: dict[str, Sequence[str]]
    line: Callable[[int], int]
    delimiter: str = ","

    def fault(self, k: int, why: str) -> NoReturn:
        """Raise for row k: file, line, the text of the row, what is wrong."""
        text = self.delimiter.join(column[k] for column in self.columns.values())
        raise broken(self.path, self.line(k), text, why)

    def floats(self, name: str, least: float = 0.0) -> Floats:
        """A column of finite numbers, not below ``least``; a fraction such as 1/3 is understood."""
        column = self.columns[name]
        try:
            numbers = np.fromiter(map(float, column), dtype=np.float64, count=len(column))
        except ValueError:
            numbers = np.array([self._fraction(k, name) for k in range(len(column))], dtype=np.float64)
        bad = ~(np.isfinite(numbers) & (numbers >= least))
        if bad.any():
            at_least = "" if least == -np.inf else f", at least {least:g}"
            self.fault(int(bad.argmax()), f"{name} must be a finite number{at_least}")
        return numbers

    def integers(self, name: str) -> Integers:
        """A column of integers."""
        column = self.columns[name]
        numbers = _integers(column)
        if numbers is None:
            k = next(k for k, text in enumerate(column) if not is_integer(text))
            self.fault(k, f"{name} must be an integer")
        return numbers

    def states(self, *names: str) -> list[Any]:
        """Columns of states: integer arrays if every entry is an integer, else lists of strings."""
        for name in names:
            if "" in self.columns[name]:
                self.fault(self.columns[name].index(""), f"{name} is empty; name the state")
        numbers = [_integers(self.columns[name]) for name in names]
        return [list(self.columns[name]) for name in names] if any(n is None for n in numbers) else numbers

    def _fraction(self, k: int, name: str) -> float:
        top, slash, bottom = self.columns[name][k].partition("/")
        try:
            return float(top) / (float(bottom) if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            self.fault(k, f"{name} must be a number")


def header(path: Path, delimiter: str | None = None) -> list[str]:
    """The names of the columns of a CSV file, from its first line alone."""
    with open_text(path) as file:
        first = file.readline()
        file.seek(0)
        _, row = next(_csv_rows(path, file, delimiter or _delimiter(first)), (1, []))
    return [name.strip().lower() for name in row]


def _delimiter(line: str) -> str:
    return "\t" if "\t" in line and "," not in line else ","


def read_columns(path: Path, delimiter: str | None = None) -> Table:
    """A CSV file with a header line; blank lines are skipped, spaces after a delimiter too."""
    with open_text(path) as file:
        delimiter = delimiter or _delimiter(file.readline())
        file.seek(0)
        rows = _csv_rows(path, file, delimiter)
        _, first = next(rows, (1, []))
        names = [name.strip().lower() for name in first]
        if not names:
            raise broken(path, 1, "", "the file is empty; it needs a header line")
        if len(set(names)) < len(names):
            raise broken(path, 1, delimiter.join(names), "two columns have the same name")
        columns: list[list[str]] = [[] for _ in names]
        while chunk := list(islice(rows, CHUNK)):
            for line, row in chunk:
                if len(row) != len(names):
                    why = f"expected {len(names)} fields ({', '.join(names)}), found {len(row)}"
                    raise broken(path, line, delimiter.join(row), why)
            for column, part in zip(columns, zip(*(row for _, row in chunk), strict=True), strict=True):
                column.extend(part)
    if not columns[0]:
        raise broken(path, 1, delimiter.join(names), "no rows follow the header")
    return Table(path, dict(zip(names, columns, strict=True)), partial(_csv_line, path, delimiter), delimiter)


def _csv_rows(path: Path, file: IO[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it ends on."""
    reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise broken(path, reader.line_num, "", str(error)) from None


def _csv_line(path: Path, delimiter: str, k: int) -> int:
    """The line of row k, found by reading the file again: only errors ask for it."""
    with open_text(path) as file:
        return next(islice(_csv_rows(path, file, delimiter), k + 1, None))[0]


def chain_of_edges(
    table: Table,
    source: Any,
    target: Any,
    probability: Floats,
    states: int | None = None,
    labels: Sequence[Hashable] | None = None,
    **options: Any,
) -> MarkovChain:
    """The chain with these probabilities: no pair twice, and what leaves a state sums to one."""
    data = Transitions.from_pairs(source, target, weights=probability, states=states)
    if labels is not None:
        with naming(table.path):
            data = replace(data, labels=distinct_labels(labels, data.n_states))
    check_rows(table, data.states, data.next_states, probability, lambda k: f"state {data.name(k)!r}")
    if options.get("unseen") in ("self-loop", "uniform"):
        check_states(table.path, data.n_states, len(data))
    with naming(table.path):
        return data.chain(**options)


def check_rows(table: Table, i: Integers, j: Integers, probability: Floats, name: Callable[[int], str]) -> None:
    """Raise if a pair (i, j) stands twice, or if the probabilities of an i do not sum to one."""
    order = np.lexsort((j, i))
    twice = (np.diff(i[order]) == 0) & (np.diff(j[order]) == 0)
    if twice.any():
        k, first = int(order[1:][twice][0]), int(order[:-1][twice][0])
        table.fault(k, f"repeats the transition of line {table.line(first)}; remove one or add them up")
    _, begin, group = np.unique(i, return_index=True, return_inverse=True)
    sums = np.bincount(group, probability)
    bad = np.abs(sums - 1.0) > ROUNDED_TEXT
    if bad.any():
        k = int(begin[bad].min())
        total = sums[group[k]]
        table.fault(k, f"the probabilities out of {name(int(i[k]))} sum to {total:.10g}; they must sum to one")


def check_states(path: Path, n: int, rows: int, what: str = "states") -> None:
    """Raise if a file of so many rows asks for more states than there may be, or than it says anything about."""
    most = min(limits.STATES, rows + limits.UNSEEN)
    if n > most:
        raise InvalidData(
            f"{path}: {n:,} {what} in {rows:,} lines are more than {most:,}; if the numbers are names, pass "
            'unseen="drop", else raise the limits in diffbisim.io.limits'
        )


def is_integer(text: str) -> bool:
    """Whether a table would read this text as an integer."""
    return _integers([text]) is not None


def _integers(column: Sequence[str]) -> Integers | None:
    """The column as integers, None if an entry is not written as one ("1_0" is a name)."""
    if not DIGITS.issuperset("".join(column)):
        return None
    try:
        return np.fromiter(map(int, column), dtype=np.int64, count=len(column))
    except (ValueError, OverflowError):
        return None
