"""Fit the parameters of a model with continuous states by the distance of its trajectories to data.

    θ̂ = argmin_θ d(X̂, Ŷ_θ)

X̂ and Ŷ_θ are the chains of the data and of simulated trajectories on the same cells, with local-linear rows
(cells.py), and d is their exact distance. The model is a function of parameters and a generator: a formula, an
environment or a program. It gets the same seed every time, so d depends on θ alone. The minimum is found by the
Nelder–Mead simplex method, which needs no derivatives and suits a small number of parameters. A linear-Gaussian
process need not be simulated, because its law at each cell center is known; θ are then its coefficients or parameters
that determine them.

*First states.* A model with other first states than the data is compared where the data are not, and its parameters
compensate for it. Simulated trajectories therefore begin at the recorded first states, which is checked, and Ŷ_θ has
the initial distribution of X̂. A simulator gets them as its third argument; one without a third argument is accepted
only if it begins there, too. A one-step function x' = f(x, θ, noise) is simulated here, over the recorded lengths.

*What the data can determine.* If the cells are wider than a step of the process, nearly every step ends where it
began, and d hardly depends on θ: such cells are refused. So is an objective that is the same on both sides of θ̂, and a
standard error of zero.

*Intervals.* The data are split at random into two halves several times, keeping trajectories whole, and each half is
fitted starting from θ̂ with its own simulation seed. The difference of two halves has twice the standard deviation of
the full estimate.
"""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.checks import Floats, as_floats, check_count, check_probability, check_seconds, finite_numbers
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.common.progress import Progress, tracking
from diffbisim.distances.chains import distance, make_solver
from diffbisim.processes.cells import MOST_CELLS, Cells, TrajectorySteps, paths_of, quantize
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import feature_cost
from diffbisim.processes.gaussian import LinearGaussian
from diffbisim.processes.stochastic import as_generator
from diffbisim.results.base import DistanceResult, HasStatus, Status
from diffbisim.statistics.paths import TOLERANCE, halves_of, on_cells

Simulate = Callable[..., Any]

#: The signature of a one-step function.
STEP = "step(x, parameters, noise) that returns the states after one step"

#: Size of the first simplex of the search, relative to the initial parameters.
REACH = 0.25

#: Maximum number of evaluations of a search per parameter.
EVALUATIONS = 200

#: With n_states="auto", the radius of a cell is made smaller than a step by this factor.
FINER = 1.25

#: ... but with no fewer steps per cell than this: cells around single points are small, whatever a step is.
PER_CELL = 10

#: Simulated trajectories begin at a recorded first state up to rounding: this fraction of the range of the data.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class SimulatorFit(HasStatus):
    """Fitted parameters of a simulator, with confidence intervals.

    Attributes
    ----------
    parameters : array of shape (p,)
        Estimates.
    lower : array of shape (p,)
        Lower ends of the confidence intervals, within the bounds; -inf if time_limit left no time for them.
    upper : array of shape (p,)
        Upper ends of the confidence intervals.
    standard_errors : array of shape (p,)
        Standard errors.
    confidence : float
        Nominal coverage of the intervals.
    distance : DistanceResult
        Distance between the data and the model with these parameters.
    cells : Cells
        The cells on which the data and the model are compared.
    halves : array of shape (splits, 2, p)
        Parameters fitted to the two halves of each split.
    evaluations : int
        Number of simulations used by the fit to all data.
    process : LinearGaussian or None
        The fitted process, if the model is linear-Gaussian.
    outcome : Status
        Why the search ended; ``status`` is the sentence that explains it.
    """

    parameters: Floats
    lower: Floats
    upper: Floats
    standard_errors: Floats
    confidence: float
    distance: DistanceResult = field(repr=False)
    cells: Cells = field(repr=False)
    halves: Floats = field(repr=False)
    evaluations: int = 0
    process: LinearGaussian | None = field(default=None, repr=False)
    outcome: Status = Status.SETTLED


def fit_simulator(
    target: Any,
    simulate: Simulate | LinearGaussian | None = None,
    start: Any = None,
    *,
    step: Callable[[Floats, Floats, Floats], Any] | None = None,
    cost: str = "sqeuclidean",
    discount: float = 0.9,
    n_states: Any = "auto",
    bounds: Any = None,
    tol: float = 1e-3,
    splits: int = 8,
    confidence: float = 0.95,
    time_limit: float | None = None,
    progress: Progress = False,
    rng: int | np.random.Generator = 0,
) -> SimulatorFit:
    """Fit the parameters of a simulator to trajectories, with confidence intervals.

    :func:`diffbisim.fit` calls this function if its target is a list of trajectories.

    Parameters
    ----------
    target : list of arrays of shape (T, d)
        Observed trajectories.
    simulate : callable or LinearGaussian, default=None
        ``simulate(parameters, generator, starts)`` returns trajectories that begin at ``starts``, the recorded first
        states (n, d); it may return several from each, which gives less noise. Without a third argument, it has to
        begin at recorded first states as well; others are refused. It may also return a
        :class:`diffbisim.LinearGaussian`, whose law is used directly, with the initial distribution of the data. If
        `simulate` is itself a LinearGaussian, all of its coefficients are fitted, starting from their values (slope by
        rows, shift, lower triangle of the noise by rows).
    start : array of shape (p,), default=None
        Initial parameters, of the right order of magnitude; not needed if `simulate` is a LinearGaussian.
    step : callable, default=None
        Instead of `simulate`: a function ``step(x, parameters, noise)`` that returns the states (n, d) after one step
        from x (n, d). The entries of noise (n, d) are independent and standard normal. It is simulated from the
        recorded first states over the recorded lengths.
    cost, discount
        As in :func:`diffbisim.estimate`.
    n_states : int or "auto", default="auto"
        Number of cells, as in :func:`diffbisim.quantize`; "auto" gives more, up to 200 and a tenth of the
        number of steps, if cells would be wider than a step.
    bounds : sequence of p pairs (low, high), default=None
        Bounds of the parameters; None or an infinite number for an open end. Intervals are cut off there.
    tol : float, default=1e-3
        Accuracy of the parameters, relative to `start`.
    splits : int, default=8
        Number of random splits of the data into halves, used for the intervals.
    confidence : float, default=0.95
        Nominal coverage of the intervals.
    time_limit : float, default=None
        Seconds after which the search ends with the best parameters so far, checked before every simulation.
    progress : bool or callable, default=False
        True for a progress bar, or a callable ``(done, total)``; counts fits, one to all data and two per split.
    rng : int or numpy.random.Generator, default=0
        Seed of the cells, the simulations and the splits.

    Returns
    -------
    SimulatorFit
        With ``parameters``, ``lower``, ``upper``, ``standard_errors``, ``distance`` and ``status``.

    Raises
    ------
    InvalidData
        If the data cannot determine the parameters on these cells: cells are wider than a step, the objective is flat,
        or the standard error is zero; and if simulated trajectories do not begin at recorded first states.
    """
    from scipy.special import stdtrit

    deadline = time.perf_counter() + check_seconds(time_limit)
    paths, generator = paths_of(target, "target"), as_generator(rng)
    data = TrajectorySteps.of(paths)
    model, start = _model(simulate, step, start, paths)
    first = np.atleast_1d(np.asarray(start, dtype=np.float64))
    first = finite_numbers(first, (first.size,), name="start", per="parameter", error=InvalidArgument)
    box = _box(bounds, first)
    check_count(splits, "splits", 2)
    check_probability(confidence, "confidence")
    cells = _cells(paths, data, n_states, int(generator.integers(2**31)))
    costs = feature_cost(cells.centers, cells.centers, cost), discount
    search = _Search(cells, model, data.starts, costs, box, deadline)
    size = np.where(first == 0.0, 1.0, np.abs(first))
    seeds = generator.integers(2**31, size=(splits + 1, 2))
    found = []
    with tracking(progress, 1 + 2 * splits, "fits") as advance:
        whole = search.run(data, first, REACH * size, tol * size, int(seeds[-1, 0]), whole=True)
        advance(1)
        for pair in seeds[:-1].tolist():
            if whole.outcome is Status.TIME_OF_FIT:
                break
            best, split = whole.parameters, []
            for part, seed in zip(halves_of(data, generator), pair, strict=True):
                split.append(search.run(part, best, 4 * tol * size + 0.1 * size, tol * size, seed))
                advance(1)
            if any(half.outcome is Status.TIME_OF_FIT for half in split):
                whole = whole._replace(outcome=Status.TIME_OF_FIT)
            else:
                found.append([half.parameters for half in split])
    halves = np.array(found).reshape(len(found), 2, first.size)
    error = np.full(first.size, np.inf)
    if len(found) >= 2:
        error = np.sqrt((((halves[:, 0] - halves[:, 1]) / 2) ** 2).mean(axis=0))
        _refuse_exact(error, halves, box, tol * size, cells, data)
    width = stdtrit(max(len(found), 2), (1 + confidence) / 2) * error
    lower, upper = (np.clip(whole.parameters + sign * width, *box) for sign in (-1, 1))
    made = model(whole.parameters, np.random.default_rng(0), data.starts)
    process = made if isinstance(made, LinearGaussian) else None
    return SimulatorFit(
        whole.parameters, lower, upper, error, float(confidence), whole.distance, cells, halves, whole.evaluations,
        process, whole.outcome,
    )  # fmt: skip


# --- the model -----------------------------------------------------------------------------------------------------


def _model(simulate: Any, step: Any, start: Any, paths: Any) -> tuple[Simulate, Any]:
    """Return the model as a function of parameters, generator and first states, and the initial parameters."""
    if (simulate is None) == (step is None):
        given = "neither is" if simulate is None else "both are"
        raise InvalidArgument(f"simulate and step: {given} given; give one of them, a simulator or a one-step function")
    if isinstance(simulate, LinearGaussian):
        if start is not None:
            raise InvalidArgument("start is given, but a LinearGaussian starts from its own coefficients; omit start")
        return _with_coefficients(simulate, TrajectorySteps.of(paths))
    if start is None:
        raise InvalidArgument("start is missing; give the initial parameters of the simulator, such as start=[1.0]")
    if step is not None:
        return _stepping(step, [len(path) for path in paths]), start
    if not callable(simulate):
        raise InvalidArgument(f"simulate is a {type(simulate).__name__}; give a function or a LinearGaussian")
    if _takes_starts(simulate):
        return simulate, start
    return lambda parameters, rng, starts: simulate(parameters, rng), start


def _takes_starts(simulate: Any) -> bool:
    """Return whether a simulator has a third positional argument without a default."""
    try:
        parameters = inspect.signature(simulate).parameters.values()
    except (TypeError, ValueError):  # built-in functions
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    return (
        len(needed) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters) or "starts" in [p.name for p in places]
    )


def _accepts(function: Any, number: int) -> bool:
    """Return whether a function can be called with this number of positional arguments, as far as is known."""
    try:
        inspect.signature(function).bind(*range(number))
    except ValueError:  # built-in functions
        return True
    except TypeError:
        return False
    return True


def _stepping(step: Any, lengths: list[int]) -> Simulate:
    """Return a simulator of a one-step function, from given first states over the recorded lengths."""
    if not callable(step):
        raise InvalidArgument(f"step is a {type(step).__name__}; give a function {STEP}")
    if not _accepts(step, 3):
        raise InvalidArgument(f"step cannot be called with three arguments; give a function {STEP}")
    longest = max(lengths)

    def simulate(parameters: Floats, rng: np.random.Generator, starts: Floats) -> list[Floats]:
        states = [starts]
        for _ in range(longest - 1):
            made = as_floats(step(states[-1].copy(), parameters.copy(), rng.standard_normal(starts.shape)))
            if made.shape != starts.shape:
                raise InvalidData(
                    f"step(…) returned an array of shape {made.shape} for states of shape {starts.shape}; return the "
                    "states after one step, one per row"
                )
            states.append(made)
        paths = np.stack(states, axis=1)
        used = lengths if len(lengths) == len(starts) else [longest] * len(starts)
        return [path[:length] for path, length in zip(paths, used, strict=True)]

    return simulate


def _with_coefficients(process: LinearGaussian, data: TrajectorySteps) -> tuple[Simulate, Floats]:
    """Return the process as a function of its coefficients, started like the data, and its present coefficients."""
    d = process.dimension
    if data.now.shape[1] != d:
        raise InvalidArgument(f"the process has {d} dimensions and target {data.now.shape[1]}; they must be equal")
    lower = np.tril_indices(d)
    observed = LinearGaussian.fit(data.now, data.after, data.starts)

    def model(parameters: Floats, rng: np.random.Generator, starts: Floats) -> LinearGaussian:
        slope, shift, entries = np.split(parameters, [d * d, d * d + d])
        noise = np.zeros((d, d))
        noise[lower] = entries
        return LinearGaussian(slope.reshape(d, d), noise, shift=shift, start=observed.start, spread=observed.spread)

    root = np.linalg.cholesky(process.noise @ process.noise.T)
    return model, np.concatenate([process.slope.ravel(), process.shift, root[lower]])


def _box(bounds: Any, start: Floats) -> tuple[Floats, Floats]:
    """Return lower and upper bounds (p,), infinite where open."""
    p = start.size
    if bounds is None:
        return np.full(p, -np.inf), np.full(p, np.inf)
    remedy = f"give {p} pairs (low, high), one per parameter, such as bounds=[(0, None)]"
    try:
        pairs = [(low, high) for low, high in bounds]
        low, high = (
            np.array([end if pair[k] is None else float(pair[k]) for pair in pairs])
            for k, end in ((0, -np.inf), (1, np.inf))
        )
    except (TypeError, ValueError):
        raise InvalidArgument(f"bounds is {bounds!r}; {remedy}") from None
    if len(pairs) != p or not (low < high).all():
        raise InvalidArgument(f"bounds is {bounds!r}; {remedy}, with low < high")
    if not ((low <= start) & (start <= high)).all():
        i = int(np.argmin((low <= start) & (start <= high)))
        raise InvalidArgument(f"start[{i}] is {start[i]:g}, outside its bounds {low[i]:g} to {high[i]:g}")
    return low, high


# --- what the data can determine -----------------------------------------------------------------------------------


class _Sizes(NamedTuple):
    """Sizes in units of the coordinates' scales, as root mean squares."""

    radius: float  # distance of a point from the center of its cell
    step: float  # distance of a state from the next

    @classmethod
    def of(cls, cells: Cells, data: TrajectorySteps) -> "_Sizes":
        centers = cells.centers[cells.encode(data.now)]
        apart = (np.sqrt((((a - data.now) / cells.scale) ** 2).sum(axis=1).mean()) for a in (centers, data.after))
        return cls(*map(float, apart))

    def __str__(self) -> str:
        return f"cells have a radius of {self.radius:.2g} and steps a length of {self.step:.2g}, in standard deviations"


REMEDY = (
    "give more cells (n_states=), data recorded at longer intervals (every k-th state), or trajectories of fewer "
    "coordinates"
)


def _cells(paths: Any, data: TrajectorySteps, n_states: Any, seed: int) -> Cells:
    """Return cells that are no wider than a step: with "auto" as many as that takes; other cells are refused."""
    cells = quantize(paths, n_states=n_states, rng=seed)
    sizes = _Sizes.of(cells, data)
    needed = cells.n_states * (FINER * sizes.radius / max(sizes.step, 1e-300)) ** cells.dimension
    if not sizes.radius <= sizes.step and isinstance(n_states, str):
        most = max(cells.n_states, min(MOST_CELLS, len(data.now) // PER_CELL))
        cells = quantize(paths, n_states=int(min(most, np.ceil(needed))), rng=seed)
        sizes = _Sizes.of(cells, data)
    if not sizes.radius <= sizes.step:
        about = (
            f"about {needed:.2g} cells are needed"
            if needed * PER_CELL < len(data.now)
            else "there are too few data for that"
        )
        raise InvalidData(
            f"the cells of target are wider than a step, so they hide its dynamics: {sizes} ({cells.n_states} cells in "
            f"{cells.dimension} dimensions; {about}); {REMEDY}"
        )
    return cells


def _refuse_exact(
    error: Floats, halves: Floats, box: tuple[Floats, Floats], accuracy: Floats, cells: Cells, data: TrajectorySteps
) -> None:
    """Refuse standard errors of zero: a search that does not move has no error, but no estimate either."""
    for i in np.flatnonzero(~(error > 0)):
        for side, bound in zip(("lower", "upper"), box, strict=True):
            if (abs(halves[..., i] - bound[i]) <= accuracy[i]).all():
                raise InvalidData(
                    f"parameter {i} is at its {side} bound {bound[i]:g} in all fits to halves of the data, so that it "
                    "has no standard error; widen bounds= if values beyond it are possible, else fix the parameter "
                    "there and fit the others"
                )
        raise InvalidData(
            f"parameter {i} has a standard error of zero: all fits to halves of the data returned the same number; "
            f"{_Sizes.of(cells, data)}; if the parameter has an effect, {REMEDY}, or give another start"
        )


# --- the search ----------------------------------------------------------------------------------------------------


class _Minimum(NamedTuple):
    """The end of a search."""

    parameters: Floats
    distance: DistanceResult
    evaluations: int
    outcome: Status


class _OutOfTime(Exception):
    """The deadline has passed."""


class _Search:
    """Minimize the distance between observed steps and the model."""

    def __init__(
        self,
        cells: Cells,
        model: Simulate,
        recorded: Floats,
        costs: tuple[Floats, float],
        box: tuple[Floats, Floats],
        deadline: float,
    ) -> None:
        self.cells, self.model, (self.table, self.discount) = cells, model, costs
        self.recorded, self.box, self.deadline = recorded, box, deadline
        self.solver = make_solver("exact", TOLERANCE)

    def run(
        self, steps: TrajectorySteps, start: Floats, reach: Floats, tol: Floats, seed: int, whole: bool = False
    ) -> _Minimum:
        """Return the best parameters for some steps; the search for the whole data checks that they have an effect."""
        from scipy.optimize import minimize

        objective = _Objective(self, self.cells.smoothed(steps), steps.starts, seed)
        low, high = self.box
        p, (down, up) = start.size, ((start - low) / tol, (high - start) / tol)
        sides = reach / tol
        sides = np.where(sides <= up, sides, np.where(sides <= down, -sides, np.where(up >= down, up, -down)))
        simplex = np.vstack([np.zeros(p), np.diag(sides)])  # in units of tol, so that xatol = 1
        options: Any = {"initial_simplex": simplex, "xatol": 1.0, "fatol": np.inf, "maxfev": EVALUATIONS * p}
        minimize_any: Any = minimize  # the type stubs lack the simplex options
        limits = list(zip(-down, up, strict=True)) if np.isfinite(np.concatenate([down, up])).any() else None
        outcome = Status.SETTLED
        try:
            found = minimize_any(
                lambda z: objective(start + z * tol), np.zeros(p), method="Nelder-Mead", bounds=limits, options=options
            )
            outcome = Status.SETTLED if found.success else Status.EVALUATIONS
            if whole:
                self._refuse_flat(objective, start, np.abs(sides) * tol, steps)
        except _OutOfTime:
            outcome = Status.TIME_OF_FIT
        best, result = objective.best
        return _Minimum(np.clip(best, low, high), result, objective.count, outcome)

    def _refuse_flat(self, objective: "_Objective", start: Floats, reach: Floats, steps: TrajectorySteps) -> None:
        """Refuse a minimum around which a parameter has no effect beyond the accuracy of the distance."""
        best, result = objective.best
        low, high = self.box
        accuracy = 2 * TOLERANCE * (result.problem.scale or 1.0)
        for i, side in enumerate(np.eye(best.size) * reach):
            around = [np.clip(best + sign * side, low, high) for sign in (-1, 1)]
            rise = max(objective(point) - result.value for point in around)
            if not rise > accuracy:
                raise InvalidData(
                    f"the distance is flat in parameter {i}: between {around[0][i]:.4g} and {around[1][i]:.4g} it "
                    f"rises by {max(rise, 0.0):.2g}, its accuracy is {accuracy:.2g}; "
                    f"{_Sizes.of(self.cells, steps)}; if the parameter has an effect, {REMEDY}, or give another start"
                )


class _Objective:
    """The distance of the model to the chain of some steps, as a function of the parameters."""

    def __init__(self, search: _Search, chain: MarkovChain, starts: Floats, seed: int) -> None:
        self.search, self.chain, self.starts, self.seed = search, chain, starts, seed
        self.last: DistanceResult | None = None
        self.best: Any = (None, None)
        self.count = 0

    def __call__(self, parameters: Floats) -> float:
        s = self.search
        if self.count and time.perf_counter() > s.deadline:
            raise _OutOfTime
        made = s.model(parameters.copy(), np.random.default_rng(self.seed), self.starts.copy())
        self.last = distance(
            self.chain, self._on_cells(made, parameters), s.table, s.discount, s.solver, warm=self.last
        )
        self.count += 1
        if self.best[1] is None or self.last.value < self.best[1].value:
            self.best = parameters.copy(), self.last
        return self.last.value

    def _on_cells(self, made: Any, parameters: Floats) -> MarkovChain:
        """Return the chain of a simulation, with the initial distribution of the data."""
        cells = self.search.cells
        if isinstance(made, LinearGaussian):
            if made.dimension != cells.dimension:
                raise InvalidData(f"simulate(…) has {made.dimension} dimensions and target {cells.dimension}")
            chain = on_cells(made, cells)
        else:
            try:
                paths = paths_of(made, "simulate(…)", cells.dimension)
            except InvalidData as error:
                at = ", ".join(f"{x:.6g}" for x in parameters)
                raise InvalidData(f"{error}; the parameters were [{at}], which bounds= can exclude") from None
            simulated = TrajectorySteps.of(paths)
            self._refuse_other_starts(simulated.starts)
            chain = cells.smoothed(simulated)
        return MarkovChain(chain.transition, initial=self.chain.initial, rewards=chain.rewards)

    def _refuse_other_starts(self, starts: Floats) -> None:
        """Refuse trajectories that do not begin at recorded first states."""
        from scipy.spatial import cKDTree

        low, high = self.search.cells.box
        span = np.maximum(high - low, 1e-300)
        apart = cKDTree(self.search.recorded / span).query(starts / span)[0]
        for i in np.flatnonzero(apart > ROUNDING):
            raise InvalidData(
                f"trajectory {i} of simulate(…) begins at {np.array2string(starts[i], precision=4)}, which is not a "
                "recorded first state; take the recorded first states as a third argument, "
                "simulate(parameters, rng, starts), and begin there"
            )
