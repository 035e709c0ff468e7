"""The problem every solver solves, and what every solver knows when it is done.

Letters used throughout the package (table in docs/notation):

    X, Y            the two chains, kernels P_X, P_Y, starts ν_X, ν_Y
    c (n_X, n_Y)    ground cost, non-negative
    γ               discount, 0 < γ < 1
    U (n_X, n_Y)    the *normalized* value table U = (1-γ) V, so that U and c have the same scale:

                        U(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),      d = OT_U(ν_X, ν_Y)

    f_xy, g_xy      optimal potentials of pair (x,y) for cost U: f(x') + g(y') ≤ U(x',y')
    Π_xy            optimal plan of pair (x,y)
    m (n_X, n_Y)    joint occupancy, m = (1-γ) m_0 + γ Π^T m; sums to one, and d = <m, c>

A :class:`Problem` is the input. A :class:`Coupling` is the answer beyond the number: plans, potentials and
occupancies, computed when asked for, because for large chains most of them are never wanted.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.checks import check_discount, freeze
from diffbisim.cost import ground_cost
from diffbisim.errors import InvalidArgument

Array = NDArray[np.float64]


if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:
        """``functools.cached_property`` without the lock that Python 3.11 holds while it computes.

        That lock is shared by all objects of a class: results would wait for each other, and a process forked
        meanwhile would wait for ever. Here two threads may compute the same thing twice, which harms nobody.
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
    """What any problem of two processes ``x`` and ``y`` with a ``cost`` and a ``discount`` says of itself."""

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
        """Largest ground cost: every tolerance is relative to it."""
        return float(self.cost.max())

    @property
    def step(self) -> float:
        """What the cost of one step counts in the table: U = step c + discount OT_U."""
        return 1 - self.discount

    @property
    def is_sparse(self) -> bool:
        """Whether either one is sparse; plans then come back sparse too."""
        return bool(self.x.is_sparse or self.y.is_sparse)


@dataclass(frozen=True, eq=False)
class Problem(TwoProcesses):
    """Two chains, a ground cost ``(n_X, n_Y)`` and a discount; validated by :meth:`make`.

    A problem cannot change: its cost is read-only, and a copy unless it was read-only memory of its own already. Two
    problems are the same if their contents are, which is what solvers compare.
    """

    x: MarkovChain
    y: MarkovChain
    cost: Array
    discount: float

    #: What is asked; a solver says which of these it can answer (:attr:`diffbisim.solvers.base.Solver.criteria`).
    criterion: ClassVar[str] = "discounted"

    def __post_init__(self) -> None:
        self.__dict__["cost"] = frozen(self.cost)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, cost=frozen(state["cost"]))  # neither pickle nor deepcopy keeps the flag

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float) -> "Problem":
        """Check every argument once, at the door."""
        return cls(x, y, checked_cost(x, y, cost), check_discount(discount))


@dataclass(frozen=True, eq=False)
class AverageProblem(Problem):
    """The least long-run average cost: ``discount`` and ``step`` are one, the table W is a bias.

    ``blur``: by how much rows and starts may differ, in total variation of both together, from those whose distance is
    certified (lumping leaves that much; else zero).
    """

    blur: float = 0.0
    criterion: ClassVar[str] = "average"

    @classmethod
    def of(cls, x: Any, y: Any, cost: Any) -> "AverageProblem":
        """Check every argument once, at the door."""
        return cls(x, y, checked_cost(x, y, cost), 1.0)

    @property
    def step(self) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class TotalProblem(Problem):
    """The least total cost until a terminal pair is reached: ``discount`` and ``step`` are one; ``blur`` as above."""

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
        """Check every argument once, at the door."""
        table = checked_cost(x, y, cost)
        if terminal is None:
            ends = np.zeros(table.shape, np.bool_)
            ends[np.ix_(x.absorbing_states, y.absorbing_states)] = True
            ends &= table == 0
            remedy = "there is no pair of absorbing states without cost: name the pairs where it ends by terminal="
        else:
            ends = _terminal_pairs(terminal, x, y)
            remedy = "terminal has no pair: name the pairs where the cost ends"
        if not ends.any():
            raise InvalidArgument(f"criterion='total' needs an end, and {remedy}, or use criterion='average'")
        if ends.all():
            raise InvalidArgument("terminal has all pairs, so that nothing costs anything: leave some out")
        return cls(x, y, table, 1.0, ends)

    @property
    def step(self) -> float:
        return 1.0


def _terminal_pairs(terminal: Any, x: MarkovChain, y: MarkovChain) -> NDArray[np.bool_]:
    """``(n_X, n_Y)`` booleans from such an array, or from a list of pairs of states."""
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
    """The ground cost of two chains, which must be chains."""
    for name, chain in (("X", x), ("Y", y)):
        if not isinstance(chain, MarkovChain):
            raise InvalidArgument(
                f"{name} is a {type(chain).__name__}, not a MarkovChain: wrap the matrix as "
                f"diffbisim.MarkovChain(P, initial=...)"
            )
    return freeze(ground_cost(cost, x, y))


def frozen(array: Any) -> Array:
    """The array as read-only C-contiguous float64 memory of its own: itself if it is that already, else a copy."""
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
    """The array itself if nobody can write to it, else a view of it that cannot be written through."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def available_threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Start:
    """The optimal coupling of the two start distributions and its potentials (for cost ``U``)."""

    plan: sparse.coo_array  # (n_X, n_Y)
    f: Array  # (n_X,)
    g: Array  # (n_Y,)


class Coupling(ABC):
    """Plans, potentials and occupancies of one solved problem, all in units of ``U``.

    A solver provides :attr:`values`, :attr:`start`, :meth:`plan` and :meth:`potentials`; the rest follows, and a
    solver overrides it where it can do better.
    """

    problem: Problem

    #: Temperature (of U, scaled) where the coupling is that of the entropic metric; zero for the distance itself.
    epsilon: float = 0.0

    #: Whether every pair was solved; if not, potentials are only known on the possible transitions.
    complete: bool = True

    #: Sweeps that the occupancy has taken, beyond those of the solve.
    sweeps: int = 0

    @property
    @abstractmethod
    def values(self) -> Array:
        """``U``, shape ``(n_X, n_Y)``."""

    @property
    def table_bounds(self) -> tuple[Array, Array]:
        """Certified lower and upper bounds on every entry of :attr:`values`, (n_X, n_Y) each; NaN where that is."""
        raise InvalidArgument(
            "this solver certifies the distance, not every entry of the table: use distance(..., solver='exact')"
        )

    @property
    @abstractmethod
    def start(self) -> Start:
        """Coupling of the starts."""

    @abstractmethod
    def plan(self, x: int, y: int) -> sparse.coo_array:
        """Optimal plan of pair ``(x, y)``, shape ``(n_X, n_Y)``, marginals ``P_X(·|x)`` and ``P_Y(·|y)``."""

    @abstractmethod
    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        """Potentials ``f (n_X,)``, ``g (n_Y,)`` of pair ``(x, y)``, extended off the supports by c-transforms."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(values := state.get("values"), np.ndarray):
            freeze(values)  # neither pickle nor deepcopy keeps the flag

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays that :meth:`diffbisim.results.DistanceResult.save` writes."""
        return {"values": self.values}

    def occupancy(self) -> Array:
        """``m``, shape ``(n_X, n_Y)``: the transposed linear system, by the pairs that the start can reach."""
        from scipy.sparse.linalg import spsolve

        n_x, n_y = self.problem.shape
        start, γ = self.start.plan, self.problem.discount
        index = {(int(x), int(y)): k for k, (x, y) in enumerate(zip(*start.coords, strict=True))}
        queue, rows, cols, mass = list(index), [], [], []
        for k, (x, y) in enumerate(queue):  # the queue grows while it is walked
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
        """What the potentials of each pair count in the gradient, for the occupancy ``m (n_X, n_Y)``."""
        return m

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        """``Σ_y m(x,y) f_xy(x')`` and ``Σ_x m(x,y) g_xy(y')``, shapes ``(n_X, n_X)`` and ``(n_Y, n_Y)``.

        Dense with ``everywhere``; otherwise only on the possible transitions, as CSR.
        """
        n_x, n_y = self.problem.shape
        by_x, by_y = np.zeros((n_x, n_x)), np.zeros((n_y, n_y))
        for x, y in zip(*np.nonzero(m), strict=True):
            f, g = self.potentials(int(x), int(y))
            by_x[x] += m[x, y] * f
            by_y[y] += m[x, y] * g
        if everywhere:
            return by_x, by_y
        return on_support(by_x, self.problem.x), on_support(by_y, self.problem.y)


def on_support(rows: Array, chain: MarkovChain) -> sparse.csr_array:
    """The entries of a dense matrix on the possible transitions of a chain, or a vector of them, as CSR."""
    s = chain.successors
    source = s.sources
    data = rows if rows.ndim == 1 else rows[source, s.indices]
    return sparse.csr_array((data, s.indices, s.indptr), shape=(chain.n_states, chain.n_states))
