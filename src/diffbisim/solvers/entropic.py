"""The entropic metric: a smooth version of the distance. And the coupling of the starts, sharp or soft.

With a temperature ε > 0, in the units of the cost, every step pays for the information that its plan uses:

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

import numpy as np
from scipy import sparse

from diffbisim.problem import Array, Problem, Start
from diffbisim.solvers import sinkhorn_reading as reading
from diffbisim.solvers.sinkhorn_plans import GibbsPlans, rows_of_start
from diffbisim.solvers.start import Transport

EPS = float(np.finfo(float).eps)


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
        slack = 4 * (plans.xs[1].size + plans.ys[1].size + 8) * EPS * max(size, float(np.abs(U).max()))
        return float(lower[0]) - slack, float(upper[0]) + slack

    def start(self, U: Array) -> Start:
        """Plan and potentials for a table."""
        self.bounds(U)
        (n_x, n_y), plans = self.plans.shape, self.plans
        f, g, work = np.empty(n_x), np.empty(n_y), np.empty((1, plans.xs[1].size * plans.ys[1].size))
        reading.potentials(0, plans.xs, plans.ys, n_y, U, self.epsilon, plans.G, work, f, g)
        return Start(plans.plan(0), f, g)
