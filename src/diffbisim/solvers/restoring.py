"""What a solver's state in a file must be before compiled code may read it.

The kernels index by what they are handed without looking: a tree that is no tree would read and write anywhere. So each
``restore`` first asks here whether the arrays are what ``state`` could have written:

    exact       one spanning tree per pair, rows against columns, parents first; flows that meet the marginals; and
                pairs that are all of them, or exactly those that the starts can reach
    followed    the same, but flows may lack mass (follow.py), and an occupancy
    lumped      a table over all pairs, or over those that the starts can reach
    sinkhorn    table and potentials, a temperature
    lp          plans that meet the marginals, tables, multipliers
    somcot      transitions in order, pending draws among them, iterates of the sizes these have, averages of mass one

and at last, on problems that are small enough (`CHECKED`), whether the bounds are true: `check_bounds`.

Letters as in kernels.py; ``arrays`` is what was read, by name. What does not fit raises `InvalidData`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.data.reader import entry, is_count, numbers
from diffbisim.errors import InvalidData
from diffbisim.problem import Problem
from diffbisim.results import DistanceResult
from diffbisim.solvers import kernels
from diffbisim.solvers.certify import Edges, over_x, over_y
from diffbisim.stochastic import Successors

if TYPE_CHECKING:
    from diffbisim.solvers.exact_coupling import ExactCoupling
    from diffbisim.solvers.somcot_state import State

Arrays = Mapping[str, Any]

TREE = ("child", "parent", "flow")

#: Bounds are checked by solving again where a sweep visits at most so many cells: about a tenth of a second.
CHECKED = 4_000_000

#: How far the marginals of a plan may be off: many times the rounding of the longest rows.
MARGINALS = 1e-9

#: No iterate of SOMCOT is larger than this: beyond, sums overflow.
LARGE = 1e100

EPS = float(np.finfo(float).eps)


# --- trees ------------------------------------------------------------------------------------------------------


def check_exact(problem: Problem, arrays: Arrays, feasible: bool = True) -> None:
    """Trees, flows, table and pairs of the exact solver; without ``feasible`` flows may be negative."""
    (n_x, n_y), x, y = problem.shape, problem.x.successors, problem.y.successors
    numbers(arrays, "U", (n_x * n_y,))
    pair = arrays.get("pair")
    if pair is None or pair.dtype != np.int64 or pair.ndim != 1:
        raise InvalidData("array 'pair' must be a list of integers")
    if pair.size and not np.array_equal(pair, reachable_pairs(problem)):
        raise InvalidData("array 'pair' does not list the pairs that the starts can reach")
    a, b = np.diff(x.indptr), np.diff(y.indptr)
    at = np.zeros((pair.size or n_x * n_y) + 1, np.int64)
    np.cumsum(a[pair // n_y] + b[pair % n_y] - 1 if pair.size else np.add.outer(a, b - 1).ravel(), out=at[1:])
    nodes = int(a.max() + b.max())
    index = np.int8 if nodes <= 128 else np.int16 if nodes <= 2**15 else np.int32
    z, what = _unfit(pair, (x, y), at, {name: arrays.get(name) for name in TREE}, index, feasible)
    if what:
        raise InvalidData(f"the {what.split()[0]} of pair ({z // n_y}, {z % n_y}) {what.partition(' ')[2]}")
    starts = [Successors.of(chain.initial[None, :]) for chain in (problem.x, problem.y)]
    at = np.array([0, sum(s.indices.size for s in starts) - 1])
    _, what = _unfit(pair[:0], tuple(starts), at, {name: arrays.get(f"start.{name}") for name in TREE}, np.int32, True)
    if what:
        raise InvalidData(f"the {what.split()[0]} of the starts {what.partition(' ')[2]}")


def _unfit(
    pair: NDArray[np.int64], sides: tuple[Successors, ...], at: NDArray[np.int64], arrays: Arrays, index: Any,
    feasible: bool,
) -> tuple[int, str]:  # fmt: skip
    """The first pair whose tree is none, and what is wrong with it; "" if all are as they should be."""
    (x, y), n_y = sides, sides[1].indptr.size - 1
    nodes = int(np.diff(x.indptr).max() + np.diff(y.indptr).max())
    child, parent = (numbers(arrays, name, (int(at[-1]),), index, least=0) for name in ("child", "parent"))
    flow = numbers(arrays, "flow", (int(at[-1]),), least=0.0 if feasible else -np.inf)
    k, why = kernels.first_unfit(
        pair, n_y, x.indptr, x.probabilities, y.indptr, y.probabilities, at, child, parent, flow, MARGINALS, nodes
    )
    where = int(pair[k]) if pair.size else int(k)
    return where, ("", "edges are no spanning tree", "flows do not meet the marginals")[why]


def reachable_pairs(problem: Problem) -> NDArray[np.int64]:
    """Flat numbers of the pairs that some coupling reaches from the starts, ascending."""
    from diffbisim.solvers.pairs import PairGrid

    return PairGrid(problem, reachable=True).pair


def check_followed(problem: Problem, arrays: Arrays) -> None:
    """The occupancy that goes with the trees."""
    m = numbers(arrays, "m", (problem.cost.size,), least=0.0, most=2.0)
    if abs(float(m.sum()) - 1.0) > 1e-6:
        raise InvalidData(f"array 'm' sums to {m.sum():g}; an occupancy sums to one")


# --- tables and potentials --------------------------------------------------------------------------------------


def check_lumped(problem: Problem, arrays: Arrays) -> None:
    """A table of all pairs, or of the reachable ones (at least) with NaN elsewhere."""
    table = numbers(arrays, "values", problem.shape, nan=True)
    missing = np.isnan(table).ravel()
    if missing.any() and missing[reachable_pairs(problem)].any():  # a class may have members out of reach
        raise InvalidData("array 'values' is NaN at pairs that the starts can reach")
    if "epsilon" in arrays:
        numbers(arrays, "epsilon", (), least=0.0)
    with np.errstate(over="ignore"):
        if np.isinf(table / (problem.scale or 1.0)).any():
            raise InvalidData("array 'values' has entries that are too large for the cost")


def check_sinkhorn(problem: Problem, arrays: Arrays) -> None:
    """Tables, potentials and temperatures."""
    n_x, n_y = problem.shape
    numbers(arrays, "U", (n_x * n_y,))
    numbers(arrays, "W", (n_x * n_y,))
    numbers(arrays, "F", (n_y * problem.x.n_transitions,))
    numbers(arrays, "G", (n_x * problem.y.n_transitions,))
    numbers(arrays, "beta", (), least=np.finfo(float).tiny)
    numbers(arrays, "epsilon", (), least=0.0)


def check_lp(problem: Problem, arrays: Arrays) -> None:
    """Primal and dual solution of the paper's program, and plans, values and potentials of all pairs."""
    ex, ey = Edges.of_kernel(problem.x), Edges.of_kernel(problem.y)
    n_y, plans = problem.shape[1], (ex.source.size, ey.source.size)
    starts = int(np.count_nonzero(problem.x.initial)), int(np.count_nonzero(problem.y.initial))
    numbers(arrays, "mass", plans, least=0.0)
    numbers(arrays, "start", starts, least=0.0)
    numbers(arrays, "subsolution", problem.shape)
    numbers(arrays, "f", (plans[0], n_y))
    numbers(arrays, "f_start", (starts[0], 1))
    numbers(arrays, "iterations", (), np.int64, least=0)
    numbers(arrays, "limit", (), np.bool_)
    table = numbers(arrays, "table", problem.shape)
    numbers(arrays, "potentials", (plans[0], n_y))
    A = numbers(arrays, "plans", plans, least=0.0)
    off = np.abs(over_y(A, ey) - ex.probability[:, None]).max(), np.abs(over_x(A, ex) - ey.probability).max()
    if not max(off) <= MARGINALS:
        raise InvalidData(f"array 'plans' misses the marginals by {max(off):.1e}")
    values = numbers(arrays, "values", problem.shape)
    if not np.allclose(values, np.ldexp(table, int(np.frexp(problem.scale)[1])), rtol=1e-12, atol=0.0):
        raise InvalidData("arrays 'values' and 'table' are not the same table")


# --- SOMCOT -----------------------------------------------------------------------------------------------------


def check_somcot(problem: Problem, arrays: Arrays, meta: Any) -> None:
    """All that a run needs to go on; ``meta`` is the JSON beside the arrays."""
    n_x, n_y = shape = problem.shape
    edges = [_check_side(arrays, side, n) for side, n in (("x", n_x), ("y", n_y))]
    flat = {"U": (n_y * edges[0].size,), "W": (n_x * edges[1].size,)}
    sizes: dict[str, tuple[int, ...]] = {**flat, "A": flat["U"], "B": flat["W"], "logit_y": (n_y, n_x)}
    sizes |= dict.fromkeys(("L", "S", "V", "logit_x", "start", "log_start"), shape)
    for name, size in {**sizes, "sums": (4, *shape)}.items():
        numbers(arrays, f"it.{name}", size, least=0.0 if name in ("start", "sums") else -LARGE, most=LARGE)
    numbers(arrays, "it.cold", (1,), np.int64, least=0, most=1)
    weight = float(numbers(arrays, "weight", (1,), least=0.0, most=LARGE)[0])
    done = int(numbers(arrays, "done", (1,), np.int64, least=0, most=2**62)[0])
    for shot in ("older", "newer"):
        if shot == "newer" and not any(name.startswith("newer.") for name in arrays):
            continue
        weight_then = float(numbers(arrays, f"{shot}.weight", (), least=0.0, most=LARGE))
        if weight_then > weight or (shot == "older" and weight_then == weight and done):
            raise InvalidData(f"array '{shot}.weight' is from after the end")
        for name, size in {**flat, "L": shape, "sums": (4, *shape)}.items():
            numbers(arrays, f"{shot}.{name}", size, least=-LARGE, most=LARGE)
    lengths = [_check_draws(arrays, f"pending{i}", n, edges[i]) for i, n in enumerate(shape)]
    chunk = entry(meta, "chunk", is_count, "an iteration")
    if lengths[0] != lengths[1] or not chunk <= done <= chunk + lengths[0]:
        raise InvalidData(f"the draws of iterations {chunk} to {chunk + lengths[0]} do not go on from iteration {done}")
    for name in ("fingerprints", "drawn"):
        entry(meta, name, lambda two: isinstance(two, list) and len(two) == 2 and all(map(is_count, two)), "two counts")
    entry(meta, "generators", lambda two: isinstance(two, list) and len(two) == 2, "two generators")


def check_averages(state: State, discount: float) -> None:
    """The averages that everything is read off: finite, and an occupancy."""
    if state.iterations == 0:
        return
    with np.errstate(all="ignore"):
        mean = state.averages(discount)
    parts = (mean.alpha_x, mean.alpha_y, mean.V, mean.m, mean.start, mean.lambda_x, mean.lambda_y)
    if not all(np.abs(part).max(initial=0.0) <= LARGE for part in parts):
        raise InvalidData("the averages overflow")
    for name, mass in (("m", mean.m), ("start", mean.start)):
        if mass.min() < -1e-6 or not abs(float(mass.sum()) - 1.0) <= 1e-3:
            raise InvalidData(f"the average of {name} sums to {mass.sum():g}, with entries from {mass.min():g}")


def _check_side(arrays: Arrays, side: str, n: int) -> NDArray[np.int64]:
    """The transitions of one chain as seen so far, as sorted keys ``source * n + to``."""
    at = numbers(arrays, f"{side}.at", (n + 1,), np.int64, least=0)
    size = int(at[-1])
    if at[0] != 0 or (np.diff(at) < 0).any() or size > n * n:
        raise InvalidData(f"array '{side}.at' does not ascend from 0")
    to = numbers(arrays, f"{side}.to", (size,), np.int64, least=0, most=n - 1)
    source = numbers(arrays, f"{side}.source", (size,), np.int64, least=0, most=n - 1)
    keys = np.asarray(source * n + to, dtype=np.int64)
    if not np.array_equal(source, np.repeat(np.arange(n), np.diff(at))) or (np.diff(keys) <= 0).any():
        raise InvalidData(f"the transitions of {side} are not in order")
    for name, length in (("counts", size), ("q", size), ("rho", n), ("initial", n)):
        numbers(arrays, f"{side}.{name}", (length,), least=0.0, most=LARGE)
    return keys


def _check_draws(arrays: Arrays, name: str, n: int, keys: NDArray[np.int64]) -> int:
    """The minibatches of a chunk, all of them transitions that are known; how many there are."""
    at = arrays.get(f"{name}.0")
    if at is None or at.dtype != np.int64 or at.ndim != 1 or at.size == 0 or at[0] != 0 or (np.diff(at) < 0).any():
        raise InvalidData(f"array '{name}.0' does not ascend from 0")
    size = (int(at[-1]),)
    s, after = (numbers(arrays, f"{name}.{k}", size, np.int64, least=0, most=n - 1) for k in (1, 2))
    numbers(arrays, f"{name}.3", size, least=0.0, most=LARGE)
    if not np.isin(s * n + after, keys).all():
        raise InvalidData(f"array '{name}.1' has transitions that are not among those seen")
    return int(at.size - 1)


# --- bounds -----------------------------------------------------------------------------------------------------


def check_bounds(result: DistanceResult) -> None:
    """Whether the distance is within the bounds, on problems that are small enough to find out.

    A converged result of the exact solver is taken at its word: one sweep from its table must give bounds within its
    own (they shrink from sweep to sweep), so that neither bounds nor table can be wrong. All others are solved again
    from their table, and the two intervals must meet. Bounds from min c to max c are always true.
    """
    from diffbisim.solvers.exact import Exact
    from diffbisim.solvers.exact_coupling import ExactCoupling
    from diffbisim.solvers.sinkhorn import SinkhornPolicy

    problem, coupling = result.problem, result.coupling
    if result.lower < 0:
        raise InvalidData(f"lower is {result.lower!r}; distances are not negative")
    if result.upper > problem.scale * (1 + 8 * EPS):
        raise InvalidData(f"upper is {result.upper!r}, above all costs")
    if problem.x.n_transitions * problem.y.n_transitions > CHECKED:
        return
    if type(coupling) is ExactCoupling and result.converged:
        low, high = _one_sweep(coupling)
        if not (result.lower <= low and high <= result.upper):
            raise InvalidData(
                f"the table certifies {low:.17g} to {high:.17g}, which is not within lower = {result.lower!r} and "
                f"upper = {result.upper!r}"
            )
        return
    epsilon = float(getattr(coupling, "epsilon", 0.0))
    solver: Any = Exact(tol=1e-9, max_iterations=30, reachable=not coupling.complete, threads=1)
    if epsilon:
        temperature = epsilon * (problem.scale or 1.0) / (1 - problem.discount)
        solver = SinkhornPolicy(tol=1e-6, epsilon=temperature, max_iterations=5, threads=1)
    again = solver.solve(problem, warm=result)
    if result.lower > again.upper or result.upper < again.lower:
        raise InvalidData(
            f"the distance is from {again.lower:.17g} to {again.upper:.17g}, not from lower = {result.lower!r} to "
            f"upper = {result.upper!r}"
        )


def _one_sweep(coupling: ExactCoupling) -> tuple[float, float]:
    """Bounds on the distance from one sweep over the table, less what rounding may have moved them."""
    from diffbisim.solvers.exact import PRICE
    from diffbisim.solvers.start import Transport

    problem, γ, U = coupling.problem, coupling.problem.discount, coupling.U
    grid = coupling.grid.again(problem, 1)
    TU = np.zeros_like(U)
    grid.improve(U, TU, PRICE)
    change = (TU - U)[grid.pair if grid.pair.size else slice(None)]
    low, high = float(change.min()), float(change.max())
    rows, cols = np.flatnonzero(problem.x.initial), np.flatnonzero(problem.y.initial)
    transport = Transport(problem.x.initial[rows], problem.y.initial[cols])
    value = transport.solve(TU.reshape(problem.shape)[np.ix_(rows, cols)], PRICE)
    slack = 64 * (grid.nodes + rows.size + cols.size) * EPS * max(1.0, float(np.abs(U).max())) / (1 - γ)
    scale, least = problem.scale, float(problem.cost.min())
    bounds = value + γ / (1 - γ) * low + slack, value + γ / (1 - γ) * high - slack
    return min(max(scale * bounds[0], least), scale), max(min(scale * bounds[1], scale), least)
