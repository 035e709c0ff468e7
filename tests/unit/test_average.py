"""Long-run average cost against the linear program over stationary couplings, closed forms and limits."""

import pickle
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidData
from diffbisim.solvers import Exact
from diffbisim.solvers.exact.undiscounted import Recurrence, pair_classes
from oracles.undiscounted import least_average

EPS = np.finfo(float).eps


def average(X, Y, cost="reward", **options):
    return db.distance(X, Y, cost, criterion="average", **options)


def dense(rng, n):
    return rng.dirichlet(np.ones(n), size=n)


def cycle(n):
    return np.roll(np.eye(n), 1, axis=1)


def sparse_kernel(rng, n, successors=2):
    P = np.zeros((n, n))
    for row in P:
        row[rng.choice(n, successors, replace=False)] = rng.dirichlet(np.ones(successors))
    return P


def reducible(rng, n):
    """Two closed classes (one of them a cycle), and transient states that lead to all."""
    P = np.zeros((n, n))
    P[:2, :2], P[2:4, 2:4] = dense(rng, 2), cycle(2)
    P[4:] = rng.dirichlet(np.ones(n), size=n - 4)
    return P


KERNELS = {
    "dense": dense,
    "sparse": sparse_kernel,
    "periodic": lambda rng, n: cycle(n),
    "reducible": reducible,
    "absorbing": lambda rng, n: np.vstack([np.eye(n)[0], dense(rng, n)[1:]]),
    "nearly decomposable": lambda rng, n: 0.999 * np.eye(n) + 0.001 * dense(rng, n),
}


@pytest.mark.parametrize("kind_y", KERNELS)
@pytest.mark.parametrize("kind_x", KERNELS)
def test_value_is_that_of_the_linear_program(kind_x, kind_y):
    rng = np.random.default_rng([*map(ord, kind_x), *map(ord, kind_y)])
    P, Q = KERNELS[kind_x](rng, 6), KERNELS[kind_y](rng, 5)
    nu_x, nu_y, cost = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(5)), rng.random((6, 5))
    found = average(db.MarkovChain(P, initial=nu_x), db.MarkovChain(Q, initial=nu_y), cost)
    exact = least_average(P, Q, nu_x, nu_y, cost)
    assert found.converged
    assert found.gap <= 1e-8 * cost.max()
    assert found.lower - 1e-8 <= exact <= found.upper + 1e-8  # what HiGHS guarantees
    m = found.occupancy
    assert m.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.sum(m * cost) == pytest.approx(found.value, abs=found.gap + 1e-11)
    assert found.encoder.sum(axis=1) == pytest.approx(np.ones(6))


def test_occupancy_is_stationary_for_the_plans_and_has_the_chains_own_laws():
    rng = np.random.default_rng(0)
    X, Y = (db.MarkovChain(dense(rng, n), rewards=rng.random(n)) for n in (5, 4))
    found = average(X, Y)
    m = found.occupancy
    moved = sum(m[x, y] * found.plan(x, y) for x in range(5) for y in range(4))
    assert moved == pytest.approx(m, abs=1e-12)
    for chain, law in ((X, m.sum(axis=1)), (Y, m.sum(axis=0))):
        assert law @ chain.transition == pytest.approx(law, abs=1e-12)


@pytest.mark.parametrize("p", range(1, 7))
@pytest.mark.parametrize("q", range(1, 7))
def test_two_cycles_have_as_many_classes_as_their_lengths_have_common_divisors(p, q):
    classes = pair_classes(*(Recurrence.of(db.MarkovChain(cycle(n))) for n in (p, q)))
    assert np.unique(classes).size == np.gcd(p, q)
    rng = np.random.default_rng(p + 10 * q)
    cost = rng.random((p, q))
    found = average(db.MarkovChain(cycle(p)), db.MarkovChain(cycle(q)), cost)
    x, y = np.ogrid[:p, :q]
    divisor = np.gcd(p, q)
    means = np.array([cost[(x - y) % divisor == k].mean() for k in range(divisor)])
    assert found.values == pytest.approx(means[(x - y) % divisor], abs=1e-8)
    together = [Fraction(c) for c in cost[(x - y) % divisor == 0]]
    assert Fraction(found.lower) <= sum(together) / len(together) <= Fraction(found.upper)


def test_four_cycle_against_six_cycle():
    rewards = np.arange(4.0), np.arange(6.0)
    X, Y = (db.MarkovChain(cycle(r.size), rewards=r) for r in rewards)
    even = np.mean([abs(t % 4 - t % 6) for t in range(12)])
    odd = np.mean([abs(t % 4 - (t + 1) % 6) for t in range(12)])
    assert average(X, Y).value == pytest.approx(even, abs=1e-7)
    assert average(X, Y.with_initial(1)).value == pytest.approx(odd, abs=1e-7)
    assert average(X, Y.with_initial([0.25, 0.75, 0, 0, 0, 0])).value == pytest.approx((even + 3 * odd) / 4, abs=1e-7)


def test_recurrence_of_a_chain_with_transient_states_and_two_periods():
    P = np.zeros((8, 8))
    P[:3, :3], P[3:5, 3:5], P[5, 5] = cycle(3), cycle(2), 1.0
    P[6, [0, 7]], P[7, [4, 6]] = 0.5, 0.5
    found = Recurrence.of(db.MarkovChain(sp.csr_array(P)))
    assert sorted(found.period) == [1, 2, 3]
    assert list(found.recurrent) == [True] * 6 + [False] * 2


def test_limit_of_discounted_distances():
    rng = np.random.default_rng(3)
    X, Y = (db.MarkovChain(reducible(rng, n), initial=n - 1, rewards=rng.random(n)) for n in (7, 6))
    found = average(X, Y)
    off = [abs(db.distance(X, Y, discount=1 - rest).value - found.value) for rest in (1e-2, 1e-3, 1e-4)]
    assert off[2] < 1.5e-3  # O(1-γ), and the time that transient states take
    assert off[1] < off[0] / 5
    assert off[2] < off[1] / 5


def test_identical_chains_and_zero_cost():
    rng = np.random.default_rng(4)
    X = db.MarkovChain(dense(rng, 6), initial=rng.dirichlet(np.ones(6)), rewards=rng.random(6))
    same = average(X, X)
    assert same.converged
    assert same.lower == same.value == 0.0
    assert np.count_nonzero(same.occupancy - np.diag(np.diag(same.occupancy))) == 0
    free = average(X, X, np.zeros((6, 6)))
    assert free.converged
    assert (free.lower, free.value, free.upper) == (0.0, 0.0, 0.0)
    assert free.gradient.cost.sum() == pytest.approx(1.0)


def test_scale_of_the_cost_does_not_matter():
    rng = np.random.default_rng(5)
    X, Y, cost = db.MarkovChain(dense(rng, 5)), db.MarkovChain(sparse_kernel(rng, 5)), rng.random((5, 5))
    found = average(X, Y, cost)
    for scale in (1e-290, 1e-9, 1e9, 1e290):
        other = average(X, Y, scale * cost)
        assert other.converged
        assert other.lower <= scale * found.upper * (1 + 4 * EPS)
        assert other.upper >= scale * found.lower * (1 - 4 * EPS)


@pytest.mark.parametrize("k", [10, 20, 30, 40])
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_slow_coins_keep_true_bounds(k):
    """Coins that turn with probability a > b: together if they can, never both when they differ; differ (a-b)/2a."""
    a, b = 2.0**-k, 2.0 ** -(k + 1)
    X, Y = (db.MarkovChain([[1 - p, p], [p, 1 - p]]) for p in (a, b))
    found = average(X, Y, "indicator")
    assert found.lower <= 0.25 <= found.upper
    assert found.gap <= 1e-8 + 1e-13 / a  # rounding of a bias of size 1/a
    assert found.iterations < 60


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e3, 1e7])
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_bounds_hold_exactly_from_wild_tables(shift):
    """Two cycles of lengths without a common divisor: the average is the mean of all costs, a rational number."""
    rng = np.random.default_rng(17)
    X, Y, cost = db.MarkovChain(cycle(5)), db.MarkovChain(cycle(7)), rng.random((5, 7))
    exact = sum(map(Fraction, cost.ravel().tolist())) / cost.size
    start = average(X, Y, cost)
    start.coupling.W[:] += shift * rng.random(cost.size)
    for iterations in (1, 2, 3, 100):
        found = average(X, Y, cost, solver=Exact(max_iterations=iterations, tol=1e-16), warm=start)
        assert Fraction(found.lower) <= exact <= Fraction(found.upper)


@pytest.mark.parametrize("stop", [{"max_iterations": 1}, {"max_iterations": 2}, {"time_limit": 0.0}])
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.filterwarnings("ignore::diffbisim.ConvergenceWarning")
def test_bounds_are_true_however_it_ends(kind, stop):
    rng = np.random.default_rng([*map(ord, kind)])
    X, Y = (db.MarkovChain(KERNELS[kind](rng, n), initial=rng.dirichlet(np.ones(n))) for n in (6, 5))
    cost = rng.random((6, 5))
    exact = average(X, Y, cost)
    other = db.distance(X, Y, 3 * rng.random((6, 5)), 0.9)
    wild = average(X, Y, 1e6 * rng.random((6, 5)) ** 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for warm in (None, exact, other, wild):
            found = average(X, Y, cost, solver=Exact(**stop), warm=warm)
            assert found.lower <= exact.upper
            assert found.upper >= exact.lower
            assert 0 <= found.lower <= found.value <= found.upper <= cost.max()
    stopped = average(X, Y, cost, solver=Exact(max_iterations=50, tol=1e-30), callback=lambda row: True)
    assert stopped.iterations == 1


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kind", ["dense", "sparse", "reducible", "periodic"])
def test_gradient_against_central_differences(kind, make):
    rng = np.random.default_rng([*map(ord, kind)])
    P, Q = KERNELS[kind](rng, 6), KERNELS[kind](rng, 5)
    nu_x, nu_y, cost = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(5)), rng.random((6, 5))

    def value(P, Q, nu_x, nu_y, cost):
        chains = db.MarkovChain(make(P), initial=nu_x), db.MarkovChain(make(Q), initial=nu_y)
        return average(*chains, cost, tol=1e-13, solver=Exact(max_iterations=30))

    def direction(rows):
        change = np.where(rows > 0, rng.normal(size=rows.shape), 0.0)
        return (change - (rows * change).sum(axis=-1, keepdims=True)) * rows

    given = [P, Q, nu_x, nu_y, cost]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        gradient = value(*given).gradient
        parts = gradient.transition_x, gradient.transition_y, gradient.initial_x, gradient.initial_y, gradient.cost
        for k, part in enumerate(parts):
            step = 1e-5
            change = rng.normal(size=cost.shape) if k == 4 else direction(given[k])
            sides = [value(*(g + s * change if i == k else g for i, g in enumerate(given))) for s in (step, -step)]
            slope = (sides[0].value - sides[1].value) / (2 * step)
            dense_part = part.toarray() if sp.issparse(part) else part
            assert np.sum(dense_part * change) == pytest.approx(slope, abs=1e-6)


def test_gradient_off_the_support_is_one_sided_where_there_is_one_class():
    rng = np.random.default_rng(9)
    P, Q = dense(rng, 4), dense(rng, 3)
    P[1, 2], P[1, 0] = 0.0, P[1, 0] + P[1, 2]
    cost = rng.random((4, 3))
    found = average(db.MarkovChain(P), db.MarkovChain(Q), cost, tol=1e-12)
    step = 1e-6
    change = np.zeros((4, 4))
    change[1, 2], change[1, 0] = 1.0, -1.0
    moved = average(db.MarkovChain(P + step * change), db.MarkovChain(Q), cost, tol=1e-12)
    assert np.sum(found.gradient.transition_x * change) == pytest.approx((moved.value - found.value) / step, abs=1e-4)


def test_reachable_pairs_only():
    rng = np.random.default_rng(10)
    P = np.zeros((7, 7))
    P[:3, :3], P[3:, 3:] = dense(rng, 3), dense(rng, 4)
    X, Y, cost = db.MarkovChain(P, initial=0), db.MarkovChain(sparse_kernel(rng, 5)), rng.random((7, 5))
    full, part = average(X, Y, cost), average(X, Y, cost, solver=Exact(reachable=True))
    assert max(full.lower, part.lower) <= min(full.upper, part.upper)
    assert np.isnan(part.values[3:]).all()
    assert part.work["pairs"] < full.work["pairs"]
    assert part.gradient.cost == pytest.approx(full.gradient.cost, abs=1e-9)
    with pytest.raises(InvalidArgument, match="cannot be reached"):
        part.plan(5, 0)


def test_potentials_are_feasible_for_the_bias_and_tight_on_plans():
    rng = np.random.default_rng(11)
    X, Y = (db.MarkovChain(dense(rng, n), rewards=rng.random(n)) for n in (5, 4))
    found = average(X, Y, tol=1e-12)
    W = found.coupling.bias
    for x in range(5):
        for y in range(4):
            f, g = found.potentials(x, y)
            slack = W - np.add.outer(f, g)
            assert slack.min() >= -1e-9
            assert np.sum(found.plan(x, y) * slack) == pytest.approx(0.0, abs=1e-9)
            right = found.problem.cost[x, y] + X.transition[x] @ f + Y.transition[y] @ g
            assert W[x, y] + found.value == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("kind", ["dense", "reducible", "periodic"])
def test_files_and_pickles_and_warm_starts_go_on(kind, tmp_path):
    rng = np.random.default_rng([*map(ord, kind)])
    X, Y = (db.MarkovChain(KERNELS[kind](rng, n), initial=rng.dirichlet(np.ones(n))) for n in (6, 5))
    cost = rng.random((6, 5))
    found = average(X, Y, cost)
    found.save(tmp_path / "a.npz")
    for again in (db.load(tmp_path / "a.npz"), pickle.loads(pickle.dumps(found))):
        assert (again.value, again.lower, again.upper) == (found.value, found.lower, found.upper)
        assert again.problem.criterion == "average"
        assert np.array_equal(again.values, found.values)
        assert again.occupancy == pytest.approx(found.occupancy, abs=1e-12)
        assert again.potentials(4, 2)[0] == pytest.approx(found.potentials(4, 2)[0], nan_ok=True)
        assert not again.values.flags.writeable
        warm = average(X, Y, cost, warm=again)
        assert warm.iterations == 1
        assert max(warm.lower, found.lower) <= min(warm.upper, found.upper)


def test_damaged_files_are_refused(tmp_path):
    rng = np.random.default_rng(12)
    X, Y = (db.MarkovChain(reducible(rng, n), initial=n - 1, rewards=rng.random(n)) for n in (6, 5))
    average(X, Y).save(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    for name, change in (("state.transient.child", 1), ("state.flow", 0.5), ("state.start.parent", 1)):
        np.savez(tmp_path / "b.npz", **{**arrays, name: arrays[name] + arrays[name].dtype.type(change)})
        with pytest.raises(InvalidData, match=r"b\.npz"):
            db.load(tmp_path / "b.npz")


def test_threads_give_the_same_bits():
    rng = np.random.default_rng(13)
    X, Y = (db.MarkovChain(sparse_kernel(rng, 60, 4), rewards=rng.random(60)) for _ in range(2))
    one, two = (average(X, Y, solver=Exact(threads=n)) for n in (1, 2))
    assert max(one.lower, two.lower) <= min(one.upper, two.upper)
    assert one.iterations == two.iterations


def test_lumping_preserves_average_cost():
    rng = np.random.default_rng(14)
    small = reducible(rng, 6)
    assignment = np.array([0, 1, 2, 3, 4, 5, 4, 5, 0, 1])
    copies = np.bincount(assignment)
    P = small[np.ix_(assignment, assignment)] / copies[assignment]
    X = db.MarkovChain(P, initial=6, rewards=rng.random(6)[assignment])
    Y = db.MarkovChain(dense(rng, 4), rewards=rng.random(4))
    full, lumped = average(X, Y), average(X, Y, lump=True)
    assert lumped.converged
    assert lumped.work["pairs"] < full.work["pairs"]
    assert max(full.lower, lumped.lower) <= min(full.upper, lumped.upper)
    assert lumped.values == pytest.approx(full.values, abs=1e-7)
    assert np.sum(lumped.occupancy * full.problem.cost) == pytest.approx(full.value, abs=1e-7)
    assert np.sum(lumped.gradient.cost) == pytest.approx(1.0)
    again = average(X, Y, warm=lumped)
    assert max(full.lower, again.lower) <= min(full.upper, again.upper)


def test_lumping_does_not_merge_states_that_differ_by_a_rare_way_out(tmp_path):
    P = np.array([[1.0, 0, 0], [0, 1 - 1e-13, 1e-13], [0, 0, 1.0]])
    X, Y = db.MarkovChain(P, initial=1, rewards=[0, 0, 1]), db.MarkovChain([[1.0]], rewards=[0])
    with pytest.warns(ConvergenceWarning, match="double precision"):
        found = average(X, Y, lump=True)
    assert found.upper >= 1 - 1e-6  # from state 1 it ends in state 2 for ever
    assert found.value == pytest.approx(1.0, abs=1e-6)
    found.save(tmp_path / "a.npz")
    assert db.load(tmp_path / "a.npz").value == found.value


def test_pairwise_and_estimate_take_the_criterion():
    rng = np.random.default_rng(15)
    chains = [db.MarkovChain(dense(rng, 4), rewards=rng.random(4)) for _ in range(3)]
    matrix = db.pairwise(chains, criterion="average")
    for i in range(3):
        for j in range(3):
            assert matrix[i, j] == pytest.approx(average(chains[i], chains[j]).value, abs=1e-7)
    data = [db.Transitions.from_trajectories([c.sample(300, rng=k) for k in range(5)], states=4) for c in chains[:2]]
    found = db.estimate(*data, rewards=chains[0].rewards, criterion="average", replicates=20, rng=0)
    again = average(*(d.chain(rewards=chains[0].rewards, unseen="self-loop") for d in data))
    assert found.plug_in == pytest.approx(again.value, abs=1e-8)
    assert found.lower <= found.upper


def test_duals_and_the_implicit_reward_need_one_class():
    rng = np.random.default_rng(16)
    X, Y = (db.MarkovChain(dense(rng, n), rewards=rng.random(n)) for n in (4, 3))
    found = average(X, Y)
    assert found.duals.alpha_y.shape == (4, 3, 3)
    reward = found.implicit_reward()
    assert (Y.transition * reward).sum(axis=1) == pytest.approx(np.zeros(3), abs=1e-9)
    several = average(db.MarkovChain(cycle(4), rewards=np.arange(4)), db.MarkovChain(cycle(2), rewards=[0, 1]))
    for ask in (lambda: several.duals, several.implicit_reward):
        with pytest.raises(InvalidArgument, match=r"all (pairs|transitions)"):
            ask()


def test_other_solvers_say_that_they_do_not():
    X = db.MarkovChain([[0.5, 0.5], [0.2, 0.8]], rewards=[0, 1])
    for solver in ("lp", "sinkhorn-policy", "sinkhorn-value", "somcot"):
        with pytest.raises(InvalidArgument, match="use solver='exact'"):
            average(X, X, solver=solver)


@pytest.mark.parametrize("sparse", [False, True])
def test_nothing_that_is_asked_of_a_result_changes_it(sparse):
    """Trees with flows of zero, which a matrix of the plans would drop."""
    P = np.array([[0.2, 0.8, 0.0], [0.1, 0.3, 0.6], [0.5, 0.0, 0.5]])
    X = db.MarkovChain(sp.csr_array(P) if sparse else P, rewards=[0.0, 0.4, 1.0])
    Y = db.MarkovChain(np.full((2, 2), 0.5), rewards=[0.1, 0.8])
    result = db.distance(X, Y, criterion="average")
    before = {name: np.array(part) for name, part in result.arrays().items()}
    result.occupancy, result.encoder, result.decoder, result.gradient, result.plan(0, 1)
    assert all(np.array_equal(part, before[name]) for name, part in result.arrays().items())
    at = result.coupling.solved.closed.trees.at
    assert np.array_equal(np.diff(at), np.add.outer([2, 3, 2], [1, 1]).ravel())
