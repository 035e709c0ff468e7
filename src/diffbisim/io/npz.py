"""Exact storage of chains, MDPs and timed chains in .npz archives, without pickle.

transition              (n, n), or data, indices, indptr of its CSR form
initial, rewards        (n,); rewards also (n, d)
lag, hidden             numbers, if the lag is known, and if the states are those of an HMM
names                   JSON as UTF-8 bytes; floats and tuples, which JSON cannot represent exactly, are tagged:
                        1.5 is {"float": "0x1.8p+0"} and (1, "a") is {"tuple": [1, "a"]}; older files call
                        the array `labels`, and are read too

A timed chain has ``sizes``, the numbers of states at each time, and the concatenated rows of all its kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import check_lag
from diffbisim.common.errors import InvalidData, warn_of_input
from diffbisim.common.names import few
from diffbisim.io import limits
from diffbisim.io.arrays import json_array, numbers, read_archive, read_json
from diffbisim.io.files import refusing, replacing
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP
from diffbisim.processes.timed import TimedChain

VERSION = 1
CSR = ("data", "indices", "indptr")


def chain_arrays(chain: MarkovChain) -> dict[str, Any]:
    """Return a chain as arrays; names must be str, int, float, bool, None or tuples of these."""
    P = chain.transition
    parts = {"transition": P} if isinstance(P, np.ndarray) else {k: getattr(P, k) for k in CSR}
    parts["initial"] = chain.initial
    if chain.rewards is not None:
        parts["rewards"] = chain.rewards
    if chain.names is not None:
        parts["names"] = name_array(chain.names)
    return parts | _marks(chain)


def _marks(chain: MarkovChain | TimedChain) -> dict[str, Any]:
    """Return the lag and the mark of hidden states as arrays, where they are set."""
    lag = {} if chain.lag is None else {"lag": np.array(chain.lag)}
    return lag | ({"hidden": np.array(True)} if chain.hidden else {})


def _marks_from_arrays(parts: dict[str, Any]) -> dict[str, Any]:
    """Read the lag and the mark of hidden states."""
    lag = parts.get("lag")
    return {
        "lag": lag.item() if lag is not None and lag.size == 1 else lag,
        "hidden": bool(numbers(parts, "hidden", (), np.bool_)) if "hidden" in parts else False,
    }


def name_array(names: Sequence[Hashable]) -> Any:
    """Return names as an array of JSON bytes."""
    return json_array([_tagged(name) for name in names])


def names_from_array(arrays: dict[str, Any], name: str) -> list[Any] | None:
    """Read names from the array of this name; None if there is none."""
    if name not in arrays:
        return None
    items = read_json(arrays, name)
    if not isinstance(items, list):
        raise InvalidData(f"{name} must be a list of names")
    return [_untagged(item) for item in items]


def _state_names(parts: dict[str, Any]) -> list[Any] | None:
    """Read the names of states; older files have them as ``labels``."""
    return names_from_array(parts, "names" if "names" in parts else "labels")


def chain_from_arrays(parts: dict[str, Any], *, initial: Any = None, rewards: Any = None) -> MarkovChain:
    """Create a chain from arrays; ``initial`` and ``rewards`` override the stored ones."""
    return MarkovChain(
        _matrix(parts),
        initial=_required(parts, "initial") if initial is None else initial,
        rewards=parts.get("rewards") if rewards is None else rewards,
        names=_state_names(parts),
        **_marks_from_arrays(parts),
    )


def write_npz(chain: MarkovChain | TimedChain, path: str | Path) -> None:
    """Write a chain as an archive."""
    arrays = timed_arrays(chain) if isinstance(chain, TimedChain) else chain_arrays(chain)
    with replacing(Path(path), binary=True) as file:
        np.savez(file, diffbisim=np.array(VERSION), **arrays)


ARCHIVE = "chain archive", "write it with write_chain"
KNOWN = {"transition", *CSR, "initial", "rewards", "names", "labels", "lag", "hidden", "diffbisim"}


def read_npz(path: str | Path, *, initial: Any = None, rewards: Any = None) -> MarkovChain:
    """Read the chain in an archive; ``initial`` and ``rewards`` override the stored ones."""
    parts = read_archive(path, *ARCHIVE)
    with refusing(path, *ARCHIVE):
        check_version(parts)
        if "sizes" in parts:
            raise InvalidData("it contains a TimedChain; read it with diffbisim.load(path)")
        return _remarked(path, parts, chain_from_arrays(parts, initial=initial, rewards=rewards))


def _remarked(path: str | Path, parts: dict[str, Any], chain: MarkovChain) -> MarkovChain:
    """Return the chain, with a warning of arrays in its file that are not part of a chain."""
    if unknown := sorted(parts.keys() - KNOWN):
        warn_of_input(f"{path}: its arrays {few(unknown)} are not part of a chain, and not used; docs/data-formats.md "
                      "has the names of arrays")  # fmt: skip
    return chain


def read_process(path: str | Path) -> MarkovChain | TimedChain:
    """Read the chain or timed chain in an archive."""
    parts = read_archive(path, *ARCHIVE)
    with refusing(path, *ARCHIVE):
        check_version(parts)
        found = process_from_arrays(parts)
        return found if isinstance(found, TimedChain) else _remarked(path, parts, found)


def check_version(parts: dict[str, Any]) -> None:
    """Raise for files written by a newer version."""
    version = parts.get("diffbisim", np.array(VERSION))
    if version.shape != () or version.dtype.kind not in "iu":
        raise InvalidData(f"the version of the format is {version!r}, not a number")
    if version > VERSION:
        raise InvalidData("it was written by a newer diffbisim; update diffbisim to read it")


def _matrix(parts: dict[str, Any], columns: int | None = None) -> Any:
    """Return the stored matrix, which is square or has the given number of columns."""
    if "transition" in parts or "indptr" not in parts:
        return _required(parts, "transition")
    data, indices, indptr = (_required(parts, name) for name in CSR)
    for name, array, kinds in (("data", data, "biuf"), ("indices", indices, "iu"), ("indptr", indptr, "iu")):
        if array.ndim != 1 or array.dtype.kind not in kinds:
            raise InvalidData(f"array {name!r} is {array.dtype} of shape {array.shape}; not part of a CSR matrix")
    n = indptr.size - 1
    if not 1 <= n <= limits.STATES:
        raise InvalidData(f"array 'indptr' is for {n:,} states; expected 1 to {limits.STATES:,}")
    k = n if columns is None else columns
    indices, indptr = indices.astype(np.int64), indptr.astype(np.int64)
    ends = indptr[0] == 0 and indptr[-1] == indices.size == data.size
    if not ends or (indptr[1:] < indptr[:-1]).any() or ((indices < 0) | (indices >= k)).any():
        raise InvalidData("data, indices and indptr are not a CSR matrix: lengths or indices do not fit")
    return sp.csr_array((data, indices, indptr), shape=(n, k))


def _required(parts: dict[str, Any], name: str) -> Any:
    if name not in parts:
        raise InvalidData(f"it has no array {name!r}; is this the right file?")
    return parts[name]


def _tagged(name: Hashable) -> Any:
    """Convert a name to JSON, with tags for floats and tuples."""
    if name is None or isinstance(name, (str, bool, int)):
        return name
    if isinstance(name, float):
        return {"float": name.hex()}
    if type(name) is tuple:
        return {"tuple": [_tagged(item) for item in name]}
    raise InvalidData(
        f"name {name!r} is a {type(name).__name__}; .npz files support names of type str, int, float, bool, None "
        "and tuples of these"
    )


def _untagged(item: Any) -> Any:
    if item is None or isinstance(item, (str, bool, int)):
        return item
    if isinstance(item, dict) and len(item) == 1:
        if isinstance(text := item.get("float"), str):
            try:
                return float.fromhex(text)
            except (ValueError, OverflowError):
                raise InvalidData(f"name {text[:40]!r} is not a hexadecimal number") from None
        if isinstance(parts := item.get("tuple"), list):
            return tuple(_untagged(part) for part in parts)
    raise InvalidData("a name is not a string, a number or a tuple of these")


# --- MDPs -------------------------------------------------------------------------------------------------------


def mdp_arrays(mdp: MDP) -> dict[str, Any]:
    """Return an MDP as arrays: ``transition (n_actions, n, n)``, or the CSR form of the stacked kernels."""
    if mdp.is_sparse:
        s = mdp._stacked
        parts: dict[str, Any] = dict(zip(CSR, (s.probabilities, s.indices, s.indptr), strict=True))
    else:
        parts = {"transition": np.stack([np.asarray(P) for P in mdp.transition])}
    parts["initial"] = mdp.initial
    if mdp.rewards is not None:
        parts["rewards"] = mdp.rewards
    for name, names in (("names", mdp.names), ("actions", mdp.actions)):
        if names is not None:
            parts[name] = name_array(names)
    return parts


def mdp_from_arrays(parts: dict[str, Any]) -> MDP:
    """Create an MDP from arrays."""
    initial = _required(parts, "initial")
    return MDP(
        _kernels(parts, initial.size),
        initial=initial,
        rewards=parts.get("rewards"),
        names=_state_names(parts),
        actions=names_from_array(parts, "actions"),
    )


def _kernels(parts: dict[str, Any], n: int) -> Any:
    if "transition" in parts or "indptr" not in parts:
        return _required(parts, "transition")
    stacked = _matrix(parts, columns=n)
    if n < 1 or stacked.shape[0] % n:
        raise InvalidData(f"array 'indptr' has {stacked.shape[0]:,} rows, not a multiple of {n:,} states")
    return [stacked[k : k + n] for k in range(0, stacked.shape[0], n)]


# --- timed chains -------------------------------------------------------------------------------------------------


def timed_arrays(chain: TimedChain) -> dict[str, Any]:
    """Return a timed chain as arrays: the concatenated rows of all kernels, and of all rewards."""
    rows = chain.successors
    arrays: dict[str, Any] = {
        "sizes": np.array(chain.n_states),
        "sparse": np.array([not isinstance(P, np.ndarray) for P in chain.transitions]),
        "counts": np.concatenate([np.diff(s.indptr) for s in rows]),
        "indices": np.concatenate([s.indices for s in rows]), "data": np.concatenate([s.probabilities for s in rows]),
        "initial": chain.initial,
    }  # fmt: skip
    if chain.rewards is not None:
        vectors = all(r.ndim == 1 for r in chain.rewards)
        arrays["rewards"] = np.concatenate([r if vectors else r.reshape(len(r), -1) for r in chain.rewards])
    if chain.names is not None:
        arrays["names"] = name_array([name for part in chain.names for name in part])
    return arrays | _marks(chain)


def timed_from_arrays(parts: dict[str, Any]) -> TimedChain:
    """Create a timed chain from arrays, which are validated before they are used as indices."""
    times = _required(parts, "sizes").size
    sizes = numbers(parts, "sizes", (times,), np.int64, least=1, most=limits.STATES)
    counts = numbers(parts, "counts", (int(sizes[:-1].sum()),), np.int64, least=0)
    indices = numbers(parts, "indices", (int(counts.sum()),), np.int64, least=0)
    data = numbers(parts, "data", indices.shape, least=0.0)
    is_sparse = numbers(parts, "sparse", (max(times - 1, 0),), np.bool_)
    if 8 * int((sizes[:-1] * sizes[1:])[~is_sparse].sum()) > limits.INFLATED + data.nbytes:
        raise InvalidData("array 'sizes' implies dense kernels that are far larger than the file")
    rows, at, kernels = np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([[0], np.cumsum(counts)]), []
    for t in range(times - 1):
        here = at[rows[t] : rows[t + 1] + 1]
        entries = slice(here[0], here[-1])
        if indices[entries].max(initial=0) >= sizes[t + 1]:
            raise InvalidData(f"array 'indices' refers to a state that does not exist at time {t + 1}")
        shape = int(sizes[t]), int(sizes[t + 1])
        matrix = sp.csr_array((data[entries], indices[entries], here - here[0]), shape=shape)
        kernels.append(matrix if is_sparse[t] else matrix.toarray())
    cuts = rows[1:-1]
    rewards = np.split(parts["rewards"], cuts) if "rewards" in parts else None
    names = _state_names(parts)
    if names is not None and len(names) != rows[-1]:
        raise InvalidData(f"names has {len(names):,} entries for {rows[-1]:,} states")
    by_time = None if names is None else [names[rows[t] : rows[t + 1]] for t in range(times)]
    chain = TimedChain(kernels, initial=_required(parts, "initial"), rewards=rewards, names=by_time)
    marks = _marks_from_arrays(parts)
    chain._set(lag=check_lag(marks["lag"]), hidden=marks["hidden"])
    return chain


def process_from_arrays(parts: dict[str, Any]) -> MarkovChain | TimedChain:
    """Create a chain or a timed chain from arrays."""
    return timed_from_arrays(parts) if "sizes" in parts else chain_from_arrays(parts)
