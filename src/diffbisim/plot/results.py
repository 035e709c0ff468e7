"""Plots of results: the history of a run, and its coupling."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import dense
from diffbisim.common.errors import InvalidArgument
from diffbisim.plot.style import BLUE, GRAY, VERMILION, heat_map, own, plain, shades, whole_numbers
from diffbisim.results.page import by_barycenter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from diffbisim.processes.chain import MarkovChain
    from diffbisim.results.base import DistanceResult

RANGE = 100.0  # a history whose values span more than this factor uses a logarithmic scale


def history(run: Any, ax: Axes | None = None, *, log: bool | None = None, label: str = "distance $d$") -> Axes:
    """Plot value and certified bounds over the iterations.

    Parameters
    ----------
    run : result or sequence of mappings
        A result with a ``history`` (distance, fit, imitation), or the rows themselves.
    ax : Axes, default=None
        Several runs can share one ``ax``.
    log : bool, default=None
        Whether to use a logarithmic scale; by default if values span more than two orders of magnitude.
    label : str, default="distance $d$"

    Returns
    -------
    ax : Axes
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
    """Draw ``λ_X(y|x)``, the probability that state y of Y (column) stands for state x of X (row).

    Rows are sorted so that the mass is near the diagonal; ``sort=False`` keeps their order. Only zeros are white.
    """
    found = _distance(result)
    ax = _shares(ax, found.encoder, r"encoder $\lambda_X(y|x)$", found.problem.x, found.problem.y, sort)
    ax.set(xlabel="state $y$ of Y", ylabel="state $x$ of X")
    return ax


def decoder(result: Any, ax: Axes | None = None, *, sort: bool = True) -> Axes:
    """Draw ``λ_Y(x|y)``, the probability of state x of X (column) given state y of Y (row); see :func:`encoder`."""
    found = _distance(result)
    ax = _shares(ax, found.decoder, r"decoder $\lambda_Y(x|y)$", found.problem.y, found.problem.x, sort)
    ax.set(xlabel="state $x$ of X", ylabel="state $y$ of Y")
    return ax


def _shares(
    ax: Axes | None, table: Any, title: str, rows: MarkovChain, columns: MarkovChain, sort: bool = False
) -> Axes:
    """Draw probabilities from light gray to black; zeros are white."""
    order = by_barycenter(np.asarray(table)) if sort else np.arange(len(table))
    names = [rows.name_of(int(k)) for k in order]
    shown = np.ma.masked_equal(np.asarray(table)[order], 0.0)
    look: dict[str, Any] = {"cmap": shades(), "vmin": 0.0, "vmax": 1.0, "aspect": "auto"}
    return heat_map(own(ax, 4.8, 4.2), shown, f"{title} (white: 0)", names, _names(columns), **look)


def timescales(result: Any, ax: Axes | None = None) -> Axes:
    """Plot the implied timescales of a compression, in steps: target (circles) and small chain (crosses).

    Infinite timescales, of reducible chains, are omitted.
    """
    if not hasattr(result, "implied_timescales"):
        raise InvalidArgument(f"result is a {type(result).__name__}; give a result of compress or aggregate")
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
    """Draw the occupancy of the optimal coupling or, with ``pair=(x, y)``, the plan of a pair of states.

    States are given by name or index. The occupancy has a logarithmic scale, so that rare pairs are visible; a plan
    has a linear scale.
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
    table = dense(plan)
    _shares(ax, table, r"plan $\Pi_{xy}(x', y')$", found.problem.x, found.problem.y)
    ax.images[-1].set_clim(0.0, float(table.max()))
    ax.set(xlabel="next state $y'$ of Y", ylabel="next state $x'$ of X")
    here, there = (chain.name_of(chain.index(k)) for chain, k in ((found.problem.x, x), (found.problem.y, y)))
    ax.set_title(f"from $x$ = {here}, $y$ = {there}", fontsize=10)
    return ax


def implicit_reward(reward: Any, names: Sequence[Any] | None = None, ax: Axes | None = None) -> Axes:
    """Draw ``r(s, s')`` for every transition: blue transitions bring the learner closer to the expert, red ones away.

    ``reward`` is a table, an :class:`~diffbisim.learning.imitate.ImplicitReward`, or a result that has one.
    """
    if hasattr(reward, "implicit_reward"):
        names = reward.problem.y.names if names is None else names
        reward = reward.implicit_reward()
    elif hasattr(reward, "reward"):
        reward = reward.reward
    if names is None:
        names = getattr(reward, "names", None)
    table = np.asarray(reward)
    most = float(np.abs(table).max()) or 1.0
    shown = range(len(table)) if names is None else names
    unit = "implicit reward $r(s, s')$"
    ax = heat_map(own(ax, 4.8, 4.0), table, unit, shown, shown, cmap="RdBu", vmin=-most, vmax=most)
    ax.set(xlabel="next state $s'$", ylabel="state $s$")
    return ax


def contributions(result: Any, ax: Axes | None = None, *, most: int = 12) -> Axes:
    """Draw the rows and initial distributions that cause a distance; for estimates, significant ones are marked.

    ``result`` is a distance, an estimate, or the result of their ``contributions()``. If rows cannot be compared, the
    bars show in which states of X the cost is paid.
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
    ax.set(xlabel="contribution of the row to the distance" if causes else "cost paid in the state of X")
    if any(certain):
        ax.set_title("* significant (p ≤ 0.05, corrected for all rows)", fontsize=9)
    return ax


def _distance(result: Any) -> DistanceResult:
    """Return the distance of a result, which may be a fit, a compression or an imitation."""
    found = getattr(result, "distance", result)
    if not hasattr(found, "encoder"):
        raise InvalidArgument(
            f"result is a {type(result).__name__}; give a result of distance, fit, compress or imitate"
        )
    return found  # type: ignore[no-any-return]


def _names(chain: MarkovChain) -> Sequence[Any]:
    return range(chain.n_states) if chain.names is None else chain.names
