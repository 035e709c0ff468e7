"""Quantization of continuous states: chains on finitely many cells from trajectories in R^d.

Two datasets share their k cells, so that identical data give identical chains. The cells are those of k-means on the
points of both, where each dataset has half of the total weight, so that a small dataset gets its share of the cells.
Coordinates are divided by ``scale`` first, and a point belongs to the nearest center.

*Transition rows.* Counting the successors of the points in a cell estimates the transition distribution from few
points, and averages it over the cell instead of evaluating it at the center. **Local-linear rows** do better: around
each center c, take the nearest quarter of all steps x → x' (fewer for large datasets, see `neighbors`), fit a linear
regression of x' on x with weights that decrease with the distance from c, and move every successor to

    x' + B_c (c - x),            B_c the slope of x' over x around c,

where it would have been if the step had started at c. The cells of the moved successors, with their weights, are the
row of c. If mean and slope change little over the neighborhood, the noise is that of a quarter of all points instead of
one cell.

*Terminal states* (those for which ``terminal`` is true) have absorbing cells of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from diffbisim.common.checks import Floats, Integers, as_floats, as_number, check_count, freeze, refuse_masked
from diffbisim.common.errors import InvalidArgument, InvalidData, MissingExtra
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.cost import feature_cost
from diffbisim.processes.stochastic import as_generator

Smoothing = Literal["local-linear"]
Terminal = Callable[[Floats], Any]

#: Points may lie outside the bounding box of the data by this fraction of its sides.
MARGIN = 0.5

#: If there are terminal states, one in this many cells is reserved for them.
TERMINAL_SHARE = 8

#: Maximum number of cells with n_states="auto"; tables have k² entries.
MOST_CELLS = 200


class TrajectorySteps(NamedTuple):
    """The concatenated steps of n trajectories, and their first points."""

    now: Floats  # (m, d)
    after: Floats  # (m, d)
    starts: Floats  # (n, d)
    trajectory: Integers  # (m,) trajectory of each step, in 0 … n-1

    @classmethod
    def of(cls, paths: Sequence[Floats] | Floats) -> TrajectorySteps:
        """Create from a list of (T, d) arrays or one (n, T, d) array."""
        if isinstance(paths, np.ndarray):
            n, T, d = paths.shape
            now, after = paths[:, :-1].reshape(-1, d), paths[:, 1:].reshape(-1, d)
            return cls(now, after, paths[:, 0], np.repeat(np.arange(n), T - 1))
        return cls(
            np.concatenate([path[:-1] for path in paths]),
            np.concatenate([path[1:] for path in paths]),
            np.stack([path[0] for path in paths]),
            np.repeat(np.arange(len(paths)), [len(path) - 1 for path in paths]),
        )


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of R^d, given by their centers; created by :func:`quantize`."""

    centers: Floats  # (k, d), those of terminal cells last
    scale: Floats  # (d,) divisors of the coordinates before distances are computed
    radius: Floats  # (k,) root mean square distance of a cell's points from its center, in scaled coordinates
    box: Floats  # (2, d) smallest and largest coordinates of the data
    terminal: Terminal | None = None
    n_terminal: int = 0

    @property
    def n_states(self) -> int:
        """Number of cells."""
        return len(self.centers)

    @property
    def dimension(self) -> int:
        """Number of coordinates of a point."""
        return int(self.centers.shape[1])

    def __repr__(self) -> str:
        ends = f", {self.n_terminal} of them terminal" if self.n_terminal else ""
        return f"Cells({self.n_states} in {self.dimension} dimension{'s' * (self.dimension != 1)}{ends})"

    # --- points to cells -----------------------------------------------------------------------------------

    def encode(self, x: Any, *, outside: Literal["error", "nearest"] = "error") -> Integers:
        """Return the cell of each point.

        Parameters
        ----------
        x : array of shape (…, d); on the line also (…,)
        outside : {"error", "nearest"}, default="error"
            How to treat points far outside the data: raise an error, or assign them to the nearest cell.

        Returns
        -------
        cells : array of ints, shape (…,)

        Examples
        --------
        >>> quantize([[0.0, 1.0, 0.0, 1.0]], n_states=2).encode([0.1, 0.9])
        array([0, 1])
        """
        if outside not in ("error", "nearest"):
            raise InvalidArgument(f'outside is {outside!r}; use "error" or "nearest"')
        points = points_of(x, "x", self.dimension)
        flat = points.reshape(-1, self.dimension)
        if outside == "error":
            self._check_range(flat)
        return self._nearest(flat, self._ends(flat)).reshape(points.shape[:-1])

    def cost(self, metric: str = "euclidean") -> Floats:
        """Return the distances (k, k) between centers, unscaled; ``metric`` as in :func:`feature_cost`."""
        return feature_cost(self.centers, self.centers, metric)

    # --- trajectories to chains ----------------------------------------------------------------------------

    def transitions(self, X: Any) -> Transitions:
        """Return the transitions between cells of a list of trajectories."""
        paths = cut(paths_of(X, "X", self.dimension), self.terminal)
        ends = np.cumsum([len(path) for path in paths])[:-1]
        codes = np.split(self.encode(_stacked(paths)), ends)
        return Transitions.from_trajectories(codes, states=self.n_states)

    def chain(self, X: Any, smoothing: Smoothing | None = "local-linear", *, prune: float = 0.0) -> MarkovChain:
        """Estimate the chain on the cells from trajectories.

        Parameters
        ----------
        X : list of arrays of shape (T, d)
        smoothing : "local-linear" or None, default="local-linear"
            How rows are estimated: local-linear regression (see the module docstring), or None for counting, where
            cells without outgoing transitions become absorbing.
        prune : float, default=0.0
            Move the smallest probabilities of each row, up to this total mass, to the nearest remaining cell.

        Returns
        -------
        chain : MarkovChain
            On the line its rewards are the centers.
        """
        if smoothing is None:
            return self.transitions(X).chain(rewards=self._rewards, unseen="self-loop")
        if smoothing != "local-linear":
            raise InvalidArgument(f'smoothing is {smoothing!r}; use "local-linear" or None')
        paths = paths_of(X, "X", self.dimension)
        self._check_range(_stacked(paths))
        return self.smoothed(self.steps(paths), prune)

    def steps(self, paths: Any) -> TrajectorySteps:
        """Return the steps of validated trajectories, up to the first terminal point of each."""
        return TrajectorySteps.of(cut(paths, self.terminal))

    def smoothed(self, steps: TrajectorySteps, prune: float = 0.0) -> MarkovChain:
        """Return the chain with local-linear rows, estimated from validated steps."""
        if not 0.0 <= as_number(prune) < 1.0:
            raise InvalidArgument(f"prune is {prune!r}; give a fraction below 1, such as 0.001")
        if not len(steps.now):
            raise InvalidData("X has no steps: every trajectory has one point; give trajectories with two or more")
        rows = self.rows(local_laws(self.centers, self.scale, steps, self._ends), float(prune))
        return MarkovChain(rows, initial=self.law(steps.starts), rewards=self._rewards)

    def law(self, points: Floats) -> Floats:
        """Return the fraction of the points (n, d) in each cell."""
        cell = self._nearest(points, self._ends(points))
        return np.bincount(cell, minlength=self.n_states) / len(points)

    # --- internals -----------------------------------------------------------------------------------------

    @property
    def _rewards(self) -> Floats | None:
        return self.centers[:, 0] if self.dimension == 1 else None

    @cached_property
    def _finders(self) -> tuple[Callable[[Floats], Integers], Callable[[Floats], Integers]]:
        """Nearest-center lookups among the nonterminal and among the terminal cells."""
        scaled, n = self.centers / self.scale, self.n_states - self.n_terminal
        return _finder(scaled[:n]), _finder(scaled[n:] if self.n_terminal else scaled)

    def _ends(self, points: Floats) -> Any:
        """Return which points (n, d) are terminal, (n,)."""
        return _terminal_mask(self.terminal, points) if self.n_terminal else np.zeros(len(points), dtype=bool)

    def _nearest(self, points: Floats, ends: Any) -> Integers:
        inner, outer = self._finders
        scaled = points / self.scale
        cell = inner(scaled)
        if ends.any():
            cell[ends] = self.n_states - self.n_terminal + outer(scaled[ends])
        return cell

    def rows(self, laws: LocalLaws, prune: float = 0.0) -> Floats:
        """Return the rows (k, k) of the successor distributions at the centers; terminal cells are absorbing."""
        k, m, d = laws.points.shape
        cell = self._nearest(laws.points.reshape(-1, d), laws.ends.ravel()).reshape(k, m)
        flat = (cell + k * np.arange(k)[:, None]).ravel()
        rows = np.bincount(flat, weights=laws.weights.ravel(), minlength=k * k).astype(np.float64).reshape(k, k)
        rows[k - self.n_terminal :] = np.eye(k)[k - self.n_terminal :]
        return self._pruned(rows, prune) if prune else rows

    def _pruned(self, rows: Floats, share: float) -> Floats:
        """Move the smallest entries, up to a mass of ``share`` per row, to the nearest remaining cell."""
        order = np.argsort(rows, axis=1)
        small = np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1) <= share
        kept = np.ones(rows.shape, dtype=bool)
        np.put_along_axis(kept, order, ~small, axis=1)
        row, cell = np.nonzero(~kept & (rows > 0))
        nearest = np.where(kept[row], self.cost()[cell], np.inf).argmin(axis=1)
        new = np.where(kept, rows, 0.0)
        np.add.at(new, (row, nearest), rows[row, cell])
        return new

    def _check_range(self, points: Floats) -> None:
        low, high = self.box
        slack = MARGIN * (high - low)
        bad = (points < low - slack) | (points > high + slack)
        if bad.any():
            i, j = (int(index) for index in np.argwhere(bad)[0])
            raise InvalidData(
                f"point {i} has coordinate {j} = {points[i, j]:g}, far outside the range of the data, {low[j]:g} to "
                f'{high[j]:g}; quantize with data that cover it, or pass outside="nearest" to encode'
            )


def _finder(centers: Floats) -> Callable[[Floats], Integers]:
    """Return a function from points (m, d) to the nearest centers, (m,)."""
    if centers.shape[1] == 1:
        order = np.argsort(centers[:, 0])
        line = centers[order, 0]
        if len(line) > 1 and np.ptp(np.diff(line)) < 1e-9 * (line[1] - line[0]):  # a regular grid needs no search
            first, width, last = line[0], (line[-1] - line[0]) / (len(line) - 1), len(line) - 1
            return lambda points: order[np.clip(np.rint((points[:, 0] - first) / width), 0, last).astype(np.int64)]
        edges = (line[1:] + line[:-1]) / 2
        return lambda points: order[np.searchsorted(edges, points[:, 0])]
    from scipy.spatial import cKDTree

    tree = cKDTree(centers)
    return lambda points: np.asarray(tree.query(points)[1], dtype=np.int64)


def quantize(
    X: Any,
    Y: Any = None,
    n_states: int | Literal["auto"] = "auto",
    scale: Any = "std",
    rng: int | np.random.Generator = 0,
    *,
    centers: Any = None,
    terminal: Terminal | None = None,
) -> Cells:
    """Partition R^d into cells that one or two sets of trajectories share.

    Parameters
    ----------
    X, Y : lists of arrays of shape (T, d); on the line also (T,)
        Trajectories; both sets have the same total weight. ``Y`` is optional.
    n_states : int or "auto", default="auto"
        Number of cells k. "auto" is 2 n^(1/3) on the line and 0.7 n^(1/2) in higher dimensions, for n steps in the
        smaller set. If there are no more distinct points than that, they are the centers.
    scale : "std", None or array of shape (d,), default="std"
        Divisors of the coordinates: their standard deviations, none, or the given numbers.
    rng : int or Generator, default=0
        Seed of the clustering.
    centers : array of shape (k, d), default=None
        Centers to use instead of clustering.
    terminal : callable, default=None
        Function from points (n, d) to (n,) booleans that says which points end a trajectory.

    Returns
    -------
    cells : Cells

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> quantize(rng.normal(size=(20, 50, 2)), rng.normal(size=(10, 30, 2)))
    Cells(12 in 2 dimensions)
    """
    data = [paths_of(X, "X")]
    if Y is not None:
        data.append(paths_of(Y, "Y", data[0][0].shape[1], "X"))
    data = [cut(paths, terminal) for paths in data]
    sets = [_stacked(paths) for paths in data]
    points = np.concatenate(sets)
    share = np.concatenate([np.full(len(part), 1.0 / (len(sets) * len(part))) for part in sets])
    box = np.stack([points.min(axis=0), points.max(axis=0)])
    scaling = _scaling(scale, points, share)
    ends = np.zeros(len(points), dtype=bool) if terminal is None else _terminal_mask(terminal, points)
    if ends.all():
        raise InvalidData("terminal is true for every point; it must be false for some points")
    if centers is None:
        k = _n_cells(n_states, min(sum(len(path) - 1 for path in paths) for paths in data), points.shape[1])
        last = max(1, k // TERMINAL_SHARE) if ends.any() else 0
        parts = [(~ends, max(1, k - last)), (ends, last)]
        found = [_clusters(points[mask], scaling, share[mask], n, rng) for mask, n in parts if n and mask.any()]
        middle, n_terminal = np.concatenate(found), len(found[1]) if len(found) > 1 else 0
    else:
        middle, n_terminal = points_of(centers, "centers", points.shape[1]), 0
        if ends.any():
            last_ones = _terminal_mask(terminal, middle)
            middle, n_terminal = np.concatenate([middle[~last_ones], middle[last_ones]]), int(last_ones.sum())
    cells = Cells(freeze(middle), freeze(scaling), np.zeros(len(middle)), freeze(box), terminal, n_terminal)
    at = cells._nearest(points, cells._ends(points))
    square = (((points - middle[at]) / scaling) ** 2).sum(axis=1)
    mass = np.bincount(at, weights=share, minlength=len(middle))
    radius = np.sqrt(np.bincount(at, weights=share * square, minlength=len(middle)) / np.maximum(mass, 1e-300))
    return Cells(cells.centers, cells.scale, freeze(radius), cells.box, terminal, n_terminal)


# --- the transition distribution at a point ------------------------------------------------------------------------


def neighbors(n_steps: int, dimension: int) -> int:
    """Return the number of steps used around a center: a quarter of n, growing as n^(4/(4+d)) beyond 2,000 steps."""
    quarter = n_steps / 4 if n_steps <= 2000 else 500 * (n_steps / 2000) ** (4 / (4 + dimension))
    return min(n_steps, max(round(quarter), 10 * (dimension + 1)))


class LocalLaws(NamedTuple):
    """The distributions of the successors of k points, as m weighted points each."""

    points: Floats  # (k, m, d)
    weights: Floats  # (k, m), rows sum to one
    ends: Any  # (k, m) booleans, which successors are terminal


def local_laws(centers: Floats, scale: Floats, steps: TrajectorySteps, ends: Callable[[Floats], Any]) -> LocalLaws:
    """Estimate the transition distribution at each of k points from nearby steps, moved by the local slope.

    z (k, m, d) are the starting points of the nearby steps relative to the center, and w (k, m) Epanechnikov weights.
    """
    d = centers.shape[1]
    m = neighbors(len(steps.now), d)
    now, after = _nearest_steps(steps, scale, centers, m)
    z = (now - centers[:, None]) / scale
    square = (z**2).sum(axis=2)
    w = 1.0 - square / np.maximum(1.002 * square.max(axis=1, keepdims=True), 1e-300)
    w /= w.sum(axis=1, keepdims=True)
    weighted = (w[..., None] * (z - w[:, None] @ z)).transpose(0, 2, 1)  # (k, d, m); its rows sum to zero
    spread = weighted @ z
    ridge = 1e-6 * np.trace(spread, axis1=1, axis2=2) / d + 1e-300
    slope = np.linalg.solve(spread + ridge[:, None, None] * np.eye(d), weighted @ after)
    moved = after - z @ slope
    return LocalLaws(moved, w, ends(after.reshape(-1, d)).reshape(w.shape))


def _nearest_steps(steps: TrajectorySteps, scale: Floats, centers: Floats, m: int) -> tuple[Floats, Floats]:
    """Return the starts and the successors, (k, m, d) each, of the m steps that start nearest to each of k centers."""
    if centers.shape[1] == 1:  # on the line they are consecutive
        order = np.argsort(steps.now[:, 0])
        now, after = steps.now[order, 0], steps.after[order, 0]
        first = np.searchsorted((now[:-m] + now[m:]) / 2, centers[:, 0])
        return sliding_window_view(now, m)[first][..., None], sliding_window_view(after, m)[first][..., None]
    points, index = steps.now / scale, np.empty((len(centers), m), dtype=np.int64)
    for i, center in enumerate(centers / scale):  # for so many neighbors a k-d tree is slower
        index[i] = np.argpartition(((points - center) ** 2).sum(axis=1), m - 1)[:m]
    return steps.now[index], steps.after[index]


# --- validation ----------------------------------------------------------------------------------------------------


def is_paths(data: Any) -> bool:
    """Return whether ``data`` are trajectories in R^d: a list of (T,) or (T, d) arrays, or one (n, T, d) array."""
    parts = data if isinstance(data, (list, tuple)) else data[:1] if getattr(data, "ndim", 0) == 3 else []
    return len(parts) > 0 and all(
        isinstance(part, np.ndarray) and (part.ndim == 2 or (part.ndim == 1 and part.dtype.kind == "f"))
        for part in parts
    )


def paths_of(data: Any, name: str, dimension: int | None = None, other: str = "the cells") -> Any:
    """Return trajectories as finite (T, d) arrays of equal dimension: a list, or one array if they came as such."""
    if isinstance(data, np.ndarray) and data.ndim < 3:
        raise InvalidData(
            f"{name} is an array of shape {data.shape}; give a list of trajectories, [{name}] for a single one"
        )
    if isinstance(data, np.ndarray) and data.ndim == 3 and dimension in (None, data.shape[2]) and data.size:
        return _numbers(data, name)
    try:
        listed = list(data)
    except TypeError:
        raise InvalidData(f"{name} is a {type(data).__name__}; give a list of (T, d) arrays") from None
    if not listed:
        raise InvalidData(f"{name} is empty; give at least one trajectory")
    paths: list[Floats] = []
    for i, path in enumerate(listed):
        array = _numbers(path, f"{name}[{i}]")
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2 or 0 in array.shape:
            raise InvalidData(f"{name}[{i}] has shape {np.shape(path)}; a trajectory is (T, d) with T, d ≥ 1")
        d = dimension if dimension is not None else paths[0].shape[1] if paths else array.shape[1]
        if array.shape[1] != d:
            reference = other if dimension is not None else f"{name}[0]"
            raise InvalidData(
                f"{name}[{i}] has {array.shape[1]} coordinates, but {reference} has {d}; they must be equal"
            )
        paths.append(array)
    return paths


def _stacked(paths: Any) -> Floats:
    """Concatenate the points of all trajectories, (n, d)."""
    return paths.reshape(-1, paths.shape[2]) if isinstance(paths, np.ndarray) else np.concatenate(paths)


def points_of(x: Any, name: str, dimension: int) -> Floats:
    """Return finite points (…, d); on the line numbers are points."""
    array = _numbers(x, name)
    if dimension == 1 and (array.ndim < 2 or array.shape[-1] != 1):
        array = array[..., None]
    if array.ndim == 0 or array.shape[-1] != dimension:
        raise InvalidData(f"{name} has shape {np.shape(x)}; its points have {dimension} coordinates, (…, {dimension})")
    return array


def _numbers(value: Any, name: str) -> Floats:
    refuse_masked(value, name, InvalidData)
    try:
        array = as_floats(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidData(f"{name} is not an array of numbers ({error})") from None
    if not np.isfinite(array).all():
        place = ", ".join(str(int(k)) for k in np.argwhere(~np.isfinite(array))[0])
        raise InvalidData(
            f"{name}[{place}] is {array[~np.isfinite(array)][0]}; leave out such points (split the trajectory there), "
            "or fill them in"
        )
    return array


def _scaling(scale: Any, points: Floats, share: Floats) -> Floats:
    """Return the divisors of the coordinates, (d,)."""
    d = points.shape[1]
    fixed = np.ptp(points, axis=0) == 0.0
    if fixed.any() and len(points) > 1:
        j = int(fixed.argmax())
        raise InvalidData(f"coordinate {j} is {points[0, j]:g} at every point; leave out this constant column")
    if scale is None:
        return np.ones(d)
    if isinstance(scale, str):
        if scale != "std":
            raise InvalidArgument(f'scale is {scale!r}; use "std", None or one number per coordinate')
        mean = share @ points
        return np.asarray(np.sqrt(share @ (points - mean) ** 2))
    given = _numbers(scale, "scale")
    if given.shape != (d,) or not (given > 0).all():
        raise InvalidArgument(f"scale is {scale!r}; give {d} positive numbers, one per coordinate")
    return given


def _n_cells(n_states: Any, n_steps: int, d: int) -> int:
    if isinstance(n_states, str):
        if n_states != "auto":
            raise InvalidArgument(f'n_states is {n_states!r}; give a number of cells or "auto"')
        return int(np.clip(round(2 * n_steps ** (1 / 3) if d == 1 else 0.7 * n_steps ** (1 / 2)), 4, MOST_CELLS))
    if check_count(n_states, "n_states") < 1:
        raise InvalidArgument(f'n_states is {n_states}; give a positive number of cells or "auto"')
    return int(n_states)


def _terminal_mask(terminal: Terminal | None, points: Floats) -> Any:
    if not callable(terminal):
        raise InvalidArgument(f"terminal is {terminal!r}; give a function from points (n, d) to (n,) booleans")
    mask = np.asarray(terminal(points))
    if mask.shape != (len(points),) or mask.dtype != bool:
        raise InvalidArgument(
            f"terminal returned {mask.dtype} of shape {mask.shape} for {len(points)} points; return (n,) booleans"
        )
    return mask


def cut(paths: Any, terminal: Terminal | None) -> Any:
    """Truncate trajectories after their first terminal points."""
    if terminal is None:
        return paths
    masks = (_terminal_mask(terminal, path) for path in paths)
    return [path[: int(ends.argmax()) + 1] if ends.any() else path for path, ends in zip(paths, masks, strict=True)]


def _clusters(points: Floats, scale: Floats, share: Floats, k: int, rng: int | np.random.Generator) -> Floats:
    """Return at most k centers, (≤ k, d), in lexicographic order."""
    distinct = np.unique(points, axis=0)
    if len(distinct) <= k:
        return np.asarray(distinct, dtype=np.float64)
    try:
        from sklearn.cluster import MiniBatchKMeans
    except ImportError as error:
        raise MissingExtra("cells need scikit-learn: pip install 'diffbisim[data]'") from error
    seed = int(as_generator(rng).integers(2**31))
    means = MiniBatchKMeans(k, batch_size=4096, n_init=1, random_state=seed, reassignment_ratio=0.0)
    means.fit(points / scale, sample_weight=share / share.mean())
    return np.asarray(np.unique(means.cluster_centers_ * scale, axis=0), dtype=np.float64)
