"""Searches compared with brute force and with what anybody would try: ``abstract`` and ``imitate``.

    python benchmarks/long/obvious_searches.py               104 + 30 + 24 MDPs, 100 + 100 imitations
    python benchmarks/long/obvious_searches.py --small 20 --large 5 --beyond 0 --imitations 20 --others 0 --seed 7

1. ``abstract`` on small MDPs: brute force over all partitions (tests/oracles/abstraction.py). Half of the problems have
   more actions than classes, so that states with the same best action are too many for a class each.
2. ``abstract`` on larger ones: every move and swap by brute force, and simple partitions that are computed here.
3. ``abstract`` by moves and swaps where all partitions can still be scored, but the search is kept from it.
4. ``imitate``: the uniform policy, an inverse model of maximum likelihood (by L-BFGS), its most likely actions, random
   deterministic policies; and steps of several lengths along the gradient of the result. Experts can be reproduced or
   not; half of the runs have a table of costs instead of the indicator.
5. ``imitate`` with the average cost, the total cost, finite horizons and weights, compared in the same way.

It prints the excess over the best of these in every part, and processor time.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

import diffbisim as db
from diffbisim.abstract import search

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from oracles import abstraction, games

KINDS, DISCOUNTS = ("dense", "garnet", "deterministic"), (0.5, 0.8, 0.9, 0.95, 0.99)


def excess(value: float, best: float) -> float:
    """Return how far a value is above the best, relative to it; differences below 1e-9 are rounding."""
    return 0.0 if value <= best + 1e-9 else value / max(best, 1e-9) - 1.0


def drawn(seed: int, case: int, low: int, high: int) -> tuple[Any, Any, int, float]:
    rng = np.random.default_rng([43, seed, low, case])
    n, k = int(rng.integers(low, high)), int(rng.integers(2, 4))
    n_actions = int(rng.integers(2, 4)) + k * (case // 3 % 2)
    return *games.random_mdp(rng, n, n_actions, KINDS[case % 3]), k, DISCOUNTS[case % 5]


def small(seed: int, count: int) -> None:
    found, spent = [], 0.0
    for case in range(count):
        P, r, k, γ = drawn(seed, case, 5, 9)
        begun = time.process_time()
        loss = db.abstract(db.MDP(P, rewards=r), k, γ).loss
        spent += time.process_time() - begun
        found.append(excess(loss, abstraction.least_loss(P, r, k, γ)))
    report("abstract, small, above brute force", found, spent)


def large(seed: int, count: int) -> None:
    simple, local, spent = [], [], 0.0
    for case in range(count):
        P, r, k, γ = drawn(seed, case, 20, 31)
        begun = time.process_time()
        result = db.abstract(db.MDP(P, rewards=r), k, γ)
        spent += time.process_time() - begun
        v, n = abstraction.optimal_values(P, r, γ), len(r)
        ranks = [values.argsort().argsort() for values in (v, r.mean(axis=1), r.max(axis=1), (P.mean(axis=0) @ v))]
        tried = [np.zeros(n, int), *(rank * k // n for rank in ranks)]
        tried += [np.unique(np.minimum(np.round((x - x.min()) / np.ptp(x) * k), k - 1), return_inverse=True)[1]
                  for x in (v, r.mean(axis=1))]  # fmt: skip
        best = min(float(abstraction.losses(P, r, labels, γ, v).max()) for labels in tried)
        simple.append(excess(result.loss, best))
        near = abstraction.one_step_away(result.labels.tolist(), k)
        local.append(excess(result.loss, min(float(abstraction.losses(P, r, x, γ, v).max()) for x in near)))
    report("abstract, larger, above simple partitions", simple, spent)
    report("abstract, larger, above moves and swaps", local, 0.0)


def beyond(seed: int, count: int) -> None:
    found, spent, few = [], 0.0, search.MOST_PARTITIONS
    for case in range(count):
        rng = np.random.default_rng([45, seed, case])
        n, k = ((13, 3), (18, 2))[case % 2]
        P, r = games.random_mdp(rng, n, k + 1 + case % 3, KINDS[case % 3])
        mdp, γ = db.MDP(P, rewards=r), DISCOUNTS[case % 5]
        search.MOST_PARTITIONS = 300_000
        best = db.abstract(mdp, k, γ, restarts=1).loss
        search.MOST_PARTITIONS, begun = 10, time.process_time()
        loss = db.abstract(mdp, k, γ).loss
        spent += time.process_time() - begun
        found.append(excess(loss, best))
    search.MOST_PARTITIONS = few
    report("abstract, moves and swaps, above all partitions", found, spent)


def most_likely(P: Any, target: Any) -> Any:
    """Return the policy of maximum likelihood by L-BFGS on logits, for kernels (n_actions, n, n)."""
    n_actions, n = P.shape[:2]

    def policy(x: Any) -> Any:
        z = np.exp(x.reshape(n, n_actions) - x.reshape(n, n_actions).max(axis=1, keepdims=True))
        return z / z.sum(axis=1, keepdims=True)

    def unlikely(x: Any) -> float:
        made = np.einsum("sa,ast->st", policy(x), P)
        return -float((target * np.log(np.maximum(made, 1e-12))).sum())

    return policy(minimize(unlikely, np.zeros(n * n_actions), method="L-BFGS-B", options={"maxiter": 60}).x)


#: Other distances than the discounted one, in turn.
CRITERIA: tuple[dict[str, Any], ...] = (
    {"criterion": "average"}, {"criterion": "total"}, {"horizon": 5, "discount": 0.9}, {"weights": [1.0, 0.0, 2.0, 1.0]}
)  # fmt: skip


def imitation(seed: int, case: int, other: bool = False) -> tuple[float, float, float]:
    """Return the excess over simple policies and over steps along the gradient, and processor time."""
    rng = np.random.default_rng([44, seed, case])
    n, n_actions = int(rng.integers(3, 7)), int(rng.integers(2, 4))
    options = CRITERIA[case % 4] if other else {"discount": DISCOUNTS[case % 4]}
    total = options.get("criterion") == "total"
    P, _ = games.random_mdp(rng, n, n_actions, KINDS[case % 3])
    if total:  # an end, which every action may reach
        P[:, :, 0] += 0.2
        P /= P.sum(axis=2, keepdims=True)
        P[:, 0] = np.eye(n)[0]
    mdp = db.MDP(P, initial=rng.dirichlet(np.ones(n)))
    X = mdp.induced_chain(rng.dirichlet(np.ones(n_actions), n))
    if case // 4 % 2 if other else case % 2:  # cannot be reproduced
        Q = 0.7 * X.transition + 0.3 * rng.dirichlet(np.ones(n), n)
        Q[0] = X.transition[0] if total else Q[0]
        X = db.MarkovChain(Q, initial=X.initial)
    points = rng.random((n, 2))
    table = case // 8 % 2 if other else case % 4 >= 2
    cost: Any = np.linalg.norm(points[:, None] - points[None], axis=-1) if table else "indicator"
    begun = time.process_time()
    found = db.imitate(mdp, X, cost, **options)
    spent = time.process_time() - begun

    def distance(policy: Any) -> float:
        return float(db.distance(X, mdp.induced_chain(policy), cost, **options).value)

    likely = most_likely(P, X.transition)
    tried = [mdp.uniform_policy(), likely, np.eye(n_actions)[likely.argmax(axis=1)]]
    tried += [np.eye(n_actions)[rng.integers(0, n_actions, n)] for _ in range(20)]
    tried += [np.tile(action, (n, 1)) for action in np.eye(n_actions)]
    A = np.einsum("ast,st->sa", P, np.array(found.reward))
    steps = [found.policy * np.exp(η * A / max(float(np.abs(A).max()), 1e-12)) for η in (1e-4, 1e-3, 1e-2, 0.1, 1.0)]
    moved = [step / step.sum(axis=1, keepdims=True) for step in steps]
    own = found.distance.value
    return excess(own, min(map(distance, tried)) + 1e-6), excess(own, min(map(distance, moved)) + 1e-6), spent


def report(name: str, found: list[float], spent: float) -> None:
    x = np.array(found)
    print(f"{name}: {len(x)}, above .1 %: {(x > 1e-3).sum()}, above 1 %: {(x > 1e-2).sum()}, worst {x.max():.4f}, "
          f"{spent / len(x):.3f} s of processor time each", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = {"seed": 0, "small": 104, "large": 30, "beyond": 24, "imitations": 100, "others": 100}
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.small:
        small(args.seed, args.small)
    if args.large:
        large(args.seed, args.large)
    if args.beyond:
        beyond(args.seed, args.beyond)
    for name, count in (("imitate", args.imitations), ("imitate, other criteria", args.others)):
        rows = [imitation(args.seed, case, "other" in name) for case in range(count)]
        if rows:
            report(f"{name}, above simple policies", [row[0] for row in rows], sum(row[2] for row in rows))
            report(f"{name}, above steps along the gradient", [row[1] for row in rows], 0.0)


if __name__ == "__main__":
    main()
