"""The convex programs of the baselines against other solvers: descent on the policy, linear programs, flow by hand."""

import gymnasium
import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.special import rel_entr, softmax

import diffbisim as db
from cases import each
from diffbisim.learning.imitate.baselines import OfflineData, lobs_dice, pw_dice, smodice, state_matching

GAMMA, N, M = 0.8, 3, 2
SEEDS = range(3)


def instance(seed):
    """A dense MDP with a behavior policy, and an expert that no policy imitates exactly."""
    rng = np.random.default_rng(seed)
    T = rng.dirichlet(np.ones(N), size=(M, N))
    mdp = db.MDP(T, initial=rng.dirichlet(np.ones(N)))
    data = OfflineData.exact(mdp, GAMMA, rng.dirichlet(np.ones(M), size=N))
    return T, mdp, data, rng.dirichlet(np.ones(N * N)).reshape(N, N)


def occupancy(T, p0, pi):
    """ρ(s,a) of a policy, from the definition."""
    P = np.einsum("sa,ast->st", pi, T)
    return np.linalg.solve(np.eye(N) - GAMMA * P.T, (1 - GAMMA) * p0)[:, None] * pi


def best_over_policies(objective, T, p0, rng):
    """Least objective(ρ) over policies, by BFGS on logits: what is convex in ρ has no other local minima."""

    def value(z):
        return objective(occupancy(T, p0, softmax(z.reshape(N, M), axis=1)))

    runs = [minimize(value, rng.normal(size=N * M), method="BFGS", options={"gtol": 1e-9}) for _ in range(2)]
    best = min(runs, key=lambda run: run.fun)
    return best.fun, softmax(best.x.reshape(N, M), axis=1)


@pytest.mark.parametrize("alpha", [0.05, 0.5])
@each(seed=SEEDS)
def test_divergences_against_descent_on_the_policy(seed, alpha):
    T, mdp, data, nu = instance(seed)
    rho_i = occupancy(T, mdp.initial, data.behavior)
    nu_i = np.einsum("sa,ast->st", rho_i, T)
    delta = 0.1
    target = (1 - delta) * nu + delta * nu_i

    def lobs(rho):
        return rel_entr(np.einsum("sa,ast->st", rho, T), target).sum() + alpha * rel_entr(rho, rho_i).sum()

    def states(rho):
        return rel_entr(rho.sum(axis=1), target.sum(axis=1)).sum() + alpha * rel_entr(rho, rho_i).sum()

    for method, objective in ((lobs_dice, lobs), (smodice, states)):
        value, pi = best_over_policies(objective, T, mdp.initial, np.random.default_rng(seed))
        result = method(data, nu, GAMMA, regularization=alpha, smoothing=delta)
        assert result.objective == pytest.approx(value, abs=1e-7)
        assert objective(result.occupancy) == pytest.approx(value, abs=1e-7)
        assert result.policy == pytest.approx(pi, abs=1e-3)  # square root of the objectives' accuracy


@each(seed=SEEDS)
def test_pw_dice_against_descent_on_the_policy(seed):
    """For a given ρ the best entropic plan is Sinkhorn's, so the program is a function of the policy alone."""
    T, mdp, data, nu = instance(seed)
    rho_i, rho_e = occupancy(T, mdp.initial, data.behavior), nu.sum(axis=1)
    e1, e2, cost = 0.5, 0.3, 1 - np.eye(N)
    U = np.outer(rho_i.sum(axis=1), rho_e)
    K = U * np.exp(-cost / e1)

    def objective(rho):
        u, v = np.ones(N), np.ones(N)
        for _ in range(100):
            u = rho.sum(axis=1) / (K @ v)
            v = rho_e / (K.T @ u)
        plan = u[:, None] * K * v
        return (plan * cost).sum() + e1 * rel_entr(plan, U).sum() + e2 * rel_entr(rho, rho_i).sum()

    value, pi = best_over_policies(objective, T, mdp.initial, np.random.default_rng(seed))
    result = pw_dice(data, nu, GAMMA, coupling_regularization=e1, regularization=e2)
    assert result.objective == pytest.approx(value, abs=1e-7)
    assert result.policy == pytest.approx(pi, abs=1e-3)


@pytest.mark.parametrize("method", [pw_dice, smodice, lobs_dice, state_matching])
@each(seed=SEEDS)
def test_occupancies_flow(method, seed):
    """The chosen ρ is the occupancy of the policy read off it, in the estimated MDP."""
    rng = np.random.default_rng(seed)
    _, mdp, _, nu = instance(seed)
    data = OfflineData.sample(mdp, 60, GAMMA, rng)
    result = method(data, nu, GAMMA)
    rho = result.occupancy
    flow = (1 - GAMMA) * mdp.initial + GAMMA * np.einsum("sa,ast->t", rho, data.dynamics)
    assert rho.sum(axis=1) == pytest.approx(flow, abs=1e-8)
    assert rho == pytest.approx(occupancy(data.dynamics, mdp.initial, result.policy), abs=1e-7)


def literal_matching(T, p0, rho_e, cost):
    """The least transport cost, over all plans and occupancies, row by row."""
    A, b = [], []
    for s in range(N):
        rho, plan = np.zeros((N, M)), np.zeros((N, N))
        rho[s] += 1
        rho -= GAMMA * T[:, :, s].T
        A.append(np.concatenate([rho.ravel(), plan.ravel()]))
        b.append((1 - GAMMA) * p0[s])
        rho, plan = np.zeros((N, M)), np.zeros((N, N))
        rho[s], plan[s] = -1, 1
        A.append(np.concatenate([rho.ravel(), plan.ravel()]))
        b.append(0)
        rho, plan = np.zeros((N, M)), np.zeros((N, N))
        plan[:, s] = 1
        A.append(np.concatenate([rho.ravel(), plan.ravel()]))
        b.append(rho_e[s])
    return linprog(np.concatenate([np.zeros(N * M), cost.ravel()]), A_eq=np.array(A), b_eq=b).fun


@each(seed=SEEDS)
def test_matching_against_the_literal_program(seed):
    T, mdp, data, nu = instance(seed)
    indicator = 1 - np.eye(N)
    metric = np.abs(np.subtract.outer(np.arange(N), np.arange(N))) ** 2.0
    for given, cost in (("indicator", indicator), (indicator, indicator), (metric, metric)):
        result = state_matching(data, nu, GAMMA, cost=given)
        assert result.objective == pytest.approx(literal_matching(T, mdp.initial, nu.sum(axis=1), cost), abs=1e-8)


@each(seed=SEEDS)
def test_pw_dice_tends_to_the_linear_program(seed):
    """With regularization x the value exceeds the program's by at most x times the divergences at its solution."""
    _, _, data, nu = instance(seed)
    least = state_matching(data, nu, GAMMA).objective
    most = 2 * np.log(1 / min(data.occupancy(GAMMA).min(), nu.sum(axis=1).min()) ** 2)
    for x in (1e-2, 1e-4):
        value = pw_dice(data, nu, GAMMA, coupling_regularization=x, regularization=x).objective
        assert least - 1e-7 <= value <= least + x * most
    plain = pw_dice(data, nu, GAMMA, coupling_regularization=0.0, regularization=0.0)
    assert plain.objective == pytest.approx(least, abs=1e-7)


def test_a_frozen_lake_of_64_states_is_solved():
    """Slippery 8 × 8 grid with holes, from 20 000 transitions: the size the cone programs must manage."""
    P = gymnasium.make("FrozenLake-v1", map_name="8x8").unwrapped.P
    T = np.zeros((4, 64, 64))
    for s, actions in P.items():
        for a, outcomes in actions.items():
            for p, s_next, _, _ in outcomes:
                T[a, s, s_next] += p
    mdp = db.MDP(T)
    expert = mdp.induced_chain(np.full(64, 2))
    data = OfflineData.sample(mdp, 20_000, 0.95, rng=0)
    for method in (smodice, lobs_dice, pw_dice):
        rho = method(data, expert, 0.95).occupancy
        flow = 0.05 * mdp.initial + 0.95 * np.einsum("sa,ast->t", rho, data.dynamics)
        assert np.abs(rho.sum(axis=1) - flow).max() <= 1e-7
