"""The plans of all pairs as one stochastic matrix Π on tables: ``apply`` is Π V, ``push`` is Πᵀ m.

Π has n_X² n_Y² entries and is held in one of three ways, the first that is possible:

    Factored     with a shared kernel: two scalings and a rank-one term per pair, O(n_X n_Y (n_X + n_Y)) numbers
    Stored       entry by entry, up to STORED of them: sparse chains
    Recomputed   not at all: every use makes the plans again from the potentials
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from diffbisim.problem import Array
from diffbisim.solvers import sinkhorn_rounding as rounding
from diffbisim.solvers.sinkhorn_plans import GibbsPlans
from diffbisim.solvers.sinkhorn_shared import SharedKernel

#: Most entries of all plans together that are stored: a quarter of a gigabyte.
STORED = 2**25


class PlanOperator(Protocol):
    """Π and its transpose."""

    def apply(self, V: Array, out: Array) -> None:
        """``out[k] = <π_k, V>``."""

    def push(self, m: Array, out: Array) -> None:
        """``out = Σ_k m_k π_k``, flat."""


def plan_operator(plans: GibbsPlans, rounded: bool = True) -> PlanOperator:
    """Π of the plans as they are now; without rounding one of the two marginals is wrong."""
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

        def run(piece: int, lo: int, hi: int) -> float | None:
            arrays = (a[lo:hi] for a in (self.u, self.w, self.row, self.col))
            return kernel.factors(lo, *plans.block(lo, hi), rounded, *arrays)

        masses = plans.split(run, 4, kernel.step)
        self.fits = None not in masses
        self.corrected = self.fits and max(masses) > 0

    def apply(self, V: Array, out: Array) -> None:
        T = V.reshape(self.plans.shape)
        KV, V_T = np.ascontiguousarray((self.kernel.K * T).T), np.ascontiguousarray(T.T)

        def run(piece: int, lo: int, hi: int) -> None:
            np.einsum("ki,ki->k", self.u[lo:hi], self.w[lo:hi] @ KV, out=out[lo:hi])
            if self.corrected:
                out[lo:hi] += np.einsum("ki,ki->k", self.row[lo:hi], self.col[lo:hi] @ V_T)

        self.plans.split(run, 1, self.kernel.step)

    def push(self, m: Array, out: Array) -> None:
        def run(piece: int, lo: int, hi: int) -> tuple[Array, Array]:
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
    """All entries, pair after pair."""

    def __init__(self, plans: GibbsPlans, rounded: bool) -> None:
        self.plans, self.where = plans, (plans.xs, plans.ys, plans.shape[1])
        self.entries = np.empty(int(plans.cells))
        plans.split(lambda piece, lo, hi: rounding.store(lo, hi, *plans.arguments, rounded, self.entries), 10)

    def apply(self, V: Array, out: Array) -> None:
        self.plans.split(lambda piece, lo, hi: rounding.apply_stored(lo, hi, *self.where, self.entries, V, out), 1)

    def push(self, m: Array, out: Array) -> None:
        def part(lo: int, hi: int, table: Array) -> None:
            rounding.push_stored(lo, hi, *self.where, self.entries, m, table)

        _summed(self.plans, part, out)


class Recomputed:
    """Nothing is stored."""

    def __init__(self, plans: GibbsPlans, rounded: bool) -> None:
        self.plans, self.rounded = plans, rounded

    def apply(self, V: Array, out: Array) -> None:
        arguments = self.plans.arguments
        self.plans.split(lambda piece, lo, hi: rounding.apply(lo, hi, *arguments, self.rounded, V, out), 10)

    def push(self, m: Array, out: Array) -> None:
        def part(lo: int, hi: int, table: Array) -> None:
            rounding.push(lo, hi, *self.plans.arguments, self.rounded, m, table)

        _summed(self.plans, part, out)


def _summed(plans: GibbsPlans, part: Callable[[int, int, Array], None], out: Array) -> None:
    """Run ``part`` over all pairs, every piece into a table of its own, and add the tables in their order."""

    def run(piece: int, lo: int, hi: int) -> Array:
        table = np.zeros_like(out)
        part(lo, hi, table)
        return table

    np.sum(plans.split(run, 5, step=-(-plans.size // plans.threads)), axis=0, out=out)
