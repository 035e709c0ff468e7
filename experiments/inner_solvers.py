"""Exact and stochastic inner solvers: fitting the drift of a walk from its kernel and from samples.

The exact solver uses the target's kernel; SOMCOT sees one new transition per iteration. Near the end its distances
after a few thousand iterations are biased by more than the distance itself, but their gradients still have the right
direction. Two loops are compared by the number of iterations: a new run of fixed length at every step (double loop), or
one run that continues while the parameters change, with 128 iterations per step at first and more as the steps shrink
(single loop).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.learning.fit.fitting import fit
from diffbisim.plot.style import BLUE, GREEN, VERMILION, new_figure, plain
from diffbisim.processes.examples import drift_walk
from diffbisim.processes.streams import Stream
from diffbisim.solvers import Somcot
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Inner solvers: fitting the drift by exact solves, and by SOMCOT from samples"
CLAIM = "The parameters are recovered with SOMCOT inside, from samples."

COLORS = {"exact": BLUE, "SOMCOT, double loop": VERMILION, "SOMCOT, single loop": GREEN}


@dataclass(frozen=True)
class Settings:
    true_drift: float = 1.5
    start: float = -2.0
    n_states: int = 16
    discount: float = 0.95
    max_iterations: int = 40
    double: int = 2000  # iterations of SOMCOT per step
    single: int = 1000  # and of the last step of the single loop
    seeds: int = 3


FULL = Settings(seeds=10)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    paths: dict[str, Floats]  # (seeds, steps + 1): the drift after every step; one row if exact
    values: dict[str, Floats]  # (seeds, steps): the inner solver's distance
    iterations: dict[str, Floats]  # (steps,): of SOMCOT so far; policy improvements if exact
    found: dict[str, Floats]  # (seeds,)
    distances: dict[str, Floats]  # (seeds,): of the found walk to the true one, exactly
    transitions: dict[str, int]  # of the target, that were seen


def run(settings: Settings) -> Outcome:
    target = drift_walk(settings.true_drift, settings.n_states)
    ways: dict[str, list[dict[str, Any]]] = {"exact": [{"target": target}]}
    for loop, inner in (("double", settings.double), ("single", settings.single)):
        ways[f"SOMCOT, {loop} loop"] = [
            {"target": Stream(target), "solver": Somcot(inner, rng=seed, certify=False), "loop": loop}
            for seed in range(settings.seeds)
        ]
    outcome = Outcome(settings, {}, {}, {}, {}, {}, {})
    for name, runs in ways.items():
        done = [_fit(settings, **how) for how in runs]
        outcome.paths[name] = np.array([path for path, _ in done])
        outcome.values[name] = np.array([result.curve() for _, result in done])
        last = done[-1][1]
        outcome.iterations[name] = last.curve("improvements" if name == "exact" else "iterations")
        outcome.found[name] = np.array([float(result.parameters["drift"]) for _, result in done])
        outcome.distances[name] = np.array(
            [distance(target, result.chain, discount=settings.discount).value for _, result in done]
        )
        outcome.transitions[name] = last.work["transitions"]
    return outcome


def _fit(settings: Settings, **how: Any) -> tuple[list[float], Any]:
    from diffbisim.learning.fit.kernels import DriftWalk

    model, path = DriftWalk(settings.start, settings.n_states), [settings.start]
    follow = partial(_follow, model, path)
    return path, fit(
        kernel=model, discount=settings.discount, max_iterations=settings.max_iterations, callback=follow, **how
    )


def _follow(model: Any, path: list[float], row: Row) -> None:
    path.append(float(model.drift.detach()))


def records(outcome: Outcome) -> list[Row]:
    return [
        {"solver": name, "seed": seed, "step": k, "drift": float(path[k]), "distance": float(values[k])}
        for name, paths in outcome.paths.items()
        for seed, (path, values) in enumerate(zip(paths, outcome.values[name], strict=True))
        for k in range(len(values))
    ]


def _errors(outcome: Outcome, name: str) -> Floats:
    return np.abs(outcome.found[name] - outcome.settings.true_drift)


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "inner solver": name,
            "drift found (least, median, largest)": ", ".join(f"{f:.3f}" for f in np.quantile(found, (0.0, 0.5, 1.0))),
            "median error": f"{np.median(_errors(outcome, name)):.1e}",
            "distance": f"{np.median(outcome.distances[name]):.1e}",
            "steps": str(outcome.values[name].shape[1]),
            "iterations": f"{outcome.iterations[name][-1]:.0f}",
            "target seen": "its kernel" if name == "exact" else f"{outcome.transitions[name]} transitions",
        }
        for name, found in outcome.found.items()
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "found": {name: found.tolist() for name, found in outcome.found.items()},
        "median_error": {name: float(np.median(_errors(outcome, name))) for name in outcome.found},
        "largest_error": {name: float(_errors(outcome, name).max()) for name in outcome.found},
        "median_distance": {name: float(np.median(d)) for name, d in outcome.distances.items()},
        "iterations": {name: int(k[-1]) for name, k in outcome.iterations.items()},
        "transitions": outcome.transitions,
    }


def findings(outcome: Outcome) -> list[str]:
    error, work = summary(outcome)["median_error"], summary(outcome)["iterations"]
    double, single = (f"SOMCOT, {loop} loop" for loop in ("double", "single"))
    bias = float(np.median(outcome.values[double][:, -1]))
    return [
        f"from samples the drift is found within {error[double]:.1e} (double loop) and {error[single]:.1e} (single "
        f"loop, {work[double] / work[single]:.1f}x fewer iterations); medians over {outcome.settings.seeds} seeds",
        f"the last values of the double loop say {bias:.2f} where the distance is "
        f"{np.median(outcome.distances[double]):.1e}: the parameters are good long before the value is",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check that the drift is found from samples within 0.1."""
    error = max(value for name, value in summary(outcome)["median_error"].items() if name.startswith("SOMCOT"))
    if error <= 0.1:
        return AGREES, "Within 0.1, although the estimated distances are far from the true ones."
    return DIFFERS, f"The median error is {error:.2f}."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(10.5, 3.6)
    left, middle, right = figure.subplots(1, 3)
    true = outcome.settings.true_drift
    for at, (name, paths) in enumerate(outcome.paths.items()):
        color, steps = COLORS[name], np.arange(paths.shape[1])
        left.plot(steps, np.median(paths, axis=0), color=color, linewidth=1.4, label=name)
        left.fill_between(steps, paths.min(axis=0), paths.max(axis=0), color=color, alpha=0.25, linewidth=0)
        right.plot(np.full(len(paths), at), outcome.found[name], "o", color=color, alpha=0.6, markersize=5)
        if name != "exact":
            error = np.abs(paths[:, 1:] - true)
            work = outcome.iterations[name] / 1000
            middle.plot(work, np.median(error, axis=0), color=color, linewidth=1.4)
            middle.fill_between(work, error.min(axis=0), error.max(axis=0), color=color, alpha=0.25, linewidth=0)
    left.axhline(true, color="black", linewidth=0.7)
    left.set(xlabel="step", ylabel="drift $f$", title="median and range over seeds")
    left.legend(frameon=False, fontsize=8)
    middle.set(
        xlabel="iterations of SOMCOT (thousands)", ylabel="$|f - f^*|$", title="error against work", yscale="log"
    )
    right.axhspan(true - 0.1, true + 0.1, color="#EEEEEE", zorder=0)
    right.axhline(true, color="black", linewidth=0.7)
    right.set_xticks(range(len(outcome.found)), [name.replace(", ", ",\n") for name in outcome.found], fontsize=8)
    right.set(ylabel="drift $f$", title="found, every seed (band: ± 0.1)", xlim=(-0.5, len(outcome.found) - 0.5))
    for ax in (left, middle, right):
        plain(ax)
    return figure
