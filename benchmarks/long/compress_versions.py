"""``compress`` of two versions on the same chains of 40 to 200 states, in one run: processor time and distance.

    python benchmarks/long/compress_versions.py ../before/src
    python benchmarks/long/compress_versions.py ../before/src --chains 48 --seed 3

The chains are of eight kinds (obvious_searches.py). Each version runs in a process of its own, on one thread; they take
the chains in turn. A line shows a chain, the times of this version and of the one before with their ratio, and the
distances with their ratio.
"""

import argparse
import os
import sys
import time
import warnings
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
from obvious_searches import CHAINS, HORIZONS, Inline, kernel

import diffbisim as db


def chain(seed: int, case: int) -> tuple[Any, int, float]:
    """Return a chain, the number of small states and the discount of a case."""
    rng = np.random.default_rng([47, seed, case])
    n, k = int(rng.integers(40, 201)), int(rng.integers(2, 9))
    P, r = kernel(CHAINS[case % 8], rng, n)
    start = np.full(n, 1 / n) if case % 3 else rng.dirichlet(np.full(n, 0.2))
    P = P / P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=start, rewards=r), k, HORIZONS[int(rng.integers(6))]


def work() -> None:
    """Compress the cases on standard input; every version runs this."""
    warnings.simplefilter("ignore")
    for warm in range(8):  # whatever a version does when it is first called
        X, k, γ = chain(10**6, warm)
        db.compress(X, k, γ, restarts=2, executor=Inline())
    for line in sys.stdin:
        X, k, γ = chain(*map(int, line.split()))
        began = time.process_time()
        found = db.compress(X, k, γ, executor=Inline())
        print(time.process_time() - began, found.distance.value, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", help="sources of the version to compare with")
    parser.add_argument("--chains", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work()
        return
    alone = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    workers = [
        Popen([sys.executable, __file__, "--work"], stdin=PIPE, stdout=PIPE, text=True, env=alone | path)
        for path in ({}, {} if args.before is None else {"PYTHONPATH": args.before})
    ]
    rows = []
    for case in range(args.chains):
        X, k, γ = chain(args.seed, case)
        row: list[float] = []
        for worker in workers:
            print(args.seed, case, file=worker.stdin, flush=True)
            row += map(float, worker.stdout.readline().split())  # type: ignore[union-attr]
        rows.append(row)
        now, value, before, other = row
        print(f"{CHAINS[case % 8]:10} {X.n_states:4} to {k}, γ = {γ:<5}", end="  ")
        print(f"{now:7.3f} s, before {before:7.3f} s: {before / now:5.2f} times as fast", end="   ")
        print(f"{value:.8f}, before {other:.8f}: {value / other:.4f}", flush=True)
    for worker in workers:
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()
    now, value, before, other = np.array(rows).T
    faster, farther = before / now, np.maximum(value, 1e-9) / np.maximum(other, 1e-9)
    total = before.sum() / now.sum()
    print(f"times as fast: median {np.median(faster):.2f}, least {faster.min():.2f}, in sum {total:.2f}")
    order = np.sort(farther)
    print(f"distances: geometric mean {np.exp(np.log(farther).mean()):.5f}", end=", ")
    print(f"largest {order[-3:].round(4)}, least {order[:3].round(4)}", end=", ")
    print(f"{(farther > 1 + 1e-6).sum()} larger, {(farther < 1 - 1e-6).sum()} smaller")


if __name__ == "__main__":
    main()
