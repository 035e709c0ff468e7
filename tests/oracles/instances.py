"""Random small problems of every kind, as plain arrays: ``P_x, P_y, nu_x, nu_y, cost, discount``."""

from typing import NamedTuple

import numpy as np

KINDS = ("dense", "sparse", "deterministic", "ties", "absorbing")


class Instance(NamedTuple):
    P_x: np.ndarray
    P_y: np.ndarray
    nu_x: np.ndarray
    nu_y: np.ndarray
    cost: np.ndarray
    discount: float


def kernel(rng, n, kind):
    """A stochastic matrix; "ties" has equal entries, "absorbing" a state that is never left."""
    if kind == "dense":
        return rng.dirichlet(np.ones(n), n)
    if kind == "deterministic":
        return np.eye(n)[rng.integers(0, n, n)]
    if kind == "ties":
        P = rng.integers(0, 3, (n, n)).astype(float)
        P[:, 0] += P.sum(axis=1) == 0
    else:
        P = rng.random((n, n)) * (rng.random((n, n)) < 0.5)
        P[np.arange(n), rng.integers(0, n, n)] += 0.5
        if kind == "absorbing":
            P[-1] = np.eye(n)[-1]
    return P / P.sum(axis=1, keepdims=True)


def start(rng, n, dirac):
    """A state, or a distribution that may miss some states."""
    if dirac:
        return np.eye(n)[rng.integers(n)]
    nu = rng.random(n) * (rng.random(n) < 0.7)
    return nu / nu.sum() if nu.sum() > 0 else np.full(n, 1 / n)


def instance(seed, discounts=(0.1, 0.5, 0.9, 0.95, 0.99), largest=4):
    """Deterministic in ``seed``; cycles through kinds, starts and discounts: 75 seeds cover them all."""
    rng = np.random.default_rng([2024, seed])
    n_x, n_y = rng.integers(1, largest + 1, size=2)
    kind_x, kind_y = KINDS[seed % 5], KINDS[(seed // 5) % 5]
    cost = rng.integers(0, 3, (n_x, n_y)).astype(float) if seed % 4 == 0 else rng.random((n_x, n_y))
    return Instance(
        kernel(rng, n_x, kind_x),
        kernel(rng, n_y, kind_y),
        start(rng, n_x, dirac=seed % 3 == 0),
        start(rng, n_y, dirac=seed % 2 == 0),
        cost,
        discounts[(seed // 3) % len(discounts)],
    )
