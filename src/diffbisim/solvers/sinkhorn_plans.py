"""The plans of all pairs in Gibbs form.

    π_xy(x',y') = P_X(x'|x) P_Y(y'|y) exp(β (f_xy(x') + g_xy(y') - W(x',y')))

The table W and the inverse temperature β are common to all pairs; a pair has its own potentials f_xy, g_xy only. That
is all that is stored: O(n_X n_Y (a + b)) numbers for a and b successors, never the plans. There are two ways to work:

    shared kernel    every transition is possible and exp(-βW) is representable: one matrix product does a half-step
                     for a block of pairs (sinkhorn_shared.py)
    pair by pair     gather the costs of a pair's successors, absorb its potentials, iterate in the cache: any supports,
                     any β, and a pair stops when its own marginals are right (sinkhorn_kernels.py)

A block for which the shared kernel runs out of exponents falls back to the second way by itself. Threads are made for
one sweep and joined at its end, and sums over them are taken in a fixed order, as in pairs.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.parallel import thread_map
from diffbisim.problem import Array, available_threads
from diffbisim.solvers import sinkhorn_kernels as kernels
from diffbisim.solvers import sinkhorn_potentials as potentials
from diffbisim.solvers import sinkhorn_rounding as rounding
from diffbisim.solvers.sinkhorn_newton import newton
from diffbisim.solvers.sinkhorn_shared import SharedKernel

#: Cells (times what is done to each, in multiplications) that are worth a second thread.
CHUNK = 500_000

Rows = tuple[NDArray[np.int64], NDArray[np.int64], Array, Array]  # ptr, idx, prob, log prob


def rows_of_chain(chain: MarkovChain) -> Rows:
    """The successors of every state."""
    s = chain.successors
    return s.indptr, s.indices, s.probabilities, np.log(s.probabilities)


def rows_of_start(p: Array) -> Rows:
    """One source, whose successors are the support of ``p``."""
    support = np.flatnonzero(p > 0)
    rows = np.array([0, support.size]), support, p[support]
    for array in rows:  # as those of a chain are: numba compiles once for each kind of array, which takes seconds
        array.setflags(write=False)
    return *rows, np.log(p[support])


class GibbsPlans:
    """Potentials ``F``, ``G`` of all pairs of sources for the kernel exp(-βW); tables have ``shape`` (n_X, n_Y)."""

    def __init__(self, xs: Rows, ys: Rows, shape: tuple[int, int], threads: int | None = None) -> None:
        self.xs, self.ys, self.shape = xs, ys, shape
        self.m_x, self.m_y = xs[0].size - 1, ys[0].size - 1
        self.size = self.m_x * self.m_y
        self.F, self.G = np.zeros(self.m_y * xs[1].size), np.zeros(self.m_x * ys[1].size)
        self.omega, self.error = np.ones(self.size), np.full(self.size, np.inf)
        self.cells = float(xs[1].size) * ys[1].size
        self.full = xs[1].size == self.m_x * shape[0] and ys[1].size == self.m_y * shape[1]
        self.threads = threads or available_threads()
        self.half_steps, self.coldest = 0.0, 0.0  # of an average pair; largest β the potentials have seen
        self.kernel: SharedKernel | None = None
        self.beta = 1.0
        self.heat(np.zeros(shape), 1.0)

    def split(self, run: Callable[[int, int, int], Any], work: float, step: int = 0) -> list[Any]:
        """``run(piece, lo, hi)`` over all pairs, ``step`` at a time, results in their order; ``work`` per cell."""
        alone = self.threads == 1 or self.cells * work < CHUNK
        step = step or -(-self.size // (1 if alone else 8 * self.threads))
        pieces = [(k, lo, min(lo + step, self.size)) for k, lo in enumerate(range(0, self.size, step))]
        return thread_map(run, pieces, 1 if alone else self.threads)

    def heat(self, W: Array, beta: float, keep: bool = False) -> None:
        """Another table and temperature; the potentials stay as they are, or (``keep``) β times them does."""
        if keep:
            for potential in (self.F, self.G):
                potential *= self.beta / beta
        self.W, self.beta = W.ravel(), float(beta)
        if self.full:
            P, Q = self.xs[2].reshape(self.m_x, -1), self.ys[2].reshape(self.m_y, -1)
            self.kernel = SharedKernel.of(self.W.reshape(self.shape), self.beta, P, Q)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the functions that read plans take."""
        return self.xs, self.ys, self.shape[1], self.W, self.beta, self.F, self.G

    def block(self, lo: int, hi: int) -> tuple[Array, Array]:
        """Potentials of some pairs when every transition is possible, ``(pairs, n_X)``, ``(pairs, n_Y)``; views."""
        return self.F.reshape(self.size, -1)[lo:hi], self.G.reshape(self.size, -1)[lo:hi]

    # --- half-steps ----------------------------------------------------------------------------------------

    def scale(self, most: int, target: float) -> None:
        """Over-relaxed Sinkhorn until no pair's marginals are wrong by more than ``target``; see ``error``."""

        def run(piece: int, lo: int, hi: int) -> float:
            if self.kernel is not None:
                ω, error = self.omega[lo:hi], self.error[lo:hi]
                done = self.kernel.scale(lo, *self.block(lo, hi), most, target, ω, error)
                if done is not None:
                    return float(done) * (hi - lo)
            return float(kernels.scale(lo, hi, *self.arguments, most, target, self.omega, self.error))

        iterations = self.split(run, 2 * most, self.kernel.step if self.kernel else 0)
        self.half_steps += 2 * sum(iterations) / self.size + 3
        self.coldest = max(self.coldest, self.beta)

    def polish(self, target: float) -> int:
        """Newton on the pairs whose marginals are wrong by more than ``target``; how many there were."""
        return sum(self.split(lambda piece, lo, hi: newton(lo, hi, *self.arguments, target, self.error), 100))

    def settle(self, U: Array, beta: float, target: float) -> None:
        """Marginals right to ``target`` for exp(-βU), by way of higher temperatures if the potentials are new to β."""
        now = max(self.coldest, 20 / max(float(np.ptp(U)), 1e-12))
        while now < beta / 2:
            self.heat(U, now)
            self.scale(20, 1e-2)
            now *= 2
        self.heat(U, beta)
        self.scale(40, target)
        self.polish(target)

    def half_step(self, columns: bool, out: Array) -> None:
        """``out`` (like F) = softmin(W - G), or with ``columns`` (like G) = softmin(W - F)."""

        def run(piece: int, lo: int, hi: int) -> None:
            if self.kernel is not None:
                source, target = self.block(lo, hi)[0 if columns else 1], out.reshape(self.size, -1)[lo:hi]
                if (self.kernel.columns if columns else self.kernel.rows)(lo, source, target):
                    return
            potentials.half_step(lo, hi, *self.arguments, columns, out)

        self.split(run, 10, self.kernel.step if self.kernel else 0)
        self.half_steps += 1

    # --- what is read off ----------------------------------------------------------------------------------

    def plan(self, k: int) -> sparse.coo_array:
        """The rounded plan of pair k."""
        x, y = divmod(k, self.m_y)
        px, py = slice(*self.xs[0][x : x + 2]), slice(*self.ys[0][y : y + 2])
        rows, cols = self.xs[1][px], self.ys[1][py]
        work, row, col = np.empty((2, rows.size * cols.size)), np.empty(rows.size), np.empty(cols.size)
        plan = rounding.pair_plan(k, *self.arguments, True, work, row, col)
        i, j = np.nonzero(plan)
        return sparse.coo_array((plan[i, j], (rows[i], cols[j])), shape=self.shape)

    def means(self, columns: bool, potential: Array) -> Array:
        """<p, f> of every pair, for an array like F; with ``columns`` <q, g>, for one like G."""
        out = np.empty(self.size)
        self.split(lambda piece, lo, hi: potentials.means(lo, hi, self.xs, self.ys, columns, potential, out), 0.1)
        return out

    def soft_values(self) -> Array:
        """<p, f> + <q, g> of every pair: the soft transport, when the last half-step made one side right."""
        return self.means(False, self.F) + self.means(True, self.G)

    def soft_costs(self, U: Array, epsilon: float) -> Array:
        """<π, U> + ε KL(π ‖ p⊗q) of every rounded plan."""
        out = np.empty(self.size)
        self.split(lambda piece, lo, hi: rounding.soft_costs(lo, hi, *self.arguments, U, epsilon, out), 30)
        return out

    def largest_information(self, epsilon: float) -> float:
        """Largest number times ε in a soft transport: logarithms of probabilities, in KL and in soft minima."""
        logarithms = (float(np.abs(rows[3]).max()) for rows in (self.xs, self.ys))
        return epsilon * (2 + sum(logarithms)) if epsilon else 0.0

    def dual_bounds(self, U: Array, epsilon: float) -> tuple[Array, float]:
        """Lower bounds on all transports for the table U (entropic for ε > 0), and the largest number that entered."""
        out, where = np.empty(self.size), (self.xs, self.ys, self.shape[1])
        sizes = self.split(lambda piece, lo, hi: potentials.dual_bounds(lo, hi, *where, U, epsilon, self.G, out), 3)
        return out, max(sizes)
