"""The distance of two processes in R^d of which trajectories are known, with an interval and a budget of its errors.

Both datasets become chains on shared cells, by local-linear rows (quantize.py), and d̂ is their exact distance: the
``plug_in``. Three things are wrong with it.

*Cells.* They blur what is finer than they are: near processes look farther apart, far ones nearer. By how much is known
for linear-Gaussian processes, whose distance has a closed form (gaussian.py). So one such process is fitted to each
dataset, put on the same cells, and the error that the cells make there is taken off,

    t = d̂ - (d_cells(G_X, G_Y) - d(G_X, G_Y)).

Where the processes are nearly linear this leaves little; elsewhere it is the error of their linear parts. It needs a
closed form: cost "sqeuclidean", discounted or over a horizon, or "euclidean" on the line with slopes ≥ 0; and no
terminal states. What is left is judged from cells twice as large: errors of order (diameter)² fall by 2^(2/d) as the
number of cells doubles. What pruning of rows changes is found by leaving it out once.

*Samples.* Noise makes equal things look different. Let u = t|t|: at zero distance u is of order 1/N, and so is its
error far from zero. The datasets are halved at random in several ways, episodes staying whole; with u_½ their mean,

    value = sqrt(max(0, 2u - u_½))

takes the term 1/N off. Half of that correction counts as what may be left of the bias.

*Chance.* Two halves of the data differ in u by twice what the whole is uncertain by, so the same halves give the
standard error. Near zero distributions are skew, and the lower end obeys another rule as well: halves X', X'' of the
*same* dataset are a null experiment, and the lower end is no more than sqrt(u - u_0), u_0 the larger mean of u(X', X'')
and u(Y', Y''). Halves are noisier than the whole, which makes this cautious.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, Integers, as_number, check_count
from diffbisim.cost import feature_cost
from diffbisim.distance import distance, make_solver
from diffbisim.errors import InvalidArgument
from diffbisim.gaussian import LinearGaussian, linear_gaussian_distance
from diffbisim.quantize import Cells, LocalLaws, Steps, Terminal, paths_of, quantize
from diffbisim.results import DistanceResult
from diffbisim.stochastic import as_generator

#: With fewer trajectories than this, halves are made of pieces of them.
FEW = 8
#: Pieces that a dataset of few trajectories is cut into.
PIECES = 16
#: Points that stand for a Gaussian law on the cells.
POINTS = 256
#: Every distance is certified to this share of the largest cost: far below all other errors.
TOLERANCE = 1e-5
#: A split of both datasets is four distances, each with its calibration.
SOLVES = 8


@dataclass(frozen=True)
class Budget:
    """What an estimate may be wrong by, in units of the distance."""

    sampling: float  # standard error: other data, of this size
    quantization: float  # other cells, judged from cells twice as large
    bias: float  # what the correction for noise may have left
    pruned: float  # what moving the smallest probabilities of each row to a near cell has changed


@dataclass(frozen=True, eq=False)
class PathEstimate:
    """The distance of two processes known by trajectories in R^d."""

    value: float  # the best estimate: calibrated, extrapolated
    lower: float
    upper: float
    confidence: float
    plug_in: float  # of the chains on cells, as they are
    calibrated: float  # less what the cells get wrong of linear-Gaussian processes
    budget: Budget
    distance: DistanceResult = field(repr=False)  # of the chains on cells: plans, encoder, gradient
    cells: Cells = field(repr=False)
    halves: Floats = field(repr=False)  # (n, 2) calibrated distances of both halves of n splits
    null: Floats = field(repr=False)  # (n, 2) of the halves of X, of the halves of Y

    @property
    def standard_error(self) -> float:
        return self.budget.sampling

    @property
    def conclusion(self) -> str:
        """What the interval says, in words; that there is no evidence does not make processes equal."""
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
    """The distance of two sets of trajectories; :func:`diffbisim.estimate` comes here with lists of (T, d) arrays.

    Parameters
    ----------
    X, Y : lists of trajectories (T, d), which start as the processes do
    cost : "euclidean", "sqeuclidean", another metric of scipy's cdist, or a function of points (n, d) and (m, d) that
        returns (n, m) costs
    discount, solver, criterion, horizon, weights : as for :func:`diffbisim.distance`; criterion "discounted" or
        "average". Over a finite horizon the steps of all times are pooled
    n_states, scale, rng : cells, as for :func:`diffbisim.quantize`
    terminal : a function of points (n, d) that says which of them end a trajectory, (n,) booleans: a process stays
        there for ever, and what follows in a trajectory does not count
    prune : share of each row whose smallest entries are moved to the nearest cell
    confidence : nominal probability that the interval covers the true distance
    replicates : distances that are solved for the interval, eight for each way of halving the data
    """
    if criterion not in ("discounted", "average"):
        raise InvalidArgument(f"criterion is {criterion!r}; an estimate has 'discounted' or 'average'")
    if not 0 < as_number(confidence) < 1:
        raise InvalidArgument(f"confidence is {confidence!r}; give a probability such as 0.95")
    if (n_splits := check_count(replicates, "replicates") // SOLVES) < 3:
        raise InvalidArgument(f"replicates is {replicates!r}; trajectories need at least {3 * SOLVES}")
    if not (isinstance(cost, str) or callable(cost)):
        raise InvalidArgument('cost is no name and no function; use "euclidean", "sqeuclidean" or f(points, points)')
    x = paths_of(X, "X")
    y = paths_of(Y, "Y", x[0].shape[1], "X")
    generator = as_generator(rng)
    seed = int(generator.integers(2**31))
    cells = quantize(x, y, n_states, scale, seed, terminal=terminal)
    coarse = quantize(x, y, max(2, cells.n_states // 2), scale, seed, terminal=terminal)
    whole = cells.steps(x), cells.steps(y)
    asked = {"criterion": criterion, "horizon": horizon, "weights": weights}
    task = Task(cells, cost, discount, replace(make_solver(solver, TOLERANCE), threads=1), asked, float(prune))
    base = task.solve(*whole)
    halves, null = _halved(task, whole, base, n_splits, generator)
    other = replace(task, cells=coarse).solve(*whole).calibrated
    pruned = abs(replace(task, prune=0.0).solve(*whole).calibrated - base.calibrated) if prune else 0.0
    found = Found(base.calibrated, halves, null, other, pruned, cells.dimension)
    value, interval, budget = _judge(found, float(confidence))
    return PathEstimate(
        value, *interval, float(confidence), base.result.value, base.calibrated, budget, base.result, cells, halves,
        null,
    )  # fmt: skip


def _halved(
    task: Task, whole: tuple[Steps, Steps], base: Solved, n_splits: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Calibrated distances of halves of X and Y, (n, 2), and of the halves of X and of Y among themselves, (n, 2)."""
    near, rows = [base] * 4, []
    for _ in range(n_splits):
        x1, x2, y1, y2 = (task.side(half) for steps in whole for half in halves_of(steps, rng))
        pairs = ((x1, y1), (x2, y2), (x1, x2), (y1, y2))
        near = [task.between(*pair, near=old) for pair, old in zip(pairs, near, strict=True)]
        rows.append([solved.calibrated for solved in near])
    table = np.array(rows)
    return table[:, :2], table[:, 2:]


class Found(NamedTuple):
    """Calibrated distances of the whole and of its parts."""

    whole: float  # t
    halves: Floats  # (n, 2)
    null: Floats  # (n, 2)
    coarse: float  # on cells twice as large
    pruned: float  # what pruning has changed
    dimension: int


def _judge(found: Found, confidence: float) -> tuple[float, tuple[float, float], Budget]:
    """Value, interval and budget, in the scale u = t|t|."""
    from scipy.special import stdtrit

    t, halves, null, coarse, pruned, d = found
    u, u_halves, u_null = (part * np.abs(part) for part in (t, halves, null))
    corrected = max(0.0, float(2 * u - u_halves.mean()))
    value = float(np.sqrt(corrected))
    size = max(value, abs(t) / 2)  # the slope of u at zero would make errors of d infinite
    slope = 2 * size or 1.0
    deviation = float(np.sqrt((((u_halves[:, 0] - u_halves[:, 1]) / 2) ** 2).mean()))
    cells = abs(t - coarse) / (2 ** (2 / d) - 1)
    left = abs(float(u_halves.mean() - u)) / 2
    quantile = stdtrit(len(halves), (1 + confidence) / 2)
    wide = float(np.hypot(quantile * deviation, slope * cells)) + left + slope * pruned
    noise = float(u_null.mean(axis=0).max())
    lower = min(max(0.0, value - wide / slope), float(np.sqrt(max(0.0, float(u) - noise))))
    upper = float(np.sqrt(corrected + wide))
    return value, (lower, upper), Budget(deviation / slope, float(cells), left / slope, float(pruned))


# --- one distance on cells -----------------------------------------------------------------------------------------


class Side(NamedTuple):
    """One dataset on the cells."""

    chain: MarkovChain
    process: LinearGaussian | None  # that fits best, where it can serve for calibration
    on_cells: MarkovChain | None


class Solved(NamedTuple):
    """A distance on cells, and less the error that cells make of linear-Gaussian processes."""

    result: DistanceResult
    gaussian: DistanceResult | None  # of the linear-Gaussian processes on the same cells
    shift: float  # what calibration adds

    @property
    def calibrated(self) -> float:
        return self.result.value + self.shift


@dataclass(frozen=True)
class Task:
    """What is asked of two sets of steps."""

    cells: Cells
    cost: Any
    discount: float
    solver: Any
    asked: dict[str, Any]  # criterion, horizon, weights
    prune: float

    def solve(self, X: Steps, Y: Steps) -> Solved:
        """The distance on the cells."""
        return self.between(self.side(X), self.side(Y))

    def side(self, steps: Steps) -> Side:
        """The chain of the steps on the cells, and of the linear-Gaussian process nearest to them."""
        chain = self.cells.smoothed(steps, self.prune)
        usual = self.asked["criterion"] == "discounted" and not self.cells.n_terminal
        if not (usual and isinstance(self.cost, str) and self.cost in ("euclidean", "sqeuclidean")):
            return Side(chain, None, None)
        process = LinearGaussian.fit(steps.now, steps.after, steps.starts)
        return Side(chain, process, on_cells(process, self.cells, self.prune))

    def between(self, x: Side, y: Side, near: Solved | None = None) -> Solved:
        """The distance of two sides, from the solution of a near problem if there is one."""
        result = self._distance(x.chain, y.chain, near.result if near else None)
        exact = self._closed_form(x, y, getattr(result.problem, "weights", None))
        if exact is None:
            return Solved(result, None, near.shift if near else 0.0)
        gaussian = self._distance(x.on_cells, y.on_cells, near.gaussian if near else None)
        return Solved(result, gaussian, exact - gaussian.value)

    def _closed_form(self, x: Side, y: Side, weights: Any) -> float | None:
        """The distance of the linear-Gaussian processes themselves, where it is known."""
        if x.process is None or y.process is None:
            return None
        try:
            return linear_gaussian_distance(x.process, y.process, self.discount, self.cost, weights=weights)
        except InvalidArgument:
            return None

    def _distance(self, X: Any, Y: Any, warm: DistanceResult | None) -> DistanceResult:
        return distance(X, Y, self._table, self.discount, self.solver, warm=warm, **self.asked)

    @cached_property
    def _table(self) -> Any:
        centers = self.cells.centers
        return self.cost(centers, centers) if callable(self.cost) else feature_cost(centers, centers, self.cost)


def on_cells(process: LinearGaussian, cells: Cells, prune: float = 0.0) -> MarkovChain:
    """A linear-Gaussian process as a chain on cells: the law at each center, by quasi-random points."""
    normal = _normal_points(process.dimension)
    steps = cells.centers @ process.slope.T + process.shift
    points = steps[:, None] + normal @ process.noise.T
    weights = np.full(points.shape[:2], 1.0 / len(normal))
    rows = cells.rows(LocalLaws(points, weights, np.zeros(weights.shape, dtype=bool)), prune)
    return MarkovChain(rows, initial=cells.law(process.start + normal @ process.spread.T))


@cache
def _normal_points(d: int) -> Floats:
    """Points (POINTS, d) that stand for the standard normal law."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(d, scramble=False).random(POINTS)
    return np.asarray(ndtri((uniform + 0.5 / POINTS) % 1.0))


def halves_of(steps: Steps, rng: np.random.Generator) -> tuple[Steps, Steps]:
    """Two random halves: of the trajectories, or of pieces of them where there are few."""
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
