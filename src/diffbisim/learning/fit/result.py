"""The result of a fit, and how it is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.errors import InvalidData
from diffbisim.io.arrays import entry, is_row, part, prefixed
from diffbisim.io.npz import chain_arrays
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.base import DistanceResult, HasStatus, Status
from diffbisim.results.saving import fitting_chain, outcome_of, read_built, write_built

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class FitResult(HasStatus):
    """The best model found by :func:`diffbisim.fit`.

    Attributes
    ----------
    chain : MarkovChain
        The fitted chain.
    distance : DistanceResult
        Its distance to the target, with bounds, encoder, decoder and gradient.
    parameters : dict of str to array
        The best parameters by name.
    model : torch.nn.Module or None
        The module with these parameters; None in a result loaded from a file.
    outcome : Status
        Why the run ended; ``status`` is the sentence that explains it.
    history : tuple of dict
        One row per step: value, lower, upper, level, length, tol and the cumulative inner work.
    work : dict of str to int
        Total inner work: pivots, improvements and sweeps of the solves and sweeps of the gradients; for a stochastic
        solver, its iterations and the number of target transitions read.
    """

    chain: MarkovChain
    distance: DistanceResult
    parameters: Mapping[str, Array]
    model: Any
    outcome: Status
    history: tuple[Mapping[str, float], ...]
    work: Mapping[str, int] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The distance of the best model."""
        return self.distance.value

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.history)

    def curve(self, name: str = "value") -> Array:
        """Return one column of the history as an array of shape (iterations,)."""
        return np.array([row[name] for row in self.history])

    def save(self, path: str | Path) -> None:
        """Write everything except the module to an ``.npz`` file (arrays and JSON, no pickle) for `diffbisim.load`."""
        meta = {"outcome": self.outcome.name, "history": [dict(row) for row in self.history], "work": dict(self.work)}
        arrays = prefixed("chain.", chain_arrays(self.chain)) | prefixed("parameters.", self.parameters)
        write_built(path, "fit", meta, self.distance, arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], verify: bool = False) -> "FitResult":
        """Rebuild a saved result from the arrays of its file; ``model`` is None. See `diffbisim.load` for `verify`."""
        meta, found = read_built(arrays, "fit", verify)
        chain, parameters = fitting_chain(arrays, found), part(arrays, "parameters.")
        for name, values in parameters.items():
            if not np.isfinite(values).all():
                raise InvalidData(f"array 'parameters.{name}' has entries that are not finite; the file is damaged")
        outcome = outcome_of(meta, found)
        work = entry(meta, "work", is_row, "counts by name")
        return cls(chain, found, parameters, None, outcome, tuple(meta["history"]), work)

    def __repr__(self) -> str:
        d, ended = self.distance, f"{self.iterations} iterations, {self.outcome.name}"
        return f"FitResult({d.value:.6g} in [{d.lower:.6g}, {d.upper:.6g}], {ended})"
