"""The example systems, each against the answer that its docstring states.

Distances are computed here by value iteration with linear programs, which shares no code with the package.
"""

import math
import re

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.examples import (
    birth_death,
    block_chain,
    block_quotient,
    cycle,
    drift_walk,
    equal_marginals_mdp,
    four_rooms,
    four_rooms_walk,
    imitation_chain,
    prinz_well,
    quadruple_well,
    random_chain,
    random_sparse_chain,
    soft_right_policy,
)
from oracles.games import all_transports
from oracles.kernels import dense

GAMMA = 0.5


def distance(X, Y, discount=GAMMA, sweeps=22, cost=None):
    """d by value iteration; the error is below discount^sweeps times the largest cost."""
    c = np.abs(np.subtract.outer(X.rewards, Y.rewards)) if cost is None else cost
    V = np.zeros_like(c)
    P, Q = dense(X), dense(Y)
    for _ in range(sweeps):
        V = c + discount * all_transports(P, Q, V)
    return (1 - discount) * all_transports(X.initial[None], Y.initial[None], V)[0, 0]


def mean(chain, discount):
    return float(chain.occupancy(discount) @ chain.rewards)


# --- walks --------------------------------------------------------------------------------------------------


def test_drift_walk_is_the_kernel_of_the_paper():
    walk = drift_walk()
    up = 1 / (1 + math.exp(-1.5))
    P = np.zeros((16, 16))
    for i in range(16):
        P[i, min(i + 1, 15)] += up
        P[i, max(i - 1, 0)] += 1 - up
    assert dense(walk) == pytest.approx(P, abs=1e-15)
    assert walk.n_transitions == 32
    assert np.array_equal(walk.rewards, np.arange(16))
    assert walk.initial[8] == 1


def test_walks_are_apart_by_the_difference_of_their_means():
    a, b = drift_walk(1.5, 4), drift_walk(-2.0, 4)
    assert distance(a, b) == pytest.approx(abs(mean(a, GAMMA) - mean(b, GAMMA)), abs=1e-5)
    a, b = birth_death(3, 0.5, 0.2).with_initial(1), birth_death(3, 0.3, 0.4)
    assert distance(a, b) == pytest.approx(mean(a, GAMMA) - mean(b, GAMMA), abs=1e-5)
    assert distance(a, a) == pytest.approx(0, abs=1e-12)


def test_birth_death_is_in_detailed_balance():
    chain = birth_death(6, 0.3, 0.2)
    pi = 1.5 ** np.arange(6)
    flow = pi[:, None] * dense(chain)
    assert flow == pytest.approx(flow.T, abs=1e-12)
    assert chain.n_transitions == 16
    assert dense(birth_death(1, 0.3, 0.2)) == pytest.approx(np.ones((1, 1)))
    assert np.array_equal(dense(drift_walk(0.0, 5)).sum(axis=0), np.ones(5))


def test_extreme_drifts_are_deterministic():
    assert np.array_equal(dense(drift_walk(1000.0, 3)), [[0, 1, 0], [0, 0, 1], [0, 0, 1]])
    assert dense(drift_walk(-1000.0, 3)) == pytest.approx(np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]]))
    assert dense(drift_walk(-50.0, 3))[0, 1] == pytest.approx(math.exp(-50), rel=1e-12)


@pytest.mark.parametrize(("n", "m", "x", "y"), [(2, 3, 0, 0), (3, 3, 0, 1), (1, 4, 0, 2), (4, 2, 3, 0)])
def test_cycles_are_apart_by_a_geometric_series(n, m, x, y):
    L = math.lcm(n, m)
    series = sum(GAMMA**t * abs((x + t) % n - (y + t) % m) for t in range(L))
    X, Y = cycle(n).with_initial(x), cycle(m).with_initial(y)
    assert np.array_equal(X.sample(5, 0), [(x + t) % n for t in range(6)])
    expected = (1 - GAMMA) * series / (1 - GAMMA**L)
    assert distance(X, Y, sweeps=60) == pytest.approx(expected, abs=1e-14)


# --- blocks -------------------------------------------------------------------------------------------------


def test_block_chain_by_definition():
    chain = block_chain()
    P = np.zeros((25, 25))
    for i in range(25):
        for step, p in ((1, 0.6), (-1, 0.2), (0, 0.2)):
            block = min(max(i // 5 + step, 0), 4)
            P[i, 5 * block : 5 * block + 5] += p / 5
    assert dense(chain) == pytest.approx(P, abs=1e-15)
    assert np.array_equal(chain.rewards, np.arange(25) // 5)
    assert chain.initial[0] == 1


def test_block_chain_is_at_distance_zero_from_its_quotient():
    # the coupling of a state with its block never leaves cost zero: check it is a coupling, for the full size
    chain, quotient = block_chain(), block_quotient()
    member = np.kron(np.eye(5), np.ones((5, 1)))
    assert dense(chain) @ member == pytest.approx(member @ dense(quotient), abs=1e-15)
    assert np.array_equal(chain.rewards, member @ quotient.rewards)
    assert distance(block_chain(2, 2), block_quotient(2)) == pytest.approx(0, abs=1e-6)


# --- imitation ----------------------------------------------------------------------------------------------


def test_imitation_chain_by_definition():
    n, slip = 5, 0.1
    mdp = imitation_chain(n, slip)
    effects = [lambda i: max(i - 1, 0), lambda i: min(i + 1, n - 1), lambda i: i, lambda i: 0]
    assert mdp.actions == ("left", "right", "stay", "jump")
    for a in range(4):
        P = np.zeros((n, n))
        for i in range(n):
            P[i, effects[a](i)] += 1 - slip
            for effect in effects:
                P[i, effect(i)] += slip / 4
        assert dense(mdp.transition[a]) == pytest.approx(P, abs=1e-15)
    assert mdp.initial[0] == 1


def test_going_right_without_slips_is_deterministic():
    mdp, discount = imitation_chain(4, 0.0), 0.9
    rho = mdp.induced_chain(soft_right_policy(mdp)).occupancy(discount)
    below = [(1 - discount) * discount**i for i in range(3)]
    assert rho == pytest.approx([*below, 1 - sum(below)], abs=1e-14)


@pytest.mark.parametrize(("n", "meet"), [(1, 1), (2, 1), (3, 3), (4, 2), (5, 5)])
def test_policies_of_equal_marginals_differ_in_their_transitions_only(n, meet):
    mdp = equal_marginals_mdp(n)
    forward, backward, stay, mixed = (
        mdp.induced_chain(np.tile(row, (n, 1))) for row in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.2, 0.3])
    )
    for chain in (forward, backward, stay, mixed):
        for discount in (0.3, 0.95):
            assert chain.occupancy(discount) == pytest.approx(np.full(n, 1 / n), abs=1e-14)
    both = (forward.transition > 0) & (backward.transition > 0)
    assert both.any() == (n <= 2)
    differ = 1.0 - np.eye(n)
    assert distance(forward, backward, cost=differ) == pytest.approx(1 - (1 - GAMMA) / (1 - GAMMA**meet), abs=1e-6)
    assert distance(forward, stay, cost=differ) == pytest.approx(1 - (1 - GAMMA) / (1 - GAMMA**n), abs=1e-6)


def test_soft_right_policy():
    mdp = imitation_chain()
    assert np.array_equal(soft_right_policy(mdp, 0.4), np.tile([0.1, 0.7, 0.1, 0.1], (5, 1)))
    assert np.array_equal(soft_right_policy(mdp, 0.0), np.tile([0, 1, 0, 0], (5, 1)))
    assert np.array_equal(soft_right_policy(mdp, 1.0), mdp.uniform_policy())
    assert soft_right_policy(four_rooms(), 0.2).shape == (104, 4)


# --- four rooms ---------------------------------------------------------------------------------------------

# Sutton, Precup, Singh 1999, figure 2, without the outer wall.
ROOMS = """
.....#.....
.....#.....
...........
.....#.....
.....#.....
#.####.....
.....###.##
.....#.....
.....#.....
...........
.....#.....
"""


def test_four_rooms_is_the_classical_map():
    mdp = four_rooms()
    cells = [(r, c) for r, row in enumerate(ROOMS.split()) for c, cell in enumerate(row) if cell == "."]
    assert len(cells) == 104
    assert mdp.names == tuple(cells)
    assert mdp.names[int(np.argmax(mdp.initial))] == (0, 0)
    assert mdp.names[int(np.argmax(mdp.rewards))] == (10, 10)
    assert mdp.rewards.sum() == 1


def test_four_rooms_with_a_variable_that_means_a_little():
    """(row, col, z): z is uniform and anew in every step; the action turns clockwise with probability ν z / (m - 1)."""
    plain, mdp = four_rooms(7, slip=0.2), four_rooms(7, slip=0.2, irrelevant=3, influence=0.4)
    assert len(plain.names) == 40
    assert mdp.names == tuple((*cell, z) for cell in plain.names for z in range(3))
    turned = {"up": "right", "right": "down", "down": "left", "left": "up"}
    for name, kernel in zip(mdp.actions, mdp.transition, strict=True):
        P, Q = (dense(plain.transition[plain.actions.index(a)]) for a in (name, turned[name]))
        for z in range(3):
            expected = np.repeat((1 - 0.2 * z) * P + 0.2 * z * Q, 3, axis=1) / 3
            assert dense(kernel)[z::3] == pytest.approx(expected, abs=1e-15)
    assert np.array_equal(mdp.rewards, np.repeat(plain.rewards, 3))
    with pytest.raises(InvalidArgument, match="influence"):
        four_rooms(7, irrelevant=2, influence=1.5)


def test_four_rooms_moves():
    mdp, slip = four_rooms(slip=0.2), 0.2
    number = {cell: k for k, cell in enumerate(mdp.names)}
    steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    assert mdp.actions == tuple(steps)

    def moved(cell, step):
        target = (cell[0] + step[0], cell[1] + step[1])
        return number.get(target, number[cell])

    for a, step in enumerate(steps.values()):
        P = np.zeros((104, 104))
        for cell, k in number.items():
            P[k, moved(cell, step)] += 1 - slip
            for other in steps.values():
                P[k, moved(cell, other)] += slip / 4
        assert mdp.transition[a].toarray() == pytest.approx(P, abs=1e-15)


@pytest.mark.parametrize("size", [7, 8, 9, 11, 13, 20])
def test_the_uniform_walk_is_symmetric_and_connected(size):
    walk = four_rooms_walk(size)
    P = dense(walk)
    assert np.array_equal(P, P.T)
    assert connected_components(walk.transition)[0] == 1
    n = walk.n_states
    assert walk.with_initial(np.full(n, 1 / n)).occupancy(0.9) == pytest.approx(np.full(n, 1 / n), abs=1e-15)
    mdp = four_rooms(size, slip=0.7)
    assert dense(mdp.induced_chain(mdp.uniform_policy())) == pytest.approx(P, abs=1e-15)


def test_the_goal_can_be_moved():
    walk = four_rooms_walk(goal=(2, 5))
    assert walk.rewards[walk.index((2, 5))] == 1
    with pytest.raises(InvalidArgument, match=re.escape("goal = (0, 5) is a wall or outside the 11 x 11 grid")):
        four_rooms(goal=(0, 5))


# --- random -------------------------------------------------------------------------------------------------


def test_random_chains_repeat_with_their_seed():
    a, b = random_chain(6, 3), random_chain(6, np.random.default_rng(3))
    assert np.array_equal(dense(a), dense(b))
    assert np.array_equal(a.rewards, b.rewards)
    assert ((a.rewards >= 0) & (a.rewards <= 1)).all()
    assert random_chain(200, 0).transition.mean() == pytest.approx(1 / 200)
    # the largest entry of a row: near 1/n for a high concentration, near 1 for a low one
    assert dense(random_chain(20, 0, concentration=1e4)).max() < 0.06
    assert dense(random_chain(20, 0, concentration=0.01)).max(axis=1).mean() > 0.9


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (30, 4), (1000, 10)])
def test_random_sparse_chains_have_that_many_successors(n, k):
    chain = random_sparse_chain(n, k, rng=1)
    assert chain.is_sparse
    assert np.array_equal(np.diff(chain.transition.indptr), np.full(n, k))
    again = random_sparse_chain(n, k, rng=1)
    assert np.array_equal(again.transition.data, chain.transition.data)


def test_random_successors_are_uniform():
    pairs = np.zeros((4, 4))
    for seed in range(300):
        columns = random_sparse_chain(4, 2, rng=seed).successors.indices.reshape(4, 2)
        np.add.at(pairs, (columns[:, 0], columns[:, 1]), 1)
    # 1200 draws of one of 6 pairs: mean 200, five standard deviations are 65
    assert np.abs(pairs[np.triu_indices(4, 1)] - 200).max() < 65


def test_large_sparse_chains_are_made_without_a_loop_over_rows():
    chain = random_sparse_chain(100_000, 4, rng=0)
    assert chain.n_transitions == 400_000


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: birth_death(3, 0.7, 0.4),
            "up = 0.7, down = 0.4: both must be non-negative, with up + down at most 1",
        ),
        (lambda: birth_death(3, -0.1, 0.4), "up = -0.1, down = 0.4"),
        (lambda: birth_death(0, 0.1, 0.4), "n = 0; it must be at least 1"),
        (lambda: cycle(0), "n = 0; it must be at least 1"),
        (lambda: block_chain(2, 0), "block_size = 0; it must be at least 1"),
        (lambda: random_chain(0, 0), "n = 0; it must be at least 1"),
        (lambda: imitation_chain(0), "n_states = 0; it must be at least 1"),
        (lambda: imitation_chain(slip=1.5), "slip = 1.5; it must lie between 0 and 1"),
        (lambda: four_rooms(5), "size = 5; it must be at least 7"),
        (lambda: four_rooms(slip=-0.1), "slip = -0.1; it must lie between 0 and 1"),
        (lambda: soft_right_policy(imitation_chain(), 2.0), "epsilon = 2.0; it must lie between 0 and 1"),
        (lambda: random_sparse_chain(3, 4), "successors = 4; it must lie between 1 and n = 3"),
    ],
)
def test_refused_sizes(make, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        make()


def test_soft_right_needs_a_right():
    from diffbisim.processes.mdp import MDP

    with pytest.raises(InvalidArgument, match='mdp has no action called "right"'):
        soft_right_policy(MDP(np.eye(2)[None]))


@pytest.mark.parametrize("well", [prinz_well, quadruple_well])
def test_walks_in_potentials_have_the_law_of_boltzmann(well):
    X = well()
    if well is prinz_well:
        x, bumps = X.rewards, ((0.8, 80, 0.0), (0.2, 80, 0.5), (0.5, 40, -0.5))
        V = 4 * (x**8 + sum(a * np.exp(-b * (x - c) ** 2) for a, b, c in bumps))
    else:
        axis = np.linspace(-1.5, 1.5, 14)
        V = 4 * np.add.outer((axis**2 - 1) ** 2, (axis**2 - 1) ** 2).ravel()
        assert np.allclose(X.rewards.reshape(14, 14), np.add.outer(axis, 2 * axis))
    law = np.exp(-V) / np.exp(-V).sum()
    flow = law[:, None] * X.transition
    assert np.allclose(X.initial, law, atol=1e-15)
    assert np.allclose(flow, flow.T, atol=1e-15)
