"""What the page shows of a result, as JSON.

A screen has room for so many disks and cells (`MOST`). Larger chains are shown by groups of states that behave alike:
those whose distances to the states of the other chain are similar. With w the occupancy within a group

    P(g, h) = Σ_{x∈g} w(x) Σ_{x'∈h} P(x, x')        λ(h|g) = Σ_{x∈g} w(x) Σ_{y∈h} λ(y|x)

are averages, visits and cost are sums, so that the groups still add up to the distance. The pairs that cost most are
listed state by state whatever the size.

A matrix is sent by rows: row k has its entries ``j[p[k]:p[k+1]]`` and ``v[p[k]:p[k+1]]``; what is missing is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats
from diffbisim.contributions import Contributions
from diffbisim.errors import InvalidArgument, MissingExtra
from diffbisim.ordering import Order, by_barycenter, cluster_order

if TYPE_CHECKING:
    from diffbisim.results import DistanceResult

MOST = 160  # disks of a graph, rows of a heat map
PAIRS = 60  # listed one by one
PLANS = 30  # of these, how the next states are coupled
MOVES = 8  # of a plan
MEMBERS = 12  # states of a group that are named
NEIGHBORS = 4  # most probable next states that a layout holds near

Json = dict[str, Any]


class Groups(NamedTuple):
    """States of one chain as the page shows them."""

    of: Order  # (n,) the group of each state; groups are numbered in the order shown
    sums: Any  # (groups, n) ones and zeros
    means: Any  # (groups, n) the same, rows weighted by occupancy and summing to one


def page_data(result: Any, names: tuple[str, str]) -> Json:
    """All that the page knows, of one result or of a sweep."""
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
            f"result is a {type(d).__name__}, which is not about two Markov chains: compare the chains of two "
            "policies (mdp.induced_chain), or of one step"
        )
    if d.problem.criterion == "horizon":
        raise InvalidArgument("the page is about chains that go on; leave horizon and weights out")
    return d  # type: ignore[no-any-return]


def _same_states(d: DistanceResult) -> bool:
    return d.problem.shape[0] == d.problem.shape[1] and d.problem.x.labels == d.problem.y.labels


# --- groups --------------------------------------------------------------------------------------------------------


def _groups_of_x(d: DistanceResult) -> Groups:
    return _groups(cluster_order(_known(d), MOST)[1], d.occupancy.sum(axis=1))


def _groups_of_y(d: DistanceResult, x: Groups) -> Groups:
    """Those of Y in the order of their partners in X."""
    group = cluster_order(_known(d).T, MOST)[1]
    sums = _indicator(group)
    order = by_barycenter(np.asarray((x.sums @ d.decoder.T @ sums.T).T))
    return _groups(order.argsort()[group], d.occupancy.sum(axis=0))


def _known(d: DistanceResult) -> Floats:
    """The metric, or the cost where pairs were left out of it."""
    return d.problem.cost if np.isnan(d.values).any() else d.values


def _indicator(group: Order) -> Any:
    return sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))


def _groups(group: Order, visits: Floats) -> Groups:
    sums = _indicator(group)
    total = sums @ visits
    weight = np.where(total[group] > 0, visits, 1.0)
    return Groups(group, sums, sparse.csr_array(sums.multiply(weight) / (sums @ weight)[:, None]))


# --- what is sent ----------------------------------------------------------------------------------------------------


def _side(chain: MarkovChain, groups: Groups, visits: Floats, paid: Floats) -> Json:
    """One chain, group by group."""
    members: list[list[str]] = [[] for _ in range(groups.sums.shape[0])]
    for k in np.argsort(-visits, kind="stable"):
        members[groups.of[k]].append(str(chain.label(int(k))))
    P = groups.means @ chain.successors.matrix @ groups.sums.T
    return {
        "n": chain.n_states,
        "transitions": chain.n_transitions,
        "members": [names[:MEMBERS] for names in members],
        "sizes": [len(names) for names in members],
        "states": {str(chain.label(k)): int(groups.of[k]) for k in range(chain.n_states)},
        "visits": _round(groups.sums @ visits),
        "paid": _round(groups.sums @ paid),
        "start": _round(groups.sums @ chain.initial),
        "rewards": None if chain.rewards is None or chain.rewards.ndim > 1 else _round(groups.means @ chain.rewards),
        "transition": _packed(P),
    }


def _view(d: DistanceResult, paid: Floats, x: Groups, y: Groups) -> Json:
    """One distance."""
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
    """The pairs of states that cost most, and how the next states of the first of them are coupled."""
    flat = np.argpartition(-paid, min(PAIRS, paid.size - 1), axis=None)[:PAIRS]
    flat = flat[np.argsort(-paid.ravel()[flat], kind="stable")]
    X, Y, found = d.problem.x, d.problem.y, []
    for rank, (i, j) in enumerate(np.column_stack(np.unravel_index(flat, paid.shape)).tolist()):
        if paid[i, j] <= 0:
            break
        row = {
            "x": str(X.label(i)), "y": str(Y.label(j)), "i": int(x.of[i]), "j": int(y.of[j]),
            "paid": paid[i, j], "visits": d.occupancy[i, j], "cost": d.problem.cost[i, j],
        }  # fmt: skip
        if rank < PLANS:
            plan = sparse.coo_array(d.coupling.plan(i, j))
            largest = np.argsort(-plan.data, kind="stable")[:MOVES]
            (to_x, to_y), mass = plan.coords, plan.data
            row["next"] = [[str(X.label(int(to_x[k]))), str(Y.label(int(to_y[k]))), mass[k]] for k in largest]
            row["others"] = max(len(mass) - MOVES, 0)
        found.append(row)
    return found


def _packed(matrix: Any) -> Json:
    rows = sparse.csr_array(matrix)
    rows.eliminate_zeros()
    rows.sort_indices()
    return {"p": rows.indptr.tolist(), "j": rows.indices.tolist(), "v": _round(rows.data)}


def _round(numbers: Any) -> Any:
    """As lists, four digits each."""
    array = np.asarray(numbers, dtype=np.float64)
    short = np.array([float(f"{value:.4g}") for value in array.ravel().tolist()])
    return short.reshape(array.shape).tolist()


# --- the plane -------------------------------------------------------------------------------------------------------


def _places(sides: Sequence[Json]) -> Floats:
    """Positions of the groups, (n, 2): graph distances along the likely transitions, as far as a plane allows."""
    try:
        import networkx as nx
    except ImportError as error:
        raise MissingExtra("the layout of graphs needs networkx: pip install 'diffbisim[explore]'") from error
    graph = nx.Graph()
    graph.add_nodes_from(range(len(sides[0]["sizes"])))
    trees = nx.utils.UnionFind(graph)
    for _, rank, i, j in sorted(_likely(sides)):  # a spanning forest, and what else is likely
        if trees[i] != trees[j] or rank < NEIGHBORS:
            trees.union(i, j)
            graph.add_edge(i, j)
    roots = [min(part) for part in nx.connected_components(graph)]
    graph.add_edges_from(pairwise(roots))  # parts side by side
    place = nx.kamada_kawai_layout(graph)
    return np.array([place[k] for k in graph])


def _likely(sides: Sequence[Json]) -> Iterator[tuple[float, int, int, int]]:
    """(minus the probability, its rank in the row, i, j) of all transitions between groups."""
    for side in sides:
        P = side["transition"]
        for i, (begin, end) in enumerate(pairwise(P["p"])):
            row = sorted((-p, j) for p, j in zip(P["v"][begin:end], P["j"][begin:end], strict=True) if j != i)
            yield from ((p, rank, i, j) for rank, (p, j) in enumerate(row))
