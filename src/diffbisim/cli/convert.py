"""``diffbisim convert``: convert a chain from one format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffbisim.cli import common as cli


@cli.app.command(epilog="Example: diffbisim convert observed.csv chain.npz --unseen self-loop")
@cli.reports_errors
def convert(
    source: cli.File,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Output file: .npz, .csv, .tsv or .tra", show_default=False)
    ],
    rewards: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    constants: cli.Const = None,
    initial: cli.Initial = None,
    as_json: cli.Json = False,
) -> None:
    """Convert a chain to another format; a note lists what the new format cannot store."""
    cli.check_output(target, *cli.CHAIN_FILES)
    chain = cli.read_chain_file(source, unseen=unseen, initial=initial, rewards=rewards, const=constants)
    if cli.start_is_a_guess(source, initial) and cli.suffix(target) in (".npz", ".tra"):
        cli.note(
            f"{source} has no initial state, so that of its first row, {cli.start_names(chain)[0]}, is used; set "
            "another with --initial"
        )
    lost = cli.save_chain(chain, target)
    cli.emit({"file": str(target), "n_states": chain.n_states, "lost": lost}, as_json=as_json)
