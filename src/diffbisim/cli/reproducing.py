"""``diffbisim reproduce``: the experiments, with a bar, and a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffbisim.cli.common import Json, app, reporting


@app.command(epilog="Example: diffbisim reproduce blocks landscape --output results")
@reporting
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Experiments (default: all)", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures, tables and the page")] = Path(
        "results"
    ),
    full: Annotated[bool, typer.Option("--full", help="All seeds and sizes; takes much longer")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is already there")] = False,
    as_json: Json = False,
) -> None:
    """Run the experiments: tables on screen; figures, tables, numbers and report.html in a folder.

    Interrupted and started again, it goes on where it stopped.
    """
    from diffbisim.cli.showing import as_text, bar, show_experiment
    from diffbisim.experiments import chosen, run_all
    from diffbisim.progress import steps

    wanted, reports = chosen(names or []), {}
    with steps(bar() and not as_json, len(wanted)) as begin:
        for name, finished in run_all(output, wanted, full=full, fresh=fresh):
            if finished is None:
                begin(name)
                continue
            begin(None)
            reports[name] = {
                "title": finished.title, "verdict": finished.verdict, "findings": list(finished.findings),
                "files": [str(file) for file in finished.files], "seconds": finished.seconds, "new": finished.new,
            }  # fmt: skip
            if not as_json:
                show_experiment(finished)
    page = output / "report.html"
    if as_json:
        typer.echo(as_text({"experiments": reports, "page": str(page)}))
    else:
        typer.echo(f"All on one page: {page}")
