"""Search among partitions by their exact scores: all of them if they are few, else by moves and swaps of single states.

A partition of n states into at most k classes is an array φ (n,) of classes, numbered by first appearance. There are

    S(n,1) + … + S(n,k),        S(n,j) = j S(n-1,j) + S(n-1,j-1),

of them (Stirling numbers of the second kind). Up to `MOST_PARTITIONS` all are scored, and the best is a global minimum.
Beyond that the best candidates are improved: a *move* takes one state to another class, which may be new, and a *swap*
exchanges two states of different classes. The neighbors of a partition are scored in blocks, the best of the first
block that improves is taken, and the search ends after a whole cycle of neighbors without improvement. The partition is
then a local minimum: no move and no swap has a smaller score. A limit on the work, counted in operations so that the
answer does not depend on the machine, ends the search earlier on large MDPs.

A partition without loss is a global minimum, and ends the search at once.

*Scores.* Many partitions are scored at once, with the formulas of model.py: one bincount for the class means, policy
iteration on all small MDPs together, and one linear system for every lifted policy that has not occurred before
(neighbors often have the same). The score is the requested loss, and among equal ones the mean loss over the states:
the loss in the worst state alone has large plateaus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from diffbisim.common.checks import Floats, Integers, dense
from diffbisim.processes.lumping import by_first_appearance
from diffbisim.reduction.abstraction.model import TIE, Ground

#: Number of partitions up to which all of them are scored.
MOST_PARTITIONS = 200_000

#: Limit on the operations of all moves and swaps: a few seconds.
MOST_WORK = 1e10

#: Operations that every partition and every policy costs in addition, whatever its size.
OVERHEAD = 2e4

#: Number of candidates that moves and swaps start from, if the work allows.
STARTS = 20

#: Number of entries of the largest temporary array of a block.
MAX_ENTRIES_OF_BLOCK = 400_000

#: A score has to be smaller than another by this fraction of the largest value in order to count as smaller.
LEAST_GAIN = 1e-11

#: Up to this number of entries, kernels are stored as dense arrays.
MAX_DENSE_ENTRIES = 2_000_000


def count_partitions(n: int, k: int, limit: int) -> int:
    """Return the number of partitions of n states into at most k classes, or limit + 1 if there are more."""
    row = [1]  # S(0, 0)
    for _ in range(n):
        row = [0, *(j * s + before for j, (s, before) in enumerate(zip([*row[1:], 0], row, strict=True), 1))][: k + 1]
        if sum(row) > limit:
            return limit + 1
    return sum(row)


def all_partitions(n: int, k: int) -> Integers:
    """Return all partitions of n states into at most k classes, one per row, numbered by first appearance."""
    rows, largest = np.zeros((1, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    for _ in range(n - 1):
        choices = np.minimum(largest + 2, k)
        parent = np.repeat(np.arange(len(rows)), choices)
        last = np.arange(parent.size) - np.repeat(np.cumsum(choices) - choices, choices)
        rows, largest = np.column_stack([rows[parent], last]), np.maximum(largest[parent], last)
    return rows


def neighbors(assignment: Integers, k: int, first: int, count: int) -> Integers:
    """Return `count` neighbors of a partition from number `first` on: moves by state and class, then swaps."""
    n, used = assignment.size, int(assignment.max()) + 1
    number = np.arange(first, first + count)
    rows = np.repeat(assignment[None], count, axis=0)
    classes = min(used + 1, k)
    moves = number < n * classes
    state, to = np.divmod(number[moves], classes)
    rows[np.flatnonzero(moves), state] = to
    one, other = _pair(number[~moves] - n * classes, n)
    swaps = np.flatnonzero(~moves)
    rows[swaps, one], rows[swaps, other] = assignment[other], assignment[one]
    return np.asarray(rows[(rows != assignment).any(axis=1)])


def count_neighbors(assignment: Integers, k: int) -> int:
    """Return the number of moves and swaps of a partition, including those that change nothing."""
    n, used = assignment.size, int(assignment.max()) + 1
    return n * min(used + 1, k) + n * (n - 1) // 2


def _pair(number: Integers, n: int) -> tuple[Integers, Integers]:
    """Return the pairs of n states with these numbers: (1,0), (2,0), (2,1), (3,0), …."""
    other = np.floor((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    other -= other * (other - 1) // 2 > number
    other += other * (other + 1) // 2 <= number
    return number - other * (other - 1) // 2, other


class PartitionScore(NamedTuple):
    """What is minimized: a loss, and among equal ones the mean loss over the states."""

    loss: float
    mean_loss: float

    def beats(self, other: PartitionScore, tolerance: float) -> bool:
        """Return whether this score is smaller by more than rounding."""
        if abs(self.loss - other.loss) > tolerance:
            return self.loss < other.loss
        return self.mean_loss < other.mean_loss - tolerance


@dataclass(eq=False)
class Scoring:
    """Scores of partitions into at most k classes, for one of the losses of an MDP."""

    ground: Ground
    k: int
    loss: str  # a field of `Losses`
    work: float = 0.0  # operations so far
    known: dict[bytes, PartitionScore] = field(default_factory=dict)  # by policy

    def __post_init__(self) -> None:
        mdp = self.ground.mdp
        s, n = mdp._stacked, mdp.n_states
        self.n, self.n_actions = n, mdp.n_actions
        self.action, self.source, self.target = s.sources // n, s.sources % n, s.indices
        self.mass = s.probabilities * self.ground.weight[self.source]
        self.tolerance = LEAST_GAIN * float(np.abs(self.ground.optimal).max())
        small = mdp.n_actions * n * n <= MAX_DENSE_ENTRIES
        self.kernels = np.stack(list(map(dense, mdp.transition))) if small else None

    @property
    def block(self) -> int:
        """Number of partitions that are scored at once."""
        each = max(self.mass.size, self.n_actions * self.k**2, self.n * self.n_actions)
        return max(1, MAX_ENTRIES_OF_BLOCK // each)

    def best_of(self, assignments: Integers) -> tuple[Integers, PartitionScore]:
        """Return the best of partitions (m, n) and its score; the first of those that are equal."""
        scores = np.array(self.of(assignments))
        near = np.flatnonzero(scores[:, 0] <= scores[:, 0].min() + self.tolerance)
        best = int(near[(scores[near, 1] <= scores[near, 1].min() + self.tolerance).argmax()])
        return assignments[best], PartitionScore(*scores[best].tolist())

    def of(self, assignments: Integers) -> list[PartitionScore]:
        """Return the scores of partitions (m, n)."""
        self.work += len(assignments) * (OVERHEAD + 10 * self.mass.size + 3 * self.k**3)
        v, q = self._planned(*self._models(assignments))
        every = np.arange(len(assignments))[:, None]
        actions = _best(q)[every, assignments]
        if self.loss.startswith("lookahead"):
            actions = self._ahead(v[every, assignments], actions)
        keys = [row.tobytes() for row in actions.astype(np.int32)]
        fresh = {key: i for i, key in enumerate(keys) if key not in self.known}
        if fresh:
            self.known |= dict(zip(fresh, self._evaluated(actions[list(fresh.values())]), strict=True))
        return [self.known[key] for key in keys]

    def _models(self, assignments: Integers) -> tuple[Floats, Floats]:
        """Return the kernels (m, n_actions, k, k) and rewards (m, k, n_actions) of the classes; empty classes stay."""
        m, k, A = len(assignments), self.k, self.n_actions
        member = (assignments[:, None] == np.arange(k)[:, None]) * self.ground.weight  # (m, k, n)
        weight = member.sum(axis=2, keepdims=True)
        cell = (self.action * k + assignments[:, self.source]) * k + assignments[:, self.target]
        cell += (np.arange(m) * (A * k * k))[:, None]
        mass = np.broadcast_to(self.mass, cell.shape)
        P = np.bincount(cell.ravel(), mass.ravel(), m * A * k * k).reshape(m, A, k, k)
        P += (weight == 0)[:, None] * np.eye(k)
        return P / P.sum(axis=3, keepdims=True), member @ self.ground.rewards / np.where(weight > 0, weight, 1.0)

    def _planned(self, P: Floats, r: Floats) -> tuple[Floats, Floats]:
        """Return the optimal values (m, k) and action values (m, k, n_actions) of small MDPs, by policy iteration."""
        m, k = r.shape[:2]
        γ, actions, at = self.ground.discount, r.argmax(axis=2), np.arange(k)
        v, q, left = np.zeros((m, k)), np.zeros_like(r), np.arange(m)
        while left.size:
            row, chosen = left[:, None], actions[left]
            A = np.eye(k) - γ * P[row, chosen, at]
            v[left] = np.linalg.solve(A, r[row, at, chosen][:, :, None])[:, :, 0]
            q[left] = r[left] + γ * np.einsum("maij,mj->mia", P[left], v[left])
            here = q[left]
            limit = 1e-12 * np.abs(r[left]).max(axis=(1, 2)) / (1.0 - γ)
            better = here.max(axis=2) > here[np.arange(left.size)[:, None], at, chosen] + limit[:, None]
            actions[left] = np.where(better, here.argmax(axis=2), chosen)
            left = left[better.any(axis=1)]
        return v, q

    def _ahead(self, v: Floats, lifted: Integers) -> Integers:
        """Return the actions (m, n) with one step of lookahead, for values (m, n) and lifted actions (m, n)."""
        ahead = np.stack([np.asarray(P @ v.T).T for P in self.ground.mdp.transition], axis=2)
        return _best(self.ground.rewards + self.ground.discount * ahead, lifted)

    def _evaluated(self, actions: Integers) -> Iterator[PartitionScore]:
        """Yield the scores of policies (m, n)."""
        at, start = np.arange(self.n), self.ground.mdp.initial
        self.work += len(actions) * (OVERHEAD + self.n**3)
        size = max(1, MAX_ENTRIES_OF_BLOCK // self.n**2)
        for some in np.split(actions, range(size, len(actions), size)):
            if self.kernels is None:
                lost = self.ground.optimal - np.stack([self.ground.evaluated(row) for row in some])
            else:
                system = np.eye(self.n) - self.ground.discount * self.kernels[some, at]
                v = np.linalg.solve(system, self.ground.rewards[at, some][:, :, None])[:, :, 0]
                lost = self.ground.optimal - v
            wanted = lost @ start if "start" in self.loss else lost.max(axis=1)
            yield from map(
                PartitionScore, wanted.tolist(), (lost @ self.ground.weight / self.ground.weight.sum()).tolist()
            )


def _best(q: Floats, otherwise: Integers | None = None) -> Integers:
    """Return the best actions of tables (m, n, n_actions), each as `best_actions` chooses them."""
    near = q >= q.max(axis=2, keepdims=True) - TIE * np.abs(q).max(axis=(1, 2), keepdims=True)
    first = near.argmax(axis=2)
    if otherwise is not None:
        first = np.where(np.take_along_axis(near, otherwise[:, :, None], axis=2)[:, :, 0], otherwise, first)
    return np.asarray(first, dtype=np.int64)


# --- searches -----------------------------------------------------------------------------------------------------


#: What is known of a partition: no other has a smaller score; no move or swap has; it is the best that was tried; it
#: was given by the caller. States that are exactly equivalent count as one state if they were merged before the search.
GLOBAL, LOCAL, TRIED, GIVEN = "global", "local", "tried", "given"


def best_of_all(scoring: Scoring, in_time: Callable[[], bool]) -> tuple[Integers, str]:
    """Return the best of all partitions, and what is known of it; at least one block is scored."""
    rows = all_partitions(scoring.n, scoring.k)
    best, score = scoring.best_of(rows[:1])
    left = len(rows)
    for block in np.split(rows, range(scoring.block, len(rows), scoring.block)):
        if score.loss <= scoring.tolerance:
            break
        best, score = scoring.best_of(np.vstack([best, block]))
        left -= len(block)
        if left and not in_time():
            return best, TRIED
    return best, GLOBAL


def improved(
    scoring: Scoring, assignment: Integers, in_time: Callable[[], bool], most_work: float = MOST_WORK
) -> tuple[Integers, str]:
    """Improve a partition by moves and swaps until none helps; return it, and what is known of it.

    The search ends early if the work of all searches exceeds `most_work`, or when time is up.
    """
    assignment, best = scoring.best_of(assignment[None])
    at = quiet = 0  # the number of the next neighbor, and how many were scored since the last improvement
    while quiet < (total := count_neighbors(assignment, scoring.k)):
        if best.loss <= scoring.tolerance:
            return assignment, GLOBAL
        if scoring.work > most_work or not in_time():
            return assignment, TRIED
        size = min(scoring.block, total - at, total - quiet)
        tried, score = scoring.best_of(np.vstack([assignment, neighbors(assignment, scoring.k, at, size)]))
        quiet, at = quiet + size, (at + size) % total
        if score.beats(best, scoring.tolerance):
            assignment, best, quiet = by_first_appearance(tried), score, 0
            at %= count_neighbors(assignment, scoring.k)
    return assignment, LOCAL
