"""The exact gradient of the distance (Theorem 1 of the paper, with centered potentials).

By the envelope theorem the optimal coupling can be held fixed. With m the joint occupancy and f_xy, g_xy the potentials
of pair (x,y) for the cost V = U/(1-γ),

    ∂d/∂P_X(x'|x) = γ Σ_y m(x,y) f_xy(x')        ∂d/∂ν_X = (1-γ) f_0
    ∂d/∂P_Y(y'|y) = γ Σ_x m(x,y) g_xy(y')        ∂d/∂ν_Y = (1-γ) g_0        ∂d/∂c = m

Since the rows of a kernel sum to one, the gradient of a row is defined up to a constant; each row is centered, that is,
has mean zero under its own distribution. The derivative along any direction within the simplex is the inner product
with the row. Outside the support of a row the potentials are c-transforms, so the entry is the one-sided derivative for
adding mass there. With the same centering the paper's dual certificates are

    α_X(x,x',y) = -γ (f_xy(x') - E f_xy)         α_Y(x,y,y') = -γ (g_xy(y') - E g_xy)

and the reward that imitation maximizes is r(y,y') = Σ_x λ_Y(x|y) α_Y(x,y,y').

The distance is not differentiable everywhere (at d = 0, and where optimal plans are degenerate); there this is one
generalized gradient.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.checks import dense, freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.stochastic import Successors
from diffbisim.results.coupling import Coupling

Array = NDArray[np.float64]

#: Maximum number of entries of the dual certificates (2 GB).
MAX_DUAL_ENTRIES = 2**28


class ReadOnly:
    """Mixin for parts of a result, whose attributes are read-only arrays, tuples of them, or None.

    Writable views are copied first, and each access to a sparse matrix returns a new object. The read-only flags,
    which pickle and deepcopy drop, are restored.
    """

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            self.__dict__[name] = tuple(map(_frozen, value)) if isinstance(value, tuple) else _frozen(value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return tuple(map(_own_matrix, value)) if isinstance(value, tuple) else _own_matrix(value)


def _frozen(value: Any) -> Any:
    shared = isinstance(value, np.ndarray) and value.base is not None
    return value if value is None else freeze(value.copy() if shared and value.flags.writeable else value)


def _own_matrix(value: Any) -> Any:
    """Return a new sparse matrix on the same buffers, since a csr_array is mutable even if its buffers are not."""
    if not isinstance(value, sparse.csr_array):
        return value
    return sparse.csr_array((value.data, value.indices, value.indptr), shape=value.shape)


@dataclass(frozen=True, eq=False)
class Gradient(ReadOnly):
    """Derivatives of ``d``, read-only.

    Derivatives with respect to kernels are dense for two dense chains; if one is sparse, or if only reachable pairs
    were solved, they are CSR on the possible transitions. Derivatives with respect to initial distributions are NaN
    where they depend on pairs that were not solved.
    """

    transition_x: Array | sparse.csr_array  # (n_X, n_X)
    transition_y: Array | sparse.csr_array  # (n_Y, n_Y)
    cost: Array  # (n_X, n_Y)
    initial_x: Array  # (n_X,)
    initial_y: Array  # (n_Y,)


@dataclass(frozen=True, eq=False)
class Duals(ReadOnly):
    """The paper's dual certificates for the causal constraints, centered; read-only."""

    alpha_x: Array  # (n_X, n_X, n_Y): α_X(x, x', y)
    alpha_y: Array  # (n_X, n_Y, n_Y): α_Y(x, y, y')


def gradient_of(coupling: Coupling, m: Array) -> Gradient:
    """Compute all derivatives in one pass over the pairs with positive occupancy."""
    problem, start = coupling.problem, coupling.start
    transition_x, transition_y = kernel_gradients(coupling, m, coupling.complete and not problem.is_sparse)
    return Gradient(
        transition_x=transition_x,
        transition_y=transition_y,
        cost=m,
        initial_x=centered_start(start.f, problem.x.initial),
        initial_y=centered_start(start.g, problem.y.initial),
    )


def kernel_gradients(coupling: Coupling, m: Array, everywhere: bool) -> tuple[Any, Any]:
    """Return ``∂d/∂P_X`` and ``∂d/∂P_Y``: dense, with c-transforms off the supports, or CSR on the supports."""
    problem = coupling.problem
    factor = problem.discount / problem.step  # the potentials are those of U, not of V
    by_x, by_y = coupling.weighted_potentials(coupling.potential_weights(m), everywhere=everywhere)
    found = []
    for rows, chain in ((by_x, problem.x), (by_y, problem.y)):
        entries = rows if isinstance(rows, np.ndarray) else rows.data
        found.append(centered_rows(factor * entries, chain.successors, chain.transition.shape))
    return found[0], found[1]


def centered_start(f: Array, initial: Array) -> Array:
    """Subtract the mean under the initial distribution; entries outside its support may be NaN."""
    support = initial > 0
    return f - float(initial[support] @ f[support])


def centered_rows(rows: Array, s: Successors, shape: tuple[int, int]) -> Any:
    """Subtract from each row its mean under the kernel's row; vectors of stored entries give CSR."""
    source, full = s.sources, rows.ndim == 2
    entries = rows[source, s.indices] if full else rows
    mean = np.bincount(source, weights=s.probabilities * entries, minlength=shape[0])
    if full:
        return rows - mean[:, None]
    return sparse.csr_array((entries - mean[source], s.indices, s.indptr), shape=shape)


def dual_certificates(coupling: Coupling) -> Duals:
    """Compute ``alpha_x`` and ``alpha_y`` for every pair of states."""
    problem = coupling.problem
    n_x, n_y = problem.shape
    if n_x * n_y * max(n_x, n_y) > MAX_DUAL_ENTRIES:
        raise InvalidArgument(
            f"the dual certificates of {n_x} x {n_y} states would take {n_x * n_y * max(n_x, n_y) * 8 / 1e9:.0f} GB; "
            "use result.potentials(x, y) for single pairs, or result.gradient"
        )
    if not coupling.complete:
        raise InvalidArgument(
            "dual certificates cover all transitions, but some potentials are known on the possible ones only; use "
            "reachable=False (for average cost, an irreducible, aperiodic chain), or result.gradient"
        )
    alpha_x, alpha_y = np.empty((n_x, n_x, n_y)), np.empty((n_x, n_y, n_y))
    for x in range(n_x):
        for y in range(n_y):
            alpha_x[x, :, y], alpha_y[x, y] = coupling.potentials(x, y)
    factor = -problem.discount / problem.step
    P_x, P_y = dense(problem.x.transition), dense(problem.y.transition)
    alpha_x -= np.einsum("xi,xiy->xy", P_x, alpha_x)[:, None, :]
    alpha_y -= np.einsum("yj,xyj->xy", P_y, alpha_y)[:, :, None]
    return Duals(factor * alpha_x, factor * alpha_y)


def implicit_reward(coupling: Coupling, decoder: Array) -> Array:
    """Return ``r(y,y') = Σ_x λ_Y(x|y) α_Y(x,y,y')``, dense, including transitions of probability zero."""
    if not coupling.complete:
        raise InvalidArgument(
            "the implicit reward covers all transitions and needs all pairs; use reachable=False (for average cost, an "
            "irreducible, aperiodic chain)"
        )
    _, by_y = coupling.weighted_potentials(np.ascontiguousarray(decoder.T), everywhere=True)
    factor = -coupling.problem.discount / coupling.problem.step
    y = coupling.problem.y
    return np.asarray(factor * centered_rows(by_y, y.successors, y.transition.shape))
