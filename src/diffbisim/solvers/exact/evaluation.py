"""The value of a coupling: linear systems over pairs of states.

The plans of all pairs are the rows of a stochastic matrix Π and define a Markov chain of pairs. Its discounted value
and its occupancy are the solutions of

    (I - γ Π) U = (1-γ) c            and            (I - γ Πᵀ) m = (1-γ) m_0.

Plain sweeps come first. Where the chain mixes, all they are slow to find is a constant, which can be computed at any
time (:meth:`PairChain.relax`). BiCGStab (krylov.py) is next. Where it stagnates (periodic chains, slow walks, γ near
one), it gets an incomplete factorization as preconditioner or, if that would be too large, is replaced by plain sweeps.
An inaccurate evaluation costs the solver iterations but never correctness: the certificate comes from the sweep of
transports that follows.

*Single precision.* After an improvement of the table U the residual of the new plans is known, r = T U - U, and we want
U + δ with (I - γ Π) δ = r. A few digits of δ are enough, however accurate U is. So for very many pairs this is done in
single precision (:class:`Correction`), which halves the memory traffic.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from scipy import sparse

from diffbisim._compile import njit, uncounted
from diffbisim.common.arrays import Array, available_threads
from diffbisim.common.parallel import (
    CHUNK,
    WORK_BETWEEN_CHECKS,
    Stop,
    interruptible_parts,
    part_size,
    run_abandonable,
    split,
)
from diffbisim.solvers import krylov
from diffbisim.solvers.exact.transports import NO_NUMBERS, Transports, first_edge
from diffbisim.solvers.krylov import Operator, bicgstab, sweep
from diffbisim.solvers.successors import longest

EPS = float(np.finfo(float).eps)

#: Matrices with at most this many entries are factorized (incompletely) where the iteration stagnates: up to 0.5 GB.
FACTORIZE = 2_000_000

#: Sweeps continue while at most AHEAD more are expected to suffice, and SWEEPS at most. One step of BiCGStab takes two
#: products and several passes over five vectors.
AHEAD, SWEEPS = 12, 60


class Plans(NamedTuple):
    """Plans as rows of a sparse matrix (CSR) whose columns are pairs. Pair z uses row z, or row ``chosen[z]``."""

    indptr: Any  # (K + 1,)
    target: Any  # (E,) pairs
    flow: Any  # (E,)
    chosen: Any  # (N,) rows; empty for the identity


class System(NamedTuple):
    """(I - γ Π), or its transpose, for compiled code. ``count (1,)`` counts the products."""

    plans: Plans
    discount: float
    transposed: bool
    count: Any


@njit(cache=True, nogil=True)
def apply_system(lo, hi, plans, discount, v, out):
    """out = (I - γ Π) v at the pairs lo…hi-1."""
    plans, v, out = uncounted(plans), uncounted(v), uncounted(out)
    for z in range(lo, hi):
        k = plans.chosen[z] if plans.chosen.size else z
        total = 0.0
        for e in range(plans.indptr[k], plans.indptr[k + 1]):
            total += plans.flow[e] * v[np.uintp(plans.target[e])]
        out[z] = v[z] - discount * total


@njit(cache=True, nogil=True)
def sweep_plans(lo, hi, plans, discount, source, v, out):
    """out = source + γ Π v at the pairs lo…hi-1; returns the least and the largest change."""
    plans, source, v, out = uncounted(plans), uncounted(source), uncounted(v), uncounted(out)
    low, high = np.inf, -np.inf
    for z in range(lo, hi):
        total = 0.0
        for e in range(plans.indptr[z], plans.indptr[z + 1]):
            total += plans.flow[e] * v[np.uintp(plans.target[e])]
        out[z] = source[z] + discount * total
        change = out[z] - v[z]
        low, high = min(low, change), max(high, change)
    return low, high


class LinearSweep(NamedTuple):
    """out = source + γ Π v, in single precision."""

    discount: Any
    source: Any  # (N,)
    v: Any
    out: Any


@njit(cache=True, nogil=True, forceinline=True)
def _store(sweep, z, total, low, high):
    """Write out[z], given (Π v)[z] = ``total``; returns the least and the largest change so far."""
    new = sweep.source[z] + sweep.discount * total
    change = new - sweep.v[z]
    sweep.out[z] = new
    return min(low, change), max(high, change)


@njit(cache=True, nogil=True)
def sweep_single(lo, hi, items, trees, plans, sweep):
    """:func:`sweep_plans` for narrow trees, all in single precision."""
    items, plans, sweep = uncounted(items), uncounted(plans), uncounted(sweep)
    x, y, m_y, v = items.x.indptr, items.y.indptr, items.y.indptr.size - 1, sweep.v
    low, high, z = np.float32(np.inf), np.float32(-np.inf), np.uintp(lo)
    e = np.uintp(first_edge(items, trees, lo))
    for i in range(lo // m_y, -(-hi // m_y)):
        a = x[i + 1] - x[i]
        for j in range(max(lo - i * m_y, 0), min(hi - i * m_y, m_y)):
            n, total = np.uintp(a + y[np.uintp(j + 1)] - y[np.uintp(j)] - 1), np.float32(0.0)
            for k in range(n):
                total += plans.flow[e + k] * v[np.uintp(plans.target[e + k])]
            low, high = _store(sweep, z, total, low, high)
            e += n
            z += np.uintp(1)
    return low, high


@njit(cache=True, nogil=True)
def sweep_trees(lo, hi, items, trees, plans, sweep):
    """:func:`sweep_single` with targets from the trees: the cell of two nodes is at the sum of their places."""
    items, trees, flow, sweep = uncounted(items), uncounted(trees), uncounted(plans.flow), uncounted(sweep)
    x, y, m_y, v = items.x, items.y, items.y.indptr.size - 1, sweep.v
    place = np.empty(longest(x) + longest(y), np.uintp)
    low, high, z = np.float32(np.inf), np.float32(-np.inf), np.uintp(lo)
    e = np.uintp(first_edge(items, trees, lo))
    for i in range(lo // m_y, -(-hi // m_y)):
        first, a = x.indptr[i], x.indptr[i + 1] - x.indptr[i]
        for s in range(a):
            place[np.uintp(s)] = x.indices[first + s] * items.n_y
        for j in range(max(lo - i * m_y, 0), min(hi - i * m_y, m_y)):
            start = y.indptr[np.uintp(j)]
            b = y.indptr[np.uintp(j + 1)] - start
            for t in range(b):
                place[np.uintp(a + t)] = y.indices[np.uintp(start + t)]
            n, total = np.uintp(a + b - 1), np.float32(0.0)
            for k in range(n):
                c, p = np.uintp(trees.child[e + k]), np.uintp(trees.parent[e + k])
                total += flow[e + k] * v[place[c] + place[p]]
            low, high = _store(sweep, z, total, low, high)
            e += n
            z += np.uintp(1)
    return low, high


@njit(cache=True, nogil=True)
def push_system(lo, hi, plans, discount, v, out):
    """out += the part of (I - γ Π)ᵀ v that comes from the pairs lo…hi-1; every thread needs its own ``out``."""
    plans, v, out = uncounted(plans), uncounted(v), uncounted(out)
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
    """Mark the pairs that the plans lead to from those in ``queue[head:tail]``, which are already marked.

    Stops after about ``entries`` entries and returns the new head and tail.
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


def _pays(spread: float, before: float, target: float) -> bool:
    """Whether to continue sweeping, given the spread of the changes in the last sweep and in the one before."""
    return 2 * target < spread < before and spread * (spread / before) ** AHEAD <= 2 * target


def _range(ends: list[Any]) -> tuple[float, float]:
    """The least and the largest change, given both for every part."""
    low, high = np.array(ends).T
    return float(low.min()), float(high.max())


class PairChain:
    """The Markov chain of N pairs that the plans define, and its linear systems."""

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
        """Π, (N, N), as a copy."""
        indptr, target, flow, chosen = self.plans
        rows = sparse.csr_array((flow, target, indptr), shape=(indptr.size - 1, self.size), copy=True)
        return rows[chosen] if chosen.size else rows

    def system(self, transposed: bool = False) -> Operator | System:
        """``v ↦ (I - γ Π) v``, or its transpose: a function if threads are worthwhile, else a tuple for kernels."""
        if self._entries < 2 * CHUNK:
            return System(self.plans, self.discount, transposed, self.count)
        return self._pushed() if transposed else self._applied

    def _applied(self, v: Array, out: Array) -> None:
        def run(piece: int, lo: int, hi: int, stop: Stop) -> None:
            apply_system(lo, hi, self.plans, self.discount, v, out)

        split(run, self.size, float(self._entries), self.threads)
        self.count += 1

    def _pushed(self) -> Operator:
        """The transposed system. Every thread sums into its own table; these are added in a fixed order."""
        tables = [np.empty(self.size) for _ in range(self.threads - 1)]
        step = part_size(self.size, float(self._entries))

        def product(v: Array, out: Array) -> None:
            def run(piece: int, lo: int, hi: int, stop: Stop) -> None:
                part = tables[piece - 1] if piece else out
                part.fill(0.0)
                for first, last in interruptible_parts(lo, hi, step, stop):
                    push_system(first, last, self.plans, self.discount, v, part)

            split(run, self.size, float(self._entries), self.threads, pieces=self.threads)
            for table in tables:
                out += table
            self.count += 1

        return product

    def relax(self, source: Array, U: Array, spare: Array, target: float) -> bool:
        """Sweep U ← source + γ Π U while that is worthwhile; returns whether the residual fell below ``target``.

        Requires stochastic plans without ``chosen``. If the change in a sweep is within [l, h], the solution is within
        γ/(1-γ) [l, h] of the table. The middle of this interval is the constant that sweeps are slow to find, and the
        spread h - l contracts as fast as the chain mixes. ``spare (N,)`` is overwritten. Small systems are left to
        BiCGStab, which is compiled as a whole.
        """
        if self._entries < 2 * CHUNK:
            return False
        tables, spread, before = (U, spare), np.inf, np.inf
        for k in range(SWEEPS):
            v, out = tables[k % 2], tables[1 - k % 2]
            low, high = self._swept(source, v, out)
            spread, before = high - low, spread
            if not _pays(spread, before, target):
                break
        np.add(out, self.discount / (1 - self.discount) * (low + high) / 2, out=U)
        return bool(spread <= 2 * target)

    def _swept(self, source: Array, v: Array, out: Array) -> tuple[float, float]:
        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return sweep_plans(lo, hi, self.plans, self.discount, source, v, out)

        self.count += 1
        return _range(split(run, self.size, float(self._entries), self.threads))

    # --- the two systems -----------------------------------------------------------------------------------

    def evaluate(self, source: Array, U: Array, target: float) -> None:
        """Improve ``U`` toward the solution of (I - γ Π) U = source, to a residual below ``target`` where possible."""
        system = self.system()
        if bicgstab(system, source, U, target, max_iterations=150) <= 2 * target:
            return
        if self.preconditioned(source, U, target, transposed=False):
            return
        bound = float(np.abs(source).max()) / (1 - self.discount)
        if not float(np.abs(U).max()) <= 2.0 * bound:  # it diverged: restart from a bound on the solution
            U.fill(bound)
        sweep(system, source, U, 100)

    def occupancy(self, start: Array, accuracy: float) -> tuple[Array, float]:
        """``m (N,)`` for a law of the first pair, exactly zero where the plans never lead; and a bound on its error.

        The total error is at most the total residual of the equation divided by 1 - γ.
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
        """Which pairs ``(N,)`` the plans lead to from the first ones."""
        seen, queue = np.zeros(self.size, np.bool_), np.empty(self.size, np.int64)
        seen[first] = True
        queue[: first.size] = first
        head, tail = 0, first.size
        while head < tail:
            head, tail = mark_visited(self.plans, seen, queue, head, tail, WORK_BETWEEN_CHECKS)
        return seen

    def preconditioned(self, source: Array, guess: Array, target: float, transposed: bool) -> bool:
        """Solve systems on which plain BiCGStab stagnates; returns whether the largest residual is below ``target``.

        Writes the solution to ``guess``. An incomplete LU with bounded fill makes walks, cycles and absorbing chains
        easy. Returns False for matrices whose factors would be too large.
        """
        from scipy.sparse.linalg import LinearOperator, bicgstab, spilu

        if self._entries > FACTORIZE:
            return False
        system = (sparse.eye_array(self.size) - self.discount * self.matrix()).tocsc()
        system = system.T.tocsc() if transposed else system
        try:
            factors = run_abandonable(spilu, system, drop_tol=1e-6, fill_factor=20)
        except RuntimeError:  # exactly singular after dropping
            return False
        inverse = LinearOperator(system.shape, matvec=factors.solve, dtype=np.float64)
        solution = factors.solve(source)
        for _ in range(5):  # restarts, because the recurrence may drift
            residual = source - system @ solution
            if float(np.abs(residual).max()) <= target:
                guess[:] = solution
                return True
            correction, _ = bicgstab(system, residual, M=inverse, rtol=1e-3, atol=0.0, maxiter=50)
            solution = solution + correction
        return False


class Correction(ABC):
    """(I - γ Π) δ = r in single precision, where δ is to be added to a table with residual r.

    Overwrites ``spare (2, N)`` and returns the solution in one of its rows. If Π is stochastic, the solution lacks a
    constant, which is estimated by ``constant``.
    """

    def __init__(self, discount: float, spare: Any) -> None:
        self.discount, self.spare, self.products, self.constant = discount, spare, 0, 0.0

    def solve(self, r: Any, target: float) -> Any:
        """δ (N,), to a residual below ``target`` where possible: by plain sweeps, then BiCGStab."""
        v, spread, before = r, np.inf, np.inf
        for k in range(SWEEPS):
            out = self.spare[k % 2]
            low, high = self._swept(self.discount, r, v, out)
            v, spread, before = out, high - low, spread
            if not _pays(spread, before, target):
                break
        self.constant = self.discount / (1 - self.discount) * (low + high) / 2
        if spread <= 2 * target:
            return v
        self.constant = 0.0
        if bicgstab(self._applied, r, v, target, max_iterations=150) <= 2 * target:
            return v
        return self._solve_slowly(r, v, target)

    def _solve_slowly(self, r: Any, v: Any, target: float) -> Any:
        """For systems on which BiCGStab stagnates: a preconditioner or, if that would be too large, plain sweeps."""
        if self._entries <= FACTORIZE:
            solution = np.zeros(r.size)
            chain = PairChain(self._plans(), r.size, self.discount)
            if chain.preconditioned(r.astype(np.float64), solution, target, False):
                v[:] = solution
                return v
        if not float(np.abs(v).max()) <= 2.0 * float(np.abs(r).max()) / (1 - self.discount):
            v[:] = r
        other = self.spare[0] if v is not self.spare[0] else self.spare[1]
        for _ in range(50):
            self._swept(self.discount, r, v, other)
            self._swept(self.discount, r, other, v)
        return v

    def _applied(self, v: Any, out: Any) -> None:
        self._swept(-self.discount, v, v, out)

    @property
    @abstractmethod
    def _entries(self) -> int:
        """Stored entries of Π."""

    @abstractmethod
    def _plans(self) -> Plans:
        """Π in double precision."""

    @abstractmethod
    def _swept(self, discount: float, source: Any, v: Any, out: Any) -> tuple[float, float]:
        """out = source + discount Π v; returns the least and the largest change from v."""


class TreeCorrection(Correction):
    """For the plans of narrow transports, one per pair."""

    def __init__(self, transports: Transports, discount: float, spare: Any) -> None:
        super().__init__(discount, spare)
        self.transports = transports

    @property
    def _entries(self) -> int:
        return self.transports.edges

    def _plans(self) -> Plans:
        t = self.transports
        return Plans(t.at, t.targets(), t.flow, NO_NUMBERS)

    def _swept(self, discount: float, source: Any, v: Any, out: Any) -> tuple[float, float]:
        t = self.transports
        kernel, sweep = sweep_single, LinearSweep(np.float32(discount), source, v, out)
        if not t.single.target.size:
            kernel = sweep_trees

        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return kernel(lo, hi, t.items, t.trees, t.single, sweep)

        self.products += 1
        return _range(split(run, t.size, float(t.edges), t.threads))


class PlanCorrection(Correction):
    """For plans with flows in single precision, one row per pair in order."""

    def __init__(self, plans: Plans, discount: float, spare: Any, threads: int) -> None:
        super().__init__(discount, spare)
        self.plans, self.threads = plans, threads

    @property
    def _entries(self) -> int:
        return int(self.plans.flow.size)

    def _plans(self) -> Plans:
        return self.plans._replace(flow=self.plans.flow.astype(np.float64))

    def _swept(self, discount: float, source: Any, v: Any, out: Any) -> tuple[float, float]:
        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return sweep_plans(lo, hi, self.plans, discount, source, v, out)

        self.products += 1
        return _range(split(run, v.size, float(self._entries), self.threads))
