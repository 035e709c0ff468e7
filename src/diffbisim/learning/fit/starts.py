"""Starting parameters that anybody would try: where a fit begins again once the given ones lead nowhere.

The distance to a target is not convex in the parameters, and the softmax of large logits is flat. A descent may
therefore end far from the best parameters. These starts are obvious, and cheap beside one distance:

==================  ================================================================================================
likelihood          the rows of the model nearest to those of the target in relative entropy, min Σ_x KL(P_x | P_θ,x)
least squares       the same in the sum of squares, min Σ_x |P_x - P_θ,x|²
zero                θ = 0, for most models the uniform kernel
spread              for at most three parameters: each parameter at ± `SPREAD`, the others at zero, and the corners
==================  ================================================================================================

The first two need a target with as many states as the model, whose states correspond by number. Learned initial
distributions and rewards take part in them, by their own relative entropy and squares. A start at which the module
fails or returns numbers that are not finite is left out.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from diffbisim.learning.fit.objectives import LearnedModel, Outputs, Vector
from diffbisim.processes.chain import MarkovChain
from diffbisim.results.base import Array

#: Models with at most this many parameters also start from points spread around zero.
MAX_PARAMETERS_FOR_SPREAD = 3

#: The distance of these points from zero in every coordinate: a logit of 3 is a probability of 0.95.
SPREAD = 3.0

#: Larger kernels, which would be needed as dense matrices, are not fitted by likelihood and least squares.
MAX_STATES_FOR_LIKELIHOOD = 3000

#: Maximum number of iterations of L-BFGS.
ITERATIONS = 200

#: Probabilities below this count as this much in a relative entropy.
RARE = 1e-12

Loss = Callable[[Outputs], torch.Tensor]


def obvious_starts(model: LearnedModel, target: MarkovChain) -> list[tuple[str, Vector]]:
    """Return named starting parameters; the model keeps its own."""
    given = model.snapshot()
    zero = [torch.zeros_like(p) for p in given]
    found: list[tuple[str, Vector]] = []
    try:
        if tuple(model().transition.shape) == (target.n_states,) * 2 and target.n_states <= MAX_STATES_FOR_LIKELIHOOD:
            for name, term in (("likelihood", _relative_entropy), ("least squares", _squares)):
                start = _minimum(model, _loss(target, term), [*(v for _, v in found), given, zero])
                found += [] if start is None else [(name, start)]
        found.append(("zero", zero))
        found += [("spread", start) for start in _spread(given)]
        return [(name, start) for name, start in found if is_defined(model, start)]
    finally:
        model.put(given)


def _loss(target: MarkovChain, term: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Loss:
    """Return the misfit of a model's outputs to the target's rows, initial distribution and rewards."""
    kernel = target.transition
    P = torch.from_numpy(np.array(kernel if isinstance(kernel, np.ndarray) else kernel.toarray()))
    start = torch.from_numpy(np.array(target.initial))

    def loss(made: Outputs) -> torch.Tensor:
        rows = made.transition if made.transition.layout == torch.strided else made.transition.to_dense()
        total = term(P, rows)
        if isinstance(made.initial, torch.Tensor) and made.initial.requires_grad:
            total = total + term(start, made.initial)
        if isinstance(made.rewards, torch.Tensor) and made.rewards.requires_grad and target.rewards is not None:
            total = total + _squares(torch.from_numpy(np.array(target.rewards)), made.rewards)
        return total

    return loss


def _relative_entropy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (torch.log(p.clamp(min=RARE)) - torch.log(q.clamp(min=RARE)))).sum()


def _squares(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a - b) ** 2).sum()


def _minimum(model: LearnedModel, loss: Loss, starts: list[Vector]) -> Vector | None:
    """Minimize a loss of the model's outputs by L-BFGS from the best of the starts; None if it is not defined."""

    def value(vector: Array) -> tuple[float, Array]:
        model.put(_shaped(vector, model.parameters))
        found = loss(model())
        g = torch.autograd.grad(found, model.parameters, allow_unused=True, materialize_grads=True)
        return float(found.detach()), _flat(g)

    try:
        values = [value(_flat(start))[0] for start in starts]
        first = starts[int(np.nanargmin(values))]
        minimize_any: Any = minimize
        found = minimize_any(value, _flat(first), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    except (ArithmeticError, RuntimeError, ValueError):  # outside the domain of the module
        return None
    return _shaped(found.x, model.parameters)


def _spread(given: Vector) -> list[Vector]:
    """Return the axes and corners of a cube around zero, for few parameters."""
    size = sum(p.numel() for p in given)
    if size > MAX_PARAMETERS_FOR_SPREAD:
        return []
    points = [SPREAD * np.array(signs) for signs in product((-1, 1), repeat=size)]
    if size > 1:
        points += [sign * SPREAD * axis for axis in np.eye(size) for sign in (-1, 1)]
    return [_shaped(point, given) for point in points]


def is_defined(model: LearnedModel, parameters: Vector) -> bool:
    """Return whether the module returns finite numbers, and no negative probabilities; puts the parameters into it."""
    try:
        model.put(parameters)
        with torch.no_grad():
            made = model()
    except (ArithmeticError, RuntimeError, ValueError):
        return False
    parts = [part for part in (made.entries, *made[2:]) if isinstance(part, torch.Tensor)]
    return all(bool(torch.isfinite(part).all()) for part in parts) and not bool((made.entries < 0).any())


def _flat(vector: Any) -> Array:
    return np.concatenate([x.detach().numpy().astype(np.float64).ravel() for x in vector])


def _shaped(flat: Array, like: Vector) -> Vector:
    """Return the numbers as tensors with the shapes and types of others."""
    parts = torch.split(torch.from_numpy(np.array(flat)), [p.numel() for p in like])
    return [part.reshape(p.shape).to(p.dtype) for part, p in zip(parts, like, strict=True)]
