"""Chains in files: which format a file has, and the door to all of them.

    .npz            everything a chain has, exactly                         diffbisim.io.npz
    .tra            PRISM explicit, with .lab and .srew beside it           diffbisim.io.prism
    .csv, .tsv      a table with a header that says what its rows are:

        from,to,probability           edges of a chain; what leaves a state sums to one
        state,next_state[,weight]     observed transitions; the chain is estimated
        episode,t,state               trajectories, rows in any order, t consecutive in an episode

State columns that hold only integers are state numbers, others are labels. Files that cannot be read raise
`InvalidData` with file, line, text and remedy; files are written beside and moved into place, never half.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions, Unseen
from diffbisim.errors import InvalidArgument, InvalidData
from diffbisim.io.files import broken, naming, replacing, within_memory
from diffbisim.io.npz import read_npz, write_npz
from diffbisim.io.prism import read_mdp, read_prism, write_prism
from diffbisim.io.tables import Table, chain_of_edges, check_states, is_integer, read_columns

__all__ = ["read_chain", "read_csv", "read_mdp", "read_transitions", "write_chain", "write_csv"]

FORMATS = {".csv": "csv", ".tsv": "csv", ".npz": "npz", ".tra": "prism"}
EDGES, PAIRS, STEPS = ("from", "to", "probability"), ("state", "next_state"), ("episode", "t", "state")


@within_memory
def read_chain(
    path: str | Path,
    *,
    format: str | None = None,
    initial: Any = None,
    rewards: Any = None,
    unseen: Unseen = "error",
) -> MarkovChain:
    """The chain in a file; the format is "csv", "npz" or "prism", by default what the extension says.

    ``initial`` and ``rewards`` override what the file holds. ``unseen`` decides on states without an outgoing
    transition, as in `MarkovChain.from_transitions`.
    """
    kind = _format(path, format)
    read: Callable[..., MarkovChain] = {"npz": read_npz, "prism": read_prism, "csv": read_csv}[kind]
    options = {} if kind == "npz" else {"unseen": unseen}
    return read(path, initial=initial, rewards=rewards, **options)


def write_chain(chain: MarkovChain, path: str | Path, format: str | None = None) -> None:
    """Write a chain: .npz holds all of it; .tra its start (if uniform) and rewards; .csv the kernel only."""
    if not isinstance(chain, MarkovChain):
        raise InvalidArgument(f"chain is a {type(chain).__name__}, not a MarkovChain; a policy makes one of an MDP")
    write = {"npz": write_npz, "prism": write_prism, "csv": write_csv}[_format(path, format)]
    write(chain, path)


def read_csv(path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: Unseen = "error") -> MarkovChain:
    """The chain in a table of edges, transitions or trajectories; see the module's head."""
    table = read_columns(Path(path), "\t" if Path(path).suffix.lower() == ".tsv" else None)
    options: dict[str, Any] = {"initial": initial, "rewards": rewards, "unseen": unseen}
    if set(table.columns) == set(EDGES):
        source, target = table.states("from", "to")
        return chain_of_edges(table, source, target, table.floats("probability"), **options)
    with naming(table.path):
        if is_observed(table):
            data = _observed(table)
            if unseen in ("self-loop", "uniform"):
                check_states(table.path, data.n_states, len(data))
            return data.chain(**options)
    raise _header(table, "from,to,probability or state,next_state[,weight] or episode,t,state")


@within_memory
def read_transitions(path: str | Path, *, states: Any = None) -> Transitions:
    """What was observed, in a table of transitions or trajectories; ``states`` as in `Transitions.from_pairs`."""
    table = read_columns(Path(path), "\t" if Path(path).suffix.lower() == ".tsv" else None)
    if not is_observed(table):
        raise _header(table, "state,next_state[,weight] or episode,t,state")
    with naming(table.path):
        return _observed(table, states)


def is_observed(table: Table) -> bool:
    """Whether a table holds observations, by its header."""
    return set(table.columns) in (set(PAIRS), {*PAIRS, "weight"}, set(STEPS))


def _observed(table: Table, states: Any = None) -> Transitions:
    if set(table.columns) == set(STEPS):
        return Transitions.from_trajectories(_episodes(table), states=states)
    weights = table.floats("weight") if "weight" in table.columns else None
    return Transitions.from_pairs(*table.states(*PAIRS), weights=weights, states=states)


def _header(table: Table, expected: str) -> InvalidData:
    return broken(table.path, 1, table.delimiter.join(table.columns), f"the header must be {expected}")


def write_csv(chain: MarkovChain, path: str | Path) -> None:
    """A table ``from,to,probability`` of the kernel; start and rewards are given again when it is read."""
    path = Path(path)
    names = _plain_names(chain)
    successors = chain.successors
    source = successors.sources.tolist()
    with replacing(path) as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(EDGES)
        rows = zip(source, successors.indices.tolist(), successors.probabilities.tolist(), strict=True)
        writer.writerows((names[i], names[j], repr(p)) for i, j, p in rows)


def _plain_names(chain: MarkovChain) -> list[Any]:
    """The names of the states, if a table gives them back: all integers, or strings that are no numbers."""
    names = [chain.label(k) for k in range(chain.n_states)]
    if all(type(name) is int for name in names):
        return names
    for name in names:
        if not isinstance(name, str) or name != name.strip() or not name or is_integer(name):
            raise InvalidData(
                f"label {name!r} would not come back from a table (only integers, or strings that are no "
                "numbers, do); write .npz instead"
            )
    return names


def _episodes(table: Table) -> list[Any]:
    """The state sequences of a table episode,t,state, in order of first appearance of the episodes."""
    number = {name: k for k, name in enumerate(dict.fromkeys(table.columns["episode"]))}
    episode = np.array([number[name] for name in table.columns["episode"]], dtype=np.int64)
    t = table.integers("t")
    order = np.lexsort((t, episode))
    same, step = np.diff(episode[order]) == 0, np.diff(t[order])
    bad = same & (step != 1)
    if bad.any():
        k, before = int(order[1:][bad][0]), int(order[:-1][bad][0])
        fault = "repeats" if t[k] == t[before] else "leaves a gap after"
        table.fault(k, f"t = {t[k]} {fault} t = {t[before]} of line {table.line(before)}; t must be consecutive")
    (states,) = table.states("state")
    ordered = states[order] if isinstance(states, np.ndarray) else [states[k] for k in order]
    bounds = [0, *(np.flatnonzero(~same) + 1).tolist(), len(order)]
    return [ordered[begin:end] for begin, end in pairwise(bounds)]


def _format(path: str | Path, format: str | None) -> str:
    kind = FORMATS.get(Path(path).suffix.lower()) if format is None else format
    if kind not in ("csv", "npz", "prism"):
        what = f"{path}: the extension is not known" if format is None else f"format is {format!r}"
        raise InvalidArgument(f'{what}; use .csv, .tsv, .npz or .tra, or format="csv", "npz" or "prism"')
    return kind
