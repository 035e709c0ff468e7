"""What a computation returns: one result object for every solver.

A result is a number with its proof: ``lower ≤ value ≤ upper`` holds however the run ended, ``status`` says in a
sentence how it ended, and everything else (plans, encoder, gradient) is computed from the coupling when asked for.
"""

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.checks import freeze
from diffbisim.contributions import Contributions
from diffbisim.errors import InvalidArgument
from diffbisim.gradient import Duals, Gradient, dual_certificates, gradient_of, implicit_reward
from diffbisim.io.files import replacing
from diffbisim.io.npz import chain_arrays
from diffbisim.names import find_state
from diffbisim.problem import Coupling, Problem, TotalProblem, frozen, lazy, read_only

Array = NDArray[np.float64]

#: A result for costs that are so many times larger or smaller says nothing about a table.
FAR = 1e3


class Status(Enum):
    """How a run ended, of a solver or of anything built on one; the value is a sentence, with a remedy if need be.

    A second name of the same sentence is an older one, which files may still hold.
    """

    # of a distance
    CONVERGED = "Converged: the certified gap is within tol."
    ROUNDING = (
        "Stopped at the limit of double precision: the certified gap is as small as rounding allows but above tol; "
        "ask for a larger tol or a smaller discount."
    )
    TIME = "Stopped at time_limit: the bounds are true but wide; raise time_limit, or go on with warm=result."
    FAILED = "The underlying solver gave up: the bounds are true but wide; use solver='exact'."
    ESTIMATE = "An estimate from samples; more steps make it better. Bounds are certified where the kernels are known."
    ENDED = "A stream ended early: an estimate from what it gave; go on with warm=result and more data."

    # of any of them
    ITERATIONS = "Stopped after max_iterations: the bounds are true, more would be better; raise max_iterations or tol."
    INTERRUPTED = "Interrupted: the bounds are true, more would be better; go on with warm=result or a checkpoint."

    # of a fit or an imitation
    REACHED = "Reached: the certified distance is within tol of zero."
    SETTLED = (
        "Settled: nothing closer was found, which does not prove that there is nothing: other starting parameters "
        "(of kernel= or policy=) may settle lower."
    )
    STEPS = "Stopped after steps: raise steps, or go on from a checkpoint."
    ESTIMATED = "Finished: all steps are taken; the distance is an estimate, more inner iterations make it better."

    # of a program or a fixed point of another method
    SOLVED = "Solved."
    INACCURATE = (
        "The solver stopped short of its tolerance: policy and objective are approximate; raise the regularization, "
        "or give more offline data."
    )

    STALLED = SETTLED
    STOPPED = INTERRUPTED

    @property
    def converged(self) -> bool:
        """Whether the run found what it was asked for, or all that it can find."""
        return self in (Status.CONVERGED, Status.REACHED, Status.SETTLED, Status.ESTIMATED, Status.SOLVED)


class Row(dict[str, Any]):
    """A mapping that cannot be changed: a row of history, or the counts of the work."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("what a result holds is read-only; change a copy, dict(row)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Row, (dict(self),)


class HasStatus:
    """What has an ``outcome`` also says it in a sentence."""

    outcome: Status

    @property
    def status(self) -> str:
        """How the run ended, as a sentence."""
        return self.outcome.value

    @property
    def converged(self) -> bool:
        """Whether it found what it was asked for, or all that it can find: for a distance, a gap within ``tol``."""
        return self.outcome.converged


@dataclass(frozen=True, eq=False, repr=False)
class DistanceResult(HasStatus):
    """The distance between two chains, its certified bounds, and what it was made of; nothing in it can be written to.

    Attributes:
        value: the distance ``d``; ``lower <= value <= upper``.
        lower, upper: certified bounds (rounding included).
        iterations: outer iterations of the solver.
        history: one mapping per iteration (what it holds depends on the solver; always ``lower`` and ``upper``).
        work: counts of what was done (pairs, pivots, sweeps, ...), for comparing solvers without a clock.
    """

    problem: Problem
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
        self.__dict__["history"] = tuple(row if isinstance(row, Row) else Row(row) for row in self.history)
        self.__dict__["work"] = Row(self.work)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("occupancy", "encoder", "decoder"):  # neither pickle nor deepcopy keeps the flag
            if name in state:
                freeze(state[name])
        self.__dict__.update(state)

    @property
    def gap(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower

    @property
    def property_bound(self) -> float:
        """How far apart an expected reward of the two can be, in the units of model checkers; certified.

        Of any rewards that differ by at most the cost, ``|r_X(x) - r_Y(y)| ≤ c(x, y)``, the expected discounted sums
        Σ γ^t r differ by at most ``upper / (1 - γ)``; of two MDPs the optimal ones, greatest and least ("directed":
        the greatest, one way). Long-run averages (criterion "average"), totals ("total") and weighted sums over
        finitely many steps differ by at most ``upper``.
        """
        return self.upper / (1.0 - self.discount) if self.problem.criterion in ("discounted", "actions") else self.upper

    @property
    def meaning(self) -> str:
        """The bound in words."""
        of = {
            "average": "long-run average reward",
            "total": "expected total reward",
            "horizon": "expected reward, weighted over these steps,",
            "actions": f"optimal discounted reward (discount {self.discount:g})",
        }.get(self.problem.criterion, f"expected discounted reward (discount {self.discount:g})")
        return f"every {of} differs by at most {self.property_bound:.6g}, of rewards that differ by at most the cost"

    @property
    def discount(self) -> float:
        return self.problem.discount

    @property
    def values(self) -> Array:
        """The metric between all pairs of states, shape ``(n_X, n_Y)``; NaN where not solved.

        ``(1-γ) V``; for average cost the least average from each pair, for total cost the least total.
        """
        return read_only(self.coupling.values)

    @property
    def values_lower(self) -> Array:
        """Certified lower bounds on :attr:`values`, ``(n_X, n_Y)``, rounding included; NaN where not solved.

        Of the exact solver, also with ``lump=True``; for chains they take one sweep when they are first asked for.
        """
        return read_only(self.coupling.table_bounds[0])

    @property
    def values_upper(self) -> Array:
        """Certified upper bounds on :attr:`values`, as :attr:`values_lower`."""
        return read_only(self.coupling.table_bounds[1])

    @lazy
    def occupancy(self) -> Array:
        """Joint discounted occupancy ``m`` of the optimal coupling, shape ``(n_X, n_Y)``; sums to one.

        For average cost its long-run law from the start, for total cost expected visits. ``value`` is ``<m, c>``.
        """
        return frozen(self.coupling.occupancy())

    @lazy
    def encoder(self) -> Array:
        """``λ_X(y|x)``, shape ``(n_X, n_Y)``; rows of states that are never visited: see :attr:`unvisited`."""
        return conditional(self.occupancy, self.values, self.problem.cost)

    @lazy
    def decoder(self) -> Array:
        """``λ_Y(x|y)``, shape ``(n_Y, n_X)``; rows of states that are never visited: see :attr:`unvisited`."""
        return conditional(self.occupancy.T, self.values.T, self.problem.cost.T)

    @property
    def unvisited(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """States of X and of Y without occupancy: their encoder and decoder rows are the nearest state.

        Nearest in the metric or, where ``reachable=True`` left its pairs out, by the ground cost.
        """
        m = self.occupancy
        return np.flatnonzero(m.sum(axis=1) <= 0), np.flatnonzero(m.sum(axis=0) <= 0)

    @property
    def labels(self) -> NDArray[np.intp]:
        """Hard encoder: for each state of X the most likely state of Y, shape ``(n_X,)``."""
        return np.asarray(self.encoder.argmax(axis=1))

    def plan(self, x: Hashable, y: Hashable) -> Array | sparse.coo_array:
        """Optimal coupling of the next states of ``x`` and ``y``, shape ``(n_X, n_Y)``; sparse if a chain is.

        States are given by label or index.
        """
        plan = self.coupling.plan(*self._pair(x, y))
        return plan.copy() if self.problem.is_sparse else np.asarray(plan.toarray())

    def potentials(self, x: Hashable, y: Hashable) -> tuple[Array, Array]:
        """Optimal potentials ``f (n_X,)`` and ``g (n_Y,)`` of pair ``(x, y)`` for the cost ``V = values/(1-γ)``.

        For total cost ``V = values``; for average cost the bias in its place (pairs with a transient state: values).

        ``f(x') + g(y') <= V(x',y')`` whenever x' or y' is a possible successor, with equality where the plan has
        mass. Off the supports they are c-transforms: the one-sided derivatives for mass that enters there.
        """
        f, g = self.coupling.potentials(*self._pair(x, y))
        return f / self.problem.step, g / self.problem.step

    @lazy
    def duals(self) -> Duals:
        """``alpha_x (n_X, n_X, n_Y)`` and ``alpha_y (n_X, n_Y, n_Y)`` in the paper's convention, centered."""
        return dual_certificates(self.coupling)

    @lazy
    def gradient(self) -> Gradient:
        """Exact derivatives of the distance with respect to both kernels, the cost and both starts."""
        return gradient_of(self.coupling, self.occupancy)

    def implicit_reward(self) -> Array:
        """``r(y,y') = Σ_x λ_Y(x|y) α_Y(x,y,y')``, shape ``(n_Y, n_Y)``: maximizing it brings Y closer to X."""
        return implicit_reward(self.coupling, self.decoder)

    def contributions(self, nodes: int = 8) -> Contributions:
        """Where the cost is paid, and which rows and starts cause it.

        ``nodes`` of the integral over the way from X to Y, for single transitions.
        """
        shape = getattr(self.problem, "cost", np.empty(0)).shape
        if self.problem.criterion not in ("discounted", "average", "total") or len(shape) != 2:
            raise InvalidArgument(
                f"contributions are for chains and one cost, not for problems of the kind {self.problem.criterion!r}: "
                "compare the chains of two policies, or of one step"
            )
        return Contributions(self, nodes=nodes)

    def explore(self, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
        """Write a page to look at in a browser: both chains, their coupling, where the cost is paid; returns its path.

        One file that needs nothing else. ``names``: what the two chains are called on it.
        """
        from diffbisim.explore import explore

        return explore(self, path, names=names)

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle); read it with :func:`diffbisim.load`."""
        with replacing(Path(path), binary=True) as file:
            np.savez(file, **self.arrays())

    def arrays(self) -> dict[str, Any]:
        """All of it as named arrays (read-only), the inverse of :func:`diffbisim.io.results.result_from_arrays`."""
        problem = self.problem
        arrays: dict[str, Any] = {f"state.{k}": read_only(v) for k, v in self.coupling.state().items()}
        meta = {
            "diffbisim-result": 1, "value": self.value, "lower": self.lower, "upper": self.upper,
            "outcome": self.outcome.name, "iterations": self.iterations, "solver": self.solver,
            "coupling": type(self.coupling).__name__, "discount": problem.discount, "criterion": problem.criterion,
            "history": [dict(row) for row in self.history], "work": dict(self.work), **self._asked(),
        }  # fmt: skip
        text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        return {**arrays, **self._problem_arrays(), "meta": text}

    def _problem_arrays(self) -> dict[str, Any]:
        """The problem as named arrays."""
        arrays: dict[str, Any] = {"cost": self.problem.cost}
        for side, chain in (("x", self.problem.x), ("y", self.problem.y)):
            arrays |= {f"{side}.{k}": v for k, v in chain_arrays(chain).items()}
        if isinstance(self.problem, TotalProblem):
            arrays["terminal"] = self.problem.terminal
        return arrays

    def _asked(self) -> dict[str, Any]:
        """What else JSON has to say of the problem; nothing for chains."""
        return {}

    def _pair(self, s: Any, t: Any) -> tuple[int, int]:
        """Two states by label or index."""
        return two_states((s, t), (self.problem.x, self.problem.y))

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        estimate = self.outcome is Status.ESTIMATE
        state = "estimate" if estimate else "converged" if self.converged else "NOT converged"
        return (
            f"DistanceResult({self.value:.9g} in [{self.lower:.9g}, {self.upper:.9g}], gap {self.gap:.1e}, "
            f"{self.solver}, {self.iterations} iterations, {state})"
        )


def two_states(states: tuple[Any, Any], sides: tuple[Any, Any], when: str = "") -> tuple[int, int]:
    """The numbers of a state of either side, each given by label or index."""
    found = []
    for name, state, side in zip("xy", states, sides, strict=True):
        k = find_state(state, side.n_states, {label: k for k, label in enumerate(side.labels or ())})
        if k is None:
            known = "a label, or an index" if side.labels else "an index"
            raise InvalidArgument(
                f"{name} = {state!r} is not a state{when}: give {known} from 0 to {side.n_states - 1}"
            )
        found.append(k)
    return found[0], found[1]


def check_warm(warm: Any, shape: tuple[int, int]) -> None:
    """Refuse to start from what is not a result for chains of these sizes."""
    if not isinstance(warm, DistanceResult):
        raise InvalidArgument(f"warm is a {type(warm).__name__}; give the result of a previous distance")
    if warm.problem.shape != shape:
        raise InvalidArgument(
            f"warm is a result for {warm.problem.shape} states, this problem has {shape}; leave warm out"
        )


def previous_table(warm: DistanceResult, scale: float, unknown: Callable[[], Array]) -> Array | None:
    """U of a previous result in units of ``scale``, within [0, 1]; None if its costs were of another order.

    Pairs that it did not solve (NaN, from ``reachable=True``) are taken from the table that ``unknown`` makes.
    """
    if not scale / FAR <= warm.problem.scale <= scale * FAR:
        return None
    with np.errstate(over="ignore"):
        table = warm.values / scale
    open_pairs = np.isnan(table)
    if open_pairs.any():
        table = np.where(open_pairs, unknown(), table)
    return np.clip(table, 0.0, 1.0)


def conditional(m: Array, values: Array, cost: Array) -> Array:
    """Rows of ``m`` normalized; a row without mass falls back to the nearest state.

    The nearest in the metric takes all its distances: a row that misses some (NaN) goes by the ground cost.
    """
    total = m.sum(axis=1, keepdims=True)
    known = ~np.isnan(values).any(axis=1, keepdims=True)
    nearest = np.zeros_like(m)
    nearest[np.arange(len(m)), np.where(known, values, cost).argmin(axis=1)] = 1.0
    return frozen(np.where(total > 0, m / np.where(total > 0, total, 1.0), nearest))
