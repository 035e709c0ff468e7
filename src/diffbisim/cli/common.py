"""What the commands share: the application, its manners, and the options that mean the same everywhere.

Errors are the library's own, and name its arguments. `said_here` says them in the words of the command line:
``unseen="self-loop"`` becomes ``--unseen self-loop``. For that the parameters of a command have the names of the
arguments that they set, whatever the option is called (``rng: Seed`` is ``--seed``); where one option per file sets the
same argument (``--initial-a``), `typed` says which one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, get_type_hints

import typer
import typer.models

from diffbisim.errors import DiffbisimError
from diffbisim.io.files import replacing

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
Rewards = Annotated[
    Path | None,
    typer.Option(
        help="Rewards: table state,reward, or .npy; of a .tra file also the name of one of its own", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output")]
Initial = Annotated[
    str | None,
    typer.Option(
        help="Start: a label or a number (default: that of the file; of edges and transitions, that of the first row)",
        show_default=False,
    ),
]
Discount = Annotated[float, typer.Option(help="Weight of the next step, between 0 and 1")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random: the same seed, the same answer")]
Cost = Annotated[
    str, typer.Option(help="reward, indicator, or a table of numbers (.npy, .csv, .tsv): n_A rows, n_B columns")
]


class NotConverged(Exception):
    """A run that ended too early; its result has been shown, and the message says how it ended."""


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
        except (DiffbisimError, NotConverged) as error:
            message = said_here(str(error), command, kwargs)
            if isinstance(error, NotConverged):
                fail(f"not converged. {message}", NOT_CONVERGED)
            fail(message, INVALID)
        except KeyboardInterrupt as error:
            fail(str(error) or "interrupted", INTERRUPTED)

    return run


#: What the library says of itself, and what that is on the command line.
ELSEWHERE = {
    "read it with read_mdp": "diffbisim imitate --mdp reads it",
    "read it with read_chain": "the other commands read it",
    "write_chain": "diffbisim convert",
    "states=[...]": "states=[...] in Python",
    "warm=result": "warm=result in Python",
    "diffbisim.distance": "diffbisim distance",
    "a bare array": "a .npy vector",
    "pass cost= an array": "in Python, pass cost= an array",
    "discretize it first": "discretize it in Python",
    ', or format="csv", "npz" or "prism"': "",
}


def as_typed(message: str, options: Mapping[str, str]) -> str:
    """A message in which arguments of the library are named by the options that set them.

    An argument is recognized where it is assigned (``tol=1e-8``), where something is said of it (``tol is -1``, ``raise
    steps``), and, if its name cannot be a word of English (``max_iterations``), anywhere.
    """
    for name, option in options.items():
        alone = rf"(?<![\w.\-\"'/]){name}"
        message = re.sub(rf"{alone}=True\b", option, message)
        message = re.sub(rf'{alone}="([^"]*)"', rf"{option} \1", message)
        message = re.sub(rf"{alone}=(?=[\w.\[{{])|{alone} = ", f"{option} ", message)
        message = re.sub(rf"{alone}=|{alone}(?=$|[:\[]| (?:is|has|names|sums|must)\b| ['\"])", option, message)
        message = re.sub(rf"\b(raise (?:\S+ or )?){name}\b", rf"\1{option}", message)
        if "_" in name:
            message = re.sub(rf"{alone}\b", option, message)
    return message


def said_here(message: str, command: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The message of an error as this command says it; the names of files that were given stay as they are."""
    options, (x, y) = options_of(command), "XY" if "b" not in arguments else "AB"
    files = sorted((str(value) for value in arguments.values() if isinstance(value, Path)), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, files))})", message) if files else [message]
    for k in range(0, len(parts), 2):  # every other one is a file
        for there, here in ELSEWHERE.items():
            parts[k] = parts[k].replace(there, here)
        parts[k] = re.sub(r"(\b|\bn_)X\b(?!['\"])", rf"\1{x}", as_typed(parts[k], options))
        parts[k] = re.sub(r"(\b|\bn_)Y\b(?!['\"])", rf"\1{y}", parts[k])
    return "".join(parts)


def options_of(command: Callable[..., Any]) -> dict[str, str]:
    """The options of a command by the names of its parameters: {"rng": "--seed", …}."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, typer.models.OptionInfo):
                words = (option.default, *(option.param_decls or ()))  # the first one is kept as the default
                declared = (word for word in words if isinstance(word, str) and word.startswith("--"))
                found[name] = next(declared, f"--{name.replace('_', '-')}")
    return found


@contextmanager
def typed(**options: str) -> Iterator[None]:
    """Errors from within name these options instead of the library's arguments."""
    try:
        yield
    except DiffbisimError as error:
        raise type(error)(as_typed(str(error), options)) from None


def fail(message: str, code: int) -> NoReturn:
    typer.echo(f"diffbisim: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def kind(path: Path | None) -> str:
    """What to write, by the extension; upper case is the same."""
    return "" if path is None else path.suffix.lower()


def write_json(report: dict[str, Any], path: Path) -> None:
    from diffbisim.cli.showing import as_text

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
