"""The paper's imitation task: a corridor of five states, an ε-soft "go right" expert, and all methods on equal data.

States are 0 … 4, with the actions left, right, stay and jump to state 0, and a slip with probability 0.1. The expert's
transitions (s, s') are drawn from its discounted occupancy. The dynamics are either *known*, or *estimated* from the
same number of transitions with actions of a uniformly random policy (the paper does not say what its baselines use).
Each seed is evaluated against the true expert in the true MDP:

    d           exact bisimulation distance, cost 1{x ≠ y}
    SPI         the same by Sinkhorn policy iteration, the paper's solver: the midpoint of bounds with a gap of 1e-3
    kernel KL   Σ_s ρ_E(s) KL(P_E(·|s) ‖ P_π(·|s))
    policy KL   Σ_s ρ_E(s) KL(π_E(·|s) ‖ π(·|s))     (right and stay are equivalent, hence not identifiable, in state 4)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import rel_entr

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.learning.imitate.baselines import OfflineData
from diffbisim.plot.style import BLUE, GRAY, GREEN, ORANGE, PURPLE, SKY, VERMILION, YELLOW, new_figure, plain
from diffbisim.processes.examples import imitation_chain, soft_right_policy
from diffbisim.processes.mdp import MDP
from experiments.imitators import (
    FAIRNESS,
    METHODS,
    OURS,
    ahead_and_level,
    left_out,
    policies,
    standing,
    trace,
)
from experiments.report import AGREES, DIFFERS, IN_PART, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Imitation on the five-state chain: every method on equal data"

CLAIM = (
    "Imitation by the metric reduces the distance in all settings and outperforms PW-DICE and IOSTOM, in particular "
    "with a stochastic expert."
)

DYNAMICS = ("known", "estimated")
MIN_DRAWN = 1e-3  # smaller distances are drawn here
MEASURES = ("distance", "spi_distance", "kernel_kl", "policy_kl")


@dataclass(frozen=True)
class Settings:
    epsilons: tuple[float, ...] = (0.0, 0.4)
    discount: float = 0.9
    seeds: int = 4
    expert_transitions: int = 5_000
    offline_transitions: int = 5_000
    tol: float = 1e-9
    iterations: tuple[int, ...] = (
        1,
        2,
        4,
        8,
        15,
        30,
        60,
        100,
    )  # of D-BOT, where its curve is drawn; it ends at the last


FULL = Settings(seeds=20, iterations=(1, 2, 3, 4, 6, 8, 11, 15, 20, 30, 45, 60, 80, 100))


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    scores: dict[tuple[float, str, str], Floats]  # (ε, dynamics, method) -> (seeds, 4), in the order of MEASURES
    curves: dict[tuple[float, str], Floats]  # (ε, dynamics) -> (seeds, iterations, 4), of D-BOT's best policy so far


def run(settings: Settings) -> Outcome:
    mdp = imitation_chain()
    found: dict[tuple[float, str, str], Floats] = {}
    curves: dict[tuple[float, str], Floats] = {}
    for epsilon in settings.epsilons:
        pi = soft_right_policy(mdp, epsilon)
        runs = [_one(mdp, pi, settings, seed) for seed in range(settings.seeds)]
        for dynamics in DYNAMICS:
            curves[epsilon, dynamics] = np.array([curve[dynamics] for _, curve in runs])
            found[epsilon, dynamics, OURS] = curves[epsilon, dynamics][:, -1]
            for name in runs[0][0][dynamics]:
                found[epsilon, dynamics, name] = np.array([scores[dynamics][name] for scores, _ in runs])
    return Outcome(settings, found, curves)


def _one(mdp: MDP, pi: Floats, settings: Settings, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores of the baselines and the curve of D-BOT, by dynamics."""
    gamma, rng = settings.discount, np.random.default_rng(seed)
    shown = mdp.induced_chain(pi).sample_transitions(settings.expert_transitions, gamma, rng)
    estimated = OfflineData.sample(mdp, settings.offline_transitions, gamma, rng)
    scores, curves = {}, {}
    for dynamics, offline in zip(DYNAMICS, (mdp, estimated), strict=True):
        others = policies(offline, shown, gamma, ours=False)
        scores[dynamics] = {name: measure(mdp, pi, policy, settings) for name, policy in others.items()}
        model = mdp if dynamics == "known" else estimated.mdp
        best = trace(model, shown, gamma, iterations=settings.iterations[-1]).best
        curves[dynamics] = [measure(mdp, pi, best[min(k, len(best)) - 1], settings) for k in settings.iterations]
    return scores, curves


def measure(mdp: MDP, pi: Floats, policy: Floats, settings: Any) -> list[float]:
    """Return the scores of a policy in the order of MEASURES."""
    expert, learner = mdp.induced_chain(pi), mdp.induced_chain(policy)
    rho = expert.occupancy(settings.discount)
    d = distance(expert, learner, cost="indicator", discount=settings.discount, tol=settings.tol).value
    spi = distance(expert, learner, cost="indicator", discount=settings.discount, solver="sinkhorn-policy").value
    kernels = rel_entr(np.asarray(expert.transition), np.asarray(learner.transition)).sum(axis=1)
    return [d, spi, float(rho @ kernels), float(rho @ rel_entr(pi, policy).sum(axis=1))]


def records(outcome: Outcome) -> list[Row]:
    ends = [(*key, "", scores) for key, scores in outcome.scores.items() if key[2] != OURS]
    steps = [
        (*key, OURS, k, curve[:, j])
        for key, curve in outcome.curves.items()
        for j, k in enumerate(outcome.settings.iterations)
    ]
    return [
        {
            "epsilon": epsilon,
            "dynamics": dynamics,
            "method": name,
            "outer_iteration": k,
            "seed": seed,
            **dict(zip(MEASURES, row, strict=True)),
        }
        for epsilon, dynamics, name, k, scores in (*steps, *ends)
        for seed, row in enumerate(scores.tolist())
    ]


def table(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for epsilon, dynamics in outcome.curves:
        best = {measure: _ranked(outcome, epsilon, dynamics, measure)[0][0] for measure in ("distance", "kernel_kl")}
        for name, _ in _ranked(outcome, epsilon, dynamics):
            scores = outcome.scores[epsilon, dynamics, name]
            low, middle, high = np.quantile(scores[:, 0], (0.25, 0.5, 0.75))
            _, spi, kernel, policy = np.median(scores, axis=0)
            rows.append(
                {
                    "expert ε": f"{epsilon:g}",
                    "dynamics": dynamics,
                    "method": name,
                    "distance d": f"{middle:.4f}" + " *" * (name == best["distance"]),
                    "quartiles": f"{low:.4f} – {high:.4f}",
                    "SPI": f"{spi:.4f}",
                    "kernel KL": f"{kernel:.2e}" + " *" * (name == best["kernel_kl"]),
                    "policy KL": f"{policy:.2e}",
                }
            )
    return rows


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return median distance and median kernel KL by expert, dynamics and method."""
    return {
        f"epsilon={epsilon:g}, {dynamics} dynamics, {name}": {
            measure: float(np.median(scores[:, MEASURES.index(measure)])) for measure in ("distance", "kernel_kl")
        }
        for (epsilon, dynamics, name), scores in outcome.scores.items()
    }


def findings(outcome: Outcome) -> list[str]:
    sentences = ["* smallest median of its block; all methods use the same data for each seed", FAIRNESS]
    for epsilon, dynamics in outcome.curves:
        where = f"ε = {epsilon:g}, {dynamics} dynamics"
        for measure, words in (("distance", "distance"), ("kernel_kl", "kernel KL")):
            scores = _scores(outcome, epsilon, dynamics, measure)
            sentences.append(f"{where}, {words}: {ahead_and_level(scores.pop(OURS), scores)}")
    return [*sentences, *left_out({name for _, _, name in outcome.scores})]


def _ranked(outcome: Outcome, epsilon: float, dynamics: str, measure: str = "distance") -> list[tuple[str, float]]:
    medians = {name: float(np.median(s)) for name, s in _scores(outcome, epsilon, dynamics, measure).items()}
    return sorted(medians.items(), key=lambda item: item[1])


def _scores(outcome: Outcome, epsilon: float, dynamics: str, measure: str = "distance") -> dict[str, Floats]:
    """By method, (seeds,)."""
    column = MEASURES.index(measure)
    return {
        name: scores[:, column]
        for (e, kind, name), scores in outcome.scores.items()
        if (e, kind) == (epsilon, dynamics)
    }


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check whether, with a stochastic expert, D-BOT is ahead of the paper's baselines and of all other methods."""
    scores = _scores(outcome, max(outcome.settings.epsilons), "known")
    ahead, level = standing(scores.pop(OURS), scores)
    foils = [name for name in ("PW-DICE", "IOSTOM-style") if name in scores]
    if set(foils) & {*ahead, *level}:
        return DIFFERS, "With a stochastic expert one of the paper's baselines is as close."
    behind = f"With a stochastic expert it is ahead of {' and '.join(foils)}" if foils else "The foils did not run"
    if ahead or level:
        words = [
            f"{how}: {', '.join(names)}" for how, names in (("ahead of it", ahead), ("level with it", level)) if names
        ]
        return IN_PART, f"{behind}; of the methods that the paper leaves out, {'; '.join(words)}."
    return AGREES, f"{behind}, and of the other methods compared."


def plot(outcome: Outcome) -> Figure:
    epsilons, s = outcome.settings.epsilons, outcome.settings
    figure = new_figure(15.0, 3.6 * len(epsilons) + 0.8)
    axes = figure.subplots(len(epsilons), 4, width_ratios=(1.5, 1, 1, 1), squeeze=False)
    order = [name for name, _ in _ranked(outcome, epsilons[-1], DYNAMICS[-1])][::-1]
    for row, epsilon in zip(axes, epsilons, strict=True):
        _panel(plain(row[0]), outcome, epsilon, order)
        for ax, name in zip(row[1:], ("distance", "kernel_kl", "policy_kl"), strict=True):
            _curve(plain(ax), outcome, epsilon, name)
        row[0].set_title(f"expert: go right, ε = {epsilon:g}", fontsize=10)
    handles = [axes[0, k].get_legend_handles_labels() for k in (0, 1)]
    everything = (handles[0][0] + handles[1][0], handles[0][1] + handles[1][1])
    figure.legend(*everything, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    figure.suptitle(
        f"Five-state chain, {s.expert_transitions} expert transitions, {s.seeds} seeds. Left: median (bar) and every "
        "seed. Right, known dynamics: D-BOT's best policy so far, median and quartiles; others: final medians",
        fontsize=11,
    )
    return figure


def _panel(ax: Axes, outcome: Outcome, epsilon: float, order: list[str]) -> None:
    for dynamics, color, shift in zip(DYNAMICS, (BLUE, VERMILION), (0.14, -0.14), strict=True):
        for y, name in enumerate(order):
            values = np.maximum(outcome.scores[epsilon, dynamics, name][:, 0], MIN_DRAWN)
            label = f"{dynamics} dynamics (left)" if y == 0 else None
            ax.plot(values, np.full(values.size, y + shift), "o", color=color, ms=3, alpha=0.35)
            ax.plot(np.median(values), y + shift, "|", color=color, ms=14, mew=2.4, label=label)
    ax.set_xscale("log")
    ax.set_xlim(0.8 * MIN_DRAWN, 1.0)
    ax.set_yticks(range(len(order)), order)
    ax.set_xlabel("bisimulation distance $d$ to the true expert")


LINES = dict(zip(METHODS, (VERMILION, ORANGE, GREEN, PURPLE, YELLOW, SKY, GRAY), strict=True))
DASHES = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))


def _curve(ax: Axes, outcome: Outcome, epsilon: float, measure: str) -> None:
    at, column = outcome.settings.iterations, MEASURES.index(measure)
    low, middle, high = np.quantile(outcome.curves[epsilon, "known"][:, :, column], (0.25, 0.5, 0.75), axis=0)
    ax.fill_between(at, low, high, color=BLUE, alpha=0.25, linewidth=0)
    ax.plot(at, middle, "o-", color=BLUE, ms=3, linewidth=2, label=OURS)
    if measure == "distance":
        spi = np.median(outcome.curves[epsilon, "known"][:, :, MEASURES.index("spi_distance")], axis=0)
        ax.plot(at, spi, "x", color="black", ms=6, label=f"{OURS}, $d$ by SPI")
    for (name, color), dash in zip(LINES.items(), DASHES, strict=True):
        if (epsilon, "known", name) in outcome.scores:
            level = float(np.median(outcome.scores[epsilon, "known", name][:, column]))
            if 0.0 < level < np.inf:
                ax.axhline(level, color=color, linestyle=dash, linewidth=1.4, label=name)
    ax.set(xscale="log", yscale="log", xlabel="outer iteration")
    ax.set_xticks((1, 3, 10, 30, 100), labels=("1", "3", "10", "30", "100"))
    ax.set_ylabel(
        {"distance": "distance $d$", "kernel_kl": "kernel KL (nats)", "policy_kl": "policy KL (nats)"}[measure]
    )
