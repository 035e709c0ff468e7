"""``diffbisim compare``: test whether groups of sequences differ, and where."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffbisim.cli import common as cli
from diffbisim.cli.estimate import estimate_report, on_the_same_states, read_both, read_sides
from diffbisim.common.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table


@cli.app.command(epilog="Example: diffbisim compare before.csv after.csv --cost indicator --seed 1")
@cli.reports_errors
def compare(
    files: Annotated[
        list[Path], typer.Argument(metavar="A B [C ...]", help=f"{cli.OBSERVED}; two or more", show_default=False)
    ],
    cost: cli.Cost = "reward",
    discount: cli.Discount = 0.95,
    alpha: Annotated[
        float, typer.Option(help="Level of the test; the interval of two groups has the confidence 1 - alpha")
    ] = 0.05,
    permutations: cli.Permutations = 999,
    replicates: cli.Replicates = 200,
    initial: Annotated[
        str | None,
        typer.Option(
            help="Initial distribution: first, pooled, empirical, stationary, or a state (name or index)",
            show_default=False,
        ),
    ] = None,
    rewards: cli.Rewards = None,
    unseen: cli.UnseenOfData = "self-loop",
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
    top: Annotated[int, typer.Option(help="Number of rows, states and pairs to list")] = 8,
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: cli.JsonOutput = None,
) -> None:
    """Test whether groups of sequences differ, and in which states; for two groups also estimate by how much."""
    import diffbisim as db
    from diffbisim.common.checks import check_probability

    cli.check_output(output, ".json")
    confidence = 1 - check_probability(alpha, "alpha")
    events = cli.Events(
        id_column, time_column, state_column, session_gap, group_column, missing, end, every, cluster, strata,
        duplicates,
    )  # fmt: skip
    began = time.perf_counter()
    options: dict[str, Any] = {
        "discount": discount, "unseen": cast(Any, unseen), "permutations": permutations, "rng": rng,
        "progress": cli.is_interactive(),
    }  # fmt: skip
    groups = _read_groups(files, events)
    if groups is None or len(groups) == 2:
        pair, sides = _read_pair(files, groups, events, rewards, constants)
        (x, y), given, start = read_both(pair, sides, (rewards, None), (initial, initial), cost)
        with cli.warnings_as_notes(compare):
            found = db.estimate(
                x,
                y,
                cli.read_cost(cost),
                rewards=given,
                initial=start,
                replicates=replicates,
                confidence=confidence,
                **options,
            )
        report = estimate_report(found, pair, cost, rng, time.perf_counter() - began)
        parts = found.contributions()
        causes = parts.given is not None or parts.reason is None
        report["rows"] = _plain(parts.records("rows", top)) if causes else []
        report["paid"] = _plain(parts.records("pairs", top))
        cli.emit(report, _two(report), *parts.tables(top), as_json=as_json, output=output)
        return
    own = cli.read_rewards_of(files[0], rewards)
    if cost == "reward" and own is None:
        raise InvalidArgument("the groups have no rewards; give --rewards FILE, or use --cost indicator")
    state = None if initial is None else cli.read_state(next(iter(groups.values())), initial)
    with cli.warnings_as_notes(compare):
        several = db.compare(groups, cli.read_cost(cost), rewards=own, initial=state, alpha=alpha, **options)
    report = {
        "groups": [str(name) for name in groups],
        "p_value": several.p_value,
        "conclusion": several.conclusion,
        "pairs": _plain(several.records()),
        "assumed": list(several.assumed),
        "alpha": alpha,
        "permutations": permutations,
        "cost": cost,
        "discount": discount,
        "seed": rng,
        "seconds": round(time.perf_counter() - began, 6),
    }
    cli.emit(report, str(several), cli.sheet(cli.assumed_lines(report)), as_json=as_json, output=output)


def _two(report: cli.Report) -> Table:
    return cli.sheet({
        "differ?": f"p = {report['p_value']:.3g}: {report['conclusion']}",
        "method": f"{report['method']}, seed {report['seed']}, {report['seconds']:.3g} s",
        "distance": f"{report['value']:.6g}; between the empirical chains {report['plug_in']:.6g}",
        "interval": f"{report['lower']:.6g} to {report['upper']:.6g}, confidence {report['confidence']:g}",
        **cli.interval_note(report),
        **cli.problem_line(report),
        **cli.assumed_lines(report),
        **cli.side_lines(report, "different transitions"),
    })  # fmt: skip


def _read_groups(files: Sequence[Path], events: cli.Events) -> dict[Any, Any] | None:
    """Read the groups of one file or of more than two, on the union of their states; return None for two files."""
    from diffbisim.processes.chain import Transitions

    if len(files) == 1:
        return events.groups(files[0])
    if len(files) == 2:
        return None
    if events.group is not None:
        raise InvalidArgument(f"--group compares the groups of one file; omit {' and '.join(map(str, files[1:]))}")
    read = [cli.read_observed(path, events=events) for path in files]
    for path, one in zip(files, read, strict=True):
        if not isinstance(one, Transitions):
            raise InvalidArgument(f"{path} contains a chain; comparing several groups needs observed data")
    names = [path.stem for path in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in files]
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise InvalidArgument(f"{twice[0]} is given twice; give every group once")
    return dict(zip(names, on_the_same_states(read), strict=True))


def _read_pair(
    files: Sequence[Path], groups: dict[Any, Any] | None, events: cli.Events, rewards: Path | None, const: str | None
) -> tuple[tuple[Path, Path], list[Any]]:
    """Return two sides and their names: two groups of one file, or two files."""
    if groups is None:
        return read_sides(files[0], files[1], events, (rewards, None), const)
    one, two = events.titles(files[0], groups)
    return (Path(one), Path(two)), list(groups.values())


def _plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert records to JSON values: names become strings, and infinite numbers too."""
    return [
        {k: v if isinstance(v, (str, int, bool)) or (isinstance(v, float) and abs(v) < float("inf")) else repr(v)
         for k, v in record.items()}
        for record in records
    ]  # fmt: skip
