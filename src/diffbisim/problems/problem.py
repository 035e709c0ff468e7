"""The problem that solvers take as input, and the coupling that they return.

Notation used throughout the package (see docs/notation):

    X, Y            the two chains, with kernels P_X, P_Y and initial distributions ν_X, ν_Y
    c (n_X, n_Y)    ground cost, non-negative
    γ               discount, 0 < γ < 1
    U (n_X, n_Y)    *normalized* value table U = (1-γ) V, on the same scale as c:

                        U(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),      d = OT_U(ν_X, ν_Y)

    f_xy, g_xy      optimal potentials of pair (x,y) for cost U: f(x') + g(y') ≤ U(x',y')
    Π_xy            optimal plan of pair (x,y)
    m (n_X, n_Y)    joint occupancy, m = (1-γ) m_0 + γ Π^T m; sums to one, and d = <m, c>

A :class:`Coupling` holds plans, potentials and occupancies, which are computed on demand, because for large chains most
of them are never needed.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.checks import check_discount, freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import ground_cost

Array = NDArray[np.float64]


if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:
        """``functools.cached_property`` without the lock of Python 3.11.

        That lock is shared by all instances of a class: results would wait for each other, and a process forked in the
        meantime would deadlock. Without it two threads may compute the same value twice, which is harmless.
        """

        def __init__(self, compute):
            self.compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.compute(instance)
            return value


class TwoProcesses:
    """Properties shared by all problems with two processes ``x`` and ``y``, a ``cost`` and a ``discount``."""

    x: Any
    y: Any
    cost: Array
    discount: float

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_X, n_Y)``."""
        return self.x.n_states, self.y.n_states

    @cached_property
    def scale(self) -> float:
        """The largest ground cost; all tolerances are relative to it."""
        return float(self.cost.max())

    @property
    def step(self) -> float:
        """The weight of the cost of one step: U = step c + discount OT_U."""
        return 1 - self.discount

    @property
    def is_sparse(self) -> bool:
        """Whether either process is sparse; plans are then sparse too."""
        return bool(self.x.is_sparse or self.y.is_sparse)


@dataclass(frozen=True, eq=False)
class Problem(TwoProcesses):
    """Two chains, a ground cost ``(n_X, n_Y)`` and a discount; create it with :meth:`make`.

    Problems are immutable: the cost is read-only, and copied unless it already is a read-only array that owns its
    memory. Solvers compare problems by content.
    """

    x: MarkovChain
    y: MarkovChain
    cost: Array
    discount: float

    #: The kind of problem; :attr:`diffbisim.solvers.base.Solver.criteria` lists those that a solver supports.
    criterion: ClassVar[str] = "discounted"

    def __post_init__(self) -> None:
        self.__dict__["cost"] = frozen(self.cost)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, cost=frozen(state["cost"]))  # pickle and deepcopy drop the read-only flag

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float) -> "Problem":
        """Validate the arguments and create the problem."""
        return cls(x, y, checked_cost(x, y, cost), check_discount(discount))


@dataclass(frozen=True, eq=False)
class AverageProblem(Problem):
    """The minimal long-run average cost: ``discount`` and ``step`` are one, and the table W is a bias.

    ``blur`` bounds, in total variation, how far the rows and initial distributions of both chains together may differ
    from those whose distance is certified (zero except after lumping).
    """

    blur: float = 0.0
    criterion: ClassVar[str] = "average"

    @classmethod
    def of(cls, x: Any, y: Any, cost: Any) -> "AverageProblem":
        """Validate the arguments and create the problem."""
        return cls(x, y, checked_cost(x, y, cost), 1.0)

    @property
    def step(self) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class TotalProblem(Problem):
    """The minimal total cost until a terminal pair is reached; ``discount`` and ``step`` are one, ``blur`` as above."""

    terminal: NDArray[np.bool_]  # (n_X, n_Y), read-only
    blur: float = 0.0
    criterion: ClassVar[str] = "total"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__["terminal"] = freeze(np.array(self.terminal, dtype=np.bool_))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        freeze(self.terminal)

    @classmethod
    def of(cls, x: Any, y: Any, cost: Any, terminal: Any = None) -> "TotalProblem":
        """Validate the arguments and create the problem."""
        table = checked_cost(x, y, cost)
        if terminal is None:
            ends = np.zeros(table.shape, np.bool_)
            ends[np.ix_(x.absorbing_states, y.absorbing_states)] = True
            ends &= table == 0
            fault = "there is no pair of absorbing states without cost; list the terminal pairs in terminal="
        else:
            ends = _terminal_pairs(terminal, x, y)
            fault = "terminal contains no pair; list at least one"
        if not ends.any():
            raise InvalidArgument(f"criterion='total' needs terminal pairs, but {fault}, or use criterion='average'")
        if ends.all():
            raise InvalidArgument("terminal contains all pairs, so the total cost is zero; leave some out")
        return cls(x, y, table, 1.0, ends)

    @property
    def step(self) -> float:
        return 1.0


def _terminal_pairs(terminal: Any, x: MarkovChain, y: MarkovChain) -> NDArray[np.bool_]:
    """Return ``(n_X, n_Y)`` booleans from such an array or from a list of pairs of states."""
    shape = x.n_states, y.n_states
    if isinstance(terminal, np.ndarray) or (len(terminal) and isinstance(terminal[0], (list, np.ndarray))):
        array = np.asarray(terminal)
        if array.dtype == np.bool_:
            if array.shape != shape:
                raise InvalidArgument(f"terminal has shape {array.shape}; give {shape} booleans, or a list of pairs")
            return array
        if array.ndim != 2 or array.shape[1] != 2:
            raise InvalidArgument(f"terminal is an array of {array.dtype}; give {shape} booleans, or a list of pairs")
    ends = np.zeros(shape, np.bool_)
    for k, pair in enumerate(terminal):
        if not isinstance(pair, (tuple, list, np.ndarray)) or len(pair) != 2:
            raise InvalidArgument(f"terminal[{k}] is {pair!r}; give a pair (state of X, state of Y)")
        ends[x.index(pair[0]), y.index(pair[1])] = True
    return ends


def checked_cost(x: Any, y: Any, cost: Any) -> Array:
    """Check that both processes are chains and return their ground cost."""
    for name, chain in (("X", x), ("Y", y)):
        if not isinstance(chain, MarkovChain):
            raise InvalidArgument(
                f"{name} is a {type(chain).__name__}, not a MarkovChain: wrap the matrix as "
                f"diffbisim.MarkovChain(P, initial=...)"
            )
    return freeze(ground_cost(cost, x, y))


def frozen(array: Any) -> Array:
    """Return a read-only C-contiguous float64 array that owns its memory: the array itself, or a copy."""
    if (
        isinstance(array, np.ndarray)
        and array.dtype == np.float64
        and array.flags.owndata
        and array.flags.c_contiguous
        and not array.flags.writeable
    ):
        return array
    return freeze(np.array(array, dtype=np.float64, order="C"))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself if it is read-only, else a read-only view."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def available_threads() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory() -> float:
    """Return the memory of this machine in bytes; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")


@dataclass(frozen=True, eq=False)
class StartCoupling:
    """The optimal coupling of the two initial distributions, and its potentials (for cost ``U``)."""

    plan: sparse.coo_array  # (n_X, n_Y)
    f: Array  # (n_X,)
    g: Array  # (n_Y,)


class Coupling(ABC):
    """Plans, potentials and occupancies of a solved problem, all in units of ``U``.

    A solver implements :attr:`values`, :attr:`start`, :meth:`plan` and :meth:`potentials`; everything else is derived
    from these, and may be overridden by something faster.
    """

    problem: Problem

    #: Temperature (of U, scaled) of an entropic coupling; zero for the distance itself.
    epsilon: float = 0.0

    #: Whether every pair was solved; otherwise potentials are known on the possible transitions only.
    complete: bool = True

    #: Number of sweeps used for the occupancy, beyond those of the solver.
    sweeps: int = 0

    @property
    @abstractmethod
    def values(self) -> Array:
        """``U``, shape ``(n_X, n_Y)``."""

    @property
    def table_bounds(self) -> tuple[Array, Array]:
        """Certified lower and upper bounds on the entries of :attr:`values`, (n_X, n_Y) each; NaN where not solved."""
        raise InvalidArgument(
            "this solver certifies only the distance, not every entry of the table; use distance(..., solver='exact')"
        )

    @property
    @abstractmethod
    def start(self) -> StartCoupling:
        """The coupling of the initial distributions."""

    @abstractmethod
    def plan(self, x: int, y: int) -> sparse.coo_array:
        """Return the optimal plan of pair ``(x, y)``, (n_X, n_Y), with marginals ``P_X(·|x)`` and ``P_Y(·|y)``."""

    @abstractmethod
    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        """Return the potentials ``f (n_X,)``, ``g (n_Y,)`` of pair ``(x, y)``, extended by c-transforms."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(values := state.get("values"), np.ndarray):
            freeze(values)  # pickle and deepcopy drop the read-only flag

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that :meth:`diffbisim.results.base.DistanceResult.save` writes."""
        return {"values": self.values}

    def occupancy(self) -> Array:
        """Return ``m``, (n_X, n_Y), from the transposed linear system over the pairs reachable from the start."""
        from scipy.sparse.linalg import spsolve

        n_x, n_y = self.problem.shape
        start, γ = self.start.plan, self.problem.discount
        index = {(int(x), int(y)): k for k, (x, y) in enumerate(zip(*start.coords, strict=True))}
        queue, rows, cols, mass = list(index), [], [], []
        for k, (x, y) in enumerate(queue):  # the queue grows during the loop
            plan = self.plan(x, y)
            for pair, p in zip(zip(*map(np.ndarray.tolist, plan.coords), strict=True), plan.data, strict=True):
                if p > 0:
                    if pair not in index:
                        index[pair] = len(queue)
                        queue.append(pair)
                    rows.append(index[pair])
                    cols.append(k)
                    mass.append(p)
        n = len(queue)
        flow = sparse.eye_array(n) - γ * sparse.csr_array((mass, (rows, cols)), shape=(n, n))
        source = np.zeros(n)
        source[: start.nnz] = (1 - γ) * start.data
        m = np.zeros((n_x, n_y))
        m[tuple(np.array(queue).T)] = np.maximum(spsolve(flow.tocsc(), source), 0)
        return m

    def potential_weights(self, m: Array) -> Array:
        """Return the weight of each pair's potentials in the gradient, given the occupancy ``m (n_X, n_Y)``."""
        return m

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        """Return ``Σ_y m(x,y) f_xy(x')`` and ``Σ_x m(x,y) g_xy(y')``, shapes ``(n_X, n_X)`` and ``(n_Y, n_Y)``.

        They are dense if ``everywhere``, otherwise CSR on the possible transitions.
        """
        n_x, n_y = self.problem.shape
        by_x, by_y = np.zeros((n_x, n_x)), np.zeros((n_y, n_y))
        for x, y in zip(*np.nonzero(m), strict=True):
            f, g = self.potentials(int(x), int(y))
            by_x[x] += m[x, y] * f
            by_y[y] += m[x, y] * g
        return self._by_transition(by_x, by_y, everywhere)

    def _by_transition(self, by_x: Array, by_y: Array, everywhere: bool) -> tuple[Any, Any]:
        """Return sums of potentials as they are if ``everywhere``, otherwise as CSR on the possible transitions."""
        if everywhere:
            return by_x, by_y
        return on_support(by_x, self.problem.x), on_support(by_y, self.problem.y)


def on_support(rows: Array, chain: MarkovChain) -> sparse.csr_array:
    """Return the entries of a dense matrix (or a vector of them) on the possible transitions of a chain, as CSR."""
    s = chain.successors
    source = s.sources
    data = rows if rows.ndim == 1 else rows[source, s.indices]
    return sparse.csr_array((data, s.indices, s.indptr), shape=(chain.n_states, chain.n_states))
