"""State metrics on three small MDPs: Ferns' metric, the lax metric, and the metric of the optimal policy.

The MDPs are FrozenLake 8×8 (slippery), Taxi and four rooms. The metrics between all states (of the exact quotient) are
certified; the plot shows the distance of every cell from one. The lax metric is at most Ferns' metric, and both bound
differences of optimal values; so does the metric of the optimal policy, whose values are the optimal ones.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.distances.mdps import bisimulation
from diffbisim.plot.style import new_figure
from diffbisim.processes.environments import from_env, import_gymnasium
from diffbisim.processes.examples import four_rooms
from diffbisim.processes.lumping import lump
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import optimal_policy, optimal_values
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Metrics of MDPs: FrozenLake, Taxi, four rooms"
CLAIM = "The paper's chains have no actions."

METRICS = ("Ferns (matched)", "lax", "optimal policy")


@dataclass(frozen=True)
class Settings:
    worlds: tuple[str, ...] = ("FrozenLake 8x8", "Taxi", "four rooms")
    discount: float = 0.95
    tol: float = 1e-6


@dataclass(frozen=True, eq=False)
class World:
    """An MDP, the map of its cells, and the metrics between its states."""

    mdp: MDP
    classes: Integers  # (n,) by lumping
    cells: Integers  # map of state numbers, -1 for walls
    origin: int  # the state that distances are drawn from
    values: Floats  # v*, (n,)
    metrics: dict[str, Floats]  # (n, n)
    gaps: dict[str, float]  # widest certified interval of an entry
    work: dict[str, float]  # transports solved, in full sweeps
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    worlds: dict[str, World]


def run(settings: Settings) -> Outcome:
    return Outcome(settings, {name: _world(name, settings) for name in settings.worlds})


def _world(name: str, settings: Settings) -> World:
    mdp, cells, origin = _made(name)
    γ, merged = settings.discount, lump(mdp)
    small, at = merged.mdp, np.ix_(merged.assignment, merged.assignment)
    metrics, gaps, work, seconds = {}, {}, {}, {}
    for metric in METRICS:
        began = time.perf_counter()
        r = bisimulation(
            _of_policy(small, γ) if metric == "optimal policy" else small, γ, "lax" if metric == "lax" else "matched",
            tol=settings.tol,
        )  # fmt: skip
        seconds[metric] = time.perf_counter() - began
        metrics[metric] = np.array(r.values)[at]
        gaps[metric] = float((r.values_upper - r.values_lower).max())
        work[metric] = r.work["transports"] / (r.work["pairs"] * r.work["choices"])
    v = optimal_values(mdp, γ)
    return World(
        mdp, merged.assignment, cells, origin, (1 - γ) * (v.lower + v.upper) / 2, metrics, gaps, work, seconds
    )  # fmt: skip


def _of_policy(mdp: MDP, discount: float) -> MDP:
    """Return the chain of the optimal policy as an MDP with one action, whose metric is that of the chain."""
    chain = mdp.induced_chain(optimal_policy(mdp, discount))
    return MDP([chain.transition], rewards=chain.rewards)


def _made(name: str) -> tuple[MDP, Integers, int]:
    """Return the MDP, the map of its cells and the reference state."""
    if name == "four rooms":
        mdp = four_rooms(7)
        cells = np.full((7, 7), -1)
        names: Any = mdp.names
        for k, cell in enumerate(names):
            cells[cell] = k
        return mdp, cells, 0
    gym = import_gymnasium()
    if (
        name == "Taxi"
    ):  # state ((row, column), passenger at the first corner, to the second): ((5 row + column) 5 + 0) 4 + 1
        known = sorted(spec for spec in gym.registry if spec.startswith("Taxi-v"))
        mdp = from_env(gym.make(known[-1]))
        return mdp, np.arange(25).reshape(5, 5) * 20 + 16, 20 * 12 + 16
    mdp = from_env(gym.make("FrozenLake-v1", map_name="8x8"))
    return mdp, np.arange(64).reshape(8, 8), 0


def records(outcome: Outcome) -> list[Row]:
    return [
        {"world": name, "metric": metric, "states": world.mdp.n_states, "classes": int(world.classes.max()) + 1,
         "largest": float(world.metrics[metric].max()), "gap": world.gaps[metric], "sweeps": world.work[metric],
         "seconds": world.seconds[metric], **_against_values(world, metric)}
        for name, world in outcome.worlds.items()
        for metric in METRICS
    ]  # fmt: skip


def _against_values(world: World, metric: str) -> dict[str, float]:
    """Return differences of optimal values as a share of the metric, for pairs above 0.1% of the largest distance."""
    distances = world.metrics[metric]
    apart = distances > 1e-3 * distances.max()
    share = np.abs(np.subtract.outer(world.values, world.values))[apart] / distances[apart]
    return {"median_share_of_value_difference": float(np.median(share)), "largest_share": float(share.max())}


def table(outcome: Outcome) -> list[Row]:
    """Return the rows to print; sweeps are transports solved per pair, value shares |v*(s) - v*(t)| over the metric."""
    return [
        {
            "world": row["world"],
            "states": f"{row['states']} ({row['classes']} classes)",
            "metric": row["metric"],
            "widest": f"{row['largest']:.4g}",
            "certified to": f"{row['gap']:.0e}",
            "sweeps": f"{row['sweeps']:.1f}",
            "value share, median": f"{row['median_share_of_value_difference']:.2f}",
            "largest": f"{row['largest_share']:.2f}",
        }
        for row in records(outcome)
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        name: {
            "classes": int(world.classes.max()) + 1,
            "lax_over_matched": _ratio(world),
            "lax_above_matched": float((world.metrics["lax"] - world.metrics["Ferns (matched)"]).max()),
            "largest_share": {metric: _against_values(world, metric)["largest_share"] for metric in METRICS},
        }
        for name, world in outcome.worlds.items()
    }


def _ratio(world: World) -> float:
    """Return the mean of the lax metric over that of Ferns'."""
    return float(world.metrics["lax"].mean() / world.metrics["Ferns (matched)"].mean())


def findings(outcome: Outcome) -> list[str]:
    said = []
    for name, world in outcome.worlds.items():
        said.append(
            f"{name}: {world.mdp.n_states} states in {int(world.classes.max()) + 1} classes; the lax metric is on "
            f"average {_ratio(world):.2f} of Ferns', all entries certified to {max(world.gaps.values()):.0e}"
        )
    return said


def verdict(outcome: Outcome) -> tuple[str, str]:
    worst = max(found["lax_above_matched"] for found in summary(outcome).values())
    order = "never above" if worst <= 1e-5 else f"above by {worst:.1g}, which is wrong,"
    return BEYOND, f"Three metrics of MDPs, certified; lax is {order} Ferns'."


def plot(outcome: Outcome) -> Figure:
    rows = len(outcome.worlds)
    figure = new_figure(8.2, 2.2 * rows + 0.4)
    axes = figure.subplots(rows, 3, squeeze=False)
    for ax, metric in zip(axes[0], METRICS, strict=True):
        ax.set_title(metric, fontsize=10)
    for line, (name, world) in zip(axes, outcome.worlds.items(), strict=True):
        maps = {metric: _map(world, metric) for metric in METRICS}
        for ax, metric in zip(line, METRICS, strict=True):
            image = ax.imshow(maps[metric], cmap="cividis", vmin=0.0, interpolation="nearest")
            row, column = np.argwhere(world.cells == world.origin)[0]
            ax.plot(column, row, "o", color="white", markersize=5)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_facecolor("#CCCCCC")
            figure.colorbar(image, ax=ax, shrink=0.85)
        line[0].set_ylabel(name)
    figure.suptitle("Distance of every cell from the one with the dot (units of reward)", fontsize=11)
    return figure


def _map(world: World, metric: str) -> Floats:
    distances = world.metrics[metric][world.origin]
    return np.where(world.cells >= 0, distances[world.cells], np.nan)
