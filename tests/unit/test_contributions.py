"""Where the cost is paid sums to the distance; causes are those of the first-order formula and of the gradient."""

import json

import numpy as np
import pytest

import diffbisim as db
from oracles.bellman import bellman, transport


def pair(seed, n=4, rows=(1,), start=True):
    """Two chains on the same states that differ in some rows, and perhaps in their starts."""
    rng = np.random.default_rng(seed)
    P, r = rng.dirichlet(np.ones(n), n), rng.random(n)
    Q = P.copy()
    Q[list(rows)] = rng.dirichlet(np.ones(n), len(rows))
    first, second = rng.dirichlet(np.ones(n), 2)
    return (
        db.MarkovChain(P, initial=first, rewards=r, names="abcdefgh"[:n]),
        db.MarkovChain(Q, initial=second if start else first, rewards=r, names="abcdefgh"[:n]),
    )


@pytest.mark.parametrize("how", [
    {}, {"solver": "lp"}, {"solver": "sinkhorn-policy"}, {"criterion": "average"}, {"discount": 0.5},
])  # fmt: skip
def test_what_is_paid_sums_to_the_distance(how):
    X, Y = pair(0)
    found = db.distance(X, Y, **how)
    parts = found.contributions()
    assert parts.paid.sum() == pytest.approx(found.value, abs=1e-12)
    assert parts.by_x.sum() == pytest.approx(found.value, abs=1e-12)
    assert parts.by_y.sum() == pytest.approx(found.value, abs=1e-12)
    np.testing.assert_allclose(parts.paid, found.occupancy * found.problem.cost, atol=found.gap + 1e-9)
    records = parts.records("pairs")
    assert sum(record["paid"] for record in records) == pytest.approx(found.value, abs=1e-12)
    assert records == sorted(records, key=lambda record: -record["paid"])


def test_chains_of_other_sizes_are_paid_for_too_and_have_no_rows():
    X, _ = pair(0)
    Y = db.MarkovChain([[0.5, 0.5], [0.2, 0.8]], rewards=[0, 1])
    found = db.distance(X, Y)
    parts = found.contributions()
    assert parts.paid.sum() == pytest.approx(found.value, abs=1e-12)
    with pytest.raises(db.InvalidArgument, match="do not have the same states"):
        parts.records("rows")
    with pytest.raises(db.InvalidArgument, match="what is 'cells'"):
        parts.records("cells")
    for most in (-1, 1.5):
        with pytest.raises(db.InvalidArgument, match=r"most is .*; it must be a non-negative integer"):
            parts.records("pairs", most)
    with pytest.raises(db.InvalidArgument, match="not a metric"):
        db.distance(X, X, np.ones((4, 4)) + np.eye(4)).contributions().records()
    with pytest.raises(db.InvalidArgument, match="contributions are not available"):
        db.bisimulation(db.examples.imitation_chain(), cost="indicator", discount=0.9).contributions()


def test_rows_are_those_of_the_first_order_formula():
    X, Y = pair(1, rows=(0, 2))
    γ = 0.9
    middle, start = (X.transition + Y.transition) / 2, (X.initial + Y.initial) / 2
    cost = np.abs(np.subtract.outer(X.rewards, X.rewards))
    U = (1 - γ) * bellman(middle, middle, start, start, cost, γ).V
    occupancy = np.linalg.solve(np.eye(4) - γ * middle.T, (1 - γ) * start)
    parts = db.distance(X, Y, discount=γ).contributions()
    rows = {record["state"]: record for record in parts.records("rows")}
    assert set(rows) == {"a", "c", "(start)"}
    for name, x in (("a", 0), ("c", 2)):
        W = (U * transport(U, X.transition[x], Y.transition[x])[0]).sum()
        assert rows[name]["apart"] == pytest.approx(W, abs=1e-8)
        assert rows[name]["size"] == pytest.approx(γ / (1 - γ) * occupancy[x] * W, abs=1e-8)
    assert rows["(start)"]["size"] == pytest.approx((U * transport(U, X.initial, Y.initial)[0]).sum(), abs=1e-8)


def test_first_order_is_the_limit_of_small_changes():
    X, Y = pair(2, rows=(0, 1, 2, 3))
    near = db.MarkovChain(X.transition + 1e-4 * (Y.transition - X.transition), initial=X.initial, rewards=X.rewards,
                          names=X.names)  # fmt: skip
    found = db.distance(X, near, tol=1e-12)
    assert found.contributions().rows.size.sum() == pytest.approx(found.value, rel=1e-3)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_integrated_gradient_sums_to_the_distance(sparse):
    X, Y = pair(3, n=5, rows=(2,))
    if sparse:
        from scipy.sparse import csr_array

        X, Y = (db.MarkovChain(csr_array(C.transition), initial=C.initial, rewards=C.rewards) for C in (X, Y))
    found = db.distance(X, Y)
    path = found.contributions().path
    assert path.transitions.sum() + path.starts.sum() == pytest.approx(found.value, abs=1e-12)
    assert path.error <= 0.01 * found.value
    by_row = np.asarray(path.transitions.sum(axis=1)).ravel()
    assert np.abs(np.delete(by_row, 2)).max() == 0.0
    finer = found.contributions(nodes=32).path
    assert by_row[2] == pytest.approx(np.asarray(finer.transitions.sum(axis=1)).ravel()[2], abs=0.02 * found.value)
    top = found.contributions().records("transitions", 3)
    assert all(record["state"] in (X.name_of(2), "(start)") for record in top)
    assert all(record["x"] != record["y"] for record in top)


def test_two_states_have_a_closed_form():
    """One row differs by p: d = U(0,1) times the discounted flow, and all of it is that row."""
    γ, p = 0.8, 0.3
    X = db.MarkovChain([[1.0, 0.0], [0.0, 1.0]], rewards=[0, 1])
    Y = db.MarkovChain([[1 - p, p], [0.0, 1.0]], rewards=[0, 1])
    found = db.distance(X, Y, discount=γ)
    assert found.value == pytest.approx(γ * p / (1 - γ * (1 - p)), abs=1e-9)
    path = found.contributions(nodes=24).path
    assert path.error <= 1e-9  # smooth on the way
    assert path.transitions[0].sum() == pytest.approx(found.value, abs=1e-9)


def test_tables_for_people_and_for_programs():
    X, Y = pair(4)
    parts = db.distance(X, Y).contributions()
    text = str(parts)
    assert "which rows cause the distance" in text
    assert "where the cost is paid" in text
    json.dumps([parts.records(what) for what in ("rows", "pairs", "x", "y", "transitions")])
    assert len(parts.records("pairs", 2)) == 2
    ax = db.plot.contributions(parts)
    assert [bar.get_width() for bar in ax.patches] == [r["size"] for r in parts.records("rows")][::-1]
    Z = db.MarkovChain([[1.0]], rewards=[0.0])
    assert "paid" in db.plot.contributions(db.distance(X, Z)).get_xlabel()
