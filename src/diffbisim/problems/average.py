"""The least long-run average cost, d = min lim E (1/T) Σ_{t<T} c(x_t, y_t):

    g(x,y) + W(x,y) = c(x,y) + OT_W(P_X(·|x), P_Y(·|y)),      g constant on every closed class of pairs

The table W is a bias; ``discount`` and ``step`` are one.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from diffbisim.problems.base import ChainProblem, chains_from_arrays, checked_cost


@dataclass(frozen=True, eq=False)
class Average(ChainProblem):
    """Two chains and a ground cost.

    ``blur`` bounds, in total variation, how far the rows and initial distributions of both chains together may differ
    from those whose distance is certified (zero except after lumping).
    """

    blur: float = 0.0

    criterion: ClassVar[str] = "average"
    forgets_start: ClassVar[bool] = True

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any) -> "Average":
        """Validate the arguments and create the problem."""
        return cls(x, y, checked_cost(x, y, cost), 1.0)

    @property
    def compared(self) -> str:
        return "long-run average rewards"

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: Any) -> "Average":
        """Restore a saved problem, validated like the arguments of :func:`diffbisim.distance`."""
        return cls.make(*chains_from_arrays(arrays))
