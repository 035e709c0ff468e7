"""A lower bound of the distance of two processes from the marginal laws of their trajectories.

Let φ and ψ be functions with φ(x) + ψ(y) ≤ c(x, y). Then E φ(x_t) + E ψ(y_t) ≤ E c(x_t, y_t) in every coupling. With
such functions φ_t, ψ_t for each time t, and weights w_t of the times, (1-γ) γ^t or those of a finite horizon,

    Σ_t w_t (E φ_t(x_t) + E ψ_t(y_t)) ≤ d,

no matter whether the processes are Markov. With m_t and n_t the means of x_t and y_t, a_t the mean of both, and
Δ_t = m_t - n_t, two kinds of functions are used for a norm |·|, and one for its square:

    c = |x - y|     φ = <u, x> = -ψ, with u = Δ_t / |Δ_t|            the difference of the means, |Δ_t|
    c = |x - y|     φ = ± |x - a_t| = -ψ                             the difference of the distances from a_t
    c = |x - y|²    φ = 2 <Δ_t, x> + (1 - λ) |x - m_t|² - |Δ_t|²     |Δ_t|² + (σ_x - σ_y)², with λ = σ_y / σ_x
                    ψ = -2 <Δ_t, y> + (1 - 1/λ) |y - n_t|²           and σ² the mean of the square

(2 <x, y> ≤ λ |x|² + |y|² / λ). Functions chosen by the same data that they are averaged over would give a bound that is
too large, since noise always finds some difference. Trajectories are therefore divided into parts, and the functions
for each part are chosen by the others. Then the mean is unbiased for a number that is at most d, whatever was chosen,
and each trajectory contributes a single number, Σ_t w_t φ_t(x_t): the standard error is that of a mean. If trajectories
are paired, it is that of the mean of the sums over pairs. Functions of a difference that is smaller than twice its
standard error are multiplied by a factor below one, so that they contribute little noise.

If d = 0, the parts tend to agree on the sign of the noise, so that the error of the mean is skewed, like |z| for a
normal z. The lower end of the bound therefore uses half of the usual error probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.processes.cells import Terminal

#: Costs for which functions φ and ψ are known.
METRICS = ("euclidean", "sqeuclidean", "cityblock", "chebyshev")

#: Number of parts that the trajectories are divided into.
PARTS = 5


@dataclass(frozen=True)
class MarginalBound:
    """A lower bound of the distance from the marginal laws at the times that all trajectories reach."""

    value: float  # estimate without bias of a number that is at most the distance
    standard_error: float
    lower: float  # with the nominal confidence, the distance is at least this
    upper: float  # upper end of the interval for the bound (not for the distance)
    times: int  # number of times


def aligned(paths: Any, terminal: Terminal | None) -> Floats:
    """Return trajectories as (n, T, d) for the T times that all of them reach; terminal points are never left."""
    ended = [terminal is not None and bool(np.asarray(terminal(path[-1:]))[0]) for path in paths]
    going = [len(path) for path, end in zip(paths, ended, strict=True) if not end]
    T = min(going) if going else max(len(path) for path in paths)
    return np.stack([np.concatenate([path[:T], np.repeat(path[-1:], max(0, T - len(path)), axis=0)]) for path in paths])


def marginal_bound(
    X: Floats, Y: Floats, units: tuple[Integers, Integers], weights: Floats, *, cost: str, confidence: float,
    rng: np.random.Generator, paired: bool = False,
) -> MarginalBound:  # fmt: skip
    """Bound the distance from trajectories (n, T, d) of X and of Y.

    ``units`` has the unit of each trajectory of X and of Y, from 0: those of a unit stay in one part. If ``paired``,
    the units of X are those of Y. ``weights`` are those of the times.
    """
    from scipy.special import stdtrit

    T = min(X.shape[1], Y.shape[1], len(weights))
    X, Y, w = X[:, :T], Y[:, :T], weights[:T]
    numbers = [int(unit.max()) + 1 for unit in units]
    parts = [rng.permutation(n) % PARTS for n in numbers]
    parts = [parts[0], parts[0]] if paired else parts
    x_part, y_part = (part[unit] for part, unit in zip(parts, units, strict=True))
    scores = np.empty(len(X)), np.empty(len(Y))
    choose = _squares if cost == "sqeuclidean" else _functions
    for k in range(PARTS):
        x, y = x_part == k, y_part == k
        φ, ψ = choose(X[~x], Y[~y], X[x], Y[y], cost)
        scores[0][x], scores[1][y] = φ @ w, ψ @ w
    means = [score.mean() for score in scores]
    sums = [
        np.bincount(unit, score - mean, minlength=n) / len(score)
        for unit, score, mean, n in zip(units, scores, means, numbers, strict=True)
    ]
    independent = [sums[0] + sums[1]] if paired else sums
    variance = sum(part.size / (part.size - 1) * float(part @ part) for part in independent)
    value, error = float(sum(means)), float(np.sqrt(variance))
    reach = float(stdtrit(min(part.size for part in independent) - 1, 1 - (1 - confidence) / 4)) * error
    return MarginalBound(value, error, value - reach, value + reach, T)


def _functions(X: Floats, Y: Floats, x: Floats, y: Floats, metric: str) -> tuple[Floats, Floats]:
    """Return φ_t(x_t) and ψ_t(y_t) of a metric, (·, T); chosen by X and Y."""
    m, n = X.mean(axis=0), Y.mean(axis=0)
    center, apart = (m + n) / 2, m - n
    error = X.var(axis=0) / len(X) + Y.var(axis=0) / len(Y)  # (T, d), squared
    if metric == "euclidean":
        u = apart / np.maximum(np.linalg.norm(apart, axis=1), 2 * np.sqrt(error.sum(axis=1)) + 1e-300)[:, None]
    else:
        u = apart / np.maximum(np.abs(apart), 2 * np.sqrt(error) + 1e-300)
    if metric == "chebyshev":  # the largest coordinate only
        u *= np.arange(apart.shape[1]) == np.abs(apart).argmax(axis=1)[:, None]
    order = {"euclidean": 2, "cityblock": 1, "chebyshev": np.inf}[metric]
    far = [np.linalg.norm(part - center, order, axis=2) for part in (X, Y, x, y)]
    wider = far[0].mean(axis=0) - far[1].mean(axis=0)
    noise = np.sqrt(far[0].var(axis=0) / len(X) + far[1].var(axis=0) / len(Y))
    radial = wider / np.maximum(np.abs(wider), 2 * noise + 1e-300)
    linear = (u * apart).sum(axis=1) >= radial * wider
    f = [
        np.where(linear, ((part - center) * u).sum(axis=2), radial * r) for part, r in zip((x, y), far[2:], strict=True)
    ]
    return f[0], -f[1]


def _squares(X: Floats, Y: Floats, x: Floats, y: Floats, metric: str) -> tuple[Floats, Floats]:
    """Return φ_t(x_t) and ψ_t(y_t) of the squared distance, (·, T); chosen by X and Y."""
    m, n = X.mean(axis=0), Y.mean(axis=0)
    Δ = m - n
    σ, τ = (np.sqrt(((part - mean) ** 2).sum(axis=2).mean(axis=0)) for part, mean in ((X, m), (Y, n)))
    known = (σ > 0) & (τ > 0)
    λ = np.where(known, τ, 1.0) / np.where(known, σ, 1.0)
    φ = 2 * ((x - n) * Δ).sum(axis=2) + (1 - λ) * ((x - m) ** 2).sum(axis=2) - (Δ**2).sum(axis=1)
    ψ = -2 * ((y - n) * Δ).sum(axis=2) + (1 - 1 / λ) * ((y - n) ** 2).sum(axis=2)
    return φ, ψ
