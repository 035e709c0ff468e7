"""The result of a comparison of MDPs, and its gradient."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from diffbisim.common.arrays import Array, lazy
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.names import find_state
from diffbisim.problems.game import Game, reward_cost
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import action_rewards
from diffbisim.results.base import DistanceResult, conditional
from diffbisim.results.gradient import ReadOnly, centered_rows, centered_start


class Move(NamedTuple):
    """The adversary's action at a pair of states and the best reply, for "lax" and "directed"."""

    side: str  # whose action it is, "x" or "y"
    action: int  # action of that side
    reply: int  # action of the other side


@dataclass(frozen=True, eq=False)
class MDPGradient(ReadOnly):
    """Derivatives of the distance for the optimal actions and plans; read-only.

    Derivatives with respect to kernels are ``(n_actions, n, n)`` arrays or, if an MDP is sparse or only reachable pairs
    were solved, one CSR matrix per action on the possible transitions; rows are centered. Derivatives with respect to
    rewards have the shape of the MDP's rewards, and are None unless the cost is "reward". Where several actions or
    plans are optimal, this is the gradient for one of them, not a directional derivative.
    """

    transition_x: Array | tuple[sparse.csr_array, ...]
    transition_y: Array | tuple[sparse.csr_array, ...]
    cost: Array  # (n_actions, n_X, n_Y) for "matched", else (n_A, n_B, n_X, n_Y)
    initial_x: Array  # (n_X,)
    initial_y: Array  # (n_Y,)
    rewards_x: Array | None
    rewards_y: Array | None


class MDPResult(DistanceResult):
    """The distance between two MDPs and the metric between all their states, with certified bounds on every entry.

    States and actions are given by label, if the MDP has labels, or by index. ``duals`` and ``implicit_reward`` are
    available for chains only.
    """

    problem: Game  # type: ignore[assignment]
    coupling: Any

    def action(self, s: Hashable, t: Hashable) -> int | Move:
        """Return the worst-case action at a pair of states: its index in X, or a :class:`Move` for "lax"."""
        line, choice = self.coupling.move(*self._pair(s, t))
        a, b = (int(k) for k in self.problem.choices[choice])
        if self.problem.actions == "matched":
            return a
        return Move("x", a, b) if line < self.problem.x.n_actions else Move("y", b, a)

    def plan(self, x: Hashable, y: Hashable, action: Any = None) -> Array | sparse.coo_array:
        """Return the optimal coupling of the next states of a pair, ``(n_X, n_Y)``; sparse if an MDP is.

        ``action`` is an action of X ("matched") or a pair (a, b); by default the result of :meth:`action`.
        """
        pair = self._pair(x, y)
        plan = self.coupling.plan(*pair, self._choice(action))
        return plan if self.problem.is_sparse else np.asarray(plan.toarray())

    def potentials(self, x: Hashable, y: Hashable, action: Any = None) -> tuple[Array, Array]:
        """Return the optimal potentials ``f (n_X,)``, ``g (n_Y,)`` of a pair for the cost ``V = values/(1-γ)``."""
        f, g = self.coupling.potentials(*self._pair(x, y), self._choice(action))
        return f / self.problem.step, g / self.problem.step

    @lazy
    def encoder(self) -> Array:
        """``λ_X(t|s)``, shape ``(n_X, n_Y)``; see :attr:`unvisited` for states without occupancy."""
        return conditional(self.occupancy, self.values, self.problem.cost.max(axis=0))

    @lazy
    def decoder(self) -> Array:
        """``λ_Y(s|t)``, shape ``(n_Y, n_X)``; see :attr:`unvisited` for states without occupancy."""
        return conditional(self.occupancy.T, self.values.T, self.problem.cost.max(axis=0).T)

    @lazy
    def gradient(self) -> MDPGradient:  # type: ignore[override]
        """Derivatives with respect to kernels, costs, rewards and initial distributions (:class:`MDPGradient`)."""
        return _gradient(self, self.occupancy, with_starts=True)

    def gradient_at(self, s: Hashable, t: Hashable) -> MDPGradient:
        """Return the derivatives of the entry ``values[s, t]``; those by initial distributions are zero."""
        x, y = self._pair(s, t)
        start = np.zeros(self.problem.shape)
        start[x, y] = 1.0
        return _gradient(self, self.coupling.occupancy(start), with_starts=False)

    def value_bound(self, s: Hashable, t: Hashable, directed: bool = False) -> float:
        """Return a certified bound on the difference of the normalized optimal values, ``v* = (1-γ) V*``.

        ``|v*(s) - v̂*(t)| ≤ value_bound(s, t)``, and ``v*(s) - v̂*(t) ≤ value_bound(s, t, directed=True)``, which is
        at most the former up to the tolerance; it solves the directed metric once, on first use. A result with
        ``actions="directed"`` provides only the latter.
        """
        x, y = self._pair(s, t)
        self._check_values()
        if self.problem.actions == "directed" and not directed:
            raise InvalidArgument(
                "a directed metric bounds v*(s) - v*(t) from above only; use value_bound(s, t, directed=True), or "
                'solve with actions="lax"'
            )
        bound = float((self._directed if directed else self).values_upper[x, y])
        if np.isnan(bound):
            raise InvalidArgument(
                f"pair ({x}, {y}) is not reachable from the initial states and was not solved; use "
                "Exact(reachable=False)"
            )
        return bound

    @lazy
    def _directed(self) -> "MDPResult":
        if self.problem.actions == "directed":
            return self
        x, y, γ = self.problem.x, self.problem.y, self.problem.discount
        return self.coupling.solve_like(Game.make(x, y, "reward", γ, "directed"))  # type: ignore[no-any-return]

    def _check_values(self) -> None:
        """Raise an error if the costs do not bound the differences of the rewards."""
        problem = self.problem
        if problem.by_rewards:
            return
        if problem.x.rewards is None or problem.y.rewards is None:
            raise InvalidArgument("value_bound needs rewards of both MDPs; create them with MDP(..., rewards=r)")
        if (reward_cost(problem.x, problem.y, problem.actions, problem.choices) > problem.cost).any():
            raise InvalidArgument("value_bound needs a cost of at least |r(s,a) - r(t,b)|; use cost='reward'")

    @property
    def duals(self) -> Any:
        """Not available for MDPs; see :meth:`potentials`."""
        raise InvalidArgument("duals are available for chains only; for MDPs use result.potentials(s, t, action)")

    def implicit_reward(self) -> Array:
        """Not available for MDPs; compare the chains of policies instead."""
        raise InvalidArgument("implicit_reward is available for chains only; compare mdp.induced_chain(policy)")

    def _choice(self, action: Any) -> int | None:
        """Return the index of an action or of a pair of actions in ``problem.choices``."""
        if action is None:
            return None
        problem = self.problem
        if problem.actions == "matched":
            return _action(problem.x, action)
        if not (isinstance(action, (tuple, list)) and len(action) == 2):
            raise InvalidArgument(f"action is {action!r}; give a pair (action of X, action of Y)")
        return _action(problem.x, action[0]) * problem.y.n_actions + _action(problem.y, action[1])

    def __repr__(self) -> str:
        return super().__repr__().replace("DistanceResult", "MDPResult", 1)


def _action(mdp: MDP, action: Any) -> int:
    k = find_state(action, mdp.n_actions, {name: k for k, name in enumerate(mdp.actions or ())})
    if k is None:
        known = "a name, or an index" if mdp.actions else "an index"
        raise InvalidArgument(f"action = {action!r} is not an action: give {known} from 0 to {mdp.n_actions - 1}")
    return k


# --- the gradient -------------------------------------------------------------------------------------------------


def _gradient(result: MDPResult, m: Array, with_starts: bool) -> MDPGradient:
    """Compute the derivatives by the envelope theorem.

    With m the occupancy, α the optimal actions and f, g their potentials for U,

        ∂d/∂P_a(s'|s) = γ/(1-γ) Σ_t m(s,t) 1{α(s,t) = (a,·)} f_st(s'),     ∂d/∂c_ab(s,t) = m(s,t) 1{α(s,t) = (a,b)},

    likewise for Q; rewards by the chain rule through c = |r - r̂| (or its positive part).
    """
    problem, coupling = result.problem, result.coupling
    γ, everywhere = problem.discount, coupling.complete and not problem.is_sparse
    by_x, by_y = coupling.weighted_potentials(m, everywhere)
    spread = coupling.by_choice(m)  # (C, n_X, n_Y)
    starts = [np.zeros(n) for n in problem.shape]
    if with_starts:
        start = coupling.start
        starts = [centered_start(start.f, problem.x.initial), centered_start(start.g, problem.y.initial)]
    return MDPGradient(
        _by_action(γ / problem.step * by_x, problem.x),
        _by_action(γ / problem.step * by_y, problem.y),
        spread.reshape(problem.public_shape), starts[0], starts[1], *_reward_gradients(problem, spread),
    )  # fmt: skip


def _by_action(rows: Array, mdp: MDP) -> Any:
    """Center the rows a n + s (dense, or on the stored entries) and split them by action."""
    n, k = mdp.n_states, mdp.n_actions
    found = centered_rows(rows, mdp._stacked, (k * n, n))
    return (
        found.reshape(k, n, n) if isinstance(found, np.ndarray) else tuple(found[a * n : a * n + n] for a in range(k))
    )


def _reward_gradients(problem: Game, spread: Array) -> tuple[Array | None, Array | None]:
    if not problem.by_rewards:
        return None, None
    r_x, r_y = action_rewards(problem.x), action_rewards(problem.y)
    a, b = problem.choices.T
    sign = np.sign(r_x.T[a, :, None] - r_y.T[b, None, :]) * (problem.cost > 0)
    by_x, by_y = np.zeros_like(r_x), np.zeros_like(r_y)
    np.add.at(by_x.T, a, (sign * spread).sum(axis=2))
    np.add.at(by_y.T, b, -(sign * spread).sum(axis=1))
    return tuple(  # type: ignore[return-value]
        by if mdp.rewards is not None and mdp.rewards.ndim == 2 else by.sum(axis=1)
        for by, mdp in ((by_x, problem.x), (by_y, problem.y))
    )
