"""How the policy moves, given the implicit reward of the current one.

====================  ====================================================================================
``"natural"``         to the level by the last few cuts, in the natural geometry (bundle.py); the default
``"gradient"``        Polyak's step along the plain gradient of the logits
``"sampled"``         policy gradient from sampled transitions, r(s,s') as the advantage: no model needed
``"best-response"``   the paper's literal Algorithm 3: reinforcement learning to convergence under r
====================  ====================================================================================

The level is zero with ``attainable=True``, and otherwise learned on the way (steps.py). A best response is
deterministic, so against a stochastic expert the last cycles; ``BestResponse(printed_sign=True)`` maximizes -r, the
reward as printed in the paper, which drives the policy away from the expert.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from diffbisim.errors import InvalidArgument
from diffbisim.imitate.bundle import Bundle
from diffbisim.imitate.learner import Evaluation, Learner, TabularLearner
from diffbisim.mdp import MDP
from diffbisim.planning import optimal_policy
from diffbisim.steps import PolyakLevel
from diffbisim.stochastic import Successors


@dataclass
class Walk:
    """The state of a run, as far as updates need it."""

    learner: Learner
    mdp: MDP
    discount: float
    rng: np.random.Generator
    rule: PolyakLevel
    bundle: Bundle = field(default_factory=Bundle)
    best: Any = None  # snapshot of the best policy
    iteration: int = 0


class Update(Protocol):
    """One outer step: moves ``walk.learner`` and returns the largest change of a parameter."""

    def step(self, walk: Walk, at: Evaluation) -> float: ...


@dataclass(frozen=True, slots=True)
class Natural:
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
        bundle.add(cut, self.memory)
        step = bundle.step(walk.rule.level, lambda g: learner.pull(g, at), spread)
        if self.natural and isinstance(learner, TabularLearner):  # states never visited follow their own advantage
            step = np.where(at.occupancy[:, None] > 0, step, length * at.advantage)
        return learner.move(step, self.cap)


@dataclass(frozen=True, slots=True)
class Sampled:
    """REINFORCE without a critic: ``samples`` transitions of the learner, r(s,s') as the advantage of its action.

    The logits of a state move along the mean of r (1{a} - π(·|s)) over its samples, by Polyak's length for the
    sampled slope, decaying with the square root of the iterations.
    """

    samples: int = 2_000
    cap: float = 1.0

    def step(self, walk: Walk, at: Evaluation) -> float:
        if not isinstance(walk.learner, TabularLearner):
            raise InvalidArgument('update "sampled" moves tables; use "natural" with a module')
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
class BestResponse:
    """The paper's Algorithm 3 to the letter: the optimal policy for the frozen reward, found exactly.

    ``printed_sign`` maximizes -r, the reward as the paper prints it.
    """

    printed_sign: bool = False

    def step(self, walk: Walk, at: Evaluation) -> float:
        if not isinstance(walk.learner, TabularLearner):
            raise InvalidArgument('update "best-response" returns a table; use "natural" with a module')
        walk.rule.length(at.result.value, 0.0)
        rewards = -at.advantage if self.printed_sign else at.advantage  # of an action: Σ_s' P(s'|s,a) r(s,s')
        walk.learner = TabularLearner(walk.mdp._policy(optimal_policy(walk.mdp, walk.discount, rewards)))
        return float(np.abs(walk.learner.table() - at.policy).max())


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
    if not hasattr(update, "step"):
        raise InvalidArgument(f"update is a {type(update).__name__}; give a name such as 'natural'")
    return update  # type: ignore[no-any-return]
