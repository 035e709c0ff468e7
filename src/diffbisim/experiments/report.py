"""What every experiment leaves behind: a figure (.png), all rows (.csv), settings and summary (.json)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffbisim import __version__
from diffbisim.data.tables import replacing

Row = Mapping[str, Any]


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


def _write_rows(rows: Sequence[Row], path: Path) -> None:
    with replacing(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
