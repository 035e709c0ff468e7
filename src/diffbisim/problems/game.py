"""Distances between MDPs.

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

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.arrays import Array, frozen
from diffbisim.common.checks import check_discount, freeze
from diffbisim.common.errors import InvalidArgument, InvalidCost, InvalidData
from diffbisim.common.names import positions
from diffbisim.io.arrays import entry, is_number, part, prefixed
from diffbisim.io.npz import mdp_arrays, mdp_from_arrays
from diffbisim.problems.base import Problem
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import as_costs, check_costs, ground_cost
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import action_rewards

Integers = NDArray[np.int64]

MODES = ("matched", "lax", "directed")


@dataclass(frozen=True, eq=False)
class Game(Problem):
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
    options: ClassVar[tuple[str, ...]] = ("actions",)
    has_discount: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.__dict__.update(cost=frozen(self.cost), choices=freeze(np.array(self.choices, dtype=np.int64)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # pickle and deepcopy drop the read-only flags

    @classmethod
    def make(cls, x: Any, y: Any, cost: Any, discount: float, actions: str = "matched") -> "Game":
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

    @property
    def step(self) -> float:
        return 1 - self.discount

    @property
    def compared(self) -> str:
        return f"optimal discounted rewards (discount {self.discount:g})"

    def property_bound(self, upper: float) -> float:
        return upper / (1.0 - self.discount)

    def meaning(self, upper: float) -> str:
        """Return what an upper bound means; for "directed" it is one-sided."""
        if self.actions != "directed":
            return super().meaning(upper)
        return (
            f"the maximal expected discounted reward (discount {self.discount:g}) of the first exceeds that of the "
            f"second by at most {self.property_bound(upper):.6g}"
        )

    def value_range(self) -> tuple[float, float]:
        return 0.0, self.scale

    def arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {} if self.by_rewards else {"cost": self.cost.reshape(self.public_shape)}
        for side, mdp in (("x", self.x), ("y", self.y)):
            arrays |= prefixed(f"{side}.", mdp_arrays(mdp))
        return arrays

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"actions": self.actions, "by_rewards": self.by_rewards}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: Any) -> "Game":
        """Restore the problem of a saved result, validated like the arguments of :func:`diffbisim.distance`."""
        actions = entry(meta, "actions", lambda name: name in MODES, f"one of {', '.join(MODES)}")
        by_rewards = entry(meta, "by_rewards", lambda value: isinstance(value, bool), "true or false")
        discount = entry(meta, "discount", is_number, "a number")
        x, y = (mdp_from_arrays(part(arrays, f"{side}.")) for side in "xy")
        if not by_rewards and "cost" not in arrays:
            raise InvalidData("there is no array 'cost'")
        return cls.make(x, y, "reward" if by_rewards else arrays["cost"], discount, actions)

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
        """The shape of a user's cost table, (n_actions, n_X, n_Y) or (n_A, n_B, n_X, n_Y)."""
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
        return reward_cost(x, y, actions, choices)
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


def reward_cost(x: MDP, y: MDP, actions: str, choices: Integers) -> Array:
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
