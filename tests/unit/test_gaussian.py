"""Closed forms of linear-Gaussian processes, against each other, against Gaussian paths and against simulation."""

import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.gaussian import LinearGaussian, linear_gaussian_distance


def random_process(rng, d, spread=0.5):
    slope = rng.normal(size=(d, d))
    slope *= 0.8 / np.abs(np.linalg.eigvals(slope)).max()
    return LinearGaussian(
        slope, rng.normal(size=(d, d)), shift=rng.normal(size=d), start=rng.normal(size=d), spread=spread
    )


def path_moments(process, T, γ):
    """Mean and covariance of x_0 … x_T with coordinates scaled by γ^(t/2)."""
    d = process.dimension
    blocks = [process.spread] + [process.noise] * T
    L = np.zeros(((T + 1) * d, (T + 1) * d))
    mean, means = process.start, []
    for t in range(T + 1):
        means.append(γ ** (t / 2) * mean)
        mean = process.slope @ mean + process.shift
        for s in range(t + 1):
            power = np.linalg.matrix_power(process.slope, t - s)
            L[t * d : (t + 1) * d, s * d : (s + 1) * d] = γ ** (t / 2) * power @ blocks[s]
    return np.concatenate(means), L @ L.T


@pytest.mark.parametrize("d", [1, 2, 3])
def test_squared_distance_is_that_of_long_paths(d):
    """Gunasingam & Wong's formula for Gaussian paths, cut off where γ^T is negligible: another proof."""
    rng, γ, T = np.random.default_rng(d), 0.6, 60
    X, Y = random_process(rng, d), random_process(rng, d)
    (a, A), (b, B) = path_moments(X, T, γ), path_moments(Y, T, γ)
    exact = (1 - γ) * db.examples.gaussian_distance(A, B, a, b, dimension=d)
    assert linear_gaussian_distance(X, Y, γ) == pytest.approx(exact, rel=1e-8)


def test_finite_horizons_are_those_of_gaussian_paths():
    """The antithetic step of slopes -1.5 and 1.4 too; and long horizons tend to the discounted distance."""
    e, w = db.examples, [0, 1, 1, 1]
    covariances = (e.autoregression_covariance(a, 0.5, 3) for a in (-1.5, 1.4))
    X, Y = LinearGaussian(-1.5, 0.5), LinearGaussian(1.4, 0.5)
    assert linear_gaussian_distance(X, Y, weights=w) == pytest.approx(e.gaussian_distance(*covariances), rel=1e-12)
    rng, γ = np.random.default_rng(5), 0.6
    X, Y = random_process(rng, 2), random_process(rng, 2)
    powers = (1 - γ) * γ ** np.arange(60)
    assert linear_gaussian_distance(X, Y, weights=powers) == pytest.approx(linear_gaussian_distance(X, Y, γ), rel=1e-8)


def test_fixed_starts_and_the_formula_on_the_line():
    """G(a,b,q,z) = (z + γq/(1-γ))/(1-γab), d = (1-γ)[G(a,a,σ²,x²) + G(b,b,τ²,y²) - 2G(a,b,στ,xy)]."""
    a, b, σ, τ, x, y, γ = 0.8, -0.7, 0.6, 0.5, 1.2, -0.4, 0.9

    def G(a, b, q, z):
        return (z + γ * q / (1 - γ)) / (1 - γ * a * b)

    exact = (1 - γ) * (G(a, a, σ**2, x**2) + G(b, b, τ**2, y**2) - 2 * G(a, b, σ * τ, x * y))
    X, Y = LinearGaussian(a, σ, start=x), LinearGaussian(b, τ, start=y)
    assert linear_gaussian_distance(X, Y, γ) == pytest.approx(exact, rel=1e-12)


def test_absolute_distance_is_that_of_shared_noise():
    f, g = (lambda x, ε: 0.8 * x + 0.6 * ε), (lambda x, ε: 0.5 * x + 0.3 + 0.4 * ε)
    X, Y = LinearGaussian(0.8, 0.6, spread=0.5), LinearGaussian(0.5, 0.4, shift=0.3, spread=0.5)
    found, error = db.examples.shared_noise_distance(f, g, 0.8, spread=0.5)
    assert abs(linear_gaussian_distance(X, Y, 0.8, "euclidean") - found) < 4.5 * error + 1e-7
    found, error = db.examples.shared_noise_distance(f, g, 0.8, power=2, spread=0.5)
    assert abs(linear_gaussian_distance(X, Y, 0.8) - found) < 4.5 * error + 1e-6


def test_shared_noise_is_optimal_on_a_fine_grid():
    """A nonlinear pair on a grid: the certified distance tends to that of shared noise, error ~ h²."""
    from scipy.special import ndtr

    grid = np.linspace(-3.2, 3.2, 41)
    edges = (grid[1:] + grid[:-1]) / 2
    chains = []
    for a, σ in ((0.9, 0.5), (0.6, 0.4)):
        below = ndtr((edges - a * np.tanh(grid)[:, None]) / σ)
        chains.append(db.MarkovChain(np.diff(below, axis=1, prepend=0.0, append=1.0), initial=20, rewards=grid))
    found, error = db.examples.shared_noise_distance(
        db.examples.bent_walk(0.9, 0.5), db.examples.bent_walk(0.6, 0.4), 0.8
    )
    assert db.distance(*chains, discount=0.8, tol=1e-5).value == pytest.approx(
        found, abs=4.5 * error + 0.16**2 / 6 / 0.2
    )


def test_least_squares_find_the_process():
    process = LinearGaussian(
        [[0.7, 0.2], [-0.3, 0.6]], [[0.5, 0.0], [0.2, 0.3]], shift=[0.1, -0.2], start=1.0, spread=0.4
    )
    X = process.sample(2000, 10, 0)
    found = LinearGaussian.fit(X[:, :-1].reshape(-1, 2), X[:, 1:].reshape(-1, 2), X[:, 0])
    np.testing.assert_allclose(found.slope, process.slope, atol=0.03)
    np.testing.assert_allclose(found.noise @ found.noise.T, process.noise @ process.noise.T, atol=0.02)
    np.testing.assert_allclose(found.shift, process.shift, atol=0.03)
    np.testing.assert_allclose(found.start, process.start, atol=0.05)
    assert linear_gaussian_distance(found, process, 0.9) < 0.01


def test_what_has_no_closed_form_is_refused():
    X, Y = LinearGaussian(1.1, 1.0), LinearGaussian(0.5, 1.0)
    with pytest.raises(InvalidArgument, match="X has spectral radius"):
        linear_gaussian_distance(X, Y, 0.9)
    with pytest.raises(InvalidArgument, match="non-negative"):
        linear_gaussian_distance(LinearGaussian(-0.5, 1.0), Y, 0.9, "euclidean")
    with pytest.raises(InvalidArgument, match="dimensions"):
        linear_gaussian_distance(LinearGaussian(np.eye(2) / 2, 1.0), Y, 0.9)
    with pytest.raises(InvalidArgument, match="closed forms exist"):
        linear_gaussian_distance(Y, Y, 0.9, "cosine")
