"""Commands that measure: ``distance`` between two chains, ``estimate`` between two sets of data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from diffbisim.cli.common import (
    CHAIN,
    Cost,
    Discount,
    Initial,
    Json,
    NotConverged,
    Rewards,
    Seed,
    Unseen,
    app,
    kind,
    reporting,
    typed,
    write_json,
)  # fmt: skip


@app.command(epilog="Example: diffbisim distance a.npz b.npz --discount 0.9 --json")
@reporting
def distance(
    a: Annotated[Path, typer.Argument(metavar="A", help=CHAIN, show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one, of any size", show_default=False)],
    cost: Cost = "reward",
    discount: Discount = 0.95,
    solver: Annotated[
        str, typer.Option(help="exact, lp, sinkhorn-policy, sinkhorn-value or somcot (an estimate)")
    ] = "exact",
    tol: Annotated[
        float | None, typer.Option(help="Certified gap, relative to the largest cost (default: the solver's)")
    ] = None,
    lump: Annotated[bool, typer.Option("--lump", help="First merge states that behave alike")] = False,
    initial_a: Initial = None,
    initial_b: Initial = None,
    rewards_a: Rewards = None,
    rewards_b: Rewards = None,
    unseen: Unseen = "error",
    max_iterations: Annotated[
        int | None, typer.Option(help="Give up after so many (somcot: its number of steps)", show_default=False)
    ] = None,
    time_limit: Annotated[float | None, typer.Option(help="Give up after so many seconds", show_default=False)] = None,
    rng: Seed = 0,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".npz for everything, .json for the numbers")
    ] = None,
) -> None:
    """Distance between the Markov chains in two files, with certified bounds."""
    from diffbisim.cli.reading import need_rewards, read_cost, read_file, save_target, tell_guesses
    from diffbisim.cli.showing import distance_report, distance_table, emit, solve_with_progress

    save_target(output, (".npz", ".json"))
    x = read_file(a, unseen=unseen, initial=initial_a, rewards=rewards_a, side="-a")
    y = read_file(b, unseen=unseen, initial=initial_b, rewards=rewards_b, side="-b")
    if cost == "reward":
        need_rewards((x, a, "--rewards-a"), (y, b, "--rewards-b"))
    began = time.perf_counter()
    options: dict[str, Any] = {"max_iterations": max_iterations}
    if solver == "somcot":
        options = {"steps": max_iterations, "rng": rng}
    options["time_limit"] = time_limit
    with typed(**({"steps": "--max-iterations"} if solver == "somcot" else {})):
        result = solve_with_progress((x, y), read_cost(cost), discount, solver, tol, lump, options)
    tell_guesses((x, a, initial_a), (y, b, initial_b))
    report = distance_report(result, (a, b), cost, time.perf_counter() - began)
    emit(report, distance_table(report), as_json=as_json)
    if output is not None and kind(output) == ".npz":
        result.save(output)
    elif output is not None:
        write_json(report, output)
    if not result.converged and report["outcome"] != "estimate":
        raise NotConverged(str(result.status))


DATA = "Observed transitions or trajectories (.csv, .tsv); a file with a chain is taken as known"


@app.command(epilog="Example: diffbisim estimate before.csv after.csv --cost indicator --confidence 0.9")
@reporting
def estimate(
    a: Annotated[Path, typer.Argument(metavar="A", help=DATA, show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other side", show_default=False)],
    cost: Cost = "reward",
    discount: Discount = 0.95,
    confidence: Annotated[float, typer.Option(help="Probability that the interval covers the true distance")] = 0.95,
    replicates: Annotated[int, typer.Option(help="Bootstrap samples")] = 200,
    initial_a: Initial = None,
    initial_b: Initial = None,
    rewards_a: Rewards = None,
    rewards_b: Annotated[
        Path | None, typer.Option(help="Rewards of B (default: those of A)", show_default=False)
    ] = None,
    unseen: Annotated[str, typer.Option(help="States never left: self-loop, uniform or error")] = "self-loop",
    rng: Seed = 0,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=".json for the numbers")] = None,
) -> None:
    """Distance between two processes of which only data are known, with a confidence interval."""
    from diffbisim import estimate as plug_in
    from diffbisim.cli.reading import read_both, read_cost, save_target, warnings_as_notes
    from diffbisim.cli.showing import bar, emit, estimate_report, estimate_table

    save_target(output, (".json",))
    x, y, rewards, initial = read_both((a, b), (rewards_a, rewards_b), (initial_a, initial_b), cost)
    began = time.perf_counter()
    with warnings_as_notes(initial="--initial-a and --initial-b"):
        found = plug_in(
            x, y, read_cost(cost), discount, rewards=rewards, initial=initial, unseen=cast(Any, unseen),
            confidence=confidence, replicates=replicates, rng=rng, progress=bar(),
        )  # fmt: skip
    report = estimate_report(found, (a, b), cost, rng, time.perf_counter() - began)
    emit(report, estimate_table(report), as_json=as_json)
    if output is not None:
        write_json(report, output)
