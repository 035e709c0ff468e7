"""Operations on stochastic matrices: occupancy, communicating classes, stationary distributions and sampling.

The normalized discounted occupancy is the distribution of the state at a geometric time,

    ρ = (1-γ) Σ_t γ^t ν0 P^t,        that is        (I - γ P^T) ρ = (1-γ) ν0.

Two states *communicate* if each can reach the other. A class of communicating states that no transition leaves is
*recurrent*. Its period is the greatest common divisor of the lengths of its cycles: if d(u) is the number of steps on a
shortest path from a fixed state of the class to u, the period is the gcd of d(u) + 1 - d(v) over its transitions u → v.
Each recurrent class has a unique stationary distribution, π P = π.

A successor is sampled by inverting the cumulative sums of the positive entries of a row, so a transition of
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

from diffbisim.common.checks import Floats, Integers, Matrix, freeze
from diffbisim.common.errors import InvalidArgument

MAX_STATES_FOR_DENSE_SOLVE = 1_000  # sparse kernels up to this size are solved with dense linear algebra


def as_generator(rng: int | np.random.Generator) -> np.random.Generator:
    """Return the generator itself, or a new one seeded with the integer."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, (bool, np.bool_)) or not isinstance(rng, (int, np.integer)) or rng < 0:
        raise InvalidArgument(f"rng must be a non-negative integer or a numpy Generator, not {rng!r}")
    return np.random.default_rng(int(rng))


def solve_linear(matrix: Floats, sides: Floats) -> Floats:
    """Return the solution of ``matrix x = sides``, for ``sides`` (n,) or (n, m), with the same bits on every processor.

    Raises ``numpy.linalg.LinAlgError`` if the matrix is singular.
    """
    from diffbisim import _engine
    from diffbisim.common.stopping import engine_run

    solution = np.array(sides.reshape(len(sides), -1), dtype=np.float64, order="C")
    if not _engine.solve_dense(np.array(matrix, dtype=np.float64, order="C"), solution, engine_run()):
        raise np.linalg.LinAlgError("singular matrix")
    return solution.reshape(sides.shape)


def discounted_occupancy(matrix: Matrix, start: Floats, discount: float) -> Floats:
    """Return the normalized occupancy ``ρ``, (n,): non-negative, summing to one, exactly zero on unreachable states.

    Dense kernels are solved by elimination: ``I - γ P^T`` is a column diagonally dominant M-matrix, so there is no
    cancellation. Large sparse kernels, where LU would fill in, are solved by a Krylov method
    followed by sweeps ``ρ ← (1-γ) ν0 + γ P^T ρ``, which contract by γ in L1; the error is at most γ / (1-γ) times the
    last change.
    """
    n = matrix.shape[0]
    if isinstance(matrix, np.ndarray) or n <= MAX_STATES_FOR_DENSE_SOLVE:
        dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
        rho = solve_linear(np.eye(n) - discount * dense.T, (1.0 - discount) * start)
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
    for _ in range(3):  # one solve and two steps of iterative refinement
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
    """The arrays of :class:`Successors` that compiled code reads."""

    indptr: Integers  # (m + 1,)
    indices: Integers  # (E,)
    probabilities: Floats  # (E,), all positive


class Successors(_Arrays):
    """The positive entries of a stochastic matrix by row (CSR), columns ascending; all arrays are read-only.

    The successors of x are ``indices[indptr[x]:indptr[x + 1]]``, with ``probabilities`` at the same positions. Since it
    is a tuple of three arrays, the engine takes it directly.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__  # tuples of arrays cannot be compared

    @classmethod
    def of(cls, matrix: Any) -> Successors:
        """Extract them from a dense or canonical CSR matrix; for one distribution ``p`` pass ``p[None, :]``."""
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
        """Create from three arrays, which become read-only."""
        return cls(*map(freeze, arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore the read-only flags, which pickle drops."""
        return Successors.frozen, tuple(self)

    @property
    def sources(self) -> Integers:
        """The row of each entry, (E,)."""
        return np.repeat(np.arange(self.indptr.size - 1), np.diff(self.indptr))

    @property
    def longest(self) -> int:
        """The largest number of successors of a row."""
        return int(np.diff(self.indptr).max())

    @property
    def matrix(self) -> sp.csr_array:
        """The (square) matrix as CSR."""
        n = self.indptr.size - 1
        return sp.csr_array((self.probabilities, self.indices, self.indptr), shape=(n, n))

    @cached_property
    def cumulative(self) -> Floats:
        """Cumulative sums of the probabilities within each row.

        They are computed from one running sum that drops by each finished row's total, so that rounding errors stay
        small however many rows there are.
        """
        p, first = self.probabilities, self.indptr[:-1]
        steps = p.copy()
        steps[first[1:]] -= np.add.reduceat(p, first)[:-1]
        running = np.cumsum(steps)
        before = np.concatenate([[0.0], running[first[1:]] - p[first[1:]]])
        return np.asarray(running - np.repeat(before, np.diff(self.indptr)), dtype=np.float64)

    def draw(self, rows: Integers, uniforms: Floats) -> Integers:
        """Draw one successor for each of m rows, given m uniforms in [0, 1), by a vectorized binary search."""
        low, high = self.indptr[rows], self.indptr[rows + 1] - 1
        while (low < high).any():
            middle = (low + high) // 2
            right = (low < high) & (self.cumulative[middle] <= uniforms)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        return self.indices[low]

    def step(self) -> Callable[[int, float], int]:
        """Return a function ``(row, uniform) -> successor`` for simulating a path step by step."""
        bounds, indices, cumulative = self.indptr.data, self.indices.data, self.cumulative.data
        return lambda row, u: indices[bisect_right(cumulative, u, bounds[row], bounds[row + 1] - 1)]


# --- structure ----------------------------------------------------------------------------------------------------


class CommunicatingClasses(NamedTuple):
    """The communicating classes, ordered by their smallest states."""

    of_state: Integers  # (n,) class of each state
    recurrent: NDArray[np.bool_]  # (n_classes,) whether no transition leaves the class

    def members(self, k: NDArray[Any]) -> tuple[Integers, ...]:
        """Return the states of each of the classes ``k``, ascending."""
        states = np.split(np.argsort(self.of_state, kind="stable"), np.cumsum(np.bincount(self.of_state))[:-1])
        return tuple(freeze(states[c]) for c in k)


def communicating_classes(successors: Successors) -> CommunicatingClasses:
    """Find the strongly connected components of the graph of positive entries."""
    from scipy.sparse.csgraph import connected_components

    _, found = connected_components(successors.matrix, connection="strong")
    _, first, of_state = np.unique(found, return_index=True, return_inverse=True)
    of_state = np.argsort(np.argsort(first))[of_state].astype(np.int64)  # numbered by smallest state
    recurrent = np.ones(first.size, dtype=bool)
    source, target = of_state[successors.sources], of_state[successors.indices]
    recurrent[source[source != target]] = False
    return CommunicatingClasses(freeze(of_state), freeze(recurrent))


def recurrent_periods(successors: Successors, classes: CommunicatingClasses) -> Integers:
    """Return the period of each recurrent class, (n_recurrent,)."""
    inside = classes.recurrent[classes.of_state[successors.sources]]
    source, target = successors.sources[inside], successors.indices[inside]
    first = np.unique(classes.of_state, return_index=True)[1]
    steps = fewest_steps(successors.matrix, first[classes.recurrent])
    periods = np.zeros(classes.recurrent.size, dtype=np.int64)
    np.gcd.at(periods, classes.of_state[source], np.abs(steps[source] + 1 - steps[target]).astype(np.int64))
    return periods[classes.recurrent]


def fewest_steps(graph: sp.csr_array, starts: Integers) -> Floats:
    """Return the length of a shortest path from ``starts`` to each state, (n,); infinite where there is none."""
    from scipy.sparse.csgraph import dijkstra

    if starts.size == 0:
        return np.full(graph.shape[0], np.inf)
    return np.asarray(dijkstra(graph, unweighted=True, indices=starts, min_only=True))


#: The smallest positive number.
SMALLEST = 5e-324


def stationary_law(matrix: Matrix) -> Floats:
    """Return the stationary distribution (n,) of an irreducible kernel.

    Small kernels use the Grassmann–Taksar–Heyman elimination, which has no subtractions, so that even the smallest
    entries have full relative accuracy. Larger kernels solve the linear system (I - P)ᵀ without the row and column of
    the last state.
    """
    n = matrix.shape[0]
    if n > MAX_STATES_FOR_DENSE_SOLVE:
        return _stationary_law_of_many(matrix)
    A = np.array(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())
    leaving = np.ones(n)
    for k in range(n - 1, 0, -1):  # censor state k, that is, skip its visits
        leaving[k] = max(A[k, :k].sum(), SMALLEST)  # zero if products are out of the range of numbers
        A[:k, :k] += np.outer(A[:k, k], A[k, :k] / leaving[k])
    law = np.ones(n)
    for k in range(1, n):  # the largest entry so far is one: quotients could overflow
        entering = float((law[:k] * A[:k, k]).sum())
        if entering <= leaving[k]:
            law[k] = entering / leaving[k]
        else:
            law[:k] *= leaving[k] / entering
    return np.asarray(law / law.sum(), dtype=np.float64)


def _stationary_law_of_many(matrix: Matrix) -> Floats:
    from scipy.sparse.linalg import spsolve

    n = matrix.shape[0]
    if isinstance(matrix, np.ndarray):
        law = solve_linear(np.eye(n - 1) - matrix[:-1, :-1].T, matrix[-1, :-1])
    else:
        last = matrix[[n - 1]].toarray().ravel()[:-1]
        law = spsolve(sp.csc_array(sp.eye_array(n - 1) - matrix[: n - 1, : n - 1].T), last)
    law = np.append(np.maximum(law, 0.0), 1.0)
    return np.asarray(law / law.sum(), dtype=np.float64)


def stochastic_power(matrix: Matrix, power: int) -> Matrix:
    """Return ``P^power`` by repeated squaring, with rows normalized after each product so that errors do not grow."""
    result: Any = None
    square: Any = matrix if isinstance(matrix, np.ndarray) else sp.csr_array(matrix)
    while True:
        if power % 2:
            result = square if result is None else _normalized(result @ square)
        power //= 2
        if not power:
            return result  # type: ignore[no-any-return]
        square = _normalized(square @ square)


def _normalized(matrix: Any) -> Any:
    sums = np.asarray(matrix.sum(axis=1), dtype=np.float64)
    if isinstance(matrix, np.ndarray):
        return matrix / sums[:, None]
    matrix.data /= np.repeat(sums, np.diff(matrix.indptr))
    return matrix


def submatrix(matrix: Matrix, states: Integers) -> Matrix:
    """Return the rows and columns of the given states."""
    return matrix[states][:, states]
