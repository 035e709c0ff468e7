"""The inputs and results of the baselines.

Letters: ``n`` states, ``T[a, s, s']`` dynamics, ``π_I(a|s)`` behavior policy, ``p0`` initial distribution, γ discount.

    weights[a, s, s']  frequency of (s, a, s') among the offline transitions
    T(s'|s,a)          = weights(s,a,s') / Σ_s' weights(s,a,s')         uniform if (s, a) was never observed
    π_I(a|s)           = Σ_s' weights(s,a,s') / Σ_a,s' weights(s,a,s')  uniform if s was never left
    ρ_I(s,a)           = occupancy of π_I in the MDP (T, p0)
    ν_E(s,s')          transition occupancy of the expert, ρ_E(s) = Σ_s' ν_E(s,s')

Unless stated otherwise, the offline transitions are those of a uniformly random policy: drawn independently from its
discounted occupancy (`OfflineData.sample`), or infinitely many (`OfflineData.exact`, where T and π_I are the true
ones). Expert pairs count as draws from the expert's discounted occupancy. Episodes (``Transitions`` with starts) are
converted as in :func:`diffbisim.imitate`, to a chain in which states that were never left are absorbing, and ν_E is its
occupancy: an episode that ends in a terminal state stays there with the remaining weight γ^T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, Integers, check_count, check_discount, dense, distribution, freeze
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.learning.imitate.expert import observed_chain
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.mdp import MDP
from diffbisim.processes.stochastic import Successors, as_generator
from diffbisim.results.base import Status

UNVISITED = 1e-9  # states with less occupancy count as unvisited


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """The policy of a baseline.

    Attributes
    ----------
    policy : array of shape (n_states, n_actions)
        Rows sum to one; uniform in states that the method knows nothing about.
    objective : float
        Minimum of the method's objective (see the docstring of its module).
    status : Status
        Why the method ended, a sentence.
    occupancy : array of shape (n_states, n_actions) or None
        State-action occupancy of the solution, for methods that solve a program.
    tolerance : float
        By how much the conditions that define the solution may be violated (zero for a closed form). The method's
        module explains what this means for the policy; further digits depend on the machine.
    """

    policy: Floats
    objective: float
    status: Status
    occupancy: Floats | None = None
    tolerance: float = 0.0


@dataclass(frozen=True, eq=False)
class OfflineData:
    """Transitions with actions, and the estimated MDP; create it with ``from_transitions``, ``sample`` or ``exact``.

    Attributes
    ----------
    mdp : MDP
        The estimated MDP (T, p0).
    behavior : array of shape (n_states, n_actions)
        The behavior policy π_I.
    weights : array of shape (n_actions, n_states, n_states)
        Frequencies of the transitions; they sum to one.

    Examples
    --------
    >>> data = OfflineData.from_transitions([0, 0, 1], [0, 1, 0], [0, 1, 1], n_states=2, n_actions=2)
    >>> data.behavior
    array([[0.5, 0.5],
           [1. , 0. ]])
    """

    mdp: MDP  # (T, p0), estimated
    behavior: Floats  # (n, n_actions), π_I
    weights: Floats  # (n_actions, n, n), sums to one

    @classmethod
    def from_transitions(
        cls, s: Any, a: Any, s_next: Any, *, n_states: int, n_actions: int, initial: Any = 0
    ) -> OfflineData:
        """Count observed steps ``s[k], a[k] → s_next[k]``; `initial` is the known initial state or distribution."""
        n, m = check_count(n_states, "n_states"), check_count(n_actions, "n_actions")
        columns = [_numbers(s, n, "s"), _numbers(a, m, "a"), _numbers(s_next, n, "s_next")]
        if len({column.size for column in columns}) > 1:
            sizes = ", ".join(str(column.size) for column in columns)
            raise InvalidData(f"s, a and s_next have {sizes} entries; they must have one entry per transition")
        if columns[0].size == 0:
            raise InvalidData("s is empty; pass at least one offline transition")
        sources, actions, targets = columns
        weights = np.bincount((actions * n + sources) * n + targets, minlength=m * n * n).reshape(m, n, n)
        pairs = weights.sum(axis=2)  # (n_actions, n)
        return cls(
            mdp=MDP(_shares(weights, pairs[:, :, None], n), initial=initial),
            behavior=freeze(_shares(pairs.T, pairs.sum(axis=0)[:, None], m)),
            weights=freeze(weights / sources.size),
        )

    @classmethod
    def sample(
        cls, mdp: MDP, n: int, discount: float, rng: int | np.random.Generator, policy: Any = None
    ) -> OfflineData:
        """Draw `n` independent transitions from the discounted occupancy of `policy` (uniformly random by default)."""
        generator = as_generator(rng)
        pi = mdp._policy(mdp.uniform_policy() if policy is None else policy)
        rho = mdp.induced_chain(pi).occupancy(discount)
        s = generator.choice(mdp.n_states, size=check_count(n, "n"), p=rho)
        a = Successors.of(pi).draw(s, generator.random(n))
        s_next = mdp._stacked.draw(a * mdp.n_states + s, generator.random(n))
        return cls.from_transitions(s, a, s_next, n_states=mdp.n_states, n_actions=mdp.n_actions, initial=mdp.initial)

    @classmethod
    def exact(cls, mdp: MDP, discount: float, policy: Any = None) -> OfflineData:
        """Return the limit of infinitely many transitions of `policy` (uniformly random by default)."""
        pi = mdp._policy(mdp.uniform_policy() if policy is None else policy)
        rho = mdp.induced_chain(pi).occupancy(discount)
        weights = (rho[:, None] * pi).T[:, :, None] * np.stack(list(map(dense, mdp.transition)))
        return cls(mdp, pi, freeze(weights))

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.mdp.n_states

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.mdp.n_actions

    @property
    def dynamics(self) -> Floats:
        """The dynamics T, dense, of shape (n_actions, n, n)."""
        return np.stack(list(map(dense, self.mdp.transition)))

    def occupancy(self, discount: float) -> Floats:
        """Return ρ_I(s,a) of shape (n, n_actions), the occupancy of the behavior policy in the estimated MDP."""
        return self.mdp.induced_chain(self.behavior).occupancy(discount)[:, None] * self.behavior


def checked(offline: Any, expert: Any, discount: float) -> tuple[OfflineData, Floats]:
    """Return the checked offline data and the expert's ν_E of shape (n, n)."""
    gamma = check_discount(discount)
    if isinstance(offline, MDP):
        offline = OfflineData.exact(offline, gamma)
    if not isinstance(offline, OfflineData):
        raise InvalidArgument(
            f"offline is a {type(offline).__name__}; pass an OfflineData or, for known dynamics, an MDP"
        )
    return offline, _expert_pairs(expert, offline.mdp, gamma)


def check_positive(value: float, name: str, *, zero: bool = False) -> float:
    """Return a finite number above zero (or zero, if that is allowed)."""
    if not (np.isfinite(value) and (value > 0.0 or (zero and value == 0.0))):
        raise InvalidArgument(f"{name} is {value!r}; it must be {'at least' if zero else 'above'} 0 and finite")
    return float(value)


def policy_of(rho: Floats) -> Floats:
    """Return π(a|s) = ρ(s,a) / ρ(s), uniform in unvisited states."""
    rho = np.maximum(rho, 0.0)
    return normalized(np.where(rho.sum(axis=1, keepdims=True) > UNVISITED, rho, 0.0))


def normalized(table: Floats) -> Floats:
    """Divide rows by their sums; rows with sum zero become uniform."""
    return freeze(_shares(table, table.sum(axis=1, keepdims=True), table.shape[1]))


def _expert_pairs(expert: Any, mdp: MDP, discount: float) -> Floats:
    """Return ν_E of shape (n, n)."""
    n = mdp.n_states
    if isinstance(expert, MarkovChain):
        _same_states(expert.n_states, n)
        return np.asarray(dense(expert.transition_occupancy(discount)))
    if isinstance(expert, np.ndarray):
        if expert.shape != (n, n):
            raise InvalidData(
                f"expert has shape {expert.shape}; pass an occupancy table of shape ({n}, {n}), or a pair (s, s_next)"
            )
        return distribution(expert.ravel(), n * n, name="expert").reshape(n, n)
    if isinstance(expert, tuple) and len(expert) == 2:
        expert = Transitions.from_pairs(*(_numbers(part, n, f"expert[{k}]") for k, part in enumerate(expert)), states=n)
    if not isinstance(expert, Transitions):
        raise InvalidData(
            f"expert is a {type(expert).__name__}; pass a MarkovChain, a pair (s, s_next) of arrays, an occupancy "
            "table or Transitions; for trajectories use Transitions.from_trajectories(paths, states=n)"
        )
    _same_states(expert.n_states, n)
    if len(expert) == 0:
        raise InvalidData("expert has no transitions; pass trajectories of at least two states")
    if expert.episodes is not None:
        return _expert_pairs(observed_chain(expert, mdp), mdp, discount)
    table = np.bincount(expert.states * n + expert.next_states, expert.weights, minlength=n * n).reshape(n, n)
    return np.asarray(table / table.sum(), dtype=np.float64)


def _same_states(found: int, n: int) -> None:
    if found != n:
        raise InvalidData(
            f"expert has {found} states, the offline data {n}; the baselines need the same states in both, "
            "diffbisim.imitate does not"
        )


def _numbers(values: Any, n: int, name: str) -> Integers:
    """Return an (m,) array of integers in 0 … n-1."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidData(f"{name} has shape {array.shape} and type {array.dtype}; pass a flat array of integers")
    if (bad := (array < 0) | (array >= n)).any():
        k = int(bad.argmax())
        raise InvalidData(f"{name}[{k}] = {array[k]} is outside 0 … {n - 1}; correct it, or the size of the MDP")
    return array.astype(np.int64)


def _shares(table: Any, sums: Any, n: int) -> Floats:
    """Return table / sums, and 1/n where the sum is zero."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(sums > 0.0, table / np.where(sums > 0.0, sums, 1.0), 1.0 / n), dtype=np.float64)
