"""What the Sinkhorn solvers know at the end: potentials in Gibbs form and a table, read out when asked.

Plans are rounded, so their marginals are exact. Potentials are transforms of each other for the table ``values``: hard
ones, feasible to the last digit, for the distance itself; soft ones for the entropic metric, where they are its exact
derivatives. The table is shifted so that the starts' transport is the ``value`` of the result.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.errors import ConvergenceWarning
from diffbisim.problem import Array, Coupling, Problem, Start, lazy, on_support
from diffbisim.solvers import sinkhorn_reading as reading
from diffbisim.solvers.entropic import SharpStart, SoftStart
from diffbisim.solvers.exact import sweep
from diffbisim.solvers.krylov import bicgstab
from diffbisim.solvers.sinkhorn_kernels import scratch
from diffbisim.solvers.sinkhorn_operator import plan_operator
from diffbisim.solvers.sinkhorn_plans import GibbsPlans, rows_of_chain

if TYPE_CHECKING:
    from diffbisim.solvers.sinkhorn_run import Run


class SinkhornCoupling(Coupling):
    """Plans, potentials and occupancies from :class:`GibbsPlans` and a table ``U`` (flat, scaled)."""

    def __init__(self, problem: Problem, plans: GibbsPlans, U: Array, epsilon: float) -> None:
        self.problem, self.plans, self.U, self.epsilon = problem, plans, U, epsilon
        self.scale = problem.scale or 1.0

    @classmethod
    def of_run(cls, run: "Run") -> "SinkhornCoupling":
        """The table is shifted to the middle of the certified bounds; potentials do not notice."""
        low, high = run.start.bounds(run.U)
        return cls(run.problem, run.plans, run.U + (run.value / run.scale - (low + high) / 2), run.epsilon)

    def state(self) -> dict[str, NDArray[Any]]:
        p = self.plans
        arrays = {"U": self.U, "W": p.W, "F": p.F, "G": p.G}
        return {**arrays, "beta": np.array(p.beta), "epsilon": np.array(self.epsilon)}

    @classmethod
    def restore(cls, problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> "SinkhornCoupling":
        """The inverse of :meth:`state`."""
        plans = GibbsPlans(rows_of_chain(problem.x), rows_of_chain(problem.y), problem.shape)
        plans.F, plans.G = arrays["F"], arrays["G"]
        plans.heat(arrays["W"], float(arrays["beta"]))
        plans.coldest = plans.beta
        return cls(problem, plans, arrays["U"], float(arrays["epsilon"]))

    @property
    def values(self) -> Array:
        return np.maximum(self.scale * self.U, 0.0).reshape(self.problem.shape)

    @lazy
    def start(self) -> Start:
        solver = SoftStart(self.problem, self.epsilon) if self.epsilon else SharpStart(self.problem)
        start = solver.start(self.U)
        return Start(start.plan, self.scale * start.f, self.scale * start.g)

    def plan(self, x: int, y: int) -> sparse.coo_array:
        return self.plans.plan(x * self.plans.m_y + y)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        (n_x, n_y), plans = self.problem.shape, self.plans
        f, g, work = np.empty(n_x), np.empty(n_y), scratch(plans.xs, plans.ys, 1)
        reading.potentials(x * n_y + y, plans.xs, plans.ys, n_y, self.U, self.epsilon, plans.G, work, f, g)
        return self.scale * f, self.scale * g

    def occupancy(self) -> Array:
        """m = (1-γ) m_0 + γ Πᵀ m of the rounded plans, by BiCGStab; sweeps where that stagnates."""
        γ, operator = self.problem.discount, plan_operator(self.plans)
        source = (1 - γ) * self.start.plan.toarray().ravel()

        def system(v: Array, out: Array) -> None:
            operator.push(v, out)
            out *= -γ
            out += v

        m, target = source.copy(), 1e-13 * float(source.max())
        if bicgstab(system, source, m, target, max_iterations=200) > 1e3 * target:
            np.copyto(m, source)
            sweep(system, source, m, min(2_000, int(np.log(1e-12) / np.log(γ))))
            system(m, image := np.empty_like(m))
            if (total := float(np.abs(image - source).sum()) / (1 - γ)) > 1e-6:
                warnings.warn(
                    f"the occupancy is only accurate to {total:.1e} in total; use a smaller discount",
                    ConvergenceWarning,
                    stacklevel=3,
                )
        np.maximum(m, 0.0, out=m)
        return np.asarray(m / m.sum()).reshape(self.problem.shape)

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        (n_x, n_y), plans, flat = self.problem.shape, self.plans, np.ascontiguousarray(m.ravel())
        kernel = reading.sum_potentials if everywhere else reading.sum_own_potentials
        shapes = ((n_x, n_x), (n_y, n_y)) if everywhere else (plans.xs[1].shape, plans.ys[1].shape)

        def run(piece: int, lo: int, hi: int) -> tuple[Array, Array]:
            parts = np.zeros(shapes[0]), np.zeros(shapes[1])
            kernel(lo, hi, plans.xs, plans.ys, n_y, self.U, self.epsilon, plans.G, flat, *parts)
            return parts

        parts = plans.split(run, 10, step=-(-plans.size // plans.threads))
        by_x, by_y = (self.scale * np.sum(side, axis=0) for side in zip(*parts, strict=True))
        if everywhere:
            return by_x, by_y
        return on_support(by_x, self.problem.x), on_support(by_y, self.problem.y)
