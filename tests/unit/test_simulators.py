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


def test_bad_arguments_are_named():
    with pytest.raises(InvalidArgument, match="splits is 1"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), ornstein_uhlenbeck, 1.0, splits=1)
    with pytest.raises(InvalidArgument, match="start"):
        db.fit_simulator(ornstein_uhlenbeck([1.0], 0), ornstein_uhlenbeck, np.nan)
