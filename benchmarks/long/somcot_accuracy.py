"""SOMCOT's error after 10^6 iterations, relative to the exact solver: 3 shapes, 2 discounts, 10 seeds each.

    python benchmarks/long/somcot_accuracy.py [--max-iterations 1000000] [--seeds 10] [--only 5x5]

It prints the medians over seeds of the relative error of the distance and of the cosine between the estimated and the
exact gradient (kernel of Y, on its support and everywhere). This takes about an hour on two cores; every seed is a
separate process.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy import sparse

import diffbisim as db
from diffbisim.common.arrays import available_threads
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact, Somcot


def shapes(discount: float) -> dict[str, Problem]:
    """Return the imitation chain, the drift walk, a dense pair, and the block chain with a random abstraction."""
    rng = np.random.default_rng(7)
    M = db.examples.imitation_chain(5)
    soft, uniform = M.induced_chain(db.examples.soft_right_policy(M, 0.4)), M.induced_chain(M.uniform_policy())
    abstract = db.MarkovChain(rng.dirichlet(np.ones(5), 5), rewards=np.arange(5.0))
    return {
        "5x5 imitation": Discounted.make(soft, uniform, "indicator", discount),
        "5x5 random": Discounted.make(*(db.examples.random_chain(5, rng) for _ in "xy"), "reward", discount),
        "16x16 drift": Discounted.make(db.examples.drift_walk(1.5), db.examples.drift_walk(0.5), "reward", discount),
        "16x16 random": Discounted.make(*(db.examples.random_chain(16, rng) for _ in "xy"), "reward", discount),
        "25x5 blocks": Discounted.make(db.examples.block_chain(), abstract, "reward", discount),
    }


@dataclass(frozen=True)
class Job:
    name: str
    discount: float
    seed: int
    steps: int
    options: tuple[tuple[str, float], ...] = ()


def dense(matrix):
    return np.asarray(matrix.toarray() if sparse.issparse(matrix) else matrix)


def cosine(a, b):
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float((a * b).sum() / size) if size else 1.0


def run(job: Job) -> tuple[float, float, float, float]:
    """Return relative error, cosines on the support and everywhere, and relative width of the certified interval."""
    problem = shapes(job.discount)[job.name]
    exact = Exact(tol=1e-10, threads=1).solve(problem)
    estimate = Somcot(job.steps, rng=job.seed, **dict(job.options)).solve(problem)
    g, h = dense(exact.gradient.transition_y), dense(estimate.gradient.transition_y)
    possible = dense(problem.y.transition) > 0
    error = abs(estimate.value / exact.value - 1)
    return error, cosine(g * possible, h * possible), cosine(g, h), estimate.gap / exact.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-iterations", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="")
    settings = parser.parse_args()
    print(f"{settings.max_iterations} iterations, {settings.seeds} seeds: medians (worst)")
    print(f"{'':16s} {'discount':>8s} {'error of d':>20s} {'cosine, support':>20s} {'cosine, all':>20s} {'band':>8s}")
    with ProcessPoolExecutor(available_threads()) as pool:
        for name in shapes(0.9):
            for discount in (0.9, 0.95):
                if settings.only in name:
                    jobs = [Job(name, discount, seed, settings.max_iterations) for seed in range(settings.seeds)]
                    error, on, everywhere, band = np.array(list(pool.map(run, jobs))).T
                    print(
                        f"{name:16s} {discount:8.2f} {np.median(error):11.3%} ({error.max():6.2%}) "
                        f"{np.median(on):11.4f} ({on.min():6.3f}) {np.median(everywhere):11.4f} "
                        f"({everywhere.min():6.3f}) {np.median(band):8.2%}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
