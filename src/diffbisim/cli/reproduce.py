"""``diffbisim reproduce``: the experiments, with a bar, and a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffbisim.cli import common as cli

if TYPE_CHECKING:
    from diffbisim.experiments import Finished


@cli.app.command(epilog="Example: diffbisim reproduce blocks landscape --output results")
@cli.reports_errors
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Experiments (default: all)", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures, tables and the page")] = Path(
        "results"
    ),
    full: Annotated[bool, typer.Option("--full", help="All seeds and sizes; takes much longer")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is already there")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Run on the workers of a Dask scheduler: tcp://host:8786", show_default=False)
    ] = None,
    as_json: cli.Json = False,
) -> None:
    """Run the experiments: tables on screen; figures, tables, numbers and report.html in a folder.

    Interrupted and started again, it goes on where it stopped.
    """
    from diffbisim.experiments import chosen, run_all
    from diffbisim.progress import steps

    wanted, reports = chosen(names or []), {}
    with steps(cli.somebody_watches() and not as_json, len(wanted)) as begin:
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
    cli.emit({"experiments": reports, "page": str(page)}, f"All on one page: {page}", as_json=as_json)


def _show(finished: Finished) -> None:
    """A table of what was measured, and where the files are."""
    table = cli.columns(*finished.header)
    for row in finished.rows:
        table.add_row(*row)
    lines = [*finished.findings, *([f"the paper: {finished.claim}"] if finished.claim else [])]
    made = f"{finished.seconds:.1f} s" if finished.new else "made by an earlier run; --fresh to run it again"
    lines += [
        f"verdict: {finished.verdict}. {finished.why}",
        f"files: {', '.join(map(str, finished.files))} ({made})\n",
    ]
    out = cli.console()
    out.print(finished.title, style="bold")
    out.print(table)
    for line in lines:
        out.print(f"  {line}", soft_wrap=True)
