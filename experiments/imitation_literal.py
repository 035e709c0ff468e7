"""The paper's Algorithm 3 as printed, with the sign corrected, and with steps instead of best responses.

On the five-state chain the expert is known exactly. Each outer iteration evaluates the distance and its implicit reward
r at the current policy, and then

    as printed         maximizes -r (the sign in the paper) by reinforcement learning to convergence
    best response      maximizes +r, likewise to convergence
    steps              moves the policy along +r by a step that decreases the distance (the default)

A best response is deterministic, so with a stochastic expert it cannot be closer than the best deterministic policy,
which is found here by enumeration; since there are finitely many deterministic policies, it ends in a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.learning.imitate.updates import BestResponse, Natural, PolicyUpdate
from diffbisim.plot.style import BLUE, GRAY, ORANGE, VERMILION, new_figure, plain
from diffbisim.processes.examples import imitation_chain, soft_right_policy
from experiments.imitators import trace
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Algorithm 3 as printed, with the sign corrected, and with steps"
CLAIM = "Algorithm 3 runs reinforcement learning to convergence under the (negated) implicit reward at each outer step."

RULES: dict[str, PolicyUpdate] = {
    "as printed": BestResponse(printed_sign=True),
    "best response": BestResponse(),
    "steps": Natural(),
}
MIN_DRAWN = 1e-7  # smaller distances are drawn here


@dataclass(frozen=True)
class Settings:
    epsilons: tuple[float, ...] = (0.0, 0.4)
    n_states: int = 5
    discount: float = 0.9
    starts: int = 3  # the first is the uniform policy, the others are random
    iterations: int = 60
    tol: float = 1e-6


FULL = Settings(starts=20, iterations=100)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    values: dict[
        tuple[float, str], Floats
    ]  # (ε, rule) -> (starts, iterations): d of each policy; after the end, the last
    floor: dict[float, float]  # ε -> least distance of a deterministic policy


def run(settings: Settings) -> Outcome:
    mdp, values, floor = imitation_chain(settings.n_states), {}, {}
    rng = np.random.default_rng(0)
    shape = (settings.starts - 1, mdp.n_states)
    starts = [mdp.uniform_policy(), *rng.dirichlet(np.ones(mdp.n_actions), shape)]
    for epsilon in settings.epsilons:
        expert = mdp.induced_chain(soft_right_policy(mdp, epsilon))
        for name, rule in RULES.items():
            how: dict[str, Any] = {"update": rule, "iterations": settings.iterations, "tol": settings.tol}
            runs = [trace(mdp, expert, settings.discount, policy=start, **how).value for start in starts]
            values[epsilon, name] = np.array([_filled(run, settings.iterations) for run in runs])
        floor[epsilon] = min(
            distance(expert, mdp.induced_chain(np.array(actions)), "indicator", settings.discount).value
            for actions in product(range(mdp.n_actions), repeat=mdp.n_states)
        )
    return Outcome(settings, values, floor)


def _filled(values: tuple[float, ...], length: int) -> list[float]:
    return [*values, *[values[-1]] * (length - len(values))]


def period(values: Floats) -> int:
    """Return the length of the cycle in the last half of a run; 0 if there is none."""
    last = values[len(values) // 2 :]
    for p in range(1, len(last) // 2):
        if np.abs(last[p:] - last[:-p]).max() <= 1e-9:
            return p
    return 0


def records(outcome: Outcome) -> list[Row]:
    return [
        {"epsilon": epsilon, "rule": name, "start": start, "outer_iteration": k, "distance": d}
        for (epsilon, name), runs in outcome.values.items()
        for start, run in enumerate(runs.tolist())
        for k, d in enumerate(run, start=1)
    ]


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "expert ε": f"{epsilon:g}",
            "rule": name,
            "first d": f"{np.median(runs[:, 0]):.3f}",
            "last d": f"{np.median(runs[:, -1]):.1e}",
            "best d": f"{np.median(runs.min(axis=1)):.1e}",
            "worst start's best": f"{runs.min(axis=1).max():.1e}",
            "cycles of": ", ".join(str(p) for p in sorted({period(run) for run in runs}) if p > 1) or "–",
            "best deterministic": f"{outcome.floor[epsilon]:.3f}",
        }
        for (epsilon, name), runs in outcome.values.items()
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        f"epsilon={epsilon:g}, {name}": {
            "median_last": float(np.median(runs[:, -1])),
            "worst_best": float(runs.min(axis=1).max()),
            "periods": [period(run) for run in runs],
        }
        for (epsilon, name), runs in outcome.values.items()
    } | {f"epsilon={epsilon:g}, best deterministic": value for epsilon, value in outcome.floor.items()}


def findings(outcome: Outcome) -> list[str]:
    sentences = []
    for epsilon, floor in outcome.floor.items():
        printed, literal, steps = (outcome.values[epsilon, name] for name in RULES)
        cycling = sum(period(run) > 1 for run in literal)
        sentences += [
            f"ε = {epsilon:g}, as printed: d from {np.median(printed[:, 0]):.3f} to {np.median(printed[:, -1]):.3f}",
            f"ε = {epsilon:g}, best response: {cycling} of {len(literal)} starts end in a cycle; least d "
            f"{literal[:, 1:].min():.3g}, of all deterministic policies {floor:.3g}",
            f"ε = {epsilon:g}, steps: d ≤ {steps.min(axis=1).max():.1e} from every start",
        ]
    return sentences


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check whether the printed algorithm reaches a stochastic expert, with either sign."""
    noisy = max(epsilon for epsilon, _ in outcome.values)
    last = {name: float(np.median(outcome.values[noisy, name][:, -1])) for name in RULES}
    if last["as printed"] <= last["steps"]:
        return AGREES, "It comes as close as the steps do."
    told = ", ".join(f"{name} {value:.2g}" for name, value in last.items())
    return (
        DIFFERS,
        f"With a stochastic expert the distance ends at: {told}. Best responses are deterministic and cycle.",
    )


def plot(outcome: Outcome) -> Figure:
    epsilons = outcome.settings.epsilons
    figure = new_figure(10.0, 6.4)
    axes = figure.subplots(2, len(epsilons), sharey="row", squeeze=False)
    for column, epsilon in zip(axes.T, epsilons, strict=True):
        for ax in column:
            _panel(plain(ax), outcome, epsilon)
        column[0].set_title(f"expert: go right, ε = {epsilon:g}", fontsize=10)
        column[0].set(xlim=(0.5, 20.5), ylim=(0, 1), xticks=range(1, 21, 3))
        column[1].set(yscale="log", xlabel="outer iteration")
    for ax in axes[:, 0]:
        ax.set_ylabel("distance $d$ to the expert")
    handles = axes[0, -1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(
        "Reinforcement learning to convergence against steps, until the tolerance is met: uniform start, others thin",
        fontsize=11,
    )
    return figure


def _panel(ax: Axes, outcome: Outcome, epsilon: float) -> None:
    at = np.arange(1, outcome.settings.iterations + 1)
    styles = dict(zip(RULES, ((ORANGE, "s"), (VERMILION, "^"), (BLUE, "o")), strict=True))
    for name, (color, marker) in styles.items():
        label = f"{name} (Algorithm 3)" if name == "as printed" else name
        for start, values in enumerate(outcome.values[epsilon, name]):
            end = (
                int(np.argmax(values <= outcome.settings.tol)) + 1 if values.min() <= outcome.settings.tol else at.size
            )
            shown = np.maximum(values[:end], MIN_DRAWN)
            if start:
                ax.plot(at[:end], shown, color=color, linewidth=0.6, alpha=0.4)
            else:
                ax.plot(at[:end], shown, color=color, marker=marker, ms=3, linewidth=1.6, label=label)
    if outcome.floor[epsilon] > MIN_DRAWN:
        ax.axhline(outcome.floor[epsilon], color=GRAY, linestyle="--", label="best deterministic policy")
