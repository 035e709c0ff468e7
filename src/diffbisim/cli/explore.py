"""``diffbisim explore``: write an interactive page about two chains or about the compressions of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diffbisim.cli import common as cli
from diffbisim.common.errors import InvalidArgument


@cli.app.command(epilog="Example: diffbisim explore a.npz b.npz --output page.html")
@cli.reports_errors
def explore(
    a: Annotated[Path, typer.Argument(metavar="A", help=f"{cli.CHAIN}; or a result (.npz)", show_default=False)],
    b: Annotated[Path | None, typer.Argument(metavar="[B]", help="Another chain", show_default=False)] = None,
    states: Annotated[
        str | None,
        typer.Option(help="Instead of B: compress A to these sizes, such as 2,3,5 or 2:8", show_default=False),
    ] = None,
    cost: cli.Cost = "reward",
    discount: cli.Discount = 0.95,
    initial_a: cli.Initial = None,
    initial_b: cli.Initial = None,
    rewards_a: cli.Rewards = None,
    rewards_b: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    constants: cli.Const = None,
    id_column: cli.Id = None,
    time_column: cli.Time = None,
    state_column: cli.State = None,
    session_gap: cli.Gap = None,
    group_column: cli.Group = None,
    missing: cli.Missing = "error",
    end: cli.End = None,
    every: cli.Every = None,
    cluster: cli.Cluster = None,
    strata: cli.Strata = None,
    duplicates: cli.Duplicates = "warn",
    time_limit: cli.TimeLimit = None,
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page")] = Path("explore.html"),
) -> None:
    """Write an interactive page about two chains: graphs, coupling, where the cost is paid. It needs no network."""
    import diffbisim
    from diffbisim.common.errors import quietly
    from diffbisim.distances.chains import constant_cost
    from diffbisim.processes.convert import check_lags
    from diffbisim.results.page import explore as write

    cli.check_output(output, ".html", ".htm")
    events = cli.Events(
        id_column, time_column, state_column, session_gap, group_column, missing, end, every, cluster, strata,
        duplicates,
    )  # fmt: skip
    if group_column is None and (b is None) == (states is None) and not (b is None and cli.suffix(a) == ".npz"):
        raise InvalidArgument("give two chains A and B, or one chain and --states 2:8 for its compressions")
    names = (a.stem, "small" if b is None else b.stem if b.stem != a.stem else str(b))
    options: Any = {"rng": rng, "time_limit": time_limit, "progress": cli.is_interactive()}
    if b is None and states is None and group_column is None:
        result: Any = diffbisim.load(a, verify=True)
        names = ("X", "Y")
    elif states is not None:
        x = cli.read_chain_file(a, unseen=unseen, initial=initial_a, rewards=rewards_a, side="-a", const=constants)
        cli.need_rewards(x, a, "--rewards-a", "")
        result = diffbisim.compress_sweep(x, _sizes(states), discount, **options)
    else:
        if state_column is not None or b is None:
            names, (x, y) = _of_events(a, b, events, (rewards_a, rewards_b), (initial_a, initial_b), unseen)
        else:
            const_a, const_b = (cli.const_for(path, constants, a, b) for path in (a, b))
            x = cli.read_chain_file(a, unseen=unseen, initial=initial_a, rewards=rewards_a, side="-a", const=const_a)
            y = cli.read_chain_file(b, unseen=unseen, initial=initial_b, rewards=rewards_b, side="-b", const=const_b)
        if cost == "reward":
            cli.need_rewards(x, a, "--rewards-a", ", or use --cost indicator")
            cli.need_rewards(y, b or a, "--rewards-b")
        with cli.warnings_as_notes(explore):
            check_lags((x, y))
        with quietly():  # the page shows the status
            solver = diffbisim.solvers.Exact(time_limit=time_limit)
            result = diffbisim.distance(x, y, cost=cli.read_cost(cost), discount=discount, solver=solver)
        if remark := constant_cost(result.problem, cost):
            cli.note(cli.command_line_message(remark, explore, {"b": b}))
    page = write(result, output, names=names)
    found = [one.distance if hasattr(one, "distance") else one for one in getattr(result, "results", [result])]
    report = {"page": str(page), "names": list(names), "distances": [d.value for d in found]}
    bounds = [f"{d.lower:.6g} ≤ d ≤ {d.upper:.6g} ({d.problem.y.n_states} states)" for d in found]
    cli.emit(report, cli.sheet({"page": str(page), "distance": "\n".join(bounds)}), as_json=as_json)
    if show:
        typer.launch(page.resolve().as_uri())


def _of_events(
    a: Path, b: Path | None, events: cli.Events, rewards: tuple[Any, Any], initial: tuple[Any, Any], unseen: str
) -> tuple[tuple[str, str], list[Any]]:
    """Return the names and chains of two tables of events, or of two groups of one, on the union of their states."""
    from diffbisim.cli.estimate import on_the_same_states, read_sides

    files, sides = read_sides(a, b, events, rewards)
    chains = []
    for path, side, own, start in zip(files, on_the_same_states(sides), rewards, initial, strict=True):
        law = None if start is None else cli.read_state(side, start)
        given = cli.read_rewards_of(path, own or rewards[0])
        chains.append(side.chain(initial=law, rewards=given, unseen=unseen))
    names = [str(path).rpartition(" = ")[2] for path in files] if b is None else [path.stem for path in files]
    return (names[0], names[1]), chains


def _sizes(text: str) -> list[int]:
    """Parse "2,3,5", or "2:8", which includes both ends."""
    try:
        first, colon, last = text.partition(":")
        return list(range(int(first), int(last) + 1)) if colon else [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"--states {text}: give numbers of states such as 2,3,5 or 2:8") from None
