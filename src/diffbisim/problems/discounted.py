"""The discounted distance, d = (1-γ) min E Σ_t γ^t c(x_t, y_t):

U(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),      d = OT_U(ν_X, ν_Y)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from diffbisim.common.checks import check_discount
from diffbisim.io.arrays import entry, is_number
from diffbisim.problems.base import ChainProblem, chains_from_arrays, checked_cost


@dataclass(frozen=True, eq=False)
class Discounted(ChainProblem):
    """Two chains, a ground cost and a discount γ, 0 < γ < 1."""

    criterion: ClassVar[str] = "discounted"
    has_discount: ClassVar[bool] = True

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float) -> "Discounted":
        """Validate the arguments and create the problem."""
        return cls(x, y, checked_cost(x, y, cost), check_discount(discount))

    @property
    def step(self) -> float:
        return 1 - self.discount

    @property
    def compared(self) -> str:
        return f"expected discounted rewards (discount {self.discount:g})"

    def property_bound(self, upper: float) -> float:
        """Return a bound for sums Σ γ^t r, the units of model checkers."""
        return upper / (1.0 - self.discount)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: Any) -> "Discounted":
        """Restore a saved problem, validated like the arguments of :func:`diffbisim.distance`."""
        return cls(*chains_from_arrays(arrays), check_discount(entry(meta, "discount", is_number, "a number")))
