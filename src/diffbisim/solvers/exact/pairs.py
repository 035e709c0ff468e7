"""The pairs of states of a problem as a list of transports, and the trees and tables to start from.

A problem with the same supports as the previous one (a step of a fit, for example) starts from copies of its trees.
Only content matters here, never history: the list of pairs follows from the problem alone, and trees are reused if
their transports have the same supports.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from diffbisim import _engine
from diffbisim.common.arrays import Array
from diffbisim.common.stopping import engine_run
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors
from diffbisim.solvers.certify import Band, PlanErrors, band
from diffbisim.solvers.exact.evaluation import PairChain, Plans
from diffbisim.solvers.exact.transports import Basis, Items, PairSuccessors, Transports

Integers = NDArray[np.int64]

ALL: Integers = np.empty(0, np.int64)


class SolvedTransports(Protocol):
    """Transports that were solved before, and their problem."""

    @property
    def problem(self) -> ChainProblem: ...

    @property
    def transports(self) -> Transports: ...


def pair_items(problem: ChainProblem, reachable: bool) -> Items:
    """One item for every pair of states, or for those that some coupling can reach from the starts."""
    keys = sort_keys(problem.cost / (problem.scale or 1.0))
    items = Items.of(problem.x.successors, problem.y.successors, problem.shape[1], keys)
    if not reachable:
        return items
    seen = np.zeros(problem.cost.size, np.bool_)
    return items._replace(listed=reached(pair_successors(items.x, items.y), seen, first_pairs(problem)))


def first_pairs(problem: Any) -> Integers:
    """The flat pairs of states in which both can start."""
    return np.flatnonzero(np.outer(problem.x.initial > 0, problem.y.initial > 0))


def pair_successors(x: Successors, y: Successors) -> PairSuccessors:
    """For two chains, or any two kernels: pair (s, t) has the successors of rows s and t."""
    return PairSuccessors(x, y, (x.indptr.size - 1, y.indptr.size - 1), np.zeros((1, 2), np.int64))


def reached(successors: PairSuccessors, seen: NDArray[np.bool_], first: Integers) -> Integers:
    """The pairs that can be reached from ``first`` through pairs not ``seen`` yet, ascending; marks them as seen."""
    return np.sort(_engine.reachable(successors, seen, first, engine_run()))


def sort_keys(cost: Array, threads: int = 1) -> tuple[Array, Array]:
    """One number per state of X and of Y, such that states matched in sorted order are at low cost."""
    return _engine.sort_keys(np.ascontiguousarray(cost).ravel(), cost.shape[1], engine_run(threads))


def begin(
    problem: ChainProblem,
    reachable: bool,
    threads: int | None,
    known: SolvedTransports | None,
    narrow: bool = True,
    store: Any = None,
) -> Transports:
    """The transports of a problem, with copies of known trees if those fit; ``narrow`` allows narrow trees.

    The result depends on the two problems and the trees only: a run that is resumed from a file must take the same
    pivots as one that was not interrupted.
    """
    if known is None:
        return Transports(pair_items(problem, reachable), threads, narrow=narrow, store=store)
    old = known.transports
    sides = (old.items.x, problem.x.successors), (old.items.y, problem.y.successors)
    if not all(_same_successors(a, b) for a, b in sides):
        return Transports(pair_items(problem, reachable), threads, narrow=narrow, store=store)
    if reachable or old.items.listed.size or not np.array_equal(problem.cost, known.problem.cost):
        return begin_with(pair_items(problem, reachable), threads, old, narrow, store)
    # The order of first bases depends on the cost only, so a fit with a fixed cost need not sort again.
    items = old.items._replace(x=problem.x.successors, y=problem.y.successors)
    return begin_with(items, threads, old, narrow, store)


def begin_with(
    items: Items, threads: int | None, old: Transports | None, narrow: bool = False, store: Any = None
) -> Transports:
    """The transports of a list of items, with copies of the ``old`` trees if those have the same supports."""
    transports = Transports(items, threads, narrow=narrow, store=store)
    if old is None or not same_items(items, old.items):
        return transports
    np.copyto(transports.trees.child, old.trees.child)
    np.copyto(transports.trees.parent, old.trees.parent)
    if not transports.narrow:
        np.copyto(transports.trees.flow, old.flow)
    transports.basis = min(old.basis, Basis.OTHER)
    return transports


def same_items(items: Items, others: Items) -> bool:
    """Whether two lists have the same pairs with the same successors."""
    sides = (items.x, others.x), (items.y, others.y)
    return equal(items.listed, others.listed) and all(_same_successors(a, b) for a, b in sides)


def _same_successors(a: Successors, b: Successors) -> bool:
    return equal(a.indptr, b.indptr) and equal(a.indices, b.indices)


def equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays are the same or have the same entries."""
    return a is b or np.array_equal(a, b)


def first_table(problem: ChainProblem, values: Array | None) -> Array:
    """The scaled table to start from, flat: T 0 = (1-γ) c, or the ``values`` of a previous result.

    Both c and (1-γ) c have the same optimal plans, but if the present state matters little for the next ones, the fixed
    point is nearly (1-γ) c plus a constant, which has no effect.

    Values are clipped to the range of the costs, which contains the fixed point. Missing ones (NaN) are replaced by the
    cost.
    """
    scale = problem.scale or 1.0
    cost = problem.cost.ravel() / scale
    if values is None:
        return np.asarray((1 - problem.discount) * cost)
    with np.errstate(over="ignore"):
        table = values.ravel() / scale
    return np.where(np.isnan(table), cost, np.clip(table, cost.min(), cost.max()))


def bellman(problem: ChainProblem, transports: Transports, U: Array, price: float) -> tuple[Array, bool]:
    """T U at the listed pairs, (K,), for a scaled table; and whether every transport was solved to ``price``."""
    TU, listed = np.empty(transports.size), transports.items.listed
    solved = transports.solve(U, TU, price)
    cost = problem.cost.ravel()[listed if listed.size else slice(None)] / (problem.scale or 1.0)
    return (1 - problem.discount) * cost + problem.discount * TU, solved


def pair_chain(transports: Transports, discount: float) -> PairChain:
    """The chain of (listed) pairs that the present plans define."""
    listed, numbers = transports.items.listed, ALL
    if listed.size:
        numbers = np.full(int(listed[-1]) + 1, -1, np.int64)
        numbers[listed] = np.arange(listed.size)
    plans = Plans(transports.at, *transports.plans(numbers), ALL)
    return PairChain(plans, transports.size, discount, transports.threads)


def independent_occupancy(problem: ChainProblem, listed: Integers) -> Array:
    """The product of the occupancies of both chains, roughly, at the listed pairs: a law with the right marginals."""
    sides = []
    for chain in (problem.x, problem.y):
        rows = Plans(*chain.successors, ALL)
        own = PairChain(rows, chain.n_states, problem.discount, 1)
        sides.append(own.roughly_occupied(chain.initial))
    m = np.outer(*sides).ravel()
    return m[listed] if listed.size else m


def plan_errors(transports: Transports, blur: float = 0.0) -> PlanErrors:
    """What is known about the plans; ``blur`` is how far rows may differ from those that are certified."""
    t = transports
    return PlanErrors(t.nodes, t.unbalanced + blur, t.clipped, t.narrow)


def sweep_band(transports: Transports, change: tuple[float, float, float], discount: float, price: float) -> Band:
    """The band that a sweep proves, from the extremes of T U - U and the size of both tables."""
    return band(change, plan_errors(transports), discount, price)
