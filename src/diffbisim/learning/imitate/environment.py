"""Imitation in an environment that can only be sampled: act, estimate the model, imitate in the model, act again.

All observed transitions define an empirical MDP, P̂(s'|s,a) = N(s,a,s') / N(s,a), in which imitation works as in
imitation.py: the plug-in distance, its exact gradient, the same steps. Actions that have not been tried often enough
are treated optimistically (as in R-max, Brafman and Tennenholtz 2002). If N(s,a) < `enough`, the action leads with
probability 1/(1 + N(s,a)) to an additional state ⊤ without cost,

    c(x, ⊤) = 0,        ⊤ absorbing,

so that the learner tries it where that could help, and then knows more. Exploration thus serves only the imitation:
dynamics in regions the expert never visits are not learned. The last round omits ⊤: its policy, distance and reward
are those of the empirical model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Matrix, check_count
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.environments import SPARSE, Rollouts, rollouts
from diffbisim.processes.mdp import MDP


@dataclass
class TransitionCounts:
    """Counts of all observed transitions."""

    n_states: int
    n_actions: int
    counts: sp.csr_array = field(init=False)  # (n_actions * n_states, n_states), row a * n + s
    starts: Floats = field(init=False)
    terminal: Any = field(init=False)  # (n_states,) bool

    def __post_init__(self) -> None:
        n = self.n_states
        self.counts = sp.csr_array((self.n_actions * n, n))
        self.starts, self.terminal = np.zeros(n), np.zeros(n, dtype=bool)

    def add(self, walk: Rollouts) -> None:
        """Count the transitions of a rollout."""
        rows = walk.actions * self.n_states + walk.states
        self.counts = self.counts + sp.csr_array((np.ones(len(walk)), (rows, walk.next_states)), self.counts.shape)
        self.add_starts(walk.starts)
        self.terminal[walk.next_states[walk.terminated]] = True

    def add_starts(self, states: Any) -> None:
        """Count initial states of episodes."""
        self.starts += np.bincount(states, minlength=self.n_states)

    def mdp(self) -> MDP:
        """Return the empirical MDP; actions that were never tried stay in place."""
        visits = self._visits()
        untried = np.flatnonzero(visits == 0)
        stay = sp.csr_array((np.ones(untried.size), (untried, untried % self.n_states)), self.counts.shape)
        return self._assemble(sp.csr_array(self._shares() + stay), self.starts)

    def optimistic_mdp(self, enough: float) -> MDP:
        """Return the MDP with ⊤ as its last state, reached by actions tried fewer than `enough` times."""
        n, visits = self.n_states, self._visits()
        doubt = np.where(visits < enough, 1.0 / (1.0 + visits), 0.0)
        wide = sp.hstack([sp.diags_array(1.0 - doubt) @ self._shares(), sp.csr_array(doubt[:, None])], format="csr")
        top = sp.csr_array(([1.0], ([0], [n])), (1, n + 1))
        rows = [part for a in range(self.n_actions) for part in (wide[a * n : (a + 1) * n], top)]
        return self._assemble(sp.vstack(rows, format="csr"), np.append(self.starts, 0.0))

    def known(self, enough: float) -> Any:
        """Return the states, (n_states,) bool, in which every action was tried at least `enough` times."""
        return (self._visits() >= enough).reshape(self.n_actions, self.n_states).all(axis=0)

    def state(self) -> list[Any]:
        """Return all counts as arrays."""
        return [self.counts.data, self.counts.indices, self.counts.indptr, self.starts, self.terminal]

    def resume(self, state: list[Any]) -> None:
        """Restore a saved :meth:`state`."""
        *parts, self.starts, self.terminal = state
        self.counts = sp.csr_array(tuple(parts), self.counts.shape)

    def _visits(self) -> Floats:
        """Return N(s,a), flat; infinite for terminal states, where nothing is left to learn."""
        visits = np.asarray(self.counts.sum(axis=1), dtype=np.float64)
        visits[np.tile(self.terminal, self.n_actions)] = np.inf
        return visits

    def _shares(self) -> sp.csr_array:
        """Return P̂ with absorbing terminal states, and zero rows for actions that were never tried."""
        visits, n = self._visits(), self.n_states
        dead = np.flatnonzero(np.isinf(visits))
        loops = sp.csr_array((np.ones(dead.size), (dead, dead % n)), self.counts.shape)
        return sp.csr_array(sp.diags_array(1.0 / np.maximum(visits, 1.0)) @ self.counts + loops)

    def _assemble(self, stacked: sp.csr_array, starts: Floats) -> MDP:
        n = starts.size
        kernels: list[Matrix] = [sp.csr_array(stacked[a * n : (a + 1) * n]) for a in range(self.n_actions)]
        if n <= SPARSE:
            kernels = [P.toarray() for P in kernels]  # type: ignore[union-attr]
        return MDP(kernels, initial=starts / starts.sum() if starts.any() else 0)  # 0 before the first episode


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an environment is sampled.

    Parameters
    ----------
    steps : int, default=100_000
        Total number of steps; the first third uses random actions, the rest is divided into `rounds`.
    rounds : int, default=8
        Number of rounds after the first.
    enough : float, default=10.0
        Number of tries after which an action counts as known.
    explore : float, default=0.1
        Fraction of random actions.
    iterations : int, default=8
        Outer iterations after every round except the last.
    resets : int, default=3_000
        Number of resets at the beginning, to estimate the initial distribution; no policy can compensate for a
        difference between the estimated starts of expert and learner.
    """

    steps: int = 100_000
    rounds: int = 8
    enough: float = 10.0
    explore: float = 0.1
    iterations: int = 8
    resets: int = 3_000

    def __post_init__(self) -> None:
        for name in ("steps", "rounds", "iterations", "resets"):
            check_count(getattr(self, name), f"sampling.{name}")
        if not (self.enough >= 0 and 0 <= self.explore <= 1):
            raise InvalidArgument(
                f"sampling.enough is {self.enough!r} and sampling.explore is {self.explore!r}; enough must be >= 0 and "
                "explore between 0 and 1"
            )

    def batches(self) -> list[int]:
        """Return the number of steps of each round."""
        first = max(self.steps // 3, 1)
        rest = max((self.steps - first) // max(self.rounds, 1), 1)
        return [first] + [rest] * self.rounds


def explore(
    env: Any, model: TransitionCounts, policy: Floats, share: float, steps: int, rng: np.random.Generator
) -> None:
    """Act with the policy and a fraction of random actions, and count the transitions."""
    uniform = np.full_like(policy, 1.0 / policy.shape[1])
    model.add(rollouts(env, (1.0 - share) * policy + share * uniform, steps, rng))
