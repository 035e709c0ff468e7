"""Storage of results as ``.npz`` files with arrays and JSON, without pickle.

A result that contains a distance (fit, compression, imitation) stores the arrays of the distance with the prefix
``distance.``, its own arrays, and JSON under the name of its kind, by which `diffbisim.load` recognizes it.

Files are not trusted (arrays.py): chains, cost and discount are validated like the arguments of the constructors, and
the solver's state before compiled code uses it (the ``restore`` of its coupling). The bounds are verified or, if
that takes long and was not requested, replaced by bounds that hold for all problems with these costs
(:func:`verified`). No file, of whatever size, can thus present its own bounds as certified.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from diffbisim.common.errors import InvalidData
from diffbisim.io.arrays import (
    entry,
    is_count,
    is_history,
    is_number,
    is_row,
    json_array,
    part,
    prefixed,
    read_archive,
    read_json,
)
from diffbisim.io.files import refusing, replacing
from diffbisim.io.npz import chain_from_arrays
from diffbisim.problems import PROBLEMS, Discounted, FiniteHorizon, Game, Problem
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.base import DistanceResult, Status
from diffbisim.results.game import MDPResult
from diffbisim.results.horizon import HorizonResult
from diffbisim.solvers import COUPLINGS, restore_coupling

#: Version of the JSON format.
VERSION = 1


#: Problems with a coupling and a result of their own.
OWN_COUPLING: dict[type[Problem], str] = {Game: "GameCoupling", FiniteHorizon: "HorizonCoupling"}
RESULTS: dict[type[Problem], type[DistanceResult]] = {Game: MDPResult, FiniteHorizon: HorizonResult}

#: Without verify=True, bounds are verified only if a sweep visits at most this many cells (about 0.1 s).
MAX_CELLS_TO_VERIFY = 4_000_000


@contextmanager
def opened(
    path: str | Path, what: str = "saved result", remedy: str = "write one with result.save(path)"
) -> Iterator[dict[str, Any]]:
    """Open the arrays in a file; errors in the block are reported as "<file> is not a <what>"."""
    arrays = read_archive(path, what, remedy)
    with refusing(path, what, remedy):
        yield arrays


def write_built(
    path: str | Path, kind: str, meta: Mapping[str, Any], distance: DistanceResult, arrays: Mapping[str, Any]
) -> None:
    """Write a result that contains a distance, atomically."""
    text = json_array({f"diffbisim-{kind}": 1, **meta})
    with replacing(Path(path), binary=True) as file:
        np.savez(file, **{**arrays, **prefixed("distance.", distance.arrays()), kind: text})


def read_built(arrays: dict[str, Any], kind: str, verify: bool = False) -> tuple[dict[str, Any], DistanceResult]:
    """Return the JSON and the distance of a result written by `write_built`."""
    meta = read_json(arrays, kind)
    check_version(meta, f"diffbisim-{kind}")
    entry(meta, "history", is_history, "a list of rows of numbers")
    return meta, result_from_arrays(part(arrays, "distance."), verify)


def outcome_of(meta: dict[str, Any], distance: DistanceResult) -> Status:
    """Return how the run of a result ended; what ends with a distance that is not verified is not verified either."""
    outcome = Status[entry(meta, "outcome", lambda name: name in Status.__members__, "how a run can end")]
    return Status.NOT_VERIFIED if distance.outcome is Status.NOT_VERIFIED else outcome


def check_version(meta: Any, name: str) -> None:
    """Raise for files written by a newer version, and for other kinds of files."""
    if entry(meta, name, is_count, "the version of the format") > VERSION:
        raise InvalidData("it was written by a newer diffbisim; update diffbisim to read it")


def result_from_arrays(arrays: dict[str, Any], verify: bool = False) -> DistanceResult:
    """Restore a result from arrays, the inverse of :meth:`diffbisim.DistanceResult.arrays`.

    The bounds of large problems are verified only with ``verify=True``; see :func:`diffbisim.load`.
    """
    meta = read_json(arrays, "meta")
    check_version(meta, "diffbisim-result")
    lower, value, upper = (entry(meta, name, is_number, "a number") for name in ("lower", "value", "upper"))
    if not -np.inf < lower <= value <= upper < np.inf:
        raise InvalidData(f"lower = {lower!r}, value = {value!r}, upper = {upper!r} are not finite and in this order")
    outcome = Status[entry(meta, "outcome", lambda name: name in Status.__members__, "how a run can end")]
    iterations = entry(meta, "iterations", is_count, "a count")
    solver = entry(meta, "solver", lambda name: isinstance(name, str) and len(name) <= 100, "a name")
    history = entry(meta, "history", is_history, "a list of rows of numbers")
    work = entry(meta, "work", is_row, "counts by name")
    criterion = meta.setdefault("criterion", Discounted.criterion)  # missing in older files
    posed = PROBLEMS[entry(meta, "criterion", lambda name: name in PROBLEMS, f"one of {', '.join(PROBLEMS)}")]
    if posed is FiniteHorizon:
        meta.setdefault("coupling", "HorizonCoupling")  # missing in older files
    kind = entry(meta, "coupling", lambda name: name in COUPLINGS, f"one of {', '.join(COUPLINGS)}")
    if any((kind == name) != (one is posed) for one, name in OWN_COUPLING.items()):
        raise InvalidData(f"a {kind} does not belong to a problem with criterion {criterion!r}")
    problem = posed.from_arrays(arrays, meta)
    coupling = restore_coupling(kind, problem, part(arrays, "state."))
    result = RESULTS.get(posed, DistanceResult)(
        problem, float(value), float(lower), float(upper), outcome, iterations, solver, coupling, tuple(history), work
    )
    return verified(result, np.inf if verify else MAX_CELLS_TO_VERIFY)


def fitting_chain(arrays: dict[str, Any], found: DistanceResult) -> MarkovChain:
    """Return the stored chain, which must equal the second chain of the distance (except for rewards and names)."""
    chain, y = chain_from_arrays(part(arrays, "chain.")), found.problem.y
    same = chain.n_states == y.n_states and np.allclose(chain.initial, y.initial, rtol=0.0, atol=1e-9)
    if not same or abs(chain.successors.matrix - y.successors.matrix).max() > 1e-9:
        raise InvalidData("the chain differs from the second chain of the distance")
    return chain


def verified(result: DistanceResult, cells: float) -> DistanceResult:
    """Verify the bounds, and raise an error if they are wrong.

    For a converged result of the exact solver, one sweep from its table must give bounds within its own, since bounds
    shrink from sweep to sweep; this verifies both the bounds and the table. All other results are solved again from
    their table, and the two intervals must overlap; if this second run does not converge, its bounds are included.

    If a sweep visits more than ``cells`` cells, the bounds are replaced by those that hold for all problems with these
    costs, and the outcome says so.
    """
    from diffbisim.solvers.exact.coupling import ExactCoupling, one_sweep

    problem, coupling = result.problem, cast(Any, result.coupling)
    least, most = problem.value_range()
    if result.lower < 0:
        raise InvalidData(f"lower is {result.lower!r}; distances are non-negative")
    if result.upper > most * (1 + 8 * np.finfo(float).eps):
        raise InvalidData(f"upper is {result.upper!r}, above all costs")
    again: DistanceResult | None = None
    if type(problem) in OWN_COUPLING:
        again = coupling.check_bounds(result, cells)
    elif result.lower <= least and result.upper >= most and not result.converged:
        return result  # nothing is claimed
    elif problem.x.n_transitions * problem.y.n_transitions <= cells:
        if type(coupling) is ExactCoupling and result.converged:
            _check_sweep(result, *one_sweep(coupling))
            return result
        again = _solved_again(result)
    if again is None:
        value = min(max(result.value, least), most)
        return replace(result, value=value, lower=least, upper=most, outcome=Status.NOT_VERIFIED)
    if again.converged or (result.lower <= again.lower and again.upper <= result.upper):
        return result
    lower, upper = min(result.lower, again.lower), max(result.upper, again.upper)
    return replace(result, lower=lower, upper=upper, outcome=again.outcome)


def _check_sweep(result: DistanceResult, low: float, high: float) -> None:
    """Raise an error unless the bounds from a sweep are within those of the result."""
    if not (result.lower <= low and high <= result.upper):
        raise InvalidData(
            f"the table certifies the interval {low:.17g} to {high:.17g}, which is not within lower = "
            f"{result.lower!r} and upper = {result.upper!r}"
        )


def _solved_again(result: DistanceResult) -> DistanceResult:
    """Solve the problem of a result from its table; raise an error if the two intervals do not overlap."""
    from diffbisim.solvers import Exact, SinkhornPolicy

    problem, coupling = result.problem, cast(Any, result.coupling)
    solver: Any = Exact(tol=1e-9, max_iterations=30, reachable=not coupling.complete, threads=1)
    if coupling.epsilon:
        temperature = coupling.epsilon * (problem.scale or 1.0) / (1 - problem.discount)
        solver = SinkhornPolicy(tol=1e-6, epsilon=temperature, max_iterations=5, threads=1)
    again: DistanceResult = solver.solve(problem, warm=result)
    if result.lower > again.upper or result.upper < again.lower:
        raise InvalidData(
            f"the distance is between {again.lower:.17g} and {again.upper:.17g}, not between lower = {result.lower!r} "
            f"and upper = {result.upper!r}"
        )
    return again
