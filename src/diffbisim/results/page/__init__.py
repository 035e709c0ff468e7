"""An interactive HTML page about two chains, their coupling, and where their distance arises.

A single HTML file contains the data, the script and the plotting library (plotly.js), so that it needs no server and no
network. ``page.js`` draws the data, which are prepared here as JSON, and ``page.css`` styles the page.

The number of disks and cells on a screen is limited (`MAX_GROUPS`). The states of larger chains are grouped by similar
distances to the states of the other chain. With w the normalized occupancy within a group,

    P(g, h) = Σ_{x∈g} w(x) Σ_{x'∈h} P(x, x')        λ(h|g) = Σ_{x∈g} w(x) Σ_{y∈h} λ(y|x)

are averages, while visits and costs are sums, so that those of the groups still sum to the distance. The pairs with the
highest cost are listed by state for chains of any size.

A matrix is stored by rows: row k has the entries ``v[p[k]:p[k+1]]`` in the columns ``j[p[k]:p[k+1]]``.

*Orders of states.* The leaves of the average-linkage tree of the rows of a table, read from left to right, are an order
in which neighbors are similar; cutting the tree partitions the rows into groups. Given an order of the columns of a
non-negative table, sorting the rows by the mean position of their mass moves the mass toward the diagonal; this is the
usual heuristic for reducing edge crossings in bipartite drawings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import __version__
from diffbisim.common.checks import Floats
from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.io.files import replacing
from diffbisim.problems.horizon import FiniteHorizon
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.contributions import Contributions

if TYPE_CHECKING:
    from diffbisim.results.base import DistanceResult

__all__ = ["explore"]

MAX_GROUPS = 160  # maximum number of disks of a graph and of rows of a heat map
PAIRS = 60  # number of pairs that are listed
PLANS = 30  # number of listed pairs whose plans are shown
MOVES = 8  # number of entries of a plan that are shown
MEMBERS = 12  # number of states of a group that are named
NEIGHBORS = 4  # number of most probable successors that a layout places nearby
OPTIMAL = 250  # up to this many leaves, the order of a clustering tree is optimized

Order = NDArray[np.intp]
Json = dict[str, Any]


def explore(result: Any, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
    """Write an interactive page about a distance, a compression, or a sweep over sizes (with a slider).

    Parameters
    ----------
    result : object
        The result of distance, compress, fit, imitate or compress_sweep.
    path : str or Path
        Output file, such as ``"page.html"``.
    names : pair of str, default=("X", "Y")
        Names of the two chains on the page.

    Returns
    -------
    path : Path
    """
    page = Path(path)
    if page.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgument(f"path is {str(path)!r}; it must end in .html")
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("the page needs plotly and networkx: pip install 'diffbisim[explore]'") from error
    parts = {
        name: (files("diffbisim.results.page") / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")
    }
    data = json.dumps(page_data(result, names), allow_nan=False, separators=(",", ":"))
    parts |= {"data": data.replace("<", "\\u003c"), "plotly": get_plotlyjs(), "version": __version__}
    text = (files("diffbisim.results.page") / "page.html").read_text(encoding="utf-8")
    with replacing(page) as file:
        for k, piece in enumerate(text.split("%%")):  # alternately text and names of parts
            file.write(parts[piece] if k % 2 else piece)
    return page


# --- the data --------------------------------------------------------------------------------------------------------


class Groups(NamedTuple):
    """The groups of states of one chain."""

    of: Order  # (n,) group of each state; groups are numbered in the order shown
    sums: Any  # (groups, n) indicator matrix
    means: Any  # (groups, n) indicator matrix weighted by occupancy, with rows that sum to one


def page_data(result: Any, names: tuple[str, str]) -> Json:
    """Return the data of the page for one result or a sweep."""
    found = list(getattr(result, "results", [result]))
    distances = [_of_chains(getattr(one, "distance", one)) for one in found]
    finest = max(distances, key=lambda d: d.problem.y.n_states)
    paid = [Contributions(d).paid for d in distances]
    x = _groups_of_x(finest)
    sides = [_side(finest.problem.x, x, finest.occupancy.sum(axis=1), paid[distances.index(finest)].sum(axis=1))]
    views = []
    for d, costs in zip(distances, paid, strict=True):
        y = x if _same_states(d) else _groups_of_y(d, x)
        sides.append(_side(d.problem.y, y, d.occupancy.sum(axis=0), costs.sum(axis=0)))
        views.append({"y": len(sides) - 1, **_view(d, costs, x, y)})
    together = [sides[0], sides[1]] if len(views) == 1 and _same_states(finest) else None
    for side in sides:
        side["place"] = _round(_places(together or [side]))
    recommended = getattr(result, "recommended", None)
    sizes = [d.problem.y.n_states for d in distances]
    return {
        "names": list(names), "sides": sides, "views": views, "sweep": len(views) > 1,
        "chosen": sizes.index(recommended) if recommended in sizes else 0,
        "discount": finest.discount, "criterion": finest.problem.criterion, "scale": float(finest.problem.scale),
    }  # fmt: skip


def _of_chains(d: Any) -> DistanceResult:
    problem = getattr(d, "problem", None)
    if not all(isinstance(getattr(problem, side, None), MarkovChain) for side in "xy") or not hasattr(d, "encoder"):
        raise InvalidArgument(
            f"result is a {type(d).__name__}, which does not compare two Markov chains; compare the chains of two "
            "policies (mdp.induced_chain), or of one step"
        )
    if isinstance(d.problem, FiniteHorizon):
        raise InvalidArgument("the page does not support finite horizons; omit horizon and weights")
    return d  # type: ignore[no-any-return]


def _same_states(d: DistanceResult) -> bool:
    return d.problem.shape[0] == d.problem.shape[1] and d.problem.x.names == d.problem.y.names


# --- groups --------------------------------------------------------------------------------------------------------


def _groups_of_x(d: DistanceResult) -> Groups:
    return _groups(cluster_order(_known(d), MAX_GROUPS)[1], d.occupancy.sum(axis=1))


def _groups_of_y(d: DistanceResult, x: Groups) -> Groups:
    """Return the groups of Y, ordered like their partners in X."""
    group = cluster_order(_known(d).T, MAX_GROUPS)[1]
    sums = _indicator(group)
    order = by_barycenter(np.asarray((x.sums @ d.decoder.T @ sums.T).T))
    return _groups(order.argsort()[group], d.occupancy.sum(axis=0))


def _known(d: DistanceResult) -> Floats:
    """Return the metric, or the cost if some pairs were not solved."""
    return d.problem.cost if np.isnan(d.values).any() else d.values


def _indicator(group: Order) -> Any:
    return sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))


def _groups(group: Order, visits: Floats) -> Groups:
    sums = _indicator(group)
    total = sums @ visits
    weight = np.where(total[group] > 0, visits, 1.0)
    return Groups(group, sums, sparse.csr_array(sums.multiply(weight) / (sums @ weight)[:, None]))


# --- JSON ------------------------------------------------------------------------------------------------------------


def _side(chain: MarkovChain, groups: Groups, visits: Floats, paid: Floats) -> Json:
    """Return the data of one chain by group."""
    members: list[list[str]] = [[] for _ in range(groups.sums.shape[0])]
    for k in np.argsort(-visits, kind="stable"):
        members[groups.of[k]].append(str(chain.name_of(int(k))))
    P = groups.means @ chain.successors.matrix @ groups.sums.T
    return {
        "n": chain.n_states,
        "transitions": chain.n_transitions,
        "members": [names[:MEMBERS] for names in members],
        "sizes": [len(names) for names in members],
        "states": {str(chain.name_of(k)): int(groups.of[k]) for k in range(chain.n_states)},
        "visits": _round(groups.sums @ visits),
        "paid": _round(groups.sums @ paid),
        "start": _round(groups.sums @ chain.initial),
        "rewards": None if chain.rewards is None or chain.rewards.ndim > 1 else _round(groups.means @ chain.rewards),
        "transition": _packed(P),
    }


def _view(d: DistanceResult, paid: Floats, x: Groups, y: Groups) -> Json:
    """Return the data of one distance."""
    known = np.where(np.isnan(d.values), 0.0, d.values)
    counts = x.sums @ (~np.isnan(d.values)).astype(float) @ y.sums.T
    return {
        "value": d.value, "lower": d.lower, "upper": d.upper, "status": d.status, "converged": d.converged,
        "solver": d.solver, "iterations": d.iterations,
        "visits": _packed(x.sums @ d.occupancy @ y.sums.T),
        "paid": _packed(x.sums @ paid @ y.sums.T),
        "encoder": _packed(x.means @ d.encoder @ y.sums.T),
        "metric": _packed(x.sums @ known @ y.sums.T / np.maximum(counts, 1.0)),
        "pairs": _pairs(d, paid, x, y),
    }  # fmt: skip


def _pairs(d: DistanceResult, paid: Floats, x: Groups, y: Groups) -> list[Json]:
    """Return the pairs of states with the highest cost, and the plans of the first of them."""
    flat = np.argpartition(-paid, min(PAIRS, paid.size - 1), axis=None)[:PAIRS]
    flat = flat[np.argsort(-paid.ravel()[flat], kind="stable")]
    X, Y, found = d.problem.x, d.problem.y, []
    for rank, (i, j) in enumerate(np.column_stack(np.unravel_index(flat, paid.shape)).tolist()):
        if paid[i, j] <= 0:
            break
        row = {
            "x": str(X.name_of(i)), "y": str(Y.name_of(j)), "i": int(x.of[i]), "j": int(y.of[j]),
            "paid": paid[i, j], "visits": d.occupancy[i, j], "cost": d.problem.cost[i, j],
        }  # fmt: skip
        if rank < PLANS:
            plan = sparse.coo_array(d.coupling.plan(i, j))
            largest = np.argsort(-plan.data, kind="stable")[:MOVES]
            (to_x, to_y), mass = plan.coords, plan.data
            row["next"] = [[str(X.name_of(int(to_x[k]))), str(Y.name_of(int(to_y[k]))), mass[k]] for k in largest]
            row["others"] = max(len(mass) - MOVES, 0)
        found.append(row)
    return found


def _packed(matrix: Any) -> Json:
    rows = sparse.csr_array(matrix)
    rows.eliminate_zeros()
    rows.sort_indices()
    return {"p": rows.indptr.tolist(), "j": rows.indices.tolist(), "v": _round(rows.data)}


def _round(numbers: Any) -> Any:
    """Convert numbers to lists, rounded to four significant digits."""
    array = np.asarray(numbers, dtype=np.float64)
    short = np.array([float(f"{value:.4g}") for value in array.ravel().tolist()])
    return short.reshape(array.shape).tolist()


# --- layout ----------------------------------------------------------------------------------------------------------


def _places(sides: Sequence[Json]) -> Floats:
    """Return positions of the groups, (n, 2), that approximate graph distances along likely transitions."""
    try:
        import networkx as nx
    except ImportError as error:
        raise MissingExtra("the layout of graphs needs networkx: pip install 'diffbisim[explore]'") from error
    graph = nx.Graph()
    graph.add_nodes_from(range(len(sides[0]["sizes"])))
    trees = nx.utils.UnionFind(graph)
    for _, rank, i, j in sorted(_likely(sides)):  # a spanning forest, and further likely transitions
        if trees[i] != trees[j] or rank < NEIGHBORS:
            trees.union(i, j)
            graph.add_edge(i, j)
    roots = [min(part) for part in nx.connected_components(graph)]
    graph.add_edges_from(pairwise(roots))  # connect the components so that they are placed side by side
    place = nx.kamada_kawai_layout(graph)
    return np.array([place[k] for k in graph])


def _likely(sides: Sequence[Json]) -> Iterator[tuple[float, int, int, int]]:
    """Yield (minus the probability, its rank in the row, i, j) for all transitions between groups."""
    for side in sides:
        P = side["transition"]
        for i, (begin, end) in enumerate(pairwise(P["p"])):
            row = sorted((-p, j) for p, j in zip(P["v"][begin:end], P["j"][begin:end], strict=True) if j != i)
            yield from ((p, rank, i, j) for rank, (p, j) in enumerate(row))


# --- orders ----------------------------------------------------------------------------------------------------------


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
