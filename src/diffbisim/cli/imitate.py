"""``diffbisim imitate``: find the policy whose chain is closest to an expert's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffbisim.cli import common as cli
from diffbisim.common.errors import InvalidArgument

if TYPE_CHECKING:
    from diffbisim.processes.mdp import MDP


@cli.app.command(epilog="Example: diffbisim imitate --env FrozenLake-v1 --expert walks.csv --output policy.csv")
@cli.reports_errors
def imitate(
    env: Annotated[str | None, typer.Option(help="A tabular Gymnasium environment", show_default=False)] = None,
    mdp: Annotated[Path | None, typer.Option(help="An MDP in PRISM's format (.tra)", show_default=False)] = None,
    expert: Annotated[
        Path | None,
        typer.Option(help="Observed states of the expert (default: an optimal policy at discount 0.99)"),
    ] = None,
    unseen: Annotated[
        str, typer.Option(help="Missing choices of states of the MDP: error, self-loop or uniform")
    ] = "error",
    rewards: Annotated[
        str | None,
        typer.Option(help="Name or number of the reward structure of --mdp, if it has several", show_default=False),
    ] = None,
    constants: cli.Const = None,
    discount: cli.Discount = 0.95,
    criterion: cli.Criterion = "discounted",
    horizon: cli.Horizon = None,
    tol: Annotated[float, typer.Option(help="Target distance")] = 1e-7,
    max_iterations: Annotated[int, typer.Option(help="Maximum number of policies to try")] = 300,
    checkpoint: cli.Checkpoint = None,
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".npz for everything, .csv for the policy, .json for numbers")
    ] = None,
) -> None:
    """Find the policy whose chain is closest to an expert's, from observed states alone."""
    import diffbisim

    cli.check_output(output, ".npz", ".csv", ".json")
    cli.check_output(checkpoint, ".npz")
    task, shown = _read_task(env, mdp, expert, {"unseen": unseen, "rewards": rewards, "constants": constants})
    began = time.perf_counter()
    result = diffbisim.imitate(
        task, shown, "indicator", discount, criterion=criterion, horizon=horizon, rng=rng, tol=tol,
        max_iterations=max_iterations, checkpoint=checkpoint, progress=cli.is_interactive(),
    )  # fmt: skip
    facts = {
        "environment": env or str(mdp), "expert": str(expert or "an optimal policy"), "seed": rng,
        "n_states": task.n_states, "n_actions": task.n_actions, "criterion": result.distance.problem.criterion,
        "converged": result.converged,
    }  # fmt: skip
    numbers = output if cli.suffix(output) == ".json" else None
    cli.emit_model(result, facts, time.perf_counter() - began, as_json=as_json, output=numbers)
    if output is not None and cli.suffix(output) == ".npz":
        result.save(output)
    elif output is not None and cli.suffix(output) == ".csv":
        _write_policy(task, result.policy, output)
    if not result.converged:
        raise cli.NotConverged(str(result.status))


def _write_policy(task: MDP, policy: Any, path: Path) -> None:
    """Write a table with one row per state and one column per action."""
    import numpy as np

    names = [str(name) for name in task.actions or [f"action{a}" for a in range(task.n_actions)]]
    table = np.column_stack([np.arange(task.n_states), policy])
    np.savetxt(path, table, ["%d", *["%.17g"] * len(names)], ",", header=f"state,{','.join(names)}", comments="")


def _read_task(env: str | None, mdp: Path | None, expert: Path | None, options: dict[str, Any]) -> tuple[MDP, Any]:
    """Return the MDP and the expert, from a file or as an optimal policy."""
    from diffbisim.io.chains import read_mdp
    from diffbisim.processes.environments import from_env
    from diffbisim.processes.planning import optimal_policy

    if (env is None) == (mdp is None):
        raise InvalidArgument("give either --env NAME (a Gymnasium environment) or --mdp FILE (PRISM's format)")
    task = from_env(_environment(env)) if env else read_mdp(cast(Path, mdp), **options)
    if expert is not None:
        return task, cli.read_observed(expert, const=cli.const_for(expert, options["constants"], mdp))
    if task.rewards is None:
        raise InvalidArgument(f"{env or mdp} has no rewards, so there is no optimal policy; give --expert FILE")
    return task, task.induced_chain(optimal_policy(task, 0.99))


def _environment(name: str) -> Any:
    from diffbisim.processes.environments import import_gymnasium

    gymnasium = import_gymnasium()
    try:
        return gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise InvalidArgument(f"--env {name}: {error}") from None
