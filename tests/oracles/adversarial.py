"""Tiny problems with hostile numbers: what rounding, thresholds and scaling may trip over."""

import numpy as np

from oracles.instances import Instance

#: Probabilities near the last digit of one, near the smallest normal number, and beyond it.
TINY = (3e-15, 8.78e-16, 5.5e-16, 2.3e-16, 1.2e-16, 1e-16, 1e-17, 1e-30, 1e-100, 1e-200, 1e-300, 1e-310, 5e-324)


def hostile_row(rng, n):
    """A distribution: a single state, a state and crumbs, a few equal shares, nearly even, or random."""
    kind = rng.integers(6)
    if kind == 0 or n == 1:
        return np.eye(n)[rng.integers(n)]
    if kind <= 2:  # nearly deterministic; the crumbs may push the sum above one by their own size
        row = np.eye(n)[rng.integers(n)]
        for k in range(n):
            if row[k] == 0 and rng.random() < 0.7:
                row[k] = rng.choice(TINY) * rng.uniform(0.5, 2.0)
        if kind == 2:
            row[row.argmax()] -= row[row < 0.5].sum()
        return row
    if kind == 3:
        row = rng.integers(0, 3, n).astype(float)
        row[rng.integers(n)] += 1
        return row / row.sum()
    if kind == 4:
        row = np.full(n, 1 / n)
        row[0] += rng.choice(TINY)
        return row
    row = rng.dirichlet(np.ones(n))
    row[rng.integers(n)] *= 10.0 ** -rng.integers(0, 18)
    return row / row.sum()


def hostile_cost(rng, shape):
    """Zeros, ties, and entries of very different sizes."""
    kind = rng.integers(5)
    if kind == 0:
        return rng.integers(0, 2, shape).astype(float)
    if kind == 1:
        return rng.random(shape)
    if kind == 2:
        return 10.0 ** rng.uniform(-18, 0, shape) * (rng.random(shape) < 0.8)
    if kind == 3:
        return 1.0 + rng.integers(0, 3, shape) * 2.0**-52
    return rng.random(shape) * (rng.random(shape) < 0.3)


def hostile(seed, discounts=(0.1, 0.5, 0.9, 0.95, 0.99, 0.999), largest=3, scales=(1.0,)):
    """Deterministic in ``seed``."""
    rng = np.random.default_rng([77, seed])
    n_x, n_y = rng.integers(1, largest + 1, size=2)
    kernels = [np.array([hostile_row(rng, n) for _ in range(n)]) for n in (n_x, n_y)]
    starts = [hostile_row(rng, n) for n in (n_x, n_y)]
    cost = hostile_cost(rng, (n_x, n_y)) * rng.choice(scales)
    return Instance(*kernels, *starts, cost, float(rng.choice(discounts)))
