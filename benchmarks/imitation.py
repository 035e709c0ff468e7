"""Imitation for all seeds: the five-state chain, random MDPs and Gymnasium's tabular environments, known and sampled.

    python benchmarks/imitation.py chain random known sampled-chain sampled speed taxi [--seeds 5] [--environment NAME]

It counts outer iterations (exact solves). Returns are exact expectations, relative to the expert's.
"""

import argparse
import time

import numpy as np

import diffbisim as db
from diffbisim import examples
from diffbisim.learning.imitate.environment import Sampling
from diffbisim.processes.environments import as_env, from_env, rollouts
from diffbisim.processes.planning import expected_return, optimal_policy

ENVIRONMENTS = ("FrozenLake8x8-v1", "CliffWalking-v1", "Taxi-v4")
HORIZON = 200


def line(name, goal, values, iterations, seconds):
    print(
        f"{name:38} goal {goal:<8g} worst {max(values):.2e}  median {np.median(values):.2e}  "
        f"iterations {int(np.median(iterations))} (most {max(iterations)})  {seconds:.0f} s",
        flush=True,
    )


def chain(args):
    mdp = examples.imitation_chain()
    for epsilon, most, goal in ((0.0, 30, 1e-6), (0.4, 300, 1e-3)):
        for discount in (0.9, 0.95):
            expert, begin = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon)), time.time()
            runs = [
                db.imitate(
                    mdp, expert, discount=discount, max_iterations=most, tol=goal,
                    policy=np.random.default_rng(seed).dirichlet(np.ones(4), 5),
                )
                for seed in range(20)
            ]  # fmt: skip
            name = f"chain, epsilon {epsilon}, discount {discount}, 20 starts"
            line(name, goal, [r.distance.upper for r in runs], [r.iterations for r in runs], time.time() - begin)


def random(args):
    begin, runs = time.time(), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mdp = db.MDP(rng.dirichlet(np.ones(7), (3, 7)))
        expert = mdp.induced_chain(rng.dirichlet(np.ones(3), 7))
        runs.append(db.imitate(mdp, expert, discount=0.9, max_iterations=200, tol=1e-3))
    line("20 random MDPs", 1e-3, [r.distance.upper for r in runs], [r.iterations for r in runs], time.time() - begin)


def known(args):
    for name, _, mdp, expert in tables(args):
        begin = time.time()
        found = db.imitate(mdp, mdp.induced_chain(expert), discount=0.95, tol=1e-4, max_iterations=60)
        best, own = (expected_return(mdp, policy, HORIZON) for policy in (expert, found.policy))
        print(f"{name:18} known    {found!r} return {own:.4f} of {best:.4f}, {time.time() - begin:.0f} s", flush=True)


def sampled_chain(args):
    mdp = examples.imitation_chain()
    for epsilon in (0.0, 0.4):
        expert, found, begin = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon)), [], time.time()
        for seed in range(args.seeds):
            rng = np.random.default_rng([5, seed])
            data = db.Transitions.from_pairs(*expert.sample_transitions(5_000, 0.9, rng), states=5)
            run = db.imitate(as_env(mdp), data, discount=0.9, rng=seed, tol=1e-3)
            found.append(db.distance(expert, mdp.induced_chain(run.policy), "indicator", 0.9).value)
        values = " ".join(f"{d:.4f}" for d in found)
        print(
            f"chain, epsilon {epsilon}, sampled, 5000 transitions: median {np.median(found):.4f} ({values}), "
            f"{time.time() - begin:.0f} s",
            flush=True,
        )


def sampled(args):
    for name, env, mdp, expert in tables(args):
        best, shares, begin = expected_return(mdp, expert, HORIZON), [], time.time()
        for seed in range(args.seeds):
            large = mdp.n_states > 100  # Taxi has 300 starts, and solves take seconds
            data = rollouts(env, expert, 20_000 if large else 5_000, seed).transitions()
            sampling = Sampling(rounds=2, iterations=5) if large else Sampling()
            run = db.imitate(env, data, discount=0.95, rng=seed, tol=1e-3, max_iterations=30, sampling=sampling)
            shares.append(1 - (best - expected_return(mdp, run.policy, HORIZON)) / abs(best))
            print(f"{name:18} sampled  seed {seed}: {shares[-1]:.3f}, {time.time() - begin:.0f} s", flush=True)
        print(f"{name:18} sampled  median share of the expert's return {np.median(shares):.3f}", flush=True)


def speed(args):
    """An outer iteration with the exact warm-started solve, and with SOMCOT at the paper's K_inner = 10 000.

    Medians of the CPU time of the calling thread, the exact runs repeated, because milliseconds are noisy; the
    distances are those of the best policies, certified.
    """
    for name, mdp, expert in tasks():
        times, runs = {}, {}
        for key, solver, repeats in (("exact", None, 20), ("somcot", db.solvers.Somcot(10_000, certify=False), 1)):
            steps = []
            for _ in range(repeats):
                marks = []
                runs[key] = db.imitate(
                    mdp, expert, discount=0.9, max_iterations=12, tol=1e-9, solver=solver,
                    callback=lambda row, marks=marks: marks.append(time.thread_time()),
                )  # fmt: skip
                steps.extend(np.diff(marks))
            times[key] = 1e3 * float(np.median(steps))
        print(
            f"{name:26} outer iteration: exact {times['exact']:6.2f} ms, SOMCOT {times['somcot']:7.1f} ms, ratio "
            f"{times['somcot'] / times['exact']:4.0f};  distance after 12: exact {runs['exact'].distance.value:.1e}, "
            f"SOMCOT {runs['somcot'].distance.value:.1e}",
            flush=True,
        )


def taxi(args, steps=3_000, iterations=10):
    """Outer iterations at Taxi's size from observed transitions: all pairs to seven digits, and as large problems are.

    Medians of processor time without the first iteration; both for the same data, one after the other.
    """
    import gymnasium

    from diffbisim.learning.imitate import objective

    env = gymnasium.make("Taxi-v4", max_episode_steps=HORIZON)
    mdp, large = from_env(env), objective.MAX_PAIRS_FOR_FULL_TABLE
    expert = optimal_policy(mdp, 0.99)
    for seed in range(100, 100 + args.seeds):
        data, found = rollouts(env, expert, steps, seed).transitions(), {}
        for name, limit in (("all pairs", np.inf), ("large", large)):
            objective.MAX_PAIRS_FOR_FULL_TABLE, marks = limit, []
            run = db.imitate(
                mdp, data, discount=0.95, max_iterations=iterations, tol=1e-9,
                callback=lambda row, marks=marks: marks.append(time.process_time()),
            )  # fmt: skip
            found[name] = float(np.median(np.diff(marks))), run.distance.value
        (before, far), (after, near) = found["all pairs"], found["large"]
        print(
            f"Taxi, {steps} transitions, seed {seed}: {before:.2f} s per iteration with all pairs, {after:.2f} s now, "
            f"ratio {before / after:.1f};  distance after {iterations}: {far:.6f}, {near:.6f}",
            flush=True,
        )


def tasks():
    mdp = examples.imitation_chain()
    for epsilon in (0.0, 0.4):
        yield f"chain, epsilon {epsilon}", mdp, mdp.induced_chain(examples.soft_right_policy(mdp, epsilon))
    for n in (7, 15):
        rng = np.random.default_rng(n)
        mdp = db.MDP(rng.dirichlet(np.ones(n), (3, n)))
        yield f"random MDP, {n} states", mdp, mdp.induced_chain(rng.dirichlet(np.ones(3), n))


def tables(args):
    import gymnasium

    for name in args.environment or ENVIRONMENTS:
        env = gymnasium.make(name, max_episode_steps=HORIZON)
        mdp = from_env(env)
        yield name, env, mdp, optimal_policy(mdp, 0.99)


PARTS = {
    "chain": chain,
    "random": random,
    "known": known,
    "sampled-chain": sampled_chain,
    "sampled": sampled,
    "speed": speed,
    "taxi": taxi,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--environment", nargs="*")
    options = parser.parse_args()
    for part in options.parts:
        PARTS[part](options)
