"""Compression of noisy block chains, which cannot be lumped exactly.

Every row of the block chain is mixed with a random distribution, P = (1-ε) P_blocks + ε Dirichlet(1), so that exact
lumping merges nothing. The following chains with 5 states are compared by certified distance:

    compress      `diffbisim.compress`, which does not know the blocks
    true blocks   averages over the true blocks, weighted by occupancy
    k-means       scikit-learn on the features (reward, expected reward after 1, 2, … steps), then averaged
    PCCA+         deeptime, with hard assignments, then averaged; it does not use rewards, and since it needs a
                  reversible kernel it gets (P + P*)/2, with P* the reversal under the stationary distribution

Methods whose packages are not installed are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Integers
from diffbisim.plot.style import BLUE, GRAY, GREEN, VERMILION, new_figure, plain
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.examples import block_chain
from diffbisim.processes.lumping import lump
from diffbisim.reduction.compression.search import compress
from diffbisim.reduction.compression.starts import Target
from diffbisim.reduction.compression.starts import averaged as average_over
from experiments.compression import same_partition
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Noisy blocks, 25 states to 5: distance of the small chain"
CLAIM = "The paper's blocks have no noise."

PEERS = {"k-means": "scikit-learn", "PCCA+": "deeptime"}


@dataclass(frozen=True)
class Settings:
    noise: tuple[float, ...] = (0.01, 0.05, 0.10)
    seeds: tuple[int, ...] = (0, 1, 2)
    n_blocks: int = 5
    block_size: int = 5
    discount: float = 0.95
    restarts: int = 2


FULL = Settings(seeds=tuple(range(10)), restarts=4)


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    rows: tuple[Row, ...]  # noise, seed, classes by exact lumping, blocks recovered, and a distance per method
    methods: tuple[str, ...]


def run(settings: Settings) -> Outcome:
    rows = tuple(_compare(settings, noise, seed) for noise in settings.noise for seed in settings.seeds)
    methods = tuple(name for name in ("compress", "true blocks", *PEERS) if name in rows[0])
    return Outcome(settings, rows, methods)


def noisy_chain(settings: Settings, noise: float, seed: int) -> MarkovChain:
    chain = block_chain(settings.n_blocks, settings.block_size)
    rng = np.random.default_rng(seed)
    P = (1 - noise) * np.asarray(chain.transition) + noise * rng.dirichlet(np.ones(chain.n_states), chain.n_states)
    return MarkovChain(P, rewards=chain.rewards)


def _compare(settings: Settings, noise: float, seed: int) -> Row:
    chain, k = noisy_chain(settings, noise, seed), settings.n_blocks
    blocks = np.repeat(np.arange(k), settings.block_size)
    found = compress(chain, k, settings.discount, rng=seed, restarts=settings.restarts)
    row: dict[str, Any] = {
        "noise": noise,
        "seed": seed,
        "classes": lump(chain).n_states,
        "recovered": same_partition(found.assignment, blocks),
        "compress": found.distance.value,
        "true blocks": averaged(chain, blocks, settings.discount),
    }
    for name, assignment in (("k-means", _k_means(chain, k, seed)), ("PCCA+", _pcca(chain, k))):
        if assignment is not None:
            row[name] = averaged(chain, assignment, settings.discount)
    return row


def averaged(chain: MarkovChain, assignment: Integers, discount: float) -> float:
    """Return the distance of the chain averaged over classes, with median rewards."""
    target = Target(chain, discount, rewards=chain.rewards)
    return target.solve(average_over(target, assignment, int(assignment.max()) + 1)).value


def _k_means(chain: MarkovChain, k: int, seed: int) -> Integers | None:
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        return None
    features = [np.asarray(chain.rewards)]
    for _ in range(10):
        features.append(np.asarray(chain.transition @ features[-1]))
    found = KMeans(k, n_init=10, random_state=seed).fit_predict(np.stack(features, axis=1))
    return np.asarray(found, dtype=np.int64)


def _pcca(chain: MarkovChain, k: int) -> Integers | None:
    try:
        from deeptime.markov import pcca
    except ImportError:
        return None
    P = np.asarray(chain.transition)
    law = np.linalg.matrix_power(P, 1_000)[0]
    reversible = (P + law[None, :] * P.T / law[:, None]) / 2
    return np.unique(pcca(reversible, k).assignments, return_inverse=True)[1]


def records(outcome: Outcome) -> list[Row]:
    return list(outcome.rows)


def _means(outcome: Outcome) -> dict[float, dict[str, float]]:
    of = {noise: [row for row in outcome.rows if row["noise"] == noise] for noise in outcome.settings.noise}
    return {e: {name: float(np.mean([r[name] for r in rows])) for name in outcome.methods} for e, rows in of.items()}


def table(outcome: Outcome) -> list[Row]:
    rows: list[Row] = []
    for noise, means in _means(outcome).items():
        runs = [row for row in outcome.rows if row["noise"] == noise]
        kept = min(row["classes"] for row in runs)
        found = f"{sum(row['recovered'] for row in runs)}/{len(runs)}"
        distances = {name: f"{value:.5f}" for name, value in means.items()}
        rows.append({"noise": f"{noise:.0%}", "exact classes": str(kept), **distances, "blocks found": found})
    return rows


def summary(outcome: Outcome) -> dict[str, Any]:
    worst = max(row["compress"] / row[name] for row in outcome.rows for name in outcome.methods[1:])
    return {
        "mean_distances": {f"{noise:g}": means for noise, means in _means(outcome).items()},
        "worst_ratio_to_a_competitor": worst,
        "runs_with_blocks_recovered": sum(row["recovered"] for row in outcome.rows),
        "runs": len(outcome.rows),
    }


def findings(outcome: Outcome) -> list[str]:
    said = [f"{_compared(outcome)}; that distance is what compress minimizes, and the others do not"]
    missing = [f"{name} ({package})" for name, package in PEERS.items() if name not in outcome.methods]
    if missing:
        said.append(f"left out, because not installed: {', '.join(missing)}")
    return said


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Return that this is not in the paper, whose blocks have no noise."""
    return BEYOND, f"{_compared(outcome)}."


def _compared(outcome: Outcome) -> str:
    """Return a sentence that compares the methods."""
    worst, runs = summary(outcome)["worst_ratio_to_a_competitor"], len(outcome.rows)
    on = "On one random chain" if runs == 1 else f"On each of {runs} random chains"
    others = ", ".join(outcome.methods[1:])
    return f"{on} compress is at most at {worst:.0%} of the distance of the others that were tried ({others})"


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(6.4, 3.8)
    ax = plain(figure.subplots())
    colors = dict(zip(("compress", "true blocks", "k-means", "PCCA+"), (BLUE, GREEN, GRAY, VERMILION), strict=True))
    means, width = _means(outcome), 0.5 / len(outcome.methods)
    places = np.arange(len(means))
    for k, name in enumerate(outcome.methods):
        heights = [row[name] for row in means.values()]
        shift = (k - (len(outcome.methods) - 1) / 2) * width
        ax.plot(places + shift, heights, "osD^"[k], markersize=8, color=colors[name], label=name)
    ax.set_xticks(places, labels=[f"{noise:.0%}" for noise in means])
    ax.set(xlabel="noise in every row", ylabel="distance (units of reward)", yscale="log")
    figure.legend(loc="outside lower center", edgecolor="none", fontsize=9, ncols=len(outcome.methods))
    seeds = len(outcome.settings.seeds)
    figure.suptitle(f"25 noisy states compressed to 5, mean over {seeds} seed{'s' * (seeds != 1)}", fontsize=11)
    return figure
