"""What a compression returns: the small chain, how it stands for the large one, and whether it moves as fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.chain import MarkovChain
from diffbisim.compress.kinetics import implied_timescales, slowest_timescale
from diffbisim.compress.starts import Target, averaged
from diffbisim.io.arrays import entry, is_count, is_number, numbers
from diffbisim.io.npz import chain_arrays
from diffbisim.io.results import fitting_chain, read_built, write_built
from diffbisim.lumping import lump
from diffbisim.problem import Array, lazy
from diffbisim.results import DistanceResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A small chain that is slower than the target by this factor is called frozen.
FROZEN = 10.0

#: What takes fewer steps than this is not slow; slow timescales that differ by more than this factor are remarked on.
SLOW, OFF = 10.0, 1.25

#: Kinds of models.
MODELS = ("nearest", "aggregate", "kinetic")


@dataclass(frozen=True, eq=False, repr=False)
class CompressResult:
    """A small chain, and how it stands for the large one.

    Attributes:
        chain: the small chain, with its rewards unless a table of costs was given.
        distance: its certified distance to the target, with plans, gradient and all.
        history: a row per step of every restart: ``restart``, ``step``, ``value``.
        model: "nearest", "aggregate" or "kinetic"; see :func:`diffbisim.compress`.
        lag: steps of the target that one step of the small chain stands for; the distance is to the target seen so.
        classes: the classes ``(n_X,)`` that the small states are made of, None for the nearest chain.
        residual: what the fit of a kinetic model misses, None for others; see :func:`diffbisim.aggregate`.
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
        """``λ_X(y|x)``, shape ``(n_X, n_states)``: which small state stands for x, in the optimal coupling."""
        return self.distance.encoder

    @property
    def decoder(self) -> Array:
        """``λ_Y(x|y)``, shape ``(n_states, n_X)``."""
        return self.distance.decoder

    @property
    def labels(self) -> NDArray[np.intp]:
        """Hard encoder, shape ``(n_X,)``: the classes where there are such, else that of the optimal coupling."""
        return self.distance.labels if self.classes is None else self.classes

    @property
    def unused(self) -> NDArray[np.intp]:
        """Small states that are never visited: fewer states would have done as well."""
        return self.distance.unvisited[1]

    @lazy
    def used(self) -> int:
        """How many behaviors the small chain shows: its visited states, exactly equivalent ones counted once."""
        visited = np.setdiff1d(np.arange(self.chain.n_states), self.unused)
        P = np.asarray(self.chain.transition)[np.ix_(visited, visited)]  # what is visited leads to what is visited
        seen = [column.tobytes() for column in self.distance.problem.cost.T[visited] + 0.0]
        return lump(MarkovChain(P / P.sum(axis=1, keepdims=True)), key=seen).n_states

    @lazy
    def timescales(self) -> tuple[float, float]:
        """Slowest implied timescales of the target and of the small chain, in steps of the target: -1/log|λ₂|.

        λ₂ is the eigenvalue nearest to 1 besides the leading one, among the states that the start can reach; infinite
        for a chain of several parts that are never left, NaN where the eigenvalues of a large target were not found.
        """
        return self.lag * slowest_timescale(self.distance.problem.x), self.lag * slowest_timescale(self.chain)

    @lazy
    def implied_timescales(self) -> Array:
        """All ``n_states - 1``, of the target (first row) and of the small chain; zero where there are fewer."""
        count = max(self.chain.n_states - 1, 1)
        both = [implied_timescales(chain, count) for chain in (self.distance.problem.x, self.chain)]
        return self.lag * np.array(both)

    @lazy
    def averaged(self) -> MarkovChain:
        """The target averaged over the classes of the hard encoder, weighted by occupancy: another chain of this size.

        It is farther than :attr:`chain` as a rule, but it goes from class to class at the rates of the target.
        """
        X, cost = self.distance.problem.x, self.distance.problem.cost
        learned = self.chain.rewards is not None
        target = Target(X, self.distance.discount, X.rewards if learned else None, None if learned else cost)
        model = averaged(target, self.labels, self.chain.n_states)
        return MarkovChain(model.transition, initial=model.initial, rewards=self.chain.rewards)

    @lazy
    def frozen(self) -> bool:
        """Whether the small chain stays put and the target, slow as it may be, does not.

        That is, its slowest timescale is at least ten times that of the target; or it visits one state of several, at
        a distance that is not zero, of a target with a timescale of at least ten steps.
        """
        if self.chain.n_states == 1 or self.distance.lower <= 0:
            return False
        large, small = self.timescales
        if self._stays:
            return FROZEN <= large < np.inf
        return bool(large < np.inf and small >= FROZEN * max(large, 1.0))

    @property
    def _stays(self) -> bool:
        return self.chain.reachable_states.size == 1

    @property
    def status(self) -> str:
        """How the search ended, in sentences, with what to do where something is wrong."""
        return f"{self.remark} {self.distance.status}".lstrip()

    @lazy
    def remark(self) -> str:
        """What has to be said of a chain that moves otherwise than the target; nothing of others.

        That is: it is frozen, its slowest timescale is off by more than a quarter (of one that takes ten steps or
        more), or it shows fewer behaviors than it has states although the target is slow.
        """
        k, (large, small) = self.chain.n_states, self.timescales
        if k == 1 or self.distance.lower <= 0 or not max(large, small) >= SLOW:
            return ""
        slow = f"the slowest timescale of the target is {_steps(large)}"
        if self.frozen:
            how = "it stays in one state" if self._stays else f"its slowest timescale is {_steps(small)}"
            said = f"The small chain is frozen: {how}, while {slow}."
        elif not large / OFF <= small <= large * OFF and large < np.inf:
            said = f"The slowest timescale of the small chain is {_steps(small)}, that of the target {_steps(large)}."
        elif large >= SLOW and self.used < k:
            said = f"The small chain shows only {self.used} behaviors with its {k} states, while {slow}."
        else:
            return ""
        return f"{said} {self._remedy(large)}"

    def _remedy(self, large: float) -> str:
        """How to get a chain that moves like the target."""
        if self.model == "kinetic":
            return "Take more states, or a longer lag=."
        kinetic = 'model="kinetic", or a longer lag='
        if self.model == "aggregate":
            return f"Averages over classes leave them too fast. If rates matter, use {kinetic}."
        rate, took = self.lag * slowest_timescale(self.averaged), ""
        if large / FROZEN < rate < large * FROZEN:
            took = f", or take result.averaged (slowest timescale {_steps(rate)})"
        return (
            "Of the chains tried it was the nearest: this distance compares two chains step by step, and does not ask "
            f"for equal rates. If rates matter, use {kinetic}{took}."
        )

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle); read it with :func:`diffbisim.load`."""
        meta = {"history": [dict(row) for row in self.history], "model": self.model, "lag": self.lag}
        meta |= {} if self.residual is None else {"residual": self.residual}
        arrays = {f"chain.{name}": value for name, value in chain_arrays(self.chain).items()}
        arrays |= {} if self.classes is None else {"classes": self.classes}
        write_built(path, "compression", meta, self.distance, arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> "CompressResult":
        """The inverse of :meth:`save`, from the arrays of the file; older ones have only the nearest chains."""
        meta, found = read_built(arrays, "compression")
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

    Attributes:
        sizes: numbers of states, ascending.
        results: a :class:`CompressResult` for each.
        recommended: the least size at distance zero; else the elbow, the size farthest below the line from the
            first point of the curve to the last.
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
        """The elbow: distance over size, the recommended size marked."""
        from diffbisim.plot import elbow

        return elbow(self, ax=ax)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{k}: {d:.4g}" for k, d in zip(self.sizes, self.values, strict=True))
        return f"SweepResult({{{pairs}}}, recommended {self.recommended})"


def _steps(time: float) -> str:
    return "infinite" if np.isinf(time) else f"{time:.3g} steps"
