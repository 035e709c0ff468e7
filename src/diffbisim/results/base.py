"""Results: the same class for every solver.

A result is a value with certified bounds: ``lower ≤ value ≤ upper`` holds however the run ended. ``status`` describes
in a sentence how it ended; plans, encoder, decoder and gradient are computed from the coupling on demand.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.arrays import frozen, lazy, read_only
from diffbisim.common.checks import freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.names import find_state
from diffbisim.io.arrays import json_array
from diffbisim.io.files import replacing
from diffbisim.problems.base import ChainProblem
from diffbisim.results.contributions import Contributions
from diffbisim.results.coupling import Coupling
from diffbisim.results.gradient import Duals, Gradient, dual_certificates, gradient_of, implicit_reward

Array = NDArray[np.float64]

#: A warm start is ignored if its costs are larger or smaller by more than this factor.
MAX_RATIO_OF_WARM_COSTS = 1e3


class Status(Enum):
    """How a run ended; the value is a sentence, with a remedy where there is one.

    The aliases at the end are former names, which saved files may still contain.
    """

    # distances
    CONVERGED = "Converged: the certified gap is within tol."
    ROUNDING = (
        "Stopped at the limit of double precision: the certified gap is as small as rounding allows but above tol; "
        "use a larger tol or a smaller discount."
    )
    TIME = "Stopped at time_limit: the bounds are valid but wide; raise time_limit, or continue with warm=result."
    FAILED = "The underlying solver failed: the bounds are valid but wide; use solver='exact'."
    ESTIMATE = "Estimated from samples; more iterations improve it. Bounds are certified where the kernels are known."
    NOT_VERIFIED = (
        "Not verified: the problem is large, so the bounds in the file were neither checked nor used; lower and upper "
        "are those of any problem with these costs. Use load(path, verify=True) for the bounds in the file."
    )
    ENDED = "A stream ended early: estimated from the samples so far; continue with warm=result and more data."

    # any run
    ITERATIONS = "Stopped after max_iterations: the bounds are valid but wide; raise max_iterations or tol."
    INTERRUPTED = "Interrupted: the bounds are valid but wide; continue with warm=result or a checkpoint."

    # fits and imitations
    REACHED = "Reached: the certified distance is within tol of zero."
    SETTLED = (
        "Settled: no further improvement was found. This may be a local optimum; other starting parameters (kernel=, "
        "policy= or start=) may give a smaller distance."
    )
    POLICIES = (
        "Stopped after max_iterations: a closer policy may exist; the distance of this one is certified. Raise "
        "max_iterations or tol."
    )
    ITERATIONS_OF_FIT = "Stopped after max_iterations: raise max_iterations, or continue from a checkpoint."
    TIME_OF_FIT = (
        "Stopped at time_limit: the parameters are the best so far, and their intervals come from fewer splits, or are "
        "unbounded; raise time_limit."
    )
    EVALUATIONS = (
        "Stopped after too many simulations: the parameters are the best so far; give a closer start or bounds."
    )
    ESTIMATED = "Finished: all steps are taken; the distance is an estimate, more inner iterations make it better."

    # baselines
    SOLVED = "Solved."
    INACCURATE = (
        "The solver did not reach its tolerance: policy and objective are approximate; raise the regularization, "
        "or give more offline data."
    )

    # names in older files
    STALLED = SETTLED
    STOPPED = INTERRUPTED
    STEPS = ITERATIONS_OF_FIT

    @property
    def converged(self) -> bool:
        """Whether the run reached its target, or cannot improve further."""
        return self in (Status.CONVERGED, Status.REACHED, Status.SETTLED, Status.ESTIMATED, Status.SOLVED)


class HistoryRow(dict[str, Any]):
    """A read-only dict: a row of the history, or the work counters."""

    def _raise_read_only(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("results are read-only; change a copy, dict(row)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _raise_read_only

    def __reduce__(self) -> tuple[Any, ...]:
        return HistoryRow, (dict(self),)


class HasStatus:
    """Mixin for results with an ``outcome``."""

    outcome: Status

    @property
    def status(self) -> str:
        """How the run ended, as a sentence."""
        return self.outcome.value

    @property
    def converged(self) -> bool:
        """Whether the run reached its target (for a distance, a gap within ``tol``) or cannot improve further."""
        return self.outcome.converged


@dataclass(frozen=True, eq=False, repr=False)
class DistanceResult(HasStatus):
    """The distance between two chains, with certified bounds; read-only.

    Attributes
    ----------
    value : float
        The distance ``d``; ``lower <= value <= upper``.
    lower : float
        Certified lower bound, including rounding errors.
    upper : float
        Certified upper bound, including rounding errors.
    outcome : Status
        How the run ended.
    iterations : int
        Number of outer iterations of the solver.
    solver : str
        Name of the solver.
    history : tuple of mappings
        One per iteration, with ``lower``, ``upper`` and further entries that depend on the solver.
    work : mapping
        Counts of operations (pairs, pivots, sweeps, …), for comparing solvers independently of the machine.
    """

    problem: ChainProblem
    value: float
    lower: float
    upper: float
    outcome: Status
    iterations: int
    solver: str
    coupling: Coupling
    history: tuple[Mapping[str, float], ...] = ()
    work: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.__dict__["history"] = tuple(
            row if isinstance(row, HistoryRow) else HistoryRow(row) for row in self.history
        )
        self.__dict__["work"] = HistoryRow(self.work)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("occupancy", "encoder", "decoder"):  # pickle and deepcopy drop the read-only flag
            if name in state:
                freeze(state[name])
        self.__dict__.update(state)

    @property
    def gap(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower

    @property
    def property_bound(self) -> float:
        """Certified bound on the difference of expected rewards, in the units of model checkers.

        For any rewards that differ by at most the cost, ``|r_X(x) - r_Y(y)| ≤ c(x, y)``, the expected discounted sums
        Σ γ^t r differ by at most ``upper / (1 - γ)``. For two MDPs this holds for the maximal and minimal expected sums
        ("directed": the maximal ones, in one direction). Long-run averages (criterion "average"), totals ("total") and
        weighted sums over a finite horizon differ by at most ``upper``.
        """
        return self.problem.property_bound(self.upper)

    @property
    def meaning(self) -> str:
        """The bound as a sentence."""
        return self.problem.meaning(self.upper)

    @property
    def discount(self) -> float:
        """Discount γ of the problem."""
        return self.problem.discount

    @property
    def values(self) -> Array:
        """The metric between all pairs of states, shape ``(n_X, n_Y)``; NaN where not solved.

        This is ``(1-γ) V``; for average cost the minimal average from each pair, for total cost the minimal total.
        """
        return read_only(self.coupling.values)

    @property
    def values_lower(self) -> Array:
        """Certified lower bounds on :attr:`values`, ``(n_X, n_Y)``, including rounding errors; NaN where not solved.

        Available with the exact solver, also with ``lump=True``; for chains the first access costs one sweep.
        """
        self._need_verified("the bounds of its table are")
        return read_only(self.coupling.table_bounds[0])

    @property
    def values_upper(self) -> Array:
        """Certified upper bounds on :attr:`values`; see :attr:`values_lower`."""
        self._need_verified("the bounds of its table are")
        return read_only(self.coupling.table_bounds[1])

    @lazy
    def occupancy(self) -> Array:
        """Joint discounted occupancy ``m`` of the optimal coupling, shape ``(n_X, n_Y)``; sums to one.

        For average cost it is the long-run distribution, for total cost the expected number of visits. ``value`` is
        ``<m, c>``.
        """
        return frozen(self.coupling.occupancy())

    @lazy
    def encoder(self) -> Array:
        """``λ_X(y|x)``, shape ``(n_X, n_Y)``; see :attr:`unvisited` for states without occupancy."""
        return conditional(self.occupancy, self.values, self.problem.cost)

    @lazy
    def decoder(self) -> Array:
        """``λ_Y(x|y)``, shape ``(n_Y, n_X)``; see :attr:`unvisited` for states without occupancy."""
        return conditional(self.occupancy.T, self.values.T, self.problem.cost.T)

    @property
    def unvisited(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """States of X and of Y without occupancy, whose encoder and decoder rows are set to the nearest state.

        The nearest state is that in the metric or, if ``reachable=True`` skipped its pairs, by ground cost.
        """
        m = self.occupancy
        return np.flatnonzero(m.sum(axis=1) <= 0), np.flatnonzero(m.sum(axis=0) <= 0)

    @property
    def assignment(self) -> NDArray[np.intp]:
        """Hard encoder, the most likely state of Y for each state of X, shape ``(n_X,)``."""
        return np.asarray(self.encoder.argmax(axis=1))

    def plan(self, x: Hashable, y: Hashable) -> Array | sparse.coo_array:
        """Return the optimal coupling of the next states of ``x`` and ``y``.

        Parameters
        ----------
        x, y : hashable or int
            States of X and Y, by name or index.

        Returns
        -------
        plan : array of shape (n_X, n_Y)
            A ``scipy.sparse.coo_array`` if a chain is sparse.
        """
        plan = self.coupling.plan(*self._pair(x, y))
        return plan.copy() if self.problem.is_sparse else np.asarray(plan.toarray())

    def potentials(self, x: Hashable, y: Hashable) -> tuple[Array, Array]:
        """Return the optimal potentials ``f (n_X,)`` and ``g (n_Y,)`` of pair ``(x, y)``.

        The cost is ``V = values/(1-γ)``; for total cost ``V = values``, and for average cost the bias (for pairs with a
        transient state, ``values``). ``f(x') + g(y') <= V(x',y')`` whenever x' or y' is a possible successor, with
        equality where the plan has mass. Outside the supports they are c-transforms, that is, one-sided derivatives for
        adding mass there.
        """
        f, g = self.coupling.potentials(*self._pair(x, y))
        return f / self.problem.step, g / self.problem.step

    @lazy
    def duals(self) -> Duals:
        """``alpha_x (n_X, n_X, n_Y)`` and ``alpha_y (n_X, n_Y, n_Y)``, the paper's dual certificates, centered."""
        return dual_certificates(self.coupling)

    @lazy
    def gradient(self) -> Gradient:
        """Exact derivatives of the distance with respect to kernels, cost and initial distributions."""
        return gradient_of(self.coupling, self.occupancy)

    def implicit_reward(self) -> Array:
        """Return ``r(y,y') = Σ_x λ_Y(x|y) α_Y(x,y,y')``, (n_Y, n_Y); maximizing it brings Y closer to X."""
        return implicit_reward(self.coupling, self.decoder)

    def contributions(self, nodes: int = 8) -> Contributions:
        """Decompose the distance into contributions of states, rows and transitions.

        Parameters
        ----------
        nodes : int, default=8
            Number of quadrature nodes between X and Y for the contributions of single transitions.
        """
        if not isinstance(self.problem, ChainProblem):
            raise InvalidArgument(
                f"contributions are not available for {self.problem.criterion!r} problems; compare two chains with one "
                "cost, such as those of two policies or of one step"
            )
        return Contributions(self, nodes=nodes)

    def explore(self, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
        """Write a self-contained HTML page that shows both chains, their coupling and where the cost is paid.

        Parameters
        ----------
        path : str or Path
        names : pair of str, default=("X", "Y")
            Names of the two chains on the page.

        Returns
        -------
        path : Path
        """
        from diffbisim.results.page import explore

        return explore(self, path, names=names)

    def save(self, path: str | Path) -> None:
        """Save the result to an ``.npz`` file (arrays and JSON, no pickle) that :func:`diffbisim.load` reads."""
        with replacing(Path(path), binary=True) as file:
            np.savez(file, **self.arrays())

    def arrays(self) -> dict[str, Any]:
        """Return the result as named read-only arrays, the inverse of `diffbisim.results.saving.result_from_arrays`."""
        self._need_verified("a copy would be")
        problem = self.problem
        arrays: dict[str, Any] = {f"state.{k}": read_only(v) for k, v in self.coupling.state().items()}
        meta = {
            "diffbisim-result": 1, "value": self.value, "lower": self.lower, "upper": self.upper,
            "outcome": self.outcome.name, "iterations": self.iterations, "solver": self.solver,
            "coupling": type(self.coupling).__name__, "history": [dict(row) for row in self.history],
            "work": dict(self.work), **problem.metadata(),
        }  # fmt: skip
        return {**arrays, **problem.arrays(), "meta": json_array(meta)}

    def _need_verified(self, what: str) -> None:
        """Refuse what would pass on the content of a file that was not verified."""
        if self.outcome is Status.NOT_VERIFIED:
            raise InvalidArgument(
                f"this result was loaded from a file without verifying its bounds, so {what} not certified; load it "
                "with load(path, verify=True)"
            )

    def _pair(self, s: Any, t: Any) -> tuple[int, int]:
        """Return the indices of two states given by name or index."""
        return two_states((s, t), (self.problem.x, self.problem.y))

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        estimate = self.outcome is Status.ESTIMATE
        state = "estimate" if estimate else "converged" if self.converged else "NOT converged"
        state = "NOT verified" if self.outcome is Status.NOT_VERIFIED else state
        return (
            f"DistanceResult({self.value:.9g} in [{self.lower:.9g}, {self.upper:.9g}], gap {self.gap:.1e}, "
            f"{self.solver}, {self.iterations} iterations, {state})"
        )


def two_states(states: tuple[Any, Any], sides: tuple[Any, Any], when: str = "") -> tuple[int, int]:
    """Return the indices of a state of each process, given by name or index."""
    found = []
    for name, state, side in zip("xy", states, sides, strict=True):
        k = find_state(state, side.n_states, {known: at for at, known in enumerate(side.names or ())})
        if k is None:
            known = "a name, or an index" if side.names else "an index"
            raise InvalidArgument(
                f"{name} = {state!r} is not a state{when}: give {known} from 0 to {side.n_states - 1}"
            )
        found.append(k)
    return found[0], found[1]


def check_warm(warm: Any, shape: tuple[int, int]) -> None:
    """Raise an error unless ``warm`` is a result for chains of these sizes."""
    if not isinstance(warm, DistanceResult):
        raise InvalidArgument(f"warm is a {type(warm).__name__}; give a previous result of distance")
    if warm.problem.shape != shape:
        raise InvalidArgument(
            f"warm is a result for {warm.problem.shape} states, but this problem has {shape}; omit warm"
        )


def previous_table(warm: DistanceResult, scale: float, unknown: Callable[[], Array]) -> Array | None:
    """Return U of a previous result in units of ``scale``, in [0, 1]; None if its costs were of a different magnitude.

    Pairs that it did not solve (NaN, from ``reachable=True``) are taken from the table that ``unknown`` returns.
    """
    if not scale / MAX_RATIO_OF_WARM_COSTS <= warm.problem.scale <= scale * MAX_RATIO_OF_WARM_COSTS:
        return None
    with np.errstate(over="ignore"):
        table = warm.values / scale
    open_pairs = np.isnan(table)
    if open_pairs.any():
        table = np.where(open_pairs, unknown(), table)
    return np.clip(table, 0.0, 1.0)


def conditional(m: Array, values: Array, cost: Array) -> Array:
    """Normalize the rows of ``m``; a row without mass becomes a point mass at the nearest state.

    The nearest state is determined by ``values`` or, for rows that contain NaN, by the ground cost.
    """
    total = m.sum(axis=1, keepdims=True)
    known = ~np.isnan(values).any(axis=1, keepdims=True)
    nearest = np.zeros_like(m)
    nearest[np.arange(len(m)), np.where(known, values, cost).argmin(axis=1)] = 1.0
    return frozen(np.where(total > 0, m / np.where(total > 0, total, 1.0), nearest))
