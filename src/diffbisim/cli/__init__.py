"""The command line: a distance, a look at a file, a quotient, a conversion, the experiments.

    diffbisim distance A B      certified distance between the chains in two files
    diffbisim info FILE         what is in a file: size, start, structure, how far it can be lumped
    diffbisim lump FILE         merge the states that behave alike
    diffbisim convert A B       from one format to another
    diffbisim reproduce         the demonstration: figures and tables

People get a table; with ``--json`` machines get JSON and nothing else on standard output. Progress, notes and errors
go to standard error. Exit codes: 0 done, 2 bad input (one line says which), 3 not converged (the bounds are printed
all the same, and true), 130 interrupted.

Everything heavy is imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec

import typer

from diffbisim import __version__
from diffbisim.errors import DiffbisimError

INVALID, NOT_CONVERGED, INTERRUPTED = 2, 3, 130

P = ParamSpec("P")

app = typer.Typer(
    help="Distances between Markov processes that respect time, with certified accuracy.",
    epilog="Exit codes: 0 done, 2 bad input, 3 not converged (bounds are printed), 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CHAIN = "A Markov chain: .npz, .csv, .tsv or PRISM .tra"

File = Annotated[Path, typer.Argument(metavar="FILE", help=CHAIN, show_default=False)]
Unseen = Annotated[str, typer.Option(help="States never left: error, self-loop, uniform or drop")]
Rewards = Annotated[Path | None, typer.Option(help="Rewards: table state,reward, or .npy", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output")]
Initial = Annotated[str | None, typer.Option(help="Start: a label or a number", show_default=False)]


def main() -> None:
    """Entry point of the ``diffbisim`` command."""
    app()


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Errors of the user's making end in one line and an exit code; those of ours keep their traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:  # the reader of a pipe has seen enough
            raise
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), INVALID)
        except MemoryError as error:
            fail(f"not enough memory: {error}" if str(error) else "not enough memory", INVALID)
        except DiffbisimError as error:
            fail(str(error), INVALID)
        except KeyboardInterrupt as error:
            fail(str(error) or "interrupted", INTERRUPTED)

    return run


def fail(message: str, code: int) -> NoReturn:
    typer.echo(f"diffbisim: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffbisim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: diffbisim distance a.npz b.npz --discount 0.9 --json")
@reporting
def distance(
    a: Annotated[Path, typer.Argument(metavar="A", help=CHAIN, show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one, of any size", show_default=False)],
    cost: Annotated[
        str,
        typer.Option(help="reward, indicator, or a table of numbers (.npy, .csv, .tsv): n_A rows, n_B columns"),
    ] = "reward",
    discount: Annotated[float, typer.Option(help="Weight of the next step, between 0 and 1")] = 0.95,
    solver: Annotated[str, typer.Option(help="exact, lp, sinkhorn-policy or sinkhorn-value")] = "exact",
    tol: Annotated[
        float | None, typer.Option(help="Certified gap, relative to the largest cost (default: the solver's)")
    ] = None,
    lump: Annotated[bool, typer.Option("--lump", help="First merge states that behave alike")] = False,
    initial_a: Initial = None,
    initial_b: Initial = None,
    rewards_a: Rewards = None,
    rewards_b: Rewards = None,
    unseen: Unseen = "error",
    max_iterations: Annotated[int | None, typer.Option(help="Give up after so many", show_default=False)] = None,
    time_limit: Annotated[float | None, typer.Option(help="Give up after so many seconds", show_default=False)] = None,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".npz for everything, .json for the numbers")
    ] = None,
) -> None:
    """Distance between the Markov chains in two files, with certified bounds."""
    from diffbisim.cli.reading import need_rewards, read_cost, read_file, save_target
    from diffbisim.cli.showing import distance_report, distance_table, emit, solve_with_progress

    save_target(output, (".npz", ".json"))
    x = read_file(a, unseen=unseen, initial=initial_a, rewards=rewards_a)
    y = read_file(b, unseen=unseen, initial=initial_b, rewards=rewards_b)
    if cost == "reward":
        need_rewards((x, a, "--rewards-a"), (y, b, "--rewards-b"))
    began = time.perf_counter()
    options = {"max_iterations": max_iterations, "time_limit": time_limit}
    result = solve_with_progress((x, y), read_cost(cost), discount, solver, tol, lump, options)
    report = distance_report(result, (a, b), cost, time.perf_counter() - began)
    emit(report, distance_table(report), as_json=as_json)
    if output is not None and output.suffix == ".npz":
        result.save(output)
    elif output is not None:
        _write_json(report, output)
    if not result.converged:
        fail(f"not converged. {result.status}", NOT_CONVERGED)


@app.command(epilog="Example: diffbisim info chain.tra --unseen self-loop")
@reporting
def info(
    file: File,
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
    as_json: Json = False,
) -> None:
    """What is in a file: size, start, rewards, structure, and how far it can be lumped."""
    from diffbisim.cli.reading import read_file
    from diffbisim.cli.showing import emit, info_report, info_table

    report = info_report(read_file(file, unseen=unseen, initial=initial, rewards=rewards), file)
    emit(report, info_table(report), as_json=as_json)


@app.command(epilog="Example: diffbisim lump chain.npz --output quotient.npz")
@reporting
def lump(
    file: File,
    tol: Annotated[float, typer.Option(help="Probabilities this close count as equal")] = 1e-12,
    rewards: Rewards = None,
    unseen: Unseen = "error",
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the quotient chain here")] = None,
) -> None:
    """Merge the states that have equal rewards and behave alike; the quotient has distance zero to the chain."""
    from diffbisim import lump as merge
    from diffbisim import write_chain
    from diffbisim.cli.reading import read_file, save_target
    from diffbisim.cli.showing import emit, lump_report, lump_table, lump_title, note

    save_target(output, (".npz", ".csv", ".tsv", ".tra"))
    chain = read_file(file, unseen=unseen, rewards=rewards)
    if chain.rewards is None:
        note(f"{file} has no rewards, so all states look alike and make one class; give --rewards")
    lumping = merge(chain, tol=tol)
    emit(lump_report(chain, lumping, file), lump_title(lumping, file), lump_table(chain, lumping), as_json=as_json)
    if output is not None:
        _write_chain(lumping.chain, output, write_chain)


@app.command(epilog="Example: diffbisim convert observed.csv chain.npz --unseen self-loop")
@reporting
def convert(
    source: File,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Where to: .npz, .csv, .tsv or .tra", show_default=False)
    ],
    rewards: Rewards = None,
    unseen: Unseen = "error",
    initial: Initial = None,
) -> None:
    """Read a chain and write it in another format; a note says what the new format cannot hold."""
    from diffbisim import write_chain
    from diffbisim.cli.reading import read_file, save_target

    save_target(target, (".npz", ".csv", ".tsv", ".tra"))
    _write_chain(read_file(source, unseen=unseen, initial=initial, rewards=rewards), target, write_chain)


@app.command(epilog="Example: diffbisim reproduce imitation_chain --full --output results")
@reporting
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments to run; all if none is named")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures and tables")] = Path("results"),
    full: Annotated[bool, typer.Option("--full", help="Thorough settings: minutes instead of seconds")] = False,
) -> None:
    """Run the experiments: print their tables, write figures (.png), tables (.csv) and numbers (.json)."""
    from diffbisim.cli.showing import show_experiment
    from diffbisim.experiments import run_all

    for finished in run_all(output, names or (), full=full):
        show_experiment(finished)


def _write_json(report: dict[str, Any], path: Path) -> None:
    from diffbisim.cli.showing import as_text
    from diffbisim.data.tables import replacing

    with replacing(path) as file:
        file.write(as_text(report) + "\n")


def _write_chain(chain: Any, path: Path, write: Callable[[Any, Path], None]) -> None:
    from diffbisim.cli.showing import note

    write(chain, path)
    lost = {".npz": (), ".tra": ("labels",)}.get(path.suffix.lower(), ("rewards",))
    missing = [what for what in lost if getattr(chain, what) is not None]
    if path.suffix.lower() in (".csv", ".tsv") and chain.initial[0] != 1.0:
        missing.append("start")
    if missing:
        note(f"{path} cannot hold the {' and the '.join(missing)}; .npz can")
