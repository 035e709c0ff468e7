"""Known ways to be silently wrong, one test each, with its oracle.

Each of these inputs once got a confident answer that was wrong. A test here fails if that answer comes back: the result
has to agree with an oracle, or the input has to be refused (or warned about) by name.
"""

import warnings
from itertools import combinations

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidData

# --- searches: compress and aggregate -------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-160.0, -300.0, -320.0])
def test_barycenters_with_tiny_probabilities_solve_their_linear_program(exponent):
    """Plans divided by slacks underflow for masses below 1e-154. Oracle: the program as it is written, by HiGHS."""
    from scipy.optimize import linprog

    from diffbisim.reduction.compression.descent import Barycenters

    rng = np.random.default_rng(28)
    n, k = 6, 3
    P = rng.dirichlet(np.ones(n), n)
    P[:, 2] = 10.0**exponent
    P /= P.sum(axis=1, keepdims=True)
    U, m = rng.random((n, k)), rng.random((n, k))
    found = Barycenters(db.MarkovChain(P), U, m, np.full((k, k), 1 / k)).best
    # variables: the plans (x, x', y') of all states, and the row; plans have the rows of P and this row as marginals
    out = np.hstack([np.kron(np.eye(n * n), np.ones((1, k))), np.zeros((n * n, k))])
    into = np.hstack([np.kron(np.eye(n), np.kron(np.ones((1, n)), np.eye(k))), -np.kron(np.ones((n, 1)), np.eye(k))])
    equations, marginals = np.vstack([out, into]), np.concatenate([P.ravel(), np.zeros(n * k)])
    for y in range(k):
        w = m[:, y] / m[:, y].sum()
        cost = np.concatenate([(w[:, None, None] * U).ravel(), np.zeros(k)])
        best = linprog(cost, A_eq=equations, b_eq=marginals)
        bounds = [(0, None)] * (n * n * k) + [(p, p) for p in found[y] / found[y].sum()]
        spent = linprog(cost, A_eq=equations, b_eq=marginals, bounds=bounds)
        assert spent.fun == pytest.approx(best.fun, abs=1e-6)


def _double_well(n=40):
    """Metropolis walk with normal leaps in a double well: leaps over the barrier have subnormal probabilities."""
    x = np.linspace(-1.5, 1.5, n)
    V = 4 * (x**2 - 1) ** 2
    leaps = np.exp(-(((x[:, None] - x) / 0.05) ** 2) / 2)
    P = leaps / leaps.sum(axis=1).max() * np.exp(np.minimum(np.subtract.outer(V, V), 0.0))
    np.fill_diagonal(P, 0.0)
    np.fill_diagonal(P, 1 - P.sum(axis=1))
    return db.MarkovChain(P, initial=np.exp(-V) / np.exp(-V).sum(), rewards=x)


@pytest.mark.filterwarnings("ignore:The small chain")
def test_compression_is_no_farther_than_the_chain_that_never_moves():
    """It was 1.13 times as far. Oracle: the frozen chain with the best of all sets of three rewards, in closed form."""
    X, discount = _double_well(), 0.95
    away = np.abs(np.subtract.outer(X.rewards, X.rewards))
    profiles = (1 - discount) * np.linalg.solve(np.eye(40) - discount * X.transition, away)
    frozen = min(
        float(X.initial @ profiles[:, rewards].min(axis=1)) for rewards in map(list, combinations(range(40), 3))
    )
    frozen_chain = db.MarkovChain(np.eye(3), initial=[1, 0, 0], rewards=[0, 0, 0])
    for options in ({}, {"max_iterations": 0}, {"starts": [frozen_chain]}):
        found = db.compress(X, 3, discount, restarts=1, **options)
        assert found.distance.upper <= frozen + 1e-8 * found.distance.problem.scale
    sweep = db.compress_sweep(X, (2, 3), discount, restarts=1)
    assert sweep.values[1] <= frozen + 1e-8 * found.distance.problem.scale


@pytest.mark.filterwarnings("ignore:The small chain")
def test_compression_is_stationary_along_its_own_gradient():
    """A step along the gradient was 5 % nearer. Oracle: fresh solves after steps; a descent stops at gains of 1e-4."""
    X = _double_well()
    found = db.compress(X, 3, restarts=2)
    P, G = found.chain.transition, found.distance.gradient.transition_y
    for t in (0.1, 0.01, 0.001):
        for Q in ((1 - t) * P + t * np.eye(3)[G.argmin(axis=1)], P * np.exp(-10 * t * G / np.abs(G).max())):
            moved = db.MarkovChain(
                Q / Q.sum(axis=1, keepdims=True), initial=found.chain.initial, rewards=found.chain.rewards
            )
            assert db.distance(X, moved).value >= 0.999 * found.distance.value


@pytest.mark.filterwarnings("ignore:The small chain")
def test_vectors_are_compressed_and_aggregated_like_numbers():
    """Means instead of medians were 1.8 and 526 times as far. Oracle: the same chains with numbers, in other words."""
    mixed, uniform = np.full((10, 10), 0.1), np.full(10, 0.1)
    one = db.MarkovChain(mixed, initial=uniform, rewards=[0] * 9 + [10])
    two = db.MarkovChain(mixed, initial=uniform, rewards=[[0, 0]] * 9 + [[10, 0]])
    obvious = db.MarkovChain([[1.0]], rewards=[[0, 0]])
    for options in ({}, {"starts": [obvious], "max_iterations": 0}, {"model": "aggregate"}, {"model": "kinetic"}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert db.compress(two, 1, **options).distance.value == pytest.approx(1.0, abs=1e-6)
    assert db.compress(one, 1).distance.value == pytest.approx(1.0, abs=1e-6)
    P = [[0.999, 0.001, 0], [1, 0, 0], [0, 0, 1]]
    for rewards in ([0, 1e3, 5], [[0], [1e3], [5]], [[0, 0], [600, 800], [3, 4]]):
        found = db.aggregate(db.MarkovChain(P, initial=[1, 0, 0], rewards=rewards), [0, 0, 1])
        assert found.distance.value == pytest.approx(1e3 * 0.95 * 0.001 / 1.00095, abs=1e-4)  # the visits to 1e3


# --- searches: fit and fit_simulator --------------------------------------------------------------------------------


def test_a_fit_leaves_the_saturated_softmax():
    """A mixture of three kernels, started where one has nearly all of the weight; at its own weights it is at zero."""
    for seed in range(3):
        rng = np.random.default_rng([28, seed])
        kernels, initial, rewards = rng.dirichlet(np.ones(3), (3, 3)), rng.dirichlet(np.ones(3)), rng.random(3)
        target = db.MarkovChain(np.einsum("k,kij", [0.2, 0.3, 0.5], kernels), initial=initial, rewards=rewards)
        for start in ([-0.54, 5.3, 0.0], [0.85, 8.6, 0.0]):
            found = db.fit(target, db.kernels.Mixture(kernels, logits=start), discount=0.9)
            assert found.value <= 1e-6


def test_a_fit_is_not_worse_than_maximum_likelihood():
    """Saturated logits of a target that the model reaches: the likelihood is best at the target's own rows."""
    target = db.examples.random_chain(4, 3)
    found = db.fit(target, db.kernels.Softmax(4, logits=8 * np.random.default_rng(0).normal(size=(4, 4))))
    assert found.value <= 1e-6


def _masses(states, parameters, noise):
    """Four masses on springs, k and friction c: positions and velocities."""
    q, v = states[:, :4], states[:, 4:]
    push = -2 * parameters[0] * q
    push[:, 1:] += parameters[0] * q[:, :-1]
    push[:, :-1] += parameters[0] * q[:, 1:]
    return np.hstack([q + 0.1 * v, v + 0.1 * (push - parameters[1] * v)]) + 0.02 * noise


def test_cells_wider_than_a_step_do_not_return_the_start():
    """In eight dimensions every cell is wider than ten steps: whatever the masses do, they stay in their cell."""
    first = np.random.default_rng(0).normal(size=(20, 8))

    def simulate(parameters, rng, starts=first):
        states = [starts]
        for _ in range(15):
            states.append(_masses(states[-1], parameters, rng.standard_normal(starts.shape)))
        return np.stack(states, axis=1)

    paths = list(simulate((1.0, 0.3), np.random.default_rng(1)))
    with pytest.raises(InvalidData, match=r"wider than a step.*radius of .*give more cells \(n_states=\)"):
        db.fit_simulator(paths, simulate, [0.6, 0.6], splits=2, tol=0.05)


def test_a_parameter_without_an_effect_has_no_interval():
    """The second parameter does nothing."""
    data = db.LinearGaussian(0.6, 0.4, start=1.0).sample(30, 10, 1)

    def law(parameters, rng):
        return db.LinearGaussian(parameters[0], 0.4, start=1.0)

    with pytest.raises(InvalidData, match=r"flat in parameter 1: .*cells have a radius of .*n_states="):
        db.fit_simulator(data, law, [0.5, 0.5], splits=2, tol=0.02)


def test_simulated_trajectories_begin_at_the_recorded_states():
    """Deterministic relaxation x' = a x: with other first states, another a would be the nearest."""
    starts = np.random.default_rng(0).uniform(0.5, 2.0, (30, 1))
    paths = [start * 0.8 ** np.arange(9)[:, None] for start in starts]

    def elsewhere(parameters, rng):
        return rng.uniform(-2.0, 2.0, (30, 1))[:, None] * parameters[0] ** np.arange(9)[None, :, None]

    with pytest.raises(InvalidData, match=r"not a recorded first state; .*simulate\(parameters, rng, starts\)"):
        db.fit_simulator(paths, elsewhere, 0.6, splits=2, n_states=30)


def test_a_fit_refuses_what_it_does_not_use_and_keeps_the_lag():
    """Discounts without effect and rules for gaps were ignored, lags lost. Oracle: what `distance` does."""
    target = db.MarkovChain([[0.9, 0.1], [0.3, 0.7]], rewards=[0.0, 1.0], lag=20)
    unused = [
        ({"discount": 0.5, "criterion": "average"}, "discount is 0.5, but criterion='average' has none"),
        ({"discount": 0.5, "weights": [1.0, 2.0]}, "discount is 0.5, but weights replace its powers"),
        ({"unseen": "uniform"}, "unseen is given, but the target is a chain"),
        ({"unseen": "uniform", "solver": db.solvers.Somcot(10)}, "unseen is given, but samples"),
    ]
    for options, message in unused:
        with pytest.raises(db.DiffbisimError, match=message):
            db.fit(target, db.kernels.Softmax(2), max_iterations=2, **options)
    assert db.fit(target, db.kernels.Softmax(2), max_iterations=2).chain.lag == 20


# --- searches: abstract and imitate ---------------------------------------------------------------------------------


def test_abstraction_is_the_best_of_all_partitions():
    """Medians, balls and pairs miss it, from any number of seeds; brute force builds and solves every partition."""
    from oracles import abstraction, games

    P, r = games.random_mdp(np.random.default_rng([28, 2]), 6, 3)
    found = db.abstract(db.MDP(P, rewards=r), 2, 0.99)
    assert found.loss == pytest.approx(abstraction.least_loss(P, r, 2, 0.99), rel=1e-9, abs=1e-11)
    assert found.optimality == "global"


def test_moves_find_the_best_of_all_partitions():
    """13 states in 3 classes, 6 actions: three starts miss it by 6 %; brute force scores all 265,721 partitions."""
    from diffbisim.reduction.abstraction import search
    from oracles import games

    rng = np.random.default_rng([79, 2])
    kernels, rewards = games.random_mdp(rng, 13, 6, "deterministic")
    mdp = db.MDP(kernels, rewards=rewards)
    with pytest.MonkeyPatch.context() as patch:
        found = db.abstract(mdp, 3, 0.95)
        patch.setattr(search, "MOST_PARTITIONS", 300_000)
        best = db.abstract(mdp, 3, 0.95, restarts=1)
    assert (found.optimality, best.optimality) == ("local", "global")
    assert found.loss == pytest.approx(best.loss, rel=1e-3)


def test_imitation_with_samples_returns_a_policy_whose_exact_distance_is_small():
    """The least of many estimates is the luckiest; the oracle is the exact distance of every policy."""
    from diffbisim import examples
    from diffbisim.solvers import Somcot

    mdp = examples.imitation_chain()
    expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon=0.4))
    found = db.imitate(mdp, expert, discount=0.9, solver=Somcot(2_000), max_iterations=20)
    first, last = (
        db.distance(expert, mdp.induced_chain(policy), "indicator", 0.9)
        for policy in (mdp.uniform_policy(), found.policy)
    )
    assert last.upper < 0.1 * first.lower
    assert found.distance.value == pytest.approx(last.value, abs=1e-6)
    assert found.history[0]["value"] == pytest.approx(first.value, abs=1e-6)
    assert min(row["lower"] for row in found.history) <= first.value


def test_imitation_is_not_above_the_most_likely_policy():
    """Actions that are nearly alike: the expert is a policy of the MDP, so the inverse model explains it exactly."""
    rng = np.random.default_rng([44, 7101, 60])
    n, k = int(rng.integers(3, 7)), int(rng.integers(2, 4))
    kernels = rng.dirichlet(np.ones(n), (k, n))
    rng.random((n, k))
    mdp = db.MDP(kernels, initial=rng.dirichlet(np.ones(n)))
    expert = mdp.induced_chain(rng.dirichlet(np.ones(k), n))
    found = db.imitate(mdp, expert, discount=0.5, max_iterations=100)
    assert db.distance(expert, mdp.induced_chain(found.policy), "indicator", 0.5).upper < 1e-7


def test_imitation_on_boxes_refuses_what_it_cannot_honor():
    """All of these options were accepted and had no effect; test_control.py goes through every parameter."""
    import gymnasium

    paths = [np.linspace([-0.5, 0.0], [0.5, 0.07], 20)]
    for option in (
        {"cost": "reward"},
        {"horizon": 5},
        {"criterion": "average"},
        {"solver": "lp"},
        {"max_iterations": 3},
    ):
        with pytest.raises(db.InvalidArgument, match=f"^{next(iter(option))} is given"):
            db.imitate(gymnasium.make("MountainCar-v0"), paths, **option)


# --- data: event tables, sequences, groups --------------------------------------------------------------------------


def _pages(rows, **names):
    """Events of (user, time, page, arm) as the Transitions of each arm."""
    table = dict(zip(("user", "at", "page", "arm"), map(list, zip(*rows, strict=True)), strict=True))
    return db.Transitions.from_frame(table, id="user", time="at", state="page", group="arm", **names)


def test_leaving_is_visible():
    """Two groups of 500 users with 30 % and 60 % conversion after the cart, against χ² of the 2 x 2 table."""
    from scipy.stats import chi2_contingency

    bought = {"A": 150, "B": 300}
    assert chi2_contingency([[150, 350], [300, 200]]).pvalue < 1e-20
    rows = [
        (f"{arm}{k}", t, page, arm)
        for arm, number in bought.items() for k in range(500)
        for t, page in enumerate(["home", "cart", "buy"][: 3 if k < number else 2])
    ]  # fmt: skip
    arms = _pages(rows)
    cart, buy = (arms["A"].names.index(name) for name in ("cart", "buy"))
    assert [arms[arm].chain().transition[cart, buy] for arm in "AB"] == [0.3, 0.6]
    found = db.estimate(arms["A"], arms["B"], "indicator", permutations=199, replicates=20)
    assert found.p_value == 1 / 200
    assert found.lower > 0
    assert found.assumed[:2] == tuple(f"{side}: sequences end in the absorbing state '■'" for side in "XY")
    cut = _pages(rows, end=None)
    with pytest.warns(UserWarning, match=r"end in different places \(after 'cart': 350 of 500 in X, 200 of 500 in Y"):
        found = db.estimate(cut["A"], cut["B"], "indicator", permutations=19, replicates=20)
    assert "the ends of sequences do not count" in found.assumed[0]


def test_sessions_of_one_user_are_not_independent():
    """Equal groups of users with habits of their own: rejected in about 5 % of the datasets, not in half of them."""
    rejected, naive, n = 0, 0, 40
    for seed in range(n):
        rng = np.random.default_rng([28, seed])
        rows = []
        for user in range(40):
            habit = rng.beta(0.5, 0.5)
            for session in range(12):
                pages = ["home", *np.where(rng.random(3) < habit, "sport", "news")]
                rows += [(user, 1000 * session + t, str(page), "AB"[user % 2]) for t, page in enumerate(pages)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arms = _pages(rows, gap=100, every="event")
        data = [arms["A"], arms["B"]]
        assert [(one.n_episodes, one.n_clusters) for one in data] == [(240, 20), (240, 20)]
        options = {"permutations": 99, "rng": seed}
        rejected += db.compare(dict(zip("AB", data, strict=True)), "indicator", **options).p_value <= 0.05
        naive += (
            db.compare(dict(zip("AB", data, strict=True)), "indicator", cluster="episode", **options).p_value <= 0.05
        )
    assert naive > n / 4  # what permuting sessions would give
    assert rejected <= 6  # 5 % of 40 are 2; more than 6 have probability 0.003
    found = db.estimate(*data, "indicator", permutations=99, replicates=20)
    assert found.method == "99 permutations of 40 clusters of episodes"


def _jumps(rng, rate, until):
    """Return jump times and states of the generator [[-r, r], [2r, -2r]], observed exactly up to ``until``."""
    t, state, seen = 0.0, 0, []
    while t < until:
        seen.append((t, state))
        t += rng.exponential(1 / (rate * (1 + state)))
        state = 1 - state
    return [*seen, (until, seen[-1][1])]


def test_time_is_not_ignored():
    """A generator visited every 0.25 and every 1.0, and one that is three times as fast, observed exactly."""
    from scipy.linalg import expm

    rng = np.random.default_rng(8)

    def visited(arm, step):
        rows = []
        for user in range(40):
            path = _jumps(rng, 0.5, 12.0)
            at = np.arange(0.0, 12.0 + step / 2, step)
            rows += [(f"{arm}{user}", t, next(s for u, s in reversed(path) if u <= t), arm) for t in at.tolist()]
        return rows

    rows = visited("A", 0.25) + visited("B", 1.0)
    options = {"permutations": 199, "replicates": 20}
    arms = _pages(rows, end=None)
    with pytest.warns(UserWarning, match=r"a step takes 0.25 in X and 1 in Y \(medians\).*same every="):
        assert db.estimate(arms["A"], arms["B"], "indicator", **options).p_value <= 0.01
    arms = _pages(rows, every=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert db.estimate(arms["A"], arms["B"], "indicator", **options).p_value > 0.05
    exact = expm(0.5 * np.array([[-1.0, 1.0], [2.0, -2.0]]))
    for arm in "AB":  # 480 steps: three standard errors
        assert np.abs(arms[arm].chain().transition - exact).max() < 3 * 0.5 / np.sqrt(100)
    rows = [
        (f"{arm}{user}", t, state, arm)
        for arm, rate in (("A", 0.5), ("B", 1.5)) for user in range(40) for t, state in _jumps(rng, rate, 12.0)
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="the times between events vary .* every= a duration"):
        _pages(rows)
    arms = _pages(rows, every=0.5)
    assert db.estimate(arms["A"], arms["B"], "indicator", **options).p_value <= 0.01


def test_ends_that_only_one_group_records_are_no_difference():
    """The same sequences twice, with and without their ends, were at distance 0.9 with the smallest p-value."""
    rows = [
        (user, t, page, "A") for user in range(30) for t, page in enumerate(["home", "cart", "buy"][: 2 + user % 2])
    ]
    with_end, without, other = (_pages(rows, **end)["A"] for end in ({}, {"end": None}, {"end": "gone"}))
    known = without.chain(unseen="self-loop")
    for X, Y in ((with_end, without), (with_end, other), (with_end, known), (without, with_end.chain())):
        with pytest.raises(db.InvalidArgument, match=r"ends in the absorbing state .* Create both with the same end"):
            db.estimate(X, Y, "indicator", permutations=19, replicates=20)
    for compared in (lambda: db.compare({"a": with_end, "b": without}, "indicator"),
                     lambda: db.power(with_end, without, "indicator", episodes=4)):  # fmt: skip
        with pytest.raises(db.InvalidArgument, match="same end"):
            compared()
    for X in (with_end, without):  # the known chain is that of the data
        assert db.estimate(X, X.chain(unseen="self-loop"), "indicator", permutations=19, replicates=20).plug_in < 1e-8


def test_ids_in_two_tables_are_reported():
    """The same users before and after: the groups are not independent, and no permutation keeps users together."""
    rng = np.random.default_rng(5)
    tables = [
        [(user, t, str(rng.integers(3)), side) for user in users for t in range(4)]
        for side, users in (("before", range(20)), ("after", range(10, 30)))
    ]
    data = [
        db.Transitions.from_frame(
            dict(zip(("user", "at", "page"), map(list, zip(*(row[:3] for row in rows), strict=True)), strict=True)),
            id="user", time="at", state="page",
        )
        for rows in tables
    ]  # fmt: skip
    with pytest.warns(db.InputWarning, match="10 ids or clusters occur in several groups, such as 10 in X and Y"):
        db.estimate(*data, "indicator", permutations=19, replicates=20)


def test_groups_are_not_glued_and_duplicates_are_reported():
    """The rows of one id: a b | x x | c d. Nobody went from b to c."""
    table = {"id": [1] * 6, "at": range(6), "page": list("abxxcd"), "arm": list("AABBAA")}
    names = {"id": "id", "time": "at", "state": "page", "group": "arm"}
    with pytest.warns(UserWarning, match="1 of 1 ids occur in several groups, such as 1"):
        arms = db.Transitions.from_frame(table, **names)
    data = arms["A"]
    steps = sorted((data.name_of(s), data.name_of(t)) for s, t in zip(data.states, data.next_states, strict=True))
    assert steps == [("a", "b"), ("c", "d"), ("d", "■")]  # the first part did not end, it changed its group
    again = {name: [*column, list(column)[1], list(column)[1]] for name, column in table.items()}
    with pytest.warns(UserWarning, match="2 of 8 rows repeat the id, time and state of another row"):
        kept = db.Transitions.from_frame(again, **names)
    assert len(kept["A"]) == len(data) + 2
    with warnings.catch_warnings(record=True):
        dropped = db.Transitions.from_frame(again, duplicates="drop", **names)
    assert len(dropped["A"]) == len(data)
    with pytest.raises(InvalidData, match="the first is row 6"):
        db.Transitions.from_frame(again, duplicates="error", **names)


def test_recorded_actions_are_not_dropped_in_silence():
    """Opposite actions lead to the same states. Oracle: the two MDPs, whose kernels are each other's swap."""
    paths = [[0, 1, 0]] * 10
    A, B = (
        db.Transitions.from_trajectories(paths, states=2, actions=[acts] * 10, rewards=[[0.0, 1.0]] * 10)
        for acts in ([0, 1], [1, 0])
    )
    with pytest.warns(db.InputWarning, match=r"X, Y: the recorded actions and rewards of steps.*MDP\.from_tr") as said:
        found = db.estimate(A, B, "indicator", replicates=20, permutations=19)
    assert found.value == 0
    assert len([one for one in said if issubclass(one.category, db.InputWarning)]) == 1
    assert "X: the recorded actions and rewards of steps are not used" in found.assumed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        M, N = (db.MDP.from_transitions(data, unseen="uniform") for data in (A, B))
    assert db.distance(M, N, "indicator", 0.5).value > 0.1


# --- data: tests and intervals of tables ----------------------------------------------------------------------------


def _walks(chain, number, steps, rng):
    paths = [chain.sample(steps, rng) for _ in range(number)]
    return db.Transitions.from_trajectories(paths, states=chain.n_states)


def test_few_walks_are_not_compared_by_their_starts():
    """Six walks in each group, from the same six states. The oracle is the distance of the true chains."""
    rng, covered, n = np.random.default_rng([28, 9]), 0, 6
    for _ in range(n):
        P, r, start = rng.dirichlet(np.ones(6), 6), rng.random(6), np.full(6, 1 / 6)
        X, Y = (db.MarkovChain(Q, initial=start, rewards=r) for Q in (P, 0.4 * P + 0.6 * rng.dirichlet(np.ones(6), 6)))
        data = [
            db.Transitions.from_trajectories([C.with_initial(k).sample(60, rng) for k in range(6)], states=6)
            for C in (X, Y)
        ]
        how = {"rewards": r, "replicates": 40, "permutations": 39}
        found, own = db.estimate(*data, **how), db.estimate(*data, initial="first", **how)
        assert found.null.mean() < own.null.mean()  # the latter contains the noise of six first states
        assert found.value > own.value
        assert found.assumed[-1].endswith('of all episodes (initial="pooled"): X has 6 episodes')
        covered += found.lower <= db.distance(X, Y).value <= found.upper
    assert covered >= n - 2  # fewer have probability 0.002
    pooled = db.estimate(*data, initial="pooled", **how)
    assert (found.value, found.lower, found.upper) == (pooled.value, pooled.lower, pooled.upper)


def test_noise_of_rows_that_do_not_differ_is_not_a_difference():
    """One frequent row differs, the others (one of them rare) only seem to. The oracle is the distance of chains."""
    missed, n, found = 0, 30, []
    for seed in range(n):
        rng = np.random.default_rng([28, 15, seed])
        P = 0.9 * rng.dirichlet(np.full(8, 5 / 8), 8) + 0.1 / 8
        P[:, -1] *= 0.25
        P /= P.sum(axis=1, keepdims=True)
        X = db.MarkovChain(P, initial=rng.dirichlet(np.ones(8)), rewards=8 * rng.random(8))
        Q = P.copy()
        Q[X.stationary_distribution.argmax()] = rng.dirichlet(np.ones(8))
        Y = db.MarkovChain(Q, initial=X.initial, rewards=X.rewards)
        data = [_walks(C, 40, 12, rng) for C in (X, Y)]
        e = db.estimate(*data, rewards=X.rewards, replicates=40, permutations=39, rng=seed)
        missed += not e.lower <= db.distance(X, Y).value <= e.upper
        found.append(e)
    assert missed <= 4  # 5 % of 30; more have probability 0.016
    assert all((e.p_value <= 0.05) == (e.lower > 0) or e.remark for e in found)


def test_test_and_interval_do_not_contradict_each_other_in_silence():
    """Only the starts differ: the test sees them, and a distance with pooled initial distributions does not."""
    rng = np.random.default_rng([28, 16])
    X = db.MarkovChain(rng.dirichlet(np.ones(4), 4), initial=0, rewards=np.arange(4.0))
    data = [_walks(C, 40, 10, rng) for C in (X, X.with_initial(3))]
    how = {"rewards": X.rewards, "replicates": 20, "permutations": 99}
    found = db.estimate(*data, initial="pooled", **how)
    assert (found.p_value, found.lower) == (0.01, 0.0)
    assert "most evident in the initial distributions of the episodes, which are not part" in found.remark
    own = db.estimate(*data, **how)
    assert own.lower > 0
    assert not own.remark
    rare = db.estimate(*data, confidence=0.999, **how)  # 99 permutations never give p ≤ 0.001
    assert rare.lower > 0
    assert "the interval excludes 0 although the p-value is large" in rare.remark


# --- data: trajectories with continuous states ----------------------------------------------------------------------


def _paths(slope, noise, d, seed, start=0.0, n=40):
    process = db.LinearGaussian(slope * np.eye(d), noise * np.eye(d), start=np.full(d, start), spread=0.5 * np.eye(d))
    return list(process.sample(n, 20, seed))


def test_estimates_from_paths_are_not_below_what_the_marginal_laws_prove():
    """Growth in the plane: the difference of the true E|x_t| and E|y_t| alone is 1.08."""
    weights, t, norms = 0.1 * 0.9 ** np.arange(21), np.arange(21), []
    for a in (0.9, 1.1):  # x_t is N(0, v I) with v = a^2t / 4 + 0.09 (1 + … + a^2(t-1)), and E|x_t| = √(π v / 2)
        norms.append(np.sqrt(np.pi / 2 * (a ** (2 * t) / 4 + 0.09 * (a ** (2 * t) - 1) / (a**2 - 1))))
    proven = weights @ np.abs(norms[0] - norms[1])
    assert proven > 1.07
    X, Y = _paths(0.9, 0.3, 2, 0, n=100), _paths(1.1, 0.3, 2, 1, n=100)
    e = db.estimate(X, Y, weights=weights, replicates=24)
    assert e.upper >= proven
    assert e.value > 0.9 * proven
    assert e.marginal.lower <= proven <= e.marginal.upper
    assert e.lower >= e.marginal.lower > 0.7 * proven
    with pytest.raises(InvalidData, match=r"Y grows beyond the data: trajectories have 21 points.*weights=\(1 - 0.9\)"):
        db.estimate(X, _paths(1.12, 0.3, 2, 1, n=100), discount=0.9, replicates=24)  # 0.9 · 1.12 > 1: it is infinite


def test_cells_that_are_wider_than_steps_are_refused():
    """They hardly move: the distance was [0, 0] for slopes 0.9 and 1.3, which differ by 11 in E|x_t|."""
    message = r"wider than the steps of X: the median step is 0.0\d+, the median radius of the 100 cells .*n_states="
    with pytest.raises(InvalidData, match=message):
        db.estimate(_paths(0.9, 0.3, 2, 0), _paths(1.3, 0.3, 2, 1), weights=0.1 * 0.9 ** np.arange(21), replicates=24)


def test_a_simulator_that_starts_where_recordings_start_is_compared_pair_by_pair():
    """The starts are no difference: on the line, the truth given them is the mean of the closed form over starts."""
    from diffbisim.processes.gaussian import linear_gaussian_distance

    for seed in range(4):
        rng = np.random.default_rng(seed)
        starts = 3 * rng.normal(size=(30, 1))
        sides = [[db.LinearGaussian(a, 0.3, start=s) for s in starts] for a in (0.8, 0.6)]
        exact = np.mean([linear_gaussian_distance(x, y, 0.9, "euclidean") for x, y in zip(*sides, strict=True)])
        X, Y = ([process.sample(1, 20, rng)[0] for process in side] for side in sides)
        e = db.estimate(X, Y, discount=0.9, replicates=40)
        assert e.lower <= exact <= e.upper
        assert e.lower > 0
        assert e.value > exact / 2
        assert "paired by their 30 shared first points" in e.assumed[0]


def test_a_few_paths_do_not_differ_because_they_start_elsewhere():
    """Two times six paths of one process: the starts say little, and were taken for a difference in 3 of 4."""
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, Y = (
            [db.LinearGaussian(0.8, 0.3, start=s).sample(1, 30, rng)[0] for s in 2 * rng.normal(size=(6, 1))]
            for _ in range(2)
        )
        with pytest.warns(UserWarning, match='fewer than 20 trajectories.*pass initial="pooled" to confirm'):
            found.append(db.estimate(X, Y, discount=0.9, replicates=24))
        assert found[-1].value == db.estimate(X, Y, discount=0.9, replicates=24, initial="pooled").value
    assert all(e.lower == 0 for e in found)
    assert "both sides start like all trajectories together" in found[0].assumed


def test_starts_that_a_file_has_rounded_are_shared_starts():
    """Recordings and a simulator from the same points, which were rounded: pairs, as with exact points."""
    rng = np.random.default_rng(901)

    def walk(slope, start, steps=20):
        path = [start]
        for _ in range(steps):
            path.append(slope * path[-1] + 0.4 * rng.standard_normal(start.shape))
        return list(np.stack(path, axis=1))

    starts = rng.normal(0, 1, (40, 1))
    recorded = walk(0.9, starts)
    for rounded, apart in ((starts, False), (starts.astype("f4").astype(float), True), (starts.round(5), True)):
        found = db.estimate(recorded, walk(0.6, rounded), discount=0.9, replicates=24)
        assert found.assumed[0].startswith("trajectories are paired by their 40 shared first points")
        assert ("differ by at most" in found.assumed[0]) == apart
        assert found.lower > 0
    partly = np.concatenate([starts[:25], rng.normal(0, 1, (15, 1))])
    with pytest.warns(UserWarning, match=r"of the first points of Y are \(nearly\) first points of X"):
        db.estimate(recorded, walk(0.6, partly), discount=0.9, replicates=24)


def test_a_pilot_study_without_a_difference_promises_no_power():
    data = [db.Transitions.from_trajectories([[0, 1, 0, 1, 1]] * 3 + [[0, 0, 1, 1, 0]] * 3, states=2)] * 2
    with pytest.warns(db.InputWarning, match=r"show no evidence of a difference \(p = 1\)"):
        db.power(*data, "indicator", episodes=[8], datasets=10, permutations=19)


# --- models of other libraries and files ----------------------------------------------------------------------------


def test_hidden_states_of_two_models_are_not_the_same_states():
    """The mean of the emissions bounds the distance from below; the numbers of the states do not count."""
    from hmmlearn.hmm import GaussianHMM

    P, start, discount = np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0.5, 0.5]), 0.9
    models = []
    for means in ([[0.0], [1.0]], [[100.0], [-300.0]]):
        model = GaussianHMM(n_components=2, covariance_type="spherical")
        model.startprob_, model.transmat_ = start, P
        model.means_, model.covars_ = np.array(means), np.ones(2)
        models.append(model)
    with pytest.warns(db.InputWarning, match="emissions are not part"):
        bare = [db.as_chain(model) for model in models]
    for given in (models, bare):
        with pytest.raises(db.InvalidCost, match=r"X has hidden states.*give rewards"):
            db.distance(*given, "indicator", discount)
    X, Y = (db.as_chain(model, rewards=model.means_.ravel()) for model in models)
    spent = (1 - discount) * np.linalg.solve(np.eye(2) - discount * P.T, start)  # time in each state, discounted
    gap = abs(spent @ (models[0].means_ - models[1].means_).ravel())
    assert db.distance(X, Y, discount=discount).upper >= gap > 1


def test_constant_rewards_do_not_hide_propositions(tmp_path):
    """A coin that falls on heads with probability .5 or .45, after one step: γ |.5 - .45| from the proposition."""
    paths = []
    for name, p in (("fair", 0.5), ("bent", 0.45)):
        path = tmp_path / f"{name}.tra"
        path.write_text(f"3 4\n0 1 {p}\n0 2 {1 - p}\n1 1 1\n2 2 1\n")
        path.with_suffix(".lab").write_text('0="init" 1="deadlock" 2="heads"\n0: 0\n1: 2\n')
        path.with_suffix(".srew").write_text("3 3\n0 1\n1 1\n2 1\n")
        paths.append(path)
    with pytest.warns(db.InputWarning, match="1 in every state.*propositions 'heads' are not used; .*rewards='heads'"):
        X, Y = (db.read_chain(path) for path in paths)
    with pytest.warns(db.InputWarning, match="0 for every pair of states.*does not depend on the transition prob"):
        db.distance(X, Y)
    X, Y = (db.read_chain(path, rewards="heads") for path in paths)
    assert db.distance(X, Y, discount=0.9).value == pytest.approx(0.9 * 0.05, abs=1e-8)


def test_a_step_takes_as_long_as_the_lag_says():
    """Powers of one kernel are one process: at distance zero at the same lag, with the timescale -1/log λ in steps."""
    from deeptime.markov.msm import MarkovStateModel

    P = np.array([[0.97, 0.03], [0.02, 0.98]])  # λ = 0.95
    every, fifth = MarkovStateModel(P), MarkovStateModel(np.linalg.matrix_power(P, 5), lagtime=5)
    with pytest.raises(db.InvalidArgument, match=r"X has lag 1 and Y has lag 5.*as_chain\(X\).at_lag\(5\)"):
        db.distance(every, fifth, "indicator")
    assert db.distance(db.as_chain(every).at_lag(5), fifth, "indicator").value < 1e-8
    for model in (every, fifth):
        found = db.compress(model, 2, model="kinetic", cost=1 - np.eye(2))
        assert found.timescales == pytest.approx([-1 / np.log(0.95)] * 2, rel=1e-9)


def test_constant_chains_keep_their_rewards_names_and_lags_in_jax():
    """Both sides are chains: the oracle is ``db.distance``, where nothing is a tensor."""
    import diffbisim.jax

    P = np.array([[0.9, 0.1], [0.4, 0.6]])
    pairs = {
        "reward": [{"rewards": [0, 1]}, {"rewards": [5, 6]}],
        "indicator": [{"names": ["a", "b"]}, {"names": ["b", "a"]}],
    }
    for cost, parts in pairs.items():
        X, Y = (db.MarkovChain(P, **part) for part in parts)
        exact = db.distance(X, Y, cost).value
        assert exact > 0.5
        assert float(diffbisim.jax.distance(X, Y, cost)) == pytest.approx(exact, rel=1e-5)
    X, Y = (db.MarkovChain(P, rewards=[0, 1], lag=lag) for lag in (1, 5))
    with pytest.raises(db.InvalidArgument, match="X has lag 1 and Y has lag 5"):
        diffbisim.jax.distance(X, Y)
    with pytest.raises(db.InvalidArgument, match=r"discount is 0\.5, but criterion='average' has none"):
        diffbisim.jax.distance(X, P, discount=0.5, criterion="average")


# --- results, arguments, processes ----------------------------------------------------------------------------------


def test_a_forged_result_file_is_not_believed_because_it_is_large(tmp_path):
    """All rewards of X are 0 and all of Y are 1: the distance is 1, not the 0 of the file."""
    import json

    n, rng = 46, np.random.default_rng(0)  # n⁴ = 4.5 million cells, more than are solved again while loading
    X, Y = (db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=np.full(n, r)) for r in (0.0, 1.0))
    result = db.distance(X, Y, discount=0.5)
    arrays = result.arrays()
    told = json.loads(bytes(arrays["meta"])) | {"lower": 0.0, "value": 0.0, "upper": 0.0}
    arrays["meta"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
    np.savez(tmp_path / "forged.npz", **arrays)
    loaded = db.load(tmp_path / "forged.npz")
    assert loaded.lower <= 1.0 <= loaded.upper
    assert not loaded.converged
    with pytest.raises(db.InvalidData, match="the table certifies the interval"):
        db.load(tmp_path / "forged.npz", verify=True)


def test_a_time_limit_also_ends_a_step_of_a_finite_horizon():
    """The run stops inside a step of 10⁹ cells; Kantorovich's bound, over times, lies within its bounds."""
    import time

    rng, weights = np.random.default_rng(0), np.ones(6)
    small, large = (
        [db.MarkovChain(rng.dirichlet(np.ones(n), n), rewards=rng.random(n)) for _ in range(2)] for n in (130, 190)
    )
    solver = db.solvers.Exact(time_limit=0.1, threads=1)
    with pytest.warns(db.ConvergenceWarning):
        db.distance(*small, weights=weights, solver=solver)  # loads the compiled code
    before = time.process_time()
    with pytest.warns(db.ConvergenceWarning):
        stopped = db.distance(*large, weights=weights, solver=solver)
    assert time.process_time() - before < 1.1
    assert "time_limit" in stopped.status
    means = [[X.initial @ np.linalg.matrix_power(X.transition, t) @ X.rewards for t in range(6)] for X in large]
    assert np.abs(np.subtract(*means)).sum() <= stopped.upper


@pytest.mark.parametrize("unit", ["M8[D]", "m8[s]"])
def test_dates_and_durations_are_not_numbers(unit):
    when, X = np.array([[1, 2], [3, 4]]).astype(unit), db.MarkovChain(np.eye(2), rewards=[0, 1])
    for use in (
        lambda: db.MarkovChain(np.eye(2), rewards=when[0]),
        lambda: db.MarkovChain(np.eye(2), initial=when[0]),
        lambda: db.MDP([np.eye(2)], rewards=when[0]),
        lambda: db.TimedChain([np.eye(2)], rewards=when[0]),
        lambda: db.distance(X, X, when),
        lambda: db.distance(X, X, weights=when[0]),
        lambda: db.feature_cost(when, when),
    ):
        with pytest.raises(db.DiffbisimError, match=r"(dates|durations); convert them first"):
            use()


def test_a_step_that_works_in_place_starts_from_the_recorded_states():
    """Relaxation x' = 0.8 x, written into x: the same fit as by a step that returns a new array."""
    rng = np.random.default_rng(0)
    paths = [start * 0.8 ** np.arange(9)[:, None] for start in rng.uniform(0.5, 2.0, (30, 1))]
    paths = [path + 0.1 * rng.standard_normal(path.shape) for path in paths]

    def anew(states, parameters, noise):
        return parameters[0] * states + 0.1 * noise

    def in_place(states, parameters, noise):
        states *= parameters[0]
        states += 0.1 * noise
        return states

    found = [
        db.fit_simulator(paths, step=step, start=0.6, splits=2, n_states=30, tol=0.005) for step in (anew, in_place)
    ]
    assert found[0].parameters == found[1].parameters


def test_all_states_look_the_same_without_rewards_and_says_so():
    P = [[0.5, 0.5], [0.0, 1.0]]
    with pytest.warns(db.InputWarning, match="no rewards and there is no key, so all states look the same"):
        assert db.lump(db.MarkovChain(P)).n_states == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert db.lump(db.MarkovChain(P), key=[0, 1]).n_states == 2
        assert db.lump(db.MarkovChain([[1.0]])).n_states == 1
        for cost in ("indicator", 1 - np.eye(2)):
            db.distance(db.MarkovChain(P), db.MarkovChain(P, initial=1), cost, lump=True)
            db.distance(db.MarkovChain(P), db.MarkovChain(P, initial=1), cost, lump=True, criterion="average")
        db.compress(db.MarkovChain(P), 1, cost=1 - np.eye(2)[:, :1], restarts=1)
