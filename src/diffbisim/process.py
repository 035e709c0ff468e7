"""Conversion of objects from other libraries to chains and MDPs; recognize.py lists the supported types."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.errors import warn
from diffbisim.explicit import ExplicitModel
from diffbisim.mdp import MDP
from diffbisim.names import few
from diffbisim.recognize import recognize
from diffbisim.timed import TimedChain


def as_chain(
    value: Any,
    *,
    initial: Any = None,
    rewards: Any = None,
    labels: Sequence[Hashable] | None = None,
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
    labels : sequence of hashables, default=None
        Names of the states, if the object has none.
    unseen : str, default="error"
        How to treat states without outgoing transitions, as for :meth:`MarkovChain.from_transitions`, or choices that
        a state of an MDP does not have, as for :meth:`MDP.of`.
    lag : int, default=None
        Treat ``value`` as a list of trajectories and count transitions over this many steps.

    Returns
    -------
    process : MarkovChain or MDP

    Examples
    --------
    >>> as_chain([[8, 2], [1, 0]], rewards=[0.0, 1.0])
    MarkovChain(2 states, 3 transitions, start 0, rewards)
    """
    if isinstance(value, (MarkovChain, MDP)) and initial is None and rewards is None and labels is None:
        return value
    found = value
    if lag is None and not isinstance(value, (MarkovChain, Transitions)):
        found = recognize(value, rewards, labels)
    if isinstance(found, ExplicitModel) and not found.is_chain:
        return MDP.of(found, initial=initial, rewards=rewards, unseen=unseen)
    options: dict[str, Any] = {"initial": initial, "rewards": rewards, "labels": labels, "unseen": unseen, "lag": lag}
    return MarkovChain.of(value if found is None else found, **options)


def as_process(value: Any) -> Any:
    """Convert an object of another library or a square array to a chain or MDP; return anything else unchanged."""
    return _read(value)[0]


def as_processes(values: Iterable[Any]) -> list[Any]:
    """Convert several objects to be compared; warn if only the order of their states makes their starts differ."""
    read = [_read(value) for value in values]
    starts = dict.fromkeys(process.label(int(process.initial.argmax())) for process, guessed in read if guessed)
    if len(starts) > 1:
        warn(
            "tables and graphs do not say where a chain starts, so each starts in its first state: "
            f"{few(list(starts))}. The distance counts this difference; pass as_chain(obj, initial=...) to say where "
            "they start",
            category=UserWarning, stacklevel=3,
        )  # fmt: skip
    return [process for process, _ in read]


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
    return MarkovChain.of(found), found.initial is None and found.labels is not None
