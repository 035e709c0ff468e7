"""Parameters of simulators: found again, with errors like those of the best estimate there is."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.errors import InvalidArgument


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
    with pytest.raises(InvalidArgument, match="steps is not for trajectories"):
        db.fit(data, (process, 1.2), steps=3)
    with pytest.raises(InvalidArgument, match="kernel is a function"):
        db.fit(data, process)


def test_bad_arguments_are_named():
    with pytest.raises(InvalidArgument, match="splits is 1"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), ornstein_uhlenbeck, 1.0, splits=1)
    with pytest.raises(InvalidArgument, match="start"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), ornstein_uhlenbeck, np.nan)
    with pytest.raises(InvalidArgument, match="the process has 2 dimensions and target 1"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), db.LinearGaussian(np.eye(2), 1.0))
