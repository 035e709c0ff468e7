"""How slowly a chain forgets where it began: its slowest implied timescale.

The eigenvalues of a kernel P lie in the unit disk, and one of them is 1. Let λ₂ be the one nearest to 1 besides it,
among the states that can be reached from the start. What is not yet forgotten then decays like λ₂ᵗ, so

    t₂ = -1 / log |λ₂|     steps,

infinite if the states fall into several groups that the chain never leaves, and zero if λ₂ is not to the right of zero
(nothing slow: it swings back and forth at most).
"""

from typing import Any

import numpy as np
from scipy import sparse

from diffbisim.chain import MarkovChain

#: Up to this size all eigenvalues are computed.
SMALL = 200

#: Up to this size the eigenvalues next to 1 come from a factorization of P - (1 + a little).
DIRECT, SHIFT = 3_000, 1.0 + 1e-6


def slowest_timescale(chain: MarkovChain) -> float:
    """``t₂`` in steps; NaN where the eigenvalues could not be found."""
    reachable = chain.reachable_states
    if np.isin([states[0] for states in chain.recurrent_classes], reachable).sum() > 1:
        return np.inf
    P = sparse.csr_array(chain.successors.matrix[reachable][:, reachable])
    if P.shape[0] == 1:
        return 0.0
    λ = _second(P)
    if not λ.real > 0:
        return 0.0 if λ == λ else np.nan
    size = min(abs(λ), 1.0)
    return np.inf if size == 1.0 else float(-1 / np.log(size))


def _second(P: sparse.csr_array) -> complex:
    """The eigenvalue nearest to 1 besides the leading one; NaN where the iteration for large kernels fails."""
    from scipy.linalg import lu_factor, lu_solve
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    n = P.shape[0]
    if n <= SMALL:
        found = np.linalg.eigvals(P.toarray())
    else:
        start = np.random.default_rng(0).random(n)  # ARPACK's own would differ from call to call
        options: Any = {"k": 2, "v0": start, "return_eigenvectors": False}
        try:
            if n <= DIRECT:
                factors = lu_factor(P.toarray() - SHIFT * np.eye(n))
                inverse = LinearOperator((n, n), matvec=lambda v: lu_solve(factors, v), dtype=np.float64)
                found = eigs(P, sigma=SHIFT, OPinv=inverse, **options)
            else:
                found = eigs(P, which="LR", maxiter=1_000, **options)
        except ArpackError:
            return complex(np.nan)
    return complex(found[np.argsort(np.abs(found - 1))[1]])
