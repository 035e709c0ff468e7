"""Adapted Wasserstein distance of two autoregressive processes, on grids and from samples, against the closed form.

    x_{t+1} = a x_t + σ ε_t,  y_{t+1} = b y_t + τ η_t,  x_0 = y_0 = 0,        AW₂² = min E Σ_t |x_t - y_t|²

over all bicausal couplings of T steps. For Gaussian processes it is known (`examples.gaussian_distance`). On a grid of
n points per time the error is of order n^-2, so Richardson extrapolation from two grids is more accurate than either.
N sample paths are compared through their adapted empirical measures, with cells of a width of order N^(-1/3). If pnot
(a C++ solver for this problem by Hou et al.) is installed, it gets the same paths and cells; it represents a cell by
its midpoint, and diffbisim by the mean of its values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.plot.style import BLUE, GRAY, GREEN, VERMILION, new_figure, plain
from diffbisim.processes.examples import autoregression, autoregression_covariance, gaussian_distance
from diffbisim.processes.timed import TimedChain
from diffbisim.solvers import Exact
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Adapted Wasserstein distance of two autoregressions: grids and sample paths against the closed form"

CLAIM = "None: the paper considers an infinite discounted horizon. For a finite one, Gaussian paths have a closed form."


@dataclass(frozen=True)
class Settings:
    coefficients: tuple[float, float] = (0.8, 0.5)
    noises: tuple[float, float] = (1.0, 0.7)
    n_steps: int = 4
    grids: tuple[int, ...] = (8, 16, 31, 61)
    paths: tuple[int, ...] = (300, 1_000, 3_000, 10_000, 30_000)
    width: float = 4.0  # cell width is this times N^(-1/3)
    seeds: int = 5


FULL = Settings(grids=(8, 16, 31, 61, 121), paths=(300, 1_000, 3_000, 10_000, 30_000, 100_000), seeds=10)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    known: float
    on_grids: Floats  # (grids,)
    from_paths: Floats  # (paths, seeds)
    seconds: Floats  # (paths, seeds), including quantization, one thread
    pnot: Floats | None  # (paths, seeds) by pnot; None if it is not installed
    pnot_seconds: Floats | None


def run(settings: Settings) -> Outcome:
    s = settings
    covariances = [autoregression_covariance(a, σ, s.n_steps) for a, σ in zip(s.coefficients, s.noises, strict=True)]
    nested = _nested()
    sizes = (len(s.paths), s.seeds)
    from_paths, seconds, pnot, pnot_seconds = (np.zeros(sizes) for _ in range(4))
    _from_paths(s, *_samples(s, 50, 0))  # compiles
    for i, n in enumerate(s.paths):
        for seed in range(s.seeds):
            X, Y = _samples(s, n, seed)
            from_paths[i, seed], seconds[i, seed] = _timed(partial(_from_paths, s, X, Y))
            if nested is not None:
                peer = partial(nested, X.T, Y.T, s.width * n ** (-1 / 3), markovian=True, num_threads=1)
                pnot[i, seed], pnot_seconds[i, seed] = _timed(peer)
    return Outcome(
        settings=s,
        known=gaussian_distance(covariances[0], covariances[1]),
        on_grids=np.array([_on_grid(s, n) for n in s.grids]),
        from_paths=from_paths,
        seconds=seconds,
        pnot=None if nested is None else pnot,
        pnot_seconds=None if nested is None else pnot_seconds,
    )


def _nested() -> Any:
    """Return pnot's solver, or None if it is not installed."""
    try:
        return import_module("pnot").nested_ot
    except ImportError:
        return None


def _timed(work: Any) -> tuple[float, float]:
    began = time.perf_counter()
    value = work()
    return float(value), time.perf_counter() - began


def _on_grid(s: Settings, n: int) -> float:
    X, Y = (autoregression(a, σ, s.n_steps, n) for a, σ in zip(s.coefficients, s.noises, strict=True))
    return distance(X, Y, cost="squared", weights=np.ones(s.n_steps + 1)).value


def _samples(s: Settings, n: int, seed: int) -> tuple[Floats, Floats]:
    """Sample ``n`` paths of each process, (n, T + 1)."""
    rng, samples = np.random.default_rng([seed, n]), []
    for a, σ in zip(s.coefficients, s.noises, strict=True):
        x = np.zeros((n, s.n_steps + 1))
        for t in range(s.n_steps):
            x[:, t + 1] = a * x[:, t] + σ * rng.standard_normal(n)
        samples.append(x)
    return samples[0], samples[1]


def _from_paths(s: Settings, X: Floats, Y: Floats) -> float:
    width = s.width * len(X) ** (-1 / 3)
    chains = [TimedChain.from_paths(paths, width=width) for paths in (X, Y)]
    solver = Exact(threads=1)
    return distance(chains[0], chains[1], cost="squared", weights=np.ones(s.n_steps + 1), solver=solver).value


def _richardson(outcome: Outcome) -> Floats:
    """Extrapolate from each grid and the previous one; NaN for the first."""
    h = 1.0 / (np.array(outcome.settings.grids) - 1.0) ** 2
    values, better = outcome.on_grids, np.full(h.size, np.nan)
    better[1:] = (values[1:] * h[:-1] - values[:-1] * h[1:]) / (h[:-1] - h[1:])
    return better


def records(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for n, value, better in zip(outcome.settings.grids, outcome.on_grids, _richardson(outcome), strict=True):
        rows.append(_record("grid", n, 0, value, outcome))
        if np.isfinite(better):
            rows.append(_record("Richardson", n, 0, better, outcome))
    for i, n in enumerate(outcome.settings.paths):
        for seed in range(outcome.settings.seeds):
            rows.append(_record("paths", n, seed, outcome.from_paths[i, seed], outcome, outcome.seconds[i, seed]))
            if outcome.pnot is not None and outcome.pnot_seconds is not None:
                rows.append(_record("pnot", n, seed, outcome.pnot[i, seed], outcome, outcome.pnot_seconds[i, seed]))
    return rows


def _record(kind: str, n: int, seed: int, value: float, outcome: Outcome, seconds: float = 0.0) -> Row:
    error = abs(float(value) - outcome.known)
    return {"kind": kind, "size": n, "seed": seed, "value": float(value), "error": error, "seconds": float(seconds)}


def table(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for n, value, better in zip(outcome.settings.grids, outcome.on_grids, _richardson(outcome), strict=True):
        extrapolated = f"{better:.5f}" if np.isfinite(better) else "-"
        rows.append(_shown(f"grid of {n}", f"{value:.5f}", f"{abs(value - outcome.known):.5f}", extrapolated, "-"))
    for i, n in enumerate(outcome.settings.paths):
        error, ratio = np.abs(outcome.from_paths[i] - outcome.known).mean(), "-"
        if outcome.pnot_seconds is not None:
            ratio = f"{np.median(outcome.pnot_seconds[i] / outcome.seconds[i]):.1f}x"
        mean = f"{outcome.from_paths[i].mean():.4f}"
        rows.append(_shown(f"{n:,} paths", mean, f"{error:.4f}", "-", ratio))
    return rows


def _shown(what: str, value: str, error: str, richardson: str, ratio: str) -> Row:
    return {"from": what, "distance": value, "error": error, "Richardson": richardson, "time of pnot": ratio}


def summary(outcome: Outcome) -> dict[str, float]:
    errors = np.abs(outcome.from_paths - outcome.known).mean(axis=1)
    slope = np.polyfit(np.log(outcome.settings.paths), np.log(errors), 1)[0]
    found = {
        "known": outcome.known,
        "error_of_finest_grid": abs(float(outcome.on_grids[-1]) - outcome.known),
        "error_of_richardson": abs(float(_richardson(outcome)[-1]) - outcome.known),
        "error_of_most_paths": float(errors[-1]),
        "rate_in_paths": float(slope),
    }
    if outcome.pnot is not None and outcome.pnot_seconds is not None:
        found["error_of_pnot"] = float(np.abs(outcome.pnot - outcome.known).mean(axis=1)[-1])
        found["time_ratio_of_pnot"] = float(np.median(outcome.pnot_seconds[-1] / outcome.seconds[-1]))
    return found


def findings(outcome: Outcome) -> list[str]:
    found, s = summary(outcome), outcome.settings
    said = [
        f"closed form {found['known']:.5f}; grid of {s.grids[-1]} off by {found['error_of_finest_grid']:.1e}, "
        f"Richardson by {found['error_of_richardson']:.1e}",
        f"{s.paths[-1]:,} paths: off by {found['error_of_most_paths']:.3f} on average; errors fall like "
        f"N^{found['rate_in_paths']:.2f}",
    ]
    if "error_of_pnot" in found:
        said.append(
            f"pnot on the same paths and cells, one thread: off by {found['error_of_pnot']:.3f}, "
            f"{found['time_ratio_of_pnot']:.0f} times our time"
        )
    else:
        said.append("pnot is not installed; pip install pnot to compare with it")
    return said


def verdict(outcome: Outcome) -> tuple[str, str]:
    return BEYOND, "Finite horizons are not in the paper; the results agree with the closed form."


def plot(outcome: Outcome) -> Figure:
    s, known = outcome.settings, outcome.known
    figure = new_figure(8.4, 3.6)
    left, right = (plain(ax) for ax in figure.subplots(1, 2))
    left.plot(s.grids, np.abs(outcome.on_grids - known), "o-", color=BLUE, label="one grid")
    left.plot(s.grids, np.abs(_richardson(outcome) - known), "s--", color=VERMILION, label="Richardson")
    guide = np.abs(outcome.on_grids[0] - known) * (s.grids[0] / np.array(s.grids, dtype=float)) ** 2
    left.plot(s.grids, guide, ":", color=GRAY, label="$n^{-2}$")
    left.set(xlabel="points per time $n$", title="quantized laws")
    shown = [("ours", outcome.from_paths, BLUE, "o-")]
    if outcome.pnot is not None:
        shown.append(("pnot, same cells", outcome.pnot, GREEN, "^--"))
    for label, values, color, style in shown:
        errors = np.abs(values - known)
        right.plot(s.paths, errors.mean(axis=1), style, color=color, label=label)
        right.fill_between(s.paths, errors.min(axis=1), errors.max(axis=1), color=color, alpha=0.15, linewidth=0)
    first = np.abs(outcome.from_paths[0] - known).mean()
    right.plot(
        s.paths, first * np.sqrt(s.paths[0] / np.array(s.paths, dtype=float)), ":", color=GRAY, label="$N^{-1/2}$"
    )
    right.set(xlabel="sample paths $N$", title=f"adapted empirical measures, {s.seeds} seeds")
    for ax, sizes in ((left, s.grids), (right, s.paths)):
        ax.set(xscale="log", yscale="log", ylabel="error of $AW_2^2$")
        ax.set_xticks(sizes, labels=[f"{n:,}" for n in sizes])
        ax.minorticks_off()
        ax.legend(framealpha=1, edgecolor="none", fontsize=8, loc="lower left" if ax is left else "upper right")
    figure.suptitle(f"Two autoregressions, {s.n_steps} steps: the closed form is {known:.5f}", fontsize=11)
    return figure
