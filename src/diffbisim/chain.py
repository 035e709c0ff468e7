"""A finite Markov chain: the object that every distance in this package compares.

Letters: ``X = (P, ν0)`` on states ``0 … n-1``.

    P   transition   (n, n)   P[x, x'] = probability to be in x' next, being in x now; rows sum to one
    ν0  initial      (n,)     law of the first state
    r   rewards      (n,)     what an observer sees of a state; the cost "reward" is |r(x) - r(y)|
        labels       n names  of the states, distinct; a state is otherwise known by its index

    ρ(x)     = (1-γ) Σ_t γ^t Pr(x_t = x)          discounted state occupancy, sums to one
    ν(x, x') = ρ(x) P[x, x']                      discounted transition occupancy, sums to one

A chain is checked once, when it is made, and cannot be changed afterwards (its arrays are read-only), so
solvers trust it without looking again. The kernel is stored as it came: an array stays dense, a scipy.sparse
matrix becomes CSR. Chains pickle, and are compared by identity.

Naming a state. Wherever a state is asked for and the chain has labels, the value is looked up among them
first, and only then taken as an index: with ``labels=("b", "a")``, ``initial="a"`` and ``initial=1`` are the
same start; with ``labels=(7, 0)``, ``initial=0`` is the *second* state. Indices never count from the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from diffbisim.checks import (
    Floats,
    Integers,
    Labels,
    Matrix,
    check_count,
    check_discount,
    distinct_labels,
    find_state,
    freeze,
    named_kernel,
    ordered,
    start_distribution,
    state_rewards,
    stochastic_matrix,
)
from diffbisim.errors import InvalidArgument, InvalidChain
from diffbisim.stochastic import Successors, as_generator, discounted_occupancy

Unseen = Literal["error", "self-loop", "uniform", "drop"]


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
    rewards : (n,) numbers; a mapping or Series goes by label (index, without labels) and names every state
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
        table, names = named_kernel(transition, ordered(labels, "labels"))
        self._set(transition=stochastic_matrix(table, labels=names))
        self._set(labels=distinct_labels(names, self.n_states))
        self._set(initial=self._start(initial), rewards=state_rewards(rewards, self.n_states, self.labels))

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
        from diffbisim.data.transitions import Transitions

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
        from diffbisim.data.transitions import Transitions

        data = Transitions.from_trajectories(trajectories, weights=weights, states=states)
        return data.chain(initial=initial, rewards=rewards, unseen=unseen, sparse=sparse)

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
