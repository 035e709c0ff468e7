"""Kernels by name, as plain arrays, and what follows from a kernel by its definition."""

from collections import Counter

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve


def dense(chain):
    """The kernel of a chain, or a matrix, as an ordinary array."""
    P = getattr(chain, "transition", chain)
    return P.toarray() if sp.issparse(P) else P


def walk(n, p, absorbing=False):
    """Up with p, down with 1-p; at the ends it stays, or never leaves them again."""
    P = p * np.eye(n, k=1) + (1 - p) * np.eye(n, k=-1)
    P[0, 0], P[-1, -1] = 1 - p, p
    if absorbing:
        P[0], P[-1] = np.eye(n)[0], np.eye(n)[-1]
    return P


def cycle(n):
    """From state x to x + 1, around."""
    return np.roll(np.eye(n), 1, axis=1)


def random_sparse(rng, n, k):
    """k random successors for every state, CSR."""
    P = np.zeros((n, n))
    for row in P:
        row[rng.choice(n, k, replace=False)] = rng.dirichlet(np.ones(k))
    return sp.csr_array(P)


def apart(n, k):
    """|x - y| for states on a line."""
    return np.abs(np.subtract.outer(np.arange(n), np.arange(k))).astype(float)


def counted(s, s_next, weights, order):
    """P by counting in dictionaries."""
    total, joint = Counter(), Counter()
    for a, b, w in zip(s, s_next, weights, strict=True):
        total[a] += w
        joint[a, b] += w
    return np.array([[joint[a, b] / total[a] for b in order] for a in order])


def power_series(P, start, discount, terms=4000):
    """ρ by its definition: (1-γ) Σ γ^t ν0 P^t."""
    rho, law = np.zeros(len(start)), np.array(start, dtype=float)
    for t in range(terms):
        rho += (1 - discount) * discount**t * law
        law = law @ P
    return rho


def only_coupling(P_x, P_y, c, γ):
    """All values when one chain is deterministic: (I - γ P_X ⊗ P_Y) U = (1-γ) c."""
    system = sp.eye_array(c.size) - γ * sp.kron(sp.csr_array(P_x), sp.csr_array(P_y))
    return spsolve(system.tocsc(), (1 - γ) * c.ravel()).reshape(c.shape)
