"""``diffbisim compress``: find the nearest chain with few states."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from diffbisim.cli import common as cli


@cli.app.command(epilog="Example: diffbisim compress chain.npz --states 5 --plot --output small.npz")
@cli.reports_errors
def compress(
    file: cli.File,
    n_states: Annotated[int, typer.Option("--states", help="Number of states of the small chain")] = 5,
    discount: cli.Discount = 0.95,
    model: Annotated[
        str, typer.Option(help="nearest; aggregate (averages over classes); or kinetic (keeps slow rates)")
    ] = "nearest",
    lag: Annotated[int, typer.Option(help="Number of steps of the chain per step of the small one")] = 1,
    restarts: Annotated[int, typer.Option(help="Number of restarts; the best result is kept")] = 8,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the encoder and the small chain to NAME-5-states.png")
    ] = False,
    rewards: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    initial: cli.Initial = None,
    constants: cli.Const = None,
    time_limit: cli.TimeLimit = None,
    checkpoint: cli.Checkpoint = None,
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: cli.ChainOutput = None,
) -> None:
    """Find the nearest chain with few states, its certified distance, and the small state of each state."""
    import diffbisim

    cli.check_output(output, *cli.CHAIN_FILES, ".json")
    cli.check_output(checkpoint, ".npz")
    chain = cli.read_chain_file(file, unseen=unseen, initial=initial, rewards=rewards, const=constants)
    if model != "kinetic":
        cli.need_rewards(chain, file, other="")
    began = time.perf_counter()
    result = diffbisim.compress(
        chain, n_states=n_states, discount=discount, model=model, lag=lag, rng=rng, restarts=restarts,
        time_limit=time_limit, checkpoint=checkpoint, progress=cli.is_interactive(),
    )  # fmt: skip
    slow = [[t if math.isfinite(t) else None for t in row] for row in result.implied_timescales.tolist()]
    facts = {
        "file": str(file), "n_states": chain.n_states, "small_states": n_states, "seed": rng,
        "start": cli.start_names(chain), "assignment": result.assignment.tolist(), "used": result.used,
        "model": result.model, "lag": result.lag, "timescales": slow[0], "small_timescales": slow[1],
    }  # fmt: skip
    if result.residual is not None:
        facts["residual"] = result.residual
    cli.emit_model(result, facts, time.perf_counter() - began, as_json=as_json, output=output)
    if plot:
        _draw(result, Path(f"{file.stem}-{n_states}-states.png"))


def _draw(result: Any, path: Path) -> None:
    from diffbisim.plot import chain, encoder
    from diffbisim.plot.style import new_figure

    figure = new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2)
    encoder(result, left)
    chain(result.chain, right)
    figure.savefig(path, dpi=160)
    cli.note(f"plot written to {path}")
