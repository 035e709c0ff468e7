"""The counting behind an empirical chain: from weighted pairs to a kernel, and what to do where no data are.

Letters: i, j, w (m,) are sources, targets and positive weights; n states. Nothing here allocates n numbers
before it is known that n is sane, so that a state called 1000000000000 is an error and not a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.checks import ROUNDED, Floats, Integers, Matrix
from diffbisim.data import limits
from diffbisim.data.states import show
from diffbisim.errors import InvalidData

Pairs = tuple[Integers, Integers, Floats]

MOST_FILLED = 4 * 10**6  # entries that unseen="uniform" may add
SHOWN = 5  # states listed in a message


def kernel(pairs: Pairs, n: int, sparse: bool | None) -> Matrix:
    """Row-normalized sums of weights, (n, n): dense, or CSR when that is asked for or pays."""
    i, j, w = pairs
    counts = sp.csr_array((w, (i, j)), shape=(n, n))
    counts.sum_duplicates()
    sums = np.asarray(counts.sum(axis=1), dtype=np.float64)
    sums[np.abs(sums - 1.0) <= ROUNDED] = 1.0  # probabilities come through bit by bit
    counts.data /= np.repeat(sums, np.diff(counts.indptr))
    if sparse is None:
        sparse = n > 64 and counts.nnz < 0.25 * n * n
    return counts if sparse else counts.toarray()


def fill(pairs: Pairs, n: int, unseen: str, name: Callable[[int], Hashable]) -> Pairs:
    """Give every state without an outgoing transition a self-loop or a uniform row, or refuse."""
    i, j, w = pairs
    sources = _distinct(i, n)
    missing = n - sources.size
    if missing == 0:
        return pairs
    if unseen == "error":
        raise InvalidData(_unseen_message(sources, n, name))
    if n > limits.STATES:
        raise InvalidData(
            f"the largest state number is {n - 1}, which asks for {n} states; "
            'if the numbers are names, pass states=[...] or unseen="drop"'
        )
    gaps = np.setdiff1d(np.arange(n), sources, assume_unique=True)
    if unseen == "self-loop":
        return np.append(i, gaps), np.append(j, gaps), np.append(w, np.ones(missing))
    if missing * n > MOST_FILLED:
        raise InvalidData(
            f'unseen="uniform" would fill {missing} rows with {n} entries each; use unseen="self-loop" or unseen="drop"'
        )
    rows, columns = np.repeat(gaps, n), np.tile(np.arange(n), missing)
    return np.append(i, rows), np.append(j, columns), np.append(w, np.ones(rows.size))


def drop(pairs: Pairs, n: int) -> tuple[Pairs, Integers]:
    """The pairs among the states with an infinite path, renumbered, and the old numbers of these states."""
    i, j, w = pairs
    seen = _distinct(np.concatenate([i, j]), n)
    i, j = np.searchsorted(seen, i), np.searchsorted(seen, j)
    keep = _reach_a_cycle(i, j, seen.size)
    if not keep.any():
        raise InvalidData(
            'unseen="drop" leaves no state: every path in the data ends; '
            'use unseen="self-loop" if the last states are absorbing'
        )
    renumbered = np.cumsum(keep) - 1
    inside = keep[i] & keep[j]
    return (renumbered[i[inside]], renumbered[j[inside]], w[inside]), seen[keep]


def _reach_a_cycle(i: Integers, j: Integers, n: int) -> Any:
    """Mask (n,) of the states from which a cycle can be reached."""
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    graph = sp.csr_array((np.ones(i.size), (i, j)), shape=(n, n))
    _, component = connected_components(graph, connection="strong")
    on_cycle = np.bincount(component)[component] > 1
    on_cycle[i[i == j]] = True
    # Walk the arrows backwards from an extra node n that points at every state on a cycle.
    targets = np.flatnonzero(on_cycle)
    back_i, back_j = np.append(j, np.full(targets.size, n)), np.append(i, targets)
    graph = sp.csr_array((np.ones(back_i.size), (back_i, back_j)), shape=(n + 1, n + 1))
    reached = np.zeros(n + 1, dtype=bool)
    reached[breadth_first_order(graph, n, return_predecessors=False)] = True
    return reached[:n]


def _distinct(i: Integers, n: int) -> Integers:
    """The distinct values of i, ascending; by counting when n is of the size of the data."""
    if n <= 4 * i.size + 1024:
        return np.flatnonzero(np.bincount(i, minlength=n))
    return np.unique(i)


def _unseen_message(sources: Integers, n: int, name: Callable[[int], Hashable]) -> str:
    candidates = np.arange(min(n, sources.size + SHOWN))  # the first few gaps are among these
    gaps = np.setdiff1d(candidates, sources, assume_unique=True)[:SHOWN]
    missing = n - sources.size
    names = show([name(int(k)) for k in gaps], missing)
    return (
        f"{missing} of {n} states have no outgoing transition: {names}; "
        'pass unseen="self-loop" (they are absorbing), "uniform" (anything can follow) or "drop" (leave them '
        "out), or states=[...] if the numbers are names"
    )
