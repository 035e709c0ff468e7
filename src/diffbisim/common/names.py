"""Alignment of named input by name.

**Names take precedence over positions.** A mapping, a pandas Series or DataFrame, a polars frame or an xarray DataArray
names its entries; it is reordered to match the states, and names that do not match are an error. The default index
0 … n-1 counts as unnamed. These libraries are recognized by the module of the object's type and never imported.

**Missing values** (None, NaN, NaT, pandas.NA, a masked entry) cannot be names of states.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from diffbisim.common.errors import DiffbisimError, InvalidChain

Names = tuple[Hashable, ...]
AxisNames = list[Hashable] | None  # None for an axis without names

#: Libraries that are recognized, in this order: a pomegranate model is also a torch module.
LIBRARIES = ("pandas", "polars", "xarray", "networkx", "deeptime", "hmmlearn", "pomegranate", "stormpy", "stormvogel",
             "pyarrow", "torch", "jax", "jaxlib")  # fmt: skip


#: A surrogate outside of a pair, which UTF-8 cannot encode.
SURROGATE = re.compile("[\ud800-\udfff]")


# --- named tables -------------------------------------------------------------------------------------------------


def library(value: Any) -> str:
    """Return the known library that defines the type of ``value``, such as "pandas", or ""."""
    kind: Any = type(value)
    return _library_of_type(kind)


@lru_cache(maxsize=1024)
def _library_of_type(kind: Any) -> str:
    homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return next((name for name in LIBRARIES if name in homes), "")


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a pandas or polars DataFrame."""
    return library(value) in ("pandas", "polars") and hasattr(value, "columns")


def axis_names(value: Any) -> list[AxisNames]:
    """Return the names along each axis of a named vector or table; [] for anything else."""
    source = library(value)
    if source == "pandas" and hasattr(value, "index"):
        return [_index_names(getattr(value, axis)) for axis in ("index", "columns") if hasattr(value, axis)]
    if source == "polars" and is_frame(value):
        columns = list(value.columns)
        return [None, None if columns == [f"column_{k}" for k in range(len(columns))] else columns]
    if source == "xarray" and hasattr(value, "dims") and hasattr(value, "indexes"):
        return [_index_names(value.indexes[axis]) if axis in value.indexes else None for axis in value.dims]
    return []


def _index_names(index: Any) -> AxisNames:
    """Return the names in a pandas Index; None if they are 0 … n-1."""
    if getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1:
        return None
    names: list[Hashable] = index.tolist()
    return None if names == list(range(len(names))) else names


def entries_and_names(value: Any) -> tuple[Any, list[AxisNames]]:
    """Return the entries of a mapping or named table and the names along each axis; otherwise (value, [])."""
    if isinstance(value, Mapping):
        return np.fromiter(value.values(), dtype=object, count=len(value)), [list(value)]
    axes = axis_names(value)
    return np.asarray(value) if axes else value, axes


def positions(
    names: Sequence[Hashable] | None,
    states: Sequence[Hashable],
    what: str,
    *,
    of: str = "state",
    error: type[DiffbisimError] = InvalidChain,
    partial: bool = False,
) -> list[int] | None:
    """Return the position of each of the ``states`` (names, or a range) among the ``names``.

    An axis without names (``names=None``) is treated as named 0 … n-1 if these are the states; otherwise the result is
    None, meaning that entries are matched by position. With ``partial=True`` states that are not named get -1 instead
    of raising an error.
    """
    given = range(len(states)) if names is None else names
    at = {name: k for k, name in enumerate(given)}
    known = set(states)
    if len(at) < len(given):
        twice = next(name for k, name in enumerate(given) if at[name] != k)
        raise error(f"{what} names {twice!r} twice; name every {of} once")
    if extra := [name for name in given if name not in known]:
        if names is None:
            return None
        listed = "there are no names" if isinstance(states, range) else f"the names are {few(states)}"
        raise error(
            f"{what} names {extra[0]!r}, which is not a known {of} ({listed}); correct the name, or pass a bare array "
            "to match by position"
        )
    order = [at.get(name, -1) for name in states]
    if not partial and -1 in order:
        raise error(f"{what} has no entry for {of} {states[order.index(-1)]!r}; add one")
    return order


def in_order(
    value: Any, states: Sequence[Sequence[Hashable]], name: str, *, of: Sequence[str] = ("state", "state"),
    error: type[DiffbisimError] = InvalidChain, rest: float | None = None,
) -> Any:  # fmt: skip
    """Return a mapping or named table as an array in the order of the states; anything else unchanged.

    ``states[k]`` are the names along axis k, or a range if there are none, and ``of[k]`` says what they are ("state" or
    "action"). States that are not named get the value ``rest``; with ``rest=None`` they are an error.
    """
    entries, axes = entries_and_names(value)
    if len(axes) != len(states):
        return entries  # the caller checks the shape
    for k, (names, known) in enumerate(zip(axes, states, strict=True)):
        if names is None and entries.shape[k] != len(known):
            continue  # likewise
        what = name if len(axes) == 1 else f"the {('row', 'column')[k]} index of {name}"
        order = positions(names, known, what, of=of[k], error=error, partial=rest is not None)
        if order is not None:
            padded = entries if rest is None else np.append(entries, [rest], axis=k)  # position -1 is the last
            entries = padded.take(order, axis=k)
    return entries


def kernel_in_order(
    value: Any, names: Sequence[Hashable] | None, name: str = "transition"
) -> tuple[Any, Sequence[Hashable] | None]:
    """Return the table of a kernel and its names, in the order of ``names`` if given, else of its rows.

    Rows and columns must name the same states. If only one of them is named, ``names`` must name the other.
    """
    refuse_named_rows(value, name)
    found = axis_names(value)
    shape = tuple(getattr(value, "shape", ()))
    if found == [None, None] or len(found) != 2 or len(shape) != 2 or shape[0] != shape[1]:
        return (np.asarray(value) if found else value), names
    if names is not None:
        return in_order(value, (names, names), name), names
    numbers = list(range(shape[0]))
    rows, columns = (numbers if axis is None else axis for axis in found)
    if len(set(rows)) == len(rows) and set(rows) != set(columns):
        if None in found:
            named, other = ("columns", "rows") if found[0] is None else ("rows", "columns")
            raise InvalidChain(
                f"{name} names its {named} ({few(columns if found[0] is None else rows)}) but not its {other}; "
                f"pass names=[...] in the order of its {other}, or the bare array (.to_numpy())"
            )
        odd = next(((a, "row", "column") for a in rows if a not in set(columns)), None)
        odd = odd or next((b, "column", "row") for b in columns if b not in set(rows))
        raise InvalidChain(f"{name} has a {odd[1]} {odd[0]!r} but no {odd[2]} {odd[0]!r}; both must name the states")
    return in_order(value, (rows, rows), name), None if rows == numbers else rows


def refuse_named_rows(value: Any, name: str) -> None:
    """Raise for a list of Series, each of which may have its own order."""
    if isinstance(value, (list, tuple)) and any(names is not None for row in value for names in axis_names(row)):
        raise InvalidChain(f"{name} is a list of named rows; combine them into one table: pandas.DataFrame(rows)")


# --- lists of names -----------------------------------------------------------------------------------------------


def ordered_names(names: Any, what: str) -> list[Any] | None:
    """Return the names as a list; raise for sets and mappings, which have no order of their own."""
    if names is None:
        return None
    if isinstance(names, (set, frozenset, Mapping)):
        kind = "mapping" if isinstance(names, Mapping) else "set"
        raise InvalidChain(f"{what} is a {kind}; give a list, in the order of the states")
    try:
        return list(names.tolist() if isinstance(names, np.ma.MaskedArray) else names)
    except TypeError:
        raise InvalidChain(f"{what} is {names!r}; give a list of names, in the order of the states") from None


def _text(item: Any) -> str:
    """Return the text in a name: a string, or those in a tuple."""
    return item if isinstance(item, str) else "".join(map(_text, item)) if isinstance(item, tuple) else ""


def distinct_names(names: Any, n: int, *, name: str = "names", per: str = "state") -> Names | None:
    """Return ``names`` as a tuple of n distinct hashables (numpy scalars become Python scalars), or None."""
    if names is None:
        return None
    items = list(map(python_scalar, ordered_names(names, name) or ()))
    if len(items) != n:
        raise InvalidChain(f"{name} has {len(items)} entries for {n} {per}s; give one per {per}")
    first: dict[Hashable, int] = {}
    for k, item in enumerate(items):
        try:
            seen = first.setdefault(item, k)
        except TypeError:
            raise InvalidChain(f"{name}[{k}] = {item!r} is not hashable; use strings, numbers or tuples") from None
        if seen != k:
            raise InvalidChain(f"{name}[{k}] = {item!r} repeats {name}[{seen}]; they must be distinct")
        if SURROGATE.search(_text(item)):
            raise InvalidChain(
                f"{name}[{k}] = {item!r} contains half of a surrogate pair, which no file can store; decode the text "
                'again, such as text.encode("utf-8", "surrogateescape").decode("latin-1")'
            )
        if is_missing(item):
            raise InvalidChain(f"{name}[{k}] is {item!r}, a missing value; give the {per} a name, such as 'none'")
    return tuple(items)


def find_state(state: Any, n: int, numbers: Mapping[Hashable, int]) -> int | None:
    """Return the index of a state given by name (looked up first) or by index; None if it is neither."""
    if isinstance(state, Hashable):
        try:
            if (found := numbers.get(state)) is not None:
                return found
        except TypeError:  # a tuple with a list inside
            return None
    if isinstance(state, (int, np.integer)) and not isinstance(state, (bool, np.timedelta64)) and 0 <= state < n:
        return int(state)
    return None


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, NaT, pandas.NA, a masked entry, or a tuple that contains one."""
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, tuple):
        return any(map(is_missing, value))
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):  # comparing pandas.NA gives NA, which has no truth value
        return type(value).__name__ == "NAType"


def python_scalar(name: Any) -> Any:
    """Convert a numpy scalar to a Python scalar, except for dates, which would become numbers."""
    return name.item() if isinstance(name, np.generic) and name.dtype.kind not in "mM" else name


def few(names: Sequence[Any], total: int | None = None) -> str:
    """Format the first five names for a message, as in ``'a', 'b', …``."""
    return ", ".join(map(repr, names[:5])) + (", …" if (len(names) if total is None else total) > 5 else "")
