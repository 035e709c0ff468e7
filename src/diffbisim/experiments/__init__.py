"""The experiments, one file per figure, each with the same five functions:

    Settings    a frozen dataclass: every number that matters, with its default; FULL: the thorough ones, if there are
    run         settings -> Outcome, arrays only
    table       the rows to read;  records: all rows, for the CSV;  summary: the numbers that sum it up
    findings    what came out, in sentences
    plot        Outcome -> matplotlib Figure

``diffbisim reproduce`` runs them all, ``diffbisim reproduce NAME ... --full`` some of them thoroughly (`run_all`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from diffbisim.errors import InvalidArgument, MissingExtra
from diffbisim.experiments.report import Finished, finish

__all__ = ["EXPERIMENTS", "Finished", "run_all"]

EXPERIMENTS = (
    "landscape",
    "blocks",
    "agreement",
    "drift",
    "ablations",
    "compression",
    "noisy_blocks",
    "imitation_marginals",
    "imitation_chain",
    "imitation_needs_metric",
    "imitation_literal",
    "imitation_data",
    "imitation_gymnasium",
)


def run_all(folder: Path, names: Sequence[str] = (), *, full: bool = False) -> Iterator[Finished]:
    """Run the named experiments, or every one, and write their files into ``folder``, one after the other.

    ``full`` takes the thorough settings of those that have them: minutes instead of seconds. Unless it was named, one
    whose extra is not installed says so and is passed over.
    """
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise InvalidArgument(f"no experiment is called {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or EXPERIMENTS:
        module = import_module(f"diffbisim.experiments.{name}")
        settings = module.FULL if full and hasattr(module, "FULL") else module.Settings()
        try:
            outcome = module.run(settings)
        except MissingExtra as error:
            if name in names:
                raise
            yield Finished(module.TITLE, (), (), (f"not run: {error}",), ())
            continue
        yield finish(module, name, outcome, folder)
