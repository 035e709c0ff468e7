"""Abstraction of four rooms with an irrelevant variable, compared with methods from the literature.

There are 40 cells times 3 values of a variable without effect, 120 states, slip 0.1, γ = 0.95. For k = 5 … 40 classes
the exact loss of the lifted optimal policy in the worst state is computed for Ferns' ε-balls, greedy closest pairs,
k-medians on Q*, k-medians on Ferns' metric (median and best over the seeds), and `abstract`, the best of all candidates
by exact evaluation.

In addition, a-priori bounds are evaluated with the 40 cells as classes if the variable has a small influence ν.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.plot.style import BLUE, GRAY, GREEN, ORANGE, PURPLE, VERMILION, new_figure, plain
from diffbisim.processes.examples import four_rooms
from diffbisim.processes.planning import optimal_policy
from diffbisim.reduction.abstraction.result import AbstractionResult
from diffbisim.reduction.abstraction.search import abstract
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Abstraction of four rooms with an irrelevant variable"
CLAIM = "The paper compresses chains, which have no actions."

#: Candidates of `abstract` by the name of the method in the table.
METHODS = {"ε-balls": "balls", "greedy pairs": "greedy", "Q*": "q", "Ferns' metric": "bisimulation"}
OURS = "abstract"
COLORS = {OURS: BLUE, "ε-balls": ORANGE, "greedy pairs": GREEN, "Q*": PURPLE, "Ferns' metric": VERMILION}


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...] = (5, 10, 15, 20, 30, 40)
    restarts: int = 20
    influences: tuple[float, ...] = (1e-4, 1e-2, 0.3)
    drawn: int = 10  # classes in the picture
    discount: float = 0.95
    rng: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    ours: dict[int, AbstractionResult]
    rows: list[Row]  # of all methods
    bounds: list[Row]  # for positions as classes, by influence


def run(settings: Settings) -> Outcome:
    rooms = four_rooms(7, irrelevant=3)
    options: dict[str, Any] = {"discount": settings.discount, "rng": settings.rng, "restarts": settings.restarts}
    ours = {k: abstract(rooms, k, **options) for k in sorted({*settings.sizes, settings.drawn})}
    rows = [row for k in settings.sizes for row in _rows(k, ours[k])]
    bounds = [_bounds(influence, settings.discount) for influence in settings.influences]
    return Outcome(settings, ours, rows, bounds)


def _rows(k: int, found: AbstractionResult) -> list[Row]:
    """Return median and best loss of every method; at 40 classes all of them find the exact quotient."""
    rows: list[Row] = []
    for name, method in METHODS.items():
        tried = [row for row in found.candidates if row.method in (method, "lump")]
        rows.append({
            "states": k, "method": name, **_statistics("loss", [row.loss for row in tried]),
            **_statistics("lookahead", [row.lookahead_loss for row in tried]),
        })  # fmt: skip
    best, ahead = (min(getattr(row, name) for row in found.candidates) for name in ("loss", "lookahead_loss"))
    ours: dict[str, Any] = {"states": k, "method": OURS, **_statistics("loss", [best])}
    return [*rows, {**ours, **_statistics("lookahead", [ahead])}]


def _statistics(name: str, losses: list[float]) -> dict[str, float]:
    return {f"{name}_median": float(np.median(losses)), f"{name}_best": float(min(losses))}


def _bounds(influence: float, discount: float) -> Row:
    """Return the true loss and a-priori bounds with the cells as classes, for several influences."""
    found = abstract(
        four_rooms(7, irrelevant=3, influence=influence), discount=discount, assignment=np.arange(120) // 3
    )
    names = "loss", "reward_bound", "bound", "family_bound"
    return {"influence": influence, **{name: float(getattr(found, name)) for name in names}}


def records(outcome: Outcome) -> list[Row]:
    return outcome.rows


def table(outcome: Outcome) -> list[Row]:
    """Return the loss in the worst state: median and best over the seeds."""
    rows: list[Row] = []
    for k in outcome.settings.sizes:
        own = {row["method"]: row for row in outcome.rows if row["states"] == k}
        rows.append({
            "states": str(k),
            **{name: f"{own[name]['loss_median']:.3f} / {own[name]['loss_best']:.3f}" for name in METHODS},
            "abstract": f"{own[OURS]['loss_best']:.3f}",
            "with lookahead": f"{own[OURS]['lookahead_best']:.3f}",
        })  # fmt: skip
    return rows


def summary(outcome: Outcome) -> dict[str, Any]:
    best = {name: {str(row["states"]): row["loss_best"] for row in outcome.rows if row["method"] == name}
            for name in (*METHODS, OURS)}  # fmt: skip
    winners = {str(k): found.method for k, found in outcome.ours.items()}
    return {"loss": best, "winners": winners, "bounds": [dict(row) for row in outcome.bounds]}


def findings(outcome: Outcome) -> list[str]:
    loss, last = summary(outcome)["loss"], str(max(outcome.settings.sizes))
    named = {k: min(loss[name][k] for name in METHODS) for k in loss[OURS]}
    ahead = [k for k in named if loss[OURS][k] < named[k] - 1e-9]
    said = [
        f"with {last} states the loss is {loss[OURS][last]:.0e}; with {', '.join(ahead) or 'no other number'} abstract "
        "loses less than the best candidate of every other method",
        "the best partitions were found by: "
        + ", ".join(f"{k} states: {method}" for k, method in summary(outcome)["winners"].items()),
    ]
    for row in outcome.bounds:
        said.append(
            f"cells as classes, influence {row['influence']:g}: loss {row['loss']:.1e}, bound for this reward "
            f"{row['reward_bound']:.1e}, encoder bound {row['bound']:.1e}"
        )
    return said


def verdict(outcome: Outcome) -> tuple[str, str]:
    return BEYOND, "The worst-state loss of planning on few states, exact, on one world."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1.0))
    plain(left)
    for name, color in COLORS.items():
        own = [row for row in outcome.rows if row["method"] == name]
        at = [row["states"] for row in own]
        best = np.maximum([row["loss_best"] for row in own], 1e-6)
        wide = 2.4 if name == OURS else 1.4
        left.plot(
            at, best, "o-", color=color, linewidth=wide, markersize=4, label=name, zorder=3 if name == OURS else 2
        )
        if name != OURS:
            left.plot(at, np.maximum([row["loss_median"] for row in own], 1e-6), ":", color=color, linewidth=1.2)
    left.set_yscale("log")
    left.set(xlabel="abstract states", ylabel="loss in the worst state (at least 1e-6)")
    left.set_xticks(outcome.settings.sizes)
    figure.legend(
        fontsize=8,
        title="best seed (dotted: median)",
        title_fontsize=8,
        loc="outside lower left",
        ncols=5,
        frameon=False,
    )
    _draw_classes(right, outcome.ours[outcome.settings.drawn])
    return figure


def _draw_classes(ax: Axes, found: AbstractionResult) -> None:
    """Draw the classes on the map of the rooms, and the lifted policy."""
    from matplotlib import colormaps

    cells: Floats = np.full((7, 7, 3), 0.25)
    colors = colormaps["tab20"](np.arange(found.n_states) % 20)[:, :3]
    arrows = {"up": "↑", "down": "↓", "left": "←", "right": "→"}
    actions = found.ground.actions or ()
    policy, best = found.lift(found.policy), optimal_policy(found.ground, found.discount)
    names: Any = found.ground.names
    for s, (row, column, value) in enumerate(names):
        if value == 0:
            cells[row, column] = 0.45 + 0.55 * colors[found.assignment[s]]
            other = found.losses[s] > 1e-9
            ax.text(
                column, row, arrows[str(actions[policy[s]])], ha="center", va="center", fontsize=11,
                color=VERMILION if other and policy[s] != best[s] else "black",
            )  # fmt: skip
    ax.imshow(cells, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_color(GRAY)
    ax.set_title(f"{found.n_states} classes: loss {found.loss:.2g} in the worst cell", fontsize=10)
