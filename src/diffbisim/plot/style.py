"""What all pictures share: colors, a figure without a window, plain axes, heat maps with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colors: distinct for color-blind eyes, and in gray
BLUE, VERMILION, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"
ORANGE, SKY, PURPLE, YELLOW = "#E69F00", "#56B4E9", "#CC79A7", "#D9C700"  # the yellow darker than theirs, for lines

NAMED = 24  # states that are named one by one on an axis; more get numbers


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


def heat_map(
    ax: Axes,
    matrix: Any,
    unit: str,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    **look: Any,
) -> Axes:
    """A matrix in colors with its scale beside it, and names on the axes where there are few enough."""
    image = ax.imshow(matrix, interpolation="nearest", **look)
    ax.figure.colorbar(image, ax=ax, label=unit, shrink=0.9)
    if columns is not None and len(columns) <= NAMED:
        names = [str(name) for name in columns]
        ax.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 3 else 0)
    else:
        whole_numbers(ax.xaxis)
    if rows is not None and len(rows) <= NAMED:
        ax.set_yticks(range(len(rows)), [str(name) for name in rows])
    else:
        whole_numbers(ax.yaxis)
    return ax
