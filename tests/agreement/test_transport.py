"""One transport and many over one table: against linprog, assignment, and the invariants of a strongly feasible tree.

A tree is an edge list child[k], parent[k], flow[k] in which every node comes after its parent. Strongly feasible
means that an edge without flow has a row as its child, so that a little mass could still be sent to the root.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import minimum_spanning_tree

from cases import each
from diffbisim import MarkovChain, _engine, distance
from diffbisim.solvers import Exact
from diffbisim.solvers.exact import transports
from diffbisim.solvers.exact.pairs import begin_with
from diffbisim.solvers.exact.transports import Items, Transports
from diffbisim.solvers.exact.transports import Tree as Edges
from diffbisim.stochastic import Successors
from diffbisim.stopping import engine_run
from levels import at_every_level
from oracles.bellman import transport as linprog_transport

FIRST = ("northwest", "greedy")
MARGINALS = ("random", "uniform", "integers", "one large")

#: Reduced costs above minus this count as zero; costs are at most one.
PRICE = 1e-14


@dataclass
class Tree:
    """Cost, marginals and edge list of one transport."""

    C: np.ndarray
    p: np.ndarray
    q: np.ndarray
    child: np.ndarray
    parent: np.ndarray
    flow: np.ndarray

    @property
    def edges(self):
        return Edges(self.child, self.parent, self.flow)

    def plan(self):
        plan, a = np.zeros(self.C.shape), self.p.size
        for u, v, mass in zip(self.child.tolist(), self.parent.tolist(), self.flow, strict=True):
            plan[min(u, v), max(u, v) - a] += mass
        return plan

    def simplex(self, max_pivots=10**6, tol=PRICE):
        """Pivots, whether optimal, and the potentials f, g."""
        pot, a = np.empty(self.p.size + self.q.size), self.p.size
        pivots, optimal = _engine.simplex(self.C, self.edges, tol, max_pivots, pot)
        return pivots, optimal, pot[:a], pot[a:]

    def change_marginals(self, p, q):
        """Flows of the same tree for other marginals; returns the sum of the negative ones."""
        self.p, self.q = p, q
        return _engine.tree_flows(p, q, self.edges)

    def repair(self):
        return _engine.repair(self.C, self.edges)


def first_tree(C, p, q, first, rng=None, index=np.int32):
    """A first basis; the northwest corner along random orders if ``rng`` is given."""
    a, b = C.shape
    edges = np.empty(a + b - 1, index), np.empty(a + b - 1, index), np.empty(a + b - 1)
    if first == "greedy":
        _engine.greedy(C, p, q, Edges(*edges))
    else:
        orders = (np.arange(a), np.arange(b)) if rng is None else (rng.permutation(a), rng.permutation(b))
        _engine.northwest_corner(p, q, *orders, Edges(*edges))
    return Tree(C, p, q, *edges)


def marginal(rng, n, kind):
    if kind == "uniform":
        return np.full(n, 1 / n)
    if kind == "integers":
        weights = rng.integers(1, 4, n).astype(float)
    elif kind == "one large":
        weights = np.append(np.full(n - 1, 1e-9), 1.0)
    else:
        return rng.dirichlet(np.ones(n))
    return weights / weights.sum()


def cost(rng, a, b, seed):
    """Random, or with many ties, or |difference| on a line (all comonotone plans are optimal)."""
    if seed % 3 == 0:
        return rng.random((a, b))
    if seed % 3 == 1:
        return rng.integers(0, 3, (a, b)) / 3
    return np.abs(np.subtract.outer(rng.integers(0, 5, a), rng.integers(0, 5, b))) / 5


def check_tree(tree):
    """Spanning, parents first, non-negative, exact marginals."""
    seen = {int(tree.parent[0])}
    for u, v in zip(tree.child.tolist(), tree.parent.tolist(), strict=True):
        assert v in seen
        assert u not in seen
        assert (u < tree.p.size) != (v < tree.p.size)
        seen.add(u)
    assert len(seen) == tree.p.size + tree.q.size
    assert tree.flow.min() >= 0
    plan = tree.plan()
    np.testing.assert_allclose(plan.sum(axis=1), tree.p, rtol=0, atol=2e-15)
    np.testing.assert_allclose(plan.sum(axis=0), tree.q, rtol=0, atol=2e-15)


def strongly_feasible(tree):
    return bool((tree.child[tree.flow == 0] < tree.p.size).all())


def check_optimal(tree, f, g):
    """Feasible potentials, equality along the tree; the plan's cost is then the optimum."""
    reduced = tree.C - f[:, None] - g
    assert reduced.min() >= -2 * PRICE
    assert np.abs(reduced[tree.plan() > 0]).max(initial=0) <= 2 * PRICE
    assert np.sum(tree.plan() * tree.C) == pytest.approx(tree.p @ f + tree.q @ g, rel=0, abs=1e-13)


def problem(seed, largest=8):
    rng = np.random.default_rng([1, seed])
    a, b = rng.integers(1, largest + 1, 2)
    kinds = MARGINALS[seed % 4], MARGINALS[(seed // 4) % 4]
    return rng, cost(rng, a, b, seed), marginal(rng, a, kinds[0]), marginal(rng, b, kinds[1])


# --- first bases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", FIRST)
@each(seed=range(160))
def test_first_bases_are_strongly_feasible_trees(first, seed):
    rng, C, p, q = problem(seed)
    tree = first_tree(C, p, q, first, rng)
    check_tree(tree)
    assert strongly_feasible(tree)


def below_rounding(seed):
    """One entry of each marginal is one, the others, 1e-16 to 1e-300, vanish in differences."""
    rng = np.random.default_rng([2, seed])
    a, b = rng.integers(2, 7, 2)
    p, q = (10.0 ** rng.integers(-300, -15, n) for n in (a, b))
    p[rng.integers(a)], q[rng.integers(b)] = 1.0, 1.0
    return rng, rng.integers(0, 3, (a, b)) / 3, p, q


@pytest.mark.parametrize("first", FIRST)
@each(seed=range(40))
def test_masses_below_rounding_are_transported(first, seed):
    rng, C, p, q = below_rounding(seed)
    tree = first_tree(C, p, q, first, rng)
    check_tree(tree)
    _, optimal, f, g = tree.simplex()
    assert optimal
    check_tree(tree)
    check_optimal(tree, f, g)


@pytest.mark.parametrize("first", FIRST)
def test_masses_below_rounding_leave_first_bases_strongly_feasible(first):
    """No entry is zero, so that an edge to a column need never be empty."""
    weak = []
    for seed in range(40):
        rng, C, p, q = below_rounding(seed)
        if not strongly_feasible(first_tree(C, p, q, first, rng)):
            weak.append(seed)
    assert not weak


@each(seed=range(20))
def test_northwest_corner_is_optimal_on_a_line(seed):
    rng = np.random.default_rng([3, seed])
    x, y = np.sort(rng.random(9)), np.sort(rng.random(7))
    tree = first_tree(np.abs(x[:, None] - y), rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(7)), "northwest")
    best, _, _ = linprog_transport(tree.C, tree.p, tree.q)
    assert np.sum(tree.plan() * tree.C) == pytest.approx(np.sum(best * tree.C), rel=0, abs=1e-12)
    assert tree.simplex()[0] == 0


# --- simplex ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", FIRST)
@each(seed=range(80))
def test_simplex_agrees_with_linprog(first, seed):
    rng, C, p, q = problem(seed, largest=6)
    tree = first_tree(C, p, q, first, rng)
    _, optimal, f, g = tree.simplex()
    plan, _, _ = linprog_transport(C, p, q)
    assert optimal
    check_tree(tree)
    check_optimal(tree, f, g)
    assert strongly_feasible(tree)
    assert np.sum(tree.plan() * C) == pytest.approx(np.sum(plan * C), rel=0, abs=1e-10)  # HiGHS's tolerance


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 40, 90])
@each(seed=range(3))
def test_uniform_marginals_are_assignments(first, n, seed):
    rng = np.random.default_rng([4, n, seed])
    C = cost(rng, n, n, seed)
    tree = first_tree(C, np.full(n, 1 / n), np.full(n, 1 / n), first, rng)
    _, optimal, f, g = tree.simplex()
    rows, columns = linear_sum_assignment(C)
    assert optimal
    check_optimal(tree, f, g)
    assert strongly_feasible(tree)
    assert np.sum(tree.plan() * C) == pytest.approx(C[rows, columns].mean(), rel=0, abs=1e-14)


@each(seed=range(60))
def test_trees_stay_strongly_feasible_after_every_single_pivot(seed):
    rng, C, p, q = problem(seed)
    tree = first_tree(C, p, q, FIRST[seed % 2], rng)
    value = np.inf
    for _ in range(200):
        _, optimal, _, _ = tree.simplex(max_pivots=1)
        check_tree(tree)
        assert strongly_feasible(tree)
        before, value = value, np.sum(tree.plan() * C)
        assert value <= before + 1e-15
        if optimal:
            break
    assert optimal


@pytest.mark.parametrize(("index", "n"), [(np.int8, 64), (np.int16, 64), (np.int16, 300)])
def test_the_width_of_the_edge_list_does_not_matter(index, n):
    """64 + 64 nodes are the most that int8 can number."""
    rng = np.random.default_rng(5)
    C, p, q = rng.random((n, n)), rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n))
    for first in FIRST:
        tree, wide = (first_tree(C, p, q, first, index=i) for i in (index, np.int32))
        one, two = tree.simplex(), wide.simplex()
        assert one[:2] == two[:2]
        assert np.array_equal(one[2], two[2])
        assert np.array_equal(tree.flow, wide.flow)
        assert np.array_equal(tree.child, wide.child)
        check_tree(tree)
        check_optimal(tree, *one[2:])


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("kind", ["line", "grid", "ring", "constant"])
def test_large_degenerate_transports_end(first, kind):
    """300 x 300 uniform masses with costs full of ties: no cycling, and not by way of the pivot limit."""
    n, rng = 300, np.random.default_rng(6)
    place = rng.permutation(n)
    apart = np.abs(np.subtract.outer(np.arange(n), place))
    if kind == "grid":
        C = np.abs(np.subtract.outer(np.arange(n) % 17, place % 17)) + np.abs(
            np.subtract.outer(np.arange(n) // 17, place // 17)
        )
    else:
        C = {"line": apart, "ring": np.minimum(apart, n - apart), "constant": np.ones((n, n))}[kind]
    tree = first_tree(C / C.max(), np.full(n, 1 / n), np.full(n, 1 / n), first)
    pivots, optimal, f, g = tree.simplex(max_pivots=100 * n)
    assert optimal
    assert pivots < 100 * n
    check_optimal(tree, f, g)
    assert np.sum(tree.plan() * tree.C) == pytest.approx(tree.C[linear_sum_assignment(tree.C)].mean(), rel=0, abs=1e-13)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1)])
@pytest.mark.parametrize("first", FIRST)
def test_one_row_or_column_leaves_no_choice(shape, first):
    rng = np.random.default_rng(7)
    C, p, q = rng.random(shape), rng.dirichlet(np.ones(shape[0])), rng.dirichlet(np.ones(shape[1]))
    tree = first_tree(C, p, q, first)
    pivots, optimal, f, g = tree.simplex()
    assert (pivots, optimal) == (0, True)
    np.testing.assert_allclose(tree.plan(), np.outer(p, q), rtol=0, atol=1e-15)
    np.testing.assert_allclose(f[:, None] + g, C, rtol=0, atol=1e-15)


def test_a_pivot_limit_leaves_a_feasible_tree():
    rng = np.random.default_rng(8)
    C, p, q = rng.random((30, 30)), rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(30))
    values = []
    for limit in (0, 1, 5, 20, 10**6):
        tree = first_tree(C, p, q, "northwest")
        pivots, optimal, _, _ = tree.simplex(max_pivots=limit)
        assert pivots <= limit
        assert optimal == (limit == 10**6)
        check_tree(tree)
        values.append(np.sum(tree.plan() * C))
    assert values == sorted(values, reverse=True)


@each(seed=range(20))
def test_a_loose_price_is_a_bound_on_the_loss(seed):
    rng = np.random.default_rng([9, seed])
    C, p, q = rng.random((20, 15)), rng.dirichlet(np.ones(20)), rng.dirichlet(np.ones(15))
    loose, best = first_tree(C, p, q, "northwest"), first_tree(C, p, q, "northwest")
    best.simplex()
    _, optimal, f, g = loose.simplex(tol=0.05)
    assert optimal
    assert (C - f[:, None] - g).min() >= -0.05
    assert 0 <= np.sum(loose.plan() * C) - np.sum(best.plan() * C) + 1e-15 <= 0.05


@each(seed=range(10))
def test_a_cost_that_lies_in_a_larger_table(seed):
    """Row i of the cost begins at i*ld: the kernel must not look beyond b columns."""
    rng = np.random.default_rng([10, seed])
    a, b, ld = 5, 4, 9
    table = np.full((a, ld), -1e6)
    table[:, :b] = rng.random((a, b))
    p, q = rng.dirichlet(np.ones(a)), rng.dirichlet(np.ones(b))
    for first in FIRST:
        tree, alone = first_tree(table[:, :b], p, q, first), first_tree(table[:, :b].copy(), p, q, first)
        assert np.array_equal(tree.flow, alone.flow)
        _, optimal, f, g = tree.simplex()
        assert optimal
        check_optimal(tree, f, g)
        pot = np.empty(a + b)
        value, solved, _, _ = _engine.solve_one(tree.C, p, q, tree.edges, PRICE, pot, engine_run())
        assert solved
        assert value == pytest.approx(np.sum(tree.plan() * tree.C), rel=0, abs=1e-15)
        assert np.array_equal(pot, np.concatenate([f, g]))


# --- other marginals for an old tree -----------------------------------------------------------------------------


@each(seed=range(120))
def test_repair_after_changed_marginals(seed):
    rng, C, p, q = problem(seed)
    tree = first_tree(C, p, q, FIRST[seed % 2], rng)
    tree.simplex()
    kinds = MARGINALS[(seed // 2) % 4], MARGINALS[(seed // 8) % 4]
    far = seed % 3 == 0
    new_p, new_q = marginal(rng, p.size, kinds[0]), marginal(rng, q.size, kinds[1])
    if not far:
        new_p, new_q = 0.9 * p + 0.1 * new_p, 0.9 * q + 0.1 * new_q
    below = tree.change_marginals(new_p, new_q)
    plan = tree.plan()  # right marginals, perhaps negative
    np.testing.assert_allclose(plan.sum(axis=1), new_p, rtol=0, atol=2e-15)
    np.testing.assert_allclose(plan.sum(axis=0), new_q, rtol=0, atol=2e-15)
    assert below == pytest.approx(np.minimum(plan, 0.0).sum(), rel=1e-12, abs=0)
    if below < 0:
        _, feasible = tree.repair()
        assert feasible
    check_tree(tree)
    _, optimal, f, g = tree.simplex()
    assert optimal
    check_tree(tree)
    check_optimal(tree, f, g)


@each(seed=range(40))
def test_repair_with_another_cost_too(seed):
    """The old tree is then neither primal nor dual feasible; repair may give up, but must not spoil the tree."""
    rng, C, p, q = problem(seed)
    tree = first_tree(C, p, q, FIRST[seed % 2], rng)
    tree.simplex()
    tree.C = rng.random(C.shape)
    if tree.change_marginals(rng.dirichlet(np.ones(p.size)), rng.dirichlet(np.ones(q.size))) < 0:
        _, feasible = tree.repair()
        if not feasible:
            return
    check_tree(tree)
    _, optimal, f, g = tree.simplex()
    assert optimal
    check_optimal(tree, f, g)


@each(seed=range(40))
def test_repair_alone_is_optimal_when_only_the_marginals_changed(seed):
    """A dual simplex keeps the potentials feasible, so nothing is left to do for the primal one."""
    rng = np.random.default_rng([11, seed])
    a, b = rng.integers(2, 9, 2)
    tree = first_tree(rng.random((a, b)), rng.dirichlet(np.ones(a)), rng.dirichlet(np.ones(b)), "greedy")
    tree.simplex()
    if tree.change_marginals(rng.dirichlet(np.ones(a)), rng.dirichlet(np.ones(b))) < 0:
        assert tree.repair()[1]
    assert tree.simplex()[:2] == (0, True)


# --- many transports over one table -------------------------------------------------------------------------------


@each(last=(0, 1, 3))
def test_full_rows_that_leave_out_the_last_states(last, monkeypatch):
    """As by the general kernel, which the other tests compare with linear programs."""
    rng = np.random.default_rng([43, last])
    P, Q = np.zeros((36, 36)), rng.dirichlet(np.ones(34), 34)
    P[:, : 36 - last] = rng.dirichlet(np.ones(36 - last), 36)
    chains = MarkovChain(P, rewards=rng.random(36)), MarkovChain(Q, rewards=rng.random(34))
    dense = distance(*chains, discount=0.9, tol=1e-9)
    assert dense.coupling.transports.core.dense
    with monkeypatch.context() as patch:  # the cases of one test share its monkeypatch
        patch.setattr(transports, "DENSE_FROM", (10**6, 10**6))
        general = distance(*chains, discount=0.9, tol=1e-9)
    assert not general.coupling.transports.core.dense
    assert max(dense.lower, general.lower) <= min(dense.upper, general.upper)
    np.testing.assert_allclose(dense.values, general.values, atol=2e-9)


@each(seed=range(10))
def test_rows_are_taken_along_a_shortest_spanning_tree(seed):
    rng = np.random.default_rng([30, seed])
    Z = np.repeat(rng.random((4, 12)), 5, axis=0) * rng.uniform(0.9, 1.1, (20, 12))
    order, near = _engine.nearest_first(Z, engine_run())
    points = np.vstack([Z, Z.mean(axis=0)])  # near = -1 is the last
    lengths = np.abs(points[:, None] - points).sum(axis=2)
    assert lengths[np.arange(20), near].sum() == pytest.approx(minimum_spanning_tree(lengths).sum(), rel=1e-12)
    place = np.append(np.argsort(order), -1)
    assert (place[near] < place[:20]).all()


def profiles(Q, W):
    return _engine.profiles(Successors.of(Q), W, engine_run()).reshape(len(Q), -1)


def test_profiles_are_probabilities_of_low_costs():
    """They mix like rows. Their distance is that on a line, and for the cost 1[x ≠ y] that of total variation."""
    rng, points = np.random.default_rng(31), np.linspace(0.0, 1.0, 20)
    Q, line = rng.dirichlet(np.ones(20), 7), np.repeat(points[None], 3, axis=0)
    nearly = (1 - 1e-12) * np.eye(20) + 1e-12 / 20  # a row needs all states
    states = profiles(nearly, line)
    assert np.minimum(states, 1 - states).max() < 1e-11
    np.testing.assert_allclose(
        np.abs(states[:, None] - states).mean(axis=2), np.abs(points[:, None] - points), atol=0.02
    )
    np.testing.assert_allclose(profiles(Q, line), Q @ states, rtol=0, atol=1e-11)
    differ = profiles(Q, 1.0 - np.eye(20).repeat(32, axis=0))  # as many lines of each state
    lengths, masses = (np.abs(Z[:, None] - Z).sum(axis=2) for Z in (differ, Q))
    np.testing.assert_allclose(lengths, masses * differ.shape[1] / 20, rtol=0.2)


def test_transports_between_full_rows_begin_with_similar_trees():
    """Fewer pivots than alone, from nothing, for another table and for other rows; optimal, the same by two threads."""
    rng = np.random.default_rng(11)
    n, shape = 60, (16, 8)
    tables, (P, Q) = rng.random((2, n, n)), (rng.dirichlet(np.ones(n), m) for m in shape)
    keys = np.arange(n), np.arange(n)
    items = Items.of(Successors.of(P), Successors.of(Q), n, keys)
    value, pivots = np.empty(1), 0
    for k in range(128):
        alone = Transports(items._replace(listed=np.array([k])), 1)
        assert alone.solve(tables[0].ravel(), value, PRICE)
        pivots += alone.pivots
    values, before = np.empty((2, 128)), [None, None]
    for step in range(3):
        if step == 2:  # some rows change a little, others entirely
            P[::2], Q[1::2] = 0.99 * P[::2] + 0.01 / n, rng.dirichlet(np.ones(n), 4)
            items = Items.of(Successors.of(P), Successors.of(Q), n, keys)
        W = tables[min(step, 1)]
        for threads in (1, 2):
            transports = before[threads - 1] if step == 1 else begin_with(items, threads, before[threads - 1])
            done = transports.pivots
            assert transports.solve(W.ravel(), values[threads - 1], PRICE)
            assert transports.pivots - done < 0.8 * pivots
            before[threads - 1] = transports
        np.testing.assert_array_equal(*values)
        assert _engine.first_unfit(items, transports.trees, 1e-12, engine_run()) == (0, 0)
        assert transports.trees.flow.min() >= 0.0
        for k in range(128):  # potentials that are feasible and worth as much
            f, g = transports.potentials(k, W.ravel())
            assert (W - f[:, None] - g).min() >= -2 * PRICE
            assert P[k // 8] @ f + Q[k % 8] @ g == pytest.approx(values[0, k], rel=0, abs=1e-13)


@pytest.mark.parametrize("chunk", [1, 10**9])
def test_first_bases_take_successors_by_their_keys(chunk, monkeypatch):
    """Few entries and many are sorted in two ways; ties of keys go by the number of the state."""
    monkeypatch.setattr(transports, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.choice(20, rng.integers(1, 9), replace=False)) for _ in range(30)]
    indptr, key = np.cumsum([0, *map(len, rows)]), rng.integers(0, 5, 20).astype(float)
    order = transports._order(Successors(indptr, np.concatenate(rows), np.ones(indptr[-1])), key)
    for k, row in enumerate(rows):
        taken = row[order[indptr[k] : indptr[k + 1]]].tolist()
        assert taken == sorted(row.tolist(), key=lambda state: (key[state], state))


@pytest.mark.parametrize("cost", ["random", "rewards"])
def test_full_rows_give_the_same_bits_at_every_level_and_for_any_number_of_threads(cost, monkeypatch):
    """Values, plans, potentials and gradients, also after a start from other kernels."""
    rng, n = np.random.default_rng(44), (40, 37)
    P, Q, Q_new = rng.dirichlet(np.ones(n[0]), n[0]), *rng.dirichlet(np.ones(n[1]), (2, n[1]))
    rewards = [rng.random(k) for k in n]
    C = rng.random(n) if cost == "random" else np.abs(np.subtract.outer(*rewards))
    found = []
    for threads in at_every_level(monkeypatch):
        results, warm = [], None
        for kernel in (Q, 0.99 * Q + 0.01 * Q_new, Q_new):
            chains = MarkovChain(P, rewards=rewards[0]), MarkovChain(kernel, rewards=rewards[1])
            warm = distance(*chains, C, discount=0.9, tol=1e-8, solver=Exact(threads=threads), warm=warm)
            assert warm.coupling.transports.core.dense
            trees, gradient = warm.coupling.transports.trees, warm.gradient
            slopes = gradient.transition_x, gradient.transition_y, gradient.cost
            arrays = warm.values, *trees, *warm.potentials(3, 5), *slopes
            results += [warm.lower, warm.upper, *(np.asarray(array).tobytes() for array in arrays)]
        found.append(results)
    assert len(found) >= 2
    assert all(other == found[0] for other in found[1:])
