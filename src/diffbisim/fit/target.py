"""What is compressed, and what it is compressed to: the two sides of the search for a small chain.

A :class:`Target` is the large chain with what an observer sees of its states: rewards, if those of the small chain are
free, or a fixed table of costs c(x,y). A :class:`Model` is a small chain while it is being searched for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.cost import reward_cost
from diffbisim.problem import Array, Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers import Exact


@dataclass(frozen=True, eq=False)
class Model:
    """A small chain: kernel ``(k, k)``, start ``(k,)``, and rewards ``(k,)`` if they are learned."""

    transition: Array
    initial: Array
    rewards: Array | None


@dataclass(frozen=True, eq=False)
class Target:
    """The chain to come close to; exactly one of ``rewards (n,)`` and ``cost (n, k)`` is given."""

    chain: MarkovChain
    discount: float
    rewards: Array | None = None
    cost: Array | None = None
    tol: float = 1e-8

    @cached_property
    def weight(self) -> Array:
        """Discounted occupancy of the states."""
        return self.chain.occupancy(self.discount)

    @property
    def look(self) -> Array:
        """What is seen of each state, as coordinates: its reward, or its row of costs."""
        return self.rewards[:, None] if self.rewards is not None else np.asarray(self.cost)

    def solve(
        self,
        model: Model,
        warm: DistanceResult | None = None,
        callback: Callable[[Mapping[str, float]], object] | None = None,
    ) -> DistanceResult:
        """The distance to a model. One thread: the restarts are the parallel part, and the same bits everywhere."""
        Y = MarkovChain(model.transition, initial=model.initial)
        table = self.cost if self.rewards is None else reward_cost(self.rewards, model.rewards)
        problem = Problem.make(self.chain, Y, table, self.discount)
        return Exact(tol=self.tol, threads=1).solve(problem, warm=warm, callback=callback)


def weighted_median(values: Array, weight: Array) -> float:
    """The least minimizer of Σ w |v - ·|."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(share, share[-1] / 2)])
