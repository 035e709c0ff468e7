"""A chain on given classes of states, by averaging rows or by preserving rates, with its certified distance.

    "mean"      P_c(a, b) = Σ_{x in a} w(x) P(x, b) / w(a): exact for one step if the distribution within a class is w
    "kinetic"   Hummer and Szabo's kernel (kinetics.py), which preserves the stationary distribution of the classes and
                the durations of the correlations between them

Consider a chain that stays in a set for a long time and leaves it at the boundary. It is seldom at the boundary, and
after crossing it is likely to return immediately. Averaged rows forget the position within a class, so they leave
classes too fast. The kinetic model takes such short excursions into account.
"""

from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers, check_count, check_discount, check_tol, finite_numbers
from diffbisim.common.errors import InvalidArgument, warn
from diffbisim.common.names import Names
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.convert import as_process
from diffbisim.processes.cost import ground_cost
from diffbisim.reduction.compression.kinetics import kinetic_model, lagged, metastable_sets
from diffbisim.reduction.compression.result import CompressResult
from diffbisim.reduction.compression.starts import SmallModel, Target, averaged, matched_to_costs, numbers
from diffbisim.solvers import Exact

METHODS = {"mean": "aggregate", "kinetic": "kinetic"}


def aggregate(
    chain: MarkovChain,
    assignment: Any,
    method: str = "mean",
    *,
    discount: float = 0.95,
    cost: Any = None,
    weights: Any = "occupancy",
    lag: int = 1,
    tol: float = 1e-8,
) -> CompressResult:
    """Aggregate the states of a chain into given classes, and certify the distance.

    Parameters
    ----------
    chain : MarkovChain
        The chain.
    assignment : array-like, shape (n,)
        The class of every state: numbers 0 … k-1, or names, which become the names of the small states.
    method : {"mean", "kinetic"}, default="mean"
        "mean" averages rows over classes. "kinetic" preserves the stationary distribution of the classes and the slow
        rates (Hummer and Szabo); it requires a chain with one recurrent class.
    discount : float, default=0.95
        Discount of the distance.
    cost : {"reward", "classes"} or array of shape (n, k), default=None
        Cost of the distance. "reward", the default for chains with rewards, gives each class the weighted median of
        its states' rewards, the geometric median for vectors. "classes", the default for chains without rewards, is 1
        if the classes differ and 0 otherwise.
    weights : {"occupancy", "stationary"} or array of shape (n,), default="occupancy"
        Weights of the states within a class; "occupancy" is the discounted occupancy. They determine the rewards of the
        classes and the rows of "mean". The rows of "kinetic" always use the stationary distribution.
    lag : int, default=1
        Number of steps of the chain that correspond to one step of the result. No root of the kernel is taken.
    tol : float, default=1e-8
        Certified gap of the distance, relative to the largest cost.

    Returns
    -------
    CompressResult
        ``chain``, the certified ``distance``, the ``timescales`` of both chains and ``assignment``. For "kinetic" also
        ``residual``, the relative error of the fit, which is zero if the desired kernel has no negative entries.

    Warns
    -----
    UserWarning
        If the small chain is faster or slower than the large one; see :attr:`CompressResult.remark`.

    Examples
    --------
    >>> from diffbisim.processes.examples import block_chain
    >>> aggregate(block_chain(3, 2), [0, 0, 1, 1, 2, 2]).distance.upper <= 1e-8
    True
    """
    chain = as_process(chain)
    if not isinstance(chain, MarkovChain):
        raise InvalidArgument(f"chain is a {type(chain).__name__}, not a MarkovChain: wrap the matrix first")
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidArgument(f'method is {method!r}; use "mean" or "kinetic"')
    check_discount(discount)
    check_tol(tol)
    X, (classes, names) = lagged(chain, check_count(lag, "lag", 1)), _classes(assignment, chain.n_states)
    how = How(discount, cost, None, _weights(X, weights, discount), lag, tol)
    return built(X, classes, METHODS[method], how, names)


class How(NamedTuple):
    """Options for a model on classes and its distance."""

    discount: float
    cost: Any = None
    rewards: Array | None = None  # of the classes, if they are given
    weight: Array | None = None  # of the states; None for their occupancy
    lag: int = 1  # the lag of the chain, which has been applied already
    tol: float = 1e-8


def built(X: MarkovChain, classes: Integers, model: str, how: How, names: Names | None = None) -> CompressResult:
    """Build the model for classes 0 … k-1 and compute its distance."""
    k, cost = int(classes.max()) + 1, how.cost
    if cost is None:
        cost = "classes" if X.rewards is None else "reward"
    learned = isinstance(cost, str) and cost == "reward"
    if learned and X.rewards is None:
        raise InvalidArgument(
            'cost is "reward", but the chain has no rewards; make it with MarkovChain(..., rewards=r)'
        )
    seen = (classes[:, None] != np.arange(k)).astype(float) if isinstance(cost, str) else cost
    target = Target(X, how.discount, numbers(X.rewards) if learned else None, None if learned else seen)
    small, residual = averaged(target, classes, k, how.weight), None
    if model == "kinetic":
        fitted = kinetic_model(X, classes)
        small, residual = SmallModel(fitted.transition, small.initial, small.rewards), fitted.residual
    paid = how.rewards
    if small.rewards is not None and X.rewards is not None:
        paid = small.rewards.reshape(k, *X.rewards.shape[1:])
    Y = MarkovChain(small.transition, initial=small.initial, rewards=paid, names=names, lag=X.lag)
    problem = Discounted.make(X, Y, "reward" if learned else ground_cost(seen, X, Y), how.discount)
    found = CompressResult(Y, Exact(tol=how.tol).solve(problem), (), model, how.lag, classes, residual)
    if found.remark:
        warn(found.remark, UserWarning)
    return found


def kinetic(X: MarkovChain, k: int, how: How) -> CompressResult:
    """Build the kinetic model of (at most) k metastable sets, numbered to match the costs if these are given."""
    assignment = metastable_sets(X, k)
    if how.cost is not None:
        assignment = matched_to_costs(Target(X, how.discount, cost=how.cost), assignment, k)
        if np.unique(assignment).size < k:
            raise InvalidArgument(f"n_states is {k}, but {np.unique(assignment).size} sets were found; use that number")
    if (sets := int(assignment.max()) + 1) < k:
        warn(
            f"n_states is {k}, but the states that are visited again and again form only {sets} metastable "
            f"set{'s' * (sets > 1)}; the model has {sets}. Transient states are part of the set that they lead to.",
            UserWarning,
        )
    return built(X, assignment, "kinetic", how)


class NamedClasses(NamedTuple):
    """The class 0 … k-1 of every state, and the names of the classes, if they have names."""

    assignment: Integers  # (n,)
    names: Names | None


def _classes(assignment: Any, n: int) -> NamedClasses:
    """Check the assignment of n states and number the classes."""
    given = np.asarray(assignment)
    if given.shape != (n,):
        raise InvalidArgument(f"assignment has shape {given.shape}; give one class for each of the {n} states")
    if given.dtype.kind in "iu":
        used = np.unique(given)
        gaps = np.flatnonzero(used != np.arange(used.size, dtype=used.dtype))
        if gaps.size:
            wrong = f"there is a class {used[0]}" if used[0] < 0 else f"class {gaps[0]} has no states"
            raise InvalidArgument(f"assignment: {wrong}; number the classes 0, 1, … without gaps, or give names")
        return NamedClasses(given.astype(np.int64), None)
    if given.dtype.kind not in "USO":
        raise InvalidArgument(f"assignment is of type {given.dtype}; give whole numbers from 0, or names")
    names = list(dict.fromkeys(given.tolist()))
    number = {name: k for k, name in enumerate(names)}
    return NamedClasses(np.array([number[name] for name in given.tolist()]), tuple(names))


def _weights(X: MarkovChain, weights: Any, discount: float) -> Array:
    """Return the weights of the states as numbers."""
    if isinstance(weights, str):
        if weights == "occupancy":
            return X.occupancy(discount)
        if weights == "stationary":
            return np.array(X.stationary_distribution)
        raise InvalidArgument(f'weights is {weights!r}; use "occupancy", "stationary" or {X.n_states} numbers')
    w = finite_numbers(weights, (X.n_states,), name="weights", per="state")
    if not (w.min() >= 0 and w.max() > 0):
        raise InvalidArgument(f"weights: the least is {w.min():g}, the largest {w.max():g}; give numbers of at least 0")
    return w
