"""Fit the parameters of a model with continuous states by the distance of its trajectories to data.

    θ̂ = argmin_θ d(X̂, Ŷ_θ)

X̂ and Ŷ_θ are the chains of the data and of simulated trajectories on the same cells, with local-linear rows
(quantize.py), and d is their exact distance. The simulator is any function of parameters and a generator: a formula,
an environment or a program. It gets the same seed every time, so d depends on θ alone. The minimum is found by the
Nelder–Mead simplex method, which needs no derivatives and suits a small number of parameters. A linear-Gaussian
process need not be simulated, because its law at each cell center is known; θ are then its coefficients or parameters
that determine them.

*Intervals.* The data are split at random into two halves several times, keeping trajectories whole, and each half is
fitted starting from θ̂ with its own simulation seed. The difference of two halves has twice the standard deviation of
the full estimate.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, check_count, check_probability, finite_numbers
from diffbisim.continuous import TOLERANCE, halves_of, on_cells
from diffbisim.cost import feature_cost
from diffbisim.distance import distance, make_solver
from diffbisim.errors import InvalidArgument
from diffbisim.gaussian import LinearGaussian
from diffbisim.quantize import Cells, Steps, paths_of, quantize
from diffbisim.results import DistanceResult
from diffbisim.stochastic import as_generator

Simulate = Callable[[Floats, np.random.Generator], Any]

#: Size of the first simplex of the search, relative to the initial parameters.
REACH = 0.25


@dataclass(frozen=True, eq=False)
class SimulatorFit:
    """Fitted parameters of a simulator, with confidence intervals.

    Attributes
    ----------
    parameters : array of shape (p,)
        Estimates.
    lower : array of shape (p,)
        Lower ends of the confidence intervals.
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


def fit_simulator(
    target: Any,
    simulate: Simulate | LinearGaussian,
    start: Any = None,
    *,
    cost: str = "sqeuclidean",
    discount: float = 0.9,
    n_states: Any = "auto",
    tol: float = 1e-3,
    splits: int = 8,
    confidence: float = 0.95,
    rng: int | np.random.Generator = 0,
) -> SimulatorFit:
    """Fit the parameters of a simulator to trajectories, with confidence intervals.

    :func:`diffbisim.fit` calls this function if its target is a list of trajectories.

    Parameters
    ----------
    target : list of arrays of shape (T, d)
        Observed trajectories.
    simulate : callable or LinearGaussian
        ``simulate(parameters, generator)`` returns trajectories whose initial states are distributed as in the data
        (more trajectories give less noise), or a :class:`diffbisim.LinearGaussian`, whose law is used directly. If
        `simulate` is itself a LinearGaussian, all of its coefficients are fitted, starting from their values (slope by
        rows, shift, lower triangle of the noise by rows); its initial distribution is that of the data.
    start : array of shape (p,), default=None
        Initial parameters, of the right order of magnitude; not needed if `simulate` is a LinearGaussian.
    cost, discount, n_states
        As in :func:`diffbisim.estimate` and :func:`diffbisim.quantize`.
    tol : float, default=1e-3
        Accuracy of the parameters, relative to `start`.
    splits : int, default=8
        Number of random splits of the data into halves, used for the intervals.
    confidence : float, default=0.95
        Nominal coverage of the intervals.
    rng : int or numpy.random.Generator, default=0
        Seed of the cells, the simulations and the splits.

    Returns
    -------
    SimulatorFit
        With ``parameters``, ``lower``, ``upper``, ``standard_errors`` and ``distance``.
    """
    from scipy.special import stdtrit

    paths, generator = paths_of(target, "target"), as_generator(rng)
    data = Steps.of(paths)
    if isinstance(simulate, LinearGaussian):
        simulate, start = _with_coefficients(simulate, data)
    if start is None:
        raise InvalidArgument("start is missing; give the initial parameters of the simulator, such as start=[1.0]")
    first = np.atleast_1d(np.asarray(start, dtype=np.float64))
    first = finite_numbers(first, (first.size,), name="start", per="parameter", error=InvalidArgument)
    check_count(splits, "splits", 2)
    check_probability(confidence, "confidence")
    cells = quantize(paths, n_states=n_states, rng=int(generator.integers(2**31)))
    search = _Search(cells, simulate, feature_cost(cells.centers, cells.centers, cost), discount)
    size = np.where(first == 0.0, 1.0, np.abs(first))
    seeds = generator.integers(2**31, size=(splits + 1, 2))
    best, result, n = search.run(data, first, REACH * size, tol * size, int(seeds[-1, 0]))
    found = []
    for pair in seeds[:-1].tolist():
        parts = zip(halves_of(data, generator), pair, strict=True)
        found.append([search.run(part, best, 4 * tol * size + 0.1 * size, tol * size, s)[0] for part, s in parts])
    halves = np.array(found)
    error = np.sqrt((((halves[:, 0] - halves[:, 1]) / 2) ** 2).mean(axis=0))
    width = stdtrit(splits, (1 + confidence) / 2) * error
    made = simulate(best, np.random.default_rng(0))
    process = made if isinstance(made, LinearGaussian) else None
    return SimulatorFit(best, best - width, best + width, error, float(confidence), result, cells, halves, n, process)


def _with_coefficients(process: LinearGaussian, data: Steps) -> tuple[Simulate, Floats]:
    """Return the process as a function of its coefficients, started like the data, and its present coefficients."""
    d = process.dimension
    if data.now.shape[1] != d:
        raise InvalidArgument(f"the process has {d} dimensions and target {data.now.shape[1]}; they must be equal")
    lower = np.tril_indices(d)
    observed = LinearGaussian.fit(data.now, data.after, data.starts)

    def model(parameters: Floats, rng: np.random.Generator) -> LinearGaussian:
        slope, shift, entries = np.split(parameters, [d * d, d * d + d])
        noise = np.zeros((d, d))
        noise[lower] = entries
        return LinearGaussian(slope.reshape(d, d), noise, shift=shift, start=observed.start, spread=observed.spread)

    root = np.linalg.cholesky(process.noise @ process.noise.T)
    return model, np.concatenate([process.slope.ravel(), process.shift, root[lower]])


class _Search:
    """Minimize the distance between observed steps and the model."""

    def __init__(self, cells: Cells, simulate: Simulate, table: Floats, discount: float) -> None:
        self.cells, self.simulate, self.table, self.discount = cells, simulate, table, discount
        self.solver = make_solver("exact", TOLERANCE)

    def run(
        self, steps: Steps, start: Floats, reach: Floats, tol: Floats, seed: int
    ) -> tuple[Floats, DistanceResult, int]:
        """Return the best parameters, their distance, and the number of evaluations."""
        from scipy.optimize import minimize

        chain = self.cells.smoothed(steps)
        last: DistanceResult | None = None

        def result(z: Floats) -> DistanceResult:
            nonlocal last
            model = self._on_cells(self.simulate(start + z * tol, np.random.default_rng(seed)))
            last = distance(chain, model, self.table, self.discount, self.solver, warm=last)
            return last

        p = start.size
        simplex = np.vstack([np.zeros(p), np.diag(reach / tol)])  # in units of tol, so that xatol = 1
        options: Any = {"initial_simplex": simplex, "xatol": 1.0, "fatol": np.inf, "maxfev": 200 * p}
        minimize_any: Any = minimize  # the type stubs lack the simplex options
        found = minimize_any(lambda z: result(z).value, np.zeros(p), method="Nelder-Mead", options=options)
        return start + found.x * tol, result(found.x), int(found.nfev)

    def _on_cells(self, made: Any) -> MarkovChain:
        if isinstance(made, LinearGaussian):
            return on_cells(made, self.cells)
        return self.cells.smoothed(Steps.of(paths_of(made, "simulate(…)", self.cells.dimension)))
