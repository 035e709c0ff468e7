"""Coverage of the 95 % interval of ``diffbisim.estimate`` for processes known through trajectories.

    python benchmarks/long/continuous_coverage.py [--datasets 200] [--replicates 80] [--processes 2] [--only 1 10]

The cases are those of benchmarks/continuous.py and equal processes, with 2,000 steps each. At distance zero, it counts
how often the interval contains zero. A dataset takes about 1.5 seconds of processor time on the line, three in the
plane.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from continuous import CASES, DISCOUNT, EQUAL

from diffbisim.continuous import estimate_paths

ALL = [*CASES, *EQUAL]


def one(job: tuple[int, int, int]) -> tuple[float, float, float]:
    number, seed, replicates = job
    X, Y = ALL[number].sample(2000, 90_000 + seed)
    e = estimate_paths(X, Y, ALL[number].cost, DISCOUNT, rng=seed, replicates=replicates)
    return e.value, e.lower, e.upper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=80)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases, from 0")
    settings = parser.parse_args()
    head = f"{'coverage':>9s} {'too low':>8s} {'too high':>9s} {'width':>7s}"
    print(f"{'':24s} {'cost':12s} {'exact':>7s} {'mean':>7s} {head}")
    with ProcessPoolExecutor(settings.processes) as pool:
        for number in settings.only or range(len(ALL)):
            case = ALL[number]
            d = max(0.0, case.exact())
            jobs = [(number, seed, settings.replicates) for seed in range(settings.datasets)]
            value, lower, upper = np.array(list(pool.map(one, jobs, chunksize=2))).T
            low, high = (upper < d - 1e-9).mean(), (lower > d + 1e-9).mean()
            rates = f"{1 - low - high:9.1%} {low:8.1%} {high:9.1%} {(upper - lower).mean():7.3f}"
            print(f"{case.name:24s} {case.cost:12s} {d:7.4f} {value.mean():7.4f} {rates}", flush=True)


if __name__ == "__main__":
    main()
