"""The result over a finite horizon, and its gradient.

With m_t the distribution of the optimal coupling at time t (m_0 is the plan of the initial distributions and
m_{t+1} = Π_tᵀ m_t) and f, g the potentials of pair (x,y) for the table V_{t+1},

    ∂d/∂P_t(x'|x) = Σ_y m_t(x,y) f_xy(x')     ∂d/∂Q_t(y'|y) = Σ_x m_t(x,y) g_xy(y')     ∂d/∂c_t = w_t m_t

with rows centered as in gradient.py. A time-homogeneous chain has one kernel for all steps, so its derivatives are
summed over time.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from diffbisim.common.arrays import Array, frozen, lazy, read_only
from diffbisim.common.checks import check_time
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.horizon import FiniteHorizon, moment
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import DistanceResult, two_states
from diffbisim.results.gradient import ReadOnly, centered_rows, centered_start


@dataclass(frozen=True, eq=False)
class TimedGradient(ReadOnly):
    """Derivatives of ``d``, read-only.

    The derivative with respect to a MarkovChain is one matrix, with respect to a TimedChain a tuple with one matrix per
    step; likewise for costs. For sparse processes the matrices are CSR on the possible transitions.
    """

    transition_x: Any  # (n, n), or T of (n_t, n_{t+1})
    transition_y: Any
    cost: Any  # (n_X, n_Y), or T + 1 tables
    initial_x: Array  # (n_0,)
    initial_y: Array


@dataclass(frozen=True, eq=False, repr=False)
class HorizonResult(DistanceResult):
    """The distance over a finite horizon, with certified bounds; read-only.

    In addition to the attributes of :class:`~diffbisim.DistanceResult` it has ``values_at(t)`` and
    ``occupancy_at(t)``, and plans and potentials take a ``time``. Values are weighted costs from a time onward.
    """

    problem: FiniteHorizon  # type: ignore[assignment]
    coupling: Any  # a HorizonCoupling (solvers/exact/horizon.py)

    @property
    def n_steps(self) -> int:
        """Number of steps T."""
        return len(self.problem.costs) - 1

    @property
    def weights(self) -> Array:
        """The weight of each time, ``(T + 1,)``."""
        weights: Array = self.problem.weights
        return weights

    def values_at(self, time: int) -> Array:
        """Return ``V_t``, the minimal weighted cost from time t onward, for all pairs; NaN where not solved."""
        return read_only(self.coupling.values_at(check_time(time, self.n_steps)))

    @property
    def values(self) -> Array:
        """``V_0``, shape ``(n_X, n_Y)``."""
        return self.values_at(0)

    def occupancy_at(self, time: int) -> Array:
        """Return the distribution of the pair of states at a time under the optimal coupling."""
        return read_only(self.coupling.laws[check_time(time, self.n_steps)])

    @lazy
    def occupancy(self) -> Array:
        """The weighted average over time of the distributions; needs the same number of states at all times."""
        if not self.problem.same_states:
            raise InvalidArgument("the numbers of states change over time; use occupancy_at(time)")
        w = self.weights / self.weights.sum()
        return frozen(sum(a * m for a, m in zip(w, self.coupling.laws, strict=True)))

    def plan(self, x: Hashable, y: Hashable, time: int = 0) -> Array | sparse.coo_array:
        """Return the optimal coupling of the next states of ``x`` and ``y`` at a time; sparse if a process is."""
        t = self._step(time)
        plan = self.coupling.plan(*self._pair_at(x, y, t), t)
        return plan if self.problem.is_sparse else np.asarray(plan.toarray())

    def potentials(self, x: Hashable, y: Hashable, time: int = 0) -> tuple[Array, Array]:
        """Return the optimal potentials of pair ``(x, y)`` at a time for the cost ``values_at(time + 1)``."""
        t = self._step(time)
        f, g = self.coupling.potentials(*self._pair_at(x, y, t), t)
        return f, g

    @lazy
    def gradient(self) -> Any:
        """Exact derivatives with respect to kernels, costs and initial distributions (:class:`TimedGradient`)."""
        return gradient_of(self.problem, self.coupling)

    @property
    def duals(self) -> Any:
        """Not available with a horizon; use :meth:`potentials` or :attr:`gradient`."""
        raise InvalidArgument("duals are available for criterion='discounted' only; use potentials(x, y, time)")

    def implicit_reward(self) -> Array:
        """Not available with a horizon; use minus ``gradient.transition_y``."""
        raise InvalidArgument("implicit_reward is available for criterion='discounted' only; use gradient.transition_y")

    def _step(self, time: int) -> int:
        if check_time(time, self.n_steps) == self.n_steps:
            raise InvalidArgument(f"time is {time}, after the last step; give a time from 0 to {self.n_steps - 1}")
        return int(time)

    def _pair_at(self, x: Any, y: Any, t: int) -> tuple[int, int]:
        """Return the indices of two states at time t, given by label or index."""
        return two_states((x, y), (moment(self.problem.x, t), moment(self.problem.y, t)), f" at time {t}")


def gradient_of(problem: FiniteHorizon, coupling: Any) -> TimedGradient:
    """Compute all derivatives in one pass over the steps."""
    laws, start = coupling.laws, coupling.start
    everywhere = coupling.complete and not problem.is_sparse
    by_x, by_y = zip(*(coupling.step_potentials(t, everywhere) for t in range(problem.n_steps)), strict=True)
    costs = [w * m for w, m in zip(problem.weights, laws, strict=True)]
    rows = [problem.rows(t) for t in range(problem.n_steps)]
    return TimedGradient(
        transition_x=_of_kernels(problem.x, by_x, [x for x, _ in rows]),
        transition_y=_of_kernels(problem.y, by_y, [y for _, y in rows]),
        cost=sum(costs[1:], start=costs[0]) if problem.one_cost else tuple(costs),
        initial_x=centered_start(start.f, problem.x.initial),
        initial_y=centered_start(start.g, problem.y.initial),
    )


def _of_kernels(chain: Any, parts: Any, rows: list[Successors]) -> Any:
    """Return the derivatives by kernel, or their sum for a time-homogeneous chain."""
    if isinstance(chain, MarkovChain):
        return centered_rows(sum(parts[1:], start=parts[0]), rows[0], chain.transition.shape)
    return tuple(centered_rows(part, s, P.shape) for part, s, P in zip(parts, rows, chain.transitions, strict=True))
