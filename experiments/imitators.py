"""The methods that the imitation experiments compare, by name.

All get the same dynamics (known, or estimated from offline data), expert transitions and discount. Those that use a
cost between states (D-BOT, optimal transport of states, PW-DICE) get the same cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.common.errors import InvalidData, MissingExtra, quietly
from diffbisim.learning.imitate import baselines
from diffbisim.learning.imitate.imitation import Request
from diffbisim.learning.imitate.learner import PolicyEvaluation
from diffbisim.learning.imitate.objective import PolicyObjective
from diffbisim.learning.imitate.updates import make_update
from diffbisim.processes.chain import Transitions
from diffbisim.processes.mdp import MDP
from diffbisim.processes.stochastic import as_generator

OURS = "D-BOT"

METHODS: dict[str, Callable[..., baselines.BaselineResult]] = {
    "maximum likelihood": baselines.maximum_likelihood,
    "BCO": baselines.behavioral_cloning,
    "state matching (OT)": baselines.state_matching,
    "PW-DICE": baselines.pw_dice,
    "SMODICE": baselines.smodice,
    "LobsDICE": baselines.lobs_dice,
    "IOSTOM-style": baselines.iostom_style,
}

#: Relative and absolute differences of scores that count as equal.
LEVEL, NOTHING = 0.01, 1e-6

BY_COST = ("state matching (OT)", "PW-DICE")


@dataclass(frozen=True, eq=False)
class Trace:
    """A run of D-BOT, with its policies after every outer iteration."""

    policy: Floats  # the best policy
    best: tuple[Floats, ...]  # best policy so far, per outer iteration
    current: tuple[Floats, ...]  # policy that was evaluated
    value: tuple[float, ...]  # its distance to the given expert


def trace(
    mdp: MDP,
    expert: Any,
    discount: float,
    *,
    cost: Any = "indicator",
    update: Any = "natural",
    policy: Any = None,
    iterations: int = 100,
    tol: float = 1e-4,
) -> Trace:
    """Run `diffbisim.imitate` in a known MDP and record its policies."""
    if isinstance(expert, tuple):
        expert = Transitions.from_pairs(*expert, states=mdp.n_states)
    asked = Request(expert, cost, discount, make_update(update), tol, rng=as_generator(0), policy=policy)
    run = asked.run(asked.task(mdp), asked.learner(mdp), _Watched)
    run.until_done(iterations)
    values, watched = tuple(row["value"] for row in run.history), run.objective
    assert isinstance(watched, _Watched)
    return Trace(watched.closest.policy, tuple(watched.kept), tuple(watched.seen), values)


class _Watched(PolicyObjective):
    """Record the policies."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.kept: list[Floats] = []
        self.seen: list[Floats] = []

    def evaluate(self, level: float = 0.0) -> PolicyEvaluation:
        at = super().evaluate(level)
        self.kept.append(self.closest.policy)
        self.seen.append(at.policy)
        return at


def policies(
    offline: Any, expert: Any, discount: float, *, cost: Any = "indicator", ours: bool = True
) -> dict[str, Floats]:
    """Return the policy of every method whose extra is installed."""
    mdp = offline if isinstance(offline, MDP) else offline.mdp
    found = {OURS: trace(mdp, expert, discount, cost=cost).policy} if ours else {}
    for name in METHODS:
        try:
            found[name] = baseline(name, offline, expert, discount, cost=cost)
        except MissingExtra:
            continue
    return found


def baseline(name: str, offline: Any, expert: Any, discount: float, *, cost: Any = "indicator") -> Floats:
    """Return the policy of one of METHODS, without warnings about convergence or impossible transitions."""
    more = {"cost": cost} if name in BY_COST else {}
    with quietly():
        return METHODS[name](offline, expert, discount, **more).policy


def refusals(offline: Any, expert: Any, discount: float) -> tuple[str, ...]:
    """Return the methods that do not support this expert."""
    names = []
    for name, method in METHODS.items():
        try:
            method(offline, expert, discount)
        except InvalidData:
            names.append(name)
        except MissingExtra:
            continue
    return tuple(names)


def standing(ours: Floats, others: Mapping[str, Floats]) -> tuple[list[str], list[str]]:
    """Return the methods ahead of ours and those level with it, by scores ``(seeds,)`` on the same data (less is best).

    Methods are level if their medians differ by at most the fraction LEVEL, or if a 95% t interval of the differences
    over the seeds contains zero (with one seed only the fraction is used).
    """
    ahead, level = [], []
    for name, scores in others.items():
        apart = np.asarray(scores) - ours
        gap, size = abs(float(np.median(scores)) - float(np.median(ours))), max(np.median(scores), np.median(ours))
        if gap <= max(LEVEL * size, NOTHING) or abs(apart.mean()) <= _chance(apart):
            level.append(name)
        elif np.median(scores) < np.median(ours):
            ahead.append(name)
    return ahead, level


def _chance(apart: Floats) -> float:
    """Return half the width of a t interval for the mean."""
    from scipy.special import stdtrit

    n = apart.size
    return float(stdtrit(n - 1, 0.975) * apart.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0


def ahead_and_level(ours: Floats, others: Mapping[str, Floats], name: str = OURS) -> str:
    """Describe the methods ahead and level in a sentence."""
    ahead, level = standing(ours, others)
    return f"ahead of {name}: {', '.join(ahead) or 'none'}" + (f"; level with it: {', '.join(level)}" if level else "")


#: A note on the comparisons.
FAIRNESS = (
    f"{OURS} minimizes this distance, the other methods do not; level: medians within {LEVEL:.0%}, or no significant "
    "difference over the seeds (95% t interval)"
)


def left_out(names: Any) -> list[str]:
    """Return a sentence about the methods that did not run, if any."""
    missing = [name for name in METHODS if name not in names]
    return [f'not run: {", ".join(missing)}; pip install "diffbisim[baselines]"'] if missing else []
