"""What every problem has: two processes, a ground cost, and an equation whose fixed point is the distance.

Notation used throughout the package (see docs/notation):

    X, Y            the two chains, with kernels P_X, P_Y and initial distributions ν_X, ν_Y
    c (n_X, n_Y)    ground cost, non-negative
    γ               discount, 0 < γ < 1
    U (n_X, n_Y)    *normalized* value table U = (1-γ) V, on the same scale as c:

                        U(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),      d = OT_U(ν_X, ν_Y)

    f_xy, g_xy      optimal potentials of pair (x,y) for cost U: f(x') + g(y') ≤ U(x',y')
    Π_xy            optimal plan of pair (x,y)
    m (n_X, n_Y)    joint occupancy, m = (1-γ) m_0 + γ Π^T m; sums to one, and d = <m, c>

Each criterion is a class of its own (discounted.py, average.py, total.py, horizon.py, game.py). It owns its equation,
the validation of its arguments, what its value means in words, and how it is saved.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from diffbisim.common.arrays import Array, frozen
from diffbisim.common.checks import freeze
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.io.arrays import part, prefixed
from diffbisim.io.npz import chain_arrays, chain_from_arrays
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import ground_cost


class Problem(ABC):
    """Two processes ``x`` and ``y``, and what is asked of them. Subclasses are immutable, and compared by content."""

    #: Its name, for ``criterion=``, messages and files.
    criterion: ClassVar[str]

    #: The arguments of :func:`diffbisim.distance` beside cost and discount that belong to it.
    options: ClassVar[tuple[str, ...]] = ()

    #: Whether ``discount`` has an effect, whether the start distributions have none, and whether the value may be
    #: infinite.
    has_discount: ClassVar[bool] = False
    forgets_start: ClassVar[bool] = False
    may_be_infinite: ClassVar[bool] = False

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
        """The weight of the cost of one step, as in U = step c + discount OT_U."""
        return 1.0

    @property
    def is_sparse(self) -> bool:
        """Whether either process is sparse; plans are then sparse too."""
        return bool(self.x.is_sparse or self.y.is_sparse)

    @property
    @abstractmethod
    def compared(self) -> str:
        """The rewards of model checkers that the value bounds, in words."""

    def property_bound(self, upper: float) -> float:
        """Return the bound on the difference of expected rewards that follows from an upper bound on the value."""
        return upper

    def meaning(self, upper: float) -> str:
        """Return what an upper bound on the value means, as a sentence."""
        bound = self.property_bound(upper)
        return f"{self.compared} differ by at most {bound:.6g}, for any rewards that differ by at most the cost"

    def value_range(self) -> tuple[float, float]:
        """Return bounds on the value that hold for all processes with these costs."""
        return float(self.cost.min()), self.scale

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """Return the problem as named arrays, for files."""

    def metadata(self) -> dict[str, Any]:
        """Return what files store besides, as JSON."""
        return {"criterion": self.criterion, "discount": self.discount}


@dataclass(frozen=True, eq=False)
class ChainProblem(Problem):
    """Two chains and one ground cost ``(n_X, n_Y)``.

    The cost is read-only, and copied unless it already is a read-only array that owns its memory.
    """

    x: MarkovChain
    y: MarkovChain
    cost: Array
    discount: float

    def __post_init__(self) -> None:
        self.__dict__["cost"] = frozen(self.cost)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, cost=frozen(state["cost"]))  # pickle and deepcopy drop the read-only flag

    def arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {"cost": self.cost}
        for side, chain in (("x", self.x), ("y", self.y)):
            arrays |= prefixed(f"{side}.", chain_arrays(chain))
        return arrays


def chains_from_arrays(arrays: dict[str, Any]) -> tuple[MarkovChain, MarkovChain, Array]:
    """Return the chains and the cost that :meth:`ChainProblem.arrays` has written, validated like arguments."""
    x, y = chain_from_arrays(part(arrays, "x.")), chain_from_arrays(part(arrays, "y."))
    if "cost" not in arrays:
        raise InvalidData("there is no array 'cost'")
    return x, y, ground_cost(arrays["cost"], x, y)


def checked_cost(x: Any, y: Any, cost: Any) -> Array:
    """Check that both processes are chains and return their ground cost."""
    for name, chain in (("X", x), ("Y", y)):
        if not isinstance(chain, MarkovChain):
            raise InvalidArgument(
                f"{name} is a {type(chain).__name__}, not a MarkovChain: wrap the matrix as "
                f"diffbisim.MarkovChain(P, initial=...)"
            )
    return freeze(ground_cost(cost, x, y))
