"""One contract for every solver, whatever it starts from, whatever it is asked to leave out, and however it ends.

    solver × what it starts from × how that came here × option × end × threads × kind of problem

A new solver, source, passage, option or end joins by one line in a table below. The product has some eighty thousand
combinations, of which about a thousand are tried: enough for every *pair* of values of any two factors, every triple
(solver, source, end), and for cold starts every (solver, option, end, threads) to occur. `make test-contract` tries all
combinations of the others, while the kinds of problems take turns: six thousand. (benchmarks/long/bounds.py draws from
the rest, as many as wanted.) The oracles are exact integers (oracles/enclosure.py) and, for the entropic
metric, decimals of fifty digits (oracles/entropic.py). What must hold is in `Checks`; what is refused by design is in
`REFUSED`.
"""

import copy
import os
import pickle
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import combinations, product
from itertools import cycle as cycled
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import run_all
from diffbisim.common import parallel, stopping
from diffbisim.results.base import Status
from diffbisim.solvers import Exact, LinearProgram, SinkhornPolicy, SinkhornValue, Somcot
from diffbisim.solvers.exact import small, transports
from diffbisim.solvers.exact.tracking import TrackingSolver as Follow
from oracles.enclosure import centered, truth
from oracles.entropic import entropic_truth
from oracles.kernels import cycle

pytestmark = pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")  # `solve` looks for them itself

EPSILON = 0.5  # of the entropic metric; costs below are of size one

# --- the problems ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Data:
    """Plain arrays; chains are made anew for every solve."""

    P_x: np.ndarray
    P_y: np.ndarray
    nu_x: np.ndarray
    nu_y: np.ndarray
    cost: np.ndarray
    discount: float
    sparse: bool = False

    def chains(self):
        form = sp.csr_array if self.sparse else np.array
        return [db.MarkovChain(form(P), initial=nu) for P, nu in ((self.P_x, self.nu_x), (self.P_y, self.nu_y))]

    @cached_property
    def arrays(self):
        """As the chains have them: rows that sum to one up to rounding."""
        X, Y = self.chains()
        P_x, P_y = (M.transition.toarray() if self.sparse else M.transition for M in (X, Y))
        return P_x, P_y, X.initial, Y.initial, self.cost, self.discount

    @cached_property
    def possible(self):
        """Pairs that some coupling reaches, (n_X, n_Y): closure under all pairs of successors."""
        P_x, P_y, nu_x, nu_y, *_ = self.arrays
        seen = np.outer(nu_x > 0, nu_y > 0)
        while (more := seen | ((P_x > 0).T @ seen @ (P_y > 0))).sum() > seen.sum():
            seen = more
        return seen


def random_data(seed, shape, zeros=0.0, discount=0.9, sparse=False):
    rng = np.random.default_rng([11, seed])

    def row(n):
        p = rng.dirichlet(np.ones(n)) * (rng.random(n) >= zeros)
        return p / p.sum() if p.sum() > 0 else np.eye(n)[rng.integers(n)]

    kernels = [np.array([row(n) for _ in range(n)]) for n in shape]
    return Data(*kernels, *(row(n) for n in shape), rng.random(shape), discount, sparse)


def made(P_x, P_y, cost, discount, start_x=0, start_y=0):
    """Starts are states or distributions."""
    P_x, P_y = np.array(P_x, dtype=float), np.array(P_y, dtype=float)
    starts = [np.eye(len(P))[s] if isinstance(s, int) else np.array(s) for P, s in ((P_x, start_x), (P_y, start_y))]
    return Data(P_x, P_y, *starts, np.array(cost, dtype=float), discount)


R3 = np.array([0.0, 0.3, 1.0])
HALF = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
TWINS = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.3, 0.3, 0.4]])
TINY = np.array([[1.0, 1e-300, 0.0], [1e-16, 1.0 - 2e-16, 1e-16], [0.0, 8.78e-16, 1.0]])

KINDS = {
    "dense": random_data(0, (3, 2)),
    "sparse": random_data(1, (4, 3), zeros=0.5, discount=0.95, sparse=True),
    "deterministic": made(np.eye(3)[[1, 2, 1]], np.eye(3)[[2, 0, 2]], abs(R3[:, None] - R3[::-1]), 0.5),
    "absorbing": made([[0.5, 0.5, 0], [0.2, 0.3, 0.5], [0, 0, 1]], [[0.9, 0.1], [0, 1]], R3[:, None] + [0, 0.25], 0.99),
    "sinks": made([[0, 1], [0, 1]], [[0, 1], [0, 1]], [[0.1, 0.1], [0.1, 0.7]], 0.5, 1, 1),
    "periodic": made(cycle(2), cycle(3), [[0.0, 1.0, 0.5], [0.7, 0.2, 1.0]], 0.95, [0.5, 0.5], 1),
    "identical": made(HALF, HALF, abs(R3[:, None] - R3), 0.9),
    "disconnected": made(np.eye(2), np.eye(2), [[0.0, 0.25], [1.0, 0.75]], 0.9),
    "ties": made(HALF, np.full((2, 2), 0.5), [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], 0.9, [0.5, 0.5, 0.0], [0.5, 0.5]),
    "twins": made(TWINS, TWINS, abs(R3[[0, 2, 1]][:, None] - [0.0, 0.5, 1.0]), 0.9),
    "lumps": made(HALF, HALF, [[0.0, 1.0, 0.5]] * 3, 0.9, 1, 2),
    "zero cost": made(HALF, [[0.2, 0.8], [1.0, 0.0]], np.zeros((3, 2)), 0.9),
    "tiny": made(TINY, [[1.0 - 1e-12, 1e-12], [5.5e-16, 1.0]], abs(R3[:, None] - [0.0, 1.0]), 0.9),
}


@cache
def plain_truth(kind, turned=False):
    data = other_start(KINDS[kind]) if turned else KINDS[kind]
    return truth(*data.arrays, gradient=True)


@cache
def soft_truth(kind):
    return entropic_truth(*KINDS[kind].arrays, EPSILON)


def other_start(data):
    return Data(data.P_x, data.P_y, np.roll(data.nu_x, 1), np.roll(data.nu_y, 1), data.cost, data.discount, data.sparse)


def other_chains(data):
    """The same shape; other supports, costs and discount."""
    return random_data(99, data.cost.shape, zeros=0.3, discount=0.7)


def other_cost(data, factor, lone=False):
    """Costs of another size; ``lone``: at the first pair only, so that the old table is huge where it is not zero."""
    cost = factor * np.random.default_rng(3).random(data.cost.shape)
    if lone:
        cost[:], cost[0, 0] = 0.0, factor
    return Data(data.P_x, data.P_y, data.nu_x, data.nu_y, cost, data.discount, data.sparse)


# --- the tables: solvers, options, ends, sources, passages ----------------------------------------------------------


@dataclass(frozen=True)
class Solver:
    """What a solver takes, and what it promises beyond true bounds."""

    make: Callable[..., Any]
    first: dict | None = None  # options that end it after its first iteration
    late: dict | None = None  # options that leave it no time
    stops: bool = True  # a callback can stop it
    reachable: bool = False  # it can leave out what no coupling reaches
    threads: bool = False
    estimate: bool = False  # ends as an estimate; occupancy and gradient are approximate
    soft: bool = False  # it computes the entropic metric
    table: float | None = None  # accuracy of the values, for costs of size one
    slope: float | None = None  # accuracy of the gradient
    unfinished: tuple = ()  # how it may end at its own end, besides "converged"
    constants: tuple = ()  # of modules, changed while it solves, so that it goes the way of large problems


#: No problem is small.
LARGE = ((small, "MAX_STATES", 0),)

ONE = {"max_iterations": 1}
LATE = {"time_limit": 1e-9}

EXACT = Solver(partial(Exact, tol=1e-10), ONE, {"time_limit": 0}, reachable=True, threads=True, table=1e-10, slope=1e-7)

SOLVERS = {
    "exact": EXACT,
    "exact, not small": replace(EXACT, constants=LARGE),
    "exact, very many pairs": replace(EXACT, constants=(*LARGE, (transports, "MANY", 0))),
    "exact, full rows": replace(EXACT, constants=(*LARGE, (transports, "DENSE_FROM", (2, 1)))),
    "lp": Solver(LinearProgram, ONE, LATE, stops=False, table=1e-8, slope=1e-5, unfinished=(Status.ROUNDING,)),
    "sinkhorn-policy": Solver(SinkhornPolicy, ONE, LATE, threads=True),
    "sinkhorn-value": Solver(SinkhornValue, ONE, LATE, threads=True),
    "entropic-policy": Solver(
        partial(SinkhornPolicy, epsilon=EPSILON), ONE, LATE, threads=True, soft=True, table=1e-8, slope=1e-6
    ),
    "entropic-value": Solver(
        partial(SinkhornValue, epsilon=EPSILON), ONE, LATE, threads=True, soft=True, table=1e-8, slope=1e-6
    ),
    "somcot": Solver(partial(Somcot, max_iterations=300), {"max_iterations": 1}, LATE, estimate=True),
    "follow": Solver(lambda **how: Follow(Exact(**how)), stops=False, reachable=True, threads=True, estimate=True),
}

OPTIONS = {"full": {}, "reachable": {"reachable": True}, "lumped": {"lump": True}}
OPTIONS["reachable lumped"] = OPTIONS["reachable"] | OPTIONS["lumped"]

ENDS = {
    "to the end": {Status.CONVERGED},
    "first iteration": {Status.CONVERGED, Status.ROUNDING, Status.ITERATIONS},
    "no time": {Status.CONVERGED, Status.ROUNDING, Status.TIME},
    "callback": {Status.CONVERGED, Status.ROUNDING, Status.INTERRUPTED},
}


def solve(data, name, option="full", end="to the end", threads=1, warm=None, cost=None):
    """The one place that knows how a combination is asked for; checks the warning on the way."""
    solver, asked = SOLVERS[name], dict(OPTIONS[option])
    how = {"first iteration": solver.first, "no time": solver.late}.get(end) or {}
    if solver.threads:
        how = how | {"threads": threads}
    if asked.pop("reachable", False):
        how = how | {"reachable": True}
    callback = (lambda row: True) if end == "callback" else None
    X, Y = data.chains()
    with split_small_work(threads), changed(solver.constants), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = data.cost.copy() if cost is None else cost
        result = db.distance(
            X, Y, table, data.discount, solver=solver.make(**how), warm=warm, callback=callback, **asked
        )
    assert cost is not None or np.array_equal(table, data.cost), "the cost was written to"
    warned = any(w.category is db.ConvergenceWarning and result.status in str(w.message) for w in caught)
    assert warned == (not result.converged and result.outcome is not Status.ESTIMATE), "a warning, or none"
    return result


@contextmanager
def changed(constants):
    """Constants of modules, for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for constant in constants:
            patch.setattr(*constant)
        yield


def split_small_work(threads):
    """With two threads, let them share even the smallest sweep."""
    modules = (parallel, transports) if threads > 1 else ()
    return changed(
        (*((module, "CHUNK", 1) for module in modules), *([(stopping, "SHARE", 1.0)] if threads > 1 else []))
    )


@cache
def buffer_of(kind):
    """The memory that one and the same cost function hands out in every call."""
    return np.empty_like(KINDS[kind].cost)


def aliased(data, name, option):
    """Solved for other numbers in the buffer, which `test_contract` then overwrites with those of the problem."""
    buffer = buffer_of(next(kind for kind, known in KINDS.items() if known is data))
    buffer[:] = data.cost[::-1, ::-1] + 0.5
    return solve(data, name, option, cost=lambda X, Y: buffer)


#: What a warm start may come from: (data, solver, option) -> result.
SOURCES = {
    "the same": lambda data, name, option: solve(data, name, option),
    "its first iteration": lambda data, name, option: solve(data, name, option, "first iteration"),
    "another start": lambda data, name, option: solve(other_start(data), name, option),
    "other chains": lambda data, name, option: solve(other_chains(data), name, option),
    "an aliased cost": aliased,
    "cost 1e-12": lambda data, name, option: solve(other_cost(data, 1e-12), name, option),
    "cost 1e12": lambda data, name, option: solve(other_cost(data, 1e12), name, option),
    "cost 1e18": lambda data, name, option: solve(other_cost(data, 1e18, lone=True), "exact"),
    "cost zero": lambda data, name, option: solve(other_cost(data, 0.0), name, option),
    "reachable": lambda data, name, option: solve(data, "exact", "reachable"),
    "reachable from another start": lambda data, name, option: solve(other_start(data), "exact", "reachable"),
    "lumped": lambda data, name, option: solve(data, name, "lumped"),
    "reachable lumped": lambda data, name, option: solve(data, "exact", "reachable lumped"),
}
SOURCES |= {f"by {by}": lambda data, name, option, by=by: solve(data, by) for by in SOLVERS}


def through_file(result):
    with tempfile.TemporaryDirectory() as where:
        result.save(f"{where}/result.npz")
        return db.load(f"{where}/result.npz")


#: How a result may come to where it is used.
PASSAGES = {
    "in memory": lambda result: result,
    "from a file": through_file,
    "pickled": lambda result: pickle.loads(pickle.dumps(result)),
    "copied": copy.copy,
    "deeply copied": copy.deepcopy,
}

#: Refused by design: what is asked (solver name, data) -> call, the error, its words, and for which solvers.
REFUSED = {
    "warm and lump": (
        lambda name, data: solve(data, name, "lumped", warm=solve(data, name)),
        "warm and lump cannot be combined",
        SOLVERS,
    ),
    "warm of another shape": (
        lambda name, data: solve(data, name, warm=solve(random_data(0, (2, 5)), name)),
        r"warm is a result for \(2, 5\) states",
        SOLVERS,
    ),
    "warm that is no result": (
        lambda name, data: solve(data, name, warm=0.5),
        "warm is a float",
        SOLVERS,
    ),
    "time_limit=0": (
        lambda name, data: SOLVERS[name].make(time_limit=0),
        "time_limit is 0; it must be positive",
        [name for name in SOLVERS if not SOLVERS[name].reachable],
    ),
    "the reward of what was not solved": (
        lambda name, data: solve(data, name, "reachable").implicit_reward(),
        "use reachable=False",
        [name for name in SOLVERS if SOLVERS[name].reachable],
    ),
    "a plan that was not solved": (
        lambda name, data: solve(data, name, "reachable").plan(1, 1),
        "cannot be reached from the starts",
        [name for name in SOLVERS if SOLVERS[name].reachable],
    ),
}


# --- what must hold -------------------------------------------------------------------------------------------------


def dense(matrix):
    """As an array; what a sparse gradient does not say is NaN."""
    if not sp.issparse(matrix):
        return np.asarray(matrix)
    full = np.full(matrix.shape, np.nan)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    full[rows, matrix.indices] = matrix.data
    return full


FIELDS = ("transition_x", "transition_y", "cost", "initial_x", "initial_y")


def bits(result):
    """All that a result says, to the last bit."""
    numbers = (*map(float, (result.value, result.lower, result.upper)), result.outcome.name, result.iterations)
    arrays = [result.values, result.occupancy, result.encoder, result.decoder, result.problem.cost]
    arrays += [dense(getattr(result.gradient, name)) for name in FIELDS]
    rows = [sorted(dict(row).items()) for row in result.history]
    return repr((numbers, result.solver, rows, sorted(result.work.items()))).encode() + b"".join(
        a.tobytes() for a in arrays
    )


def occupancy(P, nu, γ):
    return np.linalg.solve(np.eye(len(nu)) - γ * P.T, (1 - γ) * nu)


class Checks:
    """The contract, for one result; ``finished``: the run went to its own end."""

    def __init__(self, result, data, kind, solver, option, finished):
        self.result, self.data, self.solver = result, data, solver
        self.partial = bool(OPTIONS[option].get("reachable"))
        self.finished = finished and result.converged
        self.truth = soft_truth(kind) if solver.soft else plain_truth(kind)
        self.reached = data.possible if self.partial else np.full(data.cost.shape, True)

    def all(self):
        self.bounds()
        self.table()
        self.occupancy()
        self.gradient()

    def bounds(self):
        r, exact = self.result, self.truth
        assert r.lower <= r.value <= r.upper
        assert Fraction(r.lower) <= exact.upper, f"lower bound {r.lower} above the true {exact.value}"
        assert Fraction(r.upper) >= exact.lower, f"upper bound {r.upper} below the true {exact.value}"
        assert r.lower >= self.data.cost.min()
        assert r.upper <= self.data.cost.max()
        for row in r.history:
            assert Fraction(row["lower"]) <= exact.upper, "a row of history"
            assert Fraction(row["upper"]) >= exact.lower, "a row of history"
        tol = getattr(SOLVER_OBJECTS[id(self.solver)], "tol", None)
        assert not r.converged or r.gap <= 2.000001 * tol * self.data.cost.max()

    def table(self):
        values = self.result.values
        assert values.shape == self.data.cost.shape
        assert np.array_equal(np.isnan(values), ~self.reached), "NaN where it was not solved, and nowhere else"
        if self.finished and self.solver.table is not None:
            error = np.abs(values - self.truth.table)[self.reached].max()
            assert error <= self.solver.table, f"values off by {error:.1e}"

    def occupancy(self):
        r, (P_x, P_y, nu_x, nu_y, cost, γ) = self.result, self.data.arrays
        m = r.occupancy
        assert m.min() >= 0
        assert m.sum() == pytest.approx(1.0, rel=0, abs=1e-12)
        for rows in (r.encoder, r.decoder):
            np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=0, atol=1e-12)
        if not self.solver.estimate:
            np.testing.assert_allclose(m.sum(axis=1), occupancy(P_x, nu_x, γ), rtol=0, atol=1e-8)
            np.testing.assert_allclose(m.sum(axis=0), occupancy(P_y, nu_y, γ), rtol=0, atol=1e-8)
        if self.finished and self.solver.table is not None and not self.solver.soft:
            assert (m * cost).sum() == pytest.approx(self.truth.value, rel=0, abs=10 * self.solver.table)

    def gradient(self):
        """Right, or NaN where pairs were left out, or not said (sparse)."""
        r, data = self.result, self.data
        got = {name: dense(getattr(r.gradient, name)) for name in FIELDS}
        P_x, P_y, nu_x, nu_y, _, γ = data.arrays
        whole = not self.partial and not data.sparse
        for name, part in got.items():
            support = {"transition_x": P_x > 0, "transition_y": P_y > 0, "initial_x": nu_x > 0, "initial_y": nu_y > 0}
            known = np.isfinite(part)
            assert known.all() or (not whole and known[support[name]].all()), f"NaN in the gradient: {name}"
        if not self.finished or self.solver.slope is None:
            return
        np.testing.assert_array_equal(got["cost"], r.occupancy)
        exact = self.truth.gradient or self.from_potentials()
        for name, part in got.items():
            known = np.isfinite(part)
            error = np.abs(part - exact[name])[known].max()
            assert error <= self.solver.slope / (1 - γ), f"gradient.{name} off by {error:.1e}"

    def from_potentials(self):
        """At ties: from the result's own occupancy and potentials on the supports, extended by the true table."""
        r, (P_x, P_y, nu_x, nu_y, _, γ) = self.result, self.data.arrays
        V = self.truth.table / (1 - γ)
        by_x, by_y = np.zeros_like(P_x), np.zeros_like(P_y)
        for x, y in np.argwhere(r.occupancy > 0):
            f, g = self.extended(*r.potentials(int(x), int(y)), P_x[x], P_y[y], V)
            by_x[x] += γ * r.occupancy[x, y] * f
            by_y[y] += γ * r.occupancy[x, y] * g
        start = r.coupling.start
        f, g = self.extended(start.f / (1 - γ), start.g / (1 - γ), nu_x, nu_y, V)
        return {
            "transition_x": centered(by_x, P_x),
            "transition_y": centered(by_y, P_y),
            "cost": r.occupancy,
            "initial_x": centered((1 - γ) * f, nu_x),
            "initial_y": centered((1 - γ) * g, nu_y),
        }

    def extended(self, f, g, p, q, V):
        """Optimal potentials of (p, q) off their supports; that they are optimal is checked."""
        rows, cols = p > 0, q > 0
        slack = V[np.ix_(rows, cols)] - f[rows][:, None] - g[cols]
        tol = self.solver.slope / (1 - self.data.discount)
        assert slack.min() >= -tol, "potentials that are not feasible"
        return (V[:, cols] - g[cols]).min(axis=1), (V[rows] - f[rows][:, None]).min(axis=0)


SOLVER_OBJECTS = {id(solver): solver.make() for solver in SOLVERS.values()}


# --- the combinations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    solver: str
    option: str
    end: str
    threads: int
    source: str
    passage: str
    kind: str

    def __str__(self):
        return "-".join(map(str, vars(self).values())).replace(" ", "_")


def possible():
    """Every combination that makes sense; the kinds of problems take turns, two for each cold start."""
    kinds = cycled(KINDS)
    for name, solver in SOLVERS.items():
        without = {
            "first iteration": solver.first is None,
            "no time": solver.late is None,
            "callback": not solver.stops,
        }
        ends = [end for end in ENDS if not without.get(end)]
        for option, asked in OPTIONS.items():
            if asked.get("reachable") and not solver.reachable:
                continue
            starts = [("nothing", "in memory")] * 2
            if not asked.get("lump"):
                starts += [
                    pair for pair in product(SOURCES, PASSAGES) if solver.first or pair[0] != "its first iteration"
                ]
            for (source, passage), end, threads in product(starts, ends, (1, 2) if solver.threads else (1,)):
                yield Case(name, option, end, threads, source, passage, next(kinds))


def covered(case):
    """What one case tries: every pair of its values, some triples, and all but the kind if it starts cold."""
    values = vars(case)
    yield from combinations(values.items(), 2)
    yield case.solver, case.source, case.end
    if case.source == "nothing":
        yield case.solver, case.option, case.end, case.threads


def sample():
    """Cases of the product, in random but fixed order, that try something new; less those that others have made up for.

    A later case often tries all that was new in an earlier one.
    """
    every, seen, cases = list(possible()), set(), []
    random.Random(1).shuffle(every)
    for case in every:
        new = set(covered(case)) - seen
        if new:
            seen |= new
            cases.append(case)
    times, kept = Counter(what for case in cases for what in covered(case)), []
    for case in cases:
        if min(times[what] for what in covered(case)) > 1:
            times.subtract(covered(case))
        else:
            kept.append(case)
    return sorted(kept, key=str)


@cache
def source_of(source, kind, name, option):
    return SOURCES[source](KINDS[kind], name, option)


WHOLE = os.environ.get("DIFFBISIM_WHOLE_CONTRACT") == "1"
CASES = {case: k for k, case in enumerate(possible() if WHOLE else sample())}


@pytest.mark.parametrize(("solver", "end"), dict.fromkeys((case.solver, case.end) for case in CASES))
def test_contract(solver, end):
    run_all(keeps_the_contract, [{"case": case} for case in CASES if (case.solver, case.end) == (solver, end)])


def keeps_the_contract(case):
    data, solver = KINDS[case.kind], SOLVERS[case.solver]
    warm, before = None, b""
    if case.source != "nothing":
        found = source_of if case.source != "an aliased cost" else source_of.__wrapped__  # its buffer is written to
        warm = PASSAGES[case.passage](found(case.source, case.kind, case.solver, case.option))
        before = bits(warm)
    how = {"warm": warm}
    if case.source == "an aliased cost":
        buffer = buffer_of(case.kind)
        buffer[:] = data.cost
        how["cost"] = lambda X, Y: buffer
    result = solve(data, case.solver, case.option, case.end, case.threads, **how)
    ended = {Status.ESTIMATE} if solver.estimate else {*solver.unfinished}
    assert result.outcome in ENDS[case.end] | ended
    Checks(result, data, case.kind, solver, case.option, case.end == "to the end").all()
    if CASES[case] % 3 == 0:
        again = solve(data, case.solver, case.option, case.end, case.threads, **how)
        assert bits(again) == bits(result), "asked twice, answered differently"
    assert warm is None or bits(warm) == before, "the source was written to"


@pytest.mark.parametrize(
    ("name", "what"), [(name, what) for what, (*_, names) in REFUSED.items() for name in names], ids=str
)
def test_refused(name, what):
    ask, words, _ = REFUSED[what]
    with pytest.raises(db.DiffbisimError, match=words):
        ask(name, KINDS["disconnected"])


#: Every solver with every option that it takes.
ASKED = [
    (name, option)
    for name, solver in SOLVERS.items()
    for option, asked in OPTIONS.items()
    if solver.reachable or "reachable" not in asked
]


@pytest.mark.parametrize(("name", "option"), ASKED)
def test_a_result_is_the_same_after_every_passage(name, option):
    for kind, data in KINDS.items():
        result = solve(data, name, option)
        told = bits(result)
        for passage, through in PASSAGES.items():
            again = through(result)
            if passage == "from a file":  # what is computed on demand is computed anew
                alike(again, result)
                Checks(again, data, kind, SOLVERS[name], option, True).all()
            else:
                assert bits(again) == told, f"{kind}, {passage}"


def alike(one, other):
    """The same numbers and table; all that follows from them up to rounding."""
    for name in ("value", "lower", "upper", "outcome", "iterations", "solver", "history", "work"):
        assert getattr(one, name) == getattr(other, name)
    np.testing.assert_allclose(one.values, other.values, rtol=1e-15, atol=0)
    for name in ("occupancy", "encoder", "decoder"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-12)
    for name in FIELDS:
        mine, theirs = (dense(getattr(r.gradient, name)) for r in (one, other))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


def handed_out(result):
    """Every array and mapping that a result hands out, by name."""
    yield from ((name, getattr(result, name)) for name in ("values", "occupancy", "encoder", "decoder", "assignment"))
    yield from ((f"gradient.{name}", getattr(result.gradient, name)) for name in FIELDS)
    yield "problem.cost", result.problem.cost
    for side in ("x", "y"):
        chain = getattr(result.problem, side)
        yield from ((f"{side}.{name}", getattr(chain, name)) for name in ("transition", "initial"))
        yield from ((f"{side}.successors", part) for part in (chain.successors.indptr, chain.successors.indices))
        yield f"{side}.successors", chain.successors.probabilities
    x, y = (int(k) for k in np.argwhere(result.occupancy > 0)[0])
    yield "plan", result.plan(x, y)
    yield from (("potentials", part) for part in result.potentials(x, y))
    if result.coupling.complete:
        yield from (("duals", part) for part in (result.duals.alpha_x, result.duals.alpha_y))
        yield "implicit_reward", result.implicit_reward()
    yield from (("unvisited", part) for part in result.unvisited)
    yield from (("history", row) for row in result.history)
    yield "work", result.work
    yield from ((f"arrays.{name}", part) for name, part in result.arrays().items())


def vandalize(thing):
    """Write into it, if it lets itself be written to."""
    try:
        if isinstance(thing, np.ndarray):
            thing[...] = 0
        elif sp.issparse(thing):
            thing.data[...] = 0
        else:
            thing.update(dict.fromkeys(thing, -1))
    except (ValueError, TypeError, AttributeError):
        pass  # read-only


def breaking(data, name, option, passage):
    """What breaks a result when it is written into, for the message."""
    found = set()
    for k, (what, _) in enumerate(list(handed_out(solve(data, name, option)))):
        result = PASSAGES[passage](solve(data, name, option))
        told = bits(result)
        vandalize(list(handed_out(result))[k][1])
        try:
            if bits(result) != told:
                found.add(what)
        except Exception:
            found.add(what)
    return sorted(found)


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize(("name", "option"), ASKED)
def test_a_result_cannot_be_broken_by_writing_into_what_it_hands_out(name, option, passage):
    data = KINDS["dense"]
    result = PASSAGES[passage](solve(data, name, option))
    told = bits(result)
    for _, thing in list(handed_out(result)):
        vandalize(thing)
    try:
        whole = bits(result) == told
    except Exception:
        whole = False
    assert whole, f"broken by writing into {breaking(data, name, option, passage)}"
    if "lump" not in OPTIONS[option]:
        Checks(solve(data, name, option, warm=result), data, "dense", SOLVERS[name], option, True).all()


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize(("name", "option"), ASKED)
def test_a_result_does_not_keep_what_the_caller_owns(name, option, by_function):
    data, mine = KINDS["dense"], KINDS["dense"].cost.copy()
    result = solve(data, name, option, cost=(lambda X, Y: mine) if by_function else mine)
    mine[:] = 7.0
    Checks(result, data, "dense", SOLVERS[name], option, True).all()  # lazy parts are computed only now


def test_every_pair_occurs():
    """Not a test of the solvers: the sample is as good as the head of this file says."""
    seen = {what for case in CASES for what in covered(case)}
    assert seen == {what for case in possible() for what in covered(case)}
    for part, names in {"solver": SOLVERS, "option": OPTIONS, "end": ENDS, "passage": PASSAGES}.items():
        assert {getattr(case, part) for case in CASES} == set(names)
        assert {(getattr(case, part), case.kind) for case in CASES} == set(product(names, KINDS))
    assert {(case.source, case.kind) for case in CASES} == set(product(["nothing", *SOURCES], KINDS))
    for name, solver in SOLVERS.items():
        mine = {(case.option, case.end, case.threads) for case in CASES if case.solver == name}
        options = [o for o, asked in OPTIONS.items() if solver.reachable or "reachable" not in asked]
        ends = 1 + (solver.first is not None) + (solver.late is not None) + solver.stops
        assert len(mine) == len(options) * ends * (1 + solver.threads)


SAME_BITS = {
    "exact": Exact(),
    "reachable": Exact(reachable=True),
    "sinkhorn": SinkhornPolicy(),
    "entropic": SinkhornPolicy(epsilon=EPSILON),
    "lp": LinearProgram(),
    "tracking": Follow(Exact()),
}


@pytest.mark.parametrize("name", list(SAME_BITS))
def test_from_a_file_a_run_goes_on_as_from_memory(name, tmp_path):
    """Several problems in a row, everything changing by much: nothing but what is saved may be carried along."""
    rng, kept, loaded = np.random.default_rng(5), None, None
    for step in range(12):
        X, Y = (db.MarkovChain(rng.dirichlet(np.full(5, 0.4), 5), initial=rng.dirichlet(np.ones(5))) for _ in "XY")
        how = {"cost": rng.random((5, 5)), "discount": 0.9, "solver": SAME_BITS[name]}
        kept, again = db.distance(X, Y, warm=kept, **how), db.distance(X, Y, warm=loaded, **how)
        assert (again.value, again.lower, again.upper) == (kept.value, kept.lower, kept.upper), step
        assert again.work == kept.work
        assert np.array_equal(again.values, kept.values, equal_nan=True)
        again.save(tmp_path / "result.npz")
        loaded = db.load(tmp_path / "result.npz")
