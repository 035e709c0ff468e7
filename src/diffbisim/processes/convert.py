"""Conversion of objects from other libraries to chains and MDPs; recognize.py lists the supported types."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import lcm
from typing import Any

from diffbisim.common.errors import InvalidArgument, warn_of_input
from diffbisim.common.names import few
from diffbisim.processes.chain import MarkovChain, Transitions, check_unseen
from diffbisim.processes.explicit import ExplicitModel
from diffbisim.processes.mdp import MDP
from diffbisim.processes.recognize import recognize
from diffbisim.processes.timed import TimedChain


def as_chain(
    value: Any,
    *,
    initial: Any = None,
    rewards: Any = None,
    names: Sequence[Hashable] | None = None,
    unseen: str = "error",
    lag: int | None = None,
) -> MarkovChain | MDP:
    """Convert an object of another library to a Markov chain or an MDP.

    Parameters
    ----------
    value : object
        A square table (array, scipy.sparse, pandas, polars, xarray, PyTorch, JAX) of probabilities or counts; a
        networkx graph; a mapping ``{(state, state): weight}``; the result of pm4py's ``discover_dfg``; a model of
        deeptime, hmmlearn, pomegranate, stormpy or stormvogel; ``Transitions``; or, with ``lag``, a list of
        trajectories. Chains and MDPs are returned unchanged.
    initial : as for :class:`MarkovChain`, default=None
        By default that of the object if it has one, else its first state.
    rewards : as for :class:`MarkovChain`, or str, default=None
        A string names a reward structure or proposition of a model, or a node attribute of a graph.
    names : sequence of hashables, default=None
        Names of the states, if the object has none. For a hidden Markov model they say which states are the same as
        those of another, so that the cost "indicator" is possible.
    unseen : str, default="error"
        How to treat states without outgoing transitions, as for :meth:`MarkovChain.from_transitions`, or choices that
        a state of an MDP does not have, as for :meth:`MDP.of`. It has no effect on a kernel without such states.
    lag : int, default=None
        Treat ``value`` as a list of trajectories and count transitions over this many steps.

    Warns
    -----
    InputWarning
        If a part of the object is not used: emissions, propositions, attributes, samples. docs/data-formats.md lists
        what is used.

    Returns
    -------
    process : MarkovChain or MDP

    Examples
    --------
    >>> as_chain([[8, 2], [1, 0]], rewards=[0.0, 1.0])
    MarkovChain(2 states, 3 transitions, start 0, rewards)
    """
    if isinstance(value, (MarkovChain, MDP)) and all(part is None for part in (initial, rewards, names, lag)):
        check_unseen(unseen)
        return value
    if isinstance(value, MDP) and lag is None:
        return _mdp_with(value, initial, rewards, names)
    found = value
    if lag is None and not isinstance(value, (MarkovChain, Transitions)):
        found = recognize(value, rewards, names)
    if isinstance(found, ExplicitModel) and not found.is_chain and lag is None:
        mdp = MDP.of(found, initial=initial, rewards=rewards, unseen=unseen)
        return mdp if names is None else _mdp_with(mdp, names=names)
    options: dict[str, Any] = {"initial": initial, "rewards": rewards, "names": names, "unseen": unseen, "lag": lag}
    return MarkovChain.of(value if found is None else found, **options)


def _mdp_with(mdp: MDP, initial: Any = None, rewards: Any = None, names: Any = None) -> MDP:
    """Return the MDP with other parts."""
    given = {"initial": initial, "rewards": rewards, "names": names}
    return MDP(**mdp.__getstate__() | {name: part for name, part in given.items() if part is not None})


def as_process(value: Any) -> Any:
    """Convert an object of another library or a square array to a chain or MDP; return anything else unchanged."""
    return _read(value)[0]


def as_processes(values: Iterable[Any]) -> list[Any]:
    """Convert several objects to be compared; warn if only the order of their states makes their starts differ.

    Chains with different lags are refused.
    """
    read = [_read(value) for value in values]
    starts = dict.fromkeys(process.name_of(int(process.initial.argmax())) for process, guessed in read if guessed)
    if len(starts) > 1:
        warn_of_input(
            "tables and graphs do not say where a chain starts, so each starts in its first state: "
            f"{few(list(starts))}. The distance counts this difference; pass as_chain(obj, initial=...) to say where "
            "they start"
        )
    check_lags([process for process, _ in read])
    return [process for process, _ in read]


def check_lags(processes: Sequence[Any], names: Sequence[Any] | None = None) -> None:
    """Raise if two processes have different lags; warn if one has a lag other than 1 and that of another is unknown."""
    found = [_lag(process) for process in processes]
    if all(lag is None for lag in found):
        return
    if names is None:
        names = "XY" if len(processes) == 2 else [f"chains[{k}]" for k in range(len(processes))]
    lags = dict(zip(names, found, strict=True))
    known = {name: lag for name, lag in lags.items() if lag is not None}
    if len(set(known.values())) > 1:
        x, y = next((a, b) for a in known for b in known if known[a] < known[b])
        raise InvalidArgument(
            f"{x} has lag {known[x]:g} and {y} has lag {known[y]:g}: a step of one takes longer than a step of the "
            f"other, so their distance would compare different times; {_remedy(x, y, known[x], known[y])}"
        )
    if len(known) < len(lags) and set(known.values()) - {1}:
        unknown = next(name for name in lags if lags[name] is None)
        lag = next(iter(known.values()))
        warn_of_input(
            f"{next(iter(known))} has lag {lag:g}, and {unknown} does not say how long its steps take, so the same is "
            "assumed; create it with its lag"
        )


def _remedy(x: Any, y: Any, short: float, long: float) -> str:
    """Return how to compare two chains with these lags."""
    if isinstance(short, int) and isinstance(long, int):
        both = lcm(short, long)
        powers = [f"as_chain({name}).at_lag({both})" for name, lag in ((x, short), (y, long)) if lag != both]
        return f"estimate both at the same lag, or compare powers, {' and '.join(powers)}"
    return "estimate both at the same lag"


def _lag(process: Any) -> Any:
    """Return the lag of a chain, transitions or a stream; None if it is not known."""
    if isinstance(process, Transitions):
        return process._known_lag
    return getattr(getattr(process, "frame", process), "lag", None)


def _read(value: Any) -> tuple[Any, bool]:
    """Return the process of an object, and whether it starts in its first named state only by default."""
    if isinstance(value, (MarkovChain, MDP, TimedChain, Transitions, str, bytes, list, tuple, dict)):
        return value, False
    shape = getattr(value, "shape", (1, 1))
    found = recognize(value) if len(shape) == 2 and shape[0] == shape[1] else None
    if found is None:
        return value, False
    if isinstance(found, ExplicitModel):
        return as_chain(found), False
    return MarkovChain.of(found), found.initial is None and found.names is not None
