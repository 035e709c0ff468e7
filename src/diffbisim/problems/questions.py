"""The choice of a problem from the arguments of :func:`diffbisim.distance`.

================================  ====================================================  ==============================
arguments                         equation for the table U (or V, W)                    module
================================  ====================================================  ==============================
(default)                         U = (1-γ) c + γ OT_U(P_X, P_Y)                        problem.py
``criterion="average"``           g + W = c + OT_W, g constant on every closed class    problem.py
``criterion="total"``             V = c + OT_V, V = 0 at terminal pairs                 problem.py
``horizon=T`` or ``weights=``     V_t = w_t c + OT_{V_{t+1}}, T steps                   horizon.py
two MDPs, ``actions="matched"``   U = max_a [(1-γ) c_a + γ OT_U(P_a, Q_a)]              games.py
two MDPs, ``actions="lax"``       U = max(max_a min_b, max_b min_a) of the same         games.py
two MDPs, ``actions="directed"``  U = max_a min_b of the same                           games.py
================================  ====================================================  ==============================
"""

from dataclasses import dataclass
from typing import Any

from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.games import ActionProblem
from diffbisim.problems.horizon import TimedProblem
from diffbisim.problems.problem import AverageProblem, Problem, TotalProblem
from diffbisim.processes.mdp import MDP
from diffbisim.processes.timed import TimedChain


@dataclass(frozen=True, eq=False, slots=True)
class Question:
    """The arguments of :func:`diffbisim.distance` that say which problem to solve.

    Attributes
    ----------
    criterion : {"discounted", "average", "total"}
        "average" is the long-run mean cost per step, "total" the undiscounted cost until absorption.
    horizon : int or None
        Number of steps T of a finite horizon.
    weights : array of shape (T + 1,) or None
        Non-negative weights of the costs at times 0 … T, instead of powers of the discount.
    terminal : boolean array of shape (n_X, n_Y) or None
        Pairs at which the total cost stops; None for pairs of absorbing states without cost.
    actions : {"matched", "lax", "directed"} or None
        How actions of two MDPs are paired; None means "matched".
    """

    criterion: str = "discounted"
    horizon: int | None = None
    weights: Any = None
    terminal: Any = None
    actions: str | None = None

    def problem(self, X: Any, Y: Any, cost: Any, discount: float) -> Any:
        """Validate the arguments and create the problem."""
        self._check()
        with_actions = isinstance(X, MDP) or isinstance(Y, MDP)
        if self.actions is not None and not with_actions:
            raise InvalidArgument("actions is for two MDPs, but X and Y are chains; omit actions")
        timed = self.horizon is not None or self.weights is not None
        if with_actions:
            self._only_discounted("MDPs")
            return ActionProblem.make(X, Y, cost, discount, "matched" if self.actions is None else self.actions)
        if timed or isinstance(X, TimedChain) or isinstance(Y, TimedChain):
            if self.criterion != "discounted":
                raise InvalidArgument(
                    f"criterion={self.criterion!r} has an infinite horizon, but a TimedChain is finite; omit criterion"
                )
            return TimedProblem.make(X, Y, cost, discount, self.horizon, self.weights)
        if self.criterion == "average":
            return AverageProblem.of(X, Y, cost)
        if self.criterion == "total":
            return TotalProblem.of(X, Y, cost, self.terminal)
        return Problem.make(X, Y, cost, discount)

    @property
    def is_usual(self) -> bool:
        """Whether this is the discounted infinite-horizon problem."""
        return self.criterion == "discounted" and self.horizon is None and self.weights is None

    def facts(self) -> dict[str, Any]:
        """Return the non-default settings, for checkpoints."""
        if self.is_usual:
            return {}
        facts = {"criterion": self.criterion, "horizon": self.horizon, "weights": self.weights}
        return facts if self.terminal is None else {**facts, "terminal": self.terminal}

    def _check(self) -> None:
        known = ("discounted", "average", "total")
        if not isinstance(self.criterion, str) or self.criterion not in known:
            raise InvalidArgument(f"criterion {self.criterion!r} is unknown; choose one of {', '.join(known)}")
        if self.terminal is not None and self.criterion != "total":
            raise InvalidArgument("terminal is for criterion='total'; omit it, or set the criterion")
        if self.criterion != "discounted" and (self.horizon is not None or self.weights is not None):
            raise InvalidArgument(
                f"criterion={self.criterion!r} has an infinite horizon; omit it, or omit horizon and weights"
            )

    def _only_discounted(self, what: str) -> None:
        if self.criterion != "discounted" or self.horizon is not None or self.weights is not None:
            raise InvalidArgument(
                f"{what} can only be compared with criterion='discounted' and without a horizon; otherwise compare "
                "the chains of two policies, mdp.induced_chain(policy)"
            )
