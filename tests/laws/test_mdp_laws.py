"""Laws that metrics of MDPs obey, whatever the MDP."""

import numpy as np
import pytest

import diffbisim as db
from oracles import games

DISCOUNTS = (0.5, 0.9, 0.99)
KINDS = ("dense", "garnet", "deterministic")
CLOSE = 3e-8  # three tables, each known to 1e-8 of the largest cost


def three(seed):
    """Three random MDPs of different sizes with the same number of actions."""
    rng = np.random.default_rng([23, seed])
    made = (games.random_mdp(rng, n, 3, KINDS[seed % 3]) for n in (4, 3, 5))
    return [db.MDP(P, rewards=r, initial=rng.integers(len(r))) for P, r in made]


@pytest.mark.parametrize("actions", ["matched", "lax"])
@pytest.mark.parametrize("seed", range(6))
def test_metric_laws(seed, actions):
    M, N, K = three(seed)
    γ = DISCOUNTS[seed // 2]
    MN, NM, NK, MK = (db.distance(a, b, discount=γ, actions=actions) for a, b in ((M, N), (N, M), (N, K), (M, K)))
    assert np.abs(MN.values - NM.values.T).max() <= CLOSE
    assert MN.value == pytest.approx(NM.value, abs=CLOSE)
    for s, k in np.ndindex(*MK.values.shape):
        assert MK.values[s, k] <= (MN.values[s] + NK.values[:, k]).min() + CLOSE
    own = db.bisimulation(M, γ, actions)
    assert not own.values.diagonal().any()
    through = (own.values[:, :, None] + own.values[None, :, :]).min(axis=1)
    assert (own.values <= through + CLOSE).all()


@pytest.mark.parametrize("seed", range(6))
def test_order_of_the_three_metrics(seed):
    M, N, _ = three(seed)
    γ = DISCOUNTS[seed // 2]
    matched, lax, directed = (db.distance(M, N, discount=γ, actions=a).values for a in ("matched", "lax", "directed"))
    assert (lax <= matched + CLOSE).all()
    assert (directed <= lax + CLOSE).all()


@pytest.mark.parametrize("seed", range(3))
def test_zero_if_and_only_if_bisimilar(seed):
    """States of a random MDP are cloned: clones, and only they, are at distance zero."""
    rng = np.random.default_rng([29, seed])
    P, r = games.random_mdp(rng, 4, 2)
    clone = np.array([0, 1, 2, 3, 1, 3, 3])
    share = rng.random(7)
    share /= np.bincount(clone, weights=share)[clone]
    M = db.MDP(P[:, clone][:, :, clone] * share, rewards=r[clone])
    for actions in ("matched", "lax"):
        U = db.bisimulation(M, 0.9, actions)
        alike = np.equal.outer(clone, clone)
        assert U.values_upper[alike].max() <= 2e-8
        assert U.values_lower[~alike].min() > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_value_bounds_hold(seed):
    M, N, _ = three(seed)
    γ = DISCOUNTS[seed]
    v, w = (games.optimal_values(np.array(m.transition), m.rewards, γ) for m in (M, N))
    difference = np.subtract.outer(v, w)
    for actions in ("matched", "lax"):
        assert (np.abs(difference) <= db.distance(M, N, discount=γ, actions=actions).values_upper).all()
    assert (difference <= db.distance(M, N, discount=γ, actions="directed").values_upper).all()


def test_scale_of_the_rewards():
    M, N, _ = three(0)
    small = db.distance(M, N, discount=0.9)
    large = db.distance(*(db.MDP(m.transition, rewards=1e6 * m.rewards) for m in (M, N)), discount=0.9)
    assert large.values == pytest.approx(1e6 * small.values, abs=2e-2)
    shifted = db.distance(*(db.MDP(m.transition, rewards=m.rewards + 5.0) for m in (M, N)), discount=0.9)
    assert np.abs(shifted.values - small.values).max() <= CLOSE
