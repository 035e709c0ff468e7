"""The comparison behind SOMCOT's default steps: the schedules that were tried, and their errors.

    python benchmarks/long/somcot_schedule.py [--max-iterations 50000] [--seeds 3]

Every line is one schedule. The columns are medians over seeds and both discounts of the relative error of d and of the
cosine of the gradient on its support, for the five problems of somcot_accuracy.py.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from somcot_accuracy import Job, run, shapes

from diffbisim.common.arrays import available_threads

LITERAL = {"memory": False, "anticipation": 0.0, "certify": False}
SCHEDULES = {
    "literal, 0.5 / 0.02 (the paper's)": {**LITERAL, "eta": 0.5, "beta": 0.02},
    "literal, 0.2 / 0.01": {**LITERAL, "eta": 0.2, "beta": 0.01},
    "literal, 0.05 / 0.05": {**LITERAL, "eta": 0.05, "beta": 0.05},
    "literal, 0.5 / 0.02, decay 1/2": {**LITERAL, "eta": 0.5, "beta": 0.02, "decay": 0.5, "decay_from": 1e3},
    "literal, 0.5 / 0.02, batch 16": {**LITERAL, "eta": 0.5, "beta": 0.02, "batch": 16},
    "memory only": {"anticipation": 0.0, "certify": False},
    "memory, one step ahead": {"anticipation": 1.0, "certify": False},
    "memory, two steps ahead (default)": {"certify": False},
    "default with eta 0.05": {"eta": 0.05, "certify": False},
    "default with eta 1": {"eta": 1.0, "certify": False},
    "default with beta 0.002": {"beta": 0.002, "certify": False},
    "default with beta 0.05": {"beta": 0.05, "certify": False},
    "default with decay 1/2": {"decay": 0.5, "certify": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-iterations", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=3)
    settings = parser.parse_args()
    names = list(shapes(0.9))
    print(
        f"{settings.max_iterations} iterations, {settings.seeds} seeds, discounts 0.9 and 0.95: "
        "error of d, cosine of gradient"
    )
    print(f"{'':36s}" + "".join(f"{name:>18s}" for name in names))
    with ProcessPoolExecutor(available_threads()) as pool:
        for label, options in SCHEDULES.items():
            cells = []
            for name in names:
                jobs = [
                    Job(name, discount, seed, settings.max_iterations, tuple(options.items()))
                    for discount in (0.9, 0.95)
                    for seed in range(settings.seeds)
                ]
                error, cosine, *_ = np.median(np.array(list(pool.map(run, jobs))), axis=0)
                cells.append(f"{error:10.2%} {cosine:7.3f}")
            print(f"{label:36s}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
