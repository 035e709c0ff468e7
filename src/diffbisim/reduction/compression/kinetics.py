"""Slow dynamics of a chain: its timescales, its metastable sets, and small chains with the same slow rates.

*Timescales.* The eigenvalues of a kernel P lie in the unit disk, and one of them is 1. Let λ₂, λ₃, … be the others,
ordered by their distance from 1, for the states that can be reached from the start. The corresponding modes decay like
λᵗ, with the timescales

    t_i = -1 / log |λ_i|     steps.

A timescale is infinite if there are several recurrent classes, or if a mode oscillates forever (periodic chains). It is
set to zero if the real part of λ_i is not positive (such a mode is not slow; at most it oscillates).

*The fundamental matrix* Z = (I - P + 1π')⁻¹ of a chain with one recurrent class and stationary distribution π sums the
effect of a state on all later ones: Z = Σ_t (Pᵗ - 1π') + 1π'. Its eigenvalues are z_i = 1/(1 - λ_i), and 1 for the
constant function. For k classes with indicators A (n, k) and distribution π_c = A'π, the aggregated matrix is

    Z_c = D_c⁻¹ A' D Z A,        D = diag π,  D_c = diag π_c.

*Kinetic models* (Hummer and Szabo 2015). The kernel on the classes whose fundamental matrix is Z_c,

    P_c = I + 1π_c' - Z_c⁻¹,

has the stationary distribution π_c and preserves the integrals of all correlations between classes; averaged rows
preserve only those of one step. But it may have negative entries. In that case, fluxes F = D_c P_c ≥ 0 whose row and
column sums are π_c are fitted by nonnegative least squares to Z_c^¾ (I - P_c + 1π_c') Z_c^¾ = Z_c^½, in the coordinates
D_c^½ Z_c D_c^-½ in which reversible chains are symmetric. This measures the relative errors of the rates of the modes,
weighted by √z_i. (These powers are real: B = D^½ P D^-½ is a contraction, so (I - B)⁻¹ and its compressions have
eigenvalues with real parts of at least ½.) ``residual`` is the error of the fit relative to Z_c^½, and zero if P_c has
no negative entries.

*Metastable sets.* Make the chain reversible, (P + P*)/2 with P* = D⁻¹P'D, so that its eigenvectors ψ_i are real. By the
Rayleigh-Ritz principle the trace of Z_c is at most Σ z_i. It is maximized by k-means with weights π in the coordinates
√z_i ψ_i, starting from the k states that span the largest simplex, as in PCCA+ (Deuflhard and Weber 2005).
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy import sparse

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers, dense
from diffbisim.common.errors import InvalidArgument, InvalidChain
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import submatrix

#: Rounding errors of eigenvalues: real parts below it count as zero, and sizes this close to one as one.
ROUNDED = 1e-13

#: All eigenvalues are computed for chains up to this size.
MAX_STATES_FOR_ALL_EIGENVALUES = 200

#: Up to this number of states, matrices are factorized; eigenvalues close to 1 come from one of P - SHIFT I.
MAX_DIRECT_STATES, SHIFT = 3_000, 1.0 + 1e-6

#: Maximum number of restarts of the eigenvalue iteration for larger kernels.
MOST_RESTARTS = 200

#: Maximum number of rounds of k-means.
ROUNDS = 50

#: Weight of the constraints on the sums of fluxes, relative to the equations that are fitted.
BINDING = 1e5


def lagged(chain: MarkovChain, lag: int) -> MarkovChain:
    """Return the chain observed every ``lag`` steps, with the kernel P^lag."""
    return chain if lag == 1 else chain.at_lag(lag * (1 if chain.lag is None else chain.lag))


# --- timescales --------------------------------------------------------------------------------------------


def slowest_timescale(chain: MarkovChain) -> float:
    """Return ``t₂`` in steps; NaN if the eigenvalues were not found."""
    return float(implied_timescales(chain, 1)[0])


def implied_timescales(chain: MarkovChain, count: int) -> Array:
    """Return the ``count`` slowest timescales in steps, padded with zeros; NaN if they were not found."""
    reachable = chain.reachable_states
    groups = int(np.isin([states[0] for states in chain.recurrent_classes], reachable).sum())
    times = np.zeros(count)
    times[: groups - 1] = np.inf
    P = sparse.csr_array(chain.successors.matrix[reachable][:, reachable])
    wanted = min(count + 1, P.shape[0])
    if wanted > groups:
        times[groups - 1 : wanted - 1] = [_timescale(λ) for λ in _next_to_one(P, wanted)[groups:]]
    return times


def _timescale(λ: complex) -> float:
    """Return the timescale of an eigenvalue."""
    if not λ.real > ROUNDED:
        return 0.0 if λ == λ else np.nan
    size = abs(λ)
    return np.inf if size > 1.0 - ROUNDED else float(-1 / np.log(size))


def _next_to_one(P: sparse.csr_array, count: int) -> Any:
    """Return the ``count`` eigenvalues closest to 1, closest first; NaN if the iteration for large kernels fails."""
    from scipy.linalg import lu_factor, lu_solve
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    n = P.shape[0]
    if n <= max(MAX_STATES_FOR_ALL_EIGENVALUES, count + 2):
        found = np.linalg.eigvals(P.toarray())
    else:
        start = np.random.default_rng(0).random(n)  # ARPACK's default start differs from call to call
        options: Any = {"k": count, "v0": start, "return_eigenvectors": False}
        try:
            if n <= MAX_DIRECT_STATES:
                factors = lu_factor(P.toarray() - SHIFT * np.eye(n))
                inverse = LinearOperator((n, n), matvec=lambda v: lu_solve(factors, v), dtype=np.float64)
                found = eigs(P, sigma=SHIFT, OPinv=inverse, **options)
            else:
                found = eigs(P, which="LR", maxiter=MOST_RESTARTS, **options)
        except ArpackError:
            return np.full(count, complex(np.nan))
    return found[np.argsort(np.abs(found - 1), kind="stable")][:count]


# --- metastable sets ---------------------------------------------------------------------------------------


def metastable_sets(chain: MarkovChain, k: int) -> Integers:
    """Return the assignment ``(n,)`` to (at most) k metastable sets of a chain with one recurrent class.

    A transient state belongs to the set that it is most likely to enter first.
    """
    _one_recurrent_class(chain)
    states = chain.recurrent_classes[0]
    if k == 1 or k >= states.size:
        inside = np.arange(states.size) if k > 1 else np.zeros(states.size, dtype=np.int64)
    else:
        π = np.maximum(chain.stationary_distribution[states], np.finfo(float).tiny)
        if not np.isfinite(π).all():
            raise InvalidChain(
                f"the stationary distribution of these {states.size} states is out of the range of floating-point "
                f"numbers, because the least of their transition probabilities is {_least(chain):.1e}; set "
                "probabilities below 1e-100 to zero, or take a longer lag"
            )
        z, ψ = _slow_modes(submatrix(chain.transition, states), π, k)
        inside = _by_means(np.sqrt(z[1:]) * ψ[:, 1:], π, _spanning(ψ))
    assignment = np.empty(chain.n_states, dtype=np.int64)
    assignment[states] = np.unique(inside, return_inverse=True)[1]
    transient = np.setdiff1d(np.arange(chain.n_states), states)
    if transient.size:
        P = sparse.csc_array(chain.successors.matrix)
        entered = P[transient][:, states] @ np.eye(int(assignment[states].max()) + 1)[assignment[states]]
        stays = sparse.csc_array(sparse.eye_array(transient.size) - P[transient][:, transient])
        assignment[transient] = sparse.linalg.splu(stays).solve(entered).argmax(axis=1)
    return assignment


def _least(chain: MarkovChain) -> float:
    """Return the least positive transition probability."""
    return float(chain.successors.probabilities.min())


def _one_recurrent_class(chain: MarkovChain) -> None:
    """Check that the chain has one recurrent class."""
    if (n := len(chain.recurrent_classes)) != 1:
        raise InvalidChain(
            f"the chain has {n} recurrent classes, between which it never moves, so there are no rates to keep; take "
            'one of them (chain.recurrent_classes), or use method="mean" (model="aggregate")'
        )


class Modes(NamedTuple):
    """Modes of the reversible chain: 1/(1 - λ), descending (the first is not used), and right eigenvectors."""

    z: Array  # (k,)
    ψ: Array  # (n, k), orthonormal under π


def _slow_modes(P: Any, π: Array, k: int) -> Modes:
    """Return the k slowest modes of the reversible chain (P + P*)/2."""
    from scipy.sparse.linalg import ArpackError, eigsh

    s, n = np.sqrt(π), π.size
    B = sparse.diags_array(s) @ sparse.csr_array(P) @ sparse.diags_array(1 / s)
    S = (B + B.T) / 2
    if n <= MAX_DIRECT_STATES:
        λ, V = scipy.linalg.eigh(S.toarray(), subset_by_index=(n - k, n - 1))
        if λ.size < k:  # LAPACK's selection may find none in matrices with entries near the smallest number
            λ, V = (part[..., -k:] for part in scipy.linalg.eigh(S.toarray(), driver="evd"))
    else:
        try:
            λ, V = eigsh(S, k, which="LA", v0=s, ncv=max(4 * k, 40), maxiter=MOST_RESTARTS)
        except ArpackError as error:
            raise InvalidChain(
                f"the slow modes of these {n} states were not found ({error}); use diffbisim.aggregate with classes"
            ) from None
    order = np.argsort(-λ, kind="stable")
    V = V[:, order] / s[:, None]
    V[:, 0] = 1.0
    return Modes(1 / np.maximum(1 - λ[order], 1e-15), V)


def _spanning(ψ: Array) -> Integers:
    """Assign points by membership in the simplex spanned by k states, which are chosen greedily to make it large."""
    first = int(np.linalg.norm(ψ, axis=1).argmax())
    others = scipy.linalg.qr((ψ - ψ[first]).T, mode="r", pivoting=True)[1]
    corners = np.append(first, others[: ψ.shape[1] - 1])
    members = ψ @ np.linalg.pinv(ψ[corners])
    return np.asarray(members.argmax(axis=1))


def _by_means(points: Array, weight: Array, assignment: Integers) -> Integers:
    """Run weighted k-means from a given assignment; a class that loses all members stays empty."""
    from scipy.spatial.distance import cdist

    k = int(assignment.max()) + 1
    for _ in range(ROUNDS):
        into = weight[:, None] * np.eye(k)[assignment]
        mass = into.sum(axis=0)
        means = np.where(mass[:, None] > 0, into.T @ points / np.maximum(mass, 1e-300)[:, None], np.inf)
        before, assignment = assignment, np.nan_to_num(cdist(points, means, "sqeuclidean"), nan=np.inf).argmin(axis=1)
        if np.array_equal(before, assignment):
            break
    return assignment


# --- kinetic models ----------------------------------------------------------------------------------------


class KineticModel(NamedTuple):
    """A kernel on classes, its stationary distribution and the error of the fit (see the module's docstring)."""

    transition: Array  # (k, k)
    law: Array  # (k,)
    residual: float


def kinetic_model(chain: MarkovChain, assignment: Integers) -> KineticModel:
    """Return Hummer and Szabo's kernel on the classes ``assignment (n,)``, 0 … k-1, with nonnegative fluxes."""
    from scipy.optimize import nnls

    _one_recurrent_class(chain)
    π, k = chain.stationary_distribution, int(assignment.max()) + 1
    law: Array = np.bincount(assignment, weights=π, minlength=k).astype(np.float64)
    if not law.min() > 0:
        raise InvalidArgument(
            f"assignment: class {int(law.argmin())} has only transient states, whose stationary probability is zero; "
            'put them into another class, or use method="mean"'
        )
    A, s, one = np.eye(k)[assignment], np.sqrt(law), np.eye(k)
    whole = one + np.outer(s, s)
    residual = 0.0
    try:
        S = (A.T @ (π[:, None] * _fundamental(chain, π, A))) / np.outer(s, s)  # D_c^{1/2} Z_c D_c^{-1/2}
        G = whole - np.linalg.inv(S)  # D_c^{-1/2} F D_c^{-1/2}
        if not np.isfinite(G).all():
            raise _out_of_range(chain)
        if G.min() < 0:
            half = scipy.linalg.sqrtm(S).real
            R = half @ scipy.linalg.sqrtm(half).real  # S^¾
            binding = BINDING * np.abs(S).max() ** 1.5
            rows = np.vstack([np.kron(R, R.T), binding * np.kron(one, s), binding * np.kron(s, one)])
            wanted = np.concatenate([(R @ whole @ R - half).ravel(), binding * s, binding * s])
            if not (np.isfinite(rows).all() and np.isfinite(wanted).all()):
                raise _out_of_range(chain)
            G = nnls(rows, wanted, maxiter=100 * k * k)[0].reshape(k, k)
            residual = float(np.linalg.norm(R @ (whole - G) @ R - half) / np.linalg.norm(half))
    except (np.linalg.LinAlgError, RuntimeError):  # singular, or no convergence of the fit
        raise _out_of_range(chain) from None
    P = np.maximum(G, 0.0) * s / s[:, None]
    if not P.sum(axis=1).min() > 0:
        raise _out_of_range(chain)
    return KineticModel(P / P.sum(axis=1, keepdims=True), law, residual)


def _out_of_range(chain: MarkovChain) -> InvalidChain:
    """Return the error for classes whose rates cannot be computed."""
    return InvalidChain(
        "the classes are left so rarely that their rates cannot be computed with floating-point numbers (the least "
        f'transition probability is {_least(chain):.1e}); take a longer lag, or method="mean" (model="aggregate")'
    )


def _fundamental(chain: MarkovChain, π: Array, A: Array) -> Array:
    """Return Z A, shape ``(n, k)``, from one factorization of I - P without the most visited state."""
    n = chain.n_states
    law = π @ A
    rest = np.delete(np.arange(n), int(π.argmax()))
    W = np.zeros_like(A)
    if n > 1:
        centered = (A - law)[rest]
        if n <= MAX_DIRECT_STATES or not chain.is_sparse:
            P = dense(chain.transition)
            W[rest] = np.linalg.solve(np.eye(n - 1) - P[np.ix_(rest, rest)], centered)
        else:
            part = sparse.eye_array(n - 1) - submatrix(chain.transition, rest)
            W[rest] = sparse.linalg.splu(sparse.csc_array(part)).solve(centered)
    return np.asarray(W - π @ W + law)
