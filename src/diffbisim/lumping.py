"""Exact lumping: the coarsest bisimulation of a chain, and the smaller chain that behaves the same.

States s and t are *bisimilar* if they look alike and move alike: there is a partition of the states in which

    key(s) = key(t)   and   P(s, C) = P(t, C)  for every class C,      P(s, C) = Σ_{s' in C} P(s, s').

The coarsest such partition exists, and its classes are the pairs at distance zero of the bisimulation metric
(cost: 0 for equal keys, positive otherwise). Merging each class gives the *quotient*, a chain whose paths
have the law of the original's, seen through the labels; its distance to the original is zero. This is the
baseline that every learned compression has to beat: if the chain is lumpable, no learning is needed.

The key is what an observer sees. By default that is the reward. Without rewards and without a key all
states look alike, every chain is then bisimilar to a single state, and the answer is one class. State labels
are names, not observations, and are never used.

*What the tolerance promises.* Probabilities are floats, so P(s, C) = P(t, C) has to mean "up to tol", which
is not transitive. The classes returned are a true fixed point of one rule: sort the members of a class by
P(·, C); no two neighbors are more than ``tol`` apart, for any class C. Two consequences:

1. *Nothing equal is separated.* Let Q be any partition within whose classes keys are equal and the rows
   s → (P(s, C))_{C in Q} differ by at most tol in total variation. Then every class of Q lies within one
   class of the result: by induction each splitter is a union of classes of Q, so the weights into it differ
   by at most tol. Bisimilar states stay together as long as rounding (1e-16 per summand) is below tol.
2. *What is merged is nearly equal.* In a class of b members that reaches k classes, weights differ by at most
   (b - 1) tol, so a member's row and the class row differ by at most k (b - 1) tol / 2 in total variation.
   ``residual`` is what this difference really is; it says how exact the quotient is.

With ``tol=0`` sums are compared bit by bit, and rounding may separate bisimilar states.

Cost: O(m log n) for m transitions and n states (Valmari & Franceschinis, TACAS 2010); kernels in _refine.py.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.checks import as_number
from diffbisim.errors import InvalidArgument
from diffbisim.parallel import CHUNK, stop_flag, thread_map

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Lumping:
    """A partition of the states of a chain, and the chain of its classes.

    Attributes:
        labels: class of each state, shape ``(n,)``; classes are numbered by first appearance.
        chain: the quotient: rows averaged over the members of a class, start added up, rewards averaged,
            each class named after its first member (if the states have names), sparse iff the chain was.
        residual: largest total variation between a member's row, added up over classes, and its class row.
        reward_residual: largest difference between a member's reward and its class's; None without rewards.
        edges_scanned: transitions looked at, the work of the refinement.
    """

    labels: Labels
    chain: MarkovChain
    residual: float
    reward_residual: float | None
    edges_scanned: int

    @property
    def n_states(self) -> int:
        """Number of classes."""
        return self.chain.n_states

    def members(self, k: int) -> Labels:
        """The states of class ``k``, ascending."""
        if not 0 <= k < self.n_states:
            raise InvalidArgument(f"k = {k} is not a class: give an index from 0 to {self.n_states - 1}")
        return self._order[self._bounds[k] : self._bounds[k + 1]]

    def lift(self, values: Any, axis: int = 0) -> NDArray[Any]:
        """A table over classes as a table over states: entry s is the entry of the class of s."""
        table = np.asarray(values)
        if table.ndim <= axis or table.shape[axis] != self.n_states:
            raise InvalidArgument(
                f"values has shape {table.shape}; axis {axis} must have one entry for each of the "
                f"{self.n_states} classes"
            )
        return np.take(table, self.labels, axis=axis)

    @cached_property
    def _order(self) -> Labels:
        return np.argsort(self.labels, kind="stable")

    @cached_property
    def _bounds(self) -> Labels:
        return np.searchsorted(self.labels[self._order], np.arange(self.n_states + 1))

    def __repr__(self) -> str:
        classes = f"{self.n_states} class{'es' * (self.n_states != 1)}"
        return f"Lumping({self.labels.size} states in {classes}, residual {self.residual:.1e})"


def lump(chain: MarkovChain, *, tol: float = 1e-12, key: Iterable[Hashable] | None = None) -> Lumping:
    """The coarsest exact lumping of ``chain``, by partition refinement.

    Args:
        tol: probabilities into a class this close count as equal (see the module's head); rewards too,
            relative to the largest.
        key: what an observer sees of each state: an array ``(n,)`` or ``(n, k)``, or n hashables; compared
            exactly. Default: the rewards, and without rewards nothing (one class). With a key the rewards
            do not separate; they are averaged over each class.
    """
    from diffbisim._refine import Incoming, refine  # numba, loaded when needed

    if not isinstance(chain, MarkovChain):
        raise InvalidArgument(f"chain is a {type(chain).__name__}, not a MarkovChain: wrap the matrix first")
    if not 0 <= as_number(tol) < 1:
        raise InvalidArgument(f"tol is {tol!r}; it must lie in [0, 1), e.g. tol=1e-12")
    initial = _observed(chain, tol) if key is None else _keyed(key, chain.n_states)
    kernel = chain.successors.matrix
    incoming = kernel.tocsc()
    edges = Incoming(incoming.indptr.astype(np.int64), incoming.indices.astype(np.int64), incoming.data)
    stop = stop_flag()
    given = edges, initial, int(initial.max()) + 1, float(tol), stop
    ((blocks, _, scanned, _),) = thread_map(refine, [given], 1, stop, wait=kernel.nnz > CHUNK)
    return _lumping(chain, kernel, _first_appearance(blocks), int(scanned))


def _observed(chain: MarkovChain, tol: float) -> Labels:
    """Classes of (nearly) equal rewards: cut the sorted rewards at gaps above tol of the largest."""
    r = chain.rewards
    if r is None:
        return np.zeros(chain.n_states, dtype=np.int64)
    order = np.argsort(r, kind="stable")
    classes = np.zeros(r.size, dtype=np.int64)
    classes[order[1:]] = np.cumsum(np.diff(r[order]) > tol * np.abs(r).max())
    return classes


def _keyed(key: Iterable[Any], n: int) -> Labels:
    """Classes of equal keys."""
    if isinstance(key, np.ndarray) and key.dtype != object:
        classes = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1) if key.ndim else key
    else:
        number: dict[Hashable, int] = {}
        names = [tuple(name) if isinstance(name, (list, np.ndarray)) else name for name in key]
        classes = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
    if classes.shape != (n,):
        raise InvalidArgument(f"key has {classes.size} entries for {n} states: give one for each state")
    return classes.astype(np.int64)


def _first_appearance(classes: Labels) -> Labels:
    """The same partition, numbered in the order in which the classes appear."""
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse.reshape(-1)]


def _lumping(chain: MarkovChain, kernel: sparse.csr_array, labels: Labels, scanned: int) -> Lumping:
    """The quotient by a partition, and how far from exact it is."""
    n, (_, first, count) = labels.size, np.unique(labels, return_index=True, return_counts=True)
    into = sparse.csr_array((np.ones(n), labels, np.arange(n + 1)), shape=(n, count.size))
    rows = sparse.csr_array(kernel @ into)  # (n, classes)
    quotient = sparse.csr_array(sparse.diags_array(1 / count) @ (into.T @ rows))
    off = abs(rows - quotient[labels]).sum(axis=1)
    rewards = None
    if chain.rewards is not None:  # first member plus mean difference: exact where all are equal
        start = chain.rewards[first]
        rewards = start + np.bincount(labels, weights=chain.rewards - start[labels]) / count
    return Lumping(
        labels=labels,
        chain=MarkovChain(
            quotient if chain.is_sparse else quotient.toarray(),
            initial=np.bincount(labels, weights=chain.initial),
            rewards=rewards,
            labels=None if chain.labels is None else [chain.labels[s] for s in first],
        ),
        residual=float(np.max(off)) / 2,
        reward_residual=_reward_residual(chain.rewards, rewards, labels),
        edges_scanned=scanned,
    )


def _reward_residual(rewards: Array | None, of_classes: Array | None, labels: Labels) -> float | None:
    if rewards is None or of_classes is None:
        return None
    return float(np.abs(rewards - of_classes[labels]).max())
