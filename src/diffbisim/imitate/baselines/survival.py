"""Rewards without an expert, to be set beside every reward that has one.

*Constant*: −1 per step. Where episodes end at the goal it says all there is to say. *Survival only*: −1 at the end.
Where episodes end in failure, it does.
"""

from __future__ import annotations

from diffbisim.checks import Floats
from diffbisim.imitate.control.rewards import NOTHING


class Indifferent:
    """Pays the same for every step, and something for the end."""

    more = 0

    def __init__(self, each: float, end: float) -> None:
        self.each, self.end = each, end

    def reset(self, seen: Floats) -> Floats:
        return NOTHING

    def step(self, seen: Floats, ended: bool) -> tuple[float, Floats]:
        return self.end if ended else self.each, NOTHING
