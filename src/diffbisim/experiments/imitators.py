"""The methods that the imitation experiments compare, by the names of their rows.

All get the same: the dynamics (known, or estimated from offline data), the expert's transitions, the discount. Those
that compare states by a cost, D-BOT, optimal transport of states and PW-DICE, get the same cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.chain import Transitions
from diffbisim.checks import Floats
from diffbisim.errors import InvalidData, MissingExtra, quietly
from diffbisim.imitate import baselines
from diffbisim.imitate.imitation import Request
from diffbisim.imitate.learner import Evaluation
from diffbisim.imitate.objective import PolicyObjective
from diffbisim.imitate.updates import make_update
from diffbisim.mdp import MDP
from diffbisim.stochastic import as_generator

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

#: Relative difference of scores that counts as none, and absolute, where both are next to zero.
LEVEL, NOTHING = 0.01, 1e-6

BY_COST = ("state matching (OT)", "PW-DICE")


@dataclass(frozen=True, eq=False)
class Trace:
    """One run of D-BOT: what it held after every outer iteration."""

    policy: Floats  # the best one of all
    best: tuple[Floats, ...]  # the best one so far, per outer iteration
    current: tuple[Floats, ...]  # the one that was evaluated
    value: tuple[float, ...]  # its distance to the expert as it was given


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
    """`diffbisim.imitate` in a known MDP, with the policies on the way kept."""
    if isinstance(expert, tuple):
        expert = Transitions.from_pairs(*expert, states=mdp.n_states)
    asked = Request(expert, cost, discount, make_update(update), tol, rng=as_generator(0), policy=policy)
    run = asked.run(asked.task(mdp), asked.learner(mdp), _Watched)
    run.until_done(iterations)
    values, watched = tuple(row["value"] for row in run.history), run.objective
    assert isinstance(watched, _Watched)
    return Trace(watched.closest.policy, tuple(watched.kept), tuple(watched.seen), values)


class _Watched(PolicyObjective):
    """Keeps the policies on the way."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.kept: list[Floats] = []
        self.seen: list[Floats] = []

    def evaluate(self, level: float = 0.0) -> Evaluation:
        at = super().evaluate(level)
        self.kept.append(self.closest.policy)
        self.seen.append(at.policy)
        return at


def policies(
    offline: Any, expert: Any, discount: float, *, cost: Any = "indicator", ours: bool = True
) -> dict[str, Floats]:
    """The policy of every method that can run here: those whose extra is not installed are left out."""
    mdp = offline if isinstance(offline, MDP) else offline.mdp
    found = {OURS: trace(mdp, expert, discount, cost=cost).policy} if ours else {}
    for name in METHODS:
        try:
            found[name] = baseline(name, offline, expert, discount, cost=cost)
        except MissingExtra:
            continue
    return found


def baseline(name: str, offline: Any, expert: Any, discount: float, *, cost: Any = "indicator") -> Floats:
    """The policy of one of METHODS; that it stops short or leaves out what no action can make is no news here."""
    more = {"cost": cost} if name in BY_COST else {}
    with quietly():
        return METHODS[name](offline, expert, discount, **more).policy


def refusals(offline: Any, expert: Any, discount: float) -> tuple[str, ...]:
    """The methods that do not take this expert as it is."""
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
    """The methods ahead of ours and those level with it, by scores ``(seeds,)`` on the same data, less is better.

    Level: the medians differ by no more than the share LEVEL, or the differences of the seeds are what chance makes of
    none (a t interval of 95 %; with one seed nothing is known of chance, and only the share counts).
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
    """Half the width of a t interval for the mean."""
    from scipy.special import stdtrit

    n = apart.size
    return float(stdtrit(n - 1, 0.975) * apart.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0


def ahead_and_level(ours: Floats, others: Mapping[str, Floats], name: str = OURS) -> str:
    """Both in words."""
    ahead, level = standing(ours, others)
    return f"ahead of {name}: {', '.join(ahead) or 'none'}" + (f"; level with it: {', '.join(level)}" if level else "")


#: What to say once of such comparisons.
FAIRNESS = (
    f"{OURS} minimizes this distance, the other methods something else; level: medians within {LEVEL:.0%}, or no "
    "difference beyond chance over the seeds (t interval of 95 %)"
)


def left_out(names: Any) -> list[str]:
    """A sentence about the methods that did not run, if there are any."""
    missing = [name for name in METHODS if name not in names]
    return [f'not run: {", ".join(missing)}; pip install "diffbisim[baselines]"'] if missing else []
