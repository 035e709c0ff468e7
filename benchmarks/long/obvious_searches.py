"""Searches compared with brute force and with what anybody would try: ``abstract``, ``imitate`` and ``compress``.

    python benchmarks/long/obvious_searches.py      104 + 30 + 24 MDPs, 100 + 100 imitations, 104 + 20 chains
    python benchmarks/long/obvious_searches.py --small 20 --large 5 --beyond 0 --imitations 20 --others 0 --seed 7
    python benchmarks/long/obvious_searches.py --only compress --states 30 --before ../before/src

1. ``abstract`` on small MDPs: brute force over all partitions (tests/oracles/abstraction.py). Half of the problems have
   more actions than classes, so that states with the same best action are too many for a class each.
2. ``abstract`` on larger ones: every move and swap by brute force, and simple partitions that are computed here.
3. ``abstract`` by moves and swaps where all partitions can still be scored, but the search is kept from it.
4. ``imitate``: the uniform policy, an inverse model of maximum likelihood (by L-BFGS), its most likely actions, random
   deterministic policies; and steps of several lengths along the gradient of the result. Experts can be reproduced or
   not; half of the runs have a table of costs instead of the indicator.
5. ``imitate`` with the average cost, the total cost, finite horizons and weights, compared in the same way.
6. ``compress`` on chains of eight kinds: frozen chains with the best rewards, aggregates over simple classes, kinetic
   models, all computed here; and steps along the gradient of the result. ``model="aggregate"``: the aggregates.
   With ``--before``, the same chains with the sources of another version, in alternation: processor time and distance.
7. ``compress`` of at most six states to two: the best of many descents by another method (Nelder-Mead).

It prints the excess over the best of these in every part, and processor time.
"""

import argparse
import os
import sys
import time
import warnings
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.optimize import minimize

import diffbisim as db

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
        best = min(float(abstraction.losses(P, r, assignment, γ, v).max()) for assignment in tried)
        simple.append(excess(result.loss, best))
        near = abstraction.one_step_away(result.assignment.tolist(), k)
        local.append(excess(result.loss, min(float(abstraction.losses(P, r, x, γ, v).max()) for x in near)))
    report("abstract, larger, above simple partitions", simple, spent)
    report("abstract, larger, above moves and swaps", local, 0.0)


def beyond(seed: int, count: int) -> None:
    from diffbisim.reduction.abstraction import search

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


# --- compress --------------------------------------------------------------------------------------------------------

CHAINS = ("diffusive", "sticky", "ring", "block", "random", "periodic", "absorbing", "sparse")
HORIZONS = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)


def kernel(kind: str, rng: Any, n: int) -> tuple[Any, Any]:
    """Return a kernel and rewards of one of the kinds."""
    place, r = np.arange(n), rng.normal(size=n)
    if kind == "diffusive":  # a walk in a potential of two or three wells, with leaps of any length
        x = np.linspace(-1, 1, n)
        V = rng.uniform(2, 12) * np.cos(np.pi * x * rng.integers(1, 4) + rng.normal())
        W = np.exp(-((x[:, None] - x) ** 2) / 2 / rng.uniform(0.02, 0.2) ** 2)
        P = W / W.sum(axis=1).max() * np.exp(np.minimum(np.subtract.outer(V, V), 0))
        np.fill_diagonal(P, 0)
        np.fill_diagonal(P, 1 - P.sum(axis=1))
        return P, x + 0.1 * r
    if kind == "sticky":  # leaves a state with probabilities of many orders of magnitude, down to subnormal ones
        leave = 10.0 ** -rng.uniform(0, rng.choice([3, 20, 320]), size=n)
        return (1 - leave)[:, None] * np.eye(n) + leave[:, None] * rng.dirichlet(np.full(n, 0.3), n), r
    if kind == "ring":
        ahead, back = rng.uniform(0.2, 0.9), rng.uniform(0, 0.1)
        P = (1 - ahead - back) * np.eye(n) + ahead * np.eye(n)[(place + 1) % n] + back * np.eye(n)[place - 1]
        return P, np.sin(2 * np.pi * place / n) + 0.1 * r
    if kind == "block":
        block = np.sort(rng.integers(0, 5, n))
        W = rng.gamma(0.5, size=(n, n)) * np.where(block[:, None] == block, 1.0, 10 ** -rng.uniform(1, 4))
        return W, rng.normal(size=5)[block] + 0.2 * r
    if kind == "random":
        return rng.dirichlet(np.full(n, rng.choice([0.1, 1.0])), n), r
    if kind == "periodic":
        period = int(rng.integers(2, 5))
        W = rng.gamma(0.3, size=(n, n)) * ((place[:, None] + 1 - place) % period == 0)
        return W, np.where(place % period == 0, 1.0, 0.0) + 0.3 * r
    if kind == "absorbing":
        P = rng.dirichlet(np.full(n, 0.1), n)
        ends = rng.choice(n, 3, replace=False)
        P[ends] = np.eye(n)[ends]
        return P, np.round(r, 1)
    W = np.zeros((n, n))
    for x in range(n):
        W[x, rng.choice(n, 3, replace=False)] = rng.dirichlet(np.ones(3))
    return W, r


def chain(seed: int, case: int, most: int = 72) -> tuple[Any, int, float]:
    """Return a chain of at most so many states, the number of small states and the discount of a case."""
    rng = np.random.default_rng([45, seed, case])
    kind, n, k = CHAINS[case % 8], int(rng.integers(12, 49)), int(rng.integers(2, 9))
    n = min(24 + n if case % 24 < 8 else n // 12 * 12, most)
    P, r = kernel(kind, rng, n)
    start = np.full(n, 1 / n) if case % 3 else rng.dirichlet(np.full(n, 0.2))
    P = P / P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=start, rewards=r), k, HORIZONS[int(rng.integers(6))]


def simple_classes(X: Any, k: int, γ: float) -> list[Any]:
    """Return classes by rewards, values, position and slow modes."""
    P, r, n = np.asarray(X.transition), np.asarray(X.rewards), X.n_states
    value = np.linalg.solve(np.eye(n) - γ * P, r)
    found = [x.argsort().argsort() * k // n for x in (r, value)] + [np.arange(n) * k // n]
    found += [np.minimum(((x - x.min()) / (np.ptp(x) + 1e-300) * k).astype(int), k - 1) for x in (r, value)]
    λ, V = np.linalg.eig(P)
    slow = V[:, np.argsort(-λ.real)[:k]].real
    for points in (r[:, None], np.stack([r, value], axis=1) / [np.ptp(r), np.ptp(value) + 1e-300], slow):
        found.append(kmeans2(points + 0.0, k, minit="++", seed=0)[1])
    return [np.unique(assignment, return_inverse=True)[1] for assignment in found]


def frozen_distance(X: Any, k: int, γ: float) -> float:
    """Return the distance to the best chain that never moves, by alternating medians from 30 random starts."""
    P, r, rng = np.asarray(X.transition), np.asarray(X.rewards), np.random.default_rng(0)
    M, best = (1 - γ) * np.linalg.inv(np.eye(X.n_states) - γ * P), np.inf
    for _ in range(30):
        chosen, cost = rng.choice(r, k), np.inf
        while True:
            h = M @ np.abs(r[:, None] - chosen)
            before, cost, classes = cost, float(X.initial @ h.min(axis=1)), h.argmin(axis=1)
            if not cost < before - 1e-12:
                break
            for y in np.unique(classes):
                w = (X.initial * (classes == y)) @ M
                order = np.argsort(r)
                if w.sum() > 0:
                    chosen[y] = r[order][np.searchsorted(np.cumsum(w[order]), w.sum() / 2)]
        best = min(best, cost)
    return best


def simple_chains(X: Any, k: int, γ: float) -> tuple[float, float]:
    """Return the least distance of the simple aggregates, and that of all simple chains."""
    means, others = [], [frozen_distance(X, k, γ)]
    for assignment in simple_classes(X, k, γ):
        means.append(db.aggregate(X, assignment, discount=γ).distance.value)
        try:
            others.append(db.aggregate(X, assignment, "kinetic", discount=γ).distance.value)
        except (db.InvalidChain, db.InvalidArgument):  # several recurrent classes, transient classes, too slow
            continue
    with suppress(db.InvalidChain):
        others.append(db.compress(X, k, γ, model="kinetic").distance.value)
    return min(means), min(means + others)


def after_steps(X: Any, small: Any, γ: float) -> float:
    """Return the least distance after steps of several lengths along the gradient of the distance."""
    G, Y, best = small.distance.gradient.transition_y, small.chain, np.inf
    P = np.asarray(Y.transition)
    scale, cheapest = max(float(np.abs(G).max()), 1e-300), np.eye(len(P))[G.argmin(axis=1)]
    for t in (1e-4, 1e-3, 1e-2, 0.1, 0.5):
        moved = np.maximum(P - t * G / scale, 0)
        for Q in (P * np.exp(-10 * t * G / scale), (1 - t) * P + t * cheapest, moved):
            Z = db.MarkovChain(Q / Q.sum(axis=1, keepdims=True), initial=Y.initial, rewards=Y.rewards)
            best = min(best, db.distance(X, Z, discount=γ).value)
    return best


class Inline:
    """An executor that runs tasks immediately, so that processor time can be attributed to the call."""

    def submit(self, work: Any, *given: Any) -> Any:
        done: Any = Future()
        done.set_result(work(*given))
        return done


def work() -> None:
    """Compress the cases on standard input; :func:`compression` runs this for every version."""
    warnings.simplefilter("ignore")
    db.compress(db.examples.random_chain(6, 0), 2, restarts=2)
    for line in sys.stdin:
        seed, case, most, model = line.split()
        X, k, γ = chain(int(seed), int(case), int(most))
        began = time.process_time()
        found = db.compress(X, k, γ, model=model, executor=Inline())
        spent = time.process_time() - began
        print(spent, found.distance.value, after_steps(X, found, γ) if model == "nearest" else 0.0, flush=True)


def compression(seed: int, count: int, most: int, before: str | None) -> None:
    versions = [None] if before is None else [None, before]
    workers = [
        Popen([sys.executable, __file__, "--only", "work"], stdin=PIPE, stdout=PIPE, text=True,
              env=os.environ | ({} if path is None else {"PYTHONPATH": path}))
        for path in versions
    ]  # fmt: skip
    rows: dict[str, list[Any]] = {"nearest": [], "aggregate": []}
    for case in range(count):
        X, k, γ = chain(seed, case, most)
        bests = dict(zip(("aggregate", "nearest"), simple_chains(X, k, γ), strict=True))
        for model, found in rows.items():
            answers = []
            for worker in workers:
                print(seed, case, most, model, file=worker.stdin, flush=True)
                answers.append([float(number) for number in worker.stdout.readline().split()])  # type: ignore[union-attr]
            found.append([*answers[0], *answers[-1], bests[model]])
            said = " ".join(f"{x:.5g}" for x in found[-1])
            print(f"  {CHAINS[case % 8]} {X.n_states} to {k}, γ = {γ}, {model}: {said}", file=sys.stderr, flush=True)
    for worker in workers:
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()
    for model, found in rows.items():
        ours, theirs = np.array(found)[:, :3], np.array(found)[:, 3:6]
        for name, own in (("", ours), ("before: ", theirs))[: len(versions)]:
            above = [excess(d, best) for d, best in zip(own[:, 1], np.array(found)[:, 6], strict=True)]
            report(f"{name}compress, {model}, above simple chains", above, own[:, 0].sum())
            if model == "nearest":
                above = [excess(d, max(best, 0.0)) for d, best in zip(own[:, 1], own[:, 2], strict=True)]
                report(f"{name}compress, {model}, above steps along its gradient", above, 0.0)
        if before is not None:
            ratio = np.maximum(ours[:, 1], 1e-9) / np.maximum(theirs[:, 1], 1e-9)
            times = ours[:, 0] / theirs[:, 0]
            mean, ordered = np.exp(np.log(ratio).mean()), np.sort(ratio).round(4)
            print(f"compress, {model}, compared with before: distance, geometric mean {mean:.4f}, largest "
                  f"{ordered[-3:]}, least {ordered[:3]}; processor time, sum "
                  f"{ours[:, 0].sum() / theirs[:, 0].sum():.3f}, median {np.median(times):.3f}",
                  flush=True)  # fmt: skip


def tiny(seed: int, count: int) -> None:
    """Two states: kernel, start and rewards are six numbers, searched by Nelder-Mead from 24 starts."""
    found, spent = [], 0.0
    for case in range(count):
        rng = np.random.default_rng([46, seed, case])
        n, γ = int(rng.integers(3, 7)), (0.5, 0.9, 0.95)[case % 3]
        P, r = kernel(("sticky", "random", "absorbing", "sparse", "ring")[case % 5], rng, n)
        X = db.MarkovChain(P / P.sum(axis=1, keepdims=True), initial=rng.dirichlet(np.ones(n)), rewards=r)
        begun = time.process_time()
        own = db.compress(X, 2, γ).distance.value
        spent += time.process_time() - begun

        def distance(v: Any, X: Any = X, γ: float = γ) -> float:
            a, b, s = np.clip(v[:3], 0, 1)
            Y = db.MarkovChain([[1 - a, a], [b, 1 - b]], initial=[1 - s, s], rewards=v[3:])
            return float(db.distance(X, Y, discount=γ, tol=1e-10).value)

        best = np.inf
        for _ in range(24):
            v = np.concatenate([rng.choice([0, 1, rng.random()], 3), rng.choice(r, 2)])
            best = min(best, minimize(distance, v, method="Nelder-Mead", options={"maxfev": 400}).fun)
        found.append(excess(own, best))
    report("compress to two states, above Nelder-Mead", found, spent)


# --- all -------------------------------------------------------------------------------------------------------------


def report(name: str, found: list[float], spent: float) -> None:
    x = np.array(found)
    print(f"{name}: {len(x)}, above .1 %: {(x > 1e-3).sum()}, above 1 %: {(x > 1e-2).sum()}, worst {x.max():.4f}, "
          f"{spent / len(x):.3f} s of processor time each", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = {
        "seed": 0, "small": 104, "large": 30, "beyond": 24, "imitations": 100, "others": 100, "compressions": 104,
        "states": 72, "tiny": 20,
    }  # fmt: skip
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=("abstract", "imitate", "compress", "work"), help="one part")
    parser.add_argument("--before", help="sources of another version, for compress")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.only == "work":
        work()
        return
    if args.small and args.only in (None, "abstract"):
        small(args.seed, args.small)
    if args.large and args.only in (None, "abstract"):
        large(args.seed, args.large)
    if args.beyond and args.only in (None, "abstract"):
        beyond(args.seed, args.beyond)
    if args.only in (None, "imitate"):
        for name, count in (("imitate", args.imitations), ("imitate, other criteria", args.others)):
            rows = [imitation(args.seed, case, "other" in name) for case in range(count)]
            if rows:
                report(f"{name}, above simple policies", [row[0] for row in rows], sum(row[2] for row in rows))
                report(f"{name}, above steps along the gradient", [row[1] for row in rows], 0.0)
    if args.compressions and args.only in (None, "compress"):
        compression(args.seed, args.compressions, args.states, args.before)
    if args.tiny and args.only in (None, "compress"):
        tiny(args.seed, args.tiny)


if __name__ == "__main__":
    main()
