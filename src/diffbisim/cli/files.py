"""Commands about one file: ``info``, ``lump`` and ``convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffbisim import __version__
from diffbisim.cli.common import (
    File,
    Initial,
    Json,
    Rewards,
    Unseen,
    app,
    reporting,
    save_chain,
    write_json,
)  # fmt: skip


@app.command(epilog="Example: diffbisim info chain.tra --unseen self-loop")
@reporting
def info(
    file: File,
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=".json for the numbers")] = None,
) -> None:
    """What is in a file: size, start, rewards, structure, and how far it can be lumped."""
    from diffbisim.cli.reading import read_file, save_target, start_source
    from diffbisim.cli.showing import emit, info_report, info_table

    save_target(output, (".json",))
    chain = read_file(file, unseen=unseen, initial=initial, rewards=rewards)
    report = info_report(chain, file, start_source(file, initial))
    emit(report, info_table(report), as_json=as_json)
    if output is not None:
        write_json(report, output)


@app.command(epilog="Example: diffbisim lump chain.npz --output quotient.npz")
@reporting
def lump(
    file: File,
    tol: Annotated[float, typer.Option(help="Probabilities this close count as equal")] = 1e-12,
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the quotient chain here")] = None,
) -> None:
    """Merge the states that have equal rewards and behave alike; the quotient has distance zero to the chain."""
    from diffbisim import lump as merge
    from diffbisim.cli.reading import read_file, save_target
    from diffbisim.cli.showing import emit, lump_report, lump_table, lump_title, note

    save_target(output, (".npz", ".csv", ".tsv", ".tra"))
    chain = read_file(file, unseen=unseen, initial=initial, rewards=rewards)
    if chain.rewards is None:
        note(f"{file} has no rewards, so all states look alike and make one class; give --rewards")
    lumping = merge(chain, tol=tol)
    emit(lump_report(chain, lumping, file), lump_title(lumping, file), lump_table(chain, lumping), as_json=as_json)
    if output is not None:
        save_chain(lumping.chain, output)


@app.command(epilog="Example: diffbisim convert observed.csv chain.npz --unseen self-loop")
@reporting
def convert(
    source: File,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Where to: .npz, .csv, .tsv or .tra", show_default=False)
    ],
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
    as_json: Json = False,
) -> None:
    """Read a chain and write it in another format; a note says what the new format cannot hold."""
    from diffbisim.cli.reading import guessed_start, read_file, save_target
    from diffbisim.cli.showing import as_text, note, start_names

    save_target(target, (".npz", ".csv", ".tsv", ".tra"))
    chain = read_file(source, unseen=unseen, initial=initial, rewards=rewards)
    if guessed_start(source, initial) and target.suffix.lower() in (".npz", ".tra"):
        note(
            f"{source} does not name a start; that of its first row, {start_names(chain)[0]}, is kept: "
            "--initial names another"
        )
    lost = save_chain(chain, target)
    if as_json:
        print(as_text({"file": str(target), "n_states": chain.n_states, "lost": lost, "version": __version__}))
