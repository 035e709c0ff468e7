"""Candidate partitions: classes of states that are close in a metric D.

    medians    k-medians: centers are drawn with probability proportional to weight times squared distance to the
               nearest center (k-means++); then every state is assigned to its nearest center and every center moves to
               the median of its class, in turn
    balls      Ferns, Panangaden & Precup (2006): an uncovered state becomes the center of a ball of radius ε that takes
               all uncovered states in it; ε is the smallest radius for which k balls suffice
    pairs      the two closest states are merged, then the next two, until k classes are left (Castro 2021,
               google-research's rl_metrics): single linkage

Each takes a generator, for draws, the order of states, or ties. Labels are (n,) integers from 0 to at most k-1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.checks import Floats, Integers

ROUNDS = 30

#: Number of members of a class among which its median is sought.
FEW = 60


@dataclass(frozen=True, eq=False)
class Metric:
    """Distances between states; ``between(rows, columns)`` returns a table of that shape."""

    between: Callable[[Integers, Integers], Floats]
    n: int

    @classmethod
    def of_table(cls, D: Floats) -> "Metric":
        return cls(lambda i, j: D[np.ix_(i, j)], len(D))

    @classmethod
    def of_features(cls, q: Floats) -> "Metric":
        """The largest difference of features (n, d); for Q*, states with similar values of all actions are close."""
        from scipy.spatial.distance import cdist

        return cls(lambda i, j: np.asarray(cdist(q[i], q[j], "chebyshev")), len(q))

    def __add__(self, other: "Metric") -> "Metric":
        return Metric(lambda i, j: self.between(i, j) + other.between(i, j), self.n)

    @property
    def table(self) -> Floats:
        """All distances, (n, n)."""
        everyone = np.arange(self.n)
        return self.between(everyone, everyone)


def medians(metric: Metric, weight: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Return k classes around weighted medians (fewer if there are fewer distinct states)."""
    everyone = np.arange(metric.n)
    centers = _spread(metric, weight, k, rng)
    labels = np.full(metric.n, -1)
    for _ in range(ROUNDS):
        before, labels = labels, metric.between(everyone, centers).argmin(axis=1)
        if np.array_equal(before, labels):
            break
        centers = np.array([
            _median(metric, weight, np.flatnonzero(labels == j), int(center), rng) for j, center in enumerate(centers)
        ])  # fmt: skip
    return numbered(labels)


def _spread(metric: Metric, weight: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Return the initial centers, which are distinct."""
    everyone = np.arange(metric.n)
    centers = [int(rng.choice(metric.n, p=weight / weight.sum()))]
    nearest = metric.between(everyone, np.array(centers))[:, 0]
    while len(centers) < k:
        p = weight * nearest**2
        if not p.sum() > 0:
            break
        centers.append(int(rng.choice(metric.n, p=p / p.sum())))
        nearest = np.minimum(nearest, metric.between(everyone, np.array(centers[-1:]))[:, 0])
    return np.array(centers)


def _median(metric: Metric, weight: Floats, members: Integers, center: int, rng: np.random.Generator) -> int:
    """Return the member with the least sum of distances to the others, or the old center if there are no members."""
    if members.size == 0:
        return center
    few = members if members.size <= FEW else np.sort(rng.choice(members, FEW, replace=False))
    return int(few[(weight[members] @ metric.between(members, few)).argmin()])


def balls(D: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Return k balls of the smallest sufficient radius, centered at states in random order."""
    order = rng.permutation(len(D))
    radii = np.unique(D)
    low, high = 0, radii.size - 1  # the largest radius needs one ball
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _covered(D, order, radii[middle]).max() < k else (middle + 1, high)
    return numbered(_covered(D, order, radii[high]))


def _covered(D: Floats, order: Integers, radius: float) -> Integers:
    """Return the ball of every state, numbered in order of creation."""
    labels, count = np.full(len(D), -1), 0
    for center in order.tolist():
        if labels[center] < 0:
            labels[(D[center] <= radius) & (labels < 0)] = count
            count += 1
    return labels


def pairs(D: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Merge closest pairs until k classes are left; ties are broken at random."""
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    n = len(D)
    if n <= k:
        return np.arange(n)
    order = rng.permutation(n)
    near = (D[np.ix_(order, order)] + D[np.ix_(order, order)].T) / 2
    np.fill_diagonal(near, 0.0)
    labels = np.empty(n, dtype=np.int64)
    labels[order] = cut_tree(linkage(squareform(near, checks=False), "single"), n_clusters=[k])[:, 0]
    return numbered(labels)


def numbered(labels: Any) -> Integers:
    """Return the same partition with classes numbered by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse.reshape(-1)], dtype=np.int64)
