"""Conversion of objects from other libraries to chains and MDPs; recognize.py lists the supported types."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.explicit import ExplicitModel
from diffbisim.mdp import MDP
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
    if isinstance(value, (MarkovChain, MDP, TimedChain, Transitions, str, bytes, list, tuple, dict)):
        return value
    shape = getattr(value, "shape", (1, 1))
    if len(shape) != 2 or shape[0] != shape[1] or recognize(value) is None:
        return value
    return as_chain(value)
