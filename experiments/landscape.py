"""Distance and exact derivative of a one-parameter model, the drift of a walk.

The target has drift f* = 1.5, the model drift f, and its kernel is a mixture of two fixed ones,

    P(f) = σ(f) U + (1 - σ(f)) D,      dP/df = σ(f) (1 - σ(f)) (U - D),

one step up (U) or down (D), staying at the ends. By the chain rule d'(f) = <∂d/∂P_Y, dP/df>. The cost is the difference
of positions. The monotone coupling is optimal, hence d(f) = |<ρ_f, r> - <ρ_f*, r>| with ρ the discounted occupancy and
r the position. At f* the distance is zero and has a kink, around which constant gradient steps oscillate even if the
gradient is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.plot.style import BLUE, GRAY, VERMILION, new_figure, plain
from diffbisim.processes.examples import birth_death, drift_walk
from experiments.report import DIFFERS, IN_PART, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diffbisim.results.base import DistanceResult

TITLE = "Drift walk: distance to the target and its exact derivative along the drift f"

CLAIM = (
    "The metric is differentiable in the parameters of a chain, with a closed-form gradient (Theorem 1); on a walk of "
    "16 states it steers the drift f to the true 1.5, with an overshoot put down to errors of the SOMCOT estimate."
)


@dataclass(frozen=True)
class Settings:
    true_drift: float = 1.5
    lowest: float = -3.0
    highest: float = 5.0
    points: int = 81  # the kink is one of them
    n_states: int = 16
    discount: float = 0.95
    tol: float = 1e-12
    step: float = 1e-4  # of the finite differences


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    drift: Floats  # (points,)
    value: Floats
    gap: Floats  # certified
    derivative: Floats  # exact; at the kink, one element of the generalized gradient
    known: Floats  # distance by the closed form
    difference: Floats  # derivative by central differences; NaN at the kink
    slopes: tuple[float, float]  # one-sided, at the kink


def run(settings: Settings) -> Outcome:
    drift = np.linspace(settings.lowest, settings.highest, settings.points)
    drift[np.abs(drift - settings.true_drift).argmin()] = settings.true_drift
    results = [_distance(f, settings) for f in drift]
    h, low, high = settings.step, drift - settings.step, drift + settings.step
    below, above = ([_distance(f, settings).value for f in side] for side in (low, high))
    difference = (np.array(above) - below) / (2 * h)
    kink = int(np.flatnonzero(drift == settings.true_drift)[0])
    slopes = (-below[kink] / h, above[kink] / h)  # the distance is zero in between
    difference[kink] = np.nan
    return Outcome(
        settings=settings,
        drift=drift,
        value=np.array([r.value for r in results]),
        gap=np.array([r.gap for r in results]),
        derivative=np.array([_derivative(r, f, settings.n_states) for r, f in zip(results, drift, strict=True)]),
        known=np.abs(_mean_position(drift, settings) - _mean_position([settings.true_drift], settings)),
        difference=difference,
        slopes=slopes,
    )


def _distance(f: float, settings: Settings) -> DistanceResult:
    target, model = drift_walk(settings.true_drift, settings.n_states), drift_walk(f, settings.n_states)
    return distance(target, model, discount=settings.discount, tol=settings.tol)


def _derivative(result: DistanceResult, f: float, n: int) -> float:
    """Return d'(f) = <∂d/∂P_Y, dP/df>."""
    up = 1.0 / (1.0 + np.exp(-f))
    U, D = birth_death(n, 1.0, 0.0).transition, birth_death(n, 0.0, 1.0).transition
    return float(np.sum(result.gradient.transition_y * (up * (1.0 - up) * (U - D))))


def _mean_position(drifts: Any, settings: Settings) -> Floats:
    """Return <ρ_f, r>, the discounted mean of the position."""
    position = np.arange(settings.n_states)
    return np.array([drift_walk(f, settings.n_states).occupancy(settings.discount) @ position for f in drifts])


def records(outcome: Outcome) -> list[Row]:
    columns = {
        "drift": outcome.drift,
        "distance": outcome.value,
        "certified_gap": outcome.gap,
        "known_distance": outcome.known,
        "derivative": outcome.derivative,
        "finite_difference": outcome.difference,
    }
    return [dict(zip(columns, row, strict=True)) for row in np.array(list(columns.values())).T.tolist()]


def table(outcome: Outcome) -> list[Row]:
    kink = int(np.flatnonzero(np.isnan(outcome.difference))[0])
    return [
        {
            "f": f"{row['drift']:g}",
            "d(f)": f"{row['distance']:.6f}",
            "certified gap": f"{row['certified_gap']:.0e}",
            "closed form": f"{row['known_distance']:.6f}",
            "d'(f)": f"{row['derivative']:+.6f}",
            "finite difference": "kink" if k == kink else f"{row['finite_difference']:+.6f}",
        }
        for k, row in enumerate(records(outcome))
        if k % 10 == 0 or k == kink
    ]


def summary(outcome: Outcome) -> dict[str, float]:
    return {
        "largest_error_of_distance": float(np.abs(outcome.value - outcome.known).max()),
        "largest_certified_gap": float(outcome.gap.max()),
        "largest_error_of_derivative": float(np.nanmax(np.abs(outcome.derivative - outcome.difference))),
        "slope_left_of_kink": outcome.slopes[0],
        "slope_right_of_kink": outcome.slopes[1],
    }


def findings(outcome: Outcome) -> list[str]:
    s = summary(outcome)
    left, right = outcome.slopes
    return [
        f"distance: equal to its closed form to {s['largest_error_of_distance']:.0e} at {outcome.drift.size} points",
        f"derivative: equal to finite differences to {s['largest_error_of_derivative']:.0e}",
        f"kink: the slope jumps from {left:+.3f} to {right:+.3f} at f = {outcome.settings.true_drift:g}",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    s = summary(outcome)
    if max(s["largest_error_of_distance"], s["largest_error_of_derivative"]) > 1e-5:
        return DIFFERS, "The gradient is not the derivative of the distance."
    return IN_PART, (
        "The formula is the derivative everywhere except at the minimum. There the distance has a kink, so steps of "
        "constant length overshoot even with an exact gradient, not only because of estimation errors."
    )


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(6.4, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    f, true, every = outcome.drift, outcome.settings.true_drift, slice(None, None, 4)
    left, right = f < true, f > true
    plain(top).plot(f, outcome.value, color=BLUE, label="exact solver")
    top.plot(f[every], outcome.known[every], "o", color="black", mfc="none", ms=5, label="closed form")
    top.set_ylabel("distance $d(f)$ (positions)")
    for side in (left, right):
        plain(bottom).plot(f[side], outcome.derivative[side], color=BLUE, label="exact" if side is left else None)
    bottom.plot(f[every], outcome.difference[every], "x", color=VERMILION, ms=6, mew=1.4, label="finite difference")
    bottom.plot([true, true], outcome.slopes, "o", color=BLUE, mfc="white", ms=5)
    jump = f"the slope jumps\nfrom {outcome.slopes[0]:+.2f} to {outcome.slopes[1]:+.2f}".replace("-", "−")
    bottom.annotate(jump, (true, outcome.slopes[0]), xytext=(10, -26), textcoords="offset points", fontsize=9)
    bottom.set_ylabel("derivative $d'(f)$ (positions)")
    bottom.set_xlabel("drift $f$ of the model: log-odds of a step up")
    for ax in (top, bottom):
        ax.axvline(true, color=GRAY, linestyle="--", linewidth=1)
        ax.legend(framealpha=1, edgecolor="none", loc="upper right" if ax is top else "lower right")
    top.annotate(f"target\n$f^* = {true:g}$", (true, 0.0), xytext=(6, 34), textcoords="offset points", fontsize=9)
    figure.suptitle("Fitting one parameter: the distance has a kink at its minimum", fontsize=11)
    return figure
