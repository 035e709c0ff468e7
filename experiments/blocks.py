"""A block chain and its quotient: distance zero, and an encoder that recovers the blocks.

The chain has 25 states in 5 blocks; it moves right with probability 0.6, left 0.2, stays 0.2, and is uniform within a
block; the reward is the block. States of the same block behave alike, so lumping finds 5 classes, the distance to the
5-state chain is zero, and the encoder λ_X(y|x) of the optimal coupling maps every state to its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.distances.chains import distance
from diffbisim.plot.style import new_figure
from diffbisim.processes.examples import block_chain, block_quotient
from diffbisim.processes.lumping import lump
from experiments.report import AGREES, DIFFERS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Block chain: 25 states that behave like 5"

CLAIM = (
    "A chain of 5 states faithfully represents the block chain of 25: the distance is near zero, and the encoder "
    "assigns each group of five states to a single abstract state."
)


@dataclass(frozen=True)
class Settings:
    n_blocks: int = 5
    block_size: int = 5
    discount: float = 0.95
    tol: float = 1e-9


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    value: float
    lower: float
    upper: float
    iterations: int
    values: Floats  # (25, 5): the metric between all pairs of states
    encoder: Floats  # (25, 5)
    classes: Integers  # (25,): by lumping
    residual: float


def run(settings: Settings) -> Outcome:
    chain = block_chain(settings.n_blocks, settings.block_size)
    quotient = block_quotient(settings.n_blocks)
    result = distance(chain, quotient, discount=settings.discount, tol=settings.tol)
    lumping = lump(chain)
    return Outcome(
        settings, result.value, result.lower, result.upper, result.iterations, result.values, result.encoder,
        lumping.assignment, lumping.residual,
    )  # fmt: skip


def _blocks(outcome: Outcome) -> Integers:
    """Return the true block of every state."""
    return np.repeat(np.arange(outcome.settings.n_blocks), outcome.settings.block_size)


def records(outcome: Outcome) -> list[Row]:
    names = [f"encoder_{y}" for y in range(outcome.settings.n_blocks)]
    return [
        {"state": x, "block": int(block), "class": int(k), **dict(zip(names, row.tolist(), strict=True))}
        for x, (block, k, row) in enumerate(zip(_blocks(outcome), outcome.classes, outcome.encoder, strict=True))
    ]


def table(outcome: Outcome) -> list[Row]:
    right = outcome.encoder[np.arange(len(outcome.classes)), _blocks(outcome)]
    row: dict[str, Any] = {
        "distance": outcome.value,
        "lower": outcome.lower,
        "upper": outcome.upper,
        "iterations": outcome.iterations,
        "classes": int(outcome.classes.max()) + 1,
        "mass on right block": float(right.min()),
    }
    return [row]


def summary(outcome: Outcome) -> dict[str, Any]:
    values = list(table(outcome)[0].values())
    names = ("distance", "lower", "upper", "iterations", "classes_by_lumping", "least_mass_on_right_block")
    return {**dict(zip(names, values, strict=True)), "lumping_residual": outcome.residual}


def findings(outcome: Outcome) -> list[str]:
    same = bool((outcome.classes == _blocks(outcome)).all())
    return [
        f"certified: {outcome.lower:.1g} <= d <= {outcome.upper:.1g}",
        f"the classes found by lumping are {'' if same else 'NOT '}the blocks",
    ]


def verdict(outcome: Outcome) -> tuple[str, str]:
    if outcome.upper > 1e-6 or table(outcome)[0]["mass on right block"] < 1.0 - 1e-6:
        return DIFFERS, "The quotient is not at distance zero, or the encoder mixes blocks."
    return AGREES, (
        "The distance is zero by certificate, not only near it. Exact lumping finds the same five classes without any "
        "learning; the paper does not compare with it."
    )


def plot(outcome: Outcome) -> Figure:
    figure = new_figure(6.4, 5.2)
    panels = (
        (outcome.values, "metric between states", "distance (units of reward)", "cividis"),
        (outcome.encoder, r"encoder $\lambda_X(y|x)$", "probability", "Greys"),
    )
    n, size = outcome.settings.n_blocks, outcome.settings.block_size
    for ax, (matrix, title, unit, colors) in zip(figure.subplots(1, 2), panels, strict=True):
        image = ax.imshow(matrix, aspect="auto", cmap=colors, vmin=0.0, interpolation="nearest")
        for edge in range(1, n):
            ax.axhline(edge * size - 0.5, color="white" if colors == "cividis" else "#999999", linewidth=0.8)
        ax.set_title(title, fontsize=10)
        ax.set_xticks(range(n))
        ax.set_yticks(range(0, n * size, size))
        ax.set_xlabel("state $y$ of the quotient")
        ax.set_ylabel(f"state $x$ of the chain ({size} per block)")
        figure.colorbar(image, ax=ax, label=unit, shrink=0.9)
    bounds = f"{outcome.lower:.1g} ≤ d ≤ {outcome.upper:.1g}"
    figure.suptitle(f"A chain of {n * size} states and its quotient of {n}: certified {bounds}", fontsize=11)
    return figure
