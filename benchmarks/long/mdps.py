"""Truth of the metrics of MDPs with actions, on many random ones.

    python benchmarks/long/mdps.py                       240 MDPs and 2,400 value bounds (about ten minutes)
    python benchmarks/long/mdps.py --mdps 30 --bounds 200

1. Against value iteration with one ``ot.emd2`` per pair and choice of actions, to within 1e-9: every entry of
   ``values`` within 1e-7, and the true table within ``values_lower`` and ``values_upper``, also of runs that were
   stopped after one or two rounds, and that began from the result of another MDP. Matched, lax and directed; one MDP
   with itself, and two of different sizes (lax ones with different actions).
2. |v*(s) - v̂*(t)| ≤ values_upper (directed: without the absolute value) against optimal values by value iteration.

Prints the worst figures; ends with an error if anything is violated.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import diffbisim as db

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from oracles import games

KINDS, MODES, DISCOUNTS = ("dense", "garnet", "deterministic"), ("matched", "lax", "directed"), (0.5, 0.8, 0.9)


def emd_transports(P: Any, Q: Any, U: Any) -> Any:
    """The oracle's list of transports by POT, which is faster than a linear program."""
    import ot

    table = np.ascontiguousarray(U)
    return np.array([ot.emd2(p, q, table) for p, q in zip(P, Q, strict=True)])


def drawn(seed: int) -> tuple[Any, ...]:
    """(P, r, Q, r̂, mode, γ), deterministic in the seed; every fourth is one MDP with itself."""
    rng = np.random.default_rng([41, seed])
    kind, mode, γ = KINDS[seed % 3], MODES[(seed // 3) % 3], DISCOUNTS[(seed // 9) % 3]
    n, k = rng.integers(2, 6), rng.integers(1, 4)
    P, r = games.random_mdp(rng, n, k, kind)
    if seed % 4 == 0:
        return P, r, P, r, mode, γ
    Q, r_hat = games.random_mdp(rng, rng.integers(1, 5), k if mode == "matched" else rng.integers(1, 4), kind)
    return P, r, Q, r_hat, mode, γ


def against_value_iteration(count: int) -> None:
    games.transports = emd_transports
    worst, inside = 0.0, np.inf
    before = None
    for seed in range(count):
        P, r, Q, r_hat, mode, γ = drawn(seed)
        U = games.value_iteration(P, Q, games.reward_cost(r, r_hat, mode == "directed"), γ, mode, tol=1e-9)
        M = db.MDP(P, rewards=r)
        N = M if Q is P else db.MDP(Q, rewards=r_hat)
        result = db.distance(M, N, discount=γ, actions=mode)
        runs = [result]
        for rounds in (1, 2):
            for warm in (None, before):
                if warm is None or warm.problem.shape == result.problem.shape:
                    solver = db.solvers.Exact(max_iterations=rounds)
                    runs.append(db.distance(M, N, discount=γ, actions=mode, solver=solver, warm=warm))
        worst = max(worst, float(np.abs(result.values - U).max()))
        for run in runs:
            inside = min(inside, float((U - run.values_lower).min()), float((run.values_upper - U).min()))
        before = result
    print(f"{count} MDPs: largest |values - value iteration| {worst:.1e}; least slack of the bounds {inside:.1e}")
    if worst > 1e-7 or inside < -2e-9:
        raise SystemExit("violated")


def value_bounds(count: int) -> None:
    least, tightest = np.inf, 0.0
    for seed in range(count):
        P, r, Q, r_hat, mode, _ = drawn(10_000 + seed)
        γ = (0.5, 0.9, 0.99)[seed % 3]
        v, w = games.optimal_values(P, r, γ), games.optimal_values(Q, r_hat, γ)
        result = db.distance(db.MDP(P, rewards=r), db.MDP(Q, rewards=r_hat), discount=γ, actions=mode)
        difference = np.subtract.outer(v, w)
        difference = difference if mode == "directed" else np.abs(difference)
        least = min(least, float((result.values_upper - difference).min()))
        positive = result.values_upper > 1e-6
        if positive.any():
            tightest = max(tightest, float((difference / np.where(positive, result.values_upper, np.inf)).max()))
    print(f"{count} value bounds: least slack {least:.1e}, tightest ratio {tightest:.6f}")
    if least < -1e-11:  # what the optimal values are known to
        raise SystemExit("violated")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mdps", type=int, default=240)
    parser.add_argument("--bounds", type=int, default=2400)
    given = parser.parse_args()
    warnings.simplefilter("ignore", db.ConvergenceWarning)
    against_value_iteration(given.mdps)
    value_bounds(given.bounds)
