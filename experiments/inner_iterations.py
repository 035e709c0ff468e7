"""Accuracy of the gradient when the inner solver is stopped early, compared with a full solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.plot.style import BLUE, VERMILION, new_figure, plain
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.examples import random_chain
from diffbisim.solvers import Exact
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Inner iterations: error of the gradient when the inner solve is stopped early"
CLAIM = "Few inner iterations bias the gradient."


@dataclass(frozen=True)
class Settings:
    inner: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    n_states: int = 12
    discount: float = 0.95
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    bias: Floats  # (inner,): relative error of the gradient
    gap: Floats  # (inner,): certified, relative to the largest cost


def run(settings: Settings) -> Outcome:
    X, Y = random_chain(settings.n_states, settings.seed), random_chain(settings.n_states, settings.seed + 1)
    problem = Discounted.make(X, Y, "reward", settings.discount)
    exact = np.asarray(Exact(tol=1e-13).solve(problem).gradient.transition_y)
    bias, gap = [], []
    for iterations in settings.inner:
        result = Exact(tol=1e-13, max_iterations=iterations).solve(problem)
        error = np.asarray(result.gradient.transition_y) - exact
        bias.append(float(np.linalg.norm(error) / np.linalg.norm(exact)))
        gap.append(result.gap / problem.scale)
    return Outcome(settings, np.array(bias), np.array(gap))


def records(outcome: Outcome) -> list[Row]:
    return [
        {"improvements": k, "relative_error_of_gradient": float(error), "certified_gap": float(gap)}
        for k, error, gap in zip(outcome.settings.inner, outcome.bias, outcome.gap, strict=True)
    ]


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "improvements": str(row["improvements"]),
            "error of gradient": f"{row['relative_error_of_gradient']:.1e}",
            "certified gap": f"{row['certified_gap']:.1e}",
        }
        for row in records(outcome)
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    inner = [str(k) for k in outcome.settings.inner]
    return {
        "relative_error_of_gradient": dict(zip(inner, outcome.bias.tolist(), strict=True)),
        "certified_gap": dict(zip(inner, outcome.gap.tolist(), strict=True)),
    }


def findings(outcome: Outcome) -> list[str]:
    first, last = outcome.settings.inner[0], outcome.settings.inner[-1]
    return [
        f"relative error of the gradient {outcome.bias[0]:.0e} after improvement {first}, {outcome.bias[-1]:.0e} after "
        f"{last}"
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check that the error of the gradient decreases with the inner iterations."""
    if outcome.bias[-1] < outcome.bias[0]:
        return AGREES, "The error of the gradient is smaller after the last improvement than after the first."
    return DIFFERS, "The error of the gradient did not decrease."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(5.0, 3.6)
    ax = figure.subplots()
    inner = outcome.settings.inner
    ax.semilogy(inner, np.maximum(outcome.bias, 1e-16), "o-", color=BLUE, label="error of gradient")
    ax.semilogy(inner, np.maximum(outcome.gap, 1e-16), "s--", color=VERMILION, label="certified gap")
    ax.set(xlabel="inner improvements", ylabel="relative error", title="Gradient of an unfinished inner solve")
    ax.legend(frameon=False, fontsize=8)
    plain(ax)
    return figure
