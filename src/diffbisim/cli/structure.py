"""The shape of a chain: which states are never left, which reach each other, how long its cycles are.

Two states communicate if each can reach the other. A class is *closed* if no transition leaves it; the period of a
closed class is the greatest common divisor of the lengths of its cycles: with d(u) the number of steps from one of its
states to u, the gcd of d(u) + 1 - d(v) over its transitions u → v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

from diffbisim.chain import MarkovChain
from diffbisim.checks import Integers


@dataclass(frozen=True, eq=False)
class Structure:
    absorbing: Integers  # states that are never left, ascending
    reachable: int  # states that can be reached from the start
    n_classes: int  # communicating classes
    periods: Integers  # (n_closed,) of the closed ones


def structure(chain: MarkovChain) -> Structure:
    """Everything in one pass over the transitions."""
    s, n = chain.successors, chain.n_states
    source = s.sources
    graph = sp.csr_array((np.ones(s.indices.size), s.indices, s.indptr), shape=(n, n))
    stays = np.ones(n, dtype=bool)
    stays[source[source != s.indices]] = False
    n_classes, label = connected_components(graph, connection="strong")  # type: ignore[arg-type]
    return Structure(
        absorbing=np.flatnonzero(stays),
        reachable=int(np.isfinite(_steps(graph, np.flatnonzero(chain.initial))).sum()),
        n_classes=int(n_classes),
        periods=_periods(graph, source, label.astype(np.int64), int(n_classes)),
    )


def _steps(graph: sp.csr_array, start: Integers) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Fewest steps from one of the states in ``start``; infinite where there is no path."""
    return np.asarray(dijkstra(graph, unweighted=True, indices=start, min_only=True))


def _periods(graph: sp.csr_array, source: Integers, label: Integers, n_classes: int) -> Integers:
    target = graph.indices
    closed = np.ones(n_classes, dtype=bool)
    closed[label[source[label[source] != label[target]]]] = False
    first = np.unique(label, return_index=True)[1]
    inside = closed[label[source]]
    steps = _steps(graph, first[closed])
    lengths = np.abs(steps[source[inside]] + 1 - steps[target[inside]]).astype(np.int64)
    periods = np.zeros(n_classes, dtype=np.int64)
    np.gcd.at(periods, label[source[inside]], lengths)
    return periods[closed]
