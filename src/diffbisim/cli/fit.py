"""``diffbisim fit``: fit a parametrized model to the chain in a file."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from diffbisim.cli import common as cli
from diffbisim.common.errors import InvalidArgument


@cli.app.command(epilog="Example: diffbisim fit chain.npz --kernel masked --output fitted.npz")
@cli.reports_errors
def fit(
    file: cli.File,
    kernel: Annotated[
        str, typer.Option(help="Softmax rows: full (any transition) or masked (the transitions of the chain)")
    ] = "full",
    cost: Annotated[str, typer.Option(help="reward or indicator")] = "reward",
    discount: cli.Discount = 0.95,
    criterion: cli.Criterion = "discounted",
    horizon: cli.Horizon = None,
    max_iterations: Annotated[int, typer.Option(help="Maximum number of iterations")] = 200,
    tol: Annotated[float, typer.Option(help="Target distance, relative to the largest cost")] = 1e-8,
    rewards: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    initial: cli.Initial = None,
    constants: cli.Const = None,
    checkpoint: cli.Checkpoint = None,
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: cli.ChainOutput = None,
) -> None:
    """Fit a parametrized model to the chain in a file, using the exact gradient of the distance."""
    import diffbisim
    from diffbisim.learning.fit import kernels

    if kernel not in ("full", "masked"):
        raise InvalidArgument(f"--kernel {kernel}: use full or masked")
    if cost not in ("reward", "indicator"):
        raise InvalidArgument(f"--cost {cost}: use reward or indicator")
    cli.check_output(output, *cli.CHAIN_FILES, ".json")
    cli.check_output(checkpoint, ".npz")
    chain = cli.read_chain_file(file, unseen=unseen, initial=initial, rewards=rewards, const=constants)
    if cost == "reward":
        cli.need_rewards(chain, file)
    model = kernels.Softmax(chain.n_states, rng=rng) if kernel == "full" else kernels.MaskedSoftmax(chain, rng=rng)
    began = time.perf_counter()
    result = diffbisim.fit(
        chain, model, cost, discount, criterion=criterion, horizon=horizon, max_iterations=max_iterations, tol=tol,
        checkpoint=checkpoint, progress=cli.is_interactive(),
    )  # fmt: skip
    facts = {
        "file": str(file), "n_states": chain.n_states, "kernel": kernel, "cost": cost, "start": cli.start_names(chain),
        "seed": rng, "criterion": result.distance.problem.criterion, "converged": result.converged,
    }  # fmt: skip
    cli.emit_model(result, facts, time.perf_counter() - began, as_json=as_json, output=output)
    if not result.converged:
        raise cli.NotConverged(str(result.status))
