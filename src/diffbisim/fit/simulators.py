"""Parameters of a model with continuous states, by the distance of its trajectories to data.

    θ̂ = argmin_θ d(X̂, Ŷ_θ)

X̂ and Ŷ_θ are the chains of the data and of simulated trajectories on the cells of the data, with local-linear rows
(quantize.py), and d is their exact distance. The simulator is any function of parameters and a generator: a formula, an
environment, a program. It is given the same seed every time, so that d moves with θ only; few parameters are sought, by
Nelder and Mead's simplex, which needs no derivative of the program. A linear-Gaussian process need not be simulated:
its law at each center is known, and θ are its coefficients, or what it is a function of.

*Interval.* The data are halved at random in several ways, trajectories staying whole, and each half is fitted from θ̂,
with trajectories simulated from a seed of its own. Two halves differ by twice what the whole is uncertain by.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, as_number, check_count, finite_numbers
from diffbisim.continuous import TOLERANCE, halves_of, on_cells
from diffbisim.cost import feature_cost
from diffbisim.distance import distance, make_solver
from diffbisim.errors import InvalidArgument
from diffbisim.gaussian import LinearGaussian
from diffbisim.quantize import Cells, Steps, paths_of, quantize
from diffbisim.results import DistanceResult
from diffbisim.stochastic import as_generator

Simulate = Callable[[Floats, np.random.Generator], Any]

#: The first simplex of the search reaches this far from the start, relative to it.
REACH = 0.25


@dataclass(frozen=True, eq=False)
class SimulatorFit:
    """Parameters of a simulator, with intervals."""

    parameters: Floats  # (p,)
    lower: Floats  # (p,)
    upper: Floats  # (p,)
    standard_errors: Floats  # (p,)
    confidence: float
    distance: DistanceResult = field(repr=False)  # of the data to what is simulated with these parameters
    cells: Cells = field(repr=False)
    halves: Floats = field(repr=False)  # (n, 2, p) parameters of both halves of n splits
    evaluations: int = 0  # simulations of the fit to all data
    process: LinearGaussian | None = field(default=None, repr=False)  # with these parameters, where the model is one


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
    """Fit the parameters of a simulator to trajectories (T, d), with intervals; ``db.fit(target, …)`` comes here, too.

    Parameters
    ----------
    target : list of trajectories
    simulate : ``simulate(parameters, generator)`` returns trajectories that start as the data do; many have less noise.
        Or it returns a :class:`diffbisim.LinearGaussian`, whose law is taken as it is. Or it is one: then all of its
        coefficients are sought from there (slope by rows, shift, lower triangle of the noise by rows), and it starts as
        the data do
    start : (p,) parameters to start from, of the right order of magnitude
    cost, discount, n_states : as for :func:`diffbisim.estimate` and :func:`diffbisim.quantize`
    tol : parameters are found to this share of ``start``
    splits : ways of halving the data for the interval
    confidence : nominal probability that an interval covers its parameter
    """
    from scipy.special import stdtrit

    paths, generator = paths_of(target, "target"), as_generator(rng)
    data = Steps.of(paths)
    if isinstance(simulate, LinearGaussian):
        simulate, start = _with_coefficients(simulate, data)
    first = np.atleast_1d(np.asarray(start, dtype=np.float64))
    first = finite_numbers(first, (first.size,), name="start", per="parameter", error=InvalidArgument)
    if check_count(splits, "splits") < 2 or not 0 < as_number(confidence) < 1:
        raise InvalidArgument(f"splits is {splits}, confidence {confidence}; give at least 2, and a probability")
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
    wide = stdtrit(splits, (1 + confidence) / 2) * error
    made = simulate(best, np.random.default_rng(0))
    process = made if isinstance(made, LinearGaussian) else None
    return SimulatorFit(best, best - wide, best + wide, error, float(confidence), result, cells, halves, n, process)


def _with_coefficients(process: LinearGaussian, data: Steps) -> tuple[Simulate, Floats]:
    """The process as a function of slope, shift and noise, which starts as the data do; and its own coefficients."""
    d = process.dimension
    if data.now.shape[1] != d:
        raise InvalidArgument(f"the process has {d} dimensions and target {data.now.shape[1]}; both need the same")
    lower = np.tril_indices(d)
    seen = LinearGaussian.fit(data.now, data.after, data.starts)

    def model(parameters: Floats, rng: np.random.Generator) -> LinearGaussian:
        slope, shift, entries = np.split(parameters, [d * d, d * d + d])
        noise = np.zeros((d, d))
        noise[lower] = entries
        return LinearGaussian(slope.reshape(d, d), noise, shift=shift, start=seen.start, spread=seen.spread)

    root = np.linalg.cholesky(process.noise @ process.noise.T)
    return model, np.concatenate([process.slope.ravel(), process.shift, root[lower]])


class _Search:
    """The distance of steps to what is simulated, and its minimum."""

    def __init__(self, cells: Cells, simulate: Simulate, table: Floats, discount: float) -> None:
        self.cells, self.simulate, self.table, self.discount = cells, simulate, table, discount
        self.solver = make_solver("exact", TOLERANCE)

    def run(
        self, steps: Steps, start: Floats, reach: Floats, tol: Floats, seed: int
    ) -> tuple[Floats, DistanceResult, int]:
        """The best parameters, their distance, and how many were tried."""
        from scipy.optimize import minimize

        chain = self.cells.smoothed(steps)
        known: list[DistanceResult] = []

        def result(z: Floats) -> DistanceResult:
            model = self._on_cells(self.simulate(start + z * tol, np.random.default_rng(seed)))
            warm = known[-1] if known else None
            known[:] = [distance(chain, model, self.table, self.discount, self.solver, warm=warm)]
            return known[-1]

        p = start.size
        simplex = np.vstack([np.zeros(p), np.diag(reach / tol)])  # in units of the tolerance
        options: Any = {"initial_simplex": simplex, "xatol": 1.0, "fatol": np.inf, "maxfev": 200 * p}
        least: Any = minimize  # its stubs know no options of the simplex
        found = least(lambda z: result(z).value, np.zeros(p), method="Nelder-Mead", options=options)
        return start + found.x * tol, result(found.x), int(found.nfev)

    def _on_cells(self, made: Any) -> MarkovChain:
        if isinstance(made, LinearGaussian):
            return on_cells(made, self.cells)
        return self.cells.smoothed(Steps.of(paths_of(made, "simulate(…)", self.cells.dimension)))
