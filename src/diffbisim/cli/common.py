"""Shared code of the commands: the application, common options, errors, reading and output.

Errors come from the library and name its arguments. `command_line_message` translates them to options:
``unseen="self-loop"`` becomes ``--unseen self-loop``. To make this possible, the parameters of a command have the names
of the library's arguments, whatever the option is called (``rng: Seed`` is ``--seed``); if two options set the same
argument for different files (``--initial-a``), `naming_options` says which one is meant.

Expensive modules are imported inside functions, here and in the commands, so that ``--help`` is fast.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, get_type_hints

import typer
import typer.models

from diffbisim import __version__
from diffbisim.common.errors import DiffbisimError, InvalidArgument, InvalidData

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from diffbisim.processes.chain import MarkovChain, Transitions

INVALID, NOT_CONVERGED, INTERRUPTED = 2, 3, 130
CHAIN_FILES = (".npz", ".csv", ".tsv", ".tra")
SHOWN = 8  # number of states or classes listed before "and 5 more"

P = ParamSpec("P")
Report = dict[str, Any]

app = typer.Typer(
    help="Distances between Markov processes that respect time, with certified accuracy.",
    epilog="Exit codes: 0 success, 2 invalid input, 3 not converged (bounds are printed), 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# --- common options -----------------------------------------------------------------------------------------------

CHAIN = "A Markov chain: .npz, .csv, .tsv, PRISM .tra or Storm .drn; text may be gzipped (.gz); - for standard input"

File = Annotated[Path, typer.Argument(metavar="FILE", help=CHAIN, show_default=False)]
Unseen = Annotated[
    str,
    typer.Option(help="States without successors: error, self-loop, uniform or drop; for missing choices also repeat"),
]
Const = Annotated[
    str | None,
    typer.Option("--const", help="Constants of a program (.pm, .nm, .prism, .jani): N=16,p=0.5", show_default=False),
]
Rewards = Annotated[
    Path | None,
    typer.Option(
        help="Rewards: a table state,reward or .npy; for a model also the name of a reward structure or proposition",
        show_default=False,
    ),
]
Initial = Annotated[
    str | None,
    typer.Option(
        help="Initial state: a name or an index (default: that of the file; for edges and transitions, the first row)",
        show_default=False,
    ),
]
Id = Annotated[str | None, typer.Option("--id", help="Events: the column with the sequence id", show_default=False)]
Time = Annotated[
    str | None,
    typer.Option("--time", help="Events: the column with the time (numbers or ISO 8601)", show_default=False),
]
State = Annotated[str | None, typer.Option("--state", help="Events: the column with the state", show_default=False)]
Gap = Annotated[
    str | None,
    typer.Option(
        "--session-gap", help="Events: a longer pause starts a new episode, such as 30min", show_default=False
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", help="Events: the column with the group; compares the groups of one file", show_default=False
    ),
]
Missing = Annotated[str, typer.Option(help="Events: how to treat missing values: error, split or drop")]
End = Annotated[
    str | None,
    typer.Option(
        "--end",
        help="Name of the absorbing state in which sequences end (default: ■ for events, none for trajectories); none "
        "if they were cut at arbitrary times",
        show_default=False,
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        help="Events: resample at this interval, such as 30d, or event if only their order matters",
        show_default=False,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="Events: the column of sequences that are not independent (default: --id)", show_default=False
    ),
]
Strata = Annotated[
    str | None, typer.Option("--strata", help="Events: the column of strata to permute within", show_default=False)
]
Duplicates = Annotated[str, typer.Option(help="Events: repeated rows: warn, keep, drop or error")]
OBSERVED = (
    "Observed transitions, trajectories or events: .csv, .tsv, .gz of these, .parquet, .arrow, .xes, - for standard "
    "input; a file with a chain is taken as known"
)
UnseenOfData = Annotated[str, typer.Option(help="States without successors: self-loop, uniform or error")]
Permutations = Annotated[int, typer.Option(help="Number of permutations of whole episodes in the test")]
Replicates = Annotated[int, typer.Option(help="Number of bootstrap replicates for the interval")]
Cost = Annotated[
    str,
    typer.Option(
        help="reward, euclidean (vectors), indicator, or a table of numbers (.npy, .csv, .tsv) with n_A rows and n_B "
        "columns"
    ),
]
Discount = Annotated[float, typer.Option(help="Discount factor, between 0 and 1")]
Criterion = Annotated[str, typer.Option(help="discounted, average (long-run) or total (until absorption)")]
Horizon = Annotated[
    int | None, typer.Option(help="Number of steps of a finite horizon, with discounted weights", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed")]
TimeLimit = Annotated[float | None, typer.Option(help="Stop after this many seconds", show_default=False)]
Checkpoint = Annotated[
    Path | None,
    typer.Option(help="File that stores the state of the run; an existing one is resumed", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output")]
JsonOutput = Annotated[Path | None, typer.Option("--output", "-o", help=".json for the numbers")]
ResultOutput = Annotated[Path | None, typer.Option("--output", "-o", help=".npz for everything, .json for the numbers")]
ChainOutput = Annotated[
    Path | None, typer.Option("--output", "-o", help=".npz, .csv or .tra for the chain, .json for the numbers")
]


# --- errors -------------------------------------------------------------------------------------------------------


class NotConverged(Exception):
    """A run ended before it converged; its result has been printed, and the message says how it ended."""


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Report user errors in one line with an exit code; internal errors keep their traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:  # the reader of the pipe has closed it
            raise
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), INVALID)
        except MemoryError as error:
            fail(f"not enough memory: {error}" if str(error) else "not enough memory", INVALID)
        except NotConverged as error:
            fail(f"not converged. {command_line_message(str(error), command, kwargs)}", NOT_CONVERGED)
        except DiffbisimError as error:
            fail(command_line_message(str(error), command, kwargs), INVALID)
        except KeyboardInterrupt as error:
            fail(str(error) or "interrupted", INTERRUPTED)

    return run


def fail(message: str, code: int) -> NoReturn:
    print(f"diffbisim: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)


#: Phrases of the library's messages and their replacements on the command line.
WORDING = {
    "read it with read_mdp": "diffbisim distance, lump and imitate --mdp read it",
    "read it with read_chain": "the other commands read it",
    "write_chain": "diffbisim convert",
    "states=[...]": "states=[...] in Python",
    "warm=result": "warm=result in Python",
    "in terminal=": "in terminal= in Python",
    " when creating Transitions": "",
    "mdp.induced_chain(policy)": "mdp.induced_chain(policy) in Python",
    "diffbisim.distance": "diffbisim distance",
    "a bare array": "a .npy vector",
    "pass cost= an array": "in Python, pass cost= an array",
    "discretize it first": "discretize it in Python",
    ', or format="csv", "npz" or "prism"': "",
}


def command_line_message(message: str, command: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Translate an error message to the options of a command; names of given files are left unchanged."""
    options, (x, y) = options_of(command), "AB" if {"b", "files"} & arguments.keys() else "XY"
    files = sorted((str(value) for value in arguments.values() if isinstance(value, Path)), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, files))})", message) if files else [message]
    for k in range(0, len(parts), 2):  # every other part is a file name
        for there, here in WORDING.items():
            parts[k] = parts[k].replace(there, here)
        parts[k] = re.sub(
            r"as_chain\([XY]\)\.at_lag\((\d+)\)(?: and as_chain\(.*?\)\.at_lag\(.*?\))?", r"--lag \1", parts[k]
        )
        parts[k] = re.sub(r"(\b|\bn_)X\b(?!['\"])", rf"\1{x}", with_option_names(parts[k], options))
        parts[k] = re.sub(r"(\b|\bn_)Y\b(?!['\"])", rf"\1{y}", parts[k])
    return "".join(parts)


def with_option_names(message: str, options: Mapping[str, str]) -> str:
    """Replace the library's arguments in a message by the options that set them.

    An argument is recognized in an assignment (``tol=1e-8``), in phrases such as ``tol is -1``, ``raise tol`` or
    ``omit tol``, and anywhere if it is not an English word (``max_iterations``).
    """
    for name, option in options.items():
        alone = rf"(?<![\w.\-\"'/]){name}"
        message = re.sub(rf"{alone}=True\b", option, message)
        message = re.sub(rf"{alone}=([\"'])(.*?)\1", rf"{option} \2", message)
        message = re.sub(rf"{alone}=(?=[\w.\[{{])|{alone} = ", f"{option} ", message)
        message = re.sub(rf"{alone}=|{alone}(?=$|[:\[]| (?:is|has|names|sums|must)\b| ['\"])", option, message)
        message = re.sub(rf"\b((?:raise|omit) (?:\S+ or )?){name}\b", rf"\1{option}", message)
        if "_" in name:
            message = re.sub(rf"{alone}\b", option, message)
    return message


def options_of(command: Callable[..., Any]) -> dict[str, str]:
    """Return the options of a command by parameter name: {"rng": "--seed", …}."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, typer.models.OptionInfo):
                words = (option.default, *(option.param_decls or ()))  # typer stores the first name as the default
                declared = (word for word in words if isinstance(word, str) and word.startswith("--"))
                found[name] = next(declared, f"--{name.replace('_', '-')}")
    return found


@contextmanager
def naming_options(**options: str) -> Iterator[None]:
    """Replace the library's arguments by these options in errors raised inside the block."""
    try:
        yield
    except DiffbisimError as error:
        raise type(error)(with_option_names(str(error), options)) from None


# --- reading ------------------------------------------------------------------------------------------------------


def suffix(path: Path | None) -> str:
    """Return the extension in lower case; empty if there is no file."""
    return "" if path is None else path.suffix.lower()


def read_chain_file(
    path: Path, *, unseen: str, initial: str | None = None, rewards: Path | None = None, side: str = "",
    const: str | None = None, any_kind: bool = False,
) -> Any:  # fmt: skip
    """Read a chain with the given initial state and rewards; ``side`` is the suffix of their options.

    With ``any_kind=True`` the file may also contain an MDP or a timed chain. Warnings become notes.
    """
    from diffbisim.io.chains import read_chain, read_model
    from diffbisim.io.files import naming
    from diffbisim.io.npz import read_process

    given = read_rewards_of(path, rewards)
    read: Callable[..., Any] = read_model if any_kind and is_model(path) else read_chain
    names = {"initial": f"--initial{side}", "rewards": f"--rewards{side}"}
    with warnings_as_notes(**names), naming_options(**names), naming(path):
        if any_kind and suffix(path) == ".npz" and rewards is None:
            found: Any = read_process(path)
        else:
            found = read(path, rewards=given, unseen=unseen, constants=const)
        return found if initial is None else found.with_initial(read_state(found, initial))


def is_model(path: Path) -> bool:
    """Return whether this is a file of PRISM or Storm, which has named reward structures and propositions."""
    from diffbisim.io.files import extension
    from diffbisim.io.storm import MODELS

    return extension(path) in (".tra", *MODELS)


def const_for(path: Path, const: str | None, *others: Path | None) -> str | None:
    """Return the constants, or None if they are those of another file, which is a program while this one is not."""
    from diffbisim.io.files import extension
    from diffbisim.io.storm import PROGRAMS

    programs = [extension(other) in PROGRAMS for other in (path, *others) if other is not None]
    return None if any(programs) and not programs[0] else const


def read_rewards_of(path: Path, rewards: Path | None) -> Any:
    """Read the rewards in a file; for a model, ``rewards`` may be the name of a reward structure."""
    from diffbisim.io.tables import read_rewards

    if rewards is None:
        return None
    by_name = is_model(path) and suffix(rewards) not in (".npy", ".csv", ".tsv")
    return str(rewards) if by_name and not rewards.exists() else read_rewards(rewards)


def read_state(chain: Any, text: str) -> Any:
    """Return a name unchanged; parse anything else as a Python number, tuple or list of probabilities."""
    if text in (first_names(chain) or ()):
        return text
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_cost(cost: str) -> Any:
    """Return the name of a cost unchanged; read anything else as a file with n_A rows and n_B columns."""
    from diffbisim.io.tables import read_numbers

    if cost in ("reward", "euclidean", "indicator"):
        return cost
    if suffix(Path(cost)) not in (".npy", ".csv", ".tsv"):
        raise InvalidArgument(f"--cost {cost}: use reward, euclidean, indicator, or a .npy, .csv or .tsv file")
    return read_numbers(Path(cost))


def read_weights(weights: str | None) -> Any:
    """Parse comma-separated numbers, or read them from a file."""
    from diffbisim.io.tables import read_numbers

    if weights is None:
        return None
    if suffix(Path(weights)) in (".npy", ".csv", ".tsv"):
        return read_numbers(Path(weights)).ravel()
    try:
        return [float(word) for word in weights.strip("[]() ").split(",")]
    except ValueError:
        raise InvalidArgument(
            f"--weights {weights}: give one number for each time, such as 1,0.5,0.25, or a .npy, .csv or .tsv file"
        ) from None


@dataclass(frozen=True)
class Events:
    """The options for tables of events."""

    id: str | None = None
    time: str | None = None
    state: str | None = None
    gap: str | None = None
    group: str | None = None
    missing: str = "error"
    end: str | None = None
    every: str | None = None
    cluster: str | None = None
    strata: str | None = None
    duplicates: str = "warn"

    @property
    def end_name(self) -> str | None:
        """The argument ``end`` of the library."""
        return "auto" if self.end is None else None if self.end.lower() == "none" else self.end

    def check_unused(self, path: Path) -> None:
        """Raise if an option for tables of events is given for another file."""
        default = Events(end=self.end)
        for name, option in (
            ("id", "--id"), ("time", "--time"), ("gap", "--session-gap"), ("missing", "--missing"),
            ("every", "--every"), ("cluster", "--cluster"), ("strata", "--strata"), ("duplicates", "--duplicates"),
        ):  # fmt: skip
            if getattr(self, name) != getattr(default, name):
                raise InvalidArgument(
                    f"{option} is for tables of events; name the column with the states: --state ({path})"
                )

    def read(self, path: Path, states: Any = None) -> Any:
        """Read the transitions (with ``group``, a dict of them); warnings become notes."""
        from diffbisim.io.chains import read_transitions

        names = ("id", "time", "state", "group", "missing", "cluster", "strata", "duplicates")
        options = {name: getattr(self, name) for name in names}
        number = re.compile(r"\d+\.?\d*|\.\d+")
        gap, every = (float(t) if t is not None and number.fullmatch(t) else t for t in (self.gap, self.every))
        words = {name: f"--{name}" for name in ("missing", "state", "end", "every", "cluster", "strata", "duplicates")}
        with warnings_as_notes(**words), naming_options(gap="--session-gap", **words):
            return read_transitions(path, states=states, gap=gap, every=every, end=self.end_name, **options)

    def groups(self, path: Path) -> dict[Any, Transitions]:
        """Return the groups in a file by name, at least two."""
        if self.group is None:
            raise InvalidArgument(f"only {path} is given; give a second file, or --group COLUMN to compare its groups")
        found: dict[Any, Transitions] = self.read(path)
        if len(found) < 2:
            raise InvalidArgument(f"{path}: {self.group} has one group, {next(iter(found))}; it must have two or more")
        return found

    def two_groups(self, path: Path) -> tuple[list[Transitions], list[str]]:
        """Return the transitions and the names of the two groups in a file."""
        found = self.groups(path)
        if len(found) != 2:
            names = listed([f"{name} ({data.n_episodes:,})" for name, data in list(found.items())[:SHOWN]], len(found))
            raise InvalidArgument(
                f"{path}: {self.group} has {len(found)} groups, {names}; use diffbisim compare for more than two"
            )
        return list(found.values()), self.titles(path, found)

    def titles(self, path: Path, groups: Iterable[Any]) -> list[str]:
        """Return the names of the groups of a file for reports."""
        return [f"{path}, {self.group} = {name}" for name in groups]


def read_observed(
    path: Path, rewards: Any = None, events: Events | None = None, const: str | None = None
) -> Transitions | MarkovChain:
    """Read the transitions in a file of observations, or the chain in any other file."""
    from diffbisim.io.chains import check_constants, read_chain, read_transitions
    from diffbisim.io.files import extension
    from diffbisim.io.logs import LOGS
    from diffbisim.io.tables import holds_observations

    check_constants(path, const)
    if events is not None and (events.state is not None or extension(path) in LOGS):
        return events.read(path)  # type: ignore[no-any-return]
    if events is not None:
        events.check_unused(path)
    if extension(path) in (".csv", ".tsv") and holds_observations(path):
        with naming_options(end="--end"):
            return read_transitions(path, end="auto" if events is None else events.end_name)  # type: ignore[no-any-return]
    try:
        with warnings_as_notes():
            return read_chain(path, rewards=rewards, constants=const)
    except InvalidData as error:
        if error.line != 1 or extension(path) not in (".csv", ".tsv"):
            raise
        raise InvalidData(f"{error}; for a table of events, name the columns: --state, --id, --time") from None


@contextmanager
def warnings_as_notes(command: Callable[..., Any] | None = None, /, **options: str) -> Iterator[None]:
    """Print warnings issued inside the block as notes that name these options, and those of a command for A and B."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        message = with_option_names(str(warning.message), options)
        note(message if command is None else command_line_message(message, command, {"b": None}))


def start_is_a_guess(path: Path, initial: str | None) -> bool:
    """Return whether the initial state of a chain is guessed from the first row of its file."""
    from diffbisim.io.files import extension
    from diffbisim.io.tables import header

    return initial is None and extension(path) in (".csv", ".tsv") and "episode" not in header(path)


def need_rewards(chain: Any, path: Path, option: str = "--rewards", other: str = ", or use --cost indicator") -> None:
    """Raise an error that names the option for rewards if a chain has none."""
    if getattr(chain, "rewards", None) is None:
        raise InvalidArgument(f"{path} has no rewards; give {option} FILE (a table state,reward){other}")


def check_output(path: Path | None, *suffixes: str) -> None:
    """Check before the computation that the output file can be written."""
    if path is None:
        return
    if suffix(path) not in suffixes:
        raise InvalidArgument(f"{path}: the extension is unknown; use {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path}: the folder {path.parent} does not exist; create it first")


# --- output -------------------------------------------------------------------------------------------------------


def emit(report: Report, *parts: str | Table, as_json: bool, output: Path | None = None) -> None:
    """Print the report as JSON or as tables; also write it to ``output`` if that is a .json file."""
    text = json.dumps(report | {"version": __version__}, indent=2, allow_nan=False)
    if as_json:
        print(text)
    else:
        for part in parts:
            console().print(part, soft_wrap=isinstance(part, str))
    if output is not None and suffix(output) == ".json":
        from diffbisim.io.files import replacing

        with replacing(output) as file:
            file.write(text + "\n")


#: What is printed where a character does not exist in the encoding of the terminal or file; others as escapes.
SPELLED = {"≤": "<=", "≥": ">=", "…": "...", "–": "-", "—": "-", "×": "x", "·": "*", "→": "->", "²": "^2", "’": "'"}


def print_everywhere() -> None:
    """Let standard output and standard error print any text, whatever their encoding (cp1252, ASCII)."""
    codecs.register_error("diffbisim", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors="diffbisim")


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(SPELLED.get(c, c.encode("ascii", "backslashreplace").decode()) for c in text), error.end


def note(message: str) -> None:
    print(f"diffbisim: note: {message}", file=sys.stderr)


def is_interactive() -> bool:
    """Return whether standard error is a terminal, so that a progress bar is visible."""
    return sys.stderr.isatty()


def console() -> Console:
    """Return a console for standard output that prints names and file names without markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def sheet(lines: Mapping[str, str]) -> Table:
    """Return a table with two columns, name and value; long values are wrapped."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, value)
    return table


def columns(*names: str) -> Table:
    """Return an empty table with these columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*names, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def first_names(process: Any) -> Any:
    """Return the names of the states (for a timed chain, at time 0), or None."""
    return process.names[0] if process.names and hasattr(process, "n_steps") else process.names


def state_names(chain: Any, states: Iterable[Any]) -> list[Any]:
    """Return the names of the first few states, as JSON values."""
    names = first_names(chain)
    shown = (int(k) if names is None else names[k] for k, _ in zip(states, range(SHOWN), strict=False))
    return [name if isinstance(name, (str, int)) else repr(name) for name in shown]


def start_names(chain: Any) -> list[Any]:
    """Return the names of the first few possible initial states."""
    return state_names(chain, chain.initial.nonzero()[0])


def listed(names: list[Any], total: int | None = None) -> str:
    """Format names, followed by how many more there are of ``total``."""
    more = 0 if total is None else total - len(names)
    return ", ".join(map(str, names)) + (f" and {more:,} more" if more > 0 else "")


def two_chains(files: tuple[Path, Path], chains: Iterable[Any]) -> list[Report]:
    """Describe the two chains for a report."""
    return [
        {"file": str(file), "n_states": X.n_states, "n_transitions": X.n_transitions, "start": start_names(X)}
        | {name: getattr(X, name) for name in ("n_actions", "n_steps") if hasattr(X, name)}
        for file, X in zip(files, chains, strict=True)
    ]


def problem_facts(problem: Any) -> Report:
    """Return the settings of a problem."""
    from diffbisim.problems import FiniteHorizon, Game

    facts = {"criterion": problem.criterion, "discount": problem.discount}
    if isinstance(problem, FiniteHorizon):
        return {**facts, "horizon": problem.n_steps, "weights": problem.weights.tolist()}
    return {**facts, "actions": problem.actions} if isinstance(problem, Game) else facts


def problem_line(report: Report) -> dict[str, str]:
    """Return the line of a table with cost and criterion."""
    from diffbisim.problems import CRITERIA

    cost, criterion = report["cost"], report["criterion"]
    if "weights" in report:
        weights = [f"{w:.4g}" for w in report["weights"][:SHOWN]]
        return {"cost, horizon": f"{cost}, {report['horizon']}; weights {listed(weights, len(report['weights']))}"}
    if "actions" in report:
        return {"cost, actions": f"{cost}, {report['actions']}, discount {report['discount']:g}"}
    if not CRITERIA[criterion].has_discount:
        return {"cost, criterion": f"{cost}, {criterion}"}
    return {"cost, discount": f"{cost}, {report['discount']:g}"}


def interval_note(report: Report) -> dict[str, str]:
    """Return a line that explains a test and an interval that seem to contradict each other; else nothing."""
    return {"note": report["remark"]} if report["remark"] else {}


def of_sides(assumed: Iterable[str]) -> list[str]:
    """Return sentences about X and Y as sentences about A and B."""
    return [re.sub("^[XY]:", lambda side: "AB"["XY".index(side[0][0])] + ":", sentence) for sentence in assumed]


def assumed_lines(report: Report) -> dict[str, str]:
    """Return the line of a table with what was assumed about the data; nothing if that is nothing."""
    return {"assumed": "; ".join(report["assumed"])} if report["assumed"] else {}


def side_lines(report: Report, transitions: str = "transitions") -> dict[str, str]:
    """Return the lines of a table that describe the two chains."""

    def states(side: Report) -> str:
        if "n_steps" not in side:
            return f"{side['n_states']:,} states"
        least, most = min(side["n_states"]), max(side["n_states"])
        return f"{side['n_steps']:,} steps, {f'{least:,} to ' * (least < most)}{most:,} states"

    return {
        name: f"{side['file']}: {states(side)}, "
        + (f"{side['n_actions']:,} actions, " if "n_actions" in side else "")
        + f"{side['n_transitions']:,} {transitions}, start {listed(side['start'])}"
        for name, side in zip("AB", report["chains"], strict=True)
    }


def emit_model(result: Any, facts: Report, seconds: float, *, as_json: bool, output: Path | None) -> None:
    """Print a compression, fit or imitation with its certified distance, and write its numbers or chain."""
    d = result.distance
    report = facts | {
        "distance": d.value,
        "lower": d.lower,
        "upper": d.upper,
        "discount": d.discount,
        "status": getattr(result, "status", d.status),
        "iterations": len(result.history),
        "seconds": round(seconds, 6),
    }
    lines = {
        "distance": f"{d.value:.6g}",
        "certified": f"{d.lower:.10g} ≤ d ≤ {d.upper:.10g}",
        "status": report["status"],
        "took": f"{report['iterations']} iterations, {seconds:.3g} s",
    }
    rest = [name for name in report if name not in {"lower", "upper", "seconds", "iterations", *lines}]
    emit(report, sheet(lines | {name.replace("_", " "): _short(report[name]) for name in rest}), as_json=as_json,
         output=output)  # fmt: skip
    if output is not None and suffix(output) in CHAIN_FILES:
        save_chain(result.chain, output)


def _short(value: Any) -> str:
    """Format a value; long lists are shortened."""
    if isinstance(value, list):
        return listed([_short(entry) for entry in value[: 2 * SHOWN]], len(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def save_chain(chain: MarkovChain, path: Path) -> list[str]:
    """Write a chain; return and print what the format cannot store."""
    from diffbisim.common.errors import quietly
    from diffbisim.io.chains import FORMATS, not_stored, write_chain

    with quietly():
        write_chain(chain, path)
    missing = not_stored(chain, FORMATS[suffix(path)])
    if missing:
        note(f"{path} cannot store the {' and the '.join(missing)}; use .npz")
    return missing
