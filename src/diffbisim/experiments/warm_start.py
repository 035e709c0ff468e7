"""Warm starts and the single loop: the inner work of a fit of a chain squeezed into fewer states.

    cold         every inner solve begins anew
    warm         it begins at the last solution
    gap          and is no more exact than the step deserves
    single loop  one improvement of the coupling per step

Work is counted, not timed: pivots of the transports and sweeps over the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.data.examples import random_chain
from diffbisim.experiments.report import AGREES, IN_PART, Row
from diffbisim.fit.dbot import annealed, fit
from diffbisim.plot.style import BLUE, GREEN, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Warm starts and the single loop: inner work of a fit"
CLAIM = "Warm starts of the inner solver save work; a single loop is left as future work."

WAYS: dict[str, dict[str, Any]] = {
    "double loop, cold": {"warm": False, "inner_gap": 0.0},
    "double loop, warm": {"inner_gap": 0.0},
    "double loop, warm, gap tied to the step": {},
    "single loop": {"loop": "single"},
}


@dataclass(frozen=True)
class Settings:
    steps: int = 200
    n_states: int = 12
    n_abstract: int = 4
    discount: float = 0.95
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    work: dict[str, tuple[float, int, int]]  # by loop: final distance, pivots, sweeps


def run(settings: Settings) -> Outcome:
    from diffbisim.fit.kernels import Softmax

    X, rewards = random_chain(settings.n_states, settings.seed), np.linspace(0.0, 1.0, settings.n_abstract)
    optimizer, scheduler = annealed(settings.steps)
    work = {}
    for name, way in WAYS.items():
        result = fit(
            X, Softmax(settings.n_abstract), discount=settings.discount, rewards=rewards, steps=settings.steps,
            optimizer=optimizer, scheduler=scheduler, **way,
        )  # fmt: skip
        work[name] = result.value, result.work["pivots"], result.work["sweeps"]
    return Outcome(settings, work)


def records(outcome: Outcome) -> list[Row]:
    return [
        {"loop": name, "distance": d, "pivots": pivots, "sweeps": sweeps}
        for name, (d, pivots, sweeps) in outcome.work.items()
    ]


def table(outcome: Outcome) -> list[Row]:
    first = next(iter(outcome.work.values()))
    return [
        {
            "loop": name,
            "distance": f"{d:.6f}",
            "pivots": str(pivots),
            "sweeps": str(sweeps),
            "less work": f"{(first[1] + first[2]) / (pivots + sweeps):.1f}x",
        }
        for name, (d, pivots, sweeps) in outcome.work.items()
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "inner_work": {name: pivots + sweeps for name, (_, pivots, sweeps) in outcome.work.items()},
        "distance": {name: d for name, (d, _, _) in outcome.work.items()},
    }


def findings(outcome: Outcome) -> list[str]:
    total = summary(outcome)["inner_work"]
    cold, warm = total["double loop, cold"], total["double loop, warm"]
    return [
        f"warm starts save {cold / warm:.1f}x inner work, tying the gap to the step "
        f"{warm / total['double loop, warm, gap tied to the step']:.1f}x more, a single loop "
        f"{warm / total['single loop']:.1f}x over the warm double loop"
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Do warm starts save work, and does a single loop save more?"""
    work = summary(outcome)["inner_work"]
    if work["single loop"] < work["double loop, warm"] < work["double loop, cold"]:
        return AGREES, "Both do."
    return IN_PART, "Not every one of these savings showed."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(6.0, 3.4)
    ax = figure.subplots()
    at = np.arange(len(outcome.work))
    pivots, sweeps = (np.array([numbers[k] for numbers in outcome.work.values()], dtype=float) for k in (1, 2))
    ax.barh(at, pivots, color=BLUE, label="pivots")
    ax.barh(at, sweeps, left=pivots, color=GREEN, label="sweeps")
    ax.set_yticks(at, [name.replace(", ", ",\n") for name in outcome.work], fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="inner work", title=f"{outcome.settings.steps} steps")
    ax.legend(frameon=False, fontsize=8)
    plain(ax)
    return figure
