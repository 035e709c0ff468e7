"""Example systems with known answers, for demonstrations and tests.

Each docstring states what is known about the system in closed form, which the tests verify. γ is the discount, ρ the
normalized discounted occupancy, and d the distance with cost |r(x) - r(y)|.

    drift_walk, birth_death    walks on a line; d between two of them is a difference of two means
    cycle                      deterministic; d is a geometric series
    block_chain                25 states that behave like 5; d to block_quotient is zero
    imitation_chain            a corridor with four actions, for imitation from observations
    equal_marginals_mdp        a ring on which policies differ in their transitions, but not in their occupancies
    four_rooms                 the classical grid world; its uniform walk has a uniform stationary distribution
    prinz_well, quadruple_well walks in potentials with four wells, with rare transitions between them
    autoregression             Gaussian paths on grids; the adapted distance of two is `gaussian_distance`
    linear_gaussian_distance   discounted distance of two `LinearGaussian` processes in any dimension
    bent_walk                  a nonlinear walk on the line; `shared_noise_distance` gives the distance of two
    random_chain, …            without structure, of any size
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.common.checks import Floats, Integers, check_discount
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.gaussian import LinearGaussian, linear_gaussian_distance
from diffbisim.processes.mdp import MDP
from diffbisim.processes.stochastic import as_generator
from diffbisim.processes.timed import TimedChain

__all__ = [
    "LinearGaussian",
    "autoregression",
    "autoregression_covariance",
    "bent_walk",
    "birth_death",
    "block_chain",
    "block_quotient",
    "cycle",
    "drift_walk",
    "equal_marginals_mdp",
    "four_rooms",
    "four_rooms_walk",
    "gaussian_distance",
    "imitation_chain",
    "linear_gaussian_distance",
    "prinz_well",
    "quadruple_well",
    "random_chain",
    "random_sparse_chain",
    "sample_paths",
    "shared_noise_distance",
    "soft_right_policy",
]


def birth_death(n: int, up: float, down: float) -> MarkovChain:
    """Create a walk on 0 … n-1: up with probability ``up``, down with ``down``, otherwise stay; the ends reflect.

    Rewards are the positions, and the walk starts in 0. Known: the stationary distribution is proportional to
    ``(up/down)^i`` (detailed balance). Compared with a walk that moves down more and up less, and starts no higher, the
    monotone coupling preserves the order, so ``d = <ρ_1, r> - <ρ_2, r>``.
    """
    if not (up >= 0.0 and down >= 0.0 and up + down <= 1.0):
        raise InvalidArgument(f"up = {up}, down = {down}: both must be non-negative, with up + down at most 1")
    _at_least(n, 1, "n")
    position = np.arange(n)
    P = np.zeros((n, n))
    np.add.at(P, (position, np.minimum(position + 1, n - 1)), up)
    np.add.at(P, (position, np.maximum(position - 1, 0)), down)
    np.add.at(P, (position, position), 1.0 - up - down)
    return MarkovChain(P, rewards=position)


def drift_walk(drift: float = 1.5, n_states: int = 16) -> MarkovChain:
    """Create the paper's walk: up with probability ``σ(drift) = 1/(1+exp(-drift))``, else down; the ends reflect.

    Rewards are the positions, and the walk starts in the middle, ``n_states // 2``. Known: for two drifts
    ``d = |<ρ_1, r> - <ρ_2, r>|``, by the monotone coupling (see `birth_death`), and for zero drift the stationary
    distribution is uniform.
    """
    up = float(np.exp(-np.logaddexp(0.0, -drift)))
    return birth_death(n_states, up, 1.0 - up).with_initial(n_states // 2)


def cycle(n: int) -> MarkovChain:
    """Create the deterministic cycle ``i → i+1 mod n`` with rewards 0 … n-1, started in 0.

    Known: for cycles of n and m states started at x and y, with ``c_t = |(x+t) mod n - (y+t) mod m|`` and
    L the least common multiple of n and m, ``d = (1-γ) Σ_{t<L} γ^t c_t / (1 - γ^L)``.
    """
    _at_least(n, 1, "n")
    return MarkovChain(np.roll(np.eye(n), 1, axis=1), rewards=np.arange(n))


def block_quotient(n_blocks: int = 5) -> MarkovChain:
    """Create the block dynamics of `block_chain`: right 0.6, left 0.2, stay 0.2; rewards are the positions."""
    return birth_death(n_blocks, 0.6, 0.2)


def block_chain(n_blocks: int = 5, block_size: int = 5) -> MarkovChain:
    """Create ``n_blocks`` blocks of identical states: `block_quotient` between blocks, uniform within them.

    It starts in 0, and rewards are the indices of the blocks. Known: d to `block_quotient` is zero, and so is the
    metric between two states of the same block: lumping gives ``n_blocks`` classes.
    """
    _at_least(block_size, 1, "block_size")
    quotient = block_quotient(n_blocks)
    P = np.kron(quotient.transition, np.full((block_size, block_size), 1.0 / block_size))
    return MarkovChain(P, rewards=np.repeat(np.arange(n_blocks), block_size))


def imitation_chain(n_states: int = 5, slip: float = 0.1) -> MDP:
    """Create a corridor with the actions left, right, stay and jump (back to the initial state 0).

    With probability ``slip`` the action is replaced by a uniformly random one of the four (possibly the same). Left and
    right stay at the ends, so right and stay are equivalent in the last state. Known: with ``slip=0`` under "right" the
    state is ``min(t, n_states-1)``, so ``ρ(i) = (1-γ) γ^i`` except in the last state.
    """
    _at_least(n_states, 1, "n_states")
    i = np.arange(n_states)
    targets = [np.maximum(i - 1, 0), np.minimum(i + 1, n_states - 1), i, np.zeros_like(i)]
    moves = np.array([np.eye(n_states)[target] for target in targets])
    return MDP(_slipping(moves, slip), actions=("left", "right", "stay", "jump"))


def soft_right_policy(mdp: MDP, epsilon: float = 0.0) -> Floats:
    """Return the ε-soft policy (n, n_actions) that takes a uniformly random action with probability ε, else right."""
    _probability(epsilon, "epsilon")
    if mdp.actions is None or "right" not in mdp.actions:
        raise InvalidArgument('mdp has no action called "right", which soft_right_policy needs')
    policy = epsilon * mdp.uniform_policy()
    policy[:, mdp.actions.index("right")] += 1.0 - epsilon
    return policy


def equal_marginals_mdp(n_states: int = 5) -> MDP:
    """Create a ring with the actions forward, backward and stay and a uniform initial distribution.

    Known: a policy that acts the same in all states has a doubly stochastic kernel, so its occupancy is 1/n in every
    state, for any γ. Yet "forward" and "backward" never make the same transition (n > 2). With cost 1{x ≠ y}, two
    chains started together meet every ``m = n / gcd(n, 2)`` steps, which is optimal: ``d = 1 - (1-γ) / (1-γ^m)``.
    "forward" and "stay" meet every n steps: ``d = 1 - (1-γ) / (1-γ^n)``.
    """
    _at_least(n_states, 1, "n_states")
    one = np.eye(n_states)
    moves = [np.roll(one, 1, axis=1), np.roll(one, -1, axis=1), one]
    uniform = np.full(n_states, 1.0 / n_states)
    return MDP(moves, initial=uniform, actions=("forward", "backward", "stay"))


def four_rooms(
    size: int = 11,
    slip: float = 0.1,
    goal: tuple[int, int] | None = None,
    *,
    irrelevant: int = 1,
    influence: float = 0.0,
) -> MDP:
    """Create the four-rooms grid (Sutton, Precup, Singh 1999): ``size`` × ``size`` cells, two walls, four doors.

    Names are (row, col). The actions are up, down, left and right, and a move into a wall stays; with probability
    ``slip`` the action is replaced by a uniformly random one of the four. The initial state is (0, 0), and the reward
    is 1 at ``goal`` (default: the opposite corner), which is not absorbing. Known: 104 cells at size 11, 40 at size 7.

    With ``irrelevant`` > 1 a state is (row, col, z), where z is drawn uniformly from ``irrelevant`` values in every
    step and has no effect, so that lumping recovers the cells. With ``influence`` ν > 0 it has a small effect: before
    slipping, the action is turned clockwise with probability ``ν z / (irrelevant - 1)``.
    """
    free = _four_rooms_map(size)
    cells = np.argwhere(free)  # (n, 2), row by row
    names: list[Any] = [(int(row), int(col)) for row, col in cells]
    end = (size - 1, size - 1) if goal is None else (int(goal[0]), int(goal[1]))
    if end not in names:
        raise InvalidArgument(f"goal = {end} is a wall or outside the {size} x {size} grid")
    number = np.full((size, size), -1)
    number[free] = np.arange(len(cells))
    moves = [_moves(cells, number, step) for step in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    rewards = [float(cell == end) for cell in names]
    actions = ("up", "down", "left", "right")
    _at_least(irrelevant, 1, "irrelevant")
    if irrelevant == 1:
        return MDP(_slipping(moves, slip), initial=(0, 0), rewards=rewards, names=names, actions=actions)
    m, n = irrelevant, len(names)
    _probability(influence, "influence")
    turned = [moves[k] for k in (3, 2, 0, 1)]  # up to right, down to left, left to up, right to down
    share = influence * np.arange(m) / (m - 1)
    by_value = [_slipping([(1 - p) * a + p * b for a, b in zip(moves, turned, strict=True)], slip) for p in share]
    anew = np.full((1, m), 1.0 / m)
    at = np.add.outer(np.arange(n), np.arange(m) * n).ravel()  # row of state (cell, z) in the kernels stacked by z
    kernels = [
        sp.csr_array(sp.vstack([sp.kron(by_value[z][a], anew) for z in range(m)], format="csr")[at]) for a in range(4)
    ]
    named = [(*cell, z) for cell in names for z in range(m)]
    return MDP(kernels, initial=(0, 0, 0), rewards=np.repeat(rewards, m), names=named, actions=actions)


def four_rooms_walk(size: int = 11, goal: tuple[int, int] | None = None) -> MarkovChain:
    """Create the chain of `four_rooms` under the uniform policy (for which slip makes no difference).

    Known: the kernel is symmetric, so the uniform distribution is stationary; started from it, every cell has
    occupancy 1/n.
    """
    mdp = four_rooms(size, 0.0, goal)
    return mdp.induced_chain(mdp.uniform_policy())


def prinz_well(n_states: int = 100, reach: float = 0.16) -> MarkovChain:
    """Create a walk on ``n_states`` points of [-1, 1] in the potential of Prinz et al. (2011), which has four wells.

    ``V = 4 (x⁸ + 0.8 exp(-80 x²) + 0.2 exp(-80 (x - ½)²) + 0.5 exp(-40 (x + ½)²))``. It proposes a point
    within ``reach`` and moves there with probability ``min(1, exp(V(x) - V(x')))``. Rewards are the positions. Known:
    detailed balance holds for the distribution proportional to ``exp(-V)``, which is also the initial one.
    """
    _at_least(n_states, 2, "n_states")
    x = np.linspace(-1.0, 1.0, n_states)
    V = x**8 + 0.8 * np.exp(-80 * x**2) + 0.2 * np.exp(-80 * (x - 0.5) ** 2) + 0.5 * np.exp(-40 * (x + 0.5) ** 2)
    return _metropolis(x[:, None], 4 * V, reach, x)


def quadruple_well(size: int = 14, reach: float = 0.3, inverse_temperature: float = 4.0) -> MarkovChain:
    """Create a walk on ``size`` × ``size`` points of [-1.5, 1.5]² in ``V = (x² - 1)² + (y² - 1)²``, with four wells.

    It moves as in `prinz_well`, with ``β V`` for V. Rewards are ``x + 2 y``, which differ between the wells. Known:
    detailed balance holds for the distribution proportional to ``exp(-β V)``, which is also the initial one.
    """
    _at_least(size, 2, "size")
    axis = np.linspace(-1.5, 1.5, size)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    V = ((points**2 - 1) ** 2).sum(axis=1)
    return _metropolis(points, inverse_temperature * V, reach, points @ [1.0, 2.0])


def _metropolis(points: Floats, V: Floats, reach: float, rewards: Floats) -> MarkovChain:
    """Create a Metropolis chain that proposes any other point within ``reach`` with equal probability."""
    from scipy.spatial.distance import cdist

    near = cdist(points, points) <= reach
    np.fill_diagonal(near, False)
    if not near.any(axis=1).all():
        raise InvalidArgument(f"reach = {reach}: a point has no neighbor within reach; use a larger one")
    P = near * np.exp(np.minimum(np.subtract.outer(V, V), 0.0)) / near.sum(axis=1).max()
    np.fill_diagonal(P, 1.0 - P.sum(axis=1))
    law = np.exp(V.min() - V)
    return MarkovChain(P, initial=law / law.sum(), rewards=rewards)


def autoregression(
    coefficient: float, noise: float, n_steps: int, n_states: int = 31, width: float = 4.0
) -> TimedChain:
    """Create the process ``x_0 = 0, x_{t+1} = a x_t + σ ε_t``, ε Gaussian, on a grid of ``n_states`` points per time.

    The grid at time t extends ``width`` standard deviations to both sides, and each value is moved to the nearest
    point. Rewards are the positions. Known: with cost "squared" and unit weights the distance of two such processes
    tends to `gaussian_distance` of their covariances (`autoregression_covariance`), with an error of order
    n_states^-2, so that Richardson extrapolation applies.
    """
    from scipy.special import ndtr

    a, σ = float(coefficient), float(noise)
    _at_least(n_steps, 1, "n_steps")
    _at_least(n_states, 2, "n_states")
    if not (σ > 0.0 and width > 0.0):
        raise InvalidArgument(f"noise = {noise}, width = {width}: both must be positive")
    spread = np.sqrt(np.diag(autoregression_covariance(a, σ, n_steps)))
    grids = [np.zeros(1), *(np.linspace(-width, width, n_states) * sd for sd in spread)]
    kernels = []
    for now, after in itertools.pairwise(grids):
        edges = (after[1:] + after[:-1]) / 2
        below = ndtr((edges - a * now[:, None]) / σ)
        kernels.append(np.diff(below, axis=1, prepend=0.0, append=1.0))
    return TimedChain(kernels, rewards=grids)


def autoregression_covariance(coefficient: float, noise: float, n_steps: int) -> Floats:
    """Return the covariance (T, T) of ``x_1 … x_T`` in `autoregression`: L Lᵀ with ``L[t, s] = σ a^(t-s)``, s ≤ t."""
    lag = np.subtract.outer(np.arange(n_steps), np.arange(n_steps))
    L = np.where(lag >= 0, float(noise) * float(coefficient) ** np.maximum(lag, 0), 0.0)
    return np.asarray(L @ L.T, dtype=np.float64)


def gaussian_distance(cov_x: Any, cov_y: Any, mean_x: Any = 0.0, mean_y: Any = 0.0, dimension: int = 1) -> float:
    """Return the squared adapted 2-Wasserstein distance of two Gaussian processes (Gunasingam & Wong 2025).

    ``|a - b|² + tr A + tr B - 2 Σ_t ‖(LᵀM)_tt‖_*`` with ``A = L Lᵀ``, ``B = M Mᵀ`` (Cholesky) and the nuclear norm of
    the diagonal blocks of size ``dimension``; on the line these are the absolute values of the diagonal. For weights
    w_t of the times, scale the coordinates of time t by sqrt(w_t) in both.
    """
    A, B = np.asarray(cov_x, dtype=np.float64), np.asarray(cov_y, dtype=np.float64)
    if A.ndim != 2 or A.shape != B.shape or A.shape[0] != A.shape[1] or A.shape[0] % dimension:
        raise InvalidArgument(
            f"the covariances have shapes {A.shape} and {B.shape}; give square matrices of equal size"
        )
    try:
        crossed = np.linalg.cholesky(A).T @ np.linalg.cholesky(B)
    except np.linalg.LinAlgError:
        raise InvalidArgument("a covariance is not positive definite; leave out constant coordinates") from None
    n, d = A.shape[0] // dimension, dimension
    blocks = [crossed[t * d : (t + 1) * d, t * d : (t + 1) * d] for t in range(n)]
    gained = sum(float(np.linalg.norm(block, "nuc")) for block in blocks)
    apart = np.broadcast_to(np.subtract(mean_x, mean_y), A.shape[:1])
    return float(apart @ apart + np.trace(A) + np.trace(B) - 2.0 * gained)


Step = Callable[[Floats, Floats], Floats]  # states and standard normal noise (n,) -> the next states (n,)


def bent_walk(height: float, noise: float) -> Step:
    """Return the nonlinear step ``x' = a tanh(x) + σ ε`` on the line.

    For a ≥ 0 it is increasing in x and ε, so that `shared_noise_distance` is the distance of two such walks.
    """
    a, σ = float(height), float(noise)
    if a < 0.0 or σ < 0.0:
        raise InvalidArgument(f"height = {height}, noise = {noise}: both must be non-negative")
    return lambda x, ε: a * np.tanh(x) + σ * ε


def sample_paths(step: Step, n_paths: int, n_steps: int, rng: int | np.random.Generator, spread: float = 0.0) -> Floats:
    """Sample paths (n_paths, n_steps + 1, 1) on the line, with ``x_0 ~ N(0, spread²)``."""
    noise = as_generator(rng).standard_normal((n_steps + 1, n_paths))
    states = itertools.accumulate(noise[1:], step, initial=spread * noise[0])
    return np.stack(list(states), axis=1)[..., None]


def shared_noise_distance(
    f: Step, g: Step, discount: float, *, power: float = 1.0, spread: float = 0.0, n: int = 20_000, rng: int = 0
) -> tuple[float, float]:
    """Simulate d of two kernels on the line with cost ``|x - y|^power``, power ≥ 1; also return the standard error.

    The kernels must be increasing in the state and in the noise. Then using the same noise for both is an optimal
    coupling: a convex cost of x - y is submodular, the steps preserve this, and for submodular costs the monotone
    coupling is optimal. Both start with the same ``N(0, spread²)`` variable.
    """
    γ, generator = check_discount(discount), as_generator(rng)
    noise = generator.standard_normal(n // 2)
    x = y = spread * np.concatenate([noise, -noise])  # antithetic pairs
    total, weight = np.zeros(x.size), 1.0 - γ
    while weight > 1e-8 * (1.0 - γ):
        total += weight * np.abs(x - y) ** power
        noise = generator.standard_normal(n // 2)
        ε = np.concatenate([noise, -noise])
        x, y, weight = f(x, ε), g(y, ε), weight * γ
    pairs = total.reshape(2, -1).mean(axis=0)
    return float(pairs.mean()), float(pairs.std(ddof=1) / np.sqrt(pairs.size))


def random_chain(n: int, rng: int | np.random.Generator, concentration: float = 1.0) -> MarkovChain:
    """Create a dense chain with Dirichlet(``concentration``) rows and uniform rewards on [0, 1], started in 0."""
    _at_least(n, 1, "n")
    generator = as_generator(rng)
    P = generator.dirichlet(np.full(n, concentration), size=n)
    return MarkovChain(P, rewards=generator.random(n))


def random_sparse_chain(n: int, successors: int = 4, rng: int | np.random.Generator = 0) -> MarkovChain:
    """Create a CSR chain in which each state has distinct random successors with Dirichlet(1) probabilities."""
    if not 1 <= successors <= n:
        raise InvalidArgument(f"successors = {successors}; it must lie between 1 and n = {n}")
    generator = as_generator(rng)
    columns = _distinct_columns(n, successors, generator)
    p = generator.standard_exponential((n, successors))
    p /= p.sum(axis=1, keepdims=True)
    indptr = np.arange(0, n * successors + 1, successors)
    P = sp.csr_array((p.ravel(), columns.ravel(), indptr), shape=(n, n))
    return MarkovChain(P, rewards=generator.random(n))


def _distinct_columns(n: int, k: int, generator: np.random.Generator) -> Integers:
    """Return a random set of k columns for each of n rows, (n, k), by Floyd's algorithm."""
    columns = np.empty((n, k), dtype=np.int64)
    for taken, last in enumerate(range(n - k, n)):
        pick = generator.integers(0, last + 1, size=n)
        repeated = (columns[:, :taken] == pick[:, None]).any(axis=1)
        columns[:, taken] = np.where(repeated, last, pick)
    return columns


def _slipping(moves: Any, slip: float) -> list[Any]:
    """Return kernels in which the action is replaced by a uniformly random one with probability ``slip``."""
    _probability(slip, "slip")
    mean = sum(moves[1:], start=moves[0]) / len(moves)
    return [(1.0 - slip) * move + slip * mean for move in moves]


def _four_rooms_map(size: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return which cells are free: walls in the middle, doors scaled from the 11 × 11 original."""
    _at_least(size, 7, "size")
    middle = size // 2
    near, far, left, right = (round(k * size / 11) for k in (2, 9, 1, 8))
    free = np.ones((size, size), dtype=np.bool_)
    free[:, middle] = False
    free[middle, :middle] = False
    free[middle + 1, middle + 1 :] = False
    free[[near, far], middle] = True
    free[middle, left] = free[middle + 1, right] = True
    return free


def _moves(cells: Integers, number: Integers, step: tuple[int, int]) -> sp.csr_array:
    """Return the (n, n) deterministic kernel of one step on the grid; a step into a wall stays."""
    n = len(cells)
    target = np.clip(cells + step, 0, len(number) - 1)
    reached = number[target[:, 0], target[:, 1]]
    columns = np.where(reached >= 0, reached, np.arange(n))
    return sp.csr_array((np.ones(n), (np.arange(n), columns)), shape=(n, n))


def _probability(value: float, name: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidArgument(f"{name} = {value}; it must lie between 0 and 1")


def _at_least(value: int, least: int, name: str) -> None:
    if value < least:
        raise InvalidArgument(f"{name} = {value}; it must be at least {least}")
