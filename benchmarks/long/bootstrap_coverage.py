"""Coverage of the 95 % interval of ``diffbisim.estimate``: simulated datasets of chains whose distance is known.

    python benchmarks/long/bootstrap_coverage.py [--datasets 200] [--replicates 80] [--processes 2] [--first 100000]
                                                 [--only "rare row" "six walks"] [--kept FILE]

Each dataset of a scene has chains of its own (from the seeds ``--first``, ``--first`` + 1, …) where they are random.
The truth is the exact distance of these chains, without any data. Scenes:

far apart       drift walks, random chains, chains with half or a tenth of every row replaced, an indicator cost
no difference   equal drift walks, equal random chains with a rare state, equal populations of users
rare            the row of a rare state is replaced; one frequent row, while the others, some of them rare, are equal;
                a rare failure with a high reward, with 6 and 18 failures expected
data            20 states with 400 steps; sticky chains; 10 long episodes; 15 episodes against 80; lengths 5 against 40
starts          initial distributions differ; transient chains that all start in the same state and end in an absorbing
                one; six walks in each group, whose initial distributions are pooled
clusters        30 users with 6 sessions each, every user with a chain of his own out of 20. The estimated chain is that
                of all steps together; the truth is that of infinitely many users, from exact expected counts

questions       six steps, with all rows changed by half and with a rare row; the long-run average cost, with all rows
                and with a rare row; data against a known chain, with half of every row, a rare row and no row changed

The columns are the coverage and its standard error, how often the interval lies below and above the truth, the mean
width of the interval, the coverage of the rule that was used before (lower = min(basic, √max(d̂² - q², 0)), without
bounds on means), and the ratio of the widths. Also the share of datasets with p ≤ .05, and with p > .05 although
lower > 0.
"""

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import diffbisim as db
from diffbisim.common.arrays import available_threads
from diffbisim.statistics.groups import simulate


class Scene(NamedTuple):
    """Two chains, the paths observed of each, and further arguments of ``estimate``."""

    X: db.MarkovChain
    Y: db.MarkovChain
    paths: tuple[list[Any], list[Any]]
    options: dict[str, Any]


def observed(X, Y, episodes, steps, rng, **options):
    """Simulate numbers of episodes, each with a number of steps between two limits, for both chains."""
    paths = tuple(
        simulate(chain, rng.integers(low, high + 1, size=number), rng)
        for chain, number, (low, high) in zip((X, Y), episodes, steps, strict=True)
    )
    return Scene(X, Y, paths, options)


def dense(n, rng):
    return db.MarkovChain(rng.dirichlet(np.ones(n), n), initial=rng.dirichlet(np.ones(n)), rewards=rng.random(n))


def with_rare_state(n, rng):
    """Return a chain with a few likely successors per state and one rare state."""
    P = 0.9 * rng.dirichlet(np.full(n, 5.0 / n), n) + 0.1 / n
    P[:, -1] *= 0.25
    P /= P.sum(axis=1, keepdims=True)
    return db.MarkovChain(P, initial=rng.dirichlet(np.ones(n)), rewards=rng.permutation(n) + rng.random(n))


def replaced(chain, rows, amount, rng):
    """Replace a part of some rows (n: of the initial distribution) by another distribution."""
    n, P, start = chain.n_states, np.array(chain.transition), np.array(chain.initial)
    for x in rows:
        law = rng.dirichlet(np.ones(n))
        if x == n:
            start = (1 - amount) * start + amount * law
        else:
            P[x] = (1 - amount) * P[x] + amount * law
    return db.MarkovChain(P, initial=start, rewards=chain.rewards)


# --- scenes -------------------------------------------------------------------------------------------------------

WALKS = (40, 40), ((30, 30), (30, 30))
SHORT = (40, 40), ((5, 20), (5, 20))


def drift(rng, difference=1.0):
    X, Y = db.examples.drift_walk(0.5 - difference / 2, 8), db.examples.drift_walk(0.5 + difference / 2, 8)
    return observed(X, Y, *WALKS, rng, discount=0.9)


def unrelated(rng):
    X = dense(6, rng)
    Y = replaced(X, range(7), 1.0, rng)
    return observed(X, Y, *WALKS, rng, discount=0.9)


def partly(rng, amount):
    X = dense(6, rng)
    return observed(X, replaced(X, range(6), amount, rng), *WALKS, rng, discount=0.9)


def asked(rng, rows, **question):
    """Half of all rows, or a rare row, are replaced; None: none are."""
    X = with_rare_state(5, rng)
    Y = X if rows is None else replaced(X, rows, 0.5 if len(rows) > 1 else 1.0, rng)
    return observed(X, Y, *WALKS, rng, **question)


def indicator(rng):
    X = dense(6, rng)
    return observed(X, replaced(X, range(6), 0.3, rng), *SHORT, rng, cost="indicator")


def equal(rng):
    X = with_rare_state(6, rng)
    return observed(X, X, *SHORT, rng)


def rare_row(rng):
    X = with_rare_state(5, rng)
    return observed(X, replaced(X, [4], 1.0, rng), *SHORT, rng)


def busy_row(rng):
    X = with_rare_state(8, rng)
    busy = int(np.argmax(X.stationary_distribution))
    return observed(X, replaced(X, [busy], 0.8, rng), *SHORT, rng)


def failures(rng):
    chains, X = [], dense(4, rng)
    for rate in (0.005, 0.015):
        P = np.zeros((5, 5))
        P[:4, :4], P[:4, 4], P[4, :4] = (1 - rate) * X.transition, rate, X.initial
        chains.append(db.MarkovChain(P, initial=[*X.initial, 0.0], rewards=[*X.rewards, 10.0]))
    return observed(*chains, (60, 60), ((20, 20), (20, 20)), rng)


def many_states(rng):
    X = with_rare_state(20, rng)
    return observed(X, replaced(X, [0, 1], 0.8, rng), (20, 20), ((20, 20), (20, 20)), rng, discount=0.9)


def sticky(rng):
    X = dense(6, rng)
    Y = replaced(X, [int(rng.integers(6))], 1.0, rng)
    slow = [db.MarkovChain(0.9 * np.eye(6) + 0.1 * C.transition, initial=C.initial, rewards=C.rewards) for C in (X, Y)]
    return observed(*slow, *WALKS, rng)


def long(rng):
    X = with_rare_state(5, rng)
    return observed(X, replaced(X, range(5), 0.1, rng), (10, 10), ((200, 200), (200, 200)), rng, initial="first")


def unequal(rng):
    X = with_rare_state(5, rng)
    return observed(X, replaced(X, [0, 1], 0.5, rng), (20, 80), SHORT[1], rng)


def lengths(rng):
    X = with_rare_state(5, rng)
    return observed(X, replaced(X, [0, 1], 0.5, rng), (40, 40), ((5, 5), (40, 40)), rng)


def starts(rng):
    X = with_rare_state(5, rng)
    return observed(X, replaced(X, [5], 0.8, rng), *SHORT, rng)


def transient(rng, alike=False):
    n, P = 6, np.zeros((6, 6))
    for x in range(n - 1):
        P[x, x:] = rng.dirichlet(np.ones(n - x))
    P[-1, -1] = 1.0
    X, Q = db.MarkovChain(P, initial=0, rewards=[*rng.random(n - 1), 0.0]), P.copy()
    for x in (0, 1, 2):
        Q[x, x:] = 0.5 * P[x, x:] + 0.5 * rng.dirichlet(np.ones(n - x))
    return observed(X, X if alike else db.MarkovChain(Q, initial=0, rewards=X.rewards), *WALKS, rng)


def six_walks(rng):
    X = dense(5, rng)
    return observed(X, replaced(X, range(5), 0.3, rng), (6, 6), ((60, 60), (60, 60)), rng)


def users(rng, alike):
    """Users draw one of 20 chains; the truth has the expected counts of all users together."""
    base, n, most, kinds = with_rare_state(5, rng), 5, 8, 20
    X = [replaced(base, range(n + 1), 0.5, rng) for _ in range(kinds)]
    Y = X if alike else [replaced(chain, [0, 1], 0.5, rng) for chain in X]
    sides, paths, clusters = [], [], []
    for chains in (X, Y):
        counts = np.zeros((n, n))
        for chain in chains:
            law = chain.initial
            for t in range(most):  # lengths are 3, …, 8: P(more than t steps) = min(1, (8 - t) / 6)
                counts += min(1.0, (most - t) / 6) * law[:, None] * chain.transition
                law = law @ chain.transition
        start = np.mean([chain.initial for chain in chains], axis=0)
        whole = counts / counts.sum(axis=1, keepdims=True)
        sides.append(db.MarkovChain(whole, initial=start, rewards=base.rewards))
        own = rng.integers(kinds, size=30)
        paths.append([path for k in own for path in simulate(chains[k], rng.integers(3, most + 1, 6), rng)])
        clusters.append([f"{len(sides)} {user}" for user in range(30) for _ in range(6)])
    return Scene(*sides, tuple(paths), {"cluster": clusters})


SCENES = {
    "drift walks": drift,
    "unrelated chains": unrelated,
    "half of every row": lambda rng: partly(rng, 0.5),
    "a tenth of every row": lambda rng: partly(rng, 0.1),
    "indicator": indicator,
    "equal drift walks": lambda rng: drift(rng, 0.0),
    "equal, rare state": equal,
    "equal users": lambda rng: users(rng, True),
    "equal transient": lambda rng: transient(rng, True),
    "rare row": rare_row,
    "one frequent row": busy_row,
    "rare failures": failures,
    "20 states, 400 steps": many_states,
    "sticky": sticky,
    "10 long episodes": long,
    "20 against 80": unequal,
    "lengths 5 and 40": lengths,
    "starts differ": starts,
    "transient, one start": transient,
    "six walks": six_walks,
    "users": lambda rng: users(rng, False),
    "six steps": lambda rng: asked(rng, range(5), horizon=5),
    "six steps, rare row": lambda rng: asked(rng, [4], horizon=5),
    "average": lambda rng: asked(rng, range(5), criterion="average"),
    "average, rare row": lambda rng: asked(rng, [4], criterion="average"),
    "known": lambda rng: asked(rng, range(5), known=True),
    "known, rare row": lambda rng: asked(rng, [4], known=True),
    "known, equal": lambda rng: asked(rng, None, known=True),
}


def one(job):
    """Return the truth, the result, and the lower end by the rule that was used before."""
    name, seed, replicates = job
    scene = SCENES[name](np.random.default_rng([seed, list(SCENES).index(name)]))
    how: dict[str, Any] = {"cost": "reward"} | scene.options
    how |= {} if "criterion" in how else {"discount": how.get("discount", 0.95)}
    known = how.pop("known", False)
    d = db.distance(
        scene.X, scene.Y, **{name: how[name] for name in ("cost", "discount", "criterion", "horizon") if name in how}
    ).value
    data = [db.Transitions.from_trajectories(paths, states=scene.X.n_states) for paths in scene.paths]
    if known:
        data[1] = scene.Y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        e = db.estimate(*data, rewards=scene.X.rewards, permutations=199, replicates=replicates, rng=seed, **how)
    tail = (1 - e.confidence) / 2
    low, high = np.quantile(e.replicates, [tail, 1 - tail], method="weibull")
    q = np.quantile(e.null, 1 - tail, method="weibull")
    was = min(max(0.0, 2 * e.plug_in - high), float(np.sqrt(max(0.0, e.plug_in**2 - q**2))))
    before = was, max(was, e.value, 2 * e.plug_in - low)
    return [float(v) for v in (d, e.value, e.plug_in, e.lower, e.upper, e.p_value, *before)]


def row(found):
    """Format what was found for a scene, (datasets, 8)."""
    d, value, plug_in, lower, upper, p, was_lower, was_upper = np.array(found).T
    slack = 1e-7 * np.maximum(1.0, d)
    low, high = (upper < d - slack).mean(), (lower > d + slack).mean()
    was = ((was_lower <= d + slack) & (was_upper >= d - slack)).mean()
    c, n = 1 - low - high, d.size
    error = np.sqrt(max(c * (1 - c), 0.02 / n) / n)
    width, old = (upper - lower).mean(), (was_upper - was_lower).mean()
    rmse = (np.sqrt(np.square(e - d).mean()) for e in (value, plug_in))
    return (
        f"{n:5d} {d.mean():8.4f} {' '.join(f'{e:8.4f}' for e in rmse)} {c:7.3f} ±{error:5.3f} {low:7.3f} {high:7.3f} "
        f"{width:8.4f} {was:7.3f} {width / old:6.2f} {(p <= 0.05).mean():7.3f} {((p > 0.05) & (lower > 0)).mean():7.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=80)
    parser.add_argument("--processes", type=int, default=available_threads())
    parser.add_argument("--first", type=int, default=100_000, help="the first seed")
    parser.add_argument("--only", nargs="*", default=SCENES, help="names of scenes")
    parser.add_argument("--kept", type=Path, help="a file that results are added to, and read from")
    s = parser.parse_args()
    print(
        f"{'':22s}{'data':>5s} {'truth':>8s} {'rmse':>8s} {'plug-in':>8s} {'covers':>7s} {'':>6s} {'too low':>7s} "
        f"{'high':>7s} {'width':>8s} {'before':>7s} {'ratio':>6s} {'p ≤ .05':>7s} {'p>,l>0':>7s}"
    )
    kept: dict[str, list[Any]] = {}
    if s.kept is not None and s.kept.exists():
        for line in s.kept.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            kept.setdefault(entry["scene"], []).extend(entry["found"])
    with ProcessPoolExecutor(s.processes) as pool:
        for name in s.only:
            found = kept.get(name, [])
            jobs = [(name, s.first + seed, s.replicates) for seed in range(len(found), s.datasets)]
            new = list(pool.map(one, jobs, chunksize=4))
            if s.kept is not None and new:
                with s.kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"scene": name, "found": new}) + "\n")
            print(f"{name:22s}{row([*found, *new])}", flush=True)


if __name__ == "__main__":
    main()
