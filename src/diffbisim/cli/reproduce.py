"""``diffbisim reproduce``: run the experiments of the repository and write a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import diffbisim
from diffbisim.cli import common as cli
from diffbisim.common.errors import InvalidArgument

if TYPE_CHECKING:
    from experiments import Finished


@cli.app.command(epilog="Example: diffbisim reproduce blocks landscape --output results")
@cli.reports_errors
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Experiments (default: all)", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures, tables and the report")] = Path(
        "results"
    ),
    full: Annotated[bool, typer.Option("--full", help="All seeds and sizes; takes much longer")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat experiments that are already done")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler to run on: tcp://host:8786", show_default=False)
    ] = None,
    as_json: cli.Json = False,
) -> None:
    """Run the experiments, print their tables, and write figures, tables, numbers and report.html to a folder.

    An interrupted run continues where it stopped when started again.
    """
    from diffbisim.common.progress import steps

    _find_experiments()
    from experiments import chosen, run_all

    wanted, reports = chosen(names or []), {}
    with steps(cli.is_interactive() and not as_json, len(wanted)) as begin:
        for name, finished in run_all(output, wanted, full=full, fresh=fresh, executor=cluster):
            if finished is None:
                begin(name)
                continue
            begin(None)
            reports[name] = {
                "title": finished.title, "verdict": finished.verdict, "findings": list(finished.findings),
                "files": [str(file) for file in finished.files], "seconds": finished.seconds, "new": finished.new,
            }  # fmt: skip
            if not as_json:
                _show(finished)
    page = output / "report.html"
    cli.emit({"experiments": reports, "page": str(page)}, f"Report: {page}", as_json=as_json)


def _find_experiments() -> None:
    """Make the folder ``experiments`` of a checkout importable; it is not part of an installed package."""
    root = Path(diffbisim.__file__).resolve().parents[2]
    if not (root / "experiments" / "__init__.py").exists():
        raise InvalidArgument(
            "the experiments are not part of the installed package; clone the repository and run 'make demo' there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _show(finished: Finished) -> None:
    """Print the table of an experiment, its findings and its files."""
    table = cli.columns(*finished.header)
    for row in finished.rows:
        table.add_row(*row)
    lines = [*finished.findings, *([f"the paper: {finished.claim}"] if finished.claim else [])]
    made = f"{finished.seconds:.1f} s" if finished.new else "from an earlier run; use --fresh to repeat it"
    lines += [
        f"verdict: {finished.verdict}. {finished.why}",
        f"files: {', '.join(map(str, finished.files))} ({made})\n",
    ]
    out = cli.console()
    out.print(finished.title, style="bold")
    out.print(table)
    for line in lines:
        out.print(f"  {line}", soft_wrap=True)
