"""Chains in .npz archives: everything, exactly, and without pickle.

transition              (n, n), or data, indices, indptr of its CSR form
initial, rewards        (n,)
labels                  JSON text in UTF-8 bytes; floats and tuples, which JSON lacks, carry a tag:
                        1.5 is {"float": "0x1.8p+0"} and (1, "a") is {"tuple": [1, "a"]}
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain
from diffbisim.data.tables import replacing
from diffbisim.errors import InvalidChain, InvalidData

VERSION = 1
CSR = ("data", "indices", "indptr")


def chain_arrays(chain: MarkovChain) -> dict[str, Any]:
    """Everything a chain is, as arrays; label types other than str, int, float, bool, None and tuples are refused."""
    P = chain.transition
    parts = {"transition": P} if isinstance(P, np.ndarray) else {k: getattr(P, k) for k in CSR}
    parts["initial"] = chain.initial
    if chain.rewards is not None:
        parts["rewards"] = chain.rewards
    if chain.labels is not None:
        parts["labels"] = label_array(chain.labels)
    return parts


def label_array(labels: Sequence[Hashable]) -> Any:
    """Labels as bytes."""
    return np.frombuffer(json.dumps([_tagged(label) for label in labels]).encode(), dtype=np.uint8)


def labels_from_array(array: Any) -> list[Any]:
    """The inverse."""
    return [_untagged(item) for item in json.loads(bytes(array).decode())]


def chain_from_arrays(parts: dict[str, Any], *, initial: Any = None, rewards: Any = None) -> MarkovChain:
    """The inverse; ``initial`` and ``rewards`` override what is stored."""
    return MarkovChain(
        _matrix(parts),
        initial=parts["initial"] if initial is None else initial,
        rewards=parts.get("rewards") if rewards is None else rewards,
        labels=labels_from_array(parts["labels"]) if "labels" in parts else None,
    )


def write_npz(chain: MarkovChain, path: str | Path) -> None:
    """A chain as an archive, exactly."""
    with replacing(Path(path), binary=True) as file:
        np.savez(file, diffbisim=np.array(VERSION), **chain_arrays(chain))


def read_npz(path: str | Path, *, initial: Any = None, rewards: Any = None) -> MarkovChain:
    """The chain in an archive; ``initial`` and ``rewards`` override what is stored."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            parts = {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InvalidData(f"{path} is not a chain archive ({error}); write it with write_chain") from None
    if parts.get("diffbisim", VERSION) > VERSION:
        raise InvalidData(f"{path} was written by a newer diffbisim; update diffbisim to read it")
    try:
        return chain_from_arrays(parts, initial=initial, rewards=rewards)
    except KeyError as error:
        raise InvalidData(f"{path} has no array {error}; write it with write_chain") from None
    except InvalidChain as error:
        raise InvalidData(f"{path}: {error}") from None
    except (ValueError, TypeError) as error:
        raise InvalidData(f"{path} is damaged ({error}); write it anew with write_chain") from None


def _matrix(parts: dict[str, Any]) -> Any:
    if "transition" in parts:
        return parts["transition"]
    n = len(parts["indptr"]) - 1
    P = sp.csr_array(tuple(parts[name] for name in CSR), shape=(n, n))
    P.check_format(full_check=True)
    return P


def _tagged(label: Hashable) -> Any:
    """A label as JSON: floats by their bits, tuples by their items, the rest as it is."""
    if label is None or isinstance(label, (str, bool, int)):
        return label
    if isinstance(label, float):
        return {"float": label.hex()}
    if type(label) is tuple:
        return {"tuple": [_tagged(item) for item in label]}
    raise InvalidData(
        f"label {label!r} is a {type(label).__name__}; .npz files hold labels of str, int, float, bool, None "
        "and tuples of these: give the chain such labels first"
    )


def _untagged(item: Any) -> Any:
    if isinstance(item, dict):
        if "float" in item:
            return float.fromhex(item["float"])
        return tuple(_untagged(part) for part in item["tuple"])
    return item
