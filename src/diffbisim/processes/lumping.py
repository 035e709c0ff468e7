"""Exact lumping: the coarsest bisimulation of a chain or an MDP, and the quotient.

States s and t are *bisimilar* if some partition of the states puts them in the same class and within each class

    key(s) = key(t)   and   P(s, C) = P(t, C)  for every class C,      P(s, C) = Σ_{s' in C} P(s, s').

The coarsest such partition exists; two states are in the same class if and only if their bisimulation distance is zero
(with cost 0 for equal keys and positive otherwise). Merging each class gives the *quotient*, a chain whose distance to
the original is zero. It is the baseline for learned compressions: a lumpable chain needs no learning.

States of an *MDP* are bisimilar if this holds for every action: r(s, a) = r(t, a) and P_a(s, C) = P_a(t, C) for all a
and C (Givan, Dean & Greig 2003); then their distance in Ferns' metric is zero. A policy of the quotient has the same
values as its lift, and an optimal policy lifts to an optimal one.

The key is what an observer sees of a state, by default the reward. Without rewards and without a key all states look
the same, and the result is a single class. Names of states are not observed, and never used.

*Tolerance.* Probabilities are floats, so P(s, C) = P(t, C) means "up to tol", which is not transitive. The result is a
fixed point of the following rule: if the members of a class are sorted by P(·, C), neighbors differ by at most ``tol``,
for every class C (and action). Two consequences:

1. *Equal states are not separated.* Let Q be any partition such that within its classes keys are equal and the rows
   s → (P(s, C))_{C in Q} differ by at most tol in total variation. Then every class of Q lies within one class of the
   result: by induction each splitter is a union of classes of Q, so the weights into it differ by at most tol.
   Bisimilar states stay together as long as rounding (1e-16 per summand) is below tol.
2. *Merged states are nearly equal.* In a class of b members that reaches k classes, weights differ by at most
   (b - 1) tol, so a member's row and the class row differ by at most k (b - 1) tol / 2 in total variation.
   ``residual`` is the actual difference.

With ``tol=0`` sums are compared exactly, and rounding may separate bisimilar states.

Cost: O(m log n) for m transitions and n states (Valmari & Franceschinis, TACAS 2010); compiled in engine/refine.cpp.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.checks import as_number
from diffbisim.common.errors import InvalidArgument, warn_of_input
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.convert import as_process
from diffbisim.processes.mdp import MDP

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A partition of the states, and how exact it is.

    Attributes
    ----------
    assignment : array of ints, shape (n,)
        Class of each state; classes are numbered by first appearance.
    residual : float
        Largest total variation between a member's row, summed over classes, and its class's row.
    reward_residual : float or None
        Largest difference between a member's reward and its class's; None without rewards.
    edges_scanned : int
        Number of transitions visited during refinement.
    """

    assignment: Integers
    residual: float
    reward_residual: float | None
    edges_scanned: int

    @cached_property
    def n_states(self) -> int:
        """Number of classes."""
        return int(self.assignment.max()) + 1

    def members(self, k: int) -> Integers:
        """Return the states of class ``k``, ascending."""
        if not 0 <= k < self.n_states:
            raise InvalidArgument(f"k = {k} is not a class: give an index from 0 to {self.n_states - 1}")
        return self._order[self._bounds[k] : self._bounds[k + 1]]

    def lift(self, values: Any, axis: int = 0) -> NDArray[Any]:
        """Expand a table over classes to a table over states: entry s is the entry of the class of s."""
        table = np.asarray(values)
        if table.ndim <= axis or table.shape[axis] != self.n_states:
            raise InvalidArgument(
                f"values has shape {table.shape}; axis {axis} must have one entry for each of the "
                f"{self.n_states} classes"
            )
        return np.take(table, self.assignment, axis=axis)

    @cached_property
    def _order(self) -> Integers:
        return np.argsort(self.assignment, kind="stable")

    @cached_property
    def _bounds(self) -> Integers:
        return np.searchsorted(self.assignment[self._order], np.arange(self.n_states + 1))

    def __repr__(self) -> str:
        classes = f"{self.n_states} class{'es' * (self.n_states != 1)}"
        return f"{type(self).__name__}({self.assignment.size} states in {classes}, residual {self.residual:.1e})"


@dataclass(frozen=True, eq=False, repr=False)
class Lumping(Partition):
    """The bisimulation classes of a chain.

    Attributes
    ----------
    chain : MarkovChain
        The quotient: rows and rewards are averaged over the members of a class and initial probabilities summed. Each
        class has the name of its first member, and the kernel is sparse if and only if the original is.
    """

    chain: MarkovChain


@dataclass(frozen=True, eq=False, repr=False)
class MDPLumping(Partition):
    """The bisimulation classes of an MDP; ``lift(policy)`` expands a policy of the quotient to the states.

    Attributes
    ----------
    mdp : MDP
        The quotient, computed like that of a chain; its rewards have the shape of the MDP's.
    """

    mdp: MDP


@overload
def lump(chain: MarkovChain, *, tol: float = ..., key: Iterable[Hashable] | None = ...) -> Lumping: ...
@overload
def lump(chain: MDP, *, tol: float = ..., key: Iterable[Hashable] | None = ...) -> MDPLumping: ...
def lump(chain: MarkovChain | MDP, *, tol: float = 1e-12, key: Iterable[Hashable] | None = None) -> Any:
    """Compute the coarsest exact lumping of a chain or an MDP, by partition refinement.

    Parameters
    ----------
    chain : MarkovChain or MDP
    tol : float, default=1e-12
        Probabilities of moving into a class that differ by at most ``tol`` count as equal (see the module docstring),
        and so do rewards, relative to the largest.
    key : array of shape (n,) or (n, k), or sequence of n hashables, default=None
        What an observer sees of each state, compared exactly; by default the rewards. With a key, rewards do not
        separate states, but are averaged over each class.

    Returns
    -------
    lumping : Lumping or MDPLumping
        With the quotient as ``chain`` or ``mdp``.

    Warns
    -----
    InputWarning
        If there are neither rewards nor a key, so that all states look the same and form a single class.
    """
    chain = as_process(chain)
    if not isinstance(chain, (MarkovChain, MDP)):
        raise InvalidArgument(
            f"chain is a {type(chain).__name__}; give a MarkovChain or an MDP, such as diffbisim.MarkovChain(P)"
        )
    if not 0 <= as_number(tol) < 1:
        raise InvalidArgument(f"tol is {tol!r}; it must lie in [0, 1), e.g. tol=1e-12")
    if key is None and chain.rewards is None and chain.n_states > 1:
        warn_of_input(
            "chain has no rewards and there is no key, so all states look the same and form one class; give rewards, "
            "or key= what an observer sees of each state, such as key=chain.names"
        )
    start = _observed(chain.rewards, chain.n_states, tol) if key is None else _keyed(key, chain.n_states)
    kernels = _kernels(chain)
    assignment, scanned = _refined(kernels, start, float(tol))
    quotients, residual = _quotients(kernels, assignment)
    rewards, off = _class_rewards(chain.rewards, assignment)
    first = np.unique(assignment, return_index=True)[1]
    others: dict[str, Any] = {
        "initial": np.bincount(assignment, weights=chain.initial),
        "rewards": rewards,
        "names": None if chain.names is None else [chain.names[s] for s in first],
    }
    parts = [quotient if chain.is_sparse else quotient.toarray() for quotient in quotients]
    if isinstance(chain, MDP):
        return MDPLumping(assignment, residual, off, scanned, MDP(parts, actions=chain.actions, **others))
    quotient = MarkovChain(parts[0], lag=chain.lag, hidden=chain.hidden, **others)
    return Lumping(assignment, residual, off, scanned, quotient)


def _kernels(process: MarkovChain | MDP) -> list[sparse.csr_array]:
    """Return one sparse kernel per action; a chain has one."""
    if isinstance(process, MDP):
        return [sparse.csr_array(P) for P in process.transition]
    return [process.successors.matrix]


def _refined(kernels: list[sparse.csr_array], start: Integers, tol: float) -> tuple[Integers, int]:
    """Refine a partition to a fixed point; also return the number of transitions visited."""
    from diffbisim import _engine
    from diffbisim.common.stopping import engine_run

    incoming = (kernels[0] if len(kernels) == 1 else sparse.hstack(kernels, format="csr")).tocsc()
    first, sources = (part.astype(np.int64) for part in (incoming.indptr, incoming.indices))
    blocks, scanned = _engine.refine(first, sources, np.ascontiguousarray(incoming.data), start, tol, engine_run())
    return by_first_appearance(blocks), scanned


def _observed(rewards: Array | None, n: int, tol: float) -> Integers:
    """Return classes of (nearly) equal rewards: sorted rewards are cut at gaps above tol times the largest reward.

    With several actions, a cut for one may create a gap for another, so this repeats until nothing is cut.
    """
    classes = np.zeros(n, dtype=np.int64)
    if rewards is None:
        return classes
    gap, count = tol * np.abs(rewards).max(), 0
    while int(classes.max()) + 1 > count:
        count = int(classes.max()) + 1
        for r in rewards.reshape(n, -1).T:
            order = np.lexsort((r, classes))
            cuts = (np.diff(classes[order]) > 0) | (np.diff(r[order]) > gap)
            classes[order[1:]] = np.cumsum(cuts)
            classes[order[:1]] = 0
    return classes


def _keyed(key: Iterable[Any], n: int) -> Integers:
    """Return classes of equal keys."""
    if isinstance(key, np.ndarray) and key.dtype != object:
        classes = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1) if key.ndim else key
    else:
        number: dict[Hashable, int] = {}
        try:
            names = [tuple(name) if isinstance(name, (list, np.ndarray)) else name for name in key]
            classes = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
        except TypeError as fault:
            raise InvalidArgument(f"key is {key!r} ({fault}); give {n} hashables, one per state") from None
    if classes.shape != (n,):
        raise InvalidArgument(f"key has {classes.size} entries for {n} states; give one per state")
    return classes.astype(np.int64)


def by_first_appearance(classes: Any) -> Integers:
    """Renumber the classes by first appearance."""
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int64)


def _quotients(kernels: list[sparse.csr_array], assignment: Integers) -> tuple[list[sparse.csr_array], float]:
    """Return the kernels of the quotient, with rows averaged over members, and the residual."""
    n, count = assignment.size, np.bincount(assignment)
    into = sparse.csr_array((np.ones(n), assignment, np.arange(n + 1)), shape=(n, count.size))
    quotients, residual = [], 0.0
    for kernel in kernels:
        rows = sparse.csr_array(kernel @ into)  # (n, classes)
        quotients.append(sparse.csr_array(sparse.diags_array(1 / count) @ (into.T @ rows)))
        residual = max(residual, float(np.max(abs(rows - quotients[-1][assignment]).sum(axis=1))) / 2)
    return quotients, residual


def _class_rewards(rewards: Array | None, assignment: Integers) -> tuple[Array | None, float | None]:
    """Return the mean rewards of the classes and the largest deviation of a member from them."""
    if rewards is None:
        return None, None
    _, first, count = np.unique(assignment, return_index=True, return_counts=True)
    start = rewards[first]  # averaging differences from the first member is exact where all are equal
    off = (rewards - start[assignment]).reshape(assignment.size, -1)
    sums = np.stack([np.bincount(assignment, weights=column) for column in off.T], axis=1)
    means = start + (sums / count[:, None]).reshape(start.shape)
    return means, float(np.abs(rewards - means[assignment]).max())
