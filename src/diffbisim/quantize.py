"""Cells for continuous states: trajectories in R^d become chains on finitely many states.

Two datasets share their k cells, so that what is equal in both is equal on the cells. Cells are those of k-means on the
points of both, each dataset with half of the weight, however small it is: a narrow tube beside a wide cloud must not
starve. Coordinates are divided by ``scale`` first. A point belongs to the nearest center.

*Which law leaves a cell?* Counting successors of the points in a cell takes the law at a random point of it for that at
its center, and has few points for it. **Local-linear rows** do better: around each center c the nearest quarter of all
steps x → x' is taken (of many steps fewer, see `neighbors`), a line is fitted to them with weights that fall with the
distance, and every successor is moved by its slope,

    x' + B_c (c - x),            B_c the slope of x' over x around c,

to where it would have been from c. The moved successors, with their weights, are the law at c; their cells are the row.
Where mean and slope change little over a neighborhood this has the noise of a quarter of all points, not of one cell.

*Terminal states* (those for which ``terminal`` is true) have cells of their own, which are never left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import Floats, Integers, as_number, check_count, freeze, refuse_masked
from diffbisim.cost import feature_cost
from diffbisim.errors import InvalidArgument, InvalidData, MissingExtra
from diffbisim.stochastic import as_generator

Smoothing = Literal["local-linear"]
Terminal = Callable[[Floats], Any]

#: Points may lie outside the box of the data by this share of its sides; farther out nothing is known.
MARGIN = 0.5

#: One of so many cells is kept for terminal states, if there are any.
TERMINAL_SHARE = 8

#: The auto rule goes no further: tables have k² entries.
MOST_CELLS = 200


class Steps(NamedTuple):
    """The steps of a dataset, one after the other, and where its trajectories begin."""

    now: Floats  # (m, d)
    after: Floats  # (m, d)
    starts: Floats  # (n, d)
    trajectory: Integers  # (m,) of each step, in 0 … n-1

    @classmethod
    def of(cls, paths: Sequence[Floats] | Floats) -> Steps:
        """From a list of (T, d) arrays, or from all in one array."""
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
    """Cells of R^d, by their centers; made by :func:`quantize`."""

    centers: Floats  # (k, d), those of terminal cells last
    scale: Floats  # (d,) what coordinates are divided by before distances are taken
    radius: Floats  # (k,) root mean square of the distances of a cell's points from its center, in scaled coordinates
    box: Floats  # (2, d) least and largest coordinates of the data
    terminal: Terminal | None = None
    n_terminal: int = 0

    @property
    def n_states(self) -> int:
        return len(self.centers)

    @property
    def dimension(self) -> int:
        return int(self.centers.shape[1])

    def __repr__(self) -> str:
        ends = f", {self.n_terminal} of them terminal" if self.n_terminal else ""
        return f"Cells({self.n_states} in {self.dimension} dimension{'s' * (self.dimension != 1)}{ends})"

    # --- where points are ----------------------------------------------------------------------------------

    def encode(self, x: Any, *, outside: Literal["error", "nearest"] = "error") -> Integers:
        """The cell of each point (…, d); on the line also (…,). ``outside="nearest"`` takes points far from the data.

        Examples
        --------
        >>> quantize([[0.0, 1.0, 0.0, 1.0]], n_states=2).encode([0.1, 0.9])
        array([0, 1])
        """
        if outside not in ("error", "nearest"):
            raise InvalidArgument(f'outside is {outside!r}; use "error" or "nearest"')
        points = _points(x, "x", self.dimension)
        flat = points.reshape(-1, self.dimension)
        if outside == "error":
            self._check_range(flat)
        return self._nearest(flat, self._ends(flat)).reshape(points.shape[:-1])

    def cost(self, metric: str = "euclidean") -> Floats:
        """Distances (k, k) of the centers in the coordinates of the data; ``metric`` as in :func:`feature_cost`."""
        return feature_cost(self.centers, self.centers, metric)

    # --- what was seen -------------------------------------------------------------------------------------

    def transitions(self, X: Any) -> Transitions:
        """The trajectories as steps between cells."""
        paths = _cut(paths_of(X, "X", self.dimension), self.terminal)
        ends = np.cumsum([len(path) for path in paths])[:-1]
        codes = np.split(self.encode(_stacked(paths)), ends)
        return Transitions.from_trajectories(codes, states=self.n_states)

    def chain(self, X: Any, smoothing: Smoothing | None = "local-linear", *, prune: float = 0.0) -> MarkovChain:
        """The chain on the cells that trajectories suggest; on the line its rewards are the centers.

        ``smoothing``: "local-linear" rows (see the head of the module), or None, the shares of what was counted, where
        a cell that was never left stays. ``prune``: the smallest probabilities of a row, up to this mass together, go
        to the nearest cell that is kept.
        """
        if smoothing is None:
            return self.transitions(X).chain(rewards=self._rewards, unseen="self-loop")
        if smoothing != "local-linear":
            raise InvalidArgument(f'smoothing is {smoothing!r}; use "local-linear" or None')
        paths = paths_of(X, "X", self.dimension)
        self._check_range(_stacked(paths))
        return self.smoothed(self.steps(paths), prune)

    def steps(self, paths: Any) -> Steps:
        """The steps of trajectories that were checked, up to the first terminal point of each."""
        return Steps.of(_cut(paths, self.terminal))

    def smoothed(self, steps: Steps, prune: float = 0.0) -> MarkovChain:
        """The chain of local-linear rows, from steps that were checked."""
        if not 0.0 <= as_number(prune) < 1.0:
            raise InvalidArgument(f"prune is {prune!r}; give a share such as 0.001")
        if not len(steps.now):
            raise InvalidData("X has no step: every trajectory has one state; give some with two or more")
        rows = self.rows(local_laws(self.centers, self.scale, steps, self._ends), float(prune))
        return MarkovChain(rows, initial=self.law(steps.starts), rewards=self._rewards)

    def law(self, points: Floats) -> Floats:
        """The share of points (n, d) in each cell."""
        cell = self._nearest(points, self._ends(points))
        return np.bincount(cell, minlength=self.n_states) / len(points)

    # --- how it is done ------------------------------------------------------------------------------------

    @property
    def _rewards(self) -> Floats | None:
        return self.centers[:, 0] if self.dimension == 1 else None

    @cached_property
    def _finders(self) -> tuple[Callable[[Floats], Integers], Callable[[Floats], Integers]]:
        """From points to the nearest centers, among the cells that are left and among terminal ones."""
        scaled, n = self.centers / self.scale, self.n_states - self.n_terminal
        return _finder(scaled[:n]), _finder(scaled[n:] if self.n_terminal else scaled)

    def _ends(self, points: Floats) -> Any:
        """Which points (n, d) are terminal, (n,)."""
        return _terminal_mask(self.terminal, points) if self.n_terminal else np.zeros(len(points), dtype=bool)

    def _nearest(self, points: Floats, ends: Any) -> Integers:
        inner, outer = self._finders
        scaled = points / self.scale
        cell = inner(scaled)
        if ends.any():
            cell[ends] = self.n_states - self.n_terminal + outer(scaled[ends])
        return cell

    def rows(self, laws: LocalLaws, prune: float = 0.0) -> Floats:
        """The rows (k, k) of the laws that leave the centers; terminal cells stay."""
        k, m, d = laws.points.shape
        cell = self._nearest(laws.points.reshape(-1, d), laws.ends.ravel()).reshape(k, m)
        flat = (cell + k * np.arange(k)[:, None]).ravel()
        rows = np.bincount(flat, weights=laws.weights.ravel(), minlength=k * k).astype(np.float64).reshape(k, k)
        rows[k - self.n_terminal :] = np.eye(k)[k - self.n_terminal :]
        return self._pruned(rows, prune) if prune else rows

    def _pruned(self, rows: Floats, share: float) -> Floats:
        """Without the smallest entries, up to ``share`` of each row, whose mass goes to the nearest cell that stays."""
        order = np.argsort(rows, axis=1)
        small = np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1) <= share
        kept = np.ones(rows.shape, dtype=bool)
        np.put_along_axis(kept, order, ~small, axis=1)
        row, cell = np.nonzero(~kept & (rows > 0))
        nearest = np.where(kept[row], self.cost()[cell], np.inf).argmin(axis=1)  # to which cell of the row
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
                f"point {i} has coordinate {j} = {points[i, j]:g}, far outside the data of the cells, "
                f'{low[j]:g} to {high[j]:g}; make the cells from data that reach there, or pass outside="nearest" to '
                "encode"
            )


def _finder(centers: Floats) -> Callable[[Floats], Integers]:
    """The function from points (m, d) to the nearest centers, (m,)."""
    if centers.shape[1] == 1:
        order = np.argsort(centers[:, 0])
        line = centers[order, 0]
        if len(line) > 1 and np.ptp(np.diff(line)) < 1e-9 * (line[1] - line[0]):  # a grid: nothing to search
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
    """Cells that two sets of trajectories share, with an equal share of the weight for each.

    Parameters
    ----------
    X, Y : lists of trajectories, each (T, d), on the line also (T,); Y may be left out
    n_states : number of cells k, or "auto": 2 n^(1/3) on the line and 0.7 n^(1/2) above, for n steps of the smaller
        set.
        Where there are no more distinct points than that, these are the centers
    scale : what coordinates are divided by: "std", their standard deviations; None, nothing; or (d,) numbers
    rng : seed of the clustering
    centers : (k, d) points, in place of clustering
    terminal : a function of points (n, d) that says which of them end a trajectory, (n,) booleans

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> quantize(rng.normal(size=(20, 50, 2)), rng.normal(size=(10, 30, 2)))
    Cells(12 in 2 dimensions)
    """
    data = [paths_of(X, "X")]
    if Y is not None:
        data.append(paths_of(Y, "Y", data[0][0].shape[1], "X"))
    data = [_cut(paths, terminal) for paths in data]
    sets = [_stacked(paths) for paths in data]
    points = np.concatenate(sets)
    share = np.concatenate([np.full(len(part), 1.0 / (len(sets) * len(part))) for part in sets])
    box = np.stack([points.min(axis=0), points.max(axis=0)])
    scaling = _scaling(scale, points, share)
    ends = np.zeros(len(points), dtype=bool) if terminal is None else _terminal_mask(terminal, points)
    if ends.all():
        raise InvalidData("terminal is true of every point; it must leave some that trajectories go on from")
    if centers is None:
        k = _auto(n_states, min(sum(len(path) - 1 for path in paths) for paths in data), points.shape[1])
        last = max(1, k // TERMINAL_SHARE) if ends.any() else 0
        parts = [(~ends, max(1, k - last)), (ends, last)]
        found = [_clusters(points[mask], scaling, share[mask], n, rng) for mask, n in parts if n and mask.any()]
        middle, n_terminal = np.concatenate(found), len(found[1]) if len(found) > 1 else 0
    else:
        middle, n_terminal = _points(centers, "centers", points.shape[1]), 0
        if ends.any():
            last_ones = _terminal_mask(terminal, middle)
            middle, n_terminal = np.concatenate([middle[~last_ones], middle[last_ones]]), int(last_ones.sum())
    cells = Cells(freeze(middle), freeze(scaling), np.zeros(len(middle)), freeze(box), terminal, n_terminal)
    at = cells._nearest(points, cells._ends(points))
    square = (((points - middle[at]) / scaling) ** 2).sum(axis=1)
    mass = np.bincount(at, weights=share, minlength=len(middle))
    radius = np.sqrt(np.bincount(at, weights=share * square, minlength=len(middle)) / np.maximum(mass, 1e-300))
    return Cells(cells.centers, cells.scale, freeze(radius), cells.box, terminal, n_terminal)


# --- the law at a point --------------------------------------------------------------------------------------------


def neighbors(n_steps: int, dimension: int) -> int:
    """How many steps are taken around a center: a quarter, of more than 2,000 in proportion to their power 4/(4+d)."""
    quarter = n_steps / 4 if n_steps <= 2000 else 500 * (n_steps / 2000) ** (4 / (4 + dimension))
    return min(n_steps, max(round(quarter), 10 * (dimension + 1)))


class LocalLaws(NamedTuple):
    """The laws of the successors of k points."""

    points: Floats  # (k, m, d)
    weights: Floats  # (k, m), rows sum to one
    ends: Any  # (k, m) which of them are terminal


def local_laws(centers: Floats, scale: Floats, steps: Steps, ends: Callable[[Floats], Any]) -> LocalLaws:
    """The law that leaves each of k points, from the steps around it, moved by their local slope.

    z (k, m, d): where the steps around a center begin, relative to it; w (k, m): Epanechnikov weights
    """
    d = centers.shape[1]
    m = neighbors(len(steps.now), d)
    index, square = _nearest_steps(steps.now / scale, centers / scale, m)
    w = 1.0 - square / np.maximum(1.002 * square.max(axis=1, keepdims=True), 1e-300)
    w /= w.sum(axis=1, keepdims=True)
    z = (steps.now[index] - centers[:, None]) / scale
    after = steps.after[index]
    weighted = (w[..., None] * (z - w[:, None] @ z)).transpose(0, 2, 1)  # (k, d, m); its rows sum to zero
    spread = weighted @ z
    ridge = 1e-6 * np.trace(spread, axis1=1, axis2=2) / d + 1e-300
    slope = np.linalg.solve(spread + ridge[:, None, None] * np.eye(d), weighted @ after)
    moved = after - z @ slope
    return LocalLaws(moved, w, ends(after.reshape(-1, d)).reshape(w.shape))


def _nearest_steps(points: Floats, centers: Floats, m: int) -> tuple[Integers, Floats]:
    """The m points nearest to each of k centers, (k, m), and the squares of their distances."""
    if points.shape[1] == 1:  # they lie side by side
        order = np.argsort(points[:, 0])
        line = points[order, 0]
        first = np.searchsorted((line[:-m] + line[m:]) / 2, centers[:, 0])
        at = first[:, None] + np.arange(m)
        return order[at], (line[at] - centers) ** 2
    index, square = np.empty((len(centers), m), dtype=np.int64), np.empty((len(centers), m))
    for i, center in enumerate(centers):  # a tree is slower for so large a share of the points
        gaps = ((points - center) ** 2).sum(axis=1)
        index[i] = np.argpartition(gaps, m - 1)[:m]
        square[i] = gaps[index[i]]
    return index, square


# --- the door ------------------------------------------------------------------------------------------------------


def is_paths(data: Any) -> bool:
    """Whether these are trajectories in R^d: a list of arrays of reals, or of points, or all of them in one array."""
    parts = data if isinstance(data, (list, tuple)) else data[:1] if getattr(data, "ndim", 0) == 3 else []
    return len(parts) > 0 and all(
        isinstance(part, np.ndarray) and (part.ndim == 2 or (part.ndim == 1 and part.dtype.kind == "f"))
        for part in parts
    )


def paths_of(data: Any, name: str, dimension: int | None = None, other: str = "the cells") -> Any:
    """Trajectories as finite (T, d) arrays of one dimension: a list of them, or one array if they came as such."""
    if isinstance(data, np.ndarray) and data.ndim < 3:
        raise InvalidData(
            f"{name} is one array of shape {data.shape}; give a list of trajectories, [{name}] for a single one"
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
            raise InvalidData(f"{name}[{i}] has {array.shape[1]} coordinates and {reference} {d}; all need the same")
        paths.append(array)
    return paths


def _stacked(paths: Any) -> Floats:
    """The points of all trajectories, (n, d)."""
    return paths.reshape(-1, paths.shape[2]) if isinstance(paths, np.ndarray) else np.concatenate(paths)


def _points(x: Any, name: str, dimension: int) -> Floats:
    """Points (…, d), finite; on the line numbers are points."""
    array = _numbers(x, name)
    if dimension == 1 and (array.ndim < 2 or array.shape[-1] != 1):
        array = array[..., None]
    if array.ndim == 0 or array.shape[-1] != dimension:
        raise InvalidData(f"{name} has shape {np.shape(x)}; its points have {dimension} coordinates, (…, {dimension})")
    return array


def _numbers(value: Any, name: str) -> Floats:
    refuse_masked(value, name, InvalidData)
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidData(f"{name} is no array of numbers ({error})") from None
    if not np.isfinite(array).all():
        place = ", ".join(str(int(k)) for k in np.argwhere(~np.isfinite(array))[0])
        raise InvalidData(
            f"{name}[{place}] is {array[~np.isfinite(array)][0]}; leave such steps out (cut the trajectory in two "
            "there), or fill them in"
        )
    return array


def _scaling(scale: Any, points: Floats, share: Floats) -> Floats:
    """What coordinates are divided by, (d,)."""
    d = points.shape[1]
    fixed = np.ptp(points, axis=0) == 0.0
    if fixed.any() and len(points) > 1:
        j = int(fixed.argmax())
        raise InvalidData(f"coordinate {j} is {points[0, j]:g} at every point; leave this column out, it tells nothing")
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


def _auto(n_states: Any, n_steps: int, d: int) -> int:
    if isinstance(n_states, str):
        if n_states != "auto":
            raise InvalidArgument(f'n_states is {n_states!r}; give a number of cells or "auto"')
        return int(np.clip(round(2 * n_steps ** (1 / 3) if d == 1 else 0.7 * n_steps ** (1 / 2)), 4, MOST_CELLS))
    if check_count(n_states, "n_states") < 1:
        raise InvalidArgument(f'n_states is {n_states}; give a positive number of cells or "auto"')
    return int(n_states)


def _terminal_mask(terminal: Terminal | None, points: Floats) -> Any:
    if not callable(terminal):
        raise InvalidArgument(f"terminal is {terminal!r}; give a function of points (n, d) that returns (n,) booleans")
    mask = np.asarray(terminal(points))
    if mask.shape != (len(points),) or mask.dtype != bool:
        raise InvalidArgument(
            f"terminal returned {mask.dtype} of shape {mask.shape} for {len(points)} points; give (n,) booleans"
        )
    return mask


def _cut(paths: Any, terminal: Terminal | None) -> Any:
    """Trajectories up to their first terminal points."""
    if terminal is None:
        return paths
    masks = (_terminal_mask(terminal, path) for path in paths)
    return [path[: int(ends.argmax()) + 1] if ends.any() else path for path, ends in zip(paths, masks, strict=True)]


def _clusters(points: Floats, scale: Floats, share: Floats, k: int, rng: int | np.random.Generator) -> Floats:
    """Centers (≤ k, d), in lexical order."""
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
