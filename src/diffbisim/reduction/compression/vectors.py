"""Simple candidates for targets whose rewards are vectors, seen through the Euclidean cost.

Classes of states, the chain that never moves and the kinetic model are the same as for numbers (candidates.py). Two
things differ. The best reward for given states is their weighted *geometric median*, argmin Σ w ‖r(x) - ·‖ (starts.py),
which need not be one of their vectors. And vectors have no order, so the best k vectors of the frozen chain,

    min Σ_x ν(x) min_y h(x, r'_y),        h(x, r') = (1-γ) Σ_t γᵗ E_x ‖r(X_t) - r'‖,

are no shortest path. They are a k-median problem over the vectors of the target, searched by exchange: add the vector
that helps most until there are k, then replace one as long as that helps. The descent moves them off the vectors of the
target afterwards. With these vectors fixed, h is a table of costs, from which candidates.py makes the classes.
"""

from dataclasses import replace

import numpy as np

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers
from diffbisim.common.errors import DiffbisimError
from diffbisim.processes.cost import feature_cost
from diffbisim.reduction.compression.candidates import (
    MAX_REWARDS,
    MAX_REWARDS_IF_LARGE,
    MAX_STATES_FOR_METASTABLE_SETS,
    discounted,
    nearest_of,
    simple_aggregates,
    simple_candidates,
)
from diffbisim.reduction.compression.kinetics import MAX_DIRECT_STATES, kinetic_model, metastable_sets
from diffbisim.reduction.compression.starts import SmallModel, Target, averaged, centers, quantiles

#: Work that the choice of vectors may take, in entries of the table that are read; and per second of a time limit.
WORK, PER_SECOND = 1e9, 1e8


def vector_candidates(target: Target, whole: Target, k: int, seconds: float = np.inf) -> list[SmallModel]:
    """Return the frozen chain first, then the aggregates and the kinetic model of the ``whole`` chain.

    The list is empty if there is no time for them.
    """
    chosen = frozen_vectors(target, k, seconds)
    fixed = _with_vectors(target, chosen)
    found = simple_candidates(fixed, fixed, k, seconds)
    if not found:
        return []
    frozen = replace(found[0], rewards=chosen)
    return [
        frozen,
        *_averages(target, [m.assignment for m in found if m.assignment is not None], k),
        *_kinetic(whole, k),
    ]


def vector_aggregates(target: Target, k: int, seconds: float = np.inf) -> list[SmallModel]:
    """Return the aggregates only."""
    found = simple_aggregates(_with_vectors(target, frozen_vectors(target, k, seconds)), k, seconds)
    return _averages(target, [m.assignment for m in found if m.assignment is not None], k) if found else []


def frozen_vectors(target: Target, k: int, seconds: float = np.inf) -> Array:
    """Return k vectors (k, d) of the target that are good for the frozen chain; centers if there is no time."""
    seen, n = np.asarray(target.rewards), target.chain.n_states
    vectors, most = np.unique(seen, axis=0), MAX_REWARDS if n <= MAX_DIRECT_STATES else MAX_REWARDS_IF_LARGE
    if len(vectors) > most:
        assignment = quantiles(seen, target.weight, most)
        vectors = seen[np.unique(assignment, return_index=True)[1]]
    steps = 1.0 if n <= MAX_DIRECT_STATES else -7 / np.log(target.discount)
    if n * len(vectors) * (k + steps) * k > min(WORK, seconds * PER_SECOND):
        return centers(seen, k)
    profiles = discounted(target, feature_cost(seen, vectors))
    start = target.chain.initial > 0
    chosen = exchanged(target.chain.initial[start], profiles[start], k)
    return np.asarray(vectors[np.append(chosen, np.repeat(chosen[:1], k - chosen.size))])


def exchanged(weight: Array, table: Array, k: int) -> Integers:
    """Return k columns (fewer if there are fewer) with a small ``Σ_x weight(x) min_y table(x,y)``, by exchange."""
    chosen: list[int] = []
    while len(chosen) < min(k, table.shape[1]):
        chosen.append(_addition(weight, table, chosen)[0])
    value, turn, idle = _addition(weight, table, chosen[:-1])[1], 0, 0
    while idle < len(chosen):
        rest = [*chosen[:turn], *chosen[turn + 1 :]]
        column, after = _addition(weight, table, rest)
        better = after < value * (1 - 1e-9)
        if better:
            chosen[turn], value = column, after
        turn, idle = (turn + 1) % len(chosen), 0 if better else idle + 1
    return np.array(chosen, dtype=np.int64)


def _addition(weight: Array, table: Array, chosen: list[int]) -> tuple[int, float]:
    """Return the column that helps most in addition to the chosen ones, and the value with it."""
    least = table[:, chosen].min(axis=1, initial=np.inf)
    values = weight @ np.minimum(table, least[:, None])
    return int(values.argmin()), float(values.min())


def _with_vectors(target: Target, vectors: Array) -> Target:
    """Return the target with a table of costs, for fixed vectors (k, d) of the small states."""
    return replace(target, rewards=None, cost=feature_cost(target.rewards, vectors))


def _averages(target: Target, partitions: list[Integers], k: int) -> list[SmallModel]:
    """Return averages over these classes and over clusters of vectors, values, and both."""
    seen, n = target.appearance, target.chain.n_states
    value = discounted(target, seen)
    both = np.hstack([seen / (np.ptp(seen) or 1.0), value / (np.ptp(value) or 1.0)])
    more = [nearest_of(points, centers(points, k)) for points in (seen, value, both) if n <= MAX_DIRECT_STATES]
    more += [quantiles(points, target.weight, k) for points in (seen, value)]
    return [averaged(target, np.unique(assignment, return_inverse=True)[1], k) for assignment in [*partitions, *more]]


def _kinetic(target: Target, k: int) -> list[SmallModel]:
    """Return the kinetic model of the metastable sets, if there is one; missing sets become unused states."""
    if target.chain.n_states > MAX_STATES_FOR_METASTABLE_SETS:
        return []
    try:
        sets = metastable_sets(target.chain, k)
        kernel = kinetic_model(target.chain, sets).transition
    except (DiffbisimError, np.linalg.LinAlgError):
        return []
    if not np.isfinite(kernel).all():
        return []
    mean, P = averaged(target, sets, k), np.zeros((k, k))
    P[:, : len(kernel)] = np.vstack([kernel, np.repeat(kernel[:1], k - len(kernel), axis=0)])
    return [SmallModel(P, mean.initial, mean.rewards)]
