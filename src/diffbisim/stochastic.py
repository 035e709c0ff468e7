"""What one does with a stochastic matrix: solve for its occupancy, see its structure, and draw from its rows.

The normalized discounted occupancy is the law of the state at a geometric time,

    ρ = (1-γ) Σ_t γ^t ν0 P^t,        that is        (I - γ P^T) ρ = (1-γ) ν0.

Two states *communicate* if each can reach the other. A class of communicating states that no transition leaves is
*recurrent*. Its period is the greatest common divisor of the lengths of its cycles: with d(u) the fewest steps from one
of its states to u, the gcd of d(u) + 1 - d(v) over its transitions u → v. It carries one stationary law, π P = π.

Drawing a successor inverts the cumulative sums of the positive entries of a row, so a transition of
probability zero is never drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from diffbisim.checks import Floats, Integers, Matrix, freeze
from diffbisim.errors import InvalidArgument

DIRECT = 1_000  # sparse kernels up to this size are solved densely


def as_generator(rng: int | np.random.Generator) -> np.random.Generator:
    """The generator itself, or a fresh one seeded with the integer: same seed, same answer."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, (bool, np.bool_)) or not isinstance(rng, (int, np.integer)) or rng < 0:
        raise InvalidArgument(f"rng must be a non-negative integer or a numpy Generator, not {rng!r}")
    return np.random.default_rng(int(rng))


def discounted_occupancy(matrix: Matrix, start: Floats, discount: float) -> Floats:
    """The normalized occupancy ``ρ``, (n,): non-negative, summing to one, exactly zero where it must be.

    Dense kernels by LU. ``I - γ P^T`` is a column diagonally dominant M-matrix, so elimination never pivots
    and never cancels. Large sparse kernels by a Krylov method (LU would fill in) and then the sweeps
    ``ρ ← (1-γ) ν0 + γ P^T ρ``, which contract by γ in L1 and certify the error: change · γ / (1-γ).
    """
    n = matrix.shape[0]
    if isinstance(matrix, np.ndarray) or n <= DIRECT:
        dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
        rho = np.linalg.solve(np.eye(n) - discount * dense.T, (1.0 - discount) * start)
    else:
        rho = _sparse_occupancy(matrix, start, discount)
    np.maximum(rho, 0.0, out=rho)
    return np.asarray(rho / rho.sum(), dtype=np.float64)


def _sparse_occupancy(matrix: sp.csr_array, start: Floats, discount: float) -> Floats:
    from scipy.sparse.linalg import LinearOperator, bicgstab

    transposed = matrix.T.tocsr()
    source = (1.0 - discount) * start
    operator = LinearOperator(matrix.shape, matvec=lambda v: v - discount * (transposed @ v), dtype=np.float64)
    rho = start
    for _ in range(3):  # a solve, and two refinements by its residual
        residual = source + discount * (transposed @ rho) - rho
        if (size := float(np.abs(residual).sum())) <= 1e-14:
            break
        correction, _ = bicgstab(operator, residual / size, rtol=1e-10, atol=0.0, maxiter=3_000)
        rho = rho + size * correction if np.isfinite(correction).all() else rho
    rho = np.maximum(rho, 0.0)
    for _ in range(int(np.log(1e-17) / np.log(discount)) + 1):
        rho, before = source + discount * (transposed @ rho), rho
        if np.abs(rho - before).sum() <= 1e-13:
            break
    return np.asarray(rho, dtype=np.float64)


class _Arrays(NamedTuple):
    """What compiled code reads of :class:`Successors`."""

    indptr: Integers  # (m + 1,)
    indices: Integers  # (E,)
    probabilities: Floats  # (E,), all positive


class Successors(_Arrays):
    """The positive entries of a stochastic matrix by row (CSR), columns ascending; all arrays read-only.

    The successors of x are ``indices[indptr[x]:indptr[x + 1]]``, with ``probabilities`` at the same places. It is a
    tuple of three arrays, so that kernels take it as it is.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__  # tuples of arrays cannot be compared

    @classmethod
    def of(cls, matrix: Any) -> Successors:
        """Those of a dense or canonical CSR matrix; of one distribution ``p``: ``Successors.of(p[None, :])``."""
        if isinstance(matrix, np.ndarray):
            places = np.flatnonzero(matrix)
            probabilities = matrix.ravel()[places]
            indptr = np.searchsorted(places, np.arange(matrix.shape[0] + 1) * matrix.shape[1])
            indices = np.remainder(places, matrix.shape[1], out=places)
        else:
            indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
            probabilities = np.asarray(matrix.data, dtype=np.float64)
        return cls.frozen(indptr, indices, probabilities)

    @classmethod
    def frozen(cls, *arrays: Any) -> Successors:
        """These three arrays, made read-only."""
        return cls(*map(freeze, arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        """Neither pickle nor deepcopy keeps the flags, and kernels would be compiled once more for arrays without."""
        return Successors.frozen, tuple(self)

    @property
    def sources(self) -> Integers:
        """The row of every entry, (E,)."""
        return np.repeat(np.arange(self.indptr.size - 1), np.diff(self.indptr))

    @property
    def longest(self) -> int:
        """Most successors of one row."""
        return int(np.diff(self.indptr).max())

    @property
    def matrix(self) -> sp.csr_array:
        """The (square) matrix itself, as CSR."""
        n = self.indptr.size - 1
        return sp.csr_array((self.probabilities, self.indices, self.indptr), shape=(n, n))

    @cached_property
    def cumulative(self) -> Floats:
        """Cumulative sums of the probabilities within each row.

        One running sum over all entries that falls back by each finished row's total, so that its size, and
        with it the rounding, stays of order one however many rows there are.
        """
        p, first = self.probabilities, self.indptr[:-1]
        steps = p.copy()
        steps[first[1:]] -= np.add.reduceat(p, first)[:-1]
        running = np.cumsum(steps)
        before = np.concatenate([[0.0], running[first[1:]] - p[first[1:]]])
        return np.asarray(running - np.repeat(before, np.diff(self.indptr)), dtype=np.float64)

    def draw(self, rows: Integers, uniforms: Floats) -> Integers:
        """One successor for each row (m,), from m uniforms in [0, 1): a binary search for all at once."""
        low, high = self.indptr[rows], self.indptr[rows + 1] - 1
        while (low < high).any():
            middle = (low + high) // 2
            right = (low < high) & (self.cumulative[middle] <= uniforms)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        return self.indices[low]

    def step(self) -> Callable[[int, float], int]:
        """A function ``(row, uniform) -> successor`` for walks, where one draw waits for the other."""
        bounds, indices, cumulative = self.indptr.data, self.indices.data, self.cumulative.data
        return lambda row, u: indices[bisect_right(cumulative, u, bounds[row], bounds[row + 1] - 1)]


# --- structure ----------------------------------------------------------------------------------------------------


class Classes(NamedTuple):
    """The communicating classes, in the order of their smallest states."""

    of_state: Integers  # (n,) the class of every state
    recurrent: NDArray[np.bool_]  # (n_classes,) whether no transition leaves it

    def members(self, k: NDArray[Any]) -> tuple[Integers, ...]:
        """The states of each of the classes ``k``, ascending."""
        states = np.split(np.argsort(self.of_state, kind="stable"), np.cumsum(np.bincount(self.of_state))[:-1])
        return tuple(freeze(states[c]) for c in k)


def communicating_classes(successors: Successors) -> Classes:
    """Strongly connected components of the graph of positive entries."""
    from scipy.sparse.csgraph import connected_components

    _, found = connected_components(successors.matrix, connection="strong")
    _, first, of_state = np.unique(found, return_index=True, return_inverse=True)
    of_state = np.argsort(np.argsort(first))[of_state].astype(np.int64)  # numbered by their smallest states
    recurrent = np.ones(first.size, dtype=bool)
    source, target = of_state[successors.sources], of_state[successors.indices]
    recurrent[source[source != target]] = False
    return Classes(freeze(of_state), freeze(recurrent))


def recurrent_periods(successors: Successors, classes: Classes) -> Integers:
    """The period of every recurrent class, (n_recurrent,)."""
    inside = classes.recurrent[classes.of_state[successors.sources]]
    source, target = successors.sources[inside], successors.indices[inside]
    first = np.unique(classes.of_state, return_index=True)[1]
    steps = fewest_steps(successors.matrix, first[classes.recurrent])
    periods = np.zeros(classes.recurrent.size, dtype=np.int64)
    np.gcd.at(periods, classes.of_state[source], np.abs(steps[source] + 1 - steps[target]).astype(np.int64))
    return periods[classes.recurrent]


def fewest_steps(graph: sp.csr_array, starts: Integers) -> Floats:
    """Fewest steps to each state from one of the ``starts``, (n,); infinite where there is no path."""
    from scipy.sparse.csgraph import dijkstra

    if starts.size == 0:
        return np.full(graph.shape[0], np.inf)
    return np.asarray(dijkstra(graph, unweighted=True, indices=starts, min_only=True))


def stationary_law(matrix: Matrix) -> Floats:
    """The stationary law (n,) of an irreducible kernel.

    Small kernels by the elimination of Grassmann, Taksar and Heyman: it never subtracts, so that every entry is right
    to rounding, however small. Larger ones by one linear system, (I - P)ᵀ without the row and column of the last
    state.
    """
    n = matrix.shape[0]
    if n > DIRECT:
        return _stationary_law_of_many(matrix)
    A = np.array(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())
    for k in range(n - 1, 0, -1):  # censor state k: its visits are skipped
        A[:k, k] /= A[k, :k].sum()
        A[:k, :k] += np.outer(A[:k, k], A[k, :k])
    law = np.ones(n)
    for k in range(1, n):
        law[k] = law[:k] @ A[:k, k]
    return np.asarray(law / law.sum(), dtype=np.float64)


def _stationary_law_of_many(matrix: Matrix) -> Floats:
    from scipy.sparse.linalg import spsolve

    n = matrix.shape[0]
    if isinstance(matrix, np.ndarray):
        law = np.linalg.solve(np.eye(n - 1) - matrix[:-1, :-1].T, matrix[-1, :-1])
    else:
        last = matrix[[n - 1]].toarray().ravel()[:-1]
        law = spsolve(sp.csc_array(sp.eye_array(n - 1) - matrix[: n - 1, : n - 1].T), last)
    law = np.append(np.maximum(law, 0.0), 1.0)
    return np.asarray(law / law.sum(), dtype=np.float64)


def submatrix(matrix: Matrix, states: Integers) -> Matrix:
    """The entries between these states."""
    return matrix[states][:, states]
