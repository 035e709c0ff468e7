"""The least total cost until a terminal pair, d = min E Σ_{t<τ} c(x_t, y_t):

    V(x,y) = c(x,y) + OT_V(P_X(·|x), P_Y(·|y)),      V = 0 at terminal pairs

``discount`` and ``step`` are one.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.checks import freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.io.arrays import numbers
from diffbisim.problems.base import ChainProblem, chains_from_arrays, checked_cost
from diffbisim.processes.chain import MarkovChain


@dataclass(frozen=True, eq=False)
class Total(ChainProblem):
    """Two chains, a ground cost and the terminal pairs ``(n_X, n_Y)``; ``blur`` as in :class:`Average`."""

    terminal: NDArray[np.bool_]
    blur: float = 0.0

    criterion: ClassVar[str] = "total"
    options: ClassVar[tuple[str, ...]] = ("terminal",)
    may_be_infinite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__["terminal"] = freeze(np.array(self.terminal, dtype=np.bool_))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        freeze(self.terminal)

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, terminal: Any = None) -> "Total":
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
    def compared(self) -> str:
        return "expected total rewards"

    def value_range(self) -> tuple[float, float]:
        return 0.0, np.inf

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | {"terminal": self.terminal}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: Any) -> "Total":
        """Restore a saved problem, validated like the arguments of :func:`diffbisim.distance`."""
        x, y, cost = chains_from_arrays(arrays)
        return cls.make(x, y, cost, numbers(arrays, "terminal", cost.shape, np.bool_))


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
