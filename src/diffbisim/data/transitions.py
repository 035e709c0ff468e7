"""Observed transitions, and the chain they suggest.

From m observed steps ``s_k → s'_k`` with weights ``w_k`` (one each, unless given) the empirical chain is

    P[x, x'] = Σ_k w_k 1{s_k = x, s'_k = x'} / Σ_k w_k 1{s_k = x},

the maximum-likelihood estimate. It says nothing about a state that was never left: one never seen (a gap in
the numbers), or seen only as the last of an episode. Such *unseen* states must be decided on, not guessed:

    "error"       refuse, and name them (the default)
    "self-loop"   absorbing: right for terminal states
    "uniform"     anything can follow
    "drop"        leave them out, then those that led only to them, until every state left has a way on;
                  transitions into them are forgotten and the rows renormalized

**The start.** Episodes say where they begin, and the chain starts with the law of their first states. Pairs say
nothing of it; the chain then starts in the first state seen, the source of the first transition (of positive weight,
and not dropped). That is a guess: give ``initial`` where the start matters. Resampling does not change it.

What "drop" keeps are the states from which a cycle can be reached (those have an infinite path), found by
strongly connected components instead of by repeated peeling.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain as concatenated
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Unseen
from diffbisim.checks import (
    Floats,
    Integers,
    Labels,
    axis_names,
    find_state,
    finite_numbers,
    is_frame,
    labeled,
    places,
    start_distribution,
    unmasked,
)
from diffbisim.data.counting import Pairs, drop, fill, kernel
from diffbisim.data.states import column, encode, entries
from diffbisim.errors import InvalidArgument, InvalidData
from diffbisim.mdp import MDP

HUGE = 1e100  # weights above this are scaled down, lest their sums overflow


@dataclass(frozen=True, eq=False)
class Transitions:
    """m observed transitions on a fixed state space; make it with ``from_pairs`` or ``from_trajectories``.

    Without ``episodes`` every transition counts as an episode of its own. Without ``starts`` the chain starts in
    ``first``, the first state seen.
    """

    states: Integers  # (m,) in 0 … n_states-1
    next_states: Integers  # (m,)
    n_states: int
    labels: Labels | None = None
    weights: Floats | None = None  # (m,)
    episodes: Integers | None = None  # (m,), ascending, in 0 … n_episodes-1
    starts: Integers | None = None  # (n_episodes,) first states
    start_weights: Floats | None = None  # (n_episodes,)
    first: int | None = None  # where to start without ``starts``; None: the first state in the data
    actions: Integers | None = None  # (m,) in 0 … n_actions-1: what was done, where that is known
    n_actions: int | None = None
    action_labels: Labels | None = None
    rewards: Floats | None = None  # (m,) what it gave, where that is known

    @classmethod
    def from_pairs(
        cls, s: Any, s_next: Any, *, weights: Any = None, states: Any = None, actions: Any = None, rewards: Any = None
    ) -> Transitions:
        """Transitions ``s[k] → s_next[k]``, each with a weight (default one); of an MDP: with its action and reward.

        They go by position. A pandas Series ``s_next`` whose index is that of ``s`` in another order goes by index, and
        so do ``weights``, whose index must then be that of ``s``.
        """
        s_next, weights = _matched(s_next, s, "s_next", "s"), _matched(weights, s, "weights", "s")
        first, second = column(s, "s"), column(s_next, "s_next")
        m = len(first)
        if m != len(second):
            raise InvalidData(f"s has {m} entries and s_next {len(second)}; they must go in pairs")
        if m == 0:
            raise InvalidData("s is empty; there must be at least one transition")
        encoded = encode(_interleaved(first, second), states, lambda k: f"{('s', 's_next')[k % 2]}[{k // 2}]")
        a, b = encoded.codes[0::2].copy(), encoded.codes[1::2].copy()
        w = _weights(weights, m, "transition")
        return cls(a, b, encoded.n_states, encoded.labels, w, **_acted(actions, rewards, m))

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[Any], *, weights: Any = None, states: Any = None, actions: Any = None,
        rewards: Any = None,
    ) -> Transitions:  # fmt: skip
        """All steps of several state sequences; the starts are kept, and each sequence is an episode.

        ``actions`` and ``rewards``, of an MDP: a sequence for each, with an entry for every step.
        """
        if not isinstance(trajectories, Iterable):
            raise InvalidData(f"trajectories is {trajectories!r}; pass a list of state sequences, such as [[0, 1, 2]]")
        if is_frame(trajectories) or isinstance(trajectories, (Mapping, set, frozenset)):
            raise InvalidData(
                f"trajectories is a {type(trajectories).__name__}; pass a list with one sequence of states per "
                "trajectory, such as list(trajectories.values()) of a mapping, or [group for _, group in "
                'table.groupby("episode")["state"]]'
            )
        weights = _matched(weights, trajectories, "weights", "trajectories")
        paths = [_path(path) for path in trajectories]
        lengths = _lengths(paths)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        encoded = encode(_flat(paths), states, lambda k: _step(k, starts))
        inner = np.ones(starts[-1], dtype=bool)
        inner[starts[1:] - 1] = False  # the last state of a path has no successor
        here = np.flatnonzero(inner)
        w = _weights(weights, len(paths), "trajectory")
        episodes = np.repeat(np.arange(len(paths)), lengths - 1)
        codes = encoded.codes
        return cls(
            states=codes[here],
            next_states=codes[here + 1],
            n_states=encoded.n_states,
            labels=encoded.labels,
            weights=None if w is None else w[episodes],
            episodes=episodes,
            starts=codes[starts[:-1]],
            start_weights=w,
            **_acted(_joined(actions, lengths, "actions"), _joined(rewards, lengths, "rewards"), here.size),
        )

    def __len__(self) -> int:
        return len(self.states)

    @property
    def n_episodes(self) -> int:
        return len(self) if self.starts is None else len(self.starts)

    def take(self, episodes: Any) -> Transitions:
        """The chosen episodes, in this order and as often as named: one bootstrap replicate, or a split."""
        chosen = np.asarray(episodes, dtype=np.int64)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.min() < 0 or chosen.max() >= self.n_episodes:
            raise InvalidData(f"episodes must be numbers from 0 to {self.n_episodes - 1}, at least one")
        where, renumbered = chosen, None
        if self.episodes is not None:
            begin = np.searchsorted(self.episodes, chosen, side="left")
            lengths = np.searchsorted(self.episodes, chosen, side="right") - begin
            renumbered = np.repeat(np.arange(chosen.size), lengths)
            where = np.arange(renumbered.size) + np.repeat(begin - np.cumsum(lengths) + lengths, lengths)
        return Transitions(
            states=self.states[where],
            next_states=self.next_states[where],
            n_states=self.n_states,
            labels=self.labels,
            weights=None if self.weights is None else self.weights[where],
            episodes=renumbered,
            starts=None if self.starts is None else self.starts[chosen],
            start_weights=None if self.start_weights is None else self.start_weights[chosen],
            first=self.first if self.first is not None or self.starts is not None else int(self.states[0]),
            actions=None if self.actions is None else self.actions[where],
            n_actions=self.n_actions,
            action_labels=self.action_labels,
            rewards=None if self.rewards is None else self.rewards[where],
        )

    def chain(
        self,
        *,
        initial: Any = None,
        rewards: Any = None,
        unseen: Unseen = "error",
        sparse: bool | None = None,
    ) -> MarkovChain:
        """The empirical chain; ``initial`` and ``rewards`` are over the states before any is dropped.

        Without ``initial`` it starts as the episodes do; without episodes, in the first state seen.
        """
        if unseen not in ("error", "self-loop", "uniform", "drop"):
            raise InvalidArgument(f'unseen is {unseen!r}; use "error", "self-loop", "uniform" or "drop"')
        if unseen != "drop":
            P = kernel(fill(self._pairs(), self.n_states, unseen, self.name), self.n_states, sparse)
            start = self._default_start(None) if initial is None else initial
            return MarkovChain(P, initial=start, rewards=rewards, labels=self.labels)
        pairs, kept = drop(self._pairs(), self.n_states)
        start = self._default_start(kept) if initial is None else self._kept_start(initial, kept)
        return MarkovChain(
            kernel(pairs, kept.size, sparse),
            initial=start,
            rewards=self._kept_rewards(rewards, kept),
            labels=[self.name(int(k)) for k in kept],
        )

    def mdp(self, *, initial: Any = None, rewards: Any = None, unseen: str = "error") -> MDP:
        """The empirical MDP: the empirical chain of each action, and the mean reward seen of each state and action.

        ``rewards``, (n,) or (n, n_actions), take the place of those seen. ``unseen`` is about actions that were never
        taken in a state that was left: "error" refuses, "self-loop" lets them stay, with the lowest reward seen, so
        that no plan relies on them, "uniform" lets them lead anywhere, with the mean reward. States that were never
        left are absorbing under both, without reward.
        """
        if self.actions is None or self.n_actions is None:
            raise InvalidData("these transitions have no actions; give Transitions.from_pairs(..., actions=a)")
        if unseen not in ("error", "self-loop", "uniform"):
            raise InvalidArgument(f'unseen is {unseen!r}; for an MDP use "error", "self-loop" or "uniform"')
        if rewards is None and self.rewards is None:
            raise InvalidData("nothing is known of rewards; give from_pairs(..., rewards=r), or rewards= of the states")
        n, k = self.n_states, self.n_actions
        i, j, w = self._pairs()
        keep = slice(None) if self.weights is None else self.weights > 0.0
        rows = self.actions[keep] * n + i  # a n + s
        seen = np.bincount(rows, weights=w, minlength=n * k).reshape(k, n) > 0.0
        left = seen.any(axis=0)
        never = np.argwhere(~seen & left)
        if unseen == "error" and (never.size or not left.all()):
            raise InvalidData(self._never(never, left))
        table = self._mean_rewards(rows, w, keep, seen, unseen) if rewards is None else rewards
        kernels = []
        for a in range(k):
            own = rows // n == a
            gaps = np.flatnonzero(~seen[a] & (~left | (unseen == "self-loop")))
            step = np.append(i[own], gaps), np.append(j[own], gaps), np.append(w[own], np.ones(gaps.size))
            kernels.append(kernel(fill(step, n, "uniform", self.name), n, None))
        start = self._default_start(None) if initial is None else initial
        return MDP(kernels, initial=start, rewards=table, labels=self.labels, actions=self.action_labels)

    def _never(self, never: Integers, left: Any) -> str:
        if never.size:
            a, s = (int(k) for k in never[0])
            action = a if self.action_labels is None else self.action_labels[a]
            what = f"action {action!r} was never taken in state {self.name(s)!r} (of {len(never)} such pairs)"
        else:
            what = f"state {self.name(int(np.argmin(left)))!r} was never left"
        return f'{what}; pass unseen="self-loop" (it stays there, no plan relies on it) or "uniform"'

    def _mean_rewards(self, rows: Integers, w: Floats, keep: Any, seen: Any, unseen: str) -> Floats:
        """Of each state and action, (n, n_actions); see :meth:`mdp` for those never seen."""
        assert self.rewards is not None
        r = self.rewards[keep]
        sums, total = (np.bincount(rows, weights=part, minlength=seen.size).reshape(seen.shape) for part in (w * r, w))
        guess = float(r.min()) if unseen == "self-loop" else float(np.average(r, weights=w))
        table = np.where(seen, sums / np.where(seen, total, 1.0), guess)
        return np.asarray(np.where(seen.any(axis=0), table, 0.0).T, dtype=np.float64)

    def name(self, k: int) -> Hashable:
        """The label of state k, or k itself."""
        return k if self.labels is None else self.labels[k]

    def _pairs(self) -> Pairs:
        """Sources, targets and weights, without those of weight zero."""
        if self.weights is None:
            return self.states, self.next_states, np.ones(len(self))
        positive = self.weights > 0.0
        i, j, w = self.states[positive], self.next_states[positive], self.weights[positive]
        lost = np.setdiff1d(self.states, i)
        if lost.size:
            raise InvalidData(
                f"weights: every transition out of state {self.name(int(lost[0]))!r} has weight 0; "
                "give one a positive weight or remove these transitions"
            )
        return i, j, w / w.max() if w.max(initial=0.0) > HUGE else w

    def _default_start(self, kept: Integers | None = None) -> Floats:
        """The law of the first states of the episodes; without episodes, the first state seen (and kept)."""
        n = self.n_states if kept is None else kept.size
        at, w = self.starts, self.start_weights
        if at is None:
            seen = self.states if self.weights is None else self.states[self.weights > 0.0]
            seen = seen if self.first is None else np.append(self.first, seen)
            at, w = (seen if kept is None else seen[np.isin(seen, kept)])[:1], None
        w = np.ones(at.size) if w is None else w
        if kept is not None:
            stays = np.isin(at, kept)
            at, w = np.searchsorted(kept, at[stays]), w[stays]
        if not w.max(initial=0.0) > 0.0:
            raise InvalidData("weights are all zero, so nothing is known of the start; pass initial=")
        w = w / w.max()  # so that the sum cannot overflow
        return np.asarray(np.bincount(at, w / w.sum(), minlength=n), dtype=np.float64)

    def _kept_start(self, initial: Any, kept: Integers) -> Floats:
        """A start given over all states, over those that are kept; it must not need the others."""
        numbers = {label: k for k, label in enumerate(self.labels or ())}
        state = find_state(initial, self.n_states, numbers)
        if state is not None:
            support, mass = np.array([state]), np.asarray(kept == state, dtype=np.float64)
        else:
            vector = start_distribution(initial, self.n_states, numbers)
            support, mass = np.flatnonzero(vector), vector[kept]
        gone = np.setdiff1d(support, kept)
        if gone.size:
            raise InvalidData(
                f"initial: state {self.name(int(gone[0]))!r} was dropped, it has no infinite path; "
                'start elsewhere or use unseen="self-loop"'
            )
        return mass

    def _kept_rewards(self, rewards: Any, kept: Integers) -> Any:
        """Rewards given over all states, over those that are kept."""
        if rewards is None:
            return None
        values, axes = labeled(rewards)
        if axes and axes[0] is not None:
            names = {self.name(int(k)) for k in kept}
            return {name: value for name, value in zip(axes[0], values, strict=True) if name in names}
        return finite_numbers(rewards, (self.n_states,), name="rewards", per="state")[kept]


def _acted(actions: Any, rewards: Any, m: int) -> dict[str, Any]:
    """The fields of m transitions that say what was done, coded as states are, and what it gave."""
    known: dict[str, Any] = {}
    if actions is not None:
        given = column(actions, "actions")
        if len(given) != m:
            raise InvalidData(f"actions has {len(given)} entries for {m} transitions; give one each")
        done = encode(given, None, lambda k: f"actions[{k}]")
        known |= {"actions": done.codes, "n_actions": done.n_states, "action_labels": done.labels}
    if rewards is not None:
        known["rewards"] = finite_numbers(rewards, (m,), name="rewards", per="transition")
    return known


def _joined(values: Any, lengths: Integers, name: str) -> Any:
    """Sequences with an entry for every step of the trajectories, one after the other."""
    if values is None:
        return None
    parts = [list(part) for part in values]
    if len(parts) != lengths.size:
        raise InvalidData(f"{name} has {len(parts)} sequences for {lengths.size} trajectories; give one each")
    for k, (part, length) in enumerate(zip(parts, lengths.tolist(), strict=True)):
        if len(part) != length - 1:
            raise InvalidData(f"{name}[{k}] has {len(part)} entries for {length - 1} steps; give one per step")
    return list(concatenated.from_iterable(parts))


def _interleaved(first: Any, second: Any) -> Any:
    """s[0], s_next[0], s[1], … : the order in which states appear."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.stack([first, second], axis=1).ravel()
    first, second = (v.tolist() if isinstance(v, np.ndarray) else v for v in (first, second))
    return list(concatenated.from_iterable(zip(first, second, strict=True)))


def _matched(values: Any, like: Any, name: str, other: str) -> Any:
    """A Series in the order of the index of another one, if it has this index; anything else as it is.

    Successors may have another index than their sources, as in ``x[:-1], x[1:]``; weights may not.
    """
    own, index = axis_names(values), axis_names(like)
    if len(own) != 1 or len(index) != 1 or own == index or len(values) != len(like):
        return values
    mine, theirs = (list(range(len(like))) if names is None else names for names in (own[0], index[0]))
    if set(mine) == set(theirs) and len(set(mine)) == len(mine):
        return getattr(values, "iloc", values)[places(mine, theirs, name)]
    if name == "weights" and own[0] is not None:
        raise InvalidData(f"weights has another index than {other}; give it that of {other}, or pass a bare array")
    return values


def _path(path: Any) -> Any:
    """A trajectory as an array of integers or a sequence."""
    if not (isinstance(path, np.ma.MaskedArray) or hasattr(path, "__array__")):
        return path
    array = np.asanyarray(path)
    return entries(array, path) if array.ndim == 1 else array


def _weights(weights: Any, m: int, per: str) -> Floats | None:
    if weights is None:
        return None
    try:
        w = np.array(unmasked(weights, "weights", InvalidData), dtype=np.float64)
    except InvalidData:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidData(f"weights is not an array of numbers ({error}); give one per {per}") from None
    if w.shape != (m,):
        raise InvalidData(f"weights has shape {w.shape}; expected ({m},), one per {per}")
    bad = ~(np.isfinite(w) & (w >= 0.0))
    if bad.any():
        k = int(bad.argmax())
        raise InvalidData(f"weights[{k}] is {w[k]:g}; weights must be finite and at least 0")
    return w


def _lengths(paths: list[Any]) -> Integers:
    """Numbers of states (k,) of the trajectories, each at least one."""
    if not paths:
        raise InvalidData("trajectories is empty; there must be at least one")
    for k, path in enumerate(paths):
        is_path = path.ndim > 0 if isinstance(path, np.ndarray) else isinstance(path, Sequence)
        if isinstance(path, (str, bytes)) or not is_path:
            raise InvalidData(
                f"trajectories[{k}] = {path!r} is not a sequence of states; "
                "pass a list of trajectories, such as [[0, 1, 2]]"
            )
    lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
    if not lengths.all():
        k = int(np.argmin(lengths))
        raise InvalidData(f"trajectories[{k}] is empty; remove it")
    return lengths


def _flat(paths: list[Any]) -> Any:
    """All states of all trajectories, one after the other, as a column."""
    if all(isinstance(path, np.ndarray) and path.ndim == 1 and path.dtype.kind == "i" for path in paths):
        return column(np.concatenate(paths), "trajectories")
    lists = (path.tolist() if isinstance(path, np.ndarray) else path for path in paths)
    return column(list(concatenated.from_iterable(lists)), "trajectories")


def _step(k: int, starts: Integers) -> str:
    episode = int(np.searchsorted(starts, k, side="right")) - 1
    return f"trajectories[{episode}][{k - int(starts[episode])}]"
