"""Reading back what :meth:`diffbisim.DistanceResult.save` wrote."""

import json
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.data.archive import chain_from_arrays
from diffbisim.errors import InvalidData
from diffbisim.problem import Coupling, Problem
from diffbisim.results import DistanceResult, Status


def load(path: str | Path) -> DistanceResult:
    """The result in a file: every number, array and lazy attribute as it was, also as ``warm=`` of a new solve."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return result_from_arrays(arrays)
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidData(f"{path} is not a saved result ({error}); write one with result.save(path)") from None


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
