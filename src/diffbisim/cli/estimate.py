"""``diffbisim estimate``: estimate the distance between two processes from data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffbisim.cli import common as cli
from diffbisim.common.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.statistics.estimation import Estimate


@cli.app.command(epilog="Example: diffbisim estimate before.csv after.csv --cost indicator --confidence 0.9")
@cli.reports_errors
def estimate(
    a: Annotated[Path, typer.Argument(metavar="A", help=cli.OBSERVED, show_default=False)],
    b: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="The other dataset; omit it with --group", show_default=False)
    ] = None,
    cost: cli.Cost = "reward",
    discount: cli.Discount = 0.95,
    criterion: Annotated[str, typer.Option(help="discounted or average (long-run)")] = "discounted",
    horizon: cli.Horizon = None,
    confidence: Annotated[float, typer.Option(help="Probability that the interval covers the true distance")] = 0.95,
    permutations: cli.Permutations = 999,
    replicates: cli.Replicates = 200,
    initial_a: cli.Initial = None,
    initial_b: cli.Initial = None,
    rewards_a: cli.Rewards = None,
    rewards_b: Annotated[
        Path | None, typer.Option(help="Rewards of B (default: those of A)", show_default=False)
    ] = None,
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
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: cli.JsonOutput = None,
) -> None:
    """Estimate the distance between two processes from data, with a confidence interval and a test."""
    from diffbisim import estimate as estimated

    cli.check_output(output, ".json")
    events = cli.Events(
        id_column, time_column, state_column, session_gap, group_column, missing, end, every, cluster, strata,
        duplicates,
    )  # fmt: skip
    files, sides = read_sides(a, b, events, (rewards_a, rewards_b), constants)
    (x, y), rewards, initial = read_both(files, sides, (rewards_a, rewards_b), (initial_a, initial_b), cost)
    began = time.perf_counter()
    with cli.warnings_as_notes(estimate, initial="--initial-a and --initial-b"):
        found = estimated(
            x, y, cli.read_cost(cost), discount, criterion=criterion, horizon=horizon, rewards=rewards, initial=initial,
            unseen=cast(Any, unseen), confidence=confidence, permutations=permutations, replicates=replicates, rng=rng,
            progress=cli.is_interactive(),
        )  # fmt: skip
    report = estimate_report(found, files, cost, rng, time.perf_counter() - began)
    cli.emit(report, _table(report), as_json=as_json, output=output)


def estimate_report(found: Estimate, files: tuple[Path, Path], cost: str, seed: int, seconds: float) -> cli.Report:
    """Return an estimate as a report for JSON."""
    names = (
        "value", "lower", "upper", "confidence", "plug_in", "bias", "standard_error", "p_value", "conclusion", "remark",
        "method",
    )  # fmt: skip
    return {
        **{name: getattr(found, name) for name in names},
        "replicates": found.replicates.size,
        "assumed": cli.of_sides(found.assumed),
        "cost": cost,
        **cli.problem_facts(found.distance.problem),
        "seed": seed,
        "chains": cli.two_chains(files, (found.distance.problem.x, found.distance.problem.y)),
        "seconds": round(seconds, 6),
    }


def _table(report: cli.Report) -> Table:
    return cli.sheet({
        "distance": f"{report['value']:.6g}, corrected for sampling noise",
        "interval": f"{report['lower']:.6g} to {report['upper']:.6g}, confidence {report['confidence']:g}",
        "plug-in": f"{report['plug_in']:.6g} between the empirical chains; bootstrap bias {report['bias']:.3g}",
        "differ?": f"p = {report['p_value']:.3g}: {report['conclusion']}",
        "test": report["method"],
        **cli.interval_note(report),
        "bootstrap": f"{report['replicates']} replicates, seed {report['seed']}, {report['seconds']:.3g} s",
        **cli.problem_line(report),
        **cli.assumed_lines(report),
        **cli.side_lines(report, "different transitions"),
    })  # fmt: skip


def read_sides(
    a: Path, b: Path | None, events: cli.Events, rewards: tuple[Path | None, Path | None], const: str | None = None
) -> tuple[tuple[Path, Path], list[Any]]:
    """Read the two sides, each as observed transitions or as a known chain; also return their names."""
    if b is None:
        sides, names = events.two_groups(a)
        return (Path(names[0]), Path(names[1])), sides
    if events.group is not None:
        raise InvalidArgument(f"--group compares the groups of one file; omit {b}")
    found = []
    for path, own, letter in zip((a, b), (rewards[0], rewards[1] or rewards[0]), "ab", strict=True):
        with cli.naming_options(rewards=f"--rewards-{letter}"):
            given = cli.const_for(path, const, a, b)
            found.append(cli.read_observed(path, cli.read_rewards_of(path, own), events, given))
    return (a, b), found


def read_both(
    files: tuple[Path, Path],
    sides: list[Any],
    rewards: tuple[Path | None, Path | None],
    initial: tuple[str | None, str | None],
    cost: str,
) -> tuple[list[Any], tuple[Any, Any], tuple[Any, Any]]:
    """Validate the two sides and read their rewards and initial distributions.

    With the cost "indicator" both sides get the union of their states.
    """
    from diffbisim.common.checks import start_distribution, state_rewards
    from diffbisim.io.files import naming
    from diffbisim.processes.chain import MarkovChain

    given = (cli.read_rewards_of(files[0], rewards[0]), cli.read_rewards_of(files[1], rewards[1] or rewards[0]))
    known = [isinstance(side, MarkovChain) for side in sides]
    if all(known):
        raise InvalidArgument(f"{files[0]} and {files[1]} are both chains, not data; use diffbisim distance")
    for side, own, path, letter in zip(sides, given, files, "ab", strict=True):
        if cost == "reward" and own is None and getattr(side, "rewards", None) is None:
            raise InvalidArgument(f"{path} has no rewards; give --rewards-{letter} FILE, or use --cost indicator")
    if cost == "indicator" and not any(known):
        sides = on_the_same_states(sides)
    starts = [None if text is None else cli.read_state(side, text) for side, text in zip(sides, initial, strict=True)]
    rules = ("first", "pooled", "empirical", "stationary")
    for k, side in enumerate(sides):  # checked here so that errors can name the options
        source = "ab"[k] if rewards[k] is not None else "a"
        with cli.naming_options(initial=f"--initial-{'ab'[k]}", rewards=f"--rewards-{source}"), naming(files[k]):
            rule = starts[k] is None or (isinstance(starts[k], str) and starts[k] in rules)
            if known[k]:
                sides[k] = side if rule else side.with_initial(starts[k])
                continue
            state_rewards(side._with_end_reward(given[k]), side.n_states, side.names)
            if not rule:
                start_distribution(starts[k], side.n_states, {name: i for i, name in enumerate(side.names or ())})
    return sides, given, (starts[0], starts[1])


def on_the_same_states(data: Sequence[Any]) -> list[Any]:
    """Return datasets on the union of their states."""
    import numpy as np

    if all(side.names is None for side in data):
        return [replace(side, n_states=max(one.n_states for one in data)) for side in data]
    ends = list(dict.fromkeys(side.end for side in data if side.end is not None))
    known = {side.name_of(k) for side in data for k in range(side.n_states)} - set(ends)
    numbered = all(isinstance(name, int) for name in known)
    names = [*sorted(known, key=None if numbered else str), *ends]
    number = {name: k for k, name in enumerate(names)}
    sides = []
    for side in data:
        new = np.array([number[side.name_of(k)] for k in range(side.n_states)], dtype=np.int64)
        moved = {
            part: new[getattr(side, part)]
            for part in ("states", "next_states", "starts")
            if getattr(side, part) is not None
        }
        first = None if side.first is None else int(new[side.first])
        sides.append(replace(side, n_states=len(names), names=tuple(names), first=first, **moved))
    return sides
