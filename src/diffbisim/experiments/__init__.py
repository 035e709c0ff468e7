"""The experiments, one file per figure, each with the same five functions:

    Settings    a frozen dataclass: every number that matters, with its default
    run         settings -> Outcome, arrays only
    table       the rows to read;  records: all rows, for the CSV;  summary: the numbers that sum it up
    findings    what came out, in sentences
    plot        Outcome -> matplotlib Figure

``diffbisim reproduce`` runs them all (`run_all`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from diffbisim.experiments.report import Finished, finish

__all__ = ["EXPERIMENTS", "Finished", "run_all"]

EXPERIMENTS = (
    "landscape",
    "blocks",
    "agreement",
    "drift",
    "learning_rate",
    "inner_iterations",
    "warm_start",
    "inner_solvers",
    "compression",
    "noisy_blocks",
    "imitation_marginals",
    "imitation_chain",
)


def run_all(folder: Path) -> Iterator[Finished]:
    """Run every experiment with its default settings and write its files into ``folder``, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in EXPERIMENTS:
        module = import_module(f"diffbisim.experiments.{name}")
        yield finish(module, name, module.run(module.Settings()), folder)
