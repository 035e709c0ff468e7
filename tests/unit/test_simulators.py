"""Parameters of simulators: found again, with errors like those of the best estimate there is."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidArgument, InvalidData


def ornstein_uhlenbeck(parameters, rng, n=60):
    """dx = -θ x dt + dW in steps of 0.2, from 1."""
    return db.LinearGaussian(np.exp(-0.2 * parameters[0]), 0.4, start=1.0).sample(n, 15, rng)


def test_the_drift_of_an_ornstein_uhlenbeck_process_is_found():
    θ = 2.0
    found = db.fit_simulator(ornstein_uhlenbeck([θ], 1), ornstein_uhlenbeck, 1.2, splits=4, n_states=12)
    assert found.lower[0] < θ < found.upper[0]
    assert abs(found.parameters[0] - θ) < 4 * found.standard_errors[0]
    a = np.exp(-0.2 * θ)
    least = np.sqrt((1 - a**2) / 900) / (0.2 * a)  # of least squares, by the delta method
    assert least / 2 < found.standard_errors[0] < 6 * least


def test_coefficients_of_a_linear_gaussian_process_are_found():
    """Slope, shift and noise, from elsewhere; errors are held against those of least squares."""
    true = db.LinearGaussian(0.7, 0.4, shift=0.3, start=1.0, spread=0.3)
    data = true.sample(60, 15, 3)
    found = db.fit_simulator(data, db.LinearGaussian(0.5, 0.6), splits=4, n_states=12, tol=0.01)
    assert (np.abs(found.parameters - [0.7, 0.3, 0.4]) < 4 * found.standard_errors).all()
    assert (found.lower < [0.7, 0.3, 0.4]).all()
    assert (found.upper > [0.7, 0.3, 0.4]).all()
    np.testing.assert_array_equal(found.process.slope.ravel(), found.parameters[:1])
    least = db.LinearGaussian.fit(data[:, :-1].reshape(-1, 1), data[:, 1:].reshape(-1, 1), data[:, 0])
    assert abs(found.process.slope - least.slope)[0, 0] < 4 * np.sqrt((1 - 0.49) / 900)


def test_fit_takes_trajectories():
    """A model whose law is known needs no simulation."""

    def process(parameters, rng):
        return db.LinearGaussian(np.exp(-0.2 * parameters[0]), 0.4, start=1.0)

    data = list(ornstein_uhlenbeck([2.0], 1, n=16))
    found = db.fit(data, (process, 1.6), discount=0.9)
    assert found.lower[0] < 2.0 < found.upper[0]
    assert found.process.slope[0, 0] == np.exp(-0.2 * found.parameters[0])
    with pytest.raises(InvalidArgument, match="max_iterations is not for trajectories"):
        db.fit(data, (process, 1.2), max_iterations=3)
    with pytest.raises(InvalidArgument, match="kernel is a function"):
        db.fit(data, process)


def test_bad_arguments_are_named():
    with pytest.raises(InvalidArgument, match="splits is 1"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), ornstein_uhlenbeck, 1.0, splits=1)
    with pytest.raises(InvalidArgument, match="start"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), ornstein_uhlenbeck, np.nan)
    for given, message in (
        ({"step": lambda x, p: x}, r"step cannot be called with three arguments; give .* step\(x, parameters, noise\)"),
        ({"step": 3}, r"step is a int; give a function step\(x, parameters, noise\)"),
        ({"step": van_der_pol, "simulate": ornstein_uhlenbeck}, "simulate and step: both are given"),
        ({}, "simulate and step: neither is given"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            db.fit_simulator(ornstein_uhlenbeck([1.0], 0), start=1.0, **given)
    with pytest.raises(InvalidArgument, match="the process has 2 dimensions and target 1"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), db.LinearGaussian(np.eye(2), 1.0))


def van_der_pol(states, parameters, noise):
    """Position and speed after 0.2, with noise in the speed."""
    place, speed = states.T
    push = parameters[0] * (1 - place**2) * speed - place
    return np.stack([place + 0.2 * speed, speed + 0.2 * push + 0.1 * noise[:, 1]], axis=1)


def walks(step, parameters, rng, starts, n_steps=12):
    """Simulate a one-step function."""
    states = [starts]
    for _ in range(n_steps):
        states.append(step(states[-1], parameters, rng.standard_normal(starts.shape)))
    return np.stack(states, axis=1)


STARTS = np.random.default_rng(2).uniform(-2, 2, size=(40, 2))
OSCILLATIONS = list(walks(van_der_pol, [1.0], np.random.default_rng(3), STARTS))
QUICK = {"splits": 2, "n_states": 40, "tol": 0.02}


def test_the_damping_of_an_oscillator_is_found_from_the_recorded_states():
    found = db.fit_simulator(OSCILLATIONS, start=0.6, step=van_der_pol, **QUICK)
    assert abs(found.parameters[0] - 1.0) < 0.05
    assert found.outcome is db.Status.SETTLED


def test_a_step_is_simulated_like_a_simulator_with_the_same_draws():
    def simulate(parameters, rng, starts):
        return walks(van_der_pol, parameters, rng, starts)

    one, other = (
        db.fit_simulator(OSCILLATIONS, start=0.6, **how, **QUICK)
        for how in ({"step": van_der_pol}, {"simulate": simulate})
    )
    assert one.parameters == other.parameters
    assert (one.lower, one.upper, one.distance.value) == (other.lower, other.upper, other.distance.value)
    with pytest.raises(InvalidArgument, match="both are given"):
        db.fit_simulator(OSCILLATIONS, simulate, 0.6, step=van_der_pol)


def test_a_step_is_simulated_over_the_recorded_lengths():
    seen = []

    def step(states, parameters, noise):
        seen.append(len(states))
        return van_der_pol(states, parameters, noise)

    cut = [path[: 6 + k % 5] for k, path in enumerate(OSCILLATIONS)]
    found = db.fit_simulator(cut, start=0.6, step=step, time_limit=0, **QUICK)
    assert found.evaluations == 1
    assert seen == [40] * 9 * 2  # ten states; once for the distance, once for the type of the result
    with pytest.raises(InvalidData, match=r"step\(…\) returned an array of shape \(40,\)"):
        db.fit_simulator(cut, start=0.6, step=lambda states, parameters, noise: states[:, 0], **QUICK)


def test_bounds_are_respected():
    """The best parameter is 1: with bounds below it, the upper one is best; no simulation leaves them."""
    tried = []

    def step(states, parameters, noise):
        tried.append(parameters[0])
        return van_der_pol(states, parameters, noise)

    found = db.fit_simulator(OSCILLATIONS, start=0.6, step=step, bounds=[(0.5, 0.7)], **QUICK)
    assert found.parameters[0] == pytest.approx(0.7, abs=0.02 * 0.6)
    assert 0.5 <= min(tried) <= max(tried) <= 0.7
    assert 0.5 <= found.lower[0] <= found.upper[0] <= 0.7
    for bounds, message in (
        ([(0.7, 0.5)], "low < high"), ([(0, 1), (0, 1)], "give 1 pairs"), (3, "give 1 pairs"),
        ([(1, 2)], r"start\[0\] is 0.6, outside its bounds 1 to 2"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=message):
            db.fit_simulator(OSCILLATIONS, start=0.6, step=van_der_pol, bounds=bounds, **QUICK)


def test_an_optimum_on_a_bound_names_the_bound():
    """Every fit to a half ends at the bound nearest to the coefficient 0.6 of the data."""
    data = db.LinearGaussian(0.6, 0.4, start=1.0).sample(60, 10, 1)

    def law(parameters, rng):
        return db.LinearGaussian(parameters[0], 0.4, start=1.0)

    for start, bounds, message in (
        (0.2, (None, 0.2), "parameter 0 is at its upper bound 0.2"), (0.95, (0.95, None), "at its lower bound 0.95"),
    ):  # fmt: skip
        with pytest.raises(InvalidData, match=message):
            db.fit_simulator(data, law, [start], bounds=[bounds], splits=2, tol=0.02)


def test_a_time_limit_ends_with_the_best_so_far_and_says_so():
    found = db.fit_simulator(OSCILLATIONS, start=0.6, step=van_der_pol, time_limit=0, **QUICK)
    assert found.evaluations == 1
    assert found.parameters == [0.6]
    assert (found.lower[0], found.upper[0]) == (-np.inf, np.inf)
    assert "time_limit" in found.status
    assert not found.converged


def test_progress_counts_fits():
    seen = []
    db.fit_simulator(
        OSCILLATIONS, start=0.9, step=van_der_pol, progress=lambda done, total: seen.append((done, total)), **QUICK
    )
    assert seen == [(k, 5) for k in range(1, 6)]


def test_automatic_cells_are_no_wider_than_a_step():
    """Shorter steps need more cells."""

    def slow(states, parameters, noise):
        return states + 0.7 * (van_der_pol(states, parameters, 0 * noise) - states) + 0.02 * noise

    paths = list(walks(slow, [1.0], np.random.default_rng(4), STARTS))
    found = db.fit_simulator(paths, start=0.8, step=slow, time_limit=0)
    data = np.concatenate(paths)
    radius = np.sqrt((((data - found.cells.centers[found.cells.encode(data)]) / found.cells.scale) ** 2).sum(1).mean())
    length = np.sqrt((((np.diff(paths, axis=1)) / found.cells.scale) ** 2).sum(-1).mean())
    assert radius <= 1.05 * length
    assert found.cells.n_states > db.quantize(paths).n_states
    with pytest.raises(InvalidData, match="wider than a step"):
        db.fit_simulator(paths, start=0.8, step=slow, n_states=db.quantize(paths).n_states)


def test_numbers_that_are_not_finite_name_the_parameters():
    with pytest.raises(InvalidData, match=r"the parameters were \[0.6\], which bounds= can exclude"):
        db.fit_simulator(OSCILLATIONS, start=0.6, step=lambda states, parameters, noise: states / 0, **QUICK)
