"""Coverage of the 95 % interval of ``diffbisim.estimate`` for processes known through trajectories.

    python benchmarks/long/continuous_coverage.py [--datasets 200] [--replicates 80] [--processes 2] [--only 1 10]
    python benchmarks/long/continuous_coverage.py --harsh [--datasets 60] [--replicates 40] [--first-seed 0]

The cases are those of benchmarks/continuous.py and equal processes, with 2,000 steps each. At distance zero, it counts
how often the interval contains zero. A dataset takes about 1.5 seconds of processor time on the line, three in the
plane.

With ``--harsh`` they are transients (processes that start far from where they stay), growth, starts that both sides
share, few trajectories, and equal processes of these kinds. The truth is a closed form, or an interval where only
bounds are known; the interval of the estimate then has to intersect it. "raised" is how often the marginal laws raised
the lower end or the value, "no upper" how often they contradicted the cells, and "refused" how often the data were
refused, which is not counted in the coverage.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from continuous import CASES, DISCOUNT, EQUAL, turn

import diffbisim as db
from diffbisim.processes.gaussian import LinearGaussian, euclidean_bounds, linear_gaussian_distance
from diffbisim.statistics.paths import IntervalBasis, estimate_paths

ALL = [*CASES, *EQUAL]
OBSERVED = (1 - DISCOUNT) * DISCOUNT ** np.arange(21)
Pair = tuple[LinearGaussian, LinearGaussian]


@dataclass(frozen=True)
class Scene:
    """Two processes, how they are observed, and how they are compared."""

    name: str
    pair: Pair
    cost: str = "euclidean"
    n: int = 100  # trajectories of each side
    shared: bool = False  # both sides start at the same points
    options: dict[str, Any] = field(default_factory=dict)

    def sample(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return 21 points of n trajectories of each process."""
        if not self.shared:
            return [side.sample(self.n, 20, rng) for side in self.pair]
        starts = self.pair[0].sample(self.n, 0, rng)[:, 0]
        return [np.stack([began(side, s).sample(1, 20, rng)[0] for s in starts]) for side in self.pair]

    def truth(self, data: list[np.ndarray]) -> tuple[float, float]:
        """Return bounds of the distance; equal if there is a closed form."""
        weights = self.options.get("weights")
        if self.n < 20:  # both sides start like all trajectories together: on the line, the mean over these points
            starts = np.concatenate([part[:, 0] for part in data])
            d = float(np.mean([exact(tuple(began(side, s) for side in self.pair), self.cost, weights) for s in starts]))
            return d, d
        if self.cost == "sqeuclidean" or self.pair[0].dimension == 1:
            return (exact(self.pair, self.cost, weights),) * 2
        return euclidean_bounds(*self.pair, DISCOUNT, weights)


def began(process: LinearGaussian, point: np.ndarray) -> LinearGaussian:
    return LinearGaussian(process.slope, process.noise, shift=process.shift, start=point)


def exact(pair: Any, cost: str, weights: Any) -> float:
    return max(0.0, linear_gaussian_distance(*pair, DISCOUNT, cost, weights=weights))


def process(slope: Any, noise: float, d: int = 1, start: float = 0.0, spread: float = 0.5) -> LinearGaussian:
    table = slope * np.eye(d) if np.ndim(slope) == 0 else slope
    return db.LinearGaussian(table, noise * np.eye(d), start=np.full(d, start), spread=spread * np.eye(d))


TIMES = {"weights": OBSERVED}
HARSH = [
    Scene("transient 1-D, .9 | .8 from 5", (process(0.9, 0.3, start=5.0), process(0.8, 0.3, start=5.0))),
    Scene("transient 1-D, equal, from 5", (process(0.9, 0.3, start=5.0),) * 2),
    Scene("transient 2-D, from 3 | from 0", (process(0.9, 0.3, 2, 3.0), process(0.9, 0.3, 2))),
    Scene("transient 2-D, from 1 | from 0", (process(0.9, 0.3, 2, 1.0), process(0.9, 0.3, 2))),
    Scene("transient 2-D, turns, from 3", (process(turn(0.5, 0.9), 0.4, 2, 3.0), process(turn(0.3, 0.8), 0.4, 2, 3.0)),
          "sqeuclidean"),
    Scene("2-D, noise .3 | .5, from a point", (process(0.8, 0.3, 2, spread=0.0), process(0.8, 0.5, 2, spread=0.0))),
    Scene("4-D, noise .3 | .5, from a point", (process(0.8, 0.3, 4, spread=0.0), process(0.8, 0.5, 4, spread=0.0))),
    Scene("4-D, .95 | .8", (process(0.95, 0.3, 4), process(0.8, 0.3, 4))),
    Scene("4-D, .95 | .8 from 3", (process(0.95, 0.3, 4, 3.0), process(0.8, 0.3, 4, 3.0))),
    Scene("4-D, equal, from 3", (process(0.9, 0.3, 4, 3.0),) * 2),
    Scene("growth 1-D, .9 | 1.1", (process(0.9, 0.3), process(1.1, 0.3)), options=TIMES),
    Scene("growth 1-D, 1.1 | 1.1, from 1 | 2", (process(1.1, 0.3, start=1.0), process(1.1, 0.3, start=2.0)),
          options=TIMES),
    Scene("growth 2-D, 1 | 1.05", (process(1.0, 0.3, 2), process(1.05, 0.3, 2)), "sqeuclidean", options=TIMES),
    Scene("growth 2-D, 1.05, from 0 | 1", (process(1.05, 0.3, 2), process(1.05, 0.3, 2, 1.0)), options=TIMES),
    Scene("growth 2-D, .9 | 1.1", (process(0.9, 0.3, 2), process(1.1, 0.3, 2)), options=TIMES),
    Scene("growth 2-D, .9 | 1.3, observed times", (process(0.9, 0.3, 2), process(1.3, 0.3, 2)), options=TIMES),
    Scene("growth 2-D, .9 | 1.3", (process(0.9, 0.3, 2), process(1.3, 0.3, 2))),
    Scene("shared starts 1-D, .8 | .7", (process(0.8, 0.5, spread=1.0), process(0.7, 0.5, spread=1.0)), n=40,
          shared=True),
    Scene("shared starts 1-D, .9 | .8, wide", (process(0.9, 0.2, spread=3.0), process(0.8, 0.2, spread=3.0)), n=40,
          shared=True),
    Scene("shared starts 1-D, equal", (process(0.8, 0.5, spread=1.0),) * 2, n=40, shared=True),
    Scene("shared starts 2-D, noise .4 | .25", (process(turn(0.5, 0.9), 0.4, 2, spread=1.0),
          process(turn(0.5, 0.9), 0.25, 2, spread=1.0)), "sqeuclidean", n=40, shared=True),
    Scene("12 trajectories, .8 | .5", (process(0.8, 0.6), process(0.5, 0.4)), n=12),
    Scene("12 trajectories, equal", (process(0.8, 0.6, spread=2.0),) * 2, n=12),
    Scene("12 shared starts, .8 | .5", (process(0.8, 0.6, spread=2.0), process(0.5, 0.4, spread=2.0)), n=12,
          shared=True),
]  # fmt: skip


def one(job: tuple[int, int, int]) -> tuple[float, float, float]:
    number, seed, replicates = job
    X, Y = ALL[number].sample(2000, 90_000 + seed)
    e = estimate_paths(X, Y, ALL[number].cost, DISCOUNT, rng=seed, replicates=replicates)
    return e.value, e.lower, e.upper


def harsh_one(job: tuple[int, int, int]) -> tuple[float, ...]:
    """Return value, lower, upper, bounds of the truth, and the number of the basis (-1 if refused)."""
    number, seed, replicates = job
    scene = HARSH[number]
    data = scene.sample(np.random.default_rng([number, seed]))
    low, high = scene.truth(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            e = estimate_paths(*data, scene.cost, DISCOUNT, rng=seed, replicates=replicates, **scene.options)
        except db.InvalidData:
            return np.nan, np.nan, np.nan, low, high, -1
    return e.value, e.lower, e.upper, low, high, list(IntervalBasis).index(e.basis)


def harsh(settings: argparse.Namespace, run: Callable[..., Any]) -> None:
    head = f"{'coverage':>9s} {'too low':>8s} {'too high':>9s} {'width':>7s} {'raised':>7s} {'no upper':>9s}"
    print(f"{'':38s} {'cost':12s} {'exact':>14s} {'mean':>7s} {head} {'refused':>8s}")
    for number in settings.only or range(len(HARSH)):
        jobs = [(number, settings.first_seed + k, settings.replicates) for k in range(settings.datasets)]
        table = np.array(list(run(harsh_one, jobs)))
        refused, scene = (table[:, 5] < 0).mean(), HARSH[number]
        value, lower, upper, d_low, d_high, basis = table[table[:, 5] >= 0].T
        exact = f"{table[:, 3].mean():.4f}" + (f"-{table[:, 4].mean():.4f}" if (d_low < d_high - 1e-6).any() else "")
        if value.size:
            low, high = (upper < d_low - 1e-6).mean(), (lower > d_high + 1e-6).mean()
            finite = np.isfinite(upper)
            width = (upper - lower)[finite].mean() if finite.any() else np.nan
            rates = f"{value.mean():7.4f} {1 - low - high:9.1%} {low:8.1%} {high:9.1%} {width:7.3f}"
            bases = f"{(basis == 1).mean():7.0%} {(basis == 2).mean():9.0%}"
        else:
            rates, bases = f"{'':7s} {'':9s} {'':8s} {'':9s} {'':7s}", f"{'':7s} {'':9s}"
        print(f"{scene.name:38s} {scene.cost:12s} {exact:>14s} {rates} {bases} {refused:8.0%}", flush=True)


def usual(settings: argparse.Namespace, run: Callable[..., Any]) -> None:
    head = f"{'coverage':>9s} {'too low':>8s} {'too high':>9s} {'width':>7s}"
    print(f"{'':24s} {'cost':12s} {'exact':>7s} {'mean':>7s} {head}")
    for number in settings.only or range(len(ALL)):
        case = ALL[number]
        d = max(0.0, case.exact())
        jobs = [(number, settings.first_seed + k, settings.replicates) for k in range(settings.datasets)]
        value, lower, upper = np.array(list(run(one, jobs))).T
        low, high = (upper < d - 1e-9).mean(), (lower > d + 1e-9).mean()
        rates = f"{1 - low - high:9.1%} {low:8.1%} {high:9.1%} {(upper - lower).mean():7.3f}"
        print(f"{case.name:24s} {case.cost:12s} {d:7.4f} {value.mean():7.4f} {rates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=80)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--harsh", action="store_true", help="transients, growth, shared starts, few trajectories")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases, from 0")
    settings = parser.parse_args()
    study = harsh if settings.harsh else usual
    if settings.processes == 1:
        study(settings, map)
        return
    with ProcessPoolExecutor(settings.processes) as pool:
        study(settings, lambda f, jobs: pool.map(f, jobs, chunksize=2))


if __name__ == "__main__":
    main()
