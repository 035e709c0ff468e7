"""Abstraction: small MDPs for planning in large ones.

search.py       ``abstract``: candidate partitions (medians, balls, closest pairs), each scored by exact evaluation
partitions.py   all partitions, or moves and swaps of single states, many scored at once
result.py       an abstraction, its losses, and bounds on them
model.py        the MDP of the classes, and the exact losses of its policies
"""

from diffbisim.reduction.abstraction.result import AbstractionResult, Candidate
from diffbisim.reduction.abstraction.search import abstract

__all__ = ["AbstractionResult", "Candidate", "abstract"]
