"""A run on disk, exactly and without pickle: one ``.npz`` of arrays, and JSON for everything else.

States of optimizers and schedulers are nested dictionaries with tensors in them. `pack` takes the tensors out and
leaves their names, so that the rest is JSON (which holds every double exactly); `unpack` puts them back.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffbisim.data.tables import replacing
from diffbisim.errors import InvalidData
from diffbisim.saving import opened


def pack(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """``value`` as JSON, its tensors and arrays moved to ``arrays`` under names that begin with ``name``."""
    if isinstance(value, torch.Tensor):
        arrays[name] = value.detach().cpu().numpy().copy()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"items": [[k, pack(v, f"{name}.{k}", arrays)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [pack(v, f"{name}.{k}", arrays) for k, v in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidData(
        f"a checkpoint cannot hold {name}, a {type(value).__name__}; choose an optimizer with a plain state"
    )


def unpack(value: Any, arrays: dict[str, Any]) -> Any:
    """The inverse of :func:`pack`."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.from_numpy(np.array(arrays[value["tensor"]]))
    if "items" in value:
        return {k: unpack(v, arrays) for k, v in value["items"]}
    if "tuple" in value:
        return tuple(unpack(v, arrays) for v in value["tuple"])
    return [unpack(v, arrays) for v in value["list"]]


def write(path: Path, state: dict[str, Any], arrays: dict[str, Any]) -> None:
    """All at once or not at all: a crash leaves the file that was there."""
    text = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
    with replacing(path, binary=True) as file:
        np.savez(file, checkpoint=text, **arrays)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and arrays of a checkpoint."""
    with opened(path, "checkpoint of a fit", "name another file") as arrays:
        return json.loads(bytes(arrays.pop("checkpoint")).decode()), arrays
