"""Imitation tasks that need a metric: experts that cannot be reproduced, are rarely observed, or have other states.

Likelihood compares the transitions in a state with the expert's in the same state. It says nothing about transitions
that the learner cannot make, states in which the expert was not observed, and experts with different states. A distance
with a graded cost, here between positions, covers all of these: it prefers nearby states and takes the future into
account.

    other slip        the expert walks around a pit and never slips, the learner slips once in five steps
    other actions     the expert patrols in straight steps, the learner has only diagonal ones
    a cliff           the expert walks along its edge and never slips, the learner does
    few transitions   a few short walks of a patrol that slips, so that many states are never observed
    other grid        the expert is shown on 4 × 4 cells, the learner has 8 × 8 (half the speed); linked by positions
    abstract chain    the expert is shown as five stages, the learner has 25 detailed states; linked by rewards

Every method gets the exact dynamics and the same expert; those that use a cost (state matching, PW-DICE) get the same
cost. If the expert has other states than the learner, which the baselines do not support, each state of the expert is
replaced by the learner's nearest one for them. The scores are d to the true expert with the graded cost, and a quantity
that imitators do not see: turns around the loop, time at the goal, or the mean reward, as a share of the expert's (in
the other grid: of the maximum).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.distances.chains import distance
from diffbisim.plot.style import BLUE, GRAY, SKY, new_figure, plain
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.cost import feature_cost, reward_cost
from diffbisim.processes.examples import birth_death, block_quotient
from diffbisim.processes.mdp import MDP
from diffbisim.processes.planning import optimal_policy
from experiments.grids import DIAGONAL, Grid, loop, path_chain, patrol, turns
from experiments.imitators import FAIRNESS, OURS, ahead_and_level, left_out, policies, refusals, trace
from experiments.report import BEYOND, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Where the metric is needed: other dynamics, few observations, other state spaces"
CLAIM = "The paper's expert acts in the learner's own MDP."


@dataclass(frozen=True)
class Settings:
    size: int = 7  # of the grids, in cells
    slip: float = 0.2
    discount: float = 0.95
    episodes: tuple[int, ...] = (3,)  # walks shown in "few transitions"
    steps: int = 40  # of each walk
    seeds: int = 3  # of "few transitions"; nothing else is random
    iterations: int = 100


FULL = Settings(episodes=(1, 3, 10), seeds=10)


@dataclass(frozen=True, eq=False)
class Scene:
    """A task: the MDP, the expert, and how the result is scored."""

    name: str
    mdp: MDP
    truth: MarkovChain  # the expert
    cost: Floats  # (expert states, MDP states)
    worth: Callable[[MarkovChain], float]  # of the learner's chain, as a share of the expert's
    own_cost: Floats  # (MDP states, MDP states), for the baselines
    shown: Transitions | None = None  # of the expert, if not all is known
    elsewhere: bool = False  # the expert has other states


@dataclass(frozen=True, eq=False)
class Outcome:
    settings: Settings
    scores: dict[str, dict[str, Floats]]  # scene -> method -> (seeds, 2): distance, share
    refused: dict[str, tuple[str, ...]]  # scene -> methods that cannot take part as they are


def run(settings: Settings) -> Outcome:
    found: dict[str, dict[str, list[Any]]] = {}
    refused: dict[str, tuple[str, ...]] = {}
    for scene in _scenes(settings):
        if scene.elsewhere:
            refused[scene.name] = refusals(scene.mdp, scene.truth, settings.discount)
        for method, policy in _policies(scene, settings).items():
            learner = scene.mdp.induced_chain(policy)
            d = distance(scene.truth, learner, scene.cost, settings.discount).value
            found.setdefault(scene.name, {}).setdefault(method, []).append([d, scene.worth(learner)])
    scores = {name: {method: np.array(rows) for method, rows in methods.items()} for name, methods in found.items()}
    return Outcome(settings, scores, refused)


def _policies(scene: Scene, settings: Settings) -> dict[str, Floats]:
    gamma = settings.discount
    shown: Any = scene.truth if scene.shown is None else scene.shown
    ours = trace(scene.mdp, shown, gamma, cost=scene.cost, iterations=settings.iterations).policy
    if scene.elsewhere:
        shown = _translated(scene, gamma)
    return {OURS: ours, **policies(scene.mdp, shown, gamma, cost=scene.own_cost, ours=False)}


def _translated(scene: Scene, discount: float) -> Floats:
    """Return the expert's transition occupancy with each state replaced by the learner's nearest one."""
    near, n = scene.cost.argmin(axis=1), scene.mdp.n_states
    table = np.zeros((n, n))
    np.add.at(table, (near[:, None], near[None, :]), np.asarray(scene.truth.transition_occupancy(discount)))
    return table


def _scenes(settings: Settings) -> Iterator[Scene]:
    yield _other_slip(settings)
    yield _other_actions(settings)
    yield _cliff(settings)
    for episodes in settings.episodes:
        for seed in range(settings.seeds):
            yield _few(settings, episodes, seed)
    yield _other_grid(settings)
    yield _abstract(settings)


def _patrolling(name: str, grid: Grid, low: int, high: int, discount: float) -> Scene:
    """Return an expert that walks around the loop and never slips; the initial distribution is uniform on it."""
    path, n = loop(grid, low, high), grid.rows * grid.columns
    start = np.bincount(path, minlength=n) / len(path)
    expert = path_chain(n, [*path, path[0]], start)
    return _same_states(name, grid, grid.mdp(start), expert, lambda chain: turns(grid, chain, discount))


def _same_states(name: str, grid: Grid, mdp: MDP, expert: MarkovChain, worth: Any, shown: Any = None) -> Scene:
    c, best = feature_cost(grid.features, grid.features), worth(expert)
    return Scene(name, mdp, expert, c, lambda chain: worth(chain) / best, c, shown)


def _other_slip(settings: Settings) -> Scene:
    n, middle = settings.size, settings.size // 2
    grid = Grid(n, n, slip=settings.slip, holes=((middle, middle),))
    return _patrolling("other slip", grid, 1, n - 2, settings.discount)


def _other_actions(settings: Settings) -> Scene:
    n = settings.size - 1
    return _patrolling("other actions", Grid(n, n, DIAGONAL, slip=0.05), 0, n - 1, settings.discount)


def _cliff(settings: Settings) -> Scene:
    rows, columns, gamma = 4, settings.size + 1, settings.discount
    start, goal = (rows - 1, 0), (rows - 1, columns - 1)
    edge = tuple((rows - 1, k) for k in range(1, columns - 1))
    grid = Grid(rows, columns, slip=settings.slip, goal=goal, holes=edge)
    way = [start, *((rows - 2, k) for k in range(columns)), goal]
    first, last = grid.number(start), grid.number(goal)
    expert = path_chain(rows * columns, [grid.number(cell) for cell in way], first)
    return _same_states("a cliff", grid, grid.mdp(first), expert, lambda chain: chain.occupancy(gamma)[last])


def _few(settings: Settings, episodes: int, seed: int) -> Scene:
    n, rng = settings.size, np.random.default_rng(seed)
    grid = Grid(n, n, slip=settings.slip)
    mdp = grid.mdp(grid.number((1, 1)))
    expert = mdp.induced_chain(patrol(grid, 1, n - 2))
    walks = [expert.sample(settings.steps, rng) for _ in range(episodes)]
    shown = Transitions.from_trajectories(walks, states=n * n)
    name = f"few transitions: {episodes * settings.steps}"
    return _same_states(name, grid, mdp, expert, lambda chain: turns(grid, chain, settings.discount), shown)


def _other_grid(settings: Settings) -> Scene:
    small, large = Grid(4, 4, goal=(3, 3)), Grid(8, 8, slip=0.1, goal=(7, 7))
    path = [small.number(cell) for cell in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3))]
    expert = path_chain(16, path, 0)
    mdp = large.mdp()
    fastest = mdp.induced_chain(optimal_policy(mdp, settings.discount, np.eye(64)[-1]))
    best = fastest.occupancy(settings.discount)[-1]  # the expert's value is out of reach at half its speed
    return Scene(
        "other grid", mdp, expert, feature_cost(small.features, large.features),
        lambda chain: chain.occupancy(settings.discount)[-1] / best,
        feature_cost(large.features, large.features), elsewhere=True,
    )  # fmt: skip


def _abstract(settings: Settings) -> Scene:
    """Return an MDP with five blocks of five states; each action has its own distribution within a block."""
    expert, blocks, size = block_quotient(), 5, 5
    between = np.array([birth_death(blocks, *p).transition for p in ((0.9, 0.05), (0.05, 0.9), (0.05, 0.05))])
    inside = np.random.default_rng(0).dirichlet(np.ones(size), size=(3, blocks * size, blocks))
    kernels = np.repeat(between, size, axis=1)[..., None] * inside
    r = np.repeat(np.arange(blocks), size).astype(float)
    mdp = MDP(kernels.reshape(3, r.size, r.size), rewards=r)
    best = expert.occupancy(settings.discount) @ np.arange(blocks)
    return Scene(
        "abstract chain", mdp, expert, reward_cost(np.arange(blocks), r),
        lambda chain: float(chain.occupancy(settings.discount) @ r / best), reward_cost(r, r), elsewhere=True,
    )  # fmt: skip


def records(outcome: Outcome) -> list[Row]:
    return [
        {
            "scene": scene,
            "method": method,
            "takes_part": "translated" if method in outcome.refused.get(scene, ()) else "yes",
            "seed": seed,
            "distance": d,
            "share": share,
        }
        for scene, methods in outcome.scores.items()
        for method, scores in methods.items()
        for seed, (d, share) in enumerate(scores.tolist())
    ]


def table(outcome: Outcome) -> list[Row]:
    return [
        {
            "scene": scene,
            "method": method,
            "takes part": "no; states translated" if method in outcome.refused.get(scene, ()) else "yes",
            "distance d": f"{np.median(outcome.scores[scene][method][:, 0]):.4f}",
            "share of the expert's": f"{np.median(outcome.scores[scene][method][:, 1]):.1%}",
        }
        for scene in outcome.scores
        for method, _ in _ranked(outcome, scene)
    ]


def _ranked(outcome: Outcome, scene: str) -> list[tuple[str, float]]:
    medians = {method: float(np.median(scores[:, 0])) for method, scores in outcome.scores[scene].items()}
    return sorted(medians.items(), key=lambda item: item[1])


def summary(outcome: Outcome) -> dict[str, Any]:
    return {
        scene: {
            method: dict(zip(("distance", "share"), np.median(scores, axis=0).tolist(), strict=True))
            for method, scores in methods.items()
        }
        for scene, methods in outcome.scores.items()
    }


def findings(outcome: Outcome) -> list[str]:
    sentences = [f"the scenes were chosen to show where likelihood is not enough; {FAIRNESS}"]
    for scene, scores in outcome.scores.items():
        ranked = dict(_ranked(outcome, scene))
        ours = ranked.pop(OURS)
        best, d = next(iter(ranked.items()))
        standing = ahead_and_level(scores[OURS][:, 0], {name: scores[name][:, 0] for name in ranked})
        sentences.append(
            f"{scene}: {OURS} {ours:.4g}, best other {best} {d:.4g}, maximum likelihood "
            f"{ranked['maximum likelihood']:.4g}; {standing}"
        )
    for scene, names in outcome.refused.items():
        sentences.append(f"{scene}: cannot take part unless the states are translated: {', '.join(names)}")
    return [*sentences, *left_out({method for methods in outcome.scores.values() for method in methods})]


def verdict(outcome: Outcome) -> tuple[str, str]:
    """Return that this is not in the paper, whose expert acts in the learner's MDP."""
    return BEYOND, "Scenes of our choice: experts with other dynamics and other state spaces."


def plot(outcome: Outcome) -> Figure:
    from matplotlib.patches import Patch

    scenes = list(outcome.scores)
    rows = -(-len(scenes) // 3)
    figure = new_figure(12.6, 3.1 * rows + 0.6)
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for ax, scene in zip(axes, scenes, strict=False):
        _panel(plain(ax), outcome, scene)
    for ax in axes[len(scenes) :]:
        ax.axis("off")
    colors = ((BLUE, OURS), (GRAY, "baselines"), (SKY, "baselines, the expert's states replaced by the nearest"))
    handles = [Patch(color=color, label=label) for color, label in colors]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(
        "Distance to the expert (shorter is better); in brackets the share of what the expert achieves, never shown",
        fontsize=11,
    )
    return figure


def _panel(ax: Axes, outcome: Outcome, scene: str) -> None:
    ranked = _ranked(outcome, scene)[::-1]
    names, values = [name for name, _ in ranked], [d for _, d in ranked]
    refused = outcome.refused.get(scene, ())
    colors = [BLUE if name == OURS else SKY if name in refused else GRAY for name in names]
    bars = ax.barh(names, values, color=colors, height=0.65)
    shares = [np.median(outcome.scores[scene][name][:, 1]) for name in names]
    labels = [f"{d:.3g} ({max(share, 0.0):.0%})" for d, share in zip(values, shares, strict=True)]
    ax.bar_label(bars, labels, padding=3, fontsize=8)
    ax.set_xlim(0.0, 1.35 * max(values))
    ax.grid(visible=False, axis="y")
    ax.set_title(scene, fontsize=10)
    ax.set_xlabel(f"distance $d$ ({'rewards' if scene == 'abstract chain' else 'sides of the grid'})", fontsize=9)
    ax.tick_params(labelsize=9)
