"""How many states are enough? The distance of the best small chain for several sizes, and its elbow."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.errors import InvalidArgument
from diffbisim.fit.compress import CompressResult, compress
from diffbisim.problem import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A distance below this share of the largest cost is as good as zero.
ZERO = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """Compressions to several sizes.

    Attributes:
        sizes: numbers of states, ascending.
        results: a :class:`~diffbisim.fit.compress.CompressResult` for each.
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


def compress_sweep(
    target: MarkovChain | Transitions,
    sizes: Iterable[int] = range(2, 11),
    discount: float = 0.95,
    *,
    rewards: Any = "learn",
    time_limit: float | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> SweepResult:
    """Compress to every size in ``sizes`` and recommend one.

    Parameters
    ----------
    target, discount : as for :func:`diffbisim.compress`
    sizes : numbers of states
    rewards : as for :func:`diffbisim.compress`, or a function of the size that gives them
    time_limit : seconds for all sizes together, shared out in proportion to them
    checkpoint : a file, of which each size has its own: ``run-5.npz`` for ``run.npz`` and five states; see
        :func:`diffbisim.compress`
    options : everything else that :func:`diffbisim.compress` takes, for every size alike

    With learned rewards each search also starts from the next smaller chain with a state added, so that the curve
    never rises.

    Examples
    --------
    >>> from diffbisim.data.examples import block_chain
    >>> compress_sweep(block_chain(3, 2), sizes=(2, 3, 4), restarts=2).recommended
    3
    """
    ordered = sorted(set(sizes)) if isinstance(sizes, Iterable) else []
    if not ordered:
        raise InvalidArgument(f"sizes is {sizes!r}; give numbers of states, e.g. sizes=range(2, 11)")
    learned = isinstance(rewards, str) and rewards == "learn" and isinstance(options.get("cost", "reward"), str)
    results: list[CompressResult] = []
    began = time.monotonic()
    for n, k in enumerate(ordered):
        more = dict(options)
        if learned and results:
            more["starts"] = [_padded(results[-1].chain, k), *options.get("starts", ())]
        if time_limit is not None:
            left = max(0.0, time_limit - (time.monotonic() - began))
            more["time_limit"] = left * k / sum(ordered[n:])
        if checkpoint is not None:
            path = Path(checkpoint)
            more["checkpoint"] = path.with_name(f"{path.stem}-{k}{path.suffix}")
        given = rewards(k) if callable(rewards) else rewards
        results.append(compress(target, k, discount, rewards=given, **more))
    scale = max(r.distance.problem.scale for r in results)
    values = [r.distance.value for r in results]
    return SweepResult(tuple(ordered), tuple(results), _elbow(ordered, values, ZERO * scale))


def _padded(chain: MarkovChain, k: int) -> MarkovChain:
    """The same chain with copies of its first state that nothing leads to."""
    n, rewards = chain.n_states, np.asarray(chain.rewards)
    P = np.zeros((k, k))
    P[:n, :n] = chain.transition  # type: ignore[assignment]  # dense: compress made it
    P[n:] = P[0]
    initial = np.concatenate([chain.initial, np.zeros(k - n)])
    return MarkovChain(P, initial=initial, rewards=np.concatenate([rewards, np.full(k - n, rewards[0])]))


def _elbow(sizes: list[int], values: list[float], zero: float) -> int:
    for k, value in zip(sizes, values, strict=True):
        if value <= zero:
            return k
    if len(sizes) < 3:
        return sizes[int(np.argmin(values))]
    across = (np.array(sizes) - sizes[0]) / (sizes[-1] - sizes[0])
    below = values[0] + across * (values[-1] - values[0]) - np.array(values)
    return sizes[int(below.argmax())]
