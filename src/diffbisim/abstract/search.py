"""``abstract(mdp, n_states=k)``: a small MDP for planning, and the exact loss of planning with it.

A partition of the states into k classes, with means over the classes, defines a small MDP whose optimal policy is
lifted to the states. A metric alone does not tell which partition is best: a priori bounds are vacuous if k is below
the number of exact classes, and among twenty partitions suggested by a metric the best loses far less than the median.
But the loss of a given partition can be computed exactly and cheaply, with one policy iteration on k states and one
linear system on n states. The search therefore

    1. merges states that are exactly equivalent (lumping.py); if at most k classes remain, they are the answer, loss 0
    2. generates candidates: k-medians from many seeds for Ferns' metric U, for |Q* - Q*|, for their sum, and for
       |Q* - Q*| among states with the same best action; Ferns' balls; greedy pairs
    3. scores each by exact evaluation and returns the one with the least loss

For a single known reward this is all that matters. The metric adds a bound for a whole family of rewards
(``result.bound``, ``result.family_bound``; model.py).
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diffbisim.abstract.model import Ground, best_actions, class_mdp
from diffbisim.abstract.partitions import Metric, balls, medians, numbered, pairs
from diffbisim.abstract.result import AbstractionResult, Candidate
from diffbisim.chain import Transitions
from diffbisim.checks import Floats, Integers, Matrix, as_number, check_count, check_discount, finite_numbers
from diffbisim.distance import distance
from diffbisim.errors import InvalidArgument, quietly
from diffbisim.lumping import lump
from diffbisim.mdp import MDP
from diffbisim.planning import action_rewards
from diffbisim.problem import lazy
from diffbisim.process import as_process
from diffbisim.progress import Progress, tracking
from diffbisim.solvers import Exact
from diffbisim.stochastic import as_generator

METHODS = ("best", "bisimulation", "q", "balls", "greedy")
SCORES = ("loss", "start_loss", "lookahead_loss", "lookahead_start_loss")

#: Number of transport cells (pairs of transitions of an action) up to which "best" uses Ferns' metric.
AFFORDABLE = 5e7

#: Fraction of a time limit for Ferns' metric.
METRIC = 0.5


def abstract(
    mdp: MDP | Transitions,
    n_states: int | None = None,
    discount: float = 0.95,
    method: str = "best",
    *,
    labels: Any = None,
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
        Maximum number of abstract states; optional if `labels` are given.
    discount : float, default=0.95
        Discount γ, strictly between 0 and 1.
    method : {"best", "bisimulation", "q", "balls", "greedy"}, default="best"
        "bisimulation" is k-medians in Ferns' metric, "q" k-medians by optimal action values, "balls" Ferns' ε-balls,
        "greedy" merges closest pairs, and "best" tries all of these and more.
    labels : array of shape (n,), default=None
        A given partition instead, one label per state.
    features : array of shape (n, d) or (n, n_actions, d), default=None
        Bounds then hold for every reward w₀ r + <w, features> with |w_i| ≤ 1, and the metric also distinguishes states
        by the features.
    restarts : int, default=20
        Number of seeds for each kind of candidate.
    score : {"loss", "start_loss", "lookahead_loss", "lookahead_start_loss"}, default="loss"
        What the best candidate minimizes.
    rewards : array, default=None
        For Transitions without rewards, the rewards of states (and actions).
    unseen : str, default="error"
        For Transitions, how to treat actions that were never taken in a state; see :meth:`MDP.from_transitions`.
    rng : int or numpy.random.Generator, default=0
        Seed; the same seed gives the same answer, unless the time limit is reached.
    time_limit : float, default=None
        Seconds after which no further candidate is tried.
    progress : bool or callable, default=False
        True for a progress bar, or a callable ``(done, total)``.

    Returns
    -------
    AbstractionResult
        With ``mdp``, ``labels``, ``encoder``, ``lift(policy)``, ``loss``, ``lookahead_loss``, ``bound`` and
        ``candidates``.

    Examples
    --------
    >>> from diffbisim.data.examples import four_rooms
    >>> rooms = four_rooms(size=7, irrelevant=3)
    >>> abstract(rooms, n_states=40).n_states
    40
    """
    given = _process(mdp, rewards, unseen)
    γ, ψ = check_discount(discount), _features(given, features)
    if score not in SCORES:
        raise InvalidArgument(f"score is {score!r}; use one of {', '.join(map(repr, SCORES))}")
    if labels is not None:
        return _partitioned(given, labels, γ, ψ, n_states, method)
    if method not in METHODS:
        raise InvalidArgument(f"method is {method!r}; use one of {', '.join(map(repr, METHODS))}")
    k = _positive(n_states, "n_states")
    deadline = time.monotonic() + _seconds(time_limit)
    search = Search(given, γ, ψ, k, deadline)
    tried, complete = search.run(method, _positive(restarts, "restarts"), as_generator(rng), progress)
    best = min(tried, key=lambda row: getattr(row, score))
    small = class_mdp(given, best.labels)
    return AbstractionResult(given, small, best.labels, γ, best.method, tuple(tried), ψ, complete)


class Search:
    """The candidates of one call, on the quotient by exact equivalence."""

    def __init__(self, mdp: MDP, discount: float, features: Floats, k: int, deadline: float) -> None:
        rows = np.ascontiguousarray(features.reshape(mdp.n_states, -1)) + 0.0  # turns -0.0 into 0.0
        self.merged = lump(mdp) if features.shape[2] == 1 else lump(mdp, key=[row.tobytes() for row in rows])
        first = np.unique(self.merged.labels, return_index=True)[1]
        weight = np.bincount(self.merged.labels).astype(np.float64)
        self.ground, self.features = Ground.of(self.merged.mdp, discount, weight), features[first]
        self.k, self.deadline = k, deadline

    def run(
        self, method: str, restarts: int, rng: np.random.Generator, progress: Progress
    ) -> tuple[list[Candidate], bool]:
        """Try candidates, at least one, until the deadline; return them, and whether they are complete."""
        if self.merged.n_states <= self.k:
            return [self._candidate("lump", -1, np.arange(self.merged.n_states))], True
        tried: list[Candidate] = []
        kinds = self._kinds(method)
        with tracking(progress, len(kinds) * restarts, "candidates") as advance:
            for seed, (kind, make, child) in enumerate(self._all(kinds, restarts, rng)):
                if tried and time.monotonic() > self.deadline:
                    return tried, False
                tried.append(self._candidate(kind, seed // len(kinds), make(child)))
                advance(1)
        return tried, True

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
        cells = sum(_transitions(P) ** 2 for P in self.merged.mdp.transition)
        return makers if cells <= AFFORDABLE else {name: makers[name] for name in ("q", "action")}

    def _all(
        self, kinds: dict[str, Callable[[np.random.Generator], Integers]], restarts: int, rng: np.random.Generator
    ) -> Iterator[tuple[str, Callable[[np.random.Generator], Integers], np.random.Generator]]:
        """Alternate between the kinds of candidates, so that a run that is cut short has tried some of each."""
        for children in [rng.spawn(len(kinds)) for _ in range(restarts)]:
            yield from ((name, make, child) for (name, make), child in zip(kinds.items(), children, strict=True))

    def _candidate(self, method: str, seed: int, labels: Integers) -> Candidate:
        losses = self.ground.losses(labels)
        return Candidate(method, seed, int(labels.max()) + 1, *losses, numbered(labels[self.merged.labels]))

    @lazy
    def by_values(self) -> Metric:
        """``max_a |Q*(s,a) - Q*(t,a)|``."""
        return Metric.of_features(self.ground.action_values)

    @lazy
    def by_action(self) -> Metric:
        """The same, with states that have different best actions farther apart than any that share it."""
        q = self.ground.action_values
        far = 2 * float(np.ptp(q)) or 1.0
        return Metric.of_features(np.hstack([q, far * np.eye(q.shape[1])[best_actions(q)]]))

    @lazy
    def bisimulation(self) -> Metric:
        """Ferns' metric for the features, with a tolerance that suffices for clustering."""
        ψ, mdp = self.features, self.merged.mdp
        cost = np.stack([np.abs(ψ[:, None, a] - ψ[None, :, a]).sum(axis=-1) for a in range(mdp.n_actions)])
        left = METRIC * max(self.deadline - time.monotonic(), 0.0)
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
    elif rewards is not None:
        raise InvalidArgument("rewards is only for Transitions; an MDP has its own, MDP(..., rewards=r)")
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
    mdp: MDP, labels: Any, discount: float, features: Floats, n_states: int | None, method: str
) -> AbstractionResult:
    """Return the abstraction of a given partition."""
    given = np.asarray(labels)
    if given.shape != (mdp.n_states,):
        raise InvalidArgument(f"labels has shape {given.shape}; pass one label for each of the {mdp.n_states} states")
    if method != "best":
        raise InvalidArgument(f"labels and method={method!r} are both given; leave one of them out")
    classes = numbered(given)
    count = int(classes.max()) + 1
    if n_states is not None and count > _positive(n_states, "n_states"):
        raise InvalidArgument(f"labels has {count} classes, more than n_states = {n_states}; leave n_states out")
    losses = Ground.of(mdp, discount).losses(classes)
    tried = (Candidate("labels", -1, count, *losses, classes),)
    return AbstractionResult(mdp, class_mdp(mdp, classes), classes, discount, "labels", tried, features)


def _positive(value: Any, name: str) -> int:
    if value is None or check_count(value, name) == 0:
        raise InvalidArgument(f"{name} is {value!r}; it must be an integer of at least 1")
    return int(value)


def _seconds(time_limit: float | None) -> float:
    if time_limit is None:
        return float("inf")
    if not as_number(time_limit) >= 0:
        raise InvalidArgument(f"time_limit is {time_limit!r}; pass seconds, or None for no limit")
    return float(time_limit)
