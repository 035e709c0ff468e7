"""``diffbisim distance``: certified distance between the chains, timed chains or MDPs in two files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffbisim.cli import common as cli

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.results.base import DistanceResult


@cli.app.command(epilog="Example: diffbisim distance a.npz b.npz --discount 0.9 --json")
@cli.reports_errors
def distance(
    a: Annotated[Path, typer.Argument(metavar="A", help=cli.CHAIN, show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another chain, of any size", show_default=False)],
    cost: cli.Cost = "reward",
    discount: cli.Discount = 0.95,
    criterion: cli.Criterion = "discounted",
    horizon: cli.Horizon = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the times 0, 1, … of a finite horizon: 1,0.5,0.25, or a file", show_default=False
        ),
    ] = None,
    actions: Annotated[
        str | None, typer.Option(help="For two MDPs: matched (default), lax or directed", show_default=False)
    ] = None,
    solver: Annotated[
        str, typer.Option(help="exact, lp, sinkhorn-policy, sinkhorn-value or somcot (an estimate)")
    ] = "exact",
    tol: Annotated[
        float | None, typer.Option(help="Target for the certified gap, relative to the largest cost")
    ] = None,
    lump: Annotated[bool, typer.Option("--lump", help="First merge states that behave alike")] = False,
    lag: Annotated[
        float | None, typer.Option(help="Compare both chains at this lag, by powers of kernels", show_default=False)
    ] = None,
    initial_a: cli.Initial = None,
    initial_b: cli.Initial = None,
    rewards_a: cli.Rewards = None,
    rewards_b: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    constants: cli.Const = None,
    constants_b: Annotated[
        str | None, typer.Option("--const-b", help="Constants of B (default: those of A)", show_default=False)
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option(help="Maximum number of iterations (somcot: number of steps)", show_default=False)
    ] = None,
    time_limit: cli.TimeLimit = None,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler to solve on: tcp://host:8786", show_default=False)
    ] = None,
    checkpoint: cli.Checkpoint = None,
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: cli.ResultOutput = None,
) -> None:
    """Compute the distance between the Markov chains (or MDPs, or timed chains) in two files, with certified bounds."""
    from diffbisim.distances.chains import constant_cost
    from diffbisim.processes.convert import check_lags

    cli.check_output(output, ".npz", ".json")
    read = partial(cli.read_chain_file, unseen=unseen, any_kind=True)
    x = read(a, initial=initial_a, rewards=rewards_a, side="-a", const=cli.const_for(a, constants, b))
    y = read(b, initial=initial_b, rewards=rewards_b, side="-b", const=constants_b or cli.const_for(b, constants, a))
    if lag is not None:
        x, y = (_at_lag(chain, path, lag) for chain, path in ((x, a), (y, b)))
    with cli.warnings_as_notes(distance):
        check_lags((x, y))
    if cost == "reward":
        cli.need_rewards(x, a, "--rewards-a")
        cli.need_rewards(y, b, "--rewards-b")
    began = time.perf_counter()
    options: dict[str, Any] = {
        "max_iterations": max_iterations, **({"rng": rng} if solver == "somcot" else {}),
        "time_limit": time_limit, "cluster": cluster, "checkpoint": checkpoint,
    }  # fmt: skip
    chosen = _solver(solver, tol, options)
    arguments = {
        "cost": cli.read_cost(cost), "discount": discount, "criterion": criterion, "horizon": horizon,
        "weights": cli.read_weights(weights), "actions": actions, "lump": lump,
    }  # fmt: skip
    result = _solve((x, y), chosen, arguments)
    guesses = [str(path) for path, initial in ((a, initial_a), (b, initial_b)) if cli.start_is_a_guess(path, initial)]
    if guesses and _starts(x) != _starts(y):
        names = " and ".join(dict.fromkeys(guesses))
        cli.note(
            f"no initial state is given in {names}, so that of the first row is used; set others with --initial-a and "
            "--initial-b"
        )
    report = _report(result, (a, b), cost, time.perf_counter() - began)
    if remark := constant_cost(result.problem, arguments["cost"]):
        report["note"] = cli.command_line_message(remark, distance, {"b": b})
    cli.emit(report, _table(report), as_json=as_json, output=output)
    if output is not None and cli.suffix(output) == ".npz":
        result.save(output)
    if not result.converged and report["outcome"] != "estimate":
        raise cli.NotConverged(str(result.status))


def _at_lag(chain: Any, path: Path, lag: float) -> Any:
    """Return a chain observed at a longer lag."""
    from diffbisim.common.errors import InvalidArgument
    from diffbisim.processes.chain import MarkovChain

    if not isinstance(chain, MarkovChain):
        raise InvalidArgument(f"{path} holds a {type(chain).__name__}, and lag is for Markov chains; omit lag")
    return chain.at_lag(lag)


def _solver(name: str, tol: float | None, options: Mapping[str, Any]) -> Any:
    """Create a solver from its name and the given options."""
    from diffbisim.common.errors import InvalidArgument
    from diffbisim.distances.chains import make_solver

    given = {key: value for key, value in options.items() if value is not None}
    if name != "exact" and (others := given.keys() & {"cluster", "checkpoint"}):
        raise InvalidArgument(f"{min(others)} is for solver 'exact', not for {name!r}; omit it")
    return replace(make_solver(name, tol), **given)


def _solve(chains: tuple[Any, Any], solver: Any, arguments: Mapping[str, Any]) -> DistanceResult:
    """Compute the distance, showing iterations and certified gap on standard error."""
    from rich.console import Console

    import diffbisim
    from diffbisim.common.errors import quietly
    from diffbisim.common.progress import TimeLeft

    rows: list[Mapping[str, float]] = []
    left: TimeLeft | None = None
    with Console(stderr=True).status("solving", spinner="line") as line, quietly():  # the status is printed at the end

        def callback(row: Mapping[str, float]) -> None:
            nonlocal left
            rows.append(row)
            left = left or TimeLeft(
                (solver.tol or 0.0) * row["upper"]
            )  # the first upper bound is near the largest cost
            gap = row["upper"] - row["lower"]
            seconds = left(gap) if left.target > 0 else None
            more = "" if seconds is None else f", about {seconds:.0f} s left"
            line.update(f"iteration {len(rows)}, certified gap {gap:.1e}{more}")

        try:
            return diffbisim.distance(*chains, solver=solver, callback=callback, **arguments)
        except KeyboardInterrupt:
            known = f": {rows[-1]['lower']:.9g} <= d <= {rows[-1]['upper']:.9g} is certified" if rows else ""
            raise KeyboardInterrupt(f"interrupted after {len(rows)} iterations{known}") from None


def _starts(chain: Any) -> set[Any]:
    names = cli.first_names(chain)
    return {int(k) if names is None else names[k] for k in chain.initial.nonzero()[0]}


def _report(result: DistanceResult, files: tuple[Path, Path], cost: str, seconds: float) -> cli.Report:
    names = ("value", "lower", "upper", "gap", "property_bound", "meaning", "converged")
    return {
        **{name: getattr(result, name) for name in names},
        "outcome": result.outcome.name.lower(),
        **{name: getattr(result, name) for name in ("status", "iterations", "solver")},
        "cost": cost,
        **cli.problem_facts(result.problem),
        "chains": cli.two_chains(files, (result.problem.x, result.problem.y)),
        "work": dict(result.work),
        "seconds": round(seconds, 6),
    }


def _table(report: cli.Report) -> Table:
    steps = report["iterations"]
    return cli.sheet({
        "distance": f"{report['value']:.10g}",
        "certified": f"{report['lower']:.10g} ≤ d ≤ {report['upper']:.10g}",
        "gap": f"{report['gap']:.1e}",
        "meaning": report["meaning"],
        **({"note": report["note"]} if "note" in report else {}),
        "status": report["status"],
        "solver": f"{report['solver']}, {steps} iteration{'s' * (steps != 1)}, {report['seconds']:.3g} s with imports",
        **cli.problem_line(report),
        **cli.side_lines(report),
    })  # fmt: skip
