"""Correctness of the metrics of MDPs with actions, on many random MDPs.

    python benchmarks/long/mdps.py                       240 MDPs, 2,400 value bounds, 200 triples (about ten minutes)
    python benchmarks/long/mdps.py --seed 7              other MDPs
    python benchmarks/long/mdps.py --mdps 30 --bounds 200 --laws 20

1. Comparison with value iteration that uses one ``ot.emd2`` per pair and choice of actions. Its accuracy of 1e-9 is
   proved by a last sweep in which all transports are one linear program (HiGHS). Every entry of ``values`` must be
   within 1e-7, and the true table between ``values_lower`` and ``values_upper``, also for runs that were stopped after
   one or two rounds and for runs that started from the result of another MDP. The metrics are matched, lax and
   directed, for one MDP with itself and for two of different sizes (lax ones with different actions).
2. |v*(s) - v̂*(t)| ≤ values_upper (directed: without the absolute value), with optimal values from value iteration.
3. Laws for triples of MDPs, one of which has states that are clones of others: symmetry, zero diagonal, triangle
   inequality, directed ≤ lax ≤ matched, and zero exactly between states that ``lump`` finds equivalent.

It prints the worst figures and ends with an error if anything is violated.
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

by_linear_program = games.transports


def by_emd(P: Any, Q: Any, U: Any) -> Any:
    """Solve the oracle's list of transports by POT, which is faster than a linear program."""
    import ot

    table = np.ascontiguousarray(U)
    return np.array([ot.emd2(p, q, table) for p, q in zip(P, Q, strict=True)])


def drawn(seed: int, case: int) -> tuple[Any, ...]:
    """Return (P, r, Q, r̂, mode, γ), determined by both numbers; every fourth compares an MDP with itself."""
    rng = np.random.default_rng([41, seed, case])
    kind, mode, γ = KINDS[case % 3], MODES[(case // 3) % 3], DISCOUNTS[(case // 9) % 3]
    n, k = rng.integers(2, 6), rng.integers(1, 4)
    P, r = games.random_mdp(rng, n, k, kind)
    if case % 4 == 0:
        return P, r, P, r, mode, γ
    Q, r_hat = games.random_mdp(rng, rng.integers(1, 5), k if mode == "matched" else rng.integers(1, 4), kind)
    return P, r, Q, r_hat, mode, γ


def oracle(P: Any, Q: Any, cost: Any, discount: float, mode: str) -> tuple[Any, float]:
    """Return the metric by value iteration, and a bound on its error by one sweep of linear programs."""
    games.transports = by_emd
    U = games.value_iteration(P, Q, cost, discount, mode, tol=1e-9)
    games.transports = by_linear_program
    return U, float(games.error(U, P, Q, cost, discount, mode))


def against_value_iteration(seed: int, count: int) -> None:
    worst, inside, proof, before = 0.0, np.inf, 0.0, None
    for case in range(count):
        P, r, Q, r_hat, mode, γ = drawn(seed, case)
        U, error = oracle(P, Q, games.reward_cost(r, r_hat, mode == "directed"), γ, mode)
        M = db.MDP(P, rewards=r)
        N = M if Q is P else db.MDP(Q, rewards=r_hat)
        result = db.distance(M, N, discount=γ, actions=mode)
        runs = [result]
        for rounds in (1, 2):
            for warm in (None, before):
                if warm is None or warm.problem.shape == result.problem.shape:
                    solver = db.solvers.Exact(max_iterations=rounds)
                    runs.append(db.distance(M, N, discount=γ, actions=mode, solver=solver, warm=warm))
        worst, proof = max(worst, float(np.abs(result.values - U).max())), max(proof, error)
        for run in runs:
            inside = min(inside, *(float(d.min()) + error for d in (U - run.values_lower, run.values_upper - U)))
        before = result
    print(
        f"{count} MDPs: largest |values - value iteration| {worst:.1e}, which linear programs prove to {proof:.1e}; "
        f"slack of the bounds beyond that at least {inside:.1e}"
    )
    if worst > 1e-7 or proof > 2e-8 or inside < -1e-12:
        raise SystemExit("violated")


def value_bounds(seed: int, count: int) -> None:
    least, tightest = np.inf, 0.0
    for case in range(count):
        P, r, Q, r_hat, mode, _ = drawn(seed, 10_000 + case)
        γ = (0.5, 0.9, 0.99)[case % 3]
        v, w = games.optimal_values(P, r, γ), games.optimal_values(Q, r_hat, γ)
        result = db.distance(db.MDP(P, rewards=r), db.MDP(Q, rewards=r_hat), discount=γ, actions=mode)
        difference = np.subtract.outer(v, w)
        difference = difference if mode == "directed" else np.abs(difference)
        least = min(least, float((result.values_upper - difference).min()))
        positive = result.values_upper > 1e-6
        if positive.any():
            tightest = max(tightest, float((difference / np.where(positive, result.values_upper, np.inf)).max()))
    print(f"{count} value bounds: least slack {least:.1e}, tightest ratio {tightest:.6f}")
    if least < -1e-11:  # accuracy of the optimal values
        raise SystemExit("violated")


def with_clones(rng: Any, n: int, n_actions: int, kind: str) -> db.MDP:
    """Return a random MDP in which some states have copies, each with a share of the original's mass."""
    P, r = games.random_mdp(rng, n, n_actions, kind)
    original = np.concatenate([np.arange(n), rng.integers(n, size=rng.integers(1, 3))])
    share = rng.random(original.size) + 0.1
    share /= np.bincount(original, weights=share)[original]
    return db.MDP(P[:, original][:, :, original] * share, rewards=r[original])


def laws(seed: int, count: int) -> None:
    """Return the worst violation of each law over all triples; tables are known to 1e-10, their sums to 1e-9."""
    worst = dict.fromkeys(("symmetry", "diagonal", "triangle", "lax above matched", "directed above lax", "alike"), 0.0)
    apart = np.inf
    for case in range(count):
        rng = np.random.default_rng([43, seed, case])
        kind, γ, k = KINDS[case % 3], DISCOUNTS[(case // 3) % 3], int(rng.integers(1, 4))
        M = with_clones(rng, int(rng.integers(2, 5)), k, kind)
        N, K = (with_clones(rng, int(rng.integers(1, 4)), k, kind) for _ in range(2))
        same = np.equal.outer(*[db.lump(M).assignment] * 2)
        tables = {}
        for mode in MODES:
            MN, NK, MK, own = (
                db.distance(a, b, discount=γ, actions=mode, tol=1e-10) for a, b in ((M, N), (N, K), (M, K), (M, M))
            )
            tables[mode] = MN.values
            through = (MN.values[:, :, None] + NK.values[None, :, :]).min(axis=1)
            worst["triangle"] = max(worst["triangle"], float((MK.values - through).max()))
            worst["diagonal"] = max(worst["diagonal"], float(np.abs(own.values.diagonal()).max()))
            if mode != "directed":
                NM = db.distance(N, M, discount=γ, actions=mode, tol=1e-10).values
                worst["symmetry"] = max(worst["symmetry"], float(np.abs(MN.values - NM.T).max()))
            if mode == "matched":
                worst["alike"] = max(worst["alike"], float(own.values_upper[same].max()))
                apart = min(apart, float(own.values_lower[~same].min(initial=np.inf)))
        for above, below in (("lax", "matched"), ("directed", "lax")):
            name = f"{above} above {below}"
            worst[name] = max(worst[name], float((tables[above] - tables[below]).max()))
    figures = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    print(f"{count} triples: {figures}; nearest states that are not equivalent {apart:.1e}")
    if max(worst.values()) > 1e-9 or not apart > 0.0:
        raise SystemExit("violated")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mdps", type=int, default=240)
    parser.add_argument("--bounds", type=int, default=2400)
    parser.add_argument("--laws", type=int, default=200)
    given = parser.parse_args()
    warnings.simplefilter("ignore", db.ConvergenceWarning)
    against_value_iteration(given.seed, given.mdps)
    value_bounds(given.seed, given.bounds)
    laws(given.seed, given.laws)
