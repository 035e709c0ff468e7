"""Extraction of chains and MDPs from objects of other libraries.

A library is recognized by the module of the object's type and never imported.

====================================================  ============================================================
object                                                interpretation
====================================================  ============================================================
square table: numpy, scipy.sparse, pandas, polars,    probabilities; or counts, if the entries are whole numbers
xarray, PyTorch, JAX                                  whose rows do not sum to one (the rows and columns of a
                                                      pandas table may then name different states, as those of
                                                      ``crosstab`` do)
networkx graph                                        random walk with probabilities proportional to edge weights
mapping (state, state) -> number                      the same (a directly-follows graph)
``(graph, starts, ends)`` of pm4py                    the same, with initial distribution and an absorbing end "■"
deeptime: Markov state model, posterior, count        its matrix, with its stationary distribution as the initial
model, estimator                                      one (as in its ``simulate``), and its lag; counts, with the
                                                      histogram
deeptime, hmmlearn, pomegranate: hidden Markov        the chain of hidden states, marked as ``hidden``, with its initial
model                                                 distribution (pomegranate: conditional on the sequence continuing)
pomegranate: Markov chain of order one                its matrix, with its initial distribution
stormpy, stormvogel: DTMC, MDP                        an `ExplicitModel`
====================================================  ============================================================

Whatever is left out, such as the emissions of a hidden Markov model or attributes of a graph, is reported by an
`InputWarning`, or the object is refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, rounding_of, stochastic_rows
from diffbisim.common.checks import dense as as_dense
from diffbisim.common.errors import InvalidChain, warn_of_input
from diffbisim.common.names import axis_names, few, is_frame, kernel_in_order, library
from diffbisim.processes.events import END
from diffbisim.processes.explicit import ExplicitModel, variables


class ChainParts(NamedTuple):
    """The kernel of a chain, or weights from which to compute it, and the chain's other parts if known."""

    table: Any  # (n, n), dense or sparse
    weights: bool = False  # whether rows have to be normalized
    initial: Any = None
    rewards: Any = None
    names: Sequence[Hashable] | None = None
    lag: float | None = None
    hidden: bool = False  # whether the states are those of an HMM, whose emissions are not part of the chain

    @property
    def facts(self) -> dict[str, Any]:
        """Everything apart from the table and the rewards, by the argument of `MarkovChain`."""
        return {name: getattr(self, name) for name in ("initial", "names", "lag", "hidden")}


def recognize(value: Any, rewards: Any = None, names: Any = None) -> ChainParts | ExplicitModel | None:
    """Return the parts of the chain that an object holds, or None if its type is not supported.

    ``rewards`` may name a reward structure or attribute of the object.
    """
    if isinstance(value, ExplicitModel):
        return value
    found: ChainParts | ExplicitModel | None = None
    read = READERS.get(library(value))
    if read is not None:
        found = read(value, rewards)
    elif isinstance(value, (np.ndarray, list)) or sp.issparse(value) or len(axis_names(value)) == 2:
        found = _table(value, names)
    elif isinstance(value, Mapping) and value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        found = _edges(value)
    elif isinstance(value, tuple) and len(value) == 3 and all(isinstance(part, Mapping) for part in value):
        found = _directly_follows(*value)
    if isinstance(found, ChainParts) and found.rewards is None:
        return found._replace(rewards=as_array(rewards))
    return found


# --- tables -------------------------------------------------------------------------------------------------------


def _table(value: Any, names: Any = None) -> ChainParts:
    """Read a table of probabilities or counts, aligned by name if it has names."""
    if is_frame(value) and _is_counted(value) and names is None:
        value, names = _crosstab(value)
    elif is_frame(value) and value.shape[0] != value.shape[1]:
        raise InvalidChain(
            f"the table has shape {tuple(value.shape)}, but a transition matrix is square; for a table of events use "
            "Transitions.from_frame(table, id=..., time=..., state=...)"
        )
    table, found = kernel_in_order(value, names)
    counted = _is_counted(table)
    if counted and found is not None:
        _check_margins(table, found)
    return ChainParts(table, counted, names=found)


def _check_margins(table: Any, names: Sequence[Hashable]) -> None:
    """Raise if the last row and column contain the sums of the others, as those of ``crosstab(margins=True)``."""
    counts = as_dense(table)
    inner = counts[:-1, :-1]
    if inner.any() and np.array_equal(counts[:-1, -1], inner.sum(1)) and np.array_equal(counts[-1, :-1], inner.sum(0)):
        raise InvalidChain(
            f"the row and the column {names[-1]!r} of the table are the sums of the others, not a state; make the "
            "table without margins"
        )


def _is_counted(table: Any) -> bool:
    """Return whether the entries are non-negative whole numbers, with a row that does not sum to one."""
    try:
        numbers: Any = table if sp.issparse(table) else np.asarray(table, dtype=np.float64)
        rows = np.asarray(numbers.sum(axis=1))
    except (TypeError, ValueError, IndexError, OverflowError):  # np.exceptions.AxisError is the second and third
        return False
    numbers = numbers.data if sp.issparse(table) else numbers
    whole = bool((numbers >= 0.0).all() and np.isfinite(numbers).all() and (numbers == np.floor(numbers)).all())
    return whole and not bool((rows == 1.0).all())


def _crosstab(frame: Any) -> tuple[Any, Any]:
    """Expand a table of counts to all states that its rows or columns name."""
    found = axis_names(frame)
    table = np.asarray(frame, dtype=np.float64)
    if None in found or len(found) != 2:
        return (table, None) if found == [None, None] else (frame, None)
    rows, columns = (axis or [] for axis in found)
    if len(set(rows)) < len(rows) or len(set(columns)) < len(columns):
        return frame, None  # kernel_in_order raises an error for the repeated name
    number = {name: k for k, name in enumerate(dict.fromkeys([*rows, *columns]))}
    counts = np.zeros((len(number), len(number)))
    i, j = (np.array([number[name] for name in axis]) for axis in (rows, columns))
    counts[i[:, None], j] = table
    return counts, list(number)


def _tensor(value: Any, rewards: Any) -> ChainParts:
    """Read a tensor; rows of probabilities are normalized here, because arrays may have lost its type (bfloat16)."""
    found = _table(as_array(value))
    if found.weights or len(value.shape) != 2:
        return found
    return found._replace(table=stochastic_rows(found.table, name="transition", off=rounding_of(value.dtype)))


def as_array(value: Any) -> Any:
    """Convert a PyTorch or JAX tensor to a numpy or scipy.sparse array; return anything else unchanged."""
    kind = library(value)
    if kind == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if rounding_of(value.dtype) > rounding_of("float32") else value  # as scipy needs
        if str(value.layout) != "torch.strided":
            value = value.to_sparse_coo().coalesce()
            return sp.csr_array((value.values().numpy(), tuple(value.indices().numpy())), shape=tuple(value.shape))
        return value.numpy()
    if kind in ("jax", "jaxlib"):
        return np.asarray(value.todense() if hasattr(value, "todense") else value)
    return value


# --- graphs -------------------------------------------------------------------------------------------------------


def _graph(graph: Any, rewards: Any) -> ChainParts:
    """Read the random walk on a networkx graph; edges without a weight have weight one."""
    nodes = list(graph)
    number = {node: k for k, node in enumerate(nodes)}
    _remark_on_attributes(graph, rewards)
    edges = [(number[a], number[b], weight) for a, b, weight in graph.edges(data="weight", default=1)]
    if not graph.is_directed():
        edges += [(b, a, weight) for a, b, weight in edges if a != b]
    i, j, w = zip(*edges, strict=True) if edges else ((), (), ())
    if isinstance(rewards, str):
        without = [node for node in nodes if rewards not in graph.nodes[node]]
        if without:
            raise InvalidChain(f"node {without[0]!r} has no attribute {rewards!r}; set it for every node")
        rewards = [graph.nodes[node][rewards] for node in nodes]
    return ChainParts(_sparse(i, j, w, len(nodes)), True, rewards=rewards, names=_names(nodes))


def _remark_on_attributes(graph: Any, rewards: Any) -> None:
    """Warn of numbers that the nodes and edges of a graph have, and that the walk does not use."""
    edges = [data for _, _, data in graph.edges(data=True)]
    weighted = sum("weight" in data for data in edges)
    parts = []
    if others := [name for name in _numeric(edges) if name != "weight"]:
        parts.append(f"the edges have {few(others)}, and only 'weight' is used")
    if 0 < weighted < len(edges):
        parts.append(f"{len(edges) - weighted} of {len(edges)} edges have no 'weight', and count as 1")
    unused = _numeric([graph.nodes[node] for node in graph])
    if unused and rewards is None:
        parts.append(f"the nodes have {few(unused)}, which rewards={unused[0]!r} would use")
    if parts:
        warn_of_input(f"graph: {'; '.join(parts)}")


def _numeric(data: Sequence[Mapping[Any, Any]]) -> list[Any]:
    """Return the names of attributes whose values are numbers."""
    found = (name for one in data for name, value in one.items() if isinstance(value, (int, float, np.number)))
    return list(dict.fromkeys(found))


def _edges(edges: Mapping[Any, Any]) -> ChainParts:
    """Read the random walk of a mapping from pairs of states to weights."""
    names = list(dict.fromkeys(state for pair in edges for state in pair))
    number = {name: k for k, name in enumerate(names)}
    i, j = ([number[pair[side]] for pair in edges] for side in (0, 1))
    return ChainParts(_sparse(i, j, list(edges.values()), len(names)), True, names=names)


def _directly_follows(graph: Mapping[Any, Any], starts: Mapping[Any, Any], ends: Mapping[Any, Any]) -> ChainParts:
    """Read a directly-follows graph with the numbers of cases that start and end with each activity."""
    pairs = {**graph, **{(activity, END): count for activity, count in ends.items()}, (END, END): 1}
    found = _edges(pairs)
    total = sum(starts.values())
    return found._replace(initial={activity: count / total for activity, count in starts.items()})


def _sparse(i: Any, j: Any, w: Any, n: int) -> sp.csr_array:
    weights = np.array([_weight(weight) for weight in w], dtype=np.float64)
    return sp.csr_array((weights, (np.array(i, dtype=np.int64), np.array(j, dtype=np.int64))), shape=(n, n))


def _weight(weight: Any) -> float:
    """Return the weight of an edge as a float; dates and durations are not numbers."""
    if not isinstance(weight, (np.datetime64, np.timedelta64)):
        with suppress(TypeError, ValueError, OverflowError):
            return float(weight)
    raise InvalidChain(f"an edge has the weight {reprlib.repr(weight)}; weights must be non-negative numbers")


def _names(names: list[Any]) -> list[Any] | None:
    """Return the names, or None if they are 0 … n-1."""
    return None if names == list(range(len(names))) else names


# --- estimated models ---------------------------------------------------------------------------------------------


def _deeptime(model: Any, rewards: Any) -> ChainParts:
    for name in ("fetch_model", "prior", "transition_model"):  # of estimators, posteriors, hidden Markov models
        if (inner := getattr(model, name, None)) is not None:
            found = _deeptime(_fitted(inner() if callable(inner) else inner, model), rewards)
            if name == "prior" and len(getattr(model, "samples", ())):
                warn_of_input(
                    f"{type(model).__name__}: only its prior is used, not its {len(model.samples)} samples; convert "
                    "them one by one, as_chain(posterior.samples[k]), for the uncertainty"
                )
            if name == "transition_model":
                return _hidden(model, found._replace(initial=model.initial_distribution))
            return found
    if hasattr(model, "count_matrix"):
        histogram = np.asarray(model.state_histogram, dtype=np.float64)
        start = histogram / histogram.sum()
        return ChainParts(model.count_matrix, True, start, rewards, _symbols(model), lag=model.lagtime)
    if not hasattr(model, "transition_matrix"):
        raise InvalidChain(f"deeptime's {type(model).__name__} has no transition matrix; give a MarkovStateModel")
    names = _symbols(model.count_model) if getattr(model, "has_count_model", False) else None
    start = model.stationary_distribution
    return ChainParts(model.transition_matrix, False, start, rewards, names, lag=model.lagtime)


def _hidden(model: Any, found: ChainParts) -> ChainParts:
    """Mark the states of a hidden Markov model; warn that its emissions are not used unless rewards are given."""
    if found.rewards is None:
        warn_of_input(
            f"{type(model).__name__}: the emissions are not part of the chain, whose states are the hidden states; "
            "give rewards=, such as the means of the emissions, or a table of costs to compare it with others"
        )
    return found._replace(hidden=True)


def _symbols(counts: Any) -> list[Any] | None:
    return _names(np.asarray(counts.state_symbols).tolist())


def _hmmlearn(model: Any, rewards: Any) -> ChainParts:
    table = _fitted(getattr(model, "transmat_", None), model)
    return _hidden(model, ChainParts(table, False, model.startprob_, rewards))


def _pomegranate(model: Any, rewards: Any) -> ChainParts:
    """Read a Markov chain or hidden Markov model; edges are log-probabilities and exclude those of ending."""
    if hasattr(model, "distributions") and hasattr(model, "k") and not hasattr(model, "edges"):
        parts = _fitted(model.distributions, model)
        if int(model.k) != 1:
            raise InvalidChain(f"the chain has order {int(model.k)}; only chains of order 1 are supported")
        return ChainParts(as_array(parts[1].probs[0]), False, as_array(parts[0].probs[0]), rewards)
    edges = np.exp(as_array(_fitted(getattr(model, "edges", None), model)))
    if edges.ndim == 1:  # a SparseHMM
        ends = as_array(model._edge_idx_starts), as_array(model._edge_idx_ends)
        edges = sp.csr_array((edges, ends), shape=(model.n_distributions, model.n_distributions))
    start = None if model.starts is None else np.exp(as_array(model.starts).astype(np.float64))
    logs = getattr(model, "ends", None)
    most = 0.0 if logs is None else float(np.exp(as_array(logs).astype(np.float64)).max())
    if most > 0.0:
        warn_of_input(
            f"{type(model).__name__}: its probabilities of ending, up to {most:.3g}, are not used; rows are "
            "conditional on the sequence continuing"
        )
    return _hidden(model, ChainParts(edges, True, None if start is None else start / start.sum(), rewards))


def _fitted(part: Any, model: Any) -> Any:
    if part is None:
        raise InvalidChain(f"this {type(model).__name__} has no transition matrix yet; fit it first")
    return part


# --- model checkers -----------------------------------------------------------------------------------------------


def _stormpy(model: Any, rewards: Any) -> ExplicitModel:
    """Read a sparse DTMC or MDP of stormpy, whose matrix has one row per choice."""
    kind = str(getattr(model, "model_type", "")).rpartition(".")[2]
    if kind not in ("DTMC", "MDP") or not model.is_sparse_model:
        raise InvalidChain(f"this {type(model).__name__} of stormpy is not a sparse DTMC or MDP; build one")
    matrix, n, labeling = model.transition_matrix, model.nr_states, model.labeling
    sizes = [matrix.get_row_group_end(s) - matrix.get_row_group_start(s) for s in range(n)]
    owner, choices = np.repeat(np.arange(n), sizes), range(matrix.nr_rows)
    rows = [[(entry.column, entry.value) for entry in matrix.get_row(c)] for c in choices]
    named, valued = model.has_choice_labeling(), model.has_state_valuations()
    names = sorted(labeling.get_labels())
    return ExplicitModel(
        name=type(model).__name__,
        n_states=n,
        owner=owner,
        row=np.repeat(np.arange(matrix.nr_rows), [len(row) for row in rows]),
        target=np.array([column for row in rows for column, _ in row], dtype=np.int64),
        probability=_numbers(value for row in rows for _, value in row),
        actions=[_joined(model.choice_labeling.get_labels_of_choice(c)) for c in choices] if named else (),
        rewards={name or "default": _stormpy_rewards(own, rows, owner) for name, own in model.reward_models.items()},
        propositions={name: np.array(list(labeling.get_states(name)), np.int64) for name in names},
        names=variables([model.state_valuations.to_string(s) for s in range(n)]) if valued else None,
    )


def _stormpy_rewards(own: Any, rows: Sequence[Any], owner: Any) -> Floats:
    """Return the reward of each choice: its state's, plus its own, plus the mean over its transitions."""
    paid = np.zeros(owner.size)
    if own.has_state_rewards:
        paid += _numbers(own.state_rewards)[owner]
    if own.has_state_action_rewards:
        paid += _numbers(own.state_action_rewards)
    for c, row in enumerate(rows if own.has_transition_rewards else ()):
        given = {entry.column: float(entry.value) for entry in own.transition_rewards.get_row(c)}
        paid[c] += sum(float(value) * given.get(column, 0.0) for column, value in row)
    return paid


def _stormvogel(model: Any, rewards: Any) -> ExplicitModel:
    """Read a DTMC or MDP of stormvogel, where each action of a state has a branch of (probability, state) pairs."""
    kind = str(getattr(getattr(model, "type", None), "name", ""))
    if kind not in ("DTMC", "MDP"):
        raise InvalidChain(f"this {type(model).__name__} of stormvogel is not a DTMC or MDP")
    states = sorted(model.states)
    number = {s: k for k, s in enumerate(states)}
    choices = [
        (s, action, branch.branch)
        for s in states if s in model.transitions
        for action, branch in model.transitions[s].transition.items()
    ]  # fmt: skip
    arrows = [(c, number[to.id], p) for c, (_, _, branch) in enumerate(choices) for p, to in branch]
    row, target, probability = zip(*arrows, strict=True) if arrows else ((), (), ())
    names: dict[str, list[int]] = {}
    valued = [tuple((getattr(model.states[s], "valuations", None) or {}).values()) for s in states]
    for s in states:
        for name in model.states[s].labels:
            names.setdefault(name, []).append(number[s])
    paid = {own.name: _numbers(own.rewards.get((s, a), 0.0) or 0.0 for s, a, _ in choices) for own in model.rewards}
    return ExplicitModel(
        name=model.name or type(model).__name__,
        n_states=len(states),
        owner=np.array([number[s] for s, _, _ in choices], np.int64),
        row=np.array(row, np.int64),
        target=np.array(target, np.int64),
        probability=_numbers(probability),
        actions=[_joined(action.labels) for _, action, _ in choices],
        rewards=paid,
        propositions={name: np.array(indices, np.int64) for name, indices in names.items()},
        names=valued if all(valued) and len(set(valued)) == len(valued) else None,
    )


def _joined(names: Any) -> str:
    return " ".join(sorted(names))


def _numbers(values: Any) -> Floats:
    try:
        return np.array([float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidChain(
            f"the model has entries that are not numbers ({error}); instantiate its parameters"
        ) from None


READERS: dict[str, Callable[[Any, Any], ChainParts | ExplicitModel]] = {
    "networkx": _graph,
    "deeptime": _deeptime,
    "hmmlearn": _hmmlearn,
    "pomegranate": _pomegranate,
    "stormpy": _stormpy,
    "stormvogel": _stormvogel,
    "torch": _tensor,
    "jax": _tensor,
    "jaxlib": _tensor,
}
