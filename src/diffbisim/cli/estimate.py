"""``diffbisim estimate``: the distance between two processes of which only data are known."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffbisim.cli import common as cli
from diffbisim.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.estimate import Estimate

DATA = "Observed transitions or trajectories (.csv, .tsv); a file with a chain is taken as known"


@cli.app.command(epilog="Example: diffbisim estimate before.csv after.csv --cost indicator --confidence 0.9")
@cli.reports_errors
def estimate(
    a: Annotated[Path, typer.Argument(metavar="A", help=DATA, show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other side", show_default=False)],
    cost: cli.Cost = "reward",
    discount: cli.Discount = 0.95,
    criterion: Annotated[str, typer.Option(help="discounted or average (long-run)")] = "discounted",
    confidence: Annotated[float, typer.Option(help="Probability that the interval covers the true distance")] = 0.95,
    permutations: Annotated[int, typer.Option(help="Permutations of whole episodes, for the test")] = 999,
    replicates: Annotated[int, typer.Option(help="Bootstrap samples")] = 200,
    initial_a: cli.Initial = None,
    initial_b: cli.Initial = None,
    rewards_a: cli.Rewards = None,
    rewards_b: Annotated[
        Path | None, typer.Option(help="Rewards of B (default: those of A)", show_default=False)
    ] = None,
    unseen: Annotated[str, typer.Option(help="States never left: self-loop, uniform or error")] = "self-loop",
    rng: cli.Seed = 0,
    as_json: cli.Json = False,
    output: cli.JsonOutput = None,
) -> None:
    """Distance between two processes of which only data are known, with a confidence interval."""
    from diffbisim import estimate as plug_in

    cli.check_output(output, ".json")
    (x, y), rewards, initial = read_both((a, b), (rewards_a, rewards_b), (initial_a, initial_b), cost)
    began = time.perf_counter()
    with warnings_as_notes(initial="--initial-a and --initial-b"):
        found = plug_in(
            x, y, cli.read_cost(cost), discount, criterion=criterion, rewards=rewards, initial=initial,
            unseen=cast(Any, unseen), confidence=confidence, permutations=permutations, replicates=replicates, rng=rng,
            progress=cli.somebody_watches(),
        )  # fmt: skip
    report = estimate_report(found, (a, b), cost, rng, time.perf_counter() - began)
    cli.emit(report, _table(report), as_json=as_json, output=output)


def estimate_report(found: Estimate, files: tuple[Path, Path], cost: str, seed: int, seconds: float) -> cli.Report:
    """An estimate for machines."""
    return {
        "value": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "confidence": found.confidence,
        "corrected": found.corrected,
        "bias": found.bias,
        "standard_error": found.standard_error,
        "p_value": found.p_value,
        "conclusion": found.conclusion,
        "method": found.method,
        "replicates": found.replicates.size,
        "cost": cost,
        "criterion": found.distance.problem.criterion,
        "discount": found.distance.discount,
        "seed": seed,
        "chains": cli.two_chains(files, (found.distance.problem.x, found.distance.problem.y)),
        "seconds": round(seconds, 6),
    }


def _table(report: cli.Report) -> Table:
    return cli.sheet({
        "distance": f"{report['value']:.6g} between the empirical chains",
        "interval": f"{report['lower']:.6g} to {report['upper']:.6g}, confidence {report['confidence']:g}",
        "corrected": f"{report['corrected']:.6g}, without what chance adds; bias of the bootstrap {report['bias']:.3g}",
        "equal?": f"p = {report['p_value']:.3g}: {report['conclusion']}",
        "test": report["method"],
        "bootstrap": f"{report['replicates']} replicates, seed {report['seed']}, {report['seconds']:.3g} s",
        **cli.asked_line(report),
        **cli.side_lines(report, "different transitions"),
    })  # fmt: skip


@contextmanager
def warnings_as_notes(**options: str) -> Iterator[None]:
    """Warnings from within as notes that name these options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        cli.note(cli.with_option_names(str(warning.message), options))


def read_both(
    files: tuple[Path, Path],
    rewards: tuple[Path | None, Path | None],
    initial: tuple[str | None, str | None],
    cost: str,
) -> tuple[list[Any], tuple[Any, Any], tuple[Any, Any]]:
    """Two sides, each as observed transitions or as a known chain, and the rewards and starts of those observed.

    With the cost "indicator" the states of both are one set: those that either has seen.
    """
    from diffbisim.chain import MarkovChain
    from diffbisim.checks import start_distribution, state_rewards
    from diffbisim.io.chains import read_transitions
    from diffbisim.io.files import naming

    given = (cli.read_rewards_of(files[0], rewards[0]), cli.read_rewards_of(files[1], rewards[1] or rewards[0]))
    sides: list[Any] = []
    for path, own, letter in zip(files, given, "ab", strict=True):
        with cli.naming_options(rewards=f"--rewards-{letter}"):
            sides.append(cli.read_observed(path, own))
    known = [isinstance(side, MarkovChain) for side in sides]
    if all(known):
        raise InvalidArgument(f"{files[0]} and {files[1]} are both chains, not data: use diffbisim distance")
    for side, own, path, letter in zip(sides, given, files, "ab", strict=True):
        if cost == "reward" and own is None and getattr(side, "rewards", None) is None:
            raise InvalidArgument(f"{path} has no rewards; give --rewards-{letter} FILE, or use --cost indicator")
    if cost == "indicator" and not any(known):
        one, two = sides
        if one.labels is not None and two.labels is not None:
            states: Any = sorted({*one.labels, *two.labels}, key=str)
        else:
            states = max(one.n_states, two.n_states)
        sides = [read_transitions(path, states=states) for path in files]
    starts = [None if text is None else cli.read_state(side, text) for side, text in zip(sides, initial, strict=True)]
    rules = ("first", "pooled", "empirical", "stationary")
    for k, side in enumerate(sides):  # refused here, where the options are known
        source = "ab"[k] if rewards[k] is not None else "a"
        with cli.naming_options(initial=f"--initial-{'ab'[k]}", rewards=f"--rewards-{source}"), naming(files[k]):
            rule = starts[k] is None or (isinstance(starts[k], str) and starts[k] in rules)
            if known[k]:
                sides[k] = side if rule else side.with_initial(starts[k])
                continue
            state_rewards(given[k], side.n_states, side.labels)
            if not rule:
                start_distribution(starts[k], side.n_states, {label: i for i, label in enumerate(side.labels or ())})
    return sides, given, (starts[0], starts[1])
