"""The MDP of the classes, and the exact losses of its policies on the states.

Letters: φ (n,) the class of every state, w (n,) weights; P_a, r the ground MDP of n states, P̂_a, r̂ that of k classes;
v* = (1-γ) V* normalized values, which have the scale of the rewards.

    P̂_a(j'|j) = Σ_{s in j} w(s) P_a(s, class j') / Σ_{s in j} w(s),      r̂ likewise: the *class-mean model*

    lifted       π(s) = π̂*(φ(s)), the optimal policy of the classes, which sees only the class
    lookahead    π(s) = argmax_a [(1-γ) r(s,a) + γ Σ_s' P_a(s,s') v̂*(φ(s'))]: one step on the ground MDP, then v̂*

Ties are common, since whole neighborhoods may be one class: of actions that are equally good but for rounding the
first is taken, with lookahead the lifted one. Both policies are evaluated exactly, (I - γP_π) v^π = (1-γ) r_π, and
compared with v*: the *loss* v* - v^π, by state.

**What is known beforehand.** W = v̂*∘φ and one Bellman sweep give (for this reward)

    v* - v^π ≤ [max (T W - W)⁺ + max (W - T_π W)⁺] / (1-γ),      π the lifted policy.

The *encoder bound* is for every reward of a family at once. Û is Ferns' metric of the abstract MDP (k × k) and

    b_a(s) = (1-γ) c_a(s) + γ OT_Û(φ#P_a(s), P̂_a(φ(s))),      e = max_a [b_a + γ P_a e],      e_π = b_π + γ P_π e_π;

then |v* - v̂*∘φ| ≤ e, |v^π - v̂*∘φ| ≤ e_π and v* - v^π ≤ e + e_π ≤ 2e. Proof: q*(s,a) - q̂*(φ(s),a) =
(1-γ)(r - r̂) + γ (φ#P_a - P̂_a) v̂* + γ P_a (v* - v̂*∘φ), and v̂* is 1-Lipschitz for Û. Of the rewards it uses only
|r(s,a) - r̂(φ(s),a)| ≤ c_a(s) and |r̂(j,a) - r̂(j',a)| ≤ ĉ_a(j,j'), the cost of Û. The family here is r = <w, ψ> with all
|w_i| ≤ 1, for features ψ(s,a) and their class means ψ̂: c and ĉ are sums of absolute differences of features. Without
features the reward itself is the only one. Cost: k²|A| + n|A| transports of size ≤ k.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from diffbisim.checks import Floats, Integers
from diffbisim.distance import distance
from diffbisim.errors import quietly
from diffbisim.mdp import MDP
from diffbisim.planning import (
    Values,
    action_rewards,
    action_values,
    chosen_rows,
    improve,
    optimal_values,
    policy_values,
    solved_values,
)
from diffbisim.solvers import Exact
from diffbisim.stochastic import Successors

#: Actions whose values differ by this share of the largest value are equally good.
TIE = 1e-10

#: More than the rounding of a few sums and products.
ROUNDING = 1e-14


class Losses(NamedTuple):
    """What two policies of an abstraction lose, in normalized values."""

    loss: float  # of the lifted policy, in the worst state
    start_loss: float  # from the start
    lookahead_loss: float  # of the policy with one step of lookahead, in the worst state
    lookahead_start_loss: float
    reward_bound: float  # on ``loss``, from one Bellman sweep


class Policies(NamedTuple):
    """What is planned on the classes."""

    abstract: Integers  # (k,) the optimal action of every class
    values: Floats  # (k,) v̂*
    lookahead: Integers  # (n,) of every state
    short: float  # how far the values of the policy may be from v̂*: ties that are not quite, and rounding


@dataclass(frozen=True, eq=False)
class Ground:
    """An MDP to be abstracted, with what all its candidates share.

    Attributes:
        rewards: (n, n_actions), times 1-γ.
        optimal: v*, (n,), up to rounding.
        weight: (n,), of the states in means.
    """

    mdp: MDP
    discount: float
    rewards: Floats
    optimal: Floats
    weight: Floats

    @classmethod
    def of(cls, mdp: MDP, discount: float, weight: Floats | None = None) -> "Ground":
        r = (1 - discount) * action_rewards(mdp)
        v = improve(mdp.transition, r, discount).values
        return cls(mdp, discount, r, v, np.ones(mdp.n_states) if weight is None else weight)

    @property
    def action_values(self) -> Floats:
        """Q*, (n, n_actions), normalized."""
        return self.rewards + self.discount * action_values(self.mdp, self.optimal)

    def plan(self, labels: Integers, kernels: Floats | None = None, rewards: Floats | None = None) -> Policies:
        """The optimal policy of the class-mean model, and the one with lookahead; ``rewards`` as :attr:`rewards`."""
        r, γ = self.rewards if rewards is None else rewards, self.discount
        P = class_kernels(self.mdp, labels, self.weight) if kernels is None else kernels
        r_mean = class_means(labels, r, self.weight)
        v = improve(list(P), r_mean, γ).values
        small = r_mean + γ * np.stack([P_a @ v for P_a in P], axis=1)
        actions = best_actions(small)
        off = np.abs(v - small.max(axis=1)) + small.max(axis=1) - small[np.arange(len(v)), actions]
        ahead = best_actions(r + γ * action_values(self.mdp, v[labels]), actions[labels])
        return Policies(actions, v, ahead, float(off.max()) / (1 - γ))

    def losses(self, labels: Integers) -> Losses:
        """What is lost by planning on these classes, exact up to rounding."""
        found, γ = self.plan(labels), self.discount
        lifted, W = found.abstract[labels], found.values[labels]
        lost, ahead = (self.optimal - self._evaluated(actions) for actions in (lifted, found.lookahead))
        start = self.mdp.initial
        q = self.rewards + γ * action_values(self.mdp, W)
        up, down = (q.max(axis=1) - W).max(), (W - q[np.arange(labels.size), lifted]).max()
        bound = float(max(up, 0.0) + max(down, 0.0)) / (1 - γ)
        return Losses(float(lost.max()), float(start @ lost), float(ahead.max()), float(start @ ahead), bound)

    def _evaluated(self, actions: Integers) -> Floats:
        """v^π of a deterministic policy: one linear system."""
        P, r = chosen_rows(self.mdp.transition, actions), self.rewards[np.arange(actions.size), actions]
        return solved_values(P, r, self.discount)


def best_actions(q: Floats, otherwise: Integers | None = None) -> Integers:
    """The best action of every row; of those that are best but for rounding the given one, or else the first."""
    near = q >= q.max(axis=1, keepdims=True) - TIE * float(np.abs(q).max())
    first = near.argmax(axis=1)
    if otherwise is not None:
        first = np.where(near[np.arange(len(q)), otherwise], otherwise, first)
    return np.asarray(first, dtype=np.int64)


def class_means(labels: Integers, table: Floats, weight: Floats | None = None) -> Floats:
    """Weighted means over the classes of a table over states, along its first axis."""
    n, k = labels.size, int(labels.max()) + 1
    w = np.ones(n) if weight is None else weight
    w = w / np.bincount(labels, weights=w)[labels]
    into = sparse.csr_array((w, labels, np.arange(n + 1)), shape=(n, k))
    return np.asarray(into.T @ table.reshape(n, -1)).reshape(k, *table.shape[1:])


def class_kernels(mdp: MDP, labels: Integers, weight: Floats | None = None) -> Floats:
    """P̂, (n_actions, k, k)."""
    rows = pushed(mdp, labels).reshape(mdp.n_actions, labels.size, -1)
    P = np.stack([class_means(labels, part, weight) for part in rows])
    return np.asarray(P / P.sum(axis=2, keepdims=True))


def pushed(mdp: MDP, labels: Integers) -> Floats:
    """``φ#P_a(s)``, the probabilities of the classes, rows a n + s, (n_actions n, k)."""
    s, k = mdp._stacked, int(labels.max()) + 1
    rows = sparse.csr_array((s.probabilities, labels[s.indices], s.indptr), shape=(s.indptr.size - 1, k))
    return np.asarray(rows.toarray())  # adds up what is in one class


# --- bounds beforehand --------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """Features ψ (n, n_actions, d) of the rewards that a bound is for, and their class means (k, n_actions, d)."""

    ground: Floats
    abstract: Floats


def step_errors(mdp: MDP, abstract: MDP, labels: Integers, discount: float, family: Family) -> Floats:
    """Certified upper bounds on ``b_a(s)``, (n, n_actions)."""
    from diffbisim.solvers.exact.pairs import sort_keys  # numba is loaded where something is solved
    from diffbisim.solvers.exact.transports import Items, Transports, transport_rounding

    γ, n, k, ψ = discount, mdp.n_states, abstract.n_states, family.abstract
    cost = np.abs(ψ[:, None] - ψ[None, :]).sum(axis=-1).transpose(2, 0, 1)  # (n_actions, k, k)
    with quietly():
        metric = distance(abstract, abstract, cost, γ, solver=Exact(tol=1e-6)).values_upper
    rows, own = Successors.of(pushed(mdp, labels)), abstract._stacked
    scale = float(metric.max()) or 1.0
    at = np.arange(mdp.n_actions * n)
    listed = at * (mdp.n_actions * k) + (at // n) * k + labels[at % n]
    items = Items.of(rows, own, k, sort_keys(metric / scale))
    transports = Transports(items._replace(listed=listed))
    moved = np.empty(at.size)
    transports.solve(np.ascontiguousarray(metric / scale).ravel(), moved, 1e-14)
    moved += transport_rounding(transports.nodes, transports.unbalanced, transports.clipped)
    seen = np.abs(family.ground - ψ[labels]).sum(axis=-1)
    return np.asarray(((1 - γ) * seen + γ * scale * moved.reshape(mdp.n_actions, n).T) * (1 + ROUNDING))


def encoder_errors(mdp: MDP, b: Floats, discount: float) -> Floats:
    """Upper bounds on ``e = max_a [b_a + γ P_a e]``, (n,)."""
    return optimal_values(mdp, discount, rewards=b).upper


def policy_errors(mdp: MDP, b: Floats, policy: Integers, discount: float) -> Floats:
    """Upper bounds on ``e_π = b_π + γ P_π e_π``, (n,)."""
    return policy_values(mdp, policy, discount, rewards=b).upper


def certified_losses(optimal: Values, reached: Values) -> Values:
    """Bounds on v* - v^π by state; no policy is better than the best."""
    return Values(np.maximum(optimal.lower - reached.upper, 0.0), optimal.upper - reached.lower)
