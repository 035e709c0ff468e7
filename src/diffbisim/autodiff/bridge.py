"""Shared code of the PyTorch and JAX bridges: solve a problem given as arrays, and return its derivatives.

The rows of a kernel P sum to one up to rounding in its dtype. The bridges compute, in double precision,

    d(P / row sums),

which is defined for every positive table close to a stochastic matrix; its derivative is the centered gradient of
gradient.py divided by the row sums. Initial distributions are treated in the same way. A kernel is a dense array or the
stored entries of a sparse one, ``KernelEntries(data, rows, columns, n)``; its derivative has the same layout. The
kernels of all steps of a timed chain, and costs per time, are passed through the graph as one flat array (see
:func:`pieces`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import cleandoc
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from diffbisim.common.checks import Floats, Integers, dense
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidChain, warn
from diffbisim.distances.chains import check_discount_is_used, make_solver
from diffbisim.distances.chains import solve as solve_problem
from diffbisim.problems import Criterion, criterion_of
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.convert import check_lags
from diffbisim.processes.cost import HIDDEN, indicator_cost
from diffbisim.processes.streams import Stream
from diffbisim.processes.timed import TimedChain
from diffbisim.results.base import DistanceResult, Status
from diffbisim.results.gradient import kernel_gradients
from diffbisim.solvers import Exact

#: Error for second derivatives. The distance is piecewise smooth, so a Hessian would miss the kinks.
ONCE = (
    "the distance has first derivatives only, but a second derivative was requested (a Hessian, or the gradient "
    "of a gradient); use finite differences of gradients instead"
)

#: Error for forward mode.
REVERSE = (
    "the distance supports reverse mode only, and first derivatives only; use grad, jacrev or backward instead of "
    "forward mode or a Hessian"
)

NEEDS_REWARDS = 'cost "reward": X must be a MarkovChain with rewards; otherwise give the (n_X, n_Y) table'

#: Default tolerance, tight enough for finite differences (gradcheck uses steps of 1e-6 and tests slopes to 1e-5). It
#: costs one more iteration than the 1e-8 of :func:`diffbisim.distance`.
TOL = 1e-10

#: Largest allowed deviation of a row sum from one: bfloat16 rounds each entry by up to 2⁻⁹ = 0.00195 of it.
LOOSE = 2e-3

#: Row sums that are off by at most this may be due to rounding to bfloat16.
ROUNDED_TO_HALF = 2e-2


#: Number of dimensions of an argument that has a leading batch dimension.
BATCH = {"X": 3, "Y": 3, "cost": 3, "initial": 2, "initial_x": 2, "rewards": 2}

Function = TypeVar("Function", bound=Callable[..., Any])

ARGUMENTS = """The result is differentiable with respect to every {array} among X, Y, cost, initial, initial_x and
rewards. ``distance`` also accepts a leading batch dimension of these: kernels of shape (B, n, n) give B distances.

Parameters
----------
X, Y : MarkovChain, or {array} of shape (n, n), dense or {sparse}
    The chains; the rows of a kernel sum to one, and a MarkovChain is constant. Over a finite horizon also a TimedChain,
    or a list of dense kernels, one per step.
cost : {"reward", "indicator"}, {array} or numpy array of shape (n_X, n_Y), default="reward"
    With one kernel per step, a table or a list of tables, one per time.
discount : float, default=0.95
    The discount factor γ, strictly between 0 and 1.
initial : int or {array} of shape (n_Y,), default=None
    Initial state or distribution of Y; by default that of X if both have the same number of states, else state 0.
initial_x : int or {array} of shape (n_X,), default=None
    Initial state or distribution of X if it is not a MarkovChain.
rewards : {array} of shape (n_Y,), default=None
    Rewards of Y for cost "reward"; by default its own if it is a MarkovChain that has some, else those of X if both
    have the same number of states.
solver, tol, warm : as for :func:`diffbisim.distance`
    By default the exact solver with a tolerance of 1e-10, or as close as rounding allows.
**asked
    Further arguments of :func:`diffbisim.distance` that select the problem: ``criterion``, ``horizon``, …"""


def with_arguments(array: str, sparse: str) -> Callable[[Function], Function]:
    """Insert the shared description of the arguments at ``{arguments}`` in the docstring."""

    def filled(function: Function) -> Function:
        words = ARGUMENTS.replace("{array}", array).replace("{sparse}", sparse)
        function.__doc__ = cleandoc(function.__doc__ or "").replace("{arguments}", words)
        return function

    return filled


def batched(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that have a leading batch dimension, whose sizes must agree."""
    names = tuple(name for name, ndim in BATCH.items() if getattr(given.get(name), "ndim", 0) == ndim)
    sizes = {name: given[name].shape[0] for name in names}
    if len(set(sizes.values())) > 1:
        what = ", ".join(f"{name} of {size}" for name, size in sizes.items())
        raise InvalidArgument(f"batches differ in size: {what}; give one entry per distance, or one for all")
    if names and not sizes[names[0]]:
        raise InvalidArgument(f"{names[0]} is an empty batch; give at least one")
    return names


class KernelEntries(NamedTuple):
    """The stored entries of a sparse kernel; they may be zero, but positions must be distinct."""

    data: Floats
    rows: Integers
    columns: Integers
    n: int


class KernelSequence(NamedTuple):
    """Dense kernels (n_t, n_{t+1}), one per step."""

    kernels: list[Floats]


Kernel = Floats | KernelEntries | KernelSequence
Shapes = list[tuple[int, int]]  # of kernels or costs that are concatenated in a flat array


def pieces(flat: Floats, shapes: Shapes) -> list[Floats]:
    """Split a flat array into tables of the given shapes."""
    cuts = np.cumsum([n * m for n, m in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, cuts), shapes, strict=True)]


def joined(tables: Any, shapes: Shapes | None) -> Floats:
    """Concatenate tables to a flat array, the inverse of :func:`pieces`; with ``shapes=None`` there is one table."""
    return np.asarray(tables) if shapes is None else np.concatenate([np.ravel(table) for table in tables])


def step_shapes(tables: Sequence[Any], name: str) -> Shapes:
    """Return the shapes of a list of kernels or costs."""
    if not tables or any(getattr(table, "ndim", 0) != 2 for table in tables):
        raise InvalidArgument(f"{name} is a list, but not of dense two-dimensional tables; give one per step")
    return [(int(table.shape[0]), int(table.shape[1])) for table in tables]


def needs_table(cost: Any) -> None:
    """Raise an error for named costs, which need time-homogeneous chains."""
    if isinstance(cost, str):
        raise InvalidArgument(
            f"cost {cost!r} is not available with one kernel per step; give an (n_X, n_Y) table, or a list of tables, "
            "one per time"
        )


def row_sums(kernel: Floats | KernelEntries, name: str) -> Floats:
    """Return the row sums (n,), which must be close to one."""
    if isinstance(kernel, KernelEntries):
        sums = np.asarray(np.bincount(kernel.rows, kernel.data, kernel.n), dtype=np.float64)
    else:
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
            raise InvalidChain(f"{name} has shape {kernel.shape}; it must be square, (n_states, n_states)")
        sums = kernel.sum(axis=1)
    return near_one(sums, name)


def near_one(sums: Floats, name: str) -> Floats:
    """Return the row sums after checking that they are close to one."""
    if not (np.abs(sums - 1.0) <= LOOSE).all():
        k = int(np.argmax(~(np.abs(sums - 1.0) <= LOOSE)))
        if np.isnan(sums[k]):
            raise InvalidChain(f"row {k} of {name} contains NaN; find out where the model produces it")
        remedy = "end the model in a softmax over each row"
        if abs(sums[k] - 1.0) <= ROUNDED_TO_HALF:
            remedy += ", in float32, since the rounding of bfloat16 and float16 may be what is missing"
        raise InvalidChain(f"row {k} of {name} sums to {sums[k]:.6g}; {remedy}")
    return sums


def make_chain(kernel: Kernel, initial: Any, name: str) -> Any:
    """Create the chain (or timed chain) with normalized rows and initial distribution."""
    start = np.asarray(initial)
    if start.ndim == 1 and abs(float(start.sum()) - 1.0) <= LOOSE:
        initial = np.asarray(start, dtype=np.float64) / float(start.sum())
    if isinstance(kernel, KernelSequence):
        rows = [near_one(P.sum(axis=1), f"{name}[{t}]") for t, P in enumerate(kernel.kernels)]
        return TimedChain([P / r[:, None] for P, r in zip(kernel.kernels, rows, strict=True)], initial=initial)
    sums = row_sums(kernel, name)
    if isinstance(kernel, KernelEntries):
        data = kernel.data / sums[kernel.rows]
        P = sparse.csr_array((data, (kernel.rows, kernel.columns)), shape=(kernel.n, kernel.n))
        return MarkovChain(P, initial=initial)
    return MarkovChain(kernel / sums[:, None], initial=initial)


#: The remaining arguments of a differentiable distance.
ASKED = ("criterion", "horizon", "weights", "terminal")


def criterion_from(asked: dict[str, Any], discount: float) -> Criterion:
    """Return the criterion that the remaining arguments select; a discount that it does not use is refused."""
    for name in asked:
        if name not in ASKED:
            raise InvalidArgument(
                f"a differentiable distance has no option {name!r}; besides X, Y, cost, discount, initial, initial_x, "
                f"rewards, solver, tol and warm it has {', '.join(ASKED)}"
            )
    criterion = criterion_of(**asked)
    check_discount_is_used(discount, criterion)
    return criterion


def check_constants(X: Any, Y: Any) -> None:
    """Raise if both sides are chains with different lags."""
    if isinstance(X, MarkovChain) and isinstance(Y, MarkovChain):
        check_lags((X, Y))


class Settings(NamedTuple):
    """The arguments of a bridge other than the chains and the cost."""

    discount: float
    solver: Any = None  # None: the exact solver with tolerance TOL, or as close as rounding allows
    tol: float | None = None
    warm: DistanceResult | None = None
    criterion: Criterion = Criterion()
    warn: bool = True  # whether to warn if the solver did not converge


def solve(
    x: MarkovChain | TimedChain | Stream, y: MarkovChain | TimedChain, cost: Any, settings: Settings
) -> DistanceResult:
    """Solve a problem; if x is a stream, the kernel of y is used directly unless the solver needs samples of it.

    A kernel has no lag of its own. As a model of the other chain, its steps take as long.
    """
    x, y = _with_lag(x, y), _with_lag(y, x)
    default = settings.solver is None and settings.tol is None
    solver = make_solver("exact" if settings.solver is None else settings.solver, TOL if default else settings.tol)
    result: DistanceResult
    if isinstance(x, Stream):
        if not settings.criterion.is_default:
            raise InvalidArgument(
                "samples give only the discounted distance of chains; omit criterion, horizon and weights, or fit the "
                "empirical chain, data.chain()"
            )
        known = Stream(y, sampled=not solver.memory)
        result = solver.estimate(x, known, cost, settings.discount, warm=settings.warm)
    else:
        result = solve_problem(settings.criterion.problem(x, y, cost, settings.discount), solver, settings.warm)
    if default and result.outcome is Status.ROUNDING and result.gap <= Exact().tol * result.problem.scale:
        result = replace(result, outcome=Status.CONVERGED)  # as close as rounding allows, and within the usual tol
    if settings.warn and not result.converged and result.outcome is not Status.ESTIMATE:
        warn(f"{result!r}. {result.status}", ConvergenceWarning, stacklevel=6)
    return result


def _with_lag(chain: Any, other: Any) -> Any:
    """Return a chain without lag with that of another."""
    lag = getattr(getattr(other, "frame", other), "lag", None)
    known = not isinstance(chain, MarkovChain) or chain.lag is not None or lag is None
    return chain if known else chain._replaced(lag=lag)


def kernel_derivative(result: DistanceResult, side: str, kernel: Kernel) -> Floats:
    """Return ``∂d/∂P`` for side "x" or "y" in the layout of the kernel."""
    G: Any = getattr(result.gradient, f"transition_{side}")
    if isinstance(kernel, KernelSequence):
        parts = zip(map(dense, G), kernel.kernels, strict=True)
        return np.concatenate([(part / P.sum(axis=1, keepdims=True)).ravel() for part, P in parts])
    if not isinstance(kernel, KernelEntries):
        return np.asarray(dense(G) / kernel.sum(axis=1, keepdims=True))
    if (kernel.data == 0.0).any() and result.coupling.complete:  # stored zeros need the derivatives off the support
        G = kernel_gradients(result.coupling, result.occupancy, everywhere=True)["xy".index(side)]
    picked = G[kernel.rows, kernel.columns] if isinstance(G, np.ndarray) else _picked(G, kernel)
    return np.asarray(picked / row_sums(kernel, "P")[kernel.rows])


def _picked(G: sparse.csr_array, kernel: KernelEntries) -> Floats:
    """Return the entries of a CSR matrix at the stored positions; zero where it has none."""
    source = np.repeat(np.arange(kernel.n), np.diff(G.indptr))
    have, want = source * kernel.n + G.indices, kernel.rows * kernel.n + kernel.columns
    at = np.minimum(np.searchsorted(have, want), have.size - 1)
    return np.where(have[at] == want, G.data[at], 0.0)


def start_derivative(result: DistanceResult, side: str, initial: Floats) -> Floats:
    """Return ``∂d/∂ν``; zero for states that were not solved (``reachable=True``)."""
    g = getattr(result.gradient, f"initial_{side}") / float(initial.sum())
    return np.asarray(np.where(np.isnan(g), 0.0, g))


def default_start(chain: Any, n: int) -> Any:
    """Return the initial distribution of the other chain if both have the same number of states, else state 0."""
    known = chain.frame if isinstance(chain, Stream) else chain
    return known.initial if isinstance(known, (MarkovChain, TimedChain)) and known.initial.size == n else 0


def no_start(initial: Any, name: str) -> None:
    """Raise an error if an initial distribution is given for a chain, which has its own."""
    if initial is not None:
        argument = "initial_x" if name == "X" else "initial"
        raise InvalidArgument(f"{name} is a chain with its own initial distribution; omit {argument}")


def named_cost(
    cost: str, x: Any, y: Any, rewards: Any, absolute: Callable[[Any], Any], as_array: Callable[[Any], Any]
) -> Any:
    """Return the table for "reward" or "indicator" between chains or kernels in the array type of the bridge."""
    x = x.frame if isinstance(x, Stream) else x
    n_x, n_y = (side.n_states if isinstance(side, MarkovChain) else side.shape[0] for side in (x, y))
    if cost == "indicator":
        if isinstance(x, MarkovChain) and isinstance(y, MarkovChain):
            return as_array(indicator_cost(x, y))
        for name, side in (("X", x), ("Y", y)):
            if getattr(side, "hidden", False):
                raise InvalidArgument(f'cost "indicator": {name} has hidden states, {HIDDEN}')
        if n_x != n_y:
            raise InvalidArgument(f'cost "indicator": X has {n_x} states and Y has {n_y}; give the table instead')
        return as_array(1.0 - np.eye(n_x))
    if cost != "reward":
        raise InvalidArgument(f'cost {cost!r} is unknown; use "reward", "indicator" or an (n_X, n_Y) array')
    if not isinstance(x, MarkovChain) or x.rewards is None:
        raise InvalidArgument(NEEDS_REWARDS)
    if rewards is None:
        rewards = y.rewards if isinstance(y, MarkovChain) else None
    if rewards is None:
        if n_x != n_y:
            raise InvalidArgument(f'cost "reward": pass the rewards of the {n_y} states of Y, rewards=...')
        rewards = x.rewards
    own, other = as_array(x.rewards), as_array(rewards)
    for name, table in (("X", own), ("Y", other)):
        if table.ndim > 1:
            raise InvalidArgument(
                f'cost "reward": {name} has {table.shape[1]} rewards per state; give the (n_X, n_Y) table'
            )
    return absolute(own[:, None] - other[None, :])
