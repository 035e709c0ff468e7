"""Orders of states that let a picture speak: what behaves alike stands together.

*Trees.* Rows of a table are joined from the most similar upward (average linkage); the leaves of that tree, read from
left to right, are an order in which neighbors are alike, and a cut through it is a partition into so many groups.

*Barycenters.* If the columns of a table of shares have an order, each row has a mean position; rows sorted by it bring
the mass to the diagonal. That is the usual step against crossings between two rows of dots.
"""

import numpy as np
from numpy.typing import NDArray

from diffbisim.checks import Floats

Order = NDArray[np.intp]

#: Up to this many leaves their order is the best of all that the tree allows.
OPTIMAL = 250


def alike(table: Floats, most: int | None = None) -> tuple[Order, Order]:
    """The rows of a table in the order of their tree, and the group of each row.

    Groups are numbered along the order; there are at most ``most``, by default as many as rows.
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
    group[order] = np.cumsum(np.diff(found, prepend=found[:1]) != 0)  # neighbors in the order, so one run each
    return order, group


def by_barycenter(shares: Floats) -> Order:
    """The rows of a table by the mean position of their mass among the columns; those without mass come last."""
    total = shares.sum(axis=1)
    mean = shares @ np.arange(shares.shape[1]) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, mean, np.inf).argsort(kind="stable")
