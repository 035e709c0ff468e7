"""What is asked: one class for each criterion. A problem owns its equation (the head of its module), the validation of
its arguments, what its value means in words, and how it is saved; solvers say which classes they solve.

================================  ====================================================  ==============================
arguments                         equation for the table U (or V, W)                    class
================================  ====================================================  ==============================
(default)                         U = (1-γ) c + γ OT_U(P_X, P_Y)                        Discounted
``criterion="average"``           g + W = c + OT_W, g constant on every closed class    Average
``criterion="total"``             V = c + OT_V, V = 0 at terminal pairs                 Total
``horizon=T`` or ``weights=``     V_t = w_t c + OT_{V_{t+1}}, T steps                   FiniteHorizon
two MDPs, ``actions="matched"``   U = max_a [(1-γ) c_a + γ OT_U(P_a, Q_a)]              Game
two MDPs, ``actions="lax"``       U = max(max_a min_b, max_b min_a) of the same         Game
two MDPs, ``actions="directed"``  U = max_a min_b of the same                           Game
================================  ====================================================  ==============================

To add a criterion, write its class in a file of its own, enter it below, and add it to the classes that a solver
solves (``solvers/exact/__init__.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.average import Average
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.problems.game import Game
from diffbisim.problems.horizon import FiniteHorizon
from diffbisim.problems.total import Total
from diffbisim.processes.mdp import MDP
from diffbisim.processes.timed import TimedChain

__all__ = [
    "CRITERIA", "PROBLEMS", "Average", "Criterion", "Discounted", "FiniteHorizon", "Game", "Problem", "Total",
    "criterion_of",
]  # fmt: skip

#: The values of ``criterion=``.
CRITERIA: dict[str, type[Problem]] = {"discounted": Discounted, "average": Average, "total": Total}

#: All problems by their names in files.
PROBLEMS: dict[str, type[Any]] = CRITERIA | {"horizon": FiniteHorizon, "actions": Game}

#: For whom an option is that belongs to one problem only.
MEANT_FOR = {
    "terminal": "criterion='total'; omit it, or set the criterion",
    "actions": "two MDPs, but X and Y are chains; omit actions",
}


@dataclass(frozen=True, eq=False, slots=True)
class Criterion:
    """Which problem to pose between two processes, apart from cost and discount; create it with :func:`criterion_of`.

    ``kind`` is the class of the problem between two chains, and ``options`` are its own arguments that were given.
    """

    kind: type[Any] = Discounted
    options: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, X: Any, Y: Any, cost: Any, discount: float) -> Any:
        """Validate the arguments and create the problem."""
        if isinstance(X, MDP) or isinstance(Y, MDP):
            if self.kind not in (Discounted, Game):
                raise InvalidArgument(
                    "MDPs can only be compared with criterion='discounted' and without a horizon; otherwise compare "
                    "the chains of two policies, mdp.induced_chain(policy)"
                )
            return Game.make(X, Y, cost, discount, **self.options)
        if self.kind is Game:
            raise InvalidArgument(f"actions is for {MEANT_FOR['actions']}")
        if isinstance(X, TimedChain) or isinstance(Y, TimedChain):
            if self.kind not in (Discounted, FiniteHorizon):
                raise InvalidArgument(
                    f"criterion={self.kind.criterion!r} has an infinite horizon, but a TimedChain is finite; omit "
                    "criterion"
                )
            return FiniteHorizon.make(X, Y, cost, discount, **self.options)
        if self.kind.has_discount or self.kind is FiniteHorizon:
            return self.kind.make(X, Y, cost, discount, **self.options)
        return self.kind.make(X, Y, cost, **self.options)

    @property
    def is_default(self) -> bool:
        """Whether this is the discounted problem with an infinite horizon."""
        return self.kind is Discounted

    @property
    def uses_discount(self) -> bool:
        """Whether the argument ``discount`` has an effect."""
        return bool(self.kind.has_discount) or (self.kind is FiniteHorizon and "weights" not in self.options)

    def facts(self) -> dict[str, Any]:
        """Return the non-default settings, for checkpoints."""
        return {} if self.is_default else {"criterion": self.kind.criterion, **self.options}


def criterion_of(
    criterion: str = "discounted", horizon: Any = None, weights: Any = None, terminal: Any = None, actions: Any = None
) -> Criterion:
    """Check that the arguments of :func:`diffbisim.distance` that say which problem to solve fit together."""
    if not isinstance(criterion, str) or criterion not in CRITERIA:
        raise InvalidArgument(f"criterion {criterion!r} is unknown; choose one of {', '.join(CRITERIA)}")
    kind: type[Any] = CRITERIA[criterion]
    given = {"horizon": horizon, "weights": weights, "terminal": terminal, "actions": actions}
    options = {name: value for name, value in given.items() if value is not None}
    if horizon is not None or weights is not None:
        if kind is not Discounted:
            raise InvalidArgument(
                f"criterion={criterion!r} has an infinite horizon; omit it, or omit horizon and weights"
            )
        if actions is not None:
            raise InvalidArgument(
                "actions is for two MDPs, which can only be compared without a horizon; omit one of them"
            )
        kind = FiniteHorizon
    elif actions is not None and kind is Discounted:
        kind = Game
    for name in options:
        if name not in kind.options:
            raise InvalidArgument(f"{name} is for {MEANT_FOR[name]}")
    return Criterion(kind, options)
