"""What a compression returns: the small chain, how it stands for the large one, and whether it moves as fast.

*Timescales.* How slowly does a chain forget where it began? The eigenvalues of a kernel P lie in the unit disk, and one
of them is 1. Let λ₂ be the one nearest to 1 besides it, among the states that can be reached from the start. What is
not yet forgotten then decays like λ₂ᵗ, so

    t₂ = -1 / log |λ₂|     steps,

infinite if the states fall into several groups that the chain never leaves, and zero if λ₂ is not to the right of zero
(nothing slow: it swings back and forth at most).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.compress.starts import Target, aggregate
from diffbisim.io.npz import chain_arrays
from diffbisim.io.results import fitting_chain, read_built, write_built
from diffbisim.lumping import lump
from diffbisim.problem import Array, lazy
from diffbisim.results import DistanceResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A small chain that is slower than the target by this factor is called frozen.
FROZEN = 10.0

#: Up to this size all eigenvalues are computed.
SMALL = 200

#: Up to this size the eigenvalues next to 1 come from a factorization of P - (1 + a little).
DIRECT, SHIFT = 3_000, 1.0 + 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class CompressResult:
    """A small chain, and how it stands for the large one.

    Attributes:
        chain: the small chain, with its rewards unless a table of costs was given.
        distance: its certified distance to the target, with plans, gradient and all.
        history: a row per step of every restart: ``restart``, ``step``, ``value``.
    """

    chain: MarkovChain
    distance: DistanceResult
    history: tuple[Mapping[str, float], ...]

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
        """Hard encoder, shape ``(n_X,)``."""
        return self.distance.labels

    def explore(self, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
        """Write a page to look at in a browser (see :meth:`DistanceResult.explore`)."""
        return self.distance.explore(path, names=names)

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
        """Slowest implied timescales of the target and of the small chain, in steps: -1/log|λ₂|.

        λ₂ is the eigenvalue nearest to 1 besides the leading one, among the states that the start can reach; infinite
        for a chain of several parts that are never left, NaN where the eigenvalues of a large target were not found.
        """
        return slowest_timescale(self.distance.problem.x), slowest_timescale(self.chain)

    @lazy
    def averaged(self) -> MarkovChain:
        """The target averaged over the classes of the hard encoder, weighted by occupancy: another chain of this size.

        It is farther than :attr:`chain` as a rule, but it goes from class to class at the rates of the target.
        """
        X, cost = self.distance.problem.x, self.distance.problem.cost
        learned = self.chain.rewards is not None
        target = Target(X, self.distance.discount, X.rewards if learned else None, None if learned else cost)
        model = aggregate(target, self.labels, self.chain.n_states)
        return MarkovChain(model.transition, initial=model.initial, rewards=self.chain.rewards)

    @lazy
    def frozen(self) -> bool:
        """Whether the small chain stays put and the target, slow as it may be, does not.

        That is, its slowest timescale is at least ten times that of the target; or it visits one state of several, at
        a distance that is not zero, of a target with a timescale of at least ten steps.
        """
        if self.chain.n_states == 1 or self.distance.lower <= 0:
            return False
        if not self._stays and slowest_timescale(self.chain) <= FROZEN:  # then the target need not be asked
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
        (large, small), said = self.timescales, self._remark
        if not self.frozen and large >= FROZEN * max(small, 1.0):
            said = f"The slowest timescale of the small chain is {_steps(small)}, that of the target {_steps(large)}."
        return f"{said} {self.distance.status}".lstrip()

    @lazy
    def _remark(self) -> str:
        """What has to be said of a frozen chain; nothing of others."""
        if not self.frozen:
            return ""
        large, small = self.timescales
        how = "it stays in one state" if self._stays else f"its slowest timescale is {_steps(small)}"
        rate = slowest_timescale(self.averaged)
        keeps = large / FROZEN < rate < large * FROZEN
        remedy = f"take result.averaged (slowest timescale {_steps(rate)})" if keeps else "try a larger n_states"
        return (
            f"The small chain is frozen: {how}, while the slowest timescale of the target is {_steps(large)}. Of the "
            "chains tried it was the nearest: this distance compares two chains step by step, and does not ask for "
            f"equal rates. If rates matter, {remedy}."
        )

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle); read it with :func:`diffbisim.load`."""
        meta = {"history": [dict(row) for row in self.history]}
        chain = {f"chain.{name}": value for name, value in chain_arrays(self.chain).items()}
        write_built(path, "compression", meta, self.distance, chain)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> "CompressResult":
        """The inverse of :meth:`save`, from the arrays of the file."""
        meta, found = read_built(arrays, "compression")
        return cls(fitting_chain(arrays, found), found, tuple(meta["history"]))

    def __repr__(self) -> str:
        d = self.distance
        return (
            f"CompressResult({d.problem.x.n_states} states to {self.chain.n_states} ({self.used} used), "
            f"distance {d.value:.6g} in [{d.lower:.6g}, {d.upper:.6g}])"
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

    def explore(self, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
        """Write a page to look at in a browser, with a slider over the sizes (:meth:`DistanceResult.explore`)."""
        from diffbisim.explore import explore

        return explore(self, path, names=names)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{k}: {d:.4g}" for k, d in zip(self.sizes, self.values, strict=True))
        return f"SweepResult({{{pairs}}}, recommended {self.recommended})"


# --- timescales --------------------------------------------------------------------------------------------


def slowest_timescale(chain: MarkovChain) -> float:
    """``t₂`` in steps; NaN where the eigenvalues could not be found."""
    reachable = chain.reachable_states
    if np.isin([states[0] for states in chain.recurrent_classes], reachable).sum() > 1:
        return np.inf
    P = sparse.csr_array(chain.successors.matrix[reachable][:, reachable])
    if P.shape[0] == 1:
        return 0.0
    λ = _second(P)
    if not λ.real > 0:
        return 0.0 if λ == λ else np.nan
    size = min(abs(λ), 1.0)
    return np.inf if size == 1.0 else float(-1 / np.log(size))


def _second(P: sparse.csr_array) -> complex:
    """The eigenvalue nearest to 1 besides the leading one; NaN where the iteration for large kernels fails."""
    from scipy.linalg import lu_factor, lu_solve
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    n = P.shape[0]
    if n <= SMALL:
        found = np.linalg.eigvals(P.toarray())
    else:
        start = np.random.default_rng(0).random(n)  # ARPACK's own would differ from call to call
        options: Any = {"k": 2, "v0": start, "return_eigenvectors": False}
        try:
            if n <= DIRECT:
                factors = lu_factor(P.toarray() - SHIFT * np.eye(n))
                inverse = LinearOperator((n, n), matvec=lambda v: lu_solve(factors, v), dtype=np.float64)
                found = eigs(P, sigma=SHIFT, OPinv=inverse, **options)
            else:
                found = eigs(P, which="LR", maxiter=1_000, **options)
        except ArpackError:
            return complex(np.nan)
    return complex(found[np.argsort(np.abs(found - 1))[1]])


def _steps(time: float) -> str:
    return "infinite" if np.isinf(time) else f"{time:.3g} steps"
