"""``abstract(mdp, n_states=k)``: few states to plan with, and exactly what that loses.

A partition of the states into k classes and means over the classes make a small MDP; its optimal policy is lifted to
the states. Which partition is best cannot be read off a metric: the a-priori bounds are vacuous where k is below the
number of exact classes, and of twenty partitions that a metric suggests the best loses far less than the median. But
what a given partition loses is cheap to know exactly: one policy iteration on k states, one linear system on n. So:

    1. merge the states that are exactly equivalent (lumping.py); with at most k classes that is the answer, loss 0
    2. candidates: k-medians from many seeds, for Ferns' metric U, for |Q* - Q*|, for their sum, and for |Q* - Q*| among
       states with the same best action; Ferns' balls and greedy pairs
    3. each is scored by exact evaluation; the least loss wins

For one known reward that is what counts. What the metric adds is a bound that holds for a family of rewards at once
(``result.bound``, ``result.family_bound``; model.py) and a look at where states are alike.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diffbisim.abstract.model import Ground, best_actions
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

#: Cells of all transports (pairs of transitions of an action) up to which "best" affords Ferns' metric.
AFFORDABLE = 5e7

#: Share of a time limit for Ferns' metric.
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
    """An MDP of few states to plan with, how its states stand for the others, and exactly what that loses.

    Parameters
    ----------
    mdp : an MDP with rewards, or observed ``Transitions`` with actions (then everything is about the empirical MDP)
    n_states : at most so many abstract states
    discount : weight γ of the next step, strictly between 0 and 1
    method : "best" (all of the following and more), "bisimulation" (k-medians in Ferns' metric), "q" (k-medians by
        optimal action values), "balls" (Ferns' ε-balls), "greedy" (closest pairs)
    labels : (n,) a partition of your own instead, one label per state
    features : (n, d) or (n, n_actions, d): bounds are then for every reward w₀ r + <w, features>, |w_i| ≤ 1, and the
        metric tells states apart by the features too
    restarts : seeds for each kind of candidate
    score : what the best candidate is best at: "loss", "start_loss", "lookahead_loss" or "lookahead_start_loss"
    rewards, unseen : for ``Transitions``: rewards of states (and actions), where the data have none; and what to do
        with actions that were never seen in a state, as for :meth:`MDP.from_transitions`
    rng : seed; the same seed gives the same answer, unless time was over
    time_limit : seconds after which no candidate is begun
    progress : True for a bar, or a callable ``(done, total)``

    Returns
    -------
    AbstractionResult : ``mdp``, ``labels``, ``encoder``, ``lift(policy)``, ``loss``, ``lookahead_loss``, ``bound``,
        ``candidates``

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
        raise InvalidArgument(f"score is {score!r}; choose one of {', '.join(map(repr, SCORES))}")
    if labels is not None:
        return _partitioned(given, labels, γ, ψ, n_states, method)
    if method not in METHODS:
        raise InvalidArgument(f"method is {method!r}; choose one of {', '.join(map(repr, METHODS))}")
    k = _positive(n_states, "n_states")
    deadline = time.monotonic() + _seconds(time_limit)
    search = Search(given, γ, ψ, k, method, _positive(restarts, "restarts"), deadline)
    tried, complete = search.run(as_generator(rng), progress)
    best = min(tried, key=lambda row: getattr(row, score))
    return AbstractionResult.of(given, best.labels, γ, best.method, tuple(tried), ψ, complete)


class Search:
    """The candidates of one call, on the quotient by exact equivalence."""

    def __init__(
        self, mdp: MDP, discount: float, features: Floats, k: int, method: str, restarts: int, deadline: float
    ) -> None:
        looks = np.ascontiguousarray(features.reshape(mdp.n_states, -1)) + 0.0
        self.merged = lump(mdp) if features.shape[2] == 1 else lump(mdp, key=[row.tobytes() for row in looks])
        first = np.unique(self.merged.labels, return_index=True)[1]
        weight = np.bincount(self.merged.labels).astype(np.float64)
        self.ground = Ground.of(self.merged.mdp, discount, weight)
        self.features, self.k, self.method, self.restarts, self.deadline = (
            features[first],
            k,
            method,
            restarts,
            deadline,
        )

    def run(self, rng: np.random.Generator, progress: Progress) -> tuple[list[Candidate], bool]:
        """All that there is time for, at least one; and whether that is all."""
        if self.merged.n_states <= self.k:
            return [self._candidate("lump", -1, np.arange(self.merged.n_states))], True
        tried: list[Candidate] = []
        kinds = self._kinds()
        with tracking(progress, len(kinds) * self.restarts, "candidates") as advance:
            for seed, (method, make, child) in enumerate(self._all(kinds, rng)):
                if tried and time.monotonic() > self.deadline:
                    return tried, False
                tried.append(self._candidate(method, seed // len(kinds), make(child)))
                advance(1)
        return tried, True

    def _kinds(self) -> dict[str, Callable[[np.random.Generator], Integers]]:
        """The makers of candidates that the method asks for, by name; cheap ones first."""
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
        if self.method != "best":
            return {self.method: makers[self.method]}
        cells = sum(_transitions(P) ** 2 for P in self.merged.mdp.transition)
        return makers if cells <= AFFORDABLE else {name: makers[name] for name in ("q", "action")}

    def _all(
        self, kinds: dict[str, Callable[[np.random.Generator], Integers]], rng: np.random.Generator
    ) -> Iterator[tuple[str, Callable[[np.random.Generator], Integers], np.random.Generator]]:
        """Every kind with every seed, in turn, so that a run that is cut short has tried some of each."""
        for children in [rng.spawn(len(kinds)) for _ in range(self.restarts)]:
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
        """The same, with all states that have another best action farther away than any that has the same."""
        q = self.ground.action_values
        far = 2 * float(np.ptp(q)) or 1.0
        return Metric.of_features(np.hstack([q, far * np.eye(q.shape[1])[best_actions(q)]]))

    @lazy
    def bisimulation(self) -> Metric:
        """Ferns' metric for the features, precise enough to tell near from far."""
        ψ, mdp = self.features, self.merged.mdp
        cost = np.stack([np.abs(ψ[:, None, a] - ψ[None, :, a]).sum(axis=-1) for a in range(mdp.n_actions)])
        left = METRIC * max(self.deadline - time.monotonic(), 0.0)
        solver = Exact(tol=1e-4, time_limit=None if left == np.inf else left)
        with quietly():
            return Metric.of_table(np.array(distance(mdp, mdp, cost, self.ground.discount, solver).values))


def _transitions(P: Matrix) -> float:
    return float(np.count_nonzero(P) if isinstance(P, np.ndarray) else P.nnz)


def _process(mdp: Any, rewards: Any, unseen: str) -> MDP:
    """The MDP that is meant, with rewards."""
    mdp = as_process(mdp)
    if isinstance(mdp, Transitions):
        mdp = MDP.from_transitions(mdp, rewards=rewards, unseen=unseen)
    elif rewards is not None:
        raise InvalidArgument("rewards is for Transitions; an MDP has its own: MDP(..., rewards=r)")
    if not isinstance(mdp, MDP):
        raise InvalidArgument(
            f"mdp is a {type(mdp).__name__}; give an MDP or diffbisim.Transitions with actions (for a chain: compress)"
        )
    action_rewards(mdp)  # refuses an MDP without rewards
    return mdp


def _features(mdp: MDP, features: Any) -> Floats:
    """ψ, (n, n_actions, d): the reward, and what else is given."""
    n, a = mdp.n_states, mdp.n_actions
    reward = action_rewards(mdp)[:, :, None]
    if features is None:
        return reward
    given = np.asarray(features)
    shape = (n, a, given.shape[-1]) if given.ndim == 3 else (n, given.shape[-1] if given.ndim == 2 else 1)
    table = finite_numbers(given, shape, name="features", per="state (and action) and feature")
    more = table if table.ndim == 3 else np.repeat(table[:, None], a, axis=1)
    return np.concatenate([reward, more], axis=2)


def _partitioned(
    mdp: MDP, labels: Any, discount: float, features: Floats, n_states: int | None, method: str
) -> AbstractionResult:
    """The abstraction by a given partition."""
    given = np.asarray(labels)
    if given.shape != (mdp.n_states,):
        raise InvalidArgument(f"labels has shape {given.shape}; give one label for each of the {mdp.n_states} states")
    if method != "best":
        raise InvalidArgument(f"labels and method={method!r} are both given: a partition needs no method")
    classes = numbered(given)
    count = int(classes.max()) + 1
    if n_states is not None and count > _positive(n_states, "n_states"):
        raise InvalidArgument(f"labels has {count} classes, more than n_states = {n_states}; leave n_states out")
    losses = Ground.of(mdp, discount).losses(classes)
    tried = (Candidate("labels", -1, count, *losses, classes),)
    return AbstractionResult.of(mdp, classes, discount, "labels", tried, features)


def _positive(value: Any, name: str) -> int:
    if value is None or check_count(value, name) == 0:
        raise InvalidArgument(f"{name} is {value!r}; it must be an integer of at least 1")
    return int(value)


def _seconds(time_limit: float | None) -> float:
    if time_limit is None:
        return float("inf")
    if not as_number(time_limit) >= 0:
        raise InvalidArgument(f"time_limit is {time_limit!r}; give seconds, or None for no limit")
    return float(time_limit)
