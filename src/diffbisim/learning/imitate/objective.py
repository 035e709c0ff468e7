"""The objective of imitation: the distance between the expert and the chain of the learner's policy.

    d(X, Y_π),        P_π(s'|s) = Σ_a π(a|s) P(s'|s,a)

Every solve starts from the last solution. By default its gap is three digits below the distance, so that its error does
not mislead steps near the minimum; a given solver uses its own tolerance, and the final policy is certified with the
exact solver. A solver that samples (SOMCOT) only provides the reward: every policy is judged by its exact distance, and
so are the rows of the history, because the least of many estimates is the one with the luckiest noise.

Intermediate distances of large problems are computed only for reachable pairs, to four digits of the distance or 1e-5
of the largest cost, whichever is smaller; the final one covers all pairs. Each solution also gives the implicit reward
r(s,s') (result.py) and the advantage of every action, A(s,a) = Σ_s' P(s'|s,a) r(s,s'). With ρ the expected visits to
the learner's states, the derivative is

    ∂d/∂π(a|s) = -ρ(s) A(s,a),

for the average, the total and finite horizons as well as for the discounted distance. Policies are positive
(learner.py), so all of them have the same possible transitions: closed classes, and which totals are finite, do not
depend on the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from diffbisim.common.arrays import lazy
from diffbisim.common.checks import Floats
from diffbisim.distances.chains import make_solver, solve
from diffbisim.learning.imitate.learner import Learner, PolicyEvaluation, TabularLearner
from diffbisim.learning.imitate.result import reward_and_visits
from diffbisim.learning.imitate.simple import simple_policies
from diffbisim.problems import Criterion, Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import action_values
from diffbisim.results.base import DistanceResult, Status
from diffbisim.solvers import Exact

DISCOUNTED = Criterion()

#: Problems with more pairs than this are solved only for reachable pairs, and with a larger gap.
MAX_PAIRS_FOR_FULL_TABLE = 20_000

#: Certified gap of intermediate distances, relative to the distance.
RELATIVE_GAP = 1e-4

#: Its lower limit, and its upper limits for small and large problems, relative to the largest cost.
LEAST_GAP, SMALL_GAP, LARGE_GAP = 1e-12, 1e-7, 1e-5


@dataclass(frozen=True, eq=False)
class ImitationTask:
    """The expert, the MDP, and the cost between their states."""

    expert: MarkovChain
    mdp: MDP
    cost: Floats  # (expert states, MDP states)
    discount: float
    criterion: Criterion = DISCOUNTED

    def problem(self, policy: Floats) -> Any:
        """Return the distance problem for the chain of a policy (n, n_actions)."""
        y = self.mdp._chain(policy)
        if self.criterion.is_default:
            return Discounted(self.expert, y, self.cost, self.discount)
        return self.criterion.problem(self.expert, y, self.cost, self.discount)


class BestPolicy(NamedTuple):
    """The closest policy so far."""

    result: DistanceResult
    policy: Floats  # (n, n_actions)
    snapshot: Any  # of the learner


class PolicyObjective:
    """The distance as a function of the learner's policy; `solver` None means exact, with an adaptive tolerance."""

    at_limit = Status.POLICIES

    def __init__(self, task: ImitationTask, learner: Learner, solver: Any = None) -> None:
        self.task, self.learner = task, learner
        self.solver = None if solver is None else make_solver(solver)
        self.last: DistanceResult | None = None
        self.judged: DistanceResult | None = None  # the last exact distance, if the solver samples
        self._best: BestPolicy | None = None

    @property
    def closest(self) -> BestPolicy:
        """The closest policy, once something has been evaluated."""
        assert self._best is not None
        return self._best

    def evaluate(self, level: float = 0.0) -> PolicyEvaluation:
        """Return distance, reward and advantage of the current policy."""
        pi, mdp = self.learner.table(), self.task.mdp
        problem = self.task.problem(pi)
        found: DistanceResult = solve(problem, self._solver(problem), self.last)
        self.last, result = found, found
        if self._samples:
            result = self.judged = self._exact(problem, self.judged, False).solve(problem, warm=self.judged)
        if self._best is None or self._value(result) < self._value(self._best.result):
            self._best = BestPolicy(result, pi, self.learner.snapshot())
        reward, visits = reward_and_visits(found, everywhere=not self._is_large(problem))
        A = action_values(mdp, reward)
        A -= (pi * A).sum(axis=1, keepdims=True)  # removes rounding error; the mean is zero in exact arithmetic
        return PolicyEvaluation(pi, result, reward, A, visits)

    @property
    def _samples(self) -> bool:
        """Whether distances are estimates, without bounds that could tell which policy is closest."""
        return self.solver is not None and bool(self.solver.samples)

    def _value(self, result: DistanceResult) -> float:
        """Return what policies are judged by; with a given solver an upper bound, because its gap may be wide."""
        return result.value if self.solver is None or self._samples else result.upper

    def _solver(self, problem: Any) -> Any:
        """Return the given solver, or the exact one with a gap three digits below the last distance."""
        return self.solver or self._exact(problem, self.last, self._is_large(problem))

    def _is_large(self, problem: Any) -> bool:
        return self.solver is None and self.task.criterion.is_default and problem.cost.size > MAX_PAIRS_FOR_FULL_TABLE

    def _exact(self, problem: Any, near: DistanceResult | None, rough: bool) -> Exact:
        scale = problem.scale or 1.0
        gap = RELATIVE_GAP * (scale if near is None else near.value) / scale
        return Exact(tol=min(max(gap, LEAST_GAP), LARGE_GAP if rough else SMALL_GAP), reachable=rough)

    def account(self, at: PolicyEvaluation) -> dict[str, float]:
        return {}

    def best(self) -> Any:
        return None if self._best is None else self._best.snapshot

    @lazy
    def simple(self) -> BestPolicy | None:
        """The closest of the simple policies (simple.py) by its exact distance; None if the policy is not a table."""
        if not self.learner.is_table:
            return None
        found = []
        for policy in simple_policies(self.task.expert, self.task.mdp):
            learner = TabularLearner(policy)
            problem = self.task.problem(learner.table())
            result = self._exact(problem, None, self._is_large(problem)).solve(problem)
            found.append(BestPolicy(result, learner.table(), learner.snapshot()))
        return min(found, key=lambda one: one.result.value)

    def take_simple(self) -> bool:
        """Keep the closest of the simple policies if it is closer than the best so far; return whether it is."""
        if self.simple is None or self.simple.result.upper >= self._value(self.closest.result):
            return False
        self._best = self.simple
        return True

    def certify(self) -> DistanceResult:
        """Set the learner to the closest policy and return its exact distance."""
        self.learner.restore(self.closest.snapshot)
        best = self.closest.result
        if self._is_large(best.problem):
            return self._exact(best.problem, best, rough=False).solve(best.problem, warm=best)
        return best if self.solver is None or self._samples else Exact().solve(best.problem)

    def state(self) -> dict[str, Any]:
        result, policy, snapshot = self.closest
        return {
            "last": self.last, "judged": self.judged, "best": None if result is self.last else result,
            "policy": policy, "snapshot": snapshot,
        }  # fmt: skip

    def resume(self, state: Mapping[str, Any]) -> None:
        self.last, self.judged = state["last"], state["judged"]
        result: Any = self.last if state["best"] is None else state["best"]
        self._best = BestPolicy(result, state["policy"], state["snapshot"])
