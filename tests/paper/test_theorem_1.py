"""Theorem 1 as printed, against the short form that the package computes.

    ∇_θ d = - Σ_{x,y,y'} λ_Y(x|y) α_Y(x,y,y') ∇_θ ν_θ(y,y'),        ν_θ(y,y') = ρ_θ(y) P_θ(y'|y)

Here ∇ν_θ is differentiated literally, occupancy included: ∂ρ = γ (I - γ P^T)^{-1} (∂P)^T ρ, and once by finite
differences. The duals are checked as the paper's Lagrangian has them (MATH.md section 4, with its corrections).
"""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each

SEEDS = range(8)
TOL = 1e-11  # certified gap: the identities below then hold up to rounding


# --- instances: Y is a softmax of logits θ (n_Y, n_Y), some of them -∞ -----------------------------------------


def softmax(theta):
    weights = np.exp(theta - theta.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def theta_of(seed, n):
    """Logits; in every second instance about a third of the transitions is impossible."""
    rng = np.random.default_rng([1, seed])
    theta = rng.normal(size=(n, n))
    if seed % 2:
        theta[rng.random((n, n)) < 0.35] = -np.inf
        theta[np.arange(n), rng.integers(0, n, n)] = 0.3
    return theta


@cache
def solved(seed):
    rng, (n_x, n_y) = np.random.default_rng([2, seed]), (5, 4)
    starts = (rng.dirichlet(np.ones(n_x)), rng.dirichlet(np.ones(n_y))) if seed % 3 else (0, n_y - 1)
    X = db.MarkovChain(rng.dirichlet(np.ones(n_x), n_x), initial=starts[0])
    Y = db.MarkovChain(softmax(theta_of(seed, n_y)), initial=starts[1])
    return db.distance(X, Y, rng.random((n_x, n_y)), (0.5, 0.9, 0.95)[seed % 3], tol=TOL)


def with_kernel(result, P):
    """The distance after Y's kernel is replaced."""
    problem = result.problem
    Y = db.MarkovChain(P, initial=problem.y.initial)
    return db.distance(problem.x, Y, problem.cost, problem.discount, tol=TOL).value


def jacobian(seed, n=4):
    """∂P/∂θ as (n*n, n, n): every θ moves its own row."""
    P = softmax(theta_of(seed, n))
    J = np.zeros((n * n, n, n))
    for y in range(n):
        for k in range(n):
            J[y * n + k, y] = P[y] * (np.eye(n)[k] - P[y, k])
    return J


def occupancy_of_transitions(P, start, γ):
    rho = np.linalg.solve(np.eye(len(P)) - γ * P.T, (1 - γ) * start)
    return rho[:, None] * P


def literal_slope(result, dP):
    """-Σ λ_Y α_Y ∂ν, with ∂ν = ∂ρ P + ρ ∂P."""
    Y, γ = result.problem.y, result.discount
    P, rho = Y.transition, Y.occupancy(result.discount)
    d_rho = γ * np.linalg.solve(np.eye(len(P)) - γ * P.T, dP.T @ rho)
    d_nu = d_rho[:, None] * P + rho[:, None] * dP
    return -np.einsum("yx,xyj,yj", result.decoder, result.duals.alpha_y, d_nu)


# --- the theorem -----------------------------------------------------------------------------------------------


@each(seed=SEEDS)
def test_the_theorem_is_the_short_form(seed):
    result = solved(seed)
    for dP in jacobian(seed):
        short = np.sum(result.gradient.transition_y * dP)
        assert literal_slope(result, dP) == pytest.approx(short, rel=0, abs=1e-11)


@each(seed=SEEDS)
def test_the_theorem_with_the_occupancy_differentiated_numerically(seed):
    result, step = solved(seed), 1e-5
    P, start, γ = result.problem.y.transition, result.problem.y.initial, result.discount
    for dP in jacobian(seed)[::3]:
        ends = [occupancy_of_transitions(P + s * dP, start, γ) for s in (step, -step)]
        d_nu = (ends[0] - ends[1]) / (2 * step)
        literal = -np.einsum("yx,xyj,yj", result.decoder, result.duals.alpha_y, d_nu)
        short = np.sum(result.gradient.transition_y * dP)
        assert literal == pytest.approx(short, rel=0, abs=1e-7)  # step² times third derivatives of ν


@each(seed=SEEDS)
def test_the_theorem_is_the_derivative_of_the_distance(seed):
    """Through the logits, all at once: d(θ ± h z) for a random z."""
    result, step = solved(seed), 1e-4
    z = np.random.default_rng([3, seed]).normal(size=16)
    theta = theta_of(seed, 4)
    ends = [with_kernel(result, softmax(theta + s * z.reshape(4, 4))) for s in (step, -step)]
    slope = literal_slope(result, np.tensordot(z, jacobian(seed), axes=1))
    # step² times the third derivative, and TOL / step
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-6)


@each(seed=SEEDS)
def test_the_same_for_the_kernel_of_x(seed):
    """The mirror image: -Σ λ_X α_X ∂ν_X is <∂d/∂P_X, ∂P>."""
    result = solved(seed)
    X, γ, rng = result.problem.x, result.discount, np.random.default_rng([4, seed])
    P, rho = X.transition, X.occupancy(result.discount)
    z = rng.normal(size=P.shape)
    dP = P * (z - np.sum(P * z, axis=1, keepdims=True))
    d_rho = γ * np.linalg.solve(np.eye(len(P)) - γ * P.T, dP.T @ rho)
    d_nu = d_rho[:, None] * P + rho[:, None] * dP
    literal = -np.einsum("xy,xiy,xi", result.encoder, result.duals.alpha_x, d_nu)
    assert literal == pytest.approx(np.sum(result.gradient.transition_x * dP), rel=0, abs=1e-11)


@each(seed=SEEDS)
def test_shaping_changes_nothing(seed):
    """α_Y(x,y,y') - γ w(y') + w(y) gives the same gradient for every w."""
    result, γ = solved(seed), solved(seed).discount
    w = np.random.default_rng([5, seed]).normal(size=4)
    Y = result.problem.y
    P, rho = Y.transition, Y.occupancy(γ)
    for dP in jacobian(seed)[::3]:
        d_rho = γ * np.linalg.solve(np.eye(len(P)) - γ * P.T, dP.T @ rho)
        d_nu = d_rho[:, None] * P + rho[:, None] * dP
        shaped = result.duals.alpha_y - γ * w + w[:, None]
        change = -np.einsum("yx,xyj,yj", result.decoder, shaped, d_nu) - literal_slope(result, dP)
        assert abs(change) <= 1e-13


# --- the duals -------------------------------------------------------------------------------------------------


def reduced_costs(result):
    """δ = c(x,y) + α_X(x,x',y) + α_Y(x,y,y') + γ V(x',y') - V(x,y), indexed [x, y, x', y']."""
    V, γ, duals = result.values / (1 - result.discount), result.discount, result.duals
    alpha_x = duals.alpha_x.transpose(0, 2, 1)[:, :, :, None]
    alpha_y = duals.alpha_y[:, :, None, :]
    return (result.problem.cost - V)[:, :, None, None] + alpha_x + alpha_y + γ * V


def joint_occupancy(result):
    """μ(x,y,x',y') = m(x,y) Π_xy(x',y')."""
    n_x, n_y = result.problem.shape
    plans = [[result.plan(x, y) for y in range(n_y)] for x in range(n_x)]
    return result.occupancy[:, :, None, None] * np.array(plans)


@each(seed=SEEDS)
def test_duals_are_feasible_and_complementary(seed):
    result = solved(seed)
    δ, μ = reduced_costs(result), joint_occupancy(result)
    P_x, P_y = result.problem.x.transition, result.problem.y.transition
    possible = (P_x > 0)[:, None, :, None] | (P_y > 0)[None, :, None, :]
    slack = 10 * TOL / (1 - result.discount)  # V is known to TOL / (1-γ)
    assert δ[possible].min() >= -slack
    assert np.abs(δ[μ > 0]).max() <= slack
    # on the supports δ = γ (V - f - g), which is the other way to write it
    for x, y in np.ndindex(result.problem.shape):
        f, g = result.potentials(x, y)
        other = result.discount * (result.values / (1 - result.discount) - f[:, None] - g)
        np.testing.assert_allclose(δ[x, y], other, rtol=0, atol=slack)


@each(seed=SEEDS)
def test_multipliers_of_the_encoder_and_decoder_vanish(seed):
    """Σ_x' ν_X(x,x') α_X(x,x',y) = 0 for every (x,y), and for Y: λ drops out of the Lagrangian."""
    result = solved(seed)
    P_x, P_y = result.problem.x.transition, result.problem.y.transition
    np.testing.assert_allclose(np.einsum("xi,xiy->xy", P_x, result.duals.alpha_x), 0.0, atol=1e-13)
    np.testing.assert_allclose(np.einsum("yj,xyj->xy", P_y, result.duals.alpha_y), 0.0, atol=1e-13)


@each(seed=SEEDS)
def test_the_lagrangian_is_the_distance(seed):
    """L = <μ, δ> - <ν_X λ_X, α_X> - <ν_Y λ_Y, α_Y> + (1-γ) <m_0, V>; also for wrong μ and λ it is at least d."""
    result, γ, rng = solved(seed), solved(seed).discount, np.random.default_rng([6, seed])
    X, Y, V = result.problem.x, result.problem.y, result.values / (1 - solved(seed).discount)
    δ = reduced_costs(result)
    possible = (X.transition > 0)[:, None, :, None] & (Y.transition > 0)[None, :, None, :]

    def lagrangian(μ, encoder, decoder, start):
        by_x = np.einsum("xi,xy,xiy", X.transition_occupancy(γ), encoder, result.duals.alpha_x)
        by_y = np.einsum("yj,yx,xyj", Y.transition_occupancy(γ), decoder, result.duals.alpha_y)
        return np.sum(μ * δ) - by_x - by_y + (1 - γ) * np.sum(start * V)

    optimal = result.coupling.start.plan.toarray()
    right = lagrangian(joint_occupancy(result), result.encoder, result.decoder, optimal)
    assert right == pytest.approx(result.value, rel=0, abs=4 * TOL / (1 - γ))
    μ = rng.random(δ.shape) * possible
    encoder, decoder = rng.dirichlet(np.ones(4), 5), rng.dirichlet(np.ones(5), 4)
    wrong = lagrangian(μ / μ.sum(), encoder, decoder, np.outer(X.initial, Y.initial))
    assert wrong >= result.value - 4 * TOL / (1 - γ)


# --- the implicit reward -----------------------------------------------------------------------------------------


@each(seed=SEEDS)
def test_reward_is_centered_and_is_minus_the_gradient_per_visit(seed):
    result = solved(seed)
    reward, Y = result.implicit_reward(), result.problem.y
    np.testing.assert_allclose(np.sum(Y.transition * reward, axis=1), 0.0, atol=1e-13)
    np.testing.assert_allclose(
        -Y.occupancy(result.discount)[:, None] * reward, result.gradient.transition_y, rtol=0, atol=1e-11
    )


@each(seed=SEEDS)
def test_reward_is_the_decoded_dual(seed):
    result = solved(seed)
    literal = np.einsum("yx,xyj->yj", result.decoder, result.duals.alpha_y)
    np.testing.assert_allclose(result.implicit_reward(), literal, rtol=0, atol=1e-12)


@each(seed=SEEDS)
def test_a_small_step_along_the_reward_lowers_the_distance(seed):
    """P (1 + η r) stays stochastic because r is centered; the first-order change is -η Σ ρ P r² < 0."""
    result = solved(seed)
    reward, Y = result.implicit_reward(), result.problem.y
    step = 1e-4 / np.abs(reward).max()
    gain = step * np.sum(Y.occupancy(result.discount)[:, None] * Y.transition * reward**2)
    closer = with_kernel(result, Y.transition * (1 + step * reward))
    farther = with_kernel(result, Y.transition * (1 - step * reward))
    assert gain > 1e-7
    # second-order terms are 1e-4 of the first times γ/(1-γ)
    assert closer - result.value == pytest.approx(-gain, rel=0.02)
    assert farther - result.value == pytest.approx(gain, rel=0.02)


@each(seed=[1, 3, 5, 7])
def test_reward_of_impossible_transitions_is_their_one_sided_derivative(seed):
    """Mass that enters at y' changes d by -ρ(y) r(y,y') per unit."""
    result, step = solved(seed), 1e-6
    reward, Y = result.implicit_reward(), result.problem.y
    rho = Y.occupancy(result.discount)
    for y, target in np.argwhere(Y.transition == 0):
        P = Y.transition.copy()
        P[y] = (1 - step) * P[y] + step * np.eye(4)[target]
        change = (with_kernel(result, P) - result.value) / step
        assert -rho[y] * reward[y, target] == pytest.approx(change, rel=1e-4, abs=1e-4)  # step times curvature


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_reward_of_a_sparse_learner_scores_every_transition(form):
    result = solved(1)
    X, Y = (db.MarkovChain(form(c.transition), initial=c.initial) for c in (result.problem.x, result.problem.y))
    other = db.distance(X, Y, result.problem.cost, result.discount, tol=TOL)
    np.testing.assert_allclose(other.implicit_reward(), result.implicit_reward(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(other.duals.alpha_y, result.duals.alpha_y, rtol=0, atol=1e-10)
