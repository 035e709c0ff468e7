"""The value of a coupling: linear systems over pairs of states.

The plans of all pairs are the rows of a stochastic matrix Π and define a Markov chain of pairs. Its discounted value
and its occupancy are the solutions of

    (I - γ Π) U = (1-γ) c            and            (I - γ Πᵀ) m = (1-γ) m_0.

The engine sweeps where the chain mixes, and uses BiCGStab elsewhere (engine/evaluation.hpp). Where that stagnates
(periodic chains, slow walks, γ near one), it gets an incomplete factorization as preconditioner here or, if that would
be too large, is replaced by many sweeps. An inaccurate evaluation costs the solver iterations but never correctness:
the certificate comes from the sweep of transports that follows.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, available_threads, lazy
from diffbisim.common.parallel import run_abandonable
from diffbisim.common.stopping import engine_run
from diffbisim.solvers.exact.transports import NO_NUMBERS, Transports

EPS = float(np.finfo(float).eps)

#: Matrices with at most this many entries are factorized (incompletely) where the iteration stagnates: up to 0.5 GB.
FACTORIZE = 2_000_000

#: Iterations of BiCGStab, and sweeps where nothing else helps.
STEPS, SWEEPS = 150, 100


class Plans(NamedTuple):
    """Plans as rows of a sparse matrix (CSR) whose columns are pairs. Pair z uses row z, or row ``chosen[z]``."""

    indptr: Any  # (K + 1,)
    target: Any  # (E,) pairs
    flow: Any  # (E,)
    chosen: Any  # (N,) rows; empty for the identity


class PairChain:
    """The Markov chain of N pairs that the plans define, and its linear systems (I - γ Π) u = b, or with Πᵀ."""

    def __init__(self, plans: Plans, size: int, discount: float, threads: int | None = None) -> None:
        self.plans, self.size, self.discount = plans, size, discount
        self.threads = threads or available_threads()

    @lazy
    def core(self) -> _engine.PairChain:
        """The compiled chain."""
        return _engine.PairChain(self.plans, self.size)

    @property
    def products(self) -> int:
        """Products with Π or its transpose so far."""
        return self.core.products

    def with_discount(self, discount: float) -> "PairChain":
        """The same chain with another discount."""
        chain = PairChain(self.plans, self.size, discount, self.threads)
        chain.__dict__["core"] = self.core
        return chain

    def matrix(self) -> sparse.csr_array:
        """Π, (N, N), as a copy."""
        indptr, target, flow, chosen = self.plans
        rows = sparse.csr_array((flow, target, indptr), shape=(indptr.size - 1, self.size), copy=True)
        return rows[chosen] if chosen.size else rows

    # --- either system -------------------------------------------------------------------------------------

    def apply(self, v: Array, out: Array, transposed: bool = False) -> None:
        """Compute ``out = (I - γ Π) v``."""
        self.core.apply(self.discount, transposed, v, out, engine_run(self.threads))

    def solve(self, source: Array, u: Array, target: float, most: int, transposed: bool = False) -> float:
        """Improve ``u`` by at most this many steps of BiCGStab; returns the largest residual."""
        return self.core.solve(self.discount, transposed, source, u, target, most, engine_run(self.threads))

    def sweep(self, source: Array, u: Array, times: int, transposed: bool = False) -> None:
        """Apply ``u ← source + γ Π u`` so many times."""
        self.core.sweep(self.discount, transposed, source, u, times, engine_run(self.threads))

    # --- the two systems -----------------------------------------------------------------------------------

    def evaluate(self, source: Array, U: Array, target: float, spare: Array | None = None) -> None:
        """Improve ``U`` toward the solution of (I - γ Π) U = source, to a residual below ``target`` where possible.

        With an array ``spare (N,)``, which is overwritten, sweeps come first; the plans must then be stochastic and
        have no ``chosen``.
        """
        run = engine_run(self.threads)
        if spare is not None and self.core.relax(self.discount, source, U, spare, target, run):
            return
        if self.solve(source, U, target, STEPS) <= 2 * target:
            return
        if self.preconditioned(source, U, target, transposed=False):
            return
        bound = float(np.abs(source).max()) / (1 - self.discount)
        if not float(np.abs(U).max()) <= 2.0 * bound:  # it diverged: restart from a bound on the solution
            U.fill(bound)
        self.sweep(source, U, SWEEPS)

    def roughly_occupied(self, start: Array) -> Array:
        """The occupancy for a law of the first pair, as accurately as the engine finds it quickly."""
        source, visited, m = (1 - self.discount) * start, np.ones(self.size, np.bool_), np.array(start)
        self.core.occupancy(self.discount, source, visited, m, EPS * float(source.max()), engine_run(self.threads))
        return np.where(np.isfinite(m), np.maximum(m, 0.0), start)

    def occupancy(self, start: Array, accuracy: float, first: Array | None = None) -> tuple[Array, float]:
        """``m (N,)`` for a law of the first pair, exactly zero where the plans never lead; and a bound on its error.

        The iteration begins with the mass ``first``, or with the start. The total error is at most the total residual
        of the equation divided by 1 - γ.
        """
        source, visited = (1 - self.discount) * start, np.empty(self.size, np.bool_)
        self.core.mark_visited(source, visited, engine_run(self.threads))
        target = max(accuracy * float(source.max()), 4 * EPS)  # m may have entries near one
        m, error = np.array(start if first is None else first), 0.0
        worst = self.core.occupancy(self.discount, source, visited, m, target, engine_run(self.threads))
        if worst > 1e3 * target and not self.preconditioned(source, m, target, transposed=True):
            np.copyto(m, source)
            self.sweep(source, m, min(5_000, int(np.log(accuracy) / np.log(self.discount))), transposed=True)
            self.apply(m, residual := np.empty_like(m), transposed=True)
            error = float(np.abs(residual - source).sum()) / (1 - self.discount)
        m *= visited
        np.maximum(m, 0.0, out=m)
        m /= m.sum()
        return m, error

    def preconditioned(self, source: Array, guess: Array, target: float, transposed: bool) -> bool:
        """Solve systems on which plain BiCGStab stagnates; returns whether the largest residual is below ``target``.

        Writes the solution to ``guess``. An incomplete LU with bounded fill makes walks, cycles and absorbing chains
        easy. Returns False for matrices whose factors would be too large.
        """
        from scipy.sparse.linalg import LinearOperator, bicgstab, spilu

        if self.plans.flow.size > FACTORIZE:
            return False
        matrix = (sparse.eye_array(self.size) - self.discount * self.matrix()).tocsc()
        matrix = matrix.T.tocsc() if transposed else matrix
        try:
            factors = run_abandonable(spilu, matrix, drop_tol=1e-6, fill_factor=20)
        except RuntimeError:  # exactly singular after dropping
            return False
        inverse = LinearOperator(matrix.shape, matvec=factors.solve, dtype=np.float64)
        solution = factors.solve(source)
        for _ in range(5):  # restarts, because the recurrence may drift
            residual = source - matrix @ solution
            if float(np.abs(residual).max()) <= target:
                guess[:] = solution
                return True
            correction, _ = bicgstab(matrix, residual, M=inverse, rtol=1e-3, atol=0.0, maxiter=50)
            solution = solution + correction
        return False


class Correction(ABC):
    """(I - γ Π) δ = r in single precision, where δ is to be added to a table with residual r.

    Overwrites ``spare (2, N)`` and returns the solution in one of its rows. If Π is stochastic, the solution lacks a
    constant, which is estimated by ``constant``.
    """

    def __init__(self, discount: float, spare: Any, threads: int) -> None:
        self.discount, self.spare, self.threads, self.products, self.constant = discount, spare, threads, 0, 0.0

    def solve(self, r: Any, target: float) -> Any:
        """δ (N,), to a residual below ``target`` where possible: by plain sweeps, then BiCGStab."""
        solved, row, self.constant, products = self._corrected(r, target)
        self.products += products
        return self.spare[row] if solved else self._solve_slowly(r, self.spare[row], self.spare[1 - row], target)

    def _solve_slowly(self, r: Any, v: Any, other: Any, target: float) -> Any:
        """For systems on which BiCGStab stagnates: a preconditioner or, if that would be too large, plain sweeps."""
        plans = self._plans()
        if plans is not None:
            solution, chain = np.zeros(r.size), PairChain(plans, r.size, self.discount)
            if chain.preconditioned(r.astype(np.float64), solution, target, False):
                v[:] = solution
                return v
        if not float(np.abs(v).max()) <= 2.0 * float(np.abs(r).max()) / (1 - self.discount):
            v[:] = r
        self._sweep(r, v, other)
        self.products += SWEEPS
        return v

    @abstractmethod
    def _corrected(self, r: Any, target: float) -> tuple[bool, int, float, int]:
        """Whether the system was solved, the row of δ, the constant, and the number of products."""

    @abstractmethod
    def _sweep(self, r: Any, v: Any, other: Any) -> None:
        """Sweep v ← r + γ Π v."""

    @abstractmethod
    def _plans(self) -> Plans | None:
        """Π in double precision, if it is small enough to be factorized."""


class TreeCorrection(Correction):
    """For the plans of narrow transports, one per pair."""

    def __init__(self, transports: Transports, discount: float, spare: Any) -> None:
        super().__init__(discount, spare, transports.threads)
        self.transports = transports

    def _corrected(self, r: Any, target: float) -> tuple[bool, int, float, int]:
        t = self.transports
        one, two = self.spare
        return _engine.correct_trees(t.core, t.single, self.discount, r, one, two, target, engine_run(t.threads))

    def _sweep(self, r: Any, v: Any, other: Any) -> None:
        t = self.transports
        _engine.sweep_trees(t.core, t.single, self.discount, r, v, other, SWEEPS, engine_run(t.threads))

    def _plans(self) -> Plans | None:
        t = self.transports
        return Plans(t.at, *t.plans(), NO_NUMBERS) if t.edges <= FACTORIZE else None


class PlanCorrection(Correction):
    """For plans with flows in single precision, one row per pair in order."""

    def __init__(self, plans: Plans, discount: float, spare: Any, threads: int) -> None:
        super().__init__(discount, spare, threads)
        self.plans = plans

    def _corrected(self, r: Any, target: float) -> tuple[bool, int, float, int]:
        (one, two), run = self.spare, engine_run(self.threads)
        return _engine.correct_plans(self.plans, self.discount, r, one, two, target, run)

    def _sweep(self, r: Any, v: Any, other: Any) -> None:
        _engine.sweep_plans(self.plans, self.discount, r, v, other, SWEEPS, engine_run(self.threads))

    def _plans(self) -> Plans | None:
        small = self.plans.flow.size <= FACTORIZE
        return self.plans._replace(flow=self.plans.flow.astype(np.float64)) if small else None
