"""The MDP of the classes, and the exact losses of its policies on the states.

Letters: φ (n,) the class of every state, w (n,) weights; P_a, r the ground MDP of n states, P̂_a, r̂ that of k classes;
v* = (1-γ) V* normalized values, which have the scale of the rewards.

    P̂_a(j'|j) = Σ_{s in j} w(s) P_a(s, class j') / Σ_{s in j} w(s),      r̂ likewise: the *class-mean model*

    lifted       π(s) = π̂*(φ(s)), the optimal policy of the classes, which depends only on the class
    lookahead    π(s) = argmax_a [(1-γ) r(s,a) + γ Σ_s' P_a(s,s') v̂*(φ(s'))]: one step in the ground MDP, then v̂*

Ties are common, because a whole neighborhood may be one class. Among actions that are equal up to rounding the first is
chosen, and with lookahead the lifted one. Both policies are evaluated exactly, (I - γP_π) v^π = (1-γ) r_π, and compared
with v*: the *loss* is v* - v^π, by state.

*A priori bounds.* For the given reward, W = v̂*∘φ and one Bellman sweep give

    v* - v^π ≤ [max (T W - W)⁺ + max (W - T_π W)⁺] / (1-γ),      π the lifted policy.

The *encoder bound* holds for every reward of a family at once. Û is Ferns' metric of the abstract MDP (k × k) and

    b_a(s) = (1-γ) c_a(s) + γ OT_Û(φ#P_a(s), P̂_a(φ(s))),      e = max_a [b_a + γ P_a e],      e_π = b_π + γ P_π e_π;

then |v* - v̂*∘φ| ≤ e, |v^π - v̂*∘φ| ≤ e_π and v* - v^π ≤ e + e_π ≤ 2e. Proof: q*(s,a) - q̂*(φ(s),a) =
(1-γ)(r - r̂) + γ (φ#P_a - P̂_a) v̂* + γ P_a (v* - v̂*∘φ), and v̂* is 1-Lipschitz for Û. The proof uses only
|r(s,a) - r̂(φ(s),a)| ≤ c_a(s) and |r̂(j,a) - r̂(j',a)| ≤ ĉ_a(j,j'), the cost of Û. The family is r = <w, ψ> with all
|w_i| ≤ 1, for features ψ(s,a) and their class means ψ̂; c and ĉ are sums of absolute differences of features. By
default the reward itself is the only feature. Cost: k²|A| + n|A| transports of size ≤ k.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from diffbisim.common.checks import Floats, Integers
from diffbisim.common.errors import quietly
from diffbisim.distances.chains import distance
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import (
    Values,
    action_rewards,
    action_values,
    chosen_rows,
    improve,
    solved_values,
)
from diffbisim.processes.stochastic import Successors
from diffbisim.solvers import Exact

#: Actions whose values differ by less than this, relative to the largest value, count as equal.
TIE = 1e-10

#: Relative upper bound on the rounding error of a few sums and products.
ROUNDING = 1e-14


class Losses(NamedTuple):
    """Losses of the two policies of an abstraction, in normalized values."""

    loss: float  # of the lifted policy, in the worst state
    start_loss: float  # from the initial distribution
    lookahead_loss: float  # of the policy with one step of lookahead, in the worst state
    lookahead_start_loss: float
    reward_bound: float  # on ``loss``, from one Bellman sweep


class Policies(NamedTuple):
    """The policies planned on the classes."""

    abstract: Integers  # (k,) the optimal action of every class
    values: Floats  # (k,) v̂*
    lookahead: Integers  # (n,) the action of every state with lookahead
    short: float  # bound on how far the policy's values are below v̂*, due to near ties and rounding


@dataclass(frozen=True, eq=False)
class Ground:
    """An MDP to be abstracted, with everything that its candidates share."""

    mdp: MDP
    discount: float
    rewards: Floats  # (n, n_actions), multiplied by 1-γ
    optimal: Floats  # (n,) v*, up to rounding
    weight: Floats  # (n,) weights of the states in means

    @classmethod
    def of(cls, mdp: MDP, discount: float, weight: Floats | None = None) -> "Ground":
        """Solve the MDP; states have equal weights by default."""
        r = (1 - discount) * action_rewards(mdp)
        v = improve(mdp.transition, r, discount).values
        return cls(mdp, discount, r, v, np.ones(mdp.n_states) if weight is None else weight)

    @property
    def action_values(self) -> Floats:
        """Q*, normalized, of shape (n, n_actions)."""
        return self.rewards + self.discount * action_values(self.mdp, self.optimal)

    def plan(self, assignment: Integers, kernels: Floats | None = None, rewards: Floats | None = None) -> Policies:
        """Plan in the class-mean model, without and with lookahead; `rewards` are scaled like :attr:`rewards`."""
        r, γ = self.rewards if rewards is None else rewards, self.discount
        P = class_kernels(self.mdp, assignment, self.weight) if kernels is None else kernels
        r_mean = class_means(assignment, r, self.weight)
        v = improve(list(P), r_mean, γ).values
        small = r_mean + γ * np.stack([P_a @ v for P_a in P], axis=1)
        actions = best_actions(small)
        off = np.abs(v - small.max(axis=1)) + small.max(axis=1) - small[np.arange(len(v)), actions]
        ahead = best_actions(r + γ * action_values(self.mdp, v[assignment]), actions[assignment])
        return Policies(actions, v, ahead, float(off.max()) / (1 - γ))

    def losses(self, assignment: Integers) -> Losses:
        """Return the losses of planning on these classes, exact up to rounding."""
        found, γ = self.plan(assignment), self.discount
        lifted, W = found.abstract[assignment], found.values[assignment]
        lost, ahead = (self.optimal - self.evaluated(actions) for actions in (lifted, found.lookahead))
        start = self.mdp.initial
        q = self.rewards + γ * action_values(self.mdp, W)
        up, down = (q.max(axis=1) - W).max(), (W - q[np.arange(assignment.size), lifted]).max()
        bound = float(max(up, 0.0) + max(down, 0.0)) / (1 - γ)
        return Losses(float(lost.max()), float(start @ lost), float(ahead.max()), float(start @ ahead), bound)

    def evaluated(self, actions: Integers) -> Floats:
        """Return v^π of a deterministic policy by solving one linear system."""
        P, r = chosen_rows(self.mdp.transition, actions), self.rewards[np.arange(actions.size), actions]
        return solved_values(P, r, self.discount)


def best_actions(q: Floats, otherwise: Integers | None = None) -> Integers:
    """Return the best action of every row; among ties up to rounding the given one, or else the first."""
    near = q >= q.max(axis=1, keepdims=True) - TIE * float(np.abs(q).max())
    first = near.argmax(axis=1)
    if otherwise is not None:
        first = np.where(near[np.arange(len(q)), otherwise], otherwise, first)
    return np.asarray(first, dtype=np.int64)


def class_means(assignment: Integers, table: Floats, weight: Floats | None = None) -> Floats:
    """Return weighted class means of a table over states, along its first axis."""
    n, k = assignment.size, int(assignment.max()) + 1
    w = np.ones(n) if weight is None else weight
    w = w / np.bincount(assignment, weights=w)[assignment]
    into = sparse.csr_array((w, assignment, np.arange(n + 1)), shape=(n, k))
    return np.asarray(into.T @ table.reshape(n, -1)).reshape(k, *table.shape[1:])


def class_kernels(mdp: MDP, assignment: Integers, weight: Floats | None = None) -> Floats:
    """Return P̂ of shape (n_actions, k, k)."""
    rows = pushed(mdp, assignment).reshape(mdp.n_actions, assignment.size, -1)
    P = np.stack([class_means(assignment, part, weight) for part in rows])
    return np.asarray(P / P.sum(axis=2, keepdims=True))


def class_mdp(mdp: MDP, assignment: Integers) -> MDP:
    """Return the abstract MDP of a partition: kernels and rewards are means over the classes, initial ones sums."""
    assert mdp.rewards is not None  # checked by the caller
    return MDP(
        class_kernels(mdp, assignment),
        initial=np.bincount(assignment, weights=mdp.initial),
        rewards=class_means(assignment, mdp.rewards),
        actions=mdp.actions,
    )


def pushed(mdp: MDP, assignment: Integers) -> Floats:
    """Return φ#P_a(s), the probabilities of the classes, with rows a n + s: (n_actions n, k)."""
    s, k = mdp._stacked, int(assignment.max()) + 1
    rows = sparse.csr_array((s.probabilities, assignment[s.indices], s.indptr), shape=(s.indptr.size - 1, k))
    return np.asarray(rows.toarray())  # adds up entries of the same class


# --- a priori bounds ----------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """Features ψ (n, n_actions, d) of the rewards of a family, and their class means (k, n_actions, d)."""

    ground: Floats
    abstract: Floats


def step_errors(mdp: MDP, abstract: MDP, assignment: Integers, discount: float, family: Family) -> Floats:
    """Return certified upper bounds on b_a(s), (n, n_actions)."""
    from diffbisim.solvers.certify import transport_rounding
    from diffbisim.solvers.exact.pairs import plan_errors, sort_keys
    from diffbisim.solvers.exact.transports import Items, Transports

    γ, n, k, ψ = discount, mdp.n_states, abstract.n_states, family.abstract
    cost = np.abs(ψ[:, None] - ψ[None, :]).sum(axis=-1).transpose(2, 0, 1)  # (n_actions, k, k)
    with quietly():
        metric = distance(abstract, abstract, cost, γ, solver=Exact(tol=1e-6)).values_upper
    rows, own = Successors.of(pushed(mdp, assignment)), abstract._stacked
    scale = float(metric.max()) or 1.0
    at = np.arange(mdp.n_actions * n)
    listed = at * (mdp.n_actions * k) + (at // n) * k + assignment[at % n]
    items = Items.of(rows, own, k, sort_keys(metric / scale))
    transports = Transports(items._replace(listed=listed))
    moved = np.empty(at.size)
    transports.solve(np.ascontiguousarray(metric / scale).ravel(), moved, 1e-14)
    moved += transport_rounding(plan_errors(transports))
    seen = np.abs(family.ground - ψ[assignment]).sum(axis=-1)
    return np.asarray(((1 - γ) * seen + γ * scale * moved.reshape(mdp.n_actions, n).T) * (1 + ROUNDING))


def certified_losses(optimal: Values, reached: Values) -> Values:
    """Return bounds on v* - v^π by state, using that the loss is nonnegative."""
    return Values(np.maximum(optimal.lower - reached.upper, 0.0), optimal.upper - reached.lower)
