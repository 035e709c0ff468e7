"""Four ablations of the fit, on two problems: a drift walk (attainable) and a chain squeezed into fewer states.

    learning rate     Adam with three rates, annealed or not, against the step rule
    inner accuracy    the inner solve stopped after so many improvements: how wrong is the gradient then?
    warm start        the same fit with every inner solve begun anew
    single loop       one improvement per step, instead of an inner solve per step

Inner work is counted, not timed: pivots of the transports and sweeps over the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.data.examples import drift_walk, random_chain
from diffbisim.experiments.report import AGREES, DIFFERS, Row
from diffbisim.fit.dbot import annealed, fit
from diffbisim.plot.style import BLUE, GRAY, GREEN, VERMILION, new_figure, plain
from diffbisim.problem import Problem
from diffbisim.solvers import Exact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diffbisim.fit.result import FitResult

TITLE = "Ablations of the fit: learning rate, inner accuracy, warm start, single loop"
CLAIM = "The learning rate trades speed for stability, few inner iterations bias the gradient, warm starts save work."


@dataclass(frozen=True)
class Settings:
    rates: tuple[float, ...] = (0.03, 0.1, 0.3)
    inner: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    steps: int = 200
    n_states: int = 12
    n_abstract: int = 4
    discount: float = 0.95
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    curves: dict[str, Floats]  # certified distance of the drift walk at every step, by optimizer
    bias: Floats  # (inner,): relative error of the gradient
    gap: Floats  # (inner,): certified, relative to the largest cost
    work: dict[str, tuple[float, int, int]]  # by loop: final distance, pivots, sweeps


def run(settings: Settings) -> Outcome:
    bias, gap = _bias(settings)
    return Outcome(settings, _curves(settings), bias, gap, _work(settings))


def _curves(settings: Settings) -> dict[str, Floats]:
    from diffbisim.fit.kernels import DriftWalk

    target = drift_walk(1.5)
    how: dict[str, Any] = {"steps": settings.steps, "discount": settings.discount, "inner_gap": 0.0, "tol": 1e-9}
    curves = {"step rule": fit(target, DriftWalk(-2.0), **how).curve("upper")}
    for rate in settings.rates:
        optimizer, scheduler = annealed(settings.steps, rate)
        for name, decay in (("", None), (", annealed", scheduler)):
            result = fit(target, DriftWalk(-2.0), optimizer=optimizer, scheduler=decay, **how)
            curves[f"Adam {rate:g}{name}"] = result.curve("upper")
    return curves


def _bias(settings: Settings) -> tuple[Floats, Floats]:
    """Gradient of an unfinished solve against that of a finished one."""
    X, Y = random_chain(settings.n_states, settings.seed), random_chain(settings.n_states, settings.seed + 1)
    problem = Problem.make(X, Y, "reward", settings.discount)
    exact = np.asarray(Exact(tol=1e-13).solve(problem).gradient.transition_y)
    bias, gap = [], []
    for iterations in settings.inner:
        result = Exact(tol=1e-13, max_iterations=iterations).solve(problem)
        error = np.asarray(result.gradient.transition_y) - exact
        bias.append(float(np.linalg.norm(error) / np.linalg.norm(exact)))
        gap.append(result.gap / problem.scale)
    return np.array(bias), np.array(gap)


def _work(settings: Settings) -> dict[str, tuple[float, int, int]]:
    X = random_chain(settings.n_states, settings.seed)
    optimizer, scheduler = annealed(settings.steps)
    ways: dict[str, dict[str, Any]] = {
        "double loop, cold": {"warm": False, "inner_gap": 0.0},
        "double loop, warm": {"inner_gap": 0.0},
        "double loop, warm, gap tied to the step": {},
        "single loop": {"loop": "single"},
    }
    return {
        name: _spent(_squeezed(X, settings, optimizer=optimizer, scheduler=scheduler, **way))
        for name, way in ways.items()
    }


def _squeezed(X: MarkovChain, settings: Settings, **how: Any) -> FitResult:
    from diffbisim.fit.kernels import Softmax

    rewards = np.linspace(0.0, 1.0, settings.n_abstract)
    return fit(
        X, Softmax(settings.n_abstract), discount=settings.discount, rewards=rewards, steps=settings.steps, **how
    )


def _spent(result: FitResult) -> tuple[float, int, int]:
    return result.value, result.work["pivots"], result.work["sweeps"]


def records(outcome: Outcome) -> list[Row]:
    rows: list[Row] = [
        {"part": "learning rate", "name": name, "x": k, "y": float(value)}
        for name, curve in outcome.curves.items()
        for k, value in enumerate(curve)
    ]
    for name, errors in (("bias", outcome.bias), ("gap", outcome.gap)):
        for k, error in zip(outcome.settings.inner, errors, strict=True):
            rows.append({"part": "inner accuracy", "name": name, "x": k, "y": float(error)})
    for name, numbers in outcome.work.items():
        for what, value in zip(("distance", "pivots", "sweeps"), numbers, strict=True):
            rows.append({"part": "work", "name": name, "x": what, "y": float(value)})
    return rows


def table(outcome: Outcome) -> list[Row]:
    first = next(iter(outcome.work.values()))
    return [
        {
            "loop": name,
            "distance": f"{d:.6f}",
            "pivots": str(pivots),
            "sweeps": str(sweeps),
            "less work": f"{(first[1] + first[2]) / (pivots + sweeps):.1f}x",
        }
        for name, (d, pivots, sweeps) in outcome.work.items()
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "last_distance": {name: float(curve[-1]) for name, curve in outcome.curves.items()},
        "relative_error_of_gradient": dict(zip(map(str, outcome.settings.inner), outcome.bias.tolist(), strict=True)),
        "certified_gap": dict(zip(map(str, outcome.settings.inner), outcome.gap.tolist(), strict=True)),
        "inner_work": {name: pivots + sweeps for name, (_, pivots, sweeps) in outcome.work.items()},
        "distance": {name: d for name, (d, _, _) in outcome.work.items()},
    }


def findings(outcome: Outcome) -> list[str]:
    last = summary(outcome)["last_distance"]
    decayed = min(value for name, value in last.items() if "annealed" in name)
    constant = min(value for name, value in last.items() if name.startswith("Adam") and "annealed" not in name)
    total = {name: pivots + sweeps for name, (_, pivots, sweeps) in outcome.work.items()}
    cold, warm = total["double loop, cold"], total["double loop, warm"]
    return [
        f"drift walk: certified distance {last['step rule']:.0e} after {len(outcome.curves['step rule'])} steps of the "
        f"rule; after {outcome.settings.steps} of Adam at best {constant:.0e}, annealed {decayed:.0e}",
        f"gradient after one improvement off by {outcome.bias[0]:.0%}, after {outcome.settings.inner[-1]} by "
        f"{outcome.bias[-1]:.0e} (relative)",
        f"warm starts save {cold / warm:.1f}x inner work, tying the gap to the step "
        f"{warm / total['double loop, warm, gap tied to the step']:.1f}x more, a single loop "
        f"{warm / total['single loop']:.1f}x over the warm double loop",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Do warm starts save work, and is the gradient of few inner iterations off?"""
    work = summary(outcome)["inner_work"]
    if work["double loop, warm"] < work["double loop, cold"] and outcome.bias[0] > outcome.bias[-1]:
        return AGREES, "All three; a step rule without a learning rate does away with the first trade."
    return DIFFERS, "Warm starts or inner iterations made no difference here."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(11.0, 3.8)
    left, middle, right = figure.subplots(1, 3)
    for name, curve in outcome.curves.items():
        k = next((k for k, rate in enumerate(outcome.settings.rates) if name.startswith(f"Adam {rate:g}")), None)
        color = BLUE if k is None else (VERMILION, GREEN, GRAY)[k % 3]
        style = "-" if k is None else "--" if "annealed" in name else ":"
        left.semilogy(np.maximum(curve, 1e-9), style, color=color, linewidth=2 if k is None else 1.2, label=name)
    left.set(xlabel="step", ylabel="distance (positions)", title="drift walk: learning rate")
    left.legend(frameon=False, fontsize=7)
    middle.semilogy(
        outcome.settings.inner, np.maximum(outcome.bias, 1e-16), "o-", color=BLUE, label="error of gradient"
    )
    middle.semilogy(outcome.settings.inner, outcome.gap, "s--", color=VERMILION, label="certified gap")
    middle.set(xlabel="inner improvements", ylabel="relative", title="inner accuracy")
    middle.legend(frameon=False, fontsize=8)
    at = np.arange(len(outcome.work))
    pivots, sweeps = (np.array([numbers[k] for numbers in outcome.work.values()], dtype=float) for k in (1, 2))
    right.barh(at, pivots, color=BLUE, label="pivots")
    right.barh(at, sweeps, left=pivots, color=GREEN, label="sweeps")
    right.set_yticks(at, [name.replace(", ", ",\n") for name in outcome.work], fontsize=7)
    right.invert_yaxis()
    right.set(xlabel="inner work", title="200 steps to the same distance".replace("200", str(outcome.settings.steps)))
    right.legend(frameon=False, fontsize=8)
    for ax in (left, middle, right):
        plain(ax)
    return figure
