"""Validation of user input.

Input is validated once, when an object is constructed; all other code trusts it. A kernel ``P`` is an (n, n) table
with ``P[x, x'] >= 0`` and rows that sum to one; an initial distribution ``ν0`` is one such row. Both are stored in
float64 and made read-only. A row sum that differs from one by no more than rounding in the source's precision (1e-8;
1e-5 for float32, 1e-3 for float16, 8e-3 for bfloat16) is normalized; any larger deviation raises an error that names
the argument, the row, the value and the remedy. Named input is aligned by name (names.py).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from diffbisim.common.errors import DiffbisimError, InvalidArgument, InvalidChain
from diffbisim.common.names import Names, entries_and_names, find_state, in_order, refuse_named_rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = Floats | sp.csr_array
Buffers = TypeVar("Buffers")

NEGATIVE = 1e-12  # negative entries above -NEGATIVE are rounding errors and become zero
ROUNDED = 4 * np.finfo(np.float64).eps  # row sums this close to one are left unchanged


def as_number(value: Any) -> float:
    """Convert to float; non-numbers become NaN, which fails every range check."""
    if isinstance(value, (str, bytes)) or value is np.ma.masked:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def check_discount(discount: float) -> float:
    """Return the discount as a float strictly between zero and one."""
    if not 0.0 < (number := as_number(discount)) < 1.0:
        raise InvalidArgument(f"discount is {discount!r}; it must lie strictly between 0 and 1, e.g. discount=0.95")
    return number


def check_count(value: Any, name: str, least: int = 0) -> int:
    """Return an integer of at least ``least`` as int."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))
    if whole and abs(int(value)) >= 2**63:
        raise InvalidArgument(f"{name} is an integer of {int(value).bit_length()} bits; give one below 2**63")
    if not whole or value < least:
        what = "a non-negative integer" if least == 0 else f"{'' if whole else 'an integer of '}at least {least}"
        raise InvalidArgument(f"{name} is {value!r}; it must be {what}")
    return int(value)


def check_probability(value: Any, name: str) -> float:
    """Return a number strictly between zero and one as float."""
    if not 0.0 < (number := as_number(value)) < 1.0:
        raise InvalidArgument(f"{name} is {value!r}; give a probability such as 0.95")
    return number


def check_seconds(time_limit: Any) -> float:
    """Return a time limit in seconds, infinite for None."""
    if time_limit is None:
        return float("inf")
    if not (number := as_number(time_limit)) >= 0:
        raise InvalidArgument(f"time_limit is {time_limit!r}; give seconds, or None for no limit")
    return number


def check_tol(tol: Any) -> float:
    """Return a tolerance, a positive number, as float."""
    if not (number := as_number(tol)) > 0:
        raise InvalidArgument(f"tol is {tol!r}; it must be positive, e.g. tol=1e-8")
    return number


def check_path(value: Any, name: str) -> Path | None:
    """Return a path, or None; refuse what cannot be the name of a file."""
    if value is None:
        return None
    try:
        if b"\0" not in os.fsencode(value):
            return Path(os.fsdecode(value))
    except (TypeError, UnicodeError):
        pass
    raise InvalidArgument(f"{name} is {value!r}; give the path of a file, e.g. {name}='run.npz'")


def check_choice(value: Any, name: str, options: Iterable[str]) -> None:
    """Refuse a value that is not one of the options."""
    known = tuple(options)
    if not isinstance(value, str) or value not in known:  # arrays compare entry by entry
        raise InvalidArgument(f"{name} is {value!r}; use one of {', '.join(map(repr, known))}")


def check_flag(value: bool, name: str) -> bool:
    """Return True or False; other values that Python takes for true, such as "no", are refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def check_lag(lag: Any) -> float | None:
    """Return a lag, a positive number (as int if it is whole) or None."""
    if lag is None:
        return None
    number = as_number(lag)
    if isinstance(lag, (bool, np.bool_)) or not 0.0 < number < np.inf:
        raise InvalidArgument(f"lag is {lag!r}; it must be a positive number, the time that one step takes")
    return int(number) if number == int(number) else number


def check_callback(callback: Any) -> None:
    """Refuse a callback that cannot be called."""
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"callback is a {type(callback).__name__}; give a function of a row of the history")


def refuse_given(reason: str, defaults: Mapping[str, Any], **given: Any) -> None:
    """Refuse by name the first argument that differs from its default, because this mode cannot honor it."""
    for name, value in given.items():
        default = defaults[name]
        usual = value == default if np.isscalar(value) else isinstance(value, (list, tuple)) and not value
        if value is not default and not usual:
            raise InvalidArgument(f"{name} is given, but {reason}; omit {name}")


def check_time(time: int, n_steps: int) -> int:
    """Return a time from 0 to ``n_steps`` as int."""
    if isinstance(time, bool) or not (isinstance(time, (int, np.integer)) and 0 <= time <= n_steps):
        raise InvalidArgument(f"time is {time!r}; times run from 0 to {n_steps}")
    return int(time)


def is_sparse(value: Any) -> bool:
    """Return whether ``value`` is a scipy.sparse matrix or array."""
    return bool(sp.issparse(value))


def dense(matrix: Any) -> Any:
    """Return an array unchanged, and a sparse matrix as an array."""
    return matrix.toarray() if is_sparse(matrix) else matrix


def freeze(matrix: Buffers) -> Buffers:
    """Make the buffers of an array or of a CSR or COO matrix read-only, in place."""
    parts: Any = (matrix,)
    if isinstance(matrix, sp.coo_array):
        parts = (matrix.data, *matrix.coords)
    elif not isinstance(matrix, np.ndarray):
        parts = (matrix.data, matrix.indices, matrix.indptr)  # type: ignore[attr-defined]
    for part in parts:
        part.flags.writeable = False
    return matrix


def finite_numbers(
    value: Any, shape: tuple[int, ...], *, name: str, per: str, error: type[DiffbisimError] = InvalidChain
) -> Floats:
    """Return a finite float64 copy of ``value`` with the given shape; ``per`` says what each entry describes."""
    refuse_masked(value, name, error)
    try:
        array = as_floats(value)
    except (TypeError, ValueError, OverflowError) as fault:
        raise error(f"{name} is not an array of numbers ({fault}); give one number per {per}") from None
    if array.shape != shape:
        raise error(f"{name} has shape {array.shape}; expected {shape}, one number per {per}")
    if (bad := ~np.isfinite(array)).any():
        raise error(f"{name}[{_first(bad)}] is {array[bad][0]}; every {per} needs a finite number")
    return array


def as_floats(value: Any, copy: bool | None = True) -> Floats:
    """Return a C-contiguous float64 array; TypeError for entries that are not real numbers, such as dates."""
    source = np.asarray(without_bfloat16(value))
    if source.dtype.kind == "c":
        raise TypeError("its entries are complex")
    if source.dtype.kind in "mM":
        raise TypeError(f"its entries are {'dates' if source.dtype.kind == 'M' else 'durations'}; convert them first")
    return np.array(source, dtype=np.float64, order="C", copy=copy)


def without_bfloat16(value: Any) -> Any:
    """Return arrays and tensors of bfloat16, which numpy does not have, in float32; everything else unchanged."""
    dtype = getattr(value, "dtype", None)
    if (isinstance(dtype, np.dtype) and dtype.isbuiltin == 1) or not str(dtype).endswith("bfloat16"):
        return value
    return value.detach().float() if hasattr(value, "detach") else np.asarray(value).astype(np.float32)


def refuse_masked(value: Any, name: str, error: type[DiffbisimError] = InvalidChain) -> None:
    """Raise if any entry of a masked array is masked."""
    if isinstance(value, np.ma.MaskedArray) and (masked := np.ma.getmaskarray(value)).any():
        raise error(f"{name}[{_first(masked)}] is masked, that is, missing; fill it in")


def _first(bad: Any) -> str:
    """Format the index of the first True entry, such as ``2, 0``."""
    return ", ".join(str(int(k)) for k in np.argwhere(bad)[0])


# --- kernels and policies -----------------------------------------------------------------------------------------


def stochastic_matrix(value: Any, *, name: str = "transition", names: Sequence[Hashable] | None = None) -> Matrix:
    """Return a read-only (n, n) row-stochastic copy of ``value``: C-contiguous, or sorted CSR without zeros."""
    return stochastic_rows(value, square=True, name=name, names=names)


def stochastic_rows(
    value: Any, *, name: str, names: Sequence[Hashable] | None = None, square: bool = False, off: float | None = None
) -> Matrix:
    """Return a read-only row-stochastic copy of a kernel (n, m) from one state space to another.

    Row sums may differ from one by ``off``, by default because of rounding to the type of ``value``.
    """
    matrix, tolerance = _as_floats(value, name)
    tolerance = tolerance if off is None else off
    if 0 in matrix.shape:
        raise InvalidChain(f"{name} is empty; a chain needs at least one state")
    if square and (matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]):
        raise InvalidChain(f"{name} has shape {matrix.shape}; it must be square, (n_states, n_states)")
    if matrix.ndim != 2:
        raise InvalidChain(f"{name} has shape {matrix.shape}; it must be a table, (states now, states next)")
    return _stochastic(matrix, tolerance, name, names)


def policy_table(
    policy: Any,
    shape: tuple[int, int],
    *,
    names: Sequence[Hashable] | None = None,
    actions: Sequence[Hashable] | None = None,
) -> Floats:
    """Return a policy as (n, n_actions) probabilities; (n,) integers mean one action per state."""
    refuse_named_rows(policy, "policy")
    axes = [range(shape[0]) if names is None else names, range(shape[1]) if actions is None else actions]
    policy = in_order(policy, axes[: len(entries_and_names(policy)[1])], "policy", of=("state", "action"))
    array = np.asarray(without_bfloat16(policy))
    if array.ndim != 1:
        table, tolerance = _as_floats(policy, "policy")
        if not isinstance(table, np.ndarray) or table.shape != shape:
            raise InvalidChain(f"policy has shape {table.shape}; expected a dense array of shape {shape}")
        return np.asarray(_stochastic(table, tolerance, "policy", names))
    if array.shape != shape[:1] or array.dtype.kind not in "iu":
        raise InvalidChain(
            f"policy has shape {array.shape} and type {array.dtype}; expected {shape} probabilities, "
            f"or {shape[0]} integers, the action of each state"
        )
    if (bad := (array < 0) | (array >= shape[1])).any():
        s = int(bad.argmax())
        raise InvalidChain(f"policy[{s}] = {array[s]} is not an action; actions run from 0 to {shape[1] - 1}")
    return np.asarray(np.eye(shape[1])[array], dtype=np.float64)


def mixed_rows(matrix: Matrix) -> Matrix:
    """Normalize a mixture of validated rows in place; it can differ from a stochastic matrix only by rounding."""
    if not isinstance(matrix, np.ndarray):
        matrix.eliminate_zeros()
        matrix.sort_indices()
    _normalize_rows(matrix, 1e-8, "transition", None)
    return freeze(matrix)


def _as_floats(value: Any, name: str) -> tuple[Matrix, float]:
    """Return a float64 copy, dense or CSR, and the row-sum tolerance that fits the source's precision."""
    if is_sparse(value):
        matrix = sp.csr_array(value, dtype=np.float64, copy=True)
        matrix.sum_duplicates()
        return matrix, rounding_of(value.dtype)
    refuse_masked(value, name)
    try:
        source = np.asarray(without_bfloat16(value))
        if source.dtype.kind not in "biufO":
            raise TypeError(f"entries of type {source.dtype}")
        return as_floats(source), rounding_of(getattr(value, "dtype", source.dtype))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidChain(f"{name} is not a rectangular table of real numbers ({error})") from None


def rounding_of(dtype: Any) -> float:
    """Return how far a row sum may differ from one because of rounding to a type, such as torch.bfloat16."""
    name = str(dtype).rpartition(".")[2]  # "torch.float16"
    return {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}.get(name, 1e-8)


def _stochastic(matrix: Matrix, tolerance: float, name: str, names: Sequence[Hashable] | None) -> Matrix:
    """Check entries and row sums, clip, normalize and freeze, in place."""
    entries = matrix if isinstance(matrix, np.ndarray) else matrix.data
    lowest = entries.min(initial=0.0)  # NaN if any entry is NaN
    if not (lowest >= -NEGATIVE and entries.max(initial=0.0) < np.inf):
        _refuse_entry(matrix, entries, name, names)
    np.maximum(entries, 0.0, out=entries)
    if not isinstance(matrix, np.ndarray):
        matrix.eliminate_zeros()
        matrix.sort_indices()
    _normalize_rows(matrix, tolerance, name, names)
    return freeze(matrix)


def _refuse_entry(matrix: Matrix, entries: Floats, name: str, names: Sequence[Hashable] | None) -> None:
    """Raise an error for the first entry that is negative or not finite."""
    k = int(np.argmax(~np.isfinite(entries) | (entries < -NEGATIVE)))
    if isinstance(matrix, np.ndarray):
        row, column = divmod(k, matrix.shape[1])
    else:
        row, column = int(np.searchsorted(matrix.indptr, k, side="right")) - 1, int(matrix.indices[k])
    entry = entries.flat[k]
    fault = f"is {entry:g}, negative" if np.isfinite(entry) else f"is {entry}, not a finite number"
    where = f"entry ({row}, {column}){_state_of(row, names)}"
    raise InvalidChain(f"{name}: {where} {fault}; probabilities lie between 0 and 1")


def _normalize_rows(matrix: Matrix, tolerance: float, name: str, names: Sequence[Hashable] | None) -> None:
    """Check that every row sums to one and divide by the sums, in place."""
    sums = np.asarray(matrix.sum(axis=1), dtype=np.float64)
    off = np.abs(sums - 1.0)
    if off.max() > tolerance:
        row = int(np.argmax(off > tolerance))
        remedy = "divide the row by its sum or add the missing successors"
        if sums[row] == 0.0:
            remedy = "give the state successors, or a self-loop if it is terminal"
        elif matrix.shape[0] == matrix.shape[1] and np.allclose(matrix.sum(axis=0), 1.0, rtol=0.0, atol=tolerance):
            remedy = "the columns sum to one: pass the transpose"
        raise InvalidChain(
            f"{name}: row {row}{_state_of(row, names)} sums to {sums[row]:.10g}, {_how_far(sums[row])}; {remedy}"
        )
    if off.max() > ROUNDED:
        sums[off <= ROUNDED] = 1.0
        if isinstance(matrix, np.ndarray):
            matrix /= sums[:, None]
        else:
            matrix.data /= np.repeat(sums, np.diff(matrix.indptr))


def _how_far(total: float) -> str:
    return f"{abs(total - 1.0):.3g} {'below' if total < 1.0 else 'above'} one"


def _state_of(row: int, names: Sequence[Hashable] | None) -> str:
    return f" (state {names[row]!r})" if names is not None and row < len(names) else ""


# --- initial distributions and rewards ----------------------------------------------------------------------------


def distribution(value: Any, n: int, *, name: str = "initial") -> Floats:
    """Return a read-only (n,) probability vector."""
    vector = finite_numbers(value, (n,), name=name, per="state")
    if (bad := vector < -NEGATIVE).any():
        k = int(bad.argmax())
        raise InvalidChain(f"{name}[{k}] = {vector[k]:g} is negative; probabilities lie between 0 and 1")
    np.maximum(vector, 0.0, out=vector)
    total = float(vector.sum())
    if abs(total - 1.0) > rounding_of(getattr(value, "dtype", None)):
        raise InvalidChain(f"{name} sums to {total:.10g}, {_how_far(total)}; divide it by its sum")
    if abs(total - 1.0) > ROUNDED:
        vector /= total
    return freeze(vector)


def start_distribution(value: Any, n: int, numbers: Mapping[Hashable, int]) -> Floats:
    """Return the (n,) initial distribution from a state (name or index) or from a distribution.

    A mapping or Series may omit states of probability zero.
    """
    state = find_state(value, n, numbers)
    if state is not None:
        point = np.zeros(n)
        point[state] = 1.0
        return freeze(point)
    value = in_order(value, [list(numbers) or range(n)], "initial", rest=0.0)
    if np.ndim(value) == 0 or (isinstance(value, tuple) and len(value) != n):
        known = "a name, an index" if numbers else "an index"
        raise InvalidChain(f"initial = {value!r} is not a state; give {known} from 0 to {n - 1}, or a distribution")
    return distribution(value, n)


def state_rewards(value: Any, n: int, names: Names | None, vectors: bool = False) -> Floats | None:
    """Return the (n,) rewards from one number per state, or from a mapping or Series keyed by name (else index).

    With ``vectors=True``, (n, d) rewards, one vector per state, are accepted too.
    """
    if value is None:
        return None
    value = in_order(value, [range(n) if names is None else names], "rewards")
    if vectors and isinstance(value, np.ndarray) and value.dtype == object:  # values of a mapping to vectors
        value = value.tolist()
    if vectors and _is_table(value) and len(value[0]):
        shape = (n, len(value[0]))
        return freeze(finite_numbers(value, shape, name="rewards", per="state and feature"))
    return freeze(finite_numbers(value, (n,), name="rewards", per="state"))


def _is_table(value: Any) -> bool:
    """Return whether a sequence is two-dimensional and not empty."""
    ndim = getattr(value, "ndim", None)
    if ndim is not None:
        return bool(ndim == 2 and len(value))
    return isinstance(value, (list, tuple)) and bool(value) and all(np.ndim(row) == 1 for row in value)
