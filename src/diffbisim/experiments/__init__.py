"""The experiments, one file per figure, each with the same names:

    TITLE, CLAIM    what it is, and what the paper says about it
    Settings        a frozen dataclass: every number that matters, with its default; FULL: those of ``--full``
    run             settings -> Outcome, arrays only
    table           the rows to read;  records: all rows, for the CSV;  summary: the numbers that sum it up
    findings        what came out, in sentences
    verdict         whether that agrees with the claim, and why (report.py has the words)
    plot            Outcome -> matplotlib Figure

``diffbisim reproduce`` runs them all (`run_all`). What is finished, with the same settings and the same code, is not
run again; so a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffbisim.errors import InvalidArgument, MissingExtra
from diffbisim.experiments.page import write_page
from diffbisim.experiments.report import Finished, finish, not_run, stored
from diffbisim.io.files import replacing
from diffbisim.parallel import Executor, as_done

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
    """The experiments of these names, in their order; all of them for none."""
    wanted = [name.replace("-", "_") for name in names]
    for given, name in zip(names, wanted, strict=True):
        if name not in EXPERIMENTS:
            raise InvalidArgument(f"{given} is no experiment; choose from {', '.join(EXPERIMENTS)}")
    return tuple(name for name in EXPERIMENTS if name in wanted or not wanted)


def run_all(
    folder: Path, names: Sequence[str] = (), *, full: bool = False, fresh: bool = False, executor: Executor = None
) -> Iterator[tuple[str, Finished | None]]:
    """Run the experiments one after the other; write their files and the page ``report.html`` into ``folder``.

    Yields ``(name, None)`` when one begins and ``(name, finished)`` when it is done or was done before. Unless it was
    named, one whose extra is not installed says so and is passed over. ``executor``: as for :func:`diffbisim.pairwise`,
    best of processes, which need not see the folder; they are then shown as they are done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: _settings(name, full) for name in chosen(names)}
    made: set[str] = set()
    for name in wanted if executor is None else _elsewhere(folder, wanted, fresh, executor, made):
        yield name, None
        module = import_module(f"diffbisim.experiments.{name}")
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
    module = import_module(f"diffbisim.experiments.{name}")
    return getattr(module, "FULL", module.Settings()) if full else module.Settings()


def _elsewhere(
    folder: Path, wanted: Mapping[str, Any], fresh: bool, executor: Executor, made: set[str]
) -> Iterator[str]:
    """The names of the experiments as their files are in the folder; notes which of them are new."""
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
    """What an experiment leaves behind, by name of file; nothing if an extra is not installed. Runs in a worker."""
    name, settings = experiment
    with TemporaryDirectory() as folder, suppress(MissingExtra):
        finished = finish(import_module(f"diffbisim.experiments.{name}"), name, settings, Path(folder))
        return {path.name: path.read_bytes() for path in finished.files}
    return {}
