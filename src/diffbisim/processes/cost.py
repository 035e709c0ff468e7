"""Ground costs: how different two states look to an observer, regardless of the dynamics.

A cost ``c(x, y) ≥ 0`` is an (n_X, n_Y) table. The bisimulation metric extends it over time,

    V(x,y) = c(x,y) + γ OT_V(P_X(·|x), P_Y(·|y)),

so the choice of c defines which behaviors count as equal:

    "reward"      c = |r_X(x) - r_Y(y)|        the classical bisimulation metric
    "euclidean"   c = ‖r_X(x) - r_Y(y)‖        the same for vector-valued rewards
    "squared"     c = |r_X(x) - r_Y(y)|²       the squared (adapted) 2-Wasserstein distance
    "indicator"   c = 1{x ≠ y}                 chains on the same states, as in imitation
    features      c = ‖φ_X(x) - φ_Y(y)‖        positions, embeddings (`feature_cost`)
    an array      any non-negative finite table

Multiplying c by a constant multiplies the distance by the same constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, as_floats, refuse_masked
from diffbisim.common.errors import InvalidCost
from diffbisim.common.names import in_order
from diffbisim.processes.chain import MarkovChain

Cost = str | Floats | Callable[[MarkovChain, MarkovChain], Any]

#: Why hidden states are not compared by number, and what to do instead.
HIDDEN = (
    "whose numbers mean nothing outside of their model, and whose emissions are not part of the chain; give rewards "
    "(as_chain(hmm, rewards=means of the emissions)) or a table of costs between emissions, or name the states that "
    "are the same with names="
)


def ground_cost(cost: Any, X: MarkovChain, Y: MarkovChain) -> Floats:
    """Return the (n_X, n_Y) cost table as a new C-contiguous float64 array.

    ``cost`` is "reward", "euclidean", "squared", "indicator", an array, or a function ``(X, Y) -> array``. The result
    of a function is copied too, since it may reuse its buffer. The rows and columns of a named table (a pandas
    DataFrame) are matched with the names of X and Y.
    """
    if isinstance(cost, str):
        if cost in ("reward", "euclidean", "squared"):
            return _chain_rewards(X, Y, squared=cost == "squared")
        if cost == "indicator":
            return indicator_cost(X, Y)
        raise InvalidCost(
            f'cost {cost!r} is unknown; use "reward", "euclidean", "squared", "indicator", an array or a function of '
            "(X, Y)"
        )
    shape = (X.n_states, Y.n_states)
    return _checked(_in_order_of_states(cost(X, Y) if callable(cost) else cost, X, Y), shape, copy=True)


def reward_cost(r_x: Any, r_y: Any) -> Floats:
    """Return ``|r_x[i] - r_y[j]|``, shape (n_X, n_Y), for two reward vectors."""
    return _differences(_vector(r_x, "r_x"), _vector(r_y, "r_y"))


def _differences(r_x: Floats, r_y: Floats) -> Floats:
    """Return ``|r_x[i] - r_y[j]|`` for vectors of finite numbers."""
    with np.errstate(over="ignore"):
        table: Floats = np.subtract.outer(r_x, r_y)
    np.abs(table, out=table)
    if not table.max(initial=0.0) < np.inf:
        x, y = (int(k) for k in np.argwhere(~(table < np.inf))[0])
        raise InvalidCost(
            f'cost "reward": |r_x[{x}] - r_y[{y}]| = |{r_x[x]:g} - {r_y[y]:g}| overflows; divide the rewards by a '
            "constant, which divides the distance by the same constant"
        )
    return table


def indicator_cost(X: MarkovChain, Y: MarkovChain) -> Floats:
    """Return ``1{x ≠ y}``, shape (n_X, n_Y), comparing names if both chains have them, indices if neither has.

    Hidden states of an HMM are refused, since nothing says that state k of two models is the same.
    """
    for name, chain in (("X", X), ("Y", Y)):
        if chain.hidden:
            raise InvalidCost(f'cost "indicator": {name} has hidden states, {HIDDEN}')
    if (X.names is None) != (Y.names is None):
        with_, without = ("X", "Y") if X.names is not None else ("Y", "X")
        raise InvalidCost(
            f'cost "indicator": {with_} has names and {without} has none; name the states of both or neither'
        )
    if X.names is None and X.n_states != Y.n_states:
        raise InvalidCost(
            f'cost "indicator": X has {X.n_states} states and Y has {Y.n_states}; '
            "give both chains names to say which states are the same"
        )
    table = np.ones((X.n_states, Y.n_states))
    for x in range(X.n_states):
        if (y := x if Y.names is None else Y._numbers.get(X.name_of(x))) is not None:
            table[x, y] = 0.0
    return table


def feature_cost(features_x: Any, features_y: Any, metric: str = "euclidean") -> Floats:
    """Compute the distances between the features of two sets of states.

    Parameters
    ----------
    features_x : array of shape (n_X, k)
    features_y : array of shape (n_Y, k)
    metric : str, default="euclidean"
        A metric of ``scipy.spatial.distance.cdist``.

    Returns
    -------
    cost : array of shape (n_X, n_Y)
    """
    from scipy.spatial.distance import cdist

    a, b = _matrix(features_x, "features_x"), _matrix(features_y, "features_y")
    if a.shape[1] != b.shape[1]:
        raise InvalidCost(
            f"features_x has {a.shape[1]} columns and features_y has {b.shape[1]}; both need the same features"
        )
    try:
        table = cdist(a, b, metric)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise InvalidCost(f"metric {metric!r}: {error}") from None
    return _checked(table, (a.shape[0], b.shape[0]))


def _chain_rewards(X: MarkovChain, Y: MarkovChain, squared: bool) -> Floats:
    """Return the distances between rewards, Euclidean if these are vectors."""
    for name, chain in (("X", X), ("Y", Y)):
        if chain.rewards is None and chain.hidden:
            raise InvalidCost(f'cost "reward": chain {name} has no rewards, only hidden states, {HIDDEN}')
        if chain.rewards is None:
            raise InvalidCost(
                f'cost "reward": chain {name} has no rewards; create it with MarkovChain(..., rewards=r), '
                'or use cost="indicator" or an array'
            )
    r_x, r_y = np.asarray(X.rewards), np.asarray(Y.rewards)
    if max(r_x.ndim, r_y.ndim) > 1:
        metric = "sqeuclidean" if squared else "euclidean"
        return feature_cost(r_x.reshape(len(r_x), -1), r_y.reshape(len(r_y), -1), metric)
    table = _differences(r_x, r_y)
    if not squared:
        return table
    with np.errstate(over="ignore"):
        return check_costs(np.square(table))


def _in_order_of_states(table: Any, X: MarkovChain, Y: MarkovChain) -> Any:
    """Return a named table in the order of the states of both chains."""
    states = [range(chain.n_states) if chain.names is None else chain.names for chain in (X, Y)]
    return in_order(table, states, "cost", of=("state of X", "state of Y"), error=InvalidCost)


def _checked(table: Any, shape: tuple[int, int], copy: bool | None = None) -> Floats:
    """Check the shape of a table and that its entries are finite and non-negative."""
    c = as_costs(table, copy)
    if c.shape != shape:
        remedy = "; it looks transposed: pass cost.T" if c.shape == shape[::-1] else ""
        raise InvalidCost(f"cost has shape {c.shape}, expected (n_X, n_Y) = {shape}{remedy}")
    return check_costs(c)


def as_costs(table: Any, copy: bool | None = None) -> Floats:
    """Convert a table of any shape to a C-contiguous float64 array."""
    refuse_masked(table, "cost", InvalidCost)
    try:
        return as_floats(table, copy)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidCost(f"cost is not an array of numbers ({error})") from None


def check_costs(c: Floats) -> Floats:
    """Check that the entries of a table are finite and non-negative."""
    if not (c.min() >= 0.0 and c.max() < np.inf):
        at = tuple(np.argwhere(~((c >= 0.0) & (c < np.inf)))[0].tolist())
        fault = "negative" if c[at] < 0.0 and np.isfinite(c[at]) else "not finite"
        raise InvalidCost(
            f"cost[{', '.join(map(str, at))}] is {c[at]:g}, {fault}; costs must be finite and non-negative"
        )
    return c


def _vector(values: Any, name: str) -> Floats:
    vector = _floats(values, name)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise InvalidCost(f"{name} must be a vector of finite numbers, not an array of shape {vector.shape}")
    return vector


def _floats(values: Any, name: str) -> Floats:
    try:
        return as_floats(values, None)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidCost(f"{name} is not an array of numbers ({error})") from None


def _matrix(values: Any, name: str) -> Floats:
    matrix = _floats(values, name)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise InvalidCost(
            f"{name} must be a table (n_states, n_features) of finite numbers; its shape is {matrix.shape}"
        )
    return matrix
