"""Value bounds: the metric between two states, compared with the difference of their optimal values.

``|v*(s) - v*(t)| ≤ U(s,t)`` for Ferns' and the lax metric, and ``v*(s) - v*(t) ≤ S(s,t)`` for the directed one, with
v* = (1-γ) V*. Every point is a pair of states of a random MDP (dense, sparse or deterministic) or of four rooms; the
bound is the diagonal, and a tight metric has points close to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.mdps import bisimulation
from diffbisim.plot.style import BLUE, GREEN, ORANGE, VERMILION, new_figure, plain
from diffbisim.processes.examples import four_rooms
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import optimal_values
from experiments.report import BEYOND, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Value bounds of MDP metrics against true differences"
CLAIM = "The paper's chains have no actions; there the metric bounds differences of values in the same way."

KINDS = {"dense": BLUE, "sparse": ORANGE, "deterministic": GREEN, "four rooms": VERMILION}
METRICS = {"matched": "Ferns (matched)", "lax": "lax", "directed": "directed"}


@dataclass(frozen=True)
class Settings:
    n_states: int = 10
    n_actions: int = 3
    mdps: int = 20  # of each kind
    discount: float = 0.9
    rooms: bool = True
    rng: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    differences: dict[tuple[str, str], Floats]  # by kind and metric
    bounds: dict[tuple[str, str], Floats]


def run(settings: Settings) -> Outcome:
    rng, γ = np.random.default_rng(settings.rng), settings.discount
    worlds = [(kind, _random(kind, settings, rng)) for kind in list(KINDS)[:3] for _ in range(settings.mdps)]
    if settings.rooms:
        worlds.append(("four rooms", four_rooms(7)))
    differences: dict[tuple[str, str], list[Floats]] = {}
    bounds: dict[tuple[str, str], list[Floats]] = {}
    for kind, mdp in worlds:
        v = (1 - γ) * np.mean(optimal_values(mdp, γ), axis=0)
        signed = np.subtract.outer(v, v)
        pairs = ~np.eye(mdp.n_states, dtype=bool)
        for actions in METRICS:
            upper = bisimulation(mdp, γ, actions, tol=1e-7).values_upper
            true = signed if actions == "directed" else np.abs(signed)
            differences.setdefault((kind, actions), []).append(true[pairs])
            bounds.setdefault((kind, actions), []).append(upper[pairs])
    joined = [{key: np.concatenate(parts) for key, parts in table.items()} for table in (differences, bounds)]
    return Outcome(settings, *joined)


def _random(kind: str, settings: Settings, rng: np.random.Generator) -> MDP:
    n, k = settings.n_states, settings.n_actions
    if kind == "dense":
        P = rng.dirichlet(np.ones(n), (k, n))
    elif kind == "deterministic":
        P = np.eye(n)[rng.integers(0, n, (k, n))]
    else:
        P = np.zeros((k, n, n))
        for row in P.reshape(k * n, n):
            row[rng.choice(n, min(3, n), replace=False)] = rng.dirichlet(np.ones(min(3, n)))
    return MDP(P, rewards=rng.random((n, k)))


def records(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for (kind, actions), true in outcome.differences.items():
        bound = outcome.bounds[kind, actions]
        positive = true > 0
        share = true[positive] / bound[positive]
        rows.append({
            "mdps": kind, "metric": METRICS[actions], "pairs": true.size, "violations": int((true > bound).sum()),
            "median_share": float(np.median(share)), "largest_share": float(share.max()),
        })  # fmt: skip
    return rows


def table(outcome: Outcome) -> list[Row]:
    return [
        {"MDPs": row["mdps"], "metric": row["metric"], "pairs": str(row["pairs"]), "violations": str(row["violations"]),
         "difference / bound, median": f"{row['median_share']:.3f}", "largest": f"{row['largest_share']:.4f}"}
        for row in records(outcome)
    ]  # fmt: skip


def summary(outcome: Outcome) -> dict[str, Any]:
    rows = records(outcome)
    return {
        "violations": sum(row["violations"] for row in rows),
        "pairs": sum(row["pairs"] for row in rows),
        "median_share": {f"{row['mdps']}, {row['metric']}": row["median_share"] for row in rows},
    }


def findings(outcome: Outcome) -> list[str]:
    found = summary(outcome)
    by_metric = {
        name: np.median([row["median_share"] for row in records(outcome) if row["metric"] == name])
        for name in METRICS.values()
    }
    said = ", ".join(f"{share:.2f} of the {name} bound" for name, share in by_metric.items())
    return [
        f"{found['violations']} of {found['pairs']} bounds violated",
        f"the true difference of values is, at the median, {said}",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    if summary(outcome)["violations"]:
        return DIFFERS, "A certified bound was violated, which is a bug."
    return BEYOND, "No bound was violated."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(10.2, 3.7)
    for ax, (actions, title) in zip(figure.subplots(1, 3), METRICS.items(), strict=True):
        plain(ax)
        top = 0.0
        for kind, color in KINDS.items():
            if (kind, actions) in outcome.bounds:
                bound, true = outcome.bounds[kind, actions], outcome.differences[kind, actions]
                ax.plot(bound, np.maximum(true, 0.0), ".", color=color, markersize=2.5, alpha=0.5, label=kind)
                top = max(top, float(bound.max()))
        ax.plot([0, top], [0, top], "-", color="black", linewidth=1)
        ax.set_title(title, fontsize=10)
        ax.set(xlabel="certified bound", xlim=(0, 1.02 * top), ylim=(0, 1.02 * top))
        if actions == "matched":
            ax.set_ylabel(r"$|v^*(s) - v^*(t)|$")
            ax.legend(fontsize=8, markerscale=4, framealpha=1, edgecolor="none")
        elif actions == "directed":
            ax.set_ylabel(r"$(v^*(s) - v^*(t))^+$")
    return figure
