"""What the Sinkhorn solvers know at the end, and the entropic metric.

*At the end* there are potentials in Gibbs form and a table, read out when asked. Plans are rounded, so their marginals
are exact. Potentials are transforms of each other for the table ``values``: hard ones, feasible to the last digit, for
the distance itself; soft ones for the entropic metric, where they are its exact derivatives. The table is shifted so
that the transport of the starts is the ``value`` of the result.

*The entropic metric* is a smooth version of the distance. With a temperature ε > 0, in the units of the cost, every
step pays for the information that its plan uses:

    V_ε(x,y) = c(x,y) + γ min_{π ∈ Π(P_X(·|x), P_Y(·|y))} <π, V_ε> + ε KL(π ‖ P_X(·|x) ⊗ P_Y(·|y))
    d_ε      = (1-γ) min_{π ∈ Π(ν_X, ν_Y)} <π, V_ε> + ε KL(π ‖ ν_X ⊗ ν_Y)

so d_ε is the least discounted average of cost + ε·information: it grows with ε from d to the value of the independent
coupling. The operator is monotone and shifts by γk when the table shifts by k, as for ε = 0: a γ-contraction, with the
same certified bounds. In U = (1-γ)V the temperature is (1-γ)ε, which is what the solvers call ``epsilon`` inside.

*Gradient.* By duality one step is, for p = P_X(·|x), q = P_Y(·|y),

    max_{f,g} <p, f> + <q, g> - ε Σ_ij p_i q_j (exp((f_i + g_j - V_ij)/ε) - 1),

and at the maximum Σ_j q_j exp((f_i + g_j - V_ij)/ε) = 1 for *every* i, also where p_i = 0 if f_i is defined by it: the
soft c-transform. The derivative in p_i is f_i - ε (1 - 1) = f_i: the reference p ⊗ q moves with p and contributes
nothing more. The maximizers are unique up to a constant, hence the derivative exists everywhere, at d = 0 and at ties
too, and the formulas of gradient.py hold word for word with these potentials and the Gibbs plans:

    ∂d_ε/∂P_X(x'|x) = γ Σ_y m(x,y) f_xy(x'),   ∂d_ε/∂ν_X = (1-γ) f_0,   ∂d_ε/∂c = m.

``value``, ``lower`` and ``upper`` of an entropic result are d_ε and its bounds, not those of d: d ≤ d_ε ≤ d + ε I, with
I the discounted information of an optimal coupling, at most the logarithm of the number of successors in every step.
d_ε(X, X) is positive: the entropic metric is a loss, not a metric.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.errors import ConvergenceWarning, warn
from diffbisim.problem import Array, Coupling, Problem, Start, lazy, on_support
from diffbisim.solvers import sinkhorn_potentials as potentials
from diffbisim.solvers.exact.transports import Transport
from diffbisim.solvers.krylov import bicgstab, sweep
from diffbisim.solvers.restoring import check_sinkhorn
from diffbisim.solvers.sinkhorn_kernels import scratch
from diffbisim.solvers.sinkhorn_operator import plan_operator
from diffbisim.solvers.sinkhorn_plans import GibbsPlans, rows_of_chain, rows_of_start

if TYPE_CHECKING:
    from diffbisim.solvers.sinkhorn_run import Run

EPS = float(np.finfo(float).eps)


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

    @classmethod
    def of_table(cls, problem: Problem, values: Array, epsilon: float) -> "SinkhornCoupling":
        """The entropic coupling that belongs to a solved table; ``epsilon`` as inside, positive."""
        plans = GibbsPlans(rows_of_chain(problem.x), rows_of_chain(problem.y), problem.shape)
        U = values.ravel() / (problem.scale or 1.0)
        plans.settle(U, 1 / epsilon, 1e-14)
        return cls(problem, plans, U, epsilon)

    def state(self) -> dict[str, NDArray[Any]]:
        p = self.plans
        arrays = {"U": self.U, "W": p.W, "F": p.F, "G": p.G}
        return {**arrays, "beta": np.array(p.beta), "epsilon": np.array(self.epsilon)}

    @classmethod
    def restore(cls, problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> "SinkhornCoupling":
        """The inverse of :meth:`state`."""
        check_sinkhorn(problem, arrays)
        plans = GibbsPlans(rows_of_chain(problem.x), rows_of_chain(problem.y), problem.shape)
        plans.F, plans.G = arrays["F"], arrays["G"]
        plans.heat(arrays["W"], float(arrays["beta"]))
        plans.coldest = plans.beta
        return cls(problem, plans, arrays["U"], float(arrays["epsilon"]))

    @property
    def values(self) -> Array:
        return self.scale * np.clip(self.U, 0.0, 1.0).reshape(self.problem.shape)

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
        potentials.potentials(x * n_y + y, plans.xs, plans.ys, n_y, self.U, self.epsilon, plans.G, work, f, g)
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
                warn(
                    f"the occupancy is only accurate to {total:.1e} in total; use a smaller discount",
                    ConvergenceWarning,
                    stacklevel=3,
                )
        np.maximum(m, 0.0, out=m)
        return np.asarray(m / m.sum()).reshape(self.problem.shape)

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        (n_x, n_y), plans, flat = self.problem.shape, self.plans, np.ascontiguousarray(m.ravel())
        kernel = potentials.sum_potentials if everywhere else potentials.sum_own_potentials
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


class SharpStart:
    """The optimal coupling of the starts by the exact transport; tables are flat and scaled."""

    def __init__(self, problem: Problem) -> None:
        self.shape = problem.shape
        self.rows, self.cols = np.flatnonzero(problem.x.initial), np.flatnonzero(problem.y.initial)
        self.transport = Transport(problem.x.initial[self.rows], problem.y.initial[self.cols])

    def bounds(self, U: Array) -> tuple[float, float]:
        """Around OT_U(ν_X, ν_Y), rounding included."""
        cost = U.reshape(self.shape)[np.ix_(self.rows, self.cols)]
        value = self.transport.solve(cost, 1e-14)
        slack = 2 * (self.rows.size + self.cols.size + 4) * EPS * float(np.abs(cost).max()) + 1e-14
        return value - slack, value + slack

    def start(self, U: Array) -> Start:
        """Plan and potentials for a table."""
        self.bounds(U)
        i, j, mass = self.transport.cells()
        f, g = self.transport.potentials()
        table = U.reshape(self.shape)
        full_f, full_g = (table[:, self.cols] - g).min(axis=1), (table[self.rows] - f[:, None]).min(axis=0)
        full_f[self.rows], full_g[self.cols] = f, g
        return Start(sparse.coo_array((mass.copy(), (self.rows[i], self.cols[j])), shape=self.shape), full_f, full_g)


class SoftStart:
    """The entropic coupling of the starts at temperature ``epsilon`` (of U)."""

    def __init__(self, problem: Problem, epsilon: float) -> None:
        xs, ys = rows_of_start(problem.x.initial), rows_of_start(problem.y.initial)
        self.epsilon, self.plans = epsilon, GibbsPlans(xs, ys, problem.shape, threads=1)

    def bounds(self, U: Array) -> tuple[float, float]:
        """Around the entropic transport of the starts, rounding included."""
        plans = self.plans
        plans.settle(U, 1 / self.epsilon, 1e-14)
        upper, (lower, size) = plans.soft_costs(U, self.epsilon), plans.dual_bounds(U, self.epsilon)
        largest = max(size, float(np.abs(U).max())) + plans.largest_information(self.epsilon)
        slack = 4 * (plans.xs[1].size + plans.ys[1].size + 8) * EPS * largest
        return float(lower[0]) - slack, float(upper[0]) + slack

    def start(self, U: Array) -> Start:
        """Plan and potentials for a table."""
        self.bounds(U)
        (n_x, n_y), plans = self.plans.shape, self.plans
        f, g, work = np.empty(n_x), np.empty(n_y), np.empty((1, plans.xs[1].size * plans.ys[1].size))
        potentials.potentials(0, plans.xs, plans.ys, n_y, U, self.epsilon, plans.G, work, f, g)
        return Start(plans.plan(0), f, g)
