"""Policies with equal state marginals on a ring, which differ in their transitions only.

The expert walks forward on a ring of n states, started uniformly; a learner may also go backward or stay. Every policy
that acts the same in all states has the uniform occupancy, so every distance between state occupancies is zero along

    π_p = (1-p) forward + p backward,      0 ≤ p ≤ 1,

while the bisimulation distance with cost 1{x ≠ y} is not. Since the expert is deterministic, only the initial states
can be coupled, and the difference of the two positions is a walk on the ring with steps 0 (1-p) or -2 (p). With its
kernel K,

    d(p) = (1-γ) [(I - γK)^{-1} 1{· ≠ 0}](0).

In addition, every method is run with the exact MDP and the exact expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.plot.style import BLUE, GRAY, VERMILION, new_figure, plain
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.examples import equal_marginals_mdp
from diffbisim.processes.mdp import MDP
from experiments.imitators import left_out, policies
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Equal state marginals: imitating a walk around a ring"

CLAIM = "The metric captures causal transition structure that marginal occupancy measures cannot distinguish."


@dataclass(frozen=True)
class Settings:
    n_states: int = 5
    discount: float = 0.9
    points: int = 41  # shares p of backward steps
    tol: float = 1e-11


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    share: Floats  # (points,) p
    value: Floats  # d(p), exact solver
    known: Floats  # d(p), closed form
    marginal: Floats  # total variation between the state occupancies
    policies: dict[str, Floats]  # of the methods
    scores: dict[str, tuple[float, float, float]]  # distance; total variation of states, of transitions


def run(settings: Settings) -> Outcome:
    mdp = equal_marginals_mdp(settings.n_states)
    n, expert = mdp.n_states, mdp.induced_chain(np.zeros(mdp.n_states, dtype=np.int64))
    share = np.linspace(0.0, 1.0, settings.points)
    family = [_score(mdp, expert, np.tile([1.0 - p, p, 0.0], (n, 1)), settings) for p in share]
    found = policies(mdp, expert, settings.discount)
    return Outcome(
        settings=settings,
        share=share,
        value=np.array([score[0] for score in family]),
        known=np.array([_known(p, settings) for p in share]),
        marginal=np.array([score[1] for score in family]),
        policies=found,
        scores={name: _score(mdp, expert, policy, settings) for name, policy in found.items()},
    )


def _score(mdp: MDP, expert: MarkovChain, policy: Floats, settings: Settings) -> tuple[float, float, float]:
    chain, gamma = mdp.induced_chain(policy), settings.discount
    d = distance(expert, chain, cost="indicator", discount=gamma, tol=settings.tol).value
    states = expert.occupancy(gamma) - chain.occupancy(gamma)
    moves = np.asarray(expert.transition_occupancy(gamma)) - np.asarray(chain.transition_occupancy(gamma))
    return d, 0.5 * float(np.abs(states).sum()), 0.5 * float(np.abs(moves).sum())


def _known(p: float, settings: Settings) -> float:
    n, gamma = settings.n_states, settings.discount
    one = np.eye(n)
    K = (1.0 - p) * one + p * np.roll(one, -2, axis=1)
    apart = np.ones(n)
    apart[0] = 0.0
    return float((1.0 - gamma) * np.linalg.solve(one - gamma * K, apart)[0])


def records(outcome: Outcome) -> list[Row]:
    rows: list[Row] = [
        {"policy": f"{p:.3g} backward", "distance": d, "states_apart": tv, "known_distance": known}
        for p, d, tv, known in zip(outcome.share, outcome.value, outcome.marginal, outcome.known, strict=True)
    ]
    methods = [
        {"policy": name, "distance": d, "states_apart": tv, "known_distance": ""}
        for name, (d, tv, _) in outcome.scores.items()
    ]
    return [*rows, *methods]


def table(outcome: Outcome) -> list[Row]:
    backward = (outcome.value[-1], outcome.marginal[-1], 1.0)
    shown = {"(all backward)": (np.array([[0.0, 1.0, 0.0]]), backward)}
    shown |= {name: (policy, outcome.scores[name]) for name, policy in outcome.policies.items()}
    return [
        {
            "method": name,
            "forward": f"{policy[:, 0].mean():.3f}",
            "backward": f"{policy[:, 1].mean():.3f}",
            "stay": f"{policy[:, 2].mean():.3f}",
            "states apart": f"{states:.1e}",
            "transitions apart": f"{moves:.1e}",
            "distance d": _short(d),
        }
        for name, (policy, (d, states, moves)) in shown.items()
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "largest_error_of_distance": float(np.abs(outcome.value - outcome.known).max()),
        "largest_difference_of_marginals": float(outcome.marginal.max()),
        "distance_all_backward": float(outcome.value[-1]),
        "distance_of_methods": {name: score[0] for name, score in outcome.scores.items()},
        "states_apart_of_methods": {name: score[1] for name, score in outcome.scores.items()},
    }


def findings(outcome: Outcome) -> list[str]:
    found = summary(outcome)
    blind = [name for name, (d, states, _) in outcome.scores.items() if states <= 1e-3 and d > 0.1]
    return [
        f"state occupancies: apart by {found['largest_difference_of_marginals']:.0e} at most, for every share of "
        "backward steps",
        f"distance: from 0 to {outcome.value[-1]:.3f}, equal to its closed form to "
        f"{found['largest_error_of_distance']:.0e}",
        f"methods that return a wrong policy with equal state occupancies: {', '.join(blind) or 'none'}",
        *left_out(outcome.scores),
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    s = summary(outcome)
    if s["largest_difference_of_marginals"] > 1e-9 or s["distance_all_backward"] < 0.1:
        return DIFFERS, "The marginals differ too, or the metric does not."
    return AGREES, (
        "True for marginals of states. Marginals of transitions do distinguish these policies, and so do the methods "
        "that match them."
    )


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(9.2, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
    _along_the_family(plain(left), outcome)
    _by_method(plain(right), outcome)
    n = outcome.settings.n_states
    figure.suptitle(f"A ring of {n} states: all these policies have the same state occupancy", fontsize=11)
    return figure


def _along_the_family(ax: Axes, outcome: Outcome) -> None:
    ax.plot(outcome.share, outcome.value, color=BLUE, label="bisimulation distance $d$")
    ax.plot(outcome.share[::4], outcome.known[::4], "o", color="black", mfc="none", ms=5, label="closed form")
    ax.plot(outcome.share, outcome.marginal, color=VERMILION, label="between state occupancies")
    ax.set_xlabel("share $p$ of backward steps (expert: 0)")
    ax.set_ylabel("distance to the expert")
    ax.legend(frameon=False, fontsize=9, loc="center right")


def _by_method(ax: Axes, outcome: Outcome) -> None:
    names = sorted(outcome.scores, key=lambda name: outcome.scores[name][0], reverse=True)
    values = [outcome.scores[name][0] for name in names]
    bars = ax.barh(names, values, color=[GRAY if value > 1e-3 else BLUE for value in values], height=0.6)
    ax.bar_label(bars, [_short(value) for value in values], padding=3, fontsize=9)
    ax.set_xlim(0.0, 1.15 * max(values))
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("distance $d$ of the policy that each method finds")


def _short(value: float) -> str:
    if value == 0.0:
        return "0"
    return f"{value:.0e}" if value < 1e-3 else f"{value:.3f}"
