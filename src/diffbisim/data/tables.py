"""Text tables with line numbers, so that a broken file is reported where it is broken.

A `Table` holds the columns of a file as strings, and the line each row came from. Its methods turn a column
into numbers or states and, when they cannot, raise `InvalidData` with file, line, text and remedy.
"""

from __future__ import annotations

import csv
import glob
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, Integers
from diffbisim.data.transitions import Transitions
from diffbisim.errors import InvalidChain, InvalidData

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

ROUNDED_TEXT = 1e-5  # how far the printed probabilities of a row may be from one (PRISM's own tolerance)
CHUNK = 256  # rows parsed at a time: few enough not to wake the garbage collector
TOKEN = 8  # hexadecimal digits in the name of a temporary file
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


def read_columns(path: Path, delimiter: str | None = None) -> Table:
    """A CSV file with a header line; blank lines are skipped, spaces after a delimiter too."""
    with opened(path) as file:
        header = file.readline()
        delimiter = delimiter or ("\t" if "\t" in header and "," not in header else ",")
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
    with opened(path) as file:
        return next(islice(_csv_rows(path, file, delimiter), k + 1, None))[0]


def chain_of_edges(
    table: Table, source: Any, target: Any, probability: Floats, states: int | None = None, **options: Any
) -> MarkovChain:
    """The chain with these probabilities: no pair twice, and what leaves a state sums to one."""
    data = Transitions.from_pairs(source, target, weights=probability, states=states)
    check_rows(table, data.states, data.next_states, probability, lambda k: f"state {data.name(k)!r}")
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


def broken(path: Path, line: int, text: str, why: str) -> InvalidData:
    """The error for a file that cannot be read: where, what stands there, and why it is wrong."""
    shown = f": {text[:80]!r}" if text else ""
    return InvalidData(f"{path}, line {line}{shown}: {why}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before the messages of errors about the chain in it."""
    try:
        yield
    except (InvalidData, InvalidChain) as error:
        raise type(error)(f"{path}: {error}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """The file as UTF-8 text, with or without a byte order mark."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            raise InvalidData(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from None


@contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A temporary file beside ``path`` that takes its place when all is written, or vanishes.

    It is locked while it is written, so that :func:`remove_abandoned` can tell it from what a killed process left.
    """
    temporary, file = _temporary(path, binary)
    try:
        with file:
            yield file
            if fcntl is not None:  # while it is still locked
                file.flush()
                os.replace(temporary, path)
        if fcntl is None:
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path, binary: bool) -> tuple[Path, IO[Any]]:
    """A new file beside ``path``, open and locked."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(TOKEN // 2)}")
        file: IO[Any] = temporary.open("xb") if binary else temporary.open("x", encoding="utf-8", newline="")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody is about to remove it, see below
            file.close()
            continue
        except OSError:  # a file system without locks
            pass
        if temporary.exists():
            return temporary, file
        file.close()


def remove_abandoned(path: Path) -> None:
    """Delete the temporary files of ``path`` that a killed process has left, and none that is still being written."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * TOKEN}"):
        try:
            with leftover.open("r+b") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()
            if fcntl is None:  # Windows does not delete what is open
                leftover.unlink()
        except OSError:  # locked by its writer, gone already, or not ours
            continue


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
