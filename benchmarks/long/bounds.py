"""Test of the certified bounds: random sequences of calls, checked by an oracle with more than double precision.

    python benchmarks/long/bounds.py [--instances 100000] [--seed 0] [--jobs 2] [--failures FOLDER]
    python benchmarks/long/bounds.py --replay FILE          one stored failure, step by step

An instance is a problem with 1 to 6 states per chain and one to four calls. Each call starts from the previous result
(in memory, or via a file, a pickle or a copy) or cold, after a change of the starts, kernels, costs, their size or the
discount. Solvers, options and the ways to end a run are drawn at random. The following are violations: a bound (also in
a row of history) that excludes the true value, lower <= value <= upper not holding, NaN, "converged" above tol, a table
of the exact solver that is off by more than tol, and any exception. True values come from oracles/enclosure.py
(integers) and oracles/entropic.py (decimals) of the tests, whose enclosures have widths of about 1e-39 and 1e-25 of the
largest cost.

The same seed gives the same instances for any number of processes. Instances with a violation are written as JSON to
the folder of failures. The files contain all arrays, so they can be replayed even if the generator has changed.
"""

import argparse
import copy
import json
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import diffbisim as db
from diffbisim.solvers import Exact, LinearProgram, SinkhornPolicy, SinkhornValue, Somcot
from diffbisim.solvers.exact import small, transports
from diffbisim.solvers.exact.tracking import TrackingSolver as Follow

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from oracles.enclosure import truth
from oracles.entropic import entropic_truth

SOLVERS = {
    "exact": (0.52, Exact),
    "lp": (0.07, LinearProgram),
    "sinkhorn-policy": (0.10, SinkhornPolicy),
    "sinkhorn-value": (0.08, SinkhornValue),
    "entropic-policy": (0.04, SinkhornPolicy),
    "entropic-value": (0.03, SinkhornValue),
    "somcot": (0.05, Somcot),
    "follow": (0.11, lambda **how: Follow(Exact(**how))),
}
PASSAGES = ("memory", "file", "pickle", "copy", "deepcopy")
ENDS = ("to the end", "first iteration", "second iteration", "no time", "callback")
DISCOUNTS = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
KERNELS = ("dense", "sparse", "deterministic", "ties", "near ties", "absorbing", "tiny", "frozen", "still", "periodic")
COSTS = ("random", "indicator", "rewards", "equal rows", "near ties", "one huge", "many sizes", "zero")
CHANGES = (
    "nothing", "starts", "kernels", "nudged kernels", "costs", "nudged costs", "size of costs", "far smaller costs",
    "discount", "all",
)  # fmt: skip


# --- random problems, as plain arrays -------------------------------------------------------------------------------


def kernel(rng, n, kind):
    """Return a random stochastic matrix."""
    P = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 5.0])), n)
    if kind in ("sparse", "absorbing"):
        P *= rng.random((n, n)) < 0.5
    elif kind in ("deterministic", "periodic"):
        P = np.eye(n)[np.roll(np.arange(n), 1) if kind == "periodic" else rng.integers(0, n, n)]
    elif kind in ("ties", "near ties"):
        P = rng.integers(0, 3, (n, n)).astype(float)
        if kind == "near ties":
            P *= 1 + rng.integers(-2, 3, (n, n)) * 2.0**-52
    elif kind == "tiny":
        P *= 10.0 ** -np.where(rng.random((n, n)) < 0.5, rng.uniform(5, rng.choice([18, 300]), (n, n)), 0)
    elif kind in ("frozen", "still"):
        away = 10.0 ** -rng.uniform(rng.choice([8, 15]), 17, (n, n)) * (rng.random((n, n)) < 0.5)
        P = np.eye(n) + (away * (1 - np.eye(n)) if kind == "frozen" else 0)
    P[np.arange(n), rng.integers(0, n, n)] += P.sum(axis=1) == 0
    if kind == "absorbing":
        P[-1] = np.eye(n)[-1]
    sums = P.sum(axis=1, keepdims=True)
    return np.where(np.abs(sums - 1) <= 4 * np.finfo(float).eps, P, P / sums)  # the chain handles rounding


def start(rng, n):
    nu = rng.dirichlet(np.ones(n)) * (rng.random(n) < 0.7)
    return nu / nu.sum() if nu.sum() > 0 and rng.random() < 0.5 else np.eye(n)[rng.integers(n)]


def costs(rng, shape, kind):
    """Return a random table of costs of size one."""
    c = rng.random(shape)
    if kind == "indicator":
        c = rng.integers(0, 2, shape).astype(float)
    elif kind == "rewards":
        r = rng.integers(0, 4, max(shape)) / 4 if rng.random() < 0.5 else rng.random(max(shape))
        c = np.abs(np.subtract.outer(r[: shape[0]], r[: shape[1]]))
    elif kind == "equal rows":
        c = c[rng.integers(0, shape[0], shape[0])][:, rng.integers(0, shape[1], shape[1])]
    elif kind == "near ties":
        c = rng.integers(1, 3, shape) * (1 + rng.integers(-2, 3, shape) * 2.0**-52)
    elif kind == "one huge":
        c[tuple(rng.integers(0, shape))] = 10.0 ** rng.uniform(3, 15)
    elif kind == "many sizes":
        c *= 10.0 ** -rng.uniform(0, 20, shape)
    elif kind == "zero":
        c = np.zeros(shape)
    return c


def size(rng):
    """Return a factor for costs, mostly moderate, sometimes extreme."""
    return 10.0 ** (rng.uniform(-3, 3) if rng.random() < 0.6 else rng.uniform(-20, 20) if rng.random() < 0.7 else
                    rng.uniform(-300, 299))  # fmt: skip


def problem(rng, largest=6):
    share = np.array([0.12, 0.3, 0.28, 0.15, 0.1, 0.05])[:largest]
    n_x, n_y = rng.choice(largest, 2, p=share / share.sum()) + 1
    P_x, P_y = kernel(rng, n_x, rng.choice(KERNELS)), kernel(rng, n_y, rng.choice(KERNELS))
    if n_x == n_y and rng.random() < 0.15:
        P_y = P_x.copy()
    c = costs(rng, (n_x, n_y), rng.choice(COSTS))
    return {
        "P_x": P_x, "P_y": P_y, "nu_x": start(rng, n_x), "nu_y": start(rng, n_y),
        "cost": c / (c.max() or 1) * size(rng), "discount": float(rng.choice(DISCOUNTS)),
        "sparse": bool(rng.random() < 0.2),
    }  # fmt: skip


def changed(rng, old, what):
    """Return the problem of the next call."""
    new, shape = dict(old), old["cost"].shape
    if what in ("starts", "all"):
        new |= {"nu_x": start(rng, shape[0]), "nu_y": start(rng, shape[1])}
    if what in ("kernels", "all"):
        new |= {f"P_{s}": kernel(rng, n, rng.choice(KERNELS)) for s, n in zip("xy", shape, strict=True)}
    if what == "nudged kernels":
        for s in ("P_x", "P_y"):
            P = old[s] * (1 + 10.0 ** rng.uniform(-15, -2) * rng.uniform(-1, 1, old[s].shape))
            new[s] = P / P.sum(axis=1, keepdims=True)
    if what in ("costs", "all"):
        c = costs(rng, shape, rng.choice(COSTS))
        new["cost"] = c / (c.max() or 1) * size(rng)
    if what == "nudged costs":
        new["cost"] = old["cost"] * (1 + 10.0 ** rng.uniform(-15, -2) * rng.uniform(-1, 1, shape))
    if what == "size of costs" and old["cost"].max() > 0:
        new["cost"] = old["cost"] / old["cost"].max() * size(rng)
    if what == "far smaller costs" and old["cost"].max() > 0:  # so that they are negligible relative to the old ones
        new["cost"] = costs(rng, shape, "indicator") * (old["cost"].max() * 10.0 ** -rng.uniform(12, 20))
    if what == "discount":
        new["discount"] = float(rng.choice(DISCOUNTS))
    return new


def asked(rng, data, warm):
    """Return solver, options, end and warm start of one call, as plain values."""
    names = list(SOLVERS)
    shares = np.array([SOLVERS[name][0] for name in names])
    while True:
        name = str(rng.choice(names, p=shares / shares.sum()))
        if not (name.startswith("entropic") and max(data["cost"].shape) > 3):
            break
    end, how = str(rng.choice(ENDS, p=[0.5, 0.2, 0.05, 0.15, 0.1])), {}
    if data["cost"].shape[0] == 1 and rng.random() < 0.1:
        name = "lp"
    if name in ("exact", "follow"):
        how["reachable"] = bool(rng.random() < 0.25)
    if name not in ("lp", "somcot"):
        how["threads"] = 1
    if name == "exact" and rng.random() < 0.3:
        how["tol"] = float(rng.choice([1e-2, 1e-5, 1e-12, 1e-15]))
    if name.startswith(("sinkhorn", "entropic")):
        how["max_iterations"] = int(rng.choice([3, 30]))
    if name.startswith("entropic"):
        how["epsilon"] = (data["cost"].max() or 1.0) * 10.0 ** rng.uniform(-1.0, 0.5) / (1 - data["discount"])
    if name == "somcot":
        how["max_iterations"] = 100
    if name != "follow":
        if end == "first iteration":
            how["max_iterations"] = 1
        elif end == "second iteration":
            how["max_iterations"] = 2
        elif end == "no time":
            how["time_limit"] = 0.0 if name == "exact" else 1e-9
    passage = str(rng.choice(PASSAGES, p=[0.5, 0.3, 0.08, 0.06, 0.06])) if warm else "cold"
    lump = not warm and bool(rng.random() < 0.25)
    return {"solver": name, "how": how, "end": end, "passage": passage, "lump": lump}


def instance(seed, k):
    """Return one problem and the calls on it and on its modifications."""
    rng = np.random.default_rng([2025, seed, k])
    data, calls = problem(rng), []
    for turn in range(rng.choice([1, 2, 3, 4], p=[0.35, 0.35, 0.2, 0.1])):
        if turn:
            data = changed(rng, data, rng.choice(CHANGES))
        calls.append({**data, **asked(rng, data, warm=turn > 0 and rng.random() < 0.9)})
    return calls


# --- running and checking -------------------------------------------------------------------------------------------


def run(calls, say=None):
    """Solve and check; return ``(counts of solves, list of violations, oracle gave up)``, keyed by (solver, state)."""
    solves, wrong, undecided, last = Counter(), [], 0, None
    for turn, call in enumerate(calls):
        key = (call["solver"], "lumped" if call["lump"] else call["passage"])
        solves[key] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", db.ConvergenceWarning)
                last = solve(call, None if call["passage"] == "cold" else through(last, call["passage"]))
                faults = list(violations(call, last))
        except UndecidedError:  # the result may still be used as a start for the next call
            undecided += 1
            continue
        except Exception as error:
            if say:
                traceback.print_exc()
            faults, last = [f"{type(error).__name__}: {error}"[:200]], None
        wrong += [(*key, turn, fault) for fault in faults]
        if say:
            say(turn, call, last, faults)
        if faults:
            break  # results that follow a wrong one are not informative
    return solves, wrong, undecided


class UndecidedError(Exception):
    """The oracle has no enclosure."""


def solve(call, warm):
    form = sp.csr_array if call["sparse"] else np.asarray
    X, Y = (db.MarkovChain(form(call[f"P_{s}"]), initial=call[f"nu_{s}"]) for s in "xy")
    stop = (lambda row: True) if call["end"] == "callback" else None
    solver = SOLVERS[call["solver"]][1](**call["how"])
    return db.distance(
        X, Y, call["cost"].copy(), call["discount"], solver=solver, lump=call["lump"], warm=warm, callback=stop
    )


def through(result, passage):
    if passage == "file":
        with tempfile.TemporaryDirectory() as folder:
            result.save(f"{folder}/result.npz")
            return db.load(f"{folder}/result.npz")
    if passage == "pickle":
        return pickle.loads(pickle.dumps(result))
    return {"memory": lambda r: r, "copy": copy.copy, "deepcopy": copy.deepcopy}[passage](result)


def true(result, epsilon):
    """Return the enclosure for the rows as stored in the chains."""
    p = result.problem
    P_x, P_y = (M.transition.toarray() if M.is_sparse else M.transition for M in (p.x, p.y))
    arrays = [np.asarray(a, dtype=np.float64) for a in (P_x, P_y, p.x.initial, p.y.initial, p.cost)]
    return _true(tuple((a.tobytes(), a.shape) for a in arrays), p.discount, epsilon)


@lru_cache(maxsize=8)
def _true(packed, discount, epsilon):
    arrays = [np.frombuffer(data).reshape(shape) for data, shape in packed]
    if not epsilon:
        return truth(*arrays, discount)
    try:
        return entropic_truth(*arrays, discount, epsilon)
    except AssertionError:
        raise UndecidedError from None


def violations(call, result):
    """Return descriptions of everything that is wrong with a result."""
    epsilon = call["how"].get("epsilon", 0.0)
    if not np.array_equal(result.problem.cost, call["cost"]):
        yield "it solved another cost"
    exact, scale = true(result, epsilon), call["cost"].max()
    if not result.lower <= result.value <= result.upper:
        yield f"not lower <= value <= upper: {result.lower!r} {result.value!r} {result.upper!r}"
        return
    for where, low, high in [("", result.lower, result.upper)] + [
        (" in the history", row["lower"], row["upper"]) for row in result.history
    ]:
        if not (np.isfinite(low) and np.isfinite(high)):
            yield f"bounds {low!r}, {high!r}{where}"
        elif Fraction(low) > exact.upper:
            yield f"lower bound {float(low)!r}{where} above the true {exact.value!r}"
        elif Fraction(high) < exact.lower:
            yield f"upper bound {float(high)!r}{where} below the true {exact.value!r}"
    solver = SOLVERS[call["solver"]][1](**call["how"])
    if result.converged and result.gap > 2 * solver.tol * scale * (1 + 1e-9):
        yield f"converged with a gap of {result.gap!r}, tol {solver.tol!r}"
    values = result.values
    if np.isnan(values).any() and not call["how"].get("reachable"):
        yield "NaN in the values"
    if call["solver"] == "exact" and result.converged and not call["lump"]:
        off = max(
            (abs(Fraction(float(v)) - (low + high) / 2) for v, low, high in
             zip(values.ravel(), exact.table_lower, exact.table_upper, strict=True) if not np.isnan(v)),
            default=0,
        )  # fmt: skip
        if off > Fraction(solver.tol) * Fraction(float(scale)):
            yield f"values off by {float(off)!r}, tol {solver.tol!r}, largest cost {scale!r}"


# --- files and tables -----------------------------------------------------------------------------------------------


def to_json(calls):
    return [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in call.items()} for call in calls]


def from_json(calls):
    return [{k: np.array(v, dtype=float) if isinstance(v, list) else v for k, v in call.items()} for call in calls]


def batch(seed, numbers):
    """Return solves, violations and undecided cases of some instances."""
    solves, wrong, undecided = Counter(), [], 0
    for k in numbers:
        some, faults, open_ones = run(instance(seed, k))
        solves.update(some)
        undecided += open_ones
        wrong += [(k, *fault) for fault in faults]
    return solves, wrong, undecided


def replay(path):
    def say(turn, call, result, faults):
        about = {k: call[k] for k in ("solver", "how", "end", "passage", "lump", "discount")}
        print(f"call {turn}: {about}")
        for name in ("P_x", "P_y", "nu_x", "nu_y", "cost"):
            print(f"  {name} = {call[name].tolist()}")
        if result is not None:
            print(f"  {result!r}\n  {result.outcome.name}, bounds {result.lower!r} {result.upper!r}")
            print(f"  true {true(result, call['how'].get('epsilon', 0.0)).value!r}")
        print(f"  wrong: {faults or 'nothing'}")

    run(from_json(json.loads(Path(path).read_text())["calls"]), say)


def as_large(narrow: bool, full: bool) -> None:
    """Use the code for very many pairs, or for hundreds of states with full rows, on small problems."""
    if narrow or full:
        small.MAX_STATES = 0
    if narrow:
        transports.MANY = 0
    if full:
        transports.DENSE_FROM = 2, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first instance")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", default="results/bounds", help="folder for instances with a violation")
    parser.add_argument("--replay", help="a stored failure")
    parser.add_argument("--narrow", action="store_true", help="store trees of few pairs as those of very many")
    parser.add_argument("--full", action="store_true", help="solve few full rows in the way of hundreds")
    settings = parser.parse_args()
    if settings.replay:
        replay(settings.replay)
        return
    numbers, began, done = range(settings.first, settings.first + settings.instances), time.monotonic(), 0
    batches = [numbers[i : i + 50] for i in range(0, len(numbers), 50)]
    solves, wrong, undecided = Counter(), [], 0
    ways = settings.narrow, settings.full
    with ProcessPoolExecutor(settings.jobs, initializer=as_large, initargs=ways) as pool:
        for part, (some, faults, open_ones) in zip(
            batches, pool.map(batch, [settings.seed] * len(batches), batches), strict=True
        ):
            solves.update(some)
            wrong += faults
            undecided += open_ones
            done += len(part)
            spent = time.monotonic() - began
            print(
                f"\r{done:,} of {len(numbers):,} instances, {len(wrong)} violations, {spent:.0f} s, "
                f"{spent / done * (len(numbers) - done):.0f} s to go ",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip
    print(file=sys.stderr)
    table(solves, wrong)
    print(
        f"{len(numbers):,} instances, {sum(solves.values()):,} solves, {len(wrong)} violations in {spent:.0f} s;",
        end="",
    )
    print(f" seed {settings.seed}, {undecided} without an enclosure of the entropic metric")
    folder = Path(settings.failures)
    for k in sorted({fault[0] for fault in wrong}):
        folder.mkdir(parents=True, exist_ok=True)
        faults = [fault for fault in wrong if fault[0] == k]
        content = {"seed": settings.seed, "instance": k, "faults": faults, "calls": to_json(instance(settings.seed, k))}
        (folder / f"{settings.seed}-{k}.json").write_text(json.dumps(content, indent=1))
        for _, name, state, turn, fault in faults[:1]:
            print(f"  {folder / f'{settings.seed}-{k}.json'}: call {turn}, {name}, {state}: {fault}")
    sys.exit(bool(wrong))


def table(solves, wrong):
    """Format solves and violations by solver and state."""
    states = ("cold", "lumped", *PASSAGES)
    bad = Counter((name, state) for _, name, state, _, _ in wrong)
    print(f"{'violations / solves':20s}" + "".join(f"{state:>14s}" for state in states))
    for name in SOLVERS:
        cells = (f"{bad[name, state]} / {solves[name, state]:,}" for state in states)
        print(f"{name:20s}" + "".join(f"{cell:>14s}" for cell in cells))


if __name__ == "__main__":
    main()
