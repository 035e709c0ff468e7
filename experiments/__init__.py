"""The experiments, with one file per figure. Each module defines

    TITLE, CLAIM    its title, and what the paper claims
    Settings        a frozen dataclass with all parameters and their defaults; FULL: the settings of ``--full``
    run             settings -> Outcome, which contains arrays only
    table           the rows to print;  records: all rows, for the CSV;  summary: the main numbers
    findings        the results as sentences
    verdict         whether they agree with the claim, and why (constants in report.py)
    plot            Outcome -> matplotlib Figure

``diffbisim reproduce`` runs all of them (`run_all`). Finished experiments with the same settings and the same code are
not repeated, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.common.parallel import Executor, as_done
from diffbisim.io.files import replacing
from experiments.page import write_page
from experiments.report import Finished, finish, not_run, stored

__all__ = ["EXPERIMENTS", "Finished", "chosen", "run_all"]

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
    "imitation_needs_metric",
    "imitation_literal",
    "imitation_data",
    "imitation_gymnasium",
    "control",
    "adapted_paths",
    "average_cost",
    "mdp_metrics",
    "mdp_values",
    "mdp_abstraction",
)


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return the experiments with these names, in their order; all of them if there are no names."""
    wanted = [name.replace("-", "_") for name in names]
    for given, name in zip(names, wanted, strict=True):
        if name not in EXPERIMENTS:
            raise InvalidArgument(f"{given} is not an experiment; choose from {', '.join(EXPERIMENTS)}")
    return tuple(name for name in EXPERIMENTS if name in wanted or not wanted)


def run_all(
    folder: Path, names: Sequence[str] = (), *, full: bool = False, fresh: bool = False, executor: Executor = None
) -> Iterator[tuple[str, Finished | None]]:
    """Run the experiments and write their files and the page ``report.html`` to ``folder``.

    Yields ``(name, None)`` when an experiment begins and ``(name, finished)`` when it is done or was done before. If an
    extra is not installed, the experiment is skipped with a note, unless it was named. ``executor`` is as for
    :func:`diffbisim.pairwise`, preferably processes, which need no access to the folder; experiments are then reported
    as they finish.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: _settings(name, full) for name in chosen(names)}
    made: set[str] = set()
    for name in wanted if executor is None else _elsewhere(folder, wanted, fresh, executor, made):
        yield name, None
        module = import_module(f"experiments.{name}")
        finished = None if fresh and name not in made else stored(folder, name, wanted[name])
        try:
            finished = finished or finish(module, name, wanted[name], folder)
        except MissingExtra as error:
            if names:
                raise
            yield name, not_run(module, str(error))
            continue
        on_page = {other: stored(folder, other) for other in EXPERIMENTS}
        write_page(folder / "report.html", {key: value for key, value in on_page.items() if value is not None})
        yield name, replace(finished, new=True) if name in made else finished


def _settings(name: str, full: bool) -> Any:
    module = import_module(f"experiments.{name}")
    return getattr(module, "FULL", module.Settings()) if full else module.Settings()


def _elsewhere(
    folder: Path, wanted: Mapping[str, Any], fresh: bool, executor: Executor, made: set[str]
) -> Iterator[str]:
    """Yield the names of the experiments when their files are in the folder, and record which are new."""
    missing = [name for name in wanted if fresh or stored(folder, name, wanted[name]) is None]
    yield from (name for name in wanted if name not in missing)
    with closing(as_done(_files, [(name, wanted[name]) for name in missing], None, executor)) as done:
        for k, files in done:
            for name, content in files.items():
                with replacing(folder / name, binary=True) as file:
                    file.write(content)
            made |= {missing[k]} if files else set()
            yield missing[k]


def _files(_: None, experiment: tuple[str, Any]) -> dict[str, bytes]:
    """Run an experiment in a worker and return its files by name; empty if an extra is not installed."""
    name, settings = experiment
    with TemporaryDirectory() as folder, suppress(MissingExtra):
        finished = finish(import_module(f"experiments.{name}"), name, settings, Path(folder))
        return {path.name: path.read_bytes() for path in finished.files}
    return {}
