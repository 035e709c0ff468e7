"""Error as a function of time for all five solvers on three problems: the figure of docs/choose-a-solver.md.

    python benchmarks/solvers.py [--output docs/images/error-versus-time.png]

The error is |value - d| relative to d, with d from the exact solver at a gap of 1e-11. Time is processor time, after
compilation. Iterative solvers are shown at every row of their history, with the certified gap next to the error. SOMCOT
draws its samples from the two chains, and the plug-in estimate uses as many samples.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

import diffbisim as db
from diffbisim.problems.base import Problem
from diffbisim.problems.discounted import Discounted
from diffbisim.solvers import Exact, LinearProgram, SinkhornPolicy, SinkhornValue, Somcot

DISCOUNT = 0.95
STYLES = {
    "exact": ("#0072b2", "o"),
    "lp": ("#000000", "*"),
    "sinkhorn-policy": ("#d55e00", "s"),
    "sinkhorn-value": ("#e69f00", "D"),
    "somcot": ("#009e73", "^"),
    "plug-in": ("#cc79a7", "v"),
}


def problems() -> dict[str, Problem]:
    rng = np.random.default_rng(7)
    M = db.examples.imitation_chain(5)
    soft, uniform = M.induced_chain(db.examples.soft_right_policy(M, 0.4)), M.induced_chain(M.uniform_policy())
    abstract = db.MarkovChain(rng.dirichlet(np.ones(5), 5), rewards=np.arange(5.0))
    return {
        "imitation chain, 5 x 5": Discounted.make(soft, uniform, "indicator", DISCOUNT),
        "block chain, 25 x 5": Discounted.make(db.examples.block_chain(), abstract, "reward", DISCOUNT),
        "random chains, 16 x 16": Discounted.make(
            *(db.examples.random_chain(16, rng) for _ in "xy"), "reward", DISCOUNT
        ),
    }


def trace(solver, problem: Problem, exact: float) -> np.ndarray:
    """Return rows (seconds, relative error), one per row of history; the last one is the result."""
    rows, began = [], time.process_time()

    def note(row):
        rows.append((time.process_time() - began, abs(row["value"] / exact - 1)))

    if isinstance(solver, LinearProgram):
        result = solver.solve(problem)
        return np.array([(time.process_time() - began, abs(result.value / exact - 1))])
    solver.solve(problem, callback=note)
    return np.array(rows)


def plug_in(problem: Problem, exact: float, seed: int = 0) -> np.ndarray:
    """Return rows (seconds, relative error) for empirical chains of 10^2 to 10^6 transitions each."""
    rows, rng = [], np.random.default_rng(seed)
    for m in np.logspace(2, 6, 9).astype(int):
        began = time.process_time()
        chains = []
        for chain in (problem.x, problem.y):
            s, after = chain.sample_transitions(int(m), DISCOUNT, rng)
            data = db.Transitions.from_pairs(s, after, states=range(chain.n_states))
            chains.append(data.chain(initial=chain.initial, unseen="self-loop", sparse=False))
        value = Exact().solve(Discounted.make(*chains, problem.cost, DISCOUNT)).value
        rows.append((time.process_time() - began, abs(value / exact - 1)))
    return np.array(rows)


def measure(problem: Problem) -> dict[str, np.ndarray]:
    exact = Exact(tol=1e-11).solve(problem).value
    solvers = {
        "exact": Exact(tol=1e-9),
        "lp": LinearProgram(),
        "sinkhorn-policy": SinkhornPolicy(tol=1e-4, time_limit=20),
        "sinkhorn-value": SinkhornValue(tol=1e-4, time_limit=20),
        "somcot": Somcot(300_000, certify=False),
    }
    for name in ("exact", "sinkhorn-policy", "sinkhorn-value"):
        solvers[name].solve(problem)  # compile
    Somcot(200).solve(problem)
    traces = {name: trace(solver, problem, exact) for name, solver in solvers.items()}
    return {**traces, "plug-in": plug_in(problem, exact)}


def figure(results: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(results), figsize=(12, 4), sharey=True, layout="constrained")
    for ax, (title, traces) in zip(axes, results.items(), strict=True):
        for name, rows in traces.items():
            color, marker = STYLES[name]
            alone = len(rows) == 1 or name == "plug-in"
            ax.loglog(
                rows[:, 0], np.maximum(rows[:, 1], 1e-13), marker=marker, markersize=9 if name == "lp" else 4,
                color=color, linestyle="none" if alone else "-", linewidth=1.2, label=name,
            )  # fmt: skip
        ax.set(title=title, xlabel="seconds of one process")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("relative error of the distance")
    axes[0].legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs/images/error-versus-time.png")
    settings = parser.parse_args()
    warnings.simplefilter("ignore", db.ConvergenceWarning)
    results = {}
    print(f"{'':24s} {'solver':16s} {'seconds':>9s} {'relative error':>15s}")
    for title, problem in problems().items():
        results[title] = measure(problem)
        for name, rows in results[title].items():
            print(f"{title:24s} {name:16s} {rows[-1, 0]:9.3f} {rows[-1, 1]:15.1e}", flush=True)
    figure(results, settings.output)
    print(f"figure: {settings.output.name}")


if __name__ == "__main__":
    main()
