"""How the policy moves, given the implicit reward of the current one.

====================  ====================================================================================
``"natural"``         to the level by the last few cuts, in the natural geometry (steps.py); the default
``"gradient"``        Polyak's step along the plain gradient of the logits
``"sampled"``         policy gradient from sampled transitions with r(s,s') as the advantage, without a model
``"best-response"``   the paper's literal Algorithm 3: reinforcement learning to convergence under r
====================  ====================================================================================

The level is zero with ``attainable=True`` and is otherwise learned (steps.py). A best response is deterministic, so
against a stochastic expert "best-response" cycles. ``BestResponse(printed_sign=True)`` maximizes -r, the reward as
printed in the paper, which drives the policy away from the expert.

A natural run that has settled above zero restarts at its best policy, with more cuts and a fraction of random actions,
and ends if none of these restarts improves. If a simple policy is closer (simple.py), the run continues from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from diffbisim.common.checks import check_choice
from diffbisim.common.errors import InvalidArgument
from diffbisim.learning.imitate.learner import Learner, PolicyEvaluation, TabularLearner
from diffbisim.learning.imitate.objective import PolicyObjective
from diffbisim.learning.optimize.checkpoint import Resumable
from diffbisim.learning.optimize.steps import Bundle, PolyakLevel
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import optimal_policy
from diffbisim.processes.stochastic import Successors

#: A run has settled when the level is this close to the best distance, relative to it.
SETTLED = 1e-4

#: Number of iterations without progress after which the level is raised.
PATIENCE = 16

#: Fractions of random actions in successive restarts (a policy that is nearly sure of a wrong action hardly moves).
SHARES = (0.0, 0.05, 0.2)

#: Minimum number of cuts in restarts, where many kinks may meet; fewer cuts are faster if they suffice.
CUTS = 20

#: Number of iterations in which a restart must reduce the distance by a tenth.
TRIAL = 64


class PolicyUpdate(ABC):
    """A way to move the policy, given its distance and reward."""

    __slots__ = ()

    @abstractmethod
    def step(self, run: PolicyRun, at: PolicyEvaluation) -> float:
        """Move the learner and return the largest change of a parameter."""

    def settled(self, run: PolicyRun, goal: float) -> bool:
        """Return whether nothing is left to gain for a run that accepts the distance `goal`."""
        return False

    @property
    def compares(self) -> bool:
        """Whether the result is compared with simple policies (simple.py)."""
        return False


@dataclass
class PolicyRun(Resumable):
    """The state of an update during a run, as the loop of optimize/loop.py uses it."""

    update: PolicyUpdate
    objective: PolicyObjective
    rng: np.random.Generator
    rule: PolyakLevel
    bundle: Bundle = field(default_factory=Bundle)
    best: Any = None  # snapshot of the best policy of the current rule
    iteration: int = 0
    trial: int = 0  # number of restarts since the last improvement
    since: int = 0  # iteration of the last restart
    mark: float = float("inf")  # best distance at the last restart

    column: ClassVar[str] = "step"
    changing: ClassVar[tuple[str, ...]] = ("rule", "bundle", "best", "iteration", "trial", "since", "mark")

    @classmethod
    def begin(
        cls, update: PolicyUpdate, objective: PolicyObjective, rng: np.random.Generator, attainable: bool | None
    ) -> PolicyRun:
        """Start with a fresh step rule."""
        return cls(update, objective, rng, PolyakLevel(attainable=attainable, patience=PATIENCE))

    @property
    def learner(self) -> Learner:
        return self.objective.learner

    @property
    def mdp(self) -> MDP:
        return self.objective.task.mdp

    @property
    def discount(self) -> float:
        return self.objective.task.discount

    @property
    def level(self) -> float:
        return self.rule.level

    def step(self, at: PolicyEvaluation) -> float:
        if at.result.value < self.rule.best:
            self.best = self.learner.snapshot()
        moved = self.update.step(self, at)
        self.iteration += 1
        return moved

    def settled(self, goal: float) -> bool:
        return self.update.settled(self, goal)

    @property
    def retrying(self) -> bool:
        """Whether the current restart has not improved the distance by a tenth; False before the first restart."""
        return self.trial > 0 and self.objective.closest.result.value > 0.9 * self.mark

    def try_again(self) -> bool:
        """Restart at the best policy; return False if every kind of restart has been tried or cannot help."""
        attainable, (result, policy, snapshot) = self.rule.attainable, self.objective.closest
        if attainable is False:
            return False
        self.trial = self.trial if self.retrying else 0
        shares = SHARES if self.learner.is_table else SHARES[:1]
        if self.trial == len(shares):
            return False
        self.learner.restore(snapshot)
        if (share := shares[self.trial]) > 0.0:
            self.learner.restore(TabularLearner((1.0 - share) * policy + share * (1.0 / policy.shape[1])).logits)
        self.bundle.cuts.clear()
        self.rule = PolyakLevel(attainable=attainable, patience=PATIENCE)
        self.trial, self.since, self.mark = self.trial + 1, self.iteration, result.value
        return True

    def try_simple(self) -> bool:
        """Restart at the closest of the simple policies if it is closer than the best; return whether it is."""
        if not self.objective.take_simple():
            return False
        self.trial = 0
        return self.try_again()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rng": self.rng}

    def resume(self, state: Mapping[str, Any]) -> None:
        super().resume(state)
        self.rng.bit_generator.state = state["rng"].bit_generator.state


@dataclass(frozen=True, slots=True)
class Natural(PolicyUpdate):
    """The exact gradient in the natural geometry, with bundle steps.

    Parameters
    ----------
    memory : int, default=5
        Number of cuts.
    cap : float, default=4.0
        Largest change of a logit in one step.
    natural : bool, default=True
        Whether to use the natural geometry instead of the Euclidean one.
    """

    memory: int = 5
    cap: float = 4.0
    natural: bool = True

    def step(self, run: PolicyRun, at: PolicyEvaluation) -> float:
        learner, bundle, before = run.learner, run.bundle, run.rule.delta
        cut = learner.cut(at, self.natural)
        spread = learner.spread(at, self.natural)
        pulled = learner.pull(cut.gradient, at)
        weights = cut.weights * spread
        slope = float(np.sum(np.where(weights > 0, pulled**2 / np.where(weights > 0, weights, 1.0), 0.0)))
        length = run.rule.length(at.result.value, slope)
        if run.rule.delta < before and not run.rule.improved and bundle.cuts:
            bundle.cuts.clear()  # the level was too low: return to the best policy and aim at the raised level
            learner.restore(run.best)
            return 0.0
        bundle.add(cut, self.memory if run.trial == 0 else max(self.memory, CUTS))
        step = bundle.step(run.rule.level, lambda g: learner.pull(g, at), spread)
        return learner.move(learner.with_unvisited(step, at, length) if self.natural else step, self.cap)

    def settled(self, run: PolicyRun, goal: float) -> bool:
        """Return whether the level has reached the best distance, or a restart failed, and no restart is left."""
        failed = run.retrying and run.iteration >= run.since + TRIAL
        if not failed and run.rule.delta > max(0.1 * goal, SETTLED * run.rule.best):
            return False
        return not (self.natural and (run.try_again() or run.try_simple()))

    @property
    def compares(self) -> bool:
        return self.natural


@dataclass(frozen=True, slots=True)
class Sampled(PolicyUpdate):
    """REINFORCE without a critic, with r(s,s') as the advantage of the action taken.

    The logits of a state move along the mean of r (1{a} - π(·|s)) over its samples, by Polyak's length for the sampled
    slope, which decays with the square root of the iterations.

    Parameters
    ----------
    samples : int, default=2_000
        Number of transitions sampled per step.
    cap : float, default=1.0
        Largest change of a logit in one step.
    """

    samples: int = 2_000
    cap: float = 1.0

    def step(self, run: PolicyRun, at: PolicyEvaluation) -> float:
        if not run.learner.is_table:
            raise InvalidArgument('update "sampled" needs a table as policy; for a module use update="natural"')
        _only_discounted(run, "sampled")
        n, k = at.policy.shape
        s, a, t = _transitions(run, at, self.samples)
        score = np.zeros((n, k))
        np.add.at(score, (s, a), at.reward[s, t])
        visits = np.bincount(s, minlength=n)[:, None]
        score -= at.policy * score.sum(axis=1, keepdims=True)
        direction = score / np.maximum(visits, 1)
        slope = float(np.sum(score * direction)) / self.samples
        decay = 1.0 / np.sqrt(1.0 + 0.1 * run.iteration)
        return run.learner.move(decay * run.rule.length(at.result.value, slope) * direction, self.cap)


@dataclass(frozen=True, slots=True)
class BestResponse(PolicyUpdate):
    """The paper's literal Algorithm 3: the optimal policy for the current reward, computed exactly.

    Parameters
    ----------
    printed_sign : bool, default=False
        Maximize -r, the reward as printed in the paper.
    """

    printed_sign: bool = False

    def step(self, run: PolicyRun, at: PolicyEvaluation) -> float:
        if not run.learner.is_table:
            raise InvalidArgument('update "best-response" needs a table as policy; for a module use update="natural"')
        _only_discounted(run, "best-response")
        run.rule.length(at.result.value, 0.0)
        rewards = -at.advantage if self.printed_sign else at.advantage  # of an action: Σ_s' P(s'|s,a) r(s,s')
        best = run.mdp._policy(optimal_policy(run.mdp, run.discount, rewards))
        run.learner.restore(TabularLearner(best).logits)
        return float(np.abs(run.learner.table() - at.policy).max())


def _only_discounted(run: PolicyRun, name: str) -> None:
    """Raise unless the distance is the discounted one."""
    if not run.objective.task.criterion.is_default:
        raise InvalidArgument(
            f'update "{name}" supports only the discounted distance; use "natural" or "gradient" instead'
        )


def _transitions(run: PolicyRun, at: PolicyEvaluation, count: int) -> tuple[Any, Any, Any]:
    """Draw independent (s, a, s') with s from the learner's discounted occupancy."""
    n = run.mdp.n_states
    s = run.rng.choice(n, size=count, p=at.occupancy / at.occupancy.sum())
    a = Successors.of(at.policy).draw(s, run.rng.random(count))
    return s, a, run.mdp._stacked.draw(a * n + s, run.rng.random(count))


UPDATES: dict[str, PolicyUpdate] = {
    "natural": Natural(),
    "gradient": Natural(memory=1, natural=False),
    "sampled": Sampled(),
    "best-response": BestResponse(),
}


def make_update(update: Any) -> PolicyUpdate:
    """Return the update with this name, or the given object."""
    if isinstance(update, str):
        check_choice(update, "update", UPDATES)
        return UPDATES[update]
    if not isinstance(update, PolicyUpdate):
        raise InvalidArgument(
            f"update is a {type(update).__name__}; pass a name such as 'natural', or an Update of "
            "diffbisim.learning.imitate.updates"
        )
    return update
