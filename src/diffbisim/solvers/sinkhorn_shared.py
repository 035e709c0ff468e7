"""One Gibbs kernel for all pairs: half-steps and expectations as matrix products.

When every transition is possible, K = exp(-βW) (n_X, n_Y) serves all pairs. With u = e^{βf}, w = e^{βg} as matrices
(pairs, n_X), (pairs, n_Y), and P, Q the rows of the kernels that belong to each pair,

    rows       u = 1 / ((Q∘w) Kᵀ)                             columns    w = 1 / ((P∘u) K)
    <π, V>     = sum over x' of (P∘u) ∘ ((Q∘w) (K∘V)ᵀ)        Σ m π = K ∘ ((m∘P∘u)ᵀ (Q∘w))

Rounding only changes the scalings and adds a product of two vectors to each plan, so it stays in this form.

The products are taken in blocks of pairs that fit the cache and stay below the size at which BLAS wakes threads of its
own; ours share out the blocks. All is safe while K, u and w are representable: the kernel is centered, the potentials
are kept as logarithms and balanced within each pair (f and g have the same middle), and the exponents are checked
before and after. Where they do not fit, the functions say so and the caller goes pair by pair (sinkhorn_kernels.py).
"""

from dataclasses import dataclass

import numpy as np

from diffbisim._compile import njit
from diffbisim.problem import Array
from diffbisim.solvers.sinkhorn_kernels import LOOK, exact, exp, loose, relaxation, relaxed
from diffbisim.solvers.sinkhorn_rounding import LAST_DIGITS

#: Multiplications in one matrix product: OpenBLAS starts threads above about twice as many.
PRODUCT = 2**19

#: Largest exponent of the kernel and of the scalings; e^709 is the largest number.
SAFE = 600.0


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """K for a table and a temperature; ``middle`` of the table's range was taken out."""

    K: Array  # (n_X, n_Y)
    K_T: Array
    middle: float
    beta: float
    P: Array  # (m_X, n_X)
    Q: Array  # (m_Y, n_Y)

    @classmethod
    def of(cls, W: Array, beta: float, P: Array, Q: Array) -> "SharedKernel | None":
        """None if the entries would not be representable."""
        low, high = float(W.min()), float(W.max())
        if not beta * (high - low) / 2 <= SAFE:
            return None
        K = np.exp(-beta * (W - (low + high) / 2))
        return cls(K, np.ascontiguousarray(K.T), (low + high) / 2, beta, P, Q)

    @property
    def step(self) -> int:
        """Pairs in a block."""
        return max(4, PRODUCT // self.K.size)

    def rows(self, lo: int, G: Array, out: Array) -> bool:
        """``out = softmin(W - G)`` for the pairs lo, lo + 1, …; returns whether the numbers fit."""
        return self._half_step(lo, G, out, self.Q, self.K_T, columns=True)

    def columns(self, lo: int, F: Array, out: Array) -> bool:
        """``out = softmin(W - F)``; returns whether the numbers fit."""
        return self._half_step(lo, F, out, self.P, self.K, columns=False)

    def _half_step(self, lo: int, potential: Array, out: Array, prob: Array, K: Array, columns: bool) -> bool:
        center = _middle(potential)
        logs = self.beta * (potential - center)
        if not float(np.abs(logs).max()) + abs(float(np.log(K.max()))) <= SAFE:
            return False
        _weigh(lo, len(self.Q), columns, prob, logs, logs)
        np.subtract(self.middle - center, np.log(logs @ K) / self.beta, out=out)
        return True

    def scale(self, lo: int, F: Array, G: Array, most: int, target: float, omega: Array, error: Array) -> int | None:
        """Sinkhorn on a block until its worst pair is wrong by ``target``; iterations, or None if nothing was done."""
        center = _middle(G)
        log_u, log_w = np.zeros_like(F), self.beta * (G - center)  # the first half-step replaces u
        if not _fit(log_w):
            return None
        ω, wrong = omega.copy(), error.copy()
        with np.errstate(all="ignore"):  # what overflows shows at the end
            done = self._iterate(lo, log_u, log_w, most, target, ω, wrong)
        if not _fit(log_u, log_w):
            return None
        np.add(log_u / self.beta, self.middle - center, out=F)
        np.add(log_w / self.beta, center, out=G)
        omega[:], error[:] = ω, wrong
        return done

    def _iterate(self, lo: int, log_u: Array, log_w: Array, most: int, target: float, ω: Array, wrong: Array) -> int:
        """Replaces the logarithms, ω and what was wrong; the last iteration is not relaxed, and ends with the rows."""
        u, w, m_y = np.exp(log_u), np.exp(log_w), len(self.Q)
        pu, qw, to_u, to_w = np.empty_like(u), np.empty_like(w), np.empty_like(u), np.empty_like(w)
        ignored, before, plain = np.empty_like(wrong), np.full_like(wrong, np.inf), np.ones_like(wrong)
        _weigh(lo, m_y, True, self.Q, log_w, qw)
        _relax(lo, m_y, False, self.P, u, np.matmul(qw, self.K_T, out=to_u), pu, plain, ignored)
        done, last = 0, False
        while not last:
            np.matmul(pu, self.K, out=to_w)
            _relax(lo, m_y, True, self.Q, w, to_w, qw, plain if done == most else ω, wrong)
            last = done == most or bool(wrong.max() <= target)
            np.matmul(qw, self.K_T, out=to_u)
            _relax(lo, m_y, False, self.P, u, to_u, pu, plain if last else ω, ignored)
            if not last:
                done += 1
                _look(done, ω, wrong, before)
        np.log(u, out=log_u)
        np.log(w, out=log_w)
        return done

    def factors(
        self, lo: int, F: Array, G: Array, rounded: bool, u: Array, w: Array, row: Array, col: Array
    ) -> float | None:
        """Plans of some pairs as π = diag(u) K diag(w) + row ⊗ col, written into these arrays.

        Returns the largest mass of the last term (it comes from rounding), or None if the numbers do not fit.
        """
        log_u, log_w, _ = self._balanced(F, G)
        if not _fit(log_u, log_w):
            return None
        m_y = len(self.Q)
        _weigh(lo, m_y, False, self.P, log_u, u)
        _weigh(lo, m_y, True, self.Q, log_w, w)
        if not rounded:
            return 0.0
        _shrink(lo, m_y, False, self.P, u, np.matmul(w, self.K_T, out=row))
        _shrink(lo, m_y, True, self.Q, w, np.matmul(u, self.K, out=col))
        mass = _lack(lo, m_y, False, self.P, u, np.matmul(w, self.K_T, out=row), row)
        _lack(lo, m_y, True, self.Q, w, np.matmul(u, self.K, out=col), col)
        return float(mass)

    def _balanced(self, F: Array, G: Array) -> tuple[Array, Array, Array]:
        """log u, log w, and the shift between log u / β and F."""
        shift = (_middle(F) - _middle(G) + self.middle) / 2
        return self.beta * (F - shift), self.beta * (G + (shift - self.middle)), shift


def _middle(rows: Array) -> Array:
    return np.asarray((rows.max(axis=1, keepdims=True) + rows.min(axis=1, keepdims=True)) / 2)


def _fit(*logs: Array) -> bool:
    return all(bool(np.abs(a).max() <= SAFE) for a in logs)  # false for NaN


# --- loops over a block ------------------------------------------------------------------------------------
#
# prob (sources, n): the rows of a chain. Pair k = first + r uses row k // m_Y of X's or, with ``columns``, row k % m_Y
# of Y's. scaling, weighted = prob · scaling, and sums are (pairs, n).


@njit(**loose)
def _relax(first, m_y, columns, prob, scaling, sums, weighted, omega, error):
    """A half-step: ``sums`` is the kernel times the weighted scalings of the other side; ``error``: what was wrong."""
    for r in range(scaling.shape[0]):
        k = first + r
        p, total = prob[k % m_y if columns else k // m_y], 0.0
        for j in range(p.size):
            have = scaling[r, j] * sums[r, j]
            total += p[j] * abs(have - 1.0)
            scaling[r, j] *= relaxed(1.0 / have, omega[r])
            weighted[r, j] = p[j] * scaling[r, j]
        error[r] = total


@njit(**exact)
def _look(done, omega, error, before):
    """:func:`relaxation` for every pair; ``before`` becomes the present error when it was looked at."""
    for r in range(omega.size):
        omega[r] = relaxation(done, omega[r], error[r], before[r])
        if done % LOOK == 0:
            before[r] = error[r]


@njit(**exact)
def _weigh(first, m_y, columns, prob, logs, out):
    """out = prob · exp(logs)."""
    for r in range(logs.shape[0]):
        k = first + r
        p = prob[k % m_y if columns else k // m_y]
        for j in range(p.size):
            out[r, j] = p[j] * exp(logs[r, j])


@njit(**loose)
def _shrink(first, m_y, columns, prob, weighted, sums):
    """Scale down what is too heavy: weighted *= min(1, prob / (weighted · sums))."""
    for r in range(weighted.shape[0]):
        k = first + r
        p = prob[k % m_y if columns else k // m_y]
        for j in range(p.size):
            have = weighted[r, j] * sums[r, j]
            if have > p[j]:
                weighted[r, j] *= p[j] / have


@njit(**loose)
def _lack(first, m_y, columns, prob, weighted, sums, out):
    """out = what is missing, prob - weighted · sums (rows: as a distribution); returns the largest total."""
    largest = 0.0
    for r in range(weighted.shape[0]):
        k = first + r
        p, total = prob[k % m_y if columns else k // m_y], 0.0
        for j in range(p.size):
            missing = p[j] - weighted[r, j] * sums[r, j]
            out[r, j] = missing if missing > LAST_DIGITS * p[j] else 0.0
            total += out[r, j]
        largest = max(largest, total)
        if not columns and total > 1e-300:
            for j in range(p.size):
                out[r, j] /= total
    return largest
