"""The plans of all pairs in Gibbs form, and as one stochastic matrix.

    π_xy(x',y') = P_X(x'|x) P_Y(y'|y) exp(β (f_xy(x') + g_xy(y') - W(x',y')))

The table W and the inverse temperature β are common to all pairs; only the potentials f_xy, g_xy belong to a pair.
Only these are stored, O(n_X n_Y (a + b)) numbers for a and b successors, never the plans. There are two ways to
compute:

    shared kernel    if every transition is possible and exp(-βW) is representable: one matrix product does a half-step
                     for a block of pairs (:class:`SharedKernel`)
    pair by pair     gather the costs of a pair's successors, absorb its potentials, iterate in the cache: any supports,
                     any β, and each pair stops when its own marginals are accurate (kernels.py)

A block for which the shared kernel would overflow is computed pair by pair. Threads are created for one sweep and
joined at its end, and their results are added in a fixed order, as in the exact solver.

As a matrix Π on tables the plans have n_X² n_Y² entries. It is represented in one of three ways, the first possible:

    Factored     with a shared kernel: two scalings and a rank-one term per pair, O(n_X n_Y (n_X + n_Y)) numbers
    Stored       all entries, up to STORED of them: sparse chains
    Recomputed   not stored: every use recomputes the plans from the potentials
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from diffbisim.parallel import CHUNK, split
from diffbisim.problem import Array, available_threads, read_only
from diffbisim.solvers.sinkhorn import kernels
from diffbisim.solvers.sinkhorn.kernels import Block, Gibbs, Pairs, Potentials, Stop
from diffbisim.stochastic import Successors

#: Largest total number of plan entries that are stored: a quarter of a gigabyte.
STORED = 2**25

#: Number of multiplications in one matrix product; OpenBLAS starts its own threads above about twice as many.
PRODUCT = 2**19

#: Largest exponent of the kernel and of the scalings; exp overflows at 709.
SAFE = 600.0


class GibbsPlans:
    """Potentials `F` and `G` of all pairs of rows for the kernel exp(-βW); tables have `shape` (n_X, n_Y)."""

    def __init__(self, x: Successors, y: Successors, shape: tuple[int, int], threads: int | None = None) -> None:
        self.pairs = Pairs(x, y, np.log(x.probabilities), np.log(y.probabilities), shape[1])
        self.shape, self.m_x, self.m_y = shape, x.indptr.size - 1, y.indptr.size - 1
        self.size = self.m_x * self.m_y
        self.F, self.G = np.zeros(self.m_y * x.indices.size), np.zeros(self.m_x * y.indices.size)
        self.omega, self.error = np.ones(self.size), np.full(self.size, np.inf)
        self.cells = float(x.indices.size) * y.indices.size
        self.full = x.indices.size == self.m_x * shape[0] and y.indices.size == self.m_y * shape[1]
        self.threads = threads or available_threads()
        self.half_steps = 0.0  # of an average pair
        self.coldest = 0.0  # largest β for which the potentials were scaled
        self.kernel: SharedKernel | None = None
        self.beta = 1.0
        self.set_kernel(np.zeros(shape), 1.0)

    def split(self, run: Callable[[int, int], Any], work: float, step: int = 0) -> list[Any]:
        """Call ``run(lo, hi)`` for all pairs, at most `step` at a time, and return the results in order.

        `work` is the number of multiplications per cell; about two and a half take as long as a unit of parallel.py.
        """
        effort = 0.4 * work * self.cells
        threads, pieces = 1 if effort < CHUNK else self.threads, -(-self.size // step) if step else None
        return split(lambda piece, lo, hi, stop: run(lo, hi), self.size, effort, threads, pieces)

    def set_kernel(self, W: Array, beta: float, keep: bool = False) -> None:
        """Set table and inverse temperature, keeping the potentials or, with `keep`, their product with β."""
        if keep:
            for potential in (self.F, self.G):
                potential *= self.beta / beta
        self.W, self.beta = W.ravel(), float(beta)
        if self.full:
            x, y = self.pairs.x, self.pairs.y
            P, Q = x.probabilities.reshape(self.m_x, -1), y.probabilities.reshape(self.m_y, -1)
            self.kernel = SharedKernel.of(self.W.reshape(self.shape), self.beta, P, Q)

    @property
    def gibbs(self) -> Gibbs:
        """The plans, as compiled functions take them."""
        return Gibbs(self.pairs, self.W, self.beta, self.F, self.G)

    @property
    def step(self) -> int:
        """Number of pairs in a block of the shared kernel; zero without one."""
        return self.kernel.step if self.kernel else 0

    def block(self, lo: int, hi: int) -> tuple[Array, Array]:
        """Return views of the potentials of some pairs, (pairs, n_X) and (pairs, n_Y), for full supports."""
        return self.F.reshape(self.size, -1)[lo:hi], self.G.reshape(self.size, -1)[lo:hi]

    def has_supports_of(self, other: "GibbsPlans") -> bool:
        """Return whether every row has the same successors as in the other plans."""
        sides = ((self.pairs.x, other.pairs.x), (self.pairs.y, other.pairs.y))
        return all(np.array_equal(a, b) for mine, theirs in sides for a, b in zip(mine[:2], theirs[:2], strict=True))

    # --- half-steps ----------------------------------------------------------------------------------------

    def scale(self, most: int, target: float) -> None:
        """Run over-relaxed Sinkhorn until no pair's marginal error exceeds `target`, and update ``error``."""

        stop = Stop(most, target)

        def run(lo: int, hi: int) -> float:
            if self.kernel is not None:
                ω, error = self.omega[lo:hi], self.error[lo:hi]
                done = self.kernel.scale(lo, *self.block(lo, hi), stop, ω, error)
                if done is not None:
                    return float(done) * (hi - lo)
            return float(kernels.scale(lo, hi, self.gibbs, stop, self.omega, self.error))

        iterations = self.split(run, 2 * most, self.step)
        self.half_steps += 2 * sum(iterations) / self.size + 3
        self.coldest = max(self.coldest, self.beta)

    def polish(self, target: float) -> int:
        """Run Newton's method on pairs whose marginal error exceeds `target`, and return their number."""
        return sum(self.split(lambda lo, hi: kernels.newton(lo, hi, self.gibbs, target, self.error), 100))

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

        def run(lo: int, hi: int) -> None:
            if self.kernel is not None:
                potential, target = self.block(lo, hi)[0 if columns else 1], out.reshape(self.size, -1)[lo:hi]
                if self.kernel.half_step(lo, columns, potential, target):
                    return
            kernels.half_step(lo, hi, self.gibbs, columns, out)

        self.split(run, 10, self.step)
        self.half_steps += 1

    # --- plans, potentials and bounds ----------------------------------------------------------------------

    def plan(self, k: int, rounded: bool = True) -> sparse.coo_array:
        """Return the plan of pair k, (n_X, n_Y)."""
        (x, y), of_x, of_y = divmod(k, self.m_y), self.pairs.x, self.pairs.y
        rows, cols = of_x.indices[slice(*of_x.indptr[x : x + 2])], of_y.indices[slice(*of_y.indptr[y : y + 2])]
        plan = kernels.one_plan(k, self.gibbs, rounded)
        i, j = np.nonzero(plan)
        return sparse.coo_array((plan[i, j], (rows[i], cols[j])), shape=self.shape)

    def potentials(self, k: int, U: Array, epsilon: float) -> tuple[Array, Array]:
        """Return f (n_X,) and g (n_Y,) of pair k for a table: hard or, with ε > 0, soft transforms of each other."""
        scratch, f, g = np.empty(self.pairs.x.longest * self.pairs.y.longest), *map(np.empty, self.shape)
        kernels.potentials(k, Potentials(self.pairs, U, epsilon, self.G), scratch, f, g)
        return f, g

    def weighted_potentials(self, U: Array, epsilon: float, m: Array, shapes: tuple[Any, Any] | None) -> list[Array]:
        """Return Σ m_k f_k by rows of X and Σ m_k g_k by rows of Y, with these shapes, or on the supports if None."""
        kernel = kernels.sum_potentials_on_supports if shapes is None else kernels.sum_potentials
        sizes = (self.pairs.x.indices.shape, self.pairs.y.indices.shape) if shapes is None else shapes
        dual = Potentials(self.pairs, U, epsilon, self.G)

        def run(lo: int, hi: int) -> tuple[Array, Array]:
            sums = np.zeros(sizes[0]), np.zeros(sizes[1])
            kernel(lo, hi, dual, read_only(m), sums)
            return sums

        parts = self.split(run, 10, step=-(-self.size // self.threads))
        return [np.sum(side, axis=0) for side in zip(*parts, strict=True)]

    def means(self, columns: bool, potential: Array) -> Array:
        """Return <p, f> of every pair for an array like F, or, with `columns`, <q, g> for one like G."""
        out = np.empty(self.size)
        self.split(lambda lo, hi: kernels.means(lo, hi, self.pairs, columns, potential, out), 0.1)
        return out

    def soft_values(self) -> Array:
        """Return <p, f> + <q, g> of every pair: the soft transport, if the last half-step made one marginal exact."""
        return self.means(False, self.F) + self.means(True, self.G)

    def soft_costs(self, U: Array, epsilon: float) -> Array:
        """Return <π, U> + ε KL(π ‖ p⊗q) of every rounded plan."""
        out = np.empty(self.size)
        self.split(lambda lo, hi: kernels.plan_costs(lo, hi, self.gibbs, True, U, epsilon, out), 30)
        return out

    def largest_information(self, epsilon: float) -> float:
        """Bound the terms with factor ε in a soft transport: logarithms of probabilities in KL and soft minima."""
        logarithms = (float(np.abs(logs).max()) for logs in (self.pairs.log_p, self.pairs.log_q))
        return epsilon * (2 + sum(logarithms)) if epsilon else 0.0

    def dual_bounds(self, U: Array, epsilon: float) -> tuple[Array, float]:
        """Return lower bounds on all transports for the table U (entropic if ε > 0), and the largest potential."""
        out, dual = np.empty(self.size), Potentials(self.pairs, U, epsilon, self.G)
        sizes = self.split(lambda lo, hi: kernels.dual_bounds(lo, hi, dual, out), 3)
        return out, max(sizes)


# --- one kernel for all pairs --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """K = exp(-βW) for all pairs: half-steps and expectations as matrix products.

    With u = e^{βf}, w = e^{βg} as matrices (pairs, n_X), (pairs, n_Y), and the rows P, Q of the chains for each pair,

        rows       u = 1 / ((Q∘w) Kᵀ)                             columns    w = 1 / ((P∘u) K)
        <π, V>     = sum over x' of (P∘u) ∘ ((Q∘w) (K∘V)ᵀ)        Σ m π = K ∘ ((m∘P∘u)ᵀ (Q∘w))

    Rounding only changes the scalings and adds a rank-one term to each plan, so the form is preserved.

    Products are computed in blocks of pairs that fit the cache and stay below the size at which BLAS starts its own
    threads; our threads share the blocks. Results are accurate while K, u and w are representable: the kernel is
    centered (`middle` of the table's range is subtracted), potentials are kept as logarithms and balanced within each
    pair (f and g have the same midpoint), and exponents are checked before and after. If they are out of range, the
    methods report it and the caller proceeds pair by pair.
    """

    K: Array  # (n_X, n_Y)
    K_T: Array
    middle: float
    beta: float
    P: Array  # (m_X, n_X)
    Q: Array  # (m_Y, n_Y)

    @classmethod
    def of(cls, W: Array, beta: float, P: Array, Q: Array) -> "SharedKernel | None":
        """Return the kernel, or None if its entries would not be representable."""
        low, high = float(W.min()), float(W.max())
        if not beta * (high - low) / 2 <= SAFE:
            return None
        K = np.exp(-beta * (W - (low + high) / 2))
        return cls(K, np.ascontiguousarray(K.T), (low + high) / 2, beta, P, Q)

    @property
    def step(self) -> int:
        """Number of pairs in a block."""
        return max(4, PRODUCT // self.K.size)

    def _sides(self, lo: int) -> tuple[Block, Block]:
        """Return the rows of X and of Y used by the pairs lo, lo + 1, …."""
        m_y = len(self.Q)
        return Block(lo, m_y, False, read_only(self.P)), Block(lo, m_y, True, read_only(self.Q))

    def half_step(self, lo: int, columns: bool, potential: Array, out: Array) -> bool:
        """Write softmin(W - G), or, with `columns`, softmin(W - F), of a block; return whether it was in range."""
        K, side = (self.K, self._sides(lo)[0]) if columns else (self.K_T, self._sides(lo)[1])
        center = _middle(potential)
        logs = self.beta * (potential - center)
        if not float(np.abs(logs).max()) + abs(float(np.log(K.max()))) <= SAFE:
            return False
        kernels.weigh_block(side, logs, logs)
        np.subtract(self.middle - center, np.log(logs @ K) / self.beta, out=out)
        return True

    def scale(self, lo: int, F: Array, G: Array, stop: Stop, omega: Array, error: Array) -> int | None:
        """Run Sinkhorn on a block; return the number of iterations, or None, without any change, if out of range."""
        center = _middle(G)
        log_u, log_w = np.zeros_like(F), self.beta * (G - center)  # the first half-step replaces u
        if not _fit(log_w):
            return None
        ω, wrong = omega.copy(), error.copy()
        with np.errstate(all="ignore"):  # overflow is detected below
            done = self._iterate(lo, log_u, log_w, stop, ω, wrong)
        if not _fit(log_u, log_w):
            return None
        np.add(log_u / self.beta, self.middle - center, out=F)
        np.add(log_w / self.beta, center, out=G)
        omega[:], error[:] = ω, wrong
        return done

    def _iterate(self, lo: int, log_u: Array, log_w: Array, stop: Stop, ω: Array, wrong: Array) -> int:
        """Update the logarithms, ω and the errors; the last iteration is not relaxed and ends with the rows."""
        (of_x, of_y), u, w = self._sides(lo), np.exp(log_u), np.exp(log_w)
        pu, qw, to_u, to_w = np.empty_like(u), np.empty_like(w), np.empty_like(u), np.empty_like(w)
        ignored, before, plain = np.empty_like(wrong), np.full_like(wrong, np.inf), np.ones_like(wrong)
        kernels.weigh_block(of_y, log_w, qw)
        kernels.relax_block(of_x, u, np.matmul(qw, self.K_T, out=to_u), pu, plain, ignored)
        done, last = 0, False
        while not last:
            np.matmul(pu, self.K, out=to_w)
            kernels.relax_block(of_y, w, to_w, qw, plain if done == stop.most else ω, wrong)
            last = done == stop.most or bool(wrong.max() <= stop.target)
            np.matmul(qw, self.K_T, out=to_u)
            kernels.relax_block(of_x, u, to_u, pu, plain if last else ω, ignored)
            if not last:
                done += 1
                kernels.review_relaxation(done, ω, wrong, before)
        np.log(u, out=log_u)
        np.log(w, out=log_w)
        return done

    def factors(self, lo: int, F: Array, G: Array, rounded: bool, into: tuple[Array, ...]) -> float | None:
        """Write plans π = diag(u) K diag(w) + row ⊗ col of some pairs to `into` = (u, w, row, col).

        Returns the largest mass of the last term, which comes from rounding, or None if out of range.
        """
        u, w, row, col = into
        shift = (_middle(F) - _middle(G) + self.middle) / 2
        log_u, log_w = self.beta * (F - shift), self.beta * (G + (shift - self.middle))
        if not _fit(log_u, log_w):
            return None
        of_x, of_y = self._sides(lo)
        kernels.weigh_block(of_x, log_u, u)
        kernels.weigh_block(of_y, log_w, w)
        if not rounded:
            return 0.0
        kernels.shrink_block(of_x, u, np.matmul(w, self.K_T, out=row))
        kernels.shrink_block(of_y, w, np.matmul(u, self.K, out=col))
        mass = kernels.missing_in_block(of_x, u, np.matmul(w, self.K_T, out=row), row)
        kernels.missing_in_block(of_y, w, np.matmul(u, self.K, out=col), col)
        return float(mass)


def _middle(rows: Array) -> Array:
    return np.asarray((rows.max(axis=1, keepdims=True) + rows.min(axis=1, keepdims=True)) / 2)


def _fit(*logs: Array) -> bool:
    return all(bool(np.abs(a).max() <= SAFE) for a in logs)  # False for NaN


# --- the plans as a matrix -----------------------------------------------------------------------------------------


class PlanOperator(Protocol):
    """The matrix Π and its transpose."""

    def apply(self, V: Array, out: Array) -> None:
        """Compute ``out[k] = <π_k, V>``."""

    def push(self, m: Array, out: Array) -> None:
        """Compute ``out = Σ_k m_k π_k``, flat."""


def plan_operator(plans: GibbsPlans, rounded: bool = True) -> PlanOperator:
    """Return Π of the current plans; without rounding one of the two marginals is inexact."""
    if plans.kernel is not None:
        factored = Factored(plans, plans.kernel, rounded)
        if factored.fits:
            return factored
    return Stored(plans, rounded) if plans.cells <= STORED else Recomputed(plans, rounded)


class Factored:
    """π_k = diag(u_k) K diag(w_k) + row_k ⊗ col_k."""

    def __init__(self, plans: GibbsPlans, kernel: SharedKernel, rounded: bool) -> None:
        self.plans, self.kernel = plans, kernel
        n_x, n_y = plans.shape
        self.u, self.w = np.empty((plans.size, n_x)), np.empty((plans.size, n_y))
        self.row, self.col = np.empty((plans.size, n_x)), np.empty((plans.size, n_y))

        def run(lo: int, hi: int) -> float | None:
            into = tuple(part[lo:hi] for part in (self.u, self.w, self.row, self.col))
            return kernel.factors(lo, *plans.block(lo, hi), rounded, into)

        masses = plans.split(run, 4, kernel.step)
        self.fits = None not in masses
        self.corrected = self.fits and max(masses) > 0

    def apply(self, V: Array, out: Array) -> None:
        T = V.reshape(self.plans.shape)
        KV, V_T = np.ascontiguousarray((self.kernel.K * T).T), np.ascontiguousarray(T.T)

        def run(lo: int, hi: int) -> None:
            np.einsum("ki,ki->k", self.u[lo:hi], self.w[lo:hi] @ KV, out=out[lo:hi])
            if self.corrected:
                out[lo:hi] += np.einsum("ki,ki->k", self.row[lo:hi], self.col[lo:hi] @ V_T)

        self.plans.split(run, 1, self.kernel.step)

    def push(self, m: Array, out: Array) -> None:
        def run(lo: int, hi: int) -> tuple[Array, Array]:
            weight = m[lo:hi, None]
            main = (weight * self.u[lo:hi]).T @ self.w[lo:hi]
            return main, (weight * self.row[lo:hi]).T @ self.col[lo:hi] if self.corrected else main[:0]

        main, correction = np.zeros(self.plans.shape), np.zeros(self.plans.shape)
        for first, second in self.plans.split(run, 1, self.kernel.step):
            main += first
            if self.corrected:
                correction += second
        np.copyto(out, (self.kernel.K * main + correction).ravel())


class Stored:
    """All entries, one pair after the other."""

    def __init__(self, plans: GibbsPlans, rounded: bool) -> None:
        self.plans, self.entries = plans, np.empty(int(plans.cells))
        plans.split(lambda lo, hi: kernels.store(lo, hi, plans.gibbs, rounded, self.entries), 10)

    def apply(self, V: Array, out: Array) -> None:
        pairs = self.plans.pairs
        self.plans.split(lambda lo, hi: kernels.apply_stored(lo, hi, pairs, self.entries, V, out), 1)

    def push(self, m: Array, out: Array) -> None:
        pairs = self.plans.pairs
        _add_up(self.plans, lambda lo, hi, sums: kernels.push_stored(lo, hi, pairs, self.entries, m, sums), out)


class Recomputed:
    """Nothing is stored; plans are recomputed for every use."""

    def __init__(self, plans: GibbsPlans, rounded: bool) -> None:
        self.plans, self.rounded = plans, rounded

    def apply(self, V: Array, out: Array) -> None:
        gibbs = self.plans.gibbs
        self.plans.split(lambda lo, hi: kernels.plan_costs(lo, hi, gibbs, self.rounded, V, 0.0, out), 10)

    def push(self, m: Array, out: Array) -> None:
        gibbs = self.plans.gibbs
        _add_up(self.plans, lambda lo, hi, sums: kernels.push(lo, hi, gibbs, self.rounded, m, sums), out)


def _add_up(plans: GibbsPlans, part: Callable[[int, int, Array], None], out: Array) -> None:
    """Run `part` over all pairs, each piece with its own table, and add the tables in order."""

    def run(lo: int, hi: int) -> Array:
        table = np.zeros_like(out)
        part(lo, hi, table)
        return table

    np.sum(plans.split(run, 5, step=-(-plans.size // plans.threads)), axis=0, out=out)
