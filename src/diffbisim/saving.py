"""Results on disk: one ``.npz`` of arrays, and JSON for everything else; no pickle.

A distance is its own file. A result that is built on a distance (fit, compression, imitation) has the arrays of that
distance under ``distance.…``, its own beside them, and its JSON under the name of its kind, by which `diffbisim.load`
knows it.
"""

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.data.archive import chain_from_arrays
from diffbisim.data.tables import replacing
from diffbisim.errors import InvalidData
from diffbisim.problem import Coupling, Problem
from diffbisim.results import DistanceResult, Status


@contextmanager
def opened(
    path: str | Path, what: str = "saved result", remedy: str = "write one with result.save(path)"
) -> Iterator[dict[str, Any]]:
    """The arrays in a file; where one is missing or damaged, here or in the block, it is not a ``what``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield {name: archive[name] for name in archive.files}
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidData(f"{path} is not a {what} ({error}); {remedy}") from None


def write_built(
    path: str | Path, kind: str, meta: Mapping[str, Any], distance: DistanceResult, arrays: Mapping[str, Any]
) -> None:
    """Write a result that is built on a distance, all at once or not at all."""
    below = {f"distance.{name}": value for name, value in distance.arrays().items()}
    text = np.frombuffer(json.dumps({f"diffbisim-{kind}": 1, **meta}).encode(), dtype=np.uint8)
    with replacing(Path(path), binary=True) as file:
        np.savez(file, **{**arrays, **below, kind: text})


def read_built(arrays: dict[str, Any], kind: str) -> tuple[dict[str, Any], DistanceResult]:
    """The JSON and the distance of a result that `write_built` wrote."""
    return json.loads(bytes(arrays[kind]).decode()), result_from_arrays(part(arrays, "distance."))


def result_from_arrays(arrays: dict[str, Any]) -> DistanceResult:
    """The inverse of :meth:`diffbisim.DistanceResult.arrays`."""
    meta = json.loads(bytes(arrays["meta"]).decode())
    problem = Problem(
        chain_from_arrays(part(arrays, "x.")), chain_from_arrays(part(arrays, "y.")), arrays["cost"], meta["discount"]
    )
    coupling = _coupling(meta["coupling"], problem, part(arrays, "state."))
    return DistanceResult(
        problem, meta["value"], meta["lower"], meta["upper"], Status[meta["outcome"]], meta["iterations"],
        meta["solver"], coupling, tuple(meta["history"]), meta["work"],
    )  # fmt: skip


def part(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


#: Where the couplings live; a name that is written must be found here.
_COUPLINGS = {
    "ExactCoupling": "exact_coupling",
    "FollowedCoupling": "follow",
    "LinearProgramCoupling": "linear_program",
    "LumpedCoupling": "lumped",
    "SinkhornCoupling": "sinkhorn_coupling",
    "SomcotCoupling": "somcot_coupling",
}


def _coupling(kind: str, problem: Problem, state: dict[str, Any]) -> Coupling:
    """Rebuild the solver's own coupling, so that plans and potentials come back as they were."""
    module = import_module(f"diffbisim.solvers.{_COUPLINGS[kind]}")
    restored: Coupling = getattr(module, kind).restore(problem, state)
    return restored
