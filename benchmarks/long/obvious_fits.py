"""Fits compared with a grid, with what anybody would try, and with an earlier version.

    python benchmarks/long/obvious_fits.py                                  40 problems on a grid, 100 with candidates
    python benchmarks/long/obvious_fits.py --grid 8 --candidates 12 --seed 7
    python benchmarks/long/obvious_fits.py --simulators 20                  coverage of the intervals of fit_simulator
    python benchmarks/long/obvious_fits.py --identified 40                  coverage of the intervals of identify
    python benchmarks/long/obvious_fits.py --before ../old/src              the same fits by other sources, with times

1. Models with two parameters (mixtures of three kernels, softmax tables of two states, softmax rows with linear logits,
   walks with a linear drift), targets that they reach or do not, starts that are near, far out or saturated. The best
   of a grid over [-12, 12]², refined by Nelder and Mead from its four best separate points, is the oracle.
2. These, and tables of 9 to 36 logits, against simple candidates: the start, maximum likelihood, row-wise least squares
   (both by BFGS on the module), zero. Then steps along the gradient at every result, of 1e-4 to 1 in the largest
   parameter: what they gain, separately for runs that ended on their own and for those that were stopped.
3. Easy problems: starts of size one and reachable targets, value by value against the earlier version.
4. The intervals of `fit_simulator`, nominally 95 %, of four processes.
5. The intervals of `identify`, nominally 95 %: the drift of a walk on six states from 40 walks, from 8, from one long
   one, and from 10 users with 6 sessions each, which are the user's first session repeated.

A value counts as above another one if it exceeds it by the fraction and by 1e-6 of the largest cost.
"""

import argparse
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize

import diffbisim as db

DISCOUNTS = (0.5, 0.8, 0.9, 0.95, 0.99)
NAMES = ("mixture of 3", "2 x 2 table", "linear logits", "walk", "full table")
ROUNDING = 1e-6


class Model(torch.nn.Module):
    """A function of the parameters θ that returns a kernel."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], start: Any) -> None:
        super().__init__()
        self.function = function
        self.theta = torch.nn.Parameter(torch.tensor(np.array(start, dtype=float)))

    def forward(self) -> torch.Tensor:
        return self.function(self.theta)


class Problem(NamedTuple):
    kind: int
    target: db.MarkovChain
    function: Callable[[torch.Tensor], torch.Tensor]
    start: np.ndarray
    discount: float
    options: dict[str, Any]
    easy: bool


def tensor(x: Any) -> torch.Tensor:
    return torch.tensor(np.array(x, dtype=float))


def model(kind: int, n: int, rng: np.random.Generator) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """Return the function of a kind of model, and the number of its parameters."""
    if kind == 0:
        kernels = tensor(rng.dirichlet(np.full(n, rng.choice([0.3, 1.0])), (3, n)))
        return lambda t: torch.einsum("k,kij->ij", torch.softmax(torch.cat([t, t.new_zeros(1)]), 0), kernels), 2
    if kind == 1:
        return lambda t: torch.softmax(torch.stack([t, torch.zeros_like(t)], 1), 1), 2
    if kind == 2:
        base, one, two = tensor(rng.normal(size=(3, n, n)))
        return lambda t: torch.softmax(base + t[0] * one + t[1] * two, 1), 2
    if kind == 3:
        places, x = np.arange(n), tensor(np.linspace(-1, 1, n))
        up, down = (tensor(np.eye(n)[np.clip(places + side, 0, n - 1)]) for side in (1, -1))
        return (
            lambda t: torch.sigmoid(t[0] + t[1] * x)[:, None] * up + torch.sigmoid(-t[0] - t[1] * x)[:, None] * down,
            2,
        )
    return lambda t: torch.softmax(t.reshape(n, n), 1), n * n


def problem(seed: int, case: int, kinds: int) -> Problem:
    rng = np.random.default_rng([45, seed, kinds, case])
    kind, reachable, far = case % kinds, bool(case // kinds % 2), (1, 4, 8)[case // kinds % 3]
    n = 2 if kind == 1 else int(rng.integers(3, 7))
    function, p = model(kind, n, rng)
    start, discount, initial, rewards = far * rng.normal(size=p), float(rng.choice(DISCOUNTS)), *rng.random((2, n))
    initial = initial / initial.sum()
    if reachable:
        P, options = function(tensor(rng.normal(size=p))).numpy(), {}
        target = db.MarkovChain(P, initial=initial, rewards=rewards)
    else:
        m = int(rng.integers(3, 6)) if kind == 1 else n
        P = rng.dirichlet(np.full(m, rng.choice([0.3, 1.0])), m)
        target = db.MarkovChain(P, initial=rng.dirichlet(np.ones(m)), rewards=rng.random(m))
        options = {"initial": initial, "rewards": rewards}
    return Problem(kind, target, function, start, discount, options, reachable and far == 1)


def value(given: Problem, theta: Any) -> float:
    """Return the distance at some parameters."""
    P = given.function(tensor(theta)).numpy()
    parts = given.options or {"initial": given.target.initial, "rewards": given.target.rewards}
    return float(db.distance(given.target, db.MarkovChain(P, **parts), discount=given.discount).value)


def best_of_grid(given: Problem) -> float:
    line = np.linspace(-1, 1, 17)
    axis = 12 * np.sign(line) * np.abs(line) ** 1.7
    tried = sorted((value(given, (a, b)), a, b) for a in axis for b in axis)
    best, used = tried[0][0], []
    for _, a, b in tried:
        if all(np.hypot(a - c, b - d) >= 1.5 for c, d in used) and len(used) < 4:
            used.append((a, b))
            simplex = [[a, b], [a + 0.5, b], [a, b + 0.5]]
            options: Any = {"initial_simplex": simplex, "xatol": 1e-5, "fatol": 1e-9, "maxfev": 200}
            best = min(best, minimize(lambda t: value(given, t), [a, b], method="Nelder-Mead", options=options).fun)
    return float(best)


def candidates(given: Problem) -> dict[str, float]:
    """Return the distances of simple candidates; likelihood and squares need equal numbers of states."""
    P = tensor(given.target.transition)
    found = {"start": value(given, given.start), "zero": value(given, 0 * given.start)}
    if given.function(tensor(given.start)).shape != P.shape:
        return found
    for name in ("likelihood", "squares"):

        def loss(t: Any, name: str = name) -> tuple[float, Any]:
            theta = tensor(t).requires_grad_()
            made = given.function(theta)
            misfit = -(P * made.clamp(min=1e-12).log()).sum() if name == "likelihood" else ((P - made) ** 2).sum()
            return float(misfit.detach()), torch.autograd.grad(misfit, theta)[0].numpy()

        for start in (given.start, 0 * given.start):
            theta = minimize(loss, start, jac=True, method="BFGS").x
            found[f"{name} from {'zero' if start is not given.start else 'start'}"] = value(given, theta)
    return found


def above(own: float, other: float, fraction: float, scale: float) -> bool:
    return own > (1 + fraction) * other + ROUNDING * scale


def fits(seed: int, count: int, kinds: int) -> list[tuple[float, Any, Any, str, float, float]]:
    """Return value, parameters, gradient, outcome, processor time and largest cost of every fit."""
    rows = []
    for case in range(count):
        given = problem(seed, case, kinds)
        made = Model(given.function, given.start)
        begun = time.process_time()
        found = db.fit(given.target, made, discount=given.discount, **given.options)
        spent = time.process_time() - begun
        scale = float(found.distance.problem.scale or 1.0)
        g = np.array(found.distance.gradient.transition_y)
        theta = tensor(found.parameters["theta"]).requires_grad_()
        (slope,) = torch.autograd.grad((given.function(theta) * tensor(g)).sum(), theta)
        rows.append((found.value, found.parameters["theta"], slope.numpy(), found.outcome.name, spent, scale))
    return rows


def elsewhere(sources: str, *numbers: int) -> Any:
    """Return the fits by other sources of the library, from a process of its own."""
    environment = os.environ | {"PYTHONPATH": sources}
    command = [sys.executable, __file__, "--dump", *map(str, numbers)]
    return pickle.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def report(title: str, rows: Any, bad: dict[int, list[int]]) -> None:
    print(f"{title}: {len(rows)} problems, {sum(row[4] for row in rows):.1f} s of processor time", flush=True)
    for kind, cases in bad.items():
        print(f"    {NAMES[kind]:14s} {len(cases)}" + (f"  (cases {cases})" if cases else ""))


def compare_with_grid(seed: int, count: int, before: str | None) -> None:
    sets = {"fit": fits(seed, count, 4)}
    if before:
        sets["before"] = elsewhere(before, seed, count, 4)
    problems = [problem(seed, case, 4) for case in range(count)]
    best = [best_of_grid(given) for given in problems]
    for name, rows in sets.items():
        bad: dict[int, list[int]] = {kind: [] for kind in range(4)}
        for case, (row, least) in enumerate(zip(rows, best, strict=True)):
            if above(row[0], least, 0.01, row[5]):
                bad[case % 4].append(case)
        report(f"{name}, more than 1 % above the grid", rows, bad)
    below = sum(above(least, row[0], 0.01, row[5]) for row, least in zip(sets["fit"], best, strict=True))
    print(f"the grid is more than 1 % above fit in {below}")
    compare_times(sets, problems)


def compare_times(sets: dict[str, Any], problems: list[Problem]) -> None:
    if "before" not in sets:
        return
    new, old = sets["fit"], sets["before"]
    ratio = sum(row[4] for row in new) / sum(row[4] for row in old)
    easy = [k for k, given in enumerate(problems) if given.easy]
    worse = [k for k in easy if above(new[k][0], old[k][0], 1e-3, new[k][5])]
    share = sum(new[k][4] for k in easy) / max(sum(old[k][4] for k in easy), 1e-9)
    print(f"processor time {ratio:.2f} of before; {len(easy)} easy problems: {share:.2f}, worse by .1 % in {worse}")


def gain(given: Problem, row: Any) -> float:
    """Return the largest gain by a step along the gradient, relative to the value; gains below rounding are zero."""
    own, theta, slope, _, _, scale = row
    size = float(np.abs(slope).max())
    lengths = (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if size > 1e-100 else ()
    least = min([own, *(value(given, theta - length * (slope / size)) for length in lengths)])
    return (own - least) / own if above(own, least, 0.0, scale) else 0.0


def report_gains(rows: Any, problems: list[Problem]) -> None:
    """Print by outcome, for two and for more parameters, what a step along the gradient would gain."""
    gains: dict[tuple[str, str], list[float]] = {}
    for row, given in zip(rows, problems, strict=True):
        key = (row[3], "two parameters" if given.kind < 4 else NAMES[4])
        gains.setdefault(key, []).append(gain(given, row))
    print("    gain by a step along the gradient:")
    for (outcome, kind), found in sorted(gains.items()):
        x = np.array(found)
        numbers = f"median {np.median(x):.1e}, largest {x.max():.1e}, more than .1 % in {(x > 1e-3).sum()}"
        print(f"    {outcome:9s} {kind:14s} {len(x):3d}: {numbers}")


def compare_with_candidates(seed: int, count: int, before: str | None) -> None:
    sets = {"fit": fits(seed, count, 5)}
    if before:
        sets["before"] = elsewhere(before, seed, count, 5)
    problems = [problem(seed, case, 5) for case in range(count)]
    least = [min(candidates(given).values()) for given in problems]
    for name, rows in sets.items():
        bad: dict[int, list[int]] = {kind: [] for kind in range(5)}
        for case, (row, given) in enumerate(zip(rows, problems, strict=True)):
            if above(row[0], least[case], 1e-3, row[5]):
                bad[given.kind].append(case)
        report(f"{name}, more than .1 % above a candidate", rows, bad)
        report_gains(rows, problems)
    compare_times(sets, problems)


# --- simulators ----------------------------------------------------------------------------------------------------


def van_der_pol(x: Any, parameters: Any, noise: Any) -> Any:
    place, speed = x.T
    push = parameters[0] * (1 - place**2) * speed - place
    return np.stack([place + 0.2 * speed, speed + 0.2 * push + 0.1 * noise[:, 1]], axis=1)


def pendulum(x: Any, parameters: Any, noise: Any) -> Any:
    angle, speed = x.T
    speed = speed + 0.2 * (-np.sin(angle) - parameters[0] * speed) + 0.1 * noise[:, 1]
    return np.stack([angle + 0.2 * speed, speed], axis=1)


def relaxing(x: Any, parameters: Any, noise: Any) -> Any:
    return np.exp(-0.2 * parameters[0]) * x + 0.4 * noise


def double_well(x: Any, parameters: Any, noise: Any) -> Any:
    return x + 0.2 * (parameters[0] * x - x**3) + 0.4 * noise


def coverage(seed: int, count: int) -> None:
    """Print the coverage of the intervals of single parameters."""
    for function, true, d, options in (
        (relaxing, 2.0, 1, {"n_states": 15}), (double_well, 1.0, 1, {"n_states": 20}),
        (pendulum, 0.4, 2, {"n_states": 40}), (van_der_pol, 1.0, 2, {"n_states": 40}),
    ):  # fmt: skip
        rows = []
        for case in range(count):
            rng = np.random.default_rng([46, seed, d, case])
            states = [rng.uniform(-2, 2, size=(50, d))]
            for _ in range(15):
                states.append(function(states[-1], [true], rng.standard_normal((50, d))))
            paths = list(np.stack(states, axis=1))
            found = db.fit_simulator(paths, start=0.7 * true, step=function, splits=6, tol=0.01, rng=case, **options)
            rows.append((found.parameters[0], found.lower[0] <= true <= found.upper[0], found.standard_errors[0]))
        x = np.array(rows, dtype=float)
        head = f"{function.__name__:12s} {true}: mean {x[:, 0].mean():.3f}, standard deviation {x[:, 0].std():.3f}, "
        print(f"{head}mean standard error {x[:, 2].mean():.3f}, covered {x[:, 1].mean():.3f} of {count}")


def identified(seed: int, count: int) -> None:
    truth = 0.8
    chain = db.examples.drift_walk(truth, 6)
    scenes = {"40 walks": (40, 20, 1), "8 walks": (8, 20, 1), "one long walk": (1, 400, 1), "10 users": (10, 20, 6)}
    for name, (walks, steps, repeated) in scenes.items():
        found = []
        for case in range(count):
            rng = np.random.default_rng([47, seed, case, walks])
            paths = [path for _ in range(walks) for path in [chain.sample(steps, rng=rng)] * repeated]
            data = db.Transitions.from_trajectories(
                paths, states=6, clusters=np.repeat(np.arange(walks), repeated) if repeated > 1 else None
            )
            fit = db.identify(
                data, db.kernels.DriftWalk(0.3, 6), rewards=range(6), replicates=40, rng=case, unseen="self-loop"
            )
            found.append([float(fit.parameters["drift"]), *map(float, fit.intervals["drift"])])
        value, low, high = np.array(found).T
        inside = (low <= truth) & (truth <= high)
        print(f"identify, {name}: mean {value.mean():.3f} for {truth}, covered {inside.mean():.3f} of {count}, "
              f"above {(low > truth).mean():.3f}, below {(high < truth).mean():.3f}, width {(high - low).mean():.3f}",
              flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seed", 0), ("grid", 40), ("candidates", 100), ("simulators", 0), ("identified", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--before", help="sources of an earlier version")
    parser.add_argument("--dump", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    fits(10**6, 1, 4)  # loads the compiled code
    if args.dump:
        sys.stdout.buffer.write(pickle.dumps(fits(*args.dump)))
        return
    if args.grid:
        compare_with_grid(args.seed, args.grid, args.before)
    if args.candidates:
        compare_with_candidates(args.seed, args.candidates, args.before)
    if args.simulators:
        coverage(args.seed, args.simulators)
    if args.identified:
        identified(args.seed, args.identified)


if __name__ == "__main__":
    main()
