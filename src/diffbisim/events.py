"""Tables of events, as logs and exports hold them: who (id), when (time), what (state), perhaps in which group.

Rows may stand in any order. Those of one id, by time, are a sequence of states; a pause longer than ``gap`` cuts it in
two (sessions), and rows of the same id in another group are a sequence of their own. Rows with equal times keep their
order.

*Times* are numbers, dates, timedeltas, or texts in ISO 8601 (2026-11-16, 2026-11-16 15:30, 2026-11-16T15:30:00.25Z),
compared in UTC; without a zone they are taken as they stand.

*Missing values* must be decided on, not guessed:

    "error"   refuse, and name the first (the default)
    "split"   a sequence ends before a missing state and begins anew after it: nothing is said that was not seen
    "drop"    the row is left out, and its neighbors follow each other

A row without id, time or group cannot be placed: with both of the latter it is left out. How many were is a warning.

*Spelling.* Names that differ only in capitals, spaces, hyphens or underscores, and names such as "NA", are most likely
meant to be one, or none. They are kept as they are, and a warning lists them.

Letters: m rows; a column is coded as ``codes`` (m,) into ``names``, -1 where a value is missing.
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

from diffbisim.checks import Integers, as_number
from diffbisim.errors import InvalidArgument, InvalidData, warn
from diffbisim.names import few, is_missing, library

POLICIES = ("error", "split", "drop")
UNITS = {
    "ms": 1_000,
    "s": 10**6,
    "sec": 10**6,
    "m": 60 * 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
}
ODD = frozenset({"", "na", "n/a", "nan", "null", "none", "missing", "unknown", "?"})  # names that may mean: none
ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


class Coded(NamedTuple):
    """A column: ``names[codes[k]]`` is entry k, which is missing where ``codes`` is -1."""

    codes: Any  # (m,) integers
    names: Sequence[Hashable]


class Sequences(NamedTuple):
    """Rows in order, one sequence after the other: state of each, where sequences begin, and their groups."""

    states: Coded
    begins: Integers  # (k,), ascending, from 0
    groups: Coded | None  # (k,)


def sequences(
    table: Any, *, id: Any, time: Any, state: Any, group: Any = None, gap: Any = None, missing: str = "error"
) -> Sequences:
    """The sequences in a table, of which the arguments name the columns; without ``id`` there is one."""
    if missing not in POLICIES:
        raise InvalidArgument(f"missing is {missing!r}; use one of {', '.join(map(repr, POLICIES))}")
    table = _with_columns(table)
    states = coded(_column(table, state, "state"))
    m = len(states.codes)
    if m == 0:
        raise InvalidData("the table has no rows")
    keys = {
        what: coded(_column(table, name, what)) for what, name in (("id", id), ("group", group)) if name is not None
    }
    moments = None if time is None else ticks(_column(table, time, "time"))
    if gap is not None and moments is None:
        raise InvalidArgument("gap is given without time; name the column with the times")
    absent = {what: column.codes < 0 for what, column in keys.items()}
    if moments is not None:
        absent["time"] = moments.missing
    lost = np.logical_or.reduce([*absent.values(), np.zeros(m, dtype=bool)])
    _decide({**absent, "state": states.codes < 0}, {"id": id, "time": time, "group": group, "state": state}, missing)
    who = np.zeros(m, dtype=np.int64)
    for column in keys.values():
        who = who * len(column.names) + column.codes
    rows = _in_order(who, None if moments is None else moments.values, np.flatnonzero(~lost))
    begin = np.ones(rows.size, dtype=bool)
    begin[1:] = who[rows[1:]] != who[rows[:-1]]
    if gap is not None and moments is not None:
        begin[1:] |= np.diff(moments.values[rows]) > moments.length(gap)
    gone = states.codes[rows] < 0
    if missing == "split":
        begin[1:] |= gone[:-1]
    begin = _moved_on(begin, gone)
    rows = rows[~gone]
    if rows.size == 0:
        raise InvalidData("every row has a missing value; nothing is left")
    starts = np.flatnonzero(begin)
    _report_spelling(states._replace(codes=states.codes[rows]), state)
    if "group" not in keys:
        return Sequences(states._replace(codes=states.codes[rows]), starts, None)
    _report_spelling(keys["group"], group)
    groups = Coded(keys["group"].codes[rows[starts]], keys["group"].names)
    return Sequences(states._replace(codes=states.codes[rows]), starts, groups)


# --- columns ------------------------------------------------------------------------------------------------------


def _with_columns(table: Any) -> Any:
    """The table itself; one that is not computed yet (polars) is, and names of the index (pandas) become columns."""
    if library(table) == "polars" and hasattr(table, "collect"):
        return table.collect()
    if library(table) == "pandas" and any(name is not None and name not in table.columns for name in table.index.names):
        return table.reset_index()
    return table


def _column(table: Any, name: Any, what: str) -> Any:
    """A column by name, of anything that has columns."""
    columns = getattr(table, "column_names", None) or (list(table) if isinstance(table, Mapping) else None)
    columns = list(getattr(table, "columns", ())) if columns is None else list(columns)
    if name not in columns:
        raise InvalidData(f"{what} is {name!r}, and the table has no such column; it has {few(columns)}")
    if columns.count(name) > 1:
        raise InvalidData(
            f"{what} is {name!r}, and the table has {columns.count(name)} columns of that name; rename them"
        )
    return table[name]


def coded(values: Any) -> Coded:
    """A column of names in codes: by the library's own method where there is one."""
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
    numbers = Numbers()
    items = values.to_list() if kind == "polars" else values.tolist() if isinstance(values, np.ndarray) else values
    codes = np.fromiter(map(numbers.__getitem__, items), dtype=np.int32)
    return _without_missing(Coded(codes, list(numbers)))


class Numbers(dict[Any, int]):
    """Numbers things in order of appearance, as they are looked up."""

    def __missing__(self, name: Any) -> int:
        self[name] = number = len(self)
        return number


def _without_missing(column: Coded) -> Coded:
    """The same with the code -1 for names that stand for nothing."""
    gone = [k for k, name in enumerate(column.names) if is_missing(name)]
    if not gone:
        return column
    new = np.cumsum([k not in set(gone) for k in range(len(column.names))]) - 1
    new[gone] = -1
    codes = np.where(column.codes < 0, -1, new[column.codes]).astype(np.int32)
    return Coded(codes, [name for k, name in enumerate(column.names) if k not in set(gone)])


class Ticks(NamedTuple):
    """Times as numbers, (m,), which are missing where ``missing`` is true; ``dates``: in microseconds."""

    values: NDArray[Any]
    missing: Any
    dates: bool

    def length(self, gap: Any) -> float:
        """How long a pause is, in these numbers."""
        if not self.dates:
            if not (number := as_number(gap)) >= 0:
                raise InvalidArgument(f"gap is {gap!r}; the times are numbers, so give a number, at least 0")
            return number
        if isinstance(gap, (timedelta, np.timedelta64)):
            return float(np.timedelta64(gap, "us").astype(np.int64))
        words = re.fullmatch(r"\s*([\d.]+)\s*([a-z]*)\s*", str(gap).lower())
        if words is None or not as_number_of(words[1]) >= 0 or (words[2] or "s") not in UNITS:
            raise InvalidArgument(f"gap is {gap!r}; give seconds, a timedelta, or a text such as '30min', '2h' or '1d'")
        return float(words[1]) * UNITS[words[2] or "s"]


def as_number_of(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def ticks(values: Any) -> Ticks:
    """A column of times as numbers: dates in microseconds since 1970, UTC."""
    if isinstance(values, Ticks):
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
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    if array.dtype.kind in "mM":
        return _of_dates(array)
    if array.dtype.kind in "iuf":
        return Ticks(array, np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.size, dtype=bool), False)
    return _of_objects(array.tolist())


def _of_dates(array: NDArray[Any]) -> Ticks:
    unit = "timedelta64[us]" if array.dtype.kind == "m" else "datetime64[us]"
    return Ticks(array.astype(unit).astype(np.int64), np.isnat(array), True)


def _of_objects(items: list[Any]) -> Ticks:
    """Texts in ISO 8601 or of numbers, dates of Python, None."""
    gone = np.array([is_missing(item) or item == "" for item in items], dtype=bool)
    there = [item for item, absent in zip(items, gone, strict=True) if not absent]
    values = texts_to_ticks(list(map(str, there)))
    if isinstance(values, int):
        k = int(np.flatnonzero(~gone)[values])
        raise InvalidData(
            f"row {k}: the time {items[k]!r} is no number and no date in ISO 8601, such as 2026-11-16 15:30"
        )
    full = np.zeros(len(items), dtype=values.values.dtype)
    full[~gone] = values.values
    return Ticks(full, gone, values.dates)


def texts_to_ticks(texts: Sequence[str]) -> Ticks | int:
    """Times from texts, none of them empty; or the number of the first that is not one."""
    array = np.array(texts, dtype=np.str_) if texts else np.zeros(0, dtype="U1")
    none = np.zeros(array.size, dtype=bool)
    for kind in (np.int64, np.float64):
        try:
            numbers = array.astype(kind)
        except (ValueError, OverflowError):
            continue
        return Ticks(numbers, none, False) if np.isfinite(numbers).all() else int((~np.isfinite(numbers)).argmax())
    try:
        return Ticks(_iso(array).astype(np.int64), none, True)
    except ValueError:  # which is the first of another kind than the first
        fits = _is_date if _is_date(texts[0]) else lambda text: bool(np.isfinite(as_number_of(text)))
        return next((k for k, text in enumerate(texts) if not fits(text)), 0)


def _iso(array: NDArray[Any]) -> NDArray[Any]:
    """ISO 8601 as microseconds in UTC; numpy knows no zones, so they are taken off and subtracted."""
    if not all(text[4:5] == "-" for text in array.tolist()):
        raise ValueError("numpy would take the number 7 for the year 7")
    if array.size == 0 or ZONE.search(str(array[0]), 10) is None:
        return array.astype("datetime64[us]")
    texts = array.tolist()
    zones = [ZONE.search(text, 10) for text in texts]
    if None in zones:
        raise ValueError(texts[zones.index(None)])
    bare = np.array([zone.string[: zone.start()] for zone in zones if zone], dtype=np.str_)
    ahead = np.array([_minutes_ahead(zone[1]) for zone in zones if zone], dtype="timedelta64[m]")
    return np.asarray(bare.astype("datetime64[us]") - ahead)


def _minutes_ahead(zone: str) -> int:
    """Of UTC: 90 for +01:30."""
    if zone == "Z":
        return 0
    minutes = 60 * int(zone[1:3]) + int(zone[-2:])
    return -minutes if zone[0] == "-" else minutes


def _is_date(text: str) -> bool:
    try:
        return bool(not np.isnat(_iso(np.array([text]))[0]))
    except ValueError:
        return False


# --- order, missing values, spelling ------------------------------------------------------------------------------


def _in_order(who: Integers, when: NDArray[Any] | None, rows: Integers) -> Integers:
    """The rows by who, then when, then as they stand."""
    w = who[rows]
    if when is None:
        return rows[np.argsort(w, kind="stable")] if (np.diff(w) < 0).any() else rows
    t = when[rows]
    step = np.diff(w)
    if ((step > 0) | ((step == 0) & (t[1:] >= t[:-1]))).all():
        return rows
    return rows[np.lexsort((t, w))]


def _moved_on(begin: Any, gone: Any) -> Any:
    """Whether a sequence begins at each row that is not gone: at it, or at a row before it that is."""
    if not gone.any():
        return begin
    number = np.cumsum(begin)[~gone]
    return np.append(True, np.diff(number) > 0)[: number.size]


def _decide(absent: Mapping[str, Any], names: Mapping[str, Any], missing: str) -> None:
    counts = {what: int(mask.sum()) for what, mask in absent.items()}
    if not any(counts.values()):
        return
    listed = ", ".join(f"{count:,} of {what} ({names[what]!r})" for what, count in counts.items() if count)
    if missing == "error":
        what = next(what for what, count in counts.items() if count)
        raise InvalidData(
            f"missing values: {listed}; the first {what} is that of row {int(absent[what].argmax())}. Pass "
            'missing="split" (sequences end there) or missing="drop" (rows are left out)'
        )
    warn(f"missing values: {listed}", UserWarning, stacklevel=5)


def _report_spelling(column: Coded, name: Any) -> None:
    """Warn of names that are most likely meant to be one, or none."""
    alike: dict[str, list[int]] = {}
    for k, text in enumerate(column.names):
        if isinstance(text, str):
            plain = unicodedata.normalize("NFKC", text).casefold()
            alike.setdefault(re.sub(r"[\s_-]+", " ", plain).strip(), []).append(k)
    several = [group for group in alike.values() if len(group) > 1]
    odd = [k for plain, group in alike.items() if plain in ODD for k in group]
    if not several and not odd:
        return
    counts = Counter(
        dict(enumerate(np.bincount(column.codes[column.codes >= 0], minlength=len(column.names)).tolist()))
    )

    def listed(group: Iterable[int]) -> str:
        return " and ".join(f"{column.names[k]!r} ({counts[k]:,})" for k in group)

    said = [f"{listed(group)} differ in spelling only" for group in several[:5]]
    said += [f"{listed([k])} may mean a missing value" for k in odd[:5]]
    more = max(0, len(several) - 5) + max(0, len(odd) - 5)
    tail = f"; and {more} more" if more else ""
    warn(
        f"{name!r}: {'; '.join(said)}{tail}. They are kept apart: rename them if they are one",
        UserWarning,
        stacklevel=5,
    )
