"""Coverage of the 95 % interval of ``diffbisim.estimate`` for the exact distance: 200 simulated datasets per case.

    python benchmarks/long/bootstrap_coverage.py [--datasets 200] [--replicates 100] [--processes 2]

A dataset has 40 to 60 episodes of 25 to 30 steps from each of two chains. The chains are far apart, close together, or
equal (d = 0, for which the plain bootstrap fails). This takes about ten minutes on two cores.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import diffbisim as db
from diffbisim.problem import available_threads

DISCOUNT = 0.9


def cases():
    rng = np.random.default_rng(0)
    A, B = db.examples.random_chain(8, 1), db.examples.random_chain(8, 2)
    near = db.MarkovChain(0.9 * A.transition + 0.1 * rng.dirichlet(np.ones(8), 8), rewards=A.rewards)
    far = db.MarkovChain(0.5 * A.transition + 0.5 * rng.dirichlet(np.ones(8), 8), rewards=A.rewards)
    return {
        "drift 0 against 1": (db.examples.drift_walk(0.0, 8), db.examples.drift_walk(1.0, 8), 40, 30),
        "two random chains": (A, B, 60, 25),
        "half of the rows new": (A, far, 60, 25),
        "a tenth of the rows new": (A, near, 60, 25),
        "equal chains": (db.examples.drift_walk(0.5, 8), db.examples.drift_walk(0.5, 8), 40, 30),
    }


def one(job):
    name, seed, replicates = job
    X, Y, episodes, length = cases()[name]
    rng = np.random.default_rng(10_000 + seed)
    data = [
        db.Transitions.from_trajectories([c.sample(length, rng) for _ in range(episodes)], states=range(c.n_states))
        for c in (X, Y)
    ]
    how = {"replicates": replicates, "permutations": 19}  # no p-value is needed
    e = db.estimate(*data, rewards=(X.rewards, Y.rewards), discount=DISCOUNT, rng=seed, **how)
    return e.value, e.plug_in, e.lower, e.upper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--processes", type=int, default=available_threads())
    settings = parser.parse_args()
    head = f"{'coverage':>9s} {'too low':>8s} {'too high':>9s}"
    print(f"{'':24s} {'distance':>9s} {'value':>16s} {'plug-in':>16s} {head}   (mean ± root mean square error)")
    with ProcessPoolExecutor(settings.processes) as pool:
        for name, (X, Y, *_) in cases().items():
            d = db.distance(X, Y, discount=DISCOUNT).value
            jobs = [(name, seed, settings.replicates) for seed in range(settings.datasets)]
            value, plug_in, lower, upper = np.array(list(pool.map(one, jobs, chunksize=4))).T
            low, high = (upper < d - 1e-9).mean(), (lower > d + 1e-9).mean()
            both = (f"{e.mean():7.4f} ± {np.sqrt(((e - d) ** 2).mean()):6.4f}" for e in (value, plug_in))
            rates = f"{1 - low - high:9.1%} {low:8.1%} {high:9.1%}"
            print(f"{name:24s} {d:9.4f} {' '.join(both)} {rates}", flush=True)


if __name__ == "__main__":
    main()
