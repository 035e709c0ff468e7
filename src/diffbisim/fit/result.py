"""What a fit returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.chain import MarkovChain
from diffbisim.results import DistanceResult

Array = NDArray[np.float64]


class FitStatus(Enum):
    """How a fit ended; the value is a sentence, with the remedy where one is needed."""

    REACHED = "Reached: the certified distance is within tol of zero."
    STALLED = "Settled: the step rule expects to gain less than tol; try other starting parameters for another minimum."
    STEPS = "Stopped after steps: raise steps, or go on from a checkpoint."
    ESTIMATED = "Finished: all steps are taken; the distance is an estimate, more inner iterations make it better."
    STOPPED = "Stopped by the callback."


@dataclass(frozen=True, eq=False, repr=False)
class FitResult:
    """The best model found, and how it was found.

    Attributes:
        chain: the fitted chain.
        distance: its certified distance to the target, with encoder, decoder and gradient.
        parameters: the best parameters by name.
        model: the module, with these parameters.
        history: one mapping per step (value, lower, upper, level, length, tol, and the inner work so far).
        work: inner work in total: pivots, improvements and sweeps of the solves, and the sweeps of the gradients; of a
            stochastic solver its iterations, and the transitions of the target that were read.
    """

    chain: MarkovChain
    distance: DistanceResult
    parameters: Mapping[str, Array]
    model: Any
    outcome: FitStatus
    history: tuple[Mapping[str, float], ...]
    work: Mapping[str, int] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The distance of the best model."""
        return self.distance.value

    @property
    def steps(self) -> int:
        return len(self.history)

    @property
    def status(self) -> str:
        """How it ended, in a sentence."""
        return self.outcome.value

    def curve(self, name: str = "value") -> Array:
        """One column of the history, (steps,)."""
        return np.array([row[name] for row in self.history])

    def __repr__(self) -> str:
        d = self.distance
        return f"FitResult({d.value:.6g} in [{d.lower:.6g}, {d.upper:.6g}], {self.steps} steps, {self.outcome.name})"
