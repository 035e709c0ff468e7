"""How the parameters of a model move: natural steps with a step rule, or the steps of a torch optimizer.

The natural direction is the gradient in the geometry of the model's own transitions. A model with parameters θ has rows
P_θ(·|y) and occupancy ρ. The Fisher information of its transitions,

    M = Σ_y ρ(y) Σ_y' (∇P_θ(y'|y)) (∇P_θ(y'|y))ᵀ / P_θ(y'|y)  =  Jᵀ W J,

measures how far two models are apart, independently of their parametrization. The natural direction n solves M n = g.
A few conjugate gradient iterations suffice: a product with M costs one forward and one backward pass through the model
(J v is the derivative of u ↦ Jᵀu), which is negligible beside the distance. Every conjugate gradient iterate satisfies
<g, n> > 0, which is all that Polyak's step requires. A step s = η n changes the model by about
sᵀ M s / 2 = η² <g, n>/2 nats per transition, so step lengths are capped in terms of √<g, n>.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from diffbisim.errors import InvalidArgument
from diffbisim.fit.objectives import Evaluation, Model, ModelObjective
from diffbisim.optimize.checkpoint import Resumable
from diffbisim.optimize.steps import StepRule

Vector = list[torch.Tensor]

#: Largest natural step: √(2 × nats per transition).
CAP = 0.5

#: Maximum number of conjugate gradient iterations, and the relative squared residual at which they stop.
ITERATIONS, ACCURACY = 15, 1e-6

#: Added to M, relative to its curvature along the gradient, so that directions without effect are not amplified.
DAMPING = 1e-6

#: Lower limit of probabilities in the Fisher information, so that entries near zero can still move.
RARE = 1e-6


class Direction(NamedTuple):
    """A descent direction n for the gradient g."""

    vector: Vector
    slope: float  # <g, n>
    size: float  # the length that the cap of the step rule refers to


class RuleSteps(Resumable):
    """Natural steps with lengths from a step rule; plain gradient steps for models without second derivatives."""

    column: ClassVar[str] = "length"
    retrying = False
    changing = ("rule",)

    def __init__(self, objective: ModelObjective, rule: StepRule) -> None:
        self.objective, self.model, self.rule = objective, objective.model, rule
        self.length = 0.0

    @property
    def level(self) -> float:
        return self.rule.level

    def step(self, at: Evaluation) -> float:
        n = natural(self.model, at)
        self.length = self.rule.length(at.value, n.slope, n.size)
        if self.rule.retreats(at.value, self.length):
            self.model.put(self.objective.best())
            return self.length
        with torch.no_grad():
            for p, direction in zip(self.model.parameters, n.vector, strict=True):
                p -= self.length * direction
        return self.length

    def settled(self, goal: float) -> bool:
        return self.rule.exhausted(goal) or (self.length == 0.0 and self.rule.improved)

    def facts(self) -> dict[str, Any]:
        """Return the options that identify this update."""
        return {"attainable": getattr(self.rule, "attainable", None), "optimizer": None, "scheduler": None}


class OptimizerSteps:
    """Gradient steps of a torch optimizer; the rule only estimates the attainable level."""

    column: ClassVar[str] = "length"
    retrying = False

    def __init__(self, model: Model, rule: StepRule, optimizer: Any, scheduler: Any = None) -> None:
        self.model, self.rule = model, rule
        self.optimizer = optimizer(model.parameters)
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InvalidArgument(
                "optimizer is LBFGS, which needs several gradients per step; use another optimizer, or none"
            )
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)

    @property
    def level(self) -> float:
        return self.rule.level

    def step(self, at: Evaluation) -> float:
        g = gradient(self.model, at)
        length = self.rule.length(at.value, g.slope, g.size)
        for p, derivative in zip(self.model.parameters, g.vector, strict=True):
            p.grad = derivative
        self.optimizer.step()
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(at.value)
        elif self.scheduler is not None:
            self.scheduler.step()
        return length

    def settled(self, goal: float) -> bool:
        return False

    def facts(self) -> dict[str, Any]:
        """Return the options that identify this update."""
        optimizer, scheduler = self.optimizer, self.scheduler
        return {
            "attainable": getattr(self.rule, "attainable", None),
            "optimizer": [type(optimizer), optimizer.state_dict()["param_groups"]],
            "scheduler": scheduler and [type(scheduler), scheduler.state_dict()],
        }

    def state(self) -> dict[str, Any]:
        scheduler = self.scheduler and self.scheduler.state_dict()
        return {"rule": self.rule, "optimizer": self.optimizer.state_dict(), "scheduler": scheduler}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore the state exactly, because ``load_state_dict`` casts numbers to the parameters' type."""
        self.rule = state["rule"]
        self.optimizer.load_state_dict(state["optimizer"])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for k, entries in state["optimizer"]["state"].items():
            tensors = {name: v for name, v in entries.items() if isinstance(v, torch.Tensor)}
            self.optimizer.state[parameters[k]].update(tensors)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


# --- directions --------------------------------------------------------------------------------------------


def gradient(model: Model, at: Evaluation) -> Direction:
    """Return g = ∇_θ d, with its largest entry as its size."""
    found = torch.autograd.grad(
        at.distance, model.parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    g = [x.detach() for x in found]
    return Direction(g, inner(g, g), max(float(x.abs().max()) for x in g))


def natural(model: Model, at: Evaluation) -> Direction:
    """Return the natural direction, with size √<g, n>, or the gradient if there is none."""
    g = gradient(model, at)
    n = natural_direction(*_outputs(at), model.parameters, g.vector)
    if n is not None and all(bool(torch.isfinite(x).all()) for x in n) and (slope := inner(g.vector, n)) > 0:
        return Direction(n, slope, slope**0.5)
    return g


def _outputs(at: Evaluation) -> tuple[list[Any], list[Any]]:
    """Return the learned outputs of the model and their weights W in the metric."""
    P, entries, initial, rewards, cost = at.outputs
    m = torch.from_numpy(np.array(at.result.occupancy))
    rho, problem = m.sum(dim=0), at.result.problem
    by_entry = rho[:, None] if P.layout == torch.strided else rho[P.indices()[0]]
    learned = [(entries, fisher_weights(entries, by_entry.to(entries.dtype)))]
    units = (problem.scale or 1.0) ** 2
    if isinstance(initial, torch.Tensor):
        once = torch.full_like(initial, problem.step)  # drawn once per 1/(1-γ) transitions
        learned.append((initial, fisher_weights(initial, once)))
    if isinstance(rewards, torch.Tensor):
        learned.append((rewards, rho / units))
    if isinstance(cost, torch.Tensor):
        learned.append((cost, m / units))
    learned = [(out, weight) for out, weight in learned if out.requires_grad]
    return [out for out, _ in learned], [weight for _, weight in learned]


def fisher_weights(P: torch.Tensor, rho: torch.Tensor) -> torch.Tensor:
    """Return W = ρ(y)/P(y'|y) for a dense kernel, or for the values of a sparse one with `rho` given per entry."""
    return (rho / torch.clamp(P, min=RARE)).detach()


def natural_direction(
    outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], parameters: Sequence[Any], gradient: Vector
) -> Vector | None:
    """Return n with (Jᵀ W J + λ) n ≈ g, or None if the model cannot be differentiated twice."""
    try:
        return _conjugate_gradients(_Metric(outputs, weights, parameters), gradient)
    except (RuntimeError, NotImplementedError):  # raised by torch if a second derivative is missing
        return None


class _Metric:
    """The linear map v ↦ Jᵀ W J v."""

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
    """Return the inner product of two parameter vectors."""
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))


def _conjugate_gradients(metric: _Metric, g: Vector) -> Vector:
    """Solve (M + λ) n = g approximately."""
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
