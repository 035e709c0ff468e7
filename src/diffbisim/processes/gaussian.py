"""Linear-Gaussian processes, whose distance is known in closed form.

    X:  x' = A x + b + L ε,    x_0 ~ N(m, L0 L0ᵀ),    ε standard normal
    Y:  the same with B, M, M0, …, noise η

*Squared cost* |x - y|², in any dimension, if γ ρ(A)² < 1 and γ ρ(B)² < 1. The means evolve deterministically. A
bicausal coupling of the noises is determined by the contraction R_t = E[ε_t η_tᵀ | past], in which the cost is linear.
With K = I + γ Bᵀ K A and S_A = L0 L0ᵀ + γ A S_A Aᵀ + γ/(1-γ) L Lᵀ (S_B likewise),

    d = (1-γ) [ Σ_t γ^t |E x_t - E y_t|² + tr S_A + tr S_B - 2 (‖M0ᵀ K L0‖_* + γ/(1-γ) ‖Mᵀ K L‖_*) ].

*Finite horizon* with weights w_0 … w_T in place of (1-γ) γ^t: K_t = w_t I + Bᵀ K_{t+1} A, backward from K_{T+1} = 0;
each time contributes -2 ‖Mᵀ K_t L‖_*, for any slopes.

*Absolute cost* |x - y|, on the line with slopes A, B ≥ 0. It is optimal to drive both monotone kernels by the same
noise (a convex function of x - y stays submodular under such steps), so x_t - y_t is normal at every time and
d = (1-γ) Σ_t γ^t E|x_t - y_t|.

*Absolute cost* |x - y| otherwise: bounds. Any coupling of the noises gives an upper bound, with x_t - y_t normal; used
are equal noises and those that are optimal for the squared cost. The difference of the means |E x_t - E y_t| and that
of the distances from a point, |E|x_t - a| - E|y_t - a||, are lower bounds at each time. The mean norm of a normal
vector follows from √q = ∫ (1 - e^(-sq)) s^(-3/2) ds / (2 √π) over s > 0 and the Laplace transform of its square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, check_count, check_discount, finite_numbers, freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.processes.stochastic import as_generator

#: Sums over time are truncated where the weights of the remaining times add up to less than this.
NEGLIGIBLE = 1e-12
#: The same for bounds.
NEGLIGIBLE_FOR_BOUNDS = 1e-7


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """The process ``x' = A x + b + L ε`` with ``x_0 ~ N(m, L0 L0ᵀ)`` and ε standard normal.

    Parameters
    ----------
    slope, noise : float or array of shape (d, d)
        A and L; a number multiplies the identity.
    shift, start : float or array of shape (d,), default=0.0
        b and m.
    spread : float or array of shape (d, d), default=0.0
        L0.
    """

    slope: Floats  # A (d, d)
    noise: Floats  # L (d, d)
    shift: Floats  # b (d,)
    start: Floats  # m (d,)
    spread: Floats  # L0 (d, d)

    def __init__(self, slope: Any, noise: Any, *, shift: Any = 0.0, start: Any = 0.0, spread: Any = 0.0) -> None:
        d = np.atleast_2d(slope).shape[0]
        for name, value in (("slope", slope), ("noise", noise), ("spread", spread)):
            table = np.eye(d) * value if np.ndim(value) == 0 else value
            object.__setattr__(self, name, freeze(finite_numbers(table, (d, d), name=name, per="pair of coordinates")))
        for name, value in (("shift", shift), ("start", start)):
            row = np.full(d, value) if np.ndim(value) == 0 else value
            object.__setattr__(self, name, freeze(finite_numbers(row, (d,), name=name, per="coordinate")))

    @classmethod
    def fit(cls, now: Floats, after: Floats, starts: Floats) -> LinearGaussian:
        """Fit a process to m steps ``now → after``, (m, d) each, and first states (n, d), by least squares."""
        m, d = now.shape
        design = np.column_stack([now, np.ones(m)])
        found = np.linalg.lstsq(design, after, rcond=None)[0]
        residuals = after - design @ found
        noise = _root(residuals.T @ residuals / max(1, m - d - 1))
        spread = _root(np.cov(starts.T, bias=True).reshape(d, d))
        return cls(found[:d].T, noise, shift=found[d], start=starts.mean(axis=0), spread=spread)

    @property
    def dimension(self) -> int:
        """Number of coordinates of a state."""
        return len(self.slope)

    def sample(self, n_paths: int, n_steps: int, rng: int | np.random.Generator) -> Floats:
        """Sample independent paths, shape ``(n_paths, n_steps + 1, d)``."""
        generator, d = as_generator(rng), self.dimension
        noise = generator.standard_normal((check_count(n_steps, "n_steps") + 1, check_count(n_paths, "n_paths"), d))
        states = [self.start + noise[0] @ self.spread.T]
        for ε in noise[1:]:
            states.append(states[-1] @ self.slope.T + self.shift + ε @ self.noise.T)
        return np.stack(states, axis=1)


def started(process: LinearGaussian, points: Floats | None) -> LinearGaussian | None:
    """Return the process started like the points (n, d); if None, in its stationary law, or None if it has none."""
    d = process.dimension
    if points is not None:
        start, spread = points.mean(axis=0), _root(np.cov(points.T, bias=True).reshape(d, d))
    elif np.abs(np.linalg.eigvals(process.slope)).max() < 1.0:
        start = np.linalg.solve(np.eye(d) - process.slope, process.shift)
        spread = _root(_lyapunov(process.slope, process.noise @ process.noise.T, 1.0))
    else:
        return None
    return LinearGaussian(process.slope, process.noise, shift=process.shift, start=start, spread=spread)


def linear_gaussian_distance(
    X: LinearGaussian, Y: LinearGaussian, discount: float = 0.95, cost: str = "sqeuclidean", *, weights: Any = None
) -> float:
    """Return the distance of two linear-Gaussian processes.

    ``cost`` is "sqeuclidean", or "euclidean" on the line with slopes ≥ 0. ``weights`` of the times 0 … T give the
    distance over a finite horizon, which does not use the discount.
    """
    γ = check_discount(discount) if weights is None else 1.0
    if X.dimension != Y.dimension:
        raise InvalidArgument(f"X has {X.dimension} dimensions and Y has {Y.dimension}; they must be equal")
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    if cost == "euclidean":
        return _absolute(X, Y, γ, w)
    if cost != "sqeuclidean":
        raise InvalidArgument(f'cost is {cost!r}; closed forms exist for "sqeuclidean" and "euclidean" only')
    if w is not None:
        return _squared_with_weights(X, Y, w)
    for name, process in (("X", X), ("Y", Y)):
        radius = float(np.abs(np.linalg.eigvals(process.slope)).max())
        if γ * radius**2 >= 1.0:
            raise InvalidArgument(
                f"the distance is infinite: {name} has spectral radius {radius:g}, and discount × {radius:g}² is at "
                "least 1; reduce the discount"
            )
    return _squared(X, Y, γ)


def _squared(X: LinearGaussian, Y: LinearGaussian, γ: float) -> float:
    d = X.dimension
    A, B = X.slope, Y.slope
    K = np.linalg.solve(np.eye(d * d) - γ * np.kron(B.T, A.T), np.eye(d).ravel()).reshape(d, d)
    energy = sum(
        np.trace(_lyapunov(Z.slope, Z.spread @ Z.spread.T + γ / (1 - γ) * Z.noise @ Z.noise.T, γ)) for Z in (X, Y)
    )
    gained = np.linalg.norm(Y.spread.T @ K @ X.spread, "nuc") + γ / (1 - γ) * np.linalg.norm(
        Y.noise.T @ K @ X.noise, "nuc"
    )
    zero = np.zeros((d, d))
    step = np.block([[A, zero, X.shift[:, None]], [zero, B, Y.shift[:, None]], [np.zeros((1, 2 * d)), np.ones((1, 1))]])
    mean = np.concatenate([X.start, Y.start, [1.0]])
    moments = _lyapunov(step, np.outer(mean, mean), γ)
    apart = np.hstack([np.eye(d), -np.eye(d), np.zeros((d, 1))])
    return float((1 - γ) * (np.trace(apart @ moments @ apart.T) + energy - 2.0 * gained))


def _squared_with_weights(X: LinearGaussian, Y: LinearGaussian, weights: Floats) -> float:
    total, second, mean = 0.0, [Z.spread @ Z.spread.T for Z in (X, Y)], [X.start, Y.start]
    for w in weights:
        total += w * float(np.trace(second[0] + second[1]) + ((mean[0] - mean[1]) ** 2).sum())
        mean = [Z.slope @ m + Z.shift for Z, m in zip((X, Y), mean, strict=True)]
        second = [Z.slope @ S @ Z.slope.T + Z.noise @ Z.noise.T for Z, S in zip((X, Y), second, strict=True)]
    K = np.zeros_like(X.slope)
    for t in reversed(range(len(weights))):
        K = weights[t] * np.eye(X.dimension) + Y.slope.T @ K @ X.slope
        L, M = (X.noise, Y.noise) if t else (X.spread, Y.spread)
        total -= 2.0 * float(np.linalg.norm(M.T @ K @ L, "nuc"))
    return total


def _absolute(X: LinearGaussian, Y: LinearGaussian, γ: float, weights: Floats | None) -> float:
    from scipy.special import ndtr

    if X.dimension != 1 or min(X.slope[0, 0], Y.slope[0, 0]) < 0.0:
        raise InvalidArgument(
            'cost "euclidean" has a closed form only on the line and for non-negative slopes; use "sqeuclidean"'
        )
    if weights is None:
        weights = times(γ)
    a, b = (float(Z.slope[0, 0]) for Z in (X, Y))
    σ, τ = (abs(float(Z.noise[0, 0])) for Z in (X, Y))
    m, n = (float(Z.start[0]) for Z in (X, Y))
    s, t = (abs(float(Z.spread[0, 0])) for Z in (X, Y))
    xx, xy, yy = s * s, s * t, t * t  # covariance of (x_t, y_t), driven by the same noise
    apart, variance = np.empty(len(weights)), np.empty(len(weights))
    for k in range(len(weights)):
        apart[k], variance[k] = abs(m - n), xx + yy - 2.0 * xy
        m, n = a * m + float(X.shift[0]), b * n + float(Y.shift[0])
        xx, xy, yy = a * a * xx + σ * σ, a * b * xy + σ * τ, b * b * yy + τ * τ
    root = np.sqrt(np.maximum(variance, 1e-300))
    z = apart / root
    return float(weights @ (root * np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) + apart * (1 - 2 * ndtr(-z))))


def euclidean_bounds(X: LinearGaussian, Y: LinearGaussian, discount: float, weights: Any = None) -> tuple[float, float]:
    """Return lower and upper bounds of the distance with cost "euclidean", in any dimension; see the module docstring.

    They are equal if the processes differ by a shift, or by the scale of their noise from the same starting point. With
    ``weights`` of the times 0 … T, the discount only selects one of the couplings.
    """
    w = times(discount, NEGLIGIBLE_FOR_BOUNDS) if weights is None else np.asarray(weights, dtype=np.float64)
    d = X.dimension
    joint = [np.eye(d)]
    radii = [np.abs(np.linalg.eigvals(Z.slope)).max() for Z in (X, Y)]
    if discount * radii[0] * radii[1] < 1.0:
        K = np.linalg.solve(np.eye(d * d) - discount * np.kron(Y.slope.T, X.slope.T), np.eye(d).ravel()).reshape(d, d)
        left, _, right = np.linalg.svd(Y.noise.T @ K @ X.noise)
        joint.append((left @ right).T)
    m, n = moments(X, len(w)), moments(Y, len(w))
    apart, middle = m[0] - n[0], (m[0] + n[0]) / 2
    spread = np.abs(mean_norm(m[0] - middle, m[1]) - mean_norm(n[0] - middle, n[1]))
    lower = float(w @ np.maximum(np.linalg.norm(apart, axis=1), spread))
    upper = np.inf
    for R in joint:  # E[ε ηᵀ]
        cross, crossed = X.spread @ _polar(Y.spread.T @ X.spread) @ Y.spread.T, []
        for _ in w:
            crossed.append(cross)
            cross = X.slope @ cross @ Y.slope.T + X.noise @ R @ Y.noise.T
        both = np.array(crossed)
        difference = m[1] + n[1] - both - both.transpose(0, 2, 1)
        upper = min(upper, float(w @ mean_norm(apart, difference)))
    return min(lower, upper), upper


def _polar(M: Floats) -> Floats:
    """Return the orthogonal R with the largest trace of M R."""
    left, _, right = np.linalg.svd(M)
    return np.asarray((left @ right).T)


def times(discount: float, rest: float = NEGLIGIBLE) -> Floats:
    """Return the weights (1-γ) γ^t up to a time after which they add up to less than ``rest``."""
    return np.asarray(
        (1.0 - discount) * discount ** np.arange(max(1.0, np.ceil(np.log(rest) / np.log(max(discount, rest)))))
    )


def moments(process: LinearGaussian, n: int) -> tuple[Floats, Floats]:
    """Return means (n, d) and covariances (n, d, d) at the times 0 … n-1; infinite where they overflow."""
    mean, second, means, covariances = process.start, process.spread @ process.spread.T, [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(n):
            means.append(mean)
            covariances.append(second)
            mean = process.slope @ mean + process.shift
            second = process.slope @ second @ process.slope.T + process.noise @ process.noise.T
    return np.array(means), np.array(covariances)


def mean_norm(means: Floats, covariances: Floats) -> Floats:
    """Return E|z| of normal vectors z with means (n, d) and covariances (n, d, d)."""
    values, vectors = np.linalg.eigh(covariances)
    values = np.maximum(values, 0.0)
    squares = np.square(np.einsum("nij,ni->nj", vectors, means))
    size = np.maximum((values + squares).sum(axis=1), 1e-300)[:, None, None]
    v = np.arange(-50.0, 50.0, 0.5)  # s = e^v; the integrand is analytic and decreases like e^(-|v|/2)
    scaled = 2.0 * np.exp(v)[:, None] * (values[:, None] / size)  # (n, v, d)
    exponent = -np.exp(v)[:, None] * (squares[:, None] / size) / (1.0 + scaled) - 0.5 * np.log1p(scaled)
    integrand = -np.expm1(exponent.sum(axis=2)) * np.exp(-v / 2)
    return np.asarray(0.5 * integrand.sum(axis=1) / (2.0 * np.sqrt(np.pi)) * np.sqrt(size[:, 0, 0]))


def later_share(process: LinearGaussian, seen: int, weights: Floats, center: Floats, power: int) -> float:
    """Return the share of growth after the last observed time in the weighted size of a process.

    The size at time t is (E|x_t - center|²)^(power / 2). A model that is confined to the observed range keeps that of
    the last of the ``seen`` times.
    """
    means, covariances = moments(process, max(len(weights), seen))
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.trace(covariances, axis1=1, axis2=2) + np.square(means - center).sum(axis=1)
        size = square ** (power / 2)
        total = float(weights @ size[: len(weights)])
        if not np.isfinite(total):
            return 1.0
        beyond = weights[seen:] @ np.maximum(size[seen : len(weights)] - size[seen - 1], 0.0)
    return float(beyond / total) if total > 0 else 0.0


def _lyapunov(A: Floats, Q: Floats, γ: float) -> Floats:
    """Solve S = Q + γ A S Aᵀ."""
    n = len(A)
    found = np.linalg.solve(np.eye(n * n) - γ * np.kron(A, A), Q.ravel())
    return np.asarray(found, dtype=np.float64).reshape(n, n)


def _root(covariance: Floats) -> Floats:
    """Return the symmetric square root of a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)
