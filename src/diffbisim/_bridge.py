"""What the bridges to torch and JAX share: arrays in, a solved problem out, and its derivatives pulled back.

A caller's kernel P has rows that sum to one up to the rounding of its dtype. The bridges compute, in double precision,

    d(P / row sums),

so that the function is defined for every positive table near the stochastic ones, and its derivative is the centered
gradient of gradient.py divided by the row sums. Starts alike. A kernel is a dense array, or the stored entries of a
sparse one: ``Entries(data, rows, columns, n)``; its derivative has the same layout. The kernels of all steps of a timed
chain, and costs by time, go through the graph as one flat array (:func:`pieces` takes it apart).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import cleandoc
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, Integers
from diffbisim.data.streams import Stream
from diffbisim.distance import make_solver
from diffbisim.distance import solve as solve_problem
from diffbisim.errors import ConvergenceWarning, InvalidArgument, InvalidChain, warn
from diffbisim.gradient import kernel_gradients
from diffbisim.questions import Question
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers import Exact
from diffbisim.timed import TimedChain

#: What a second derivative is told. The distance is piecewise smooth: a Hessian would miss what happens at the kinks.
ONCE = (
    "the distance has first derivatives only, and this asks for a second one (a Hessian, or a gradient that is "
    "differentiated again): take differences of gradients instead"
)

#: What forward mode is told.
REVERSE = (
    "the distance is differentiated in reverse mode, once: use grad, jacrev or backward; forward mode and Hessians "
    "do not go through it"
)

#: The gap that is asked for by default: values as smooth as finite differences need (gradcheck: steps of 1e-6,
#: slopes to 1e-5). It costs one iteration more than the 1e-8 of :func:`diffbisim.distance`.
TOL = 1e-10

#: How far a row sum may be from one.
LOOSE = 1e-3


#: Dimensions of an argument that has one entry per distance of a batch.
BATCH = {"X": 3, "Y": 3, "cost": 3, "initial": 2, "initial_x": 2, "rewards": 2}

Function = TypeVar("Function", bound=Callable[..., Any])

ARGUMENTS = """Parameters
----------
X : a MarkovChain, or an (n_X, n_X) {array} with rows that sum to one, dense or {sparse}
Y : an (n_Y, n_Y) {array}, dense or {sparse}; a MarkovChain counts as constant. Over finitely many steps each of the
    two may be a TimedChain, or a list of dense kernels, one for every step
cost : "reward", "indicator" or an (n_X, n_Y) {array} or numpy array; with a kernel for every step a table, or a list of
    tables, one for every time
discount : weight γ of the next step, strictly between 0 and 1; a plain number
initial : start of Y, a state or an (n_Y,) {array} (default: that of X if both have as many states, else state 0)
initial_x : start of X where it is no MarkovChain
rewards : (n_Y,) {array} for cost "reward" (default: those of X if both have as many states)
solver, tol, warm : as for :func:`diffbisim.distance`; by default exact, to 1e-10 where digits allow
asked : what else :func:`diffbisim.distance` takes to say what is computed: ``criterion``, ``horizon``, ...

Differentiable in every {array} among X, Y, cost, initial, initial_x and rewards. ``distance`` takes each of them with a
leading batch dimension, too: kernels of shape (B, n, n) give B distances."""


def with_arguments(array: str, sparse: str) -> Callable[[Function], Function]:
    """Put what both bridges say of their arguments where the docstring has ``{arguments}``."""

    def filled(function: Function) -> Function:
        words = ARGUMENTS.replace("{array}", array).replace("{sparse}", sparse)
        function.__doc__ = cleandoc(function.__doc__ or "").replace("{arguments}", words)
        return function

    return filled


def batched(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arguments that have a leading batch dimension, of the same length."""
    names = tuple(name for name, ndim in BATCH.items() if getattr(given.get(name), "ndim", 0) == ndim)
    sizes = {name: given[name].shape[0] for name in names}
    if len(set(sizes.values())) > 1:
        what = ", ".join(f"{name} of {size}" for name, size in sizes.items())
        raise InvalidArgument(f"batches differ in size: {what}; give one entry per distance, or one for all")
    if names and not sizes[names[0]]:
        raise InvalidArgument(f"{names[0]} is an empty batch; give at least one")
    return names


class Entries(NamedTuple):
    """The stored entries of a sparse kernel; zeros among them are allowed, repeated places are not."""

    data: Floats
    rows: Integers
    columns: Integers
    n: int


class Steps(NamedTuple):
    """Dense kernels (n_t, n_{t+1}), one for every step."""

    kernels: list[Floats]


Kernel = Floats | Entries | Steps
Shapes = list[tuple[int, int]]  # of kernels, or of costs, that stand one after the other in a flat array


def pieces(flat: Floats, shapes: Shapes) -> list[Floats]:
    """A flat array as the tables that were joined to it."""
    cuts = np.cumsum([n * m for n, m in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, cuts), shapes, strict=True)]


def joined(tables: Any, shapes: Shapes | None) -> Floats:
    """The inverse, where there are shapes: derivatives by time in one flat array."""
    return np.asarray(tables) if shapes is None else np.concatenate([np.ravel(table) for table in tables])


def step_shapes(tables: Sequence[Any], name: str) -> Shapes:
    """The shapes of a list of kernels or costs, which must be tables."""
    if not tables or any(getattr(table, "ndim", 0) != 2 for table in tables):
        raise InvalidArgument(f"{name} is a list, but not of dense 2-dimensional tables: give one for every step")
    return [(int(table.shape[0]), int(table.shape[1])) for table in tables]


def needs_table(cost: Any) -> None:
    """Named costs are for kernels that stay the same."""
    if isinstance(cost, str):
        raise InvalidArgument(
            f"cost {cost!r} needs chains that stay the same; with a kernel for every step give the (n_X, n_Y) table, "
            "or a list of tables, one for every time"
        )


def row_sums(kernel: Floats | Entries, name: str) -> Floats:
    """(n,), checked to be near one."""
    if isinstance(kernel, Entries):
        sums = np.asarray(np.bincount(kernel.rows, kernel.data, kernel.n), dtype=np.float64)
    else:
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
            raise InvalidChain(f"{name} has shape {kernel.shape}; it must be square, (n_states, n_states)")
        sums = kernel.sum(axis=1)
    return near_one(sums, name)


def near_one(sums: Floats, name: str) -> Floats:
    """The row sums, if they are."""
    if not (np.abs(sums - 1.0) <= LOOSE).all():
        k = int(np.argmax(~(np.abs(sums - 1.0) <= LOOSE)))
        raise InvalidChain(f"row {k} of {name} sums to {sums[k]:.6g}; end the model in a softmax over each row")
    return sums


def make_chain(kernel: Kernel, initial: Any, name: str) -> Any:
    """The chain (or timed chain) with normalized rows and a normalized start."""
    start = np.asarray(initial)
    if start.ndim == 1 and abs(float(start.sum()) - 1.0) <= LOOSE:
        initial = np.asarray(start, dtype=np.float64) / float(start.sum())
    if isinstance(kernel, Steps):
        rows = [near_one(P.sum(axis=1), f"{name}[{t}]") for t, P in enumerate(kernel.kernels)]
        return TimedChain([P / r[:, None] for P, r in zip(kernel.kernels, rows, strict=True)], initial=initial)
    sums = row_sums(kernel, name)
    if isinstance(kernel, Entries):
        data = kernel.data / sums[kernel.rows]
        P = sparse.csr_array((data, (kernel.rows, kernel.columns)), shape=(kernel.n, kernel.n))
        return MarkovChain(P, initial=initial)
    return MarkovChain(kernel / sums[:, None], initial=initial)


class Asked(NamedTuple):
    """What a caller of a bridge wants, beside the two chains and the cost."""

    discount: float
    solver: Any = None  # None: exact, to TOL where digits allow
    tol: float | None = None
    warm: DistanceResult | None = None
    question: Question = Question()
    warn: bool = True  # of a solve that did not converge


def solve(x: MarkovChain | TimedChain | Stream, y: MarkovChain | TimedChain, cost: Any, asked: Asked) -> DistanceResult:
    """As :func:`diffbisim.distance` does; from a stream x, the kernel of y is known and sampled only if it must be."""
    usual = asked.solver is None and asked.tol is None
    solver = make_solver("exact" if asked.solver is None else asked.solver, TOL if usual else asked.tol)
    result: DistanceResult
    if isinstance(x, Stream):
        known = Stream(y, sampled=not solver.memory)
        result = solver.estimate(x, known, cost, asked.discount, warm=asked.warm)
    else:
        result = solve_problem(asked.question.problem(x, y, cost, asked.discount), solver, asked.warm)
    if usual and result.outcome is Status.ROUNDING and result.gap <= Exact().tol * result.problem.scale:
        result = replace(result, outcome=Status.CONVERGED)  # as far as digits go, and far enough for everybody else
    if asked.warn and not result.converged and result.outcome is not Status.ESTIMATE:
        warn(f"{result!r}. {result.status}", ConvergenceWarning, stacklevel=6)
    return result


def kernel_derivative(result: DistanceResult, side: str, kernel: Kernel) -> Floats:
    """``∂d/∂P`` for side "x" or "y" in the layout of the kernel."""
    G: Any = getattr(result.gradient, f"transition_{side}")
    if isinstance(kernel, Steps):
        parts = (part if isinstance(part, np.ndarray) else part.toarray() for part in G)
        return np.concatenate([
            (part / P.sum(axis=1, keepdims=True)).ravel() for part, P in zip(parts, kernel.kernels, strict=True)
        ])  # fmt: skip
    if not isinstance(kernel, Entries):
        dense = G if isinstance(G, np.ndarray) else G.toarray()
        return np.asarray(dense / kernel.sum(axis=1, keepdims=True))
    if (kernel.data == 0.0).any() and result.coupling.complete:  # stored zeros: what if mass entered there
        G = kernel_gradients(result.coupling, result.occupancy, everywhere=True)["xy".index(side)]
    picked = G[kernel.rows, kernel.columns] if isinstance(G, np.ndarray) else _picked(G, kernel)
    return np.asarray(picked / row_sums(kernel, "P")[kernel.rows])


def _picked(G: sparse.csr_array, kernel: Entries) -> Floats:
    """The entries of a CSR matrix at the stored places; zero where it has none."""
    source = np.repeat(np.arange(kernel.n), np.diff(G.indptr))
    have, want = source * kernel.n + G.indices, kernel.rows * kernel.n + kernel.columns
    at = np.minimum(np.searchsorted(have, want), have.size - 1)
    return np.where(have[at] == want, G.data[at], 0.0)


def start_derivative(result: DistanceResult, side: str, initial: Floats) -> Floats:
    """``∂d/∂ν``; zero where the solver did not look (``reachable=True``)."""
    g = getattr(result.gradient, f"initial_{side}") / float(initial.sum())
    return np.asarray(np.where(np.isnan(g), 0.0, g))


def default_start(chain: Any, n: int) -> Any:
    """The start of the other chain or stream when both have the same number of states, else state 0."""
    known = chain.frame if isinstance(chain, Stream) else chain
    return known.initial if isinstance(known, (MarkovChain, TimedChain)) and known.initial.size == n else 0


def no_start(initial: Any, name: str) -> None:
    """A chain has its own."""
    if initial is not None:
        raise InvalidArgument(f"{name} is a chain and brings its own start; leave its initial out")


def named_cost(
    cost: str, x: Any, n_y: int, rewards: Any, absolute: Callable[[Any], Any], as_array: Callable[[Any], Any]
) -> Any:
    """The table behind "reward" or "indicator", in the array type of the bridge."""
    x = x.frame if isinstance(x, Stream) else x
    n_x = x.n_states if isinstance(x, MarkovChain) else x.shape[0]
    if cost == "indicator":
        if n_x != n_y:
            raise InvalidArgument(f'cost "indicator": X has {n_x} states and Y has {n_y}; give the table instead')
        return as_array(1.0 - np.eye(n_x))
    if cost != "reward":
        raise InvalidArgument(f'cost {cost!r} is unknown; use "reward", "indicator" or an (n_X, n_Y) array')
    if not isinstance(x, MarkovChain) or x.rewards is None:
        raise InvalidArgument('cost "reward": X must be a MarkovChain with rewards; else give the (n_X, n_Y) table')
    if rewards is None:
        if n_x != n_y:
            raise InvalidArgument(f'cost "reward": give the rewards of the {n_y} states of Y, rewards=...')
        rewards = x.rewards
    own, other = as_array(x.rewards), as_array(rewards)
    if own.ndim > 1:
        raise InvalidArgument(f'cost "reward": X has {own.shape[1]} numbers per state; give the (n_X, n_Y) table')
    return absolute(own[:, None] - other[None, :])
