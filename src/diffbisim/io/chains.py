"""Chains in files: which format a file has, and the door to all of them.

    .npz            everything a chain has, exactly                         npz.py
    .tra            PRISM explicit, with .lab and .srew beside it           prism.py
    .drn, .pm, …    Storm's models, and programs that it builds models of   storm.py
    .csv, .tsv      edges, transitions or trajectories with a header        tables.py
    .xes, .parquet  logs and tables of events                               logs.py

Files that cannot be read raise `InvalidData` with file, line, text and remedy; files are written beside and moved into
place, never half.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from diffbisim.chain import MarkovChain, Unseen
from diffbisim.errors import InvalidArgument
from diffbisim.io.files import extension, within_memory
from diffbisim.io.logs import LOGS, read_events
from diffbisim.io.npz import read_npz, write_npz
from diffbisim.io.prism import read_mdp as read_tra_mdp
from diffbisim.io.prism import read_model as read_tra_model
from diffbisim.io.prism import read_prism, write_prism
from diffbisim.io.storm import MODELS, read_storm
from diffbisim.io.tables import read_csv, read_observations, write_csv
from diffbisim.mdp import MDP
from diffbisim.process import as_chain, as_process
from diffbisim.timed import TimedChain

__all__ = ["read_chain", "read_mdp", "read_model", "read_transitions", "write_chain"]

FORMATS = {".csv": "csv", ".tsv": "csv", ".npz": "npz", ".tra": "prism", ".xes": "log"} | dict.fromkeys(MODELS, "storm")


@within_memory
def read_chain(
    path: str | Path,
    *,
    format: str | None = None,
    initial: Any = None,
    rewards: Any = None,
    unseen: Unseen | Literal["repeat"] = "error",
    constants: Any = None,
) -> MarkovChain:
    """The chain in a file; the format is "csv", "npz", "prism", "storm" or "log", by default what the extension says.

    ``initial`` and ``rewards`` override what the file holds. ``unseen`` decides on states without an outgoing
    transition, as in `MarkovChain.from_transitions`. ``constants`` are those of a program that stormpy builds a model
    of (.pm, .prism, .jani): "N=16,p=0.5", or a mapping.
    """
    kind = _format(path, format)
    if kind == "storm":
        return MarkovChain.of(read_storm(path, constants), initial=initial, rewards=rewards, unseen=unseen)
    if kind == "log":
        return read_events(path, states=None).chain(initial=initial, rewards=rewards, unseen=unseen)  # type: ignore[no-any-return]
    read: Callable[..., MarkovChain] = {"npz": read_npz, "prism": read_prism, "csv": read_csv}[kind]
    options = {} if kind == "npz" else {"unseen": unseen}
    return read(path, initial=initial, rewards=rewards, **options)


@within_memory
def read_mdp(
    path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: str = "error", constants: Any = None
) -> MDP:
    """The MDP in a .tra or .drn file, or of a program that stormpy builds (.nm, .prism, .jani), with CSR kernels.

    ``initial`` and ``rewards`` override what the file holds, or choose among its reward structures and propositions by
    name. States may have fewer choices than others; for the missing ones ``unseen`` says "error", "repeat" (the first
    that the state has stands in: optimal values and lax distances stay what they are), "self-loop" or "uniform". Action
    k of a .tra file is its choice k; else actions go by name where every choice has one.
    """
    if extension(path) in MODELS:
        return MDP.of(read_storm(path, constants), initial=initial, rewards=rewards, unseen=unseen)
    return read_tra_mdp(path, initial=initial, rewards=rewards, unseen=unseen)


@within_memory
def read_model(
    path: str | Path, *, rewards: Any = None, unseen: str = "error", constants: Any = None
) -> MarkovChain | MDP:
    """What a file of PRISM or Storm holds: an MDP, if some state has several choices, else a chain."""
    if extension(path) in MODELS:
        return as_chain(read_storm(path, constants), rewards=rewards, unseen=unseen)
    return read_tra_model(path, rewards=rewards, unseen=unseen)


@within_memory
def read_transitions(
    path: str | Path, *, states: Any = None, id: Any = None, time: Any = None, state: Any = None, gap: Any = None,
    group: Any = None, missing: str = "error",
) -> Any:  # fmt: skip
    """What was observed, in a table of transitions or trajectories, or in one of events.

    Events (.csv, .tsv, both also with .gz, .parquet, .arrow, .feather) are read where ``state`` names the column that
    says what happened; ``id``, ``time``, ``gap``, ``group`` and ``missing`` are as in `Transitions.from_frame`. Logs in
    XES (.xes, .xes.gz) need no names. ``states`` as in `Transitions.from_pairs`.
    """
    if state is not None or extension(path) in LOGS:
        return read_events(
            path, id=id, time=time, state=state, gap=gap, group=group, missing=missing, states=states
        )  # fmt: skip
    if not (id is None and time is None and gap is None and group is None):
        raise InvalidArgument(f"{path}: state is not given; name the column that says what happened")
    return read_observations(path, states)


def write_chain(chain: MarkovChain | TimedChain, path: str | Path, format: str | None = None) -> None:
    """Write a chain: .npz holds all of it; .tra its start (if uniform) and rewards; .csv the kernel only.

    A TimedChain goes to .npz alone, and :func:`diffbisim.load` reads it.
    """
    kind = _format(path, format)
    if isinstance(chain, TimedChain) and kind == "npz":
        write_npz(chain, path)
        return
    if isinstance(chain, TimedChain):
        raise InvalidArgument(f"{path}: a TimedChain has a kernel for every step, which only .npz holds: write to .npz")
    chain = as_process(chain)
    if not isinstance(chain, MarkovChain):
        raise InvalidArgument(f"chain is a {type(chain).__name__}, not a MarkovChain; a policy makes one of an MDP")
    write = {"npz": write_npz, "prism": write_prism, "csv": write_csv}.get(kind)
    if write is None or extension(path) != Path(path).suffix.lower():
        raise InvalidArgument(f"{path}: chains are written as .csv, .tsv, .npz or .tra")
    write(chain, path)


def _format(path: str | Path, format: str | None) -> str:
    kind = FORMATS.get(extension(path)) if format is None else format
    if kind is None or kind not in FORMATS.values():
        what = f"{path}: the extension is not known" if format is None else f"format is {format!r}"
        raise InvalidArgument(f'{what}; use .csv, .tsv, .npz or .tra, or format="csv", "npz" or "prism"')
    return kind
