"""Estimation of the distance between two processes in R^d from trajectories, with an interval and an error budget.

Both datasets are converted to chains on shared cells with local-linear rows (cells.py); the ``plug_in`` estimate d̂
is the exact distance of these chains. It has three sources of error.

*Quantization.* Cells blur details: similar processes look more different, and different ones more similar. For
linear-Gaussian processes the size of this error is known, since their distance has a closed form (gaussian.py). One
such process is fitted to each dataset and quantized to the same cells, and its quantization error is subtracted,

    t = d̂ - (d_cells(G_X, G_Y) - d(G_X, G_Y)).

This removes most of the error if the processes are nearly linear, and that of their linear parts otherwise. It requires
a closed form: cost "sqeuclidean", discounted or over a horizon, or "euclidean" on the line with slopes ≥ 0; and no
terminal states. For "euclidean" elsewhere, d(G_X, G_Y) is replaced by d_cells(G_X, G_Y), moved into the bounds of
gaussian.py. The remaining error is estimated by comparison with cells twice as large, since errors of order
(diameter)² fall by 2^(2/d) when the number of cells doubles. The effect of pruning is estimated by omitting it once.

*Bias.* Sampling noise makes equal processes look different. Let u = t|t|; its bias is of order 1/N both at zero
distance and far from zero. The datasets are split into halves at random several times, keeping episodes intact; with
u_½ the mean over the halves,

    value = sqrt(max(0, 2u - u_½))

removes the term of order 1/N. Half of this correction is taken as the remaining bias. Without an exact calibration, the
noise of equal rows is not subtracted first, and where it exceeds the distance of the states its bias is of order
1/√N, which would take 2.4 times the correction. Since both orders occur, 1.7 ± 0.7 times the correction is used then.

*Sampling error.* The difference in u between two halves has twice the standard error of the whole dataset, so the same
halves give the standard error. Its multiple, the quantization error, the remaining bias and the effect of pruning are
added in quadrature, as independent errors. Without an exact calibration, the quantization error and the remaining bias,
which mostly make distances too large, are subtracted from the lower end as they are. Near zero the distribution is
skewed, and the lower end is limited further: two halves X', X'' of the *same* dataset are a sample from the null, and
the lower end is at most sqrt(u - u_0), with u_0 the larger of the means of u(X', X'') and u(Y', Y''). This is
conservative, since halves are noisier than the whole.

*Marginal laws.* Neither value nor interval is below the bound of marginals.py. If it proves more than the upper end,
the cells are wrong, and there is no upper end. Cells wider than the steps, and growth that the data end before, are
refused.

*Pairs.* If both sides start at the same points, such as a simulator that is started where recordings start, X' and Y'
have the same starts in each split. Halves that compare X with X start at all points, as X and Y do: the null is that
the dynamics are equal, and the starts are no part of the noise. Errors of other kinds are then larger in comparison,
and all of them are added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.checks import Floats, Integers, check_count, check_probability
from diffbisim.common.errors import InvalidArgument, InvalidData, warn
from diffbisim.common.progress import Progress, tracking
from diffbisim.distances.chains import distance, make_solver_for_resampling, used_discount
from diffbisim.problems import Criterion, criterion_of
from diffbisim.processes.cells import Cells, LocalLaws, Terminal, TrajectorySteps, cut, paths_of, points_of, quantize
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import feature_cost
from diffbisim.processes.gaussian import (
    LinearGaussian,
    euclidean_bounds,
    later_share,
    linear_gaussian_distance,
    started,
    times,
)
from diffbisim.processes.stochastic import as_generator
from diffbisim.results.base import DistanceResult
from diffbisim.statistics.marginals import METRICS, MarginalBound, aligned, marginal_bound

#: With fewer trajectories than this, they are cut into pieces before splitting into halves.
MIN_TRAJECTORIES = 8
#: Number of pieces that a dataset with few trajectories is cut into.
PIECES = 16
#: With fewer trajectories (or episodes) than this, initial distributions are pooled unless ``initial`` is given.
FEW_STARTS = 20
#: Number of quasi-random points that represent a Gaussian distribution.
POINTS = 256
#: Certified accuracy of every distance, relative to the largest cost; far below all other errors.
TOLERANCE = 1e-5
#: Number of distances per split: four pairs of halves, each with its calibration.
SOLVES = 8
#: If cells are wider than a step, n_states="auto" doubles their number up to this.
FINEST = 100
#: Largest share of the weighted size of a process that may come from growth after the observed times.
LATER = 0.1
#: The long run of a chain is its occupancy with this discount.
STATIONARY = 1 - 1e-9
#: Multiple of the correction for bias, and of what may be left of it: with an exact calibration, and without.
CORRECTION = {True: (1.0, 0.5), False: (1.7, 0.7)}
#: In more dimensions than this, cells are coarse, and errors of the interval are added up, not in quadrature.
MAX_DIMENSIONS_OF_FINE_CELLS = 3
#: First points are the same if they are closer than this fraction of the distance to another first point; and the share
#: of such points that is not reported, since on the line a tenth of independent points are that close.
SAME_POINT_FRACTION, MAY_BE_CHANCE = 0.05, 0.4
#: Without discounting, growth is followed up to this time.
MAX_TIME_OF_GROWTH = 2000


class IntervalBasis(Enum):
    """What the interval of a :class:`PathEstimate` is based on, as a sentence."""

    CELLS = "The interval is that of the cells; the marginal laws do not contradict it."
    RAISED = "The lower end, or the value, is that of the marginal laws, which is larger than that of the cells."
    CONTRADICTED = (
        "The marginal laws prove a larger distance than the upper end of the cells. The cells do not describe these "
        "processes and give no upper end: use more cells, or compare fewer times with weights=."
    )
    UNCHECKED = "The interval is that of the cells; the marginal laws give no bound here, see ``assumed``."


@dataclass(frozen=True)
class Budget:
    """The estimated errors of an estimate, in units of the distance."""

    sampling: float  # standard error
    quantization: float  # estimated from cells twice as large
    bias: float  # bias that may remain after the correction for noise
    pruned: float  # effect of moving the smallest probabilities of each row to nearby cells
    later: float = 0.0  # growth after the observed times, which cells cannot follow


@dataclass(frozen=True, eq=False)
class PathEstimate:
    """The estimated distance between two processes in R^d, with an interval and an error budget."""

    value: float  # the estimate, corrected for quantization and bias
    lower: float  # lower end of the confidence interval
    upper: float  # upper end of the confidence interval; infinite if the marginal laws contradict the cells
    confidence: float  # nominal coverage of the interval
    plug_in: float  # distance of the chains on cells
    calibrated: float  # the plug-in distance minus the quantization error of linear-Gaussian processes
    budget: Budget  # what the value may be wrong by
    distance: DistanceResult = field(repr=False)  # result for the chains on cells: plans, encoder, gradient
    cells: Cells = field(repr=False)  # as returned by ``quantize``
    halves: Floats = field(repr=False)  # (n, 2) calibrated distances of both halves of n splits
    null: Floats = field(repr=False)  # (n, 2) distances between the halves of X and between the halves of Y
    marginal: MarginalBound | None = field(default=None, repr=False)  # lower bound from the marginal laws
    basis: IntervalBasis = field(default=IntervalBasis.UNCHECKED, repr=False)  # what the interval is based on
    assumed: tuple[str, ...] = field(default=(), repr=False)  # what was assumed about the data, as sentences

    @property
    def standard_error(self) -> float:
        """Standard error of the value, ``budget.sampling``."""
        return self.budget.sampling

    @property
    def conclusion(self) -> str:
        """The conclusion from the interval, as a sentence."""
        return "evidence that they differ" if self.lower > 0 else "no evidence of a difference at this sample size"

    @property
    def status(self) -> str:
        """What the interval is based on (the cells, or bounds from the marginal laws), as a sentence."""
        return self.basis.value


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
    initial: Any = None,
    paired: bool | None = None,
    n_states: Any = "auto",
    scale: Any = "std",
    terminal: Terminal | None = None,
    prune: float = 0.001,
    confidence: float = 0.95,
    replicates: int = 200,
    rng: int | np.random.Generator = 0,
    progress: Progress = False,
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
    initial : str, array of shape (n, d), or tuple (for X, for Y), default=None
        Initial distribution: "first" is that of the trajectories, "pooled" that of all trajectories of both sides,
        "empirical" all points with a successor, "stationary" the long-run distribution of each chain, and an array the
        given points. The default is "first", or "pooled" if a side has fewer than 20 trajectories (with a warning if it
        matters).
    paired : bool, default=None
        Whether trajectories come in pairs that must be kept together: those with equal first points if both sides have
        the same ones equally often, else ``X[i]`` and ``Y[i]``. By default they are paired if the first points are the
        same, as for a simulator that is started where recordings start.
    n_states, scale, rng : as for :func:`diffbisim.quantize`
        "auto" uses up to 100 cells if fewer are wider than a step. Cells that are wider than half of the steps of a
        dataset are refused.
    terminal : callable, default=None
        A function from points (n, d) to (n,) booleans that says which points end a trajectory. Processes stay there,
        and later points of a trajectory are ignored.
    prune : float, default=0.001
        Mass of the smallest entries of each row that is moved to the nearest cell.
    confidence : float, default=0.95
        Nominal coverage of the interval.
    replicates : int, default=200
        Number of distances solved for the interval, eight per split of the data.
    progress : bool or callable, default=False
        Whether to show a progress bar, or a function ``(done, total)``.

    Returns
    -------
    estimate : PathEstimate
    """
    asked = criterion_of(criterion, horizon, weights)
    n_splits = _check(asked, confidence, replicates, cost)
    chosen = make_solver_for_resampling(solver, TOLERANCE)
    x = paths_of(X, "X")
    y = paths_of(Y, "Y", x[0].shape[1], "X")
    generator = as_generator(rng)
    seed = int(generator.integers(2**31))
    cells = _narrow_cells(x, y, n_states, scale, seed, terminal)
    coarse = quantize(x, y, max(2, cells.n_states // 2), scale, seed, terminal=terminal)
    whole = cells.steps(x), cells.steps(y)
    units = Units.of(whole, paired)
    starts = Starts.of(initial, whole, units, cells, asked)
    options = {"criterion": criterion, "horizon": horizon, "weights": weights}
    solver = replace(chosen, threads=1)
    task = CellDistances(cells, cost, discount, solver, asked, options, float(prune))
    base = task.solve(whole, starts)
    later = _growth(task, whole, starts, base)
    halves, null = _halved(task, whole, base, (units, starts, generator), n_splits, progress)
    other = replace(task, cells=coarse).solve(whole, starts).calibrated
    pruned = abs(replace(task, prune=0.0).solve(whole, starts).calibrated - base.calibrated) if prune else 0.0
    found = CalibratedDistances(
        base.calibrated, halves, null, other, pruned, cells.dimension, later, base.exact, units.shared
    )
    value, interval, budget = _value_and_interval(found, float(confidence))
    reason = _unbounded(task, units, starts)
    bound = None
    if not reason:
        first, second = (aligned(cut(paths, terminal), terminal) for paths in (x, y))
        bound = marginal_bound(
            first, second, units.of_trajectory, task.times_of(base), cost=cost, confidence=float(confidence),
            rng=generator, paired=units.paired,
        )  # fmt: skip
    sentences = (*units.assumed, *starts.assumed, *([reason] if reason else []))
    value, interval, basis = _raised(value, interval, bound)
    if basis is IntervalBasis.CONTRADICTED:
        warn(basis.value, category=UserWarning, stacklevel=2)
    return PathEstimate(
        value, *interval, float(confidence), base.result.value, base.calibrated, budget, base.result, cells, halves,
        null, bound, basis, sentences,
    )  # fmt: skip


def _check(criterion: Criterion, confidence: float, replicates: int, cost: Any) -> int:
    """Validate arguments; return the number of splits."""
    if criterion.kind.may_be_infinite:
        raise InvalidArgument(
            f"criterion is {criterion.kind.criterion!r}; estimate supports 'discounted' and 'average'"
        )
    check_probability(confidence, "confidence")
    if (n_splits := check_count(replicates, "replicates") // SOLVES) < 3:
        raise InvalidArgument(f"replicates is {replicates!r}; trajectories need at least {3 * SOLVES}")
    if not (isinstance(cost, str) or callable(cost)):
        raise InvalidArgument(
            f'cost is a {type(cost).__name__}; use "euclidean", "sqeuclidean" or a function of two sets of points'
        )
    return n_splits


def _halved(
    task: CellDistances, whole: Both, base: CalibratedDistance, how: tuple[Units, Starts, np.random.Generator],
    n_splits: int, progress: Progress,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return calibrated distances between halves of X and Y, (n, 2), and between the halves of each dataset, (n, 2)."""
    units, starts, rng = how
    near, rows = [base] * 4, []
    with tracking(progress, n_splits, "splits") as advance:
        for _ in range(n_splits):
            parts = units.halves(whole, rng)
            sides = [task.side(part, starts.of_side(k // 2, part)) for k, part in enumerate(parts)]
            alike = sides  # the halves of one dataset start like the pairs that are compared
            if units.shared:
                alike = [task.begun(side, starts.of_side(k // 2, whole[k // 2])) for k, side in enumerate(sides)]
            (x1, x2, y1, y2), (u1, u2, v1, v2) = sides, alike
            pairs = ((x1, y1), (x2, y2), (u1, u2), (v1, v2))
            near = [task.between(*pair, near=old) for pair, old in zip(pairs, near, strict=True)]
            rows.append([solved.calibrated for solved in near])
            advance(1)
    table = np.array(rows)
    return table[:, :2], table[:, 2:]


class CalibratedDistances(NamedTuple):
    """Calibrated distances of the whole datasets and of their halves."""

    whole: float  # t
    halves: Floats  # (n, 2)
    null: Floats  # (n, 2)
    coarse: float  # on cells twice as large
    pruned: float  # effect of pruning
    dimension: int
    later: float  # share of growth after the observed times
    exact: bool  # whether the calibration is exact
    shared: bool  # whether both sides start at the same points


def _value_and_interval(found: CalibratedDistances, confidence: float) -> tuple[float, tuple[float, float], Budget]:
    """Return value, interval and error budget, computed on the scale u = t|t|."""
    from scipy.special import stdtrit

    t, halves, null, coarse, pruned, d, share, exact, shared = found
    u, u_halves, u_null = (part * np.abs(part) for part in (t, halves, null))
    multiple, rest = CORRECTION[exact]
    noisier = float(u_halves.mean() - u)
    corrected = max(0.0, float(u) - multiple * noisier)
    value = float(np.sqrt(corrected))
    size = max(value, abs(t) / 2)  # bounded away from zero, where the slope of u vanishes
    slope = 2 * size or 1.0
    deviation = float(np.sqrt((((u_halves[:, 0] - u_halves[:, 1]) / 2) ** 2).mean()))
    cells = abs(t - coarse) / (2 ** (2 / d) - 1)
    left = rest * abs(noisier)
    later = share * size
    quantile = stdtrit(len(halves), (1 + confidence) / 2)
    errors = quantile * deviation, slope * cells, left, slope * pruned, slope * later
    wide = float(sum(errors)) if shared or d > MAX_DIMENSIONS_OF_FINE_CELLS else math.hypot(*errors)
    noise = float(u_null.mean(axis=0).max())
    down = wide
    if not (exact or shared):  # both make distances too large, so they are no independent errors of the lower end
        down = math.hypot(quantile * deviation, slope * pruned, slope * later) + slope * cells + left
    lower = min(max(0.0, value - down / slope), float(np.sqrt(max(0.0, float(u) - noise))))
    upper = float(np.sqrt(corrected + wide))
    budget = Budget(deviation / slope, float(cells), left / slope, float(pruned), float(later))
    return value, (lower, upper), budget


def _raised(
    value: float, interval: tuple[float, float], bound: MarginalBound | None
) -> tuple[float, tuple[float, float], IntervalBasis]:
    """Return value and interval, not below what the marginal laws prove."""
    lower, upper = interval
    if bound is None:
        return value, interval, IntervalBasis.UNCHECKED
    if bound.lower > upper:
        return bound.value, (bound.lower, math.inf), IntervalBasis.CONTRADICTED
    if bound.lower <= 0 or (bound.lower <= lower and bound.value <= value and bound.upper <= upper):
        return value, interval, IntervalBasis.CELLS
    return max(value, bound.value), (max(lower, bound.lower), max(upper, bound.upper)), IntervalBasis.RAISED


def _unbounded(task: CellDistances, units: Units, starts: Starts) -> str:
    """Return why there is no bound from the marginal laws, as a sentence; empty if there is one."""
    if task.criterion.kind.forgets_start:
        return "no bound from marginal laws: for average costs it would need the laws at late times"
    if not (isinstance(task.cost, str) and task.cost in METRICS):
        return f"no bound from marginal laws: it needs one of the costs {', '.join(METRICS)}"
    if not starts.observed:
        return "no bound from marginal laws: the initial distributions are not those of the trajectories"
    if min(units.numbers) < MIN_TRAJECTORIES:
        return f"no bound from marginal laws: it needs at least {MIN_TRAJECTORIES} trajectories (or pairs) on each side"
    return ""


def _growth(task: CellDistances, whole: Both, starts: Starts, base: CalibratedDistance) -> float:
    """Return the share of growth after the observed times; raise if it is large."""
    if task.cells.n_terminal:
        return 0.0  # the linear fit does not know where trajectories end
    weights, shares = task.times_of(base), []
    for k, name in enumerate("XY"):
        steps = whole[k]
        seen = 1 + int(np.median(np.bincount(steps.trajectory, minlength=len(steps.starts))))
        process = LinearGaussian.fit(steps.now, steps.after, steps.starts)
        process = started(process, starts.of_side(k, steps)) or process
        power = 2 if task.cost == "sqeuclidean" else 1
        share = later_share(process, seen, weights, steps.now.mean(axis=0), power)
        if share > LATER:
            γ, remedy = f"{task.discount:g}", f"compare at most {seen} times"
            if task.options["weights"] is None and task.options["horizon"] is None:
                remedy = (
                    f"pass weights=(1 - {γ}) * {γ} ** np.arange({seen}) to compare the observed times only, lower the "
                    "discount"
                )
            raise InvalidData(
                f"{name} grows beyond the data: trajectories have {seen} points (median), and by the linear process "
                f"fitted to them, {share:.0%} of the weighted size of its states is growth after these times, which "
                f"cells in the range of the data cannot follow; {remedy}, or give longer trajectories"
            )
        shares.append(share)
    return max(shares)


def _narrow_cells(
    x: Any, y: Any, n_states: Any, scale: Any, seed: int, terminal: Terminal | None
) -> Cells:  # fmt: skip
    """Return shared cells that are narrower than the steps."""
    cells = quantize(x, y, n_states, scale, seed, terminal=terminal)
    while isinstance(n_states, str) and cells.n_states < FINEST and _too_wide(cells, x, y):
        finer = quantize(x, y, min(FINEST, 2 * cells.n_states), scale, seed, terminal=terminal)
        if finer.n_states <= cells.n_states:
            break
        cells = finer
    if message := _too_wide(cells, x, y):
        raise InvalidData(message)
    return cells


def _too_wide(cells: Cells, x: Any, y: Any) -> str:
    """Return a message if half of the steps of a dataset are shorter than the radius of the cell they start in."""
    for name, paths in (("X", x), ("Y", y)):
        steps = cells.steps(paths)
        length = np.linalg.norm((steps.after - steps.now) / cells.scale, axis=1)
        moving = length > 0
        radius = cells.radius[cells.encode(steps.now, outside="nearest")]
        if moving.any() and np.median(length[moving] - radius[moving]) < 0:
            return (
                f"cells are wider than the steps of {name}: the median step is {np.median(length[moving]):.3g}, the "
                f"median radius of the {cells.n_states} cells that steps start in {np.median(radius[moving]):.3g} (in "
                "units of scale), so that the chain on cells would hardly move. Use more cells (n_states= of "
                "diffbisim.statistics.paths.estimate_paths), fewer coordinates, or every m-th point of the "
                "trajectories, with longer steps"
            )
    return ""


# --- units and initial distributions -------------------------------------------------------------------------------

Both = tuple[TrajectorySteps, TrajectorySteps]


@dataclass(frozen=True, eq=False)
class Units:
    """What is kept together when data are divided: trajectories, or pairs of them."""

    of_trajectory: tuple[Integers, Integers]  # unit of each trajectory of X and of Y
    paired: bool  # whether unit i of X belongs to unit i of Y
    shared: bool  # whether the first points of both sides are the same
    assumed: tuple[str, ...] = ()

    @classmethod
    def of(cls, whole: Both, paired: bool | None) -> Units:
        if paired not in (None, True, False):
            raise InvalidArgument(f"paired is {paired!r}; use True, False or None")
        n, m = (len(steps.starts) for steps in whole)
        units, gap, share = _by_start(*whole)
        if units is not None and paired is not False:
            number = int(units[0].max()) + 1
            rule = "paired=True" if paired else "paired=False treats them as independent"
            near = f", which differ by at most {gap:.2g}" if gap else ""
            same = f"trajectories are paired by their {number} shared first points{near} ({rule})"
            return cls(units, True, True, (same,))
        each = np.arange(n), np.arange(m)
        if not paired:
            assumed = ("trajectories are independent, although first points are shared",) if share else ()
            if share and paired is None:
                warn(
                    f"{share:.0%} of the first points of Y are (nearly) first points of X, but not all, or not equally "
                    "often. The trajectories are taken as independent; pass paired=True if X[i] and Y[i] belong "
                    "together, or paired=False to confirm",
                    category=UserWarning, stacklevel=4,
                )  # fmt: skip
            return cls(each, False, False, assumed)
        if n != m:
            raise InvalidArgument(
                f"paired=True, but X has {n} trajectories and Y has {m}, with different first points; give as many, in "
                "the same order, or the same first points equally often"
            )
        return cls(each, True, False, ("X[i] and Y[i] are paired",))

    @property
    def numbers(self) -> tuple[int, int]:
        """Numbers of units of X and of Y."""
        x, y = (int(unit.max()) + 1 for unit in self.of_trajectory)
        return x, y

    def halves(
        self, whole: Both, rng: np.random.Generator
    ) -> tuple[TrajectorySteps, TrajectorySteps, TrajectorySteps, TrajectorySteps]:
        """Split both datasets into random halves: x1, x2, y1, y2; pairs stay in halves of the same number."""
        (x1, x2), first = _split(whole[0], self.of_trajectory[0], rng)
        (y1, y2), _ = _split(whole[1], self.of_trajectory[1], rng, first if self.paired else None)
        return x1, x2, y1, y2


def _by_start(x: TrajectorySteps, y: TrajectorySteps) -> tuple[tuple[Integers, Integers] | None, float, float]:
    """Return the number of the first point of each trajectory if both sides have the same ones equally often.

    First points count as the same if they are much closer than different first points of X are, since a file or a
    simulator may have rounded them. Also returns their largest difference in any coordinate and, if not all are shared,
    the share of Y's first points that are, zero if this may be chance.
    """
    from scipy.spatial import KDTree

    n, m = len(x.starts), len(y.starts)
    points, one = np.unique(x.starts, axis=0, return_inverse=True)
    if len(points) < 2:
        return None, 0.0, 0.0
    scale = np.where((spread := points.std(axis=0)) > 0, spread, 1.0)
    tree = KDTree(points / scale)
    apart = np.asarray(tree.query(points / scale, k=2)[0])[:, 1]
    distance, two = (np.asarray(part) for part in tree.query(y.starts / scale))
    same = distance <= SAME_POINT_FRACTION * apart[two]
    one, two = one.reshape(-1).astype(np.int64), two.astype(np.int64)
    counts = np.bincount(one), np.bincount(two, minlength=len(points))
    if same.all() and (counts[0] * m == counts[1] * n).all():
        return (one, two), float(np.abs(points[two] - y.starts).max()), 0.0
    share = float(same.mean())
    return None, 0.0, share if share > MAY_BE_CHANCE and len(points) == n else 0.0


@dataclass(frozen=True, eq=False)
class Starts:
    """The initial distributions."""

    rules: tuple[Any, Any]  # "first", "empirical" or "stationary", or points (n, d)
    observed: bool  # whether they are those of the trajectories
    assumed: tuple[str, ...] = ()

    @classmethod
    def of(cls, initial: Any, whole: Both, units: Units, cells: Cells, criterion: Criterion) -> Starts:
        given = initial if isinstance(initial, tuple) else (initial, initial)
        if len(given) != 2:
            raise InvalidArgument(f"initial is a tuple of {len(given)}; give one for X and one for Y")
        x, y = (steps.starts for steps in whole)
        pooled = np.concatenate([x, y])
        same = units.shared or bool((pooled == pooled[0]).all())
        assumed: tuple[str, ...] = ()
        if initial is None and min(len(x), len(y)) < FEW_STARTS:
            given, assumed = ("pooled", "pooled"), ("both sides start like all trajectories together",)
            if not same and not criterion.kind.forgets_start:
                warn(
                    f"with fewer than {FEW_STARTS} trajectories the initial distributions are uncertain, so that of "
                    'all trajectories is used for both sides; pass initial="pooled" to confirm, or initial="first" to '
                    "use that of each side",
                    category=UserWarning, stacklevel=4,
                )  # fmt: skip
        rules = [_start_rule(rule, pooled, cells) for rule in given]
        own = [rule == "first" if isinstance(rule, str) else same and rule is pooled for rule in rules]
        return cls((rules[0], rules[1]), all(own), assumed)

    def of_side(self, k: int, steps: TrajectorySteps) -> Floats | None:
        """Return the points that side k starts from; None for its stationary distribution."""
        rule = self.rules[k]
        if isinstance(rule, str):
            return {"first": steps.starts, "empirical": steps.now, "stationary": None}[rule]
        return np.asarray(rule)


def _start_rule(rule: Any, pooled: Floats, cells: Cells) -> Any:
    """Return "first", "empirical", "stationary" or points (n, d)."""
    if rule is None or (isinstance(rule, str) and rule in ("first", "empirical", "stationary")):
        return rule or "first"
    if isinstance(rule, str):
        if rule != "pooled":
            raise InvalidArgument(
                f'initial is {rule!r}; use "first", "pooled", "empirical", "stationary" or an array of points (n, d)'
            )
        return pooled
    points = points_of(rule, "initial", cells.dimension).reshape(-1, cells.dimension)
    cells.encode(points)  # raises if they are far outside the data
    return points


def _split(
    steps: TrajectorySteps, unit: Integers, rng: np.random.Generator, first: Any = None
) -> tuple[tuple[TrajectorySteps, TrajectorySteps], Any]:
    """Split into random halves by units, or by pieces of the data if there are few units; also return the choice.

    ``first`` says which units are in the first half.
    """
    n = int(unit.max()) + 1
    whole = n >= MIN_TRAJECTORIES
    if whole:
        of_step = unit[steps.trajectory]
    else:
        n = min(PIECES, len(steps.now))
        of_step = np.arange(len(steps.now)) * n // len(steps.now)
    if first is None or len(first) != n:
        first = np.zeros(n, dtype=bool)
        first[rng.permutation(n)[: n // 2]] = True
    parts = []
    for mask in (first, ~first):
        taken = mask[of_step]
        starts = steps.starts[mask[unit]] if whole else steps.starts
        parts.append(TrajectorySteps(steps.now[taken], steps.after[taken], starts, steps.trajectory[taken]))
    return (parts[0], parts[1]), first


def halves_of(steps: TrajectorySteps, rng: np.random.Generator) -> tuple[TrajectorySteps, TrajectorySteps]:
    """Split the steps into random halves by trajectory, or by pieces of them if there are few."""
    return _split(steps, np.arange(len(steps.starts)), rng)[0]


# --- distances on cells --------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """One dataset on the cells."""

    chain: MarkovChain
    process: LinearGaussian | None  # the fitted process, if it can be used for calibration
    on_cells: MarkovChain | None  # the fitted process on the cells


class CalibratedDistance(NamedTuple):
    """A distance on cells and its calibration."""

    result: DistanceResult
    gaussian: DistanceResult | None  # distance of the linear-Gaussian processes on the same cells
    shift: float  # added by the calibration
    exact: bool = False  # whether the distance of the linear-Gaussian processes is known exactly

    @property
    def calibrated(self) -> float:
        return self.result.value + self.shift


@dataclass(frozen=True)
class CellDistances:
    """The settings for computing distances on cells."""

    cells: Cells
    cost: Any
    discount: float
    solver: Any
    criterion: Criterion
    options: dict[str, Any]  # the same as arguments: criterion, horizon, weights
    prune: float

    def solve(self, whole: Both, starts: Starts | None = None) -> CalibratedDistance:
        """Compute the distance on the cells; by default, of processes that start like the trajectories."""
        points = [part.starts if starts is None else starts.of_side(k, part) for k, part in enumerate(whole)]
        x, y = (self.side(part, p) for part, p in zip(whole, points, strict=True))
        return self.between(x, y)

    def times_of(self, solved: CalibratedDistance) -> Floats:
        """Return the weights of the times."""
        if self.criterion.kind.forgets_start:
            return np.append(np.zeros(MAX_TIME_OF_GROWTH), 1.0)
        weights = getattr(solved.result.problem, "weights", None)
        return times(self.discount) if weights is None else np.asarray(weights)

    def side(self, steps: TrajectorySteps, points: Floats | None) -> Side:
        """Estimate the chain on the cells, and that of a linear-Gaussian process fitted to the same steps.

        They start like the points (n, d), or in their stationary distributions.
        """
        chain = self.cells.smoothed(steps, self.prune)
        usual = not self.criterion.kind.forgets_start and not self.cells.n_terminal
        if not (usual and isinstance(self.cost, str) and self.cost in ("euclidean", "sqeuclidean")):
            return self.begun(Side(chain, None, None), points)
        process = LinearGaussian.fit(steps.now, steps.after, steps.starts)
        return self.begun(Side(chain, process, on_cells(process, self.cells, self.prune)), points)

    def begun(self, side: Side, points: Floats | None) -> Side:
        """Return the same dynamics, started like the points (n, d), or in the stationary distribution."""
        chain, process, gaussian = side
        if points is None:
            chain = chain.with_initial(chain.occupancy(STATIONARY))
        else:
            chain = chain.with_initial(self.cells.law(points))
        process = None if process is None else started(process, points)
        if process is None or gaussian is None:
            return Side(chain, None, None)
        return Side(chain, process, gaussian.with_initial(start_on_cells(process, self.cells)))

    def between(self, x: Side, y: Side, near: CalibratedDistance | None = None) -> CalibratedDistance:
        """Compute the distance of two sides, with the solution of a similar problem as a warm start."""
        result = self._distance(x.chain, y.chain, near.result if near else None)
        bounds = self._bounds(x, y, getattr(result.problem, "weights", None))
        if bounds is None:
            return CalibratedDistance(result, None, near.shift if near else 0.0)
        gaussian = self._distance(x.on_cells, y.on_cells, near.gaussian if near else None)
        return CalibratedDistance(
            result, gaussian, float(np.clip(gaussian.value, *bounds)) - gaussian.value, bounds[0] == bounds[1]
        )

    def _bounds(self, x: Side, y: Side, weights: Any) -> tuple[float, float] | None:
        """Return bounds of the distance of the linear-Gaussian processes, equal if there is a closed form."""
        if x.process is None or y.process is None:
            return None
        try:
            exact = linear_gaussian_distance(x.process, y.process, self.discount, self.cost, weights=weights)
        except InvalidArgument:
            return self._without_closed_form(x.process, y.process, weights)
        return exact, exact

    def _without_closed_form(self, x: LinearGaussian, y: LinearGaussian, weights: Any) -> tuple[float, float] | None:
        if self.cost != "euclidean":
            return None  # the distance of the processes is infinite
        lower, upper = euclidean_bounds(x, y, used_discount(self.discount, self.criterion), weights)
        return (lower, upper) if np.isfinite(upper) else None

    def _distance(self, X: Any, Y: Any, warm: DistanceResult | None) -> DistanceResult:
        discount = used_discount(self.discount, self.criterion)
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
    return MarkovChain(rows, initial=start_on_cells(process, cells))


def start_on_cells(process: LinearGaussian, cells: Cells) -> Floats:
    """Return the initial distribution of a linear-Gaussian process on cells, by quasi-random points."""
    return cells.law(process.start + _normal_points(process.dimension) @ process.spread.T)


@cache
def _normal_points(d: int) -> Floats:
    """Return quasi-random points (POINTS, d) of the standard normal distribution."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(d, scramble=False).random(POINTS)
    return np.asarray(ndtri((uniform + 0.5 / POINTS) % 1.0))
