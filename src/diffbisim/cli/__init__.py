"""The command line.

    diffbisim distance A B      certified distance between the chains in two files
    diffbisim estimate A B      distance between two sets of data, with a confidence interval
    diffbisim compare A B ...   do groups of sequences differ, and where?
    diffbisim compress FILE     the nearest chain with few states
    diffbisim fit FILE          a parametrized model of a chain
    diffbisim imitate           the policy whose chain is closest to an expert's
    diffbisim explore A B       a page to look at: both chains, their coupling, where the cost is paid
    diffbisim info FILE         what is in a file: size, start, structure, how far it can be lumped
    diffbisim lump FILE         merge the states that behave alike
    diffbisim convert A B       from one format to another
    diffbisim reproduce         the experiments: figures, tables and a page about them

People get a table; with ``--json`` machines get JSON and nothing else on standard output. Progress, notes and errors
go to standard error. Exit codes: 0 done, 2 bad input (one line says which), 3 not converged (the bounds are printed
all the same, and true), 130 interrupted. ``diffbisim --install-completion`` teaches the shell to complete.

One module per command; common.py has what they share.
"""

from __future__ import annotations

from typing import Annotated

import typer

from diffbisim import __version__
from diffbisim.cli.common import app

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
