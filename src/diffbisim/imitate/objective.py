"""What imitation minimizes: the distance between the expert and the chain that the learner's policy makes.

    d(X, Y_π),        P_π(s'|s) = Σ_a π(a|s) P(s'|s,a)

Every solve starts from the last solution. By default it is three digits more exact than the distance itself, so that
steps near the minimum are not led by its error; another solver does as it says, and the policy that comes out is
certified by the exact one. With the distance come the implicit reward r(s,s') = Σ_x λ_Y(x|s) α_Y(x,s,s') and the
advantage of every action, A(s,a) = Σ_s' P(s'|s,a) r(s,s').
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.distance import make_solver
from diffbisim.imitate.learner import Evaluation, Learner
from diffbisim.mdp import MDP
from diffbisim.planning import action_values
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers import Exact


@dataclass(frozen=True, eq=False)
class Task:
    """Who is imitated, in what, and how far apart their states are."""

    expert: MarkovChain
    mdp: MDP
    cost: Floats  # (expert states, MDP states)
    discount: float


class BestPolicy(NamedTuple):
    """The closest policy so far."""

    result: DistanceResult
    policy: Floats  # (n, n_actions)
    snapshot: Any  # of the learner


class PolicyObjective:
    """The distance as a function of the learner's policy; ``solver`` None is the exact one with its default here."""

    at_limit = Status.ITERATIONS

    def __init__(self, task: Task, learner: Learner, solver: Any = None) -> None:
        self.task, self.learner = task, learner
        self.solver = None if solver is None else make_solver(solver)
        self.last: DistanceResult | None = None
        self._best: BestPolicy | None = None

    @property
    def closest(self) -> BestPolicy:
        """Once something was evaluated."""
        assert self._best is not None
        return self._best

    def evaluate(self, level: float = 0.0) -> Evaluation:
        """Distance, reward and advantage of the current policy."""
        pi, mdp = self.learner.table(), self.task.mdp
        problem = Problem(self.task.expert, mdp._chain(pi), self.task.cost, self.task.discount)
        result: DistanceResult = self._solver(problem.scale or 1.0).solve(problem, warm=self.last)
        self.last = result
        if self._best is None or result.value < self._best.result.value:
            self._best = BestPolicy(result, pi, self.learner.snapshot())
        reward = result.implicit_reward()
        A = action_values(mdp, reward)
        A -= (pi * A).sum(axis=1, keepdims=True)  # zero up to rounding already
        return Evaluation(pi, result, reward, A, result.occupancy.sum(axis=0))

    def _solver(self, scale: float) -> Any:
        """Three digits beyond the last distance, unless a solver was given."""
        if self.solver is not None:
            return self.solver
        value = scale if self.last is None else self.last.value
        return Exact(tol=min(max(1e-4 * value / scale, 1e-12), 1e-7))

    def account(self, at: Evaluation) -> dict[str, float]:
        return {}

    def best(self) -> Any:
        return None if self._best is None else self._best.snapshot

    def certify(self) -> DistanceResult:
        """The closest policy into the learner, and its exact distance."""
        self.learner.restore(self.closest.snapshot)
        best = self.closest.result
        return best if self.solver is None else Exact().solve(best.problem)

    def state(self) -> dict[str, Any]:
        result, policy, snapshot = self.closest
        return {
            "last": self.last, "best": None if result is self.last else result, "policy": policy, "snapshot": snapshot
        }  # fmt: skip

    def resume(self, state: Mapping[str, Any]) -> None:
        self.last = state["last"]
        result: Any = self.last if state["best"] is None else state["best"]
        self._best = BestPolicy(result, state["policy"], state["snapshot"])
