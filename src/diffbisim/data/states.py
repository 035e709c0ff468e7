"""From what the data call a state to a number: 0 … n-1.

Non-negative integers are state numbers already (``n = max + 1``, as in numpy.bincount). Anything else
(strings, tuples, negative numbers, a mixture) is a label; the distinct labels are numbered in sorted order if
they can be sorted, else in order of appearance. A given state space settles it instead: an int n (numbers
0 … n-1) or a list of labels in the wanted order.

A missing value (None, NaN, NaT, pandas.NA, a masked entry, a tuple with such a part) is not a state: somebody has to
decide whether the entry is dropped or the state gets a name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.checks import Integers, Labels, distinct_labels, is_missing, library, ordered, plain
from diffbisim.errors import InvalidData

Where = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Data as state numbers: ``codes`` (m,) in 0 … n_states-1; ``labels`` are the names, if they have any."""

    codes: Integers
    n_states: int
    labels: Labels | None


def encode(entries: Integers | list[Any], states: Any, where: Where) -> Encoded:
    """Number the entries of a :func:`column`; ``where(k)`` says for messages where entry k stands."""
    if isinstance(states, (int, np.integer)) and not isinstance(states, bool):
        return _within(entries, int(states), where)
    if states is None and isinstance(entries, np.ndarray) and entries.min() >= 0:
        return Encoded(entries, int(entries.max()) + 1, None)
    items = entries.tolist() if isinstance(entries, np.ndarray) else entries
    labels = _distinct(items, where) if states is None else _given(states)
    numbers = {label: k for k, label in enumerate(labels)}
    try:
        codes = np.fromiter(map(numbers.__getitem__, items), dtype=np.int64, count=len(items))
    except (KeyError, TypeError):
        k = next(k for k, item in enumerate(items) if not isinstance(item, Hashable) or item not in numbers)
        if is_missing(items[k]):
            raise _missing(where(k), items[k]) from None
        raise InvalidData(f"{where(k)} = {items[k]!r} is not in states; add it there or remove it") from None
    return Encoded(codes, len(labels), labels)


def column(values: Any, name: str) -> Integers | list[Any]:
    """One column of states: an int64 array if all entries are integers, else the list of entries."""
    if isinstance(values, (str, bytes)):
        raise InvalidData(f"{name} is the string {values!r}; pass a sequence of states")
    if isinstance(values, (set, frozenset, Mapping)):
        kind = "mapping" if isinstance(values, Mapping) else "set"
        raise InvalidData(f"{name} is a {kind}; pass a list of states, in the order in which they were seen")
    if isinstance(values, np.ma.MaskedArray) or hasattr(values, "__array__"):
        array = np.asanyarray(values)
        if array.ndim != 1:
            raise InvalidData(f"{name} has shape {array.shape}; it must be one-dimensional (use tuples as states)")
        values = entries(array, values)
    if isinstance(values, np.ndarray):
        return values.astype(np.int64)
    try:
        items = list(values)
    except TypeError:
        raise InvalidData(f"{name} = {values!r} is not a sequence of states") from None
    return _integers(items)


def entries(array: Any, values: Any) -> Any:
    """A one-dimensional array as it is if it holds integers, else the list of its entries; ``values`` made it.

    What is masked becomes None, and dates stay dates.
    """
    if isinstance(array, np.ma.MaskedArray):
        return array.data if array.dtype.kind == "i" and not np.ma.getmaskarray(array).any() else array.tolist()
    if array.dtype.kind == "i":
        return array
    if array.dtype.kind in "mM":  # as pandas and polars give them out, else as numpy does
        return list(values if library(values) in ("pandas", "polars") else array)
    return array.tolist()


def show(names: list[Any], total: int) -> str:
    """``'a', 'b', …`` for a message: the first few of ``total`` names."""
    return ", ".join(map(repr, names)) + (", …" if total > len(names) else "")


def _integers(items: list[Any]) -> Integers | list[Any]:
    kinds = set(map(type, items))
    if kinds and all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            return np.array(items, dtype=np.int64)
        except OverflowError:  # names such as 2**64
            return items
    return items


def _within(entries: Integers | list[Any], n: int, where: Where) -> Encoded:
    if n < 1:
        raise InvalidData(f"states = {n}; there must be at least one state")
    if isinstance(entries, list):
        k = next(k for k, e in enumerate(entries) if isinstance(e, bool) or not isinstance(e, (int, np.integer)))
        raise InvalidData(f"{where(k)} = {entries[k]!r} is no state number; states = {n} asks for 0 to {n - 1}")
    bad = (entries < 0) | (entries >= n)
    if bad.any():
        k = int(bad.argmax())
        raise InvalidData(f"{where(k)} = {entries[k]} is outside states: numbers run from 0 to {n - 1}")
    return Encoded(entries, n, None)


def _distinct(items: list[Any], where: Where) -> Labels:
    """The distinct entries, sorted if possible, else in order of appearance."""
    try:
        labels = list(dict.fromkeys(items))
    except TypeError:
        k = next(k for k, item in enumerate(items) if not _hashable(item))
        raise InvalidData(f"{where(k)} = {items[k]!r} is not hashable; use numbers, strings or tuples") from None
    if any(map(is_missing, labels)):
        k = next(k for k, item in enumerate(items) if is_missing(item))
        raise _missing(where(k), items[k])
    with suppress(TypeError):  # then they stay in order of appearance
        labels.sort()
    return tuple(map(plain, labels))


def _missing(where: str, item: Any) -> InvalidData:
    return InvalidData(
        f"{where} is {item!r}, a missing value; drop the entry (pandas: dropna) or name the state (fillna('none'))"
    )


def _given(states: Any) -> Labels:
    names = ordered(states, "states") or []
    if not names:
        raise InvalidData("states is empty; list at least one state")
    return distinct_labels(names, len(names), name="states") or ()


def _hashable(item: Any) -> bool:
    try:
        hash(item)
    except TypeError:
        return False
    return True
