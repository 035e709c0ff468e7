"""Whatever people hold, as a chain or an MDP: the door of every function that takes one (recognize.py has the list)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.errors import warn
from diffbisim.explicit import ExplicitModel
from diffbisim.mdp import MDP
from diffbisim.names import few
from diffbisim.recognize import recognized
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
    """The chain (or MDP) that an object holds, whichever library made it.

    Parameters
    ----------
    value : a square table (array, scipy.sparse, pandas, polars, xarray, PyTorch, JAX) of probabilities or of counts, a
        networkx graph, a mapping ``{(state, state): weight}``, what pm4py's ``discover_dfg`` returns, a model of
        deeptime, hmmlearn, pomegranate, stormpy or stormvogel, ``Transitions``; with ``lag`` a list of trajectories.
        Chains and MDPs are returned as they are
    initial : the start, as for `MarkovChain`; default: that of the object, else its first state
    rewards : of the states, as for `MarkovChain`; or the name of a reward structure or proposition of a model, of an
        attribute of the nodes of a graph
    labels : names of the states, where the object has none
    unseen : about states that are never left, as for `MarkovChain.from_transitions`; about choices that a state of an
        MDP does not have, as for `MDP.of`
    lag : the object is a list of trajectories, and a step goes so far

    Examples
    --------
    >>> as_chain([[8, 2], [1, 0]], rewards=[0.0, 1.0])
    MarkovChain(2 states, 3 transitions, start 0, rewards)
    """
    if isinstance(value, (MarkovChain, MDP)) and initial is None and rewards is None and labels is None:
        return value
    found = value
    if lag is None and not isinstance(value, (MarkovChain, Transitions)):
        found = recognized(value, rewards, labels)
    if isinstance(found, ExplicitModel) and not found.is_chain:
        return MDP.of(found, initial=initial, rewards=rewards, unseen=unseen)
    options: dict[str, Any] = {"initial": initial, "rewards": rewards, "labels": labels, "unseen": unseen, "lag": lag}
    return MarkovChain.of(value if found is None else found, **options)


def as_process(value: Any) -> Any:
    """An object of another library, or a square array, as the chain or MDP that it holds; anything else as it is."""
    return _read(value)[0]


def as_processes(values: Iterable[Any]) -> list[Any]:
    """The same for several objects to be compared; warns where starts differ only because no object says them."""
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
    """The process that an object holds, and whether its start is only the first of its named states."""
    if isinstance(value, (MarkovChain, MDP, TimedChain, Transitions, str, bytes, list, tuple, dict)):
        return value, False
    shape = getattr(value, "shape", (1, 1))
    found = recognized(value) if len(shape) == 2 and shape[0] == shape[1] else None
    if found is None:
        return value, False
    if isinstance(found, ExplicitModel):
        return as_chain(found), False
    return MarkovChain.of(found), found.initial is None and found.labels is not None
