"""Explicit-state files of PRISM and Storm: transitions, one per line, and files of propositions and rewards.

    model.tra     "n m", then "i j x [action]"              a Markov chain: m transitions of probability x
                  "n c m", then "i k j x [action]"          an MDP: choice k of state i leads to j
                  "dtmc", then "i j x"; "mdp", then "i k j x"       the same in Storm's dialect, without counts
    model.lab     0="init" 1="deadlock" …, then "i: 0 2"    the propositions that hold in state i
                  #DECLARATION init … #END, then "i init"   the same in Storm's dialect
    model.sta     "(x,y)", then "i:(0,true)"                the values of the variables in state i
    model.srew    "n m", then "i r"                         state rewards (.rews, .rew; Storm: model.state.rew)
    model.trew    "n m", then "i j r"                       transition rewards (.rewt; Storm: model.trans.rew);
                                                            for an MDP "n c m", then "i k j r"

States are numbered from 0; lines that begin with # are comments (written by newer PRISM versions). Storm's reward files
have no counts. Companion files with the same stem as the .tra file are read too:

*Initial distribution.* Uniform on the states with the proposition "init", as in PRISM; otherwise state 0.

*Names of states.* With a .sta file, the tuple of the values of the variables, such as (0, True). Otherwise the
propositions (other than init and deadlock) if each state has exactly one and no two states share one; otherwise none.

*Rewards.* The reward of a state is its own plus the expectation over its transitions, r(i) + Σ_j P(i,j) r(i,j); an MDP
with transition rewards has one per choice, (n, n_actions). If there are several reward structures (PRISM: model1.srew,
model2.srew; Storm: model.NAME.state.rew), select one by number or name: ``rewards=2`` or ``rewards="steps"``. The name
of a proposition selects the reward 1 where it holds.

PRISM adds a self-loop to deadlock states, which have no outgoing transition; this is ``unseen="self-loop"``. An MDP in
which every state has one choice is read as a chain.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Integers
from diffbisim.common.errors import InvalidData
from diffbisim.io import limits
from diffbisim.io.files import broken, open_text, replacing, within_memory
from diffbisim.io.tables import Table, chain_of_edges, check_rows, check_states, is_integer
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.counting import MOST_FILLED
from diffbisim.processes.explicit import OWN_PROPOSITIONS, remark_on_actions, remark_on_rewards
from diffbisim.processes.mdp import MDP

REWARDS = r"(?P<number>\d*)\.(?P<kind>srew|rews|rew|trew|rewt)"
STORM_REWARDS = r"(\.(?P<name>[^.]+))?\.(?P<kind>state|trans)\.rew"
STATE_KINDS = ("srew", "rews", "rew", "state")  # the other kinds are transition rewards
COUNTS = {2: '"states transitions"', 3: '"states choices transitions"'}  # the first line
CHAIN = ("source", "target", "probability")
CHOICES = ("source", "choice", "target", "probability")
STORM = {"dtmc": CHAIN, "mdp": CHOICES}
OTHER_MODELS = ("ctmc", "ma", "pomdp", "smg")
MISMATCH = "they do not belong together"


def read_prism(path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: Any = "error") -> MarkovChain:
    """Read the chain in a .tra file and its companions; ``initial`` and ``rewards`` override or select theirs."""
    model = _read_transitions(Path(path))
    if model.several:
        raise InvalidData(f"{path} holds an MDP (states have several choices); read it with read_mdp")
    return _chain(model, initial, rewards, unseen)


@within_memory
def read_model(path: str | Path, *, rewards: Any = None, unseen: Any = "error") -> MarkovChain | MDP:
    """Read a .tra file: an MDP if a state has several choices, else a chain."""
    model = _read_transitions(Path(path))
    return (_mdp if model.several else _chain)(model, None, rewards, unseen)


def _chain(model: TransitionColumns, initial: Any, rewards: Any, unseen: Any) -> MarkovChain:
    path, n = model.table.path, model.n
    unseen = "error" if unseen == "repeat" else unseen  # a chain has no other choice to repeat
    propositions = _propositions(path, n)
    names = _state_names(path, n, propositions)
    return chain_of_edges(
        model.table, model.source, model.target, model.probability, states=n, names=names,
        initial=_start(n, propositions, initial), rewards=_rewards(model, propositions, rewards, names), unseen=unseen,
    )  # fmt: skip


@within_memory
def read_mdp(path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: Any = "error") -> MDP:
    """Read the MDP in a .tra file and its companions, with CSR kernels; action k is PRISM's choice k.

    ``unseen`` says how to treat choices that a state does not have. Action names are kept if each belongs to the same
    choice in all states. ``rewards`` overrides or selects those of the companion files.
    """
    model = _read_transitions(Path(path))
    if model.choice is None:
        raise InvalidData(f"{path} holds a Markov chain; read it with read_chain")
    return _mdp(model, initial, rewards, unseen)


def _mdp(model: TransitionColumns, initial: Any, rewards: Any, unseen: Any) -> MDP:
    table, n, i, j, p = model.table, model.n, model.source, model.target, model.probability
    path, a = table.path, np.zeros_like(i) if model.choice is None else model.choice
    if model.n_actions > limits.CHOICES:
        table.fault(int(a.argmax()), f"more than {limits.CHOICES:,} choices; raise diffbisim.io.limits.CHOICES")
    check_states(path, model.n_actions * n, a.size, f"choices ({model.n_actions:,} of each of {n:,} states)")
    stacked = a * n + i
    check_rows(table, stacked, j, p, lambda row: f"choice {row // n} of state {row % n}")
    P = sp.csr_array((p, (stacked, j)), shape=(model.n_actions * n, n))
    P = _filled(path, P, n, unseen)
    kernels = [P[k * n : (k + 1) * n] for k in range(model.n_actions)]
    propositions = _propositions(path, n)
    names, actions = _state_names(path, n, propositions), _action_names(table, a, model.n_actions)
    paid = _rewards(model, propositions, rewards, names)
    if actions is None and any(table.columns.get("action", ())):
        remark_on_actions(str(path), table.columns["action"])
    if unseen == "repeat" and paid is not rewards and np.ndim(paid) == 2:
        there = np.bincount(model.row, minlength=n * model.n_actions).reshape(-1, n).T > 0
        own = np.where(there, np.arange(model.n_actions), there.argmax(axis=1)[:, None])
        paid = paid[np.arange(n)[:, None], own]
    return MDP(
        _normalized(kernels), initial=_start(n, propositions, initial), rewards=paid,
        names=names, actions=actions,
    )  # fmt: skip


def read_prism_labels(path: str | Path) -> dict[str, Integers]:
    """Read a .lab file: a dict from propositions to the states (ascending) in which they hold."""
    lines = _read_lines(Path(path), comments=True)
    members = _storm_labels(lines) if lines.texts[0] == "#DECLARATION" else _prism_labels(_read_lines(Path(path)))
    return {name: np.unique(np.array(states, dtype=np.int64)) for name, states in members.items()}


def _prism_labels(lines: Lines) -> dict[str, list[int]]:
    header = lines.texts[0]
    if not re.fullmatch(r'(\d{1,18}="[^"]*"\s*)+', header):
        raise lines.broken(0, 'expected a header such as 0="init" 1="deadlock"')
    names = dict(re.findall(r'(\d+)="([^"]*)"', header))
    members: dict[str, list[int]] = {name: [] for name in names.values()}
    for k, text in enumerate(lines.texts[1:], start=1):
        match = re.fullmatch(r"(\d{1,18})\s*:([\d\s]*)", text)
        if match is None:
            raise lines.broken(k, 'expected "state: label numbers", such as 3: 0 2')
        for number in match[2].split():
            if number not in names:
                raise lines.broken(k, f"label {number} is not in the header")
            members[names[number]].append(int(match[1]))
    return members


def _storm_labels(lines: Lines) -> dict[str, list[int]]:
    """Parse #DECLARATION, names, #END, and then lines with a state and the names that hold in it."""
    members: dict[str, list[int]] = {}
    declaring = False
    for k, text in enumerate(lines.texts):
        if text in ("#DECLARATION", "#END"):
            declaring = text == "#DECLARATION"
            continue
        if declaring:
            members.update((name, []) for name in text.split())
            continue
        state, *names = text.split()
        if not (state.isdecimal() and len(state) <= 18):
            raise lines.broken(k, 'expected "state names", such as 3 init goal')
        for name in names:
            if name not in members:
                raise lines.broken(k, f"{name} is not declared between #DECLARATION and #END")
            members[name].append(int(state))
    return members


def read_prism_states(path: str | Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Read the names of the variables in a .sta file, and their values in each state (int, bool or str)."""
    lines = _read_lines(Path(path))
    header = re.fullmatch(r"\((.*)\)", lines.texts[0])
    if header is None:
        raise lines.broken(0, "expected the names of the variables, such as (x,y)")
    names = [name.strip() for name in header[1].split(",")]
    states: dict[tuple[Any, ...], int] = {}
    for k, text in enumerate(lines.texts[1:]):
        match = re.fullmatch(r"(\d+)\s*:\s*\((.*)\)", text)
        values = tuple(map(_value, match[2].split(","))) if match is not None else ()
        if match is None or len(values) != len(names):
            raise lines.broken(k + 1, f"expected a state and its {len(names)} values, such as {k}:(0,true)")
        if match[1] != str(k):
            raise lines.broken(k + 1, f"expected state {k}; states must be listed in order, without gaps")
        if states.setdefault(values, k) != k:
            raise lines.broken(k + 1, f"repeats the values of state {states[values]}; values must be distinct")
    return names, list(states)


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return int(text) if is_integer(text) else text


def read_prism_rewards(path: str | Path) -> Floats:
    """Read the state rewards (n,) of a .srew file; states that are not listed have reward 0."""
    n, table = _counted_table(_read_lines(Path(path)), {2: ("state", "reward")})
    return _state_rewards(table, n)


def _state_rewards(table: Table, n: int) -> Floats:
    state, values = _below(table, "state", n), table.floats("reward", least=-np.inf)
    _no_repeats(table, state)
    rewards = np.zeros(n)
    rewards[state] = values
    return rewards


# --- companion files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardFiles:
    """The files of a reward structure, with state and transition rewards."""

    key: str  # number, Storm's name, or ""
    state: Path | None = None
    transition: Path | None = None

    @property
    def files(self) -> list[Path]:
        return [file for file in (self.state, self.transition) if file is not None]

    @cached_property
    def name(self) -> str:
        """The name in PRISM's comment, otherwise the number or Storm's name."""
        for file in self.files:
            with open_text(file) as lines:
                for line in islice(lines, 2):
                    if found := re.match(r'#\s*Reward structure:?\s+"([^"]*)"', line):
                        return found[1]
        return self.key

    def __str__(self) -> str:
        names = dict.fromkeys((self.key, f'"{self.name}"')) if self.name != self.key else {self.key: None}
        return f"{' '.join(filter(None, names))} ({', '.join(file.name for file in self.files)})".strip()


def reward_structures(path: Path) -> list[RewardFiles]:
    """Return the reward structures of a .tra file, sorted by number or name, except for files of another .tra."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(path.parent.glob(f"{glob.escape(path.stem)}*")):
        rest = file.name[len(path.stem) :]
        match = re.fullmatch(STORM_REWARDS, rest) or re.fullmatch(REWARDS, rest)
        if match is None:
            continue
        parts = match.groupdict()
        infix = f".{parts['name']}" if parts.get("name") else parts.get("number") or ""
        if infix and path.with_name(f"{path.stem}{infix}.tra").exists():
            continue
        kind = "state" if parts["kind"] in STATE_KINDS else "transition"
        files = found.setdefault(infix.lstrip("."), {})
        if kind in files:
            raise InvalidData(f"{files[kind]} and {file.name} both contain {kind} rewards of {path.name}; remove one")
        files[kind] = file
    keys = sorted(found, key=lambda key: (int(key) if key.isdecimal() else -1, key))
    return [RewardFiles(key, **found[key]) for key in keys]


def describe(path: str | Path) -> dict[str, Any]:
    """Summarize the companions of a .tra file: propositions with their numbers of states, variables, rewards.

    ``reward_names`` select the reward structures.
    """
    path = Path(path)
    labels, states = path.with_suffix(".lab"), path.with_suffix(".sta")
    propositions = read_prism_labels(labels) if labels.exists() else {}
    return {
        "propositions": {name: int(found.size) for name, found in propositions.items()},
        "variables": read_prism_states(states)[0] if states.exists() else [],
        "reward_structures": [str(structure) for structure in reward_structures(path)],
        "reward_names": [structure.name or structure.key for structure in reward_structures(path)],
    }


def _propositions(path: Path, n: int) -> dict[str, Integers]:
    labels = path.with_suffix(".lab")
    if not labels.exists():
        return {}
    propositions = read_prism_labels(labels)
    for name, states in propositions.items():
        if states.size and states[-1] >= n:
            raise InvalidData(f"{labels}: state {states[-1]} is labeled {name}, but {path.name} has {n} states")
    return propositions


def _start(n: int, propositions: dict[str, Integers], initial: Any) -> Any:
    """Return the given initial distribution, else the uniform one on the states labeled "init", else state 0."""
    states = propositions.get("init")
    if initial is not None or states is None or states.size == 0:
        return 0 if initial is None else initial
    start = np.zeros(n)
    start[states] = 1.0 / states.size
    return start


def _state_names(path: Path, n: int, propositions: dict[str, Integers]) -> list[Hashable] | None:
    """Return the values of the variables, else propositions that identify the states, else None."""
    file = path.with_suffix(".sta")
    if file.exists():
        _, states = read_prism_states(file)
        if len(states) != n:
            raise InvalidData(f"{file} is for {len(states)} states, but {path.name} has {n}; {MISMATCH}")
        return list(states)
    own = {name: states for name, states in propositions.items() if name not in OWN_PROPOSITIONS}
    if len(own) != n or any(states.size != 1 for states in own.values()):
        return None
    names = {int(states[0]): name for name, states in own.items()}
    return [names[k] for k in range(n)] if len(names) == n else None


def _rewards(model: TransitionColumns, propositions: dict[str, Integers], rewards: Any, names: Any) -> Any:
    """Return the given rewards, else those of the selected structure or proposition, or of the only structure."""
    chosen = isinstance(rewards, (str, int)) and not isinstance(rewards, bool)
    if rewards is not None and not chosen:
        return rewards
    path, n = model.table.path, model.n
    structures = reward_structures(path)
    if rewards is None:
        fitting = structures
    else:
        fitting = [s for s in structures if str(rewards) in (s.key, s.name or "default")]
        if not fitting and rewards in propositions:
            return np.bincount(propositions[str(rewards)], minlength=n).astype(np.float64)
    if len(fitting) > 1 or (chosen and not fitting):
        if not structures and not propositions:
            raise InvalidData(f"{path}: it has no files with rewards or propositions, so none is called {rewards!r}")
        listed = "; ".join(map(str, structures)) or "none"
        also = ", ".join(propositions)
        what = f"it has no rewards called {rewards!r}" if chosen else f"it has {len(fitting)} reward structures"
        named = [name for s in structures if (name := s.name or s.key)]
        example = next(iter((*named, *propositions)), "name")
        raise InvalidData(
            f'{path}: {what}; choose by name or number, such as rewards="{example}", from {listed}'
            + (f"; or a proposition: {also}" if also else "")
        )
    paid = _expected(model, fitting[0]) if fitting else None
    if not chosen:
        own = {} if names is not None and set(names) <= set(propositions) else propositions
        remark_on_rewards(str(path), fitting[0].name if fitting else None, paid, own)
    return paid


def _expected(model: TransitionColumns, structure: RewardFiles) -> Floats:
    """Return r(i) + Σ_j P(i,j) r(i,j), (n,), or (n, n_actions) for an MDP with transition rewards."""
    path, n = model.table.path, model.n
    r = np.zeros(n)
    if structure.state is not None:
        if model.storm:
            r = _state_rewards(_table(_read_lines(structure.state), ("state", "reward")), n)
        else:
            r = read_prism_rewards(structure.state)
        if r.size != n:
            raise InvalidData(f"{structure.state} is for {r.size} states, but {path.name} has {n}; {MISMATCH}")
    if structure.transition is None:
        return r
    row, j, values = _transition_rewards(model, structure.transition)
    stacked = model.row
    total = np.bincount(stacked, model.probability, minlength=model.n_actions * n)
    P = sp.csr_array((model.probability / total[stacked], (stacked, model.target)), shape=(model.n_actions * n, n))
    expected = np.bincount(row, np.asarray(P[row, j]).ravel() * values, minlength=model.n_actions * n)
    each = r[:, None] + expected.reshape(model.n_actions, n).T
    return each if model.n_actions > 1 else each[:, 0]


def _transition_rewards(model: TransitionColumns, file: Path) -> tuple[Integers, Integers, Floats]:
    """Read the rows (choice · n + source), targets and rewards of a file of transition rewards."""
    short, long = ("source", "target", "reward"), ("source", "choice", "target", "reward")
    if model.storm:
        table = _table(_read_lines(file), short if model.choice is None else long)
    else:
        n, table = _counted_table(_read_lines(file), {2: short, 3: long})
        if n != model.n:
            raise InvalidData(f"{file} is for {n} states, but {model.table.path.name} has {model.n}; {MISMATCH}")
    i, j = _below(table, "source", model.n), _below(table, "target", model.n)
    row = i + model.n * table.integers("choice") if "choice" in table.columns else i
    place = row * model.n + j
    _no_repeats(table, place)
    unknown = ~np.isin(place, model.row * model.n + model.target)
    if unknown.any():
        table.fault(int(unknown.argmax()), f"{model.table.path.name} has no such transition")
    return row, j, table.floats("reward", least=-np.inf)


def _no_repeats(table: Table, place: Integers) -> None:
    _, first = np.unique(place, return_index=True)
    if first.size < place.size:
        table.fault(int(np.setdiff1d(np.arange(place.size), first)[0]), "already has a reward; remove one")


# --- writing ------------------------------------------------------------------------------------------------------


def write_prism(chain: MarkovChain, path: str | Path) -> None:
    """Write a .tra file, a .lab file with the initial states and, given rewards, a .srew file; names are lost."""
    path = Path(path)
    start = np.flatnonzero(chain.initial)
    if chain.rewards is not None and chain.rewards.ndim > 1:
        raise InvalidData("PRISM has one reward per state, but this chain has several; write .npz instead")
    if not np.allclose(chain.initial[start], 1.0 / start.size):
        raise InvalidData("PRISM needs a uniform initial distribution, but this one is not; write .npz instead")
    stale = [(file, "rewards") for structure in reward_structures(path) for file in structure.files]
    stale += [(file, "states") for file in (path.with_suffix(".sta"),) if file.exists()]
    for other, what in stale:
        if chain.rewards is None or other != path.with_suffix(".srew"):
            raise InvalidData(f"{other} would be read as {what} of this chain; remove it, or rename {path.name}")
    with replacing(path) as file:
        successors = chain.successors
        source = successors.sources.tolist()
        file.write(f"{chain.n_states} {chain.n_transitions}\n")
        rows = zip(source, successors.indices.tolist(), successors.probabilities.tolist(), strict=True)
        file.writelines(f"{i} {j} {p!r}\n" for i, j, p in rows)
    with replacing(path.with_suffix(".lab")) as file:
        file.write('0="init" 1="deadlock"\n')
        file.writelines(f"{i}: 0\n" for i in start.tolist())
    if chain.rewards is not None:
        paid = np.flatnonzero(chain.rewards).tolist()
        with replacing(path.with_suffix(".srew")) as file:
            file.write(f"{chain.n_states} {len(paid)}\n")
            file.writelines(f"{i} {float(chain.rewards[i])!r}\n" for i in paid)


# --- reading lines ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TransitionColumns:
    """The transitions of a .tra file as columns (m,)."""

    table: Table
    n: int
    source: Integers
    target: Integers
    probability: Floats
    choice: Integers | None  # None for a chain
    storm: bool  # whether the files are in Storm's dialect

    @property
    def n_actions(self) -> int:
        return 1 if self.choice is None else int(self.choice.max()) + 1

    @property
    def several(self) -> bool:
        """Whether some state has several choices."""
        return self.n_actions > 1

    @property
    def row(self) -> Integers:
        """Row of each transition in the stacked kernels, choice · n + source."""
        return self.source if self.choice is None else self.choice * self.n + self.source


def _read_transitions(path: Path) -> TransitionColumns:
    """Read a .tra file and check it against its header."""
    lines = _read_lines(path)
    word = lines.texts[0].lower()
    if word in OTHER_MODELS:
        raise lines.broken(0, "only dtmc and mdp are supported")
    if storm := word in STORM:
        n, table = 0, _table(lines.after_header(), STORM[word])
    else:
        n, table = _counted_table(lines, {2: CHAIN, 3: CHOICES}, optional=("action",))
    if not table.columns["source"]:
        raise broken(path, 1, "", "the file contains no transitions")
    if storm:
        n = 1 + max(int(table.integers(name).max()) for name in ("source", "target"))
        check_states(path, n, len(table.columns["source"]))
    source, target = _below(table, "source", n), _below(table, "target", n)
    choice = table.integers("choice") if "choice" in table.columns else None
    if choice is not None and (choice < 0).any():
        table.fault(int((choice < 0).argmax()), "choice must be non-negative")
    return TransitionColumns(table, n, source, target, table.floats("probability"), choice, storm)


class Lines(NamedTuple):
    """The non-empty lines of a file, with their line numbers."""

    path: Path
    numbers: list[int]
    texts: list[str]

    def broken(self, k: int, why: str) -> InvalidData:
        return broken(self.path, self.numbers[k], self.texts[k], why)

    def after_header(self) -> Lines:
        return Lines(self.path, self.numbers[1:], self.texts[1:])


def _read_lines(path: Path, comments: bool = False) -> Lines:
    """Read the lines that are neither blank nor (by default) comments; there must be at least one."""
    lines = Lines(path, [], [])
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.strip()
            if text and (comments or not text.startswith("#")):
                lines.numbers.append(number)
                lines.texts.append(text)
    if not lines.texts:
        raise broken(path, 1, "", "the file is empty")
    return lines


def _counted_table(
    lines: Lines, shapes: dict[int, tuple[str, ...]], optional: tuple[str, ...] = ()
) -> tuple[int, Table]:
    """Read a file whose first line has the numbers of states, optionally choices, and rows; return states and rows.

    ``shapes`` maps the number of counts to the names of the columns.
    """
    header, rows = lines.texts[0], lines.after_header()
    counts = [int(word) if word.isdecimal() and len(word) <= 18 else -1 for word in header.split()]
    if len(counts) not in shapes or min(counts) < 0:
        expected = " or ".join(COUNTS[k] for k in shapes)
        raise lines.broken(0, f"the first line must contain the counts {expected}")
    if counts[0] > limits.STATES:
        raise lines.broken(0, f"more than {limits.STATES:,} states; raise diffbisim.io.limits.STATES")
    if len(rows.texts) != counts[-1]:
        why = f"the header announces {counts[-1]} lines, but {len(rows.texts)} follow; is the file complete?"
        raise lines.broken(0, why)
    short = shapes[2]
    alike = set(map(len, map(str.split, rows.texts))) == {len(short)}
    return counts[0], _table(rows, short if alike else shapes[len(counts)], optional)


def _table(lines: Lines, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> Table:
    """Split lines into one word per name; optional words at the end default to ""."""
    widths = set(map(len, map(str.split, lines.texts)))
    allowed = {len(names), len(names) + len(optional)}
    for k in range(len(lines.texts)) if widths - allowed else ():
        if (found := len(lines.texts[k].split())) not in allowed:
            raise lines.broken(k, f"expected {' '.join(names)}, found {found} fields")
    if max(widths, default=0) > len(names):
        names = (*names, *optional)
    width, words = len(names), " ".join(lines.texts).split()
    if len(words) != width * len(lines.texts):
        padded = [text.split() for text in lines.texts]
        words = [word for row in padded for word in (*row, *[""] * (width - len(row)))]
    columns: dict[str, Sequence[str]] = {name: words[k::width] for k, name in enumerate(names)}
    return Table(lines.path, columns, lines.numbers.__getitem__, " ")


def _below(table: Table, name: str, n: int) -> Integers:
    numbers = table.integers(name)
    bad = (numbers < 0) | (numbers >= n)
    if bad.any():
        table.fault(int(bad.argmax()), f"{name} must be a state from 0 to {n - 1}")
    return numbers


def _filled(path: Path, P: sp.csr_array, n: int, unseen: str) -> sp.csr_array:
    """Fill the rows of choices that a state does not have."""
    empty = np.flatnonzero(np.diff(P.indptr) == 0)
    if empty.size == 0:
        return P
    if unseen == "repeat":
        there = np.diff(P.indptr).reshape(-1, n) > 0
        if there.any(axis=0).all():
            rows = np.where(there, np.arange(P.shape[0]).reshape(-1, n), there.argmax(axis=0) * n + np.arange(n))
            return P[rows.ravel()]
    if unseen not in ("self-loop", "uniform"):
        choice, state = divmod(int(empty[0]), n)
        raise InvalidData(
            f"{path}: state {state} has no choice {choice} (missing choices: {empty.size}), but in an MDP every action "
            'is available in every state; pass unseen="repeat" (use its first choice), "self-loop" or "uniform"'
        )
    rows, columns = empty, empty % n
    if unseen == "uniform" and empty.size * n > MOST_FILLED:
        raise InvalidData(f'{path}: unseen="uniform" would add {empty.size * n:,} transitions; use "self-loop"')
    if unseen == "uniform":
        rows, columns = np.repeat(empty, n), np.tile(np.arange(n), empty.size)
    entries = np.full(rows.size, empty.size / rows.size)
    return sp.csr_array(P + sp.csr_array((entries, (rows, columns)), shape=P.shape))


def _normalized(kernels: list[sp.csr_array]) -> list[sp.csr_array]:
    """Divide rows by their sums, since probabilities in text files are rounded."""
    for P in kernels:
        P.data /= np.repeat(P.sum(axis=1), np.diff(P.indptr))
    return kernels


def _action_names(table: Table, choices: Integers, n_actions: int) -> list[str] | None:
    names: dict[int, set[str]] = {k: set() for k in range(n_actions)}
    for k, name in zip(choices.tolist(), table.columns.get("action", ()), strict=False):
        names[k].add(name)
    each = [next(iter(found)) for found in names.values() if len(found) == 1]
    return each if len(set(each)) == n_actions and "" not in each else None
