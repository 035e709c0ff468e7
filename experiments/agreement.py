"""Agreement of two independent solvers: policy iteration and the paper's linear program.

The chains are random and dense (Dirichlet rows, rewards uniform on [0, 1]) and of increasing size. The solvers share
only the problem and the rule for certified bounds. For dense chains the program has n_X² n_Y² variables, so it serves
as a reference for small problems. Times are from one machine; only their ratio is meaningful.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffbisim.distances.chains import distance
from diffbisim.plot.style import BLUE, GRAY, VERMILION, new_figure, plain
from diffbisim.processes.examples import random_chain
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diffbisim.processes.chain import MarkovChain
    from diffbisim.results.base import DistanceResult

TITLE = "Exact solver against the linear program, random dense chains"

CLAIM = "The bisimulation metric is the value of a linear program over bicausal couplings."


@dataclass(frozen=True)
class Settings:
    sizes: tuple[tuple[int, int], ...] = ((2, 2), (3, 4), (4, 4), (5, 5), (6, 6), (7, 8), (9, 9))
    discount: float = 0.95
    tol: float = 1e-9
    repeats: int = 5  # repetitions of the exact solver, of which the fastest is reported
    rng: int = 0


@dataclass(frozen=True, eq=False)
class Comparison:
    n_x: int
    n_y: int
    exact: DistanceResult
    program: DistanceResult
    exact_seconds: float
    program_seconds: float


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    comparisons: tuple[Comparison, ...]


def run(settings: Settings) -> Outcome:
    _compare(settings, 2, 2, 0)  # compiles
    return Outcome(settings, tuple(_compare(settings, *sizes, k) for k, sizes in enumerate(settings.sizes)))


def _compare(settings: Settings, n_x: int, n_y: int, k: int) -> Comparison:
    seed = settings.rng + 2 * k
    chains = random_chain(n_x, seed), random_chain(n_y, seed + 1)
    exact = [_timed(settings, chains, "exact") for _ in range(settings.repeats)]
    program, program_seconds = _timed(settings, chains, "lp")
    return Comparison(n_x, n_y, exact[0][0], program, min(seconds for _, seconds in exact), program_seconds)


def _timed(settings: Settings, chains: tuple[MarkovChain, MarkovChain], solver: str) -> tuple[DistanceResult, float]:
    began = time.perf_counter()
    result = distance(chains[0], chains[1], discount=settings.discount, solver=solver, tol=settings.tol)
    return result, time.perf_counter() - began


def records(outcome: Outcome) -> list[Row]:
    return [
        {
            "n_x": c.n_x,
            "n_y": c.n_y,
            "exact": c.exact.value,
            "exact_lower": c.exact.lower,
            "exact_upper": c.exact.upper,
            "lp": c.program.value,
            "lp_lower": c.program.lower,
            "lp_upper": c.program.upper,
            "difference": abs(c.exact.value - c.program.value),
            "exact_seconds": c.exact_seconds,
            "lp_seconds": c.program_seconds,
            "time_ratio": c.program_seconds / c.exact_seconds,
        }
        for c in outcome.comparisons
    ]


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "states": f"{c.n_x} x {c.n_y}",
            "exact": f"{c.exact.value:.6f}",
            "lp": f"{c.program.value:.6f}",
            "apart": f"{abs(c.exact.value - c.program.value):.0e}",
            "gap exact": f"{c.exact.gap:.0e}",
            "gap lp": f"{c.program.gap:.0e}",
            "ms exact": f"{1e3 * c.exact_seconds:.1f}",
            "ms lp": f"{1e3 * c.program_seconds:.0f}",
            "ratio": f"{c.program_seconds / c.exact_seconds:.0f}x",
        }
        for c in outcome.comparisons
    ]


def summary(outcome: Outcome) -> dict[str, float]:
    rows = records(outcome)
    return {
        "largest_difference": max(row["difference"] for row in rows),
        "largest_gap_exact": max(row["exact_upper"] - row["exact_lower"] for row in rows),
        "largest_gap_lp": max(row["lp_upper"] - row["lp_lower"] for row in rows),
        "least_time_ratio": min(row["time_ratio"] for row in rows),
        "most_time_ratio": max(row["time_ratio"] for row in rows),
    }


def findings(outcome: Outcome) -> list[str]:
    s, pairs = summary(outcome), outcome.comparisons
    apart = sum(c.exact.lower > c.program.upper or c.program.lower > c.exact.upper for c in pairs)
    overlap = "all certified intervals overlap" if not apart else f"{apart} certified intervals DO NOT overlap"
    return [
        f"largest difference {s['largest_difference']:.0e}; {overlap}",
        f"the exact solver is {s['least_time_ratio']:.0f} to {s['most_time_ratio']:.0f} times faster here",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    if summary(outcome)["largest_difference"] > 1e-7:
        return DIFFERS, "The fixed point and the program have different values."
    return AGREES, "The fixed point of the Bellman operator and the program have the same value, to the certified gap."


def plot(outcome: Outcome) -> Figure:
    rows, floor = records(outcome), 1e-16
    pairs = [row["n_x"] * row["n_y"] for row in rows]
    figure = new_figure(7.2, 3.6)
    left, right = (plain(ax) for ax in figure.subplots(1, 2))
    for name, label, color, style in (
        ("exact", "exact solver", BLUE, "o-"),
        ("lp", "linear program", VERMILION, "s--"),
    ):
        left.plot(pairs, [1e3 * row[f"{name}_seconds"] for row in rows], style, color=color, label=label)
        gaps = [max(row[f"{name}_upper"] - row[f"{name}_lower"], floor) for row in rows]
        right.plot(pairs, gaps, style, color=color, label=f"certified gap, {label}")
    apart = [max(row["difference"], floor) for row in rows]
    right.plot(pairs, apart, "x", color="black", label="difference of the two")
    right.axhline(outcome.settings.tol, color=GRAY, linewidth=1.2, linestyle=":", label="tolerance")
    left.set(ylabel="time (ms)", yscale="log")
    right.set(ylabel="error (units of reward)", yscale="log", ylim=(min(apart + gaps) / 10, 1e3 * outcome.settings.tol))
    for ax in (left, right):
        ax.set(xscale="log", xlabel="pairs of states $n_X n_Y$")
        ax.set_xticks(pairs, labels=map(str, pairs))
        ax.minorticks_off()
        ax.legend(framealpha=1, edgecolor="none", fontsize=8, loc="upper left")
    figure.suptitle("Two independent solvers, one distance", fontsize=11)
    return figure
