"""Reading and writing of chains, MDPs and transitions, by file format.

    .npz            exact copies of chains                             npz.py
    .tra            PRISM explicit, with companions (.lab, .srew, …)   prism.py
    .drn, .pm, …    Storm models, and programs that stormpy builds     storm.py
    .csv, .tsv      edges, transitions or trajectories with a header   tables.py
    .xes, .parquet  event logs and tables of events                    logs.py

Invalid files raise `InvalidData` with the file, line, text and remedy. Files are written atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Literal

from diffbisim.common.errors import InvalidArgument, InvalidData, warn_of_input
from diffbisim.io.files import extension, within_memory
from diffbisim.io.logs import LOGS, read_events
from diffbisim.io.npz import read_npz, write_npz
from diffbisim.io.prism import describe, read_prism, write_prism
from diffbisim.io.prism import read_mdp as read_tra_mdp
from diffbisim.io.prism import read_model as read_tra_model
from diffbisim.io.storm import MODELS, read_storm
from diffbisim.io.tables import read_csv, read_observations, write_csv
from diffbisim.processes.chain import MarkovChain, Unseen, check_unseen
from diffbisim.processes.convert import as_chain, as_process
from diffbisim.processes.mdp import MDP
from diffbisim.processes.timed import TimedChain

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
    """Read a chain from a file.

    Parameters
    ----------
    path : str or Path
    format : {"csv", "npz", "prism", "storm", "log"}, default=None
        By default determined by the extension.
    initial, rewards : as for :class:`MarkovChain`, default=None
        Override those in the file.
    unseen : as for :meth:`MarkovChain.from_transitions`, default="error"
        How to treat states without outgoing transitions; a chain in an .npz file has none.
    constants : str or mapping, default=None
        Constants of a program that stormpy builds (.pm, .prism, .jani), such as "N=16,p=0.5".

    Returns
    -------
    chain : MarkovChain

    Warns
    -----
    InputWarning
        If a part of the file is not used, such as the propositions of a model; docs/data-formats.md lists what is used.
    """
    kind = _format(path, format)
    check_constants(path, constants)
    if kind == "storm":
        model = read_storm(path, constants)
        if not model.is_chain:
            raise InvalidData(f"{path} holds an MDP (states have several choices); read it with read_mdp")
        return MarkovChain.of(model, initial=initial, rewards=rewards, unseen=unseen)
    if kind == "log":
        return read_events(path, states=None).chain(initial=initial, rewards=rewards, unseen=unseen)  # type: ignore[no-any-return]
    read: Callable[..., MarkovChain] = {"npz": read_npz, "prism": read_prism, "csv": read_csv}[kind]
    check_unseen(unseen)
    options = {} if kind == "npz" else {"unseen": unseen}
    return read(path, initial=initial, rewards=rewards, **options)


@within_memory
def read_mdp(
    path: str | Path, *, initial: Any = None, rewards: Any = None, unseen: str = "error", constants: Any = None
) -> MDP:
    """Read an MDP with CSR kernels from a .tra or .drn file, or from a program that stormpy builds.

    Parameters
    ----------
    path : str or Path
        Programs have the extension .nm, .prism or .jani.
    initial : as for :class:`MDP`, default=None
        Overrides that of the file.
    rewards : str, int or array, default=None
        The name or number of a reward structure or proposition of the model, or rewards as for :class:`MDP`.
    unseen : {"error", "repeat", "self-loop", "uniform"}, default="error"
        How to treat choices that a state does not have; "repeat" substitutes the state's first choice, which leaves
        optimal values and lax distances unchanged.
    constants : str or mapping, default=None
        Constants of a program, such as "N=16,p=0.5".

    Returns
    -------
    mdp : MDP
        Action k of a .tra file is its choice k; otherwise actions are identified by name if every choice has one.
    """
    if extension(path) in MODELS:
        return MDP.of(read_storm(path, constants), initial=initial, rewards=rewards, unseen=unseen)
    check_constants(path, constants)
    return read_tra_mdp(path, initial=initial, rewards=rewards, unseen=unseen)


@within_memory
def read_model(
    path: str | Path, *, rewards: Any = None, unseen: str = "error", constants: Any = None
) -> MarkovChain | MDP:
    """Read a file of PRISM or Storm: an MDP if a state has several choices, else a chain."""
    if extension(path) in MODELS:
        return as_chain(read_storm(path, constants), rewards=rewards, unseen=unseen)
    check_constants(path, constants)
    return read_tra_model(path, rewards=rewards, unseen=unseen)


def describe_model(path: str | Path, constants: Any = None) -> dict[str, Any]:
    """Summarize what a model of PRISM or Storm contains apart from its transitions; {} for other files."""
    if extension(path) == ".tra":
        return describe(path)
    if extension(path) not in MODELS:
        return {}
    model = read_storm(path, constants)
    names = list(model.rewards or {})
    return {
        "propositions": {name: int(states.size) for name, states in (model.propositions or {}).items()},
        "variables": [],
        "reward_structures": names,
        "reward_names": names,
    }


@within_memory
def read_transitions(
    path: str | Path, *, states: Any = None, id: Any = None, time: Any = None, state: Any = None, gap: Any = None,
    group: Any = None, missing: str = "error", end: Hashable = "auto", every: Any = None, cluster: Any = None,
    strata: Any = None, duplicates: str = "warn",
) -> Any:  # fmt: skip
    """Read observed transitions from a table of transitions, trajectories or events.

    Parameters
    ----------
    path : str or Path
        A table of transitions or trajectories (.csv, .tsv), a table of events (also .gz of these, .parquet, .arrow,
        .feather), or an XES log (.xes, .xes.gz).
    states : int or list, default=None
        The number of states, or their names, as for :meth:`MarkovChain.from_transitions`.
    id, time, state, gap, group, missing, every, cluster, strata, duplicates : as for :meth:`Transitions.from_frame`
        For tables of events, which need ``state``; an XES log needs none of them.
    end : hashable or None, default="auto"
        Name of the absorbing state in which sequences end, as for :meth:`Transitions.from_frame`. "auto" is None for
        a table of trajectories, as for :meth:`Transitions.from_trajectories`.

    Returns
    -------
    transitions : Transitions, or dict from group to Transitions
    """
    if state is not None or extension(path) in LOGS:
        return read_events(
            path, id=id, time=time, state=state, gap=gap, group=group, missing=missing, states=states, end=end,
            every=every, cluster=cluster, strata=strata, duplicates=duplicates,
        )  # fmt: skip
    columns = (id, time, gap, group, every, cluster, strata)
    if any(name is not None for name in columns) or missing != "error" or duplicates != "warn":
        raise InvalidArgument(f"{path}: state is not given; name the column with the states")
    return read_observations(path, states, None if isinstance(end, str) and end == "auto" else end)


def write_chain(chain: MarkovChain | TimedChain, path: str | Path, format: str | None = None) -> None:
    """Write a chain to a file.

    Parameters
    ----------
    chain : MarkovChain or TimedChain
        A TimedChain can only be written as .npz, which :func:`diffbisim.load` reads.
    path : str or Path
        The extension determines what is kept: .npz everything; .tra the kernel, rewards and a uniform initial
        distribution; .csv and .tsv the kernel only.
    format : {"csv", "npz", "prism"}, default=None
        By default determined by the extension.

    Warns
    -----
    InputWarning
        If the format cannot store a part of the chain: rewards, names, lag, initial distribution.
    """
    kind = _format(path, format)
    if isinstance(chain, TimedChain) and kind == "npz":
        write_npz(chain, path)
        return
    if isinstance(chain, TimedChain):
        raise InvalidArgument(f"{path}: a TimedChain has one kernel per step and can only be written as .npz")
    chain = as_process(chain)
    if not isinstance(chain, MarkovChain):
        raise InvalidArgument(
            f"chain is a {type(chain).__name__}, not a MarkovChain; for an MDP write mdp.induced_chain(policy)"
        )
    write = {"npz": write_npz, "prism": write_prism, "csv": write_csv}.get(kind)
    if write is None or extension(path) != Path(path).suffix.lower():
        raise InvalidArgument(f"{path}: chains can be written as .csv, .tsv, .npz or .tra")
    write(chain, path)
    if missing := not_stored(chain, kind):
        warn_of_input(f"{path} cannot store the {' and the '.join(missing)}; write .npz instead")


def not_stored(chain: MarkovChain, kind: str) -> list[str]:
    """Return what a format ("csv", "npz", "prism") cannot store of a chain."""
    if kind == "npz":
        return []
    parts = ("rewards",) if kind == "csv" else ("names",)
    missing = [name for name in parts if getattr(chain, name) is not None]
    missing += [] if chain.lag in (None, 1) else ["lag"]
    missing += ["mark of hidden states"] if chain.hidden else []
    return [*missing, "start"] if kind == "csv" and chain.initial[0] != 1.0 else missing


def check_constants(path: str | Path, constants: Any) -> None:
    """Raise if constants are given for a file that has none."""
    if constants is not None and extension(path) not in MODELS:
        raise InvalidArgument(
            f"{path}: constants is for programs that stormpy builds (.pm, .nm, .prism, .jani); omit it"
        )


def _format(path: str | Path, format: str | None) -> str:
    kind = FORMATS.get(extension(path)) if format is None else format
    if kind is None or kind not in FORMATS.values():
        what = f"{path}: the extension is unknown" if format is None else f"format is {format!r}"
        raise InvalidArgument(f'{what}; use .csv, .tsv, .npz or .tra, or format="csv", "npz" or "prism"')
    return kind
