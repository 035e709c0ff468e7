"""The paper's imitation task: a corridor of five states, an ε-soft "go right" expert, and every method on equal data.

States 0 … 4, actions left, right, stay, jump to the start; with probability 0.1 a slip. The expert shows transitions
(s, s'), drawn from its discounted occupancy. The learner's dynamics are either *known*, or *estimated* from as many
action-labelled transitions of a uniformly random policy (the paper does not say what its baselines get). Measured
against the true expert and in the true MDP, for each seed:

    d           exact bisimulation distance, cost 1{x ≠ y}
    kernel KL   Σ_s ρ_E(s) KL(P_E(·|s) ‖ P_π(·|s))
    policy KL   Σ_s ρ_E(s) KL(π_E(·|s) ‖ π(·|s))     (right and stay are one action in the last state: not identifiable)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import rel_entr

from diffbisim.checks import Floats
from diffbisim.data.examples import imitation_chain, soft_right_policy
from diffbisim.distance import distance
from diffbisim.experiments.imitators import left_out, policies
from diffbisim.experiments.report import DIFFERS, IN_PART, Row
from diffbisim.imitate.baselines import OfflineData
from diffbisim.mdp import MDP
from diffbisim.plot.style import BLUE, VERMILION, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Imitation on the five-state chain: every method on equal data"

CLAIM = (
    "Imitation by the metric reduces the distance in all settings and outperforms PW-DICE and IOSTOM, in particular "
    "with a stochastic expert."
)

DYNAMICS = ("known", "estimated")
LEAST = 1e-3  # smaller distances are drawn here
MEASURES = ("distance", "kernel_kl", "policy_kl")


@dataclass(frozen=True)
class Settings:
    epsilons: tuple[float, ...] = (0.0, 0.4)
    discount: float = 0.9
    seeds: int = 10
    expert_transitions: int = 5_000
    offline_transitions: int = 5_000
    tol: float = 1e-9


FULL = Settings(seeds=50)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    scores: dict[tuple[float, str, str], Floats]  # (ε, dynamics, method) -> (seeds, 3), in the order of MEASURES


def run(settings: Settings) -> Outcome:
    mdp, found = imitation_chain(), {}
    for epsilon in settings.epsilons:
        pi = soft_right_policy(mdp, epsilon)
        runs = [_one(mdp, pi, settings, seed) for seed in range(settings.seeds)]
        for key in runs[0]:
            found[epsilon, *key] = np.array([scores[key] for scores in runs])
    return Outcome(settings, found)


def _one(mdp: MDP, pi: Floats, settings: Settings, seed: int) -> dict[tuple[str, str], list[float]]:
    gamma, rng = settings.discount, np.random.default_rng(seed)
    shown = mdp.induced_chain(pi).sample_transitions(settings.expert_transitions, gamma, rng)
    estimated = OfflineData.sample(mdp, settings.offline_transitions, gamma, rng)
    return {
        (dynamics, name): _measure(mdp, pi, policy, settings)
        for dynamics, offline in zip(DYNAMICS, (mdp, estimated), strict=True)
        for name, policy in policies(offline, shown, gamma).items()
    }


def _measure(mdp: MDP, pi: Floats, policy: Floats, settings: Settings) -> list[float]:
    expert, learner = mdp.induced_chain(pi), mdp.induced_chain(policy)
    rho = expert.occupancy(settings.discount)
    d = distance(expert, learner, cost="indicator", discount=settings.discount, tol=settings.tol).value
    kernels = rel_entr(np.asarray(expert.transition), np.asarray(learner.transition)).sum(axis=1)
    return [d, float(rho @ kernels), float(rho @ rel_entr(pi, policy).sum(axis=1))]


def records(outcome: Outcome) -> list[Row]:
    return [
        {
            "epsilon": epsilon,
            "dynamics": dynamics,
            "method": name,
            "seed": seed,
            **dict(zip(MEASURES, row, strict=True)),
        }
        for (epsilon, dynamics, name), scores in outcome.scores.items()
        for seed, row in enumerate(scores.tolist())
    ]


def table(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for (epsilon, dynamics, name), scores in outcome.scores.items():
        low, middle, high = np.quantile(scores[:, 0], (0.25, 0.5, 0.75))
        _, kernel, policy = np.median(scores, axis=0)
        rows.append(
            {
                "expert ε": f"{epsilon:g}",
                "dynamics": dynamics,
                "method": name,
                "distance d": f"{middle:.4f}",
                "quartiles": f"{low:.4f} – {high:.4f}",
                "kernel KL": f"{kernel:.2e}",
                "policy KL": f"{policy:.2e}",
            }
        )
    return rows


def summary(outcome: Outcome) -> dict[str, Any]:
    """Median distance and median kernel KL, by expert, dynamics and method."""
    return {
        f"epsilon={epsilon:g}, {dynamics} dynamics, {name}": dict(
            zip(MEASURES[:2], np.median(scores, axis=0)[:2].tolist(), strict=True)
        )
        for (epsilon, dynamics, name), scores in outcome.scores.items()
    }


def findings(outcome: Outcome) -> list[str]:
    sentences = []
    for epsilon in outcome.settings.epsilons:
        for dynamics in DYNAMICS:
            ranked = _ranked(outcome, epsilon, dynamics)
            shown = ", ".join(f"{name} {value:.3f}" for name, value in ranked)
            sentences.append(f"ε = {epsilon:g}, {dynamics} dynamics, by median distance: {shown}")
    return [*sentences, *left_out({name for _, _, name in outcome.scores})]


def _ranked(outcome: Outcome, epsilon: float, dynamics: str) -> list[tuple[str, float]]:
    medians = {
        name: float(np.median(scores[:, 0]))
        for (e, kind, name), scores in outcome.scores.items()
        if (e, kind) == (epsilon, dynamics)
    }
    return sorted(medians.items(), key=lambda item: item[1])


def verdict(outcome: Outcome) -> tuple[str, str]:
    """With a stochastic expert, do the paper's two baselines fall behind what the data allow?"""
    noisy = max(outcome.settings.epsilons)
    ranked = dict(_ranked(outcome, noisy, "known"))
    foils = [ranked[name] for name in ("PW-DICE", "IOSTOM-style") if name in ranked]
    best = next(iter(ranked))
    if foils and min(foils) < 1.5 * ranked[best]:
        return DIFFERS, "The paper's baselines do as well as any method."
    return IN_PART, (
        f"Both baselines of the paper fall behind with a stochastic expert; but the best here is {best}, and maximum "
        "likelihood, which the paper leaves out, is as good as the data allow."
    )


def plot(outcome: Outcome) -> Figure:
    epsilons = outcome.settings.epsilons
    figure = new_figure(9.2, 4.4)
    axes = np.atleast_1d(figure.subplots(1, len(epsilons), sharex=True, sharey=True))
    order = [name for name, _ in _ranked(outcome, epsilons[-1], DYNAMICS[-1])][::-1]
    for ax, epsilon in zip(axes, epsilons, strict=True):
        _panel(plain(ax), outcome, epsilon, order)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    s = outcome.settings
    figure.suptitle(
        f"Five-state chain, {s.expert_transitions} expert transitions: median (bar) and all {s.seeds} seeds",
        fontsize=11,
    )
    return figure


def _panel(ax: Axes, outcome: Outcome, epsilon: float, order: list[str]) -> None:
    for dynamics, color, shift in zip(DYNAMICS, (BLUE, VERMILION), (0.14, -0.14), strict=True):
        for y, name in enumerate(order):
            values = np.maximum(outcome.scores[epsilon, dynamics, name][:, 0], LEAST)
            label = f"{dynamics} dynamics" if y == 0 else None
            ax.plot(values, np.full(values.size, y + shift), "o", color=color, ms=3, alpha=0.35)
            ax.plot(np.median(values), y + shift, "|", color=color, ms=14, mew=2.4, label=label)
    ax.set_xscale("log")
    ax.set_xlim(0.8 * LEAST, 1.0)
    ax.set_yticks(range(len(order)), order)
    ax.set_title(f"expert: go right, ε = {epsilon:g}", fontsize=10)
    ax.set_xlabel("bisimulation distance $d$ to the true expert")
