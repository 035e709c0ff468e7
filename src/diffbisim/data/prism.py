"""PRISM's explicit files: the transitions of a model that PRISM or Storm has built, one per line.

    model.tra    "n m", then "i j x [action]"              a Markov chain: m transitions of probability x
                 "n c m", then "i k j x [action]"          an MDP: choice k of state i leads to j
    model.lab    0="init" 1="deadlock" …, then "i: 0 2"    the labels that hold in state i
    model.srew   "n m", then "i r"                         rewards of states; those not listed are 0

States are counted from 0; lines that begin with # are comments (newer PRISM versions write them). Given a
.tra file, the neighbors with the same stem are read too (.srew may also be called .rews or .rew). The states
labeled "init" are the start, each as likely as the others, as PRISM assumes; without a .lab file the start
is 0. PRISM gives deadlock states, which have no outgoing transition, a self-loop: here that is
``unseen="self-loop"``. An MDP whose states have one choice each is read as the chain that it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain, Unseen
from diffbisim.checks import Floats, Integers
from diffbisim.data import limits
from diffbisim.data.counting import MOST_FILLED
from diffbisim.data.reader import within_memory
from diffbisim.data.tables import Table, broken, chain_of_edges, check_rows, check_states, opened, replacing
from diffbisim.errors import InvalidData
from diffbisim.mdp import MDP

REWARD_SUFFIXES = (".srew", ".rews", ".rew")
COUNTS = {2: '"states transitions"', 3: '"states choices transitions"'}
CHAIN = ("source", "target", "probability")
CHOICES = ("source", "choice", "target", "probability")


def read_prism(path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: Unseen = "error") -> MarkovChain:
    """The chain in a .tra file and its neighbors; ``initial`` and ``rewards`` override theirs."""
    path = Path(path)
    n, table = _read_transitions(path)
    if "choice" in table.columns and any(table.integers("choice")):
        raise InvalidData(f"{path} holds an MDP (states have several choices); read it with read_mdp")
    i, j, p = table.integers("source"), table.integers("target"), table.floats("probability")
    options = {"initial": _start(path, n, initial), "rewards": _rewards(path, n, rewards), "unseen": unseen}
    return chain_of_edges(table, i, j, p, states=n, **options)


@within_memory
def read_mdp(path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: Unseen = "error") -> MDP:
    """The MDP in a .tra file and its neighbors, with CSR kernels; action k is PRISM's choice k.

    States may have fewer choices than others; for the missing ones ``unseen`` says "error", "self-loop" or
    "uniform". Action names are kept when each belongs to one choice everywhere.
    """
    path = Path(path)
    n, table = _read_transitions(path)
    if "choice" not in table.columns:
        raise InvalidData(f"{path} holds a Markov chain; read it with read_chain")
    a, i, j = table.integers("choice"), table.integers("source"), table.integers("target")
    if (a < 0).any():
        table.fault(int((a < 0).argmax()), "choice must be at least 0")
    n_actions = int(a.max()) + 1
    if n_actions > limits.CHOICES:
        table.fault(int(a.argmax()), f"more than {limits.CHOICES:,} choices; raise diffbisim.data.limits.CHOICES")
    check_states(path, n_actions * n, a.size, f"choices ({n_actions:,} of each of {n:,} states)")
    stacked, p = a * n + i, table.floats("probability")
    check_rows(table, stacked, j, p, lambda row: f"choice {row // n} of state {row % n}")
    P = sp.csr_array((p, (stacked, j)), shape=(n_actions * n, n))
    P = _filled(path, P, n, unseen)
    kernels = [P[k * n : (k + 1) * n] for k in range(n_actions)]
    start, r = _start(path, n, initial), _rewards(path, n, rewards)
    return MDP(_normalized(kernels), initial=start, rewards=r, actions=_action_names(table, a, n_actions))


def read_prism_labels(path: str | Path) -> dict[str, Integers]:
    """The label sets of a .lab file: name -> the states (ascending) in which it holds."""
    path = Path(path)
    numbers, texts = _lines(path)
    header = texts[0]
    names = dict(re.findall(r'(\d{1,18})="([^"]*)"', header))
    if not names:
        raise broken(path, numbers[0], header, 'expected a header such as 0="init" 1="deadlock"')
    members: dict[str, list[int]] = {name: [] for name in names.values()}
    for line, text in zip(numbers[1:], texts[1:], strict=True):
        match = re.fullmatch(r"(\d{1,18})\s*:([\d\s]*)", text)
        if match is None:
            raise broken(path, line, text, 'expected "state: label numbers", such as 3: 0 2')
        for number in match[2].split():
            if number not in names:
                raise broken(path, line, text, f"label {number} is not in the header")
            members[names[number]].append(int(match[1]))
    return {name: np.unique(np.array(states, dtype=np.int64)) for name, states in members.items()}


def read_prism_rewards(path: str | Path) -> Floats:
    """The state rewards (n,) of a .srew file; states that are not listed have reward 0."""
    path = Path(path)
    (n, _), table = _numbered(path, ("state", "reward"), {2: ("state", "reward")})
    state = _below(table, "state", n)
    rewards = np.zeros(n)
    rewards[state] = table.floats("reward", least=-np.inf)
    return rewards


def write_prism(chain: MarkovChain, path: str | Path) -> None:
    """A .tra file, a .lab file with the start and, given rewards, a .srew file; state labels are lost."""
    path = Path(path)
    start = np.flatnonzero(chain.initial)
    if not np.allclose(chain.initial[start], 1.0 / start.size):
        raise InvalidData("PRISM starts in each initial state with the same probability; write .npz instead")
    stale = [path.with_suffix(s) for s in REWARD_SUFFIXES if path.with_suffix(s).exists()]
    if stale and (chain.rewards is None or stale[0].suffix != ".srew"):
        raise InvalidData(f"{stale[0]} would be read as the rewards of this chain; remove it or rename {path.name}")
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


def _read_transitions(path: Path) -> tuple[int, Table]:
    """Number of states and the table of a .tra file, checked against its header."""
    shapes = {2: CHAIN, 3: CHOICES}
    (n, *_), table = _numbered(path, CHAIN, shapes)
    if not table.columns["source"]:
        raise broken(path, 1, "", "the file holds no transitions")
    for name in ("source", "target"):
        _below(table, name, n)
    return n, table


def _numbered(path: Path, fields: tuple[str, ...], shapes: dict[int, tuple[str, ...]]) -> tuple[list[int], Table]:
    """A file whose first line counts states … rows: these counts, and its rows as a table."""
    numbers, texts = _lines(path)
    line, header = numbers.pop(0), texts.pop(0)
    counts = [int(word) if word.isdecimal() and len(word) <= 18 else -1 for word in header.split()]
    if len(counts) not in shapes or min(counts) < 0:
        expected = " or ".join(COUNTS[k] for k in shapes)
        raise broken(path, line, header, f"the first line must hold the counts {expected}")
    if counts[0] > limits.STATES:
        why = f"more than {limits.STATES:,} states; raise diffbisim.data.limits.STATES"
        raise broken(path, line, header, why)
    if len(texts) != counts[-1]:
        why = f"the header promises {counts[-1]} lines, {len(texts)} follow; is the file complete?"
        raise broken(path, line, header, why)
    widths = set(map(len, map(str.split, texts)))
    names = fields if widths == {len(fields)} else shapes[len(counts)]
    most = len(names) + (names[-1] == "probability")
    for k in range(len(texts)) if widths - {len(names), most} else ():
        if (found := len(texts[k].split())) not in (len(names), most):
            raise broken(path, numbers[k], texts[k], f"expected {' '.join(names)}, found {found} fields")
    if max(widths, default=0) > len(names):
        names = (*names, "action")
    return counts, Table(path, _columns(texts, names), numbers.__getitem__, " ")


def _columns(texts: list[str], names: tuple[str, ...]) -> dict[str, Sequence[str]]:
    """Columns of lines with one word per name; a line that lacks the last word has "" there."""
    width = len(names)
    words = " ".join(texts).split()
    if len(words) != width * len(texts):
        padded = [text.split() for text in texts]
        words = [word for row in padded for word in (*row, *[""] * (width - len(row)))]
    return {name: words[k::width] for k, name in enumerate(names)}


def _lines(path: Path) -> tuple[list[int], list[str]]:
    """Numbers and texts of the lines that are neither blank nor comments."""
    numbers, texts = [], []
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.strip()
            if text and not text.startswith("#"):
                numbers.append(number)
                texts.append(text)
    if not texts:
        raise broken(path, 1, "", "the file is empty")
    return numbers, texts


def _below(table: Table, name: str, n: int) -> Integers:
    numbers = table.integers(name)
    bad = (numbers < 0) | (numbers >= n)
    if bad.any():
        table.fault(int(bad.argmax()), f"{name} must be a state from 0 to {n - 1}")
    return numbers


def _start(path: Path, n: int, initial: Any) -> Any:
    """The given start, else uniform on the states labeled "init", else state 0."""
    labels = path.with_suffix(".lab")
    if initial is not None or not labels.exists():
        return 0 if initial is None else initial
    states = read_prism_labels(labels).get("init", np.empty(0, dtype=np.int64))
    if states.size == 0:
        return 0
    if states[-1] >= n:
        raise InvalidData(f"{labels}: state {states[-1]} is labeled init, but {path.name} has {n} states")
    start = np.zeros(n)
    start[states] = 1.0 / states.size
    return start


def _rewards(path: Path, n: int, rewards: Any) -> Any:
    found = [path.with_suffix(suffix) for suffix in REWARD_SUFFIXES if path.with_suffix(suffix).exists()]
    if rewards is not None or not found:
        return rewards
    values = read_prism_rewards(found[0])
    if values.size != n:
        raise InvalidData(f"{found[0]} is for {values.size} states, {path.name} has {n}; they belong apart")
    return values


def _filled(path: Path, P: sp.csr_array, n: int, unseen: str) -> sp.csr_array:
    """The stacked kernels with something in the rows of choices that a state does not have."""
    empty = np.flatnonzero(np.diff(P.indptr) == 0)
    if empty.size == 0:
        return P
    if unseen not in ("self-loop", "uniform"):
        choice, state = divmod(int(empty[0]), n)
        raise InvalidData(
            f"{path}: state {state} has no choice {choice} ({empty.size} such gaps); "
            'every action must exist in every state: pass unseen="self-loop" or "uniform"'
        )
    rows, columns = empty, empty % n
    if unseen == "uniform" and empty.size * n > MOST_FILLED:
        raise InvalidData(f'{path}: unseen="uniform" would add {empty.size * n:,} transitions; use "self-loop"')
    if unseen == "uniform":
        rows, columns = np.repeat(empty, n), np.tile(np.arange(n), empty.size)
    entries = np.full(rows.size, empty.size / rows.size)
    return sp.csr_array(P + sp.csr_array((entries, (rows, columns)), shape=P.shape))


def _normalized(kernels: list[sp.csr_array]) -> list[sp.csr_array]:
    """Rows divided by their sums, which the text has rounded."""
    for P in kernels:
        P.data /= np.repeat(P.sum(axis=1), np.diff(P.indptr))
    return kernels


def _action_names(table: Table, choices: Integers, n_actions: int) -> list[str] | None:
    names: dict[int, set[str]] = {k: set() for k in range(n_actions)}
    for k, name in zip(choices.tolist(), table.columns.get("action", ()), strict=False):
        names[k].add(name)
    each = [next(iter(found)) for found in names.values() if len(found) == 1]
    return each if len(set(each)) == n_actions and "" not in each else None
