"""Transition kernels from observed data: encode states as integers, then normalize counts.

**Encoding.** Non-negative integers are used as state indices (``n = max + 1``, as in numpy.bincount). Anything else
(strings, tuples, negative numbers, mixed types) is a name; distinct names are sorted if possible, otherwise kept in
order of appearance. ``states`` overrides this: an int n (indices 0 … n-1) or a list of names in the desired order.

A missing value (None, NaN, NaT, pandas.NA, a masked entry, or a tuple that contains one) is not a state and raises an
error: the caller decides whether to drop the entry or to name the state.

**Counting.** With sources i, targets j and weights w, each (m,), the kernel is

    P[x, x'] = Σ_k w_k 1{i_k = x, j_k = x'} / Σ_k w_k 1{i_k = x}.

The size n is checked before anything of length n is allocated, so a state called 1000000000000 raises an error instead
of exhausting memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import chain as concatenated
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import ROUNDED, Floats, Integers, Matrix, check_count, finite_numbers
from diffbisim.common.errors import InvalidData
from diffbisim.common.names import (
    Names,
    axis_names,
    distinct_names,
    few,
    is_missing,
    library,
    ordered_names,
    positions,
    python_scalar,
)
from diffbisim.io import limits
from diffbisim.processes.stochastic import fewest_steps

Where = Callable[[int], str]

MOST_FILLED = 4 * 10**6  # maximum number of entries that unseen="uniform" may add
SHOWN = 5  # states listed in a message


class WeightedPairs(NamedTuple):
    """Weighted transitions: sources, targets and positive weights, each (m,)."""

    i: Integers
    j: Integers
    w: Floats


# --- encoding -----------------------------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """Data as state indices: ``codes`` (m,) in 0 … n_states-1, and the names of the states, if any."""

    codes: Integers
    n_states: int
    names: Names | None


def encode_pairs(s: Any, s_next: Any, states: Any) -> Encoded:
    """Encode the states of m transitions; ``codes`` (2m,) interleaves them: s[0], s_next[0], s[1], …"""
    first, second = _column(s, "s"), _column(s_next, "s_next")
    if len(first) != len(second):
        raise InvalidData(f"s has {len(first)} entries and s_next has {len(second)}; they must have the same length")
    if len(first) == 0:
        raise InvalidData("s is empty; there must be at least one transition")
    entries: Any
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        entries = np.stack([first, second], axis=1).ravel()
    else:
        entries = list(concatenated.from_iterable(zip(_as_list(first), _as_list(second), strict=True)))
    return _encode(entries, states, lambda k: f"{('s', 's_next')[k % 2]}[{k // 2}]")


def encode_actions(actions: Any, rewards: Any, m: int) -> dict[str, Any]:
    """Return the action and reward fields of m transitions; actions are encoded like states."""
    known: dict[str, Any] = {}
    if actions is not None:
        entries = _column(actions, "actions")
        if len(entries) != m:
            raise InvalidData(f"actions has {len(entries)} entries for {m} transitions; give one per transition")
        done = _encode(entries, None, lambda k: f"actions[{k}]")
        known |= {"actions": done.codes, "n_actions": done.n_states, "action_names": done.names}
    if rewards is not None:
        known["rewards"] = finite_numbers(rewards, (m,), name="rewards", per="transition")
    return known


def concatenate_steps(values: Any, lengths: Integers, name: str) -> Any:
    """Concatenate sequences with one entry per step of trajectories that have ``lengths`` states."""
    if values is None:
        return None
    try:
        parts = [list(part) for part in values]
    except TypeError:
        raise InvalidData(f"{name} is {values!r}; give one sequence per trajectory, with one entry per step") from None
    if len(parts) != lengths.size:
        raise InvalidData(f"{name} has {len(parts)} sequences for {lengths.size} trajectories; give one per trajectory")
    for k, (part, length) in enumerate(zip(parts, lengths.tolist(), strict=True)):
        if len(part) != length - 1:
            raise InvalidData(f"{name}[{k}] has {len(part)} entries for {length - 1} steps; give one per step")
    return list(concatenated.from_iterable(parts))


def encode_paths(trajectories: Sequence[Any], states: Any) -> tuple[Encoded, Integers]:
    """Encode the concatenated states of k trajectories; also return their lengths, (k,)."""
    paths = [_as_path(path) for path in trajectories]
    lengths = _lengths(paths)
    entries: Any
    if all(isinstance(path, np.ndarray) and path.ndim == 1 and path.dtype.kind == "i" for path in paths):
        entries = np.concatenate(paths)
    else:
        entries = list(concatenated.from_iterable(map(_as_list, paths)))
    begins = np.cumsum(lengths) - lengths

    def where(k: int) -> str:
        path = int(np.searchsorted(begins, k, side="right")) - 1
        return f"trajectories[{path}][{k - int(begins[path])}]"

    return _encode(_column(entries, "trajectories"), states, where), lengths


def encode_column(codes: Integers, names: Sequence[Hashable], states: Any) -> Encoded:
    """Encode a column whose entry k is ``names[codes[k]]``."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(names)))
    found = _encode(_column([python_scalar(names[k]) for k in used.tolist()], "state"), states, lambda k: "state")
    number = np.zeros(len(names), dtype=np.int64)
    number[used] = found.codes
    return found._replace(codes=number[codes])


def _encode(entries: Integers | list[Any], states: Any, where: Where) -> Encoded:
    """Encode the entries of a column; ``where(k)`` locates entry k in messages."""
    if isinstance(states, (int, np.integer)) and not isinstance(states, bool):
        return _within(entries, check_count(states, "states") if states > 0 else int(states), where)
    if states is None and isinstance(entries, np.ndarray) and entries.min() >= 0:
        return Encoded(entries, int(entries.max()) + 1, None)
    items = _as_list(entries)
    names = _distinct_entries(items, where) if states is None else _given_names(states)
    numbers = {name: k for k, name in enumerate(names)}
    try:
        codes = np.fromiter(map(numbers.__getitem__, items), dtype=np.int64, count=len(items))
    except (KeyError, TypeError):
        k = next(k for k, item in enumerate(items) if not _hashable(item) or item not in numbers)
        if is_missing(items[k]):
            raise _missing(where(k), items[k]) from None
        raise InvalidData(f"{where(k)} = {items[k]!r} is not in states; add it there or remove it") from None
    return Encoded(codes, len(names), names)


def _column(values: Any, name: str) -> Integers | list[Any]:
    """Return a column of states: an int64 array if all entries are integers, else a list."""
    if isinstance(values, (str, bytes)):
        raise InvalidData(f"{name} is the string {values!r}; pass a sequence of states")
    if isinstance(values, (set, frozenset, Mapping)):
        kind = "mapping" if isinstance(values, Mapping) else "set"
        raise InvalidData(f"{name} is a {kind}; pass a list of states, in the order in which they were seen")
    if isinstance(values, np.ma.MaskedArray) or hasattr(values, "__array__"):
        array = np.asanyarray(values)
        if array.ndim != 1:
            raise InvalidData(f"{name} has shape {array.shape}; it must be one-dimensional (use tuples as states)")
        values = _array_entries(array, values)
    if isinstance(values, np.ndarray):
        return values.astype(np.int64)
    try:
        items = list(values)
    except TypeError:
        raise InvalidData(f"{name} = {values!r} is not a sequence of states") from None
    kinds = set(map(type, items))
    if kinds and all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        with suppress(OverflowError):  # integers such as 2**64 are treated as names
            return np.array(items, dtype=np.int64)
    return items


def _array_entries(array: Any, values: Any) -> Any:
    """Return a one-dimensional integer array unchanged, any other as a list; ``values`` is the array's source.

    Masked entries become None, and dates stay dates.
    """
    if isinstance(array, np.ma.MaskedArray):
        return array.data if array.dtype.kind == "i" and not np.ma.getmaskarray(array).any() else array.tolist()
    if array.dtype.kind == "i":
        return array
    if array.dtype.kind in "mM":  # keep the date type of pandas and polars
        return list(values if library(values) in ("pandas", "polars") else array)
    return array.tolist()


def _as_list(entries: Any) -> Any:
    return entries.tolist() if isinstance(entries, np.ndarray) else entries


def _within(entries: Integers | list[Any], n: int, where: Where) -> Encoded:
    if n < 1:
        raise InvalidData(f"states = {n}; there must be at least one state")
    if isinstance(entries, list):
        k = next(k for k, e in enumerate(entries) if isinstance(e, bool) or not isinstance(e, (int, np.integer)))
        raise InvalidData(
            f"{where(k)} = {entries[k]!r} is not a state number; with states = {n} they run from 0 to {n - 1}"
        )
    bad = (entries < 0) | (entries >= n)
    if bad.any():
        k = int(bad.argmax())
        raise InvalidData(f"{where(k)} = {entries[k]} is out of range; with states = {n} numbers run from 0 to {n - 1}")
    return Encoded(entries, n, None)


def _distinct_entries(items: list[Any], where: Where) -> Names:
    """Return the distinct entries, sorted if possible, else in order of appearance."""
    try:
        names = list(dict.fromkeys(items))
    except TypeError:
        k = next(k for k, item in enumerate(items) if not _hashable(item))
        raise InvalidData(f"{where(k)} = {items[k]!r} is not hashable; use numbers, strings or tuples") from None
    if any(map(is_missing, names)):
        k = next(k for k, item in enumerate(items) if is_missing(item))
        raise _missing(where(k), items[k])
    with suppress(TypeError):  # names that cannot be sorted stay in order of appearance
        names.sort()
    return tuple(map(python_scalar, names))


def _given_names(states: Any) -> Names:
    names = ordered_names(states, "states") or []
    if not names:
        raise InvalidData("states is empty; list at least one state")
    return distinct_names(names, len(names), name="states") or ()


def _missing(where: str, item: Any) -> InvalidData:
    return InvalidData(
        f"{where} is {item!r}, a missing value; drop the entry (pandas: dropna) or name the state (fillna('none'))"
    )


def _hashable(item: Any) -> bool:
    try:
        hash(item)
    except TypeError:
        return False
    return True


def _as_path(path: Any) -> Any:
    """Return a trajectory as an array of integers or a sequence."""
    if not (isinstance(path, np.ma.MaskedArray) or hasattr(path, "__array__")):
        return path
    array = np.asanyarray(path)
    return _array_entries(array, path) if array.ndim == 1 else array


def _lengths(paths: list[Any]) -> Integers:
    """Return the number of states of each trajectory, (k,), and check that none is empty."""
    if not paths:
        raise InvalidData("trajectories is empty; there must be at least one")
    for k, path in enumerate(paths):
        is_path = path.ndim > 0 if isinstance(path, np.ndarray) else isinstance(path, Sequence)
        if isinstance(path, (str, bytes)) or not is_path:
            raise InvalidData(
                f"trajectories[{k}] = {path!r} is not a sequence of states; "
                "pass a list of trajectories, such as [[0, 1, 2]]"
            )
    lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
    if not lengths.all():
        raise InvalidData(f"trajectories[{int(np.argmin(lengths))}] is empty; remove it")
    return lengths


# --- weights ------------------------------------------------------------------------------------------------------


def by_index_of(values: Any, like: Any, name: str, other: str) -> Any:
    """Reorder a Series to the index of ``like`` if it has the same entries; return anything else unchanged.

    Successors may have a different index than their sources, as in ``x[:-1], x[1:]``; weights may not.
    """
    own, index = axis_names(values), axis_names(like)
    if len(own) != 1 or len(index) != 1 or own == index or len(values) != len(like):
        return values
    mine, theirs = (list(range(len(like))) if names is None else names for names in (own[0], index[0]))
    if set(mine) == set(theirs) and len(set(mine)) == len(mine):
        return getattr(values, "iloc", values)[positions(mine, theirs, name)]
    if name == "weights" and own[0] is not None:
        raise InvalidData(f"weights and {other} have different indices; give weights that of {other}, or a bare array")
    return values


def check_weights(weights: Any, m: int, per: str) -> Floats | None:
    """Return the (m,) weights, finite and non-negative, or None."""
    if weights is None:
        return None
    w = finite_numbers(weights, (m,), name="weights", per=per, error=InvalidData)
    if (bad := w < 0.0).any():
        k = int(bad.argmax())
        raise InvalidData(f"weights[{k}] is {w[k]:g}; weights must be non-negative")
    return w


# --- counting -----------------------------------------------------------------------------------------------------


def empirical_kernel(pairs: WeightedPairs, n: int, sparse: bool | None) -> Matrix:
    """Return the row-normalized sums of weights, (n, n): CSR if requested or much smaller, else dense."""
    i, j, w = pairs
    counts = sp.csr_array((w, (i, j)), shape=(n, n))
    counts.sum_duplicates()
    sums = np.asarray(counts.sum(axis=1), dtype=np.float64)
    sums[np.abs(sums - 1.0) <= ROUNDED] = 1.0  # rows of probabilities stay bitwise unchanged
    counts.data /= np.repeat(sums, np.diff(counts.indptr))
    if sparse is None:
        sparse = n > 64 and counts.nnz < 0.25 * n * n
    return counts if sparse else counts.toarray()


def fill_unseen(pairs: WeightedPairs, n: int, unseen: str, name: Callable[[int], Hashable]) -> WeightedPairs:
    """Give every state without an outgoing transition a self-loop or a uniform row, or raise an error."""
    i, j, w = pairs
    sources = _seen(i, n)
    missing = n - sources.size
    if missing == 0:
        return pairs
    if unseen == "error":
        raise InvalidData(_unseen_message(sources, n, name))
    if n > limits.STATES:
        raise InvalidData(
            f"the largest state number is {n - 1}, which would need {n} states; "
            'if the numbers are names, pass states=[...] or unseen="drop"'
        )
    gaps = np.setdiff1d(np.arange(n), sources, assume_unique=True)
    if unseen == "self-loop":
        return WeightedPairs(np.append(i, gaps), np.append(j, gaps), np.append(w, np.ones(missing)))
    if missing * n > MOST_FILLED:
        raise InvalidData(
            f'unseen="uniform" would fill {missing} rows with {n} entries each; use unseen="self-loop" or unseen="drop"'
        )
    rows, columns = np.repeat(gaps, n), np.tile(np.arange(n), missing)
    return WeightedPairs(np.append(i, rows), np.append(j, columns), np.append(w, np.ones(rows.size)))


def drop_unseen(pairs: WeightedPairs, n: int) -> tuple[WeightedPairs, Integers]:
    """Return the renumbered pairs between states with an infinite path, and the old indices of these states."""
    i, j, w = pairs
    seen = _seen(np.concatenate([i, j]), n)
    i, j = np.searchsorted(seen, i), np.searchsorted(seen, j)
    keep = _reach_a_cycle(i, j, seen.size)
    if not keep.any():
        raise InvalidData(
            'unseen="drop" leaves no state: every path in the data ends; '
            'use unseen="self-loop" if the last states are absorbing'
        )
    renumbered = np.cumsum(keep) - 1
    inside = keep[i] & keep[j]
    return WeightedPairs(renumbered[i[inside]], renumbered[j[inside]], w[inside]), seen[keep]


def _reach_a_cycle(i: Integers, j: Integers, n: int) -> Any:
    """Return a mask (n,) of the states from which a cycle can be reached."""
    from scipy.sparse.csgraph import connected_components

    _, component = connected_components(sp.csr_array((np.ones(i.size), (i, j)), shape=(n, n)), connection="strong")
    on_cycle = np.bincount(component)[component] > 1
    on_cycle[i[i == j]] = True
    backwards = sp.csr_array((np.ones(i.size), (j, i)), shape=(n, n))
    return np.isfinite(fewest_steps(backwards, np.flatnonzero(on_cycle)))


def _seen(i: Integers, n: int) -> Integers:
    """Return the distinct values of i, ascending; counting is faster when n is not much larger than the data."""
    if n <= 4 * i.size + 1024:
        return np.flatnonzero(np.bincount(i, minlength=n))
    return np.unique(i)


def _unseen_message(sources: Integers, n: int, name: Callable[[int], Hashable]) -> str:
    candidates = np.arange(min(n, sources.size + SHOWN))  # contains the first few gaps
    gaps = np.setdiff1d(candidates, sources, assume_unique=True)[:SHOWN]
    missing = n - sources.size
    names = few([name(int(k)) for k in gaps], missing)
    return (
        f"{missing} of {n} states have no outgoing transition: {names}; "
        'pass unseen="self-loop" (they are absorbing), "uniform" (anything can follow) or "drop" (leave them '
        "out), or states=[...] if the numbers are names"
    )
