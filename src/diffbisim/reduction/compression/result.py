"""The result of a compression: the small chain, its relation to the large one, and whether it is equally fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.arrays import Array, lazy
from diffbisim.io.arrays import entry, is_count, is_number, numbers, prefixed
from diffbisim.io.npz import chain_arrays
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.lumping import lump
from diffbisim.reduction.compression.kinetics import implied_timescales, slowest_timescale
from diffbisim.reduction.compression.starts import Target, averaged
from diffbisim.results.base import DistanceResult
from diffbisim.results.saving import fitting_chain, read_built, write_built

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A small chain that is slower than the target by at least this factor is called frozen.
FROZEN = 10.0

#: A timescale of at least so many steps is slow; the result warns about slow timescales that differ by more than the
#: second factor.
MIN_SLOW_TIMESCALE, MAX_TIMESCALE_RATIO = 10.0, 1.25

#: Kinds of models.
MODELS = ("nearest", "aggregate", "kinetic")


@dataclass(frozen=True, eq=False, repr=False)
class CompressResult:
    """A small chain and its relation to the large one.

    Attributes
    ----------
    chain : MarkovChain
        The small chain, with its rewards unless a table of costs was given.
    distance : DistanceResult
        Its certified distance to the target, with plans and gradient.
    history : tuple of dict
        One row per step of every restart: ``restart``, ``step``, ``value``.
    model : {"nearest", "aggregate", "kinetic"}
        Kind of model; see :func:`diffbisim.compress`.
    lag : int
        Number of steps of the target per step of the small chain. The distance is to the target observed at this lag.
        (``chain.lag`` is this number times the target's own lag.)
    classes : array of shape (n_X,) or None
        The classes of states that the small states represent; None for the nearest chain.
    residual : float or None
        Relative error of the fit of a kinetic model, None for others; see :func:`diffbisim.aggregate`.
    """

    chain: MarkovChain
    distance: DistanceResult
    history: tuple[Mapping[str, float], ...] = ()
    model: str = "nearest"
    lag: int = 1
    classes: NDArray[np.int64] | None = None
    residual: float | None = None

    @property
    def encoder(self) -> Array:
        """``λ_X(y|x)``, shape ``(n_X, n_states)``, the small state that represents x in the optimal coupling."""
        return self.distance.encoder

    @property
    def decoder(self) -> Array:
        """``λ_Y(x|y)``, shape ``(n_states, n_X)``."""
        return self.distance.decoder

    @property
    def assignment(self) -> NDArray[np.intp]:
        """Hard encoder, shape ``(n_X,)``, by the classes if there are any, otherwise by the optimal coupling."""
        return self.distance.assignment if self.classes is None else self.classes

    def explore(self, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
        """Write an interactive HTML page; see :meth:`DistanceResult.explore`."""
        return self.distance.explore(path, names=names)

    @property
    def unused(self) -> NDArray[np.intp]:
        """Small states that are never visited, so that fewer states would have sufficed."""
        return self.distance.unvisited[1]

    @lazy
    def used(self) -> int:
        """Number of behaviors of the small chain, which are its visited states with equivalent ones counted once."""
        visited = np.setdiff1d(np.arange(self.chain.n_states), self.unused)
        P = np.asarray(self.chain.transition)[np.ix_(visited, visited)]  # visited states lead only to visited states
        seen = [column.tobytes() for column in self.distance.problem.cost.T[visited] + 0.0]
        return lump(MarkovChain(P / P.sum(axis=1, keepdims=True)), key=seen).n_states

    @lazy
    def timescales(self) -> tuple[float, float]:
        """Slowest implied timescales -τ/log|λ₂| of the target and of the small chain, both with the lag τ.

        They are in steps of the target, or in the units of its own lag if that is known (a Markov state model). λ₂
        is the eigenvalue closest to 1 apart from the leading one, among the states that can be reached from the start.
        A timescale is infinite if there are several recurrent classes, and NaN if the eigenvalues of a large
        target were not found.
        """
        large, small = (slowest_timescale(chain) for chain in (self.distance.problem.x, self.chain))
        return self._step * large, self._step * small

    @property
    def _step(self) -> float:
        """Time that one step of the small chain takes."""
        own = self.distance.problem.x.lag
        return self.lag if own is None else own

    @property
    def _in_steps(self) -> tuple[float, float]:
        """The slowest timescales in steps of the target."""
        large, small = self.timescales
        return self.lag * large / self._step, self.lag * small / self._step

    @lazy
    def implied_timescales(self) -> Array:
        """The ``n_states - 1`` slowest timescales of the target (first row) and the small chain, padded with zeros."""
        count = max(self.chain.n_states - 1, 1)
        both = [implied_timescales(chain, count) for chain in (self.distance.problem.x, self.chain)]
        return self._step * np.array(both)

    @lazy
    def averaged(self) -> MarkovChain:
        """Another chain of this size, the target averaged over the classes of the hard encoder by occupancy.

        As a rule it is farther from the target than :attr:`chain`, but it moves between classes at the target's rates.
        """
        problem = self.distance.problem
        target = Target(problem.x, problem.discount, cost=problem.cost)  # the rewards, numbers or vectors, are known
        model = averaged(target, self.assignment, self.chain.n_states)
        return MarkovChain(model.transition, initial=model.initial, rewards=self.chain.rewards, lag=problem.x.lag)

    @lazy
    def frozen(self) -> bool:
        """Whether the small chain does not move, although the target does, however slowly.

        This means that its slowest timescale is at least ten times that of the target; or that it visits only one of
        several states, at a nonzero distance from a target with a timescale of at least ten steps.
        """
        if self.chain.n_states == 1 or self.distance.lower <= 0:
            return False
        large, small = self._in_steps
        if self._stays:
            return FROZEN <= large < np.inf
        return bool(large < np.inf and small >= FROZEN * max(large, 1.0))

    @property
    def _stays(self) -> bool:
        """Whether the small chain visits only one state, or only states that behave alike."""
        return self.used == 1

    @property
    def status(self) -> str:
        """How the search ended, as sentences, with a remedy if something is wrong."""
        return f"{self.remark} {self.distance.status}".lstrip()

    @lazy
    def remark(self) -> str:
        """A warning if the small chain moves differently from the target, otherwise empty.

        This is the case if it is frozen, if its slowest timescale is off by more than a quarter (for timescales of at
        least ten steps), or if it has fewer behaviors than states although the target is slow.
        """
        k, (large, small) = self.chain.n_states, self._in_steps
        if k == 1 or self.distance.lower <= 0 or not max(large, small) >= MIN_SLOW_TIMESCALE:
            return ""
        slow = f"the slowest timescale of the target is {_steps(large)}"
        if self.frozen:
            how = "it stays in one state" if self._stays else f"its slowest timescale is {_steps(small)}"
            said = f"The small chain is frozen: {how}, while {slow}."
        elif not large / MAX_TIMESCALE_RATIO <= small <= large * MAX_TIMESCALE_RATIO and large < np.inf:
            said = f"The slowest timescale of the small chain is {_steps(small)}, that of the target {_steps(large)}."
        elif large >= MIN_SLOW_TIMESCALE and self.used < k:
            said = f"The small chain shows only {self.used} behaviors with its {k} states, while {slow}."
        else:
            return ""
        return f"{said} {self._remedy(large)}"

    def _remedy(self, large: float) -> str:
        """Return advice on how to get a chain that moves like the target."""
        if self.model == "kinetic":
            return "Take more states, or a longer lag=."
        kinetic = 'model="kinetic", or a longer lag='
        if self.model == "aggregate":
            return f"Averages over classes leave them too fast. If rates matter, use {kinetic}."
        rate, took = self.lag * slowest_timescale(self.averaged), ""
        if large / FROZEN < rate < large * FROZEN:
            took = f", or take result.averaged (slowest timescale {_steps(rate)})"
        return (
            "It is the nearest of the chains that were tried: the distance compares two chains step by step and does "
            f"not require equal rates. If rates matter, use {kinetic}{took}."
        )

    def save(self, path: str | Path) -> None:
        """Write the result to an ``.npz`` file (arrays and JSON, no pickle); read it with :func:`diffbisim.load`."""
        meta = {"history": [dict(row) for row in self.history], "model": self.model, "lag": self.lag}
        meta |= {} if self.residual is None else {"residual": self.residual}
        arrays = prefixed("chain.", chain_arrays(self.chain))
        arrays |= {} if self.classes is None else {"classes": self.classes}
        write_built(path, "compression", meta, self.distance, arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], verify: bool = False) -> "CompressResult":
        """Restore a result from the arrays of a file; older files contain only nearest chains."""
        meta, found = read_built(arrays, "compression", verify)
        meta = {"model": "nearest", "lag": 1, **meta}
        model = entry(meta, "model", lambda name: name in MODELS, f"one of {', '.join(MODELS)}")
        lag = entry(meta, "lag", lambda count: is_count(count) and count > 0, "a positive count")
        residual = entry(meta, "residual", is_number, "a number") if "residual" in meta else None
        chain, classes = fitting_chain(arrays, found), None
        if "classes" in arrays:
            n, k = found.problem.shape
            classes = numbers(arrays, "classes", (n,), np.int64, least=0, most=k - 1)
        return cls(chain, found, tuple(meta["history"]), model, lag, classes, residual)

    def __repr__(self) -> str:
        d, (large, small) = self.distance, self.timescales
        kind = "" if self.model == "nearest" else f"{self.model}, "
        lag = "" if self.lag == 1 else f"lag {self.lag}, "
        return (
            f"CompressResult({kind}{lag}{d.problem.x.n_states} states to {self.chain.n_states} ({self.used} used), "
            f"distance {d.value:.6g} in [{d.lower:.6g}, {d.upper:.6g}], slowest timescales {large:.3g} and {small:.3g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """Compressions to several sizes.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of states, ascending.
    results : tuple of CompressResult
        One result for each size.
    recommended : int
        The smallest size at distance zero. If there is none, the elbow: the size farthest below the line from the first
        to the last point of the curve.
    """

    sizes: tuple[int, ...]
    results: tuple[CompressResult, ...]
    recommended: int

    @property
    def values(self) -> Array:
        """Distances, shape ``(len(sizes),)``."""
        return np.array([r.distance.value for r in self.results])

    @property
    def best(self) -> CompressResult:
        """The compression to the recommended size."""
        return self.results[self.sizes.index(self.recommended)]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the distance over the size, with the recommended size marked."""
        from diffbisim.plot import elbow

        return elbow(self, ax=ax)

    def explore(self, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
        """Write an interactive HTML page with a slider over the sizes; see :meth:`DistanceResult.explore`."""
        from diffbisim.results.page import explore

        return explore(self, path, names=names)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{k}: {d:.4g}" for k, d in zip(self.sizes, self.values, strict=True))
        return f"SweepResult({{{pairs}}}, recommended {self.recommended})"


def _steps(time: float) -> str:
    """Format a timescale."""
    return "infinite" if np.isinf(time) else f"{time:.3g} steps"
