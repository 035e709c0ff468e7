"""Elementwise loops over blocks of pairs that share one Gibbs kernel (numba): see sinkhorn_shared.py.

``prob (sources, n)`` are the rows of a chain; pair k = ``first + r`` uses row k // m_Y of X's or, with ``columns``, row
k % m_Y of Y's. ``scaling``, ``weighted`` = prob · scaling and ``sums`` are (pairs, n).
"""

from numba import njit

from diffbisim.solvers.sinkhorn_kernels import LOOK, exact, exp, loose, relaxation, relaxed
from diffbisim.solvers.sinkhorn_rounding import LAST_DIGITS


@njit(**loose)
def relax(first, m_y, columns, prob, scaling, sums, weighted, omega, error):
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
def look(done, omega, error, before):
    """:func:`relaxation` for every pair; ``before`` becomes the present error when it was looked at."""
    for r in range(omega.size):
        omega[r] = relaxation(done, omega[r], error[r], before[r])
        if done % LOOK == 0:
            before[r] = error[r]


@njit(**exact)
def weigh(first, m_y, columns, prob, logs, out):
    """out = prob · exp(logs)."""
    for r in range(logs.shape[0]):
        k = first + r
        p = prob[k % m_y if columns else k // m_y]
        for j in range(p.size):
            out[r, j] = p[j] * exp(logs[r, j])


@njit(**loose)
def shrink(first, m_y, columns, prob, weighted, sums):
    """Scale down what is too heavy: weighted *= min(1, prob / (weighted · sums))."""
    for r in range(weighted.shape[0]):
        k = first + r
        p = prob[k % m_y if columns else k // m_y]
        for j in range(p.size):
            have = weighted[r, j] * sums[r, j]
            if have > p[j]:
                weighted[r, j] *= p[j] / have


@njit(**loose)
def lack(first, m_y, columns, prob, weighted, sums, out):
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
