"""Pictures of results: how a run went, and what its coupling says."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.errors import InvalidArgument
from diffbisim.ordering import by_barycenter
from diffbisim.plot.style import BLUE, GRAY, VERMILION, heat_map, own, plain, shades, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from diffbisim.chain import MarkovChain
    from diffbisim.results import DistanceResult

RANGE = 100.0  # a history that spans more than this is drawn on a logarithmic scale


def history(run: Any, ax: Axes | None = None, *, log: bool | None = None, label: str = "distance $d$") -> Axes:
    """Value and certified bounds, iteration by iteration.

    Parameters
    ----------
    run : any result with a ``history`` (distance, fit, imitation), or the rows themselves
    log : logarithmic scale (default: where the values span more than two orders of magnitude)
    label : of the line; several runs can share one ``ax``
    """
    rows: Sequence[Mapping[str, float]] = getattr(run, "history", run)
    if not rows:
        raise InvalidArgument("run has an empty history; solve with at least one iteration")
    ax = plain(own(ax))
    t = np.array([row.get("iteration", k) for k, row in enumerate(rows, start=1)])
    color = (BLUE, VERMILION, GRAY)[len(ax.lines) % 3]
    bounded = all("lower" in row and "upper" in row for row in rows)
    lower, upper = (np.array([row.get(name, np.nan) for row in rows]) for name in ("lower", "upper"))
    value = np.array([row.get("value", (low + high) / 2) for row, low, high in zip(rows, lower, upper, strict=True)])
    seen = np.concatenate([value, upper[np.isfinite(upper)]])
    positive = seen[seen > 0]
    if log is None:
        log = bool(positive.size and positive.max() > RANGE * positive.min())
    if log:
        floor = 0.1 * float(positive.min()) if positive.size else 1e-16
        ax.set_yscale("log")
        lower, upper, value = (np.maximum(values, floor) for values in (lower, upper, value))
    if bounded:
        band: dict[str, Any] = {"color": color, "alpha": 0.25, "linewidth": 0, "label": "certified bounds"}
        ax.fill_between(t, lower, upper, **band)
        ax.plot(t, lower, color=color, linewidth=0.7, linestyle=":")
        ax.plot(t, upper, color=color, linewidth=0.7, linestyle=":")
    marker = "o" if len(t) <= 30 else ""
    ax.plot(t, value, color=color, marker=marker, markersize=3.5, label=label)
    ax.set(xlabel="iteration", ylabel="distance")
    whole_numbers(ax.xaxis)
    ax.legend(framealpha=1, edgecolor="none", fontsize=9)
    return ax


def encoder(result: Any, ax: Axes | None = None, *, sort: bool = True) -> Axes:
    """``λ_X(y|x)``: with which probability a state y of Y (column) stands for a state x of X (row).

    Rows are sorted so that the mass runs along the diagonal; ``sort=False`` keeps their order. White is zero, and
    nothing else is: the smallest probability has a shade.
    """
    found = _distance(result)
    ax = _shares(ax, found.encoder, r"encoder $\lambda_X(y|x)$", found.problem.x, found.problem.y, sort)
    ax.set(xlabel="state $y$ of Y", ylabel="state $x$ of X")
    return ax


def decoder(result: Any, ax: Axes | None = None, *, sort: bool = True) -> Axes:
    """``λ_Y(x|y)``: which state x of X (column) a state y of Y (row) stands for; sorted as :func:`encoder`."""
    found = _distance(result)
    ax = _shares(ax, found.decoder, r"decoder $\lambda_Y(x|y)$", found.problem.y, found.problem.x, sort)
    ax.set(xlabel="state $x$ of X", ylabel="state $y$ of Y")
    return ax


def _shares(
    ax: Axes | None, table: Any, title: str, rows: MarkovChain, columns: MarkovChain, sort: bool = False
) -> Axes:
    """Parts of one, from a light gray to black; zeros are white."""
    order = by_barycenter(np.asarray(table)) if sort else np.arange(len(table))
    names = [rows.label(int(k)) for k in order]
    shown = np.ma.masked_equal(np.asarray(table)[order], 0.0)
    look: dict[str, Any] = {"cmap": shades(), "vmin": 0.0, "vmax": 1.0, "aspect": "auto"}
    return heat_map(own(ax, 4.8, 4.2), shown, f"{title} (white: 0)", names, _names(columns), **look)


def timescales(result: Any, ax: Axes | None = None) -> Axes:
    """Implied timescales of a compression: of the target (circles) and of the small chain (crosses), in steps.

    Infinite ones, of chains that fall into parts, are left out.
    """
    if not hasattr(result, "implied_timescales"):
        raise InvalidArgument(f"result is a {type(result).__name__}; give what compress or aggregate return")
    large, small = np.where(np.isfinite(result.implied_timescales), result.implied_timescales, np.nan)
    ax, number = plain(own(ax)), np.arange(2, large.size + 2)
    ax.plot(number, large, color=BLUE, marker="o", markersize=7, fillstyle="none", linestyle="", label="target")
    ax.plot(number, small, color=VERMILION, marker="x", markersize=7, linestyle="", label="small chain")
    if np.nanmax([large, small], initial=0.0) > 0:
        ax.set_yscale("log")
    ax.set(xlabel="eigenvalue, by its distance from 1", ylabel="timescale (steps)")
    whole_numbers(ax.xaxis)
    ax.legend(framealpha=1, edgecolor="none", fontsize=9)
    return ax


def coupling(result: Any, pair: tuple[Hashable, Hashable] | None = None, ax: Axes | None = None) -> Axes:
    """How often the optimal coupling visits each pair of states; with ``pair=(x, y)`` how their successors are paired.

    States are given by label or index. A plan is drawn on a linear scale, the occupancy in decades below its largest
    entry: rare pairs matter too.
    """
    found = _distance(result)
    names = _names(found.problem.x), _names(found.problem.y)
    ax = own(ax, 4.8, 4.2)
    if pair is None:
        from matplotlib.colors import LogNorm

        m = np.array(found.occupancy)
        most = float(m.max())
        look: dict[str, Any] = {"cmap": "cividis", "norm": LogNorm(1e-6 * most, most), "aspect": "auto"}
        heat_map(ax, np.where(m > 0, np.maximum(m, 1e-6 * most), np.nan), "occupancy $m(x, y)$", *names, **look)
        ax.set(xlabel="state $y$ of Y", ylabel="state $x$ of X")
        return ax
    x, y = pair
    plan = found.plan(x, y)
    dense = plan if isinstance(plan, np.ndarray) else plan.toarray()
    _shares(ax, dense, r"plan $\Pi_{xy}(x', y')$", found.problem.x, found.problem.y)
    ax.images[-1].set_clim(0.0, float(dense.max()))
    ax.set(xlabel="next state $y'$ of Y", ylabel="next state $x'$ of X")
    here, there = (chain.label(chain.index(k)) for chain, k in ((found.problem.x, x), (found.problem.y, y)))
    ax.set_title(f"from $x$ = {here}, $y$ = {there}", fontsize=10)
    return ax


def implicit_reward(reward: Any, labels: Sequence[Any] | None = None, ax: Axes | None = None) -> Axes:
    """``r(s, s')`` of every transition: blue brings the learner closer to the expert, red away.

    ``reward`` is a table, an :class:`~diffbisim.imitate.ImplicitReward`, or a result that has one.
    """
    if hasattr(reward, "implicit_reward"):
        labels = reward.problem.y.labels if labels is None else labels
        reward = reward.implicit_reward()
    elif hasattr(reward, "reward"):
        reward = reward.reward
    if labels is None:
        labels = getattr(reward, "labels", None)
    table = np.asarray(reward)
    most = float(np.abs(table).max()) or 1.0
    names = range(len(table)) if labels is None else labels
    unit = "implicit reward $r(s, s')$"
    ax = heat_map(own(ax, 4.8, 4.0), table, unit, names, names, cmap="RdBu", vmin=-most, vmax=most)
    ax.set(xlabel="next state $s'$", ylabel="state $s$")
    return ax


def contributions(result: Any, ax: Axes | None = None, *, most: int = 12) -> Axes:
    """Which rows and starts cause a distance: bars for their size; between data, names say which are more than chance.

    ``result`` is a distance, an estimate, or what their ``contributions()`` return. Where rows cannot be compared, the
    bars say in which states of X the cost is paid.
    """
    found = result if hasattr(result, "by_x") else result.contributions()
    causes = found.given is not None or found.reason is None
    records = found.records("rows" if causes else "x", most)[::-1]
    key = "size" if causes else "paid"
    ax = plain(own(ax, 5.4, 0.6 + 0.3 * max(len(records), 3)))
    certain = [record.get("p_value", 1.0) <= 0.05 for record in records]
    ax.barh(
        range(len(records)), [r[key] for r in records], color=[VERMILION if c else BLUE for c in certain], height=0.7
    )
    names = [f"{r['state']}  z = {r['z']:.1f}{' *' if c else ''}" if "z" in r else str(r["state"])
             for r, c in zip(records, certain, strict=True)]  # fmt: skip
    ax.set_yticks(range(len(records)), names)
    ax.set(xlabel="what the row adds to the distance" if causes else "cost paid in the state of X")
    if any(certain):
        ax.set_title("* more than chance (p ≤ 0.05, all rows considered)", fontsize=9)
    return ax


def _distance(result: Any) -> DistanceResult:
    """The distance in a result: its own, or the one that a fit, a compression or an imitation carries."""
    found = getattr(result, "distance", result)
    if not hasattr(found, "encoder"):
        raise InvalidArgument(
            f"result is a {type(result).__name__}; give what distance, fit, compress or imitate return"
        )
    return found  # type: ignore[no-any-return]


def _names(chain: MarkovChain) -> Sequence[Any]:
    return range(chain.n_states) if chain.labels is None else chain.labels
