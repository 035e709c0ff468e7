"""A finite Markov chain: the object that every distance in this package compares.

Letters: ``X = (P, ν0)`` on states ``0 … n-1``.

    P   transition   (n, n)   P[x, x'] = probability to be in x' next, being in x now; rows sum to one
    ν0  initial      (n,)     law of the first state
    r   rewards      (n,)     what an observer sees of a state; the cost "reward" is |r(x) - r(y)|. Or (n, d), vectors:
                              positions, several rewards or propositions, whose cost is ‖r(x) - r(y)‖
        labels       n names  of the states, distinct; a state is otherwise known by its index

    ρ(x)     = (1-γ) Σ_t γ^t Pr(x_t = x)          discounted state occupancy, sums to one
    ν(x, x') = ρ(x) P[x, x']                      discounted transition occupancy, sums to one

A chain is checked once, when it is made, and cannot be changed afterwards (its arrays are read-only), so
solvers trust it without looking again. The kernel is stored as it came: an array stays dense, a scipy.sparse
matrix becomes CSR. Chains pickle, and are compared by identity.

Naming a state. Wherever a state is asked for and the chain has labels, the value is looked up among them
first, and only then taken as an index: with ``labels=("b", "a")``, ``initial="a"`` and ``initial=1`` are the
same start; with ``labels=(7, 0)``, ``initial=0`` is the *second* state. Indices never count from the end.

**Observed transitions**, and the chain they suggest. From m observed steps
``s_k → s'_k`` with weights ``w_k`` (one each, unless given) the empirical chain is

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
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from diffbisim.checks import (
    Floats,
    Integers,
    Matrix,
    check_count,
    check_discount,
    finite_numbers,
    freeze,
    start_distribution,
    state_rewards,
    stochastic_matrix,
)
from diffbisim.counting import (
    Pairs,
    by_index_of,
    by_step,
    check_weights,
    drop_unseen,
    empirical_kernel,
    encode_column,
    encode_pairs,
    encode_paths,
    fill_unseen,
    what_was_done,
)
from diffbisim.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.events import sequences
from diffbisim.explicit import ExplicitModel
from diffbisim.names import (
    Labels,
    distinct_labels,
    entries_and_names,
    find_state,
    is_frame,
    kernel_in_order,
    ordered_names,
)
from diffbisim.recognize import Held, recognized
from diffbisim.stochastic import (
    Classes,
    Successors,
    as_generator,
    communicating_classes,
    discounted_occupancy,
    fewest_steps,
    recurrent_periods,
    stationary_law,
    submatrix,
)

Unseen = Literal["error", "self-loop", "uniform", "drop"]

HUGE = 1e100  # weights above this are scaled down, lest their sums overflow


@dataclass(frozen=True, eq=False, init=False, repr=False)
class MarkovChain:
    """A Markov chain on finitely many states, validated once and read-only.

    Rows may miss one by 1e-8 (float32: 1e-5) and are then divided by their sum. Everything else is refused
    with :class:`~diffbisim.errors.InvalidChain`, which names the row.

    Parameters
    ----------
    transition : (n, n) array, nested list or scipy.sparse matrix; row x is the law of the successor of x. A table that
        names its rows and columns (pandas, xarray) is read by these names, which become the labels
    initial : a state (label or index, see the module's head) or an (n,) distribution; one that names its states (a
        mapping, a Series) goes by name and may leave out those of probability zero
    rewards : (n,) numbers, or (n, d) where an observer sees several of a state; a mapping or Series goes by label
        (index, without labels) and names every state
    labels : n distinct hashables, in order; no missing values (None, NaN)

    Examples
    --------
    >>> MarkovChain([[0.9, 0.1], [0.5, 0.5]], rewards=[0.0, 1.0])
    MarkovChain(2 states, 4 transitions, start 0, rewards)
    """

    transition: Matrix
    initial: Floats
    rewards: Floats | None
    labels: Labels | None

    def __init__(
        self,
        transition: Any,
        *,
        initial: Any = 0,
        rewards: Any = None,
        labels: Sequence[Hashable] | None = None,
    ) -> None:
        table, names = kernel_in_order(transition, ordered_names(labels, "labels"))
        self._set(transition=stochastic_matrix(table, labels=names))
        self._set(labels=distinct_labels(names, self.n_states))
        self._set(
            initial=self._start(initial), rewards=state_rewards(rewards, self.n_states, self.labels, vectors=True)
        )

    @classmethod
    def from_transitions(
        cls,
        s: Any,
        s_next: Any,
        *,
        weights: Any = None,
        initial: Any = None,
        rewards: Any = None,
        states: Any = None,
        unseen: Unseen = "error",
        sparse: bool | None = None,
    ) -> MarkovChain:
        """The empirical chain of observed transitions ``s[k] → s_next[k]``: ``P[x, x']`` is the share of x'.

        Non-negative integers are state numbers (``n = max + 1``); anything else is a label (sorted if
        possible, else in order of appearance); missing values (None, NaN, NaT, pandas.NA) are refused.
        ``states`` fixes the state space: a list of labels, or n. ``unseen`` decides on states without an
        outgoing transition: "error", "self-loop", "uniform" or "drop" (remove them, and what then has no way
        out; labels keep the numbers). ``initial`` defaults to the first state seen, ``s[0]``: a guess, so
        name the start where it matters. ``sparse=None`` means CSR if n > 64 and under a quarter of the
        entries are positive.

        Pairs go by position. Only a pandas Series ``s_next`` with the index of ``s`` in another order, and
        ``weights`` as a Series, go by index.
        """
        data = Transitions.from_pairs(s, s_next, weights=weights, states=states)
        return data.chain(initial=initial, rewards=rewards, unseen=unseen, sparse=sparse)

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Iterable[Any],
        *,
        weights: Any = None,
        initial: Any = None,
        rewards: Any = None,
        states: Any = None,
        unseen: Unseen = "error",
        sparse: bool | None = None,
    ) -> MarkovChain:
        """The empirical chain of state sequences; see :meth:`from_transitions`. One weight per trajectory.

        ``initial`` defaults to the (weighted) law of the first states. A trajectory of one state says only
        where it starts.
        """
        data = Transitions.from_trajectories(trajectories, weights=weights, states=states)
        return data.chain(initial=initial, rewards=rewards, unseen=unseen, sparse=sparse)

    @classmethod
    def of(
        cls,
        value: Any,
        *,
        initial: Any = None,
        rewards: Any = None,
        labels: Sequence[Hashable] | None = None,
        unseen: Unseen | Literal["repeat"] = "error",
        lag: int | None = None,
    ) -> MarkovChain:
        """The chain that an object of another library holds: :func:`diffbisim.as_chain` says which are known.

        Examples
        --------
        >>> MarkovChain.of({("home", "work"): 7, ("home", "home"): 3, ("work", "home"): 1}).transition
        array([[0.3, 0.7],
               [1. , 0. ]])
        """
        if isinstance(value, Transitions) or lag is not None:
            paths = [value] if getattr(value, "ndim", 2) == 1 else value  # deeptime takes one trajectory bare, too
            data = value if isinstance(value, Transitions) else Transitions.from_trajectories(paths, lag=lag)
            return data.chain(initial=initial, rewards=rewards, unseen=unseen)  # type: ignore[arg-type]
        found = value if isinstance(value, (MarkovChain, Held)) else recognized(value, rewards, labels)
        if isinstance(found, MarkovChain):
            parts = {name: getattr(found, name) for name in ("transition", "initial", "rewards", "labels")}
        elif isinstance(found, ExplicitModel):
            if not found.is_chain:
                raise InvalidChain(f"{found.name} holds an MDP (states have several choices); make it with MDP.of")
            parts = found.arguments(rewards, unseen)
            rewards = None
        elif found is None:
            raise InvalidChain(
                f"a {type(value).__name__} is not known to hold a chain; give a square table, or what "
                "diffbisim.as_chain lists"
            )
        elif found.weights:
            return _of_weights(found, initial, unseen, labels)
        else:
            rewards, parts = (
                found.rewards,
                {"transition": found.table, "initial": found.initial, "labels": found.labels},
            )
        given = {"initial": initial, "rewards": rewards, "labels": labels}
        parts |= {name: part for name, part in given.items() if part is not None}
        return cls(**{name: part for name, part in parts.items() if part is not None})

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def n_states(self) -> int:
        return int(self.transition.shape[0])

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.transition, np.ndarray)

    @cached_property
    def n_transitions(self) -> int:
        """Number of positive entries of the kernel."""
        matrix = self.transition
        return int(np.count_nonzero(matrix) if isinstance(matrix, np.ndarray) else matrix.nnz)

    @cached_property
    def successors(self) -> Successors:
        """The positive entries by row, for dense chains too; built when first asked for."""
        return Successors.of(self.transition)

    @cached_property
    def _numbers(self) -> dict[Hashable, int]:
        return {label: k for k, label in enumerate(self.labels or ())}

    def index(self, label: Hashable) -> int:
        """The index of a state given by its label, or by its index (label first)."""
        found = find_state(label, self.n_states, self._numbers)
        if found is None:
            known = "a label or an index" if self.labels else "an index"
            raise InvalidChain(f"{label!r} is no state: give {known} from 0 to {self.n_states - 1}")
        return found

    def label(self, i: int) -> Hashable:
        """The label of state i; i itself when the chain has no labels."""
        if not (isinstance(i, (int, np.integer)) and 0 <= i < self.n_states):
            raise InvalidChain(f"{i!r} is no state: indices run from 0 to {self.n_states - 1}")
        return i if self.labels is None else self.labels[i]

    def __repr__(self) -> str:
        n, m = self.n_states, self.n_transitions
        support = np.flatnonzero(self.initial)
        start = repr(self.label(int(support[0]))) if support.size == 1 else f"in {support.size} states"
        extras = [name for name in ("rewards", "labels") if getattr(self, name) is not None]
        counts = f"{n} state{'s' * (n != 1)}, {m} transition{'s' * (m != 1)}"
        return f"MarkovChain({', '.join([counts, f'start {start}', *extras])})"

    # --- its structure -------------------------------------------------------------------------------------

    @cached_property
    def _classes(self) -> Classes:
        return communicating_classes(self.successors)

    @cached_property
    def communicating_classes(self) -> tuple[Integers, ...]:
        """The classes of states that can reach each other, each ascending, in the order of their smallest states."""
        return self._classes.members(np.arange(self._classes.recurrent.size))

    @cached_property
    def recurrent_classes(self) -> tuple[Integers, ...]:
        """The communicating classes that are never left; at least one. All other states are transient."""
        return self._classes.members(np.flatnonzero(self._classes.recurrent))

    @property
    def is_irreducible(self) -> bool:
        """Whether every state can reach every other: one communicating class."""
        return self._classes.recurrent.size == 1

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """Of each recurrent class, the greatest common divisor of the lengths of its cycles."""
        return tuple(recurrent_periods(self.successors, self._classes).tolist())

    @property
    def period(self) -> int:
        """The least common multiple of the ``periods``: how many steps until all recurrent classes are where they were.

        Of an irreducible chain the greatest common divisor of the lengths of its cycles.
        """
        return lcm(*self.periods)

    @property
    def is_aperiodic(self) -> bool:
        """Whether ``period`` is one, so that the law of the state converges from every start."""
        return self.period == 1

    @cached_property
    def stationary_distributions(self) -> Floats:
        """The laws π = π P that live on one recurrent class, (n_recurrent, n): all others are mixtures of these."""
        laws = np.zeros((len(self.recurrent_classes), self.n_states))
        for law, states in zip(laws, self.recurrent_classes, strict=True):
            law[states] = stationary_law(submatrix(self.transition, states))
        return freeze(laws)

    @property
    def stationary_distribution(self) -> Floats:
        """The law π = π P, (n,), of a chain with one recurrent class: the share of time spent in each state."""
        if (n := len(self.recurrent_classes)) != 1:
            raise InvalidChain(
                f"the chain has {n} recurrent classes, so its stationary distribution is not unique; "
                "stationary_distributions has one row for each"
            )
        return self.stationary_distributions[0]  # type: ignore[no-any-return]

    @property
    def absorbing_states(self) -> Integers:
        """The states that are never left, ascending: the recurrent classes of one state."""
        return np.array([states[0] for states in self.recurrent_classes if states.size == 1], dtype=np.int64)

    @property
    def reachable_states(self) -> Integers:
        """The states that can be reached from the start, ascending."""
        return np.flatnonzero(np.isfinite(fewest_steps(self.successors.matrix, np.flatnonzero(self.initial))))

    # --- what it does --------------------------------------------------------------------------------------

    def occupancy(self, discount: float) -> Floats:
        """Normalized discounted state occupancy ``ρ``, (n,): solves ``(I - γ P^T) ρ = (1-γ) ν0``."""
        return discounted_occupancy(self.transition, self.initial, check_discount(discount))

    def transition_occupancy(self, discount: float) -> Matrix:
        """Discounted transition occupancy ``ν(x, x') = ρ(x) P[x, x']``, (n, n), stored like the kernel."""
        rho, matrix = self.occupancy(discount), self.transition
        if isinstance(matrix, np.ndarray):
            return rho[:, None] * matrix
        data = np.repeat(rho, np.diff(matrix.indptr)) * matrix.data
        return sp.csr_array((data, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)

    def sample(self, n_steps: int, rng: int | np.random.Generator) -> Integers:
        """A path of ``n_steps + 1`` state indices, the first drawn from ``initial``."""
        generator = as_generator(rng)
        uniforms = generator.random(check_count(n_steps, "n_steps")).tolist()
        start = int(generator.choice(self.n_states, p=self.initial))
        path = accumulate(uniforms, self.successors.step(), initial=start)
        return np.fromiter(path, dtype=np.int64, count=n_steps + 1)

    def sample_transitions(self, n: int, discount: float, rng: int | np.random.Generator) -> tuple[Integers, Integers]:
        """``n`` independent draws from the discounted transition occupancy: ``s ~ ρ``, ``s_next ~ P[s]``."""
        generator = as_generator(rng)
        s = generator.choice(self.n_states, size=check_count(n, "n"), p=self.occupancy(discount))
        return s, self.successors.draw(s, generator.random(n))

    def with_initial(self, initial: Any) -> MarkovChain:
        """The same chain with another start; kernel and caches are shared."""
        return self._replaced(initial=self._start(initial))

    def permuted(self, order: Sequence[int] | Integers) -> MarkovChain:
        """The same chain with its states renumbered: new state i is old state ``order[i]``."""
        new = np.asarray(order)
        if new.shape != (self.n_states,) or not np.array_equal(np.sort(new), np.arange(self.n_states)):
            raise InvalidArgument(f"order must hold each of 0 … {self.n_states - 1} once")
        rows = self.transition[new]
        matrix = np.ascontiguousarray(rows[:, new]) if isinstance(rows, np.ndarray) else sp.csr_array(rows[:, new])
        if sp.issparse(matrix):
            matrix.sort_indices()
        rewards = None if self.rewards is None else freeze(self.rewards[new])
        labels = None if self.labels is None else tuple(self.labels[k] for k in new)
        return self._trusted(freeze(matrix), freeze(self.initial[new]), rewards, labels)

    # --- how it is kept ------------------------------------------------------------------------------------

    def _set(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    @classmethod
    def _trusted(cls, transition: Matrix, initial: Floats, rewards: Any, labels: Labels | None) -> MarkovChain:
        """A chain of parts that are known to be right, and read-only."""
        chain = object.__new__(MarkovChain)
        chain._set(transition=transition, initial=initial, rewards=rewards, labels=labels)
        return chain

    def _replaced(self, **fields: Any) -> MarkovChain:
        chain = object.__new__(MarkovChain)
        chain._set(**{**self.__dict__, **fields})
        return chain

    def _start(self, initial: Any) -> Floats:
        return start_distribution(initial, self.n_states, self._numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("transition", "initial", "rewards", "labels")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("transition", "initial", "rewards"):
            if state[name] is not None:
                freeze(state[name])
        self._set(**state)


def _of_weights(found: Held, initial: Any, unseen: Any, labels: Any) -> MarkovChain:
    """The chain whose rows are the shares of weights, such as counts."""
    table = sp.coo_array(sp.csr_array(found.table, dtype=np.float64))
    n = int(table.shape[0])
    if table.shape != (n, n):
        raise InvalidChain(f"transition has shape {table.shape}; it must be square, (n_states, n_states)")
    names = distinct_labels(ordered_names(found.labels if labels is None else labels, "labels"), n)
    w = check_weights(table.data, table.nnz, "transition")
    there = table.data > 0.0
    i, j = (np.asarray(axis[there], dtype=np.int64) for axis in table.coords)
    if i.size == 0:
        raise InvalidData("there is not one transition of positive weight")
    data = Transitions(i, j, n, names, None if w is None else w[there])
    start = found.initial if initial is None else initial
    return data.chain(initial=start, rewards=found.rewards, unseen=unseen)


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
    lag: int = 1  # how far a step goes; longer steps of an episode overlap, so they are not independent

    @classmethod
    def from_pairs(
        cls, s: Any, s_next: Any, *, weights: Any = None, states: Any = None, actions: Any = None, rewards: Any = None
    ) -> Transitions:
        """Transitions ``s[k] → s_next[k]``, each with a weight (default one); of an MDP: with its action and reward.

        They go by position. A pandas Series ``s_next`` whose index is that of ``s`` in another order goes by index, and
        so do ``weights``, whose index must then be that of ``s``.
        """
        encoded = encode_pairs(s, by_index_of(s_next, s, "s_next", "s"), states)
        steps = encoded.codes.reshape(-1, 2)
        w = check_weights(by_index_of(weights, s, "weights", "s"), len(steps), "transition")
        acted = what_was_done(actions, rewards, len(steps))
        return cls(steps[:, 0].copy(), steps[:, 1].copy(), encoded.n_states, encoded.labels, w, **acted)

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[Any], *, weights: Any = None, states: Any = None, actions: Any = None,
        rewards: Any = None, lag: int | None = None,
    ) -> Transitions:  # fmt: skip
        """All steps of several state sequences; the starts are kept, and each sequence is an episode.

        ``actions`` and ``rewards``, of an MDP: a sequence for each, with an entry for every step. ``lag``: a step is
        from ``x[t]`` to ``x[t + lag]``, for every t (deeptime's "sliding" counts); a chain of these has this lag.
        """
        far = 1 if lag is None else check_count(lag, "lag")
        if far == 0 or (far > 1 and not (actions is None and rewards is None)):
            raise InvalidArgument(f"lag is {lag}; give at least 1, and no actions or rewards for more than 1")
        if not isinstance(trajectories, Iterable):
            raise InvalidData(f"trajectories is {trajectories!r}; pass a list of state sequences, such as [[0, 1, 2]]")
        if is_frame(trajectories) or isinstance(trajectories, (Mapping, set, frozenset)):
            raise InvalidData(
                f"trajectories is a {type(trajectories).__name__}; pass a list with one sequence of states per "
                "trajectory, such as list(trajectories.values()) of a mapping, or [group for _, group in "
                'table.groupby("episode")["state"]]'
            )
        weights = by_index_of(weights, trajectories, "weights", "trajectories")
        encoded, lengths = encode_paths(list(trajectories), states)
        codes, ends = encoded.codes, np.cumsum(lengths)
        steps = np.maximum(lengths - far, 0)  # the last states of a path have no successor
        episodes = np.repeat(np.arange(lengths.size), steps)
        here = np.arange(episodes.size) + np.repeat(ends - lengths - np.cumsum(steps) + steps, steps)
        w = check_weights(weights, lengths.size, "trajectory")
        return cls(
            states=codes[here],
            next_states=codes[here + far],
            n_states=encoded.n_states,
            labels=encoded.labels,
            weights=None if w is None else w[episodes],
            episodes=episodes,
            starts=codes[ends - lengths],
            start_weights=w,
            lag=far,
            **what_was_done(by_step(actions, lengths, "actions"), by_step(rewards, lengths, "rewards"), here.size),
        )

    @classmethod
    def from_frame(
        cls, table: Any, *, id: Any = None, time: Any = None, state: Any = "state", gap: Any = None,
        group: Any = None, missing: Literal["error", "split", "drop"] = "error", states: Any = None,
    ) -> Any:  # fmt: skip
        """The sequences in a table of events, whose rows stand in any order: `events` has the details.

        Parameters
        ----------
        table : a DataFrame of pandas (names of its index count as columns) or polars, a Table of pyarrow, or a mapping
            from names to columns
        id, time, state : the columns that say who, when and what; without ``id`` the table is one sequence, without
            ``time`` rows follow each other as they stand
        gap : a longer pause begins a new sequence: a number, in seconds where times are dates; a timedelta; "30min"
        group : a column of groups; the answer is then a dictionary with the transitions of each, on the same states
        missing : what to do about missing values: "error", "split" or "drop"
        states : the state space, as for `from_pairs`

        Returns
        -------
        Transitions, or {group: Transitions}; episodes are in the order in which their ids first appear, then by time

        Examples
        --------
        >>> clicks = {"user": [1, 2, 1, 1], "at": [3, 0, 1, 2], "page": ["buy", "home", "home", "cart"]}
        >>> Transitions.from_frame(clicks, id="user", time="at", state="page").chain(unseen="self-loop").labels
        ('buy', 'cart', 'home')
        """
        found = sequences(table, id=id, time=time, state=state, group=group, gap=gap, missing=missing)
        codes, n, labels = encode_column(*found.states, states)
        ends = np.append(found.begins[1:], codes.size) - 1
        inner = np.ones(codes.size, dtype=bool)
        inner[ends] = False  # the last of a sequence has no successor
        here = np.flatnonzero(inner)
        episodes = np.repeat(np.arange(ends.size), ends - found.begins)
        data = cls(codes[here], codes[here + 1], n, labels, episodes=episodes, starts=codes[found.begins])
        if found.groups is None:
            return data
        seen = np.unique(found.groups.codes).tolist()
        return {found.groups.names[g]: data.take(np.flatnonzero(found.groups.codes == g)) for g in seen}

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
            lag=self.lag,
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
            P = empirical_kernel(fill_unseen(self._pairs(), self.n_states, unseen, self.name), self.n_states, sparse)
            start = self._default_start(None) if initial is None else initial
            return MarkovChain(P, initial=start, rewards=rewards, labels=self.labels)
        pairs, kept = drop_unseen(self._pairs(), self.n_states)
        start = self._default_start(kept) if initial is None else self._kept_start(initial, kept)
        return MarkovChain(
            empirical_kernel(pairs, kept.size, sparse),
            initial=start,
            rewards=self._kept_rewards(rewards, kept),
            labels=[self.name(int(k)) for k in kept],
        )

    def name(self, k: int) -> Hashable:
        """The label of state k, or k itself."""
        return k if self.labels is None else self.labels[k]

    def _pairs(self) -> Pairs:
        """Sources, targets and weights, without those of weight zero."""
        if self.weights is None:
            return Pairs(self.states, self.next_states, np.ones(len(self)))
        positive = self.weights > 0.0
        i, j, w = self.states[positive], self.next_states[positive], self.weights[positive]
        lost = np.setdiff1d(self.states, i)
        if lost.size:
            raise InvalidData(
                f"weights: every transition out of state {self.name(int(lost[0]))!r} has weight 0; "
                "give one a positive weight or remove these transitions"
            )
        return Pairs(i, j, w / w.max() if w.max(initial=0.0) > HUGE else w)

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
        values, axes = entries_and_names(rewards)
        if axes and axes[0] is not None:
            names = {self.name(int(k)) for k in kept}
            return {name: value for name, value in zip(axes[0], values, strict=True) if name in names}
        return finite_numbers(rewards, (self.n_states,), name="rewards", per="state")[kept]
