"""Markov chains over finitely many steps, with a kernel of their own for each."""

from typing import Any


class TimedChain:
    """One kernel per step; state spaces may change."""


class TimedProblem:
    """Two timed chains and a cost per step."""

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float, horizon: Any, weights: Any) -> "TimedProblem":
        raise NotImplementedError
