"""One run of imitation in a known MDP: solve, reward, move, and keep the best.

The loop of the paper's Algorithm 3 (ilfo.py has the equations). Every solve starts from the last solution, and is three
digits more exact than the distance itself, so that steps near the minimum are not led by its error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.distance import make_solver
from diffbisim.imitate.bundle import Cut
from diffbisim.imitate.learner import Evaluation, Learner, TabularLearner
from diffbisim.imitate.result import Ending, ImitationResult
from diffbisim.imitate.updates import Natural, Update, Walk
from diffbisim.mdp import MDP
from diffbisim.planning import action_values
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers import Exact
from diffbisim.steps import PolyakLevel

Callback = Callable[[Mapping[str, float]], object]

#: A run has settled when the level is this close to the best distance, relative to it.
SETTLED = 1e-4

#: Iterations without progress after which the level moves up.
PATIENCE = 16

#: Before a run that has settled above zero gives up, it begins again at its best policy, with this share of random
#: actions (a policy that is too sure of a wrong action hardly moves), ...
SHARES = (0.0, 0.05, 0.2)

#: ... with at least so many cuts (as many as kinks meet there; few are faster where they suffice), ...
CUTS = 20

#: ... and so many iterations each to come closer by a tenth.
TRIAL = 64


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same from run to run: the expert, the cost, and how to go about it."""

    expert: MarkovChain
    cost: Floats  # (expert states, MDP states)
    discount: float
    update: Update
    tol: float
    solver: Any
    attainable: bool | None
    rng: np.random.Generator


class Run:
    """One run: the loop, the last solution to start the next from, and the best policy so far."""

    def __init__(self, task: Task, mdp: MDP, learner: Learner) -> None:
        rule = PolyakLevel(attainable=task.attainable, patience=PATIENCE)
        self.task, self.walk = task, Walk(learner, mdp, task.discount, task.rng, rule)
        self.exact, self.solver = task.solver == "exact", make_solver(task.solver)
        self.scale = float(task.cost.max()) or 1.0
        self.goal = task.tol * self.scale
        self.last: DistanceResult | None = None
        self.best: DistanceResult | None = None
        self.policy: Floats | None = None
        self.start: Any = None  # snapshot of the learner at the best policy
        self.history: list[dict[str, float]] = []
        self.trial, self.since, self.mark = 0, 0, float("inf")  # next share to try, when it began, and from where
        self.ending: Ending | None = None  # once it has ended by itself

    def until_done(
        self, max_iterations: int, report: Callback, keep: Callable[[], object] = lambda: None, every: int = 1
    ) -> Ending:
        """Iterate to an end; ``keep()`` is called every so many iterations, when all of the state is consistent."""
        while self.ending is None:
            if self.history and len(self.history) >= max_iterations:
                return Ending.ITERATIONS if self._gaining else Ending.SETTLED
            self.advance()
            if self.ending is not Ending.REACHED and report(self.history[-1]) and self.ending is None:
                return Ending.INTERRUPTED
            if len(self.history) % every == 0:
                keep()
        return self.ending

    def advance(self) -> None:
        """One iteration: evaluate, move, and see whether anything is left to gain."""
        at = self.evaluate()
        if at.result.upper <= self.goal:
            self._record(at.result, 0.0)
            self.ending = Ending.REACHED
            return
        step = self._update().step(self.walk, at)
        self.walk.iteration += 1
        self._record(at.result, step)
        if isinstance(self.task.update, Natural) and self._settled() and not self._try_again():
            self.ending = Ending.SETTLED

    def _update(self) -> Update:
        update = self.task.update
        if self.trial == 0 or not isinstance(update, Natural):
            return update
        return replace(update, memory=max(update.memory, CUTS))

    def _settled(self) -> bool:
        """Whether the level has come up to the best distance, or a trial has led to nothing."""
        rule = self.walk.rule
        failed = not self._gaining and len(self.history) >= self.since + TRIAL
        return failed or rule.delta <= max(0.1 * self.goal, SETTLED * rule.best)

    @property
    def _gaining(self) -> bool:
        """Whether the present trial has come closer; the first run counts as one that has."""
        assert self.best is not None
        return self.trial == 0 or self.best.value <= 0.9 * self.mark

    def _try_again(self) -> bool:
        """Begin again at the best policy; False if that has been tried in every way, or cannot help."""
        if self.task.attainable is False or not (isinstance(self.task.update, Natural) and self.task.update.natural):
            return False
        assert self.best is not None
        self.trial = 0 if self._gaining else self.trial
        shares = SHARES if isinstance(self.walk.learner, TabularLearner) else SHARES[:1]
        if self.trial == len(shares):
            return False
        share, walk = shares[self.trial], self.walk
        walk.learner.restore(self.start)
        if share > 0.0:
            uniform = 1.0 / self.best_policy().shape[1]
            walk.learner.restore(TabularLearner((1.0 - share) * self.best_policy() + share * uniform).logits)
        walk.bundle.cuts.clear()
        walk.rule = PolyakLevel(attainable=self.task.attainable, patience=PATIENCE)
        self.trial, self.since, self.mark = self.trial + 1, len(self.history), self.best.value
        return True

    def evaluate(self) -> Evaluation:
        """Distance, reward and advantage of the current policy; remembers the best."""
        pi = self.walk.learner.table()
        result = self._solve(pi)
        if result.value < self.walk.rule.best:
            self.walk.best = self.walk.learner.snapshot()
        if self.best is None or result.value < self.best.value:
            self.best, self.policy, self.start = result, pi, self.walk.learner.snapshot()
        reward = result.implicit_reward()
        A = action_values(self.walk.mdp, reward)
        A -= (pi * A).sum(axis=1, keepdims=True)  # zero up to rounding already
        return Evaluation(pi, result, reward, A, result.occupancy.sum(axis=0))

    def _solve(self, pi: Floats) -> DistanceResult:
        problem = Problem(self.task.expert, self.walk.mdp._chain(pi), self.task.cost, self.task.discount)
        solver = self.solver
        if self.exact:  # three digits beyond the distance itself
            value = self.scale if self.last is None else self.last.value
            solver = replace(solver, tol=min(max(1e-4 * value / self.scale, 1e-12), 1e-7))
        self.last = solver.solve(problem, warm=self.last)
        return self.last

    def _record(self, result: DistanceResult, step: float) -> None:
        row = {"value": result.value, "lower": result.lower, "upper": result.upper}
        self.history.append({**row, "level": self.walk.rule.level, "step": step})

    def state(self) -> dict[str, Any]:
        """Everything that changes from one iteration to the next, as a checkpoint can hold it."""
        walk = self.walk
        return {
            "learner": walk.learner.state(), "start": self.start, "from": walk.best, "rule": walk.rule.state(),
            "iteration": walk.iteration, "trial": [self.trial, self.since, self.mark],
            "cuts": [[cut.value, cut.point, cut.gradient, cut.weights] for cut in walk.bundle.cuts],
            "last": self.last, "best": None if self.best is self.last else self.best, "policy": self.policy,
            "history": self.history, "ending": self.ending and self.ending.name,
        }  # fmt: skip

    def resume(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        walk = self.walk
        walk.learner.resume(state["learner"])
        walk.best, walk.iteration, walk.rule = state["from"], state["iteration"], PolyakLevel.from_state(state["rule"])
        self.start, (self.trial, self.since, self.mark) = state["start"], state["trial"]
        walk.bundle.cuts = [Cut(*parts) for parts in state["cuts"]]
        self.last, self.policy, self.history = state["last"], state["policy"], state["history"]
        self.best = self.last if state["best"] is None else state["best"]
        self.ending = None if state["ending"] is None else Ending[state["ending"]]

    def best_policy(self) -> Floats:
        """The policy with the smallest distance so far."""
        assert self.policy is not None
        return self.policy

    def finish(self, outcome: Ending) -> ImitationResult:
        """The best policy with its certified distance."""
        assert self.best is not None
        self.walk.learner.restore(self.start)
        distance = self.best if self.exact else Exact().solve(self.best.problem)
        return ImitationResult(self.best_policy(), distance, tuple(self.history), self.walk.mdp, outcome)
