"""Distances between MDPs: the problem and its result.

The distance between states s and t of two MDPs with kernels P_a and Q_b under a pair of actions (a, b) is

    δ_ab(s,t) = (1-γ) c_ab(s,t) + γ OT_U(P_a(·|s), Q_b(·|t)),             c_ab(s,t) = |r(s,a) - r̂(t,b)| or any table,

and the metric U is the worst case over actions:

    "matched"    U = max_a δ_aa                               both take the same action (Ferns et al. 2004)
    "lax"        U = max(max_a min_b δ_ab, max_b min_a δ_ab)  the other responds freely (Taylor et al. 2008)
    "directed"   U = max_a min_b δ_ab, c_ab = (r - r̂)⁺        one direction: Y can do nearly as well as X

All three are zero-sum games: an adversary picks a *line*, that is, a set of action pairs, and the other player picks a
pair (a, b) from it and a coupling of the successors. For "matched" the lines are the single pairs (a, a), for
"directed" the rows of the table of all pairs, and for "lax" its rows and columns.

*Value bounds.* Let v* = (1-γ) V* be the normalized optimal values. For "matched" and "lax",
|v*(s) - v̂*(t)| ≤ U(s,t), since |max_a q_a - max_a q̂_a| ≤ max_a |q_a - q̂_a| and a best response to the best action loses
at most δ. For "directed", v*(s) - v̂*(t) ≤ U(s,t). See :meth:`MDPResult.value_bound`.

*Normalization.* Most papers use V = U/(1-γ), in which costs are not multiplied by 1 - γ.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.checks import check_discount, freeze
from diffbisim.common.errors import InvalidArgument, InvalidCost, InvalidData
from diffbisim.common.names import find_state, positions
from diffbisim.io.arrays import entry, is_number, part, prefixed
from diffbisim.io.npz import mdp_arrays, mdp_from_arrays
from diffbisim.problems.problem import Array, TwoProcesses, frozen, lazy
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import as_costs, check_costs, ground_cost
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import action_rewards
from diffbisim.results.base import DistanceResult, conditional
from diffbisim.results.gradient import ReadOnly, centered_rows, centered_start

Integers = NDArray[np.int64]

MODES = ("matched", "lax", "directed")


@dataclass(frozen=True, eq=False)
class ActionProblem(TwoProcesses):
    """Two MDPs, a cost for every pair of actions, and a discount; create it with :meth:`make`.

    Attributes
    ----------
    cost : array of shape (C, n_X, n_Y)
        One table for each pair of actions in ``choices``.
    actions : {"matched", "lax", "directed"}
    choices : array of shape (C, 2)
        The pairs of actions (a, b) that are compared.
    by_rewards : bool
        Whether the cost is the difference of the rewards.
    """

    x: MDP
    y: MDP
    cost: Array
    discount: float
    actions: str
    choices: Integers
    by_rewards: bool

    criterion: ClassVar[str] = "actions"

    def __post_init__(self) -> None:
        self.__dict__.update(cost=frozen(self.cost), choices=freeze(np.array(self.choices, dtype=np.int64)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # pickle and deepcopy drop the read-only flags

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float, actions: str) -> "ActionProblem":
        """Validate the arguments and create the problem."""
        for name, side in (("X", x), ("Y", y)):
            if not isinstance(side, MDP):
                raise InvalidArgument(
                    f"{name} is a {type(side).__name__}, but the other process is an MDP; give two MDPs, or compare "
                    "chains, mdp.induced_chain(policy)"
                )
        if not isinstance(actions, str) or actions not in MODES:
            raise InvalidArgument(f"actions {actions!r} is unknown; choose one of {', '.join(map(repr, MODES))}")
        choices = _choices(x, y, actions)
        by_rewards = isinstance(cost, str) and cost == "reward"
        return cls(x, y, _cost(cost, x, y, actions, choices), check_discount(discount), actions, choices, by_rewards)

    @cached_property
    def lines(self) -> tuple[Integers, ...]:
        """The sets of choices (indices 0 … C-1) that the adversary picks from; the other player minimizes within."""
        if self.actions == "matched":
            return tuple(np.arange(len(self.choices))[:, None])
        table = np.arange(len(self.choices)).reshape(self.x.n_actions, self.y.n_actions)
        return tuple(table) if self.actions == "directed" else (*table, *table.T)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether both MDPs have equal kernels and the cost is symmetric and zero for s = t; then U is as well."""
        if self.actions == "directed" or self.shape[0] != self.shape[1] or not same_kernels(self.x, self.y):
            return False
        cost, swapped = self.cost, np.arange(len(self.choices))
        if self.actions == "lax":
            swapped = swapped.reshape(self.x.n_actions, self.y.n_actions).T.ravel()
        same = cost[self.choices[:, 0] == self.choices[:, 1]]
        return (
            bool((self.choices[:, 0] == self.choices[:, 1]).all() or self.actions == "lax")
            and not np.einsum("css->cs", same).any()
            and all(np.array_equal(cost[c], cost[d].T) for c, d in enumerate(swapped))
        )

    @property
    def public_shape(self) -> tuple[int, ...]:
        """The shape of a user's cost table: (n_actions, n_X, n_Y), or (n_A, n_B, n_X, n_Y)."""
        actions = (len(self.choices),) if self.actions == "matched" else (self.x.n_actions, self.y.n_actions)
        return *actions, *self.shape


def same_kernels(x: MDP, y: MDP) -> bool:
    """Return whether two MDPs have equal kernels, action by action."""
    if x.transition is y.transition:
        return True
    s, t = x._stacked, y._stacked
    return x.n_actions == y.n_actions and all(
        np.array_equal(getattr(s, name), getattr(t, name)) for name in ("indptr", "indices", "probabilities")
    )


def _choices(x: MDP, y: MDP, actions: str) -> Integers:
    """Return the pairs of actions to compare, (C, 2); "matched" pairs by name if both MDPs have action names."""
    n, k = x.n_actions, y.n_actions
    if actions != "matched":
        return np.stack([np.repeat(np.arange(n), k), np.tile(np.arange(k), n)], axis=1)
    remedy = "give both the same actions, or use actions='lax'"
    if n != k:
        raise InvalidArgument(f"X has {n} actions and Y has {k}, so they cannot be matched; {remedy}")
    order: Any = range(n)
    if x.actions is not None and y.actions is not None:
        if extra := [name for name in x.actions if name not in set(y.actions)]:
            raise InvalidArgument(f"action {extra[0]!r} of X is not an action of Y; {remedy}")
        order = positions(y.actions, x.actions, "Y", of="action")
    return np.stack([np.arange(n), np.asarray(order)], axis=1)


# --- costs --------------------------------------------------------------------------------------------------------


def _cost(cost: Any, x: MDP, y: MDP, actions: str, choices: Integers) -> Array:
    """Return the cost of each pair of actions, (C, n_X, n_Y)."""
    shape = len(choices), x.n_states, y.n_states
    if isinstance(cost, str) and cost == "reward":
        return _reward_cost(x, y, actions, choices)
    if callable(cost):
        cost = cost(x, y)
    if isinstance(cost, str) or np.ndim(cost) < 3:
        table = ground_cost(cost, _states_of(x), _states_of(y))
        return np.broadcast_to(table, shape)
    given = as_costs(cost, copy=True)
    wanted = (shape,) if actions == "matched" else ((x.n_actions, y.n_actions, *shape[1:]),)
    if given.shape not in wanted:
        what = "(n_actions, n_X, n_Y)" if actions == "matched" else "(n_A, n_B, n_X, n_Y), a table per pair of actions,"
        raise InvalidCost(f"cost has shape {given.shape}; expected {what} = {wanted[0]}, or (n_X, n_Y) = {shape[1:]}")
    return check_costs(given).reshape(shape)


def _reward_cost(x: MDP, y: MDP, actions: str, choices: Integers) -> Array:
    """Return ``|r(s,a) - r̂(t,b)|``, or the positive part of the difference for "directed"."""
    for name, side in (("X", x), ("Y", y)):
        if side.rewards is None:
            raise InvalidCost(
                f'cost "reward": MDP {name} has no rewards; create it with MDP(..., rewards=r), or use '
                'cost="indicator" or an array'
            )
    r_x, r_y = action_rewards(x), action_rewards(y)
    with np.errstate(over="ignore"):
        table: Array = r_x.T[choices[:, 0], :, None] - r_y.T[choices[:, 1], None, :]
    table = np.maximum(table, 0.0) if actions == "directed" else np.abs(table)
    if not table.max() < np.inf:
        raise InvalidCost('cost "reward": a difference of rewards overflows; divide the rewards by a constant')
    return table


def _states_of(mdp: MDP) -> MarkovChain:
    """Return a chain with the states, names and initial distribution of an MDP, for computing ground costs."""
    return MarkovChain._trusted(mdp.transition[0], mdp.initial, None, mdp.names)


# --- the result ---------------------------------------------------------------------------------------------------


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

    States and actions are given by name, if the MDP has names, or by index. ``duals`` and ``implicit_reward`` are
    available for chains only.
    """

    problem: ActionProblem  # type: ignore[assignment]
    coupling: Any

    @property
    def meaning(self) -> str:
        """The bound as a sentence; for "directed" it is one-sided."""
        if self.problem.actions != "directed":
            return super().meaning
        return (
            f"the maximal expected discounted reward (discount {self.discount:g}) of the first exceeds that of the "
            f"second by at most {self.property_bound:.6g}"
        )

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
        return self.coupling.solve_like(ActionProblem.make(x, y, "reward", γ, "directed"))  # type: ignore[no-any-return]

    def _check_values(self) -> None:
        """Raise an error if the costs do not bound the differences of the rewards."""
        problem = self.problem
        if problem.by_rewards:
            return
        if problem.x.rewards is None or problem.y.rewards is None:
            raise InvalidArgument("value_bound needs rewards of both MDPs; create them with MDP(..., rewards=r)")
        if (_reward_cost(problem.x, problem.y, problem.actions, problem.choices) > problem.cost).any():
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

    def _problem_arrays(self) -> dict[str, Any]:
        problem = self.problem
        arrays: dict[str, Any] = {} if problem.by_rewards else {"cost": problem.cost.reshape(problem.public_shape)}
        for side, mdp in (("x", problem.x), ("y", problem.y)):
            arrays |= prefixed(f"{side}.", mdp_arrays(mdp))
        return arrays

    def _problem_metadata(self) -> dict[str, Any]:
        return {"criterion": "actions", "actions": self.problem.actions, "by_rewards": self.problem.by_rewards}

    def __repr__(self) -> str:
        return super().__repr__().replace("DistanceResult", "MDPResult", 1)


def _action(mdp: MDP, action: Any) -> int:
    k = find_state(action, mdp.n_actions, {name: k for k, name in enumerate(mdp.actions or ())})
    if k is None:
        known = "a name, or an index" if mdp.actions else "an index"
        raise InvalidArgument(f"action = {action!r} is not an action: give {known} from 0 to {mdp.n_actions - 1}")
    return k


def problem_from_arrays(arrays: dict[str, Any], meta: Any) -> ActionProblem:
    """Restore the problem of a saved result, validated like the arguments of :func:`diffbisim.distance`."""
    actions = entry(meta, "actions", lambda name: name in MODES, f"one of {', '.join(MODES)}")
    by_rewards = entry(meta, "by_rewards", lambda value: isinstance(value, bool), "true or false")
    discount = entry(meta, "discount", is_number, "a number")
    x, y = (mdp_from_arrays(part(arrays, f"{side}.")) for side in "xy")
    if not by_rewards and "cost" not in arrays:
        raise InvalidData("there is no array 'cost'")
    return ActionProblem.make(x, y, "reward" if by_rewards else arrays["cost"], discount, actions)


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


def _reward_gradients(problem: ActionProblem, spread: Array) -> tuple[Array | None, Array | None]:
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
