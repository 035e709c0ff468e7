"""The files of an experiment: a figure (.png), all rows (.csv), and everything else (.json), which is written last.

The .json file contains the settings and a checksum of the code, so that it can be reused instead of a new run, and
everything that the page (page.py) and the terminal show.
"""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import diffbisim
from diffbisim import __version__
from diffbisim.io.files import replacing

Row = Mapping[str, Any]

AGREES, IN_PART, DIFFERS, BEYOND = "agrees", "agrees in part", "differs", "not in the paper"


@dataclass(frozen=True)
class Finished:
    """A finished experiment."""

    title: str
    claim: str  # what the paper says; empty if nothing
    verdict: str  # AGREES, IN_PART, DIFFERS or BEYOND
    why: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    findings: tuple[str, ...]
    settings: Mapping[str, Any]
    seconds: float
    files: tuple[Path, ...]
    new: bool = True  # False if it is from an earlier run


def finish(module: Any, name: str, settings: Any, folder: Path) -> Finished:
    """Run an experiment, write its files and return its results."""
    began = time.perf_counter()
    outcome = module.run(settings)
    seconds = time.perf_counter() - began
    files = _files(folder, name)
    with replacing(files[0], binary=True) as file:
        module.plot(outcome).savefig(file, format="png", dpi=160)
    _write_rows(module.records(outcome), files[1])
    shown = module.table(outcome)
    verdict, why = module.verdict(outcome)
    report = {
        "title": module.TITLE,
        "claim": module.CLAIM,
        "verdict": verdict,
        "why": why,
        "header": list(shown[0]),
        "rows": [[_cell(value) for value in row.values()] for row in shown],
        "findings": module.findings(outcome),
        "settings": asdict(settings),
        "summary": module.summary(outcome),
        "seconds": round(seconds, 3),
        "version": __version__,
        "code": code_of_package(),
    }
    text = json.dumps(report, indent=2) + "\n"
    with replacing(files[2]) as file:
        file.write(text)
    return _finished(json.loads(text), files)


def not_run(module: Any, why: str) -> Finished:
    """Return a placeholder for an experiment that could not be run."""
    return Finished(module.TITLE, module.CLAIM, "not run", why, (), (), (), {}, 0.0, ())


def stored(folder: Path, name: str, settings: Any = None) -> Finished | None:
    """Return the results of an earlier run with the same code and settings, or None."""
    files = _files(folder, name)
    try:
        report = json.loads(files[2].read_text(encoding="utf-8"))
        same = report["code"] == code_of_package() and all(file.exists() for file in files)
        if settings is not None:
            same = same and report["settings"] == json.loads(json.dumps(asdict(settings)))
        return replace(_finished(report, files), new=False) if same else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # missing or invalid, so it is created again


@cache
def code_of_package() -> str:
    """Return a checksum of all sources, for recognizing results of the same code."""
    digest = hashlib.sha256()
    for root in (Path(diffbisim.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _finished(report: Mapping[str, Any], files: tuple[Path, ...]) -> Finished:
    return Finished(
        report["title"], report["claim"], report["verdict"], report["why"], tuple(report["header"]),
        tuple(map(tuple, report["rows"])), tuple(report["findings"]), report["settings"], report["seconds"], files,
    )  # fmt: skip


def _files(folder: Path, name: str) -> tuple[Path, ...]:
    return tuple(folder / f"{name}{suffix}" for suffix in (".png", ".csv", ".json"))


def _write_rows(rows: Sequence[Row], path: Path) -> None:
    with replacing(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
