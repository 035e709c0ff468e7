"""Orders of states for plots, in which similar states are neighbors.

*Hierarchical clustering.* The leaves of the average-linkage tree of the rows of a table, read from left to right, are
an order in which neighbors are similar; cutting the tree partitions the rows into groups.

*Barycenters.* Given an order of the columns of a non-negative table, sorting the rows by the mean position of their
mass moves the mass toward the diagonal. This is the usual heuristic for reducing edge crossings in bipartite drawings.
"""

import numpy as np
from numpy.typing import NDArray

from diffbisim.checks import Floats

Order = NDArray[np.intp]

#: Up to this many leaves the order of the tree's leaves is optimized.
OPTIMAL = 250


def cluster_order(table: Floats, most: int | None = None) -> tuple[Order, Order]:
    """Return the order of the rows along their clustering tree, and the group of each row.

    There are at most ``most`` groups (default: one per row), numbered along the order.
    """
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import pdist

    n = len(table)
    if n < 3:
        return np.arange(n), np.arange(n)
    apart = pdist(table)
    tree = linkage(apart, "average")
    order = leaves_list(optimal_leaf_ordering(tree, apart) if n <= OPTIMAL else tree).astype(np.intp)
    if most is None or n <= most:
        return order, order.argsort()
    found = fcluster(tree, most, "maxclust")[order]
    group = np.empty(n, np.intp)
    group[order] = np.cumsum(np.diff(found, prepend=found[:1]) != 0)  # each group is a run in the order
    return order, group


def by_barycenter(shares: Floats) -> Order:
    """Return the rows sorted by the mean column of their mass; rows without mass come last."""
    total = shares.sum(axis=1)
    mean = shares @ np.arange(shares.shape[1]) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, mean, np.inf).argsort(kind="stable")
