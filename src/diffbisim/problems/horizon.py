"""Distances over a finite horizon.

Two processes over the times t = 0 … T with kernels P_t, Q_t, costs c_t and weights w_t ≥ 0:

    V_T = w_T c_T,        V_t(x,y) = w_t c_t(x,y) + OT_{V_{t+1}}(P_t(·|x), Q_t(·|y)),        d = OT_{V_0}(ν_X, ν_Y)

is the minimum of E Σ_t w_t c_t(x_t, y_t) over all bicausal couplings; since the cost to go depends on the current pair
only, Markov couplings suffice. Kernels, costs and state spaces may change with t.

    horizon=T, discount=γ     w_t = γ^t / Σ_s γ^s; γ = 1 is allowed and gives the mean cost per step
    weights=w                 w_0 … w_T, not normalized: all ones for the total cost; zeros and a final one for the
                              Weisfeiler-Lehman distance of depth T, which compares the two processes at time T

As T → ∞ this converges to the discounted distance; the difference is at most γ^(T+1) max c.

The derivatives are in results/horizon.py.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.arrays import frozen, physical_memory
from diffbisim.common.checks import as_floats, as_number, check_count, freeze
from diffbisim.common.errors import InvalidArgument, InvalidCost, InvalidData
from diffbisim.io.arrays import part, prefixed
from diffbisim.io.npz import chain_arrays, process_from_arrays, timed_arrays
from diffbisim.problems.base import Problem
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import ground_cost
from diffbisim.processes.stochastic import Successors
from diffbisim.processes.timed import TimedChain

Array = NDArray[np.float64]

EPS = float(np.finfo(float).eps)

#: Sums of weighted costs below this are too close to underflow to be certified.
LEAST_SCALE = 1e-280


@dataclass(frozen=True, eq=False)
class FiniteHorizon(Problem):
    """Two processes over the same number of steps, a cost per time and weights; create it with :meth:`make`."""

    x: MarkovChain | TimedChain
    y: MarkovChain | TimedChain
    costs: tuple[Array, ...]  # T + 1 tables (n_t of X, n_t of Y)
    weights: Array  # (T + 1,)

    criterion: ClassVar[str] = "horizon"
    options: ClassVar[tuple[str, ...]] = ("horizon", "weights")
    discount: ClassVar[float] = 1.0  # type: ignore[misc]  # discounting is part of the weights

    def __post_init__(self) -> None:
        owned: dict[int, Array] = {}
        self.__dict__["costs"] = tuple(owned.setdefault(id(c), frozen(c)) for c in self.costs)
        self.__dict__["weights"] = frozen(self.weights)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # pickle and deepcopy drop the read-only flags

    @classmethod
    def make(
        cls, x: Any, y: Any, cost: Any, discount: float, horizon: Any = None, weights: Any = None
    ) -> "FiniteHorizon":
        """Validate the arguments and create the problem."""
        for name, chain in (("X", x), ("Y", y)):
            if not isinstance(chain, (MarkovChain, TimedChain)):
                raise InvalidArgument(
                    f"{name} is a {type(chain).__name__}; with a horizon it must be a MarkovChain or a TimedChain"
                )
        T = _steps(x, y, horizon, weights)
        _check_memory(x, y, T)
        w = _weights(weights, discount, T)
        X, Y = (_truncated(chain, w.size - 1, name) for name, chain in (("X", x), ("Y", y)))
        problem = cls(X, Y, _costs(cost, X, Y, w.size - 1), w)
        if not problem.scale < np.inf or 0 < problem.scale < LEAST_SCALE:
            raise InvalidArgument(
                f"the weighted costs sum to {problem.scale:g}, which is out of range for double precision; multiply "
                "costs or weights by a constant, which multiplies the distance by the same constant"
            )
        return problem

    @property
    def n_steps(self) -> int:
        """Number of steps T."""
        return len(self.costs) - 1

    def shape_at(self, t: int) -> tuple[int, int]:
        """Return the numbers of states of the two processes at time t."""
        n_x, n_y = self.costs[t].shape
        return n_x, n_y

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of states at time 0."""
        return self.shape_at(0)

    @property
    def same_states(self) -> bool:
        """Whether the numbers of states are the same at all times, so that tables can be summed over time."""
        return len({c.shape for c in self.costs}) == 1

    @property
    def one_cost(self) -> bool:
        """Whether the cost is the same at all times."""
        return all(c is self.costs[0] for c in self.costs)

    @property
    def cost(self) -> Array:  # type: ignore[override]
        """The cost at time 0."""
        return self.costs[0]

    def rows(self, t: int) -> tuple[Successors, Successors]:
        """Return the kernels of step t by row."""
        x, y = (c.successors if isinstance(c, MarkovChain) else c.successors[t] for c in (self.x, self.y))
        return x, y

    @cached_property
    def _ranges(self) -> list[tuple[float, float]]:
        """The least and the largest cost at every time; a table that many times share is read once."""
        known: dict[int, tuple[float, float]] = {}
        for c in self.costs:
            if id(c) not in known:
                known[id(c)] = float(c.min()), float(c.max())
        return [known[id(c)] for c in self.costs]

    @cached_property
    def least(self) -> Array:
        """``Σ_{s<t} w_s min c_s`` for t = 0 … T + 1; the last is a lower bound on the distance."""
        lows = [w * low for w, (low, _) in zip(self.weights, self._ranges, strict=True)]
        return np.concatenate([[0.0], np.cumsum(lows)])

    @cached_property
    def most(self) -> Array:
        """``Σ_{s<t} w_s max c_s`` for t = 0 … T + 1."""
        with np.errstate(over="ignore"):
            tops = [w * high for w, (_, high) in zip(self.weights, self._ranges, strict=True)]
            return np.concatenate([[0.0], np.cumsum(tops)])

    @cached_property
    def scale(self) -> float:
        """The largest possible distance; all tolerances are relative to it."""
        return float(self.most[-1])

    @cached_property
    def slack(self) -> float:
        """A bound on the rounding errors of sums of weighted costs."""
        return 2 * (self.n_steps + 2) * EPS * self.scale

    def bounded(self, lower: float, upper: float) -> tuple[float, float]:
        """Return the bounds rounded outward and clipped to the range of possible distances."""
        least, most = max(float(self.least[-1]) - self.slack, 0.0), self.scale + self.slack
        return max(float(np.nextafter(lower, -np.inf)), least), min(float(np.nextafter(upper, np.inf)), most)

    def same_as(self, other: "FiniteHorizon") -> bool:
        """Return whether another problem has the same content."""
        return (
            self.n_steps == other.n_steps
            and np.array_equal(self.weights, other.weights)
            and all(np.array_equal(a.initial, b.initial) for a, b in ((self.x, other.x), (self.y, other.y)))
            and all(np.array_equal(a, b) for a, b in zip(self.costs, other.costs, strict=True))
            and all(_same_rows(self.rows(t), other.rows(t)) for t in range(self.n_steps))
        )

    @property
    def compared(self) -> str:
        return "expected weighted rewards over these steps"

    def value_range(self) -> tuple[float, float]:
        return self.bounded(-np.inf, np.inf)

    def arrays(self) -> dict[str, Any]:
        costs = self.costs[:1] if self.one_cost else self.costs
        arrays: dict[str, Any] = {"costs": np.concatenate([c.ravel() for c in costs]), "weights": self.weights}
        for side, chain in (("x", self.x), ("y", self.y)):
            parts = chain_arrays(chain) if isinstance(chain, MarkovChain) else timed_arrays(chain)
            arrays |= prefixed(f"{side}.", parts)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: Any) -> "FiniteHorizon":
        """Restore the problem of a saved result, validated like the arguments of :func:`diffbisim.distance`."""
        x, y = (process_from_arrays(part(arrays, f"{side}.")) for side in "xy")
        flat, weights = arrays["costs"], arrays["weights"]
        sizes = [(c.n_states,) * len(weights) if isinstance(c, MarkovChain) else c.n_states for c in (x, y)]
        shapes = list(zip(*sizes, strict=True))
        if flat.size == shapes[0][0] * shapes[0][1] and len(set(shapes)) == 1:
            return cls.make(x, y, flat.reshape(shapes[0]), 1.0, weights=weights)
        cuts = np.cumsum([n * m for n, m in shapes])
        if flat.shape != (cuts[-1],):
            raise InvalidData(f"array 'costs' has shape {flat.shape}; expected {(int(cuts[-1]),)}")
        tables = [table.reshape(shape) for table, shape in zip(np.split(flat, cuts[:-1]), shapes, strict=True)]
        return cls.make(x, y, tables, 1.0, weights=weights)


def _same_rows(mine: tuple[Successors, Successors], others: tuple[Successors, Successors]) -> bool:
    parts = ("indptr", "indices", "probabilities")
    return all(
        a is b or all(np.array_equal(getattr(a, part), getattr(b, part)) for part in parts)
        for a, b in zip(mine, others, strict=True)
    )


def _steps(x: Any, y: Any, horizon: Any, weights: Any) -> int | None:
    """Return the number of steps from horizon, weights or timed chains, which must agree."""
    if horizon is not None and check_count(horizon, "horizon") < 1:
        raise InvalidArgument("horizon is 0; it must be at least one step, e.g. horizon=10")
    if weights is not None:
        if np.ndim(weights) != 1 or np.size(weights) < 2:
            raise InvalidArgument(
                f"weights has shape {np.shape(weights)}; give one number for each time 0 … T, T at least 1"
            )
        T = int(np.size(weights)) - 1
        if horizon is not None and horizon != T:
            raise InvalidArgument(
                f"weights has {T + 1} entries, but horizon={horizon} needs {horizon + 1}; omit one of them"
            )
        return T
    if horizon is not None:
        return int(horizon)
    lengths = {chain.n_steps for chain in (x, y) if isinstance(chain, TimedChain)}
    if len(lengths) > 1:
        raise InvalidArgument(f"X has {x.n_steps} steps and Y has {y.n_steps}; pass horizon={min(lengths)}")
    return lengths.pop()


def _check_memory(x: Any, y: Any, n_steps: int | None) -> None:
    """Refuse horizons whose tables, one per time, cannot fit into the memory of this machine."""
    if n_steps is None or not (isinstance(x, MarkovChain) and isinstance(y, MarkovChain)):
        return
    needed, present = 8.0 * x.n_states * y.n_states * (n_steps + 1.0), physical_memory()
    if needed > present:
        raise InvalidArgument(
            f"horizon is {n_steps}, whose {n_steps + 1} tables take {needed / 1e9:.0f} GB, more than the "
            f'{present / 1e9:.0f} GB of this machine; use criterion="average", or a discount without a horizon'
        )


def _weights(weights: Any, discount: float, n_steps: int | None) -> Array:
    """Return the weights of the times; powers of the discount are normalized."""
    if weights is None:
        if not 0.0 < (γ := as_number(discount)) <= 1.0:
            raise InvalidArgument(f"discount is {discount!r}; with a horizon it must lie in (0, 1], e.g. discount=1")
        powers = γ ** np.arange((n_steps or 0) + 1)
        return np.asarray(powers / powers.sum())
    try:
        w: Array = as_floats(weights)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"weights is not a list of numbers ({error}); give one for each time 0 … T") from None
    if not (np.isfinite(w).all() and (w >= 0).all()):
        t = int(np.argmax(~(np.isfinite(w) & (w >= 0))))
        raise InvalidArgument(f"weights[{t}] is {w[t]:g}; weights must be finite and non-negative")
    if not w.any():
        raise InvalidArgument("weights are all 0; give at least one time a positive weight")
    return w


def _truncated(chain: MarkovChain | TimedChain, n_steps: int, name: str) -> MarkovChain | TimedChain:
    """Return the first ``n_steps`` steps of a process."""
    if isinstance(chain, MarkovChain):
        return chain
    if chain.n_steps < n_steps:
        raise InvalidArgument(
            f"{name} has {chain.n_steps} steps, fewer than {n_steps}; use at most horizon={chain.n_steps} or weights "
            f"of length {chain.n_steps + 1}"
        )
    return chain.until(n_steps)


# --- costs ---------------------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """The states of a process at one time, for computing costs."""

    n_states: int
    rewards: Any
    names: Any
    hidden: bool = False

    def name_of(self, i: int) -> Any:
        return i if self.names is None else self.names[i]

    @property
    def _numbers(self) -> dict[Any, int]:
        return {name: k for k, name in enumerate(self.names or ())}


def moment(chain: MarkovChain | TimedChain, t: int) -> Any:
    if isinstance(chain, MarkovChain):
        return chain
    rewards, names = (None if part is None else part[t] for part in (chain.rewards, chain.names))
    return Moment(chain.n_states[t], rewards, names, chain.hidden)


def _costs(cost: Any, X: MarkovChain | TimedChain, Y: MarkovChain | TimedChain, n_steps: int) -> tuple[Array, ...]:
    """Return a table for each time from a name, one table, a list of tables, or a function ``(X, Y)``."""
    cost = cost(X, Y) if callable(cost) else cost
    times = range(n_steps + 1)
    timed = isinstance(X, TimedChain) or isinstance(Y, TimedChain)
    if isinstance(cost, str) and timed:
        return tuple(_cost_at(cost, X, Y, t) for t in times)
    if _is_list_of_tables(cost):
        if len(cost) != n_steps + 1:
            raise InvalidCost(
                f"cost has {len(cost)} tables; give one for each of the {n_steps + 1} times 0 … {n_steps}"
            )
        return tuple(_cost_at(table, X, Y, t) for t, table in enumerate(cost))
    sizes = {(moment(X, t).n_states, moment(Y, t).n_states) for t in times}
    if len(sizes) > 1:
        raise InvalidCost(
            f"cost is one table, but the numbers of states change over time; give a list of {n_steps + 1} tables, one "
            'per time, or rewards and cost="reward"'
        )
    return (_cost_at(cost, X, Y, 0),) * (n_steps + 1)


def _is_list_of_tables(cost: Any) -> bool:
    if not isinstance(cost, (list, tuple)):
        return getattr(cost, "ndim", 0) == 3
    try:
        return all(np.ndim(table) == 2 for table in cost)
    except ValueError:  # rows of different lengths, reported when the table is checked
        return False


def _cost_at(cost: Any, X: MarkovChain | TimedChain, Y: MarkovChain | TimedChain, t: int) -> Array:
    try:
        return freeze(ground_cost(cost, moment(X, t), moment(Y, t)))
    except InvalidCost as error:
        raise InvalidCost(f"at time {t}: {error}") from None
