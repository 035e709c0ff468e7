"""From what was typed to what it means: chains, rewards, costs and starts."""

from __future__ import annotations

import math
import warnings
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from diffbisim.chain import MarkovChain, Transitions, Unseen
from diffbisim.checks import Floats, start_distribution, state_rewards
from diffbisim.cli.common import as_typed, typed
from diffbisim.cli.showing import note
from diffbisim.data.gymnasium import from_env, import_gymnasium
from diffbisim.errors import InvalidArgument
from diffbisim.io.arrays import read_array
from diffbisim.io.chains import is_observed, read_chain, read_mdp, read_transitions
from diffbisim.io.files import broken, naming, open_text
from diffbisim.io.prism import read_prism_labels
from diffbisim.io.tables import header, read_columns
from diffbisim.mdp import MDP
from diffbisim.planning import optimal_policy


def read_file(
    path: Path, *, unseen: str, initial: str | None = None, rewards: Path | None = None, side: str = ""
) -> MarkovChain:
    """The chain in a file, with the start and the rewards that were asked for; ``side`` ends their options."""
    given = _given_rewards(path, rewards)
    with typed(initial=f"--initial{side}", rewards=f"--rewards{side}"), naming(path):
        chain = read_chain(path, rewards=given, unseen=cast(Unseen, unseen))
        return chain if initial is None else chain.with_initial(read_state(chain, initial))


def _given_rewards(path: Path, rewards: Path | None) -> Any:
    """The rewards in a file; or, of a .tra file, the name of rewards that it has."""
    if rewards is None:
        return None
    by_name = path.suffix.lower() == ".tra" and rewards.suffix.lower() not in (".npy", ".csv", ".tsv")
    return str(rewards) if by_name and not rewards.exists() else read_rewards(rewards)


def guessed_start(path: Path, initial: str | None) -> bool:
    """Whether nothing says where the chain in a file starts, so that it is the state of the first row."""
    if initial is not None or path.suffix.lower() not in (".csv", ".tsv"):
        return False
    return "episode" not in header(path, _delimiter(path))


def start_source(path: Path, initial: str | None) -> str:
    """Who said where the chain in a file starts."""
    if initial is not None:
        return "--initial"
    if path.suffix.lower() in (".csv", ".tsv"):
        return "the first row; --initial names another" if guessed_start(path, None) else "where the episodes begin"
    if path.suffix.lower() == ".tra":
        labels = path.with_suffix(".lab")
        said = labels.exists() and read_prism_labels(labels).get("init", np.empty(0)).size
        return f"init in {labels.name}" if said else "no state is labeled init; --initial names another"
    return "stored in the file"


def tell_guesses(*sides: tuple[MarkovChain, Path, str | None]) -> None:
    """A note where a start is only that of a first row, and the two sides start differently."""
    (x, _, _), (y, _, _) = sides
    guesses = [path for _, path, initial in sides if guessed_start(path, initial)]
    starts = [{chain.label(int(k)) for k in np.flatnonzero(chain.initial)} for chain in (x, y)]
    if guesses and starts[0] != starts[1]:
        names = " and ".join(dict.fromkeys(map(str, guesses)))
        note(f"no start is named in {names}, so it is that of the first row; --initial-a and --initial-b say otherwise")


@contextmanager
def warnings_as_notes(**options: str) -> Iterator[None]:
    """Warnings from within as notes that name these options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        note(as_typed(str(warning.message), options))


def read_both(
    files: tuple[Path, Path],
    rewards: tuple[Path | None, Path | None],
    initial: tuple[str | None, str | None],
    cost: str,
) -> tuple[Any, Any, Any, Any]:
    """Two sides, each as observed transitions or as a known chain, and the rewards and starts of those observed.

    With the cost "indicator" the states of both are one set: those that either has seen.
    """
    wanted = (rewards[0], rewards[1] or rewards[0])
    given = tuple(_given_rewards(path, own) for path, own in zip(files, wanted, strict=True))
    sides = []
    for path, own, letter in zip(files, given, "ab", strict=True):
        with typed(rewards=f"--rewards-{letter}"):
            sides.append(_side(path, own))
    if all(isinstance(side, MarkovChain) for side in sides):
        raise InvalidArgument(f"{files[0]} and {files[1]} are both chains, not data: use diffbisim distance")
    for side, own, path, option in zip(sides, given, files, ("--rewards-a", "--rewards-b"), strict=True):
        if cost == "reward" and own is None and getattr(side, "rewards", None) is None:
            raise InvalidArgument(f"{path} has no rewards; give {option} FILE, or use --cost indicator")
    if cost == "indicator" and not any(isinstance(side, MarkovChain) for side in sides):
        one, two = sides
        if one.labels is not None and two.labels is not None:
            states: Any = sorted({*one.labels, *two.labels}, key=str)
        else:
            states = max(one.n_states, two.n_states)
        sides = [read_transitions(path, states=states) for path in files]
    starts = tuple(None if text is None else read_state(side, text) for side, text in zip(sides, initial, strict=True))
    for k, (letter, side) in enumerate(zip("ab", sides, strict=True)):  # refused here, where the options are known
        source = letter if rewards[k] is not None else "a"
        with typed(initial=f"--initial-{letter}", rewards=f"--rewards-{source}"), naming(files[k]):
            if isinstance(side, MarkovChain):
                sides[k] = side if starts[k] is None else side.with_initial(starts[k])
                continue
            state_rewards(given[k], side.n_states, side.labels)
            if starts[k] is not None:
                start_distribution(starts[k], side.n_states, {label: i for i, label in enumerate(side.labels or ())})
    return sides[0], sides[1], given, starts


def _side(path: Path, rewards: Any) -> Transitions | MarkovChain:
    if path.suffix.lower() in (".csv", ".tsv") and is_observed(read_columns(path, _delimiter(path))):
        return read_transitions(path)
    return read_chain(path, rewards=rewards)


def read_task(
    env: str | None, mdp: Path | None, expert: Path | None, unseen: str, rewards: str | None = None
) -> tuple[MDP, Any]:
    """What to act in, and whom to imitate: the expert of a file, or an optimal policy."""
    if (env is None) == (mdp is None):
        raise InvalidArgument("give either --env NAME (a Gymnasium environment) or --mdp FILE (PRISM's format)")
    if mdp is not None:
        task = read_mdp(mdp, rewards=rewards, unseen=cast(Unseen, unseen))
    else:
        task = from_env(_environment(str(env)))
    if expert is not None:
        return task, _side(expert, None)
    if task.rewards is None:
        raise InvalidArgument(f"{env or mdp} has no rewards, so no policy is optimal: give --expert FILE")
    return task, task.induced_chain(optimal_policy(task, 0.99))


def _environment(name: str) -> Any:
    gymnasium = import_gymnasium()
    try:
        return gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise InvalidArgument(f"--env {name}: {error}") from None


def read_state(chain: MarkovChain | Transitions, text: str) -> Any:
    """A label as it stands; else a number, a tuple, or a list of probabilities, as Python writes them."""
    if chain.labels is not None and text in chain.labels:
        return text
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_rewards(path: Path) -> Any:
    """A vector from .npy, or a mapping from a table with the header ``state,reward``."""
    if path.suffix.lower() == ".npy":
        return _array(path)
    table = read_columns(path, _delimiter(path))
    if set(table.columns) != {"state", "reward"}:
        header = table.delimiter.join(table.columns)
        raise broken(path, 1, header, "the header of a table of rewards must be state,reward")
    (states,) = table.states("state")
    names = states.tolist() if isinstance(states, np.ndarray) else states
    rewards: dict[Any, float] = {}
    for k, (name, reward) in enumerate(zip(names, table.floats("reward", least=-math.inf).tolist(), strict=True)):
        if name in rewards:
            table.fault(k, f"state {name!r} already has a reward; remove one")
        rewards[name] = reward
    return rewards


def read_cost(cost: str) -> Any:
    """ "reward" and "indicator" as they are, anything else as a file of n_A rows and n_B columns of numbers."""
    if cost in ("reward", "indicator"):
        return cost
    path = Path(cost)
    if path.suffix.lower() not in (".npy", ".csv", ".tsv"):
        raise InvalidArgument(f"--cost {cost}: use reward, indicator, or a file .npy, .csv or .tsv")
    return _array(path) if path.suffix.lower() == ".npy" else _numbers(path)


def need_rewards(*chains: tuple[MarkovChain, Path, str], other: str = ", or use --cost indicator") -> None:
    """Refuse the cost "reward" where a chain has none, and name the option that gives them."""
    for chain, path, option in chains:
        if chain.rewards is None:
            raise InvalidArgument(f"{path} has no rewards; give {option} FILE (a table state,reward){other}")


def save_target(path: Path | None, suffixes: tuple[str, ...]) -> None:
    """Refuse a file that could not be written before the work is done, not after."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise InvalidArgument(f"{path}: the extension is not known; use {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path}: there is no folder {path.parent}; make it first")


def _array(path: Path) -> Floats:
    return np.asarray(read_array(path), dtype=np.float64)


def _numbers(path: Path) -> Floats:
    """A table of numbers without a header."""
    rows: list[list[float]] = []
    with open_text(path) as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                rows.append([float(word) for word in text.split(_delimiter(path) or ",")])
            except ValueError:
                raise broken(path, line, text.strip(), "expected numbers only, without a header") from None
            if not all(map(math.isfinite, rows[-1])):
                raise broken(path, line, text.strip(), "expected finite numbers only")
            if len(rows[-1]) != len(rows[0]):
                why = f"expected {len(rows[0])} numbers as in the first row, found {len(rows[-1])}"
                raise broken(path, line, text.strip(), why)
    if not rows:
        raise broken(path, 1, "", "the file is empty")
    return np.array(rows)


def _delimiter(path: Path) -> str | None:
    return "\t" if path.suffix.lower() == ".tsv" else None
