"""How the parameters of a model move: natural steps with a step rule, or the steps of a torch optimizer.

The natural direction is the gradient in the geometry of the model's own transitions. A model with parameters θ has rows
P_θ(·|y) and occupancy ρ. The Fisher information of its transitions,

    M = Σ_y ρ(y) Σ_y' (∇P_θ(y'|y)) (∇P_θ(y'|y))ᵀ / P_θ(y'|y)  =  Jᵀ W J,

measures how far two models are apart, independently of their parametrization. The natural direction n solves M n = g.
A few conjugate gradient iterations suffice: a product with M costs one forward and one backward pass through the model
(J v is the derivative of u ↦ Jᵀu), which is negligible beside the distance. Every conjugate gradient iterate satisfies
<g, n> > 0, which is all that Polyak's step requires. A step s = η n changes the model by about
sᵀ M s / 2 = η² <g, n>/2 nats per transition, so step lengths are capped in terms of √<g, n>. Where a softmax is
saturated, M is nearly singular and n is far too long; steps are therefore capped in the parameters as well.

The distance has kinks. The natural steps of Polyak's rule zigzag between their sides; the shortest step that brings the
linear models of the last few points down to the level together follows them (`shortest`).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from diffbisim.common.errors import InvalidArgument
from diffbisim.learning.fit.objectives import FitEvaluation, LearnedModel, ModelObjective
from diffbisim.learning.fit.starts import is_defined, obvious_starts
from diffbisim.learning.optimize.checkpoint import Resumable, stored
from diffbisim.learning.optimize.steps import Annealed, StepRule, least_distance

Vector = list[torch.Tensor]

#: Largest natural step: √(2 × nats per transition).
MAX_STEP = 0.5

#: Largest change of a parameter in one step, relative to the cap of a natural step.
IN_PARAMETERS = 4.0

#: Number of linear models that a step takes into account, and the relative size of what makes their products regular.
CUTS, JITTER = 3, 1e-10

#: Number of steps of a descent from another start before the best of them goes on.
RACE = 15

#: Descents whose lowest parameters differ by less than this, relative to them, are the same.
SAME_WITHIN = 0.01

#: A descent goes on if it would become the best by gaining this multiple of what its rule expects.
HOPE = 4.0

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


@stored
class Slope(NamedTuple):
    """A linear model of the distance at one point."""

    value: float
    point: Vector
    gradient: Vector


@stored
@dataclass
class FitDescent:
    """A descent from one start.

    Attributes
    ----------
    start : str
        Name of the start.
    at : list of tensors
        Parameters at which the distance is evaluated next.
    best : list of tensors
        Parameters with the lowest value.
    rule : StepRule
        The step rule, with the lowest value.
    steps : int
        Number of evaluations.
    failures : int
        Number of times that the rule raised its level without improvement.
    plain : bool
        Whether the next step is along the gradient instead of the natural direction.
    stuck : bool
        Whether the gradient is zero at the best point.
    slopes : list of Slope
        The last `CUTS` points, newest first.
    """

    start: str
    at: Vector
    best: Vector
    rule: StepRule
    steps: int = 0
    failures: int = 0
    plain: bool = False
    stuck: bool = False
    slopes: list[Slope] = field(default_factory=list)

    @classmethod
    def of(cls, start: str, parameters: Vector, rule: StepRule) -> "FitDescent":
        """Begin a descent with a copy of the rule."""
        return cls(start, parameters, parameters, copy.deepcopy(rule))

    @property
    def value(self) -> float:
        """Lowest value so far."""
        return float(getattr(self.rule, "best", 0.0))

    @property
    def delta(self) -> float:
        """What the rule expects to gain; zero for a rule that does not expect anything."""
        return float(getattr(self.rule, "delta", 0.0))

    def ended(self, goal: float) -> bool:
        """Return whether no further gain above `goal` is expected."""
        return self.stuck or self.rule.exhausted(goal)

    def meets(self, other: "FitDescent") -> bool:
        """Return whether the lowest points of two descents are nearly the same."""
        pairs = zip(self.best, other.best, strict=True)
        return all(bool((torch.abs(p - q) <= SAME_WITHIN * (1 + torch.abs(q))).all()) for p, q in pairs)

    def advance(self, model: LearnedModel, at: FitEvaluation) -> float:
        """Move the model from an evaluated point to the next one, and return the length of the step."""
        rule, delta, here = self.rule, self.delta, model.snapshot()
        g = gradient(model, at)
        n = g if self.plain else natural(model, at, g)
        length = rule.length(at.value, n.slope, n.size)
        self.steps += 1
        self.slopes = [Slope(at.value, here, g.vector), *self.slopes[: CUTS - 1]]
        if rule.improved:
            self.best, self.stuck = here, length == 0.0
        failed = self.delta < delta < float("inf") and not rule.improved
        self.failures += failed
        if rule.retreats(at.value, length) or failed:
            self.plain, self.at = failed and self.failures % 2 == 1, self.best
        else:
            u = None if self.plain or isinstance(rule, Annealed) else shortest(model, at, self.slopes, rule.level, n)
            if u is None:
                u = Direction([-length * x for x in n.vector], 0.0, length * n.size)
            elif u.size > (cap := float(getattr(rule, "cap", u.size))):
                u = Direction([cap / u.size * x for x in u.vector], 0.0, cap)
            self.plain, self.at = False, [p + x for p, x in zip(here, u.vector, strict=True)]
        if not is_defined(model, self.at):
            self.plain, self.at = False, self.best
            rule.retreats(at.value, 0.0)
            model.put(self.best)
        return length


class RuleSteps(Resumable):
    """Descents with lengths from a step rule.

    A step is the shortest one in the natural metric that brings the last few linear models down to the level of the
    rule, or, with a single one, natural; it is a plain gradient step for models without second derivatives. When the
    rule fails and raises its level, the descent goes back to its best point, every other time along the plain gradient.
    It also goes back, with shorter steps, if the module is not defined at the next point.

    After the first failure of the descent from the given parameters, the obvious starts (starts.py) are evaluated once
    each. The best of them, up to `restarts`, descend for `RACE` steps, and the best descent of all goes on to its end.
    Then the others go on, as long as their rules expect to overtake it. If only they remain when the steps are used up,
    the run has settled.
    """

    column: ClassVar[str] = "length"
    changing = ("descents", "current", "surveyed", "goal")

    def __init__(self, objective: ModelObjective, rule: StepRule, restarts: int = 0, tol: float = 0.0) -> None:
        self.objective, self.model, self.rule, self.restarts, self.tol = objective, objective.model, rule, restarts, tol
        self.descents = [FitDescent.of("given", self.model.snapshot(), rule)]
        self.current, self.surveyed, self.goal = 0, not restarts, 0.0

    @property
    def level(self) -> float:
        return self.descents[self.current].rule.level

    def step(self, at: FitEvaluation) -> float:
        descent = self.descents[self.current]
        length = descent.advance(self.model, at)
        self.goal = self.tol * (at.result.problem.scale or 1.0)
        if not self.surveyed and (descent.failures or descent.stuck):
            found = obvious_starts(self.model, self.objective.target)
            self.descents += [FitDescent.of(name, start, self.rule) for name, start in found]
            self.surveyed = True
        following = self._next()
        if following != self.current:
            self.current = following
            self.model.put(self.descents[following].at)
        return length

    def _next(self) -> int:
        """Return the descent that goes on: the given one, then all others once, then a race, then the best."""
        ranked = sorted(range(len(self.descents)), key=lambda k: self.descents[k].value)
        best = self.descents[ranked[0]]

        def goes_on(k: int) -> bool:
            one = self.descents[k]
            return not one.ended(self.goal) and (one is best or not one.meets(best))

        new = [k for k, one in enumerate(self.descents) if k and not one.steps]
        others = [k for k in ranked if k != 0][: self.restarts]
        racing = [k for k in others if self.descents[k].steps < RACE and goes_on(k)]
        hopes = [k for k in others if self.descents[k].value - HOPE * self.descents[k].delta <= best.value]
        return [*new, *racing, *filter(goes_on, (ranked[0], *hopes)), ranked[0]][0]

    def settled(self, goal: float) -> bool:
        return self.descents[self._next()].ended(goal)

    @property
    def retrying(self) -> bool:
        """Whether all starts were tried and the best descent has ended, while others go on."""
        best = min(self.descents, key=lambda one: one.value)
        return self.surveyed and all(one.steps for one in self.descents) and best.ended(self.goal)

    def facts(self) -> dict[str, Any]:
        """Return the options that identify this update."""
        attainable = getattr(self.rule, "attainable", None)
        return {"attainable": attainable, "optimizer": None, "scheduler": None, "restarts": self.restarts}


class OptimizerSteps:
    """Gradient steps of a torch optimizer; the rule only estimates the attainable level."""

    column: ClassVar[str] = "length"
    retrying = False

    def __init__(self, model: LearnedModel, rule: StepRule, optimizer: Any, scheduler: Any = None) -> None:
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

    def step(self, at: FitEvaluation) -> float:
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
            "restarts": 0,
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


def gradient(model: LearnedModel, at: FitEvaluation) -> Direction:
    """Return g = ∇_θ d, with its largest entry as its size."""
    found = torch.autograd.grad(
        at.distance, model.parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    g = [x.detach() for x in found]
    return Direction(g, inner(g, g), _largest(g))


def _largest(vector: Vector) -> float:
    return max(float(x.abs().max()) for x in vector)


def natural(model: LearnedModel, at: FitEvaluation, g: Direction) -> Direction:
    """Return the natural direction for the gradient g, or g itself if there is none."""
    n = natural_direction(*_outputs(at), model.parameters, g.vector)
    if n is not None and all(bool(torch.isfinite(x).all()) for x in n) and (slope := inner(g.vector, n)) > 0:
        return Direction(n, slope, max(slope**0.5, _largest(n) / IN_PARAMETERS))
    return g


def shortest(
    model: LearnedModel, at: FitEvaluation, slopes: Sequence[Slope], level: float, n: Direction
) -> Direction | None:
    """Return the shortest displacement u that brings several linear models down to the level; None for a single one.

    In the metric M, u = Σ_i c_i n_i with M n_i = g_i; the vectors g_i have the inner products K = <g_i, n_j> = L Lᵀ.
    A linear model above the distance at the current point contradicts it and is reflected below (see Bundle in
    optimize/steps.py); the oldest ones are dropped until the rest can reach the level together.
    """
    here, outputs = slopes[0], _outputs(at)
    kept, directions, excess = [], [], []
    for slope in slopes:
        apart = [a - b for a, b in zip(here.point, slope.point, strict=True)]
        above = at.value - abs(at.value - slope.value - inner(slope.gradient, apart)) - level
        found = n.vector if slope is here else natural_direction(*outputs, model.parameters, slope.gradient)
        if above > 0 and found is not None:
            kept.append(slope.gradient)
            directions.append(found)
            excess.append(above)
    K = np.array([[inner(g, direction) for direction in directions] for g in kept])
    for count in range(len(kept), 1, -1):
        scale = np.sqrt(np.maximum(np.diag(K)[:count], 1e-300))
        R = (K + K.T)[:count, :count] / (2 * np.outer(scale, scale))
        try:
            L = np.linalg.cholesky(R + JITTER * np.eye(count))
        except np.linalg.LinAlgError:
            continue
        x = least_distance(-L, np.array(excess[:count]) / scale)
        if x is None:
            continue
        c = np.linalg.solve(L.T, x) / scale
        u = [torch.zeros_like(part) for part in here.point]
        for weight, direction in zip(c.tolist(), directions[:count], strict=True):
            u = [part + weight * other for part, other in zip(u, direction, strict=True)]
        if all(bool(torch.isfinite(part).all()) for part in u):
            return Direction(u, 0.0, max(float(np.linalg.norm(x)), _largest(u) / IN_PARAMETERS))
    return None


def _outputs(at: FitEvaluation) -> tuple[list[Any], list[Any]]:
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
