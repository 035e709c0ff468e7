"""Number of expert transitions that each method needs: five-state chain, stochastic expert, known dynamics.

The setup is that of imitation_chain.py. The error of an empirical kernel is of order n^(-1/2), and so is the distance
of a policy that reproduces it; methods whose error does not decrease with the data are biased.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.plot.style import BLUE, new_figure, plain
from diffbisim.processes.examples import imitation_chain, soft_right_policy
from experiments.imitation_chain import DASHES, LINES, MEASURES, measure
from experiments.imitators import FAIRNESS, OURS, left_out, policies, standing
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Imitation from few and from many expert transitions, five-state chain"
CLAIM = "The paper does not say how many expert transitions it used."

WORDS = {"distance": "distance (*)", "kernel_kl": "kernel KL"}


@dataclass(frozen=True)
class Settings:
    numbers: tuple[int, ...] = (50, 500, 5_000, 50_000)  # of expert transitions
    epsilon: float = 0.4
    discount: float = 0.9
    seeds: int = 4
    tol: float = 1e-9


FULL = Settings(numbers=(20, 50, 150, 500, 1_500, 5_000, 15_000, 50_000), seeds=20)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    scores: dict[str, Floats]  # method -> (numbers, seeds, 4), in the order of MEASURES


def run(settings: Settings) -> Outcome:
    mdp = imitation_chain()
    pi = soft_right_policy(mdp, settings.epsilon)
    expert = mdp.induced_chain(pi)
    found: dict[str, list[list[list[float]]]] = {}
    for number in settings.numbers:
        runs = []
        for seed in range(settings.seeds):
            shown = expert.sample_transitions(number, settings.discount, np.random.default_rng(seed))
            methods = policies(mdp, shown, settings.discount)
            runs.append({name: measure(mdp, pi, policy, settings) for name, policy in methods.items()})
        for name in runs[0]:
            found.setdefault(name, []).append([scores[name] for scores in runs])
    return Outcome(settings, {name: np.array(scores) for name, scores in found.items()})


def records(outcome: Outcome) -> list[Row]:
    return [
        {"method": name, "transitions": number, "seed": seed, **dict(zip(MEASURES, row, strict=True))}
        for name, scores in outcome.scores.items()
        for number, runs in zip(outcome.settings.numbers, scores.tolist(), strict=True)
        for seed, row in enumerate(runs)
    ]


def medians(outcome: Outcome, name: str, measured: str = "distance") -> Floats:
    """(numbers,)."""
    return np.asarray(np.median(outcome.scores[name][:, :, MEASURES.index(measured)], axis=1))


def table(outcome: Outcome) -> list[Row]:
    best = {k: min(medians(outcome, name)[k] for name in outcome.scores) for k in range(len(outcome.settings.numbers))}
    return [
        {"method": name}
        | {
            f"d at {number}": f"{d:.4f}" + " *" * bool(d == best[k])
            for k, (number, d) in enumerate(zip(outcome.settings.numbers, medians(outcome, name), strict=True))
        }
        | {"kernel KL, most data": f"{medians(outcome, name, 'kernel_kl')[-1]:.1e}"}
        for name in outcome.scores
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        name: {measured: medians(outcome, name, measured).tolist() for measured in ("distance", "kernel_kl")}
        for name in outcome.scores
    }


def findings(outcome: Outcome) -> list[str]:
    numbers = np.log(outcome.settings.numbers)
    slope = np.polyfit(numbers, np.log(medians(outcome, OURS)), 1)[0]
    return [
        FAIRNESS,
        f"{OURS}: d falls as the number of transitions to the power {slope:.2f}",
        *(f"least median {words} at {_winners(outcome, measured)}" for measured, words in WORDS.items()),
        *left_out(outcome.scores),
    ]


def _winners(outcome: Outcome, measured: str) -> str:
    """Return which method has the smallest median at each number of transitions, and which are level with it."""
    column, words = MEASURES.index(measured), []
    for k, number in enumerate(outcome.settings.numbers):
        scores = {name: of[k, :, column] for name, of in outcome.scores.items()}
        first = min(scores, key=lambda name: float(np.median(scores[name])))
        level = standing(scores.pop(first), scores)[1]
        words.append(f"{number}: {first}" + (f" (level: {', '.join(level)})" if level else ""))
    return "; ".join(words)


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Return that this is not in the paper, which does not report its number of transitions."""
    return BEYOND, "It compares the methods with few and with many transitions on one chain."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(10.0, 4.6)
    axes = figure.subplots(1, 2)
    for ax, measured in zip(axes, ("distance", "kernel_kl"), strict=True):
        _panel(plain(ax), outcome, measured)
    axes[0].set_ylabel("distance $d$ to the true expert")
    axes[1].set_ylabel("kernel KL (nats)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    s = outcome.settings
    figure.suptitle(
        f"Five-state chain, ε = {s.epsilon:g}, known dynamics: medians and quartiles of {s.seeds} seeds", fontsize=11
    )
    return figure


def _panel(ax: Axes, outcome: Outcome, measured: str) -> None:
    at, column = np.array(outcome.settings.numbers), MEASURES.index(measured)
    styles = [
        (OURS, BLUE, "-"),
        *((name, color, dash) for (name, color), dash in zip(LINES.items(), DASHES, strict=True)),
    ]
    for name, color, dash in styles:
        if name in outcome.scores:
            low, middle, high = np.quantile(outcome.scores[name][:, :, column], (0.25, 0.5, 0.75), axis=1)
            width = 2.4 if name == OURS else 1.4
            ax.fill_between(at, low, high, color=color, alpha=0.3 if name == OURS else 0.15, linewidth=0)
            ax.plot(at, middle, color=color, linestyle=dash, marker="o", ms=3, linewidth=width, label=name)
    first = medians(outcome, OURS, measured)[0]
    power = -0.5 if measured == "distance" else -1.0
    ax.plot(at, first * (at / at[0]) ** power, color="black", linewidth=0.8, label=r"$\propto n^{-1/2}$, KL $n^{-1}$")
    ax.set(xscale="log", yscale="log", xlabel="expert transitions $n$")
