"""What the commands share: the application, its options, errors, reading and output.

Errors are the library's own, and name its arguments. `command_line_message` says them in the words of the command line:
``unseen="self-loop"`` becomes ``--unseen self-loop``. For that the parameters of a command have the names of the
arguments that they set, whatever the option is called (``rng: Seed`` is ``--seed``); where one option per file sets the
same argument (``--initial-a``), `naming_options` says which one is meant.

Everything heavy is imported inside functions, here and in the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

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
from diffbisim.errors import DiffbisimError, InvalidArgument, InvalidData

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from diffbisim.chain import MarkovChain, Transitions

INVALID, NOT_CONVERGED, INTERRUPTED = 2, 3, 130
CHAIN_FILES = (".npz", ".csv", ".tsv", ".tra")
SHOWN = 8  # states or classes listed before "and 5 more"

P = ParamSpec("P")
Report = dict[str, Any]

app = typer.Typer(
    help="Distances between Markov processes that respect time, with certified accuracy.",
    epilog="Exit codes: 0 done, 2 bad input, 3 not converged (bounds are printed), 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# --- options that mean the same everywhere ------------------------------------------------------------------------

CHAIN = "A Markov chain: .npz, .csv, .tsv, PRISM .tra, Storm .drn; .gz of a text, - for standard input"

File = Annotated[Path, typer.Argument(metavar="FILE", help=CHAIN, show_default=False)]
Unseen = Annotated[
    str,
    typer.Option(help="States never left: error, self-loop, uniform or drop; choices that a state lacks: also repeat"),
]
Const = Annotated[
    str | None,
    typer.Option("--const", help="Constants of a program (.pm, .nm, .prism, .jani): N=16,p=0.5", show_default=False),
]
Rewards = Annotated[
    Path | None,
    typer.Option(
        help="Rewards: table state,reward, or .npy; of a model also the name of one of its own", show_default=False
    ),
]
Initial = Annotated[
    str | None,
    typer.Option(
        help="Start: a label or a number (default: that of the file; of edges and transitions, that of the first row)",
        show_default=False,
    ),
]
Id = Annotated[str | None, typer.Option("--id", help="Events: the column that says who", show_default=False)]
Time = Annotated[
    str | None,
    typer.Option("--time", help="Events: the column that says when: numbers or ISO 8601", show_default=False),
]
State = Annotated[
    str | None, typer.Option("--state", help="Events: the column that says what happened", show_default=False)
]
Gap = Annotated[
    str | None,
    typer.Option(
        "--session-gap", help="Events: a longer pause begins a new episode, such as 30min", show_default=False
    ),
]
Group = Annotated[
    str | None,
    typer.Option("--group", help="Events: the column of groups; those of one file are compared", show_default=False),
]
Missing = Annotated[str, typer.Option(help="Events, missing values: error, split or drop")]
OBSERVED = (
    "Observed steps, trajectories or events: .csv, .tsv, .gz of these, .parquet, .arrow, .xes, - (standard input); "
    "a file with a chain is taken as known"
)
UnseenOfData = Annotated[str, typer.Option(help="States never left: self-loop, uniform or error")]
Permutations = Annotated[int, typer.Option(help="Permutations of whole episodes, for the test")]
Replicates = Annotated[int, typer.Option(help="Bootstrap samples, for the interval")]
Cost = Annotated[
    str,
    typer.Option(
        help="reward, euclidean (vectors), indicator, or a table of numbers (.npy, .csv, .tsv): n_A rows, n_B columns"
    ),
]
Discount = Annotated[float, typer.Option(help="Weight of the next step, between 0 and 1")]
Criterion = Annotated[str, typer.Option(help="discounted, average (long-run) or total (until absorption)")]
Horizon = Annotated[
    int | None, typer.Option(help="Count so many steps only, by powers of the discount", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random: the same seed, the same answer")]
TimeLimit = Annotated[float | None, typer.Option(help="Give up after so many seconds", show_default=False)]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="A file to keep the state of the run in; if it exists, the run goes on from it", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output")]
JsonOutput = Annotated[Path | None, typer.Option("--output", "-o", help=".json for the numbers")]
ResultOutput = Annotated[Path | None, typer.Option("--output", "-o", help=".npz for everything, .json for the numbers")]
ChainOutput = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the chain found (.npz, .csv, .tra), or the numbers (.json)")
]


# --- errors -------------------------------------------------------------------------------------------------------


class NotConverged(Exception):
    """A run that ended too early; its result has been shown, and the message says how it ended."""


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
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
        except NotConverged as error:
            fail(f"not converged. {command_line_message(str(error), command, kwargs)}", NOT_CONVERGED)
        except DiffbisimError as error:
            fail(command_line_message(str(error), command, kwargs), INVALID)
        except KeyboardInterrupt as error:
            fail(str(error) or "interrupted", INTERRUPTED)

    return run


def fail(message: str, code: int) -> NoReturn:
    typer.echo(f"diffbisim: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


#: What the library says of itself, and what that is on the command line.
WORDING = {
    "read it with read_mdp": "diffbisim distance, lump and imitate --mdp read it",
    "read it with read_chain": "the other commands read it",
    "write_chain": "diffbisim convert",
    "states=[...]": "states=[...] in Python",
    "warm=result": "warm=result in Python",
    "by terminal=": "by terminal= in Python",
    "mdp.induced_chain(policy)": "mdp.induced_chain(policy) in Python",
    "diffbisim.distance": "diffbisim distance",
    "a bare array": "a .npy vector",
    "pass cost= an array": "in Python, pass cost= an array",
    "discretize it first": "discretize it in Python",
    ', or format="csv", "npz" or "prism"': "",
}


def command_line_message(message: str, command: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The message of an error as this command says it; the names of files that were given stay as they are."""
    options, (x, y) = options_of(command), "XY" if "b" not in arguments else "AB"
    files = sorted((str(value) for value in arguments.values() if isinstance(value, Path)), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, files))})", message) if files else [message]
    for k in range(0, len(parts), 2):  # every other one is a file
        for there, here in WORDING.items():
            parts[k] = parts[k].replace(there, here)
        parts[k] = re.sub(r"(\b|\bn_)X\b(?!['\"])", rf"\1{x}", with_option_names(parts[k], options))
        parts[k] = re.sub(r"(\b|\bn_)Y\b(?!['\"])", rf"\1{y}", parts[k])
    return "".join(parts)


def with_option_names(message: str, options: Mapping[str, str]) -> str:
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
def naming_options(**options: str) -> Iterator[None]:
    """Errors from within name these options instead of the library's arguments."""
    try:
        yield
    except DiffbisimError as error:
        raise type(error)(with_option_names(str(error), options)) from None


# --- reading ------------------------------------------------------------------------------------------------------


def suffix(path: Path | None) -> str:
    """The extension, in lower case; empty if there is no file."""
    return "" if path is None else path.suffix.lower()


def read_chain_file(
    path: Path, *, unseen: str, initial: str | None = None, rewards: Path | None = None, side: str = "",
    const: str | None = None, any_kind: bool = False,
) -> Any:  # fmt: skip
    """The chain in a file, with the start and the rewards that were asked for; ``side`` ends their options.

    With ``any_kind`` also the MDP, where a model holds one, or the timed chain in an archive.
    """
    from diffbisim.io.chains import read_chain, read_model
    from diffbisim.io.files import naming
    from diffbisim.io.npz import read_process

    given = read_rewards_of(path, rewards)
    read: Callable[..., Any] = read_model if any_kind and is_model(path) else read_chain
    with naming_options(initial=f"--initial{side}", rewards=f"--rewards{side}"), naming(path):
        if any_kind and suffix(path) == ".npz" and rewards is None:
            found: Any = read_process(path)
        else:
            found = read(path, rewards=given, unseen=unseen, constants=const)
        return found if initial is None else found.with_initial(read_state(found, initial))


def is_model(path: Path) -> bool:
    """Whether it is a file of PRISM or Storm, with reward structures and propositions that have names."""
    from diffbisim.io.files import extension
    from diffbisim.io.storm import MODELS

    return extension(path) in (".tra", *MODELS)


def read_rewards_of(path: Path, rewards: Path | None) -> Any:
    """The rewards in a file; or, of a model, the name of rewards that it has."""
    from diffbisim.io.tables import read_rewards

    if rewards is None:
        return None
    by_name = is_model(path) and suffix(rewards) not in (".npy", ".csv", ".tsv")
    return str(rewards) if by_name and not rewards.exists() else read_rewards(rewards)


def read_state(chain: Any, text: str) -> Any:
    """A label as it stands; else a number, a tuple, or a list of probabilities, as Python writes them."""
    if text in (first_labels(chain) or ()):
        return text
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_cost(cost: str) -> Any:
    """Names of costs as they are, anything else as a file of n_A rows and n_B columns of numbers."""
    from diffbisim.io.tables import read_numbers

    if cost in ("reward", "euclidean", "indicator"):
        return cost
    if suffix(Path(cost)) not in (".npy", ".csv", ".tsv"):
        raise InvalidArgument(f"--cost {cost}: use reward, euclidean, indicator, or a file .npy, .csv or .tsv")
    return read_numbers(Path(cost))


def read_weights(weights: str | None) -> Any:
    """Numbers with commas between them, or those in a file."""
    from diffbisim.io.tables import read_numbers

    if weights is None:
        return None
    if suffix(Path(weights)) in (".npy", ".csv", ".tsv"):
        return read_numbers(Path(weights)).ravel()
    try:
        return [float(word) for word in weights.strip("[]() ").split(",")]
    except ValueError:
        raise InvalidArgument(
            f"--weights {weights}: give one number for each time, such as 1,0.5,0.25, or a file .npy, .csv or .tsv"
        ) from None


@dataclass(frozen=True)
class Events:
    """The columns of a table of events, as the options name them; none of them: another kind of table."""

    id: str | None = None
    time: str | None = None
    state: str | None = None
    gap: str | None = None
    group: str | None = None
    missing: str = "error"

    def read(self, path: Path, states: Any = None) -> Any:
        """What was observed; with a group a dictionary. Warnings become notes."""
        from diffbisim.io.chains import read_transitions

        options = {name: getattr(self, name) for name in ("id", "time", "state", "group", "missing")}
        gap = float(self.gap) if self.gap is not None and re.fullmatch(r"[\d.]+", self.gap) else self.gap
        with warnings_as_notes(), naming_options(missing="--missing", state="--state", gap="--session-gap"):
            return read_transitions(path, states=states, gap=gap, **options)

    def groups(self, path: Path) -> dict[Any, Transitions]:
        """The groups in a file by name, at least two."""
        if self.group is None:
            raise InvalidArgument(f"{path} is one file: give another one, or --group COLUMN to compare its groups")
        found: dict[Any, Transitions] = self.read(path)
        if len(found) < 2:
            raise InvalidArgument(f"{path}: {self.group} has one group, {next(iter(found))}; give a file with several")
        return found

    def two_groups(self, path: Path) -> tuple[list[Transitions], list[str]]:
        """The transitions and the names of the two groups in a file."""
        found = self.groups(path)
        if len(found) != 2:
            names = listed([f"{name} ({data.n_episodes:,})" for name, data in list(found.items())[:SHOWN]], len(found))
            raise InvalidArgument(
                f"{path}: {self.group} has {len(found)} groups, {names}; an estimate is of two: use diffbisim compare"
            )
        return list(found.values()), self.titles(path, found)

    def titles(self, path: Path, groups: Iterable[Any]) -> list[str]:
        """What groups of a file are called."""
        return [f"{path}, {self.group} = {name}" for name in groups]


def read_observed(
    path: Path, rewards: Any = None, events: Events | None = None, const: str | None = None
) -> Transitions | MarkovChain:
    """What was observed, if the file holds observations, else the chain in it."""
    from diffbisim.io.chains import read_chain, read_transitions
    from diffbisim.io.files import extension
    from diffbisim.io.logs import LOGS
    from diffbisim.io.tables import holds_observations

    if events is not None and (events.state is not None or extension(path) in LOGS):
        return events.read(path)  # type: ignore[no-any-return]
    if extension(path) in (".csv", ".tsv") and holds_observations(path):
        return read_transitions(path)  # type: ignore[no-any-return]
    try:
        return read_chain(path, rewards=rewards, constants=const)
    except InvalidData as error:
        if error.line != 1 or extension(path) not in (".csv", ".tsv"):
            raise
        raise InvalidData(f"{error}; of a table of events name the columns: --state, --id, --time") from None


@contextmanager
def warnings_as_notes(**options: str) -> Iterator[None]:
    """Warnings from within as notes that name these options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        note(with_option_names(str(warning.message), options))


def start_is_a_guess(path: Path, initial: str | None) -> bool:
    """Whether nothing says where the chain in a file starts, so that it is the state of the first row."""
    from diffbisim.io.files import extension
    from diffbisim.io.tables import header

    return initial is None and extension(path) in (".csv", ".tsv") and "episode" not in header(path)


def need_rewards(chain: Any, path: Path, option: str = "--rewards", other: str = ", or use --cost indicator") -> None:
    """Refuse the cost "reward" where a chain has none, and name the option that gives them."""
    if getattr(chain, "rewards", None) is None:
        raise InvalidArgument(f"{path} has no rewards; give {option} FILE (a table state,reward){other}")


def check_output(path: Path | None, *suffixes: str) -> None:
    """Refuse a file that could not be written before the work is done, not after."""
    if path is None:
        return
    if suffix(path) not in suffixes:
        raise InvalidArgument(f"{path}: the extension is not known; use {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path}: there is no folder {path.parent}; make it first")


# --- output -------------------------------------------------------------------------------------------------------


def emit(report: Report, *parts: str | Table, as_json: bool, output: Path | None = None) -> None:
    """On standard output the report for machines, or its parts for people; and in ``output``, if that is a .json."""
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


def note(message: str) -> None:
    print(f"diffbisim: note: {message}", file=sys.stderr)


def somebody_watches() -> bool:
    """Whether a progress bar would be seen."""
    return sys.stderr.isatty()


def console() -> Console:
    """Standard output; labels and file names are printed as they are, whatever they look like."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def sheet(lines: Mapping[str, str]) -> Table:
    """Two columns, name and value; long values fold."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, value)
    return table


def columns(*names: str) -> Table:
    """An empty table with these columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*names, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def first_labels(process: Any) -> Any:
    """The labels of the states that it may start in, or None; a timed chain has others at every time."""
    return process.labels[0] if process.labels and hasattr(process, "n_steps") else process.labels


def state_names(chain: Any, states: Iterable[Any]) -> list[Any]:
    """The labels of the first few states, as JSON can hold them."""
    names = first_labels(chain)
    labels = (int(k) if names is None else names[k] for k, _ in zip(states, range(SHOWN), strict=False))
    return [label if isinstance(label, (str, int)) else repr(label) for label in labels]


def start_names(chain: Any) -> list[Any]:
    """Where a chain starts, by the first few labels."""
    return state_names(chain, chain.initial.nonzero()[0])


def listed(names: list[Any], total: int | None = None) -> str:
    """The names, and how many more there are of ``total``."""
    more = 0 if total is None else total - len(names)
    return ", ".join(map(str, names)) + (f" and {more:,} more" if more > 0 else "")


def two_chains(files: tuple[Path, Path], chains: Iterable[Any]) -> list[Report]:
    """The two sides of a distance, for its report; a timed chain has a number of states for every time."""
    return [
        {"file": str(file), "n_states": X.n_states, "n_transitions": X.n_transitions, "start": start_names(X)}
        | {name: getattr(X, name) for name in ("n_actions", "n_steps") if hasattr(X, name)}
        for file, X in zip(files, chains, strict=True)
    ]


def asked(problem: Any) -> Report:
    """What else was asked, beyond the discounted criterion."""
    if problem.criterion == "horizon":
        return {"horizon": problem.n_steps, "weights": problem.weights.tolist()}
    return {"actions": problem.actions} if problem.criterion == "actions" else {}


def asked_line(report: Report) -> dict[str, str]:
    """What was asked, for its table."""
    cost, criterion = report["cost"], report["criterion"]
    if criterion == "horizon":
        weights = [f"{w:.4g}" for w in report["weights"][:SHOWN]]
        return {"cost, horizon": f"{cost}, {report['horizon']}; weights {listed(weights, len(report['weights']))}"}
    if criterion == "actions":
        return {"cost, actions": f"{cost}, {report['actions']}, discount {report['discount']:g}"}
    if criterion != "discounted":
        return {"cost, criterion": f"{cost}, {criterion}"}
    return {"cost, discount": f"{cost}, {report['discount']:g}"}


def doubt(report: Report) -> dict[str, str]:
    """A line for what looks like a contradiction: evidence of a difference, and an interval down to zero."""
    if report["p_value"] > 1 - report["confidence"] + 1e-12 or report["lower"] > 0:
        return {}
    return {"note": "the interval begins at 0 despite the evidence: what differs adds little to the distance"}


def side_lines(report: Report, transitions: str = "transitions") -> dict[str, str]:
    """The same for its table."""

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
    """Show a compression, a fit or an imitation, which all carry a certified distance; write its numbers or chain."""
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
        "took": f"{report['iterations']} steps, {seconds:.3g} s",
    }
    rest = [name for name in report if name not in {"lower", "upper", "seconds", "iterations", *lines}]
    emit(report, sheet(lines | {name.replace("_", " "): _short(report[name]) for name in rest}), as_json=as_json,
         output=output)  # fmt: skip
    if output is not None and suffix(output) in CHAIN_FILES:
        save_chain(result.chain, output)


def _short(value: Any) -> str:
    """A number or a name as it is, a long list by its beginning."""
    if isinstance(value, list):
        return listed([_short(entry) for entry in value[: 2 * SHOWN]], len(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def save_chain(chain: MarkovChain, path: Path) -> list[str]:
    """Write a chain; a note says what the format cannot hold, and so does the list."""
    from diffbisim.io.chains import write_chain

    write_chain(chain, path)
    lost = {".npz": (), ".tra": ("labels",)}.get(suffix(path), ("rewards",))
    missing = [what for what in lost if getattr(chain, what) is not None]
    if suffix(path) in (".csv", ".tsv") and chain.initial[0] != 1.0:
        missing.append("start")
    if missing:
        note(f"{path} cannot hold the {' and the '.join(missing)}; .npz can")
    return missing
