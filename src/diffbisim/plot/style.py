"""What all pictures share: colors, a figure without a window, plain axes, heat maps with names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Okabe and Ito's colors: distinct for color-blind eyes, and in gray
BLUE, VERMILION, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"
ORANGE, SKY, PURPLE, YELLOW = "#E69F00", "#56B4E9", "#CC79A7", "#D9C700"  # the yellow darker than theirs, for lines

NAMED = 24  # states that are named one by one on an axis
SOME = 10  # of more, about so many are named


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, in inches, drawn by Agg: no window, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="compressed")  # constrained, and right for axes of fixed aspect
    FigureCanvasAgg(figure)
    return figure


def own(ax: Axes | None, width: float = 5.0, height: float = 3.6) -> Axes:
    """The axes given, or those of a new figure."""
    return new_figure(width, height).subplots() if ax is None else ax


def plain(ax: Axes) -> Axes:
    """No box around the data, and a light grid behind it."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers only: states and iterations have no halves."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def shades() -> Colormap:
    """Grays for parts of one in which the smallest part can be told from nothing, which is left white."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    grays = colormaps["Greys"]
    return LinearSegmentedColormap.from_list("parts", [grays(0.18 + 0.82 * k / 16) for k in range(17)])


def heat_map(
    ax: Axes,
    matrix: Any,
    unit: str,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    **look: Any,
) -> Axes:
    """A matrix in colors with its scale beside it, and names on the axes; of many states some are named."""
    image = ax.imshow(matrix, interpolation="nearest", **look)
    ax.figure.colorbar(image, ax=ax, label=unit, shrink=0.9)
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        if names is None:
            whole_numbers(axis)
            continue
        at = range(0, len(names), 1 if len(names) <= NAMED else math.ceil(len(names) / SOME))
        axis.set_ticks(list(at), [str(names[k]) for k in at])
    if columns is not None and max(len(str(name)) for name in columns) > 3:
        ax.tick_params(axis="x", rotation=90)
    return ax
