"""What the commands share: the application, its manners, and the options that mean the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec

import typer

from diffbisim.errors import DiffbisimError

INVALID, NOT_CONVERGED, INTERRUPTED = 2, 3, 130

P = ParamSpec("P")

app = typer.Typer(
    help="Distances between Markov processes that respect time, with certified accuracy.",
    epilog="Exit codes: 0 done, 2 bad input, 3 not converged (bounds are printed), 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CHAIN = "A Markov chain: .npz, .csv, .tsv or PRISM .tra"

File = Annotated[Path, typer.Argument(metavar="FILE", help=CHAIN, show_default=False)]
Unseen = Annotated[str, typer.Option(help="States never left: error, self-loop, uniform or drop")]
Rewards = Annotated[Path | None, typer.Option(help="Rewards: table state,reward, or .npy", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output")]
Initial = Annotated[str | None, typer.Option(help="Start: a label or a number", show_default=False)]
Discount = Annotated[float, typer.Option(help="Weight of the next step, between 0 and 1")]
Seed = Annotated[int, typer.Option(help="Of everything random: the same seed, the same answer")]
Cost = Annotated[
    str, typer.Option(help="reward, indicator, or a table of numbers (.npy, .csv, .tsv): n_A rows, n_B columns")
]


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


def kind(path: Path | None) -> str:
    """What to write, by the extension; upper case is the same."""
    return "" if path is None else path.suffix.lower()


def write_json(report: dict[str, Any], path: Path) -> None:
    from diffbisim.cli.showing import as_text
    from diffbisim.data.tables import replacing

    with replacing(path) as file:
        file.write(as_text(report) + "\n")


def save_chain(chain: Any, path: Path) -> list[str]:
    """Write a chain; a note says what the format cannot hold, and so does the list."""
    from diffbisim import write_chain
    from diffbisim.cli.showing import note

    write_chain(chain, path)
    lost = {".npz": (), ".tra": ("labels",)}.get(kind(path), ("rewards",))
    missing = [what for what in lost if getattr(chain, what) is not None]
    if kind(path) in (".csv", ".tsv") and chain.initial[0] != 1.0:
        missing.append("start")
    if missing:
        note(f"{path} cannot hold the {' and the '.join(missing)}; .npz can")
    return missing
