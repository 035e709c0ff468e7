"""Imitation in Gymnasium's tabular environments: distance to the expert, and the return, which imitators do not see.

The expert is optimal for the environment's reward and shows only states, in rollouts. Every method gets the empirical
chain of these observations, in which states without successors are absorbing, and the true transition table. Returns
are exact expectations over episodes of 200 steps, reported as a share of the expert's, 1 - (expert's - own) /
|expert's|. Distances are to the true expert, with cost 1{x ≠ y}.

After 20,000 transitions of a slippery walk the distance of the empirical chain to the expert's chain is still about
0.1, so fitting it closely fits noise. "D-BOT, simplest" uses ``simplest=True``, which prefers a deterministic policy if
the data do not distinguish it from the best one; it uses the counts, but not the return.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.common.errors import MissingExtra
from diffbisim.distances.chains import distance
from diffbisim.learning.imitate.expert import expert_chain, simplest_policy, steps_seen
from diffbisim.learning.imitate.imitation import imitate
from diffbisim.plot.style import BLUE, GRAY, VERMILION, new_figure, plain
from diffbisim.processes.environments import from_env, import_gymnasium, rollouts
from diffbisim.processes.planning import expected_return, optimal_policy
from experiments.imitators import FAIRNESS, METHODS, OURS, ahead_and_level, baseline, left_out
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from diffbisim.processes.chain import MarkovChain, Transitions
    from diffbisim.processes.mdp import MDP

TITLE = "Gymnasium environments with known tables, experts observed through states only"
CLAIM = "The paper considers five states."

HORIZON = 200
MAX_STATES_OF_CONES = 100  # number of states above which the cone programs are skipped
CONES = ("PW-DICE", "SMODICE", "LobsDICE")
SIMPLEST = f"{OURS}, simplest"
MIN_DRAWN = 1e-4  # smaller distances are drawn here


@dataclass(frozen=True)
class Settings:
    environments: tuple[str, ...] = ("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1")
    transitions: int = 20_000  # of the expert
    discount: float = 0.95  # of the distance
    expert_discount: float = 0.99
    seeds: int = 1
    iterations: int = 30
    tol: float = 1e-4
    baselines: bool = True


FULL = Settings(("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "Taxi-v4"), seeds=5)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    scores: dict[tuple[str, str], Floats]  # (environment, method) -> (seeds, 3): distance, share of the return, seconds
    expert_return: dict[str, float]
    states: dict[str, int]


@dataclass(frozen=True, eq=False)
class _Scene:
    """An environment with its table, the observed expert, and the scoring of policies."""

    mdp: MDP
    expert: Any
    best: float
    settings: Settings

    def score(self, policy: Floats, seconds: float) -> list[float]:
        own, gamma = self.mdp.induced_chain(policy), self.settings.discount
        d = distance(self.mdp.induced_chain(self.expert), own, "indicator", gamma, tol=1e-6).value
        return [d, 1.0 - (self.best - expected_return(self.mdp, policy, HORIZON)) / abs(self.best), seconds]

    def ours(self, walk: Transitions) -> list[list[float]]:
        """Return the best policy, and the simplest one that the data do not distinguish from it."""
        began, s = time.perf_counter(), self.settings
        best = imitate(self.mdp, walk, "indicator", s.discount, max_iterations=s.iterations, tol=s.tol)
        then = time.perf_counter()
        simple = simplest_policy(best, steps_seen(walk, self.mdp, shared=True))
        seconds = then - began, time.perf_counter() - began
        return [self.score(found.policy, t) for found, t in zip((best, simple), seconds, strict=True)]

    def baseline(self, method: str, shown: MarkovChain) -> list[float]:
        began = time.perf_counter()
        policy = baseline(method, self.mdp, shown, self.settings.discount)
        return self.score(policy, time.perf_counter() - began)


def run(settings: Settings) -> Outcome:
    gymnasium = import_gymnasium()
    scores: dict[tuple[str, str], Floats] = {}
    returns: dict[str, float] = {}
    states: dict[str, int] = {}
    for name in settings.environments:
        env = gymnasium.make(name, max_episode_steps=HORIZON)
        mdp = from_env(env)
        expert = optimal_policy(mdp, settings.expert_discount)
        states[name] = mdp.n_states
        returns[name] = expected_return(mdp, expert, HORIZON)
        seeds = settings.seeds if mdp.n_states <= MAX_STATES_OF_CONES else 1
        walks = [rollouts(env, expert, settings.transitions, seed).transitions() for seed in range(seeds)]
        scene = _Scene(mdp, expert, returns[name], settings)
        scores[name, OURS], scores[name, SIMPLEST] = np.array([scene.ours(walk) for walk in walks]).transpose(1, 0, 2)
        shown = [expert_chain(walk, mdp, shared=True) for walk in walks]
        for method in METHODS if settings.baselines else ():
            if mdp.n_states <= MAX_STATES_OF_CONES or method not in CONES:
                try:
                    scores[name, method] = np.array([scene.baseline(method, chain) for chain in shown])
                except MissingExtra:
                    continue
    return Outcome(settings, scores, returns, states)


def records(outcome: Outcome) -> list[Row]:
    return [
        {"environment": name, "method": method, "seed": seed, "distance": d, "share_of_return": share, "seconds": t}
        for (name, method), scores in outcome.scores.items()
        for seed, (d, share, t) in enumerate(scores.tolist())
    ]


def table(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for (name, method), scores in outcome.scores.items():
        d, share, seconds = np.median(scores, axis=0)
        best = min(np.median(s[:, 0]) for (other, _), s in outcome.scores.items() if other == name)
        rows.append(
            {
                "environment": name,
                "expert's return": f"{outcome.expert_return[name]:.3f}",
                "method": method,
                "distance d": f"{d:.4f}" + " *" * bool(d == best),
                "return, share of the expert's": f"{share:.2%}",
                "least": f"{scores[:, 1].min():.2%}",
                "seconds": f"{seconds:.1f}",
            }
        )
    return rows


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        f"{name}, {method}": dict(
            zip(("distance", "share_of_return", "seconds"), np.median(scores, axis=0).tolist(), strict=True)
        )
        for (name, method), scores in outcome.scores.items()
    }


def findings(outcome: Outcome) -> list[str]:
    sentences = ["* least median distance in its environment", FAIRNESS]
    for name in outcome.expert_return:
        medians = {m: np.median(s, axis=0) for (other, m), s in outcome.scores.items() if other == name}
        ours, plain_ours = medians.pop(SIMPLEST), medians.pop(OURS)
        others = {m: outcome.scores[name, m][:, 0] for m in medians}
        standing = ahead_and_level(outcome.scores[name, SIMPLEST][:, 0], others, "it in distance")
        sentences.append(
            f"{name}: {SIMPLEST} at distance {ours[0]:.4f} has {ours[1]:.2%} of the expert's return (without the rule "
            f"{plain_ours[1]:.2%}); {standing}"
        )
    if not outcome.settings.baselines:
        return sentences
    large = [name for name, n in outcome.states.items() if n > MAX_STATES_OF_CONES]
    sentences += [f"{name}: too large for {', '.join(CONES)}, one seed only" for name in large]
    names = {method for _, method in outcome.scores}
    return [*sentences, *left_out(names | set(CONES) if len(large) == len(outcome.states) else names)]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Return that this is not in the paper, which considers five states."""
    return BEYOND, "Gymnasium's tabular environments with up to 500 states."


def plot(outcome: Outcome) -> Figure:
    names = list(outcome.expert_return)
    figure = new_figure(10.0, 2.6 * len(names) + 0.6)
    axes = figure.subplots(len(names), 2, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        methods = [method for other, method in outcome.scores if other == name][::-1]
        _panel(plain(row[0]), outcome, name, methods, 0)
        _panel(plain(row[1]), outcome, name, methods, 1)
        row[0].set_ylabel(name)
        row[1].set_yticklabels([])
        row[0].set(xscale="log", xlim=(0.7 * MIN_DRAWN, 1.6))
        row[1].set_xlim(-0.05, 1.08)
    axes[-1, 0].set_xlabel(f"distance $d$ to the expert (below {MIN_DRAWN:g}: drawn there)")
    axes[-1, 1].set_xlabel("return, share of the expert's (below zero: drawn at zero)")
    figure.suptitle(f"Imitation from {outcome.settings.transitions} observed transitions, tables known", fontsize=11)
    return figure


def _panel(ax: Axes, outcome: Outcome, name: str, methods: list[str], column: int) -> None:
    for y, method in enumerate(methods):
        values = np.clip(outcome.scores[name, method][:, column], MIN_DRAWN if column == 0 else 0.0, None)
        color = BLUE if method in (OURS, SIMPLEST) else GRAY
        ax.plot(values, np.full(values.size, y), "o", color=color, ms=4, alpha=0.5)
        ax.plot(np.median(values), y, "|", color=color, ms=13, mew=2.6)
    if column == 1:
        ax.axvline(0.99, color=VERMILION, linestyle="--", linewidth=1)
        ax.annotate(
            "99 %", (0.99, len(methods) - 1), xytext=(-4, 0), textcoords="offset points", ha="right", fontsize=8
        )
    ax.set_yticks(range(len(methods)), methods)
    ax.set_ylim(-0.6, len(methods) - 0.4)
