"""Abstraction: few states that plan for many.

search.py       the door: candidates, each scored by exact evaluation, and the best of them
result.py       an abstraction, what it loses, and what it can lose at most
model.py        the MDP of the classes, and the exact losses of its policies
partitions.py   where candidates come from: medians, balls and closest pairs of a metric
"""

from diffbisim.abstract.result import AbstractionResult, Candidate
from diffbisim.abstract.search import abstract

__all__ = ["AbstractionResult", "Candidate", "abstract"]
