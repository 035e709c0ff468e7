"""Plots of many distances: over the number of states, as a sorted matrix, as points in the plane.

*Embedding.* Classical multidimensional scaling: with J = I - 11ᵀ/n, the two leading eigenvectors of -½ J D² J, scaled
by the square roots of their eigenvalues, are the points whose inner products match best. The title shows the
correlation of the drawn distances with the given ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.common.errors import InvalidArgument
from diffbisim.plot.style import BLUE, VERMILION, heat_map, own, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def elbow(sizes: Any, values: Any = None, ax: Axes | None = None, *, recommended: int | None = None) -> Axes:
    """Plot the distance of the best chain of each size, with the recommended size marked.

    Parameters
    ----------
    sizes : sequence of int, or a sweep
        Numbers of states; a result of ``compress_sweep`` provides the values too.
    values : sequence of float, default=None
        Distances, one per size.
    ax : Axes, default=None
    recommended : int, default=None

    Returns
    -------
    ax : Axes
    """
    if values is None:
        if recommended is None:
            recommended = getattr(sizes, "recommended", None)
        sizes, values = sizes.sizes, sizes.values
    n, d = np.asarray(sizes), np.asarray(values, dtype=np.float64)
    if n.shape != d.shape or n.ndim != 1 or not n.size:
        raise InvalidArgument(f"sizes has shape {n.shape} and values {d.shape}; give one distance per size")
    ax = plain(own(ax))
    ax.plot(n, d, "o-", color=BLUE, label="best found")
    if recommended is not None:
        mark: dict[str, Any] = {"color": VERMILION, "markersize": 13, "markeredgewidth": 1.6, "fillstyle": "none"}
        ax.plot([recommended], d[n == recommended], "o", label=f"recommended: {recommended}", **mark)
        ax.legend(framealpha=1, edgecolor="none", fontsize=9)
    ax.set(xlabel="number of states $n_Y$", ylabel="distance to the target")
    ax.set_ylim(bottom=min(0.0, float(d.min())) - 0.04 * float(np.ptp(d)))
    ax.set_xticks(n)
    return ax


def distances(matrix: Any, names: Sequence[Any] | None = None, ax: Axes | None = None, *, tree: bool = True) -> Axes:
    """Draw a symmetric matrix of distances, sorted by a dendrogram (average linkage).

    ``tree=False`` keeps the given order.
    """
    D = _square(matrix)
    listed = _names(names, len(D))
    ax = own(ax, 5.0, 5.0)
    order = list(range(len(D)))
    if tree and len(D) > 2:
        from scipy.cluster.hierarchy import dendrogram, linkage, optimal_leaf_ordering
        from scipy.spatial.distance import squareform

        flat = squareform(D, checks=False)
        joins = optimal_leaf_ordering(linkage(flat, "average"), flat)
        top = ax.inset_axes((0.0, 1.02, 1.0, 0.22))
        drawn = dendrogram(joins, ax=top, no_labels=True, color_threshold=0.0, above_threshold_color="#333333")
        order = [int(k) for k in drawn["leaves"] or ()]
        top.set_axis_off()
    sorted_names = [listed[k] for k in order]
    heat_map(ax, D[np.ix_(order, order)], "distance", sorted_names, sorted_names, cmap="cividis", vmin=0.0)
    return ax


def embedding(matrix: Any, names: Sequence[Any] | None = None, ax: Axes | None = None) -> Axes:
    """Draw points in the plane whose distances approximate a symmetric matrix (classical scaling)."""
    D = _square(matrix)
    n = len(D)
    points = _classical_scaling(D)
    ax = plain(own(ax, 4.8, 4.2))
    ax.plot(*points.T, "o", color=BLUE, markersize=7)
    above = points[:, 0].argsort().argsort() % 2  # names of neighbors alternate above and below
    for name, point, up in zip(_names(names, n), points.tolist(), above.tolist(), strict=True):
        offset = (0, 8) if up else (0, -15)
        ax.annotate(str(name), point, xytext=offset, textcoords="offset points", fontsize=9, ha="center")
    upper = np.triu_indices(n, 1)
    drawn = np.linalg.norm(points[:, None] - points[None], axis=2)[upper]
    if n > 2 and np.ptp(D[upper]) > 0 and np.ptp(drawn) > 0:
        fit = float(np.corrcoef(drawn, D[upper])[0, 1])
        ax.set_title(f"correlation of drawn with given distances: {fit:.3f}", fontsize=9)
    ax.set(xlabel="first coordinate (units of distance)", ylabel="second coordinate")
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.15)
    return ax


def _names(names: Sequence[Any] | None, n: int) -> list[Any]:
    listed = list(range(n) if names is None else names)
    if len(listed) != n:
        raise InvalidArgument(f"names has {len(listed)} entries for {n} rows of the matrix; give one per row")
    return listed


def _classical_scaling(D: Floats) -> Floats:
    n = len(D)
    J = np.eye(n) - 1.0 / n
    values, vectors = np.linalg.eigh(-0.5 * J @ D**2 @ J)
    points = np.zeros((n, 2))
    k = min(2, n)
    vectors *= np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(n)] < 0, -1.0, 1.0)
    points[:, :k] = vectors[:, ::-1][:, :k] * np.sqrt(np.maximum(values[::-1][:k], 0.0))
    return points


def _square(matrix: Any) -> Floats:
    D = np.array(matrix, dtype=np.float64)
    if D.ndim != 2 or D.shape[0] != D.shape[1] or not D.size:
        raise InvalidArgument(f"matrix has shape {D.shape}; give a square matrix of distances, as pairwise returns")
    if not np.allclose(D, D.T, atol=1e-7 * (np.abs(D).max() or 1.0)):
        raise InvalidArgument("matrix is not symmetric; distances in both directions must agree")
    D = (D + D.T) / 2
    np.fill_diagonal(D, 0.0)
    return D
