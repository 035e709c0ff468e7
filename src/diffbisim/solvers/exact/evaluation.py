"""What a coupling is worth: linear systems over pairs of states.

The plans of all pairs are the rows of a stochastic matrix Π, and make a Markov chain of pairs. Its discounted value and
its occupancy are

    (I - γ Π) U = (1-γ) c            and            (I - γ Πᵀ) m = (1-γ) m_0.

BiCGStab first (krylov.py); where it stagnates (periodic chains, slow walks, γ near one) with an incomplete
factorization as preconditioner; where that would be too large, by plain sweeps. A poor evaluation costs the solver
iterations, never correctness: what is certified is the sweep of transports that follows.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from scipy import sparse

from diffbisim._compile import borrowed, njit
from diffbisim.parallel import CHUNK, STRETCH, Stop, left_behind, split, stretch, stretches
from diffbisim.problem import Array, available_threads
from diffbisim.solvers import krylov
from diffbisim.solvers.krylov import Operator, bicgstab, sweep

EPS = float(np.finfo(float).eps)

#: Matrices with up to so many entries are factorized (incompletely) where the iteration stagnates: 0.5 GB at most.
FACTORIZE = 2_000_000


class Plans(NamedTuple):
    """Plans as rows of a sparse matrix (CSR) whose columns are pairs; pair z uses row z, or ``chosen[z]``."""

    indptr: Any  # (K + 1,)
    target: Any  # (E,) pairs
    flow: Any  # (E,)
    chosen: Any  # (N,) rows; empty for the identity


class System(NamedTuple):
    """(I - γ Π), or its transpose, for compiled code; ``count (1,)`` counts the products."""

    plans: Plans
    discount: float
    transposed: bool
    count: Any


@njit(cache=True, nogil=True)
def apply_system(lo, hi, plans, discount, v, out):
    """out = (I - γ Π) v at the pairs lo…hi-1."""
    plans, v, out = borrowed(plans), borrowed(v), borrowed(out)
    for z in range(lo, hi):
        k = plans.chosen[z] if plans.chosen.size else z
        total = 0.0
        for e in range(plans.indptr[k], plans.indptr[k + 1]):
            total += plans.flow[e] * v[plans.target[e]]
        out[z] = v[z] - discount * total


@njit(cache=True, nogil=True)
def push_system(lo, hi, plans, discount, v, out):
    """out += the part of (I - γ Π)ᵀ v that comes from the pairs lo…hi-1; every thread needs an ``out`` of its own."""
    plans, v, out = borrowed(plans), borrowed(v), borrowed(out)
    for z in range(lo, hi):
        if v[z] == 0.0:
            continue
        k = plans.chosen[z] if plans.chosen.size else z
        out[z] += v[z]
        amount = discount * v[z]
        for e in range(plans.indptr[k], plans.indptr[k + 1]):
            out[plans.target[e]] -= plans.flow[e] * amount


@njit(cache=True, nogil=True)
def _product(system, v, out):
    system.count[0] += 1
    if system.transposed:
        out[:] = 0.0
        push_system(0, v.size, system.plans, system.discount, v, out)
    else:
        apply_system(0, v.size, system.plans, system.discount, v, out)


@overload(krylov.product)
def _compiled_product(system, v, out):
    if isinstance(system, types.NamedTuple) and system.instance_class is System:
        return lambda system, v, out: _product(system, v, out)
    return None


@njit(cache=True, nogil=True)
def mark_visited(plans, seen, queue, head, tail, entries):
    """Mark the pairs that the plans lead to from those in ``queue[head:tail]``, which are marked already.

    Looks at about so many ``entries``; returns where head and tail are then.
    """
    while head < tail and entries > 0:
        k = plans.chosen[queue[head]] if plans.chosen.size else queue[head]
        head += 1
        entries -= plans.indptr[k + 1] - plans.indptr[k]
        for e in range(plans.indptr[k], plans.indptr[k + 1]):
            to = plans.target[e]
            if plans.flow[e] > 0.0 and not seen[to]:
                seen[to] = True
                queue[tail] = to
                tail += 1
    return head, tail


class PairChain:
    """The Markov chain of N pairs that plans make, with its linear systems."""

    def __init__(self, plans: Plans, size: int, discount: float, threads: int | None = None) -> None:
        self.plans, self.size, self.discount = plans, size, discount
        self.threads = threads or available_threads()
        self.count = np.zeros(1, np.int64)

    @property
    def products(self) -> int:
        """Products with Π or its transpose so far."""
        return int(self.count[0])

    @property
    def _entries(self) -> int:
        return int(self.plans.flow.size)

    def matrix(self) -> sparse.csr_array:
        """Π, (N, N), in memory of its own."""
        indptr, target, flow, chosen = self.plans
        rows = sparse.csr_array((flow, target, indptr), shape=(indptr.size - 1, self.size), copy=True)
        return rows[chosen] if chosen.size else rows

    def system(self, transposed: bool = False) -> Operator | System:
        """``v ↦ (I - γ Π) v``, or with the transpose: a function where threads pay, else what compiled code reads."""
        if self._entries < 2 * CHUNK:
            return System(self.plans, self.discount, transposed, self.count)
        return self._pushed() if transposed else self._applied

    def _applied(self, v: Array, out: Array) -> None:
        def run(piece: int, lo: int, hi: int, stop: Stop) -> None:
            apply_system(lo, hi, self.plans, self.discount, v, out)

        split(run, self.size, float(self._entries), self.threads)
        self.count += 1

    def _pushed(self) -> Operator:
        """The transposed one. Every thread sums into a table of its own; they are added in a fixed order."""
        tables = [np.empty(self.size) for _ in range(self.threads - 1)]
        step = stretch(self.size, float(self._entries))

        def product(v: Array, out: Array) -> None:
            def run(piece: int, lo: int, hi: int, stop: Stop) -> None:
                part = tables[piece - 1] if piece else out
                part.fill(0.0)
                for first, last in stretches(lo, hi, step, stop):
                    push_system(first, last, self.plans, self.discount, v, part)

            split(run, self.size, float(self._entries), self.threads, pieces=self.threads)
            for table in tables:
                out += table
            self.count += 1

        return product

    # --- the two systems -----------------------------------------------------------------------------------

    def evaluate(self, source: Array, U: Array, target: float) -> None:
        """Bring ``U`` to the solution of (I - γ Π) U = source: residual below ``target`` where that can be had."""
        system = self.system()
        if bicgstab(system, source, U, target, max_iterations=150) <= 2 * target:
            return
        if self.preconditioned(source, U, target, transposed=False):
            return
        bound = float(np.abs(source).max()) / (1 - self.discount)
        if not float(np.abs(U).max()) <= 2.0 * bound:  # it ran away: begin from what bounds the solution
            U.fill(bound)
        sweep(system, source, U, 100)

    def occupancy(self, start: Array, accuracy: float) -> tuple[Array, float]:
        """``m (N,)`` from a law of the first pair, exactly zero where the plans never lead; and a bound on its error.

        The error in total is at most that of the equation over 1 - γ.
        """
        source = (1 - self.discount) * start
        visited = self._visited(np.flatnonzero(source))
        system, m = self.system(transposed=True), source.copy()
        target = max(accuracy * float(source.max()), 4 * EPS)  # m may have entries near one
        error = 0.0
        if bicgstab(system, source, m, target, max_iterations=200) > 1e3 * target and not self.preconditioned(
            source, m, target, transposed=True
        ):
            np.copyto(m, source)
            sweep(system, source, m, min(5_000, int(np.log(accuracy) / np.log(self.discount))))
            krylov.product(system, m, residual := np.empty_like(m))
            error = float(np.abs(residual - source).sum()) / (1 - self.discount)
        m[~visited] = 0.0
        np.maximum(m, 0.0, out=m)
        return m / m.sum(), error

    def _visited(self, first: NDArray[np.intp]) -> NDArray[np.bool_]:
        """The pairs ``(N,)`` that the plans lead to from the first ones."""
        seen, queue = np.zeros(self.size, np.bool_), np.empty(self.size, np.int64)
        seen[first] = True
        queue[: first.size] = first
        head, tail = 0, first.size
        while head < tail:
            head, tail = mark_visited(self.plans, seen, queue, head, tail, STRETCH)
        return seen

    def preconditioned(self, source: Array, guess: Array, target: float, transposed: bool) -> bool:
        """The solution where plain Krylov stagnates, into ``guess``; whether the largest residual is below ``target``.

        An incomplete LU of bounded fill makes walks, cycles and absorbing chains easy. Refuses (False) matrices whose
        factors would be large.
        """
        from scipy.sparse.linalg import LinearOperator, bicgstab, spilu

        if self._entries > FACTORIZE:
            return False
        system = (sparse.eye_array(self.size) - self.discount * self.matrix()).tocsc()
        system = system.T.tocsc() if transposed else system
        try:
            factors = left_behind(spilu, system, drop_tol=1e-6, fill_factor=20)
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
