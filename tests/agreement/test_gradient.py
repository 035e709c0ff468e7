"""Every gradient against finite differences of the LP's value, and against what convexity says at kinks.

Away from ties the distance is smooth and central differences decide. At ties it has two kinds of kinks. Where only
the potentials are open (degenerate rows, d = 0) it is locally a maximum, where only the plans are open (bisimilar
states) a minimum of smooth functions, one for every choice: the gradient has to lie between the one-sided
derivatives. Two statements hold globally, ties or not: d is concave in the cost and convex in each start.
"""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import each
from diffbisim.solvers import Exact

FIELDS = ("transition_x", "transition_y", "cost", "initial_x", "initial_y")
DISCOUNTS = (0.3, 0.9, 0.95)

#: Certified gap of the results under test: their gradients are then those of an optimal policy.
TOL = 1e-10


# --- data as a dictionary of arrays, so that one of them can be moved -------------------------------------


def dense_data(seed, n_x=4, n_y=3):
    rng = np.random.default_rng([1, seed])
    return {
        "transition_x": rng.dirichlet(np.ones(n_x), n_x),
        "transition_y": rng.dirichlet(np.ones(n_y), n_y),
        "cost": 0.1 + rng.random((n_x, n_y)),
        "initial_x": rng.dirichlet(np.ones(n_x)),
        "initial_y": rng.dirichlet(np.ones(n_y)),
        "discount": DISCOUNTS[seed % 3],
    }


def sparse_data(seed, n_x=5, n_y=4):
    """Random supports of one to three successors, random probabilities; the starts miss a state."""
    rng, data = np.random.default_rng([2, seed]), dense_data(seed, n_x, n_y)
    for name, n in (("x", n_x), ("y", n_y)):
        P = np.zeros((n, n))
        for row in P:
            support = rng.choice(n, rng.integers(1, 4), replace=False)
            row[support] = rng.dirichlet(np.ones(support.size))
        data[f"transition_{name}"] = P
        data[f"initial_{name}"] = np.append(rng.dirichlet(np.ones(n - 1)), 0.0)
    return data


def chains(data, form=np.asarray):
    return [db.MarkovChain(form(data[f"transition_{s}"]), initial=data[f"initial_{s}"]) for s in "xy"]


def solve(data, form=np.asarray, tol=TOL, **options):
    return db.distance(*chains(data, form), data["cost"], data["discount"], tol=tol, **options)


def lp_value(data):
    return solve(data, solver="lp", tol=None).value


def moved(data, field, direction, step):
    return {**data, field: data[field] + step * direction}


def inside(rng, data, field):
    """A direction along which the field stays admissible, both ways: relative to the entries, sums kept."""
    at = data[field]
    z = rng.uniform(-1, 1, at.shape)
    return at * z if field == "cost" else at * (z - np.sum(at * z, axis=-1, keepdims=True))


def central(data, field, direction, step=1e-4):
    """Error: step² times the third derivative (1e-6 of the first at γ = 0.95), and 1e-13 / step from the LP."""
    ends = [lp_value(moved(data, field, direction, s)) for s in (step, -step)]
    return (ends[0] - ends[1]) / (2 * step)


def one_sided(data, base, field, direction, step=1e-5):
    """Forward difference from ``base``, extrapolated: error step², and 1e-13 / step from the LP."""
    slope = [(lp_value(moved(data, field, direction, s)) - base) / s for s in (step, step / 2)]
    return 2 * slope[1] - slope[0]


def array(matrix):
    return matrix.toarray() if sp.issparse(matrix) else matrix


def slope(result, field, direction):
    return float(np.sum(array(getattr(result.gradient, field)) * direction))


# --- without ties: central differences --------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS)
@each(seed=range(6))
@pytest.mark.parametrize("make", [dense_data, sparse_data])
def test_gradient_is_the_derivative_of_the_lp_value(make, seed, field):
    data = make(seed)
    direction = inside(np.random.default_rng([3, seed]), data, field)
    expected = central(data, field, direction)
    assert slope(solve(data), field, direction) == pytest.approx(expected, rel=1e-5, abs=1e-8)


@each(seed=range(6))
def test_gradient_of_the_default_tolerance_is_as_good(seed):
    data = dense_data(seed, 5, 5)
    tight, default = solve(data).gradient, solve(data, tol=None).gradient
    for field in FIELDS:  # policies within 1e-8 of optimal: the optimal one, when there are no ties
        np.testing.assert_allclose(getattr(default, field), getattr(tight, field), rtol=0, atol=1e-6)


@each(seed=range(6))
@pytest.mark.parametrize("make", [dense_data, sparse_data])
def test_gradient_agrees_entry_by_entry_with_that_of_the_lp(make, seed):
    data = make(seed)
    exact, lp = solve(data), solve(data, solver="lp", tol=None)
    for field in FIELDS:
        # HiGHS has plans to 1e-10 of a pair's occupancy, and potentials divide by 1-γ
        np.testing.assert_allclose(getattr(exact.gradient, field), getattr(lp.gradient, field), rtol=0, atol=1e-7)


# --- off the support: one-sided differences ----------------------------------------------------------------


@pytest.mark.parametrize("side", ["x", "y"])
@each(seed=range(3))
def test_entries_off_the_support_are_derivatives_for_mass_that_enters(seed, side):
    data, field = sparse_data(seed, 4, 4), f"transition_{side}"
    gradient, base = getattr(solve(data).gradient, field), lp_value(data)
    for s, t in np.argwhere(data[field] == 0):
        direction = np.zeros_like(data[field])
        direction[s] = -data[field][s]
        direction[s, t] += 1.0
        assert gradient[s, t] == pytest.approx(one_sided(data, base, field, direction), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("side", ["x", "y"])
@each(seed=range(6))
def test_entries_of_the_start_off_its_support(seed, side):
    data, field = sparse_data(seed), f"initial_{side}"
    gradient, base = getattr(solve(data).gradient, field), lp_value(data)
    for t in np.flatnonzero(data[field] == 0):
        direction = np.eye(data[field].size)[t] - data[field]
        assert gradient[t] == pytest.approx(one_sided(data, base, field, direction), rel=1e-5, abs=1e-6)


@each(seed=range(4))
def test_dirac_starts(seed):
    """All entries but one are off the support; d is linear in one start while the other is a state."""
    data = dense_data(seed)
    data["initial_x"], data["initial_y"] = np.eye(4)[1], np.eye(3)[2]
    result = solve(data)
    np.testing.assert_allclose(result.gradient.initial_x, result.values[:, 2] - result.values[1, 2], atol=1e-9)
    np.testing.assert_allclose(result.gradient.initial_y, result.values[1] - result.values[1, 2], atol=1e-9)


# --- kinks ---------------------------------------------------------------------------------------------------


def same_chain(seed):
    """d = 0: potentials open, plans not (the table is positive off the diagonal)."""
    data = dense_data(seed, 4, 4)
    data["transition_y"], data["initial_y"] = data["transition_x"], data["initial_x"]
    r = np.random.default_rng([4, seed]).random(4)
    return {**data, "cost": np.abs(r[:, None] - r)}


def degenerate_rows(seed):
    """Rows of integer weights: sums of some x-entries equal sums of some y-entries. Random costs."""
    rng, data = np.random.default_rng([5, seed]), dense_data(seed, 4, 4)
    for name in ("transition_x", "transition_y", "initial_x", "initial_y"):
        weights = rng.integers(1, 3, data[name].shape).astype(float)
        data[name] = weights / weights.sum(axis=-1, keepdims=True)
    return data


def bisimilar_states(seed):
    """States 0 and 1 of X are alike: plans open, potentials not."""
    data = dense_data(seed)
    data["transition_x"][1], data["cost"][1] = data["transition_x"][0], data["cost"][0]
    return data


def integer_costs(seed):
    data = dense_data(seed)
    return {**data, "cost": np.random.default_rng([6, seed]).integers(0, 3, data["cost"].shape).astype(float)}


@pytest.mark.parametrize("field", FIELDS)
@each(seed=range(2))
@pytest.mark.parametrize("make", [same_chain, degenerate_rows, bisimilar_states, integer_costs])
def test_gradient_lies_between_the_one_sided_derivatives(make, seed, field):
    data = make(seed)
    direction = inside(np.random.default_rng([7, seed]), data, field)
    base = lp_value(data)
    ends = one_sided(data, base, field, direction), -one_sided(data, base, field, -direction)
    slack = 1e-6 + 1e-5 * max(map(abs, ends))  # that of the differences
    assert min(ends) - slack <= slope(solve(data), field, direction) <= max(ends) + slack


@pytest.mark.parametrize("make", [dense_data, sparse_data, degenerate_rows, bisimilar_states, same_chain])
@each(seed=range(3))
def test_occupancy_is_a_supergradient_in_the_cost(make, seed):
    """d(c') ≤ d(c) + <m, c' - c> for every c', however far: the old coupling is still a coupling."""
    data, rng = make(seed), np.random.default_rng([8, seed])
    result = solve(data)
    for other in (rng.random(data["cost"].shape), np.eye(*data["cost"].shape), data["cost"] ** 3):
        bound = result.value + np.sum(result.gradient.cost * (other - data["cost"]))
        assert lp_value({**data, "cost": other}) <= bound + 2 * TOL


@pytest.mark.parametrize("make", [dense_data, sparse_data, degenerate_rows, bisimilar_states, same_chain])
@each(seed=range(3))
@pytest.mark.parametrize("side", ["x", "y"])
def test_start_gradient_is_a_subgradient(make, seed, side):
    """d(ν') ≥ d(ν) + <∂d/∂ν, ν' - ν> for every ν', whatever its support: potentials stay feasible."""
    data, rng, field = make(seed), np.random.default_rng([9, seed]), f"initial_{side}"
    result, n = solve(data), data[field].size
    for other in (rng.dirichlet(np.ones(n)), np.eye(n)[-1]):
        bound = result.value + np.sum(getattr(result.gradient, field) * (other - data[field]))
        assert lp_value({**data, field: other}) >= bound - 2 * TOL


# --- gauges, forms, options ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("make", [dense_data, sparse_data, degenerate_rows, same_chain])
@each(seed=range(3))
def test_every_row_is_centered_under_its_distribution(make, seed, form):
    data = make(seed)
    gradient = solve(data, form).gradient
    for field in ("transition_x", "transition_y", "initial_x", "initial_y"):
        means = np.sum(data[field] * array(getattr(gradient, field)), axis=-1)
        np.testing.assert_allclose(means, 0.0, atol=1e-13)


@pytest.mark.parametrize("forms", [(sp.csr_array, sp.csr_array), (np.asarray, sp.csr_array)])
@pytest.mark.parametrize("make", [dense_data, sparse_data])
@each(seed=range(3))
def test_sparse_gradient_is_the_dense_one_on_the_possible_transitions(make, seed, forms):
    data = make(seed)
    X, Y = (chains(data, form)[k] for k, form in enumerate(forms))
    one, two = solve(data).gradient, db.distance(X, Y, data["cost"], data["discount"], tol=TOL).gradient
    for field in ("transition_x", "transition_y"):
        got, possible = getattr(two, field), data[field] > 0
        assert sp.issparse(got)
        assert got.nnz == possible.sum()
        np.testing.assert_allclose(got.toarray(), getattr(one, field) * possible, rtol=0, atol=1e-13)
    for field in ("cost", "initial_x", "initial_y"):
        np.testing.assert_allclose(getattr(two, field), getattr(one, field), rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [dense_data, sparse_data])
@each(seed=range(4))
def test_reachable_pairs_give_the_same_gradient_where_it_is_defined(make, seed):
    data = make(seed)
    data["initial_x"], data["initial_y"] = (np.eye(data[f"initial_{s}"].size)[0] for s in "xy")
    full, part = solve(data), solve(data, solver=Exact(reachable=True))
    for side in "xy":
        field, possible = f"transition_{side}", data[f"transition_{side}"] > 0
        got, expected = (array(getattr(r.gradient, field)) for r in (part, full))
        np.testing.assert_allclose(got[possible], expected[possible], rtol=0, atol=1e-8)  # two runs, each to TOL
    np.testing.assert_allclose(part.gradient.cost, full.gradient.cost, rtol=0, atol=1e-12)


@each(seed=range(6))
def test_reachable_never_invents_numbers_off_the_support(seed):
    """Where the table was not computed a potential is unknown: NaN (or the right number), not a wrong one."""
    data = unreached(seed)
    full, part = solve(data), solve(data, solver=Exact(reachable=True))
    got = [part.gradient.initial_x, part.gradient.initial_y, *part.potentials(0, 0)]
    expected = [full.gradient.initial_x, full.gradient.initial_y, *full.potentials(0, 0)]
    for mine, theirs in zip(got, expected, strict=True):
        mine, theirs = mine - mine[0], theirs - theirs[0]  # potentials: up to a constant
        known = ~np.isnan(mine)
        np.testing.assert_allclose(mine[known], theirs[known], rtol=0, atol=1e-7)


@each(seed=range(3))
def test_reachable_and_lump_together(seed):
    data = unreached(seed)
    full, part = solve(data), solve(data, solver=Exact(reachable=True), lump=True)
    for side in "xy":
        field, possible = f"transition_{side}", data[f"transition_{side}"] > 0
        got, expected = (array(getattr(r.gradient, field)) for r in (part, full))
        np.testing.assert_allclose(got[possible], expected[possible], rtol=0, atol=1e-8)
        field, possible = f"initial_{side}", data[f"initial_{side}"] > 0
        got, expected = (getattr(r.gradient, field) for r in (part, full))
        np.testing.assert_allclose(got[possible], expected[possible], rtol=0, atol=1e-8)


def unreached(seed):
    """The last state of each chain is never entered, from a start in state 0."""
    data = dense_data(seed, 4, 4)
    for side in "xy":
        P = data[f"transition_{side}"]
        P[:, -1] = 0
        data[f"transition_{side}"] = P / P.sum(axis=1, keepdims=True)
        data[f"initial_{side}"] = np.eye(4)[0]
    return data


@each(seed=range(6))
def test_lumping_keeps_the_gradient_where_there_is_nothing_to_merge(seed):
    data = dense_data(seed)
    plain, lumped = solve(data).gradient, solve(data, lump=True).gradient
    for field in FIELDS:
        np.testing.assert_allclose(getattr(lumped, field), getattr(plain, field), rtol=0, atol=1e-8)


@each(seed=range(6))
def test_gradient_after_lumping_is_the_derivative_of_the_lp_value(seed):
    """Bisimilar states in X make kinks in X's kernel only: d is smooth in Y, and in X along symmetric directions."""
    data, rng = bisimilar_states(seed), np.random.default_rng([10, seed])
    result = solve(data, lump=True)
    for field in ("transition_y", "initial_y", "initial_x"):
        direction = inside(rng, data, field)
        expected = central(data, field, direction)
        assert slope(result, field, direction) == pytest.approx(expected, rel=1e-5, abs=1e-8)
    direction = inside(rng, data, "transition_x")
    direction[1] = direction[0]
    expected = central(data, "transition_x", direction)
    assert slope(result, "transition_x", direction) == pytest.approx(expected, rel=1e-5, abs=1e-8)


@each(seed=range(4))
def test_potentials_add_up_to_the_gradient(seed):
    """The definition, Σ_y m(x,y) γ f_xy(x') and its mirror image, from the public parts of the result."""
    data = sparse_data(seed)
    result, γ = solve(data), data["discount"]
    m, (n_x, n_y) = result.occupancy, result.problem.shape
    f = np.array([[result.potentials(x, y)[0] for y in range(n_y)] for x in range(n_x)])
    g = np.array([[result.potentials(x, y)[1] for y in range(n_y)] for x in range(n_x)])
    by_x, by_y = γ * np.einsum("xy,xyi->xi", m, f), γ * np.einsum("xy,xyj->yj", m, g)
    by_x -= np.sum(data["transition_x"] * by_x, axis=1, keepdims=True)
    by_y -= np.sum(data["transition_y"] * by_y, axis=1, keepdims=True)
    np.testing.assert_allclose(result.gradient.transition_x, by_x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.gradient.transition_y, by_y, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(result.gradient.cost, m)


@cache
def scaled(k):
    data = dense_data(1)
    return solve({**data, "cost": k * data["cost"]}).gradient


@pytest.mark.parametrize("k", [1e-12, 1e12])
@pytest.mark.parametrize("field", FIELDS)
def test_gradient_scales_with_the_cost(k, field):
    unit = 1.0 if field == "cost" else k
    np.testing.assert_allclose(
        getattr(scaled(k), field), unit * getattr(scaled(1.0), field), rtol=1e-9, atol=1e-10 * unit
    )
