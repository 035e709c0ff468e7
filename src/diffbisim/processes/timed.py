"""Time-inhomogeneous Markov chains over finitely many steps, whose kernel and state space may change over time.

    P_t   transitions[t]   (n_t, n_{t+1})        t = 0 … T-1; rows sum to one
    ν_0   initial          (n_0,)                distribution of the first state
    r_t   rewards[t]       (n_t,) or (n_t, d)    t = 0 … T: what an observer sees in a state at time t
          names[t]         n_t names             of the states at time t

    ν_{t+1} = ν_t P_t                            marginals

:meth:`TimedChain.from_paths` quantizes the sample paths of a process step by step: state j at time t is a cell of the
values at that time, and ``P_t[i, j]`` is the fraction of the paths in cell i that move to cell j. This is the adapted
empirical measure. Unlike the ordinary empirical measure of the paths, it converges in the adapted (bicausal)
Wasserstein distance, because paths in the same cell share their future (Backhoff, Bartl, Beiglböck & Wiesel 2022).

*Choice of cells.* With N paths on the line, k cells cause a bias of order 1/k from the cell width and of order
sqrt(k/N) from estimating each row from N/k paths; this suggests about N^(1/3) cells. Cells of equal width, the same for
both samples, put equal values into equal cells; on Gaussian test paths they had less bias than quantile cells or
k-means. Widths are rounded to powers of two, so that two samples of similar size and spread get the same cells;
``width=`` guarantees it. In two or more dimensions k-means had less bias than cubes at the same k.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import (
    Floats,
    Integers,
    Matrix,
    as_number,
    check_count,
    check_time,
    finite_numbers,
    freeze,
    is_sparse,
    start_distribution,
    stochastic_rows,
)
from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData
from diffbisim.common.names import Names, axis_names, distinct_names, find_state, in_order
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import Successors, as_generator

#: Cells on the line are chosen from the spread of the values between these quantiles.
TAILS = (0.001, 0.999)

#: Number of Lloyd iterations in two or more dimensions; the cells hardly move after that.
LLOYD = 20


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TimedChain:
    """A Markov chain over T steps whose kernel may change from step to step, validated once and read-only.

    Parameters
    ----------
    transitions : list of T kernels, ``P_t`` of shape (n_t, n_{t+1})
        Each is an array, nested list, scipy.sparse matrix or named table; the columns of one are the rows of the
        next.
    initial : hashable, int or array of shape (n_0,), default=0
        A state at time 0 (name or index) or a distribution.
    rewards : array of shape (n,) or list of T + 1 arrays, default=None
        One array for all times, or one per time 0 … T, each of shape (n_t,) or (n_t, d).
    names : list of n names or list of T + 1 lists, default=None
        Names of the states, for all times or for each.

    Examples
    --------
    >>> TimedChain([[[0.5, 0.5]], [[0.9, 0.1], [0.2, 0.8]]], rewards=[[0], [-1, 1], [-1, 1]])
    TimedChain(2 steps, 1 to 2 states, start 0, rewards)
    """

    transitions: tuple[Matrix, ...]
    initial: Floats
    rewards: tuple[Floats, ...] | None
    names: tuple[Names, ...] | None
    lag: float | None = None  # time that a step takes, and whether states are hidden: those of a repeated chain
    hidden: bool = False

    def __init__(self, transitions: Any, *, initial: Any = 0, rewards: Any = None, names: Any = None) -> None:
        kernels = _listed(transitions)
        listed = _names(kernels, names)
        tables = [_kernel(P, t, listed) for t, P in enumerate(kernels)]
        for t, (before, after) in enumerate(itertools.pairwise(tables)):
            if before.shape[1] != after.shape[0]:
                raise InvalidChain(
                    f"transitions[{t}] has {before.shape[1]} columns and transitions[{t + 1}] has {after.shape[0]} "
                    "rows; the columns of one kernel must be the rows of the next"
                )
        self._set(transitions=tuple(tables))
        self._set(names=_checked_names(listed, self.n_states))
        numbers = {name: k for k, name in enumerate(self.names[0] if self.names else ())}
        self._set(initial=start_distribution(initial, self.n_states[0], numbers), rewards=self._rewards(rewards))

    @classmethod
    def repeat(cls, chain: MarkovChain, n_steps: int) -> TimedChain:
        """Unroll a Markov chain over ``n_steps`` steps, sharing its kernel."""
        T = check_count(n_steps, "n_steps")
        if not isinstance(chain, MarkovChain) or not T:
            raise InvalidArgument(f"repeat needs a MarkovChain and at least one step, not {chain!r} and {n_steps!r}")
        new = object.__new__(cls)
        new._set(transitions=(chain.transition,) * T, initial=chain.initial)
        new._set(rewards=None if chain.rewards is None else (chain.rewards,) * (T + 1))
        new._set(names=None if chain.names is None else (chain.names,) * (T + 1))
        new._set(successors=(chain.successors,) * T, lag=chain.lag, hidden=chain.hidden)
        return new

    @classmethod
    def from_paths(
        cls,
        paths: Any,
        *,
        n_states: Any = None,
        width: float | None = None,
        memory: int | None = 1,
        rng: int | np.random.Generator = 0,
    ) -> TimedChain:
        """Compute the adapted empirical measure of sample paths.

        Parameters
        ----------
        paths : array of shape (N, T + 1) or (N, T + 1, d), or list of N paths
        n_states : int or sequence of T + 1 ints, default=None
            Maximum number of cells, for all times or for each; by default about 2 N^(1/3) if d = 1 and N^(1/2) / 2
            otherwise. If there are no more distinct values than that, they are the states.
        width : float, default=None
            Side length of the cells, instead of their number. Use the same for two samples that are to be compared.
        memory : int, default=1
            Number of most recent cells that make up a state: 1 for Markov processes, None for the whole history.
        rng : int or Generator, default=0
            Seed of the clustering if d > 1; on the line nothing is random.

        Returns
        -------
        chain : TimedChain
            Its ``rewards`` are the cell centers, that is, the means of the values in each cell.
        """
        values = _paths(paths)
        n, times, d = values.shape
        found = _cells(values, n_states, width, as_generator(rng))
        cells, centers = zip(*(_centered(values[:, t], found[t]) for t in range(times)), strict=True)
        states, shown = _remembered(list(cells), list(centers), memory)
        sizes = [len(center) for center in shown]
        kernels = [_shares(states[t], states[t + 1], (sizes[t], sizes[t + 1])) for t in range(times - 1)]
        start = np.bincount(states[0], minlength=sizes[0]) / n
        return cls(kernels, initial=start, rewards=[c[:, 0] if d == 1 else c for c in shown])

    # --- properties ----------------------------------------------------------------------------------------

    @property
    def n_steps(self) -> int:
        """Number of steps T; the times are 0 … T."""
        return len(self.transitions)

    @cached_property
    def n_states(self) -> tuple[int, ...]:
        """Number of states at each of the T + 1 times."""
        return (*(int(P.shape[0]) for P in self.transitions), int(self.transitions[-1].shape[1]))

    @property
    def is_sparse(self) -> bool:
        """Whether any kernel is sparse."""
        return any(not isinstance(P, np.ndarray) for P in self.transitions)

    @cached_property
    def n_transitions(self) -> int:
        """Total number of positive entries of all kernels."""
        return sum(s.indices.size for s in self.successors)

    @cached_property
    def successors(self) -> tuple[Successors, ...]:
        """The positive entries of each kernel by row; repeated kernels share them."""
        known: dict[int, Successors] = {}
        return tuple(known.setdefault(id(P), Successors.of(P)) for P in self.transitions)

    def index(self, name: Hashable, time: int) -> int:
        """Return the index of a state at a time, given by its name or index; names take precedence."""
        t = check_time(time, self.n_steps)
        numbers = {} if self.names is None else {name: k for k, name in enumerate(self.names[t])}
        found = find_state(name, self.n_states[t], numbers)
        if found is None:
            raise InvalidChain(f"{name!r} is not a state at time {t}: indices run from 0 to {self.n_states[t] - 1}")
        return found

    def __repr__(self) -> str:
        least, most = min(self.n_states), max(self.n_states)
        sizes = f"{least} to {most} states" if least < most else f"{most} state{'s' * (most != 1)}"
        support = np.flatnonzero(self.initial)
        first = int(support[0])
        start = f"in {support.size} states" if support.size > 1 else repr(self.names[0][first] if self.names else first)
        extras = [name for name in ("rewards", "names") if getattr(self, name) is not None]
        steps = f"{self.n_steps} step{'s' * (self.n_steps != 1)}"
        return f"TimedChain({', '.join([steps, sizes, f'start {start}', *extras])})"

    # --- marginals and samples -----------------------------------------------------------------------------

    def marginals(self) -> tuple[Floats, ...]:
        """Return the distribution of the state at each time, T + 1 arrays ``(n_t,)``."""
        laws = [self.initial]
        for P in self.transitions:
            laws.append(freeze(np.asarray(P.T @ laws[-1], dtype=np.float64)))
        return tuple(laws)

    def sample(self, n_paths: int, rng: int | np.random.Generator) -> Integers:
        """Sample independent paths of state indices, shape ``(n_paths, T + 1)``."""
        generator, n = as_generator(rng), check_count(n_paths, "n_paths")
        paths = np.empty((n, self.n_steps + 1), dtype=np.int64)
        paths[:, 0] = generator.choice(self.n_states[0], size=n, p=self.initial)
        for t, successors in enumerate(self.successors):
            paths[:, t + 1] = successors.draw(paths[:, t], generator.random(n))
        return paths

    def until(self, n_steps: int) -> TimedChain:
        """Return the first ``n_steps`` steps as a chain that shares the kernels."""
        if not 1 <= check_count(n_steps, "n_steps") <= self.n_steps:
            raise InvalidArgument(f"n_steps is {n_steps}; this chain has {self.n_steps} steps")
        if n_steps == self.n_steps:
            return self
        parts = {name: getattr(self, name) for name in ("rewards", "names")}
        new = object.__new__(TimedChain)
        new._set(transitions=self.transitions[:n_steps], initial=self.initial, lag=self.lag, hidden=self.hidden)
        new._set(**{name: None if part is None else part[: n_steps + 1] for name, part in parts.items()})
        return new

    def with_initial(self, initial: Any) -> TimedChain:
        """Return the chain with a different initial distribution; kernels are shared."""
        numbers = {name: k for k, name in enumerate(self.names[0] if self.names else ())}
        new = object.__new__(TimedChain)
        new._set(**{**self.__dict__, "initial": start_distribution(initial, self.n_states[0], numbers)})
        return new

    # --- internals -----------------------------------------------------------------------------------------

    def _rewards(self, rewards: Any) -> tuple[Floats, ...] | None:
        if rewards is None:
            return None
        sizes = self.n_states
        if len(set(sizes)) == 1 and _is_vector(rewards):
            row = freeze(finite_numbers(rewards, (sizes[0],), name="rewards", per="state"))
            return (row,) * len(sizes)
        if _is_vector(rewards) or len(rewards) != len(sizes):
            raise InvalidChain(
                f"rewards has {len(rewards)} entries; give one list of rewards for each of the {len(sizes)} times, "
                "or one number per state if all times have the same states"
            )
        return tuple(
            _rewards_at(part, t, n, self.names) for t, (part, n) in enumerate(zip(rewards, sizes, strict=True))
        )

    def _set(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getstate__(self) -> dict[str, Any]:
        parts = ("transitions", "initial", "rewards", "names", "lag", "hidden")
        return {name: getattr(self, name) for name in parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for part in (*state["transitions"], state["initial"], *(state["rewards"] or ())):
            freeze(part)
        self._set(**state)


# --- constructor arguments -----------------------------------------------------------------------------------------


def _listed(transitions: Any) -> list[Any]:
    """Return the kernels as a list; raise for a single kernel, a likely mistake."""
    array = isinstance(transitions, np.ndarray) and transitions.dtype != object
    if is_sparse(transitions) or axis_names(transitions) or (array and transitions.ndim != 3):
        raise InvalidChain("transitions is a single table; give a list of kernels, one per step: TimedChain([P, P, P])")
    try:
        kernels = list(transitions)
    except TypeError:
        raise InvalidChain(f"transitions is a {type(transitions).__name__}; give a list of kernels") from None
    if not kernels:
        raise InvalidChain("transitions is empty; a timed chain needs at least one step")
    return kernels


def _names(kernels: list[Any], names: Any) -> list[Any] | None:
    """Return the names of each time, given or from the names of rows and columns; None if there are none."""
    T = len(kernels)
    if names is not None:
        given = list(names)
        lists = [isinstance(part, (list, tuple, np.ndarray)) for part in given]
        return given if len(given) == T + 1 and all(lists) else [given] * (T + 1)
    axes = [axis_names(P) for P in kernels]
    rows = [axis[0] if axis else None for axis in axes] + [None]
    columns = [None] + [axis[1] if len(axis) == 2 else None for axis in axes]
    found = [row or column for row, column in zip(rows, columns, strict=True)]
    if all(row is None for row in found):
        return None
    if None in found:
        raise InvalidChain(f"the tables name the states of some times, but not of time {found.index(None)}; pass names")
    return found


def _kernel(P: Any, t: int, names: list[Any] | None) -> Matrix:
    """Return a validated kernel; a named table is put in the order of the names."""
    table, name = P, f"transitions[{t}]"
    if axis_names(P):
        table = np.asarray(P) if names is None else in_order(P, (names[t], names[t + 1]), name)
    return stochastic_rows(table, name=name, names=None if names is None else names[t])


def _checked_names(names: list[Any] | None, sizes: tuple[int, ...]) -> tuple[Names, ...] | None:
    if names is None:
        return None
    return tuple(
        distinct_names(part, n, name=f"names[{t}]") or () for t, (part, n) in enumerate(zip(names, sizes, strict=True))
    )


def _is_vector(rewards: Any) -> bool:
    try:
        return np.ndim(rewards) <= 1 and all(np.ndim(part) == 0 for part in rewards)
    except (TypeError, ValueError):
        return False


def _rewards_at(rewards: Any, t: int, n: int, names: tuple[Names, ...] | None) -> Floats:
    """Return the rewards (n,) or (n, d) of one time."""
    bare_part = in_order(rewards, [range(n) if names is None else names[t]], f"rewards[{t}]")
    shape = np.shape(bare_part)
    wanted = (n, shape[1]) if len(shape) == 2 else (n,)
    return freeze(finite_numbers(bare_part, wanted, name=f"rewards[{t}]", per="state"))


# --- sample paths --------------------------------------------------------------------------------------------------


def _paths(paths: Any) -> Floats:
    """Return sample paths as a finite (N, T + 1, d) array."""
    try:
        values = np.asarray(paths, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidData(f"paths is not an array of numbers ({error}); all paths need the same length") from None
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or 0 in values.shape or values.shape[1] < 2:
        raise InvalidData(
            f"paths has shape {np.shape(paths)}; expected (n_paths, n_steps + 1) or (n_paths, n_steps + 1, d) with at "
            "least one step"
        )
    if not np.isfinite(values).all():
        n, t, _ = (int(k) for k in np.argwhere(~np.isfinite(values))[0])
        raise InvalidData(f"path {n} is {values[n, t]} at time {t}; drop such paths, or fill in the values")
    return values


def _cells(values: Floats, n_states: Any, width: Any, generator: np.random.Generator) -> list[Integers]:
    """Return the cell of each path at each time, as arbitrary integers."""
    n, times, d = values.shape
    if width is not None:
        if n_states is not None or not 0.0 < as_number(width) < np.inf:
            raise InvalidArgument(f"width is {width!r}; give a positive number, and omit n_states")
        return [_cubes(values[:, t], float(width)) for t in range(times)]
    counts = _cell_counts(n_states, n, times, d)
    if d > 1:
        return [_clusters(values[:, t], counts[t], generator) for t in range(times)]
    x = np.sort(values[..., 0], axis=0)
    if n_states is None:
        low, high = np.quantile(x, TAILS, axis=0)
        spread = float((high - low).max()) or float(np.ptp(x, axis=0).max()) or 1.0
        widths = [2.0 ** round(np.log2(spread / counts[0]))] * times
    else:
        widths = [_dyadic(x[:, t], counts[t]) for t in range(times)]
        widths = widths if np.ndim(n_states) else [max(widths)] * times
    return [_on_the_line(values[:, t, 0], counts[t], widths[t]) for t in range(times)]


def _cell_counts(n_states: Any, n: int, times: int, d: int) -> list[int]:
    """Return the maximum number of cells at each time."""
    if n_states is None:
        return [max(2, round(2 * n ** (1 / 3) if d == 1 else n ** (1 / 2) / 2))] * times
    counts = list(n_states) if np.ndim(n_states) else [n_states] * times
    if len(counts) != times or any(check_count(k, "n_states") < 1 for k in counts):
        raise InvalidArgument(
            f"n_states is {n_states!r}; give a positive number of cells, or one for each of the {times} times"
        )
    return [int(k) for k in counts]


def _dyadic(x: Floats, k: int) -> float:
    """Return the smallest power of two such that sorted values lie in at most k cells; 0 for ≤ k distinct values."""
    distinct = x[np.concatenate([[True], np.diff(x) > 0])]
    if distinct.size <= k:
        return 0.0
    largest = max(abs(float(x[0])), abs(float(x[-1])))
    width = 2.0 ** np.ceil(np.log2(4 * largest))  # one cell
    while np.count_nonzero(np.diff(np.floor(2 * distinct / width + 0.5))) < k:
        width /= 2
    return float(width)


def _on_the_line(x: Floats, k: int, width: float) -> Integers:
    """Return the cell of each value; up to k distinct values are their own cells."""
    distinct, cell = np.unique(x, return_inverse=True)
    return cell.reshape(-1) if distinct.size <= k else _cubes(x[:, None], width)


def _cubes(x: Floats, width: float) -> Integers:
    """Return the cell of each of N points (N, d); cells are centered at multiples of their width."""
    with np.errstate(over="ignore"):
        places = np.floor(x / width + 0.5)
    if not np.isfinite(places).all():
        raise InvalidArgument(f"width is {width:g}, too small for values as large as {np.abs(x).max():g}; raise it")
    if x.shape[1] == 1 and np.abs(places).max() < 2.0**63:
        return places[:, 0].astype(np.int64)
    return np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)


def _clusters(x: Floats, k: int, generator: np.random.Generator) -> Integers:
    """Return the cell of each of N points (N, d), by Lloyd's algorithm from k random points."""
    import warnings

    from scipy.cluster.vq import kmeans2

    distinct, cell = np.unique(x, axis=0, return_inverse=True)
    if len(distinct) <= k:
        return cell.reshape(-1)
    first = distinct[np.sort(generator.choice(len(distinct), size=k, replace=False))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about empty clusters, which are dropped
        return np.asarray(kmeans2(x, first, iter=LLOYD, minit="matrix")[1])


def _centered(x: Floats, cell: Integers) -> tuple[Integers, Floats]:
    """Renumber the cells without empty ones; also return the means of their points (N, d)."""
    _, first, cell = np.unique(cell, return_index=True, return_inverse=True)
    cell, start = cell.reshape(-1), x[first]
    # Averaging the offsets from one point of the cell makes the mean exact where all points of the cell are equal.
    off = [np.bincount(cell, weights=column) for column in (x - start[cell]).T]
    return cell, start + np.stack(off, axis=1) / np.bincount(cell)[:, None]


def _remembered(
    cells: list[Integers], centers: list[Floats], memory: int | None
) -> tuple[list[Integers], list[Floats]]:
    """Combine the last ``memory`` cells into states: the state of each path, and the centers of the current cells."""
    if memory is not None:
        check_count(memory, "memory", 1)
    if memory == 1:
        return cells, centers
    states, shown = [cells[0]], [centers[0]]
    for t in range(1, len(cells)):
        first = 0 if memory is None else max(0, t - memory + 1)
        history = np.stack(cells[first : t + 1], axis=1)
        known, state = np.unique(history, axis=0, return_inverse=True)
        states.append(state.reshape(-1))
        shown.append(centers[t][known[:, -1]])
    return states, shown


def _shares(now: Integers, after: Integers, shape: tuple[int, int]) -> Matrix:
    """Return P[i, j], the fraction of the paths in state i that move to state j; sparse if that is much smaller."""
    counts = sp.coo_array((np.ones(now.size), (now, after)), shape=shape).tocsr()
    counts.sum_duplicates()
    counts.data /= np.repeat(np.bincount(now, minlength=shape[0]), np.diff(counts.indptr))
    dense = max(shape) <= 64 or 4 * counts.nnz > shape[0] * shape[1]
    return counts.toarray() if dense else counts
