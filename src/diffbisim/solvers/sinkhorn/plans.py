"""The plans of all pairs in Gibbs form, and as one stochastic matrix.

    π_xy(x',y') = P_X(x'|x) P_Y(y'|y) exp(β (f_xy(x') + g_xy(y') - W(x',y')))

Only the potentials f_xy, g_xy are stored, O(n_X n_Y (a + b)) numbers for a and b successors, never the plans. The
engine computes them (engine/sinkhorn.hpp), with one kernel exp(-βW) for all pairs where that is possible. As a matrix Π
on tables the plans are represented in one of three ways, the first possible:

    factored     with a shared kernel: two scalings and a rank-one term per pair, O(n_X n_Y (n_X + n_Y)) numbers
    stored       all entries, up to STORED of them: sparse chains
    recomputed   not stored: every use recomputes the plans from the potentials
"""

from typing import Any

import numpy as np
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, available_threads
from diffbisim.common.stopping import engine_run
from diffbisim.processes.stochastic import Successors

#: Largest total number of plan entries that are stored: a quarter of a gigabyte.
STORED = 2**25

#: The largest error of the marginals of a plan.
LARGEST_ERROR = 2.0


class GibbsPlans:
    """Potentials `F` and `G` of all pairs of rows for the kernel exp(-βW); tables have `shape` (n_X, n_Y).

    With ``share=False`` all pairs are computed one by one.
    """

    def __init__(
        self, x: Successors, y: Successors, shape: tuple[int, int], threads: int | None = None, share: bool = True
    ) -> None:
        self.x, self.y, self.shape, self.share = x, y, shape, share
        self.m_y = y.indptr.size - 1
        self.size = (x.indptr.size - 1) * self.m_y
        self.F, self.G = np.zeros(self.m_y * x.indices.size), np.zeros(self.size // self.m_y * y.indices.size)
        self.omega, self.error = np.ones(self.size), np.full(self.size, LARGEST_ERROR)
        self.cells = float(x.indices.size) * y.indices.size
        self.threads = threads or available_threads()
        self.half_steps = 0.0  # of an average pair
        self.coldest = 0.0  # largest β for which the potentials were scaled
        self.engine = _engine.GibbsPlans(x, y, shape, self.F, self.G)
        self.beta, self.shared = 1.0, False
        self.set_kernel(np.zeros(shape), 1.0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "engine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.engine = _engine.GibbsPlans(self.x, self.y, self.shape, self.F, self.G)
        self.set_kernel(self.W, self.beta)

    def set_kernel(self, W: Array, beta: float, keep: bool = False) -> None:
        """Set table and inverse temperature, keeping the potentials or, with `keep`, their product with β."""
        if keep:
            for potential in (self.F, self.G):
                potential *= self.beta / beta
        self.W, self.beta = np.ascontiguousarray(W).ravel(), float(beta)
        self.shared = self.engine.set_kernel(self.W, self.beta, self.share)

    def run(self) -> Any:
        """Return how the engine computes a call."""
        return engine_run(self.threads)

    def has_supports_of(self, other: "GibbsPlans") -> bool:
        """Return whether every row has the same successors as in the other plans."""
        sides = ((self.x, other.x), (self.y, other.y))
        return all(np.array_equal(a, b) for mine, theirs in sides for a, b in zip(mine[:2], theirs[:2], strict=True))

    # --- half-steps ----------------------------------------------------------------------------------------

    def scale(self, most: int, target: float) -> None:
        """Run over-relaxed Sinkhorn until no pair's marginal error exceeds `target`, and update ``error``."""
        iterations = self.engine.scale(most, target, self.omega, self.error, self.run())
        self.half_steps += 2 * iterations / self.size + 3
        self.coldest = max(self.coldest, self.beta)

    def polish(self, target: float) -> int:
        """Run Newton's method on pairs whose marginal error exceeds `target`, and return their number."""
        return self.engine.polish(target, self.error, self.run())

    def settle(self, U: Array, beta: float, target: float) -> None:
        """Reach the marginal error `target` for exp(-βU), annealing first if the potentials are far from this β."""
        now = max(self.coldest, 20 / max(float(np.ptp(U)), 1e-12))
        while now < beta / 2:
            self.set_kernel(U, now)
            self.scale(20, 1e-2)
            now *= 2
        self.set_kernel(U, beta)
        self.scale(40, target)
        self.polish(target)

    def half_step(self, columns: bool, out: Array) -> None:
        """Write softmin(W - G) to `out` (like F), or, with `columns`, softmin(W - F) (like G)."""
        self.engine.half_step(columns, out, self.run())
        self.half_steps += 1

    # --- plans, potentials and bounds ----------------------------------------------------------------------

    def plan(self, k: int, rounded: bool = True) -> sparse.coo_array:
        """Return the plan of pair k, (n_X, n_Y)."""
        x, y = divmod(k, self.m_y)
        rows, cols = self.x.indices[slice(*self.x.indptr[x : x + 2])], self.y.indices[slice(*self.y.indptr[y : y + 2])]
        plan = self.engine.plan(k, rounded).reshape(rows.size, cols.size)
        i, j = np.nonzero(plan)
        return sparse.coo_array((plan[i, j], (rows[i], cols[j])), shape=self.shape)

    def potentials(self, k: int, U: Array, epsilon: float) -> tuple[Array, Array]:
        """Return f (n_X,) and g (n_Y,) of pair k for a table: hard or, with ε > 0, soft transforms of each other."""
        f, g = self.engine.potentials(k, U, epsilon)
        return f, g

    def weighted_potentials(self, U: Array, epsilon: float, m: Array, shapes: tuple[Any, Any] | None) -> list[Array]:
        """Return Σ m_k f_k by rows of X and Σ m_k g_k by rows of Y, with these shapes, or on the supports if None."""
        shapes = (self.x.indices.shape, self.y.indices.shape) if shapes is None else shapes
        sums = [np.empty(shape) for shape in shapes]
        self.engine.weighted_potentials(U, epsilon, m, sums[0].reshape(-1), sums[1].reshape(-1), self.run())
        return sums

    def means(self, columns: bool, potential: Array) -> Array:
        """Return <p, f> of every pair for an array like F, or, with `columns`, <q, g> for one like G."""
        self.engine.means(columns, potential, out := np.empty(self.size), self.run())
        return out

    def soft_values(self) -> Array:
        """Return <p, f> + <q, g> of every pair: the soft transport, if the last half-step made one marginal exact."""
        return self.means(False, self.F) + self.means(True, self.G)

    def soft_costs(self, U: Array, epsilon: float) -> Array:
        """Return <π, U> + ε KL(π ‖ p⊗q) of every rounded plan."""
        self.engine.plan_costs(U, epsilon, True, out := np.empty(self.size), self.run())
        return out

    def largest_information(self, epsilon: float) -> float:
        """Bound the terms with factor ε in a soft transport: logarithms of probabilities in KL and soft minima."""
        if not epsilon:
            return 0.0
        logarithms = (float(-_engine.logarithms(side.probabilities).min()) for side in (self.x, self.y))
        return epsilon * (2 + sum(logarithms))

    def dual_bounds(self, U: Array, epsilon: float) -> tuple[Array, float]:
        """Return lower bounds on all transports for the table U (entropic if ε > 0), and the largest potential."""
        size = self.engine.dual_bounds(U, epsilon, out := np.empty(self.size), self.run())
        return out, size

    def independent_means(self, V: Array, out: Array) -> None:
        """Compute out[k] = <p⊗q, V>, the mean of a table under the independent coupling of every pair."""
        self.engine.independent_means(V, out, self.run())


class PlanOperator:
    """The matrix Π of some plans, rounded or not; without rounding one of the two marginals is inexact."""

    def __init__(self, plans: GibbsPlans, rounded: bool = True, form: str | None = None) -> None:
        forms = ("factored", "stored" if plans.cells <= STORED else "recomputed") if form is None else (form,)
        found = (plans.engine.operator(rounded, form, plans.run()) for form in forms)
        self.plans, self.matrix = plans, next(matrix for matrix in found if matrix is not None)

    def apply(self, V: Array, out: Array) -> None:
        """Compute ``out[k] = <π_k, V>``."""
        self.matrix.apply(V, out, self.plans.run())

    def push(self, m: Array, out: Array) -> None:
        """Compute ``out = Σ_k m_k π_k``, flat."""
        self.matrix.push(m, out, self.plans.run())

    def solve(
        self, discount: float, b: Array, u: Array, target: float, most: int, transposed: bool = False
    ) -> tuple[float, int]:
        """Improve `u` toward (I - γ Π) u = b by at most `most` steps of BiCGStab; return the largest residual and the
        number of products."""
        return self.matrix.solve(discount, transposed, b, u, target, most, self.plans.run())

    def sweep(self, discount: float, b: Array, u: Array, times: int, transposed: bool = False) -> None:
        """Apply u ← b + γ Π u so many times."""
        self.matrix.sweep(discount, transposed, b, u, times, self.plans.run())
