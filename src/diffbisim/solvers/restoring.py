"""What the state of a run in a file must be before a solver may go on from it.

Each ``restore`` first asks whether the arrays are what ``state`` could have written; compiled code indexes by what it
is handed without looking. Here are the checks of

    sinkhorn    table and potentials, a temperature
    lp          plans that meet the marginals, tables, multipliers
    somcot      transitions in order, pending draws among them, iterates of the sizes these have, averages of mass one

(the trees of the exact solver: exact/coupling.py). ``arrays`` is what was read, by name. What does not fit raises
`InvalidData`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.errors import InvalidData
from diffbisim.io.arrays import entry, is_count, numbers
from diffbisim.problem import Problem
from diffbisim.solvers.certify import Edges, over_x, over_y

Arrays = Mapping[str, Any]

#: How far the marginals of a plan may be off: many times the rounding of the longest rows.
MARGINALS = 1e-9

#: No iterate of SOMCOT is larger than this: beyond, sums overflow.
LARGE = 1e100


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


def check_averages(state: Any, discount: float) -> None:
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
