"""Commands that find models: ``compress``, ``fit`` and ``imitate``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffbisim.cli.common import (
    Discount,
    File,
    Initial,
    Json,
    NotConverged,
    Rewards,
    Seed,
    Unseen,
    app,
    kind,
    reporting,
    save_chain,
    write_json,
)  # fmt: skip

if TYPE_CHECKING:
    from diffbisim.chain import MarkovChain

ChainOutput = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the chain found (.npz, .csv, .tra), or the numbers (.json)")
]


@app.command(epilog="Example: diffbisim compress chain.npz --states 5 --plot --output small.npz")
@reporting
def compress(
    file: File,
    n_states: Annotated[int, typer.Option("--states", help="Number of states of the small chain")] = 5,
    discount: Discount = 0.95,
    restarts: Annotated[int, typer.Option(help="Searches from different beginnings; the best is kept")] = 8,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the encoder and the small chain: NAME-5-states.png, in this folder")
    ] = False,
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
    rng: Seed = 0,
    as_json: Json = False,
    output: ChainOutput = None,
) -> None:
    """The nearest chain with few states, its certified distance, and which small state stands for which."""
    import diffbisim
    from diffbisim.cli.showing import bar, start_names

    chain = _target(file, None, output, unseen=unseen, initial=initial, rewards=rewards)
    began = time.perf_counter()
    result = diffbisim.compress(chain, n_states=n_states, discount=discount, rng=rng, restarts=restarts, progress=bar())
    facts: dict[str, Any] = {"file": str(file), "n_states": chain.n_states, "small_states": n_states, "seed": rng}
    facts |= {"start": start_names(chain), "labels": result.labels.tolist()}
    _finish(result, time.perf_counter() - began, facts, as_json, output)
    if plot:
        _picture(result, Path(f"{file.stem}-{n_states}-states.png"))


@app.command(epilog="Example: diffbisim fit chain.npz --kernel masked --output fitted.npz")
@reporting
def fit(
    file: File,
    kernel: Annotated[
        str, typer.Option(help="full (any transition) or masked (those that the chain makes), a softmax in each row")
    ] = "full",
    cost: Annotated[str, typer.Option(help="reward, or indicator")] = "reward",
    discount: Discount = 0.95,
    steps: Annotated[int, typer.Option(help="At most so many")] = 200,
    tol: Annotated[float, typer.Option(help="Distance to reach, relative to the largest cost")] = 1e-8,
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
    rng: Seed = 0,
    as_json: Json = False,
    output: ChainOutput = None,
) -> None:
    """Fit a parametrized model to the chain in a file, by the exact gradient of the distance."""
    import diffbisim
    from diffbisim.cli.showing import bar, start_names
    from diffbisim.errors import InvalidArgument
    from diffbisim.fit import kernels

    if kernel not in ("full", "masked"):
        raise InvalidArgument(f"--kernel {kernel}: use full or masked")
    if cost not in ("reward", "indicator"):
        raise InvalidArgument(f"--cost {cost}: use reward or indicator")
    chain = _target(file, cost, output, unseen=unseen, initial=initial, rewards=rewards)
    model = kernels.Softmax(chain.n_states, rng=rng) if kernel == "full" else kernels.MaskedSoftmax(chain, rng=rng)
    began = time.perf_counter()
    result = diffbisim.fit(chain, model, cost, discount, steps=steps, tol=tol, progress=bar())
    facts: dict[str, Any] = {"file": str(file), "n_states": chain.n_states, "kernel": kernel, "cost": cost}
    facts |= {"start": start_names(chain), "seed": rng, "converged": result.converged}
    _finish(result, time.perf_counter() - began, facts, as_json, output)
    if not result.converged:
        raise NotConverged(str(result.status))


@app.command(epilog="Example: diffbisim imitate --env FrozenLake-v1 --expert walks.csv --output policy.csv")
@reporting
def imitate(
    env: Annotated[str | None, typer.Option(help="A Gymnasium environment with a table", show_default=False)] = None,
    mdp: Annotated[Path | None, typer.Option(help="Or an MDP in PRISM's format (.tra)", show_default=False)] = None,
    expert: Annotated[
        Path | None,
        typer.Option(help="What the expert was seen to do: states only (default: a policy optimal at discount 0.99)"),
    ] = None,
    unseen: Annotated[
        str, typer.Option(help="Choices that a state of the MDP does not have: error, self-loop or uniform")
    ] = "error",
    rewards: Annotated[
        str | None,
        typer.Option(
            help="Which rewards of the MDP in --mdp, by name or number, if it has several", show_default=False
        ),
    ] = None,
    discount: Discount = 0.95,
    tol: Annotated[float, typer.Option(help="Distance to reach")] = 1e-7,
    max_iterations: Annotated[int, typer.Option(help="Policies tried at most")] = 300,
    rng: Seed = 0,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".npz for everything, .csv for the policy, .json for numbers")
    ] = None,
) -> None:
    """The policy whose chain is closest to an expert's, from observed states alone."""
    import numpy as np

    from diffbisim import imitate as follow
    from diffbisim.cli.reading import read_task, save_target
    from diffbisim.cli.showing import bar

    save_target(output, (".npz", ".csv", ".json"))
    task, shown = read_task(env, mdp, expert, unseen, rewards)
    began = time.perf_counter()
    result = follow(task, shown, "indicator", discount, rng=rng, tol=tol, max_iterations=max_iterations, progress=bar())
    facts: dict[str, Any] = {"environment": env or str(mdp), "expert": str(expert or "an optimal policy"), "seed": rng}
    facts |= {"n_states": task.n_states, "n_actions": task.n_actions, "converged": result.converged}
    _finish(result, time.perf_counter() - began, facts, as_json, output if kind(output) == ".json" else None)
    if output is not None and kind(output) == ".npz":
        result.save(output)
    elif output is not None and kind(output) == ".csv":
        names = [str(name) for name in task.actions or [f"action{a}" for a in range(task.n_actions)]]
        table = np.column_stack([np.arange(task.n_states), result.policy])
        np.savetxt(output, table, ["%d", *["%.17g"] * len(names)], ",", header=f"state,{','.join(names)}", comments="")
    if not result.converged:
        raise NotConverged(str(result.status))


def _target(file: Path, cost: str | None, output: Path | None, **options: Any) -> MarkovChain:
    """The chain to approach; what could not be written in the end, or compared, is refused at once."""
    from diffbisim.cli.reading import need_rewards, read_file, save_target

    save_target(output, (".npz", ".csv", ".tsv", ".tra", ".json"))
    chain = read_file(file, **options)
    if cost is None:  # no choice
        need_rewards((chain, file, "--rewards"), other="")
    elif cost == "reward":
        need_rewards((chain, file, "--rewards"))
    return chain


def _finish(result: Any, seconds: float, facts: dict[str, Any], as_json: bool, output: Path | None) -> None:
    from diffbisim.cli.showing import emit, model_report, model_table

    report = model_report(result, seconds, **facts)
    emit(report, model_table(report), as_json=as_json)
    if output is not None and kind(output) == ".json":
        write_json(report, output)
    elif output is not None:
        save_chain(result.chain, output)


def _picture(result: Any, path: Path) -> None:
    from diffbisim.cli.showing import note
    from diffbisim.plot import chain, encoder
    from diffbisim.plot.style import new_figure

    figure = new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2)
    encoder(result, left)
    chain(result.chain, right)
    figure.savefig(path, dpi=160)
    note(f"picture: {path}")
