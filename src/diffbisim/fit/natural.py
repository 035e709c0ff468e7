"""The direction of a step: the gradient measured in the geometry of the model's own transitions.

A model with parameters θ makes rows P_θ(·|y). The Fisher information of its transitions, with ρ the occupancy,

    M = Σ_y ρ(y) Σ_y' (∇P_θ(y'|y)) (∇P_θ(y'|y))ᵀ / P_θ(y'|y)  =  Jᵀ W J,

says how far two models are apart, however they are parametrized. The natural direction n solves M n = g, here by a few
conjugate gradients: products with M cost one pass forward and one backward through the model (J v as the derivative of
u ↦ Jᵀu), next to nothing beside the distance. Every iterate of conjugate gradients has <g, n> > 0, which is all that
Polyak's step asks for. A step s = η n changes the model by about sᵀ M s / 2 = η² <g, n>/2 nats per transition, so
√<g, n> is the size that a cap should measure.
"""

from collections.abc import Sequence
from typing import Any

import torch

Vector = list[torch.Tensor]

#: Conjugate gradients at most, and where they stop (squared residual).
ITERATIONS, ACCURACY = 15, 1e-6

#: Added to M, relative to its size along the gradient: directions that change nothing are left alone.
DAMPING = 1e-6

#: Probabilities below this count as this: entries near zero may move.
RARE = 1e-6


def fisher_weights(P: torch.Tensor, rho: torch.Tensor) -> torch.Tensor:
    """``W``: ρ(y)/P(y'|y) for the entries of a kernel, dense or the values of a sparse one with ``rho`` by entry."""
    return (rho / torch.clamp(P, min=RARE)).detach()


def natural_direction(
    outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], parameters: Sequence[Any], gradient: Vector
) -> Vector | None:
    """``n`` with ``(Jᵀ W J + λ) n ≈ g``, or None where the model cannot be differentiated twice."""
    try:
        return _conjugate_gradients(_Metric(outputs, weights, parameters), gradient)
    except (RuntimeError, NotImplementedError):  # what torch raises where a second derivative is missing
        return None


class _Metric:
    """v ↦ Jᵀ W J v."""

    def __init__(
        self, outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], parameters: Sequence[Any]
    ) -> None:
        self.outputs, self.weights, self.parameters = list(outputs), weights, list(parameters)
        self.probe = [torch.zeros_like(out, requires_grad=True) for out in outputs]
        self.pulled = self._pull(self.probe, create_graph=True)

    def _pull(self, seeds: Sequence[torch.Tensor], create_graph: bool = False) -> Vector:
        found = torch.autograd.grad(
            self.outputs, self.parameters, list(seeds), retain_graph=True, create_graph=create_graph,
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        return list(found)

    def __call__(self, v: Vector) -> Vector:
        pushed = torch.autograd.grad(
            self.pulled, self.probe, v, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return self._pull([w * p for w, p in zip(self.weights, pushed, strict=True)])


def inner(a: Vector, b: Vector) -> float:
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))


def _conjugate_gradients(metric: _Metric, g: Vector) -> Vector:
    n, r, p = [torch.zeros_like(x) for x in g], list(g), list(g)
    before = first = inner(r, r)
    damping = 0.0
    for k in range(ITERATIONS):
        q = metric(p)
        if k == 0 and before > 0:
            damping = DAMPING * inner(p, q) / before
        q = [x + damping * y for x, y in zip(q, p, strict=True)]
        curvature = inner(p, q)
        if not curvature > 0:
            break
        alpha = before / curvature
        n = [x + alpha * y for x, y in zip(n, p, strict=True)]
        r = [x - alpha * y for x, y in zip(r, q, strict=True)]
        after = inner(r, r)
        if after <= ACCURACY * first:
            break
        p = [x + after / before * y for x, y in zip(r, p, strict=True)]
        before = after
    return n
