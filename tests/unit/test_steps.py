"""The step rule on functions whose minima are known."""

import json

import numpy as np
import pytest

from cases import each
from diffbisim.common.errors import InvalidArgument
from diffbisim.learning.optimize.checkpoint import pack, unpack
from diffbisim.learning.optimize.steps import PolyakLevel


def sharp(seed, n=5, floor=0.0):
    """F(θ) = floor + ‖A (θ - θ*)‖₁ with its minimum known, and a subgradient."""
    rng = np.random.default_rng(seed)
    A, best = rng.normal(size=(2 * n, n)), rng.normal(size=n)
    return lambda t: (floor + np.abs(A @ (t - best)).sum(), A.T @ np.sign(A @ (t - best)))


def minimize(objective, rule, steps, start=5):
    theta = np.zeros(start)
    for _ in range(steps):
        value, g = objective(theta)
        theta = theta - rule.length(value, g @ g, np.abs(g).max()) * g
    return rule.best


def test_absolute_value_is_solved_in_one_step():
    rule = PolyakLevel(attainable=True, cap=10.0)
    theta = -2.0
    theta -= rule.length(abs(theta - 1.5), 1.0, 1.0) * np.sign(theta - 1.5)
    assert theta == 1.5


@each(seed=range(5))
def test_attainable_minimum_is_reached_linearly(seed):
    assert minimize(sharp(seed), PolyakLevel(attainable=True), 300) <= 1e-9


@each(seed=range(5))
def test_attainable_minimum_is_reached_without_being_told(seed):
    assert minimize(sharp(seed), PolyakLevel(), 300) <= 1e-9


@each(seed=range(5))
def test_unknown_minimum_is_reached_by_the_level(seed):
    rule = PolyakLevel()
    found = minimize(sharp(seed, floor=0.3), rule, 600)
    assert found - 0.3 <= 1e-4
    assert rule.delta <= 1e-2  # and the rule knows that little is left


def test_a_step_is_capped():
    rule = PolyakLevel(attainable=True, cap=0.5)
    assert rule.length(100.0, 4.0, 2.0) == 0.25
    assert rule.length(100.0, 1e-320, 1e-160) == 0.5 / 1e-160


@pytest.mark.parametrize("slope", [0.0, -1.0, float("nan")])
def test_no_step_without_a_slope(slope):
    assert PolyakLevel(attainable=True).length(1.0, slope, 1.0) == 0.0


def test_resumed_run_is_the_same_bit_for_bit():
    objective, theta = sharp(3, floor=0.1), np.zeros(5)
    straight, resumed, arrays = PolyakLevel(), PolyakLevel(), {}
    for _ in range(50):
        value, g = objective(theta)
        resumed = unpack(json.loads(json.dumps(pack(resumed, "rule", arrays))), arrays)
        lengths = [rule.length(value, g @ g, np.abs(g).max()) for rule in (straight, resumed)]
        assert lengths[0] == lengths[1]
        theta = theta - lengths[0] * g
    assert straight == resumed


@pytest.mark.parametrize("options", [{"cap": 0.0}, {"patience": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(InvalidArgument):
        PolyakLevel(**options)
