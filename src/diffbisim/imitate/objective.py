"""What imitation minimizes: the distance between the expert and the chain that the learner's policy makes.

    d(X, Y_π),        P_π(s'|s) = Σ_a π(a|s) P(s'|s,a)

Every solve starts from the last solution. By default it is three digits more exact than the distance itself, so that
steps near the minimum are not led by its error; another solver does as it says, and the policy that comes out is
certified by the exact one. Large problems are solved on the way for the pairs that occur, to four digits of the
distance or 1e-5 of the largest cost, whichever is less, and at the end once for all pairs. With the distance come the
implicit reward r(s,s') of the learner's transitions (result.py) and the advantage of every action,
A(s,a) = Σ_s' P(s'|s,a) r(s,s'); with ρ the visits to its states the derivative is

    ∂d/∂π(a|s) = -ρ(s) A(s,a),

for the average, the total and finite horizons as for the discounted distance. Policies are positive (learner.py), so
that all of them make the same transitions possible: closed classes, and which totals are finite, do not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.distance import make_solver, solve
from diffbisim.imitate.learner import Evaluation, Learner
from diffbisim.imitate.result import reward_and_visits
from diffbisim.mdp import MDP
from diffbisim.planning import action_values
from diffbisim.problem import Problem
from diffbisim.questions import Question
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers import Exact

DISCOUNTED = Question()

#: Problems of more pairs than this are solved for those that occur, and no more exactly than steps deserve.
LARGE = 20_000

#: Certified gap of the distances on the way, relative to the distance and to the largest cost: at least, and at most
#: for small and for large problems.
SHARE, LEAST, SMALL_GAP, LARGE_GAP = 1e-4, 1e-12, 1e-7, 1e-5


@dataclass(frozen=True, eq=False)
class Task:
    """Who is imitated, in what, and how far apart their states are."""

    expert: MarkovChain
    mdp: MDP
    cost: Floats  # (expert states, MDP states)
    discount: float
    question: Question = DISCOUNTED

    def problem(self, policy: Floats) -> Any:
        """The distance of the chain that a policy (n, n_actions) makes."""
        y = self.mdp._chain(policy)
        if self.question.is_usual:
            return Problem(self.expert, y, self.cost, self.discount)
        return self.question.problem(self.expert, y, self.cost, self.discount)


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
        problem = self.task.problem(pi)
        result: DistanceResult = solve(problem, self._solver(problem), self.last)
        self.last = result
        if self._best is None or result.value < self._best.result.value:
            self._best = BestPolicy(result, pi, self.learner.snapshot())
        reward, visits = reward_and_visits(result, everywhere=not self._is_large(problem))
        A = action_values(mdp, reward)
        A -= (pi * A).sum(axis=1, keepdims=True)  # zero up to rounding already
        return Evaluation(pi, result, reward, A, visits)

    def _solver(self, problem: Any) -> Any:
        """Three digits beyond the last distance, unless a solver was given."""
        return self.solver or self._exact(problem, self.last, self._is_large(problem))

    def _is_large(self, problem: Any) -> bool:
        return self.solver is None and self.task.question.is_usual and problem.cost.size > LARGE

    def _exact(self, problem: Any, near: DistanceResult | None, rough: bool) -> Exact:
        scale = problem.scale or 1.0
        share = SHARE * (scale if near is None else near.value) / scale
        return Exact(tol=min(max(share, LEAST), LARGE_GAP if rough else SMALL_GAP), reachable=rough)

    def account(self, at: Evaluation) -> dict[str, float]:
        return {}

    def best(self) -> Any:
        return None if self._best is None else self._best.snapshot

    def certify(self) -> DistanceResult:
        """The closest policy into the learner, and its exact distance."""
        self.learner.restore(self.closest.snapshot)
        best = self.closest.result
        if self._is_large(best.problem):
            return self._exact(best.problem, best, rough=False).solve(best.problem, warm=best)
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
