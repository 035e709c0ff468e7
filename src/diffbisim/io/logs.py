"""Files of events, from which events.py extracts state sequences.

    .csv, .tsv, .gz of these, "-"     read row by row, keeping only codes of the requested columns
    .parquet, .arrow, .feather        the requested columns, read by pyarrow
    .xes, .xes.gz                     event logs of process mining: <trace> elements with <event> elements

XES is XML, which can refer to other files and expand without bound: documents with declarations (<!DOCTYPE …>) or
excessive nesting are rejected. The events of a trace are in the order of the file.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from diffbisim.common.errors import InvalidArgument, InvalidData, MissingExtra, warn_of_input
from diffbisim.io import limits
from diffbisim.io.files import broken, extension, naming, open_bytes, open_file, open_text
from diffbisim.io.tables import CsvRows, csv_line, csv_rows
from diffbisim.processes.chain import Transitions
from diffbisim.processes.events import CodeBook, Coded, Times, is_episode, join_times, parse_times

ARROW = (".parquet", ".arrow", ".feather")
LOGS = (".xes", *ARROW)
OTHERS = (".json", ".jsonl", ".ndjson", ".xls", ".xlsx", ".ods", ".zip")  # tables that are not read
BATCH = 2**16  # number of times that are parsed at once
ACTIVITY = "concept:name"  # attribute with the activity of an event
PHASE = "lifecycle:transition"  # attribute that says whether an event is the start or the end of an activity


def read_events(path: str | Path, *, id: Any = None, time: Any = None, state: Any = None, **options: Any) -> Any:
    """Read the events in a file as Transitions, or a dict of them with ``group``; see `Transitions.from_frame`.

    In an XES log the id is the trace; ``state`` and ``time`` are attributes of the events (by default concept:name, and
    time:timestamp if there is a ``gap`` or ``every``), and ``group`` is an attribute of the traces.
    """
    path, kind, group = Path(path), extension(path), options.get("group")
    others = [name for name in (options.get("cluster"), options.get("strata")) if name is not None]
    others = [name for name in others if not is_episode(name)]
    if kind == ".xes":
        if id is not None or others:
            what = "id" if id is not None else "cluster and strata"
            raise InvalidArgument(
                f"{path}: {what} cannot be chosen for an XES log, whose sequences are its traces; omit it"
            )
        timed = options.get("gap") is not None or options.get("every") not in (None, "event")
        time = "time:timestamp" if time is None and timed else time
        log = _read_xes(path, {"state": state or ACTIVITY, "time": time}, group)
        id, time, state = "trace", time and "time", "state"
        options |= {"group": group and "group"}
        table: Any = log
    elif state is None:
        raise InvalidArgument(f"{path}: state is not given; name the column with the states")
    elif kind in OTHERS:
        raise InvalidData(f"{path}: {kind} files are not supported; save the table as .csv, .tsv, .parquet or .arrow")
    elif kind in ARROW:
        table = _read_arrow(path, list(dict.fromkeys(n for n in (id, time, state, group, *others) if n is not None)))
    else:
        table = _read_csv(path, {name for name in (id, state, group, *others) if name is not None}, time)
    try:
        return Transitions.from_frame(table, id=id, time=time, state=state, **options)
    except InvalidData as error:
        raise _located(path, error) from None


def _located(path: Path, error: InvalidData) -> InvalidData:
    """Add the name of the file to an error and, for text files, replace the row by the line."""
    row = re.search(r"\brow (\d+)", str(error))
    if row is None or extension(path) in LOGS:
        return InvalidData(f"{path}: {error}")
    line = csv_line(path, int(row[1]))
    new = InvalidData(f"{path}: {str(error).replace(row[0], f'line {line}')}")
    new.file, new.line = path, line
    return new


# --- text ---------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, names: set[Any], time: Any) -> dict[Any, Any]:
    """Read columns of names as codes and a column of times as numbers; empty cells are missing values."""
    with open_text(path) as file:
        rows = csv_rows(path, file)
        place = {name: _place(rows, name) for name in (*names, *([] if time is None else [time]))}
        numbers = {name: CodeBook() for name in names}
        codes = {name: array("i") for name in names}
        times = _Times(path)
        for part in rows.columns():
            for name in names:
                codes[name].extend(map(numbers[name].__getitem__, part[place[name]]))
            if time is not None:
                times.add(part[place[time]])
    found: dict[Any, Any] = {name: _column(codes[name], numbers[name]) for name in names}
    return found if time is None else found | {time: times.done()}


def _place(rows: CsvRows, name: Any) -> int:
    wanted = str(name).strip().lower()
    if wanted not in rows.names:
        text = rows.delimiter.join(rows.names)
        raise broken(rows.path, 1, text, f"there is no column {name!r}; use one of these")
    return rows.names.index(wanted)


def _column(codes: array[int], numbers: CodeBook) -> Coded:
    """Encode a column of strings; if all are integers, they become state indices. "" is missing."""
    texts = [text.strip() for text in numbers]
    kept = CodeBook()
    new = np.array([kept[text] if text else -1 for text in texts], dtype=np.int32)
    names: list[Any] = list(kept)
    if all(text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 18 for text in names):
        values = CodeBook()
        again = np.array([values[int(text)] for text in names] or [0], dtype=np.int32)
        new, names = np.where(new < 0, -1, again[new]).astype(np.int32), list(values)
    return Coded(new[np.frombuffer(codes, dtype=np.int32)], names)


class _Times:
    """A column of times, parsed in batches; all must be numbers, all dates, or all dates with a time zone."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.first: list[str] = []  # the first time of the column, parsed with every later batch: they must be alike
        self.texts: list[str] = []
        self.parts: list[Times] = []

    def add(self, texts: tuple[str, ...]) -> None:
        self.texts.extend(texts)
        if len(self.texts) >= BATCH:
            self._convert()

    def done(self) -> Times:
        self._convert()
        return join_times(self.parts)

    def _convert(self) -> None:
        there = np.array([bool(text and not text.isspace()) for text in self.texts], dtype=bool)
        texts = self.texts if there.all() else [t for t, use in zip(self.texts, there, strict=True) if use]
        found = parse_times([*self.first, *texts])
        if isinstance(found, int):
            k = int(np.flatnonzero(there)[found - len(self.first)])
            why = (
                "the time is neither a number nor an ISO 8601 date such as 2026-11-16 15:30, or the column mixes both, "
                "or times with and without a time zone"
            )
            raise broken(self.path, csv_line(self.path, self.rows + k), self.texts[k], why)
        values = np.zeros(len(self.texts), dtype=found.values.dtype)
        values[there] = found.values[len(self.first) :]
        self.first = self.first or texts[:1]
        self.parts.append(Times(values, ~there, found.ticks))
        self.rows += len(self.texts)
        self.texts = []


# --- Parquet and Arrow --------------------------------------------------------------------------------------------


def _read_arrow(path: Path, names: list[Any]) -> Any:
    """Read columns with pyarrow, after checking the sizes that the file states."""
    try:
        import pyarrow as pa
        import pyarrow.feather
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f'{path}: {extension(path)} files need pyarrow; pip install "diffbisim[data]"') from None
    with open_file(path, limits.BYTES) as (file, _):
        try:
            if extension(path) == ".parquet":
                found = pyarrow.parquet.ParquetFile(file)
                _check_columns(path, found.schema_arrow.names, names)
                groups = (found.metadata.row_group(k) for k in range(found.metadata.num_row_groups))
                size = max(sum(group.total_byte_size for group in groups), 8 * found.metadata.num_rows)
                if size > limits.BYTES:
                    raise InvalidData(f"{path} unpacks to {size:,} bytes; raise BYTES in diffbisim.io.limits")
                return found.read(columns=names)
            table = pyarrow.feather.read_table(file, columns=None)
            _check_columns(path, table.column_names, names)
            return table.select(names)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidData):
                raise
            raise InvalidData(f"{path} cannot be read by pyarrow ({' '.join(str(error).split())[:200]})") from None


def _check_columns(path: Path, known: list[str], names: list[Any]) -> None:
    for name in names:
        if name not in known:
            raise InvalidData(f"{path}: there is no column {name!r}; use one of {', '.join(map(repr, known[:20]))}")


# --- XES ----------------------------------------------------------------------------------------------------------


def _read_xes(path: Path, wanted: dict[str, Any], group: Any) -> dict[str, Any]:
    """Read the events of a log: the trace, the ``wanted`` attributes, and the group of the trace."""
    log = _Log(path, wanted, group)
    with open_bytes(path) as file, naming(path):
        try:
            log.parser.ParseFile(file)
        except expat.ExpatError as error:
            raise broken(path, error.lineno, "", f"this is not XML ({expat.ErrorString(error.code)})") from None
        except (UnicodeError, LookupError, ValueError) as error:
            raise InvalidData(f"{path} is not XML ({error})") from None
    return log.table()


class _Log:
    """A log while it is being parsed."""

    def __init__(self, path: Path, wanted: dict[str, Any], group: Any) -> None:
        self.path, self.group, self.keys = path, group, {what: key for what, key in wanted.items() if key is not None}
        self.open: list[str] = []
        self.traces, self.n_traces = array("i"), 0
        self.values: dict[str, list[str]] = {what: [] for what in self.keys}
        self.groups: list[str] = []
        self.phases: set[str] = set()
        self.event: dict[str, str] = {}
        self.trace: dict[str, str] = {}
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler, self.parser.EndElementHandler = self._begin, self._end
        self.parser.StartDoctypeDeclHandler = self._declared

    def _declared(self, *_: Any) -> None:
        raise self._broken("declarations (<!DOCTYPE …>) are not allowed in a log")

    def _broken(self, why: str) -> InvalidData:
        return broken(self.path, self.parser.CurrentLineNumber, "", why)

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2]
        if len(self.open) >= limits.DEPTH:
            raise self._broken(f"elements are nested more than {limits.DEPTH} deep; raise diffbisim.io.limits.DEPTH")
        parent = self.open[-1] if self.open else ""
        if not self.open and name != "log":
            raise self._broken(f"the document is a <{name}>, not a <log>")
        if "key" in attributes and "value" in attributes and parent in ("event", "trace"):
            (self.event if parent == "event" else self.trace)[attributes["key"]] = attributes["value"]
        self.open.append(name if parent in ("", "log", "trace") or name not in ("event", "trace") else "")

    def _end(self, tag: str) -> None:
        name = self.open.pop()
        if name == "event" and self.open[-1] == "trace":
            self.traces.append(self.n_traces)
            for what, key in self.keys.items():
                self.values[what].append(self.event.get(key, ""))
            self.phases.add(self.event.get(PHASE, ""))
            self.event = {}
        elif name == "trace":
            self.groups.append(self.trace.get(self.group, "") if self.group is not None else "")
            self.trace, self.n_traces = {}, self.n_traces + 1

    def table(self) -> dict[str, Any]:
        if not self.traces:
            raise InvalidData(f"{self.path} contains no <event>")
        if len(self.phases) > 1 and PHASE not in self.keys.values():
            named = ", ".join(repr(phase) if phase else "none" for phase in sorted(self.phases)[:5])
            warn_of_input(
                f"{self.path}: events differ in {PHASE!r} ({named}), which is not used, so that an activity with a "
                "start and an end counts as two events; write a log with the events of one kind"
            )
        traces = np.frombuffer(self.traces, dtype=np.int32)
        found: dict[str, Any] = {"trace": Coded(traces, range(self.n_traces))}
        found["state"] = [text or None for text in self.values["state"]]
        if "time" in self.values:
            found["time"] = np.array(self.values["time"], dtype=object)
        if self.group is not None:
            found["group"] = [self.groups[k] or None for k in traces.tolist()]
        return found
