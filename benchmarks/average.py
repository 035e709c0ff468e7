"""Speed of the average-cost criterion compared with pyotc's exact solver, in one run.

    python benchmarks/average.py               both tables; pyotc takes minutes to hours
    python benchmarks/average.py --quick       smaller graphs
    python benchmarks/average.py --only blocks 100

pyotc is the reference implementation of optimal transition coupling: policy iteration with POT's ``ot.emd`` for every
pair, with the average cost of a coupling from a linear system with three unknowns per pair. Its dense backend stores
that system, (3N)² numbers for N pairs: 180 MB for 40 × 40 states and 7 GB for 100 × 100, for which the sparse backend
is used instead. It returns None if it does not converge ("nan" in the table).

Both solve the same problems: walks on two dense graphs with random weights, and on two samples of pyotc's own
stochastic block model, with four blocks and edge probabilities of 0.9 within and 0.1 between blocks. The cost is the
squared difference of degrees. Each run of pyotc is a separate process that is stopped after LIMIT seconds; its ratio is
then "at least". Our result is certified to 1e-11 of the largest cost, here 1e-8 of the value or better. It must not
exceed pyotc's value, up to the error of pyotc's own arithmetic. To tell the two apart, the bounds are computed again
from our bias table W by POT's transports, with duals made feasible: min (c + OT_W - W) ≤ g ≤ max (c + OT_W - W). Our
time is the best of three, with compiled kernels. Times are processor times of all threads, which other programs affect
least.
"""

import argparse
import io
import json
import resource
import subprocess
import sys
import time
from contextlib import redirect_stdout

import numpy as np

import diffbisim as db
from diffbisim.common.arrays import Array

TOL, LIMIT = 1e-11, 3_600
BLOCKS = np.where(np.eye(4, dtype=bool), 0.9, 0.1)


def dense_graph(n: int, seed: int) -> Array:
    """Return a complete graph with random symmetric weights."""
    weights = np.random.default_rng(seed).random((n, n))
    return np.asarray(weights + weights.T)


def block_graph(n: int, seed: int) -> Array:
    """Return a sample of pyotc's stochastic block model."""
    from pyotc.examples.stochastic_block_model import stochastic_block_model

    np.random.seed(seed)  # noqa: NPY002 - pyotc uses numpy's global generator
    return np.asarray(stochastic_block_model((n // 4,) * 4, BLOCKS))


GRAPHS = {"dense": dense_graph, "blocks": block_graph}
BACKEND = {"dense": "dense", "blocks": "sparse"}


def problem(kind: str, n: int) -> tuple[Array, Array, Array]:
    """Return two kernels and a cost."""
    graphs = GRAPHS[kind](n, 0), GRAPHS[kind](n, 1)
    degrees = [graph.sum(axis=1) for graph in graphs]
    P, Q = (graph / degree[:, None] for graph, degree in zip(graphs, degrees, strict=True))
    return P, Q, np.subtract.outer(*degrees) ** 2


def ours(kind: str, n: int) -> tuple[db.DistanceResult, float]:
    """Return our result and the best of three times."""
    P, Q, cost = problem(kind, n)
    X, Y, times = db.MarkovChain(P), db.MarkovChain(Q), []
    for _ in range(3):
        began = time.process_time()
        result = db.distance(X, Y, cost, criterion="average", tol=TOL)
        times.append(time.process_time() - began)
    return result, min(times)


def bounds_by_pot(result: db.DistanceResult, kind: str, n: int) -> tuple[float, float]:
    """Return bounds on the average cost from our bias table and POT's transports alone."""
    import ot

    P, Q, cost = problem(kind, n)
    W = result.coupling.W.reshape(n, n) * result.problem.scale
    lower, upper = np.inf, -np.inf
    for x, y in np.ndindex(n, n):
        to_x, to_y = np.flatnonzero(P[x]), np.flatnonzero(Q[y])
        p, q, costs = P[x, to_x], Q[y, to_y], np.ascontiguousarray(W[np.ix_(to_x, to_y)])
        plan, log = ot.emd(p, q, costs, log=True)
        f = log["u"]
        g = (costs - f[:, None]).min(axis=0)  # the largest g with f + g <= costs
        lower = min(lower, cost[x, y] + p @ f + q @ g - W[x, y])
        upper = max(upper, cost[x, y] + np.sum(plan * costs) - W[x, y])
    return float(lower), float(upper)


def processor_time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def theirs(kind: str, n: int, backend: str, limit: float) -> tuple[float | None, float]:
    """Return pyotc's value and time from a separate process; NaN if it did not converge, None if it was stopped."""
    call = [sys.executable, __file__, "--peer", kind, str(n), backend]
    began = processor_time_of_children()
    try:
        text = subprocess.run(call, capture_output=True, text=True, check=True, timeout=limit).stdout
    except subprocess.TimeoutExpired:
        return None, processor_time_of_children() - began
    answer = json.loads(text)
    return (np.nan if answer["value"] is None else answer["value"]), answer["seconds"]


def peer(kind: str, n: int, backend: str) -> None:
    """Run pyotc in that process."""
    from pyotc.otc import exact_otc

    given = problem(kind, n)
    began = time.process_time()
    with redirect_stdout(io.StringIO()):
        value, _, _ = exact_otc(*given, backend=backend)
    print(json.dumps({"value": value, "seconds": time.process_time() - began}))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument(
        "--only", nargs=2, metavar=("KIND", "STATES"), help='one case: "dense" or "blocks", and its size'
    )
    arguments.add_argument("--limit", type=float, default=LIMIT, help="seconds for each run of pyotc")
    arguments.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.peer:
        peer(given.peer[0], int(given.peer[1]), given.peer[2])
        return
    ours("dense", 4)  # compile
    sizes = {"dense": (16, 24), "blocks": (16, 24)} if given.quick else {"dense": (24, 40), "blocks": (40, 100)}
    if given.only:
        sizes = {given.only[0]: (int(given.only[1]),)}
    print("| graphs | states | ours, gap / value | bounds by POT / ours - 1 | pyotc / ours - 1 | times |")
    print("|---|---|---|---|---|---|")
    for kind, list_of_n in sizes.items():
        for n in list_of_n:
            result, fast = ours(kind, n)
            value, slow = theirs(kind, n, BACKEND[kind], given.limit)
            above = "stopped" if value is None else f"{value / result.value - 1:.1e}"
            low, high = (f"{bound / result.value - 1:.0e}" for bound in bounds_by_pot(result, kind, n))
            ratio = f"{'at least ' if value is None else ''}{slow / fast:.0f}"
            gap = f"{result.gap / result.value:.0e}"
            print(f"| {kind} | {n} x {n} | {fast:.3f} s, {gap} | {low}, {high} | {above} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
