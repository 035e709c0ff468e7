"""Compiled partition refinement for lumping.py.

The data structure is that of Valmari & Franceschinis (2010): the states are in one array and each block is a slice of
it, so that a block is split by reordering its slice.

    elements (n,)    states, block by block            place (n,)    position of each state in `elements`
    block (n,)       block of each state               first, last   slice of a block, elements[first:last]
    marked (n,)      number of states at the front of a block's slice that can reach the current splitter
    weight (n,)      probability of moving from a marked state into the splitter; zero for all others

Each round takes a block C (the splitter) off the worklist, sums the probabilities of moving into C along *incoming*
edges, and splits every block B that was reached wherever the sorted weights of its states have a gap above tol; states
that were not reached have weight zero. The largest part keeps the number of B, and its position on the worklist if it
has one; the others get new numbers and are added to the list. If B was not on the list, the largest part can be
skipped, since the probability of moving into B as a whole was compared before. Hence a state is in at most 1 + log2 n
splitters per pass: O(m log n) edges for m transitions, plus sorting.

*Actions.* An MDP has one kernel per action, and each splitter is used for all of them: the predecessors of t under
action a are in column a n + t. The splitter stays the set taken off the worklist, even if it is itself split under an
earlier action.

With a tolerance, the skipped comparisons hold only up to a few tol, so passes over all blocks are repeated until one of
them splits nothing, usually the second.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import njit

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Incoming(NamedTuple):
    """The predecessors of state t under action a, ``sources[indptr[k]:indptr[k + 1]]`` with k = a n + t."""

    indptr: Integers
    sources: Integers
    probabilities: Floats


class Partition(NamedTuple):
    elements: Integers
    place: Integers
    block: Integers
    first: Integers
    last: Integers
    marked: Integers


@njit(cache=True, nogil=True)
def refine(
    incoming: Incoming, block: Integers, n_blocks: int, tol: float, stop: NDArray[np.bool_]
) -> tuple[Integers, int, int, int]:
    """Return the blocks of the fixed point, their number, and the numbers of edges visited and of passes.

    ``block`` is the initial partition; ``stop (1,)`` requests an early return.
    """
    part = _partition(block, n_blocks)
    n = block.size
    weight, waiting = np.zeros(n), np.empty(n, dtype=np.int64)
    scanned, passes, settled = 0, 0, False
    while not settled:
        passes += 1
        n_before, n_waiting = n_blocks, n_blocks
        for b in range(n_blocks):
            waiting[b] = b
        while n_waiting > 0 and not stop[0]:
            n_waiting -= 1
            splitter = waiting[n_waiting]
            members = part.elements[part.first[splitter] : part.last[splitter]].copy()  # since splitting reorders
            for action in range((incoming.indptr.size - 1) // n):
                reached, edges = _accumulate(part, members, action * n, incoming, weight)
                scanned += edges
                for b in reached:
                    n_old = n_blocks
                    n_blocks = _split(part, b, weight, n_blocks, tol)
                    for new in range(n_old, n_blocks):
                        waiting[n_waiting] = new
                        n_waiting += 1
        settled = n_blocks == n_before
    return part.block, n_blocks, scanned, passes


@njit(cache=True, nogil=True)
def _partition(block: Integers, n_blocks: int) -> Partition:
    """Sort the states by block (counting sort)."""
    n = block.size
    first, last = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for s in range(n):
        last[block[s]] += 1
    for b in range(1, n_blocks):
        first[b] = first[b - 1] + last[b - 1]
    last = first.copy()
    elements, place = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for s in range(n):
        place[s] = last[block[s]]
        elements[place[s]] = s
        last[block[s]] += 1
    return Partition(elements, place, block.copy(), first, last, np.zeros(n, dtype=np.int64))


@njit(cache=True, nogil=True)
def _accumulate(
    part: Partition, members: Integers, first: int, incoming: Incoming, weight: Floats
) -> tuple[list[int], int]:
    """Sum the probability of moving into the members for each predecessor, mark it, and return the blocks reached.

    The column of state t is ``first + t``.
    """
    indptr, sources, probabilities = incoming
    reached = [0 for _ in range(0)]
    edges = 0
    for t in members:
        for k in range(indptr[first + t], indptr[first + t + 1]):
            s = sources[k]
            b = part.block[s]
            front = part.first[b] + part.marked[b]
            if part.place[s] >= front:
                if part.marked[b] == 0:
                    reached.append(b)
                _swap(part, part.place[s], front)
                part.marked[b] += 1
            weight[s] += probabilities[k]
        edges += indptr[first + t + 1] - indptr[first + t]
    return reached, edges


@njit(cache=True, nogil=True)
def _swap(part: Partition, i: int, j: int) -> None:
    a, b = part.elements[i], part.elements[j]
    part.elements[i], part.elements[j] = b, a
    part.place[a], part.place[b] = j, i


@njit(cache=True, nogil=True)
def _split(part: Partition, b: int, weight: Floats, n_blocks: int, tol: float) -> int:
    """Split block b where its weights have a gap above tol, unmark it, and return the new number of blocks."""
    first, last = part.first[b], part.last[b]
    middle = first + part.marked[b]
    states = part.elements[first:middle].copy()
    w = weight[states]
    floor = w.min() if middle == last else 0.0  # unmarked states have weight zero
    if w.max() - floor > tol:
        order = np.argsort(-w)  # descending, so that the unmarked states at the end of the slice continue the order
        states, w = states[order], w[order]
        for i in range(states.size):
            part.elements[first + i] = states[i]
            part.place[states[i]] = first + i
        cuts = [first]
        for i in range(1, states.size):
            if w[i - 1] - w[i] > tol:
                cuts.append(first + i)
        if middle < last and w[-1] > tol:
            cuts.append(middle)
        cuts.append(last)
        n_blocks = _renumber(part, b, cuts, n_blocks)
    for s in states:
        weight[s] = 0.0
    part.marked[b] = 0
    return n_blocks


@njit(cache=True, nogil=True)
def _renumber(part: Partition, b: int, cuts: list[int], n_blocks: int) -> int:
    """Turn each slice between two cuts into a block; the largest keeps the number b."""
    largest = 0
    for i in range(1, len(cuts) - 1):
        if cuts[i + 1] - cuts[i] > cuts[largest + 1] - cuts[largest]:
            largest = i
    for i in range(len(cuts) - 1):
        number = b if i == largest else n_blocks
        part.first[number], part.last[number] = cuts[i], cuts[i + 1]
        if i != largest:
            part.marked[number] = 0
            n_blocks += 1
            for place in range(cuts[i], cuts[i + 1]):
                part.block[part.elements[place]] = number
    return n_blocks
