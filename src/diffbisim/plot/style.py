"""Shared code of the plots: colors, figures without a window, plain axes, labeled heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which are distinct for color-blind readers and in grayscale
BLUE, VERMILION, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"
ORANGE, SKY, PURPLE, YELLOW = "#E69F00", "#56B4E9", "#CC79A7", "#D9C700"  # a darker yellow, for lines

MAX_STATES_NAMED = 24  # up to this many states are all labeled on an axis
NAMES_IF_MORE = 10  # number of labels if there are more states


def new_figure(width: float, height: float) -> Figure:
    """Create a figure (size in inches) with the Agg backend, without a window and without global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="compressed")  # suits axes with a fixed aspect
    FigureCanvasAgg(figure)
    return figure


def own(ax: Axes | None, width: float = 5.0, height: float = 3.6) -> Axes:
    """Return the given axes, or those of a new figure."""
    return new_figure(width, height).subplots() if ax is None else ax


def plain(ax: Axes) -> Axes:
    """Remove the top and right spines and add a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def whole_numbers(axis: Axis) -> None:
    """Put ticks at integers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def shades() -> Colormap:
    """Return a gray color map in which even the smallest probability differs from white."""
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
    """Draw a matrix as a heat map with a color bar and labels; with many states only some are labeled."""
    image = ax.imshow(matrix, interpolation="nearest", **look)
    ax.figure.colorbar(image, ax=ax, label=unit, shrink=0.9)
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        if names is None:
            whole_numbers(axis)
            continue
        at = range(0, len(names), 1 if len(names) <= MAX_STATES_NAMED else math.ceil(len(names) / NAMES_IF_MORE))
        axis.set_ticks(list(at), [str(names[k]) for k in at])
    if columns is not None and max(len(str(name)) for name in columns) > 3:
        ax.tick_params(axis="x", rotation=90)
    return ax
