"""The command line.

    diffbisim distance A B      certified distance between the chains in two files
    diffbisim estimate A B      distance between two datasets, with a confidence interval
    diffbisim compare A B ...   test whether groups of sequences differ, and where
    diffbisim compress FILE     nearest chain with few states
    diffbisim fit FILE          parametrized model of a chain
    diffbisim imitate           policy whose chain is closest to an expert's
    diffbisim explore A B       interactive page: both chains, their coupling, where the cost is paid
    diffbisim info FILE         contents of a file: size, initial states, structure, lumping
    diffbisim lump FILE         merge states that behave alike
    diffbisim convert A B       convert from one format to another
    diffbisim reproduce         run the experiments: figures, tables and a report

Commands print a table or, with ``--json``, only JSON on standard output. Progress, notes and errors go to standard
error. Exit codes: 0 success, 2 invalid input, 3 not converged (valid bounds are printed), 130 interrupted.
``diffbisim --install-completion`` installs shell completion.

There is one module per command; common.py has shared code.
"""

from __future__ import annotations

from typing import Annotated

import typer

from diffbisim import __version__
from diffbisim.cli.common import app, print_everywhere

# Each module registers its command, in this order.
from diffbisim.cli import (  # isort: skip
    distance, estimate, compare, compress, fit, imitate, explore, info, lump, convert, reproduce,
)  # fmt: skip

__all__ = [
    "app", "compare", "compress", "convert", "distance", "estimate", "explore", "fit", "imitate", "info", "lump",
    "main", "reproduce",
]  # fmt: skip


def main() -> None:
    """Entry point of the ``diffbisim`` command."""
    print_everywhere()
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffbisim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    pass
