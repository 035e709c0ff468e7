"""The result of an abstraction: the small MDP, the map from states to classes, and the losses of planning with it.

All values are normalized, v = (1-γ) V, so that losses have the scale of the rewards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.arrays import lazy
from diffbisim.common.checks import Floats, Integers, check_discount, dense, freeze, policy_table
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.io.arrays import entry, is_count, is_number, json_array, numbers, part, prefixed, read_json
from diffbisim.io.files import replacing
from diffbisim.io.npz import mdp_arrays, mdp_from_arrays
from diffbisim.processes.lumping import by_first_appearance
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import Values, action_rewards, optimal_values, policy_values
from diffbisim.reduction.abstraction.model import (
    Family,
    Ground,
    certified_losses,
    class_mdp,
    class_means,
    step_errors,
)
from diffbisim.reduction.abstraction.partitions import GIVEN, GLOBAL, LOCAL, TRIED
from diffbisim.results.saving import check_version

#: What can be known of a partition; see :class:`AbstractionResult`.
OPTIMALITY = (GLOBAL, LOCAL, TRIED, GIVEN)


class Candidate(NamedTuple):
    """A partition that was tried; losses as in :class:`AbstractionResult`, exact up to rounding."""

    method: str  # the kind of candidate, e.g. as in ``abstract(method=)``, or "all" or "moves"
    seed: int  # -1 for deterministic methods
    n_states: int  # number of classes
    loss: float  # loss of the lifted optimal policy in the worst state
    start_loss: float  # the same from the initial distribution
    lookahead_loss: float  # loss in the worst state with one step on the ground MDP
    lookahead_start_loss: float  # the same from the initial distribution
    reward_bound: float  # a bound on ``loss`` from one Bellman sweep
    assignment: Integers  # (n,) class of every state


class Transfer(NamedTuple):
    """Planning for another reward on the same classes."""

    policy: Integers  # (k,) the optimal action of every class
    losses: Floats  # (n,) losses of the lifted policy, upper bounds within rounding
    lookahead_losses: Floats  # (n,) losses of the policy with lookahead
    bounds: Floats  # (n,) the encoder bound on ``losses``, valid if the reward is in the family

    @property
    def loss(self) -> float:
        """Loss in the worst state."""
        return float(self.losses.max())

    @property
    def lookahead_loss(self) -> float:
        """Loss with lookahead in the worst state."""
        return float(self.lookahead_losses.max())

    @property
    def bound(self) -> float:
        """Encoder bound in the worst state."""
        return float(self.bounds.max())


@dataclass(frozen=True, eq=False, repr=False)
class AbstractionResult:
    """A small MDP for planning in a large one, as returned by :func:`diffbisim.abstract`.

    Attributes
    ----------
    ground : MDP
        The original MDP.
    mdp : MDP
        The abstract MDP: kernels and rewards are means over the classes, initial probabilities are summed.
    assignment : array of shape (n,)
        Class of every state, numbered by first appearance.
    discount : float
        Discount γ.
    method : str
        The method that found the partition.
    candidates : tuple of Candidate
        The candidates that were tried (``pandas.DataFrame(result.candidates)`` is a table of them), with the best of
        all partitions ("all"), or what moves and swaps made of the best candidates ("moves").
    features : array of shape (n, n_actions, d)
        Features ψ of the rewards for which :attr:`bound` holds; the first is the reward of the MDP.
    complete : bool
        Whether all candidates were tried; False if the time limit was reached.
    optimality : {"global", "local", "tried", "given"}
        What is known of the partition. "global": no partition with at most as many classes as requested has a smaller
        score (if there were too many, none that keeps exactly equivalent states together); "local": none that is one
        move or swap of states away has (with equivalent states as one); "tried": it is the best of the candidates;
        "given": it was given as `assignment`.
    """

    ground: MDP
    mdp: MDP
    assignment: Integers
    discount: float
    method: str
    candidates: tuple[Candidate, ...]
    features: Floats
    complete: bool = True
    optimality: str = TRIED

    @property
    def n_states(self) -> int:
        """Number of abstract states, at most as many as requested."""
        return self.mdp.n_states

    @property
    def encoder(self) -> Floats:
        """``λ(j|s)``, shape ``(n, n_states)``, which is one for the class of s and else zero."""
        return freeze(np.eye(self.n_states)[self.assignment])

    def members(self, k: int) -> Integers:
        """Return the states of class `k` in ascending order."""
        if not 0 <= k < self.n_states:
            raise InvalidArgument(f"k = {k} is not a class; pass an index from 0 to {self.n_states - 1}")
        return np.flatnonzero(self.assignment == k)

    def lift(self, policy: Any) -> Any:
        """Extend a policy of the abstract MDP to all states.

        Parameters
        ----------
        policy : array of shape (n_states,) or (n_states, n_actions)
            An action per class, or probabilities.

        Returns
        -------
        array of shape (n,) or (n, n_actions)
            The policy of every state.
        """
        shape = self.n_states, self.mdp.n_actions
        table = policy_table(policy, shape, names=self.mdp.names, actions=self.mdp.actions)
        return (np.asarray(policy) if np.ndim(policy) == 1 else table)[self.assignment]

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file (arrays and JSON, no pickle) for :func:`diffbisim.load`."""
        tried = [row._asdict() for row in self.candidates]
        partitions = np.array([row.pop("assignment") for row in tried], dtype=np.int64)
        meta = {
            "diffbisim-abstraction": 1, "discount": self.discount, "method": self.method, "complete": self.complete,
            "optimality": self.optimality, "candidates": tried,
        }  # fmt: skip
        arrays: dict[str, Any] = {"assignment": self.assignment, "features": self.features, "candidates": partitions}
        arrays |= {**prefixed("ground.", mdp_arrays(self.ground)), "abstraction": json_array(meta)}
        with replacing(Path(path), binary=True) as file:
            np.savez(file, **arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> "AbstractionResult":
        """Rebuild a saved abstraction from the arrays of its file; everything else follows from its classes."""
        meta = read_json(arrays, "abstraction")
        check_version(meta, "diffbisim-abstraction")
        if "assignment" not in arrays and "labels" in arrays:  # its name in older files
            arrays = {**arrays, "assignment": arrays["labels"]}
        ground = mdp_from_arrays(part(arrays, "ground."))
        n, reward = ground.n_states, action_rewards(ground)
        shape = (n, ground.n_actions, arrays["features"].shape[-1])
        features = numbers(arrays, "features", shape)
        if not np.array_equal(features[:, :, 0], reward):
            raise InvalidData("the first feature is not the reward of the MDP; the file is damaged")
        rows = entry(meta, "candidates", lambda rows: isinstance(rows, list), "a list of what was tried")
        tried = numbers(arrays, "candidates", (len(rows), n), np.int64, least=0, most=n - 1)
        assignment = _partition(numbers(arrays, "assignment", (n,), np.int64, least=0, most=n - 1))
        return cls(
            ground, class_mdp(ground, assignment), assignment,
            check_discount(entry(meta, "discount", is_number, "a number")),
            _method(entry(meta, "method", _is_name, "a name")),
            tuple(_candidate(row, classes) for row, classes in zip(rows, tried, strict=True)), features,
            entry(meta, "complete", lambda value: isinstance(value, bool), "true or false"),
            entry({"optimality": TRIED, **meta}, "optimality", lambda value: value in OPTIMALITY, "what is known"),
        )  # fmt: skip

    # --- policies and their losses ------------------------------------------------------------------------------

    @property
    def policy(self) -> Integers:
        """The optimal action of every class, shape ``(n_states,)``."""
        return self._planned.policy

    @property
    def lookahead_policy(self) -> Integers:
        """The best action of every state, ``(n,)``, with one step in the ground MDP followed by abstract values."""
        return self._planned.lookahead

    @lazy
    def values(self) -> Values:
        """Certified ``lower`` and ``upper`` bounds on the optimal values v* of all states, normalized."""
        return optimal_values(self.ground, self.discount, rewards=self._ground.rewards)

    @property
    def losses(self) -> Floats:
        """Certified upper bounds on ``v* - v^π`` of the lifted policy by state, ``(n,)``."""
        return self._planned.losses.upper

    @property
    def loss(self) -> float:
        """Loss of the lifted optimal policy in the worst state, an upper bound within :attr:`accuracy` of the truth."""
        return float(self.losses.max())

    @property
    def start_loss(self) -> float:
        """Loss of the lifted optimal policy from the initial distribution."""
        return float(self.ground.initial @ self.losses)

    @property
    def lookahead_losses(self) -> Floats:
        """``v* - v^π`` of the policy with one step of lookahead, by state, ``(n,)``."""
        return self._planned.lookahead_losses.upper

    @property
    def lookahead_loss(self) -> float:
        """Loss of the policy with one step of lookahead in the worst state."""
        return float(self.lookahead_losses.max())

    @property
    def lookahead_start_loss(self) -> float:
        """Loss of the policy with one step of lookahead from the initial distribution."""
        return float(self.ground.initial @ self.lookahead_losses)

    @property
    def accuracy(self) -> float:
        """Largest difference between the certified upper and lower bounds on the losses, due to rounding."""
        brackets = self._planned.losses, self._planned.lookahead_losses
        return max(float((b.upper - b.lower).max()) for b in brackets)

    # --- bounds on the losses -------------------------------------------------------------------------------------

    @property
    def bounds(self) -> Floats:
        """The encoder bound e + e_π on :attr:`losses` by state, ``(n,)``; it does not need v*."""
        return self._bounds(self.policy[self.assignment], self._planned.short)

    @property
    def bound(self) -> float:
        """The encoder bound in the worst state, for rewards of the family with this optimal abstract policy."""
        return float(self.bounds.max())

    @property
    def family_bound(self) -> float:
        """Bound ``2 max e`` on the loss for any reward of the family, if planned for on these classes.

        The family is r(s,a) = <w, ψ(s,a)> with all |w_i| ≤ 1, for the features ψ; the first feature is the reward of
        the MDP.
        """
        return 2 * float(self._errors.max())

    @property
    def value_errors(self) -> Floats:
        """Certified bounds e on ``|v*(s) - v̂*(φ(s))|``, between ground and abstract optimal values, ``(n,)``."""
        return self._errors

    @lazy
    def reward_bound(self) -> float:
        """A bound on :attr:`loss` from one Bellman sweep, for this reward only."""
        return self._ground.losses(self.assignment).reward_bound

    def transfer(self, rewards: Any) -> Transfer:
        """Plan for another reward on these classes.

        Rewards of a class are means over its states. The bound holds for rewards in the family (:attr:`family_bound`).

        Parameters
        ----------
        rewards : array of shape (n,) or (n, n_actions)
            The other reward.

        Returns
        -------
        Transfer
            With ``policy``, ``losses``, ``lookahead_losses`` and ``bounds``.
        """
        r = (1 - self.discount) * action_rewards(self.ground, rewards)
        found = self._ground.plan(self.assignment, rewards=r)
        lifted = found.abstract[self.assignment]
        best = optimal_values(self.ground, self.discount, rewards=r)
        lost, ahead = (
            certified_losses(best, policy_values(self.ground, actions, self.discount, rewards=r)).upper
            for actions in (lifted, found.lookahead)
        )
        return Transfer(found.abstract, lost, ahead, self._bounds(lifted, found.short))

    # --- computed once --------------------------------------------------------------------------------------------

    @lazy
    def _ground(self) -> Ground:
        return Ground.of(self.ground, self.discount)

    @lazy
    def _planned(self) -> "_Planned":
        found = self._ground.plan(self.assignment, np.stack(list(map(dense, self.mdp.transition))))
        r = self._ground.rewards
        lost = (
            certified_losses(self.values, policy_values(self.ground, actions, self.discount, rewards=r))
            for actions in (found.abstract[self.assignment], found.lookahead)
        )
        return _Planned(freeze(found.abstract), freeze(found.lookahead), found.short, *lost)

    @lazy
    def _step_errors(self) -> Floats:
        means = class_means(self.assignment, self.features)
        return step_errors(self.ground, self.mdp, self.assignment, self.discount, Family(self.features, means))

    @lazy
    def _errors(self) -> Floats:
        return optimal_values(self.ground, self.discount, rewards=self._step_errors).upper

    def _bounds(self, policy: Integers, short: float) -> Floats:
        """Upper bounds on e + e_π, (n,), for a policy (n,) that is optimal on the classes up to ``short``."""
        e = policy_values(self.ground, policy, self.discount, rewards=self._step_errors).upper
        return np.asarray(self._errors + e + short)

    @property
    def summary(self) -> Mapping[str, float]:
        """The main numbers by name."""
        names = "n_states", "loss", "start_loss", "lookahead_loss", "lookahead_start_loss", "bound", "family_bound"
        return {name: getattr(self, name) for name in names}

    @property
    def _known(self) -> str:
        """What is known of the partition, in words."""
        words = {GLOBAL: "a global minimum", LOCAL: "a local minimum", GIVEN: "a given assignment"}
        return words.get(self.optimality, f"best of {len(self.candidates)}")

    def __repr__(self) -> str:
        cut = "" if self.complete else ", stopped by the time limit"
        return (
            f"AbstractionResult({self.ground.n_states} states to {self.n_states} by {self.method!r}, "
            f"loss {self.loss:.3g} (with lookahead {self.lookahead_loss:.3g}), {self._known}{cut})"
        )


class _Planned(NamedTuple):
    """The policies and their certified losses."""

    policy: Integers
    lookahead: Integers
    short: float
    losses: Values
    lookahead_losses: Values


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 100


def _method(name: str) -> str:
    """Return the name of a method; older files have "labels" for a given assignment."""
    return "assignment" if name == "labels" else name


def _partition(assignment: Integers) -> Integers:
    """Check that the classes from a file are numbered by first appearance, so that none is empty."""
    if not np.array_equal(assignment, by_first_appearance(assignment)):
        raise InvalidData("array 'assignment' does not number the classes by first appearance; the file is damaged")
    return assignment


def _candidate(row: Any, assignment: Integers) -> Candidate:
    """Return a candidate from its row in a file."""
    kinds = {"method": _is_name, "seed": lambda value: is_count(value, -1), "n_states": is_count}
    found = {k: entry(row, k, kinds.get(k, is_number), "what a search writes") for k in Candidate._fields[:-1]}
    return Candidate(**{**found, "method": _method(found["method"])}, assignment=assignment)
