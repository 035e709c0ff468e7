"""The target of a compression, and starting points of the search.

A :class:`Target` is the large chain together with what is observed of its states: rewards, if those of the small chain
are learned, or a fixed table of costs c(x,y). A :class:`SmallModel` is a small chain during the search. The search
starts from partitions into classes of states that behave similarly.

Two states behave similarly if they are close in the bisimulation metric. The metric between all pairs of states of a
large chain is expensive, so states are described by their distances to *landmarks* z, the states of a small chain L:

    φ_z(x) = d(x, z),        max_z |φ_z(x) - φ_z(x')| ≤ d(x, x'),        with equality if L is the chain itself.

For small chains, L is the chain itself. In these coordinates, partitions are found by k-medoids with k-means++ seeding,
weighted by the discounted occupancy; each seed may give a different one. Averaging turns a partition into a small
chain.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from diffbisim.common.arrays import Array
from diffbisim.common.checks import Integers
from diffbisim.learning.optimize.checkpoint import stored
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import feature_cost, reward_cost
from diffbisim.results.base import DistanceResult
from diffbisim.solvers import Exact

#: Up to these numbers of pairs of states and cells (pairs of transitions), the landmarks are the states themselves.
MOST_PAIRS, MOST_CELLS = 4_000, 4e6

#: Otherwise, the maximum number of landmarks, and of cells if there are more than four landmarks.
LANDMARKS, LANDMARK_CELLS = 20, 4e6

#: With a time limit: a cautious estimate of the cells (transitions of X times transitions of L) that take one second.
CELLS_PER_SECOND = 5e6

#: Certified gap of the metric to landmarks: TIGHT_GAP for up to MAX_PAIRS_FOR_TIGHT_GAP pairs, LOOSE_GAP for more.
TIGHT_GAP, MAX_PAIRS_FOR_TIGHT_GAP, LOOSE_GAP = 1e-6, 10_000, 1e-3

#: A medoid is chosen among at most this many members of its cluster.
CANDIDATES = 12

#: Maximum number of rounds of k-medoids.
ROUNDS = 20

#: Maximum number of iterations for a geometric median, and distances and steps that count as zero, relative to the
#: largest number.
MAX_MEDIAN_ITERATIONS, NEGLIGIBLE_DISTANCE = 200, 1e-12

#: Partitions that agree on more than this weight are alike. To find another one, k-medoids is run with so many rounds.
MAX_AGREEMENT, ATTEMPTS = 0.95, (ROUNDS, ROUNDS, 1, 1, 1)


@stored
@dataclass(frozen=True, eq=False)
class SmallModel:
    """A small chain: kernel ``(k, k)``, start ``(k,)``, and rewards ``(k,)`` or ``(k, d)`` if they are learned.

    ``assignment (n,)`` are the classes over which the model was averaged initially; None if it was not.
    """

    transition: Array
    initial: Array
    rewards: Array | None
    assignment: Integers | None = None


@dataclass(frozen=True, eq=False)
class Target:
    """The chain to approximate; exactly one of ``rewards``, ``(n,)`` or ``(n, d)``, and ``cost (n, k)`` is given."""

    chain: MarkovChain
    discount: float
    rewards: Array | None = None
    cost: Array | None = None
    tol: float = 1e-8

    @cached_property
    def weight(self) -> Array:
        """Discounted occupancy of the states."""
        return self.chain.occupancy(self.discount)

    @property
    def appearance(self) -> Array:
        """Observable coordinates of each state: its rewards, or its row of costs."""
        seen = self.rewards if self.rewards is not None else np.asarray(self.cost)
        return seen.reshape(len(seen), -1)

    def solve(
        self,
        model: SmallModel,
        warm: DistanceResult | None = None,
        callback: Callable[[Mapping[str, float]], object] | None = None,
        tol: float = 0.0,
    ) -> DistanceResult:
        """Compute the distance to a model, to the target's tolerance or a larger one.

        It uses one thread, because restarts run in parallel and results should be bitwise reproducible.
        """
        Y = MarkovChain(model.transition, initial=model.initial)
        table = self.cost
        if self.rewards is not None:
            table = (reward_cost if self.rewards.ndim == 1 else feature_cost)(self.rewards, model.rewards)
        problem = Discounted.make(self.chain, Y, table, self.discount)
        return Exact(tol=max(tol, self.tol), threads=1).solve(problem, warm=warm, callback=callback)


# --- states that behave similarly --------------------------------------------------------------------------


def landmark_distances(target: Target, seconds: float = np.inf) -> Array:
    """Return the distances of every state to the landmarks, shape ``(n, n_landmarks)``.

    If time is short, there are fewer landmarks and distances are less exact. If there is not even time for two
    landmarks, the appearance of the states is returned.
    """
    X, c = target.chain, target.appearance
    n, edges = X.n_states, X.n_transitions
    affordable = seconds * CELLS_PER_SECOND
    if n * n <= MOST_PAIRS and edges * edges <= min(MOST_CELLS, affordable):
        return _metric(X, X, _difference(c, c), target.discount, seconds)
    k = min(LANDMARKS, max(4.0, (LANDMARK_CELLS / edges) ** 0.5), (affordable / edges) ** 0.5)
    if k < 2:
        return c
    assignment = quantiles(c, target.weight, int(k))
    model = averaged(target, assignment, int(assignment.max()) + 1)
    centers = np.stack([c[assignment == k].mean(axis=0) for k in range(assignment.max() + 1)])
    L = MarkovChain(model.transition, initial=model.initial)
    return _metric(X, L, _difference(c, centers), target.discount, seconds)


def _metric(X: MarkovChain, Y: MarkovChain, cost: Array, discount: float, seconds: float) -> Array:
    """Return the bisimulation metric between all states of two chains."""
    tol = TIGHT_GAP if cost.size <= MAX_PAIRS_FOR_TIGHT_GAP else LOOSE_GAP
    solver = Exact(tol=tol, threads=1, time_limit=None if seconds == np.inf else seconds)
    return solver.solve(Discounted.make(X, Y, cost, discount)).values


def _difference(a: Array, b: Array) -> Array:
    """Return the distances in the sup norm between the rows of two arrays."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(a, b, "chebyshev"))


def quantiles(appearance: Array, weight: Array, k: int) -> Integers:
    """Return classes of about equal weight along the first principal component of the appearance."""
    centered = appearance - np.average(appearance, axis=0, weights=weight)
    order = np.argsort(centered @ np.linalg.svd(centered, full_matrices=False)[2][0], kind="stable")
    share = np.cumsum(weight[order]) - weight[order] / 2
    assignment = np.empty(len(appearance), dtype=np.int64)
    assignment[order] = np.minimum((share * k).astype(np.int64), k - 1)
    return np.unique(assignment, return_inverse=True)[1]


def other_partition(
    features: Array, weight: Array, k: int, rng: np.random.Generator, known: Sequence[Integers], deadline: float
) -> Integers:
    """Return an assignment to k clusters that differs from ``known`` ones, if some are found.

    From most centers, k-medoids ends in the same few clusters. If these are known, centers are drawn again, and their
    clusters are not improved.
    """
    for rounds in ATTEMPTS:
        assignment = medoid_partition(features, weight, k, rng, deadline, rounds)
        alike = (_agreement(assignment, other, weight) > MAX_AGREEMENT for other in known)
        if time.monotonic() > deadline or not any(alike):
            break
    return assignment


def _agreement(a: Integers, b: Integers, weight: Array) -> float:
    """Return the weight of the states on which two partitions agree, with their classes matched as well as possible."""
    from scipy.optimize import linear_sum_assignment

    shared = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(shared, (a, b), weight)
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum())


def medoid_partition(
    features: Array, weight: Array, k: int, rng: np.random.Generator, deadline: float = np.inf, rounds: int = ROUNDS
) -> Integers:
    """Assign states to k clusters (fewer if there are fewer distinct states), by weighted k-medoids in the sup norm.

    No round starts after the ``deadline`` (of ``time.monotonic``).
    """
    centers = _spread(features, weight, k, rng)
    assignment = np.zeros(len(features), dtype=np.int64)
    for _ in range(rounds):
        before, assignment = assignment, _difference(features, features[centers]).argmin(axis=1)
        if np.array_equal(before, assignment) or time.monotonic() > deadline:
            break
        centers = [_medoid(features, weight, np.flatnonzero(assignment == j), i, rng) for j, i in enumerate(centers)]
    return np.unique(assignment, return_inverse=True)[1]


def split_classes(features: Array, weight: Array, assignment: Integers, k: int, rng: np.random.Generator) -> Integers:
    """Split the widest class repeatedly until there are k classes, or as many as there are distinct states.

    The width of a class is the weighted sum of distances from its medoid.
    """
    assignment = np.unique(assignment, return_inverse=True)[1]
    while (n := int(assignment.max()) + 1) < k:
        widths = np.zeros(n)
        for j in range(n):
            members = np.flatnonzero(assignment == j)
            center = _medoid(features, weight, members, int(members[0]), rng)
            widths[j] = weight[members] @ np.abs(features[members] - features[center]).max(axis=1)
        members = np.flatnonzero(assignment == int(widths.argmax()))
        mass = weight[members].sum()
        if not (widths.max() > 0 and mass > 0):
            break
        halves = medoid_partition(features[members], weight[members] / mass, 2, rng)
        if halves.max() == 0:
            break
        assignment[members[halves == 1]] = n
    return assignment


def _from(features: Array, i: int) -> Array:
    """Return the distances of all states from state i."""
    return _difference(features, features[[i]])[:, 0]


def _spread(features: Array, weight: Array, k: int, rng: np.random.Generator) -> list[int]:
    """Draw centers by k-means++: with probabilities proportional to weight times squared distance to the centers."""
    centers = [int(rng.choice(weight.size, p=weight))]
    nearest = _from(features, centers[0])
    while len(centers) < k:
        p = weight * nearest**2
        if not p.sum() > 0:  # every visited state coincides with a center
            break
        centers.append(int(rng.choice(p.size, p=p / p.sum())))
        nearest = np.minimum(nearest, _from(features, centers[-1]))
    return centers


def _medoid(features: Array, weight: Array, members: Integers, current: int, rng: np.random.Generator) -> int:
    """Return the member with the least weighted distance to the others; the current center if there are no members."""
    if members.size == 0:
        return current
    few = members if members.size <= CANDIDATES else rng.choice(members, CANDIDATES, replace=False)
    far = weight[members] @ _difference(features[members], features[few])
    return int(few[int(np.argmin(far))])


def averaged(target: Target, assignment: Integers, k: int, weight: Array | None = None) -> SmallModel:
    """Return the chain of k states that averages the states of each class, by default weighted by occupancy.

    Learned rewards are weighted medians, which are optimal for ‖r - r'‖. Classes without members copy the first class
    and are never entered.
    """
    n, weight = assignment.size, target.weight if weight is None else weight
    weight = weight + weight.max() * 1e-12  # states that are never visited get a small weight
    into = sparse.csr_array((np.ones(n), assignment, np.arange(n + 1)), shape=(n, k))
    mass = np.bincount(assignment, weights=weight, minlength=k)
    rows = np.asarray((into.T @ sparse.diags_array(weight) @ (target.chain.successors.matrix @ into)).toarray())
    used = mass > 0
    P = np.where(used[:, None], rows / np.where(used, mass, 1.0)[:, None], 0.0)
    P[~used] = P[used][0]
    rewards = None
    if target.rewards is not None:
        r = target.rewards
        rewards = np.array([median(r[assignment == y], weight[assignment == y]) if used[y] else r[0] for y in range(k)])
    start = np.bincount(assignment, weights=target.chain.initial, minlength=k)
    return SmallModel(P / P.sum(axis=1, keepdims=True), start / start.sum(), rewards, assignment)


def spread(rewards: Array, k: int) -> Array:
    """Return k evenly spaced numbers over the range of the rewards; the midpoint for k = 1."""
    low, high = float(rewards.min()), float(rewards.max())
    return np.linspace(low, high, k) if k > 1 else np.array([(low + high) / 2])


def centers(vectors: Array, k: int) -> Array:
    """Return k centers (k, d) of the vectors, by Lloyd's algorithm from farthest points; deterministic."""
    chosen = [int(np.linalg.norm(vectors - vectors.mean(0), axis=1).argmin())]
    while len(chosen) < k:
        apart = np.linalg.norm(vectors[:, None] - vectors[chosen], axis=2).min(axis=1)
        chosen.append(int(apart.argmax()))
    found = vectors[chosen].copy()
    for _ in range(50):
        nearest = np.linalg.norm(vectors[:, None] - found, axis=2).argmin(axis=1)
        for y in np.unique(nearest):
            found[y] = vectors[nearest == y].mean(axis=0)
    return found


def by_appearance(target: Target, k: int) -> SmallModel:
    """Return a model of the classes of least cost; with learned rewards, of the nearest of k rewards (by_reward)."""
    if target.rewards is None:
        return averaged(target, np.asarray(target.cost).argmin(axis=1), k)
    evenly = spread(target.rewards, k) if target.rewards.ndim == 1 else centers(target.rewards, k)
    return replace(averaged(target, by_reward(target, k), k), rewards=evenly)


def by_reward(target: Target, k: int) -> Integers:
    """Return the classes of the nearest of k evenly spaced rewards, or centers of vectors; some may have no members."""
    r = np.asarray(target.rewards)
    if r.ndim > 1:
        return np.asarray(np.linalg.norm(r[:, None] - centers(r, k), axis=2).argmin(axis=1))
    return np.asarray(np.abs(r[:, None] - spread(r, k)).argmin(axis=1))


def random_model(target: Target, k: int, rng: np.random.Generator) -> SmallModel:
    """Return a model with Dirichlet rows, a uniform start, and the rewards of states drawn by occupancy."""
    drawn = rng.choice(target.weight.size, size=k, p=target.weight)
    rewards = None if target.rewards is None else target.rewards[drawn]
    return SmallModel(rng.dirichlet(np.ones(k), size=k), np.full(k, 1 / k), rewards)


def matched_to_costs(target: Target, assignment: Integers, k: int) -> Integers:
    """Renumber the classes to match the small states of a given cost; unchanged if rewards are learned."""
    if target.cost is None:
        return assignment
    from scipy.optimize import linear_sum_assignment

    into = np.zeros((int(assignment.max()) + 1, k))
    np.add.at(into, assignment, (target.weight + 1e-12)[:, None] * target.cost)
    rows, columns = linear_sum_assignment(into)
    name = into.argmin(axis=1)
    name[rows] = columns
    return np.asarray(name[assignment])


def weighted_median(values: Array, weight: Array) -> float:
    """Return the smallest minimizer of Σ w |v - ·|."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(share, share[-1] / 2)])


def geometric_median(vectors: Array, weight: Array) -> Array:
    """Return the minimizer of ``Σ w ‖v - ·‖`` over vectors ``(n, d)``; on a line, the weighted median.

    Weiszfeld's iteration y ← Σ a v / Σ a with a = w / ‖v - y‖, from the medians of the coordinates. At one of the
    vectors, of weight w, it would get stuck. There the others pull with the force R = ‖Σ a (v - y)‖: for R ≤ w it is
    the minimizer, otherwise the step is shortened by the factor 1 - w/R (Vardi and Zhang 2000). If the minimizer is one
    of the vectors, convergence is slow, so the nearest vector is tried at the end.
    """
    vectors, weight = vectors[weight > 0], weight[weight > 0]
    unit = float(np.abs(vectors).max()) or 1.0
    v, w = vectors / unit, weight / weight.sum()
    y = np.array([weighted_median(column, w) for column in v.T])
    for _ in range(MAX_MEDIAN_ITERATIONS):
        away = np.linalg.norm(v - y, axis=1)
        here = away <= NEGLIGIBLE_DISTANCE
        a = np.where(here, 0.0, w / np.where(here, 1.0, away))
        force, stuck = float(np.linalg.norm(a @ (v - y))), float(w[here].sum())
        if force <= stuck * (1 + NEGLIGIBLE_DISTANCE) or not a.sum() > 0:
            break
        step = (1 - stuck / force) * (a @ (v - y)) / a.sum()
        y = y + step
        if np.linalg.norm(step) <= NEGLIGIBLE_DISTANCE:
            break
    nearest = int(np.linalg.norm(v - y, axis=1).argmin())
    if w @ np.linalg.norm(v - v[nearest], axis=1) <= (w @ np.linalg.norm(v - y, axis=1)) * (1 + NEGLIGIBLE_DISTANCE):
        return np.array(vectors[nearest])
    return y * unit


def median(values: Array, weight: Array) -> Any:
    """Return the weighted median of numbers ``(n,)``, or the weighted geometric median of vectors ``(n, d)``."""
    return weighted_median(values, weight) if values.ndim == 1 else geometric_median(values, weight)


def numbers(rewards: Array | None) -> Array | None:
    """Return vectors of a single number as numbers ``(n,)``; others as they are."""
    return rewards[:, 0] if rewards is not None and rewards.ndim > 1 and rewards.shape[1] == 1 else rewards
