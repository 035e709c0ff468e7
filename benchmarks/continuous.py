"""Distances from trajectories with continuous states, compared with closed forms and simpler methods, in one run.

    python benchmarks/continuous.py                        errors at 2,000 steps, medians over seeds
    python benchmarks/continuous.py --rate figure.png      errors as a function of the number of steps, with a figure
    python benchmarks/continuous.py --fit                  parameters of simulators: drift of a process, friction
    python benchmarks/continuous.py --pnot other/bin/python    finite horizon against pnot 1.0.0, see horizon.py

Columns: "counts" and "plug_in" are the distance on the same cells with counted and with local-linear rows, "value" is
the estimate, and "least squares" is the closed form for linear-Gaussian processes fitted to the data. The last one
assumes that the processes are linear. It is hard to beat if that is true, and wrong on bent walks. "bound" is the
median error of the best unbiased estimate under the same assumption (Cramér and Rao); no unbiased estimate with this
information is better. Datasets are trajectories of 20 steps from N(0, 0.5²), with discount 0.9. Settings were chosen on
seeds 1000 to 6999, the pruning for the comparison with pnot on 70000 to 70009.
"""

import argparse
import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import diffbisim as db
from diffbisim.processes.cells import TrajectorySteps
from diffbisim.solvers import Exact
from diffbisim.statistics.paths import CellDistances, estimate_paths

DISCOUNT, LENGTH, SPREAD, FIRST_SEED = 0.9, 20, 0.5, 70_000


def turn(angle: float, size: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return size * np.array([[c, -s], [s, c]])


@dataclass(frozen=True)
class Case:
    """Two processes and a cost."""

    name: str
    cost: str
    pair: tuple[Any, Any]  # LinearGaussian processes, or (height, noise) of bent walks

    @property
    def linear(self) -> bool:
        return isinstance(self.pair[0], db.LinearGaussian)

    def exact(self) -> float:
        if self.linear:
            return db.examples.linear_gaussian_distance(*self.pair, DISCOUNT, self.cost)
        steps = [db.examples.bent_walk(*side) for side in self.pair]
        power = 1 if self.cost == "euclidean" else 2
        return db.examples.shared_noise_distance(*steps, DISCOUNT, power=power, spread=SPREAD, n=200_000)[0]

    def sample(self, n_steps: int, seed: int) -> list[np.ndarray]:
        rng, n = np.random.default_rng(seed), n_steps // LENGTH
        if self.linear:
            return [side.sample(n, LENGTH, rng) for side in self.pair]
        return [db.examples.sample_paths(db.examples.bent_walk(*side), n, LENGTH, rng, SPREAD) for side in self.pair]


def gaussian(slope: Any, noise: Any) -> db.LinearGaussian:
    return db.LinearGaussian(slope, noise, spread=SPREAD)


CASES = [
    Case("AR(1) .8, .6 | .5, .4", "euclidean", (gaussian(0.8, 0.6), gaussian(0.5, 0.4))),
    Case("AR(1) .8, .6 | .8, .4", "euclidean", (gaussian(0.8, 0.6), gaussian(0.8, 0.4))),
    Case("AR(1) .8, .5 | .7, .5", "euclidean", (gaussian(0.8, 0.5), gaussian(0.7, 0.5))),
    Case("AR(1) .8, .6 | .5, .4", "sqeuclidean", (gaussian(0.8, 0.6), gaussian(0.5, 0.4))),
    Case("AR(1) .8, .6 | -.3, .5", "sqeuclidean", (gaussian(0.8, 0.6), gaussian(-0.3, 0.5))),
    Case("2-D, sheared", "sqeuclidean",
         (gaussian([[0.8, 0.2], [-0.2, 0.7]], 0.5), gaussian([[0.5, 0], [0, 0.6]], [[0.4, 0], [0.2, 0.3]]))),
    Case("2-D, other turns", "sqeuclidean", (gaussian(turn(0.5, 0.9), 0.4), gaussian(turn(-0.3, 0.8), 0.4))),
    Case("2-D, other noise", "sqeuclidean", (gaussian(turn(0.5, 0.9), 0.4), gaussian(turn(0.5, 0.9), 0.25))),
    Case("bent 1.2, .4 | .6, .4", "euclidean", ((1.2, 0.4), (0.6, 0.4))),
    Case("bent 1.2, .4 | .6, .4", "sqeuclidean", ((1.2, 0.4), (0.6, 0.4))),
]  # fmt: skip
FRESH = [  # not used for choosing settings
    Case("AR(1) .6, .5 | .2, .5", "euclidean", (gaussian(0.6, 0.5), gaussian(0.2, 0.5))),
    Case("AR(1) .9, .3 | .9, .5", "euclidean", (gaussian(0.9, 0.3), gaussian(0.9, 0.5))),
    Case("AR(1) .3, .7 | .7, .3", "sqeuclidean", (gaussian(0.3, 0.7), gaussian(0.7, 0.3))),
    Case("2-D, turned, less noise", "sqeuclidean", (gaussian(turn(1.0, 0.7), 0.5), gaussian(turn(0.6, 0.7), 0.3))),
]
EQUAL = [
    Case("AR(1), equal", "euclidean", (gaussian(0.8, 0.6), gaussian(0.8, 0.6))),
    Case("2-D, equal", "sqeuclidean", (gaussian(turn(0.5, 0.9), 0.4), gaussian(turn(0.5, 0.9), 0.4))),
]


def estimates(case: Case, n_steps: int, seed: int) -> tuple[float, ...]:
    """Return (counts, plug_in, value, least squares) for one pair of datasets."""
    X, Y = case.sample(n_steps, seed)
    e = estimate_paths(X, Y, case.cost, DISCOUNT, rng=seed, replicates=40)
    counted = [e.cells.chain(paths, smoothing=None) for paths in (X, Y)]
    counts = db.distance(*counted, e.cells.cost(case.cost), DISCOUNT, Exact(tol=1e-5)).value
    d = X.shape[2]
    fitted = [db.LinearGaussian.fit(p[:, :-1].reshape(-1, d), p[:, 1:].reshape(-1, d), p[:, 0]) for p in (X, Y)]
    return counts, e.plug_in, e.value, db.examples.linear_gaussian_distance(*fitted, DISCOUNT, case.cost)


def coefficients(process: db.LinearGaussian) -> np.ndarray:
    lower = np.tril_indices(process.dimension)
    parts = process.slope.ravel(), process.shift, process.start, process.noise[lower], process.spread[lower]
    return np.concatenate(parts)


def with_coefficients(v: np.ndarray, d: int) -> db.LinearGaussian:
    lower = np.tril_indices(d)
    slope, shift, start, *roots = np.split(v, np.cumsum([d * d, d, d, len(lower[0])]))
    noise, spread = np.zeros((2, d, d))
    noise[lower], spread[lower] = roots
    return db.LinearGaussian(slope.reshape(d, d), noise, shift=shift, start=start, spread=spread)


def log_likelihood(process: db.LinearGaussian, paths: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of n paths (n, T + 1, d), up to a constant."""
    z = np.linalg.solve(process.spread, (paths[:, 0] - process.start).T)
    ε = (paths[:, 1:] - paths[:, :-1] @ process.slope.T - process.shift) @ np.linalg.inv(process.noise).T
    volume = np.log(np.abs(np.diag(process.spread))).sum() + ε.shape[1] * np.log(np.abs(np.diag(process.noise))).sum()
    return -0.5 * ((z**2).sum(axis=0) + (ε**2).sum(axis=(1, 2))) - volume


def slopes_at(v: np.ndarray, f: Any, h: float = 1e-5) -> np.ndarray:
    """Return central differences of f, stacked along the last axis."""
    return np.stack([(f(v + step) - f(v - step)) / (2 * h) for step in h * np.eye(v.size)], axis=-1)


def bound(case: Case, n_steps: int) -> float:
    """Return the median error, relative to the distance, of an unbiased estimate with the least possible variance."""
    if not case.linear:
        return float("nan")
    variance, d = 0.0, case.pair[0].dimension
    for k, side in enumerate(case.pair):
        v, other = coefficients(side), case.pair[1 - k]
        paths = side.sample(4000, LENGTH, 0)
        scores = slopes_at(v, lambda w, paths=paths: log_likelihood(with_coefficients(w, d), paths))
        information = n_steps / LENGTH * scores.T @ scores / len(scores)
        gradient = slopes_at(
            v,
            lambda w, other=other: np.array(
                db.examples.linear_gaussian_distance(with_coefficients(w, d), other, DISCOUNT, case.cost)
            ),
        )
        variance += gradient @ np.linalg.solve(information, gradient)
    return 0.6745 * float(np.sqrt(variance)) / case.exact()


def errors(seeds: int, only: list[int] | None, n_steps: int = 2000) -> None:
    print(f"median relative error over {seeds} seeds, {n_steps:,} steps on each side; error of the median value")
    head = f"{'counts':>8s} {'plug_in':>8s} {'value':>8s} {'least squares':>14s} {'bound':>7s} {'of median':>10s}"
    print(f"{'':24s} {'cost':12s} {'exact':>7s} {head}")
    every = [*CASES, *FRESH]
    for case in [every[k] for k in only or range(len(every))]:
        exact = case.exact()
        found = np.array([estimates(case, n_steps, FIRST_SEED + s) for s in range(seeds)])
        off, least = np.median(np.abs(found / exact - 1), axis=0), bound(case, n_steps)
        columns = f"{off[0]:8.1%} {off[1]:8.1%} {off[2]:8.1%} {off[3]:14.1%} {least:7.1%}"
        middle = np.median(found[:, 2]) / exact - 1
        print(f"{case.name:24s} {case.cost:12s} {exact:7.4f} {columns} {middle:+10.1%}", flush=True)


def rate(path: str, seeds: int) -> None:
    """Compute root mean square errors for several sizes, and their slopes in a log-log plot."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    sizes = (500, 1000, 2000, 4000)
    shown = [CASES[1], CASES[7], CASES[9]]
    figure, axes = plt.subplots(1, len(shown), figsize=(10, 3.2), layout="constrained")
    for ax, case in zip(axes, shown, strict=True):
        exact = case.exact()
        runs = [[estimates(case, n, FIRST_SEED + 500 + s) for s in range(seeds)] for n in sizes]
        off = np.sqrt(((np.array(runs) - exact) ** 2).mean(axis=1))  # (sizes, 4)
        slopes = np.polyfit(np.log(sizes), np.log(off), 1)[0]
        print(f"{case.name} {case.cost}: slopes of counts, plug_in, value, least squares", slopes.round(2), flush=True)
        for column, name, style in zip(off.T, ("counts", "plug_in", "value"), ("C7--", "C0-", "C3-"), strict=False):
            ax.loglog(sizes, column, style, marker="o", ms=3, label=name)
        ax.loglog(sizes, off[0, 2] * (np.array(sizes) / sizes[0]) ** -0.5, "k:", lw=1, label=r"$N^{-1/2}$")
        ax.set(title=f"{case.name}, {case.cost}", xlabel="steps N", xticks=sizes, xticklabels=[f"{n:,}" for n in sizes])
        ax.minorticks_off()
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # several ticks within a decade, too
        ax.yaxis.set_major_formatter(lambda error, _: f"{error:g}")
    axes[0].set_ylabel("root mean square error")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def ornstein_uhlenbeck(parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Simulate dx = -θ x dt + dW in steps of 0.2, from 1."""
    return db.LinearGaussian(np.exp(-0.2 * parameters[0]), 0.4, start=1.0).sample(80, 20, rng)


def pendulum(parameters: np.ndarray, rng: np.random.Generator, starts: np.ndarray | None = None) -> np.ndarray:
    """Simulate angle and velocity of a pendulum with friction and noise, from random angles by default."""
    states = [np.stack([rng.uniform(-2, 2, 80), np.zeros(80)], axis=1) if starts is None else starts]
    for _ in range(20):
        angle, speed = states[-1].T
        speed = speed + 0.2 * (-np.sin(angle) - parameters[0] * speed) + 0.1 * rng.standard_normal(len(angle))
        states.append(np.stack([angle + 0.2 * speed, speed], axis=1))
    return np.stack(states, axis=1)


def fits(seeds: int) -> None:
    for name, simulate, true in (("drift of an OU process", ornstein_uhlenbeck, 2.0), ("friction", pendulum, 0.4)):
        found = []
        for seed in range(seeds):
            target = simulate(np.array([true]), np.random.default_rng(FIRST_SEED + seed))
            e = db.fit_simulator(target, simulate, true * 0.5, rng=seed, splits=5, n_states=40)
            found.append((e.parameters[0], e.lower[0], e.upper[0]))
        value, lower, upper = np.array(found).T
        covered = int(((lower <= true) & (true <= upper)).sum())
        print(
            f"{name}: {true} found as {value.mean():.3f} ± {value.std():.3f}; interval covers in {covered} of {seeds}"
        )


PEER = """
import json, sys, time
import numpy as np
from pnot import nested_ot
found = []
for name in json.loads(sys.argv[1]):
    data = np.load(name)
    began = time.process_time()
    value = nested_ot(data["x"].T, data["y"].T, float(data["grid"]), markovian=True, num_threads=1)
    found.append((value, time.process_time() - began))
print(json.dumps(found))
"""


def pooled(x: np.ndarray, y: np.ndarray, grid: float) -> tuple[float, float]:
    """Return the finite-horizon distance of (n, T + 1) paths on a grid, with pooled steps, and the processor time."""
    began = time.process_time()
    x, y = x[..., None], y[..., None]
    reach = max(np.abs(x).max(), np.abs(y).max())
    q = db.quantize(x, y, centers=np.arange(-np.ceil(reach / grid), reach / grid + 1) * grid)
    asked = {"criterion": "discounted", "weights": np.ones(x.shape[1])}
    task = CellDistances(q, "sqeuclidean", DISCOUNT, Exact(threads=1, reachable=True), asked, prune=0.01)
    value = task.solve(TrajectorySteps.of(x), TrajectorySteps.of(y)).calibrated
    return value, time.process_time() - began


def against_pnot(python: str, seeds: int, n_paths: int = 2000, T: int = 4) -> None:
    """Compare mean absolute error and processor time for AR(1) paths, on the same paths and grids."""
    import tempfile

    e = db.examples
    exact = e.gaussian_distance(e.autoregression_covariance(0.8, 1.0, T), e.autoregression_covariance(0.5, 0.7, T))
    print(f"\nAR(1) .8, 1 | .5, .7 over {T} steps, {n_paths:,} paths, squared cost: exact {exact:.4f}; {seeds} seeds")
    with tempfile.TemporaryDirectory() as folder:
        for grid in (0.1, 0.2, 0.4):
            names, ours = [], []
            for seed in range(seeds):
                rng = np.random.default_rng(FIRST_SEED + seed)
                x, y = (db.LinearGaussian(a, σ).sample(n_paths, T, rng)[..., 0] for a, σ in ((0.8, 1.0), (0.5, 0.7)))
                ours.append(pooled(x, y, grid))
                names.append(f"{folder}/{grid}-{seed}.npz")
                np.savez(names[-1], x=x, y=y, grid=grid)
            run = subprocess.run([python, "-c", PEER, json.dumps(names)], capture_output=True, text=True, check=True)
            (mine, my_time), (theirs, their_time) = (np.array(f).T for f in (ours, json.loads(run.stdout)))
            error, peer = np.abs(mine - exact).mean(), np.abs(theirs - exact).mean()
            ratio = (
                f"{error / peer:.2f} of its error, {np.median(my_time[1:]) / np.median(their_time[1:]):.3f} of its time"
            )
            print(f"grid {grid}: pooled {error:.4f}, pnot {peer:.4f}: {ratio}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases, from 0")
    parser.add_argument("--rate", metavar="FIGURE")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--pnot", metavar="PYTHON", help="a Python that has pnot 1.0.0 installed")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    arguments = parser.parse_args()
    FIRST_SEED = arguments.first_seed
    if arguments.rate:
        rate(arguments.rate, arguments.seeds)
    elif arguments.fit:
        fits(arguments.seeds)
    elif arguments.pnot:
        against_pnot(arguments.pnot, arguments.seeds)
    else:
        errors(arguments.seeds, arguments.only)
