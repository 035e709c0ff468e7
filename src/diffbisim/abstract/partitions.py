"""Where candidates come from: partitions of states that are near in a metric D.

    medians    k-medians: centers drawn one after the other by weight times squared distance to the nearest (k-means++),
               then in turn every state to its nearest center and every center to the median of its class
    balls      Ferns, Panangaden & Precup (2006): a state that is not covered yet becomes the center of a ball of radius
               ε that takes what is not covered; ε the least for which k balls are enough
    pairs      the two closest states are put together, then the next two, until k classes are left (Castro 2021,
               google-research's rl_metrics): single linkage

Each takes a seed, for the draws, for the order of the states, for ties; labels are (n,) in 0 … at most k-1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.checks import Floats, Integers

ROUNDS = 30

#: A median is sought among so many members of its class.
FEW = 60


@dataclass(frozen=True, eq=False)
class Metric:
    """Distances between states: ``between(rows, columns)`` is a table of these sizes."""

    between: Callable[[Integers, Integers], Floats]
    n: int

    @classmethod
    def of_table(cls, D: Floats) -> "Metric":
        return cls(lambda i, j: D[np.ix_(i, j)], len(D))

    @classmethod
    def of_features(cls, q: Floats) -> "Metric":
        """The largest difference of features (n, d): for q = Q*, states of nearly the same values of all actions."""
        from scipy.spatial.distance import cdist

        return cls(lambda i, j: np.asarray(cdist(q[i], q[j], "chebyshev")), len(q))

    def __add__(self, other: "Metric") -> "Metric":
        return Metric(lambda i, j: self.between(i, j) + other.between(i, j), self.n)

    @property
    def table(self) -> Floats:
        """All of it, (n, n)."""
        everyone = np.arange(self.n)
        return self.between(everyone, everyone)


def medians(metric: Metric, weight: Floats, k: int, rng: np.random.Generator) -> Integers:
    """k classes (fewer if there are not as many distinct states) around their medians, weighted."""
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
    """The first centers, all apart from each other."""
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
    """The member with the least sum of distances to the others; the old center where there are no members."""
    if members.size == 0:
        return center
    few = members if members.size <= FEW else np.sort(rng.choice(members, FEW, replace=False))
    return int(few[(weight[members] @ metric.between(members, few)).argmin()])


def balls(D: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Balls of the least radius of which k are enough, centered at states in random order."""
    order = rng.permutation(len(D))
    radii = np.unique(D)
    low, high = 0, radii.size - 1  # the largest radius needs one ball
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _covered(D, order, radii[middle]).max() < k else (middle + 1, high)
    return numbered(_covered(D, order, radii[high]))


def _covered(D: Floats, order: Integers, radius: float) -> Integers:
    """The ball of every state, numbered as they are made."""
    labels, count = np.full(len(D), -1), 0
    for center in order.tolist():
        if labels[center] < 0:
            labels[(D[center] <= radius) & (labels < 0)] = count
            count += 1
    return labels


def pairs(D: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Closest pairs put together until k classes are left; ties in random order."""
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
    """The same partition, its classes 0, 1, … in the order in which they appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse.reshape(-1)], dtype=np.int64)
