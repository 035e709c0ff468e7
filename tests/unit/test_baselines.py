"""The baselines of imitation: each solves what it must solve, and all keep one contract."""

import importlib
import sys

import cvxpy
import numpy as np
import pytest
import scipy.optimize

import diffbisim as db
from cases import each
from diffbisim import Status as Outcome
from diffbisim.common.errors import InvalidArgument, InvalidCost, InvalidData, MissingExtra
from diffbisim.learning.imitate import baselines
from diffbisim.learning.imitate.baselines import OfflineData
from diffbisim.learning.imitate.baselines.data import checked
from diffbisim.processes.examples import equal_marginals_mdp, imitation_chain, soft_right_policy

likelihood = importlib.import_module("diffbisim.learning.imitate.baselines.likelihood")
proportions = likelihood.proportions

METHODS = [
    baselines.maximum_likelihood,
    baselines.behavioral_cloning,
    baselines.state_matching,
    baselines.pw_dice,
    baselines.smodice,
    baselines.lobs_dice,
    baselines.iostom_style,
]
CONES = METHODS[3:6]
GAMMA = 0.9


def distance(mdp, expert, policy, discount=GAMMA):
    """Certified, from above; its gap is at most 1e-12."""
    return db.distance(expert, mdp.induced_chain(policy), cost="indicator", discount=discount, tol=1e-12).upper


def random_mdp(rng, n=6, m=3, successors=3):
    """Dirichlet dynamics on a few successors; the start is random too."""
    T = np.zeros((m, n, n))
    for a in range(m):
        for s in range(n):
            T[a, s, rng.choice(n, successors, replace=False)] = rng.dirichlet(np.ones(successors))
    return db.MDP(T, initial=rng.dirichlet(np.ones(n)))


# --- the frame ----------------------------------------------------------------------------------------------


def test_estimates_by_hand():
    s, a, s_next = [0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 2, 2]
    data = OfflineData.from_transitions(s, a, s_next, n_states=3, n_actions=2, initial=1)
    third = [1 / 3] * 3
    assert data.dynamics == pytest.approx(np.array([[[0.5, 0.5, 0], third, third], [[0, 0, 1], [0, 0, 1], third]]))
    assert data.behavior == pytest.approx(np.array([[2 / 3, 1 / 3], [0, 1], [0.5, 0.5]]))
    assert data.mdp.initial.tolist() == [0, 1, 0]
    expected = np.zeros((2, 3, 3))
    expected[0, 0, 0] = expected[0, 0, 1] = expected[1, 0, 2] = expected[1, 1, 2] = 0.25
    assert data.weights == pytest.approx(expected)


def test_samples_tend_to_the_exact_data():
    """A share of n draws has standard deviation at most sqrt(p/n): five of them are never exceeded here."""
    mdp, n = imitation_chain(), 200_000
    sampled, exact = OfflineData.sample(mdp, n, GAMMA, rng=0), OfflineData.exact(mdp, GAMMA)
    assert (np.abs(sampled.weights - exact.weights) <= 5 * np.sqrt(exact.weights / n)).all()
    assert exact.weights.sum() == pytest.approx(1, abs=1e-12)
    rho = exact.weights.sum(axis=(0, 2))
    assert rho == pytest.approx(mdp.induced_chain(mdp.uniform_policy()).occupancy(GAMMA), abs=1e-14)
    assert exact.occupancy(GAMMA) == pytest.approx(exact.weights.sum(axis=2).T, abs=1e-14)


def test_same_seed_same_data():
    mdp = imitation_chain()
    one, two = (OfflineData.sample(mdp, 50, GAMMA, rng=3) for _ in range(2))
    assert (one.weights == two.weights).all()


def test_behavior_other_than_uniform():
    mdp = imitation_chain()
    pi = soft_right_policy(mdp, 0.4)
    assert OfflineData.exact(mdp, GAMMA, pi).behavior == pytest.approx(pi)
    assert np.abs(OfflineData.sample(mdp, 100_000, GAMMA, 0, pi).behavior - pi).max() <= 0.05


def test_all_forms_of_an_expert_are_one():
    """Trajectories, their chain, weighted pairs of its occupancy and the occupancy table say the same."""
    mdp = imitation_chain()
    trajectories = db.Transitions.from_trajectories([[0, 1, 2, 1], [0, 1, 1]], states=5)
    P = np.eye(5)
    P[0], P[1], P[2] = [0, 1, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 1, 0, 0, 0]
    table = (1 - GAMMA) * np.linalg.inv(np.eye(5) - GAMMA * P)[0][:, None] * P
    s, s_next = np.nonzero(table)
    pairs = db.Transitions.from_pairs(s, s_next, weights=table[s, s_next], states=5)
    for expert in (trajectories, db.MarkovChain(P), pairs, table):
        assert checked(mdp, expert, GAMMA)[1] == pytest.approx(table, abs=1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_episodes_and_pairs(method):
    mdp = imitation_chain()
    for expert in (db.Transitions.from_trajectories([[0, 1, 2, 1], [0, 1, 1]], states=5), ([0, 1], [1, 1])):
        assert method(mdp, expert, GAMMA).policy.sum(axis=1) == pytest.approx(np.ones(5), abs=1e-12)


def test_an_episode_goes_on_in_its_terminal_state():
    """0 -> 0 or 1 (evenly), 1 -> 2, where episodes end: the occupancy of the absorbing chain, in closed form."""
    mdp = db.MDP([np.eye(3), np.eye(3)[[1, 2, 2]]])
    expert = db.Transitions.from_trajectories([[0, 0, 1, 2], [0, 1, 2], [0, 0, 1, 2], [0, 0, 0, 1, 2], [0, 1, 2]])
    share = 5 / 9  # of the steps out of 0 that lead on
    rho_0 = (1 - GAMMA) / (1 - GAMMA * (1 - share))
    rho_1 = GAMMA * share * rho_0
    nu = np.zeros((3, 3))
    nu[0, 0], nu[0, 1], nu[1, 2] = (1 - share) * rho_0, share * rho_0, rho_1
    nu[2, 2] = GAMMA * rho_1 / (1 - GAMMA)
    assert nu.sum() == pytest.approx(1, abs=1e-12)
    assert checked(mdp, expert, GAMMA)[1] == pytest.approx(nu, abs=1e-14)
    target = mdp.induced_chain(np.array([[1 - share, share], [0, 1], [0, 1]]))
    for method in (baselines.maximum_likelihood, baselines.state_matching):
        learned = mdp.induced_chain(method(mdp, expert, GAMMA).policy)
        assert db.distance(target, learned, "indicator", GAMMA).value <= 1e-6


def test_an_episode_cut_short_ends_nowhere():
    """Its last state is left elsewhere: what the other episodes do there is what follows."""
    mdp = db.MDP([np.eye(3), np.eye(3)[[1, 2, 2]]])
    whole, cut = ([[0, 1, 2]], [[0, 1, 2], [0, 1]])
    one, two = (checked(mdp, db.Transitions.from_trajectories(paths), GAMMA)[1] for paths in (whole, cut))
    assert one == pytest.approx(two, abs=1e-15)


@pytest.mark.filterwarnings("ignore:.*cannot be made by any action")
@pytest.mark.parametrize("method", METHODS)
def test_contract(method):
    rng = np.random.default_rng(1)
    mdp = random_mdp(rng)
    expert = mdp.induced_chain(rng.dirichlet(np.ones(3), size=6))
    data = OfflineData.sample(mdp, 40, GAMMA, rng)  # some pairs unseen
    for offline in (mdp, data):
        result = method(offline, expert, GAMMA)
        assert result.policy.shape == (6, 3)
        assert result.policy.min() >= 0
        assert result.policy.sum(axis=1) == pytest.approx(np.ones(6), abs=1e-12)
        assert not result.policy.flags.writeable
        assert result.status is Outcome.SOLVED
        assert result.objective >= -1e-9
        again = method(offline, expert, GAMMA)
        assert (again.policy == result.policy).all()


# --- what each must solve -----------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [0.9, 0.95])
@pytest.mark.parametrize("epsilon", [0.0, 0.4])
def test_likelihood_solves_the_paper_chain(epsilon, discount):
    mdp = imitation_chain()
    expert = mdp.induced_chain(soft_right_policy(mdp, epsilon))
    policy = baselines.maximum_likelihood(mdp, expert, discount).policy
    assert distance(mdp, expert, policy, discount) <= 1e-11


@each(seed=range(5))
def test_likelihood_recovers_an_identifiable_expert(seed):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng)
    pi = rng.dirichlet(np.ones(3), size=6)
    pi[0] = [1, 0, 0]  # on the boundary of the simplex too
    policy = baselines.maximum_likelihood(mdp, mdp.induced_chain(pi), GAMMA).policy
    assert policy == pytest.approx(pi, abs=1e-9)


@each(seed=range(20))
def test_proportions_satisfy_the_optimality_conditions(seed):
    """Concave over the simplex: g(a) ≤ 1, with equality where π(a) > 0. And EM cannot do better."""
    rng = np.random.default_rng(seed)
    k, m = rng.integers(2, 7, size=2)
    L, q = rng.dirichlet(np.full(k, 0.4), size=m).T + 1e-12, rng.dirichlet(np.ones(k))
    pi, gap = proportions(L, q)
    g = q / (L @ pi) @ L
    assert g.max() <= 1 + 1e-12
    assert np.abs(g[pi > 0] - 1).max() <= 1e-12
    assert gap <= 1e-12
    em = np.full(m, 1 / m)
    for _ in range(2_000):
        em *= q / (L @ em) @ L
    assert q @ np.log(L @ pi) >= q @ np.log(L @ em) - 1e-12


@each(seed=range(20))
def test_proportions_are_those_of_the_problem_and_not_of_the_machine(seed, monkeypatch):
    """Steps that end elsewhere, by 1e-6 of each entry, lead to the same mixture, and to q itself where that is one."""
    rng = np.random.default_rng(seed)
    k, m = rng.integers(2, 7, size=2)
    L = rng.dirichlet(np.ones(k), size=m).T
    pi = rng.dirichlet(np.full(m, 0.5)) * (rng.random(m) < 0.7)
    possible = L @ (pi / pi.sum() if pi.sum() else np.eye(m)[0])
    step = likelihood._model_minimum
    for q in (possible / possible.sum(), rng.dirichlet(np.ones(k))):
        first, _ = proportions(L, q)
        with monkeypatch.context() as patch:
            patch.setattr(likelihood, "_model_minimum", lambda *a: step(*a) * (1 + 1e-6 * rng.standard_normal(m)))
            second, gap = proportions(L, q)
        assert gap <= 1e-12
        assert L @ second == pytest.approx(L @ first, abs=1e-13)
    assert L @ proportions(L, possible)[0] == pytest.approx(possible, abs=1e-13)


def test_proportions_are_found_where_least_squares_give_up(monkeypatch):
    """SciPy's nnls may raise after too many exchanges; the maximum is where it was."""
    rng = np.random.default_rng(0)
    L, q = rng.dirichlet(np.ones(5), size=4).T, rng.dirichlet(np.ones(5))
    expected, _ = proportions(L, q)
    solve, calls = scipy.optimize.nnls, []

    def every_other(*args):
        calls.append(args)
        if len(calls) % 2:
            raise RuntimeError("Maximum number of iterations reached.")
        return solve(*args)

    monkeypatch.setattr(scipy.optimize, "nnls", every_other)
    found, gap = proportions(L, q)
    assert len(calls) > 1
    assert gap <= 1e-12
    assert found == pytest.approx(expected, abs=1e-12)


def test_likelihood_leaves_out_the_impossible_and_says_so():
    mdp = imitation_chain(5, slip=0.0)
    with pytest.warns(UserWarning, match=r"cannot be made by any action \(the first: 0 -> 4\)"):
        result = baselines.maximum_likelihood(mdp, ([0, 0, 1], [4, 1, 2]), GAMMA)
    assert result.policy[0] == pytest.approx([0, 1, 0, 0], abs=1e-12)
    assert result.policy[4] == pytest.approx(np.full(4, 0.25))  # never seen


def test_cloning_recovers_where_successors_betray_actions():
    mdp = equal_marginals_mdp(5)
    pi = np.random.default_rng(0).dirichlet(np.ones(3), size=5)
    data = OfflineData.sample(mdp, 500, GAMMA, rng=0)
    result = baselines.behavioral_cloning(data, mdp.induced_chain(pi), GAMMA)
    assert result.policy == pytest.approx(pi, abs=1e-12)
    assert result.objective == pytest.approx(0, abs=1e-12)


def test_cloning_leans_to_the_behavior_where_actions_overlap():
    """By Bayes, I(a|s,s') ∝ π_I(a|s) T(s'|s,a): with equal actions nothing is learned but the behavior policy."""
    P = np.random.default_rng(0).dirichlet(np.ones(3), size=3)
    mdp = db.MDP([P, P])
    behavior = np.array([[0.2, 0.8]] * 3)
    data = OfflineData.exact(mdp, GAMMA, behavior)
    result = baselines.behavioral_cloning(data, mdp.induced_chain([0, 0, 0]), GAMMA)
    assert result.policy == pytest.approx(behavior, abs=1e-12)
    assert result.objective == pytest.approx(-(0.2 * np.log(0.2) + 0.8 * np.log(0.8)), abs=1e-12)


@pytest.mark.parametrize("method", [baselines.state_matching, baselines.pw_dice])
def test_transports_of_occupancies_find_a_deterministic_expert(method):
    mdp = imitation_chain()
    expert = mdp.induced_chain(soft_right_policy(mdp))
    # The cost of transport is sharp: an objective within 1e-8 leaves 2e-8 of ρ, 2e-7 of the policy where ρ(s) is 0.1.
    assert distance(mdp, expert, method(mdp, expert, GAMMA).policy) <= 2e-7 / (1 - GAMMA)


@pytest.mark.parametrize("method", CONES)
@pytest.mark.parametrize("data", ["exact", "sampled"])
def test_programs_are_solved_beyond_the_digits_of_the_interior_point_method(method, data, monkeypatch):
    """Other settings and answers that differ by 1e-7 of each entry end in the same occupancy, as far as is promised."""
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng)
    expert = mdp.induced_chain(rng.dirichlet(np.ones(3), size=6))
    offline = mdp if data == "exact" else OfflineData.sample(mdp, 200, GAMMA, rng)
    first = method(offline, expert, GAMMA)
    solve = cvxpy.Problem.solve

    def elsewhere(problem, **settings):
        solve(problem, **settings, equilibrate_max_iter=3, max_step_fraction=0.8)
        for variable in problem.variables():
            variable.value = np.abs(variable.value * (1 + 1e-7 * rng.standard_normal(variable.shape)))

    monkeypatch.setattr(cvxpy.Problem, "solve", elsewhere)
    second = method(offline, expert, GAMMA)
    assert max(first.tolerance, second.tolerance) <= 1e-12
    assert np.abs(first.occupancy - second.occupancy).sum() <= 1e-12 / 0.01
    assert first.objective == pytest.approx(second.objective, abs=1e-12)


def test_without_regularization_the_tolerance_is_the_solvers():
    mdp = imitation_chain()
    expert = mdp.induced_chain(mdp.uniform_policy())
    assert baselines.smodice(mdp, expert, GAMMA, regularization=0.0).tolerance == 1e-8
    assert baselines.pw_dice(mdp, expert, GAMMA, coupling_regularization=0.0).tolerance == 1e-8
    assert baselines.behavioral_cloning(mdp, expert, GAMMA).tolerance == 0.0


@pytest.mark.parametrize("method", [baselines.smodice, baselines.lobs_dice])
def test_divergences_find_a_deterministic_expert_as_the_regularization_fades(method):
    mdp = imitation_chain()
    expert = mdp.induced_chain(soft_right_policy(mdp))
    found = [
        distance(mdp, expert, method(mdp, expert, GAMMA, regularization=x, smoothing=x).policy)
        for x in (1e-2, 1e-4, 1e-6)
    ]
    assert found[0] > 2 * found[1] > 4 * found[2]
    assert found[2] <= 1e-3


def test_lobs_dice_finds_a_stochastic_expert_as_the_regularization_fades():
    mdp = imitation_chain()
    expert = mdp.induced_chain(soft_right_policy(mdp, 0.4))
    policy = baselines.lobs_dice(mdp, expert, GAMMA, regularization=1e-6, smoothing=0.0).policy
    assert distance(mdp, expert, policy) <= 1e-3


def test_iostom_style_prefers_the_expert_moves():
    mdp = imitation_chain(5, slip=0.0)
    data = OfflineData.sample(mdp, 2_000, GAMMA, rng=0)
    policy = baselines.iostom_style(data, mdp.induced_chain(soft_right_policy(mdp)), GAMMA).policy
    assert policy[:4].argmax(axis=1).tolist() == [1] * 4
    assert policy[:4, 1].min() >= 0.95
    assert policy[4, 1] + policy[4, 2] >= 0.95  # right and stay are one there


def test_iostom_style_by_hand_in_one_state():
    """One state: r = 0 (both laws are one point), V = γ V, so all weights are one and the policy is the behavior's."""
    mdp = db.MDP([[[1.0]], [[1.0]]])
    data = OfflineData.exact(mdp, GAMMA, [[0.3, 0.7]])
    assert baselines.iostom_style(data, np.ones((1, 1)), GAMMA).policy == pytest.approx(np.array([[0.3, 0.7]]))


def test_marginals_cannot_tell():
    """On the ring the foil is content with every uniform way around; the distance is not."""
    mdp = equal_marginals_mdp(5)
    forward, backward = (mdp.induced_chain(np.full(5, a)) for a in (0, 1))
    result = baselines.state_matching(mdp, forward, GAMMA)
    assert result.objective == pytest.approx(0, abs=result.tolerance * (5 + 1) / (1 - GAMMA))  # see its module
    assert np.abs(forward.occupancy(GAMMA) - backward.occupancy(GAMMA)).max() <= 1e-14
    assert db.distance(forward, backward, cost="indicator", discount=GAMMA).lower > 0.7
    for blind in (baselines.smodice, baselines.pw_dice):  # the regularizer decides: they stay with the behavior policy
        found = blind(mdp, forward, GAMMA)
        assert found.policy == pytest.approx(np.full((5, 3), 1 / 3), abs=1e-9)
        assert 5 * found.tolerance / 0.01 <= 1e-9  # |ρ - ρ*| ≤ tolerance / α, and every state has ρ(s) = 1/5
    for seeing in (baselines.maximum_likelihood, baselines.behavioral_cloning):
        assert distance(mdp, forward, seeing(mdp, forward, GAMMA).policy) <= 1e-9


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("expert", "message"),
    [
        (lambda: db.MarkovChain(np.eye(4)), "expert has 4 states, the offline data 5"),
        (lambda: ([0, 7], [1, 2]), r"expert\[0\]\[1\] = 7 is outside 0 … 4"),
        (lambda: ([], []), "empty"),
        (lambda: [0, 1, 2], "expert is a list"),
        (lambda: np.ones((2, 3)), "occupancy table"),
        (lambda: db.Transitions.from_trajectories([[0]], states=5), "no transition"),
    ],
)
def test_experts_that_do_not_fit(method, expert, message):
    with pytest.raises(InvalidData, match=message):
        method(imitation_chain(), expert(), GAMMA)


@pytest.mark.parametrize("method", METHODS)
def test_other_bad_arguments(method):
    mdp = imitation_chain()
    expert = mdp.induced_chain(mdp.uniform_policy())
    with pytest.raises(InvalidArgument, match="discount"):
        method(mdp, expert, 1.0)
    with pytest.raises(InvalidArgument, match="offline is a ndarray"):
        method(np.eye(5), expert, GAMMA)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([], [], []), "at least one offline transition"),
        (([0], [0, 1], [1]), "1, 2, 1 entries"),
        (([0], [2], [1]), r"a\[0\] = 2 is outside 0 … 1"),
        (([0.5], [0], [1]), "flat array of integers"),
        (([0], [0], [3]), r"s_next\[0\] = 3"),
    ],
)
def test_offline_data_that_do_not_fit(columns, message):
    with pytest.raises(InvalidData, match=message):
        OfflineData.from_transitions(*columns, n_states=3, n_actions=2)


def test_options_out_of_range():
    mdp = imitation_chain()
    expert = mdp.induced_chain(mdp.uniform_policy())
    for method, options, error, message in [
        (baselines.pw_dice, {"regularization": -1}, InvalidArgument, "regularization is -1"),
        (baselines.pw_dice, {"cost": "reward"}, InvalidCost, 'use "indicator"'),
        (baselines.state_matching, {"cost": np.ones((2, 2))}, InvalidCost, "expected"),
        (baselines.smodice, {"smoothing": 1.0}, InvalidArgument, "smoothing"),
        (baselines.iostom_style, {"kappa": 0}, InvalidArgument, "kappa"),
    ]:
        with pytest.raises(error, match=message):
            method(mdp, expert, GAMMA, **options)


@pytest.mark.parametrize("method", [baselines.smodice, baselines.lobs_dice])
def test_no_smoothing_where_the_expert_was_not_seen_is_refused(method):
    """Slips lead everywhere, the data of the expert do not: every policy has infinite divergence."""
    with pytest.raises(InvalidData, match=r"infeasible; raise the regularization or the smoothing"):
        method(imitation_chain(), ([0], [1]), GAMMA, smoothing=0.0)


@pytest.mark.parametrize("method", CONES)
def test_a_missing_cvxpy_names_the_remedy(method, monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    mdp = imitation_chain()
    with pytest.raises(MissingExtra, match=r'pip install "diffbisim\[baselines\]"'):
        method(mdp, mdp.induced_chain(mdp.uniform_policy()), GAMMA)
