"""``abstract(mdp, n_states=k)``: a small MDP for planning, and the exact loss of planning with it.

A partition of the states into k classes, with means over the classes, defines a small MDP whose optimal policy is
lifted to the states. A metric alone does not tell which partition is best: a priori bounds are vacuous if k is below
the number of exact classes, and among twenty partitions suggested by a metric the best loses far less than the median.
But the loss of a given partition can be computed exactly and cheaply, with one policy iteration on k states and one
linear system on n states. The search therefore

    1. merges states that are exactly equivalent (lumping.py); if at most k classes remain, they are the answer, loss 0
    2. generates candidates: the simple ones (`simple_candidates`), and from many seeds k-medians for Ferns' metric U,
       for |Q* - Q*|, for their sum, and for |Q* - Q*| among states with the same best action; Ferns' balls; greedy
       pairs (see below)
    3. scores each by exact evaluation
    4. scores all partitions if they are few, and else moves and swaps of single states, starting from the best
       candidates (partitions.py); the result is the partition with the least loss, so none of the candidates is better

For a single known reward this is all that matters. The metric adds a bound for a whole family of rewards
(``result.bound``, ``result.family_bound``; model.py).

*Candidates* are classes of states that are close in a metric D:

    medians    k-medians: centers are drawn with probability proportional to weight times squared distance to the
               nearest center (k-means++); then every state is assigned to its nearest center and every center moves to
               the median of its class, in turn
    balls      Ferns, Panangaden & Precup (2006): an uncovered state becomes the center of a ball of radius ε that takes
               all uncovered states in it; ε is the smallest radius for which k balls suffice
    pairs      the two closest states are merged, then the next two, until k classes are left (Castro 2021,
               google-research's rl_metrics): single linkage
    simple     all states in one class; by best action; by optimal value, with equally many states in every class or cut
               at the largest gaps; by rewards, by Q* and by Ferns' metric, with average linkage
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from diffbisim.common.arrays import lazy
from diffbisim.common.checks import (
    Floats,
    Integers,
    Matrix,
    check_choice,
    check_count,
    check_discount,
    check_seconds,
    finite_numbers,
    refuse_given,
)
from diffbisim.common.errors import InvalidArgument, quietly
from diffbisim.common.progress import Progress, tracking
from diffbisim.distances.chains import distance
from diffbisim.processes.chain import Transitions
from diffbisim.processes.convert import as_process
from diffbisim.processes.lumping import by_first_appearance, lump
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import action_rewards
from diffbisim.processes.stochastic import as_generator
from diffbisim.reduction.abstraction.model import Ground, best_actions, class_mdp
from diffbisim.reduction.abstraction.partitions import (
    GIVEN,
    GLOBAL,
    MOST_PARTITIONS,
    STARTS,
    TRIED,
    Scoring,
    best_of_all,
    count_partitions,
    improved,
)
from diffbisim.reduction.abstraction.result import AbstractionResult, Candidate
from diffbisim.solvers import Exact

METHODS = ("best", "bisimulation", "q", "balls", "greedy")
SCORES = ("loss", "start_loss", "lookahead_loss", "lookahead_start_loss")

#: Number of transport cells (pairs of transitions of an action) up to which "best" uses Ferns' metric.
MAX_CELLS_FOR_METRIC = 5e7

#: Fraction of a time limit for Ferns' metric.
TIME_SHARE_OF_METRIC = 0.5

#: Maximum number of rounds of k-medians.
ROUNDS = 30

#: Number of members of a class among which its median is sought.
MAX_MEDIAN_MEMBERS = 60

#: Number of states up to which "best" tries candidates by average linkage, which need a table of all distances.
MAX_STATES_FOR_LINKAGE = 2_000


def abstract(
    mdp: MDP | Transitions,
    n_states: int | None = None,
    discount: float = 0.95,
    method: str = "best",
    *,
    assignment: Any = None,
    features: Any = None,
    restarts: int = 20,
    score: str = "loss",
    rewards: Any = None,
    unseen: str = "error",
    rng: int | np.random.Generator = 0,
    time_limit: float | None = None,
    progress: Progress = False,
) -> AbstractionResult:
    """Find a small MDP to plan with, and compute exactly what planning with it loses.

    Parameters
    ----------
    mdp : MDP or Transitions
        An MDP with rewards, or observed Transitions with actions, which are replaced by their empirical MDP.
    n_states : int
        Maximum number of abstract states; optional with `assignment`.
    discount : float, default=0.95
        Discount γ, strictly between 0 and 1.
    method : {"best", "bisimulation", "q", "balls", "greedy"}, default="best"
        "bisimulation" is k-medians in Ferns' metric, "q" k-medians by optimal action values, "balls" Ferns' ε-balls,
        "greedy" merges closest pairs, and "best" tries all of these and more. Only "best" goes on from the candidates:
        it scores all partitions if there are at most 200,000, and else improves the best candidates by moves and swaps
        of single states.
    assignment : array of shape (n,), default=None
        A given partition instead: the class of each state, a number or a name.
    features : array of shape (n, d) or (n, n_actions, d), default=None
        Bounds then hold for every reward w₀ r + <w, features> with |w_i| ≤ 1, and the metric also distinguishes states
        by the features.
    restarts : int, default=20
        Number of seeds for each kind of candidate that is drawn at random.
    score : {"loss", "start_loss", "lookahead_loss", "lookahead_start_loss"}, default="loss"
        What the best candidate minimizes.
    rewards : array, default=None
        For Transitions without rewards, the rewards of states (and actions).
    unseen : str, default="error"
        For Transitions, how to treat actions that were never taken in a state; see :meth:`MDP.from_transitions`.
    rng : int or numpy.random.Generator, default=0
        Seed; the same seed gives the same answer, unless the time limit is reached.
    time_limit : float, default=None
        Seconds after which no further partition is tried.
    progress : bool or callable, default=False
        True for a progress bar, or a callable ``(done, total)``.

    Returns
    -------
    AbstractionResult
        With ``mdp``, ``assignment``, ``encoder``, ``lift(policy)``, ``loss``, ``lookahead_loss``, ``bound``,
        ``optimality`` and ``candidates``.

    Examples
    --------
    >>> from diffbisim.processes.examples import four_rooms
    >>> rooms = four_rooms(size=7, irrelevant=3)
    >>> abstract(rooms, n_states=40).n_states
    40
    """
    given = _process(mdp, rewards, unseen)
    γ, ψ = check_discount(discount), _features(given, features)
    check_choice(score, "score", SCORES)
    if assignment is not None:
        refuse_given(
            "assignment is given, so there is no search", {"restarts": 20, "score": "loss", "time_limit": None},
            restarts=restarts, score=score, time_limit=time_limit,
        )  # fmt: skip
        return _partitioned(given, assignment, γ, ψ, n_states, method)
    check_choice(method, "method", METHODS)
    k = check_count(n_states, "n_states", 1)
    search = CandidateSearch(given, γ, ψ, k, time.monotonic() + check_seconds(time_limit), score, method == "best")
    best = search.run(method, check_count(restarts, "restarts", 1), as_generator(rng), progress)
    small, tried = class_mdp(given, best.assignment), tuple(search.tried)
    return AbstractionResult(given, small, best.assignment, γ, best.method, tried, ψ, search.in_time, search.optimality)


class CandidateSearch:
    """The candidates of one call, on the quotient by exact equivalence, or on the states if all partitions are tried.

    After :meth:`run`, `tried` holds them, `in_time` is False if the time limit was reached, and `optimality` tells what
    is known of the best.
    """

    def __init__(
        self, mdp: MDP, discount: float, features: Floats, k: int, deadline: float, score: str, thorough: bool
    ) -> None:
        rows = np.ascontiguousarray(features.reshape(mdp.n_states, -1)) + 0.0  # turns -0.0 into 0.0
        merged = lump(mdp) if features.shape[2] == 1 else lump(mdp, key=[row.tobytes() for row in rows])
        self.few = thorough and count_partitions(mdp.n_states, k, MOST_PARTITIONS) <= MOST_PARTITIONS
        if merged.n_states > k and self.few:  # equivalent states in different classes may be better
            self.assignment, small, first = np.arange(mdp.n_states), mdp, np.arange(mdp.n_states)
        else:
            self.assignment, small = merged.assignment, merged.mdp
            first = np.unique(merged.assignment, return_index=True)[1]
            self.few = thorough and count_partitions(small.n_states, k, MOST_PARTITIONS) <= MOST_PARTITIONS
        weight = np.bincount(self.assignment).astype(np.float64)
        self.ground, self.features = Ground.of(small, discount, weight), features[first]
        self.k, self.deadline, self.score, self.thorough = k, deadline, score, thorough
        self.tried: list[Candidate] = []
        self.in_time, self.optimality = True, TRIED

    def run(self, method: str, restarts: int, rng: np.random.Generator, progress: Progress) -> Candidate:
        """Try partitions, at least one, until the deadline, and return the best."""
        if self.ground.mdp.n_states <= self.k:
            self.optimality = GLOBAL
            return self._try("lump", -1, np.arange(self.ground.mdp.n_states))
        kinds = self._kinds(method)
        simple = self.simple_candidates() if self.thorough else {}
        total = len(simple) + len(kinds) * restarts + self.thorough
        with tracking(progress, total, "candidates") as advance:
            for name, seed, make in self._all(simple, kinds, restarts, rng):
                if self.tried and not self._has_time():
                    return min(self.tried, key=self._loss)
                self._try(name, seed, make())
                advance(1)
            if not self.thorough:
                return min(self.tried, key=self._loss)
            best = self._best_of_all() if self.few else self._best_of_moves()
            advance(1)
            return best

    def _has_time(self) -> bool:
        self.in_time = self.in_time and time.monotonic() <= self.deadline
        return self.in_time

    def _best_of_all(self) -> Candidate:
        """Score all partitions; if none beats the best candidate by more than rounding, return that one."""
        scoring, before = Scoring(self.ground, self.k, self.score), min(self.tried, key=self._loss)
        assignment, self.optimality = best_of_all(scoring, self._has_time)
        found = self._try("all", -1, assignment)
        return found if self._loss(found) < self._loss(before) - scoring.tolerance else before

    def _best_of_moves(self) -> Candidate:
        """Improve the best candidates by moves and swaps."""
        scoring, first = Scoring(self.ground, self.k, self.score), np.unique(self.assignment, return_index=True)[1]
        distinct = {row.assignment.tobytes(): row for row in reversed(self.tried)}
        ends = []
        for row in sorted(distinct.values(), key=self._loss)[:STARTS]:
            assignment, known = improved(scoring, row.assignment[first], self._has_time)
            moved = not np.array_equal(by_first_appearance(assignment[self.assignment]), row.assignment)
            ends.append((self._try("moves", -1, assignment) if moved else row, known))
            if known in (GLOBAL, TRIED):
                break  # nothing is left to gain, or no work and no time is left
        best, self.optimality = min(ends, key=lambda end: self._loss(end[0]))
        return best

    def _loss(self, row: Candidate) -> float:
        return float(getattr(row, self.score))

    def _kinds(self, method: str) -> dict[str, Callable[[np.random.Generator], Integers]]:
        """Return the generators of candidates of the method, by name, cheap ones first."""
        k, weight = self.k, self.ground.weight

        def by_medians(metric: Callable[[], Metric]) -> Callable[[np.random.Generator], Integers]:
            return lambda rng: medians(metric(), weight, k, rng)

        makers: dict[str, Callable[[np.random.Generator], Integers]] = {
            "q": by_medians(lambda: self.by_values),
            "action": by_medians(lambda: self.by_action),
            "bisimulation": by_medians(lambda: self.bisimulation),
            "sum": by_medians(lambda: self.bisimulation + self.by_values),
            "balls": lambda rng: balls(self.bisimulation.table, k, rng),
            "greedy": lambda rng: pairs(self.bisimulation.table, k, rng),
        }
        if method != "best":
            return {method: makers[method]}
        return makers if self._metric_is_affordable else {name: makers[name] for name in ("q", "action")}

    def simple_candidates(self) -> dict[str, Callable[[], Integers]]:
        """Return the partitions that anybody can write down, by name; no result of "best" is worse than any of them."""
        k, q, v = self.k, self.ground.action_values, self.ground.optimal
        made: dict[str, Callable[[], Integers]] = {
            "one class": lambda: np.zeros(v.size, dtype=np.int64),
            "best action": lambda: best_actions(q),
            "value": lambda: by_gaps(v, k),
            "value quantile": lambda: by_quantiles(v, k),
            "reward": lambda: linked(Metric.of_features(self.ground.rewards).table, k, "average"),
            "q linkage": lambda: linked(self.by_values.table, k, "average"),
            "linkage": lambda: linked(self.bisimulation.table, k, "average"),
        }
        if self.ground.mdp.n_states > MAX_STATES_FOR_LINKAGE:
            made = {name: make for name, make in made.items() if name not in ("reward", "q linkage")}
        if self.ground.mdp.n_states > MAX_STATES_FOR_LINKAGE or not self._metric_is_affordable:
            made.pop("linkage")
        if np.unique(best_actions(q)).size > k:
            made.pop("best action")
        return made

    def _all(
        self,
        simple: dict[str, Callable[[], Integers]],
        kinds: dict[str, Callable[[np.random.Generator], Integers]],
        restarts: int,
        rng: np.random.Generator,
    ) -> Iterator[tuple[str, int, Callable[[], Integers]]]:
        """Yield name, seed and maker of all candidates.

        The random kinds alternate, so that a run that is cut short has tried some of each.
        """
        yield from ((name, -1, make) for name, make in simple.items())
        for seed, children in enumerate([rng.spawn(len(kinds)) for _ in range(restarts)]):
            for (name, make), child in zip(kinds.items(), children, strict=True):
                yield name, seed, partial(make, child)

    def _try(self, method: str, seed: int, assignment: Integers) -> Candidate:
        """Score a partition of the quotient, add it to those tried, and return it."""
        classes = by_first_appearance(assignment)
        losses = self.ground.losses(classes)
        whole = by_first_appearance(classes[self.assignment])
        self.tried.append(Candidate(method, seed, int(classes.max()) + 1, *losses, whole))
        return self.tried[-1]

    @lazy
    def _metric_is_affordable(self) -> bool:
        """Whether "best" computes Ferns' metric."""
        return sum(_transitions(P) ** 2 for P in self.ground.mdp.transition) <= MAX_CELLS_FOR_METRIC

    @lazy
    def by_values(self) -> "Metric":
        """``max_a |Q*(s,a) - Q*(t,a)|``."""
        return Metric.of_features(self.ground.action_values)

    @lazy
    def by_action(self) -> "Metric":
        """The same, with states that have different best actions farther apart than any that share it."""
        q = self.ground.action_values
        far = 2 * float(np.ptp(q)) or 1.0
        return Metric.of_features(np.hstack([q, far * np.eye(q.shape[1])[best_actions(q)]]))

    @lazy
    def bisimulation(self) -> "Metric":
        """Ferns' metric for the features, with a tolerance that suffices for clustering."""
        ψ, mdp = self.features, self.ground.mdp
        cost = np.stack([np.abs(ψ[:, None, a] - ψ[None, :, a]).sum(axis=-1) for a in range(mdp.n_actions)])
        left = TIME_SHARE_OF_METRIC * max(self.deadline - time.monotonic(), 0.0)
        solver = Exact(tol=1e-4, time_limit=None if left == np.inf else left)
        with quietly():
            return Metric.of_table(np.array(distance(mdp, mdp, cost, self.ground.discount, solver).values))


def _transitions(P: Matrix) -> float:
    """Return the number of transitions of a kernel."""
    return float(np.count_nonzero(P) if isinstance(P, np.ndarray) else P.nnz)


def _process(mdp: Any, rewards: Any, unseen: str) -> MDP:
    """Return the MDP, checking that it has rewards."""
    mdp = as_process(mdp)
    if isinstance(mdp, Transitions):
        mdp = MDP.from_transitions(mdp, rewards=rewards, unseen=unseen)
    else:
        refuse_given("an MDP has its own, MDP(..., rewards=r)", {"rewards": None}, rewards=rewards)
        refuse_given("an MDP has all of its rows", {"unseen": "error"}, unseen=unseen)
    if not isinstance(mdp, MDP):
        raise InvalidArgument(
            f"mdp is a {type(mdp).__name__}; pass an MDP or Transitions with actions (for a chain, use compress)"
        )
    action_rewards(mdp)  # raises if the MDP has no rewards
    return mdp


def _features(mdp: MDP, features: Any) -> Floats:
    """Return ψ (n, n_actions, d): the reward, followed by the given features."""
    n, a = mdp.n_states, mdp.n_actions
    reward = action_rewards(mdp)[:, :, None]
    if features is None:
        return reward
    given = np.asarray(features)
    shape = (n, a, given.shape[-1]) if given.ndim == 3 else (n, given.shape[-1] if given.ndim == 2 else 1)
    table = finite_numbers(given, shape, name="features", per="state (and action) and feature")
    table = table if table.ndim == 3 else np.repeat(table[:, None], a, axis=1)
    return np.concatenate([reward, table], axis=2)


def _partitioned(
    mdp: MDP, assignment: Any, discount: float, features: Floats, n_states: int | None, method: str
) -> AbstractionResult:
    """Return the abstraction of a given partition."""
    given = np.asarray(assignment)
    if given.shape != (mdp.n_states,):
        raise InvalidArgument(
            f"assignment has shape {given.shape}; pass one class for each of the {mdp.n_states} states"
        )
    if method != "best":
        raise InvalidArgument(f"assignment and method={method!r} are both given; leave one of them out")
    classes = by_first_appearance(given)
    count = int(classes.max()) + 1
    if n_states is not None and count > check_count(n_states, "n_states", 1):
        raise InvalidArgument(f"assignment has {count} classes, more than n_states = {n_states}; leave n_states out")
    losses = Ground.of(mdp, discount).losses(classes)
    tried = (Candidate("assignment", -1, count, *losses, classes),)
    return AbstractionResult(
        mdp, class_mdp(mdp, classes), classes, discount, "assignment", tried, features, True, GIVEN
    )


# --- candidate partitions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Metric:
    """Distances between states; ``between(rows, columns)`` returns a table of that shape."""

    between: Callable[[Integers, Integers], Floats]
    n: int

    @classmethod
    def of_table(cls, D: Floats) -> "Metric":
        return cls(lambda i, j: D[np.ix_(i, j)], len(D))

    @classmethod
    def of_features(cls, q: Floats) -> "Metric":
        """The largest difference of features (n, d); for Q*, states with similar values of all actions are close."""
        from scipy.spatial.distance import cdist

        return cls(lambda i, j: np.asarray(cdist(q[i], q[j], "chebyshev")), len(q))

    def __add__(self, other: "Metric") -> "Metric":
        return Metric(lambda i, j: self.between(i, j) + other.between(i, j), self.n)

    @property
    def table(self) -> Floats:
        """All distances, (n, n)."""
        everyone = np.arange(self.n)
        return self.between(everyone, everyone)


def medians(metric: Metric, weight: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Return k classes around weighted medians (fewer if there are fewer distinct states)."""
    everyone = np.arange(metric.n)
    centers = _spread(metric, weight, k, rng)
    assignment = np.full(metric.n, -1)
    for _ in range(ROUNDS):
        before, assignment = assignment, metric.between(everyone, centers).argmin(axis=1)
        if np.array_equal(before, assignment):
            break
        centers = np.array([
            _median(metric, weight, np.flatnonzero(assignment == j), int(center), rng)
            for j, center in enumerate(centers)
        ])  # fmt: skip
    return by_first_appearance(assignment)


def _spread(metric: Metric, weight: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Return the initial centers, which are distinct."""
    everyone = np.arange(metric.n)
    centers = [int(rng.choice(metric.n, p=weight / weight.sum()))]
    nearest = metric.between(everyone, np.array(centers))[:, 0]
    while len(centers) < k:
        p = weight * nearest**2
        if not p.sum() > 0:
            break
        centers.append(int(rng.choice(metric.n, p=p / p.sum())))
        nearest = np.minimum(nearest, metric.between(everyone, np.array(centers[-1:]))[:, 0])
    return np.array(centers)


def _median(metric: Metric, weight: Floats, members: Integers, center: int, rng: np.random.Generator) -> int:
    """Return the member with the least sum of distances to the others, or the old center if there are no members."""
    if members.size == 0:
        return center
    few = members
    if members.size > MAX_MEDIAN_MEMBERS:
        few = np.sort(rng.choice(members, MAX_MEDIAN_MEMBERS, replace=False))
    return int(few[(weight[members] @ metric.between(members, few)).argmin()])


def balls(D: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Return k balls of the smallest sufficient radius, centered at states in random order."""
    order = rng.permutation(len(D))
    radii = np.unique(D)
    low, high = 0, radii.size - 1  # the largest radius needs one ball
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _covered(D, order, radii[middle]).max() < k else (middle + 1, high)
    return by_first_appearance(_covered(D, order, radii[high]))


def _covered(D: Floats, order: Integers, radius: float) -> Integers:
    """Return the ball of every state, numbered in order of creation."""
    assignment, count = np.full(len(D), -1), 0
    for center in order.tolist():
        if assignment[center] < 0:
            assignment[(D[center] <= radius) & (assignment < 0)] = count
            count += 1
    return assignment


def pairs(D: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Merge closest pairs until k classes are left; ties are broken at random."""
    order = rng.permutation(len(D))
    assignment = np.empty(len(D), dtype=np.int64)
    assignment[order] = linked(D[np.ix_(order, order)], k, "single")
    return by_first_appearance(assignment)


def linked(D: Floats, k: int, linkage: Literal["single", "average"]) -> Integers:
    """Merge classes until k are left, those that are closest by single or average linkage first."""
    from scipy.cluster.hierarchy import cut_tree
    from scipy.cluster.hierarchy import linkage as merges
    from scipy.spatial.distance import squareform

    if len(D) <= k:
        return np.arange(len(D))
    near = (D + D.T) / 2
    np.fill_diagonal(near, 0.0)
    return by_first_appearance(cut_tree(merges(squareform(near, checks=False), linkage), n_clusters=[k])[:, 0])


def by_gaps(v: Floats, k: int) -> Integers:
    """Cut numbers (n,) at the k - 1 largest gaps between neighbors."""
    order = np.argsort(v, kind="stable")
    gaps = np.diff(v[order])
    cuts = np.argsort(-gaps, kind="stable")[: k - 1]
    assignment = np.empty(v.size, dtype=np.int64)
    assignment[order] = np.append(0, np.cumsum(np.isin(np.arange(gaps.size), cuts)))
    return by_first_appearance(assignment)


def by_quantiles(v: Floats, k: int) -> Integers:
    """Divide numbers (n,) by size into k classes of equally many."""
    assignment = np.empty(v.size, dtype=np.int64)
    assignment[np.argsort(v, kind="stable")] = np.arange(v.size) * k // v.size
    return by_first_appearance(assignment)
