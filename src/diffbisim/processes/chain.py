"""Finite Markov chains, and observed transitions from which they are estimated.

A chain ``X = (P, ν0)`` on the states ``0 … n-1`` has

    P   transition   (n, n)    P[x, x'] = probability of moving from x to x'; rows sum to one
    ν0  initial      (n,)      distribution of the first state
    r   rewards      (n,)      what an observer sees in a state; the cost "reward" is |r(x) - r(y)|. Vectors (n, d)
                               such as positions or several rewards have the cost ‖r(x) - r(y)‖
        names        n names   distinct; without names a state is identified by its index
    τ   lag          number    time that one step takes, in steps of the recording; None if it is not known
        hidden       bool      whether the states are those of a hidden Markov model, whose emissions are not included

and two occupancies, both of which sum to one:

    ρ(x)     = (1-γ) Σ_t γ^t Pr(x_t = x)          discounted state occupancy
    ν(x, x') = ρ(x) P[x, x']                      discounted transition occupancy

A chain is validated when it is constructed and is immutable afterwards (its arrays are read-only), so solvers need no
further checks. The kernel keeps its storage: an array stays dense, a scipy.sparse matrix becomes CSR. Chains can be
pickled and compare by identity.

**Identifying a state.** If the chain has names, a state argument is first looked up among the names and then
interpreted as an index: with ``names=("b", "a")``, ``initial="a"`` and ``initial=1`` are the same state; with
``names=(7, 0)``, ``initial=0`` is the *second* state. Negative indices are not allowed.

**Estimation.** From m observed transitions ``s_k → s'_k`` with weights ``w_k`` (default 1) the maximum-likelihood
estimate is

    P[x, x'] = Σ_k w_k 1{s_k = x, s'_k = x'} / Σ_k w_k 1{s_k = x}.

It is undefined for a state without outgoing transitions: one that never occurs (a gap in the numbering) or occurs only
at the end of episodes. ``unseen`` says how to treat such states:

    "error"       raise an error that names them (the default)
    "self-loop"   make them absorbing, which is right for terminal states
    "uniform"     let any state follow
    "drop"        remove them, then states that led only to removed ones, until every remaining state has a
                  successor; transitions into removed states are discarded and rows renormalized

The states that "drop" keeps are those from which a cycle can be reached; they are found through strongly connected
components.

**Initial distribution.** With episodes, it is the distribution of their first states. Bare pairs carry no such
information, and the chain starts in the source of the first transition (of positive weight, and not dropped). This is
a guess: pass ``initial`` where it matters. Resampling does not change it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import (
    Floats,
    Integers,
    Matrix,
    check_choice,
    check_count,
    check_discount,
    check_flag,
    check_lag,
    finite_numbers,
    freeze,
    start_distribution,
    state_rewards,
    stochastic_matrix,
)
from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData, warn_of_input
from diffbisim.common.names import (
    Names,
    distinct_names,
    entries_and_names,
    find_state,
    is_frame,
    kernel_in_order,
    ordered_names,
)
from diffbisim.io import limits
from diffbisim.processes.counting import (
    WeightedPairs,
    by_index_of,
    check_weights,
    concatenate_steps,
    drop_unseen,
    empirical_kernel,
    encode_actions,
    encode_column,
    encode_pairs,
    encode_paths,
    fill_unseen,
)
from diffbisim.processes.events import END, EVENT, Coded, coded, report_intervals, resampled, sequences
from diffbisim.processes.explicit import ExplicitModel
from diffbisim.processes.recognize import ChainParts, recognize
from diffbisim.processes.stochastic import (
    CommunicatingClasses,
    Successors,
    as_generator,
    communicating_classes,
    discounted_occupancy,
    fewest_steps,
    recurrent_periods,
    stationary_law,
    stochastic_power,
    submatrix,
)

Unseen = Literal["error", "self-loop", "uniform", "drop"]
UNSEEN = ("error", "self-loop", "uniform", "drop")

MAX_WEIGHT = 1e100  # weights above this are rescaled so that their sums cannot overflow


@dataclass(frozen=True, eq=False, init=False, repr=False)
class MarkovChain:
    """A Markov chain with finitely many states, validated once and read-only.

    Parameters
    ----------
    transition : array-like, scipy.sparse matrix or named table, shape (n, n)
        Row x is the distribution of the successor of x. Rows whose sum differs from one by at most 1e-8 (float32:
        1e-5) are normalized. The names of the rows and columns of a pandas or xarray table become those of the
        states.
    initial : hashable, int, array of shape (n,), mapping or Series, default=0
        A state (name or index), or a distribution. A mapping or Series is matched by name and may omit states of
        probability zero.
    rewards : array of shape (n,) or (n, d), mapping or Series, default=None
        What an observer sees in each state. A mapping or Series is matched by name (without names, by index) and
        must name every state.
    names : sequence of n hashables, default=None
        Distinct names of the states; missing values (None, NaN) are not allowed.
    lag : float, default=None
        Time that one step takes, such as the lag time of a Markov state model; None if it is not known. Chains with
        different lags are not compared; see :meth:`at_lag`.
    hidden : bool, default=False
        Whether the states are hidden states of an HMM. Their numbers mean nothing outside of it, so that the cost
        "indicator" is refused unless they have names.

    Raises
    ------
    InvalidChain
        If the arguments do not define a Markov chain; the message names the row.

    Examples
    --------
    >>> MarkovChain([[0.9, 0.1], [0.5, 0.5]], rewards=[0.0, 1.0])
    MarkovChain(2 states, 4 transitions, start 0, rewards)
    """

    transition: Matrix
    initial: Floats
    rewards: Floats | None
    names: Names | None
    lag: float | None
    hidden: bool

    def __init__(
        self,
        transition: Any,
        *,
        initial: Any = 0,
        rewards: Any = None,
        names: Sequence[Hashable] | None = None,
        lag: float | None = None,
        hidden: bool = False,
    ) -> None:
        table, found = kernel_in_order(transition, ordered_names(names, "names"))
        self._set(transition=stochastic_matrix(table, names=found))
        self._set(names=distinct_names(found, self.n_states))
        self._set(initial=self._start(initial), rewards=state_rewards(rewards, self.n_states, self.names, vectors=True))
        self._set(lag=check_lag(lag), hidden=check_flag(hidden, "hidden"))

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
        """Estimate a chain from observed transitions ``s[k] → s_next[k]``.

        Parameters
        ----------
        s, s_next : sequences of m states
            Non-negative integers are state indices (``n = max + 1``); anything else is a name (sorted if possible,
            else in order of appearance). Missing values (None, NaN, NaT, pandas.NA) are an error. Pairs are matched by
            position, except that a pandas Series ``s_next`` with the index of ``s`` in a different order is matched by
            index.
        weights : array of shape (m,), default=None
            Non-negative weights of the transitions (default 1 each); a Series is matched by index.
        initial : as for :class:`MarkovChain`, default=None
            By default the first state, ``s[0]``. This is a guess: pass the initial state where it matters.
        rewards : as for :class:`MarkovChain`, default=None
        states : int or list of names, default=None
            The state space; by default it is inferred from the data.
        unseen : {"error", "self-loop", "uniform", "drop"}, default="error"
            How to treat states without outgoing transitions. "drop" removes them, then the states that have lost all
            their successors; the indices of the remaining states become their names.
        sparse : bool, default=None
            Whether to store the kernel as CSR; by default if n > 64 and less than a quarter of the entries are
            positive.

        Returns
        -------
        chain : MarkovChain
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
        """Estimate a chain from state sequences.

        The parameters are those of :meth:`from_transitions`, with one weight per trajectory. ``initial`` defaults to
        the (weighted) distribution of the first states, to which trajectories of a single state contribute too.
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
        names: Sequence[Hashable] | None = None,
        unseen: Unseen | Literal["repeat"] = "error",
        lag: int | None = None,
    ) -> MarkovChain:
        """Convert an object of another library to a chain; :func:`diffbisim.as_chain` lists the supported types.

        Examples
        --------
        >>> MarkovChain.of({("home", "work"): 7, ("home", "home"): 3, ("work", "home"): 1}).transition
        array([[0.3, 0.7],
               [1. , 0. ]])
        """
        if isinstance(value, Transitions) or lag is not None:
            return _of_paths(value, lag, names).chain(initial=initial, rewards=rewards, unseen=unseen)  # type: ignore[arg-type]
        found = value if isinstance(value, (MarkovChain, ChainParts)) else recognize(value, rewards, names)
        if isinstance(found, MarkovChain):
            check_unseen(unseen)
            parts = found.__getstate__()
        elif isinstance(found, ExplicitModel):
            if not found.is_chain:
                raise InvalidChain(f"{found.name} holds an MDP (states have several choices); convert it with MDP.of")
            parts = found.arguments(rewards, unseen)
            rewards = None
        elif found is None:
            raise InvalidChain(
                f"a {type(value).__name__} cannot be converted to a chain; give a square table or one of the types "
                "that diffbisim.as_chain lists"
            )
        elif found.weights:
            return _of_weights(found, initial, unseen, names)
        else:
            check_unseen(unseen)
            rewards, parts = found.rewards, {"transition": found.table} | found.facts
        if names is not None:
            parts["hidden"] = False  # the caller says which states are which
        given = {"initial": initial, "rewards": rewards, "names": names}
        parts |= {name: part for name, part in given.items() if part is not None}
        return cls(**{name: part for name, part in parts.items() if part is not None})

    # --- properties ----------------------------------------------------------------------------------------

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.transition.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether the kernel is stored as a sparse matrix."""
        return not isinstance(self.transition, np.ndarray)

    @cached_property
    def n_transitions(self) -> int:
        """Number of positive entries of the kernel."""
        matrix = self.transition
        return int(np.count_nonzero(matrix) if isinstance(matrix, np.ndarray) else matrix.nnz)

    @cached_property
    def successors(self) -> Successors:
        """The positive entries by row, for dense chains too; built on first access."""
        return Successors.of(self.transition)

    @cached_property
    def _numbers(self) -> dict[Hashable, int]:
        return {name: k for k, name in enumerate(self.names or ())}

    def index(self, name: Hashable) -> int:
        """Return the index of a state given by its name or index; names take precedence."""
        found = find_state(name, self.n_states, self._numbers)
        if found is None:
            known = "a name or an index" if self.names else "an index"
            raise InvalidChain(f"{name!r} is not a state: give {known} from 0 to {self.n_states - 1}")
        return found

    def name_of(self, i: int) -> Hashable:
        """Return the name of state i, or i itself if the chain has no names."""
        if not (isinstance(i, (int, np.integer)) and 0 <= i < self.n_states):
            raise InvalidChain(f"{i!r} is not a state: indices run from 0 to {self.n_states - 1}")
        return i if self.names is None else self.names[i]

    def __repr__(self) -> str:
        n, m = self.n_states, self.n_transitions
        support = np.flatnonzero(self.initial)
        start = repr(self.name_of(int(support[0]))) if support.size == 1 else f"in {support.size} states"
        extras = [name for name in ("rewards", "names") if getattr(self, name) is not None]
        counts = f"{n} {'hidden ' * self.hidden}state{'s' * (n != 1)}, {m} transition{'s' * (m != 1)}"
        extras += [] if self.lag in (None, 1) else [f"lag {self.lag:g}"]
        return f"MarkovChain({', '.join([counts, f'start {start}', *extras])})"

    # --- structure -----------------------------------------------------------------------------------------

    @cached_property
    def _classes(self) -> CommunicatingClasses:
        return communicating_classes(self.successors)

    @cached_property
    def communicating_classes(self) -> tuple[Integers, ...]:
        """Classes of states that can reach each other, each ascending, ordered by their smallest states."""
        return self._classes.members(np.arange(self._classes.recurrent.size))

    @cached_property
    def recurrent_classes(self) -> tuple[Integers, ...]:
        """The communicating classes that the chain never leaves (at least one); all other states are transient."""
        return self._classes.members(np.flatnonzero(self._classes.recurrent))

    @property
    def is_irreducible(self) -> bool:
        """Whether every state can reach every other state."""
        return self._classes.recurrent.size == 1

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """The periods of the recurrent classes, the greatest common divisors of the lengths of their cycles."""
        return tuple(recurrent_periods(self.successors, self._classes).tolist())

    @property
    def period(self) -> int:
        """The least common multiple of the ``periods`` of the recurrent classes."""
        return lcm(*self.periods)

    @property
    def is_aperiodic(self) -> bool:
        """Whether ``period`` is one, so that the distribution of the state converges from every initial state."""
        return self.period == 1

    @cached_property
    def stationary_distributions(self) -> Floats:
        """The stationary distribution π = π P of each recurrent class, (n_recurrent, n); all others are mixtures."""
        laws = np.zeros((len(self.recurrent_classes), self.n_states))
        for law, states in zip(laws, self.recurrent_classes, strict=True):
            law[states] = stationary_law(submatrix(self.transition, states))
        return freeze(laws)

    @property
    def stationary_distribution(self) -> Floats:
        """The stationary distribution π = π P, (n,), of a chain with one recurrent class."""
        if (n := len(self.recurrent_classes)) != 1:
            raise InvalidChain(
                f"the chain has {n} recurrent classes, so its stationary distribution is not unique; "
                "stationary_distributions has one row for each"
            )
        return self.stationary_distributions[0]  # type: ignore[no-any-return]

    @property
    def absorbing_states(self) -> Integers:
        """The states that the chain never leaves, ascending."""
        return np.array([states[0] for states in self.recurrent_classes if states.size == 1], dtype=np.int64)

    @property
    def reachable_states(self) -> Integers:
        """The states that can be reached from the initial distribution, ascending."""
        return np.flatnonzero(np.isfinite(fewest_steps(self.successors.matrix, np.flatnonzero(self.initial))))

    # --- occupancies and samples ---------------------------------------------------------------------------

    def occupancy(self, discount: float) -> Floats:
        """Return the discounted state occupancy ``ρ``, (n,), which solves ``(I - γ P^T) ρ = (1-γ) ν0``."""
        return discounted_occupancy(self.transition, self.initial, check_discount(discount))

    def transition_occupancy(self, discount: float) -> Matrix:
        """Return the discounted transition occupancy ``ν(x, x') = ρ(x) P[x, x']``, (n, n), stored like the kernel."""
        rho, matrix = self.occupancy(discount), self.transition
        if isinstance(matrix, np.ndarray):
            return rho[:, None] * matrix
        data = np.repeat(rho, np.diff(matrix.indptr)) * matrix.data
        return sp.csr_array((data, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)

    def sample(self, n_steps: int, rng: int | np.random.Generator) -> Integers:
        """Sample a path of ``n_steps + 1`` state indices, the first drawn from ``initial``."""
        generator = as_generator(rng)
        uniforms = generator.random(check_count(n_steps, "n_steps")).tolist()
        start = int(generator.choice(self.n_states, p=self.initial))
        path = accumulate(uniforms, self.successors.step(), initial=start)
        return np.fromiter(path, dtype=np.int64, count=n_steps + 1)

    def sample_transitions(self, n: int, discount: float, rng: int | np.random.Generator) -> tuple[Integers, Integers]:
        """Draw ``n`` independent pairs from the discounted transition occupancy: ``s ~ ρ``, ``s_next ~ P[s]``."""
        generator = as_generator(rng)
        s = generator.choice(self.n_states, size=check_count(n, "n"), p=self.occupancy(discount))
        return s, self.successors.draw(s, generator.random(n))

    def with_initial(self, initial: Any) -> MarkovChain:
        """Return the chain with a different initial distribution; the kernel is shared."""
        return self._replaced(initial=self._start(initial))

    def permuted(self, order: Sequence[int] | Integers) -> MarkovChain:
        """Return the chain with its states renumbered: new state i is old state ``order[i]``."""
        new = np.asarray(order)
        if new.shape != (self.n_states,) or not np.array_equal(np.sort(new), np.arange(self.n_states)):
            raise InvalidArgument(f"order must contain each of 0 … {self.n_states - 1} once")
        rows = self.transition[new]
        matrix = np.ascontiguousarray(rows[:, new]) if isinstance(rows, np.ndarray) else sp.csr_array(rows[:, new])
        if sp.issparse(matrix):
            matrix.sort_indices()
        rewards = None if self.rewards is None else freeze(self.rewards[new])
        names = None if self.names is None else tuple(self.names[k] for k in new)
        return self._trusted(freeze(matrix), freeze(self.initial[new]), rewards, names, like=self)

    def at_lag(self, lag: float) -> MarkovChain:
        """Return the chain observed at a longer lag, with the kernel P^k for ``lag`` = k times its own.

        A chain whose lag is not known has lag one. The power is what the chain predicts for this lag, which a chain
        estimated at this lag need not agree with if the data are not Markovian.
        """
        own = 1 if self.lag is None else self.lag
        wanted = check_lag(lag)
        power = round(wanted / own) if wanted is not None else 0
        if power < 1 or abs(power * own - (wanted or 0.0)) > 1e-9 * (wanted or 0.0):
            raise InvalidArgument(f"lag is {lag!r}; it must be a multiple of {own:g}, the lag of the chain")
        if power == 1:
            return self if self.lag is not None else self._replaced(lag=wanted)
        return MarkovChain(
            **{**self.__getstate__(), "transition": stochastic_power(self.transition, power), "lag": wanted}
        )

    # --- internals -----------------------------------------------------------------------------------------

    def _set(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    @classmethod
    def _trusted(
        cls, transition: Matrix, initial: Floats, rewards: Any, names: Names | None, like: MarkovChain | None = None
    ) -> MarkovChain:
        """Create a chain from validated, read-only parts without checking them again, with the lag of ``like``."""
        chain = object.__new__(MarkovChain)
        chain._set(transition=transition, initial=initial, rewards=rewards, names=names)
        chain._set(lag=None, hidden=False) if like is None else chain._set(lag=like.lag, hidden=like.hidden)
        return chain

    def _replaced(self, **fields: Any) -> MarkovChain:
        chain = object.__new__(MarkovChain)
        chain._set(**{**self.__dict__, **fields})
        return chain

    def _start(self, initial: Any) -> Floats:
        return start_distribution(initial, self.n_states, self._numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("transition", "initial", "rewards", "names", "lag", "hidden")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("transition", "initial", "rewards"):
            if state[name] is not None:
                freeze(state[name])
        self._set(**{"lag": None, "hidden": False, **state})


def check_unseen(unseen: Any) -> None:
    """Check the rule for states without outgoing transitions where there are none, so that it has no effect."""
    if not (isinstance(unseen, str) and unseen == "repeat"):
        check_choice(unseen, "unseen", UNSEEN)


def _of_paths(value: Any, lag: Any, names: Any) -> Transitions:
    """Return transitions as they are, or those of trajectories over ``lag`` steps."""
    if names is not None:
        raise InvalidArgument("names is for objects that do not name their states; omit it, or rename them in the data")
    if isinstance(value, Transitions):
        if lag is not None and lag != value.lag:
            raise InvalidArgument(f"lag is {lag!r}, but these transitions have lag {value.lag}; omit lag")
        return value
    if not isinstance(value, (list, tuple)) and not hasattr(value, "dtype") and not is_frame(value):
        raise InvalidArgument(
            f"lag is {lag!r}, which is for trajectories of states, but value is a {type(value).__name__}; omit lag, or "
            "use as_chain(value).at_lag(...)"
        )
    if _has_fractions(value):
        raise InvalidArgument(
            f"lag is {lag!r}, which is for trajectories of states, but value is a table of fractions; for a transition "
            "matrix at this lag use MarkovChain(P, lag=...)"
        )
    paths = [value] if getattr(value, "ndim", 2) == 1 else value  # deeptime takes one trajectory bare, too
    return Transitions.from_trajectories(paths, lag=lag)


def _has_fractions(value: Any) -> bool:
    """Return whether a square table has entries that are not whole numbers."""
    try:
        table = np.asarray(value)
    except (TypeError, ValueError):  # trajectories of different lengths
        return False
    square = table.ndim == 2 and table.shape[0] == table.shape[1]
    return square and table.dtype.kind == "f" and bool((table != np.floor(table)).any())


def _of_weights(found: ChainParts, initial: Any, unseen: Any, names: Any) -> MarkovChain:
    """Create the chain whose rows are normalized weights, such as counts."""
    table = sp.coo_array(sp.csr_array(found.table, dtype=np.float64))
    n = int(table.shape[0])
    if table.shape != (n, n):
        raise InvalidChain(f"transition has shape {table.shape}; it must be square, (n_states, n_states)")
    known = distinct_names(ordered_names(found.names if names is None else names, "names"), n)
    w = check_weights(table.data, table.nnz, "transition")
    there = table.data > 0.0
    i, j = (np.asarray(axis[there], dtype=np.int64) for axis in table.coords)
    if i.size == 0:
        raise InvalidData("no transition has positive weight; give at least one")
    data = Transitions(i, j, n, known, None if w is None else w[there])
    start = found.initial if initial is None else initial
    chain = data.chain(initial=start, rewards=found.rewards, unseen=unseen)
    return chain._replaced(lag=check_lag(found.lag), hidden=found.hidden and names is None)


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """Observed transitions, m of them, on a fixed state space.

    Create it with :meth:`from_pairs`, :meth:`from_trajectories` or :meth:`from_frame`. Without ``episodes`` every
    transition counts as its own episode. Without ``starts`` the chain starts in ``first``, the first state observed.
    """

    states: Integers  # (m,) in 0 … n_states-1
    next_states: Integers  # (m,)
    n_states: int
    names: Names | None = None
    weights: Floats | None = None  # (m,)
    episodes: Integers | None = None  # (m,), ascending, in 0 … n_episodes-1
    starts: Integers | None = None  # (n_episodes,) first states
    start_weights: Floats | None = None  # (n_episodes,)
    first: int | None = None  # initial state if there are no ``starts``; None: the first state in the data
    actions: Integers | None = None  # (m,) in 0 … n_actions-1, if known
    n_actions: int | None = None
    action_names: Names | None = None
    rewards: Floats | None = None  # (m,), if known
    lag: int = 1  # length of a step; longer steps of an episode overlap and are not independent
    end: Hashable = None  # name of the absorbing state in which sequences end; None if ends are not recorded
    clusters: Integers | None = None  # (n_episodes,); episodes of one cluster, such as a person, are not independent
    strata: Any = None  # (n_episodes,) names of strata, if known
    durations: Floats | None = None  # (m,) time of each step, NaN for steps to ``end``
    ids: tuple[Hashable, ...] = ()  # distinct ids of the event table, or clusters, to notice those in two datasets

    @classmethod
    def from_pairs(
        cls, s: Any, s_next: Any, *, weights: Any = None, states: Any = None, actions: Any = None, rewards: Any = None
    ) -> Transitions:
        """Create transitions ``s[k] → s_next[k]`` from two sequences of states.

        Parameters
        ----------
        s, s_next, weights, states : as for :meth:`MarkovChain.from_transitions`
        actions : sequence of m hashables, default=None
            Actions taken, for data from an MDP.
        rewards : array of shape (m,), default=None
            Rewards received, for data from an MDP.
        """
        encoded = encode_pairs(s, by_index_of(s_next, s, "s_next", "s"), states)
        steps = encoded.codes.reshape(-1, 2)
        w = check_weights(by_index_of(weights, s, "weights", "s"), len(steps), "transition")
        acted = encode_actions(actions, rewards, len(steps))
        return cls(steps[:, 0].copy(), steps[:, 1].copy(), encoded.n_states, encoded.names, w, **acted)

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[Any], *, weights: Any = None, states: Any = None, actions: Any = None,
        rewards: Any = None, lag: int | None = None, end: Hashable = None, clusters: Any = None,
    ) -> Transitions:  # fmt: skip
        """Create the transitions of several state sequences, each of which is an episode.

        Parameters
        ----------
        trajectories : list of state sequences
        weights : sequence of numbers, default=None
            One weight per trajectory.
        states : int or list of names, default=None
            The state space, as for :meth:`MarkovChain.from_transitions`.
        actions, rewards : list of sequences, default=None
            For data from an MDP: one sequence per trajectory, with one entry per step.
        lag : int, default=None
            Count transitions from ``x[t]`` to ``x[t + lag]`` for every t (deeptime's "sliding" mode).
        end : hashable, default=None
            Name of an absorbing state that follows the last state of every trajectory, such as "■". Without it, the
            trajectories are recordings that were cut at arbitrary times, and where they end does not count.
        clusters : sequence of hashables, default=None
            The cluster of each trajectory. Trajectories of one cluster, such as those of one person, are not
            independent; tests and intervals keep them together.
        """
        if end is not None and not (lag in (None, 1) and actions is None and rewards is None):
            raise InvalidArgument(
                f"end is {end!r}; omit it with lag, actions or rewards, which have no step to the end"
            )
        far = 1 if lag is None else check_count(lag, "lag")
        if far == 0 or (far > 1 and not (actions is None and rewards is None)):
            raise InvalidArgument(f"lag is {lag}; it must be at least 1, and exactly 1 with actions or rewards")
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
        data = cls(
            states=codes[here],
            next_states=codes[here + far],
            n_states=encoded.n_states,
            names=encoded.names,
            weights=None if w is None else w[episodes],
            episodes=episodes,
            starts=codes[ends - lengths],
            start_weights=w,
            lag=far,
            clusters=None if clusters is None else cluster_codes(clusters, lengths.size),
            ids=() if clusters is None else tuple(dict.fromkeys(clusters)),
            **encode_actions(
                concatenate_steps(actions, lengths, "actions"),
                concatenate_steps(rewards, lengths, "rewards"),
                here.size,
            ),
        )
        return data if end is None else data._with_end(end, codes[ends - 1], np.ones(lengths.size, dtype=bool))

    @classmethod
    def from_frame(
        cls, table: Any, *, id: Any = None, time: Any = None, state: Any = "state", gap: Any = None,
        group: Any = None, missing: Literal["error", "split", "drop"] = "error", states: Any = None,
        end: Hashable = "auto", every: Any = None, cluster: Any = None, strata: Any = None,
        duplicates: Literal["warn", "keep", "drop", "error"] = "warn",
    ) -> Any:  # fmt: skip
        """Create transitions from a table of events whose rows may be in any order.

        Parameters
        ----------
        table : pandas or polars DataFrame, pyarrow Table, or mapping from names to columns
            Named levels of a pandas index count as columns.
        id, time : column names, default=None
            Columns with the sequence and the time of each event. Without ``id`` the table is one sequence; without
            ``time`` events are in the order of the rows.
        state : column name, default="state"
        gap : number, timedelta or str, default=None
            A longer pause starts a new sequence. A number is in the units of ``time``, or in seconds if these are
            dates; a string is a duration such as "30min". Sequences of the same id are one cluster.
        group : column name, default=None
            Return the transitions of each group separately, all on the same states. A sequence ends where the group
            changes. A warning counts the ids that occur in several groups.
        missing : {"error", "split", "drop"}, default="error"
            How to treat missing values: raise an error, end the sequence there, or leave out the row.
        states : int or list of names, default=None
            The state space, as for :meth:`MarkovChain.from_transitions`, without the end state.
        end : hashable or None, default="auto"
            Name of an absorbing state that follows the last event of every sequence (except where it was cut by a
            missing value or a change of group). None if the sequences were cut at arbitrary times, so that their ends
            mean nothing. "auto" is "■", or None with ``every``. Its reward is 0 unless ``rewards`` contain it.
        every : number, timedelta or str, default=None
            Resample the states at this interval of time (units as for ``gap``): the last observation is carried
            forward, up to the last event. By default a step is one event, with a warning if the times between events
            vary; "event" confirms that only the order of the events matters.
        cluster : column name, default=None
            Sequences with the same entry are not independent; tests and intervals keep them together. By default the
            sequences of one ``id``; with "episode" all are independent.
        strata : column name, default=None
            Tests compare and permute within strata only.
        duplicates : {"warn", "keep", "drop", "error"}, default="warn"
            How to treat rows with the same id, time, state and group. With "warn" they are kept.

        Returns
        -------
        transitions : Transitions, or dict from group to Transitions
            Episodes are in the order in which their ids first appear, then by time.

        Examples
        --------
        >>> clicks = {"user": [1, 2, 1, 1], "at": [3, 0, 1, 2], "page": ["buy", "home", "home", "cart"]}
        >>> Transitions.from_frame(clicks, id="user", time="at", state="page").chain(unseen="self-loop").names
        ('buy', 'cart', 'home', '■')
        """
        found = sequences(
            table, id=id, time=time, state=state, group=group, gap=gap, missing=missing, cluster=cluster,
            strata=strata, duplicates=duplicates,
        )  # fmt: skip
        by_event = isinstance(every, str) and every == EVENT
        if every is None:
            report_intervals(found)
        elif not by_event:
            found = resampled(found, every)
        codes, n, names = encode_column(*found.states, states)
        ends = found.ends
        inner = np.ones(codes.size, dtype=bool)
        inner[ends] = False  # the last state of a sequence has no successor
        here = np.flatnonzero(inner)
        data = cls(
            codes[here], codes[here + 1], n, names, starts=codes[found.begins], clusters=found.clusters,
            episodes=np.repeat(np.arange(ends.size), ends - found.begins),
            durations=None if by_event or found.durations is None else found.durations[here],
            strata=None if found.strata is None else named(found.strata), ids=found.ids,
        )  # fmt: skip
        if isinstance(end, str) and end == "auto":
            end = END if every is None or by_event else None
        if end is not None:
            data = data._with_end(end, codes[ends], ~found.cut)
        if found.groups is None:
            return data
        seen = np.unique(found.groups.codes).tolist()
        return {found.groups.names[g]: data.take(np.flatnonzero(found.groups.codes == g)) for g in seen}

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        names = [(len(self), "transition"), (self.n_episodes, "episode"), (self.n_states, "state")]
        counts = [f"{count} {name}{'s' * (count != 1)}" for count, name in names]
        extras = [name for name in ("actions", "rewards", "names", "weights") if getattr(self, name) is not None]
        return f"Transitions({', '.join([*counts, *[f'lag {self.lag}'] * (self.lag > 1), *extras])})"

    @property
    def n_episodes(self) -> int:
        """Number of episodes; without episodes, the number of transitions."""
        return len(self) if self.starts is None else len(self.starts)

    @property
    def n_clusters(self) -> int:
        """Number of clusters of episodes that are not independent; without clusters, the number of episodes."""
        return self.n_episodes if self.clusters is None else int(np.unique(self.clusters).size)

    @property
    def end_state(self) -> int | None:
        """Index of the state in which sequences end, or None."""
        return None if self.end is None or self.names is None else self.names.index(self.end)

    def _with_end(self, end: Hashable, last: Integers, ended: Any) -> Transitions:
        """Add a step from the ``last`` state (n_episodes,) of each episode that ``ended`` to an absorbing state."""
        if self.names is None and self.n_states > limits.STATES:
            raise InvalidData(
                f"the largest state number is {self.n_states - 1}, which would need {self.n_states} states beside the "
                "end; if the numbers are names, pass states=[...], or pass end=None"
            )
        known = tuple(range(self.n_states)) if self.names is None else self.names
        if not _is_name(end):
            raise InvalidArgument(f"end is {end!r}; give a name for the end state, such as '■', or None")
        names = known if end in known else (*known, end)
        k = names.index(end)
        if (self.states == k).any() or (last == k).any():
            raise InvalidData(
                f"end is {end!r}, but this is a state of the data; give the end another name, or pass end=None if the "
                "data contain the ends"
            )
        episode = np.flatnonzero(ended)
        assert self.episodes is not None
        at = np.searchsorted(self.episodes, episode, side="right")
        added: dict[str, Any] = {"states": last[episode], "next_states": k, "episodes": episode, "durations": np.nan}
        if self.start_weights is not None:
            added["weights"] = self.start_weights[episode]
        changed: dict[str, Any] = {
            name: np.insert(part, at, values)
            for name, values in added.items()
            if (part := getattr(self, name)) is not None
        }
        return replace(self, n_states=len(names), names=names, end=end, **changed)

    def take_clusters(self, clusters: Any) -> Transitions:
        """Select clusters by index, with all their episodes; an index that occurs repeatedly gives several clusters."""
        if self.clusters is None:
            return self.take(clusters)
        chosen = np.asarray(clusters, dtype=np.int64)
        _, own = np.unique(self.clusters, return_inverse=True)
        order, sizes = np.argsort(own, kind="stable"), np.bincount(own)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.min() < 0 or chosen.max() >= sizes.size:
            raise InvalidData(f"clusters must be a non-empty list of indices from 0 to {sizes.size - 1}")
        number, first = sizes[chosen], (np.cumsum(sizes) - sizes)[chosen]
        where = np.arange(number.sum()) + np.repeat(first - np.cumsum(number) + number, number)
        return replace(self.take(order[where]), clusters=np.repeat(np.arange(chosen.size), number))

    def take(self, episodes: Any) -> Transitions:
        """Select episodes by index, with repetition if an index occurs repeatedly (as in a bootstrap replicate)."""
        chosen = np.asarray(episodes, dtype=np.int64)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.min() < 0 or chosen.max() >= self.n_episodes:
            raise InvalidData(f"episodes must be a non-empty list of indices from 0 to {self.n_episodes - 1}")
        where, renumbered = chosen, None
        if self.episodes is not None:
            begin = np.searchsorted(self.episodes, chosen, side="left")
            lengths = np.searchsorted(self.episodes, chosen, side="right") - begin
            renumbered = np.repeat(np.arange(chosen.size), lengths)
            where = np.arange(renumbered.size) + np.repeat(begin - np.cumsum(lengths) + lengths, lengths)
        return self._steps(
            where,
            episodes=renumbered,
            starts=None if self.starts is None else self.starts[chosen],
            start_weights=None if self.start_weights is None else self.start_weights[chosen],
            clusters=None if self.clusters is None else self.clusters[chosen],
            strata=None if self.strata is None else self.strata[chosen],
        )

    def _steps(self, where: Any, **changed: Any) -> Transitions:
        """Select transitions by index; they start where all of them did."""
        columns = ("states", "next_states", "weights", "episodes", "actions", "rewards", "durations")
        kept = {name: part[where] for name in columns if (part := getattr(self, name)) is not None}
        first = self.first if self.first is not None or self.starts is not None else int(self.states[0])
        return replace(self, **{**kept, "first": first, **changed})

    def chain(
        self,
        *,
        initial: Any = None,
        rewards: Any = None,
        unseen: Unseen = "error",
        sparse: bool | None = None,
    ) -> MarkovChain:
        """Estimate the chain; the parameters are those of :meth:`MarkovChain.from_transitions`.

        ``initial`` and ``rewards`` refer to all states, including those that ``unseen="drop"`` removes. By default the
        chain starts like the episodes or, without episodes, in the first state observed. The ``end`` state is absorbing
        whatever ``unseen`` is, and its reward is 0 unless ``rewards`` contain it. Actions and rewards of steps are not
        used, which an ``InputWarning`` says; :meth:`MDP.from_transitions` uses them.
        """
        warn_of_unused({"data": self}, rewards)
        return self._chain(initial=initial, rewards=rewards, unseen=unseen, sparse=sparse)

    def _chain(
        self, *, initial: Any = None, rewards: Any = None, unseen: Unseen = "error", sparse: bool | None = None
    ) -> MarkovChain:
        """Estimate the chain without a remark on actions and rewards of steps."""
        rewards = self._with_end_reward(rewards)
        check_choice(unseen, "unseen", UNSEEN)
        if unseen != "drop":
            P = empirical_kernel(fill_unseen(self._pairs(), self.n_states, unseen, self.name_of), self.n_states, sparse)
            start = self._default_start(None) if initial is None else initial
            return MarkovChain(P, initial=start, rewards=rewards, names=self.names, lag=self._known_lag)
        pairs, kept = drop_unseen(self._pairs(), self.n_states)
        start = self._default_start(kept) if initial is None else self._kept_start(initial, kept)
        return MarkovChain(
            empirical_kernel(pairs, kept.size, sparse),
            initial=start,
            rewards=self._kept_rewards(rewards, kept),
            names=[self.name_of(int(k)) for k in kept],
            lag=self._known_lag,
        )

    @property
    def _known_lag(self) -> int | None:
        """The lag, or None for bare pairs, which do not say how far they are apart."""
        return None if self.episodes is None and self.lag == 1 else self.lag

    def name_of(self, k: int) -> Hashable:
        """Return the name of state k, or k itself if there are no names."""
        return k if self.names is None else self.names[k]

    def _pairs(self) -> WeightedPairs:
        """Return sources, targets and weights of the transitions with positive weight."""
        if self.end_state is not None:
            i, j = (np.append(part, self.end_state) for part in (self.states, self.next_states))
            w = None if self.weights is None else np.append(self.weights, 1.0)
            return replace(self, states=i, next_states=j, weights=w, end=None)._pairs()
        if self.weights is None:
            return WeightedPairs(self.states, self.next_states, np.ones(len(self)))
        positive = self.weights > 0.0
        i, j, w = self.states[positive], self.next_states[positive], self.weights[positive]
        lost = np.setdiff1d(self.states, i)
        if lost.size:
            raise InvalidData(
                f"weights: every transition out of state {self.name_of(int(lost[0]))!r} has weight 0; "
                "give one a positive weight or remove these transitions"
            )
        return WeightedPairs(i, j, w / w.max() if w.max(initial=0.0) > MAX_WEIGHT else w)

    def _default_start(self, kept: Integers | None = None) -> Floats:
        """Return the distribution of the episodes' first states; without episodes, the first state seen (and kept)."""
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
            raise InvalidData("weights are all zero, so the initial distribution is unknown; pass initial=")
        w = w if 1 / MAX_WEIGHT < w.max() < MAX_WEIGHT else w / w.max()  # so that sums neither overflow nor lose digits
        mass = np.bincount(at, w, minlength=n)
        return np.asarray(mass / mass.sum(), dtype=np.float64)

    def _kept_start(self, initial: Any, kept: Integers) -> Floats:
        """Restrict an initial distribution to the kept states; it must not put mass on the others."""
        numbers = {name: k for k, name in enumerate(self.names or ())}
        state = find_state(initial, self.n_states, numbers)
        if state is not None:
            support, mass = np.array([state]), np.asarray(kept == state, dtype=np.float64)
        else:
            vector = start_distribution(initial, self.n_states, numbers)
            support, mass = np.flatnonzero(vector), vector[kept]
        gone = np.setdiff1d(support, kept)
        if gone.size:
            raise InvalidData(
                f"initial: state {self.name_of(int(gone[0]))!r} was dropped because it has no infinite path; "
                'start elsewhere or use unseen="self-loop"'
            )
        return mass

    def _with_end_reward(self, rewards: Any) -> Any:
        """Return the rewards of all states, with 0 for the end state if they do not contain it."""
        if rewards is None or self.end_state is None or isinstance(rewards, str):
            return rewards
        values, axes = entries_and_names(rewards)
        if axes and axes[0] is not None:
            if self.end in axes[0]:
                return rewards
            entries = list(values)
            return {
                **dict(zip(axes[0], entries, strict=True)),
                self.end: np.zeros(np.shape(entries[0])) if entries else 0,
            }
        if np.ndim(rewards) > 0 and len(rewards) == self.n_states - 1:
            return np.insert(np.asarray(rewards, dtype=np.float64), self.end_state, 0.0, axis=0)
        return rewards

    def _kept_rewards(self, rewards: Any, kept: Integers) -> Any:
        """Restrict rewards of all states to the kept states."""
        if rewards is None:
            return None
        values, axes = entries_and_names(rewards)
        if axes and axes[0] is not None:
            names = {self.name_of(int(k)) for k in kept}
            return {name: value for name, value in zip(axes[0], values, strict=True) if name in names}
        return finite_numbers(rewards, (self.n_states,), name="rewards", per="state")[kept]


def unused(data: Transitions, rewards: Any) -> list[str]:
    """Return which recorded parts of the steps a chain with these rewards does not contain, such as "actions"."""
    parts = {"actions": data.actions is not None, "rewards": data.rewards is not None and rewards is None}
    return [name for name, there in parts.items() if there]


def warn_of_unused(groups: Mapping[Any, Any], rewards: Any) -> None:
    """Warn once of recorded actions and rewards of steps, which the chains of these groups do not contain."""
    found = {name: unused(one, rewards) for name, one in groups.items() if isinstance(one, Transitions)}
    names = [str(name) for name, parts in found.items() if parts]
    remedies = {
        "actions": "for what actions do, use MDP.from_transitions(data)",
        "rewards": "for rewards, pass rewards= one number per state, or use MDP.from_transitions(data)",
    }
    parts = [part for part in remedies if any(part in own for own in found.values())]
    if parts:
        warn_of_input(
            f"{', '.join(names)}: the recorded {' and '.join(parts)} of steps are not used, since a chain contains "
            f"states only; {'; '.join(remedies[part] for part in parts)}"
        )


def named(column: Coded) -> Any:
    """Return the entries of a column as an array of objects."""
    names = np.empty(len(column.names), dtype=object)
    names[:] = column.names
    return names[column.codes]


def cluster_codes(clusters: Any, number: int, name: str = "clusters") -> Integers:
    """Encode the clusters of ``number`` episodes."""
    try:
        found = coded(clusters if hasattr(clusters, "__array__") else list(clusters))
    except TypeError:
        raise InvalidArgument(f"{name} is {clusters!r}; give the cluster of each of the {number} episodes") from None
    if len(found.codes) != number:
        raise InvalidArgument(f"{name} has {len(found.codes)} entries for {number} episodes; give one per episode")
    if (found.codes < 0).any():
        raise InvalidArgument(f"{name}[{int((found.codes < 0).argmax())}] is missing; give every episode a cluster")
    return np.asarray(found.codes, dtype=np.int64)


def _is_name(name: Any) -> bool:
    try:
        hash(name)
    except TypeError:
        return False
    return not isinstance(name, (bool, float))
