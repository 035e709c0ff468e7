"""The paper's compression experiments: a block chain, its recovered encoder, and the number of states needed.

A shuffled chain of 25 states in 5 blocks is compressed to n_Y = 2 … 10 states, with learned and with given rewards of
the small states (evenly spaced below 5 states, else 0 … n_Y - 1). With 5 or more states the distance is zero. Partition
refinement finds this too, but cannot go below 5 states or handle noise (see noisy_blocks.py). For block chains with
random dynamics, the experiment counts how often a certified zero and the true blocks are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.plot.style import BLUE, VERMILION, new_figure, plain
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.examples import block_chain
from diffbisim.reduction.compression.result import SweepResult
from diffbisim.reduction.compression.search import compress, compress_sweep
from experiments.report import AGREES, DIFFERS, IN_PART, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Compression of the block chain, by number of states"
CLAIM = "25 states are compressed to 5 with the blocks recovered, and the distance stops falling at five states."


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10)
    n_blocks: int = 5
    block_size: int = 5
    discount: float = 0.95
    restarts: int = 6
    seeds: int = 20  # chains with random block dynamics
    zero: float = 1e-6
    rng: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    learned: SweepResult
    given: SweepResult
    order: Integers  # (25,): the permutation of the states
    found: dict[str, int]  # number of random chains with certified zero and recovered blocks, by kind of rewards


def run(settings: Settings) -> Outcome:
    n = settings.n_blocks * settings.block_size
    order = np.random.default_rng(settings.rng).permutation(n)
    chain = block_chain(settings.n_blocks, settings.block_size).permuted(order)
    options: dict[str, Any] = {"rng": settings.rng, "restarts": settings.restarts}

    def spread(k: int) -> Any:
        return "spread" if k < settings.n_blocks else np.arange(k)

    return Outcome(
        settings,
        compress_sweep(chain, settings.sizes, settings.discount, **options),
        compress_sweep(chain, settings.sizes, settings.discount, rewards=spread, **options),
        order,
        {
            kind: sum(_recovered(settings, seed, kind) for seed in range(settings.seeds))
            for kind in ("learned", "given")
        },
    )


def random_blocks(n_blocks: int, size: int, rng: np.random.Generator) -> tuple[MarkovChain, Integers]:
    """Return a shuffled block chain with random dynamics and rewards 0, 1, … by block, and its blocks."""
    between = np.repeat(rng.dirichlet(np.ones(n_blocks), size=n_blocks), size, axis=0)
    share = rng.dirichlet(np.ones(size), size=between.shape)
    blocks, order = np.repeat(np.arange(n_blocks), size), rng.permutation(n_blocks * size)
    chain = MarkovChain((between[:, :, None] * share).reshape(len(order), -1), rewards=blocks)
    return chain.permuted(order), blocks[order]


def _recovered(settings: Settings, seed: int, kind: str) -> bool:
    chain, blocks = random_blocks(settings.n_blocks, settings.block_size, np.random.default_rng(seed))
    rewards = "learn" if kind == "learned" else np.arange(settings.n_blocks)
    found = compress(chain, settings.n_blocks, settings.discount, rewards=rewards, rng=seed)
    return found.distance.upper <= settings.zero and same_partition(found.assignment, blocks)


def same_partition(a: Integers, b: Integers) -> bool:
    """Return whether two assignments define the same partition."""
    pairs = len(set(zip(a.tolist(), b.tolist(), strict=True)))
    return pairs == len(set(a.tolist())) == len(set(b.tolist()))


def records(outcome: Outcome) -> list[Row]:
    return [
        {
            "states": k,
            "rewards": kind,
            "distance": r.distance.value,
            "lower": r.distance.lower,
            "upper": r.distance.upper,
            "used": r.used,
        }
        for kind, sweep in (("learned", outcome.learned), ("given", outcome.given))
        for k, r in zip(sweep.sizes, sweep.results, strict=True)
    ]


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "states": str(k),
            "learned rewards": f"{a.distance.value:.6f}",
            "used": str(a.used),
            "given rewards": f"{b.distance.value:.6f}",
            "used ": str(b.used),
            "gap": f"{max(a.distance.gap, b.distance.gap):.0e}",
        }
        for k, a, b in zip(outcome.settings.sizes, outcome.learned.results, outcome.given.results, strict=True)
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "recommended": outcome.learned.recommended,
        "learned": dict(zip(map(str, outcome.learned.sizes), outcome.learned.values.tolist(), strict=True)),
        "given": dict(zip(map(str, outcome.given.sizes), outcome.given.values.tolist(), strict=True)),
        "random_chains_recovered": outcome.found,
        "random_chains": outcome.settings.seeds,
    }


def findings(outcome: Outcome) -> list[str]:
    n, found = outcome.settings.seeds, outcome.found
    return [
        f"recommended size {outcome.learned.recommended} (the chain has {outcome.settings.n_blocks} blocks)",
        f"random block dynamics: certified zero and the true blocks in {found['learned']} of {n} chains with learned "
        f"rewards, in {found['given']} of {n} with given ones",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Check that the elbow is the number of blocks, and that the blocks are recovered."""
    numbers = summary(outcome)
    if numbers["recommended"] != outcome.settings.n_blocks:
        return DIFFERS, f"The elbow is at {numbers['recommended']} states."
    if min(numbers["random_chains_recovered"].values()) < outcome.settings.seeds:
        return IN_PART, "The elbow is right, but not all random block chains were recovered."
    return AGREES, "It agrees exactly; but the chain is exactly lumpable, so partition refinement suffices."


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(8.4, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.5))
    at_blocks = outcome.learned.results[outcome.settings.sizes.index(outcome.learned.recommended)]
    unshuffled = np.empty_like(at_blocks.encoder)
    unshuffled[outcome.order] = at_blocks.encoder
    image = left.imshow(_by_reward(unshuffled, at_blocks.chain.rewards), aspect="auto", cmap="Greys", vmin=0, vmax=1)
    figure.colorbar(image, ax=left, label="probability", shrink=0.9)
    left.set_title(r"recovered encoder $\lambda_X(y|x)$", fontsize=10)
    left.set(xlabel="small state, by reward", ylabel="state of the chain, unshuffled")
    left.set_yticks(range(0, len(unshuffled), outcome.settings.block_size))
    plain(right)
    for sweep, label, color, style in (
        (outcome.given, "given rewards", VERMILION, "s--"),
        (outcome.learned, "learned rewards", BLUE, "o-"),
    ):
        right.plot(sweep.sizes, sweep.values, style, color=color, label=label)
    right.set_title("distance of the small chain", fontsize=10)
    right.set(xlabel="states of the small chain $n_Y$", ylabel="distance (units of reward)", ylim=(0, None))
    right.set_xticks(outcome.settings.sizes)
    right.legend(framealpha=1, edgecolor="none", fontsize=9)
    figure.suptitle(
        f"A chain of {len(unshuffled)} states in {outcome.settings.n_blocks} blocks, compressed", fontsize=11
    )
    return figure


def _by_reward(encoder: Floats, rewards: Floats | None) -> Floats:
    return encoder if rewards is None else encoder[:, np.argsort(rewards)]
