"""The coupling of the Sinkhorn solvers, and the entropic metric.

*Coupling.* The result of a run is a set of potentials in Gibbs form and a table. Plans are rounded, so their marginals
are exact. Potentials are transforms of each other for the table ``values``: for the distance itself hard ones, feasible
to the last digit; for the entropic metric soft ones, which are its exact derivatives. The table is shifted so that the
transport of the starts equals the ``value`` of the result.

*The entropic metric* is a smooth version of the distance. With a temperature ε > 0, in the units of the cost, every
step also pays for the information that its plan uses:

    V_ε(x,y) = c(x,y) + γ min_{π ∈ Π(P_X(·|x), P_Y(·|y))} <π, V_ε> + ε KL(π ‖ P_X(·|x) ⊗ P_Y(·|y))
    d_ε      = (1-γ) min_{π ∈ Π(ν_X, ν_Y)} <π, V_ε> + ε KL(π ‖ ν_X ⊗ ν_Y)

so d_ε is the least discounted average of cost + ε·information; it increases with ε from d to the value of the
independent coupling. As for ε = 0, the operator is monotone and shifts by γk when the table shifts by k, so it is a
γ-contraction with the same certified bounds. In U = (1-γ)V the temperature is (1-γ)ε, which is called ``epsilon``
inside the solvers.

*Gradient.* By duality one step is, for p = P_X(·|x), q = P_Y(·|y),

    max_{f,g} <p, f> + <q, g> - ε Σ_ij p_i q_j (exp((f_i + g_j - V_ij)/ε) - 1),

and at the maximum Σ_j q_j exp((f_i + g_j - V_ij)/ε) = 1 for *every* i. Where p_i = 0 this equation, the soft
c-transform, defines f_i. The derivative in p_i is f_i - ε (1 - 1) = f_i: the reference p ⊗ q also changes with p, but
contributes nothing more. The maximizers are unique up to a constant, hence the derivative exists everywhere, also at
d = 0 and at ties, and the formulas of gradient.py hold with these potentials and the Gibbs plans:

    ∂d_ε/∂P_X(x'|x) = γ Σ_y m(x,y) f_xy(x'),   ∂d_ε/∂ν_X = (1-γ) f_0,   ∂d_ε/∂c = m.

``value``, ``lower`` and ``upper`` of an entropic result are d_ε and bounds on it, not on d. They are related by
d ≤ d_ε ≤ d + ε I, where I is the discounted information of an optimal coupling, at most the logarithm of the number of
successors per step. d_ε(X, X) is positive: the entropic metric is a loss function, not a metric.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.arrays import Array, lazy
from diffbisim.common.errors import ConvergenceWarning, warn
from diffbisim.io.arrays import numbers
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.solvers.exact.coupling import StartTransport
from diffbisim.solvers.sinkhorn.plans import GibbsPlans, PlanOperator

EPS = float(np.finfo(float).eps)


class SinkhornCoupling(Coupling):
    """Plans, potentials and occupancies from :class:`GibbsPlans` and a table `U` (flat, scaled)."""

    def __init__(self, problem: ChainProblem, plans: GibbsPlans, U: Array, epsilon: float) -> None:
        self.problem, self.plans, self.U, self.epsilon = problem, plans, U, epsilon
        self.scale = problem.scale or 1.0

    @classmethod
    def of_table(cls, problem: ChainProblem, values: Array, epsilon: float) -> "SinkhornCoupling":
        """Return the entropic coupling of a solved table; `epsilon` > 0 is the temperature of U."""
        plans = GibbsPlans(problem.x.successors, problem.y.successors, problem.shape)
        U = values.ravel() / (problem.scale or 1.0)
        plans.settle(U, 1 / epsilon, 1e-14)
        return cls(problem, plans, U, epsilon)

    def state(self) -> dict[str, NDArray[Any]]:
        p = self.plans
        arrays = {"U": self.U, "W": p.W, "F": p.F, "G": p.G}
        return {**arrays, "beta": np.array(p.beta), "epsilon": np.array(self.epsilon)}

    @classmethod
    def restore(cls, problem: ChainProblem, arrays: Mapping[str, NDArray[Any]]) -> "SinkhornCoupling":
        """Rebuild from the arrays of :meth:`state`: tables, potentials and temperatures."""
        (n_x, n_y), x, y = problem.shape, problem.x, problem.y
        sizes = {"U": n_x * n_y, "W": n_x * n_y, "F": n_y * x.n_transitions, "G": n_x * y.n_transitions}
        U, W, F, G = (numbers(arrays, name, (size,)) for name, size in sizes.items())
        beta = float(numbers(arrays, "beta", (), least=np.finfo(float).tiny))
        epsilon = float(numbers(arrays, "epsilon", (), least=0.0))
        plans = GibbsPlans(x.successors, y.successors, problem.shape)
        plans.F[:], plans.G[:] = F, G
        plans.set_kernel(W, beta)
        plans.coldest = plans.beta
        return cls(problem, plans, U, epsilon)

    @property
    def values(self) -> Array:
        return self.scale * np.clip(self.U, 0.0, 1.0).reshape(self.problem.shape)

    @lazy
    def start(self) -> StartCoupling:
        start = start_of(self.problem, self.epsilon).start(self.U)
        return StartCoupling(start.plan, self.scale * start.f, self.scale * start.g)

    def plan(self, x: int, y: int) -> sparse.coo_array:
        return self.plans.plan(x * self.plans.m_y + y)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        f, g = self.plans.potentials(x * self.plans.m_y + y, self.U, self.epsilon)
        return self.scale * f, self.scale * g

    def occupancy(self) -> Array:
        """Solve m = (1-γ) m_0 + γ Πᵀ m for the rounded plans by BiCGStab, or by sweeps if it stagnates."""
        γ, operator = self.problem.discount, PlanOperator(self.plans)
        source = (1 - γ) * self.start.plan.toarray().ravel()
        m, target = source.copy(), 1e-13 * float(source.max())
        if operator.solve(γ, source, m, target, 200, transposed=True)[0] > 1e3 * target:
            np.copyto(m, source)
            operator.sweep(γ, source, m, min(2_000, int(np.log(1e-12) / np.log(γ))), transposed=True)
            operator.push(m, image := np.empty_like(m))
            if (total := float(np.abs(m - γ * image - source).sum()) / (1 - γ)) > 1e-6:
                warn(
                    f"the occupancy is accurate only to {total:.1e} in total; use a smaller discount",
                    ConvergenceWarning,
                    stacklevel=3,
                )
        np.maximum(m, 0.0, out=m)
        return np.asarray(m / m.sum()).reshape(self.problem.shape)

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        (n_x, n_y), weights = self.problem.shape, np.ascontiguousarray(m.ravel())
        shapes = ((n_x, n_x), (n_y, n_y)) if everywhere else None
        by_x, by_y = self.plans.weighted_potentials(self.U, self.epsilon, weights, shapes)
        by_x *= self.scale
        by_y *= self.scale
        return self._by_transition(by_x, by_y, everywhere)


class SharpStart:
    """The optimal coupling of the starts by the exact transport; tables are flat and scaled."""

    def __init__(self, problem: ChainProblem) -> None:
        self.exact, self.shape = StartTransport(problem), problem.shape

    def bounds(self, U: Array) -> tuple[float, float]:
        """Return bounds on OT_U(ν_X, ν_Y), including rounding."""
        return self.exact.value(U).interval

    def start(self, U: Array) -> StartCoupling:
        """Return plan and potentials for a table."""
        self.bounds(U)
        return StartCoupling(self.exact.plan(), *self.exact.potentials(U.reshape(self.shape)))


class SoftStart:
    """The entropic coupling of the starts at the temperature `epsilon` of U."""

    def __init__(self, problem: ChainProblem, epsilon: float) -> None:
        x, y = (Successors.of(chain.initial[None, :]) for chain in (problem.x, problem.y))
        self.epsilon, self.plans = epsilon, GibbsPlans(x, y, problem.shape, threads=1)

    def bounds(self, U: Array) -> tuple[float, float]:
        """Return bounds on the entropic transport of the starts, including rounding."""
        plans = self.plans
        plans.settle(U, 1 / self.epsilon, 1e-14)
        upper, (lower, size) = plans.soft_costs(U, self.epsilon), plans.dual_bounds(U, self.epsilon)
        largest = max(size, float(np.abs(U).max())) + plans.largest_information(self.epsilon)
        slack = 4 * (plans.x.longest + plans.y.longest + 8) * EPS * largest
        return float(lower[0]) - slack, float(upper[0]) + slack

    def start(self, U: Array) -> StartCoupling:
        """Return plan and potentials for a table."""
        self.bounds(U)
        return StartCoupling(self.plans.plan(0), *self.plans.potentials(0, U, self.epsilon))


def start_of(problem: ChainProblem, epsilon: float) -> SharpStart | SoftStart:
    """Return the coupling of the starts: entropic, or exact for ε = 0."""
    return SoftStart(problem, epsilon) if epsilon else SharpStart(problem)
