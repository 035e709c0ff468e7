"""What every experiment leaves behind: a figure (.png), all rows (.csv), settings and summary (.json)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffbisim import __version__
from diffbisim.data.tables import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# Okabe and Ito's colors: distinct for color-blind eyes, and in gray
BLUE, VERMILION, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"
ORANGE, SKY, PURPLE, YELLOW = "#E69F00", "#56B4E9", "#CC79A7", "#D9C700"  # the yellow darker than theirs, for lines


@dataclass(frozen=True)
class Finished:
    """A finished experiment, ready to be shown."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    findings: tuple[str, ...]
    files: tuple[Path, ...]


def finish(module: Any, name: str, outcome: Any, folder: Path) -> Finished:
    """Write the files of an experiment and say what is in them."""
    files = tuple(folder / f"{name}{suffix}" for suffix in (".png", ".csv", ".json"))
    with replacing(files[0], binary=True) as file:
        module.plot(outcome).savefig(file, format="png", dpi=160)
    _write_rows(module.records(outcome), files[1])
    numbers = {"settings": asdict(outcome.settings), "summary": module.summary(outcome), "version": __version__}
    with replacing(files[2]) as file:
        file.write(json.dumps(numbers, indent=2) + "\n")
    shown = module.table(outcome)
    rows = tuple(tuple(_cell(value) for value in row.values()) for row in shown)
    return Finished(module.TITLE, tuple(shown[0]), rows, tuple(module.findings(outcome)), files)


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, in inches, drawn by Agg: no window, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(ax: Axes) -> Axes:
    """No box around the data, and a light grid behind it."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def _write_rows(rows: Sequence[Row], path: Path) -> None:
    with replacing(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
