"""Laws of the distance: what must hold for every pair of chains, whatever the numbers are."""

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each
from oracles.bellman import transport
from oracles.instances import kernel
from oracles.kernels import cycle

SEEDS = range(8)
KINDS = ("dense", "sparse", "deterministic", "ties")
DISCOUNTS = (0.3, 0.9, 0.99)

#: Certified gap, relative to the largest cost; two results may differ by twice that.
TOL = 1e-11
BOTH = 2 * TOL


def chain(seed, n, kind, rewards=True):
    """Non-Dirac starts, random rewards (integers for "ties")."""
    rng = np.random.default_rng([seed, n, KINDS.index(kind)])
    r = rng.integers(0, 3, n) if kind == "ties" else rng.random(n)
    start = rng.dirichlet(np.ones(n))
    return db.MarkovChain(kernel(rng, n, kind), initial=start, rewards=r if rewards else None)


def d(X, Y, cost="reward", γ=0.9, tol=TOL, **options):
    return db.distance(X, Y, cost, γ, tol=tol, **options)


def random_cost(seed, n_x, n_y):
    return np.random.default_rng([9, seed]).random((n_x, n_y))


every_kind = pytest.mark.parametrize("kind", KINDS)
every_seed = each(seed=SEEDS)


# --- zero ------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("γ", DISCOUNTS)
@pytest.mark.parametrize("start", ["state", "random", "uniform", "two states"])
@pytest.mark.parametrize("cost", ["reward", "indicator"])
def test_the_distance_of_a_chain_to_itself_is_zero(kind, γ, start, cost):
    rng, M = np.random.default_rng(3), chain(3, 6, kind)
    starts = {
        "state": 2,
        "random": rng.dirichlet(np.ones(6)),
        "uniform": np.full(6, 1 / 6),
        "two states": [0.3, 0, 0, 0.7, 0, 0],
    }
    M = M.with_initial(starts[start])
    result = d(M, M, cost, γ)
    scale = max(result.problem.scale, 1e-300)
    assert result.lower == 0
    assert result.value <= BOTH * scale
    assert np.diag(result.values).max() <= BOTH * scale


@every_seed
def test_different_starts_of_one_chain_are_apart(seed):
    """With the indicator cost and a random kernel no two states are bisimilar."""
    M = chain(seed, 5, "dense")
    result = d(M.with_initial(0), M.with_initial(1), "indicator")
    assert result.lower >= 0.1 - BOTH  # at least (1-γ) c(0,1)


@pytest.mark.parametrize("γ", [0.5, 0.95])
@every_seed
def test_states_at_distance_zero_are_the_classes_of_lump(seed, γ):
    M, hidden = lumpable(seed)
    assignment = db.lump(M).assignment
    assert len(set(assignment)) <= len(set(hidden))
    values = d(M, M, γ=γ).values
    assert np.array_equal(values <= 1e-9, assignment[:, None] == assignment)


@every_seed
def test_the_quotient_is_at_distance_zero(seed):
    M, _ = lumpable(seed)
    quotient = db.lump(M).chain
    assert quotient.n_states < M.n_states
    assert d(M, quotient).value <= BOTH
    assert d(M, M, lump=True).value <= BOTH


def lumpable(seed):
    """A chain of 4 blocks with 1 to 3 states each; members split the probability of their block at random."""
    rng = np.random.default_rng([7, seed])
    blocks = np.repeat(np.arange(4), [1, 2, 3, 2])
    Q, r = rng.dirichlet(np.ones(4), 4), rng.random(4)
    share = rng.random((8, 8))
    share /= np.stack([share[:, blocks == b].sum(axis=1) for b in range(4)], axis=1)[:, blocks]
    order = rng.permutation(8)
    M = db.MarkovChain(Q[blocks][:, blocks] * share, initial=rng.dirichlet(np.ones(8)), rewards=r[blocks])
    return M.permuted(order), blocks[order]


# --- symmetry, triangle --------------------------------------------------------------------------------------


@every_kind
@every_seed
def test_swapping_the_chains_transposes_everything(seed, kind):
    X, Y, c = chain(seed, 4, kind), chain(seed + 50, 3, kind), random_cost(seed, 4, 3)
    one, two = d(X, Y, c), d(Y, X, c.T)
    assert abs(one.value - two.value) <= BOTH
    np.testing.assert_allclose(one.values, two.values.T, rtol=0, atol=BOTH)


@every_seed
def test_swapping_the_chains_swaps_the_gradient(seed):
    """Without ties plans and potentials are unique."""
    X, Y, c = chain(seed, 4, "dense"), chain(seed + 50, 3, "dense"), random_cost(seed, 4, 3)
    one, two = d(X, Y, c), d(Y, X, c.T)
    np.testing.assert_allclose(one.gradient.transition_x, two.gradient.transition_y, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.gradient.transition_y, two.gradient.transition_x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.gradient.initial_x, two.gradient.initial_y, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.gradient.cost, two.gradient.cost.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.encoder, two.decoder, rtol=0, atol=1e-12)


@every_kind
@every_seed
def test_triangle_inequality(seed, kind):
    """For the distance and for every triple of states, with a ground cost that is a metric."""
    rng = np.random.default_rng([8, seed])
    sizes = (3, 5, 4)
    points = [rng.integers(0, 3, (n, 2)).astype(float) if kind == "ties" else rng.random((n, 2)) for n in sizes]
    A, B, C = (chain(seed + 20 * k, n, kind) for k, n in enumerate(sizes))
    ab = d(A, B, db.feature_cost(points[0], points[1]))
    bc = d(B, C, db.feature_cost(points[1], points[2]))
    ac = d(A, C, db.feature_cost(points[0], points[2]))
    slack = 3 * TOL * max(r.problem.scale for r in (ab, bc, ac))
    assert ac.value <= ab.value + bc.value + slack
    detour = (ab.values[:, :, None] + bc.values[None]).min(axis=1)
    assert (ac.values - detour).max() <= slack


# --- names of states do not matter --------------------------------------------------------------------------


@every_kind
@every_seed
def test_relabeling(seed, kind):
    X, Y, c = chain(seed, 5, kind), chain(seed + 50, 4, kind), random_cost(seed, 5, 4)
    rng = np.random.default_rng([10, seed])
    a, b = rng.permutation(5), rng.permutation(4)
    one, two = d(X, Y, c), d(X.permuted(a), Y.permuted(b), c[np.ix_(a, b)])
    assert abs(one.value - two.value) <= BOTH
    np.testing.assert_allclose(one.values[np.ix_(a, b)], two.values, rtol=0, atol=BOTH)


@every_kind
@every_seed
def test_duplicating_a_state(seed, kind):
    """A copy of state 0 takes over a random part of what enters it."""
    X, Y, c = chain(seed, 4, kind), chain(seed + 50, 4, kind), random_cost(seed, 4, 4)
    share = np.random.default_rng([11, seed]).random(4)
    P = np.column_stack([X.transition[:, 0] * share, X.transition[:, 1:], X.transition[:, 0] * (1 - share)])
    start = np.concatenate([[X.initial[0] * share[0]], X.initial[1:], [X.initial[0] * (1 - share[0])]])
    twice = db.MarkovChain(np.vstack([P, P[0]]), initial=start)
    one, two = d(X, Y, c), d(twice, Y, np.vstack([c, c[0]]))
    assert abs(one.value - two.value) <= BOTH
    np.testing.assert_allclose(two.values, np.vstack([one.values, one.values[0]]), rtol=0, atol=BOTH)


@every_seed
def test_states_that_nobody_enters_do_not_matter(seed):
    X, Y, c = chain(seed, 4, "dense"), chain(seed + 50, 3, "dense"), random_cost(seed, 5, 3)
    P = np.zeros((5, 5))
    P[:4, :4], P[4] = X.transition, np.random.default_rng(seed).dirichlet(np.ones(5))
    larger = db.MarkovChain(P, initial=np.append(X.initial, 0.0))
    one, two = d(X, Y, c[:4]), d(larger, Y, c)
    assert abs(one.value - two.value) <= BOTH
    np.testing.assert_allclose(two.values[:4], one.values, rtol=0, atol=BOTH)


# --- the ground cost ----------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("k", [1e-12, 1e-3, 7.0, 1e12])
def test_the_distance_scales_with_the_cost(kind, k):
    X, Y, c = chain(1, 5, kind), chain(51, 4, kind), random_cost(1, 5, 4)
    one, two = d(X, Y, c), d(X, Y, k * c)
    assert two.value == pytest.approx(k * one.value, rel=0, abs=BOTH * k)
    np.testing.assert_allclose(two.values, k * one.values, rtol=0, atol=BOTH * k)
    assert two.gap <= 1.001 * TOL * k


@every_kind
@every_seed
def test_a_constant_in_the_cost_is_a_constant_in_the_distance(seed, kind):
    X, Y, c = chain(seed, 5, kind), chain(seed + 50, 4, kind), random_cost(seed, 5, 4)
    one, two = d(X, Y, c), d(X, Y, c + 2.5)
    assert two.value - one.value == pytest.approx(2.5, rel=0, abs=5 * TOL)  # scales 1 and 3.5
    np.testing.assert_allclose(two.values - one.values, 2.5, rtol=0, atol=5 * TOL)


@every_kind
@every_seed
def test_the_distance_is_monotone_in_the_cost(seed, kind):
    X, Y, c = chain(seed, 5, kind), chain(seed + 50, 4, kind), random_cost(seed, 5, 4)
    more = c + np.random.default_rng([12, seed]).random(c.shape) * (c > 0.5)
    assert (d(X, Y, more).values - d(X, Y, c).values).min() >= -4 * TOL


@every_kind
@every_seed
def test_the_distance_lies_between_the_extreme_costs(seed, kind):
    X, Y, c = chain(seed, 5, kind), chain(seed + 50, 4, kind), 0.5 + random_cost(seed, 5, 4)
    values = d(X, Y, c).values
    assert values.max() <= c.max() + BOTH * c.max()
    assert values.min() >= c.min() - BOTH * c.max()
    assert (values - 0.1 * c).min() >= 0.9 * c.min() - BOTH * c.max()  # (1-γ) c(x,y) + γ (at least min c)


@pytest.mark.parametrize("constant", [0.0, 1e-300, 0.1, 1.0, 3e11])
def test_a_constant_cost_is_the_distance(constant):
    X, Y = chain(1, 5, "dense"), chain(2, 4, "sparse")
    result = d(X, Y, np.full((5, 4), constant))
    assert result.value == pytest.approx(constant, rel=BOTH, abs=0)
    np.testing.assert_allclose(result.values, constant, rtol=BOTH, atol=0)


# --- limits and inequalities --------------------------------------------------------------------------------------


@every_kind
@every_seed
def test_without_a_future_it_is_the_transport_between_the_starts(seed, kind):
    X, Y, c = chain(seed, 5, kind), chain(seed + 50, 4, kind), random_cost(seed, 5, 4)
    plan, _, _ = transport(c, X.initial, Y.initial)
    for γ in (1e-3, 1e-9):
        assert d(X, Y, c, γ).value == pytest.approx(np.sum(plan * c), rel=0, abs=γ + BOTH)
    np.testing.assert_allclose(d(X, Y, c, 1e-9).values, c, rtol=0, atol=1e-9 + BOTH)


@every_kind
@every_seed
def test_between_the_transport_of_occupancies_and_the_product_coupling(seed, kind):
    """m couples ρ_X and ρ_Y, so d ≥ OT_c(ρ_X, ρ_Y); independent chains are one coupling, so d ≤ its cost."""
    X, Y, c, γ = chain(seed, 5, kind), chain(seed + 50, 4, kind), random_cost(seed, 5, 4), 0.9
    value = d(X, Y, c, γ).value
    plan, _, _ = transport(c, X.occupancy(γ), Y.occupancy(γ))
    assert value >= np.sum(plan * c) - BOTH
    independent = np.linalg.solve(np.eye(20) - γ * np.kron(X.transition, Y.transition), (1 - γ) * c.ravel())
    assert value <= np.kron(X.initial, Y.initial) @ independent + BOTH


@every_seed
def test_nearby_kernels_are_at_a_small_distance(seed):
    """|d(X, Y) - d(X, Y')| ≤ γ/(1-γ) max_y TV(P(y), P'(y)) max c."""
    X, Y, c = chain(seed, 4, "dense"), chain(seed + 50, 4, "dense"), random_cost(seed, 4, 4)
    other = 0.999 * Y.transition + 0.001 * np.roll(np.eye(4), 1, axis=1)
    change = 9 * np.abs(other - Y.transition).sum(axis=1).max() / 2
    moved = d(X, db.MarkovChain(other, initial=Y.initial), c)
    assert abs(moved.value - d(X, Y, c).value) <= change + BOTH


# --- closed forms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (2, 2), (3, 4), (6, 4), (7, 11)])
@pytest.mark.parametrize("γ", [0.1, 0.9, 0.999])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_two_cycles(sizes, γ, form):
    """The joint path is x+t mod n, y+t mod k: a geometric sum with period lcm(n, k)."""
    (n, k), c = sizes, random_cost(sum(sizes), *sizes)
    period = np.lcm(n, k)
    t = np.arange(period)
    weights = (1 - γ) * γ**t / -np.expm1(period * np.log(γ))
    expected = np.array([[weights @ c[(x + t) % n, (y + t) % k] for y in range(k)] for x in range(n)])
    X, Y = db.MarkovChain(form(cycle(n)), initial=n - 1), db.MarkovChain(form(cycle(k)))
    tol = 1e-10 if γ == 0.999 else TOL  # rounding times 1/(1-γ)
    result = d(X, Y, c, γ, tol)
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=tol)
    assert result.value == pytest.approx(expected[n - 1, 0], rel=0, abs=tol)


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("γ", [0.5, 0.95])
def test_leaving_a_state_with_different_probabilities(p, γ):
    """Both chains wait in state 0 (reward 1) and end in state 1 (reward 0), leaving with p and q = 1/2.

    Coupled as much as possible they part with |p-q|; then one waits alone, which costs 1 until it leaves too.
    """
    q = 0.5
    X, Y = (db.MarkovChain([[1 - s, s], [0, 1]], rewards=[1.0, 0.0]) for s in (p, q))
    stay = min(p, q)  # who stays behind leaves with the smaller probability
    alone = (1 - γ) / (1 - γ * (1 - stay))
    together = γ * abs(p - q) * alone / (1 - γ * (1 - max(p, q)))
    assert d(X, Y, γ=γ).value == pytest.approx(together, rel=0, abs=BOTH)
