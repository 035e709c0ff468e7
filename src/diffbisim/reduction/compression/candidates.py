"""Simple candidates: small chains that anybody can write down. No result of a search is farther than the best of them.

    frozen       the chain that never moves, with the best k rewards; see below
    aggregates   averages over classes of states with similar rewards, similar values (expected discounted rewards),
                 both, or similar profiles (those of the frozen chain): quantiles, evenly spaced, cells of equal width,
                 or k-means from several seeds; over consecutive states; and over metastable sets
    kinetic      the kinetic models of these classes (kinetics.py), for chains with one recurrent class

*The frozen chain* has the identity as its kernel. Its state y shows the reward r'_y forever, so the coupling of a state
x with it is unique, and costs

    h(x, r') = (1-γ) Σ_t γᵗ E_x |r(X_t) - r'| = Σ_x' M(x,x') |r(x') - r'|,        M = (1-γ) (I - γP)⁻¹.

Every x is sent to the y of least cost, so the distance is Σ_x ν(x) min_y h(x, r'_y). As a function of r', h is convex
and piecewise linear with kinks at rewards of the target. For given classes, the best r'_y are therefore rewards of the
target, and for numbers a < b < … < c the minimum can be taken pair by pair: by convexity,

    min (h(a), …, h(b), h(c)) = min (h(a), …, h(b)) + min (h(b), h(c)) - h(b).

So the best k rewards form a shortest path, found by dynamic programming. For a table of costs c, h = M c, and there is
nothing to choose.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers, dense
from diffbisim.common.errors import DiffbisimError
from diffbisim.reduction.compression.kinetics import MAX_DIRECT_STATES, kinetic_model, metastable_sets
from diffbisim.reduction.compression.starts import (
    LOOSE_GAP,
    SmallModel,
    Target,
    averaged,
    by_reward,
    centers,
    matched_to_costs,
    medoid_partition,
    quantiles,
    spread,
)

#: Maximum number of rewards to choose from, for chains of up to MAX_DIRECT_STATES states and for larger ones.
MAX_REWARDS, MAX_REWARDS_IF_LARGE = 400, 32

#: For chains of more than MAX_DIRECT_STATES states, discounted sums end when this fraction of the weight is left.
MAX_WEIGHT_LEFT = 1e-3

#: Up to this number of states, metastable sets are among the candidates.
MAX_STATES_FOR_METASTABLE_SETS = 1_000

#: Up to this number of states, there is k-means from so many seeds, and a kinetic model for every other partition.
MAX_SEEDED_STATES, SEEDS = 400, 12

#: All partitions are compared if there are at most this many ways to name the classes of all but one state.
MAX_NAMINGS = 512

#: The frozen chain is one of the starts if its distance is at most this multiple of that of the nearest candidate.
NOT_MUCH_FARTHER = 1.5

#: Floating-point operations per second that are assumed when time is limited.
PER_SECOND = 2e9


def simple_candidates(target: Target, whole: Target, k: int, seconds: float = np.inf) -> list[SmallModel]:
    """Return the frozen chain first, then the aggregates and the kinetic model.

    The kinetic model is that of the ``whole`` chain, of which the target is the quotient. The list is empty if there is
    no time to compute the profiles of rewards.
    """
    if _operations(target) > seconds * PER_SECOND:
        return []
    numbers, profiles = reward_profiles(target)
    chosen = medians(target.chain.initial, profiles, k) if target.rewards is not None else np.arange(k)
    classes = np.asarray(profiles[:, chosen].argmin(axis=1))
    partitions, sets = _partitions(target, k, classes), _metastable(whole, k)
    found = [_frozen(target, classes, numbers, chosen, k)]
    averages = _different(partitions + _seeded(target, k) + _every(target, k))
    found += [averaged(target, assignment, k) for assignment in averages]
    if sets is not None:
        found += _kinetic(whole, matched_to_costs(whole, sets, k), k)
    for assignment in (
        partitions if target.chain.n_states <= MAX_SEEDED_STATES and len(target.chain.recurrent_classes) == 1 else ()
    ):
        found += _kinetic(target, assignment, k)
    return found


def simple_aggregates(target: Target, k: int, seconds: float = np.inf) -> list[SmallModel]:
    """Return the aggregates only; if there are few partitions, those of all of them."""
    if _operations(target) > seconds * PER_SECOND:
        return []
    if every := _every(target, k):
        return [averaged(target, assignment, k) for assignment in every]
    _, profiles = reward_profiles(target)
    chosen = medians(target.chain.initial, profiles, k) if target.rewards is not None else np.arange(k)
    partitions = _partitions(target, k, np.asarray(profiles[:, chosen].argmin(axis=1)))
    return [averaged(target, assignment, k) for assignment in _different(partitions + _seeded(target, k))]


def metric_averages(target: Target, features: Array, k: int) -> list[SmallModel]:
    """Return averages over classes of k-medoids in the bisimulation metric, from several seeds; always the same."""
    rngs = map(np.random.default_rng, range(SEEDS))
    found = [medoid_partition(features, target.weight, k, rng) for rng in rngs]
    return [averaged(target, matched_to_costs(target, assignment, k), k) for assignment in _different(found)]


def _different(partitions: list[Integers]) -> list[Integers]:
    """Return every partition once, however its classes are numbered."""
    return list({_name(assignment): assignment for assignment in reversed(partitions)}.values())[::-1]


def _every(target: Target, k: int) -> list[Integers]:
    """Return all partitions if there are few, else none."""
    n = target.chain.n_states
    if k ** (n - 1) > MAX_NAMINGS:
        return []
    every = (np.array([0, *rest]) for rest in itertools.product(range(k), repeat=n - 1))
    return [matched_to_costs(target, assignment, k) for assignment in every if _in_order(assignment)]


def _in_order(assignment: Integers) -> bool:
    """Return whether the classes are numbered in the order of their first states; others are the same partition."""
    return bool(np.all(assignment[1:] <= np.maximum.accumulate(assignment)[:-1] + 1))


def nearest_first(target: Target, models: list[SmallModel], deadline: float = np.inf) -> list[SmallModel]:
    """Return the nearest model, followed by the first one and the nearest average if these are not much farther.

    Each is solved only until it is certainly farther than another one. Chains of more than MAX_DIRECT_STATES states are
    compared to a gap of LOOSE_GAP.
    """
    tol = 0.0 if target.chain.n_states <= MAX_DIRECT_STATES else LOOSE_GAP
    uppers = np.full(len(models), np.inf)
    averages = np.array([model.assignment is not None for model in models])
    for n, model in enumerate(models):
        if n and time.monotonic() > deadline:
            break
        least = float(uppers[averages].min() if averages[n] else uppers.min())

        def stop(row: Mapping[str, float], least: float = least) -> bool:
            return row["lower"] >= least or time.monotonic() > deadline

        uppers[n] = target.solve(model, callback=stop, tol=tol).upper
    if not models:
        return []
    chosen = [int(np.argmin(uppers)), 0, int(np.argmin(np.where(averages, uppers, np.inf)))]
    close = [n for n in dict.fromkeys(chosen) if uppers[n] <= NOT_MUCH_FARTHER * uppers[chosen[0]]]
    return [models[n] for n in close]


# --- the frozen chain ----------------------------------------------------------------------------------------


def reward_profiles(target: Target) -> tuple[Array | None, Array]:
    """Return the rewards ``(m,)`` to choose from and the table h ``(n, m)``; for costs, None and h ``(n, k)``."""
    if target.rewards is None:
        return None, discounted(target, np.asarray(target.cost))
    numbers = np.unique(target.rewards)
    most = MAX_REWARDS if target.chain.n_states <= MAX_DIRECT_STATES else MAX_REWARDS_IF_LARGE
    if numbers.size > most:
        assignment = quantiles(target.rewards[:, None], target.weight, most)
        order = np.argsort(target.rewards, kind="stable")
        numbers = np.unique(target.rewards[order][np.unique(assignment[order], return_index=True)[1]])
    return numbers, discounted(target, np.abs(target.rewards[:, None] - numbers))


def discounted(target: Target, values: Array) -> Array:
    """Return ``(1-γ) Σ_t γᵗ Pᵗ values``, for more than MAX_DIRECT_STATES states up to a rest of the weight."""
    chain, γ = target.chain, target.discount
    if chain.n_states <= MAX_DIRECT_STATES:
        solved = np.linalg.solve(np.eye(chain.n_states) - γ * dense(chain.transition), (1 - γ) * values)
        return np.asarray(solved)
    total, ahead = np.zeros_like(values), values
    for t in range(_steps(γ)):
        total += (1 - γ) * γ**t * ahead
        ahead = chain.successors.matrix @ ahead
    return total


def _steps(discount: float) -> int:
    """Return the number of steps after which less than MAX_WEIGHT_LEFT of the weight is left."""
    return math.ceil(math.log(MAX_WEIGHT_LEFT) / math.log(discount))


def _operations(target: Target) -> float:
    """Return about how many floating-point operations the profiles take."""
    n = target.chain.n_states
    if n <= MAX_DIRECT_STATES:
        return n**3 + MAX_REWARDS**2 * n
    return 2.0 * MAX_REWARDS_IF_LARGE * _steps(target.discount) * target.chain.n_transitions


def medians(weight: Array, table: Array, k: int) -> Integers:
    """Return the k columns (fewer if there are fewer) with the least ``Σ_x weight(x) min_y table(x,y)``, ascending.

    The rows of the table are convex functions of the columns; see the module's docstring.
    """
    seen = weight > 0
    weight, table = weight[seen], table[seen]
    m = table.shape[1]
    alone = weight @ table
    pairs = np.array([weight @ np.minimum(table[:, [a]], table) for a in range(m)])
    after = np.where(np.triu(np.ones((m, m), dtype=bool), 1), pairs - alone[:, None], np.inf)  # cost of b after a
    cost, before = alone, []
    for _ in range(min(k, m) - 1):
        total = cost[:, None] + after
        before.append(total.argmin(axis=0))
        cost = total.min(axis=0)
    chosen = [int(cost.argmin())]
    for last in reversed(before):
        chosen.append(int(last[chosen[-1]]))
    return np.array(chosen[::-1], dtype=np.int64)


def _frozen(target: Target, classes: Integers, numbers: Array | None, chosen: Integers, k: int) -> SmallModel:
    """Return the chain that never moves; states without a reward of their own copy the first one."""
    start = np.bincount(classes, weights=target.chain.initial, minlength=k)
    rewards = None if numbers is None else np.append(numbers[chosen], np.repeat(numbers[chosen[:1]], k - chosen.size))
    return SmallModel(np.eye(k), start / start.sum(), rewards)


# --- classes -------------------------------------------------------------------------------------------------


def _partitions(target: Target, k: int, profiles: Integers) -> list[Integers]:
    """Return different classes of similar profiles, rewards or costs, and values, and metastable sets."""
    n, seen = target.chain.n_states, target.appearance
    found = [profiles, quantiles(seen, target.weight, k), np.arange(n) * min(k, n) // n]
    if target.rewards is not None:
        value, both = _seen_and_expected(target)
        found += [by_reward(target, k), quantiles(value, target.weight, k), nearest_of(value, spread(value, k))]
        found += [cells(seen, k), cells(value, k)]
        found += [quantiles(points, np.full(n, 1 / n), k) for points in (seen, value)]  # as many states in each
        found += [nearest_of(points, centers(points, k)) for points in (seen, both) if n <= MAX_DIRECT_STATES]
    if (sets := _metastable(target, k)) is not None:
        found.append(sets)
    return _different([matched_to_costs(target, np.unique(x, return_inverse=True)[1], k) for x in found])


def _name(assignment: Integers) -> bytes:
    """Return a name of the partition, for classes that are numbered in any order."""
    _, first, inverse = np.unique(assignment, return_index=True, return_inverse=True)
    return first[inverse].tobytes()


def cells(values: Array, k: int) -> Integers:
    """Return the number of the cell of every number; k cells of equal width cover their range."""
    share = (values.ravel() - values.min()) / (np.ptp(values) or 1.0)
    return np.asarray(np.minimum((share * k).astype(np.int64), k - 1))


def _seen_and_expected(target: Target) -> tuple[Array, Array]:
    """Return the values ``(n, 1)``, and rewards and values on the same scale ``(n, 2)``."""
    seen, value = target.appearance, discounted(target, target.appearance)
    return value, np.hstack([seen / (np.ptp(seen) or 1.0), value / (np.ptp(value) or 1.0)])


def _seeded(target: Target, k: int) -> list[Integers]:
    """Return clusters of rewards, and of rewards and values, by k-means from several seeds; always the same ones."""
    from scipy.cluster.vq import ClusterError, kmeans2

    n, found = target.chain.n_states, []
    if target.rewards is None or n > MAX_SEEDED_STATES:
        return []
    for points, seed in itertools.product((target.appearance, _seen_and_expected(target)[1]), range(SEEDS)):
        with suppress(ClusterError):  # an empty cluster
            rng = np.random.default_rng(seed)
            found.append(kmeans2(points, min(k, n), minit="++", missing="raise", rng=rng)[1].astype(np.int64))
    return [np.unique(assignment, return_inverse=True)[1] for assignment in found]


def nearest_of(points: Array, centers: Array) -> Integers:
    """Return the number of the nearest center of every point (n, d)."""
    away = points[:, None] - centers.reshape(len(centers), -1)
    return np.asarray(np.linalg.norm(away, axis=2).argmin(axis=1))


def _metastable(target: Target, k: int) -> Integers | None:
    """Return the metastable sets; None for large chains and those without slow modes."""
    if target.chain.n_states > MAX_STATES_FOR_METASTABLE_SETS:
        return None
    try:
        return metastable_sets(target.chain, k)
    except DiffbisimError:
        return None


def _kinetic(target: Target, assignment: Integers, k: int) -> Iterator[SmallModel]:
    """Yield the kinetic model of these classes, if there is one; missing classes become unused states."""
    mean, (used, inside) = averaged(target, assignment, k), np.unique(assignment, return_inverse=True)
    try:
        kernel = kinetic_model(target.chain, inside).transition
    except (DiffbisimError, np.linalg.LinAlgError):
        return
    if not np.isfinite(kernel).all():
        return
    P = np.array(mean.transition)
    P[used] = 0.0
    P[np.ix_(used, used)] = kernel
    yield SmallModel(P, mean.initial, mean.rewards)
