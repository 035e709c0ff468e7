"""State sequences from tables of events with the columns id, time, state and optionally group.

Rows may be in any order. The rows of one id, sorted by time, form a sequence of states. It ends where the group
changes, and after a pause longer than ``gap`` (sessions). Rows with equal times keep their order. Sequences of the same
id are not independent: they form a cluster.

*Ends.* The end of a sequence is an event too (a customer leaves), unless the sequence was cut by a missing value or by
a change of group. ``cut`` tells which is the case.

*Times* are numbers, dates, timedeltas, or ISO 8601 strings (2026-11-16, 2026-11-16 15:30, 2026-11-16T15:30:00.25Z),
which are compared in UTC. Strings without a time zone are taken literally.

*Missing values* are treated according to ``missing``:

    "error"   raise an error that names the first one (the default)
    "split"   end the sequence before a missing state and start a new one after it
    "drop"    leave out the row, so that its neighbors become consecutive

With "split" and "drop", rows without id, time or group are left out, since they cannot be placed in a sequence, and a
warning counts the missing values.

*Steps of equal length.* `resampled` replaces the events of a sequence by its states at the times t₀, t₀ + h, t₀ + 2h, …
up to the last event, where t₀ is the time of the first event: the last observation is carried forward, and nothing is
assumed after the last one. A warning counts visits to a state that begin and end between two of these times.
Only a state that no sequence of the table ever leaves is known to last, so a sequence that ends in such a state is
continued to the next of these times.

*Duplicates* are rows with the same id, time, state and group. They are kept or dropped according to ``duplicates``.

*Spelling.* Names that differ only in capitalization, spaces, hyphens or underscores are probably the same name, and
names such as "NA" are probably missing values. Both are kept as they are, and a warning lists them.

A column of m values is encoded as ``codes`` (m,) into a list of ``names``, with -1 for missing values.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.checks import Integers, as_number, check_choice
from diffbisim.common.errors import InvalidArgument, InvalidData, warn_of_input
from diffbisim.common.names import few, is_frame, is_missing, library

POLICIES = ("error", "split", "drop")
DUPLICATES = ("warn", "keep", "drop", "error")
EVENT = "event"  # the value of ``every`` for one step per event
MOST_POINTS = 10**8  # maximum number of states after resampling
UNSEEN = 0.1  # resampling may leave out this share of the visits to states before it warns
VARIES = 1.25  # intervals vary if their 95 % quantile is this many times their 5 % quantile
UNITS = {
    "ns": 1e-3,
    "us": 1,
    "ms": 1_000,
    "s": 10**6,
    "sec": 10**6,
    "m": 60 * 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
    "w": 7 * 86400 * 10**6,
}
MISSING_NAMES = frozenset({"", "na", "n/a", "nan", "null", "none", "missing", "unknown", "?"})
END = "■"  # the end of a sequence (pm4py's symbol)
ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


class Coded(NamedTuple):
    """An encoded column: entry k is ``names[codes[k]]``, or missing if ``codes[k]`` is -1."""

    codes: Any  # (m,) integers
    names: Sequence[Hashable]


class Sequences(NamedTuple):
    """k sequences of m states in total, concatenated."""

    states: Coded  # (m,)
    begins: Integers  # (k,) position of the first state of each sequence, ascending
    groups: Coded | None  # (k,) group of each sequence
    cut: Any  # (k,) booleans: the sequence was cut by a missing value or a change of group
    clusters: Integers | None  # (k,) cluster of each sequence; None if each has its own
    strata: Coded | None  # (k,)
    times: Times | None  # (m,)
    ids: tuple[Hashable, ...] = ()  # distinct ids of a table without groups

    @property
    def ends(self) -> Integers:
        """Position of the last state of each sequence, (k,)."""
        return np.append(self.begins[1:], len(self.states.codes)) - 1

    @property
    def durations(self) -> NDArray[np.float64] | None:
        """Time from each state to the next, (m,), in seconds for dates; NaN for the last state of a sequence."""
        if self.times is None:
            return None
        steps = np.full(len(self.states.codes), np.nan)
        unit = 1e6 * self.times.ticks if self.times.dates else 1.0
        steps[:-1] = np.diff(self.times.values) / unit
        steps[self.ends] = np.nan
        return steps


def sequences(
    table: Any, *, id: Any, time: Any, state: Any, group: Any = None, gap: Any = None, missing: str = "error",
    cluster: Any = None, strata: Any = None, duplicates: str = "warn",
) -> Sequences:  # fmt: skip
    """Extract the sequences from a table whose columns are named by the arguments; without ``id`` there is one."""
    check_choice(missing, "missing", POLICIES)
    check_choice(duplicates, "duplicates", DUPLICATES)
    table = _with_columns(table)
    independent, cluster = is_episode(cluster), None if is_episode(cluster) else cluster
    names = {"id": id, "time": time, "group": group, "cluster": cluster, "strata": strata, "state": state}
    states = _coded(table, state, "state")
    if len(states.codes) == 0:
        raise InvalidData("the table has no rows; it needs at least one event")
    keys = {w: _coded(table, names[w], w) for w in ("id", "group", "cluster", "strata") if names[w] is not None}
    moments = None if time is None else as_times(_column(table, time, "time"))
    _check_lengths(states, keys, moments)
    for what, value in (("gap", gap), ("duplicates", None if duplicates == "warn" else duplicates)):
        if value is not None and moments is None:
            raise InvalidArgument(f"{what} is given without time; name the column with the times")
    absent = {what: column.codes < 0 for what, column in keys.items()}
    if moments is not None:
        absent["time"] = moments.missing
    _check_missing({**absent, "state": states.codes < 0}, names, missing)
    lost = np.logical_or.reduce([*absent.values(), np.zeros(len(states.codes), dtype=bool)])
    who = keys["id"].codes if "id" in keys else np.zeros(len(states.codes), dtype=np.int64)
    rows = _row_order(who, None if moments is None else moments.values, np.flatnonzero(~lost))
    if moments is not None:
        rows = _without_duplicates(rows, [who, moments.values], [states, *keys.values()], duplicates)
    begin, cut = np.ones(rows.size, dtype=bool), np.zeros(rows.size, dtype=bool)
    begin[1:] = who[rows[1:]] != who[rows[:-1]]
    if gap is not None and moments is not None:
        begin[1:] |= np.diff(moments.values[rows]) > moments.length(gap)
    if "group" in keys:
        moved = np.diff(keys["group"].codes[rows]) != 0
        cut[:-1] = moved & ~begin[1:]
        begin[1:] |= moved
    gone = states.codes[rows] < 0
    if missing == "split":
        cut[:-1] |= gone[1:] & ~begin[1:]
        begin[1:] |= gone[:-1]
    begin = _shift_begins(begin, gone)
    rows, cut = rows[~gone], cut[~gone]
    if rows.size == 0:
        raise InvalidData("every row has a missing value, so no sequence is left")
    found = _assembled(rows, np.flatnonzero(begin), cut, states, keys, moments, names)
    return found._replace(clusters=None) if independent else found


def is_episode(cluster: Any) -> bool:
    """Return whether sequences are clusters of their own."""
    return isinstance(cluster, str) and cluster == "episode"


def _assembled(
    rows: Integers, begins: Integers, cut: Any, states: Coded, keys: dict[str, Coded], moments: Times | None,
    names: dict[str, Any],
) -> Sequences:  # fmt: skip
    """Return the sequences that begin at these positions of the sorted rows, after reports on names and groups."""
    own = {what: Coded(column.codes[rows[begins]], column.names) for what, column in keys.items()}
    _report_spelling(states._replace(codes=states.codes[rows]), names["state"])
    if "group" in keys:
        _report_spelling(keys["group"], names["group"])
        if "id" not in own or not ("strata" in own and (own["strata"].codes == own["id"].codes).all()):
            _report_groups(own, begins.size)
    for what in ("cluster", "strata"):
        if what in keys:
            _check_constant(keys[what].codes[rows], begins, what, names[what])
    of = own.get("cluster", own.get("id"))
    clusters = None if of is None or np.unique(of.codes).size == begins.size else of.codes.astype(np.int64)
    times = None if moments is None else moments._replace(values=moments.values[rows], missing=moments.missing[rows])
    ends = np.append(begins[1:], rows.size) - 1
    ids = () if "id" not in own or "group" in own else tuple(own["id"].names[k] for k in np.unique(own["id"].codes))
    return Sequences(
        states._replace(codes=states.codes[rows]), begins, own.get("group"), cut[ends], clusters, own.get("strata"),
        times, ids,
    )  # fmt: skip


def resampled(found: Sequences, every: Any) -> Sequences:
    """Return the states at equal intervals of time: the last observation is carried forward to the last event."""
    if found.times is None:
        raise InvalidArgument("every is given without time; name the column with the times")
    step = found.times.length(every, "every")
    if not step > 0:
        raise InvalidArgument(f"every is {every!r}; give a positive interval of time")
    codes, ends = found.states.codes, found.ends
    number = np.repeat(np.arange(found.begins.size), np.diff(np.append(found.begins, codes.size)))
    since = (found.times.values - found.times.values[found.begins][number]) / step
    slack = 1e-9 * np.maximum(1.0, since)  # times such as 0.1 + 0.2 are not exact
    due = np.ceil(since - slack).astype(np.int64)  # the first grid point at which each row is known
    left = np.zeros(len(found.states.names), dtype=bool)
    inner = np.ones(codes.size, dtype=bool)
    inner[ends] = False
    here = np.flatnonzero(inner)
    left[codes[here[codes[here] != codes[here + 1]]]] = True  # states that are left somewhere in the table
    points = np.where(left[codes[ends]] | found.cut, np.floor((since + slack)[ends]).astype(np.int64), due[ends]) + 1
    if points.sum() > MOST_POINTS:
        raise InvalidArgument(
            f"every is {every!r}, which gives {int(points.sum()):,} steps; give a longer interval (at most "
            f"{MOST_POINTS:,} steps)"
        )
    until = np.empty_like(due)
    until[here] = due[here + 1]
    until[ends] = points
    repeats = np.maximum(until - due, 0)
    _report_unseen(codes, found.begins, inner, repeats, every)
    first = np.cumsum(points) - points
    offset = np.arange(int(points.sum())) - np.repeat(first, points)
    values = np.repeat(found.times.values[found.begins].astype(np.float64), points) + offset * step
    times = Times(values, np.zeros(values.size, dtype=bool), found.times.ticks)
    return found._replace(
        states=found.states._replace(codes=np.repeat(codes, repeats)), begins=first.astype(np.int64), times=times
    )


# --- columns ------------------------------------------------------------------------------------------------------


def _with_columns(table: Any) -> Any:
    """Return the table with all its columns: lazy polars frames are collected, a named pandas index is reset."""
    if library(table) == "polars" and hasattr(table, "collect"):
        return table.collect()
    if library(table) == "pandas" and is_frame(table):
        named = [name for name in table.index.names if name is not None]
        return table.reset_index() if any(name not in table.columns for name in named) else table
    if not isinstance(table, Mapping) and not hasattr(table, "columns"):
        raise InvalidData(
            f"the table is a {type(table).__name__}; give a DataFrame, a pyarrow Table or a mapping of columns"
        )
    return table


def _column(table: Any, name: Any, what: str) -> Any:
    """Return a column of a DataFrame, Table or mapping by name."""
    if hasattr(name, "__array__"):
        raise InvalidData(f"{what} is a {type(name).__name__}; give the name of a column of the table instead")
    columns = getattr(table, "column_names", None) or (list(table) if isinstance(table, Mapping) else None)
    columns = list(getattr(table, "columns", ())) if columns is None else list(columns)
    if name not in columns:
        raise InvalidData(f"{what} is {name!r}, but the table has no such column; its columns are {few(columns)}")
    if columns.count(name) > 1:
        raise InvalidData(
            f"{what} is {name!r}, but the table has {columns.count(name)} columns of this name; rename them"
        )
    return table[name]


def _coded(table: Any, name: Any, what: str) -> Coded:
    """Encode the column called ``name``."""
    column = _column(table, name, what)
    try:
        if getattr(column, "ndim", 1) == 1:
            return coded(column)
    except (TypeError, ValueError):  # unhashable entries, or rows of different lengths
        pass
    raise InvalidData(
        f"{what} ({name!r}) is not a column of single values, such as strings, numbers or tuples; convert its entries"
    )


def coded(values: Any) -> Coded:
    """Encode a column, with the method of its library if there is one."""
    if isinstance(values, Coded):
        return values
    kind = library(values)
    if kind == "pyarrow":
        whole = values.combine_chunks() if hasattr(values, "combine_chunks") else values
        encoded = whole if str(whole.type).startswith("dictionary") else whole.dictionary_encode()
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return _without_missing(Coded(indices.astype(np.int32), encoded.dictionary.to_pylist()))
    if kind == "pandas" and hasattr(values, "factorize"):
        codes, names = values.factorize()
        return Coded(codes.astype(np.int32), list(names))
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        names, codes = np.unique(values, return_inverse=True)
        return Coded(codes.astype(np.int32), names.tolist())
    numbers = CodeBook()
    items = values.to_list() if kind == "polars" else values.tolist() if isinstance(values, np.ndarray) else values
    codes = np.fromiter(map(numbers.__getitem__, items), dtype=np.int32)
    return _without_missing(Coded(codes, list(numbers)))


class CodeBook(dict[Any, int]):
    """A dict that assigns consecutive codes to names when they are first looked up."""

    def __missing__(self, name: Any) -> int:
        self[name] = number = len(self)
        return number


def _without_missing(column: Coded) -> Coded:
    """Remove missing values from the names of a column and encode them as -1."""
    gone = [k for k, name in enumerate(column.names) if is_missing(name)]
    if not gone:
        return column
    new = np.cumsum([k not in set(gone) for k in range(len(column.names))]) - 1
    new[gone] = -1
    codes = np.where(column.codes < 0, -1, new[column.codes]).astype(np.int32)
    return Coded(codes, [name for k, name in enumerate(column.names) if k not in set(gone)])


class Times(NamedTuple):
    """Times as numbers, (m,); dates and durations are counted from 1970, UTC, and from zero.

    Dates that are given in nanoseconds keep them, because events can follow each other faster than in a microsecond;
    other dates are counted in microseconds, which reach beyond the years 1677 to 2262.
    """

    values: NDArray[Any]
    missing: Any  # (m,) booleans
    ticks: int  # units of the values per microsecond, 1 or 1,000; 0 if the times are plain numbers

    @property
    def dates(self) -> bool:
        return self.ticks > 0

    def length(self, gap: Any, name: str = "gap") -> float:
        """Return the duration ``gap`` (an argument called ``name``) in the units of ``values``."""
        if not self.dates:
            number = float("nan") if isinstance(gap, (bool, np.bool_, np.timedelta64)) else as_number(gap)
            if not number >= 0:
                raise InvalidArgument(f"{name} is {gap!r}; the times are numbers, so give a non-negative number")
            return number
        microseconds = _microseconds(gap)
        if not microseconds >= 0:
            raise InvalidArgument(
                f"{name} is {gap!r}; give seconds, a timedelta, or a string such as '30min', '2h', '1d' or '1w', not "
                "negative (months and years vary in length: give days)"
            )
        return microseconds * self.ticks


def _microseconds(gap: Any) -> float:
    """Return a duration in microseconds, NaN if it is none or varies in length, as months do."""
    if isinstance(gap, np.timedelta64) and np.datetime_data(gap.dtype)[0] in ("Y", "M"):
        return float("nan")
    if isinstance(gap, (timedelta, np.timedelta64)):
        convert = getattr(gap, "to_timedelta64", None)  # of pandas, which has nanoseconds
        exact = np.timedelta64(gap) if convert is None else convert()
        found = _times_of_dates(np.array([exact]))
        return float("nan") if found.missing[0] else float(found.values[0]) / found.ticks
    words = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", str(gap))
    unit = "" if words is None else words[2] if words[2] == "M" else words[2].lower()  # "1M" is a month, not a minute
    if words is None or (unit or "s") not in UNITS:
        return float("nan")
    return _float_or_nan(words[1]) * UNITS[unit or "s"]


def join_times(parts: Sequence[Times]) -> Times:
    """Concatenate the parts of one column, in nanoseconds if a part has them and all others can be counted so."""
    ticks = {part.ticks for part in parts if not part.missing.all()} or {0}
    values = [part.values for part in parts]
    if ticks == {1, 1_000}:
        coarse = [part.values for part in parts if part.ticks == 1]
        if all(map(_fits_nanoseconds, coarse)):
            values = [part.values * 1_000 if part.ticks == 1 else part.values for part in parts]
        else:
            ticks, values = {1}, [part.values // 1_000 if part.ticks == 1_000 else part.values for part in parts]
    return Times(np.concatenate(values), np.concatenate([part.missing for part in parts]), max(ticks))


def _fits_nanoseconds(microseconds: NDArray[np.int64]) -> bool:
    """Return whether these counts of microseconds are dates that 64 bits can count in nanoseconds."""
    most = np.iinfo(np.int64).max // 1_000
    return bool((microseconds > -most).all() and (microseconds < most).all())


def _float_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def as_times(values: Any) -> Times:
    """Convert a column of times to numbers; dates become microseconds since 1970, UTC."""
    if isinstance(values, Times):
        return values
    kind = library(values)
    if kind == "pyarrow":
        values = values.to_numpy() if hasattr(values, "combine_chunks") else values.to_numpy(zero_copy_only=False)
    elif kind == "pandas":
        if getattr(getattr(values, "dt", None), "tz", None) is not None:
            values = values.dt.tz_convert(None)
        values = values.to_numpy()
    elif kind == "polars":
        values = values.to_numpy()
    array = values if isinstance(values, np.ndarray) else _array_of(values)
    if array.ndim != 1:
        raise InvalidData(f"the times have the shape {array.shape}; give a column with one time per row")
    if array.dtype.kind in "mM":
        return _times_of_dates(array)
    if array.dtype.kind in "iuf":
        if np.isinf(array).any():
            raise InvalidData(f"row {int(np.isinf(array).argmax())}: the time is infinite; give finite times")
        return Times(array, np.isnan(array), 0)
    return _times_of_objects(array.tolist())


def _array_of(values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        raise InvalidData("the times are not a column of single values; give one time per row") from None


def _times_of_dates(array: NDArray[Any]) -> Times:
    fine = np.datetime_data(array.dtype)[0] in ("ns", "ps", "fs", "as")
    kind = "timedelta64" if array.dtype.kind == "m" else "datetime64"
    counts = array.astype(f"{kind}[{'ns' if fine else 'us'}]").astype(np.int64)
    return Times(counts, np.isnat(array), 1_000 if fine else 1)


def _times_of_objects(items: list[Any]) -> Times:
    """Convert a list of ISO 8601 strings, numeric strings, Python dates and missing values."""
    gone = np.array([is_missing(item) or item == "" for item in items], dtype=bool)
    there = [item for item, absent in zip(items, gone, strict=True) if not absent]
    values = parse_times(list(map(str, there)))
    if isinstance(values, int):
        k = int(np.flatnonzero(~gone)[values])
        raise InvalidData(
            f"row {k}: the time {items[k]!r} is neither a number nor an ISO 8601 date such as 2026-11-16 15:30, or "
            "it is of another kind than the times before it (with and without a time zone, for example)"
        )
    full = np.zeros(len(items), dtype=values.values.dtype)
    full[~gone] = values.values
    return Times(full, gone, values.ticks)


def parse_times(texts: Sequence[str]) -> Times | int:
    """Parse non-empty strings as numbers or dates; if that fails, return the position of the first bad one."""
    array = np.array(texts, dtype=np.str_) if texts else np.zeros(0, dtype="U1")
    none = np.zeros(array.size, dtype=bool)
    for kind in (np.int64, np.float64):
        try:
            numbers = array.astype(kind)
        except (ValueError, OverflowError):
            continue
        return Times(numbers, none, 0) if np.isfinite(numbers).all() else int((~np.isfinite(numbers)).argmax())
    try:
        return _times_of_dates(_iso(array))
    except ValueError:  # find the first string that is not of the same kind as texts[0]
        return next((k for k, text in enumerate(texts) if not _is_like(text, texts[0])), 0)


def _iso(array: NDArray[Any]) -> NDArray[Any]:
    """Parse ISO 8601 strings in UTC; numpy does not support time zones, so subtract their offsets."""
    if not all(text[4:5] == "-" for text in array.tolist()):
        raise ValueError("numpy would read the number 7 as the year 7")
    letters = array.view("U1").reshape(array.size, -1)[:, 10:]
    if not np.isin(letters, ["Z", "+", "-"]).any():
        return _without_zone(array)
    zones = [ZONE.search(text, 10) for text in array.tolist()]
    if None in zones:
        raise ValueError("a date without a time zone among others, or a zone that is not ISO 8601")
    bare = np.array([zone.string[: zone.start()] for zone in zones if zone], dtype=np.str_)
    ahead = np.array([_minutes_ahead(zone[1]) for zone in zones if zone], dtype="timedelta64[m]")
    return np.asarray(_without_zone(bare) - ahead)


def _without_zone(array: NDArray[Any]) -> NDArray[Any]:
    """Parse dates in microseconds, or in nanoseconds if a string has more than six decimals and all dates fit."""
    dates = array.astype("datetime64[us]")
    longest = array.dtype.itemsize // np.dtype("U1").itemsize
    if longest > len("2026-11-16T15:30:00.123456") and _fits_nanoseconds(dates.astype(np.int64)):
        return array.astype("datetime64[ns]")
    return dates


def _minutes_ahead(zone: str) -> int:
    """Return the offset of a time zone from UTC in minutes: 90 for +01:30."""
    if zone == "Z":
        return 0
    minutes = 60 * int(zone[1:3]) + int(zone[-2:])
    return -minutes if zone[0] == "-" else minutes


def _is_like(text: str, first: str) -> bool:
    """Return whether a time is of the same kind as the first one: a number, a date, or a date with a time zone."""
    if not _is_date(first):
        return bool(np.isfinite(_float_or_nan(text)))
    return _is_date(text) and (ZONE.search(text, 10) is None) == (ZONE.search(first, 10) is None)


def _is_date(text: str) -> bool:
    try:
        return bool(not np.isnat(_iso(np.array([text]))[0]))
    except ValueError:
        return False


# --- order, duplicates, missing values, spelling ------------------------------------------------------------------


def _row_order(who: Integers, when: NDArray[Any] | None, rows: Integers) -> Integers:
    """Sort the rows by sequence, then by time, then by position."""
    w = who[rows]
    if when is None:
        return rows[np.argsort(w, kind="stable")] if (np.diff(w) < 0).any() else rows
    t = when[rows]
    step = np.diff(w)
    if ((step > 0) | ((step == 0) & (t[1:] >= t[:-1]))).all():
        return rows
    return rows[np.lexsort((t, w))]


def _check_lengths(states: Coded, keys: Mapping[str, Coded], moments: Times | None) -> None:
    lengths = {"state": len(states.codes), **{what: len(column.codes) for what, column in keys.items()}}
    if moments is not None:
        lengths["time"] = moments.values.size
    if len(set(lengths.values())) > 1:
        raise InvalidData(f"the columns have different lengths: {', '.join(f'{k} {v}' for k, v in lengths.items())}")


def _without_duplicates(rows: Integers, order: Sequence[Any], columns: Sequence[Coded], duplicates: str) -> Integers:
    """Return the sorted rows without repetitions, or report them, as ``duplicates`` says.

    Rows can be equal only if they agree in the columns that they are sorted by (``order``), and then they are close.
    """
    tie = np.logical_and.reduce([part[rows[1:]] == part[rows[:-1]] for part in order])
    if duplicates == "keep" or not tie.any():
        return rows
    run = np.cumsum(np.append(True, ~tie))
    near = np.append(tie, False) | np.append(False, tie)
    key = np.stack([run[near], *(column.codes[rows[near]] for column in columns)])
    _, first = np.unique(key, axis=1, return_index=True)
    again = np.ones(key.shape[1], dtype=bool)
    again[first] = False
    if not again.any():
        return rows
    where = np.flatnonzero(near)[again]
    said = f"{where.size:,} of {rows.size:,} rows repeat the id, time and state of another row"
    if duplicates == "error":
        raise InvalidData(f'{said}, the first is row {int(rows[where].min())}; remove them or pass duplicates="drop"')
    if duplicates == "warn":
        warn_of_input(
            f'{said} and are counted as further events; pass duplicates="drop" to leave them out, or "keep" if these '
            "events really happened"
        )
        return rows
    return np.delete(rows, where)


def _report_groups(own: Mapping[str, Coded], number: int) -> None:
    """Warn about ids in several groups, and about groups that alternate in a table without ids."""
    group = own["group"]
    if "id" not in own:
        seen = np.unique(group.codes).size
        if number > 2 * seen:
            warn_of_input(
                f"without id the table is one sequence, which the changes of group cut into {number:,} sequences; name "
                "the column with the ids if the groups contain separate sequences"
            )
        return
    pairs = np.unique(np.stack([own["id"].codes, group.codes]), axis=1)[0]
    ids, times = np.unique(pairs, return_counts=True)
    if (times > 1).any():
        name = own["id"].names[int(ids[times > 1][0])]
        warn_of_input(
            f"{int((times > 1).sum()):,} of {ids.size:,} ids occur in several groups, such as {name!r}. A "
            "sequence ends where the group changes. Tests treat the parts as different ids, which makes "
            "p-values too large if they are alike; leave out these ids, or, if groups were assigned to sequences "
            'at random within each id, pass strata= the ids and cluster="episode"'
        )


def _check_constant(codes: Any, begins: Integers, what: str, name: Any) -> None:
    """Raise if a cluster or stratum changes within a sequence."""
    change = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    inside = np.setdiff1d(change, begins)
    if inside.size:
        k = int(np.searchsorted(begins, inside[0], side="right")) - 1
        raise InvalidData(f"{what} ({name!r}) changes within sequence {k}; it must be the same in all of its rows")


def report_intervals(found: Sequences) -> None:
    """Warn if the times between events vary, since a step of the chain is one event."""
    steps = found.durations
    steps = None if steps is None else steps[~np.isnan(steps)]
    if found.times is None or steps is None or not steps.size:
        return
    low, high = np.quantile(steps, [0.05, 0.95]).tolist()
    if high <= VARIES * low or (low == high == 0.0):
        return
    unit = " s" if found.times.dates else ""
    warn_of_input(
        f"the times between events vary (most are from {low:.3g} to {high:.3g}{unit}), but each step is one "
        "event, so that the chain contains no times: twice the speed looks the same, and the same process "
        'seen at other times looks different. Pass every= a duration for steps of equal length, or every="event" if '
        "only the order of the events matters"
    )


def _report_unseen(codes: Integers, begins: Integers, inner: Any, repeats: Integers, every: Any) -> None:
    """Warn if many visits to a state are at no step, because they begin and end between two of them."""
    begin = np.append(True, codes[1:] != codes[:-1])
    begin[begins] = True
    visit = np.cumsum(begin) - 1
    steps = np.bincount(visit, repeats)
    over = np.ones(steps.size, dtype=bool)
    over[visit[~inner]] = False  # the last visit of a sequence may last
    unseen = int((steps[over] == 0).sum())
    if unseen > UNSEEN * over.sum():
        warn_of_input(
            f"every is {every!r}, and {unseen:,} of {int(over.sum()):,} visits to a state begin and end between two "
            "steps, so that they are not used; give a shorter interval if they matter"
        )


def _shift_begins(begin: Any, gone: Any) -> Any:
    """Return whether a sequence begins at each remaining row, counting begins at removed rows just before it."""
    if not gone.any():
        return begin
    number = np.cumsum(begin)[~gone]
    return np.append(True, np.diff(number) > 0)[: number.size]


def _check_missing(absent: Mapping[str, Any], names: Mapping[str, Any], missing: str) -> None:
    """Raise an error or warn about missing values, as ``missing`` says."""
    counts = {what: int(mask.sum()) for what, mask in absent.items()}
    if not any(counts.values()):
        return
    listed = ", ".join(f"{count:,} of {what} ({names[what]!r})" for what, count in counts.items() if count)
    if missing == "error":
        what = next(what for what, count in counts.items() if count)
        raise InvalidData(
            f"missing values: {listed}; the first missing {what} is in row {int(absent[what].argmax())}. Pass "
            'missing="split" (sequences end there) or missing="drop" (rows are left out)'
        )
    warn_of_input(f"missing values: {listed}")


def _report_spelling(column: Coded, name: Any) -> None:
    """Warn about names that differ only in spelling, or that look like missing values."""
    alike: dict[str, list[int]] = {}
    for k, text in enumerate(column.names):
        if isinstance(text, str):
            plain = unicodedata.normalize("NFKC", text).casefold()
            alike.setdefault(re.sub(r"[\s_-]+", " ", plain).strip(), []).append(k)
    several = [group for group in alike.values() if len(group) > 1]
    odd = [k for plain, group in alike.items() if plain in MISSING_NAMES for k in group]
    if not several and not odd:
        return
    counts = Counter(
        dict(enumerate(np.bincount(column.codes[column.codes >= 0], minlength=len(column.names)).tolist()))
    )

    def listed(group: Iterable[int]) -> str:
        return " and ".join(f"{column.names[k]!r} ({counts[k]:,})" for k in group)

    found = [f"{listed(group)} differ only in spelling" for group in several[:5]]
    found += [f"{listed([k])} may be a missing value" for k in odd[:5]]
    more = max(0, len(several) - 5) + max(0, len(odd) - 5)
    tail = f"; and {more} more" if more else ""
    warn_of_input(
        f"{name!r}: {'; '.join(found)}{tail}. They are kept as distinct names; rename them if they are the same"
    )
