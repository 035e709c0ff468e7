"""Warm starts and the single loop: inner work of fitting a chain with fewer states.

    cold         every inner solve starts from scratch
    warm         it starts from the last solution
    gap          and its accuracy is tied to the step length
    single loop  one sweep per step, with pivots where they matter

Work is counted instead of timed: pivots of the transports, sweeps over the pairs and, separately, sweeps for the
occupancy, which the gradient needs. The certification of the result is included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.learning.fit.fitting import annealed, fit
from diffbisim.plot.style import BLUE, GREEN, VERMILION, new_figure, plain
from diffbisim.processes.examples import random_chain
from experiments.report import AGREES, IN_PART, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Warm starts and the single loop: inner work of a fit"
CLAIM = "Warm starts of the inner solver save work; a single loop is left as future work."

TIED = "double loop, warm, gap tied to the step"

WAYS: dict[str, dict[str, Any]] = {
    "double loop, cold": {"warm": False, "inner_gap": 0.0},
    "double loop, warm": {"inner_gap": 0.0},
    TIED: {},
    "single loop": {"loop": "single"},
}


@dataclass(frozen=True)
class Settings:
    max_iterations: int = 200
    sizes: tuple[tuple[int, int], ...] = ((20, 5),)  # states of the chain, and of the model
    discount: float = 0.95
    seeds: int = 1


FULL = Settings(sizes=((20, 5), (30, 6), (40, 8)), seeds=5)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    cases: list[tuple[int, int, int]]  # states, states of the model, seed
    work: dict[str, Floats]  # by loop, (cases, 4): final distance, pivots, sweeps, sweeps for the gradient


def run(settings: Settings) -> Outcome:
    cases = [(*size, seed) for size in settings.sizes for seed in range(settings.seeds)]
    return Outcome(
        settings, cases, {name: np.array([_fit(settings, *case, way) for case in cases]) for name, way in WAYS.items()}
    )


def _fit(settings: Settings, n: int, k: int, seed: int, way: dict[str, Any]) -> tuple[float, int, int, int]:
    from diffbisim.learning.fit.kernels import Softmax

    optimizer, scheduler = annealed(settings.max_iterations)
    result = fit(
        random_chain(n, seed), Softmax(k), discount=settings.discount, rewards=np.linspace(0.0, 1.0, k),
        max_iterations=settings.max_iterations, optimizer=optimizer, scheduler=scheduler, **way,
    )  # fmt: skip
    return result.value, result.work["pivots"], result.work["sweeps"], result.work["gradient_sweeps"]


def records(outcome: Outcome) -> list[Row]:
    return [
        {
            "loop": name, "n_states": n, "n_abstract": k, "seed": seed, "distance": float(d), "pivots": int(pivots),
            "sweeps": int(sweeps), "gradient_sweeps": int(more),
        }
        for name, rows in outcome.work.items()
        for (n, k, seed), (d, pivots, sweeps, more) in zip(outcome.cases, rows, strict=True)
    ]  # fmt: skip


def table(outcome: Outcome) -> list[Row]:
    first = next(iter(outcome.work.values()))[:, 1:].sum(axis=0)
    found: list[Row] = []
    for name, rows in outcome.work.items():
        total = rows[:, 1:].sum(axis=0)
        found.append(
            {
                "loop": name,
                "distance (mean)": f"{rows[:, 0].mean():.6f}",
                "pivots": f"{total[0]:.0f}",
                "sweeps": f"{total[1]:.0f}",
                "for the gradient": f"{total[2]:.0f}",
                "less work": f"{first[:2].sum() / total[:2].sum():.1f}x",
                "gradient included": f"{first.sum() / total.sum():.1f}x",
            }
        )
    return found


def summary(outcome: Outcome) -> dict[str, Any]:
    inner = {name: rows[:, 1:3].sum(axis=1) for name, rows in outcome.work.items()}
    everything = {name: rows[:, 1:].sum(axis=1) for name, rows in outcome.work.items()}
    double, single = outcome.work[TIED][:, 0], outcome.work["single loop"][:, 0]
    return {
        "inner_work": {name: int(work.sum()) for name, work in inner.items()},
        "distance": {name: float(rows[:, 0].mean()) for name, rows in outcome.work.items()},
        "single_saves": (inner[TIED] / inner["single loop"]).tolist(),
        "single_saves_gradient_included": (everything[TIED] / everything["single loop"]).tolist(),
        "single_is_farther_by": (single / double - 1).tolist(),
    }


def findings(outcome: Outcome) -> list[str]:
    found = summary(outcome)
    total, saved, all_saved = (found[k] for k in ("inner_work", "single_saves", "single_saves_gradient_included"))
    cold, warm = total["double loop, cold"], total["double loop, warm"]
    return [
        f"warm starts save {cold / warm:.1f}x inner work, tying the gap to the step {warm / total[TIED]:.1f}x more",
        f"over that, a single loop saves {_range(saved)}x, or {_range(all_saved)}x with the sweeps for the gradient; "
        f"its distance is farther by at most {100 * max(found['single_is_farther_by']):.1f} %",
    ]


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check that warm starts save work, and that a single loop saves more."""
    work = summary(outcome)["inner_work"]
    if work["single loop"] < work["double loop, warm"] < work["double loop, cold"]:
        return AGREES, "Both do."
    return IN_PART, "Not all of these savings were observed."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(6.0, 3.4)
    ax = figure.subplots()
    at, left = np.arange(len(outcome.work)), np.zeros(len(outcome.work))
    for k, (label, color) in enumerate((("pivots", BLUE), ("sweeps", GREEN), ("sweeps for the gradient", VERMILION))):
        width = np.array([rows[:, k + 1].sum() for rows in outcome.work.values()])
        ax.barh(at, width, left=left, color=color, label=label)
        left += width
    ax.set_yticks(at, [name.replace(", ", ",\n") for name in outcome.work], fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="pivots and sweeps", title=f"Inner work of a fit of {outcome.settings.max_iterations} steps")
    ax.legend(frameon=False, fontsize=8)
    plain(ax)
    return figure
