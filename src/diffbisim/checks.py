"""The door: what a user hands over is checked here, once, and then trusted everywhere.

A kernel ``P`` is an (n, n) table with ``P[x, x'] >= 0`` and rows that sum to one; a start ``ν0`` is one such
row. Both are stored in float64 and made read-only. A row that misses one by no more than the rounding of its
source (1e-8, or 1e-5 for float32) is divided by its sum; anything worse is an error that names the argument,
the row, the value, how far it is off, and the remedy.

**Names decide, then positions.** A mapping, a pandas Series or DataFrame, a polars frame and an xarray DataArray name
their entries, and are put in the order of the states that they name; names that do not match are an error. Names
0 … n-1 in this order, which is what pandas gives where none were given, are no names. These libraries are recognized by
their types' modules and never imported.

**Missing values** (None, NaN, NaT, pandas.NA, a masked entry) are neither numbers nor names of states.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from diffbisim.errors import DiffbisimError, InvalidArgument, InvalidChain

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = Floats | sp.csr_array
Labels = tuple[Hashable, ...]

NEGATIVE = 1e-12  # entries above -NEGATIVE are rounding, and become zero
ROUNDED = 4 * np.finfo(np.float64).eps  # rows this close to one are left as they are


def as_number(value: Any) -> float:
    """As a float; NaN, which no comparison lets through, for what is not a number."""
    if isinstance(value, (str, bytes)):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def check_discount(discount: float) -> float:
    """The discount as a float strictly between zero and one."""
    if not 0.0 < (number := as_number(discount)) < 1.0:
        raise InvalidArgument(f"discount is {discount!r}; it must lie strictly between 0 and 1, e.g. discount=0.95")
    return number


def check_count(value: int, name: str) -> int:
    """A non-negative integer, as int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InvalidArgument(f"{name} is {value!r}; it must be a non-negative integer")
    return int(value)


def is_sparse(value: Any) -> bool:
    """Whether ``value`` is a scipy.sparse matrix or array."""
    return bool(sp.issparse(value))


def freeze(matrix: Any) -> Any:
    """Make the buffers of an array, or of a CSR or COO matrix, read-only, in place."""
    if isinstance(matrix, np.ndarray):
        parts: tuple[Any, ...] = (matrix,)
    elif matrix.format == "coo":
        parts = (matrix.data, *matrix.coords)
    else:
        parts = (matrix.data, matrix.indices, matrix.indptr)
    for part in parts:
        part.flags.writeable = False
    return matrix


# --- names: of axes, of states, and what to do where they meet ----------------------------------------------------


def library(value: Any) -> str:
    """Which library of labeled tables a value comes from: "pandas", "polars", "xarray", or "" for none."""
    kind: Any = type(value)
    return _home(kind)


@lru_cache(maxsize=1024)
def _home(kind: Any) -> str:
    homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return next((name for name in ("pandas", "polars", "xarray") if name in homes), "")


def is_frame(value: Any) -> bool:
    """Whether this is a table with named columns: a pandas or polars DataFrame."""
    return library(value) in ("pandas", "polars") and hasattr(value, "columns")


def axis_names(value: Any) -> list[list[Hashable] | None]:
    """The names along each axis of a labeled vector or table, None for an axis without; [] for anything else."""
    source = library(value)
    if source == "pandas" and hasattr(value, "index"):
        return [_index_names(getattr(value, axis)) for axis in ("index", "columns") if hasattr(value, axis)]
    if source == "polars" and is_frame(value):
        columns = list(value.columns)
        return [None, None if columns == [f"column_{k}" for k in range(len(columns))] else columns]
    if source == "xarray" and hasattr(value, "dims") and hasattr(value, "indexes"):
        return [_index_names(value.indexes[axis]) if axis in value.indexes else None for axis in value.dims]
    return []


def _index_names(index: Any) -> list[Hashable] | None:
    """The names in a pandas Index; None if they are 0 … n-1."""
    if getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1:
        return None
    names: list[Hashable] = index.tolist()
    return None if names == list(range(len(names))) else names


def labeled(value: Any) -> tuple[Any, list[list[Hashable] | None]]:
    """The entries of a mapping or of a labeled vector or table, and the names along each axis; else (value, [])."""
    if isinstance(value, Mapping):
        return np.fromiter(value.values(), dtype=object, count=len(value)), [list(value)]
    axes = axis_names(value)
    return np.asarray(value) if axes else value, axes


def places(
    names: Sequence[Hashable] | None,
    states: Sequence[Hashable],
    what: str,
    *,
    of: str = "state",
    error: type[DiffbisimError] = InvalidChain,
    partial: bool = False,
) -> list[int] | None:
    """Where each of the ``states`` (labels, or a range) stands among the ``names``; None if they go by position.

    An axis without names is one with names 0 … n-1, if that is what the states are called. ``partial``: states that
    are not named are at -1 instead of an error.
    """
    given = range(len(states)) if names is None else names
    at = {name: k for k, name in enumerate(given)}
    known = set(states)
    if len(at) < len(given):
        twice = next(name for k, name in enumerate(given) if at[name] != k)
        raise error(f"{what} names {twice!r} twice; every {of} has one place")
    if extra := [name for name in given if name not in known]:
        if names is None:
            return None
        called = "have no labels" if isinstance(states, range) else f"are {_few(states)}"
        raise error(
            f"{what} names {extra[0]!r}, which is no {of} (they {called}); correct the name, or give a bare array to "
            "go by position"
        )
    order = [at.get(name, -1) for name in states]
    if not partial and -1 in order:
        raise error(f"{what} has no entry for {of} {states[order.index(-1)]!r}; give every {of} one")
    return order


def bare(
    value: Any, states: Sequence[Sequence[Hashable]], name: str, *, of: Sequence[str] = ("state", "state"),
    error: type[DiffbisimError] = InvalidChain, rest: float | None = None,
) -> Any:  # fmt: skip
    """A mapping or a labeled vector or table as an array in the order of the states; anything else as it is.

    ``states[k]`` are the names of the states (``of[k]``: or actions) along axis k, a range if they have none; ``rest``
    stands for the states that are not named, which are else an error.
    """
    entries, axes = labeled(value)
    if len(axes) != len(states):
        return entries  # the check of the shape says so
    for k, (names, known) in enumerate(zip(axes, states, strict=True)):
        if names is None and entries.shape[k] != len(known):
            continue  # and here
        what = name if len(axes) == 1 else f"the {('row', 'column')[k]} index of {name}"
        order = places(names, known, what, of=of[k], error=error, partial=rest is not None)
        if order is not None:
            padded = entries if rest is None else np.append(entries, [rest], axis=k)  # -1 is the last
            entries = padded.take(order, axis=k)
    return entries


def named_kernel(
    value: Any, labels: Sequence[Hashable] | None, name: str = "transition"
) -> tuple[Any, Sequence[Hashable] | None]:
    """The table of a kernel and its labels: a labeled table is put in the order of ``labels``, else of its rows.

    Rows and columns must name the same states. If only one of them has names, ``labels`` must name the other.
    """
    _no_labeled_rows(value, name)
    found = axis_names(value)
    shape = tuple(getattr(value, "shape", ()))
    if found == [None, None] or len(found) != 2 or len(shape) != 2 or shape[0] != shape[1]:
        return (np.asarray(value) if found else value), labels
    n = shape[0]
    if labels is None:
        numbers = list(range(n))
        rows, columns = (numbers if axis is None else axis for axis in found)
        if len(set(rows)) == n and set(rows) != set(columns):
            if None in found:
                named, other = ("columns", "rows") if found[0] is None else ("rows", "columns")
                raise InvalidChain(
                    f"{name} names its {named} ({_few(columns if found[0] is None else rows)}) but not its {other}; "
                    f"pass labels=[...] in the order of its {other}, or the bare array (.to_numpy())"
                )
            odd = next(((a, "row", "column") for a in rows if a not in set(columns)), None)
            odd = odd or next((b, "column", "row") for b in columns if b not in set(rows))
            raise InvalidChain(f"{name} has a {odd[1]} {odd[0]!r} and no {odd[2]} of that name; both name the states")
        return bare(value, (rows, rows), name), None if rows == numbers else rows
    return bare(value, (labels, labels), name), labels


def _no_labeled_rows(value: Any, name: str) -> None:
    """Refuse a list of Series: each has an order of its own."""
    if isinstance(value, (list, tuple)) and any(names is not None for row in value for names in axis_names(row)):
        raise InvalidChain(f"{name} is a list of labeled rows; make one table of them, such as pandas.DataFrame(rows)")


def ordered(names: Any, what: str) -> list[Any] | None:
    """A list of names, whose order counts; sets and mappings, which would lose it, are refused."""
    if names is None:
        return None
    if isinstance(names, (set, frozenset, Mapping)):
        kind = "mapping" if isinstance(names, Mapping) else "set"
        raise InvalidChain(f"{what} is a {kind}; give a list, in the order of the states")
    return list(names.tolist() if isinstance(names, np.ma.MaskedArray) else names)


def is_missing(value: Any) -> bool:
    """Whether a value stands for nothing: None, NaN, NaT, pandas.NA, a masked entry, or a tuple with such a part."""
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, tuple):
        return any(map(is_missing, value))
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):  # pandas.NA is neither equal to itself nor not
        return type(value).__name__ == "NAType"


def plain(name: Any) -> Any:
    """A numpy scalar as Python's own; but not dates, which would become numbers."""
    return name.item() if isinstance(name, np.generic) and name.dtype.kind not in "mM" else name


def _few(names: Iterable[Any]) -> str:
    shown = list(names)
    return ", ".join(map(repr, shown[:5])) + (", …" if len(shown) > 5 else "")


def unmasked(value: Any, name: str, error: type[DiffbisimError] = InvalidChain) -> Any:
    """The value, unless it is an array some of whose entries are masked."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        place = ", ".join(str(int(k)) for k in np.argwhere(np.ma.getmaskarray(value))[0])
        raise error(f"{name}[{place}] is masked, that is missing; fill it in")
    return value


# --- kernels, starts, rewards, policies ---------------------------------------------------------------------------


def stochastic_matrix(value: Any, *, name: str = "transition", labels: Sequence[Hashable] | None = None) -> Matrix:
    """A read-only (n, n) row-stochastic copy of ``value``: C-contiguous, or sorted CSR without zeros."""
    return stochastic_rows(value, square=True, name=name, labels=labels)


def stochastic_rows(value: Any, *, name: str, labels: Sequence[Hashable] | None = None, square: bool = False) -> Matrix:
    """The same for a kernel (n, m) from one state space into another."""
    matrix, tolerance = _as_floats(value, name)
    if 0 in matrix.shape:
        raise InvalidChain(f"{name} is empty; a chain needs at least one state")
    if square and (matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]):
        raise InvalidChain(f"{name} has shape {matrix.shape}; it must be square, (n_states, n_states)")
    if matrix.ndim != 2:
        raise InvalidChain(f"{name} has shape {matrix.shape}; it must be a table, (states now, states next)")
    _make_stochastic(matrix, tolerance, name, labels)
    return freeze(matrix)  # type: ignore[no-any-return]


def stochastic_table(
    value: Any, shape: tuple[int, int], *, name: str, labels: Sequence[Hashable] | None = None
) -> Floats:
    """A read-only dense copy of ``value`` with the given shape and rows that sum to one: a policy."""
    table, tolerance = _as_floats(value, name)
    if not isinstance(table, np.ndarray) or table.shape != shape:
        raise InvalidChain(f"{name} has shape {table.shape}; expected {shape}, dense")
    _make_stochastic(table, tolerance, name, labels)
    return freeze(table)  # type: ignore[no-any-return]


def policy_table(
    policy: Any,
    shape: tuple[int, int],
    *,
    labels: Sequence[Hashable] | None = None,
    actions: Sequence[Hashable] | None = None,
) -> Floats:
    """The (n, n_actions) probabilities of a policy that is given as such, or as (n,) integers, one action per state."""
    _no_labeled_rows(policy, "policy")
    axes = [range(shape[0]) if labels is None else labels, range(shape[1]) if actions is None else actions]
    policy = bare(policy, axes[: len(labeled(policy)[1])], "policy", of=("state", "action"))
    array = np.asarray(policy)
    if array.ndim != 1:
        return stochastic_table(policy, shape, name="policy", labels=labels)
    if array.shape != shape[:1] or array.dtype.kind not in "iu":
        raise InvalidChain(
            f"policy has shape {array.shape} and type {array.dtype}; expected {shape} probabilities, "
            f"or {shape[0]} integers, the action of each state"
        )
    if (bad := (array < 0) | (array >= shape[1])).any():
        s = int(bad.argmax())
        raise InvalidChain(f"policy[{s}] = {array[s]} is no action; actions run from 0 to {shape[1] - 1}")
    return np.asarray(np.eye(shape[1])[array], dtype=np.float64)


def mixed_rows(matrix: Matrix) -> Matrix:
    """A mixture of rows that were checked before, made canonical in place: only rounding can be wrong with it."""
    if not isinstance(matrix, np.ndarray):
        matrix.eliminate_zeros()
        matrix.sort_indices()
    _normalize_rows(matrix, 1e-8, "transition", None)
    return freeze(matrix)  # type: ignore[no-any-return]


def _make_stochastic(matrix: Matrix, tolerance: float, name: str, labels: Sequence[Hashable] | None) -> None:
    """Check entries and row sums, clip and normalize, in place."""
    _check_entries(matrix, name, labels)
    if isinstance(matrix, np.ndarray):
        np.maximum(matrix, 0.0, out=matrix)
    else:
        np.maximum(matrix.data, 0.0, out=matrix.data)
        matrix.eliminate_zeros()
        matrix.sort_indices()
    _normalize_rows(matrix, tolerance, name, labels)


def distribution(value: Any, n: int, *, name: str = "initial") -> Floats:
    """A read-only (n,) probability vector."""
    vector = finite_numbers(value, (n,), name=name, per="state")
    if (bad := vector < -NEGATIVE).any():
        k = int(bad.argmax())
        raise InvalidChain(f"{name}[{k}] = {vector[k]:g} is negative; probabilities lie between 0 and 1")
    np.maximum(vector, 0.0, out=vector)
    total = float(vector.sum())
    tolerance = _tolerance(getattr(value, "dtype", None))
    if abs(total - 1.0) > tolerance:
        raise InvalidChain(f"{name} sums to {total:.10g}, {_off(total)}; divide it by its sum")
    if abs(total - 1.0) > ROUNDED:
        vector /= total
    return freeze(vector)  # type: ignore[no-any-return]


def finite_numbers(value: Any, shape: tuple[int, ...], *, name: str, per: str) -> Floats:
    """A finite float64 copy of ``value`` with the given shape; ``per`` says what an entry belongs to."""
    try:
        if np.iscomplexobj(value):
            raise TypeError("its entries are complex")
        array = np.array(unmasked(value, name), dtype=np.float64)
    except InvalidChain:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidChain(f"{name} is not an array of numbers ({error}); give one number per {per}") from None
    if array.shape != shape:
        raise InvalidChain(f"{name} has shape {array.shape}; expected {shape}, one number per {per}")
    if (bad := ~np.isfinite(array)).any():
        place = ", ".join(str(int(k)) for k in np.argwhere(bad)[0])
        raise InvalidChain(f"{name}[{place}] is {array[bad][0]}; every {per} needs a finite number")
    return array


def distinct_labels(labels: Any, n: int, *, name: str = "labels", per: str = "state") -> Labels | None:
    """``labels`` as a tuple of n distinct hashables (numpy scalars become Python ones), or None."""
    if labels is None:
        return None
    items = list(map(plain, ordered(labels, name) or ()))
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
        if is_missing(item):
            raise InvalidChain(f"{name}[{k}] is {item!r}, a missing value; give the {per} a name, such as 'none'")
    return tuple(items)


def find_state(state: Any, n: int, numbers: Mapping[Hashable, int]) -> int | None:
    """Index of a state given by label (looked up first) or by index; None if it is neither."""
    if isinstance(state, Hashable):
        try:
            if (found := numbers.get(state)) is not None:
                return found
        except TypeError:  # a tuple with a list inside
            return None
    if isinstance(state, (int, np.integer)) and not isinstance(state, bool) and 0 <= state < n:
        return int(state)
    return None


def start_distribution(value: Any, n: int, numbers: Mapping[Hashable, int]) -> Floats:
    """The (n,) start: a point mass at a state given by label or index, or a distribution.

    A distribution that names its states, a mapping or a Series, may leave out those of probability zero.
    """
    state = find_state(value, n, numbers)
    if state is not None:
        point = np.zeros(n)
        point[state] = 1.0
        return freeze(point)  # type: ignore[no-any-return]
    value = bare(value, [list(numbers) or range(n)], "initial", rest=0.0)
    if np.ndim(value) == 0 or (isinstance(value, tuple) and len(value) != n):
        known = "a label, an index" if numbers else "an index"
        raise InvalidChain(f"initial = {value!r} is no state; give {known} from 0 to {n - 1}, or a distribution")
    return distribution(value, n)


def state_rewards(value: Any, n: int, labels: Labels | None) -> Floats | None:
    """The (n,) rewards from one number per state, or from a mapping or Series: label (else index) -> number."""
    if value is None:
        return None
    value = bare(value, [range(n) if labels is None else labels], "rewards")
    return freeze(finite_numbers(value, (n,), name="rewards", per="state"))  # type: ignore[no-any-return]


def _as_floats(value: Any, name: str) -> tuple[Matrix, float]:
    """A float64 copy, dense or CSR, and the tolerance that the source's precision deserves."""
    if is_sparse(value):
        matrix = sp.csr_array(value, dtype=np.float64, copy=True)
        matrix.sum_duplicates()
        return matrix, _tolerance(value.dtype)
    unmasked(value, name)
    try:
        source = np.asarray(value)
        if source.dtype.kind not in "biufO":
            raise TypeError(f"entries of type {source.dtype}")
        return np.array(source, dtype=np.float64, order="C"), _tolerance(source.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidChain(f"{name} is not a rectangular table of real numbers ({error})") from None


def _tolerance(dtype: Any) -> float:
    """How far a row may be from one: what rounding in the source's precision explains."""
    return 1e-5 if dtype is not None and str(dtype).endswith(("float32", "float16")) else 1e-8


def _check_entries(matrix: Matrix, name: str, labels: Sequence[Hashable] | None) -> None:
    entries = matrix if isinstance(matrix, np.ndarray) else matrix.data
    lowest = entries.min(initial=0.0)  # NaN if there is one
    if lowest >= -NEGATIVE and entries.max(initial=0.0) < np.inf:
        return
    k = int(np.argmax(~np.isfinite(entries) | (entries < -NEGATIVE)))
    if isinstance(matrix, np.ndarray):
        row, column = divmod(k, matrix.shape[1])
    else:
        row, column = int(np.searchsorted(matrix.indptr, k, side="right")) - 1, int(matrix.indices[k])
    entry = entries.flat[k]
    fault = f"is {entry:g}, negative" if np.isfinite(entry) else f"is {entry}, not a finite number"
    where = f"entry ({row}, {column}){_named(row, labels)}"
    raise InvalidChain(f"{name}: {where} {fault}; probabilities lie between 0 and 1")


def _normalize_rows(matrix: Matrix, tolerance: float, name: str, labels: Sequence[Hashable] | None) -> None:
    """Check that every row sums to one, then divide by the sums, in place."""
    sums = np.asarray(matrix.sum(axis=1), dtype=np.float64)
    off = np.abs(sums - 1.0)
    if off.max() > tolerance:
        row = int(np.argmax(off > tolerance))
        remedy = "divide the row by its sum or add the missing successors"
        if sums[row] == 0.0:
            remedy = "give the state successors, or a self-loop if it is terminal"
        elif matrix.shape[0] == matrix.shape[1] and np.allclose(matrix.sum(axis=0), 1.0, rtol=0.0, atol=tolerance):
            remedy = "the columns do sum to one: pass the transpose"
        raise InvalidChain(
            f"{name}: row {row}{_named(row, labels)} sums to {sums[row]:.10g}, {_off(sums[row])}; {remedy}"
        )
    if off.max() > ROUNDED:
        sums[off <= ROUNDED] = 1.0
        if isinstance(matrix, np.ndarray):
            matrix /= sums[:, None]
        else:
            matrix.data /= np.repeat(sums, np.diff(matrix.indptr))


def _off(total: float) -> str:
    return f"{abs(total - 1.0):.3g} {'below' if total < 1.0 else 'above'} one"


def _named(row: int, labels: Sequence[Hashable] | None) -> str:
    return f" (label {labels[row]!r})" if labels is not None and row < len(labels) else ""
