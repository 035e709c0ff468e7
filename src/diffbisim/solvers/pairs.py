"""All pairs of states at once: the bases of their transports, and sweeps over them in threads.

The state of a :class:`PairGrid` is one spanning tree per pair, kept from sweep to sweep. Threads are plain Python
threads running numba code without the GIL, made for one sweep and joined at its end: that is safe when several Python
threads use a grid at once and in forked processes, which numba's own thread pools are not. A sweep that is too small to
pay for a second thread runs in the caller. Pieces are small, so that an interrupt acts at once. Sums over threads are
taken in a fixed order, so that the same call gives the same bits.

A problem on the same supports as the last one (a step of a fit, of imitation) begins with copies of its trees and
shares all else: :func:`begin`.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.parallel import stop_flag, stretches, taken
from diffbisim.problem import Array, Problem, available_threads, lazy
from diffbisim.results import DistanceResult, check_warm
from diffbisim.solvers import kernels
from diffbisim.solvers.krylov import Compiled, Operator
from diffbisim.solvers.start import LARGE

#: Cells (or edges) per chunk below which handing work to another thread costs more than it saves.
CHUNK = 200_000

#: Grids with up to so many tree edges are factorized (incompletely) where the iteration stagnates: 0.5 GB at most.
FACTORIZE = 2_000_000

#: Cells (or edges) between two looks at whether the run is interrupted: 0.1 s at most, first bases included.
STRETCH = 25 * CHUNK

NOTHING: Array = np.empty(0)


Run = Callable[[int, int, int, NDArray[np.bool_]], Any]


class PairGrid:
    """Trees of every pair (x,y) in ``pair`` (flat indices; empty: the whole grid), with the sweeps over them.

    ``pair`` is either empty or what the starts of the problem can reach, and follows from the problem alone.
    ``fresh`` says what the next :meth:`improve` may build on: 2 nothing, 1 trees of other marginals, 0 everything.
    ``clipped`` is the most mass by which the plan of a pair was changed because its flows were slightly negative.
    """

    def __init__(self, problem: Problem, reachable: bool = False, threads: int | None = None) -> None:
        self.problem, self.discount, self.scale = problem, problem.discount, problem.scale or 1.0
        self.n_x, self.n_y = problem.shape
        cost = problem.cost / self.scale
        self.xs, self.ys = map(_ordered_successors, (problem.x, problem.y), sort_keys(cost))
        self.pair = self._reachable() if reachable else np.empty(0, np.int64)
        self.size = self.pair.size or self.n_x * self.n_y
        self.c = self._listed(cost.ravel())
        self.at = self._offsets()
        self.cells = float(self.at[-1]) ** 2 / self.size  # about the cells of all transports, for sharing out work
        self.nodes = int(np.diff(self.xs[0]).max() + np.diff(self.ys[0]).max())
        index = np.int8 if self.nodes <= 128 else np.int16 if self.nodes <= 2**15 else np.int32
        self.child, self.parent = np.empty(self.at[-1], index), np.empty(self.at[-1], index)
        self.flow = np.empty(self.at[-1])
        self.fresh, self.clipped = 2, 0.0
        self.threads = threads or available_threads()
        self.pivots, self.improvements, self.sweeps = 0, 0, np.zeros(1, np.int64)

    @property
    def work(self) -> dict[str, int]:
        """What was done so far."""
        sweeps = int(self.sweeps[0])
        return {"pairs": self.size, "pivots": self.pivots, "improvements": self.improvements, "sweeps": sweeps}

    def _listed(self, table: Array) -> Array:
        """The table with zeros at pairs that are not listed."""
        if self.pair.size:
            kept = table[self.pair]
            table = np.zeros_like(table)
            table[self.pair] = kept
        return table

    def fits(self, problem: Problem, reachable: bool) -> bool:
        """Whether a problem of this shape has the same pairs, each with the same successors."""
        if (self.pair.size > 0) != reachable or (reachable and not _same_starts(self.problem, problem)):
            return False
        return all(
            np.array_equal(side[0], chain.successors.indptr) and np.array_equal(side[1], chain.successors.indices)
            for side, chain in zip((self.xs, self.ys), (problem.x, problem.y), strict=True)
        )

    def again(self, problem: Problem, threads: int | None) -> "PairGrid":
        """The grid of a problem that it fits, with copies of the trees."""
        grid = copy(self)
        grid.problem, grid.discount, grid.scale = problem, problem.discount, problem.scale or 1.0
        if np.array_equal(problem.cost, self.problem.cost):
            p, q = problem.x.successors.probabilities, problem.y.successors.probabilities
            grid.xs, grid.ys = (*self.xs[:2], p, self.xs[3]), (*self.ys[:2], q, self.ys[3])
        else:
            cost = problem.cost / grid.scale
            grid.xs, grid.ys = map(_ordered_successors, (problem.x, problem.y), sort_keys(cost))
            grid.c = grid._listed(cost.ravel())
        grid.child, grid.parent, grid.flow = self.child.copy(), self.parent.copy(), self.flow.copy()
        grid.__dict__.pop("unbalanced", None)
        grid.fresh, grid.threads = max(1, self.fresh), threads or available_threads()
        grid.pivots, grid.improvements, grid.sweeps = 0, 0, np.zeros(1, np.int64)
        return grid

    def _reachable(self) -> NDArray[np.int64]:
        seen = np.outer(self.problem.x.initial > 0, self.problem.y.initial > 0).ravel()
        queue = np.empty(seen.size, np.int64)
        first = np.flatnonzero(seen)
        queue[: first.size] = first
        head, tail = 0, first.size
        while head < tail:
            head, tail = kernels.reachable(*self.xs[:2], *self.ys[:2], self.n_y, seen, queue, head, tail, STRETCH)
        return np.sort(queue[:tail])

    def _offsets(self) -> NDArray[np.int64]:
        a, b = np.diff(self.xs[0]), np.diff(self.ys[0])
        at = np.zeros(self.size + 1, np.int64)
        if self.pair.size:
            at[1:] = a[self.pair // self.n_y] + b[self.pair % self.n_y] - 1
        else:
            np.add.outer(a, b - 1, out=at[1:].reshape(self.n_x, self.n_y))
        return np.cumsum(at, out=at)

    @property
    def tree(self) -> tuple[Any, ...]:
        """What every kernel reads: pairs, supports and trees."""
        return (self.pair, self.n_y, *self.xs[:2], *self.ys[:2], self.at, self.child, self.parent, self.flow)

    def split(self, run: Run, work: float, pieces: int | None = None, wait: bool = False) -> list[Any]:
        """``run(piece, lo, hi, stop)`` over the pairs, in as many pieces as the work is worth; results in their order.

        A given number of pieces may make them long: then ``run`` goes in :meth:`stretches` that look at ``stop``.
        """
        stop = stop_flag()
        if pieces is None:
            worth = 1.0 if self.threads == 1 else min(8.0 * self.threads, work // CHUNK)
            pieces = int(min(max(worth, work // STRETCH, 1.0), self.size))
        if pieces == 1 and not wait and not stop[0]:
            return [run(0, 0, self.size, stop)]
        cuts = np.linspace(0, self.size, pieces + 1).astype(np.int64).tolist()
        return taken(run, [(k, cuts[k], cuts[k + 1], stop) for k in range(pieces)], self.threads, stop, wait)

    def stretches(self, lo: int, hi: int, work: float, stop: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """Pairs lo…hi-1 a stretch of the ``work`` on all of them at a time, until told to stop."""
        return stretches(lo, hi, max(1, int(self.size * min(1.0, STRETCH / work))), stop)

    def improve(self, U: Array, out: Array, tol: float, slack: Array = NOTHING) -> bool:
        """``out = T U`` with optimal trees; returns whether every transport was solved to ``tol`` (and ``slack``)."""
        fresh = self.fresh
        self.fresh = 2  # an interrupted sweep leaves trees of mixed age

        def run(piece: int, lo: int, hi: int, stop: NDArray[np.bool_]) -> Any:
            return kernels.improve(
                lo, hi, self.pair, self.n_y, self.xs, self.ys, self.at, self.child, self.parent, self.flow,
                U, self.c, self.discount, fresh, tol, slack, out, stop,
            )  # fmt: skip

        done = self.split(run, self.cells, wait=self.nodes**2 > 4 * LARGE)
        self.fresh = 0
        self.pivots += sum(pivots for pivots, _, _ in done)
        self.improvements += 1
        if fresh:
            self.clipped = 0.0
        self.clipped = max(self.clipped, *(clipped for _, _, clipped in done))
        return not any(failed for _, failed, _ in done)

    def extremes(self, TU: Array, U: Array) -> tuple[float, float, float]:
        """Smallest and largest ``TU - U`` over the listed pairs, and the size of the tables (kernels.extremes)."""
        return kernels.extremes(self.pair, TU, U)  # type: ignore[no-any-return]

    @lazy
    def unbalanced(self) -> float:
        """How far the masses of two rows that are matched may be from one, in total."""
        return sum(float(np.abs(np.add.reduceat(p, ptr[:-1]) - 1.0).max()) for ptr, _, p, _ in (self.xs, self.ys))

    def shifted(self, TU: Array, amount: float, U: Array) -> None:
        """``U = TU + amount`` on the listed pairs."""
        if self.pair.size:
            U[self.pair] = TU[self.pair] + amount
        else:
            np.add(TU, amount, out=U)

    def preconditioned_solve(self, source: Array, guess: Array, target: float, transposed: bool = False) -> bool:
        """``(I - γ Π)⁻¹ source`` (or with the transpose) into ``guess`` where plain Krylov stagnates.

        An incomplete LU of bounded fill makes walks, cycles and absorbing chains easy. Returns whether the largest
        residual is below ``target``; refuses (False) grids whose factors would be large.
        """
        from scipy.sparse.linalg import LinearOperator, bicgstab, spilu

        if self.at[-1] > FACTORIZE:
            return False
        system = (sparse.eye_array(self.c.size) - self.discount * self.matrix()).tocsc()
        system = system.T.tocsc() if transposed else system
        try:
            factors = spilu(system, drop_tol=1e-6, fill_factor=20)
        except RuntimeError:  # exactly singular after dropping
            return False
        inverse = LinearOperator(system.shape, matvec=factors.solve, dtype=np.float64)
        solution = factors.solve(source)
        for _ in range(5):  # restarts: the recurrence may drift
            residual = source - system @ solution
            if float(np.abs(residual).max()) <= target:
                guess[:] = solution
                return True
            correction, _ = bicgstab(system, residual, M=inverse, rtol=1e-3, atol=0.0, maxiter=50)
            solution = solution + correction
        return False

    def matrix(self) -> sparse.csr_array:
        """``Π`` as a sparse matrix on flat pairs."""
        cols = np.empty(self.at[-1], np.int64)
        kernels.edge_targets(*self.tree[:-1], cols)
        ptr = np.zeros(self.c.size + 1, np.int64)
        ptr[1:][self.pair if self.pair.size else slice(None)] = np.diff(self.at)
        return sparse.csr_array((self.flow, cols, np.cumsum(ptr)), shape=(self.c.size, self.c.size))

    def system(self, transposed: bool = False) -> Operator | Compiled:
        """``v ↦ (I - γ Π) v``, or with the transpose: a function where threads pay, else what compiled code reads."""
        pieces = int(self.at[-1]) // CHUNK
        if pieces < 2:
            return (*self.tree, self.discount, transposed, self.sweeps)
        return self._pushed(min(self.threads, pieces)) if transposed else self._applied

    def _applied(self, v: Array, out: Array) -> None:
        def run(piece: int, lo: int, hi: int, stop: NDArray[np.bool_]) -> None:
            kernels.apply_system(lo, hi, *self.tree, self.discount, v, out)

        self.split(run, float(self.at[-1]))
        self.sweeps += 1

    def _pushed(self, pieces: int) -> Operator:
        """The transposed one. Every piece sums into a table of its own."""
        tables = [np.empty_like(self.c) for _ in range(pieces - 1)]

        def apply(v: Array, out: Array) -> None:
            def run(piece: int, lo: int, hi: int, stop: NDArray[np.bool_]) -> None:
                part = tables[piece - 1] if piece else out
                part.fill(0.0)
                for first, last in self.stretches(lo, hi, float(self.at[-1]), stop):
                    kernels.push_system(first, last, *self.tree, self.discount, v, part)

            self.split(run, float(self.at[-1]), pieces)
            for table in tables:
                out += table
            self.sweeps += 1

        return apply


def begin(
    problem: Problem, warm: DistanceResult | None, reachable: bool, threads: int | None
) -> tuple[PairGrid, Array]:
    """The grid of a problem and the scaled table to begin with; from a previous exact result its trees, if they fit.

    The table of the previous result may be of any size, and may miss pairs. The fixed point lies between the smallest
    and the largest cost, so it is cut off there, which brings it nearer; a pair that it misses begins with its cost.
    """
    if warm is None:
        grid = PairGrid(problem, reachable, threads)
        return grid, grid.c.copy()
    check_warm(warm, problem.shape)
    last = getattr(warm.coupling, "grid", None)
    if isinstance(last, PairGrid) and last.fits(problem, reachable):
        grid = last.again(problem, threads)
    else:
        grid = PairGrid(problem, reachable, threads)
    cost = problem.cost.ravel() / grid.scale
    with np.errstate(over="ignore"):
        table = warm.values.ravel() / grid.scale
    return grid, grid._listed(np.where(np.isnan(table), cost, np.clip(table, cost.min(), cost.max())))


def sort_keys(cost: Array) -> tuple[Array, Array]:
    """One number per state of X and of Y such that sorted states are cheap to match.

    The leading singular pair of the doubly centered cost: c ≈ row + column - σ u vᵀ, and -u vᵀ is minimized by the
    comonotone coupling. For |r_x - r_y| the pair is monotone in the rewards, and the first basis is optimal.
    """
    u, v = np.zeros(cost.shape[0]), np.linspace(-1.0, 1.0, cost.shape[1]) + cost[0]
    for _ in range(8):  # power iteration; a centered vector centers the other side of the cost
        u = cost @ (v - v.mean())
        v = (u - u.mean()) @ cost
        norm = float(np.abs(v - v.mean()).max())
        if not norm > 0:
            break
        v = v / norm
    return u, -v


def _ordered_successors(chain: MarkovChain, key: Array) -> tuple[Any, ...]:
    """CSR arrays of the successors, and the local order of every row by ``key``."""
    s = chain.successors
    row = s.sources
    order = np.lexsort((key[s.indices], row)) - s.indptr[row]
    return s.indptr, s.indices, s.probabilities, order


def _same_starts(one: Problem, other: Problem) -> bool:
    """Whether the starts have the same supports."""
    return all(np.array_equal(a.initial > 0, b.initial > 0) for a, b in ((one.x, other.x), (one.y, other.y)))
