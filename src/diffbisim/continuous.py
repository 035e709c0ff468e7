"""Estimation of the distance between two processes in R^d from trajectories, with an interval and an error budget.

Both datasets are converted to chains on shared cells with local-linear rows (quantize.py); the ``plug_in`` estimate d̂
is the exact distance of these chains. It has three sources of error.

*Quantization.* Cells blur details: similar processes look more different, and different ones more similar. For
linear-Gaussian processes the size of this error is known, since their distance has a closed form (gaussian.py). One
such process is fitted to each dataset and quantized to the same cells, and its quantization error is subtracted,

    t = d̂ - (d_cells(G_X, G_Y) - d(G_X, G_Y)).

This removes most of the error if the processes are nearly linear, and that of their linear parts otherwise. It requires
a closed form: cost "sqeuclidean", discounted or over a horizon, or "euclidean" on the line with slopes ≥ 0; and no
terminal states. The remaining error is estimated by comparison with cells twice as large, since errors of order
(diameter)² fall by 2^(2/d) when the number of cells doubles. The effect of pruning is estimated by omitting it once.

*Bias.* Sampling noise makes equal processes look different. Let u = t|t|; its bias is of order 1/N both at zero
distance and far from zero. The datasets are split into halves at random several times, keeping episodes intact; with
u_½ the mean over the halves,

    value = sqrt(max(0, 2u - u_½))

removes the term of order 1/N. Half of this correction is taken as the remaining bias.

*Sampling error.* The difference in u between two halves has twice the standard error of the whole dataset, so the same
halves give the standard error. Its multiple, the quantization error, the remaining bias and the effect of pruning are
added in quadrature, as independent errors. Near zero the distribution is skewed, and the lower end is limited further:
two halves X', X'' of the *same* dataset are a sample from the null, and the lower end is at most sqrt(u - u_0), with
u_0 the larger of the means of u(X', X'') and u(Y', Y''). This is conservative, since halves are noisier than the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, Integers, check_count, check_probability
from diffbisim.cost import feature_cost
from diffbisim.distance import distance, make_solver_for_resampling, used_discount
from diffbisim.errors import InvalidArgument
from diffbisim.gaussian import LinearGaussian, linear_gaussian_distance
from diffbisim.quantize import Cells, LocalLaws, Steps, Terminal, paths_of, quantize
from diffbisim.results import DistanceResult
from diffbisim.stochastic import as_generator

#: With fewer trajectories than this, they are cut into pieces before splitting into halves.
FEW = 8
#: Number of pieces that a dataset with few trajectories is cut into.
PIECES = 16
#: Number of quasi-random points that represent a Gaussian distribution.
POINTS = 256
#: Certified accuracy of every distance, relative to the largest cost; far below all other errors.
TOLERANCE = 1e-5
#: Number of distances per split: four pairs of halves, each with its calibration.
SOLVES = 8


@dataclass(frozen=True)
class Budget:
    """The estimated errors of an estimate, in units of the distance."""

    sampling: float  # standard error
    quantization: float  # estimated from cells twice as large
    bias: float  # bias that may remain after the correction for noise
    pruned: float  # effect of moving the smallest probabilities of each row to nearby cells


@dataclass(frozen=True, eq=False)
class PathEstimate:
    """The estimated distance between two processes in R^d, with an interval and an error budget."""

    value: float  # the estimate, corrected for quantization and bias
    lower: float  # lower end of the confidence interval
    upper: float  # upper end of the confidence interval
    confidence: float  # nominal coverage of the interval
    plug_in: float  # distance of the chains on cells
    calibrated: float  # the plug-in distance minus the quantization error of linear-Gaussian processes
    budget: Budget  # what the value may be wrong by
    distance: DistanceResult = field(repr=False)  # result for the chains on cells: plans, encoder, gradient
    cells: Cells = field(repr=False)  # as returned by ``quantize``
    halves: Floats = field(repr=False)  # (n, 2) calibrated distances of both halves of n splits
    null: Floats = field(repr=False)  # (n, 2) distances between the halves of X and between the halves of Y

    @property
    def standard_error(self) -> float:
        """Standard error of the value, ``budget.sampling``."""
        return self.budget.sampling

    @property
    def conclusion(self) -> str:
        """The conclusion from the interval, as a sentence."""
        return "evidence that they differ" if self.lower > 0 else "no evidence of a difference at this sample size"


def estimate_paths(
    X: Any,
    Y: Any,
    cost: Any = "euclidean",
    discount: float = 0.95,
    solver: Any = "exact",
    *,
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    n_states: Any = "auto",
    scale: Any = "std",
    terminal: Terminal | None = None,
    prune: float = 0.001,
    confidence: float = 0.95,
    replicates: int = 200,
    rng: int | np.random.Generator = 0,
) -> PathEstimate:
    """Estimate the distance of two sets of trajectories; :func:`diffbisim.estimate` calls it for (T, d) arrays.

    Parameters
    ----------
    X, Y : lists of arrays of shape (T, d)
        Trajectories that start like the processes.
    cost : str or callable, default="euclidean"
        "euclidean", "sqeuclidean", another metric of scipy's ``cdist``, or a function of points (n, d) and (m, d) that
        returns (n, m) costs.
    discount, solver, criterion, horizon, weights : as for :func:`diffbisim.distance`
        The criterion is "discounted" or "average". Over a finite horizon the steps of all times are pooled.
    n_states, scale, rng : as for :func:`diffbisim.quantize`
    terminal : callable, default=None
        A function from points (n, d) to (n,) booleans that says which points end a trajectory. Processes stay there,
        and later points of a trajectory are ignored.
    prune : float, default=0.001
        Mass of the smallest entries of each row that is moved to the nearest cell.
    confidence : float, default=0.95
        Nominal coverage of the interval.
    replicates : int, default=200
        Number of distances solved for the interval, eight per split of the data.

    Returns
    -------
    estimate : PathEstimate
    """
    if criterion not in ("discounted", "average"):
        raise InvalidArgument(f"criterion is {criterion!r}; estimate supports 'discounted' and 'average'")
    check_probability(confidence, "confidence")
    if (n_splits := check_count(replicates, "replicates") // SOLVES) < 3:
        raise InvalidArgument(f"replicates is {replicates!r}; trajectories need at least {3 * SOLVES}")
    if not (isinstance(cost, str) or callable(cost)):
        raise InvalidArgument(
            f'cost is a {type(cost).__name__}; use "euclidean", "sqeuclidean" or a function of two sets of points'
        )
    chosen = make_solver_for_resampling(solver, TOLERANCE)
    x = paths_of(X, "X")
    y = paths_of(Y, "Y", x[0].shape[1], "X")
    generator = as_generator(rng)
    seed = int(generator.integers(2**31))
    cells = quantize(x, y, n_states, scale, seed, terminal=terminal)
    coarse = quantize(x, y, max(2, cells.n_states // 2), scale, seed, terminal=terminal)
    whole = cells.steps(x), cells.steps(y)
    options = {"criterion": criterion, "horizon": horizon, "weights": weights}
    task = Task(cells, cost, discount, replace(chosen, threads=1), options, float(prune))
    base = task.solve(*whole)
    halves, null = _halved(task, whole, base, n_splits, generator)
    other = replace(task, cells=coarse).solve(*whole).calibrated
    pruned = abs(replace(task, prune=0.0).solve(*whole).calibrated - base.calibrated) if prune else 0.0
    found = Found(base.calibrated, halves, null, other, pruned, cells.dimension)
    value, interval, budget = _value_and_interval(found, float(confidence))
    return PathEstimate(
        value, *interval, float(confidence), base.result.value, base.calibrated, budget, base.result, cells, halves,
        null,
    )  # fmt: skip


def _halved(
    task: Task, whole: tuple[Steps, Steps], base: Solved, n_splits: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return calibrated distances between halves of X and Y, (n, 2), and between the halves of each dataset, (n, 2)."""
    near, rows = [base] * 4, []
    for _ in range(n_splits):
        x1, x2, y1, y2 = (task.side(half) for steps in whole for half in halves_of(steps, rng))
        pairs = ((x1, y1), (x2, y2), (x1, x2), (y1, y2))
        near = [task.between(*pair, near=old) for pair, old in zip(pairs, near, strict=True)]
        rows.append([solved.calibrated for solved in near])
    table = np.array(rows)
    return table[:, :2], table[:, 2:]


class Found(NamedTuple):
    """Calibrated distances of the whole datasets and of their halves."""

    whole: float  # t
    halves: Floats  # (n, 2)
    null: Floats  # (n, 2)
    coarse: float  # on cells twice as large
    pruned: float  # effect of pruning
    dimension: int


def _value_and_interval(found: Found, confidence: float) -> tuple[float, tuple[float, float], Budget]:
    """Return value, interval and error budget, computed on the scale u = t|t|."""
    from scipy.special import stdtrit

    t, halves, null, coarse, pruned, d = found
    u, u_halves, u_null = (part * np.abs(part) for part in (t, halves, null))
    corrected = max(0.0, float(2 * u - u_halves.mean()))
    value = float(np.sqrt(corrected))
    size = max(value, abs(t) / 2)  # bounded away from zero, where the slope of u vanishes
    slope = 2 * size or 1.0
    deviation = float(np.sqrt((((u_halves[:, 0] - u_halves[:, 1]) / 2) ** 2).mean()))
    cells = abs(t - coarse) / (2 ** (2 / d) - 1)
    left = abs(float(u_halves.mean() - u)) / 2
    quantile = stdtrit(len(halves), (1 + confidence) / 2)
    wide = math.hypot(quantile * deviation, slope * cells, left, slope * pruned)
    noise = float(u_null.mean(axis=0).max())
    lower = min(max(0.0, value - wide / slope), float(np.sqrt(max(0.0, float(u) - noise))))
    upper = float(np.sqrt(corrected + wide))
    return value, (lower, upper), Budget(deviation / slope, float(cells), left / slope, float(pruned))


# --- distances on cells --------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """One dataset on the cells."""

    chain: MarkovChain
    process: LinearGaussian | None  # the fitted process, if it can be used for calibration
    on_cells: MarkovChain | None  # the fitted process on the cells


class Solved(NamedTuple):
    """A distance on cells and its calibration."""

    result: DistanceResult
    gaussian: DistanceResult | None  # distance of the linear-Gaussian processes on the same cells
    shift: float  # added by the calibration

    @property
    def calibrated(self) -> float:
        return self.result.value + self.shift


@dataclass(frozen=True)
class Task:
    """The settings for computing distances on cells."""

    cells: Cells
    cost: Any
    discount: float
    solver: Any
    options: dict[str, Any]  # criterion, horizon, weights
    prune: float

    def solve(self, X: Steps, Y: Steps) -> Solved:
        """Compute the distance on the cells."""
        return self.between(self.side(X), self.side(Y))

    def side(self, steps: Steps) -> Side:
        """Estimate the chain on the cells, and that of a linear-Gaussian process fitted to the same steps."""
        chain = self.cells.smoothed(steps, self.prune)
        usual = self.options["criterion"] == "discounted" and not self.cells.n_terminal
        if not (usual and isinstance(self.cost, str) and self.cost in ("euclidean", "sqeuclidean")):
            return Side(chain, None, None)
        process = LinearGaussian.fit(steps.now, steps.after, steps.starts)
        return Side(chain, process, on_cells(process, self.cells, self.prune))

    def between(self, x: Side, y: Side, near: Solved | None = None) -> Solved:
        """Compute the distance of two sides, with the solution of a similar problem as a warm start."""
        result = self._distance(x.chain, y.chain, near.result if near else None)
        exact = self._closed_form(x, y, getattr(result.problem, "weights", None))
        if exact is None:
            return Solved(result, None, near.shift if near else 0.0)
        gaussian = self._distance(x.on_cells, y.on_cells, near.gaussian if near else None)
        return Solved(result, gaussian, exact - gaussian.value)

    def _closed_form(self, x: Side, y: Side, weights: Any) -> float | None:
        """Return the distance of the linear-Gaussian processes, or None if there is no closed form."""
        if x.process is None or y.process is None:
            return None
        try:
            return linear_gaussian_distance(x.process, y.process, self.discount, self.cost, weights=weights)
        except InvalidArgument:
            return None

    def _distance(self, X: Any, Y: Any, warm: DistanceResult | None) -> DistanceResult:
        discount = used_discount(self.discount, self.options["criterion"], self.options.get("weights"))
        return distance(X, Y, self._table, discount, self.solver, warm=warm, **self.options)

    @cached_property
    def _table(self) -> Any:
        centers = self.cells.centers
        return self.cost(centers, centers) if callable(self.cost) else feature_cost(centers, centers, self.cost)


def on_cells(process: LinearGaussian, cells: Cells, prune: float = 0.0) -> MarkovChain:
    """Quantize a linear-Gaussian process: the transition distribution at each center, by quasi-random points."""
    normal = _normal_points(process.dimension)
    steps = cells.centers @ process.slope.T + process.shift
    points = steps[:, None] + normal @ process.noise.T
    weights = np.full(points.shape[:2], 1.0 / len(normal))
    rows = cells.rows(LocalLaws(points, weights, np.zeros(weights.shape, dtype=bool)), prune)
    return MarkovChain(rows, initial=cells.law(process.start + normal @ process.spread.T))


@cache
def _normal_points(d: int) -> Floats:
    """Return quasi-random points (POINTS, d) of the standard normal distribution."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(d, scramble=False).random(POINTS)
    return np.asarray(ndtri((uniform + 0.5 / POINTS) % 1.0))


def halves_of(steps: Steps, rng: np.random.Generator) -> tuple[Steps, Steps]:
    """Split the steps into random halves by trajectory, or by pieces of them if there are few."""
    n = len(steps.starts)
    unit: Integers = steps.trajectory
    if n < FEW:
        n = min(PIECES, len(steps.now))
        unit = np.arange(len(steps.now)) * n // len(steps.now)
    first = np.zeros(n, dtype=bool)
    first[rng.permutation(n)[: n // 2]] = True
    parts = []
    for mask in (first, ~first):
        taken = mask[unit]
        starts = steps.starts[mask] if n == len(steps.starts) else steps.starts
        parts.append(Steps(steps.now[taken], steps.after[taken], starts, steps.trajectory[taken]))
    return parts[0], parts[1]
