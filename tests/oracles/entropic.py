"""The entropic metric with a proof and beyond double precision: decimals of fifty digits.

    (TW)(x,y) = (1-γ) c(x,y) + γ min_π <π, W> + ε' KL(π ‖ P_X(·|x) ⊗ P_Y(·|y)),      ε' = (1-γ) ε,

monotone, and TW shifts by γk when W shifts by k, so that MacQueen's bounds enclose the fixed point for any table W.

*One transport.* Its dual, D(f) = <p, f> + <q, g> with g the soft transform of f, is concave with gradient p - p̃, where
p̃ is the row sum of the Gibbs plan. Hence D(f) ≤ OT ≤ D(f) + |p - p̃|₁ (osc f + osc W): a soft transform varies no more
than W does. Newton's method with the Hessian in doubles and p - p̃ in decimals closes that gap by many digits a step;
the same idea one level up, (I - γΠ)⁻¹ (TW - W), finds the table (see enclosure.py).
"""

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from oracles.enclosure import centered

DIGITS = 50

#: Enclosures no wider than this (costs scaled to at most one) will do; and what rounding at DIGITS may add.
WIDTH, ROUNDING = Decimal("1e-25"), Decimal("1e-40")


class Truth(NamedTuple):
    lower: Fraction
    upper: Fraction
    table: np.ndarray  # (n_X, n_Y), rounded
    gradient: dict  # transition_x, transition_y, cost, initial_x, initial_y

    @property
    def value(self):
        return float((self.lower + self.upper) / 2)


class Soft:
    """min <π, W> + ε KL(π ‖ p⊗q) over couplings of two rows; keeps its potentials from table to table."""

    def __init__(self, p, q, n_y):
        self.rows, self.cols = np.flatnonzero(p), np.flatnonzero(q)
        self.p, self.q = ([Decimal(float(v)) for v in row[row > 0]] for row in (p, q))
        self.p, self.q = ([v / sum(side) for v in side] for side in (self.p, self.q))
        self.at = [[int(x * n_y + y) for y in self.cols] for x in self.rows]
        self.f, self.plan = [Decimal(0)] * len(self.p), None

    def solve(self, W, ε):
        """Lower and upper bounds on the value; leaves f, g and the plan of the lower one."""
        table = [[W[k] for k in row] for row in self.at]
        spread = max(map(max, table)) - min(map(min, table))
        if self.plan is None:  # from high temperatures down to this one
            hot = ε
            while hot < spread:
                hot *= 4
            while hot > ε:
                self._settle(table, hot, spread, Decimal("1e-3"))
                hot /= 4
        gap = self._settle(table, ε, spread, WIDTH * Decimal("1e-6"))
        lower = sum(w * f for w, f in zip(self.p, self.f, strict=True))
        lower += sum(w * g for w, g in zip(self.q, self.g, strict=True))
        return lower - ROUNDING, lower + gap + ROUNDING

    def _settle(self, table, ε, spread, target):
        """Newton's method until the certified gap is below ``target``; the gap."""
        p, q, columns = self.p, self.q, range(len(self.q))
        for _ in range(300):
            inner = []  # log Σ_i p_i exp((f_i - W_ij)/ε), stably
            for j in columns:
                exponents = [(f - row[j]) / ε for f, row in zip(self.f, table, strict=True)]
                top = max(exponents)
                inner.append(top + sum(w * (e - top).exp() for w, e in zip(p, exponents, strict=True)).ln())
            self.g = [-ε * v for v in inner]
            plan = [
                [w * q[j] * ((f + self.g[j] - row[j]) / ε).exp() for j in columns]
                for w, f, row in zip(p, self.f, table, strict=True)
            ]
            have = [sum(row) for row in plan]
            gap = sum(abs(w - h) for w, h in zip(p, have, strict=True)) * (max(self.f) - min(self.f) + spread)
            self.plan = np.array([[float(v) for v in row] for row in plan])
            if gap <= target:
                return gap
            self._step(have, ε)
        raise AssertionError("the entropic transport did not settle: take a larger epsilon")

    def _step(self, have, ε):
        """f + t ε S⁺ (p - p̃), S = diag(p̃) - Π diag(1/q) Πᵀ: Newton's step, damped while it is long (in units of ε)."""
        lack = [w - h for w, h in zip(self.p, have, strict=True)]
        size = max(map(abs, lack))
        S = np.diag(self.plan.sum(axis=1)) - self.plan / self.plan.sum(axis=0) @ self.plan.T
        step = np.linalg.lstsq(S, np.array([float(v / size) for v in lack]), rcond=1e-14)[0]
        step -= step.mean()
        length = 2 * float(size) * np.abs(step).max()
        if length > 0:
            step *= np.log1p(length) / length
        self.f = [f + ε * size * Decimal(float(v)) for f, v in zip(self.f, step, strict=True)]

    def everywhere(self, table, ε):
        """f (n_X,), g (n_Y,) in doubles, soft transforms off the supports."""
        f, g = (np.array([float(v) for v in side]) for side in (self.f, self.g))
        p, q = (np.array([float(v) for v in side]) for side in (self.p, self.q))
        full_f = -ε * _logsum((g - table[:, self.cols]) / ε, q)
        return full_f, -ε * _logsum((f - table[self.rows].T) / ε, p)


def _logsum(exponents, weights):
    top = exponents.max(axis=1)
    return top + np.log(np.exp(exponents - top[:, None]) @ weights)


def entropic_truth(P_x, P_y, nu_x, nu_y, cost, discount, epsilon):
    """The enclosure of d_ε and the derivatives; for ε of about the cost's size, which it is divided by inside."""
    with localcontext(Context(prec=DIGITS, Emin=-(10**6), Emax=10**6)):
        return _truth(P_x, P_y, nu_x, nu_y, cost, discount, epsilon)


def _truth(P_x, P_y, nu_x, nu_y, cost, discount, epsilon):
    n_y = cost.shape[1]
    scale = Decimal(float(cost.max())) or Decimal(1)
    c = [Decimal(float(v)) / scale for v in cost.ravel()]
    γ = Decimal(float(discount))
    ε = (1 - γ) * Decimal(float(epsilon)) / scale
    pairs = [Soft(p, q, n_y) for p in P_x for q in P_y]
    W = list(c)
    for _ in range(100):
        bounds = [pair.solve(W, ε) for pair in pairs]
        T = [[(1 - γ) * v + γ * b[side] for v, b in zip(c, bounds, strict=True)] for side in (0, 1)]
        step = [t - w for t, w in zip(T[0], W, strict=True)]
        low, high = min(step), max(t - w for t, w in zip(T[1], W, strict=True))
        if γ * (high - low) <= WIDTH * (1 - γ):
            break
        size = max(map(abs, step)) or Decimal(1)
        Π = _matrix(pairs)
        change = np.linalg.solve(np.eye(len(pairs)) - discount * Π, [float(s / size) for s in step])
        W = [w + size * Decimal(float(v)) for w, v in zip(W, change, strict=True)]
    else:
        raise AssertionError("no enclosure after 100 steps")
    start = Soft(nu_x, nu_y, n_y)
    upper = start.solve([t + γ / (1 - γ) * high for t in T[1]], ε)[1]
    lower = start.solve([t + γ / (1 - γ) * low for t in T[0]], ε)[0]
    table, factor = np.array([float(t) for t in T[0]]).reshape(cost.shape), float(scale)
    gradient = _gradient(pairs, start, table, float(ε), P_x, P_y, nu_x, nu_y, discount)
    gradient = {name: part if name == "cost" else factor * part for name, part in gradient.items()}
    return Truth(Fraction(lower * scale), Fraction(upper * scale), factor * table, gradient)


def _matrix(pairs):
    Π = np.zeros((len(pairs), len(pairs)))
    for k, pair in enumerate(pairs):
        Π[k, np.ravel(pair.at)] = pair.plan.ravel()
    return Π


def _gradient(pairs, start, table, ε, P_x, P_y, nu_x, nu_y, γ):
    source = np.zeros(len(pairs))
    source[np.ravel(start.at)] = start.plan.ravel()
    m = np.linalg.solve(np.eye(len(pairs)) - γ * _matrix(pairs).T, (1 - γ) * source)
    n_x, n_y = table.shape
    by_x, by_y = np.zeros((n_x, n_x)), np.zeros((n_y, n_y))
    for k, pair in enumerate(pairs):
        f, g = pair.everywhere(table, ε)
        by_x[k // n_y] += m[k] * f
        by_y[k % n_y] += m[k] * g
    f, g = start.everywhere(table, ε)
    return {
        "transition_x": centered(γ / (1 - γ) * by_x, P_x),
        "transition_y": centered(γ / (1 - γ) * by_y, P_y),
        "cost": m.reshape(table.shape),
        "initial_x": centered(f, nu_x),
        "initial_y": centered(g, nu_y),
    }
