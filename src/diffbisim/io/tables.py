"""Text tables of chains, transitions, trajectories, rewards and costs; errors name the line.

    from,to,probability           edges of a chain; the probabilities of leaving a state sum to one
    state,next_state[,weight]     observed transitions, from which the chain is estimated
    episode,t,state               trajectories, with rows in any order and t consecutive within an episode
    state,reward                  rewards of states; several reward columns give vectors
    0,1,2 …                       numbers without a header, such as a cost

The header determines the meaning of the rows. A state column with only integers contains state indices, any other
names. A `Table` holds the columns of a file as strings and the line of each row; its methods convert a column to
numbers or states, and raise `InvalidData` with the file, line, text and remedy if they cannot.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain as concatenated
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.common.names import distinct_names
from diffbisim.io import limits
from diffbisim.io.arrays import read_array
from diffbisim.io.files import broken, extension, naming, open_text, replacing
from diffbisim.processes.chain import MarkovChain, Transitions, Unseen

ROUNDED_TEXT = 1e-5  # largest deviation of a row of printed probabilities from one (as in PRISM)
DELIMITERS = (",", ";", "\t")  # the one that occurs most often in the header is used
CHUNK = 256  # rows parsed at a time, few enough not to trigger the garbage collector
DIGITS = frozenset("-0123456789")
EDGES, PAIRS, STEPS = ("from", "to", "probability"), ("state", "next_state"), ("episode", "t", "state")
OBSERVED = ({*PAIRS}, {*PAIRS, "weight"}, {*STEPS})


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of text by name, each of m strings; ``line(k)`` is the line of row k."""

    path: Path
    columns: dict[str, Sequence[str]]
    line: Callable[[int], int]
    delimiter: str = ","

    def fault(self, k: int, why: str) -> NoReturn:
        """Raise an error for row k with the file, the line, the text and the reason."""
        text = self.delimiter.join(column[k] for column in self.columns.values())
        raise broken(self.path, self.line(k), text, why)

    def expect(self, header: str) -> InvalidData:
        """Return the error for a table with a different header."""
        return broken(self.path, 1, self.delimiter.join(self.columns), f"the header must be {header}")

    def floats(self, name: str, least: float = 0.0) -> Floats:
        """Return a column of finite numbers of at least ``least``; fractions such as 1/3 are allowed."""
        column = self.columns[name]
        if self.delimiter == ";":  # commas may then be decimal commas
            column = [text.replace(",", ".") for text in column]
        try:
            numbers = np.fromiter(map(float, column), dtype=np.float64, count=len(column))
        except ValueError:
            numbers = np.array([self._fraction(k, name, text) for k, text in enumerate(column)], dtype=np.float64)
        bad = ~(np.isfinite(numbers) & (numbers >= least))
        if bad.any():
            at_least = "" if least == -np.inf else f", at least {least:g}"
            self.fault(int(bad.argmax()), f"{name} must be a finite number{at_least}")
        return numbers

    def integers(self, name: str) -> Integers:
        """Return a column of integers."""
        column = self.columns[name]
        numbers = _integers(column)
        if numbers is None:
            k = next(k for k, text in enumerate(column) if not is_integer(text))
            self.fault(k, f"{name} must be an integer")
        return numbers

    def states(self, *names: str) -> list[Any]:
        """Return columns of states: integer arrays if every entry is an integer, else lists of strings."""
        for name in names:
            if "" in self.columns[name]:
                self.fault(self.columns[name].index(""), f"{name} is empty; name the state")
        numbers = [_integers(self.columns[name]) for name in names]
        return [list(self.columns[name]) for name in names] if any(n is None for n in numbers) else numbers

    def _fraction(self, k: int, name: str, text: str) -> float:
        top, slash, bottom = text.partition("/")
        try:
            return float(top) / (float(bottom) if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            self.fault(k, f"{name} must be a number")


def is_integer(text: str) -> bool:
    """Return whether a table would read this text as an integer."""
    return _integers([text]) is not None


def _integers(column: Sequence[str]) -> Integers | None:
    """Return the column as integers, or None if an entry is not an integer ("1_0" is a name)."""
    if not DIGITS.issuperset("".join(column)):
        return None
    try:
        return np.fromiter(map(int, column), dtype=np.int64, count=len(column))
    except (ValueError, OverflowError):
        return None


# --- rows and columns ---------------------------------------------------------------------------------------------


def header(path: Path) -> list[str]:
    """Read the names of the columns of a CSV file from its first line."""
    with open_text(path) as file:
        return csv_rows(path, file).names


def read_columns(path: Path) -> Table:
    """Read a CSV file with a header line; blank lines and spaces after a delimiter are skipped."""
    with open_text(path) as file:
        found = csv_rows(path, file)
        columns: list[list[str]] = [[] for _ in found.names]
        for part in found.columns():
            for column, entries in zip(columns, part, strict=True):
                column.extend(entries)
    return Table(path, dict(zip(found.names, columns, strict=True)), partial(csv_line, path), found.delimiter)


@dataclass(frozen=True)
class CsvRows:
    """The non-blank rows of an open CSV file, after its header."""

    path: Path
    names: list[str]
    delimiter: str
    rows: Iterator[tuple[int, list[str]]]  # last line number and entries of each row

    def columns(self) -> Iterator[list[tuple[str, ...]]]:
        """Yield chunks of rows by column, checking that all rows have the length of the header."""
        width, chunk = len(self.names), list(islice(self.rows, CHUNK))
        if not chunk:
            raise broken(self.path, 1, self.delimiter.join(self.names), "no rows follow the header")
        while chunk:
            for line, row in chunk:
                if len(row) != width:
                    why = f"expected {width} fields ({', '.join(self.names)}), found {len(row)}"
                    raise broken(self.path, line, self.delimiter.join(row), why)
            yield list(zip(*(row for _, row in chunk), strict=True))
            chunk = list(islice(self.rows, CHUNK))


def csv_rows(path: Path, file: IO[str]) -> CsvRows:
    """Read the header, and prepare to read the rows."""
    first = file.readline()
    delimiter = "\t" if extension(path) == ".tsv" else max(DELIMITERS, key=first.count)

    def rows() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(concatenated([first], file), delimiter=delimiter, skipinitialspace=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise broken(path, reader.line_num, "", str(error)) from None

    found = rows()
    _, row = next(found, (1, []))
    names = [name.strip().lower() for name in row]
    if not names:
        raise broken(path, 1, "", "the file is empty; it needs a header line")
    if len(set(names)) < len(names):
        raise broken(path, 1, delimiter.join(names), "two columns have the same name")
    return CsvRows(path, names, delimiter, found)


def csv_line(path: Path, k: int) -> int:
    """Return the line of row k, by reading the file again (used for error messages only)."""
    with open_text(path) as file:
        return next(islice(csv_rows(path, file).rows, k, None))[0]


# --- chains -------------------------------------------------------------------------------------------------------


def read_csv(path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: Unseen = "error") -> MarkovChain:
    """Read the chain in a table of edges, transitions or trajectories."""
    table = read_columns(Path(path))
    options: dict[str, Any] = {"initial": initial, "rewards": rewards, "unseen": unseen}
    if set(table.columns) == set(EDGES):
        source, target = table.states("from", "to")
        return chain_of_edges(table, source, target, table.floats("probability"), **options)
    if set(table.columns) not in OBSERVED:
        raise table.expect("from,to,probability or state,next_state[,weight] or episode,t,state")
    with naming(table.path):
        data = _observed(table)
        if unseen in ("self-loop", "uniform"):
            check_states(table.path, data.n_states, len(data))
        return data.chain(**options)


def read_observations(path: str | Path, states: Any = None, end: Hashable = None) -> Transitions:
    """Read a table of transitions or trajectories; ``states`` and ``end`` as in `Transitions.from_trajectories`."""
    table = read_columns(Path(path))
    if set(table.columns) not in OBSERVED:
        raise table.expect("state,next_state[,weight] or episode,t,state")
    with naming(table.path):
        return _observed(table, states, end)


def holds_observations(path: Path) -> bool:
    """Return whether a table contains transitions or trajectories, according to its header."""
    return set(header(path)) in OBSERVED


def write_csv(chain: MarkovChain, path: str | Path) -> None:
    """Write the kernel as a table ``from,to,probability``, without initial distribution and rewards."""
    path = Path(path)
    names, s = _names_for_a_table(chain), chain.successors
    with replacing(path) as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(EDGES)
        rows = zip(s.sources.tolist(), s.indices.tolist(), s.probabilities.tolist(), strict=True)
        writer.writerows((names[i], names[j], repr(p)) for i, j, p in rows)


def _names_for_a_table(chain: MarkovChain) -> list[Any]:
    """Return the names of the states if a table preserves them: all integers, or strings that are not numbers."""
    names = [chain.name_of(k) for k in range(chain.n_states)]
    if all(type(name) is int for name in names):
        return names
    for name in names:
        if not isinstance(name, str) or name != name.strip() or not name or is_integer(name):
            raise InvalidData(
                f"name {name!r} cannot be stored in a table (only integers, or strings that are not numbers, can); "
                "write .npz instead"
            )
    return names


def _observed(table: Table, states: Any = None, end: Hashable = None) -> Transitions:
    if set(table.columns) == set(STEPS):
        return Transitions.from_trajectories(_episodes(table), states=states, end=end)
    if end is not None:
        raise InvalidArgument(f"end is {end!r}, but a table of single transitions has no sequences that end; omit end")
    weights = table.floats("weight") if "weight" in table.columns else None
    return Transitions.from_pairs(*table.states(*PAIRS), weights=weights, states=states)


def _episodes(table: Table) -> list[Any]:
    """Return the state sequences of a table episode,t,state, in order of appearance of the episodes."""
    number = {name: k for k, name in enumerate(dict.fromkeys(table.columns["episode"]))}
    episode = np.array([number[name] for name in table.columns["episode"]], dtype=np.int64)
    t = table.integers("t")
    order = np.lexsort((t, episode))
    same, step = np.diff(episode[order]) == 0, np.diff(t[order])
    bad = same & (step != 1)
    if bad.any():
        k, before = int(order[1:][bad][0]), int(order[:-1][bad][0])
        fault = "repeats" if t[k] == t[before] else "leaves a gap after"
        table.fault(k, f"t = {t[k]} {fault} t = {t[before]} of line {table.line(before)}; t must be consecutive")
    (states,) = table.states("state")
    ordered = states[order] if isinstance(states, np.ndarray) else [states[k] for k in order]
    bounds = [0, *(np.flatnonzero(~same) + 1).tolist(), len(order)]
    return [ordered[begin:end] for begin, end in pairwise(bounds)]


def chain_of_edges(
    table: Table,
    source: Any,
    target: Any,
    probability: Floats,
    states: int | None = None,
    names: Sequence[Hashable] | None = None,
    **options: Any,
) -> MarkovChain:
    """Create the chain with these probabilities, after checking for repeated pairs and row sums."""
    data = Transitions.from_pairs(source, target, weights=probability, states=states)
    if names is not None:
        with naming(table.path):
            data = replace(data, names=distinct_names(names, data.n_states))
    check_rows(table, data.states, data.next_states, probability, lambda k: f"state {data.name_of(k)!r}")
    if options.get("unseen") in ("self-loop", "uniform"):
        check_states(table.path, data.n_states, len(data))
    with naming(table.path):
        return data.chain(**options)


def check_rows(table: Table, i: Integers, j: Integers, probability: Floats, name: Callable[[int], str]) -> None:
    """Raise if a pair (i, j) is repeated, or if the probabilities of a row i do not sum to one."""
    order = np.lexsort((j, i))
    twice = (np.diff(i[order]) == 0) & (np.diff(j[order]) == 0)
    if twice.any():
        k, first = int(order[1:][twice][0]), int(order[:-1][twice][0])
        table.fault(k, f"repeats the transition of line {table.line(first)}; remove one or add the probabilities")
    _, begin, group = np.unique(i, return_index=True, return_inverse=True)
    sums = np.bincount(group, probability)
    bad = np.abs(sums - 1.0) > ROUNDED_TEXT
    if bad.any():
        k = int(begin[bad].min())
        total = sums[group[k]]
        table.fault(k, f"the probabilities out of {name(int(i[k]))} sum to {total:.10g}; they must sum to one")


def check_states(path: Path, n: int, rows: int, what: str = "states") -> None:
    """Raise if the number of states exceeds the limit, or is far larger than the number of rows."""
    most = min(limits.STATES, rows + limits.UNSEEN)
    if n > most:
        raise InvalidData(
            f"{path}: {n:,} {what} in {rows:,} lines are more than {most:,}; if the numbers are names, pass "
            'unseen="drop", otherwise raise the limits in diffbisim.io.limits'
        )


# --- rewards and costs --------------------------------------------------------------------------------------------


def read_rewards(path: Path) -> Any:
    """Read rewards: an array from .npy, or a mapping from a table with the header ``state,reward``.

    Several columns other than ``state``, with any names, give a vector per state.
    """
    if path.suffix.lower() == ".npy":
        return np.asarray(read_array(path), dtype=np.float64)
    table = read_columns(path)
    seen = [column for column in table.columns if column != "state"]
    if "state" not in table.columns or not seen or (len(seen) == 1 and seen != ["reward"]):
        why = "the header of a table of rewards must be state,reward (or state and several columns of numbers)"
        raise broken(path, 1, table.delimiter.join(table.columns), why)
    (states,) = table.states("state")
    names = states.tolist() if isinstance(states, np.ndarray) else states
    columns = [table.floats(column, least=-math.inf).tolist() for column in seen]
    values: list[Any] = columns[0] if len(seen) == 1 else list(map(list, zip(*columns, strict=True)))
    rewards: dict[Any, Any] = {}
    for k, (name, reward) in enumerate(zip(names, values, strict=True)):
        if name in rewards:
            table.fault(k, f"state {name!r} already has a reward; remove one")
        rewards[name] = reward
    return rewards


def read_numbers(path: Path) -> Floats:
    """Read a matrix from .npy, or from a table of numbers without a header."""
    if path.suffix.lower() == ".npy":
        return np.asarray(read_array(path), dtype=np.float64)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows: list[list[float]] = []
    with open_text(path) as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                rows.append([float(word) for word in text.split(delimiter)])
            except ValueError:
                raise broken(path, line, text.strip(), "expected numbers only, without a header") from None
            if not all(map(math.isfinite, rows[-1])):
                raise broken(path, line, text.strip(), "expected finite numbers only")
            if len(rows[-1]) != len(rows[0]):
                why = f"expected {len(rows[0])} numbers as in the first row, found {len(rows[-1])}"
                raise broken(path, line, text.strip(), why)
    if not rows:
        raise broken(path, 1, "", "the file is empty")
    return np.array(rows)
