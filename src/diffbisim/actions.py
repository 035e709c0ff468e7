"""Distances between MDPs with actions (Ferns' metric and its lax version)."""

from typing import Any


class ActionProblem:
    """Two MDPs, a cost per action and a discount."""

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float, actions: str) -> "ActionProblem":
        raise NotImplementedError
