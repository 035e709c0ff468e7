"""What is asked of two processes, and the problem that this makes of them.

================================  ====================================================  ==============================
asked                             the table U (or V, W) solves                          where
================================  ====================================================  ==============================
discounted (the default)          U = (1-γ) c + γ OT_U(P_X, P_Y)                        problem.py
``criterion="average"``           g + W = c + OT_W, g constant on every closed class    problem.py
``criterion="total"``             V = c + OT_V, V = 0 at terminal pairs                 problem.py
``horizon=T`` or ``weights=``     V_t = w_t c + OT_{V_{t+1}}, T steps                   horizon.py
two MDPs, ``actions="matched"``   U = max_a [(1-γ) c_a + γ OT_U(P_a, Q_a)]              actions.py
two MDPs, ``actions="lax"``       U = max(max_a min_b, max_b min_a) of the same         actions.py
two MDPs, ``actions="directed"``  U = max_a min_b of the same                           actions.py
================================  ====================================================  ==============================
"""

from dataclasses import dataclass
from typing import Any

from diffbisim.actions import ActionProblem
from diffbisim.errors import InvalidArgument
from diffbisim.horizon import TimedProblem
from diffbisim.mdp import MDP
from diffbisim.problem import AverageProblem, Problem, TotalProblem
from diffbisim.timed import TimedChain


@dataclass(frozen=True, eq=False, slots=True)
class Question:
    """The criterion, as the arguments of :func:`diffbisim.distance` name it.

    Attributes:
        criterion: "discounted", "average" (long-run mean cost per step) or "total" (until absorption, undiscounted).
        horizon: number of steps T of a finite horizon; None for none.
        weights: non-negative weights of the costs at times 0 … T, in place of the powers of the discount.
        terminal: pairs where the total cost ends, (n_X, n_Y) booleans; None for pairs of absorbing states without cost.
        actions: "matched", "lax" or "directed", for two MDPs; None for the first.
    """

    criterion: str = "discounted"
    horizon: int | None = None
    weights: Any = None
    terminal: Any = None
    actions: str | None = None

    def problem(self, X: Any, Y: Any, cost: Any, discount: float) -> Any:
        """The problem that a solver is given; every argument is checked here, once."""
        self._check()
        with_actions = isinstance(X, MDP) or isinstance(Y, MDP)
        if self.actions is not None and not with_actions:
            raise InvalidArgument("actions is for two MDPs; chains have none: leave actions out")
        timed = self.horizon is not None or self.weights is not None
        if with_actions:
            self._only_discounted("MDPs")
            return ActionProblem.make(X, Y, cost, discount, self.actions or "matched")
        if timed or isinstance(X, TimedChain) or isinstance(Y, TimedChain):
            if self.criterion != "discounted":
                raise InvalidArgument(f"criterion={self.criterion!r} has no end, a TimedChain has one: leave it out")
            return TimedProblem.make(X, Y, cost, discount, self.horizon, self.weights)
        if self.criterion == "average":
            return AverageProblem.of(X, Y, cost)
        if self.criterion == "total":
            return TotalProblem.of(X, Y, cost, self.terminal)
        return Problem.make(X, Y, cost, discount)

    @property
    def is_usual(self) -> bool:
        """Whether it is the discounted distance of two chains."""
        return self.criterion == "discounted" and self.horizon is None and self.weights is None

    def facts(self) -> dict[str, Any]:
        """What makes it another question than the usual one, for checkpoints."""
        if self.is_usual:
            return {}
        facts = {"criterion": self.criterion, "horizon": self.horizon, "weights": self.weights}
        return facts if self.terminal is None else {**facts, "terminal": self.terminal}

    def _check(self) -> None:
        known = ("discounted", "average", "total")
        if self.criterion not in known:
            raise InvalidArgument(f"criterion {self.criterion!r} is not known; choose one of {', '.join(known)}")
        if self.terminal is not None and self.criterion != "total":
            raise InvalidArgument("terminal is for criterion='total'; leave it out, or set the criterion")
        if self.criterion != "discounted" and (self.horizon is not None or self.weights is not None):
            raise InvalidArgument(
                f"criterion={self.criterion!r} has no end, horizon and weights have one: give one or the other"
            )

    def _only_discounted(self, what: str) -> None:
        if self.criterion != "discounted" or self.horizon is not None or self.weights is not None:
            raise InvalidArgument(
                f"{what} are compared by the discounted criterion without a horizon; for others compare the chains of "
                "two policies, mdp.induced_chain(policy)"
            )
