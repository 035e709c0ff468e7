"""SOMCOT, literally: the coupling as one dense array over (x, y, x', y'), every step as it is written in the docs.

Slow and large on purpose. Costs are taken as they are; one Dirac start for each chain.
"""

import numpy as np


class DenseSomcot:
    def __init__(self, cost, discount, start, eta, beta):
        """``cost (n_X, n_Y)``, at most one; ``start`` a pair of states."""
        n, k = cost.shape
        self.c, self.γ, self.eta, self.beta = cost, discount, eta, beta
        self.bound = 1 / (1 - discount)
        self.mu = np.full((n, k, n, k), 1 / (n * k) ** 2)
        self.lambda_x, self.lambda_y = np.full((n, k), 1 / k), np.full((k, n), 1 / n)
        self.alpha_x, self.alpha_y, self.V = np.zeros((n, n, k)), np.zeros((n, k, k)), np.zeros((n, k))
        self.start = np.zeros((n, k))
        self.start[start] = 1

    def step(self, xs, ys):
        """One iteration; ``xs`` and ``ys`` are minibatches: arrays of shape (batch, 2)."""
        γ, α, β, μ = self.γ, self.alpha_x, self.alpha_y, self.mu
        slack = self.c[:, :, None, None] + α.transpose(0, 2, 1)[:, :, :, None] + β[:, :, None, :]
        slack = slack + γ * self.V - self.V[:, :, None, None]
        new = μ * np.exp(-self.eta * slack)
        new /= new.sum()
        logit_x, logit_y = np.zeros_like(self.lambda_x), np.zeros_like(self.lambda_y)
        residual_x = μ.sum(axis=3).transpose(0, 2, 1).copy()
        residual_y = μ.sum(axis=2)
        for x, x1 in xs:
            logit_x[x] += α[x, x1] / len(xs)
            residual_x[x, x1] -= self.lambda_x[x] / len(xs)
        for y, y1 in ys:
            logit_y[y] += β[:, y, y1] / len(ys)
            residual_y[:, y, y1] -= self.lambda_y[y] / len(ys)
        residual_v = γ * μ.sum(axis=(0, 1)) + (1 - γ) * self.start - μ.sum(axis=(2, 3))
        self.alpha_x = np.clip(α + self.beta * residual_x, -self.bound, self.bound)
        self.alpha_y = np.clip(β + self.beta * residual_y, -self.bound, self.bound)
        self.V = np.clip(self.V + self.beta * residual_v, -self.bound, self.bound)
        self.lambda_x, self.lambda_y = (
            _tilted(self.lambda_x, self.eta * logit_x),
            _tilted(self.lambda_y, self.eta * logit_y),
        )
        self.mu = new


def _tilted(rows, logits):
    new = rows * np.exp(logits)
    return new / new.sum(axis=1, keepdims=True)
