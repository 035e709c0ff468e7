"""Markov chains as graphs, with a disk for each state and an arrow for each transition.

The area of a disk shows the discounted occupancy, its shade the reward, and a second ring a possible initial state. The
width of an arrow shows the probability; arrows are dotted below 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats, dense
from diffbisim.common.errors import InvalidArgument
from diffbisim.plot.style import MAX_STATES_NAMED, own

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from diffbisim.processes.chain import MarkovChain

MAX_STATES = 60  # maximum number of states
MAX_ARROWS = 600  # maximum number of arrows
MIN_SOLID_PROBABILITY = 0.01  # smaller probabilities are dotted
MAX_NUMBERED_ARROWS = 16  # up to this many arrows are labeled with their probabilities
ALONG = (0.3, 0.4, 0.25, 0.5)  # candidate positions of the label along an arrow, best first
SUFFICIENT_CLEARANCE = 0.2  # sufficient distance between labels (the circle has radius one)


def chain(
    chain: MarkovChain,
    ax: Axes | None = None,
    *,
    layout: Any = "circle",
    discount: float = 0.95,
    least: float = 0.0,
    cmap: str = "cividis",
) -> Axes:
    """Draw a chain of up to 60 states as a graph.

    Parameters
    ----------
    chain : MarkovChain
    ax : Axes, default=None
    layout : {"circle", "line", "spring"}, array of shape (n, 2) or mapping, default="circle"
        "spring" places states with transitions between them close together. A mapping from names to positions may
        come from a layout of networkx.
    discount : float, default=0.95
        Discount of the occupancy that the disks show.
    least : float, default=0.0
        Transitions with smaller probabilities are not drawn, and the title says how many. At most 600 are drawn.
    cmap : str, default="cividis"
        Color map of the rewards.

    Returns
    -------
    ax : Axes
    """
    n = chain.n_states
    if n > MAX_STATES:
        known = f"the chain has {n} states, but a graph shows up to {MAX_STATES}"
        raise InvalidArgument(f"{known}; lump or compress it first")
    ax = own(ax, 5.4, 5.0)
    P: Floats = dense(chain.transition)
    place, radius = _layout(chain, P, layout), _radii(chain.occupancy(discount))
    reach = float(np.ptp(place, axis=0).max()) or 1.0
    radius *= _room(place, reach)
    _states(ax, chain, place, radius, cmap)
    edges = np.argwhere((P > 0) & (least <= P)).tolist()
    edges = sorted(edges, key=lambda edge: -P[*edge])[:MAX_ARROWS]
    proper = sum(i != j for i, j in edges)
    for i, j in edges:
        _arrow(ax, P, place, radius, (i, j), proper <= MAX_NUMBERED_ARROWS)
    hidden = int((P > 0).sum()) - len(edges)
    if hidden:
        limit = least if len(edges) < MAX_ARROWS else P[*edges[-1]]
        ax.set_title(f"{hidden} transitions below {limit:.2g} not drawn", fontsize=9)
    margin = 0.2 * reach + float(radius.max())
    ax.set_xlim(place[:, 0].min() - margin, place[:, 0].max() + margin)
    ax.set_ylim(place[:, 1].min() - margin, place[:, 1].max() + margin)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _layout(chain: MarkovChain, P: Floats, layout: Any) -> Floats:
    """Return the positions of the states, (n, 2)."""
    n = len(P)
    if isinstance(layout, Mapping):
        found = {chain.index(name): spot for name, spot in layout.items()}
        layout = [found[k] for k in sorted(found)]
    if not isinstance(layout, str):
        place = np.array(layout, dtype=np.float64)
        if place.shape != (n, 2):
            raise InvalidArgument(f"layout has shape {place.shape}; positions must have shape ({n}, 2)")
        return place
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    if layout == "circle":
        return np.column_stack([np.cos(angle), np.sin(angle)])
    if layout == "line":
        return np.column_stack([2.0 * np.arange(n) / max(n - 1, 1), np.zeros(n)])
    if layout != "spring":
        raise InvalidArgument(f'layout is {layout!r}; use "circle", "line", "spring" or an array ({n}, 2)')
    return _spring(P, np.column_stack([np.cos(angle), np.sin(angle)]))


def _spring(P: Floats, circle: Floats, rounds: int = 300) -> Floats:
    """Fruchterman-Reingold layout: transitions attract by s²/k, all states repel by k²/s, with decreasing step sizes.

    It starts from the second and third eigenvectors of the Laplacian, which place neighbors close together, plus a
    small multiple of the circle, which separates equivalent states.
    """
    n = len(P)
    weight = ((P > 0) | (P > 0).T).astype(np.float64)
    np.fill_diagonal(weight, 0.0)
    soft = weight + 1e-3 / n  # makes the graph connected, so that only the first eigenvector is constant
    place = 0.1 * circle
    if n > 3:
        vectors = np.linalg.eigh(np.diag(soft.sum(axis=1)) - soft)[1][:, 1:3]
        place = place + vectors / np.abs(vectors).max(axis=0)
    k = 1.0 / np.sqrt(n)
    for longest in np.linspace(0.2, 0.005, rounds):
        apart = place[:, None] - place[None]
        s = np.maximum(np.linalg.norm(apart, axis=2, keepdims=True), 1e-3)
        force = (apart / s * (k**2 / s - weight[:, :, None] * s**2 / k)).sum(axis=1)
        size = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-12)
        place = place + force / size * np.minimum(size, longest)
    return np.asarray(place - place.mean(axis=0))


def _radii(rho: Floats) -> Floats:
    """Return relative radii: the square root of the occupancy, but large enough for a label."""
    root = np.sqrt(rho / rho.max())
    return np.asarray(np.maximum(root, 0.55))


def _room(place: Floats, reach: float) -> float:
    """Return the largest radius that leaves space for arrows between the two nearest states."""
    apart = np.linalg.norm(place[:, None] - place[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return float(min(max(0.3 * apart.min(), 0.02 * reach), 0.11 * reach))


def _states(ax: Axes, chain: MarkovChain, place: Floats, radius: Floats, cmap: str) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Circle
    from matplotlib.patheffects import withStroke

    r = None if chain.rewards is None or chain.rewards.ndim > 1 else chain.rewards  # vectors have no color
    shade = None if r is None else ScalarMappable(Normalize(r.min(), max(r.max(), r.min() + 1e-9)), colormaps[cmap])
    size = 10 if chain.n_states <= 12 else 7
    for i, (x, y) in enumerate(place.tolist()):
        fill: Any = "#F2F2F2" if shade is None or r is None else shade.to_rgba(r[i : i + 1])[0]
        ax.add_patch(Circle((x, y), radius[i], facecolor=fill, edgecolor="black", linewidth=1.0, zorder=3))
        if chain.initial[i] > 0:
            ring = Circle((x, y), 1.18 * radius[i], facecolor="none", edgecolor="black", linewidth=1.0, zorder=3)
            ax.add_patch(ring)
        if chain.n_states > MAX_STATES_NAMED:
            continue
        name = str(chain.name_of(i))
        written = ax.text(x, y, name, ha="center", va="center", fontsize=size, zorder=4)
        written.set_path_effects([withStroke(linewidth=2.2, foreground="white")])
    if shade is not None:
        ax.figure.colorbar(shade, ax=ax, label="reward", shrink=0.7)


def _clearance(ax: Axes, spot: Floats) -> float:
    """Return the distance to the nearest text."""
    return min((float(np.hypot(*(spot - text.get_position()))) for text in ax.texts), default=np.inf)


def _arrow(ax: Axes, P: Floats, place: Floats, radius: Floats, edge: tuple[int, int], numbered: bool) -> None:
    """Draw an arrow from i to j, bent if there is one back; for i = j, a loop away from the center."""
    from matplotlib.patches import FancyArrowPatch

    i, j = edge
    p = float(P[i, j])
    head = (8.0 + 5.0 * p) * (1.0 if len(place) <= MAX_STATES_NAMED else 0.5)
    look: dict[str, Any] = {
        "arrowstyle": "-|>", "mutation_scale": head, "linewidth": 0.5 + 2.0 * p, "color": "#333333", "zorder": 2,
        "linestyle": "-" if p >= MIN_SOLID_PROBABILITY else ":",
    }  # fmt: skip
    if i == j:
        out = place[i] - place.mean(axis=0)
        length = float(np.linalg.norm(out))
        out = out / length if length > 1e-9 and np.ptp(place[:, 1]) > 0 else np.array([0.0, 1.0])
        side = np.array([-out[1], out[0]])
        start, end = (place[i] + 1.15 * radius[i] * (0.8 * out + sign * 0.6 * side) for sign in (1, -1))
        ax.add_patch(FancyArrowPatch(start, end, connectionstyle="arc3,rad=-1.6", **look))
        where = place[i] + out * 2.75 * radius[i]
    else:
        line = place[j] - place[i]
        length = float(np.linalg.norm(line))
        side = np.array([line[1], -line[0]]) / length
        bend = 0.08 if P[j, i] == 0 else 0.22 if np.ptp(place[:, 1]) > 0 else 0.5
        towards = line / length * 0.92 + side * bend
        back = line / length * 0.92 - side * bend
        start, end = place[i] + 1.2 * radius[i] * towards, place[j] - 1.2 * radius[j] * back
        ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **look))
        bulge = bend * float(np.linalg.norm(end - start))
        spots = [start + t * (end - start) + (2 * t * (1 - t) * bulge + 0.035) * side for t in ALONG]
        where = max(spots, key=lambda spot: min(_clearance(ax, spot), SUFFICIENT_CLEARANCE))
    if numbered:
        halo = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        x, y = where.tolist()
        ax.text(x, y, f"{p:.2g}", ha="center", va="center", fontsize=8, color="#333333", bbox=halo, zorder=5)
