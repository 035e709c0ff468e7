"""Average cost between random walks on two stochastic block graphs, and how the coupling aligns their blocks.

    d = min lim 1/n E Σ_{t<n} c(x_t, y_t),        c(x, y) = (deg x - deg y)²

over all bicausal couplings of the two walks; the optimal one is known as the optimal transition coupling of graphs.
Both graphs are drawn from one model with four blocks of sizes 1 : 2 : 3 : 4 and edge probabilities 0.9 within and 0.1
between blocks. The walks are stationary (proportional to the degrees), so that

    OT_c(π_X, π_Y) ≤ d ≤ <π_X π_Yᵀ, c>

where the left side couples the nodes at a single time, and the right side lets the walks run independently. The
fraction of time that both walks spend in the same block shows how well the optimal coupling aligns the blocks, although
the cost depends on degrees only. If pyotc (the reference implementation of transition couplings) is installed, it gets
the smaller graphs too; its policy iteration may fail to terminate if optimal plans are not unique, as with costs that
are squares of integers.
"""

from __future__ import annotations

import io
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.csgraph import connected_components

from diffbisim.common.checks import Floats, Integers
from diffbisim.distances.chains import distance
from diffbisim.plot.style import BLUE, GRAY, GREEN, VERMILION, new_figure, plain
from diffbisim.processes.chain import MarkovChain
from diffbisim.solvers import Exact
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Average cost between random walks on two stochastic block graphs"

CLAIM = "None: the paper considers discounted costs. The long-run average does not depend on the initial states."

#: Ways of coupling the two walks.
WAYS = ("coupled", "node by node", "independent")


@dataclass(frozen=True)
class Settings:
    nodes: tuple[int, ...] = (20, 40, 60)
    shares: tuple[int, ...] = (1, 2, 3, 4)  # relative sizes of the blocks
    within: float = 0.9
    between: float = 0.1
    tol: float = 1e-11
    seeds: int = 5
    peer: int = 20  # maximum number of nodes for pyotc
    peer_iterations: int = 50  # maximum number of iterations of pyotc


FULL = Settings(nodes=(20, 40, 60, 80, 100), seeds=10, peer=40)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    costs: Floats  # (nodes, seeds, WAYS)
    together: Floats  # (nodes, seeds, WAYS), fraction of time that both walks are in the same block
    gaps: Floats  # (nodes, seeds), certified
    seconds: Floats  # (nodes, seeds)
    pyotc: Floats | None  # (nodes, seeds) its cost; NaN if it did not converge; None if it is not installed
    pyotc_seconds: Floats | None  # NaN where it was not run
    law: Floats  # (n, n) long-run distribution of the pair of nodes, for the first of the largest graphs
    blocks: Integers  # (n,) block of each node


def run(settings: Settings) -> Outcome:
    s, peer = settings, _peer()
    sizes = len(s.nodes), s.seeds
    costs, together = (np.zeros((*sizes, len(WAYS))) for _ in range(2))
    gaps, seconds = np.zeros(sizes), np.zeros(sizes)
    theirs, their_seconds = np.full(sizes, np.nan), np.full(sizes, np.nan)
    law, blocks = np.zeros((0, 0)), np.zeros(0, np.int64)
    _solve(s, *_walks(s, s.nodes[0], 0)[:3])  # compiles
    for i, n in enumerate(s.nodes):
        for seed in range(s.seeds):
            X, Y, cost, assignment = _walks(s, n, seed)
            began = time.perf_counter()
            found = _solve(s, X, Y, cost)
            seconds[i, seed], gaps[i, seed] = time.perf_counter() - began, found.gap
            at_once: Any = distance(X, Y, cost, weights=[1, 0])
            laws = found.occupancy, at_once.occupancy_at(0), np.outer(X.initial, Y.initial)
            same = assignment[:, None] == assignment
            costs[i, seed] = found.value, *(float(np.sum(m * cost)) for m in laws[1:])
            together[i, seed] = [float(m[same].sum()) for m in laws]
            if peer is not None and n <= s.peer:
                theirs[i, seed], their_seconds[i, seed] = _timed(s, peer, (X, Y), cost)
            if seed == 0:
                law, blocks = laws[0], assignment
    return Outcome(
        s, costs, together, gaps, seconds, None if peer is None else theirs,
        None if peer is None else their_seconds, law, blocks,
    )  # fmt: skip


def _solve(s: Settings, X: MarkovChain, Y: MarkovChain, cost: Floats) -> Any:
    return distance(X, Y, cost, criterion="average", solver=Exact(tol=s.tol))


def _peer() -> Any:
    """Return pyotc's exact solver, or None if it is not installed."""
    try:
        return import_module("pyotc.otc").exact_otc
    except ImportError:
        return None


def _timed(s: Settings, peer: Any, walks: tuple[MarkovChain, MarkovChain], cost: Floats) -> tuple[float, float]:
    """Return pyotc's cost and time; NaN if it does not converge."""
    began = time.perf_counter()
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT warns about rows that sum to one only up to rounding
        value, _, _ = peer(*(X.transition for X in walks), cost, backend="sparse", max_iter=s.peer_iterations)
    return np.nan if value is None else float(value), time.perf_counter() - began


def _walks(s: Settings, n: int, seed: int) -> tuple[MarkovChain, MarkovChain, Floats, Integers]:
    """Return stationary walks on two graphs, the cost between their nodes, and the blocks of the nodes."""
    rng, shares = np.random.default_rng([seed, n]), np.array(s.shares)
    bounds = np.round(n * np.cumsum(shares) / shares.sum())
    blocks = np.searchsorted(bounds, np.arange(n), side="right")
    graphs = [_graph(s, blocks, rng) for _ in range(2)]
    degrees = [graph.sum(axis=1) for graph in graphs]
    X, Y = (MarkovChain(g / d[:, None], initial=d / d.sum()) for g, d in zip(graphs, degrees, strict=True))
    return X, Y, np.subtract.outer(*degrees) ** 2, blocks


def _graph(s: Settings, blocks: Integers, rng: np.random.Generator) -> Floats:
    """Sample the adjacency matrix (n, n) of a connected graph, by rejection."""
    chance = np.where(blocks[:, None] == blocks, s.within, s.between)
    while True:
        upper = np.triu(rng.random(chance.shape) < chance, 1)
        graph = np.asarray(upper + upper.T, dtype=np.float64)
        if connected_components(graph)[0] == 1:
            return graph


def records(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for i, n in enumerate(outcome.settings.nodes):
        for seed in range(outcome.settings.seeds):
            row = {"nodes": n, "seed": seed, "gap": outcome.gaps[i, seed], "seconds": outcome.seconds[i, seed]}
            for k, way in enumerate(WAYS):
                row |= {f"cost, {way}": outcome.costs[i, seed, k], f"together, {way}": outcome.together[i, seed, k]}
            if outcome.pyotc is not None and outcome.pyotc_seconds is not None:
                row |= {"pyotc": outcome.pyotc[i, seed], "pyotc seconds": outcome.pyotc_seconds[i, seed]}
            rows.append({key: value if isinstance(value, int) else float(value) for key, value in row.items()})
    return rows


def table(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for i, n in enumerate(outcome.settings.nodes):
        costs, together = outcome.costs[i].mean(axis=0), outcome.together[i].mean(axis=0)
        row = {
            "nodes": f"{n} x {n}",
            "average cost": f"{costs[0]:.3f}",
            "gap / cost": f"{(outcome.gaps[i] / outcome.costs[i, :, 0]).max():.0e}",
            "node by node": f"{costs[1]:.3f}",
            "independent": f"{costs[2]:.3f}",
            "same block": " / ".join(f"{share:.0%}" for share in together),
            "seconds": f"{np.median(outcome.seconds[i]):.3f}",
        }
        if outcome.pyotc is not None and outcome.pyotc_seconds is not None:
            solved = int(np.isfinite(outcome.pyotc[i]).sum())
            ratio = float(np.median(outcome.pyotc_seconds[i] / outcome.seconds[i]))
            row["time of pyotc (solved)"] = f"{ratio:.0f}x ({solved})" if np.isfinite(ratio) else "-"
        rows.append(row)
    return rows


def summary(outcome: Outcome) -> dict[str, float]:
    found = {f"together, {way}": float(outcome.together[-1, :, k].mean()) for k, way in enumerate(WAYS)}
    found |= {f"cost, {way}": float(outcome.costs[-1, :, k].mean()) for k, way in enumerate(WAYS)}
    found["largest_relative_gap"] = float((outcome.gaps / outcome.costs[..., 0]).max())
    if outcome.pyotc is not None and outcome.pyotc_seconds is not None:
        given, ended = np.isfinite(outcome.pyotc_seconds), np.isfinite(outcome.pyotc)
        found["time_ratio_of_pyotc"] = float(np.median((outcome.pyotc_seconds / outcome.seconds)[given]))
        found["share_that_pyotc_solved"] = float(ended.sum() / given.sum())
        off = np.abs(outcome.pyotc / outcome.costs[..., 0] - 1)[ended]
        found["largest_difference_of_pyotc"] = float(off.max(initial=0.0))
    return found


def findings(outcome: Outcome) -> list[str]:
    found, s = summary(outcome), outcome.settings
    said = [
        f"graphs of {s.nodes[-1]} nodes, {s.seeds} pairs: average cost {found['cost, coupled']:.2f}, between "
        f"{found['cost, node by node']:.2f} (node by node) and {found['cost, independent']:.2f} (independent); "
        f"certified to {found['largest_relative_gap']:.0e} of it or better",
        f"both walks are in the same block {found['together, coupled']:.0%} of the time under the optimal coupling, "
        f"{found['together, independent']:.0%} independently, and {found['together, node by node']:.0%} under a "
        "coupling of a single time",
    ]
    if "time_ratio_of_pyotc" in found:
        said.append(
            f"pyotc, up to {s.peer} nodes: {found['time_ratio_of_pyotc']:.0f} times our time; it converges on "
            f"{found['share_that_pyotc_solved']:.0%} of the pairs within {s.peer_iterations} iterations, to the same "
            f"cost up to a relative difference of {found['largest_difference_of_pyotc']:.0e}"
        )
    else:
        said.append('pyotc is not installed; pip install "diffbisim[bench]" to compare with it')
    return said


def verdict(outcome: Outcome) -> tuple[str, str]:
    return BEYOND, "Average cost is not in the paper; it is certified and lies between its two bounds."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(9.6, 3.3)
    left, middle, right = figure.subplots(1, 3)
    _plot_law(left, outcome)
    s, x = outcome.settings, np.arange(len(outcome.settings.nodes))
    colors, seconds = (BLUE, GREEN, GRAY), outcome.seconds
    for k, (way, color) in enumerate(zip(WAYS, colors, strict=True)):
        shares = outcome.together[..., k]
        plain(middle).bar(x + 0.27 * (k - 1), 100 * shares.mean(axis=1), 0.25, color=color, label=way)
        middle.plot(np.repeat(x + 0.27 * (k - 1), s.seeds), 100 * shares.ravel(), ".", color="black", markersize=3)
    middle.set(xlabel="nodes of each graph", ylabel="% of the time", ylim=(0, 115), yticks=range(0, 101, 20))
    middle.set_xticks(x, labels=[str(n) for n in s.nodes])
    middle.set_title("both walks in the same block", fontsize=10)
    middle.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", columnspacing=0.8, handlelength=1)
    plain(right).plot(s.nodes, np.median(seconds, axis=1), "o-", color=BLUE, label=f"ours, certified to {s.tol:.0e}")
    if outcome.pyotc_seconds is not None:
        right.plot(s.nodes, np.median(outcome.pyotc_seconds, axis=1), "^--", color=VERMILION, label="pyotc")
    shown = np.log10(np.concatenate([line.get_ydata() for line in right.lines]))
    decades = 10.0 ** np.floor(np.nanmin(shown)), 10.0 ** np.ceil(np.nanmax(shown))
    right.set(xscale="log", yscale="log", xlabel="nodes of each graph", ylabel="seconds", ylim=decades)
    right.set_xticks([], minor=True)
    right.set_xticks(s.nodes, labels=[str(n) for n in s.nodes])
    right.set_title("time", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    return figure


def _plot_law(ax: Any, outcome: Outcome) -> None:
    """Draw the long-run distribution of the pair of walks, with nodes sorted by block."""
    law, n = outcome.law, len(outcome.blocks)
    ax.imshow(np.sqrt(law), cmap="Blues", interpolation="nearest")
    for border in np.flatnonzero(np.diff(outcome.blocks)) + 0.5:
        ax.axhline(border, color=GRAY, linewidth=0.6)
        ax.axvline(border, color=GRAY, linewidth=0.6)
    ax.set(xlabel="node of Y, by block", ylabel="node of X, by block")
    ax.set_title(f"law of the best coupling, {n} nodes", fontsize=10)
