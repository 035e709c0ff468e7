"""Imitation in an environment that can only be sampled: act, learn the model, imitate in the model, act again.

All transitions that were ever seen make an empirical MDP, P̂(s'|s,a) = N(s,a,s') / N(s,a), in which imitation is as in
imitation.py: the plug-in distance, its exact gradient, the same steps. What has not been tried often enough is taken
for perfect. An action with N(s,a) < `enough` leads with probability 1/(1 + N(s,a)) to a state ⊤ of no cost,

    c(x, ⊤) = 0,        ⊤ absorbing,

so the learner tries it where that may help, and then knows better (optimism, as in R-max of Brafman and Tennenholtz
2002). Exploration is thus for the imitation's sake only: nobody learns the dynamics where the expert never leads.
The last round drops ⊤: its policy, distance and reward are those of the model as it was seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.checks import Floats, Matrix, check_count
from diffbisim.data.gymnasium import SPARSE, Rollouts, rollouts
from diffbisim.errors import InvalidArgument
from diffbisim.mdp import MDP


@dataclass
class Model:
    """Counts of everything seen so far."""

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
        """Count the steps of a walk."""
        rows = walk.actions * self.n_states + walk.states
        self.counts = self.counts + sp.csr_array((np.ones(len(walk)), (rows, walk.next_states)), self.counts.shape)
        self.add_starts(walk.starts)
        self.terminal[walk.next_states[walk.terminated]] = True

    def add_starts(self, states: Any) -> None:
        """Count states in which episodes began."""
        self.starts += np.bincount(states, minlength=self.n_states)

    def mdp(self) -> MDP:
        """The empirical MDP; what was never tried stays where it is."""
        visits = self._visits()
        untried = np.flatnonzero(visits == 0)
        stay = sp.csr_array((np.ones(untried.size), (untried, untried % self.n_states)), self.counts.shape)
        return self._assemble(sp.csr_array(self._shares() + stay), self.starts)

    def optimistic_mdp(self, enough: float) -> MDP:
        """With one more state, the last one, to which actions lead that were tried less than ``enough`` times."""
        n, visits = self.n_states, self._visits()
        doubt = np.where(visits < enough, 1.0 / (1.0 + visits), 0.0)
        wide = sp.hstack([sp.diags_array(1.0 - doubt) @ self._shares(), sp.csr_array(doubt[:, None])], format="csr")
        top = sp.csr_array(([1.0], ([0], [n])), (1, n + 1))
        rows = [part for a in range(self.n_actions) for part in (wide[a * n : (a + 1) * n], top)]
        return self._assemble(sp.vstack(rows, format="csr"), np.append(self.starts, 0.0))

    def known(self, enough: float) -> Any:
        """States in which every action was tried at least ``enough`` times, (n_states,) bool."""
        return (self._visits() >= enough).reshape(self.n_actions, self.n_states).all(axis=0)

    def state(self) -> list[Any]:
        """All counts, as arrays."""
        return [self.counts.data, self.counts.indices, self.counts.indptr, self.starts, self.terminal]

    def resume(self, state: list[Any]) -> None:
        """The inverse of :meth:`state`."""
        *parts, self.starts, self.terminal = state
        self.counts = sp.csr_array(tuple(parts), self.counts.shape)

    def _visits(self) -> Floats:
        """N(s,a), flat; of terminal states there is nothing to learn."""
        visits = np.asarray(self.counts.sum(axis=1), dtype=np.float64)
        visits[np.tile(self.terminal, self.n_actions)] = np.inf
        return visits

    def _shares(self) -> sp.csr_array:
        """P̂, with terminal states absorbing, and rows of zeros where nothing was tried."""
        visits, n = self._visits(), self.n_states
        dead = np.flatnonzero(np.isinf(visits))
        loops = sp.csr_array((np.ones(dead.size), (dead, dead % n)), self.counts.shape)
        return sp.csr_array(sp.diags_array(1.0 / np.maximum(visits, 1.0)) @ self.counts + loops)

    def _assemble(self, stacked: sp.csr_array, starts: Floats) -> MDP:
        n = starts.size
        kernels: list[Matrix] = [sp.csr_array(stacked[a * n : (a + 1) * n]) for a in range(self.n_actions)]
        if n <= SPARSE:
            kernels = [P.toarray() for P in kernels]  # type: ignore[union-attr]
        return MDP(kernels, initial=starts / starts.sum() if starts.any() else 0)  # nothing seen yet


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an environment is sampled: ``steps`` in all, the first third at random, the rest in ``rounds``.

    ``enough`` tries make an action known, ``explore`` is the share of random actions, ``iterations`` the outer
    iterations after every round but the last. Before all that the environment is reset ``resets`` times, to see where
    episodes begin: where expert and learner start from differing samples, no policy can make up for it.
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
                f"sampling.enough is {self.enough!r} and .explore {self.explore!r}; give enough >= 0, a share in [0, 1]"
            )

    def batches(self) -> list[int]:
        """Steps of each round."""
        first = max(self.steps // 3, 1)
        rest = max((self.steps - first) // max(self.rounds, 1), 1)
        return [first] + [rest] * self.rounds


def explore(env: Any, model: Model, policy: Floats, share: float, steps: int, rng: np.random.Generator) -> None:
    """Act with the policy and a share of random actions, and count what happens."""
    uniform = np.full_like(policy, 1.0 / policy.shape[1])
    model.add(rollouts(env, (1.0 - share) * policy + share * uniform, steps, rng))
