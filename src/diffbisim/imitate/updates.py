"""How the policy moves, given the implicit reward of the current one.

====================  ====================================================================================
``"natural"``         to the level by the last few cuts, in the natural geometry (steps.py); the default
``"gradient"``        Polyak's step along the plain gradient of the logits
``"sampled"``         policy gradient from sampled transitions, r(s,s') as the advantage: no model needed
``"best-response"``   the paper's literal Algorithm 3: reinforcement learning to convergence under r
====================  ====================================================================================

The level is zero with ``attainable=True``, and otherwise learned on the way (steps.py). A best response is
deterministic, so against a stochastic expert the last cycles; ``BestResponse(printed_sign=True)`` maximizes -r, the
reward as printed in the paper, which drives the policy away from the expert.

A natural run that has settled above zero begins again at its best policy, with more cuts and with a share of random
actions, and gives up when none of that comes closer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from diffbisim.errors import InvalidArgument
from diffbisim.imitate.learner import Evaluation, Learner, TabularLearner
from diffbisim.imitate.objective import PolicyObjective
from diffbisim.mdp import MDP
from diffbisim.optimize.checkpoint import Resumable
from diffbisim.optimize.steps import Bundle, PolyakLevel
from diffbisim.planning import optimal_policy
from diffbisim.stochastic import Successors

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


class Update(ABC):
    """One way to move the policy, given its distance and reward."""

    __slots__ = ()

    @abstractmethod
    def step(self, walk: Walk, at: Evaluation) -> float:
        """Move ``walk.learner``; returns the largest change of a parameter."""

    def settled(self, walk: Walk, goal: float) -> bool:
        """Whether nothing is left to gain, for a run that would be content with the distance ``goal``."""
        return False


@dataclass
class Walk(Resumable):
    """A policy on its way, as its update and the loop around it (optimize/loop.py) know it."""

    update: Update
    objective: PolicyObjective
    rng: np.random.Generator
    rule: PolyakLevel
    bundle: Bundle = field(default_factory=Bundle)
    best: Any = None  # snapshot of the best policy since the rule began
    iteration: int = 0
    trial: int = 0  # of those after it had settled, ...
    since: int = 0  # ... the iteration in which the last began, ...
    mark: float = float("inf")  # ... and the distance from which

    column: ClassVar[str] = "step"
    changing: ClassVar[tuple[str, ...]] = ("rule", "bundle", "best", "iteration", "trial", "since", "mark")

    @classmethod
    def begin(
        cls, update: Update, objective: PolicyObjective, rng: np.random.Generator, attainable: bool | None
    ) -> Walk:
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

    def step(self, at: Evaluation) -> float:
        if at.result.value < self.rule.best:
            self.best = self.learner.snapshot()
        moved = self.update.step(self, at)
        self.iteration += 1
        return moved

    def settled(self, goal: float) -> bool:
        return self.update.settled(self, goal)

    @property
    def retrying(self) -> bool:
        """Whether the present trial has not come closer; the first run counts as one that has."""
        return self.trial > 0 and self.objective.closest.result.value > 0.9 * self.mark

    def try_again(self) -> bool:
        """Begin again at the best policy; False if that has been tried in every way, or cannot help."""
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

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rng": self.rng}

    def resume(self, state: Mapping[str, Any]) -> None:
        super().resume(state)
        self.rng.bit_generator.state = state["rng"].bit_generator.state


@dataclass(frozen=True, slots=True)
class Natural(Update):
    """Exact gradient in the natural geometry, by the last ``memory`` cuts; no logit moves by more than ``cap``."""

    memory: int = 5
    cap: float = 4.0
    natural: bool = True

    def step(self, walk: Walk, at: Evaluation) -> float:
        learner, bundle, before = walk.learner, walk.bundle, walk.rule.delta
        cut = learner.cut(at, self.natural)
        spread = learner.spread(at, self.natural)
        pulled = learner.pull(cut.gradient, at)
        weights = cut.weights * spread
        slope = float(np.sum(np.where(weights > 0, pulled**2 / np.where(weights > 0, weights, 1.0), 0.0)))
        length = walk.rule.length(at.result.value, slope)
        if walk.rule.delta < before and not walk.rule.improved and bundle.cuts:
            bundle.cuts.clear()  # the level was too far: begin again at the best policy, with a nearer one
            learner.restore(walk.best)
            return 0.0
        bundle.add(cut, self.memory if walk.trial == 0 else max(self.memory, CUTS))
        step = bundle.step(walk.rule.level, lambda g: learner.pull(g, at), spread)
        return learner.move(learner.with_unvisited(step, at, length) if self.natural else step, self.cap)

    def settled(self, walk: Walk, goal: float) -> bool:
        """Whether the level has come up to the best distance, or a trial has led to nothing, and none is left."""
        failed = walk.retrying and walk.iteration >= walk.since + TRIAL
        if not failed and walk.rule.delta > max(0.1 * goal, SETTLED * walk.rule.best):
            return False
        return not (self.natural and walk.try_again())


@dataclass(frozen=True, slots=True)
class Sampled(Update):
    """REINFORCE without a critic: ``samples`` transitions of the learner, r(s,s') as the advantage of its action.

    The logits of a state move along the mean of r (1{a} - π(·|s)) over its samples, by Polyak's length for the
    sampled slope, decaying with the square root of the iterations.
    """

    samples: int = 2_000
    cap: float = 1.0

    def step(self, walk: Walk, at: Evaluation) -> float:
        if not walk.learner.is_table:
            raise InvalidArgument('update "sampled" moves tables; use "natural" with a module')
        _only_discounted(walk, "sampled")
        n, k = at.policy.shape
        s, a, t = _transitions(walk, at, self.samples)
        score = np.zeros((n, k))
        np.add.at(score, (s, a), at.reward[s, t])
        visits = np.bincount(s, minlength=n)[:, None]
        score -= at.policy * score.sum(axis=1, keepdims=True)
        direction = score / np.maximum(visits, 1)
        slope = float(np.sum(score * direction)) / self.samples
        decay = 1.0 / np.sqrt(1.0 + 0.1 * walk.iteration)
        return walk.learner.move(decay * walk.rule.length(at.result.value, slope) * direction, self.cap)


@dataclass(frozen=True, slots=True)
class BestResponse(Update):
    """The paper's Algorithm 3 to the letter: the optimal policy for the frozen reward, found exactly.

    ``printed_sign`` maximizes -r, the reward as the paper prints it.
    """

    printed_sign: bool = False

    def step(self, walk: Walk, at: Evaluation) -> float:
        if not walk.learner.is_table:
            raise InvalidArgument('update "best-response" returns a table; use "natural" with a module')
        _only_discounted(walk, "best-response")
        walk.rule.length(at.result.value, 0.0)
        rewards = -at.advantage if self.printed_sign else at.advantage  # of an action: Σ_s' P(s'|s,a) r(s,s')
        best = walk.mdp._policy(optimal_policy(walk.mdp, walk.discount, rewards))
        walk.learner.restore(TabularLearner(best).logits)
        return float(np.abs(walk.learner.table() - at.policy).max())


def _only_discounted(walk: Walk, name: str) -> None:
    if not walk.objective.task.question.is_usual:
        raise InvalidArgument(
            f'update "{name}" is for the discounted distance; use "natural" or "gradient" with others'
        )


def _transitions(walk: Walk, at: Evaluation, count: int) -> tuple[Any, Any, Any]:
    """Independent draws of (s, a, s') with s from the discounted occupancy of the learner."""
    n = walk.mdp.n_states
    s = walk.rng.choice(n, size=count, p=at.occupancy / at.occupancy.sum())
    a = Successors.of(at.policy).draw(s, walk.rng.random(count))
    return s, a, walk.mdp._stacked.draw(a * n + s, walk.rng.random(count))


UPDATES: dict[str, Update] = {
    "natural": Natural(),
    "gradient": Natural(memory=1, natural=False),
    "sampled": Sampled(),
    "best-response": BestResponse(),
}


def make_update(update: Any) -> Update:
    """The object behind a name."""
    if isinstance(update, str):
        if update not in UPDATES:
            raise InvalidArgument(f"update {update!r} is not known; choose one of {', '.join(map(repr, UPDATES))}")
        return UPDATES[update]
    if not isinstance(update, Update):
        raise InvalidArgument(
            f"update is a {type(update).__name__}; give a name such as 'natural', or an Update of "
            "diffbisim.imitate.updates"
        )
    return update
