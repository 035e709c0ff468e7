"""Learning rates: Adam with constant and annealed rates, compared with the step rule, on the drift walk.

The distance has a kink at its minimum: constant steps oscillate at a level given by their length, annealed steps come
closer, and Polyak's step lengths need no rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.learning.fit.fitting import annealed, fit
from diffbisim.plot.style import BLUE, GRAY, GREEN, VERMILION, new_figure, plain
from diffbisim.processes.examples import drift_walk
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Learning rate: Adam with constant and annealed rates, and the step rule"
CLAIM = "The outer learning rate trades speed for stability."


@dataclass(frozen=True)
class Settings:
    rates: tuple[float, ...] = (0.03, 0.1, 0.3)
    max_iterations: int = 200
    discount: float = 0.95
    true_drift: float = 1.5
    start: float = -2.0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    curves: dict[str, Floats]  # certified distance at every step, by optimizer


def run(settings: Settings) -> Outcome:
    from diffbisim.learning.fit.kernels import DriftWalk

    target = drift_walk(settings.true_drift)
    how: dict[str, Any] = {
        "max_iterations": settings.max_iterations,
        "discount": settings.discount,
        "inner_gap": 0.0,
        "tol": 1e-9,
    }
    curves = {"step rule": fit(target, DriftWalk(settings.start), **how).curve("upper")}
    for rate in settings.rates:
        optimizer, scheduler = annealed(settings.max_iterations, rate)
        for name, decay in (("", None), (", annealed", scheduler)):
            result = fit(target, DriftWalk(settings.start), optimizer=optimizer, scheduler=decay, **how)
            curves[f"Adam {rate:g}{name}"] = result.curve("upper")
    return Outcome(settings, curves)


def records(outcome: Outcome) -> list[Row]:
    return [
        {"optimizer": name, "step": k, "distance": float(value)}
        for name, curve in outcome.curves.items()
        for k, value in enumerate(curve)
    ]


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "optimizer": name,
            "steps": str(len(curve)),
            "best distance": f"{curve.min():.1e}",
            "last distance": f"{curve[-1]:.1e}",
        }
        for name, curve in outcome.curves.items()
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "best_distance": {name: float(curve.min()) for name, curve in outcome.curves.items()},
        "last_distance": {name: float(curve[-1]) for name, curve in outcome.curves.items()},
        "steps": {name: len(curve) for name, curve in outcome.curves.items()},
    }


def findings(outcome: Outcome) -> list[str]:
    best, rates = summary(outcome)["best_distance"], len(outcome.settings.rates)
    decayed, constant = (min(_adam(best, kind)) for kind in (True, False))
    return [
        f"least certified distance on the way: {best['step rule']:.0e} in {len(outcome.curves['step rule'])} steps of "
        f"the rule; in {outcome.settings.max_iterations} of Adam, at the best of {rates} rate{'s' * (rates != 1)}, "
        f"{constant:.0e} with a constant one and {decayed:.0e} with an annealed one"
    ]


def _adam(values: dict[str, float], annealed: bool) -> list[float]:
    return [value for name, value in values.items() if name.startswith("Adam") and ("annealed" in name) == annealed]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check whether the best constant rate is behind the adaptive rule."""
    best = summary(outcome)["best_distance"]
    rates = ", ".join(f"{rate:g}" for rate in outcome.settings.rates)
    if min(_adam(best, False)) > 2 * best["step rule"]:
        return AGREES, (
            f"At no moment did Adam with a constant rate ({rates}) come as close as the rule without one, on this "
            "walk; other rates were not tried."
        )
    return DIFFERS, f"A constant rate (of {rates}) came about as close as the step rule."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(6.0, 3.8)
    ax = figure.subplots()
    for name, curve in outcome.curves.items():
        k = next((k for k, rate in enumerate(outcome.settings.rates) if name.startswith(f"Adam {rate:g}")), None)
        color = BLUE if k is None else (VERMILION, GREEN, GRAY)[k % 3]
        style = "-" if k is None else "--" if "annealed" in name else ":"
        ax.semilogy(np.maximum(curve, 1e-9), style, color=color, linewidth=2 if k is None else 1.2, label=name)
    ax.set(xlabel="step", ylabel="certified distance (positions)", title="Drift walk: step rule against Adam")
    ax.legend(frameon=False, fontsize=7)
    plain(ax)
    return figure
