"""Rewards without an expert, for comparison with every reward that has one.

*Constant*: −1 per step, sufficient if episodes end at the goal. *Survival only*: −1 at the end, sufficient if episodes
end in failure.
"""

from __future__ import annotations

from diffbisim.common.checks import Floats
from diffbisim.learning.imitate.control.rewards import NOTHING


class Indifferent:
    """Pays `each` for every step and `end` for the end of the episode."""

    extra = 0

    def __init__(self, each: float, end: float) -> None:
        self.each, self.end = each, end

    def reset(self, seen: Floats) -> Floats:
        return NOTHING

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        return self.end if ended else self.each, NOTHING
